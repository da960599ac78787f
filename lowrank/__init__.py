"""Low-rank numerics on dense arrays, sparse matrices and linear operators.

>>> import numpy as np
>>> from lowrank import truncated_svd
>>> U, s, Vt = truncated_svd(np.diag([1.0, 3.0, 2.0]), k=2)
>>> s
array([3., 2.])

The estimators and the rules that need SciPy or scikit-learn are imported when first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lowrank.rank import (
    cumulative_energy,
    elbow,
    noise_threshold,
    profile_likelihood,
    rank_for_energy,
)
from lowrank.svd import SVD, ConvergenceWarning, truncated_svd

if TYPE_CHECKING:
    from lowrank.approximation import (
        LowRank,
        approximate,
        denoise,
        hard_threshold,
        optimal_threshold,
        rank_for_error,
        soft_threshold,
    )
    from lowrank.completion import Completion, complete
    from lowrank.completion.nuclear_norm import (
        SoftImputation,
        choose_regularization,
        soft_impute,
        soft_impute_path,
    )
    from lowrank.pca import PCA, MeanAlignmentWarning
    from lowrank.probabilistic import ProbabilisticPCA
    from lowrank.projection import (
        GaussianProjection,
        SparseProjection,
        johnson_lindenstrauss_dim,
    )
    from lowrank.rank import (
        bi_cross_validation,
        choose_rank,
        gavish_donoho,
        minka,
        parallel_analysis,
    )
    from lowrank.subset import CUR, ColumnSubset, cur, leverage_scores, select_columns
    from lowrank.whitening import Whitening

__all__ = [
    "CUR",
    "PCA",
    "SVD",
    "ColumnSubset",
    "Completion",
    "ConvergenceWarning",
    "GaussianProjection",
    "LowRank",
    "MeanAlignmentWarning",
    "ProbabilisticPCA",
    "SoftImputation",
    "SparseProjection",
    "Whitening",
    "approximate",
    "bi_cross_validation",
    "choose_rank",
    "choose_regularization",
    "complete",
    "cumulative_energy",
    "cur",
    "denoise",
    "elbow",
    "gavish_donoho",
    "hard_threshold",
    "johnson_lindenstrauss_dim",
    "leverage_scores",
    "minka",
    "noise_threshold",
    "optimal_threshold",
    "parallel_analysis",
    "profile_likelihood",
    "rank_for_energy",
    "rank_for_error",
    "select_columns",
    "soft_impute",
    "soft_impute_path",
    "soft_threshold",
    "truncated_svd",
]

_HOMES = {
    "lowrank.completion": ("Completion", "complete"),
    "lowrank.rank": (
        "bi_cross_validation",
        "choose_rank",
        "gavish_donoho",
        "minka",
        "parallel_analysis",
    ),
    "lowrank.pca": ("PCA", "MeanAlignmentWarning"),
    "lowrank.probabilistic": ("ProbabilisticPCA",),
    "lowrank.projection": (
        "GaussianProjection",
        "SparseProjection",
        "johnson_lindenstrauss_dim",
    ),
    "lowrank.completion.nuclear_norm": (
        "SoftImputation",
        "choose_regularization",
        "soft_impute",
        "soft_impute_path",
    ),
    "lowrank.subset": ("CUR", "ColumnSubset", "cur", "leverage_scores", "select_columns"),
    "lowrank.approximation": (
        "LowRank",
        "approximate",
        "denoise",
        "hard_threshold",
        "optimal_threshold",
        "rank_for_error",
        "soft_threshold",
    ),
    "lowrank.whitening": ("Whitening",),
}


def __getattr__(name: str) -> Any:
    """Import a public name when it is first asked for."""
    for module, names in _HOMES.items():
        if name in names:
            from importlib import import_module

            value = getattr(import_module(module), name)
            globals()[name] = value
            return value
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(set(globals()) | set(__all__))
