"""The public names and their signatures do not change unnoticed.

`python tests/test_public_api.py` writes what they are now to public_api.txt; a change of that file
is a change of the API, and belongs into CHANGELOG.md.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Iterable, Iterator
from pathlib import Path

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
            for member, value in sorted(public_members(found)):
                yield f"{package}.{name}.{member}{signature(value)}"


def public_members(cls: type) -> Iterable[tuple[str, object]]:
    """Return what the class and its bases of this project define."""
    bases = [base for base in cls.__mro__ if base.__module__.split(".")[0] in ("lowrank", "recsys")]
    names = {name for base in bases for name in vars(base) if not name.startswith("_")}
    return [
        (name, inspect.getattr_static(cls, name))
        for name in names
        if getattr(cls, name, None) is not None
    ]


def signature(found: object) -> str:
    """Return parameters and defaults, without types, which say the same in several ways."""
    if isinstance(found, (classmethod, staticmethod)):
        found = found.__func__
    if not callable(found) or (inspect.isclass(found) and issubclass(found, BaseException)):
        return ""
    try:
        parameters = inspect.signature(found).parameters.values()
    except ValueError:
        return "(...)"
    plain = [p.replace(annotation=inspect.Parameter.empty) for p in parameters]
    return str(inspect.Signature(plain))


def test_the_public_api_is_the_one_that_is_listed():
    listed = LISTING.read_text(encoding="utf-8").splitlines()
    gone = sorted(set(listed) - set(listing().splitlines()))
    new = sorted(set(listing().splitlines()) - set(listed))
    assert (gone, new) == ([], []), "If that is meant: python tests/test_public_api.py"


if __name__ == "__main__":
    LISTING.write_text(listing(), encoding="utf-8")
