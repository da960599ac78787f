"""`recsys recommend --seen` and `--repeat-where`, and the same in the service."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from serving import Application

from recsys.serve import create_app

LOG = """user,sku,event,time
1,tea,view,2026-01-01
1,jam,purchase,2026-01-02
1,mug,purchase,2026-01-03
2,tea,purchase,2026-01-01
2,rye,view,2026-01-02
3,rye,cart,2026-01-03
3,jam,purchase,2026-01-03
"""
ITEMS = "sku,title,consumable\ntea,Tea,1\njam,Jam,1\nmug,Mug,0\nrye,Rye,1\n"
WEIGHTS = "view=1,cart=2,purchase=3"


@pytest.fixture
def shop(run) -> Path:
    Path("log.csv").write_text(LOG)
    Path("items.csv").write_text(ITEMS)
    run(
        *("fit", "log.csv", "--event-weight", WEIGHTS, "--item-table", "items.csv"),
        *("--model", "popular", "--out", "shop"),
    )
    return Path("shop")


def skus(result) -> set[str]:
    return {row["item"] for row in json.loads(result.stdout)["rows"]}


def test_what_was_only_viewed_may_be_recommended(run, shop):
    user = ("recommend", shop, "--user", 1, "--json")
    assert skus(run(*user)) == {"rye"}
    assert skus(run(*user, "--seen", "purchase")) == {"rye", "tea"}
    assert skus(run(*user, "--seen", "view,cart")) == {"rye", "jam", "mug"}
    assert skus(run(*user, "--repeat-where", "consumable = 1")) == {"rye", "tea", "jam"}
    everyone = run("recommend", shop, "--all", "--seen", "purchase", "--json")
    pairs = {(row["user"], row["item"]) for row in json.loads(everyone.stdout)["rows"]}
    assert (1, "tea") in pairs
    assert (2, "rye") in pairs
    assert (2, "tea") not in pairs
    said = run(*user, "--seen", "buy", code=1).stderr
    assert "no kind of event 'buy'; the kinds are cart, purchase, view" in said
    said = run(*user, "--seen", "view", "--include-seen", code=1).stderr
    assert "leave out seen and repeat_where" in said


def test_a_file_of_events_may_stand_for_the_model(run):
    Path("log.csv").write_text(LOG)
    base = ("recommend", "log.csv", "--model", "popular", "--user", 1, "--json")
    weighted = (*base, "--event-weight", WEIGHTS)
    assert skus(run(*weighted, "--seen", "purchase")) == {"rye", "tea"}
    said = run(*base, "--seen", "purchase", code=1).stderr
    assert "these data have no kinds of events" in said
    assert "--event-col" in said


def test_histories_of_new_users_have_kinds(run, shop):
    Path("mine.csv").write_text("sku,event\njam,view\nmug,purchase\n")
    base = ("recommend", shop, "--history", "mine.csv", "--json")
    assert skus(run(*base)) == {"tea", "rye"}
    assert skus(run(*base, "--seen", "purchase")) == {"tea", "rye", "jam"}


def test_the_service_has_both_options(run, shop):
    def items(reply) -> set[str]:
        assert reply.status == 200, reply.body
        return {row["item"] for row in reply.json["items"]}

    with Application(create_app(str(shop), api_key="key", host="0.0.0.0")) as service:
        service.ready()
        key = {"x-api-key": "key"}

        def get(query: str) -> set[str]:
            return items(service.get(f"/v1/recommend/1?{query}", key))

        assert get("n=9") == {"rye"}
        assert get("seen=purchase") == {"rye", "tea"}
        assert get("repeat_where=consumable=1") == {"rye", "tea", "jam"}
        body = {"users": ["1"], "seen": "purchase"}
        answer = service.post("/v1/recommend", body, key).json["results"][0]
        assert {row["item"] for row in answer["items"]} == {"rye", "tea"}
        history = [
            {"item": "jam", "event": "view"},
            {"item": "mug", "event": "purchase"},
        ]
        body = {"history": history, "seen": "purchase"}
        assert items(service.post("/v1/recommend", body, key)) == {"tea", "rye", "jam"}
        wrong = service.get("/v1/recommend/1?seen=buy", key)
        assert wrong.status == 400
        assert "the kinds are cart, purchase, view" in wrong.json["detail"]
        costly = service.get("/v1/recommend/1?repeat_where=repeat(title,9)='x'", key)
        assert costly.status == 400
    named = {"again": "consumable = 1"}
    with Application(create_app(str(shop), conditions=named)) as service:
        reply = service.ready().get("/v1/recommend/1?repeat_where=again")
        assert items(reply) == {"rye", "tea", "jam"}
    # What a user has only viewed is known to the owner of the key.
    with Application(create_app(str(shop), list_key="lists", api_key="key")) as service:
        service.ready()
        lists = {"x-api-key": "lists"}
        for option in ("seen=purchase", "repeat_where=consumable=1"):
            reply = service.get(f"/v1/recommend/1?{option}", lists)
            assert reply.status == 403
        assert items(service.get("/v1/recommend/1", lists)) == {"rye"}
