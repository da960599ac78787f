"""Ratings, ids and matrices; the sample data: real films, synthetic ratings."""

from __future__ import annotations

from pathlib import Path

from recsys.errors import DataError

__all__ = ["sample_path"]

_FILES = ("ratings.csv", "items.csv")


def sample_path() -> Path:
    """Find the directory of the embedded sample data.

    An installed package has them inside, as ``recsys/sample``; a source checkout, and an editable
    install of it, has them in ``data`` beside the package.

    Returns
    -------
    Path
        A directory with ``ratings.csv`` (userId, itemId, rating, timestamp) and ``items.csv``
        (itemId, title, year, genres). Its ``README.md`` says how the ratings were made.

    Raises
    ------
    DataError
        If the files are in neither place.

    Examples
    --------
    >>> (sample_path() / "ratings.csv").is_file()
    True
    """
    places = _places()
    for place in places:
        if all((place / name).is_file() for name in _FILES):
            return place
    raise DataError(
        f"The sample data ({' and '.join(_FILES)}) are neither in {places[0]} nor in {places[1]}; "
        "reinstall lowrank-recsys to get them."
    )


def _places() -> tuple[Path, Path]:
    """Where the sample may lie: installed, and in a source checkout."""
    # Not importlib.resources: for an editable install it answers with a path of the build backend
    # that is no directory.
    package = Path(__file__).resolve().parents[1]
    return package / "sample", package.parent / "data"
