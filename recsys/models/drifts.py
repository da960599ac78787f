"""Models whose biases drift with time: what is kept of the drifts of users and of items."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from lowrank.completion.drift import Drift, Knots
from recsys.errors import DataError
from recsys.messages import lasting
from recsys.models.base import BiasedModel, Floats, fitted, model
from recsys.models.histories import Histories

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["NAMES", "DriftingModel", "drift_arrays", "drift_of", "remark"]

NAMES = [f"{side}_drift_{name}" for side in ("user", "item") for name in Knots._fields]
"""The knots of both sides."""


@model
class DriftingModel(BiasedModel):
    """A model whose biases drift, if the ratings of the fit had times."""

    user_drift_starts: NDArray[np.int64] = fitted("n_users", when="set")
    user_drift_counts: NDArray[np.int64] = fitted("n_users", when="set")
    user_drift_times: NDArray[np.int64] = fitted("n_user_knots", when="set")
    user_drift_means: Floats = fitted("n_user_knots", when="set")
    user_drift_variances: Floats = fitted("n_user_knots", when="set")
    user_drift_variance: float = fitted(when="set")
    user_drift_scale: float = fitted(when="set")
    user_drift_noise: float = fitted(when="set")
    item_drift_starts: NDArray[np.int64] = fitted("n_items", when="set")
    item_drift_counts: NDArray[np.int64] = fitted("n_items", when="set")
    item_drift_times: NDArray[np.int64] = fitted("n_item_knots", when="set")
    item_drift_means: Floats = fitted("n_item_knots", when="set")
    item_drift_variances: Floats = fitted("n_item_knots", when="set")
    item_drift_variance: float = fitted(when="set")
    item_drift_scale: float = fitted(when="set")
    item_drift_noise: float = fitted(when="set")

    @property
    def uses_times(self) -> bool:  # type: ignore[override]
        """Return whether biases drift, so that a prediction may be for a time."""
        return NAMES[0] in vars(self)

    def knots(self, side: str) -> Knots:
        """Return what is known of the drifts of a side, "user" or "item"."""
        return Knots(*(getattr(self, f"{side}_drift_{name}") for name in Knots._fields))

    def _check_knots(self) -> None:
        """Check that the knots of users and items are among those that there are.

        Raises
        ------
        DataError
        """
        for side in ("user", "item") if self.uses_times else ():
            starts, counts, times, *_ = self.knots(side)
            low, high = np.minimum(starts, counts), starts + counts
            if low.min(initial=0) < 0 or high.max(initial=0) > len(times):
                raise DataError(f"The array '{side}_drift_starts' must hold places of knots.")


def drift_arrays(side: str, knots: Knots) -> dict[str, Any]:
    """Return the arrays of a side by name."""
    return {f"{side}_drift_{name}": value for name, value in knots._asdict().items()}


def drift_of(histories: Histories, known: Knots, residual: Floats) -> Knots:
    """Return the drifts of rows that are folded in, none where their ratings have no times."""
    times = histories.times
    if times is None:
        times = np.zeros(len(histories.indices), np.int64)
    drift = Drift.of(histories.rows, histories.n_rows, times, np.float32)
    drift.variance = 0.0 if histories.times is None else known.variance
    drift.scale, drift.noise = known.scale, known.noise
    drift.fit(residual)
    return drift.knots()._replace(variance=known.variance)


def remark(drifts: Sequence[Drift], variance: float) -> str:
    """Say how the biases of users and items drift, in ratings of a variance."""
    parts = []
    for name, drift in zip(("users", "items"), drifts, strict=True):
        if drift.variance:
            share = drift.variance / max(variance, 1e-12)
            parts.append(f"{name} for {lasting(drift.scale)} ({share:.1%} of the variance)")
    return f"time: biases drift, those of {' and '.join(parts)}" if parts else "time: no drift"
