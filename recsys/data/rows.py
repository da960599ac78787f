"""Rows: their columns, rules for leaving rows out, and weights of events."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from shlex import quote
from typing import Any, Literal, Self, get_args

import numpy as np
import polars as pl

from lowrank.kernels import level_counts
from recsys.data.age import (
    FADED,
    are_recent,
    check_reach,
    dated,
    faded_remark,
    midnight_remark,
    present,
)
from recsys.data.arrays import Array, Floats, Longs
from recsys.data.feedback import (
    Feedback,
    Kind,
    check_spread,
    is_code,
    isolated_code,
    judge,
    missing_code,
    sampled_levels,
    usual_range,
)
from recsys.data.ids import (
    MISSING_IDS,
    Place,
    Spot,
    as_id_series,
    id_problem,
    integers_if_whole,
    is_bad_id,
    row_place,
)
from recsys.data.kinds import Policy
from recsys.data.numerals import in_other_unit, number_texts, plain_number
from recsys.data.read_options import EventWeights
from recsys.data.times import (
    check_time_format,
    duration,
    moment,
    order_problem,
    shown_time,
    time_problem,
    timed,
)
from recsys.errors import DataError, check_choice, is_number
from recsys.messages import counted, enumerated, shortened

SHOWN = 3
"""Maximum number of causes of bad rows to describe."""
_FEW_LEVELS = 4  # minimum number of levels that are more than yes, no and unknown

OPTIONAL_ROLES = ("event", "event_id")
"""Columns whose values may be missing."""

ANY_EVENT = "*"  # stands for all kinds of events that are not named
NO_EVENT = "(none)"  # stands for a missing kind
_HIGHEST_GRADE = 100  # of usual scales
_MOST_KINDS = 20  # a column with more different values is not of kinds of events
LARGE_SHARE = 0.1
"""Share of the data that one row, user or item rarely has."""
TIMES_MEAN = 5
"""Number of times the mean that a row, user or item with a large share has."""
SKIPPED = 0.01
"""Share of the rows that may be bad if bad rows are skipped."""
_LARGEST = float(np.finfo(np.float32).max)
_THOUSANDS = re.compile(r"-?\d{1,3}(,\d{3})+")
_DECIMAL_COMMA = re.compile(r"-?\d+,\d+")
_TRUE = (
    "true t yes y on ja j wahr oui vrai si s\u00ed verdadero vero sim verdadeiro tak prawda "
    "\u0434\u0430 \u306f\u3044 \u662f evet"
)
_FALSE = (
    "false f no n off nein falsch non faux falso n\u00e3o nao nee nej nie fa\u0142sz "
    "\u043d\u0435\u0442 \u3044\u3044\u3048 \u5426 hay\u0131r"
)
TRUTHS = dict.fromkeys(_TRUE.split(), True) | dict.fromkeys(_FALSE.split(), False)
"""Words for true and false, in the forms that files use."""
JUDGED = 100
"""Number of values of a column that tell words such as true from numbers."""
_MOST_CODES = 256
# At most seven digits, so that seconds are a quarter of an hour apart.
_ROUNDED_TIME = r"^\s*[0-9](?:\.[0-9]{1,6})?[eE]\+?[0-9]{1,2}\s*$"
_ID_SUFFIX = re.compile(r"(?i:[ _.-]ids?)$|(?<=[a-z])I[dD]$")  # of a name of a column
# What differs between bad rows of one cause.
_DISLIKE = re.compile(
    r"(?i)((thumbs?.)?down|downvote|dislike|unlike|unfollow|dismiss|hate|negative|bad|not|skip|hide"
    r"|refund|return|cancel|remove)(s|d|[lp]?ed)?(?![a-z])"
)
_PARTICULARS = re.compile(r"'[^']*'|\"[^\"]*\"|-?[\d.,:]+")


@dataclass(frozen=True, slots=True)
class RowRules:
    """Checked options for rows: times in seconds, the maximum share of bad rows or None.

    `keeps_kinds` tells that kinds of events are kept though they have no weights.
    `weights` tells that the column in the role of ratings has weights, and `feedback`
    what an earlier reading has decided on it. `now` is the present time, and
    `has_as_of` whether `as_of` has set it. `adds` is true for rows that are added to
    others, of which few may be in the range of times. `columns` are those of users and
    items, where an option has named them.
    """

    event_weights: EventWeights | None = None
    impressions: str | None = None
    keeps_kinds: bool = False
    half_life: float | None = None
    since: int | None = None
    until: int | None = None
    time_format: str | None = None
    missing: float | None = None
    bad_rows: float | None = None
    scale: tuple[float, float] | None = None
    weights: bool = False
    feedback: Kind | None = None
    now: int = field(default_factory=present, compare=False)
    has_as_of: bool = field(default=False, compare=False)
    adds: bool = field(default=False, compare=False)
    columns: Mapping[str, str] = field(default_factory=dict, compare=False)

    @property
    def noun(self) -> Literal["weight", "rating"]:
        """Word for the values in the role of ratings."""
        return "weight" if self.weights else "rating"

    @classmethod
    def from_options(cls, options: Mapping[str, Any], *, adds: bool = False) -> Self:
        """Check the options of a reading that apply to rows.

        Raises
        ------
        DataError
            If an option cannot be read or is out of range.
        """
        since = options.get("since")
        until = options.get("until")
        first = None if since is None else moment(since, "since")
        last = None if until is None else moment(until, "until")
        if first is not None and last is not None and first >= last:
            raise DataError(f"since must be before until; got {since} and {until}.")
        missing = options.get("missing")
        if missing is not None and not is_number(missing):
            raise DataError(f"missing must be a number; got {missing!r}.")
        half_life = options.get("half_life")
        time_format = options.get("time_format")
        scale = options.get("scale")
        as_of = options.get("as_of")
        columns = {role: options.get(role) for role in ("user", "item")}
        return cls(
            event_weights=_checked_weights(options.get("event_weights")),
            impressions=options.get("impressions"),
            keeps_kinds=options.get("event") is not None,
            half_life=None if half_life is None else duration(half_life, "half_life"),
            since=first,
            until=last,
            time_format=None if time_format is None else check_time_format(time_format),
            missing=None if missing is None else float(missing),
            bad_rows=_largest_share(options.get("bad_rows")),
            scale=None if scale is None else check_scale(scale),
            weights=options.get("weight") is not None,
            feedback=options.get("feedback"),
            now=present(as_of),
            has_as_of=as_of is not None,
            adds=adds,
            columns={role: name for role, name in columns.items() if name is not None},
        )


def _checked_weights(weights: EventWeights | None) -> EventWeights | None:
    """Return weights of events, all of which are finite."""
    for kind, weight in (weights or {}).items():
        if not (is_number(weight) and math.isfinite(weight)):
            raise DataError(
                f"The weight of the event {kind!r} must be a number; got {weight!r}."
            )
    return weights and {kind: float(weight) for kind, weight in weights.items()}


def _largest_share(bad_rows: Any) -> float | None:
    """Return the share of rows that may be bad; None to raise at the first one."""
    limit = {"None": None, "error": None, "skip": SKIPPED}.get(str(bad_rows), bad_rows)
    percent = re.fullmatch(r"(\d+\.?\d*)%", str(bad_rows))
    if percent is not None:
        limit = float(percent[1]) / 100
    if limit is not None and (isinstance(limit, str | bool) or not 0 <= limit < 1):
        raise DataError(
            "bad_rows must be error, skip, or a share below 1, such as 0.05 or 5%; "
            f"got {bad_rows!r}."
        )
    return limit


def check_scale(scale: Any) -> tuple[float, float]:
    """Return the lowest and the highest grade of a scale.

    Raises
    ------
    DataError
        If they are not two finite numbers in increasing order.
    """
    try:
        low, high = (
            (math.nan, math.nan) if isinstance(scale, str) else map(float, scale)
        )
    except (TypeError, ValueError):
        low, high = math.nan, math.nan
    if not -_LARGEST <= low < high <= _LARGEST:
        raise DataError(
            f"scale must be the lowest and the highest grade, such as (1, 5); got {scale!r}."
        )
    return low, high


class BadRowsError(DataError):
    """Error for `count` bad rows of `total`."""

    def __init__(
        self,
        message: str,
        count: int,
        total: int,
    ) -> None:
        super().__init__(message)
        self.count = count
        self.total = total


@dataclass(slots=True)
class Cause:
    """Problem of one or more bad rows, in the words for the first one."""

    spot: Spot
    problem: str
    count: int = 0

    def __str__(self) -> str:
        if self.count > 1:
            return f"{self.count:,} rows, the first {self.spot}: {self.problem}"
        return f"{self.spot}: {self.problem}"


@dataclass(slots=True)
class BadRows:
    """Record of unreadable rows, which raise an error or are counted and left out.

    `limit` is the maximum share of bad rows, or None to raise at the first one. A row
    may have several `causes`, by the form of their problems.
    """

    limit: float | None = None
    count: int = 0
    causes: dict[str, Cause] = field(default_factory=dict)

    def add(
        self,
        spot: Spot,
        problem: str,
        rows: int = 1,
    ) -> None:
        """Record a problem of `rows` rows that begin at a place, in any order.

        Raises
        ------
        DataError
            If `limit` is None.
        """
        if self.limit is None:
            raise DataError(f"{spot}: {problem}")
        self.count += rows
        self.add_cause(Cause(spot, problem, rows))

    def add_cause(self, cause: Cause) -> None:
        """Record a cause of bad rows that are counted elsewhere."""
        form = _PARTICULARS.sub("", cause.problem)
        stored = self.causes.setdefault(form, Cause(cause.spot, cause.problem))
        stored.count += cause.count
        if cause.spot < stored.spot:
            stored.spot = cause.spot
            stored.problem = cause.problem

    def described(self) -> tuple[str, ...]:
        """Return one sentence for each of the causes, the most frequent first."""
        causes = sorted(
            self.causes.values(), key=lambda cause: (-cause.count, cause.spot)
        )
        return tuple(map(str, causes[:SHOWN]))

    def listed(self) -> str:
        """Return the causes and counts, after a sentence on the number of rows."""
        if len(self.causes) == 1:
            cause = next(iter(self.causes.values()))
            return f"; the first: {cause.spot}: {cause.problem}"
        return f": {' '.join(self.described())}"

    def check(self, n_good: int) -> None:
        """Check the share of the bad rows.

        Raises
        ------
        DataError
            If the share exceeds the limit.
        """
        total = self.count + n_good
        share = self.count / max(1, total)
        if self.limit is None or share <= self.limit:
            return
        cure = ""
        percent = math.ceil(100 * share)
        if percent < 100 and "--time-format" not in self.described()[0]:
            cure = f" --bad-rows {percent}% skips them."
        percentage = f"{100 * share:.2g}%" if share < 0.1 else f"{100 * share:.0f}%"
        message = (
            f"{counted(self.count, 'row')} of {total:,} ({percentage}) cannot be read, more than "
            f"{100 * self.limit:g}%{self.listed()}{cure}"
        )
        raise BadRowsError(message, self.count, total)


STRICT = BadRows()
"""Raise at the first bad row."""


@dataclass(slots=True)
class Rows:
    """Columns user, item, rating, timestamp, event and event_id, as far as known.

    Before `prepared`, columns have the types of the source, or the compact types of
    `Batches`: categories for ids, codes of `levels` for ratings, seconds for dates
    (`in_seconds`). After `prepared`, columns are ids, ratings as Float32 or codes, and
    seconds. `layout` describes the format and the columns.
    `place` gives the place of a row (counted from 0), such as "ratings.csv, line 17".
    Idle users have no items. `bad` counts the rows that are left out. If `implicit` is
    true, ratings are weights. `remarks` describe changes to the rows. `name` is the
    name of the column of ratings in the header, and `feedback` the decision on it, next
    to the `scale` of grades if it was given. `kind_weights` has the weight of each kind
    of event, which was given if `weighs_kinds` and is 1 otherwise. `half_life` is the age
    in seconds at which a weight is halved. With `guessed_times`, nobody has named the
    column of times, and it need not be used.
    `untyped` ids are of a text file: integers if all are whole numbers. Columns may be
    views of arrays in `memory`, which is used again when the columns are encoded.
    """

    columns: dict[str, pl.Series]
    layout: str = ""
    place: Place = row_place
    idle_users: pl.Series | None = None
    bad: BadRows = field(default_factory=BadRows)
    implicit: bool = False
    remarks: list[str] = field(default_factory=list)
    levels: Floats | None = None
    in_seconds: bool = False
    name: str = ""
    feedback: Feedback | None = None
    scale: tuple[float, float] | None = None
    guessed_times: bool = False
    kind_weights: dict[str, float] = field(default_factory=dict)
    weighs_kinds: bool = False
    half_life: float | None = None
    untyped: frozenset[str] = frozenset()
    memory: dict[str, Array] = field(default_factory=dict)

    @property
    def lacks_values(self) -> bool:
        """Presence of missing values in a column that needs one in each row."""
        return any(
            column.null_count()
            for role, column in self.columns.items()
            if role not in OPTIONAL_ROLES
        )

    def decode(self) -> Self:
        """Convert codes of ratings to numbers, in place."""
        if self.levels is not None:
            codes = self.columns["rating"].to_numpy()
            self.columns["rating"] = pl.Series("rating", self.levels[codes])
            self.levels = None
        return self

    def plain(self) -> Self:
        """Convert ids to Int64 or String, and codes to numbers, in place."""
        self.decode()
        for role in ("user", "item"):
            if role not in self.columns:
                continue
            column = self.columns[role]
            ids = _readable_ids(column)
            if ids.null_count():
                row = ids.is_null().arg_max() or 0
                problem = id_problem(column[row], role, column.dtype)
                raise DataError(f"{self.place(row)}: {problem}")
            self.columns[role] = as_id_series(ids, role)
        return self

    def keep(self, mask: pl.Series) -> int:
        """Keep the rows selected by the mask, and return the number of removed rows."""
        if mask.all():
            return 0
        selected, place_before = mask.arg_true(), self.place
        for role in self.columns:
            self.columns[role] = self.columns[role].gather(selected)
        # Messages name the rows of the file, whatever was left out before.
        self.place = lambda row: place_before(selected[row])
        return len(mask) - len(selected)


@dataclass(frozen=True, slots=True)
class Source:
    """Source of ratings, and how it was read; `str()` gives one sentence.

    `layout` describes the format and columns, `rows` the selection and weights of rows,
    `tables` the tables of items and users (or why one is not used), and `duplicates`
    the treatment of repeated (user, item) pairs. `skipped` has the first bad rows that
    were left out. `options` are the reading options that a saved model keeps for its
    updates.

    Examples
    --------
    >>> print(Source("r.csv", "comma-separated, user = user, item = item"))
    r.csv: comma-separated, user = user, item = item; no duplicates
    """

    name: str
    layout: str
    tables: str = ""
    duplicates: str = "no duplicates"
    rows: str = ""
    skipped: tuple[str, ...] = ()
    options: Mapping[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        remarks = filter(None, (self.layout, self.rows, self.tables, self.duplicates))
        return f"{self.name}: {'; '.join(remarks)}"

    @classmethod
    def of(
        cls,
        name: str,
        rows: Rows,
        n_duplicates: int,
        policy: Policy,
    ) -> Self:
        """Describe rows of which `n_duplicates` repeated a pair."""
        words = {
            "last": "last kept",
            "first": "first kept",
            "mean": "averaged",
            "sum": "summed",
        }
        repeated = "no duplicates"
        if n_duplicates:
            repeated = f"{counted(n_duplicates, 'duplicate')} ({words[policy]})"
        remarks, skipped = "; ".join(rows.remarks), rows.bad.described()
        return cls(name, rows.layout, "", repeated, remarks, skipped)


def prepared(rows: Rows, rules: RowRules) -> Rows:
    """Select the rows to use, and convert ratings, weights and times to numbers.

    Bad rows raise or are left out first. The next steps are rows without a rating or
    like, the decision between grades and counts, the range of times, the weights of
    events, and the half-life.

    Raises
    ------
    DataError
        If a row is bad, too many rows are bad, no row is left, or a rule does not fit
        the columns.
    """
    columns = rows.columns
    if not len(columns["user"]):
        rows.bad.check(0)
        raise DataError("There are no ratings: the data have no rows.")
    for role in ("user", "item"):
        if columns[role].dtype.is_float():
            columns[role] = columns[role].fill_nan(None)
    rows.implicit = "rating" not in columns
    if rules.feedback in ("counts", "likes") and not rows.implicit:
        ratings = rows.decode().columns["rating"]
        # An interaction without a value counts once.
        ones: dict[Any, Any] = {pl.String: "1", pl.Boolean: True}
        columns["rating"] = ratings.fill_null(ones.get(ratings.dtype, 1))
    _convert(rows, rules)
    check_as_of(rules, columns)
    if rules.since is not None or rules.until is not None:
        _keep_range(rows, rules)
    if "event" in columns:
        _weigh_events(rows, rules)
    elif rules.event_weights is not None or rules.impressions is not None:
        raise DataError(
            "event_weights need a column of events; name it with --event-col (event=)."
        )
    if not len(columns["user"]):
        raise DataError(f"No rows are left: {'; '.join(rows.remarks)}.")
    if rules.half_life is not None:
        _check_half_life(rows, rules.half_life)
    return rows


def check_as_of(rules: RowRules, roles: Collection[str]) -> None:
    """Check that there is a column of times if the present time was given.

    Raises
    ------
    DataError
    """
    if rules.has_as_of and "timestamp" not in roles:
        raise DataError(
            "--as-of (as_of=) needs a column of times, which --timestamp-col (timestamp=) names; "
            "leave it out if there is none."
        )


def _convert(rows: Rows, rules: RowRules) -> None:
    """Convert ids, ratings and times; bad rows raise an error, or are left out."""
    columns = rows.columns
    if rules.missing is not None and rows.implicit:
        raise DataError("missing applies to ratings, and these data have no ratings.")
    # Of coded ratings, only the few levels are judged, not each row.
    if rows.levels is not None and not _are_good(rows.levels, rules):
        rows.decode()
    for role in {"rating", "timestamp"} & {*columns}:
        if isinstance(columns[role].dtype, pl.Categorical | pl.Enum):
            columns[role] = columns[role].cast(pl.String)
    remarks: list[str] = []
    if "rating" in columns and columns["rating"].dtype == pl.String:
        columns["rating"], remarks = number_texts(columns["rating"])
    # Ids, ratings and times that cannot be read become null, and their rows are bad.
    converted = {role: _readable_ids(columns[role]) for role in ("user", "item")}
    if "rating" in columns and rows.levels is None:
        converted["rating"] = _readable_ratings(columns["rating"], rules)
    if "timestamp" in columns:
        seconds = _readable_times(rows, rules, remarks)
        if seconds is None:
            del columns["timestamp"]
        else:
            converted["timestamp"] = seconds
    elif rules.time_format is not None:
        remarks.append("no column of times for time_format: --timestamp-col names one")
    bad = _bad_rows(rows, converted, rules)
    columns |= converted
    _leave_out_bad(rows, bad)
    for role in ("user", "item"):
        ids = columns[role]
        # Whether all are whole numbers is decided without the bad rows.
        if role in rows.untyped and ids.dtype == pl.String:
            ids = integers_if_whole(ids)
        # 32-bit numbers and categories are encoded as they are, in less memory.
        if not isinstance(ids.dtype, pl.Int32 | pl.Categorical):
            ids = as_id_series(ids, role)
        columns[role] = ids
    if rules.missing is not None:
        left_out = counted(rows.keep(columns["rating"] != rules.missing), "row")
        mark = f"{rules.noun} is {rules.missing:g} (missing)"
        rows.remarks.append(f"{left_out} left out whose {mark}")
    elif "rating" in columns and columns["rating"].dtype == pl.Boolean:
        liked = columns.pop("rating")
        rows.implicit = True
        rows.feedback = Feedback("likes", 0, 1)
        left_out = counted(rows.keep(liked), "row")
        rows.remarks.append(f"{left_out} left out whose rating is false")
    if rows.feedback is None:
        decide(rows, rules)
    if rows.implicit and "rating" in columns:
        _remark_on_weights(rows)
    if rules.scale is not None and rows.implicit:
        raise DataError("scale applies to ratings, and these data have no ratings.")
    rows.remarks += remarks
    if "timestamp" in columns:
        judged = dated(columns["timestamp"].to_numpy(), rules.now, rows.place)
        rows.remarks += judged.remarks
        if judged.kept is not None:
            rows.keep(pl.Series(judged.kept))
        if midnight := midnight_remark(columns["timestamp"].to_numpy()):
            rows.remarks.append(midnight)


def _are_good(levels: Floats, rules: RowRules) -> bool:
    """Return whether all levels of ratings can be used, so that no row is bad."""
    if rules.missing is not None:
        return False
    low, high = rules.scale or (-_LARGEST, _LARGEST)
    return bool(((levels >= low) & (levels <= high)).all())


def _readable_ids(column: pl.Series) -> pl.Series:
    """Return a column of ids, null where a value is not an id."""
    if isinstance(column.dtype, pl.Enum):
        column = column.cast(pl.String)
    if isinstance(column.dtype, pl.Categorical):
        dtype: Any = column.dtype
        # This judges each category, not each row.
        categories = is_bad_id(dtype.categories.to_series().cast(pl.String))
        if not categories.any():
            return column
        bad = categories.gather(column.to_physical())
    else:
        bad = is_bad_id(column)
    if not bad.any():
        return column
    return pl.select(pl.when(~bad).then(column)).to_series().alias(column.name)


def _readable_ratings(column: pl.Series, rules: RowRules) -> pl.Series:
    """Return ratings as numbers (likes as Booleans), null where they are bad."""
    if not rules.weights and rules.missing is None:
        liked = truths(column)
        if liked is not None:
            return liked
    numbers = _numbers(column)
    if rules.scale is None:
        return numbers
    low, high = rules.scale
    is_good = numbers.is_between(low, high)
    if rules.missing is not None:
        is_good |= numbers == rules.missing
    return pl.select(pl.when(is_good).then(numbers)).to_series().alias(column.name)


def _readable_times(
    rows: Rows,
    rules: RowRules,
    remarks: list[str],
) -> pl.Series | None:
    """Return times in seconds, null where they are bad; None if they are not used."""
    times = rows.columns["timestamp"]
    form = rules.time_format
    is_whole = form is None and times.dtype.is_integer()
    if is_whole and are_recent(times.drop_nulls().to_numpy(), rules.now):
        return times  # in seconds, and this needs no memory
    if rows.guessed_times and form is None:
        problem = order_problem(times)
        if problem is not None:
            remarks.append(f"times not used ({problem})")
            return None
    seconds = times
    if not rows.in_seconds:
        seconds, unit = timed(times, rows.place, form)
        if form is None and unit is not None and unit.name != "s":
            remarks.append(f"times in {unit.noun}")
    if times.dtype == pl.String:
        is_rounded = times.str.contains(_ROUNDED_TIME).fill_null(False)
        if is_rounded.any():
            example = times[is_rounded.arg_max() or 0]
            remarks.append(
                f"times such as {example} are rounded, as spreadsheets write long numbers"
            )
    if times.dtype == pl.Float32:  # two seconds of today are 128 apart
        remarks.append("times in single precision, which are rounded to minutes")
    return seconds


def decide(rows: Rows, rules: RowRules) -> None:
    """Decide whether values are grades, counts or weights; leave out any others."""
    if rows.implicit or not len(rows.columns["user"]):
        return
    if rules.weights:
        rows.implicit = True
        return
    feedback = _judged(rows, rules)
    rows.feedback, rows.scale = feedback, rules.scale
    if feedback.missing is not None:
        _leave_out_missing(rows, feedback.missing)
    if rules.scale is not None:
        low, high = rules.scale
        rows.remarks.append(f"grades from {low:g} to {high:g} (scale)")
    elif feedback.kind == "counts":
        rows.implicit = True
    elif feedback.kind == "likes":
        _take_likes(rows)
    elif rules.missing is None:
        _remark_on_zeros(rows)
    if rules.feedback is None and feedback.remark:
        rows.remarks.append(feedback.remark)
    may_be_grades = "grades" in (feedback.kind, feedback.by_name)
    if may_be_grades and rules.scale is None and "rating" in rows.columns:
        _remark_on_range(rows)


def _judged(rows: Rows, rules: RowRules) -> Feedback:
    """Return the decision on the values, unless it was made before or by an option."""
    kind = "grades" if rules.scale is not None else rules.feedback
    levels, counts = _levels(rows)
    if kind is None:
        feedback = judge(levels, counts, rows.name)
    else:
        code = missing_code(levels, counts) if kind == "grades" else None
        low = float(levels.min(initial=np.inf))
        high = float(levels.max(initial=-np.inf))
        feedback = Feedback(kind, low, high, missing=code)
    return feedback if rules.scale is None else replace(feedback, missing=None)


def _distribution(
    rows: Rows,
) -> tuple[Floats, Longs] | None:
    """Return the levels of coded ratings in order, and their numbers of rows."""
    if rows.levels is None:
        return None
    codes = rows.columns["rating"].to_numpy()
    counts = level_counts(codes)[: len(rows.levels)]
    order = np.argsort(rows.levels, kind="stable")
    order = order[counts[order] > 0]
    return rows.levels[order], counts[order]


def _take_likes(rows: Rows) -> None:
    """Take numbers above 0 as likes, and leave out the other rows."""
    liked = rows.decode().columns.pop("rating") > 0
    rows.implicit = True
    if n_left_out := rows.keep(liked):
        row = counted(n_left_out, "row")
        rows.remarks.append(f"{row} left out whose rating is 0 or less")


def _ends_a_scale(levels: Floats) -> bool:
    """Return whether whole grades end at 5 or 10, are 0 and 1, or all are the same."""
    if len(levels) == 1 or levels.tolist() == [0, 1]:
        return True
    return levels[-1] in (5, 10) and _are_whole(levels)


def _are_whole(levels: Floats) -> bool:
    return len(levels) >= _FEW_LEVELS and bool((levels == np.floor(levels)).all())


def _leave_out_missing(rows: Rows, code: float) -> None:
    """Leave out rows whose rating is a code for none."""
    levels, _ = _levels(rows)
    is_rated = rows.decode().columns["rating"] != code
    left_out = counted(rows.keep(is_rated), "row")
    rows.remarks.append(
        f"{left_out} left out whose rating is {code:.15g} (not rated), "
        f"--scale {levels[0]:.15g},{levels[-1]:.15g} (scale=) keeps them"
    )


def _remark_on_zeros(rows: Rows) -> None:
    """Remark on zeros among 1, 2, ..., or a code in all rows, which may mean none."""
    levels, _ = _levels(rows)
    mark = f"{levels[0]:.15g}"
    is_only_code = len(levels) == 1 and (mark == "-1" or is_code(levels[0]))
    if is_only_code or (levels[0] == 0 and _ends_a_scale(levels)):
        some = "all" if len(levels) == 1 else "some"
        rows.remarks.append(
            f"{some} ratings are {mark}; add --missing {mark} if a {mark} means no rating"
        )


def _levels(rows: Rows) -> tuple[Floats, Longs]:
    """Return the distinct ratings in order, and their numbers of rows."""
    distribution = _distribution(rows)
    if distribution is None:
        distribution = sampled_levels(rows.columns["rating"].to_numpy())
    return distribution


def _remark_on_range(rows: Rows) -> None:
    """Remark on a few ratings far from all others, such as 99 for none, or on an unusual range."""
    levels, counts = _levels(rows)
    usual = usual_range(levels, counts)
    if usual is None:
        lowest, highest = levels[[0, -1]]
        if rows.implicit:
            return
        check_spread(lowest, highest)
        if highest > _HIGHEST_GRADE:
            rows.remarks.append(
                f"ratings from {lowest:g} to {highest:g} are taken as grades; for amounts, name "
                "the column with --weight-col (weight=)"
            )
        return
    low, high = usual
    ratings = rows.decode().columns["rating"].to_numpy()
    far = np.flatnonzero((ratings < low) | (ratings > high))
    value = _exact(ratings[far[0]])
    cure = f"--missing {value} (missing=) leaves it out"
    if (ratings[far] != ratings[far[0]]).any():
        share = _percent(len(far) / len(ratings))
        cure = f"--scale {low:g},{high:g} --bad-rows {share} leaves them out"
    are = "is" if len(far) == 1 else "are"
    rows.remarks.append(
        f"{counted(len(far), 'rating')} {are} far from the usual {low:g} to {high:g}: "
        f"{value} ({rows.place(int(far[0]))}); {cure}"
    )


def _exact(number: np.float32) -> str:
    """Return the digits by which an option names a number."""
    if number.is_integer():
        return str(int(number))
    return np.format_float_positional(number, trim="-")


def _percent(share: float) -> str:
    """Return a share of rows, rounded up, as `bad_rows` takes it."""
    return f"{math.ceil(100 * share)}%"


def _remark_on_weights(rows: Rows) -> None:
    """Remark on weights that may stand for none, or a row with a large share of all weights."""
    levels, counts = _levels(rows)
    code = isolated_code(levels, counts)
    if code is not None:
        n = counted(int((rows.decode().columns["rating"] == code).sum()), "row")
        rows.remarks.append(
            f"{n} of weight {code:.15g}, far from all others; if it means none, --missing "
            f"{code:.15g} (missing=) leaves them out"
        )
    distribution = _distribution(rows)
    if distribution is None:
        weights = np.abs(rows.columns["rating"].to_numpy())
        largest = float(weights.max(initial=0))
        total = float(weights.sum(dtype=np.float64))
    else:
        levels, counts = distribution
        largest = float(np.abs(levels).max(initial=0))
        total = float(np.abs(levels) @ counts)
    share = large_share(largest, total, len(rows.columns["rating"]))
    if share:
        row = int(rows.decode().columns["rating"].abs().arg_max() or 0)
        rows.remarks.append(f"{rows.place(row)} has {share}")


def large_share(largest: float, total: float, n: int) -> str:
    """Describe the share of the largest of `n` weights; "" unless it is large."""
    if largest <= total * max(LARGE_SHARE, TIMES_MEAN / max(1, n)):
        return ""
    return f"{100 * largest / total:.3g}% of all weights ({largest:g})"


def _leave_out_bad(rows: Rows, bad: pl.Series) -> None:
    """Leave out bad rows, or raise an error if bad rows are errors or are too many."""
    record = rows.bad
    n_bad = int(bad.sum())
    # A single bad row needs no list of causes.
    if record.limit is None and n_bad == 1:
        cause = next(iter(record.causes.values()))
        raise BadRowsError(f"{cause.spot}: {cause.problem}", n_bad, len(bad))
    if record.limit is None and n_bad:
        number = f"{n_bad:,} of {counted(len(bad), 'row')}"
        message = f"{number} cannot be read{record.listed()}"
        raise BadRowsError(message, n_bad, len(bad))
    record.count += n_bad
    record.check(len(bad) - n_bad)
    if record.count:
        rows.keep(~bad)
        rows.remarks.append(f"{counted(record.count, 'bad row')} left out")


def _bad_rows(
    rows: Rows,
    converted: Mapping[str, pl.Series],
    rules: RowRules,
) -> pl.Series:
    """Return which rows have a value that was not converted, and record the causes."""
    bad = pl.Series([False]).new_from_index(0, len(converted["user"]))
    for role, numbers in converted.items():
        if not numbers.null_count():
            continue
        column = rows.columns[role]
        unread = numbers.is_null()
        missing = column.is_null()
        if column.dtype == pl.String:
            missing |= column.is_in(MISSING_IDS).fill_null(True)
        # A number that is null only after the conversion is outside of the scale.
        outside = unread.clear(len(unread)).fill_null(False)
        if role == "rating" and numbers.dtype != pl.Boolean:
            outside = unread & _numbers(column).is_not_null()
        for mask in (missing, unread & ~missing & ~outside, outside):
            if mask.any():
                row = mask.arg_max() or 0
                problem = _problem(role, column[row], rules, column)
                rows.bad.add_cause(Cause(rows.place(row), problem, int(mask.sum())))
        bad |= unread
    return bad


def _problem(
    role: str,
    value: Any,
    rules: RowRules,
    column: pl.Series,
) -> str:
    """Return a sentence on why a value of a column cannot be read."""
    if role == "timestamp":
        return time_problem(value, rules.time_format, column)
    if role == "rating":
        is_missing = value is None or value in MISSING_IDS
        if not is_missing and truths(column) is not None:
            return f"rating {value!r} is neither true nor false."
        problem = rating_problem(value, rules.noun)
        if not is_missing and column.dtype == pl.String:
            other = in_other_unit(value, column)
            if other is not None:
                return (
                    f"{rules.noun} {value!r} is in another unit than {other!r}; write all "
                    "in one."
                )
        if problem is None and rules.scale is not None:
            low, high = rules.scale
            scale = f"{low:g} to {high:g}"
            return f"rating {float(value):g} is outside of the scale, {scale}."
        return str(problem)
    name = rules.columns.get(role)
    if name is None:
        return str(id_problem(value, role, column.dtype))
    # Users may be orders, whose column is order_id.
    noun = _ID_SUFFIX.sub("", name) or role
    return f"in column {name!r}, {id_problem(value, noun, column.dtype)}"


def _keep_range(rows: Rows, rules: RowRules) -> None:
    """Keep the rows in the range of times."""
    if "timestamp" not in rows.columns:
        raise DataError(
            "since and until need a column of times: --timestamp-col (timestamp=)."
        )
    times, limits = rows.columns["timestamp"].cast(pl.Float64), []
    mask = pl.Series([True]).new_from_index(0, len(times))
    for name, at in (("since", rules.since), ("until", rules.until)):
        if at is not None:
            mask &= times >= at if name == "since" else times < at
            text = shown_time(at).removesuffix(" UTC").removesuffix(" 00:00:00")
            limits.append(f"{name} {text}")
    if rules.since is not None and not rules.adds:
        last = math.inf if rules.until is None else rules.until
        old_rows = (times < last).arg_true().to_numpy()
        until = times.to_numpy()[old_rows]
        check_reach(
            until,
            rules.since,
            f"--{limits[0]}",
            lambda row: rows.place(int(old_rows[row])),
            is_fixed=True,
        )
    rows.keep(mask)
    described = f"{int(mask.sum()):,} of {counted(len(times), 'row')}"
    rows.remarks.append(f"{described} {' '.join(limits)}")


def _weigh_events(rows: Rows, rules: RowRules) -> None:
    """Weigh rows by the kinds of their events, or tell that they count the same."""
    kinds = rows.columns.pop("event").cast(pl.String).fill_null(NO_EVENT).alias("kind")
    table = kinds.value_counts(sort=True, name="n")
    weights = rules.event_weights
    shown = rules.impressions
    if shown is not None:
        if shown not in table["kind"]:
            listed = enumerated(table["kind"].to_list(), 5)
            rows.remarks.append(f"no impressions: there is no {shown}, but {listed}")
        weights = {**(weights or {ANY_EVENT: 1.0}), shown: 0.0}
    if weights is None:
        if 1 < len(table) <= _MOST_KINDS and rows.implicit:
            listed = ", ".join(f"{kind} {n:,}" for kind, n in table.rows())
            remark = f"events without weights, which all count equally: {listed}"
            dislikes = sorted(filter(is_dislike, table["kind"]))
            if dislikes:
                weights_of_kinds = [f"{kind}=-1" for kind in dislikes]
                option = quote(",".join([*weights_of_kinds, f"{ANY_EVENT}=1"]))
                remark += f" (--event-weight {option} (event_weights=) has dislikes)"
            rows.remarks.append(remark)
        if rows.implicit and rules.keeps_kinds:
            _set_kinds(rows, kinds, dict.fromkeys(table["kind"], 1.0))
        return
    unnamed = table.filter(~pl.col("kind").is_in(list(weights)))
    if len(unnamed) and ANY_EVENT not in weights:
        listed = enumerated(
            unnamed.rows(), 5, lambda row: f"{shortened(row[0])} ({row[1]:,})"
        )
        raise DataError(
            f"There are events without a weight: {listed}; give each a weight (0 leaves "
            f"it out), or one weight to all others, such as {ANY_EVENT}=0."
        )
    other_weight = weights.get(ANY_EVENT, 0.0)
    weight_of = {kind: float(weights.get(kind, other_weight)) for kind in table["kind"]}
    codes = _set_kinds(rows, kinds, weight_of)
    rows.weighs_kinds = True
    parts = [
        f"{kind} {n:,} x {weight_of[kind]:g}"
        for kind, n in table.head(_MOST_KINDS).rows()
    ]
    absent = [kind for kind in weights if kind not in weight_of and kind != ANY_EVENT]
    parts += [f"no {kind}" for kind in absent]
    rows.remarks.append(f"events: {', '.join(parts)}")
    rows.implicit = True
    counted_kinds = [
        codes[kind] for kind, weight in weight_of.items() if weight or kind == shown
    ]
    rows.keep(rows.columns["event"].is_in(counted_kinds))


def _set_kinds(
    rows: Rows,
    kinds: pl.Series,
    weights: Mapping[str, float],
) -> dict[str, int]:
    """Set the codes of the kinds of rows and the weight of each, and return all codes."""
    # Kinds are stored as bytes.
    coded = with_few_kinds(weights)
    rows.kind_weights = dict(sorted(coded.items()))
    positions = {kind: code for code, kind in enumerate(rows.kind_weights)}
    codes = {kind: positions[kind if kind in coded else ANY_EVENT] for kind in weights}
    rows.columns["event"] = kinds.replace_strict(codes, return_dtype=pl.UInt8)
    return codes


def with_few_kinds(weights: Mapping[str, float]) -> dict[str, float]:
    """Let "*" stand for kinds of the most common weight if kinds exceed the codes.

    Raises
    ------
    DataError
        If there are still too many.
    """
    if len(weights) <= _MOST_CODES:
        return dict(weights)
    usual, _ = Counter(weights.values()).most_common(1)[0]
    special = {kind: weight for kind, weight in weights.items() if weight != usual}
    check_kinds(len(special) + 1)
    return {**special, ANY_EVENT: usual}


def check_kinds(n_kinds: int) -> None:
    """Check the number of kinds of events, whose codes are bytes.

    Raises
    ------
    DataError
    """
    if n_kinds > _MOST_CODES:
        raise DataError(
            f"There may be at most {_MOST_CODES} kinds of events; got {n_kinds:,}. Name the column "
            "of kinds, such as view and purchase, with --event-col (event=)."
        )


def _check_half_life(rows: Rows, half_life: float) -> None:
    """Check that the weights of the rows can depend on their age.

    Raises
    ------
    DataError
        If the data are not of interactions with times, or a few events far from the
        others decide that the others hardly count.
    """
    if not rows.implicit:
        raise DataError(
            "half_life applies to implicit feedback, and these data have ratings; --implicit "
            "(implicit=True) ignores them."
        )
    if "timestamp" not in rows.columns:
        raise DataError(
            "half_life needs timestamps; name their column with --timestamp-col (timestamp=)."
        )
    if rows.feedback is not None and rows.feedback.kind == "counts":
        _take_likes(rows)
        rows.feedback = (
            None  # the weights are those of the age, as models fit counts as ones
        )
    seconds = rows.columns["timestamp"].to_numpy()
    days = half_life / 86400
    fading = float(seconds.max()) - FADED * half_life
    check_reach(seconds, fading, f"--half-life {days:g}d", rows.place)
    rows.half_life = half_life
    unit = "day" if days == 1 else "days"
    rows.remarks.append(f"weights halve every {days:g} {unit}")
    newest = pl.DataFrame(
        [rows.columns[role].alias(role) for role in ("user", "timestamp")]
    )
    faded = newest.group_by("user").agg(pl.col("timestamp").max() < fading)["timestamp"]
    if faded.any():
        rows.remarks.append(faded_remark(int(faded.sum()), half_life))


def rating_values(series: pl.Series) -> pl.Series:
    """Convert ratings to a column of Float32.

    Raises
    ------
    DataError
        If a rating is not a finite number.
    """
    texts = series
    if series.dtype == pl.String:
        texts, _ = number_texts(series)
    numbers = _numbers(texts)
    if numbers.null_count():
        row = numbers.is_null().arg_max() or 0
        raise DataError(f"{row_place(row)}: {rating_problem(series[row])}")
    return numbers


def rating_problem(value: object, noun: str = "rating") -> str | None:
    """Return why a value cannot be a rating (or weight), or None if it can."""
    if value is None or value in MISSING_IDS:
        return (
            f"the {noun} is missing ({value!r})."
            if value
            else f"the {noun} is missing."
        )
    text = str(value)
    if _THOUSANDS.fullmatch(text):
        return (
            f"{noun} {text!r} is not a number; write it without commas, or decimals with "
            "a point."
        )
    number = pl.Series([text]).cast(pl.Float64, strict=False).item()  # as for columns
    if number is None:
        plain = plain_number(text)
        cure = "" if plain is None else f"; write {plain}"
        if _DECIMAL_COMMA.fullmatch(text):
            cure = "; decimals need a point"
        return f"{noun} {shortened(text)!r} is not a number{cure}."
    if not math.isfinite(number):
        return f"{noun} {text} is not a finite number."
    return f"{noun} {text} does not fit in float32." if abs(number) > _LARGEST else None


def _numbers(series: pl.Series) -> pl.Series:
    """Convert ratings to Float32, with null for values that are not finite."""
    if series.dtype == pl.Time:  # a duration in a spreadsheet
        series = series.cast(pl.Duration)
    if series.dtype == pl.Duration:
        series = series.dt.total_microseconds() / 1e6
    dtype = series.dtype
    if not (dtype.is_numeric() or dtype in (pl.Boolean, pl.String, pl.Null)):
        hint = ""
        if dtype == pl.Binary:
            hint = " (bytes, at least one of them; CAST the column in a --query)"
        raise DataError(
            f"Ratings must be numbers; got a column of {dtype} values{hint}."
        )
    numbers = series.cast(pl.Float32, strict=False)
    not_finite = ~numbers.is_finite()
    return numbers.set(not_finite, None) if not_finite.any() else numbers


def is_dislike(kind: str) -> bool:
    """Return whether the name of a kind of events is usual for one against an item."""
    return _DISLIKE.match(kind) is not None


def is_truth(text: str) -> bool:
    """Return whether a text is a Boolean in one of the forms that files use."""
    return text.strip().lower() in TRUTHS


def are_truths(texts: Sequence[str]) -> bool:
    """Return whether most of the first values of a column are Booleans."""
    # One word among numbers, or one number among words, is the bad row.
    return 2 * sum(map(is_truth, texts)) > len(texts)


def truths(series: pl.Series) -> pl.Series | None:
    """Convert likes to Booleans, null for other words; None for numbers."""
    if series.dtype == pl.Boolean:
        return series
    if series.dtype != pl.String:
        return None
    words = series.drop_nulls()
    words = words.filter(~words.is_in(MISSING_IDS)).head(JUDGED)
    if not are_truths(words.to_list()):
        return None
    words = series.str.strip_chars().str.to_lowercase()
    return words.replace_strict(TRUTHS, default=None, return_dtype=pl.Boolean)


def check_policy(duplicates: str | None) -> Policy | None:
    """Check the policy for repeated pairs, which may be None."""
    if duplicates is not None:
        check_choice("duplicates", duplicates, get_args(Policy))
    return duplicates  # type: ignore[return-value]
