"""Ids: a bijection in sorted order, textual twins, and messages that name what is near."""

from __future__ import annotations

import numpy as np
import pandas as pd
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from recsys.data.ids import Ids, alike_remark, as_id_series
from recsys.errors import DataError, UnknownIdError

INT64 = st.integers(-(2**63), 2**63 - 1)
VALUES = st.one_of(
    st.lists(INT64, min_size=1, max_size=30),
    st.lists(st.text(min_size=1, max_size=6), min_size=1, max_size=30),
)


@given(VALUES)
def test_a_bijection_in_sorted_order(values: list[int] | list[str]) -> None:
    ids = Ids(values, "user")
    assert ids.values.to_list() == sorted(set(values))  # type: ignore[type-var]
    assert ids.index(ids.values).tolist() == list(range(len(ids)))
    assert ids.take(ids.index(values)).to_list() == values


@given(st.lists(INT64, min_size=1, max_size=30), st.lists(INT64, max_size=30))
def test_find_is_minus_one_for_unknown_ids(known: list[int], asked: list[int]) -> None:
    found = Ids(known, "item").find(asked)
    assert found.dtype == np.int64
    order = sorted(set(known))
    assert found.tolist() == [order.index(a) if a in known else -1 for a in asked]


def test_many_queries_go_through_a_table_with_the_same_result() -> None:
    known = np.arange(0, 300_000, 3)
    asked = np.random.default_rng(0).integers(-1000, 310_000, size=200_000)
    expected = np.where(
        (asked % 3 == 0) & (asked >= 0) & (asked < 300_000), asked // 3, -1
    )
    np.testing.assert_array_equal(Ids(known, "item").find(asked), expected)


@pytest.mark.parametrize("n_others", [0, 1000])
@given(
    st.lists(st.text(max_size=3), min_size=30, max_size=60, unique=True),
    st.lists(st.text(max_size=3), max_size=3),
    st.integers(0, 29),
)
def test_few_and_many_strings_are_found_among_few_and_many(
    n_others: int, known: list[str], asked: list[str], one: int
) -> None:
    asked = [*asked, known[one]][-3:]
    order = sorted([*known, *(f"other {number}" for number in range(n_others))])
    expected = [order.index(a) if a in order else -1 for a in asked]
    ids = Ids(order, "user")
    for times in (1, 20, 200):
        assert ids.find(asked * times).tolist() == expected * times
    assert ids.find(pl.Series([], dtype=pl.String)).tolist() == []


@pytest.mark.parametrize(
    "values",
    [
        [3, 1, 2],
        (3, 1, 2, 3),
        np.array([3, 1, 2], dtype=np.uint8),
        np.array([3.0, 1.0, 2.0]),
        pl.Series([3, 1, 2], dtype=pl.Int32),
        pl.Series("anything", [3.0, 2.0, 1.0]),
    ],
)
def test_containers_of_integers(values: object) -> None:
    ids = Ids(values, "user")  # type: ignore[arg-type]
    assert ids.values.equals(pl.Series("user", [1, 2, 3]), check_names=True)
    assert ids.dtype == pl.Int64


@pytest.mark.parametrize(
    "values",
    [
        ["b", "a"],
        np.array(["b", "a"]),
        pl.Series(["b", "a"]).cast(pl.Categorical),
        ["a", "b", "a"],
    ],
)
def test_containers_of_strings(values: object) -> None:
    ids = Ids(values, "item")  # type: ignore[arg-type]
    assert ids.values.equals(pl.Series("item", ["a", "b"]), check_names=True)


def test_textual_twins_are_recognised_when_exact() -> None:
    numbers, texts = Ids([7, 42], "item"), Ids(["007", "42", "x"], "item")
    assert numbers.find(["42", "042", "42.0", "+42", "x", " 42"]).tolist() == [
        1,
        -1,
        -1,
        -1,
        -1,
        -1,
    ]
    assert texts.find([42, 7]).tolist() == [1, -1]
    assert texts.find(pl.Series([42])).tolist() == [1]
    assert numbers.find(["42", 7]).tolist() == [1, 0]
    assert numbers.find(["-7", "9" * 19, "9" * 30, "0"]).tolist() == [-1, -1, -1, -1]
    assert Ids([0, -7], "user").find(["0", "-7", "-0"]).tolist() == [1, 0, -1]


def test_a_single_id_and_integral_floats() -> None:
    assert Ids([5, 6], "user").index(6).tolist() == [1]
    assert Ids(["ab"], "user").index("ab").tolist() == [0]
    assert Ids([5, 6], "user").index([6.0]).tolist() == [1]
    assert Ids([5, 6], "user").index([]).tolist() == []


def test_negative_numbers_are_ids_and_never_wrap() -> None:
    ids = Ids([1, 2, 3], "user")
    assert ids.find([-1]).tolist() == [-1]
    with pytest.raises(
        IndexError, match="user indices must be between 0 and 2; got -1"
    ):
        ids.take(np.array([0, -1]))
    with pytest.raises(IndexError, match="between 0 and 2; got 3"):
        ids.take(np.array([3]))


@pytest.mark.parametrize(
    ("ids", "asked", "message"),
    [
        ([1, 609, 610], [1000], "Unknown user 1000; the nearest ids are 610, 609, 1."),
        (["0007", "0008"], ["7"], "Unknown user '7'; the nearest id is '0007'."),
        (
            ["170.0", "172.0"],
            ["170"],
            "Unknown user '170'; the nearest ids are '170.0', '172.0'.",
        ),
        (
            [1, 609, 610],
            ["1000"],
            "Unknown user 1000; the nearest ids are 610, 609, 1.",
        ),
        ([5], [4], "Unknown user 4; the nearest id is 5."),
        ([1, 2, 3, 4], [9, 8], "Unknown users 9, 8; the nearest ids to 9 are 4, 3, 2."),
        (
            [1],
            [5, 6, 1, 7, 8, 9],
            "Unknown users 5, 6, 7 and 2 more; the nearest id to 5 is 1.",
        ),
        (
            ["alice", "bob"],
            ["alicia"],
            "Unknown user 'alicia'; the nearest id is 'alice'.",
        ),
        (["Bob", "xy"], ["bob"], "Unknown user 'bob'; the nearest id is 'Bob'."),
        (
            ["Dubliners", "The Beatles", "The Beach"],
            ["bea"],
            "nearest ids are 'The Beach', 'The Beatles'.",
        ),
        (["abc", "b"], ["x"], "Unknown user 'x'; ids look like 'abc', 'b'."),
        (["a", "b"], ["zzz"], "Unknown user 'zzz'; ids look like 'a', 'b'."),
        ([1, 2], ["zzz"], "Unknown user 'zzz'; ids look like 1, 2."),
        (
            [1, 2],
            [2**80],
            "Unknown user '1208925819614629174706176'; ids look like 1, 2.",
        ),
        (
            [1, 2],
            ["9" * 25],
            "Unknown user '9999999999999999999999999'; ids look like 1, 2.",
        ),
    ],
)
def test_unknown_ids_name_the_nearest(
    ids: list[int], asked: list[int], message: str
) -> None:
    with pytest.raises((UnknownIdError, DataError)) as caught:
        Ids(ids, "user").index(asked)
    assert message in str(caught.value)


def test_unknown_id_among_very_many_strings_stays_quick() -> None:
    ids = Ids([f"B{number:07d}" for number in range(200_000)], "item")
    with pytest.raises(UnknownIdError, match=r"the nearest ids are 'B015.000', 'B015"):
        ids.index(["B015000O"])


def test_unknown_in_no_ids_at_all() -> None:
    with pytest.raises(UnknownIdError, match="Unknown item 1; there are no items"):
        Ids([], "item").index([1])


def test_integers_that_need_more_than_64_bits_are_texts() -> None:
    assert Ids(np.array([7, 2**63], np.uint64), "user").values.to_list() == [
        "7",
        str(2**63),
    ]


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ([1, None], "Row 2: the user id is missing."),
        ([True, False], "User ids must be integers or strings; got True."),
        (
            pl.Series([True]),
            "User ids must be integers or strings; got Boolean values.",
        ),
        ([1.0, 1.5], "Row 2: user id 1.5 is neither integer nor string."),
        ([1.0, float("nan")], "Row 2: user id nan is neither integer nor string."),
        ([1, "a"], "User ids must be all integers or all strings; got a mixture."),
        ([b"a"], "User ids must be integers or strings; got Binary values."),
    ],
)
def test_rejects_values_that_cannot_be_ids(values: object, message: str) -> None:
    with pytest.raises(DataError) as caught:
        Ids(values, "user")  # type: ignore[arg-type]
    assert message in str(caught.value)


@pytest.mark.parametrize("bad", [[True], [1.5], [None]])
def test_rejects_queries_that_cannot_be_ids(bad: list[object]) -> None:
    for ids in (Ids([1, 2], "user"), Ids(["1", "2"], "user")):
        with pytest.raises(DataError, match=r"user id|User ids"):
            ids.find(bad)


def test_equality_and_words() -> None:
    assert Ids([2, 1], "user") == Ids(["1", "2"], "user").__class__([1, 2], "user")
    assert Ids([1], "user") != Ids(["1"], "user")
    assert Ids([1], "user") != Ids([1], "item")
    assert Ids([1], "user") != [1]
    assert hash(Ids([1], "user")) == hash(Ids([1.0], "user"))
    assert repr(Ids([4, 3, 2, 1], "user")) == "Ids(user: 4 of Int64: 1, 2, 3, ...)"


def test_a_long_id_is_quoted_by_its_beginning() -> None:
    ids = Ids(["a" * 300, "b"], "user")
    with pytest.raises(UnknownIdError) as caught:
        ids.index("a" * 299)
    assert str(caught.value) == (
        f"Unknown user '{'a' * 200}...'; the nearest id is '{'a' * 200}...'."
    )


@pytest.mark.parametrize(
    "dtype", [pl.Categorical, pl.Enum(["zz", "b", "a", "c"]), pl.String]
)
def test_categories_become_strings(dtype: pl.DataType) -> None:
    texts = ["b", "a", "b", "c", "a"]
    series = as_id_series(pl.Series("x", texts, dtype=dtype), "item")
    assert series.to_list() == texts
    assert series.dtype == pl.String


def test_ids_in_the_given_order() -> None:
    ids = Ids(["b", "c", "a"], "term", sort=False)
    assert ids.values.to_list() == ["b", "c", "a"]
    assert ids.find(["a", "b", "x"]).tolist() == [2, 0, -1]
    assert ids.take(np.array([2, 0])).to_list() == ["a", "b"]
    numbers = Ids([30, 10, 20], "document", sort=False)
    assert numbers.index([10, "20", 30]).tolist() == [1, 2, 0]
    assert numbers.take(np.array([1])).to_list() == [10]
    with pytest.raises(
        UnknownIdError, match="Unknown document 11; the nearest ids are 10, 20, 30"
    ):
        numbers.index([11])


def test_ids_in_the_given_order_are_distinct() -> None:
    with pytest.raises(
        DataError, match="Each term needs a distinct id; 'b' occurs twice"
    ):
        Ids(["b", "a", "b"], "term", sort=False)
    assert Ids([1, "b", 2**70], "term", sort=False).values.to_list() == [
        "1",
        "b",
        str(2**70),
    ]


def test_ids_are_united() -> None:
    ids = Ids([30, 10], "user")
    assert ids.union(["20", 10]).values.to_list() == [10, 20, 30]
    assert ids.union(["007", "10"]).values.to_list() == ["007", "10", "30"]
    assert ids.union([10]) is ids
    assert ids.like([20, "10", "007"]).to_list() == [20, 10, None]


def test_a_missing_id_of_pandas_is_missing():
    series = pd.Series([1, None], dtype="Int64")
    with pytest.raises(DataError, match="Row 2: the user id is missing"):
        as_id_series(series, "user")


@pytest.mark.parametrize(
    "text",
    [
        "{0F8FAD5B-D9CB-469F-A165-70867728950E}",
        "0f8fad5bd9cb469fa16570867728950e",
        '="0f8fad5b-d9cb-469f-a165-70867728950e"',
    ],
)
def test_tells_ids_that_are_written_in_other_forms(text):
    ids = Ids(["0f8fad5b-d9cb-469f-a165-70867728950e", text], "user")
    assert alike_remark(ids).startswith("1 user id differs from another one only in")


def test_a_masked_id_is_missing():
    with pytest.raises(DataError, match="Row 2: the user id is missing"):
        Ids([1, 2], "user").find(np.ma.masked_array([1, 2], mask=[False, True]))
