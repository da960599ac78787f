"""Held-out ratings and interactions for comparing and weighting models."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import combinations_with_replacement
from math import comb
from typing import TYPE_CHECKING, NamedTuple, Self

import numpy as np

from lowrank import kernels
from recsys.accuracy import ndcg
from recsys.data.arrays import distinct, positions_of
from recsys.models.base import Model, Progress
from recsys.models.histories import sampled_rows
from recsys.models.parts import AnyFloats, Doubles, Floats, Indices, Longs, Mask
from recsys.ranking.topn import CsrPairs, TopN, top_n, user_ties

if TYPE_CHECKING:
    from recsys.data.ratings import Ratings

TOP = 20
"""Length of the ranked lists in the NDCG."""

LISTED = 50_000
"""Maximum number of held-out interactions whose lists are compared, those of some users."""

_USERS = 20_000  # maximum number of these users

_MOST = 1_000_000  # maximum number of ratings in a comparison; larger data are sampled by user
_MOST_INTERACTIONS = 3_000_000  # the same for interactions, where small samples mislead
_PARTS = 10  # one tenth is held out
FEW = 100_000
"""Maximum number of interactions of which several folds are held out."""

_PARTS_OF_FEW, _FOLDS = 5, 3  # of these, three of five folds in turn
_DEPTH = 50  # items of each model that are candidates for the lists of a blend
_BLOCK = 2**20  # scores computed at a time: 4 MB, which are used again
_SAMPLE = 256  # sampled users for the scale of a model's scores
_POINTS = 130  # maximum number of grid points for the weights
_STEPS = 20, 10, 5, 4, 3, 2, 1  # numbers of grid steps from 0 to 1 that are tried
_BAGS = 200  # number of bootstrap samples
_LEAST_WEIGHT = 0.05  # smaller mean weights are set to 0
_NEVER = np.float32(-1e30)  # score of padding; finite, since 0 * inf is NaN


class Size(NamedTuple):
    """Maximum number of ratings in a comparison, their parts, and how many are held out in turn."""

    most: int
    n_parts: int = _PARTS
    n_folds: int = 1

    @classmethod
    def of(cls, ratings: Ratings) -> Self:
        """Return the size for these ratings."""
        if not ratings.implicit:
            return cls(_MOST)
        if ratings.n_ratings <= FEW:
            return cls(_MOST_INTERACTIONS, _PARTS_OF_FEW, _FOLDS)
        return cls(_MOST_INTERACTIONS)

    def share(self, ratings: Ratings) -> float:
        """Return the share of the ratings that are compared."""
        return min(1.0, self.most / max(1, ratings.n_ratings))

    def smaller(self, ratings: Ratings) -> Iterator[Self]:
        """Yield the size, and its halves for samples of more than a few ratings."""
        size = self._replace(most=min(self.most, ratings.n_ratings))
        yield self
        while size.most >= 2 * FEW:
            size = size._replace(most=size.most // 2)
            yield size


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
        is_sampled = np.zeros(ratings.n_users, np.bool_)
        sampled = sampled_rows(ratings.counts("user"), most, generator)
        is_sampled[sampled] = True
        is_used = is_sampled[ratings.user_index_of_nonzeros()]
        is_test = generator.integers(n_parts, size=ratings.n_ratings) == part
        return cls(ratings.take(is_used & ~is_test), ratings.take(is_used & is_test))

    @classmethod
    def folds(
        cls, ratings: Ratings, random_state: int, size: Size | None = None
    ) -> list[HeldOut]:
        """Hold out a tenth, or three fifths in turn for few interactions; omit empty folds."""
        size = size or Size.of(ratings)
        folds = []
        for part in range(size.n_folds):
            fold = cls.of(ratings, random_state, size.most, size.n_parts, part)
            if len(fold._users):
                folds.append(fold)
        return folds

    @classmethod
    def last(
        cls, ratings: Ratings, random_state: int, most: int = _MOST_INTERACTIONS
    ) -> HeldOut:
        """Hold out the last new item of each user, sampling users of large data."""
        generator = np.random.default_rng(random_state)
        counts = np.diff(ratings.log.indptr)
        is_sampled = np.zeros(ratings.n_users, np.bool_)
        sampled = sampled_rows(counts, most, generator)
        is_sampled[sampled] = True
        is_used = is_sampled[ratings.log.users]
        is_test = last_events(ratings, 1, random_state, only_new=True)
        train = ratings.of_events(is_used & ~is_test)
        test = ratings.of_events(is_used & is_test, aged=False)
        # What the user had before is not recommended.
        is_new = ~np.isin(_pairs(test), _pairs(train), assume_unique=True)
        return cls(train, test.take(is_new))

    def __iter__(self) -> Iterator[Ratings]:
        return iter((self.train, self.test))

    @staticmethod
    def trials(
        folds: Sequence[HeldOut],
        models: Sequence[Model],
        begin: Callable[[int, int], Progress | None],
    ) -> Iterator[tuple[HeldOut, list[Model]]]:
        """Yield each fold with the models fitted to its training data.

        `begin` takes the numbers of the fold and of the model before a fit. It returns the progress
        of the fit, or None to leave the model out; further folds end with this. Parameters that
        the fits on the first fold choose by themselves are reused on the other folds. Fits have few
        sweeps (`Model._trial_params`).
        """
        waiting = dict(enumerate(models))
        for fold_number, fold in enumerate(folds):
            fitted: dict[int, Model] = {}
            for number, model in waiting.items():
                progress = begin(fold_number, number)
                if progress is None and fold_number:
                    return
                if progress is not None:
                    trial = type(model)(**model._trial_params(fold.train))
                    interactions = fold.train.as_interactions()
                    fitted[number] = trial._fit_checked(interactions, progress)
            yield fold, [*fitted.values()]
            waiting = {
                number: type(model)(**model.get_params() | model._found_params())
                for number, model in fitted.items()
            }

    @property
    def _users(self) -> Indices:
        in_test = self.test.counts("user") > 0
        in_train = self.train.counts("user") > 0
        return np.flatnonzero(in_test & in_train)

    def lists(self, models: Sequence[Model]) -> Lists:
        """Return the fitted models' scores of the best items of each user by any model.

        Held-out items are relevant; for ratings with values, only those not below the mean.
        """
        users = self._users
        # The smallest step that leaves few enough held-out ratings, and users.
        step = max(
            1,
            math.ceil(self.test.n_ratings / LISTED),
            math.ceil(len(users) / _USERS),
        )
        users = users[::step].copy()  # contiguous, for the kernels
        n_items = self.train.n_items
        rows, items, scores_of_pairs = self._candidates(models, users)
        for number, model in enumerate(models):
            scale = np.float32(score_scale(model))
            scores_of_pairs[number] /= scale
        counts = np.bincount(rows, minlength=len(users))
        starts = counts.cumsum() - counts
        first_rows = np.repeat(starts, counts)
        columns = np.arange(len(rows)) - first_rows
        top = min(TOP, max(1, n_items // 5))
        n_candidates = counts.max(initial=top)
        scores = np.full((len(models), len(users), n_candidates), _NEVER)
        scores[:, rows, columns] = scores_of_pairs
        test = self.test.matrix[users].tocoo()
        least = 0 if self.test.implicit else self.test.values.mean()
        is_good = test.data >= least
        good_rows = test.coords[0][is_good]
        good_items = test.coords[1][is_good]
        good_pairs = good_rows.astype(np.int64) * n_items + good_items
        relevant = np.zeros(scores.shape[1:], np.bool_)
        pairs = rows * n_items + items
        relevant[rows, columns] = positions_of(pairs, np.sort(good_pairs)) >= 0
        n_relevant = np.bincount(good_rows, minlength=len(users))
        return Lists(scores, relevant, n_relevant, top)

    def _candidates(
        self, models: Sequence[Model], users: Indices
    ) -> tuple[Indices, Indices, Floats]:
        """Return pairs of users and their best items by any model, with scores by all models."""
        n_items = self.train.n_items
        exclude = CsrPairs(self.train.indptr, self.train.indices)
        ties = user_ties(self.train.items.hashes, self.train.users.hashes[users])
        lists = []
        for model in models:
            best = top_n(model, users, _DEPTH, exclude=exclude, ties=ties)
            lists.append(TopN.joined(best))
        listed = [best.rows * n_items + best.items for best in lists]
        all_listed = np.concatenate(listed)
        pairs = distinct(all_listed)
        rows, items = np.divmod(pairs, n_items)
        scores = np.empty((len(models), len(pairs)), np.float32)
        for number, model in enumerate(models):
            # The items of the model's own lists have scores.
            positions = np.searchsorted(pairs, listed[number])
            scores[number, positions] = lists[number].scores
            is_other = np.ones(len(pairs), np.bool_)
            is_other[positions] = False
            other_users = users[rows[is_other]]
            other_items = items[is_other]
            scores[number, is_other] = model.pair_scores(other_users, other_items)
        # Equal scores are ranked in the order of the ties of each user.
        order = np.lexsort((ties.places(rows, items), rows))
        return rows, items[order], scores[:, order]


def event_order(ratings: Ratings, random_state: int) -> Longs:
    """Return the order of time of the events of each user.

    Events at the same time are in the order of the rows if the rows are in the order of time,
    and otherwise in a random order.
    """
    log = ratings.log
    n = len(log)
    seconds = np.asarray(log.seconds)
    in_order = ratings.in_time_order
    if in_order is not None and in_order.all() and (np.diff(seconds) > 0).any():
        return np.arange(n)
    draws = np.random.default_rng(random_state).random(n)
    return np.lexsort((draws, seconds, log.users))


def _are_new(ratings: Ratings, order: Longs) -> Mask:
    """Return which events, in some order, are the first of their user with their item."""
    log = ratings.log
    users = log.users[order]
    items = log.items[order]
    n_items = np.int64(ratings.n_items)
    pairs = users * n_items + items
    _, first = np.unique(pairs, return_index=True)
    are_new = np.zeros(len(log), np.bool_)
    are_new[first] = True
    return are_new


def last_events(
    ratings: Ratings,
    k: int,
    random_state: int,
    *,
    only_new: bool,
) -> Mask:
    """Mark the events from the k-th last one of each user on, but never the first.

    With `only_new`, only events whose item is new to the user are counted.
    """
    log = ratings.log
    n = len(log)
    order = event_order(ratings, random_state)
    is_counted = np.ones(n, np.bool_)
    if only_new:
        is_counted = _are_new(ratings, order)
    # Number of counted events of the same user up to each event, in the order of time.
    running = np.cumsum(is_counted)
    at_ends = np.append(0, running)[log.indptr]
    sizes = np.diff(log.indptr)
    position = running - np.repeat(at_ends[:-1], sizes)
    # The first counted event of each user is for training, whatever k is.
    n_first = np.maximum(np.diff(at_ends) - k, 1)
    remaining = np.repeat(n_first, sizes)
    is_last = np.zeros(n, np.bool_)
    is_last[order] = position > remaining
    return is_last


def next_events(
    ratings: Ratings,
    is_later: Mask,
    k: int,
    *,
    only_new: bool,
) -> Mask:
    """Mark the first k later events of each user.

    With `only_new`, only events whose item is new to the user are counted and marked.
    """
    log = ratings.log
    order = event_order(ratings, 0)
    counts = is_later[order]
    if only_new:
        counts &= _are_new(ratings, order)
    running = np.cumsum(counts)
    before = np.append(0, running)[log.indptr[:-1]]
    sizes = np.diff(log.indptr)
    position = running - np.repeat(before, sizes)
    is_next = np.zeros(len(log), np.bool_)
    is_next[order] = counts & (position <= k)
    return is_next


def _pairs(ratings: Ratings) -> Longs:
    """Return a number for each pair of user and item."""
    users = ratings.user_index_of_nonzeros().astype(np.int64)
    pairs: Longs = users * ratings.n_items + ratings.indices
    return pairs


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
        Length of the lists, at most n_candidates.
    """

    scores: Floats
    relevant: Mask
    counts: Longs
    top: int

    def ndcg(self, weights: AnyFloats) -> Doubles:
        """Return the NDCG of each user with relevant items, ranking by weighted sums of scores."""
        users = np.flatnonzero(self.counts)
        relevant = self.relevant[users]
        n_candidates = self.relevant.shape[1]
        negated = np.zeros((len(users), n_candidates), np.float32)
        for number in np.flatnonzero(weights):
            negated -= np.float32(weights[number]) * self.scores[number, users]
        hits = np.take_along_axis(relevant, _least(negated, self.top), axis=1)
        return ndcg(hits, self.counts[users])


def _least(numbers: Floats, n: int) -> Longs:
    """Return the positions of the n smallest numbers of each row; equal ones in their order."""
    # One number for a score and its position, so that equal scores stay in their order:
    # as integers, floats are in ascending order if those below zero are turned around.
    bits = (numbers + np.float32(0)).view(np.int32)
    ordered = (bits ^ (bits >> 31 & 0x7FFFFFFF)).astype(np.int64)
    keys = (ordered << 32) + np.arange(numbers.shape[1])
    best = np.partition(keys, n - 1, axis=1)
    positions: Longs = np.sort(best[:, :n], axis=1) & 0xFFFFFFFF
    return positions


def ndcg_of(lists: Sequence[Lists], weights: AnyFloats) -> Doubles:
    """Return the NDCG of each user with relevant items in several sets of lists."""
    return np.concatenate([part.ndcg(weights) for part in lists])


class WeightedLists(NamedTuple):
    """Models of a blend by number, their weights, and the NDCG of each list."""

    members: list[int]
    weights: Doubles
    heights: Doubles


def growing_blends(lists: Sequence[Lists], first: int) -> Iterator[WeightedLists]:
    """Yield blends that start from the model `first` and grow by one model at a time.

    Each step adds the model with the largest gain in NDCG, or the first model (in order of ranking
    time) within one standard error of it whose gain is more than its own standard error.
    """
    members = [first]
    n_models = len(lists[0].scores)
    heights = ndcg_of(lists, np.eye(n_models)[first])
    while len(members) < n_models:
        blends = []
        for other in sorted({*range(n_models)} - {*members}):
            numbers = sorted([*members, other])
            chosen = [replace(part, scores=part.scores[numbers]) for part in lists]
            blends.append(WeightedLists(numbers, *best_weights(chosen)))
        best = max(blends, key=lambda blend: float(blend.heights.mean()))
        for blend in blends:
            is_gain = _exceed(blend.heights, heights)
            if is_gain and not _exceed(best.heights, blend.heights):
                best = blend
                break
        members, _, heights = best
        yield best


def _exceed(heights: Doubles, others: Doubles) -> bool:
    """Return whether heights exceed others by more than the standard error of the mean."""
    difference = heights - others
    return bool(difference.mean() > difference.std() / len(difference) ** 0.5)


def best_weights(
    lists: Sequence[Lists],
) -> tuple[Doubles, Doubles]:
    """Return weights with a high NDCG, and the cross-validated NDCG of each list.

    The weights are non-negative with sum 1: the mean of the optimal weights for bootstrap samples
    of the users, which reduces their variance. The NDCG of each half of the lists with relevant
    items is computed with weights chosen on the other half.
    """
    n_models = len(lists[0].scores)
    for n_steps in _STEPS:
        if comb(n_models + n_steps - 1, n_steps) <= _POINTS:
            break
    # The weights of a grid are the shares of its steps that go to each model.
    shared = combinations_with_replacement(range(n_models), n_steps)
    counts = [np.bincount(steps, minlength=n_models) for steps in shared]
    grid = np.array(counts) / n_steps
    of_weights = [ndcg_of(lists, weights) for weights in grid]
    heights = np.stack(of_weights)
    n_lists = heights.shape[1]
    if not n_lists:
        return np.full(n_models, 1 / n_models), np.zeros(0)
    # A single list is in both halves.
    first = slice(0, None, 2)
    second = slice(int(n_lists > 1), None, 2)
    validated = np.empty(n_lists)
    for fitted, judged in ((first, second), (second, first)):
        weights = _bagged(grid, heights[:, fitted])
        validated[judged] = ndcg_of(lists, weights)[judged]
    return _bagged(grid, heights), validated


def _bagged(grid: Doubles, heights: Doubles) -> Doubles:
    """Return the mean of the best weights for bootstrap samples of the lists."""
    size = heights.shape[1]
    generator = np.random.default_rng(0)
    samples = generator.integers(size, size=(_BAGS, size))
    # How many times each list is drawn.
    counts = [np.bincount(sample, minlength=size) for sample in samples]
    draws = np.stack(counts)
    best = (heights @ draws.T).argmax(axis=0)
    weights: Doubles = grid[best].mean(axis=0)
    weights[weights < _LEAST_WEIGHT] = 0
    weights /= weights.sum()
    return weights


def score_scale(model: Model) -> float:
    """Return the standard deviation of a user's scores, as root mean square over sampled users."""
    step = max(1, -(-model.n_users // _SAMPLE))
    users = np.arange(0, model.n_users, step)
    squares = 0.0
    size = max(1, _BLOCK // max(1, model.n_items))
    for block in kernels.pieces(len(users), size):
        scores = model.scores(users[block])
        squares += float(scores.var(axis=1, dtype=np.float64).sum())
    scale = float(np.sqrt(squares / max(1, len(users))))
    return scale if 0 < scale < np.inf else 1.0
