"""Memory-mapped arrays of saved models, checked against model.json.

Any mismatch raises a `DamageError`.
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
"""Maximum size of a JSON document, in bytes."""

VERIFIED_TOGETHER = 64 * 2**20
"""Total size of files up to which all checksums are verified, in bytes."""

_ALWAYS_VERIFIED = 2**20  # size up to which the checksum of a file is verified, in bytes
_LONGEST_NAME = 255  # maximum length of a file name, in bytes


class DamageError(ValueError):
    """Damage of a saved model, index or split; the message is the end of a sentence."""


def resolved(path: str | Path) -> Path:
    """Return a path, or the directory named by a text file there (see `atomic.move_link`)."""
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
    """Return the SHA-256 checksum of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def mapped(directory: Path, name: str, entry: Mapping[str, Any], *, verify: bool) -> NDArray[Any]:
    """Map an array into memory after checking it against the fields of a `schema.FileEntry`.

    The checksum of a file larger than 1 MB is only verified if `verify` is set.

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
        array = open_memmap(path, mode="r")  # neither unpickles nor opens zip files
    except OSError:
        raise
    except Exception:  # invalid headers raise many types of errors
        raise DamageError(f"{name} is not an array of numbers") from None
    dtype, shape = entry["dtype"], tuple(entry["shape"])
    if (array.dtype.str, array.shape) != (dtype, shape):
        raise DamageError(
            f"{name} must be of type {dtype} and shape {shape}, "
            f"not {array.dtype.str} and {array.shape}"
        )
    # Copy on Windows, which cannot replace a directory with mapped files.
    return np.array(array) if os.name == "nt" else np.asarray(array)


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
    if indptr.ndim != 1 or not len(indptr) or indptr[0] != 0 or (np.diff(indptr) < 0).any():
        raise DamageError(f"{name} does not rise from 0")
    if n_rows is not None and len(indptr) != n_rows + 1:
        raise DamageError(f"{name} has {len(indptr)} row starts instead of {n_rows + 1}")
    if indptr[-1] != indices.size:
        raise DamageError(f"{name} does not end at the number of entries")
    if indices.size and not (indices.min() >= 0 and indices.max() < n_columns):
        raise DamageError(f"the entries of {name} have columns that do not exist")
