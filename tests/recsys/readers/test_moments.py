"""Times of rows: of the future, of "never", in units, and bad ones, through every door."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from recsys import DataError, Ratings, read_ratings

AT = 1_749_441_125  # 2025-06-09 03:52:05 UTC
ROWS = [
    (user, (user + n) % 7, AT - 3600 * (10 * user + n))
    for user in range(30)
    for n in (0, 2, 3)
]
NAMES = ["user", "item", "timestamp"]
Row = tuple[int, int, object]


def as_csv(rows: list[Row], path: Path) -> str:
    file = path / "r.csv"
    file.write_text("\n".join([",".join(NAMES), *(f"{u},{i},{t}" for u, i, t in rows)]))
    return str(file)


def as_jsonl(rows: list[Row], path: Path) -> str:
    file = path / "r.jsonl"
    file.write_text(
        "\n".join(json.dumps(dict(zip(NAMES, row, strict=True))) for row in rows)
    )
    return str(file)


def as_parquet(rows: list[Row], path: Path) -> str:
    file = path / "r.parquet"
    as_frame(rows).write_parquet(file)
    return str(file)


def as_database(rows: list[Row], path: Path) -> str:
    with closing(sqlite3.connect(path / "r.db")) as connection, connection:
        connection.execute("drop table if exists r")
        connection.execute("create table r (user integer, item integer, timestamp)")
        connection.executemany("insert into r values (?, ?, ?)", rows)
    return f"{path}/r.db::r"


def as_frame(rows: list[Row]) -> pl.DataFrame:
    return pl.DataFrame(rows, NAMES, orient="row", strict=False)


FILES = {
    "csv": as_csv,
    "jsonl": as_jsonl,
    "parquet": as_parquet,
    "database": as_database,
}
Load = Callable[..., Ratings]
Read = Callable[..., Ratings]


@pytest.fixture(params=[*FILES, "polars", "pandas"])
def load(request: pytest.FixtureRequest, tmp_path: Path) -> Load:
    """Load rows from a file, a database or a frame."""

    def loaded(rows: list[Row], **options: object) -> Ratings:
        if request.param == "polars":
            return Ratings.from_frame(as_frame(rows), **options)  # type: ignore[arg-type]
        if request.param == "pandas":
            return Ratings.from_frame(as_frame(rows).to_pandas(), **options)  # type: ignore[arg-type]
        return read_ratings(FILES[request.param](rows, tmp_path), **options)  # type: ignore[arg-type]

    return loaded


def as_ratings(data: pl.DataFrame | Path, **options: str) -> Ratings:
    if isinstance(data, Path):
        return read_ratings(data, **options)  # type: ignore[arg-type]
    return Ratings.from_frame(data, **options)  # type: ignore[arg-type]


def written(rows: list[Row], shown: Callable[[int], object]) -> list[Row]:
    return [(user, item, shown(int(str(time)))) for user, item, time in rows]


def text(seconds: int) -> str:
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%dT%H:%M:%SZ}"


@pytest.mark.parametrize("shown", [int, lambda time: time * 1000, text])
@pytest.mark.parametrize(
    "far", [datetime(2099, 1, 1, tzinfo=UTC), datetime(9999, 12, 31, tzinfo=UTC)]
)
def test_a_time_of_the_future_does_not_count(
    load: Load, shown: Callable[[int], object], far: datetime
) -> None:
    options = {"half_life": "30d"}
    plain = load(written(ROWS, shown), **options)
    with_far = load(written([*ROWS, (1, 5, int(far.timestamp()))], shown), **options)
    np.testing.assert_array_equal(with_far.values, plain.values)
    np.testing.assert_array_equal(with_far.timestamps, plain.timestamps)
    said = str(with_far.source)
    assert "1 row " in said
    assert f": {far:%Y-%m-%d})" in said


@pytest.mark.parametrize("shown", [int, lambda time: time * 1000, text])
def test_a_date_that_means_never_does_not_count(
    load: Load, shown: Callable[[int], object]
) -> None:
    loaded = load(written([*ROWS, (1, 5, 0), (2, 6, -2_208_988_800)], shown))
    assert loaded.nnz == len(ROWS)
    assert '2 rows left out whose time means "never" (' in str(loaded.source)
    assert ": 1970-01-01; " in str(loaded.source)
    assert ": 1900-01-01)" in str(loaded.source)


def test_grades_of_the_future_do_not_count(read: Read) -> None:
    loaded = read(
        "user,item,rating,date\na,x,4,2025-06-01\nb,x,5,2025-06-02\nb,y,1,2035-01-01\n"
    )
    assert loaded.to_frame()["rating"].to_list() == [4, 5]
    assert (
        "1 row after the present time left out (ratings.csv, line 4: 2035-01-01)"
        in str(loaded.source)
    )


def test_the_present_time_may_be_set_and_is_kept(read: Read) -> None:
    content = "user,item,date\na,x,2025-06-01\nb,x,2025-06-02\nb,y,2025-06-04\n"
    loaded = read(content, as_of="2025-06-01", half_life="1d")
    assert loaded.values.tolist() == [0.5, 1]
    assert (
        "1 row after the present time left out (ratings.csv, line 4: 2025-06-04)"
        in str(loaded.source)
    )
    assert loaded.source is not None
    assert loaded.source.options["as_of"] == "2025-06-01T00:00:00+00:00"
    again = read(content, half_life="1d", as_of=loaded.source.options["as_of"])
    assert again.values.tolist() == loaded.values.tolist()
    later = read(content, defaults=loaded.source.options)
    assert later.nnz == 3
    assert later.source is not None
    assert later.source.options["as_of"] > f"{datetime.now(UTC):%Y-%m-%d}"
    assert "as_of" not in read("user,item\na,x\nb,x\n").source.options  # type: ignore[union-attr]


@pytest.mark.parametrize("other", [10**3, 10**6, 10**9])
def test_two_files_of_two_units_are_an_error(tmp_path: Path, other: int) -> None:
    for name, factor in (("2025-06-08.csv", 1), ("2025-06-09.csv", other)):
        rows = "".join(f"{u},{i},{int(str(t)) * factor}\n" for u, i, t in ROWS)
        (tmp_path / name).write_text(f"user,item,timestamp\n{rows}")
    with pytest.raises(DataError) as caught:
        read_ratings(tmp_path)
    message = str(caught.value)
    assert f"{AT * other} in " in message
    assert "2025-06-09.csv, line 2: 2025-06-09 03:52:05 UTC" in message
    assert "2025-06-08.csv, line 2: 2025-06-09 03:52:05 UTC" in message
    in_seconds = read_ratings(tmp_path, time_format="s")
    assert f"{len(ROWS)} rows left out whose time" in str(in_seconds.source)


def test_places_after_blank_lines(read: Read) -> None:
    content = "user,item,date\n\na,x,2025-06-01\n\nb,x,2025-06-02\nb,y,2035-01-01\n"
    assert "ratings.csv, line 6: 2035-01-01" in str(read(content).source)
    lines = [
        '{"user": 1, "item": 2, "time": 1700000000}',
        "",
        '{"user": 1, "item": 3, "time": 1}',
    ]
    assert "r.jsonl, line 3: 1970-01-01 00:00:01" in str(
        read("\n".join(lines), "r.jsonl").source
    )
    assert "r.jsonl, line 2: 1970" in str(
        read(f"{lines[0]}\n{lines[2]}", "r.jsonl").source
    )


def test_a_column_whose_order_of_day_and_month_is_not_known(read: Read) -> None:
    content = "user,item,date\na,x,06/09/2025\nb,x,07/09/2025\n"
    loaded = read(content)
    assert loaded.seconds is None
    assert (
        "times not used (time '06/09/2025' may be of either order of day and month; add"
        in str(loaded.source)
    )
    with pytest.raises(
        DataError, match=r"line 2: time '06/09/2025' may be of either order"
    ):
        read(content, timestamp="date")
    many = "".join(f"u{n},x,0{n % 9 + 1}.06.2025\n" for n in range(500))
    told = read(f"user,item,date\n{many}a,x,18.06.2025\n")
    assert told.seconds is not None
    assert told.timestamps is not None
    assert text(int(told.timestamps.max())) == "2025-06-18T00:00:00Z"


GERMAN = "customer_id;sku;zeit\n" + "".join(
    f"{'' if n < 3 else n};a;18.10.2025 00:00:{'xx' if n < 9 else '09'}\n"
    for n in range(12)
)


def test_causes_of_bad_rows_are_counted(read: Read) -> None:
    with pytest.raises(DataError) as caught:
        read(GERMAN, timestamp="zeit", bad_rows="20%")
    assert str(caught.value) == (
        "9 rows of 12 (75%) cannot be read, more than 20%: 9 rows, the first ratings.csv, line 2: "
        "time '18.10.2025 00:00:xx' is neither a number nor an ISO 8601 date, such as 2024-01-31; "
        "--time-format reads others. 3 rows, the first ratings.csv, line 2: the user id is missing."
    )
    with pytest.raises(DataError) as strict:
        read(GERMAN, timestamp="zeit")
    assert (
        "9 of 12 rows cannot be read: 9 rows, the first ratings.csv, line 2: time"
        in str(strict.value)
    )
    users = GERMAN.replace("xx", "01")
    with pytest.raises(DataError) as cured:
        read(users, timestamp="zeit")
    assert (
        "3 of 12 rows cannot be read; the first: ratings.csv, line 2: the user"
        in str(cured.value)
    )
    assert cured.value.__notes__ == [
        "Such rows are left out with --bad-rows 25% (bad_rows='25%')."
    ]
    assert read(users, timestamp="zeit", bad_rows="25%").nnz == 9
    # One bad row is more than the 1% of "skip", if there are few.
    single = users.replace("\n;a;", "\n7;a;", 2)
    with pytest.raises(DataError, match="line 4: the user id is missing") as one_row:
        read(single, timestamp="zeit")
    assert one_row.value.__notes__ == [
        "Such rows are left out with --bad-rows 9% (bad_rows='9%')."
    ]


@pytest.mark.parametrize("name", ["r.csv", "r.jsonl", "frame"])
def test_the_most_frequent_cause_comes_first(tmp_path: Path, name: str) -> None:
    users = [None, None, *map(str, range(2, 100))]
    ratings = ["4"] * 50 + ["good"] * 40 + ["5"] * 10
    times = ["2025-06-01"] * 95 + ["soon"] * 5
    frame = pl.DataFrame(
        {"user": users, "item": ["x"] * 100, "rating": ratings, "date": times}
    )
    write = frame.write_csv if name == "r.csv" else frame.write_ndjson
    write(tmp_path / name)
    with pytest.raises(DataError) as caught:
        as_ratings(frame if name == "frame" else tmp_path / name, bad_rows="skip")
    message = str(caught.value)
    assert message.startswith(
        "47 rows of 100 (47%) cannot be read, more than 1%: 40 rows, the "
    )
    rating, time, user = (
        message.index(each) for each in ("'good'", "'soon'", "user id is mis")
    )
    assert rating < time < user
    assert message.endswith("--bad-rows 47% skips them.")


def test_all_bad_rows_have_no_cure_that_is_rejected(read: Read) -> None:
    content = "user,item,rating\n" + "1,2,x\n" * 200
    for options in ({}, {"bad_rows": "99%"}):
        with pytest.raises(DataError, match="rating 'x' is not a number") as caught:
            read(content, **options)
        assert "100% skips" not in str(caught.value)
        assert not getattr(caught.value, "__notes__", [])


def test_names_users_with_old_events_only(read: Read) -> None:
    old = "".join(f"{user},x,2024-01-01\n" for user in range(12))
    new = "".join(f"{user},y,2025-06-01\n" for user in range(10, 40))
    loaded = read(f"user,item,date\n{old}{new}", half_life="7d")
    said = "10 users have only interactions older than 70 days, which hardly count"
    assert said in str(loaded.source)
    assert "hardly" not in str(read(f"user,item,date\n{new}", half_life="7d").source)


def test_a_half_life_that_one_far_event_decides_is_an_error(read: Read) -> None:
    rows = "".join(f"{n % 40},{n % 7},2023-01-{n % 28 + 1:02}\n" for n in range(280))
    content = f"user,item,date\n{rows}1,9,2025-06-01\n"
    with pytest.raises(
        DataError, match=r"--half-life 30d counts from .*line 282: 2025-06-01\), and"
    ):
        read(content, half_life="30d")
    assert read(content, half_life="30d", as_of="2023-01-29").nnz == 280
    with pytest.raises(
        DataError, match=r"--since 2025-01-01 leaves 1 of 281 events \(ratings"
    ):
        read(content, since="2025")
    assert read(content, since="2025", defaults={}).nnz == 1


@pytest.mark.parametrize("unit", ["s", "ms", "d"])
def test_a_unit_of_times_goes_with_many_different_ratings(tmp_path, unit):
    seconds = 1_700_006_400 + 86_400 * np.arange(600)
    times = {"s": seconds, "ms": 1000 * seconds, "d": seconds // 86_400}[unit]
    frame = pl.DataFrame(
        {"user": "ann", "item": range(600), "rating": np.linspace(1, 5, 600)}
    )
    frame.with_columns(time=times).write_csv(tmp_path / "r.csv")
    ratings = read_ratings(tmp_path / "r.csv", time_format=unit)
    assert ratings.timestamps.tolist() == (seconds // 86_400 * 86_400).tolist()
    assert ratings.values == pytest.approx(np.linspace(1, 5, 600))


def test_an_error_on_the_newest_event_does_not_suggest_to_skip_bad_rows(tmp_path):
    path = as_csv(ROWS, tmp_path)
    with pytest.raises(DataError, match="counts from the newest event") as error:
        read_ratings(path, half_life="1s", implicit=True)
    assert not getattr(error.value, "__notes__", [])
