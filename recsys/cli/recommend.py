"""`recsys recommend`: the best items for users."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

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
    ],
)
@click.argument("source", metavar="MODEL|RATINGS", type=click.Path(allow_dash=True))
@option("--user", "-u", metavar="ID", multiple=True, help="User to recommend to; repeatable.")
@option("--users", metavar="FILE", type=click.Path(allow_dash=True), help="File of users.")
@option("--all", "everyone", is_flag=True, help="Recommend to every user.")
@n_option("items for each user")
@option(
    "--allow",
    metavar="FILE",
    type=click.Path(allow_dash=True),
    help="Recommend only items listed here.",
)
@option(
    "--block",
    metavar="FILE",
    type=click.Path(allow_dash=True),
    help="Never recommend items listed here.",
)
@option("--include-seen", is_flag=True, help="Also recommend items that the user has rated.")
@option(
    "--cold-start",
    type=click.Choice(["error", "popular"]),
    default="error",
    show_default=True,
    help="What an unknown user gets: an error, or the most popular items.",
)
@output_options
@fit_options(default=None, tuning=False)
@reader_options
def recommend(
    source: str,
    user: tuple[str, ...],
    users: str | None,
    everyone: bool,
    n: int,
    allow: str | None,
    block: str | None,
    include_seen: bool,
    cold_start: ColdUser,
    output: Output,
    fitting: FitOptions,
    reader: ReaderOptions,
) -> None:
    """Recommend items to users.

    Takes a saved model, or a file of ratings, to which a model is fitted for this once. A FILE of
    users or items has one id per line, or is CSV, TSV or Parquet with a column of that name. The
    columns are user, item, rank, score, and title where titles are known.
    """
    from recsys.cli.inputs import open_recommender

    _check_choice(user, users, everyone)
    recommender = open_recommender(source, reader, fitting)
    with output.open(command="recommend", model=recommender.model.name, n=n) as sink:
        batches = recommender.recommend_batches(
            _chosen_users(recommender, user, users, cold_start),
            n,
            exclude_seen=not include_seen,
            allow=_listed_items(allow, recommender),
            block=_listed_items(block, recommender),
            cold_start=cold_start,
        )
        for batch in batches:
            sink.write(batch)


def _check_choice(user: tuple[str, ...], users: str | None, everyone: bool) -> None:
    chosen = sum((bool(user), users is not None, everyone))
    if chosen == 0:
        raise click.UsageError("Say which users: --user ID, --users FILE or --all.")
    if chosen > 1:
        raise click.UsageError("Only one of --user, --users and --all can be given.")


def _chosen_users(
    recommender: Recommender, user: tuple[str, ...], users: str | None, cold_start: str
) -> Sequence[Any] | None:
    """Return the users asked for, None for all; an unknown one is an error, or is said."""
    from recsys.cli.idlists import note_unknown, read_ids

    if not user and users is None:
        return None
    listed = list(user) if users is None else read_ids(users, "user")
    known = recommender.ratings.users
    if cold_start != "error":
        note_unknown(listed, known.find(listed), "they get the most popular items")
        return listed
    try:
        known.index(listed)
    except UnknownIdError as error:
        error.add_note(_HINT)
        raise
    return listed


def _listed_items(path: str | None, recommender: Recommender) -> Sequence[Any] | None:
    from recsys.cli.idlists import known_ids

    return None if path is None else known_ids(path, recommender.ratings.items)
