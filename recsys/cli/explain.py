"""`recsys explain`: what the score of an item for a user is made of."""

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

__all__ = ["explain"]


@command(
    "explain",
    examples=[
        "recsys explain model --user 42 --item 318",
        'recsys explain model --user 42 --title "Toy Story" -n 5 --json',
    ],
)
@click.argument("source", metavar="MODEL|RATINGS", type=click.Path(allow_dash=True))
@option("--user", "-u", metavar="ID", required=True, help="User whom the item is scored for.")
@option("--item", "-i", metavar="ID", help="Item that is scored.")
@option("--title", metavar="TEXT", help="Its title, or a part that no other title has.")
@n_option("contributions shown")
@output_options
@fit_options(default=None, tuning=False)
@reader_options
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
    """Show what a score is made of.

    Takes a saved model, or a file of ratings, to which a model is fitted for this once. The first
    row is the base, what the score would be without the ratings of the user; then come the items
    whose ratings change it most, and the sum of the others. The contributions add up to the score,
    which predictions of ratings are clipped from. The columns are part, item, rating, contribution,
    and title where titles are known.
    """
    from recsys.cli.inputs import find_title, open_recommender

    if (item is None) == (title is None):
        raise click.UsageError("Say which item, by either --item ID or --title TEXT.")
    recommender = open_recommender(source, reader, fitting)
    asked = item if title is None else find_title(recommender.ratings, title)
    frame = recommender.explain(user, asked, n)
    output.write(frame, command="explain", model=recommender.model.name, user=user, item=asked)
