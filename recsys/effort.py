"""Time of fits, estimated from the size of the data before any is made.

The unit is a multiply-add of a product of large matrices, whose rate is measured: other operations
count as many times as they take longer.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from lowrank import kernels
from recsys.models import ials, linear_filter
from recsys.models.holdout import LISTED, Size

if TYPE_CHECKING:
    from recsys.data.ratings import Ratings
    from recsys.models.base import Model
    from recsys.models.parts import Longs

_SIDE, _REPEATS = 256, 9  # of the matrices whose product is timed
_PARALLEL = 0.7  # share of a fit that threads divide among them
_SPARSE = 12  # a product of a sparse and a dense matrix, by number of stored entries
_SUBSPACE = 6  # passes of `leading_directions` over the data
_PAIR = 50  # a product of two rows of a sparse matrix, by pair of their entries
_TRIAL, _TRIAL_ROW = 20_000, 200_000  # a trial of ials, by interaction and by row
_WIDE_TRIALS = 10  # the same with many factors, in such trials
N_TRIALS = 18
"""Usual number of trials of ials with few factors."""

FIRST = 5e9
"""Effort that does not depend on the data."""

_SWEEPS, _BAYES_SWEEPS = 12, 8  # of als and ials, and of bayes, when they stop
_BLOCK = 64  # factors that ials solves for at once
_FEATURES = 2.0  # a fit with features, next to one without
_LIST = 2_500_000  # a list in the search of weights of blends


class Effort(NamedTuple):
    """Multiply-adds of the search of parameters, and of the fit with these."""

    search: float
    fit: float


@dataclass
class Schedule:
    """Seconds of a comparison of models and of the fit after it, next to a budget.

    Attributes
    ----------
    first, again, final : list of float
        Estimates for each model: its trial on the first split with the lists, the same on another
        split, and its fit to all data.
    n_splits : int
    n_winners : int
        Number of models that are usually fitted to all data, 2 for a blend.
    deadline : float
        Time, by `time.perf_counter`, at which all is to be finished.
    compared : list of int
        Models that are compared, by number.
    """

    first: list[float]
    again: list[float]
    final: list[float]
    size: Size
    n_winners: int
    deadline: float
    compared: list[int] = field(default_factory=list)
    _start: float = field(default_factory=time.perf_counter)
    _expected: float = 0.0

    @classmethod
    def of(
        cls,
        models: Sequence[Model],
        ratings: Ratings,
        *,
        size: Size,
        budget: float | None,
        threads: int | None,
    ) -> Schedule:
        """Estimate fits of models to `ratings`, and trials on a part of these."""
        second = rate(threads)
        has_features = any(axis.encoder is not None for axis in ratings.axes)
        share = size.share(ratings)
        first, again, final = [], [], []
        for model in models:
            trial = type(model)(**model._trial_params(ratings))
            factor = _FEATURES if model.uses_features and has_features else 1.0
            needed = effort(trial, ratings, share)
            lists = lists_effort(ratings, size) if ratings.implicit else 0.0
            again.append((factor * share * needed.fit + lists) / second)
            first.append(again[-1] + needed.search / second)
            final.append(factor * effort(model, ratings).fit / second)
        deadline = time.perf_counter() + (math.inf if budget is None else budget)
        n_winners = 2 if ratings.implicit else 1
        return cls(first, again, final, size, n_winners, deadline)

    def seconds(self, models: Sequence[int]) -> float:
        """Return the seconds of a comparison of some models, and of the slowest fits after it."""
        longest = sum(sorted(self.final[model] for model in models)[-self.n_winners :])
        if len(models) == 1:
            return longest
        trials = [
            self.first[m] + (self.size.n_folds - 1) * self.again[m] for m in models
        ]
        return sum(trials) + longest

    @property
    def slowness(self) -> float:
        """Time of what has ended, relative to its estimates; at least 1."""
        if not self._expected:
            return 1.0
        return max(1.0, (time.perf_counter() - self._start) / self._expected)

    @property
    def left(self) -> float:
        """Seconds that are left, by the estimates."""
        return (self.deadline - time.perf_counter()) / self.slowness

    @property
    def trial_deadline(self) -> float:
        """Time at which trials are to be finished, so that a fit to all data can follow."""
        longest = max(self.final[model] for model in self.compared)
        return self.deadline - self.slowness * longest

    def begins(self, split: int, model: int) -> bool:
        """Return whether there is time for a trial of a model, and count it if so."""
        needed = self.again[model] if split else self.first[model]
        compared = self.compared if split else [*self.compared, model]
        longest = max(self.final[number] for number in compared)
        is_first = not split and not self.compared
        if not is_first and needed + longest > self.left:
            return False
        self._expected += needed
        self.compared = compared
        return True

    def affordable(self) -> list[int]:
        """Return the models that can be compared in time, the fastest ones; at least one."""
        order = sorted(range(len(self.final)), key=self.final.__getitem__)
        chosen = order[:1]
        for model in order[1:]:
            if self.seconds([*chosen, model]) <= self.left:
                chosen.append(model)
        return sorted(chosen)


def rate(threads: int | None) -> float:
    """Return the multiply-adds in a second on this machine."""
    matrix = np.ones((_SIDE, _SIDE), np.float32)
    seconds = []
    # The fastest of several products was not interrupted by other processes.
    with kernels.at_most(1):
        for _ in range(_REPEATS):
            start = time.perf_counter()
            matrix @ matrix
            seconds.append(time.perf_counter() - start)
    n_threads = kernels.resolve_threads(threads)
    return _SIDE**3 / min(seconds) / (1 - _PARALLEL + _PARALLEL / n_threads)


def effort(model: Model, ratings: Ratings, share: float = 1.0) -> Effort:
    """Return the effort of a fit of a model that `auto` may choose.

    The search of parameters is in a share of the ratings.
    """
    n, m = ratings.shape
    counts = [ratings.counts(side) for side in ("user", "item")]
    n_pairs = _PAIR * float(np.square(counts[0], dtype=float).sum())
    if model.name in ("als", "bayes"):
        return Effort(0.0, FIRST + _ratings_effort(model, counts))
    if model.name == "ials":
        return _interactions_effort(model, counts, share)
    if model.name == "ease":
        return Effort(0.0, FIRST + n_pairs + float(m) ** 3)
    if model.name == "next":
        width = min(m, 4096)
        return Effort(0.0, FIRST + 8 * (n_pairs + float(width) ** 3))
    k = model.get_params().get("factors")
    k = k or linear_filter.default_factors(n, m, ratings.n_ratings)
    width = min(k + _BLOCK, n, m)
    products = _SPARSE * ratings.n_ratings * width + float(n + m) * width**2
    return Effort(0.0, FIRST + _SUBSPACE * products + n_pairs)


def lists_effort(ratings: Ratings, size: Size) -> float:
    """Return the effort of the lists of a trial."""
    share = size.share(ratings)
    n_held_out = share * ratings.n_ratings / size.n_parts
    n_users = share * ratings.n_users / max(1, math.ceil(n_held_out / LISTED))
    factors = linear_filter.default_factors(*ratings.shape, ratings.n_ratings)
    return n_users * (_LIST + float(ratings.n_items) * factors)


def _ratings_effort(model: Model, counts: list[Longs]) -> float:
    """Return the effort of models of ratings, whose sweeps solve for each user and item."""
    params = model.get_params()
    k = float(params["factors"])
    n_rows, n_ratings = sum(map(len, counts)), float(counts[0].sum())
    if model.name == "bayes":
        # It solves in double precision, and inverts each matrix.
        sweep = n_ratings * 11 * k**2 + n_rows * 21 * k**3
        return float(min(_BAYES_SWEEPS, params["iterations"]) * sweep)
    sweep = n_ratings * 2 * k * (k + _SPARSE) + n_rows * k**3
    if params["linked"]:
        sweep *= 2
    return float(min(_SWEEPS, params["iterations"]) * sweep)


def _interactions_effort(model: Model, counts: list[Longs], sampled: float) -> Effort:
    """Return the effort of `ials`: short fits that search penalties, and one with these."""
    params = model.get_params()
    n_users, n_items = map(len, counts)
    n_interactions = int(counts[0].sum())
    k = params["factors"]
    if k is None:
        k = ials.default_factors(n_users, n_items, n_interactions, dual=True)
    sweep = 3 * float(n_users + n_items) * k**2
    for of_side in counts:
        n = of_side.astype(float)
        # A row is solved in blocks of factors, or exactly, by its factors or its interactions.
        in_blocks = n * k * _BLOCK / 2
        exactly = np.minimum(n, k) * n * k / 2
        sweep += float(np.minimum(in_blocks, exactly).sum())
    search = 0.0
    if not (params["regularization"] and params["unobserved_weight"]):
        limits = ials.FIRST_INTERACTIONS, ials.INTERACTIONS
        for most, n_trials in zip(limits, (N_TRIALS, _WIDE_TRIALS), strict=True):
            share = min(sampled, most / n_interactions)
            rows = share * n_users + n_items
            trial = _TRIAL * share * n_interactions + _TRIAL_ROW * rows
            search += n_trials * trial
        search *= min(ials.FOLDS, 1 + ials.REPEATED // n_interactions)
    return Effort(search, FIRST + min(_SWEEPS, params["iterations"]) * sweep)
