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
from recsys.database import parse_address
from recsys.errors import DataError
from recsys.messages import counted
from recsys.readers.copies import ZIP
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

TEXTS = "texts"
"""Kind of a file that is a JSON array of texts."""
BATCH = 1000
"""Maximum number of documents in a batch."""

_BATCH_LENGTH = 2**26  # maximum number of characters in a batch
_HEAD = 1 << 16  # bytes to inspect for the kind of a file
_ROWS = 1000  # rows of a Parquet file to read at once
_SAMPLE = 100  # JSON objects whose keys determine the columns
_NAMED = 3
_SUFFIXES = {".csv": ",", ".tsv": "\t", ".jsonl": "jsonl", ".ndjson": "jsonl"}
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
_LEAST_WORDS = 4  # minimum mean number of words to recognise a column of texts
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
        A directory of text files (each a document, subdirectories included, hidden files not); a
        CSV, TSV, JSON, Parquet or Excel file, or a table of a database, with a text column; a file
        of any other name whose first line has the columns that are named, or types of RecBole; or a
        file with one document per line. Files may be packed by gzip, xz or zstd, be remote
        (``https://...``) or several (``parts/*.jsonl``). ``-`` is standard input.
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
        if path.is_file() and head_of(path, _HEAD).startswith(ZIP):
            with (
                suppress(OSError, zipfile.BadZipFile),
                zipfile.ZipFile(path) as archive,
            ):
                count = sum(not member.is_dir() for member in archive.infolist())
                if count > 1:
                    raise DataError(
                        f"{path.name} is an archive of {count:,} files; unpack it, and index the "
                        "directory."
                    )

        def pick(names: Sequence[str], where: str) -> Roles:
            columns = _chosen(list(names), self._columns, where)
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
        kind = _separator(data, self._columns) or kind if kind == "lines" else kind
        if kind in FORMS or kind == HTML:
            if any(self._columns):
                raise DataError(
                    f"{data.name} has no columns: it is of the form {kind}."
                )
            if kind == HTML:
                self.decision = (
                    f"{data.name}: a page of HTML, without its tags and scripts"
                )
                text, title = page("".join(data.lines()))
                yield 1, Document(data.name, text, title)
                return
            noun, read = FORMS[kind]
            self.decision = f"{data.name}: {noun}, ids are its own"
            for number, label, text, title in read(data.lines(), data.name):
                yield number, Document(label, text, title)
            return
        if kind == TEXTS and (texts := _array(data)) is not None:
            self.decision = (
                f"{data.name}: a JSON array of texts, {self._numbered('element')}"
            )
            for number, text in enumerate(texts, 1):
                if not isinstance(text, str):
                    noun = type(text).__name__
                    raise DataError(
                        f"{data.name}, element {number} must be a text; got {noun}."
                    )
                yield number, Document(after + number, text)
            return
        if kind not in ("lines", TEXTS):
            yield from self._table(data, kind, after)
            return
        if any(self._columns):
            listed = " or ".join(
                repr(name) for name in self._columns if name is not None
            )
            problem = f"it begins without a column {listed}."
            raise DataError(f"{data.name} is read as one document per line: {problem}")
        self.decision = f"{data.name}: one document per line, {self._numbered('line')}"
        for number, line in enumerate(data.lines(), 1):
            if line.strip():
                yield number, Document(after + number, line.strip())

    def _numbered(self, unit: str) -> str:
        return f"ids are {unit} numbers" + (
            f" + {self._after:,}" if self._after else ""
        )

    def _directory(self, folder: Path) -> Iterator[Document]:
        name = f"{folder.resolve().name}/"
        paths = [
            folder / file_name for file_name in Directory(folder).names(below=True)
        ]
        collection = _collection(folder, paths)
        if collection is not None:
            with open_data(collection, self._options) as data:
                named = replace(
                    data, name=f"{name}{collection.relative_to(folder).as_posix()}"
                )
                yield from (document for _, document in self._file(named, self._after))
            if len(paths) > 1:
                self.decision += (
                    f"; {len(paths) - 1:,} other files of the folder left out"
                )
            return
        self.decision = f"{name}: a directory of texts, ids are file names"
        pages, binary_files = 0, list[str]()
        for path in paths:
            label = path.relative_to(folder).as_posix()
            if (
                head_of(path, _HEAD).startswith(ZIP)
                or parse_address(str(path)) is not None
            ):
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
                    pages += 1
                    text, title = page(text)
                yield Document(label, text, title)
        if pages:
            self.decision += (
                f"; {counted(pages, 'page')} of HTML without tags and scripts"
            )
        if binary_files:
            listed = ", ".join(binary_files[:_NAMED])
            if len(binary_files) > _NAMED:
                listed += ", ..."
            self.decision += (
                f"; {counted(len(binary_files), 'binary file')} left out ({listed})"
            )

    def _table(
        self, data: DataFile, kind: str, after: int
    ) -> Iterator[tuple[int, Document]]:
        unit = "row" if kind == "parquet" else data.unit
        if kind == "parquet":
            layout, names = data.form, list(parquet_columns(data))
            read: Callable[[_Columns], Rows] = partial(_parquet_rows, data)
        elif kind == "jsonl":
            sample = islice(json_objects(data), _SAMPLE)
            layout = "JSON" if data.unit == "object" else "JSON lines"
            names = list(dict.fromkeys(n for _, row in sample for n in row))
            read = lambda _: json_objects(data)  # noqa: E731
        else:
            lines = list(islice(data.lines(), _SAMPLE))
            separator = (sniff_separator(lines, ",;\t|") if lines else None) or kind
            header = next(iter(split_rows(lines, separator)), [])
            layout = separator_name(separator)
            names, types = without_types([name.strip() for name in header])
            if types:
                chosen = (
                    name and without_types([name])[0][0] for name in self._columns
                )
                self._columns = _Columns(*chosen)
            read = lambda _: _delimited_rows(data, separator, names)  # noqa: E731
        if not names:
            raise DataError(f"{data.name} is empty.")
        requested = self._columns
        if requested.text is None:
            requested = requested._replace(text=_text_column(names, requested, read))
        columns = _chosen(names, requested, data.name)
        if (name := _item_column(names, columns)) is not None:
            values = [row.get(name) for _, row in read(columns._replace(id=name))]
            if len({*values} - {None, ""}) == len(values):
                columns = columns._replace(id=name)
        parts = [layout, f"text = {columns.text}"]
        parts.append(f"id = {columns.id}" if columns.id else self._numbered(unit))
        parts += [f"title = {columns.title}"] if columns.title else []
        self.decision = f"{data.name}: {', '.join(parts)}"
        for number, row in read(columns):
            identity = after + number if columns.id is None else row.get(columns.id)
            location = f"{data.name}, {unit} {number}"
            if identity is None or identity == "":
                raise DataError(f"{location}: the id is missing.")
            if type(identity) is not int:
                identity = _plain(identity, location, "id")
            text = _plain(row.get(str(columns.text)), location, "text")
            title = None if columns.title is None else row.get(columns.title)
            title = None if title is None else _plain(title, location, "title")
            yield number, Document(identity, text, title)


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
            block, length = [], 0


def _kind(data: DataFile) -> str:
    """Return "parquet", "jsonl", "lines", a separator, or a marked-up form."""
    if data.is_parquet:
        return "parquet"
    head = head_of(data.path, _HEAD)
    if b"\0" in head:
        raise DataError(f"{data.name} is a binary file, not text.")
    if (form := form_of(head)) is not None:
        return form
    beginning = head.lstrip(b"\xef\xbb\xbf \r\n\t")
    if beginning.startswith(b"[") and beginning[1:].lstrip().startswith(b'"'):
        return TEXTS
    is_json = beginning.startswith((b'{"', b"{'", b"{u'"))
    kind = _SUFFIXES.get(data.suffix, "lines")
    return "jsonl" if is_json and kind != HTML else kind


def _array(data: DataFile) -> list[Any] | None:
    """Return the elements of a JSON array, or None if the text is something else."""
    try:
        elements = json.loads("".join(data.lines()))
    except (ValueError, RecursionError):
        return None
    return elements if isinstance(elements, list) else None


def _separator(data: DataFile, wanted: _Columns) -> str | None:
    """Return the separator of a header that has types or the requested columns."""
    lines = list(islice(data.lines(), _SAMPLE))
    separator = sniff_separator(lines, ",;\t|") if lines else None
    if separator is None:
        return None
    header = [name.strip() for name in next(iter(split_rows(lines, separator)), [])]
    requested = {name for name in wanted if name is not None}
    is_table = without_types(header)[1] or (requested and requested <= {*header})
    return separator if is_table else None


def _collection(folder: Path, paths: Sequence[Path]) -> Path | None:
    """Return the file with the documents of a test collection, if there is one.

    This is BEIR's corpus.jsonl, or the largest file in SMART or TREC form; the others are queries.
    """
    if (folder / _CORPUS).is_file():
        return folder / _CORPUS
    if len(paths) > _MOST_PARTS:
        return None
    marked = [path for path in paths if form_of(head_of(path, _HEAD)) in FORMS]
    return max(marked, key=lambda path: path.stat().st_size, default=None)


def _plain(value: Any, place: str, role: str) -> str:
    """Return an entry of a table as text; raise for lists, objects and bytes."""
    if isinstance(value, list | dict | bytes):
        raise DataError(
            f"{place}: the {role} must be a text; got {type(value).__name__}."
        )
    return "" if value is None else str(value)


def _delimited_rows(data: DataFile, separator: str, names: list[str]) -> Rows:
    for line, fields in records(data, Layout(separator, tuple(names))):
        if len(fields) != len(names):
            raise DataError(
                f"{data.name}, line {line}: {len(fields)} fields, and the header has {len(names)}."
            )
        yield line, dict(zip(names, fields, strict=True))


def _parquet_rows(data: DataFile, columns: _Columns) -> Rows:
    names = list(dict.fromkeys(name for name in columns if name is not None))
    for name, dtype in parquet_columns(data).items():
        if name in names and dtype.is_nested():
            raise DataError(
                f"{data.name}: column {name} must be of texts; got {dtype} values."
            )
    with reading_parquet(data.name):
        scan = pl.scan_parquet(data.path, glob=False).select(names)
        n_rows = scan.select(pl.len()).collect().item()
    for start in range(0, n_rows, _ROWS):
        with reading_parquet(data.name):
            try:
                rows = scan.slice(start, _ROWS).collect().rows(named=True)
            except (ValueError, OverflowError) as error:  # years out of Python's range
                raise pl.exceptions.ComputeError(str(error)) from None
        yield from enumerate(rows, start + 1)


def _chosen(names: list[str], wanted: _Columns, place: str) -> _Columns:
    """Choose the columns as requested or by usual names; a single one is the text."""
    listed = ", ".join(names)
    for requested in wanted:
        if requested is not None and requested not in names:
            raise DataError(f"{place} has no column {requested!r}; it has {listed}.")

    def first(names: Sequence[str], known: Sequence[str]) -> str | None:
        lower = {name.lower(): name for name in reversed(names)}
        return next(
            (lower[usual_name] for usual_name in known if usual_name in lower), None
        )

    text = wanted.text or first(names, _TEXT) or (names[0] if len(names) == 1 else None)
    if text is None:
        raise DataError(
            f"{place} has no column that is evidently the text; it has {listed}. Name it "
            "with --text-col (text_col)."
        )
    other_names = [name for name in names if name != text]
    chosen = _Columns(
        text,
        wanted.id or first(other_names, _ID),
        wanted.title or first(other_names, _TITLE),
    )
    for name in chosen:
        if name is not None and names.count(name) > 1:
            raise DataError(f"{place} has {names.count(name)} columns named {name!r}.")
    return chosen


def _text_column(
    names: list[str], columns: _Columns, read: Callable[[_Columns], Rows]
) -> str | None:
    """Return the column of texts by its contents, if no name decides."""
    if len(names) == 1 or any(name.lower() in _TEXT for name in names):
        return None
    words = {}
    for name in names:
        values = [row.get(name) for _, row in islice(read(_Columns(name)), _SAMPLE)]
        counts = [len(value.split()) for value in values if isinstance(value, str)]
        words[name] = sum(counts) / max(1, len(values))
    first, second, *_ = sorted(names, key=lambda name: -words[name])
    stands_out = words[first] >= max(_LEAST_WORDS, 2 * words[second])
    return first if stands_out and first not in (columns.id, columns.title) else None


def _item_column(names: Sequence[str], columns: _Columns) -> str | None:
    """Return the column of items (sku, asin, ...) if there is no id column."""
    used = [
        names.index(name) for name in (columns.text, columns.title) if name in names
    ]
    with suppress(DataError):  # several columns have usual names
        position = (
            usual_column(names, "item", taken=used) if columns.id is None else None
        )
        return None if position is None else names[position]
    return None
