"""Every notebook runs from the top without a warning, draws, and is kept with what it prints."""

from __future__ import annotations

import ast
import importlib
import json
import re
import runpy
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import matplotlib as mpl
import pytest

FOLDER = Path(__file__).resolve().parents[1] / "notebooks"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))
NUMBER = re.compile(r"-?\d+(?:\.\d+)?(?:e[+-]?\d+)?")
each_notebook = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
# These take 5 to 12 seconds each. What they show has tests of its own.
SLOW = (
    "5_offline_evaluation",
    "7_a_new_film",
    "8_background_and_foreground",
    "9_topics_of_texts_and_films",
)


def cells(path: Path) -> list[dict[str, Any]]:
    """Return the code cells of a notebook."""
    found = json.loads(path.read_text(encoding="utf-8"))["cells"]
    return [cell for cell in found if cell["cell_type"] == "code"]


def code(path: Path) -> str:
    """Return the code of a notebook, without the lines that are for IPython alone."""
    lines = "\n".join("".join(cell["source"]) for cell in cells(path)).splitlines()
    return "\n".join(line for line in lines if not line.startswith("%"))


def outputs(path: Path) -> list[dict[str, Any]]:
    """Return the outputs of a notebook."""
    return [output for cell in cells(path) for output in cell["outputs"]]


def run(source: str) -> int:
    """Run the code of a notebook in this process and return the number of figures it draws."""
    from matplotlib import pyplot

    pyplot.close("all")
    with mpl.rc_context({"backend": "agg"}), warnings.catch_warnings():
        warnings.simplefilter("error")
        exec(compile(source, "notebook", "exec"), {"__name__": "__main__"})
        drawn = len(pyplot.get_fignums())
        for number in pyplot.get_fignums():
            pyplot.figure(number).canvas.draw()
    pyplot.close("all")
    return drawn


def test_they_are_numbered():
    assert [path.name[:2] for path in NOTEBOOKS] == [
        f"{i}_" for i in range(1, len(NOTEBOOKS) + 1)
    ]


@each_notebook
def test_is_kept_with_small_outputs(path):
    kinds = {kind for output in outputs(path) for kind in output.get("data", {})}
    assert "image/png" in kinds
    assert sum(bool(cell["outputs"]) for cell in cells(path)) > len(cells(path)) / 2
    assert path.stat().st_size < 300_000


@each_notebook
def test_outputs_have_nothing_of_one_run_or_machine(path):
    assert not any(cell["execution_count"] or cell["metadata"] for cell in cells(path))
    for output in outputs(path):
        assert output["output_type"] in ("stream", "display_data", "execute_result")
        assert output.get("name", "stdout") == "stdout"
        assert not output.get("execution_count")
        texts = {
            k: v for k, v in output.get("data", output).items() if k != "image/png"
        }
        shown = "".join("".join(text) for text in texts.values() if text)
        assert not re.search(
            r"/(home|root|tmp|usr|work)\b|0x[0-9a-f]{6}|\d s\b|seconds", shown
        )


@each_notebook
def test_checks_its_claims(path):
    assert len(re.findall(r"^assert ", code(path), re.MULTILINE)) >= 3


@each_notebook
def test_uses_this_package_where_scikit_learn_has_the_same(path):
    theirs = re.findall(r"from sklearn\.(\w+)", code(path))
    assert {"datasets", "feature_extraction"}.issuperset(theirs)


def imported_names(path: Path) -> Iterator[tuple[str, str]]:
    """Return the modules of this package that a notebook imports from, with the names."""
    for node in ast.walk(ast.parse(code(path))):
        if isinstance(node, ast.ImportFrom):
            module = str(node.module)
            if module.partition(".")[0] in ("lowrank", "recsys"):
                yield from ((module, alias.name) for alias in node.names)


@each_notebook
def test_imports_what_there_is(path):
    names = list(imported_names(path))
    assert names
    for module, name in names:
        assert hasattr(importlib.import_module(module), name), f"{module}.{name}"


def in_their_profile() -> list[Any]:
    """Return the notebooks, of which the slow ones run in the long profile alone."""
    marks = {True: [pytest.mark.long], False: []}
    return [
        pytest.param(path, id=path.stem, marks=marks[path.stem in SLOW])
        for path in NOTEBOOKS
    ]


@pytest.mark.parametrize("path", in_their_profile())
def test_prints_what_it_is_kept_with(path, tmp_path, monkeypatch, capsys):
    """Where this fails: python docs/notebooks.py. It draws as well, without a warning."""
    monkeypatch.chdir(tmp_path)
    assert run(code(path)) > 0
    kept = "".join(
        "".join(output["text"]) for output in outputs(path) if "text" in output
    )
    printed = capsys.readouterr().out
    assert NUMBER.sub("#", printed).split() == NUMBER.sub("#", kept).split()
    numbers = [[float(x) for x in NUMBER.findall(text)] for text in (printed, kept)]
    assert numbers[0] == pytest.approx(numbers[1], rel=5e-3, abs=5e-3)


def test_a_run_writes_what_a_reader_needs(tmp_path):
    tool = runpy.run_path(str(FOLDER.parent / "docs" / "notebooks.py"))
    lines = ["%matplotlib inline", "import os", "from matplotlib import pyplot as plt"]
    lines += ["print(1)", "print(2)", "plt.plot([1, 2])", "plt.show()", "object()"]
    cell = {
        "cell_type": "code",
        "execution_count": 3,
        "id": "a",
        "metadata": {},
        "outputs": [],
    }
    cell["source"] = "\n".join(lines)
    document = {"cells": [cell], "metadata": {}, "nbformat": 4, "nbformat_minor": 5}
    path = tmp_path / "n.ipynb"
    path.write_text(json.dumps(document))
    tool["run"](path)
    text, picture, value = outputs(path)
    assert "".join(text["text"]) == "1\n2\n"
    assert set(picture["data"]) == {"image/png"}
    assert "".join(value["data"]["text/plain"]) == "<object>"  # without its address
    assert 'execution_count": 3' not in path.read_text()
    assert tool["alike"](outputs(path), outputs(path))
    assert not tool["alike"](outputs(path), outputs(path)[1:])


def test_a_notebook_that_fails_is_noticed():
    with pytest.raises(AssertionError):
        run("assert 1 + 1 == 3")
