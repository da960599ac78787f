"""What every reader hands over: columns, and how it came to them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import polars as pl

from recsys.errors import DataError
from recsys.frames import unix_seconds
from recsys.readers.columns import Request, Roles
from recsys.wording import shortened

__all__ = ["RawRatings", "describe_roles", "integers_if_canonical", "without_foreign_time"]

_NAMED = 5  # columns that are not used
_CANONICAL_INTEGER = r"^(?:0|-?[1-9][0-9]{0,18})$"


@dataclass(frozen=True, slots=True)
class RawRatings:
    """The columns of a file, before ids become indices.

    Attributes
    ----------
    columns : dict of Series
        "user", "item", and possibly "rating" and "timestamp".
    decision : str
        The layout and what was taken for what, such as "comma-separated, user = userId, ...".
    place : callable
        Names the place of a row (counted from 0), such as "ratings.csv, line 17".
    idle_users : Series or None
        Users who are there without any item.
    """

    columns: dict[str, pl.Series]
    decision: str
    place: Callable[[int], str]
    idle_users: pl.Series | None = None


def integers_if_canonical(texts: pl.Series) -> pl.Series:
    """Return ids as Int64 if each is written as an integer is printed, else as they are.

    So "7" is an integer, but one "007" or "7.0" makes the whole column strings.
    """
    if not texts.str.contains(_CANONICAL_INTEGER).all():
        return texts
    numbers = texts.cast(pl.Int64, strict=False)
    return texts if numbers.null_count() else numbers


def describe_roles(roles: Roles, names: Sequence[str], remarks: Sequence[str] = ()) -> str:
    """Say which column was taken for what, and which for nothing if ratings or times are missing.

    `remarks` are said as well; a column that one begins with is not named twice.
    """
    labels = [("user", roles.user), ("item", roles.item), ("rating", roles.rating)]
    labels.append(("time", roles.time))
    said = [f"{label} = {names[place]}" for label, place in labels if place is not None]
    if roles.rating is None:
        said.append("no rating: implicit feedback")
    said += remarks
    used = {place for _, place in roles.items()}
    unused = [name for place, name in enumerate(names) if place not in used and name]
    unused = [name for name in unused if not any(r.startswith(f"{name} ") for r in remarks)]
    if unused and (roles.rating is None or roles.time is None):
        more = f" and {len(unused) - _NAMED:,} more" if len(unused) > _NAMED else ""
        said.append(f"not used: {', '.join(unused[:_NAMED])}{more}")
    return ", ".join(said)


def without_foreign_time(
    roles: Roles, names: Sequence[str], sample: Sequence[Any], request: Request
) -> tuple[Roles, list[str]]:
    """Leave a time column alone that nobody asked for and that holds no times we can read.

    Parameters
    ----------
    roles : Roles
    names : sequence of str
    sample : sequence
        Values of the time column.
    request : Request

    Returns
    -------
    Roles
        Without the time column if it is left alone.
    list of str
        What to say about it, if anything.
    """
    if roles.time is None or request.time_col is not None or any(map(_is_time, sample)):
        return roles, []
    value = next((value for value in sample if value not in (None, "")), "")
    shown = repr(shortened(value)) if isinstance(value, str) else repr(value)
    remark = f"{names[roles.time]} not used ({shown} is no time that can be read)"
    return replace(roles, time=None), [remark]


def _is_time(value: object) -> bool:
    try:
        unix_seconds(pl.Series([value]))
    except (DataError, TypeError, OverflowError):
        return False
    return True
