"""Truncated SVD and PCA of matrices whose rows are distributed over an Apache Spark cluster.

The rows are never collected: one pass sums A'A over the partitions, and the driver finds its
eigenvectors. A matrix may have as many rows as Spark holds, and up to 4,096 columns. PySpark is the
extra ``spark``.
"""

from lowrank.spark.decomposition import PCA, DistributedSVD, truncated_svd

__all__ = [
    "PCA",
    "DistributedSVD",
    "truncated_svd",
]
