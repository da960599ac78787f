"""The HTTP service on Gowalla: requests per second and latencies, next to a naive application.

Requests are for known users, for new users with 10 items, and for similar items, over 1 to 64
connections of another process, to one worker and to two. The same run measures a nine-line FastAPI
application around `Recommender.recommend`, and the memory of a second worker. With --soak, minutes
of load follow while the model is replaced every 10 seconds. With --live, it compares a service with
a table of items that changes, and a named condition, with one without. With --explain, it compares
lists with reasons with lists without, of users and of sessions, for every model that explains its
scores or some, on MovieLens (ml-latest-small) with features of the films. Requests per second of
processor time estimate the rate of a worker with its own core, independent of other load. The
ratings of the model are random, since Gowalla has none. Therefore no vector is short, and the
search cannot prune items.

Usage: python benchmarks/serve_http.py [--model als] [--factors 64] [--seconds 3] [--soak MINUTES]
       [--live] [--explain [MODEL ...]]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import re
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import cycle, repeat
from pathlib import Path
from typing import Any

import numpy as np
from measuring import datasets, machine, table

from recsys import Recommender, read_ratings
from recsys.features.selection import with_features
from recsys.models.registry import model_class

CONNECTIONS = (1, 4, 16, 64)
KEY = "0123456789abcdef0123456789abcdef"
# Each model that explains its scores, with its options.
EXPLAINED: dict[str, dict[str, Any]] = {
    "popular": {},
    "bias": {},
    "clusters": {},
    "als": {},
    "bayes": {},
    "softimpute": {},
    "implicit-als": {},
    "implicit-knn": {},
    "ials": {"factors": 512},
    "ease": {},
    "sparse-ease": {},
    "spectral": {},
    "next": {},
    "blend": {},
}
NAIVE = """
from fastapi import FastAPI, HTTPException
from recsys import Recommender, UnknownIdError
app, recommender = FastAPI(), Recommender.load({model!r})
@app.get("/v1/recommend/{{user}}")
def recommend(user: str, n: int = 10):
    try:
        return recommender.recommend(user, n=n).to_dicts()
    except UnknownIdError as error:
        raise HTTPException(404, str(error))
"""


@dataclass
class Load:
    """Times and statuses of the answers to a load."""

    seconds: float = 0.0
    times: list[float] = field(default_factory=list)
    statuses: Counter[str] = field(default_factory=Counter)

    def row(self) -> list[Any]:
        """Return requests per second, and percentiles of their times in milliseconds."""
        cuts = statistics.quantiles(self.times, n=100)
        return [
            len(self.times) / self.seconds,
            *(1000 * cuts[at - 1] for at in (50, 95, 99)),
        ]


class Connection(asyncio.Protocol):
    """One keep-alive connection that asks again as soon as it is answered."""

    def __init__(self, requests: Iterator[bytes], until: float, load: Load) -> None:
        self.requests = requests
        self.until = until
        self.load = load
        self.buffer = b""
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: Any) -> None:
        self.transport = transport
        self.ask()

    def ask(self) -> None:
        if time.perf_counter() > self.until:
            self.transport.close()
            return
        self.start = time.perf_counter()
        self.transport.write(next(self.requests))

    def data_received(self, data: bytes) -> None:
        self.buffer += data
        head, found, body = self.buffer.partition(b"\r\n\r\n")
        if not found:
            return
        length = re.search(rb"(?i)content-length: (\d+)", head)
        if length is not None and len(body) < int(length[1]):
            return
        self.load.times.append(time.perf_counter() - self.start)
        self.load.statuses[head[9:12].decode()] += 1
        self.buffer = b""
        self.ask()

    def connection_lost(self, error: Exception | None) -> None:
        if time.perf_counter() <= self.until:
            self.load.statuses["lost"] += 1
        self.done.set_result(None)


async def driven(
    port: int, requests: Iterator[bytes], connections: int, seconds: float
) -> Load:
    load, loop = Load(), asyncio.get_running_loop()
    start = time.perf_counter()
    made = [
        await loop.create_connection(
            lambda: Connection(requests, start + seconds, load), "127.0.0.1", port
        )
        for _ in range(connections)
    ]
    await asyncio.gather(*(each.done for _, each in made))
    return replace(load, seconds=time.perf_counter() - start)


def run_load(
    port: int, requests: Iterator[bytes], connections: int, seconds: float
) -> Load:
    import uvloop

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(driven(port, requests, connections, seconds))


def get(path: str) -> bytes:
    return f"GET {path} HTTP/1.1\r\nhost: localhost\r\n\r\n".encode()


def with_key(request: bytes) -> bytes:
    """Return a request with the API key, which data of users need."""
    key = f"\r\nx-api-key: {KEY}\r\n\r\n"
    return request.replace(b"\r\n\r\n", key.encode(), 1)


def post(path: str, body: Any) -> bytes:
    text = json.dumps(body).encode()
    head = (
        f"POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
    )
    return head.encode() + b"content-length: %d\r\n\r\n%s" % (len(text), text)


def kinds(users: int, items: int) -> dict[str, list[bytes]]:
    rng = random.Random(0)
    strangers = [
        post(
            "/v1/recommend",
            {"history": [{"item": rng.randrange(items)} for _ in range(10)]},
        )
        for _ in range(500)
    ]
    return {
        "known users": [
            get(f"/v1/recommend/{rng.randrange(users)}") for _ in range(5000)
        ],
        "strangers": strangers,
        "similar items": [
            get(f"/v1/similar/{rng.randrange(items)}") for _ in range(5000)
        ],
    }


def fit(folder: Path, name: str, factors: int) -> Path:
    ratings = read_ratings(datasets() / "gowalla" / "train.txt")
    if name == "als":
        rng = np.random.default_rng(0)
        stars = rng.integers(1, 6, ratings.n_ratings).astype(np.float32)
        ratings = replace(ratings, implicit=False, data=stars, levels=None)
    Recommender(name, factors=factors, iterations=2).fit(ratings).save(folder / "model")
    return folder / "model"


@contextmanager
def running(command: Sequence[str], cwd: Path) -> Any:
    """Start a service; its process and port."""
    service = subprocess.Popen(command, cwd=cwd, stderr=subprocess.PIPE, text=True)
    assert service.stderr is not None
    try:
        port = next(
            int(found[1])
            for line in service.stderr
            if (found := re.search(r"http://127\.0\.0\.1:(\d+)", line))
        )
        first = repeat(with_key(get("/v1/recommend/1")))
        while not run_load(port, first, 1, 0.2).statuses["200"]:
            time.sleep(0.1)
        yield service, port
    finally:
        service.send_signal(signal.SIGTERM)
        service.communicate(timeout=60)


def family(process: int) -> set[int]:
    """Return a process and its descendants."""
    listed = subprocess.run(
        ["ps", "-e", "-o", "pid=,ppid="], capture_output=True, text=True
    ).stdout
    parents = {int(a): int(b) for a, b in map(str.split, listed.splitlines())}
    found = {process}
    while more := {pid for pid, parent in parents.items() if parent in found} - found:
        found |= more
    return found


def memory(process: int) -> float:
    """Return the megabytes of a process and its descendants; shared pages count in parts."""
    total = 0
    for pid in family(process):
        rollup = Path(f"/proc/{pid}/smaps_rollup").read_text()
        total += next(
            int(x.split()[1]) for x in rollup.splitlines() if x.startswith("Pss:")
        )
    return total / 1000


def processor(process: int) -> float:
    """Return the seconds of processor that a process and its descendants have used."""
    ticks = 0
    for pid in family(process):
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def serve(model: Path, workers: int) -> list[str]:
    words = [sys.executable, "-m", "recsys", "serve", str(model), "--port", "0"]
    return [*words, "--workers", str(workers)]


def naive(folder: Path, model: Path) -> list[str]:
    (folder / "naive.py").write_text(NAIVE.format(model=str(model)))
    words = [
        sys.executable,
        "-m",
        "uvicorn",
        "naive:app",
        "--port",
        "0",
        "--no-access-log",
    ]
    return [*words, "--log-level", "info"]


def seconds_of_request(
    service: subprocess.Popen[str], port: int, requests: Iterator[bytes]
) -> float:
    """Return the processor seconds of a service for each request of a second of load."""
    before = processor(service.pid)
    load = run_load(port, requests, 8, 1.0)
    assert load.statuses.total() == load.statuses["200"], load.statuses
    return (processor(service.pid) - before) / len(load.times)


def throughput(
    folder: Path, model: Path, requests: dict[str, list[bytes]], seconds: float
) -> None:
    commands = {"naive": naive(folder, model)}
    commands |= {f"{n} worker{'s' * (n > 1)}": serve(model, n) for n in (1, 2)}
    rows, used = [], {}
    for name, command in commands.items():
        with running(command, folder) as (service, port):
            wanted_of = (
                {"known users": requests["known users"]}
                if name == "naive"
                else requests
            )
            for kind, texts in wanted_of.items():
                wanted = cycle(texts)
                run_load(port, wanted, 8, 1.0)  # warm
                for connections in CONNECTIONS:
                    before = processor(service.pid)
                    load = run_load(port, wanted, connections, seconds)
                    rate = len(load.times) / (processor(service.pid) - before)
                    failed = load.statuses.total() - load.statuses["200"]
                    rows.append(
                        [name, kind, str(connections), *load.row(), rate, str(failed)]
                    )
            used[name] = memory(service.pid)
    head = [
        "service",
        "requests",
        "connections",
        "requests/s",
        "p50, ms",
        "p95, ms",
        "p99, ms",
    ]
    print(table([*head, "per second of processor", "failed"], rows))
    print("\nMegabytes (shared pages in parts): ", end="")
    print(", ".join(f"{name} {megabytes:.0f}" for name, megabytes in used.items()))


def with_condition(request: bytes) -> bytes:
    """Return a request for items in stock."""
    _, _, body = request.partition(b"\r\n\r\n")
    if not body:
        return request.replace(b" HTTP/1.1", b"?condition=available HTTP/1.1")
    options = {**json.loads(body), "condition": ["available"]}
    return post("/v1/recommend", options)


def write_table(path: Path, items: int, turn: int) -> None:
    """Write titles, prices and stock of all items; a third is out of stock, others each turn."""
    temporary = path.with_suffix(".new")
    with temporary.open("w") as file:
        file.write("item,title,price,stock\n")
        for item in range(items):
            stock = (item + turn) % 3
            file.write(f"{item},Product {item},{item % 97}.5,{stock}\n")
    temporary.replace(path)


def live(
    folder: Path, model: Path, requests: dict[str, list[bytes]], seconds: float
) -> None:
    """Compare a service with a table that is read every 5 s with one without a table."""
    path = folder / "items.csv"
    recommender = Recommender.load(model)
    n_items = recommender.ratings.n_items
    write_table(path, n_items, 0)
    # Titles in both services, whose answers then have the same length.
    recommender.with_item_table(path).save(model, overwrite=True)
    command = serve(model, 1)
    condition = ["--condition", "available=stock > 0"]
    options = ["--item-table", str(path), "--refresh", "5s", *condition]
    is_over = threading.Event()

    def change() -> None:
        turn = 0
        while not is_over.wait(1.0):
            turn += 1
            write_table(path, n_items, turn)

    rows = []
    with (
        running(command, folder) as (plain, plain_port),
        running([*command, *options], folder) as (living, living_port),
    ):
        thread = threading.Thread(target=change)
        for kind, wanted in requests.items():
            chosen = [with_condition(request) for request in wanted]
            loads = {
                "without a table": (plain, plain_port, cycle(wanted)),
                "a live table": (living, living_port, cycle(wanted)),
                "and a condition": (living, living_port, cycle(chosen)),
            }
            rates: dict[str, list[float]] = {name: [] for name in loads}
            for _, port, texts in loads.values():
                run_load(port, texts, 8, 1.0)  # warm
            if not thread.is_alive():
                thread.start()
            for _ in range(7):
                for name, (process, port, texts) in loads.items():
                    before = processor(process.pid)
                    load = run_load(port, texts, 16, seconds)
                    assert load.statuses.total() == load.statuses["200"], load.statuses
                    used = processor(process.pid) - before
                    rates[name].append(len(load.times) / used)
            first = statistics.median(rates["without a table"])
            for name, measured in rates.items():
                middle = statistics.median(measured)
                spread = f"{min(measured):.0f} to {max(measured):.0f}"
                rows.append([kind, name, middle, spread, f"{middle / first:.2f}"])
        is_over.set()
        thread.join()
    head = ["requests", "service", "per second of processor", "spread", "ratio"]
    print(f"\nA table of {n_items:,} items that changes, and is read every 5 s:")
    print(table(head, rows))


def explained(folder: Path, names: Sequence[str]) -> None:
    """Compare the processor time of lists with reasons with that of lists without."""
    rows = []
    for name in names:
        options = EXPLAINED[name]
        ratings = read_ratings(datasets() / "ml-latest-small")
        kind = model_class(name)
        if not kind.predicts_ratings:
            ratings = replace(ratings, implicit=True)
        if kind.uses_features:
            ratings = with_features(ratings)
        model = folder / f"{name}-explained"
        Recommender(name, **options).fit(ratings).save(model)
        users = ratings.users.values.to_list()
        items = ratings.items.values.to_list()
        rng = random.Random(0)
        rng.shuffle(users)
        histories = [
            [{"item": item} for item in rng.sample(items, 10)] for _ in range(500)
        ]
        settings = ", ".join(f"{key}={value}" for key, value in options.items())
        label = f"{name} ({settings})" if settings else name
        queries = ("", "explain=true", "explain=true&language=en")
        # More lists than the service keeps the reasons of.
        lengths = (9, 10, 11)
        few_users = users[:100]  # all of whom a second of warming asks for
        bodies: list[dict[str, Any]] = [
            {},
            {"explain": True},
            {"explain": True, "language": "en"},
        ]
        loads = {
            "first of a user": [
                [
                    get(f"/v1/recommend/{user}?n={n}&{query}".rstrip("&"))
                    for n in lengths
                    for user in users
                ]
                for query in queries
            ],
            "again": [
                [get(f"/v1/recommend/{user}?{query}".rstrip("?")) for user in few_users]
                for query in queries
            ],
            "of a session": [
                [
                    post("/v1/recommend", {"history": history, **body})
                    for history in histories
                ]
                for body in bodies
            ],
        }
        command = [*serve(model, 1), "--api-key", KEY]
        with running(command, folder) as (service, port):
            for who, texts in loads.items():
                in_turn = [cycle(map(with_key, requests)) for requests in texts]
                seconds: list[list[float]] = [[], [], []]
                for requests in in_turn:
                    run_load(port, requests, 8, 1.0)  # warm
                for _ in range(5):
                    for requests, used in zip(in_turn, seconds, strict=True):
                        used.append(seconds_of_request(service, port, requests))
                plain, reasons, words = map(statistics.median, seconds)
                ratios = [f"{reasons / plain:.2f}", f"{words / plain:.2f}"]
                rows.append([label, who, 1000 * plain, *ratios])
    head = ["model", "list", "list, ms", "with reasons", "in words"]
    print(
        "\nMilliseconds of processor for a request, and ratios with three reasons for each item:"
    )
    print(table(head, rows))


def soak(
    folder: Path, model: Path, requests: dict[str, list[bytes]], minutes: float
) -> None:
    """Load for minutes, with a new model every 10 seconds: failures, and memory at every minute."""
    shutil.copytree(model, folder / "other")
    manifest = folder / "other" / "model.json"
    print(
        f"\nSoak of {minutes:g} minutes, two workers, 16 connections, a new model every 10 s:"
    )
    with running(serve(model, 2), folder) as (service, port):
        texts = [text for of_kind in requests.values() for text in of_kind[:500]]
        random.shuffle(texts)
        mixed = cycle(texts)
        statuses: Counter[str] = Counter()
        for round_ in range(int(minutes * 6)):
            statuses += run_load(port, mixed, 16, 10.0).statuses
            new, old = folder / ".new", folder / ".old"
            shutil.copytree(folder / "other", new)
            os.utime(new / manifest.name)
            model.rename(old)
            new.rename(model)
            shutil.rmtree(old)
            if round_ % 6 == 5 or round_ == 0:
                print(
                    f"  {10 * (round_ + 1)} s: {dict(statuses)}, {memory(service.pid):.0f} MB"
                )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="als", choices=["als", "ials"])
    parser.add_argument("--factors", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--soak", type=float, default=0.0, metavar="MINUTES")
    parser.add_argument("--live", action="store_true")
    parser.add_argument("--explain", nargs="*", choices=EXPLAINED, metavar="MODEL")
    parser.add_argument(
        "--saved", type=Path, help="model fitted before, to save the time of a fit"
    )
    chosen = parser.parse_args()
    print(machine(), end="\n\n")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if chosen.explain is not None:
            explained(folder, chosen.explain or [*EXPLAINED])
            return
        if chosen.saved is None:
            model = fit(folder, chosen.model, chosen.factors)
        else:
            model = Path(shutil.copytree(chosen.saved, folder / "model"))
        ratings = Recommender.load(model).ratings
        requests = kinds(ratings.n_users, ratings.n_items)
        if chosen.seconds and not chosen.live:
            throughput(folder, model, requests, chosen.seconds)
        if chosen.live:
            live(folder, model, requests, chosen.seconds or 3.0)
        if chosen.soak:
            soak(folder, model, requests, chosen.soak)


if __name__ == "__main__":
    main()
