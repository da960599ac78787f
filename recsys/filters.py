"""Conditions on item metadata, written as SQL and evaluated by polars.

An expression is parsed by `polars.sql_expr`, which can do more than is wanted here: a subquery
would read files. So only a short list of words is let through to it, beside names of columns,
numbers and quoted text. Nothing is evaluated as Python.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import polars as pl

from recsys.data.ratings import Ratings
from recsys.errors import DataError

__all__ = ["items_where"]

_OPERATORS = {"and", "or", "not", "in", "like", "ilike", "rlike", "regexp", "between", "is"}
_VALUES = {"null", "true", "false", "case", "when", "then", "else", "end"}
_FUNCTIONS = {"lower", "upper", "length", "starts_with", "ends_with", "abs", "round", "floor"}
_WORDS = _OPERATORS | _VALUES | _FUNCTIONS | {"ceil", "coalesce"}
_NEVER = {"select", "from", "table", "values", "with", "union", "lateral", "unnest"}

# The parser of polars recurses without a limit: 2,000 conditions joined by OR crash the process.
_LONGEST = 400

# Not a token, lest text begin or end elsewhere than we think: a quote right after a word (E'..' has
# rules of its own), a backslash (which may escape or not), a comment (in which quotes are nothing).
_TOKEN = re.compile(
    r"""\s*(?:
        (?P<text>'(?:[^'\\]|'')*')
      | (?P<quoted>"(?:[^"\\]|"")+")
      | (?P<number>\d+(?:\.\d*)?(?:[eE][+-]?\d+)?(?!['"\w]))
      | (?P<word>[^\W\d]\w*(?!['"\w]))
      | (?P<sign><=|>=|<>|!=|\|\||!~\*|!~|~\*|-(?!-)|/(?!\*)|[+*%=<>(),~])
    )""",
    re.VERBOSE,
)


def items_where(condition: str, ratings: Ratings) -> npt.NDArray[np.bool_]:
    """Return which items meet a condition on what is known of them.

    Parameters
    ----------
    condition : str
        A Boolean SQL expression over the columns of `ratings.item_info`, such as
        ``year >= 1990 AND genres LIKE '%Comedy%'``: comparisons, AND, OR, NOT, IN, BETWEEN, LIKE,
        ILIKE, ~ (regular expression), IS NULL, CASE, arithmetic, and the functions lower, upper,
        length, starts_with, ends_with, abs, round, floor, ceil and coalesce.
    ratings : Ratings

    Returns
    -------
    bool ndarray of shape (n_items,)
        False also where the condition is unknown, because a value is missing.

    Raises
    ------
    DataError
        If it is no such condition (the message names the columns there are), or has more than
        400 words and signs.

    Examples
    --------
    >>> films = pl.DataFrame({"item": [1, 2], "title": ["Up", "Heat"], "year": [2009, 1995]})
    >>> pairs = pl.DataFrame({"user": [7, 7], "item": [1, 2]})
    >>> items_where("year < 2000", Ratings.from_frame(pairs, item_info=films))
    array([False,  True])
    """
    if not isinstance(condition, str):
        raise DataError(f"where: the condition must be text; got {condition!r}.")
    table = ratings.items.values.alias("item").to_frame()
    if ratings.item_info is not None:
        table = table.join(ratings.item_info, on="item", how="left", maintain_order="left")
    _check_words(condition, table.columns)
    try:
        found = table.select(pl.sql_expr(condition).alias("met")).to_series()
    except pl.exceptions.PolarsError as error:
        raise _refusal(condition, str(error).splitlines()[0].rstrip("."), table) from None
    if found.dtype != pl.Boolean:
        raise _refusal(condition, f"it is no condition but gives {found.dtype} values", table)
    if len(found) != len(table):
        found = found.new_from_index(0, len(table))
    return found.fill_null(False).to_numpy()


def _check_words(condition: str, columns: list[str]) -> None:
    """Refuse every word that is neither a column nor one of those let through."""
    n_parts = 0
    for kind, token in _tokens(condition):
        n_parts += kind in ("word", "quoted") or (kind == "sign" and token != ",")
        if n_parts > _LONGEST:
            raise DataError(
                f"where: the condition may have up to {_LONGEST} words and signs (numbers, text "
                "and commas not counted); got more."
            )
        name, hint, allowed = token, "", True
        if kind == "quoted":
            name, hint = token[1:-1].replace('""', '"'), " (text stands in single quotes)"
            allowed = name in columns
        elif kind == "word":
            word = token.lower()
            allowed = word in _WORDS or (name in columns and word not in _NEVER)
            if re.search(rf"(?:[=<>]|\blike)\s*{re.escape(token)}\b", condition, re.IGNORECASE):
                hint = " (text stands in single quotes)"
        if not allowed:
            raise DataError(
                f"where: {name} is neither a column nor an allowed word{hint}; "
                f"the columns of the items are {', '.join(columns)}."
            )


def _tokens(condition: str) -> Iterator[tuple[str, str]]:
    end = len(condition.rstrip())
    place = 0
    while place < end:
        match = _TOKEN.match(condition, place)
        if match is None:
            raise DataError(
                f"where: cannot read {condition[place:].strip()!r}; text stands in single quotes, "
                "and neither backslashes nor comments are allowed."
            )
        kind = str(match.lastgroup)
        yield kind, match[kind]
        place = match.end()


def _refusal(condition: str, why: str, table: pl.DataFrame) -> DataError:
    types = ", ".join(f"{name} ({dtype})" for name, dtype in table.schema.items())
    return DataError(f"where: {condition!r} cannot be used: {why}; the columns are {types}.")
