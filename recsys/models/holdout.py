"""Held-out ratings and interactions for comparing and weighting models."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from math import comb
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from recsys.models.base import Model, predicted_ratings
from recsys.models.parts import Floats, Indices
from recsys.models.registry import make_model
from recsys.topn import CsrPairs, top_n, user_ties

if TYPE_CHECKING:
    from recsys.data.ratings import Ratings

TOP = 20
"""Length of the ranked lists in the NDCG."""

_MOST = 1_000_000  # maximum number of ratings in a comparison; larger data are sampled by user
_MOST_INTERACTIONS = 3_000_000  # the same for interactions, where small samples mislead
_PARTS = 10  # one tenth is held out
_FEW, _PARTS_OF_FEW, _FOLDS = (
    100_000,
    5,
    3,
)  # up to 100,000 interactions: three of five folds
_USERS = 20_000  # maximum number of users with ranked lists
_DEPTH = 100  # items of each model that are candidates for the lists of a blend
_BLOCK = 2**22  # scores computed at a time: 16 MB
_SAMPLE = 256  # sampled users for the scale of a model's scores
_POINTS = 130  # maximum number of grid points for the weights
_BAGS, _LEAST = (
    200,
    0.05,
)  # number of bootstrap samples; smaller mean weights are set to 0


@dataclass(frozen=True, slots=True)
class HeldOut:
    """Training and held-out ratings of the same users; unpacks as ``train, test``.

    Both have the shape of the original ratings. For large data, only a sample of the users has
    ratings.
    """

    train: Ratings
    test: Ratings

    @classmethod
    def of(
        cls,
        ratings: Ratings,
        random_state: int,
        most: int = _MOST,
        n_parts: int = _PARTS,
        part: int = 0,
    ) -> HeldOut:
        """Hold out one of `n_parts` random parts, sampling users with at most `most` ratings."""
        generator = np.random.default_rng(random_state)
        order = generator.permutation(ratings.n_users)
        total = np.diff(ratings.indptr)[order].cumsum()
        chosen = np.zeros(ratings.n_users, np.bool_)
        chosen[order[: max(1, np.searchsorted(total, most, "right"))]] = True
        used = chosen[ratings.user_index_of_nonzeros()]
        held_out = generator.integers(n_parts, size=ratings.n_ratings) == part
        return cls(ratings.take(used & ~held_out), ratings.take(used & held_out))

    @classmethod
    def folds(cls, ratings: Ratings, random_state: int) -> list[HeldOut]:
        """Hold out a tenth, or three fifths in turn for few interactions; omit empty folds."""
        few = ratings.implicit and ratings.n_ratings <= _FEW
        most = _MOST_INTERACTIONS if ratings.implicit else _MOST
        n_parts, count = (_PARTS_OF_FEW, _FOLDS) if few else (_PARTS, 1)
        found = [
            cls.of(ratings, random_state, most, n_parts, part) for part in range(count)
        ]
        return [each for each in found if len(each._users)]

    def __iter__(self) -> Any:
        return iter((self.train, self.test))

    @staticmethod
    def trials(
        folds: Sequence[HeldOut],
        models: Sequence[Model],
        on_fit: Callable[[Model], None],
    ) -> Iterator[tuple[HeldOut, list[Model]]]:
        """Yield each fold with the models fitted to its training data.

        `on_fit` is called before each fit. Parameters that the fits on the first fold choose by
        themselves are reused on the other folds.
        """
        for fold in folds:
            fitted = []
            for each in models:
                on_fit(each)
                fitted.append(
                    make_model(each.name, **each.get_params()).fit(fold.train)
                )
            yield fold, fitted
            models = [
                make_model(each.name, **each.get_params() | each._found_params())
                for each in fitted
            ]

    @property
    def _users(self) -> Indices:
        has_both = (np.diff(self.test.indptr) > 0) & (np.diff(self.train.indptr) > 0)
        return np.flatnonzero(has_both)

    def rmse(self, model: Model) -> float:
        """Return the RMSE of a model on the held-out ratings."""
        predicted = predicted_ratings(model, self.test)
        return float(
            np.sqrt(np.mean((predicted - self.test.values) ** 2, dtype=np.float64))
        )

    def lists(self, models: Sequence[Model]) -> Lists:
        """Return the fitted models' scores of the best items of each user by any model.

        Held-out items are relevant; for ratings with values, only those not below the mean.
        """
        users = self._users
        users = users[
            :: -(-len(users) // _USERS) or 1
        ].copy()  # contiguous, for the kernels
        n_items, exclude = (
            self.train.n_items,
            CsrPairs(self.train.indptr, self.train.indices),
        )
        ties = user_ties(self.train.items.hashes, self.train.users.hashes[users])
        best = [
            top.rows * n_items + top.items
            for each in models
            for top in top_n(each, users, _DEPTH, exclude=exclude, ties=ties)
        ]
        pairs = np.unique(np.concatenate(best))
        rows, items = np.divmod(pairs, n_items)
        order = np.lexsort((ties.places(rows, items), rows))
        pairs, items = pairs[order], items[order]
        counts = np.bincount(rows, minlength=len(users))
        places = np.arange(len(rows)) - np.repeat(counts.cumsum() - counts, counts)
        scores = np.full((len(models), len(users), counts.max(initial=1)), _NEVER)
        for own, each in zip(scores, models, strict=True):
            own[rows, places] = each.predict(users[rows], items) / score_scale(each)
        test = self.test.matrix[users].tocoo()
        good = test.data >= (0 if self.test.implicit else self.test.values.mean())
        found = test.coords[0].astype(np.int64) * n_items + test.coords[1]
        relevant = np.zeros(scores.shape[1:], np.bool_)
        relevant[rows, places] = np.isin(pairs, found[good])
        n_relevant = np.bincount(test.coords[0][good], minlength=len(users))
        return Lists(scores, relevant, n_relevant, min(TOP, max(1, n_items // 5)))


_NEVER = np.float32(-1e30)  # score of padding; finite, since 0 * inf is NaN


@dataclass(frozen=True, slots=True)
class Lists:
    """Candidate items for the ranked lists of users, one row per user.

    Candidates with equal scores are ranked in their order.

    Attributes
    ----------
    scores : float32 ndarray of shape (n_models, n_users, n_candidates)
        Scores divided by the scale of each model.
    relevant : bool ndarray of shape (n_users, n_candidates)
        Whether each candidate is relevant.
    counts : int64 ndarray of shape (n_users,)
        Number of relevant items, including those that are not candidates.
    top : int
        Length of the lists.
    """

    scores: Floats
    relevant: NDArray[np.bool_]
    counts: NDArray[np.int64]
    top: int

    @classmethod
    def joined(cls, parts: Sequence[Lists]) -> Lists:
        """Concatenate the lists of several groups of users."""
        width = max(part.relevant.shape[1] for part in parts)
        return cls(
            np.concatenate(
                [_padded(part.scores, width, _NEVER) for part in parts], axis=1
            ),
            np.concatenate([_padded(part.relevant, width, False) for part in parts]),
            np.concatenate([part.counts for part in parts]),
            parts[0].top,
        )

    def ndcg(self, weights: NDArray[np.floating[Any]]) -> NDArray[np.float64]:
        """Return the NDCG of each user with relevant items, ranking by weighted sums of scores."""
        with_any = np.flatnonzero(self.counts)
        total = np.zeros((len(with_any), self.relevant.shape[1]), np.float32)
        for m in np.flatnonzero(weights):
            total -= np.float32(weights[m]) * self.scores[m, with_any]
        top = min(self.top, total.shape[1])
        best = np.argpartition(total, top - 1, axis=1)[:, :top]
        cut = np.take_along_axis(total, best, axis=1).max(
            axis=1, initial=-np.inf, keepdims=True
        )
        tied = np.count_nonzero(total <= cut, axis=1) > top
        best[tied] = np.argsort(total[tied], axis=1, kind="stable")[:, :top]
        best.sort(axis=1)  # so that equal scores stay in their order
        order = np.argsort(
            np.take_along_axis(total, best, axis=1), axis=1, kind="stable"
        )
        best = np.take_along_axis(best, order, axis=1)
        hits = np.take_along_axis(self.relevant[with_any], best, axis=1)
        discounts = 1 / np.log2(np.arange(2, self.top + 2))
        ideal = discounts.cumsum()[np.minimum(self.counts[with_any], self.top) - 1]
        found: NDArray[np.float64] = hits @ discounts[:top] / ideal
        return found


def growing_blends(
    lists: Lists, first: int
) -> Iterator[tuple[list[int], NDArray[np.float64], NDArray[np.float64]]]:
    """Yield blends that start from the model `first` and grow by one model at a time.

    Each step adds the model with the largest gain in NDCG, or the first model (in order of ranking
    time) within one standard error of it. A blend is yielded as its models, their weights and the
    NDCG of each list.
    """
    members = [first]
    while len(members) < len(lists.scores):
        tried = []
        for other in sorted({*range(len(lists.scores))} - {*members}):
            some = sorted([*members, other])
            tried.append(
                (some, *best_weights(replace(lists, scores=lists.scores[some])))
            )
        best = max((each[2] for each in tried), key=np.mean)
        near = (
            x
            for x in tried
            if (best - x[2]).mean() <= (best - x[2]).std() / len(best) ** 0.5
        )
        found = next(near)
        members = found[0]
        yield found


def best_weights(lists: Lists) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return weights with a high NDCG, and the cross-validated NDCG of each list.

    The weights are non-negative with sum 1: the mean of the optimal weights for bootstrap samples
    of the users, which reduces their variance. The NDCG of each half of the lists with relevant
    items is computed with weights chosen on the other half.
    """
    n = len(lists.scores)
    steps = next(
        each for each in (20, 10, 5, 4, 3, 2, 1) if comb(n + each - 1, each) <= _POINTS
    )
    bars = combinations(
        range(n + steps - 1), n - 1
    )  # stars and bars: all weights of sum 1
    counts = [np.diff([-1, *each, n + steps - 1]) - 1 for each in bars]
    grid = np.array(counts[::-1]) / steps
    heights = np.stack([lists.ndcg(each) for each in grid])
    n_lists = heights.shape[1]
    if not n_lists:
        return np.full(n, 1 / n), np.zeros(0)

    def chosen(places: slice) -> NDArray[np.float64]:
        some = heights[:, places]
        size = some.shape[1]
        draws = np.random.default_rng(0).multinomial(
            size, np.full(size, 1 / size), _BAGS
        )
        weights: NDArray[np.float64] = grid[(some @ draws.T).argmax(axis=0)].mean(
            axis=0
        )
        weights[weights < _LEAST] = 0
        weights /= weights.sum()
        return weights

    halves = slice(0, None, 2), slice(n_lists > 1, None, 2)
    found = np.empty(n_lists)
    for half, other in zip(halves, halves[::-1], strict=True):
        found[other] = lists.ndcg(chosen(half))[other]
    return chosen(slice(None)), found


def score_scale(model: Model) -> float:
    """Return the standard deviation of a user's scores, as root mean square over sampled users."""
    users = np.arange(model.n_users)
    users = users[:: -(-len(users) // _SAMPLE) or 1]
    size, squares = max(1, _BLOCK // max(1, model.n_items)), 0.0
    for start in range(0, len(users), size):
        scores = model.scores(users[start : start + size])
        squares += float(scores.var(axis=1, dtype=np.float64).sum())
    scale = float(np.sqrt(squares / max(1, len(users))))
    return scale if 0 < scale < np.inf else 1.0


def _padded(array: NDArray[Any], width: int, value: Any) -> NDArray[Any]:
    missing = [(0, 0)] * (array.ndim - 1) + [(0, width - array.shape[-1])]
    return np.pad(array, missing, constant_values=value)
