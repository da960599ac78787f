"""`recsys fit` and `recsys update`: fit a model and save it, add ratings to a saved one."""

from __future__ import annotations

import time
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import click

from recsys.cli import options as cli
from recsys.messages import counted


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

        if len(ratings) > 1:
            raise click.UsageError("--engine spark takes one folder or pattern of files.")
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
    fitted.save(out, overwrite=force)
    if findings := fitted.training.get("choice"):
        for line in findings.split("; ")[1:]:  # the first has been said
            note(line)
    note(f"fitted {fitted.model.name} to {fitted.ratings} in {seconds:.1f} s, saved in {out}")


@cli.command(
    "update",
    examples=[
        "recsys update model new-ratings.csv --out model2",
        "recsys update model new-ratings.csv --force",
    ],
)
@click.argument("model")
@cli.ratings_argument
@cli.option("--out", "-o", metavar="MODEL2", help="Directory for the updated model.")
@cli.option("--force", is_flag=True, help="Replace an existing model: MODEL, without --out.")
@cli.reader_options()
def update(
    model: str, ratings: tuple[str, ...], out: str | None, force: bool, reader: cli.ReaderOptions
) -> None:
    """Add new ratings to a model.

    The model is fitted again to its own ratings and the new ones together, with the same
    parameters; als starts from its factors and needs fewer iterations. Users and items may be new;
    a rating of a known pair replaces the old one. The new model is written to a temporary directory
    and moved into place when complete. An update waits for others of the same model to end.
    """
    from recsys.atomic import exclusive
    from recsys.cli.inputs import check_destination, is_model
    from recsys.cli.progress import note

    if out is None and not force:
        raise click.UsageError("Add --out MODEL2 for a new model, or --force to replace MODEL.")
    target = out or model
    check_destination(target, is_model, force=force)
    waiting = f"waiting for another update of {target} to end"
    with exclusive(Path(target), lambda: note(waiting)) if Path(target).exists() else nullcontext():
        _update(model, ratings, target, reader)


def _update(model: str, ratings: tuple[str, ...], target: str, reader: cli.ReaderOptions) -> None:
    from recsys.cli.inputs import load_model, load_ratings
    from recsys.cli.progress import Activity, note

    old = load_model(model)
    new = load_ratings(ratings, replace(reader, implicit=reader.implicit or old.ratings.implicit))
    start = time.perf_counter()
    with Activity(f"Updating {old.model.name}") as activity:
        updated = old.update(new, on_step=activity.step)
    seconds = time.perf_counter() - start
    updated.save(target, overwrite=True)  # which has been checked
    replaced = old.ratings.n_ratings + new.n_ratings - updated.ratings.n_ratings
    note(f"{counted(new.n_ratings, 'new rating')}, {replaced:,} of them in place of old ones")
    note(f"updated {old.model.name} to {updated.ratings} in {seconds:.1f} s, saved in {target}")
