"""What new users have rated: from a file, or from titles on the command line."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from recsys.cli.errors import CommandError
from recsys.cli.options import ReaderOptions
from recsys.cli.progress import note
from recsys.readers.id_lists import column_of, first_row, read_ids, separator_of

if TYPE_CHECKING:
    import polars as pl

    from recsys.data.ids import Ids
    from recsys.recommender import Recommender

__all__ = ["described_history", "load_history"]

_LONG_LINE = 2**16  # characters: a line that is a header, and no id


def described_history(
    like: tuple[str, ...], rate: tuple[str, ...], recommender: Recommender
) -> dict[Any, float]:
    """Return the ratings of a new user: items by id or title, liked or rated.

    Raises
    ------
    CommandError
        If an item is not found, is there twice, or a rating is out of the range of the others.
    """
    from recsys.cli.inputs import find_item

    best = _best_rating(recommender)
    rated = [(text, best) for text in like] + [_parse(text, recommender) for text in rate]
    history: dict[Any, float] = {}
    for text, rating in rated:
        item = find_item(recommender.ratings, text)
        if item in history:
            raise CommandError(f"Item {item} is liked or rated twice; {text!r} is one of the two.")
        history[item] = rating
    return history


def load_history(path: str, reader: ReaderOptions, recommender: Recommender) -> pl.DataFrame:
    """Read the columns user, item and possibly rating; without users, it is all of one new user.

    Items that the data don't have are left out, and counted on standard error; so are duplicates.

    Raises
    ------
    CommandError
        If the file is not there, or a pipe.
    UnknownIdError
        If the data have none of the items.
    """
    import polars as pl

    from recsys.folding import NEW_USER
    from recsys.readers.sources import refuse_endless

    if path == "-" or Path(path).is_fifo():
        raise CommandError(
            f"--history {path} is a pipe; write it to a file, which is read more than once."
        )
    if not Path(path).exists():
        raise CommandError(f"There is no file {path} with a history.")
    refuse_endless(path, path)
    names = first_row(path)
    if reader.user_col is None and _is_of_one_user(names, reader, recommender.ratings.items):
        frame = _of_one_user(path, names or [], reader)
        frame = frame.with_columns(pl.lit(NEW_USER).alias("user"))
    else:
        frame = _of_users(path, reader)
    places = recommender.ratings.items.find(frame["item"])
    if (places < 0).all():
        recommender.ratings.items.index(frame["item"])
    if (places < 0).any():
        n_unknown = int((places < 0).sum())
        note(f"{path}: {n_unknown:,} of {len(frame):,} rows are of unknown items, ignored")
        frame = frame.filter(pl.Series(places >= 0))
    repeated = len(frame) - _n_pairs(frame)
    if repeated:
        note(f"{path}: {repeated:,} duplicate{'s' if repeated > 1 else ''} (last kept)")
    if "rating" not in frame.columns and recommender.model._needs_values:
        best = _best_rating(recommender)
        note(f"{path} has no ratings: its items count as liked, with a rating of {best:g}")
        frame = frame.with_columns(pl.lit(best, pl.Float32).alias("rating"))
    return frame


def _n_pairs(frame: pl.DataFrame) -> int:
    """Count the different pairs of a user and an item, without their ids beside each other."""
    import numpy as np

    from recsys.data.frames import encode
    from recsys.data.ids import as_id_series

    columns = [as_id_series(frame["user"], "user"), as_id_series(frame["item"], "item")]
    (_, users), (ids, items) = encode(columns[0], "user"), encode(columns[1], "item")
    return len(np.unique(users * np.int64(len(ids)) + items))


def _best_rating(recommender: Recommender) -> float:
    best = recommender.training["rating_max"]
    return 1.0 if best is None else float(best)


def _parse(text: str, recommender: Recommender) -> tuple[str, float]:
    """Split "TITLE=X" and check X."""
    title, _, number = text.rpartition("=")
    try:
        rating = float(number)
    except ValueError:
        rating = float("nan")
    if not title.strip() or rating != rating:
        raise click.UsageError(f"--rate takes TITLE=X with a number X; got {text!r}.")
    training = recommender.training
    if training["implicit"]:
        raise CommandError(
            "The model learnt from contacts without ratings; use --like, not --rate."
        )
    low, high = training["rating_min"], training["rating_max"]
    if not low <= rating <= high:
        raise CommandError(
            f"--rate {text!r} is outside of the ratings, which lie between {low:g} and {high:g}."
        )
    return title.strip(), rating


def _is_of_one_user(names: list[str] | None, reader: ReaderOptions, items: Ids) -> bool:
    """Whether a file is a list of items, or has a column of items and none of users."""
    if names is None:
        return False
    line = ",".join(names).strip()
    if len(line) < _LONG_LINE and items.find([line])[0] >= 0:  # an id, of several words perhaps
        return True
    if len(names) == 1:
        return re.search(r"[\s;|:]", names[0].strip()) is None
    has_items = column_of(names, "item", reader.item_col) is not None
    return has_items and column_of(names, "user") is None


def _of_one_user(path: str, names: list[str], reader: ReaderOptions) -> pl.DataFrame:
    import polars as pl

    from recsys.readers.table import reading_parquet

    item = column_of(names, "item", reader.item_col)
    rating = None if reader.implicit else column_of(names, "rating", reader.rating_col)
    if item is None:
        return pl.Series("item", list(read_ids(path, "item"))).to_frame()
    roles = {role: name for role, name in (("item", item), ("rating", rating)) if name}
    chosen = [pl.col(name).alias(role) for role, name in roles.items()]
    if path.endswith(".parquet"):
        with reading_parquet(path):
            return pl.scan_parquet(path, glob=False).select(chosen).collect()
    separator = _separator(path)
    try:
        scan = pl.scan_csv(path, separator=separator, infer_schema=False, glob=False)
        frame = scan.select(chosen).collect()
    except pl.exceptions.PolarsError as error:
        reason = str(error).partition("\n")[0].rstrip(".")  # without hints for callers of polars
        raise CommandError(f"{path} cannot be read as a table: {reason}.") from error
    if rating and separator == ";":  # decimal commas, as in any file of ratings
        return frame.with_columns(pl.col("rating").str.replace(",", ".", literal=True))
    return frame


def _separator(path: str) -> str:
    with Path(path).open(encoding="utf-8-sig") as file:
        return separator_of(file.readline())


def _of_users(path: str, reader: ReaderOptions) -> pl.DataFrame:
    import polars as pl

    from recsys.readers import read_raw
    from recsys.readers.layout import Request
    from recsys.readers.sources import open_data

    request = Request(
        user=reader.user_col,
        item=reader.item_col,
        rating=reader.rating_col,
        sep=reader.sep,
        encoding=reader.encoding,
        implicit=reader.implicit,
    )
    with open_data(path, reader.encoding) as data:
        columns = read_raw(data, request).columns
    return pl.DataFrame(
        [columns[name].alias(name) for name in ("user", "item", "rating") if name in columns]
    )
