"""Archives: files in gz, xz and zst, zips and their members, and the files of a directory."""

from __future__ import annotations

import codecs
import gzip
import lzma
import shutil
import sys
import tempfile
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import IO, Any, Protocol

from recsys.errors import DataError

__all__ = [
    "Directory",
    "Folder",
    "Scratch",
    "Zip",
    "begins_with",
    "is_zip",
    "readable",
    "unpacked",
]

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


class Scratch:
    """A temporary directory whose files are numbered: names from outside are never used."""

    def __init__(self, stack: ExitStack) -> None:
        self._stack = stack
        self._root: Path | None = None
        self._count = 0

    def new(self) -> Path:
        """Return the path of a file that is not there yet."""
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

    def decoded(self, path: Path, name: str, encoding: str) -> Path:
        """Return the path of a copy in UTF-8 of a text file in another encoding.

        Raises
        ------
        DataError
            If there is no such encoding, or the file is in another one.
        """
        try:
            b"".decode(encoding)
            decoder = codecs.getincrementaldecoder(encoding)()
        except LookupError:
            raise DataError(
                f"There is no encoding {encoding!r}; usual ones are utf-8, latin-1 and utf-16."
            ) from None
        target, place = self.new(), 0
        with path.open("rb") as source, target.open("wb") as sink:
            try:
                while block := source.read(_BLOCK):
                    sink.write(decoder.decode(block).encode())
                    place += len(block)
                sink.write(decoder.decode(b"", final=True).encode())
            except UnicodeDecodeError as error:
                raise DataError(
                    f"{name} is not in the encoding {encoding}: {error.reason} near "
                    f"byte {place + error.start}."
                ) from None
        return target


class Folder(Protocol):
    """Files next to each other: of a directory, or of a zip."""

    def names(self) -> list[str]:
        """Return the names of the files."""

    def fetch(self, name: str) -> Path:
        """Return the path of a file, unpacked."""


@dataclass(frozen=True)
class Directory:
    """The files of a directory, hidden ones left out."""

    path: Path
    scratch: Scratch

    def names(self) -> list[str]:
        """Return the names of the files in the directory itself."""
        return self._names(self.path.iterdir())

    def all_names(self) -> list[str]:
        """Return the names of the files, those in sub directories included."""
        return self._names(self.path.rglob("*"))

    def _names(self, paths: Iterator[Path]) -> list[str]:
        inside = ((each, each.relative_to(self.path)) for each in paths)
        return sorted(
            name.as_posix()
            for each, name in inside
            if each.is_file() and not any(part.startswith(".") for part in name.parts)
        )

    def fetch(self, name: str) -> Path:
        """Return the path of a file, unpacked.

        Raises
        ------
        DataError
            If it is damaged.
        """
        return unpacked(self.path / name, name, self.scratch)


class Zip:
    """The files of a zip, or of one folder in it, unpacked on request.

    Raises
    ------
    DataError
        If the zip is damaged, or all its entries are outside of its folder or hidden.
    """

    def __init__(self, path: Path, name: str, scratch: Scratch, prefix: str = "") -> None:
        self._path = path
        self._name = name
        self._scratch = scratch
        self._prefix = prefix
        with readable(name), zipfile.ZipFile(path) as archive:
            members = [info.filename for info in archive.infolist() if not info.is_dir()]
        inside = [name.removeprefix(prefix) for name in members if name.startswith(prefix)]
        self._names = sorted(
            name for name in inside if not name.startswith(("__MACOSX/", ".")) and "/." not in name
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
        """Return the path of a file, unpacked.

        Raises
        ------
        DataError
            If it is damaged, encrypted, or packed by an unknown method.
        """
        label = f"{self._name}/{name}"
        with (
            readable(label),
            zipfile.ZipFile(self._path) as archive,
            archive.open(self._prefix + name) as source,
        ):
            local = self._scratch.copy(source)
        return unpacked(local, label, self._scratch)

    def next_to(self, name: str) -> Zip:
        """Return the files next to one of them."""
        prefix = self._prefix + name[: name.rfind("/") + 1]
        return Zip(self._path, self._name, self._scratch, prefix)


def unpacked(path: Path, name: str, scratch: Scratch) -> Path:
    """Return the path of a file with its layers of gz, xz and zst removed; a zip as it is.

    Raises
    ------
    DataError
        If it is damaged, or packed too many times over.
    """
    for _ in range(_LAYERS):
        packing = next((kind for magic, kind in _MAGIC.items() if begins_with(path, magic)), None)
        if packing in (None, "zip"):
            return path
        opener: Any = {"gz": gzip, "xz": lzma}.get(str(packing)) or _zstd()
        with readable(name), opener.open(path, "rb") as stream:
            path = scratch.copy(stream)
    raise DataError(f"{name} is packed more than {_LAYERS - 1} times over; unpack it first.")


def is_zip(path: Path) -> bool:
    """Return whether a file begins as a zip does (so do workbooks)."""
    return begins_with(path, *(magic for magic, kind in _MAGIC.items() if kind == "zip"))


def begins_with(path: Path, *beginnings: bytes) -> bool:
    """Return whether a file begins with one of some bytes."""
    with path.open("rb") as stream:
        return stream.read(max(map(len, beginnings))).startswith(beginnings)


def _zstd() -> Any:
    """Return the zstd module of the standard library, or its backport before Python 3.14."""
    return import_module("compression.zstd" if sys.version_info >= (3, 14) else "backports.zstd")


@contextmanager
def readable(name: str) -> Iterator[None]:
    """Turn the errors of reading and unpacking a file into one sentence.

    Raises
    ------
    DataError
        If the file is damaged, or cannot be read or unpacked.
    """
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
