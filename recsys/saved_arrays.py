"""Arrays of saved models: mapped into memory once they are as model.json describes them.

Whatever is wrong is a `DamageError`.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.lib.format import open_memmap
from numpy.typing import NDArray

MANIFEST = "model.json"
MODEL_FORMAT = "recsys-model"
FORMAT_VERSION: Literal[2] = 2

LONGEST = 64 * 2**20
"""Bytes of a document."""

VERIFIED_TOGETHER = 64 * 2**20
"""Bytes of all files, up to which all checksums are verified."""

_ALWAYS_VERIFIED = 2**20  # bytes of one file
_LONGEST_NAME = 255  # bytes


class DamageError(ValueError):
    """Damage of a saved model, index or split, as the end of a sentence."""


def resolved(path: str | Path) -> Path:
    """Return a path, or the directory that a text file in its place names (`atomic.move_link`)."""
    place = Path(path)
    if place.is_file() and place.stat().st_size <= _LONGEST_NAME:
        try:
            name = place.read_text(encoding="utf-8").strip()
        except UnicodeDecodeError:
            return place
        target = place.parent / name
        if name and Path(name).name == name and target.is_dir():
            return target
    return place


def sha256_of(path: Path) -> str:
    """Return the checksum of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def mapped(directory: Path, name: str, entry: Mapping[str, Any], *, verify: bool) -> NDArray[Any]:
    """Map an array into memory, once it is as an `entry` of fields of `schema.FileEntry` says.

    The checksum of a file of more than 1 MB is left out, unless `verify` is set.

    Raises
    ------
    DamageError
    """
    path = directory / name
    if not path.is_file():
        raise DamageError(f"{name} is missing")
    if (size := path.stat().st_size) != (expected := entry["bytes"]):
        raise DamageError(f"{name} has {size:,} bytes instead of {expected:,}")
    if (verify or size <= _ALWAYS_VERIFIED) and sha256_of(path) != entry["sha256"]:
        raise DamageError(f"the contents of {name} have changed since it was saved")
    try:
        array = open_memmap(path, mode="r")  # never unpickles, and takes no zip
    except OSError:
        raise
    except Exception:  # a header can be wrong in many ways
        raise DamageError(f"{name} is not an array of numbers") from None
    dtype, shape = entry["dtype"], tuple(entry["shape"])
    if (array.dtype.str, array.shape) != (dtype, shape):
        raise DamageError(
            f"{name} must be of type {dtype} and shape {shape}, "
            f"not {array.dtype.str} and {array.shape}"
        )
    # Windows replaces no directory with files that are mapped.
    return np.array(array) if os.name == "nt" else np.asarray(array)


def check_rows(
    name: str,
    indptr: NDArray[Any],
    indices: NDArray[Any],
    n_columns: int,
    n_rows: int | None = None,
) -> None:
    """Check that the arrays are the rows of a CSR matrix.

    Raises
    ------
    DamageError
    """
    if indptr.ndim != 1 or not len(indptr) or indptr[0] != 0 or (np.diff(indptr) < 0).any():
        raise DamageError(f"{name} does not rise from 0")
    if n_rows is not None and len(indptr) != n_rows + 1:
        raise DamageError(f"{name} has {len(indptr)} row starts instead of {n_rows + 1}")
    if indptr[-1] != indices.size:
        raise DamageError(f"{name} does not end at the number of entries")
    if indices.size and not (indices.min() >= 0 and indices.max() < n_columns):
        raise DamageError(f"the entries of {name} have columns that do not exist")
