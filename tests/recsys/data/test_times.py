"""Times as people, programs and databases write them."""

from datetime import UTC, date, datetime, timedelta, timezone

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recsys.data.times import duration, moment, unix_seconds
from recsys.errors import DataError

AT = 1_749_441_125  # 2025-06-09 03:52:05 UTC


@pytest.mark.parametrize(
    "text",
    [
        "2025-06-09 03:52:05",
        "2025-06-09T03:52:05Z",
        "2025-06-09 03:52:05+00",
        "2025-06-09 05:52:05.123+02",
        "2025-06-09 05:52:05.123456+0200",
        "2025-06-09T05:52:05.123456789+02:00",
        "2025-06-09 05:52:05 +02:00",
        "2025-06-08 23:22:05-04:30",
        "2025-06-09 03:52:05 UTC",
        "2025-06-09 03:52:05.5 GMT",
        "2025-06-09 03:52:05,123",
        "2025/06/09 03:52:05",
        "20250609T035205Z",
        "20250609 035205",
        "20250609035205",
        str(AT),
        f"{AT}.75",
        f"{AT}123",
        f"{AT}123456",
        f"{AT}123456789",
    ],
)
def test_one_moment_in_many_spellings(text):
    assert unix_seconds(pl.Series([text])).to_list() == [AT]
    assert unix_seconds(pl.Series([f" {text} "] * 3)).to_list() == [AT] * 3


def test_spellings_may_differ_within_a_column():
    texts = ["2025-06-09", "2025-06-09 00:00:00+00", "2025-06-09T02:00+02", "20250609", "2025/6/9"]
    assert set(unix_seconds(pl.Series(texts))) == {AT - 13_925}


@settings(max_examples=40, deadline=None)
@given(st.datetimes(datetime(1901, 1, 1), datetime(2099, 1, 1)), st.integers(-14, 14))
def test_a_written_time_is_read_back(naive, hours):
    zone = timezone(timedelta(hours=hours))
    aware = naive.replace(microsecond=0, tzinfo=zone)
    expected = [int((aware - datetime(1970, 1, 1, tzinfo=UTC)).total_seconds())]
    short = f"{naive:%Y-%m-%d %H:%M:%S}{'-' if hours < 0 else '+'}{abs(hours):02}"
    for value in (aware.isoformat(), str(aware), short):
        assert unix_seconds(pl.Series([value])).to_list() == expected
    frame = pl.Series([aware.astimezone(UTC)]).dt.convert_time_zone("Asia/Kolkata")
    assert unix_seconds(frame).to_list() == expected


@pytest.mark.parametrize("numbers", [[20250609, 20240229], [20250609, 20240230, 20240229]])
def test_numbers_that_are_dates(numbers):
    good = [each for each in numbers if each != 20240230]
    assert unix_seconds(pl.Series(good)).to_list() == [1_749_427_200, 1_709_164_800]
    if 20240230 in numbers:
        with pytest.raises(DataError, match="Row 2: time 20240230 is neither"):
            unix_seconds(pl.Series(numbers))


def test_numbers_in_the_range_of_dates_that_are_not_dates_are_seconds():
    numbers = [20_250_699, 20_259_999, 20_251_350, 19_999_999]
    assert unix_seconds(pl.Series(numbers)).to_list() == numbers


def test_a_format_reads_what_has_one():
    texts = pl.Series(["06/09/2025 3:52 AM", "12/31/2024 11:00 PM"])
    found = unix_seconds(texts, form="%m/%d/%Y %I:%M %p")
    assert found.to_list() == [AT - 5, 1_735_686_000]
    assert unix_seconds(pl.Series([10_250]), form="ms").to_list() == [10]
    with pytest.raises(DataError, match=r"Row 2: time '13/01/2025' does not have the format '%m/"):
        unix_seconds(pl.Series(["06/09/2025", "13/01/2025"]), form="%m/%d/%Y")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("06/09/2025", "either order .* add --time-format '%m/%d/%Y' or '%d/%m/%Y'"),
        ("06.13.2025 10:30", "is not ISO 8601; add --time-format '%m.%d.%Y %H:%M'"),
        ("31-12-24 10:30:00", "is not ISO 8601; add --time-format '%d-%m-%y %H:%M:%S'"),
        ("9/6", "neither a number nor"),
        ("yesterday", "neither a number nor an ISO 8601 date"),
        ("NULL", "the time is missing"),
        ("", "the time is missing"),
    ],
)
def test_what_cannot_be_read_says_how_to_read_it(text, message):
    with pytest.raises(DataError, match=message):
        unix_seconds(pl.Series([text]))


def test_dates_and_numbers_do_not_mix():
    numbers = pl.Series(["5", "6", "2024-01-01"])
    with pytest.raises(DataError, match="Row 3: time '2024-01-01' is a date, but other times are"):
        unix_seconds(numbers)
    dates = pl.Series(["2024-01-01", "6", "2024-01-01"])
    with pytest.raises(DataError, match="Row 2: time '6' is a number, but other times are dates"):
        unix_seconds(dates)


def test_moments_and_durations():
    days = [moment(each, "since") for each in ("2024-02-01", "2024-02", date(2024, 2, 1))]
    assert days == [1_706_745_600] * 3
    assert moment("2024", "since") == moment("2024-01-01T00:00:00+00", "since")
    assert moment(5, "since") == 5
    with pytest.raises(DataError, match=r"until must be a date or time, .* got 'soon'"):
        moment("soon", "until")
    assert duration("1.5h", "half_life") == duration(5400, "half_life") == 5400
    for wrong in ("30", "30m", "-1d", "0d", 0, True):
        with pytest.raises(DataError, match="half_life must be a duration in s, h, d, w or"):
            duration(wrong, "half_life")


@pytest.mark.parametrize("unit", ["ms", "us", "ns"])
def test_fractions_of_a_second_are_kept_on_request(unit):
    times = pl.Series([datetime(1969, 12, 31, 23, 59, 59, 500_000), datetime(2025, 6, 9, 3, 52, 5)])
    times = times.cast(pl.Datetime(unit))
    for series in (times, times.dt.to_string("%Y-%m-%d %H:%M:%S%.f"), times.to_physical()):
        form = unit if series.dtype == pl.Int64 else None
        assert unix_seconds(series, form=form).to_list() == [-1, AT]
        assert unix_seconds(series, form=form, exact=True).to_list() == [-0.5, AT]
    assert unix_seconds(times.tail(1), exact=True).dtype == pl.Int64


def test_times_of_the_service_are_read_next_to_any_format():
    given = pl.Series(["09.06.2025 03:52", "2025-06-09T03:52:05Z"])
    assert unix_seconds(given, form="%d.%m.%Y %H:%M").to_list() == [AT - 5, AT]
    with pytest.raises(DataError, match="time '2025-06-09' does not have the format"):
        unix_seconds(pl.Series(["2025-06-09"]), form="%d.%m.%Y")
