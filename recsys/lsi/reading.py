"""What `LSI` is given, as batches of texts or as a matrix of counts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from numbers import Number
from typing import Any, NoReturn

import polars as pl

from recsys.data.frames import is_pandas
from recsys.errors import DataError
from recsys.lsi.collection import snippet
from recsys.lsi.labels import Labels
from recsys.lsi.vectorizer import checked_text
from recsys.readers.documents import Document, DocumentBatch, batches_of

__all__ = [
    "Names",
    "NamesCollector",
    "batches_or_none",
    "full_text",
    "names_of_matrix",
    "terms_of_matrix",
]


@dataclass(frozen=True, eq=False)
class Names:
    """Ids, and what is shown of documents beside them."""

    ids: Labels
    titles: pl.Series | None = None
    snippets: pl.Series | None = None


class NamesCollector:
    """Collects the names of documents from batches, which pass through it."""

    def __init__(self) -> None:
        self._ids: list[Any] = []
        self._titles: list[str | None] = []
        self._snippets: list[str] = []

    def watch(self, batches: Iterable[DocumentBatch]) -> Iterator[list[str]]:
        """Yield the texts of each batch, with their titles in front."""
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
            self._snippets += map(snippet, texts)
            yield [full_text(*pair) for pair in zip(titles, texts, strict=True)]

    def names(self) -> Names:
        """Return the names of all that has passed."""
        titles = None
        if any(title is not None for title in self._titles):
            titles = pl.Series("title", self._titles, dtype=pl.String)
        snippets = pl.Series("snippet", self._snippets, dtype=pl.String)
        return Names(Labels(self._ids, "document"), titles, snippets)


def full_text(title: str | None, text: str) -> str:
    """Return a text with its title in front, unless it begins with it."""
    if title is None or text.startswith(title):
        return text
    return f"{title}\n{text}"


def batches_or_none(
    documents: Any, ids: Sequence[Any] | None, titles: Sequence[str | None] | None, first_id: int
) -> Iterator[DocumentBatch] | None:
    """Return documents as batches of texts, or None if they are (or should be) a matrix.

    Parameters
    ----------
    documents : iterable of str or of DocumentBatch, or anything else
    ids, titles : sequence, optional
        Of texts; batches have their own.
    first_id : int
        Where ids begin that are not given.

    Raises
    ------
    DataError
        If it is a single text, a frame of texts, or empty, or ids or titles are not as many as
        the texts.
    """
    if isinstance(documents, str | bytes):
        raise DataError("Documents must be a list of texts or a matrix; got one text.")
    if _is_table(documents):
        raise DataError(
            "Documents must be a list of texts or a matrix; got a frame that is no matrix of "
            "numbers. Give its column of texts."
        )
    if _is_matrix(documents):
        return None
    if isinstance(documents, Mapping):
        raise DataError(
            "Documents must be a list of texts or a matrix; got a mapping. Give its values, and "
            "its keys as ids."
        )
    stream = iter(documents)
    first = next(stream, None)
    if first is None:
        raise DataError("There are no documents.")
    stream = chain([first], stream)
    if isinstance(first, DocumentBatch):
        if ids is not None or titles is not None:
            raise DataError("Batches of documents have their ids and titles; give no others.")
        return stream
    if not isinstance(first, str):
        if isinstance(documents, Sequence) and not isinstance(first, Number):
            return None
        _refuse(first)
    # Lists: a Series of pandas would look a number up among its labels.
    ids = None if ids is None else list(ids)
    titles = None if titles is None else list(titles)
    return batches_of(_documents(stream, ids, titles, first_id))


def names_of_matrix(
    n: int, ids: Sequence[Any] | None, titles: Sequence[str | None] | None, first_id: int
) -> Names:
    """Return the names of the documents of a matrix.

    Raises
    ------
    DataError
        If ids or titles are not as many as the documents.
    """
    for name, given in (("ids", ids), ("titles", titles)):
        if given is not None and len(given) != n:
            raise DataError(
                f"{name} must have one entry for each of {n} documents; got {len(given)}."
            )
    labels = range(first_id, first_id + n) if ids is None else ids
    shown = None if titles is None else pl.Series("title", list(titles), dtype=pl.String)
    return Names(Labels(labels, "document"), shown)


def terms_of_matrix(vocabulary: Sequence[str] | None, n_terms: int) -> Labels:
    """Return the terms of a matrix, numbers without a vocabulary.

    Raises
    ------
    DataError
        If the vocabulary has not one entry for each term.
    """
    if vocabulary is None:
        return Labels(range(n_terms), "term")
    if len(vocabulary) != n_terms:
        raise DataError(
            f"vocabulary must have one entry for each of {n_terms} terms; got {len(vocabulary)}."
        )
    return Labels(vocabulary, "term")


def _is_table(documents: Any) -> bool:
    """Whether it is a frame of anything but numbers."""
    if isinstance(documents, pl.LazyFrame):
        return True
    if isinstance(documents, pl.DataFrame):
        return not all(dtype.is_numeric() for dtype in documents.dtypes)
    if is_pandas(documents):
        return any(getattr(dtype, "kind", "O") not in "biuf" for dtype in documents.dtypes)
    return False


def _is_matrix(documents: Any) -> bool:
    shape = getattr(documents, "shape", None)
    if shape is None or isinstance(documents, pl.Series):
        return not isinstance(documents, Iterable)
    return len(shape) != 1 or not isinstance(next(iter(documents), None), str)


def _documents(
    texts: Iterable[str],
    ids: Sequence[Any] | None,
    titles: Sequence[str | None] | None,
    first_id: int,
) -> Iterator[Document]:
    count = 0
    for place, text in enumerate(texts):
        for name, given in (("ids", ids), ("titles", titles)):
            if given is not None and place >= len(given):
                raise DataError(f"{name} has {len(given)} entries, fewer than there are documents.")
        label = first_id + place if ids is None else ids[place]
        yield Document(label, text, None if titles is None else titles[place])
        count = place + 1
    for name, given in (("ids", ids), ("titles", titles)):
        if given is not None and len(given) > count:
            raise DataError(f"{name} has {len(given)} entries for {count} documents.")


def _refuse(first: Any) -> NoReturn:
    kind = type(first).__name__
    raise DataError(
        f"Documents must be texts, DocumentBatch or a matrix; got items of type {kind}."
    )
