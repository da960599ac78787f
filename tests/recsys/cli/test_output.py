"""Formats, terminals, and files that are whole or not there."""

from __future__ import annotations

import io
import json
import os
from pathlib import Path

import click
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from recsys.cli import output as module
from recsys.cli.errors import CommandError
from recsys.cli.output import SCHEMA, Output, render, wrapped

FRAME = pl.DataFrame(
    {
        "user": ["a,b", 'say "hi"', "tab\there", "line\nbreak"],
        "rank": pl.Series([1, 2, 3, 4], dtype=pl.Int32),
        "score": pl.Series([0.1, 2.5, 1e-7, 3.0], dtype=pl.Float32),
        "title": ["Amélie", None, "[b]bold[/b]", "東京物語"],
    }
)
READ = {
    "csv": pl.read_csv,
    "tsv": lambda source: pl.read_csv(source, separator="\t"),
    "jsonl": pl.read_ndjson,
    "parquet": pl.read_parquet,
    "json": lambda source: pl.DataFrame(json.loads(Path(source).read_text())["rows"]),
}


def same(frame):
    """Compare as what text formats can keep: shortest float32 digits."""
    return frame.with_columns(
        pl.col("score").cast(pl.Float32), pl.col("rank").cast(pl.Int32)
    )


@pytest.mark.parametrize("batches", [1, 2, 4])
@pytest.mark.parametrize("suffix", READ)
def test_round_trip_of_a_file_in_batches(suffix, batches):
    path = Path(f"out.{suffix}")
    size = len(FRAME) // batches
    Output(path).write(
        FRAME[start : start + size] for start in range(0, len(FRAME), size)
    )
    assert same(READ[suffix](path)).equals(FRAME)
    assert [each.name for each in Path().iterdir()] == [path.name]


@pytest.mark.parametrize("suffix", READ)
def test_frame_without_rows(suffix):
    path = Path(f"out.{suffix}")
    Output(path).write(FRAME.clear())
    if suffix in ("csv", "tsv", "parquet"):
        assert READ[suffix](path).columns == FRAME.columns
    elif suffix == "json":
        assert json.loads(path.read_text()) == {"schema": SCHEMA, "rows": []}
    else:
        assert path.read_text() == ""


def test_later_batches_without_rows_change_nothing():
    for suffix in READ:
        path = Path(f"out.{suffix}")
        Output(path).write([FRAME.clear(), FRAME, FRAME.clear(), FRAME])
        assert same(READ[suffix](path)).equals(pl.concat([FRAME, FRAME]))


def test_json_document_has_schema_and_head():
    Output(Path("out.json")).write(FRAME, command="recommend", n=3)
    document = json.loads(Path("out.json").read_text())
    assert list(document) == ["schema", "command", "n", "rows"]
    assert document["schema"] == SCHEMA
    assert document["rows"][0]["score"] == 0.1


def test_what_unicode_takes_for_the_end_of_a_line_stays_in_its_text():
    titles = ["a\u2028b", "c\x85d", "e\u2029", "f\ng"]
    path = Path("found.json")
    Output(path).write(
        [pl.DataFrame({"title": titles[:2]}), pl.DataFrame({"title": titles[2:]})]
    )
    rows = json.loads(path.read_text(encoding="utf-8"))["rows"]
    assert [row["title"] for row in rows] == titles


def test_numbers_that_json_does_not_know_are_null():
    Output(Path("out.json")).write(
        pl.DataFrame({"x": [float("nan"), float("inf"), 1.0]})
    )
    assert [row["x"] for row in json.loads(Path("out.json").read_text())["rows"]] == [
        None,
        None,
        1,
    ]


@pytest.mark.parametrize(
    ("name", "expected"), [("a.CSV", "csv"), ("a.ndjson", "jsonl")]
)
def test_suffix_tells_the_format(name, expected):
    assert Output(Path(name)).resolved_format == expected


def test_format_wins_over_the_suffix():
    Output(Path("a.csv"), "jsonl").write(FRAME)
    assert same(pl.read_ndjson("a.csv")).equals(same(FRAME))
    assert Path("a.csv").read_text().startswith("{")


def test_unknown_suffix_raises():
    with pytest.raises(
        click.UsageError, match=r"Cannot infer the format from 'a\.foo'"
    ):
        Output(Path("a.foo")).check()


def test_target_is_checked_before_the_work():
    Path("folder").mkdir()
    with pytest.raises(CommandError, match="folder is a directory; --output needs"):
        Output(Path("folder"), "csv").check()
    with pytest.raises(CommandError, match="there is no directory nowhere"):
        Output(Path("nowhere/a.csv")).check()


class Terminal(io.TextIOWrapper):
    def isatty(self):
        return True


def on_terminal(monkeypatch):
    # Not a fixture: pytest sets sys.stdout anew between the fixtures and the test.
    stream = Terminal(io.BytesIO(), encoding="utf-8")
    monkeypatch.setattr(module.sys, "stdout", stream)
    return stream


def test_terminal_gets_a_table_and_a_pipe_csv(monkeypatch):
    terminal = on_terminal(monkeypatch)
    assert Output().resolved_format == "table"
    Output().write(FRAME)
    assert "─" in terminal.buffer.getvalue().decode()
    monkeypatch.setattr(module.sys, "stdout", io.TextIOWrapper(io.BytesIO()))
    assert Output().resolved_format == "csv"


def test_parquet_is_rejected_on_a_terminal(monkeypatch):
    on_terminal(monkeypatch)
    with pytest.raises(click.UsageError, match="Parquet cannot be shown on a terminal"):
        Output(format="parquet").check()


def test_parquet_in_a_pipe(monkeypatch):
    pipe = io.TextIOWrapper(io.BytesIO())
    monkeypatch.setattr(module.sys, "stdout", pipe)
    Output(format="parquet").write([FRAME, FRAME])
    assert pl.read_parquet(pipe.buffer.getvalue()).equals(pl.concat([FRAME, FRAME]))


def test_closed_standard_output(monkeypatch):
    monkeypatch.setattr(module.sys, "stdout", None)
    with pytest.raises(CommandError, match="Standard output is closed"):
        Output().write(FRAME)


def failing(error):
    yield FRAME
    raise error


@pytest.mark.parametrize(
    "error", [ValueError("no"), KeyboardInterrupt(), SystemExit(143)]
)
@pytest.mark.parametrize("suffix", READ)
def test_nothing_half_written_is_left(suffix, error):
    with pytest.raises(type(error)):
        Output(Path(f"out.{suffix}")).write(failing(error))
    assert not list(Path().iterdir())


def test_old_file_survives_an_error_and_keeps_its_mode():
    path = Path("out.csv")
    path.write_text("old")
    path.chmod(0o640)
    with pytest.raises(ValueError, match="no"):
        Output(path).write(failing(ValueError("no")))
    assert path.read_text() == "old"
    Output(path).write(FRAME)
    assert pl.read_csv(path).height == len(FRAME)
    assert path.stat().st_mode & 0o777 == 0o640


def test_new_file_has_the_usual_mode():
    mask = os.umask(0o022)
    try:
        Output(Path("out.csv")).write(FRAME)
    finally:
        os.umask(mask)
    assert Path("out.csv").stat().st_mode & 0o777 == 0o644


def test_link_is_followed():
    Path("real.csv").write_text("old")
    Path("link.csv").symlink_to("real.csv")
    Output(Path("link.csv")).write(FRAME)
    assert Path("link.csv").is_symlink()
    assert pl.read_csv("real.csv").height == len(FRAME)


def test_device_is_written_in_place():
    Output(Path(os.devnull), "parquet").write([FRAME, FRAME])
    assert not Path(os.devnull).is_file()


@pytest.mark.parametrize("width", [40, 60, 100])
def test_table_fits_the_terminal(monkeypatch, width):
    monkeypatch.setenv("COLUMNS", str(width))
    long = FRAME.with_columns(pl.lit("a very long title " * 20).alias("title"))
    lines = render(long).splitlines()
    assert max(map(len, lines)) <= width
    assert "…" in lines[2]
    assert "0.1000" in lines[2]


def test_table_shows_numbers_right_and_text_literally():
    lines = render(FRAME).splitlines()
    assert "[b]bold[/b]" in lines[4]
    assert lines[3].index("2.5000") == lines[2].index("0.1000")
    table = render(pl.DataFrame({"n": [1, 1000], "count": [2.0, 3000.0]})).splitlines()
    assert [line.split() for line in table[2:]] == [["1", "2"], ["1000", "3000"]]
    assert table[2].startswith("   1")


def test_table_defuses_control_characters():
    text = render(pl.DataFrame({"title": ["\x1b[31mred\x9b0m\x07"]}))
    assert not {"\x1b", "\x9b", "\x07"} & set(text)


def test_table_shows_missing_numbers():
    lines = render(pl.DataFrame({"rmse": [0.9, None, float("nan")]})).splitlines()
    assert [line.strip() for line in lines[2:]] == ["0.9000", "-", "-"]


def test_no_title_breaks_or_turns_a_row_of_a_table():
    text = render(
        pl.DataFrame({"item": [1], "title": ["A\u2028user 7\u2029  B\u202e\u2066"]})
    )
    assert len(text.splitlines()) == text.count("\n") == 3
    assert not set("\u202e\u2066\u2028\u2029") & set(text)


@given(
    st.lists(
        st.text("ab,;-", min_size=1, max_size=9) | st.just("user = userId,"), min_size=1
    ),
    st.integers(12, 40),
)
def test_wrapping_keeps_words_and_assignments_whole(words, width):
    text = " ".join(words)
    lines = wrapped(text, width).splitlines()
    assert " ".join(lines).split() == text.split()
    assert not any(line.endswith(" =") for line in lines)
    pieces = text.replace(" = ", "\xa0=\xa0").split(" ")
    longest = max(map(len, pieces))
    assert all(len(line) <= max(width, longest + 2) for line in lines)


@pytest.mark.parametrize(
    ("variables", "is_ascii"),
    [
        ({"LC_ALL": "C"}, True),
        ({"LC_ALL": "POSIX", "LANG": "C.UTF-8"}, True),
        ({"LC_ALL": "", "LC_CTYPE": "", "LANG": "C"}, True),
        ({"LC_ALL": "de_DE.utf8", "LANG": "C"}, False),
        ({"LC_ALL": "", "LC_CTYPE": "", "LANG": ""}, False),
    ],
)
def test_table_is_drawn_in_the_encoding_of_the_terminal(
    monkeypatch, variables, is_ascii
):
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    frame = pl.DataFrame({"title": ["word " * 40], "": ["█▌"]})
    assert render(frame).isascii() == is_ascii


def test_table_shows_no_minus_zero():
    lines = render(pl.DataFrame({"score": [-0.0, -0.00001, 2.5]})).splitlines()
    assert [line.strip() for line in lines[2:]] == ["0.0000", "0.0000", "2.5000"]
