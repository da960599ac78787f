"""Data sets as shops and universities publish them: their names of columns, and what is odd."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import scipy.io
import scipy.sparse as sp

from recsys.data.ratings import Ratings
from recsys.errors import DataError
from recsys.readers import read_ratings

Read = Callable[..., Ratings]
TIME = 1_600_000_000


def lines(*objects: dict[str, Any]) -> str:
    return "".join(json.dumps(each) + "\n" for each in objects)


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (  # Amazon 2014
            lines({"reviewerID": "A1", "asin": "B7", "overall": 4.0, "unixReviewTime": TIME}),
            ("A1", "B7", 4.0, TIME),
        ),
        (  # Amazon 2023: both asin and parent_asin, milliseconds
            lines({"asin": "B7", "parent_asin": "B8", "user_id": "A", "rating": 4.0, "ts": 10**12}),
            ("A", "B7", 4.0, 10**9),
        ),
        (  # Yelp
            lines(
                {"user_id": "u", "business_id": "b", "stars": 4.0, "date": "2020-09-13 12:26:40"}
            ),
            ("u", "b", 4.0, TIME),
        ),
        ("0001713353,A1C6M8LCIX4M6M,5.0,1600000000\n", ("A1C6M8LCIX4M6M", "0001713353", 5.0, TIME)),
        ("userID\tartistID\tweight\n2\t51\t13883\n", (2, 51, 13883.0)),  # Last.fm, HetRec
        ("1::0114508::8::1600000000\n", (1, "0114508", 8.0, TIME)),  # MovieTweetings
        ("Cust_Id,Movie_Id,Rating,Date\n6,8,3,2020-09-13\n", (6, 8, 3.0, 1_599_955_200)),
        ("username,anime_id,my_score\nkarthiga,21,9\n", ("karthiga", 21, 9.0)),  # MyAnimeList
        (  # Netflix Prize
            "8:\n1488844,3,2020-09-13\n",
            (1488844, 8, 3.0, 1_599_955_200),
        ),
        ("timestamp,visitorid,event,itemid\n1600000000123,7,view,9\n", (7, 9, TIME)),
        ("t_dat,customer_id,article_id,price\n2020-09-13,00ab,0663713001,0.05\n", None),  # H&M
        (lines({"app_id": 10, "user_id": 5, "is_recommended": True}), (5, 10)),  # Steam
    ],
)
def test_public_data_sets(read: Read, content: str, expected: tuple[object, ...] | None) -> None:
    loaded = read(content, "data.txt" if content[0].isdecimal() else "data.csv")
    expected = expected or ("00ab", "0663713001", 1_599_955_200)
    assert loaded.to_frame().rows() == [expected]


def test_what_follows_an_item_of_the_netflix_prize(read: Read) -> None:
    content = "1:\n7,3,2005-09-06\n8,5,2005-05-13\n2:\n7,4,2005-09-05\n"
    loaded = read(content, "combined_data_1.txt")
    assert loaded.to_frame().drop("timestamp").rows() == [(7, 1, 3.0), (7, 2, 4.0), (8, 1, 5.0)]
    with pytest.raises(DataError, match=r"line 3: '8;5' is not a user, a rating and a date"):
        read("1:\n7,3,2005-09-06\n8;5\n", "combined_data_1.txt")


def test_ratings_of_minus_one_are_none(read: Read) -> None:
    content = "user_id,anime_id,rating\n" + "".join(f"1,{n},{n or -1}\n" for n in range(9))
    loaded = read(content)
    assert loaded.to_frame()["rating"].to_list() == list(range(1, 9))
    assert "1 row left out whose rating is -1 (not rated)" in str(loaded.source)
    votes = read("user,item,rating\n1,1,-1\n1,2,1\n1,3,0\n")
    assert votes.value_range() == (-1, 1)
    zeros = read("user,book_id,rating\n" + "".join(f"1,{n},{n}\n" for n in range(6)))
    assert "some ratings are 0, which may stand for none" in str(zeros.source)


def test_days_in_names_of_folders(tmp_path: Path) -> None:
    frame = pl.DataFrame({"user_id": [1], "item_id": [2]})
    for folder in ("day=2020-09-13", "year=2020/month=9/day=14"):
        (tmp_path / folder).mkdir(parents=True)
        frame.write_parquet(tmp_path / folder / "part-0.parquet")
    found = [read_ratings(tmp_path / each).timestamps for each in ("day=2020-09-13", "year=2020")]
    assert [int(each[0]) for each in found if each is not None] == [1_599_955_200, 1_600_041_600]


def test_types_of_parquet(tmp_path: Path) -> None:
    path, key = tmp_path / "r.parquet", uuid.UUID(int=2**127 + 0xFF)
    users = [key.bytes, b"\xff" * 16]
    pl.DataFrame({"user": users, "item": [b"a", b"b"]}).write_parquet(path)
    names = [str(key), "ffffffff-ffff-ffff-ffff-ffffffffffff"]
    assert read_ratings(path).to_frame().rows() == list(zip(names, "ab", strict=True))
    pl.DataFrame({"user": [uuid.UUID(int=9).bytes], "item": [1]}).write_parquet(path)
    assert read_ratings(path).users.values[0] == "00000000-0000-0000-0000-000000000009"
    pl.DataFrame({"user": [b"\xff"], "item": [1]}).write_parquet(path)
    with pytest.raises(DataError, match="the column of users has bytes that are neither texts nor"):
        read_ratings(path)
    pl.DataFrame({"user": [1, 2], "items": [[7, 8], []], "time": [TIME, 9]}).write_parquet(path)
    assert read_ratings(path).to_frame().rows() == [(1, 7, TIME), (1, 8, TIME)]
    pl.DataFrame({"user": [1], "item": [7]}).write_ipc(tmp_path / "r.feather")
    assert read_ratings(tmp_path / "r.feather").to_frame().rows() == [(1, 7)]


def test_sparse_matrices(tmp_path: Path) -> None:
    matrix = sp.csr_array([[0, 4.0], [2.0, 0]])
    scipy.io.mmwrite(tmp_path / "r.mtx", matrix)
    sp.save_npz(tmp_path / "r.npz", matrix)
    assert read_ratings(tmp_path / "r.mtx").to_frame().rows() == [(1, 2, 4.0), (2, 1, 2.0)]
    loaded = read_ratings(tmp_path / "r.npz")
    assert loaded.to_frame().rows() == [(0, 1, 4.0), (1, 0, 2.0)]
    assert str(loaded.source).startswith("r.npz: SciPy matrix, user = user")
