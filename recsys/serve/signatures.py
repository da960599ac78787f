"""Signatures of saved directories, which change when a directory is replaced."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TypeAlias

from recsys.saved_arrays import MANIFEST, as_path

Signature: TypeAlias = tuple[str, int, int, int]
Contents: TypeAlias = tuple[tuple[str, int, int, int, int], ...]


def signature_of(path: str) -> Signature | None:
    """Return a signature that changes when a directory is replaced, None if missing."""
    real = os.path.realpath(as_path(path))
    try:
        status = (Path(real) / MANIFEST).stat()
    except OSError:
        return None
    return real, status.st_ino, status.st_mtime_ns, status.st_size


def contents_of(path: str) -> Contents:
    """Return a signature that changes with anything in a directory, its rights included."""
    entries: list[tuple[str, int, int, int, int]] = []
    folders = [os.path.realpath(as_path(path))]
    for folder in folders:  # grows by the folders in them
        try:
            with os.scandir(folder) as scanned:
                for entry in scanned:
                    status = entry.stat(follow_symlinks=False)
                    times = status.st_mtime_ns, status.st_ctime_ns
                    entries.append((entry.path, status.st_ino, status.st_size, *times))
                    if entry.is_dir(follow_symlinks=False):
                        folders.append(entry.path)
        except OSError:
            continue
    return tuple(sorted(entries))
