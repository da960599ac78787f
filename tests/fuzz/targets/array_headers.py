"""Bytes as the file of an array: an array that can be read, or an error."""

from __future__ import annotations

import hashlib
import tempfile
from pathlib import Path

import numpy as np
from saved.write import SAVED

from recsys.saving.arrays import DamageError, SavedDirectory, mapped, read_header

SEEDS = [
    path.read_bytes() for path in sorted((SAVED / "next" / "arrays").glob("*.npy"))[:9]
]
FOLDER = Path(tempfile.mkdtemp(prefix="fuzz-"))


def attempt(data: bytes) -> None:
    """Map the array; model.json declares what the header does."""
    path = FOLDER / "x.npy"
    path.write_bytes(data)
    with path.open("rb") as stream:
        header = read_header(stream)
    checksum = hashlib.sha256(data).hexdigest()
    entry = {"bytes": len(data), "sha256": checksum, "dtype": "<f4", "shape": (1,)}
    if header is not None:
        entry |= {"dtype": header.dtype, "shape": header.shape}
    with SavedDirectory(FOLDER) as directory:
        try:
            array = mapped(directory, path.name, entry, verify=True)
        except DamageError:
            return
    np.array(array).tobytes()
