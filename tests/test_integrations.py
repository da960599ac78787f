"""The code of docs/howto/integrations.md runs, with each library where it is installed."""

from __future__ import annotations

import json
import re
import runpy
import shlex
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from recsys import Recommender, read_ratings, sample_path
from recsys.cli.main import cli

PAGE = Path(__file__).resolve().parents[1] / "docs" / "howto" / "integrations.md"
BLOCK = re.compile(r"```(\w+)\n# (\w+): (\S+)\n(.*?)```", re.DOTALL)
BLOCKS = {
    name: (language, text)
    for language, _, name, text in BLOCK.findall(PAGE.read_text())
}


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two saved models, and a link to the first."""
    folder = tmp_path_factory.mktemp("models")
    ratings = read_ratings(sample_path())
    Recommender("bias").fit(ratings).save(folder / "one")
    Recommender("als", factors=4, iterations=2).fit(ratings).save(folder / "two")
    (folder / "latest").symlink_to("one")
    return folder


def program(name: str, folder: Path) -> dict[str, Any]:
    """Run a block of Python as a file of its own; return its names."""
    language, text = BLOCKS[name]
    assert language == "python"
    path = folder / name
    path.write_text(text)
    return runpy.run_path(str(path))


def test_every_block_is_tried_here():
    assert set(BLOCKS) == {
        *("app.py", "register.py", "nightly.py", "tables.py", "gauges.py"),
        *("prometheus.yml", "rules.yml"),
    }


def test_fastapi_by_hand(models, tmp_path, monkeypatch):
    pytest.importorskip("fastapi")
    testclient = pytest.importorskip("starlette.testclient", exc_type=ImportError)
    monkeypatch.setenv("MODEL", str(models / "latest"))
    client = testclient.TestClient(program("app.py", tmp_path)["app"])
    first = client.get("/recommend/1089", params={"n": 2}).json()
    assert first["model"] == Recommender.load(models / "one").provenance.version
    assert len(first["items"]) == 2
    answer = client.get("/recommend/none")
    assert (answer.status_code, answer.json()["error"][:12]) == (404, "Unknown user")
    assert (
        client.get("/recommend/1089", params={"where": "price < 3"}).status_code == 400
    )
    (models / "latest").unlink()
    (models / "latest").symlink_to("two")
    assert client.get("/recommend/1089").json()["model"].startswith("als@")


@pytest.mark.filterwarnings("ignore")  # of MLflow's own
def test_mlflow(models, tmp_path, monkeypatch):
    mlflow = pytest.importorskip("mlflow")
    pandas = pytest.importorskip("pandas")
    monkeypatch.chdir(tmp_path)
    mlflow.set_tracking_uri(f"sqlite:///{tmp_path}/runs.db")
    names = program("register.py", tmp_path)
    module = ModuleType("register")
    vars(module).update(names)
    monkeypatch.setitem(sys.modules, "register", module)
    address = names["log"](str(models / "two"), {"ndcg@10": 0.25})
    served = mlflow.pyfunc.load_model(address)
    found = served.predict(pandas.DataFrame({"user": [1089, 4_000_000]}))
    assert len(found) == 20
    assert found["user"].nunique() == 2


def test_airflow_tasks_are_command_lines(tmp_path):
    text = BLOCKS["nightly.py"][1]
    names: dict[str, Any] = {}
    exec(text[text.index("RATINGS = ") : text.index("with DAG")], names)
    for line in names["STEPS"].values():
        _, *words = shlex.split(line.replace("{{ ds }}", "2025-06-09"))
        result = CliRunner().invoke(cli, words)
        assert result.exit_code == 1, (
            result.output
        )  # there is no such database, or model
        assert "Usage" not in result.output


def test_airflow(tmp_path):
    pytest.importorskip("airflow.sdk")
    dag = program("nightly.py", tmp_path)["dag"]
    assert [task.task_id for task in dag.topological_sort()][-1] == "promote"


def test_tables(tmp_path):
    pytest.importorskip("adbc_driver_sqlite")
    database = f"{tmp_path}/shop.db"
    write = program("tables.py", tmp_path)["job"]
    write(str(sample_path() / "ratings.csv"), f"{database}::recommendations")
    found = read_ratings(f"{database}::recommendations")
    assert found.n_users == 2000


def test_prometheus_reads_what_the_service_counts():
    pytest.importorskip("prometheus_client")
    from recsys.serve.metrics import Counters

    for name in ("prometheus.yml", "rules.yml"):
        assert yaml.safe_load(BLOCKS[name][1])
    rules = yaml.safe_load(BLOCKS["rules.yml"][1])["groups"][0]["rules"]
    counters = Counters({})
    counters.reloads.labels("model").inc()
    counters.rejected.labels("model").inc()
    counters.observe("/v1/recommend/{user}", 200, 0.001)
    counters._age.labels("model").set(1)
    page = counters.page().decode()
    counted = set(re.findall(r"^(\w+)[{ ]", page, re.MULTILINE))
    used = {name for rule in rules for name in re.findall(r"recsys_\w+", rule["expr"])}
    assert used <= counted


def test_gauges_of_a_monitored_model(models, tmp_path):
    new = tmp_path / "new.csv"
    new.write_text("user,item,rating\n1,10,4.5\n99999,10,3\n")
    result = CliRunner().invoke(
        cli, ["monitor", str(models / "one"), str(new), "--json"]
    )
    (tmp_path / "day.json").write_text(result.stdout)
    assert json.loads(result.stdout)["values"]["unknown_users"]["value"] == 0.5
    write = program("gauges.py", tmp_path)["write_gauges"]
    write(str(tmp_path / "day.json"), str(tmp_path / "recsys.prom"))
    lines = (tmp_path / "recsys.prom").read_text().splitlines()
    assert 'recsys_monitor{name="unknown_users"} 0.5' in lines
