"""`recsys monitor`: new ratings next to those of a saved model."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

import click

from recsys.cli import options as cli
from recsys.cli.errors import CommandError, require
from recsys.cli.output import Output, check_file, parsed_gates, report_verdicts
from recsys.cli.progress import Activity

if TYPE_CHECKING:
    from recsys.evaluation import Evaluation
    from recsys.evaluation.monitor import Monitoring

_NAMES = (
    *("new_ratings", "unknown_users", "unknown_items", "unknown_ratings", "repeated_ratings"),
    *("ratings_drift", "popularity_drift", "mean_rating", "catalogue_used", "rmse", "mae"),
)
_OF_LISTS = ("recall", "ndcg", "coverage")


@cli.command(
    "monitor",
    examples=[
        "recsys monitor model today.csv",
        "recsys monitor models/latest postgresql://shop@localhost/shop --since 2025-06-09 --json",
        "recsys monitor model today.csv --fail-if 'popularity_drift > 0.25' --report today.html",
    ],
)
@click.argument("model")
@cli.ratings_argument
@cli.option("-n", "n", default=10, help="Length of the recommendations.", **cli.COUNT)
@cli.option("--report", metavar="FILE.html", help="HTML page with tables and charts.")
@cli.option(
    "--fail-if",
    metavar="CONDITION",
    multiple=True,
    help='Exit with 1 if "NAME > X" (or <, <=, >=) of a row of the table; repeatable.',
)
@cli.seed_option()
@cli.output_options
@cli.reader_options()
def monitor(
    model: str,
    ratings: tuple[str, ...],
    n: int,
    report: str | None,
    fail_if: tuple[str, ...],
    seed: int,
    output: Output,
    reader: cli.ReaderOptions,
) -> None:
    """Compare new ratings with those of a saved model.

    One table: the share of unknown users and items; the drift of the ratings and of the popularity
    of the items since the newest ratings of the model, by the population stability index, next to
    what chance alone gives; and the error and the ranking metrics on the new ratings, with 95%
    intervals, next to those of the fit and of the last `recsys evaluate MODEL`. JSON also has the
    shares of the groups. RATINGS are read as those of the model were.
    """
    from recsys.cli.evaluate import write_report
    from recsys.cli.inputs import load_model, load_ratings
    from recsys.evaluation import monitor
    from recsys.provenance import without_weights
    from recsys.versions import measured

    check_file(report, "--report", (".html",))
    gates = parsed_gates(fail_if, [*_NAMES, *(f"{name}@{n}" for name in _OF_LISTS)])
    loaded = load_model(model)
    is_implicit = reader.implicit or loaded.ratings.implicit
    like = without_weights(loaded.provenance.reading)
    new = load_ratings(ratings, replace(reader, implicit=is_implicit), like)
    before = next(reversed(measured(model)), None)
    reference = {name: value for name, (value, *_) in before.metrics.items()} if before else {}
    with Activity("Measuring"):
        found = monitor(loaded, new, n, reference=reference, random_state=seed)
    if report is not None:
        sentence = "No report: no new rating has a known user and a known item."
        require(found.evaluation is not None, sentence, CommandError)
        models = {loaded.model.name: loaded.model}
        write_report(cast("Evaluation", found.evaluation), models, report, monitoring=found)
    rows = found.table.to_dicts()
    document: dict[str, Any] = {
        "command": "monitor",
        "model": loaded.provenance.version,
        "period": loaded.provenance.period,
        "values": {row.pop("name"): row for row in rows},
        "groups": found.groups.to_dicts(),
    }
    output.write_document(document, found.table, _shown(found))
    report_verdicts([gate.bounded(found.values, loaded.model.name) for gate in gates])


def _shown(found: Monitoring) -> Any:
    """Return the table as people read it."""
    import polars as pl

    def number(value: float | None) -> str:
        if value is None:
            return ""
        return f"{value:,.0f}" if value == round(value) and abs(value) > 1 else f"{value:.4f}"

    rows = [
        {
            "name": row["name"],
            "value": number(row["value"]),
            "95% interval": ""
            if row["low"] is None
            else f"[{number(row['low'])}, {number(row['high'])}]",
            "reference": number(row["reference"]),
            "description": row["description"],
        }
        for row in found.table.to_dicts()
    ]
    return pl.DataFrame(rows)
