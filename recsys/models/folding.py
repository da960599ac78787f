"""What explaining a folded-in user has in common across models."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from recsys.models.protocols import Floats

__all__ = ["ridge_terms"]


def ridge_terms(
    rated: NDArray[np.floating[Any]],
    residuals: NDArray[np.floating[Any]],
    asked: NDArray[np.floating[Any]],
    *,
    penalty: float,
    bias_penalty: float,
) -> Floats:
    """Return what each rating of a user adds to its scores, of shape (n_asked, n_rated).

    The user's factors and bias minimise
    ``sum_j (r_j - a . m_j - b)^2 + penalty |a|^2 + bias_penalty b^2``, so they are linear in the
    residuals r_j, and the score ``a . m_i + b`` is a sum with one term for each.

    Parameters
    ----------
    rated : ndarray of shape (n_rated, k)
        Vectors m_j of the items that the user rated.
    residuals : ndarray of shape (n_rated,)
        The r_j: ratings without the mean and the items' biases.
    asked : ndarray of shape (n_asked, k)
        Vectors m_i of the items whose scores are taken apart.
    penalty, bias_penalty : float
        Positive.

    References
    ----------
    Hu, Koren and Volinsky (2008), "Collaborative filtering for implicit feedback datasets",
    section 5, which explains scores in this way.
    """
    design, wanted = _with_ones(rated), _with_ones(asked)
    ridge = np.full(design.shape[1], penalty)
    ridge[-1] = bias_penalty
    weights = np.linalg.solve(design.T @ design + np.diag(ridge), wanted.T)
    terms: NDArray[np.float64] = (design @ weights).T * residuals
    return terms.astype(np.float32)


def _with_ones(vectors: NDArray[np.floating[Any]]) -> NDArray[np.float64]:
    return np.column_stack([vectors.astype(np.float64), np.ones(len(vectors))])
