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

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import polars as pl
from msgspec import Struct
from numpy.typing import NDArray

from lowrank.kernels import backends
from recsys.addresses import has_password, located, whole
from recsys.data.ids import Ids
from recsys.data.ratings import Ratings
from recsys.errors import DataError, ModelFileError
from recsys.models.base import obscurity
from recsys.models.registry import model_class
from recsys.saved_arrays import MANIFEST
from recsys.schema import SPARK_FORMAT

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from recsys.models.base import Model

VERSION = 1
"""Version of the format that `fit` writes."""
MODELS = ("als", "ials")
"""Models that can be fitted on Spark: for ratings, and for implicit feedback."""

_DAMAGE = (AttributeError, pl.exceptions.PolarsError, pl.exceptions.PanicException)
_SHARE_OF_MEMORY = 0.5
_BYTES_PER_RATING = 8  # index and value
_BYTES_PER_ID = 100  # an id as a string, with room to sort it


class SparkModel(
    Struct, frozen=True, omit_defaults=True, tag_field="format", tag=SPARK_FORMAT
):
    """A model fitted on Spark, as its model.json describes it.

    `training` is the summary of the fit. `fitted` has the scalars of the model (global_mean,
    rating_std), `files` the size of each file in bytes. `path` is not in model.json.
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
        place = Place(spark, path).child(MANIFEST)
        if not place.exists():
            raise ModelFileError(
                f"There is no model of the Spark engine in {path}; "
                "`recsys fit --engine spark` creates one."
            )
        return _parsed(place.read_text(), path)


def is_result(place: Place) -> bool:
    """Return whether a folder contains a result of the Spark engine, of any version."""
    manifest = place.child(MANIFEST)
    return manifest.exists() and f'"{SPARK_FORMAT}"' in manifest.read_text()


def _parsed(text: str, path: str) -> SparkModel:
    try:
        found = msgspec.json.decode(text, type=SparkModel)
    except (msgspec.DecodeError, RecursionError) as error:
        raise ModelFileError(
            f"{path} is damaged, or not a model of the Spark engine: {MANIFEST}: {error}."
        ) from None
    if found.format_version != VERSION:
        raise ModelFileError(
            f"The model {path} has format version {found.format_version}, and this version of "
            f"recsys reads {VERSION}; it was written by lowrank-recsys {found.package_version}."
        )
    for name in found.files:
        if name.startswith("/") or ".." in name.split("/"):
            raise ModelFileError(
                f"The model {path} is damaged: the file {name!r} is outside it."
            )
    return msgspec.structs.replace(found, path=str(path).rstrip("/"))


def read_result(path: str | Path) -> SparkModel:
    """Read the model.json of a result on a local disk, and check that its files exist.

    Raises
    ------
    ModelFileError
    """
    directory = Path(path)
    _check_no_links(directory, [MANIFEST])
    try:
        text = (directory / MANIFEST).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        raise ModelFileError(f"The model {path} has no readable {MANIFEST}.") from None
    result = _parsed(text, str(path))
    _check_no_links(directory, result.files)
    for name, size in result.files.items():
        file = directory / name
        found = file.stat().st_size if file.is_file() else None
        if found != size:
            problem = (
                "is missing"
                if found is None
                else f"has {found:,} bytes instead of {size:,}"
            )
            raise ModelFileError(f"The model {path} is damaged: {name} {problem}.")
    return result


def _check_no_links(directory: Path, names: Iterable[str]) -> None:
    """Check that files are in a directory themselves, not by links.

    Raises
    ------
    ModelFileError
    """
    for name in names:
        path = directory / name
        if path.is_symlink() or (path.parent != directory and path.parent.is_symlink()):
            raise ModelFileError(
                f"The model {directory} is damaged: {name} is not a file; links are not followed."
            )


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
        users, items, ratings = (
            int(result.training[n]) for n in ("users", "items", "ratings")
        )
        bytes_of_row = 4 * (int(result.parameters["factors"]) + 1) + _BYTES_PER_ID
        needed = 2 * ((users + items) * bytes_of_row + _BYTES_PER_RATING * ratings)
        available = backends.physical_memory()
        if available is not None and needed > _SHARE_OF_MEMORY * available:
            raise ModelFileError(
                f"The model {path} needs about {needed / 1e9:.1f} GB of memory here, of "
                f"{available / 1e9:.1f} GB; use it on the cluster (--engine spark)."
            )
        return *_opened(result), result.training
    except ModelFileError:
        raise
    except (LookupError, TypeError, ValueError, *_DAMAGE) as error:
        reason = str(error).partition("\n")[0].rstrip(".")
        raise ModelFileError(f"The model {path} is damaged: {reason}.") from None


def _opened(result: SparkModel) -> tuple[Model, Ratings]:
    """Read the tables of a result into a model and its training ratings."""
    tables: dict[str, pl.DataFrame] = {}
    arrays: dict[str, Any] = {
        name: np.asarray(value) for name, value in result.fitted.items()
    }
    for side in ("user", "item"):
        files = [
            Path(result.path) / name
            for name in result.files
            if name.startswith(f"{side}s/")
        ]
        table = pl.concat([pl.read_parquet(file, glob=False) for file in files]).sort(
            "index"
        )
        if not np.array_equal(table["index"].to_numpy(), np.arange(len(table))):
            raise DataError(f"the {side}s are not numbered 0 to {len(table) - 1}")
        factors = _flat(table["factors"], np.float32)
        arrays[f"{side}_factors"] = factors.reshape(
            len(table), int(result.parameters["factors"])
        )
        arrays[f"{side}_bias"] = table["bias"].cast(pl.Float32).to_numpy()
        tables[side] = table
    if result.model == "als":
        counts = tables["item"]["count"].to_numpy()
        most, std = int(counts.max()), float(arrays["rating_std"])
        arrays["most_ratings"] = np.asarray(most)
        arrays["item_obscurity"] = obscurity(np.log1p(counts), most, std)
    users = tables["user"]
    ratings = Ratings(
        users=Ids(users["id"], "user"),
        items=Ids(tables["item"]["id"], "item"),
        indptr=np.append(0, users["others"].list.len().cum_sum().to_numpy()).astype(
            np.int64
        ),
        indices=_flat(users["others"], np.int32),
        data=_flat(users["values"], np.float32),
        implicit=result.implicit,
    )
    return model_class(result.model)._from_arrays(result.parameters, arrays), ratings


def _flat(lists: pl.Series, dtype: type[np.generic]) -> NDArray[Any]:
    """Return the concatenated values of all lists of a column."""
    return lists.explode().drop_nulls().to_numpy().astype(dtype, copy=False)


_WITH_FOLDERS = (
    "file",
    "hdfs",
    "viewfs",
)  # object stores have no folders that must exist


class Place:
    """A file or folder, given by a path or URI; without a scheme on the default file system."""

    def __init__(self, spark: SparkSession, path: str) -> None:
        if has_password(path):
            raise DataError(
                f"{located(path)} has a password; give it as a setting of Spark (--conf), such as "
                "spark.hadoop.fs.s3a.secret.key."
            )
        self._spark = spark
        jvm: Any = spark._jvm
        given = jvm.org.apache.hadoop.fs.Path(whole(str(path)))
        self._files = given.getFileSystem(spark._jsc.hadoopConfiguration())
        self._path = self._files.makeQualified(given)
        self.uri, self.name = str(self._path.toString()), str(self._path.getName())

    def child(self, name: str) -> Place:
        """Return the place `name` in this folder."""
        return Place(self._spark, f"{self.uri}/{name}")

    @property
    def parent(self) -> Place:
        """Parent folder."""
        return Place(self._spark, self._path.getParent().toString())

    def exists(self) -> bool:
        """Return whether there is a file or folder."""
        return bool(self._files.exists(self._path))

    def is_folder(self) -> bool:
        """Return whether there is a folder."""
        return self.exists() and bool(
            self._files.getFileStatus(self._path).isDirectory()
        )

    def sizes(self) -> dict[str, int]:
        """Return the sizes in bytes of all entries that Spark would read, sorted by name."""
        listed = self._files.listStatus(self._path)
        found = sorted(
            (str(each.getPath().getName()), int(each.getLen())) for each in listed
        )
        return {
            name: size for name, size in found if not name.startswith((".", "_SUCCESS"))
        }

    def read_text(self) -> str:
        """Return the contents of a text file."""
        with closing(self._files.open(self._path)) as stream:
            return bytes(stream.readAllBytes()).decode()

    def write_text(self, text: str) -> None:
        """Write a new text file."""
        with closing(self._files.create(self._path, False)) as stream:
            stream.write(bytearray(text.encode()))

    def move_to(self, other: Place) -> None:
        """Rename to `other`, which must not exist.

        Raises
        ------
        ModelFileError
        """
        if not self._files.rename(self._path, other._path):
            raise ModelFileError(f"{self.uri} cannot be renamed to {other.uri}.")

    def delete(self) -> None:
        """Remove the file or folder if it exists."""
        self._files.delete(self._path, True)


def written(frame: DataFrame, place: Place) -> DataFrame:
    """Write a table as Parquet, and return the table that reads it, with the same schema."""
    frame.write.parquet(place.uri)
    return frame.sparkSession.read.schema(frame.schema).parquet(place.uri)


@contextmanager
def staged(
    spark: SparkSession,
    out: str,
    replaceable: Callable[[Place], bool],
    *,
    overwrite: bool,
) -> Iterator[Place]:
    """Yield a new hidden folder; rename it to `out` at the end, or delete it after an exception.

    `replaceable` returns whether `overwrite` may replace an existing folder.

    Raises
    ------
    ModelFileError
    """
    target = Place(spark, out)
    if not target.exists():
        scheme = target.uri.partition(":")[0]
        if scheme in _WITH_FOLDERS and not target.parent.exists():
            raise ModelFileError(
                f"Cannot write {out}: its parent folder does not exist."
            )
    elif not replaceable(target):
        raise ModelFileError(
            f"{out} exists and was not written by the Spark engine, so it is not replaced; "
            "choose another path."
        )
    elif not overwrite:
        raise ModelFileError(
            f"{out} is already a result of the Spark engine; choose another path or overwrite it."
        )
    mark = os.urandom(4).hex()
    folder, old = (
        target.parent.child(f".{target.name}.{mark}.{end}") for end in ("tmp", "old")
    )
    try:
        yield folder
        put_in_place(folder, target, old)
    except BaseException:
        with suppress(
            Exception
        ):  # Spark may be gone; the first failure is the one to report
            folder.delete()
        raise


def put_in_place(new: Place, target: Place, old: Place) -> None:
    """Rename `new` to `target`, and before that an existing target to `old`; undo it on failure."""
    replaces = target.exists()
    if replaces:
        target.move_to(old)
    try:
        new.move_to(target)
    except BaseException:
        if replaces:
            old.move_to(target)
        raise
    old.delete()
