"""Early stopping and divergence checks."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from recsys.errors import DataError

if TYPE_CHECKING:
    from recsys.data.ratings import Ratings
    from recsys.models.base import Model

__all__ = ["ValidationWatch", "breakdown", "validation_rmse"]

_PATIENCE = 3  # sweeps without a better validation RMSE before the fit stops


class ValidationWatch:
    """Follow the validation RMSE of a fit; without validation data every sweep is the best.

    Examples
    --------
    >>> watch = ValidationWatch()
    >>> [watch.is_best(rmse) for rmse in (0.9, 0.8, 0.85, 0.81)], watch.over
    ([True, True, False, False], False)
    >>> watch.is_best(0.9), watch.over
    (False, True)
    """

    def __init__(self) -> None:
        self._best = math.inf
        self._since = 0

    def is_best(self, rmse: float | None) -> bool:
        """Record a sweep's RMSE; return whether it is the best so far."""
        if rmse is None:
            return True
        better = rmse < self._best
        self._best = min(rmse, self._best)
        self._since = 0 if better else self._since + 1
        return better

    @property
    def over(self) -> bool:
        """Whether the last sweeps have all been worse than the best."""
        return self._since >= _PATIENCE


def validation_rmse(model: Model, held_out: Ratings | None) -> float | None:
    """Return the RMSE of a model on held-out ratings, None if there are none."""
    if held_out is None:
        return None
    predicted = model.predict(held_out.user_index_of_nonzeros(), held_out.indices)
    return float(np.sqrt(np.mean((predicted - held_out.values) ** 2, dtype=np.float64)))


def breakdown(model: Model, *names: str) -> DataError:
    """Return the error of a fit with infinite or undefined numbers, and values that would do.

    Parameters
    ----------
    model : Model
    *names : str
        The numeric parameters that may cause it.
    """
    own = " and ".join(f"{name} {getattr(model, name):g}" for name in names)
    usual = " and ".join(f"{getattr(type(model), name):g}" for name in names)
    return DataError(
        f"The fit of {model.name} leaves the range of single precision with {own}; "
        f"choose values nearer to {usual}."
    )
