"""Faults: replaced, damaged and deleted models, killed workers, slow and oversized requests."""

from __future__ import annotations

import asyncio
import gc
import os
import re
import shutil
import signal
import socket
import sys
import threading
import time
import weakref
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from http.client import HTTPException
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
import uvicorn
from serving import Application, Command
from uvicorn.server import ServerState

from recsys.errors import ModelFileError
from recsys.ranking.lists import ListOptions
from recsys.serve import create_app
from recsys.serve.connection import BoundedConnection
from recsys.serve.loading import load_responses, load_served
from recsys.serve.responses import Responses
from recsys.serve.settings import Limits
from recsys.serve.slots import Slot
from recsys.serve.trial import Trial


def replace(model: Path, by: Path) -> None:
    """Replace a model as `save` does: by two renames."""
    new, old = model.with_name(".new"), model.with_name(".old")
    shutil.copytree(by, new)
    model.rename(old)
    new.rename(model)
    shutil.rmtree(old)


def is_running(pid: int) -> bool:
    """Return whether a process has not ended; a container may have nobody to wait for it."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def eventually(condition: Callable[[], bool], seconds: float = 240.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.1)  # some conditions look at all processes of the machine


@contextmanager
def load(
    service: Command, target: str = "/v1/recommend/{}?n=3"
) -> Iterator[Counter[object]]:
    """Ask all the time; the statuses and the names of models, or the errors, of the answers."""
    count: Counter[object] = Counter()
    over = threading.Event()

    def ask(first: int) -> None:
        connection, user = service.connection(), first
        while not over.is_set():
            user = 100 + (user + 1) % 60
            time.sleep(0.02)  # the other tests need the processor too
            try:
                connection.request("GET", target.format(user))
                reply = connection.getresponse()
                body = reply.read()
                count[
                    reply.status, body[body.find(b'"model":"') + 9 :].split(b"@")[0]
                ] += 1
            except (OSError, HTTPException) as error:  # of a worker that was killed
                count[type(error).__name__] += 1
                connection.close()
        connection.close()

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(3)]
    for each in threads:
        each.start()
    try:
        yield count
    finally:
        over.set()
        for each in threads:
            each.join()


@pytest.fixture
def model(saved: dict[str, Path], tmp_path: Path) -> Path:
    shutil.copytree(saved["als"], tmp_path / "model")
    return tmp_path / "model"


def test_models_are_replaced_damaged_and_deleted_under_load(saved, model):
    with Command(model) as service:
        with load(service) as count:
            eventually(lambda: count[200, b"als"] > 20)
            replace(model, saved["ials"])
            eventually(lambda: count[200, b"ials"] > 20)
            damaged = model.with_name("damaged")
            shutil.copytree(saved["als"], damaged)
            array = damaged / "arrays" / "item_factors.npy"
            array.write_bytes(array.read_bytes()[:-4] + b"oops")
            replace(model, damaged)
            eventually(lambda: bool(service.get("/health/ready").json["rejected"]))
            ready = service.get("/health/ready")
            assert ready.status == 200
            assert "arrays/item_factors.npy" in ready.json["rejected"]["model_a"]
            assert str(model.parent) not in ready.body.decode()
            seen = count[200, b"als"]
            shutil.rmtree(model)
            eventually(
                lambda: (
                    "no saved model"
                    in service.get("/health/ready").json["rejected"]["model_a"]
                )
            )
            answered = count[200, b"ials"]
            eventually(lambda: count[200, b"ials"] > answered + 20)
            assert count[200, b"als"] == seen
            shutil.copytree(saved["als"], model.with_name("again"))
            model.with_name("again").rename(model)
            eventually(lambda: count[200, b"als"] > seen + 20)
        assert set(count) == {(200, b"als"), (200, b"ials")}
        assert (
            'recsys_reload_failures_total{slot="model_a"} 2.0'
            in service.get("/metrics").body.decode()
        )
        code, said = service.stop()
    assert f"{model} is served as before until it is replaced." in said
    assert code == 0
    assert "the contents of arrays/item_factors.npy have changed" in said


def test_a_moved_link_is_followed(saved, tmp_path):
    link = tmp_path / "latest"
    link.symlink_to(saved["als"])
    slot = Slot(str(link), load_responses)
    assert slot.check()
    assert not slot.check()
    first = slot.current
    (tmp_path / "next").symlink_to(saved["ials"])
    (tmp_path / "next").rename(link)
    assert slot.check()
    assert slot.current is not first
    assert slot.current.recommender.model.name == "ials"
    assert first.recommend(
        [105], 3, ListOptions()
    )  # requests in flight finish on the old one


@pytest.mark.parametrize("name", ["als", "ials", "index"])
def test_a_replaced_model_leaves_at_once(name, saved, tmp_path):
    """Its memory and its mapped files do not wait until Python looks for garbage."""
    link = tmp_path / "latest"
    link.symlink_to(saved[name])
    slot = Slot(str(link), load_served)
    gc.disable()
    try:
        assert slot.check()
        if name == "index":
            loaded = weakref.ref(slot.current.index)
        else:
            slot.current.recommend([105], 3, ListOptions())
            loaded = weakref.ref(slot.current.recommender)
        (tmp_path / "next").symlink_to(saved["ials" if name == "als" else "als"])
        (tmp_path / "next").rename(link)
        assert slot.check()
        assert loaded() is None
    finally:
        gc.enable()


def program(path: Path, text: str) -> str:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return str(path)


@pytest.mark.parametrize("text", ["kill -SEGV $$", "kill -FPE $$"])
def test_a_model_that_ends_the_process_that_loads_it_is_rejected(
    saved, model, tmp_path, monkeypatch, text
):
    slot = Slot(str(model), load_responses, Trial())
    assert slot.check()
    first = slot.current
    monkeypatch.setattr(sys, "executable", program(tmp_path / "python", text))
    replace(model, saved["ials"])
    assert slot.check() is False
    assert slot.current is first
    assert slot.rejected == (
        f"model cannot be served: a trial load ended its process (SIG{text.split()[1][1:]})."
    )
    assert slot.check() is None


@pytest.mark.parametrize("text", ["exit 1", "echo hello"])
def test_a_model_is_loaded_without_a_trial_where_none_is_possible(
    saved, model, tmp_path, monkeypatch, text
):
    slot = Slot(str(model), load_responses, Trial())
    assert slot.check()
    monkeypatch.setattr(sys, "executable", program(tmp_path / "python", text))
    replace(model, saved["ials"])
    assert slot.check()
    monkeypatch.setattr(sys, "executable", str(tmp_path / "nowhere"))
    replace(model, saved["als"])
    assert slot.check()


def test_a_rejected_model_is_tried_again_when_any_file_changes(saved, model, tmp_path):
    slot = Slot(str(model), load_responses, Trial())
    assert slot.check()
    new = shutil.copytree(saved["ials"], tmp_path / "new")
    array = new / "arrays" / "item_factors.npy"
    array.rename(tmp_path / "array")
    replace(model, new)
    assert slot.check() is False
    assert slot.check() is None
    shutil.copy(tmp_path / "array", model / "arrays" / "item_factors.npy")
    assert slot.check()
    assert slot.current.recommender.model.name == "ials"


def test_a_rejected_model_is_tried_again_after_growing_pauses(monkeypatch, tmp_path):
    """No file has changed: a mount was broken, or the memory was full."""
    clock = [0.0]
    loads: list[float] = []

    def load(path: Path) -> str:
        loads.append(clock[0])
        if clock[0] < 100:
            raise ModelFileError(f"{path} is damaged.")
        return "served"

    fake = SimpleNamespace(monotonic=lambda: clock[0], sleep=lambda seconds: None)
    monkeypatch.setattr("recsys.serve.slots.time", fake)
    slot = Slot(str(tmp_path), load)
    outcomes = []
    for second in range(1000):
        clock[0] = float(second)
        outcomes.append(slot.check())
    # Rejected once and served once; in between, it is not a new model.
    assert [outcome for outcome in outcomes if outcome is not None] == [False, True]
    assert slot.current == "served"
    assert slot.rejected is None
    pauses = [after - before for before, after in pairwise(loads)]
    assert pauses[0] <= 5
    assert all(after >= 1.5 * before for before, after in pairwise(pauses))
    assert len(loads) < 10


def test_a_model_that_arrives_file_by_file_is_served_when_it_is_complete(saved, model):
    slot = Slot(str(model), load_responses)
    assert slot.check()
    files = [path for path in saved["ials"].rglob("*") if path.is_file()]
    for file in sorted(
        files, key=lambda path: path.name != "model.json"
    ):  # model.json first
        target = model / file.relative_to(saved["ials"])
        part = target.with_name(f".{target.name}.part")
        part.parent.mkdir(exist_ok=True)
        shutil.copy(file, part)
        part.rename(target)  # as rsync does
        slot.check()
    assert slot.rejected is None
    assert slot.current.recommender.model.name == "ials"


def test_has_no_answers_before_the_first_model(saved, tmp_path):
    path = tmp_path / "model"
    with Application(create_app(str(path), check_seconds=0.01)) as service:
        while b"There is no saved model" not in service.get("/v1/recommend/105").body:
            service.sleep(0.01)
        assert service.get("/health/live").status == 200
        ready = service.get("/health/ready")
        assert (ready.status, ready.json["status"]) == (503, "loading")
        reply = service.get("/v1/recommend/105")
        assert (reply.status, reply.json["type"]) == (503, "/docs#not-ready")
        assert "There is no saved model" in reply.json["detail"]
        assert (
            str(tmp_path)
            not in (reply.body + service.get("/health/ready").body).decode()
        )
        assert service.post("/v1/recommend", {"history": [{"item": 5}]}).status == 503
        lines = service.get("/metrics").body.decode().splitlines()
        counted = [line for line in lines if 'status="503"' in line]
        assert all('route="/' in line for line in counted)
        assert any('route="/v1/recommend/{user}"' in line for line in counted)
        shutil.copytree(saved["als"], tmp_path / "new")
        (tmp_path / "new").rename(path)
        assert service.ready().get("/v1/recommend/105").status == 200


def test_a_killed_worker_is_replaced_and_the_others_go_on(model):
    with Command(model, "--workers", "2") as service:
        eventually(lambda: len(service.workers()) == 2)
        before = service.workers()
        # A worker that is killed before it has loaded the model would not be counted.
        loaded = b'recsys_reloads_total{slot="model_a"} 2.0'
        eventually(lambda: loaded in service.get("/metrics").body)
        with load(service) as count:
            eventually(lambda: count[200, b"als"] > 50)
            os.kill(before[0], signal.SIGKILL)
            eventually(lambda: len(set(service.workers()) - set(before)) == 1)
            loaded = b'recsys_reloads_total{slot="model_a"} 3.0'
            eventually(lambda: loaded in service.get("/metrics").body)
        failed = sum(n for kind, n in count.items() if kind != (200, b"als"))
        assert failed <= 3  # those that the worker was answering
        assert before[1] in service.workers()
        page = service.get("/metrics").body.decode()
        name = (
            'recsys_request_seconds_count{route="/v1/recommend/{user}",status="200"} '
        )
        counted = float(page[page.index(name) + len(name) :].split()[0])
        assert (
            counted >= count[200, b"als"]
        )  # of all workers, also of the one that has ended
        code, said = service.stop()
    assert code == 0
    assert f"Child process [{before[0]}] died" in said
    assert (
        said.count("serving als@") == 3
    )  # by each worker, and by the one that came later


def test_workers_end_with_their_supervisor(model):
    with Command(model, "--workers", "2") as service:
        workers = service.workers()
        assert len(workers) == 2
        assert {service.get("/v1/users/105").status for _ in range(4)} == {200}
        service.process.kill()
        eventually(lambda: not any(is_running(worker) for worker in workers))


@pytest.mark.parametrize("workers", ["1", "2"])
def test_a_closed_terminal_ends_the_service_as_sigterm_does(model, workers):
    with Command(model, "--workers", workers) as service:
        code, messages = service.stop(signal.SIGHUP)
    assert code == 0
    assert "Traceback" not in messages
    assert "restarting" not in messages


LIVE = b"GET /health/live HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n"


def raw(service: Command, *parts: bytes) -> bytes:
    """Send bytes as they are; what is answered until the connection is closed."""
    with socket.create_connection(
        ("127.0.0.1", service.port), timeout=100
    ) as connection:
        for part in parts:
            try:
                connection.sendall(part)
            except OSError:
                break
        found = b""
        try:
            while more := connection.recv(65536):
                found += more
        except ConnectionResetError:
            pass
        return found


@pytest.fixture(scope="module")
def bounded(saved: dict[str, Path]) -> Iterator[Command]:
    with Command(saved["als"], "--timeout", "1", "--max-body", "1000") as service:
        yield service


def test_slow_and_oversized_requests_are_cut_off(bounded):
    head = b"POST /v1/recommend HTTP/1.1\r\nhost: a\r\n"
    assert raw(bounded, b"GET /v1/rec").startswith(b"HTTP/1.1 408 ")
    assert raw(bounded).startswith(b"HTTP/1.1 408 ")
    slow = raw(bounded, head + b"content-length: 100\r\n\r\n{")
    assert slow.startswith(b"HTTP/1.1 408 ")
    assert b"did not arrive within 1 seconds" in slow
    assert raw(bounded, head + b"content-length: 1001\r\n\r\n").startswith(
        b"HTTP/1.1 413 "
    )
    chunk = b"400\r\n" + b" " * 1024 + b"\r\n"
    chunked = raw(bounded, head + b"transfer-encoding: chunked\r\n\r\n", *[chunk] * 5)
    assert chunked.startswith(b"HTTP/1.1 413 ")
    assert raw(bounded, head + b"x: %s\r\n" % (b"y" * 50_000)).startswith(
        b"HTTP/1.1 431 "
    )
    assert raw(bounded, b"\x16\x03\x01 nonsense\r\n\r\n").startswith(b"HTTP/1.1 400 ")
    assert bounded.get("/v1/recommend/105").status == 200


def memory(service: Command) -> int:
    """Return the megabytes of the service."""
    status = Path(f"/proc/{service.process.pid}/status").read_text()
    return int(re.search(r"VmRSS:\s+(\d+)", status)[1]) // 1024


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_endless_trailers_take_neither_memory_nor_time(bounded):
    body = b'{"history":[{"item":3}]}'
    head = (
        b"POST /v1/recommend HTTP/1.1\r\nhost: a\r\ncontent-type: application/json\r\n"
    )
    head += b"transfer-encoding: chunked\r\n\r\n%x\r\n%s\r\n0\r\n" % (len(body), body)
    before = memory(bounded)
    reply = raw(bounded, head, *[b"x:y\r\n" * 10_000] * 200)
    assert reply.startswith((b"HTTP/1.1 408 ", b""))
    assert memory(bounded) < before + 20
    assert bounded.get("/health/live").status == 200


def test_an_answer_that_is_not_read_ends_its_connection(bounded):
    with socket.socket() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.connect(("127.0.0.1", bounded.port))
        connection.sendall(b"GET /openapi.json HTTP/1.1\r\nhost: a\r\n\r\n" * 100)
        connection.settimeout(1)

        def is_reset() -> bool:
            try:
                connection.sendall(b"G")
            except OSError:
                return True
            return False

        eventually(is_reset)


def connections(service: Command, n: int, address: str) -> list[socket.socket]:
    """Open connections from one of the loopback addresses."""
    server = ("127.0.0.1", service.port)
    return [
        socket.create_connection(server, timeout=10, source_address=(address, 0))
        for _ in range(n)
    ]


def close(connections: list[socket.socket]) -> None:
    for connection in connections:
        connection.close()


@pytest.mark.skipif(sys.platform != "linux", reason="uses several loopback addresses")
def test_connections_beyond_the_limits_get_a_problem(saved):
    with Command(saved["als"], "--timeout", "100") as service:
        idle = connections(service, 700, "127.0.0.2")  # of which 500 are rejected
        (further,) = connections(service, 1, "127.0.0.2")
        reply = further.recv(1000)
        assert reply.startswith(b"HTTP/1.1 503 ")
        assert b"200 connections of this address are open" in reply
        further.close()
        assert raw(service, LIVE).startswith(b"HTTP/1.1 200 ")  # of another address
        for number in range(3, 6):
            idle += connections(service, 200, f"127.0.0.{number}")
        reply = raw(service, LIVE)
        assert reply.startswith(b"HTTP/1.1 503 ")
        assert b"application/problem+json" in reply
        close(idle)
        eventually(lambda: b" 200 " in raw(service, LIVE)[:20])


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_requests_that_are_sent_before_their_answers_are_bounded(bounded):
    before = memory(bounded)
    (flood,) = connections(bounded, 1, "127.0.0.2")
    flood.settimeout(60)
    with pytest.raises(OSError, match=r"reset|[Bb]roken"):
        flood.sendall(b"GET / HTTP/1.1\r\n\r\n" * 1_000_000)
    flood.close()
    assert memory(bounded) < before + 20
    assert bounded.get("/health/live").status == 200


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize(
    "head",
    [
        b"GET / HTTP/1.1\r\n",
        b"POST /v1/recommend HTTP/1.1\r\ncontent-type: application/json\r\n"
        b"transfer-encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n",
    ],
    ids=["heads", "trailers"],
)
def test_what_all_clients_send_is_bounded(head, saved):
    with Command(saved["als"], "--max-body", "1000", "--timeout", "100") as service:
        before = memory(service)
        slow = []
        for number in range(2, 5):  # 18 MB, from which 500 MB of objects would be made
            slow += connections(service, 190, f"127.0.0.{number}")
        for connection in slow:
            with suppress(OSError):
                connection.sendall(head + b"x:\r\n" * 7900)
        assert raw(service, LIVE).startswith(b"HTTP/1.1 200 ")
        # A busy process drops connections late. Without a bound, all of them would stay.
        eventually(lambda: memory(service) < before + 400, seconds=30)
        close(slow)


class Transport:
    """Transport whose client reads nothing of `size` bytes."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.is_aborted = False

    def get_write_buffer_size(self) -> int:
        return self.size

    def get_extra_info(self, name: str) -> tuple[str, int] | None:
        return ("127.0.0.1", 1) if name == "peername" else None

    def is_closing(self) -> bool:
        return self.is_aborted

    def abort(self) -> None:
        self.is_aborted = True


def test_the_client_with_most_unread_answers_is_disconnected():
    async def aborted(sizes: list[int]) -> list[bool]:
        config = uvicorn.Config(lambda scope: None, log_config=None)
        config.load()
        options = {"config": config, "server_state": ServerState(), "app_state": {}}
        transports = [Transport(size) for size in sizes]
        lost = []
        for transport in transports:
            connection = BoundedConnection(Limits(), **options)
            connection.connection_made(transport)
            connection.pause_writing()
            lost.append(connection)
        for connection in lost:
            connection.connection_lost(OSError())
        return [transport.is_aborted for transport in transports]

    assert asyncio.run(aborted([2**20, 2**25, 2**24, 2**23])) == [False] * 4
    sizes = [2**20, 2**25, 2**24, 2**24]
    assert asyncio.run(aborted(sizes)) == [False, True, False, False]


def test_a_request_without_its_key_is_answered_before_its_body(saved):
    with Command(saved["als"], "--api-key", "k") as service:
        head = b"POST /v1/recommend HTTP/1.1\r\nhost: a\r\ncontent-length: 1000000\r\n\r\n{"
        assert raw(service, head).startswith(
            b"HTTP/1.1 401 "
        )  # and the connection is closed


def test_work_stops_when_its_answer_has_timed_out(saved, monkeypatch):
    n_pieces = 0
    terms = Responses._terms
    is_answered = threading.Event()

    def slow_piece(*arguments: Any) -> Any:
        nonlocal n_pieces
        n_pieces += 1
        is_answered.wait(100)
        return terms(*arguments)

    monkeypatch.setattr("recsys.serve.responses._TOGETHER", 4)
    monkeypatch.setattr(Responses, "_terms", slow_piece)
    app = create_app(str(saved["als"]), limits=Limits(seconds=0.2), host="127.0.0.1")
    with Application(app) as service:
        service.ready()
        reply = service.post(
            "/v1/recommend", {"users": list(range(100, 160)), "n": 1, "explain": True}
        )
        assert (reply.status, reply.json["type"]) == (503, "/docs#timeout")
        n_begun = n_pieces
        is_answered.set()
        service.sleep(0.3)  # in which the next pieces would begin
    assert n_pieces == n_begun == 1


def test_requests_of_one_connection_are_answered_in_their_order(bounded):
    targets = [
        "/v1/recommend/105",
        "/v1/items/3",
        "/v1/similar/3?n=2",
        "/v1/recommend/106?n=3",
    ]
    heads = [f"GET {target} HTTP/1.1\r\nhost: a\r\n".encode() for target in targets]
    heads[-1] += b"connection: close\r\n"
    replies = raw(bounded, b"\r\n".join([*heads, b""])).split(b"HTTP/1.1 ")[1:]
    expected = [bounded.get(target).body for target in targets]
    assert [each.partition(b"\r\n\r\n")[2] for each in replies] == expected
    assert all(each.startswith(b"200 OK\r\n") for each in replies)
    old = raw(bounded, b"GET /v1/recommend/105 HTTP/1.0\r\n\r\n")
    assert old.endswith(b"\r\n\r\n" + expected[0])
    lost = raw(bounded, b"GET /v1/recommend/7 HTTP/1.1\r\nconnection: close\r\n\r\n")
    assert lost.startswith(b"HTTP/1.1 404 ")


def test_requests_in_flight_are_answered_before_the_end(bounded):
    connection = bounded.connection()
    connection.putrequest("POST", "/v1/recommend")
    connection.putheader("content-type", "application/json")
    connection.putheader("content-length", "22")
    connection.endheaders(b'{"users": [10')
    assert (
        bounded.get("/health/live").status == 200
    )  # the service has read what came before
    bounded.process.send_signal(signal.SIGTERM)

    def is_closed() -> bool:
        try:
            bounded.get("/health/live")
        except OSError:
            return True
        return False

    eventually(is_closed)
    connection.send(b'5],"n":2}')
    reply = connection.getresponse()
    assert reply.status == 200
    assert b'"user":"105"' in reply.read()
    connection.close()
    assert bounded.stop()[0] == 0


def test_a_port_in_use_is_one_sentence(model, capfd):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        from click.testing import CliRunner

        from recsys.cli.main import cli

        result = CliRunner().invoke(cli, ["serve", str(model), "--port", str(port)])
    assert result.exit_code == 1
    assert (
        f"The service cannot listen on 127.0.0.1, port {port}: address already in use."
        in result.output
    )
