"""`recsys versions` and `monitor`: saved models in use."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from recsys import evaluation  # which imports nothing yet
from recsys.addresses import shown
from recsys.cli import inputs
from recsys.cli import options as cli
from recsys.cli.errors import CommandError, State
from recsys.cli.group import Group, words_of_settings
from recsys.cli.output import (
    Activity,
    Output,
    atomic_file,
    check_file,
    note,
    parsed_gates,
    report_verdicts,
)

if TYPE_CHECKING:
    from recsys.evaluation import Evaluation
    from recsys.evaluation.monitoring import Monitoring

_SHOWN = ("version", "model", "created")
_METRICS = ("rmse", "ndcg")  # metrics in the table on a terminal
_MARK = "*"
_NAMES = (
    "new_ratings",
    "unknown_users",
    "unknown_items",
    "unknown_ratings",
    "repeated_ratings",
    "ratings_drift",
    "popularity_drift",
    "mean_rating",
    "catalogue_used",
    "rmse",
    "mae",
)
_OF_LISTS = ("recall", "ndcg", "coverage")


@click.group(
    "versions",
    cls=Group,
    examples=[
        "recsys versions list models",
        "recsys versions promote models/2025-06-09",
    ],
)
@cli.common_options
def versions() -> None:
    """List saved models, and choose the one that is served."""


@cli.command(
    "list",
    examples=["recsys versions list models", "recsys versions list models --json"],
)
@click.argument("directory", type=cli.PLACE)
@cli.output_options
def list_(directory: str, output: Output) -> None:
    """List the saved models in a directory, the oldest first.

    The columns are the name of each model, with a mark if `latest` points to it; the time of its
    fit and the number of its ratings (or interactions, if no model has ratings); its --tag; and the
    last metrics of `recsys evaluate MODEL --test FILE`. JSON and CSV also have its id, the id of
    the model that it updates, the fingerprint of its ratings, and all metrics.
    """
    import polars as pl

    from recsys.saving.versions import list_versions

    versions = list_versions(directory)
    rows = versions.to_dicts()
    names = versions.columns
    metrics = [
        name for name in names if name.partition("@")[0] in _METRICS and "[" not in name
    ]
    number = "interactions" if "interactions" in names else "ratings"
    columns = [*_SHOWN, number, *metrics]
    if versions["tag"].count():
        columns.append("tag")
    mark = pl.when("latest").then(pl.lit(f" {_MARK}")).otherwise(pl.lit(""))
    # Seconds and the time zone (UTC) tell no reader anything.
    minute = pl.col("created").str.slice(0, 16).str.replace("T", " ")
    table = versions.with_columns(pl.col("version") + mark, minute).select(columns)
    legend = f"{_MARK} latest" if versions["latest"].any() else ""
    output.write_document({"versions": rows}, versions, table, legend)


@cli.command(
    "promote",
    examples=[
        "recsys versions promote models/2025-06-09",
        "recsys serve models/latest",
    ],
)
@click.argument("version", type=cli.PLACE)
def promote(version: str) -> None:
    """Point the link `latest` to a saved model next to it.

    The model is verified first. The link is replaced atomically, so that readers of DIR/latest see
    either the old or the new model. To go back, promote the previous version. Where symbolic links
    are not allowed, as for most users of Windows, this is an error.
    """
    from recsys.saving.versions import promote

    before, now = promote(version)
    was = f" (it was {before})" if before not in (None, now) else ""
    note(f"latest is {now}{was}")


versions.add_command(list_)
versions.add_command(promote)


@cli.command(
    "monitor",
    examples=[
        "recsys monitor model today.csv",
        "recsys monitor models/latest postgresql://shop@localhost/shop --since 2025-06-09 --json",
        "recsys monitor model today.csv --fail-if 'popularity_drift > 0.25' --report today.html",
    ],
)
@click.argument("model", type=cli.PLACE)
@cli.ratings_argument
@cli.output_options
@cli.reader_options()
def monitor(
    model: str,
    ratings: tuple[str, ...],
    output: Output,
    reader: cli.ReaderOptions,
    n: int = cli.declared(
        "N",
        "Number of items to recommend to each user.",
        "-n",
        default=10,
        type=cli.COUNT,
    ),
    report: str | None = cli.declared(
        "FILE.html", "HTML page to write, with tables and charts."
    ),
    fail_if: tuple[str, ...] = cli.declared(
        "CONDITION",
        'Condition for exit code 1 on a row of the table: "NAME > X" (or <, <=, >=); repeatable.',
        multiple=True,
    ),
    by: tuple[str, ...] = cli.groups("items", "popularity"),
    by_user: tuple[str, ...] = cli.groups("users", "activity"),
    seed: int = cli.seed(),
) -> None:
    """Compare new ratings with the ratings of a saved model.

    The output is a table with the shares of unknown users and items; the drift of the ratings and
    of the popularity of items since the newest ratings of the model, measured by the population
    stability index; and the errors and ranking metrics on the new ratings, with 95% intervals. The
    column reference has the drift expected by chance, and earlier metrics, of the fit and of
    the last `recsys evaluate MODEL`. JSON also has the shares of the groups that define the drift.
    RATINGS are read as for the model.
    """
    from recsys.cli.split import note_doubts
    from recsys.evaluation.gates import with_groups
    from recsys.provenance import without_weights
    from recsys.saving.versions import measured

    check_file(report, "--report", (".html",))
    gates = parsed_gates(fail_if, [*_NAMES, *(f"{name}@{n}" for name in _OF_LISTS)])
    loaded = inputs.load_model(model)
    # New ratings are compared as they are, not faded by their age.
    reading = without_weights(loaded.provenance.reading)
    like = reading | {"implicit": loaded.ratings.implicit}
    new = inputs.load_ratings(ratings, reader, like).as_interactions()
    note_doubts(loaded.ratings, new)
    groups = with_groups(gates, loaded.ratings, by, by_user)
    # The last measurement is the reference.
    before = next(reversed(measured(model)), None)
    reference = {}
    if before is not None:
        reference = {name: value for name, (value, *_) in before.metrics.items()}
    with Activity("Measuring"):
        result = evaluation.monitor(
            loaded,
            new,
            n,
            reference=reference,
            by=groups[0],
            by_user=groups[1],
            random_state=seed,
        )
    if result.evaluation is None:
        reason = "no new rating has a known user and item, and is of a new pair"
        if report is not None:
            raise CommandError(f"No report: {reason}.")
        note(f"no metrics and no groups: {reason}")
    elif report is not None:
        write_report(result.evaluation, report, monitoring=result)
    rows = result.table.to_dicts()
    document: dict[str, Any] = {
        "command": "monitor",
        "model": loaded.provenance.version,
        "period": loaded.provenance.period,
        "values": {row.pop("name"): row for row in rows},
        "groups": result.groups.to_dicts(),
    }
    output.write_document(document, result.table, _shown(result))
    report_verdicts([gate.bounded(result.values, loaded.model.name) for gate in gates])


def _shown_words() -> list[str]:
    """Return words that repeat a command, without users and passwords of addresses.

    Settings in the environment and in recsys.toml are options at the end.
    """
    context = click.get_current_context()
    shown_words = []
    for word in (*context.ensure_object(State).words, *words_of_settings(context)):
        name, equals, value = "", "", word
        if word.startswith("-"):
            name, equals, value = word.partition("=")
        shown_words.append(f"{name}{equals}{shown(value)}")
    return shown_words


def write_report(
    result: Evaluation,
    path: str,
    monitoring: Monitoring | None = None,
) -> None:
    """Write the HTML report, with the command line and the versions of libraries."""
    import platform

    from lowrank.kernels import backend
    from recsys import __version__
    from recsys.cli.info import library_versions

    page = evaluation.html_report(
        result,
        monitoring=monitoring,
        command=shlex.join(["recsys", *_shown_words()]),
        versions={
            "recsys": __version__,
            "kernels": str(backend()),
            "Python": platform.python_version(),
            **library_versions(),
            "system": f"{platform.system()} {platform.machine()}",
        },
    )
    with atomic_file(Path(path)) as stream:
        # A file name need not be text.
        stream.write(page.encode(errors="backslashreplace"))
    note(f"the report is in {path}")


def _shown(result: Monitoring) -> Any:
    """Return the table with formatted numbers."""
    import polars as pl

    def number(value: float | None) -> str:
        if value is None:
            return ""
        is_count = value == round(value) and abs(value) > 1
        return f"{value:,.0f}" if is_count else f"{value:.4f}"

    rows = []
    for row in result.table.to_dicts():
        interval = ""
        if row["low"] is not None:
            interval = f"[{number(row['low'])}, {number(row['high'])}]"
        rows.append(
            {
                "name": row["name"],
                "value": number(row["value"]),
                "95% interval": interval,
                "reference": number(row["reference"]),
                "description": row["description"],
            }
        )
    return pl.DataFrame(rows)
