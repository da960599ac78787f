"""Implicit alternating least squares: a factorization of all interactions and their absence."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from lowrank import kernels
from lowrank.completion.implicit import (
    ImplicitSweep,
    implicit_sweeps,
    in_principal_axes,
    solve_interactions,
)
from lowrank.completion.links import Terms
from lowrank.kernels import CsrArrays
from lowrank.kernels.retrieval import top_k
from lowrank.kernels.topk import Ties, mixed
from recsys.models.base import Floats, Model, OnStep, Step, check_indices
from recsys.models.histories import Explanation, Histories
from recsys.models.item_item import weight_unit, weighted_matrix
from recsys.models.parameters import (
    breakdown,
    fitted,
    model,
    parameter,
    random_state_parameter,
    threads_parameter,
)
from recsys.models.priors import Known, PriorModel, csr_rows, row_of

if TYPE_CHECKING:
    from scipy.sparse import csr_array

    from recsys.data.ratings import Ratings

# Search for the penalties:
INTERACTIONS = (
    1_000_000  # maximum number of interactions; larger data are sampled by user
)
_FOLDS = 5  # one fold is held out
_REPEATED = (
    30_000  # below this number of interactions, several folds are held out in turn
)
_TOP = 20  # length of the ranked lists
_FACTORS, _SWEEPS = 32, 6  # size of each fit
_MORE_FACTORS = (
    128  # number of factors of the last fits, enough to see what still more would need
)
_FIRST_WEIGHT, _FIRST_PENALTY = 0.03, 2.0  # starting point
_STEP = 10**0.25  # factor between neighbouring values
_TRIALS = 30  # maximum number of fits

_MANY_INTERACTIONS = 3_000_000  # number above which fits with 256 factors take too long
_MANY_ROWS, _SHORT = (
    10_000,
    50,
)  # numbers of users and items, and interactions, for 512 factors

Place = tuple[
    int, int
]  # grid position: steps of unobserved_weight and of regularization


class Penalties(NamedTuple):
    """Weight of all pairs, and ridge penalty."""

    unobserved_weight: float
    regularization: float


@model
class IALS(PriorModel):
    """Score an item by ``a_u . m_i``, with target 1 for interactions and 0 for all pairs.

    Minimises the sum of three terms by alternating least squares: ``w_ui (1 - a_u . m_i)^2`` over
    the interactions; ``unobserved_weight * (a_u . m_i)^2`` over all pairs; and a ridge penalty of
    ``regularization * (w_u + unobserved_weight * n_items)**count_power`` for a user of total
    weight w_u, and likewise for an item. The weight w_ui is 1 for plain interactions, a rating
    divided by the highest rating, or a count divided by the mean count.

    Each sweep solves rows exactly, or in blocks of 64 factors if there are many factors and long
    histories (see `lowrank.completion.implicit`); the users are solved exactly at the end. By
    default, `unobserved_weight` and `regularization` are those with the highest NDCG on a held-out
    fifth of the interactions. This search uses fewer factors and, for large data, fewer users.

    With features of items or users, the penalty pulls factors towards a linear function of the
    features, a ridge regression of the factors (see `lowrank.completion.implicit`). Features alone
    determine an item or user without interactions, whose pairs are left out of the fit.

    Attributes
    ----------
    penalty, pair_weight : float
        The regularization and the unobserved_weight, as given or as found by the search.
    unit : float
        The rating or count of weight 1.

    References
    ----------
    Hu, Koren and Volinsky (2008), "Collaborative filtering for implicit feedback datasets".
    Rendle, Krichene, Zhang and Koren (2022), "Revisiting the performance of iALS on item
    recommendation benchmarks".
    """

    name = "ials"
    summary = (
        "Interactions of many users and items: latent factors, any size, any threads."
    )
    predicts_ratings = False
    _needs_values = False
    _scores_between_sweeps = True

    factors: int | None = parameter(
        None,
        "Number of latent factors; by default 256, 128 for more than 3 million interactions, and "
        "512 for many users and items with few interactions each.",
        low=16,
        high=512,
        log=True,
    )
    regularization: float | None = parameter(
        None, "Ridge penalty; by default chosen on held-out interactions."
    )
    unobserved_weight: float | None = parameter(
        None, "Weight of all pairs; by default chosen on held-out interactions."
    )
    count_power: float = parameter(
        1.0,
        "Power of the total weight in the penalty: 0 is plain ridge.",
        low=0.0,
        high=1.0,
    )
    iterations: int = parameter(16, "Maximum number of sweeps (users, then items).")
    tol: float = parameter(
        1e-3,
        "Stop when a sweep lowers the objective by less than this fraction of it.",
        minimum=0,
    )
    random_state: int = random_state_parameter()
    threads: int | None = threads_parameter()

    unit: float = fitted()
    penalty: float = fitted()
    pair_weight: float = fitted()

    _first_item_factors: ClassVar[Floats | None] = None

    def _fit_like(
        self,
        trials: Mapping[str, Model],
        ratings: Ratings,
        *,
        on_step: OnStep = None,
        validation: Ratings | None = None,
    ) -> Self:
        """Fit with the penalties of a trial, and start from its items; see `Model`."""
        trial = trials.get(self.name)
        if isinstance(trial, IALS):
            vars(self)["_first_item_factors"] = trial.item_factors
        super()._fit_like(trials, ratings, on_step=on_step, validation=validation)
        vars(self).pop("_first_item_factors", None)
        return self

    def _fit(
        self,
        ratings: Ratings,
        on_step: OnStep,
        validation: Ratings | None,
    ) -> None:
        self.unit = weight_unit(ratings)
        histories = Histories.of(ratings)
        weights = self._weights(histories, ratings.n_items)
        self._set_penalties(weights)
        self.global_mean = 0.0
        self.user_bias, self.item_bias = (
            np.zeros(n, np.float32) for n in ratings.shape
        )
        features = ratings.user_features, ratings.item_features
        users, items = map(csr_rows, features)
        plain = users is None and items is None
        k = self.factors or default_factors(
            *ratings.shape, ratings.n_ratings, dual=plain
        )
        sweeps = implicit_sweeps(
            weights,
            k,
            row_features=None if users is None else features[0],
            column_features=None if items is None else features[1],
            start=self._first_item_factors,
            random_state=self.random_state,
            **self._options(),
        )
        sweep = self._last(sweeps, on_step)
        if sweep.row_prior is not None:
            self._set_prior("user", sweep.row_prior, users, sweep.row_factors)
        if sweep.column_prior is not None:
            self._set_prior("item", sweep.column_prior, items, sweep.column_factors)
            counts = np.bincount(ratings.indices, minlength=ratings.n_items)
            points = sweep.column_prior.of(items, ratings.n_items)
            vars(self).update(
                self._completed("item", self.item_factors, counts, points)
            )
        if plain:  # so that users are fast to fold in
            self.item_factors = in_principal_axes(self.item_factors)
        # Solve the users again, so that folding in a training user returns the same vector.
        vars(self).update(self._solved(histories, users, of_users=True))

    def _set_penalties(self, weights: csr_array[np.float32]) -> None:
        """Set the penalties to the parameters, or to the best ones where these are None."""
        fixed = Penalties(self.unobserved_weight or 0.0, self.regularization or 0.0)
        self.pair_weight, self.penalty = self.chosen_penalties(weights, fixed)

    def _last(self, sweeps: Iterator[ImplicitSweep], on_step: OnStep) -> ImplicitSweep:
        """Set the factors sweep by sweep until the objective settles; return the last sweep."""
        previous = math.inf
        for number, sweep in enumerate(islice(sweeps, self.iterations), start=1):
            if not math.isfinite(sweep.objective):
                raise breakdown(self, "count_power")
            self.user_factors, self.item_factors = (
                sweep.row_factors,
                sweep.column_factors,
            )
            if on_step is not None:
                on_step(Step(number, self.iterations, sweep.objective))
            # With features, the objective may rise in the first sweeps.
            if abs(previous - sweep.objective) <= self.tol * sweep.objective:
                break
            previous = sweep.objective
        return sweep

    @property
    def remarks(self) -> tuple[str, ...]:  # type: ignore[override]
        """The penalties that the fit has chosen."""
        if self.unobserved_weight and self.regularization:
            return ()
        penalties = self._found_params().items()
        shown = ", ".join(f"{name}={value:.4g}" for name, value in penalties)
        return (f"penalties: {shown}",)

    def _found_params(self) -> dict[str, Any]:
        """Return the penalties."""
        return Penalties(self.pair_weight, self.penalty)._asdict()

    def contributions(
        self, history: Histories, items: ArrayLike, known: Known | None = None
    ) -> Explanation:
        """Return the scores of `items` as sums over the history, and over features if `known`.

        The factors of an item are the sum of a part predicted by its features and a rest. The score
        by the first part is attributed to the features of the item, the score by the rest to the
        history and the features of the user.
        """
        wanted, known = check_indices(items, self.n_items, "item"), known or Known()
        check_indices(history.indices, self.n_items, "item")
        of_user = self._terms("user", history, known.user)
        user = of_user.base + of_user.entries.sum(axis=0) + of_user.features.sum(axis=0)
        rest = self.item_factors[wanted].astype(np.float64)
        parts: dict[str, Floats] = {}
        if self.knows("item") and known.items is not None and known.raters is not None:
            n_features = len(self.item_prior_weights)
            parts["item_features"] = np.zeros((len(wanted), n_features), np.float32)
            for at in range(len(wanted)):
                row, raters = row_of(known.items, at), known.raters.take(np.array([at]))
                shares = self._terms("item", raters, row).features
                np.add.at(parts["item_features"][at], row.indices, shares @ user)
                rest[at] -= shares.sum(axis=0)
        if self.knows("user") and known.user is not None:
            n_features = len(self.user_prior_weights)
            parts["user_features"] = np.zeros((len(wanted), n_features), np.float32)
            parts["user_features"][:, known.user.indices] = rest @ of_user.features.T
        base, terms = rest @ of_user.base, rest @ of_user.entries.T
        return Explanation(base.astype(np.float32), terms.astype(np.float32), **parts)

    def _terms(
        self, side: str, entries: Histories, features: CsrArrays | None
    ) -> Terms:
        """Return the factors of a user or item as a sum over its `entries` and features."""
        others = "item" if side == "user" else "user"
        factors, gram, n = self._source._pairs(others)
        k = factors.shape[1]
        mean, stored = np.zeros(k), np.zeros((0, k))
        if self.knows(side):
            prior = self._prior_of(side)
            mean = prior.mean.astype(np.float64)
            if features is not None:
                stored = prior.coefficients[features.indices] * features.data[:, None]
        if not len(entries.indices):
            return Terms(mean, np.zeros((0, k)), stored)
        weights = np.maximum(entries.values / np.float32(self.unit), 0).astype(
            np.float64
        )
        own = factors[entries.indices].astype(np.float64)
        penalty = (
            self.penalty * (weights.sum() + self.pair_weight * n) ** self.count_power
        )
        normal = (own.T * weights) @ own + self.pair_weight * gram + penalty * np.eye(k)
        inverse, right = np.linalg.inv(normal), own * weights[:, None]
        return Terms(
            penalty * mean @ inverse, right @ inverse, penalty * stored @ inverse
        )

    def _solved(
        self, histories: Histories, features: CsrArrays | None = None, *, of_users: bool
    ) -> dict[str, Floats]:
        side, other = ("user", "item") if of_users else ("item", "user")
        others, *whole = self._pairs(other)
        entries = kernels.csr_arrays(self._weights(histories, len(others)))
        options = self._options() | {"whole": tuple(whole)}
        points = (
            self._prior_of(side).of(features, histories.n_rows)
            if self.knows(side)
            else None
        )
        factors = solve_interactions(entries, others, points=points, **options)
        arrays = {f"{side}_factors": factors}
        if points is not None:
            arrays = self._completed(side, factors, histories.counts, points)
        return arrays | {f"{side}_bias": np.zeros(len(factors), np.float32)}

    def _pairs(self, side: str) -> tuple[Floats, NDArray[np.float64], int]:
        """Return the factors (zero for unknown rows), their Gram matrix, the number of known rows.

        The result is cached, and shared by all rows that are folded in.
        """
        factors: Floats = getattr(self, f"{side}_factors")
        found = vars(self).setdefault("_pairs_of", {})
        if side not in found or found[side][0] is not factors:
            known = self.known(side)
            used = factors if known.all() else factors * known[:, None]
            gram = kernels.coefficients(used, used, threads=self.threads).astype(
                np.float64
            )
            found[side] = factors, used, gram, int(np.count_nonzero(known))
        pairs: tuple[Floats, NDArray[np.float64], int] = found[side][1:]
        return pairs

    def _weights(self, histories: Histories, n_columns: int) -> csr_array[np.float32]:
        """Return the weights of interactions, 0 for negative ratings."""
        weights = weighted_matrix(histories, n_columns, self.unit)
        np.maximum(weights.data, 0, out=weights.data)
        return weights

    def _options(self, penalties: Penalties | None = None) -> dict[str, Any]:
        """Return the keyword arguments that fits and fold-ins share."""
        others = {"count_power": self.count_power, "threads": self.threads}
        return (
            penalties or Penalties(self.pair_weight, self.penalty)
        )._asdict() | others

    def chosen_penalties(
        self,
        weights: csr_array[np.float32],
        given: Penalties,
        n_rows: int | None = None,
    ) -> Penalties:
        """Return the penalties; where `given` has 0, search for the highest held-out NDCG.

        The rows of `weights` may be a sample of `n_rows` rows.
        """
        if all(given):
            return given
        trial = _Trial.of(weights, self)
        n, m = n_rows or weights.shape[0], weights.shape[1]
        density = weights.nnz / math.prod(weights.shape)

        def penalties(place: Place) -> Penalties:
            weight = given.unobserved_weight or _FIRST_WEIGHT * _STEP ** place[0]
            # A step of the weight alone leaves the mean penalties of users and items unchanged.
            mean = _FIRST_PENALTY * _STEP ** place[1] / math.sqrt(n * m)
            return Penalties(weight, given.regularization or mean / (density + weight))

        steps = [(0, 1), (0, -1)] * (not given[1]) + [(1, 0), (-1, 0)] * (not given[0])
        more = min(self.factors or _MORE_FACTORS, _MORE_FACTORS, n, m)
        few, best, heights = min(_FACTORS, more), (0, 0), dict[Place, float]()
        for size in (2, 1):
            taken = [(size * i, size * j) for i, j in steps]
            best = _climbed(
                best, taken, lambda each: trial.ndcg(penalties(each), few), heights
            )
        if few < more and not given[1]:  # more factors may need a larger penalty
            best = _climbed(
                best, steps[:1], lambda each: trial.ndcg(penalties(each), more), {}
            )
        return penalties(best)


def default_factors(
    n_users: int, n_items: int, n_interactions: int, *, dual: bool = False
) -> int:
    """Return the number of factors for data of this size.

    Many users and items need many factors. They take little time with short histories if these are
    solved in the `dual` form, with one equation per interaction.

    Examples
    --------
    >>> default_factors(610, 9724, 100_000), default_factors(162541, 59047, 25_000_000)
    (256, 128)
    >>> default_factors(29858, 40981, 810_128, dual=True)
    512
    """
    rows, k = min(n_users, n_items), 256
    if n_interactions > _MANY_INTERACTIONS:
        k = 128
    elif dual and rows >= _MANY_ROWS and n_interactions <= _SHORT * rows:
        k = 512
    return min(rows, k)


def _climbed(
    place: Place,
    steps: list[Place],
    height: Callable[[Place], float],
    heights: dict[Place, float],
) -> Place:
    """Return a local maximum of `height` by hill climbing; `heights` caches the values."""
    while True:
        near = [place, *((place[0] + i, place[1] + j) for i, j in steps)]
        heights |= {each: height(each) for each in near if each not in heights}
        highest = max(heights, key=heights.__getitem__)
        if highest == place or len(heights) > _TRIALS:
            return highest
        place = highest


@dataclass(frozen=True, eq=False)
class _Trial:
    """Training and held-out interactions of some users, in one or more folds."""

    folds: list[tuple[csr_array[np.float32], csr_array[np.float32]]]
    model: IALS

    @classmethod
    def of(cls, weights: csr_array[np.float32], model: IALS) -> _Trial:
        """Hold out a fifth of the interactions; for small data, several fifths in turn."""
        from scipy.sparse import csr_array

        generator = np.random.default_rng(model.random_state)
        order = generator.permutation(weights.shape[0])
        size = np.searchsorted(
            np.diff(weights.indptr)[order].cumsum(), INTERACTIONS, "right"
        )
        sample = weights[np.sort(order[: max(size, 1)])].tocoo()
        number = generator.integers(_FOLDS, size=sample.nnz)
        count = min(_FOLDS, 1 + _REPEATED // max(sample.nnz, 1))

        def part(chosen: NDArray[np.bool_]) -> csr_array[np.float32]:
            places = sample.coords[0][chosen], sample.coords[1][chosen]
            return csr_array((sample.data[chosen], places), shape=sample.shape)

        folds = [(part(number != fold), part(number == fold)) for fold in range(count)]
        return cls([pair for pair in folds if all(each.nnz for each in pair)], model)

    def ndcg(self, penalties: Penalties, factors: int) -> float:
        """Return the NDCG@20 of short fits, summed over folds and averaged over users."""
        options = self.model._options(penalties) | {
            "random_state": self.model.random_state
        }
        total = 0.0
        for train, held_out in self.folds:
            *_, last = islice(implicit_sweeps(train, factors, **options), _SWEEPS)
            counts, n_items = np.diff(held_out.indptr), train.shape[1]
            users = np.flatnonzero(counts)
            seen = kernels.Seen(users, *kernels.csr_arrays(train)[:2])
            n = max(1, min(_TOP, n_items // 5))  # shorter lists for small catalogues
            hashes = [
                mixed(np.arange(n, dtype=np.uint64)) for n in (n_items, train.shape[0])
            ]
            ties = Ties(hashes[0], mixed(hashes[1][users]))
            found = top_k(
                last.row_factors[users], last.column_factors, n, seen=seen, ties=ties
            )
            relevant = held_out.tocoo()
            keys = relevant.coords[0].astype(np.int64) * n_items + relevant.coords[1]
            items = found.items
            hits = np.isin(users[:, None] * n_items + items, keys) & (items >= 0)
            discounts = 1 / np.log2(np.arange(2, n + 2))
            best = discounts.cumsum()[np.minimum(counts[users], n) - 1]
            mean = float(np.sum(hits @ discounts[: items.shape[1]] / best)) / max(
                len(users), 1
            )
            total += mean
        return total
