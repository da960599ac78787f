"""Events: on the disk when acknowledged, whole lines only, and fit for `recsys update`."""

from __future__ import annotations

import errno
import json
import threading
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from click.testing import CliRunner
from serving import Application, Command, limited_file_size

from recsys import Recommender, read_ratings
from recsys.cli.main import cli
from recsys.data.ratings import Ratings
from recsys.errors import DataError
from recsys.serve import create_app, event_log
from recsys.serve.event_log import append_lines

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
        assert lines[0] == EVENT | {
            "timestamp": "2026-01-31T12:00:00Z",
            "event_id": None,
        }
        assert lines[1]["timestamp"].endswith("Z")
        assert "events" in service.get("/v1/model").json["abilities"]
        assert "recsys_events_stored_total 2.0" in service.get("/metrics").body.decode()


def test_lines_are_appended_without_locks(tmp_path, monkeypatch):
    monkeypatch.setattr(event_log, "fcntl", None)  # as on Windows
    for line in (b"1\n", b"2\n"):
        append_lines(tmp_path / "log", line, durable=True)
    assert (tmp_path / "log").read_bytes() == b"1\n2\n"


@pytest.mark.parametrize(
    ("change", "detail"),
    [
        (
            {"user": "ann"},
            "Event 1: the model has integer user ids; 'ann' cannot be among them (fit a model "
            "with text ids to have others).",
        ),
        ({"value": None}, "Event 1: the model needs a rating, as the value."),
        ({"value": True}, "a value is a number, not true or false"),
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


def stored(model, path, event):
    """Return the reply of a service of a model to one event."""
    with Application(create_app(str(model), events=str(path))) as service:
        return service.ready().post("/v1/events", {"events": [event]})


def test_the_service_takes_the_first_lowest_grade_as_update_does(tmp_path):
    known = pl.DataFrame(
        {"user": [1, 1, 2, 2], "item": [1, 2, 1, 3], "rating": [5, 4, 2, 3]}
    )
    event = {"user": 2, "item": 2, "value": 1}
    Recommender("als", factors=2).fit(known).save(tmp_path / "open")
    assert stored(tmp_path / "open", tmp_path / "open.jsonl", event).status == 201
    updated = Recommender.load(tmp_path / "open").update(tmp_path / "open.jsonl")
    assert "grades are from 1 to 5" in updated.training["update"]
    scaled = Ratings.from_frame(known, scale=(2, 5))
    Recommender("als", factors=2).fit(scaled).save(tmp_path / "scaled")
    reply = stored(tmp_path / "scaled", tmp_path / "scaled.jsonl", event)
    assert "the value must be between 2 and 5; got 1." in reply.json["detail"]


def test_the_value_of_an_event_is_the_quantity_of_a_model_with_weights(tmp_path):
    orders = pl.DataFrame({"user": [1, 1, 2], "item": [1, 2, 1], "quantity": [3, 1, 2]})
    ratings = Ratings.from_frame(orders, weight="quantity")
    Recommender("popular").fit(ratings).save(tmp_path / "model")
    event, journal = {"user": 1, "item": 1, "value": -3}, tmp_path / "events.jsonl"
    reply = stored(tmp_path / "model", journal, event | {"value": None})
    assert "Event 1: the model needs a quantity, as the value." in reply.json["detail"]
    assert stored(tmp_path / "model", journal, event).status == 201
    updated = Recommender.load(tmp_path / "model").update(journal)
    assert updated.ratings.to_frame().rows() == [(1, 2, 1), (2, 1, 2)]


@pytest.mark.parametrize("value", [None, 4])
def test_events_of_a_model_of_counts_need_no_value(tmp_path, value):
    plays = pl.DataFrame({"user": [1, 1, 2], "item": [1, 2, 1], "plays": [30, 1, 2]})
    Recommender("popular").fit(plays).save(tmp_path / "model")
    event, journal = {"user": 2, "item": 2, "value": value}, tmp_path / "events.jsonl"
    assert stored(tmp_path / "model", journal, event).status == 201
    updated = Recommender.load(tmp_path / "model").update(journal)
    assert updated.ratings.to_frame()["item"].to_list() == [1, 2, 1, 2]
    assert not updated.ratings.weighted


@pytest.mark.parametrize("others", [{}, {"(none)": 1}, {"*": 0}])
def test_kinds_of_events_without_a_weight_are_rejected(others, tmp_path):
    clicks = {
        "user": [1, 1, 2, 2],
        "item": [1, 2, 1, 3],
        "event": ["view", "purchase"] * 2,
    }
    pl.DataFrame(clicks).write_csv(tmp_path / "clicks.csv")
    weights = {"view": 1, "purchase": 5} | others
    ratings = read_ratings(tmp_path / "clicks.csv", event_weights=weights)
    Recommender("popular").fit(ratings).save(tmp_path / "model")
    path = tmp_path / "events.jsonl"
    kinds = {"purchase": True, "click": "*" in others, None: bool(others)}
    with Application(create_app(str(tmp_path / "model"), events=str(path))) as service:
        service.ready()
        for kind, is_known in kinds.items():
            reply = service.post(
                "/v1/events", {"events": [{"user": 1, "item": 3, "event": kind}]}
            )
            assert reply.status == (201 if is_known else 400)
            if not is_known:
                known = f"Event 1: the model has weights of {', '.join(weights)}"
                assert (
                    reply.json["detail"]
                    == f"{known}; the event is {kind or '(none)'!r}."
                )
    Recommender.load(tmp_path / "model").update(
        read_ratings(path, event_weights=weights)
    )


IDS: list[Any] = [
    *(1, -1, 0, 2**53 + 1, 2**63 - 1, 2**63, -(2**63) - 1, 10**30, True, None, 1.5),
    *(
        "1",
        "01",
        " 1",
        "1.0",
        "+1",
        "1e3",
        "9223372036854775808",
        "-9999999999999999999",
    ),
    *(
        "",
        " ",
        "NULL",
        "null",
        "nan",
        "NaN",
        "None",
        "<NA>",
        "\\N",
        "na",
        "inf",
        "true",
        "u1 ",
    ),
    *(
        "\x00",
        "a\nb",
        "\u2028",
        "\ufeffu",
        "e\u0301",
        "\N{GRINNING FACE}",
        '"',
        "#c",
        "x" * 500,
    ),
]
VALUES: list[Any] = [
    *(
        None,
        1,
        3.5,
        5,
        0,
        -1,
        6,
        5.0000001,
        1e-300,
        1e38,
        1e39,
        -1e39,
        1e308,
        2**53,
        "3",
        True,
    ),
]
TIMES: list[Any] = [
    *(
        None,
        0,
        1,
        -1,
        1735700000,
        1735700000000,
        253402300800,
        -62135596800,
        "NaN",
        "2025-02-29",
    ),
    *("2025-01-01", "2025-01-01T00:00:00+14:00", "1677-01-01", "2300-01-01T00:00:00Z"),
    *("0001-01-01T00:00:00Z", "0001-01-01T00:00:00+13:59", "9999-12-31T23:59:59-12:00"),
    *("1970-01-01T00:00:00Z", "2025-01-01 00:00:00.123456789Z", "20250101", "1e9"),
]
KINDS: list[Any] = [
    None,
    "view",
    "buy",
    "VIEW",
    "view ",
    "",
    "purchase",
    "x" * 101,
    "null",
    1,
]
READINGS: dict[str, tuple[str, dict[str, Any]]] = {
    "grades": ("als", {}),
    "missing": ("als", {"missing": 0}),
    "text ids": ("als", {}),
    "interactions": ("popular", {"implicit": True}),
    "kinds": ("popular", {"event_weights": {"view": 1, "buy": 5}}),
    "other kinds": ("popular", {"event_weights": {"view": 1, "*": 2}}),
    "open values": ("als", {}),
    "scale": ("als", {"scale": (0, 10)}),
    "counts": ("popular", {"rating": "plays"}),
    "likes": ("popular", {"rating": "liked"}),
    "quantities": ("popular", {"weight": "quantity"}),
    "quantities of kinds": (
        "popular",
        {"weight": "quantity", "event_weights": {"view": 1, "buy": 5}},
    ),
    "age": ("popular", {"implicit": True, "half_life": "30d"}),
    "dates": ("als", {"time_format": "%d.%m.%Y"}),
}


def saved_with(reading: str, folder: Path) -> None:
    """Save a model of data that are read with some options."""
    rng = np.random.default_rng(0)
    users, items = rng.integers(1, 40, 600), rng.integers(1, 30, 600)
    prefix = "u" if reading == "text ids" else ""
    name, options = READINGS[reading]
    values: Any = rng.integers(1, 6, 600)
    if reading == "open values":
        values = rng.random(600) * 40
    if reading == "likes":
        values = values > 2
    frame = pl.DataFrame(
        {
            "user": [f"{prefix}{user}" for user in users],
            "item": [f"{prefix}{item}" for item in items],
            "timestamp": int(time.time()) - rng.integers(0, 10**6, 600),
        }
    )
    if reading == "dates":
        days = pl.from_epoch("timestamp").dt.strftime(options["time_format"])
        frame = frame.with_columns(days)
    if "kinds" in reading:
        frame = frame.with_columns(event=rng.choice(["view", "buy"], 600))
    column = options.get("weight") or options.get("rating") or "rating"
    if not reading.endswith("kinds") or "quantities" in reading:
        frame = frame.with_columns(pl.Series(column, values))
    frame.write_csv(folder / "data.csv")
    parameters = {"factors": 2, "iterations": 2} if name == "als" else {}
    ratings = read_ratings(folder / "data.csv", **options)
    Recommender(name, **parameters).fit(ratings).save(folder / "model")


@pytest.mark.parametrize("reading", READINGS)
def test_each_stored_event_can_be_added(reading, tmp_path):
    saved_with(reading, tmp_path)
    user = "u3" if reading == "text ids" else 3
    valid = {"user": user, "item": user, "value": 4, "timestamp": int(time.time())}
    if "kinds" in reading:
        valid |= {"event": "view"}
    changes = [{name: id} for name in ("user", "item", "id") for id in IDS]
    changes += [{"value": value} for value in VALUES]
    changes += [{"timestamp": time} for time in TIMES]
    changes += [{"event": kind} for kind in KINDS]
    log, stored = tmp_path / "events.jsonl", []
    with Application(create_app(str(tmp_path / "model"), events=str(log))) as service:
        service.ready()
        for change in [{}, *changes]:
            event = valid | change
            reply = service.post("/v1/events", {"events": [valid, event]})
            assert reply.status in (201, 400), event
            if reply.status == 201:
                stored.append(event)
            else:
                assert "vent" in reply.json["detail"]
    assert len(stored) > 60
    words = [
        "update",
        str(tmp_path / "model"),
        str(log),
        "--out",
        str(tmp_path / "newer"),
    ]
    result = CliRunner().invoke(cli, words)
    assert result.exit_code == 0, result.output
    newer = Recommender.load(tmp_path / "newer").ratings
    for event in stored:
        assert newer.users.place(event["user"]) >= 0, event
        assert newer.items.place(event["item"]) >= 0, event


def test_ids_are_stored_in_the_type_of_the_model(saved, tmp_path):
    log = tmp_path / "events.jsonl"
    with Application(create_app(str(saved["als"]), events=str(log))) as service:
        events = [
            EVENT | {"user": id, "id": n}
            for n, id in enumerate([17, "17", 2**62, "-5"])
        ]
        assert service.ready().post("/v1/events", {"events": events}).status == 201
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    assert [line["user"] for line in lines] == [17, 17, 2**62, -5]
    assert [line["event_id"] for line in lines] == ["0", "1", "2", "3"]


@pytest.mark.parametrize(
    "known", [{"id": "order-17"}, {"timestamp": "2026-01-31T13:00:00Z"}]
)
def test_an_event_that_is_sent_again_counts_once(known, tmp_path):
    saved_with("interactions", tmp_path)
    log = tmp_path / "events.jsonl"
    event = {"user": 500, "item": 3} | known
    with Application(create_app(str(tmp_path / "model"), events=str(log))) as service:
        service.ready()
        for _ in range(2):
            assert service.post("/v1/events", {"events": [event]}).status == 201
    result = CliRunner().invoke(
        cli, ["update", str(tmp_path / "model"), str(log), "--dry-run"]
    )
    assert "1 new event" in result.output


def test_events_without_id_and_time_are_told_apart(saved, tmp_path):
    log = tmp_path / "events.jsonl"
    event = {"user": 500, "item": 3, "value": 4}
    with Application(create_app(str(saved["als"]), events=str(log))) as service:
        assert (
            service.ready().post("/v1/events", {"events": [event, event]}).status == 201
        )
    first, second = (json.loads(line) for line in log.read_text().splitlines())
    assert first["event_id"] != second["event_id"]


def test_events_of_the_future_are_rejected(saved, tmp_path):
    with Application(
        create_app(str(saved["als"]), events=str(tmp_path / "log"))
    ) as service:
        service.ready()
        now = datetime.now(UTC)
        for days, status in (
            (0, 201),
            (0.9, 201),
            (1.1, 400),
            (30, 400),
            (30_000, 400),
        ):
            event = EVENT | {"timestamp": (now + timedelta(days=days)).isoformat()}
            reply = service.post("/v1/events", {"events": [EVENT, event]})
            assert reply.status == status
        assert reply.json["detail"].startswith("Event 2: the time 21")
        assert "is more than a day after the present time" in reply.json["detail"]


def test_rejects_events_without_a_log(saved):
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


@pytest.mark.parametrize(
    "before", [b"", LINE + b"\n", b"  \n" + LINE + b"\n", b"   \n\n"]
)
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
    [
        LINE[:10],
        LINE[:-1],
        b"\0" * 4096,
        b"{" * 100_000,
        LINE + b"\0",
        b"\xff",
        b"x" * 3_000_000,
    ],
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


def test_the_name_of_a_new_log_is_on_the_disk_before_a_line_is(tmp_path, monkeypatch):
    flushed = []

    def fail_once(path):
        flushed.append(path)
        if len(flushed) == 1:
            raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(event_log, "flush", fail_once)
    path = tmp_path / "log"
    with pytest.raises(OSError, match="Input/output"):
        append_lines(path, NEXT, durable=True)
    assert path.read_bytes() == b""
    append_lines(path, NEXT, durable=True)
    append_lines(path, NEXT, durable=True)
    assert flushed == [tmp_path, tmp_path]
    assert path.read_bytes() == NEXT * 2


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
def test_a_file_that_is_not_a_log_of_events_is_an_error_at_the_start(
    name, saved, tmp_path
):
    path = tmp_path / "file"
    path.write_bytes(NO_JOURNALS[name])
    sentence = "file is not a log of events, which has JSON lines with the keys user and item; name"
    with pytest.raises(DataError, match=sentence):
        create_app(str(saved["als"]), events=str(path))
    words = [
        "serve",
        str(saved["als"]),
        "--events",
        str(path),
        "--port",
        "0",
        "--workers",
        "2",
    ]
    result = CliRunner().invoke(cli, words)
    assert result.exit_code == 1
    assert result.output.startswith(f"Error: {path} is not a log of events")
    assert path.read_bytes() == NO_JOURNALS[name]


def test_a_log_of_events_is_not_a_log_of_recommendations(saved, tmp_path):
    path = tmp_path / "file"
    path.write_bytes(LINE)
    with pytest.raises(DataError, match="with the keys time and items; name another"):
        create_app(str(saved["als"]), log=str(path))


@pytest.mark.parametrize(
    "before", [b"", b"\n", b"    \n" + LINE + b"\n", LINE, LINE[:10], b'{"us']
)
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


def test_on_a_full_disk_nothing_acknowledged_is_lost_and_nothing_else_is_kept(
    saved, tmp_path
):
    path, stored = tmp_path / "events.jsonl", 0
    limit = limited_file_size(2000)
    with Command(saved["als"], "--events", path, preexec_fn=limit) as service:
        statuses = []
        for number in range(40):
            events = [
                EVENT | {"value": 1 + n % 5, "user": 1000 * number + n}
                for n in range(3)
            ]
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


def test_the_history_of_a_new_user_weighs_as_in_the_model(tmp_path):
    rows = [
        (u, i, ("view", "buy")[i % 2]) for u in range(20) for i in range(u % 3, 12, 2)
    ]
    events = pl.DataFrame(rows, schema=["user", "item", "event"], orient="row")
    ratings = Ratings.from_frame(events, event_weights={"view": 1, "buy": 50})
    recommender = Recommender("ials", factors=2).fit(ratings)
    recommender.save(tmp_path / "model")
    history = [{"item": "1", "event": "buy"}, {"item": "2", "event": "view"}]
    with Application(create_app(str(tmp_path / "model"))) as service:
        service.ready()
        found = service.post("/v1/recommend", {"history": history, "n": 3}).json[
            "items"
        ]
        unknown = [{"item": "1", "event": "like"}]
        reply = service.post("/v1/recommend", {"history": unknown})
    expected = recommender.recommend(history={1: 50, 2: 1}, n=3)
    assert [int(row["item"]) for row in found] == expected["item"].to_list()
    assert [row["score"] for row in found] == pytest.approx(
        expected["score"].to_list(), rel=1e-5
    )
    assert reply.status == 400
    assert "There are events without a weight: like (1)" in reply.json["detail"]
