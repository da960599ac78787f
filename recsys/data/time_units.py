"""Units of numeric times: seconds, ticks, days of spreadsheets, dates in digits."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
import numpy.typing as npt
import polars as pl

from recsys.data.arrays import Doubles

FOREVER = 2**62
"""Seconds that stand for infinity, which PostgreSQL and floats have."""

_DAY = 86400
SAME_SECOND = 0.05
"""Seconds by which rounding may change times of spreadsheets."""
_FEW = 0.05  # maximum share of small numbers, which are not days, in a column of days
_MOSTLY = (
    0.5  # minimum share of numbers in digits that are valid dates; 4% are by chance
)
_NEARLY_ALL = 0.95
_CHUNK = 1 << 20  # numbers to judge at once


@dataclass(frozen=True, slots=True)
class Unit:
    """Unit of numeric times.

    A second has `per_second` of them, and zero is `origin` seconds after 1970-01-01. Dates in
    digits have a `form` instead, and no `name` for the option time_format.
    """

    name: str
    noun: str
    per_second: float = 1
    origin: int = 0
    form: str = ""

    def seconds(self, numbers: pl.Series) -> pl.Series:
        """Convert times to Int64 seconds, or Float64 if some have fractions.

        The result is null for a null, and for digits that are not a date. Infinity is
        `FOREVER`. Zero and -1 stay, because programs write them for missing times in any unit.
        """
        is_marker = (numbers == 0) | (numbers == -1)
        finite = numbers
        infinite = None
        if numbers.dtype.is_float():
            infinite = numbers.is_infinite()
            finite = numbers.set(~numbers.is_finite(), None)
        if self.form:
            seconds = _from_digits(finite, self.form)
        elif self.per_second < 1:
            seconds = _from_long_units(finite, round(1 / self.per_second), self.origin)
        else:
            seconds = divided(finite, int(self.per_second)) + self.origin
        if seconds.dtype.is_float():
            seconds = seconds.clip(-FOREVER, FOREVER)
        if self.origin or self.form:
            seconds = seconds.zip_with(
                ~is_marker.fill_null(False), numbers.cast(seconds.dtype, strict=False)
            )
        if infinite is not None and infinite.any():
            forever = pl.select(
                pl.when(numbers > 0).then(FOREVER).otherwise(-FOREVER)
            ).to_series()
            seconds = forever.cast(seconds.dtype).zip_with(
                infinite.fill_null(False), seconds
            )
        return seconds


def divided(ticks: pl.Series, per_second: int) -> pl.Series:
    """Return ticks as Int64 seconds, or Float64 if there are fractions of a second."""
    if per_second == 1 and not ticks.dtype.is_float():
        return ticks
    seconds = ticks // per_second
    remainders = ticks - seconds * per_second
    seconds = seconds.clip(-FOREVER, FOREVER).cast(pl.Int64, strict=False)
    return seconds + remainders / per_second if (remainders != 0).any() else seconds


def _from_long_units(numbers: pl.Series, size: int, origin: int) -> pl.Series:
    """Return units of `size` seconds since an origin as seconds, without rounding differences."""
    if not numbers.dtype.is_float():
        return numbers.cast(pl.Int64) * size + origin
    exact = numbers * size + origin
    rounded = exact.round()
    is_whole = bool(((exact - rounded).abs() < SAME_SECOND).all())
    return (
        rounded.clip(-FOREVER, FOREVER).cast(pl.Int64) if is_whole else exact.round(3)
    )


def _from_digits(numbers: pl.Series, form: str) -> pl.Series:
    """Return dates in digits as seconds, null where a number is not one."""
    texts = numbers.cast(pl.Int64, strict=False).cast(pl.String)
    return divided(
        texts.str.to_datetime(form, time_unit="us", strict=False).to_physical(), 10**6
    )


UNITS = {
    unit.name: unit
    for unit in (
        Unit("s", "seconds"),
        Unit("ms", "milliseconds", 10**3),
        Unit("us", "microseconds", 10**6),
        Unit("ns", "nanoseconds", 10**9),
        Unit("min", "minutes since 1970", 1 / 60),
        Unit("h", "hours since 1970", 1 / 3600),
        Unit("d", "days since 1970", 1 / _DAY),
        Unit("excel", "days of Excel", 1 / _DAY, -25_569 * _DAY),
        Unit("ticks", "ticks of .NET", 10**7, -62_135_596_800),
        Unit("filetime", "file times of Windows", 10**7, -11_644_473_600),
    )
}
"""Units by their name in the option time_format."""

_S, _MS, _US, _NS = (UNITS[name] for name in ("s", "ms", "us", "ns"))
_EXCEL, _TICKS, _FILETIME = (UNITS[name] for name in ("excel", "ticks", "filetime"))
_DATES = Unit("", "digits (YYYYMMDD)", form="%Y%m%d")
_MINUTES = Unit("", "digits (YYYYMMDDhhmm)", form="%Y%m%d%H%M")
_CLOCK = Unit("", "digits (YYYYMMDDhhmmss)", form="%Y%m%d%H%M%S")
_MILLIS = Unit("", "digits (YYYYMMDDhhmmssfff)", form="%Y%m%d%H%M%S%3f")

BAND = 10**8
"""Smaller numbers are days or dates in digits, or seconds up to 1973."""

RANGES: tuple[tuple[float, float, Unit], ...] = (
    (25_569, 80_000, _EXCEL),  # from 1970 to 2119
    (1900_01_01, 2100_12_31, _DATES),
    (BAND, 1e10, _S),  # from 1973 to 2286, as all of these
    (1e11, 1900_01_01_00_00, _MS),
    (
        1900_01_01_00_00,
        2100_12_31_23_59,
        _MINUTES,
    ),  # as milliseconds, from January to August 1976
    (2100_12_31_23_59, 1e13, _MS),
    (1900_01_01_00_00_00, 2100_12_31_23_59_59, _CLOCK),
    (1e14, 1e16, _US),
    (1900_01_01_00_00_00_000, 2100_12_31_23_59_59_999, _MILLIS),
    (1e17, 1.2276e17, _NS),
    (
        1.2276e17,
        1.5747e17,
        _FILETIME,
    ),  # from 1990 to 2099; as nanoseconds, 1973 and 1974
    (1.5747e17, 6.2767e17, _NS),
    (6.2767e17, 6.6239e17, _TICKS),  # from 1990 to 2099; as nanoseconds, 1990
    (6.6239e17, 2.0**63, _NS),
)
"""Ranges of numbers, from after a start to an end, and their modern unit."""


def range_of(unit: Unit) -> tuple[float, float]:
    """Return the first range of numbers that are modern times in a unit."""
    first, last, _ = RANGES[_OF_UNIT[unit][0]]
    return first, last


_STARTS = np.array([first for first, _, _ in RANGES])
_ENDS = np.array([last for _, last, _ in RANGES])
_OF_UNIT: dict[Unit, list[int]] = {}
for _group, (_, _, _unit) in enumerate(RANGES):
    _OF_UNIT.setdefault(_unit, []).append(_group)
SMALL = len(RANGES)
OTHER = len(RANGES) + 1
N_GROUPS = len(RANGES) + 2
"""Number of groups of times: one for each range, small numbers, and all others."""

_LAST_DAY = 253_402_214_400  # seconds at which 9999-12-31 begins
# seconds after it at which it has ended in every time zone
_OF_ZONES = 14 * 3600 + _DAY
END_OF_CALENDAR = (
    (2_958_465, 2_958_466),
    (9999_12_31, 9999_12_31),
    (9999_12_31_00_00, 9999_12_31_23_59),
    (9999_12_31_00_00_00, 9999_12_31_23_59_59),
    (_LAST_DAY - _OF_ZONES, _LAST_DAY + _OF_ZONES),
    ((_LAST_DAY - _OF_ZONES) * 10**3, (_LAST_DAY + _OF_ZONES) * 10**3),
    ((_LAST_DAY - _OF_ZONES) * 10**6, (_LAST_DAY + _OF_ZONES) * 10**6),
    (3_155_378_112e9, 3_155_378_977e9),  # ticks
    (2_650_466_880e9, 2_650_467_745e9),  # file times
    (2.0**63 - 1024, float("inf")),
)
"""Ranges of the end of the calendar in a unit that are modern in another one."""


@dataclass(frozen=True, slots=True)
class Tally:
    """Number of times in each group, and the row of the first one."""

    counts: list[int]
    rows: list[int]

    @classmethod
    def of(cls, numbers: pl.Series) -> Self:
        """Count times, which may be null."""
        counts = np.zeros(N_GROUPS, np.int64)
        rows = [0] * N_GROUPS
        for start in range(0, len(numbers), _CHUNK):
            part = numbers.slice(start, _CHUNK).cast(pl.Float64).to_numpy()
            groups = _groups(part)
            present, firsts, sizes = np.unique(
                groups, return_index=True, return_counts=True
            )
            for group, first, size in zip(present, firsts, sizes, strict=True):
                if group < 0:
                    continue
                if not counts[group]:
                    rows[group] = start + int(first)
                counts[group] += size
        return cls(counts.tolist(), rows)


def _groups(numbers: Doubles) -> npt.NDArray[np.int8]:
    """Return the group of each number, or -1 if it can be of any unit.

    Zero, -1, NaN and the end of the calendar can be of any unit.
    """
    sizes = np.abs(numbers)
    candidates = np.searchsorted(_STARTS, sizes, side="left") - 1
    within = (candidates >= 0) & (sizes <= _ENDS[candidates])
    outside = np.where(sizes < BAND, SMALL, OTHER)
    groups = np.where(within, candidates, outside).astype(np.int8)
    groups[(numbers < 0) & (sizes < BAND)] = SMALL
    is_mark = (numbers == 0) | (numbers == -1)
    groups[is_mark | np.isnan(numbers)] = -1
    for first, last in END_OF_CALENDAR:
        groups[(sizes >= first) & (sizes <= last)] = -1
    return groups


def units_of(
    counts: Sequence[int], valid: Callable[[Unit], float]
) -> dict[Unit, list[int]]:
    """Return the units of modern times, the most frequent first, with their groups.

    `counts` has the number of times in each group, and `valid` returns the share of dates among the
    numbers in the range of dates in digits.
    """
    members_of = dict[Unit, list[int]]()
    for unit, groups in _OF_UNIT.items():
        members = [group for group in groups if counts[group]]
        if members:
            members_of[unit] = members
    if _EXCEL in members_of and counts[SMALL] > _FEW * (counts[SMALL] + counts[0]):
        del members_of[_EXCEL]  # a counter, or seconds of 1970
    for unit in (_DATES, _MINUTES, _CLOCK, _MILLIS):
        least = _NEARLY_ALL if unit is _MINUTES else _MOSTLY
        if unit not in members_of or valid(unit) >= least:
            continue
        members = members_of.pop(unit)
        if unit is _MINUTES:
            members_of[_MS] = [*members_of.get(_MS, []), *members]
    for unit in (_FILETIME, _TICKS):
        code = _OF_UNIT[unit][0]
        in_ns = members_of.get(_NS, [])
        if unit in members_of and in_ns and min(in_ns) < code < max(in_ns):
            # There are nanoseconds of earlier and of later years.
            members_of[_NS] = [*in_ns, *members_of.pop(unit)]

    def size(unit: Unit) -> int:
        return sum(counts[group] for group in members_of[unit])

    return {
        unit: members_of[unit] for unit in sorted(members_of, key=size, reverse=True)
    }


def usual_unit(largest: float) -> Unit:
    """Return the unit of times that are modern in no unit, given the largest size."""
    for limit, unit in ((1e17, _NS), (1e14, _US), (1e11, _MS)):
        if largest > limit:
            return unit
    return _S


def sure_unit(low: float, high: float) -> Unit | None:
    """Return the unit of times between two numbers; None if others decide."""
    candidate = int(np.searchsorted(_STARTS, low, side="left")) - 1
    unit = RANGES[candidate][2]
    is_sure = (
        candidate >= 0 and unit in (_S, _MS, _US, _EXCEL) and high <= _ENDS[candidate]
    )
    never = any(first <= high and low <= last for first, last in END_OF_CALENDAR)
    return unit if is_sure and not never else None
