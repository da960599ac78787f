"""Choosing columns by the usual names, and by what was asked for."""

from __future__ import annotations

import pytest

from recsys.data.columns import Request, choose_columns, id_column, title_column
from recsys.errors import DataError


def chosen(names: list[str], **asked: str) -> dict[str, str]:
    roles = choose_columns(names, Request(asked), "r.csv")
    return {role: names[place] for role, place in roles.items()}


@pytest.mark.parametrize(
    "names",
    [
        ["userId", "movieId", "rating", "timestamp"],
        ["user_id", "item_id", "score", "ts"],
        ["USER ID", "Product-ID", "Stars", "Date"],
        ["reviewerID", "asin", "overall", "unixReviewTime"],
        ["User-ID", "ISBN", "Book-Rating", "time"],
        ["customer_id", "bookId", "ratings", "datetime"],
        ["user", "artist", "plays", "timestamp"],
        ["uid", "iid", "value", "Timestamp"],
        ["userID", "artistID", "weight", "ts"],
        ["user", "track", "count", "date"],
        ["visitor_uuid", "product_sku", "rating", "created_at"],
        ["CustomerNo", "StockCode", "weight", "InvoiceDate"],
        ["user_hash", "item_number", "stars", "ts"],
    ],
)
def test_usual_names(names: list[str]) -> None:
    shuffled = [names[2], "other", *names[3:], names[1], names[0]]
    assert list(chosen(shuffled).values()) == names


def test_better_claims_win() -> None:
    names = [
        "username",
        "user_id",
        "asin",
        "item",
        "count",
        "rating",
        "date",
        "timestamp",
    ]
    assert list(chosen(names).values()) == ["user_id", "item", "rating", "timestamp"]


def test_what_was_asked_for_wins_and_frees_the_rest() -> None:
    names = ["user", "item", "rating", "score", "timestamp"]
    assert chosen(names, rating="score")["rating"] == "score"
    assert chosen(names, rating="SCORE", user="item", item="user") == {
        "user": "item",
        "item": "user",
        "rating": "score",
        "timestamp": "timestamp",
    }
    assert "rating" not in chosen(["a", "b"], user="a", item="b")


@pytest.mark.parametrize(
    ("names", "asked", "message"),
    [
        (
            ["user", "item", "rating", "score"],
            {},
            "r.csv has several columns that may be the rating: 'rating' and 'score'; choose "
            "one with --rating-col.",
        ),
        (
            ["user", "item", "rating", "rating"],
            {},
            "may be the rating: 'rating' and 'rating'; rename one of them.",
        ),
        (
            ["user", "user_id", "item"],
            {},
            "may be the user: 'user' and 'user_id'; .* --user-col",
        ),
        (
            ["user", "track", "artist"],
            {},
            "may be the item: 'track' and 'artist'; .* --item-col",
        ),
        (
            ["user", "item", "ts", "timestamp"],
            {},
            "may be the timestamp: .* --timestamp-col",
        ),
        (
            ["user", "item", "rating", "rating"],
            {},
            "may be the rating: 'rating' and 'rating'",
        ),
        (
            ["who", "item"],
            {},
            "has no user column; its columns are 'who', 'item'. .* --user-col",
        ),
        (["user", "what"], {}, "has no item column; .* --item-col"),
        (
            ["user", "item"],
            {"rating": "r"},
            "no column 'r'; its columns are 'user', 'item'",
        ),
        (["user", "item"], {"user": "item"}, "no item column"),
        (["u", "u", "item"], {"user": "u"}, "has 2 columns named 'u'"),
        (["a", "b"], {"user": "a", "item": "a"}, "'a' cannot be both user and item"),
    ],
)
def test_missing_and_ambiguous(
    names: list[str], asked: dict[str, str], message: str
) -> None:
    with pytest.raises(DataError, match=message):
        chosen(names, **asked)


def test_columns_of_titles() -> None:
    assert title_column(["genre", "Title", "movieId", "name"]) == "Title"
    assert title_column(["item", "label", "Product Name"]) == "Product Name"
    assert title_column(["item", "price"]) is None


def test_columns_of_ids() -> None:
    assert id_column(["sku", "price", "id"], "item", None, "t") == "sku"
    assert id_column(["sku", "Product_No"], "item", "product no", "t") == "Product_No"
    assert id_column(["ID", "price"], "item", None, "t") == "ID"
    assert id_column(["age", "id"], "user", "visitor", "t") == "id"
    assert id_column(["price"], "item", None, "t") is None
    with pytest.raises(DataError, match="t has several columns that may be the item"):
        id_column(["item", "item_id"], "item", None, "t")


@pytest.mark.parametrize("content", ["1 7 8 9\n2 8\n3 9\n", "1:\n7,3,2005-09-06\n"])
def test_a_column_named_in_a_form_without_columns_is_an_error(read, content):
    read(content, "data.txt")
    with pytest.raises(
        DataError, match=r"form without named columns .* the rating column '3'"
    ):
        read(content, "data.txt", rating=3)
