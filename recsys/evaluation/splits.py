"""Splits of ratings into training and test data."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypeAlias, get_args

import numpy as np

from recsys.data.arrays import Longs, Mask, positions_of
from recsys.data.frames import FrameLike
from recsys.data.ratings import (
    Ratings,
    has_items,
    has_ratings,
    pair_keys,
    restricted,
)
from recsys.data.times import Moment, moment, shown_time
from recsys.errors import DataError, check_choice, check_whole, is_number
from recsys.messages import counted, worded
from recsys.models.holdout import last_events, next_events
from recsys.readers import as_ratings

NOTHING_KNOWN = (
    "No test rating has both a user and an item with training ratings, so nothing can be "
    "measured; hold out fewer ratings, or at random if these are the newest, or fold in new "
    "users and predict each position of their histories (--positions, positions=True)."
)

FRACTION = 0.1
_LARGEST_SHARE = 0.5  # of the events, to hold out by time without a request
FOLDS = 5
CUTS = 6
OF_CUTS = 0.5  # share of the events in the windows of `time_cuts`

DESCRIPTIONS = {
    "random": "{test_fraction:.0%} of the ratings, at random (seed {random_state})",
    "per-user": "{test_fraction:.0%} of each user's ratings, at random (seed {random_state})",
    "leave-last": "each user's last {events}",
    "sessions": "the sessions that end since {moment}",
    "time": "the ratings since {moment}",
    "k-fold": "fold {fold} of {folds} of the ratings, at random (seed {random_state})",
    "users": "{test_fraction:.0%} of the ratings of {user_fraction:.0%} of the users, who are "
    "folded in from their other ratings (seed {random_state})",
    "items": "all ratings of {item_fraction:.0%} of the items, and {test_fraction:.0%} of the "
    "other ratings (seed {random_state})",
    "users-cold": "all ratings of {user_fraction:.0%} of the users, and {test_fraction:.0%} of the "
    "other ratings (seed {random_state})",
}
PARAMETERS_OF = {"moment": "cut", "events": "k"}
"""Parameters that are described in other words."""
Repeats = Literal["drop", "keep"]
"""Treatment of test pairs of user and item that the training part has, too."""

COLD = ("items", "users-cold")  # methods that hold out all ratings of items or users

RatingsLike: TypeAlias = "Ratings | FrameLike | str | os.PathLike[str]"
"""Ratings, a frame of them, or the path of a file."""


@dataclass(frozen=True, slots=True)
class Split:
    """Training and test ratings; unpacks as ``train, test``.

    Attributes
    ----------
    train, test : Ratings
        Both index items alike, and users, too, unless there is a `history`.
    history : Ratings or None
        Other ratings of test users who are not in the training part, from which a model folds them
        in. `history` and `test` index users alike.
    method : str
        "random", "per-user", "leave-last", "time", "sessions", "k-fold", "users", "items",
        "users-cold", or "given" for two given data sets.
    parameters : dict
        Parameters of the method, as JSON values; the `cut` of "time" and "sessions" is in
        seconds since 1970.
    repeats : {"drop", "keep"}
        Whether test pairs that the training part has, too, were left out, or are tested. If kept,
        items are recommended to users who have had them.
    n_known : int
        Number of test pairs that were left out because the training part has them.

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
    repeats: Repeats = "drop"
    n_known: int = 0

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
        return (
            self.train,
            self.test,
            *([] if self.history is None else [self.history]),
        )

    @property
    def seen(self) -> Ratings:
        """Earlier ratings of the test users: `history`, or else the training ratings."""
        return self.train if self.history is None else self.history

    @property
    def new_users(self) -> int:
        """Number of test users without earlier ratings."""
        return int(np.count_nonzero(has_ratings(self.test) & ~has_ratings(self.seen)))

    @property
    def new_items(self) -> int:
        """Number of test items without a training rating."""
        return int(np.count_nonzero(has_items(self.test) & ~has_items(self.train)))

    @property
    def is_new(self) -> Mask:
        """Mask of the test ratings by new users or of new items, shape (n_test,)."""
        has_history = has_ratings(self.seen)[self.test.user_index_of_nonzeros()]
        return ~(has_history & has_items(self.train)[self.test.indices])

    @property
    def new_ratings(self) -> int:
        """Number of test ratings by new users or of new items."""
        return int(np.count_nonzero(self.is_new))

    @property
    def description(self) -> str:
        """Description of the test part in words."""
        template = DESCRIPTIONS.get(self.method, "a given pair of data sets")
        k = self.parameters.get("k", 1)
        events = "event" if k == 1 else f"{k} events"
        if self.repeats == "drop":
            events += " whose item is new to the user"
        if self.method == "time" and "k" in self.parameters:
            template = "each user's next {events}, since {moment}"
        moment = shown_time(self.parameters.get("cut", 0))
        if "until" in self.parameters:
            template += f", before {shown_time(self.parameters['until'])}"
        text = template.format(**self.parameters, moment=moment, events=events)
        return worded(text, implicit=self.train.implicit)

    def check(self) -> None:
        """Check that the parts do not overlap.

        Raises
        ------
        DataError
            If the test part and the training part (or history) share a pair of user and item, a
            user with a history has training ratings, or a rating is on the wrong side of the cut.
        """
        test = self.test
        common = np.flatnonzero(has_pairs(self.seen, pair_keys(test)))
        if len(common) and self.repeats == "drop":
            user = test.users.take(test.user_index_of_nonzeros()[common[:1]])[0]
            item = test.items.take(test.indices[common[:1]])[0]
            raise DataError(
                f"The training part contains {len(common):,} of the test ratings, the first of "
                f"user {user!r} for item {item!r}; hold out other ratings."
            )
        if self.history is not None:
            user_indices = self.train.users.find(test.users.values)
            both = np.flatnonzero(
                (user_indices >= 0) & has_ratings(self.train)[user_indices]
            )
            if len(both):
                raise DataError(
                    f"The training part has ratings of {counted(len(both), 'held-out user')}, the "
                    f"first {test.users.take(both[:1])[0]!r}; users that are folded in must be new."
                )
        cut = self.parameters.get("cut")
        if cut is None:
            return
        for name, part, side in (
            ("training", self.train, "older"),
            ("test", test, "newer"),
        ):
            times = _timestamps(part, "a split by time")
            if self.method == "sessions":
                times = _ends(part)
            # A time of training is wrong from the cut on, a time of the test before it.
            wrong = times[(times >= cut) == (part is self.train)]
            if len(wrong):
                raise DataError(
                    f"The {name} part has {counted(len(wrong), 'rating')} on the wrong side of the "
                    f"cut at {cut}, the first at {wrong[0]}; they must be {side}."
                )

    def without_new(self) -> Split:
        """Return the split without users and items that have no earlier ratings.

        Users with training ratings (or a history) and items with training ratings are kept.
        """
        users, items = has_ratings(self.seen), has_items(self.train)
        train = restricted(self.train, has_ratings(self.train), items)
        history = (
            None if self.history is None else restricted(self.history, users, items)
        )
        return replace(
            self, train=train, test=restricted(self.test, users, items), history=history
        )


def random_split(
    ratings: RatingsLike,
    test_fraction: float = FRACTION,
    random_state: int = 0,
) -> Split:
    """Hold out random ratings.

    The test part is the first ``round(n * test_fraction)`` entries of
    ``numpy.random.default_rng(random_state).permutation(n)``, as positions among the n ratings in
    CSR order (by user, then item). Both parts index all users and items, even without ratings.

    Raises
    ------
    DataError
        If either part would be empty.
    """
    data = as_ratings(ratings)
    n = data.n_ratings
    order = _rng(random_state).permutation(n)
    held_out = _mask(n, order[: _n_test(n, test_fraction)])
    shares = {"test_fraction": test_fraction}
    return _split(data, held_out, "random", shares, random_state)


def per_user_split(
    ratings: RatingsLike,
    test_fraction: float = FRACTION,
    random_state: int = 0,
) -> Split:
    """Hold out random ratings of each user.

    Of n ratings of a user, ``floor(n * test_fraction + 1/2)`` are held out, but never all.

    Raises
    ------
    DataError
        If either part would be empty.
    """
    data = as_ratings(ratings)
    held_out = _random_mask(data, test_fraction, random_state)
    _n_test(data.n_ratings, test_fraction, int(np.count_nonzero(held_out)))
    shares = {"test_fraction": test_fraction}
    return _split(data, held_out, "per-user", shares, random_state)


def leave_last_split(
    ratings: RatingsLike,
    k: int = 1,
    random_state: int = 0,
    *,
    repeats: Repeats = "drop",
) -> Split:
    """Hold out the last k new items of each user by time, but never all.

    A user's events are cut before the k-th last event whose item is new to the user: the older ones
    are for training, the others are tested, without the items that the training part has. With
    ``repeats="keep"``, the last k events are held out, new or not.

    Events at the same time are in the order of the rows if the rows are in the order of time, and
    otherwise in a random order. Training ratings of other users may be newer than a user's test
    ratings; only `time_split` trains on the past alone.

    Raises
    ------
    DataError
        If k is not a whole number from 1, the ratings have no timestamps, or no user has two.

    References
    ----------
    Meng et al. (2020), "Exploring data splitting strategies for the evaluation of recommendation
    models", which shows that the choice of the split changes the ranking of models.
    """
    check_whole("k", k, 1)
    check_whole("random_state", random_state, 0)
    data = as_ratings(ratings)
    _timestamps(data, "leave_last_split")
    held_out = last_events(data, k, random_state, only_new=repeats == "drop")
    if not held_out.any():
        raise DataError("No user has two ratings, so none can be held out.")
    parameters = {"k": k, "random_state": random_state}
    return _split_events(data, held_out, "leave-last", parameters, repeats)


def time_split(
    ratings: RatingsLike,
    test_fraction: float = FRACTION,
    *,
    cut: Moment | None = None,
    k: int | None = None,
    repeats: Repeats = "drop",
) -> Split:
    """Hold out the newest events, so that models learn from the past only.

    The ratings of each part are made of its own events, by the rule of the given ratings. Pairs of
    user and item in both parts are then left out of the test part (see `Split.n_known`).

    Parameters
    ----------
    ratings : Ratings, frame or path
        Ratings with timestamps.
    test_fraction : float
        Share of the newest events. All events at the timestamp of the cut are held out, unless it
        is the oldest one and the training part would be empty.
    cut : int, str, date or datetime, optional
        Point in time from which events are held out, instead of a share: seconds since 1970-01-01
        UTC, or a date or time such as "2015-01-01".
    k : int, optional
        Number of the next events of each user to test, by default all later ones. With
        ``repeats="drop"``, only events whose item is new to the user are counted.
    repeats : {"drop", "keep"}
        Whether to leave out test pairs that the training part has.

    Raises
    ------
    DataError
        If the ratings have no timestamps, the cut cannot be read, or either part would be empty.

    Examples
    --------
    >>> import polars as pl
    >>> rows = {"user": [1, 1, 2, 2], "item": [7, 8, 7, 8], "timestamp": [10, 40, 30, 20]}
    >>> split = time_split(pl.DataFrame(rows), 0.5)
    >>> split.test.to_frame().rows(), split.description
    ([(1, 8, 40), (2, 7, 30)], 'the interactions since 1970-01-01 00:00:30 UTC')
    """
    data = as_ratings(ratings)
    times = _event_times(data, "time_split")
    if cut is None:
        cut = _cut(times, test_fraction)
    elif not is_number(cut):
        cut = moment(cut, "cut")
    held_out = times >= cut
    if held_out.all() or not held_out.any():
        raise DataError(
            f"A cut at {cut} leaves one part empty: the timestamps are between "
            f"{times.min()} and {times.max()}."
        )
    parameters = {"test_fraction": test_fraction, "cut": cut}
    tested = held_out
    if k is not None:
        check_whole("k", k, 1)
        parameters["k"] = k
        tested = next_events(data, held_out, k, only_new=repeats == "drop")
    return _split_events(data, held_out, "time", parameters, repeats, tested)


def time_cuts(
    ratings: RatingsLike,
    cuts: int = CUTS,
    test_fraction: float = OF_CUTS,
    *,
    repeats: Repeats = "drop",
) -> list[Split]:
    """Split at several moments: each trains on all before, and tests until the next one.

    `evaluate` fits models again at each cut, as a service does, and also measures the models of
    the first cut in later windows (see `Evaluation.staleness`).

    Parameters
    ----------
    ratings : Ratings, frame or path
        Ratings with timestamps.
    cuts : int
        Number of cuts, and of windows. Windows do not overlap, and have the same number of events
        up to the events at the time of a cut, which are all in the later window.
    test_fraction : float
        Share of the events in all windows together: the newest ones.
    repeats : {"drop", "keep"}
        Whether to leave out the test pairs that the training part has.

    Raises
    ------
    DataError
        If the ratings have no timestamps, or too few different ones.

    Examples
    --------
    >>> import polars as pl
    >>> rows = {"user": [1, 1, 2, 2], "item": [7, 8, 7, 8], "timestamp": [10, 40, 30, 20]}
    >>> for split in time_cuts(pl.DataFrame(rows), 2):
    ...     split.test.to_frame().rows(), split.description
    ([(2, 7, 30)], 'the interactions since 1970-01-01 00:00:30 UTC, before 1970-01-01 00:00:40 UTC')
    ([(1, 8, 40)], 'the interactions since 1970-01-01 00:00:40 UTC')
    """
    check_whole("cuts", cuts, 2)
    data = as_ratings(ratings)
    times = _event_times(data, "time_cuts")
    n_test = _n_test(len(times), test_fraction)
    first = len(times) - n_test
    starts = first + np.arange(cuts) * n_test // cuts
    moments = np.sort(times)[starts]
    if n_test < cuts or (np.diff(moments, prepend=times.min()) <= 0).any():
        raise DataError(
            f"{cuts} cuts need {cuts} different times, all later than the oldest event; the "
            f"newest {counted(n_test, 'event')} do not have them. Use fewer cuts."
        )
    splits = []
    for number, cut in enumerate(moments.tolist()):
        held_out = times >= cut
        parameters = {
            "test_fraction": test_fraction,
            "cut": cut,
            "window": number + 1,
            "windows": cuts,
        }
        tested = held_out
        if number + 1 < cuts:
            until = int(moments[number + 1])
            parameters["until"] = until
            tested = held_out & (times < until)
        split = _split_events(data, held_out, "time", parameters, repeats, tested)
        splits.append(split)
    return splits


def sessions_split(
    ratings: RatingsLike,
    test_fraction: float = FRACTION,
    *,
    repeats: Repeats = "drop",
) -> Split:
    """Hold out the last sessions whole; a session has the id of a user.

    Sessions that end at the same time are in the same part. `evaluate` predicts each position
    of a test session from what comes before it.

    Parameters
    ----------
    ratings : Ratings, frame or path
        Interactions with timestamps; users are sessions.
    test_fraction : float
        Share of the sessions to hold out: those that end last.
    repeats : {"drop", "keep"}
        Whether `evaluate` leaves out positions whose item came before in the session.

    Raises
    ------
    DataError
        If the ratings have no timestamps, or either part would be empty.

    Examples
    --------
    >>> import polars as pl
    >>> rows = {"user": [1, 1, 2, 2], "item": [7, 8, 7, 8], "timestamp": [10, 40, 30, 20]}
    >>> split = sessions_split(pl.DataFrame(rows), 0.5)
    >>> split.test.to_frame().rows(), split.description
    ([(1, 7, 10), (1, 8, 40)], 'the sessions that end since 1970-01-01 00:00:40 UTC')
    """
    data = as_ratings(ratings)
    _timestamps(data, "sessions_split")
    ends = _ends(data)
    n_test = 0
    if 0 < test_fraction < 1:
        n_test = round(len(ends) * test_fraction)
    cut = int(np.sort(ends)[-n_test]) if n_test else 0
    if not n_test or cut == ends.min():
        raise DataError(
            "test_fraction must be between 0 and 1 and leave both parts non-empty; got "
            f"{test_fraction} of {counted(len(ends), 'session')}."
        )
    log = data.log
    of_user = np.full(data.n_users, cut - 1)
    of_user[np.diff(log.indptr) > 0] = ends
    held_out = of_user[log.users] >= cut
    parameters = {"test_fraction": test_fraction, "cut": cut}
    return _split_events(data, held_out, "sessions", parameters, repeats)


def _ends(ratings: Ratings) -> Longs:
    """Return the whole second of the last event of each user who has events."""
    log = ratings.log
    starts = log.indptr[:-1][np.diff(log.indptr) > 0]
    latest = np.maximum.reduceat(np.asarray(log.seconds), starts)
    return np.floor(latest).astype(np.int64)


def _split_events(
    ratings: Ratings,
    held_out: Mask,
    method: str,
    parameters: dict[str, Any],
    repeats: Repeats,
    tested: Mask | None = None,
) -> Split:
    """Return the split that holds out the marked events, and tests them or the `tested` ones.

    Raises
    ------
    DataError
        If the training part has all pairs of the test part.
    """
    check_choice("repeats", repeats, get_args(Repeats))
    train = ratings.of_events(~held_out)
    # Metrics count interactions without weights, so the test part does not age.
    test = ratings.of_events(held_out if tested is None else tested, aged=False)
    n_known = 0
    if repeats == "drop":
        test, n_known = without_pairs_of(train, test)
    return Split(train, test, None, method, parameters, repeats, n_known)


def without_pairs_of(train: Ratings, test: Ratings) -> tuple[Ratings, int]:
    """Leave out the test pairs that the training part has, and return their number.

    Raises
    ------
    DataError
        If no test pair remains.
    """
    in_train = has_pairs(train, pair_keys(test))
    n_known = int(np.count_nonzero(in_train))
    if n_known and n_known == test.n_ratings:
        raise DataError(
            f"The training part has all {counted(n_known, 'pair')} of the test part, so that "
            "nothing new is tested; --repeats keep (repeats='keep') tests repeated pairs, too."
        )
    return (test.take(~in_train) if n_known else test), n_known


def _cut(times: Longs, test_fraction: float) -> int:
    """Return the time of the oldest event to hold out."""
    n_test = _n_test(len(times), test_fraction)
    # The time of the oldest of the n_test newest events, without sorting them all.
    cut = int(np.partition(times, len(times) - n_test)[len(times) - n_test])
    if cut == times.min() < times.max():
        cut = int(times[times > cut].min())
    return cut


def default_split(
    ratings: RatingsLike,
    test_fraction: float = FRACTION,
    random_state: int = 0,
    *,
    repeats: Repeats = "drop",
) -> Split:
    """Hold out the newest ratings, or random ones if times do not tell the newest from most."""
    data = as_ratings(ratings)
    if data.seconds is None or not len(data.seconds):
        return random_split(data, test_fraction, random_state)
    times = _event_times(data, "time_split")
    if times.min() == times.max():
        return random_split(data, test_fraction, random_state)
    # Coarse times, such as years, have no cut near the fraction.
    share = np.mean(times >= _cut(times, test_fraction))
    if share > max(_LARGEST_SHARE, 2 * test_fraction):
        return random_split(data, test_fraction, random_state)
    return time_split(data, test_fraction, repeats=repeats)


def held_out_users(
    ratings: RatingsLike,
    user_fraction: float = FRACTION,
    test_fraction: float = 0.2,
    random_state: int = 0,
) -> Split:
    """Hold out users, and let models fold them in from a part of their ratings.

    Parameters
    ----------
    ratings : Ratings, frame or path
    user_fraction : float
        Share of the users with at least two ratings to hold out at random.
    test_fraction : float
        Share of each held-out user's ratings to test, at least one; the rest is the history.
    random_state : int

    Raises
    ------
    DataError
        If any part would be empty.

    References
    ----------
    Marlin (2004), "Collaborative filtering: a machine learning perspective", which
    introduces strong generalisation: tests on users outside the training data.

    Examples
    --------
    >>> import polars as pl
    >>> rows = {"user": [1, 1, 2, 2, 3, 3], "item": [7, 8, 7, 8, 7, 8]}
    >>> split = held_out_users(pl.DataFrame(rows), 0.4)
    >>> [part.n_ratings for part in (split.train, split.history, split.test)]
    [4, 1, 1]
    """
    data = as_ratings(ratings)
    counts = data.counts("user")
    if not 0 < test_fraction < 1:
        raise DataError(f"test_fraction must be between 0 and 1; got {test_fraction}.")
    n_rated = int(np.count_nonzero(counts))
    # A held-out user needs one rating for the history and one for the test.
    held = _held(counts >= 2, "user_fraction", user_fraction, random_state, n_rated)
    every = np.ones(data.n_items, dtype=np.bool_)
    of_held_users = restricted(data, held, every)
    tested = _random_mask(of_held_users, test_fraction, random_state, at_least=1)
    shares = {"user_fraction": user_fraction, "test_fraction": test_fraction}
    return Split(
        train=restricted(data, ~held, every),
        test=of_held_users.take(tested),
        history=of_held_users.with_events_of(~tested),
        method="users",
        parameters=shares | {"random_state": random_state},
    )


def held_out_items(
    ratings: RatingsLike,
    item_fraction: float = FRACTION,
    test_fraction: float = FRACTION,
    random_state: int = 0,
) -> Split:
    """Hold out all ratings of some items, which models can then predict from features only.

    `evaluate` ranks these items among themselves. A share of the other ratings is held out, too, so
    that errors can be compared between items with training ratings (warm) and without (cold).

    Parameters
    ----------
    ratings : Ratings, frame or path
    item_fraction : float
        Share of the items with ratings to hold out at random.
    test_fraction : float
        Share of the ratings of the other items to hold out at random.
    random_state : int

    Raises
    ------
    DataError
        If any part would be empty.

    Examples
    --------
    >>> import polars as pl
    >>> rows = {"user": [1, 1, 2, 2, 3, 3], "item": [7, 8, 7, 9, 8, 9]}
    >>> train, test = held_out_items(pl.DataFrame(rows), 0.34, 0.25)
    >>> train.n_ratings, test.n_ratings
    (3, 3)
    """
    data = as_ratings(ratings)
    held = _held(has_items(data), "item_fraction", item_fraction, random_state)
    shares = {"item_fraction": item_fraction, "test_fraction": test_fraction}
    return _cold_split(data, held[data.indices], "items", shares, random_state)


def held_out_cold_users(
    ratings: RatingsLike,
    user_fraction: float = FRACTION,
    test_fraction: float = FRACTION,
    random_state: int = 0,
) -> Split:
    """Hold out all ratings of some users, for whom models can then use features only.

    Parameters are as for `held_out_items`, for users instead of items. `held_out_users` keeps a
    history of each held-out user instead.

    Raises
    ------
    DataError
        If any part would be empty.
    """
    data = as_ratings(ratings)
    held = _held(has_ratings(data), "user_fraction", user_fraction, random_state)
    of_rating = held[data.user_index_of_nonzeros()]
    shares = {"user_fraction": user_fraction, "test_fraction": test_fraction}
    return _cold_split(data, of_rating, "users-cold", shares, random_state)


def _held(
    eligible: Mask,
    name: str,
    fraction: float,
    random_state: int,
    n_rated: int | None = None,
) -> Mask:
    """Draw a share of the eligible users or items, but not all with ratings."""
    candidates = np.flatnonzero(eligible)
    n_held = round(len(candidates) * fraction) if 0 < fraction < 1 else 0
    if not 0 < n_held < (n_rated or len(candidates)):
        raise DataError(
            f"{name} must be between 0 and 1 and leave both parts non-empty; "
            f"got {fraction} of {len(candidates):,}."
        )
    rng = _rng(random_state)
    return _mask(len(eligible), rng.permutation(candidates)[:n_held])


def _cold_split(
    data: Ratings,
    held: Mask,
    method: str,
    shares: dict[str, float],
    random_state: int,
) -> Split:
    """Return the split that holds out the marked ratings and a random share of the others."""
    not_held = np.flatnonzero(~held)
    n_test = _n_test(len(not_held), shares["test_fraction"])
    # Another stream of numbers than the one that has drawn the held-out ids.
    drawn = _rng(random_state, 1).permutation(not_held)[:n_test]
    return _split(data, held | _mask(len(held), drawn), method, shares, random_state)


def _timestamps(ratings: Ratings, what: str) -> Longs:
    """Return the timestamps of ratings, which must have some."""
    if ratings.timestamps is None:
        raise DataError(
            f"{what} requires timestamps, but the ratings have none; use random_split or "
            "per_user_split."
        )
    return ratings.timestamps


def _event_times(ratings: Ratings, what: str) -> Longs:
    """Return the times of events in whole seconds, as `Split.check` compares them with a cut."""
    _timestamps(ratings, what)
    times: Longs = np.floor(np.asarray(ratings.log.seconds)).astype(np.int64)
    return times


def _rng(random_state: int, *more: int) -> np.random.Generator:
    """Return the random generator of a split, whose seed must be a number to be saved."""
    check_whole("random_state", random_state, 0)
    return np.random.default_rng([random_state, *more] if more else random_state)


def _mask(n: int, chosen: Longs) -> Mask:
    """Return n flags, True at the chosen places."""
    mask = np.zeros(n, dtype=np.bool_)
    mask[chosen] = True
    return mask


def _split(
    ratings: Ratings,
    held_out: Mask,
    method: str,
    parameters: dict[str, Any],
    random_state: int,
) -> Split:
    """Return the split that holds out the marked ratings."""
    train = ratings.with_events_of(~held_out)
    parameters = parameters | {"random_state": random_state}
    return Split(train, ratings.take(held_out), None, method, parameters)


def _n_test(
    n: int,
    fraction: float,
    n_test: int | None = None,
) -> int:
    """Return the number of test ratings, by default from the fraction; check both parts."""
    if n_test is None:
        n_test = round(n * fraction) if 0 < fraction < 1 else 0
    if not 0 < n_test < n:
        raise DataError(
            "test_fraction must be between 0 and 1 and leave both parts non-empty; "
            f"got {fraction} of {counted(n, 'rating')}."
        )
    return n_test


def _random_mask(
    ratings: Ratings,
    fraction: float,
    random_state: int,
    *,
    at_least: int = 0,
) -> Mask:
    """Draw the rounded share of each user's ratings, but never all."""
    share = fraction if 0 < fraction < 1 else 0.0
    counts = np.diff(ratings.indptr)
    # `round` takes halves to the even number: a tenth of 5 ratings would be none.
    n_selected = np.maximum(np.floor(counts * share + 0.5).astype(np.int64), at_least)
    keys = _rng(random_state).random(ratings.n_ratings)
    order = np.lexsort((keys, ratings.user_index_of_nonzeros()))
    # Position of each rating within its user, in the random order.
    ranks = np.empty(ratings.n_ratings, dtype=np.int64)
    ranks[order] = np.arange(ratings.n_ratings) - np.repeat(ratings.indptr[:-1], counts)
    return ranks < np.repeat(np.minimum(n_selected, counts - 1), counts)


class Folds(Sequence[Split]):
    """The splits of `k_fold`, each made when it is accessed."""

    def __init__(
        self,
        ratings: Ratings,
        tests: list[Longs],
        random_state: int,
    ) -> None:
        self._ratings = ratings
        self._tests = tests
        self._random_state = random_state

    def __len__(self) -> int:
        return len(self._tests)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return [self[number] for number in range(len(self))[index]]
        held_out = _mask(self._ratings.n_ratings, self._tests[index])
        fold = range(1, len(self) + 1)[index]
        numbers = {"fold": fold, "folds": len(self)}
        return _split(self._ratings, held_out, "k-fold", numbers, self._random_state)


def k_fold(
    ratings: RatingsLike,
    folds: int = FOLDS,
    random_state: int = 0,
) -> Folds:
    """Return one split for each fold, which tests that fold; splits are made on access.

    Folds are consecutive slices of ``numpy.random.default_rng(random_state).permutation(n)``; the
    first ``n % folds`` have one more rating than the others.

    Raises
    ------
    DataError
        If folds is not a whole number from 2 to the number of ratings.

    Examples
    --------
    >>> import polars as pl
    >>> rows = {"user": [1, 1, 2, 2, 3], "item": [7, 8, 7, 8, 7]}
    >>> [split.test.n_ratings for split in k_fold(pl.DataFrame(rows), 3)]
    [2, 2, 1]
    """
    data = as_ratings(ratings)
    n = data.n_ratings
    check_whole("folds", folds, 2)
    if folds > n:
        raise DataError(
            f"folds must be at most the number of ratings, {n:,}; got {folds}."
        )
    order = _rng(random_state).permutation(n)
    return Folds(data, np.array_split(order, folds), random_state)


def has_pairs(ratings: Ratings, keys: Longs) -> Mask:
    """Mark the keys (see `pair_keys`) of pairs that have a rating."""
    return positions_of(keys, pair_keys(ratings)) >= 0
