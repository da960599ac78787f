"""Random command lines: verbs, options and values that fit or don't, and junk between them."""

from __future__ import annotations

import os
import resource
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import click
import polars as pl
import pytest
from click.testing import CliRunner, Result
from hypothesis import example, given
from hypothesis import strategies as st

import recsys
from recsys import Ratings, Recommender
from recsys.cli.main import cli
from recsys.lsi import LSI

ROWS = [
    (u, 100 + (3 * u + 5 * n) % 17, 1.0 + (u * n) % 5, 10**9 + n)
    for u in range(15)
    for n in range(8)
]
TEXTS = [
    "Salt melts ice.",
    "Ice floats on water.",
    "Cats chase mice.",
    "Mice eat salt and cheese.",
]
SPACE = 3 << 30  # bytes of address space that a command may add

WORDS = [
    *(
        "",
        " ",
        "-",
        "--",
        "---",
        "-x",
        "--nonsense",
        "=",
        "--n=5",
        "help",
        "fit",
        "lsi",
        "ratings.csv",
    ),
    *(
        "\0",
        "\n",
        "\r",
        "\t",
        "\x1b[31m",
        "\x07",
        "\u202e",
        "\ud800",
        "\udcff\udcfe",
        "é" * 300,
        "x" * 5000,
    ),
    *(
        "nan",
        "inf",
        "-inf",
        "1e999",
        "-1",
        "0",
        "1",
        "2.5",
        "1_000",
        "0x10",
        "٣",
        "9" * 30,
        "9" * 5000,
    ),
    *(
        "..",
        "~",
        "*",
        "?[a]",
        "$HOME",
        "`id`",
        "%s%n",
        "{0}",
        "{}",
        "a=b",
        "factors=1:2",
        "x=1:2:log",
    ),
]
PATHS = [
    *(
        "ratings.csv",
        "ratings.csv",
        "plays.csv",
        "model",
        "model",
        "index",
        "index",
        "notes.txt",
        "ids.txt",
    ),
    *(
        "empty",
        "binary",
        "folder",
        "link",
        "dangling",
        "loop",
        "missing",
        "missing/deeper",
        "split",
        ".",
    ),
    *(
        "/dev/null",
        "model/model.json",
        "out",
        "out.csv",
        "out.json",
        "out.parquet",
        "out.png",
    ),
    *(
        "out.html",
        "study",
        "x" * 300,
        "a\0b",
        "\udcff.csv",
        "-out",
        "new\nline.csv",
        "folder/out.jsonl",
    ),
]
NUMBERS = [
    "0",
    "1",
    "2",
    "3",
    "5",
    "0.5",
    "0.1",
    "1e-9",
    "-1",
    "-0.5",
    "nan",
    "inf",
    "-inf",
    "1e308",
]
HUGE = [
    "1000",
    "65536",
    "2147483648",
    "9223372036854775807",
    "18446744073709551616",
    "1e300",
    "9" * 40,
]
# With these, a large number is a wish for long work.
REPEATED = {
    "trials",
    "iterations",
    "samples",
    "thinning",
    "burn_in",
    "timeout",
    "folds",
}


def _leaves() -> dict[str, click.Command]:
    def below(group: click.Group, context: click.Context) -> dict[str, click.Command]:
        found = {}
        for name in group.list_commands(context):
            command = group.get_command(context, name)
            if isinstance(command, click.Group):
                nested = below(
                    command, click.Context(command, parent=context, info_name=name)
                )
                found |= {f"{name} {verb}": each for verb, each in nested.items()}
            elif command is not None:
                found[name] = command
        return found

    return below(cli, click.Context(cli, info_name="recsys"))


LEAVES = _leaves()


FITTING = {
    "ratings": ["ratings.csv", "ratings.csv", "plays.csv", "link", "split", "-"],
    "model": ["model"],
    "source": ["model", "ratings.csv", "plays.csv"],
    "pairs": ["ratings.csv", "-"],
    "index": ["index"],
    "documents": ["notes.txt", "folder"],
    "text": ["salt and ice"],
    "word": ["salt"],
    "users": ["ids.txt"],
    "items": ["ids.txt"],
    "block": ["ids.txt"],
    "history": ["ids.txt", "ratings.csv"],
    "train": ["split/train.csv"],
    "test": ["split/test.csv"],
    "out": ["out", "model", "index", "split"],
    "output": ["out.csv", "out.json", "out.jsonl", "out.parquet", "out.tsv", "-"],
    "plot": ["out.png", "out.svg"],
    "report": ["out.html"],
    "user": ["1", "2"],
    "item": ["101", "102"],
    "title": ["10"],
    "like": ["101"],
    "rate": ["102=3"],
    "where": ["item > 103"],
    "metric": ["rmse", "ndcg@3"],
    "ranges": ["factors=1:3", "regularization=0.1:2:log"],
    "dimensions": ["1", "2", "elbow", "cv"],
    "shell": ["bash"],
    "explain": ["1"],
    "queries": ["notes.txt"],
    "words": ["salt"],
    "ids": ["1"],
    "study": ["study"],
    "per_user": ["out.csv"],
    "encoding": ["utf-8", "latin-1"],
    "sep": [","],
    "item_col": ["item"],
    "rating_col": ["rating"],
    "timestamp_col": ["timestamp"],
    "parameter": ["tol=0.1", "als.linked=true", "damping=3"],
    "name": ["als", "bias"],
}
SMALL = ["1", "2", "3"]


def _values(param: click.Parameter, wild: int) -> st.SearchStrategy[str]:
    """Return what may stand for a parameter: values that fit, or some of its kind, or anything."""
    if param.name == "engine":
        return st.sampled_from(["local", "cluster", ""])
    if param.name == "conf":
        return st.sampled_from(WORDS)
    if isinstance(param.type, click.Choice):
        fitting = kind = list(param.type.choices)
    elif isinstance(param.type, click.types.IntParamType | click.types.FloatParamType):
        is_share = (getattr(param.type, "max", None) or 2) <= 1
        fitting = ["0.2"] if is_share else SMALL
        kind = NUMBERS + ([] if param.name in REPEATED else HUGE)
    else:
        fitting = FITTING.get(param.name or "", ["user"])
        kind = [*PATHS, *fitting]
    return st.sampled_from(fitting if wild == 0 else kind if wild == 1 else WORDS)


@st.composite
def command_lines(draw: st.DrawFn) -> list[str]:
    """Return the words after `recsys`: most fit, and few, if any, are strange."""
    name = draw(st.sampled_from(sorted(LEAVES)))
    strange = st.sampled_from(
        draw(st.sampled_from([[0], [0] * 7 + [1], [0, 0, 1], [0, 1, 2]]))
    )
    pieces = []
    for param in LEAVES[name].params:
        if isinstance(param, click.Argument) and (draw(strange) < 2):
            pieces.append([draw(_values(param, draw(strange)))])
        elif param.required and draw(strange) < 2:
            pieces.append([param.opts[0], draw(_values(param, draw(strange)))])
    options = [
        p
        for p in LEAVES[name].params
        if isinstance(p, click.Option) and p.name != "debug"
    ]
    for option in draw(st.lists(st.sampled_from(options), max_size=5)):
        word = draw(st.sampled_from([*option.opts, *option.secondary_opts]))
        pieces.append(
            [word] if option.is_flag else [word, draw(_values(option, draw(strange)))]
        )
    if draw(strange) == 2:
        pieces.insert(draw(st.integers(0, len(pieces))), [draw(st.sampled_from(WORDS))])
    return [*name.split(), *(word for piece in pieces for word in piece)]


@pytest.fixture(scope="module")
def playground(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with files of every kind."""
    place = tmp_path_factory.mktemp("playground") / "whole"
    place.mkdir()
    frame = pl.DataFrame(
        ROWS, schema=["user", "item", "rating", "timestamp"], orient="row"
    )
    frame.write_csv(place / "ratings.csv")
    frame.select("user", "item").write_csv(place / "plays.csv")
    Recommender("als", factors=2).fit(Ratings.from_frame(frame)).save(place / "model")
    LSI(2).fit(TEXTS).save(place / "index")
    (place / "notes.txt").write_text("\n".join(TEXTS) + "\n")
    (place / "ids.txt").write_text("1\n2\n101\n")
    (place / "empty").touch()
    (place / "binary").write_bytes(bytes(range(256)) * 4)
    (place / "folder").mkdir()
    (place / "split").mkdir()
    frame[:100].write_csv(place / "split" / "train.csv")
    frame[100:].write_csv(place / "split" / "test.csv")
    (place / "link").symlink_to("ratings.csv")
    (place / "dangling").symlink_to("nowhere")
    (place / "loop").symlink_to("loop")
    return place


@contextmanager
def _bounded_memory() -> Iterator[None]:
    if not Path("/proc/self/statm").exists():  # not on every system
        yield
        return
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (used + SPACE, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


def judge(words: list[str], result: Result) -> str:
    """Return what came of a command line, and fail if that is not documented."""
    said = result.stderr
    assert result.exit_code in (0, 1, 2), said
    assert "Traceback" not in said, said
    assert "Error: unexpected" not in said, said
    errors = [line for line in said.splitlines() if line.startswith("Error: ")]
    assert len(errors) == (result.exit_code != 0), said
    if errors:
        assert said.endswith("\n"), said
    return ("done", "rejected", "bad usage")[result.exit_code]


JUNK = [
    b"\xff\xfe",
    b"\x1b[31m",
    b"a\nb",
    b"\xc3\x28.csv",
    b"\xe2\x80\xae",
    b"9" * 100_000,
    b"%s",
]


@pytest.mark.parametrize("verb", ["recommend", "nonsense"])
def test_rejects_arguments_that_are_not_text(verb, tmp_path):
    """In a process of its own, bytes are words that no other test can give."""
    environment = {**os.environ, "PYTHONPATH": str(Path(recsys.__file__).parents[1])}
    words = [*verb.encode().split(), *JUNK]
    for some in (words[:-5], words):
        done = subprocess.run(
            [sys.executable.encode(), b"-m", b"recsys", *some],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            timeout=60,
            check=False,
        )
        assert done.returncode in (1, 2)
        assert done.stdout == b""
        assert b"Traceback" not in done.stderr
        assert done.stderr.count(b"\nError: ") + done.stderr.startswith(b"Error: ") == 1
    assert list(tmp_path.iterdir()) == []


def test_pipes_are_not_waited_for(playground, tmp_path, monkeypatch):
    """A pipe that nobody writes to, in place of what is saved."""
    monkeypatch.chdir(tmp_path)
    os.mkfifo("pipe")
    shutil.copytree(playground / "model", "model")
    ratings = str(playground / "ratings.csv")
    for words in (
        ["fit", ratings, "--out", "pipe", "--force"],
        ["lsi", "index", ratings, "--out", "pipe", "--force"],
        ["lsi", "query", "pipe", "salt"],
        ["update", "pipe", ratings],
        ["split", ratings, "--out", "pipe", "--force"],
        ["tune", ratings, "--study", "pipe", "--trials", "1"],
        ["data", "sample", "--out", "pipe", "--force"],
    ):
        result = CliRunner().invoke(cli, words)
        assert judge(words, result) in ("rejected", "bad usage")


def test_any_command_line(playground, tmp_path, monkeypatch, budget, fuzz_count):
    place = tmp_path / "cwd"
    # `recsys serve` does not end by itself: it gets as far as its port.
    monkeypatch.setattr(
        "recsys.cli.serve.run", lambda _, listener, workers: listener.close()
    )

    @budget(20)
    @given(command_lines())
    @example(
        ["compare", "ratings.csv", "--quiet", "--threads", "1000"]
    )  # more than there can be
    @example(["serve", "model", "--port", "0"])
    def check(words):
        shutil.copytree(playground, place, symlinks=True)
        monkeypatch.chdir(place)
        try:
            with _bounded_memory():
                result = CliRunner().invoke(
                    cli, words, input="1,101,5\n2,103,4\n3,101,2\n"
                )
            fuzz_count[judge(words, result)] += 1
            assert not list(tmp_path.rglob(".*"))
            assert sorted(each.name for each in tmp_path.iterdir()) == ["cwd"]
        finally:
            os.chdir(tmp_path)
            shutil.rmtree(place)

    check()
