"""The verbs with ``--engine spark``: what they do on a cluster instead of here."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from recsys.cli.errors import CommandError
from recsys.cli.options import EngineOptions, FitOptions, ReaderOptions
from recsys.cli.progress import Activity, describe, note
from recsys.messages import counted

if TYPE_CHECKING:
    from collections.abc import Sequence

    from recsys.cli.output import Output
    from recsys.models.base import Step
    from recsys.readers.layout import Request
    from recsys.spark import Metric, SparkEvaluation

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
    """Fit a model and write it; `recsys fit`."""
    conf = _settings(engine)
    if fitting.threads is not None:
        raise CommandError(
            "--threads does not apply to --engine spark; say --master local[N], or set "
            "spark.executor.cores by --conf."
        )
    from recsys import spark
    from recsys.cli.inputs import parameters_for

    # Without a model's name, the data decide between these two.
    models = [fitting.model] if fitting.model else ["als", "implicit-als"]
    parameters: dict[str, Any] = {}
    for found in parameters_for(models, fitting, shared=False).values():
        parameters |= found

    def say_step(step: Step) -> None:
        note(describe(step))

    with Activity("Fitting on Spark") as activity:
        result = spark.fit(
            ratings,
            out,
            model=fitting.model,
            master=engine.master,
            conf=conf,
            columns=_request(reader),
            duplicates=reader.duplicates,
            test_fraction=holdout,
            overwrite=force,
            on_step=say_step,
            say=activity.say,
            random_state=fitting.seed,
            **parameters,
        )
    counts = result.training
    size = (
        f"{counts['users']:,} users x {counts['items']:,} items, {counts['ratings']:,} "
        f"{'interactions' if result.implicit else 'ratings'}"
    )
    note(f"fitted {result.model} to {size} in {counts['seconds']:.1f} s, saved in {out}")


def recommend_on_spark(
    model: str,
    out: str,
    n: int,
    engine: EngineOptions,
    lists: Sequence[str],
    block: str | None,
    *,
    include_seen: bool,
) -> None:
    """Recommend to all users; `recsys recommend`. Items must be in each of the `lists`."""
    from recsys.readers.id_lists import read_ids

    conf = _settings(engine)
    allowed = [[str(item) for item in read_ids(path, "item")] for path in lists]
    both = None if not allowed else sorted(set(allowed[0]).intersection(*allowed[1:]))
    blocked = None if block is None else read_ids(block, "item")
    from recsys import spark

    with Activity("Recommending on Spark") as activity:
        spark.recommend(
            model,
            out,
            n,
            exclude_seen=not include_seen,
            items=both,
            block=blocked,
            master=engine.master,
            conf=conf,
            overwrite=True,
            say=activity.say,
        )
    note(f"recommended {n} items to each user, written to {out}")


def evaluate_on_spark(
    model: str, test: str, n: int, engine: EngineOptions, reader: ReaderOptions, output: Output
) -> None:
    """Measure a model; `recsys evaluate`."""
    import polars as pl

    conf = _settings(engine)
    from recsys import spark

    with Activity("Evaluating on Spark") as activity:
        found = spark.evaluate(
            model,
            test,
            n,
            columns=_request(reader),
            master=engine.master,
            conf=conf,
            say=activity.say,
        )
    counts = found.counts
    note(
        f"tested on {counted(counts['test_ratings'], 'rating')}; recommended to "
        f"{counted(counts['users_evaluated'], 'user')}; "
        f"{counted(counts['unknown_ratings'], 'test rating')} of unknown users or items left out"
    )
    row = {"model": model} | {name: metric.value for name, metric in found.metrics.items()}
    table = pl.DataFrame([row | {"users": counts["users_evaluated"]}])
    if output.resolved_format == "json":
        output.write_document(_document(model, found), table)
    else:
        output.write(table)


def _document(model: str, found: SparkEvaluation) -> dict[str, Any]:
    from recsys import __version__
    from recsys.evaluation import METRICS

    def plain(name: str, metric: Metric) -> dict[str, Any]:
        if name in ("rmse", "mae"):
            return {"value": metric.value, "ratings": metric.count}
        interval = None if metric.interval is None else list(metric.interval)
        return {"value": metric.value, "interval": interval, "users": metric.count}

    metrics = {name: plain(name, metric) for name, metric in found.metrics.items()}
    return {
        "command": "evaluate",
        "version": __version__,
        "engine": "spark",
        "n": found.n,
        "data": found.counts,
        "definitions": {name: metric.definition for name, metric in METRICS.items()},
        "models": [{"model": model, "metrics": metrics}],
    }


def _settings(engine: EngineOptions) -> dict[str, str]:
    conf = {}
    for each in engine.conf:
        name, equals, value = each.partition("=")
        if not (name and equals):
            raise CommandError(f"--conf must be of the form K=V; got {each!r}.")
        conf[name] = value
    return conf


def _request(reader: ReaderOptions) -> Request:
    from recsys.readers.layout import Request

    return Request(
        user=reader.user_col,
        item=reader.item_col,
        rating=reader.rating_col,
        timestamp=reader.timestamp_col,
        sep=reader.sep,
        encoding=reader.encoding,
        implicit=reader.implicit,
    )
