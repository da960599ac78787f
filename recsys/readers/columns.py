"""Which column plays which role: the usual names, and what was asked for."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from recsys.errors import DataError
from recsys.wording import shortened

__all__ = [
    "Request",
    "Roles",
    "choose_columns",
    "is_known_name",
    "title_columns",
    "usual_column",
    "wide_hint",
]

Role = Literal["user", "item", "rating", "time"]

# Names in tiers: one of an earlier tier wins over those of later ones; two of one tier are
# ambiguous. Compared in lower case, without anything but letters and digits.
_ALIASES: dict[str, tuple[frozenset[str], ...]] = {
    "user": (
        frozenset({"user", "userid", "uid", "useridx", "users"}),
        frozenset({"reviewerid", "customerid", "customer", "memberid", "accountid", "visitorid"}),
        frozenset({"reviewer", "member", "account", "visitor", "username", "client", "clientid"}),
    ),
    "item": (
        frozenset({"item", "itemid", "iid", "itemidx", "items"}),
        frozenset(
            {"movieid", "productid", "asin", "isbn", "bookid", "trackid", "artistid", "songid"}
            | {"albumid", "gameid", "animeid", "businessid", "articleid", "filmid", "recipeid"}
            | {"sku", "stockcode"}
        ),
        frozenset({"parentasin"}),
        frozenset({"movie", "product", "book", "track", "artist", "song", "album", "game", "film"}),
    ),
    "rating": (
        frozenset({"rating", "ratings", "score", "stars", "overall", "bookrating", "movierating"}),
        frozenset({"value", "count", "plays", "playcount", "weight", "listens", "clicks"}),
    ),
    "time": (
        frozenset({"timestamp", "ts", "unixreviewtime", "unixtime"}),
        frozenset({"time", "datetime"}),
        frozenset({"date", "createdat", "eventtime"}),
        frozenset({"purchasedate", "orderdate", "invoicedate", "reviewdate", "tdat"}),
    ),
    "title": (frozenset({"title"}), frozenset({"name", "movietitle", "booktitle", "itemname"})),
}
_LISTED = 20
_OPTIONS = {
    "user": "--user-col",
    "item": "--item-col",
    "rating": "--rating-col",
    "time": "--time-col",
}


@dataclass(frozen=True, slots=True)
class Request:
    """What the caller said about the file: names of columns, and how to take it."""

    user_col: str | None = None
    item_col: str | None = None
    rating_col: str | None = None
    time_col: str | None = None
    sep: str | None = None
    encoding: str | None = None
    implicit: bool = False

    def column_for(self, role: str) -> str | None:
        """Return the column that was asked for in a role."""
        named: dict[str, str | None] = {
            "user": self.user_col,
            "item": self.item_col,
            "rating": self.rating_col,
            "time": self.time_col,
        }
        return named[role]

    @property
    def asked(self) -> frozenset[str]:
        """The columns that were asked for."""
        named = (self.column_for(role) for role in _OPTIONS)
        return frozenset(name for name in named if name is not None)


@dataclass(frozen=True, slots=True)
class Roles:
    """Positions of the columns that were chosen."""

    user: int
    item: int
    rating: int | None
    time: int | None

    def items(self) -> list[tuple[str, int]]:
        """Return (role, position) for each role that is filled."""
        pairs = [("user", self.user), ("item", self.item)]
        pairs += [("rating", self.rating)] if self.rating is not None else []
        pairs += [("timestamp", self.time)] if self.time is not None else []
        return pairs


def choose_columns(names: Sequence[str], request: Request, where: str) -> Roles:
    """Choose the columns by what was asked for, and by the usual names for the rest.

    Parameters
    ----------
    names : sequence of str
        Column names; may repeat.
    request : Request
    where : str
        What messages call the file.

    Raises
    ------
    DataError
        If a column that was asked for is missing, two have an equal claim to a role, two roles
        are given the same column, or there is no user or item column.
    """
    chosen: dict[str, int | None] = {}
    for role in _OPTIONS:
        wanted = request.column_for(role)
        if wanted is not None:
            chosen[role] = _find_named(wanted, names, where)
    _check_distinct(chosen, names, where)
    for role in _OPTIONS:
        if role not in chosen:
            chosen[role] = _find_usual(role, names, set(chosen.values()), where)
    user, item = chosen["user"], chosen["item"]
    if user is None or item is None:
        raise DataError(_what_is_missing(chosen, names, where))
    return Roles(user, item, None if request.implicit else chosen["rating"], chosen["time"])


def _what_is_missing(chosen: dict[str, int | None], names: Sequence[str], where: str) -> str:
    missing = [role for role in ("user", "item") if chosen[role] is None]
    which = "it is" if len(missing) == 1 else "they are"
    if len(missing) > 1 and chosen["rating"] is None and len(names) > len(missing):
        missing.append("rating")
    columns = " and no ".join(missing[:2])
    options = [_OPTIONS[role] for role in missing]
    listed = " and ".join(filter(None, [", ".join(options[:-1]), options[-1]]))
    said = (
        f"{where} has no {columns} column; its columns are {_quoted(names)}. Say which {which} "
        f"with {listed}."
    )
    if not names:
        return f"{where} has no columns."
    if title_columns(names):
        said += " (It looks like a table of titles, which is read along with a file of ratings.)"
    return said + wide_hint(len(names))


def wide_hint(width: int) -> str:
    """Return what to say of a table with more columns than ratings have: it may be a matrix."""
    if width <= _LISTED:
        return ""
    return (
        " If it has a column for each item, make a row for each rating of it first, with a user, "
        "an item and the rating (`melt` in pandas, `unpivot` in polars)."
    )


def usual_column(names: Sequence[str], role: str, where: str) -> str | None:
    """Return the column whose name has the best claim to a role, if there is one.

    Raises
    ------
    DataError
        If two have an equal claim.
    """
    place = _find_usual(role, names, set(), where)
    return None if place is None else names[place]


def is_known_name(name: str) -> bool:
    """Return whether a name is one of the usual column names."""
    plain = _normalised(name)
    return any(plain in tier for tiers in _ALIASES.values() for tier in tiers)


def title_columns(names: Sequence[str]) -> tuple[int, int] | None:
    """Return the positions of the item and title columns of a file of titles, if it has both."""
    try:
        item = _find_usual("item", names, set(), "")
        title = _find_usual("title", names, {item}, "")
    except DataError:
        return None
    return None if item is None or title is None else (item, title)


def _find_named(wanted: str, names: Sequence[str], where: str) -> int:
    exact = [place for place, name in enumerate(names) if name == wanted]
    alike = [place for place, name in enumerate(names) if _normalised(name) == _normalised(wanted)]
    found = exact or alike
    if len(found) == 1:
        return found[0]
    if not found:
        raise DataError(f"{where} has no column {wanted!r}; its columns are {_quoted(names)}.")
    raise DataError(f"{where} has {len(found)} columns named {wanted!r}; rename one of them.")


def _find_usual(role: str, names: Sequence[str], taken: set[int | None], where: str) -> int | None:
    """Return the position of the column whose name has the best claim to a role."""
    for tier in _ALIASES[role]:
        found = [p for p, name in enumerate(names) if p not in taken and _normalised(name) in tier]
        if len(found) == 1:
            return found[0]
        if found:
            either = " and ".join(repr(names[place]) for place in found)
            raise DataError(
                f"{where} has several columns that may be the {role}: {either}; say which it is "
                f"with {_OPTIONS.get(role, '')}."
            )
    return None


def _check_distinct(chosen: dict[str, int | None], names: Sequence[str], where: str) -> None:
    taken: dict[int | None, str] = {}
    for role, place in chosen.items():
        if place in taken:
            name = names[place] if place is not None else ""
            raise DataError(f"{where}: column {name!r} cannot be both {taken[place]} and {role}.")
        taken[place] = role


def _normalised(name: str) -> str:
    return re.sub(r"[\W_]+", "", name.casefold())


def _quoted(names: Sequence[str]) -> str:
    more = f" and {len(names) - _LISTED:,} more" if len(names) > _LISTED else ""
    return ", ".join(repr(shortened(name)) for name in names[:_LISTED]) + more
