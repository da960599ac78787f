"""Low-rank numerics on dense arrays, sparse matrices and linear operators.

>>> import numpy as np
>>> from lowrank import truncated_svd
>>> U, s, Vt = truncated_svd(np.diag([1.0, 3.0, 2.0]), k=2)
>>> s
array([3., 2.])
"""

from lowrank.rank import cumulative_energy, elbow, rank_for_energy
from lowrank.svd import SVD, ConvergenceWarning, truncated_svd

__all__ = [
    "SVD",
    "ConvergenceWarning",
    "cumulative_energy",
    "elbow",
    "rank_for_energy",
    "truncated_svd",
]
