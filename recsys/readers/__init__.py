"""Files of ratings, in the layouts they come in, as `Ratings`."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace

from recsys.data.csr import check_policy
from recsys.data.ratings import Ratings, build_ratings
from recsys.readers.jsonl import read_jsonl
from recsys.readers.layout import Request, detect
from recsys.readers.lightgcn import read_lightgcn
from recsys.readers.movielens import read_titles
from recsys.readers.sources import DataFile, open_data
from recsys.readers.table import RawRatings, read_delimited, read_parquet

__all__ = ["Loaded", "read_ratings"]

_KEPT = {"last": "last kept", "first": "first kept", "mean": "averaged", "sum": "summed"}


@dataclass(frozen=True, slots=True)
class Loaded:
    """Ratings from a file, and one line that says how the file was understood."""

    ratings: Ratings
    decision: str


def read_ratings(
    path: str | os.PathLike[str],
    *,
    user_col: str | int | None = None,
    item_col: str | int | None = None,
    rating_col: str | int | None = None,
    time_col: str | int | None = None,
    sep: str | None = None,
    encoding: str | None = None,
    duplicates: str = "last",
    implicit: bool = False,
) -> Loaded:
    """Read ratings from a file, a directory or zip that holds one, or standard input.

    Recognised by content: the MovieLens layouts (ratings.csv; ratings.dat with "::"; u.data),
    LightGCN lines (user item item ...), text with comma, tab, semicolon, bar or space between
    columns, JSON lines and Parquet; each also in gz, zst or zip. Titles are read from
    movies.csv, movies.dat, u.item or items.csv beside the ratings.

    Parameters
    ----------
    path : path
        "-" is standard input.
    user_col, item_col, rating_col, time_col : str or int, optional
        Names of columns, where the usual ones (userId, movieId, asin, stars, timestamp, ...) are
        not there or several are; numbers from 1 in a file without header.
    sep : str, optional
        What separates columns: one character, "tab" or "::".
    encoding : str, optional
        Encoding of a text file; UTF-8 if not given.
    duplicates : {"last", "first", "mean", "sum", "error"}
        As in `Ratings.from_frame`.
    implicit : bool
        Take the data as implicit feedback: the rating column, if any, is not read.

    Returns
    -------
    Loaded
        ratings, and decision: what the file was taken for, in one line. Ids stay as given: a
        column of text is integers only if each value is written as an integer is printed, so
        "007" stays "007". Rows with nothing in them are skipped.

    Raises
    ------
    DataError
        If the file is missing, empty, damaged or binary; columns are missing or ambiguous; a
        row is ragged; an id, rating or time is missing or cannot be read. Line and text are
        named.
    """
    check_policy(duplicates)
    user, item, rating, time = (
        None if name is None else str(name) for name in (user_col, item_col, rating_col, time_col)
    )
    request = Request(user, item, rating, time, sep, encoding, implicit)
    with open_data(path, encoding) as data:
        raw = read_raw(data, request)
        titles, remark = read_titles(data)
        ratings = build_ratings(
            raw.columns,
            duplicates=duplicates,
            item_info=titles,
            idle_users=raw.idle_users,
            place=raw.place,
        )
    if ratings.item_info is not None and ratings.item_info.is_empty():
        ratings, remark = replace(ratings, item_info=None), f"{remark} not used (other ids)"
    said = [f"{data.name}: {raw.decision}"]
    if remark:
        said.append(remark if ratings.item_info is None else f"titles from {remark}")
    said.append(_said_of_duplicates(ratings.n_duplicates, duplicates))
    return Loaded(ratings, "; ".join(said))


def read_raw(data: DataFile, request: Request) -> RawRatings:
    """Read the columns of an open file, whatever its layout, as they stand in it."""
    layout = detect(data, request)
    if layout.kind == "parquet":
        return read_parquet(data, request)
    if layout.kind == "jsonl":
        return read_jsonl(data, request)
    if layout.kind == "lightgcn":
        return read_lightgcn(data)
    return read_delimited(data, layout, request)


def _said_of_duplicates(count: int, policy: str) -> str:
    if not count:
        return "no duplicates"
    return f"{count:,} duplicate{'s' if count > 1 else ''} ({_KEPT[policy]})"
