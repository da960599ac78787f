"""`import recsys` is light, and offers what it says."""

import subprocess
import sys
from importlib.metadata import PackageNotFoundError

import pytest

import recsys


def test_every_public_name_is_there():
    for name in recsys.__all__:
        assert getattr(recsys, name) is not None
        assert name in dir(recsys)


def test_a_name_that_is_not_there_is_missing_as_usual():
    with pytest.raises(AttributeError, match="module 'recsys' has no attribute 'nonsense'"):
        recsys.nonsense  # noqa: B018


def test_the_import_loads_no_numpy():
    code = "import sys, recsys; print('numpy' in sys.modules, 'polars' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "False"]


def test_the_version_of_a_source_tree_is_unknown(monkeypatch):
    def missing(name):
        raise PackageNotFoundError(name)

    monkeypatch.setattr("importlib.metadata.version", missing)
    assert recsys.__version__ == "0+unknown"
