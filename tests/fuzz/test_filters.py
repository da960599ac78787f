"""Random conditions: a mask, or one sentence."""

from __future__ import annotations

import numpy as np
import polars as pl
from hypothesis import given
from hypothesis import strategies as st

from recsys.data.ratings import Ratings
from recsys.errors import DataError
from recsys.ranking.filters import rows_where

INFO = pl.DataFrame(
    {
        "item": [1, 2, 3],
        "title": ["Up", "It's", None],
        "year": [2009, None, 1995],
        "x": [0.5, 1, 2],
    }
)
RATINGS = Ratings.from_frame(
    pl.DataFrame({"user": [7, 7, 7], "item": [1, 2, 3]}), item_table=INFO
)
TOKENS = (
    *(
        "year",
        "title",
        "item",
        "x",
        '"year"',
        "and",
        "or",
        "not",
        "in",
        "like",
        "ilike",
        "rlike",
    ),
    *(
        "regexp",
        "between",
        "is",
        "null",
        "true",
        "false",
        "case",
        "when",
        "then",
        "else",
        "end",
    ),
    *(
        "lower",
        "upper",
        "length",
        "starts_with",
        "ends_with",
        "abs",
        "round",
        "floor",
        "coalesce",
    ),
    *(
        "(",
        ")",
        ",",
        "+",
        "-",
        "*",
        "/",
        "%",
        "||",
        "=",
        "<>",
        "<=",
        "~",
        "!~*",
        "'%a%'",
        "'('",
    ),
    *(
        "0",
        "1",
        "1990",
        "1e308",
        "9" * 40,
        "'(a+)+$'",
        "''",
        "select",
        "from",
        "read_csv",
        "--",
    ),
)


def met_or_rejected(condition: str) -> str:
    try:
        met = rows_where(condition, RATINGS)
    except DataError as error:
        assert "Panic" not in str(error)  # noqa: PT017
        return "rejected"
    assert met.shape == (3,)
    assert met.dtype == np.bool_
    return "met"


def conditions() -> st.SearchStrategy[str]:
    """Return conditions that are well formed, of any depth."""
    number = st.sampled_from(
        ["year", "x", "item", "1", "0", "2.5", "1e300", "null", "length(title)"]
    )
    text = st.sampled_from(["title", "'a'", "''", "lower(title)", "null", "'%'"])
    sums = st.builds("({} {} {})".format, number, st.sampled_from("+-*/%"), number)
    leaf = (
        st.builds(
            "{} {} {}".format,
            number | sums,
            st.sampled_from(["<", "=", "<>"]),
            number | sums,
        )
        | st.builds(
            "{} {} {}".format, text, st.sampled_from(["like", "ilike", "~", "="]), text
        )
        | st.builds("{} between {} and {}".format, number, number, number)
        | st.builds("{} in ({}, {})".format, number, number, number)
        | st.builds("{} is null".format, number | text)
        | st.builds("round({}, {}) = 1".format, number, number)
        | st.builds("starts_with({}, {})".format, text, text)
    )
    return st.recursive(
        leaf,
        lambda inner: (
            st.builds("({} and {})".format, inner, inner)
            | st.builds("({} or {})".format, inner, inner)
            | st.builds("not ({})".format, inner)
            | st.builds("case when {} then {} else {} end".format, inner, inner, inner)
        ),
        max_leaves=12,
    )


def test_conditions_that_are_well_formed(budget, fuzz_count):
    @budget(50)
    @given(conditions())
    def check(condition):
        fuzz_count[met_or_rejected(condition)] += 1

    check()


def test_words_in_any_order(budget, fuzz_count):
    @budget(50)
    @given(st.lists(st.sampled_from(TOKENS), min_size=1, max_size=15))
    def check(tokens):
        fuzz_count[met_or_rejected(" ".join(tokens))] += 1

    check()


def test_any_text(budget, fuzz_count):
    @budget(40)
    @given(st.text(max_size=60))
    def check(condition):
        fuzz_count[met_or_rejected(condition)] += 1

    check()


def test_deep_and_long_conditions():
    for deep in (50, 1_000, 20_000):
        met_or_rejected("(" * deep + "year = 1" + ")" * deep)
        met_or_rejected("not " * deep + "true")
        met_or_rejected(" or ".join(["year = 1"] * deep))
        met_or_rejected("- " * deep + "1 = 1")
