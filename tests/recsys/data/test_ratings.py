"""Ratings: from frames and matrices to canonical CSR arrays, and back."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pytest
import scipy.sparse as sp
from hypothesis import given
from hypothesis import strategies as st

from recsys.data.ids import Ids
from recsys.data.ratings import Ratings
from recsys.data.rows import Source
from recsys.errors import DataError

FRAME = pl.DataFrame(
    {
        "user": ["bob", "ann", "bob", "eve"],
        "item": [30, 10, 20, 30],
        "rating": [4.0, 3.5, 1.0, 5.0],
        "timestamp": [400, 300, 100, 500],
    }
)

Row = tuple[int, int, float, int]
ROWS = st.lists(
    st.tuples(
        st.integers(-3, 3),
        st.integers(0, 4),
        st.integers(1, 10).map(lambda n: n / 2),
        st.integers(0, 5),
    ),
    min_size=1,
    max_size=40,
)


def frame_of(rows: list[Row]) -> pl.DataFrame:
    return pl.DataFrame(
        rows, schema=["user", "item", "rating", "timestamp"], orient="row"
    )


def assert_canonical(ratings: Ratings) -> None:
    assert ratings.indptr.dtype == np.int64
    assert ratings.indices.dtype == np.int32
    assert ratings.values.dtype == np.float32
    for start, end in zip(ratings.indptr[:-1], ratings.indptr[1:], strict=True):
        assert (np.diff(ratings.indices[start:end]) > 0).all()


# Frames


def test_arrays_of_a_small_frame() -> None:
    ratings = Ratings.from_frame(FRAME)
    assert ratings.users.values.to_list() == ["ann", "bob", "eve"]
    assert ratings.items.values.to_list() == [10, 20, 30]
    assert ratings.indptr.tolist() == [0, 1, 3, 4]
    assert ratings.indices.tolist() == [0, 1, 2, 2]
    assert ratings.values.tolist() == [3.5, 1.0, 4.0, 5.0]
    assert ratings.timestamps is not None
    assert ratings.timestamps.tolist() == [300, 100, 400, 500]
    assert ratings.user_index_of_nonzeros().tolist() == [0, 1, 1, 2]
    assert ratings.user_index_of_nonzeros().dtype == np.int32
    assert (ratings.implicit, ratings.n_duplicates) == (False, 0)
    assert (ratings.shape, ratings.nnz, ratings.n_ratings) == ((3, 3), 4, 4)
    assert ratings.density == 4 / 9


@given(ROWS)
def test_round_trip_through_a_frame(rows: list[Row]) -> None:
    ratings = Ratings.from_frame(frame_of(rows))
    assert_canonical(ratings)
    again = Ratings.from_frame(ratings.to_frame())
    assert again.to_frame().equals(ratings.to_frame())
    assert again.n_duplicates == 0
    assert again.users == ratings.users


@given(ROWS, st.randoms(use_true_random=False))
def test_the_order_of_rows_does_not_matter(rows: list[Row], random: Any) -> None:
    distinct_times = [(*row[:3], time) for time, row in enumerate(rows)]
    shuffled = random.sample(distinct_times, len(rows))
    one, other = (
        Ratings.from_frame(frame_of(r)).to_frame() for r in (distinct_times, shuffled)
    )
    assert one.equals(other)


@given(ROWS, st.sampled_from(["last", "first", "mean", "sum"]), st.booleans())
def test_duplicates_against_a_dictionary(
    rows: list[Row], policy: str, timed: bool
) -> None:
    groups = defaultdict(list)
    for position, (user, item, rating, time) in enumerate(rows):
        groups[user, item].append((time if timed else 0, position, rating))
    expected = {}
    for pair, group in groups.items():
        ordered = [rating for *_, rating in sorted(group)]
        expected[pair] = {
            "last": ordered[-1],
            "first": ordered[0],
            "mean": np.float32(np.mean(ordered)),
            "sum": np.float32(np.sum(ordered)),
        }[policy]
    frame = frame_of(rows) if timed else frame_of(rows).drop("timestamp")
    ratings = Ratings.from_frame(frame, duplicates=policy)
    assert_canonical(ratings)
    assert ratings.n_duplicates == len(rows) - len(groups)
    got = {
        (user, item): rating
        for user, item, rating, *_ in ratings.to_frame().iter_rows()
    }
    assert got == expected


@pytest.mark.parametrize(
    ("policy", "time"), [("last", 9), ("first", 3), ("mean", 9), ("sum", 9)]
)
def test_the_timestamp_that_merged_rows_keep(policy: str, time: int) -> None:
    frame = pl.DataFrame({"user": [1] * 3, "item": [1] * 3, "timestamp": [5, 9, 3]})
    timestamps = Ratings.from_frame(frame, duplicates=policy).timestamps
    assert timestamps is not None
    assert timestamps.tolist() == [time]


def test_duplicates_as_an_error_name_both_rows() -> None:
    frame = pl.concat([FRAME, FRAME.slice(0, 1), FRAME.slice(2, 1)])
    with pytest.raises(
        DataError, match=r"Row 5: user 'bob' has rated item 30 already \(first: Row 1\)"
    ):
        Ratings.from_frame(frame, duplicates="error")
    assert Ratings.from_frame(FRAME, duplicates="error").nnz == 4


def test_duplicates_in_sorted_rows_as_an_error() -> None:
    frame = pl.DataFrame({"user": [1, 1, 1], "item": [1, 2, 2]})
    with pytest.raises(
        DataError, match=r"Row 3: user 1 has rated item 2 already \(first: Row 2\)"
    ):
        Ratings.from_frame(frame, duplicates="error")


def test_without_rating_column_feedback_is_implicit() -> None:
    ratings = Ratings.from_frame(FRAME.select("user", "item"))
    assert ratings.implicit
    assert ratings.values.tolist() == [1.0] * 4
    assert ratings.timestamps is None
    assert ratings.to_frame().columns == ["user", "item"]
    assert Ratings.from_frame(FRAME, implicit=True).implicit


def test_implicit_rows_that_are_summed_become_counts() -> None:
    frame = pl.DataFrame({"user": [1, 1, 2], "item": [1, 1, 1]})
    ratings = Ratings.from_frame(frame, duplicates="sum")
    assert ratings.implicit
    assert ratings.to_frame().rows() == [(1, 1, 2.0), (2, 1, 1.0)]


def test_other_names_of_columns() -> None:
    frame = FRAME.rename({"user": "u", "item": "i", "rating": "r", "timestamp": "t"})
    ratings = Ratings.from_frame(frame, user="u", item="i", rating="r", timestamp="t")
    assert ratings.to_frame().equals(Ratings.from_frame(FRAME).to_frame())


class ArrowOnly:
    """An object with nothing but the Arrow C stream interface."""

    def __init__(self, frame: pl.DataFrame) -> None:
        self._frame = frame

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        return self._frame.__arrow_c_stream__(requested_schema)


@pytest.mark.parametrize(
    "convert",
    [
        pl.DataFrame.lazy,
        ArrowOnly,
        pl.DataFrame.to_arrow,
        lambda frame: pd.DataFrame(frame.to_dict(as_series=False)),
        lambda frame: pd.DataFrame(frame.to_dict(as_series=False)).convert_dtypes(),
        lambda frame: pd.DataFrame(frame.to_dict(as_series=False)).astype(
            {"user": "category"}
        ),
        lambda frame: pd.DataFrame(frame.to_dict(as_series=False)).astype(
            {"user": object}
        ),
        lambda frame: frame.with_columns(pl.col("user").cast(pl.Categorical)),
        lambda frame: frame.with_columns(pl.col("item").cast(pl.UInt16)),
        lambda frame: frame.with_columns(pl.col("rating").cast(pl.String)),
        lambda frame: frame.with_columns(pl.col("rating").cast(pl.Decimal(6, 2))),
    ],
)
def test_kinds_of_frames(convert: Any) -> None:
    ratings = Ratings.from_frame(convert(FRAME))
    assert ratings.to_frame().equals(Ratings.from_frame(FRAME).to_frame())


def test_something_else_than_a_frame() -> None:
    with pytest.raises(DataError, match=r"polars or pandas frame, or .* got dict"):
        Ratings.from_frame({"user": [1]})


# Bad frames


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"rating": [1.0, None, 2.0, 3.0]}, "Row 2: the rating is missing."),
        (
            {"rating": [1.0, 2.0, float("nan"), 3.0]},
            "Row 3: rating nan is not a finite number.",
        ),
        (
            {"rating": [1.0, 2.0, 3.0, float("inf")]},
            "Row 4: rating inf is not a finite number.",
        ),
        (
            {"rating": [1.0, 2.0, 3.0, 1e300]},
            "Row 4: rating 1e+300 does not fit in float32.",
        ),
        ({"rating": ["1", "abc", "2", "3"]}, "Row 2: rating 'abc' is not a number."),
        (
            {"rating": [[1], [2], [3], [4]]},
            "Ratings must be numbers; got a column of List",
        ),
        ({"user": [None, "a", "b", "c"]}, "Row 1: the user id is missing."),
        (
            {"item": [1.0, 2.5, 3.0, 4.0]},
            "Row 2: item id 2.5 is neither integer nor string.",
        ),
        ({"user": [True, False, True, False]}, "User ids must be integers or strings"),
        ({"timestamp": [1, 2, None, 4]}, "Row 3: the time is missing."),
        (
            {"timestamp": ["2020-01-01", "x", None, ""]},
            "Row 2: time 'x' is neither a number nor",
        ),
        (
            {"timestamp": [True, False, True, True]},
            "Times must be numbers, dates or ISO 8601",
        ),
    ],
)
def test_bad_values_are_named_with_their_row(
    changed: dict[str, Any], message: str
) -> None:
    frame = FRAME.with_columns(
        pl.Series(name, values) for name, values in changed.items()
    )
    with pytest.raises(DataError) as caught:
        Ratings.from_frame(frame, timestamp="timestamp")
    assert message in str(caught.value)


def test_missing_in_pandas() -> None:
    frame = pd.DataFrame({"user": ["a", None], "item": [1, 2]})
    with pytest.raises(DataError, match="Row 2: the user id is missing"):
        Ratings.from_frame(frame)
    with pytest.raises(DataError, match=r"Row 2: the user id is missing"):
        Ratings.from_frame(pd.DataFrame({"user": [1, None], "item": [1, 2]}))
    mixed = pd.DataFrame({"user": ["a", 1], "item": [1, 2]})
    with pytest.raises(DataError, match="Column 'user' mixes values of several types"):
        Ratings.from_frame(mixed)


def test_missing_columns_rows_and_policies() -> None:
    with pytest.raises(
        DataError, match=r"no user column; its columns are 'item'\. Name it with user="
    ):
        Ratings.from_frame(FRAME.select("item"))
    with pytest.raises(DataError, match="no column 'stars'"):
        Ratings.from_frame(FRAME, rating="stars")
    with pytest.raises(DataError, match="There are no ratings: the data have no rows"):
        Ratings.from_frame(FRAME.clear())
    with pytest.raises(
        DataError, match="one of last, first, mean, sum, error; got 'max'"
    ):
        Ratings.from_frame(FRAME, duplicates="max")


# Matrices

DENSE = np.array([[5.0, np.nan, 0.0], [np.nan, np.nan, np.nan], [np.nan, 2.0, 1.5]])
EXPECTED = [(0, 0, 5.0), (0, 2, 0.0), (2, 1, 2.0), (2, 2, 1.5)]


def sparse_like_dense() -> sp.coo_array:
    rows, columns, values = zip(*EXPECTED, strict=True)
    return sp.coo_array((values, (rows, columns)), shape=DENSE.shape)


@pytest.mark.parametrize("kind", ["csr", "csc", "coo", "lil", "dok", "bsr"])
@pytest.mark.parametrize("matrix_class", [False, True])
def test_sparse_matrices_keep_explicit_zeros(kind: Any, matrix_class: bool) -> None:
    sparse: Any = sparse_like_dense()
    if matrix_class:
        sparse = sp.coo_matrix(sparse)
    converted = sparse.asformat(kind)
    if kind == "bsr":
        converted = sparse.tobsr(blocksize=(1, 1))
    ratings = Ratings.from_matrix(converted)
    assert_canonical(ratings)
    assert ratings.to_frame().rows() == EXPECTED
    assert ratings.shape == (3, 3)


def test_dense_array_with_nan_for_missing() -> None:
    ratings = Ratings.from_matrix(DENSE)
    assert ratings.to_frame().rows() == EXPECTED
    assert ratings.indptr.tolist() == [0, 2, 2, 4]
    assert Ratings.from_matrix([[1, 2], [3, 4]]).nnz == 4


@pytest.mark.parametrize(
    "container", [np.array, pd.DataFrame, sp.csr_array, sp.coo_array]
)
def test_zeros_are_not_interactions(container: Any) -> None:
    given = container([[0.0, 2.0, 0.0], [1.0, 0.0, 3.0]])
    assert Ratings.from_matrix(given, implicit=True).to_frame()["item"].to_list() == [
        1,
        0,
        2,
    ]
    missing = Ratings.from_matrix(np.array([[0, np.nan, 1]]), implicit=True)
    assert (missing.shape, missing.indices.tolist()) == ((1, 3), [2])
    assert Ratings.from_matrix(np.eye(2, dtype=bool), implicit=True).nnz == 2
    stored = sp.csr_array((np.array([0.0, 1.0]), np.array([0, 1]), np.array([0, 2])))
    assert Ratings.from_matrix(stored, implicit=True).indices.tolist() == [1]
    assert stored.nnz == 2
    with pytest.raises(DataError, match="the matrix has no entries"):
        Ratings.from_matrix(np.zeros((2, 2)), implicit=True)


def test_labels_of_a_pandas_matrix_are_ids() -> None:
    table = pd.DataFrame(
        [[5.0, np.nan], [2.0, 3.0]], index=["eve", "ann"], columns=[30, 10]
    )
    ratings = Ratings.from_matrix(table)
    assert ratings.to_frame().rows() == [
        ("ann", 10, 3.0),
        ("ann", 30, 2.0),
        ("eve", 30, 5.0),
    ]
    nullable = Ratings.from_matrix(table.convert_dtypes())
    assert nullable.to_frame().equals(ratings.to_frame())
    assert Ratings.from_matrix(table, users=[7, 8]).users.values.to_list() == [7, 8]
    assert (
        Ratings.from_matrix(pd.DataFrame(DENSE))
        .to_frame()
        .equals(Ratings.from_matrix(DENSE).to_frame())
    )


def test_ids_of_a_matrix_in_any_order() -> None:
    ratings = Ratings.from_matrix(DENSE, users=["z", "y", "x"], items=[30, 10, 20])
    assert_canonical(ratings)
    expected = sorted((["z", "y", "x"][u], [30, 10, 20][i], r) for u, i, r in EXPECTED)
    assert ratings.to_frame().rows() == expected
    assert ratings.users.values.to_list() == ["x", "y", "z"]


def test_a_matrix_is_neither_changed_nor_written_to() -> None:
    unsorted = sp.csr_array((np.array([1.0, 2.0]), np.array([1, 0]), np.array([0, 2])))
    assert Ratings.from_matrix(unsorted).values.tolist() == [2.0, 1.0]
    assert unsorted.indices.tolist() == [1, 0]
    good = sp.csr_array(np.eye(3, dtype=np.float32))
    ratings = Ratings.from_matrix(good)
    good.data[:] = 7
    assert ratings.values.tolist() == [1.0, 1.0, 1.0]


def test_entries_stored_twice_are_summed_as_scipy_does() -> None:
    coo = sp.coo_array(([1.0, 2.0], ([0, 0], [0, 0])), shape=(1, 1))
    assert Ratings.from_matrix(coo).values.tolist() == [3.0]


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int32])
def test_sums_of_entries_that_are_stored_twice_do_not_overflow(dtype: type) -> None:
    coo = sp.coo_array(
        (np.array([100, 100, 100], dtype), ([0, 0, 0], [1, 1, 1])), shape=(1, 2)
    )
    assert Ratings.from_matrix(coo).values.tolist() == [300.0]


def test_masked_entries_and_zeros_that_fill_a_frame_are_missing() -> None:
    counts = np.array([[5, 0, 3], [0, 4, 1]])
    expected = Ratings.from_matrix(sp.csr_array(counts)).to_frame()
    assert expected.height == 4
    masked = np.ma.masked_equal(counts, 0)
    sparse = pd.DataFrame.sparse.from_spmatrix(sp.csr_array(counts))
    for matrix in (masked, masked.astype(np.float32), sparse):
        assert Ratings.from_matrix(matrix).to_frame().equals(expected)
    marked = pd.DataFrame(np.where(counts, counts, np.nan)).astype(
        pd.SparseDtype(float)
    )
    assert Ratings.from_matrix(marked).to_frame().equals(expected)
    assert Ratings.from_matrix(counts).nnz == 6


@pytest.mark.parametrize("convert", [np.array, sp.csr_array])
def test_a_weight_of_zero_is_not_an_interaction(convert: Any) -> None:
    weights = convert([[0.0, 2.0], [1.0, 0.0], [0.0, 0.0]])
    ratings = Ratings.from_matrix(weights, implicit=True)
    assert ratings.to_frame().rows() == [(0, 1, 2.0), (1, 0, 1.0)]
    assert ratings.shape == (3, 2)
    with pytest.raises(DataError, match="no ratings: the matrix has no entries"):
        Ratings.from_matrix([[0.0]], implicit=True)


@given(ROWS)
def test_the_matrix_and_its_ids_hold_everything(rows: list[Row]) -> None:
    ratings = Ratings.from_frame(frame_of(rows))
    users, items = ratings.users.values, ratings.items.values
    dense = ratings.matrix.toarray()
    assert dense.shape == (len({row[0] for row in rows}), len({row[1] for row in rows}))
    for user, item, rating, _ in ratings.to_frame().iter_rows():
        assert dense[users.to_list().index(user), items.to_list().index(item)] == rating
    again = Ratings.from_matrix(ratings.matrix, users=users, items=items)
    assert again.to_frame().equals(ratings.to_frame().drop("timestamp"))


@pytest.mark.parametrize(
    ("matrix", "arguments", "message"),
    [
        (np.zeros(3), {}, "must have 2 dimensions (users x items); got 1"),
        (np.array([["a"]]), {}, "must hold real numbers; got <U1"),
        (np.array([[1j]]), {}, "must hold real numbers; got complex128"),
        (
            [[1.0, np.inf]],
            {},
            "Row 0, column 1 (from 0): rating inf is not a finite number",
        ),
        (
            [[1.0, 1e200]],
            {},
            "Row 0, column 1 (from 0): rating 1e+200 is not a finite number",
        ),
        (sp.csr_array([[0.0, np.nan]]), {}, "Row 0, column 1 (from 0): rating nan"),
        (
            np.full((2, 2), np.nan),
            {},
            "There are no ratings: the matrix has no entries",
        ),
        (sp.csr_array((2, 2)), {}, "There are no ratings: the matrix has no entries"),
        (DENSE, {"users": [1, 2]}, "The matrix has 3 users; got 2 user ids"),
        (DENSE, {"items": ["a", "b", "a"]}, "Item id 'a' is given more than once"),
        (
            DENSE,
            {"users": ["a", "nan", "b"]},
            "In the ids of users, the user id is missing",
        ),
        ([[1, 2], [3]], {}, "The matrix must have rows of the same length"),
    ],
)
def test_bad_matrices(matrix: Any, arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError) as caught:
        Ratings.from_matrix(matrix, **arguments)
    assert message in str(caught.value)


def test_the_scipy_matrix_shares_memory_and_is_canonical() -> None:
    ratings = Ratings.from_frame(FRAME)
    ratings = replace(ratings, data=ratings.values, levels=None)
    matrix = ratings.matrix
    assert isinstance(matrix, sp.csr_array)
    assert matrix.dtype == np.float32
    assert matrix.has_canonical_format
    assert np.shares_memory(matrix.data, ratings.values)


# Immutability, parts, metadata, words


def test_arrays_cannot_be_written_to() -> None:
    ratings = Ratings.from_frame(FRAME)
    for array in (ratings.indptr, ratings.indices, ratings.values, ratings.timestamps):
        assert array is not None
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 0
    with pytest.raises(AttributeError):
        ratings.implicit = True  # type: ignore[misc]


def test_arrays_of_the_wrong_type_or_length_raise() -> None:
    ids = Ids([1], "user"), Ids([1], "item")
    indptr, one = np.array([0, 1]), np.ones(1, dtype=np.float32)
    with pytest.raises(
        DataError, match=r"indices must be int32 of shape \(1,\); got int64"
    ):
        Ratings(*ids, indptr, np.zeros(1, dtype=np.int64), one)
    with pytest.raises(
        DataError, match=r"data must be uint8 or float32 of shape \(1,\); got .* \(2,\)"
    ):
        Ratings(*ids, indptr, np.zeros(1, np.int32), np.ones(2, np.float32))


@given(ROWS, st.data())
def test_taking_part_of_the_ratings(rows: list[Row], data: st.DataObject) -> None:
    ratings = Ratings.from_frame(frame_of(rows))
    mask = np.array(
        data.draw(st.lists(st.booleans(), min_size=ratings.nnz, max_size=ratings.nnz))
    )
    mask = mask.astype(bool)
    part = ratings.take(mask)
    assert part.users is ratings.users
    assert part.items is ratings.items
    assert part.to_frame().equals(
        ratings.to_frame().filter(pl.Series(mask, dtype=pl.Boolean))
    )
    positions = np.random.default_rng(0).permutation(np.flatnonzero(mask))
    assert ratings.take(positions).to_frame().equals(part.to_frame())


@pytest.mark.parametrize(
    ("which", "message"),
    [
        (np.array([True]), "4 ratings: boolean index did not match"),
        (np.array([4]), "4 ratings: index 4 is out of bounds"),
        (np.array([0.5]), "4 ratings: arrays used as indices must be of integer"),
    ],
)
def test_parts_that_cannot_be_taken(which: Any, message: str) -> None:
    with pytest.raises(DataError, match=message):
        Ratings.from_frame(FRAME).take(which)


def test_tables_are_kept_with_ids_of_the_type_of_the_ratings() -> None:
    info = pl.DataFrame(
        {"item": ["30", "99", "10", "30"], "title": ["C", "?", "A", "again"]}
    )
    users = pd.DataFrame({"user": ["eve", "zoe"], "age": [33, 44]})
    ratings = Ratings.from_frame(FRAME, item_table=info, user_table=users)
    assert ratings.item_table is not None
    assert ratings.user_table is not None
    assert ratings.item_table.frame.rows() == [(30, "C"), (99, "?"), (10, "A")]
    assert ratings.user_table.frame.rows() == [("eve", 33), ("zoe", 44)]
    assert ratings.titles is not None
    assert ratings.titles.to_list() == ["A", None, "C"]


def test_tables_have_ids_named_as_in_the_ratings() -> None:
    frame = FRAME.rename({"item": "sku"})
    info = pl.DataFrame({"sku": [10, 30], "price": [1.5, 2.0]})
    ratings = Ratings.from_frame(frame, item="sku", item_table=info)
    assert ratings.item_table is not None
    assert ratings.item_table.frame.rows() == [(10, 1.5), (30, 2.0)]
    with pytest.raises(
        DataError, match="The table has no column 'sku' of items; it has price"
    ):
        Ratings.from_frame(frame, item="sku", item_table=info.select("price"))


def test_no_titles_without_a_column_of_them() -> None:
    assert Ratings.from_frame(FRAME).titles is None
    info = pl.DataFrame({"item": [10], "genre": ["x"]})
    assert Ratings.from_frame(FRAME, item_table=info).titles is None


@pytest.mark.parametrize(
    ("shape", "nnz", "words"),
    [
        ((610, 9724), 100836, "610 users x 9,724 items, 100,836 ratings, 1.7% filled"),
        ((1, 1), 1, "1 user x 1 item, 1 rating, 100% filled"),
        ((2, 500), 1, "2 users x 500 items, 1 rating, 0.1% filled"),
        ((3, 1000000), 3, "3 users x 1,000,000 items, 3 ratings, under 0.001% filled"),
    ],
)
def test_words(shape: tuple[int, int], nnz: int, words: str) -> None:
    ratings = Ratings(
        users=Ids(np.arange(shape[0]), "user"),
        items=Ids(np.arange(shape[1]), "item"),
        indptr=np.array([*[0] * shape[0], nnz]),
        indices=np.zeros(nnz, dtype=np.int32),
        data=np.ones(nnz, dtype=np.float32),
    )
    assert str(ratings) == words
    assert repr(ratings) == f"<Ratings: {words}>"


def test_words_of_implicit_feedback() -> None:
    assert "4 interactions" in str(Ratings.from_frame(FRAME, implicit=True))


def test_html_has_the_counts_the_source_and_a_histogram() -> None:
    frame = pl.DataFrame(
        {"user": [1, 1, 2], "item": [1, 2, 2], "rating": [1.0, 5.0, 5.0]}
    )
    ratings = replace(
        Ratings.from_frame(frame), source=Source("<r>.csv", "comma-separated")
    )
    html = ratings._repr_html_()
    assert "2 users x 2 items, 3 ratings" in html
    assert "&lt;r&gt;.csv: comma-separated" in html
    assert html.count("<td") == 2
    assert "<td" not in Ratings.from_frame(frame.drop("rating"))._repr_html_()


@pytest.mark.parametrize("container", [sp.csr_array, sp.coo_array, pd.DataFrame])
def test_a_matrix_of_counts_is_judged_as_a_frame_is(container):
    rng = np.random.default_rng(0)
    counts = rng.geometric(0.1, (40, 30)) * (rng.random((40, 30)) < 0.3)
    counts[0, :2] = -3, 7
    matrix = container(counts)
    if container is pd.DataFrame:
        matrix = matrix.astype(float).where(counts != 0)
    ratings = Ratings.from_matrix(matrix)
    users, items = np.nonzero(counts)
    rows = {"user": users, "item": items, "rating": counts[users, items]}
    expected = Ratings.from_frame(pl.DataFrame(rows))
    assert ratings.implicit
    assert ratings.to_frame().equals(expected.to_frame())
    assert ratings.feedback.kind == expected.feedback.kind == "counts"
    assert "; 1 pair left out whose weights add up to zero or less" in str(
        ratings.source
    )
    assert not Ratings.from_matrix(matrix, implicit=False).implicit
    assert Ratings.from_matrix(matrix, implicit=True).feedback is None


def test_values_of_a_matrix_that_stand_for_none_are_left_out_or_named():
    rng = np.random.default_rng(0)
    jokes = np.where(rng.random((20, 10)) < 0.5, 99.0, rng.uniform(-10, 10, (20, 10)))
    ratings = Ratings.from_matrix(jokes)
    assert "rows left out whose rating is 99 (not rated)" in str(ratings.source)
    expected = Ratings.from_matrix(jokes, missing=99)
    assert ratings.to_frame().equals(expected.to_frame())
    assert expected.value_range()[1] < 10
    jokes[2, 3] = 57
    jokes[jokes == 99] = 0
    assert "57 (row 2, column 3 (from 0)); --missing 57 (missing=)" in str(
        Ratings.from_matrix(jokes).source
    )
    zeros = np.where(rng.random((20, 10)) < 0.7, 0, rng.integers(1, 5, (20, 10)))
    assert "of the ratings are 0; missing=0 leaves them out" in str(
        Ratings.from_matrix(zeros).source
    )
    assert Ratings.from_matrix(zeros, missing=0).nnz == np.count_nonzero(zeros)
    with pytest.raises(DataError, match="the matrix has no entries"):
        Ratings.from_matrix(np.zeros((2, 2)), missing=0)


def test_true_entries_of_a_matrix_are_interactions():
    likes = np.array([[True, False, True], [False, True, False]])
    for matrix in (likes, sp.csr_array(likes), pd.DataFrame(likes)):
        ratings = Ratings.from_matrix(matrix)
        assert ratings.implicit
        assert ratings.to_frame().rows() == [(0, 0), (0, 2), (1, 1)]
