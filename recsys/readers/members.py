"""Members: which files of a folder or zip have ratings, and which are tables of items and users."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path, PurePosixPath

import polars as pl

from recsys.database import Pick
from recsys.errors import DataError
from recsys.messages import enumerated

# In order of preference, where one folder holds several.
_RATING_FILES = (
    *("ratings.csv", "ratings.dat", "u.data", "ratings.parquet", "ratings.tsv"),
    *("ratings.jsonl", "ratings.ndjson", "train.txt"),
)
_TABLES = {
    "item": (
        *("movies", "films", "books", "items", "products", "articles", "songs", "tracks"),
        *("games", "recipes", "catalog", "catalogue", "metadata", "movie_titles"),
    ),
    "user": ("users", "customers", "members", "readers"),
}
_PACKERS = (".gz", ".xz", ".bz2", ".zst", ".zip")
TABLE_SUFFIXES = (
    ".csv",
    ".tsv",
    ".dat",
    ".data",
    ".jsonl",
    ".ndjson",
    ".json",
    ".parquet",
    ".inter",
)
_NOT_RATINGS = ("links.csv", "tags.csv", "tags.dat")
_OF_A_SPLIT = re.compile(r"(^|[_.-])(train|test|valid|validation|history|base)([_.-]|\d*$)")
LISTED = 5
"""Names of files that are listed."""

_NUMBER = re.compile(r"[-+]?\d[\d.,]*")
_OF_NETFLIX = re.compile(r"\d+,[\d.]+,[\d-]+")
_OBJECT = "{"
_LINE = 1 << 16  # bytes of a line that are looked at


def candidates(names: list[str], place: str) -> list[str]:
    """Return the files among those of a directory or zip that may be the ratings, by their names.

    Raises
    ------
    DataError
        If there are none.
    """
    if any(re.search(r"(^|/)arrays/\w+\.npy$", name) for name in names):
        raise DataError(f"{place} has the arrays of a saved model, but no model.json.")
    names = [name for name in names if not plain_name(name).startswith("_")]
    known = {*table_files(names, "item"), *table_files(names, "user")}
    tables = [n for n in names if plain_name(n) not in _NOT_RATINGS and n not in known]
    tables = tables or names
    others = [n for n in tables if "readme" not in plain_name(n)]
    by_claim = [
        [n for n in names if n.count("/") == depth and plain_name(n) == known]
        for depth in sorted({name.count("/") for name in names})
        for known in _RATING_FILES
    ]
    by_claim.append([n for n in others if "rating" in plain_name(n)])
    by_claim.append([n for n in tables if data_suffix(n) in TABLE_SUFFIXES])
    by_claim.append([n for n in others if data_suffix(n) == ".txt"])
    found = next(filter(None, by_claim), [])
    if not found:
        held = f"it holds {enumerated(names, LISTED)}" if names else "it is empty"
        raise DataError(
            f"{place} holds no ratings file, such as ratings.csv, ratings.dat or u.data; {held}."
        )
    return found


def are_parts(files: Mapping[str, Path]) -> bool:
    """Return whether files, by name, are parts of one table, by the names of their columns.

    Later parts may have a few more columns. Of text without a header the number of fields counts.
    Those of a split are not parts.
    """
    is_split = any(_OF_A_SPLIT.search(PurePosixPath(plain_name(name)).stem) for name in files)
    if is_split or len(set(map(data_suffix, files))) > 1:
        return False
    heads = set()
    for path in files.values():
        fields = _first_fields(path)
        if fields[:1] == [_OBJECT]:
            fields = [_OBJECT]
        elif any(map(_NUMBER.fullmatch, fields)):
            fields = [str(len(fields))]
        if fields:
            heads.add(frozenset(fields))
    return all(min(heads, key=len, default=frozenset()) <= head for head in heads)


def has_ratings(path: Path, pick: Pick) -> bool | None:
    """Return whether a file has columns of users and items, None if it seems to have no header."""
    fields = _first_fields(path)
    is_one = len(fields) < 2 and not "".join(fields).endswith(":")
    if is_one or any(map(_NUMBER.fullmatch, fields)):
        return None
    try:
        return bool(pick(fields, path.name))
    except DataError:
        return False


def _first_fields(path: Path) -> list[str]:
    """Return the fields of the first line; of an object the keys, after a mark."""
    with path.open("rb") as stream:
        if stream.read(4) == b"PAR1":
            with suppress(pl.exceptions.PolarsError):  # a damaged one is an error of its own
                return list(pl.read_parquet_schema(path))
            return []
        stream.seek(0)
        first, second = (
            stream.readline(_LINE).decode("utf-8-sig", errors="replace").strip() for _ in range(2)
        )
    if first.startswith(("{", "[")):
        try:
            return [_OBJECT, *json.loads(first)]
        except (ValueError, TypeError, RecursionError):
            return [_OBJECT]
    if first.endswith(":") and _OF_NETFLIX.fullmatch(second):
        return ["user", "item", "rating", "timestamp"]
    return [field.strip().strip('"') for field in re.split(r"[,;\t|]|::", first)] if first else []


def table_files(names: list[str], kind: str) -> list[str]:
    """Return the names of tables of "item" or "user" kind among those of a folder, best first."""
    suffixes = [*TABLE_SUFFIXES, f".{kind}"]
    ranked = []
    for name in names:
        stem, dot, end = plain_name(name).removeprefix("bx-").removeprefix("bx_").partition(".")
        stems = (stem,) if end == kind else _TABLES[kind]
        if stem in stems and dot + end in suffixes:
            ranked.append((stems.index(stem), suffixes.index(dot + end), name))
    return [name for _, _, name in sorted(ranked)]


def data_suffix(name: str) -> str:
    """Return the suffix of a file name in lower case, without that of a packer."""
    return PurePosixPath(plain_name(name)).suffix


def plain_name(name: str) -> str:
    """Return a file name in lower case, without folders and packers."""
    plain = name.rpartition("/")[2].lower()
    for packer in _PACKERS:
        plain = plain.removesuffix(packer)
    return plain
