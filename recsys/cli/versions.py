"""Versions of the libraries that this package stands on."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

__all__ = ["LIBRARIES", "library_versions"]

LIBRARIES = ("numpy", "scipy", "polars", "pandas", "scikit-learn", "implicit", "click", "rich")


def library_versions() -> dict[str, str]:
    """Return the installed version of each library, in the order of `LIBRARIES`."""
    return {name: _version(name) for name in LIBRARIES}


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "not installed"
