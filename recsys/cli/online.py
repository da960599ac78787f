"""`recsys compare --online`: the result of an A/B test."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from recsys.cli import inputs
from recsys.cli.progress import Activity, note
from recsys.messages import counted

if TYPE_CHECKING:
    from recsys.cli.options import ReaderOptions
    from recsys.cli.output import Output
    from recsys.evaluation.online import OnlineTest

_TESTS = "randomization test: random groups of users of the same sizes"


def compare_online(
    log: str, clicks: Sequence[str], reader: ReaderOptions, output: Output, seed: int
) -> None:
    """Print how users of two models, whose lists a service has logged, click on them.

    Raises
    ------
    UsageError
        If there is not one source of clicks.
    """
    from recsys import __version__
    from recsys.evaluation.online import METRICS, online_test, read_lists

    if len(clicks) != 1:
        raise click.UsageError("--online FILE takes one file of clicks: user, item, timestamp.")
    with Activity("Reading the log"):
        lists = read_lists(log)
        columns = inputs.load_columns(clicks[0], reader)
    if "timestamp" not in columns:
        note("the clicks have no times: each counts for the last list with its item")
    with Activity("Testing"):
        found = online_test(lists, columns, random_state=seed)
    for variant in ("a", "b"):
        of = found.counts[variant]
        shown = f"{counted(of['lists'], 'list')} to {counted(of['users'], 'user')}"
        note(f"{variant}: {shown}, of {', '.join(of['models'])}")
    used, total = found.counts["clicks_on_lists"], found.counts["clicks"]
    note(f"{used:,} of {counted(total, 'click')} are on an item of a list before them")
    if n := found.counts["users_of_both"]:
        note(f"{counted(n, 'user')} with lists of both models left out")
    if n := found.counts["lists_of_strangers"]:
        note(f"{counted(n, 'list')} of users without a name, or without a variant, left out")
    document: dict[str, Any] = {
        "command": "compare",
        "version": __version__,
        "seed": seed,
        "counts": found.counts,
        "confidence": found.confidence,
        "intervals": "percentile bootstrap over users",
        "tests": _TESTS,
        "definitions": METRICS,
        "comparisons": found.metrics.to_dicts(),
    }
    output.write_document(document, found.metrics, *_table(found))


def _table(found: OnlineTest) -> tuple[Any, str]:
    """Return the table for a terminal, and its legend."""
    import polars as pl

    level = 1 - found.confidence
    rows = found.metrics.to_dicts()
    table = pl.DataFrame(
        {
            "metric": [row["metric"] for row in rows],
            "a": [f"{row['a']:.4f}" for row in rows],
            "b": [f"{row['b']:.4f}" for row in rows],
            "b - a": [f"{row['difference']:+.4f}" for row in rows],
            f"{found.confidence:.0%} interval": [
                f"[{row['low']:+.4f}, {row['high']:+.4f}]" for row in rows
            ],
            "p": [f"{row['p_value']:.4f}" + " *" * (row["p_value"] < level) for row in rows],
        }
    )
    return table, f"p: {_TESTS}; * below {level:.2g}"
