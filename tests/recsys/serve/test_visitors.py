"""Lists of visitors by their events of the last hour."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta

import numpy as np
import polars as pl
import pytest
from serving import Application

from recsys import Ratings, Recommender
from recsys.serve import create_app


@pytest.fixture(params=["als", "ials"])
def model(request, saved):
    return saved[request.param]


@pytest.fixture
def service(model, tmp_path):
    with Application(
        create_app(str(model), events=str(tmp_path / "events.jsonl"))
    ) as service:
        service.ready()
        yield service


def store(service: Application, user: int, *items: int) -> None:
    events = [{"user": user, "item": item, "value": 5} for item in items]
    assert service.post("/v1/events", {"events": events}).status == 201


def ids(reply) -> list[str]:
    assert reply.status == 200, reply.json
    return [row["item"] for row in reply.json["items"]]


def test_a_visitor_gets_the_list_of_the_events(service):
    before = service.get("/v1/recommend?visitor=900").json
    assert before["policy"] == "popular"
    store(service, 900, 4, 7)
    answer = service.get("/v1/recommend?visitor=900&n=5")
    assert answer.json["policy"] == "history"
    assert answer.json["user"] == "900"
    history = [{"item": "4", "value": 5}, {"item": "7", "value": 5}]
    posted = service.post("/v1/recommend", {"history": history, "n": 5})
    assert ids(answer) == ids(posted)
    assert not {"4", "7"} & {*ids(answer)}
    # Another visitor has no events.
    assert service.get("/v1/recommend?visitor=901").json["policy"] == "popular"


def test_a_customer_has_the_history_of_the_model_and_the_new_events(service, model):
    alone = service.get("/v1/recommend/105?n=5")
    assert ids(service.get("/v1/recommend/105?visitor=105&n=5")) == ids(alone)
    first = ids(alone)[0]
    store(service, 105, int(first))
    for path in ("/v1/recommend/105?visitor=105&n=5", "/v1/recommend?visitor=105&n=5"):
        answer = service.get(path)
        assert answer.json["user"] == "105"
        assert first not in ids(answer)
        recommender = Recommender.load(model)
        rated = recommender.ratings.to_frame().filter(user=105)["item"].to_list()
        assert not {*map(str, rated)} & {*ids(answer)}


def test_the_events_of_a_visitor_count_for_the_customer_who_logs_in(service):
    store(service, 900, 4)
    assert "4" not in ids(service.get("/v1/recommend/105?visitor=900&n=40"))


def test_a_visitor_becomes_a_customer_by_an_update(service, model, tmp_path):
    store(service, 900, 4, 7)
    recommender = Recommender.load(model)
    updated = recommender.update(str(tmp_path / "events.jsonl"), refit=False)
    updated.save(tmp_path / "updated")
    with Application(
        create_app(str(tmp_path / "updated"), events=str(tmp_path / "events.jsonl"))
    ) as later:
        later.ready()
        answer = later.get("/v1/recommend?visitor=900")
        assert ids(answer) == ids(later.get("/v1/recommend/900"))


@pytest.fixture(scope="module")
def weighted(tmp_path_factory):
    """A shop whose kinds of events have weights, with times and without."""
    folder = tmp_path_factory.mktemp("weighted")
    rng = np.random.default_rng(3)
    n_events = 1500
    start = datetime.now(UTC) - timedelta(days=30)
    kinds = rng.choice(["view", "purchase"], n_events, p=[0.8, 0.2])
    times = [start + timedelta(minutes=20 * n) for n in range(n_events)]
    events = pl.DataFrame(
        {
            "user": rng.integers(0, 60, n_events),
            "item": rng.integers(0, 30, n_events),
            "event": kinds,
            "timestamp": times,
        }
    )
    ratings = Ratings.from_frame(events, event_weights={"view": 1, "purchase": 5})
    for name in ("ials", "next"):
        options = {"factors": 4, "iterations": 3} if name == "ials" else {}
        Recommender(name, **options).fit(ratings).save(folder / name)
    untimed = Ratings.from_frame(
        events.drop("timestamp"), event_weights={"view": 1, "purchase": 5}
    )
    Recommender("ials", factors=4).fit(untimed).save(folder / "untimed")
    return folder


@pytest.mark.parametrize("name", ["ials", "untimed"])
def test_new_events_are_added_to_what_the_model_knows(name, weighted, tmp_path):
    journal = tmp_path / "events.jsonl"
    model = Recommender.load(weighted / name)
    history = model.ratings.to_frame().filter(user=5)
    weights = dict(history.select("item", "rating").iter_rows())
    item = max(weights, key=weights.__getitem__)
    settings = {"events": str(journal)}
    with Application(create_app(str(weighted / name), **settings)) as service:
        service.ready()
        events = [{"user": 5, "item": item, "event": "purchase"}] * 3
        assert service.post("/v1/events", {"events": events}).status == 201
        answer = service.get("/v1/recommend/5?visitor=5&n=5")
        options = "n=5&seen=purchase&explain=true&language=en"
        bought = service.get(f"/v1/recommend/5?visitor=5&{options}")
    weights[item] += 15
    expected = model.fold_in(weights).recommend(n=5)
    assert ids(answer) == [str(item) for item in expected["item"]]
    reasons = [reason for row in bought.json["items"] for reason in row["reasons"]]
    of_item = [reason["kind"] for reason in reasons if reason.get("item") == str(item)]
    assert {*of_item} == {"purchase"}
    # The update knows the events, so they do not count twice.
    model.update(str(journal), refit=False).save(tmp_path / "updated")
    with Application(create_app(str(tmp_path / "updated"), **settings)) as later:
        alone = later.ready().get("/v1/recommend/5?n=5").json
        assert later.get("/v1/recommend/5?visitor=5&n=5").json == alone


@pytest.mark.parametrize("user", ["5", "900"])
def test_kinds_count_as_seen_before_and_after_the_first_event(user, weighted, tmp_path):
    journal = str(tmp_path / "events.jsonl")
    path = f"/v1/recommend?visitor={user}&n=40&seen=purchase"
    with Application(create_app(str(weighted / "ials"), events=journal)) as service:
        service.ready()
        before = ids(service.get(path))
        viewed, bought = before[:2]
        events = [
            {"user": int(user), "item": viewed, "event": "view"},
            {"user": int(user), "item": bought, "event": "purchase"},
        ]
        assert service.post("/v1/events", {"events": events}).status == 201
        after = ids(service.get(path))
        assert {*after} == {*before} - {bought}


def test_an_item_that_a_customer_looks_at_again_is_the_latest(weighted, tmp_path):
    journal = str(tmp_path / "events.jsonl")
    model = Recommender.load(weighted / "next")
    history = model.ratings.to_frame().filter(user=5).sort("timestamp")
    weights = dict(history.select("item", "rating").iter_rows())
    first = history["item"][0]
    with Application(create_app(str(weighted / "next"), events=journal)) as service:
        service.ready()
        events = [{"user": 5, "item": first, "event": "view"}]
        assert service.post("/v1/events", {"events": events}).status == 201
        answer = service.get("/v1/recommend/5?visitor=5&n=5")
    weights[first] = weights.pop(first) + 1
    expected = model.recommend(history=weights, n=5)["item"]
    assert ids(answer) == [str(item) for item in expected]


def test_only_events_of_the_last_hour_count(service, tmp_path):
    old = datetime.now(UTC) - timedelta(hours=2)
    event = {"user": 900, "item": 4, "value": 5, "timestamp": old.isoformat()}
    assert service.post("/v1/events", {"events": [event]}).status == 201
    assert service.get("/v1/recommend?visitor=900").json["policy"] == "popular"


def test_what_other_processes_write_counts_and_torn_lines_do_not(service, tmp_path):
    store(service, 900, 4)
    line = {
        "user": 900,
        "item": 7,
        "value": 5,
        "event": None,
        "timestamp": datetime.now(UTC).isoformat(),
        "event_id": "x",
    }
    text = json.dumps(line)
    path = tmp_path / "events.jsonl"
    with path.open("a") as journal:
        journal.write(f"{text}\n{{torn\n{text}\n{text[:20]}")
    items = ids(service.get("/v1/recommend?visitor=900&n=40"))
    assert not {"4", "7"} & {*items}
    # The journal is replaced, as after an update.
    other = tmp_path / "other"
    other.write_text("")
    other.replace(path)
    assert service.get("/v1/recommend?visitor=900").json["policy"] == "popular"


def test_reasons_need_the_key_and_visitors_a_journal(saved, tmp_path):
    journal = str(tmp_path / "events.jsonl")
    with Application(
        create_app(str(saved["als"]), events=journal, api_key="k", list_key="lists")
    ) as service:
        service.ready()
        listing = {"x-api-key": "lists"}
        path = "/v1/recommend?visitor=900"
        assert service.get(path, headers=listing).status == 200
        for option in ("explain=true", "include_seen=true"):
            assert service.get(f"{path}&{option}", headers=listing).status == 403
    with Application(create_app(str(saved["als"]))) as service:
        service.ready()
        reply = service.get(path)
        assert reply.status == 404
        assert "--events" in reply.json["detail"]


def test_weights_of_zero_give_the_list_of_a_new_visitor(weighted):
    with Application(create_app(str(weighted / "ials"))) as service:
        popular = service.ready().post("/v1/recommend", {"history": []}).json
        assert popular["policy"] == "popular"
        history = [{"item": 3, "value": 0}, {"item": 4, "value": -2}]
        assert service.post("/v1/recommend", {"history": history}).json == popular
