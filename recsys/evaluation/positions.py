"""Positions: the events of test histories, each with what came before it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import polars as pl

from lowrank import kernels
from recsys.data.arrays import Array, Doubles, Floats, Ints, Longs, Mask
from recsys.data.csr import Events, Values
from recsys.data.events import aggregate, event_weights, repeated
from recsys.data.kinds import EventRule
from recsys.data.ratings import Ratings
from recsys.errors import DataError
from recsys.evaluation.splits import Repeats, Split
from recsys.models.histories import Histories
from recsys.models.holdout import event_order

_BLOCK = 2**20  # events of the histories that are folded in together
_LEAST_WEIGHT = np.float32(1e-12)  # of an old event, so that it does not underflow

NO_POSITIONS = "No test event to predict comes after another event of its user."


@dataclass(frozen=True, slots=True, eq=False)
class Positions:
    """Test events to predict, each from the earlier events of its user.

    Attributes
    ----------
    items, weights, seconds : ndarrays of shape (n_events,)
        Earlier and test events of each test user in the order of time. Items have the indices
        of the model; -1 stands for an item that it lacks.
    places : int64 ndarray of shape (n_positions,)
        Place of each event to predict.
    starts : int64 ndarray of shape (n_positions,)
        Place of the first event of its user.
    users : int64 ndarray of shape (n_positions,)
        Index of the user among the test users, ascending.
    n_users, n_items : int
    newest : float
        Time of the newest training event, from which the age of events counts.
    """

    items: Ints
    weights: Floats
    seconds: Doubles
    places: Longs
    starts: Longs
    users: Longs
    n_users: int
    n_items: int
    rule: EventRule
    implicit: bool
    newest: float

    @classmethod
    def of(
        cls,
        split: Split,
        item_indices: Longs,
        n_items: int,
        repeats: Repeats,
        relevant_from: float | None = None,
        random_state: int = 0,
    ) -> Positions:
        """Return the positions of the test part of a split.

        `item_indices` has the index in the model of each item of the split, or -1. Positions
        need an earlier event of the user. Repetitions in the same second are left out, and
        with ``repeats="drop"`` items that came before. A test rating below `relevant_from`
        is not predicted, but belongs to the history.

        Raises
        ------
        DataError
            If test events have no times, or there are no positions.
        """
        is_test_user = split.test.counts("user") > 0
        earlier = _timed_events(split.seen, is_test_user, random_state)
        tested = _timed_events(split.test, is_test_user, random_state)
        parts = [
            earlier.with_columns(is_tested=False),
            tested.with_columns(is_tested=True),
        ]
        # Equal times keep their order: training events come first.
        frame = pl.concat(parts).sort("users", "seconds", maintain_order=True)
        users, items, weights, seconds, is_tested = (
            column.to_numpy() for column in frame
        )
        indptr = np.append(
            0, np.cumsum(np.bincount(users, minlength=len(is_test_user)))
        )
        starts = indptr[users]
        is_position = is_tested & (np.arange(len(users)) > starts)
        is_position &= ~repeated(Events(indptr, items, seconds=seconds))
        if split.test.implicit:
            # What was returned or disliked is not to be recommended.
            is_position &= weights > (split.test.rule.above or 0.0)
        if relevant_from is not None:
            is_position &= weights >= relevant_from
        if repeats == "drop":
            is_position &= ~repeated(Events(indptr, items))
        places = np.flatnonzero(is_position)
        if not len(places):
            raise DataError(NO_POSITIONS)
        times = split.train.seconds
        has_times = times is not None and len(times) > 0
        return cls(
            items=item_indices[items].astype(np.int32),
            weights=weights,
            seconds=seconds,
            places=places,
            starts=starts[places],
            users=users[places].astype(np.int64),
            n_users=len(is_test_user),
            n_items=n_items,
            rule=split.train.rule,
            implicit=split.train.implicit,
            newest=float(times.max()) if has_times and times is not None else -np.inf,
        )

    def __len__(self) -> int:
        return len(self.places)

    @property
    def targets(self) -> Ints:
        """Item at each position."""
        return self.items[self.places]

    @property
    def counts(self) -> Longs:
        """Number of positions of each test user."""
        return np.bincount(self.users, minlength=self.n_users)

    def means(self, values: Doubles) -> Doubles:
        """Return the mean of a value of each position, by test user."""
        sums = np.bincount(self.users, values, self.n_users)
        means = np.full(self.n_users, np.nan)
        np.divide(sums, self.counts, out=means, where=self.counts > 0)
        return means

    def blocks(self) -> Iterator[slice]:
        """Return positions whose histories fit in memory together."""
        indptr = np.append(0, np.cumsum(self.places - self.starts))
        return kernels.row_blocks(indptr, _BLOCK)

    def histories(self, block: slice) -> Histories:
        """Return what came before some positions, made of events by the rule of the ratings."""
        places = self.places[block]
        lengths = places - self.starts[block]
        offsets = np.append(0, np.cumsum(lengths))
        rows = np.repeat(np.arange(len(places)), lengths)
        at = np.arange(offsets[-1]) - np.repeat(
            offsets[:-1] - self.starts[block], lengths
        )
        has_item = self.items[at] >= 0
        rows = rows[has_item]
        at = at[has_item]
        weights = self.weights[at]
        seconds = self.seconds[at]
        half_life = self.rule.half_life
        if half_life is not None:
            latest = np.maximum(self.seconds[places - 1], self.newest)
            aged = weights * np.exp2((seconds - latest[rows]) / half_life)
            aged = np.where(weights > 0, np.maximum(aged, _LEAST_WEIGHT), aged)
            weights = aged.astype(np.float32)
        indptr = np.append(0, np.cumsum(np.bincount(rows, minlength=len(places))))
        events = Events(indptr, self.items[at], Values.of(weights), seconds)
        rule = EventRule(
            self.rule.policy, above=self.rule.above, weighted=self.rule.weighted
        )
        shape = (len(places), self.n_items)
        csr, _ = aggregate(events, shape, rule, implicit=self.implicit)
        values = csr.values.at()
        # Habits count repeated events.
        return Histories(
            csr.indptr, csr.indices, values, csr.seconds, None, events, rule
        )


def _timed_events(
    ratings: Ratings,
    users: Mask,
    random_state: int,
) -> pl.DataFrame:
    """Return the events of some users, in an order that is random between equal times.

    Raises
    ------
    DataError
        If they have no times.
    """
    log = ratings.log
    rule = ratings.rule.without_age()
    # Grades stay as they are.
    weights: Floats = np.ones(len(log), np.float32)
    if ratings.implicit:
        weights = event_weights(log, rule)
    elif log.values is not None:
        weights = log.values.at()
    selected: Array = np.flatnonzero(users[log.users])
    if len(selected):
        if log.seconds is None:
            raise DataError(
                "Positions have an order by time, but these ratings have no timestamps; name "
                "their column (--timestamp-col, timestamp=...)."
            )
        order = event_order(ratings, random_state)
        selected = order[users[log.users[order]]]
    seconds = np.zeros(0) if log.seconds is None else log.seconds[selected]
    columns = {
        "users": log.users[selected],
        "items": log.items[selected],
        "weights": weights[selected],
        "seconds": seconds.astype(np.float64),
    }
    return pl.DataFrame(columns)
