"""Versions: saved models in a directory, their measured metrics, and a link to the latest one.

::

    DIR/
        2025-06-08/     a saved model
        2025-06-09/     a saved model, with metrics.json after `recsys evaluate`
        latest          a link to one of them, for `recsys serve DIR/latest`
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

import polars as pl
from msgspec import Struct
from msgspec.structs import asdict as as_dict

from recsys.data.ids import Ids
from recsys.errors import DataError, ModelFileError, RecsysError
from recsys.evaluation.results import Evaluation
from recsys.evaluation.slices import SLICE_NAME
from recsys.messages import system_reason
from recsys.saving import model_file
from recsys.saving.arrays import (
    MANIFEST,
    MODEL_FORMAT,
    DamageError,
    SavedDirectory,
    as_path,
    mapped,
)
from recsys.saving.atomic import (
    exclusive,
    move_link,
    remove_remains,
    replace_file,
    unfinished_file,
)
from recsys.saving.model_file import read_manifest
from recsys.saving.storage import load_model
from recsys.saving.tables import decoded

LATEST = "latest"
"""Name of the link."""

_KEPT = 100  # maximum number of stored measurements of a model
_FACTS = {
    "version": pl.String,
    "latest": pl.Boolean,
    "model": pl.String,
    "created": pl.String,
    "ratings": pl.Int64,
    "until": pl.String,
    "tag": pl.String,
    "id": pl.String,
    "parent": pl.String,
    "fingerprint": pl.String,
    "test": pl.String,
    "measured": pl.String,
}


class Measured(Struct, frozen=True, kw_only=True):
    """Metrics of a model on one set of test ratings: value and bounds of the interval."""

    test: str
    fingerprint: str
    time: str
    ratings: model_file.Count
    users: model_file.Count
    metrics: dict[str, tuple[float, float | None, float | None]]


class MeasuredFile(Struct, frozen=True, kw_only=True):
    """Contents of metrics.json."""

    format: Literal["recsys-metrics"] = "recsys-metrics"
    measured: list[Measured] = []


def list_versions(directory: str | Path) -> pl.DataFrame:
    """List the saved models in a directory, the oldest first.

    What killed processes have left there of unfinished writes is removed.

    Returns
    -------
    polars DataFrame
        Columns version (the name of the directory), latest (whether the link points to it), model,
        created, ratings (interactions if no model has ratings), until (time of the last), tag, id,
        parent (name of its directory, or its id), fingerprint, test and measured (test set and time
        of the last measurement), and
        a column for each measured metric.

    Raises
    ------
    DataError
        If the directory does not exist or has no saved model.
    ModelFileError
        If a model.json is damaged.
    """
    folder = Path(directory)
    if not folder.is_dir():
        raise DataError(f"There is no directory {folder}.")
    names = [path.name for path in _saved_in(folder) if path.name != LATEST]
    if not names:
        raise DataError(
            f"{folder} has no saved models; `recsys fit --out {folder}/NAME` makes one."
        )
    # Nobody may write to this directory again.
    for target in (
        folder / LATEST,
        *(folder / name / model_file.MEASURED for name in names),
    ):
        remove_remains(target)
    latest = _latest(folder)
    manifests = {name: read_manifest(folder / name) for name in names}
    name_of = {manifest.version: name for name, manifest in manifests.items()}
    rows: list[dict[str, Any]] = []
    # Names break ties of models that were saved in the same second.
    by_time = sorted(manifests.items(), key=lambda pair: (pair[1].created, pair[0]))
    for name, manifest in by_time:
        row: dict[str, Any] = {
            "version": name,
            "latest": name == latest,
            "model": manifest.model,
            "created": manifest.created,
            "ratings": manifest.training.get("ratings"),
            "until": manifest.period[1] if manifest.period else None,
            "tag": manifest.tag,
            "id": manifest.version,
            "parent": name_of.get(manifest.parent or "", manifest.parent),
            "fingerprint": manifest.fingerprint,
            "test": None,
            "measured": None,
        }
        measurements = measured(folder / name)
        if measurements:
            last = measurements[-1]
            row["test"] = last.test
            row["measured"] = last.time
            for metric, (value, *_) in last.metrics.items():
                row[metric] = value
        rows.append(row)
    metrics = dict.fromkeys(key for row in rows for key in row if key not in _FACTS)
    frame = pl.DataFrame(rows, schema=_FACTS | dict.fromkeys(metrics, pl.Float64))
    if all(manifest.training.get("implicit") for manifest in manifests.values()):
        frame = frame.rename({"ratings": "interactions"})
    return frame


def _saved_in(directory: Path) -> list[Path]:
    """Return the saved models in a directory, without indexes and those that are not finished."""
    try:
        paths = [path for path in directory.iterdir() if not path.name.startswith(".")]
        saved = sorted(path for path in paths if (path / MANIFEST).is_file())
    except PermissionError:
        return []
    # An index of texts has neither ratings nor users.
    index = model_file.INDEX_FORMAT
    return [path for path in saved if model_file.format_of(path) != index]


def _latest(directory: Path) -> str | None:
    """Return the name of the version that the link points to."""
    link = directory / LATEST
    place = Path(os.path.realpath(link)) if link.is_symlink() else as_path(link)
    return place.name if place != link and place.is_dir() else None


def promote(version: str | Path) -> tuple[str | None, str]:
    """Point the link `latest` to a saved model next to it.

    The model is verified first. The link is changed atomically, so a reader sees either the old or
    the new model.

    Returns
    -------
    tuple of str
        Names of the models that the link pointed to before (None without a link) and now.

    Raises
    ------
    ModelFileError
        If the model is damaged or missing, or the name of the link is taken.
    """
    place = Path(version)
    if place.name == LATEST:
        raise ModelFileError(
            f"{place} is the link itself; name the version that it should point to."
        )
    # A service would reject a damaged model only after the switch.
    load_model(place, verify=True)
    link = place.absolute().parent / LATEST
    if link.is_dir() and not link.is_symlink():
        raise ModelFileError(f"{link} is a directory, not a link; move it away.")
    before = _latest(link.parent)
    try:
        move_link(link, place.name)
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise ModelFileError(f"The link {link} cannot be moved: {reason}.") from error
    return before, place.name


def measured(model: str | Path) -> list[Measured]:
    """Return the stored measurements of a saved model, the oldest first.

    Raises
    ------
    ModelFileError
        If the file is damaged.
    """
    file = as_path(model) / model_file.MEASURED
    if not file.exists():
        return []
    try:
        document = model_file.read_document(model, file.name)
        return model_file.checked(document, MeasuredFile, file.name).measured
    except DamageError as error:
        raise ModelFileError(f"{file} is damaged: {error}.") from None


def version_of(model: str | Path) -> str | None:
    """Return the version of the model at a path; None if it has none, as of Spark.

    Raises
    ------
    ModelFileError
    """
    if model_file.format_of(model) == model_file.SPARK_FORMAT:
        return None
    return read_manifest(model).version


def record(
    model: str | Path,
    version: str | None,
    evaluation: Evaluation,
    label: str,
    test: str,
) -> str | None:
    """Store the metrics of the model `label` of an evaluation next to the saved model.

    The metrics of groups are among them, with names such as ``ndcg@10[age=under 25]``.
    They are added to a separate file, which model.json does not cover. `test` names the test
    ratings. Return why they are not stored, if they are not: the directory is not writable, or has
    another version than the one that was measured.
    """
    columns = ["value", "low", "high"]
    rows = pl.concat(
        [
            evaluation.metrics.filter(model=label).select("metric", *columns),
            evaluation.slices.filter(model=label).select(
                SLICE_NAME.alias("metric"), *columns
            ),
        ]
    )
    rows = rows.drop_nulls("value")  # a metric may have no value in a group
    entry = Measured(
        test=test,
        fingerprint=evaluation.fingerprint,
        time=datetime.now(UTC).isoformat(timespec="seconds"),
        ratings=evaluation.counts["test_ratings"],
        users=evaluation.counts["users_evaluated"],
        metrics={name: (value, *ends) for name, value, *ends in rows.iter_rows()},
    )
    directory = Path(os.path.realpath(as_path(model)))
    target = directory / model_file.MEASURED
    try:
        with (
            # Two evaluations of one model may end at the same time.
            exclusive(directory, lambda: None),
            unfinished_file(target) as (new, stream),
        ):
            if version_of(directory) != version:
                return "it was replaced while it was measured"
            document = MeasuredFile(measured=[*measured(directory), entry][-_KEPT:])
            stream.write(model_file.to_json(document))
            stream.close()
            replace_file(new, target)
    except OSError as error:
        return system_reason(error) or str(error)
    return None


@dataclass(frozen=True, slots=True)
class Knowing:
    """Saved models that know some users, and those that cannot be read and may know them."""

    models: list[Path]
    unreadable: list[Path]


def models_knowing(users: Iterable[str], near: Iterable[str | Path]) -> Knowing:
    """Return the saved models next to some paths that have ratings or table rows of users.

    These are the models and versions in the directories of the paths, and in directories there.
    Around a directory with a link `latest`, directories next to it are searched as well.
    """
    wanted = Ids(list(users), "user", sort=False)
    knowing = Knowing([], [])
    for path in _models_near(near):
        try:
            if any((wanted.find(ids) >= 0).any() for ids in _user_ids(path)):
                knowing.models.append(path)
        except RecsysError:
            knowing.unreadable.append(path)
    return knowing


def _models_near(paths: Iterable[str | Path]) -> list[Path]:
    """Return the directories with a model.json near some paths, each once."""
    parents: dict[Path, Path] = {}  # by real path
    for path in map(Path, paths):
        # The path as it was given, and where its links lead.
        for model in (path.absolute(), Path(os.path.realpath(as_path(path)))):
            shown = path if model == path.absolute() else model
            folder = model.parent
            parents.setdefault(folder.resolve(), shown.parent)
            if os.path.lexists(folder / LATEST):
                parents.setdefault(folder.parent.resolve(), folder.parent)
    models: dict[Path, Path] = {}
    for parent in parents.values():
        for directory in (parent, *_directories(parent)):
            for path in _saved_in(directory):
                models.setdefault(path.resolve(), path)
    return sorted(models.values())


def _directories(directory: Path) -> list[Path]:
    """Return the directories in a directory that can be read, without hidden ones."""
    try:
        return [
            path
            for path in directory.iterdir()
            if path.is_dir() and path.name[:1] != "."
        ]
    except OSError:
        return []


def _user_ids(path: Path) -> list[pl.Series]:
    """Return the ids of users that a saved model knows, from ratings and from the table.

    Raises
    ------
    ModelFileError
    """
    if model_file.format_of(path) != MODEL_FORMAT:
        # A model of the Spark engine, or an error.
        return [load_model(path).ratings.users.values]

    def read(directory: SavedDirectory) -> list[pl.Series]:
        manifest = model_file.checked_manifest(directory, model_file.MODEL)
        arrays = {
            file.removesuffix(".npy"): mapped(
                directory, file, as_dict(entry), verify=False
            )
            for file, entry in manifest.files.items()
            if file.startswith(("users/0", "user_table/0"))
        }
        return [
            decoded(arrays, f"{table}/0", manifest.columns[table][0])
            for table in ("users", "user_table")
            if table in manifest.columns
        ]

    return model_file.read_directory(path, model_file.MODEL, read)
