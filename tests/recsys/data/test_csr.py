"""Columns as they are read: the same ratings however rows are dealt into batches."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lowrank import kernels
from recsys import DataError, Ratings, read_ratings
from recsys.data.csr import Batches, Keys, Levels
from recsys.data.ratings import build_ratings
from recsys.data.rows import RowRules, prepared

IDS = (
    st.integers(-(2**40), 2**40)
    | st.integers(0, 9)
    | st.text("ab7", min_size=1, max_size=3)
)
FEW = pl.Categories("few", "", pl.UInt8)
VALUES = st.sampled_from([1.0, 2.5, 5.0]) | st.floats(-9, 9, width=32)


def batched(frame: pl.DataFrame, size: int) -> Ratings:
    batches = Batches()
    for start in range(0, len(frame), size):
        batches.add(frame.slice(start, size).to_dict())
    return build_ratings(prepared(batches.rows(), RowRules()), None, "frame")


def assert_same(ratings: Ratings, expected: Ratings) -> None:
    assert ratings.users == expected.users
    assert ratings.items == expected.items
    for name in ("indptr", "indices", "values", "timestamps"):
        np.testing.assert_array_equal(getattr(ratings, name), getattr(expected, name))
    assert ratings.implicit == expected.implicit


@given(
    st.lists(st.tuples(IDS, IDS, VALUES), min_size=1, max_size=40), st.integers(1, 40)
)
def test_batches_of_any_size_give_the_same_ratings(
    table: list[tuple[Any, Any, float]], size: int
) -> None:
    table = [(str(user), str(item), value) for user, item, value in table]
    if all(
        each.lstrip("-").isdecimal() and str(int(each)) == each for each, _, _ in table
    ):
        table = [(int(user), item, value) for user, item, value in table]
    frame = pl.DataFrame(table, ["user", "item", "rating"], orient="row")
    assert_same(batched(frame, size), Ratings.from_frame(frame))


def frame_of(n: int, **columns: Any) -> pl.DataFrame:
    given = {
        "user": np.arange(n) % 7,
        "item": np.arange(n) % 11,
        "rating": np.arange(n) % 5,
    }
    return pl.DataFrame({**given, **columns})


@pytest.mark.parametrize(
    "columns",
    [
        {
            "user": [*range(90), *range(2**33, 2**33 + 10)]
        },  # ids that need eight bytes, at last
        {"rating": np.arange(100) / 8 + np.float32(0.1)},
        {"rating": np.arange(1000, 1100) * 1e-3},
        {"rating": [3] * 50 + list(range(50))},
        {"timestamp": [1_700_000_000] * 99 + [2**33]},
        {"timestamp": [dt.datetime(1800 + n, 1, 1) for n in range(100)]},
        {"timestamp": [dt.date(2024, 1, 1)] * 100},
        {"timestamp": [20_240_101] * 100},
        {"item": [f"item-{n % 13}" for n in range(100)]},
        {"user": pl.Series([f"u{n % 3}" for n in range(100)], dtype=pl.Categorical)},
        {
            "user": pl.Series(
                ["a", "b"] * 50,
                dtype=pl.Categorical(pl.Categories("few", "", pl.UInt8)),
            )
        },
        {
            "user": [-(2**31), 2**31 - 1] * 50,
            "item": [10**9 + n % 7 for n in range(100)],
        },
    ],
)
def test_values_that_need_more_bytes(columns: dict[str, Any]) -> None:
    frame = frame_of(100, **columns)
    for size in (9, 100):
        assert_same(batched(frame, size), Ratings.from_frame(frame))


def test_more_than_256_different_ratings_are_numbers() -> None:
    frame = pl.DataFrame(
        {"user": np.arange(300), "item": 1, "rating": np.arange(300) * 1.0}
    )
    for n, dtype in ((256, np.uint8), (257, np.float32)):
        ratings = batched(frame.head(n), 100)
        assert ratings.data.dtype == dtype
        np.testing.assert_array_equal(ratings.values, np.arange(n))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"user": None}, "Row 95: the user id is missing"),
        ({"rating": None}, "Row 95: the rating is missing"),
        ({"rating": float("nan")}, "Row 95: rating nan is not a finite number"),
        ({"rating": 1e39}, r"Row 95: rating 1e\+39 does not fit in float32"),
        ({"timestamp": None}, "Row 95: the time is missing"),
    ],
)
def test_the_row_of_a_bad_value_is_named(change: dict[str, Any], message: str) -> None:
    frame = frame_of(100, timestamp=[1_700_000_000] * 100)
    good = frame.with_columns(pl.col("rating").cast(pl.Float64))
    bad = good[94].with_columns(
        pl.lit(value).alias(name) for name, value in change.items()
    )
    bad = bad.cast(dict(zip(good.columns, good.dtypes, strict=True)))
    with pytest.raises(DataError, match=message):
        batched(pl.concat([good.head(94), bad, good.tail(5)]), 10)


def test_files_with_other_levels_are_read_together(tmp_path: Path) -> None:
    frames = [
        pl.DataFrame({"user": [1, 2], "item": [1, 1], "rating": [5, 3]}),
        pl.DataFrame({"user": ["3", "x"], "item": [1, 2], "rating": [3.5, 3.0]}),
    ]
    for number, frame in enumerate(frames):
        frame.write_parquet(tmp_path / f"{number}.parquet")
    ratings = read_ratings(tmp_path)
    assert ratings.users.values.to_list() == ["1", "2", "3", "x"]
    assert ratings.values.tolist() == [5, 3, 3.5, 3]
    assert ratings.levels is not None
    assert ratings.levels.tolist() == [3, 3.5, 5]


def test_blocks_of_text_are_read_in_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = [f"{n % 17},{n % 29},{n % 5}.5,{1_700_000_000 + n}\n" for n in range(3000)]
    file = tmp_path / "ratings.csv"
    file.write_text(
        "user,item,rating,timestamp\n" + "\n".join(lines)
    )  # blank lines between them
    whole = read_ratings(file)
    counts = []
    monkeypatch.setattr("recsys.readers.delimited._BLOCK", 1000)
    assert_same(read_ratings(file, on_rows=lambda n, of: counts.append((n, of))), whole)
    assert [n for n, _ in counts] == sorted(n for n, _ in counts)
    assert len(counts) > 50
    assert counts[-1] == (3000, 3000)


def test_rows_are_what_they_were_before_and_after_a_bad_line(tmp_path: Path) -> None:
    file = tmp_path / "ratings.csv"
    file.write_text("user,item,rating\n" + "1,2,3\n" * 5 + '"7,8,3\n' + "4,5,3\n")
    with pytest.raises(DataError, match="line 7: the quotes don't match"):
        read_ratings(file)


@pytest.fixture(params=sorted({kernels.supported()[0], kernels.supported()[-1]}))
def kernel(request: pytest.FixtureRequest) -> Iterator[None]:
    active = kernels.backend()
    kernels.use(request.param)
    yield
    kernels.use(active.instruction_set or "reference")


@given(
    st.lists(
        st.floats(width=32, allow_nan=False) | st.sampled_from([1.0, 2.0]), max_size=40
    )
)
@pytest.mark.usefixtures("kernel")
def test_codes_stand_for_their_values(values: list[float]) -> None:
    levels = Levels()
    unsigned = np.float32(values) + np.float32(0)  # -0 is 0
    for batch in (slice(7), slice(7, None)):  # as they come
        part = np.float32(values[batch])
        codes = np.empty(len(part), np.uint8)
        assert levels.code(part, codes)
        assert levels.values[codes].tobytes() == unsigned[batch].tobytes()
    assert len(levels.values) == len(set(unsigned.tolist()))


@pytest.mark.usefixtures("kernel")
def test_more_than_256_levels_are_too_many() -> None:
    levels, codes = Levels(), np.empty(256, np.uint8)
    assert levels.code(np.arange(256, dtype=np.float32), codes)
    assert not levels.code(np.float32([7, 256]), codes[:2])
    assert levels.code(np.float32([7, 255]), codes[:2])
    assert list(codes[:2]) == [7, 255]


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
@given(
    keys=st.lists(st.integers(-50, 50), min_size=1, max_size=60), cut=st.integers(0, 60)
)
@pytest.mark.usefixtures("kernel")
def test_keys_are_told_apart_in_the_order_in_which_they_came(
    dtype: type, keys: list[int], cut: int
) -> None:
    found, given = Keys(), np.array(keys, dtype) * dtype(2**20)
    codes = np.concatenate([found.codes(part) for part in (given[:cut], given[cut:])])
    assert found.values.tolist() == list(dict.fromkeys(given.tolist()))
    np.testing.assert_array_equal(found.values[codes], given)


@pytest.mark.usefixtures("kernel")
def test_there_is_room_for_any_number_of_keys() -> None:
    found = Keys()
    for stride in (1, 1000, 2**16, -(2**45)):
        keys = np.random.default_rng(stride % 7).permutation(19_999) * stride
        codes = found.codes(keys)
        np.testing.assert_array_equal(found.values[codes], keys)
