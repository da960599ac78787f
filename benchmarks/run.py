"""Run the benchmarks one after the other: `make bench` the small set, `make bench-full` all.

With --out, what they print goes into one Markdown file too, below the machine and the versions of
everything measured. Scripts on real data need RECSYS_DATASETS; what is left out is said.

Usage: python benchmarks/run.py [--full] [--only SCRIPT]... [--out FILE]
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

from measuring import machine, table

HERE = Path(__file__).resolve().parent
SMALL = [
    ["startup.py"],
    ["als_kernel.py", "--ratings", "2000000", "--repeats", "3"],
    ["fit_memory.py", "--ratings", "2000000"],
    ["sources.py", "--rows", "1000000", "--recommendations", "1000000"],
    ["svd.py", "--repeats", "3", "gowalla", "normalised", "cranfield", "dense"],
    ["serve.py", "--repeats", "3"],
    ["roofline.py"],
    ["metrics.py", "--repeats", "3"],
    ["lsi.py", "--repeats", "3", "100", "200"],
    ["topn.py", "--data", "ml-latest-small"],
]
FULL = [
    ["startup.py"],
    ["als_kernel.py"],
    ["train.py", "--sweeps", "4", "64"],
    ["train_implicit.py", "--sweeps", "4", "64"],
    ["fit_memory.py"],
    ["sources.py"],
    ["scale.py"],
    ["spark.py"],
    ["svd.py"],
    ["roofline.py"],
    ["blocks.py"],
    ["serve.py"],
    ["serve_http.py", "--soak", "5"],
    ["metrics.py"],
    ["lsi.py", "50", "100", "200"],
    ["ratings.py"],
    ["features.py"],
    ["features.py", "--scale", "25000000"],
    ["topn.py", "--data", "gowalla", "popular", "spectral", "implicit-als, 64"],
    ["topn.py", "--data", "ml-latest-small"],
]
ON_REAL_DATA = {
    "svd.py",
    "roofline.py",
    "serve.py",
    "serve_http.py",
    "metrics.py",
    "lsi.py",
    "ratings.py",
    "topn.py",
} | {"features.py"}
MEASURED = (
    "lowrank-recsys", "numpy", "scipy", "scikit-learn", "polars", "implicit", "gensim", "bm25s",
    "pyspark", "scikit-surprise", "lenskit", "ranx", "cmfrec", "lightfm-next", "myfm",
)  # fmt: skip
VERSIONS = """
import importlib.metadata as m, json, sys
found = {d.metadata["Name"].lower(): d.version for d in m.distributions() if d.metadata["Name"]}
print(json.dumps({name: found[name] for name in sys.argv[1:] if name in found}))
"""

Say = Callable[[str], None]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--full", action="store_true", help="all benchmarks, in their full size")
    parser.add_argument("--only", action="append", metavar="SCRIPT", help="such as svd.py")
    parser.add_argument("--out", type=Path, metavar="FILE", help="also write a Markdown file")
    options = parser.parse_args()
    chosen = FULL if options.full else SMALL
    names = {script for script, *_ in chosen}
    unknown = set(options.only or ()) - names
    if unknown:
        parser.error(f"there is no {', '.join(sorted(unknown))} in this set: {sorted(names)}")
    if options.out:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text("", encoding="utf-8")

    def say(text: str) -> None:
        print(text, flush=True)
        if options.out:
            with options.out.open("a", encoding="utf-8") as file:
                file.write(f"{text}\n")

    say(head())
    failed = [each for each in chosen if options.only is None or each[0] in options.only]
    failed = [" ".join(each) for each in failed if not run(each, say)]
    if failed:
        sys.exit(f"These benchmarks failed: {'; '.join(failed)}.")


def head() -> str:
    """Return the machine, the date and the versions, as the head of the file."""
    peers = [path for path in os.environ.get("PEERS_PYTHON", "").split(os.pathsep) if path]
    rows = [
        [place, ", ".join(f"{name} {version}" for name, version in versions(python).items())]
        for place, python in [("here", sys.executable), *(("peers", peer) for peer in peers)]
    ]
    today = datetime.now(tz=UTC).date()
    return f"# Benchmarks of {today}\n\n{machine()}\n\n{table(['where', 'versions'], rows)}"


def versions(python: str) -> dict[str, str]:
    """Return the versions of what is measured, where another Python has it."""
    done = subprocess.run(
        [python, "-c", VERSIONS, *MEASURED], check=True, stdout=subprocess.PIPE, text=True
    )
    found: dict[str, str] = json.loads(done.stdout)
    return found


def run(command: list[str], say: Say) -> bool:
    """Run a script in a process of its own and say what it prints; False if it fails."""
    script, *arguments = command
    say(f"\n## {' '.join(command)}\n")
    if script in ON_REAL_DATA and not os.environ.get("RECSYS_DATASETS"):
        say("Left out: RECSYS_DATASETS names no folder of data sets.")
        return True
    environment = dict(os.environ)
    environment["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{environment.get('PATH', '')}"
    if folder := environment.get("RECSYS_DATASETS"):
        environment["RECSYS_DATASETS"] = str(Path(folder).resolve())
    start = time.perf_counter()
    # Elsewhere than at the sources: what a script starts takes the packages that are installed.
    with (
        tempfile.TemporaryDirectory() as elsewhere,
        subprocess.Popen(
            [sys.executable, str(HERE / script), *arguments],
            env=environment,
            cwd=elsewhere,
            stdout=subprocess.PIPE,
            text=True,
        ) as process,
    ):
        assert process.stdout is not None
        for line in process.stdout:
            say(line.rstrip("\n"))
    end = "" if process.returncode == 0 else f", failed with exit code {process.returncode}"
    say(f"\n({time.perf_counter() - start:.0f} s{end})")
    return process.returncode == 0


if __name__ == "__main__":
    main()
