"""`recsys fit`: from ratings to a saved model."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from recsys.cli.errors import CommandError
from recsys.cli.options import (
    EngineOptions,
    FitOptions,
    ReaderOptions,
    command,
    engine_options,
    fit_options,
    option,
    reader_options,
)

if TYPE_CHECKING:
    from recsys.data.ratings import Ratings
    from recsys.models.base import Step
    from recsys.recommender import Recommender

__all__ = ["check_destination", "fit"]


@command(
    "fit",
    examples=[
        "recsys fit ratings.csv --out model",
        "recsys fit ratings.csv --out model --model als --factors 64 --holdout 0.1 --force",
        "recsys fit ratings.csv --out model --model bias --user-damping 10",
        "zcat ratings.csv.gz | recsys fit - --out model",
        "recsys fit s3a://lake/ratings --out s3a://lake/model --engine spark --master yarn",
    ],
)
@click.argument("ratings", type=click.Path(allow_dash=True))
@option(
    "--out",
    "-o",
    metavar="MODEL",
    required=True,
    type=click.Path(),
    help="Directory for the model.",
)
@option("--force", is_flag=True, help="Replace the model that is there.")
@option(
    "--holdout",
    metavar="FRACTION",
    type=click.FloatRange(0, 1, min_open=True, max_open=True),
    help="Keep this share of the ratings out of the fit, and print their RMSE after each sweep.",
)
@fit_options(default=None)
@reader_options
@engine_options
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

    RATINGS is a file, a directory or a zip of MovieLens, or - for standard input. Without --model,
    the data decide, and what was chosen is said: als for ratings, spectral where there are none,
    all are the same, or they look like counts. The model is written beside its place and renamed
    when it is complete.

    With --engine spark, RATINGS and MODEL are paths that Spark can reach, of Parquet or CSV; als is
    fitted to ratings, and implicit ALS where there are none.
    """
    if engine.on_spark:
        from recsys.cli.spark import fit_on_spark

        fit_on_spark(ratings, out, engine, fitting, reader, holdout=holdout, force=force)
        return
    from recsys.cli.inputs import load_ratings, plan_fit
    from recsys.cli.progress import note

    check_destination(Path(out), force=force)
    plan = plan_fit(fitting, load_ratings(ratings, reader))
    recommender = plan.recommender
    if plan.chosen is not None:
        note(plan.chosen)
    start = time.perf_counter()
    _run(recommender, plan.ratings, holdout, fitting.seed)
    seconds = time.perf_counter() - start
    recommender.save(out, overwrite=force)
    fitted = f"fitted {recommender.model.name} to {recommender.ratings}"
    note(f"{fitted} in {seconds:.1f} s, saved in {out}")


def _run(recommender: Recommender, data: Ratings, holdout: float | None, seed: int) -> None:
    from recsys.cli.inputs import fit_recommender

    if holdout is None:
        fit_recommender(recommender, data)
        return
    from recsys.evaluation.splits import random_split

    split = random_split(data, test_fraction=holdout, random_state=seed)
    fit_recommender(recommender, split.train, split.test, on_step=_print_step)


def _print_step(step: Step) -> None:
    from recsys.cli.progress import describe, note

    note(describe(step))


def check_destination(path: Path, *, force: bool) -> None:
    """Refuse before the work what would be refused after it."""
    from recsys.cli.inputs import is_model

    if path.exists() and not is_model(str(path)):
        raise CommandError(f"{path} exists and is not a saved model; choose another --out.")
    if path.exists() and not force:
        raise CommandError(
            f"{path} is a saved model already; choose another --out, or replace it by --force."
        )
    if not path.parent.is_dir():
        raise CommandError(f"Cannot write {path}: there is no directory {path.parent}.")
