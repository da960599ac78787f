"""Sources of data: files, folders, zips, URLs and databases, opened as local files."""

from __future__ import annotations

import codecs
import csv
import glob
import json
import os
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import islice
from os import PathLike, fspath
from os.path import realpath
from pathlib import Path, PurePosixPath
from typing import Any, TypeAlias

import polars as pl

from recsys.addresses import Location, located, whole
from recsys.data.ids import Spot
from recsys.data.ratings import check_process
from recsys.data.rows import STRICT, BadRows
from recsys.database import (
    MAGIC,
    NAMES,
    SUFFIXES,
    Address,
    OnRows,
    Pick,
    TableRows,
    open_table,
    parse_address,
)
from recsys.errors import DataError
from recsys.messages import enumerated, nothing_at
from recsys.readers.copies import (
    CONVERTED,
    PACKED,
    WORKBOOK,
    ZIP,
    Scratch,
    Zip,
    download,
    unpacked,
    unreadable,
    write_lines,
    write_rows,
    write_sheet,
)

csv.field_size_limit(2**31 - 1)  # reviews may be longer than 128 kB

SourceLike: TypeAlias = "str | PathLike[str] | Sequence[str | PathLike[str]]"
"""Source of data: a path, URL, pattern or database, or several of them."""

_URL = re.compile(r"[a-z][a-z0-9+.-]*://", re.IGNORECASE)
_JSON_ARRAY = re.compile(rb"(\xef\xbb\xbf)?\s*\[\s*(\{|$)")
# As in `recsys.saving.arrays` and `recsys.evaluation.saved`, floors above.
_SAVED = {
    "model.json": "a saved model",
    "evaluation.json": "a saved evaluation, which `recsys evaluate` shows",
}
_WORKBOOK = re.compile(
    r"(?i)(?P<place>.+\.(?:xlsx|xlsm|xlsb|xls|ods))::(?P<sheet>[^/]+)"
)
_UTF_16 = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
_WEB_PAGE = "a web page, perhaps in place of the file that was to be downloaded."
_FOREIGN = {
    b"sqlite format 3\0": "an SQLite database in an archive or a folder; name the file itself.",
    b"<!doctype html": _WEB_PAGE,
    b"<html": _WEB_PAGE,
}
_TABLE_FORMATS = {
    "_delta_log": "a Delta Lake table",
    "metadata/*.metadata.json": "an Iceberg table",
    ".hoodie": "a Hudi table",
}
_OLD_EXCEL = b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1"

# In order of preference, for folders with several of them.
_RATING_FILES = (
    "ratings.csv",
    "ratings.dat",
    "u.data",
    "ratings.parquet",
    "ratings.tsv",
    "ratings.jsonl",
    "ratings.ndjson",
    "train.txt",
)
_TABLES = {
    "item": "movies films books items products articles songs tracks games recipes catalog "
    "catalogue metadata movie_titles",
    "user": "users customers members readers",
}
"""Usual names of tables by kind, in order of preference."""
_PACKERS = (".gz", ".xz", ".bz2", ".zst", ".zip")
_TABLE_SUFFIXES = (
    ".csv",
    ".tsv",
    ".dat",
    ".data",
    ".jsonl",
    ".ndjson",
    ".json",
    ".parquet",
    ".inter",
)
_NOT_RATINGS = ("links.csv", "tags.csv", "tags.dat")
_OF_A_SPLIT = re.compile(
    r"(^|[_.-])(train|test|valid|validation|history|base)([_.-]|\d*$)"
)
# Marks such as Spark's _SUCCESS, and locks of office programs, are not data.
_NO_DATA = ("_", "~$")
_LISTED = 5  # maximum number of file names in messages
_NUMBER = re.compile(r"[-+]?\d[\d.,]*")
_OF_NETFLIX = re.compile(r"\d+,[\d.]+,[\d-]+")
_OBJECT = "{"
_BLOCK = 1 << 20  # bytes to read at once
_LINE = 1 << 16  # bytes of a line to inspect


@dataclass(frozen=True, slots=True)
class Directory:
    """Files of a directory, without hidden files."""

    path: Path

    def names(self, *, below: bool = False) -> list[str]:
        """Return the names of the files, with `below` also of subdirectories."""
        if below:
            paths = [path for path in self.path.rglob("*") if path.is_file()]
            names = [path.relative_to(self.path).as_posix() for path in paths]
        else:
            # Only links need a call of the system for each.
            with os.scandir(self.path) as entries:
                names = [
                    entry.name
                    for entry in entries
                    if entry.is_file(follow_symlinks=False) or Path(entry).is_file()
                ]
        return sorted(name for name in names if not f"/{name}".count("/."))

    def fetch(self, name: str) -> Path:
        """Return the path of a file."""
        return self.path / name


@dataclass(frozen=True, slots=True)
class DataFile:
    """Plain local file with data, unpacked and in UTF-8; or several files, its `parts`.

    An open database `table` may take the place of a file.
    """

    name: str  # name in messages
    path: Path  # path of the (first) file
    folder: Directory | Zip | None = None  # folder with the files next to it
    is_parquet: bool = False
    # Original format of Parquet copies, such as "Excel" or "PostgreSQL".
    form: str = "Parquet"
    # All columns of a table, if the file has only the needed ones.
    columns: tuple[str, ...] = ()
    unit: str = "line"  # unit of text in messages
    parts: tuple[DataFile, ...] = ()
    on_rows: OnRows | None = None  # reports the progress of reading
    table: TableRows | None = None
    # Files of the same folder or zip without columns of users and items.
    left_out: str = ""

    @property
    def suffix(self) -> str:
        """Suffix of the name without compression: ".csv" for "ratings.csv.gz"."""
        return data_suffix(self.name)

    def check_text(self, head: bytes) -> None:
        """Check that a file with these first bytes is text.

        Raises
        ------
        DataError
            If the file is binary, or of a known unsupported format.
        """
        begin = head.lstrip()[:40].lower()
        for foreign_begin, description in _FOREIGN.items():
            if begin.startswith(foreign_begin):
                raise DataError(f"{self.name} is {description}")
        if b"\r" in head and b"\n" not in head:
            raise DataError(
                f"{self.name} ends its lines with carriage returns only; write them as newlines."
            )
        if b"\0" in head:
            raise DataError(
                f"{self.name} is a binary file (byte {head.index(0)} is zero); expected text "
                "(CSV, TSV, JSON lines, MovieLens, LightGCN) or Parquet, as it is or packed as gz, "
                "xz, zst or zip."
            )

    def at(self, number: int) -> Spot:
        """Return the place of a line or object, counted from 1."""
        return Spot((number,), f"{self.name}, {self.unit} {number}")

    def at_row(
        self,
        row: int,
        n_rows: int,
        records: Iterable[tuple[int, Any]],
        skip: int = 0,
    ) -> Spot:
        """Return the place of a row of text, whose records have line numbers.

        They are read only if there are blank lines, or records of several lines.
        """
        n_lines = 0
        last = b"\n"
        with self.path.open("rb") as stream:
            while block := stream.read(_BLOCK):
                n_lines += block.count(b"\n")
                last = block[-1:]
        if last != b"\n":
            n_lines += 1
        if skip + n_rows == n_lines:
            return self.at(skip + row + 1)
        return self.at(next(islice(records, row, None))[0])

    def lines(self, bad: BadRows = STRICT) -> Iterator[str]:
        """Yield the lines of a text file with their line ends.

        Raises
        ------
        DataError
            At the first byte that is not UTF-8, unless bad rows are left out.
        """
        offset = 0
        with self.path.open("rb") as stream:
            for number, raw in enumerate(stream, 1):
                try:
                    yield raw.decode("utf-8-sig" if number == 1 else "utf-8")
                except UnicodeDecodeError as error:
                    # Windows has letters, quotes and the euro where Latin-1 has none.
                    is_windows = re.search(rb"[\x80-\x9f]", raw) is not None
                    language = "Windows-1252" if is_windows else "Latin-1"
                    option = "cp1252" if is_windows else "latin-1"
                    bad.add(
                        self.at(number),
                        f"byte 0x{raw[error.start]:02x} (byte {offset + error.start} of "
                        f"the file) is not valid UTF-8; if the text is in {language}, add "
                        f"--encoding {option}.",
                    )
                    yield "\n"
                offset += len(raw)


class NoRowsError(DataError):
    """Error for a file without rows, which does not matter if others have rows."""


def is_address(text: str) -> bool:
    """Return whether a text is a URL, database table or pattern, not just a path."""
    return (
        isinstance(text, Location)
        or "://" in text
        or "::" in text
        or glob.has_magic(text)
    )


@contextmanager
def open_data(
    source: SourceLike,
    options: Mapping[str, Any] | None = None,
    *,
    guess: bool = False,
    pick: Pick | None = None,
    on_rows: OnRows | None = None,
    stream: bool = False,
) -> Iterator[DataFile]:
    """Open data from any source as one or several local files.

    Unpacked, decoded and downloaded copies, and the rows of databases and workbooks (as Parquet),
    are in a temporary directory that is removed at the end. Only the needed members of a zip are
    unpacked, under generated names.

    `source`, `on_rows` and the options "encoding", "table" and "query" are as in
    `recsys.read_ratings`; the other options are ignored. With `guess`, the
    encoding is detected: UTF-8 or UTF-16, else the given one, or Latin-1. `pick` chooses the
    columns to read from a database. With `stream`, tables of databases are yielded open instead of
    as files.

    Raises
    ------
    DataError
        If the file does not exist or cannot be read, unpacked or decoded, if a directory or zip has
        no unambiguous ratings file, or as `recsys.database.open_table`.
    """
    check_process()
    listed = [source] if isinstance(source, str | PathLike) else list(source)
    sources = [located(fspath(address)) for address in listed]
    if not sources:
        raise DataError("Name a file, a folder or a database to read.")
    with ExitStack() as stack:
        opener = _Opener(stack, options or {}, guess, pick, on_rows, stream)
        files = [file for address in sources for file in opener.files(address)]
        if (opener.table or opener.query) and not opener.has_tables:
            option = "--table" if opener.table else "--query"
            raise DataError(
                f"{option} applies to databases, and {files[0].name} is a file."
            )
        # What a link or a second pattern repeats is not read again.
        if len(files) == 1:
            aside = " (listed twice)" if opener.n_repeated else ""
            yield replace(files[0], name=f"{files[0].name}{aside}")
            return
        aside = ", some listed twice" if opener.n_repeated else ""
        name = sources[0]
        if len(sources) > 1:
            name = enumerated(sources, _LISTED)
        elif Path(name).is_dir():
            name = f"{Path(name).resolve().name}/"
        yield replace(
            files[0], name=f"{name} ({len(files):,} files{aside})", parts=tuple(files)
        )


@dataclass
class _Opener:
    """Settings and temporary files of one call of `open_data`."""

    stack: ExitStack
    options: Mapping[str, Any]
    guess: bool
    pick: Pick | None
    on_rows: OnRows | None
    stream: bool
    has_tables: bool = False
    n_repeated: int = 0
    opened: set[tuple[object, ...]] = field(default_factory=set)

    @property
    def table(self) -> str | None:
        """Table of a database, or sheet of a workbook."""
        return self.options.get("table")

    @property
    def query(self) -> str | None:
        """Query of a database."""
        return self.options.get("query")

    @cached_property
    def scratch(self) -> Scratch:
        """The temporary directory."""
        return Scratch(self.stack)

    def files(self, source: str) -> list[DataFile]:
        """Return the files of one source."""
        if source == "-":
            if self._is_repeated(source):
                return []
            return self._opened(
                self.scratch.copy(sys.stdin.buffer), "standard input", None
            )
        path = Path(source)
        is_odd = isinstance(source, Location) or ":/" in source or "::" in source
        if is_odd or path.suffix.lower() in SUFFIXES:
            if (address := parse_address(source, self.table, self.query)) is not None:
                return self._fetched(address)
            if _URL.match(whole(source)):
                files = list[DataFile]()
                for name, copy in download(source, self.scratch):
                    files += self._opened(copy, name, None)
                return files
            if isinstance(source, Location):
                raise DataError(
                    f"{source} is not an address that can be read; write postgresql://USER@HOST:"
                    "PORT/DATABASE, or https://HOST/PATH."
                )
            if (workbook := _WORKBOOK.fullmatch(source)) and not path.exists():
                sheet_path = Path(workbook["place"])
                return self._sheet(sheet_path, sheet_path.name, workbook["sheet"])
        if path.exists() or not glob.has_magic(source):
            return self._local(path, path.name or source)
        # Hidden files are not data, either.
        matches = (Path(entry) for entry in sorted(glob.glob(source, recursive=True)))  # noqa: PTH207
        paths = [entry for entry in matches if not entry.name.startswith(_NO_DATA)]
        if "**" in source:  # matches directories and also the files in them
            paths = [entry for entry in paths if entry.is_file()]
        if not paths:
            raise DataError(f"No file matches the pattern {source}.")
        files = list[DataFile]()
        for match in paths:
            files += self._local(match, str(match))
        return files

    def _local(self, path: Path, name: str) -> list[DataFile]:
        try:
            if path.is_dir():
                return self._in_directory(path)
            if path.is_file():
                return self._opened(path, name, Directory(path.parent))
            if not path.exists():
                raise DataError(nothing_at(path))
            # A pipe, as in <(command), can be read only once.
            with path.open("rb") as stream:
                return self._opened(self.scratch.copy(stream), name, None)
        except OSError as error:
            raise unreadable(error, name) from None

    def _in_directory(self, path: Path) -> list[DataFile]:
        """Return the files of ratings in a directory."""
        name = f"{path.resolve().name}/"
        for manifest, noun in _SAVED.items():
            file = path / manifest
            if file.is_file() and b'"recsys-' in head_of(file):
                raise DataError(f"{path} is {noun}; a file of ratings is needed here.")
        for marker, noun in _TABLE_FORMATS.items():
            if any(path.glob(marker)):
                raise DataError(
                    f"{name} is {noun}, whose current rows only programs that support "
                    "it can determine; write them as Parquet, such as with DuckDB."
                )
        folder = Directory(path)
        names = folder.names()
        suffixes = {*_TABLE_SUFFIXES, ".txt"}
        if suffixes.isdisjoint(map(data_suffix, names)):
            names = folder.names(below=True) or names
        return self._members(folder, names, name, name)

    def _members(
        self,
        folder: Directory | Zip,
        names: list[str],
        where: str,
        prefix: str,
    ) -> list[DataFile]:
        """Return the files of ratings in a directory or zip."""
        members = list[DataFile]()
        for name in _candidates(names, where):
            neighbours = folder.next_to(name) if isinstance(folder, Zip) else folder
            members += self._opened(folder.fetch(name), prefix + name, neighbours)
        if len(members) > 1 and self.pick is not None:
            members = _with_ratings(members, self.pick, prefix)
        if len(members) > 1 and not _are_parts(members):
            short_names = [member.name.removeprefix(prefix) for member in members]
            raise DataError(
                f"{where} holds several files that may be the ratings "
                f"({enumerated(short_names, _LISTED)}); name the one to read."
            )
        return members

    def _opened(
        self,
        path: Path,
        name: str,
        folder: Directory | Zip | None,
    ) -> list[DataFile]:
        """Return a local file after unpacking it, or the members of a zip.

        There is none if the file was opened before, under any name.
        """
        if isinstance(folder, Directory):
            status = path.stat()
            if self._is_repeated(status.st_dev, status.st_ino):
                return []
        head = head_of(path)
        if MAGIC.match(head) and isinstance(folder, Directory):
            address = parse_address(str(path), self.table, self.query)
            return self._fetched(address) if address else []
        if head.startswith(PACKED):
            path = unpacked(path, name, self.scratch)
            head = head_of(path)
        if head.startswith(ZIP):
            archive = Zip(path, name, self.scratch)
            if WORKBOOK in archive.names():
                return self._sheet(path, name, self.table)
            if {"shape.npy", "format.npy"} <= {*archive.names()}:
                return [self._rewritten(path, name, "SciPy matrix")]
            return self._members(
                archive, archive.names(), name, f"{name.removesuffix('.zip')}/"
            )
        if head.startswith(_OLD_EXCEL):
            return self._sheet(path, name, self.table)
        for beginning, form in CONVERTED.items():
            if head.startswith(beginning):
                return [self._rewritten(path, name, form)]
        data = DataFile(name, path, folder, on_rows=self.on_rows)
        if head.startswith(b"PAR1"):
            return [replace(data, is_parquet=True)]
        if head and data.suffix == ".parquet":
            raise DataError(
                f"{name} is not a Parquet file, or damaged: it does not begin with PAR1."
            )
        encoding = self.options.get("encoding")
        if head.startswith(_UTF_16):
            encoding = "utf-16"
        elif self.guess:
            try:
                path.read_bytes().decode()
                encoding = None
            except UnicodeDecodeError:
                encoding = encoding or "latin-1"  # as in older MovieLens datasets
        if encoding is not None:
            data = replace(data, path=self.scratch.decoded(path, name, encoding))
            head = head_of(data.path)
        if _JSON_ARRAY.match(head):
            target = self.scratch.new()
            write_lines(data.path, name, target)
            data = replace(data, path=target, unit="object")
        return [data]

    def _rewritten(
        self,
        path: Path,
        name: str,
        form: str,
    ) -> DataFile:
        """Return the rows of an Arrow file, or entries of a matrix, as Parquet."""
        target = self.scratch.new()
        write_rows(path, name, form, target)
        return DataFile(name, target, is_parquet=True, form=form, on_rows=self.on_rows)

    def _is_repeated(self, *key: object) -> bool:
        """Return whether a file or a table was opened before, under any name."""
        is_repeated = key in self.opened
        self.opened.add(key)
        self.n_repeated += is_repeated
        return is_repeated

    def _fetched(self, address: Address) -> list[DataFile]:
        """Return the open table, or its rows as a Parquet file; none if it was opened before."""
        self.has_tables = True
        with ExitStack() as stack:
            table = stack.enter_context(open_table(address, self.pick))
            name, form = str(table.address), NAMES[address.kind]
            place = address.place
            if address.path.exists():
                place = realpath(place)
            if self._is_repeated(place, table.address.table, table.address.query):
                return []
            if self.stream:
                self.stack.enter_context(stack.pop_all())
                data = DataFile(
                    name, Path(), form=form, columns=table.names, table=table
                )
                return [replace(data, on_rows=self.on_rows)]
            target = self.scratch.new()
            table.write(target, self.on_rows)
            data = DataFile(
                name, target, is_parquet=True, form=form, columns=table.names
            )
            return [data]

    def _sheet(
        self,
        path: Path,
        name: str,
        sheet: str | None,
    ) -> list[DataFile]:
        """Return the rows of a sheet of a workbook as a Parquet file."""
        self.has_tables = True
        target = self.scratch.new()
        sheet = write_sheet(path, name, sheet, target)
        if self._is_repeated(realpath(path), sheet):
            return []
        data = DataFile(f"{name}::{sheet}", target, is_parquet=True, form="Excel")
        return [data]


def _with_ratings(
    members: list[DataFile],
    pick: Pick,
    prefix: str,
) -> list[DataFile]:
    """Leave out files without columns of users and items, if others have them."""
    has_ratings = [_has_ratings(member.path, pick) for member in members]
    if not any(has_ratings):
        return members
    selected = []
    left_out = []
    for member, has_columns in zip(members, has_ratings, strict=True):
        if has_columns is False:
            left_out.append(member.name.removeprefix(prefix))
        else:
            selected.append(member)
    selected[0] = replace(selected[0], left_out=enumerated(left_out, _LISTED))
    return selected


def head_of(path: Path, size: int = 1 << 12) -> bytes:
    """Return the first bytes of a file."""
    with path.open("rb") as stream:
        return stream.read(size)


def _candidates(names: list[str], where: str) -> list[str]:
    """Return the files of a directory or zip whose names suggest ratings."""
    if any(re.search(r"(^|/)arrays/\w+\.npy$", name) for name in names):
        raise DataError(f"{where} has the arrays of a saved model, but no model.json.")
    names = [name for name in names if not plain_name(name).startswith(_NO_DATA)]
    table_names = {
        *_NOT_RATINGS,
        *table_files(names, "item"),
        *table_files(names, "user"),
    }
    tables = [
        n for n in names if plain_name(n) not in table_names and n not in table_names
    ] or names
    data_tables = [n for n in tables if "readme" not in plain_name(n)]
    by_claim = [
        [n for n in names if n.count("/") == depth and plain_name(n) == usual]
        for depth in sorted({name.count("/") for name in names})
        for usual in _RATING_FILES
    ]
    by_claim.append([n for n in data_tables if "rating" in plain_name(n)])
    by_claim.append([n for n in tables if data_suffix(n) in _TABLE_SUFFIXES])
    by_claim.append([n for n in data_tables if data_suffix(n) == ".txt"])
    candidates = next(filter(None, by_claim), [])
    if not candidates:
        held = f"it holds {enumerated(names, _LISTED)}" if names else "it is empty"
        raise DataError(
            f"{where} holds no ratings file, such as ratings.csv, ratings.dat or u.data; {held}."
        )
    return candidates


def _are_parts(files: Sequence[DataFile]) -> bool:
    """Return whether files are parts of one table, by the names of their columns.

    Later parts may have a few more columns. Text without a header is compared by the number of
    fields. The files of a split are not parts.
    """
    names = [plain_name(file.name) for file in files]
    is_split = any(_OF_A_SPLIT.search(PurePosixPath(name).stem) for name in names)
    if is_split or len(set(map(data_suffix, names))) > 1:
        return False
    heads = set()
    for file in files:
        fields = _first_fields(file.path)
        if fields[:1] == [_OBJECT]:
            fields = [_OBJECT]
        elif any(map(_NUMBER.fullmatch, fields)):
            fields = [str(len(fields))]
        if fields:
            heads.add(frozenset(fields))
    return all(min(heads, key=len, default=frozenset()) <= head for head in heads)


def _has_ratings(path: Path, pick: Pick) -> bool | None:
    """Return whether a file has columns of users and items; None without header."""
    fields = _first_fields(path)
    is_one = len(fields) < 2 and not "".join(fields).endswith(":")
    if is_one or any(map(_NUMBER.fullmatch, fields)):
        return None
    try:
        return bool(pick(fields, path.name))
    except DataError:
        return False


def _first_fields(path: Path) -> list[str]:
    """Return the fields of the first line, or a mark and the keys of a JSON object."""
    with path.open("rb") as stream:
        if stream.read(4) == b"PAR1":
            with suppress(pl.exceptions.PolarsError):  # damaged files raise later
                return list(pl.read_parquet_schema(path))
            return []
        stream.seek(0)
        first, second = (
            stream.readline(_LINE).decode("utf-8-sig", errors="replace").strip()
            for _ in range(2)
        )
    if first.startswith(("{", "[")):
        try:
            return [_OBJECT, *json.loads(first)]
        except (ValueError, TypeError, RecursionError):
            return [_OBJECT]
    if first.endswith(":") and _OF_NETFLIX.fullmatch(second):
        return ["user", "item", "rating", "timestamp"]
    return (
        [field.strip().strip('"') for field in re.split(r"[,;\t|]|::", first)]
        if first
        else []
    )


def table_files(names: list[str], kind: str) -> list[str]:
    """Return the files that may be a table of the kind "item" or "user", best first."""
    suffixes = [*_TABLE_SUFFIXES, f".{kind}"]
    usual_stems = _TABLES[kind].split()
    ranked = []
    for name in names:
        stem, dot, end = (
            plain_name(name).removeprefix("bx-").removeprefix("bx_").partition(".")
        )
        stems = [stem] if end == kind else usual_stems
        if stem in stems and dot + end in suffixes:
            ranked.append((stems.index(stem), suffixes.index(dot + end), name))
    return [name for _, _, name in sorted(ranked)]


def data_suffix(name: str) -> str:
    """Return the suffix of a file name in lower case, but not of a compression."""
    return PurePosixPath(plain_name(name)).suffix


def plain_name(name: str) -> str:
    """Return a file name in lower case, without folders and suffixes of compression."""
    lower_name = name.rpartition("/")[2].lower()
    for packer in _PACKERS:
        lower_name = lower_name.removesuffix(packer)
    return lower_name
