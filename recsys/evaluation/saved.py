"""Saved evaluations: a directory with a JSON document and tables in Parquet.

::

    EVALUATION/  evaluation.json  table.parquet  metrics.parquet  comparisons.parquet
                 per_user.parquet  residuals.parquet  folds.parquet  slices.parquet
                 staleness.parquet  per_group.parquet  reliability.parquet
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import polars as pl
from msgspec import Struct
from polars.exceptions import PanicException, PolarsError

from recsys.errors import DataError
from recsys.evaluation.metrics import METRICS, Metric
from recsys.evaluation.settings import Settings, SplitInfo
from recsys.models.base import Step
from recsys.saving import model_file
from recsys.saving.arrays import FORMAT_VERSION, DamageError, as_path
from recsys.saving.storage import complete_directory, obstacle

MANIFEST = "evaluation.json"
_FORMAT: Literal["recsys-evaluation"] = "recsys-evaluation"
# Frames that the first results in this format lack.
_LATER = ("staleness", "per_group", "reliability")
_FILES = re.compile(rf"{re.escape(MANIFEST)}|[a-z_]+\.parquet")


class MetricFacts(Struct, frozen=True):
    """A metric without its function."""

    definition: str
    direction: int

    def metric(self, name: str) -> Metric:
        """Return the metric of a name; the function of a custom one is not saved."""
        if name in METRICS:
            return METRICS[name]

        def of_lists(lists: Any) -> Any:
            raise DataError(f"The function of the metric {name} is not saved.")

        return Metric(name, of_lists, self.definition, self.direction)


class EvaluationDocument(Struct, frozen=True, kw_only=True):
    """Contents of evaluation.json: all of an `Evaluation` but its frames."""

    format: Literal["recsys-evaluation"] = _FORMAT
    format_version: Literal[4] = FORMAT_VERSION
    package_version: str = ""
    settings: Settings
    splits: tuple[SplitInfo, ...]
    counts: dict[str, int]
    fingerprint: str
    timed: tuple[str, ...]
    steps: dict[str, tuple[Step, ...]]
    measured: dict[str, MetricFacts]
    parameters: dict[str, dict[str, bool | int | float | str | None]]


def is_evaluation(path: str | Path) -> bool:
    """Return whether `path` is a directory with saved results of `evaluate`."""
    return model_file.is_written(path, MANIFEST, _FORMAT)


def save_evaluation(
    document: EvaluationDocument,
    frames: Mapping[str, pl.DataFrame],
    path: str | Path,
    *,
    overwrite: bool,
) -> None:
    """Save an evaluation; see `Evaluation.save`.

    Raises
    ------
    DataError
    """
    check_target(path, overwrite=overwrite)
    with complete_directory(
        path, "evaluation", DataError, overwrite=overwrite
    ) as folder:
        for name, frame in frames.items():
            frame.write_parquet(folder / f"{name}.parquet")
        (folder / MANIFEST).write_bytes(model_file.to_json(document))


def check_target(path: str | Path, *, overwrite: bool = False) -> None:
    """Check that an evaluation may be saved at a path.

    Raises
    ------
    DataError
    """
    target = Path(os.path.realpath(as_path(path)))
    problem = obstacle(
        target, "saved evaluation", is_evaluation(target), _FILES, overwrite
    )
    if problem:
        raise DataError(f"The evaluation cannot be saved in {path}: {problem}")


def load_evaluation(
    path: str | Path, schemas: Mapping[str, Mapping[str, Any]]
) -> tuple[EvaluationDocument, dict[str, pl.DataFrame]]:
    """Load an evaluation; see `Evaluation.load`. `schemas` has columns that a frame must have.

    Raises
    ------
    DataError
    """
    folder = as_path(path)
    if not is_evaluation(folder):
        raise DataError(f"{path} is not a saved evaluation: it has no {MANIFEST}.")
    document = model_file.read_unlinked(
        folder, MANIFEST, EvaluationDocument, "saved evaluation", "recsys evaluate"
    )
    try:
        frames = {name: _frame(folder, name, schemas[name]) for name in schemas}
    # polars panics at some damaged files.
    except (DamageError, PolarsError, PanicException, OSError) as error:
        raise DataError(f"{path} is damaged: {error}.") from None
    models = {*frames["table"]["model"]}
    is_whole = bool(document.splits) and models == document.parameters.keys()
    is_whole &= {*frames["metrics"]["kind"]} <= document.measured.keys()
    if not is_whole or not {*frames["metrics"]["model"]} <= models:
        raise DataError(
            f"{path} is damaged: its tables have other models or metrics than {MANIFEST}."
        )
    return document, frames


def _frame(
    folder: Path,
    name: str,
    schema: Mapping[str, Any],
) -> pl.DataFrame:
    """Return a saved frame, which has the columns that it must have."""
    file = folder / f"{name}.parquet"
    if name in _LATER and not file.exists():
        return pl.DataFrame(schema=schema)
    frame = pl.read_parquet(file, use_pyarrow=False)
    for column, dtype in schema.items():
        if frame.schema.get(column) != dtype:
            raise DamageError(f"{name}.parquet lacks the column {column} of {dtype}")
    return frame
