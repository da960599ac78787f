"""Results of a fit on Spark: factors, ids and ratings in partitioned Parquet.

::

    MODEL/
        model.json             format, versions, model, parameters, training summary, file sizes
        users/part-*.parquet   index, id, count, bias, factors, and the training ratings of each
                               user: others (item indices, ascending) and values
        items/part-*.parquet   index, id, count, bias, factors

Indices count 0, 1, ... in the sorted order of the ids.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import polars as pl
from msgspec import Struct
from numpy.typing import NDArray

from lowrank.kernels import backends
from lowrank.spark.arrow import table_of
from recsys.data.ids import Ids
from recsys.data.ratings import Ratings
from recsys.errors import DataError, ModelFileError
from recsys.models.base import obscurity
from recsys.models.registry import model_class
from recsys.saving.arrays import MANIFEST
from recsys.saving.model_file import SPARK_FORMAT
from recsys.spark.files import SparkPath

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from recsys.models.base import Model

VERSION = 1
"""Version of the format that `fit` writes."""
MODELS = ("als", "ials")
"""Models that can be fitted on Spark: for ratings, and for implicit feedback."""

_DAMAGE = (AttributeError, LookupError, TypeError, ValueError)
_SHARE_OF_MEMORY = 0.5
_BYTES_PER_RATING = 8  # index and value
_BYTES_PER_ID = 100  # an id as a string, with room to sort it


class SparkModel(
    Struct, frozen=True, omit_defaults=True, tag_field="format", tag=SPARK_FORMAT
):
    """A model fitted on Spark, as its model.json describes it.

    `training` is the summary of the fit. `fitted` has the scalars of the model
    (global_mean, rating_std), `files` the size of each file in bytes. `path` is not in
    model.json.
    """

    format_version: int
    package_version: str
    model: str
    parameters: dict[str, Any]
    fitted: dict[str, float]
    training: dict[str, Any]
    versions: dict[str, str]
    files: dict[str, int]
    path: str = ""

    @property
    def implicit(self) -> bool:
        """True for a model of implicit feedback."""
        return bool(self.training["implicit"])

    @property
    def size(self) -> int:
        """Total size of the files in bytes."""
        return sum(self.files.values())

    def table(self, spark: SparkSession, side: str) -> DataFrame:
        """Return the table of the "users" or "items"."""
        return spark.read.parquet(f"{self.path}/{side}")

    @classmethod
    def open(cls, spark: SparkSession, path: str) -> SparkModel:
        """Read the description of the model at `path`, on any file system of Spark.

        Raises
        ------
        ModelFileError
            If there is none, or it is damaged or too new.
        """
        manifest = SparkPath(spark, path).child(MANIFEST)
        if not manifest.exists():
            raise ModelFileError(
                f"There is no model of the Spark engine in {path}; "
                "`recsys fit --engine spark` creates one."
            )
        return _parsed(manifest.read_text(), path)


def item_table(model: SparkModel, spark: SparkSession) -> pl.DataFrame:
    """Return the table of the items in memory, in the order of their indices."""
    rows = model.table(spark, "items")
    rows = rows.select("index", "id", "count", "bias", "factors")
    return pl.DataFrame(table_of(rows.sort("index")))


def is_result(folder: SparkPath) -> bool:
    """Return whether a folder contains a result of the Spark engine, of any version."""
    manifest = folder.child(MANIFEST)
    return manifest.exists() and f'"{SPARK_FORMAT}"' in manifest.read_text()


def _parsed(text: str, path: str) -> SparkModel:
    try:
        model = msgspec.json.decode(text, type=SparkModel)
    except (msgspec.DecodeError, RecursionError) as error:
        raise ModelFileError(
            f"{path} is damaged, or not a model of the Spark engine: {MANIFEST}: {error}."
        ) from None
    if model.format_version != VERSION:
        raise ModelFileError(
            f"The model {path} has format version {model.format_version}, and this version of "
            f"recsys reads {VERSION}; it was written by lowrank-recsys {model.package_version}."
        )
    return msgspec.structs.replace(model, path=path.rstrip("/"))


def read_result(path: str | Path) -> SparkModel:
    """Read the model.json of a result on a local disk, and check that its files exist.

    Raises
    ------
    ModelFileError
    """
    directory = Path(path)
    try:
        _check_file(directory, MANIFEST)
        text = (directory / MANIFEST).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        raise ModelFileError(f"The model {path} has no readable {MANIFEST}.") from None
    result = _parsed(text, str(path))
    for name, size in result.files.items():
        _check_file(directory, name, size)
    return result


def _check_file(
    directory: Path,
    name: str,
    size: int | None = None,
) -> None:
    """Check that a file is in a directory itself, not by a link, and its size.

    Raises
    ------
    ModelFileError
    """
    file = directory / name
    problem = None
    if name.startswith("/") or ".." in name.split("/"):
        problem = f"the file {name!r} is outside it"
    elif file.is_symlink() or (file.parent != directory and file.parent.is_symlink()):
        problem = f"{name} is not a file; links are not followed"
    elif size is not None and not file.is_file():
        problem = f"{name} is missing"
    elif size is not None and file.stat().st_size != size:
        problem = f"{name} has {file.stat().st_size:,} bytes instead of {size:,}"
    if problem is not None:
        raise ModelFileError(f"The model {directory} is damaged: {problem}.")


def load_result(path: str | Path) -> tuple[Model, Ratings, dict[str, Any]]:
    """Return the model, its training ratings and the summary of its fit.

    Raises
    ------
    ModelFileError
        If the result is damaged, or too large for the memory of this machine.
    """
    result = read_result(path)
    try:
        if result.model not in MODELS:
            raise DataError(f"the Spark engine has no model {result.model!r}")
        _check_memory(result)
        users = _table(result, "users")
        items = _table(result, "items")
        ratings = Ratings(
            users=Ids(users["id"], "user"),
            items=Ids(items["id"], "item"),
            indptr=offsets(users["others"]),
            indices=flat(users["others"], np.int32),
            data=flat(users["values"], np.float32),
            implicit=result.implicit,
        )
        return ordinary_model(result, users, items), ratings, result.training
    except ModelFileError:
        raise
    except (*_DAMAGE, pl.exceptions.PolarsError, pl.exceptions.PanicException) as error:
        reason = str(error).partition("\n")[0].rstrip(".")
        raise ModelFileError(f"The model {path} is damaged: {reason}.") from None


def _check_memory(result: SparkModel) -> None:
    """Check that a model fits into the memory of this machine."""
    training = result.training
    # The factors and the bias, in float32.
    bytes_of_row = 4 * (int(result.parameters["factors"]) + 1) + _BYTES_PER_ID
    n_bytes = (int(training["users"]) + int(training["items"])) * bytes_of_row
    n_bytes += _BYTES_PER_RATING * int(training["ratings"])
    needed = 2 * n_bytes  # as read from Parquet, and as arrays
    available = backends.physical_memory()
    if available is not None and needed > _SHARE_OF_MEMORY * available:
        raise ModelFileError(
            f"The model {result.path} needs about {needed / 1e9:.1f} GB of memory here, of "
            f"{available / 1e9:.1f} GB; use it on the cluster (--engine spark)."
        )


def _table(result: SparkModel, side: str) -> pl.DataFrame:
    """Read the table of the "users" or "items" in the order of their indices."""
    parts = [
        # A name with a bracket is the name of a file, not a pattern.
        pl.read_parquet(Path(result.path) / name, glob=False)
        for name in result.files
        if name.startswith(f"{side}/")
    ]
    table = pl.concat(parts).sort("index")
    if not np.array_equal(table["index"].to_numpy(), np.arange(len(table))):
        raise DataError(f"the {side} are not numbered 0 to {len(table) - 1}")
    return table


def ordinary_model(
    result: SparkModel,
    users: pl.DataFrame,
    items: pl.DataFrame,
) -> Any:
    """Return the model of one machine with these users and items."""
    factors = int(result.parameters["factors"])
    arrays: dict[str, Any] = dict(result.fitted)
    for side, table in (("user", users), ("item", items)):
        vectors = flat(table["factors"], np.float32)
        arrays[f"{side}_factors"] = vectors.reshape(-1, factors)
        arrays[f"{side}_bias"] = table["bias"].cast(pl.Float32).to_numpy()
    if result.model == "als":
        counts = items["count"].to_numpy()
        most = int(counts.max())
        spread = result.fitted["rating_std"]
        arrays["most_ratings"] = most
        arrays["item_obscurity"] = obscurity(np.log1p(counts), most, spread)
    arrays = {name: np.asarray(value) for name, value in arrays.items()}
    return model_class(result.model)._from_arrays(result.parameters, arrays)


def offsets(lists: pl.Series) -> NDArray[np.int64]:
    """Return the positions in `flat` at which the lists of a column begin, and the end."""
    return np.append(0, np.cumsum(lists.list.len())).astype(np.int64)


def flat(lists: pl.Series, dtype: type[np.generic]) -> NDArray[Any]:
    """Return the concatenated values of all lists of a column."""
    return lists.explode().drop_nulls().to_numpy().astype(dtype, copy=False)
