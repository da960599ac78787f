"""Documents from files: a directory of texts, a table with a text column, or one per line."""

from __future__ import annotations

import os
import zipfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from recsys.errors import DataError
from recsys.lsi.tables import ColumnNames, Table, open_table
from recsys.readers.careful import decoded_lines
from recsys.readers.sources import DataFile, open_data

__all__ = ["BATCH", "Document", "DocumentBatch", "Documents", "batches_of", "read_documents"]

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
