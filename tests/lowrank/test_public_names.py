"""`import lowrank` is light, and offers what it says."""

import subprocess
import sys
from importlib import import_module
from pkgutil import walk_packages
from types import ModuleType

import pytest

import lowrank


def test_every_public_name_is_there():
    for name in lowrank.__all__:
        assert getattr(lowrank, name) is not None
        assert name in dir(lowrank)


def test_dir_lists_the_public_names_and_nothing_else():
    assert dir(lowrank) == sorted(lowrank.__all__)


def test_no_module_hides_a_public_name():
    """An imported submodule becomes an attribute of the package, over one of the same name."""
    modules = [
        import_module(found.name)
        for found in walk_packages(lowrank.__path__, "lowrank.")
    ]
    assert "lowrank.completion" in [module.__name__ for module in modules]
    for name in lowrank.__all__:
        assert not isinstance(getattr(lowrank, name), ModuleType), name


def test_a_name_that_is_not_there_is_missing_as_usual():
    with pytest.raises(AttributeError, match="No lowrank attribute nonsense"):
        lowrank.nonsense  # noqa: B018


def test_the_import_loads_neither_scipy_nor_scikit_learn():
    code = (
        "import sys, lowrank; print('scipy' in sys.modules, 'sklearn' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["False", "False"]
