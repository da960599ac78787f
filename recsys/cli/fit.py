"""`recsys fit`: fit a model and save it."""

from __future__ import annotations

import time

from recsys.cli import options as cli
from recsys.cli.errors import require


@cli.command(
    "fit",
    examples=[
        "recsys fit ratings.csv --out model",
        "recsys fit ratings.csv --out model --model als --factors 64 --test-fraction 0.1 --force",
        "recsys fit ratings.csv --out model --model bias -p user_damping=10",
        "recsys fit 'events/2025-*/*.parquet' --out model",
        "recsys fit postgresql://shop@localhost/shop --table events --out model",
        "recsys fit s3a://lake/ratings --out s3a://lake/model --engine spark --master yarn",
    ],
)
@cli.ratings_argument
@cli.option("--out", "-o", metavar="MODEL", required=True, help="Directory for the model.")
@cli.option("--force", is_flag=True, help="Replace an existing model.")
@cli.option("--tag", metavar="TEXT", help="Free text that the model keeps.")
@cli.option(
    "--test-fraction",
    metavar="FRACTION",
    type=cli.SHARE,
    help="Share of the ratings to hold out, and report their RMSE after each iteration.",
)
@cli.fit_options
@cli.reader_options()
@cli.engine_options()
def fit(
    ratings: tuple[str, ...],
    out: str,
    force: bool,
    tag: str | None,
    test_fraction: float | None,
    fitting: cli.FitOptions,
    reader: cli.ReaderOptions,
    engine: cli.EngineOptions,
) -> None:
    """Fit a model to ratings and save it.

    RATINGS are files, folders, patterns ('events/*.parquet'), URLs, tables of databases
    (postgresql://USER@HOST/DB, x.db::TABLE, x.duckdb::TABLE), or - for standard input. Without
    --model, models that suit the data are compared on a held-out tenth of it: als, als linked and
    bayes for ratings; spectral, ials and ease if there are none, all are equal, or they look like
    counts. The best, or a blend, is fitted to everything. The model is written to a temporary
    directory and moved into place when complete.

    With --engine spark, RATINGS and MODEL are paths that Spark can reach, of Parquet or CSV, and
    the model is als, or implicit ALS if there are no ratings.
    """
    if engine.on_spark:
        from recsys.cli.spark import fit_on_spark

        require(len(ratings) == 1, "--engine spark takes one folder or pattern of files.")
        fit_on_spark(ratings[0], out, engine, fitting, reader, holdout=test_fraction, force=force)
        return
    from recsys.cli.inputs import (
        check_destination,
        fit_recommender,
        is_model,
        load_ratings,
        parameters_for,
        plan_fit,
    )
    from recsys.cli.progress import describe, note

    check_destination(out, is_model, force=force)
    if fitting.model is not None:
        parameters_for([fitting.model], fitting)  # raises before a long reading
    planned, used, reason = plan_fit(fitting, load_ratings(ratings, reader), reader)
    if reason is not None:
        note(reason)
    start = time.perf_counter()
    if test_fraction is None:
        fitted = fit_recommender(planned, used)
    else:
        from recsys.evaluation.splits import random_split

        train, test = random_split(used, test_fraction, random_state=fitting.seed)
        fitted = fit_recommender(planned, train, test, lambda step: note(describe(step)))
    seconds = time.perf_counter() - start
    fitted.save(out, overwrite=force, tag=tag)
    if findings := fitted.training.get("choice"):
        for line in findings.split("; ")[1:]:  # the first has been said
            note(line)
    for line in fitted.model.remarks:
        note(line)
    note(f"fitted {fitted.model.name} to {fitted.ratings} in {seconds:.1f} s, saved in {out}")
