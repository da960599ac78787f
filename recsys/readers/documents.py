"""Documents: folders of texts, tables with a text column, one text per line."""

from __future__ import annotations

import csv
import json
import os
import zipfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from recsys.errors import DataError
from recsys.readers.layout import separator_name, without_returns
from recsys.readers.sources import DataFile, open_data
from recsys.readers.table import decoded_lines

if TYPE_CHECKING:
    import polars as pl

__all__ = [
    "BATCH",
    "ColumnNames",
    "Document",
    "DocumentBatch",
    "Documents",
    "Table",
    "batches_of",
    "open_table",
    "read_documents",
]

BATCH = 1000
"""Documents that are held as texts at a time, if they are not very long."""

_BATCH_LENGTH = 2**26  # characters: texts together are not held beyond this

_TABLES = {".csv": "csv", ".tsv": "tsv", ".jsonl": "jsonl", ".ndjson": "jsonl"}
_NAMED = 3
_ARCHIVE = (b"PK\x03\x04", b"PK\x05\x06")  # also .docx, .odt, .epub
_UTF16 = (b"\xff\xfe", b"\xfe\xff")


class Document(NamedTuple):
    """One document; its title, if it has one, is not part of its text."""

    id: int | str
    text: str
    title: str | None = None


class DocumentBatch(NamedTuple):
    """Some documents, as `LSI.fit` and `LSI.add_documents` take them.

    Attributes
    ----------
    ids : list of int or str
    texts : list of str
    titles : list of str or None, or None
        What is shown of them, and indexed before their text; None if none has one.
    """

    ids: list[Any]
    texts: list[str]
    titles: list[str | None] | None = None


class Documents:
    r"""The documents at a path, as batches; nothing is read before they are asked for.

    Parameters
    ----------
    path : str or Path
        A directory of text files (each a document, subdirectories included, hidden files not); a
        CSV, TSV, JSON lines or Parquet file with a text column; or a file with one document per
        line. Files may be packed by gzip or zstd. ``-`` is standard input.
    text_col, id_col, title_col : str, optional
        Columns of a table, where their names don't tell.
    encoding : str, optional
        Of texts that are not UTF-8.
    after : int
        What is added to ids that are line or row numbers: the documents continue others.

    Attributes
    ----------
    decision : str
        How the documents were understood, in one line; empty before they are read.

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
        path: str | os.PathLike[str],
        *,
        text_col: str | None = None,
        id_col: str | None = None,
        title_col: str | None = None,
        encoding: str | None = None,
        after: int = 0,
    ) -> None:
        self.path = path
        self.decision = ""
        self._columns = ColumnNames(text_col, id_col, title_col)
        self._encoding = encoding
        self._after = after

    def __iter__(self) -> Iterator[DocumentBatch]:
        """Yield batches of up to 1,000 documents.

        Raises
        ------
        DataError
            If there is nothing at the path, a file is damaged, binary or in another encoding, a
            column is not there, or there are no documents.
        """
        return batches_of(self._documents())

    def _documents(self) -> Iterator[Document]:
        count = 0
        for document in self._found():
            count += 1
            yield document
        if not count:
            raise DataError(f"{self.path} has no documents.")

    def _found(self) -> Iterator[Document]:
        if str(self.path) != "-" and Path(self.path).is_dir():
            yield from self._directory(Path(self.path))
            return
        _refuse_archive(self.path)
        with open_data(self.path, self._encoding) as data:
            kind = _kind(data)
            if kind == "lines":
                yield from self._lines(data)
                return
            with open_table(data, kind, self._columns) as table:
                self.decision = f"{data.name}: {self._described(table)}"
                yield from _table_documents(data, table, self._after)

    def _described(self, table: Table) -> str:
        columns = table.columns
        said = [table.layout, f"text = {columns.text}"]
        number = self._numbered(table.unit)
        said.append(f"id = {columns.id}" if columns.id else number)
        if columns.title:
            said.append(f"title = {columns.title}")
        return ", ".join(said)

    def _numbered(self, what: str) -> str:
        return f"ids are {what} numbers" + (f" + {self._after:,}" if self._after else "")

    def _lines(self, data: DataFile) -> Iterator[Document]:
        if any(self._columns.__dict__.values()):
            raise DataError(f"{data.name} is read as one document per line: it has no columns.")
        self.decision = f"{data.name}: one document per line, {self._numbered('line')}"
        for number, line in enumerate(decoded_lines(data.path, data.name), 1):
            if line.strip():
                yield Document(self._after + number, line.strip())

    def _directory(self, folder: Path) -> Iterator[Document]:
        name = f"{folder.resolve().name}/"
        files = [path for path in sorted(folder.rglob("*")) if _is_shown(path, folder)]
        self.decision = f"{name}: a directory of texts, ids are file names"
        binary = []
        for path in files:
            label = path.relative_to(folder).as_posix()
            text = self._text_of(path, f"{name}{label}")
            if text is None:
                binary.append(label)
            else:
                yield Document(label, text)
        if binary:
            more = ", ..." if len(binary) > _NAMED else ""
            listed = ", ".join(binary[:_NAMED]) + more
            noun = "file" if len(binary) == 1 else "files"
            self.decision += f"; {len(binary):,} binary {noun} left out ({listed})"

    def _text_of(self, path: Path, name: str) -> str | None:
        """Return the text of a file of a directory, None for a binary file."""
        head = _head(path)
        if head.startswith(_ARCHIVE):
            return None
        # Files of a directory may differ: one in UTF-16 says so itself.
        encoding = "utf-16" if head.startswith(_UTF16) else self._encoding
        with open_data(path, encoding) as data:
            return None if _is_binary(data) else "".join(decoded_lines(data.path, name))


def read_documents(path: str | os.PathLike[str], **settings: Any) -> Documents:
    """Return the documents at a path: `Documents` with the same settings."""
    return Documents(path, **settings)


def batches_of(documents: Iterable[Document]) -> Iterator[DocumentBatch]:
    """Collect documents into batches."""
    block: list[Document] = []
    length = 0
    for document in documents:
        block.append(document)
        if isinstance(document.text, str):  # what is none is refused later, with its number
            length += len(document.text)
        if len(block) == BATCH or length >= _BATCH_LENGTH:
            yield _batch(block)
            block, length = [], 0
    if block:
        yield _batch(block)


def _batch(block: list[Document]) -> DocumentBatch:
    ids, texts, titles = zip(*block, strict=True)
    known = any(title is not None for title in titles)
    return DocumentBatch(list(ids), list(texts), list(titles) if known else None)


def _kind(data: DataFile) -> str:
    """Tell what a file is from its suffix and its first bytes."""
    head = _head(data.path)
    if head.startswith(b"PAR1"):
        return "parquet"
    if data.suffix == ".parquet":
        raise DataError(f"{data.name} is no Parquet file, or damaged: it does not begin with PAR1.")
    if _is_binary(data):
        is_utf16 = head.startswith(_UTF16)
        what = "in UTF-16; say so with --encoding utf-16" if is_utf16 else "a binary file, not text"
        raise DataError(f"{data.name} is {what}.")
    if data.suffix == ".json" and head.lstrip().startswith(b"["):
        raise DataError(f"{data.name} is one JSON array; write one object per line instead.")
    if head.lstrip(b"\xef\xbb\xbf \r\n\t").startswith(b'{"'):
        return "jsonl"
    return _TABLES.get(data.suffix, "lines")


def _table_documents(data: DataFile, table: Table, after: int) -> Iterator[Document]:
    columns = table.columns
    for number, row in table.rows:
        identity = after + number if columns.id is None else row.get(columns.id)
        place = f"{data.name}, {table.unit} {number}"
        if identity is None or identity == "":
            raise DataError(f"{place}: the id is missing.")
        is_integer = isinstance(identity, int) and not isinstance(identity, bool)
        title = None if columns.title is None else row.get(columns.title)
        yield Document(
            identity if is_integer else _plain(identity, place, "id"),
            _plain(row.get(str(columns.text)), place, "text"),
            None if title is None else _plain(title, place, "title"),
        )


def _plain(value: Any, place: str, what: str) -> str:
    """Return an entry of a table as a text; lists, objects and bytes are none."""
    if isinstance(value, list | dict | bytes):
        raise DataError(f"{place}: the {what} must be a text; got {type(value).__name__}.")
    return "" if value is None else str(value)


def _is_shown(path: Path, folder: Path) -> bool:
    parts = path.relative_to(folder).parts
    return path.is_file() and not any(part.startswith(".") for part in parts)


def _refuse_archive(path: str | os.PathLike[str]) -> None:
    """Refuse an archive of several files; one of a single file is read as that file."""
    if not Path(path).is_file() or not _head(Path(path)).startswith(_ARCHIVE):
        return
    try:
        with zipfile.ZipFile(path) as archive:
            members = [each for each in archive.infolist() if not each.is_dir()]
    except (OSError, zipfile.BadZipFile):
        return  # what opens it says what is wrong
    if len(members) > 1:
        raise DataError(
            f"{Path(path).name} is an archive of {len(members):,} files; unpack it, and index the "
            "directory."
        )


def _head(path: Path) -> bytes:
    with path.open("rb") as stream:
        return stream.read(1 << 12)


def _is_binary(data: DataFile) -> bool:
    with data.path.open("rb") as stream:
        return b"\0" in stream.read(1 << 16)


_TEXT = ("text", "body", "content", "contents", "abstract", "document", "description", "review")
_ID = ("id", "_id", "doc_id", "docid", "docno", "document_id", "documentid", "key")
_TITLE = ("title", "name", "headline", "subject")
_SAMPLE = 100
_ROWS = 1000  # of a Parquet file, read at a time

_SEPARATORS = ",;\t|"

Row = tuple[int, dict[str, Any]]
Opened = tuple[str, list[str], Callable[["ColumnNames"], Iterator[Row]]]
"""The layout in words, the names of the columns, and what reads the chosen ones."""


@dataclass(frozen=True)
class ColumnNames:
    """Which columns hold what; None where it is to be found out, or is not there."""

    text: str | None = None
    id: str | None = None
    title: str | None = None


@dataclass(frozen=True)
class Table:
    """Rows with their numbers (of lines or rows), the chosen columns, and the layout in words."""

    layout: str
    unit: str
    columns: ColumnNames
    rows: Iterator[Row]


@contextmanager
def open_table(data: DataFile, kind: str, wanted: ColumnNames) -> Iterator[Table]:
    """Open a table of the kind "csv", "tsv", "jsonl" or "parquet".

    Raises
    ------
    DataError
        If a column that was asked for is not there, or none is evidently the text.
    """
    layout, names, rows_of = _READERS[kind](data)
    unit = "row" if kind == "parquet" else "line"
    columns = _chosen(names, wanted, data.name)
    yield Table(layout, unit, columns, rows_of(columns))


def _delimited(data: DataFile, usual: str) -> Opened:
    separator = _separator(data, usual)
    lines = map(without_returns, decoded_lines(data.path, data.name))
    reader = csv.reader(lines, delimiter=separator, strict=True)
    names = [name.strip() for name in _next_record(reader, data) or []]
    if not any(names):
        raise DataError(f"{data.name} is empty.")
    return separator_name(separator), names, lambda _: _delimited_rows(reader, names, data)


def _separator(data: DataFile, usual: str) -> str:
    """Return the separator of the header: the usual one, unless it has only others."""
    header = next(decoded_lines(data.path, data.name), "")
    best = max(_SEPARATORS, key=header.count)
    return usual if usual in header or best not in header else best


def _delimited_rows(reader: Any, names: list[str], data: DataFile) -> Iterator[Row]:
    before = reader.line_num
    while (fields := _next_record(reader, data)) is not None:
        line, before = before + 1, reader.line_num
        if not any(fields):
            continue
        if len(fields) != len(names):
            raise DataError(
                f"{data.name}, line {line}: {len(fields)} fields, and the header has {len(names)}."
            )
        yield line, dict(zip(names, fields, strict=True))


def _next_record(reader: Any, data: DataFile) -> list[str] | None:
    try:
        record: list[str] | None = next(reader, None)
    except csv.Error as error:
        raise DataError(f"{data.name}, line {reader.line_num}: {error}.") from None
    return record


def _json_lines(data: DataFile) -> Opened:
    rows = _json_rows(data)
    sample = list(islice(rows, _SAMPLE))
    names = list(dict.fromkeys(name for _, fields in sample for name in fields))
    return "JSON lines", names, lambda _: chain(sample, rows)


def _json_rows(data: DataFile) -> Iterator[Row]:
    for number, line in enumerate(decoded_lines(data.path, data.name), 1):
        if not line.strip():
            continue
        try:
            fields = json.loads(line)
        except (ValueError, RecursionError):
            raise DataError(f"{data.name}, line {number}: not JSON.") from None
        if not isinstance(fields, dict):
            raise DataError(
                f"{data.name}, line {number}: expected a JSON object; got {line.strip()[:40]!r}."
            )
        if "\\u" in line:
            _check_escapes(fields, f"{data.name}, line {number}")
        yield number, fields


def _check_escapes(fields: dict[str, Any], place: str) -> None:
    try:
        json.dumps(fields, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        code = ord(error.object[error.start])
        raise DataError(f"{place}: \\u{code:04x} is half of a character.") from None


def _parquet(data: DataFile) -> Opened:
    import polars as pl

    from recsys.readers.table import reading_parquet

    with reading_parquet(data.name):
        names = pl.scan_parquet(data.path, glob=False).collect_schema().names()
    return "Parquet", names, lambda columns: _parquet_rows(data, columns)


def _parquet_rows(data: DataFile, columns: ColumnNames) -> Iterator[Row]:
    names = [name for name in (columns.text, columns.id, columns.title) if name is not None]
    start = 0
    for frame in _parquet_frames(data, list(dict.fromkeys(names))):
        yield from enumerate(frame.iter_rows(named=True), start + 1)
        start += len(frame)


def _parquet_frames(data: DataFile, names: list[str]) -> Iterator[pl.DataFrame]:
    """Read some rows at a time."""
    import polars as pl

    from recsys.readers.table import reading_parquet

    scan = pl.scan_parquet(data.path, glob=False).select(names)
    with reading_parquet(data.name):
        n_rows = scan.select(pl.len()).collect().item()
    for name, dtype in scan.collect_schema().items():
        if dtype.is_nested():  # and may make much out of little, as an object of Python
            raise DataError(f"{data.name}: column {name} must be of texts; got {dtype} values.")
    for start in range(0, n_rows, _ROWS):
        with reading_parquet(data.name):
            frame = scan.slice(start, _ROWS).collect()
            _check_times(frame)
        yield frame


def _check_times(frame: pl.DataFrame) -> None:
    """Let what Python does not know, such as the year 10,000, be an error of polars."""
    import polars as pl
    import polars.selectors as cs

    try:
        frame.select(cs.temporal()).rows()
    except (ValueError, OverflowError) as error:
        raise pl.exceptions.ComputeError(str(error)) from None


_READERS = {
    "csv": lambda data: _delimited(data, ","),
    "tsv": lambda data: _delimited(data, "\t"),
    "jsonl": _json_lines,
    "parquet": _parquet,
}


def _chosen(names: list[str], wanted: ColumnNames, place: str) -> ColumnNames:
    """Choose the columns: as asked for, else by their names; a single one is the text."""
    listed = ", ".join(names)
    for asked in (wanted.text, wanted.id, wanted.title):
        if asked is not None and asked not in names:
            raise DataError(f"{place} has no column {asked!r}; it has {listed}.")
    text = wanted.text or _first(names, _TEXT) or (names[0] if len(names) == 1 else None)
    if text is None:
        raise DataError(
            f"{place} has no column that is evidently the text; it has {listed}. Say which it is "
            "with --text-col (text_col)."
        )
    rest = [name for name in names if name != text]
    chosen = ColumnNames(text, wanted.id or _first(rest, _ID), wanted.title or _first(rest, _TITLE))
    for name in (chosen.text, chosen.id, chosen.title):
        if name is not None and names.count(name) > 1:
            raise DataError(f"{place} has {names.count(name)} columns named {name!r}.")
    return chosen


def _first(names: Sequence[str], known: Sequence[str]) -> str | None:
    lower = {name.lower(): name for name in reversed(names)}
    return next((lower[each] for each in known if each in lower), None)
