"""Columns of tables: their roles (users, items, ratings, times)."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from shlex import quote
from typing import Any

import polars as pl

from recsys.data.age import are_times
from recsys.data.frames import FrameLike, as_frame, column_names, to_polars
from recsys.data.ids import MISSING_IDS
from recsys.data.read_options import ROLES, declarations
from recsys.data.rows import RowRules, is_dislike, is_truth
from recsys.data.times import may_be_time, time_problem
from recsys.errors import DataError
from recsys.messages import enumerated, shortened

Roles = dict[str, int]
"""Positions of the columns by role; weights have the role "rating"."""

FRAME = "The frame"
"""Name of a frame in messages."""

SAMPLE = 100
"""Number of values of a column that are inspected."""

NUMBER = re.compile(r"[-+]?(\d+[.,]?\d*|\.\d+)([eE][-+]?\d+)?")
"""A number in a file, possibly with a decimal comma."""

_TYPED = re.compile(r"(\w+):((?:token|float)(?:_seq)?)")  # in atomic files of RecBole
BY_PLACE = ("user", "item", "rating", "timestamp")
"""Roles of the columns of a file without header."""

BY_NUMBER = "such as --user-col 1 --item-col 2"
"""Example of options that name the columns of a file without header."""

_ROLES = (*BY_PLACE, "event", "event_id")

# Columns of truths that tell whether a row is an interaction at all.
_OUTCOME = re.compile(
    "(is|has)?(click(ed)?|purchased?|bought|ordered|watched|viewed|played|booked|converted|"
    "upvoted|label|target)"
)
_TRUTHS = ("0", "1", "0.0", "1.0")
_WORDS = re.compile(r"[^\W\d_][^\d,;=]*")
_JOURNAL_WEIGHT = "value"  # in the events of `recsys serve`
_ID_WORD = re.compile("(uuid|guid|uid|key|code|sku|number|nr|no|num|idx|index|hash)$")
_LISTED = 20
_WIDE = 8  # number of columns from which a table may have one for each item
_UNIT = re.compile(r"\(.*\)|\[.*\]")  # as in "Rating (1-5)"
_DIGITS = re.compile(r"\s*\d{1,18}\s*")
_NAMED = 5  # maximum number of unused columns in a description

# Names in tiers: an earlier tier takes precedence, and two names of the same tier are ambiguous.
# Names are compared in lower case, reduced to letters and digits, and with "id" in place of other
# endings: visitor_uuid becomes visitorid, and product_sku productid.
_ALIASES: dict[str, tuple[str, ...]] = {
    "user": (
        "user userid uid useridx users",
        "reviewerid customerid customer memberid accountid visitorid buyerid shopperid "
        "subscriberid playerid personid readerid listenerid custid userpseudoid studentid",
        "reviewer member account visitor username client clientid student email",
        "sessionid session",
    ),
    "item": (
        "item itemid iid itemidx items",
        "movieid productid asin isbn bookid trackid artistid songid albumid gameid animeid "
        "businessid articleid filmid recipeid videoid postid courseid listingid offerid sku "
        "stockid appid",
        "parentasin",
        "movie product book track artist song album game film course",
        "venueid placeid poiid bookmarkid beerid jokeid hotelid restaurantid jobid newsid",
        "const tconst",  # of IMDb
    ),
    "rating": (
        "rating ratings score stars star overall bookrating movierating userrating starrating "
        "myscore myrating yourrating "
        "reviewscore",
        "value count plays playcount weight listens clicks grade",
        "liked isliked like favorite favourite recommended isrecommended vote thumb thumbs "
        "preference",
    ),
    "quantity": (
        "quantity quantities qty",
        "nclicks numclicks clickcount nplays numplays",
    ),
    "timestamp": (
        "timestamp ts unixreviewtime unixtime",
        "time datetime",
        "date createdat created createdutc eventtime eventtimestamp",
        "purchasedate orderdate invoicedate reviewdate tdat eventdate ratingdate orderedat "
        "purchasedat boughtat ratedat reviewedat playedat listenedat watchedat viewedat clickedat "
        "occurredat ordertime purchasetime reviewtime ordertimestamp",
        "utctimestamp transactiondate transactiontime transactiondt daterated dateadded",
    ),
    "event": (
        "event eventtype eventname interactiontype",
        "action actiontype behavior behaviour behaviortype interaction reaction",
        "type",
    ),
    "event_id": ("eventid eventuuid eventkey",),
    "title": (
        "title",
        "name movietitle booktitle itemname producttitle productname filmtitle displayname label",
    ),
}


@dataclass(frozen=True, slots=True)
class Request:
    """Options of a reading, passed whole, and the rules for rows that are made of them.

    If a column requested for one of the `optional` roles is missing, the usual names are tried.
    The data must have a column for each of the `required` roles.
    """

    options: Mapping[str, Any] = field(default_factory=dict)
    rules: RowRules = field(default_factory=RowRules)
    optional: frozenset[str] = frozenset()
    required: tuple[str, ...] = ("user", "item")

    @classmethod
    def from_options(
        cls,
        options: Mapping[str, Any],
        given: Collection[str] | None = None,
        earlier: Mapping[str, Any] | None = None,
    ) -> Request:
        """Return the request for options that are `given` or of an `earlier` reading.

        Columns that are not given may be missing.
        """
        options = dict(options)
        if earlier is not None and options.get("feedback") is None:
            # Grades or interactions, as before.
            options["feedback"] = "grades"
            options["implicit"] = options.get("implicit") or earlier.get("implicit")
        rules = RowRules.from_options(options, adds=earlier is not None)
        request = cls(options, rules)
        if given is not None:
            request = replace(request, optional=frozenset(request.columns) - set(given))
        return request

    def changed(self, **options: Any) -> Request:
        """Return the request with some options changed; None removes one."""
        return replace(self, options={**self.options, **options})

    @property
    def columns(self) -> dict[str, str]:
        """Requested columns by role."""
        columns = {role: self.options.get(role) for role in ROLES}
        return {role: str(name) for role, name in columns.items() if name is not None}

    @property
    def implicit(self) -> bool:
        """Return whether the rating column is ignored."""
        return bool(self.options.get("implicit"))

    @property
    def needed(self) -> dict[str, str]:
        """Requested columns that may not be missing, by role."""
        return {
            role: name
            for role, name in self.columns.items()
            if role not in self.optional
        }

    def check(self, where: str) -> None:
        """Check that each column that is requested by name is used.

        Raises
        ------
        DataError
            If another option leaves one unused. The message begins with `where`.
        """
        rating = self.needed.get("rating")
        if rating is None:
            return
        weight = self.needed.get("weight")
        other_options = {
            "weight": weight is not None,
            "implicit": self.implicit,
            "event_weights": self.rules.event_weights is not None,
            "half_life": self.rules.half_life is not None,
        }
        other = next(
            (name for name, is_given in other_options.items() if is_given), None
        )
        if other is not None:
            option = _option_for(other, where, weight if other == "weight" else None)
            raise DataError(
                f"{where}: {option} is for interactions, which have no ratings, but "
                f"{_option_for('rating', where, rating)} names ratings; leave out one of them. "
                f"Quantities are weights of interactions: {_option_for('weight', where, rating)}."
            )


def choose_columns(names: Sequence[str], request: Request, where: str) -> Roles:
    """Choose the column for each role, as requested or else by usual names.

    Raises
    ------
    DataError
        If a requested column is missing, two columns match a role equally well, two roles are given
        the same column, or no column matches a required role. The message begins with `where`,
        the name of the file.
    """
    request.check(where)
    chosen: dict[str, int] = {}

    def choose_usual(role: str, usual_role: str) -> None:
        position = usual_column(names, usual_role, where, chosen.values())
        if position is not None:
            chosen[role] = position

    for role in request.columns:
        position = _requested_column(names, role, request, where)
        if position is None:
            continue
        for other, taken in chosen.items():
            if taken == position:
                name = repr(names[position])
                raise DataError(
                    f"{where}: column {name} cannot be both {other} and {role}."
                )
        chosen[role] = position
    for role in BY_PLACE:
        if role not in chosen:
            choose_usual(role, role)
    missing = [role for role in request.required if role not in chosen]
    if missing:
        no_rating = "rating" not in chosen
        raise DataError(_missing_columns(missing, no_rating, names, where))
    weight = chosen.pop("weight", None)
    ignores_values = request.implicit or request.rules.event_weights is not None
    if weight is not None or ignores_values:
        chosen.pop("rating", None)
    if "rating" in chosen and "event" in request.needed:
        event = _option_for("event", where, request.columns["event"])
        raise DataError(
            f"{where}: kinds of events have no effect on ratings; leave out {event}, "
            f"or give the kinds weights with {_option_for('event_weights', where)}."
        )
    if "rating" not in chosen and "event" not in chosen:
        try:
            choose_usual("event", "event")
        except DataError:  # ambiguous names matter only if weights are given
            if request.rules.event_weights is not None:
                raise
    # Kinds of events would need weights, too.
    if not (ignores_values or "rating" in chosen or "event" in chosen):
        choose_usual("rating", "quantity")
    if "event_id" not in chosen:
        choose_usual("event_id", "event_id")
    if weight is not None:
        chosen["rating"] = weight
    return {role: chosen[role] for role in _ROLES if role in chosen}


def _requested_column(
    names: Sequence[str],
    role: str,
    request: Request,
    where: str,
) -> int | None:
    """Return the position of the column that is requested for a role.

    The result is None if there is none, and the role is optional.
    """
    requested = request.columns[role]
    is_optional = role in request.optional
    forms = [requested, *without_types([requested])[0]]
    if role == "weight" and is_optional:
        forms.append(_JOURNAL_WEIGHT)
    positions = [n for n, name in enumerate(names) if name == requested]
    positions = positions or _positions_of(names, forms)
    if len(positions) > 1:
        raise DataError(
            f"{where} has {len(positions)} columns named {requested!r}; rename one of "
            "them."
        )
    if positions:
        return positions[0]
    if is_optional:
        return None
    raise DataError(
        f"{where} has no column {requested!r}; its columns are {quoted(names)}."
    )


def _missing_columns(
    missing: list[str],
    no_rating: bool,
    names: Sequence[str],
    where: str,
) -> str:
    if not names:
        return f"{where} has no columns."
    options = [_option(role, where) for role in missing]
    if len(missing) > 1 and no_rating and len(names) > len(missing):
        options.append(_option("rating", where))  # the rating would be missing next
    listed = " and ".join(filter(None, (", ".join(options[:-1]), options[-1])))
    of_frame = " of Ratings.from_frame" if where == FRAME else ""
    sentence = (
        f"{where} has no {' and no '.join(missing)} column; its columns are {quoted(names)}. "
        f"Name {'it' if len(missing) == 1 else 'them'} with {listed}{of_frame}."
    )
    is_table = "item" not in missing and title_column(names) is not None
    table = " (It looks like a table of items, which --item-table reads next to the ratings.)"
    return sentence + table * is_table + wide_hint(len(names))


def _option(role: str, where: str) -> str:
    """Return the option (for a frame, the argument) for the column of a role."""
    if where == FRAME:
        return f"{role}="
    return declarations()[role].flag_of(role) if role in ROLES else ""


def _option_for(
    name: str,
    where: str,
    column: str | None = None,
) -> str:
    """Return an option (for a frame, an argument), perhaps with its column."""
    if where == FRAME:
        return name if column is None else f"{name}={column!r}"
    flag = declarations()[name].flag_of(name)
    return flag if column is None else f"{flag} {column}"


def wide_hint(width: int) -> str:
    """Return a hint that a table of many columns may be a matrix of users by items."""
    if width <= _WIDE:
        return ""
    return (
        " If it has one column per item, convert it first to one row per rating, with the columns "
        "user, item and rating (`melt` in pandas, `unpivot` in polars)."
    )


def is_known_name(name: str) -> bool:
    """Return whether a name is one of the usual column names."""
    return any(
        _is_one_of(name, tier.split()) for tiers in _ALIASES.values() for tier in tiers
    )


def title_column(names: Sequence[str]) -> str | None:
    """Return the name of the first column with a usual name for titles, or None."""
    positions = _positions_of(names, " ".join(_ALIASES["title"]).split())
    return names[positions[0]] if positions else None


def _positions_of(names: Sequence[str], forms: Iterable[str]) -> list[int]:
    """Return the positions of the columns with the first of some names that there is.

    Names are compared in their plain form.
    """
    plain_names = [plain_name(name) for name in names]
    for form in map(plain_name, forms):
        if form in plain_names:
            return [n for n, name in enumerate(plain_names) if name == form]
    return []


def of_roles(
    frame: FrameLike,
    required: Sequence[str],
    others: Sequence[str] = (),
) -> pl.DataFrame:
    """Select columns of a frame by their usual names, and rename them to roles."""
    frame = as_frame(frame)
    names = column_names(frame)
    chosen = {}
    for role in (*required, *others):
        name: str | None = role
        if role not in names:
            position = usual_column(names, role, FRAME)
            name = None if position is None else names[position]
        if name is not None or role in required:
            chosen[name or role] = role
    ids = [name for name, role in chosen.items() if role in ("user", "item")]
    return to_polars(frame, list(chosen), mixed=ids).rename(chosen)


def id_column(
    names: Sequence[str],
    kind: str,
    wanted: str | None,
    where: str,
) -> str | None:
    """Return the name of the column of ids in a table of items or users, or None.

    The `wanted` name is tried first, then the usual names, and finally "id".

    Raises
    ------
    DataError
        If two columns match equally well. The message begins with `where`, the name of the file.
    """
    if wanted in names:
        return wanted
    forms = [] if wanted is None else [wanted, *without_types([wanted])[0]]
    positions = _positions_of(names, forms)
    position = positions[0] if positions else usual_column(names, kind, where)
    if position is None:
        positions = _positions_of(names, ["id"])
        return names[positions[0]] if positions else None
    return names[position]


def usual_column(
    names: Sequence[str],
    role: str,
    where: str = "",
    taken: Collection[int] = (),
) -> int | None:
    """Return the position of the column whose name matches a role best, or None.

    Raises
    ------
    DataError
        If two columns match equally well.
    """
    for tier in _ALIASES[role]:
        usual_names = tier.split()
        positions = [
            p
            for p, name in enumerate(names)
            if p not in taken and _is_one_of(name, usual_names)
        ]
        if len(positions) == 1:
            return positions[0]
        if positions:
            either = " and ".join(repr(names[position]) for position in positions)
            advice = f"choose one with {_option(role, where)}"
            if len({names[position] for position in positions}) < len(positions):
                advice = "rename one of them"  # no option tells equal names apart
            raise DataError(
                f"{where} has several columns that may be the {role}: {either}; {advice}."
            )
    return None


def _is_one_of(name: str, known: Collection[str]) -> bool:
    simplified = plain_name(_UNIT.sub("", name))
    return simplified in known or _ID_WORD.sub("id", simplified) in known


def without_types(names: list[str]) -> tuple[list[str], tuple[str, ...]]:
    """Return names without types of RecBole, and the types if all names have one.

    Examples
    --------
    >>> without_types(["user_id:token", "rating:float"])
    (['user_id', 'rating'], ('token', 'float'))
    """
    typed = [match for name in names if (match := _TYPED.fullmatch(name))]
    if len(typed) < len(names):
        return names, ()
    return [match[1] for match in typed], tuple(match[2] for match in typed)


def plain_name(name: str) -> str:
    """Return a name in the form used for comparison: small letters and digits."""
    return re.sub(r"[\W_]+", "", name.casefold())


def quoted(names: Sequence[str]) -> str:
    """Return names in quotes; only the first ones of a long list."""
    return enumerated(names, _LISTED, lambda name: repr(shortened(name)))


def with_outcome(
    names: Sequence[str],
    roles: Roles,
    request: Request,
    sample: Callable[[int], Sequence[Any]],
) -> Roles:
    """Add a column such as "clicked", if it has truths and nothing else has values.

    Rows without the outcome are not interactions.
    """
    has_values = {"rating", "event"} & {*roles} or "weight" in request.columns
    if has_values or request.implicit or request.rules.event_weights is not None:
        return roles
    outcomes = [
        position
        for position, name in enumerate(names)
        if position not in roles.values() and _OUTCOME.fullmatch(plain_name(name))
    ]
    texts = {str(cell) for cell in sample(outcomes[0])} if outcomes else set()
    texts -= {*MISSING_IDS}
    if texts and all(text in _TRUTHS or is_truth(text) for text in texts):
        return {**roles, "rating": outcomes[0]}
    return roles


def assign_roles(
    names: Sequence[str],
    request: Request,
    where: str,
    sample: Callable[[int], Sequence[Any]],
) -> tuple[Roles, str]:
    """Choose and describe the columns.

    An unreadable column of timestamps is used only if it is requested. `sample` returns the first
    values of a column.

    Raises
    ------
    DataError
        As `choose_columns`, or if the column of ratings contains words.
    """
    roles = choose_columns(names, request, where)
    roles = with_outcome(names, roles, request, sample)
    if "rating" in roles and "weight" not in request.columns:
        rating = names[roles["rating"]]
        cells = [str(cell).strip() for cell in sample(roles["rating"])]
        kinds = sorted({*cells} - {""})
        are_words = all(_WORDS.fullmatch(kind) and not is_truth(kind) for kind in kinds)
        # Without a header, a few words may be titles in the place of ratings.
        is_rating = "rating" in request.columns or 2 * len(kinds) <= len(cells)
        if are_words and is_rating and 1 < len(kinds) <= _LISTED:
            weights = ",".join(
                f"{kind}=-1" if is_dislike(kind) else f"{kind}=1" for kind in kinds[:2]
            )
            raise DataError(
                f"{where}: column {rating!r} has words, not numbers: {quoted(kinds)}. To "
                f"use them as kinds of events, give weights: --event-col {rating} "
                f"--event-weight {quote(weights)} (event=, event_weights=); 0 leaves a kind out, "
                "and a negative weight is of a dislike."
            )
    parts = {role: f"{role} = {names[position]}" for role, position in roles.items()}
    weight = request.columns.get("weight")
    if weight is not None and "rating" in roles:
        name = names[roles["rating"]]
        if plain_name(name) in (plain_name(weight), _JOURNAL_WEIGHT):
            parts["rating"] = f"weight = {name}"
    elif weight is not None:
        parts["weight"] = f"no column {weight!r}, so each row has a weight of 1"
    if "rating" in roles and are_times(sample(roles["rating"])):
        name = names[roles["rating"]]
        if usual_column([name], "timestamp") is not None:
            raise DataError(
                f"{where}: column {name!r} has times, not {request.rules.noun}s; name it with "
                f"{_option('timestamp', where)}."
            )
        parts["rating"] += " (looks like times)"
    used, form = set(roles.values()), request.rules.time_format
    if "timestamp" in roles and "timestamp" not in request.columns:
        times = sample(roles["timestamp"])
        is_number = form is None and any(_DIGITS.fullmatch(str(cell)) for cell in times)
        if not is_number and not any(may_be_time(value, form) for value in times):
            value = next((value for value in times if value not in (None, "")), "")
            quoted_value = (
                repr(shortened(value)) if isinstance(value, str) else repr(value)
            )
            hint = time_problem(value, form).rstrip(".").partition("; ")[2]
            reason = f"{quoted_value} is not a time that can be read"
            if hint:
                reason += f"; {hint}"
            parts["timestamp"] = f"{names[roles.pop('timestamp')]} not used ({reason})"
    if "rating" not in roles:
        parts["item"] += ", no rating: implicit feedback"
    unused = [
        name for position, name in enumerate(names) if position not in used and name
    ]
    if unused and ("rating" not in roles or "timestamp" not in roles):
        parts["unused"] = f"not used: {enumerated(unused, _NAMED)}"
    return roles, ", ".join(parts.values())


def names_without_header(
    first: list[str],
    rows: list[list[str]],
    separator: str,
    where: str,
    request: Request,
) -> tuple[str, ...] | None:
    """Return roles or numbers as names of columns; None if there is a header.

    The first row is a header if one of its fields is a usual or requested name, or if no field is a
    number and no column is requested by number. A column gets its number as name if that number, or
    another column for its role, is requested. Empty columns that result from doubled or trailing
    tabs get no name.

    Raises
    ------
    DataError
        If there are more columns than roles by position, and none is requested.
    """
    requested = request.columns
    named = set(requested.values())
    filled = [field for field in first if field]
    words = [field for field in filled if not NUMBER.fullmatch(field)]
    is_numbered = named and all(name.isdecimal() for name in named)
    is_header = any(is_known_name(word) or word in named for word in words)
    if is_header or (not is_numbered and words == filled):
        return None
    positions = [
        position
        for position in range(len(first))
        if separator.strip()
        or any("".join(row[position : position + 1]).strip() for row in rows)
    ]
    called = dict.fromkeys(range(len(first)), "") | {
        position: str(position + 1) for position in positions
    }
    if len(positions) > len(BY_PLACE):
        if requested:
            return tuple(called.values())
        raise DataError(
            f"{where} has no header and {len(positions)} columns; name them by number, "
            f"{BY_NUMBER}.{wide_hint(len(positions))}"
        )
    roles: Sequence[str] = BY_PLACE
    if not requested and _has_times_as_ratings(rows, positions, where):
        roles = ("user", "item", "timestamp")
    for position, role in zip(positions, roles, strict=False):
        if role in named or (role not in requested and called[position] not in named):
            called[position] = role
    return tuple(called.values())


def _has_times_as_ratings(
    rows: Sequence[Sequence[str]],
    positions: Sequence[int],
    where: str,
) -> bool:
    """Return whether the last of three columns without header has times, not ratings.

    Raises
    ------
    DataError
        If times are in a column that has another role by its position.
    """
    columns = [[row[n] for row in rows if n < len(row)] for n in positions]
    timed = [n for n, column in enumerate(columns) if are_times(column)]
    # Numbers in the first two columns may be ids.
    sure = [n for n in timed if n > 1 or not columns[n][0].strip().isdecimal()]
    last = len(columns) - 1
    if sure == [2] and last == 2:
        return True
    if timed and last not in timed and (sure or last == BY_PLACE.index("timestamp")):
        number = (sure or timed)[0] + 1
        others = [str(n) for n in range(1, len(columns) + 1) if n != number]
        raise DataError(
            f"{where} has no header, and its column {number} has times "
            f"({columns[number - 1][0].strip()!r}); name the columns by number, such as "
            f"--user-col {others[0]} --item-col {others[1]} --timestamp-col {number}."
        )
    return False
