"""Every notebook runs from the top without a warning, draws, and is kept without its outputs."""

from __future__ import annotations

import json
import re
import warnings
from pathlib import Path
from typing import Any

import matplotlib as mpl
import pytest

FOLDER = Path(__file__).resolve().parents[1] / "notebooks"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))
each_notebook = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)


def cells(path: Path) -> list[dict[str, Any]]:
    """Return the code cells of a notebook."""
    found = json.loads(path.read_text(encoding="utf-8"))["cells"]
    return [cell for cell in found if cell["cell_type"] == "code"]


def code(path: Path) -> str:
    """Return the code of a notebook, without the lines that are for IPython alone."""
    lines = "\n".join("".join(cell["source"]) for cell in cells(path)).splitlines()
    return "\n".join(line for line in lines if not line.startswith("%"))


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


def test_there_are_six():
    assert [path.name[:2] for path in NOTEBOOKS] == [f"{i}_" for i in range(1, 7)]


@each_notebook
def test_is_kept_without_outputs(path):
    assert not any(cell.get("outputs") or cell.get("execution_count") for cell in cells(path))
    assert path.stat().st_size < 30_000


@each_notebook
def test_checks_its_claims(path):
    assert len(re.findall(r"^assert ", code(path), re.MULTILINE)) >= 3


@each_notebook
def test_uses_this_package_where_scikit_learn_has_the_same(path):
    theirs = re.findall(r"from sklearn\.(\w+)", code(path))
    assert {"datasets", "feature_extraction"}.issuperset(theirs)


@each_notebook
def test_runs_without_a_warning_and_draws(path, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert run(code(path)) > 0


def test_a_notebook_that_fails_is_noticed():
    with pytest.raises(AssertionError):
        run("assert 1 + 1 == 3")
