"""`recsys similar`: the items most like an item, or the users most like a user."""

from __future__ import annotations

import click

from recsys.cli.options import (
    FitOptions,
    ReaderOptions,
    command,
    fit_options,
    n_option,
    option,
    output_options,
    reader_options,
)
from recsys.cli.output import Output
from recsys.errors import UnknownIdError

__all__ = ["similar"]


@command(
    "similar",
    examples=[
        "recsys similar model --item 318",
        'recsys similar model --title "shawshank" -n 5',
        "recsys similar model --user 42",
    ],
)
@click.argument("source", metavar="MODEL|RATINGS", type=click.Path(allow_dash=True))
@option("--item", "-i", metavar="ID", multiple=True, help="Item to compare with; repeatable.")
@option(
    "--title",
    metavar="TEXT",
    multiple=True,
    help="Title of the item, or a part that no other title has; repeatable.",
)
@option("--user", "-u", metavar="ID", multiple=True, help="User to compare with; repeatable.")
@n_option("similar items (or users) for each")
@output_options
@fit_options(default=None, tuning=False)
@reader_options
def similar(
    source: str,
    item: tuple[str, ...],
    title: tuple[str, ...],
    user: tuple[str, ...],
    n: int,
    output: Output,
    fitting: FitOptions,
    reader: ReaderOptions,
) -> None:
    """List the items most like an item, or users like a user.

    Takes a saved model, or a file of ratings, to which a model is fitted for this once. The score
    is the cosine of the two vectors, damped where the similar one has few ratings; the columns are
    item (or user), similar, rank, score, and title (of the similar item) where titles are known.
    """
    from recsys.cli.inputs import find_title, open_recommender

    if not item and not title and not user:
        raise click.UsageError("Say which item or user: --item ID, --title TEXT or --user ID.")
    if user and (item or title):
        raise click.UsageError("Only one of users and items can be asked for.")
    recommender = open_recommender(source, reader, fitting)
    if user:
        frame = recommender.similar_users(user, n)
        output.write(frame, command="similar", model=recommender.model.name, n=n)
        return
    items = [*item, *(find_title(recommender.ratings, text) for text in title)]
    try:
        frame = recommender.similar_items(items, n)
    except UnknownIdError as error:
        if recommender.ratings.titles is not None:
            error.add_note("Hint: --title finds an item by its title or a part of it.")
        raise
    output.write(frame, command="similar", model=recommender.model.name, n=n)
