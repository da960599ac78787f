"""Implicit alternating least squares: a factorization of all interactions and their absence."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.sparse import csr_array

from lowrank import kernels
from lowrank.completion.implicit import implicit_sweeps, solve_interactions
from recsys.models.base import (
    Explanation,
    FactorModel,
    Floats,
    FoldingModel,
    Histories,
    OnStep,
    Step,
    breakdown,
    check_indices,
    fitted,
    model,
)
from recsys.models.item_item import weight_unit, weighted_matrix
from recsys.models.parameters import parameter, random_state_parameter, threads_parameter

if TYPE_CHECKING:
    from recsys.data.ratings import Ratings

_INTERACTIONS = 1_000_000  # in the search for the penalties: larger data lend some of their users
_FOLDS = 5  # a fifth is held out; of fewer interactions than the next, each fifth in turn
_REPEATED = 30_000
_TOP = 20
_FACTORS, _SWEEPS = 32, 6
_FIRST_WEIGHT, _FIRST_PENALTY = 0.03, 2.0
_STEP = 10**0.25
_TRIALS = 30


Place = tuple[int, int]  # in steps of the weight of all pairs, and of the penalty


class Penalties(NamedTuple):
    """The weight of all pairs and the ridge penalty."""

    unobserved_weight: float
    regularization: float


@model
class IALS(FoldingModel, FactorModel):
    """Score an item by ``a_u . m_i``, fitted to 1 at interactions and to 0 everywhere, weakly.

    Minimises ``sum w_ui (1 - a_u . m_i)^2`` over the interactions, plus ``unobserved_weight`` times
    the sum of ``(a_u . m_i)^2`` over all pairs, plus a ridge penalty of ``regularization * (w_u +
    unobserved_weight * n_items)**count_power`` for a user of total weight w_u, and likewise for an
    item, by exact alternating solutions. An interaction has the weight 1, times the rating's share
    of the highest one or the count over the mean. Where the two penalties are not given, they are
    those with the best NDCG on a fifth of the interactions, held out for a search with fewer
    factors and, of large data, fewer users.

    Attributes
    ----------
    penalty, pair_weight : float
        The regularization and the unobserved_weight, given or found.
    unit : float
        The rating or count that weighs 1.

    References
    ----------
    Hu, Koren and Volinsky (2008), "Collaborative filtering for implicit feedback datasets".
    Rendle, Krichene, Zhang and Koren (2022), "Revisiting the performance of iALS on item
    recommendation benchmarks".
    """

    name = "ials"
    summary = "Interactions of many users and items: latent factors, any size, any threads."
    predicts_ratings = False
    _needs_values = False
    _scores_between_sweeps = True

    factors: int = parameter(128, "Number of latent factors.", low=16, high=256, log=True)
    regularization: float | None = parameter(
        None, "Ridge penalty; by default chosen on held-out interactions."
    )
    unobserved_weight: float | None = parameter(
        None, "Weight of all pairs; by default chosen on held-out interactions."
    )
    count_power: float = parameter(
        1.0, "Power of the total weight in the penalty: 0 is plain ridge.", low=0.0, high=1.0
    )
    iterations: int = parameter(16, "Maximum number of sweeps (users, then items).")
    tol: float = parameter(
        1e-3, "Stop when a sweep lowers the objective by less than this fraction of it.", minimum=0
    )
    random_state: int = random_state_parameter()
    threads: int | None = threads_parameter()

    unit: float = fitted()
    penalty: float = fitted()
    pair_weight: float = fitted()

    def _fit(
        self,
        ratings: Ratings,
        on_step: OnStep,
        validation: Ratings | None,
        start: FactorModel | None = None,
    ) -> None:
        self.unit = weight_unit(ratings)
        weights = self._weights(Histories.of(ratings), ratings.n_items)
        given = Penalties(self.unobserved_weight or 0.0, self.regularization or 0.0)
        if isinstance(start, IALS) and not all(given):  # an update keeps what was found
            given = Penalties(given[0] or start.pair_weight, given[1] or start.penalty)
        self.pair_weight, self.penalty = penalties = self._chosen(weights, given)
        self.global_mean = 0.0
        self.user_bias, self.item_bias = (np.zeros(n, np.float32) for n in ratings.shape)
        options = self._options(penalties) | {"random_state": self.random_state}
        options["start"] = None if start is None else start.item_factors
        sweeps, previous = implicit_sweeps(weights, self.factors, **options), math.inf
        for number, sweep in enumerate(islice(sweeps, self.iterations), start=1):
            if not math.isfinite(sweep.objective):
                raise breakdown(self, "count_power")
            self.user_factors, self.item_factors = sweep.row_factors, sweep.column_factors
            if on_step is not None:
                on_step(Step(number, self.iterations, sweep.objective))
            if previous - sweep.objective <= self.tol * sweep.objective:
                break
            previous = sweep.objective
        # The users once more, so that a user folded in later gets the very same vector.
        vars(self).update(self._solved(Histories.of(ratings), of_users=True))

    def contributions(self, history: Histories, items: ArrayLike) -> Explanation:
        """Return the scores of `items`, with a term for each item of the history; the base is 0."""
        columns = check_indices(items, self.n_items, "item")
        known = check_indices(history.indices, self.n_items, "item")
        weights = np.maximum(history.values / np.float32(self.unit), 0).astype(np.float64)
        Y = self.item_factors.astype(np.float64)
        total = weights.sum() + self.pair_weight * self.n_items
        normal = (Y[known].T * weights) @ Y[known] + self.pair_weight * (Y.T @ Y)
        normal += self.penalty * total**self.count_power * np.eye(Y.shape[1])
        terms = Y[columns] @ np.linalg.solve(normal, Y[known].T * weights)
        return Explanation(np.zeros(len(columns), np.float32), terms.astype(np.float32))

    def _solved(self, histories: Histories, *, of_users: bool) -> dict[str, Floats]:
        side, other = ("user", self.item_factors) if of_users else ("item", self.user_factors)
        entries = kernels.csr_arrays(self._weights(histories, len(other)))
        options = self._options(Penalties(self.pair_weight, self.penalty))
        factors = solve_interactions(entries, other, **options)
        return {f"{side}_factors": factors, f"{side}_bias": np.zeros(len(factors), np.float32)}

    def _weights(self, histories: Histories, n_columns: int) -> csr_array[np.float32]:
        """Return the weights of interactions; negative ratings weigh nothing."""
        weights = weighted_matrix(histories, n_columns, self.unit)
        np.maximum(weights.data, 0, out=weights.data)
        return weights

    def _options(self, penalties: Penalties) -> dict[str, Any]:
        """Return the keywords that fits and fold-ins share."""
        others = {"count_power": self.count_power, "threads": self.threads}
        return penalties._asdict() | others

    def _chosen(self, weights: csr_array[np.float32], given: Penalties) -> Penalties:
        """Return the penalties; those that are 0 as they rank held-out interactions best."""
        if all(given):
            return given
        trial = _Trial.of(weights, self)
        (n, m), density = weights.shape, weights.nnz / math.prod(weights.shape)

        def penalties(place: Place) -> Penalties:
            weight = given.unobserved_weight or _FIRST_WEIGHT * _STEP ** place[0]
            # Across a step in the weight alone, the mean penalties of users and items stay.
            mean = _FIRST_PENALTY * _STEP ** place[1] / math.sqrt(n * m)
            return Penalties(weight, given.regularization or mean / (density + weight))

        steps = [(0, 1), (0, -1)] * (not given[1]) + [(1, 0), (-1, 0)] * (not given[0])
        few, best = min(_FACTORS, self.factors), (0, 0)
        heights: dict[Place, float] = {}
        for size in (2, 1):
            taken = [(size * i, size * j) for i, j in steps]
            best = _climbed(best, taken, lambda each: trial.ndcg(penalties(each), few), heights)
        if few < self.factors and not given[1]:  # more factors need a larger penalty
            best = _climbed(
                best, steps[:1], lambda each: trial.ndcg(penalties(each), self.factors), {}
            )
        return penalties(best)


def _climbed(
    place: Place,
    steps: list[Place],
    height: Callable[[Place], float],
    heights: dict[Place, float],
) -> Place:
    """Return the place from which no step leads higher; `heights` are those known."""
    while True:
        near = [place, *((place[0] + i, place[1] + j) for i, j in steps)]
        heights |= {each: height(each) for each in near if each not in heights}
        highest = max(heights, key=heights.__getitem__)
        if highest == place or len(heights) > _TRIALS:
            return highest
        place = highest


@dataclass(frozen=True, eq=False)
class _Trial:
    """Parts of the interactions of some users, each with others of them to rank."""

    folds: list[tuple[csr_array[np.float32], csr_array[np.float32]]]
    model: IALS

    @classmethod
    def of(cls, weights: csr_array[np.float32], model: IALS) -> _Trial:
        """Hold out a fifth of the interactions, of small data several times over."""
        generator = np.random.default_rng(model.random_state)
        order = generator.permutation(weights.shape[0])
        size = np.searchsorted(np.diff(weights.indptr)[order].cumsum(), _INTERACTIONS, "right")
        sample = weights[np.sort(order[: max(size, 1)])].tocoo()
        number = generator.integers(_FOLDS, size=sample.nnz)
        count = min(_FOLDS, 1 + _REPEATED // max(sample.nnz, 1))

        def part(chosen: NDArray[np.bool_]) -> csr_array[np.float32]:
            places = sample.coords[0][chosen], sample.coords[1][chosen]
            return csr_array((sample.data[chosen], places), shape=sample.shape)

        folds = [(part(number != fold), part(number == fold)) for fold in range(count)]
        return cls([pair for pair in folds if all(each.nnz for each in pair)], model)

    def ndcg(self, penalties: Penalties, factors: int) -> float:
        """Return the mean NDCG@20 of the users with held-out interactions after short fits."""
        options = self.model._options(penalties) | {"random_state": self.model.random_state}
        total = 0.0
        for train, held_out in self.folds:
            *_, last = islice(implicit_sweeps(train, factors, **options), _SWEEPS)
            total += _mean_ndcg(last.row_factors, last.column_factors, train, held_out)
        return total


def _mean_ndcg(
    user_factors: Floats,
    item_factors: Floats,
    train: csr_array[np.float32],
    held_out: csr_array[np.float32],
) -> float:
    counts, n_items = np.diff(held_out.indptr), train.shape[1]
    users = np.flatnonzero(counts)
    seen = kernels.Seen(users, *kernels.csr_arrays(train)[:2])
    top = max(1, min(_TOP, n_items // 5))  # of a small catalogue, still a choice
    found = kernels.top_k(user_factors[users], item_factors, top, seen=seen).items
    relevant = held_out.tocoo()
    keys = relevant.coords[0].astype(np.int64) * n_items + relevant.coords[1]
    hits = np.isin(users[:, None] * n_items + found, keys) & (found >= 0)
    discounts = 1 / np.log2(np.arange(2, top + 2))
    best = discounts.cumsum()[np.minimum(counts[users], top) - 1]
    return float(np.sum(hits @ discounts[: found.shape[1]] / best)) / max(len(users), 1)
