"""Truncated SVD and PCA of matrices whose rows are spread over an Apache Spark cluster.

The rows never come to the driver: each pass over them is a product with a block of vectors, summed
over the partitions. The driver keeps vectors as long as a row, so that up to some millions of
columns are possible, and as many rows as Spark holds. PySpark is the extra ``spark``.
"""

from lowrank.spark.decomposition import PCA, DistributedSVD, truncated_svd

__all__ = ["PCA", "DistributedSVD", "truncated_svd"]
