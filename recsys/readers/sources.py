"""Sources: files, folders and archives, and the bytes in them; the sample data."""

from __future__ import annotations

import codecs
import csv
import gzip
import lzma
import shutil
import sys
import tempfile
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from importlib import import_module
from os import PathLike
from pathlib import Path, PurePosixPath
from typing import IO, Any

from recsys.errors import DataError
from recsys.messages import close_matches

csv.field_size_limit(2**31 - 1)  # a review in a table may be longer than 128 kB

__all__ = ["DataFile", "data_suffix", "open_data", "plain_name", "sample_path", "titles_member"]

_BLOCK = 1 << 20
_LAYERS = 3  # a zip of a gz of a ...
_MAGIC = {
    b"\x1f\x8b": "gz",
    b"\xfd7zXZ\0": "xz",
    b"\x28\xb5\x2f\xfd": "zst",
    b"PK\x03\x04": "zip",
    b"PK\x05\x06": "zip",
}
_DAMAGES = (gzip.BadGzipFile, EOFError, zlib.error, zipfile.BadZipFile, lzma.LZMAError)
_SAMPLE = ("ratings.csv", "items.csv")

# In order of preference, where one folder holds several.
_RATING_FILES = (
    *("ratings.csv", "ratings.dat", "u.data", "ratings.parquet", "ratings.tsv"),
    *("ratings.jsonl", "ratings.ndjson", "train.txt"),
)
_TITLE_FILES = ("movies.csv", "movies.dat", "u.item", "items.csv")
_PACKERS = (".gz", ".xz", ".zst", ".zip")
_TABLE_SUFFIXES = (".csv", ".tsv", ".dat", ".data", ".jsonl", ".ndjson", ".parquet")
_NOT_RATINGS = ("links.csv", "tags.csv", "users.csv", "users.dat", "tags.dat")
_LISTED = 5


@dataclass(frozen=True, slots=True)
class DataFile:
    """A plain local file with data, unpacked and in UTF-8.

    `name` is for messages, `suffix` is without that of a packer (".csv" for "ratings.csv.gz"), and
    `folder` has the files next to it; None for standard input.
    """

    name: str
    path: Path
    suffix: str = ""
    folder: _Directory | _Zip | None = None

    @property
    def is_parquet(self) -> bool:
        """True if it begins as a Parquet file does.

        Raises
        ------
        DataError
            If only its name is that of one.
        """
        if _begins_with(self.path, b"PAR1"):
            return True
        if self.suffix == ".parquet" and self.path.stat().st_size:
            raise DataError(
                f"{self.name} is not a Parquet file, or damaged: it does not begin with PAR1."
            )
        return False


def sample_path() -> Path:
    """Find the directory of the embedded sample data.

    It has ``ratings.csv`` (userId, itemId, rating, timestamp) and ``items.csv`` (itemId, title,
    year, genres); its ``README.md`` describes how the ratings were made. An installed package has
    it in ``recsys/sample/data``, a source checkout next to the package.

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


@contextmanager
def open_data(path: str | PathLike[str], encoding: str | None = None) -> Iterator[DataFile]:
    """Open a data file, a directory or zip that holds one, or `-` for standard input.

    Unpacked and decoded copies are in a temporary directory that is removed at the end. Of a zip
    only the members that are read are unpacked, under names of our own.

    Raises
    ------
    DataError
        If there is no such file, it cannot be read, unpacked or decoded, or a directory or zip
        holds no ratings file that can be told from the others.
    """
    with ExitStack() as stack:
        scratch = _Scratch(stack)
        if str(path) == "-":
            data = _unpacked(DataFile("standard input", scratch.copy(sys.stdin.buffer)), scratch)
        else:
            with _readable(Path(path).name or str(path)):
                data = _open_path(Path(path), scratch)
        if encoding is not None and not data.is_parquet:
            data = replace(data, path=scratch.decoded(data, encoding))
        yield data


def _open_path(path: Path, scratch: _Scratch) -> DataFile:
    if path.is_dir():
        place = f"{path.resolve().name}/"
        folder = _Directory(path, scratch)
        member = _choose_member(folder.names(), place)
        return DataFile(place + member, folder.fetch(member), data_suffix(member), folder)
    folder = _Directory(path.parent, scratch)
    if not path.exists():
        if path.is_symlink():
            raise DataError(f"{path} is a broken symbolic link.")
        if not path.parent.is_dir():
            raise DataError(f"There is no file {path}: the directory {path.parent} does not exist.")
        near = ", ".join(close_matches(path.name, [each.name for each in path.parent.iterdir()], 3))
        hint = f"; the nearest names there are {near}" if near else ""
        raise DataError(f"There is no file {path}{hint}.")
    data = DataFile(path.name, path, data_suffix(path.name), folder)
    if not path.is_file():  # a pipe, as in <(command): it can be read only once
        with path.open("rb") as stream:
            data = replace(data, path=scratch.copy(stream), folder=None)
    return _unpacked(data, scratch)


def _unpacked(data: DataFile, scratch: _Scratch) -> DataFile:
    """Return the file with its layers of packing removed, or the ratings file of a zip."""
    for _ in range(_LAYERS):
        kinds = (kind for magic, kind in _MAGIC.items() if _begins_with(data.path, magic))
        packing = next(kinds, None)
        if packing is None:
            return data
        if packing == "zip":
            folder = _Zip(data, scratch)
            member = _choose_member(folder.names(), data.name)
            name = f"{data.name.removesuffix('.zip')}/{member}"
            within = _Zip(data, scratch, member[: member.rfind("/") + 1])
            data = DataFile(name, folder.fetch(member), data_suffix(member), within)
        else:
            opener: Any = {"gz": gzip, "xz": lzma}.get(packing) or _zstd()
            with _readable(data.name), opener.open(data.path, "rb") as stream:
                data = replace(data, path=scratch.copy(stream))
    raise DataError(f"{data.name} is packed more than {_LAYERS - 1} times over; unpack it first.")


def _begins_with(path: Path, magic: bytes) -> bool:
    with path.open("rb") as stream:
        return stream.read(len(magic)) == magic


def _zstd() -> Any:
    """Return the zstd module of the standard library, or its backport before Python 3.14."""
    return import_module("compression.zstd" if sys.version_info >= (3, 14) else "backports.zstd")


@contextmanager
def _readable(name: str) -> Iterator[None]:
    """Turn the errors of reading and unpacking a file into one sentence."""
    try:
        yield
    except (*_DAMAGES, OSError, RuntimeError, _zstd().ZstdError) as error:
        problem = "is damaged"
        if isinstance(error, OSError) and not isinstance(error, gzip.BadGzipFile):
            problem = "cannot be read"
        elif isinstance(error, RuntimeError):  # from zipfile: a password, or an unknown method
            problem = "cannot be unpacked"
        text = (isinstance(error, OSError) and error.strerror) or str(error)
        text = (text[:1].lower() + text[1:]).rstrip(".")
        raise DataError(f"{name} {problem}: {text}.") from None


class _Scratch:
    """A temporary directory whose files are numbered: names from outside are never used."""

    def __init__(self, stack: ExitStack) -> None:
        self._stack = stack
        self._root: Path | None = None
        self._count = 0

    def new(self) -> Path:
        if self._root is None:  # made when it is needed: there may be no room for it
            root = tempfile.TemporaryDirectory(prefix="recsys-")
            self._root = Path(self._stack.enter_context(root))
        self._count += 1
        return self._root / str(self._count)

    def copy(self, source: IO[bytes]) -> Path:
        """Copy a stream to a new file."""
        target = self.new()
        with target.open("wb") as sink:
            shutil.copyfileobj(source, sink, _BLOCK)
        return target

    def decoded(self, data: DataFile, encoding: str) -> Path:
        """Return the path of a copy in UTF-8 of a text file in another encoding."""
        try:
            b"".decode(encoding)
            decoder = codecs.getincrementaldecoder(encoding)()
        except LookupError:
            raise DataError(
                f"There is no encoding {encoding!r}; usual ones are utf-8, latin-1 and utf-16."
            ) from None
        target, place = self.new(), 0
        with data.path.open("rb") as source, target.open("wb") as sink:
            try:
                while block := source.read(_BLOCK):
                    sink.write(decoder.decode(block).encode())
                    place += len(block)
                sink.write(decoder.decode(b"", final=True).encode())
            except UnicodeDecodeError as error:
                raise DataError(
                    f"{data.name} is not in the encoding {encoding}: {error.reason} near "
                    f"byte {place + error.start}."
                ) from None
        return target


@dataclass(frozen=True)
class _Directory:
    """The files of a directory, hidden ones left out."""

    path: Path
    scratch: _Scratch

    def names(self) -> list[str]:
        shown = (each for each in self.path.iterdir() if not each.name.startswith("."))
        return sorted(each.name for each in shown if each.is_file())

    def fetch(self, name: str) -> Path:
        return _unpacked(DataFile(name, self.path / name), self.scratch).path


class _Zip:
    """The files of a zip, or of one folder in it, unpacked on request."""

    def __init__(self, data: DataFile, scratch: _Scratch, prefix: str = "") -> None:
        self._data = data
        self._scratch = scratch
        self._prefix = prefix
        with _readable(data.name), zipfile.ZipFile(data.path) as archive:
            members = [info.filename for info in archive.infolist() if not info.is_dir()]
        inside = [name.removeprefix(prefix) for name in members if name.startswith(prefix)]
        self._names = sorted(
            name for name in inside if not name.startswith(("__MACOSX/", ".")) and "/." not in name
        )
        if members and not self._names:
            raise DataError(
                f"All entries of {data.name} are outside of its folder (..) or hidden; pack the "
                "files themselves."
            )

    def names(self) -> list[str]:
        return self._names

    def fetch(self, name: str) -> Path:
        label, path, member = f"{self._data.name}/{name}", self._data.path, self._prefix + name
        with _readable(label), zipfile.ZipFile(path) as archive, archive.open(member) as source:
            local = self._scratch.copy(source)
        return _unpacked(DataFile(label, local), self._scratch).path


def _choose_member(names: list[str], place: str) -> str:
    """Return the name of the ratings file among those of a directory or zip."""
    tables = [n for n in names if plain_name(n) not in (*_TITLE_FILES, *_NOT_RATINGS)]
    others = [n for n in tables if "readme" not in plain_name(n)]
    by_claim = [
        [n for n in names if n.count("/") == depth and plain_name(n) == known]
        for depth in sorted({name.count("/") for name in names})
        for known in _RATING_FILES
    ]
    by_claim.append([n for n in others if "rating" in plain_name(n)])
    by_claim.append([n for n in tables if data_suffix(n) in _TABLE_SUFFIXES])
    by_claim.append([n for n in others if data_suffix(n) == ".txt"])
    candidates = next(filter(None, by_claim), [])
    if len(candidates) == 1:
        return candidates[0]
    shown = candidates or names
    listed = ", ".join(shown[:_LISTED])
    listed += f" and {len(shown) - _LISTED} more" if len(shown) > _LISTED else ""
    if candidates:
        raise DataError(
            f"{place} holds several files that may be the ratings ({listed}); name the one to read."
        )
    if "xl/workbook.xml" in names:
        raise DataError(f"{place} is an Excel workbook; save its sheet as CSV first.")
    found = f"it holds {listed}" if names else "it is empty"
    raise DataError(
        f"{place} holds no ratings file, such as ratings.csv, ratings.dat or u.data; {found}."
    )


def titles_member(names: list[str]) -> str | None:
    """Return the name of the file with titles among those of one folder, if there is one."""
    plain = {plain_name(name): name for name in names}
    return next((plain[known] for known in _TITLE_FILES if known in plain), None)


def data_suffix(name: str) -> str:
    """Return the suffix of a file name in lower case, without that of a packer."""
    return PurePosixPath(plain_name(name)).suffix


def plain_name(name: str) -> str:
    """Return a file name in lower case, without folders and packers."""
    plain = name.rpartition("/")[2].lower()
    for packer in _PACKERS:
        plain = plain.removesuffix(packer)
    return plain
