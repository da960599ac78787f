"""Files of saved models: directories that are opened once, and arrays checked before they are used.

Any mismatch with model.json raises a `DamageError`.
"""

from __future__ import annotations

import errno
import hashlib
import os
import re
import stat
from collections.abc import Mapping
from contextlib import suppress
from io import BufferedReader
from pathlib import Path
from typing import Any, Literal, NamedTuple, Self, TypeAlias

import numpy as np
from numpy.typing import NDArray

from recsys.addresses import located
from recsys.errors import DataError

MANIFEST = "model.json"
MODEL_FORMAT = "recsys-model"
FORMAT_VERSION: Literal[4] = 4

LONGEST = 64 * 2**20
"""Maximum size of a JSON document, in bytes."""

VERIFIED = 16 * 2**20
"""Size of a file up to which its checksum is always verified, in bytes."""

DTYPES = (
    "|b1",
    "|i1",
    "|u1",
    "<i2",
    "<u2",
    "<i4",
    "<u4",
    "<i8",
    "<u8",
    "<f2",
    "<f4",
    "<f8",
)
"""Types of saved arrays."""

_LONGEST_HEADER = 4096  # bytes
_MOST_AXES = 8

_NAME = re.compile(r"(?:([A-Za-z0-9_]+)/)?([A-Za-z0-9_]+\.[a-z]+)")
_MAGIC = b"\x93NUMPY"
_BYTES_OF_LENGTH = {(1, 0): 2, (2, 0): 4, (3, 0): 4}
_SIZE = rb"(?:0|[1-9][0-9]{0,18})"
# The literal that `numpy.save` writes, which `numpy.load` evaluates.
_HEADER = re.compile(
    rb"\{'descr': '([<>|][biuf][0-9]{1,2})', 'fortran_order': (False|True), "
    rb"'shape': \((|" + _SIZE + rb",|" + _SIZE + rb"(?:, " + _SIZE + rb")+)\), \} *\n"
)

_HAS_DESCRIPTORS = os.open in os.supports_dir_fd and hasattr(os, "O_DIRECTORY")
_READ = os.O_RDONLY | getattr(os, "O_BINARY", 0)
_READ |= getattr(os, "O_NOFOLLOW", 0) | getattr(
    os, "O_NONBLOCK", 0
)  # pipes do not block
_DIRECTORY = os.O_RDONLY | getattr(os, "O_DIRECTORY", 0)

Signature: TypeAlias = list[tuple[str, int, int, int, int]]
"""Names, numbers, sizes, times and rights of the files in a directory."""


class DamageError(ValueError):
    """Damage of a saved model, index or split; the message is the end of a sentence."""


def as_path(path: str | Path) -> Path:
    """Return a path whose text has no password.

    Raises
    ------
    DataError
        If it is a number or something else that cannot be a path.
    """
    if not isinstance(path, str | os.PathLike):
        raise DataError(f"A path must be a text or a Path; got {path!r}.")
    return Path(located(os.fspath(path)))


class SavedDirectory:
    """A saved directory that is opened once, so that all files are from the same directory.

    Files are opened relative to its descriptor, wherever links to it are moved meanwhile. Links in
    it are not followed. Windows, which has no such descriptors, does not move directories with open
    files; there the links of the path are followed once.

    Attributes
    ----------
    path : Path
        Path that was given, for messages.
    real : Path
        Path of the directory, without links.

    Raises
    ------
    OSError
        If there is no directory at the path.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.real = Path(os.path.realpath(as_path(path)))
        self._manifest: tuple[int, ...] | None = None
        self._descriptor: int | None = None
        if _HAS_DESCRIPTORS:
            self._descriptor = os.open(self.real, _DIRECTORY)
            self._identity = _identity(os.fstat(self._descriptor))
        else:
            self._identity = _identity((self.real / ".").stat())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def open(self, name: str) -> BufferedReader:
        """Open a file, such as "model.json" or "arrays/item_bias.npy", for reading.

        Raises
        ------
        DamageError
            If there is no such file, or a link or something else in its place.
        """
        # A model.json from somewhere else could name ../../etc/passwd.
        match = _NAME.fullmatch(name)
        if match is None:
            raise DamageError(f"{name} is not the name of a file in a saved directory")
        folder, file = match.groups()
        try:
            descriptor = self._opened(folder, file)
        except FileNotFoundError:
            raise DamageError(f"{name} is missing") from None
        except NotADirectoryError:
            raise DamageError(
                f"{name} is missing, since {folder} is not a directory"
            ) from None
        except OSError as error:
            if error.errno != errno.ELOOP:
                raise
            raise DamageError(f"{name} is not a file; links are not followed") from None
        found = os.fstat(descriptor)
        # A pipe or a device may never end.
        if not stat.S_ISREG(found.st_mode):
            os.close(descriptor)
            raise DamageError(f"{name} is missing, since it is not a file")
        if name == MANIFEST:
            self._manifest = _signature(found)
        return os.fdopen(descriptor, "rb")

    def _opened(self, folder: str | None, file: str) -> int:
        """Return a descriptor of a file."""
        if self._descriptor is None:
            path = self.real / (folder or "") / file
            if path.is_symlink() or path.parent.is_symlink():
                raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
            return os.open(path, _READ)
        if folder is None:
            return os.open(file, _READ, dir_fd=self._descriptor)
        parent = os.open(folder, _READ | _DIRECTORY, dir_fd=self._descriptor)
        try:
            return os.open(file, _READ, dir_fd=parent)
        finally:
            os.close(parent)

    def was_replaced(self) -> bool:
        """Return whether the path leads to another directory or model.json by now."""
        try:
            path = as_path(self.path)
            if _identity(path.stat()) != self._identity:
                return True
            if self._manifest is None:
                return False
            # A copy over the files keeps the directory, but not its model.json.
            return _signature((path / MANIFEST).lstat()) != self._manifest
        except OSError:
            return True


def _identity(found: os.stat_result) -> tuple[int, int]:
    return found.st_dev, found.st_ino


def _signature(found: os.stat_result) -> tuple[int, ...]:
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns


def sha256_of(path: Path) -> str:
    """Return the SHA-256 checksum of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


class Header(NamedTuple):
    """Header of an array file: type, shape, order of the axes, first byte of the data."""

    dtype: str
    shape: tuple[int, ...]
    order: Literal["C", "F"]
    start: int


def read_header(stream: BufferedReader) -> Header | None:
    """Return the header of an array file, or None if `numpy.save` has not written it.

    `numpy.load` takes much more: objects, structures, types of zero bytes, negative shapes.
    """
    start = stream.read(len(_MAGIC) + 2)
    if start[:-2] != _MAGIC or (start[-2], start[-1]) not in _BYTES_OF_LENGTH:
        return None
    counted = stream.read(_BYTES_OF_LENGTH[start[-2], start[-1]])
    length = int.from_bytes(counted, "little")
    # The length is four bytes of the file: up to 4 GB would be read.
    if not 0 < length <= _LONGEST_HEADER:
        return None
    match = _HEADER.fullmatch(stream.read(length))
    if match is None:
        return None
    dtype, is_fortran, sizes = match.groups()
    shape = tuple(int(size) for size in sizes.split(b",") if size)
    order: Literal["C", "F"] = "F" if is_fortran == b"True" else "C"
    n_bytes = len(start) + len(counted) + length
    return Header(dtype.decode("latin-1"), shape, order, n_bytes)


def mapped(
    directory: SavedDirectory,
    name: str,
    entry: Mapping[str, Any],
    *,
    verify: bool,
) -> NDArray[Any]:
    """Map an array into memory after checking it against the fields of a `schema.FileEntry`.

    The checksum of a file larger than 16 MB is only verified if `verify` is set.
    """
    with directory.open(name) as stream:
        size = os.fstat(stream.fileno()).st_size
        expected = entry["bytes"]
        if size != expected:
            raise DamageError(f"{name} has {size:,} bytes instead of {expected:,}")
        # Hashing 16 MB takes some milliseconds, and a model of gigabytes seconds.
        if verify or size <= VERIFIED:
            checksum = hashlib.file_digest(stream, "sha256").hexdigest()
            if checksum != entry["sha256"]:
                raise DamageError(
                    f"the contents of {name} have changed since it was saved"
                )
        stream.seek(0)
        header = read_header(stream)
        if header is None:
            raise DamageError(f"{name} is not an array of numbers")
        _check_header(name, header, entry, size)
        try:
            return open_memmap(stream, header)
        except (OverflowError, ValueError):  # empty, with an axis that is too long
            raise DamageError(f"{name} cannot have the shape {header.shape}") from None


def _check_header(
    name: str,
    header: Header,
    entry: Mapping[str, Any],
    size: int,
) -> None:
    """Check that a header is as model.json declares it, and agrees with the size of the file."""
    dtype, shape = entry["dtype"], tuple(entry["shape"])
    if (header.dtype, header.shape) != (dtype, shape):
        raise DamageError(
            f"{name} must be of type {dtype} and shape {shape}, "
            f"not {header.dtype} and {header.shape}"
        )
    if header.dtype not in DTYPES or len(shape) > _MOST_AXES:
        raise DamageError(f"{name} cannot be of type {dtype} and shape {shape}")
    n_bytes = np.dtype(header.dtype).itemsize
    for length in header.shape:  # integers of Python do not overflow
        n_bytes *= length
    # Reading behind the end of a mapped file kills the process (SIGBUS).
    if header.start + n_bytes != size:
        raise DamageError(
            f"{name} has {size:,} bytes, too few or too many for the shape {shape}"
        )


def open_memmap(stream: BufferedReader, header: Header) -> NDArray[Any]:
    """Map the array of an open file; Windows, which cannot replace mapped files, copies it."""
    array = np.memmap(
        stream,
        dtype=header.dtype,
        mode="r",
        offset=header.start,
        shape=header.shape,
        order=header.order,
    )
    return np.array(array) if os.name == "nt" else np.asarray(array)


def check_finite(arrays: Mapping[str, NDArray[Any]]) -> None:
    """Check that all values of arrays are finite.

    Raises
    ------
    DamageError
    """
    for name, array in arrays.items():
        if array.dtype.kind == "f" and not np.isfinite(array).all():
            raise DamageError(f"{name} has values that are not finite")


def check_rows(
    name: str,
    indptr: NDArray[Any],
    indices: NDArray[Any],
    n_columns: int,
    n_rows: int | None = None,
) -> None:
    """Check that two arrays are a valid CSR structure.

    Raises
    ------
    DamageError
    """
    if (
        indptr.ndim != 1
        or not len(indptr)
        or indptr[0] != 0
        or (np.diff(indptr) < 0).any()
    ):
        raise DamageError(f"{name} does not rise from 0")
    if n_rows is not None and len(indptr) != n_rows + 1:
        raise DamageError(
            f"{name} has {len(indptr)} row starts instead of {n_rows + 1}"
        )
    if indptr[-1] != indices.size:
        raise DamageError(f"{name} does not end at the number of entries")
    # Kernels do not check columns again: a wrong one would read foreign memory.
    if indices.size and not (indices.min() >= 0 and indices.max() < n_columns):
        raise DamageError(f"the entries of {name} have columns that do not exist")


def check_sorted_rows(
    name: str,
    indptr: NDArray[Any],
    indices: NDArray[Any],
    n_columns: int,
    n_rows: int | None = None,
) -> None:
    """Check a CSR structure whose rows kernels search: its types, and that columns increase.

    Raises
    ------
    DamageError
    """
    if indptr.dtype != np.int64 or indices.dtype != np.int32:
        raise DamageError(
            f"{name} must be int64, and its entries int32; "
            f"got {indptr.dtype} and {indices.dtype}"
        )
    check_rows(name, indptr, indices, n_columns, n_rows)
    increases = indices[1:] > indices[:-1]
    starts = indptr[(indptr > 0) & (indptr < indices.size)]
    increases[starts - 1] = True  # the first entry of a row follows another row
    if not increases.all():
        raise DamageError(f"the entries of {name} are not in the order of columns")


def signature_of(path: str) -> Signature:
    """Return what changes with a file or anything in a directory, its rights included.

    It is [] if there is neither.
    """
    entries: Signature = []
    folders = [os.path.realpath(as_path(path))]
    with suppress(OSError):
        status = Path(folders[0]).stat()
        if not stat.S_ISDIR(status.st_mode):
            return [_signed(folders[0], status)]
    for folder in folders:  # grows by the folders in them
        with suppress(OSError), os.scandir(folder) as scanned:
            for entry in scanned:
                entries.append(_signed(entry.path, entry.stat(follow_symlinks=False)))
                if entry.is_dir(follow_symlinks=False):
                    folders.append(entry.path)
    return sorted(entries)


def _signed(path: str, status: os.stat_result) -> tuple[str, int, int, int, int]:
    return path, status.st_ino, status.st_size, status.st_mtime_ns, status.st_mode
