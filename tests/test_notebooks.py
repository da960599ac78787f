"""Every notebook runs from the top without a warning, and is kept without its outputs."""

from __future__ import annotations

import base64
import re
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

FOLDER = Path(__file__).resolve().parents[1] / "notebooks"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))
each_notebook = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)


def run(path: Path, folder: Path) -> list[nbformat.NotebookNode]:
    """Run a notebook in a folder and return the outputs of its cells."""
    notebook = nbformat.read(path, as_version=4)
    place = {"metadata": {"path": str(folder)}}
    client = NotebookClient(
        notebook, timeout=120, startup_timeout=60, kernel_name="python3", resources=place
    )
    client.execute()
    return [output for cell in notebook.cells for output in cell.get("outputs", [])]


def pictures(outputs: list[nbformat.NotebookNode]) -> list[bytes]:
    data = [output.get("data", {}) for output in outputs]
    return [base64.b64decode(found["image/png"]) for found in data if "image/png" in found]


def code(path: Path) -> str:
    notebook = nbformat.read(path, as_version=4)
    return "\n".join(cell.source for cell in notebook.cells if cell.cell_type == "code")


def test_there_are_six():
    assert [path.name[:2] for path in NOTEBOOKS] == [f"{i}_" for i in range(1, 7)]


@each_notebook
def test_is_kept_without_outputs(path):
    cells = nbformat.read(path, as_version=4).cells
    assert not any(cell.get("outputs") or cell.get("execution_count") for cell in cells)
    assert path.stat().st_size < 30_000


@each_notebook
def test_checks_what_it_says(path):
    assert len(re.findall(r"^assert ", code(path), re.MULTILINE)) >= 3


@each_notebook
def test_uses_this_package_where_scikit_learn_has_the_same(path):
    theirs = re.findall(r"from sklearn\.(\w+)", code(path))
    assert {"datasets", "feature_extraction"}.issuperset(theirs)


@pytest.mark.filterwarnings("ignore")  # of the machinery that starts kernels
@each_notebook
def test_runs_without_a_warning_and_draws(path, tmp_path, monkeypatch):
    for name in ("IPYTHONDIR", "MPLCONFIGDIR"):
        monkeypatch.setenv(name, str(tmp_path / name))
    outputs = run(path, tmp_path)
    warned = "".join(output.text for output in outputs if output.get("name") == "stderr")
    assert not warned
    drawn = pictures(outputs)
    assert drawn
    assert all(len(png) < 300_000 for png in drawn)


@pytest.mark.filterwarnings("ignore")
def test_a_notebook_that_fails_is_noticed(tmp_path, monkeypatch):
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    wrong = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell("assert 1 + 1 == 3")])
    nbformat.write(wrong, tmp_path / "wrong.ipynb")
    with pytest.raises(Exception, match="AssertionError"):
        run(tmp_path / "wrong.ipynb", tmp_path)
