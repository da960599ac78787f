"""Ratings: a CSR matrix of users by items, together with the ids of both."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from html import escape
from typing import TYPE_CHECKING, Any, Unpack, cast

import numpy as np
import polars as pl

from lowrank.kernels import CodedMatrix, level_counts, padded
from recsys.data.age import iso_time
from recsys.data.arrays import (
    Array,
    Codes,
    Floats,
    Ints,
    Longs,
    Mask,
    Times,
    positions_of,
)
from recsys.data.axis import Axis
from recsys.data.columns import FRAME, SAMPLE, Request, assign_roles
from recsys.data.csr import (
    CSR,
    Entries,
    Events,
    Values,
    compact_times,
    encoded,
    first_repeat,
    to_csr,
)
from recsys.data.events import (
    Collected,
    aggregate,
    collect,
    event_weights,
    implied_events,
    selected_pairs,
    with_used_kinds,
    without_returned,
    zeros_of,
)
from recsys.data.features import Features, TableLike
from recsys.data.feedback import Feedback
from recsys.data.frames import (
    FrameLike,
    are_booleans,
    as_frame,
    column_names,
    is_pandas,
    matrix_entries,
    to_polars,
)
from recsys.data.ids import (
    Ids,
    IdsLike,
    Place,
    Spot,
    alike_remark,
    as_id_series,
    id_problem,
    is_bad_id,
    prefix_remark,
)
from recsys.data.kinds import IMPRESSION, EventRule, FeatureRequest, Policy
from recsys.data.read_options import (
    OF_FILES,
    FrameOptions,
    completed,
    set_options,
)
from recsys.data.rows import (
    LARGE_SHARE,
    SHOWN,
    TIMES_MEAN,
    BadRows,
    RowRules,
    Rows,
    Source,
    check_policy,
    decide,
    prepared,
)
from recsys.errors import DataError, RecsysError, check_flags
from recsys.messages import counted
from recsys.provenance import AS_OF, remembered

if TYPE_CHECKING:
    import pandas as pd
    import scipy.sparse as sp

    from lowrank.arguments import MatrixLike
    from lowrank.completion.feature_ridge import GroupedFeatures

_polars_process: dict[str, int] = {}  # process id of the first recommender
_NAMES = "na n/a none anonymous guest unknown undefined unbekannt gast inconnu"
_PLACEHOLDERS = [
    form for text in (_NAMES, _NAMES.upper(), _NAMES.title()) for form in text.split()
]
_PLACEHOLDERS += ["-", "?", "-1"]
"""Texts that programs write for a missing id (R writes NA), and that may be names."""

_DTYPES = {
    "indptr": ("int64",),
    "indices": ("int32",),
    "data": ("uint8", "float32"),
    "seconds": ("int32", "int64", "float64"),
    "in_time_order": ("bool",),
}


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Ratings:
    """Ratings of items by users: an immutable CSR matrix between two sets of ids.

    Build one with `from_frame`, `from_matrix`, or `recsys.readers.read_ratings`. The arrays are
    canonical (items increasing within each user, no pair twice), read-only, and shared by copies.

    Attributes
    ----------
    users, items : Ids
    indptr : int64 ndarray of shape (n_users + 1,)
        User u's ratings are at positions indptr[u]:indptr[u + 1].
    indices : int32 ndarray of shape (nnz,)
    data : uint8 or float32 ndarray of shape (nnz,)
        Ratings; ones where only the fact of an interaction is known, else its weight. Those of at
        most 256 different values are bytes: places among the `levels`. `values` are numbers.
    seconds : int32, int64 or float64 ndarray of shape (nnz,), or None
        Seconds since 1970-01-01 UTC, float64 if some have a fraction; `timestamps` are int64.
    implicit : bool
        True for implicit feedback: interactions without ratings. `values` are then ones, or weights
        from quantities, the kind or the age of events, or counts. Models use weights, but not
        counts that were not named as weights (see `as_interactions`).
    item_table, user_table : Features or None
        Tables of items and users. They may have rows for ids without ratings.
    n_duplicates : int
        Number of rows that were merged or dropped because they repeat a (user, item) pair.
    item_features, user_features : GroupedFeatures or None
        Features of items and users in named blocks, with rows in index order.
    source : Source or None
        Source of the ratings, and how it was read.
    levels : float32 ndarray of shape (n_levels,), or None
        Distinct values in increasing order; None if `data` has the values themselves.
    events : Events or None
        Events from which the ratings were made by the `rule`; None if each rating is one event,
        whose value and time it has. `log` has the events in either case.
    rule : EventRule
    feature_request : FeatureRequest or None
        How the features were encoded; a refit encodes them again in the same way.
    in_time_order : bool ndarray of shape (n_users,), or None
        Users of whom no row was read before an older one; None without times. If these are all
        users, the order of rows decides between events of the same time.
    feedback : Feedback or None
        Decision of the reader on the values: grades, counts of interactions, ...
    scale : tuple of float, or None
        Lowest and highest grade, if they were given.
    untyped : tuple of {"item", "user"}
        Ids of a text file, which are integers if all are in the form of integers.

    Examples
    --------
    >>> frame = pl.DataFrame({"user": ["ann", "bob"], "item": [7, 9], "rating": [4.0, 3.5]})
    >>> print(Ratings.from_frame(frame))
    2 users x 2 items, 2 ratings, 50% filled
    """

    users: Ids
    items: Ids
    indptr: Longs
    indices: Ints
    data: Codes | Floats
    seconds: Times | None = None
    implicit: bool = False
    item_table: Features | None = None
    user_table: Features | None = None
    n_duplicates: int = 0
    source: Source | None = None
    item_features: GroupedFeatures | None = None
    user_features: GroupedFeatures | None = None
    levels: Floats | None = None
    events: Events | None = None
    rule: EventRule = field(default_factory=EventRule)
    feature_request: FeatureRequest | None = None
    in_time_order: Mask | None = None
    feedback: Feedback | None = None
    scale: tuple[float, float] | None = None
    untyped: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        nnz = int(self.indptr[-1])
        lengths = {
            "indptr": len(self.users) + 1,
            "indices": nnz,
            "data": nnz,
            "seconds": nnz,
            "in_time_order": len(self.users),
        }
        for name, length in lengths.items():
            array = getattr(self, name)
            if array is None and name in ("seconds", "in_time_order"):
                continue
            dtypes = _DTYPES[name]
            if array.dtype.name not in dtypes or array.shape != (length,):
                raise DataError(
                    f"{name} must be {' or '.join(dtypes)} of "
                    f"shape ({length},); got {array.dtype} of shape {array.shape}."
                )
            # A view, so that the caller may still write to an array of its own.
            view = array.view()
            view.flags.writeable = False
            object.__setattr__(self, name, view)
        if (self.data.dtype == np.uint8) != (self.levels is not None):
            raise DataError("levels must be given if data is uint8, and only then.")
        if self.events is not None and len(self.events.indptr) != len(self.users) + 1:
            raise DataError(
                f"events must be of {len(self.users)} users; got {len(self.events.indptr) - 1}."
            )
        table = self.levels
        if table is not None and (
            table.dtype != np.float32 or table.shape != (len(table),)
        ):
            raise DataError(
                f"levels must be a one-dimensional float32 array; got {table.dtype} of shape "
                f"{table.shape}."
            )

    @classmethod
    def from_frame(
        cls,
        frame: FrameLike,
        *,
        item_table: TableLike | None = None,
        user_table: TableLike | None = None,
        **options: Unpack[FrameOptions],
    ) -> Ratings:
        """Build ratings from a long frame with one row per rating or event.

        Parameters
        ----------
        frame : polars or pandas frame, or any object with the Arrow C stream interface
        item_table, user_table : frame or Features, optional
            Tables of items and users. The column of ids has its usual name or the same name as in
            `frame`; see `Features`.
        **options
            Columns (``user="customer"``), and what is read of them; see `recsys.FrameOptions`.

        Raises
        ------
        DataError
            If a column is missing, an id is missing or neither integer nor string, a rating is
            not a finite number, a time cannot be read, there are no rows, a pair is repeated
            with `duplicates="error"`, or an option does not suit the data.
        """
        check_process()
        given = set_options(options, FrameOptions)
        ratings = ratings_of_frame(frame, given)
        items = table_of(item_table, ratings.items, given.get("item"))
        users = table_of(user_table, ratings.users, given.get("user"))
        return replace(ratings, item_table=items, user_table=users)

    @classmethod
    def from_matrix(
        cls,
        matrix: MatrixLike | pd.DataFrame,
        *,
        users: IdsLike | None = None,
        items: IdsLike | None = None,
        implicit: bool | None = None,
        missing: float | None = None,
        item_table: TableLike | None = None,
        user_table: TableLike | None = None,
    ) -> Ratings:
        """Build ratings from a matrix with one row per user and one column per item.

        Parameters
        ----------
        matrix : scipy.sparse matrix or array, or array_like, of shape (n_users, n_items)
            In a sparse matrix every stored entry is a rating, zeros too; entries that are stored
            twice are summed, as scipy does. In a dense array NaN marks what is missing, and in a
            masked one the mask. A sparse pandas frame is as a sparse matrix if zeros fill it.
            If `implicit`, zeros are missing in each of them. True entries of a Boolean matrix are
            interactions.
        users, items : sequence or Series of ids, optional
            Ids of the rows and columns. By default the labels of a pandas frame, else 0..n-1.
        implicit : bool, optional
            Whether the values are weights, not ratings; a value of 0 then means no interaction. By
            default, grades are told from counts as in `from_frame`, and `source` says what was
            decided.
        missing : float, optional
            Value that marks a missing rating, such as 0 or 99.
        item_table, user_table : frame or Features, optional
            As in `from_frame`.

        Raises
        ------
        DataError
            If the matrix is not two-dimensional or not of real numbers, holds an infinity (or,
            if sparse, a NaN), has no ratings, or the ids don't fit its shape, repeat or stand for a
            missing one.
        """
        if implicit is not None:
            check_flags(implicit=implicit)
        check_process()
        if is_pandas(matrix):
            users = matrix.index.tolist() if users is None else users
            items = matrix.columns.tolist() if items is None else items
        if implicit is None and are_booleans(matrix):
            implicit = True
        shape, rows, columns, values = matrix_entries(matrix, zeros=not implicit)
        rules = RowRules.from_options({"missing": missing})
        if rules.missing is not None:
            is_rated = values != np.float32(rules.missing)
            rows, columns, values = rows[is_rated], columns[is_rated], values[is_rated]
        if not len(values):
            raise DataError("There are no ratings: the matrix has no entries.")
        # Ids are sorted, and so the rows and columns may get another order.
        row_ids, row_codes = _axis(users, shape[0], "user")
        column_ids, column_codes = _axis(items, shape[1], "item")

        def place(entry: int) -> Spot:
            spot = int(rows[entry]), int(columns[entry])
            return Spot(spot, f"row {spot[0]}, column {spot[1]} (from 0)")

        entries = Rows(
            {
                "user": pl.Series(row_codes[rows]),
                "item": pl.Series(column_codes[columns]),
                "rating": pl.Series(values),
            },
            "a row for each user, a column for each item",
            place,
            implicit=bool(implicit),
        )
        if implicit is None:
            n_zeros = int(np.count_nonzero(values == 0))
            decide(entries, rules)
            if 2 * n_zeros > len(values) and not entries.implicit:
                share = f"{100 * n_zeros / len(values):.0f}%"
                entries.remarks.append(
                    f"{share} of the ratings are 0; missing=0 leaves them out"
                )
        ratings = _of_matrix(entries, row_ids, column_ids)
        if ratings.nnz < len(values) and not ratings.implicit:
            # Rows and columns of nothing but marks of missing ratings are not read.
            had_user = np.bincount(row_codes[rows], minlength=shape[0]) > 0
            had_item = np.bincount(column_codes[columns], minlength=shape[1]) > 0
            ratings = restricted(
                ratings,
                has_ratings(ratings) | ~had_user,
                has_items(ratings) | ~had_item,
            )
        return replace(
            ratings,
            item_table=table_of(item_table, column_ids),
            user_table=table_of(user_table, row_ids),
        )

    @property
    def axes(self) -> tuple[Axis, Axis]:
        """Users and items, each with their ids, table and features."""
        users = Axis(self.users, self.user_table, self.user_features)
        return users, Axis(self.items, self.item_table, self.item_features)

    def axis(self, side: str) -> Axis:
        """Return the ids, table and features of one side, "user" or "item"."""
        users, items = self.axes
        return users if side == "user" else items

    def with_axes(self, *axes: Axis, **changes: Any) -> Ratings:
        """Return the ratings with other users or items, and further changes of attributes."""
        for axis in axes:
            if axis.ids.kind == "user":
                changes |= {"users": axis.ids, "user_table": axis.table}
                changes["user_features"] = axis.features
            else:
                changes |= {"items": axis.ids, "item_table": axis.table}
                changes["item_features"] = axis.features
        return replace(self, **changes)

    def counts(self, side: str) -> Longs:
        """Return the number of ratings of each user or item; `side` is "user" or "item"."""
        if side == "user":
            return np.diff(self.indptr)
        return np.bincount(self.indices, minlength=self.n_items)

    @property
    def n_users(self) -> int:
        """Number of users, including those without ratings."""
        return len(self.indptr) - 1

    @property
    def n_items(self) -> int:
        """Number of items, including those without ratings."""
        return len(self.items.values)

    @property
    def n_ratings(self) -> int:
        """Number of ratings."""
        return len(self.indices)

    @property
    def nnz(self) -> int:
        """Number of ratings, under the name that scipy.sparse uses."""
        return len(self.indices)

    @property
    def shape(self) -> tuple[int, int]:
        """(n_users, n_items)."""
        return (self.n_users, self.n_items)

    @property
    def density(self) -> float:
        """Share of all (user, item) pairs that are rated; 0 for an empty matrix."""
        cells = self.n_users * self.n_items
        return self.n_ratings / cells if cells else 0.0

    @property
    def values(self) -> Floats:
        """Ratings as a float32 ndarray of shape (nnz,); a new array if they are coded."""
        values = Values(self.data, self.levels).at()
        values.flags.writeable = False
        return values

    def values_at(self, which: slice | Array) -> Floats:
        """Return the ratings selected by a slice, a mask or positions, as numbers."""
        return Values(self.data, self.levels).at(which)

    @property
    def timestamps(self) -> Longs | None:
        """Whole seconds since 1970-01-01 UTC, an int64 ndarray of shape (nnz,), or None."""
        if self.seconds is None:
            return None
        floored = (
            np.floor(self.seconds) if self.seconds.dtype == np.float64 else self.seconds
        )
        wide = floored.astype(np.int64, copy=False)
        wide.flags.writeable = False
        return wide

    @property
    def coded(self) -> CodedMatrix | None:
        """Matrix of the coded ratings for `lowrank`, without a copy; None if they are not coded."""
        if self.levels is None:
            return None
        codes = cast("Codes", self.data)
        return CodedMatrix(
            self.indptr, self.indices, codes, padded(self.levels), self.n_items
        )

    def distribution(self) -> tuple[Floats, Longs]:
        """Return the distinct values in increasing order, and the number of ratings of each."""
        if self.levels is None:
            return np.unique(self.values, return_counts=True)
        counts = level_counts(cast("Codes", self.data))[: len(self.levels)]
        return self.levels[counts > 0], counts[counts > 0]

    def value_range(self) -> tuple[float, float]:
        """Return the smallest and largest value; (inf, -inf) without ratings."""
        values = self.distribution()[0] if self.levels is not None else self.data
        return float(values.min(initial=np.inf)), float(values.max(initial=-np.inf))

    def grade_range(self) -> tuple[float, float]:
        """Return the lowest and highest grade, of the scale if given, else of the values."""
        return self.value_range() if self.scale is None else self.scale

    def mean_and_std(self) -> tuple[float, float]:
        """Return the mean and standard deviation of the values."""
        if self.levels is None or not self.nnz:
            return float(self.data.mean(dtype=np.float64)), float(
                self.data.std(dtype=np.float64)
            )
        values, counts = self.distribution()
        mean = float(np.average(values.astype(np.float64), weights=counts))
        return mean, float(
            np.average((values - np.float64(mean)) ** 2, weights=counts)
        ) ** 0.5

    @property
    def weighted(self) -> bool:
        """True if implicit feedback has weights: by its rule, or as some value is not 1."""
        return self.rule.has_weights or any(end != 1 for end in self.value_range())

    def with_values(self, values: Floats | float) -> Ratings:
        """Return the same pairs with other values: an array, or one number for all pairs.

        Raises
        ------
        DataError
            If the number of values differs from the number of ratings.
        """
        values = np.broadcast_to(np.asarray(values, np.float32), (self.nnz,))
        # The events had the old values, and cannot be judged again.
        data, levels = Values.of(values)
        rule = self.rule.without_events()
        return replace(self, data=data, levels=levels, events=None, rule=rule)

    def with_grade(self, grade: float) -> Ratings:
        """Return interactions as ratings that all have the same grade, events included."""
        ratings = replace(self.with_values(grade), implicit=False, feedback=None)
        if self.events is None:
            return ratings
        values = Values.of(np.full(len(self.events), grade, np.float32))
        # The sum of grades that are all the same would not be that grade.
        rule = replace(self.rule, policy="last")
        return replace(ratings, events=replace(self.events, values=values), rule=rule)

    def as_interactions(self) -> Ratings:
        """Return ratings for models: counts that were not named as weights become ones."""
        if self.feedback is None or self.feedback.kind != "counts":
            return self
        return self if self.rule.above is not None else self.interactions_above(0.0)

    def interactions_above(self, limit: float) -> Ratings:
        """Return the pairs with a larger value as interactions of weight 1.

        Their events keep the values, so that a refit can judge them again.
        """
        log = self.log
        # Without events and values, each rating is one event of weight 1 as it is.
        events = None if self.events is None and log.values is None else log
        selected = self.values > limit
        part = self
        if not selected.all():
            part = replace(self.take(selected), source=self.source)
        rule = replace(self.rule, above=limit)
        return replace(part.with_values(1), implicit=True, events=events, rule=rule)

    def with_dislikes_as_grades(self) -> Ratings:
        """Return interactions as grades of 1, and dislikes as grades of 0."""
        collected = collect(
            self.log.entries(),
            self.shape,
            replace(self.rule, graded=True),
            implicit=False,
            known_order=self.in_time_order,
        )
        graded = with_collected(self, collected)
        return replace(graded, implicit=False, feedback=None, source=self.source)

    def with_own_values(self) -> Ratings:
        """Return interactions as the ratings from which `interactions_above` has taken them."""
        if self.rule.above is None:
            return self
        rule = replace(self.rule, above=None)
        collected = collect(
            self.log.entries(),
            self.shape,
            rule,
            implicit=False,
            known_order=self.in_time_order,
        )
        return replace(with_collected(self, collected), implicit=False)

    def without_values(self) -> Ratings:
        """Return interactions of weight 1, whose events have no other values."""
        ratings = self.with_values(1)
        events = self.events
        if events is None:
            return ratings
        selected = self._ratings_of_events() >= 0
        if events.values is not None:
            selected &= events.values.at() > (self.rule.above or 0.0)
        rule = replace(self.rule, policy="last", above=None, weighted=False)
        return replace(
            ratings, events=replace(events.take(selected), values=None), rule=rule
        )

    @property
    def matrix(self) -> sp.csr_array[np.float32]:
        """The ratings as a float32 csr_array that shares memory; do not write to it."""
        import scipy.sparse as sp

        matrix = sp.csr_array(
            (self.values, self.indices, self.indptr), shape=self.shape
        )
        # SciPy would check it with a pass over all entries.
        matrix.has_canonical_format = True
        return matrix

    @property
    def titles(self) -> pl.Series | None:
        """Titles in item index order (null where unknown), or None if there are none."""
        if not self.item_table or (title := self.item_table.title) is None:
            return None
        rows = self.item_table.rows_of(self.items)
        titles = self.item_table.frame[title][np.maximum(rows, 0)].alias("title")
        return titles.zip_with(
            pl.Series(rows >= 0), pl.Series([None], dtype=titles.dtype)
        )

    def user_index_of_nonzeros(self) -> Ints:
        """Return the user index of each rating, an int32 ndarray of shape (nnz,)."""
        return np.repeat(np.arange(self.n_users, dtype=np.int32), np.diff(self.indptr))

    def take(self, which: Array) -> Ratings:
        """Return the selected ratings, with the same users and items, but without their events.

        Parameters
        ----------
        which : bool ndarray of shape (nnz,), or int ndarray
            A mask, or positions in CSR order, in any order.

        Raises
        ------
        DataError
            If the mask has the wrong length, or a position does not exist.
        """
        mask = np.zeros(self.nnz, dtype=np.bool_)
        try:
            mask[which] = True
        except IndexError as error:
            raise DataError(
                f"Mask or positions do not fit {self.nnz} ratings: {error}."
            ) from None
        # The number of selected ratings before each position gives the new offsets.
        before = np.zeros(self.nnz + 1, dtype=np.int64)
        np.cumsum(mask, out=before[1:])
        return replace(
            self,
            indptr=before[self.indptr],
            indices=self.indices[mask],
            data=self.data[mask],
            seconds=None if self.seconds is None else self.seconds[mask],
            n_duplicates=0,
            source=None,
            events=None,
            rule=self.rule.without_events(),
        )

    @property
    def log(self) -> Events:
        """The events behind the ratings, by user in the order of time."""
        if self.events is not None:
            return self.events
        values = Values(self.data, self.levels)
        return implied_events(
            CSR(self.shape, self.indptr, self.indices, values, self.seconds)
        )

    @property
    def zeros(self) -> CSR | None:
        """Pairs that are disliked or were only shown, with confidences; None without such kinds.

        A new object each time; confidences above `IMPRESSION` are of dislikes.
        """
        return zeros_of(self.events, self.shape, self.rule)

    @property
    def disliked(self) -> CSR | None:
        """The pairs of `zeros` that are disliked, which are never recommended."""
        zeros = self.zeros
        if zeros is None:
            return None
        return selected_pairs(zeros, zeros.values.at() > np.float32(IMPRESSION))

    def with_events_of(self, which: Mask) -> Ratings:
        """Return the selected ratings as `take` does, with their events.

        Parameters
        ----------
        which : bool ndarray of shape (nnz,)
        """
        part = self.take(which)
        if self.events is None:
            return replace(part, rule=self.rule)
        # An event goes where the rating of its pair goes. Dislikes are in each part.
        positions = self._ratings_of_events()
        selected = (positions >= 0) & which[positions]
        if self.rule.has_zeros:
            selected |= positions < 0
        return replace(part, events=self.events.take(selected), rule=self.rule)

    def of_events(self, which: Mask, *, aged: bool = True) -> Ratings:
        """Return ratings made of the selected events by the same rule, of the same users and items.

        Parameters
        ----------
        which : bool ndarray of shape (n_events,)
            Mask of events in the order of `log`.
        aged : bool
            Whether the weight of an event depends on its age, if it does in these ratings.

        Raises
        ------
        DataError
            If the mask has the wrong length.
        """
        log = self.log
        if which.shape != (len(log),):
            raise DataError(
                f"The mask must be of {len(log):,} events; got shape {which.shape}."
            )
        events = log.take(which)
        rule = self.rule if aged else self.rule.without_age()
        csr, _ = aggregate(events, self.shape, rule, implicit=self.implicit)
        log_of_part = None if self.events is None else events
        collected = Collected(csr, log_of_part, rule, self.in_time_order)
        return replace(with_collected(self, collected), source=None)

    def _ratings_of_events(self) -> Longs:
        """Return the position of the rating to which each event belongs; -1 for a returned pair."""
        assert self.events is not None
        events = self.events
        keys = events.users * np.int64(self.n_items) + events.items
        return positions_of(keys, pair_keys(self))

    def renumbered(self, users: Ids, items: Ids) -> Ratings:
        """Return the ratings with the indices of other ids, which include all rated ones."""
        user_indices = users.find(self.users.values)
        item_indices = items.find(self.items.values)
        # Indices that keep their order leave the arrays sorted, which takes one copy.
        if not (_is_increasing(user_indices) and _is_increasing(item_indices)):
            return self._reordered(users, items, user_indices, item_indices)
        counts = np.zeros(len(users), np.int64)
        remaining = user_indices >= 0
        counts[user_indices[remaining]] = np.diff(self.indptr)[remaining]
        events = self.events
        if events is not None:
            events = events.renumbered(user_indices, len(users), item_indices)
        user_axis, item_axis = self.axes
        return self.with_axes(
            user_axis.aligned(users),
            item_axis.aligned(items),
            indptr=np.append(0, np.cumsum(counts)),
            indices=item_indices[self.indices].astype(np.int32),
            events=events,
            in_time_order=self._in_time_order_of(len(users), user_indices),
        )

    def _in_time_order_of(self, n_users: int, user_indices: Longs) -> Mask | None:
        """Return `in_time_order` for other indices of the users; new users are in order."""
        if self.in_time_order is None:
            return None
        in_time_order = np.ones(n_users, np.bool_)
        remaining = user_indices >= 0
        in_time_order[user_indices[remaining]] = self.in_time_order[remaining]
        return in_time_order

    def relabelled(self, users: pl.Series, items: pl.Series) -> Ratings:
        """Return the same ratings with other distinct ids, given in the order of the present ones.

        Features are left out.
        """
        user_ids = Ids(users, "user")
        item_ids = Ids(items, "item")
        without_features = replace(self, item_features=None, user_features=None)
        return without_features._reordered(
            user_ids, item_ids, user_ids.find(users), item_ids.find(items)
        )

    def _reordered(
        self,
        users: Ids,
        items: Ids,
        user_indices: Longs,
        item_indices: Longs,
    ) -> Ratings:
        """Return the ratings with other indices in another order, as of texts and numbers."""
        # All events are sorted again: ties of time are broken by the order of the items.
        entries = self.log.entries()
        entries.rows = user_indices[entries.rows].astype(np.int32)
        entries.items = item_indices[entries.items].astype(np.int32)
        collected = collect(
            entries,
            (len(users), len(items)),
            self.rule,
            implicit=self.implicit,
            known_order=self._in_time_order_of(len(users), user_indices),
        )
        user_axis, item_axis = self.axes
        return with_collected(
            self, collected, user_axis.aligned(users), item_axis.aligned(items)
        )

    def to_frame(self, *, events: bool = False) -> pl.DataFrame:
        """Return a long frame with the columns user, item, rating and timestamp, in CSR order.

        The timestamp column is missing if times are unknown. Implicit feedback has a rating column
        only if it is weighted. With `events`, there is a row for each event, by user in the order
        of time, with its grade or weight as rating.
        """
        users = self.user_index_of_nonzeros()
        items = self.indices
        seconds = self.seconds
        if events:
            log = self.log
            users, items, seconds = log.users, log.items, log.seconds
        columns = [self.users.take(users), self.items.take(items)]
        is_plain = self.implicit and not self.rule.weighted
        if not is_plain or self.value_range() != (1, 1):
            values = event_weights(self.log, self.rule) if events else self.values
            columns.append(pl.Series("rating", values))
        if seconds is not None:
            if seconds.dtype != np.float64:
                seconds = seconds.astype(np.int64)
            columns.append(pl.Series("timestamp", seconds))
        return pl.DataFrame(columns)

    def __str__(self) -> str:
        percent = 100 * self.density
        # two digits
        filled = f"{percent:.0f}%" if percent >= 9.95 else f"{percent:.2g}%"
        filled = "under 0.001%" if 0 < percent < 0.001 else filled
        return (
            f"{counted(self.n_users, 'user')} x {counted(self.n_items, 'item')}, "
            f"{counted(self.n_ratings, 'interaction' if self.implicit else 'rating')}, "
            f"{filled} filled"
        )

    def __repr__(self) -> str:
        return f"<Ratings: {self}>"

    def _repr_html_(self) -> str:
        """Return the counts and a histogram of the ratings, for notebooks."""
        html = f"<div><b>Ratings</b>: {escape(str(self))}"
        if self.source is not None:
            html += f"<br><small>{escape(str(self.source))}</small>"
        if not self.implicit and self.nnz:
            values, weights = self.distribution()
            counts, edges = np.histogram(values, min(10, len(values)), weights=weights)
            cell, box = (
                "vertical-align:bottom;padding:0 1px",
                "background:#4878a8;width:24px",
            )
            bars = "".join(
                f"<td style='{cell}' title='{count:,}'><div style='{box};height:"
                f"{60 * count / counts.max():.0f}px'></div><small>{low:.3g}</small></td>"
                for count, low in zip(counts, edges, strict=False)
            )
            html += f"<table><tr>{bars}</tr></table>"
        return f"{html}</div>"


def pair_keys(ratings: Ratings) -> Longs:
    """Return a number for each rated pair of user and item, shape (nnz,), in increasing order."""
    users = ratings.user_index_of_nonzeros()
    return users * np.int64(ratings.n_items) + ratings.indices


def ratings_of_frame(
    frame: FrameLike,
    given: Mapping[str, Any],
    defaults: Mapping[str, Any] | None = None,
) -> Ratings:
    """Build ratings of a frame, without tables.

    Options that are not `given` are those of an earlier reading, `defaults`.

    Raises
    ------
    DataError
        As `Ratings.from_frame`.
    """
    earlier = {
        name: value for name, value in (defaults or {}).items() if name not in OF_FILES
    }
    options = completed(given, earlier)
    policy = check_policy(options.get("duplicates"))
    request = Request.from_options(options, given, defaults)
    frame = as_frame(frame)
    names = column_names(frame)

    def sample(position: int) -> list[Any]:
        return to_polars(frame.head(SAMPLE), [names[position]]).to_series().to_list()

    roles, layout = assign_roles(names, request, FRAME, sample)
    chosen = to_polars(frame, [names[position] for position in roles.values()])
    columns = {role: chosen[names[position]] for role, position in roles.items()}
    del chosen
    name = names[roles["rating"]] if "rating" in roles else ""
    bad = BadRows(request.rules.bad_rows)
    raw = Rows(
        columns, layout, bad=bad, name=name, guessed_times="timestamp" not in options
    )
    rows = prepared(raw, request.rules)
    return with_options(build_ratings(rows, policy, "frame"), options, request.rules)


def _of_matrix(rows: Rows, users: Ids, items: Ids) -> Ratings:
    """Return the ratings of judged entries of a matrix, which have indices for ids."""
    shape = len(users), len(items)
    policy: Policy = "sum" if rows.implicit else "last"
    entries = Entries(
        rows.columns["user"].to_numpy(writable=True),
        rows.columns["item"].to_numpy(writable=True),
        Values.of(rows.columns["rating"].to_numpy()),
    )
    csr = to_csr(entries, shape)
    n_returned = 0
    if rows.feedback is not None:
        csr, n_returned = without_returned(csr, implicit=rows.implicit)
    if n_returned:
        rows.remarks.append(_returned_pairs(n_returned))
    collected = Collected(csr, None, EventRule(policy))
    return replace(
        _of_collected(users, items, collected, rows.implicit),
        source=Source.of("matrix", rows, 0, policy),
        feedback=rows.feedback,
    )


def build_ratings(
    rows: Rows,
    duplicates: Policy | None,
    name: str,
) -> Ratings:
    """Build ratings from prepared rows, whose columns are removed to free memory.

    `name` is the name of the source. Users without ratings are kept.

    Raises
    ------
    DataError
        As `Ratings.from_frame`.
    """
    # Decided before the columns are removed.
    is_weighted = "rating" in rows.columns or rows.weighs_kinds
    is_weighted |= rows.half_life is not None
    usual: Policy = "sum" if rows.implicit and is_weighted else "last"
    policy = duplicates or usual
    kinds = tuple(rows.kind_weights)
    weights = tuple(rows.kind_weights.values())
    has_values = rows.implicit and "rating" in rows.columns
    rule = EventRule(
        policy,
        rows.half_life,
        kinds,
        weights,
        weighted=has_values and rows.feedback is None,
    )
    users, items, entries = encoded(rows)
    shape = len(users), len(items)
    rows.remarks += _remarks_on_ids(users, items, entries)
    if policy == "error":
        _check_unrepeated(users, items, entries, rows.place)
    candidates = {}
    if entries.keys is not None:
        candidates["user"] = np.flatnonzero(np.bincount(entries.rows))
        candidates["item"] = np.flatnonzero(np.bincount(entries.items))
    collected = with_used_kinds(collect(entries, shape, rule, implicit=rows.implicit))
    if collected.n_same:
        rows.remarks.append(_repeated_rows(collected))
    zeros = zeros_of(collected.events, shape, collected.rule)
    n_returned = collected.n_returned
    if zeros is not None:
        n_disliked = int(np.count_nonzero(zeros.values.at() > np.float32(IMPRESSION)))
        n_shown = len(zeros.indices) - n_disliked
        n_returned -= n_disliked
        rows.remarks.append(
            f"{counted(n_disliked, 'disliked pair')} and {n_shown:,} only shown"
        )
    if n_returned:
        rows.remarks.append(_returned_pairs(n_returned))
    ratings = _of_collected(users, items, collected, rows.implicit)
    n_duplicates = ratings.n_duplicates
    if collected.n_conflicts:
        # All rows of a user or an item may repeat events of others.
        lost = without_events(ratings, candidates)
        ratings = restricted(ratings, ~lost["user"], ~lost["item"])
    source = Source.of(name, rows, n_duplicates, policy)
    untyped = tuple(sorted(rows.untyped))
    return replace(
        ratings,
        n_duplicates=n_duplicates,
        source=source,
        feedback=rows.feedback,
        scale=rows.scale,
        untyped=untyped,
    )


def with_options(
    ratings: Ratings,
    options: Mapping[str, Any],
    rules: RowRules,
) -> Ratings:
    """Return ratings whose source has the options of the reading, and what it has decided."""
    assert ratings.source is not None
    decided = {} if ratings.feedback is None else ratings.feedback.options
    if options.get("missing") is not None:
        decided["missing"] = options["missing"]
    # What this reading decided replaces the decision of an earlier one.
    stored = remembered({**options, "feedback": None, "common": None, **decided})
    if ratings.seconds is not None:
        stored[AS_OF] = iso_time(rules.now)
    return replace(ratings, source=replace(ratings.source, options=stored))


def _remarks_on_ids(users: Ids, items: Ids, entries: Entries) -> list[str]:
    """Return remarks on ids that are alike, or have a large share of the rows."""
    remarks = []
    for ids, codes in ((users, entries.rows), (items, entries.items)):
        remarks += [alike_remark(ids), prefix_remark(ids)]
        if len(codes):
            remarks += _remarks_on_shares(ids, codes)
    if users.dtype == items.dtype == pl.String:
        both = users.values.filter(users.values.is_in(items.values.implode()))
        if len(both):
            ids_are = "id is" if len(both) == 1 else "ids are"
            remarks.append(
                f"{len(both):,} {ids_are} of users and of items ({both[0]!r})"
            )
    return [remark for remark in remarks if remark]


def _remarks_on_shares(ids: Ids, codes: Ints) -> list[str]:
    """Return remarks on ids that may stand for none, by their name or their share of the rows."""
    counts = np.bincount(codes)
    shares = counts / len(codes)
    largest = int(shares.argmax())
    indices = ids.find(_PLACEHOLDERS)
    # Less than the mean may be the name of somebody.
    placeholders = {
        int(index) for index in indices[indices >= 0] if shares[index] * len(ids) >= 1
    }
    if shares[largest] > max(LARGE_SHARE, TIMES_MEAN / len(ids)):
        placeholders.add(largest)
    by_share = sorted(placeholders, key=lambda index: (-shares[index], index))
    return [
        f"the {ids.kind} {ids.values[index]!r} has {100 * shares[index]:.2g}% of the rows, "
        "and may stand for none"
        for index in by_share[:SHOWN]
    ]


def _repeated_rows(collected: Collected) -> str:
    """Describe the rows that were left out because they repeat an event."""
    count = counted(collected.n_same, "repeated row")
    if collected.events is not None and collected.events.keys is not None:
        if collected.n_conflicts:
            return f"{count} left out (the same event id; {conflicts(collected.n_conflicts)})"
        return f"{count} left out (the same event id)"
    alike = "user, item, time and value"
    if collected.rule.kinds:
        alike = "user, item, time and kind"
    return f"{count} left out (the same {alike}; --event-id-col tells them apart)"


def _returned_pairs(n: int) -> str:
    """Describe pairs of user and item whose weights leave no interaction."""
    return f"{counted(n, 'pair')} left out whose weights add up to zero or less"


def conflicts(n: int) -> str:
    """Describe events with the id of an earlier one that differs."""
    return f"{n:,} with another user, item, value, time or kind: the first counts"


def _check_unrepeated(
    users: Ids,
    items: Ids,
    entries: Entries,
    place: Place,
) -> None:
    """Check that no pair of user and item is repeated."""
    repeat = first_repeat(entries.rows, entries.items)
    if repeat is None:
        return
    second, first = repeat
    user = users.values[int(entries.rows[second])]
    item = items.values[int(entries.items[second])]
    raise DataError(
        f"{place(second)}: user {user!r} has rated item {item!r} already "
        f"(first: {place(first)}); set duplicates to last, first, mean or sum."
    )


def _of_collected(
    users: Ids,
    items: Ids,
    collected: Collected,
    implicit: bool,
) -> Ratings:
    """Return ratings with the arrays that were made of events."""
    csr = collected.csr
    ratings = Ratings(
        users,
        items,
        csr.indptr,
        csr.indices,
        csr.values.data,
        csr.seconds,
        implicit,
        levels=csr.values.levels,
    )
    return with_collected(ratings, collected)


def with_collected(
    ratings: Ratings,
    collected: Collected,
    *axes: Axis,
) -> Ratings:
    """Return ratings with the arrays that were made of events, and perhaps other axes."""
    csr = collected.csr
    return ratings.with_axes(
        *axes,
        indptr=csr.indptr,
        indices=csr.indices,
        data=csr.values.data,
        levels=csr.values.levels,
        seconds=csr.seconds,
        n_duplicates=csr.n_duplicates + collected.n_same,
        events=collected.events,
        rule=collected.rule,
        in_time_order=collected.in_time_order,
    )


def check_process() -> None:
    """Raise if the process was forked from one with a recommender, because polars would hang.

    Raises
    ------
    RecsysError
    """
    if os.getpid() != _polars_process.setdefault("id", os.getpid()):
        raise RecsysError(
            "This process was forked from one that had a recommender, and polars does not work in "
            "it; load the model in the child only, or start processes by spawn or forkserver."
        )


def _is_increasing(indices: Longs) -> bool:
    """Return whether the indices that are not -1 are increasing."""
    return bool((np.diff(indices[indices >= 0]) > 0).all())


def compact(ratings: Ratings) -> Ratings:
    """Return ratings with their values and times in the form that a reading gives them.

    Ratings that have been removed leave no trace, such as a value that no other rating has.
    """
    values = Values(ratings.data, ratings.levels)
    seconds, compact_values = ratings.seconds, values.compact()
    if seconds is not None:
        seconds = compact_times(seconds)
    # The same object spares a copy of all attributes.
    if compact_values is values and seconds is ratings.seconds:
        return ratings
    return replace(
        ratings, data=compact_values.data, levels=compact_values.levels, seconds=seconds
    )


def has_ratings(ratings: Ratings) -> Mask:
    """Return which users have ratings, shape (n_users,)."""
    return ratings.counts("user") > 0


def has_items(ratings: Ratings) -> Mask:
    """Return which items have ratings, shape (n_items,)."""
    return ratings.counts("item") > 0


def restricted(
    ratings: Ratings,
    users: Mask,
    items: Mask,
) -> Ratings:
    """Return the ratings of the selected users and items, which get new indices."""
    if users.all() and items.all():
        return ratings
    part = ratings.take(
        users[ratings.user_index_of_nonzeros()] & items[ratings.indices]
    )
    events = ratings.events
    if events is not None:
        events = events.take(users[events.users] & items[events.items])
    part = replace(part, events=events, rule=ratings.rule, source=ratings.source)
    remaining_users = Ids(ratings.users.values.filter(users), "user")
    remaining_items = Ids(ratings.items.values.filter(items), "item")
    return part.renumbered(remaining_users, remaining_items)


def described(ratings: Ratings, side: str) -> Mask:
    """Mark the users (or items) that the ratings have even without a rating, for their features."""
    request = ratings.feature_request
    axis = ratings.axis(side)
    if request is None or not request.unrated:
        return np.zeros(len(axis.ids), np.bool_)
    return axis.in_table


def stored_log(ratings: Ratings) -> Events:
    """Return the events of ratings in any order, without the values of implied ones."""
    if ratings.events is not None:
        return ratings.events
    return Events(ratings.indptr, ratings.indices, seconds=ratings.seconds)


def without_events(
    ratings: Ratings, candidates: Mapping[str, Ints | Longs]
) -> dict[str, Mask]:
    """Mark the candidate users and items that have no event, and that no table describes."""
    log = stored_log(ratings)
    present: dict[str, Ints | Longs] = {
        "user": np.flatnonzero(np.diff(log.indptr)),
        "item": log.items,
    }
    lost: dict[str, Mask] = {}
    for axis in ratings.axes:
        side = axis.ids.kind
        lost[side] = np.zeros(len(axis.ids), np.bool_)
        lost[side][candidates[side]] = True
        lost[side][present[side]] = False
        lost[side] &= ~described(ratings, side)
    return lost


def table_of(
    table: TableLike | None,
    ids: Ids,
    column: str | None = None,
) -> Features | None:
    """Return a table of items or users, with its ids converted to the type of `ids` if possible."""
    return (
        None
        if table is None
        else Features.of(table, ids.kind, column=column).matching(ids)
    )


def _axis(
    given: IdsLike | None,
    length: int,
    kind: str,
) -> tuple[Ids, Ints]:
    """Return the sorted ids of an axis and the new index of each of its rows (or columns)."""
    if given is None:
        ids = Ids(pl.Series(kind, np.arange(length)), kind)
        return ids, np.arange(length, dtype=np.int32)
    series = as_id_series(given, kind)
    if len(series) != length:
        raise DataError(
            f"The matrix has {length} {kind}s; got {len(series)} {kind} ids."
        )
    ids = Ids(series, kind)
    if len(ids) != length:
        repeated = series.filter(series.is_duplicated())[0]
        raise DataError(f"{kind.capitalize()} id {repeated!r} is given more than once.")
    bad = ids.values.filter(is_bad_id(ids.values))
    if len(bad):
        raise DataError(f"In the ids of {kind}s, {id_problem(bad[0], kind)}")
    return ids, ids.find(series).astype(np.int32)
