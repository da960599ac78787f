"""Odd ids and ratings that would decide the result are named in the first line."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from recsys import Ratings, read_ratings
from recsys.errors import DataError
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
        ("caf\u00e9{}", "caf\u00c3\u00a94", "'caf\u00c3\u00a94' and 'caf\u00e94'"),
        ("\u201c{}", "\u00e2\u20ac\u01534", "'\u00e2\u20ac\u01534' and '\u201c4'"),
        ("\u00c3\u00a9{}", "e4", ""),
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


def test_each_id_that_may_stand_for_none_is_named(read: Read) -> None:
    names = {4: "Unknown", 5: "guest", 6: "-", 7: "?"}
    said = str(read(table(user=lambda n: names.get(n % 8, f"user {n}"))).source)
    for name in ("-", "?", "Unknown"):
        assert f"the user {name!r} has 12% of the rows, and may stand for none" in said
    integers = table(user=lambda n: "-1" if n % 9 == 3 else f"{n}")
    assert "the user -1 has 12% of the rows, and may" in str(read(integers).source)


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


@pytest.mark.parametrize("door", ["file", "frame"])
@pytest.mark.parametrize("code", ["-1", "-9", "99", "-999", "9999", "-2147483648"])
def test_a_code_for_no_rating_is_left_out(read: Read, door: str, code: str) -> None:
    content = table(rating=lambda grade: code if grade == 2 else str(grade))

    def ratings(**options: object) -> Ratings:
        if door == "file":
            return read(content, **options)
        return Ratings.from_frame(pl.read_csv(content.encode()), **options)

    grades = ratings()
    assert grades.nnz == 320
    assert grades.value_range() == (1, 5)
    remark = f"80 rows left out whose rating is {code} (not rated), --scale "
    assert remark in str(grades.source)
    assert grades.source.options["missing"] == int(code)
    scale = (min(float(code), 1), max(float(code), 5))
    assert f"--scale {scale[0]:.15g},{scale[1]:.15g} (scale=)" in str(grades.source)
    assert ratings(scale=scale).nnz == 400
    assert not ratings(missing=float(code)).implicit
    assert ratings(missing=float(code)).nnz == 320


def test_a_code_among_half_stars_and_among_likes(read: Read) -> None:
    halves = table(rating=lambda grade: "-1" if grade == 2 else f"{grade - 0.5}")
    assert read(halves).value_range() == (0.5, 4.5)
    likes = table(rating=lambda grade: "99" if grade == 2 else f"{int(grade > 3)}")
    ratings = read(likes.replace("rating", "liked", 1))
    assert ratings.implicit
    assert ratings.nnz == 160
    assert read(table(rating=lambda grade: f"{grade - 3}")).nnz == 400


def test_the_code_named_next_to_another_one(read: Read) -> None:
    codes = {1: "-1", 2: "99"}
    content = table(rating=lambda grade: codes.get(grade, str(grade)))
    said = str(read(content).source)
    assert "80 rows left out whose rating is -1 (not rated)" in said
    assert "80 ratings are far from the usual 3 to 5: 99" in said
    ratings = read(content, missing=99)
    assert ratings.value_range() == (3, 5)
    assert ratings.source.options["missing"] == 99


def test_several_ratings_far_from_all_others(read: Read) -> None:
    content = table() + "\n1,x,57\n1,y,61\n"
    said = str(read(content).source)
    assert "2 ratings are far from the usual 1 to 5: 57 (ratings.csv, line 402)" in said
    assert "--scale 1,5 --bad-rows 1% leaves them out" in said
    assert read(content, scale=(1, 5), bad_rows="1%").nnz == 400


def test_weights_that_may_stand_for_none_are_named(read: Read) -> None:
    content = table(rating=lambda grade: "99999" if grade == 2 else str(grade))
    content = content.replace("rating", "plays", 1)
    for options in ({}, {"weight": "plays"}):
        said = str(read(content, **options).source)
        assert "80 rows of weight 99999, far from all others; if it means none" in said
    ratings = read(content, weight="plays", missing=99999)
    assert "80 rows left out whose weight is 99999 (missing)" in str(ratings.source)
    assert ratings.value_range() == (1, 5)


WORDS = [
    ("ja", "nein"),
    ("J", "N"),
    ("oui", "non"),
    ("S\u00ed", "No"),
    ("sim", "n\u00e3o"),
    ("\u0434\u0430", "\u043d\u0435\u0442"),
    ("\u306f\u3044", "\u3044\u3044\u3048"),
    ("wahr", "falsch"),
    ("on", "off"),
]


@pytest.mark.parametrize("door", ["file", "frame"])
@pytest.mark.parametrize(("true", "false"), WORDS)
def test_likes_in_words_of_other_languages(
    read: Read, door: str, true: str, false: str
) -> None:
    content = table(rating=lambda grade: true if grade > 3 else false)
    content = content.replace("rating", "liked", 1)
    if door == "file":
        ratings = read(content)
    else:
        ratings = Ratings.from_frame(pl.read_csv(content.encode()))
    assert ratings.implicit
    assert ratings.nnz == 160
    assert "240 rows left out whose rating is false" in str(ratings.source)


def test_likes_next_to_missing_values(read: Read) -> None:
    content = table(rating=lambda grade: "yes" if grade > 3 else "")
    content = content.replace("rating", "liked", 1)
    with pytest.raises(DataError, match=r"240 of 400 .* line 2: the rating is missing"):
        read(content)
    assert read(content, bad_rows="60%").nnz == 160


def test_words_for_dislikes_get_negative_weights(read: Read) -> None:
    words = {1: "thumbs_down", 2: "thumbs_down"}
    content = table(rating=lambda grade: words.get(grade, "thumbs_up"))
    advice = "--event-weight thumbs_down=-1,thumbs_up=1"
    with pytest.raises(DataError, match=advice):
        read(content)
    weights = {"thumbs_down": -1, "thumbs_up": 1}
    ratings = read(content, event="rating", event_weights=weights)
    assert ratings.nnz == 240


def test_kinds_of_events_against_an_item_are_named(read: Read) -> None:
    kinds = {1: "dislike", 2: "refund", 3: "view"}
    content = table(rating=lambda grade: kinds.get(grade, "like"))
    content = content.replace("rating", "event", 1)
    said = str(read(content).source)
    option = "'dislike=-1,refund=-1,*=1'"
    assert f"--event-weight {option} (event_weights=) has dislikes)" in said
    weights = {"dislike": -1, "refund": -1, "*": 1}
    assert read(content, event_weights=weights).nnz == 240
    plain = content.replace("dislike", "cart").replace("refund", "like")
    assert "has dislikes" not in str(read(plain).source)


@pytest.mark.parametrize("separator", [",", ";", "\t"])
def test_commas_between_thousands(read: Read, separator: str) -> None:
    amounts = {1: "1,250.50", 2: "980", 3: "12.5", 4: "1,234,567.00", 5: "2,000"}
    content = table(rating=lambda grade: f'"{amounts[grade]}"')
    rows = [line.split(",", 2) for line in content.splitlines()]
    content = "\n".join(separator.join(row) for row in rows)
    ratings = read(content, weight="rating")
    assert ratings.value_range() == (12.5, 1234567)
    said = str(ratings.source)
    assert "commas between thousands: 1,250.50 is 1250.50" in said


def test_commas_that_may_be_decimal_are_an_error(read: Read) -> None:
    amounts = {1: '"1,250"', 2: '"3,125"'}
    with pytest.raises(DataError, match=r"'1,250' is not a number; write it without"):
        read(table(rating=lambda grade: amounts.get(grade, "2")), weight="rating")


@pytest.mark.parametrize(
    ("durations", "longest"),
    [
        (["0:45", "3:45", "12:00", "59:59", "1:00:10"], 3610),
        (["00:00:01", "00:12:33", "01:00:00.5", "2:00:00", "100:00:00"], 360_000),
    ],
)
def test_durations_are_weights(
    read: Read, durations: list[str], longest: float
) -> None:
    ratings = read(table(rating=lambda grade: durations[grade - 1]), weight="rating")
    assert ratings.value_range()[1] == longest
    assert f"durations in seconds: {durations[0]} is" in str(ratings.source)
    mixed = [*durations[:4], "90"]
    assert (
        read(table(rating=lambda grade: mixed[grade - 1]), weight="rating")
        .to_frame()
        .filter(pl.col("rating") == 90)
        .height
        == 80
    )


@pytest.mark.parametrize("separator", [",", ";"])
@pytest.mark.parametrize(
    ("amounts", "numbers"),
    [
        (["$836.27", "$1,250.00", "-$5"], [836.27, 1250, -5]),
        (["$836", "$1,250", "$12,345,678"], [836, 1250, 12345678]),
        (["12,50 EUR", "3,00 \u20ac", "1.250,00 EUR"], [12.5, 3, 1250]),
        (["1h 43m", "43 min", "2.5 hours"], [6180, 2580, 9000]),
        (["PT1H2M", "PT5S", "PT1.5S"], [3720, 5, 1.5]),
        (["4\u00bd", "\u00bd", "3"], [4.5, 0.5, 3]),
        (["\u2605\u2605\u2605\u00bd", "\u2605\u2605", "\u2605\u2606"], [3.5, 2, 1]),
        (["4 stars", "1 star", "2.5 stars"], [4, 1, 2.5]),
        (["1 250", "12\u202f500", "80"], [1250, 12500, 80]),
        (["4/5", "3.5/5", "1 out of 5"], [4, 3.5, 1]),
    ],
)
def test_amounts_of_one_unit(
    read: Read, separator: str, amounts: list[str], numbers: list[float]
) -> None:
    lines = [f'{n}~7~"{amount}"' for n, amount in enumerate(amounts)]
    text = "\n".join(["user~item~spent", *lines]).replace("~", separator)
    frame = pl.DataFrame({"user": range(3), "item": [7] * 3, "spent": amounts})
    expected = [np.float32(number) for number in numbers if number > 0]
    for ratings in (
        read(text, weight="spent"),
        Ratings.from_frame(frame, weight="spent"),
    ):
        assert ratings.values.tolist() == expected
        assert f": {amounts[0]} is {numbers[0]:g}" in str(ratings.source)


@pytest.mark.parametrize(
    "amounts",
    [
        ["1.4K", "300"],
        ["5m", "9m"],
        ["1h 43m", "2h", "90"],
        ["3", "3", "4 stars"],
        ["1,250 kg", "3 kg"],
    ],
)
def test_amounts_whose_meaning_is_unclear_are_errors(
    read: Read, amounts: list[str]
) -> None:
    lines = [f'{n},7,"{amount}"' for n, amount in enumerate(amounts)]
    with pytest.raises(DataError, match="is not a number"):
        read("\n".join(["user,item,spent", *lines]), weight="spent")


@pytest.mark.parametrize(
    ("amounts", "units"),
    [
        (["3 kg", "500 g"], "'3 kg' is in another unit than '500 g'"),
        (["9", "$5", "\u20ac5"], "'$5' is in another unit than '\u20ac5'"),
        (["4/5", "8/10"], "'4/5' is in another unit than '8/10'"),
    ],
)
def test_names_two_units_in_a_column(
    read: Read, amounts: list[str], units: str
) -> None:
    lines = [f"{n},7,{amount}" for n, amount in enumerate(amounts)]
    with pytest.raises(DataError, match=re.escape(f"{units}; write all in one.")):
        read("\n".join(["user,item,spent", *lines]), weight="spent")


def test_amounts_and_durations_of_a_table_are_numbers(tmp_path: Path) -> None:
    (tmp_path / "ratings.csv").write_text("user,item\n1,7\n2,8\n")
    (tmp_path / "items.csv").write_text(
        'item,price,length,size\n7,"$1,250.00",1h 43m,3 kg\n8,$980.50,50m,500 g\n'
    )
    table = read_ratings(tmp_path / "ratings.csv").item_table
    assert table is not None
    assert table.frame["price"].to_list() == [1250, 980.5]
    assert table.frame["length"].to_list() == [6180, 3000]
    assert table.kinds["size"] == "category"


def test_durations_of_frames_are_weights() -> None:
    seconds = [225, 33, 3610]
    frame = pl.DataFrame({"user": [1, 1, 2], "item": [1, 2, 1], "time_spent": seconds})
    spent = pl.col("time_spent")
    expected = Ratings.from_frame(frame, weight="time_spent").to_frame()
    for durations in (pl.duration(seconds=spent), (spent * 10**9).cast(pl.Time)):
        timed = frame.with_columns(durations.alias("time_spent"))
        ratings = Ratings.from_frame(timed, weight="time_spent")
        assert ratings.to_frame().equals(expected)


def test_stars_next_to_the_likes_of_a_review(read: Read) -> None:
    lines = ["user,item,Star,Like"]
    lines += [f"u{n % 40},i{n // 40},{1 + n % 5},{n * n}" for n in range(400)]
    ratings = read("\n".join(lines))
    assert "rating = Star" in str(ratings.source)
    assert ratings.value_range() == (1, 5)


@pytest.mark.parametrize("odd", ["-2147483", "1234567.25"])
def test_the_digits_of_a_rating_far_from_all_others(read: Read, odd: str) -> None:
    content = f"{table()}\nu1,x,{odd}\n"
    _, _, remark = str(read(content).source).partition("--missing ")
    missing = float(remark.split()[0])
    assert read(content, missing=missing).nnz == 400


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


@pytest.mark.parametrize("code", ["0", "-1", "-999"])
def test_ratings_that_are_all_zero_or_a_code(read: Read, code: str) -> None:
    said = str(read(table(rating=lambda grade: code)).source)
    advice = f"add --missing {code} if a {code} means no rating"
    assert f"all ratings are {code}; {advice}" in said
    rows = f"400 rows left out whose rating is {code} .missing."
    with pytest.raises(DataError, match=f"No rows are left: {rows}"):
        read(table(rating=lambda grade: code), missing=int(code))


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


@pytest.mark.parametrize(
    ("odd", "remark"),
    [
        ("free", "price (40 values, because 'free' is not a number)"),
        ("1,234", "price (40 values, because '1,234' is not a number)"),
        ("inf", "1 infinite value of price left out): price (number)"),
    ],
)
def test_a_text_among_the_numbers_of_a_table(
    tmp_path: Path, odd: str, remark: str
) -> None:
    (tmp_path / "ratings.csv").write_text(table())
    prices = [odd, *(f"{number}.5" for number in range(1, 40))]
    lines = [f'{item},"{price}"' for item, price in enumerate(prices)]
    (tmp_path / "items.csv").write_text("\n".join(["item,price", *lines]))
    assert remark in str(read_ratings(tmp_path).source)


def test_ids_of_which_some_have_a_prefix(read: Read) -> None:
    user = ["u{}", "{}"]
    mixed = read(table(lambda number: user[number % 2].format(number // 2)))
    remark = "20 user ids have the prefix 'u' and 20 have none ('u0' and '0')"
    assert remark in str(mixed.source)
    one_of_all = str(read(table(one("{}", "user-3"))).source)
    assert "1 user id has the prefix 'user-' and 39 have none" in one_of_all
    codes = read(table(lambda number: ["{}", "A{}", "B{}"][number % 3].format(number)))
    assert "prefix" not in str(codes.source)


@pytest.mark.parametrize(
    ("values", "separator", "expected", "remark"),
    [
        (["1.250", "980"], ";", [1250, 980], "1.250 is 1250"),
        (["1.234", "980", "-2.345"], ";", [1234, 980, -2345], "1.234 is 1234"),
        (["1.250,50", "980,1"], ";", [1250.5, 980.1], "1.250,50 is 1250.50"),
        (["1.250", "980"], "\t", [1250, 980], "1.250 is 1250"),
        (["1.250", "2.375"], ";", [1.25, 2.375], "decimal points: 1.250 is 1.25"),
        (["1.250", "12500"], ";", [1.25, 12500], "decimal points: 1.250 is 1.25"),
        (["1.125", "2"], ",", [1.125, 2], ""),
        (["3,5", "4", "2.5"], ";", [3.5, 4, 2.5], ""),
    ],
)
def test_points_between_thousands(
    read: Read, values: list[str], separator: str, expected: list[float], remark: str
) -> None:
    lines = ["user,item,amount,note", *(f"{n},7,{n}!,x" for n in range(len(values)))]
    text = "\n".join(lines).replace(",", separator)
    for number, value in enumerate(values):
        text = text.replace(f"{number}!", value)
    ratings = read(text, weight="amount", duplicates="last")
    rows = dict(ratings.to_frame().select("user", "rating").iter_rows())
    amounts = {n: np.float32(value) for n, value in enumerate(expected) if value > 0}
    assert rows == amounts
    source = str(ratings.source)
    assert remark in source
    assert remark or "points" not in source


def test_a_late_point_between_thousands_counts_for_all_rows(read: Read) -> None:
    rows = [f"{n};7;{n % 9 + 1}" for n in range(90_000)]
    rows[-1] = "89999;7;1.250"
    ratings = read("\n".join(["user;item;amount", *rows]), weight="amount")
    assert ratings.value_range() == (1, 1250)


def test_points_between_thousands_in_a_table(tmp_path: Path) -> None:
    (tmp_path / "ratings.csv").write_text("user;item\n1;7\n2;8\n")
    (tmp_path / "items.csv").write_text("item;price\n7;1.250\n8;980\n")
    table = read_ratings(tmp_path / "ratings.csv").item_table
    assert table is not None
    assert table.frame["price"].to_list() == [1250, 980]


@pytest.mark.parametrize("row", [3, 500])
@pytest.mark.parametrize("is_array", [False, True])
def test_a_key_with_two_values(read: Read, row: int, is_array: bool) -> None:
    lines = [f'{{"user": {n}, "item": 7, "rating": 3}}' for n in range(600)]
    lines[row] = lines[row].replace("}", ', "rating": 4}')
    place = f"line {row + 1}"
    text = "\n".join(lines)
    if is_array:
        place = f"object {row + 1}"
        text = f"[{text.replace(chr(10), ',')}]"
    with pytest.raises(DataError, match=f"{place}: the key 'rating' occurs twice"):
        read(text, "ratings.json")
    assert read(text, "ratings.json", bad_rows="skip").n_ratings == 599
    same = text.replace('"rating": 4', '"rating": 3')
    assert read(same, "ratings.json").n_ratings == 600


@pytest.mark.parametrize("role", ["rating", "weight"])
def test_times_are_neither_ratings_nor_weights(read: Read, role: str) -> None:
    rows = "".join(f"{n},7,{n % 5},{1_700_000_000 + n}\n" for n in range(50))
    text = f"user,item,rating,timestamp\n{rows}"
    problem = rf"column 'timestamp' has times, not {role}s; name it with --timestamp"
    with pytest.raises(DataError, match=problem):
        read(text, **{role: "timestamp"})
    named = read(text.replace("timestamp", "score_given"), **{role: "score_given"})
    assert "score_given (looks like times)" in str(named.source)


def test_times_without_header_are_in_the_last_column(read: Read) -> None:
    rows = [f"{n % 7},{n % 5},{1_700_000_000 + n}" for n in range(50)]
    ratings = read("\n".join(rows))
    assert ratings.implicit
    assert ratings.timestamps is not None
    assert ratings.timestamps.min() == 1_700_000_000 + 15
    with pytest.raises(DataError, match=r"column 3 has times .* --timestamp-col 3"):
        read("\n".join(f"{row},4" for row in rows))
    # Such numbers may be ids.
    read("\n".join(f"{1_600_000_000 + n},7,{n % 5}" for n in range(50)))


def test_minus_zero_is_zero(read: Read) -> None:
    ratings = read(table(rating=lambda value: "-0.0" if value == 1 else str(value - 2)))
    levels, counts = ratings.distribution()
    assert levels.tolist() == [0, 1, 2, 3]
    assert counts.tolist() == [160, 80, 80, 80]
    assert not np.signbit(levels).any()


def several(folder: Path, *texts: str) -> str:
    """Write files and return how they are read together."""
    paths = [folder / f"{number}.csv" for number in range(len(texts))]
    for path, text in zip(paths, texts, strict=True):
        path.write_text(text)
    return str(read_ratings(paths).source)


def test_a_copy_of_a_file_is_named(tmp_path: Path) -> None:
    assert "1.csv has the same rows as 0.csv" in several(tmp_path, table(), table())
    other = table(rating=lambda value: str(6 - value))
    assert "same rows" not in several(tmp_path, table(), other)


def test_files_of_two_scales(tmp_path: Path) -> None:
    percent = table(rating=lambda value: str(20 * value))
    remark = "values are up to 3 in 0.csv and up to 60 in 1.csv, as of another scale"
    assert remark in several(tmp_path, table(), percent)
    ten = table(rating=lambda value: str(2 * value - 1))
    assert "another scale" not in several(tmp_path, table(), ten)


def test_files_in_two_dialects(tmp_path: Path) -> None:
    semicolons = table(rating=lambda value: f"{value - 1}!5").replace(",", ";")
    other = semicolons.replace("!", ",").replace("user;", "customer;", 1)
    source = several(tmp_path, table(), other)
    assert "1.csv: semicolon-separated, user = customer, item = item" in source
    points = table(rating=lambda value: "1.250" if value == 1 else "980")
    source = several(tmp_path, table(), points.replace(",", ";"))
    assert "1.csv: points between thousands: 1.250 is 1250" in source


def test_ids_of_users_and_of_items(tmp_path: Path) -> None:
    text = table().replace(",0,", ",i1,")
    swapped = text.replace("user,item,", "item,user,", 1)
    assert "50 ids are of users and of items" in several(tmp_path, text, swapped)
    assert "of users and of items" not in several(tmp_path, text)


@pytest.mark.parametrize("suffix", ["parquet", "arrow", "jsonl"])
def test_blanks_are_missing_ids(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"ratings.{suffix}"
    frame = pl.DataFrame({"user": ["a", "  "], "item": ["x", "x"], "rating": [3, 4]})
    write = {"parquet": frame.write_parquet, "arrow": frame.write_ipc}
    write.get(suffix, frame.write_ndjson)(path)
    with pytest.raises(DataError, match="2: the user id is missing"):
        read_ratings(path)


def test_zeros_and_ones_of_a_column_of_likes(tmp_path: Path) -> None:
    text = table(rating=lambda value: str(int(value > 3)))
    path = tmp_path / "ratings.csv"
    path.write_text(text.replace(",rating", ",isLiked", 1))
    ratings = read_ratings(path)
    assert ratings.implicit
    assert ratings.n_ratings == 160
    remark = "240 rows left out whose rating is 0 or less; isLiked is 1 for a like"
    assert remark in str(ratings.source)
    assert read_ratings(path, scale=(0, 1)).n_ratings == 400
    # Other names do not tell that 0 is no interaction.
    path.write_text(text)
    assert not read_ratings(path).implicit


def test_letters_for_yes_and_no(read: Read) -> None:
    ratings = read(table(rating=lambda value: "Y" if value > 3 else "N"))
    assert ratings.implicit
    assert ratings.n_ratings == 160


def test_prices_are_amounts(read: Read) -> None:
    text = table(rating=lambda value: f"{13.37 * value:.2f}")
    ratings = read(text.replace(",rating", ",unit_price", 1), rating="unit_price")
    assert ratings.feedback is not None
    assert ratings.feedback.kind == "counts"


def test_a_table_of_a_database_that_is_listed_twice_counts_once(tmp_path: Path) -> None:
    place = tmp_path / "shop.db"
    with closing(sqlite3.connect(place)) as connection, connection:
        connection.execute("create table orders (user, item, qty)")
        connection.execute("insert into orders values ('a', 'x', 2), ('b', 'y', 3)")
    listed = [f"{place}::orders", place, f"sqlite:///{place}::orders"]
    orders = read_ratings(listed, weight="qty")
    assert orders.values.tolist() == [2, 3]
    assert "(listed twice)" in str(orders.source)


@pytest.mark.parametrize(
    ("rating", "cure"),
    [
        ("4 stars", "write 4"),
        ("80%", "write 80"),
        ("4/5", "write 4"),
        ("3,5 of 5", "write 3.5"),
        ("\u2605\u2605\u2605\u2606\u2606", "write 3"),
        ("1_250", "write 1250"),
        ("\u22123", "write -3"),
    ],
)
def test_a_rating_with_a_unit_or_a_scale(read: Read, rating: str, cure: str) -> None:
    with pytest.raises(DataError, match=f"is not a number; {cure}\\."):
        read(f'{table()}\n1,2,"{rating}"\n')


def test_words_in_place_of_ratings(read: Read) -> None:
    words = table(rating=lambda grade: "like" if grade > 3 else "dislike")
    with pytest.raises(DataError, match="--event-weight dislike=-1,like=1"):
        read(words)


def test_one_truth_among_numbers_is_the_bad_row(read: Read) -> None:
    header, *lines = table().split("\n")
    rows = "\n".join([header, "user 1,x,true", *lines])
    with pytest.raises(DataError, match=r"line 2: rating 'true' is not a number\."):
        read(rows)


def test_a_negative_rating_among_positive_ones(read: Read) -> None:
    said = str(read(f"{table()}\nu1,x,-3\n").source)
    assert "1 rating is far from the usual 1 to 5: -3 (ratings.csv, line 402)" in said


def test_zeros_and_ones_may_be_no_ratings(read: Read) -> None:
    ratings = read(truths())
    assert not ratings.implicit
    assert "add --missing 0 if a 0 means no rating" in str(ratings.source)


def test_ranks_of_which_one_is_the_best(read: Read) -> None:
    said = str(read(table().replace("rating", "rank"), rating="rank").source)
    assert "a higher rank counts as better; if 1 is the best" in said


def truths(name: str = "rating") -> str:
    """Return a column of zeros and ones, of which a fifth are 1."""
    rows = table(rating=lambda grade: str(int(grade == 5)))
    return rows.replace("rating", name)


@pytest.mark.parametrize(
    "name", ["clicked", "is_purchased", "label", "plays", "clicks"]
)
def test_leaves_out_rows_without_an_outcome(read: Read, name: str) -> None:
    for ratings in (
        read(truths(name)),
        Ratings.from_frame(pl.read_csv(truths(name).encode())),
    ):
        assert ratings.implicit
        assert ratings.nnz == N_USERS * N_ITEMS // 5
        assert "left out" in str(ratings.source)


def test_an_outcome_in_a_database(tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "log.db")) as database, database:
        database.execute("CREATE TABLE log (user, item, clicked, watched)")
        rows = [(row % 7, row % 11, row % 2, "2025-01-01") for row in range(77)]
        database.executemany("INSERT INTO log VALUES (?, ?, ?, ?)", rows)
    assert read_ratings(tmp_path / "log.db").nnz == 38


def test_an_outcome_that_is_a_date_is_not_used(read: Read) -> None:
    rows = table(rating="2025-01-{:02d}".format).replace("rating", "watched")
    ratings = read(rows)
    assert ratings.nnz == N_USERS * N_ITEMS
    assert "not used: watched" in str(ratings.source)


@pytest.mark.parametrize("mark", ["", "\ufeff"])
def test_a_header_in_the_middle_of_joined_files(read: Read, mark: str) -> None:
    ratings = read(f"{table()}\n{mark}user,item,rating\nu1,x,3\n")
    assert "1 repeated header left out" in str(ratings.source)
    assert ratings.nnz == N_USERS * N_ITEMS + 1


def items(tmp_path: Path, *lines: str, header: str = "item,price") -> str:
    """Return the first line of a reading next to a table of items."""
    (tmp_path / "ratings.csv").write_text(table())
    (tmp_path / "items.csv").write_text("\n".join([header, *lines]) + "\n")
    return str(read_ratings(tmp_path).source)


def test_a_header_in_the_middle_of_a_table(tmp_path: Path) -> None:
    lines = [f"{item},{item}.5" for item in range(N_ITEMS)]
    said = items(tmp_path, *lines[:5], "item,price", *lines[5:])
    assert "items.csv: price (number)" in said


def test_rows_of_a_table_without_an_id(tmp_path: Path) -> None:
    lines = [f"{item},{item}.5" for item in range(N_ITEMS)]
    said = items(tmp_path, *lines, ",980")
    assert "items.csv (1 row without an id left out): price (number)" in said
    (tmp_path / "items.csv").write_text("item,price\n")
    with pytest.raises(DataError, match=r"items\.csv has no rows with an id\."):
        read_ratings(tmp_path / "ratings.csv", item_table=tmp_path / "items.csv")


@pytest.mark.parametrize("separator", [",", ";"])
def test_points_between_thousands_of_a_table(tmp_path: Path, separator: str) -> None:
    prices = ["1.250", "2.500", *map(str, range(900, 980, 10))]
    lines = [f"{item}{separator}{price}" for item, price in enumerate(prices)]
    said = items(tmp_path, *lines, header=f"item{separator}price")
    assert "(price: points between thousands: 1.250 is 1250): price (number)" in said


@pytest.mark.parametrize("price", ["${}.50", "{} EUR", "{}%"])
def test_amounts_with_a_unit_are_numbers_in_a_table(tmp_path: Path, price: str) -> None:
    lines = [f'{item},"{price.format(item + 1)}"' for item in range(N_ITEMS)]
    assert items(tmp_path, *lines).endswith("price (number); no duplicates")


@pytest.mark.parametrize("odd", ["1,50", "9 USD"])
def test_names_an_amount_that_keeps_a_column_from_being_numbers(
    tmp_path: Path, odd: str
) -> None:
    lines = [f'{item},"{item + 2},50"' for item in range(1, N_ITEMS)]
    if "USD" in odd:
        lines = [f"{item},{item + 2} EUR" for item in range(1, N_ITEMS)]
    said = items(tmp_path, f'0,"{odd}"', *lines)
    assert f"price (10 values, because {odd!r} is not a number)" in said


@pytest.mark.parametrize("never", ["0000-00-00", "9999-12-31", "2999-12-31 00:00:00"])
def test_dates_of_a_table_that_mean_never(tmp_path: Path, never: str) -> None:
    time = never[10:]
    days = [f"{item},2025-01-0{item}{time}" for item in range(1, N_ITEMS)]
    said = items(tmp_path, f"0,{never}", *days, header="item,released")
    assert "items.csv: released (date)" in said


def test_categories_of_ratings_and_times(tmp_path: Path) -> None:
    frame = pl.read_csv(table().encode()).with_columns(
        pl.col("rating").cast(pl.String).cast(pl.Categorical),
        pl.lit("2025-06-01").cast(pl.Categorical).alias("time"),
    )
    frame.write_parquet(tmp_path / "ratings.parquet")
    for ratings in (Ratings.from_frame(frame), read_ratings(tmp_path)):
        assert ratings.timestamps is not None
        assert set(ratings.values) == {1, 2, 3, 4, 5}


def test_the_header_may_be_repeated_in_other_letters(tmp_path):
    path = tmp_path / "clicks.csv"
    path.write_text("user,item\nann,tea\nUser,Item\nbob,tea\n")
    ratings = read_ratings(path)
    assert ratings.users.values.to_list() == ["ann", "bob"]
    assert "1 repeated header left out" in str(ratings.source)


def test_integers_of_128_bits_are_ids_in_parquet(tmp_path):
    users = pl.Series("user", [2**70 + 1, 2**70 + 2], dtype=pl.Int128)
    items = pl.Series("item", [1, 2], dtype=pl.Int128)
    frame = pl.DataFrame([users, items])
    frame.write_parquet(tmp_path / "x.parquet")
    expected = [str(2**70 + 1), str(2**70 + 2)]
    for ratings in (read_ratings(tmp_path / "x.parquet"), Ratings.from_frame(frame)):
        assert ratings.users.values.to_list() == expected


def test_names_fields_inside_of_objects(tmp_path):
    path = tmp_path / "log.jsonl"
    path.write_text('{"context": {"userId": 1}, "item": 2}\n' * 2)
    with pytest.raises(DataError, match=r"has a name such as 'context\.userId'"):
        read_ratings(path)


def test_locks_of_office_programs_are_not_data(tmp_path):
    (tmp_path / "a.csv").write_text("user,item\n1,2\n")
    (tmp_path / "~$a.csv").write_text("x")
    assert read_ratings(tmp_path).nnz == 1
    assert read_ratings(str(tmp_path / "*.csv")).nnz == 1


def test_an_empty_like_is_missing(tmp_path):
    path = tmp_path / "likes.csv"
    path.write_text("user,item,liked\n1,2,true\n1,3,\n2,2,false\n")
    with pytest.raises(DataError, match="line 3: the rating is missing"):
        read_ratings(path)


def test_times_that_a_spreadsheet_has_rounded_are_named(tmp_path):
    path = tmp_path / "times.csv"
    path.write_text("user,item,time\n1,2,1.70E+12\n1,3,1.71E+12\n")
    assert "times such as 1.70E+12 are rounded" in str(read_ratings(path).source)
    path.write_text("user,item,time\n1,2,1.700000001E+09\n1,3,1.71E+09\n")
    assert "1.71E+09 are rounded" in str(read_ratings(path).source)
    path.write_text("user,item,time\n1,2,1.700000001E+09\n")
    assert "rounded" not in str(read_ratings(path).source)


def test_a_list_of_items_in_parquet_is_a_row_for_each(tmp_path):
    path = tmp_path / "x.parquet"
    pl.DataFrame({"user": [1, 2], "items": [[1, 2], [3]]}).write_parquet(path)
    assert "Parquet, a row for each of items, user" in str(read_ratings(path).source)


def test_a_number_and_a_fraction_keep_the_fraction(read: Read) -> None:
    ratings = read("user,item,rating\n1,2,3\n1,3,4\u00bd\n")
    assert ratings.values.tolist() == [3, 4.5]


def test_dates_are_no_grades(read: Read) -> None:
    days = "".join(f"{n % 7},{n},202401{n % 28 + 1:02}\n" for n in range(80))
    with pytest.raises(DataError, match="from 20240100 to 20240128, too close"):
        read(f"user,item,rating\n{days}")
    assert read(f"user,item,rating\n{days}", implicit=True).nnz == 80


def test_votes_are_ratings(read: Read) -> None:
    votes = "".join(f"{n % 7},{n},{1 - n % 3}\n" for n in range(80))
    assert read(f"user,item,vote\n{votes}").value_range() == (-1, 1)
