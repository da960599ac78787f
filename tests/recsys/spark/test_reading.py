"""Tables of ratings on Spark: columns, types, ids to indices, repeated pairs."""

import re
from datetime import UTC, datetime

import polars as pl
import pytest

from recsys.data.columns import Request
from recsys.data.ratings import Ratings
from recsys.errors import DataError


def table(spark, rows, schema):
    from recsys.spark.reading import checked_ratings

    return checked_ratings(spark.createDataFrame(rows, schema), Request(), "the table")


@pytest.mark.parametrize(
    ("row", "schema", "message"),
    [
        ((1, 2, "x"), "user int, item int, rating string", "'rating' must have a finite number"),
        ((1.5, 2, 3.0), "user double, item int, rating double", "'user' must have an integer"),
        (([1], 2, 3.0), "user array<int>, item int, rating double", "user column 'user' is of type "
         "array<int>; ids are numbers, text or dates"),
        ((None, 2, 3.0), "user int, item int, rating double", "column 'user' must have an integer "
         "or text as id in each row; 1 of 1 rows do not"),
        ((1, 2, float("nan")), "user int, item int, rating double", "column 'rating' must have a "
         "finite number in each row"),
        ((1, 2), "user int, thing int", "the table has no item column; its columns are"),
    ],
)  # fmt: skip
def test_columns_that_cannot_serve_are_rejected(spark, row, schema, message):
    with pytest.raises(DataError, match=message):
        table(spark, [row], schema)


def test_numbers_as_text_and_dates_as_ids_are_understood(spark):
    import datetime

    found = table(
        spark,
        [(datetime.date(2020, 1, 2), "ä", "3.5", "2021-05-06 07:08:09")],
        "user date, item string, rating string, time string",
    )
    assert found.frame.dtypes == [
        ("user", "string"), ("item", "string"), ("value", "float"), ("time", "double")
    ]  # fmt: skip
    row = found.frame.first()
    assert (row["user"], row["item"], row["value"]) == ("2020-01-02", "ä", 3.5)


def test_whole_numbers_as_floats_and_times_as_they_come(spark):
    import datetime

    day = datetime.date(1970, 1, 3)
    found = table(
        spark, [(7.0, 2, "3", day)], "user double, item int, rating string, time date"
    )
    assert found.frame.collect() == [(7, 2, 3.0, 2 * 86400.0)]


def test_no_rows(spark, tmp_path):
    from recsys.spark.reading import read_ratings

    with pytest.raises(DataError, match="There are no ratings: the data have no rows"):
        table(spark, [], "user int, item int, rating double")
    frame = spark.createDataFrame([(1, 2)], "user int, item int")
    frame.write.parquet(
        str(tmp_path / "pairs")
    )  # a folder whose files tell what they are
    assert read_ratings(spark, str(tmp_path / "pairs"), Request()).frame.count() == 1


def test_more_ids_than_an_index_has_room_for(spark, tmp_path, monkeypatch):
    from recsys.spark import reading
    from recsys.spark.files import SparkPath

    monkeypatch.setattr(reading, "MOST_IDS", 2)
    ids = spark.createDataFrame([(1,), (2,), (3,)], "id bigint")
    with pytest.raises(DataError, match="at most 2 users or items; got 3"):
        reading.numbered(ids, SparkPath(spark, str(tmp_path / "ids")))


def test_files_that_are_not_there(spark, tmp_path):
    from recsys.spark.reading import read_ratings

    with pytest.raises(
        DataError, match=r"There is no file or folder .*nowhere that Spark can see"
    ):
        read_ratings(spark, str(tmp_path / "nowhere"), Request())


def test_a_movielens_directory_and_a_tab_separated_file(spark, tmp_path):
    from recsys.spark.reading import read_ratings

    (tmp_path / "movies.csv").write_text("movieId,title\n1,Heat\n")
    (tmp_path / "ratings.csv").write_text(
        "userId,movieId,rating,timestamp\n7,1,4.5,100\n"
    )
    (tmp_path / "other.tsv").write_text("user\titem\nann\ttea\n")
    whole = read_ratings(spark, str(tmp_path), Request())
    assert whole.frame.collect() == [(7, 1, 4.5, 100.0)]
    other = read_ratings(spark, str(tmp_path / "other.tsv"), Request())
    assert other.implicit
    assert other.frame.collect() == [("ann", "tea", 1.0)]


@pytest.mark.parametrize(
    ("values", "schema"),
    [
        (["b", "ä", "B", "", "10", "9", "b", "日本"], "id string"),
        ([5, -3, 2**40, 0, 5, 7], "id bigint"),
    ],
)
def test_ids_are_numbered_in_sorted_order(spark, tmp_path, values, schema):
    from recsys.spark.files import SparkPath
    from recsys.spark.reading import numbered

    frame = spark.createDataFrame([(value,) for value in values], schema).repartition(3)
    table = numbered(frame, SparkPath(spark, str(tmp_path / "ids")))
    found = dict(table.select("id", "index").collect())
    assert found == {value: place for place, value in enumerate(sorted(set(values)))}


REPEATED = [(1, 1, 2.0, 10), (1, 1, 4.0, 30), (1, 1, 3.0, 20), (1, 2, 5.0, 5)]


@pytest.fixture(scope="module")
def repeated(spark):
    schema = "user int, item int, rating double, time int"
    return table(spark, REPEATED, schema).frame.cache()


@pytest.mark.parametrize(
    ("policy", "value"), [("last", 4.0), ("first", 2.0), ("mean", 3.0), ("sum", 9.0)]
)
def test_repeated_pairs_are_merged(repeated, policy, value):
    from recsys.spark.reading import merged

    rows = merged(repeated, policy).sort("item").collect()
    assert rows == [(1, 1, value, False), (1, 2, 5.0, False)]


@pytest.mark.parametrize(
    ("policy", "message"),
    [
        ("last", "1 pairs of user and item are repeated, and rows on a cluster have no order"),
        ("error", "1 pairs of user and item are repeated"),
    ],
)  # fmt: skip
def test_repeated_pairs_that_nothing_decides_are_rejected(
    spark, tmp_path, policy, message
):
    from recsys.spark.files import SparkPath
    from recsys.spark.reading import encode

    found = table(
        spark, [row[:3] for row in REPEATED], "user int, item int, rating double"
    )
    scratch = SparkPath(spark, str(tmp_path))
    with pytest.raises(DataError, match=message):
        encode(found, scratch, duplicates=policy)


AT = 1_749_441_125  # 2025-06-09 03:52:05 UTC
HOURS = [AT - 3600 * hour for hour in range(40)]
UNITS = {
    "milliseconds": lambda at: at * 1000,
    "nanoseconds": lambda at: at * 10**9,
    "days of Excel": lambda at: at / 86_400 + 25_569,
    "ticks of .NET": lambda at: at * 10**7 + 621_355_968 * 10**9,
    "digits (YYYYMMDDhhmmss)": lambda at: int(
        f"{datetime.fromtimestamp(at, UTC):%Y%m%d%H%M%S}"
    ),
}


def timed(spark, times, kind, request=None):
    from recsys.spark.reading import checked_ratings

    rows = [(n, n, time) for n, time in enumerate(times)]
    frame = spark.createDataFrame(rows, f"user int, item int, time {kind}")
    table = checked_ratings(frame, request or Request(), "the table")
    seconds = {row["user"]: row.asDict().get("time") for row in table.frame.collect()}
    return [seconds.get(n) for n in range(len(times))], table.remarks


@pytest.mark.parametrize("unit", UNITS)
def test_the_unit_of_times_is_that_of_their_size(spark, unit):
    numbers = [UNITS[unit](at) for at in HOURS]
    kind = "double" if unit == "days of Excel" else "bigint"
    assert timed(spark, numbers, kind) == (HOURS, (f"times in {unit}",))
    with pytest.raises(DataError, match=f"two units: .* in {re.escape(unit)}"):
        timed(spark, [*numbers, float(AT) if kind == "double" else AT], kind)


def test_rows_of_the_future_and_of_never_are_left_out(spark):
    times = [*HOURS, 4_070_908_800, 0, -2_208_988_800, 490_000_000]
    seconds, remarks = timed(spark, times, "bigint")
    assert seconds == [*HOURS, None, None, None, 490_000_000]
    assert remarks == (
        "1 row after the present time left out (2099-01-01)",
        '2 rows left out whose time means "never" (1900-01-01 to 1970-01-01)',
        "1 row before 1990 (1985-07-12 07:06:40 UTC)",
    )
    texts = [f"{datetime.fromtimestamp(at, UTC):%Y-%m-%d %H:%M:%S}" for at in HOURS]
    seconds, remarks = timed(
        spark, [*texts, "9999-12-31", "infinity", "0000-00-00"], "string"
    )
    assert seconds == [*HOURS, None, None, None]
    assert "3 rows left out whose time means" in remarks[0]
    early = Request.from_options({"as_of": HOURS[20] - 86_400})
    assert timed(spark, HOURS, "bigint", early)[0] == [None] * 20 + HOURS[20:]
    with pytest.raises(DataError, match="40 of 40 rows have no time of the past"):
        timed(spark, [at + 10**9 for at in HOURS], "bigint")


def test_texts_are_read_in_the_order_that_a_day_tells(spark):
    texts = [f"{datetime.fromtimestamp(at, UTC):%d.%m.%Y %H:%M:%S}" for at in HOURS]
    told = "18.05.2025"
    assert timed(spark, [*texts, told], "string")[0][:-1] == HOURS
    american = [
        f"{datetime.fromtimestamp(at, UTC):%m/%d/%Y %I:%M:%S %p}" for at in HOURS
    ]
    assert timed(spark, [*american, "05/18/2025"], "string")[0][:-1] == HOURS
    seconds, remarks = timed(spark, texts, "string")
    assert seconds == [None] * 40
    assert (
        "time not used (time '09.06.2025 03:52:05' may be of either order" in remarks[0]
    )
    with pytest.raises(
        DataError, match=r"in each row; 40 of 40 rows do not: time '07\.06\.2025"
    ):
        timed(spark, texts, "string", Request({"timestamp": "time"}))
    given = Request.from_options({"time_format": "%d.%m.%Y %H:%M:%S"})
    assert timed(spark, texts, "string", given)[0] == HOURS


@pytest.mark.parametrize("name", ["plays", "rating"])
def test_counts_are_interactions_on_spark_too(spark, name):
    counts = [1] * 60 + [2] * 20 + [5] * 10 + [15] * 5 + [40] * 4 + [-1]
    rows = [(n, n % 7, float(count)) for n, count in enumerate(counts)]
    frame = spark.createDataFrame(rows, f"user int, item int, {name} double")
    found = checked(frame)
    assert found.implicit
    assert found.frame.groupBy("value").count().collect() == [(1.0, 99)]
    assert "the ratings look like counts or amounts, from -1 to 40" in found.remarks[-1]
    graded = checked(frame, scale=(-1, 40))
    assert not graded.implicit
    with pytest.raises(DataError, match="must have a grade of the scale"):
        checked(frame, scale=(1, 5))
    weighted = checked(frame, weight=name)
    assert (weighted.implicit, weighted.weighted) == (True, True)
    assert weighted.frame.groupBy("value").count().count() == 6
    with pytest.raises(DataError, match="scale applies to ratings"):
        checked(frame, weight=name, scale=(1, 5))


@pytest.mark.parametrize(
    ("texts", "numbers"),
    [
        (["3:45", "0:30", "1:00:10"], [225, 30, 3610]),
        (["1,250.50", "980", "2,000"], [1250.5, 980, 2000]),
        (["$836.27", "$1,250.00", "$3"], [836.27, 1250, 3]),
        (["1h 43m", "43m", "2h"], [6180, 2580, 7200]),
    ],
)
def test_texts_of_numbers_on_spark_as_on_one_machine(spark, texts, numbers):
    rows = [(n, 7, text, AT) for n, text in enumerate(texts)]
    schema = "user int, item int, spent string, time int"
    table = checked(spark.createDataFrame(rows, schema), weight="spent")
    values = [row["value"] for row in table.frame.orderBy("user").collect()]
    assert values == pytest.approx(numbers)
    assert any(f"{texts[0]} is" in remark for remark in table.remarks)
    alone = Ratings.from_frame(
        pl.DataFrame(rows, orient="row").rename(
            {
                "column_0": "user",
                "column_1": "item",
                "column_2": "spent",
                "column_3": "time",
            }
        ),
        weight="spent",
    )
    assert alone.values.tolist() == values


@pytest.mark.parametrize("kind", ["int", "boolean", "string"])
@pytest.mark.parametrize("name", ["clicked", "liked"])
def test_leaves_out_rows_without_an_outcome_on_spark(spark, name, kind):
    convert = {"int": int, "boolean": bool, "string": lambda like: f" {like}"}[kind]
    rows = [(n, n % 7, convert(n % 4 == 0)) for n in range(40)]
    ratings = checked(spark.createDataFrame(rows, f"user int, item int, {name} {kind}"))
    assert ratings.implicit
    assert ratings.frame.count() == 10


def test_words_that_are_no_likes_are_errors_on_spark(spark):
    rows = [(1, 1, "yes"), (1, 2, "No"), (2, 1, "perhaps")]
    frame = spark.createDataFrame(rows, "user int, item int, liked string")
    with pytest.raises(DataError, match="must have true or false in each row; 1 of 3"):
        checked(frame)


def test_an_event_counts_once_by_its_id_on_spark(spark):
    from recsys.spark.reading import merged

    schema = "user int, item int, quantity double, event_id string, time int"
    rows = [(1, 1, 2.0, "a", AT), (1, 1, 2.0, "a", AT), (1, 1, 2.0, "b", AT)]
    table = checked(spark.createDataFrame(rows, schema), weight="quantity")
    assert merged(table.frame, "sum").collect() == [(1, 1, 4.0, False)]
    other = [*rows, (1, 2, 2.0, "b", AT)]
    with pytest.raises(
        DataError, match=r"1 id of events .* has rows with another user"
    ):
        checked(spark.createDataFrame(other, schema), weight="quantity")


def test_ratings_that_mark_nothing_on_spark_too(spark):
    rows = [(n, n % 7, [-1.0, 1.0, 3.0, 4.0, 5.0][n % 5]) for n in range(100)]
    ratings = checked(spark.createDataFrame(rows, "user int, item int, rating double"))
    assert ratings.frame.count() == 80
    assert ratings.remarks == ("rows left out whose rating is -1 (not rated)",)
    rows = [(n, n % 7, [99.0, 1.0, 2.0, 3.0, 4.0, 5.0][n % 6]) for n in range(100)]
    ratings = checked(spark.createDataFrame(rows, "user int, item int, rating double"))
    assert ratings.frame.count() == 83
    assert ratings.remarks == ("rows left out whose rating is 99 (not rated)",)
    rows = [(n, n % 7, [57.0, 1.0, 2.0, 3.0, 4.0, 5.0][n % 6]) for n in range(100)]
    ratings = checked(spark.createDataFrame(rows, "user int, item int, rating double"))
    assert ratings.remarks == ("some ratings are far from the usual 1 to 5: 57",)


def test_joined_files_with_spaces_on_spark_too(spark, tmp_path):
    from recsys.spark.reading import read_ratings

    path = tmp_path / "clicks.csv"
    path.write_text("user,item\n a,x\na ,y\nuser,item\nb,x\n")
    frame = read_ratings(spark, str(path), Request()).frame
    assert {row.user for row in frame.collect()} == {"a", "b"}


def checked(frame, **options):
    from recsys.spark.reading import checked_ratings

    return checked_ratings(frame, Request.from_options(options), "the table")


@pytest.mark.parametrize("others", ["1", "17.0", "ann"])
def test_ids_that_a_spreadsheet_has_rounded_are_named(spark, tmp_path, others):
    from recsys.spark.reading import read_ratings

    rows = [f"{others},5,3.0", "1.23457E+11,5,4.0"]
    (tmp_path / "r.csv").write_text("\n".join(["user,item,rating", *rows]))
    with pytest.raises(
        DataError, match=r"'user': user id '1.23457E\+11' .*spreadsheet"
    ):
        read_ratings(spark, str(tmp_path / "r.csv"), Request())


def test_floats_of_other_forms_are_ids(spark, tmp_path):
    from recsys.spark.reading import read_ratings

    (tmp_path / "r.csv").write_text("user,item,rating\n17.0,5,3.0\n18,5,4.0\n")
    found = read_ratings(spark, str(tmp_path / "r.csv"), Request()).frame
    assert [row[0] for row in found.sort("user").collect()] == [17, 18]


def test_weights_are_added_and_returns_are_subtracted(spark, tmp_path):
    from recsys.spark.files import SparkPath
    from recsys.spark.reading import encode

    rows = [
        (1, 7, 2.0, 1),
        (1, 7, 3.0, 2),
        (1, 8, 1.0, 1),
        (1, 8, -1.0, 3),
        (2, 7, 0.5, 1),
    ]
    frame = spark.createDataFrame(rows, "user int, item int, bought double, time int")
    table = checked(frame, weight="bought")
    coded = encode(table, SparkPath(spark, str(tmp_path / "scratch")))
    assert sorted(row["value"] for row in coded.pairs.collect()) == [0.5, 5.0]


def test_parts_of_a_split_have_weights_on_spark_too(spark, tmp_path):
    from recsys.evaluation import save_split, time_split
    from recsys.spark.reading import read_ratings

    rows = {"user": [1, 2, 3, 1], "item": [1, 1, 1, 2], "n": [1, 2, 3, 4]}
    times = pl.Series([1, 2, 3, 4]) + 1_700_000_000
    frame = pl.DataFrame(rows).with_columns(time=times)
    save_split(time_split(Ratings.from_frame(frame, weight="n"), 0.25), tmp_path / "p")
    found = read_ratings(spark, str(tmp_path / "p" / "train.csv"), Request())
    assert found.weighted
    assert sorted(row["value"] for row in found.frame.collect()) == [1, 2, 3]


@pytest.mark.parametrize(
    "options",
    [
        {"event_weights": {"buy": 2, "view": 1}},
        {"impressions": "view"},
        {"half_life": "3d"},
    ],
)
def test_names_the_way_for_parts_with_kinds_or_ages_of_events(tmp_path, options):
    from recsys.evaluation import save_split, time_split
    from recsys.spark.reading import read_ratings

    frame = pl.DataFrame(
        {
            "user": [1, 2, 3, 1],
            "item": [1, 1, 1, 2],
            "event": ["buy", "view", "buy", "buy"],
            "time": pl.Series([1, 2, 3, 4]) + 1_700_000_000,
        }
    )
    ratings = Ratings.from_frame(frame, **options)
    save_split(time_split(ratings, 0.25), tmp_path / "p")
    part = str(tmp_path / "p" / "train.csv")
    with pytest.raises(DataError, match="spark reads weights only; write the weight"):
        read_ratings(None, part, Request())


def test_dates_are_not_grades_on_spark(spark):
    rows = [(n % 5, n, float(20240101 + n % 28)) for n in range(60)]
    with pytest.raises(DataError, match="too close to one another"):
        table(spark, rows, "user long, item long, rating double")
