"""Tables of MovieLens without a header: films with flags of genres, users with codes."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path

import polars as pl

from recsys.readers.table import decoded_lines

__all__ = ["TABLES", "movielens_table"]

# The order of the flags in u.item of MovieLens 100K (u.genre says the same).
_GENRES = (
    *("unknown", "Action", "Adventure", "Animation", "Children's", "Comedy", "Crime"),
    *("Documentary", "Drama", "Fantasy", "Film-Noir", "Horror", "Musical", "Mystery"),
    *("Romance", "Sci-Fi", "Thriller", "War", "Western"),
)
# By the codes of users.dat of MovieLens 1M.
_OCCUPATIONS = (
    *("other", "academic/educator", "artist", "clerical/admin", "college/grad student"),
    *("customer service", "doctor/health care", "executive/managerial", "farmer", "homemaker"),
    *("K-12 student", "lawyer", "programmer", "retired", "sales/marketing", "scientist"),
    *("self-employed", "technician/engineer", "tradesman/craftsman", "unemployed", "writer"),
)
Row = list[str]


def movielens_table(name: str, path: Path) -> pl.DataFrame | None:
    """Return a table of MovieLens as columns of strings; None if `name` is not one of `TABLES`.

    Raises
    ------
    DataError
        If the file is not in UTF-8.
    """
    if name not in TABLES:
        return None
    names, separator, change = TABLES[name]
    rows = []
    for line in decoded_lines(path, name):
        if line.strip():
            cells = change(re.sub(r"[\r\n]+$", "", line).split(separator))
            rows.append([each.strip() or None for each in cells[: len(names)]])
    padded = [row + [None] * (len(names) - len(row)) for row in rows]
    return pl.DataFrame(padded, dict.fromkeys(names, pl.String), orient="row")


def _film(row: Row) -> Row:
    """Replace the last 19 fields, flags of genres, by the names of the genres."""
    flags = zip(_GENRES, row[-len(_GENRES) :], strict=False)
    return [*row[:3], "|".join(genre for genre, flag in flags if flag == "1")]


def _user(row: Row) -> Row:
    """Replace the code of an occupation by its name."""
    code = row[3] if len(row) > 3 else ""
    known = code.isdecimal() and int(code) < len(_OCCUPATIONS)
    return [*row[:3], _OCCUPATIONS[int(code)] if known else code, *row[4:]]


TABLES: dict[str, tuple[Sequence[str], str, Callable[[Row], Row]]] = {
    "u.item": (("item", "title", "released", "genres"), "|", _film),
    "movies.dat": (("item", "title", "genres"), "::", list),
    "u.user": (("user", "age", "gender", "occupation", "zip"), "|", list),
    "users.dat": (("user", "gender", "age", "occupation", "zip"), "::", _user),
}
"""Names of the columns, separator, and what is done with each row, by the name of the file."""
