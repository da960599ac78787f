"""Saved models: a directory of JSON, ``.npy`` and Parquet files, without pickle.

::

    MODEL/
        model.json             format, versions, model, parameters, training summary, file checksums
        arrays/NAME.npy        what the model has learnt, memory-mapped when it is loaded
        ratings/NAME.npy       the training ratings as CSR: indptr, indices, values
        users.parquet          ids in index order, and what else is known of them
        items.parquet          likewise, such as titles

A model is written to a hidden directory beside its place, flushed to the disk, and renamed.

How much `load_model` checks: the form of model.json and its checksum, the size of every file, the
type and shape of every array, and that the ratings are of items that there are, always. The SHA-256
of every file of up to 1 MB, always; of all files if they are 64 MB or less together (a few
hundredths of a second), or with ``verify=True``.
"""

from __future__ import annotations

import errno
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from numpy.lib.format import open_memmap
from numpy.typing import NDArray

from recsys.errors import DataError, ModelFileError
from recsys.ids import Ids
from recsys.manifest import (
    MANIFEST,
    MODEL,
    SPARK_FORMAT,
    DamageError,
    FileEntry,
    Manifest,
    Reading,
    format_of,
    read_manifest,
)
from recsys.memory import refuse_absurd
from recsys.models import MODELS, model_class
from recsys.models.base import Model
from recsys.panics import panics_as_errors
from recsys.parquet.size import columns_of, too_large, unpacked_size
from recsys.ratings import Ratings
from recsys.writing import Writer, sha256_of, writing

__all__ = [
    "Saved",
    "check_files",
    "is_small",
    "load_model",
    "read_array",
    "read_parquet",
    "save_model",
]

_RATINGS_ARRAYS = ("indptr", "indices", "values")
_OWN_ENTRIES = {MANIFEST, "arrays", "ratings", "users.parquet", "items.parquet"}
_ALWAYS_VERIFIED = 2**20  # bytes of one file
_VERIFIED_TOGETHER = 64 * 2**20  # bytes of all files


@dataclass(frozen=True, slots=True)
class Saved:
    """What a saved model holds.

    Attributes
    ----------
    model : Model
        Fitted.
    ratings : Ratings
        The ratings it was fitted to, without their times.
    training : dict
        Summary of the fit.
    """

    model: Model
    ratings: Ratings
    training: dict[str, Any]


def save_model(saved: Saved, path: str | Path, *, overwrite: bool = False) -> None:
    """Write a model to the directory `path`, which must not exist.

    At every moment there is nothing, the old model, or the whole new one at `path`.

    Parameters
    ----------
    saved : Saved
    path : str or Path
    overwrite : bool
        Replace a saved model at `path`; any other file or directory is refused all the same.

    Raises
    ------
    ModelFileError
        If something is in the way, the disk cannot be written, or the model is not one of
        `recsys.models.MODELS`.
    """
    name = saved.model.name
    if name not in MODELS or model_class(name) is not type(saved.model):
        raise ModelFileError(
            f"A saved {type(saved.model).__name__} could not be loaded again, since "
            f"recsys.models.MODELS does not have it as {name!r}; enter it there first."
        )
    with writing(path, MODEL, _OWN_ENTRIES, overwrite=overwrite) as writer:
        _write(saved, writer)


def load_model(path: str | Path, *, verify: bool = False) -> Saved:
    """Load a saved model; its arrays are mapped into memory, not read.

    A result of the Spark engine is read from its Parquet files instead (`recsys.spark.opening`).

    Parameters
    ----------
    path : str or Path
    verify : bool
        Check all checksums, however large the files; see the module's docstring.

    Raises
    ------
    ModelFileError
        If there is no saved model at `path`, or it is damaged or too new.
    """
    if format_of(Path(path)) == SPARK_FORMAT:
        from recsys.spark.opening import load_result

        return Saved(*load_result(path))
    manifest = read_manifest(path)
    if manifest.model not in MODELS:
        raise ModelFileError(
            f"The saved model {path} is of the kind {manifest.model!r}, which this version of "
            f"recsys does not know; it knows {', '.join(sorted(MODELS))}."
        )
    with Reading(path):
        return _read(Path(path), manifest, verify)


# Writing


def _write(saved: Saved, writer: Writer) -> None:
    """Write the files, model.json last."""
    for name, array in saved.model.arrays().items():
        writer.array(f"arrays/{name}.npy", array)
    for name in _RATINGS_ARRAYS:
        writer.array(f"ratings/{name}.npy", getattr(saved.ratings, name))
    for kind, frame in _tables(saved.ratings).items():
        writer.table(f"{kind}s.parquet", frame)
    writer.manifest(saved.model.name, saved.model.params(), saved.training)


def _tables(ratings: Ratings) -> dict[str, pl.DataFrame]:
    """Return users and items in index order, with what is known of them."""
    tables = {}
    for kind, ids, info in (
        ("user", ratings.users, ratings.user_info),
        ("item", ratings.items, ratings.item_info),
    ):
        table = ids.values.alias(kind).to_frame()
        tables[kind] = (
            table if info is None else table.join(info, on=kind, how="left", maintain_order="left")
        )
    return tables


# Reading


def _read(directory: Path, manifest: Manifest, verify: bool) -> Saved:
    check_files(directory, manifest, verify)
    ratings = _read_ratings(directory, manifest)
    arrays = {
        name.removeprefix("arrays/").removesuffix(".npy"): np.require(
            read_array(directory, name, manifest), requirements="C"
        )
        for name in manifest.files
        if name.startswith("arrays/")
    }
    try:
        model = model_class(manifest.model).from_arrays(manifest.parameters, arrays)
    except (DataError, TypeError, ValueError) as error:
        raise DamageError(f"{error}".rstrip(".")) from None
    if (model.n_users, model.n_items) != ratings.shape:
        raise DamageError(
            f"the model has {model.n_users} users and {model.n_items} items, "
            f"its ratings have {ratings.n_users} and {ratings.n_items}"
        )
    indices = ratings.indices
    if len(indices) and not (indices.min() >= 0 and indices.max() < ratings.n_items):
        raise DamageError("ratings/indices.npy names items that there are not")
    if (verify or is_small(manifest)) and not np.isfinite(ratings.values).all():
        raise DamageError("ratings/values.npy has values that are not finite")
    return Saved(model, ratings, manifest.training)


def _read_ratings(directory: Path, manifest: Manifest) -> Ratings:
    users, user_info = _table(directory, "user", manifest)
    items, item_info = _table(directory, "item", manifest)
    indptr, indices, values = (
        read_array(directory, f"ratings/{name}.npy", manifest) for name in _RATINGS_ARRAYS
    )
    if indptr.ndim != 1 or not len(indptr) or indptr[0] != 0 or (np.diff(indptr) < 0).any():
        raise DamageError("ratings/indptr.npy does not rise from 0")
    try:
        return Ratings(
            users=users,
            items=items,
            indptr=indptr,
            indices=indices,
            values=values,
            implicit=manifest.training["implicit"],
            item_info=item_info,
            user_info=user_info,
        )
    except DataError as error:
        raise DamageError(f"{error}".rstrip(".")) from None


def check_files(directory: Path, manifest: Manifest, verify: bool) -> None:
    """Check the sizes of all files, and the checksums that the module's docstring names.

    Raises
    ------
    DamageError
        Naming the first file that is not as it was saved.
    """
    for name, entry in manifest.files.items():
        _check_file(directory / name, name, entry)
    small = is_small(manifest)
    for name, entry in manifest.files.items():
        if verify or small or entry.bytes <= _ALWAYS_VERIFIED:
            _check_sum(directory / name, name, entry)


def is_small(manifest: Manifest) -> bool:
    """Whether the files are so small together that everything in them is checked."""
    return sum(entry.bytes for entry in manifest.files.values()) <= _VERIFIED_TOGETHER


def _check_file(path: Path, name: str, entry: FileEntry) -> None:
    if not path.is_file():
        raise DamageError(f"{name} is missing")
    size = path.stat().st_size
    if size != entry.bytes:
        raise DamageError(f"{name} has {size:,} bytes instead of {entry.bytes:,}")


def _check_sum(path: Path, name: str, entry: FileEntry) -> None:
    if sha256_of(path) != entry.sha256:
        raise DamageError(f"the contents of {name} have changed since it was saved")


def _listed(manifest: Manifest, name: str) -> FileEntry:
    if name not in manifest.files:
        raise DamageError(f"{MANIFEST} does not list {name}")
    return manifest.files[name]


def read_array(directory: Path, name: str, manifest: Manifest) -> NDArray[Any]:
    """Map an array into memory.

    Raises
    ------
    DamageError
        If it is not listed, or not of the type and shape that it was saved with.
    """
    entry = _listed(manifest, name)
    try:
        array = open_memmap(directory / name, mode="r")  # never unpickles, and takes no zip
    except OSError:
        raise
    except Exception:  # a header can be wrong in many ways
        raise DamageError(f"{name} is not an array of numbers") from None
    if array.dtype.kind not in "biuf" or (array.dtype.str, array.shape) != (
        entry.dtype,
        entry.shape,
    ):
        raise DamageError(
            f"{name} must be of type {entry.dtype} and shape {entry.shape}, "
            f"not {array.dtype.str} and {array.shape}"
        )
    return np.asarray(array)


def _table(directory: Path, kind: Any, manifest: Manifest) -> tuple[Ids, pl.DataFrame | None]:
    """Read the ids of users or items, and what else is known of them."""
    name = f"{kind}s.parquet"
    try:
        table = read_parquet(directory, name, manifest)
        ids = Ids(table[kind], kind)
    except (DataError, pl.exceptions.PolarsError):
        raise DamageError(f"{name} has no column of {kind} ids") from None
    if not ids.values.equals(table[kind], check_dtypes=True):
        raise DamageError(f"the {kind} ids of {name} are not in order")
    return ids, table if table.width > 1 else None


def read_parquet(directory: Path, name: str, manifest: Manifest) -> pl.DataFrame:
    """Read a table, from memory since polars takes a path for a pattern."""
    _listed(manifest, name)
    with panics_as_errors():
        content = (directory / name).read_bytes()
        reason = too_large(content, columns_of(content))
        if reason is not None:
            raise OSError(errno.ENOMEM, f"{name} {reason}".rstrip("."))
        table = pl.read_parquet(content)
    try:
        refuse_absurd(unpacked_size(table), len(content), name)
    except DataError as error:
        raise DamageError(str(error).rstrip(".")) from None
    return table
