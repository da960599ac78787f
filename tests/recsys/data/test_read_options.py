"""Options of reading: one declaration for Python, the command and saved models."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import click
import polars as pl
import pytest
from click.testing import CliRunner

from recsys import FrameOptions, Ratings, ReadOptions, read_ratings
from recsys.cli.main import cli
from recsys.cli.options import ReaderOptions, reader_options
from recsys.data import read_options
from recsys.data.columns import Request
from recsys.declarations import Declaration

DECLARED = read_options.declarations()


@pytest.mark.parametrize("name", DECLARED)
def test_the_command_has_each_option_with_its_help(name: str) -> None:
    text = CliRunner().invoke(cli, ["data", "inspect", "--help"]).output
    assert DECLARED[name].flag_of(name) in text
    words = " ".join(text.split())
    assert DECLARED[name].help.split(",")[0] in words


def test_python_documents_each_option() -> None:
    assert all(f"\n{name}\n" in str(ReadOptions.__doc__) for name in DECLARED)
    assert "\nsep\n" not in str(FrameOptions.__doc__)


def test_rejects_an_unknown_option(tmp_path: Path) -> None:
    frame = pl.DataFrame({"user": [1], "item": [2]})
    path = tmp_path / "r.csv"
    frame.write_csv(path)
    options: dict[str, Any] = {"weigth": "item"}
    with pytest.raises(TypeError, match=r"no option 'weigth' for reading.*weight\?"):
        read_ratings(path, **options)
    of_files: dict[str, Any] = {"sep": ","}
    with pytest.raises(TypeError, match="no option 'sep' for reading"):
        Ratings.from_frame(frame, **of_files)


def test_a_new_option_needs_only_its_declaration(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    declaration = Declaration("text", "Another option.", flag="other_option")
    hint = Annotated[str, declaration]
    monkeypatch.setitem(ReadOptions.__annotations__, "another", hint)

    @click.command()
    @reader_options("all")
    def verb(reader: ReaderOptions) -> None:
        request = Request.from_options(read_options.set_options(reader.options))
        click.echo(request.options["another"])

    assert CliRunner().invoke(verb, ["--other-option", "x"]).output == "x\n"
    assert "Another option." in CliRunner().invoke(verb, ["--help"]).output
