"""Documents of an index: batches of texts or matrices on the way in, a collection inside."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from numbers import Number
from typing import Any, NamedTuple, Self

import numpy as np
import polars as pl
from numpy.typing import NDArray
from scipy import sparse

from recsys.data.frames import is_pandas
from recsys.data.ids import Ids
from recsys.errors import DataError
from recsys.lsi.vectorizer import checked_text
from recsys.readers.documents import Document, batches_of
from recsys.readers.documents import DocumentBatch as DocumentBatch
from recsys.readers.documents import Documents as Documents
from recsys.readers.documents import read_documents as read_documents
from recsys.topn import inverse_lengths

_SNIPPET = 120  # characters
_TITLES = 3  # times that the words of a title count in a text


class Names(NamedTuple):
    """Ids of documents, and the titles and snippets that are shown with them."""

    ids: Ids
    titles: pl.Series | None = None
    snippets: pl.Series | None = None


@dataclass(frozen=True, eq=False)
class Collection:
    """Documents of an index.

    Attributes
    ----------
    ids : Ids
    titles, snippets : Series of String, or None
    counts : csr_array of shape (n_documents, n_terms)
        How often they have each term, or whatever the rows of a matrix have.
    embedding : ndarray of shape (n_documents, k)
        Their coordinates, V_k S_k.
    """

    ids: Ids
    titles: pl.Series | None
    snippets: pl.Series | None
    counts: Any
    embedding: NDArray[np.floating[Any]]

    def __len__(self) -> int:
        return len(self.ids)

    @cached_property
    def vectors(self) -> NDArray[np.float32]:
        """Coordinates as float32, in which cosines are computed."""
        return np.asarray(self.embedding, dtype=np.float32)

    @cached_property
    def inverse(self) -> NDArray[np.float32]:
        """1 / length of each document's coordinates, NaN for one without words."""
        return inverse_lengths(self.vectors)

    def shown(self, places: NDArray[np.int64]) -> list[pl.Series]:
        """Return ids, and titles and snippets as far as they are known, of some documents."""
        index = pl.Series(places.astype(np.uint32))  # the quickest way by far
        return [column[index] for column in self.table.get_columns()]

    def extended(self, more: Collection) -> Collection:
        """Return a collection of these and further documents.

        Raises
        ------
        DataError
            If an id is in both.
        """
        sizes = (len(self), len(more))
        counts = sparse.vstack([self.counts, more.counts], format="csr")
        return Collection(
            ids=self.ids.extended(more.ids.values),
            titles=_joined("title", self.titles, more.titles, sizes),
            snippets=_joined("snippet", self.snippets, more.snippets, sizes),
            counts=counts,
            embedding=np.vstack([self.embedding, more.embedding]),
        )

    def without(self, places: NDArray[np.int64]) -> Collection:
        """Return a collection without the documents at some places."""
        kept = np.delete(np.arange(len(self)), places)
        counts = self.counts[kept]
        return Collection(
            ids=Ids(self.ids.values.gather(kept), "document", sort=False),
            titles=None if self.titles is None else self.titles.gather(kept),
            snippets=None if self.snippets is None else self.snippets.gather(kept),
            counts=counts,
            embedding=self.embedding[kept],
        )

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Return the arrays of a saved index that belong to the documents."""
        return {
            "embedding": self.embedding,
            "counts_data": self.counts.data,
            "counts_indices": self.counts.indices,
            "counts_indptr": self.counts.indptr.astype(np.int64),
        }

    @cached_property
    def table(self) -> pl.DataFrame:
        """The columns document, title and snippet, as far as they are known."""
        shown = [each for each in (self.titles, self.snippets) if each is not None]
        return pl.DataFrame([self.ids.values.alias("document"), *shown])

    @classmethod
    def of(cls, arrays: Mapping[str, NDArray[Any]], table: pl.DataFrame, n_terms: int) -> Self:
        """Return the documents that `arrays` and `table` describe."""
        csr = (arrays["counts_data"], arrays["counts_indices"], arrays["counts_indptr"])
        return cls(
            ids=Ids(table["document"], "document", sort=False),
            titles=table.get_column("title", default=None),
            snippets=table.get_column("snippet", default=None),
            counts=sparse.csr_array(csr, shape=(len(table), n_terms)),
            embedding=arrays["embedding"],
        )


def _joined(
    name: str, first: pl.Series | None, second: pl.Series | None, sizes: Sequence[int]
) -> pl.Series | None:
    if first is None and second is None:
        return None
    pieces = [
        pl.Series(name, [None] * size, dtype=pl.String) if piece is None else piece
        for piece, size in zip((first, second), sizes, strict=True)
    ]
    return pl.concat(pieces)


class NamesCollector:
    """Collects the names of documents from the batches that pass through it."""

    def __init__(self) -> None:
        self._ids: list[Any] = []
        self._titles: list[str | None] = []
        self._snippets: list[str] = []

    def watch(self, batches: Iterable[DocumentBatch]) -> Iterator[list[str]]:
        """Yield the texts of each batch, each after its title, which counts thrice.

        Raises
        ------
        DataError
            If a batch has fewer ids or titles than texts, or an item is not a text.
        """
        for batch in batches:
            titles = batch.titles or [None] * len(batch.ids)
            if not len(batch.ids) == len(batch.texts) == len(titles):
                raise DataError(
                    "A batch must have as many ids (and titles) as texts; got "
                    f"{len(batch.ids)} ids, {len(titles)} titles and {len(batch.texts)} texts."
                )
            first = len(self._ids)
            texts = [checked_text(text, first + i) for i, text in enumerate(batch.texts)]
            self._ids += batch.ids
            self._titles += titles
            for text in texts:
                line = " ".join(text[: 4 * _SNIPPET].split())
                long = len(line) > _SNIPPET
                self._snippets.append(line[: _SNIPPET - 1].rstrip() + "…" if long else line)
            yield [
                text if not title else _with_title(title, text)
                for title, text in zip(titles, texts, strict=True)
            ]

    def names(self) -> Names:
        """Return the names of all documents that have passed."""
        titles = None
        if any(title is not None for title in self._titles):
            titles = pl.Series("title", self._titles, dtype=pl.String)
        snippets = pl.Series("snippet", self._snippets, dtype=pl.String)
        return Names(Ids(self._ids, "document", sort=False), titles, snippets)


def _with_title(title: str, text: str) -> str:
    """Return a text with its title, three times if the text is more than that."""
    # Many texts begin with their title; and one that has little more is not about it any the more.
    has_title = " ".join(text[: 2 * len(title)].split()).startswith(" ".join(title.split()))
    rest = len(text) - len(title) * has_title
    times = (_TITLES if rest > len(title) else 1) - has_title
    return f"{title}\n" * times + text


def names_of_matrix(
    n: int, ids: Sequence[Any] | None, titles: Sequence[str | None] | None, first_id: int
) -> Names:
    """Return the names of the documents of a matrix.

    Raises
    ------
    DataError
        If there are not as many ids or titles as documents.
    """
    for name, given in (("ids", ids), ("titles", titles)):
        if given is not None and len(given) != n:
            raise DataError(
                f"{name} must have one entry for each of {n} documents; got {len(given)}."
            )
    labels = range(first_id, first_id + n) if ids is None else ids
    shown = None if titles is None else pl.Series("title", list(titles), dtype=pl.String)
    return Names(Ids(labels, "document", sort=False), shown)


def batches_or_none(
    documents: Any,
    ids: Sequence[Any] | None = None,
    titles: Sequence[str | None] | None = None,
    first_id: int = 0,
) -> Iterator[DocumentBatch] | None:
    """Return documents as batches of texts, or None if they are (or should be) a matrix.

    `ids` and `titles` are for texts, since batches have their own; without ids the texts are
    numbered from `first_id`.

    Raises
    ------
    DataError
        If `documents` is a single text, a frame of texts, or empty, or there are not as many ids
        or titles as texts.
    """
    problem = _problem(documents)
    if problem:
        raise DataError(f"Documents must be a list of texts or a matrix; got {problem}")
    shape = getattr(documents, "shape", None)
    if shape is None or isinstance(documents, pl.Series):
        is_matrix = not isinstance(documents, Iterable)
    else:
        is_matrix = len(shape) != 1 or not isinstance(next(iter(documents), None), str)
    if is_matrix:
        return None
    stream = iter(documents)
    first = next(stream, None)
    if first is None:
        raise DataError("There are no documents.")
    stream = chain([first], stream)
    if isinstance(first, DocumentBatch):
        if ids is not None or titles is not None:
            raise DataError("Batches of documents have ids and titles; do not give others.")
        return stream
    if isinstance(first, str):
        # Lists: a pandas Series would look a number up among its labels.
        ids = None if ids is None else list(ids)
        titles = None if titles is None else list(titles)
        return batches_of(_documents(stream, ids, titles, first_id))
    if isinstance(documents, Sequence) and not isinstance(first, Number):
        return None
    raise DataError(
        "Documents must be texts, DocumentBatch or a matrix; got items of type "
        f"{type(first).__name__}."
    )


def _problem(documents: Any) -> str | None:
    """Return why documents are neither texts nor a matrix, where their type shows it."""
    if isinstance(documents, str | bytes):
        return "one text."
    if isinstance(documents, Mapping) and not hasattr(documents, "shape"):  # a dok_matrix is one
        return "a mapping. Give its values, and its keys as ids."
    is_table = isinstance(documents, pl.LazyFrame) or (
        not all(dtype.is_numeric() for dtype in documents.dtypes)
        if isinstance(documents, pl.DataFrame)
        else is_pandas(documents)
        and any(getattr(dtype, "kind", "O") not in "biuf" for dtype in documents.dtypes)
    )
    return "a frame with columns that are not numbers. Give its column of texts." * is_table or None


def _documents(
    texts: Iterable[str],
    ids: Sequence[Any] | None,
    titles: Sequence[str | None] | None,
    first_id: int,
) -> Iterator[Document]:
    count = 0
    given = {"ids": ids, "titles": titles}
    for place, text in enumerate(texts):
        for name, values in given.items():
            if values is not None and place >= len(values):
                raise DataError(
                    f"{name} must have one entry for each document; got {len(values)}, fewer than "
                    "there are documents."
                )
        label = first_id + place if ids is None else ids[place]
        yield Document(label, text, None if titles is None else titles[place])
        count = place + 1
    for name, values in given.items():
        if values is not None and len(values) > count:
            raise DataError(
                f"{name} must have one entry for each of {count} documents; got {len(values)}."
            )
