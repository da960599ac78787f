"""Saved splits: directories with train and test files, and a split.json.

::

    SPLIT/  train.csv  test.csv  [history.csv]  [items.parquet]  [users.parquet]  split.json
        or fold-1/, fold-2/, ... and split.json
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias, TypeVar

import numpy as np
import polars as pl
from msgspec import Meta, Struct

import recsys
from recsys.data.identity import fingerprint
from recsys.data.split_parts import (
    COUNTS,
    SPLIT_FORMAT,
    SPLIT_MANIFEST,
    WEIGHTS,
    PartReading,
)
from recsys.errors import DataError, is_number
from recsys.saving import model_file
from recsys.saving.arrays import FORMAT_VERSION, as_path
from recsys.saving.storage import complete_directory, obstacle
from recsys.user_columns import check_columns, useful_columns, with_columns

if TYPE_CHECKING:
    from recsys.data.ratings import Ratings
    from recsys.evaluation.splits import Split

T = TypeVar("T")
Number: TypeAlias = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)] | float
Role: TypeAlias = Literal["train", "test", "history"]
FoldName: TypeAlias = Annotated[str, Meta(pattern=r"\Afold-[0-9]{1,9}\Z")]
_PARTS = r"(train|test|history)\.(csv|parquet)|(items|users)\.parquet"
PartName: TypeAlias = Annotated[str, Meta(pattern=rf"\A({_PARTS})\Z")]

_ROLES: tuple[Role, ...] = ("train", "test", "history")
_TOO_LARGE = 2**63
_SUFFIXES = ("csv", "tsv", "txt", "dat", "jsonl", "parquet")


class SplitManifest(Struct, frozen=True, kw_only=True):
    """Contents of split.json; `folds` are the subdirectories of a split into folds.

    Parts in `readings` have events; the others are read as `reading` tells.
    """

    format: Literal["recsys-split"] = SPLIT_FORMAT
    format_version: Literal[4] = FORMAT_VERSION
    package_version: str = ""
    method: str = "k-fold"
    parameters: dict[str, Number] = {}
    repeats: Literal["drop", "keep"] = "drop"
    description: str = ""
    fingerprint: str = ""
    counts: dict[str, int] = {}
    files: list[PartName] = []
    folds: list[FoldName] = []
    reading: PartReading = PartReading()
    readings: dict[Role, PartReading] = {}


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
    default of all), and `keep_columns`.
    """
    check_split_target(path, overwrite=overwrite)
    with complete_directory(path, "split", DataError, overwrite=overwrite) as folder:
        if hasattr(splits, "train"):
            _write_split(splits, folder, form, features, keep_columns)
            return
        names = [f"fold-{number}" for number in range(1, len(splits) + 1)]
        for name, split in zip(names, splits, strict=True):
            (folder / name).mkdir()
            _write_split(split, folder / name, form, features, keep_columns)
        manifest = SplitManifest(package_version=recsys.__version__, folds=names)
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
        if not (is_number(value) and abs(value) < _TOO_LARGE):
            raise DataError(
                f"The split cannot be saved: its parameter {name} must be a number below 2**63; "
                f"got {value!r}."
            )
    names = [f"{name}.{form}" for name in _ROLES[: len(split.parts)]]
    reading = PartReading.of(split.train, split.parts)
    readings: dict[Role, PartReading] = {}
    for role, name, ratings in zip(_ROLES, names, split.parts, strict=False):
        frame = ratings.to_frame()
        if _tell_ratings(ratings):
            readings[role] = reading.of_events(ratings)
            frame = _frame_of_events(ratings)
        if ratings.implicit:
            # Named as weights, counts would be read as weights.
            column = COUNTS if reading.weight is None else reading.weight
            frame = frame.rename({"rating": column}, strict=False)
        if readings.get(role, reading).weight not in {None, *frame.columns}:
            # A part without repeats has weights of 1.
            frame = frame.with_columns(pl.lit(1.0).alias(WEIGHTS))
        write = frame.write_csv if form == "csv" else frame.write_parquet
        write(folder / name)
    check_columns(split.train, keep_columns)
    columns = useful_columns(split.train, features, keep_columns)
    train = with_columns(split.train, columns)
    for axis in train.axes:
        if axis.table is not None:
            # `read_ratings` looks for this name next to ratings.
            names.append(f"{axis.ids.kind}s.parquet")
            axis.table.frame.write_parquet(folder / names[-1])
    counts = {
        "new_users": split.new_users,
        "new_items": split.new_items,
        "new_ratings": split.new_ratings,
    }
    # Most splits have no history.
    for role, part in zip(_ROLES, split.parts, strict=False):
        counts[f"{role}_ratings"] = part.n_ratings
    manifest = SplitManifest(
        package_version=recsys.__version__,
        method=split.method,
        parameters=split.parameters,
        repeats=split.repeats,
        description=split.description,
        fingerprint=fingerprint(*split.parts),
        counts=counts,
        files=names,
        reading=reading,
        readings=readings,
    )
    (folder / SPLIT_MANIFEST).write_bytes(model_file.to_json(manifest))


def _tell_ratings(ratings: Ratings) -> bool:
    """Return whether the events make the same ratings when they are read."""
    rule = ratings.rule
    return ratings.events is not None and rule.above is None and not rule.graded


def _frame_of_events(ratings: Ratings) -> pl.DataFrame:
    """Return a row for each event as it was read, by user."""
    log = ratings.log
    rule = ratings.rule
    in_time_order = ratings.in_time_order
    if log.seconds is not None and in_time_order is not None:
        # Rows from new to old are read as rows in no order, so that ties stay ties.
        signs = np.where(in_time_order, 1, -1)[log.users]
        log = log.reordered(np.lexsort((signs * log.seconds, log.users)))
    columns = [ratings.users.take(log.users), ratings.items.take(log.items)]
    if log.values is not None:
        columns.append(pl.Series("rating", log.values.at()))
    elif rule.weighted or not ratings.implicit:
        columns.append(pl.repeat(1.0, len(log), eager=True).alias("rating"))
    if log.seconds is not None:
        columns.append(pl.Series("timestamp", log.seconds))
    if log.kinds is not None:
        kinds = pl.Series("event", rule.kinds)
        columns.append(kinds.gather(log.kinds))
    if log.keys is not None:
        keys = pl.Series("event_id", log.keys)
        # The hash 0 stands for no id.
        columns.append(keys.cast(pl.String).set(keys == 0, None))
    return pl.DataFrame(columns)


def check_split_target(path: str | Path, *, overwrite: bool) -> None:
    """Check that a split may be saved at a path.

    Raises
    ------
    DataError
    """
    target = Path(os.path.realpath(as_path(path)))
    manifest = read_split_manifest(target) if target.is_dir() else None
    names = []
    if manifest is not None:
        names = [SPLIT_MANIFEST, *manifest.files, *manifest.folds]
    own = re.compile("|".join(map(re.escape, names)))
    if problem := obstacle(target, "saved split", manifest is not None, own, overwrite):
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
            stem in _ROLES
            and plain in _SUFFIXES
            and stem not in files
            and entry.is_file()
        ):
            files[stem] = entry
    return files if {"train", "test"} <= set(files) else None


def is_split(path: str | Path) -> bool:
    """Return whether `path` is a directory with a split or with folds."""
    if split_files(path) is not None:
        return True
    manifest = read_split_manifest(path)
    return manifest is not None and bool(manifest.folds)


def read_undisturbed(folder: Path, read: Callable[[Path], T]) -> T:
    """Return what `read` reads in a directory; call it again if another one takes its place.

    `read` gets the directory itself, not a link to it that may move.

    Raises
    ------
    DataError, OSError
    """
    for is_last in model_file.attempts():
        real = Path(os.path.realpath(folder))
        place = folder if real == folder.absolute() else real
        state = _state(place)
        try:
            result = read(place)
        except (DataError, OSError):
            if is_last or _state(Path(os.path.realpath(folder))) == state:
                raise
        else:
            if is_last or _state(place) == state:
                return result
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


def read_split_manifest(path: str | Path) -> SplitManifest | None:
    """Return the contents of split.json, or None if this package has not written one.

    Raises
    ------
    DataError
    """
    if not model_file.is_written(path, SPLIT_MANIFEST, SPLIT_FORMAT):
        return None
    return model_file.read_unlinked(
        path, SPLIT_MANIFEST, SplitManifest, "saved split", "recsys split"
    )
