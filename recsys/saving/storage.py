"""Saved models and indexes: directories of JSON and arrays, without pickle.

::

    MODEL/                                        INDEX/
        model.json                                    model.json
        arrays/NAME.npy    fitted arrays              arrays/NAME.npy    coordinates, counts
        ratings/...        indptr, indices, data      terms/...          terms in index order
        events/...         the events behind ratings
        users/..., items/...  ids                     documents/...      ids, titles, snippets
        user_table/..., item_table/...  tables of users and items, if any
        user_features/..., user_levels/... (item_...)  encoded features, and their levels

``metrics.json`` in a model directory has the results of `recsys evaluate`, see `recsys.versions`.

Tables are columns 0, 1, ...: numbers and booleans in ``0.npy``, texts in ``0_offsets.npy`` and
``0_bytes.npy`` (UTF-8). Lists of texts also have ``0_ends.npy``, and columns with missing values
``0_valid.npy``.

Arrays are memory-mapped. On load, all sizes, types and shapes are checked, and the checksums of
files up to 16 MB, or of all files if `verify` is set. Failures raise a `ModelFileError`.
"""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Iterator, Mapping, Sequence, Sized
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, replace
from datetime import UTC, datetime
from functools import cache, partial
from pathlib import Path
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import polars as pl
from msgspec.structs import asdict as as_dict
from numpy.typing import NDArray
from polars.exceptions import PolarsError

import recsys
from lowrank import kernels
from recsys.addresses import Location, located
from recsys.data.csr import Events, Values
from recsys.data.features import Features
from recsys.data.feedback import Feedback
from recsys.data.identity import fingerprint, period_of
from recsys.data.ids import Ids
from recsys.data.kinds import FeatureKind
from recsys.data.ratings import Ratings
from recsys.data.rows import check_scale
from recsys.errors import DataError, ModelFileError, RecsysError, check_flags
from recsys.messages import system_reason
from recsys.models.base import Model
from recsys.models.registry import MODELS, is_made_by_name
from recsys.provenance import Provenance
from recsys.saving import model_file
from recsys.saving.arrays import (
    DTYPES,
    FORMAT_VERSION,
    MANIFEST,
    DamageError,
    SavedDirectory,
    as_path,
    check_finite,
    check_rows,
    check_sorted_rows,
    sha256_of,
)
from recsys.saving.atomic import (
    hidden_names,
    put_in_place,
    recover,
    unfinished_directory,
)
from recsys.saving.model_file import MODEL, Arrays, Form, Manifest, format_of, listed
from recsys.saving.tables import Table, check_features, encoded_tables, saved_table
from recsys.user_columns import saved_columns, with_columns

if TYPE_CHECKING:
    from lowrank.completion.feature_ridge import GroupedFeatures

_OWN = re.compile(
    rf"{re.escape(MANIFEST)}|{re.escape(model_file.MEASURED)}|{hidden_names(model_file.MEASURED)}|"
    rf"{model_file.FOLDER}"
)
_SIDES: tuple[model_file.Side, ...] = ("user", "item")
_ROWS = ("indptr", "indices", "data")


@dataclass(frozen=True, slots=True)
class Saved:
    """A fitted model with its ratings, training summary and provenance."""

    model: Model
    ratings: Ratings
    training: dict[str, Any]
    provenance: Provenance = field(default_factory=Provenance)


def save_model(
    saved: Saved,
    path: str | Path,
    *,
    overwrite: bool = False,
) -> None:
    """Write a model to a new directory atomically.

    `overwrite` replaces a saved model at `path`, but no other directory or file. Of the table of
    users, the columns in use and those to keep are written.

    Raises
    ------
    ModelFileError
    """
    provenance = saved.provenance
    name = saved.model.name
    if not is_made_by_name(saved.model):
        raise ModelFileError(
            f"A saved {type(saved.model).__name__} could not be loaded again: its class needs the "
            f"decorator @model, and a name that no class defined since has, as {name!r} may be."
        )
    _check_loadable(saved.model)
    # A model that is not finite could not be loaded again.
    saved.model._check_finite()
    # Personal columns that no feature needs are not saved.
    columns = saved_columns(saved.ratings, provenance.keep_columns)
    ratings = with_columns(saved.ratings, columns)
    arrays = _arrays_of(ratings)
    for key, array in saved.model._arrays().items():
        arrays[f"arrays/{key}"] = array
    tables: dict[str, Table] = {}
    features: dict[model_file.Side, list[model_file.BlockEntry]] = {}
    for side in _SIDES:
        axis = ratings.axis(side)
        tables[f"{side}s"] = axis.ids.values.to_frame()
        if axis.table is not None:
            tables[f"{side}_table"] = axis.table
        if axis.encoder is None or axis.features is None:
            continue
        # The encoder is saved, so that features of new users or items are encoded alike.
        state = axis.encoder.state()
        features[side] = [model_file.BlockEntry(**entry) for entry in state.entries]
        tables[f"{side}_levels"] = state.levels
        for key in _ROWS:
            arrays[f"{side}_features/{key}"] = getattr(axis.features.matrix, key)
        for key, array in state.components.items():
            arrays[f"{side}_features/{key}"] = array
    source = ratings.source
    with target_directory(path, MODEL, overwrite) as directory:
        write_directory(
            directory,
            MODEL,
            name,
            arrays,
            tables,
            ratings,
            parameters=saved.model.get_params(),
            training=saved.training,
            source=provenance.source if source is None else str(source),
            features=features,
            feature_request=ratings.feature_request,
            untyped=list(ratings.untyped),
            title=None if ratings.item_table is None else ratings.item_table.title,
            is_catalogue=getattr(ratings.item_table, "is_catalogue", False),
            rule=ratings.rule,
            feedback=model_file.FeedbackEntry.from_feedback(ratings.feedback),
            reading=provenance.reading,
            request=provenance.request,
            keep_columns=provenance.keep_columns,
            chances=provenance.chances,
            period=period_of(ratings),
            parent=provenance.parent,
            tag=provenance.tag,
        )


def _check_loadable(model: Model) -> None:
    """Check that a model of one's own, with all that a fit has set, could be loaded again.

    Raises
    ------
    ModelFileError
    """
    members: Sequence[Model] = getattr(model, "parts", ())
    for member in members:
        _check_loadable(member)
    if model.name in MODELS:
        return  # whose arrays tests have saved and loaded
    kind = type(model)
    declared = {entry.name for entry in fields(model)}
    # Instances have what a fit sets; the class has what is declared.
    for name in vars(model):
        is_private = name.startswith("_")  # caches are computed again
        if not is_private and name not in declared and not hasattr(kind, name):
            raise ModelFileError(
                f"{name} of a {kind.__name__} would not be saved; make it an array or a number, "
                f"and declare it in the class, as in: {name}: np.ndarray = fitted()."
            )
    arrays = model._arrays()
    try:
        for name, array in arrays.items():
            if array.dtype.str not in DTYPES:
                raise DataError(
                    f"The array {name!r} must have numbers or booleans; got {array.dtype}."
                )
        kind._from_arrays(model.get_params(), arrays)
    except ValueError as error:
        raise ModelFileError(
            f"A saved {kind.__name__} could not be loaded again: {error}"
        ) from error


def _arrays_of(ratings: Ratings) -> Arrays:
    """Return the arrays of ratings and their events, by the names of their files."""
    arrays: Arrays = {}
    for key in (*_ROWS, "levels", "seconds", "in_time_order"):
        array = getattr(ratings, key)
        if array is not None:
            arrays[f"ratings/{key}"] = array
    if ratings.events is not None:
        for key, array in ratings.events.saved_arrays().items():
            arrays[f"events/{key}"] = array
    return arrays


@contextmanager
def target_directory(
    path: str | Path,
    form: Form,
    overwrite: bool,
) -> Iterator[Path]:
    """Yield a temporary directory that is renamed to `path` at the end.

    Raises
    ------
    ModelFileError, DataError
    """
    path = check_target(path, form, overwrite=overwrite)
    noun = form.noun.rpartition(" ")[2]
    target = complete_directory(path, noun, ModelFileError, overwrite=overwrite)
    try:
        with target as directory:
            yield directory
    except TypeError as error:
        raise DataError(f"The {noun} cannot be saved: {error}.") from error


def check_target(
    path: str | Path,
    form: Form,
    *,
    overwrite: bool,
) -> Path:
    """Check that a model or index may be saved at a path, and return the resolved path.

    Raises
    ------
    ModelFileError
    """
    noun = form.noun.rpartition(" ")[2]
    place = as_path(path)
    if isinstance(located(os.fspath(path)), Location):
        raise ModelFileError(
            f"The {noun} cannot be saved in {place}: it is not a path."
        )
    path = place
    target = Path(os.path.realpath(path))
    recover(target)
    # Only a saved model or index is replaced, never another directory.
    is_ours = target.is_dir() and format_of(target) == form.format
    if problem := obstacle(target, form.noun, is_ours, _OWN, overwrite):
        raise ModelFileError(f"The {noun} cannot be saved in {path}: {problem}")
    return path


@contextmanager
def complete_directory(
    path: str | Path,
    noun: str,
    failure: type[RecsysError],
    *,
    overwrite: bool,
) -> Iterator[Path]:
    """Yield a new directory that is moved to `path` at the end."""
    target = Path(os.path.realpath(path))
    try:
        with unfinished_directory(target) as directory:
            yield directory
            put_in_place(directory, target, replace=overwrite)
    except FileExistsError as error:
        raise failure(
            f"The {noun} cannot be saved in {path}: another process has saved one there in the "
            "meantime; choose another path, or overwrite it (--force)."
        ) from error
    except (OSError, PolarsError) as error:
        reason = system_reason(error) or str(error)
        if "requested and" in reason:  # NumPy's message for a short write
            reason = "the disk is full, or files may not be so large"
        raise failure(f"The {noun} cannot be saved in {path}: {reason}.") from error


def obstacle(
    target: Path,
    noun: str,
    is_ours: bool,
    own: re.Pattern[str],
    overwrite: bool,
) -> str | None:
    """Return the reason why a directory must not be written at `target`, or None."""
    check_flags(overwrite=overwrite)
    if not target.parent.is_dir():
        return f"there is no directory {target.parent}."
    if not target.exists():
        return None
    if not is_ours:
        return f"it exists and is not a {noun}, so it is not replaced; choose another path."
    if not overwrite:
        return f"there is a {noun} already; choose another path, or overwrite it (--force)."
    # Files of somebody else are not removed with the old model.
    names = sorted(entry.name for entry in target.iterdir())
    others = [name for name in names if not own.fullmatch(name)]
    if others:
        foreign = ", ".join(others[:3])
        return (
            f"it holds other files next to the {noun} ({foreign}), so it is not replaced; move "
            "them or choose another path."
        )
    return None


def write_directory(
    directory: Path,
    form: Form,
    model: str,
    arrays: Arrays,
    tables: Mapping[str, Table],
    ratings: Ratings | None,
    **fields: Any,
) -> None:
    """Write arrays and tables, then model.json with the fingerprint of `ratings`."""
    columns, of_tables = encoded_tables(tables)
    arrays = arrays | of_tables
    for folder in {name.partition("/")[0] for name in arrays}:
        (directory / folder).mkdir()

    def written(name: str) -> model_file.FileEntry:
        path, array = directory / f"{name}.npy", arrays[name]
        np.save(path, array, allow_pickle=False)
        size = path.stat().st_size
        return model_file.FileEntry(sha256_of(path), size, array.dtype.str, array.shape)

    with ThreadPoolExecutor(kernels.available_cores()) as pool:  # for the checksums
        # The hash of the ratings takes as long as the files.
        mark = None if ratings is None else pool.submit(fingerprint, ratings)
        entries = zip(arrays, pool.map(written, arrays), strict=True)
        files = {f"{name}.npy": entry for name, entry in entries}
    manifest = Manifest(
        format=form.format,
        model=model,
        format_version=FORMAT_VERSION,
        package_version=_package_version(),
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        versions={
            "python": platform.python_version(),
            "kernels": str(kernels.backend()),
            "numpy": np.__version__,
            "polars": pl.__version__,
        },
        fingerprint=None if mark is None else mark.result(),
        columns=columns,
        files=files,
        **fields,
    )
    # Last of all, as this file makes the directory a saved model.
    (directory / MANIFEST).write_bytes(model_file.to_json(manifest))


@cache
def _package_version() -> str:
    """Return the version of this package, which takes milliseconds to look up."""
    return str(recsys.__version__)


def load_model(path: str | Path, *, verify: bool = False) -> Saved:
    """Load a saved model; `verify` also checks the checksums of large files.

    Raises
    ------
    ModelFileError
    """
    read = partial(_loaded_model, verify=verify)
    return model_file.read_directory(path, MODEL, read)


def _loaded_model(directory: SavedDirectory, verify: bool) -> Saved:
    """Load the model in a saved directory.

    Raises
    ------
    DamageError, ModelFileError
    """
    if format_of(directory.real) == model_file.SPARK_FORMAT:
        # Its Parquet files are read by their paths, so they may be of two models.
        load_result = resolve_name("recsys.spark.results:load_result")
        saved = Saved(*load_result(directory.real))
        if directory.was_replaced():
            raise DamageError("it was replaced while it was read")
        check_finite(saved.model._arrays())
        return saved
    manifest, arrays, model = model_file.opened_model(directory, verify=verify)
    users = _saved_ids(arrays, manifest, "user")
    items = _saved_ids(arrays, manifest, "item")
    shape = model.n_users, model.n_items
    if shape != (len(users), len(items)):
        raise DamageError(
            f"the model is of shape {shape}, not {(len(users), len(items))}"
        )
    ratings = _saved_ratings(arrays, manifest, users, items)
    for axis in ratings.axes:
        n_features = 0 if axis.features is None else axis.features.matrix.shape[1]
        model._check_features(axis.ids.kind, n_features)
    origin = {entry.name: getattr(manifest, entry.name) for entry in fields(Provenance)}
    return Saved(model, ratings, manifest.training, Provenance(**origin))


def _saved_ids(
    arrays: Arrays,
    manifest: Manifest,
    kind: str,
) -> Ids:
    """Return the saved ids of users or items."""
    table = saved_table(arrays, manifest, f"{kind}s")
    dtypes = table.schema.dtypes()
    if table.columns != [kind] or dtypes[0] not in (pl.Int64, pl.String):
        raise DamageError(f"the {kind}s have no column of ids")
    ids = Ids(table[kind], kind)
    # The rows of all arrays are in this order.
    if not ids.values.equals(table[kind]):
        raise DamageError(f"the {kind} ids are not in order")
    return ids


def _saved_ratings(
    arrays: Arrays,
    manifest: Manifest,
    users: Ids,
    items: Ids,
) -> Ratings:
    """Return the training ratings of a saved model, with its tables and features."""
    indptr, indices, data = (listed(arrays, f"ratings/{name}") for name in _ROWS)
    check_sorted_rows("ratings/indptr", indptr, indices, len(items), len(users))
    levels = arrays.get("ratings/levels")
    _check_codes("ratings/data", data, levels)
    implicit = bool(manifest.training["implicit"])
    rule = manifest.rule
    if len(rule.kinds) != len(rule.weights) or not np.isfinite(rule.weights).all():
        raise DamageError(f"the kinds of events in {MANIFEST} need a weight each")
    if rule.half_life is not None and not rule.half_life > 0:
        raise DamageError(f"the half-life in {MANIFEST} must be positive")
    scale = manifest.reading.get("scale")
    ratings = Ratings(
        users,
        items,
        indptr,
        indices,
        data,
        arrays.get("ratings/seconds"),
        implicit=implicit,
        item_table=_saved_features(arrays, manifest, "item"),
        user_table=_saved_features(arrays, manifest, "user"),
        item_features=_saved_blocks(arrays, manifest, items),
        user_features=_saved_blocks(arrays, manifest, users),
        levels=levels,
        events=_saved_events(arrays, manifest, len(users), len(items)),
        rule=rule,
        scale=None if scale is None else check_scale(scale),
        feature_request=manifest.feature_request,
        untyped=tuple(manifest.untyped),
        in_time_order=arrays.get("ratings/in_time_order"),
    )
    decision = manifest.feedback
    if decision is None:
        return ratings
    low, high = ratings.value_range()  # not saved, since the values are
    feedback = Feedback(decision.kind, low, high, decision.name, common=decision.common)
    return replace(ratings, feedback=feedback)


def _saved_features(
    arrays: Arrays,
    manifest: Manifest,
    kind: str,
) -> Features | None:
    """Return the saved table of users or items, or None."""
    name: Any = f"{kind}_table"
    if name not in manifest.columns:
        return None
    entries = manifest.columns[name][1:]
    kinds = {entry.name: entry.kind for entry in entries}
    read_as = {
        entry.name: entry.read_as for entry in entries if entry.read_as is not None
    }
    frame = saved_table(arrays, manifest, name)
    check_features(frame, kind, kinds)
    return Features(
        frame,
        cast("dict[str, FeatureKind]", kinds),
        read_as=read_as,
        is_catalogue=kind == "item" and manifest.is_catalogue,
    )


def _saved_events(
    arrays: Mapping[str, NDArray[Any]],
    manifest: Manifest,
    n_users: int,
    n_items: int,
) -> Events | None:
    """Return the saved events, or None if the ratings tell everything.

    Raises
    ------
    DamageError
    """
    if "events/indptr" not in arrays:
        return None
    indptr, items = arrays["events/indptr"], listed(arrays, "events/items")
    check_rows("events/indptr", indptr, items, n_items, n_users)
    seconds, kinds, keys, data = (
        arrays.get(f"events/{name}") for name in ("seconds", "kinds", "keys", "data")
    )
    levels = arrays.get("events/levels")
    dtypes: dict[str, tuple[type, ...]] = {
        "indptr": (np.int64,),
        "items": (np.int32,),
        "seconds": (np.int32, np.int64, np.float64),
        "kinds": (np.uint8,),
        "keys": (np.uint64,),
        "data": (np.float32,) if levels is None else (np.uint8,),
    }
    for name, types in dtypes.items():
        array = arrays.get(f"events/{name}")
        if array is None:
            continue
        if array.dtype not in types or (
            name != "indptr" and array.shape != items.shape
        ):
            raise DamageError(f"events/{name} is not an array of {len(items)} events")
    if kinds is not None:
        _check_codes("events/kinds", kinds, manifest.rule.kinds)
    values = None
    if data is not None:
        _check_codes("events/data", data, levels)
        values = Values(cast(Any, data), levels)
    return Events(indptr, items, values, cast(Any, seconds), kinds, keys)


def _check_codes(name: str, codes: NDArray[Any], decoded: Sized | None) -> None:
    """Check that each code stands for one of the values to which codes are decoded, if any."""
    if decoded is not None and codes.max(initial=0) >= len(decoded):
        raise DamageError(f"{name} has codes beyond the {len(decoded)} saved values")


def _saved_blocks(
    arrays: Arrays,
    manifest: Manifest,
    ids: Ids,
) -> GroupedFeatures | None:
    """Return the features of users or items, if the model has any."""
    side = cast(model_file.Side, ids.kind)
    if side not in manifest.features:
        return None
    from scipy.sparse import csr_array

    # Imported here, because it needs scikit-learn and few models have features.
    from recsys.features.encoder import EncoderState, FeatureBlocks, FeatureEncoder

    levels = saved_table(arrays, manifest, f"{side}_levels")
    if (
        levels.schema != {"level": pl.String, "weight": pl.Float64}
        or levels["weight"].has_nulls()
    ):
        raise DamageError(f"{side}_levels are not levels and their weights")
    folder = f"{side}_features/"
    names = [name for name in arrays if name.startswith(folder)]
    of_side = {name.removeprefix(folder): arrays[name] for name in names}
    entries = [as_dict(entry) for entry in manifest.features[side]]
    encoder = FeatureEncoder.from_state(side, EncoderState(entries, levels, of_side))
    indptr, indices, data = (listed(arrays, f"{folder}{name}") for name in _ROWS)
    check_rows(f"{folder}indptr", indptr, indices, len(encoder.names))
    if (
        len(indptr) != len(ids) + 1
        or data.shape != indices.shape
        or data.dtype != np.float32
    ):
        raise DamageError(f"the {side} features are not a matrix of {len(ids)} rows")
    if not levels["weight"].is_finite().all():
        raise DamageError(f"the {side} features are not all finite")
    shape = len(ids), len(encoder.names)
    return FeatureBlocks(csr_array((data, indices, indptr), shape=shape), encoder)
