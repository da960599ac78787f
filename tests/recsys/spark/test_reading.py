"""Tables of ratings on Spark: columns, types, ids to indices, repeated pairs."""

import pytest

from recsys.data.columns import Request
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
    found = table(spark, [(7.0, 2, "3", day)], "user double, item int, rating string, time date")
    assert found.frame.collect() == [(7, 2, 3.0, 2 * 86400.0)]


def test_no_rows(spark, tmp_path):
    from recsys.spark.reading import read_ratings

    with pytest.raises(DataError, match="There are no ratings: the data have no rows"):
        table(spark, [], "user int, item int, rating double")
    frame = spark.createDataFrame([(1, 2)], "user int, item int")
    frame.write.parquet(str(tmp_path / "pairs"))  # a folder whose files tell what they are
    assert read_ratings(spark, str(tmp_path / "pairs"), Request()).frame.count() == 1


def test_more_ids_than_an_index_has_room_for(spark, tmp_path, monkeypatch):
    from recsys.spark import reading
    from recsys.spark.results import Place

    monkeypatch.setattr(reading, "MOST_IDS", 2)
    ids = spark.createDataFrame([(1,), (2,), (3,)], "id bigint")
    with pytest.raises(DataError, match="at most 2 users or items; got 3"):
        reading._number(ids, Place(spark, str(tmp_path / "ids")))


def test_files_that_are_not_there(spark, tmp_path):
    from recsys.spark.reading import read_ratings

    with pytest.raises(DataError, match=r"There is no file or folder .*nowhere that Spark can see"):
        read_ratings(spark, str(tmp_path / "nowhere"), Request())


def test_a_movielens_directory_and_a_tab_separated_file(spark, tmp_path):
    from recsys.spark.reading import read_ratings

    (tmp_path / "movies.csv").write_text("movieId,title\n1,Heat\n")
    (tmp_path / "ratings.csv").write_text("userId,movieId,rating,timestamp\n7,1,4.5,100\n")
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
    from recsys.spark.reading import _number
    from recsys.spark.results import Place

    frame = spark.createDataFrame([(value,) for value in values], schema).repartition(3)
    numbered, count = _number(frame, Place(spark, str(tmp_path / "ids")))
    found = dict(numbered.select("id", "index").collect())
    assert count == len(found)
    assert found == {value: place for place, value in enumerate(sorted(set(values)))}


REPEATED = [(1, 1, 2.0, 10), (1, 1, 4.0, 30), (1, 1, 3.0, 20), (1, 2, 5.0, 5)]


@pytest.mark.parametrize(
    ("policy", "value"), [("last", 4.0), ("first", 2.0), ("mean", 3.0), ("sum", 9.0)]
)
def test_repeated_pairs_are_merged(spark, policy, value):
    from recsys.spark.reading import _merged

    found = table(spark, REPEATED, "user int, item int, rating double, time int")
    merged = _merged(found.frame, policy).sort("item").collect()
    assert merged == [(1, 1, value, False), (1, 2, 5.0, False)]


@pytest.mark.parametrize(
    ("policy", "message"),
    [
        ("last", "1 pairs of user and item are repeated, and rows on a cluster have no order"),
        ("error", "1 pairs of user and item are repeated"),
    ],
)  # fmt: skip
def test_repeated_pairs_that_nothing_decides_are_rejected(spark, tmp_path, policy, message):
    from recsys.spark.reading import encode
    from recsys.spark.results import Place

    found = table(spark, [row[:3] for row in REPEATED], "user int, item int, rating double")
    scratch = Place(spark, str(tmp_path))
    with pytest.raises(DataError, match=message):
        encode(found.frame, scratch, duplicates=policy, test_fraction=0, random_state=0)
