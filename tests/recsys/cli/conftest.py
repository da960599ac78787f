"""A small ratings directory, a model fitted to it, and ways to run the command."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from recsys.cli.main import cli

Run = Callable[..., Result]
N_USERS, N_ITEMS = 40, 30


@pytest.fixture(autouse=True)
def quiet_surroundings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Run in an empty directory, without settings from outside."""
    monkeypatch.chdir(tmp_path)
    for name in [name for name in os.environ if name.startswith("RECSYS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("COLUMNS", "100")


@pytest.fixture(scope="session")
def ratings(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A MovieLens directory; items from 100, of two kinds, of which each user likes one."""
    folder = tmp_path_factory.mktemp("data") / "films"
    folder.mkdir()
    rng = random.Random(0)
    lines = ["userId,movieId,rating,timestamp"]
    for user in range(1, N_USERS + 1):
        for item in rng.sample(range(N_ITEMS), 12):
            likes = (user + item) % 2 == 0
            rating = rng.choice([4.0, 4.5, 5.0] if likes else [1.0, 2.0, 2.5])
            time = 1_000_000_000 + 7919 * len(lines) % 10_007  # users take turns
            lines.append(f"{user},{100 + item},{rating},{time}")
    (folder / "ratings.csv").write_text("\n".join(lines) + "\n")
    titles = [
        f'{100 + item},"Film {item}, The [{item}] (1999)",Drama'
        for item in range(N_ITEMS)
    ]
    (folder / "movies.csv").write_text(
        "\n".join(["movieId,title,genres", *titles]) + "\n"
    )
    return folder


@pytest.fixture(scope="session")
def plays(ratings: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same contacts with how often there was one: mostly once or twice, sometimes often."""
    import polars as pl

    path = tmp_path_factory.mktemp("counts") / "plays.tsv"
    frame = pl.read_csv(ratings / "ratings.csv").select(user="userId", artist="movieId")
    often = pl.int_range(pl.len()) % 7
    counts = pl.when(often == 0).then(40).otherwise(1 + often % 2)
    frame.with_columns(plays=counts).write_csv(path, separator="\t")
    return path


@pytest.fixture(scope="session")
def implicit(ratings: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same contacts in a file without ratings and times."""
    import polars as pl

    path = tmp_path_factory.mktemp("implicit") / "plays.csv"
    frame = pl.read_csv(ratings / "ratings.csv").select(user="userId", item="movieId")
    frame.write_csv(path)
    return path


@pytest.fixture(scope="session")
def model(ratings: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A saved als model of `ratings`."""
    from recsys import Recommender, read_ratings

    path = tmp_path_factory.mktemp("models") / "model"
    Recommender("als", factors=4).fit(read_ratings(ratings)).save(path)
    return path


@pytest.fixture
def run() -> Run:
    """Run the command in this process."""

    def invoke(*args: object, code: int = 0, **extra: object) -> Result:
        result = CliRunner().invoke(cli, [str(arg) for arg in args], **extra)
        assert result.exit_code == code, result.output
        return result

    return invoke


@pytest.fixture(scope="session")
def command() -> Callable[..., list[str]]:
    """The command line that starts the command in a process of its own."""
    return lambda *args: [sys.executable, "-m", "recsys", *map(str, args)]


@pytest.fixture(scope="session")
def source_tree() -> Path:
    """Where the packages are imported from, for processes that start in another directory."""
    import recsys

    return Path(recsys.__file__).parents[1]


@pytest.fixture
def spawn(
    command: Callable[..., list[str]], source_tree: Path
) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Run the command in a process of its own."""

    def start(*args: object, **extra: object) -> subprocess.CompletedProcess[str]:
        environment = {
            **os.environ,
            "PYTHONPATH": str(source_tree),
            **extra.pop("env", {}),
        }
        options = {"capture_output": True, "text": True, "timeout": 60, **extra}
        return subprocess.run(command(*args), env=environment, **options)

    return start
