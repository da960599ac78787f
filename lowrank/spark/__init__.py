"""Truncated SVD and PCA of matrices whose rows are spread over an Apache Spark cluster.

The rows never come to the driver: each pass over them is a product with a block of vectors, summed
over the partitions. The driver keeps vectors as long as a row, so that up to some millions of
columns are possible, and as many rows as Spark holds. PySpark is the extra ``spark``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lowrank.spark.decomposition import DistributedSVD, truncated_svd
    from lowrank.spark.pca import PCA

__all__ = ["PCA", "DistributedSVD", "truncated_svd"]

_HOMES = {
    "DistributedSVD": "lowrank.spark.decomposition",
    "PCA": "lowrank.spark.pca",
    "truncated_svd": "lowrank.spark.decomposition",
}


def __getattr__(name: str) -> Any:
    """Import a public name when it is first asked for."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted(set(globals()) | set(__all__))
