"""The bar: only on a terminal, only for long work, and without rich until then."""

from __future__ import annotations

import io
import os
import pty
import subprocess
import sys
import time

import pytest
from processes import running

from recsys.cli import output
from recsys.models.base import Step


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.fixture
def watch(monkeypatch):
    """The text that an activity writes to standard error.

    The work gets the activity, and a function that waits until a terminal shows a text.
    """

    def run(work, *, patience, is_terminal=True):
        stream = Terminal() if is_terminal else io.StringIO()
        monkeypatch.setattr(sys, "stderr", stream)
        monkeypatch.setattr(output, "PATIENCE", patience)
        monkeypatch.setenv("TERM", "xterm")

        def shown(text):
            while is_terminal and text not in stream.getvalue():
                time.sleep(0.01)

        with output.Activity("Fitting als") as activity:
            work(activity, shown)
        return stream.getvalue()

    return run


def sweeps(activity, shown):
    activity.step(Step(1, 3, 2.0, 0.75, 0.875))
    shown("sweep 1/3")
    activity.step(Step(2, 3, 1.0, 0.5, 0.625))
    shown("sweep 2/3")


def test_long_work_on_a_terminal_shows_sweep_and_errors(watch):
    text = watch(sweeps, patience=0.05)
    assert "Fitting als" in text
    assert "sweep 2/3, training RMSE 0.5000, held-out RMSE 0.6250" in text


def test_title_can_change(watch):
    def work(activity, shown):
        shown("Fitting als")
        activity.title = "Fitting bias"
        sweeps(activity, shown)

    assert "Fitting bias" in watch(work, patience=0.05)


def test_short_work_shows_nothing(watch):
    assert watch(lambda activity, _: activity.step(Step(1, 3)), patience=300) == ""


def test_no_terminal_no_bar(watch):
    assert watch(sweeps, patience=0.0, is_terminal=False) == ""


def test_words_for_a_sweep():
    assert output.describe(Step(1, 20)) == "sweep 1/20"
    assert output.describe(Step(1, 20, 31250.04)) == "sweep 1/20, objective 31250"
    assert output.describe(Step(1, 20, 3.0, 0.5)) == "sweep 1/20, training RMSE 0.5000"


@pytest.mark.parametrize("quiet", [False, True])
def test_quiet_on_a_real_terminal(source_tree, quiet):
    """A process whose standard error is a pseudo-terminal, and which works until told to end."""
    script = (
        "import sys, time\n"
        "from recsys.cli import inputs, main, output\n"
        "output.PATIENCE = 0.05\n"
        "def work(*args, **kwargs):\n"
        "    with output.Activity('Working'):\n"
        "        time.sleep(0.6)\n"
        "        sys.stdin.read()\n"
        "    raise SystemExit(0)\n"
        "inputs.load_ratings = work\n"
        "main.main()\n"
    )
    leader, follower = pty.openpty()
    args = [
        sys.executable,
        "-c",
        script,
        "fit",
        "x",
        "--out",
        "m",
        *(["--quiet"] if quiet else []),
    ]
    environment = {**os.environ, "PYTHONPATH": str(source_tree), "TERM": "xterm"}
    said = b""
    with running(
        *args, stdin=subprocess.PIPE, stderr=follower, env=environment
    ) as process:
        os.close(follower)
        while not quiet and b"Working" not in said:
            said += os.read(leader, 65536)
        process.stdin.close()
        try:
            while chunk := os.read(leader, 65536):
                said += chunk
        except OSError:  # Linux reports the closed other end as an error
            pass
        assert process.wait() == 0
    os.close(leader)
    assert (b"Working" in said) is not quiet


def test_no_bar_after_the_end():
    activity = output.Activity("Working")
    with activity:
        pass
    activity._show()  # the timer was faster than its cancelling
    assert activity._bar is None
