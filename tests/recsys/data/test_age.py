"""Age of events, the present time, and dates in the future or that mean "never"."""

from datetime import UTC, datetime

import numpy as np
import polars as pl
import pytest

from recsys.data.age import (
    DAY,
    Dated,
    check_reach,
    dated,
    event_time_problem,
    reference_time,
)
from recsys.data.ids import Spot
from recsys.data.ratings import Ratings
from recsys.errors import DataError

NOW = datetime(2025, 11, 1, tzinfo=UTC).timestamp()


def seconds(*date):
    return datetime(*date, tzinfo=UTC).timestamp()


@pytest.mark.parametrize(
    "at",
    [
        seconds(1990, 1, 1),
        seconds(1969, 7, 20, 20, 17, 40),
        seconds(1970, 1, 1, 0, 0, 17),
        seconds(2025, 10, 31, 12) + 0.5,
        NOW,
        NOW + 86_400,
    ],
)
def test_times_up_to_a_day_from_now_are_of_events(at):
    assert event_time_problem(at, NOW) is None


@pytest.mark.parametrize(
    "at",
    [
        NOW + 86_401,
        seconds(2035, 1, 1),
        seconds(2999, 12, 31),
        seconds(9999, 12, 31, 23, 59, 59),
        1e18,
        float("inf"),
    ],
)
def test_times_of_the_future_are_not_of_events(at):
    problem = event_time_problem(at, NOW)
    assert problem is not None
    assert problem.endswith("is more than a day after the present time, 2025-11-01.")


@pytest.mark.parametrize(
    "at",
    [
        0,
        -1,
        3600,  # midnight in London in 1970
        -5.5 * 3600,  # in Delhi
        seconds(1900, 1, 1),
        seconds(1899, 12, 30),
        seconds(1753, 1, 1),
        seconds(1601, 1, 1),
        seconds(1, 1, 1),
        -1e15,
    ],
)
def test_dates_that_mean_never_are_not_of_events(at):
    assert 'means "never"' in str(event_time_problem(at, NOW))


def test_the_present_time_is_that_of_the_clock():
    assert event_time_problem(datetime.now(UTC).timestamp() + 80_000) is None
    assert event_time_problem(datetime.now(UTC).timestamp() + 90_000) is not None


def place(row):
    return Spot((row,), f"line {row + 2}")


def judged(*times):
    return dated(np.array(times), int(NOW), place)


BULK = [seconds(2025, 10, 1) + hour * 3600 for hour in range(200)]


def test_times_of_the_past_are_all_kept():
    assert judged(*BULK, NOW + 86_400) == Dated(None, [])


@pytest.mark.parametrize(
    ("at", "said"),
    [
        (
            NOW + 90_000,
            "1 row after the present time left out (line 202: 2025-11-02 01:00:00 UTC)",
        ),
        (
            seconds(2099, 1, 1),
            "1 row after the present time left out (line 202: 2099-01-01)",
        ),
        (0, '1 row left out whose time means "never" (line 202: 1970-01-01)'),
        (
            -3600,
            '1 row left out whose time means "never" (line 202: 1969-12-31 23:00:00 UTC)',
        ),
        (
            seconds(1900, 1, 1),
            '1 row left out whose time means "never" (line 202: 1900-01-01)',
        ),
        (
            -(2**31),
            '1 row left out whose time means "never" (line 202: 1901-12-13 20:45:52 UTC)',
        ),
        (
            -9_223_372_037,
            '1 row left out whose time means "never" (line 202: 1677-09-21 00:12:43 UTC)',
        ),
        (
            seconds(1753, 1, 1),
            '1 row left out whose time means "never" (line 202: 1753-01-01)',
        ),
        (
            seconds(2999, 12, 31),
            '1 row left out whose time means "never" (line 202: 2999-12-31)',
        ),
        (
            2**62,
            '1 row left out whose time means "never" (line 202: after the year 9999)',
        ),
        (
            -(2**62),
            '1 row left out whose time means "never" (line 202: before the year 1)',
        ),
    ],
)
def test_one_time_of_no_event_is_left_out_and_named(at, said):
    found = judged(*BULK, at)
    assert found.remarks == [said]
    assert found.kept is not None
    assert found.kept.tolist() == [True] * 200 + [False]


def test_the_first_three_rows_are_named():
    found = judged(*BULK, *[seconds(2035, 1, day) for day in range(1, 6)])
    assert found.remarks == [
        "5 rows after the present time left out (line 202: 2035-01-01; line 203: 2035-01-02; "
        "line 204: 2035-01-03; and 2 more)"
    ]


def test_times_before_1990_are_kept_and_said():
    found = judged(*BULK, seconds(1985, 5, 1), 1_700_000)
    assert found.kept is None
    assert found.remarks == [
        "2 rows before 1990 (line 202: 1985-05-01; line 203: 1970-01-20 16:13:20 UTC)"
    ]
    assert judged(0, 100, 86_400).remarks == [
        "all times are before 1990, from 1970-01-01 to 1970-01-02; --time-format gives another unit"
    ]
    assert judged(2019, 2021, 2025).remarks == [
        "all times are before 1990, on 1970-01-01; --time-format %Y reads the numbers as years"
    ]
    assert judged(202311, 202402, 202412).remarks == [
        "all times are before 1990, on 1970-01-03; --time-format %Y%m reads the numbers as months"
    ]


def test_it_is_an_error_if_nearly_all_rows_would_be_left_out():
    with pytest.raises(DataError) as caught:
        judged(*[time + 10 * 365 * 86_400 for time in BULK], NOW)
    assert (
        "200 of 201 rows have no time of the past: 200 rows after the present"
        in str(caught.value)
    )
    assert "The present time is 2025-11-01 00:00:00 UTC: --as-of DATE (as_of=)" in str(
        caught.value
    )
    with pytest.raises(DataError, match='200 rows left out whose time means "never"'):
        judged(*[0] * 200, NOW)


def test_the_reference_is_the_newest_time_that_is_not_of_the_future():
    assert reference_time(np.array([*BULK, seconds(2035, 1, 1)]), int(NOW)) == BULK[-1]
    assert reference_time(np.array([NOW + 80_000.5]), int(NOW)) == NOW + 80_000.5
    with pytest.raises(
        DataError, match="1 of 1 events are later than the present time, 2025-11-01"
    ):
        reference_time(np.array([seconds(2035, 1, 1)]), int(NOW))


def check(times, days):
    times = np.array(times)
    check_reach(times, times.max() - days * 86_400, f"--window {days}d", place)


def test_a_window_that_few_far_events_decide_is_an_error():
    with pytest.raises(DataError) as caught:
        check([*BULK, seconds(2026, 8, 1)], 180)
    assert str(caught.value) == (
        "--window 180d counts from the newest event (line 202: 2026-08-01), and leaves 1 of 201 "
        "events; the others end at 2025-10-09 07:00:00 UTC. If the newest event is wrong, --as-of "
        "2025-10-10 (as_of=) leaves it out; if not, a longer time keeps the others."
    )
    many = np.repeat(BULK, 50)
    with pytest.raises(DataError, match="leaves 40 of 10,040 events"):
        check(
            [*many, *range(int(seconds(2026, 8, 1)), int(seconds(2026, 8, 1)) + 40)],
            180,
        )


def test_accepts_a_window_over_ten_years_of_events():
    for n in (300, 3_000, 100_000):
        times = np.linspace(seconds(2015, 10, 1), seconds(2025, 10, 1), n)
        check(times, 180)
        if n >= 3_000:
            check(times, 30)
    check([seconds(2020, 1, 1), seconds(2025, 1, 1)], 30)


def test_few_events_since_a_time_are_an_error():
    with pytest.raises(
        DataError, match=r"--since 2025-11-01 leaves 1 of 201 events \(line 202: 20"
    ):
        check_reach(
            np.array([*BULK, NOW]), NOW, "--since 2025-11-01", place, is_fixed=True
        )
    check_reach(np.array(BULK), BULK[100], "--since 2025-10-05", place, is_fixed=True)


@pytest.mark.parametrize(
    ("times", "is_mixed"),
    [
        (["2024-03-01", "2024-03-01 14:00"], True),
        (["2024-03-01", "2024-03-02"], False),
        ([f"2024-03-01 {hour:02d}:00" for hour in range(24)], False),
        (["2024-03-01", *(f"2024-03-01 {hour:02d}:30" for hour in range(20))], False),
        ([45810.0, 45810.375, 45811.5], True),
    ],
)
def test_says_that_some_times_have_no_time_of_day(times, is_mixed):
    rows = {"user": range(len(times)), "item": [1] * len(times), "time": times}
    ratings = Ratings.from_frame(pl.DataFrame(rows), as_of="2026-01-01")
    assert ("of the times are midnight" in str(ratings.source)) == is_mixed


@pytest.mark.parametrize(("unit", "size"), [("min", 60), ("h", 3600), ("d", DAY)])
def test_minutes_hours_and_days_since_1970_are_named_and_read(unit, size):
    moments = [1_704_240_000 + 3 * DAY * n for n in range(5)]
    times = [moment // size for moment in moments]
    frame = pl.DataFrame({"user": range(5), "item": [1] * 5, "time": times})
    remark = f"--time-format {unit} reads the numbers as "
    assert remark in str(Ratings.from_frame(frame, as_of="2026-01-01").source)
    for form in (pl.Int64, pl.Float64, pl.String):
        read = frame.with_columns(pl.col("time").cast(form))
        ratings = Ratings.from_frame(read, time_format=unit, as_of="2026-01-01")
        assert sorted(ratings.timestamps.tolist()) == moments
