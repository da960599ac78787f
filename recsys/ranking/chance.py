"""Chances: probabilities that the items of a list are taken, calibrated on held-out lists."""

from __future__ import annotations

from typing import Annotated, Literal

import numpy as np
from msgspec import Meta, Struct, structs

from recsys.messages import counted
from recsys.models.parts import Doubles, Floats, Mask
from recsys.ranking.topn import TopN

_BIN = 50  # entries of lists with one frequency: fewer would make chances of 0 and 1 by luck
_MOST_BINS = 500
_FEW = (
    100  # users: the share of items that fewer take differs much from window to window
)
Key = Literal["score", "rank"]
_KEYS: tuple[Key, ...] = ("score", "rank")


class Chances(Struct, frozen=True, kw_only=True):
    """Calibration of a model: chances by score or by rank, linear between points.

    They are for users who take anything in such a time as the held-out ratings cover. In a longer
    time, users take more, and after a change of what they take, other items.

    Attributes
    ----------
    by : {"score", "rank"}
    points, values : tuple of float
        Scores (or ranks times -1) in ascending order, and their chances.
    users : int
        Number of users with held-out lists.
    held_out : str
        Description of the held-out ratings.
    """

    by: Key
    points: tuple[float, ...]
    values: tuple[Annotated[float, Meta(ge=0, le=1)], ...]
    users: int
    held_out: str

    def __post_init__(self) -> None:
        # A saved model may be damaged.
        has_points = len(self.points) == len(self.values) > 0
        # NaN is not ascending, either.
        if not has_points or not (np.diff(self.points) >= 0).all():
            raise ValueError("the points of the chances are not ascending")

    @classmethod
    def fit(
        cls,
        scores: Floats,
        hits: Mask,
        held_out: str = "",
    ) -> Chances:
        """Calibrate by the scores of lists and by which items were taken, shape (n_lists, n).

        Entries without an item have a score of NaN. The chance is a non-decreasing function of the
        score, or a non-increasing one of the rank: whichever has the smaller squared error on the
        lists of other users than it was fitted to.
        """
        by, _ = crossed(scores, hits)
        points, values = _isotonic(_keys(scores, by), hits)
        return cls(
            by=by,
            points=points,
            values=values,
            users=len(scores),
            held_out=held_out,
        )

    def __str__(self) -> str:
        remark = ""
        if self.users < _FEW:
            remark = "; of so few users, they are rough"
        return (
            f"chances by {self.by}, for a user who comes back and takes as much as was held out: "
            f"{self.held_out}, of {counted(self.users, 'user')}{remark}"
        )

    def rescaled(self, before: Floats, after: Floats) -> Chances:
        """Return the chances for a model that gives pairs other scores, in the same order.

        `before` and `after` are the scores of some pairs of user and item, shape (n_pairs,).
        """
        if not len(before):
            return self
        levels, places = np.unique(np.sort(before), return_inverse=True)
        means = np.bincount(places, np.sort(after)) / np.bincount(places)
        points = np.interp(self.points, levels, means)
        return structs.replace(self, points=tuple(points.tolist()))

    def of(self, top: TopN) -> Floats:
        """Return the chance of each entry; NaN for those that are not there by their score."""
        keys = top.scores if self.by == "score" else -top.ranks
        shares = np.interp(keys, self.points, self.values)
        chances: Floats = shares.astype(np.float32)
        if top.sources is not None:
            chances[top.sources != 0] = np.nan
        return chances


def crossed(
    scores: Floats,
    hits: Mask,
) -> tuple[Key, Doubles]:
    """Return the better key, and the chances that each half of the lists gives the other.

    Arguments are as in `Chances.fit`. Entries without an item have a chance of NaN.
    """
    chances = {by: _of_other_half(_keys(scores, by), hits) for by in _KEYS}

    def error(by: Key) -> float:
        return float(np.nansum(np.square(chances[by] - hits)))

    best = min(_KEYS, key=error)
    return best, chances[best]


def _of_other_half(keys: Doubles, hits: Mask) -> Doubles:
    """Return the chances by the keys that each half of the lists gives the other."""
    is_listed = ~np.isnan(keys)
    second = np.arange(len(keys)) % 2 == 1
    chances = np.full(keys.shape, np.nan)
    for half in (second, ~second):
        # A single list has no others.
        if is_listed[~half].any():
            points, values = _isotonic(keys[~half], hits[~half])
            chances[half] = np.interp(keys[half], points, values)
    # `interp` keeps NaN only where NaN is not below all points.
    return np.where(is_listed, chances, np.nan)


def _keys(scores: Floats, by: Key) -> Doubles:
    """Return what the chance increases with; NaN for entries without an item."""
    if by == "score":
        return scores.astype(np.float64)
    ranks = np.arange(1.0, scores.shape[1] + 1)
    return np.where(np.isnan(scores), np.nan, -ranks)


def _isotonic(
    keys: Doubles,
    hits: Mask,
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return the points and values of the isotonic regression of hits on keys."""
    from scipy.optimize import isotonic_regression

    is_listed = ~np.isnan(keys)
    key = keys[is_listed]
    n_bins = min(_MOST_BINS, max(1, len(key) // _BIN))
    shares = np.arange(1, n_bins) / n_bins
    # Equal keys are in one bin, so that some quantiles are the same.
    edges = np.unique(np.quantile(key, shares))
    bins = np.searchsorted(edges, key, "right")
    _, bins = np.unique(bins, return_inverse=True)
    counts = np.bincount(bins)
    points = np.bincount(bins, key) / counts
    means = np.bincount(bins, hits[is_listed]) / counts
    levels = isotonic_regression(means, weights=counts)
    # Rounding of a mean may leave [0, 1].
    chances = np.clip(levels.x, 0, 1)
    return tuple(points.tolist()), tuple(chances.tolist())
