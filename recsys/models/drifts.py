"""Models whose biases drift with time, and their fitted drifts of users and items."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from lowrank.completion.drift import Drift, Knots, fit_drifts
from recsys.errors import DataError
from recsys.messages import lasting
from recsys.models.base import BiasedModel, Floats, Indices
from recsys.models.histories import Histories
from recsys.models.parameters import fitted, model

if TYPE_CHECKING:
    from recsys.data.ratings import Ratings


@model
class DriftingModel(BiasedModel):
    """A model whose biases drift, if the training ratings have timestamps."""

    user_drift_starts: NDArray[np.int64] = fitted("n_users", group="drifts")
    user_drift_counts: NDArray[np.int64] = fitted("n_users", group="drifts")
    user_drift_times: NDArray[np.int64] = fitted("n_user_knots", group="drifts")
    user_drift_means: Floats = fitted("n_user_knots", group="drifts")
    user_drift_variances: Floats = fitted("n_user_knots", group="drifts")
    user_drift_variance: float = fitted(group="drifts")
    user_drift_scale: float = fitted(group="drifts")
    user_drift_noise: float = fitted(group="drifts")
    item_drift_starts: NDArray[np.int64] = fitted("n_items", group="drifts")
    item_drift_counts: NDArray[np.int64] = fitted("n_items", group="drifts")
    item_drift_times: NDArray[np.int64] = fitted("n_item_knots", group="drifts")
    item_drift_means: Floats = fitted("n_item_knots", group="drifts")
    item_drift_variances: Floats = fitted("n_item_knots", group="drifts")
    item_drift_variance: float = fitted(group="drifts")
    item_drift_scale: float = fitted(group="drifts")
    item_drift_noise: float = fitted(group="drifts")

    @property
    def uses_times(self) -> bool:  # type: ignore[override]
        """Return whether biases drift, so that predictions depend on the time."""
        return "user_drift_starts" in vars(self)

    def knots(self, side: str) -> Knots:
        """Return the fitted drifts of `side`, "user" or "item"."""
        return Knots(*(getattr(self, f"{side}_drift_{name}") for name in Knots._fields))

    def _rearranged(self, **rows: Indices) -> dict[str, NDArray[Any]]:
        arrays = super()._rearranged(**rows)
        for side, wanted in rows.items() if self.uses_times else ():
            knots = drift_arrays(side, self.knots(side).take(wanted))
            arrays |= {name: np.asarray(value) for name, value in knots.items()}
        return arrays

    def _put(self, part: Any, side: str, rows: Indices) -> None:
        drifts: dict[str, Any] = {}
        if self.uses_times:
            drifts = drift_arrays(
                side, self.knots(side).replaced(rows, part.knots(side))
            )
        super()._put(part, side, rows)
        vars(self).update(drifts)

    def _drifts_at(
        self, users: Indices, items: Indices, times: NDArray[np.int64]
    ) -> tuple[Floats, Floats]:
        """Return the drifts of pairs, and the reduction of their variance by the ratings."""
        of_users, of_items = self.knots("user"), self.knots("item")
        means, variances = of_users.at(users, times)
        others, left = of_items.at(items, times)
        total = np.float32(of_users.variance + of_items.variance)
        return means + others, total - variances - left

    def _fit_drifts(self, ratings: Ratings, residual: Floats) -> str:
        """Fit drifts to residuals of leave-one-out predictions; return a remark on them."""
        rows, times = ratings.user_index_of_nonzeros(), ratings.timestamps
        assert times is not None
        drifts = fit_drifts(residual, rows, ratings.indices, ratings.shape, times)
        parts, variance = [], max(float(ratings.values.var()), 1e-12)
        for side, drift in zip(("user", "item"), drifts, strict=True):
            if drift.variance:
                share = drift.variance / variance
                parts.append(
                    f"{side}s for {lasting(drift.scale)} ({share:.1%} of the variance)"
                )
        if not parts:
            return "time: no drift"
        for side, drift in zip(("user", "item"), drifts, strict=True):
            vars(self).update(drift_arrays(side, drift.knots()))
        return f"time: biases drift, those of {' and '.join(parts)}"

    def _folded_drifts(
        self, side: str, histories: Histories, residual: Floats
    ) -> dict[str, Any]:
        """Return the drifts of folded-in rows, which are zero without timestamps."""
        known = self.knots(side)
        times = None if histories.times is None else histories.times.astype(np.int64)
        if times is not None:
            other = self.knots("item" if side == "user" else "user")
            at = histories.indices.astype(np.int64), times
            residual = residual - other.at(*at)[0]
        else:
            times = np.zeros(len(residual), np.int64)
        drift = Drift.of(histories.rows, histories.n_rows, times, np.float32)
        drift.variance = 0.0 if histories.times is None else known.variance
        drift.scale, drift.noise = known.scale, known.noise
        drift.fit(residual)
        return drift_arrays(side, drift.knots()._replace(variance=known.variance))

    def _check_knots(self) -> None:
        """Check that the knots of all users and items exist."""
        for side in ("user", "item") if self.uses_times else ():
            starts, counts, times, *_ = self.knots(side)
            low, high = np.minimum(starts, counts), starts + counts
            if low.min(initial=0) < 0 or high.max(initial=0) > len(times):
                raise DataError(
                    f"The array '{side}_drift_starts' must hold indices of knots."
                )


def drift_arrays(side: str, knots: Knots) -> dict[str, Any]:
    """Return the fitted arrays of the drifts of `side` by name."""
    return {f"{side}_drift_{name}": value for name, value in knots._asdict().items()}
