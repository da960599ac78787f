"""`recsys recommend`: the best items for users."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from recsys.cli.options import (
    EngineOptions,
    FitOptions,
    ReaderOptions,
    command,
    engine_options,
    fitting_options,
    n_option,
    option,
    output_options,
    reader_options,
)
from recsys.cli.output import Output

if TYPE_CHECKING:
    from recsys.recommender import ColdUser, Recommender

__all__ = ["recommend"]

_HINT = (
    "Hint: `recsys data inspect` shows the ids of a ratings file; with --cold-start popular, "
    "unknown users get the most popular items."
)


@command(
    "recommend",
    examples=[
        "recsys recommend model --user 42",
        "recsys recommend ratings.csv --user 42 --user 43 -n 5 --json",
        "recsys recommend model --all --output recommendations.parquet",
        'recsys recommend model --like "Alien" --rate "Heat=3.5"',
        "recsys recommend model --history mine.csv --where \"genres LIKE '%War%'\"",
        "recsys recommend model --all --output recommendations --engine spark",
    ],
    one_of=[("user",), ("users",), ("everyone",), ("history",), ("like", "rate")],
    required="Choose the users",
)
@click.argument("source", metavar="MODEL|RATINGS")
@option("--user", "-u", metavar="ID", multiple=True, help="User to recommend to; repeatable.")
@option("--users", metavar="FILE", help="File of users.")
@option("--all", "everyone", is_flag=True, help="Recommend to every user.")
@option("--history", metavar="FILE", help="Ratings of new users, to recommend to them.")
@option("--like", metavar="TITLE", multiple=True, help="Item that a new user likes; repeatable.")
@option(
    "--rate", metavar="TITLE=X", multiple=True, help="Item and rating of a new user; repeatable."
)
@n_option("items for each user")
@option("--items", metavar="FILE", help="File of items to choose from.")
@option("--block", metavar="FILE", help="File of items that are never recommended.")
@option(
    "--where",
    metavar="CONDITION",
    help="SQL condition on the items' columns: title, genres, year, ...",
)
@option("--include-seen", is_flag=True, help="Also recommend items that the user has rated.")
@option(
    "--cold-start",
    type=click.Choice(["error", "popular"]),
    default="error",
    show_default=True,
    help="Answer for unknown users: an error, or the most popular items.",
)
@engine_options("As in `recsys fit --help`")
@output_options
@fitting_options
@reader_options("As in `recsys fit --help`")
def recommend(
    source: str,
    user: tuple[str, ...],
    users: str | None,
    everyone: bool,
    history: str | None,
    like: tuple[str, ...],
    rate: tuple[str, ...],
    n: int,
    items: str | None,
    block: str | None,
    where: str | None,
    include_seen: bool,
    cold_start: ColdUser,
    engine: EngineOptions,
    output: Output,
    fitting: FitOptions,
    reader: ReaderOptions,
) -> None:
    """Recommend items to users.

    Takes a saved model, or ratings to fit a model to. A FILE of users or items has one id per line,
    or is CSV, TSV or Parquet with a column of that name. The columns are user, item, rank, score,
    and title if titles are known. Scores of rating models are expected ratings, not clipped.

    A new user is described by --like and --rate, with an id, a title or its beginning, or by
    --history: a file of ratings of one or more users, or of items that one user likes. Liked items
    get the highest rating in the training data.

    With --engine spark, a model of `recsys fit --engine spark` recommends to --all and writes
    partitioned Parquet to the folder of --output.
    """
    if engine.on_spark:
        from recsys.cli.spark import recommend_on_spark

        if not everyone or output.path is None or where:
            raise click.UsageError(
                "--engine spark needs --all and --output FOLDER, and does not take --where."
            )
        folder = click.get_current_context().params["output"]
        recommend_on_spark(source, folder, n, engine, items, block, include_seen=include_seen)
        return
    from recsys.cli.inputs import (
        described_history,
        known_ids,
        load_history,
        open_recommender,
    )

    recommender = open_recommender(source, reader, fitting)
    if history is not None:
        recommender = recommender.fold_in(load_history(history, reader, recommender))
    elif like or rate:
        recommender = recommender.fold_in(described_history(like, rate, recommender))
    found = 0
    known = recommender.ratings.items
    with output.open(command="recommend", model=recommender.model.name, n=n) as sink:
        for batch in recommender.recommend_batches(
            _chosen_users(recommender, user, users, cold_start),
            n,
            exclude_seen=not include_seen,
            items=None if items is None else known_ids(items, known),
            block=None if block is None else known_ids(block, known),
            where=where,
            cold_start=cold_start,
        ):
            found += len(batch)
            sink.write(batch)
    if not found:
        from recsys.cli.progress import note

        note("no recommendations: every item is already rated, blocked or filtered out")


def _chosen_users(
    recommender: Recommender, user: tuple[str, ...], users: str | None, cold_start: str
) -> Sequence[Any] | None:
    """Return the requested users, None for all; an unknown one is an error, or reported."""
    from recsys.cli.inputs import note_unknown
    from recsys.errors import UnknownIdError
    from recsys.readers.id_lists import read_ids

    if not user and users is None:
        return None
    listed = list(user) if users is None else read_ids(users, "user")
    if cold_start != "error":
        note_unknown(listed, recommender.ratings.users, "they get the most popular items")
        return listed
    try:
        recommender.ratings.users.index(listed)
    except UnknownIdError as error:
        error.add_note(_HINT)
        raise
    return listed
