"""Errors as one line and an exit code; signals, closed pipes and full disks."""

from __future__ import annotations

import os
import signal
import subprocess
import warnings
from pathlib import Path

import click
import polars as pl
import pytest
from forked_commands import program, started
from processes import running

from recsys.cli import errors
from recsys.cli.errors import State
from recsys.errors import DataError, UnknownIdError


def outcome(error, capsys, **state):
    def command():
        raise error

    code = errors.guarded(command, State(**state))
    captured = capsys.readouterr()
    assert captured.out == ""
    return code, captured.err


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (DataError("Bad."), 1, "Error: Bad.\n"),
        (UnknownIdError("Unknown user 7."), 1, "Error: Unknown user 7.\n"),
        (KeyboardInterrupt(), 130, "Interrupted.\n"),
        (click.Abort(), 130, "Interrupted.\n"),
        (BrokenPipeError(32, "Broken pipe"), 141, ""),
        (
            PermissionError(13, "Permission denied", "x.csv"),
            1,
            "Error: x.csv: permission denied.\n",
        ),
        (
            OSError(28, "No space left on device"),
            1,
            "Error: no space left on device.\n",
        ),
        (
            IsADirectoryError(21, "Is a directory", "d"),
            1,
            "Error: d: is a directory.\n",
        ),
        (MemoryError(), 1, "Error: not enough memory.\n"),
        (
            MemoryError("Unable to allocate 9 GiB"),
            1,
            "Error: not enough memory. Unable to allocate 9 GiB.\n",
        ),
        (
            SystemError("error return without exception set"),
            1,
            "Error: not enough memory.\n",
        ),
        (click.ClickException("So."), 1, "Error: So.\n"),
    ],
)
def test_known_errors(error, code, said, capsys):
    assert outcome(error, capsys) == (code, said)


def test_unexpected_error_is_one_line(capsys):
    code, said = outcome(ZeroDivisionError("a\nb"), capsys)
    assert code == 1
    assert said == (
        "Error: unexpected ZeroDivisionError: a b (run with --debug for the traceback)\n"
    )


def test_debug_shows_the_traceback(capsys):
    code, said = outcome(DataError("Bad."), capsys, debug=True)
    assert code == 1
    assert said.startswith("Traceback")
    assert said.endswith("Error: Bad.\n")


def test_notes_are_hints(capsys):
    error = DataError("Bad.")
    error.add_note("Hint: look.")
    assert outcome(error, capsys)[1] == "Error: Bad.\nHint: look.\n"


def test_value_error_raised_on_purpose_is_a_sentence(capsys):
    from lowrank.rank import elbow

    assert errors.guarded(lambda: elbow([1.0, 2.0]), State()) == 1
    said = capsys.readouterr().err
    assert said.startswith("Error: ")
    assert "unexpected" not in said


def test_value_error_of_a_library_is_unexpected(capsys):
    assert outcome(ValueError("nonsense"), capsys)[0] == 1
    assert "Error: unexpected " in outcome(ValueError("nonsense"), capsys)[1]


def test_warning_is_a_line(capsys):
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        assert (
            errors.guarded(lambda: warnings.warn("Slow.", stacklevel=1), State()) == 0
        )
        assert capsys.readouterr().err == "Warning: Slow.\n"
        errors.guarded(lambda: warnings.warn("Slow.", stacklevel=1), State(quiet=True))
        assert capsys.readouterr().err == ""


def test_quiet_and_debug_before_and_after_the_verb(run):
    for args in (
        ["--debug", "fit", "nowhere.csv", "--out", "m"],
        ["fit", "--debug", "nowhere.csv", "--out", "m"],
        ["fit", "nowhere.csv", "--out", "m", "--debug"],
    ):
        assert "Traceback" in run(*args, code=1).stderr
    for args in (
        ["--quiet", "data", "sample"],
        ["data", "-q", "sample"],
        ["data", "sample", "-q"],
    ):
        run("data", "sample", "--force", "-q")
        assert run(*args, "--force").stderr == ""


def test_missing_path_is_exit_1_with_the_nearest_name(run):
    Path("ratings.csv").touch()
    stderr = run("recommend", "rating.csv", "--user", "1", code=1).stderr
    assert (
        stderr
        == "Error: There is no file or directory rating.csv. Did you mean ratings.csv?\n"
    )


def test_a_broken_link_is_reported(run):
    Path("model").symlink_to("nowhere")
    stderr = run("recommend", "model", "--user", "1", code=1).stderr
    assert stderr == "Error: model is a broken symbolic link.\n"


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (ValueError("embedded null byte"), "file names cannot contain NUL characters."),
        (
            pl.exceptions.ComputeError("IO: full (os error 28)"),
            "no space left on device.\n",
        ),
        (DataError("no \x1b[31m\u202e\rfile."), "no \\x1b[31m\\u202e\\rfile.\n"),
        (OSError(28, "Full", "from", None, "to"), "to: full.\n"),
    ],
)
def test_every_error_is_one_plain_line(error, said, capsys):
    code, line = outcome(error, capsys)
    assert code == 1
    assert line.startswith(f"Error: {said}")
    assert line.count("\n") == 1


@pytest.mark.filterwarnings("ignore")  # NumPy warns of the overflow
def test_names_parameters_that_overflow(run, ratings):
    for more in (["--out", "m"], ["--out", "m", "--test-fraction", "0.2"]):
        args = ["fit", ratings, "--model", "als", "-p", "count_power=65536", *more]
        stderr = run(*args, code=1).stderr
        assert "The fit of als overflows single precision with regularization" in stderr
        assert "count_power 65536; choose values nearer to 1.3 and 0.5." in stderr
    assert not Path("m").exists()


# In processes of their own.


def test_exit_codes(spawn):
    assert spawn("--version").returncode == 0
    assert spawn("--nonsense").returncode == 2
    failed = spawn("fit", "nowhere.csv", "--out", "m")
    assert (failed.returncode, failed.stdout) == (1, "")
    assert failed.stderr.startswith("Error: ")
    assert failed.stderr.count("\n") == 1


def test_data_and_messages_are_apart(ratings):
    words = [program(), "recommend", ratings, "--user", "1"]
    done = subprocess.run([*words, "-n", "3"], capture_output=True, text=True)
    assert done.returncode == 0
    assert done.stdout.startswith("user,item,rank,score,title\n1,")
    assert done.stdout.count("\n") == 4
    assert "fitted als" in done.stderr
    quiet = subprocess.run([*words, "--quiet"], capture_output=True)
    assert quiet.stderr == b""


@pytest.mark.parametrize(
    "args", [["data", "inspect"], ["recommend", "--all", "-n", "30"]]
)
def test_closed_pipe_is_silent(command, source_tree, ratings, args):
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    environment = {**os.environ, "PYTHONPATH": str(source_tree)}
    with running(
        *command(*args, ratings, "--quiet"), env=environment, **pipes
    ) as process:
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait(60) == 141


def test_closed_pipe_of_help_is_silent(command, source_tree):
    pipeline = f"{' '.join(command('--help'))} | head -1"
    environment = {**os.environ, "PYTHONPATH": str(source_tree)}
    done = subprocess.run(
        ["bash", "-c", pipeline],
        capture_output=True,
        text=True,
        env=environment,
        check=True,
    )
    assert done.stdout.startswith("Usage: recsys")
    assert done.stderr == ""


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_full_disk_is_one_sentence(spawn, tmp_path, unbuffered):
    resource = pytest.importorskip("resource")
    with (tmp_path / "full").open("w") as full:
        done = spawn(
            "models",
            capture_output=False,
            stdout=full,
            stderr=subprocess.PIPE,
            env=os.environ | {"PYTHONUNBUFFERED": unbuffered},
            preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (99, 99)),
        )
    assert done.returncode == 1
    assert done.stderr == "Error: file too large.\n"


@pytest.mark.parametrize(
    ("number", "code", "said"),
    [(signal.SIGINT, 130, "Interrupted.\n"), (signal.SIGTERM, 143, "")],
    ids=["SIGINT", "SIGTERM"],
)
@pytest.mark.parametrize("is_replaced", [False, True])
def test_signal_while_working_leaves_nothing(number, code, said, is_replaced):
    """The process stops in the middle of writing a file, and is then signalled.

    It sleeps in short steps: a signal that comes just before a sleep is seen only after it.
    Libraries may replace the exception of a signal, as polars does.
    """
    script = (
        "import time, sys\n"
        "from recsys.cli import inputs, main\n"
        "from recsys.cli.output import Output\n"
        "import polars as pl\n"
        "def frames():\n"
        "    yield pl.DataFrame({'x': [1]})\n"
        "    print('working', file=sys.stderr)\n"
        "    try:\n"
        "        for _ in range(6000):\n"
        "            time.sleep(0.01)\n"
        "    except BaseException:\n"
        f"        if {is_replaced}:\n"
        "            raise ValueError('replaced')\n"
        "        raise\n"
        "def work(*args):\n"
        "    from pathlib import Path\n"
        "    Output(Path('out.csv')).write(frames())\n"
        "inputs.open_recommender = work\n"
        "main.main()\n"
    )
    with started(["-c", script, "recommend", "m", "--user", "1"]) as process:
        assert process.stderr.readline() == "working\n"
        assert len(list(Path().iterdir())) == 1
        process.send_signal(number)
        assert process.stderr.read() == said
        assert process.wait(60) == code
    assert not list(Path().iterdir())


def test_interrupted_fit_leaves_nothing(ratings):
    """The process stops after the first sweep, and is then interrupted."""
    script = (
        "import sys, time\n"
        "from recsys.cli import fit, main\n"
        "def wait(step):\n"
        "    print('sweep', file=sys.stderr)\n"
        "    for _ in range(6000):\n"
        "        time.sleep(0.01)\n"
        "fit.describe = wait\n"
        "main.main()\n"
    )
    words = ["fit", str(ratings), "--out", "m", "--test-fraction", "0.2", "-q"]
    with started(["-c", script, *words]) as process:
        assert process.stderr.readline() == "sweep\n"
        process.send_signal(signal.SIGINT)
        assert process.stderr.read() == "Interrupted.\n"
        assert process.wait(60) == 130
    assert not list(Path().iterdir())


def test_a_list_with_a_long_field_is_read(run, model, tmp_path):
    path = tmp_path / "users.csv"
    path.write_text("remark,user\n" + "x" * 200_000 + ",1\n")
    assert run("recommend", model, "--users", path).exit_code == 0
