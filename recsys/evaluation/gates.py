"""Gates: conditions on the results of an evaluation that fail a command.

A condition names a metric, or the metric of a group: ``ndcg@10 < 0.1``, ``ndcg@10 worse``,
``ndcg@10[age=under 25] worse``.
"""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import product
from typing import NamedTuple, Self

import polars as pl

from recsys.data.ratings import Ratings
from recsys.errors import DataError
from recsys.evaluation.results import Evaluation, compared, judged
from recsys.evaluation.slices import SLICE_NAME, group_columns
from recsys.messages import absent, close_matches

_SIGNS = {"<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge}
# The name of a group may have spaces, signs and brackets, and ends at the last bracket.
_FORM = re.compile(
    r"\s*(?P<metric>[^\s<>=\[]+)\s*(?:\[(?P<by>[^=]+)=(?P<group>.*)\])?\s*"
    r"(?:(?P<sign>[<>]=?)\s*(?P<bound>[^\s\]]+)|worse)\s*"
)


class Verdict(NamedTuple):
    """Result of a gate for one model, with the reason."""

    gate: str
    failed: bool
    reason: str


@dataclass(frozen=True, slots=True)
class Gate:
    """Condition that fails an evaluation: a metric beyond a bound, or worse (without a sign).

    With a `group`, the metric is of this group `by` a column, activity or popularity.

    Examples
    --------
    >>> gate = Gate.parse("ndcg@10 < 0.1", ["rmse", "ndcg@10"])
    >>> str(gate), gate.bounded({"ndcg@10": 0.08}, "als").failed
    ('ndcg@10 < 0.1', True)
    >>> Gate.parse("ndcg[age=under 25] worse", ["rmse", "ndcg@10"]).name
    'ndcg@10[age=under 25]'
    """

    metric: str
    sign: str | None = None
    bound: float = math.nan
    by: str | None = None
    group: str | None = None

    @property
    def name(self) -> str:
        """Name of the value."""
        if self.by is None:
            return self.metric
        return f"{self.metric}[{self.by}={self.group}]"

    def __str__(self) -> str:
        if self.sign is None:
            return f"{self.name} worse"
        return f"{self.name} {self.sign} {self.bound:g}"

    @classmethod
    def parse(cls, text: str, names: Collection[str]) -> Self:
        """Parse a condition; "ndcg" means "ndcg@10" if that is the only NDCG among `names`.

        Raises
        ------
        DataError
            If the condition has another form, or its metric is unknown.
        """
        match = _FORM.fullmatch(text)
        bound = math.nan
        if match is not None and match["sign"]:
            with suppress(ValueError):
                bound = float(match["bound"])
        if match is None or (match["sign"] and math.isnan(bound)):
            raise DataError(
                'A condition must be "METRIC worse" or "METRIC < X" (or <=, >, >=), or of a '
                f'group: "METRIC[COLUMN=GROUP] worse"; got {text!r}.'
            )
        name = match["metric"]
        full = [candidate for candidate in names if candidate.partition("@")[0] == name]
        if name in names:
            full = [name]
        if len(full) != 1:
            full_names = {candidate.partition("@")[0]: candidate for candidate in names}
            close = close_matches(name.partition("@")[0], full_names, 3)
            suggestions = full or [full_names[kind] for kind in close] or names
            raise DataError(
                f"No value is named {name!r}; there are {', '.join(suggestions)}."
            )
        by, group = match["by"], match["group"]
        if by is not None:
            by, group = by.strip(), group.strip()
        return cls(full[0], match["sign"], bound, by, group)

    def bounded(self, values: Mapping[str, float], model: str) -> Verdict:
        """Return the verdict on the values of one model, by name; NaN is not beyond a bound.

        Raises
        ------
        DataError
            If the values do not include the metric, or the group.
        """
        if self.name not in values:
            raise DataError(
                f"The condition {str(self)!r} cannot be checked: {model} has no {self.name}"
                f"{_groups_among(values, self.by)}."
            )
        value = values[self.name]
        is_beyond = bool(_SIGNS[str(self.sign)](value, self.bound))
        return Verdict(str(self), is_beyond, f"{self.name} of {model} is {value:.4g}")

    def _tested(
        self,
        found: Evaluation,
        before: str,
        model: str,
    ) -> pl.DataFrame:
        """Return the row of the difference to the first model, with interval and p value."""
        metric = found.measured[self.metric.partition("@")[0]]
        if not metric.direction:
            raise DataError(f"{self.metric} has no direction; give a bound for it.")
        rows = found.comparisons.filter(metric=self.metric, model=before, other=model)
        if self.by is not None:
            of_models = {}
            for label in (before, model):
                values_of(found, label, [self])
                values = found.per_group.filter(by=self.by, group=self.group)
                of_models[label] = values.filter(model=label).sort("user")
            old, new = of_models.values()
            # The users of a group of items are those with relevant items by each model's split.
            paired = {
                before: old.join(new, on="user", how="semi", maintain_order="left"),
                model: new.join(old, on="user", how="semi", maintain_order="left"),
            }
            rows = compared(paired, [(metric, None, self.metric)], found.settings)
        if rows.is_empty():
            raise DataError(
                f"The condition {str(self)!r} cannot be checked: there is no test of "
                f"{self.name} between {before} and {model}."
            )
        return rows


def values_of(
    found: Evaluation,
    model: str,
    gates: Iterable[Gate] = (),
) -> dict[str, float]:
    """Return the values of a model by name, also for groups, which all `gates` must have.

    Raises
    ------
    DataError
        If there is no such group.
    """
    values: dict[str, float] = {}
    for frame, name in ((found.metrics, "metric"), (found.slices, SLICE_NAME)):
        rows = frame.filter(model=model).drop_nulls("value")
        values |= dict(rows.select(name, "value").iter_rows())
    for gate in gates:
        if gate.name not in values:
            gate.bounded(values, model)
    return values


def _groups_among(names: Iterable[str], by: str | None) -> str:
    """Return the groups by a column, or the columns, for the end of a message."""
    if by is None:
        return ""
    groups: dict[str, list[str]] = {}
    for name in names:
        _, bracket, rest = name.partition("[")
        if bracket:
            column, _, group = rest[:-1].partition("=")
            of_column = groups.setdefault(column, [])
            if group not in of_column:
                of_column.append(group)
    if by in groups:
        return f"; the groups by {by} are {', '.join(map(repr, groups[by]))}"
    if groups:
        return f"; there are groups by {', '.join(groups)}"
    return "; --by COLUMN makes groups of items, and --by-user COLUMN of users"


def with_groups(
    gates: Iterable[Gate],
    train: Ratings,
    by: Sequence[str],
    by_user: Sequence[str],
) -> tuple[list[str], list[str]]:
    """Return the columns with groups of items, and of users, also those that gates name.

    Raises
    ------
    DataError
        If a gate names a column of both tables, or of none.
    """
    of_items = [*by]
    of_users = [*by_user]
    columns_of_users = group_columns(train, "user")
    columns_of_items = group_columns(train, "item")
    for column in {gate.by: None for gate in gates if gate.by is not None}:
        if column in (*of_items, *of_users):
            continue
        if column not in columns_of_users:
            columns = [*columns_of_users, *columns_of_items]
            if column not in columns:
                raise DataError(absent("column", column, "users or items", columns))
            of_items.append(column)
        elif column in columns_of_items:
            raise DataError(
                f"Users and items have groups by {column}; choose them by --by-user {column} "
                f"or --by {column}."
            )
        else:
            of_users.append(column)
    return of_items, of_users


def verdicts(
    gates: Sequence[Gate],
    found: Evaluation,
    models: Sequence[str],
) -> list[Verdict]:
    """Return the verdict of each gate for each of some models.

    A model is worse if its value is worse than the value of the first model, and the adjusted p
    value of the difference is below 1 minus the confidence level. The p values of groups are
    adjusted by Holm's method, for each metric over all these tests.

    Raises
    ------
    DataError
        If a condition cannot be checked.
    """
    before = str(found.table["model"][0])
    tests = {
        (gate, model): gate._tested(found, before, model)
        for gate, model in product(gates, models)
        if gate.sign is None
    }
    of_groups = [pair for pair in tests if pair[0].by is not None]
    if of_groups:
        directions = {kind: metric.direction for kind, metric in found.measured.items()}
        together = pl.concat([tests[pair] for pair in of_groups])
        together = judged(together, directions, found.settings)
        tests |= zip(of_groups, together.iter_slices(1), strict=True)
    results = []
    for gate, model in product(gates, models):
        if gate.sign is not None:
            results.append(gate.bounded(values_of(found, model), model))
            continue
        test = tests[gate, model].row(0, named=True)
        shown = f" ({test['verdict']})" if test["verdict"] else ""
        reason = (
            f"{gate.name} of {model} differs from that of {before} by "
            f"{test['difference']:+.4f} [{test['low']:+.4f}, {test['high']:+.4f}]{shown}, "
            f"p = {test['adjusted']:.4f}"
        )
        results.append(Verdict(str(gate), test["verdict"] == "worse", reason))
    return results
