"""Documents: folders of texts, tables with a text column, one text per line."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import chain, islice
from os import PathLike, fspath
from pathlib import Path
from typing import Any, NamedTuple

import polars as pl

from recsys.addresses import located
from recsys.data.columns import Roles, usual_column, without_types
from recsys.data.ids import id_problem
from recsys.database import parse_address
from recsys.errors import DataError
from recsys.messages import counted
from recsys.readers.copies import WORKBOOK, ZIP
from recsys.readers.delimited import (
    Layout,
    records,
    separator_name,
    sniff_separator,
    split_rows,
)
from recsys.readers.formats import json_objects, parquet_columns, reading_parquet
from recsys.readers.judgements import FORMS, HTML, form_of, page
from recsys.readers.sources import DataFile, Directory, head_of, open_data

TEXTS, JSON, LINES = "texts", "JSON", "lines"
"""Kinds of files: a JSON array of texts, JSON objects, and one document per line."""
BATCH = 1000
"""Maximum number of documents in a batch."""

_BATCH_LENGTH = 2**26  # maximum number of characters in a batch
_HEAD = 1 << 16  # bytes to inspect for the kind of a file
_ROWS = 1000  # rows of a Parquet file to read at once
_SAMPLE = 100  # JSON objects whose keys determine the columns
_NAMED = 3
_SUFFIXES = {".csv": ",", ".tsv": "\t", ".jsonl": JSON, ".ndjson": JSON}
_OF_TABLES = {*_SUFFIXES, ".parquet"}
_SUFFIXES |= dict.fromkeys((".html", ".htm", ".xhtml"), HTML)

_TEXT = (
    "text",
    "body",
    "content",
    "contents",
    "abstract",
    "document",
    "description",
    "review",
)
_ID = ("id", "_id", "doc_id", "docid", "docno", "document_id", "documentid", "key")
_TITLE = ("title", "name", "headline", "subject")
_MOST_PARTS = 50  # maximum number of files in the folder of a test collection
_CORPUS = "corpus.jsonl"  # the documents in a folder of BEIR's layout

Rows = Iterator[tuple[int, dict[str, Any]]]
"""Iterator over line or row numbers and the values by column."""


class Document(NamedTuple):
    """Document; its text does not include its title."""

    id: int | str
    text: str
    title: str | None = None


class DocumentBatch(NamedTuple):
    """Batch of documents for `LSI.fit` and `LSI.add_documents`.

    Titles are shown in results, and are indexed with the text. They are None if no document has
    one.
    """

    ids: list[Any]
    texts: list[str]
    titles: list[str | None] | None = None


class _Columns(NamedTuple):
    """Columns of text, id and title; None if unspecified or missing."""

    text: str | None = None
    id: str | None = None
    title: str | None = None


class Documents:
    r"""Documents at a path, read lazily in batches.

    Parameters
    ----------
    path : str or Path
        A directory of text files (each a document, subdirectories included, hidden files not), or
        of tables alone; a CSV, TSV, JSON, Parquet or Excel file, or a table of a database, with a
        text column; a file of any other name whose first line has the columns that are named, usual
        names of a text and an id or title, or types of RecBole; or a file with one document per
        line. Files may be packed by gzip, xz or zstd, be remote (``https://...``) or several
        (``parts/*.jsonl``). ``-`` is standard input.
    table, query : str, optional
        Table of a database, or a query in SQL.
    text_col, id_col, title_col : str, optional
        Columns of a table, if they do not have the usual names.
    encoding : str, optional
        Encoding of the texts, if not UTF-8.
    after : int
        Offset of ids that are line or row numbers, to continue earlier documents.

    Attributes
    ----------
    decision : str
        One line on how the documents were interpreted; empty before they are read.

    Examples
    --------
    >>> import tempfile, pathlib
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "notes.txt"
    >>> _ = path.write_text("Salt melts ice.\nIce floats on water.\n")
    >>> documents = Documents(path)
    >>> [batch.texts for batch in documents]
    [['Salt melts ice.', 'Ice floats on water.']]
    >>> documents.decision
    'notes.txt: one document per line, ids are line numbers'
    """

    def __init__(
        self,
        path: str | PathLike[str],
        *,
        table: str | None = None,
        query: str | None = None,
        text_col: str | None = None,
        id_col: str | None = None,
        title_col: str | None = None,
        encoding: str | None = None,
        after: int = 0,
    ) -> None:
        self.path = located(fspath(path))
        self.decision = ""
        self._columns = _Columns(text_col, id_col, title_col)
        self._options = {"table": table, "query": query, "encoding": encoding}
        self._after = after

    def __iter__(self) -> Iterator[DocumentBatch]:
        """Yield batches of up to 1,000 documents.

        Raises
        ------
        DataError
            If the path does not exist; a file is damaged, binary, in another encoding or a
            collection in an unsupported form; a column is missing; or there are no documents.
        """
        documents = self._documents()
        first = next(documents, None)
        if first is None:
            raise DataError(f"{self.path} has no documents.")
        return batches_of(chain([first], documents))

    def _documents(self) -> Iterator[Document]:
        path = Path(self.path)
        if str(self.path) != "-" and path.is_dir():
            yield from self._directory(path)
            return
        if path.is_file() and head_of(path).startswith(ZIP):
            with suppress(OSError, zipfile.BadZipFile), zipfile.ZipFile(path) as packed:
                names = [name for name in packed.namelist() if not name.endswith("/")]
                if len(names) > 1 and WORKBOOK not in names:
                    raise DataError(
                        f"{path.name} is an archive of {len(names):,} files; unpack it, and index "
                        "the directory."
                    )

        def pick(names: Sequence[str], where: str) -> Roles:
            columns = _chosen(names, self._columns, where)
            chosen = {**columns._asdict(), "item": _item_column(names, columns)}
            return {
                role: names.index(name)
                for role, name in chosen.items()
                if name is not None
            }

        with open_data(self.path, self._options, pick=pick) as data:
            after = last = self._after
            for part in data.parts or (data,):
                for number, document in self._file(part, after):
                    last = after + number
                    yield document
                after = last  # continues ids that are row numbers
            self.decision = self.decision.replace(part.name, data.name, 1)

    def _file(self, data: DataFile, after: int) -> Iterator[tuple[int, Document]]:
        """Yield the documents of a file with their row or line numbers."""
        kind = _kind(data)
        if kind in FORMS or kind == HTML:
            if any(self._columns):
                raise DataError(
                    f"{data.name} has no columns: it is of the form {kind}."
                )
            yield from self._marked(data, kind)
            return
        table = _table_of(data, kind, self._columns)
        if table is not None:
            yield from self._table(data, table, after)
            return
        listed = [repr(name) for name in self._columns if name is not None]
        if listed:
            raise DataError(
                f"{data.name} is read as one document per line: it begins without a column "
                f"{' or '.join(listed)}."
            )
        texts: Iterable[Any] | None = _array(data) if kind == TEXTS else None
        if texts is not None:
            self.decision = (
                f"{data.name}: a JSON array of texts, {self._numbered('element')}"
            )
        else:
            self.decision = (
                f"{data.name}: one document per line, {self._numbered('line')}"
            )
            texts = (line.strip() for line in data.lines())
        for number, text in enumerate(texts, 1):
            if not isinstance(text, str):
                noun = type(text).__name__
                raise DataError(
                    f"{data.name}, element {number} must be a text; got {noun}."
                )
            if text or kind == TEXTS:
                yield number, Document(after + number, text)

    def _marked(self, data: DataFile, kind: str) -> Iterator[tuple[int, Document]]:
        """Yield the documents of a collection, or the only one of a page of HTML."""
        if kind == HTML:
            self.decision = f"{data.name}: a page of HTML, without its tags and scripts"
            text, title = page("".join(data.lines()))
            yield 1, Document(data.name, text, title)
            return
        noun, read = FORMS[kind]
        self.decision = f"{data.name}: {noun}, ids are its own"
        for number, label, text, title in read(data.lines(), data.name):
            yield number, Document(label, text, title)

    def _numbered(self, unit: str) -> str:
        offset = f" + {self._after:,}" if self._after else ""
        return f"ids are {unit} numbers{offset}"

    def _directory(self, folder: Path) -> Iterator[Document]:
        name = f"{folder.resolve().name}/"
        labels = Directory(folder).names(below=True)
        collection = _collection(folder, labels)
        if collection is not None:
            with open_data(folder / collection, self._options) as data:
                named = replace(data, name=f"{name}{collection}")
                yield from (document for _, document in self._file(named, self._after))
            if len(labels) > 1:
                self.decision += (
                    f"; {len(labels) - 1:,} other files of the folder left out"
                )
            return
        if labels and {Path(label).suffix.lower() for label in labels} <= _OF_TABLES:
            yield from self._tables(folder, name, labels)
            return
        self.decision = f"{name}: a directory of texts, ids are file names"
        n_pages = 0
        binary_files = list[str]()
        for label in labels:
            path = folder / label
            is_packed = head_of(path).startswith(ZIP)
            if is_packed or parse_address(str(path)) is not None:
                binary_files.append(label)
                continue
            with open_data(path, self._options) as data:
                head = head_of(data.path, _HEAD)
                if b"\0" in head or data.is_parquet:
                    binary_files.append(label)
                    continue
                text = "".join(replace(data, name=f"{name}{label}").lines())
                title = None
                if HTML in (form_of(head), _SUFFIXES.get(path.suffix.lower())):
                    n_pages += 1
                    text, title = page(text)
                yield Document(label, text, title)
        if n_pages:
            pages = counted(n_pages, "page")
            self.decision += f"; {pages} of HTML without tags and scripts"
        if binary_files:
            listed = ", ".join(binary_files[:_NAMED])
            if len(binary_files) > _NAMED:
                listed += ", ..."
            left_out = counted(len(binary_files), "binary file")
            self.decision += f"; {left_out} left out ({listed})"

    def _tables(
        self,
        folder: Path,
        name: str,
        labels: Sequence[str],
    ) -> Iterator[Document]:
        """Yield the documents of a directory of tables, as of one table in parts."""
        after = last = self._after
        for label in labels:
            with open_data(folder / label, self._options) as data:
                part = replace(data, name=f"{name}{label}")
                for number, document in self._file(part, after):
                    last = after + number
                    yield document
            after = last
        whole = f"{name} ({counted(len(labels), 'table')})"
        self.decision = self.decision.replace(f"{name}{labels[-1]}", whole, 1)

    def _table(
        self,
        data: DataFile,
        table: _Table,
        after: int,
    ) -> Iterator[tuple[int, Document]]:
        """Yield the documents of a table, and describe its columns."""
        if not table.names:
            raise DataError(f"{data.name} is empty.")
        columns = _chosen(table.names, table.wanted, data.name)
        item = _item_column(table.names, columns)
        if item is not None:
            # Items are the ids if no two rows have the same.
            values = [row.get(item) for _, row in table.read([item])]
            if len({*values} - {None, ""}) == len(values):
                columns = columns._replace(id=item)
        ids = self._numbered(table.unit) if columns.id is None else f"id = {columns.id}"
        parts = [table.form, f"text = {columns.text}", ids]
        if columns.title is not None:
            parts.append(f"title = {columns.title}")
        self.decision = f"{data.name}: {', '.join(parts)}"
        used = dict.fromkeys(name for name in columns if name is not None)
        for number, row in table.read([*used]):
            location = f"{data.name}, {table.unit} {number}"
            identity = after + number if columns.id is None else row.get(columns.id)
            if identity is None or identity == "":
                raise DataError(f"{location}: the id is missing.")
            if isinstance(identity, float):  # as all numbers of a workbook are
                if problem := id_problem(identity, "document"):
                    raise DataError(f"{location}: {problem}")
                identity = int(identity)
            if type(identity) is not int:
                identity = _plain(identity, location, "id")
            text = _plain(row.get(str(columns.text)), location, "text")
            title = None if columns.title is None else row.get(columns.title)
            if title is not None:
                title = _plain(title, location, "title")
            yield number, Document(identity, text, title)


class _Table(NamedTuple):
    """Table of documents; `read` yields the rows of some columns with their numbers."""

    form: str
    unit: str
    names: Sequence[str]
    wanted: _Columns
    read: Callable[[Sequence[str]], Rows]


def _table_of(
    data: DataFile,
    kind: str,
    wanted: _Columns,
) -> _Table | None:
    """Return the table in a file, or None if it has no columns."""
    if data.is_parquet:
        names = list(parquet_columns(data))
        return _Table(data.form, "row", names, wanted, partial(_parquet_rows, data))
    if kind == JSON:
        sample = islice(json_objects(data), _SAMPLE)
        names = list(dict.fromkeys(name for _, row in sample for name in row))
        form = "JSON" if data.unit == "object" else "JSON lines"
        return _Table(form, data.unit, names, wanted, lambda _: json_objects(data))
    if kind == TEXTS:
        return None
    lines = list(islice(data.lines(), _SAMPLE))
    separator = sniff_separator(lines, ",;\t|") if lines else None
    if separator is None and kind == LINES:
        return None
    separator = separator or kind
    header = next(iter(split_rows(lines, separator)), [])
    header = [name.strip() for name in header]
    names, types = without_types(header)
    if types:
        plain = (name and without_types([name])[0][0] for name in wanted)
        wanted = _Columns(*plain)
    requested = {name for name in wanted if name is not None}
    has_columns = requested and requested <= set(names)
    lower = {name.lower() for name in names}
    # No text begins with the names of its columns; standard input has no suffix.
    has_usual_names = bool(lower & {*_TEXT} and lower & {*_ID, *_TITLE})
    if kind == LINES and not (types or has_columns or has_usual_names):
        return None
    rows = partial(_delimited_rows, data, separator, names)
    return _Table(separator_name(separator), data.unit, names, wanted, rows)


def batches_of(documents: Iterable[Document]) -> Iterator[DocumentBatch]:
    """Collect documents into batches."""
    block: list[Document] = []
    length = 0
    for document in chain(documents, [None]):
        if document is not None:
            block.append(document)
            # Other types than text raise later, with the number of the document.
            length += len(document.text) if isinstance(document.text, str) else 0
        if block and (
            document is None or len(block) == BATCH or length >= _BATCH_LENGTH
        ):
            ids, texts, titles = map(list, zip(*block, strict=True))
            yield DocumentBatch(
                ids, texts, titles if any(t is not None for t in titles) else None
            )
            block = []
            length = 0


def _kind(data: DataFile) -> str:
    """Return a marked-up form, `JSON`, `TEXTS`, `LINES`, or a separator."""
    if data.is_parquet:
        return "Parquet"
    head = head_of(data.path, _HEAD)
    if b"\0" in head:
        raise DataError(f"{data.name} is a binary file, not text.")
    form = form_of(head)
    if form is not None:
        return form
    beginning = head.lstrip(b"\xef\xbb\xbf \r\n\t")
    if beginning.startswith(b"[") and beginning[1:].lstrip().startswith(b'"'):
        return TEXTS
    kind = _SUFFIXES.get(data.suffix, LINES)
    is_json = beginning.startswith((b'{"', b"{'", b"{u'"))
    return JSON if is_json and kind != HTML else kind


def _array(data: DataFile) -> list[Any] | None:
    """Return the elements of a JSON array, or None if the text is something else."""
    try:
        elements = json.loads("".join(data.lines()))
    except (ValueError, RecursionError):
        return None
    return elements if isinstance(elements, list) else None


def _collection(folder: Path, labels: Sequence[str]) -> str | None:
    """Return the file with the documents of a test collection, if there is one.

    This is BEIR's corpus.jsonl, or the largest file in SMART or TREC form; the others are queries.
    """
    if (folder / _CORPUS).is_file():
        return _CORPUS
    if len(labels) > _MOST_PARTS:
        return None
    sizes = {
        label: (folder / label).stat().st_size
        for label in labels
        if form_of(head_of(folder / label, _HEAD)) in FORMS
    }
    return max(sizes, key=sizes.__getitem__, default=None)


def _plain(
    value: Any,
    where: str,
    role: str,
) -> str:
    """Return an entry of a table as text; raise for lists, objects and bytes."""
    if isinstance(value, list | dict | bytes):
        raise DataError(
            f"{where}: the {role} must be a text; got {type(value).__name__}."
        )
    return "" if value is None else str(value)


def _delimited_rows(
    data: DataFile,
    separator: str,
    names: Sequence[str],
    columns: Sequence[str],
) -> Rows:
    for line, fields in records(data, Layout(separator, tuple(names))):
        if len(fields) != len(names):
            raise DataError(
                f"{data.name}, line {line}: {len(fields)} fields, and the header has {len(names)}."
            )
        if fields != names:  # a header in the middle, where files were joined
            yield line, dict(zip(names, fields, strict=True))


def _parquet_rows(data: DataFile, names: Sequence[str]) -> Rows:
    types = parquet_columns(data)
    for name in names:
        if types[name].is_nested():
            raise DataError(
                f"{data.name}: column {name} must be of texts; got {types[name]} values."
            )
    with reading_parquet(data.name):
        scan = pl.scan_parquet(data.path, glob=False).select(names)
        start = 1
        for frame in scan.collect_batches(chunk_size=_ROWS, engine="streaming"):
            try:
                rows = frame.rows(named=True)
            except (ValueError, OverflowError) as error:  # years out of Python's range
                raise pl.exceptions.ComputeError(str(error)) from None
            yield from enumerate(rows, start)
            start += len(frame)


def _chosen(
    names: Sequence[str],
    wanted: _Columns,
    where: str,
) -> _Columns:
    """Choose the columns as requested or by usual names; a single one is the text."""
    listed = ", ".join(names)
    for requested in wanted:
        if requested is not None and requested not in names:
            raise DataError(f"{where} has no column {requested!r}; it has {listed}.")
    lower = {name.lower(): name for name in reversed(names)}

    def usual(usual_names: Sequence[str], text: str | None = None) -> str | None:
        matches = (lower[name] for name in usual_names if name in lower)
        return next((name for name in matches if name != text), None)

    text = wanted.text or usual(_TEXT)
    if text is None and len(names) == 1:
        text = names[0]
    if text is None:
        raise DataError(
            f"{where} has no column that is evidently the text; it has {listed}. Name it "
            "with --text-col (text_col)."
        )
    chosen = _Columns(
        text, wanted.id or usual(_ID, text), wanted.title or usual(_TITLE, text)
    )
    for name in chosen:
        if name is not None and names.count(name) > 1:
            raise DataError(f"{where} has {names.count(name)} columns named {name!r}.")
    return chosen


def _item_column(names: Sequence[str], columns: _Columns) -> str | None:
    """Return the column of items (sku, asin, ...) if there is no id column."""
    used = [names.index(name) for name in (columns.text, columns.title) if name]
    if columns.id is None:
        with suppress(DataError):  # several columns have usual names
            position = usual_column(names, "item", taken=used)
            return None if position is None else names[position]
    return None
