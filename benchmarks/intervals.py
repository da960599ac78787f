"""How often intervals hold the true value, by simulation.

The first table has the 95% intervals of `recsys evaluate`: a mean over users with lognormal values,
and an RMSE of users with lognormal variances of errors and about six ratings each, for three
deviations of the logarithm, and 30, 200 and 1,000 users. BCa is what `evaluate` prints; percentiles
are those of the same samples. The widths are medians.

The second table has the intervals of `bayes` for held-out ratings of 1,200 users and 30 items, in
stars of 2, 3 and 5 levels; with 5 levels, most ratings are the highest one.

The third table has the sign-flip test of `recsys evaluate` at a level of 5%: how often it rejects
differences of users that have a mean of 0 and a lognormal distribution.

Usage: python benchmarks/intervals.py [--trials N]
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from collections.abc import Iterator

import numpy as np
from measuring import machine, table

from recsys import Bayes, Ratings, Recommender, random_split
from recsys.evaluation.statistics import Ratio, bca, bootstrap, sign_flip

CONFIDENCE = 0.95
DEVIATIONS = (0.5, 1.0, 1.5)
TESTED = (12, 30, 200, 1000)
PROBABILITIES = (0.5, 0.8, 0.9)
LEVELS = {2: [0.0], 3: [-0.5, 0.5], 5: [-2.0, -1.6, -1.2, -0.5]}
Interval = tuple[float, float]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--trials", type=int, default=2000, help="samples of users")
    trials = parser.parse_args().trials
    print(machine(), "\n")
    headers = ["metric", "deviation", "users", "percentile", "BCa", "widths"]
    print(table(headers, metric_rows(trials)), "\n")
    headers = ["levels", *(f"{100 * p:.0f}% intervals" for p in PROBABILITIES)]
    print(table(headers, list(rating_rows())), "\n")
    headers = ["deviation", *(f"{n_users:,} users" for n_users in TESTED)]
    print(table(headers, list(flip_rows(trials))))


def metric_rows(trials: int) -> list[list[object]]:
    """Return the rows of the first table."""
    rows: list[list[object]] = []
    for deviation in DEVIATIONS:
        for n_users in (30, 200, 1000):
            for metric, intervals in simulated(deviation, n_users, trials).items():
                percentiles, corrected, truth = (np.array(x) for x in intervals)
                widths = [np.median(np.diff(x)) for x in (percentiles, corrected)]
                rows.append(
                    [
                        metric,
                        deviation,
                        f"{n_users:,}",
                        held(percentiles, truth),
                        held(corrected, truth),
                        "{:.3f}, {:.3f}".format(*widths),
                    ]
                )
    return sorted(rows, key=lambda row: row[0])


def simulated(
    deviation: float, n_users: int, trials: int
) -> dict[str, tuple[list[Interval], list[Interval], list[float]]]:
    """Return percentile and BCa intervals, and the true values, of each metric."""
    rng = np.random.default_rng(0)
    intervals = defaultdict(lambda: ([], [], []))
    truth = {"mean": np.exp(deviation**2 / 2), "RMSE": np.exp(deviation**2 / 4)}
    for trial in range(trials):
        means = rng.lognormal(0, deviation, n_users)
        n_ratings = rng.poisson(5, n_users) + 1
        errors = rng.lognormal(0, deviation, n_users) * rng.chisquare(n_ratings)
        ratios = {
            "mean": Ratio.mean(means),
            "RMSE": Ratio(errors, n_ratings.astype(float), np.sqrt),
        }
        samples = bootstrap([*ratios.values()], 1000, trial)
        for (metric, ratio), column in zip(ratios.items(), samples.T, strict=True):
            percentiles, corrected, true_values = intervals[metric]
            tail = 50 * (1 - CONFIDENCE)
            percentiles.append(tuple(np.percentile(column, [tail, 100 - tail])))
            corrected.append(
                bca(column, ratio.value, ratio.leave_one_out(), CONFIDENCE)
            )
            true_values.append(truth[metric])
    return dict(intervals)


def held(intervals: np.ndarray, truth: np.ndarray) -> str:
    """Return the share of intervals with the true value in them."""
    low, high = intervals.T
    return f"{np.mean((low <= truth) & (truth <= high)):.1%}"


def rating_rows() -> Iterator[list[object]]:
    """Yield the rows of the second table."""
    rng = np.random.default_rng(0)
    for n_levels, cuts in LEVELS.items():
        latent = rng.normal(0, 0.5, (1200, 3)) @ rng.normal(0, 0.7, (3, 30))
        latent += rng.normal(0, 0.4, (1200, 1)) + rng.normal(0, 0.8, (1200, 30))
        stars = np.digitize(latent, cuts) + 1.0
        is_rated = rng.random(stars.shape) < 0.2
        ratings = Ratings.from_matrix(np.where(is_rated, stars, np.nan))
        split = random_split(ratings, 0.2)
        model = Recommender(Bayes(factors=8)).fit(split.train).model
        users, items = split.test.user_index_of_nonzeros(), split.test.indices
        row: list[object] = [n_levels]
        for probability in PROBABILITIES:
            ends = model.predict_interval(users, items, probability)
            row.append(held(np.column_stack(ends), split.test.values))
        yield row


def flip_rows(trials: int) -> Iterator[list[object]]:
    """Yield the rows of the third table."""
    rng = np.random.default_rng(0)
    for deviation in DEVIATIONS:
        row: list[object] = [deviation]
        for n_users in TESTED:
            values = rng.lognormal(0, deviation, (n_users, trials))
            p_values = sign_flip(values - np.exp(deviation**2 / 2))
            row.append(f"{np.mean(p_values < 1 - CONFIDENCE):.1%}")
        yield row


if __name__ == "__main__":
    main()
