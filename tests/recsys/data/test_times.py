"""Times as people, programs and databases write them."""

from datetime import UTC, date, datetime, timedelta, timezone

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recsys.data.times import duration, is_time, moment, unix_seconds
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
    texts = [
        "2025-06-09",
        "2025-06-09 00:00:00+00",
        "2025-06-09T02:00+02",
        "20250609",
        "2025/6/9",
    ]
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


@pytest.mark.parametrize(
    "numbers", [[20250609, 20240229], [20250609, 20240230, 20240229]]
)
def test_numbers_that_are_dates(numbers):
    good = [each for each in numbers if each != 20240230]
    assert unix_seconds(pl.Series(good)).to_list() == [1_749_427_200, 1_709_164_800]
    if 20240230 in numbers:
        with pytest.raises(DataError, match="Row 2: time 20240230 is neither"):
            unix_seconds(pl.Series(numbers))


def test_numbers_in_the_range_of_dates_that_are_not_dates_are_seconds():
    numbers = [20_250_699, 20_259_999, 20_251_350, 19_999_999]
    assert unix_seconds(pl.Series(numbers)).to_list() == numbers


UNITS = {  # of one time in numbers: the factor to seconds since 1970, and what is added
    "s": (1, 0),
    "ms": (10**3, 0),
    "us": (10**6, 0),
    "ns": (10**9, 0),
    "excel": (1 / 86_400, 25_569),
    "ticks": (10**7, 621_355_968 * 10**9),
    "filetime": (10**7, 116_444_736 * 10**9),
}
DIGITS = {"%Y%m%d": 86_400, "%Y%m%d%H%M": 60, "%Y%m%d%H%M%S": 1}


def in_unit(seconds, unit):
    if unit in DIGITS:
        return [int(f"{datetime.fromtimestamp(at, UTC):{unit}}") for at in seconds]
    factor, origin = UNITS[unit]
    numbers = [at * factor + origin for at in seconds]
    return numbers if unit == "excel" else [int(number) for number in numbers]


@pytest.mark.parametrize("unit", [*UNITS, *DIGITS])
@pytest.mark.parametrize("type_", [int, float, str])
def test_the_size_of_numbers_tells_their_unit(unit, type_):
    times = [AT, AT - 3 * 365 * 86_400, AT - 7]
    numbers = in_unit(times, unit)
    if type_ is int and unit == "excel":
        return
    precision = max(DIGITS.get(unit, 1), 1)
    expected = [at // precision * precision for at in times]
    column = pl.Series([type_(number) for number in numbers])
    assert unix_seconds(column).to_list() == pytest.approx(expected, abs=1)
    if type_ is not float:
        assert unix_seconds(column).to_list() == expected
        assert unix_seconds(column, form=unit).to_list() == expected


@pytest.mark.covering
@pytest.mark.parametrize("unit", [*UNITS, *DIGITS])
@pytest.mark.parametrize("other", [*UNITS, *DIGITS])
@pytest.mark.parametrize("every", [2, 20])
def test_times_of_two_units_are_an_error(unit, other, every):
    times = [AT - 86_400 * day for day in range(1, 60)]
    mixed = in_unit(times, unit)
    mixed[7::every] = in_unit(times[7::every], other)
    column = pl.Series(mixed, strict=False)
    if unit == other:
        assert unix_seconds(column).max() <= AT
        return
    with pytest.raises(DataError) as caught:
        unix_seconds(column)
    message = str(caught.value)
    assert "The times are numbers of two units: " in message
    assert "(Row 8: 2025-06-01" in message
    assert "(Row 1: 2025-06-08" in message
    assert unit in message.partition("--time-format")[2]
    assert other in message.partition("--time-format")[2]


@pytest.mark.parametrize("unit", [*UNITS, *DIGITS])
def test_numbers_that_mean_never_have_no_unit(unit):
    never = [
        0,
        -1,
        99_991_231,
        253_402_300_799,
        253_402_214_400_000,
        2**63 - 1,
        -(2**63),
    ]
    modern = in_unit([AT, AT - 86_400], unit)
    seconds = unix_seconds(pl.Series([*modern, *never[:2]], strict=False))
    assert seconds[0] == AT // DIGITS.get(unit, 1) * DIGITS.get(unit, 1)
    assert seconds.to_list()[2:] == [0, -1]
    if unit in UNITS:
        assert unix_seconds(pl.Series([*modern, *never], strict=False))[0] == AT


def test_counters_are_seconds_and_not_days():
    for n in (100, 30_000, 60_000, 100_000):
        counter = pl.Series(range(n))
        assert unix_seconds(counter).to_list() == list(range(n))


def test_a_few_early_numbers_have_the_unit_of_the_others():
    early = [AT, AT - 40 * 365 * 86_400, 5_000, -86_400, AT * 10]
    assert unix_seconds(pl.Series(early)).to_list() == early
    assert unix_seconds(pl.Series([time * 1000 for time in early])).to_list() == early


def test_infinity_and_dates_of_zeros_are_far_times():
    texts = [
        "infinity",
        "-Infinity",
        "inf",
        "0000-00-00",
        "0000-00-00 00:00:00",
        "2025-06-09",
    ]
    far, *_ = seconds = unix_seconds(pl.Series(texts)).to_list()
    assert far > 10**18
    assert seconds == [far, -far, far, -far, -far, 1_749_427_200]
    assert unix_seconds(pl.Series([float("inf"), AT, -float("inf")])).to_list() == [
        far,
        AT,
        -far,
    ]
    formatted = unix_seconds(pl.Series(["09.06.2025", "infinity"]), form="%d.%m.%Y")
    assert formatted.to_list() == [1_749_427_200, far]


@pytest.mark.parametrize(
    ("texts", "expected"),
    [
        (["18.10.2025", "01.10.2025"], ["2025-10-18", "2025-10-01"]),
        (["01/10/2025", "18/10/2025"], ["2025-10-01", "2025-10-18"]),
        (["10/01/2025", "10/18/2025"], ["2025-10-01", "2025-10-18"]),
        (
            ["1-10-2025 07:05", "18-10-2025 7:05:09"],
            ["2025-10-01T07:05", "2025-10-18T07:05:09"],
        ),
        (
            ["10/1/2025 1:05 PM", "10/18/2025 12:05:09 AM"],
            ["2025-10-01T13:05", "2025-10-18T00:05:09"],
        ),
        (["18.10.2025", "2025-10-01"], ["2025-10-18", "2025-10-01"]),
        (["18-Oct-2025", "1 October 2025 07:05"], ["2025-10-18", "2025-10-01T07:05"]),
        (["Oct 18, 2025", "October 1, 2025"], ["2025-10-18", "2025-10-01"]),
    ],
)
def test_a_day_above_twelve_tells_the_order(texts, expected):
    times = [
        datetime.fromisoformat(each).replace(tzinfo=UTC).timestamp()
        for each in expected
    ]
    assert unix_seconds(pl.Series(texts)).to_list() == times


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        (
            ["06.09.2025", "01.02.2025"],
            "Row 1: time '06.09.2025' may be of either order",
        ),
        (
            ["18.10.2025", "10.18.2025"],
            "Row 1: time '18.10.2025' has another order of day and",
        ),
        (["18.10.2025", "19.20.2025"], "Row 2: time '19.20.2025'"),
        (
            ["18.10.2025"] * 300 + ["10.18.2025"],
            "Row 301: time '10.18.2025' has another order",
        ),
        (["18.10.2025", "31.02.2025"], "Row 2: time '31.02.2025'"),
        (
            ["18.10.2025", "5", "6"],
            "Row 1: time '18.10.2025' is a date, but other times are num",
        ),
    ],
)
def test_dates_whose_order_is_not_known_are_an_error(texts, message):
    with pytest.raises(DataError, match=message):
        unix_seconds(pl.Series(texts))


def test_a_format_reads_what_has_one():
    texts = pl.Series(["06/09/2025 3:52 AM", "12/31/2024 11:00 PM"])
    found = unix_seconds(texts, form="%m/%d/%Y %I:%M %p")
    assert found.to_list() == [AT - 5, 1_735_686_000]
    assert unix_seconds(pl.Series([10_250]), form="ms").to_list() == [10]
    with pytest.raises(
        DataError, match=r"Row 2: time '13/01/2025' does not have the format '%m/"
    ):
        unix_seconds(pl.Series(["06/09/2025", "13/01/2025"]), form="%m/%d/%Y")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("06/09/2025", "either order .* add --time-format '%m/%d/%Y' or '%d/%m/%Y'"),
        ("31-12-24 10:30:00", "is not ISO 8601; add --time-format '%d-%m-%y %H:%M:%S'"),
        (
            "25-06-15",
            "either order of day and month; add --time-format '%d-%m-%y' or '%y-",
        ),
        ("2024-02-30", "time '2024-02-30' does not exist"),
        ("2024-02-20 25:00:00", "does not exist"),
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
    with pytest.raises(
        DataError, match="Row 3: time '2024-01-01' is a date, but other times are"
    ):
        unix_seconds(numbers)
    dates = pl.Series(["2024-01-01", "6", "2024-01-01"])
    with pytest.raises(
        DataError, match="Row 2: time '6' is a number, but other times are dates"
    ):
        unix_seconds(dates)


def test_moments_and_durations():
    days = [
        moment(each, "since") for each in ("2024-02-01", "2024-02", date(2024, 2, 1))
    ]
    assert days == [1_706_745_600] * 3
    assert moment("2024", "since") == moment("2024-01-01T00:00:00+00", "since")
    assert moment(5, "since") == moment(np.int32(5), "since") == 5
    assert moment(np.datetime64("2024-02-01"), "since") == days[0]
    assert duration(np.int64(60), "half_life") == 60
    with pytest.raises(DataError, match=r"until must be a date or time, .* got 'soon'"):
        moment("soon", "until")
    assert duration("1.5h", "half_life") == duration(5400, "half_life") == 5400
    for wrong in ("30", "30m", "-1d", "0d", 0, True):
        with pytest.raises(
            DataError, match="half_life must be a duration in s, min, h, d, w or"
        ):
            duration(wrong, "half_life")


@pytest.mark.parametrize("unit", ["ms", "us", "ns"])
def test_fractions_of_a_second_are_kept_on_request(unit):
    times = pl.Series(
        [datetime(1969, 12, 31, 23, 59, 59, 500_000), datetime(2025, 6, 9, 3, 52, 5)]
    )
    times = times.cast(pl.Datetime(unit))
    for series in (
        times,
        times.dt.to_string("%Y-%m-%d %H:%M:%S%.f"),
        times.to_physical(),
    ):
        form = unit if series.dtype == pl.Int64 else None
        assert unix_seconds(series, form=form).to_list() == [-1, AT]
        assert unix_seconds(series, form=form, exact=True).to_list() == [-0.5, AT]
    assert unix_seconds(times.tail(1), exact=True).dtype == pl.Int64


def test_times_of_the_service_are_read_next_to_any_format():
    given = pl.Series(["09.06.2025 03:52", "2025-06-09T03:52:05Z"])
    assert unix_seconds(given, form="%d.%m.%Y %H:%M").to_list() == [AT - 5, AT]
    with pytest.raises(DataError, match="time '2025-06-09' does not have the format"):
        unix_seconds(pl.Series(["2025-06-09"]), form="%d.%m.%Y")


@pytest.mark.parametrize("text", ["13-OCT-24", "13 Oct 24", "13-Oct-24 00:00"])
def test_years_of_two_digits_after_the_name_of_a_month(text):
    assert unix_seconds(pl.Series([text, "01-Jan-2019"])).to_list() == [
        1728777600,
        1546300800,
    ]


@pytest.mark.parametrize(
    ("day", "clock"),
    [("25.12.2023", "14:05:01"), ("25.12.2023", "14:05"), ("12/25/2023", "2:05:01 PM")],
)
def test_reads_dates_and_times_with_a_comma_between_as_browsers_write_them(day, clock):
    (seconds,) = unix_seconds(pl.Series([f"{day}, {clock}"]))
    assert datetime.fromtimestamp(seconds, UTC).strftime("%d %H:%M") == "25 14:05"


@pytest.mark.parametrize(
    "form", ["%a %b %d 00:00:00 +0000 %Y", "%d %b %Y", "%B %d, %Y", "%d-%b-%y"]
)
def test_reads_each_name_of_a_day_and_a_month(form):
    days = [date(2024, month, 12 + month) for month in range(1, 13)]
    for day in days:
        midnight = datetime(day.year, day.month, day.day, tzinfo=UTC)
        text = pl.Series([day.strftime(form)])
        assert unix_seconds(text).to_list() == [midnight.timestamp()]


@pytest.mark.parametrize("text", ["u1", "ann", "May", "The Film 7", "item-2025-06-09"])
def test_does_not_read_other_words(text):
    assert not is_time(text)
