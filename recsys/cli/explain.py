"""`recsys explain`: the contributions to the score of an item for a user."""

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

__all__ = ["explain"]


@command(
    "explain",
    examples=[
        "recsys explain model --user 42 --item 318",
        'recsys explain model --user 42 --title "Toy Story" -n 5 --json',
    ],
    one_of=[("item",), ("title",)],
    required="Choose the item",
)
@click.argument("source", metavar="MODEL|RATINGS")
@option("--user", "-u", metavar="ID", required=True, help="User to explain the score for.")
@option("--item", "-i", metavar="ID", help="Item whose score is explained.")
@option("--title", metavar="TEXT", help="Title of the item, or part of it.")
@n_option("contributions shown")
@output_options
@fitting_options
@reader_options("As in `recsys fit --help`")
def explain(
    source: str,
    user: str,
    item: str | None,
    title: str | None,
    n: int,
    output: Output,
    fitting: FitOptions,
    reader: ReaderOptions,
) -> None:
    """Explain a score by the ratings behind it.

    Takes a saved model, or ratings to fit a model to. The first row is the base, the score without
    the ratings of the user; then come the items whose ratings change it most, and the sum of the
    others. The contributions add up to the score, from which predictions are clipped. The columns
    are part, item, rating, contribution, and title if titles are known.
    """
    from recsys.cli.inputs import find_title, open_recommender

    recommender = open_recommender(source, reader, fitting)
    chosen = str(item) if title is None else find_title(recommender.ratings, title)
    frame = recommender.explain(user, chosen, n)
    output.write(frame, command="explain", model=recommender.model.name, user=user, item=chosen)
