"""`recsys similar`: the items most like an item."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from recsys.cli.errors import CommandError
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

if TYPE_CHECKING:
    from recsys.ratings import Ratings

__all__ = ["similar"]

_CANDIDATES = 10


@command(
    "similar",
    examples=[
        "recsys similar model --item 318",
        'recsys similar model --title "shawshank" -n 5',
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
@n_option("similar items for each item")
@output_options
@fit_options(default=None, tuning=False)
@reader_options
def similar(
    source: str,
    item: tuple[str, ...],
    title: tuple[str, ...],
    n: int,
    output: Output,
    fitting: FitOptions,
    reader: ReaderOptions,
) -> None:
    """List the items most like an item.

    Takes a saved model, or a file of ratings, to which a model is fitted for this once. The score
    is the cosine of the two item vectors, damped where the similar item has few ratings; the
    columns are item, similar, rank, score, and title (of the similar item) where titles are known.
    """
    from recsys.cli.inputs import open_recommender

    if not item and not title:
        raise click.UsageError("Say which item: --item ID or --title TEXT.")
    recommender = open_recommender(source, reader, fitting)
    items = [*item, *(find_title(recommender.ratings, text) for text in title)]
    try:
        frame = recommender.similar_items(items, n)
    except UnknownIdError as error:
        error.add_note("Hint: --title finds an item by its title or a part of it.")
        raise
    output.write(frame, command="similar", model=recommender.model.name, n=n)


def find_title(ratings: Ratings, text: str) -> Any:
    """Return the id of the item with the title `text`: exactly, else ignoring case, else in part.

    Raises
    ------
    CommandError
        If there are no titles, or none or several that fit.
    """
    titles = ratings.titles
    if titles is None:
        raise CommandError("These data have no titles; use --item ID.")
    lower = titles.str.to_lowercase()
    wanted = text.lower()
    for matches in (
        titles == text,
        lower == wanted,
        lower.str.contains(wanted, literal=True),
    ):
        found = matches.fill_null(False).arg_true().to_numpy()
        if len(found) > 1:
            raise CommandError(_ambiguous(text, _named(ratings, found)))
        if len(found) == 1:
            return ratings.items.take(found)[0]
    raise CommandError(f"No title is or contains {text!r}.{_nearest(text, titles.drop_nulls())}")


def _named(ratings: Ratings, found: Any) -> list[str]:
    titles = ratings.titles
    assert titles is not None
    pairs = zip(ratings.items.take(found), titles.gather(found), strict=True)
    return [f"  {item}  {title}" for item, title in pairs]


def _ambiguous(text: str, candidates: Sequence[str]) -> str:
    more = len(candidates) - _CANDIDATES
    tail = [f"  and {more:,} more"] if more > 0 else []
    lines = [*candidates[:_CANDIDATES], *tail]
    head = f"{len(candidates):,} titles fit {text!r}; use --item with one of their ids:"
    return "\n".join([head, *lines])


def _nearest(text: str, titles: Any) -> str:
    from difflib import get_close_matches

    by_lower = {title.lower(): title for title in titles}
    close = get_close_matches(text.lower(), by_lower, n=3)
    return f" The nearest are {'; '.join(by_lower[each] for each in close)}." if close else ""
