"""Accuracy of predicted ratings and of ranked lists, as functions of arrays.

Models choose parameters and weights by these functions, and `recsys.evaluation` reports them.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from recsys.errors import DataError

Floats = NDArray[np.floating[Any]]
Doubles = NDArray[np.float64]


def errors(predicted: Floats, actual: Floats) -> Doubles:
    """Return the differences of predicted and actual ratings.

    Raises
    ------
    DataError
        If there are none, or their numbers differ.
    """
    if predicted.shape != actual.shape or not predicted.size:
        raise DataError(
            "predicted and actual must have the same, non-zero length; "
            f"got shapes {predicted.shape} and {actual.shape}."
        )
    return np.subtract(predicted, actual, dtype=np.float64)


def rmse(predicted: Floats, actual: Floats) -> float:
    """Return the root mean squared error over all ratings, ``sqrt(mean((p - x)^2))``."""
    squares = np.square(errors(predicted, actual))
    return float(np.sqrt(np.mean(squares)))


def ndcg(hits: NDArray[np.bool_], n_relevant: NDArray[np.integer[Any]]) -> Doubles:
    """Return the normalised discounted cumulative gain at N with gains of 0 and 1.

    References
    ----------
    Järvelin and Kekäläinen (2002), "Cumulated gain-based evaluation of IR techniques".

    Examples
    --------
    >>> ndcg(np.array([[True, False, True]]), np.array([2]))
    array([0.91972079])
    """
    n = hits.shape[1]
    ranks = np.arange(1, n + 1)
    discounts = 1 / np.log2(ranks + 1)
    # The best list has all relevant items first.
    n_best = np.minimum(n, n_relevant)
    ideal = np.cumsum(discounts)[n_best - 1]
    return np.asarray(hits @ discounts / ideal)
