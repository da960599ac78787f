"""`recsys predict` and `recsys impute`: ratings of given pairs, and of all missing ones."""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING

import click

from recsys.cli import inputs
from recsys.cli.errors import require
from recsys.cli.options import ReaderOptions, command, option, output_options
from recsys.cli.output import Activity, Output
from recsys.cli.recommend import Source, source_options
from recsys.errors import UnknownIdError

if TYPE_CHECKING:
    from recsys.recommender import ColdPair


@command(
    "predict",
    examples=[
        "recsys predict model pairs.csv",
        "recsys predict model pairs.parquet --cold-start bias --output predictions.parquet",
        "recsys predict ratings.csv - --json",
        "recsys predict model --user 42 --item 318,296",
        'recsys predict model --user-features "age=30, job=student" --item 318',
    ],
    one_of=[("pairs",), ("user", "item")],
    required="Choose the pairs",
    hints={"": "For pairs that are not in a file, give --user and --item."},
)
@click.argument("source", metavar="MODEL|RATINGS")
@click.argument("pairs", required=False)
@option("--user", "-u", metavar="ID", multiple=True, help="User, or users between commas.")
@option("--user-features", metavar="NAME=VALUE,...", help="Features of a new user.")
@option("--item", "-i", metavar="ID", multiple=True, help="Item, or items between commas.")
@option(
    "--cold-start",
    type=click.Choice(["error", "bias", "popular"]),
    default="error",
    help="Prediction for unknown users or items: an error, the mean plus known biases, or the "
    "mean rating of the item.",
)
@option("--std", is_flag=True, help="Add standard deviations, for models that have them.")
@output_options
@source_options
def predict(
    source: Source,
    pairs: str | None,
    user: tuple[str, ...],
    user_features: str | None,
    item: tuple[str, ...],
    cold_start: ColdPair,
    std: bool,
    output: Output,
) -> None:
    """Predict the ratings of user-item pairs.

    Takes a saved model, or ratings to fit a model to. PAIRS is a file like those of ratings, with a
    user and an item column; the reading options apply to PAIRS if the other file is a model.
    Without PAIRS, every --user, or the new one of --user-features, is paired with every --item. The
    rows keep their order; the columns are user, item, prediction, and std if requested. Predictions
    are within the range of the training ratings.
    """
    import polars as pl

    from recsys.folding import NEW_USER

    fits = bool(user_features is None or (item and not user))
    require(fits, "--user-features goes with --item, and without --user and PAIRS.")
    fits = bool(pairs is not None or (item and (user or user_features)))
    require(fits, "--user and --item make pairs together; give both.")
    recommender = source.open()
    if user_features is not None:
        recommender, user = recommender.fold_in(user_features=user_features), (NEW_USER,)
    if pairs is None:
        users = inputs.listed_ids(user, recommender.ratings.users)
        items = inputs.listed_ids(item, recommender.ratings.items)
        frame = pl.DataFrame({"user": users}).join(pl.DataFrame({"item": items}), how="cross")
    else:
        frame = inputs.load_pairs(
            pairs, source.reader if inputs.is_model(source.path) else ReaderOptions()
        )
    if cold_start != "error":
        answers = {"bias": "they get the known biases", "popular": "they get the items' means"}
        for ids in (recommender.ratings.users, recommender.ratings.items):
            listed = frame[ids.kind].unique(maintain_order=True).to_list()
            inputs.note_unknown(listed, ids, answers[cold_start])
    try:
        predictions = recommender.predict(frame, cold_start=cold_start, std=std)
    except UnknownIdError as error:
        error.add_note("Hint: --cold-start bias predicts pairs of unknown users or items as well.")
        raise
    output.write(predictions, command="predict", model=recommender.model.name)


@command(
    "impute",
    examples=[
        "recsys impute model --output ratings.parquet",
        "recsys impute ratings.csv --users users.txt --items items.txt",
    ],
)
@click.argument("source", metavar="MODEL|RATINGS")
@option("--users", metavar="FILE", help="File of users to predict for.")
@option("--items", metavar="FILE", help="File of items to predict for.")
@output_options
@source_options
def impute(source: Source, users: str | None, items: str | None, output: Output) -> None:
    """Predict all missing ratings.

    Takes a saved model, or ratings to fit a model to. The columns are user, item, prediction, user
    by user, within the range of the training ratings. Rows are written as they are computed, so
    memory does not grow with their number.
    """
    recommender = source.open()
    ratings = recommender.ratings
    blocks = recommender.impute(
        None if users is None else inputs.known_ids(users, ratings.users),
        None if items is None else inputs.known_ids(items, ratings.items),
    )
    with Activity("Imputing") if output.path or output.address else nullcontext():
        output.write(blocks, command="impute", model=recommender.model.name)
