"""Start-up time of the command, compared with a bare Click program and `import numpy`.

`recsys --help`, `--version` and completion import no numerical library; their time is given
relative to a Click program with two verbs. `recsys recommend` from a saved model is given relative
to `python -c "import numpy"`. Each time is that of a whole process, with the same Python. Modules
are compiled to bytecode before, as in an installation.

Usage: python benchmarks/startup.py [--repeats N]
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from measuring import interleaved, machine, median, spread, table

from recsys import Recommender, read_ratings, sample_path
from recsys.data.implicit import as_implicit

BARE_CLICK = """\
import click

@click.group()
def cli():
    "A program with two verbs."

@cli.command()
@click.option("--n", default=10, help="How many.")
def one(n):
    "The first verb."

@cli.command()
@click.argument("path")
def two(path):
    "The second verb."

cli()
"""
CLICK, NUMPY = "bare Click --help", "import numpy"
LIMITS = {CLICK: 2, NUMPY: 3.5}
MODELS = ("als", "bayes", "spectral")


def recsys_command() -> list[str]:
    """Return the installed script, else the module."""
    script = Path(sys.executable).with_name("recsys")
    return [str(script)] if script.exists() else [sys.executable, "-m", "recsys"]


def runner(command: Sequence[str], **variables: str) -> Callable[[], object]:
    environment = {**os.environ, **variables}
    return lambda: subprocess.run(
        command, env=environment, stdout=subprocess.DEVNULL, check=True
    )


def processes(
    folder: Path, models: Sequence[str] = MODELS
) -> dict[str, Callable[[], object]]:
    """Save models in a folder; return what runs each of the processes."""
    bare = folder / "bare.py"
    bare.write_text(BARE_CLICK)
    ratings = read_ratings(sample_path())
    for name in models:
        data = as_implicit(ratings) if name == "spectral" else ratings
        Recommender(name).fit(data).save(folder / name)
    user = str(ratings.users.values[0])
    recsys, python = recsys_command(), [sys.executable]
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    os.environ["PYTHONPYCACHEPREFIX"] = str(folder / "compiled")
    completing = {
        "COMP_WORDS": "recsys re",
        "COMP_CWORD": "1",
        "_RECSYS_COMPLETE": "bash_complete",
    }
    candidates = {
        CLICK: runner([*python, str(bare), "--help"]),
        "recsys --help": runner([*recsys, "--help"]),
        "recsys --version": runner([*recsys, "--version"]),
        "recsys re<TAB>": runner(recsys, **completing),
        NUMPY: runner([*python, "-c", "import numpy"]),
        "import numpy, polars": runner([*python, "-c", "import numpy, polars"]),
    }
    for name in models:
        command = [*recsys, "recommend", str(folder / name), "--user", user]
        candidates[f"recsys recommend, {name}"] = runner(command)
    return candidates


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--repeats", type=int, default=21)
    repeats = parser.parse_args().repeats
    with tempfile.TemporaryDirectory() as folder:
        candidates = processes(Path(folder))
        interleaved(candidates, 1)
        times = interleaved(candidates, repeats)
    print(machine())
    print()
    print(table(["process", "ms", "min-max", "over", "ratio", "aim"], rows(times)))


def rows(times: dict[str, list[float]]) -> list[list[object]]:
    """Put each process over the one before it that it is measured against."""
    found: list[list[object]] = []
    base = ""
    seconds = {name: median(values) for name, values in times.items()}
    for name, time in seconds.items():
        base = name if name in LIMITS else base
        ratio = "" if name == base else f"{time / seconds[base]:.2f}"
        within = spread(1000 * value for value in times[name])
        aim = f"at most {LIMITS[base]}" if name.startswith("recsys") else ""
        found.append(
            [
                name,
                f"{1000 * time:.0f}",
                within,
                "" if name == base else base,
                ratio,
                aim,
            ]
        )
    return found


if __name__ == "__main__":
    main()
