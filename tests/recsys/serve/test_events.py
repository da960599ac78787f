"""Events: on the disk when acknowledged, whole lines only, and fit for `recsys update`."""

from __future__ import annotations

import json
import threading

import polars as pl
import pytest
from click.testing import CliRunner
from serving import Application, Command, limited_file_size

from recsys import Recommender, read_ratings
from recsys.cli.main import cli
from recsys.errors import DataError
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


LINE = b'{"user":1,"item":2,"value":4,"timestamp":"2026-01-30T12:00:00Z"}'
NEXT = b'{"user":3,"item":4,"value":5}\n'


@pytest.mark.parametrize("before", [b"", LINE + b"\n", b"  \n" + LINE + b"\n", b"   \n\n"])
@pytest.mark.parametrize(
    "last", [LINE, LINE + b" ", b"{}", b"    ", b'{"user":"' + b"x" * 200_000 + b'"}']
)
def test_a_complete_last_line_without_a_line_end_is_kept(before, last, tmp_path):
    path = tmp_path / "log"
    path.write_bytes(before + last)
    append_lines(path, NEXT, durable=True)
    assert path.read_bytes() == before + last + b"\n" + NEXT
    assert [file.name for file in tmp_path.iterdir()] == ["log"]


@pytest.mark.parametrize("before", [b"", LINE + b"\n"])
@pytest.mark.parametrize(
    "torn",
    [LINE[:10], LINE[:-1], b"\0" * 4096, b"{" * 100_000, LINE + b"\0", b"\xff", b"x" * 3_000_000],
)
def test_a_torn_last_line_is_moved_aside(before, torn, tmp_path):
    path = tmp_path / "log"
    path.write_bytes(before + torn)
    append_lines(path, NEXT, durable=True)
    append_lines(path, NEXT, durable=True)
    assert path.read_bytes() == before + NEXT + NEXT
    assert (tmp_path / "log.torn").read_bytes() == torn + b"\n"


def test_nothing_is_lost_if_a_torn_line_cannot_be_moved(tmp_path):
    path = tmp_path / "log"
    path.write_bytes(LINE[:10])
    (tmp_path / "log.torn").mkdir()
    with pytest.raises(OSError, match="directory"):
        append_lines(path, NEXT, durable=True)
    assert path.read_bytes() == LINE[:10]


NO_JOURNALS = {
    "settings": b'{"shop": "settings", "port": 80}',
    "pretty": b'{\n  "user": 1,\n  "item": 2\n}\n',
    "array": b'[{"user": 1, "item": 2}]\n',
    "csv": b"user,item,rating\n1,2,3\n4,5,1",
    "number": b"17\n",
    "binary": bytes(range(256)) * 20,
    "zeros": b"\0" * 4096,
    "log": b'{"time":"2026-01-31T12:00:00.000Z","user":1,"items":[]}\n',
    "torn": b'{"users": [1, 2',
}


@pytest.mark.parametrize("name", NO_JOURNALS)
def test_a_file_that_is_not_a_log_of_events_is_an_error_at_the_start(name, saved, tmp_path):
    path = tmp_path / "file"
    path.write_bytes(NO_JOURNALS[name])
    sentence = "file is not a log of events, which has JSON lines with the keys user and item; name"
    with pytest.raises(DataError, match=sentence):
        create_app(str(saved["als"]), events=str(path))
    words = ["serve", str(saved["als"]), "--events", str(path), "--port", "0", "--workers", "2"]
    result = CliRunner().invoke(cli, words)
    assert result.exit_code == 1
    assert result.output.startswith(f"Error: {path} is not a log of events")
    assert path.read_bytes() == NO_JOURNALS[name]


def test_a_log_of_events_is_not_a_log_of_recommendations(saved, tmp_path):
    path = tmp_path / "file"
    path.write_bytes(LINE)
    with pytest.raises(DataError, match="with the keys time and items; name another"):
        create_app(str(saved["als"]), log=str(path))


@pytest.mark.parametrize("before", [b"", b"\n", b"    \n" + LINE + b"\n", LINE, LINE[:10], b'{"us'])
def test_a_log_of_events_is_continued(before, saved, tmp_path):
    path = tmp_path / "events.jsonl"
    path.write_bytes(before)
    with Application(create_app(str(saved["als"]), events=str(path))) as service:
        assert service.ready().post("/v1/events", {"events": [EVENT]}).status == 201
    ratings = read_ratings(path)
    assert ratings.n_ratings == 1 + before.strip().endswith(b"}")


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
