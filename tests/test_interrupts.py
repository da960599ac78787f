"""Signals at random moments: what is at the destination is absent, or whole."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import polars as pl
import pytest

import recsys
from recsys import Ratings, Recommender

TIMES = int(os.environ.get("RECSYS_INTERRUPTS", "3"))
FRAME = pl.DataFrame(
    {
        "user": [user for user in range(400) for _ in range(20)],
        "item": [(7 * user + 13 * n) % 500 for user in range(400) for n in range(20)],
        "rating": [1.0 + (user + n) % 5 for user in range(400) for n in range(20)],
    }
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("interrupts")
    FRAME.write_csv(place / "ratings.csv")
    Recommender("als", factors=4).fit(Ratings.from_frame(FRAME)).save(place / "old")
    return place


def stopped(args: list[str], folder: Path, number: int, after: float) -> tuple[int, str]:
    """Start the command, signal it after some seconds; return exit code and messages."""
    process = subprocess.Popen(
        [sys.executable, "-m", "recsys", *args, "--quiet"],
        cwd=folder,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(Path(recsys.__file__).parents[1])},
    )
    time.sleep(after)
    process.send_signal(number)
    _, said = process.communicate(timeout=60)
    return process.returncode, said


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
@pytest.mark.parametrize("verb", ["fit", "recommend", "impute"])
def test_nothing_half_written_is_taken_for_whole(verb: str, number: int, folder: Path) -> None:
    rng = random.Random(f"{verb} {number}")
    target = folder / {"fit": "new", "recommend": "out.csv", "impute": "all.csv"}[verb]
    args = {
        "fit": ["fit", "ratings.csv", "--out", "new", "--force"],
        "recommend": ["recommend", "old", "--all", "--output", "out.csv"],
        "impute": ["impute", "old", "--output", "all.csv"],
    }[verb]
    sizes = set()
    for _ in range(TIMES):
        code, said = stopped(args, folder, number, rng.uniform(0.4, 1.2))
        assert code in (0, 130, -number), said
        assert "Traceback" not in said or code == -number
        if target.is_dir():
            Recommender.load(target)
        elif target.exists():
            sizes.add(target.stat().st_size)
        visible = {each.name for each in folder.iterdir() if not each.name.startswith(".")}
        assert visible <= {"ratings.csv", "old", "new", "out.csv", "all.csv"}
    assert len(sizes) <= 1
