"""`recsys similar`: similar items, or similar users."""

from __future__ import annotations

import click

from recsys.cli.options import (
    FitOptions,
    ReaderOptions,
    command,
    fitting_options,
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
    one_of=[("item", "title"), ("user",)],
    required="Choose items or users",
)
@click.argument("source", metavar="MODEL|RATINGS")
@option("--item", "-i", metavar="ID", multiple=True, help="Item to compare with; repeatable.")
@option(
    "--title", metavar="TEXT", multiple=True, help="Title of the item, or part of it; repeatable."
)
@option("--user", "-u", metavar="ID", multiple=True, help="User to compare with; repeatable.")
@n_option("similar items or users for each")
@output_options
@fitting_options
@reader_options("As in `recsys fit --help`")
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
    """List similar items or similar users.

    Takes a saved model, or ratings to fit a model to. The score is the cosine similarity of the two
    vectors, damped for items and users with few ratings. The columns are item (or user), similar,
    rank, score, and title (of the similar item) if titles are known.
    """
    from recsys.cli.inputs import find_title, open_recommender

    recommender = open_recommender(source, reader, fitting)
    if user:
        frame = recommender.similar_users(user, n)
    else:
        items = [*item, *(find_title(recommender.ratings, text) for text in title)]
        try:
            frame = recommender.similar_items(items, n)
        except UnknownIdError as error:
            if recommender.ratings.titles is not None:
                error.add_note("Hint: --title finds an item by its title or part of it.")
            raise
    output.write(frame, command="similar", model=recommender.model.name, n=n)
