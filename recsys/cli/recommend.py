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
        'recsys recommend model --like "Alien" --rate "Heat=3.5"',
        "recsys recommend model --history mine.csv --where \"genres LIKE '%War%'\"",
        "recsys recommend model --all --out recommendations --engine spark",
    ],
)
@click.argument("source", metavar="MODEL|RATINGS", type=click.Path(allow_dash=True))
@option("--user", "-u", metavar="ID", multiple=True, help="User to recommend to; repeatable.")
@option("--users", metavar="FILE", type=click.Path(allow_dash=True), help="File of users.")
@option("--all", "everyone", is_flag=True, help="Recommend to every user.")
@option(
    "--history",
    metavar="FILE",
    type=click.Path(),
    help="Recommend to new users, from what they have rated.",
)
@option("--like", metavar="TITLE", multiple=True, help="Item that a new user likes; repeatable.")
@option(
    "--rate",
    metavar="TITLE=X",
    multiple=True,
    help="Item that a new user has rated, and the rating; repeatable.",
)
@n_option("items for each user")
@option(
    "--items",
    metavar="FILE",
    type=click.Path(allow_dash=True),
    help="Candidates: recommend only items listed here.",
)
@option(
    "--allow",
    metavar="FILE",
    type=click.Path(allow_dash=True),
    help="The same; with both, an item must be in both.",
)
@option(
    "--block",
    metavar="FILE",
    type=click.Path(allow_dash=True),
    help="Never recommend items listed here.",
)
@option(
    "--where",
    metavar="CONDITION",
    help="Recommend only items of which this SQL condition on title, genres, year, ... is true.",
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
@option(
    "--out",
    metavar="FOLDER",
    section="Cluster",
    help="Folder for what --engine spark recommends, as partitioned Parquet.",
)
@engine_options
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
    allow: str | None,
    block: str | None,
    where: str | None,
    include_seen: bool,
    cold_start: ColdUser,
    out: str | None,
    engine: EngineOptions,
    output: Output,
    fitting: FitOptions,
    reader: ReaderOptions,
) -> None:
    """Recommend items to users.

    Takes a saved model, or a file of ratings, to which a model is fitted for this once. A FILE of
    users or items has one id per line, or is CSV, TSV or Parquet with a column of that name. The
    columns are user, item, rank, score, and title where titles are known. The score of a model of
    ratings is the rating that it expects, not clipped to their range.

    A new user can be described by --like and --rate, each with an id or with a title or its
    beginning, or by --history: a file of ratings of one or more users, of one user's items and
    ratings, or of items that were liked. What is liked counts as the best rating there is.

    With --engine spark, a model that `recsys fit --engine spark` wrote recommends to --all on the
    cluster and writes partitioned Parquet to --out.
    """
    _check_engine(engine, out, everyone, (user, users, history, like, rate, where, output.path))
    if engine.on_spark:
        from recsys.cli.spark import recommend_on_spark

        lists = [path for path in (items, allow) if path is not None]
        seen = include_seen
        recommend_on_spark(source, str(out), n, engine, lists, block, include_seen=seen)
        return
    from recsys.cli.histories import described_history, load_history
    from recsys.cli.inputs import open_recommender

    _check_choice(user, users, everyone, history, like + rate)
    recommender = open_recommender(source, reader, fitting)
    if history is not None:
        recommender = recommender.fold_in(load_history(history, reader, recommender))
    elif like or rate:
        recommender = recommender.fold_in(described_history(like, rate, recommender))
    with output.open(command="recommend", model=recommender.model.name, n=n) as sink:
        batches = recommender.recommend_batches(
            _chosen_users(recommender, user, users, cold_start),
            n,
            exclude_seen=not include_seen,
            items=_allowed(items, allow, recommender),
            block=_listed_items(block, recommender),
            where=where,
            cold_start=cold_start,
        )
        found = 0
        for batch in batches:
            found += len(batch)
            sink.write(batch)
    if not found:
        from recsys.cli.progress import note

        note("nothing to recommend: every item is rated already, blocked, or out of the conditions")


def _check_engine(
    engine: EngineOptions, out: str | None, everyone: bool, others: tuple[Any, ...]
) -> None:
    if not engine.on_spark:
        if out is not None:
            raise click.UsageError("--out is for --engine spark; here it is --output FILE.")
        return
    if not everyone or out is None or any(others):
        raise click.UsageError(
            "With --engine spark, say --all and --out FOLDER; of the other choices there are -n, "
            "--items, --allow, --block and --include-seen."
        )


def _check_choice(
    user: tuple[str, ...],
    users: str | None,
    everyone: bool,
    history: str | None,
    described: tuple[str, ...],
) -> None:
    given = (user, users is not None, everyone, history is not None, described)
    chosen = sum(map(bool, given))
    if chosen == 0:
        raise click.UsageError(
            "Say which users: --user ID, --users FILE or --all; new ones are described by "
            "--history FILE, or by --like TITLE and --rate TITLE=X."
        )
    if chosen > 1:
        raise click.UsageError(
            "Only one of --user, --users, --all, --history, and --like with --rate can be given."
        )


def _chosen_users(
    recommender: Recommender, user: tuple[str, ...], users: str | None, cold_start: str
) -> Sequence[Any] | None:
    """Return the users asked for, None for all; an unknown one is an error, or is said."""
    from recsys.readers.id_lists import note_unknown, read_ids

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


def _allowed(
    items: str | None, allow: str | None, recommender: Recommender
) -> Sequence[Any] | None:
    """Return the items that are in each of the lists that are given, None for all."""
    candidates, allowed = (_listed_items(path, recommender) for path in (items, allow))
    if candidates is None or allowed is None:
        return allowed if candidates is None else candidates
    places = set(recommender.ratings.items.index(allowed).tolist())
    both = zip(candidates, recommender.ratings.items.index(candidates), strict=True)
    return [item for item, place in both if place in places]


def _listed_items(path: str | None, recommender: Recommender) -> Sequence[Any] | None:
    from recsys.readers.id_lists import known_ids

    return None if path is None else known_ids(path, recommender.ratings.items)
