"""Items that are bought together, in the service and on its page."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from click.testing import CliRunner
from serving import Application

from recsys import together, write_table
from recsys.cli.main import cli
from recsys.errors import DataError
from recsys.serve import create_app
from recsys.serve.loading import load_pairs

CURRY, RICE = 4, 7


def lines(other: int = RICE) -> pl.DataFrame:
    """Item 4 is bought with another one, and 50 is unknown to the model."""
    orders = [(order, 1 + order % 30) for order in range(90)]
    orders += [(order, item) for order in range(0, 90, 3) for item in (CURRY, other)]
    orders += [(91, 50), (91, CURRY)]
    return pl.DataFrame(orders, schema=["order", "item"], orient="row")


@pytest.fixture
def table(tmp_path: Path) -> Path:
    path = tmp_path / "together.parquet"
    together(lines(), "order").write_parquet(path)
    return path


def until(service: Application, is_true: Callable[[], bool]) -> None:
    for _ in range(200):
        if is_true():
            return
        service.sleep(0.05)
    pytest.fail("Nothing changed.")


def served(saved: dict[str, Path], source: str | Path, **settings: Any) -> Application:
    app = create_app(str(saved["als"]), together=str(source), **settings)
    return Application(app)


def test_lists_equal_the_table(saved, table):
    expected = together(lines(), "order").filter(pl.col("item") == CURRY)
    with served(saved, table) as service:
        service.ready()
        answer = service.get(f"/v1/together/{CURRY}?n=3").json
        assert (answer["item"], answer["title"]) == (str(CURRY), "The Film 4")
        rows = answer["items"]
        assert [int(row["item"]) for row in rows] == expected["other"][:3].to_list()
        assert rows[0]["item"] == str(RICE)
        assert rows[0]["title"] == "The Film 7"
        assert [row["rank"] for row in rows] == [1, 2, 3]
        assert rows[0]["both"] == expected["both"][0]
        for name in ("lift", "low", "high"):
            assert rows[0][name] == pytest.approx(expected[name][0], rel=1e-6)
        assert len(service.get(f"/v1/together/{CURRY}").json["items"]) == 10
        # An item of the table that the model lacks, and one that nobody has bought.
        unknown = service.get("/v1/together/50").json
        assert (unknown["title"], len(unknown["items"])) == (None, 1)
        assert service.get("/v1/together/40").json["items"] == []
        assert "together" in service.get("/v1/model").json["abilities"]


def test_a_table_of_items_tells_what_there_is(saved, table, tmp_path):
    catalogue = tmp_path / "items.csv"
    ids = [number for number in range(1, 42) if number != RICE]
    pl.DataFrame({"item": ids, "stock": ids}).write_csv(catalogue)
    with served(saved, table, item_table=str(catalogue)) as service:
        rows = service.ready().get(f"/v1/together/{CURRY}?n=3").json["items"]
    assert len(rows) == 3
    assert {str(RICE), "50"}.isdisjoint(row["item"] for row in rows)


def test_problems_are_documents(saved, table):
    with served(saved, table) as service:
        service.ready()
        missing = service.get("/v1/together/777")
        assert (missing.status, missing.json["type"]) == (404, "/docs#unknown-id")
        assert service.get("/v1/together/4?n=1001").status == 400
        assert service.get("/v1/together/4?m=1").status == 400
    with Application(create_app(str(saved["als"]))) as service:
        reply = service.ready().get("/v1/together/4")
        assert reply.json["type"] == "/docs#not-available"
        assert "--together TABLE" in reply.json["detail"]
    with served(saved, table, api_key="key", list_key="lists") as service:
        service.ready()
        assert service.get("/v1/together/4").status == 401
        allowed = service.get("/v1/together/4", headers={"x-api-key": "lists"})
        assert allowed.status == 200


@pytest.mark.parametrize("suffix", ["csv", "db"])
def test_reads_what_the_command_writes(saved, tmp_path, suffix):
    lines().write_csv(tmp_path / "orders.csv")
    source = str(tmp_path / f"shop.{suffix}")
    if suffix == "db":
        source += "::together"
    command = ["together", str(tmp_path / "orders.csv"), "--basket-col", "order"]
    assert CliRunner().invoke(cli, [*command, "-o", source]).exit_code == 0
    with served(saved, source) as service:
        rows = service.ready().get(f"/v1/together/{CURRY}").json["items"]
        assert rows[0]["item"] == str(RICE)


def test_a_new_file_is_read(saved, table):
    with served(saved, table, check_seconds=0.05) as service:
        service.ready()
        assert service.get("/v1/together/4").json["items"][0]["item"] == "7"
        new = table.with_suffix(".new")
        together(lines(9), "order").write_parquet(new)
        new.replace(table)
        until(
            service,
            lambda: service.get("/v1/together/4").json["items"][0]["item"] == "9",
        )
        table.write_text("item,other\n4,7\n")
        until(
            service, lambda: "together" in service.get("/health/ready").json["rejected"]
        )
        assert service.get("/v1/together/4").json["items"][0]["item"] == "9"


def test_a_wrong_table_is_an_error(saved, tmp_path):
    path = tmp_path / "pairs.csv"
    path.write_text("item,other\n1,2\n")
    with pytest.raises(DataError, match="no column 'both'"):
        load_pairs(str(path))
    header = "item,other,both,lift,low,high,rank\n"
    path.write_text(header + "1,2,few,1,1,1,1\n")
    with pytest.raises(DataError, match="both must be a number or an id; got 'few'"):
        load_pairs(str(path))
    path.write_text(header + "1,2,3,NaN,1,1,1\n")
    with pytest.raises(DataError, match="lift must be a number"):
        load_pairs(str(path))
    command = ["serve", str(saved["als"]), "--together"]
    result = CliRunner().invoke(cli, [*command, str(tmp_path / "no.csv")])
    assert (result.exit_code, "no.csv" in result.stderr) == (1, True)
    write_table(f"{tmp_path}/x.db::t", pl.DataFrame({"item": ["1"]}))
    result = CliRunner().invoke(cli, [*command, f"{tmp_path}/x.db::t"])
    assert "no column 'other'" in result.stderr
    with pytest.raises(DataError, match="served alone"):
        create_app(str(saved["index"]), together=str(path))
