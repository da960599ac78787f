"""The public names and their signatures do not change unnoticed, and importing is light.

`python tests/test_public_api.py` writes what they are now to public_api.txt; a change of that file
is a change of the API, and belongs into CHANGELOG.md.
"""

from __future__ import annotations

import importlib
import inspect
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError
from pathlib import Path

import pytest

LISTING = Path(__file__).with_name("public_api.txt")
PACKAGES = (
    "lowrank",
    "lowrank.plotting",
    "lowrank.spark",
    "recsys",
    "recsys.evaluation",
    "recsys.lsi",
    "recsys.spark",
)


def listing() -> str:
    return "".join(f"{line}\n" for package in PACKAGES for line in lines_of(package))


def lines_of(package: str) -> Iterator[str]:
    module = importlib.import_module(package)
    for name in sorted(module.__all__):
        found = getattr(module, name)
        yield f"{package}.{name}{signature(found)}"
        if inspect.isclass(found):
            members = {
                each for base in found.__mro__ if is_ours(base) for each in vars(base)
            }
            for member in sorted(each for each in members if not each.startswith("_")):
                if getattr(found, member, None) is not None:
                    value = inspect.getattr_static(found, member)
                    yield f"{package}.{name}.{member}{signature(value)}"


def is_ours(cls: type) -> bool:
    return cls.__module__.partition(".")[0] in ("lowrank", "recsys")


def signature(found: object) -> str:
    """Return parameters and defaults, without types."""
    found = getattr(found, "__func__", found)
    if not callable(found) or (
        inspect.isclass(found) and issubclass(found, BaseException)
    ):
        return ""
    try:
        parameters = inspect.signature(found).parameters.values()
    except ValueError:
        return "(...)"
    return str(inspect.Signature([p.replace(annotation=p.empty) for p in parameters]))


def test_the_public_api_is_the_one_that_is_listed():
    listed, found = (
        LISTING.read_text(encoding="utf-8").splitlines(),
        listing().splitlines(),
    )
    gone, new = sorted(set(listed) - set(found)), sorted(set(found) - set(listed))
    assert (gone, new) == ([], []), "If that is meant: python tests/test_public_api.py"


@pytest.mark.parametrize("package", ["lowrank", "recsys"])
def test_a_package_lists_its_public_names_and_nothing_else(package):
    module = importlib.import_module(package)
    assert dir(module) == sorted(module.__all__)
    with pytest.raises(AttributeError, match="nonsense"):
        module.nonsense  # noqa: B018


def test_the_import_loads_no_numpy():
    code = "import sys, recsys; print('numpy' in sys.modules, 'polars' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["False", "False"]


def test_the_version_of_a_source_tree_is_unknown(monkeypatch):
    def missing(name):
        raise PackageNotFoundError(name)

    monkeypatch.setattr("importlib.metadata.version", missing)
    assert importlib.import_module("recsys").__version__ == "0+unknown"


if __name__ == "__main__":
    LISTING.write_text(listing(), encoding="utf-8")
