"""Lists to make for the users of a split, or for each position of its test histories."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lowrank.kernels.topk import Ties
from recsys.data.arrays import Doubles, Hashes, Ints, Longs, Mask
from recsys.data.identity import fingerprint
from recsys.data.ratings import Ratings, has_items, has_ratings, restricted
from recsys.errors import DataError, check_whole
from recsys.evaluation.metrics import (
    Catalogue,
    Lists,
    Metric,
    hit_matrix,
)
from recsys.evaluation.positions import Positions
from recsys.evaluation.settings import Settings, SplitInfo
from recsys.evaluation.splits import (
    COLD,
    NOTHING_KNOWN,
    Repeats,
    Split,
)
from recsys.models.abilities import fold
from recsys.models.base import Model
from recsys.models.factor_form import FactorForm
from recsys.models.parts import Floats, Indices
from recsys.ranking.filters import left_out
from recsys.ranking.lists import ListOptions
from recsys.ranking.rerank import best_items
from recsys.ranking.topn import (
    CsrPairs,
    Scorer,
    TopN,
    checked_scores,
    top_n,
    user_ties,
)

OTHER_RATINGS = (
    "The training part of the split must be the ratings of the fitted recommender; "
    "shared_test({label: recommender.ratings}, test) makes such a split."
)
# The order of equal scores has another seed: else candidates would precede the relevant items.
_OF_CANDIDATES = 0x5EED


@dataclass(frozen=True)
class RankingTask:
    """Task of recommending n items to each user with relevant test items.

    `relevant` holds the relevant test ratings, and `users` the users who have any. Without
    `candidates`, the items to rank are the `allowed` ones that the user has not rated in the
    training part. If the split holds out whole items or users, only their ratings are relevant; if
    it holds out items, only these are allowed. Items with equal scores are in a random order, which
    differs between users; `random_state` is its seed. With `positions`, there is a list for each
    of them instead of each user.
    """

    split: Split
    relevant: Ratings
    users: Indices
    n: int
    candidates: CsrPairs | None = None
    catalogue: Catalogue | None = None
    allowed: Mask | None = None
    diversity: float = 0.0
    random_state: int = 0
    positions: Positions | None = None
    inverse: Ratings | None = None  # 1 / propensity of the relevant test ratings

    @classmethod
    def of(
        cls,
        split: Split,
        n: int,
        relevant_from: float | None = None,
        candidates: int | None = None,
        random_state: int = 0,
        *,
        catalogue: bool = False,
        only_rated: bool = False,
        diversity: float = 0.0,
    ) -> RankingTask:
        """Make the task of a split; arguments as in `evaluate`.

        With `only_rated`, items without training ratings are not recommended.

        Raises
        ------
        DataError
            If no test rating is relevant, or `candidates` is not a whole number from 1.
        """
        relevant = split.test
        if not relevant.n_ratings:
            raise DataError("There are no test ratings to evaluate models on.")
        if split.method in COLD:
            # The other ratings are held out for the comparison of errors only.
            relevant = relevant.take(split.is_new)
        if relevant_from is not None:
            relevant = relevant.take(relevant.values >= relevant_from)
        users = np.flatnonzero(relevant.counts("user"))
        if not len(users):
            raise DataError(
                f"No test rating is {relevant_from} or more, so no item is relevant."
            )
        allowed = None
        rated = has_items(split.train)
        if split.method == "items":
            allowed = ~rated
        elif only_rated and not rated.all():
            allowed = rated
        drawn = None
        if candidates is not None:
            drawn = sample_candidates(
                split, relevant, candidates, random_state, allowed
            )
        return cls(
            split,
            relevant,
            users,
            n,
            candidates=drawn,
            catalogue=Catalogue.of(split.train) if catalogue else None,
            allowed=allowed,
            diversity=diversity,
            random_state=random_state,
        )

    @property
    def n_lists(self) -> int:
        """Number of lists: of the users, or of the positions."""
        return len(self.users) if self.positions is None else len(self.positions)

    @property
    def n_relevant(self) -> Longs:
        """Number of relevant items of each list, shape (n_lists,)."""
        if self.positions is not None:
            return np.ones(self.n_lists, np.int64)
        return self.relevant.counts("user")[self.users]

    @property
    def counts(self) -> Longs:
        """Number of relevant items of each test user, or of positions."""
        if self.positions is not None:
            return self.positions.counts
        return self.relevant.counts("user")

    def hits(self, rows: slice, lists: Lists) -> Mask:
        """Mark the relevant items in some of the lists."""
        if self.positions is None:
            return hit_matrix(lists, self.users[rows], self.relevant)
        # Padding is -1, as an unknown target is, and never a hit.
        targets = self.positions.targets[rows]
        return np.equal(lists, targets[:, None]) & (lists >= 0)

    def of_users(self, values: Doubles) -> Doubles:
        """Return a value of each list by test user, NaN for users without lists."""
        if self.positions is not None:
            return self.positions.means(values)
        of_users = np.full(self.split.test.n_users, np.nan)
        of_users[self.users] = values
        return of_users

    def recommend(self, model: Model) -> Lists:
        """Return the n best items of each list, padded with -1, shape (n_lists, n).

        The model has the test users, or with `positions`, folds in the history at each.
        """
        return self.scored_lists(model)[0]

    def scored_lists(self, model: Model) -> tuple[Lists, Floats]:
        """Return lists as `recommend`, and the scores of their items, padded with NaN."""
        lists = np.full((self.n_lists, self.n), -1, dtype=np.int32)
        scores = np.full(lists.shape, np.nan, np.float32)
        hashes = self.split.test.users.hashes
        drops = self.split.repeats == "drop"
        if self.positions is None:
            seen_pairs = None
            if self.candidates is None and drops:
                seen_pairs = left_out(self.split.seen)
            of_users = hashes[self.users]
            self._fill(lists, scores, model, self.users, seen_pairs, of_users)
            return lists, scores
        places = self.positions.places - self.positions.starts
        hashes = hashes[self.positions.users] ^ places.astype(np.uint64)
        for block in self.positions.blocks():
            histories = self.positions.histories(block)
            served = fold(model, "user", histories)
            seen_pairs = None
            if drops:
                seen_pairs = CsrPairs(histories.indptr, histories.indices)
            users = np.arange(histories.n_rows)
            self._fill(
                lists[block], scores[block], served, users, seen_pairs, hashes[block]
            )
        return lists, scores

    def _fill(
        self,
        lists: Lists,
        scores: Floats,
        model: Model,
        users: Indices,
        exclude: CsrPairs | None,
        hashes: Hashes,
    ) -> None:
        """Fill lists with the best items of users of a model; `hashes` order equal scores."""
        scorer: Scorer = model
        if self.candidates is not None:
            scorer = _Among(model, self.candidates)
        ties = user_ties(self.split.test.items.hashes, hashes, self.random_state)

        def search(queries: Indices, n: int) -> Iterator[TopN]:
            return top_n(
                scorer,
                users[queries],
                n,
                exclude=exclude,
                allowed=self.allowed,
                ties=ties.take(queries),
            )

        queries = np.arange(len(users))
        options = ListOptions(diversity=self.diversity)
        train = self.split.train
        for top in best_items(search, queries, self.n, train, options, model):
            lists[top.rows, top.ranks - 1] = top.items
            scores[top.rows, top.ranks - 1] = top.scores


def sample_candidates(
    split: Split,
    relevant: Ratings,
    n: int,
    random_state: int = 0,
    allowed: Mask | None = None,
) -> CsrPairs:
    """Draw candidates: each user's relevant items, and n others that the user has not rated.

    The others are drawn without replacement from the `allowed` items, a bool ndarray of shape
    (n_items,), by default all. A user with fewer than n unrated items gets all of them. The draw
    depends on the ids of the user and the items and on `random_state`, not on the order of ids, so
    that a saved model and a new one rank the same candidates.

    Sampled metrics differ from those over all items, and may order models differently: they measure
    how well a model separates relevant items from random ones.

    Raises
    ------
    DataError
        If n is not a whole number, or below 1.

    References
    ----------
    Krichene and Rendle (2020), "On sampled metrics for item recommendation".
    """
    check_whole("candidates", n, 1)

    def items_of(ratings: Ratings, user: int) -> Ints:
        part = slice(ratings.indptr[user], ratings.indptr[user + 1])
        return np.asarray(ratings.indices[part])

    item_hashes = split.test.items.hashes
    user_hashes = split.test.users.hashes
    draws = user_ties(item_hashes, user_hashes, random_state + _OF_CANDIDATES)
    rows = [relevant.indices[:0]] * relevant.n_users
    for user in np.flatnonzero(relevant.counts("user")).tolist():
        eligible = np.ones(relevant.n_items, np.bool_)
        if allowed is not None:
            eligible = allowed.copy()
        # Also test items that are not relevant: the user has rated them.
        eligible[items_of(split.test, user)] = False
        if split.repeats == "drop":
            eligible[items_of(split.seen, user)] = False
        drawn = draw_items(draws, user, np.flatnonzero(eligible), n)
        rows[user] = np.concatenate([items_of(relevant, user), drawn])
    indptr = np.cumsum([0, *map(len, rows)], dtype=np.int64)
    return CsrPairs(indptr, np.concatenate(rows))


def draw_items(
    draws: Ties,
    user: int,
    eligible: Indices,
    n: int,
) -> Ints:
    """Draw n of the eligible items, or all if they are fewer: the first in the user's order."""
    ranks = draws.places(np.full(len(eligible), user), eligible)
    if n < len(eligible):
        eligible = eligible[np.argpartition(ranks, n)[:n]]
    return eligible.astype(np.int32)


class _Among:
    """`Scorer` of each user's candidates."""

    def __init__(self, model: Scorer, candidates: CsrPairs) -> None:
        self._model, self._candidates = model, candidates
        self.n_items = model.n_items
        self.pair_scores, self._score_error = model.pair_scores, model._score_error

    def scores(self, users: Indices) -> NDArray[np.floating[Any]]:
        """Return the scores of all items, minus infinity for items other than candidates."""
        scores = checked_scores(self._model, users)
        excluded = np.ones(scores.shape, np.bool_)
        excluded[self._candidates(users)] = False
        scores[excluded] = -np.inf
        return scores

    def _factor_form(self, users: Indices) -> FactorForm | None:
        return None  # the compiled search has the same candidates for all users


def prepare_lists(
    split: Split,
    settings: Settings,
    metrics: Sequence[Metric],
    *,
    as_is: bool = False,
) -> tuple[RankingTask, SplitInfo]:
    """Check the split, apply the policy on new users and items, and count ratings and users."""
    split.check()
    drops = settings.new == "drop" and split.method not in COLD
    used = split
    if drops and as_is:
        history = split.history
        if history is not None:
            history = history.take(has_items(split.train)[history.indices])
        used = replace(split, test=split.test.take(~split.is_new), history=history)
    elif drops:
        used = split.without_new()
    if split.test.n_ratings and not used.test.n_ratings:
        raise DataError(NOTHING_KNOWN)
    task = RankingTask.of(
        used,
        settings.ns[-1],
        settings.relevant_from,
        settings.candidates,
        settings.random_state,
        catalogue=any(metric.uses_catalogue for metric in metrics),
        only_rated=drops,
        diversity=settings.diversity,
    )
    counts = {
        "train_ratings": used.train.n_ratings,
        "test_ratings": used.test.n_ratings,
        "users_evaluated": len(task.users),
        "users_without_test_items": used.seen.n_users - len(task.users),
    }
    return task, _info(split, counts)


def prepare_positions(
    split: Split,
    settings: Settings,
    repeats: Repeats | None = None,
    fitted: Ratings | None = None,
) -> tuple[RankingTask, SplitInfo]:
    """Check the split, take the positions of its test part, and count them.

    `fitted` has the training ratings of a fitted model; other models are fitted as they are
    served, to the users and items that have training ratings.
    """
    split.check()
    drops = settings.new == "drop"
    is_trained = has_items(split.train)
    if drops and not is_trained[split.test.indices].any():
        raise DataError(NOTHING_KNOWN)
    train = split.train
    if fitted is not None:
        train = fitted
        if fingerprint(fitted) != fingerprint(split.train):
            raise DataError(OTHER_RATINGS)
    elif drops:
        train = restricted(train, has_ratings(train), is_trained)
    item_indices = train.items.find(split.test.items.values)
    if drops:
        item_indices[~is_trained] = -1
    has_item = item_indices >= 0
    test, seen = (
        part.take(has_item[part.indices]).renumbered(part.users, train.items)
        for part in (split.test, split.seen)
    )
    rated = has_items(train)
    allowed = rated if drops and not rated.all() else None
    used = replace(
        split, train=train, test=test, history=seen, repeats=repeats or split.repeats
    )
    positions = Positions.of(
        split,
        item_indices,
        train.n_items,
        used.repeats,
        settings.relevant_from,
        settings.random_state,
    )
    users = np.flatnonzero(positions.counts)
    counts = {
        "train_ratings": train.n_ratings,
        "test_ratings": split.test.n_ratings,
        "positions": len(positions),
        "new_targets": int(np.count_nonzero(positions.targets < 0)),
        "users_evaluated": len(users),
        "users_without_test_items": split.seen.n_users - len(users),
    }
    task = RankingTask(
        used,
        test,
        users,
        settings.ns[-1],
        allowed=allowed,
        diversity=settings.diversity,
        random_state=settings.random_state,
        positions=positions,
    )
    return task, replace(_info(split, counts), repeats=used.repeats)


def _info(split: Split, counts: dict[str, int]) -> SplitInfo:
    """Return the description of a split, with more counts."""
    counts |= {
        "new_users": split.new_users,
        "new_items": split.new_items,
        "new_ratings": split.new_ratings,
        "known_pairs": split.n_known,
    }
    return SplitInfo(
        split.method,
        split.parameters,
        split.description,
        counts,
        split.repeats,
        split.train.implicit,
    )
