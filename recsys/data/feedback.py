"""Feedback: whether the values of a column are grades, or counts of interactions.

One function, `judge`, decides it for all readers, verbs and models. It looks at the bulk of the
values and at the name of the column, so that a few odd rows never change the decision.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from recsys.data.arrays import AnyFloats, Longs
from recsys.errors import DataError

Kind = Literal["grades", "counts", "equal", "likes"]
"""Grades, counts (or amounts) of interactions, values that are all the same, true and false."""

_FEW = 3  # rows that may be odd without an effect
_ROWS_PER_ODD = 10  # minimum number of rows for each odd row
_PERCENT = 100
_ODD_SHARE = 1_000  # of so many rows, one may differ from all others
_HIGHEST_GRADE = 10
_TAIL = 5  # half of the counts are at most this share of the largest
_SPREAD = 2.5  # minimum ratio of the 99th percentile to the median of counts,
_GAP = 5  # or maximum ratio of the largest count to that percentile
_MOST_NEGATIVE = 0.1  # maximum share of counts that are 0 or less, such as returns
_FEWEST = 30  # minimum number of values whose shape tells small counts from grades
_FEWEST_LEVELS = 3
_ONES = 0.5  # minimum share of ones among small counts
_MOST_FAR = 0.2  # maximum share of grades that are far from all others
_FAR = 2  # ranges of the others by which they are far
_NINES = re.compile(r"9{2,}")  # how a number for a missing value is written
_CODE = re.compile(r"-9|-?9{2,}|-32768|32767|-2147483648|2147483648")
_NOISE = 3.0  # standard deviations by which a frequency may exceed the one before
_MOST_SAMPLED = 1 << 20
# Minimum spread of grades next to the largest one. Dates such as 20241231 have less, and
# float32 leaves few digits of the differences.
_LEAST_SPREAD = 2.0**-12

_COUNTS = (
    "count counts cnt n num number times freq frequency plays play playcount playcounts listens "
    "listencount streams clicks click views viewcount visits purchases purchase orders bought sold "
    "sales downloads impressions occurrences interactions quantity quantities qty units amount "
    "amounts total sum weight weights confidence hours minutes playtime watchtime anzahl menge "
    "quantite cantidad price prices cost costs revenue turnover spend spent paid preis umsatz "
    "betrag prix precio"
)
_LIKES = (
    "liked like likes favorite favourite recommended clicked purchased ordered watched viewed "
    "played booked converted upvoted label target"
)
_GRADES = "rating ratings rate stars star score scores grade grades review"
_RANKS = (
    "rank ranking position place rang platz note schulnote"  # of which 1 is the best
)
_WORD = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])")


@dataclass(frozen=True, slots=True)
class Feedback:
    """Decision on the values of a column, with the range of the values.

    `by_name` and `by_values` tell what the name of the column and the values suggest, None for
    nothing. They agree, or one of them is silent, if the decision is sure. `common` is the value
    that all rows have, if they have the same.
    """

    kind: Kind
    low: float
    high: float
    name: str = ""
    by_name: Kind | None = None
    by_values: Kind | None = None
    common: float | None = None
    missing: float | None = None

    @property
    def options(self) -> dict[str, Any]:
        """Reading options that a saved model keeps, so that later data are read alike."""
        options = {
            "feedback": None if self.kind == "grades" else self.kind,
            "common": self.common,
            "missing": self.missing,
        }
        return {name: value for name, value in options.items() if value is not None}

    @property
    def is_sure(self) -> bool:
        """Return whether neither the name nor the values suggest something else."""
        return {self.by_name, self.by_values} <= {self.kind, None}

    @property
    def reason(self) -> str:
        """Reason for a model of interactions, or of ratings, in words."""
        if self.kind == "grades":
            return f"the ratings are between {self.low:g} and {self.high:g}"
        if self.kind == "counts":
            ends = f"from {self.low:g} to {self.high:g}"
            return f"the ratings look like counts or amounts, {ends}: implicit feedback"
        if self.low < self.high:
            return "nearly all ratings are the same, which makes them implicit feedback"
        return f"all ratings are {self.low:g}, which makes them implicit feedback"

    @property
    def remark(self) -> str:
        """Remark on the decision and on the options that decide otherwise; "" for plain grades."""
        weights = f"--weight-col {self.name or 'COLUMN'} (weight=) reads weights"
        if self.kind == "counts":
            return f"{self.reason} ({self._certainty}; {weights}, --scale LOW,HIGH (scale=) grades)"
        if self.kind == "likes" and self.by_name is not None:
            like = "1" if self.low == 0 and self.high == 1 else "above 0"
            return (
                f"{self.name} is {like} for a like (--scale 0,1 (scale=) reads grades)"
            )
        if {word.lower() for word in _WORD.findall(self.name)} & {*_RANKS.split()}:
            best = "; if 1 is the best, subtract all from the largest one"
            return f"a higher {self.name} counts as better{best}"
        if self.kind == "grades" and self.by_name == "likes":
            return (
                f"{self.name} has other values than 0 and 1, which are taken as grades"
            )
        if self.kind == "grades" and not self.is_sure:
            doubt = "grades, although the values look like counts"
            return f"{doubt} (unsure; {weights}, --implicit (implicit=True) reads none)"
        return ""

    @property
    def _certainty(self) -> str:
        if self.by_name == self.by_values:
            return "sure, by name and values"
        if self.by_name is None:
            return "likely, by the values"
        if self.by_values is None:
            return "likely, by the name"
        if self.by_name == self.kind:
            return "unsure, the values could be grades"
        return "unsure, the name is one of grades"


def judge(
    levels: AnyFloats,
    counts: Longs,
    name: str = "",
) -> Feedback:
    """Decide whether values are grades, counts, or all the same.

    Parameters
    ----------
    levels : float ndarray of shape (n_levels,)
        Distinct values in increasing order.
    counts : int64 ndarray of shape (n_levels,)
        Number of rows with each value.
    name : str
        Name of the column, "" if it has none.

    Notes
    -----
    Values are counts by their shape if they are positive, apart from a tenth, and have a long tail:
    the largest is above 10 and half are at most a fifth of it; or if they are 1, 2, 3, ... with
    falling frequencies, and half of them are 1. The largest three values (at most a tenth of them)
    do not count, nor do others that are separate from 99% of the values.

    Names that end in a word such as plays, count, quantity or weight mean counts, and names such
    as stars or score mean grades. A long tail decides against any name, and a name of counts
    against any positive values. Zeros and ones under a name such as liked are likes.

    A `missing_code` among others than counts does not count, either.

    Examples
    --------
    >>> judge(np.array([1, 2, 3, 4, 5]), np.array([5, 10, 30, 60, 50])).kind
    'grades'
    >>> judge(np.array([1, 2, 3]), np.array([400, 60, 10]), "count(*)").kind
    'counts'
    """
    code = missing_code(levels, counts)
    if code is not None:
        is_rated = levels != code
        feedback = judge(levels[is_rated], counts[is_rated], name)
        if feedback.kind != "counts":
            return replace(feedback, missing=code)
    n = int(counts.sum())
    if not n:
        return Feedback("grades", np.inf, -np.inf, name)
    low, high = float(levels[0]), float(levels[-1])
    is_truth = np.isin(levels, (0, 1))
    n_odd = int(counts[~is_truth].sum())
    if is_truth.sum() == 2 and n_odd <= _most_odd(n) and named_kind(name) == "likes":
        return Feedback("likes", low, high, name, "likes")
    if n > 1 and n - int(counts.max()) <= _most_odd(n):
        common = float(levels[counts.argmax()])
        return Feedback("equal", low, high, name, common=common)
    by_name = named_kind(name)
    # A tenth may be returns and other amounts that are not positive.
    positive = levels > 0
    amounts = levels[positive]
    n_rows = counts[positive]
    n_positive = int(n_rows.sum())
    are_amounts = n_positive > 0 and n - n_positive <= _MOST_NEGATIVE * n
    is_long = are_amounts and _has_long_tail(amounts, n_rows)
    if by_name == "grades":
        usual = usual_range(levels, counts)
        # A number such as 99 may stand for no grade.
        is_long = is_long and (usual is None or usual[1] > _HIGHEST_GRADE)
    are_small = are_amounts and _are_small_counts(amounts, n_rows)
    by_values: Kind = "counts" if is_long or are_small else "grades"
    kind = by_values
    if by_name == "grades" and not is_long:
        kind = "grades"
    elif by_name == "counts" and counts[levels < 0].sum() <= n * _ONES:
        kind = "counts"
    is_told = by_values == "counts" or n >= _FEWEST
    return Feedback(kind, low, high, name, by_name, by_values if is_told else None)


def judge_values(values: AnyFloats, name: str = "") -> Feedback:
    """Decide as `judge` on an array of values; of a long one, a regular sample is judged."""
    return judge(*sampled_levels(values), name)


def check_spread(lowest: float, highest: float) -> None:
    """Check that grades differ enough, next to their size.

    Raises
    ------
    DataError
        If they are nearly the same, such as dates.
    """
    spread = highest - lowest
    if 0 < spread < _LEAST_SPREAD * max(abs(lowest), abs(highest)):
        raise DataError(
            f"The ratings are from {lowest:.9g} to {highest:.9g}, too close to one another for "
            "grades of this size. --rating-col (rating=) names another column; "
            "--implicit (implicit=True) leaves them out."
        )


def sampled_levels(values: AnyFloats) -> tuple[AnyFloats, Longs]:
    """Return the distinct values of an array, and their counts.

    Of a long one, a regular sample and the two extremes are counted.
    """
    step = max(1, len(values) // _MOST_SAMPLED)
    sample = values[::step]
    if step > 1:
        sample = np.append(sample, [values.min(), values.max()])
    return np.unique(sample, return_counts=True)


def usual_range(levels: AnyFloats, counts: Longs) -> tuple[float, float] | None:
    """Return the range of the usual grades if others are far from it, else None.

    They are a few, or the value of `isolated_end`, if it is written in nines.

    Examples
    --------
    >>> usual_range(np.array([1, 2, 3, 4, 5, 99]), np.array([5, 10, 30, 60, 50, 9]))
    (1.0, 5.0)
    """
    if len(levels) <= _FEWEST_LEVELS:
        return None
    gaps = np.diff(levels)
    end = int(gaps.argmax()) + 1
    n = int(counts.sum())
    n_below = int(counts[:end].sum())
    usual = levels[:end] if 2 * n_below > n else levels[end:]
    low, high = float(usual[0]), float(usual[-1])
    n_far = min(n_below, n - n_below)
    are_far = gaps[end - 1] > _FAR * (high - low) and n_far <= _MOST_FAR * n
    are_negative = levels[0] < 0 <= low and n_far <= _most_odd(n)
    if len(usual) >= _FEWEST_LEVELS and (are_far or are_negative):
        return low, high
    mark = isolated_end(levels, counts)
    # Of counts, too, the largest may be far from the others.
    if mark is None or not _NINES.fullmatch(f"{abs(levels[mark]):g}"):
        return None
    others = np.delete(levels, mark)
    return float(others[0]), float(others[-1])


def missing_code(levels: AnyFloats, counts: Longs) -> float | None:
    """Return the value that stands for a missing grade, or None.

    It is -1 below grades from 0, or the value of `isolated_code`.

    Examples
    --------
    >>> missing_code(np.array([-999, 1, 2, 3, 4, 5]), np.array([9, 5, 10, 30, 60, 50]))
    -999.0
    >>> missing_code(np.array([1, 2, 3, 4, 5, 50]), np.array([5, 10, 30, 60, 50, 9]))
    """
    return -1.0 if marks_unrated(levels) else isolated_code(levels, counts)


def isolated_code(levels: AnyFloats, counts: Longs) -> float | None:
    """Return the value of `isolated_end` in nines, or at the end of a type of integers, or None."""
    end = isolated_end(levels, counts)
    if end is None or not is_code(levels[end]):
        return None
    return float(levels[end])


def is_code(value: float) -> bool:
    """Return whether a number is one by which programs write a missing value."""
    return _CODE.fullmatch(f"{value:.15g}") is not None


def marks_unrated(levels: AnyFloats) -> bool:
    """Return whether a value of -1 stands for none, since no other is negative."""
    is_lowest = len(levels) > _FEWEST_LEVELS and levels[0] == -1
    return bool(is_lowest and levels[1] >= 0 and levels[-1] > 1)


def isolated_end(levels: AnyFloats, counts: Longs) -> int | None:
    """Return the position, 0 or -1, of a value that may stand for none, or None.

    It is the least or the largest, repeated, and further from the others than they are from each
    other.

    Examples
    --------
    >>> isolated_end(np.array([-9.5, 0.5, 2, 8, 99]), np.array([3, 2, 4, 1, 20]))
    -1
    """
    if len(levels) < _FEWEST_LEVELS:
        return None
    lower_gap, upper_gap = np.diff(levels)[[0, -1]]
    if counts[0] > 1 and lower_gap > levels[-1] - levels[1]:
        return 0
    if counts[-1] > 1 and upper_gap > levels[-2] - levels[0]:
        return -1
    return None


def _most_odd(n: int) -> int:
    """Return the number of rows that may be odd among `n`."""
    return min(n // _ROWS_PER_ODD, max(_FEW, n // _ODD_SHARE))


def named_kind(name: str) -> Kind | None:
    """Return what the name of a column means, by its last telling word, or None.

    Examples
    --------
    >>> named_kind("PlayCount"), named_kind("number_of_stars"), named_kind("value")
    ('counts', 'grades', None)
    >>> named_kind("is_liked")
    'likes'
    """
    for word in reversed(_WORD.findall(name)):
        if word.lower() in _COUNTS.split():
            return "counts"
        if word.lower() in _LIKES.split():
            return "likes"
        if word.lower() in _GRADES.split():
            return "grades"
    return None


def _has_long_tail(amounts: AnyFloats, n_rows: Longs) -> bool:
    """Return whether a few positive values are much larger than most."""
    n = int(n_rows.sum())
    n_odd = min(n // _ROWS_PER_ODD, _FEW)
    ends = np.cumsum(n_rows)

    def ranked(rank: int) -> float:
        return float(amounts[np.searchsorted(ends, rank, side="right")])

    highest = ranked(n - 1 - n_odd)
    if highest <= _HIGHEST_GRADE:
        return False
    percentile = ranked(n - 1 - max(n_odd, n // _PERCENT))
    is_spread = percentile >= _SPREAD * ranked((n - 1) // 2)
    is_tail = is_spread or highest <= _GAP * percentile  # not a few typing errors
    n_small = int(n_rows[amounts <= highest / _TAIL].sum())
    return is_tail and 2 * n_small >= n


def _are_small_counts(amounts: AnyFloats, n_rows: Longs) -> bool:
    """Return whether values are 1, 2, 3, ... with falling frequencies, and half of them are 1."""
    n = int(n_rows.sum())
    is_whole = amounts == np.floor(amounts)
    n_odd = int(n_rows[~is_whole].sum())
    if n < _FEWEST or n_odd > min(n // _ROWS_PER_ODD, _FEW):
        return False
    numbers = amounts[is_whole]
    n_rows = n_rows[is_whole]
    if len(numbers) < _FEWEST_LEVELS or numbers[0] != 1 or n_rows[0] < _ONES * n:
        return False
    # Frequencies differ by chance; a rise beyond it is a grade that many like.
    rises = np.diff(n_rows)
    return bool((rises <= _NOISE * np.sqrt(n_rows[:-1] + 1)).all())
