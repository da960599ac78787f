"""Texts and matrices given to an index: names of documents, counts of terms, queries."""

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
from recsys.errors import DataError
from recsys.lsi.markup import plain_text
from recsys.lsi.queries import Queries, has_texts
from recsys.lsi.vectorizer import VectorizerEncoder, WordEncoder, checked_text
from recsys.readers.documents import Document, batches_of
from recsys.readers.documents import DocumentBatch as DocumentBatch
from recsys.readers.documents import Documents as Documents

if TYPE_CHECKING:
    from recsys.data.ids import IdsLike

Encoder: TypeAlias = WordEncoder | VectorizerEncoder
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
        for ids, texts, given in self._batches:
            titles = given or [None] * len(ids)
            if not len(ids) == len(texts) == len(titles):
                raise DataError(
                    "A batch must have as many ids (and titles) as texts; got "
                    f"{len(ids)} ids, {len(titles)} titles and {len(texts)} texts."
                )
            first = len(self._names)
            checked = [plain_text(checked_text(text, first + i)) for i, text in enumerate(texts)]
            titles = [plain_text(title) if isinstance(title, str) else title for title in titles]
            self._names += zip(ids, titles, map(_snippet, checked), strict=True)
            yield [_with_title(*each) for each in zip(titles, checked, strict=True)]

    @property
    def table(self) -> pl.DataFrame:
        """Columns document, title (if any) and snippet of the texts read so far."""
        ids, titles, snippets = map(list, zip(*self._names, strict=True))
        known = any(title is not None for title in titles)
        return _table(ids, titles if known else None, snippets)


def _snippet(text: str) -> str:
    line = " ".join(text[: 4 * _SNIPPET].split())
    return line if len(line) <= _SNIPPET else line[: _SNIPPET - 1].rstrip() + "…"


def _with_title(title: str | None, text: str) -> str:
    """Return a text after its title, three times unless the text has little more than the title."""
    if not title:
        return text
    # Many texts begin with their title. Repetition is of no use if there is little more.
    has_title = " ".join(text[: 2 * len(title)].split()).startswith(" ".join(title.split()))
    rest = len(text) - len(title) * has_title
    times = (_TITLES if rest > len(title) else 1) - has_title
    return f"{title}\n" * times + text


def _table(
    ids: Any, titles: Sequence[str | None] | None, snippets: Sequence[str] | None = None
) -> pl.DataFrame:
    columns = [Ids(ids, "document", sort=False).values.alias("document")]
    for name, values in (("title", titles), ("snippet", snippets)):
        columns += [] if values is None else [pl.Series(name, list(values), dtype=pl.String)]
    return pl.DataFrame(columns)


def _check_lengths(n: int, ids: Any, titles: Any) -> None:
    for name, given in (("ids", ids), ("titles", titles)):
        if given is not None and len(given) != n:
            raise DataError(
                f"{name} must have one entry for each of {n} documents; got {len(given)}."
            )


def text_batches(
    documents: Any, labels: Labels = (None, None), first_id: int = 0
) -> Iterator[DocumentBatch] | None:
    """Return documents as batches of texts, or None if they are (or should be) a matrix.

    `labels` are those of texts; batches have their own. Without ids, texts are numbered from
    `first_id`.

    Raises
    ------
    DataError
        If `documents` is a single text, a frame of texts, or empty, or the number of labels differs
        from that of documents.
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
    first = next(stream, _NONE)
    if first is _NONE:
        raise DataError("There are no documents.")
    stream = chain([first], stream)
    if isinstance(first, DocumentBatch):
        if any(each is not None for each in labels):
            raise DataError("Batches of documents have ids and titles; give no others.")
        return stream
    if isinstance(first, str | None):
        return batches_of(_documents(stream, *labels, first_id))
    if isinstance(documents, Sequence) and not isinstance(first, Number):
        return None
    raise DataError(
        "Documents must be texts, DocumentBatch or a matrix; got items of type "
        f"{type(first).__name__}."
    )


def _problem(documents: Any) -> str | None:
    """Return why documents are neither texts nor a matrix, if their type shows it."""
    if isinstance(documents, str | bytes):
        return "one text."
    if isinstance(documents, Mapping) and not hasattr(documents, "shape"):  # not a dok_matrix
        return "a mapping. Give its values, and its keys as ids."
    is_table = isinstance(documents, pl.LazyFrame) or (
        not all(dtype.is_numeric() for dtype in documents.dtypes)
        if isinstance(documents, pl.DataFrame)
        else is_pandas(documents)
        and any(getattr(dtype, "kind", "O") not in "biuf" for dtype in documents.dtypes)
    )
    return "a frame with columns that are not numbers. Give its column of texts." * is_table or None


def _documents(texts: Iterable[str], ids: Any, titles: Any, first_id: int) -> Iterator[Document]:
    labels = count(first_id) if ids is None else chain(ids, repeat(None))
    heads = repeat(None) if titles is None else chain(titles, repeat(None))
    n = 0
    for text in texts:
        yield Document(next(labels), text, next(heads))
        n += 1
    _check_lengths(n, ids, titles)


def learned_counts(
    encoder: Encoder, documents: Any, labels: Labels, vocabulary: IdsLike | None, matrix: Matrix
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
            raise DataError("vocabulary is for matrices; the terms of texts are their words.")
        counts = encoder.read(texts := Texts(batches))
        return texts.table, counts
    names, counts = _of_matrix(matrix(documents), labels, 0)
    n_terms = counts.shape[1]
    terms = range(n_terms) if vocabulary is None else vocabulary
    if len(terms) != n_terms:  # type: ignore[arg-type]
        given = len(terms)  # type: ignore[arg-type]
        raise DataError(f"vocabulary must have one entry for each of {n_terms} terms; got {given}.")
    encoder.terms = Ids(terms, "term", sort=False)
    return names, counts


def _of_matrix(counts: Any, labels: Labels, first: int) -> tuple[pl.DataFrame, Any]:
    n, (ids, titles) = counts.shape[0], labels
    _check_lengths(n, ids, titles)
    return _table(range(first, first + n) if ids is None else ids, titles), counts


def further_counts(
    encoder: Encoder, documents: Any, labels: Labels, first: int, matrix: Matrix
) -> tuple[pl.DataFrame, Any, list[list[str]]]:
    """Return the names and counts of further documents, and the unknown words of each text."""
    batches = text_batches(documents, labels, first)
    if batches is None:
        return *_of_matrix(matrix(documents), labels, first), []
    texts = Texts(batches)
    encoded = [encoder.encode(each) for each in texts]
    counts = sparse.vstack([each.counts for each in encoded], format="csr")
    return texts.table, counts, [words for each in encoded for words in each.unknown]


def as_queries(encoder: Encoder, given: Any, matrix: Matrix, *, columns: bool) -> Queries:
    """Return queries as terms with counts and weights.

    With `columns`, the queries of a matrix are its columns.

    Raises
    ------
    DataError
        If queries are neither texts nor vectors, or there are none.
    """
    texts = has_texts(given)
    single = isinstance(given, str) or (np.ndim(given) == 1 and not texts)
    if texts:
        queries = [given] if isinstance(given, str) else list(given)
        for number, text in enumerate(queries):
            checked_text(text, number, "Query")
        return encoder.queries(queries, single)
    if np.ndim(given) == 0:
        kind = type(given).__name__
        raise DataError(f"A query must be a text, several texts, or rows of counts; got {kind}.")
    if single and not len(given):
        raise DataError("There are no queries.")
    rows = np.asarray(given)[None, :] if single else given
    return encoder.queries_of(matrix(rows.T if single and columns else rows), single)
