"""Truncated SVD and PCA of matrices whose rows are distributed over an Apache Spark cluster.

The rows are never collected: each pass over them is a product with a block of vectors, summed over
the partitions. The driver holds vectors of the length of a row. A matrix may have as many rows as
Spark holds, and some millions of columns. PySpark is the extra ``spark``.
"""

from lowrank.spark.decomposition import PCA, DistributedSVD, truncated_svd

__all__ = ["PCA", "DistributedSVD", "truncated_svd"]
