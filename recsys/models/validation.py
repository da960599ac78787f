"""Held-out interactions, on which fitted models are compared and weighted."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from math import comb
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from recsys.models.base import Floats, Indices, Model, predicted_ratings
from recsys.models.registry import make_model
from recsys.topn import CsrPairs, top_n

if TYPE_CHECKING:
    from recsys.data.ratings import Ratings

TOP = 20
"""Length of the lists whose NDCG counts."""

_MOST = 1_000_000  # ratings in a comparison: larger data lend some of their users,
_MOST_INTERACTIONS = 3_000_000  # of whom too few would change which model is best
_PARTS = 10  # one of them is held out: what is left is still much like the whole
_FEW, _PARTS_OF_FEW, _FOLDS = 100_000, 5, 3  # interactions, of which fifths are held out in turn
_USERS = 20_000  # to whom items are ranked
_DEPTH = 100  # the best items of each model that compete for the places of a blend
_BLOCK = 2**22  # scores of all items at a time: 16 MB
_SAMPLE = 256  # users whose scores set the scale of a model
_POINTS = 130  # weightings that are compared
_BAGS, _LEAST = 200, 0.05  # samples of the users; a mean weight below is none


@dataclass(frozen=True, slots=True)
class HeldOut:
    """A tenth of the ratings, and the rest of those of the same users; unpacks as ``train, test``.

    Both have the users and items of the whole. Of very many ratings, only some users have any.
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
        """Hold out a seeded tenth of the ratings of some users, who have at most so many."""
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
        """Hold out a tenth, of few interactions three fifths in turn, if there is any to rank."""
        few = ratings.implicit and ratings.n_ratings <= _FEW
        most = _MOST_INTERACTIONS if ratings.implicit else _MOST
        n_parts, count = (_PARTS_OF_FEW, _FOLDS) if few else (_PARTS, 1)
        found = [cls.of(ratings, random_state, most, n_parts, part) for part in range(count)]
        return [each for each in found if len(each._users)]

    def __iter__(self) -> Any:
        return iter((self.train, self.test))

    @staticmethod
    def trials(
        folds: Sequence[HeldOut], models: Sequence[Model], tell: Callable[[Model], None]
    ) -> Iterator[tuple[HeldOut, list[Model]]]:
        """Yield each fold with the models fitted to its training part; `tell` hears of each fit.

        What the first fits choose on held-out interactions of their own, the others take over.
        """
        for fold in folds:
            fitted = []
            for each in models:
                tell(each)
                fitted.append(make_model(each.name, **each.get_params()).fit(fold.train))
            yield fold, fitted
            models = [
                make_model(each.name, **each.get_params() | each._found_params()) for each in fitted
            ]

    @property
    def _users(self) -> Indices:
        has_both = (np.diff(self.test.indptr) > 0) & (np.diff(self.train.indptr) > 0)
        return np.flatnonzero(has_both)

    def rmse(self, model: Model) -> float:
        """Return the error of a model's predictions of the held-out ratings."""
        predicted = predicted_ratings(model, self.test)
        return float(np.sqrt(np.mean((predicted - self.test.values) ** 2, dtype=np.float64)))

    def lists(self, models: Sequence[Model]) -> Lists:
        """Return the scores by fitted models of the items that may be in the lists of users.

        Relevant are held-out items; of ratings with values, those that are not below the mean.
        """
        users = self._users
        users = users[:: -(-len(users) // _USERS) or 1].copy()  # in one piece, for the kernels
        n_items, exclude = self.train.n_items, CsrPairs(self.train.indptr, self.train.indices)
        best = [
            top.rows * n_items + top.items
            for each in models
            for top in top_n(each, users, _DEPTH, exclude=exclude)
        ]
        pairs = np.sort(np.concatenate(best))
        pairs = pairs[np.diff(pairs, prepend=-1) > 0]
        rows, items = np.divmod(pairs, n_items)
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


_NEVER = np.float32(-1e30)  # a score; finite, so that a weight of 0 leaves a number


@dataclass(frozen=True, slots=True)
class Lists:
    """Items that compete for the lists of users, one row per user.

    Attributes
    ----------
    scores : float32 ndarray of shape (n_models, n_users, n_candidates)
        On a scale common to the models.
    relevant : bool ndarray of shape (n_users, n_candidates)
    counts : int64 ndarray of shape (n_users,)
        Numbers of relevant items.
    top : int
        Length of the lists.
    """

    scores: Floats
    relevant: NDArray[np.bool_]
    counts: NDArray[np.int64]
    top: int

    @classmethod
    def joined(cls, parts: Sequence[Lists]) -> Lists:
        """Return the lists of several groups of users."""
        width = max(part.relevant.shape[1] for part in parts)
        return cls(
            np.concatenate([_padded(part.scores, width, _NEVER) for part in parts], axis=1),
            np.concatenate([_padded(part.relevant, width, False) for part in parts]),
            np.concatenate([part.counts for part in parts]),
            parts[0].top,
        )

    def ndcg(self, weights: NDArray[np.floating[Any]]) -> NDArray[np.float64]:
        """Return the NDCG of each list with relevant items, by a weighted sum of the scores."""
        with_any = np.flatnonzero(self.counts)
        total = np.zeros((len(with_any), self.relevant.shape[1]), np.float32)
        for m in np.flatnonzero(weights):
            total -= np.float32(weights[m]) * self.scores[m, with_any]
        top = min(self.top, total.shape[1])
        best = np.argpartition(total, top - 1, axis=1)[:, :top]
        order = np.argsort(np.take_along_axis(total, best, axis=1), axis=1, kind="stable")
        best = np.take_along_axis(best, order, axis=1)
        hits = np.take_along_axis(self.relevant[with_any], best, axis=1)
        discounts = 1 / np.log2(np.arange(2, self.top + 2))
        ideal = discounts.cumsum()[np.minimum(self.counts[with_any], self.top) - 1]
        found: NDArray[np.float64] = hits @ discounts[:top] / ideal
        return found


def growing_blends(
    lists: Lists, first: int
) -> Iterator[tuple[list[int], NDArray[np.float64], NDArray[np.float64]]]:
    """Yield blends of the first model and one more each time, the one that raises the NDCG most.

    Of several within a standard error of that, it is the first: models come in the order of the
    time that their lists take. A blend is its models, their weights and the NDCG of each list.
    """
    members = [first]
    while len(members) < len(lists.scores):
        tried = []
        for other in sorted({*range(len(lists.scores))} - {*members}):
            some = sorted([*members, other])
            tried.append((some, *best_weights(replace(lists, scores=lists.scores[some]))))
        best = max((each[2] for each in tried), key=np.mean)
        near = (x for x in tried if (best - x[2]).mean() <= (best - x[2]).std() / len(best) ** 0.5)
        found = next(near)
        members = found[0]
        yield found


def best_weights(lists: Lists) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return non-negative weights of sum 1 with a high NDCG, and that of each list by others.

    The weights are the mean of those that are best for samples of the users with replacement, which
    hardly depends on the luck of single users. The NDCG is that of lists with relevant items,
    of each half of them by the weights chosen on the other.
    """
    n = len(lists.scores)
    steps = next(each for each in (20, 10, 5, 4, 3, 2, 1) if comb(n + each - 1, each) <= _POINTS)
    bars = combinations(range(n + steps - 1), n - 1)  # between the steps of one model and the next
    counts = [np.diff([-1, *each, n + steps - 1]) - 1 for each in bars]
    grid = np.array(counts[::-1]) / steps
    heights = np.stack([lists.ndcg(each) for each in grid])
    n_lists = heights.shape[1]
    if not n_lists:
        return np.full(n, 1 / n), np.zeros(0)

    def chosen(places: slice) -> NDArray[np.float64]:
        some = heights[:, places]
        size = some.shape[1]
        draws = np.random.default_rng(0).multinomial(size, np.full(size, 1 / size), _BAGS)
        weights: NDArray[np.float64] = grid[(some @ draws.T).argmax(axis=0)].mean(axis=0)
        weights[weights < _LEAST] = 0
        weights /= weights.sum()
        return weights

    halves = slice(0, None, 2), slice(n_lists > 1, None, 2)
    found = np.empty(n_lists)
    for half, other in zip(halves, halves[::-1], strict=True):
        found[other] = lists.ndcg(chosen(half))[other]
    return chosen(slice(None)), found


def score_scale(model: Model) -> float:
    """Return the standard deviation of a user's scores, root mean square over sampled users."""
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
