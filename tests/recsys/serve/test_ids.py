"""Ids above 2^53: text in every answer, exact as numbers in requests, the same in a browser."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
import polars as pl
import pytest
from serving import Application

from recsys import Ratings, Recommender
from recsys.lsi import LSI
from recsys.serve import create_app

USER, ITEM = 1_234_567_890_123_456_780, 1_234_567_890_128_456_780
"""Ids begin here; a double rounds neighbours to one number."""
N_USERS, N_ITEMS = 40, 25


def ratings_of_large_ids() -> Ratings:
    rng = np.random.default_rng(4)
    users = np.repeat(np.arange(N_USERS), 8)
    items = np.concatenate([rng.permutation(N_ITEMS)[:8] for _ in range(N_USERS)])
    values = 1.0 + (users * 3 + items * 5) % 5
    frame = pl.DataFrame({"user": USER + users, "item": ITEM + items, "rating": values})
    table = pl.DataFrame(
        {
            "item": [ITEM + place for place in range(N_ITEMS)],
            "title": [f"Film {place}" for place in range(N_ITEMS)],
            "series": [2**60 + place // 3 for place in range(N_ITEMS)],
        }
    )
    people = pl.DataFrame(
        {
            "user": [USER + place for place in range(N_USERS)],
            "household": [2**61 + place // 2 for place in range(N_USERS)],
        }
    )
    return Ratings.from_frame(frame, item_table=table, user_table=people)


@pytest.fixture(scope="module")
def saved_of_large_ids(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("large") / "model"
    Recommender("als", factors=3, iterations=3).fit(ratings_of_large_ids()).save(
        path, keep_columns=["household"]
    )
    texts = ["the nurse called the doctor", "the doctor left", "a quiet harbour town"]
    LSI(2).fit(texts, ids=[ITEM, ITEM + 1, ITEM + 2]).save(path.with_name("index"))
    return path


@pytest.fixture(scope="module")
def service(saved_of_large_ids: Path) -> Iterator[Application]:
    folder = saved_of_large_ids.parent
    settings = {"index": str(folder / "index"), "log": str(folder / "requests.jsonl")}
    with Application(create_app(str(saved_of_large_ids), **settings)) as started:
        yield started.ready()


def checked(document: Any) -> Any:
    """Return a document after a check that a browser reads the same: texts, and small numbers."""
    if isinstance(document, dict):
        for name, value in document.items():
            if name in ("user", "item", "document"):
                assert value is None or type(value) is str
            checked(value)
    elif isinstance(document, list):
        for value in document:
            checked(value)
    elif isinstance(document, int):
        assert abs(document) < 2**53
    return document


USER_PATH, ITEM_PATH = str(USER + 5), str(ITEM + 7)
PAIR = {"user": USER + 5, "item": ITEM + 7}
REQUESTS: list[tuple[str, Any]] = [
    (f"/v1/recommend/{USER_PATH}", None),
    (f"/v1/recommend/{USER_PATH}?explain=true", None),
    (f"/v1/recommend/{USER_PATH}?exclude={ITEM_PATH}", None),
    (f"/v1/recommend/{USER + 10**6}", None),
    (f"/v1/recommend/{USER + 10**6}?unknown=popular", None),
    (f"/v1/similar/{ITEM_PATH}", None),
    (f"/v1/similar/{ITEM + 10**6}", None),
    (f"/v1/explain/{USER_PATH}/{ITEM_PATH}", None),
    (f"/v1/items?q={ITEM_PATH}", None),
    (f"/v1/items/{ITEM_PATH}", None),
    ("/v1/users", None),
    (f"/v1/users/{USER_PATH}", None),
    ("/v1/map", None),
    ("/v1/model", None),
    ("/v1/search?q=nurse", None),
    ("/v1/recommend", {"users": [USER + 5, str(USER + 6)]}),
    ("/v1/recommend", {"users": [USER + 5], "explain": True}),
    ("/v1/recommend", {"history": [{"item": ITEM + 7}], "user": 2**63}),
    ("/v1/recommend", {"history": [{"item": ITEM + 7}], "explain": True, "user": USER}),
    ("/v1/predict", {"pairs": [PAIR]}),
    ("/v1/predict", {"pairs": [PAIR | {"user": -1}], "unknown": "bias"}),
]


@pytest.mark.parametrize(("target", "body"), REQUESTS)
def test_every_answer_has_ids_as_text(target, body, service):
    reply = service.get(target) if body is None else service.post(target, body)
    assert reply.status in (200, 404)
    checked(reply.json)


def test_answers_name_the_requested_id_and_no_neighbour(service):
    item = service.get(f"/v1/items/{ITEM_PATH}").json
    assert (item["item"], item["title"]) == (ITEM_PATH, "Film 7")
    assert item["features"]["series"] == str(2**60 + 2)
    user = service.get(f"/v1/users/{USER_PATH}").json
    assert user["user"] == USER_PATH
    assert user["features"]["household"] == str(2**61 + 2)
    own = ratings_of_large_ids().to_frame().filter(user=USER + 5)["item"]
    assert {row["item"] for row in user["history"]} == {str(id) for id in own}


def test_requests_may_have_numbers_or_text(service):
    for user in (USER + 5, USER + 6):
        expected = service.get(f"/v1/recommend/{user}?n=3").json
        for id in (user, str(user)):
            [answer] = service.post("/v1/recommend", {"users": [id], "n": 3}).json[
                "results"
            ]
            assert answer == expected
    alone = [
        service.post("/v1/recommend", {"history": [{"item": id}], "n": 3}).body
        for item in (ITEM + 7, ITEM + 8)
        for id in (item, str(item))
    ]
    assert alone[0] == alone[1] != alone[2] == alone[3]


def test_the_log_of_lists_has_the_ids(service, saved_of_large_ids):
    service.get(f"/v1/recommend/{USER_PATH}?n=2")
    log = saved_of_large_ids.parent / "requests.jsonl"
    while not log.exists() or USER_PATH not in log.read_text():
        service.sleep(0.01)
    lines = log.read_text().splitlines()
    records = [checked(json.loads(line)) for line in lines]
    assert USER_PATH in {record["user"] for record in records}


def types_of(schema: dict[str, Any]) -> set[str]:
    """Return the JSON types that a schema allows."""
    parts = [
        *schema.get("anyOf", []),
        *([schema["items"]] if "items" in schema else []),
    ]
    return (
        {schema["type"]} - {"array"}
        if not parts
        else set().union(*map(types_of, parts))
    )


def test_the_description_says_that_ids_in_answers_are_text(service):
    schemas = service.get("/openapi.json").json["components"]["schemas"]
    for name in (
        "ListBody",
        "RankedItem",
        "ReasonBody",
        "UserBody",
        "UsersBody",
        "FoundDocument",
    ):
        fields = schemas[name]["properties"]
        for field in fields.keys() & {"user", "item", "users", "document"}:
            assert types_of(fields[field]) <= {"string", "null"}
    assert types_of(schemas["PairBody"]["properties"]["user"]) == {"string", "integer"}


def test_odd_ids_in_lists_of_items(tmp_path):
    names = [" lead", "trail ", "a,b", "c", "d/e", "日本 🍵", "<b>", "..", "%41"]
    pairs = pl.DataFrame({"user": ["u", "u", "v", "v"], "item": ["x", "y", "x", "y"]})
    others = pl.DataFrame({"user": ["w"] * len(names), "item": names})
    ratings = Ratings.from_frame(pl.concat([pairs, others]))
    Recommender("popular").fit(ratings).save(tmp_path / "model")
    with Application(create_app(str(tmp_path / "model"))) as service:
        service.ready()
        for name in names:
            target = f"/v1/recommend/u?items={quote(name)}"
            listed = [row["item"] for row in service.get(target).json["items"]]
            assert listed == [name]
        several = service.get("/v1/recommend/u?items=c, d/e&items=a,b").json["items"]
        assert {row["item"] for row in several} == {"c", "d/e", "a,b"}
