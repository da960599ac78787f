"""Catalogues: other tables of items for a fitted model, in Python and by `recsys update`."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from click.testing import CliRunner

from recsys import Ratings, Recommender
from recsys.cli.main import cli
from recsys.errors import DataError

ITEMS = pl.DataFrame(
    {
        "item": range(20),
        "title": [f"Product {n}" for n in range(20)],
        "brand": [f"b{n % 3}" for n in range(20)],
        "tags": ["new|red" if n % 2 else "blue" for n in range(20)],
        "stock": [n % 4 for n in range(20)],
        "promoted": [n % 2 == 0 for n in range(20)],
    }
)
NEW = pl.DataFrame(
    {
        "item": 99,
        "title": "Fresh",
        "brand": "b1",
        "tags": "red",
        "stock": 7,
        "promoted": True,
    }
)
CATALOGUE = pl.concat([ITEMS.filter(pl.col("item") != 3), NEW])


@pytest.fixture(scope="module")
def shop() -> Recommender:
    rng = np.random.default_rng(0)
    users, items = np.nonzero(rng.random((40, 20)) < 0.3)
    pairs = pl.DataFrame({"user": users, "item": items})
    ratings = Ratings.from_frame(pairs, item_table=ITEMS)
    return Recommender("ials", factors=4, iterations=2).fit(ratings)


def in_database(table: pl.DataFrame, path: Path) -> str:
    with closing(sqlite3.connect(path)) as database:
        table.to_pandas().to_sql("products", database, index=False)
    return f"{path}::products"


@pytest.mark.parametrize("source", ["frame", "file", "database"])
def test_lists_follow_the_catalogue_of_any_source(shop, source, tmp_path):
    table = CATALOGUE
    if source == "file":
        table = tmp_path / "items.csv"
        CATALOGUE.write_csv(table)
    elif source == "database":
        table = in_database(CATALOGUE, tmp_path / "shop.db")
    renewed = shop.with_item_table(table)
    lists = renewed.recommend(n=30)
    assert 99 in lists["item"]
    assert 3 not in lists["item"]
    assert 3 in shop.recommend(n=30)["item"]
    assert renewed.recommend(5, n=30)["item"].equals(lists.filter(user=5)["item"])
    assert 3 not in renewed.similar_items(4, n=30)["similar"]
    assert len(renewed.similar_items(3, n=30)) == 20
    history = renewed.recommend(history=[3, 4], n=30)["item"]
    assert 99 in history
    assert 3 not in history
    red = renewed.recommend(5, n=30, where="array_contains(tags, 'red') AND promoted")
    assert set(red["item"]) == {99}


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (
            {"stock": pl.lit("many of them")},
            "'stock' of items has changed from numbers",
        ),
        ({"promoted": pl.lit(5)}, "'promoted' of items has changed from Boolean"),
        ({"brand": pl.lit(5)}, "'brand' of items has changed from texts to numbers"),
        ({"item": pl.lit("x")}, "none of the items"),
    ],
)
def test_a_column_of_another_type_is_an_error(shop, change, reason):
    with pytest.raises(DataError, match=reason):
        shop.with_item_table(CATALOGUE.with_columns(**change))


def test_update_replaces_the_table_of_a_saved_model(shop, tmp_path):
    model = str(tmp_path / "model")
    shop.save(model)
    table = in_database(CATALOGUE, tmp_path / "shop.db")

    def run(*words: str) -> str:
        result = CliRunner().invoke(cli, [*words])
        assert result.exit_code == 0, result.stderr
        return result.output

    arguments = ("update", model, "--item-table", table)
    assert "would be updated with other tables" in run(*arguments, "--dry-run")
    run(*arguments, "--force")
    loaded = Recommender.load(model)
    expected = shop.with_item_table(table).recommend(n=30)
    assert loaded.recommend(n=30).equals(expected)
    # The fast way of the command, an update with events, and a new fit know it, too.
    assert "Product 3" not in run("recommend", model, "--user", "5", "-n", "30")
    new = tmp_path / "new.csv"
    new.write_text("user,item\n5,3\n6,99\n")
    for more in ((str(new),), ("--refit",)):
        run("update", model, *more, "--force")
        items = Recommender.load(model).recommend(n=30)["item"]
        assert 99 in items
        assert 3 not in items
    result = CliRunner().invoke(cli, ["update", model, "--force"])
    assert "Give RATINGS" in result.stderr


def test_another_table_keeps_what_an_update_saves_meanwhile(
    shop, tmp_path, monkeypatch
):
    model = str(tmp_path / "model")
    shop.save(model)
    table = tmp_path / "items.csv"
    CATALOGUE.write_csv(table)

    @contextmanager
    def wait_for_an_update(target: str) -> Iterator[None]:
        new = pl.DataFrame({"user": [777], "item": [5]})
        Recommender.load(model).update(new).save(model, overwrite=True)
        yield

    monkeypatch.setattr("recsys.cli.fit.alone", wait_for_an_update)
    arguments = ["update", model, "--item-table", str(table), "--force"]
    result = CliRunner().invoke(cli, arguments)
    assert result.exit_code == 0, result.stderr
    assert 777 in Recommender.load(model).ratings.users.values
    assert 99 in Recommender.load(model).recommend(n=30)["item"]
