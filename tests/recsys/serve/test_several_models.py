"""Several models behind one service, each below its own path."""

from __future__ import annotations

import re
import time
from pathlib import Path
from shutil import copytree
from typing import Any

import polars as pl
import pytest

from recsys.errors import DataError
from tests.serving import Application, Command

pytest.importorskip("fastapi")
from recsys.serve import create_app
from recsys.serve.settings import Settings


@pytest.fixture
def service(saved: dict[str, Path], tmp_path: Path) -> Any:
    table = tmp_path / "items.csv"
    pl.DataFrame({"item": [1, 2, 3], "title": ["A", "B", "C"]}).write_csv(table)
    models = {
        "films": Settings(
            str(saved["als"]), item_table=str(table), index=str(saved["index"])
        ),
        "likes": Settings(str(saved["ials"]), events=str(tmp_path / "likes.jsonl")),
    }
    with Application(create_app(models)) as application:
        yield application.ready()


def test_each_model_answers_below_its_name(service):
    films = service.get("/v1/models/films/recommend/105?n=50")
    likes = service.get("/v1/models/likes/recommend/105?n=50&include_seen=true")
    assert films.json["model"].startswith("als@")
    assert {row["item"] for row in films.json["items"]} <= {"1", "2", "3"}
    assert likes.json["model"].startswith("ials@")
    assert len(likes.json["items"]) > 30
    names = service.get("/v1/models").json["models"]
    assert names == {"films": films.json["model"], "likes": likes.json["model"]}
    near = service.get("/v1/models/likes/similar/4?n=2").json
    assert near["model"] == names["likes"]
    history = {"history": [{"item": 3}], "n": 2}
    new = service.post("/v1/models/likes/recommend", history).json
    assert new["model"] == names["likes"]
    event = {"events": [{"user": 105, "item": 4}]}
    assert service.post("/v1/models/likes/events", event).status == 201
    graded = {"events": [{"user": 105, "item": 4, "value": 3}]}
    assert service.post("/v1/models/films/events", graded).status == 404
    assert service.get("/v1/models/films/search?q=doctor").json["documents"]


@pytest.mark.parametrize(
    "target", ["/v1/recommend/105", "/v1/similar/4", "/v1/model", "/v1/items"]
)
def test_a_path_without_a_name_says_where_models_answer(service, target):
    reply = service.get(target)
    assert reply.status == 404
    assert "below /v1/models/NAME/" in reply.json["detail"]
    assert service.get(target.replace("/v1", "/v1/models/games")).status == 404


def test_health_metrics_and_description_are_of_all_models(service):
    service.get("/v1/models/films/recommend/105")
    service.get("/v1/models/likes/recommend/nobody")
    health = service.get("/health/ready").json
    assert health["status"] == "ready"
    assert [*health["models"]] == ["films/model_a", "films/index", "likes/model_a"]
    assert health["tables"]["films/model_a"]["rows"] == 3
    metrics = service.get("/metrics").body.decode()
    for labels in (
        r'model_age_seconds{model="likes",slot="model_a"}',
        r'item_table_age_seconds{model="films",slot="model_a"}',
        r'unknown_users_total{model="likes"} 1.0',
        r'unknown_users_total{model="films"} 0.0',
    ):
        assert f"recsys_{labels}" in metrics
    counts = re.findall(
        r'count{model="(\w+)",route="/v1/recommend/{user}",status="(\d+)"}', metrics
    )
    assert sorted(counts) == [("films", "200"), ("likes", "404")]
    paths = service.get("/openapi.json").json["paths"]
    (user, *_) = paths["/v1/models/{name}/recommend/{user}"]["get"]["parameters"]
    assert user["schema"]["enum"] == ["films", "likes"]
    assert "/v1/recommend/{user}" not in paths


def test_unknown_name_is_reported_with_the_known_ones(service):
    history = {"history": [{"item": 3}]}
    for reply in (
        service.get("/v1/models/book%20s/recommend/105?n=1"),
        service.post("/v1/models/book%20s/recommend", history),
    ):
        assert reply.status == 404
        expected = "There is no model 'book s'; there are films, likes."
        assert reply.json["detail"] == expected


def test_a_model_that_cannot_be_loaded_does_not_stop_the_others(saved, tmp_path):
    damaged = tmp_path / "damaged"
    copytree(saved["als"], damaged)
    (damaged / "users" / "0.npy").write_bytes(b"nothing")
    models = {"films": str(saved["als"]), "likes": str(damaged)}
    with Application(create_app(models, load_first=True)) as service:
        assert service.get("/v1/models/films/recommend/105").status == 200
        names = service.get("/v1/models").json["models"]
        assert names["films"].startswith("als@")
        assert names["likes"] is None
        state = service.get("/health/ready")
        assert state.status == 503
        assert "damaged" in state.json["rejected"]["likes/model_a"]
        # The state of one model tells whether its requests are answered.
        alone = service.get("/v1/models/films/health/ready")
        assert (alone.status, alone.json["status"]) == (200, "ready")
        assert service.get("/v1/models/likes/health/ready").status == 503


def test_names_and_keys_are_checked(saved, tmp_path):
    with pytest.raises(DataError, match=r"name of a model .* got 'a/b'"):
        create_app({"a/b": str(saved["als"])})
    app = create_app({"films": str(saved["als"])}, api_key="sesame")
    with Application(app) as service:
        service.ready()
        for target in ("/v1/models", "/v1/models/films/recommend/105", "/v1/model"):
            assert service.get(target).status == 401
        key = {"x-api-key": "sesame"}
        assert service.get("/v1/models/films/users/105", key).status == 200


def test_the_command_serves_several_models_and_a_table_that_changes(saved, tmp_path):
    table = tmp_path / "items.csv"
    items = pl.DataFrame({"item": [1, 2, 3], "stock": [1, 1, 0]})
    items.write_csv(table)
    with Command(
        *("--model", f"films={saved['als']}", "--model", f"likes={saved['ials']}"),
        *("--item-table", f"films={table}", "--refresh", "1s"),
        *("--condition", "available=stock > 0"),
    ) as service:

        def listed(name: str, options: str = "") -> set[str]:
            target = f"/v1/models/{name}/recommend/105?n=50{options}"
            return {row["item"] for row in service.get(target).json["items"]}

        assert listed("films") <= {"1", "2", "3"}
        assert listed("films", "&condition=available") == listed("films") - {"3"}
        assert len(listed("likes")) > 9
        # A condition that only one of the models can use.
        target = "/v1/models/likes/recommend/105?condition=available"
        assert service.get(target).status == 400
        unusable = service.get("/health/ready").json["unusable_conditions"]
        assert unusable == {"likes/model_a": ["available"]}
        items.filter(pl.col("item") > 1).write_csv(table)
        deadline = time.monotonic() + 20
        while "1" in listed("films"):
            assert time.monotonic() < deadline
            time.sleep(0.1)
