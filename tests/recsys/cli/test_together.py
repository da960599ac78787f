"""`recsys together`: orders from files and databases, options, and output to a table."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path

import polars as pl
import pytest
from polars.testing import assert_frame_equal

from recsys import together, write_table


@pytest.fixture
def orders() -> pl.DataFrame:
    """Pasta goes with sauce, and everything else with everything."""
    lines = []
    for order in range(300):
        skus = [f"item {at}" for at in range(6) if (order * 7 + at * 11) % 13 < 3]
        if order % 5 == 0:
            skus += ["pasta", "sauce"]
        lines += [(order, sku, 1 + order % 2) for sku in skus]
    schema = ["order_id", "product", "quantity"]
    return pl.DataFrame(lines, schema=schema, orient="row")


@pytest.fixture
def file(orders: pl.DataFrame) -> Path:
    orders.write_csv("orders.csv")
    return Path("orders.csv")


def test_lists_pairs_of_a_file(run, file, orders):
    result = run("together", file, "--basket-col", "order_id", "-n", 3, "--json")
    rows = json.loads(result.stdout)["rows"]
    expected = together(orders, "order_id", 3)
    assert_frame_equal(pl.DataFrame(rows), expected, check_dtypes=False)
    assert {rows[0]["item"], rows[0]["other"]} == {"pasta", "sauce"}
    assert rows[0]["both"] == 60
    assert "baskets of 8 items" in result.stderr
    only = run("together", file, "--basket-col", "order_id", "--item", "pasta")
    assert only.stdout.splitlines()[1].startswith("pasta,sauce,60,5.0,")


def test_ids_of_baskets_that_start_again_are_named(run):
    """The first order of each user is 1, so that orders of all users become one basket."""
    lines = ["user,order_id,item,date"]
    lines += [
        f"{user},{order},item {(user + item) % 9},2026-{user + 1:02}-0{order}"
        for user in range(12)
        for order in range(1, 5)
        for item in range(2)
    ]
    Path("lines.csv").write_text("\n".join(lines))
    said = run("together", "lines.csv", "--basket-col", "order_id").stderr
    remark = (
        "most baskets have items of several days, such as 1; if their ids start again"
    )
    assert remark in said
    with pytest.warns(UserWarning, match=remark):
        together("lines.csv", "order_id")
    Path("lines.csv").write_text(
        "\n".join(line.replace(",", "-", 1) for line in lines).replace("user-", "")
    )
    assert (
        "several days"
        not in run("together", "lines.csv", "--basket-col", "order_id").stderr
    )


def test_a_missing_column_of_baskets_is_an_error(run, file):
    said = run("together", file, "--basket-col", "cart", code=1).stderr
    columns = "'order_id', 'product', 'quantity'"
    assert f"no column 'cart'; its columns are {columns}" in said
    said = run("together", file, code=1).stderr
    assert "Hint: --basket-col names the column" in said
    said = run(
        *("together", file, "--basket-col", "order_id", "--user-col", "x"), code=2
    )
    assert "--user-col x has no effect" in said.stderr


@pytest.mark.parametrize("column", ["order_id", "orderId", "order"])
def test_an_order_without_id_is_named_as_its_column(run, column):
    Path("o.csv").write_text(f"{column},item\n1,a\n,b\n")
    said = run("together", "o.csv", "--basket-col", column, code=1).stderr
    assert f"o.csv, line 3: in column '{column}', the order id is missing." in said
    run("together", "o.csv", "--basket-col", column, "--bad-rows", "50%")


def test_without_a_column_of_baskets_a_day_is_a_basket(run):
    Path("events.csv").write_text(
        "customer,sku,time\n"
        "1,tea,2026-01-05T09:00\n1,jam,2026-01-05T19:00\n1,rye,2026-01-06T09:00\n"
    )
    result = run("together", "events.csv")
    assert "a basket is a user's day (UTC), unless --basket-col" in result.stderr
    assert len(result.stdout.splitlines()) == 3
    Path("clicks.csv").write_text("customer,sku\n1,tea\n1,jam\n")
    said = run("together", "clicks.csv", code=1).stderr
    assert "name the column of their ids with --basket-col" in said


def test_options_choose_the_others(run, file):
    Path("items.csv").write_text(
        "product,title,stock\npasta,Pasta,1\nsauce,The Sauce,0\nitem 1,One,1\nitem 2,Two,1\n"
    )
    base = ("together", file, "--basket-col", "order_id", "--item-table", "items.csv")
    rows = json.loads(run(*base, "--item", "pasta", "--json").stdout)["rows"]
    assert rows[0]["title"] == "The Sauce"

    def others(*options: object) -> set[str]:
        printed = run(*base, "--item", "pasta", *options, "--json").stdout
        return {row["other"] for row in json.loads(printed)["rows"]}

    assert others("--where", "stock = 1") == {"item 1", "item 2"}
    Path("some.txt").write_text("sauce\nitem 3\nsocks\n")
    assert others("--items", "some.txt") == {"sauce", "item 3"}
    assert "sauce" not in others("--block", "some.txt")
    assert len(others("--at-most", 1, "--per", "stock", "--where", "stock < 2")) == 2
    said = run(*base, "--at-most", 1, code=2).stderr
    assert "--at-most and --per go together" in said


def test_databases_give_and_take_the_table(run, file, orders):
    expected = together(orders, "order_id")
    write_table("shop.db::lines", orders)
    base = ("--basket-col", "order_id", "--output", "shop.db::together")
    assert "Wrote" in run("together", "shop.db::lines", *base).stderr
    with closing(sqlite3.connect("shop.db")) as connection:
        rows = connection.execute('SELECT item, other, "both" FROM together').fetchall()
    assert rows == expected.select("item", "other", "both").rows()
    query = "SELECT order_id AS o, product FROM lines WHERE quantity = 2"
    answer = run("together", "shop.db", "--query", query, "--basket-col", "o")
    some = together(orders.filter(pl.col("quantity") == 2), "order_id")
    assert len(answer.stdout.splitlines()) == 1 + len(some)


def test_reads_orders_of_postgresql(run, orders, postgres):
    from recsys.database import open_database, parse_address

    address = f"{postgres}::order_lines"
    try:
        write_table(address, orders)
        run("together", address, "--basket-col", "order_id", "-o", "pairs.parquet")
        frame = pl.read_parquet("pairs.parquet")
        assert frame.equals(together(orders, "order_id"))
    finally:
        with open_database(parse_address(postgres), write=True) as database:
            with database.connection.cursor() as cursor:
                cursor.execute("DROP TABLE IF EXISTS order_lines")
            database.connection.commit()
