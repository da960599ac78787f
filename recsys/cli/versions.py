"""Versions of the libraries that this package stands on."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version

__all__ = ["EXTRAS", "LIBRARIES", "library_versions"]

LIBRARIES = ("numpy", "scipy", "polars", "pandas", "scikit-learn", "implicit", "click", "rich")


EXTRAS = ("matplotlib", "optuna", "pyspark", "pyarrow")
"""Libraries that are not needed, but used where they are installed."""


def library_versions(names: Sequence[str] = LIBRARIES) -> dict[str, str]:
    """Return the installed version of each library, in the order of `names`."""
    return {name: _version(name) for name in names}


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "not installed"
