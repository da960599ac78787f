"""Fit, recommend and evaluate with ``--engine spark``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from recsys.cli.errors import CommandError
from recsys.cli.options import EngineOptions, FitOptions, ReaderOptions
from recsys.cli.progress import Activity, describe, note
from recsys.messages import counted

if TYPE_CHECKING:
    from recsys.cli.output import Output

__all__ = ["evaluate_on_spark", "fit_on_spark", "recommend_on_spark"]


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
    """Fit a model and write it; `recsys fit`.

    Raises
    ------
    CommandError
        If a number of threads is given, which is a setting of the cluster.
    """
    cluster = _cluster(engine)
    if fitting.threads is not None:
        raise CommandError(
            "--threads does not apply to --engine spark; use --master local[N], or set "
            "spark.executor.cores by --conf."
        )
    from recsys import spark
    from recsys.cli.inputs import parameters_for

    # Without a model's name, the data decide between these two.
    models = [fitting.model] if fitting.model else ["als", "implicit-als"]
    parameters: dict[str, Any] = {}
    for found in parameters_for(models, fitting, shared=False).values():
        parameters |= found

    with Activity("Fitting on Spark"):
        result = spark.fit(
            ratings,
            out,
            model=fitting.model,
            columns=_columns(reader),
            duplicates=reader.duplicates,
            test_fraction=holdout,
            overwrite=force,
            on_step=lambda step: note(describe(step)),
            random_state=fitting.seed,
            **cluster,
            **parameters,
        )
    counts = result.training
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
    items: str | None,
    block: str | None,
    *,
    include_seen: bool,
) -> None:
    """Recommend to all users; `recsys recommend`. `items` and `block` are files of ids."""
    from recsys import spark
    from recsys.readers.id_lists import read_ids

    cluster = _cluster(engine)
    with Activity("Recommending on Spark"):
        spark.recommend(
            model,
            out,
            n,
            exclude_seen=not include_seen,
            items=None if items is None else read_ids(items, "item"),
            block=None if block is None else read_ids(block, "item"),
            overwrite=True,
            **cluster,
        )
    note(f"recommended {n} items to each user, written to {out}")


def evaluate_on_spark(
    model: str, test: str, n: int, engine: EngineOptions, reader: ReaderOptions, output: Output
) -> None:
    """Measure a model; `recsys evaluate`."""
    import polars as pl

    from recsys import __version__, spark
    from recsys.evaluation import METRICS

    cluster = _cluster(engine)
    with Activity("Evaluating on Spark"):
        found = spark.evaluate(model, test, n, columns=_columns(reader), **cluster)
    counts = found.counts
    note(
        f"tested on {counted(counts['test_ratings'], 'rating')}; recommended to "
        f"{counted(counts['users_evaluated'], 'user')}; "
        f"{counted(counts['unknown_ratings'], 'test rating')} of unknown users or items left out"
    )
    row = {"model": model} | {name: metric.value for name, metric in found.metrics.items()}
    table = pl.DataFrame([row | {"users": counts["users_evaluated"]}])
    if output.resolved_format != "json":
        output.write(table)
        return
    metrics: dict[str, dict[str, Any]] = {}
    for name, metric in found.metrics.items():
        users = {"interval": metric.interval, "users": metric.count}
        metrics[name] = {"value": metric.value}
        metrics[name] |= {"ratings": metric.count} if name in ("rmse", "mae") else users
    document = {
        "command": "evaluate",
        "version": __version__,
        "engine": "spark",
        "n": found.n,
        "data": counts,
        "definitions": {name: metric.definition for name, metric in METRICS.items()},
        "models": [{"model": model, "metrics": metrics}],
    }
    output.write_document(document, table)


def _cluster(engine: EngineOptions) -> dict[str, Any]:
    """Return the arguments of all functions of `recsys.spark` that name the cluster."""
    conf = {}
    for each in engine.conf:
        name, equals, value = each.partition("=")
        if not (name and equals):
            raise CommandError(f"--conf must be of the form K=V; got {each!r}.")
        conf[name] = value
    return {"master": engine.master, "conf": conf}


def _columns(reader: ReaderOptions) -> Any:
    from recsys.readers.layout import Request

    names = {
        role: getattr(reader, f"{role}_col") for role in ("user", "item", "rating", "timestamp")
    }
    return Request(**names, sep=reader.sep, encoding=reader.encoding, implicit=reader.implicit)
