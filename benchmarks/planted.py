"""Planted answers, and how often they are found: biases, staleness, online tests, chances.

Simulations with known answers, and the chances of items on real data (needs `RECSYS_DATASETS`).

Usage: python benchmarks/planted.py [TABLE ...] [--trials N], with tables groups, staleness, online,
plans, chances, later, real
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator

import numpy as np
import polars as pl
from measuring import datasets, machine, table

from recsys import (
    Ratings,
    Recommender,
    Split,
    calibrate,
    evaluate,
    random_split,
    read_ratings,
    time_cuts,
)
from recsys.evaluation.planning import plan_online_test
from recsys.evaluation.statistics import Ratio, at_any_time, standard_error

Rows = Iterator[list[object]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("tables", nargs="*", metavar="TABLE")
    parser.add_argument("--trials", type=int, default=200)
    arguments = parser.parse_args()
    print(machine())
    for name in arguments.tables or TABLES:
        headers, rows = TABLES[name]
        print(f"\n{name}\n\n{table(headers, list(rows(arguments.trials)))}", flush=True)


def group_rows(trials: int) -> Rows:
    """Yield how often the gap of a group is found, of users who choose at random more often."""
    for share in (0.0, 0.02, 0.05, 0.1, 0.2):
        gaps, found, largest, alarms = [], 0, 0, 0
        for trial in range(trials):
            rng = np.random.default_rng(trial)
            rows = []
            for user in range(400):
                is_biased = user % 4 == 0
                for item in rng.permutation(12)[:8]:
                    at_random = is_biased and rng.random() < share
                    rows.append((user, rng.integers(200) if at_random else item))
            countries = ["NO", "DE", "FR", "US"]
            users = pl.DataFrame(
                {"user": range(400), "country": [countries[u % 4] for u in range(400)]}
            )
            frame = pl.DataFrame(rows, schema=["user", "item"], orient="row").unique()
            ratings = Ratings.from_frame(frame.sort("user", "item"), user_table=users)
            slices = evaluate(
                "popular",
                random_split(ratings, 0.25, random_state=trial),
                n=5,
                metrics=["ndcg"],
                by_user=["country"],
                features=False,
                resamples=1,
            ).slices
            of_group = slices.filter(group="NO")
            gaps.append(of_group["gap"][0])
            found += of_group["adjusted"][0] < 0.05 and of_group["gap"][0] < 0
            largest += slices["gap"].abs().max() == -of_group["gap"][0]
            alarms += (slices["adjusted"] < 0.05).any()
        shares = [f"{count / trials:.0%}" for count in (found, largest, alarms)]
        yield [share, np.mean(gaps), *shares]


def staleness_rows(trials: int) -> Rows:
    """Yield the loss per window of what is popular, of which a share is replaced each window."""
    n_windows, n_items, n_hits, n_users = 6, 400, 40, 400
    for share in (0.0, 0.05, 0.1, 0.2, 0.4):
        losses, periods = [], []
        for trial in range(max(1, trials // 10)):
            rng = np.random.default_rng(trial)
            hits = rng.permutation(n_items)[:n_hits]
            rows = []
            for window in range(n_windows):
                if window > 0:
                    replaced = rng.random(n_hits) < share
                    others = np.setdiff1d(np.arange(n_items), hits)
                    hits[replaced] = rng.permutation(others)[: replaced.sum()]
                # As many events before the first cut as in all windows after it.
                for _ in range(n_windows - 1 if window == 0 else 1):
                    users = np.repeat(np.arange(n_users), 4)
                    items = rng.choice(hits, len(users))
                    times = (
                        10**9 + 86_400 * window + rng.integers(86_400, size=len(users))
                    )
                    rows.append(
                        pl.DataFrame({"user": users, "item": items, "timestamp": times})
                    )
            ratings = Ratings.from_frame(
                pl.concat(rows).unique(["user", "item"], keep="first")
            )
            cuts = time_cuts(ratings, n_windows - 1)
            found = evaluate("popular", cuts, n=20, metrics=["ndcg"], resamples=200)
            period = found.refit_periods.row(0, named=True)
            losses.append(period["loss_per_window"])
            periods.append(period["refit_windows"])
        seen = [period for period in periods if period is not None]
        after = (
            f"{np.median(seen):.0f} windows"
            if len(seen) > len(periods) / 2
            else "none seen"
        )
        yield [
            share,
            np.mean(losses),
            np.std(losses),
            f"{len(seen)} of {len(periods)}",
            after,
        ]


def days(
    rng: np.random.Generator,
    rate: float,
    lift: float,
    per_day: int,
    n_days: int,
    returning: bool,
) -> Iterator[tuple[Ratio, Ratio]]:
    """Yield both groups at the end of each day: clicks and lists of users with own click rates."""
    n_users = 5 * per_day if returning else n_days * per_day
    second = rng.random(n_users) < 0.5
    rates = np.clip(rng.beta(5 * rate, 5 - 5 * rate, n_users) + lift * second, 0, 1)
    clicks, lists = np.zeros(n_users), np.zeros(n_users)
    for day in range(n_days):
        users = np.arange(day * per_day, (day + 1) * per_day)
        if returning:
            users = rng.permutation(n_users)[:per_day]
        n_lists = 1 + rng.poisson(1, per_day)
        clicks[users] += rng.binomial(n_lists, rates[users])
        lists[users] += n_lists
        a, b = ((lists > 0) & (second == group) for group in (False, True))
        yield Ratio(clicks[a], lists[a]), Ratio(clicks[b], lists[b])


def online_rows(trials: int) -> Rows:
    """Yield how often intervals have held the truth on all days, and on the last one."""
    for rate, lift, per_day, returning in (
        (0.02, 0.0, 50, False),
        (0.1, 0.0, 50, False),
        (0.1, 0.03, 50, False),
        (0.3, 0.0, 20, False),
        (0.02, 0.0, 50, True),
        (0.1, 0.0, 50, True),
    ):
        held = np.zeros((trials, 3))
        for trial in range(trials):
            rng = np.random.default_rng(trial)
            # The mean of clipped rates is not exactly the lift.
            always, fixed = [], [True]
            for a, b in days(rng, rate, lift, per_day, 60, returning):
                low, high, _ = at_any_time(a, b, 0.95)
                if low is None or high is None:
                    continue
                difference = b.value - a.value
                error = np.hypot(standard_error(a), standard_error(b))
                always.append(low <= lift <= high)
                fixed.append(abs(difference - lift) <= 1.96 * error)
            held[trial] = all(always), all(fixed), fixed[-1]
        shares = [f"{share:.1%}" for share in held.mean(axis=0)]
        yield [rate, lift, per_day, "yes" if returning else "no", *shares]


def plan_rows(trials: int) -> Rows:
    """Yield the share of planned tests that find the planned difference."""
    for rate, difference in ((0.05, 0.02), (0.1, 0.03), (0.3, 0.05)):
        plan = plan_online_test(rate, difference)
        # 200 users a day, of both models together.
        n_days = -(-int(plan["users"]) // 100)
        n_days_any_time = -(-int(plan["users_any_time"]) // 100)
        fixed = found = 0
        ends = []
        for trial in range(trials):
            rng = np.random.default_rng(trial)
            n_users = 200 * n_days_any_time
            second = rng.random(n_users) < 0.5
            clicks = (rng.random(n_users) < rate + difference * second).astype(float)
            end = None
            for day in range(1, n_days_any_time + 1):
                until = slice(0, 200 * day)
                a, b = (
                    Ratio(values, np.ones(len(values)))
                    for values in (
                        clicks[until][~second[until]],
                        clicks[until][second[until]],
                    )
                )
                p_value = at_any_time(a, b, 0.95)[2]
                if end is None and p_value is not None and p_value < 0.05:
                    end = day
                if day == n_days:
                    error = np.hypot(standard_error(a), standard_error(b))
                    fixed += b.value - a.value > 1.96 * error
            found += end is not None
            ends.append(end or n_days_any_time)
        yield [
            rate,
            difference,
            f"{plan['users']:,} ({n_days} days)",
            f"{fixed / trials:.1%}",
            f"{plan['users_any_time']:,} ({n_days_any_time} days)",
            f"{found / trials:.1%}",
            f"{np.median(ends):.0f}",
        ]


def chance_rows(trials: int) -> Rows:
    """Yield the error of calibrated chances where the true ones are known."""
    from recsys.ranking.chance import Chances
    from recsys.ranking.topn import TopN

    for n_lists in (200, 1000, 10_000):
        for by in ("score", "rank"):
            errors, extremes, chosen = [], [], 0
            for trial in range(max(1, trials // 10)):
                rng = np.random.default_rng(trial)
                scores = -np.sort(
                    -rng.normal(size=(n_lists, 10)).astype(np.float32), axis=1
                )
                truth = 1 / (1 + np.exp(2 - scores))
                if by == "rank":
                    truth = np.broadcast_to(0.4 / np.arange(1, 11), scores.shape)
                chances = Chances.fit(scores, rng.random(scores.shape) < truth)
                ranks = np.tile(np.arange(1, 11, dtype=np.int32), n_lists)
                rows = np.repeat(np.arange(n_lists), 10)
                top = TopN(rows, np.zeros(len(rows), np.int32), ranks, scores.ravel())
                error = np.abs(chances.of(top) - truth.ravel())
                errors.append(error.mean())
                extremes.append(error.max())
                chosen += chances.by == by
            yield [
                by,
                f"{n_lists:,}",
                np.mean(errors),
                np.mean(extremes),
                f"{chosen} of {len(errors)}",
            ]


def real_rows(_trials: int) -> Rows:
    """Yield how well chances hold for other users than they were calibrated on."""
    for name in ("ml-latest-small", "lastfm"):
        split = random_split(_interactions(name))
        models = ["popular", "ease", "ials"]
        found = evaluate(models, split, n=10, metrics=["ndcg"], resamples=0)
        for model in models:
            bins = found.reliability.filter(model=model)
            shares = bins["count"] / bins["count"].sum()
            taken = (shares * bins["taken"]).sum()
            gaps = (bins["taken"] - bins["chance"]).abs()
            yield [
                name,
                model,
                f"{found.counts['users_evaluated']:,}",
                f"{bins['chance'].min():.4f} to {bins['chance'].max():.3f}",
                f"{(shares * bins['brier']).sum():.4f}",
                f"{taken * (1 - taken):.4f}",
                f"{(shares * gaps).sum():.4f}",
            ]


def later_rows(_trials: int) -> Rows:
    """Yield the mean chance, and what is taken in later windows than those of the calibration."""
    films = read_ratings(datasets() / "ml-latest-small", implicit=True)
    clicks = pl.read_csv(datasets() / "yoochoose" / "clicks.txt", separator="\t")
    sources = {
        "generated": [returning_users(seed, 0.0) for seed in range(4)],
        "generated, tastes drift": [returning_users(seed, 0.2) for seed in range(4)],
        "ml-latest-small": [films],
        "yoochoose": [Ratings.from_frame(clicks)],
    }
    for name, data in sources.items():
        for model in ("popular", "ials"):
            found = [
                later_window(ratings, model, share)
                for ratings in data
                for share in (0.5, 0.6, 0.7)
            ]
            users, chance, *taken = np.mean(found, axis=0)
            shares = [f"{share / chance:.2f}" for share in taken]
            yield [name, model, f"{users:.0f}", f"{chance:.4f}", *shares]


def returning_users(seed: int, drift: float) -> Ratings:
    """Return what users take who come back in two of five weeks, of items that they lack."""
    rng = np.random.default_rng(seed)
    users = rng.normal(size=(800, 4))
    items = rng.normal(size=(200, 5))
    taken = np.zeros((800, 200), np.bool_)
    frames = []
    for week in range(14):
        active = np.flatnonzero(rng.random(800) < 0.4)
        scores = 0.6 * users[active] @ items[:, :4].T + items[:, 4]
        scores[taken[active]] = -np.inf
        order = np.argsort(-scores - rng.gumbel(size=scores.shape), axis=1)
        n_taken = rng.poisson(1.5, len(active)) + 1
        rows = np.repeat(np.arange(len(active)), n_taken)
        ranks = np.arange(len(rows)) - np.repeat(np.cumsum(n_taken) - n_taken, n_taken)
        pairs = active[rows], order[rows, ranks]
        taken[pairs] = True
        times = 1_600_000_000 + 604_800 * week + rng.integers(604_800, size=len(rows))
        frames.append(
            pl.DataFrame({"user": pairs[0], "item": pairs[1], "timestamp": times})
        )
        items = np.sqrt(1 - drift**2) * items + drift * rng.normal(size=items.shape)
    return Ratings.from_frame(pl.concat(frames))


def later_window(ratings: Ratings, model: str, share: float) -> list[float]:
    """Return users of the calibration, the mean chance, and the shares taken in three windows.

    The model is fitted to a share of the events and calibrated within it. Windows have as many
    events as were held out: the first one, the first two, and the third one.
    """
    times = np.sort(np.asarray(ratings.seconds))
    n_train = int(share * len(times))
    cut = times[n_train]
    train = ratings.take(np.asarray(ratings.seconds) < cut)
    recommender = calibrate(Recommender(model).fit(train, features=False))
    row = [float(recommender.chances.users), 0.0]
    for first, last in ((0.0, 0.1), (0.0, 0.2), (0.2, 0.3)):
        ends = [int(n_train * (1 + end)) for end in (first, last)]
        low, high = times[np.minimum(ends, len(times) - 1)]
        seconds = np.asarray(ratings.seconds)
        test = ratings.take((seconds >= low) & (seconds < high))
        split = Split(recommender.ratings, test).without_new()
        taken = split.test.to_frame().select("user", "item")
        users = taken["user"].unique().to_list()
        lists = recommender.recommend(users, n=10, chance=True)
        row[1] = float(lists["chance"].mean()) if first + last == 0.1 else row[1]
        n_taken = len(lists.join(taken, on=["user", "item"]))
        row.append(n_taken / max(1, len(lists)))
    return row


def _interactions(name: str) -> Ratings:
    if name == "ml-latest-small":
        frame = pl.read_csv(datasets() / name / "ratings.csv").rename(
            {"userId": "user", "movieId": "item"}
        )
        return Ratings.from_frame(frame.select("user", "item"))
    parts = [
        read_ratings(datasets() / name / f"{part}.tsv") for part in ("train", "test")
    ]
    frames = [part.to_frame().select("user", "item") for part in parts]
    return Ratings.from_frame(pl.concat(frames).unique(maintain_order=True))


TABLES: dict[str, tuple[list[str], Callable[[int], Rows]]] = {
    "groups": (
        ["share at random", "gap of NDCG@5", "found", "largest gap", "any group"],
        group_rows,
    ),
    "staleness": (
        ["replaced per window", "loss per window", "deviation", "refit gains", "after"],
        staleness_rows,
    ),
    "online": (
        [
            "rate",
            "difference",
            "users a day",
            "returning",
            "at any time",
            "one look, each day",
            "one look, last day",
        ],
        online_rows,
    ),
    "plans": (
        [
            "rate",
            "difference",
            "users, one look",
            "found",
            "users, any time",
            "found",
            "median day",
        ],
        plan_rows,
    ),
    "chances": (
        ["planted by", "lists", "mean error", "largest", "chosen"],
        chance_rows,
    ),
    "later": (
        [
            *("data", "model", "users", "mean chance"),
            *("taken / chance", "in two windows", "in the third"),
        ],
        later_rows,
    ),
    "real": (
        [
            *("data", "model", "users", "chances"),
            *("Brier", "Brier of the mean", "calibration error"),
        ],
        real_rows,
    ),
}


if __name__ == "__main__":
    main()
