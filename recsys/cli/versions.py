"""`recsys versions`, `monitor` and `compare --online`: saved models in use."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
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
from recsys.messages import counted

if TYPE_CHECKING:
    import polars as pl

    from recsys.cli.evaluate import PlanOptions
    from recsys.evaluation import Evaluation
    from recsys.evaluation.monitoring import Monitoring, OnlineTest

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
_TESTS = "randomization test: random groups of users of the same sizes"


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
    by: tuple[str, ...] = cli.declared(
        "COLUMN",
        "Groups of items: a column, or popularity.",
        multiple=True,
        commas=True,
    ),
    by_user: tuple[str, ...] = cli.declared(
        "COLUMN", "Groups of users: a column, or activity.", multiple=True, commas=True
    ),
    seed: int = cli.declared(
        "N", "Random seed.", default=0, type=click.IntRange(min=0)
    ),
) -> None:
    """Compare new ratings with the ratings of a saved model.

    The output is a table with the shares of unknown users and items; the drift of the ratings and
    of the popularity of items since the newest ratings of the model, measured by the population
    stability index; and the errors and ranking metrics on the new ratings, with 95% intervals. The
    column reference has the drift expected by chance, and earlier metrics, of the fit and of
    the last `recsys evaluate MODEL`. JSON also has the shares of the groups that define the drift.
    RATINGS are read as for the model.
    """
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
    if report is not None:
        if result.evaluation is None:
            sentence = "No report: no new rating has a known user and a known item."
            raise CommandError(sentence)
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


def plan_online(
    sizes: PlanOptions,
    log: str | None,
    clicks: Sequence[str],
    reader: cli.ReaderOptions,
    output: Output,
) -> None:
    """Print how many users and days an online test needs.

    Raises
    ------
    UsageError
        If the difference, or both the rate and a log, are missing.
    """
    from recsys.evaluation.planning import (
        Baseline,
        baselines,
        plan_online_test,
        users_per_day,
    )

    text = sizes.difference or ""
    number = text.strip().removesuffix("%")
    try:
        difference = float(number)
    except ValueError:
        raise click.UsageError(
            f"--plan needs --difference, such as 0.01 or 5%; got {text!r}."
        ) from None
    if (sizes.rate is None) == (log is None):
        raise click.UsageError("--plan needs either --rate X, or --online LOG CLICKS.")
    traffic = sizes.traffic
    if sizes.rate is not None:
        measured = [Baseline.of_rate(sizes.rate)]
    else:
        lists, columns = _log_and_clicks(str(log), clicks, reader)
        measured = baselines(lists, columns)
        traffic = traffic or users_per_day(lists)
    rows = []
    for baseline in measured:
        smallest = difference
        if number != text.strip():
            smallest = difference / 100 * baseline.rate
        row = plan_online_test(
            baseline,
            smallest,
            power=sizes.power,
            confidence=1 - sizes.level,
            traffic=traffic,
        )
        rows.append(row)
    import polars as pl

    table = pl.DataFrame(rows)
    document = {
        "command": "compare",
        "power": sizes.power,
        "level": sizes.level,
        "traffic": traffic,
        "plans": rows,
    }
    legend = (
        f"users of each model, for a power of {sizes.power:g} at level {sizes.level:g}: with one "
        "look at the end, and with intervals at any time"
    )
    rounded = table.with_columns(pl.col("rate", "difference").round(5))
    output.write_document(document, table, rounded, legend)


def _log_and_clicks(
    log: str, clicks: Sequence[str], reader: cli.ReaderOptions
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
            ("lists_without_probabilities", "without probabilities"),
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
        "intervals": "percentile bootstrap over users",
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
