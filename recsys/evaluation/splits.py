"""Splits of ratings into training and test data."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any, TypeAlias, overload

import numpy as np
import polars as pl
from numpy.typing import NDArray

from recsys.data.frames import FrameLike
from recsys.data.ids import Ids
from recsys.data.ratings import Ratings
from recsys.errors import DataError
from recsys.readers import as_ratings

__all__ = [
    "Folds",
    "Mask",
    "Split",
    "default_split",
    "fingerprint",
    "has_items",
    "has_ratings",
    "held_out_users",
    "k_fold",
    "leave_last_split",
    "pair_keys",
    "parted",
    "per_user_split",
    "random_split",
    "refuse_future",
    "refuse_known_users",
    "refuse_overlap",
    "restricted",
    "split_from_pair",
    "time_split",
    "times_of",
]

NOTHING_KNOWN = (
    "No test rating has both a user and an item of the training ratings, so nothing can be "
    "measured; hold out other ratings, such as a random part."
)

FRACTION = 0.1

Mask = NDArray[np.bool_]
RatingsLike: TypeAlias = "Ratings | FrameLike | str | os.PathLike[str]"
"""What `recsys.readers.as_ratings` takes: ratings, a frame of them, or the path of a file."""


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
        Of the method, as JSON can hold them: the random state, the fraction, and for "time" the `cut`, in
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
        refuse_overlap(self.seen, self.test)
        if self.history is not None:
            refuse_known_users(self.train, self.test)
        if "cut" in self.parameters:
            refuse_future(self.train, self.test, self.parameters["cut"])

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


def random_split(
    ratings: RatingsLike, test_fraction: float = FRACTION, random_state: int = 0
) -> Split:
    """Hold out a random part of the ratings.

    The test part is the first ``round(n * test_fraction)`` entries of
    ``numpy.random.default_rng(random_state).permutation(n)``, as positions among the n ratings in CSR
    order (by user, then item). Both parts keep all users and items, those too that are left
    without ratings.

    Raises
    ------
    DataError
        If either part would be empty.
    """
    ratings = as_ratings(ratings)
    n = ratings.n_ratings
    n_test = round(n * test_fraction) if 0 < test_fraction < 1 else 0
    _check_parts(n, n_test, test_fraction)
    held_out = np.zeros(n, dtype=np.bool_)
    held_out[np.random.default_rng(random_state).permutation(n)[:n_test]] = True
    return parted(
        ratings, held_out, "random", test_fraction=test_fraction, random_state=random_state
    )


def per_user_split(
    ratings: RatingsLike, test_fraction: float = FRACTION, random_state: int = 0
) -> Split:
    """Hold out a random part of each user's ratings.

    Of a user with n ratings ``floor(n * test_fraction + 1/2)`` are held out, but never all.

    Raises
    ------
    DataError
        If either part would be empty.
    """
    ratings = as_ratings(ratings)
    held_out = _random_part_of_each(ratings, test_fraction, random_state)
    _check_parts(len(held_out), np.count_nonzero(held_out), test_fraction)
    return parted(
        ratings, held_out, "per-user", test_fraction=test_fraction, random_state=random_state
    )


def leave_last_split(ratings: RatingsLike, k: int = 1) -> Split:
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
    ratings: RatingsLike, test_fraction: float = FRACTION, *, cut: int | None = None
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


def default_split(
    ratings: RatingsLike, test_fraction: float = FRACTION, random_state: int = 0
) -> Split:
    """Hold out the newest ratings where they have different times, else a random part."""
    ratings = as_ratings(ratings)
    times = ratings.timestamps
    if times is None or not len(times) or times.min() == times.max():
        return random_split(ratings, test_fraction, random_state)
    return time_split(ratings, test_fraction)


def held_out_users(
    ratings: RatingsLike,
    user_fraction: float = FRACTION,
    test_fraction: float = 0.2,
    random_state: int = 0,
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
    random_state : int

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
    ratings = as_ratings(ratings)
    counts = np.diff(ratings.indptr)
    eligible = np.flatnonzero(counts >= 2)
    n_held = round(len(eligible) * user_fraction) if 0 < user_fraction < 1 else 0
    if not 0 < n_held < np.count_nonzero(counts):
        raise DataError(
            "user_fraction must be between 0 and 1 and leave users for both parts; "
            f"got {user_fraction} of {len(eligible):,} users with two ratings or more."
        )
    if not 0 < test_fraction < 1:
        raise DataError(f"test_fraction must be between 0 and 1; got {test_fraction}.")
    rng = np.random.default_rng(random_state)
    held = np.zeros(ratings.n_users, dtype=np.bool_)
    held[rng.permutation(eligible)[:n_held]] = True
    every = np.ones(ratings.n_items, dtype=np.bool_)
    theirs = restricted(ratings, held, every)
    tested = _random_part_of_each(theirs, test_fraction, random_state, at_least=1)
    return Split(
        restricted(ratings, ~held, every),
        theirs.take(tested),
        theirs.take(~tested),
        "users",
        {
            "user_fraction": user_fraction,
            "test_fraction": test_fraction,
            "random_state": random_state,
        },
    )


def parted(ratings: Ratings, held_out: Mask, method: str, **parameters: Any) -> Split:
    """Make the split that holds those ratings out."""
    return Split(
        ratings.take(~held_out), ratings.take(held_out), method=method, parameters=parameters
    )


def _check_parts(n: int, n_test: int | np.integer[Any], fraction: float) -> None:
    if not 0 < n_test < n:
        raise DataError(
            "test_fraction must be between 0 and 1 and leave ratings for both parts; "
            f"got {fraction} of {n:,} ratings."
        )


def _random_part_of_each(
    ratings: Ratings, fraction: float, random_state: int, *, at_least: int = 0
) -> Mask:
    """Choose that share of each user's ratings, rounded, but never all."""
    share = fraction if 0 < fraction < 1 else 0.0
    counts = np.diff(ratings.indptr)
    wanted = np.maximum(np.floor(counts * share + 0.5).astype(np.int64), at_least)
    keys = np.random.default_rng(random_state).random(ratings.n_ratings)
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
    "random": lambda p: (
        f"{p['test_fraction']:.0%} of the ratings, at random (seed {p['random_state']})"
    ),
    "per-user": lambda p: (
        f"{p['test_fraction']:.0%} of each user's ratings, at random (seed {p['random_state']})"
    ),
    "leave-last": lambda p: f"the last {p['k']} of each user's ratings",
    "time": lambda p: f"the ratings since {_moment(p['cut'])}",
    "k-fold": lambda p: (
        f"fold {p['fold']} of {p['folds']} of the ratings, at random (seed {p['random_state']})"
    ),
    "users": lambda p: (
        f"{p['test_fraction']:.0%} of the ratings of {p['user_fraction']:.0%} of the users, who "
        f"are folded in from their others (seed {p['random_state']})"
    ),
}


FOLDS = 5


class Folds(Sequence[Split]):
    """The splits of `k_fold`, each made when it is asked for."""

    def __init__(self, ratings: Ratings, parts: list[NDArray[np.int64]], random_state: int) -> None:
        self._ratings = ratings
        self._parts = parts
        self._random_state = random_state

    def __len__(self) -> int:
        return len(self._parts)

    @overload
    def __getitem__(self, place: int) -> Split: ...

    @overload
    def __getitem__(self, place: slice) -> list[Split]: ...

    def __getitem__(self, place: int | slice) -> Split | list[Split]:
        if isinstance(place, slice):
            return [self[each] for each in range(len(self))[place]]
        held_out = np.zeros(self._ratings.n_ratings, dtype=np.bool_)
        held_out[self._parts[place]] = True
        number = range(1, len(self) + 1)[place]
        parameters = {"fold": number, "folds": len(self), "random_state": self._random_state}
        return parted(self._ratings, held_out, "k-fold", **parameters)


def k_fold(ratings: RatingsLike, folds: int = FOLDS, random_state: int = 0) -> Folds:
    """Part the ratings at random into folds, each of which is the test part of one split.

    The folds are consecutive parts of ``numpy.random.default_rng(random_state).permutation(n)``, the first
    n modulo `folds` of them one rating longer.

    Returns
    -------
    sequence of Split
        Each is made when it is asked for, so that one at a time is in memory.

    Raises
    ------
    DataError
        If folds is below 2 or above the number of ratings.

    Examples
    --------
    >>> import polars as pl
    >>> rows = {"user": [1, 1, 2, 2, 3], "item": [7, 8, 7, 8, 7]}
    >>> [split.test.n_ratings for split in k_fold(Ratings.from_frame(pl.DataFrame(rows)), 3)]
    [2, 2, 1]
    """
    ratings = as_ratings(ratings)
    n = ratings.n_ratings
    if not 2 <= folds <= n:
        raise DataError(f"folds must be between 2 and the number of ratings, {n:,}; got {folds}.")
    order = np.random.default_rng(random_state).permutation(n)
    return Folds(ratings, np.array_split(order, folds), random_state)


def split_from_pair(
    train: RatingsLike,
    test: RatingsLike,
    *,
    history: RatingsLike | None = None,
    method: str = "given",
    parameters: dict[str, Any] | None = None,
) -> Split:
    """Make a split of data sets that were read separately.

    The parts get the same indices. Users and items that only the test data have stay in, without
    training ratings, until `Split.without_new` drops them.

    Parameters
    ----------
    train, test : Ratings
    history : Ratings, optional
        What else the users of `test` have rated, if they are not in `train`.
    method, parameters
        How the split was made, if that is known; as in `Split`.

    Raises
    ------
    DataError
        If a pair of user and item is in both, or no test rating is of a known user and item.
    """
    train, test = as_ratings(train), as_ratings(test)
    history = None if history is None else as_ratings(history)
    seen = train if history is None else history
    users = _union(seen.users, test.users)
    parts = [train, test] if history is None else [train, test, history]
    items = train.items
    for part in parts:
        items = _union(items, part.items)
    split = Split(
        _aligned(train, users if history is None else train.users, items),
        _aligned(test, users, items),
        None if history is None else _aligned(history, users, items),
        method,
        dict(parameters or {}),
    )
    if split.new_ratings == split.test.n_ratings:
        raise DataError(NOTHING_KNOWN)
    split.check()
    return split


def _union(known: Ids, others: Ids) -> Ids:
    """Return all ids; those of `known` decide whether they are integers or strings."""
    unknown = others.values.filter(known.find(others.values) < 0)
    if not len(unknown):
        return known
    if unknown.dtype != known.dtype:
        return Ids(pl.concat([known.values.cast(pl.String), unknown.cast(pl.String)]), known.kind)
    return Ids(pl.concat([known.values, unknown]), known.kind)


def _aligned(part: Ratings, users: Ids, items: Ids) -> Ratings:
    """Return the same ratings under the indices of `users` and `items`."""
    if part.users == users and part.items == items:
        return replace(part, users=users, items=items)
    rows = users.find(part.users.values)[part.user_index_of_nonzeros()]
    columns = items.find(part.items.values)[part.indices]
    keys = rows * np.int64(len(items)) + columns
    order = np.arange(len(keys)) if np.all(np.diff(keys) > 0) else np.argsort(keys)
    indptr = np.zeros(len(users) + 1, dtype=np.int64)
    np.cumsum(np.bincount(rows, minlength=len(users)), out=indptr[1:])
    return replace(
        part,
        users=users,
        items=items,
        indptr=indptr,
        indices=columns[order].astype(np.int32),
        values=part.values[order],
        timestamps=None if part.timestamps is None else part.timestamps[order],
    )


def refuse_overlap(seen: Ratings, test: Ratings) -> None:
    """Refuse test pairs that are among the seen ones; both have the same indices.

    Raises
    ------
    DataError
        Naming the first such pair and how many there are.
    """
    known, asked = pair_keys(seen), pair_keys(test)
    if not len(known):
        return
    places = np.minimum(np.searchsorted(known, asked), len(known) - 1)
    common = np.flatnonzero(known[places] == asked)
    if not len(common):
        return
    user = test.users.take(test.user_index_of_nonzeros()[common[:1]])[0]
    item = test.items.take(test.indices[common[:1]])[0]
    raise DataError(
        f"{_counted(len(common), 'test ratings', 'a training rating', 'training ratings')} as well, "
        f"the first of user {user!r} for item {item!r}; what is tested must not have been learnt."
    )


def refuse_known_users(train: Ratings, test: Ratings) -> None:
    """Refuse training ratings of users who are folded in for the test.

    Raises
    ------
    DataError
        Naming the first such user and how many there are.
    """
    places = train.users.find(test.users.values)
    both = np.flatnonzero((places >= 0) & has_ratings(train)[places])
    if len(both):
        raise DataError(
            f"{len(both):,} of the held-out users {'has' if len(both) == 1 else 'have'} training "
            "ratings, the first "
            f"{test.users.take(both[:1])[0]!r}; who is folded in must not have been learnt from."
        )


def refuse_future(train: Ratings, test: Ratings, cut: int) -> None:
    """Refuse training ratings from the time of the cut on, and test ratings before it.

    Raises
    ------
    DataError
        With the first such time and how many ratings there are.
    """
    what = "a split at a point in time"
    for part, wrong in ((train, times_of(train, what) >= cut), (test, times_of(test, what) < cut)):
        if wrong.any():
            raise DataError(_on_the_wrong_side(part, wrong, cut, is_training=part is train))


def _on_the_wrong_side(part: Ratings, wrong: Mask, cut: int, *, is_training: bool) -> str:
    name, right = ("training", "before then") if is_training else ("test", "from then on")
    first = times_of(part, name)[wrong][0]
    place = "on the wrong side of the cut"
    return (
        f"{_counted(np.count_nonzero(wrong), f'{name} ratings', place, place)} at "
        f"{cut}, the first at {first}; they must be {right}."
    )


def _counted(n: int | np.integer[Any], of: str, one: str, several: str) -> str:
    return f"{n:,} of the {of} {f'is {one}' if n == 1 else f'are {several}'}"


def has_ratings(ratings: Ratings) -> Mask:
    """Return which users have ratings, shape (n_users,)."""
    return np.diff(ratings.indptr) > 0


def has_items(ratings: Ratings) -> Mask:
    """Return which items have ratings, shape (n_items,)."""
    found = np.zeros(ratings.n_items, dtype=np.bool_)
    found[ratings.indices] = True
    return found


def pair_keys(ratings: Ratings) -> NDArray[np.int64]:
    """Return one number for each pair of user and item, increasing, shape (nnz,)."""
    return ratings.user_index_of_nonzeros() * np.int64(ratings.n_items) + ratings.indices


def restricted(ratings: Ratings, users: Mask, items: Mask) -> Ratings:
    """Return the ratings of some items by some users, who get indices of their own.

    Parameters
    ----------
    ratings : Ratings
        Returned as they are where nobody and nothing is left out.
    users : bool ndarray of shape (n_users,)
    items : bool ndarray of shape (n_items,)
    """
    if users.all() and items.all():
        return ratings
    part = ratings.take(users[ratings.user_index_of_nonzeros()] & items[ratings.indices])
    index = np.cumsum(items, dtype=np.int32) - np.int32(1)
    return replace(
        part,
        users=_some(ratings.users, users),
        items=_some(ratings.items, items),
        indptr=np.append(part.indptr[:1], part.indptr[1:][users]),
        indices=index[part.indices],
    )


def fingerprint(*parts: Ratings) -> str:
    """Return a SHA-256 over pairs of ids and their values, whatever file they came from.

    Users and items without ratings do not count.
    """
    digest = hashlib.sha256()
    for each in parts:
        part = restricted(each, has_ratings(each), has_items(each))
        for ids in (part.users, part.items):
            digest.update("\n".join(map(str, ids.values.to_list())).encode())
        arrays: tuple[tuple[NDArray[Any], str], ...] = (
            (part.indptr, "<i8"),
            (part.indices, "<i4"),
            (part.values, "<f4"),
        )
        for array, dtype in arrays:
            digest.update(np.ascontiguousarray(array.astype(dtype, copy=False)).data)
    return f"sha256:{digest.hexdigest()}"


def times_of(ratings: Ratings, what: str) -> NDArray[np.int64]:
    """Return the times of the ratings, which `what` needs.

    Raises
    ------
    DataError
        If they have none, or are no `Ratings`.
    """
    ratings = as_ratings(ratings)
    if ratings.timestamps is None:
        raise DataError(
            f"{what} needs the times of the ratings, but these have none; part them at random "
            "or by user."
        )
    return ratings.timestamps


def _some(ids: Ids, mask: Mask) -> Ids:
    return ids if mask.all() else Ids(ids.values.filter(mask), ids.kind)
