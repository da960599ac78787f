"""Data sets as shops and universities publish them: their names of columns, and what is odd."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import scipy.io
import scipy.sparse as sp

from recsys.data.ratings import Ratings
from recsys.errors import DataError
from recsys.evaluation.splits import leave_last_split
from recsys.readers import read_ratings

Read = Callable[..., Ratings]
TIME = 1_600_000_000


def lines(*objects: dict[str, Any]) -> str:
    return "".join(json.dumps(each) + "\n" for each in objects)


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (  # Amazon 2014
            lines(
                {
                    "reviewerID": "A1",
                    "asin": "B7",
                    "overall": 4.0,
                    "unixReviewTime": TIME,
                }
            ),
            ("A1", "B7", 4.0, TIME),
        ),
        (  # Amazon 2023: both asin and parent_asin, milliseconds
            lines(
                {
                    "asin": "B7",
                    "parent_asin": "B8",
                    "user_id": "A",
                    "rating": 4.0,
                    "ts": 10**12,
                }
            ),
            ("A", "B7", 4.0, 10**9),
        ),
        (  # Yelp
            lines(
                {
                    "user_id": "u",
                    "business_id": "b",
                    "stars": 4.0,
                    "date": "2020-09-13 12:26:40",
                }
            ),
            ("u", "b", 4.0, TIME),
        ),
        (  # Amazon 2018: the product first
            "0001713353,A1C6M8LCIX4M6M,5.0,1600000000\n",
            ("A1C6M8LCIX4M6M", "0001713353", 5.0, TIME),
        ),
        (
            "userID\tartistID\tweight\n2\t51\t13883\n",
            (2, 51, 13883.0),
        ),  # Last.fm, HetRec
        ("1::0114508::8::1600000000\n", (1, "0114508", 8.0, TIME)),  # MovieTweetings
        (
            "Cust_Id,Movie_Id,Rating,Date\n6,8,3,2020-09-13\n",
            (6, 8, 3.0, 1_599_955_200),
        ),
        (
            "username,anime_id,my_score\nkarthiga,21,9\n",
            ("karthiga", 21, 9.0),
        ),  # MyAnimeList
        (  # Netflix Prize
            "8:\n1488844,3,2020-09-13\n",
            (1488844, 8, 3.0, 1_599_955_200),
        ),
        (
            "timestamp,visitorid,event,itemid\n1600000000123,7,view,9\n",
            (7, 9, TIME + 0.123),
        ),
        (
            "t_dat,customer_id,article_id,price\n2020-09-13,00ab,0663713001,0.05\n",
            None,
        ),  # H&M
        (lines({"app_id": 10, "user_id": 5, "is_recommended": True}), (5, 10)),  # Steam
    ],
)
def test_public_data_sets(
    read: Read, content: str, expected: tuple[object, ...] | None
) -> None:
    loaded = read(content, "data.txt" if content[0].isdecimal() else "data.csv")
    expected = expected or ("00ab", "0663713001", 1_599_955_200)
    assert loaded.to_frame().rows() == [expected]


def test_what_follows_an_item_of_the_netflix_prize(read: Read) -> None:
    content = "1:\n7,3,2005-09-06\n8,5,2005-05-13\n2:\n7,4,2005-09-05\n"
    loaded = read(content, "combined_data_1.txt")
    assert loaded.to_frame().drop("timestamp").rows() == [
        (7, 1, 3.0),
        (7, 2, 4.0),
        (8, 1, 5.0),
    ]
    with pytest.raises(
        DataError, match=r"line 3: '8;5' is not a user, a rating and a date"
    ):
        read("1:\n7,3,2005-09-06\n8;5\n", "combined_data_1.txt")


def test_ratings_of_minus_one_are_none(read: Read) -> None:
    content = "user_id,anime_id,rating\n" + "".join(
        f"1,{n},{n or -1}\n" for n in range(9)
    )
    loaded = read(content)
    assert loaded.to_frame()["rating"].to_list() == list(range(1, 9))
    assert "1 row left out whose rating is -1 (not rated)" in str(loaded.source)
    votes = read("user,item,rating\n1,1,-1\n1,2,1\n1,3,0\n")
    assert votes.value_range() == (-1, 1)
    zeros = read("user,book_id,rating\n" + "".join(f"1,{n},{n}\n" for n in range(6)))
    assert "some ratings are 0; add --missing 0 if a 0 means no rating" in str(
        zeros.source
    )


@pytest.mark.parametrize("suffix", ["csv", "jsonl", "parquet"])
def test_a_rating_that_stands_for_none_is_left_out(tmp_path: Path, suffix: str) -> None:
    path, ratings = tmp_path / f"jokes.{suffix}", [0.5, 99.0, 99.0, 1.5, 0.0]
    frame = pl.DataFrame(
        {"user": [1, 1, 2, 2, 3], "item": [1, 2, 1, 2, 1], "rating": ratings}
    )
    getattr(
        frame,
        {"csv": "write_csv", "jsonl": "write_ndjson"}.get(suffix, "write_parquet"),
    )(path)
    loaded = read_ratings(path, missing=99)
    assert loaded.to_frame()["rating"].to_list() == [0.5, 1.5, 0.0]
    assert "2 rows left out whose rating is 99 (missing)" in str(loaded.source)
    assert read_ratings(path, defaults={"missing": 0.0}).value_range() == (0.5, 1.5)
    with pytest.raises(
        DataError, match="missing applies to ratings, and these data have no rat"
    ):
        read_ratings(path, missing=0, implicit=True)
    with pytest.raises(DataError, match="missing must be a number; got '0'"):
        read_ratings(path, missing="0")


def test_days_in_names_of_folders(tmp_path: Path) -> None:
    frame = pl.DataFrame({"user_id": [1], "item_id": [2]})
    for folder in ("day=2020-09-13", "year=2020/month=9/day=14"):
        (tmp_path / folder).mkdir(parents=True)
        frame.write_parquet(tmp_path / folder / "part-0.parquet")
    found = [
        read_ratings(tmp_path / each).timestamps
        for each in ("day=2020-09-13", "year=2020")
    ]
    assert [int(each[0]) for each in found if each is not None] == [
        1_599_955_200,
        1_600_041_600,
    ]


def test_types_of_parquet(tmp_path: Path) -> None:
    path = tmp_path / "r.parquet"
    pl.DataFrame({"user": [b"u", b"v"], "item": [b"a", b"b"]}).write_parquet(path)
    assert read_ratings(path).to_frame().rows() == [("u", "a"), ("v", "b")]
    pl.DataFrame({"user": [b"\xff"], "item": [1]}).write_parquet(path)
    with pytest.raises(DataError, match="the column of users has bytes that are not t"):
        read_ratings(path)
    pl.DataFrame(
        {"user": [1, 2], "items": [[7, 8], []], "time": [TIME, 9]}
    ).write_parquet(path)
    assert read_ratings(path).to_frame().rows() == [(1, 7, TIME), (1, 8, TIME)]
    pl.DataFrame({"user": [1], "item": [7]}).write_ipc(tmp_path / "r.feather")
    assert read_ratings(tmp_path / "r.feather").to_frame().rows() == [(1, 7)]


def test_sparse_matrices(tmp_path: Path) -> None:
    matrix = sp.csr_array([[0, 4.0], [2.0, 0]])
    scipy.io.mmwrite(tmp_path / "r.mtx", matrix)
    sp.save_npz(tmp_path / "r.npz", matrix)
    assert read_ratings(tmp_path / "r.mtx").to_frame().rows() == [
        (1, 2, 4.0),
        (2, 1, 2.0),
    ]
    loaded = read_ratings(tmp_path / "r.npz")
    assert loaded.to_frame().rows() == [(0, 1, 4.0), (1, 0, 2.0)]
    assert str(loaded.source).startswith("r.npz: SciPy matrix, user = user")


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (  # Book-Crossing: quotes after a backslash
            '"User-ID";"ISBN";"Book-Rating"\n"7";"\\"04325\\"";"6"\n"8";"a\\";"5"\n',
            [(7, '"04325"', 6.0), (8, "a\\", 5.0)],
        ),
        (  # RecBole: names with types
            "user_id:token\titem_id:token\trating:float\ttimestamp:float\n196\t242\t3\t1600000000\n",
            [(196, 242, 3.0, TIME)],
        ),
        ("1\t\t5\t\t0.25\n1\t\t7\t\t-9.5\n", [(1, 5, 0.25), (1, 7, -9.5)]),
        ("1 100 4 \n1 101 5 \n", [(1, 100, 4.0), (1, 101, 5.0)]),  # Epinions, Jester
        ("  1  100   4\n 20  101 3.5\n", [(1, 100, 4.0), (20, 101, 3.5)]),
        (
            "3 7 8 9\n1 8\n3 9 7 5\n",
            [(0, 7), (0, 8), (0, 9), (1, 8), (2, 5), (2, 7), (2, 9)],
        ),
        (
            "2 10 11\n1 12\n3 10 11 12\n",
            [(0, 10), (0, 11), (1, 12), (2, 10), (2, 11), (2, 12)],
        ),
        (
            "2 10 11\n1 12\n4 10 11 12\n",
            [(1, 12), (2, 10), (2, 11), (4, 10), (4, 11), (4, 12)],
        ),
        (  # Amazon 2014: dicts of Python
            "{'reviewerID': 'A1', 'asin': 'B7', 'overall': 4.0, 'helpful': [0, None]}\n"
            * 2,
            [("A1", "B7", 4.0)],
        ),
        (  # OTTO
            lines(
                {
                    "session": 1,
                    "events": [{"sku": 5, "ts": 10**12}, {"sku": 6, "ts": 10**12}],
                },
                {"session": 2, "events": [{"sku": 5, "ts": 10**12}]},
            ),
            [(1, 5, 10**9), (1, 6, 10**9), (2, 5, 10**9)],
        ),
        (
            lines({"user": 1, "items": [8, 9]}, {"user": 2, "items": []}),
            [(1, 8), (1, 9)],
        ),
        (  # Foursquare
            "userId,venueId,utcTimestamp\n470,49bb,Sun Sep 13 12:26:40 +0000 2020\n",
            [(470, "49bb", TIME)],
        ),
        (  # Last.fm: quotes that don't enclose a field
            'user\tartist\tplays\nu\t"weird al" x\t3\nu\t"say ""hi"""\t4\nu\t7" y\t5\n',
            [("u", '"weird al" x', 3.0), ("u", '7" y', 5.0), ("u", 'say "hi"', 4.0)],
        ),
        (  # the same, next to what is not read by columns
            'user\tartist\tplays\nu\t"say ""hi"""\t"4\t"\nu\t"weird al" x\t3\n',
            [("u", '"weird al" x', 3.0), ("u", 'say "hi"', 4.0)],
        ),
    ],
)
def test_odd_layouts(
    read: Read, content: str, expected: list[tuple[object, ...]]
) -> None:
    assert read(content, "data.txt").to_frame().rows() == expected


def test_more_than_four_columns_without_header_have_to_be_named(read: Read) -> None:
    taobao = "1,2268318,2520377,pv,1511544070\n1,2333346,2520771,buy,1511561733\n"
    with pytest.raises(DataError, match="5 columns; name them by number, such as --us"):
        read(taobao, "data.txt")


def test_a_table_next_to_tabs_has_no_spaces_for_separators(read: Read) -> None:
    reviews = "A1\tB1\t4\tvery good, all in all\nA2\tB1\t2\tnot at all good, no\n"
    loaded = read(reviews, "reviews.txt")
    assert loaded.to_frame().rows() == [("A1", "B1", 4.0), ("A2", "B1", 2.0)]


def test_a_separator_at_the_end_of_lines_adds_no_column(read: Read) -> None:
    assert "''" not in str(read("1 100 4 \n1 101 5 \n", "ratings_data.txt").source)


def test_times_of_half_a_day(read: Read) -> None:
    content = (
        "user,item,at\nU7,N9,11/13/2019 9:05:58 AM\nU8,N9,11/13/2019 12:05:58 PM\n"
    )
    for form in (None, "%m/%d/%Y %I:%M:%S %p"):
        loaded = read(content, timestamp="at", time_format=form)
        assert loaded.to_frame()["timestamp"].to_list() == [1573635958, 1573646758]
    with pytest.raises(
        DataError, match=r"add --time-format '%m/%d/%Y %I:%M:%S %p' or '%d/%m/%Y"
    ):
        read(content.replace("13", "12"), timestamp="at")


def test_a_header_in_another_encoding(read: Read) -> None:
    with pytest.raises(DataError, match=r"--encoding latin-1"):
        read("käufer;produkt;wertung\n1;2;3\n".encode("latin-1"))


def test_ratings_of_minus_one_do_not_depend_on_the_rest_of_the_file(read: Read) -> None:
    rows = "".join(f'1,{n},{n or -1},"two\nlines"\n' for n in range(9))
    loaded = read(f"user_id,anime_id,rating,review\n{rows}")
    assert "1 row left out whose rating is -1 (not rated)" in str(loaded.source)


def test_an_anonymous_user(read: Read) -> None:
    rows = "".join(
        f"{user};{item}\n" for user in ("NA", 5, 6) for item in range(user == "NA", 3)
    )
    loaded = read(f"userId;itemId\n{rows}NA;9\nNA;0\n")
    assert "the user 'NA' has 40% of the rows, and may stand for none" in str(
        loaded.source
    )


def test_files_without_users_and_items_are_not_ratings(tmp_path: Path) -> None:
    (tmp_path / "events.csv").write_text(
        "timestamp,visitorid,event,itemid\n1600000000,7,view,9\n"
    )
    (tmp_path / "tree.csv").write_text("categoryid,parentid\n1,2\n")
    (tmp_path / "properties.csv").write_text("timestamp,itemid,value\n1600000000,7,9\n")
    said = str(read_ratings(tmp_path).source)
    assert said.startswith(f"{tmp_path.name}/events.csv: ")
    assert "; left out, without users and items: properties.csv, tree.csv; " in said
    (tmp_path / "more.csv").write_text("8,10\n")
    with pytest.raises(
        DataError, match=r"several files .* \(events\.csv, more\.csv\); name the"
    ):
        read_ratings(tmp_path)


def test_folders_of_recbole_and_of_netflix(tmp_path: Path) -> None:
    (tmp_path / "ml.inter").write_text(
        "user_id:token\titem_id:token\n1\t7\n1\t8\n2\t7\n"
    )
    (tmp_path / "ml.item").write_text(
        "item_id:token\tmovie_title:token_seq\n7\tEmma\n8\tJaws\n"
    )
    loaded = read_ratings(tmp_path)
    assert loaded.titles is not None
    assert loaded.titles.to_list() == ["Emma", "Jaws"]
    for name in ("user_id:token", "user_id"):
        named = read_ratings(
            tmp_path / "ml.inter", user=name, item=name.replace("user", "item")
        )
        assert named.to_frame().equals(loaded.to_frame())
    folder = tmp_path / "netflix"
    folder.mkdir()
    for n, content in enumerate(("1:\n7,3,2005-09-06\n", "2:\n7,4,2005-09-05\n"), 1):
        (folder / f"combined_data_{n}.txt").write_text(content)
    (folder / "probe.txt").write_text("1:\n7\n")
    (folder / "movie_titles.csv").write_bytes(
        "1,2003,Emma, etc.\n2,1999,Caf\xe9\n".encode("latin-1")
    )
    films = read_ratings(folder)
    assert films.nnz == 2
    assert films.titles is not None
    assert films.titles.to_list() == ["Emma, etc.", "Café"]


def test_sequences_of_recbole_are_lists(tmp_path: Path) -> None:
    (tmp_path / "ml.inter").write_text(
        "who:token\twhat:token\tscore:float\n1\t7\t2\n1\t8\t3\n"
    )
    (tmp_path / "ml.item").write_text(
        "what:token\tmovie_title:token_seq\tclass:token_seq\n"
        "7\tToy Story\tAnimation Children's  Comedy\n8\tHeat\t\n"
    )
    for column in ("what:token", "what"):
        found = read_ratings(tmp_path / "ml.inter", user="who", item=column).item_table
        assert found is not None
        assert found.kinds == {"movie_title": "text", "class": "list"}
        assert found.frame["movie_title"].to_list() == ["Toy Story", "Heat"]
        assert found.frame["class"].to_list() == [
            ["Animation", "Children's", "Comedy"],
            None,
        ]


@pytest.mark.parametrize(
    "options", [{}, {"rating": "label:float"}, {"bad_rows": "skip"}]
)
def test_labels_of_recbole(read: Read, options: dict[str, str]) -> None:
    header = "user_id:token\titem_id:token\tlabel:float"
    found = read(f"{header}\n1\ta\t1\n1\tb\t0\n2\ta\t1.0\n2\tc\t0.0\n", **options)
    assert found.implicit
    assert found.to_frame().rows() == [(1, "a"), (2, "a")]
    assert "rating = label" in str(found.source)
    assert "2 rows left out whose rating is false" in str(found.source)
    if not options:
        rated = read(f"{header}\trating:float\n1\ta\t1\t5\n1\tb\t0\t2\n")
        assert rated.to_frame()["rating"].to_list() == [5, 2]
        graded = read(f"{header}\n1\ta\t1\n1\tb\t3\n")
        assert graded.to_frame()["rating"].to_list() == [1, 3]


def test_tables_next_to_the_ratings(tmp_path: Path) -> None:
    (tmp_path / "sales.csv").write_text("customer_id,article_id\nc,0663713001\n")
    (tmp_path / "articles.csv").write_text(
        "article_id,product_code,hue\n0663713001,0663713,red\n"
    )
    loaded = read_ratings(tmp_path / "sales.csv")  # either column may be the item
    assert loaded.item_table is not None
    assert list(loaded.item_table.kinds) == ["product_code", "hue"]
    (tmp_path / "ratings.dat").write_text("1::7::5\n2::7::3\n")
    (tmp_path / "users.dat").write_text(
        "1::139738264\n2::139738265\n"
    )  # MovieTweetings
    assert "users.dat not used: has no header" in str(
        read_ratings(tmp_path / "ratings.dat").source
    )


@pytest.mark.parametrize("form", ["ms", "text", "parquet"])
def test_fractions_of_a_second_decide_the_last_event(tmp_path: Path, form: str) -> None:
    rows = [("1", "a", 5, 100), ("1", "b", 3, 900), ("1", "c", 4, 500)]
    rows += [("2", "a", 5, 900), ("2", "a", 1, 100), ("2", "b", 2, 0), ("2", "c", 2, 0)]
    frame = pl.DataFrame(rows, ["user", "item", "rating", "timestamp"], orient="row")
    frame = frame.with_columns(pl.col("timestamp") + 1_700_000_000_000)
    if form != "ms":
        frame = frame.with_columns(pl.col("timestamp").cast(pl.Datetime("ms")))
    path = tmp_path / "log"
    frame.write_parquet(path) if form == "parquet" else frame.write_csv(path)
    ratings = read_ratings(path)
    assert ratings.to_frame()["rating"].to_list() == [5, 3, 4, 5, 2, 2]
    tested = leave_last_split(ratings).test.to_frame()
    assert tested["item"].to_list() == ["b", "a"]
    assert tested["timestamp"].to_list() == [1_700_000_000.9] * 2
    assert ratings.timestamps is not None
    assert set(ratings.timestamps) == {1_700_000_000}
    ratings.to_frame().write_csv(path)
    assert (
        read_ratings(path)
        .to_frame()
        .drop("user")
        .equals(ratings.to_frame().drop("user"))
    )


def test_fractions_of_a_second_in_some_of_several_files(tmp_path: Path) -> None:
    (tmp_path / "1.csv").write_text(
        "user,item,rating,time\n1,a,5,2025-06-09 03:52:05\n"
    )
    (tmp_path / "2.csv").write_text(
        "user,item,rating,time\n1,a,4,2025-06-09 03:52:05.25\n"
    )
    (tmp_path / "3.csv").write_text(
        "user,item,rating,time\n1,a,3,2025/6/9 03:52:05.125\n"
    )
    for names in ("12", "21", "123", "321"):
        found = read_ratings([tmp_path / f"{name}.csv" for name in names])
        assert found.to_frame()["rating"].to_list() == [4]
        assert found.to_frame()["timestamp"].to_list() == [1_749_441_125.25]
