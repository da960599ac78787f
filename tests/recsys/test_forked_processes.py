"""In a forked process, whose polars would hang, every way in raises one sentence at once."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import os, sys
import numpy as np
import polars as pl
from recsys import Ratings, Recommender, read_ratings
from recsys.errors import RecsysError
from recsys.lsi import Documents

frame = pl.DataFrame({"user": [1, 2], "item": [1, 2]})
frame.write_csv("r.csv")
Recommender("popular").fit(read_ratings("r.csv")).save("m")
calls = {
    "load": lambda: Recommender.load("m"),
    "from_frame": lambda: Ratings.from_frame(frame),
    "from_matrix": lambda: Ratings.from_matrix(np.ones((2, 2))),
    "read_ratings": lambda: read_ratings("r.csv"),
    "Documents": lambda: next(iter(Documents("r.csv"))),
    "fit": lambda: Recommender("popular").fit("r.csv"),
}
for name, call in calls.items():
    child = os.fork()
    if child == 0:
        try:
            call()
        except RecsysError as error:
            print(name, error, flush=True)
        os._exit(0)
    os.waitpid(child, 0)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_every_way_in_says_that_polars_does_not_work(tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[2])}
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", PROGRAM],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=100,
    )
    lines = done.stdout.splitlines()
    names = ["load", "from_frame", "from_matrix", "read_ratings", "Documents", "fit"]
    assert [line.partition(" ")[0] for line in lines] == names, done.stderr
    assert all("This process was forked" in line for line in lines)
