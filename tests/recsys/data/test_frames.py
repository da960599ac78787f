"""Columns of frames: times in all their spellings."""

from __future__ import annotations

import uuid
from datetime import UTC, date, datetime, timedelta, timezone
from typing import Any

import pandas as pd
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from recsys.data.csr import encode
from recsys.data.frames import listed, to_polars
from recsys.data.ratings import Ratings
from recsys.data.rows import rating_problem
from recsys.data.times import unix_seconds
from recsys.errors import DataError

SECONDS = 1_112_486_027  # 2005-04-02 23:53:47 UTC
MOMENT = datetime(2005, 4, 2, 23, 53, 47, tzinfo=UTC)


@pytest.mark.parametrize(
    "value",
    [
        SECONDS,
        float(SECONDS) + 0.75,
        SECONDS * 1000 + 999,
        SECONDS * 10**6,
        SECONDS * 10**9,
        str(SECONDS),
        str(SECONDS * 1000),
        f"{SECONDS}.5",
        "2005-04-02 23:53:47",
        "2005-04-02T23:53:47",
        "2005-04-02T23:53:47Z",
        "2005-04-02T23:53:47.999",
        "2005-04-03T01:53:47+02:00",
        "2005-04-03 01:53:47.25+0200",
        MOMENT,
        MOMENT.replace(tzinfo=None),
        MOMENT.astimezone(timezone(timedelta(hours=-7))),
    ],
)
def test_one_moment_in_many_spellings(value: Any) -> None:
    assert unix_seconds(pl.Series([value, value])).to_list() == [SECONDS, SECONDS]


@pytest.mark.parametrize("value", ["2005-04-02", date(2005, 4, 2), "2005-04-02 00:00"])
def test_dates(value: Any) -> None:
    assert unix_seconds(pl.Series([value])).to_list() == [1_112_400_000]


def test_spellings_may_be_mixed_in_a_column() -> None:
    mixed = pl.Series(["2005-04-02", "2005-04-02 00:00:01", "2005-04-02T00:00:02Z"])
    assert unix_seconds(mixed).to_list() == [
        1_112_400_000,
        1_112_400_001,
        1_112_400_002,
    ]


def test_times_before_1970() -> None:
    assert unix_seconds(pl.Series(["1969-12-31", "1970-01-01"])).to_list() == [
        -86400,
        0,
    ]
    assert unix_seconds(pl.Series([-0.5])).to_list() == [-1]


def test_datetimes_of_pandas() -> None:
    frame = pd.DataFrame({"t": pd.to_datetime(["2005-04-02 23:53:47"])})
    assert unix_seconds(to_polars(frame, ["t"]).to_series()).to_list() == [SECONDS]
    aware = pd.DataFrame({"t": pd.to_datetime(["2005-04-03 01:53:47+02:00"])})
    assert unix_seconds(to_polars(aware, ["t"]).to_series()).to_list() == [SECONDS]


@given(st.lists(st.integers(0, 10**11), min_size=1))
def test_whole_seconds_stay_as_they_are(times: list[int]) -> None:
    assert unix_seconds(pl.Series(times)).to_list() == times


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ([1, None], "Row 2: the time is missing."),
        ([1.0, float("nan")], "Row 2: the time is missing."),
        (["1", ""], "Row 2: the time is missing."),
        (
            ["2005-13-01"],
            "time '2005-13-01' does not exist",
        ),
        (
            ["5", "2005-01-01"],
            "Row 2: time '2005-01-01' is a date, but other times are numbers;",
        ),
        (["5", "soon"], "Row 2: time 'soon' is neither"),
    ],
)
def test_times_that_cannot_be_read(values: list[Any], message: str) -> None:
    with pytest.raises(DataError) as caught:
        unix_seconds(pl.Series(values))
    assert str(caught.value) == message or message in str(caught.value)


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        ("3.5", None),
        (-2, None),
        ("1e3", None),
        ("1_000", "rating '1_000' is not a number; write 1000."),
        ("4,5", "rating '4,5' is not a number; decimals need a point."),
        ("x" * 60, f"rating {'x' * 40 + '...'!r} is not a number."),
        ("NaN", "the rating is missing ('NaN')."),
        (None, "the rating is missing."),
        ("", "the rating is missing."),
        ("1e39", "rating 1e39 does not fit in float32."),
    ],
)
def test_errors_explain_bad_ratings(value: object, problem: str | None) -> None:
    assert rating_problem(value) == problem


@pytest.mark.parametrize("missing", [None, pd.NA, pd.NaT, float("nan")])
def test_what_pandas_calls_missing_is_null(missing: Any) -> None:
    frame = pd.DataFrame({"user": pd.Series(["a", missing, "b"], dtype=object)})
    assert to_polars(frame, ["user"]).to_series().to_list() == ["a", None, "b"]
    nullable = pd.DataFrame({"user": pd.array([1, None, 3], dtype="Int64")})
    assert to_polars(nullable, ["user"]).to_series().to_list() == [1, None, 3]


def test_more_ids_than_can_be_counted_raise(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("recsys.data.csr._MOST_IDS", 2)
    ids, codes = encode(pl.Series([7, 5, 7]), "user")
    assert (ids.values.to_list(), codes.tolist()) == ([5, 7], [1, 0, 1])
    with pytest.raises(DataError, match="There may be at most 2 users; got 3"):
        encode(pl.Series([7, 5, 6]), "user")


def test_a_column_in_the_index_of_pandas_is_pointed_to() -> None:
    frame = pd.DataFrame({"user": [1], "item": [2]}).set_index("user")
    with pytest.raises(
        DataError, match=r"its columns are item\. It is in the index; reset_index"
    ):
        to_polars(frame, ["user"]).to_series()


def test_a_column_that_is_there_twice_raises() -> None:
    frame = pd.DataFrame([[1, 2, 3]], columns=["user", "item", "user"])
    with pytest.raises(
        DataError, match="The frame has several columns 'user'; rename all but"
    ):
        to_polars(frame, ["user"]).to_series()


@pytest.mark.parametrize("value", [pd.Series([1]), pl.Series([1]), [1], "ratings.csv"])
def test_rejects_other_types_than_frames(value: object) -> None:
    with pytest.raises(
        DataError, match=r"Expected a polars or pandas frame, .*; got (Series|list|str)"
    ):
        to_polars(value)


@pytest.mark.parametrize(
    "ids", [{1: 5.0}, pd.DataFrame({"user": [1]}), pl.DataFrame({"user": [1]})]
)
def test_neither_mappings_nor_frames_are_ids(ids: object) -> None:
    with pytest.raises(
        DataError, match=r"Expected an id or a sequence of ids; got a (dict|DataF)"
    ):
        listed(ids)


def test_ids_of_a_database_driver_are_texts():
    ids = [uuid.UUID(int=number) for number in (1, 2, 2)]
    frame = pd.DataFrame({"user": ids, "item": ["x", "x", "y"]})
    users = Ratings.from_frame(frame).users.values
    assert users.to_list() == [str(ids[0]), str(ids[1])]
