"""Fitting, recommending and evaluating with ``--engine spark``."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from recsys.cli import inputs
from recsys.cli.errors import CommandError
from recsys.cli.options import EngineOptions, FitOptions, ReaderOptions
from recsys.cli.output import Activity, note
from recsys.messages import counted

if TYPE_CHECKING:
    from recsys.cli.output import Output
    from recsys.data.columns import Request
    from recsys.ranking.lists import ListOptions

_READ = frozenset(
    {
        "--user-col",
        "--item-col",
        "--rating-col",
        "--timestamp-col",
        "--weight-col",
        "--sep",
        "--encoding",
        "--implicit",
        "--duplicates",
        "--scale",
        "--time-format",
        "--as-of",
        "--no-features",
    }
)
"""Options for reading that also apply to Spark."""
_OF_WEIGHTS = ("--event-weight", "--impressions", "--half-life")
_TABLES = ("--features", "--item-table", "--user-table")


def fit_on_spark(
    ratings: str,
    out: str,
    engine: EngineOptions,
    fitting: FitOptions,
    reader: ReaderOptions,
    *,
    holdout: float | None,
    force: bool,
) -> None:
    """Fit a model and save it, for `recsys fit`.

    Raises
    ------
    CommandError
        If a number of threads is given, because the cluster sets it.
    """
    # Executors have their own number of cores, which this process cannot change.
    if fitting.threads is not None:
        instead = "use --master local[N], or set spark.executor.cores by --conf"
        raise CommandError(f"--threads does not apply to --engine spark; {instead}.")
    from recsys import spark
    from recsys.spark.results import MODELS

    request = _request(reader)

    # Without a name, the data decide between the models.
    models = [fitting.model] if fitting.model else MODELS
    by_model = inputs.parameters_for(models, fitting, shared=False).values()
    parameters: dict[str, Any] = {
        name: value for values in by_model for name, value in values.items()
    }
    with _on_cluster("Fitting on Spark", engine) as cluster:
        result = spark.fit(
            ratings,
            out,
            model=fitting.model,
            columns=request,
            duplicates=reader.options.get("duplicates"),
            test_fraction=holdout,
            overwrite=force,
            random_state=fitting.seed,
            **cluster,
            **parameters,
        )
    counts = result.training
    if counts["remarks"] is not None:
        note(counts["remarks"])
    if counts["validation_rmse"] is not None:
        note(f"held-out RMSE {counts['validation_rmse']:.4f}")
    note(
        f"fitted {result.model} to {counts['users']:,} users x {counts['items']:,} items, "
        f"{counts['ratings']:,} {'interactions' if result.implicit else 'ratings'} in "
        f"{counts['seconds']:.1f} s, saved in {out}"
    )


def recommend_on_spark(
    model: str,
    out: str,
    n: int,
    engine: EngineOptions,
    options: ListOptions,
) -> None:
    """Recommend to all users, for `recsys recommend`; items of `options` are files of ids.

    Raises
    ------
    CommandError
        If items are blocked for single users.
    """
    from recsys import spark
    from recsys.data.columns import Request
    from recsys.readers.id_lists import read_block, read_ids

    ids: dict[str, Any] = {}
    if options.items is not None:
        ids["items"] = read_ids(str(options.items), "item")
    if options.block is not None:
        blocked = read_block(str(options.block), Request())
        if "user" in blocked.columns:
            raise CommandError(
                f"{options.block} has users; --engine spark blocks items for all users only."
            )
        ids["block"] = blocked["item"].to_list()
    with _on_cluster("Recommending on Spark", engine) as cluster:
        spark.recommend(
            model,
            out,
            n,
            exclude_seen=options.exclude_seen,
            overwrite=True,
            **ids,
            **cluster,
        )
    note(f"recommended {n} items to each user, written to {out}")


def evaluate_on_spark(
    model: str,
    test: str,
    n: int,
    engine: EngineOptions,
    reader: ReaderOptions,
    output: Output,
) -> None:
    """Evaluate a model, for `recsys evaluate`."""
    import polars as pl

    from recsys import __version__, spark
    from recsys.evaluation import METRICS

    request = _request(reader)
    with _on_cluster("Evaluating on Spark", engine) as cluster:
        result = spark.evaluate(model, test, n, columns=request, **cluster)
    counts = result.counts
    for remark in result.remarks:
        note(remark)
    note(
        f"tested on {counted(counts['test_ratings'], 'rating')}; recommended to "
        f"{counted(counts['users_evaluated'], 'user')}; "
        f"{counted(counts['unknown_ratings'], 'test rating')} of unknown users or items left out"
    )
    if counts["known_pairs"]:
        known = counted(counts["known_pairs"], "test pair")
        note(f"{known} left out that the training part has")
    row = {"model": model} | {
        name: metric.value for name, metric in result.metrics.items()
    }
    table = pl.DataFrame([row | {"users": counts["users_evaluated"]}])
    if output.resolved_format != "json":
        output.write(table)
        return
    metrics: dict[str, dict[str, Any]] = {}
    for name, metric in result.metrics.items():
        users = {"interval": metric.interval, "users": metric.count}
        metrics[name] = {"value": metric.value}
        metrics[name] |= {"ratings": metric.count} if name in ("rmse", "mae") else users
    document = {
        "command": "evaluate",
        "version": __version__,
        "engine": "spark",
        "n": n,
        "data": counts,
        "definitions": {name: metric.definition for name, metric in METRICS.items()},
        "models": [{"model": model, "metrics": metrics}],
    }
    output.write_document(document, table)


@contextmanager
def _on_cluster(title: str, engine: EngineOptions) -> Iterator[dict[str, Any]]:
    """Yield the common arguments of the functions of `recsys.spark`, and show their progress."""
    wrong = next(
        (entry for entry in engine.conf if not all(entry.partition("="))), None
    )
    if wrong is not None:
        raise CommandError(f"--conf must be of the form K=V; got {wrong!r}.")
    conf = dict(entry.split("=", 1) for entry in engine.conf)
    with Activity(title) as activity:
        yield {"master": engine.master, "conf": conf, "say": activity.say}


def _request(reader: ReaderOptions) -> Request:
    """Return the columns to read; raise for options for reading that Spark lacks."""
    from recsys.data.columns import Request
    from recsys.spark.reading import WEIGHTS_ON_SPARK

    # An option that Spark ignored would change the model in silence.
    for flag in reader.flags:
        if flag not in _READ:
            advice = "prepare the data before"
            if flag in _TABLES:
                advice = "fit with them on one machine"
            elif flag in _OF_WEIGHTS:
                advice = WEIGHTS_ON_SPARK
            raise CommandError(f"{flag} does not apply to --engine spark; {advice}.")
    return Request.from_options(reader.options)
