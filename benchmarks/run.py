"""Run benchmarks one after the other: `make bench` runs the small set, `make bench-full` all.

With --out, their output also goes to one Markdown file, after the machine and the versions of all
packages. Each section begins with the description in the docstring of its script. Scripts on real
data need RECSYS_DATASETS; without it they are left out with a message.

With --tiny, each section of the full set, and each other script, runs once on tiny generated data:
no section is broken without notice. Only failures matter there.

With --renew, the sections that ran take the place of those in a file that has them, such as
RESULTS.md. Remarks and pictures below the seconds of a section stay.

Usage: python benchmarks/run.py [--full | --tiny] [--only SCRIPT]... [--out FILE] [--renew FILE]
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path
from queue import SimpleQueue
from typing import NamedTuple

import tiny
from measuring import machine, table

HERE = Path(__file__).resolve().parent
SMALL = {
    "Start-up": "startup.py",
    "One exact ALS half-sweep": "als_kernel.py --ratings 2000000 --repeats 3",
    "Time and memory of a whole fit": "fit_memory.py --ratings 2000000",
    "Reading and writing": "sources.py --rows 1000000 --recommendations 1000000",
    "Truncated SVD and PCA": "svd.py --repeats 3 gowalla normalised cranfield dense",
    "Serving: top-20 of all Gowalla users": "serve.py --repeats 3",
    "Kernels under the roofline": "roofline.py",
    "Ranking metrics of all Gowalla users": "metrics.py --repeats 3",
    "Text search on Cranfield and CACM": "lsi.py --repeats 3 100 200",
    "Top-N on ml-latest-small": "topn.py --data ml-latest-small",
}


class Section(NamedTuple):
    """A script with its options in full size, and on tiny data, where its figures mean nothing."""

    full: str
    tiny: str


FULL = {
    "One exact ALS half-sweep, 25 million ratings": Section(
        "als_kernel.py --repeats 3", "als_kernel.py --ratings 20000 --repeats 1 8"
    ),
    "One exact ALS half-sweep with AVX2": Section(
        "LOWRANK_KERNELS=avx2 als_kernel.py --repeats 3 64 128",
        "LOWRANK_KERNELS=avx2 als_kernel.py --ratings 20000 --repeats 1 8",
    ),
    "One full ALS sweep, 25 million ratings": Section(
        "train.py --sweeps 4 64", "train.py --ratings 20000 --sweeps 1 8"
    ),
    "One full sweep of implicit ALS, 25 million interactions": Section(
        "train_implicit.py --sweeps 3",
        "train_implicit.py --interactions 20000 --sweeps 1 8",
    ),
    "Truncated SVD of the Gowalla training matrix": Section(
        "svd.py --repeats 3 gowalla normalised",
        "svd.py normalised --repeats 1 --ranks 8",
    ),
    "Truncated SVD with AVX2": Section(
        "LOWRANK_KERNELS=avx2 svd.py --repeats 3 gowalla",
        "LOWRANK_KERNELS=avx2 svd.py gowalla --repeats 1 --ranks 8",
    ),
    "Truncated SVD and PCA of other matrices": Section(
        "svd.py --repeats 3 cranfield dense 25m",
        "svd.py cranfield dense 25m --repeats 1 --ranks 8 --entries 20000 --rows 300",
    ),
    "Non-negative factors of counts": Section(
        "nmf.py --threads 1", "nmf.py --threads 1 --repeats 1 --ranks 4"
    ),
    "Tables with columns of very different units": Section(
        "scales.py", "scales.py --tables 2"
    ),
    "A matrix larger than memory": Section("blocks.py", "blocks.py --rows 2000"),
    "Kernels under the roofline": Section(
        "roofline.py", "roofline.py --budget 0 --out roofline.png"
    ),
    "Serving: top-20 of all Gowalla users": Section("serve.py", "serve.py --repeats 1"),
    "Requests to the service": Section(
        "serve_http.py --soak 5", "serve_http.py --seconds 0.2 --soak 0.17"
    ),
    "Start-up": Section("startup.py", "startup.py --repeats 1"),
    "Time and memory of a whole fit": Section(
        "fit_memory.py", "fit_memory.py --ratings 20000"
    ),
    "Updates": Section(
        "update.py --ratings 25000000", "update.py --ratings 20000 --new 100"
    ),
    "The main job from 1 million to 100 million ratings": Section(
        "scale.py --sweeps 3", "scale.py --ratings 20000 --sweeps 1"
    ),
    "Spark next to the local engine": Section("spark.py 1000000", "spark.py 20000"),
    "Reading and writing of files and databases": Section(
        "sources.py --rows 5000000",
        "sources.py --rows 20000 --recommendations 10000 --repeats 1",
    ),
    "Ranking metrics of all Gowalla users": Section(
        "metrics.py", "metrics.py --repeats 1"
    ),
    "Text search on Cranfield and CACM": Section(
        "lsi.py 100", "lsi.py --repeats 1 --copies 2 20"
    ),
    "Top-N on Gowalla's published split": Section(
        "topn.py --data gowalla popular spectral ials auto",
        "topn.py --data gowalla popular spectral ials",
    ),
    "Top-N on Last.fm and ml-latest-small": Section(
        "topn.py --data lastfm --data ml-latest-small",
        "topn.py --data lastfm popular auto",
    ),
    "Seconds with features, 25 million ratings": Section(
        "features.py --scale 25000000 --models als,ials",
        "features.py --scale 20000 --models als,ials",
    ),
    "Rating prediction on ml-latest-small": Section(
        "ratings.py", "ratings.py --splits 1"
    ),
    "Features of items on ml-latest-small": Section(
        "features.py --first 70", "features.py --splits 2"
    ),
    "What comes next": Section("sequences.py", "sequences.py"),
    "Coverage of intervals": Section("intervals.py", "intervals.py --trials 20"),
}
# Scripts of no set, which run with --tiny, too, so that a change that breaks them is noticed.
OTHERS = {
    "Habits": "repeats.py --users 20",
    "Search of generated documents": "search_scale.py --documents 6000 --dimensions 20",
    "Sparse weights of EASE": "sparse_ease.py 100",
    "Planted answers": "planted.py groups staleness online chances --trials 1",
}
ON_REAL_DATA = {
    *("svd.py", "nmf.py", "roofline.py", "serve.py", "serve_http.py", "metrics.py"),
    *("lsi.py", "ratings.py", "topn.py", "features.py"),
    *("sequences.py", "sparse_ease.py"),
}
MEASURED = (
    "lowrank-recsys", "numpy", "scipy", "scikit-learn", "polars", "implicit", "gensim", "bm25s",
    "pyspark", "scikit-surprise", "lenskit", "ranx", "cmfrec", "lightfm-next", "myfm",
    "rectools", "torch",
)  # fmt: skip
VERSIONS = """
import importlib.metadata as m, json, platform, sys
found = {d.metadata["Name"].lower(): d.version for d in m.distributions() if d.metadata["Name"]}
measured = {name: found[name] for name in sys.argv[1:] if name in found}
print(json.dumps({"Python": platform.python_version(), **measured}))
"""

Say = Callable[[str], None]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    sets = parser.add_mutually_exclusive_group()
    sets.add_argument(
        "--full", action="store_true", help="all benchmarks, in their full size"
    )
    sets.add_argument(
        "--tiny", action="store_true", help="all of them once, on tiny generated data"
    )
    parser.add_argument(
        "--only", action="append", metavar="SCRIPT", help="such as svd.py"
    )
    parser.add_argument(
        "--out", type=Path, metavar="FILE", help="also write a Markdown file"
    )
    parser.add_argument(
        "--renew", type=Path, metavar="FILE", help="replace these sections of a file"
    )
    options = parser.parse_args()
    chosen = SMALL
    if options.full:
        chosen = {title: section.full for title, section in FULL.items()}
    if options.tiny:
        chosen = {title: section.tiny for title, section in FULL.items()} | OTHERS
    names = {script_of(command) for command in chosen.values()}
    unknown = set(options.only or ()) - names
    if unknown:
        parser.error(
            f"there is no {', '.join(sorted(unknown))} in this set: {sorted(names)}"
        )
    if options.out:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text("", encoding="utf-8")

    said: list[str] = []

    def say(text: str) -> None:
        print(text, flush=True)
        said.append(text)
        if options.out:
            with options.out.open("a", encoding="utf-8") as file:
                file.write(f"{text}\n")

    if options.only:
        chosen = {
            title: command
            for title, command in chosen.items()
            if script_of(command) in options.only
        }
    if options.renew:
        old = options.renew.read_text(encoding="utf-8")
        if missing := [title for title in chosen if f"\n## {title}\n" not in old]:
            parser.error(f"{options.renew} has no section {'; '.join(missing)}")
    say(head())
    with ExitStack() as stack:
        if options.tiny:
            folder = stack.enter_context(tempfile.TemporaryDirectory())
            tiny.write(Path(folder))
            os.environ["RECSYS_DATASETS"] = folder
        # Nothing is measured on tiny data: two at once are sooner done.
        failed = run_all(chosen, say, at_once=2 if options.tiny else 1)
    if failed:
        sys.exit(f"These benchmarks failed: {'; '.join(failed)}.")
    if options.renew:
        options.renew.write_text(renewed(old, "\n".join(said)), encoding="utf-8")


def renewed(text: str, results: str) -> str:
    """Return a text with the sections of results in place of its own of the same titles."""
    for section in results.split("\n## ")[1:]:
        title = section.partition("\n")[0]
        start = text.index(f"\n## {title}\n")
        *_, remarks = re.split(r"^\(\d+ s.*\)$", text[start:], maxsplit=1, flags=re.M)
        text = f"{text[:start]}\n## {section.strip()}{remarks}"
    return text


def run_all(chosen: dict[str, str], say: Say, *, at_once: int) -> list[str]:
    """Run some commands, and say what they print in their order; return the ones that failed."""
    failed, described = [], set()
    with ExitStack() as stack:
        pool = ThreadPoolExecutor(at_once)
        # An interrupt ends what runs, and what waits does not begin.
        stack.callback(pool.shutdown, cancel_futures=True)
        outputs = [Output(pool, command) for command in chosen.values()]
        for (title, command), output in zip(chosen.items(), outputs, strict=True):
            script = script_of(command)
            typed = command.replace(script, f"python benchmarks/{script}")
            say(f"\n## {title}\n\n`{typed}`\n")
            if script not in described:
                say(f"{description(script)}\n")
            described.add(script)
            for line in output.lines():
                say(line)
            if not output.is_done.result():
                failed.append(command)
    return failed


class Output:
    """The lines that a command prints, while it runs."""

    def __init__(self, pool: ThreadPoolExecutor, command: str) -> None:
        self.queue: SimpleQueue[str | None] = SimpleQueue()
        self.is_done = pool.submit(self.run, command)

    def run(self, command: str) -> bool:
        """Run the command; a None says that nothing follows."""
        try:
            return run(command, self.queue.put)
        finally:
            self.queue.put(None)

    def lines(self) -> Iterator[str]:
        """Yield the lines."""
        while (line := self.queue.get()) is not None:
            yield line


def script_of(command: str) -> str:
    return next(word for word in command.split() if word.endswith(".py"))


def description(script: str) -> str:
    """Return what a script says of itself before its usage."""
    said = (
        ast.get_docstring(ast.parse((HERE / script).read_text(encoding="utf-8"))) or ""
    )
    return said.partition("Usage:")[0].strip()


def head() -> str:
    """Return the machine, the date and the versions, as the head of the file."""
    peers = [
        path for path in os.environ.get("PEERS_PYTHON", "").split(os.pathsep) if path
    ]
    rows = [
        [
            place,
            ", ".join(
                f"{name} {version}" for name, version in versions(python).items()
            ),
        ]
        for place, python in [
            ("here", sys.executable),
            *(("peers", peer) for peer in peers),
        ]
    ]
    today = datetime.now(tz=UTC).date()
    return f"# Benchmarks of {today}\n\n{machine()}\n\n{table(['where', 'versions'], rows)}"


def versions(python: str) -> dict[str, str]:
    """Return the versions of what is measured, where another Python has it."""
    done = subprocess.run(
        [python, "-c", VERSIONS, *MEASURED],
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    )
    found: dict[str, str] = json.loads(done.stdout)
    return found


def run(command: str, say: Say) -> bool:
    """Run a script in a process of its own and say what it prints; False if it fails."""
    script = script_of(command)
    if script in ON_REAL_DATA and not os.environ.get("RECSYS_DATASETS"):
        say("Left out: RECSYS_DATASETS names no folder of data sets.")
        return True
    if script == "spark.py" and shutil.which("java") is None:
        say("Left out: there is no Java on the PATH.")
        return True
    before, _, after = command.partition(script)
    environment = os.environ | dict(word.split("=") for word in before.split())
    environment["PATH"] = (
        f"{Path(sys.executable).parent}{os.pathsep}{environment.get('PATH', '')}"
    )
    if folder := environment.get("RECSYS_DATASETS"):
        environment["RECSYS_DATASETS"] = str(Path(folder).resolve())
    start, this_machine = time.perf_counter(), machine()
    # Elsewhere than at the sources: what a script starts takes the packages that are installed.
    with (
        tempfile.TemporaryDirectory() as elsewhere,
        subprocess.Popen(
            [sys.executable, str(HERE / script), *after.split()],
            env=environment,
            cwd=elsewhere,
            stdout=subprocess.PIPE,
            text=True,
        ) as process,
    ):
        assert process.stdout is not None
        for line in process.stdout:
            if line.rstrip() != this_machine:  # the head has it
                say(line.rstrip())
    end = (
        ""
        if process.returncode == 0
        else f", failed with exit code {process.returncode}"
    )
    say(f"\n({time.perf_counter() - start:.0f} s{end})")
    return process.returncode == 0


if __name__ == "__main__":
    main()
