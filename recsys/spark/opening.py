"""Opening a result of the Spark engine on one machine, without Spark or Java."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from recsys.errors import DataError, ModelFileError
from recsys.ids import Ids
from recsys.memory import machine_memory
from recsys.panics import panics_as_errors
from recsys.parquet.size import columns_of, too_large
from recsys.ratings import Ratings
from recsys.spark.results import MANIFEST, MODELS, SparkModel, model_class, parse_manifest

if TYPE_CHECKING:
    from recsys.models.base import Model

__all__ = ["load_result", "memory_needed", "read_result"]

_SHARE_OF_MEMORY = 0.5
_BYTES_PER_RATING = 8  # index and value
_BYTES_PER_ID = 100  # an id as a string, with room to sort it


def read_result(path: str | Path) -> SparkModel:
    """Read the model.json of a result on a local disk, and check that its files are there.

    Raises
    ------
    ModelFileError
        If it is damaged or too new.
    """
    directory = Path(path)
    try:
        text = (directory / MANIFEST).read_text()
    except (OSError, UnicodeDecodeError):
        raise ModelFileError(f"The model {path} has no {MANIFEST} that can be read.") from None
    result = parse_manifest(text, str(path))
    for name, size in result.files.items():
        file = directory / name
        if not file.is_file():
            raise ModelFileError(f"The model {path} is damaged: {name} is missing.")
        if file.stat().st_size != size:
            raise ModelFileError(
                f"The model {path} is damaged: {name} has {file.stat().st_size:,} bytes instead "
                f"of {size:,}."
            )
    return result


def load_result(path: str | Path) -> tuple[Model, Ratings, dict[str, Any]]:
    """Return the model, its training ratings and the summary of its fit.

    Raises
    ------
    ModelFileError
        If the result is damaged, or too large for the memory of this machine.
    """
    result = read_result(path)
    try:
        _require_memory(result)
        users, items = (_table(result, name) for name in ("users", "items"))
        ratings = _ratings(result, users, items)
        return _model(result, users, items), ratings, result.training
    except ModelFileError:
        raise
    except (AttributeError, KeyError, TypeError, ValueError, pl.exceptions.PolarsError) as error:
        reason = str(error).partition("\n")[0].rstrip(".")
        raise ModelFileError(f"The model {path} is damaged: {reason}.") from None


def memory_needed(result: SparkModel) -> int:
    """Return about how many bytes a result takes on one machine."""
    rows = result.n_users + result.n_items
    vectors = rows * (4 * (result.factors + 1) + _BYTES_PER_ID)
    return 2 * (vectors + _BYTES_PER_RATING * int(result.training["ratings"]))


def _require_memory(result: SparkModel) -> None:
    needed, there = memory_needed(result), machine_memory()
    if there is not None and needed > _SHARE_OF_MEMORY * there:
        raise ModelFileError(
            f"The model {result.path} needs about {needed / 1e9:.1f} GB of memory here, of "
            f"{there / 1e9:.1f} GB; ask it on the cluster (--engine spark)."
        )


def _table(result: SparkModel, name: str) -> pl.DataFrame:
    files = [Path(result.path) / each for each in result.files if each.startswith(f"{name}/")]
    table = pl.concat([_part(file) for file in files]).sort("index")
    if not np.array_equal(table["index"].to_numpy(), np.arange(len(table))):
        raise DataError(f"the {name} are not numbered 0 to {len(table) - 1}")
    return table


def _part(file: Path) -> pl.DataFrame:
    content = file.read_bytes()  # since polars takes a path for a pattern
    with panics_as_errors():
        reason = too_large(content, columns_of(content))
        if reason is not None:
            raise ModelFileError(f"{file} {reason}")
        return pl.read_parquet(content)


def _ratings(result: SparkModel, users: pl.DataFrame, items: pl.DataFrame) -> Ratings:
    lengths = users["others"].list.len().to_numpy()
    indptr = np.zeros(len(users) + 1, np.int64)
    np.cumsum(lengths, out=indptr[1:])
    return Ratings(
        users=Ids(users["id"], "user"),
        items=Ids(items["id"], "item"),
        indptr=indptr,
        indices=_flat(users["others"], np.int32),
        values=_flat(users["values"], np.float32),
        implicit=result.implicit,
    )


def _model(result: SparkModel, users: pl.DataFrame, items: pl.DataFrame) -> Model:
    if result.model not in MODELS:
        raise DataError(f"there is no model {result.model!r} of the Spark engine")
    k = result.factors
    arrays: dict[str, Any] = {name: np.asarray(value) for name, value in result.fitted.items()}
    for side, table in (("user", users), ("item", items)):
        arrays[f"{side}_bias"] = table["bias"].cast(pl.Float32).to_numpy()
        arrays[f"{side}_factors"] = _flat(table["factors"], np.float32).reshape(len(table), k)
    if result.model == "als":
        from recsys.spark.sweeps import no_links

        arrays |= no_links(k)
    model: Model = model_class(result.model).from_arrays(result.parameters, arrays)
    return model


def _flat(lists: pl.Series, dtype: type[np.generic]) -> NDArray[Any]:
    """Return the values of all lists of a column, one after another; empty lists add none."""
    values = lists.filter(lists.list.len() > 0).explode()
    return values.to_numpy().astype(dtype, copy=False)
