"""The ranking task: whom to recommend to, out of what, and what they will turn out to like."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from recsys.errors import DataError
from recsys.evaluation.metrics import Lists
from recsys.models.base import FactorForm, Floats, Indices
from recsys.topn import Scorer, csr_exclusion, top_n

if TYPE_CHECKING:
    from recsys.data.ratings import Ratings
    from recsys.evaluation.splits import Split

__all__ = ["Candidates", "Task", "sample_candidates"]


@dataclass(frozen=True, slots=True)
class Candidates:
    """What each user's recommendations are chosen from, as the rows of a CSR matrix.

    Attributes
    ----------
    indptr : int64 ndarray of shape (n_users + 1,)
    indices : int32 ndarray
    """

    indptr: NDArray[np.int64]
    indices: NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class Task:
    """Recommend n items to each of the users who have relevant test items.

    Attributes
    ----------
    users : int64 ndarray of shape (n_asked,)
    relevant : Ratings
        The relevant test ratings.
    seen : Ratings
        What is not recommended again.
    n : int
    candidates : Candidates or None
        None: all items that the user has not seen.
    """

    users: Indices
    relevant: Ratings
    seen: Ratings
    n: int
    candidates: Candidates | None = None

    @classmethod
    def of(
        cls,
        split: Split,
        n: int,
        relevant_from: float | None = None,
        candidates: int | None = None,
        random_state: int = 0,
    ) -> Task:
        """Make the task of a split.

        Parameters
        ----------
        split : Split
        n : int
        relevant_from : float, optional
            Test items rated at least this are relevant; all are, if not given.
        candidates : int, optional
            Choose among so many items, drawn at random, and the user's relevant ones.
        random_state : int
            Of the draw.

        Raises
        ------
        DataError
            If there are no test ratings, or none is relevant.
        """
        relevant = split.test
        if not relevant.n_ratings:
            raise DataError("There are no test ratings to measure the models on.")
        if relevant_from is not None:
            relevant = relevant.take(relevant.values >= relevant_from)
        users = np.flatnonzero(np.diff(relevant.indptr))
        if not len(users):
            raise DataError(f"No test rating is {relevant_from} or more, so no item is relevant.")
        drawn = None
        if candidates is not None:
            drawn = sample_candidates(split, relevant, candidates, random_state)
        return cls(users, relevant, split.seen, n, drawn)

    @property
    def n_relevant(self) -> NDArray[np.int64]:
        """Number of relevant items of each of the users."""
        counts: NDArray[np.int64] = np.diff(self.relevant.indptr)[self.users]
        return counts

    def recommend(self, model: Scorer) -> Lists:
        """Return each user's n best items, -1 where fewer are left, shape (n_asked, n)."""
        lists = np.full((len(self.users), self.n), -1, dtype=np.int32)
        scorer = model if self.candidates is None else _Among(model, self.candidates)
        exclude = csr_exclusion(self.seen.indptr, self.seen.indices)
        for top in top_n(scorer, self.users, self.n, exclude=exclude):
            lists[top.rows, top.ranks - 1] = top.items
        return lists


def sample_candidates(split: Split, relevant: Ratings, n: int, random_state: int = 0) -> Candidates:
    """Draw candidates: each user's relevant items, and n others that the user has not rated.

    Metrics over samples are not those over all items, and may order models differently: they say
    how a model tells relevant items from random ones.

    Parameters
    ----------
    split : Split
    relevant : Ratings
    n : int
        Drawn without repetition; all, where fewer are unrated.
    random_state : int
        Each user has a generator of its own, seeded by this and the user's index.

    Raises
    ------
    DataError
        If n is below 1.

    References
    ----------
    Krichene and Rendle (2020), "On sampled metrics for item recommendation".
    """
    if n < 1:
        raise DataError(f"candidates must be at least 1; got {n}.")
    counts = np.diff(relevant.indptr)
    rows: list[NDArray[np.int32]] = []
    for user in range(relevant.n_users):
        if not counts[user]:
            rows.append(relevant.indices[:0])
            continue
        rated = np.concatenate([_row(split.seen, user), _row(split.test, user)])
        drawn = _draw(np.random.default_rng([random_state, user]), relevant.n_items, n, rated)
        rows.append(np.concatenate([_row(relevant, user), drawn]))
    indptr = np.zeros(relevant.n_users + 1, dtype=np.int64)
    np.cumsum([len(row) for row in rows], out=indptr[1:])
    return Candidates(indptr, np.concatenate(rows))


def _row(ratings: Ratings, user: int) -> NDArray[np.int32]:
    row: NDArray[np.int32] = ratings.indices[ratings.indptr[user] : ratings.indptr[user + 1]]
    return row


def _draw(
    rng: np.random.Generator, n_items: int, n: int, rated: NDArray[np.int32]
) -> NDArray[np.int32]:
    """Draw n different items that are not rated; few of many by trial, else from a permutation."""
    tries = 2 * n + len(rated)
    if 4 * tries < n_items:
        drawn = rng.integers(0, n_items, tries, dtype=np.int32)
        _, first = np.unique(drawn, return_index=True)
        drawn = drawn[np.sort(first)]
        drawn = drawn[~np.isin(drawn, rated)]
        if len(drawn) >= n:
            return drawn[:n]
    everything = rng.permutation(n_items).astype(np.int32)
    return everything[~np.isin(everything, rated)][:n]


class _Among:
    """A `Scorer` for whose users only their candidates have scores."""

    def __init__(self, model: Scorer, candidates: Candidates) -> None:
        self._model = model
        self._pick = csr_exclusion(candidates.indptr, candidates.indices)

    @property
    def n_items(self) -> int:
        """Number of items."""
        return self._model.n_items

    def predict(self, users: Indices, items: Indices) -> Floats:
        """Scores of pairs, shape (n_pairs,)."""
        return self._model.predict(users, items)

    def scores(self, users: Indices) -> Floats:
        """Scores of the candidates, minus infinity elsewhere, shape (n_block, n_items)."""
        everything = self._model.scores(users)
        scores = np.full_like(everything, -np.inf)
        chosen = self._pick(users)
        scores[chosen] = everything[chosen]
        return scores

    def _score_error(self, users: Indices) -> Floats | None:
        """Bound on ``|scores - predict|`` for each user."""
        return self._model._score_error(users)

    def _factor_form(self, users: Indices) -> FactorForm | None:
        """Return None: the compiled search looks at all items."""
        return None
