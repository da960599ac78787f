"""Test collections: documents as SMART, TREC and HTML, and judgements."""

from __future__ import annotations

import csv
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from html import unescape
from os import PathLike
from typing import Any, NamedTuple

import numpy as np
import polars as pl
from numpy.typing import NDArray

from recsys.data.columns import NUMBER
from recsys.data.ids import CANONICAL_INTEGER
from recsys.errors import DataError
from recsys.messages import counted
from recsys.readers.formats import json_objects, parquet_frame
from recsys.readers.sources import DataFile, head_of, open_data

SMART, TREC, BLOCKS, HTML = "SMART", "TREC", "blocks", "HTML"

_BEGINNINGS = {
    SMART: re.compile(rb"\.i +\S+[ \t]*\r?\n\.[a-z]\b"),
    TREC: re.compile(rb"<(doc|top)(>|\s)"),
    HTML: re.compile(
        rb"(<\?xml[^>]*>\s*)?(<!--.*?-->\s*)*(<!doctype html|<html)", re.S
    ),
    BLOCKS: re.compile(rb"\d+[ \t]*\r?\n(?!\s*\d+\s*\n)[^/]+\n\s*/[ \t]*\r?\n"),
}
_FIELD = re.compile(r"\.([A-Z])\s*$")
_RECORD = re.compile(r"\.I\s+(\S+)\s*$")
_TEXTS = ("W", "A", "K")  # fields of a SMART record: text, authors, keywords
_OPENING = re.compile(r"<(DOC|top)[>\s]", re.I)
_CLOSING = re.compile(r"</(DOC|top)>", re.I)
_NUMBER = re.compile(r"<(?:DOCNO|num)>\s*(?:Number:)?\s*([^\s<]+)", re.I)
_HEAD = re.compile(
    r"<(TITLE|HEADLINE|HEAD|TI|HL)>(.*?)(?=</\1>|<(?!/?\1)[A-Za-z]+>|$)", re.I | re.S
)
_LABEL = re.compile(r"<(desc|narr|title)>\s*(?:Description:|Narrative:|Topic:)?", re.I)
_TAG = re.compile(r"</?[A-Za-z][^<>]*>")
_SILENT = "script, style, noscript, template, svg, head"
_SPLIT = re.compile(r"[\t,;]\s*|\s+")
_TRAILING = re.compile(r"([0-9]+)\D*$")
_TREC = "TREC's columns"
_WITH_HEADER = "a table with a header"
# Usual names of columns of queries, documents and grades, without signs and capitals.
_COLUMNS = (
    ("query", "queryid", "qid", "topic", "topicid"),
    ("document", "documentid", "doc", "docid", "docno", "corpusid"),
    ("relevance", "rel", "grade", "score", "label", "judgement", "judgment"),
)
_JUDGED = {"query": pl.String, "document": pl.String, "relevance": pl.Float64}
_LEAST_MATCHED = (
    0.5  # minimum share of ids that must match if they are not read unchanged
)
_WITHOUT_ZEROS = "without leading zeros"
_ROWS_WITH_HEADER = 2


class Marked(NamedTuple):
    """Record of a collection; `number` is its first line."""

    number: int
    id: int | str
    text: str
    title: str | None


def form_of(head: bytes) -> str | None:
    """Return the form of a text from its beginning: one of `FORMS`, "HTML" or None."""
    # The first three bytes are a byte order mark.
    beginning = head.lstrip(b"\xef\xbb\xbf \r\n\t").lower()
    return next(
        (form for form, mark in _BEGINNINGS.items() if mark.match(beginning)), None
    )


def page(text: str) -> tuple[str, str | None]:
    """Return the text of an HTML page, without tags, scripts and styles, and its title.

    Examples
    --------
    >>> page("<html><title>Tea</title><body><p>Hot <b>tea</b></p><script>x()</script>")
    ('Hot tea', 'Tea')
    """
    from selectolax.lexbor import LexborHTMLParser

    tree = LexborHTMLParser(text)
    heading = tree.css_first("title") or tree.css_first("h1")
    title = None if heading is None else " ".join(heading.text(separator=" ").split())
    for node in tree.css(_SILENT):
        node.decompose()
    body = tree.body
    words = [] if body is None else body.text(separator="\n").split("\n")
    lines = (" ".join(block.split()) for block in words)
    return " ".join(line for line in lines if line), title or None


def _smart(lines: Iterable[str], where: str) -> Iterator[Marked]:
    """Yield records of SMART: ``.I`` begins one, ``.T``, ``.W``, ... its fields."""
    identity = ""
    start = 0
    field = ""
    fields: dict[str, list[str]] = {}

    def record() -> Marked:
        text = "\n".join("".join(fields.get(name, [])).strip() for name in _TEXTS)
        title = " ".join("".join(fields.get("T", [])).split())
        return Marked(start, _identity(identity), text.strip(), title or None)

    for number, line in enumerate(lines, 1):
        if match := _RECORD.match(line):
            if identity:
                yield record()
            identity = match[1]
            start = number
            field = ""
            fields = {}
        elif match := _FIELD.match(line):
            field = match[1]
        elif identity:
            fields.setdefault(field, []).append(line)
        elif line.strip():
            raise DataError(
                f"{where}, line {number}: there is a text before the first .I."
            )
    if identity:
        yield record()


def _trec(lines: Iterable[str], where: str) -> Iterator[Marked]:
    """Yield the documents between ``<DOC>`` and ``</DOC>``, or topics in ``<top>``."""
    start = 0
    parts: list[str] = []
    for number, line in enumerate(lines, 1):
        if not parts and not _OPENING.search(line):
            continue
        if not parts:
            start = number
        parts.append(line)
        if not _CLOSING.search(line):
            continue
        text = "".join(parts)
        parts = []
        label = _NUMBER.search(text)
        if label is None:
            raise DataError(f"{where}, line {start}: the document has no <DOCNO>.")
        head = _HEAD.search(text)
        title = None if head is None else _plain(head[2]) or None
        remainder = text.replace(label[0], " ", 1)
        if text.lstrip().lower().startswith("<top"):
            # By convention the query is the title; if there is none, the rest of the topic.
            remainder = title or _LABEL.sub(" ", remainder.split("<narr>")[0])
            title = None
        elif head is not None:
            remainder = remainder.replace(head[0], " ", 1)
        yield Marked(start, _identity(label[1]), _plain(remainder), title)
    if "".join(parts).strip():
        raise DataError(f"{where}, line {start}: the document is not closed by </DOC>.")


def _blocks(lines: Iterable[str], where: str) -> Iterator[Marked]:
    """Yield blocks of a line with a number, a text, and a line with a slash."""
    start = 0
    identity = ""
    parts: list[str] = []
    for number, line in enumerate(lines, 1):
        word = line.strip()
        if word == "/" and identity:
            yield Marked(start, _identity(identity), " ".join(parts), None)
            identity = ""
            parts = []
        elif not identity and word:
            if not word.isdecimal():
                if word in ("/", "\x1a"):  # the end of a file of DOS
                    continue
                raise DataError(
                    f"{where}, line {number}: expected a number; got {word[:40]!r}."
                )
            start = number
            identity = word
        elif word:
            parts.append(word)
    if parts:
        raise DataError(
            f"{where}, line {start}: the document is not ended by a line with a slash."
        )


def _identity(text: str) -> int | str:
    """Return an id, as an integer if possible: ``.I 007`` is document 7."""
    digits = text.lstrip("0") or "0" if text.isdecimal() else text
    return int(digits) if CANONICAL_INTEGER.match(digits) else text


def _plain(text: str) -> str:
    return " ".join(unescape(_TAG.sub(" ", text)).split())


FORMS: dict[str, tuple[str, Callable[[Iterable[str], str], Iterator[Marked]]]] = {
    SMART: ("SMART collection", _smart),
    TREC: ("TREC collection", _trec),
    BLOCKS: ("texts ended by a slash", _blocks),
}
"""Description of each form, and the function that reads its records from lines."""


@dataclass(frozen=True)
class Judgements:
    """Relevance judgements of a file.

    Attributes
    ----------
    frame : polars DataFrame
        Columns query, document (String) and relevance (Float64), one row per judgement.
    decision : str
        How the file was interpreted.
    """

    frame: pl.DataFrame
    decision: str

    def relevant(self) -> pl.DataFrame:
        """Return the distinct rows of relevant documents.

        These are the rows with a relevance above 0. If every relevance is 0, all rows are relevant,
        as in files that list relevant documents with a column of zeros.
        """
        relevance = self.frame["relevance"]
        rows = (
            self.frame if (relevance == 0).all() else self.frame.filter(relevance > 0)
        )
        return rows.select("query", "document").unique(maintain_order=True)


def read_judgements(
    path: str | PathLike[str], *, encoding: str | None = None
) -> Judgements:
    """Read judgements: rows of query, document and optionally relevance.

    The forms are a table with such columns (BEIR's, say, in text, JSON, Parquet, a workbook or a
    database), TREC's (query, iteration, document, relevance), plain columns (query, document;
    Cranfield's with a relevance; CISI's with zeros), and blocks of a query, its documents and a
    slash.

    Raises
    ------
    DataError
        If the rows have different numbers of fields, columns are missing, a relevance is not a
        number, or no document is relevant.
    """
    with open_data(path, {"encoding": encoding}) as data:
        table = _table(data)
        lines = []
        if table is None:
            stripped = ((n, line.strip()) for n, line in enumerate(data.lines(), 1))
            lines = [(number, line) for number, line in stripped if line]
        name = data.name
        unit = "row" if data.is_parquet else data.unit
    if any(line == "/" for _, line in lines[:1000]):
        return _of_blocks(lines, name)
    form = ""
    rows = table or [(number, _SPLIT.split(line)) for number, line in lines]
    if table is not None:
        form = _WITH_HEADER
    elif _has_header([fields for _, fields in rows]):
        form = _WITH_HEADER
        del rows[0]
    if not rows:
        raise DataError(f"{name} has no judgements.")
    width = len(rows[0][1])
    for number, fields in rows:
        if len(fields) != width or not 2 <= width <= 4:
            raise DataError(
                f"{name}, {unit} {number}: each judgement must have the same 2 to 4 fields: query, "
                f"document and optionally relevance, or TREC's four; got {len(fields)}."
            )
    columns = pl.DataFrame([fields for _, fields in rows], orient="row").get_columns()
    usual_form, document = _form_of_columns(columns)
    form = form or usual_form
    relevance = pl.Series(["1"] * len(rows)) if width == 2 else columns[-1]
    grades = relevance.cast(pl.Float64, strict=False)
    wrong = ~grades.is_finite().fill_null(False)
    if wrong.any():
        row = wrong.arg_max() or 0
        raise DataError(
            f"{name}, {unit} {rows[row][0]}: the relevance must be a number; "
            f"got {relevance[row]!r}."
        )
    # Other forms may list relevant documents only, with zeros.
    is_graded = form in (_TREC, _WITH_HEADER)
    if is_graded and not (grades > 0).any():
        raise DataError(f"{name} has no relevant document: no relevance is above 0.")
    frame = pl.DataFrame([columns[0], document, grades], _JUDGED)
    return Judgements(frame, f"{name}: {form}{_disagreement(frame)}")


def _has_header(rows: Sequence[Sequence[str]]) -> bool:
    """Return whether the first row has words where the other rows have numbers."""
    if len(rows) < _ROWS_WITH_HEADER:
        return False
    head, *others = rows
    return any(
        not NUMBER.fullmatch(word)
        and all(len(row) > n and NUMBER.fullmatch(row[n]) for row in others)
        for n, word in enumerate(head)
    )


def _disagreement(judged: pl.DataFrame) -> str:
    """Return a remark on documents that are judged both relevant and not relevant."""
    verdicts = judged.group_by("query", "document", maintain_order=True).agg(
        is_disputed=(pl.col("relevance") > 0).n_unique() > 1
    )
    disputed = verdicts.filter("is_disputed")
    if not len(disputed):
        return ""
    query, document, _ = disputed.row(0)
    return (
        f"; {counted(len(disputed), 'document')} judged both relevant and not, taken as relevant "
        f"(the first: document {document!r} of query {query!r})"
    )


def _table(data: DataFile) -> list[tuple[int, list[str]]] | None:
    """Return the queries, documents and grades of a table by the names of its columns.

    The result is None for text whose first line does not name queries and documents.

    Raises
    ------
    DataError
        If a table of another format lacks one of them.
    """
    names, rows = _named_rows(data)
    plain = [re.sub(r"\W|_", "", name.lower()) for name in names]
    positions = []
    for usual in _COLUMNS:
        matching = (n for n, name in enumerate(plain) if name in usual)
        positions.append(next(matching, None))
    *needed, _ = positions
    if None in needed:
        if data.is_parquet or head_of(data.path).lstrip().startswith(b"{"):
            raise DataError(
                f"{data.name} must have columns such as query, document and relevance; its columns "
                f"are {', '.join(names)}."
            )
        return None
    chosen = [position for position in positions if position is not None]
    table = []
    for number, row in rows:
        if len(row) != len(names):
            raise DataError(
                f"{data.name}, line {number}: {len(row)} fields, and the header has {len(names)}."
            )
        table.append((number, [_written(row[position]) for position in chosen]))
    return table


def _named_rows(data: DataFile) -> tuple[list[str], Iterator[tuple[int, Any]]]:
    """Return the first line or the names of columns, and the rows with their numbers."""
    if data.is_parquet:
        frame = parquet_frame(data)
        return frame.columns, enumerate(frame.iter_rows(), 1)
    if head_of(data.path).lstrip().startswith(b"{"):
        objects = list(json_objects(data))
        names = [*dict.fromkeys(name for _, fields in objects for name in fields)]
        return names, ((n, [*map(fields.get, names)]) for n, fields in objects)
    lines = iter(data.lines())
    header = next(lines, "").strip()
    separator = next((mark for mark in "\t,;" if mark in header), None)
    if separator is None:
        rows = ((n, line.split()) for n, line in enumerate(lines, 2) if line.strip())
        return header.split(), rows
    # Ids may have spaces, and separators inside quotes.
    (names,) = csv.reader([header], delimiter=separator)
    fields_of_rows = csv.reader(lines, delimiter=separator)
    return names, ((n, row) for n, row in enumerate(fields_of_rows, 2) if row)


def _written(value: Any) -> str:
    """Return an id or a grade as text; workbooks have 7.0 for 7."""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return "" if value is None else str(value).strip()


def _form_of_columns(columns: Sequence[pl.Series]) -> tuple[str, pl.Series]:
    """Return the description of the form, and the column of documents."""
    if len(columns) == 2:
        return "queries and their documents", columns[1]
    if len(columns) == 3:
        return "queries, documents, relevance", columns[1]
    _, second, third, _ = columns
    # In CISI, unlike TREC, the document is second, and the third column is constant.
    is_constant = third.n_unique() == 1 and third[0] in ("0", "Q0")
    if is_constant and second.n_unique() > 1:
        return "queries, documents, zeros", second
    return _TREC, third


def _of_blocks(lines: list[tuple[int, str]], name: str) -> Judgements:
    queries: list[str] = []
    documents: list[str] = []
    current = ""
    for _, line in lines:
        fields = line.split()
        if line == "/":
            current = ""
            continue
        if not current:
            current = fields.pop(0)
        queries += [current] * len(fields)
        documents += fields
    frame = pl.DataFrame([queries, documents, [1.0] * len(queries)], _JUDGED)
    return Judgements(frame, f"{name}: blocks ended by a slash")


def places_of(
    wanted: pl.Series,
    ids: Iterable[int | str],
    *,
    judged: pl.Series | None = None,
    in_order: bool = False,
) -> tuple[NDArray[np.int64], str]:
    """Return the position of each judged id in `ids` (or -1), and how ids match.

    Ids are matched unchanged, but integers also match with leading zeros. Only if no id of `judged`
    (by default, of `wanted`) matches, ids are read without leading zeros, or as the number at their
    end ("CACM-1410" is document 1410): if different ids stay different, and half of them match.
    With `in_order`, judged ids that are the numbers from 1 to the number of `ids` are positions, as
    for the queries of Cranfield, whose own ids have gaps.
    """
    values = [*ids]
    labels = [str(value) for value in values]
    texts: list[str] = wanted.to_list()
    distinct = texts if judged is None else judged.to_list()
    distinct = list(dict.fromkeys(distinct))
    if in_order and _are_positions(distinct, labels):
        return np.array(
            [int(text) - 1 for text in texts], np.int64
        ), "in the order of the file"
    unchanged: tuple[str, Callable[[str], str]] = ("", str)
    if all(isinstance(value, int) for value in values):
        is_padded = any(_unpadded(text) != text for text in distinct)
        unchanged = (_WITHOUT_ZEROS if is_padded else "", _unpadded)
    other_readings = [
        (_WITHOUT_ZEROS, _unpadded),
        ("by the numbers they end in", _last_number),
    ]
    for words, read in (unchanged, *other_readings):
        position_of = {
            read(label): position
            for position, label in enumerate(labels)
            if read(label)
        }
        n_matched = sum(read(text) in position_of for text in distinct)
        is_certain = read is unchanged[1] or (
            n_matched >= _LEAST_MATCHED * len(distinct)
            and _stay_distinct(labels, read)
            and _stay_distinct(distinct, read)
        )
        if n_matched and is_certain:
            return np.array(
                [position_of.get(read(text), -1) for text in texts], np.int64
            ), words
    return np.full(len(texts), -1, np.int64), ""


def _are_positions(texts: Sequence[str], labels: Sequence[str]) -> bool:
    """Return whether texts number the labels from 1, and labels do not."""
    numbers = {str(number) for number in range(1, len(labels) + 1)}
    # Labels that are these numbers match as ids, in whatever order they are.
    return set(texts) == numbers and set(map(_unpadded, labels)) != numbers


def _stay_distinct(texts: Sequence[str], read: Callable[[str], str]) -> bool:
    """Return whether no two of some different texts are read as the same id."""
    readings = [read(text) for text in texts if read(text)]
    return len(set(readings)) == len(readings)


def _last_number(text: str) -> str:
    """Return the number at the end of a text without leading zeros, or ""."""
    match = _TRAILING.search(text)
    return "" if match is None else _unpadded(match[1])


def _unpadded(text: str) -> str:
    return text.lstrip("0") or "0"
