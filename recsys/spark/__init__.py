"""Models fitted, evaluated and used on Apache Spark, for ratings that outgrow one machine.

`fit` writes factors, ids and ratings as partitioned Parquet; `recommend` makes top-N lists for all
users from them, and `evaluate` measures them, without bringing them to the driver. PySpark is the
extra ``spark``; Java 17 or newer is needed as well.
"""

from recsys.spark.evaluation import Metric, SparkEvaluation, evaluate
from recsys.spark.fitting import fit
from recsys.spark.results import SparkModel
from recsys.spark.session import spark_session
from recsys.spark.topn import recommend, top_items

__all__ = [
    "Metric",
    "SparkEvaluation",
    "SparkModel",
    "evaluate",
    "fit",
    "recommend",
    "spark_session",
    "top_items",
]
