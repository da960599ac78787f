"""Held-out interactions, on which fitted models are compared and weighted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from recsys.models.base import Floats, Indices, Model, predicted_ratings

if TYPE_CHECKING:
    from recsys.data.ratings import Ratings

__all__ = ["HeldOut", "Lists", "best_weights", "cross_fitted_ndcg", "score_scale"]

TOP = 20
"""Length of the lists whose NDCG counts."""

_MOST = 1_000_000  # ratings in a comparison: larger data lend some of their users
_PARTS = 10  # one of them is held out: what is left is still much like the whole
_USERS = 4_000  # to whom items are ranked
_DEPTH = 100  # the best items of each model that compete for the places of a blend
_BLOCK = 2**22  # scores of all items at a time: 16 MB
_SAMPLE = 256  # users whose scores set the scale of a model
_STEPS = (0.2, 0.1, 0.05)  # of the weights


@dataclass(frozen=True, slots=True)
class HeldOut:
    """A tenth of the ratings, and the rest of those of the same users; unpacks as ``train, test``.

    Both have the users and items of the whole. Of more than a million ratings, only some of the
    users have any.
    """

    train: Ratings
    test: Ratings

    @classmethod
    def of(cls, ratings: Ratings, random_state: int, most: int = _MOST) -> HeldOut:
        """Hold out a seeded tenth of the ratings of some users, who have at most so many."""
        generator = np.random.default_rng(random_state)
        order = generator.permutation(ratings.n_users)
        total = np.diff(ratings.indptr)[order].cumsum()
        chosen = np.zeros(ratings.n_users, np.bool_)
        chosen[order[: max(1, np.searchsorted(total, most, "right"))]] = True
        used = chosen[ratings.user_index_of_nonzeros()]
        held_out = generator.integers(_PARTS, size=ratings.n_ratings) == 0
        return cls(ratings.take(used & ~held_out), ratings.take(used & held_out))

    def __iter__(self) -> Any:
        return iter((self.train, self.test))

    @property
    def is_usable(self) -> bool:
        """Return whether there is anything to rank."""
        return bool(len(self._users))

    @property
    def _users(self) -> Indices:
        has_both = (np.diff(self.test.indptr) > 0) & (np.diff(self.train.indptr) > 0)
        return np.flatnonzero(has_both)

    def rmse(self, model: Model) -> float:
        """Return the error of a model's predictions of the held-out ratings."""
        predicted = predicted_ratings(model, self.test)
        return float(np.sqrt(np.mean((predicted - self.test.values) ** 2, dtype=np.float64)))

    def lists(self, models: Sequence[Model]) -> Lists:
        """Return the scores by fitted models of the items that may be in the lists of users."""
        users = self._users
        users = users[:: -(-len(users) // _USERS) or 1]
        scales = [score_scale(each) for each in models]
        size, n_items = max(1, _BLOCK // self.train.n_items), self.train.n_items
        parts = []
        for start in range(0, len(users), size):
            block = users[start : start + size]
            scores = np.stack([m.scores(block) / s for m, s in zip(models, scales, strict=True)])
            rows, items = self.train.matrix[block].tocoo().coords
            scores[:, rows, items] = -np.inf
            parts.append(_candidates(scores, self._relevant(block)))
        width = max((part.relevant.shape[1] for part in parts), default=1)
        return Lists(
            np.concatenate([_padded(p.scores, width, _NEVER) for p in parts], axis=1),
            np.concatenate([_padded(p.relevant, width, False) for p in parts]),
            np.concatenate([p.counts for p in parts]),
            min(TOP, max(1, n_items // 5)),
        )

    def _relevant(self, users: Indices) -> NDArray[np.bool_]:
        """Return which items are relevant; of ratings with values, those above the mean."""
        test = self.test.matrix[users].tocoo()
        good = test.data >= (0 if self.test.implicit else self.test.values.mean())
        found = np.zeros(test.shape, np.bool_)
        found[test.coords[0][good], test.coords[1][good]] = True
        return found


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

    def of_users(self, users: slice) -> Lists:
        """Return the lists of some of the users."""
        return Lists(self.scores[:, users], self.relevant[users], self.counts[users], self.top)

    def ndcg(self, weights: NDArray[np.floating[Any]]) -> float:
        """Return the mean NDCG of the lists by a weighted sum of the models' scores."""
        with_any = np.flatnonzero(self.counts)
        if not len(with_any):
            return 0.0
        used = np.flatnonzero(weights)
        total = sum(np.float32(weights[m]) * self.scores[m, with_any] for m in used)
        best = np.argsort(-np.asarray(total), axis=1, kind="stable")[:, : self.top]
        hits = np.take_along_axis(self.relevant[with_any], best, axis=1)
        discounts = 1 / np.log2(np.arange(2, self.top + 2))
        ideal = discounts.cumsum()[np.minimum(self.counts[with_any], self.top) - 1]
        return float(np.mean(hits @ discounts[: hits.shape[1]] / ideal))


def cross_fitted_ndcg(lists: Lists) -> float:
    """Return the NDCG of blends on users other than those that their weights were chosen on."""
    halves = [lists.of_users(slice(first, None, 2)) for first in (0, 1)]
    found = [
        other.ndcg(best_weights(each)[0]) for each, other in zip(halves, halves[::-1], strict=True)
    ]
    return float(np.mean(found))


def best_weights(lists: Lists) -> tuple[NDArray[np.float64], float]:
    """Return non-negative weights of sum 1 with a high NDCG, and that.

    From the best model alone, weight moves from one model to another in ever smaller steps, for as
    long as that helps.
    """
    n_models = len(lists.scores)
    single = [lists.ndcg(each) for each in np.eye(n_models)]
    weights, height = np.eye(n_models)[np.argmax(single)], max(single)
    for step in _STEPS:
        while True:
            moves = []
            for giver, taker in np.argwhere(~np.eye(n_models, dtype=np.bool_)):
                moved = weights.copy()
                moved[[giver, taker]] += -step, step
                if moved[giver] > -1e-9:
                    moves.append(moved.clip(0).round(2))
            found = [lists.ndcg(each) for each in moves]
            if not moves or max(found) <= height:
                break
            weights, height = moves[int(np.argmax(found))], max(found)
    return weights, height


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


def _candidates(scores: Floats, relevant: NDArray[np.bool_]) -> Lists:
    """Keep the best items by each of the models, of shape (n_models, n_block, n_items)."""
    depth = min(_DEPTH, scores.shape[2])
    chosen = np.zeros(relevant.shape, np.bool_)
    for each in scores:
        np.put_along_axis(chosen, np.argpartition(-each, depth - 1, axis=1)[:, :depth], True, 1)
    rows, items = np.nonzero(chosen)
    counts = chosen.sum(axis=1)
    places = np.arange(len(rows)) - np.repeat(counts.cumsum() - counts, counts)
    kept = np.full((len(scores), len(chosen), counts.max()), _NEVER)
    kept[:, rows, places] = np.maximum(scores[:, rows, items], _NEVER)  # what was seen is there
    hits = np.zeros(kept.shape[1:], np.bool_)
    hits[rows, places] = relevant[rows, items]
    return Lists(kept, hits, relevant.sum(axis=1), TOP)


def _padded(array: NDArray[Any], width: int, value: Any) -> NDArray[Any]:
    missing = [(0, 0)] * (array.ndim - 1) + [(0, width - array.shape[-1])]
    return np.pad(array, missing, constant_values=value)
