"""Saved evaluations: a directory with a JSON document and tables in Parquet.

::

    EVALUATION/  evaluation.json  table.parquet  metrics.parquet  comparisons.parquet
                 per_user.parquet  residuals.parquet  folds.parquet
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any, Literal

import polars as pl
from msgspec import Struct
from polars.exceptions import PolarsError

import recsys
from recsys.errors import DataError
from recsys.evaluation.metrics import METRICS, Metric
from recsys.evaluation.results import Evaluation, Settings, SplitInfo, empty_frames
from recsys.models.base import Step
from recsys.saving import model_file
from recsys.saving.arrays import FORMAT_VERSION, DamageError
from recsys.saving.storage import complete_directory, obstacle

MANIFEST = "evaluation.json"
_FORMAT: Literal["recsys-evaluation"] = "recsys-evaluation"
_FRAMES = ("table", "metrics", "comparisons", "per_user", "residuals", "folds")
_FILES = re.compile(rf"{re.escape(MANIFEST)}|({'|'.join(_FRAMES)})\.parquet")


class _MetricFacts(Struct, frozen=True):
    """A metric without its function."""

    definition: str
    direction: int


class _Document(Struct, frozen=True, kw_only=True):
    """Contents of evaluation.json: all of an `Evaluation` but its frames."""

    format: Literal["recsys-evaluation"] = _FORMAT
    format_version: Literal[4] = FORMAT_VERSION
    package_version: str = ""
    settings: Settings
    splits: list[SplitInfo]
    counts: dict[str, int]
    fingerprint: str
    timed: list[str]
    steps: dict[str, list[Step]]
    measured: dict[str, _MetricFacts]
    parameters: dict[str, dict[str, bool | int | float | str | None]]


def is_evaluation(path: str | Path) -> bool:
    """Return whether `path` is a directory with saved results of `evaluate`."""
    file = Path(path) / MANIFEST
    return file.is_file() and _FORMAT.encode() in file.read_bytes()[:1000]


def save_evaluation(found: Evaluation, path: str | Path, *, overwrite: bool) -> None:
    """Save an evaluation; see `Evaluation.save`.

    Raises
    ------
    DataError
    """
    check_target(path, overwrite=overwrite)
    metrics = {
        name: _MetricFacts(metric.definition, metric.direction)
        for name, metric in found.measured.items()
    }
    document = _Document(
        package_version=recsys.__version__,
        settings=found.settings,
        splits=[*found.splits],
        counts=found.counts,
        fingerprint=found.fingerprint,
        timed=[*found.timed],
        steps={label: [*steps] for label, steps in found.steps.items()},
        measured=metrics,
        parameters=found.parameters,
    )
    with complete_directory(
        path, "evaluation", DataError, overwrite=overwrite
    ) as folder:
        for name in _FRAMES:
            getattr(found, name).write_parquet(folder / f"{name}.parquet")
        (folder / MANIFEST).write_bytes(model_file.to_json(document))


def check_target(path: str | Path, *, overwrite: bool = False) -> None:
    """Check that an evaluation may be saved at a path.

    Raises
    ------
    DataError
    """
    target = Path(os.path.realpath(path))
    problem = obstacle(
        target, "saved evaluation", is_evaluation(target), _FILES, overwrite
    )
    if problem:
        raise DataError(f"The evaluation cannot be saved in {path}: {problem}")


def load_evaluation(path: str | Path) -> Evaluation:
    """Load an evaluation; see `Evaluation.load`.

    Raises
    ------
    DataError
    """
    folder = Path(path)
    if not is_evaluation(folder):
        raise DataError(f"{path} is not a saved evaluation: it has no {MANIFEST}.")
    links = sorted(entry.name for entry in folder.iterdir() if entry.is_symlink())
    if links:
        raise DataError(
            f"{path} is a saved evaluation with a link, {links[0]}; links in it are not followed."
        )
    try:
        content = model_file.read_document(folder, MANIFEST)
        document = model_file.checked(content, _Document, MANIFEST)
        frames = {name: _frame(folder, name) for name in _FRAMES}
        _check(document, frames)
    except (DamageError, PolarsError, OSError) as error:
        raise DataError(f"{path} is damaged: {error}.") from None
    return Evaluation(
        **frames,
        steps={label: tuple(steps) for label, steps in document.steps.items()},
        measured={
            name: _metric(name, facts) for name, facts in document.measured.items()
        },
        settings=document.settings,
        splits=tuple(document.splits),
        counts=document.counts,
        fingerprint=document.fingerprint,
        parameters=document.parameters,
        timed=tuple(document.timed),
    )


def _frame(folder: Path, name: str) -> pl.DataFrame:
    """Return a saved frame, which has the columns that it must have."""
    frame = pl.read_parquet(folder / f"{name}.parquet", use_pyarrow=False)
    for column, dtype in empty_frames()[name].schema.items():
        if frame.schema.get(column) != dtype:
            raise DamageError(f"{name}.parquet lacks the column {column} of {dtype}")
    return frame


def _check(document: _Document, frames: dict[str, pl.DataFrame]) -> None:
    """Check that the frames are of the models and metrics of the document."""
    models = {*frames["table"]["model"]}
    kinds = {*frames["metrics"]["kind"]}
    if not document.splits or models != document.parameters.keys():
        raise DamageError(f"the models of table.parquet are not those of {MANIFEST}")
    if not kinds <= document.measured.keys():
        raise DamageError(
            f"metrics.parquet has metrics that {MANIFEST} does not describe"
        )
    if not {*frames["metrics"]["model"]} <= models:
        raise DamageError("metrics.parquet has other models than table.parquet")


def _metric(name: str, facts: _MetricFacts) -> Metric:
    """Return the metric of a name; the function of a custom one is not saved."""
    if name in METRICS:
        return METRICS[name]

    def of_lists(lists: Any) -> Any:
        raise DataError(f"The function of the metric {name} is not saved.")

    return Metric(name, of_lists, facts.definition, facts.direction)
