"""The README shows what its commands print. (Its Python examples are doctests.)"""

from __future__ import annotations

import os
import re
import shlex
from pathlib import Path

import pytest
from click.testing import CliRunner

from recsys.cli.main import cli

README = Path(__file__).resolve().parents[1] / "README.md"
NUMBER = re.compile(r"-?\d+\.\d+")


def console_examples() -> list[tuple[str, str]]:
    """Each `$ command` of the console blocks with the output shown below it."""
    blocks = re.findall(r"```console\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)
    parts = [part for block in blocks for part in re.split(r"^\$ ", block, flags=re.M)[1:]]
    return [tuple(part.split("\n", 1)) for part in parts]


def without_costs(command: str, text: str) -> str:
    """Drop the rows of `recsys evaluate` on time and memory."""
    if not command.startswith("recsys evaluate"):
        return text
    costs = ("fit, ", "recommend, ", "memory, ")
    return "\n".join(line for line in text.splitlines() if not line.startswith(costs))


def assert_same(command: str, shown: str, printed: str) -> None:
    shown, printed = (without_costs(command, text) for text in (shown, printed))
    words = [NUMBER.sub("#", text).split() for text in (shown, printed)]
    assert words[0] == words[1], command
    numbers = [[float(x) for x in NUMBER.findall(text)] for text in (shown, printed)]
    assert numbers[0] == pytest.approx(numbers[1], abs=5e-3), command  # kernels round differently


def test_commands_print_what_the_readme_shows(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in [name for name in os.environ if name.startswith("RECSYS_")]:
        monkeypatch.delenv(name)
    examples = console_examples()
    assert len(examples) >= 5
    for command, shown in examples:
        program, *arguments = shlex.split(command)
        if program == "cat":  # what the README shows of a file is the file
            Path(arguments[0]).write_text(shown, encoding="utf-8")
            continue
        assert program == "recsys"
        printing = {"recommend", "similar", "explain", "evaluate", "query"}
        verb_prints_data = not printing.isdisjoint(arguments)
        form = ["--format", "table"] if verb_prints_data else []
        result = CliRunner().invoke(cli, [*arguments, *form], env={"COLUMNS": "100"})
        assert_same(command, shown, result.output)


def test_make_targets_of_the_readme_exist():
    makefile = README.with_name("Makefile").read_text(encoding="utf-8")
    for target in re.findall(r"^make (\w+)", README.read_text(encoding="utf-8"), re.M):
        assert re.search(rf"^{target}:", makefile, re.M), target


def test_the_picture_is_there():
    for picture in re.findall(r"!\[.*?\]\((.*?)\)", README.read_text(encoding="utf-8"), re.DOTALL):
        assert (README.parent / picture).is_file()
