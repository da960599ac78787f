"""The day of a shop: from tables to lists, a live catalogue, visitors, and a killed job."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import chromium
import polars as pl
import pytest
from click.testing import CliRunner
from processes import running
from serving import Command
from shop import WEIGHTS, generated

import recsys
from recsys import write_table
from recsys.cli.main import cli

TABLES = """
CREATE TABLE products (sku text PRIMARY KEY, title text, description text, category text,
    price float8, stock bigint);
CREATE TABLE events (customer_id text, sku text, event text, time timestamptz);
CREATE TABLE offers (customer_id text, position integer, sku text, version text, made date,
    PRIMARY KEY (customer_id, position));
"""


def run(*words: object) -> str:
    """Run a command, and return what it says on standard error."""
    result = CliRunner().invoke(cli, [str(word) for word in words])
    assert result.exit_code == 0, result.output
    return result.stderr


def eventually(condition: Callable[[], Any]) -> None:
    deadline = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.1)


def check_page(address: str, customer: str, products: pl.DataFrame) -> None:
    """Look at the list of a customer in a real browser, if there is one."""
    if chromium.why_no_chromium():
        return
    with chromium.browser() as browser:
        page = browser.new_page()
        page.goto(address)
        page.get_by_text("A user of the data").click()
        page.get_by_label("User", exact=True).fill(customer)
        page.get_by_role("button", name="Show", exact=True).click()
        page.get_by_role("heading", name=f"History of user {customer}").wait_for()
        page.locator(".ranked .title").first.wait_for()
        titles = page.locator(".list").first.locator(".title").all_inner_texts()
        assert titles
        assert {*titles} <= {*products["title"]}
        assert "interactions" in page.locator("#history-note").inner_text()


@pytest.fixture
def database(postgres: str) -> Any:
    """Return a function that executes statements, on a database with the tables of the shop."""
    pytest.importorskip("adbc_driver_postgresql")
    from adbc_driver_postgresql import dbapi

    with closing(dbapi.connect(postgres, autocommit=True)) as connection:

        def execute(sql: str) -> list[tuple[Any, ...]]:
            rows: list[tuple[Any, ...]] = []
            with connection.cursor() as cursor:
                for statement in filter(str.strip, sql.split(";")):
                    cursor.execute(statement)
                    rows = cursor.fetchall() if cursor.description else []
            return rows

        try:
            execute(TABLES)
            yield execute
        finally:
            execute("DROP TABLE IF EXISTS products, events, offers")


def test_the_day_of_a_shop(tmp_path, monkeypatch, postgres, database):
    pytest.importorskip("fastapi")
    monkeypatch.chdir(tmp_path)
    shop = generated()
    write_table(f"{postgres}::products", shop.products, if_exists="append")
    write_table(f"{postgres}::events", shop.events, if_exists="append")
    Path("models").mkdir()

    # In the night: a model, and the lists of all customers.
    products = f"{postgres}::products"
    fit = [
        "fit",
        f"{postgres}::events",
        "--event-weight",
        WEIGHTS,
        "--half-life",
        "30d",
    ]
    fit += ["--item-table", products, "--features", "category", "--model", "ials"]
    fit += ["--factors", "8", "--out", "models/first"]
    assert "120 users x 96 items" in run(*fit)
    run("versions", "promote", "models/first")
    lists = ["recommend", "models/latest", "--all", "-n", "5", "--where", "stock > 0"]
    lists += ["--output", f"{postgres}::offers", "--if-exists", "replace", "--columns"]
    lists += ["user=customer_id,rank=position,item=sku,version,date=made"]
    assert "Wrote 600 rows" in run(*lists)
    own = (
        "SELECT count(*) FROM offers JOIN products USING (sku) WHERE category = "
        "(ARRAY['tea', 'pots', 'lamps', 'books'])[1 + substr(customer_id, 2)::int % 4]"
    )
    assert database(own)[0][0] > 300  # by chance 150

    # A job that is killed leaves the lists and the model.
    contents = "SELECT customer_id, position, sku FROM offers ORDER BY 1, 2"
    before = database(contents)
    environment = {**os.environ, "PYTHONPATH": str(Path(recsys.__file__).parents[1])}
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    with running(
        *(sys.executable, "-m", "recsys", *fit, "--force"), env=environment, **quiet
    ) as job:
        eventually(
            lambda: any(Path("models").glob(".first.*")) or job.poll() is not None
        )
        job.send_signal(signal.SIGKILL)
    assert database(contents) == before
    run(*lists)
    assert database(contents) == before

    # In the day: stock and prices change while the model stays.
    settings = ["--item-table", products, "--refresh", "1s", "--events", "events.jsonl"]
    settings += ["--condition", "available=stock > 0"]
    with Command("models/latest", *settings, env=environment) as service:

        def offered(query: str) -> list[str]:
            answer = service.get(f"/v1/recommend{query}condition=available&n=5")
            assert answer.status == 200, answer.body
            return [row["item"] for row in answer.json["items"]]

        best = offered("/c1?")[0]
        database(f"UPDATE products SET stock = 0 WHERE sku = '{best}'")
        eventually(lambda: best not in offered("/c1?"))
        other = offered("/c1?")[0]
        database(f"UPDATE products SET price = 1.5 WHERE sku = '{other}'")
        eventually(
            lambda: service.get(f"/v1/items/{other}").json["features"]["price"] == 1.5
        )

        check_page(f"http://127.0.0.1:{service.port}/", "c1", shop.products)

        # A visitor looks at pots, and becomes a customer with the next update.
        pots = shop.products.filter(category="pots")["sku"].to_list()
        now = time.time()
        looks = [
            {"user": "visitor-1", "item": sku, "event": "view", "timestamp": now - n}
            for n, sku in enumerate(pots[:3])
        ]
        assert service.post("/v1/events", {"events": looks}).status == 201
        by_visit = offered("?visitor=visitor-1&")
        assert sum(sku in pots for sku in by_visit) >= 3
        assert not {*by_visit} & {*pots[:3]}
        assert service.get("/v1/recommend/visitor-1").status == 404
        said = run("update", "models/latest", "events.jsonl", "--out", "models/second")
        assert "3 new events" in said
        run("versions", "promote", "models/second")
        eventually(lambda: service.get("/v1/recommend/visitor-1").status == 200)
        assert sum(sku in pots for sku in offered("/visitor-1?")) >= 3

        # A customer is forgotten, in all versions and in the log.
        forget = ("--forget-user", "visitor-1", "--force")
        said = run("update", "models/second", *forget, "--log", "events.jsonl")
        assert "removed 3 lines from events.jsonl" in said
        eventually(lambda: service.get("/v1/recommend/visitor-1").status == 404)
        code, messages = service.stop()
    assert code == 0, messages
    assert "visitor-1" not in Path("events.jsonl").read_text()
    run("update", "models/second", "--item-table", products, "--force")
    run(*lists)
    written = pl.DataFrame(
        database("SELECT customer_id, sku, version FROM offers"),
        ["customer_id", "sku", "version"],
        orient="row",
    )
    assert "visitor-1" not in written["customer_id"]
    assert best not in written["sku"]
    assert written["version"].n_unique() == 1
