"""Biases of users and items that change with time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

import numpy as np

from lowrank.completion.time_biases import Drift, Knots, fit_drifts
from recsys.errors import DataError
from recsys.messages import lasting
from recsys.models.histories import Histories
from recsys.models.parts import (
    OTHER,
    Floats,
    Indices,
    Longs,
    Part,
    Sides,
    record,
    saved,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from recsys.data.ratings import Ratings

_LEAST_VARIANCE = 1e-12  # of ratings, which divides that of the drifts


@record
class AxisTimes(Part):
    """Time biases of the users, or of the items: the fields of `Knots`.

    Raises
    ------
    DataError
        If the knots of a row do not exist.
    """

    starts: Longs = saved("n_{side}s")
    counts: Longs = saved("n_{side}s")
    times: Longs = saved("n_{side}_knots")
    means: Floats = saved("n_{side}_knots")
    variances: Floats = saved("n_{side}_knots")
    variance: float = saved()
    scale: float = saved()
    noise: float = saved()

    def __post_init__(self) -> None:
        # Loaded arrays index one another, and may be damaged.
        ends = self.starts + self.counts
        lowest = np.minimum(self.starts, self.counts).min(initial=0)
        if lowest < 0 or ends.max(initial=0) > len(self.times):
            raise DataError(
                "The 'starts' and 'counts' of time biases must hold indices of knots."
            )

    @property
    def knots(self) -> Knots:
        """The biases at knots, and between them."""
        return Knots(**vars(self))

    def rearranged(self, rows: Mapping[str, Indices], side: str = "") -> Self:
        """Return the biases of the given rows of `user` or `item`."""
        if side not in rows:
            return self
        return type(self)(**self.knots.take(rows[side])._asdict())

    def replaced(
        self,
        other: Self,
        side: str,
        rows: Indices,
        own_side: str = "",
    ) -> Self:
        """Return the biases with the rows of some users (or items) of another model."""
        if side != own_side:
            return self
        return type(self)(**self.knots.replaced(rows, other.knots)._asdict())


@record
class TimeBiases(Sides[AxisTimes]):
    """Drifts of the biases of users and items, which are zero far from any rating."""

    kind = AxisTimes

    def at(
        self,
        users: Indices,
        items: Indices,
        times: Longs,
    ) -> tuple[Floats, Floats]:
        """Return the drifts of pairs, and the reduction of their variance by the ratings."""
        # Far from any rating, the mean is 0 and the variance that of the process.
        user_means, user_variances = self.users.knots.at(users, times)
        item_means, item_variances = self.items.knots.at(items, times)
        total = np.float32(self.users.variance + self.items.variance)
        return user_means + item_means, total - user_variances - item_variances

    def folded(
        self,
        side: str,
        histories: Histories,
        residual: Floats,
    ) -> Self:
        """Return the drifts with other users (or items), which have none without timestamps."""
        fitted = self.of(side)
        times = np.zeros(len(residual), np.int64)
        if histories.times is not None:
            times = histories.times.astype(np.int64)
            columns = histories.indices.astype(np.int64)
            others = self.of(OTHER[side]).knots
            # The drift of a user is what that of the items leaves, and vice versa.
            residual = residual - others.at(columns, times)[0]
        drift = Drift.of(histories.rows, histories.n_rows, times, np.float32)
        # Without times there is nothing to drift along: the biases at knots are zero.
        drift.variance = 0.0 if histories.times is None else fitted.variance
        drift.scale = fitted.scale
        drift.noise = fitted.noise
        drift.fit(residual)
        knots = drift.knots()._replace(variance=fitted.variance)
        return self.with_side(side, AxisTimes(**knots._asdict()))


def fit_time_biases(
    ratings: Ratings, residual: Floats
) -> tuple[TimeBiases | None, str]:
    """Fit drifts to residuals of leave-one-out predictions; return a remark on them, too."""
    times = ratings.timestamps
    assert times is not None
    rows = ratings.user_index_of_nonzeros()
    of_users, of_items = fit_drifts(
        residual, rows, ratings.indices, ratings.shape, times
    )
    variance = max(float(ratings.values.var()), _LEAST_VARIANCE)
    descriptions = []
    for name, drift in (("users", of_users), ("items", of_items)):
        if drift.variance:
            share = drift.variance / variance
            lasts = lasting(drift.scale)
            descriptions.append(f"{name} for {lasts} ({share:.1%} of the variance)")
    if not descriptions:
        return None, "time: no drift"
    biases = TimeBiases(
        users=AxisTimes(**of_users.knots()._asdict()),
        items=AxisTimes(**of_items.knots()._asdict()),
    )
    return biases, f"time: biases drift, those of {' and '.join(descriptions)}"
