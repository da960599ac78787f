"""Kinds of columns, and what becomes of tables of items and users."""

from __future__ import annotations

import datetime as dt
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recsys.data.features import Features
from recsys.data.ids import Ids
from recsys.data.markup import plain_text
from recsys.errors import DataError
from recsys.features.encoder import identifying

A_TEXT = [
    "a long story about a dog and a cat",
    "the tale of two cities in five parts",
    "one word",
]
DAY = dt.date(2024, 1, 31)
MOMENT = dt.datetime(2024, 1, 31, 9, 30)


def column(
    values: Any, name: str = "x", *, untyped: bool = True
) -> tuple[str | None, list[Any]]:
    """Return the kind and the values of a column."""
    series = pl.Series(name, values)
    frame = pl.DataFrame([pl.Series("item", np.arange(len(series))), series])
    features = Features.of(frame, "item", untyped=untyped)
    if name not in features.kinds:
        return None, []
    return features.kinds[name], features.frame[name].to_list()


@pytest.mark.parametrize(
    ("texts", "kind", "values"),
    [
        (["7.5", " 12 ", "", "-1e3"], "number", [7.5, 12.0, None, -1000.0]),
        (["1", "+2", "NULL", "0"], "number", [1, 2, None, 0]),
        (["0", "1", "1"], "number", [0, 1, 1]),
        ([".5", "5.", "nan"], "number", [0.5, 5.0, None]),
        (["1", "9" * 30], "number", [1.0, 1e30]),
        (["007", "8"], "category", ["007", "8"]),
        (["02460", "T8H1N"], "category", ["02460", "T8H1N"]),
        (["$3.50", "$4"], "number", [3.5, 4]),
        (["$3.50", "\u20ac4"], "category", ["$3.50", "\u20ac4"]),
        (["3:45", "0:30"], "category", ["3:45", "0:30"]),  # or times of day
        (["7/10", "10/10"], "number", [7, 10]),
        (["7/2024", "10/2024"], "category", ["7/2024", "10/2024"]),  # months
        (["1,234", "5"], "category", ["1,234", "5"]),
        (["1_000", "5"], "category", ["1_000", "5"]),
        (["1e999"], "category", ["1e999"]),
        (["yes", "No", None], "boolean", [True, False, None]),
        (["TRUE", "n/a", "false"], "boolean", [True, None, False]),
        (["t", "f", "t"], "boolean", [True, False, True]),
        (["f", "F"], "category", ["f", "F"]),
        (["yes", "maybe"], "category", ["yes", "maybe"]),
        (["2024-01-31", "", "2023-02-01"], "date", [DAY, None, dt.date(2023, 2, 1)]),
        (["20240131", "20230201"], "date", [DAY, dt.date(2023, 2, 1)]),
        (["31-Jan-2024", "01-Feb-2023"], "date", [DAY, dt.date(2023, 2, 1)]),
        (["31.01.2024"], "date", [DAY]),
        (["01/31/2024", "02/01/2023"], "date", [DAY, dt.date(2023, 2, 1)]),
        (["January 31, 2024"], "date", [DAY]),
        (["01/02/2024"], "category", ["01/02/2024"]),  # of January or of February
        (["2024-02-31"], "category", ["2024-02-31"]),
        (["2024-01-31 09:30", None], "date", [MOMENT, None]),
        (
            ["2024-01-31T09:30:00Z", "2024-01-31 10:30:00+01:00"],
            "date",
            [MOMENT, MOMENT],
        ),
        (["a|b", "a", "", "b | c |"], "list", [["a", "b"], ["a"], None, ["b", "c"]]),
        (["Drama|War", "(no genres listed)"], "list", [["Drama", "War"], []]),
        (["tea", "tea", "oat"], "category", ["tea", "tea", "oat"]),
        (A_TEXT, "text", A_TEXT),
        (
            ["we think | that this is a sentence", "with a bar | in the middle of it"],
            "text",
            None,
        ),
        (["", " ", None], None, []),
    ],
)
def test_kinds_of_texts(
    texts: list[str | None], kind: str | None, values: list[Any] | None
) -> None:
    found = column(pl.Series(texts, dtype=pl.String))
    assert found[0] == kind
    if values is not None:
        assert found[1] == values


@pytest.mark.parametrize(
    ("values", "kind", "kept"),
    [
        ([1.5, float("nan"), float("inf")], "number", [1.5, None, None]),
        (pl.Series([1, 2], dtype=pl.UInt8), "number", [1, 2]),
        (pl.Series([1, 2**63], dtype=pl.UInt64), "number", [1.0, 2.0**63]),
        (pl.Series(["1.50"]).cast(pl.Decimal(10, 2)), "number", [1.5]),
        ([True, None], "boolean", [True, None]),
        ([DAY, None], "date", [DAY, None]),
        (pl.Series([MOMENT]).dt.replace_time_zone("UTC"), "date", [MOMENT]),
        ([["a", "b"], []], "list", [["a", "b"], []]),
        ([[1, 2], None], "list", [["1", "2"], None]),
        (pl.Series(["a", "b"], dtype=pl.Categorical), "category", ["a", "b"]),
        (pl.Series(["7", "8"]), "category", ["7", "8"]),  # a number would be one here
        (pl.Series(["yes", "no"]), "category", ["yes", "no"]),
        (
            ["2024-01-31", "2023-02-01"],
            "date",
            [DAY, dt.date(2023, 2, 1)],
        ),  # as SQLite has them
        (["a|b", "a|c"], "list", [["a", "b"], ["a", "c"]]),
        ([{"a": 1}], None, []),
        ([[0.5, 0.5]], None, []),
        ([dt.timedelta(1)], None, []),
        ([None, None], None, []),
    ],
)
def test_kinds_of_typed_columns(values: Any, kind: str | None, kept: list[Any]) -> None:
    assert column(values, untyped=False) == (kind, kept)


@pytest.mark.parametrize(
    ("prices", "is_text"),
    [(["1.5", "inf", "-Infinity"], True), ([1.5, float("inf"), float("-inf")], False)],
)
def test_infinite_values_are_left_out_and_counted(prices: Any, is_text: bool) -> None:
    table = pl.DataFrame({"item": ["a", "b", "c"], "price": prices})
    features = Features.of(table, "item", untyped=is_text)
    assert features.kinds == {"price": "number"}
    assert features.frame["price"].to_list() == [1.5, None, None]
    assert features.remarks == ("2 infinite values of price left out",)
    words = pl.DataFrame({"item": ["a", "b"], "word": ["inf", "or"]})
    assert Features.of(words, "item", untyped=True).kinds == {"word": "category"}


@pytest.mark.parametrize("name", ["zip", "Postal Code", "store_id", "EAN", "imdbId"])
def test_integers_that_are_codes_are_categories_of_integers(name: str) -> None:
    assert column([10115, 80331], name, untyped=False) == ("category", [10115, 80331])
    assert column(["10115", "80331"], name) == ("category", [10115, 80331])
    assert column([0.5], name, untyped=False)[0] == "number"


def test_frames_of_pandas() -> None:
    frame = pd.DataFrame(
        {
            "item": [1, 2],
            "price": [1.5, None],
            "when": pd.to_datetime(["2024-01-31 09:30", None]),
            "kind": pd.Categorical(["a", "b"]),
            "sold": [True, False],
            "tags": [["x"], None],
        }
    )
    features = Features.of(frame, "item")
    assert [*features.kinds.values()] == [
        "number",
        "date",
        "category",
        "boolean",
        "list",
    ]
    assert features.frame.rows() == [
        (1, 1.5, MOMENT, "a", True, ["x"]),
        (2, None, None, "b", False, None),
    ]


def test_titles_are_texts_whatever_they_look_like() -> None:
    films = {
        "item": [1, 2, 3],
        "Name": ["1984", "2001", "Face|Off"],
        "label": ["x", "y", "x"],
    }
    features = Features.of(pl.DataFrame(films), "item", untyped=True)
    assert features.title == "Name"
    assert features.kinds == {"Name": "text", "label": "category"}
    assert str(features) == "Name (title), label (2 values)"
    assert (
        Features.of(pl.DataFrame({"item": [1], "year": [1984]}), "item").title is None
    )


@pytest.mark.parametrize("untyped", [True, False])
@pytest.mark.parametrize(
    ("title", "shown"),
    [
        ("<b>Tee</b> &amp; Kekse", "Tee & Kekse"),
        ("Lampe f&uuml;r<br/>den&nbsp;Tisch", "Lampe für den Tisch"),
        ("<script>alert(1)</script> Lamp", "Lamp"),
        ("&lt;i&gt;Wok&lt;/i&gt;", "Wok"),
        ("AT&T: x<y, 1 < 2  <3", "AT&T: x<y, 1 < 2 <3"),
        ("<p> </p>", None),
        (None, None),
    ],
)
def test_titles_are_without_html(title: str | None, shown: str | None, untyped) -> None:
    shop = {
        "item": [1, 2, 3],
        "title": ["Topf", title, "日本 🍵"],
        "text": ["a", "<b>x</b> y", "b"],
    }
    frame = pl.DataFrame(shop, schema_overrides={"title": pl.String})
    features = Features.of(frame, "item", untyped=untyped)
    assert features.frame["title"].to_list() == ["Topf", shown, "日本 🍵"]
    assert features.frame["text"].to_list() == shop["text"]
    again = features.typed_again().frame["title"]
    assert again.to_list() == ["Topf", shown, "日本 🍵"]


def test_a_summary_names_the_first_columns() -> None:
    many = {f"c{number}": [1.5] for number in range(10)}
    features = Features.of(pl.DataFrame({"user": ["a"], **many}), "user")
    assert str(features).endswith("c7 (number) and 2 more columns")
    assert repr(features).startswith("<Features of 1 users: c0 (number), c1")


def test_the_first_row_of_an_id_counts() -> None:
    frame = pl.DataFrame({"sku": ["b", "a", "b"], "item": [1, 2, 3]})
    features = Features.of(frame, "item", column="sku")
    assert features.frame.rows() == [("b", 1), ("a", 2)]
    assert features.frame.columns == ["item", "item_"]


def test_rows_are_aligned_with_ids() -> None:
    features = Features.of(
        pl.DataFrame({"item": ["9", "x", "7"], "g": [["a"], [], None]}), "item"
    )
    ids = Ids([7, 8, 9], "item")
    assert features.rows_of(ids).tolist() == [2, -1, 0]
    assert features.aligned(ids).rows() == [(7, None), (8, None), (9, ["a"])]
    assert features.aligned(Ids([], "item")).rows() == []
    assert features.select([]).aligned(ids).rows() == [(7,), (8,), (9,)]


def test_columns_are_selected_by_name() -> None:
    features = Features.of(
        pl.DataFrame({"user": [1], "age": [30], "job": ["x"]}), "user"
    )
    assert features.select(["job"]).frame.columns == ["user", "job"]
    with pytest.raises(DataError, match="no column 'jop' of users; there are age, job"):
        features.select(["jop"])


def test_newer_rows_replace_older_ones() -> None:
    old = Features.of(
        pl.DataFrame(
            {"item": [1, 2], "price": [5, 6], "genres": [["a"], None], "x": [1, 2]}
        ),
        "item",
    )
    new = Features.of(
        pl.DataFrame(
            {
                "item": ["2", "n"],
                "price": [7.5, 8.0],
                "genres": ["b", None],
                "y": ["u", "v"],
            }
        ),
        "item",
    )
    both = old.updated(new)
    assert dict(both.kinds) == {
        "price": "number", "genres": "list", "x": "number", "y": "category",
    }  # fmt: skip
    assert both.frame.rows() == [
        ("2", 7.5, ["b"], None, "u"),
        ("n", 8.0, None, None, "v"),
        ("1", 5.0, ["a"], 1, None),
    ]
    assert old.updated(None) is old
    text = Features.of(pl.DataFrame({"item": [1], "price": ["cheap"]}), "item")
    assert old.updated(text).kinds["price"] == "category"
    assert old.updated(text).frame["price"].to_list() == ["cheap", "6"]


@settings(max_examples=60)
@given(
    st.lists(
        st.one_of(st.none(), st.text(max_size=12), st.sampled_from(["1", "yes", "a|b"]))
    )
)
def test_any_texts_have_a_kind_or_are_left_out(texts: list[str | None]) -> None:
    """Nothing is lost: a text that is there becomes a value, unless it says that it is missing."""
    series = pl.Series("x", texts, dtype=pl.String)
    for untyped in (True, False):
        kind, values = column(series, untyped=untyped)
        assert (kind is None) == all(value is None for value in values)
        filled = int(
            (series.str.strip_chars() != "").sum()
        )  # "\x1f" is no space in a file
        if kind in ("category", "text"):
            assert sum(value is not None for value in values) == filled


def test_columns_without_a_kind_are_left_out_and_said() -> None:
    table = pl.DataFrame(
        {
            "item": [1, 2],
            "year": [1999, 2004],
            "vector": [[0.1], [0.2]],
            "size": [{"x": 1}] * 2,
        }
    )
    features = Features.of(table, "item")
    assert [*features.kinds] == ["year"]
    assert features.left_out == ("vector (lists of numbers)", "size (nested)")


def test_numbers_as_categories_are_not_addresses() -> None:
    frame = pl.DataFrame(
        {"user": [1, 2, 3], "zip": [1010, 1020, 1010], "email": ["a@b.org"] * 3}
    )
    assert identifying(Features.of(frame, "user")) == ["email"]


@pytest.mark.parametrize("unit", ["ms", "us", "ns"])
def test_dates_of_databases_that_mean_always_are_the_last_day(unit) -> None:
    ends = pl.Series([2**63 - 1, 0, -(2**63 - 1)], dtype=pl.Int64)
    days = pl.Series([2**31 - 1, 0, -(2**31) + 1], dtype=pl.Int32).cast(pl.Date)
    table = pl.DataFrame(
        {
            "item": [1, 2, 3],
            "until": ends.cast(pl.Datetime(unit, "UTC")),
            "day": days,
        }
    )
    features = Features.of(table, "item")
    texts = features.frame.select(pl.col("until", "day").cast(pl.String))
    assert texts["day"].to_list() == ["9999-12-31", "1970-01-01", "0001-01-01"]
    if unit != "ns":
        assert texts["until"].str.head(4).to_list() == ["9999", "1970", "0001"]
    assert len(features.frame.rows()) == 3


def test_comment_and_script_without_an_end_hide_the_rest() -> None:
    assert plain_text("<b>Tea</b> <!-- in stock").strip() == "Tea"
    assert plain_text("Tea <script>alert(1)").strip() == "Tea"
    assert plain_text("<!--" * 20_000).strip() == ""


@pytest.mark.parametrize(
    ("others", "mark", "remark"),
    [
        (
            [18, 35, 62, 90],
            -1,
            "number, -1 3 times: if this means none, leave it empty",
        ),
        ([18, 35, 62, 90], -999, "number, -999 3 times"),
        ([0.5, 2.5, 7.25, 9.0], 9999.0, "number, 9999 3 times"),
        ([1987, 1994, 2003, 2021], 0, "number, 0 3 times"),
        (
            [dt.date(2024, 1, day) for day in (3, 9, 17, 30)],
            dt.date(1900, 1, 1),
            "date, 1900-01-01 3 times",
        ),
    ],
)
@pytest.mark.parametrize("is_text", [False, True])
def test_names_numbers_that_may_stand_for_none(others, mark, remark, is_text) -> None:
    values = pl.Series("x", [*others, mark, mark, mark])
    if is_text:
        values = values.cast(pl.String)
    table = pl.DataFrame([pl.Series("item", range(len(values))), values])
    features = Features.of(table, "item", untyped=is_text)
    assert features.described()["x"].startswith(remark)


@pytest.mark.parametrize(
    "values", [[-1, 0, 1, 1], [-3, -2, -1, 5], [1, 2, 3, 5000], [1, 10, 100, 150, 150]]
)
def test_takes_usual_numbers_for_numbers(values) -> None:
    table = pl.DataFrame({"item": range(len(values)), "x": values})
    assert Features.of(table, "item").described() == {"x": "number"}


def test_dates_with_the_year_at_the_end_may_mean_none_too() -> None:
    days = ["31.12.9999", "01.02.2024", "31.12.9999", "30.03.2024"]
    features = Features.of(pl.DataFrame({"item": range(4), "until": days}), "item")
    assert features.kinds == {"until": "date"}
    assert features.frame["until"].null_count() == 2
