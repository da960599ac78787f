"""Each write, rename, fsync and allocation fails once, and the power fails after each of them.

What is at the destination afterwards is as before or as it should be, and nothing else is left.
``RECSYS_FAULTS=all`` (`make faults`) tries all of them instead of a few, for each operation,
and ``RECSYS_FAULTS=50`` as many.
"""

from __future__ import annotations

import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import polars as pl
import pytest
from faults.disk import Disk, calls
from processes import running

from recsys import (
    Evaluation,
    Ratings,
    Recommender,
    random_split,
    read_split,
    save_split,
)
from recsys.lsi import LSI

HERE = Path(__file__).parent
FAULTS = os.environ.get("RECSYS_FAULTS", "")
ONCE, FROM_THEN_ON, EXIT = 1, 2, 3  # of shim.c
GROWING = ("create", "empty", "write", "close", "mkdir", "symlink", "link")
# NumPy cannot add a loop again whose first addition has failed, and polars panics.
OF_LIBRARIES = "loop/promoter", "zstd returned null pointer"
UNKEPT = r"the metrics are not kept next to bias: [^\n]+\n"
LARGE = 1024  # bytes of the smallest allocation that fails

FRAME = pl.DataFrame(
    {
        "user": [f"u{user}" for user in range(12) for _ in range(5)],
        "item": [f"i{(3 * user + 5 * n) % 9}" for user in range(12) for n in range(5)],
        "rating": [1.0 + (user * n) % 5 for user in range(12) for n in range(5)],
        "timestamp": [1_600_000_000 + 86_400 * n for n in range(60)],
    }
)
EVENT = '{"user":"u1","item":"i2","value":4,"timestamp":1600000000}\n'


class Operation(NamedTuple):
    """A command, what it needs in its folder, and what it changes there."""

    words: str
    needs: tuple[str, ...]
    targets: tuple[str, ...]


FIT = "fit ratings.csv --model als --factors 2 --iterations 2 --threads 1 --out"
OPERATIONS = {
    "fit": Operation(f"{FIT} new", ("ratings.csv",), ("new",)),
    "fit again": Operation(f"{FIT} bias --force", ("ratings.csv", "bias"), ("bias",)),
    "update": Operation(
        "update bias more.csv --force", ("bias", "more.csv"), ("bias",)
    ),
    "forget": Operation(
        "update bias --forget-user u1 --log events.jsonl --force",
        ("bias", "events.jsonl"),
        ("bias", "events.jsonl"),
    ),
    "promote": Operation(
        "versions promote als", ("als", "bias", "latest"), ("latest",)
    ),
    "first promotion": Operation("versions promote als", ("als",), ("latest",)),
    "measure": Operation(
        "evaluate bias --test more.csv --output measured.csv",
        ("bias", "more.csv"),
        ("bias", "measured.csv"),
    ),
    "evaluate": Operation(
        "evaluate ratings.csv --model bias --save saved --output out.json",
        ("ratings.csv",),
        ("saved", "out.json"),
    ),
    "index": Operation(
        "lsi index texts.txt -k 2 --out index --force",
        ("texts.txt", "index"),
        ("index",),
    ),
    "split": Operation(
        "split ratings.csv --out split --force", ("ratings.csv", "split"), ("split",)
    ),
    "lists": Operation(
        "recommend bias --all --output lists.csv", ("bias",), ("lists.csv",)
    ),
    "parquet": Operation(
        "recommend bias --all --output lists.parquet", ("bias",), ("lists.parquet",)
    ),
    "journal": Operation(
        f"journal events.jsonl {EVENT.strip()}", ("events.jsonl",), ("events.jsonl",)
    ),
    "torn journal": Operation(
        f"journal torn.jsonl {EVENT.strip()}",
        ("torn.jsonl",),
        ("torn.jsonl", "torn.jsonl.torn"),
    ),
    "first line": Operation(
        f"journal first.jsonl {EVENT.strip()}", (), ("first.jsonl",)
    ),
}


FEW = ("fit again", "promote", "lists", "torn journal", "first line")


class Outcome(NamedTuple):
    """What came of an operation: exit code, messages, numbers of calls and allocations."""

    code: int
    said: str
    counts: list[int]


class Forks:
    """The process that runs operations with faults, each in a process of its own."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def run(self, name: str, folder: Path, **settings: Any) -> Outcome:
        job = {
            "words": OPERATIONS[name].words.split(),
            "folder": str(folder),
            "log": None,
            "call": 0,
            "allocation": 0,
            "fault": ONCE,
            "smallest": 0,
        }
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(json.dumps(job | settings), file=self._process.stdin, flush=True)
        return Outcome(**json.loads(self._process.stdout.readline()))


@pytest.fixture(scope="module")
def forks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Forks]:
    compiler = shutil.which("cc")
    if sys.platform != "linux" or compiler is None:
        pytest.skip("needs Linux and a C compiler")
    shim = tmp_path_factory.mktemp("shim") / "shim.so"
    options = ["-shared", "-fPIC", "-O1", "-o", shim, HERE / "shim.c"]
    subprocess.run([compiler, *options], check=True)
    # The time of a machine with several processors must not decide the order of the calls.
    threads = {"POLARS_MAX_THREADS": "1", "OMP_NUM_THREADS": "1"}
    environment = {**os.environ, **threads, "LD_PRELOAD": str(shim)}
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with running(
        sys.executable, HERE / "forks.py", env=environment, **pipes
    ) as process:
        yield Forks(process)


@pytest.fixture(scope="module")
def material(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("material")
    FRAME.write_csv(folder / "ratings.csv")
    FRAME.head(4).with_columns(item=pl.lit("i8"), rating=3.0).write_csv(
        folder / "more.csv"
    )
    for name in ("als", "bias"):
        fitted = Recommender(name).fit(Ratings.from_frame(FRAME))
        fitted.save(folder / name)
    texts = ["salt and ice", "ice and water", "cats and mice", "mice and salt"]
    (folder / "texts.txt").write_text("\n".join(texts))
    LSI(2).fit(texts[:3]).save(folder / "index")
    (folder / "latest").symlink_to("bias")
    (folder / "events.jsonl").write_text(EVENT + EVENT.replace("u1", "u2"))
    (folder / "torn.jsonl").write_text(EVENT + EVENT[:20])
    save_split(random_split(Ratings.from_frame(FRAME), 0.2), folder / "split")
    return folder


def laid_out(name: str, material: Path, folder: Path) -> Path:
    """Return a new folder with what an operation needs."""
    folder.mkdir()
    for need in OPERATIONS[name].needs:
        source = material / need
        if source.is_symlink():
            (folder / need).symlink_to(source.readlink())
        elif source.is_dir():
            shutil.copytree(source, folder / need)
        else:
            shutil.copy(source, folder / need)
    return folder


def contents(path: Path) -> str:
    """Load what is at a path, all of it, and return what it has; "" if nothing is there."""
    if not os.path.lexists(path):
        return ""
    if path.name in ("new", "als", "bias", "latest"):
        Recommender.load(path, verify=True)
        document = json.loads((path / "model.json").read_text())
        results = path / "metrics.json"
        tests = (
            len(json.loads(results.read_text())["measured"]) if results.exists() else 0
        )
        return f"{document['files']} {tests}"
    if path.name == "index":
        LSI.load(path, verify=True)
        return str(json.loads((path / "model.json").read_text())["files"])
    if path.name == "saved":
        return str(Evaluation.load(path).table["model"].to_list())
    if path.name == "split":
        return str(read_split(path).train.n_ratings)
    if path.suffix in (".jsonl", ".torn"):  # what a reader of whole lines gets
        lines = path.read_text().splitlines(keepends=True)
        return "".join(line for line in lines if line.endswith("\n"))
    if path.suffix == ".parquet":
        return str(pl.read_parquet(path).rows())
    if path.name == "measured.csv":  # which has times of the fit
        return str(pl.read_csv(path).select("model", "rmse").rows())
    if path.name == "out.json":
        return str(json.loads(path.read_text())["models"][0]["model"])
    return path.read_text()


def state(name: str, folder: Path) -> tuple[str, ...]:
    return tuple(contents(folder / target) for target in OPERATIONS[name].targets)


def extra(name: str, folder: Path) -> list[str]:
    """Return the names of what an operation has left, in all folders."""
    expected = {*OPERATIONS[name].needs, *OPERATIONS[name].targets}
    visible = {path.name for path in folder.iterdir()} - expected
    hidden = {path.name for path in folder.rglob(".*")}
    return sorted(visible | hidden)


@pytest.fixture(scope="module")
def trial(
    request: pytest.FixtureRequest,
    forks: Forks,
    material: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> Trial:
    return Trial(request.param, forks, material, tmp_path_factory.mktemp("trial"))


every_operation = pytest.mark.parametrize(
    "trial", OPERATIONS if FAULTS else FEW, indirect=True
)


class Trial:
    """An operation with its states before and after, and the calls that it makes."""

    def __init__(self, name: str, forks: Forks, material: Path, scratch: Path) -> None:
        self.name = name
        self._forks = forks
        self._material = material
        self._scratch = scratch
        self._number = 0
        forks.run(name, self.folder())  # imports what the next processes then have
        folder = self.folder()
        self.old = state(name, folder)
        self.disk = Disk(folder)
        log = scratch / "log"
        outcome = forks.run(name, folder, log=str(log), smallest=LARGE)
        assert (outcome.code, extra(name, folder)) == (0, []), outcome
        self.new = state(name, folder)
        self.calls = [*calls(log.read_bytes())]
        self.n_allocations = outcome.counts[1]

    def folder(self) -> Path:
        self._number += 1
        return laid_out(self.name, self._material, self._scratch / f"f{self._number}")

    def run(self, folder: Path, **settings: Any) -> Outcome:
        return self._forks.run(self.name, folder, **settings)

    def numbers(self, names: tuple[str, ...] | None) -> list[int]:
        """Return the numbers of the calls that succeed, of all names or of some."""
        return [
            number
            for number, call in enumerate(self.calls, 1)
            if not call.name.startswith("!") and (names is None or call.name in names)
        ]

    def clean(self, folder: Path) -> None:
        """Run the operation again, or another one if it cannot be repeated."""
        if self.run(folder).code:
            (folder / "more.csv").write_text(
                "user,item,rating,timestamp\nu3,i1,3,1600000000\n"
            )
            assert self._forks.run("update", folder).code == 0
            (folder / "more.csv").unlink()


def chosen(numbers: Sequence[int], count: int, seed: str) -> list[int]:
    """Return all numbers, or some of them."""
    if FAULTS.isdigit():
        count = int(FAULTS)
    if FAULTS == "all" or len(numbers) <= count:
        return list(numbers)
    return sorted(random.Random(seed).sample(numbers, count))


def check_states(trial: Trial, folder: Path, what: object) -> str:
    """Check that each target is old or new, and return which."""
    now = state(trial.name, folder)
    for target, old, new in zip(now, trial.old, trial.new, strict=True):
        assert target in (old, new), what
    return "new" if now == trial.new else "old"


def check_outcome(outcome: Outcome, came: str, what: object) -> None:
    """Check that the command has done its work, or says in a sentence why not."""
    if outcome.code == 0:
        # Metrics are printed where they cannot be kept, too.
        assert came == "new" or re.fullmatch(UNKEPT, outcome.said), what
        return
    assert outcome.code == 1, what
    assert re.fullmatch(r"Error: [^\n]*[.)]\n", outcome.said), what
    assert "unexpected" not in outcome.said, what


@every_operation
def test_a_failed_call(trial: Trial) -> None:
    count: Counter[str] = Counter()
    for fault in (ONCE, FROM_THEN_ON):
        numbers = trial.numbers(GROWING if fault == FROM_THEN_ON else None)
        for number in chosen(numbers, 2, f"{trial.name} {fault}"):
            folder = trial.folder()
            call = trial.calls[number - 1]
            outcome = trial.run(folder, call=number, fault=fault)
            what = (call.name, call.path, number, fault, outcome)
            came = check_states(trial, folder, what)
            check_outcome(outcome, came, what)
            left = extra(trial.name, folder)
            if left:  # only a removal that failed leaves something, until the next run
                assert (call.name, fault) == ("remove", ONCE), (left, what)
                trial.clean(folder)
                assert extra(trial.name, folder) == [], (left, what)
            count[f"{came}, exit code {outcome.code}{', remains' * bool(left)}"] += 1
            shutil.rmtree(folder)
    print(f"\n{trial.name}: {len(trial.calls)} calls, {dict(count)}")


@every_operation
def test_a_failed_allocation(trial: Trial) -> None:
    count: Counter[str] = Counter()
    for number in chosen(range(1, trial.n_allocations + 1), 2, trial.name):
        folder = trial.folder()
        outcome = trial.run(folder, allocation=number, smallest=LARGE)
        what = (number, outcome)
        came = check_states(trial, folder, what)
        if outcome.code not in (0, 1):
            # The C library and polars end a process that has no memory.
            assert outcome.code not in (-signal.SIGXCPU, -signal.SIGSEGV), what
            count[f"{came}, ended by {outcome.code}"] += 1
            trial.clean(folder)
        else:
            # polars says first that it panics.
            said = "".join(outcome.said.partition("Error: ")[1:])
            is_ours = not any(words in said for words in OF_LIBRARIES)
            if is_ours:
                check_outcome(outcome._replace(said=said), came, what)
            count[f"{came}, exit code {outcome.code}"] += 1
        assert extra(trial.name, folder) == [], what
        shutil.rmtree(folder)
    print(f"\n{trial.name}: {trial.n_allocations} allocations, {dict(count)}")


@every_operation
def test_a_power_cut(trial: Trial, tmp_path: Path) -> None:
    rng = random.Random(trial.name)
    count = len(trial.calls)
    tried = {*chosen(range(1, count), 4, trial.name), count}
    digests: set[str] = set()
    for number, call in enumerate(trial.calls, 1):
        if not call.name.startswith("!"):
            trial.disk.apply(call)
        if number not in tried:
            continue
        for kind, survivors in trial.disk.after_a_cut(rng):
            is_last = number == count
            if survivors.digest() in digests and not is_last:
                continue
            digests.add(survivors.digest())
            root = tmp_path / "cut"
            survivors.write(root)
            what = (number, call.name, call.path, kind)
            came = check_states(trial, root, what)
            # The command has ended, or the event was acknowledged.
            assert came == "new" or not is_last, what
            shutil.rmtree(root)
    print(f"\n{trial.name}: {count} calls, {len(digests)} states of the disk")
