"""Gates: conditions such as "ndcg@10 worse" or "rmse > 0.9" that an evaluation must not meet."""

from __future__ import annotations

import operator
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Self

import polars as pl

from recsys.errors import DataError
from recsys.evaluation.results import Evaluation
from recsys.messages import close_matches

_COMPARED = {"<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge}
_FORM = re.compile(r"\s*(?P<name>[^\s<>=]+)\s*(?:(?P<sign>[<>]=?)\s*(?P<bound>\S+)|worse)\s*")


class Verdict(NamedTuple):
    """The result of a gate for one model, with the reason in one sentence."""

    gate: str
    model: str
    failed: bool
    reason: str


@dataclass(frozen=True, slots=True)
class Gate:
    """A condition that fails an evaluation: a metric beyond a bound, or (no sign) worse.

    Examples
    --------
    >>> gate = Gate.parse("ndcg@10 < 0.1", ["rmse", "ndcg@10"])
    >>> str(gate), gate.is_met(0.08)
    ('ndcg@10 < 0.1', True)
    """

    name: str
    sign: str | None = None
    bound: float | None = None

    def __str__(self) -> str:
        return (
            f"{self.name} worse" if self.sign is None else f"{self.name} {self.sign} {self.bound:g}"
        )

    @classmethod
    def parse(cls, text: str, names: Collection[str]) -> Self:
        """Read a condition; "ndcg" stands for "ndcg@10" if that is the only NDCG among `names`.

        Raises
        ------
        DataError
            If the condition has another form, or no metric has its name.
        """
        found = _FORM.fullmatch(text)
        try:
            bound = float(found["bound"]) if found and found["bound"] else None
        except ValueError:
            found = None
        if found is None or (bound is not None and bound != bound):
            raise DataError(
                f'A condition is "METRIC worse", or "METRIC < NUMBER" (or <=, >, >=); got {text!r}.'
            )
        name = found["name"]
        full = [each for each in names if each.partition("@")[0] == name]
        if name not in names and len(full) != 1:
            bare = {each.partition("@")[0]: each for each in names}
            near = full or [bare[each] for each in close_matches(name.partition("@")[0], bare, 3)]
            raise DataError(f"No value is called {name!r}; there are {', '.join(near or names)}.")
        return cls(name if name in names else full[0], found["sign"], bound)

    def is_met(self, value: float) -> bool:
        """Return whether a value is beyond the bound; NaN is not.

        Raises
        ------
        DataError
        """
        if self.sign is None or self.bound is None:
            raise DataError(f"The condition {str(self)!r} compares two models; it has no bound.")
        return bool(_COMPARED[self.sign](value, self.bound))

    def bounded(self, values: Mapping[str, float], model: str) -> Verdict:
        """Return the verdict on the values of one model, by name.

        Raises
        ------
        DataError
        """
        if self.name not in values:
            raise DataError(
                f"The condition {str(self)!r} cannot be checked: {model} has no {self.name}."
            )
        value = values[self.name]
        return Verdict(
            str(self), model, self.is_met(value), f"{self.name} of {model} is {value:.4g}"
        )

    def verdicts(self, found: Evaluation, models: Sequence[str]) -> list[Verdict]:
        """Return the verdict for each of some models; "worse" is than the evaluation's first model.

        A model is worse if the difference is to the worse, and the adjusted p value below 1 minus
        the confidence of the evaluation.
        """
        if self.sign is not None:
            of_models = found.metrics.filter(pl.col("metric") == self.name)
            known = {row["model"]: {self.name: row["value"]} for row in of_models.to_dicts()}
            return [self.bounded(known.get(model, {}), model) for model in models]
        return [self._tested(found, str(found.table["model"][0]), model) for model in models]

    def _tested(self, found: Evaluation, before: str, model: str) -> Verdict:
        direction = found.measured[self.name.partition("@")[0]].direction
        if not direction:
            raise DataError(f"{self.name} has no better or worse; give a bound for it.")
        is_pair = (pl.col("model") == before) & (pl.col("other") == model)
        rows = found.comparisons.filter((pl.col("metric") == self.name) & is_pair).to_dicts()
        if not rows:
            raise DataError(
                f"The condition {str(self)!r} cannot be checked: there is no test of {self.name} "
                f"between {before} and {model}."
            )
        row, level = rows[0], 1 - found.settings.confidence
        failed = row["difference"] * direction > 0 and row["adjusted"] < level
        reason = (
            f"{self.name} of {model} differs from that of {before} by {-row['difference']:+.4f} "
            f"[{-row['high']:+.4f}, {-row['low']:+.4f}], p = {row['adjusted']:.4f}"
        )
        return Verdict(str(self), model, failed, reason)
