"""`recsys fit` and `recsys update`: fit models, and update them with new ratings."""

from __future__ import annotations

import shlex
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import click

from recsys.cli import inputs
from recsys.cli import options as cli
from recsys.cli.errors import require
from recsys.cli.group import configured
from recsys.cli.output import Activity, describe, note
from recsys.cli.waiting import alone
from recsys.messages import counted, enumerated

if TYPE_CHECKING:
    from recsys.data.ratings import Ratings
    from recsys.recommender import Recommender
    from recsys.user_columns import SavedColumns
    from recsys.user_logs import WantedUsers

_NAMED = 10  # maximum number of users named in a message


@cli.command(
    "fit",
    examples=[
        "recsys fit ratings.csv --out model",
        "recsys fit ratings.csv --out model --model als --factors 64 --test-fraction 0.1 --force",
        "recsys fit ratings.csv --out model --model bias -p user_damping=10",
        "recsys fit 'events/2025-*/*.parquet' --out model",
        "recsys fit postgresql://shop@localhost/shop --table events --out model",
        "recsys fit s3a://lake/ratings --out s3a://lake/model --engine spark --master yarn",
    ],
)
@cli.ratings_argument
@cli.fit_options
@cli.reader_options()
@cli.engine_options()
def fit(
    ratings: tuple[str, ...],
    fitting: cli.FitOptions,
    reader: cli.ReaderOptions,
    engine: cli.EngineOptions,
    out: str = cli.declared(
        "MODEL", "Directory for the model.", "--out", "-o", required=True
    ),
    force: bool = cli.declared("", "Replace an existing model.", is_flag=True),
    tag: str | None = cli.declared("TEXT", "Free text to store in the model."),
    keep_col: tuple[str, ...] = cli.declared(
        "NAME",
        "Column of users to save though the model does not use it; repeatable.",
        multiple=True,
        commas=True,
        details="As in `recsys update --help`",
    ),
    chance: bool = cli.declared(
        "",
        "Learn the chances of `recsys recommend --chance`, by a second fit.",
        is_flag=True,
    ),
    test_fraction: float | None = cli.declared(
        "FRACTION",
        "Share of the ratings to hold out, to report their RMSE after each iteration; the model "
        "does not have them.",
        type=cli.INNER_SHARE,
    ),
    budget: str | None = cli.declared(
        "TIME",
        "Time for choosing a model and fitting it, such as 60s (s, min, h): slow models are left "
        "out, and searches end in time.",
        show_default="as long as it takes",
    ),
) -> None:
    """Fit a model to ratings and save it.

    RATINGS are files, folders, patterns ('events/*.parquet'), URLs, tables of databases
    (postgresql://USER@HOST/DB, x.db::TABLE, x.duckdb::TABLE), or - for standard input.

    Without --model, models that suit the data are compared on a held-out tenth of the data, and the
    best one, or a blend, is fitted to all of it. They are als, linked als and bayes for ratings;
    spectral, ials and ease for data without ratings, or whose ratings are all equal or look like
    counts. The model is written to a temporary directory and moved into place when complete.

    With --engine spark, RATINGS are Parquet or CSV files. They and MODEL are paths that Spark can
    reach. The model is als, or implicit ALS for data without ratings.
    """
    if engine.on_spark:
        from recsys.cli.spark import fit_on_spark

        require(
            len(ratings) == 1, "--engine spark takes one folder or pattern of files."
        )
        for name in ("tag", "keep_col", "chance", "budget"):
            sentence = f"--{name.replace('_', '-')} does not apply to --engine spark."
            require(not cli.is_typed(name), sentence)
        fit_on_spark(
            ratings[0], out, engine, fitting, reader, holdout=test_fraction, force=force
        )
        return

    from recsys.data.times import duration
    from recsys.saving.model_file import MODEL
    from recsys.saving.storage import check_target

    check_target(out, MODEL, overwrite=force)
    # An invalid option costs a second here, and minutes after the reading.
    if budget is not None:
        duration(budget, "--budget")
    if fitting.model is not None:
        inputs.parameters_for([fitting.model], fitting)  # raises before a long reading
    loaded = inputs.load_ratings(ratings, reader)
    planned, used, reason = inputs.plan_fit(fitting, loaded, reader, budget=budget)
    keep_columns = _columns_to_keep(used, keep_col, reader)
    announced = _note_columns(used, keep_columns)
    if reason is not None:
        note(reason)
    start = time.perf_counter()
    if test_fraction is None:
        fitted = inputs.fit_recommender(planned, used)
    else:
        from recsys.evaluation.splits import random_split

        train, test = random_split(used, test_fraction, random_state=fitting.seed)
        fitted = inputs.fit_recommender(
            planned, train, test, lambda step: note(describe(step))
        )
    if chance:
        inputs.calibrate(fitted)
    seconds = time.perf_counter() - start
    with alone(out):
        fitted.save(out, overwrite=force, tag=tag, keep_columns=keep_columns)
    _note_columns(
        fitted.ratings, keep_columns, announced
    )  # auto may choose a model without any
    if findings := fitted.training.get("choice"):
        for line in findings.split("; ")[1:]:  # the first one is already reported
            note(line)
    for line in fitted.model.remarks:
        note(line)
    note(
        f"fitted {fitted.model.name} to {fitted.ratings} in {seconds:.1f} s, saved in {out}"
    )


def _columns_to_keep(
    ratings: Ratings,
    named: Sequence[str],
    reader: cli.ReaderOptions,
) -> list[str]:
    """Return the columns of users that are named: as such, as features, or in a condition.

    Raises
    ------
    DataError
        If a column of --keep-col does not exist.
    """
    from recsys.user_columns import check_columns, named_in

    check_columns(ratings, named)
    if ratings.user_table is None:
        return []
    kinds = ratings.user_table.kinds
    features = [name for name in reader.feature_names or () if name in kinds]
    columns = [*named, *features]
    for condition in configured(click.get_current_context(), "where_user"):
        columns += named_in(condition, ratings)
    return columns


def _note_columns(
    ratings: Ratings,
    keep: Sequence[str],
    announced: SavedColumns | None = None,
) -> SavedColumns | None:
    """Say which columns of users are saved, unless that was announced already."""
    from recsys.user_columns import saved_columns

    columns = saved_columns(ratings, keep)
    if columns is not None and columns != announced:
        note(str(columns))
    return columns


@dataclass(frozen=True)
class _Changes:
    """Options of an update, other than its data."""

    refit: bool = cli.declared(
        "",
        "Fit the model to all ratings again, which takes as long as `fit`.",
        is_flag=True,
    )
    window: str | None = cli.declared(
        "TIME",
        "Age before the last rating at which ratings are dropped, such as 180d (s, h, d, w, y).",
        show_default="as at the last update",
    )
    forget_user: tuple[str, ...] = cli.declared(
        "ID",
        "User to remove, with all ratings and features; repeatable.",
        multiple=True,
        commas=True,
    )
    forget_users: tuple[str, ...] = cli.declared(
        "FILE",
        "List of users to remove, as with --forget-user; repeatable.",
        multiple=True,
    )
    log: tuple[str, ...] = cli.declared(
        "FILE",
        "Log (.jsonl) to remove these users from; repeatable.",
        multiple=True,
    )
    tag: str | None = cli.declared("TEXT", "Free text to store in the model.")
    dry_run: bool = cli.declared(
        "", "Say what would change, and save nothing.", is_flag=True
    )
    keep_col: tuple[str, ...] = cli.declared(
        "NAME",
        "Column of users to save though the model does not use it; repeatable.",
        show_default="as at the fit",
        multiple=True,
        commas=True,
    )

    def arguments(
        self, forgotten: _Forgotten, reader: cli.ReaderOptions
    ) -> dict[str, Any]:
        """Return the arguments of `Recommender.update`, other than the new ratings."""
        return {
            "window": self.window,
            "forget": forgotten.in_model or None,
            "refit": self.refit or None,
            "as_of": reader.options.get("as_of"),
        }

    def save(
        self,
        updated: Recommender,
        target: str,
        reader: cli.ReaderOptions,
        *,
        force: bool,
    ) -> list[str]:
        """Save an updated model, and return the columns of users to keep."""
        columns = _columns_to_keep(updated.ratings, self.keep_col, reader)
        updated.save(target, overwrite=force, tag=self.tag, keep_columns=columns)
        return columns


@cli.command(
    "update",
    examples=[
        "recsys update model new-ratings.csv --force",
        "recsys update versions/latest events.jsonl --out versions/2025-06-10 --window 180d",
        "recsys update model --forget-user 4711 --log events.jsonl --force",
        "recsys update model --item-table shop.db::products --force",
    ],
)
@click.argument("model", type=cli.PLACE)
@click.argument("ratings", nargs=-1, type=cli.PLACE)
@cli.bundle("changes", _Changes, *cli.declared_in(_Changes, "Options"))
@cli.reader_options()
def update(
    model: str,
    ratings: tuple[str, ...],
    changes: _Changes,
    reader: cli.ReaderOptions,
    out: str | None = cli.declared(
        "MODEL2", "Directory for the updated model.", "--out", "-o"
    ),
    force: bool = cli.declared(
        "", "Replace an existing model (MODEL, without --out).", is_flag=True
    ),
) -> None:
    """Add new ratings to a model, remove old ones or users, or replace the tables.

    By default, RATINGS are read as for the model: with the same columns, tables, weights of
    events and half-life. Users and items may be new. The ratings then equal one reading of
    all events: an event that is known already is left out, so that an update may be repeated, and
    may overlap an earlier one. An event is known by its id (--event-id-col), else by its user,
    item, time, kind and value.

    New and changed users and items are folded in, which takes time in proportion to the new
    ratings. The model is fitted to all ratings again if it cannot fold in, if a fifth of the
    ratings is newer than the last fit, if weights have halved since, or if the distribution of the
    ratings has shifted (see `recsys monitor`). It is then fitted as it was requested, with nothing
    of the last fit: what `fit` has chosen by the data is chosen again. With --item-table or
    --user-table alone, only the table is replaced: new items and users with features are added, and
    items without a row are not recommended any more.
    The result is written to a temporary directory and moved into place when complete. Simultaneous
    updates of a model wait for each other.
    """
    forgets = bool(changes.forget_user or changes.forget_users)
    of_ratings = bool(ratings or changes.window or forgets or changes.refit)
    require(
        of_ratings or inputs.TABLES & reader.options.keys(),
        "Give RATINGS, --window, --forget-user, --refit or --item-table.",
    )
    require(not changes.log or forgets, "--log requires --forget-user.")
    if changes.dry_run:
        old = _opened(model, ratings, reader)
        if of_ratings:
            _say_plan(old, ratings, changes, reader)
        else:
            name = old.model.name
            note(f"{name} would be updated with other tables to {old.ratings}")
        return
    target = _target(model, out, force=force)
    start = time.perf_counter()
    # Loaded while no other job can change the model, so that nothing which one saves is lost.
    with alone(target):
        old = _opened(model, ratings, reader)
        if of_ratings:
            _update(old, model, ratings, target, changes, reader, force=force)
            return
        changes.save(old, target, reader, force=force)
    seconds = time.perf_counter() - start
    what = f"{old.model.name} to {old.ratings}"
    note(f"updated the tables of {what} in {seconds:.1f} s, saved in {target}")


def _opened(
    model: str,
    ratings: tuple[str, ...],
    reader: cli.ReaderOptions,
) -> Recommender:
    """Return the model with other tables, if these are not read together with ratings."""
    old = inputs.load_model(model)
    return old if ratings else _with_tables(old, reader)


def _say_plan(
    old: Recommender,
    ratings: tuple[str, ...],
    changes: _Changes,
    reader: cli.ReaderOptions,
) -> None:
    """Say what an update would change."""
    from recsys.update import planned

    new = _new_ratings(old, ratings, reader)
    forgotten = _users_to_forget(old, new, changes)
    plan = planned(old.fitted, new, **changes.arguments(forgotten, reader))
    note(plan.description)
    note(
        "it would be folded in"
        if plan.reason is None
        else f"it would be fitted: {plan.reason}"
    )
    note(f"{old.model.name} would be updated from {old.ratings} to {plan.change.after}")


def _new_ratings(
    old: Recommender,
    ratings: tuple[str, ...],
    reader: cli.ReaderOptions,
) -> Ratings | None:
    """Read new ratings as the ratings of a model were read."""
    from recsys.update import reading_of

    if not ratings:
        return None
    return inputs.load_ratings(
        ratings, reader, reading_of(old.fitted)
    ).as_interactions()


def _with_tables(old: Recommender, reader: cli.ReaderOptions) -> Recommender:
    """Return the model with the tables that are named in place of its own."""
    from recsys.provenance import remembered

    paths = {
        name: path for name, path in reader.options.items() if name in inputs.TABLES
    }
    renewed = inputs.with_named_tables(old, reader, is_catalogue=True)
    if renewed is not old:
        reading = remembered({**old.provenance.reading, **paths})
        child = old.provenance.child(reading)
        renewed.provenance = replace(child, source=old.provenance.source)
    return renewed


def _target(
    model: str,
    out: str | None,
    *,
    force: bool,
) -> str:
    """Return the directory for an updated model, after a check that it may be written."""
    from recsys.saving.arrays import as_path
    from recsys.saving.model_file import MODEL
    from recsys.saving.storage import check_target

    require(
        out or force, "Add --out MODEL2 for a new model, or --force to replace MODEL."
    )
    target = out or str(as_path(model))
    check_target(target, MODEL, overwrite=force)
    return target


def _update(
    old: Recommender,
    model: str,
    ratings: tuple[str, ...],
    target: str,
    changes: _Changes,
    reader: cli.ReaderOptions,
    *,
    force: bool,
) -> None:
    new = _new_ratings(old, ratings, reader)
    start = time.perf_counter()
    forgotten = _users_to_forget(old, new, changes)
    with Activity(f"Updating {old.model.name}") as activity:
        updated = old.update(
            new, **changes.arguments(forgotten, reader), on_step=activity.step
        )
        keep_columns = changes.save(updated, target, reader, force=force)
    seconds = time.perf_counter() - start
    _note_columns(updated.ratings, [*updated.provenance.keep_columns, *keep_columns])
    note(updated.training["changes"])
    note(updated.training["update"])
    is_refit = updated.training["update"].startswith("fitted again")
    if is_refit:
        note("nothing of the last fit was used, so this took as long as `recsys fit`")
    note(
        f"updated {updated.model.name} to {updated.ratings} in {seconds:.1f} s, saved in {target}"
    )
    if forgotten.in_model and not is_refit:
        note(
            "the items keep what the fit has learned from these users; --refit removes that, too"
        )
    if forgotten.users:
        _erase(forgotten, changes)
        _note_other_models(forgotten, model, target, changes)


@dataclass(frozen=True)
class _Forgotten:
    """Users to forget: all, those in the model, and what finds them in logs."""

    users: list[str]
    in_model: list[str]
    wanted: WantedUsers


def _users_to_forget(
    old: Recommender,
    new: Ratings | None,
    changes: _Changes,
) -> _Forgotten:
    """Return the users to forget; say which of them only a log has, or nothing at all.

    Raises
    ------
    DataError
        If a log or a list of users cannot be read.
    """
    from recsys.changes import are_known
    from recsys.data.ids import Ids
    from recsys.data.new_ids import doubt
    from recsys.readers.id_lists import read_ids
    from recsys.user_logs import WantedUsers, search_log

    column = old.provenance.reading.get("user")
    are_integers = old.ratings.users.dtype.is_integer()
    selection = WantedUsers(changes.forget_user, column, are_integers=are_integers)
    typed = list(selection.ids)
    listed: list[str] = []
    for path in changes.forget_users:
        ids = read_ids(path, "user", column)
        listed += WantedUsers(ids, are_integers=are_integers).ids
    users = list(dict.fromkeys([*typed, *listed]))
    selection = WantedUsers(users, column, are_integers=are_integers)
    if not users:
        return _Forgotten(users, users, selection)
    logged = {user for log in changes.log for user in search_log(log, selection).users}
    # A user of the new ratings alone is not added in the first place.
    parts = [old.ratings] if new is None else [old.ratings, new]
    is_known_user = are_known(Ids(users, "user", sort=False), *parts)
    in_model = [
        user for user, is_known in zip(users, is_known_user, strict=True) if is_known
    ]
    elsewhere = [user for user in users if user in logged and user not in {*in_model}]
    if elsewhere:
        note(f"not in the model, only in the logs: {enumerated(elsewhere, _NAMED)}")
    unknown = [user for user in users if user not in {*in_model, *elsewhere}]
    if only_listed := [user for user in unknown if user not in {*typed}]:
        files = ", ".join(changes.forget_users)
        n_listed = f"{len(only_listed):,} of {len(users):,} users of {files}"
        listed_ids = f"are not in the model: {enumerated(only_listed, _NAMED, repr)}"
        new_ids = Ids(only_listed, "user")
        doubtful = doubt(old.ratings.users, old.ratings.items, new_ids)
        note("; ".join(filter(None, (f"{n_listed} {listed_ids}", doubtful))))
    # A user who was typed is an error if unknown; lists may be treated again.
    return _Forgotten(
        users, [*in_model, *(user for user in unknown if user in {*typed})], selection
    )


def _erase(forgotten: _Forgotten, changes: _Changes) -> None:
    """Remove users from logs, and report lines that cannot be read."""
    from recsys.user_logs import erase_users, torn_lines

    for log in changes.log:
        search = erase_users(log, forgotten.wanted)
        note(f"removed {counted(search.n_lines, 'line')} from {log}")
        if search.n_unreadable:
            note(f"{log}: {search}")
        # Half of a line cannot be read, but may have a name in it.
        torn, n_suspicious = torn_lines(log, forgotten.wanted)
        if n_suspicious:
            note(f"{torn}: {counted(n_suspicious, 'torn line')} may name these users")


def _note_other_models(
    forgotten: _Forgotten,
    model: str,
    target: str,
    changes: _Changes,
) -> None:
    """Name the models next to this one that still know users, and the command for them."""
    from recsys.saving.versions import models_knowing

    knowing = models_knowing(forgotten.users, (model, target))
    if knowing.models:
        note(
            f"still known by {', '.join(map(str, knowing.models))}; to forget there, too:"
        )
        paths = shlex.join(map(str, knowing.models))
        options = [
            text for user in changes.forget_user for text in ("--forget-user", user)
        ]
        options += [
            text for path in changes.forget_users for text in ("--forget-users", path)
        ]
        options += ["--refit"] if changes.refit else []
        # One line to copy, whatever the number of models.
        command = f'recsys update "$m" {shlex.join(options)} --force'
        note(f"  for m in {paths}; do {command}; done", verbatim=True)
    if knowing.unreadable:
        listed = ", ".join(map(str, knowing.unreadable))
        note(f"cannot be read, so they may know these users: {listed}")
