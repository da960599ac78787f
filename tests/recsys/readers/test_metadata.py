"""Tables of items and users: next to the ratings and named, in all formats."""

from __future__ import annotations

import datetime as dt
from pathlib import Path

import pandas as pd
import polars as pl
import pytest

from recsys.data.features import Features
from recsys.errors import DataError
from recsys.readers import read_ratings

EVENTS = "customer,sku,stars\n1,a1,5\n1,b2,3\n2,a1,4\n2,c3,1\n"
SHOP = (
    "sku,Name,price,tea,since,tags,about\n"
    'a1,Assam,7.5,yes,2024-01-31,black|strong,"Malty, dark and strong, from the Brahmaputra"\n'
    "b2,Beaker,12,no,2023-05-01,glass,A beaker of glass that stands the heat of tea\n"
    "z9,Zest,,no,,,\n"
)
KINDS = {
    "Name": "text",
    "price": "number",
    "tea": "boolean",
    "since": "date",
    "tags": "list",
    "about": "text",
}
ROWS = [
    ("a1", "Assam", 7.5, True, dt.date(2024, 1, 31), ["black", "strong"]),
    ("b2", "Beaker", 12.0, False, dt.date(2023, 5, 1), ["glass"]),
    ("z9", "Zest", None, False, None, None),
]


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    (tmp_path / "events.csv").write_text(EVENTS)
    return tmp_path


def table_of(shop: Path, name: str | Path | None = None) -> Features:
    table = read_ratings(
        shop / "events.csv", item_table=name and shop / name
    ).item_table
    assert table is not None
    return table


def test_any_name_and_the_kinds_of_all_columns(shop: Path) -> None:
    (shop / "wares-2024.txt").write_text(SHOP)
    loaded = read_ratings(shop / "events.csv", item_table=shop / "wares-2024.txt")
    assert loaded.item_table is not None
    assert loaded.item_table.kinds == KINDS
    assert loaded.item_table.frame.drop("about").rows() == ROWS
    assert loaded.titles is not None
    assert loaded.titles.to_list() == ["Assam", "Beaker", None]
    assert (
        "wares-2024.txt (lacks 1 of 3 items, has 1 without ratings): Name (title), price (number), "
        "tea (boolean), since (date), tags (list of 3), about (text); no duplicates"
    ) in str(loaded.source)


def test_repeated_rows_of_a_table_are_counted(shop: Path) -> None:
    (shop / "wares.csv").write_text("sku,price\na1,7.5\na1,8\nb2,12\nb2,12\na1,9\n")
    loaded = read_ratings(shop / "events.csv", item_table=shop / "wares.csv")
    assert loaded.item_table.frame["price"].to_list() == [7.5, 12.0]
    assert "(lacks 1 of 3 items, 3 rows of repeated items left out)" in str(
        loaded.source
    )


def test_formats_without_a_header_line_of_text(shop: Path) -> None:
    """Typed formats say the same as the file of text."""
    (shop / "items.csv").write_text(SHOP)
    frame = table_of(shop, "items.csv").frame.rename({"item": "sku"})
    frame.write_parquet(shop / "wares.parquet")
    frame.write_ndjson(shop / "wares.jsonl")
    frame.with_columns(pl.col("tags").list.join("|")).write_csv(
        shop / "w.csv", separator=";"
    )
    for name in ("wares.parquet", "wares.jsonl", "w.csv"):
        table = table_of(shop, name)
        assert table.kinds == KINDS
        assert table.frame.drop("about").rows() == ROWS
    columns = frame.with_columns(pl.col("tags").list.join("|")).to_dict(as_series=False)
    for made in (frame, frame.lazy(), frame.to_arrow(), pd.DataFrame(columns)):
        loaded = read_ratings(shop / "events.csv", item_table=made)
        assert loaded.item_table is not None
        assert loaded.item_table.kinds["price"] == "number"
        assert loaded.item_table.frame["price"].to_list() == [7.5, 12.0, None]
        assert loaded.item_table.frame["tags"].to_list()[0] == ["black", "strong"]


@pytest.mark.parametrize(
    "name", ["items.csv", "products.parquet", "Movies.CSV", "books.jsonl"]
)
def test_usual_names_are_found_and_are_never_the_ratings(shop: Path, name: str) -> None:
    frame = pl.DataFrame({"sku": ["a1", "b2"], "price": [7.5, 12.0]})
    write = {
        "csv": frame.write_csv,
        "jsonl": frame.write_ndjson,
        "parquet": frame.write_parquet,
    }
    write[name.rpartition(".")[2].lower()](shop / name)
    (shop / "users.csv").write_text("id,age\n1,30\n2,40\n")
    loaded = read_ratings(shop)
    assert (loaded.n_users, loaded.n_items) == (2, 3)
    assert loaded.item_table is not None
    assert loaded.item_table.frame["price"].to_list() == [7.5, 12.0]
    assert loaded.titles is None
    assert loaded.user_table is not None
    assert loaded.user_table.frame.rows() == [(1, 30), (2, 40)]
    assert (
        f"{name} (lacks 1 of 3 items): price (number); users.csv: age (number)"
        in str(loaded.source)
    )


def test_a_table_in_a_folder_of_its_own_and_in_a_packer(shop: Path) -> None:
    import gzip
    import zipfile

    (shop / "w.csv.gz").write_bytes(gzip.compress(SHOP.encode()))
    with zipfile.ZipFile(shop / "w.zip", "w") as archive:
        archive.writestr("items.csv", SHOP)
    for name in ("w.csv.gz", "w.zip"):
        assert table_of(shop, name).kinds == KINDS


def test_the_column_of_ids_is_found_by_its_values(shop: Path) -> None:
    (shop / "t.csv").write_text("Artikelnummer,Preis\na1,5\nb2,6\n")
    assert table_of(shop, "t.csv").frame.rows() == [("a1", 5), ("b2", 6)]
    (shop / "t.csv").write_text("Artikelnummer,EAN,Preis\na1,b2,5\nb2,a1,6\n")
    with pytest.raises(
        DataError,
        match=r"t\.csv has no column of items; its columns are 'Artikelnummer', 'EAN',",
    ):
        table_of(shop, "t.csv")


def test_the_column_of_the_ratings_counts_first(shop: Path) -> None:
    text = EVENTS.replace("sku", "product_sku")
    (shop / "events.csv").write_text(text)
    (shop / "t.csv").write_text("id,product_sku,price\n1,a1,5\n2,c3,6\n")
    loaded = read_ratings(
        shop / "events.csv", item="product_sku", item_table=shop / "t.csv"
    )
    assert loaded.item_table is not None
    assert loaded.item_table.frame["item"].to_list() == ["a1", "c3"]


def test_ids_of_another_type_are_the_same_ids(tmp_path: Path) -> None:
    (tmp_path / "r.csv").write_text("user,item\n1,10\n1,7\n2,10\n")
    table = pl.DataFrame({"item": ["7", "10", "x"], "price": [1, 2, 3]})
    loaded = read_ratings(tmp_path / "r.csv", item_table=table)
    assert loaded.item_table is not None
    assert loaded.item_table.aligned(loaded.items).rows() == [(7, 1), (10, 2)]
    (tmp_path / "r.csv").write_text("user,item\n1,007\n1,8\n")
    table = pl.DataFrame({"item": [7, 8], "price": [1, 2]})
    loaded = read_ratings(tmp_path / "r.csv", item_table=table)
    assert loaded.item_table is not None
    assert loaded.item_table.aligned(loaded.items).rows() == [("007", None), ("8", 2)]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (
            "id,price\nb,2\n",
            "items.csv has none of the items of the ratings: its ids look like 'b', ",
        ),
        (
            "who,price\nb,2\n",
            "items.csv has no column of items; its columns are 'who', 'price'",
        ),
        ("", "items.csv is empty"),
        ("item,price\na1,1,9\n", "items.csv, line 2: found 3 fields, expected 2"),
        ('item,price\na1,"1\n', "items.csv, line 2: the quotes don't match"),
        ("1,2\n3,4\n", "items.csv has no header"),
        (b"\x1f\x8bbroken", "items.csv is damaged"),
    ],
)
def test_bad_tables(shop: Path, content: str | bytes, message: str) -> None:
    raw = content if isinstance(content, bytes) else content.encode()
    (shop / "items.csv").write_bytes(raw)
    with pytest.raises(DataError) as caught:
        table_of(shop, "items.csv")
    assert message in str(caught.value)
    loaded = read_ratings(shop / "events.csv")  # next to the ratings, it is not used
    assert loaded.item_table is None
    assert "; items.csv not used" in str(loaded.source)


def test_rejects_a_missing_table(shop: Path) -> None:
    with pytest.raises(DataError, match=r"no file .*nope\.csv"):
        table_of(shop, "nope.csv")


def test_odd_files(tmp_path: Path) -> None:
    (tmp_path / "ratings.csv").write_text("user,item\n1,007\n1,8\n")
    (tmp_path / "items.csv").write_text(
        "Title,x,ITEM_ID,,Year\nSeven,x,007,y,1995\nNone\nEight,, 8 \n,z,9,,\n"
    )
    table = read_ratings(tmp_path).item_table
    assert table is not None
    assert table.frame.select("item", "Title", "Year").rows() == [
        ("007", "Seven", 1995),
        ("8", "Eight", None),
        ("9", None, None),
    ]


def test_names_of_columns_are_never_the_same(tmp_path: Path) -> None:
    (tmp_path / "ratings.csv").write_text("userId,movieId,rating\n1,1,5\n")
    (tmp_path / "items.csv").write_text(
        "movieId,title,column_4,,item,title\n1,x,y,z,q,w\n"
    )
    table = read_ratings(tmp_path, item="movieId").item_table
    assert table is not None
    assert table.frame.row(0, named=True) == {
        "item": 1,
        "title": "x",
        "column_4": "y",
        "column_4_": "z",
        "item_": "q",
        "column_6": "w",
    }


def test_years_of_titles_are_a_column_where_there_is_none(tmp_path: Path) -> None:
    (tmp_path / "ratings.csv").write_text("user,item\n1,7\n1,8\n")
    (tmp_path / "movies.csv").write_text(
        "movieId,title,genres\n7,Told (1999),(no genres listed)\n8,Untold,Drama|War\n"
    )
    table = read_ratings(tmp_path).item_table
    assert table is not None
    assert table.frame.rows() == [
        (7, "Told (1999)", [], 1999),
        (8, "Untold", ["Drama", "War"], None),
    ]
    (tmp_path / "movies.csv").write_text("movieId,title,Year\n7,Told (1999),2000\n")
    table = read_ratings(tmp_path).item_table
    assert table is not None
    assert table.frame.rows() == [(7, "Told (1999)", 2000)]


@pytest.mark.parametrize("name", ["movies.dat", "movies.csv"])
def test_latin_1_with_what_unicode_takes_for_the_end_of_a_line(
    tmp_path: Path, name: str
) -> None:
    """Such as the three dots of Windows."""
    separator = "::" if name.endswith("dat") else ","
    head = [] if name.endswith("dat") else [["movieId", "title", "genres"]]
    rows = [
        *head,
        ["1", "To be \x85 (1942)", "Comedy"],
        ["2", "Caf\u00e9 (1990)", "Drama"],
    ]
    text = "".join(f"{separator.join(row)}\r\n" for row in rows)
    (tmp_path / name).write_bytes(text.encode("latin-1"))
    (tmp_path / "ratings.csv").write_text("userId,movieId,rating\n1,1,4\n1,2,3\n")
    table = read_ratings(tmp_path / "ratings.csv").item_table
    assert table is not None
    assert table.frame["title"].to_list() == ["To be \x85 (1942)", "Caf\u00e9 (1990)"]


def test_users_of_movielens(tmp_path: Path) -> None:
    (tmp_path / "ratings.dat").write_text("1::10::4::100\n2::20::3::300\n")
    (tmp_path / "users.dat").write_text("1::F::1::10::02460\n2::M::56::16::70072\n")
    table = read_ratings(tmp_path).user_table
    assert table is not None
    assert table.kinds == dict.fromkeys(
        ("gender", "age", "occupation", "zip"), "category"
    ) | {"age": "number"}
    assert table.frame.rows() == [
        (1, "F", 1, "K-12 student", "02460"),
        (2, "M", 56, "self-employed", "70072"),
    ]
    (tmp_path / "ratings.dat").unlink()
    (tmp_path / "users.dat").unlink()
    (tmp_path / "u.data").write_text("1\t10\t4\t100\n2\t20\t3\t300\n")
    (tmp_path / "u.user").write_text("1|24|M|technician|85711\n2|53|F|other|T8H1N\n")
    table = read_ratings(tmp_path).user_table
    assert table is not None
    assert table.frame.rows()[1] == (2, 53, "F", "other", "T8H1N")


def test_decimals_with_a_comma_as_spreadsheets_write_them(shop: Path) -> None:
    (shop / "w.csv").write_text("sku;price;size\na1;7,50;1\nb2;12;x,2\n")
    assert table_of(shop, "w.csv").frame.rows() == [
        ("a1", 7.5, "1"),
        ("b2", 12.0, "x,2"),
    ]


def test_points_are_of_thousands_where_a_column_has_decimal_commas(shop: Path) -> None:
    (shop / "w.csv").write_text(
        "sku;price;weight;since;host\n"
        "a1;1.234,50;1.234;1.2.2024;192.168.100.100\nb2;-12.345.678,5;2.500;2.2.2024;10.200.100.1\n"
        "c3;2.000;0.125;3.2.2024;\n"
    )
    found = table_of(shop, "w.csv")
    assert found.frame["price"].to_list() == [1234.5, -12_345_678.5, 2000]
    assert found.frame["weight"].to_list() == [1.234, 2.5, 0.125]
    assert found.kinds["since"] == "date"
    assert found.kinds["host"] == "category"


def test_a_table_with_users_and_items_is_none_of_items(tmp_path: Path) -> None:
    (tmp_path / "train.csv").write_text("user_id,recipe_id,rating\n1,7,5\n2,8,4\n")
    (tmp_path / "recipes.csv").write_text(
        "user_id,recipe_id,rating,review\n1,7,5,good\n"
    )
    loaded = read_ratings(tmp_path / "train.csv")
    assert loaded.item_table is None
    assert "recipes.csv not used (it has users, too)" in str(loaded.source)
