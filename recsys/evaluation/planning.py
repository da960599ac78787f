"""Sizes of online comparisons: users and days that a difference needs to be detected."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
import polars as pl
from scipy.optimize import brentq

from recsys.errors import DataError
from recsys.evaluation.monitoring import (
    CLICKS,
    attributed_clicks,
    click_ratios,
    clicks_of_users,
)
from recsys.evaluation.statistics import always_factor, standard_error


@dataclass(frozen=True, slots=True)
class Baseline:
    """Present value of a metric of users: its rate, and its standard deviation over users."""

    metric: str
    rate: float
    deviation: float

    @classmethod
    def of_rate(cls, rate: float) -> Baseline:
        """Return the baseline of a share of users who click.

        Raises
        ------
        DataError
            If the rate is not between 0 and 1.
        """
        if not 0 < rate < 1:
            raise DataError(f"The rate must be between 0 and 1; got {rate:g}.")
        return cls("users who click", rate, math.sqrt(rate * (1 - rate)))


def baselines(lists: pl.DataFrame, clicks: Mapping[str, pl.Series]) -> list[Baseline]:
    """Return the baseline of each metric of clicks in the log of a service.

    `lists` and `clicks` are as in `online_test`; all named users count, of any model.

    Raises
    ------
    DataError
        If fewer than two users have a name, or nobody has clicked.
    """
    named = lists.filter(pl.col("user").is_not_null())
    clicked = attributed_clicks(named, clicks)
    ratios = click_ratios(clicks_of_users(named, clicked))
    n_users = len(ratios[0].above)
    if n_users < 2 or not ratios[0].above.any():
        raise DataError(
            "A plan needs clicks on the lists of at least two users; give the rate instead."
        )
    return [
        Baseline(name, ratio.value, standard_error(ratio) * math.sqrt(n_users))
        for name, ratio in zip(CLICKS, ratios, strict=True)
    ]


def users_per_day(lists: pl.DataFrame) -> float:
    """Return the number of named users per day of the log."""
    named = lists.filter(pl.col("user").is_not_null())
    times = named["time"].to_numpy()
    days = float(np.ptp(times)) / 86_400_000
    return named["user"].n_unique() / max(1.0, days)


def plan_online_test(
    baseline: Baseline,
    difference: float,
    *,
    power: float = 0.8,
    confidence: float = 0.95,
    traffic: float | None = None,
) -> dict[str, float | str | None]:
    """Return the users that a test of two models needs to detect a difference.

    Parameters
    ----------
    baseline : Baseline
    difference : float
        Smallest difference of the metric to detect.
    power : float
        Probability of detecting it.
    confidence : float
        Confidence level of the test.
    traffic : float, optional
        New users per day, of both models together.

    Returns
    -------
    dict
        metric, rate, difference; users (of each model, for a test with one look at the end),
        users_any_time (for intervals that may be looked at every day), and the days of both, null
        without traffic.

    Raises
    ------
    DataError
        If an argument is outside its range.

    Examples
    --------
    >>> plan = plan_online_test(Baseline.of_rate(0.1), 0.01, traffic=2000)
    >>> plan["users"], plan["days"], plan["users_any_time"]
    (14749, 15, 31835)
    """
    for name, value in (("power", power), ("confidence", confidence)):
        if not 0.5 <= value < 1:
            raise DataError(
                f"The {name} must be at least 0.5 and below 1; got {value:g}."
            )
    if not difference or not math.isfinite(difference):
        raise DataError(
            f"The difference must be a number other than 0; got {difference:g}."
        )
    if traffic is not None and not traffic > 0:
        raise DataError(f"The traffic must be above 0 users per day; got {traffic:g}.")
    after = baseline.deviation
    if baseline.metric == "users who click":
        after = Baseline.of_rate(baseline.rate + difference).deviation
    # Standard error of the difference, times the root of the users of each model.
    deviation = math.hypot(baseline.deviation, after)
    of_power = NormalDist().inv_cdf(power)
    of_level = NormalDist().inv_cdf((1 + confidence) / 2)
    users = ((of_level + of_power) * deviation / difference) ** 2

    def excess(n: float) -> float:
        # Earlier looks can only add to the power of the last one.
        factor = always_factor(2 * n, confidence) + of_power
        return abs(difference) - factor * deviation / math.sqrt(n)

    any_time = brentq(excess, users, 1000 * users + 1e6)
    plan: dict[str, float | str | None] = {
        "metric": baseline.metric,
        "rate": baseline.rate,
        "difference": difference,
        "users": math.ceil(users),
        "users_any_time": math.ceil(any_time),
    }
    for name, size in (("days", users), ("days_any_time", any_time)):
        plan[name] = None if traffic is None else math.ceil(2 * size / traffic)
    return plan
