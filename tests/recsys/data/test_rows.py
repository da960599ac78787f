"""Which rows count, and how much: events, age, ranges of time, likes, bad rows."""

import polars as pl
import pytest

from recsys.data.ratings import Ratings
from recsys.errors import DataError
from recsys.readers import read_ratings

DAY = 86400
EVENTS = pl.DataFrame(
    {
        "visitor": ["a", "a", "a", "b", "b"],
        "sku": ["x", "x", "y", "x", "z"],
        "event": ["view", "purchase", "view", "cart", "view"],
        "time": [0, DAY, 2 * DAY, 3 * DAY, 4 * DAY],
    }
)
WEIGHTS = {"purchase": 5, "cart": 3, "view": 1}


def of(**options):
    return Ratings.from_frame(EVENTS, user="visitor", item="sku", **options)


def cells(ratings):
    return {row[:2]: row[2] for row in ratings.to_frame().rows()}


def test_counts_are_not_said_to_be_grades():
    values = [1.0, 2.0, 3.0, 127.0] * 10
    frame = {"user": [*range(40)], "item": [n % 5 for n in range(40)], "rating": values}
    source = str(Ratings.from_frame(pl.DataFrame(frame)).source)
    assert "the ratings look like counts or amounts" in source
    assert "are taken as grades" not in source


@pytest.mark.parametrize("highest", [100, 1500])
def test_grades_beyond_the_usual_scales_are_named(highest):
    values = [1.0 + (highest - 1) * i / 299 for i in range(300)]
    pairs = {"user": [i % 20 for i in range(300)], "item": [*range(300)]}
    ratings = Ratings.from_frame(
        pl.DataFrame(pairs | {"value": values}), rating="value"
    )
    assert not ratings.implicit
    told = "ratings from 1 to 1500 are taken as grades" in str(ratings.source)
    assert told == (highest > 100)


def test_weights_of_events_are_summed():
    ratings = of(event_weights=WEIGHTS)
    assert ratings.implicit
    assert cells(ratings) == {
        ("a", "x"): 6,
        ("a", "y"): 1,
        ("b", "x"): 3,
        ("b", "z"): 1,
    }
    assert "events: view 3 x 1" in str(ratings.source)
    assert "1 duplicate (summed)" in str(ratings.source)
    assert cells(of(event_weights=WEIGHTS, duplicates="last"))[("a", "x")] == 5


def test_events_without_weights_are_listed_and_count_the_same():
    ratings = of()
    assert ratings.values.tolist() == [1] * 4
    listed = "events without weights, which all count equally: view 3, "
    assert listed in str(ratings.source)


def test_every_kind_of_event_needs_a_weight():
    with pytest.raises(
        DataError,
        match=r"events without a weight: cart \(1\); give each a weight \(0 leaves it out\)",
    ):
        of(event_weights={"purchase": 5, "view": 1})
    left = of(event_weights={"purchase": 5, "view": 1, "cart": 0})
    assert cells(left) == {("a", "x"): 6, ("a", "y"): 1, ("b", "z"): 1}
    others = of(event_weights={"purchase": 5, "*": 2, "refund": 1})
    assert cells(others)[("b", "x")] == 2
    assert "no refund" in str(others.source)
    with pytest.raises(DataError, match="weight of the event 'view' must be a number"):
        of(event_weights={"view": float("nan"), "*": 1})
    with pytest.raises(DataError, match="need a column of events; name it with"):
        Ratings.from_frame(EVENTS.drop("event"), user="visitor", event_weights=WEIGHTS)


def test_event_weights_do_not_read_a_rating_column():
    frame = EVENTS.with_columns(rating=pl.lit(3.0))
    ratings = Ratings.from_frame(frame, user="visitor", event_weights=WEIGHTS)
    assert ratings.implicit
    assert "not used: rating" in str(ratings.source)


def test_weights_halve_with_age():
    ratings = of(half_life="2d", duplicates="sum")
    found = cells(ratings.take(ratings.values > 0))
    drop = ratings.to_frame().drop("timestamp")
    expected = {
        ("a", "x"): 2**-2 + 2**-1.5,
        ("a", "y"): 2**-1,
        ("b", "x"): 2**-0.5,
        ("b", "z"): 1,
    }
    assert dict(
        zip(drop.select("user", "item").rows(), drop["rating"], strict=True)
    ) == (pytest.approx(expected))
    assert found.keys() == expected.keys()
    both = of(half_life="2d", event_weights=WEIGHTS).to_frame()
    assert both["rating"].to_list() == pytest.approx(
        [2**-2 + 5 * 2**-1.5, 0.5, 3 * 2**-0.5, 1]
    )
    with pytest.raises(
        DataError, match="half_life needs timestamps; name their column"
    ):
        Ratings.from_frame(EVENTS.drop("time"), user="visitor", half_life="2d")
    stars = EVENTS.with_columns(rating=pl.Series([1.0, 2, 3, 4, 5]))
    with pytest.raises(
        DataError, match="half_life applies to implicit feedback, and these data have"
    ):
        Ratings.from_frame(stars, user="visitor", half_life="2d")


def test_since_is_included_and_until_is_not():
    ratings = of(since="1970-01-02", until=4 * DAY)
    assert cells(ratings).keys() == {("a", "x"), ("a", "y"), ("b", "x")}
    assert "3 of 5 rows since 1970-01-02 until 1970-01-05" in str(ratings.source)
    with pytest.raises(
        DataError, match=r"No rows are left: .*; 0 of 5 rows since 2030-01-01"
    ):
        of(since="2030")
    with pytest.raises(DataError, match="since must be before until"):
        of(since="2030", until="2029")
    with pytest.raises(DataError, match="since and until need a column of times"):
        Ratings.from_frame(EVENTS.drop("time"), user="visitor", since="2020")


@pytest.mark.parametrize(
    "liked", [[True, False, True], ["true", "false", "TRUE"], ["t", "f", "t"]]
)
@pytest.mark.parametrize("name", ["liked", "rating"])
def test_likes_are_interactions_and_dislikes_are_left_out(liked, name):
    frame = pl.DataFrame({"user": [1, 1, 2], "item": [5, 6, 6], name: liked})
    ratings = Ratings.from_frame(frame)
    assert ratings.implicit
    assert cells_of_ones(ratings) == {(1, 5), (2, 6)}
    assert "1 row left out whose rating is false" in str(ratings.source)


def cells_of_ones(ratings):
    assert ratings.values.tolist() == [1] * ratings.nnz
    return set(ratings.to_frame().rows())


def test_summed_events_without_ratings_are_counts():
    frame = pl.DataFrame({"user": [1, 1, 2], "item": [5, 5, 6]})
    assert cells(Ratings.from_frame(frame, duplicates="sum")) == {(1, 5): 2, (2, 6): 1}
    assert Ratings.from_frame(frame).values.tolist() == [1, 1]


def test_the_usual_columns_of_a_frame_are_found_and_said():
    frame = pl.DataFrame(
        {"customer_id": [1], "sku": [2], "stars": [3.0], "time": ["2024-01-01"]}
    )
    ratings = Ratings.from_frame(frame)
    assert ratings.timestamps.tolist() == [1_704_067_200]
    assert "item = sku, rating = stars, timestamp = time" in str(ratings.source)


@pytest.mark.parametrize(
    "text",
    ["NULL", "null", "nan", "NaN", "None", "<NA>", r"\N", "", "N/A", "undefined"],
)
def test_texts_for_missing_ids_are_not_users(text):
    frame = pl.DataFrame({"user": ["a", "b", text], "item": ["NA", "y", "z"]})
    with pytest.raises(DataError, match="Row 3: the user id is missing"):
        Ratings.from_frame(frame)
    kept = Ratings.from_frame(frame, bad_rows=0.5)
    assert kept.users.values.to_list() == ["a", "b"]
    assert kept.items.values.to_list() == ["NA", "y"]


def lines(bad, n=400):
    rows = [f"{k % 20},{k},{k % 5}" for k in range(n)]
    for place, row in bad.items():
        rows[place] = row
    return "\n".join(["user,item,rating", *rows, ""])


BAD = {7: "1,2", 50: "NULL,50,3", 80: "1,80,good", 90: '1,"90,3', 399: "5,399,\xff"}


def test_bad_rows_are_skipped_with_their_places(tmp_path):
    path = tmp_path / "r.csv"
    path.write_bytes(lines({k: v for k, v in BAD.items() if k < 90}).encode())
    with pytest.raises(DataError, match=r"r.csv, line 9: found 2 fields, expected 3\."):
        read_ratings(path)
    ratings = read_ratings(path, bad_rows="skip")
    assert ratings.nnz == 397
    assert ratings.users.dtype == pl.Int64
    assert "3 bad rows left out" in str(ratings.source)
    assert ratings.source.skipped == (
        "r.csv, line 9: found 2 fields, expected 3.",
        "r.csv, line 52: the user id is missing ('NULL').",
        "r.csv, line 82: rating 'good' is not a number.",
    )


def test_too_many_bad_rows_are_an_error(tmp_path):
    path = tmp_path / "r.csv"
    path.write_text(lines(dict.fromkeys(range(5), "1,2")))
    message = r"5 rows of 400 \(1.2%\) cannot be read, more than 1%; the first: r.csv, line 2: "
    with pytest.raises(DataError, match=message):
        read_ratings(path, bad_rows="skip")
    assert read_ratings(path, bad_rows=0.02).nnz == 395
    with pytest.raises(
        DataError, match="bad_rows must be error, skip, or a share below 1"
    ):
        read_ratings(path, bad_rows=2.0)


def test_bytes_and_quotes_that_are_broken_are_bad_rows(tmp_path):
    path = tmp_path / "r.csv"
    path.write_bytes(lines({399: "5,399,\xff", 90: '1,"9"0,3'}).encode("latin-1"))
    ratings = read_ratings(path, bad_rows="skip")
    assert ratings.nnz == 398
    assert "quotes don't match" in ratings.source.skipped[0]
    assert "line 401: byte 0xff" in ratings.source.skipped[1]


def test_bad_times_are_bad_rows_and_named_by_line(tmp_path):
    path = tmp_path / "r.csv"
    rows = [f"u{k},{k},2024-01-{k % 28 + 1:02}" for k in range(300)]
    rows[4], rows[10] = "u4,4", "u10,10,sometime"
    path.write_text("\n".join(["user,item,date", *rows]))
    ratings = read_ratings(path, bad_rows="skip")
    assert ratings.nnz == 298
    assert ratings.source.skipped[1].startswith(
        "r.csv, line 12: time 'sometime' is neither"
    )


def test_the_first_bad_rows_of_any_kind_are_named_by_file_and_line(tmp_path):
    rows = [f"u{k},{k},4,2024-01-{k % 28 + 1:02}" for k in range(900)]
    for name, bad in {
        "b.csv": {3: "u3,3", 9: 'u9,"9"0,4,2024-01-10'},
        "a.csv": {
            2: "u2,2,4,sometime",
            5: "u5,,4,2024-01-06",
            8: "u8,8,x,2024-01-09",
            11: "u11",
        },
    }.items():
        lines = [bad.get(k, row) for k, row in enumerate(rows)]
        (tmp_path / name).write_text("\n".join(["user,item,rating,date", *lines]))
    a, b = tmp_path / "a.csv", tmp_path / "b.csv"
    for source, places in {
        a: ("a.csv, line 4", "a.csv, line 7", "a.csv, line 10"),
        (b, a): ("b.csv, line 5", "b.csv, line 11", "a.csv, line 4"),
    }.items():
        skipped = read_ratings(source, bad_rows="skip").source.skipped
        assert (
            tuple(text.split(":")[0].rpartition("/")[2] for text in skipped) == places
        )


@pytest.mark.parametrize("suffix", ["jsonl", "parquet"])
def test_bad_rows_of_other_formats(tmp_path, suffix):
    path = tmp_path / f"r.{suffix}"
    users = [f"u{k}" for k in range(300)]
    users[3] = None
    frame = pl.DataFrame(
        {"user": users, "item": range(300), "rating": [1.0, 2.0, 4.0] * 100}
    )
    if suffix == "parquet":
        frame.write_parquet(path)
    else:
        frame.write_ndjson(path)
        text = path.read_text().splitlines()
        path.write_text("\n".join([*text[:9], "{broken", *text[10:]]))
    with pytest.raises(DataError, match=r"4: the user id is missing|line 10: not JSON"):
        read_ratings(path)
    ratings = read_ratings(path, bad_rows="skip")
    assert ratings.nnz == (299 if suffix == "parquet" else 298)
    assert any("4: the user id is missing" in each for each in ratings.source.skipped)


def test_bad_lines_of_lightgcn(tmp_path):
    path = tmp_path / "train.txt"
    rows = [f"{user} {user + 1} {user + 2} {user + 3}" for user in range(4000)]
    rows[3999] = "3999 10 x"  # behind what the layout is told by
    path.write_text("\n".join(rows))
    with pytest.raises(DataError, match="line 4000: 'x' is not an integer"):
        read_ratings(path)
    assert read_ratings(path, bad_rows="skip").nnz == 3 * 3999


def test_says_that_times_in_single_precision_are_rounded() -> None:
    times = pl.Series([1748854801, 1748854999])
    frame = pl.DataFrame({"user": [1, 2], "item": [7, 7], "time": times})
    for dtype, is_rounded in (
        (pl.Float32, True),
        (pl.Float64, False),
        (pl.Int64, False),
    ):
        ratings = Ratings.from_frame(frame.with_columns(pl.col("time").cast(dtype)))
        assert ("times in single precision" in str(ratings.source)) == is_rounded


def test_a_missing_weight_is_called_a_weight():
    frame = pl.DataFrame({"user": [1, 1, 2], "item": [1, 2, 2], "quantity": [3, 99, 1]})
    ratings = Ratings.from_frame(frame, weight="quantity", missing=99)
    assert "1 row left out whose weight is 99 (missing)" in str(ratings.source)
    texts = frame.with_columns(quantity=pl.Series(["3", "many", "1"]))
    with pytest.raises(DataError, match="weight 'many' is not a number"):
        Ratings.from_frame(texts, weight="quantity", missing=99)


def test_weights_whose_sum_exceeds_single_precision():
    frame = {"user": ["a", "a", "b"], "item": ["x", "x", "y"], "q": [3e38, 3e38, 1]}
    with pytest.raises(DataError, match=r"of a pair .* add up to 6e\+38"):
        Ratings.from_frame(pl.DataFrame(frame), weight="q")
