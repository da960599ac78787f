"""Settings of an evaluation, and descriptions of its splits."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

from recsys.errors import DataError, check_flags, check_whole, is_number


def names_of(names: str | Iterable[str]) -> list[str]:
    """Return names as a list; a single one is not a sequence of letters.

    Raises
    ------
    DataError
    """
    if isinstance(names, str):
        return [names]
    if not isinstance(names, Iterable):
        raise DataError(f"Names must be a text or a list of texts; got {names!r}.")
    return [*names]


@dataclass(frozen=True, slots=True)
class Settings:
    """Arguments of `evaluate` other than models, metrics and data; `ns` are in ascending order."""

    ns: tuple[int, ...]
    relevant_from: float | None = None
    candidates: int | None = None
    new: Literal["drop", "keep"] = "drop"
    resamples: int = 1000
    confidence: float = 0.95
    random_state: int = 0
    diversity: float = 0.0
    positions: bool = False
    propensity: str | None = None

    def __post_init__(self) -> None:
        if not self.ns:
            raise DataError("n must be a number or several; got none.")
        check_flags(positions=self.positions)
        if self.new not in ("drop", "keep"):
            raise DataError(f"new must be 'drop' or 'keep'; got {self.new!r}.")
        if self.relevant_from is not None and not is_number(self.relevant_from):
            raise DataError(
                f"relevant_from must be a rating or None; got {self.relevant_from!r}."
            )
        check_whole("resamples", self.resamples, 0)
        if not 0 < self.confidence < 1:
            raise DataError(
                f"confidence must be between 0 and 1; got {self.confidence}."
            )


@dataclass(frozen=True, slots=True)
class SplitInfo:
    """Description of a split, without its ratings."""

    method: str
    parameters: dict[str, Any]
    description: str
    counts: dict[str, int]
    repeats: str = "drop"
    implicit: bool = False
