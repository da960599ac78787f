"""`recsys impute`: the ratings that are missing, of some users and items or of all."""

from __future__ import annotations

from contextlib import nullcontext

import click

from recsys.cli.options import (
    FitOptions,
    ReaderOptions,
    command,
    fit_options,
    option,
    output_options,
    reader_options,
)
from recsys.cli.output import Output
from recsys.cli.progress import Activity

__all__ = ["impute"]


@command(
    "impute",
    examples=[
        "recsys impute model --output ratings.parquet",
        "recsys impute ratings.csv --users users.txt --items items.txt --all-pairs",
    ],
)
@click.argument("source", metavar="MODEL|RATINGS", type=click.Path(allow_dash=True))
@option(
    "--users",
    metavar="FILE",
    type=click.Path(allow_dash=True),
    help="Predict only for users listed here.",
)
@option(
    "--items",
    metavar="FILE",
    type=click.Path(allow_dash=True),
    help="Predict only for items listed here.",
)
@option(
    "--missing-only/--all-pairs",
    default=True,
    show_default=True,
    help="Leave out the pairs that are rated, or predict for them too.",
)
@output_options
@fit_options(default=None, tuning=False)
@reader_options
def impute(
    source: str,
    users: str | None,
    items: str | None,
    missing_only: bool,
    output: Output,
    fitting: FitOptions,
    reader: ReaderOptions,
) -> None:
    """Predict all the ratings that are missing.

    Takes a saved model, or a file of ratings, to which a model is fitted for this once. The columns
    are user, item, prediction, user by user; predictions lie within the range of the training
    ratings. The rows are written as they are computed, so that memory does not grow with them.
    """
    from recsys.cli.inputs import open_recommender
    from recsys.readers.id_lists import known_ids

    recommender = open_recommender(source, reader, fitting)
    ratings = recommender.ratings
    blocks = recommender.impute(
        None if users is None else known_ids(users, ratings.users),
        None if items is None else known_ids(items, ratings.items),
        missing_only=missing_only,
    )
    with nullcontext() if output.path is None else Activity("Imputing"):
        output.write(blocks, command="impute", model=recommender.model.name)
