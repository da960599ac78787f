"""Filters: lists of allowed and blocked items, and conditions on items and users."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

import numpy as np
import polars as pl
import polars.selectors as cs
from numpy.typing import NDArray

from lowrank.kernels import row_places
from recsys.data.columns import of_roles
from recsys.data.features import Features
from recsys.data.frames import listed
from recsys.data.ids import Ids, IdsLike, query_series
from recsys.data.ratings import Ratings
from recsys.errors import DataError
from recsys.messages import close_matches, did_you_mean
from recsys.models.parts import Indices, Mask
from recsys.ranking.lists import BlockLike, ListOptions
from recsys.ranking.topn import CsrPairs

_TEXT = re.compile(r"'[^']*'|\"[^\"]*\"")
# Subqueries can read files. Backslashes, comments and dollars can hide a subquery from `_TEXT`.
_DENIED = re.compile(
    r"\b(?:select|from|table|values|with|union|lateral|unnest|(?:read|scan)_\w+)\b|--|/\*|[;$`]",
    re.IGNORECASE,
)
# Functions that are cheap for all arguments, unlike LPAD, REPLACE or CONCAT. Keywords before a
# bracket look like calls.
_MODEST = re.compile(
    r"abs|array_contains|cast|ceil|coalesce|date|day|ends_with|floor|greatest|if|initcap|least|left"
    r"|length|lower|ltrim|mod|month|nullif|right|round|rtrim|sign|sqrt|starts_with|strpos|substr"
    r"|substring|trim|upper|year|and|between|case|else|ilike|in|like|not|or|then|when",
    re.IGNORECASE,
)
# A function of SQL, unless it is quoted.
_USER = re.compile(rf"{_TEXT.pattern}|\buser\b", re.IGNORECASE)
_CALL = re.compile(r"([^\W\d]\w*)\s*\(")
_DATE = re.compile(r"\d{4}-\d\d-\d\d( \d\d:\d\d(:\d\d(\.\d{1,6})?)?)?")
# The parser of polars recurses without a limit, and would crash the process.
_MOST_WORDS = 400


def candidate_mask(
    ratings: Ratings,
    block: IdsLike | None,
    options: ListOptions,
    new: Mask | None = None,
    listed_items: Mask | None = None,
) -> Mask | None:
    """Return a mask of the items that may be recommended, shape (n_items,); None for all.

    These are the items of the options that meet their condition, but not those to `block`. `new`
    marks the items without ratings, if there are any; other items than `listed_items` are in no
    list.
    """
    items = options.items
    where = options.where
    if items is None and block is None and where is None:
        return listed_items
    mask = np.full(ratings.n_items, items is None)
    if items is not None:
        mask[ratings.items.index(listed(items))] = True
    if block is not None:
        mask[ratings.items.index(listed(block))] = False
    if where is not None:
        mask &= rows_where(where, ratings, new=new)
    if listed_items is not None:
        mask &= listed_items
    return mask


def blocked_pairs(
    block: BlockLike | None,
) -> tuple[IdsLike | None, pl.DataFrame | None]:
    """Return the items blocked for everyone, and a frame of pairs blocked for single users."""
    if isinstance(block, Mapping):
        users: list[Any] = []
        items: list[Any] = []
        for user, blocked in block.items():
            ids = [*listed(blocked)]
            users += [user] * len(ids)
            items += ids
        columns = query_series(users, "user"), query_series(items, "item")
        return None, pl.DataFrame(columns)
    if not hasattr(block, "columns"):
        return block, None  # type: ignore[return-value]
    pairs = of_roles(block, ("item",), ("user",))  # type: ignore[arg-type]
    return (None, pairs) if "user" in pairs.columns else (pairs["item"], None)


def seen_pairs(
    ratings: Ratings,
    users: Indices,
    options: ListOptions,
    new: Mask | None,
) -> CsrPairs:
    """Return the items of each of some users that lists leave out because they are seen.

    Raises
    ------
    DataError
        If the options contradict each other, or a kind of event does not exist.
    """
    if not options.exclude_seen:
        if options.seen is not None or options.repeat_where is not None:
            raise DataError(
                "Without exclude_seen (with --include-seen), all seen items are recommended "
                "again; leave out seen and repeat_where."
            )
        seen = CsrPairs(np.zeros_like(ratings.indptr), ratings.indices[:0])
        return with_disliked(seen, ratings)
    if options.seen is None and options.repeat_where is None:
        return left_out(ratings)
    known = np.unique(users[users < ratings.n_users])
    places, ends = row_places(ratings.indptr, known)
    rows = np.repeat(np.arange(len(known)), np.diff(ends))
    items = ratings.indices[places]
    is_seen = np.ones(len(items), np.bool_)
    # A visitor without events has seen nothing, and has no kinds.
    if options.seen is not None and len(items):
        pairs = rows * np.int64(ratings.n_items) + items
        is_seen = np.isin(pairs, _pairs_of_kinds(ratings, known, options.seen))
    if options.repeat_where is not None:
        condition = options.repeat_where
        is_repeated = rows_where(condition, ratings, new=new, label="repeat_where")
        is_seen &= ~is_repeated[items]
    counts = np.zeros(ratings.n_users, np.int64)
    counts[known] = np.bincount(rows[is_seen], minlength=len(known))
    seen = CsrPairs(np.append(0, np.cumsum(counts)), items[is_seen])
    return with_disliked(seen, ratings)


def left_out(ratings: Ratings) -> CsrPairs:
    """Return the pairs that lists leave out: those with a rating, and disliked ones."""
    return with_disliked(CsrPairs(ratings.indptr, ratings.indices), ratings)


def with_disliked(seen: CsrPairs, ratings: Ratings) -> CsrPairs:
    """Return pairs of users and items, and the disliked ones."""
    disliked = ratings.disliked
    if disliked is None or not len(disliked.indices):
        return seen
    return _united(seen, disliked.indptr, disliked.indices, ratings.n_items)


def _united(
    pairs: CsrPairs,
    indptr: Indices,
    indices: NDArray[np.int32],
    n_items: int,
) -> CsrPairs:
    """Return the pairs in any of two CSR matrices; the rows of the second are the first ones."""
    from scipy.sparse import csr_array

    shape = len(pairs.indptr) - 1, n_items
    ends = np.append(indptr, np.full(len(pairs.indptr) - len(indptr), indptr[-1]))
    parts = (pairs.indptr, pairs.indices), (ends, indices)
    first, second = (
        csr_array((np.ones(len(columns), np.int8), columns, starts), shape=shape)
        for starts, columns in parts
    )
    both = (first + second).tocsr()
    return CsrPairs(both.indptr.astype(np.int64), both.indices.astype(np.int32))


def _pairs_of_kinds(
    ratings: Ratings,
    users: Indices,
    seen: str | Sequence[str],
) -> NDArray[np.int64]:
    """Return pairs with events of some kinds: position in `users` * n_items + item.

    Raises
    ------
    DataError
        If there are no kinds, or not all of these.
    """
    events = ratings.events
    kinds = ratings.rule.kinds
    if events is None or events.kinds is None:
        raise DataError(
            "seen: these data have no kinds of events. A model keeps the kinds if their column is "
            "named (--event-col, event=), or has weights (--event-weight, event_weights=)."
        )
    names = [seen] if isinstance(seen, str) else [*seen]
    # A kind may have a comma in its name.
    if isinstance(seen, str) and seen not in kinds:
        names = [name.strip() for name in seen.split(",")]
    for name in names:
        if name not in kinds:
            hint = did_you_mean(close_matches(name, kinds, 1))
            raise DataError(
                f"seen: there is no kind of event {name!r}; the kinds are {', '.join(kinds)}.{hint}"
            )
    codes = [kinds.index(name) for name in names]
    places, ends = row_places(events.indptr, users)
    places_of_kinds = np.isin(events.kinds[places], codes)
    rows = np.repeat(np.arange(len(users)), np.diff(ends))[places_of_kinds]
    items = events.items[places[places_of_kinds]]
    return rows * np.int64(ratings.n_items) + items


def with_blocked(
    seen: CsrPairs,
    pairs: pl.DataFrame,
    ratings: Ratings,
    unknown: Ids,
) -> CsrPairs:
    """Return the pairs of `seen` and the blocked ones, ignoring unknown users and items.

    The rows are first the users of the ratings, then `unknown` ones.
    """
    from scipy.sparse import coo_array

    rows = ratings.users.find(pairs["user"])
    unknown_rows = unknown.find(pairs["user"])
    is_unknown = (rows < 0) & (unknown_rows >= 0)
    rows[is_unknown] = ratings.n_users + unknown_rows[is_unknown]
    columns = ratings.items.find(pairs["item"])
    has_both = (rows >= 0) & (columns >= 0)
    rows, columns = rows[has_both], columns[has_both]
    shape = len(seen.indptr) - 1, ratings.n_items
    blocked = coo_array((np.ones(len(rows), np.int8), (rows, columns)), shape=shape)
    added = blocked.tocsr()
    starts = added.indptr.astype(np.int64)
    return _united(seen, starts, added.indices, ratings.n_items)


def rows_where(
    condition: str | pl.Expr,
    ratings: Ratings,
    kind: str = "item",
    new: Mask | None = None,
    label: str = "where",
) -> Mask:
    """Return a mask of the items (or users) that meet a condition on the columns of their table.

    The mask is False if the condition is unknown because a value is missing.

    Parameters
    ----------
    condition : str or polars expression
        Boolean SQL over the columns of the table, as in `polars.sql_expr`, such as
        ``price < 30 AND genres LIKE '%Comedy%'``; or an expression such as
        ``pl.col("price") < 30``. In SQL, a list is an array or a text with ``|`` between the
        elements, and dates can be compared with texts such as ``'2024-01-31'``.
    ratings : Ratings
    kind : {"item", "user"}
    new : bool ndarray of shape (n_items,), optional
        Values of the column "new", unless the table has one; by default no item is new.
    label : str
        Name of the option in messages.

    Raises
    ------
    DataError
        If the condition cannot be evaluated to Booleans, contains a subquery, or has more than 400
        words and signs.

    Examples
    --------
    >>> films = pl.DataFrame({"item": [1, 2], "title": ["Up", "Heat"], "year": [2009, 1995]})
    >>> pairs = pl.DataFrame({"user": [7, 7], "item": [1, 2]})
    >>> rows_where("year < 2000", Ratings.from_frame(pairs, item_table=films))
    array([False,  True])
    """
    label = label if kind == "item" else "where_user"
    axis = ratings.axis(kind)
    features, ids = axis.table, axis.ids
    table = ids.values.to_frame() if features is None else features.aligned(ids)
    kinds = {} if features is None else features.kinds
    columns = ", ".join(f"{name} ({kinds.get(name, 'id')})" for name in table.columns)
    # A column may have no values today: nothing meets a condition on it.
    empty = () if features is None else features.empty
    for name in {*empty} - {*table.columns}:
        columns += f", {name} (without values)"
        table = table.with_columns(pl.lit(None).alias(name))
    if kind == "user":
        columns += " (a saved model has those of features and of --keep-col)"
    if kind == "item" and "new" not in table.columns:
        columns += ", new (boolean)" if new is not None else ""
        table = table.with_columns(new=pl.lit(False) if new is None else pl.Series(new))
    if isinstance(condition, str):
        if not condition.strip():
            raise DataError(
                f"{label}: the condition is empty; the columns are {columns}."
            )
        without_texts = _TEXT.sub(" ", condition)
        denied = ["\\"] if "\\" in condition else _DENIED.findall(without_texts)
        if denied:
            raise DataError(f"{label}: {denied[0]!r} is not allowed in {condition!r}.")
        if len(re.findall(r"[^\W\d]\w*|[^\w\s,]", without_texts)) > _MOST_WORDS:
            raise DataError(
                f"{label}: the condition has more than {_MOST_WORDS} words and signs."
            )
    elif not isinstance(condition, pl.Expr):
        raise DataError(
            f"{label}: the condition must be text or an expression; got {condition!r}."
        )
    try:
        if isinstance(condition, str):
            met = _evaluated(condition, table, features)
        else:
            met = table.select(condition.alias("met")).to_series()
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException) as error:
        expression = re.search(
            r"regex parse error:.*?^error: (.*?)$", str(error), re.S | re.M
        )
        reason = re.split(r"; valid columns|\n", str(error))[0].rstrip(".")
        reason = f"regular expression: {expression[1]}" if expression else reason
        hint = next((name for name in table.columns if not name.isidentifier()), "")
        hint = f', a name such as "{hint}" in double ones' if hint else hint
        raise DataError(
            f"{label}: {condition!r} cannot be used: {reason}; the columns are {columns}, and text "
            f"is in single quotes{hint}."
        ) from None
    if met.dtype == pl.Null:
        met = met.cast(pl.Boolean)
    if met.dtype != pl.Boolean:
        raise DataError(
            f"{label}: {condition!r} cannot be used: it is not a condition but gives {met.dtype} "
            f"values; the columns are {columns}."
        )
    if len(met) != len(table):
        met = met.new_from_index(0, len(table))
    return met.fill_null(False).to_numpy()


def check_modest(condition: str) -> None:
    """Check that an untrusted condition only calls cheap functions and does not join texts.

    Raises
    ------
    DataError
        If the condition calls a function that may be expensive, or joins texts.
    """
    without_texts = _TEXT.sub(
        " quoted ", condition
    )  # quotes may also enclose a function name
    called = [
        name for name in _CALL.findall(without_texts) if not _MODEST.fullmatch(name)
    ]
    if "||" in without_texts or called:
        denied = called[0] if called else "||"
        raise DataError(
            f"where: {denied} is not allowed in a condition; allowed are functions such as LOWER, "
            "LENGTH, COALESCE and ROUND."
        )


def _evaluated(
    condition: str,
    table: pl.DataFrame,
    features: Features | None,
) -> pl.Series:
    """Return the values of an SQL expression over a table.

    SQL cannot compare a list or a date with a text, so both are also tried as texts. Names are not
    case-sensitive, and `title` is the column of titles.
    """
    expression = pl.sql_expr(
        _USER.sub(lambda m: m[0] if m[0][0] in "'\"" else f'"{m[0]}"', condition)
    )
    names = {name.lower(): name for name in reversed(table.columns)}
    if features is not None and features.title is not None:
        names.setdefault("title", features.title)
    words = dict.fromkeys(re.findall(r"[^\W\d]\w*", condition))
    table = table.with_columns(
        pl.col(names[word.lower()]).alias(word)
        for word in words
        if word not in table.columns and word.lower() in names
    )
    _check_dates(expression, table.clear())
    joined = cs.list().list.join("|")
    written = cs.temporal().cast(pl.String)
    blank = cs.by_dtype(pl.Null).cast(pl.String)  # for functions of texts
    failures: list[Exception] = []
    for changes in ([joined], [joined, written], [], [written], [joined, blank]):
        try:
            return (
                table.with_columns(changes).select(expression.alias("met")).to_series()
            )
        except (pl.exceptions.PolarsError, pl.exceptions.PanicException) as error:
            failures.append(error)
    raise failures[0]


def _check_dates(expression: pl.Expr, table: pl.DataFrame) -> None:
    """Check that dates are compared with dates, or with texts of dates, in an empty table.

    For polars, a number is one of days or microseconds since 1970. Other texts would be compared
    with the texts of the dates, letter by letter.
    """
    nodes = [expression]
    while nodes:
        node = nodes.pop()
        inputs = node.meta.pop()
        nodes += inputs
        try:
            sides = [
                table.select(operand.alias("side")).to_series().explode()
                for operand in inputs
            ]
        except (pl.exceptions.PolarsError, pl.exceptions.PanicException):
            continue  # it stops the whole condition, unless it is of the texts of dates
        if len(sides) != 2 or not any(side.dtype.is_temporal() for side in sides):
            continue
        compares = re.match(r"\[\(|.*is_in\(", str(node)) is not None  # unlike LIKE
        for side in sides:
            not_dates = [f"{value!r}" for value in side if not _is_date(value)]
            if side.dtype.is_numeric() or (
                compares and side.dtype == pl.String and not_dates
            ):
                example = not_dates[0] if not_dates else "numbers"
                raise pl.exceptions.InvalidOperationError(
                    f"dates compare with texts such as '2023-01-31', not with {example}"
                )


def _is_date(value: object) -> bool:
    """Return whether a value is the text of a date, as dates are written for comparisons."""
    try:
        return _DATE.fullmatch(str(value)) is not None and bool(
            datetime.fromisoformat(str(value))
        )
    except ValueError:
        return False
