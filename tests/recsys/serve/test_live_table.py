"""A table of items that changes while the model stays: titles, stock, new and removed products."""

from __future__ import annotations

import re
import sqlite3
import sys
import threading
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from shutil import copytree
from typing import Any

import polars as pl
import pytest
from click.testing import CliRunner

from recsys import Recommender
from recsys.catalogues import read_catalogue
from recsys.cli.main import cli
from recsys.data.features import Features
from recsys.errors import DataError
from tests.serving import Application

pytest.importorskip("fastapi")
from recsys.serve import create_app, live_table, trial
from recsys.serve.settings import Settings

ITEMS = pl.DataFrame(
    {
        "item": range(1, 42),
        "title": [f"The Film {n}" for n in range(1, 42)],
        "genre": [("Drama", "Comedy", "Horror")[n % 3] for n in range(41)],
        "year": [1980 + n for n in range(41)],
        "stock": [n % 4 for n in range(1, 42)],
    }
)


def with_year_of_third(table: pl.DataFrame, year: str) -> pl.DataFrame:
    """Return a table with another year of item 3."""
    years = pl.when(item=3).then(pl.lit(year)).otherwise(pl.col("year"))
    return table.with_columns(year=years)


class Shop:
    """A service with a table of items, which is read again when the test says so."""

    def __init__(self, model: Path, table: Path, **settings: Any) -> None:
        self.path = table
        self.write(ITEMS)
        conditions = {"available": "stock > 0"}
        app = create_app(
            str(model),
            item_table=str(table),
            refresh=0.001,
            conditions=conditions,
            check_seconds=3600,
            **settings,
        )
        self.service = app.state.service
        self.application = Application(app)
        self.get = self.application.get
        self.post = self.application.post

    def write(self, table: pl.DataFrame) -> None:
        # The service, which looks all the time, must not read half of a table.
        part = self.path.with_suffix(".part")
        table.write_csv(part)
        part.replace(self.path)

    def change(self, table: pl.DataFrame) -> None:
        """Write the table, and let the service read it."""
        self.write(table)
        self.refresh()

    def refresh(self) -> None:
        time.sleep(0.002)
        self.service.check()

    def items(self, target: str, n: int = 50) -> list[str]:
        mark = "&" if "?" in target else "?"
        answer = self.get(f"{target}{mark}n={n}").json
        return [row["item"] for row in answer["items"]]

    def state(self) -> dict[str, Any]:
        state: dict[str, Any] = self.get("/health/ready").json["tables"]["model_a"]
        return state


@pytest.fixture
def shop(saved: dict[str, Path], tmp_path: Path) -> Any:
    shop = Shop(saved["als"], tmp_path / "items.csv")
    with shop.application:
        shop.application.ready()
        yield shop


def test_stock_prices_and_titles_come_from_the_table(shop):
    assert shop.state()["rows"] == 41
    in_stock = shop.items("/v1/recommend/105?condition=available")
    assert in_stock
    assert all(int(item) % 4 for item in in_stock)
    by_where = shop.items("/v1/recommend/105?where=stock>0")
    assert by_where == in_stock
    body = {"users": [105], "condition": ["available"], "n": 50}
    (listed,) = shop.post("/v1/recommend", body).json["results"]
    assert [row["item"] for row in listed["items"]] == in_stock
    sold = in_stock[0]
    is_sold = pl.col("item").cast(pl.String) == sold
    stock = pl.when(is_sold).then(0).otherwise("stock").alias("stock")
    title = pl.when(is_sold).then(pl.lit("Sold out")).otherwise("title").alias("title")
    shop.change(ITEMS.with_columns(stock, title))
    assert shop.items("/v1/recommend/105?condition=available") == in_stock[1:]
    assert shop.items("/v1/recommend/105?where=stock>0") == in_stock[1:]
    assert shop.items("/v1/items?q=sold out") == [sold]
    assert shop.get(f"/v1/items/{sold}").json["features"]["stock"] == 0


def place(shop: Shop, item: str, options: str = "") -> dict[str, Any]:
    answer: dict[str, Any] = shop.get(f"/v1/explain/105/{item}{options}").json
    placement: dict[str, Any] = answer["placement"]
    return placement


def test_an_explanation_says_why_an_item_is_not_listed(shop):
    listed = shop.items("/v1/recommend/105")
    first = place(shop, listed[0])
    assert (first["rank"], first["reasons"], first["lacks"]) == (1, [], [])
    late = place(shop, listed[14])
    assert (late["rank"], late["n_ranked"]) == (15, len(listed))
    assert late["lacks"]
    for row in late["lacks"]:
        assert row["of_first"] > row["contribution"]
    seen = {str(item) for item in range(1, 42)} - {*listed}
    bought = min(seen)
    assert place(shop, bought)["reasons"] == ["seen"]
    assert place(shop, bought, "?include_seen=true")["reasons"] == []
    sold = next(item for item in listed if int(item) % 4 == 0)
    reasons = place(shop, sold, "?condition=available&where=year>3000")["reasons"]
    assert reasons == ["condition: available", "where"]
    assert place(shop, sold, f"?exclude={sold}")["reasons"] == ["exclude"]
    other = next(item for item in listed if item != sold)
    assert place(shop, sold, f"?items={other}")["reasons"] == ["items"]
    # What the shop no longer has is not offered.
    shop.change(ITEMS.filter(pl.col("item").cast(pl.String) != listed[0]))
    assert place(shop, listed[0])["reasons"] == ["not offered"]
    assert shop.get("/v1/explain/105/12345").status == 404


def test_similar_items_and_histories_meet_conditions(shop):
    for kind in ("condition=available", "where=stock>0"):
        items = shop.items(f"/v1/similar/3?{kind}")
        assert items
        assert all(int(item) % 4 for item in items)
    body = {"history": [{"item": 3}], "n": 50, "condition": ["available"]}
    by_name = shop.post("/v1/recommend", body).json
    by_where = shop.post(
        "/v1/recommend",
        {"history": [{"item": 3}], "n": 50, "where": "stock > 0"},
    ).json
    assert by_name["items"] == by_where["items"]
    assert all(int(row["item"]) % 4 for row in by_name["items"])
    reply = shop.get("/v1/recommend/105?condition=cheap")
    assert reply.status == 400
    assert "There is no condition 'cheap' (--condition); there are available." in str(
        reply.json
    )


def test_new_products_are_recommended_and_removed_ones_are_not(shop):
    before = shop.items("/v1/recommend/105")
    new = pl.DataFrame(
        {"item": 99, "title": "Fresh", "genre": "Drama", "year": 2020, "stock": 5}
    )
    removed = before[0]
    remaining = ITEMS.filter(pl.col("item").cast(pl.String) != removed)
    shop.change(pl.concat([remaining, new]))
    after = shop.items("/v1/recommend/105")
    assert "99" in after
    assert removed not in after
    assert sorted(after) == sorted({*before, "99"} - {removed})
    for target in (
        "/v1/similar/3",
        "/v1/items?q=film",
        "/v1/recommend/7?unknown=popular",
    ):
        assert removed not in shop.items(target)
    # A removed product still says what a user likes.
    history = {"history": [{"item": removed}], "n": 3}
    assert shop.post("/v1/recommend", history).status == 200
    assert shop.get(f"/v1/similar/{removed}").json["items"]
    shop.change(ITEMS)
    assert shop.items("/v1/recommend/105") == before
    assert shop.get("/v1/similar/99").status == 404


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (
            lambda table: table.drop("stock"),
            'available: .*unable to find column "stock"',
        ),
        (
            lambda table: table.with_columns(stock=pl.lit("many of them")),
            "available: .*cannot compare string with numeric type",
        ),
        (lambda table: table.drop("title"), "The column 'title' of items is missing"),
        (lambda table: table.drop("genre"), "The column 'genre' of items is missing"),
        (
            lambda table: table.with_columns(year=pl.lit("long ago")),
            "The column 'year' of items has changed from numbers to texts",
        ),
        (
            lambda table: with_year_of_third(table, "soon"),
            "year' of items has changed from numbers to texts: 'soon' of item 3",
        ),
        (lambda table: table.clear(), "has no rows with an id"),
        (lambda table: table.with_columns(item=pl.lit("x-1")), "has none of the items"),
    ],
)
def test_a_table_that_cannot_be_used_leaves_the_one_before(
    damage: Callable[[pl.DataFrame], pl.DataFrame], reason: str, shop, caplog
):
    before = shop.items("/v1/recommend/105?condition=available")
    shop.change(damage(ITEMS))
    shop.refresh()
    assert shop.items("/v1/recommend/105?condition=available") == before
    assert re.search(reason, shop.state()["rejected"])
    assert "/" not in shop.state()["rejected"]
    logged = [record for record in caplog.records if re.search(reason, record.message)]
    assert len(logged) == 1
    metrics = shop.get("/metrics").body.decode()
    assert 'recsys_item_table_failures_total{slot="model_a"} 1.0' in metrics
    assert 'recsys_item_table_age_seconds{slot="model_a"}' in metrics
    shop.change(ITEMS)
    assert shop.state()["rejected"] is None


@pytest.mark.parametrize(
    "change",
    [
        lambda table: table.drop("colour"),
        lambda table: table.with_columns(colour=pl.lit(3)),
        lambda table: table.rename({"colour": "color"}),
    ],
)
def test_a_column_that_nothing_uses_may_change(
    change: Callable[[pl.DataFrame], pl.DataFrame], shop
):
    coloured = ITEMS.with_columns(colour=pl.lit("red"))
    shop.change(coloured)
    shop.change(change(coloured.with_columns(stock=pl.lit(0))))
    assert shop.state()["rejected"] is None
    assert shop.items("/v1/recommend/105?condition=available") == []


@pytest.mark.parametrize("infinite", ["inf", "-Infinity"])
def test_an_infinite_value_is_left_out_and_counted(infinite, shop):
    shop.change(with_year_of_third(ITEMS, infinite))
    state = shop.state()
    assert state["rejected"] is None
    assert state["remarks"] == ["1 infinite value of year left out"]
    assert shop.items("/v1/recommend/105?condition=available")
    shop.change(ITEMS)
    assert shop.state()["remarks"] == []


def test_a_column_without_values_has_the_type_that_it_had(shop):
    shop.change(ITEMS.with_columns(stock=pl.lit(None, pl.Int64)))
    assert shop.state()["rejected"] is None
    assert shop.items("/v1/recommend/105?condition=available") == []
    shop.change(ITEMS)
    assert shop.items("/v1/recommend/105?condition=available")


def test_a_condition_that_cannot_be_used_ends_the_start(saved, tmp_path):
    path = tmp_path / "items.csv"
    ITEMS.drop("stock").write_csv(path)
    model = str(saved["als"])
    for words in (
        [model],
        [model, "--item-table", str(path)],
        [model, "--model-b", str(saved["ials"]), "--item-table", str(path)],
        ["--model", f"films={model}", "--item-table", f"films={path}"],
    ):
        command = ["serve", *words, "--condition", "available=stock > 0", "--port", "0"]
        result = CliRunner().invoke(cli, command)
        assert result.exit_code == 1
        assert "Error: condition available: 'stock > 0' cannot be used" in result.stderr
        assert 'unable to find column "stock"; the columns are item' in result.stderr


@pytest.mark.parametrize("fault", ["table", "model"])
def test_what_cannot_be_read_now_does_not_end_the_start(fault, saved, tmp_path):
    model = tmp_path / "model"
    copytree(saved["als"], model)
    table = tmp_path / "items.csv"
    if fault == "model":
        ITEMS.write_csv(table)
        (model / "users" / "0.npy").write_bytes(b"nothing")
    settings = Settings(
        str(model), item_table=str(table), conditions={"available": "stock > 0"}
    )
    assert live_table.unusable_conditions(settings) == {}
    ITEMS.drop("stock").write_csv(table)
    reasons = live_table.unusable_conditions(settings)
    assert list(reasons) == (["available"] if fault == "table" else [])


def test_a_new_model_without_a_column_of_a_condition_is_not_served(saved, tmp_path):
    model = tmp_path / "model"
    copytree(saved["als"], model)
    conditions = {"old": "year < 2000"}
    app = create_app(str(model), conditions=conditions, check_seconds=3600)
    with Application(app) as service:
        before = service.ready().get("/v1/recommend/105?condition=old").json
        ratings = Recommender.load(model).ratings
        table = ITEMS.drop("year")
        without_year = replace(ratings, item_table=Features.of(table, "item"))
        Recommender("popular").fit(without_year).save(model, overwrite=True)
        app.state.service.check()
        state = service.get("/health/ready").json
        assert "condition old: 'year < 2000'" in state["rejected"]["model_a"]
        assert service.get("/v1/recommend/105?condition=old").json == before


def n_failures(service: Application) -> float:
    """Return how often the service could not read its table."""
    metrics = service.get("/metrics").body.decode()
    _, _, values = metrics.partition('table_failures_total{slot="model_a"} ')
    return float(values.split()[0])


def test_a_missing_table_is_tried_again_with_longer_pauses(saved, tmp_path, caplog):
    with closing(sqlite3.connect(tmp_path / "shop.db")) as database:
        ITEMS.to_pandas().to_sql("products", database, index=False)
    app = create_app(
        str(saved["als"]),
        item_table=f"{tmp_path}/shop.db::stock",
        refresh=0.02,
        conditions={"available": "stock > 0"},
        check_seconds=0.005,
    )
    with Application(app) as service:
        service.ready()
        began = time.monotonic()
        assert service.get("/v1/recommend/105").status == 200
        reply = service.get("/v1/recommend/105?condition=available")
        assert (reply.status, "stock" in reply.json["detail"]) == (400, True)
        state = service.get("/health/ready").json
        assert state["unusable_conditions"] == {"model_a": ["available"]}
        deadline = time.monotonic() + 100
        while n_failures(service) < 2:
            assert time.monotonic() < deadline
            service.sleep(0.02)
        service.sleep(0.2)
        # With equal pauses, there would be nearly one for each pause.
        n_pauses = (time.monotonic() - began) / 0.02
        assert n_failures(service) < 0.6 * n_pauses
        with closing(sqlite3.connect(tmp_path / "shop.db")) as database:
            database.execute("ALTER TABLE products RENAME TO stock")
        deadline = time.monotonic() + 100
        while service.get("/v1/recommend/105?condition=available").status != 200:
            assert time.monotonic() < deadline
            service.sleep(0.02)
        assert "unusable_conditions" not in service.get("/health/ready").json


def test_ages_do_not_depend_on_the_clock_of_the_day(shop, monkeypatch):
    shop.change(ITEMS.with_columns(stock=1))
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now - 86_400)
    assert 0 <= shop.state()["age"] < 60
    metrics = shop.get("/metrics").body.decode()
    age = re.search(r"item_table_age_seconds{.*} (\S+)", metrics)[1]
    assert 0 <= float(age) < 60


def test_a_table_that_is_read_slowly_delays_nothing(shop, monkeypatch):
    answered = threading.Event()

    def read_slowly(*arguments: Any) -> tuple[Features, str]:
        assert answered.wait(60)
        return read_catalogue(*arguments)

    monkeypatch.setattr(live_table, "_PATIENCE", 0.01)
    monkeypatch.setattr(live_table, "read_catalogue", read_slowly)
    before = shop.items("/v1/recommend/105?condition=available")
    shop.change(ITEMS.with_columns(stock=0))
    assert "has not been read within 0.01 seconds" in shop.state()["rejected"]
    shop.change(ITEMS.with_columns(stock=1))
    assert "is still being read" in shop.state()["rejected"]
    assert shop.items("/v1/recommend/105?condition=available") == before
    # The same state of the file is read again as soon as it can be.
    answered.set()
    monkeypatch.setattr(live_table, "_PATIENCE", 60.0)
    deadline = time.monotonic() + 60
    while shop.state()["rejected"] is not None:
        assert time.monotonic() < deadline
        shop.refresh()
    assert len(shop.items("/v1/recommend/105?condition=available")) > len(before)


def test_a_new_model_has_the_table_at_once(saved, tmp_path):
    model = tmp_path / "model"
    Recommender.load(saved["als"]).save(model)
    shop = Shop(model, tmp_path / "items.csv")
    with shop.application:
        shop.application.ready()
        removed = shop.items("/v1/recommend/105")[0]
        shop.change(ITEMS.filter(pl.col("item").cast(pl.String) != removed))
        Recommender.load(saved["als"]).save(model, overwrite=True, tag="again")
        name = shop.get("/health/ready").json["models"]["model_a"]
        shop.service.check()
        assert shop.get("/health/ready").json["models"]["model_a"] != name
        assert removed not in shop.items("/v1/recommend/105")


def test_lists_are_full_and_say_why_an_item_is_there(shop):
    options = "at_most=1&per=genre&fill=popular&slots=2:available&n=10"
    for target in ("/v1/recommend/105", "/v1/similar/3"):
        rows = shop.get(f"{target}?{options}").json["items"]
        sources = [row["source"] for row in rows]
        assert sources == ["model"] * 3 + ["fill"] * 5 + ["slot"] * 2
        assert all(int(row["item"]) % 4 for row in rows[-2:])
    body = {"users": [105], "n": 4, "slots": ["1:stock = 3"]}
    (listed,) = shop.post("/v1/recommend", body).json["results"]
    assert listed["items"][3]["source"] == "slot"
    assert int(listed["items"][3]["item"]) % 4 == 3
    python = Recommender.load(shop.service.settings.model).with_item_table(shop.path)
    expected = python.recommend(105, n=4, slots="1:stock = 3")["item"]
    assert [int(row["item"]) for row in listed["items"]] == expected.to_list()
    proxied = {"x-forwarded-for": "203.0.113.7"}
    reply = shop.get("/v1/recommend/105?slots=2:year>0", proxied)
    assert (reply.status, "--condition" in reply.json["detail"]) == (403, True)
    assert shop.get(f"/v1/recommend/105?{options}", proxied).status == 200


def test_items_that_are_bought_together_meet_conditions(saved, tmp_path):
    others = [item for item in range(1, 41) if item != 7]
    values = {"both": 3, "lift": 2.0, "low": 1.5, "high": 2.5}
    pairs = pl.DataFrame({"item": 7, "other": others, "rank": range(1, 40)})
    pairs.with_columns(**{name: pl.lit(values[name]) for name in values}).write_parquet(
        tmp_path / "pairs.parquet"
    )
    shop = Shop(
        saved["als"], tmp_path / "items.csv", together=f"{tmp_path}/pairs.parquet"
    )
    with shop.application:
        shop.application.ready()
        target = "/v1/together/7"
        assert shop.items(target) == [str(item) for item in others]
        for condition in ("condition=available", "where=stock>0"):
            in_stock = shop.items(f"{target}?{condition}&exclude=1,2")
            assert in_stock == [str(n) for n in others if n % 4 and n > 2]
        rows = shop.get(f"{target}?condition=available&n=3").json["items"]
        assert [row["rank"] for row in rows] == [1, 2, 3]
        assert shop.items(f"{target}?items=8,9,10") == ["8", "9", "10"]
        assert shop.items(f"{target}?at_most=1&per=genre") == ["1", "2", "3"]
        assert shop.get(f"{target}?at_most=1").status == 400
        # The pair with item 8, and then popular items that meet the condition.
        pairs.filter(other=8).with_columns(
            **{name: pl.lit(values[name]) for name in values}
        ).write_parquet(tmp_path / "pairs.parquet")
        shop.service.check()
        where = "where=item IN (7, 8, 9, 10)"
        assert shop.items(f"{target}?{where}") == ["8"]
        rows = shop.get(f"{target}?{where}&fill=popular").json["items"]
        assert [row["source"] for row in rows] == ["model", "fill", "fill"]
        assert {row["item"] for row in rows} == {"8", "9", "10"}
        assert [row["rank"] for row in rows] == [1, 2, 3]
        assert rows[1]["title"] == f"The Film {rows[1]['item']}"
        assert "lift" in rows[0]
        assert "lift" not in rows[1]
        pairs.with_columns(
            **{name: pl.lit(values[name]) for name in values}
        ).write_parquet(tmp_path / "pairs.parquet")
        shop.service.check()
        many = "&".join(["condition=available"] * 100)
        assert shop.items(f"{target}?{many}") == shop.items(f"{target}?where=stock>0")
        shop.change(ITEMS.filter(pl.col("item") > 20))
        assert shop.items(target) == [str(item) for item in others if item > 20]


def test_python_and_the_service_have_the_same_lists(shop):
    shop.change(ITEMS.head(30))
    recommender = Recommender.load(shop.service.settings.model)
    renewed = recommender.with_item_table(shop.path)
    expected = renewed.recommend(105, n=50)["item"].cast(pl.String).to_list()
    assert shop.items("/v1/recommend/105") == expected
    assert max(map(int, expected)) <= 30
    similar = renewed.similar_items(3, n=50, where="stock > 0", block=[5])
    expected = similar["similar"].cast(pl.String).to_list()
    assert shop.items("/v1/similar/3?where=stock>0&exclude=5") == expected


def test_an_application_with_a_condition_that_cannot_be_used_is_not_made(saved):
    with pytest.raises(DataError, match='there: "warehouse'):
        create_app(str(saved["als"]), conditions={"there": "warehouse = 'Linz'"})
    settings = Settings(str(saved["als"]), conditions={"old": "year < 1990"})
    create_app({"shop": settings})


def test_stock_is_read_again_while_a_new_model_is_tried(saved, tmp_path, monkeypatch):
    model = tmp_path / "model"
    copytree(saved["als"], model)
    monkeypatch.setattr(trial, "_PAUSE", 0.1)
    shop = Shop(model, tmp_path / "items.csv")
    with shop.application:
        shop.application.ready()
        in_stock = shop.items("/v1/recommend/105?condition=available")
        (model / "model.json").touch()
        is_over = tmp_path / "over"
        slow = tmp_path / "python"
        slow.write_text(
            f"#!/bin/sh\nuntil [ -e {is_over} ]; do sleep 0.1; done\nprintf 'outcome: '\n"
        )
        slow.chmod(0o755)
        monkeypatch.setattr(sys, "executable", str(slow))
        checking = threading.Thread(target=shop.service.check)
        checking.start()
        try:
            shop.write(ITEMS.with_columns(stock=pl.lit(0)))
            deadline = time.monotonic() + 60
            while in_stock and time.monotonic() < deadline:
                time.sleep(0.1)
                in_stock = shop.items("/v1/recommend/105?condition=available")
            assert checking.is_alive()
            assert in_stock == []
        finally:
            is_over.touch()
            checking.join()
        assert shop.items("/v1/recommend/105?condition=available") == []
