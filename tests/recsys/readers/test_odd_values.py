"""Odd ids and ratings that would decide the result are named in the first line."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from recsys import Ratings, read_ratings
from tests.recsys.readers.conftest import Read

N_USERS = 40
N_ITEMS = 10


def table(
    user: Callable[[int], str] = "user {}".format,
    rating: Callable[[int], str] = str,
) -> str:
    """Return ratings from 1 to 5, with other users or ratings."""
    lines = ["user,item,rating"]
    for row in range(N_USERS * N_ITEMS):
        number = row % N_USERS
        lines.append(f"{user(number)},{row // N_USERS},{rating(1 + row % 5)}")
    return "\n".join(lines)


def one(usual: str, other: str) -> Callable[[int], str]:
    """Return a function that writes number 3 in another way."""
    return lambda number: other if number == 3 else usual.format(number)


@pytest.mark.parametrize(
    ("usual", "other", "shown"),
    [
        ("u{}", "U4", "'U4' and 'u4'"),
        ("u{}@example.com", "U4@Example.com", "'U4@Example.com' and 'u4@example.com'"),
        ("x{}", "x4\u200b", r"'x4' and 'x4\u200b'"),
        ("x{}", "\ufeffx4", r"'x4' and '\ufeffx4'"),
        ("caf\u00e9{}", "cafe\u03014", r"'cafe\u03014' and 'caf\xe94'"),
        ("x{}", "\uff584", r"'x4' and '\uff584'"),
        ("u{}", 'u4"', "'u4' and 'u4\"'"),
        ("{}", "004", "'004' and '4'"),
        ("{}", "+4", "'+4' and '4'"),
        ("{}", "4x.0", ""),
        ("u{}", "w4", ""),
    ],
)
def test_ids_that_differ_only_in_writing(
    read: Read, usual: str, other: str, shown: str
) -> None:
    said = str(read(table(user=one(usual, other))).source)
    remark = f"1 user id differs from another one only in writing ({shown})"
    assert (remark in said) == bool(shown)


def test_a_user_or_an_item_with_a_large_share_of_the_rows(read: Read) -> None:
    said = str(read(table(user=lambda number: str(max(20, number)))).source)
    assert "the user 20 has 52% of the rows, and may stand for none" in said
    said = str(read(table(user=lambda n: "anonymous" if n < 2 else f"u{n}")).source)
    assert "the user 'anonymous' has 5% of the rows, and may stand for none" in said
    rows = table() + "".join(f"\nuser {user},delivery,5" for user in range(40))
    rows += "".join(f"\nu{user},delivery,5" for user in range(400))
    said = str(read(rows).source)
    assert "the item 'delivery' has 52% of the rows, and may stand for none" in said
    assert "may stand for none" not in str(read(table()).source)


@pytest.mark.parametrize("door", ["file", "frame"])
@pytest.mark.parametrize("odd", [100, -999, 50, 1398])
def test_a_rating_that_is_far_from_all_others(read: Read, door: str, odd: int) -> None:
    content = f"{table()}\n1,2,{odd}\n"
    if door == "file":
        said = str(read(content).source)
    else:
        said = str(Ratings.from_frame(pl.read_csv(content.encode())).source)
    assert f"1 rating is far from the usual 1 to 5: {odd} (" in said
    assert f"--missing {odd} (missing=) leaves it out" in said


def test_a_number_that_stands_for_no_rating(read: Read) -> None:
    content = table(rating=lambda grade: str(99 if grade == 2 else grade))
    said = str(read(content).source)
    assert "80 ratings are far from the usual 1 to 5: 99 (" in said
    grades = read(content, missing=99)
    assert not grades.implicit
    assert grades.nnz == 320


@pytest.mark.parametrize("odd", ["1", "5", "0", "10", "5.5"])
def test_a_rating_that_may_be_of_the_scale(read: Read, odd: str) -> None:
    assert "far from" not in str(read(f"{table()}\n1,2,{odd}\n").source)


@pytest.mark.parametrize("options", [{"weight": "plays"}, {}])
def test_a_row_with_nearly_all_of_the_weight(
    read: Read, options: dict[str, str]
) -> None:
    content = table().replace("rating", "plays")
    said = str(read(f"{content}\n1,2,1e30\n", **options).source)
    assert "ratings.csv, line 402 has 100% of all weights (1e+30)" in said
    assert "of all weights" not in str(read(content, **options).source)


def test_a_file_that_is_listed_twice_counts_once(tmp_path: Path) -> None:
    path = tmp_path / "plays.csv"
    path.write_text(table().replace("rating", "plays"))
    (tmp_path / "more.csv").write_text("user,item,plays\nuser 1,new,7\n")
    (tmp_path / "link.csv").symlink_to(path)
    plays = read_ratings(path)
    twice = read_ratings([path, tmp_path / "link.csv"])
    assert str(twice.source).startswith("plays.csv (listed twice): ")
    np.testing.assert_array_equal(twice.values, plays.values)
    by_pattern = read_ratings(str(tmp_path / "*.csv"))
    assert "(2 files, some listed twice)" in str(by_pattern.source)
    assert by_pattern.values.sum() == plays.values.sum() + 7


def test_ratings_that_are_all_zero(read: Read) -> None:
    said = str(read(table(rating=lambda grade: "0")).source)
    assert "all ratings are 0; add --missing 0 if a 0 means no rating" in said


@pytest.mark.parametrize(
    ("first", "value"),
    [("1,234.50", 1234.5), ("1,234,567.25", 1234567.25), ("-1,234.00", -1234)],
)
def test_commas_of_thousands_in_a_table(
    tmp_path: Path, first: str, value: float
) -> None:
    (tmp_path / "ratings.csv").write_text(table())
    prices = [first, "1,999", *(f"{number}.5" for number in range(2, 40))]
    lines = [f'{item},"{price}"' for item, price in enumerate(prices)]
    (tmp_path / "items.csv").write_text("\n".join(["item,price", *lines]))
    read = read_ratings(tmp_path).item_table
    assert read is not None
    assert read.frame["price"].to_list()[:3] == [value, 1999, 2.5]


@pytest.mark.parametrize("odd", ["free", "1,234", "inf"])
def test_a_text_among_the_numbers_of_a_table(tmp_path: Path, odd: str) -> None:
    (tmp_path / "ratings.csv").write_text(table())
    prices = [odd, *(f"{number}.5" for number in range(1, 40))]
    lines = [f'{item},"{price}"' for item, price in enumerate(prices)]
    (tmp_path / "items.csv").write_text("\n".join(["item,price", *lines]))
    said = str(read_ratings(tmp_path).source)
    assert f"price (40 values, because {odd!r} is not a number)" in said
