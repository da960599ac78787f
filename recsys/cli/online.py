"""`recsys compare --online` and `--plan`: two models in the log of a service."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from recsys.cli import inputs
from recsys.cli import options as cli
from recsys.cli.output import Activity, Output, note
from recsys.messages import counted

if TYPE_CHECKING:
    import polars as pl

    from recsys.evaluation.monitoring import OnlineTest

_TESTS = "randomization test: random groups of users of the same sizes"


@dataclass(frozen=True, kw_only=True)
class PlanOptions:
    """Options of the sizes of an online test."""

    rate: float | None = cli.declared(
        "X", "Share of users who click now.", type=cli.INNER_SHARE
    )
    difference: str | None = cli.declared(
        "X", "Smallest difference to detect, such as 0.01, or 5% of the rate."
    )
    power: float = cli.declared(
        "X", "Probability of detecting it.", default=0.8, type=cli.INNER_SHARE
    )
    level: float = cli.declared(
        "X", "Probability of a false alarm.", default=0.05, type=cli.INNER_SHARE
    )


def plan_online(sizes: PlanOptions, output: Output) -> None:
    """Print how many users an online test needs.

    Raises
    ------
    UsageError
        If the rate or the difference is missing.
    """
    from recsys.evaluation.planning import plan_online_test

    text = sizes.difference or ""
    number = text.strip().removesuffix("%")
    try:
        difference = float(number)
    except ValueError:
        raise click.UsageError(
            f"--plan needs --difference, such as 0.01 or 5%; got {text!r}."
        ) from None
    if sizes.rate is None:
        raise click.UsageError("--plan needs --rate, the share of users who click now.")
    # A percentage is of the rate.
    if number != text.strip():
        difference = difference / 100 * sizes.rate
    plan = plan_online_test(
        sizes.rate,
        difference,
        power=sizes.power,
        confidence=1 - sizes.level,
    )
    import polars as pl

    table = pl.DataFrame([plan])
    document = {
        "command": "compare",
        "power": sizes.power,
        "level": sizes.level,
        "plans": [plan],
    }
    legend = (
        f"users of each model, for a power of {sizes.power:g} at level {sizes.level:g}: with one "
        "look at the end, and with intervals at any time"
    )
    rounded = table.with_columns(pl.col("rate", "difference").round(5))
    output.write_document(document, table, rounded, legend)


def _log_and_clicks(
    log: str,
    clicks: Sequence[str],
    reader: cli.ReaderOptions,
) -> tuple[pl.DataFrame, dict[str, pl.Series]]:
    """Read the log of a service, and the clicks on its lists."""
    from recsys.evaluation.monitoring import read_lists

    if len(clicks) != 1:
        raise click.UsageError(
            "--online FILE takes one file of clicks: user, item, timestamp."
        )
    with Activity("Reading the log"):
        lists = read_lists(log)
        columns = inputs.load_pairs(clicks[0], reader)
    if "timestamp" not in columns:
        note("the clicks have no times: each counts for the last list with its item")
    return lists, columns


def compare_online(
    log: str,
    clicks: Sequence[str],
    reader: cli.ReaderOptions,
    output: Output,
    seed: int,
) -> None:
    """Print how users click on the lists of two models in the log of a service.

    With saved models among the sources, print what their lists would have been clicked instead.

    Raises
    ------
    UsageError
        If there is not exactly one source of clicks.
    """
    from recsys import __version__
    from recsys.evaluation.monitoring import CLICKS, online_test

    models = [source for source in clicks if inputs.is_model(source)]
    clicks = [source for source in clicks if source not in models]
    lists, columns = _log_and_clicks(log, clicks, reader)
    if models:
        _write_off_policy(lists, columns, models, output, seed)
        return
    with Activity("Testing"):
        result = online_test(lists, columns, random_state=seed)
    for variant in ("a", "b"):
        of = result.counts[variant]
        counts = f"{counted(of['lists'], 'list')} to {counted(of['users'], 'user')}"
        note(f"{variant}: {counts}, of {', '.join(of['models'])}")
    used, total = result.counts["clicks_on_lists"], result.counts["clicks"]
    note(f"{used:,} of {counted(total, 'click')} are on an item of a list before them")
    if n := result.counts["users_of_both"]:
        note(f"{counted(n, 'user')} with lists of both models left out")
    if n := result.counts["lists_of_strangers"]:
        note(
            f"{counted(n, 'list')} of users without a name, or without a variant, left out"
        )
    document: dict[str, Any] = {
        "command": "compare",
        "version": __version__,
        "seed": seed,
        "counts": result.counts,
        "confidence": result.confidence,
        "intervals": "BCa bootstrap over users, for one look at a fixed end; always_low and "
        "always_high: asymptotic confidence sequence, for any number of looks",
        "tests": _TESTS,
        "definitions": CLICKS,
        "comparisons": result.metrics.to_dicts(),
    }
    output.write_document(document, result.metrics, *_table(result))


def _write_off_policy(
    lists: pl.DataFrame,
    clicks: dict[str, pl.Series],
    models: Sequence[str],
    output: Output,
    seed: int,
) -> None:
    """Print the value that the lists of other models would have had."""
    import polars as pl

    from recsys import __version__
    from recsys.evaluation.offpolicy import ESTIMATORS, off_policy_value

    frames = []
    documents = []
    tables = []
    for path in models:
        with Activity("Recommending"):
            target = _lists_of(path, lists)
            result = off_policy_value(lists, clicks, target, random_state=seed)
        counts = result.counts
        note(
            f"{path}: {counted(counts['lists'], 'list')} to "
            f"{counted(counts['users'], 'user')} with {counts['clicks_on_lists']:,} clicks; "
            f"effective sample size {result.effective_sample_size:,.0f}; the log may have shown "
            f"{min(result.support, 1):.0%} of its items"
        )
        for name, reason in (
            ("lists_without_probabilities", "without a named user or probabilities"),
            ("lists_of_other_users", "of users whom the model does not know"),
        ):
            if counts[name]:
                note(f"{counted(counts[name], 'list')} {reason} left out")
        values = result.values.select(pl.lit(path).alias("model"), pl.all())
        frames.append(values)
        bounds = pl.format("[{}, {}]", pl.col("low").round(4), pl.col("high").round(4))
        value = pl.col("value").round(4)
        interval = bounds.alias("95% interval")
        tables.append(values.select("model", "estimator", value, interval))
        documents.append(
            {
                "model": path,
                "values": result.values.to_dicts(),
                "effective_sample_size": result.effective_sample_size,
                "support": result.support,
                "counts": counts,
            }
        )
    document = {
        "command": "compare",
        "version": __version__,
        "seed": seed,
        "confidence": 0.95,
        "intervals": "BCa bootstrap over users",
        "definitions": ESTIMATORS,
        "models": documents,
    }
    legend = (
        "clicks per list; logged: of the log; ips, snips, dr: of the model (estimated)"
    )
    output.write_document(document, pl.concat(frames), pl.concat(tables), legend)


def _lists_of(path: str, lists: pl.DataFrame) -> pl.DataFrame:
    """Return the lists of a saved model for the users of a log whom it knows."""
    recommender = inputs.load_model(path)
    users = recommender.ratings.users
    # Users of a log may be unknown by now, and texts for integers.
    logged = users.like(lists["user"].drop_nulls().unique().sort()).drop_nulls()
    known = logged.filter(users.find(logged) >= 0)
    longest = int(lists["rank"].to_numpy().max())
    return recommender.recommend(known, longest)


def _table(result: OnlineTest) -> tuple[Any, str]:
    """Return the table for a terminal, and its legend."""
    import polars as pl

    level = 1 - result.confidence
    rows = []
    for row in result.metrics.to_dicts():
        mark = " *" if row["p_value"] < level else ""
        always = "-"
        if row["always_low"] is not None:
            always = f"[{row['always_low']:+.4f}, {row['always_high']:+.4f}]"
        rows.append(
            {
                "metric": row["metric"],
                "a": f"{row['a']:.4f}",
                "b": f"{row['b']:.4f}",
                "b - a": f"{row['difference']:+.4f} {row['verdict'] or ''}".rstrip(),
                f"{result.confidence:.0%} interval": (
                    f"[{row['low']:+.4f}, {row['high']:+.4f}]"
                ),
                "p": f"{row['p_value']:.4f}{mark}",
                "at any time": always,
            }
        )
    legend = f"p: {_TESTS}; * below {level:.2g}; at any time: however often one looks"
    return pl.DataFrame(rows), legend
