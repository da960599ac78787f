"""Ratings in two parts: one to learn from, one to be tested on; and the ways to part them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
from numpy.typing import NDArray

from recsys.errors import DataError
from recsys.evaluation import leaks
from recsys.evaluation.parts import Mask, has_items, has_ratings, restricted, times_of
from recsys.fitted import check_ratings
from recsys.ratings import Ratings

__all__ = [
    "Split",
    "default_split",
    "held_out_users",
    "leave_last_split",
    "parted",
    "per_user_split",
    "random_split",
    "time_split",
]

NOTHING_KNOWN = (
    "No test rating has both a user and an item of the training ratings, so nothing can be "
    "measured; hold out other ratings, such as a random part."
)

FRACTION = 0.1


@dataclass(frozen=True, slots=True)
class Split:
    """Training and test ratings; unpacks as ``train, test``.

    Attributes
    ----------
    train, test : Ratings
        An item has the same index in both, and so has a user, unless there is a `history`.
    history : Ratings or None
        Where the test users are not in the training part: what else they rated, from which a model
        folds them in. A user has the same index in `history` and `test`.
    method : str
        How the split was made: "random", "per-user", "leave-last", "time", "k-fold", "users", or
        "given" for parts that came from elsewhere.
    parameters : dict
        Of the method, as JSON can hold them: the seed, the fraction, and for "time" the `cut`, in
        seconds since 1970: training ratings are older, test ratings are not.

    Raises
    ------
    DataError
        If the parts have different numbers of items, or of users.
    """

    train: Ratings
    test: Ratings
    history: Ratings | None = None
    method: str = "given"
    parameters: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        items = {part.n_items for part in self.parts}
        if len(items) > 1 or self.seen.n_users != self.test.n_users:
            raise DataError(
                "The parts of a split must have the same users and items; got "
                f"{' and '.join(str(part.shape) for part in self.parts)} of them. "
                "split_from_pair makes a split of any two data sets."
            )

    def __iter__(self) -> Iterator[Ratings]:
        return iter((self.train, self.test))

    @property
    def parts(self) -> tuple[Ratings, ...]:
        """The training and the test ratings, and the history if there is one."""
        both = (self.train, self.test)
        return both if self.history is None else (*both, self.history)

    @property
    def seen(self) -> Ratings:
        """What the test users have rated before: `history`, or else the training ratings."""
        return self.train if self.history is None else self.history

    @property
    def new_users(self) -> int:
        """Number of test users who have rated nothing before."""
        return int(np.count_nonzero(has_ratings(self.test) & ~has_ratings(self.seen)))

    @property
    def new_items(self) -> int:
        """Number of test items without a training rating."""
        return int(np.count_nonzero(has_items(self.test) & ~has_items(self.train)))

    @property
    def new_ratings(self) -> int:
        """Number of test ratings by new users or of new items."""
        known = has_ratings(self.seen)[self.test.user_index_of_nonzeros()]
        return int(np.count_nonzero(~(known & has_items(self.train)[self.test.indices])))

    @property
    def description(self) -> str:
        """How the split was made, in words."""
        describe = _WORDS.get(self.method)
        return describe(self.parameters) if describe else "a given pair of data sets"

    def check(self) -> None:
        """Look for test data that a model could have learnt from.

        Raises
        ------
        DataError
            If a pair of user and item is both in the test part and in what a model learns from, a
            user with a history has training ratings, or ratings are on the wrong side of the cut.
        """
        leaks.refuse_overlap(self.seen, self.test)
        if self.history is not None:
            leaks.refuse_known_users(self.train, self.test)
        if "cut" in self.parameters:
            leaks.refuse_future(self.train, self.test, self.parameters["cut"])

    def without_new(self) -> Split:
        """Return the split without the users and items that a model cannot know.

        Kept are users with training ratings (or a history), and items with training ratings. A
        split without others is returned as it is.
        """
        items = has_items(self.train)
        users = has_ratings(self.seen)
        if self.history is None:
            train = seen = restricted(self.train, users, items)
        else:
            train = restricted(self.train, has_ratings(self.train), items)
            seen = restricted(self.history, users, items)
        test = restricted(self.test, users, items)
        return replace(self, train=train, test=test, history=None if self.history is None else seen)


def random_split(ratings: Ratings, test_fraction: float = FRACTION, seed: int = 0) -> Split:
    """Hold out a random part of the ratings.

    The test part is the first ``round(n * test_fraction)`` entries of
    ``numpy.random.default_rng(seed).permutation(n)``, as positions among the n ratings in CSR
    order (by user, then item). Both parts keep all users and items, those too that are left
    without ratings.

    Raises
    ------
    DataError
        If either part would be empty.
    """
    check_ratings(ratings)
    n = ratings.n_ratings
    n_test = round(n * test_fraction) if 0 < test_fraction < 1 else 0
    _check_parts(n, n_test, test_fraction)
    held_out = np.zeros(n, dtype=np.bool_)
    held_out[np.random.default_rng(seed).permutation(n)[:n_test]] = True
    return parted(ratings, held_out, "random", test_fraction=test_fraction, seed=seed)


def per_user_split(ratings: Ratings, test_fraction: float = FRACTION, seed: int = 0) -> Split:
    """Hold out a random part of each user's ratings.

    Of a user with n ratings ``floor(n * test_fraction + 1/2)`` are held out, but never all.

    Raises
    ------
    DataError
        If either part would be empty.
    """
    check_ratings(ratings)
    held_out = _random_part_of_each(ratings, test_fraction, seed)
    _check_parts(len(held_out), np.count_nonzero(held_out), test_fraction)
    return parted(ratings, held_out, "per-user", test_fraction=test_fraction, seed=seed)


def leave_last_split(ratings: Ratings, k: int = 1) -> Split:
    """Hold out the last k ratings of each user by time, but never all.

    Of ratings at the same time those of later items, in index order, count as later. A user's
    training ratings are older than the same user's test ratings, but other users' may be newer:
    only `time_split` keeps the future out.

    Raises
    ------
    DataError
        If k is below 1, the ratings have no times, or no user has two ratings.

    References
    ----------
    Meng et al. (2020), "Exploring data splitting strategies for the evaluation of recommendation
    models", on how the choice of the split changes which model wins.

    Examples
    --------
    >>> import polars as pl
    >>> rows = {"user": [1, 1, 2, 2], "item": [7, 8, 7, 8], "timestamp": [10, 40, 30, 20]}
    >>> leave_last_split(Ratings.from_frame(pl.DataFrame(rows))).test.to_frame().rows()
    [(1, 8, 40), (2, 7, 30)]
    """
    if k < 1:
        raise DataError(f"k must be at least 1; got {k}.")
    times = times_of(ratings, "leave_last_split")
    counts = np.diff(ratings.indptr)
    place = _place_in_row(ratings, np.lexsort((times, ratings.user_index_of_nonzeros())))
    held_out = place >= np.repeat(np.maximum(counts - k, 1), counts)
    if not held_out.any():
        raise DataError("No user has two ratings, so none can be held out beside the first.")
    return parted(ratings, held_out, "leave-last", k=k)


def time_split(
    ratings: Ratings, test_fraction: float = FRACTION, *, cut: int | None = None
) -> Split:
    """Hold out the ratings from a point in time on: what is learnt is older than what is tested.

    Parameters
    ----------
    ratings : Ratings
        With times.
    test_fraction : float
        Share of the ratings that is to be newer; more are where several have the time of the cut,
        and fewer where so many have the oldest time that nothing would be left to learn from.
    cut : int, optional
        The point in time itself, in seconds since 1970-01-01 UTC.

    Raises
    ------
    DataError
        If the ratings have no times, or either part would be empty.

    Examples
    --------
    >>> import polars as pl
    >>> rows = {"user": [1, 1, 2, 2], "item": [7, 8, 7, 8], "timestamp": [10, 40, 30, 20]}
    >>> split = time_split(Ratings.from_frame(pl.DataFrame(rows)), 0.5)
    >>> split.test.to_frame().rows()
    [(1, 8, 40), (2, 7, 30)]
    >>> split.description
    'the ratings since 1970-01-01 00:00:30 UTC'
    """
    times = times_of(ratings, "time_split")
    if cut is None:
        n_test = round(len(times) * test_fraction) if 0 < test_fraction < 1 else 0
        _check_parts(len(times), n_test, test_fraction)
        cut = int(np.partition(times, len(times) - n_test)[len(times) - n_test])
        if cut == times.min() < times.max():
            cut = int(times[times > cut].min())
    held_out = times >= cut
    if held_out.all() or not held_out.any():
        raise DataError(
            f"A cut at {cut} leaves one part empty: the times of the ratings run from "
            f"{times.min()} to {times.max()}."
        )
    return parted(ratings, held_out, "time", test_fraction=test_fraction, cut=cut)


def default_split(ratings: Ratings, test_fraction: float = FRACTION, seed: int = 0) -> Split:
    """Hold out the newest ratings where they have different times, else a random part."""
    check_ratings(ratings)
    times = ratings.timestamps
    if times is None or not len(times) or times.min() == times.max():
        return random_split(ratings, test_fraction, seed)
    return time_split(ratings, test_fraction)


def held_out_users(
    ratings: Ratings, user_fraction: float = FRACTION, test_fraction: float = 0.2, seed: int = 0
) -> Split:
    """Hold out users: a model learns from the others, and folds these in from their histories.

    Parameters
    ----------
    ratings : Ratings
    user_fraction : float
        Share of the users with at least two ratings that is held out, at random.
    test_fraction : float
        Share of each such user's ratings that is tested, at least one of them; the rest is the
        history.
    seed : int

    Raises
    ------
    DataError
        If any part would be empty.

    References
    ----------
    Marlin (2004), "Collaborative filtering: a machine learning perspective", on strong
    generalisation: to users that were not learnt from.

    Examples
    --------
    >>> import polars as pl
    >>> rows = {"user": [1, 1, 2, 2, 3, 3], "item": [7, 8, 7, 8, 7, 8]}
    >>> split = held_out_users(Ratings.from_frame(pl.DataFrame(rows)), 0.4)
    >>> [part.n_ratings for part in (split.train, split.history, split.test)]
    [4, 1, 1]
    """
    check_ratings(ratings)
    counts = np.diff(ratings.indptr)
    eligible = np.flatnonzero(counts >= 2)
    n_held = round(len(eligible) * user_fraction) if 0 < user_fraction < 1 else 0
    if not 0 < n_held < np.count_nonzero(counts):
        raise DataError(
            "user_fraction must lie between 0 and 1 and leave users for both parts; "
            f"got {user_fraction} of {len(eligible):,} users with two ratings or more."
        )
    if not 0 < test_fraction < 1:
        raise DataError(f"test_fraction must lie between 0 and 1; got {test_fraction}.")
    rng = np.random.default_rng(seed)
    held = np.zeros(ratings.n_users, dtype=np.bool_)
    held[rng.permutation(eligible)[:n_held]] = True
    every = np.ones(ratings.n_items, dtype=np.bool_)
    theirs = restricted(ratings, held, every)
    tested = _random_part_of_each(theirs, test_fraction, seed, at_least=1)
    return Split(
        restricted(ratings, ~held, every),
        theirs.take(tested),
        theirs.take(~tested),
        "users",
        {"user_fraction": user_fraction, "test_fraction": test_fraction, "seed": seed},
    )


def parted(ratings: Ratings, held_out: Mask, method: str, **parameters: Any) -> Split:
    """Make the split that holds those ratings out."""
    return Split(
        ratings.take(~held_out), ratings.take(held_out), method=method, parameters=parameters
    )


def _check_parts(n: int, n_test: int | np.integer[Any], fraction: float) -> None:
    if not 0 < n_test < n:
        raise DataError(
            "test_fraction must lie between 0 and 1 and leave ratings for both parts; "
            f"got {fraction} of {n:,} ratings."
        )


def _random_part_of_each(
    ratings: Ratings, fraction: float, seed: int, *, at_least: int = 0
) -> Mask:
    """Choose that share of each user's ratings, rounded, but never all."""
    share = fraction if 0 < fraction < 1 else 0.0
    counts = np.diff(ratings.indptr)
    wanted = np.maximum(np.floor(counts * share + 0.5).astype(np.int64), at_least)
    keys = np.random.default_rng(seed).random(ratings.n_ratings)
    place = _place_in_row(ratings, np.lexsort((keys, ratings.user_index_of_nonzeros())))
    return place < np.repeat(np.minimum(wanted, counts - 1), counts)


def _place_in_row(ratings: Ratings, order: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the place of each rating among its user's, in an order that keeps users together."""
    place = np.empty(ratings.n_ratings, dtype=np.int64)
    place[order] = np.arange(ratings.n_ratings)
    first: NDArray[np.int64] = np.repeat(ratings.indptr[:-1], np.diff(ratings.indptr))
    return place - first


def _moment(seconds: int) -> str:
    try:
        moment = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(seconds=seconds)
    except OverflowError:  # before the year 1
        return f"{seconds} s after 1970"
    return f"{moment:%Y-%m-%d %H:%M:%S} UTC"


_WORDS: dict[str, Callable[[dict[str, Any]], str]] = {
    "random": lambda p: f"{p['test_fraction']:.0%} of the ratings, at random (seed {p['seed']})",
    "per-user": lambda p: (
        f"{p['test_fraction']:.0%} of each user's ratings, at random (seed {p['seed']})"
    ),
    "leave-last": lambda p: f"the last {p['k']} of each user's ratings",
    "time": lambda p: f"the ratings since {_moment(p['cut'])}",
    "k-fold": lambda p: (
        f"fold {p['fold']} of {p['folds']} of the ratings, at random (seed {p['seed']})"
    ),
    "users": lambda p: (
        f"{p['test_fraction']:.0%} of the ratings of {p['user_fraction']:.0%} of the users, who "
        f"are folded in from their others (seed {p['seed']})"
    ),
}
