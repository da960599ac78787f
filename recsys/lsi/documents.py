"""Documents and queries given to an index as texts or matrices: names, and counts of terms."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain, count, repeat
from numbers import Number
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import polars as pl
from scipy import sparse

from recsys.data.frames import is_pandas
from recsys.data.ids import Ids
from recsys.data.markup import plain_text
from recsys.errors import DataError
from recsys.lsi.queries import Queries, has_text, has_texts
from recsys.lsi.vectorizer import WordEncoder, checked_text
from recsys.readers.documents import Document, batches_of
from recsys.readers.documents import DocumentBatch as DocumentBatch
from recsys.readers.documents import Documents as Documents

if TYPE_CHECKING:
    from recsys.data.ids import IdsLike

Labels: TypeAlias = "tuple[Sequence[Any] | None, Sequence[str | None] | None]"
"""Ids and titles of documents, None if not given."""
Matrix: TypeAlias = Callable[[Any], Any]
"""Function that checks a matrix and returns it as CSR."""

_SNIPPET = 120  # characters
_NONE = object()
_TITLES = 3  # number of times that a title is repeated in front of its text


class Texts:
    """Texts of batches with their titles, repeated three times; `table` collects their names."""

    def __init__(self, batches: Iterable[DocumentBatch]) -> None:
        self._batches = batches
        self._names: list[tuple[Any, str | None, str]] = []

    def __iter__(self) -> Iterator[list[str]]:
        for ids, texts, batch_titles in self._batches:
            titles = list(batch_titles or [None] * len(ids))
            if not len(ids) == len(texts) == len(titles):
                raise DataError(
                    "A batch must have as many ids (and titles) as texts; got "
                    f"{len(ids)} ids, {len(titles)} titles and {len(texts)} texts."
                )
            # Messages number the texts of all batches.
            first = len(self._names)
            bodies = [
                plain_text(checked_text(text, first + i))
                for i, text in enumerate(texts)
            ]
            titles = [
                _checked_title(title, first + i) for i, title in enumerate(titles)
            ]
            self._names += zip(ids, titles, map(_snippet, bodies), strict=True)
            yield list(map(_with_title, titles, bodies))

    @property
    def table(self) -> pl.DataFrame:
        """Columns document, title (if any) and snippet of the texts read so far."""
        ids, titles, snippets = map(list, zip(*self._names, strict=True))
        has_titles = any(title is not None for title in titles)
        return _table(ids, titles if has_titles else None, snippets)


def _checked_title(title: Any, number: int) -> str | None:
    """Return a title without its markup; None and NaN, as of pandas, are missing."""
    if title is None or title != title:
        return None
    return plain_text(checked_text(title, number, "Title"))


def _snippet(text: str) -> str:
    line = " ".join(text[: 4 * _SNIPPET].split())
    if len(line) <= _SNIPPET:
        return line
    return f"{line[: _SNIPPET - 1].rstrip()}…"


def _with_title(title: str | None, text: str) -> str:
    """Return a text after its title, three times unless the text has little more than the title."""
    if not title:
        return text
    # Many texts begin with their title. Repetition is of no use if there is little more.
    beginning = " ".join(text[: 2 * len(title)].split())
    has_title = beginning.startswith(" ".join(title.split()))
    n_more = len(text) - has_title * len(title)
    times = _TITLES if n_more > len(title) else 1
    return f"{title}\n" * (times - has_title) + text


def _table(
    ids: Any,
    titles: Sequence[str | None] | None,
    snippets: Sequence[str] | None = None,
) -> pl.DataFrame:
    # Checks that ids are unique and of one type.
    columns = [Ids(ids, "document", sort=False).values.alias("document")]
    for name, texts in (("title", titles), ("snippet", snippets)):
        if texts is not None:
            columns.append(pl.Series(name, list(texts), dtype=pl.String))
    return pl.DataFrame(columns)


def _check_lengths(n: int, labels: Labels) -> None:
    for name, values in zip(("ids", "titles"), labels, strict=True):
        if values is not None and len(values) != n:
            raise DataError(
                f"{name} must have one entry for each of {n} documents; got {len(values)}."
            )


def text_batches(
    documents: Any,
    labels: Labels = (None, None),
    first_id: int = 0,
) -> Iterator[DocumentBatch] | None:
    """Return documents as batches of texts, or None if they are (or should be) a matrix.

    `labels` are the ids of texts; batches have their own. Without ids, texts are numbered from
    `first_id`.

    Raises
    ------
    DataError
        If `documents` is a single text, a frame of texts, or empty, or the number of labels differs
        from the number of documents.
    """
    problem = _problem(documents)
    if problem:
        raise DataError(f"Documents must be a list of texts or a matrix; got {problem}")
    if _is_matrix(documents):
        return None
    stream = iter(documents)
    # A stream can be read once, so the first entry is put back.
    first = next(stream, _NONE)
    if first is _NONE:
        raise DataError("There are no documents.")
    stream = chain([first], stream)
    if isinstance(first, DocumentBatch):
        if any(values is not None for values in labels):
            raise DataError("Batches of documents have ids and titles; give no others.")
        return stream
    if isinstance(first, str | float | None):  # None and NaN are missing texts
        return batches_of(_documents(stream, labels, first_id))
    # Rows of a matrix as a list of lists.
    if isinstance(documents, Sequence) and not isinstance(first, Number | bytes):
        return None
    raise DataError(
        "Documents must be texts, DocumentBatch or a matrix; got items of type "
        f"{type(first).__name__}."
    )


def _is_matrix(documents: Any) -> bool:
    """Return whether documents are (or should be) a matrix, as far as their type shows it."""
    shape = getattr(documents, "shape", None)
    if shape is None or isinstance(documents, pl.Series):
        return not isinstance(documents, Iterable)
    return len(shape) != 1 or not has_text(documents)


def _problem(documents: Any) -> str | None:
    """Return why documents are neither texts nor a matrix, if their type shows it."""
    if isinstance(documents, str | bytes):
        return "one text."
    if isinstance(documents, Number | None):
        return f"{documents!r}."
    if isinstance(documents, Mapping) and not hasattr(
        documents, "shape"
    ):  # not a dok_matrix
        return "a mapping. Give its values, and its keys as ids."
    if _is_table(documents):
        return "a frame with columns that are not numbers. Give its column of texts."
    return None


def _is_table(documents: Any) -> bool:
    """Return whether documents are a frame with columns that are not numbers."""
    if isinstance(documents, pl.LazyFrame):
        return True
    if isinstance(documents, pl.DataFrame):
        return not all(dtype.is_numeric() for dtype in documents.dtypes)
    if not is_pandas(documents):
        return False
    return any(getattr(dtype, "kind", "O") not in "biuf" for dtype in documents.dtypes)


def _documents(
    texts: Iterable[str],
    labels: Labels,
    first_id: int,
) -> Iterator[Document]:
    ids, titles = labels
    # Too few labels are completed here, and are an error once all texts are counted.
    all_ids = count(first_id) if ids is None else chain(ids, repeat(None))
    all_titles = repeat(None) if titles is None else chain(titles, repeat(None))
    n = 0
    for text in texts:
        yield Document(next(all_ids), text, next(all_titles))
        n += 1
    _check_lengths(n, labels)


def learned_counts(
    encoder: WordEncoder,
    documents: Any,
    labels: Labels,
    vocabulary: IdsLike | None,
    matrix: Matrix,
) -> tuple[pl.DataFrame, Any]:
    """Return the names and counts of documents; the encoder learns the terms.

    Raises
    ------
    DataError
        If the length of a vocabulary is not the number of terms, or it is given for texts.
    """
    batches = text_batches(documents, labels)
    if batches is not None:
        if vocabulary is not None:
            raise DataError(
                "vocabulary is for matrices; the terms of texts are their words."
            )
        texts = Texts(batches)
        counts = encoder.read(texts)
        table = texts.table
        if not counts.shape[1]:
            n = len(table)
            place = "the document" if n == 1 else f"any of the {n:,} documents"
            raise DataError(
                f"There are no words in {place}; by default a word has at least two letters."
            )
        return table, counts
    names, counts = _of_matrix(matrix(documents), labels, 0)
    n_terms = counts.shape[1]
    # Numbers are names that no text contains, so that words stay unknown.
    terms: Any = range(n_terms) if vocabulary is None else vocabulary
    if len(terms) != n_terms:
        raise DataError(
            f"vocabulary must have one entry for each of {n_terms} terms; got {len(terms)}."
        )
    encoder.terms = Ids(terms, "term", sort=False)
    return names, counts


def _of_matrix(
    counts: Any,
    labels: Labels,
    first: int,
) -> tuple[pl.DataFrame, Any]:
    n = counts.shape[0]
    ids, titles = labels
    _check_lengths(n, labels)
    if ids is None:
        ids = range(first, first + n)
    if titles is not None:
        titles = [_checked_title(title, row) for row, title in enumerate(titles)]
    return _table(ids, titles), counts


def further_counts(
    encoder: WordEncoder,
    documents: Any,
    labels: Labels,
    first: int,
    matrix: Matrix,
) -> tuple[pl.DataFrame, Any, list[list[str]]]:
    """Return the names and counts of further documents, and the unknown words of each text."""
    batches = text_batches(documents, labels, first)
    if batches is None:
        return *_of_matrix(matrix(documents), labels, first), []
    texts = Texts(batches)
    encoded = [encoder.encode(batch) for batch in texts]
    counts = sparse.vstack([batch.counts for batch in encoded], format="csr")
    unknown = list(chain.from_iterable(batch.unknown for batch in encoded))
    return texts.table, counts, unknown


def as_queries(
    encoder: WordEncoder,
    queries: Any,
    matrix: Matrix,
    *,
    in_columns: bool,
) -> Queries:
    """Return queries as terms with counts and weights.

    With `in_columns`, the queries of a matrix are its columns.

    Raises
    ------
    DataError
        If queries are neither texts nor vectors, or there are none.
    """
    if has_texts(queries):
        is_single = isinstance(queries, str)
        # The type decides: a list of one text is a batch.
        texts = [queries] if is_single else list(queries)
        for number, text in enumerate(texts):
            checked_text(text, number, "Query")
        return encoder.queries(texts, is_single)
    n_axes = np.ndim(queries)
    if n_axes == 0 or _is_table(queries):
        kind = type(queries).__name__
        raise DataError(
            f"A query must be a text, several texts, or rows of counts; got {kind}."
        )
    is_single = n_axes == 1
    if is_single:
        if not len(queries):
            raise DataError("There are no queries.")
        row = np.asarray(queries)[None, :]
        queries = row.T if in_columns else row
    return Queries.from_rows(matrix(queries), encoder.query_weights, is_single)
