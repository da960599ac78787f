"""Ratings: which user rated which item and how, with ids outside and a CSR matrix inside."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import polars as pl

from recsys.data.csr import (
    CSR,
    canonical_csr,
    check_policy,
    ids_of_axis,
    labels_of,
    permuted,
    to_csr,
)
from recsys.data.frames import (
    column,
    column_names,
    encode,
    known_rows,
    rating_values,
    to_polars,
    unix_seconds,
)
from recsys.data.ids import Ids, as_id_series, row_place
from recsys.errors import DataError
from recsys.messages import counted

if TYPE_CHECKING:
    import scipy.sparse as sp

__all__ = ["Ratings", "Source", "build_ratings"]


@dataclass(frozen=True, slots=True)
class Source:
    """Origin of ratings that were read from a file; `str()` of it is one sentence.

    Attributes
    ----------
    name : str
        Name of the file, such as "ml-1m/ratings.dat".
    layout : str
        Format and columns, such as "comma-separated, user = userId, item = movieId".
    titles : str
        Where titles come from, or why a file of titles is not used; empty without one.
    duplicates : str
        Number of repeated (user, item) pairs and what became of them.

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
    canonical (items increasing within each user, no pair twice) and read-only; copying a
    `Ratings` shares them.

    Attributes
    ----------
    users, items : Ids
        The ids, in index order.
    indptr : int64 ndarray of shape (n_users + 1,)
        User u's ratings are at positions indptr[u]:indptr[u + 1].
    indices : int32 ndarray of shape (nnz,)
        Item indices.
    values : float32 ndarray of shape (nnz,)
        Ratings; ones where only the fact of an interaction is known.
    timestamps : int64 ndarray of shape (nnz,), or None
        Seconds since 1970-01-01 UTC.
    implicit : bool
        No ratings were given, only interactions. `values` are ones, or counts where repeated
        pairs were summed.
    item_info, user_info : polars DataFrame or None
        What else is known: column "item" ("user") with ids, and e.g. "title", "genres", "year".
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
        self._freeze("indptr", np.int64, len(self.users) + 1)
        nnz = int(self.indptr[-1])
        self._freeze("indices", np.int32, nnz)
        self._freeze("values", np.float32, nnz)
        if self.timestamps is not None:
            self._freeze("timestamps", np.int64, nnz)

    def _freeze(self, name: str, dtype: type[np.generic], length: int) -> None:
        """Replace an array by a read-only view of it, after a look at its type and length."""
        array = getattr(self, name)
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
        frame: object,
        *,
        user: str = "user",
        item: str = "item",
        rating: str | None = "rating",
        timestamp: str | None = "timestamp",
        duplicates: str = "last",
        item_info: object | None = None,
        user_info: object | None = None,
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
            Column of unix times (seconds, or milliseconds if above 1e11), dates, or ISO 8601
            strings. None, or a frame without the column "timestamp": no times.
        duplicates : {"last", "first", "mean", "sum", "error"}
            What to do with a (user, item) pair that is there more than once. Last and first go
            by time where there is one, by the order of rows otherwise and on ties.
        item_info, user_info : frame, optional
            Further columns beside a column of ids named "item" ("user"); rows of unknown ids
            are left out.

        Raises
        ------
        DataError
            If a column is missing, an id is missing or neither integer nor string, a rating is
            not a finite number, a time cannot be read, there are no rows, or a pair is repeated
            with `duplicates="error"`.
        """
        polars_frame = to_polars(frame)
        names = {"user": user, "item": item}
        present = column_names(polars_frame)
        if rating is not None and (rating != "rating" or rating in present):
            names["rating"] = rating
        if timestamp is not None and (timestamp != "timestamp" or timestamp in present):
            names["timestamp"] = timestamp
        columns = {role: column(polars_frame, name) for role, name in names.items()}
        return build_ratings(
            columns, duplicates=duplicates, item_info=item_info, user_info=user_info
        )

    @classmethod
    def from_matrix(
        cls,
        matrix: Any,
        *,
        users: Sequence[Any] | pl.Series | None = None,
        items: Sequence[Any] | pl.Series | None = None,
        implicit: bool = False,
        item_info: object | None = None,
        user_info: object | None = None,
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
        csr = canonical_csr(matrix)
        labels = labels_of(matrix)
        row_ids = ids_of_axis(labels.rows if users is None else users, csr.shape[0], "user")
        column_ids = ids_of_axis(labels.columns if items is None else items, csr.shape[1], "item")
        csr = permuted(csr, row_ids.codes, column_ids.codes)
        return _with_info(
            row_ids.ids,
            column_ids.ids,
            csr,
            implicit=implicit,
            item_info=item_info,
            user_info=user_info,
        )

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
            A mask, or distinct positions in CSR order; the result is in CSR order again.

        Raises
        ------
        DataError
            If the mask has another length, or a position is repeated or outside 0..nnz-1.
        """
        mask = _as_mask(np.asarray(which), self.nnz)
        before = np.zeros(self.nnz + 1, dtype=np.int64)
        np.cumsum(mask, out=before[1:])
        return Ratings(
            users=self.users,
            items=self.items,
            indptr=before[self.indptr],
            indices=self.indices[mask],
            values=self.values[mask],
            timestamps=None if self.timestamps is None else self.timestamps[mask],
            implicit=self.implicit,
            item_info=self.item_info,
            user_info=self.user_info,
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
        noun = "interaction" if self.implicit else "rating"
        return (
            f"{counted(self.n_users, 'user')} x {counted(self.n_items, 'item')}, "
            f"{counted(self.n_ratings, noun)}, {_percent(self.density)} filled"
        )

    def __repr__(self) -> str:
        return f"<Ratings: {self}>"


def build_ratings(
    columns: dict[str, pl.Series],
    *,
    duplicates: str = "last",
    item_info: object | None = None,
    user_info: object | None = None,
    idle_users: pl.Series | None = None,
    place: Callable[[int], str] = row_place,
) -> Ratings:
    """Build ratings from columns; the dictionary is emptied, so that memory is freed on the way.

    Parameters
    ----------
    columns : dict of Series
        "user", "item", and possibly "rating" and "timestamp", all of one length.
    duplicates, item_info, user_info
        As in `Ratings.from_frame`.
    idle_users : Series, optional
        Ids of users without any rating, who shall be known nevertheless.
    place : callable, optional
        Names the place of a row (counted from 0) in messages.

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
    return _with_info(
        users, items, csr, implicit=implicit, item_info=item_info, user_info=user_info
    )


def _with_info(
    users: Ids,
    items: Ids,
    csr: CSR,
    *,
    implicit: bool,
    item_info: object | None,
    user_info: object | None,
) -> Ratings:
    return Ratings(
        users=users,
        items=items,
        indptr=csr.indptr,
        indices=csr.indices,
        values=csr.values,
        timestamps=csr.timestamps,
        implicit=implicit,
        item_info=known_rows(item_info, items),
        user_info=known_rows(user_info, users),
        n_duplicates=csr.n_duplicates,
    )


def _as_mask(which: npt.NDArray[Any], nnz: int) -> npt.NDArray[np.bool_]:
    """Return a mask or positions as a mask over the ratings."""
    if which.dtype == np.bool_:
        if which.shape != (nnz,):
            raise DataError(f"The mask must have shape ({nnz},); got {which.shape}.")
        return which
    if which.size and which.dtype.kind not in "iu":
        raise DataError(f"Positions must be integers; got {which.dtype}.")
    if which.size and (which.min() < 0 or which.max() >= nnz):
        raise DataError(
            f"Positions must be between 0 and {nnz - 1}; got {which.min()} to {which.max()}."
        )
    mask = np.zeros(nnz, dtype=np.bool_)
    mask[which.astype(np.int64)] = True
    if np.count_nonzero(mask) != which.size:
        raise DataError("Positions must be distinct; some are repeated.")
    return mask


def _percent(share: float) -> str:
    """Return a share as a percentage with two significant digits."""
    percent = 100 * share
    if percent >= 9.95:
        return f"{percent:.0f}%"
    return f"{percent:.2g}%" if percent >= 0.001 or not percent else "under 0.001%"
