"""Ratings: a CSR matrix of users by items, together with the ids of both."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from html import escape
from typing import TYPE_CHECKING, Any, Unpack, cast

import numpy as np
import numpy.typing as npt
import polars as pl

from lowrank.kernels import CodedMatrix, level_counts, padded
from recsys.data.columns import FRAME, SAMPLE, Request, assign_roles
from recsys.data.csr import CSR, Entries, Times, Values, encoded, to_csr
from recsys.data.features import Features, TableLike
from recsys.data.frames import (
    FrameLike,
    as_frame,
    column_names,
    is_pandas,
    matrix_arrays,
    to_polars,
)
from recsys.data.ids import Ids, IdsLike, as_id_series
from recsys.data.rows import (
    BadRows,
    Policy,
    RowOptions,
    RowRules,
    Rows,
    Source,
    check_policy,
    prepared,
)
from recsys.errors import DataError, RecsysError
from recsys.messages import counted

if TYPE_CHECKING:
    import pandas as pd
    import scipy.sparse as sp

    from lowrank.arguments import MatrixLike
    from lowrank.completion.design import GroupedFeatures

_polars_process: dict[str, int] = {}  # process id of the first recommender
_DTYPES = {
    "indptr": (np.int64,),
    "indices": (np.int32,),
    "data": (np.uint8, np.float32),
    "seconds": (np.int32, np.int64, np.float64),
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
        from the kind or age of events, or counts of summed pairs.
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

    Examples
    --------
    >>> frame = pl.DataFrame({"user": ["ann", "bob"], "item": [7, 9], "rating": [4.0, 3.5]})
    >>> print(Ratings.from_frame(frame))
    2 users x 2 items, 2 ratings, 50% filled
    """

    users: Ids
    items: Ids
    indptr: npt.NDArray[np.int64]
    indices: npt.NDArray[np.int32]
    data: npt.NDArray[np.uint8] | npt.NDArray[np.float32]
    seconds: Times | None = None
    implicit: bool = False
    item_table: Features | None = None
    user_table: Features | None = None
    n_duplicates: int = 0
    source: Source | None = None
    item_features: GroupedFeatures | None = None
    user_features: GroupedFeatures | None = None
    levels: npt.NDArray[np.float32] | None = None

    def __post_init__(self) -> None:
        nnz = int(self.indptr[-1])
        lengths = {"indptr": len(self.users) + 1, "indices": nnz, "data": nnz, "seconds": nnz}
        for name, length in lengths.items():
            array, dtypes = getattr(self, name), _DTYPES[name]
            if array is None and name == "seconds":
                continue
            if array.dtype not in dtypes or array.shape != (length,):
                raise DataError(
                    f"{name} must be {' or '.join(np.dtype(each).name for each in dtypes)} of "
                    f"shape ({length},); got {array.dtype} of shape {array.shape}."
                )
            view = array.view()
            view.flags.writeable = False
            object.__setattr__(self, name, view)
        if (self.data.dtype == np.uint8) != (self.levels is not None):
            raise DataError("levels must be given if data is uint8, and only then.")
        table = self.levels
        if table is not None and (table.dtype != np.float32 or table.shape != (len(table),)):
            raise DataError(
                f"levels must be a one-dimensional float32 array; got {table.dtype} of shape "
                f"{table.shape}."
            )

    @classmethod
    def from_frame(
        cls,
        frame: FrameLike,
        *,
        user: str | None = None,
        item: str | None = None,
        rating: str | None = None,
        timestamp: str | None = None,
        event: str | None = None,
        duplicates: str | None = None,
        implicit: bool = False,
        item_table: TableLike | None = None,
        user_table: TableLike | None = None,
        **options: Unpack[RowOptions],
    ) -> Ratings:
        """Build ratings from a long frame with one row per rating or event.

        Parameters
        ----------
        frame : polars or pandas frame, or any object with the Arrow C stream interface
        user, item : str, optional
            Columns of ids: integers or strings. By default, these and the columns below are found
            by their usual names (user_id, movieId, stars, time, ...); see `Ratings.source`.
        rating : str, optional
            Column of numbers; without one the rows are implicit feedback. In a Boolean column, true
            rows are interactions and false rows are left out.
        timestamp : str, optional
            Column of times, in a form that `recsys.data.times.unix_seconds` reads.
        event : str, optional
            Column of the kinds of events, for `event_weights`.
        duplicates : {"last", "first", "mean", "sum", "error"}, optional
            Treatment of repeated (user, item) pairs. First and last refer to the time if known, and
            otherwise (and on ties) to the order of rows. By default the last row is kept, but
            weights of interactions are summed.
        implicit : bool
            Treat the data as implicit feedback and do not read the rating column.
        item_table, user_table : frame or Features, optional
            Tables of items and users. The column of ids has its usual name or the same name as in
            `frame`; see `Features`.
        event_weights : mapping of str to float, optional
            Weight of each kind of event, such as ``{"purchase": 5, "view": 1}``. Rows with weight 0
            are left out, and "*" matches all other kinds. The rating column is not read.
        half_life : str or float, optional
            Age at which the weight of an interaction is halved, relative to the last interaction:
            a string such as "30d" (units s, h, d, w, y), or a number of seconds.
        since, until : str, date, datetime or int, optional
            Use only rows at or after `since`, and before `until`.
        time_format : str, optional
            Format of the times, such as "%m/%d/%Y", or the unit of numbers: s, ms, us, ns.
        missing : float, optional
            Rating that marks a missing value, such as 0 or 99; its rows are left out.
        bad_rows : {"error", "skip"} or float
            Treatment of rows with a missing id or an unreadable rating or time. "error" raises at
            the first one. "skip" leaves them out, and raises if they are more than 1% of all rows;
            a float replaces this share.

        Raises
        ------
        DataError
            If a column is missing, an id is missing or neither integer nor string, a rating is
            not a finite number, a time cannot be read, there are no rows, a pair is repeated
            with `duplicates="error"`, or an option does not suit the data.
        """
        policy, rules = check_policy(duplicates), RowRules.of(**options)
        frame = as_frame(frame)
        names = column_names(frame)
        request = Request(user, item, rating, timestamp, event, implicit=implicit, rules=rules)

        def sample(place: int) -> list[Any]:
            return to_polars(frame.head(SAMPLE), [names[place]]).to_series().to_list()

        roles, layout = assign_roles(names, request, FRAME, ("user", "item"), sample)
        chosen = to_polars(frame, [names[place] for place in roles.values()])
        columns = {role: chosen[names[place]] for role, place in roles.items()}
        del chosen
        rows = prepared(Rows(columns, layout, bad=BadRows(rules.bad_rows)), rules)
        ratings = build_ratings(rows, policy, "frame")
        of_items, of_users = (ratings.items, item), (ratings.users, user)
        tables = table_of(item_table, *of_items), table_of(user_table, *of_users)
        return replace(ratings, item_table=tables[0], user_table=tables[1])

    @classmethod
    def from_matrix(
        cls,
        matrix: MatrixLike | pd.DataFrame,
        *,
        users: IdsLike | None = None,
        items: IdsLike | None = None,
        implicit: bool = False,
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
            If `implicit`, zeros are missing in each of them.
        users, items : sequence or Series of ids, optional
            Ids of the rows and columns. By default the labels of a pandas frame, else 0..n-1.
        implicit : bool
            The values are not ratings but weights or counts of interactions; those of 0 are none.
        item_table, user_table : frame or Features, optional
            As in `from_frame`.

        Raises
        ------
        DataError
            If the matrix is not two-dimensional or not of real numbers, holds an infinity (or,
            if sparse, a NaN), has no ratings, or the ids don't fit its shape, repeat or stand for a
            missing one.
        """
        if is_pandas(matrix):
            users = matrix.index.tolist() if users is None else users
            items = matrix.columns.tolist() if items is None else items
        shape, indptr, indices, values = matrix_arrays(matrix, zeros=not implicit)
        csr = CSR(shape, indptr, indices, Values.of(values))
        row_ids, row_codes = _axis(users, shape[0], "user")
        column_ids, column_codes = _axis(items, shape[1], "item")
        if row_codes is not None or column_codes is not None:
            rows = np.repeat(np.arange(shape[0], dtype=np.int32), np.diff(csr.indptr))
            rows = rows if row_codes is None else row_codes[rows]
            columns = csr.indices if column_codes is None else column_codes[csr.indices]
            csr = to_csr(Entries(rows, np.array(columns), csr.values), shape)
        tables = table_of(item_table, column_ids), table_of(user_table, row_ids)
        ratings = _of_csr(row_ids, column_ids, csr, implicit)
        return replace(ratings, item_table=tables[0], user_table=tables[1])

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
    def values(self) -> npt.NDArray[np.float32]:
        """Ratings as a float32 ndarray of shape (nnz,); a new array if they are coded."""
        values = Values(self.data, self.levels).at()
        values.flags.writeable = False
        return values

    def values_at(self, which: slice | npt.NDArray[Any]) -> npt.NDArray[np.float32]:
        """Return the ratings selected by a slice, a mask or positions, as numbers."""
        return Values(self.data, self.levels).at(which)

    @property
    def timestamps(self) -> npt.NDArray[np.int64] | None:
        """Whole seconds since 1970-01-01 UTC, an int64 ndarray of shape (nnz,), or None."""
        if self.seconds is None:
            return None
        whole = np.floor(self.seconds) if self.seconds.dtype == np.float64 else self.seconds
        wide = whole.astype(np.int64, copy=False)
        wide.flags.writeable = False
        return wide

    @property
    def coded(self) -> CodedMatrix | None:
        """Matrix of the coded ratings for `lowrank`, without a copy; None if they are not coded."""
        if self.levels is None:
            return None
        codes = cast("npt.NDArray[np.uint8]", self.data)
        return CodedMatrix(self.indptr, self.indices, codes, padded(self.levels), self.n_items)

    def distribution(self) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.int64]]:
        """Return the distinct values in increasing order, and the number of ratings of each."""
        if self.levels is None:
            return np.unique(self.values, return_counts=True)
        counts = level_counts(cast("npt.NDArray[np.uint8]", self.data))[: len(self.levels)]
        return self.levels[counts > 0], counts[counts > 0]

    def value_range(self) -> tuple[float, float]:
        """Return the smallest and largest value; (inf, -inf) without ratings."""
        values = self.distribution()[0] if self.levels is not None else self.data
        return float(values.min(initial=np.inf)), float(values.max(initial=-np.inf))

    def mean_and_std(self) -> tuple[float, float]:
        """Return the mean and standard deviation of the values."""
        if self.levels is None or not self.nnz:
            return float(self.data.mean(dtype=np.float64)), float(self.data.std(dtype=np.float64))
        values, counts = self.distribution()
        mean = float(np.average(values.astype(np.float64), weights=counts))
        return mean, float(np.average((values - np.float64(mean)) ** 2, weights=counts)) ** 0.5

    @property
    def weighted(self) -> bool:
        """True if some value is not 1, so that implicit feedback has weights."""
        return any(end != 1 for end in self.value_range())

    def with_values(self, values: npt.NDArray[np.float32] | float) -> Ratings:
        """Return the same pairs with other values: an array, or one number for all pairs.

        Raises
        ------
        DataError
            If the number of values differs from the number of ratings.
        """
        values = np.broadcast_to(np.asarray(values, np.float32), (self.nnz,))
        data, levels = Values.of(values) if np.ndim(values) else Values.ones(self.nnz)
        return replace(self, data=data, levels=levels)

    @property
    def matrix(self) -> sp.csr_array[np.float32]:
        """The ratings as a float32 csr_array that shares memory; do not write to it."""
        import scipy.sparse as sp

        matrix = sp.csr_array((self.values, self.indices, self.indptr), shape=self.shape)
        matrix.has_canonical_format = True
        return matrix

    @property
    def titles(self) -> pl.Series | None:
        """Titles in item index order (null where unknown), or None if there are none."""
        if not self.item_table or (title := self.item_table.title) is None:
            return None
        rows = self.item_table.rows_of(self.items)
        titles = self.item_table.frame[title][np.maximum(rows, 0)].alias("title")
        return titles.zip_with(pl.Series(rows >= 0), pl.Series([None], dtype=titles.dtype))

    def user_index_of_nonzeros(self) -> npt.NDArray[np.int32]:
        """Return the user index of each rating, an int32 ndarray of shape (nnz,)."""
        return np.repeat(np.arange(self.n_users, dtype=np.int32), np.diff(self.indptr))

    def take(self, which: npt.NDArray[Any]) -> Ratings:
        """Return the selected ratings, with the same users and items.

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
            raise DataError(f"Mask or positions do not fit {self.nnz} ratings: {error}.") from None
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
        )

    def to_frame(self) -> pl.DataFrame:
        """Return a long frame with the columns user, item, rating and timestamp, in CSR order.

        The timestamp column is missing if times are unknown. Implicit feedback has a rating column
        only if it is weighted.
        """
        columns = [self.users.take(self.user_index_of_nonzeros()), self.items.take(self.indices)]
        if not self.implicit or self.weighted:
            columns.append(pl.Series("rating", self.values))
        if self.seconds is not None:
            is_exact = self.seconds.dtype == np.float64
            columns.append(pl.Series("timestamp", self.seconds if is_exact else self.timestamps))
        return pl.DataFrame(columns)

    def __str__(self) -> str:
        percent = 100 * self.density
        filled = f"{percent:.0f}%" if percent >= 9.95 else f"{percent:.2g}%"  # two digits
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
            cell, box = "vertical-align:bottom;padding:0 1px", "background:#4878a8;width:24px"
            bars = "".join(
                f"<td style='{cell}' title='{count:,}'><div style='{box};height:"
                f"{60 * count / counts.max():.0f}px'></div><small>{low:.3g}</small></td>"
                for count, low in zip(counts, edges, strict=False)
            )
            html += f"<table><tr>{bars}</tr></table>"
        return f"{html}</div>"


def build_ratings(rows: Rows, duplicates: Policy | None, name: str) -> Ratings:
    """Build ratings from prepared rows, whose columns are removed to free memory.

    `name` is the name of the source. Users without ratings are kept.

    Raises
    ------
    DataError
        As `Ratings.from_frame`.
    """
    place, has_values = rows.place, "rating" in rows.columns
    policy = duplicates or ("sum" if rows.implicit and has_values else "last")
    users, items, entries = encoded(rows)
    csr = to_csr(entries, (len(users), len(items)), policy)
    if policy == "error" and csr.repeat is not None:
        first, second, at = csr.repeat
        user = users.values[int(np.searchsorted(csr.indptr, at, side="right")) - 1]
        item = items.values[int(csr.indices[at])]
        raise DataError(
            f"{place(second)}: user {user!r} has rated item {item!r} already "
            f"(first: {place(first)}); set duplicates to last, first, mean or sum."
        )
    if len(users) and users.values[int(np.diff(csr.indptr).argmax())] == "NA":
        rows.remarks.append("the user 'NA' has the most items, and may stand for none")
    source = Source.of(name, rows, csr.n_duplicates, policy)
    return _of_csr(users, items, csr, rows.implicit, source)


def _of_csr(
    users: Ids, items: Ids, csr: CSR, implicit: bool, source: Source | None = None
) -> Ratings:
    (data, levels), about = csr.values, {"n_duplicates": csr.n_duplicates, "source": source}
    arrays = (csr.indptr, csr.indices, data, csr.seconds)
    return Ratings(users, items, *arrays, implicit, levels=levels, **cast(Any, about))


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


def adopt_polars() -> None:
    """Allow polars in this forked process, whose parent must not have started its threads."""
    _polars_process["id"] = os.getpid()


def has_ratings(ratings: Ratings) -> npt.NDArray[np.bool_]:
    """Return which users have ratings, shape (n_users,)."""
    return np.diff(ratings.indptr) > 0


def has_items(ratings: Ratings) -> npt.NDArray[np.bool_]:
    """Return which items have ratings, shape (n_items,)."""
    return np.bincount(ratings.indices, minlength=ratings.n_items) > 0


def restricted(
    ratings: Ratings, users: npt.NDArray[np.bool_], items: npt.NDArray[np.bool_]
) -> Ratings:
    """Return the ratings of the selected users and items, which get new indices."""
    if users.all() and items.all():
        return ratings
    part = ratings.take(users[ratings.user_index_of_nonzeros()] & items[ratings.indices])
    index = np.cumsum(items, dtype=np.int32) - np.int32(1)
    own = {}
    for name, mask in (("user_features", users), ("item_features", items)):
        if (features := getattr(ratings, name)) is not None:
            own[name] = replace(features, matrix=features.matrix[np.flatnonzero(mask)])
    return replace(
        part,
        **own,
        users=Ids(ratings.users.values.filter(users), ratings.users.kind),
        items=Ids(ratings.items.values.filter(items), ratings.items.kind),
        indptr=np.append(part.indptr[:1], part.indptr[1:][users]),
        indices=index[part.indices],
    )


def table_of(table: TableLike | None, ids: Ids, column: str | None = None) -> Features | None:
    """Return a table of items or users, with its ids converted to the type of `ids` if possible."""
    return None if table is None else Features.of(table, ids.kind, column=column).matching(ids)


def _axis(
    given: IdsLike | None, length: int, kind: str
) -> tuple[Ids, npt.NDArray[np.int32] | None]:
    """Return the sorted ids of an axis and the new index of each of its rows (or columns)."""
    if given is None:
        return Ids(pl.Series(kind, np.arange(length)), kind), None
    series = as_id_series(given, kind)
    if len(series) != length:
        raise DataError(f"The matrix has {length} {kind}s; got {len(series)} {kind} ids.")
    ids = Ids(series, kind)
    if len(ids) != length:
        repeated = series.filter(series.is_duplicated())[0]
        raise DataError(f"{kind.capitalize()} id {repeated!r} is given more than once.")
    if len(missing := ids.missing()):
        raise DataError(f"An id of {kind}s is missing ({ids.values[int(missing[0])]!r}).")
    return ids, ids.find(series).astype(np.int32)
