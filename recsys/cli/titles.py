"""Items by their titles."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from recsys.cli.errors import CommandError
from recsys.wording import close_matches

if TYPE_CHECKING:
    import polars as pl

    from recsys.ratings import Ratings

__all__ = ["find_item", "find_title"]

_CANDIDATES = 10


def find_title(ratings: Ratings, text: str) -> Any:
    """Return the id of the item with the title `text`: exactly, ignoring case, or a part of it.

    A title counts with and without the year at its end, and with its article in front or behind:
    "the matrix" is "Matrix, The (1999)". Of the parts, the beginning of a title goes before what is
    inside of one.

    Raises
    ------
    CommandError
        If there are no titles, or none or several that fit.
    """
    import polars as pl

    titles = ratings.titles
    if titles is None:
        raise CommandError("These data have no titles; use an id instead.")
    lower, plain = titles.str.to_lowercase(), _plain(titles)
    wanted, bare = text.lower(), _plain(pl.Series([text]))[0]
    for matches in (
        titles == text,
        lower == wanted,
        plain == bare,
        lower.str.starts_with(wanted) | plain.str.starts_with(bare),
        lower.str.contains(wanted, literal=True) | plain.str.contains(bare, literal=True),
    ):
        found = matches.fill_null(False).arg_true().to_numpy()
        if len(found) > 1:
            raise CommandError(_ambiguous(text, _named(ratings, found)))
        if len(found) == 1:
            return ratings.items.take(found)[0]
    raise CommandError(f"No title is or contains {text!r}.{_nearest(text, titles.drop_nulls())}")


def find_item(ratings: Ratings, text: str) -> Any:
    """Return the id of the item whose id is `text`, or whose title, as `find_title` has it.

    Raises
    ------
    CommandError
        If there is neither, several titles fit, or an id is the whole title of another item.
    """
    import numpy as np

    by_id = ratings.items.find([text])[0]
    if by_id < 0:
        if ratings.titles is None:
            ratings.items.index([text])
        return find_title(ratings, text)
    titled = [] if ratings.titles is None else (ratings.titles == text).arg_true().to_list()
    found = np.array(sorted({int(by_id), *titled}))
    if len(found) > 1:
        raise CommandError(_ambiguous(text, _named(ratings, found)))
    return ratings.items.take(found)[0]


def _plain(titles: pl.Series) -> pl.Series:
    """Return titles in lower case, without a year at the end, the article in front."""
    without_year = titles.str.to_lowercase().str.replace(r"\s*\(\d{4}\)\s*$", "")
    return without_year.str.replace(r"^(.+), (the|a|an)$", "$2 $1")


def _named(ratings: Ratings, found: Any) -> list[str]:
    titles = ratings.titles
    assert titles is not None
    pairs = zip(ratings.items.take(found), titles.gather(found), strict=True)
    return [f"  {item}  {title}" for item, title in pairs]


def _ambiguous(text: str, candidates: Sequence[str]) -> str:
    more = len(candidates) - _CANDIDATES
    tail = [f"  and {more:,} more"] if more > 0 else []
    lines = [*candidates[:_CANDIDATES], *tail]
    head = f"{len(candidates):,} titles fit {text!r}; use one of their ids instead:"
    return "\n".join([head, *lines])


def _nearest(text: str, titles: Any) -> str:
    by_lower = {title.lower(): title for title in titles}
    close = close_matches(text.lower(), by_lower, 3)
    return f" The nearest are {'; '.join(by_lower[each] for each in close)}." if close else ""
