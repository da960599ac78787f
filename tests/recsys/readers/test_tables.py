"""Delimited text, JSON lines and Parquet: what is read, and what the reader says of it."""

from __future__ import annotations

import bz2
import io
import json
import tempfile
from collections.abc import Callable
from pathlib import Path

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from recsys.data.columns import Request
from recsys.data.ratings import Ratings
from recsys.data.rows import RowRules, prepared
from recsys.errors import DataError
from recsys.readers import read_ratings
from recsys.readers.delimited import Layout, detect, read_delimited
from recsys.readers.sources import open_data

Read = Callable[..., Ratings]
ROWS = [(1, 10, 4.0, 100), (1, 20, 3.5, 300), (2, 10, 5.0, 200)]


def rows(loaded: Ratings) -> list[tuple[object, ...]]:
    return loaded.to_frame().rows()


def text(separator: str, header: str = "user,item,rating,timestamp") -> str:
    lines = [separator.join(header.split(","))] if header else []
    lines += [separator.join(map(str, row)) for row in ROWS]
    return "\n".join(lines) + "\n"


# Separators, headers, oddities


@pytest.mark.parametrize(
    ("separator", "word"),
    [
        (",", "comma"),
        ("\t", "tab"),
        (";", "semicolon"),
        ("|", "bar"),
        (" ", "space"),
        ("::", "'::'"),
    ],
)
@pytest.mark.parametrize("header", ["user,item,rating,timestamp", ""])
def test_separators_are_found(
    read: Read, separator: str, word: str, header: str
) -> None:
    loaded = read(text(separator, header))
    assert rows(loaded) == ROWS
    assert f"{word}-separated" in str(loaded.source)
    assert ("no header" in str(loaded.source)) == (not header)


def test_the_decision_line(read: Read) -> None:
    assert str(read(text(",", "userId,movieId,rating,timestamp")).source) == (
        "ratings.csv: comma-separated, user = userId, item = movieId, rating = rating, "
        "timestamp = timestamp; all times are before 1990, on 1970-01-01; --time-format gives "
        "another unit; no duplicates"
    )
    assert str(read("user_id,asin\nx,y\nx,y\nx,z\n").source) == (
        "ratings.csv: comma-separated, user = user_id, item = asin, no rating: implicit feedback; "
        "1 duplicate (last kept)"
    )


def test_separators_can_be_given(read: Read) -> None:
    assert rows(read(text("^"), sep="^")) == ROWS
    assert rows(read(text("\t"), sep="tab")) == ROWS
    assert rows(read(text("\t"), sep=r"\t")) == ROWS
    assert rows(read("user,x item\n1,5 2\n", sep=" ", user="user,x")) == [("1,5", 2)]


def test_book_crossing_style(read: Read) -> None:
    content = '"User-ID";"ISBN";"Book-Rating"\r\n"276725";"034545104X";"0"\r\n"7";"é;""";"5"\r\n'
    loaded = read(content.encode("latin-1"), encoding="latin-1")
    assert rows(loaded) == [(7, 'é;"', 5.0), (276725, "034545104X", 0.0)]
    said = "semicolon-separated, user = User-ID, item = ISBN, rating = Book-Rating"
    assert said in str(loaded.source)


@pytest.mark.parametrize(
    "content",
    [
        b"\xef\xbb\xbfuser,item,rating,timestamp\n1,10,4,100\n1,20,3.5,300\n2,10,5,200",
        b"user,item,rating,timestamp\r\n1,10,4,100\r\n1,20,3.5,300\r\n2,10,5,200\r\n\r\n\r\n",
        b"\n\nuser,item,rating,timestamp\n1,10,4,100\n\n1,20,3.5,300\n2,10,5,200\n",
        b"user, item, rating, timestamp\n1, 10, 4, 100\n1, 20, 3.5, 300\n2, 10, 5, 200\n",
        b'user,item,note,rating,timestamp\n1,10,"a, b",4,100\n1,20,"c\nd",3.5,300\n2,10,,5,200\n',
        b'\xef\xbb\xbf1,10,4,100\n1,20,3.5,300\n2,"10\n",5,200\n',
        b",user,item,rating,timestamp\n0,1,10,4,100\n1,1,20,3.5,300\n2,2,10,5,200\n",
        b'"user","item","rating","timestamp"\n"1","10","4","100"\n1,20,3.5,300\n2,10,5,200\n',
        b"user,item,rating,timestamp\n1,10,4,100\n1,20,3.5,300\n2,10,5,200\n,,,\n",
        b'user,item,note,rating,timestamp\n1,10,x"y,4,100\n1,20,,3.5,300\n2,10,,5,200\n',
        b"user,item,rating,timestamp\n1,10,4,1970-01-01 00:01:40\n1,20,3.5,1970-01-01T00:05:00Z\n"
        b"2,10,5,1970-01-01 00:03:20\n",
        b"# exported today\n#\nuser,item,rating,timestamp\n1,10,4,100\n1,20,3.5,300\n2,10,5,200",
        b"% bip weighted\n1 10 4 100\n1 20 3.5 300\n2 10 5 200\n",
        b"sep=;\r\nuser;item;rating;timestamp\r\n1;10;4;100\r\n1;20;3,5;300\r\n2;10;5;200\r\n",
        b"user,item,rating,timestamp\n1,10,4,100,\n1,20,3.5,300,\n2,10,5,200,\n",
        b"User ID,Item ID,Rating (1-5),Time [s]\n1,10,4,100\n1,20,3.5,300\n2,10,5,200\n",
        "user,item,rating,timestamp\n1,10,4,100\n1,20,3.5,300\n2,10,5,200".encode(
            "utf-16"
        ),
        bz2.compress(
            b"user,item,rating,timestamp\n1,10,4,100\n1,20,3.5,300\n2,10,5,200\n"
        ),
    ],
)
def test_oddities_that_are_read_all_the_same(read: Read, content: bytes) -> None:
    assert rows(read(content)) == ROWS


@pytest.mark.parametrize(("width", "expected"), [(2, [(1, 10)]), (3, [(1, 10, 4.0)])])
def test_files_without_header_and_with_fewer_columns(
    read: Read, width: int, expected: list[object]
) -> None:
    assert rows(read(",".join(["1", "10", "4"][:width]) + "\n")) == expected


def test_no_header_but_string_ids(read: Read) -> None:
    loaded = read("A3AF8,0000000078,5.0,1092182400\nB2,11,1.0,1092182401\n")
    assert rows(loaded)[0] == ("A3AF8", "0000000078", 5.0, 1092182400)
    assert "no header" in str(loaded.source)


def test_columns_by_number_without_header(read: Read) -> None:
    numbers = {"user": "2", "item": "1", "rating": "4", "timestamp": "3"}
    loaded = read("10,1,100,4\n20,1,300,3\n", **numbers)
    assert rows(loaded) == [(1, 10, 4.0, 100), (1, 20, 3.0, 300)]
    wide = read("9,9,1,10,4\n9,9,1,20,3\n", user="3", item="4", rating="5")
    assert rows(wide) == [(1, 10, 4.0), (1, 20, 3.0)]


def test_columns_by_number_may_be_numbers(read: Read) -> None:
    assert rows(read("10,1,100,4\n", user=2, item=1, rating=4)) == [(1, 10, 4.0)]


def test_columns_by_number_where_the_first_row_has_no_number(read: Read) -> None:
    loaded = read("ann\ttea\nbob\trye\n", user="1", item="2")
    assert rows(loaded) == [("ann", "tea"), ("bob", "rye")]
    assert "no header" in str(loaded.source)


def test_a_column_that_is_skipped_is_called_by_its_number(read: Read) -> None:
    loaded = read("u1,x,Bach,7\nu2,y,Monk,3.5\n", user="1", item="3", rating="4")
    assert rows(loaded) == [("u1", "Bach", 7.0), ("u2", "Monk", 3.5)]
    assert "user = 1, item = 3, rating = 4, not used: 2;" in str(loaded.source)
    assert "item = item, rating = 4" in str(
        read("1,2,3,4\n", item="item", rating="4").source
    )


@pytest.mark.parametrize("note", ["x", '"y\nz"'], ids=["fast", "carefully"])
def test_decimal_commas_between_semicolons(read: Read, note: str) -> None:
    content = (
        f"user;item;rating;time;note\n1;10;4;100;{note}\n1;20;3,5;300;\n2;10;5.0;200;\n"
    )
    assert rows(read("\ufeff" + content)) == ROWS


def test_decimal_commas_without_header(read: Read) -> None:
    assert rows(read("1;10;4,5\n2;10;3\n")) == [(1, 10, 4.5), (2, 10, 3.0)]


def test_errors_next_to_decimal_commas(read: Read) -> None:
    with pytest.raises(DataError, match=r"line 4: rating 'x' is not a number\."):
        read("user;item;rating\n1;2;3,5\n1;3;4,5\n1;4;x\n")


def test_what_begins_with_a_number_sign_may_be_a_header_or_an_id(read: Read) -> None:
    assert rows(read("#user\titem\n1\t2\n")) == [(1, 2)]
    assert rows(read("#a,1\n#b,2\nc,3\n")) == [("#a", 1), ("#b", 2), ("c", 3)]


def test_a_column_without_name_is_not_mentioned(read: Read) -> None:
    loaded = read(",user,item,rating,x\n0,1,10,4,a\n")
    assert "rating = rating, not used: x;" in str(loaded.source)


@pytest.mark.parametrize(
    "header",
    [
        "CustomerID,StockCode,InvoiceDate",
        "customer_id,sku,purchase_date",
        "user_id,parent_asin,created_at",
    ],
)
def test_purchases(read: Read, header: str) -> None:
    assert rows(read(f"{header}\n7,a,1970-01-02\n")) == [(7, "a", 86400)]


def test_a_stray_quote_swallows_no_rows(read: Read) -> None:
    content = 'user,item,note,x\n1,10,a,4"5\n2,"20",b,5\n3,30,"c",\n'
    assert rows(read(content)) == [(1, 10), (2, 20), (3, 30)]


# Ids stay as given


@pytest.mark.parametrize(
    ("ids", "expected"),
    [
        (["7", "12"], [7, 12]),
        (["-7", "0"], [-7, 0]),
        (["007", "12"], ["007", "12"]),
        (["12", "7.0"], [7, 12]),
        (["12.0", "7.00"], [7, 12]),
        (["12", "7.5"], ["12", "7.5"]),
        (["b", "7.0"], ["7.0", "b"]),
        (["12", "07.0"], ["07.0", "12"]),
        (["12", "+7"], ["+7", "12"]),
        (["12", "-0"], ["-0", "12"]),
        (["12", "99999999999999999999"], ["12", "99999999999999999999"]),
        (["12", "9999999999999999999"], ["12", "9999999999999999999"]),
        (["9223372036854775807", "1"], [1, 9223372036854775807]),
        (["b", "12"], ["12", "b"]),
        (["NA", "nil"], ["NA", "nil"]),
        (["a b", "ü"], ["a b", "ü"]),
    ],
)
@pytest.mark.parametrize("far_down", [False, True])
def test_text_is_integer_only_where_every_value_is(
    read: Read, ids: list[str], expected: list[object], far_down: bool
) -> None:
    padding = ["5"] * 500 if far_down else []
    content = "user,item\n" + "".join(f"{u},1\n" for u in [*padding, *ids])
    users = read(content).users.values.to_list()
    if far_down:
        plain = 5 if isinstance(expected[0], int) else "5"
        users.remove(plain)
    assert users == expected


# Times


@pytest.mark.parametrize(
    "times",
    [
        ["100", "300"],
        ["1970-01-01T00:01:40", "1970-01-01T00:05:00"],
        ["100.0", "300.0"],
    ],
)
def test_times_become_seconds(read: Read, times: list[str]) -> None:
    loaded = read(f"user,item,date\n1,10,{times[0]}\n1,20,{times[1]}\n")
    assert [row[-1] for row in rows(loaded)] == [100, 300]


def test_milliseconds_are_recognised(read: Read) -> None:
    assert rows(read("user,item,ts\n1,10,1112486027123\n")) == [(1, 10, 1112486027.123)]


def test_an_unused_date_of_another_form_is_ignored(read: Read) -> None:
    content = 'user,item,date\n1,10,"09 13, 2009"\n'
    loaded = read(content)
    assert rows(loaded) == [(1, 10)]
    assert (
        "date not used ('09 13, 2009' is not a time that can be read; --time-format reads"
        in str(loaded.source)
    )


def test_the_last_in_time_is_kept(read: Read) -> None:
    content = "user,item,rating,timestamp\n1,10,5,300\n1,10,1,100\n"
    assert rows(read(content)) == [(1, 10, 5.0, 300)]
    assert rows(read(content, duplicates="first")) == [(1, 10, 1.0, 100)]
    loaded = read(content, duplicates="mean")
    assert rows(loaded) == [(1, 10, 3.0, 300)]
    assert "1 duplicate (averaged)" in str(loaded.source)


def test_a_rating_column_can_be_left_out(read: Read) -> None:
    loaded = read(text(","), implicit=True)
    assert loaded.implicit
    assert "no rating: implicit feedback" in str(loaded.source)


# JSON lines and Parquet


def as_jsonl(*objects: object) -> str:
    return "\n".join(json.dumps(o) for o in objects) + "\n"


def test_json_lines(read: Read) -> None:
    loaded = read(
        "\n"
        + as_jsonl(
            {
                "reviewerID": "A",
                "asin": "B1",
                "overall": 5,
                "unixReviewTime": 100,
                "x": [1, {}],
            },
            {"reviewerID": "A", "asin": "B2", "overall": 2.5, "unixReviewTime": 200},
        ),
        "reviews.json",
    )
    assert rows(loaded) == [("A", "B1", 5.0, 100), ("A", "B2", 2.5, 200)]
    assert str(loaded.source) == (
        "reviews.json: JSON lines, user = reviewerID, item = asin, rating = overall, "
        "timestamp = unixReviewTime; all times are before 1990, on 1970-01-01; --time-format "
        "gives another unit; no duplicates"
    )


def test_json_ids_of_both_kinds_become_strings(read: Read) -> None:
    content = as_jsonl({"user": 1, "item": 5}, {"user": "a", "item": 6})
    assert rows(read(content, "r.jsonl")) == [("1", 5), ("a", 6)]
    padded = as_jsonl(*[{"user": 1, "item": 5}] * 200, {"user": "01", "item": 6})
    assert rows(read(padded, "r.jsonl")) == [("01", 6), ("1", 5)]


def test_json_numbers_as_strings(read: Read) -> None:
    content = as_jsonl(
        {"user": "01", "item": "2", "rating": "4.5", "date": "1970-01-02"}
    )
    assert rows(read(content, "r.jsonl")) == [("01", "2", 4.5, 86400)]


@pytest.mark.parametrize(
    "changed",
    [
        {},
        {"ts": pl.from_epoch("ts")},
        {"ts": pl.from_epoch("ts").dt.cast_time_unit("ms").dt.replace_time_zone("UTC")},
        {
            "user_id": pl.col("user_id").cast(pl.Int8),
            "stars": pl.col("stars").cast(pl.Float32),
        },
        {"stars": pl.col("stars").cast(pl.String), "extra": pl.lit([1, 2])},
    ],
)
def test_parquet(tmp_path: Path, changed: dict[str, pl.Expr]) -> None:
    frame = pl.DataFrame(
        ROWS, schema=["user_id", "movie_id", "stars", "ts"], orient="row"
    )
    frame.with_columns(**changed).write_parquet(tmp_path / "r.parquet")
    loaded = read_ratings(tmp_path / "r.parquet")
    assert rows(loaded) == ROWS
    said = "r.parquet: Parquet, user = user_id, item = movie_id, rating = stars, timestamp = ts"
    assert str(loaded.source).startswith(said)


def test_parquet_strings_stay_strings(tmp_path: Path) -> None:
    pl.DataFrame({"user": ["1", "2"], "item": ["3", "4"]}).write_parquet(
        tmp_path / "r.parquet"
    )
    assert rows(read_ratings(tmp_path / "r.parquet")) == [("1", "3"), ("2", "4")]


# The careful reader is the oracle of the fast one

FIELD = st.one_of(
    st.integers(-5, 50).map(str),
    st.sampled_from(
        ["007", "a", 'q"uote', "x,y", "l\nf", "ü", " 5", "5 ", "+5", "1e5", "-0", ""]
    ),
)
NUMBER = st.sampled_from(["1", "4.5", "-2", "1e2", ".5", "3.", "+4"])


@given(
    st.lists(
        st.tuples(FIELD.filter(str.strip), FIELD.filter(str.strip), NUMBER), min_size=1
    )
)
def test_fast_and_careful_reader_agree(table: list[tuple[str, str, str]]) -> None:
    written = io.BytesIO()
    frame = pl.DataFrame(table, schema=["user", "item", "rating"], orient="row")
    frame.write_csv(written)
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "ratings.csv"
        path.write_bytes(written.getvalue())
        with open_data(path) as data:
            layout = detect(data, Request())
            assert isinstance(layout, Layout)
            fast = read_delimited(data, layout, Request()).plain().columns
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr("recsys.readers.delimited.read_fast", lambda *_: None)
                careful = read_delimited(data, layout, Request()).plain().columns
    for role in ("user", "item"):
        assert fast[role].to_list() == careful[role].to_list()
    assert (
        fast["rating"].cast(pl.Float32).to_list()
        == careful["rating"].cast(pl.Float32).to_list()
    )


@pytest.mark.parametrize("end", ["\n", "\r\n"])
@pytest.mark.parametrize(
    "line",
    [
        *(
            "-7,8,.5",
            "07,8,3",
            "-0,8,3",
            "+7,8,3",
            " 7,8,3",
            "7 ,8,3",
            "7,8, 3 ",
            "7.0,8,3",
        ),
        *(
            "99999999999999999999,8,3",
            "7,8,05",
            "1e3,8,1e1",
            '"7",8,3',
            "7,8,1e39",
            "NULL,8,3",
        ),
        *("7,8", "7,8,", ",,"),
    ],
)
def test_numbers_beyond_the_sample_are_read_as_carefully(
    line: str, end: str, tmp_path: Path
) -> None:
    path = tmp_path / "ratings.csv"
    lines = ["user,item,rating", *["1,2,3", "4,5,1.5"] * 150, line, ""]
    path.write_text(end.join(lines), newline="")
    found = []
    with open_data(path) as data:
        layout = detect(data, Request())
        assert isinstance(layout, Layout)
        for is_careful in (False, True):
            with pytest.MonkeyPatch.context() as patch:
                if is_careful:
                    patch.setattr("recsys.readers.delimited.read_fast", lambda *_: None)
                try:
                    rows = read_delimited(data, layout, Request())
                    columns = prepared(rows, RowRules()).plain().columns
                    found.append({role: columns[role].to_list() for role in columns})
                except DataError as error:
                    found.append({"error": [str(error)]})
    assert found[0] == found[1]


@pytest.mark.parametrize("before", [0, 300])
def test_whole_floats_in_json_lines_are_integer_ids(read: Read, before: int) -> None:
    content = as_jsonl(*[{"user": 1, "item": 2}] * before, {"user": 1.0, "item": 17.0})
    assert (1, 17) in rows(read(content, "r.jsonl"))


def test_json_lines_without_a_field_have_no_columns(read: Read) -> None:
    with pytest.raises(DataError, match=r"^r\.jsonl has no columns\.$"):
        read("{}\n", "r.jsonl")
