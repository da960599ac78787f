"""Bad files: one sentence with file, line and text."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import polars as pl
import pytest

from recsys.data.columns import Request
from recsys.data.ratings import Ratings
from recsys.errors import DataError
from recsys.readers import read_ratings, read_raw
from recsys.readers.id_lists import read_ids
from recsys.readers.sources import DataFile, open_data

Read = Callable[..., Ratings]
HEADER = "user,item,rating,timestamp\n"
GOOD = "1,10,4,100\n2,20,3,200\n"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "ratings.csv is empty."),
        (" \n\n", "ratings.csv is empty."),
        ("\ufeff\n", "ratings.csv is empty."),
        ("# only\n# words\n", "ratings.csv has no user and no item column"),
        (HEADER, "ratings.csv has a header but no rows."),
        (HEADER + "\n\n", "ratings.csv has a header but no rows."),
        (
            "just\nwords\n",
            "ratings.csv has only one column ('just'): found no tab, semicolon,",
        ),
        ("[1, 2]\n", "ratings.csv is a JSON array, and its elements are not objects."),
        (
            HEADER + GOOD + "3,30,abc,1\n",
            "ratings.csv, line 4: rating 'abc' is not a number.",
        ),
        (HEADER + GOOD + "3,30,nan,1\n", "the rating is missing ('nan')."),
        (HEADER + GOOD + "3,30,inf,1\n", "rating inf is not a finite number."),
        (HEADER + GOOD + "3,30,1e39,1\n", "line 4: rating"),
        (HEADER + GOOD + "3,30,,1\n", "ratings.csv, line 4: the rating is missing."),
        (
            HEADER + "1,2,3,2020-01-01\n4,5,5,nan\n",
            "ratings.csv, line 3: the time is missing.",
        ),
        (HEADER + GOOD + "3,30,\u0663,1\n", "line 4: rating '\u0663' is not a number."),
        (
            HEADER + GOOD + "3,30,1_0,1\n",
            "ratings.csv, line 4: rating '1_0' is not a number.",
        ),
        (
            HEADER + GOOD + '3,30,"4,5",1\n',
            "rating '4,5' is not a number; decimals need a point.",
        ),
        (
            "u1,x1,Bach,212\nu2,x2,Monk,7\n",
            "line 1: rating 'Bach' is not a number. There is no header; name the columns "
            "by number, such as --user-col 1 --item-col 2.",
        ),
        (
            ",".join(["user", *(f"i{n}" for n in range(90))])
            + "\n"
            + ",".join("1" * 91)
            + "\n",
            "'i17', 'i18' and 71 more. Name it with --item-col. If it has one column per "
            "item, convert it first to one row per rating",
        ),
        ("#\n,\n", "ratings.csv has only one column (',')"),
        (
            "7,2014-04-07T10:51:09.277Z,214536502,0\n",
            "its column 2 has times ('2014-04-07T10:51:09.277Z'); name the columns by "
            "number, such as --user-col 1 --item-col 3 --timestamp-col 2.",
        ),
        (
            'user,item,plays\n1,2,"3,702"\n',
            "rating '3,702' is not a number; write it without",
        ),
        (
            "ann,tea\nbob,rye\n",
            "has no user and no item column; its columns are 'ann', 'tea'. Name them with "
            "--user-col and --item-col. If these are values of the first row, use column "
            "numbers, such",
        ),
        (
            "%%MatrixMarket matrix coordinate\n1 1 1\n1 1 5\n",
            "ratings.csv is a damaged file of Matrix",
        ),
        (
            "\n<!DOCTYPE html>\n<html>\n",
            "ratings.csv is a web page, perhaps in place of the file",
        ),
        ("user,item,rating\n1,2,NULL\n", "line 2: the rating is missing ('NULL')."),
        (
            ",".join("1" * 30) + "\n",
            "--item-col 2. If it has one column per item, convert it",
        ),
        (HEADER + GOOD + ",30,1,1\n", "ratings.csv, line 4: the user id is missing."),
        (HEADER + GOOD + '3,"",1,1\n', "ratings.csv, line 4: the item id is missing."),
        (HEADER + GOOD + "3,  ,1,1\n", "ratings.csv, line 4: the item id is missing."),
        (HEADER + GOOD + "x,  ,1,1\n", "ratings.csv, line 4: the item id is missing."),
        (HEADER + GOOD + "3,30,1,\n", "ratings.csv, line 4: the time is missing."),
        (
            HEADER + GOOD + "3,30,1,noon\n",
            "line 4: time 'noon' is neither a number nor an ISO",
        ),
        (
            HEADER + GOOD + "3,30,1\n",
            "ratings.csv, line 4: found 3 fields, expected 4.",
        ),
        (HEADER + GOOD + "3,30,1,1,1\n" + GOOD, "line 4: found 5 fields, expected 4."),
        (HEADER + "3\n" + GOOD, "ratings.csv, line 2: found 1 field, expected 4."),
        (HEADER + GOOD + '3,"30,1,1\n4,5,1,1\n', "line 4: the quotes don't match"),
        (
            "\n\n" + HEADER + "\n" + GOOD + "\n3,30,abc,1\n",
            "ratings.csv, line 8: rating 'abc'",
        ),
        (
            'user,item,note,rating\n1,2,"a\nb",3\n1,3,,x\n',
            "ratings.csv, line 4: rating 'x'",
        ),
        (
            "user,item,x\n1,2,3\n1,2\n",
            "ratings.csv, line 3: found 2 fields, expected 3.",
        ),
        (
            'user,item,x\n1,2,"3\n1,2,4\n',
            "line 2: the quotes don't match (unexpected end of",
        ),
        (
            'user,item,x\n1,2,3\n1,"2"0,4\n',
            "line 3: the quotes don't match (',' expected after",
        ),
        (
            "user,item,x\n1,2,3\n1,2,3,4\n",
            "ratings.csv, line 3: found 4 fields, expected 3.",
        ),
        (
            'user,item,x\n1,42,"q"\n6,43,"q,r"\n2,25,"q"\n5,"79,"q"\n9,85,a\n3,24",b\n',
            "ratings.csv, line 5: the quotes don't match",
        ),
        (
            "1::2::3::4\n1::3::x::5\n",
            "ratings.csv, line 2: rating 'x' is not a number.",
        ),
        ("1::2::3::4\n1::3::x\n", "ratings.csv, line 2: found 3 fields, expected 4."),
        ("1,2,3,4,5\n1,2,3,4,5\n", "no header and 5 columns; name them by number"),
        (
            "one,two\n1,2\n",
            "ratings.csv has no user and no item column; its columns are 'one', 'two'. Name "
            "them with --user-col and --item-col.",
        ),
        (
            "movieId,title,genres\n1,Emma,Drama\n",
            "with --user-col. (It looks like a table of items, which --item-table reads",
        ),
        (
            "{'user': 1, 'item': x}\n",
            "line 1: not JSON (column 2: expecting property name",
        ),
        ("who,what,stars\n1,2,3\n", "Name them with --user-col and --item-col."),
        ("who,what,how\n1,2,3\n", "with --user-col, --item-col and --rating-col."),
        (
            "user,what,how\n1,2,3\n",
            "no item column; its columns are 'user', 'what', 'how'. Name ",
        ),
        (
            b"SQLite format 3\0\x10\0",
            "ratings.csv cannot be opened: it is not a readable database",
        ),
        ("a\0b,c\n", "ratings.csv is a binary file (byte 1 is zero)"),
        (b"\x89PNG\r\n\x1a\n\0\0", "ratings.csv is a binary file (byte 8 is zero)"),
        (
            HEADER.encode() + GOOD.encode() + b"\xe9,30,1,1\n",
            "ratings.csv, line 4: byte 0xe9 (byte 49 of the file) is not valid UTF-8; if the text "
            "is in Latin-1, add --encoding latin-1.",
        ),
        (
            HEADER.encode() + GOOD.encode() + b"\x80,30,1,1\n",
            "if the text is in Windows-1252, add --encoding cp1252.",
        ),
    ],
)
def test_bad_text(read: Read, content: str | bytes, message: str) -> None:
    with pytest.raises(DataError) as caught:
        read(content)
    said = str(caught.value)
    assert message in said
    assert "\n" not in said


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("[1, 2]", "r.jsonl, line 3: expected a JSON object; got '[1, 2]'."),
        ("5", "r.jsonl, line 3: expected a JSON object; got '5'."),
        ('{"user": 1, "item"', "r.jsonl, line 3: not JSON (column 19: expecting ':'"),
        ('{"item": 1, "rating": 1}', "r.jsonl, line 3: the user id is missing."),
        (
            '{"user": null, "item": 1, "rating": 1}',
            "r.jsonl, line 3: the user id is missing.",
        ),
        ('{"user": 1, "item": 1}', "r.jsonl, line 3: the rating is missing."),
        (
            '{"user": 1, "item": 1, "rating": "x"}',
            "line 3: rating 'x' is not a number.",
        ),
        (
            '{"user": 1, "item": 1, "rating": NaN}',
            "line 3: rating nan is not a finite number.",
        ),
        (
            '{"user": 1, "item": 1, "rating": [1]}',
            "line 3: rating '[1]' is not a number.",
        ),
        (
            '{"user": 1.5, "item": 1, "rating": 1}',
            "user id 1.5 is neither integer nor string.",
        ),
        (
            '{"user": true, "item": 1, "rating": 1}',
            "user id true is neither integer nor string.",
        ),
        (
            '{"user": {"$oid": "a"}, "item": 1, "rating": 1}',
            "nor string; name its field with --user-col 'user.$oid'",
        ),
    ],
)
@pytest.mark.parametrize("far_down", [False, True])
def test_bad_json_lines(read: Read, line: str, message: str, far_down: bool) -> None:
    good = '{"user": 1, "item": 2, "rating": 3.5}\n'
    if far_down:
        message = message.replace("line 3", "line 302")
    with pytest.raises(DataError) as caught:
        read(
            good + "\n" + good * (299 if far_down else 0) + line + "\n" + good,
            "r.jsonl",
        )
    assert message in str(caught.value)


def test_bad_parquet(read: Read, tmp_path: Path) -> None:
    with pytest.raises(
        DataError, match=r"r\.parquet is not a Parquet file, or damaged"
    ):
        read("user,item\n1,2\n", "r.parquet")
    frame = pl.DataFrame(
        {"user": list(range(1000)), "item": 1, "rating": [1.0, None] * 500}
    )
    frame.write_parquet(tmp_path / "good.parquet")
    whole = (tmp_path / "good.parquet").read_bytes()
    with pytest.raises(DataError, match=r"r\.parquet is a damaged Parquet file: "):
        read(whole[: len(whole) // 2], "r.parquet")
    with pytest.raises(DataError, match=r"good\.parquet, row 2: the rating is missing"):
        read_ratings(tmp_path / "good.parquet")
    frame.clear().write_parquet(tmp_path / "none.parquet")
    with pytest.raises(DataError, match=r"none\.parquet has no rows"):
        read_ratings(tmp_path / "none.parquet")


@pytest.mark.parametrize("bad", ["x", "1.5", "12345678901234567890", "é"])
def test_bad_lightgcn_lines(read: Read, bad: str) -> None:
    lines = [f"{user} 5 6 7 8" for user in range(9000)]
    lines[8000] = f"8000 5 {bad} 7"
    message = rf"train\.txt, line 8001: '{bad}' is not an integer; in LightGCN lines"
    with pytest.raises(DataError, match=message):
        read("\n".join(lines), "train.txt")


def test_lightgcn_lines_in_another_encoding_or_without_items(read: Read) -> None:
    lines = "\n".join(f"{user} 5 6 7 8" for user in range(9000)).encode()
    with pytest.raises(
        DataError, match=r"train\.txt, line 9001: byte 0xe9 .* is not valid UTF-8"
    ):
        read(lines + b"\n\xe9 1\n", "train.txt")


def test_repeated_pairs_as_an_error_name_lines(read: Read, tmp_path: Path) -> None:
    csv = "user,item\n1,10\n\n2,10\n1,10\n"
    with pytest.raises(
        DataError,
        match=r"ratings\.csv, line 5: user 1 has rated item 10 already "
        r"\(first: ratings\.csv, line 2\)",
    ):
        read(csv, duplicates="error")
    json = '{"user":1,"item":1}\n\n{"user":1,"item":1}\n'
    with pytest.raises(DataError, match=r"r\.jsonl, line 3: .*first: r\.jsonl, line 1"):
        read(json, "r.jsonl", duplicates="error")
    with pytest.raises(
        DataError, match=r"t\.txt, line 4: user 2 .*first: t\.txt, line 4"
    ):
        read("0 1 2 3\n1\n\n2 9 8 9\n", "t.txt", duplicates="error")
    pl.DataFrame({"user": [1, 1], "item": [2, 2]}).write_parquet(tmp_path / "p.parquet")
    with pytest.raises(
        DataError, match=r"p\.parquet, row 2: .*first: p\.parquet, row 1"
    ):
        read_ratings(tmp_path / "p.parquet", duplicates="error")


def test_missing_files_name_close_matches(tmp_path: Path) -> None:
    (tmp_path / "ratings.csv").touch()
    with pytest.raises(DataError, match=r"no file .*ratngs\.csv\. Did you mean .*rat"):
        read_ratings(tmp_path / "ratngs.csv")
    (tmp_path / "five.html").touch()
    with pytest.raises(DataError, match=r"There is no file .*live\.db\.$"):
        read_ratings(tmp_path / "live.db")
    with pytest.raises(DataError, match=r"There is no file .*xyz\.$"):
        read_ratings(tmp_path / "xyz")
    with pytest.raises(
        DataError, match=r"no file .*: the directory .*nowhere does not exist\.$"
    ):
        read_ratings(tmp_path / "nowhere" / "ratings.csv")


def test_ratings_in_words_are_kinds_of_events(read: Read) -> None:
    content = "user,item,thumb\n1,10,up\n2,20,down\n2,30,up\n"
    with pytest.raises(
        DataError, match=r"has words, not numbers: 'down'.*--event-col thumb"
    ):
        read(content, rating="thumb")
    likes = read(content, event="thumb", event_weights={"up": 1, "down": 0})
    assert (likes.implicit, likes.nnz) == (True, 2)


def test_rejects_a_time_format_without_times(read: Read) -> None:
    found = read("user,item,day\n1,2,31.12.2024\n", time_format="%d.%m.%Y")
    assert "no column of times for time_format: --timestamp-col names one" in str(
        found.source
    )


def test_misspelt_options_are_named(read: Read) -> None:
    known = r"There is no option 'times_format' for reading. Did you mean time_format\?"
    with pytest.raises(TypeError, match=known):
        read(HEADER + GOOD, times_format="%Y")
    with pytest.raises(TypeError, match=known):
        Ratings.from_frame(pl.DataFrame({"user": [1], "item": [2]}), times_format="%Y")


def test_options_that_cannot_be(read: Read) -> None:
    with pytest.raises(DataError, match="duplicates must be one of last"):
        read(HEADER + GOOD, duplicates="any")
    with pytest.raises(
        DataError, match=r"--sep must be one ASCII character, .*; got ',,'"
    ):
        read(HEADER + GOOD, sep=",,")
    with pytest.raises(DataError, match="There is no encoding 'klingon'"):
        read(HEADER + GOOD, encoding="klingon")
    with pytest.raises(
        DataError, match=r"ratings\.csv is not in the encoding ascii: .* byte 0"
    ):
        read("é,b\n", encoding="ascii")
    with pytest.raises(DataError, match=r"ratings\.csv is not in the encoding utf-16"):
        read(HEADER.encode("utf-16") + b"x", encoding="utf-16")
    with pytest.raises(DataError, match="found no separator ';'"):
        read(HEADER + GOOD, sep=";")


@pytest.mark.parametrize("value", ["[" * 100_000, "9" * 5000])
def test_json_of_absurd_depth_or_length(read: Read, value: str) -> None:
    good = '{"user": 1, "item": 2}\n'
    with pytest.raises(
        DataError, match=r"r\.jsonl, line 2: a number is too long or brackets"
    ):
        read(good + f'{{"user": 1, "item": {value}}}\n', "r.jsonl")


def test_lines_that_end_in_carriage_returns_alone(read: Read) -> None:
    with pytest.raises(
        DataError, match="ends its lines with carriage returns only; write them"
    ):
        read("user,item,rating\r1,10,4\r2,20,3\r")


def test_lightgcn_lines_with_what_separates_nothing(read: Read) -> None:
    """A separator of ASCII that Python takes for a space, and digits that are not ASCII."""
    lines = "".join(f"{user} 1 2\n" for user in range(8000))
    with pytest.raises(
        DataError, match=r"^train\.txt cannot be read as LightGCN lines\.$"
    ):
        read(lines + "8000 1\x1f2\n", "train.txt")
    with pytest.raises(
        DataError, match="line 8001: '\u0663' is not an integer; in LightGCN lines"
    ):
        read(lines + "8000 1 \u0663\n", "train.txt")


def test_the_line_of_a_lightgcn_pair(tmp_path: Path) -> None:
    path = tmp_path / "train.txt"
    path.write_text("1 10 11\n\n2\n3 10 12 13\n4 10\n")
    raw = read_raw(DataFile("train.txt", path), Request())
    lines = [1, 1, 4, 4, 4, 5]
    assert [raw.place(row).text for row in range(6)] == [
        f"train.txt, line {n}" for n in lines
    ]


def test_integers_of_any_size_are_ids_in_json(read: Read) -> None:
    """Beyond 64 bits they are texts, and so are their neighbours."""
    for big in (2**64, 2**200):
        rows = f'{{"user":1,"item":7}}\n{{"user":{big},"item":8}}\n'
        users = read(rows, "r.jsonl").users.values.to_list()
        assert sorted(users) == ["1", str(big)]


def test_a_header_that_cannot_be_trusted_is_read_with_care(read: Read) -> None:
    loaded = read('user,it"em,rating\n1,10,4\n2,"20",3\n')
    assert loaded.to_frame().rows() == [(1, 10, 4.0), (2, 20, 3.0)]
    with pytest.raises(
        DataError, match=r"line 1: byte 0xf6 .* is not valid UTF-8; if the text is"
    ):
        read("user,item,rating,n\xf6te\n1,10,4,x\n".encode("latin-1"))


# Lines and fields that are long.


@pytest.mark.parametrize("separator", [",", "\t", "::"])
def test_a_long_field_beside_the_ratings_does_not_matter(
    read: Read, separator: str
) -> None:
    """Longer than what is looked at first, and than Python's csv takes without being told."""
    rows = [("user", "item", "rating", "review"), ("1", "10", "4", "so good " * 20_000)]
    rows += [("2", "20", "3", "x")]
    content = "".join(separator.join(row) + "\n" for row in rows)
    assert read(content, user="user", item="item").n_ratings == 2
    careful = content + separator.join(["3", "30", "", "so bad " * 20_000]) + "\n"
    with pytest.raises(
        DataError, match=r"^ratings\.csv, line 4: the rating is missing\."
    ):
        read(careful, user="user", item="item")


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_times_of_absurd_length(tmp_path: Path, suffix: str) -> None:
    times = ["2024-01-31"] * 200 + ["2024-01-31" + "x" * 1000]
    frame = pl.DataFrame({"user": range(201), "item": range(201), "timestamp": times})
    path = tmp_path / f"r.{suffix}"
    (frame.write_csv if suffix == "csv" else frame.write_parquet)(path)
    said = r": time '2024-01-31x{30}\.\.\.' is neither a number nor an ISO 8601 date"
    with pytest.raises(DataError, match=f"(line 202|row 201){said}"):
        read_ratings(path)
    alone = frame.tail(1)
    (alone.write_csv if suffix == "csv" else alone.write_parquet)(path)
    unread = "is not a time that can be read; --time-format reads others"
    said = f"timestamp not used ('2024-01-31{'x' * 30}...' {unread})"
    assert said in str(read_ratings(path).source)


def test_utf_16_without_a_mark(read: Read) -> None:
    with pytest.raises(
        DataError, match=r"not in the encoding utf-16: (UTF-16 s|S)tream does not"
    ):
        read((HEADER + GOOD).encode(), encoding="utf-16")


def test_a_list_with_a_header_alone(tmp_path: Path) -> None:
    (tmp_path / "items.csv").write_text("item,title\n")
    with pytest.raises(
        DataError, match=r"items\.csv lists no items; one id per line is expected"
    ):
        read_ids(str(tmp_path / "items.csv"), "item")


def test_the_first_missing_id_is_that_of_a_user(tmp_path: Path) -> None:
    pl.DataFrame({"user": ["a", None], "item": [None, "x"]}).write_parquet(
        tmp_path / "r.parquet"
    )
    with open_data(tmp_path / "r.parquet") as data:
        raw = read_raw(data, Request())
    with pytest.raises(DataError, match=r"row 2: the user id is missing"):
        raw.plain()


def test_rejects_categories_as_ratings_even_if_bad_rows_are_left_out(
    tmp_path: Path,
) -> None:
    frame = pl.DataFrame(
        {"user": ["a", "b"], "item": ["x", "y"], "rating": ["good", "bad"]}
    )
    frame.cast({"rating": pl.Categorical}).write_parquet(tmp_path / "r.parquet")
    with pytest.raises(DataError, match="rating 'good' is not a number"):
        read_ratings(tmp_path / "r.parquet", bad_rows=0.5)


def test_netflix_lines_in_another_encoding(read: Read) -> None:
    with pytest.raises(DataError, match=r"line 3: byte 0xe9 .* is not valid UTF-8"):
        read(b"1:\n5,3,2004-01-01\n\xe9,4,2004-01-02\n")
