"""`recsys fit`: fit a model to ratings and save it."""

from __future__ import annotations

import time

import click

from recsys.cli.options import (
    SHARE,
    EngineOptions,
    FitOptions,
    ReaderOptions,
    command,
    engine_options,
    fit_options,
    option,
    reader_options,
)

__all__ = ["fit"]


@command(
    "fit",
    examples=[
        "recsys fit ratings.csv --out model",
        "recsys fit ratings.csv --out model --model als --factors 64 --holdout 0.1 --force",
        "recsys fit ratings.csv --out model --model bias -p user_damping=10",
        "zcat ratings.csv.gz | recsys fit - --out model",
        "recsys fit s3a://lake/ratings --out s3a://lake/model --engine spark --master yarn",
    ],
)
@click.argument("ratings")
@option("--out", "-o", metavar="MODEL", required=True, help="Directory for the model.")
@option("--force", is_flag=True, help="Replace an existing model.")
@option(
    "--holdout",
    metavar="FRACTION",
    type=SHARE,
    help="Share of the ratings to hold out, and report their RMSE after each iteration.",
)
@fit_options
@reader_options()
@engine_options()
def fit(
    ratings: str,
    out: str,
    force: bool,
    holdout: float | None,
    fitting: FitOptions,
    reader: ReaderOptions,
    engine: EngineOptions,
) -> None:
    """Fit a model to ratings and save it.

    RATINGS is a file, a directory or zip of MovieLens, or - for standard input. Without --model, a
    model is chosen from the data and the choice is reported: als for ratings; spectral if there are
    none, all are equal, or they look like counts. The model is written to a temporary directory and
    moved into place when complete.

    With --engine spark, RATINGS and MODEL are paths that Spark can reach, of Parquet or CSV, and
    the model is als, or implicit ALS if there are no ratings.
    """
    if engine.on_spark:
        from recsys.cli.spark import fit_on_spark

        fit_on_spark(ratings, out, engine, fitting, reader, holdout=holdout, force=force)
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
    plan = plan_fit(fitting, load_ratings(ratings, reader))
    if plan.reason is not None:
        note(plan.reason)
    start = time.perf_counter()
    if holdout is None:
        recommender = fit_recommender(plan.recommender, plan.ratings)
    else:
        from recsys.evaluation.splits import random_split

        train, test = random_split(plan.ratings, holdout, random_state=fitting.seed)
        recommender = fit_recommender(
            plan.recommender, train, test, on_step=lambda step: note(describe(step))
        )
    seconds = time.perf_counter() - start
    recommender.save(out, overwrite=force)
    fitted = f"fitted {recommender.model.name} to {recommender.ratings}"
    note(f"{fitted} in {seconds:.1f} s, saved in {out}")
