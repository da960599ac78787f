"""Plain local copies of files that are packed, remote, workbooks or JSON arrays."""

from __future__ import annotations

import bz2
import codecs
import glob
import gzip
import logging
import lzma
import os
import re
import shutil
import socket
import sys
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import cached_property
from importlib import import_module
from io import TextIOWrapper
from pathlib import Path
from typing import IO, Any

import msgspec
import numpy as np
import polars as pl

from recsys.addresses import located, whole
from recsys.errors import DataError
from recsys.messages import close_matches, missing_extra
from recsys.saving.atomic import scratch_directory

_BLOCK = 1 << 20
_LAYERS = 3  # maximum depth of nested packing, such as a gz in a zip
_PACKERS: dict[bytes, Any] = {b"\x1f\x8b": gzip, b"\xfd7zXZ\0": lzma, b"BZh": bz2}
_ZSTD = b"\x28\xb5\x2f\xfd"
PACKED = (*_PACKERS, _ZSTD)
"""First bytes of gz, xz, bz2 and zst files."""
ZIP = (b"PK\x03\x04", b"PK\x05\x06")
"""First bytes of zip files, including workbooks and other documents."""
WORKBOOK = "xl/workbook.xml"
"""Name of a file in the archive that a workbook of Excel is."""

CONVERTED = {b"%%MatrixMarket": "Matrix Market", b"ARROW1": "Arrow"}
"""Formats that `write_rows` converts to Parquet, by the first bytes of their files."""

_DAMAGES = (gzip.BadGzipFile, EOFError, zlib.error, zipfile.BadZipFile, lzma.LZMAError)
_TITLES = 10  # maximum number of rows above the header of a sheet
_ONE_LINE = bytes.maketrans(b"\r\n", b"  ")
_PATIENCE = 10  # seconds to wait for a server, and for the next bytes from it
_PACKAGES = {
    "s3": "s3fs",
    "gs": "gcsfs",
    "gcs": "gcsfs",
    "abfs": "adlfs",
    "az": "adlfs",
}
_DATABASES = re.compile("mysql|mariadb|mssql|oracle|mongodb|redis|snowflake|bigquery")


class Scratch:
    """Temporary directory with numbered files, so that no foreign names are used."""

    def __init__(self, stack: ExitStack) -> None:
        self._stack, self._count = stack, 0

    @cached_property
    def _root(self) -> Path:  # created on demand: the disk may be full
        return self._stack.enter_context(scratch_directory())

    def new(self) -> Path:
        """Return the path of a file that does not exist yet."""
        self._count += 1
        return self._root / str(self._count)

    def copy(self, source: IO[bytes]) -> Path:
        """Copy a stream to a new file."""
        target = self.new()
        with target.open("wb") as sink:
            shutil.copyfileobj(source, sink, _BLOCK)
        return target

    def decoded(
        self,
        path: Path,
        name: str,
        encoding: str,
    ) -> Path:
        """Return the path of a copy in UTF-8 of a text file in another encoding.

        Raises
        ------
        DataError
            If the encoding does not exist, or the file is in another one.
        """
        target = self.new()
        with (
            path.open("rb") as raw,
            target.open("w", encoding="utf-8", newline="") as sink,
        ):
            try:
                source = TextIOWrapper(raw, encoding, newline="")
                shutil.copyfileobj(source, sink, _BLOCK)
            except LookupError:
                raise DataError(
                    f"There is no encoding {encoding!r}; usual ones are utf-8, latin-1 and utf-16."
                ) from None
            except UnicodeError as error:
                reason = str(error)  # such as UTF-16 without its mark
                if isinstance(error, UnicodeDecodeError):
                    # Python counts from the beginning of what it read last.
                    place = raw.tell() - len(error.object) + error.start
                    reason = f"{error.reason} near byte {place}"
                raise DataError(
                    f"{name} is not in the encoding {encoding}: {reason}."
                ) from None
        return target


class Zip:
    """Files of a zip, or of one folder in it, unpacked on demand."""

    def __init__(
        self,
        path: Path,
        name: str,
        scratch: Scratch,
        prefix: str = "",
    ) -> None:
        self._path = path
        self._name = name
        self._scratch = scratch
        self._prefix = prefix
        with readable(name), zipfile.ZipFile(path) as archive:
            members = [
                info.filename for info in archive.infolist() if not info.is_dir()
            ]
        inside = [
            name.removeprefix(prefix) for name in members if name.startswith(prefix)
        ]
        self._names = sorted(
            name
            for name in inside
            if not name.startswith(("__MACOSX/", ".")) and "/." not in name
        )
        if members and not self._names:
            raise DataError(
                f"All entries of {name} are outside of its folder (..) or hidden; pack the "
                "files themselves."
            )

    def names(self) -> list[str]:
        """Return the names of the files."""
        return self._names

    def fetch(self, name: str) -> Path:
        """Return the path of a copy of a file."""
        with (
            readable(f"{self._name}/{name}"),
            zipfile.ZipFile(self._path) as archive,
            archive.open(self._prefix + name) as source,
        ):
            return self._scratch.copy(source)

    def next_to(self, name: str) -> Zip:
        """Return the folder that contains a file."""
        prefix = self._prefix + name[: name.rfind("/") + 1]
        return Zip(self._path, self._name, self._scratch, prefix)


def unpacked(
    path: Path,
    name: str,
    scratch: Scratch,
) -> Path:
    """Unpack gz, xz, bz2 and zst, and return the path; a zip stays as it is.

    Raises
    ------
    DataError
        If the file is damaged, or packed too many times.
    """
    for _ in range(_LAYERS):
        with path.open("rb") as stream:
            head = stream.read(8)
        magic = next((prefix for prefix in PACKED if head.startswith(prefix)), None)
        if magic is None:
            return path
        opener = _PACKERS.get(magic) or _zstd()
        with readable(name), opener.open(path, "rb") as stream:
            path = scratch.copy(stream)
    raise DataError(f"{name} is packed more than {_LAYERS - 1} times; unpack it first.")


def _zstd() -> Any:
    """Return the zstd module of Python 3.14, or its backport."""
    return import_module(
        "compression.zstd" if sys.version_info >= (3, 14) else "backports.zstd"
    )


@contextmanager
def readable(name: str) -> Iterator[None]:
    """Convert errors of reading and unpacking a file to one sentence.

    Raises
    ------
    DataError
        If the file is damaged, or cannot be read or unpacked.
    """
    try:
        yield
    except (*_DAMAGES, OSError, RuntimeError, _zstd().ZstdError) as error:
        raise unreadable(error, name) from None


def unreadable(error: Exception, name: str) -> DataError:
    """Return the error for a file that cannot be read or unpacked."""
    problem = "is damaged"
    if isinstance(error, OSError) and not isinstance(error, gzip.BadGzipFile):
        problem = "cannot be read"
    elif isinstance(
        error, RuntimeError
    ):  # from zipfile: a password, or an unknown method
        problem = "cannot be unpacked"
    text = (isinstance(error, OSError) and error.strerror) or str(error)
    return DataError(f"{name} {problem}: {(text[:1].lower() + text[1:]).rstrip('.')}.")


def write_sheet(
    path: Path,
    name: str,
    sheet: str | None,
    target: Path,
) -> str:
    """Write the rows of a sheet to a Parquet file, and return the sheet's name.

    Raises
    ------
    DataError
        If fastexcel is not installed, the workbook is damaged, the sheet does not exist, or several
        sheets have rows and none is named.
    """
    try:
        fastexcel: Any = import_module("fastexcel")
    except ImportError:
        needed = missing_extra("fastexcel", "excel")
        raise DataError(f"{name} is a workbook; reading it {needed}") from None
    try:
        logging.getLogger("fastexcel").setLevel(logging.ERROR)  # not of empty columns
        book = fastexcel.read_excel(path)
        names = list(book.sheet_names)
        filled = [cell for cell in names if book.load_sheet(cell, n_rows=1).height]
    except fastexcel.FastExcelError as error:
        reason = str(error).partition("\n")[0].rstrip(".")
        raise DataError(f"{name} is a damaged workbook: {reason}.") from None
    if sheet is not None and sheet not in names:
        close = close_matches(sheet, names, 1)
        hint = f"did you mean {close[0]}?" if close else f"it has {', '.join(names)}."
        raise DataError(f"{name} has no sheet {sheet!r}; {hint}")
    if sheet is None and len(filled) > 1:
        raise DataError(
            f"{name} holds the sheets {', '.join(filled)}; name one: {name}::{filled[0]}, or "
            f"--table {filled[0]}."
        )
    chosen = sheet or (filled or names)[0]
    top = book.load_sheet(
        chosen, header_row=None, n_rows=_TITLES, dtypes="string"
    ).to_polars()
    filled = [sum(cell is not None for cell in row) for row in top.rows()]
    header = next((row for row, n in enumerate(filled) if n > 1), 0)  # skips a title
    frame: pl.DataFrame = book.load_sheet(chosen, header_row=header).to_polars()
    frame = frame.filter(~pl.all_horizontal(pl.all().is_null()))
    if frame.is_empty():
        raise DataError(f"{name}::{chosen} has no rows.")
    frame.write_parquet(target, compression="uncompressed")
    return chosen


def write_rows(
    path: Path,
    name: str,
    form: str,
    target: Path,
) -> None:
    """Convert an Arrow file, or the entries of a sparse matrix, to a Parquet file.

    Rows of a matrix become users and columns items. Their numbers start as in the file: from 1 in
    Matrix Market, from 0 in SciPy's format. Repeated entries are added, as in SciPy.

    Raises
    ------
    DataError
        If the file is damaged.
    """
    try:
        if form == "Arrow":
            pl.scan_ipc(path).sink_parquet(target, compression="uncompressed")
            return
        from scipy import io, sparse

        matrix: Any
        if form == "Matrix Market":
            matrix = io.mmread(path, spmatrix=False)
            first = 1
        else:
            matrix = sparse.load_npz(path)
            first = 0
        matrix = sparse.coo_array(matrix)
        if matrix.dtype.kind in "iu":
            matrix = matrix.astype(np.int64)  # which holds sums of repeated entries
        matrix.sum_duplicates()
        users, items = (
            np.asarray(coordinates, np.int64) + first for coordinates in matrix.coords
        )
        frame = pl.DataFrame({"user": users, "item": items, "rating": matrix.data})
        frame.write_parquet(target, compression="uncompressed")
    except (
        OSError,
        ValueError,
        KeyError,
        TypeError,
        pl.exceptions.PolarsError,
    ) as error:
        reason = (str(error).splitlines() or [""])[0].rstrip(".")
        raise DataError(f"{name} is a damaged file of {form}: {reason}.") from None


def write_lines(
    path: Path,
    name: str,
    target: Path,
) -> None:
    """Write the objects of a JSON array to a file, one per line.

    Raises
    ------
    DataError
        If the content is not valid JSON, or the array ends early.
    """
    text = path.read_bytes().removeprefix(codecs.BOM_UTF8)
    try:
        objects = msgspec.json.decode(text, type=list[msgspec.Raw])
    except (msgspec.DecodeError, RecursionError) as error:
        reason = str(error).rpartition("malformed: ")[2].rstrip(".")
        raise DataError(
            f"{name} is not JSON: {reason[:1].lower()}{reason[1:]}."
        ) from None
    with target.open("wb") as sink:
        sink.writelines(
            bytes(record).translate(_ONE_LINE) + b"\n" for record in objects
        )


def download(url: str, scratch: Scratch) -> list[tuple[str, Path]]:
    """Copy the files at a URL, and return their names with the paths of the copies.

    A folder (``s3://lake/events/``) or pattern (``s3://lake/events/*.parquet``) may have several
    files; ``https://`` does not support folders and patterns.

    Raises
    ------
    DataError
        If the URL has no file, its server cannot be reached, or the package that reads such URLs is
        not installed. The message has no password and no query string.
    """
    label = located(url)
    url = whole(url)
    scheme = url.partition("://")[0].strip().lower()
    if _DATABASES.match(scheme):
        raise DataError(
            f"{scheme}:// databases are not supported; use PostgreSQL, SQLite or DuckDB, or export "
            "a file."
        )
    try:
        fsspec: Any = import_module("fsspec")
        settings: dict[str, Any] = {}
        if scheme in ("http", "https"):
            timeout: Any = import_module("aiohttp").ClientTimeout
            limit = timeout(total=None, sock_connect=_PATIENCE, sock_read=_PATIENCE)
            settings = {"client_kwargs": {"timeout": limit}}
        system, path = fsspec.core.url_to_fs(url, **settings)
        files = []
        for remote in [path] if settings else _data_files(system, path):
            target = scratch.new()
            system.get_file(remote, str(target))
            name = located(remote).partition("?")[0].rpartition("/")[2]
            files.append((name or label, target))
    except ImportError as error:
        needed = missing_extra(error.name or "fsspec", "remote")
        if scheme in _PACKAGES:
            needed = f"needs {_PACKAGES[scheme]}; install it with pip install {_PACKAGES[scheme]}."
        raise DataError(f"{scheme}:// {needed}") from None
    except FileNotFoundError:
        files = []
    except Exception as error:
        if "not known" in str(error):  # fsspec does not know the scheme
            raise DataError(
                f"{scheme}:// is not a kind of address that can be read."
            ) from None
        raise DataError(f"{label} cannot be read: {_reason(error)}.") from None
    if not files:
        raise DataError(f"There is nothing at {label}.")
    return files


def _reason(error: Exception) -> str:
    """Return why a server gives no file, without texts that may quote passwords."""
    status = getattr(error, "status", None)
    if isinstance(status, int):
        return f"its server answers with the status {status}"
    if isinstance(error, TimeoutError):
        return f"no answer within {_PATIENCE} seconds"
    if isinstance(error, PermissionError):
        return "permission denied"
    cause: BaseException | None = getattr(error, "os_error", error)
    if isinstance(cause, socket.gaierror):
        return "its host is not known"
    if isinstance(cause, OSError) and cause.errno is not None and cause.errno > 0:
        return os.strerror(cause.errno).lower()
    return type(error).__name__


def _data_files(system: Any, path: str) -> list[str]:
    """Return the files of a folder or pattern, but no hidden ones or _SUCCESS."""
    if glob.has_magic(path):
        matches = system.glob(path)
    else:
        matches = system.find(path) if system.isdir(path) else [path]
    return sorted(
        match
        for match in matches
        if not match.rpartition("/")[2].startswith(("_", "."))
    )
