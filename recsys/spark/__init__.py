"""Models on Apache Spark, for ratings that are too large for one machine.

`fit` writes a model as partitioned Parquet, `recommend` computes top-N lists for all users, and
`evaluate` measures the accuracy. They need PySpark (the extra ``spark``), and Java 17 or newer.
"""

from recsys.spark.evaluation import Metric, SparkEvaluation, evaluate
from recsys.spark.fitting import fit
from recsys.spark.results import SparkModel
from recsys.spark.session import spark_session
from recsys.spark.topn import recommend

__all__ = [
    "Metric",
    "SparkEvaluation",
    "SparkModel",
    "evaluate",
    "fit",
    "recommend",
    "spark_session",
]
