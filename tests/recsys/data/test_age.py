"""The present time, and dates in the future or that mean "never"."""

from datetime import UTC, datetime

import pytest

from recsys.data.age import event_time_problem

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
        float("nan"),
    ],
)
def test_times_of_the_future_are_not_of_events(at):
    problem = event_time_problem(at, NOW)
    assert problem is not None
    assert problem.endswith("is more than a day after the present time, 2025-11-01 00:00:00 UTC.")


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
