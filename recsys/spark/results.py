"""What a fit on Spark leaves behind: factors, ids and ratings in partitioned Parquet.

::

    MODEL/
        model.json             format, versions, model, parameters, training summary, file sizes
        users/part-*.parquet   index, id, count, bias, factors, and the training ratings of each
                               user: others (item indices, ascending) and values
        items/part-*.parquet   index, id, count, bias, factors

Indices count 0, 1, ... in the sorted order of the ids. `recsys.spark.session` reads it on one
machine, without Spark.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from recsys.errors import ModelFileError
from recsys.spark.reading import Place
from recsys.storage import MANIFEST, SPARK_FORMAT

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = [
    "FORMAT_VERSION",
    "MANIFEST",
    "MODELS",
    "SparkModel",
    "is_result",
    "model_class",
    "parse_manifest",
]

FORMAT_VERSION = 1
MODELS = {
    "als": "recsys.models.als:ALS",
    "spark-implicit-als": "recsys.spark.fitting:ImplicitALS",
}
"""What can be fitted on Spark: ratings, and implicit feedback."""


@dataclass(frozen=True, slots=True)
class SparkModel:
    """A model that was fitted on Spark, where it lies.

    Attributes
    ----------
    path : str
    model : str
        "als" or "spark-implicit-als".
    parameters : dict
        Of the model.
    fitted : dict
        The numbers that belong to no user or item: global_mean and rating_std.
    training : dict
        Summary of the fit, as in `recsys.recommender.training_summary`.
    files : dict of str to int
        Bytes of each file.
    package_version : str
    versions : dict
        Of the libraries.
    """

    path: str
    model: str
    parameters: dict[str, Any]
    fitted: dict[str, float]
    training: dict[str, Any]
    files: dict[str, int]
    package_version: str
    versions: dict[str, Any]

    @property
    def n_users(self) -> int:
        """Number of users."""
        return int(self.training["users"])

    @property
    def n_items(self) -> int:
        """Number of items."""
        return int(self.training["items"])

    @property
    def factors(self) -> int:
        """Length of the vectors."""
        return int(self.parameters["factors"])

    @property
    def global_mean(self) -> float:
        """The mean of the model; 0 for implicit feedback."""
        return float(self.fitted["global_mean"])

    @property
    def implicit(self) -> bool:
        """Whether it was fitted to implicit feedback."""
        return bool(self.training["implicit"])

    def users(self, spark: SparkSession) -> DataFrame:
        """Return the table of the users."""
        return spark.read.parquet(f"{self.path}/users")

    def items(self, spark: SparkSession) -> DataFrame:
        """Return the table of the items."""
        return spark.read.parquet(f"{self.path}/items")

    @classmethod
    def open(cls, spark: SparkSession, path: str) -> SparkModel:
        """Read what is known of the model at `path`.

        Raises
        ------
        ModelFileError
            If there is none, or it is damaged or too new.
        """
        place = Place(spark, path).child(MANIFEST)
        if not place.exists():
            raise ModelFileError(
                f"There is no model of the Spark engine in {path}; "
                "`recsys fit --engine spark` makes one."
            )
        return parse_manifest(place.read_text(), path)

    def to_json(self) -> str:
        """Return the contents of model.json."""
        document = {
            "format": SPARK_FORMAT,
            "format_version": FORMAT_VERSION,
            "package_version": self.package_version,
            "model": self.model,
            "parameters": self.parameters,
            "fitted": self.fitted,
            "training": self.training,
            "versions": self.versions,
            "files": self.files,
        }
        return json.dumps(document, indent=2) + "\n"


def is_result(place: Place) -> bool:
    """Whether the folder holds a result of the Spark engine."""
    if not place.is_folder() or not place.child(MANIFEST).exists():
        return False
    try:
        document = json.loads(place.child(MANIFEST).read_text())
    except (ValueError, RecursionError):
        return False
    return isinstance(document, dict) and document.get("format") == SPARK_FORMAT


def parse_manifest(text: str, path: str) -> SparkModel:
    """Read a model.json.

    Raises
    ------
    ModelFileError
        If it is not one of the Spark engine, too new, or an entry is missing or of a wrong type.
    """
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        raise ModelFileError(
            f"The model {path} is damaged: {MANIFEST} is not valid JSON."
        ) from None
    if not isinstance(document, Mapping) or document.get("format") != SPARK_FORMAT:
        raise ModelFileError(
            f"{path} was not written by the Spark engine: its {MANIFEST} does not say "
            f"format {SPARK_FORMAT!r}."
        )
    version = document.get("format_version")
    if version != FORMAT_VERSION:
        raise ModelFileError(
            f"The model {path} has format version {version}, and this version of recsys reads "
            f"{FORMAT_VERSION}; it was written by lowrank-recsys {document.get('package_version')}."
        )
    kinds: dict[str, type] = {"model": str, "package_version": str}
    kinds |= dict.fromkeys(("parameters", "fitted", "training", "versions", "files"), dict)
    for name, kind in kinds.items():
        if not isinstance(document.get(name), kind):
            raise ModelFileError(
                f"The model {path} is damaged: {name!r} in {MANIFEST} must be of type "
                f"{kind.__name__}."
            )
    for name, size in document["files"].items():
        if type(size) is not int or name.startswith("/") or ".." in name.split("/"):
            raise ModelFileError(f"The model {path} is damaged: {name!r} is none of its files.")
    return SparkModel(path=str(path).rstrip("/"), **{name: document[name] for name in kinds})


def model_class(name: str) -> Any:
    """Return the class of a model of the Spark engine, one of `MODELS`."""
    from importlib import import_module

    module, _, attribute = MODELS[name].partition(":")
    return getattr(import_module(module), attribute)
