"""Titles, genres and years next to the ratings: MovieLens layouts, or an items.csv."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence

import polars as pl

from recsys.data.columns import title_columns
from recsys.errors import DataError
from recsys.readers.sources import DataFile, plain_name, titles_member

__all__ = ["read_titles"]

# The order of the flags in u.item of MovieLens 100K (u.genre says the same).
_U_ITEM_GENRES = (
    *("unknown", "Action", "Adventure", "Animation", "Children's", "Comedy", "Crime"),
    *("Documentary", "Drama", "Fantasy", "Film-Noir", "Horror", "Musical", "Mystery"),
    *("Romance", "Sci-Fi", "Thriller", "War", "Western"),
)
_FEW = 10_000  # cells that may be missing, of however many
_NO_GENRES = "(no genres listed)"


def read_titles(data: DataFile) -> tuple[pl.DataFrame | None, str]:
    """Return the titles next to a ratings file, and the name of their file, or why it is not used.

    Columns are "item" (String), "title", "year" (Int32), possibly "genres" and whatever else an
    items.csv has; None if there is no such file, or it cannot be used.
    """
    name = None if data.folder is None else titles_member(data.folder.names())
    if data.folder is None or name is None or name == data.name.rpartition("/")[2]:
        return None, ""
    try:
        raw = data.folder.fetch(name).read_bytes()
        try:
            text = raw.decode("utf-8-sig")
        except UnicodeDecodeError:
            text = raw.decode("latin-1")  # as the older MovieLens sets
        rows = _rows(text, plain_name(name))
    except (DataError, csv.Error) as error:
        return None, f"{name} not used: {error}"
    if rows is None:
        return None, f"{name} not used (no columns of items and titles)"
    year = pl.col("title").str.extract(r"\((\d{4})\)\s*$")
    if "year" in rows.columns:
        year = pl.coalesce("year", year)
    rows = rows.with_columns(year.cast(pl.Int32, strict=False).alias("year"))
    if "genres" in rows.columns:
        rows = rows.with_columns(pl.col("genres").replace(_NO_GENRES, None))
    return rows, name


def _rows(text: str, kind: str) -> pl.DataFrame | None:
    """Return a file of titles as a frame of strings, or None if it has not the right columns."""
    # Not splitlines, which takes some characters of titles for the end of a line.
    lines = [line.rstrip("\n") for line in io.StringIO(text, newline=None) if line.strip()]
    if kind == "movies.dat":
        return _frame(("item", "title", "genres"), [line.split("::") for line in lines])
    if kind == "u.item":
        rows = []
        for line in lines:  # id, title, ...; the last 19 fields are flags of genres
            row = line.split("|")
            flags = zip(_U_ITEM_GENRES, row[-len(_U_ITEM_GENRES) :], strict=False)
            rows.append([*row[:2], "|".join(genre for genre, flag in flags if flag == "1")])
        return _frame(("item", "title", "genres"), rows)
    table = [row for row in csv.reader(io.StringIO(text, newline=None)) if row]
    places = title_columns(table[0]) if table else None
    if places is None:
        return None
    fixed = dict(zip(places, ("item", "title"), strict=True))
    names: dict[str, None] = {}  # lower-case ones, as a set that keeps its order
    for place, name in enumerate(table[0]):
        plain = fixed.get(place, name.strip().lower())
        if plain in names or not plain or (place not in fixed and plain in fixed.values()):
            plain = f"column_{place + 1}"
        while plain in names:
            plain += "_"
        names[plain] = None
    return _frame(list(names), table[1:])


def _frame(names: Sequence[str], rows: Sequence[Sequence[str]]) -> pl.DataFrame:
    """Return rows of strings, null where a cell is empty; rows without an id are left out."""
    width = len(names)
    if width * len(rows) > 2 * sum(map(len, rows)) + _FEW:
        raise DataError(f"most of its rows are shorter than the {width:,} columns")
    padded = [[cell or None for cell in row[:width]] + [None] * (width - len(row)) for row in rows]
    frame = pl.DataFrame(padded, schema=dict.fromkeys(names, pl.String), orient="row")
    return frame.with_columns(pl.all().str.strip_chars()).filter(pl.col("item").is_not_null())
