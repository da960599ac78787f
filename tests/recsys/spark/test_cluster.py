"""A standalone cluster on loopback, of whose executors one is killed, then all."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from recsys.recommender import Recommender

PROGRAM = Path(__file__).with_name("on_a_cluster.py")


@pytest.mark.long  # a minute of all processors
@pytest.mark.skipif(sys.platform != "linux", reason="looks for processes in /proc")
def test_an_executor_killed_in_the_middle_changes_nothing(
    toy, toy_fit, quick_java, tmp_path
):
    ratings = tmp_path / "ratings.parquet"
    toy.write_parquet(ratings)
    (tmp_path / "out").mkdir()
    arguments = [ratings, tmp_path, json.dumps(toy_fit.parameters), quick_java]
    done = subprocess.run(
        [sys.executable, PROGRAM, *arguments],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["killed"] == 1
    assert "An executor of Spark died, again after every retry" in found["failure"]
    assert [each.name for each in (tmp_path / "out").iterdir()] == ["model"]
    disturbed, undisturbed = (
        Recommender.load(path).model
        for path in (tmp_path / "out" / "model", toy_fit.path)
    )
    for name in ("user_factors", "user_bias", "item_factors", "item_bias"):
        np.testing.assert_allclose(
            getattr(disturbed, name),
            getattr(undisturbed, name),
            atol=1e-4,
            err_msg=name,
        )
