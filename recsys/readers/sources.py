"""Sources: where data are, and the files in which they are read; the sample data."""

from __future__ import annotations

import codecs
import csv
import glob
import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from os import PathLike, fspath
from pathlib import Path
from typing import Any, TypeAlias

from recsys.data.ids import Spot
from recsys.data.rows import BadRows
from recsys.database import (
    MAGIC,
    NAMES,
    SUFFIXES,
    Address,
    OnRows,
    Pick,
    TableRows,
    fetch,
    open_table,
    parse_address,
)
from recsys.errors import DataError
from recsys.messages import enumerated, nothing_at, redacted
from recsys.readers.copies import (
    PACKED,
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
from recsys.readers.members import (
    LISTED,
    TABLE_SUFFIXES,
    are_parts,
    candidates,
    data_suffix,
    has_ratings,
)

csv.field_size_limit(2**31 - 1)  # a review in a table may be longer than 128 kB

SourceLike: TypeAlias = "str | PathLike[str] | Sequence[str | PathLike[str]]"
"""Where data are: a path, URL, pattern or database, or several of them."""

_SAMPLE = ("ratings.csv", "items.csv")

_HEAD = 1 << 12
_URL = re.compile(r"[a-z][a-z0-9+.-]*://", re.IGNORECASE)
_JSON_ARRAY = re.compile(rb"(\xef\xbb\xbf)?\s*\[\s*(\{|$)")
_WORKBOOK = re.compile(r"(?i)(?P<place>.+\.(?:xlsx|xlsm|xlsb|xls|ods))::(?P<sheet>[^/]+)")
_UTF_16 = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
_WEB_PAGE = "a web page, perhaps in place of the file that was to be downloaded."
_AS_PARQUET = "write it as Parquet, which most programs that read it can do."
_DUMP = "a dump of a database; restore it, and name the database, or write the table as CSV."
_FOREIGN = {
    b"SQLite format 3\0": "an SQLite database in an archive or a folder; name the file itself.",
    b"<!doctype html": _WEB_PAGE,
    b"<html": _WEB_PAGE,
    b"version https://git-lfs": "a pointer of Git LFS; `git lfs pull` gets the file itself.",
    b"Obj\x01": f"an Avro file; {_AS_PARQUET}",
    b"ORC": f"an ORC file; {_AS_PARQUET}",
    b"\x80\x04\x95": "a pickle of Python, which is never loaded; write its table as Parquet.",
    b"\x93NUMPY": "an array of NumPy; write users, items and ratings as columns of a table.",
    b"PGDMP": _DUMP,
    b"INSERT INTO": _DUMP,
    b"-- MySQL dump": _DUMP,
    b"--\n-- PostgreSQL": _DUMP,
}
_TABLE_FORMATS = {
    "_delta_log": "a Delta Lake table",
    "metadata/*.metadata.json": "an Iceberg table",
    ".hoodie": "a Hudi table",
}
_OLD_EXCEL = b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1"


@dataclass(frozen=True, slots=True)
class Directory:
    """The files of a directory, hidden ones left out."""

    path: Path

    def names(self, *, below: bool = False) -> list[str]:
        """Return the names of the files in the directory itself, or of those below it as well."""
        paths = self.path.rglob("*") if below else self.path.iterdir()
        inside = ((each, each.relative_to(self.path)) for each in paths)
        return sorted(
            name.as_posix()
            for each, name in inside
            if each.is_file() and not any(part.startswith(".") for part in name.parts)
        )

    def fetch(self, name: str) -> Path:
        """Return the path of a file."""
        return self.path / name


@dataclass(frozen=True, slots=True)
class DataFile:
    """A plain local file with data, unpacked and in UTF-8; or several, its `parts`.

    Attributes
    ----------
    name : str
        Name for messages.
    path : Path
        Of the first file, where there are several.
    suffix : str
        Without that of a packer: ".csv" for "ratings.csv.gz".
    folder : Directory, Zip or None
        The files next to it; None for standard input.
    form : str
        What a Parquet file was, such as "Excel" or "PostgreSQL".
    columns : tuple of str
        All columns of a table of which the file has only those that are needed.
    unit : str
        What lines of text are called in messages.
    parts : tuple of DataFile
        Files with the rows of one table; empty for a single file.
    on_rows : callable, optional
        Reports the progress of reading.
    table : TableRows or None
        An open table of a database: then there is no file.
    left_out : str
        Files of the same folder or zip that have no columns of users and items.
    """

    name: str
    path: Path
    suffix: str = ""
    folder: Directory | Zip | None = None
    form: str = "Parquet"
    columns: tuple[str, ...] = ()
    unit: str = "line"
    parts: tuple[DataFile, ...] = ()
    on_rows: OnRows | None = None
    table: TableRows | None = None
    left_out: str = ""

    @property
    def is_parquet(self) -> bool:
        """True if it begins as a Parquet file does.

        Raises
        ------
        DataError
            If only its name is that of one.
        """
        head = _head(self.path)
        if head.startswith(b"PAR1"):
            return True
        if self.suffix == ".parquet" and head:
            raise DataError(
                f"{self.name} is not a Parquet file, or damaged: it does not begin with PAR1."
            )
        return False

    def check_text(self, head: bytes) -> None:
        """Check that a file that begins like this is a text.

        Raises
        ------
        DataError
            If it is binary, or of a known foreign format.
        """
        for beginning, description in _FOREIGN.items():
            if head.lstrip()[:40].lower().startswith(beginning.lower()):
                raise DataError(f"{self.name} is {description}")
        if b"\r" in head and b"\n" not in head:
            raise DataError(
                f"{self.name} ends its lines with carriage returns alone; write them as newlines."
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

    def lines(self, bad: BadRows | None = None) -> Iterator[str]:
        """Yield the lines of a text, with their ends.

        Raises
        ------
        DataError
            At the first byte that is not UTF-8, unless bad rows are left out.
        """
        bad, offset = BadRows() if bad is None else bad, 0
        with self.path.open("rb") as stream:
            for number, raw in enumerate(stream, 1):
                try:
                    yield raw.decode("utf-8-sig" if number == 1 else "utf-8")
                except UnicodeDecodeError as error:
                    bad.add(
                        self.at(number),
                        f"byte 0x{raw[error.start]:02x} (byte {offset + error.start} of the file) "
                        "is not valid UTF-8; if the text is in Latin-1, say --encoding latin-1.",
                    )
                    yield "\n"
                offset += len(raw)


class NoRowsError(DataError):
    """A file that is empty, or has a header alone: an error unless others have the rows."""


def sample_path() -> Path:
    """Find the directory of the embedded sample data.

    It has ``ratings.csv`` (userId, itemId, rating, timestamp) and ``items.csv`` (itemId, title,
    year, genres, description); its ``README.md`` describes how the ratings were made. An installed
    package has it in ``recsys/sample/data``, a source checkout next to the package.

    Raises
    ------
    DataError
        If the files are in neither place.

    Examples
    --------
    >>> (sample_path() / "ratings.csv").is_file()
    True
    """
    # Not importlib.resources: for an editable install it answers with a path of the build backend
    # that is not a directory.
    package = Path(__file__).resolve().parents[1]
    places = package / "sample" / "data", package.parent / "data"
    for place in places:
        if all((place / name).is_file() for name in _SAMPLE):
            return place
    raise DataError(
        f"The sample data ({' and '.join(_SAMPLE)}) are neither in {places[0]} nor in {places[1]}; "
        "reinstall lowrank-recsys to get them."
    )


def is_address(text: str) -> bool:
    """Return whether a text names data that are not just a local path: a URL, table or pattern."""
    return "://" in text or "::" in text or glob.has_magic(text)


@contextmanager
def open_data(
    source: SourceLike,
    encoding: str | None = None,
    *,
    guess: bool = False,
    table: str | None = None,
    query: str | None = None,
    pick: Pick | None = None,
    on_rows: OnRows | None = None,
    stream: bool = False,
) -> Iterator[DataFile]:
    """Open data, wherever they are, as one or several local files.

    Unpacked, decoded and downloaded copies, and the rows of databases and workbooks (as Parquet),
    are in a temporary directory that is removed at the end. Of a zip only the members that are read
    are unpacked, under names of our own.

    Parameters
    ----------
    source : path, or sequence of paths
        A file; a directory or zip that holds one, or several of one layout; a pattern such as
        ``events/*.csv``; a URL; a database (see `recsys.database.parse_address`); a workbook, with
        ``::SHEET`` or not; ``-`` for standard input; or several of these.
    encoding : str, optional
        Encoding of text; UTF-8 if not given.
    guess : bool
        Tell the encoding by the text: UTF-8 or UTF-16, else the one given, or Latin-1.
    table, query : str, optional
        Table (or sheet) to read of a database (or workbook), or a query in SQL.
    pick : callable, optional
        Chooses the columns that are read from a database; all, if not given.
    on_rows : callable, optional
        Reports the progress of reading: rows, and those expected (None if unknown).
    stream : bool
        Give tables of databases open, not as files.

    Raises
    ------
    DataError
        If there is no such file, it cannot be read, unpacked or decoded, a directory or zip holds
        no ratings file that can be told from the others, or as `recsys.database.fetch`.
    """
    sources = [source] if isinstance(source, str | PathLike) else list(source)
    if not sources:
        raise DataError("Name a file, a folder or a database to read.")
    with ExitStack() as stack:
        opener = _Opener(stack, encoding, guess, table, query, pick, on_rows, stream)
        files = [each for given in sources for each in opener.files(fspath(given))]
        if (table or query) and not opener.has_tables:
            option = "--table" if table else "--query"
            raise DataError(f"{option} applies to databases, and {files[0].name} is a file.")
        if len(files) == 1:
            yield files[0]
            return
        name = redacted(fspath(sources[0]))
        if len(sources) > 1:
            name = enumerated(sources, LISTED, lambda each: redacted(fspath(each)))
        elif Path(name).is_dir():
            name = f"{Path(name).resolve().name}/"
        yield replace(files[0], name=f"{name} ({len(files):,} files)", parts=tuple(files))


@dataclass
class _Opener:
    """Settings and temporary files of one call."""

    stack: ExitStack
    encoding: str | None
    guess: bool
    table: str | None
    query: str | None
    pick: Pick | None
    on_rows: OnRows | None
    stream: bool
    has_tables: bool = False

    @cached_property
    def scratch(self) -> Scratch:
        """The temporary directory."""
        return Scratch(self.stack)

    def files(self, source: str) -> list[DataFile]:
        """Return the files of one source."""
        if source == "-":
            return self._opened(self.scratch.copy(sys.stdin.buffer), "standard input", None)
        path = Path(source)
        is_odd = ":/" in source or "::" in source
        if is_odd or path.suffix.lower() in SUFFIXES:
            if (address := parse_address(source, self.table, self.query)) is not None:
                return [self._fetched(address)]
            if _URL.match(source):
                files = download(source, self.scratch)
                return [each for name, copy in files for each in self._opened(copy, name, None)]
            if (workbook := _WORKBOOK.fullmatch(source)) and not path.exists():
                place = Path(workbook["place"])
                return [self._sheet(place, place.name, workbook["sheet"])]
        if path.exists() or not glob.has_magic(source):
            return self._local(path, path.name or source)
        # Hidden files, and marks such as Spark's _SUCCESS, are not data.
        found = (Path(each) for each in sorted(glob.glob(source, recursive=True)))  # noqa: PTH207
        paths = [each for each in found if not each.name.startswith("_")]
        if "**" in source:  # matches directories as well as the files in them
            paths = [each for each in paths if each.is_file()]
        if not paths:
            raise DataError(f"No file matches the pattern {source}.")
        return [each for match in paths for each in self._local(match, str(match))]

    def _local(self, path: Path, name: str) -> list[DataFile]:
        try:
            if path.is_dir():
                folder, name = Directory(path), f"{path.resolve().name}/"
                for marker, noun in _TABLE_FORMATS.items():
                    if any(path.glob(marker)):
                        raise DataError(
                            f"{name} is {noun}, and only programs that know of it can tell which "
                            "of its rows count; write them as Parquet, such as with DuckDB."
                        )
                names = folder.names()
                if not any(data_suffix(each) in (*TABLE_SUFFIXES, ".txt") for each in names):
                    names = folder.names(below=True) or names
                return self._members(folder, names, name, name)
            if path.is_file():
                return self._opened(path, name, Directory(path.parent))
            if not path.exists():
                raise DataError(nothing_at(path))
            with path.open("rb") as stream:  # a pipe, as in <(command): it can be read only once
                return self._opened(self.scratch.copy(stream), name, None)
        except OSError as error:
            raise unreadable(error, name) from None

    def _members(
        self, folder: Directory | Zip, names: list[str], place: str, prefix: str
    ) -> list[DataFile]:
        """Return the files of ratings in a directory or zip."""
        chosen, found = candidates(names, place), list[DataFile]()
        for name in chosen:
            near = folder.next_to(name) if isinstance(folder, Zip) else folder
            found += self._opened(folder.fetch(name), prefix + name, near)
        if len(found) > 1 and (pick := self.pick) is not None:
            judged = {each.name: has_ratings(each.path, pick) for each in found}
            if any(judged.values()):
                others = [name.removeprefix(prefix) for name in judged if judged[name] is False]
                found = [each for each in found if judged[each.name] is not False]
                found[0] = replace(found[0], left_out=enumerated(others, LISTED))
        if len(found) > 1 and not are_parts({each.name: each.path for each in found}):
            listed = enumerated([each.name.removeprefix(prefix) for each in found], LISTED)
            raise DataError(
                f"{place} holds several files that may be the ratings ({listed}); name the one to "
                "read."
            )
        return found

    def _opened(self, path: Path, name: str, folder: Directory | Zip | None) -> list[DataFile]:
        """Return a local file without its packing, or the members of a zip."""
        head = _head(path)
        if MAGIC.match(head) and isinstance(folder, Directory):
            address = parse_address(str(path), self.table, self.query)
            return [self._fetched(address)] if address else []
        if head.startswith(PACKED):
            path = unpacked(path, name, self.scratch)
            head = _head(path)
        if head.startswith(ZIP):
            archive = Zip(path, name, self.scratch)
            if "xl/workbook.xml" in archive.names():
                return [self._sheet(path, name, self.table)]
            if {"shape.npy", "format.npy"} <= {*archive.names()}:
                return [self._rewritten(path, name, "SciPy matrix")]
            return self._members(archive, archive.names(), name, f"{name.removesuffix('.zip')}/")
        if head.startswith(_OLD_EXCEL):
            return [self._sheet(path, name, self.table)]
        for beginning, form in ((b"%%MatrixMarket", "Matrix Market"), (b"ARROW1", "Arrow")):
            if head.startswith(beginning):
                return [self._rewritten(path, name, form)]
        data = DataFile(name, path, data_suffix(name), folder, on_rows=self.on_rows)
        if data.is_parquet:
            return [data]
        encoding = "utf-16" if head.startswith(_UTF_16) else self.encoding
        if self.guess and encoding != "utf-16":
            encoding = _encoding(path, encoding)
        if encoding is not None:
            data = replace(data, path=self.scratch.decoded(path, name, encoding))
            head = _head(data.path)
        if _JSON_ARRAY.match(head):
            target = self.scratch.new()
            write_lines(data.path, name, target)
            data = replace(data, path=target, suffix=".jsonl", unit="object")
        return [data]

    def _rewritten(self, path: Path, name: str, form: str) -> DataFile:
        """Return the rows of an Arrow file, or the entries of a sparse matrix, as a file."""
        target = self.scratch.new()
        write_rows(path, name, form, target)
        return DataFile(name, target, folder=None, form=form, on_rows=self.on_rows)

    def _fetched(self, address: Address) -> DataFile:
        """Return the rows of a table as a file, or the open table."""
        self.has_tables = True
        if self.stream:
            found, form = (
                self.stack.enter_context(open_table(address, self.pick)),
                NAMES[address.kind],
            )
            about: dict[str, Any] = {"form": form, "columns": found.names, "on_rows": self.on_rows}
            return DataFile(str(found.address), Path(), table=found, **about)
        target = self.scratch.new()
        address, columns = fetch(address, target, self.pick, self.on_rows)
        return DataFile(str(address), target, form=NAMES[address.kind], columns=columns)

    def _sheet(self, path: Path, name: str, sheet: str | None) -> DataFile:
        """Return the rows of a workbook's sheet as a file."""
        self.has_tables = True
        target = self.scratch.new()
        sheet = write_sheet(path, name, sheet, target)
        return DataFile(f"{name}::{sheet}", target, folder=None, form="Excel")


def _head(path: Path) -> bytes:
    with path.open("rb") as stream:
        return stream.read(_HEAD)


def _encoding(path: Path, otherwise: str | None) -> str | None:
    """Return the encoding of a text that is not in UTF-8: `otherwise`, or Latin-1."""
    try:
        path.read_bytes().decode()
    except UnicodeDecodeError:
        return otherwise or "latin-1"  # as the older MovieLens sets
    return None
