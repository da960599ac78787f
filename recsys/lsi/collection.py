"""Documents of an index: batches of texts or matrices on the way in, a collection inside."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from numbers import Number
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import polars as pl
from numpy.typing import NDArray

from recsys.data.frames import is_pandas
from recsys.data.ids import Ids
from recsys.errors import DataError
from recsys.lsi.parts import Part, tables_joined
from recsys.lsi.vectorizer import checked_text
from recsys.readers.documents import Document, batches_of
from recsys.readers.documents import DocumentBatch as DocumentBatch
from recsys.readers.documents import Documents as Documents
from recsys.readers.documents import read_documents as read_documents

if TYPE_CHECKING:
    from recsys.data.ids import IdsLike

_LARGER = 2  # times the size of the part behind it, that a part has
_MOST_REMOVED = 4  # documents of a part for each that is removed
_SNIPPET = 120  # characters
_TITLES = 3  # times that the words of a title count in a text


class Names(NamedTuple):
    """Ids of documents, and the titles and snippets that are shown with them."""

    ids: Ids
    titles: pl.Series | None = None
    snippets: pl.Series | None = None

    @property
    def table(self) -> pl.DataFrame:
        """The columns document, title and snippet, as far as they are known."""
        shown = [each for each in (self.titles, self.snippets) if each is not None]
        return pl.DataFrame([self.ids.values.alias("document"), *shown])


@dataclass(frozen=True, eq=False)
class Collection:
    """Documents of an index, in the parts in which they were added.

    A place is a row of the parts, one below another, those of removed documents included.

    Attributes
    ----------
    parts : tuple of Part
    """

    parts: tuple[Part, ...]

    def __len__(self) -> int:
        return sum(len(part) - len(part.removed) for part in self.parts)

    @cached_property
    def whole(self) -> Part:
        """All documents as one part, without those that are removed."""
        if len(self.parts) == 1 and not len(self.parts[0].removed):
            return self.parts[0]
        return Part.joined(self.parts)

    @cached_property
    def ids(self) -> Ids:
        """Their ids."""
        labels = self.table["document"]
        kept = labels if self._places is None else labels.gather(self._places)
        return Ids(kept, "document", sort=False)

    @cached_property
    def table(self) -> pl.DataFrame:
        """Columns document, title and snippet, as far as they are known, of all places."""
        return tables_joined([part.table for part in self.parts])

    @cached_property
    def _places(self) -> NDArray[np.int64] | None:
        """Place of each document, None where nothing is removed."""
        if len(self) == len(self.table):
            return None
        kept = [np.delete(np.arange(len(part)), part.removed) for part in self.parts]
        return np.concatenate([a + b for a, b in zip(self._starts, kept, strict=True)])

    @cached_property
    def _starts(self) -> NDArray[np.int64]:
        return np.cumsum([0, *map(len, self.parts[:-1])])

    def places(self, labels: IdsLike) -> NDArray[np.int64]:
        """Return the places of documents by their ids.

        Raises
        ------
        UnknownIdError
            If one is not there.
        """
        return self.places_of(self.ids.index(labels))

    def places_of(self, numbers: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the places of documents by their numbers among `ids`."""
        return numbers if self._places is None else self._places[numbers]

    def shown(self, places: NDArray[np.int64]) -> list[pl.Series]:
        """Return ids, and titles and snippets as far as they are known, of some documents."""
        index = pl.Series(places.astype(np.uint32))  # the quickest way by far
        return [column[index] for column in self.table.get_columns()]

    def counts_of(self, place: int) -> Any:
        """Return the row of counts of one document."""
        owner = int(np.searchsorted(self._starts, place, side="right")) - 1
        return self.parts[owner].counts[[place - self._starts[owner]]]

    def extended(self, more: Part) -> Collection:
        """Return a collection of these and further documents.

        Parts that are not much larger than the one behind them are joined with it: so there are
        few, and each document is written again only as often as the collection has doubled.
        """
        parts = [*self.parts, more]
        while len(parts) > 1 and len(parts[-2]) < _LARGER * len(parts[-1]):
            parts[-2:] = [Part.joined(parts[-2:])]
        return Collection(tuple(parts))

    def without(self, places: NDArray[np.int64]) -> Collection:
        """Return a collection without the documents at some places.

        They stay in their part until they are a quarter of it.
        """
        owned = {id(part): rows for part, rows in self.owned(places)}
        parts = []
        for part in self.parts:
            left = part
            if (rows := owned.get(id(part))) is not None:
                left = part.without(rows)
                if _MOST_REMOVED * len(left.removed) >= len(left):
                    left = Part.joined([left])
            parts += [left] if len(left) else []
        return Collection(tuple(parts))

    def owned(self, places: NDArray[np.int64]) -> Iterator[tuple[Part, NDArray[np.int64]]]:
        """Yield the parts that places are in, with their rows there."""
        for start, part in zip(self._starts.tolist(), self.parts, strict=True):
            inside = (places >= start) & (places < start + len(part))
            if inside.any():
                yield part, places[inside] - start


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
