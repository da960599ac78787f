"""`recsys predict`: the ratings that pairs of a user and an item would have."""

from __future__ import annotations

from typing import TYPE_CHECKING

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
from recsys.errors import UnknownIdError

if TYPE_CHECKING:
    import polars as pl

    from recsys.recommender import ColdPair, Recommender

__all__ = ["predict"]

_HINT = (
    "Hint: with --cold-start bias, unknown users and items count as average ones; with "
    "--cold-start popular, the mean rating of the item is predicted."
)


@command(
    "predict",
    examples=[
        "recsys predict model pairs.csv",
        "recsys predict model pairs.parquet --cold-start bias --output predictions.parquet",
        "recsys predict ratings.csv - --json",
    ],
)
@click.argument("source", metavar="MODEL|RATINGS", type=click.Path())
@click.argument("pairs", type=click.Path(allow_dash=True))
@option(
    "--cold-start",
    type=click.Choice(["error", "bias", "popular"]),
    default="error",
    show_default=True,
    help="What pairs with an unknown user or item get: an error, the mean plus what bias is "
    "known, or the mean rating of the item.",
)
@option(
    "--std",
    is_flag=True,
    help="Add the standard deviation of each prediction, for models that know it.",
)
@output_options
@fit_options(default=None, tuning=False)
@reader_options
def predict(
    source: str,
    pairs: str,
    cold_start: ColdPair,
    std: bool,
    output: Output,
    fitting: FitOptions,
    reader: ReaderOptions,
) -> None:
    """Predict the ratings of user-item pairs.

    Takes a saved model, or a file of ratings, to which a model is fitted for this once. PAIRS is
    any file that ratings could be read from, with a user and an item column; the options on
    reading apply to PAIRS if the other file is a model. The rows keep their order; the columns are
    user, item, prediction, and std if asked for. Predictions lie within the range of the training
    ratings.
    """
    from recsys.cli.inputs import is_model, load_pairs, open_recommender

    recommender = open_recommender(source, reader, fitting)
    frame = load_pairs(pairs, reader if is_model(source) else None)
    if cold_start != "error":
        _note_unknown(recommender, frame, cold_start)
    try:
        predictions = recommender.predict(frame, cold_start=cold_start, std=std)
    except UnknownIdError as error:
        error.add_note(_HINT)
        raise
    output.write(predictions, command="predict", model=recommender.model.name)


def _note_unknown(recommender: Recommender, frame: pl.DataFrame, cold_start: str) -> None:
    """Say which users and items are unknown, and what is predicted for them."""
    from recsys.readers.id_lists import note_unknown

    what = "they get the known biases" if cold_start == "bias" else "they get the items' means"
    for ids in (recommender.ratings.users, recommender.ratings.items):
        listed = frame[ids.kind].unique(maintain_order=True).to_list()
        note_unknown(listed, ids.find(listed), what)
