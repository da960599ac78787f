"""Events: on the disk when acknowledged, whole lines only, and fit for `recsys update`."""

from __future__ import annotations

import json
import threading

import polars as pl
import pytest
from serving import Application, Command, limited_file_size

from recsys import Recommender, read_ratings
from recsys.serve import create_app, journals
from recsys.serve.journals import append_lines

EVENT = {
    "user": 105,
    "item": 4,
    "value": 5,
    "event": "purchase",
    "timestamp": "2026-01-31T13:00:00+01:00",
}


def test_events_are_lines_that_update_reads(saved, tmp_path):
    path = tmp_path / "events.jsonl"
    with Application(create_app(str(saved["als"]), events=str(path))) as service:
        service.ready()
        reply = service.post(
            "/v1/events", {"events": [EVENT, {"user": 999, "item": 4, "value": 2.5}]}
        )
        assert (reply.status, reply.json) == (201, {"stored": 2})
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        assert lines[0] == EVENT | {"timestamp": "2026-01-31T12:00:00Z"}
        assert lines[1]["timestamp"].endswith("Z")
        assert "events" in service.get("/v1/model").json["abilities"]
        assert "recsys_events_stored_total 2.0" in service.get("/metrics").body.decode()


def test_lines_are_appended_where_there_are_no_locks(tmp_path, monkeypatch):
    monkeypatch.setattr(journals, "fcntl", None)  # as on Windows
    for line in (b"1\n", b"2\n"):
        append_lines(tmp_path / "log", line, durable=True)
    assert (tmp_path / "log").read_bytes() == b"1\n2\n"


@pytest.mark.parametrize(
    ("change", "detail"),
    [
        ({"user": "ann"}, "Event 1: the model has integer user ids; 'ann' cannot be among them."),
        ({"value": None}, "Event 1: the model needs a rating, as the value."),
        ({"value": 9}, "Event 1: the value must be between 1 and 5; got 9."),
        ({"timestamp": "9999-12-31T23:59:59-23:00"}, "is out of range"),
        ({"timestamp": "yesterday"}, "events.0.timestamp"),
        ({"item": None}, "events.0.item"),
    ],
)
def test_events_that_update_could_not_add_are_rejected(saved, tmp_path, change, detail):
    path = tmp_path / "events.jsonl"
    with Application(create_app(str(saved["als"]), events=str(path))) as service:
        reply = service.ready().post("/v1/events", {"events": [EVENT | change]})
        assert reply.status == 400
        assert detail in reply.json["detail"]
        assert not path.exists()


@pytest.mark.parametrize("others", [{}, {"(none)": 1}, {"*": 0}])
def test_kinds_of_events_without_a_weight_are_rejected(others, tmp_path):
    clicks = {"user": [1, 1, 2, 2], "item": [1, 2, 1, 3], "event": ["view", "purchase"] * 2}
    pl.DataFrame(clicks).write_csv(tmp_path / "clicks.csv")
    weights = {"view": 1, "purchase": 5} | others
    ratings = read_ratings(tmp_path / "clicks.csv", event_weights=weights)
    Recommender("popular").fit(ratings).save(tmp_path / "model")
    path = tmp_path / "events.jsonl"
    kinds = {"purchase": True, "click": "*" in others, None: bool(others)}
    with Application(create_app(str(tmp_path / "model"), events=str(path))) as service:
        service.ready()
        for kind, is_known in kinds.items():
            reply = service.post("/v1/events", {"events": [{"user": 1, "item": 3, "event": kind}]})
            assert reply.status == (201 if is_known else 400)
            if not is_known:
                known = f"Event 1: the model has weights of {', '.join(weights)}"
                assert reply.json["detail"] == f"{known}; the event is {kind or '(none)'!r}."
    Recommender.load(tmp_path / "model").update(read_ratings(path, event_weights=weights))


def test_without_a_log_there_is_no_place_for_events(saved):
    with Application(create_app(str(saved["als"]))) as service:
        assert service.ready().post("/v1/events", {"events": [EVENT]}).status == 404


def test_writers_do_not_mix_their_lines(tmp_path):
    path = tmp_path / "log"

    def write(writer: int) -> None:
        for _ in range(50):
            append_lines(path, f"{writer}:{'x' * 500}\n".encode() * 3, durable=False)

    threads = [threading.Thread(target=write, args=(number,)) for number in range(4)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    lines = path.read_text().splitlines()
    assert len(lines) == 4 * 50 * 3
    assert {len(line) for line in lines} == {502}


def test_a_torn_last_line_is_removed_before_the_next(tmp_path):
    path = tmp_path / "log"
    path.write_bytes(b'{"a":1}\n{"b":')
    append_lines(path, b'{"c":3}\n', durable=True)
    assert path.read_bytes() == b'{"a":1}\n{"c":3}\n'
    path.write_bytes(b'{"torn')
    append_lines(path, b'{"c":3}\n', durable=True)
    assert path.read_bytes() == b'{"c":3}\n'


def test_a_log_that_was_moved_away_is_begun_anew(saved, tmp_path):
    path = tmp_path / "events.jsonl"
    with Application(create_app(str(saved["als"]), events=str(path))) as service:
        service.ready().post("/v1/events", {"events": [EVENT]})
        path.rename(tmp_path / "taken")
        service.post("/v1/events", {"events": [EVENT, EVENT]})
    assert len(path.read_text().splitlines()) == 2


def test_on_a_full_disk_nothing_acknowledged_is_lost_and_nothing_else_is_kept(saved, tmp_path):
    path, stored = tmp_path / "events.jsonl", 0
    limit = limited_file_size(2000)
    with Command(saved["als"], "--events", path, preexec_fn=limit) as service:
        statuses = []
        for number in range(40):
            events = [EVENT | {"value": 1 + n % 5, "user": 1000 * number + n} for n in range(3)]
            reply = service.post("/v1/events", {"events": events})
            statuses.append(reply.status)
            stored += reply.json.get("stored", 0)
        assert set(statuses) == {201, 503}
        assert reply.json["type"] == "/docs#not-stored"
        assert service.get("/v1/recommend/105").status == 200
        lines = path.read_text().splitlines()
        assert len(lines) == stored
        assert all(json.loads(line)["item"] == 4 for line in lines)
        path.unlink()  # room again
        assert service.post("/v1/events", {"events": events}).status == 201
