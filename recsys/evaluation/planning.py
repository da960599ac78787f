"""Sizes of online comparisons: users that a difference needs to be detected."""

from __future__ import annotations

import math
from statistics import NormalDist

from scipy.optimize import brentq

from recsys.errors import DataError
from recsys.evaluation.statistics import always_factor


def plan_online_test(
    rate: float,
    difference: float,
    *,
    power: float = 0.8,
    confidence: float = 0.95,
) -> dict[str, float | str]:
    """Return the users that a test of two models needs to detect a difference.

    Parameters
    ----------
    rate : float
        Share of users who click now.
    difference : float
        Smallest difference of this share to detect.
    power : float
        Probability of detecting it.
    confidence : float
        Confidence level of the test.

    Returns
    -------
    dict
        metric, rate, difference; users (of each model, for a test with one look at the end), and
        users_any_time (for intervals that may be looked at every day).

    Raises
    ------
    DataError
        If an argument is outside its range.

    Examples
    --------
    >>> plan = plan_online_test(0.1, 0.01)
    >>> plan["users"], plan["users_any_time"]
    (14749, 31835)
    """
    for name, value in (("power", power), ("confidence, 1 - level,", confidence)):
        if not 0.5 <= value < 1:
            raise DataError(
                f"The {name} must be at least 0.5 and below 1; got {value:g}."
            )
    after = rate + difference
    for share in (rate, after):
        if not 0 < share < 1:
            raise DataError(
                "The rate must be between 0 and 1, with and without the difference; got "
                f"{share:g}."
            )
    if not difference:
        raise DataError("The difference must be a number other than 0; got 0.")
    # Standard error of the difference, times the root of the users of each model.
    deviation = math.sqrt(rate * (1 - rate) + after * (1 - after))
    of_power = NormalDist().inv_cdf(power)
    of_level = NormalDist().inv_cdf((1 + confidence) / 2)
    users = ((of_level + of_power) * deviation / difference) ** 2

    def excess(n: float) -> float:
        # Earlier looks can only add to the power of the last one.
        factor = always_factor(2 * n, confidence) + of_power
        return abs(difference) - factor * deviation / math.sqrt(n)

    any_time = brentq(excess, users, 1000 * users + 1e6)
    return {
        "metric": "users who click",
        "rate": rate,
        "difference": difference,
        "users": math.ceil(users),
        "users_any_time": math.ceil(any_time),
    }
