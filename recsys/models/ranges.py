"""Ranges of parameters: where tuning looks for better values."""

from __future__ import annotations

import math
from dataclasses import dataclass

from recsys.errors import DataError

__all__ = ["Range"]

_DIGITS = 4  # significant digits of a suggested value: more would pretend to matter


@dataclass(frozen=True, slots=True)
class Range:
    """The values of one numeric parameter from `low` to `high`, both included.

    Attributes
    ----------
    low, high : int or float
        If both are integers, so are the values.
    log : bool
        Equal ratios, not equal differences, count as equally far.

    Raises
    ------
    DataError
        If `low` is not below `high`, an end is not finite, or a logarithmic range begins at 0 or
        below.

    Examples
    --------
    >>> Range(4, 64, log=True).at(0.5), Range(0.0, 1.0).grid(3)
    (16, (0.0, 0.5, 1.0))
    >>> 3 in Range(4, 64)
    False
    """

    low: float
    high: float
    log: bool = False

    def __post_init__(self) -> None:
        if not -math.inf < self.low < self.high < math.inf:
            raise DataError(f"A range goes from low to high; got {self.low} to {self.high}.")
        if self.log and self.low <= 0:
            raise DataError(f"A logarithmic range must begin above 0; got {self.low}.")

    @property
    def integer(self) -> bool:
        """Whether the values are integers."""
        return isinstance(self.low, int) and isinstance(self.high, int)

    def __contains__(self, value: float | None) -> bool:
        return value is not None and self.low <= value <= self.high

    def at(self, share: float) -> float:
        """Return the value at a share between 0 and 1 of the way from `low` to `high`."""
        if self.log:
            return self.rounded(self.low * (self.high / self.low) ** share)
        return self.rounded(self.low + (self.high - self.low) * share)

    def rounded(self, value: float) -> float:
        """Return the nearest value that is short to write, within the range."""
        short = round(value) if self.integer else float(f"{value:.{_DIGITS}g}")
        return min(max(short, self.low), self.high)

    def grid(self, n: int) -> tuple[float, ...]:
        """Return about n values from `low` to `high`: equally far, fewer where integers run out."""
        return tuple(dict.fromkeys(self.at(i / max(1, n - 1)) for i in range(n)))
