"""Which file of a directory or zip holds the ratings, and which the titles."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import PurePosixPath

from recsys.errors import DataError

__all__ = ["TITLE_FILES", "choose_member", "data_suffix", "plain_name", "titles_member"]

# In order of preference, where one folder holds several.
_RATING_FILES = (
    "ratings.csv",
    "ratings.dat",
    "u.data",
    "ratings.parquet",
    "ratings.tsv",
    "ratings.jsonl",
    "ratings.ndjson",
    "train.txt",
)
TITLE_FILES = ("movies.csv", "movies.dat", "u.item", "items.csv")
_PACKERS = (".gz", ".zst", ".zip")
_TABLE_SUFFIXES = (".csv", ".tsv", ".dat", ".data", ".jsonl", ".ndjson", ".parquet")
_NOT_RATINGS = ("links.csv", "tags.csv", "users.csv", "users.dat", "tags.dat")
_LISTED = 5


def choose_member(names: list[str], place: str) -> str:
    """Return the name of the ratings file among those of a directory or zip.

    Parameters
    ----------
    names : list of str
        Names, with "/" between the folders of a zip.
    place : str
        What messages call the directory or zip.

    Raises
    ------
    DataError
        If there is none, or several have the same claim.
    """
    for candidates in _by_claim(names):
        if len(candidates) == 1:
            return candidates[0]
        if candidates:
            raise DataError(
                f"{place} holds several files that may be the ratings ({_some(candidates)}); "
                "name the one to read."
            )
    if "xl/workbook.xml" in names:
        raise DataError(f"{place} is an Excel workbook; save its sheet as CSV first.")
    found = f"it holds {_some(names)}" if names else "it is empty"
    raise DataError(
        f"{place} holds no ratings file, such as ratings.csv, ratings.dat or u.data; {found}."
    )


def titles_member(names: list[str]) -> str | None:
    """Return the name of the file with titles among those of one folder, if there is one."""
    plain = {plain_name(name): name for name in names}
    return next((plain[known] for known in TITLE_FILES if known in plain), None)


def data_suffix(name: str) -> str:
    """Return the suffix of a file name in lower case, without that of a packer."""
    return PurePosixPath(plain_name(name)).suffix


def _by_claim(names: list[str]) -> Iterable[list[str]]:
    """Yield groups of names with falling claim to be the ratings file."""
    depths = sorted({name.count("/") for name in names})
    for depth in depths:
        for known in _RATING_FILES:
            yield [n for n in names if n.count("/") == depth and plain_name(n) == known]
    others = (*TITLE_FILES, *_NOT_RATINGS)
    tables = [n for n in names if plain_name(n) not in others]
    yield [n for n in tables if "rating" in plain_name(n) and "readme" not in plain_name(n)]
    yield [n for n in tables if data_suffix(n) in _TABLE_SUFFIXES]
    yield [n for n in tables if data_suffix(n) == ".txt" and "readme" not in n.lower()]


def plain_name(name: str) -> str:
    """Return a file name in lower case, without folders and packers."""
    plain = name.rpartition("/")[2].lower()
    for packer in _PACKERS:
        plain = plain.removesuffix(packer)
    return plain


def _some(names: list[str]) -> str:
    more = f" and {len(names) - _LISTED} more" if len(names) > _LISTED else ""
    return ", ".join(names[:_LISTED]) + more
