"""Writing a saved directory of any form: beside its place, flushed to the disk, and renamed."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import IO, Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from recsys.errors import ModelFileError
from recsys.leftovers import put_in_place, unfinished_directory
from recsys.manifest import MANIFEST, FileEntry, Form, Manifest, is_saved_model, to_json
from recsys.panics import reason_of_system

__all__ = ["Writer", "sha256_of", "staged", "writing"]


class Writer:
    """Writes the files of a saved directory, the manifest last, and keeps their checksums."""

    def __init__(self, directory: Path, form: Form) -> None:
        self._directory = directory
        self._form = form
        self._entries: dict[str, FileEntry] = {}

    def array(self, name: str, array: NDArray[Any]) -> None:
        """Write ``FOLDER/NAME.npy``."""
        path = self._directory / name
        path.parent.mkdir(exist_ok=True)
        with _flushed(path) as file:
            np.save(file, array, allow_pickle=False)
        self._entries[name] = replace(_entry(path), dtype=array.dtype.str, shape=array.shape)

    def table(self, name: str, frame: pl.DataFrame) -> None:
        """Write ``NAME.parquet``."""
        with _flushed(self._directory / name) as file:
            frame.write_parquet(file)
        self._entries[name] = _entry(self._directory / name)

    def manifest(self, model: str, parameters: dict[str, Any], training: dict[str, Any]) -> None:
        """Write model.json."""
        manifest = Manifest(
            package_version=_package_version(),
            model=model,
            parameters=parameters,
            training=training,
            versions=_versions(),
            files=self._entries,
        )
        with _flushed(self._directory / MANIFEST) as file:
            file.write(to_json(manifest, self._form))


@contextmanager
def writing(path: str | Path, form: Form, own: set[str], *, overwrite: bool) -> Iterator[Writer]:
    """Yield a `Writer` of a saved directory that appears at `path` complete, or not at all.

    Parameters
    ----------
    path : str or Path
    form : Form
    own : set of str
        Names of its files and folders; a directory that holds others is not replaced.
    overwrite : bool
        Replace one of this form; any other file or directory is refused all the same.

    Raises
    ------
    ModelFileError
        If something is in the way or the disk cannot be written.
    """
    target = Path(os.path.realpath(path))
    what = form.noun.rpartition(" ")[2]
    _check_target(target, path, form, own, overwrite)
    try:
        with staged(target) as directory:
            yield Writer(directory, form)
    except (OSError, pl.exceptions.PolarsError) as error:
        reason = reason_of_system(error)
        if reason is not None:
            raise ModelFileError(f"The {what} cannot be saved in {path}: {reason}.") from error
        raise ModelFileError(
            f"The {what} cannot be saved in {path}: Parquet cannot hold the metadata ({error})."
        ) from error


def _check_target(
    target: Path, path: str | Path, form: Form, own: set[str], overwrite: bool
) -> None:
    """Refuse a place that cannot be written or must not be replaced."""
    if not target.parent.is_dir():
        raise ModelFileError(
            f"The {form.noun.rpartition(' ')[2]} cannot be saved in {path}: "
            f"there is no directory {target.parent}."
        )
    if not target.exists():
        return
    if not (target.is_dir() and is_saved_model(target, form)):
        raise ModelFileError(
            f"{path} exists and is not a {form.noun}, so it is not replaced; choose another path."
        )
    if not overwrite:
        raise ModelFileError(
            f"There is a {form.noun} in {path} already; choose another path or ask to overwrite it."
        )
    foreign = sorted({entry.name for entry in target.iterdir()} - own)
    if foreign:
        raise ModelFileError(
            f"{path} holds other files beside the {form.noun} ({', '.join(foreign[:3])}), "
            "so it is not replaced; move them or choose another path."
        )


@contextmanager
def staged(target: Path) -> Iterator[Path]:
    """Yield a new directory beside `target` that takes its place, or vanishes on an exception."""
    with unfinished_directory(target) as directory:
        yield directory
        _flush_directories(directory)
        put_in_place(directory, target)
    _flush_directory(target.parent)


@contextmanager
def _flushed(path: Path) -> Iterator[IO[bytes]]:
    """Open a new file and push it to the disk before it is closed."""
    with path.open("xb") as file:
        yield file
        file.flush()
        os.fsync(file.fileno())


def _flush_directories(directory: Path) -> None:
    for each in (*(entry for entry in directory.iterdir() if entry.is_dir()), directory):
        _flush_directory(each)


def _flush_directory(directory: Path) -> None:
    if os.name == "nt":  # directories cannot be opened there
        return
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _entry(path: Path) -> FileEntry:
    return FileEntry(sha256_of(path), path.stat().st_size)


def sha256_of(path: Path) -> str:
    """Return the checksum of a file, in hexadecimal digits."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _package_version() -> str:
    from recsys import __version__

    return __version__


def _versions() -> dict[str, str]:
    import platform

    from lowrank.kernels import backend

    return {
        "python": platform.python_version(),
        "numpy": np.__version__,
        "polars": pl.__version__,
        "kernels": str(backend()),
    }
