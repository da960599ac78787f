"""Ratings: which user rated which item and how, with ids outside and a CSR matrix inside."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, replace
from html import escape
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import polars as pl

from recsys.data.csr import CSR, check_policy, csr_with_ids, to_csr
from recsys.data.frames import FrameLike, as_frame, column, column_names, is_pandas, to_polars
from recsys.data.ids import Ids, IdsLike, Place, as_id_series, encode, row_place
from recsys.data.times import unix_seconds
from recsys.errors import DataError
from recsys.messages import counted, shortened

if TYPE_CHECKING:
    import pandas as pd
    import scipy.sparse as sp

    from lowrank.arguments import MatrixLike

__all__ = ["Ratings", "Source", "build_ratings", "known_rows", "rating_problem", "rating_values"]

_LARGEST = float(np.finfo(np.float32).max)
_DTYPES = {"indptr": np.int64, "indices": np.int32, "values": np.float32, "timestamps": np.int64}
_DECIMAL_COMMA = re.compile(r"-?\d+,\d+")


@dataclass(frozen=True, slots=True)
class Source:
    """Origin of ratings that were read from a file; `str()` of it is one sentence.

    `layout` describes format and columns, `titles` says where titles come from or why a file of
    them is not used, `duplicates` what became of repeated (user, item) pairs.

    Examples
    --------
    >>> print(Source("r.csv", "comma-separated, user = user, item = item"))
    r.csv: comma-separated, user = user, item = item; no duplicates
    """

    name: str
    layout: str
    titles: str = ""
    duplicates: str = "no duplicates"

    def __str__(self) -> str:
        remarks = filter(None, (self.layout, self.titles, self.duplicates))
        return f"{self.name}: {'; '.join(remarks)}"


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
    values : float32 ndarray of shape (nnz,)
        Ratings; ones where only the fact of an interaction is known.
    timestamps : int64 ndarray of shape (nnz,), or None
        Seconds since 1970-01-01 UTC.
    implicit : bool
        No ratings were given, only interactions. `values` are ones, or counts where repeated
        pairs were summed.
    item_info, user_info : polars DataFrame or None
        Further columns: column "item" ("user") with ids, and e.g. "title", "genres", "year".
    n_duplicates : int
        Rows that were merged or dropped because their (user, item) pair was there already.
    source : Source or None
        How the file was read that they come from.

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
    values: npt.NDArray[np.float32]
    timestamps: npt.NDArray[np.int64] | None = None
    implicit: bool = False
    item_info: pl.DataFrame | None = None
    user_info: pl.DataFrame | None = None
    n_duplicates: int = 0
    source: Source | None = None

    def __post_init__(self) -> None:
        nnz = int(self.indptr[-1])
        lengths = {"indptr": len(self.users) + 1, "indices": nnz, "values": nnz, "timestamps": nnz}
        for name, length in lengths.items():
            array, dtype = getattr(self, name), _DTYPES[name]
            if array is None and name == "timestamps":
                continue
            if array.dtype != dtype or array.shape != (length,):
                raise DataError(
                    f"{name} must be {np.dtype(dtype)} of shape ({length},); "
                    f"got {array.dtype} of shape {array.shape}."
                )
            view = array.view()
            view.flags.writeable = False
            object.__setattr__(self, name, view)

    @classmethod
    def from_frame(
        cls,
        frame: FrameLike,
        *,
        user: str = "user",
        item: str = "item",
        rating: str | None = "rating",
        timestamp: str | None = "timestamp",
        duplicates: str = "last",
        item_info: FrameLike | None = None,
        user_info: FrameLike | None = None,
    ) -> Ratings:
        """Build ratings from a long frame with one row per rating.

        Parameters
        ----------
        frame : polars or pandas frame, or any object with the Arrow C stream interface
        user, item : str
            Columns of ids: integers or strings.
        rating : str or None
            Column of numbers. None, or a frame without the column "rating", means implicit
            feedback.
        timestamp : str or None
            Column of times, as `unix_seconds` reads them. None, or a frame without the column
            "timestamp": no times.
        duplicates : {"last", "first", "mean", "sum", "error"}
            Treatment of a (user, item) pair that is there more than once. Last and first go
            by time where there is one, by the order of rows otherwise and on ties.
        item_info, user_info : frame, optional
            Further columns next to a column of ids named "item" ("user"); rows of unknown ids
            are left out.

        Raises
        ------
        DataError
            If a column is missing, an id is missing or neither integer nor string, a rating is
            not a finite number, a time cannot be read, there are no rows, or a pair is repeated
            with `duplicates="error"`.
        """
        frame = as_frame(frame)
        present = column_names(frame)
        optional = {"rating": rating, "timestamp": timestamp}
        names = {"user": user, "item": item}
        names |= {r: n for r, n in optional.items() if n is not None and (n != r or r in present)}
        chosen = to_polars(frame, list(names.values()))
        columns = {role: chosen[name] for role, name in names.items()}
        return build_ratings(columns, None, row_place, duplicates, item_info, user_info)

    @classmethod
    def from_matrix(
        cls,
        matrix: MatrixLike | pd.DataFrame,
        *,
        users: IdsLike | None = None,
        items: IdsLike | None = None,
        implicit: bool = False,
        item_info: FrameLike | None = None,
        user_info: FrameLike | None = None,
    ) -> Ratings:
        """Build ratings from a matrix with one row per user and one column per item.

        Parameters
        ----------
        matrix : scipy.sparse matrix or array, or array_like, of shape (n_users, n_items)
            In a sparse matrix every stored entry is a rating, zeros too; entries that are stored
            twice are summed, as scipy does. In a dense array NaN marks what is missing.
        users, items : sequence or Series of ids, optional
            Ids of the rows and columns. If not given, the labels of a pandas frame, else 0..n-1.
        implicit : bool
            The values are not ratings but weights or counts of interactions.
        item_info, user_info : frame, optional
            As in `from_frame`.

        Raises
        ------
        DataError
            If the matrix is not two-dimensional or not of real numbers, holds an infinity (or,
            if sparse, a NaN), has no ratings, or the ids don't fit its shape or repeat.
        """
        if is_pandas(matrix):
            users = matrix.index.tolist() if users is None else users
            items = matrix.columns.tolist() if items is None else items
        rows, columns, csr = csr_with_ids(matrix, users, items)
        return _with_info(rows, columns, csr, implicit, item_info, user_info)

    @property
    def n_users(self) -> int:
        """Number of users, those without ratings included."""
        return len(self.users)

    @property
    def n_items(self) -> int:
        """Number of items, those without ratings included."""
        return len(self.items)

    @property
    def n_ratings(self) -> int:
        """Number of ratings."""
        return len(self.indices)

    @property
    def nnz(self) -> int:
        """Number of ratings, as scipy.sparse calls it."""
        return len(self.indices)

    @property
    def shape(self) -> tuple[int, int]:
        """(n_users, n_items)."""
        return (self.n_users, self.n_items)

    @property
    def density(self) -> float:
        """Share of the user x item pairs that are rated, 0 for an empty matrix."""
        cells = self.n_users * self.n_items
        return self.n_ratings / cells if cells else 0.0

    @property
    def matrix(self) -> sp.csr_array[np.float32]:
        """The ratings as a scipy csr_array of float32 that shares memory; don't write to it."""
        import scipy.sparse as sp

        matrix = sp.csr_array((self.values, self.indices, self.indptr), shape=self.shape)
        matrix.has_canonical_format = True
        return matrix

    @property
    def titles(self) -> pl.Series | None:
        """Titles in item index order (null where unknown), or None if there are none."""
        if self.item_info is None or "title" not in self.item_info.columns:
            return None
        places = self.items.find(self.item_info["item"])
        titles = pl.DataFrame({"index": places, "title": self.item_info["title"]})
        wanted = pl.DataFrame({"index": np.arange(self.n_items)})
        return wanted.join(titles, on="index", how="left", maintain_order="left")["title"]

    def user_index_of_nonzeros(self) -> npt.NDArray[np.int32]:
        """Return the user index of each rating, an int32 ndarray of shape (nnz,)."""
        return np.repeat(np.arange(self.n_users, dtype=np.int32), np.diff(self.indptr))

    def take(self, which: npt.NDArray[Any]) -> Ratings:
        """Return some of the ratings, with the same users and items (ids keep their indices).

        Parameters
        ----------
        which : bool ndarray of shape (nnz,), or int ndarray
            A mask, or distinct positions in CSR order.

        Raises
        ------
        DataError
            If the mask has another length, or a position is repeated or outside 0..nnz-1.
        """
        mask = which = np.asarray(which)
        if which.dtype != np.bool_:
            if which.size and which.dtype.kind not in "iu":
                raise DataError(f"Positions must be integers; got {which.dtype}.")
            if which.size and (which.min() < 0 or which.max() >= self.nnz):
                raise DataError(
                    f"Positions must be between 0 and {self.nnz - 1}; "
                    f"got {which.min()} to {which.max()}."
                )
            mask = np.zeros(self.nnz, dtype=np.bool_)
            mask[which.astype(np.int64)] = True
            if np.count_nonzero(mask) != which.size:
                raise DataError("Positions must be distinct; some are repeated.")
        elif mask.shape != (self.nnz,):
            raise DataError(f"The mask must have shape ({self.nnz},); got {mask.shape}.")
        before = np.zeros(self.nnz + 1, dtype=np.int64)
        np.cumsum(mask, out=before[1:])
        return replace(
            self,
            indptr=before[self.indptr],
            indices=self.indices[mask],
            values=self.values[mask],
            timestamps=None if self.timestamps is None else self.timestamps[mask],
            n_duplicates=0,
            source=None,
        )

    def to_frame(self) -> pl.DataFrame:
        """Return the long frame, by user and item: user, item, rating and timestamp where known.

        Implicit feedback has no rating column, unless repeated pairs were summed into counts.
        """
        columns = [self.users.take(self.user_index_of_nonzeros()), self.items.take(self.indices)]
        if not self.implicit or bool((self.values != 1).any()):
            columns.append(pl.Series("rating", self.values))
        if self.timestamps is not None:
            columns.append(pl.Series("timestamp", self.timestamps))
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
        """Return the counts, and a histogram of the ratings, for notebooks."""
        html = f"<div><b>Ratings</b>: {escape(str(self))}"
        if self.source is not None:
            html += f"<br><small>{escape(str(self.source))}</small>"
        if not self.implicit and self.nnz:
            counts, edges = np.histogram(self.values, bins=min(10, len(np.unique(self.values))))
            cell, box = "vertical-align:bottom;padding:0 1px", "background:#4878a8;width:24px"
            bars = "".join(
                f"<td style='{cell}' title='{count:,}'><div style='{box};height:"
                f"{60 * count / counts.max():.0f}px'></div><small>{low:.3g}</small></td>"
                for count, low in zip(counts, edges, strict=False)
            )
            html += f"<table><tr>{bars}</tr></table>"
        return f"{html}</div>"


def build_ratings(
    columns: dict[str, pl.Series],
    idle_users: pl.Series | None = None,
    place: Place = row_place,
    duplicates: str = "last",
    item_info: FrameLike | None = None,
    user_info: FrameLike | None = None,
) -> Ratings:
    """Build ratings from columns; the dictionary is emptied, so that memory is freed on the way.

    Idle users have no ratings, and are known nevertheless.

    Raises
    ------
    DataError
        As `Ratings.from_frame`.
    """
    policy = check_policy(duplicates)
    if len(columns["user"]) == 0:
        raise DataError("There are no ratings: the data have no rows.")
    implicit = "rating" not in columns
    users, user_codes = encode(as_id_series(columns.pop("user"), "user", place), "user", idle_users)
    items, item_codes = encode(as_id_series(columns.pop("item"), "item", place), "item", None)
    values = None if implicit else rating_values(columns.pop("rating"), place)
    times = unix_seconds(columns.pop("timestamp"), place) if "timestamp" in columns else None
    csr = to_csr(user_codes, item_codes, values, times, (len(users), len(items)), policy)
    if policy == "error" and csr.repeat is not None:
        first, second = csr.repeat
        user, item = users.values[int(user_codes[first])], items.values[int(item_codes[first])]
        raise DataError(
            f"{place(second)}: user {user!r} has rated item {item!r} already "
            f"(first: {place(first)}); choose what counts: last, first, mean or sum."
        )
    return _with_info(users, items, csr, implicit, item_info, user_info)


def _with_info(
    users: Ids, items: Ids, csr: CSR, implicit: bool, *info: FrameLike | None
) -> Ratings:
    """Return ratings with the metadata of items and of users that are known."""
    arrays = csr.indptr, csr.indices, csr.values, csr.timestamps
    item_info, user_info = map(known_rows, info, (items, users))
    return Ratings(users, items, *arrays, implicit, item_info, user_info, csr.n_duplicates)


def known_rows(info: FrameLike | None, ids: Ids) -> pl.DataFrame | None:
    """Return the rows of a metadata frame whose ids are known, the first of each id."""
    if info is None:
        return None
    frame = info if isinstance(info, pl.DataFrame) else to_polars(info)
    given = frame[ids.kind] if ids.kind in frame.columns else column(frame, ids.kind)
    found = pl.Series(ids.kind, ids.find(given))
    known = frame.select(found, pl.exclude(ids.kind))
    known = known.filter(pl.col(ids.kind) >= 0).unique(ids.kind, keep="first", maintain_order=True)
    return known.with_columns(ids.take(known[ids.kind].to_numpy()))


def rating_values(series: pl.Series, place: Place = row_place) -> npt.NDArray[np.float32]:
    """Return ratings as float32.

    Raises
    ------
    DataError
        If one is not a finite number.
    """
    dtype = series.dtype
    if not (dtype.is_numeric() or dtype in (pl.Boolean, pl.String, pl.Null)):
        raise DataError(f"Ratings must be numbers; got a column of {dtype} values.")
    numbers = series.cast(pl.Float32, strict=False)
    bad = numbers.is_null() | ~numbers.is_finite()
    if bad.any():
        row = bad.arg_max() or 0
        raise DataError(f"{place(row)}: {rating_problem(series[row])}")
    return numbers.to_numpy()


def rating_problem(value: object) -> str | None:
    """Say in words why a value cannot be a rating, or return None if it can."""
    if value is None or value == "":
        return "the rating is missing."
    text = str(value)
    try:
        number = float(text.replace("_", "?"))  # Python reads 1_000 as a number, files don't
    except ValueError:
        point = "; decimals need a point" if _DECIMAL_COMMA.fullmatch(text) else ""
        return f"rating {shortened(text)!r} is not a number{point}."
    if not math.isfinite(number):
        return f"rating {text} is not a finite number."
    return f"rating {text} does not fit in float32." if abs(number) > _LARGEST else None
