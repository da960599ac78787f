"""Saved models, indexes and splits: directories of JSON and arrays, without pickle.

::

    MODEL/                                        INDEX/
        model.json                                    model.json
        arrays/NAME.npy    fitted arrays              arrays/NAME.npy    coordinates, counts
        ratings/...        indptr, indices, data      terms/...          terms in index order
        events/...         the events behind ratings
        users/..., items/...  ids                     documents/...      ids, titles, snippets
        user_table/..., item_table/...  tables of users and items, if any
        user_features/..., user_levels/... (item_...)  encoded features, and their levels

    SPLIT/  train.csv  test.csv  [history.csv]  [items.parquet]  [users.parquet]  split.json
        or fold-1/, fold-2/, ... and split.json

``metrics.json`` in a model directory has the results of `recsys evaluate`, see `recsys.versions`.

Tables are columns 0, 1, ...: numbers and booleans in ``0.npy``, texts in ``0_offsets.npy`` and
``0_bytes.npy`` (UTF-8). Lists of texts also have ``0_ends.npy``, and columns with missing values
``0_valid.npy``.

Arrays are memory-mapped. On load, all sizes, types and shapes are checked, and the checksums of
files up to 16 MB, or of all files if `verify` is set. Failures raise a `ModelFileError`, or a
`DataError` for splits.
"""

from __future__ import annotations

import os
import platform
import re
import stat
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from numbers import Real
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import numpy as np
import polars as pl
from numpy.typing import NDArray
from polars.exceptions import PolarsError

import recsys
from lowrank import kernels
from recsys import model_file
from recsys.addresses import Location, located
from recsys.atomic import hidden_names, put_in_place, recover, unfinished_directory
from recsys.data.axis import Axis
from recsys.data.features import Features
from recsys.data.identity import fingerprint, period_of
from recsys.data.ids import joined_texts
from recsys.data.ratings import Ratings
from recsys.data.split_parts import COUNTS, SPLIT_FORMAT, SPLIT_MANIFEST, PartReading
from recsys.errors import DataError, ModelFileError, RecsysError
from recsys.messages import system_reason
from recsys.model_file import MODEL, Form, Manifest, Saved, format_of
from recsys.models.registry import MODELS, model_class
from recsys.saved_arrays import (
    FORMAT_VERSION,
    MANIFEST,
    DamageError,
    as_path,
    sha256_of,
)
from recsys.user_columns import (
    check_columns,
    saved_columns,
    useful_columns,
    with_columns,
)

if TYPE_CHECKING:
    from recsys.evaluation.splits import Split

T = TypeVar("T")

_SIDES: tuple[model_file.Side, ...] = ("user", "item")
_OWN = re.compile(
    rf"{re.escape(MANIFEST)}|{re.escape(model_file.MEASURED)}|{hidden_names(model_file.MEASURED)}|"
    rf"{model_file.FOLDER}"
)
_ROWS = ("indptr", "indices", "data")
_PARTS = ("train", "test", "history")
_TOO_LARGE = 2**63
_SUFFIXES = ("csv", "tsv", "txt", "dat", "jsonl", "parquet")


def save_model(saved: Saved, path: str | Path, *, overwrite: bool = False) -> None:
    """Write a model to a new directory atomically.

    `overwrite` replaces a saved model at `path`, but no other directory or file. Of the table of
    users, the columns in use and those to keep are written.

    Raises
    ------
    ModelFileError
    """
    provenance = saved.provenance
    name = saved.model.name
    if name not in MODELS or model_class(name) is not type(saved.model):
        raise ModelFileError(
            f"A saved {type(saved.model).__name__} could not be loaded again, since "
            f"recsys.models.registry.MODELS has no model {name!r}. Register it first."
        )
    saved.model._check_finite()
    columns = saved_columns(saved.ratings, provenance.keep_columns)
    ratings = with_columns(saved.ratings, columns)
    contents = _contents(ratings)
    for key, array in saved.model._arrays().items():
        contents.arrays[f"arrays/{key}"] = array
    source = ratings.source
    with target_directory(path, MODEL, overwrite) as directory:
        write_directory(
            directory,
            MODEL,
            name,
            contents.arrays,
            contents.tables,
            contents.of_features,
            ratings,
            parameters=saved.model.get_params(),
            training=saved.training,
            source=provenance.source if source is None else str(source),
            features=contents.blocks,
            feature_request=ratings.feature_request,
            untyped=list(ratings.untyped),
            title=None if ratings.item_table is None else ratings.item_table.title,
            rule=model_file.RuleEntry.from_rule(ratings.rule),
            feedback=model_file.FeedbackEntry.from_feedback(ratings.feedback),
            reading=provenance.reading,
            request=provenance.request,
            keep_columns=provenance.keep_columns,
            period=period_of(ratings),
            parent=provenance.parent,
            tag=provenance.tag,
        )


@dataclass(frozen=True, slots=True)
class _Contents:
    """Arrays and tables of ratings; some tables are of features, which have `blocks`."""

    arrays: dict[str, NDArray[Any]] = field(default_factory=dict)
    tables: dict[str, pl.DataFrame] = field(default_factory=dict)
    of_features: dict[str, Features] = field(default_factory=dict)
    blocks: dict[model_file.Side, list[model_file.BlockEntry]] = field(
        default_factory=dict
    )


def _contents(ratings: Ratings) -> _Contents:
    """Return what is saved of ratings."""
    contents = _Contents()
    for key in (*_ROWS, "levels", "seconds", "in_time_order"):
        array = getattr(ratings, key)
        if array is not None:
            contents.arrays[f"ratings/{key}"] = array
    if ratings.events is not None:
        for key, array in ratings.events.arrays().items():
            contents.arrays[f"events/{key}"] = array
    contents.tables["users"] = ratings.users.values.to_frame()
    contents.tables["items"] = ratings.items.values.to_frame()
    for side in _SIDES:
        _add_axis(contents, side, ratings.axis(side))
    return contents


def _add_axis(contents: _Contents, side: model_file.Side, axis: Axis) -> None:
    """Add the table of users or items, and its encoded features."""
    table, features = axis.table, axis.features
    if table is not None:
        contents.tables[f"{side}_table"] = table.frame
        contents.of_features[f"{side}_table"] = table
    encoder = axis.encoder
    if encoder is None or features is None:
        return
    # The encoder is saved, so that features of new users or items are encoded alike.
    state = encoder.state()
    contents.blocks[side] = [model_file.BlockEntry(**entry) for entry in state.entries]
    contents.tables[f"{side}_levels"] = state.levels
    for key in _ROWS:
        contents.arrays[f"{side}_features/{key}"] = getattr(features.matrix, key)
    for key, array in state.components.items():
        contents.arrays[f"{side}_features/{key}"] = array


@contextmanager
def target_directory(path: str | Path, form: Form, overwrite: bool) -> Iterator[Path]:
    """Yield a temporary directory that is renamed to `path` at the end.

    Raises
    ------
    ModelFileError, DataError
    """
    path, noun = (
        check_target(path, form, overwrite=overwrite),
        form.noun.rpartition(" ")[2],
    )
    try:
        with _complete(path, noun, ModelFileError, overwrite=overwrite) as directory:
            yield directory
    except TypeError as error:
        raise DataError(f"The {noun} cannot be saved: {error}.") from error


def check_target(path: str | Path, form: Form, *, overwrite: bool) -> Path:
    """Check that a model or index may be saved at a path, and return the resolved path.

    Raises
    ------
    ModelFileError
    """
    noun = form.noun.rpartition(" ")[2]
    if isinstance(place := located(os.fspath(path)), Location):
        raise ModelFileError(
            f"The {noun} cannot be saved in {place}: it is not a path."
        )
    path = as_path(path)
    target = Path(os.path.realpath(path))
    recover(target)
    is_ours = target.is_dir() and format_of(target) == form.format
    if problem := _obstacle(target, form.noun, is_ours, _OWN, overwrite):
        raise ModelFileError(f"The {noun} cannot be saved in {path}: {problem}")
    return path


@contextmanager
def _complete(
    path: str | Path, noun: str, failure: type[RecsysError], *, overwrite: bool
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


def _obstacle(
    target: Path, noun: str, is_ours: bool, own: re.Pattern[str], overwrite: bool
) -> str | None:
    """Return the reason why a directory must not be written at `target`, or None."""
    if not target.parent.is_dir():
        return f"there is no directory {target.parent}."
    if not target.exists():
        return None
    if not is_ours:
        return f"it exists and is not a {noun}, so it is not replaced; choose another path."
    if not overwrite:
        return f"there is a {noun} already; choose another path, or overwrite it (--force)."
    names = sorted(entry.name for entry in target.iterdir())
    if foreign := ", ".join([name for name in names if not own.fullmatch(name)][:3]):
        return (
            f"it holds other files next to the {noun} ({foreign}), so it is not replaced; move "
            "them or choose another path."
        )
    return None


def write_directory(
    directory: Path,
    form: Form,
    model: str,
    arrays: Mapping[str, NDArray[Any]],
    tables: Mapping[str, pl.DataFrame],
    of_features: Mapping[str, Features],
    ratings: Ratings | None,
    **fields: Any,
) -> None:
    """Write arrays and tables, then model.json with the fingerprint of `ratings`."""
    columns, of_tables = _columns(tables, of_features)
    everything = {**arrays, **of_tables}
    for folder in {name.partition("/")[0] for name in everything}:
        (directory / folder).mkdir()

    def saved(name: str) -> model_file.FileEntry:
        return _written(directory / f"{name}.npy", everything[name])

    with ThreadPoolExecutor(kernels.available_cores()) as pool:  # for the checksums
        mark = None if ratings is None else pool.submit(fingerprint, ratings)
        entries = {
            f"{name}.npy": entry
            for name, entry in zip(everything, pool.map(saved, everything), strict=True)
        }
    versions = {"python": platform.python_version(), "kernels": str(kernels.backend())}
    versions |= {"numpy": np.__version__, "polars": pl.__version__}
    manifest = Manifest(
        format=form.format,
        model=model,
        format_version=FORMAT_VERSION,
        package_version=recsys.__version__,
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        versions=versions,
        fingerprint=None if mark is None else mark.result(),
        columns=columns,
        files=entries,
        **fields,
    )
    (directory / MANIFEST).write_bytes(model_file.to_json(manifest))


def _written(path: Path, array: NDArray[Any]) -> model_file.FileEntry:
    """Write an array, and describe its file."""
    np.save(path, array, allow_pickle=False)
    n_bytes = path.stat().st_size
    return model_file.FileEntry(sha256_of(path), n_bytes, array.dtype.str, array.shape)


def _columns(
    tables: Mapping[str, pl.DataFrame], of_features: Mapping[str, Features]
) -> tuple[dict[str, list[model_file.ColumnEntry]], dict[str, Any]]:
    """Return the columns of tables and their arrays."""
    columns: dict[str, list[model_file.ColumnEntry]] = {}
    arrays: dict[str, Any] = {}
    for table, frame in tables.items():
        columns[table] = []
        for number, series in enumerate(frame.get_columns()):
            kind, parts = encoded(series)
            entry = model_file.ColumnEntry(series.name, kind)
            if (features := of_features.get(table)) is not None:
                name = series.name
                of_values, read_as = (
                    features.kinds.get(name),
                    features.read_as.get(name),
                )
                entry = model_file.ColumnEntry(name, kind, of_values, read_as)
            columns[table].append(entry)
            arrays |= {
                f"{table}/{number}{suffix}": array for suffix, array in parts.items()
            }
    return columns, arrays


def encoded(series: pl.Series) -> tuple[model_file.ColumnType, dict[str, NDArray[Any]]]:
    """Return the type of a column, and its arrays by name suffix.

    Raises
    ------
    ModelFileError
        If values of its type cannot be saved.
    """
    kind: model_file.ColumnType = "number"
    arrays: dict[str, NDArray[Any]] = {}
    if series.null_count():
        arrays["_valid"] = series.is_not_null().to_numpy()
    if series.dtype == pl.List(pl.String):
        counts = series.list.len().fill_null(0).cast(pl.Int64)
        arrays["_ends"] = counts.cum_sum().to_numpy()
        kind, series = "list", series.filter(counts > 0).explode()
    if isinstance(series.dtype, pl.String | pl.Categorical | pl.Enum):
        kind = "list" if kind == "list" else "text"
        texts = series.cast(pl.String).fill_null("")
        arrays["_bytes"], arrays["_offsets"] = joined_texts(texts)
        return kind, arrays
    if series.dtype == pl.Date:
        kind, series = "date", series.cast(pl.Int32)
    elif isinstance(series.dtype, pl.Datetime):
        kind, series = "datetime", series.dt.cast_time_unit("us").cast(pl.Int64)
    if (
        not (series.dtype.is_numeric() or series.dtype == pl.Boolean)
        or series.dtype.is_decimal()
    ):
        raise ModelFileError(
            f"The column {series.name!r} of the metadata cannot be saved: it has {series.dtype} "
            "values; texts, lists of texts, numbers, booleans and dates can be."
        )
    filled = series.fill_null(0 if series.dtype != pl.Boolean else False)
    return kind, arrays | {"": filled.to_numpy()}


def save_split(
    splits: Split | Sequence[Split],
    path: str | Path,
    *,
    form: Literal["csv", "parquet"] = "csv",
    overwrite: bool = False,
    features: Sequence[str] | None = None,
    keep_columns: Sequence[str] = (),
) -> None:
    """Save a split, or several folds, in a new directory; see `save_model`.

    Tables of items and users are saved as items.parquet and users.parquet, where `read_ratings`
    finds them. Of the table of users, the columns that can be features are saved (of `features`, by
    default of all), and those of `keep_columns`.
    """
    check_split_target(path, overwrite=overwrite)
    with _complete(path, "split", DataError, overwrite=overwrite) as folder:
        if hasattr(splits, "train"):
            _write_split(splits, folder, form, features, keep_columns)
            return
        names = [f"fold-{number}" for number in range(1, len(splits) + 1)]
        for name, split in zip(names, splits, strict=True):
            (folder / name).mkdir()
            _write_split(split, folder / name, form, features, keep_columns)
        manifest = model_file.SplitManifest(
            package_version=recsys.__version__, folds=names
        )
        (folder / SPLIT_MANIFEST).write_bytes(model_file.to_json(manifest))


def _write_split(
    split: Any,
    folder: Path,
    form: str,
    features: Sequence[str] | None,
    keep_columns: Sequence[str],
) -> None:
    split.check()
    for name, value in split.parameters.items():  # as split.json can hold them
        is_number = isinstance(value, Real) and not isinstance(value, bool)
        if not (is_number and abs(value) < _TOO_LARGE):
            raise DataError(
                f"The split cannot be saved: its parameter {name} must be a number below 2**63; "
                f"got {value!r}."
            )
    names = [f"{name}.{form}" for name in _PARTS[: len(split.parts)]]
    reading = PartReading.of(split.train, split.parts)
    for name, ratings in zip(names, split.parts, strict=True):
        frame = ratings.to_frame()
        if ratings.implicit:
            column = COUNTS if reading.weight is None else reading.weight
            frame = frame.rename({"rating": column}, strict=False)
        frame.write_csv(folder / name) if form == "csv" else frame.write_parquet(
            folder / name
        )
    check_columns(split.train, keep_columns)
    train = with_columns(
        split.train, useful_columns(split.train, features, keep_columns)
    )
    for side in _SIDES:  # under names that `read_ratings` looks for next to ratings
        table = train.axis(side).table
        if table is not None:
            names.append(f"{side}s.parquet")
            table.frame.write_parquet(folder / names[-1])
    counts = {
        name: getattr(split, name) for name in ("new_users", "new_items", "new_ratings")
    }
    counts |= {
        f"{name}_ratings": p.n_ratings
        for name, p in zip(_PARTS, split.parts, strict=False)
    }
    manifest = model_file.SplitManifest(
        package_version=recsys.__version__,
        method=split.method,
        parameters=split.parameters,
        repeats=split.repeats,
        description=split.description,
        fingerprint=fingerprint(*split.parts),
        counts=counts,
        files=names,
        reading=reading,
    )
    (folder / SPLIT_MANIFEST).write_bytes(model_file.to_json(manifest))


def check_split_target(path: str | Path, *, overwrite: bool) -> None:
    """Check that a split may be saved at a path.

    Raises
    ------
    DataError
    """
    target = Path(os.path.realpath(path))
    manifest = read_split_manifest(target) if target.is_dir() else None
    names = (
        [] if manifest is None else [SPLIT_MANIFEST, *manifest.files, *manifest.folds]
    )
    own = re.compile("|".join(map(re.escape, names)))
    if problem := _obstacle(
        target, "saved split", manifest is not None, own, overwrite
    ):
        raise DataError(f"The split cannot be saved in {path}: {problem}")


def split_files(path: str | Path) -> dict[str, Path] | None:
    """Return the train, test and history files of a directory, or None if it is not a split.

    Any directory with a train and a test file is a split, such as LightGCN's.
    """
    folder = Path(path)
    if not folder.is_dir():
        return None
    files: dict[str, Path] = {}
    for entry in sorted(folder.iterdir()):
        stem, _, suffix = entry.name.partition(".")
        plain = suffix.removesuffix(".gz").removesuffix(".zst")
        if (
            stem in _PARTS
            and plain in _SUFFIXES
            and stem not in files
            and entry.is_file()
        ):
            files[stem] = entry
    return files if {"train", "test"} <= set(files) else None


def is_split(path: str | Path) -> bool:
    """Return whether `path` is a directory with a split or with folds."""
    return split_files(path) is not None or bool(
        (m := read_split_manifest(path)) and m.folds
    )


def read_undisturbed(folder: Path, read: Callable[[Path], T]) -> T:
    """Return what `read` reads in a directory; call it again if another one takes its place.

    `read` gets the directory itself, not a link to it that may move.

    Raises
    ------
    DataError, OSError
    """
    for attempt in range(1, model_file.ATTEMPTS + 1):
        real = Path(os.path.realpath(folder))
        place = folder if real == folder.absolute() else real
        state = _state(place)
        try:
            result = read(place)
        except (DataError, OSError):
            if (
                attempt == model_file.ATTEMPTS
                or _state(Path(os.path.realpath(folder))) == state
            ):
                raise
        else:
            if attempt == model_file.ATTEMPTS or _state(place) == state:
                return result
        time.sleep(attempt * model_file.PAUSE)
    raise AssertionError("the last attempt returns or raises")


def _state(folder: Path) -> tuple[tuple[int, int, int], ...]:
    """Return what changes if another split takes the place of one."""
    entries = []
    for path in (folder, folder / SPLIT_MANIFEST):
        with suppress(OSError):
            status = path.stat()
            is_directory = stat.S_ISDIR(status.st_mode)
            changed = 0 if is_directory else status.st_mtime_ns
            entries.append((status.st_dev, status.st_ino, changed))
    return tuple(entries)


def read_split_manifest(path: str | Path) -> model_file.SplitManifest | None:
    """Return the contents of split.json, or None if this package has not written one.

    Raises
    ------
    DataError
    """
    file = Path(path) / SPLIT_MANIFEST
    if not file.is_file() or SPLIT_FORMAT.encode() not in file.read_bytes():
        return None
    links = sorted(entry.name for entry in Path(path).iterdir() if entry.is_symlink())
    if links:
        raise DataError(
            f"{path} is a saved split with a link, {links[0]}; links in it are not followed, so "
            "put the file itself there."
        )
    try:
        return model_file.checked(
            model_file.read_document(file), model_file.SplitManifest, file.name
        )
    except DamageError as error:
        raise DataError(f"{file} is damaged: {error}.") from None
