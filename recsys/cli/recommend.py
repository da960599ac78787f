"""`recsys recommend`, `similar`, `explain`, `predict` and `impute`, and their shared options."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import click
from click.core import ParameterSource

from recsys.cli import inputs
from recsys.cli import options as cli
from recsys.cli.errors import require
from recsys.cli.output import SUFFIXES, Activity, Output, note
from recsys.errors import UnknownIdError
from recsys.ranking.lists import ColdUser, ListOptions, declarations

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

    import polars as pl

    from recsys.data.ids import Ids
    from recsys.placement import Placement
    from recsys.reasons import Language
    from recsys.recommender import ColdPair, Recommender

_NOTED_TOPICS = 3  # topics that a note on an explanation names
_FIRST = 10  # places of the list in which an item should be
# Why an item cannot be in a list, by the names of `recsys.placement`.
_REASONS = {
    "seen": "the user has seen it (--include-seen)",
    "items": "--items lacks it",
    "block": "--block has it",
    "where": "it does not meet --where",
    "not offered": "the item table no longer has it",
    "no data": "it has neither ratings nor features",
}
_ALONE = {"source", "user", "n", "output", "format", "json", "quiet", "debug"}
_OF_ITEMS = [name for name, option in declarations().items() if not option.of_users]
_RERANKING = ("diversity", "at_most", "per", "fill", "slots")
_USERS = cli.declared(
    "ID", "User, or several separated by commas.", "--user", "-u", multiple=True
)
_ITEMS = cli.declared(
    "ID", "Item, or several separated by commas.", "--item", "-i", multiple=True
)


@dataclass(frozen=True)
class Source:
    """Saved model, or ratings to fit a model to."""

    path: str
    reader: cli.ReaderOptions
    fitting: cli.FitOptions

    @property
    def is_alone(self) -> bool:
        """True if the command line has no other options than users, a number and an output."""
        context = click.get_current_context()
        names = {str(param.name) for param in context.command.params}
        sources = {context.get_parameter_source(name) for name in names - _ALONE}
        return sources <= {None, ParameterSource.DEFAULT}

    def open(self, roles: Collection[str] = ()) -> Recommender:
        """Load the model, or fit one to the ratings.

        A verb that reads another file uses columns of these `roles`, with a saved model, too.
        """
        return inputs.open_recommender(self.path, self.reader, self.fitting, roles)

    def with_ids(self, options: ListOptions, recommender: Recommender) -> ListOptions:
        """Return options with the ids in the files that they name."""
        reading = recommender.provenance.reading
        return inputs.with_ids(options, self.reader, recommender.ratings, reading)


source_argument = click.argument("source", metavar="MODEL|RATINGS", type=cli.PLACE)
source_options = cli.bundle(
    "source",
    lambda source, reader, fitting: Source(source, reader, fitting),
    cli.fitting_options,
    cli.reader_options("none"),
)
"""Decorator that adds the options of a fit, and converts the path `source` to a `Source`."""


@dataclass(frozen=True)
class Described:
    """Description of a new user on the command line; false if there is none."""

    like: tuple[str, ...] = cli.declared(
        "TITLE",
        "Title or id of an item that a new user likes; repeatable.",
        multiple=True,
    )
    rate: tuple[str, ...] = cli.declared(
        "TITLE=X", "Rating of an item by a new user; repeatable.", multiple=True
    )
    user_features: str | None = cli.declared(
        "NAME=VALUE,...", "Features of a new user."
    )

    def __bool__(self) -> bool:
        return bool(self.like or self.rate or self.user_features is not None)

    def folded_into(self, recommender: Recommender) -> Recommender:
        """Return the recommender with this user folded in."""
        history = inputs.described_history(self.like, self.rate, recommender)
        return recommender.fold_in(history, user_features=self.user_features)


described_options = cli.bundle(
    "described", Described, *cli.declared_in(Described, "Options")
)
"""Decorator that adds options to describe a new user, as `described`."""


@cli.command(
    "recommend",
    examples=[
        "recsys recommend model --user 42",
        "recsys recommend ratings.csv --user 42,43 -n 5 --json",
        "recsys recommend model --all -o postgresql://me@host/db::recs --if-exists replace",
        'recsys recommend model --like "Alien" --rate "Heat=3.5"',
        "recsys recommend model --user 42 --at-least 0.2",
        "recsys recommend model --history mine.csv --where \"genres LIKE '%War%'\"",
        "recsys recommend model --all --output recommendations --engine spark",
    ],
    one_of={
        "--user": ("user",),
        "--users": ("users",),
        "--all": ("everyone",),
        "--history": ("history",),
        "--like/--rate/--user-features": ("like", "rate", "user_features"),
    },
    required="Choose the users",
    hints={
        "": "Users go to --user, with commas between them. Quote values that contain spaces."
    },
)
@source_argument
@described_options
@cli.list_options(described=_RERANKING)
@cli.engine_options("As in `recsys fit --help`")
@cli.list_output_options
@source_options
def recommend(
    source: Source,
    described: Described,
    options: ListOptions,
    engine: cli.EngineOptions,
    output: Output,
    user: tuple[str, ...] = _USERS,
    users: str | None = cli.declared("FILE", "File of users to recommend to."),
    everyone: bool = cli.declared(
        "", "Recommend to every user.", "--all", setting="all", is_flag=True
    ),
    history: str | None = cli.declared("FILE", "Ratings of new users to recommend to."),
    n: int = cli.length("items for each user"),
) -> None:
    """Recommend items to users.

    The input is a saved model, or ratings to fit a model to. A FILE of users or items has one id
    per line, or is CSV, TSV or Parquet with a column user or item. If --block also has a column
    user, each item is blocked for that user only. The columns are user, item, rank and score;
    chance with --chance or --at-least (for models of `recsys fit --chance`); title if there are
    any; new if there are items without ratings, known by their features; and source (model, fill
    or slot) with --fill or --slots. For models of ratings, the score is the expected rating, not
    clipped, minus a discount for few ratings.

    To describe a new user, give --like and --rate with an id, a title or the beginning of a title;
    or --user-features; or --history, a file with ratings of one or more users, or with items that
    one user likes. A liked item gets the highest rating in the training data.

    With --engine spark, the input is a model of `recsys fit --engine spark`. It recommends to
    --all and writes partitioned Parquet to the folder --output.
    """
    if engine.on_spark:
        _recommend_on_spark(source, options, engine, output, n, everyone=everyone)
        return
    inputs.check_groups(options)
    needs_frame = output.resolved_format in ("database", "parquet")
    # The import of polars would take longer than everything else together.
    if user and source.is_alone and not needs_frame:
        from recsys.known_users import lists_of_known_users

        lists = lists_of_known_users(source.path, user, n)
        if lists is not None:
            output.write(lists, command="recommend", model=lists.model, n=n)
            return
    roles: tuple[str, ...] = ()
    if history is not None:
        roles = ("user", "item", "rating", "timestamp", "event", "weight")
    elif options.block is not None:
        roles = ("user", "item")
    recommender = source.open(roles)
    if options.shows_chance and inputs.is_model(source.path):
        note(str(recommender.chances))
    elif options.shows_chance:
        inputs.calibrate(recommender)
    if history is not None:
        rated = inputs.load_history(history, source.reader, recommender)
        half_life = recommender.ratings.rule.half_life
        recommender = recommender.fold_in(rated)
        inputs.note_empty(history, recommender.ratings, half_life)
    elif described:
        recommender = described.folded_into(recommender)
    known_users = recommender.ratings.users
    chosen: Sequence[int | str] = inputs.listed_ids(user, known_users)
    if users is not None:
        from recsys.readers.id_lists import read_ids

        column = recommender.provenance.reading.get("user")
        chosen = [*dict.fromkeys([*read_ids(users, "user", column)])]
    _check_known(chosen, known_users, options.cold_start)
    options = source.with_ids(options, recommender)
    # Lists of all users are written as they are computed.
    batches = recommender.list_batches(chosen if user or users else None, n, options)
    n_rows = output.write(batches, command="recommend", **_head(recommender), n=n)
    if not n_rows:
        reason = "every item is already rated, blocked or filtered out"
        if options.where_user:
            reason += ", or no user meets --where-user"
        if options.at_least:
            reason += f", or has a chance below {options.at_least:g}"
        note(f"no recommendations: {reason}")


def _recommend_on_spark(
    source: Source,
    options: ListOptions,
    engine: cli.EngineOptions,
    output: Output,
    n: int,
    *,
    everyone: bool,
) -> None:
    """Recommend to all users on Spark, which supports few of the options."""
    from recsys.cli.spark import recommend_on_spark

    # The folder is not opened here, but by Spark, which may run elsewhere.
    context = click.get_current_context()
    # These three options work on Spark, too.
    others = {*declarations()} - {"items", "block", "exclude_seen"}
    needed = "--all and --output FOLDER, and takes neither conditions, re-ranking nor --columns"
    is_plain = not any(map(cli.is_typed, others)) and not output.columns
    fits = everyone and output.path and is_plain
    require(fits, f"--engine spark needs {needed}.")
    folder = context.params["output"]
    # A format in the settings is for tables, not for a folder of Spark.
    is_typed = cli.is_typed("format") or cli.is_typed("json")
    form = output.format if is_typed else SUFFIXES.get(Path(folder).suffix)
    fits = form in (None, "parquet")
    require(fits, f"--engine spark writes a folder of Parquet, not {form}.")
    recommend_on_spark(source.path, folder, n, engine, options)


def _check_known(
    users: Sequence[int | str],
    known: Ids,
    cold_start: ColdUser,
) -> None:
    """Report unknown users: raise, or note that they get the most popular items."""
    if not users:
        return
    if cold_start != "error":
        inputs.note_unknown(users, known, "they get the most popular items")
        return
    try:
        known.index(users)
    except UnknownIdError as error:
        hint = "Hint: `recsys data inspect` shows the ids of a ratings file; with --cold-start "
        error.add_note(f"{hint}popular, unknown users get the most popular items.")
        raise


@cli.command(
    "similar",
    examples=[
        "recsys similar model --item 318",
        'recsys similar model --title "shawshank" -n 5',
        "recsys similar model --item 318 --next",
        'recsys similar model --text "space opera with robots"',
        "recsys similar model --user 42",
        'recsys similar model --item 318 --where "stock > 0" --at-most 2 --per brand',
        "recsys similar model --all --output similar.parquet",
    ],
    one_of={
        "--item/--title": ("item", "title"),
        "--text": ("text",),
        "--user": ("user",),
        "--all": ("everything",),
    },
    required="Choose items, texts or users",
    hints={
        "": "Name items by --item, or by --title. Quote values that contain spaces."
    },
)
@source_argument
@cli.list_options(*_OF_ITEMS)
@cli.list_output_options
@source_options
def similar(
    source: Source,
    options: ListOptions,
    output: Output,
    item: tuple[str, ...] = _ITEMS,
    title: tuple[str, ...] = cli.declared(
        "TEXT", "Title of an item, or part of it; repeatable.", multiple=True
    ),
    text: tuple[str, ...] = cli.declared(
        "TEXT", "Description of an item; repeatable.", multiple=True
    ),
    user: tuple[str, ...] = _USERS,
    everything: bool = cli.declared(
        "",
        "List the similar items of every item.",
        "--all",
        setting="all",
        is_flag=True,
    ),
    next: bool = cli.declared(
        "",
        "List what comes next after the items, by a model such as next.",
        is_flag=True,
    ),
    n: int = cli.length("similar items or users for each one"),
) -> None:
    """List similar items or similar users, or what comes next after an item.

    The input is a saved model, or ratings to fit a model to. The score is the cosine similarity of
    the two vectors, damped for items and users with few ratings. Models with features also cover
    items without ratings. With --text, latent semantic indexing compares the text with those among
    the item features, such as descriptions. The columns are item (or user, text), similar, rank and
    score; the title of the similar item if titles are known; and new if there are items without
    ratings. Conditions and lists of items hold for the similar items.
    """
    inputs.check_groups(options)
    is_plain = not any(map(cli.is_typed, _OF_ITEMS))
    require(is_plain or not user, "Options of lists are for items; leave out --user.")
    require(not (next and (user or text)), "--next is for --item, --title or --all.")
    recommender = source.open(() if options.block is None else ("item",))
    ratings = recommender.ratings
    options = source.with_ids(options, recommender)
    queries = None
    if not everything:
        queries = inputs.listed_ids(item, ratings.items)
        queries += [inputs.find_title(ratings, title_text) for title_text in title]
    frames: Iterator[pl.DataFrame]
    if user:
        users = inputs.listed_ids(user, ratings.users)
        frames = iter([recommender.similar_users(users, n)])
    elif text:
        frames = recommender.similar_to_texts(text, n, options)
    else:
        try:
            frames = recommender.similar_batches(queries, n, options, next=next)
        except UnknownIdError as error:
            if ratings.titles is not None:
                error.add_note(
                    "Hint: --title finds an item by its title or part of it."
                )
            raise
    output.write(frames, command="similar", **_head(recommender), n=n)


def _head(recommender: Recommender) -> dict[str, Any]:
    """Return the model that an output names, and the version for `--columns`."""
    return {
        "model": recommender.model.name,
        "identity": recommender.provenance.version,
    }


@cli.command(
    "explain",
    examples=[
        "recsys explain model --user 42 --item 318",
        'recsys explain model --user 42 --title "Toy Story" -n 5 --json',
        'recsys explain model --user-features "age=30, job=student" --item 318',
        "recsys explain model --user 42 --item 318 --by topics",
        'recsys explain model --user 42 --item 318 --where "stock > 0"',
        "recsys explain model --user 42 --item 318 --language de",
    ],
    one_of={"--item": ("item",), "--title": ("title",)},
    required="Choose the item",
)
@source_argument
@described_options
@cli.list_options("items", "block", "exclude_seen", "seen", "repeat_where", "where")
@cli.output_options
@source_options
def explain(
    source: Source,
    described: Described,
    options: ListOptions,
    output: Output,
    user: str | None = cli.declared(
        "ID", "User whose score to explain.", "--user", "-u"
    ),
    item: str | None = cli.declared(
        "ID", "Item whose score to explain.", "--item", "-i"
    ),
    title: str | None = cli.declared("TEXT", "Title of the item, or part of it."),
    by: Literal["ratings", "topics"] = cli.declared(
        "",
        "Explain by the ratings of the user, or by the topics of a model with nonnegative=true.",
        type=click.Choice(["ratings", "topics"]),
        default="ratings",
    ),
    language: Language | None = cli.declared(
        "",
        "Language in which a note has the reasons: en or de.",
        type=click.Choice(["en", "de"]),
    ),
    n: int = cli.length("contributions to show"),
) -> None:
    """Explain a score by the ratings and features behind it.

    The input is a saved model, or ratings to fit a model to. The first row is the base, the score
    without ratings and features. For models of ratings, a row popularity has the discount for items
    with few ratings. Then come the rated items and the features with the largest contributions, and
    the sum of the others. The contributions add up to the score, which is not clipped. The columns
    are part, item, rating and contribution; feature if there are any; and title if titles are
    known. A new user is described as in `recsys recommend`. With --by topics, the score is a sum
    over topics (see `recsys topics`), and the columns are part, topic, contribution and items.

    For an item that is not among the first ten in the list of the user, a note says why: what
    leaves it out, such as --where, or its rank and what the first ten have more of.
    """
    from recsys.data.ids import as_written
    from recsys.folding import NEW_USER
    from recsys.models.abilities import Explains
    from recsys.models.nonnegative import has_topics

    fits = bool(described) == (user is None)
    require(
        fits,
        "Choose the user: --user, or --like, --rate and --user-features for a new one.",
    )
    recommender = source.open(() if options.block is None else ("item",))
    if user is None:
        recommender, user = described.folded_into(recommender), NEW_USER
    ratings = recommender.ratings
    options = source.with_ids(options, recommender)
    user = as_written(user, ratings.users)
    if title is None:
        chosen = as_written(str(item), ratings.items)
    else:
        chosen = inputs.find_title(ratings, title)
    # Scores do not tell why an item is left out, so the list of all items is searched for it.
    place = recommender.placement(user, chosen, _FIRST, **asdict(options))
    if not isinstance(recommender.model, Explains):
        note_placement(place, chosen)  # such a model still ranks
    frame = recommender.explain(user, chosen, n, by=by)
    pair = {
        "user": ratings.users.like([user])[0],
        "item": ratings.items.like([chosen])[0],
    }
    # JSON has rows in place of a frame.
    document = asdict(place) | {"lacks": place.lacks.to_dicts()}
    reasons, text = recommender.reasons(user, chosen, language or "en")
    output.write(
        frame,
        command="explain",
        model=recommender.model.name,
        **pair,
        placement=document,
        reasons=reasons,
        text=text,
    )
    if language is not None:
        note(text)
    note_placement(place, chosen)
    if by == "ratings" and has_topics(recommender.model):
        note_topics(recommender.explain(user, chosen, by="topics"))


def note_placement(place: Placement, item: int | str) -> None:
    """Report why an item is not among the first in a list."""
    if place.rank is None:
        causes = " and ".join(_REASONS[reason] for reason in place.reasons)
        note(f"item {item} is not in the list: {causes}")
        return
    if place.rank <= _FIRST:
        return
    sentence = f"item {item} is number {place.rank:,} of {place.n_ranked:,} in the list"
    names = []
    for row in place.lacks.to_dicts():
        # The most telling name that the row has.
        name = row.get("title") or row.get("feature") or row["item"] or row["part"]
        names.append(f"{name} (+{row['of_first'] - row['contribution']:.3g})")
    if names:
        sentence += f"; the first {_FIRST} have more by {', '.join(names)}"
    note(sentence)


def note_topics(explanation: pl.DataFrame) -> None:
    """Report the topics with the largest contributions to a score."""
    topics = explanation.filter(explanation["part"] == "topic")
    total = topics["contribution"].sum()
    for row in topics.head(_NOTED_TOPICS).iter_rows(named=True):
        share = row["contribution"] / total
        note(f"topic {row['topic']} has {share:.0%} of the score: {row['items']}")


@cli.command(
    "topics",
    examples=[
        "recsys topics model",
        "recsys topics model -n 5 --json",
    ],
)
@click.argument("model", metavar="MODEL")
@cli.output_options
def topics(
    model: str,
    output: Output,
    n: int = cli.length("items of each topic"),
) -> None:
    """List the items of each topic of a model.

    The factors of als and ials that were fitted with -p nonnegative=true are topics,
    the strongest one first. The weight of an item is the mean contribution of the topic
    to its scores, damped for items with few ratings. The columns are topic, item, rank,
    weight, and title if titles are known. A table on a terminal has one line for each
    topic.
    """
    import polars as pl

    recommender = inputs.load_model(model)
    frame = recommender.topics(n)
    name = "title" if "title" in frame.columns else "item"
    lines = frame.group_by("topic", maintain_order=True).agg(
        pl.col(name).cast(pl.String).fill_null(pl.col("item").cast(pl.String))
    )
    lines = lines.select("topic", pl.col(name).list.join("; ").alias("items"))
    # A line for each topic is readable; a program gets a row for each item.
    is_table = output.resolved_format == "table"
    output.write(
        lines if is_table else frame,
        command="topics",
        model=recommender.model.name,
        n=n,
    )


@cli.command(
    "predict",
    examples=[
        "recsys predict model pairs.csv",
        "recsys predict model pairs.parquet --cold-start bias --output predictions.parquet",
        "recsys predict ratings.csv - --json",
        "recsys predict model --user 42 --item 318,296",
        'recsys predict model --user-features "age=30, job=student" --item 318',
    ],
    one_of={"PAIRS": ("pairs",), "--user with --item": ("user", "item")},
    required="Choose the pairs",
    hints={"": "For pairs that are not in a file, give --user and --item."},
)
@source_argument
@click.argument("pairs", required=False, type=cli.PLACE)
@cli.list_output_options
@source_options
def predict(
    source: Source,
    pairs: str | None,
    output: Output,
    user: tuple[str, ...] = _USERS,
    user_features: str | None = cli.declared(
        "NAME=VALUE,...", "Features of a new user."
    ),
    item: tuple[str, ...] = _ITEMS,
    cold_start: ColdPair = cli.declared(
        "",
        "Prediction for unknown users or items: an error, the mean plus known biases (bias), or "
        "the mean rating of the item (popular).",
        type=click.Choice(["error", "bias", "popular"]),
        default="error",
    ),
    std: bool = cli.declared(
        "", "Add standard deviations, for models that estimate them.", is_flag=True
    ),
) -> None:
    """Predict the ratings of user-item pairs.

    The input is a saved model, or ratings to fit a model to. PAIRS is a file with a user and an
    item column; with a saved model, the options for reading apply to it. Without
    PAIRS, every --user, or the new user of --user-features, is paired with every --item. Rows keep
    their order. The columns are user, item, prediction, and std with --std. Predictions are clipped
    to the range of the training ratings.
    """
    import polars as pl

    from recsys.data.ids import Ids
    from recsys.data.new_ids import doubtful_ids
    from recsys.folding import NEW_USER

    fits = bool(user_features is None or (item and not user))
    require(fits, "--user-features requires --item, and excludes --user and PAIRS.")
    fits = bool(pairs is not None or (item and (user or user_features)))
    require(fits, "--user and --item require each other; give both.")
    # Of a saved model, the options for columns apply to the pairs.
    recommender = source.open(() if pairs is None else ("user", "item", "timestamp"))
    if user_features is not None:
        recommender, user = (
            recommender.fold_in(user_features=user_features),
            (NEW_USER,),
        )
    if pairs is None:
        users = inputs.listed_ids(user, recommender.ratings.users)
        items = inputs.listed_ids(item, recommender.ratings.items)
        frame = pl.DataFrame({"user": users}).join(
            pl.DataFrame({"item": items}), how="cross"
        )
    else:
        reader = source.reader if inputs.is_model(source.path) else cli.ReaderOptions()
        like = recommender.provenance.reading
        frame = pl.DataFrame(inputs.load_pairs(pairs, reader, like))
        known = recommender.ratings
        doubt = doubtful_ids(
            known, Ids(frame["user"], "user"), Ids(frame["item"], "item")
        )
        if doubt is not None:
            note(doubt)
    if cold_start != "error":
        answers = {
            "bias": "they get the known biases",
            "popular": "they get the items' means",
        }
        for ids in (recommender.ratings.users, recommender.ratings.items):
            listed = frame[ids.kind].unique(maintain_order=True).to_list()
            inputs.note_unknown(listed, ids, answers[cold_start])
    try:
        predictions = recommender.predict(frame, cold_start=cold_start, std=std)
    except UnknownIdError as error:
        error.add_note(
            "Hint: --cold-start bias predicts pairs of unknown users or items as well."
        )
        raise
    output.write(predictions, command="predict", **_head(recommender))


@cli.command(
    "impute",
    examples=[
        "recsys impute model --output ratings.parquet",
        "recsys impute ratings.csv --users users.txt --items items.txt",
    ],
)
@source_argument
@cli.list_output_options
@source_options
def impute(
    source: Source,
    output: Output,
    users: str | None = cli.declared("FILE", "File of users to predict for."),
    items: str | None = cli.declared("FILE", "File of items to predict for."),
) -> None:
    """Predict all missing ratings.

    The input is a saved model, or ratings to fit a model to. The columns are user, item and
    prediction, sorted by user. Predictions are clipped to the range of the training ratings. Rows
    are written as they are computed, so that memory use does not grow with their number.
    """
    recommender = source.open()
    ratings = recommender.ratings
    reading = recommender.provenance.reading
    blocks = recommender.impute(
        None if users is None else inputs.known_ids(users, ratings.users, reading),
        None if items is None else inputs.known_ids(items, ratings.items, reading),
    )
    # A bar would disturb rows that go to the terminal.
    with Activity("Imputing") if output.path or output.address else nullcontext():
        output.write(blocks, command="impute", **_head(recommender))
