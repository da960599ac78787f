"""Inputs of the verbs: ratings or a saved model, parameters, titles, lists of ids, histories."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from recsys.cli.errors import CommandError, require
from recsys.cli.options import NAMED, FitOptions, ReaderOptions, is_typed
from recsys.cli.output import Activity, note
from recsys.messages import close_matches, counted, did_you_mean, enumerated

if TYPE_CHECKING:
    import numpy as np
    import polars as pl
    from numpy.typing import NDArray

    from recsys.data.columns import Request
    from recsys.data.features import Features
    from recsys.data.ids import Ids
    from recsys.data.ratings import Ratings
    from recsys.features.encoder import FeatureBlocks, FeatureEncoder
    from recsys.models.base import Model, Step
    from recsys.models.parameters import Parameter
    from recsys.ranking.lists import ListOptions
    from recsys.recommender import Recommender

_SHARED = {"random_state": "--seed", "threads": "--threads", "purpose": "--for"}
_TYPES = {bool: click.BOOL, int: click.INT, float: click.FLOAT}
_NAMED = 3
_CANDIDATES = 10
TABLES = frozenset(("item_table", "user_table"))
"""Options with tables of items and users."""


def is_model(path: str) -> bool:
    """Return whether there is a saved model at `path`."""
    from recsys.saving.arrays import MANIFEST, as_path

    return (as_path(path) / MANIFEST).is_file()


def load_ratings(
    sources: str | Sequence[str],
    reader: ReaderOptions,
    defaults: Mapping[str, Any] | None = None,
) -> Ratings:
    """Read ratings from one or several sources, and report in one line how they were read.

    `defaults` are used for options that were not given.
    """
    from recsys.readers import read_ratings

    sources = [sources] if isinstance(sources, str) else sources
    with Activity(f"Reading {', '.join(sources)}") as activity:
        ratings = read_ratings(
            sources, defaults=defaults, on_rows=activity.count, **reader.options
        )
    note(str(ratings.source))
    for problem in ratings.source.skipped if ratings.source else ():
        note(f"skipped: {problem}")
    return ratings


def load_pairs(
    path: str,
    reader: ReaderOptions,
    defaults: Mapping[str, Any] | None = None,
) -> dict[str, pl.Series]:
    """Read user, item and, if there is one, timestamp of a file, its rows in their order.

    `defaults` are used for options that were not given.
    """
    from recsys.data.rows import OPTIONAL_ROLES
    from recsys.data.times import unix_seconds
    from recsys.readers import read_raw
    from recsys.readers.sources import open_data

    require_columns(
        reader, ("user", "item", "timestamp"), f"{path} is read for pairs only"
    )
    roles = ("user", "item", "timestamp")
    request = _request(reader, defaults, roles).changed(implicit=True)
    with open_data(path, request.options) as data:
        columns = read_raw(data, request).plain().columns
    form = reader.options.get("time_format") or (defaults or {}).get("time_format")
    if "timestamp" in columns and form is not None:
        columns["timestamp"] = unix_seconds(columns["timestamp"], form=form)
    return {
        role: column.alias(role)
        for role, column in columns.items()
        if role not in OPTIONAL_ROLES
    }


def _request(
    reader: ReaderOptions,
    earlier: Mapping[str, Any] | None = None,
    roles: Collection[str] = ("user", "item"),
) -> Request:
    """Return the request for columns of a file that is not of ratings.

    An `earlier` reading gives the columns and the encoding that `reader` lacks.
    """
    from recsys.data.columns import Request

    given = {
        name: value
        for name, value in reader.options.items()
        if name in (*roles, "sep", "encoding")
    }
    remembered = {
        name: value
        for name, value in (earlier or {}).items()
        if name in (*roles, "encoding") and value is not None
    }
    return Request.from_options({**remembered, **given}, given)


def require_columns(
    reader: ReaderOptions,
    used: Collection[str],
    reason: str,
) -> None:
    """Check that the command line names columns of these roles only.

    Raises
    ------
    UsageError
        If it names another one, which would have no effect, for this reason.
    """
    for role in ("user", "item", "rating", "timestamp", "event", "weight"):
        name = reader.options.get(role)
        if name is not None and role not in used and is_typed(f"{role}_col"):
            raise click.UsageError(
                f"--{role}-col {name} has no effect: {reason}; leave it out."
            )


def load_model(path: str) -> Recommender:
    """Load a saved model."""
    from recsys.recommender import Recommender

    return Recommender.load(path)


def open_recommender(
    path: str,
    reader: ReaderOptions,
    fitting: FitOptions,
    roles: Collection[str] = (),
) -> Recommender:
    """Load the saved model at `path`, or fit one to the ratings there.

    With a saved model, the options may name columns of these roles, of another file.

    Raises
    ------
    CommandError
        If `path` is a saved model and options of a fit are given.
    """
    source = click.get_current_context().get_parameter_source("model")
    if is_model(path):
        # Settings for fits stay in recsys.toml, so only the command line can contradict a model.
        recommender = load_model(path)
        name = recommender.model.name
        if fitting.model not in (None, name) and is_typed("model"):
            other = f"--model {fitting.model} needs a file of ratings; leave it out"
            raise CommandError(f"{path} is a saved {name} model, and {other}.")
        if not TABLES.isdisjoint(reader.options):
            roles = {*roles, "user", "item"}
        require_columns(reader, roles, f"{path} is a saved model")
        return with_named_tables(recommender, reader)
    ratings = load_ratings(path, reader)
    is_given = source is not ParameterSource.DEFAULT
    planned, used, reason = plan_fit(fitting, ratings, reader, compare=is_given)
    before, after = ((data.implicit, data.weighted) for data in (ratings, used))
    if reason is not None and before != after:
        note(reason)
    fitted = fit_recommender(planned, used)
    where = "standard input" if path == "-" else path
    note(
        f"fitted {fitted.model.name} to {where} (not saved; use `recsys fit` to keep the model)"
    )
    return fitted


def calibrate(recommender: Recommender) -> None:
    """Let a recommender know the chances of its items, and say how."""
    from recsys import evaluation

    with Activity("Calibrating"):
        chances = evaluation.calibrate(recommender).chances
    note(str(chances))


def with_named_tables(
    recommender: Recommender,
    reader: ReaderOptions,
    *,
    is_catalogue: bool = False,
) -> Recommender:
    """Return the model with the tables that are named in place of its own.

    Items that are missing in a catalogue are not recommended.
    """
    from recsys.catalogues import read_catalogue
    from recsys.readers import read_table

    request = _request(reader, recommender.provenance.reading)
    ratings = recommender.ratings
    tables = {}
    sides: list[tuple[Ids, Any]] = [
        (ratings.items, ratings.item_features),
        (ratings.users, ratings.user_features),
    ]
    for ids, features in sides:
        name = f"{ids.kind}_table"
        table_source: Any = reader.options.get(name)
        if table_source is not None:
            if is_catalogue and ids.kind == "item":
                reading = {**recommender.provenance.reading, **reader.options}
                table, remark = read_catalogue(
                    table_source, ratings, reading, of_new=True
                )
            else:
                table, remark = read_table(table_source, ids, request, of_new=True)
            tables[name] = table
            note(remark)
            _note_unknown_levels(table, ids, features)
    return recommender.with_tables(**tables) if tables else recommender


def _note_unknown_levels(
    table: Features,
    ids: Ids,
    features: FeatureBlocks | None,
) -> None:
    """Report the categories of new items or users that a model does not know."""
    encoder: FeatureEncoder | None = getattr(features, "encoder", None)
    if encoder is not None:
        new = table.frame.filter(ids.find(table.frame[ids.kind]) < 0)
        unknown = encoder.unknown(replace(table, frame=new))
        unknown_levels = [
            f"{column} = {level}" for column in unknown for level in unknown[column]
        ]
        if unknown_levels:
            note(f"not known to the model: {enumerated(unknown_levels, _NAMED)}")


def plan_fit(
    fitting: FitOptions,
    ratings: Ratings,
    reader: ReaderOptions,
    *,
    compare: bool = True,
    budget: str | None = None,
) -> tuple[Recommender, Ratings, str | None]:
    """Return the recommender to fit, its ratings, and the reason if the model was chosen.

    The ratings have features if the model uses them and there are tables. Without `compare`, the
    first of several candidates is chosen, which is faster.
    """
    from recsys.auto import CANDIDATES, Auto, choose_model
    from recsys.recommender import Recommender

    if (name := fitting.model) is not None:
        check_purpose(fitting)
        is_unused = budget is None or not is_typed("budget")
        require(is_unused, f"--budget is for --model auto, not for {name}.")
        recommender = Recommender(name, **parameters_for([name], fitting)[name])
        note_weights([recommender.model], ratings)
        used = featured(ratings, reader, [recommender.model], unrated=True)
        return recommender, used, None
    purpose = fitting.purpose or "later"
    names = dict.fromkeys(
        candidate.model for candidate in choose_model(ratings, purpose).candidates
    )
    parameters_for(names, fitting, shared=False)  # raises if they do not apply
    auto = Auto(purpose=purpose, random_state=fitting.seed, threads=fitting.threads)
    auto.set_params(budget=budget)
    auto.requested(
        parameters_for(CANDIDATES, fitting, shared=False), is_compared=compare
    )
    choice = auto.choose(ratings)
    if fitting.purpose == "later":
        reason = f"{choice.reason}; for what comes later, judged by random items"
        choice = replace(choice, reason=reason)
    auto.among(choice)
    models = auto.candidate_models()
    used = featured(choice.ratings, reader, models, unrated=True)
    note_weights(models, choice.ratings)
    said = f"chose {choice}"
    if choice.is_open:
        said = f"comparing {choice}; {auto.announcement(used)}"
    return Recommender(auto), used, said


def featured(
    ratings: Ratings,
    reader: ReaderOptions,
    models: Iterable[Model],
    *,
    unrated: bool = False,
) -> Ratings:
    """Return ratings with the features of their tables, if there are any and a model uses them.

    With `unrated`, also include the items and users of the tables that have no ratings.

    Raises
    ------
    CommandError
        If features are requested but there are no tables.
    """
    named = reader.feature_names or None
    if ratings.item_table is ratings.user_table is None:
        if named is not None:
            tables = "name one with --item-table or --user-table"
            raise CommandError(
                f"--features takes columns of tables, and there are none; {tables}."
            )
        return ratings
    models = list(models)
    if reader.no_features or not any(model.uses_features for model in models):
        if named is not None:
            note(f"{', '.join(model.name for model in models)} does not use features")
        return ratings
    from recsys.features.selection import with_features

    with_tables = with_features(ratings, named, unrated=unrated)
    for side in ("item", "user"):
        axis = with_tables.axis(side)
        if axis.encoder is not None:
            n_unrated = len(axis.ids) - len(ratings.axis(side).ids)
            sentence = f"features of {side}s: {axis.encoder}"
            if n_unrated > 0:
                unrated_ids = counted(n_unrated, side)
                sentence += f"; {unrated_ids} without ratings known by features only"
            note(sentence)
    return with_tables


def note_weights(models: Iterable[Model], ratings: Ratings) -> None:
    """Report which models ignore the weights of interactions, or dislikes and impressions."""
    models = list(models)
    if ratings.rule.has_zeros:
        others = [model for model in models if not model.uses_zeros]
        graded = [model.name for model in others if model._needs_values]
        names = [model.name for model in others if not model._needs_values]
        if graded:
            note(f"likes are grades of 1 and dislikes of 0 for {', '.join(graded)}")
        if names:
            hint = "disliked items are left out of the lists"
            note(f"{_do_not(names)} use dislikes and impressions; {hint}")
    names = [model.name for model in models if not model.uses_weights]
    if names and ratings.implicit and ratings.as_interactions().weighted:
        note(f"{_do_not(names)} use the weights of interactions: all count the same")


def _do_not(names: Sequence[str]) -> str:
    """Return the subject of a sentence on what models do not do."""
    verb = "does" if len(names) == 1 else "do"
    return f"{', '.join(names)} {verb} not"


def check_purpose(fitting: FitOptions) -> None:
    """Raise if --for is given for a single model."""
    if fitting.model is not None and fitting.purpose is not None:
        sentence = f"--for is for --model auto, not for {fitting.model}."
        require(not is_typed("purpose"), sentence)


def parameters_for(
    models: Iterable[str],
    fitting: FitOptions,
    *,
    shared: bool = True,
) -> dict[str, dict[str, Any]]:
    """Return the parameters of each model that were given on the command line.

    With `shared`, also include seed and threads for models that have them.

    Raises
    ------
    UsageError
        If a parameter does not exist, or has its own option.
    """
    from recsys.models.registry import parameters

    declared = {
        model: {entry.name: entry for entry in parameters(model)} for model in models
    }
    everywhere = {
        "random_state": fitting.seed,
        "threads": fitting.threads,
        "purpose": fitting.purpose or "later",
    }
    values_by_model: dict[str, dict[str, Any]] = {
        model: {name: everywhere[name] for name in everywhere.keys() & names}
        if shared
        else {}
        for model, names in declared.items()
    }
    # Parameters of one model come last, since they override those of all models.
    for prefix, name, value in sorted(fitting.given, key=lambda given: given[0]):
        if prefix and prefix not in declared:
            listed = ", ".join(declared)
            raise click.UsageError(
                f"-p {prefix}.{name}: the models are {listed}, not {prefix!r}."
            )
        if name in _SHARED:
            raise click.UsageError(f"-p {name}: use {_SHARED[name]}.")
        addressed = [prefix] if prefix else [*declared]
        owners = [model for model in addressed if name in declared[model]]
        option = name if name in NAMED else "parameter"
        # Parameters on the command line must apply to these models; other settings need not.
        if not owners and (prefix or is_typed(option)):
            raise _not_a_parameter(name, addressed)
        for model in owners:
            values_by_model[model][name] = _converted(declared[model][name], str(value))
    return values_by_model


def _not_a_parameter(name: str, models: Sequence[str]) -> click.UsageError:
    """Return the error for a parameter that none of the models has."""
    from recsys.models.registry import MODELS, address_of, parameters

    all_models = dict.fromkeys([*MODELS, *models])
    names = {model: [entry.name for entry in parameters(model)] for model in all_models}
    owners = [model for model in names if name in names[model]]
    if owners:
        flag = f"--{name}" if name in NAMED else f"-p {name}"
        return click.UsageError(
            f"{flag} does not apply to {' or '.join(models)}; leave it out. "
            f"It is for {', '.join(owners)}."
        )
    available = dict.fromkeys(itertools.chain(*(names[model] for model in models)))
    hint = did_you_mean(close_matches(name, available, 1))
    listed = ", ".join(entry for entry in available if entry not in _SHARED) or "none"
    return click.UsageError(
        f"There is no parameter {name!r} of {' or '.join(models)}.{hint} The parameters are "
        f"{listed}; `recsys models {address_of(models[0])}` describes them."
    )


def _converted(parameter: Parameter, text: str) -> Any:
    from recsys.errors import DataError

    if text.lower() in ("none", "auto") and parameter.default is None:
        return None
    try:
        value = _TYPES.get(parameter.type, click.STRING).convert(text, None, None)
        return parameter.checked(value)
    except (click.BadParameter, DataError) as error:
        reason = error.message if isinstance(error, click.BadParameter) else str(error)
        # Click lists all ways to write true and false.
        reason = reason.partition(" Recognized values: ")[0]
        raise click.UsageError(f"-p {parameter.name}={text}: {reason}") from error


def fit_recommender(
    recommender: Recommender,
    ratings: Ratings,
    validation: Ratings | None = None,
    on_step: Callable[[Step], None] | None = None,
) -> Recommender:
    """Fit with a progress bar; `on_step` is called after each iteration."""
    from recsys.auto import Auto

    with Activity(f"Fitting {recommender.model.name}") as activity:
        if isinstance(recommender.model, Auto):
            activity.title = "Choosing a model"
            recommender.model.report_to(activity.say)

        def each(step: Step) -> None:
            activity.step(step)
            if on_step is not None:
                on_step(step)

        # The features are those of the options for reading, or none.
        return recommender.fit(
            ratings, features=False, on_step=each, validation=validation
        )


def listed_ids(texts: Iterable[str], ids: Ids) -> list[str]:
    """Return ids from the command line, each once: a text is one, or several between commas.

    A text with commas is not split if it is an id itself, or none of its parts is a known id.
    """
    from recsys.data.ids import as_written

    listed: list[str] = []
    for text in (as_written(text, ids) for text in texts):
        parts = [
            as_written(part, ids)
            for piece in text.split(",")
            if (part := piece.strip())
        ]
        is_list = ids.find([text])[0] < 0 and bool((ids.find(parts) >= 0).any())
        listed += parts if is_list else [text]
    return list(dict.fromkeys(listed))


def check_groups(options: ListOptions) -> None:
    """Check that --at-most and --per are both given, or neither.

    Raises
    ------
    UsageError
    """
    both = (options.at_most is None) == (options.per is None)
    require(both, "--at-most and --per go together: --at-most 2 --per genres.")


def known_ids(
    path: str,
    ids: Ids,
    reading: Mapping[str, Any],
) -> Sequence[Any]:
    """Read a list of users or items, and report how many of them the data do not have.

    The column may have the name of an earlier `reading`.
    """
    from recsys.readers.id_lists import read_ids

    listed = read_ids(path, ids.kind, reading.get(ids.kind))
    mask = _known(path, listed, ids, f"{ids.kind}s are not in the data")
    return [
        listed_id for listed_id, is_known in zip(listed, mask, strict=True) if is_known
    ]


def with_ids(
    options: ListOptions,
    reader: ReaderOptions,
    ratings: Ratings,
    reading: Mapping[str, Any],
) -> ListOptions:
    """Return options with the ids in the files that they name."""
    items = options.items
    block = options.block
    if items is not None:
        items = known_ids(str(items), ratings.items, reading)
    if block is not None:
        block = known_block(str(block), reader, ratings, reading)
    return replace(options, items=items, block=block)


def known_block(
    path: str,
    reader: ReaderOptions,
    ratings: Ratings,
    reading: Mapping[str, Any],
) -> pl.DataFrame:
    """Read items to block, for all users or each, and report how many the data do not have."""
    from recsys.readers.id_lists import read_block

    frame = read_block(path, _request(reader, reading))
    if frame.is_empty():
        note(f"{path} blocks nothing: it lists no items")
        return frame
    is_known = ratings.items.find(frame["item"]) >= 0
    blocked = frame.filter(is_known)
    if blocked.is_empty():
        note(f"{path} blocks nothing: none of its items is in the data")
        return blocked
    _note_ignored(path, is_known, "rows are of items that are not in the data")
    if "user" not in blocked.columns:
        note(f"{path} blocks {counted(len(blocked), 'item')} for all users")
        return blocked
    is_known = ratings.users.find(blocked["user"]) >= 0
    _note_ignored(path, is_known, "rows are of users that are not in the data")
    n_pairs = counted(int(is_known.sum()), "pair")
    note(f"{path} blocks {n_pairs} of a user and an item")
    return blocked


def note_empty(path: str, ratings: Ratings, half_life: float | None) -> None:
    """Report how many users of a history have nothing in it that counts, or hardly counts."""
    import numpy as np

    from recsys.data.age import FADED, faded_remark

    has_ratings = ratings.counts("user") > 0
    n_users = int((~has_ratings).sum())
    if n_users:
        what = "interactions" if ratings.implicit else "ratings"
        note(
            f"{path}: {counted(n_users, 'user')} without {what} that count; the lists are those of "
            "popular items"
        )
    if half_life is not None and has_ratings.any():
        largest = np.maximum.reduceat(ratings.values, ratings.indptr[:-1][has_ratings])
        n_faded = int((largest < 2.0**-FADED).sum())
        if n_faded:
            note(f"{path}: {faded_remark(n_faded, half_life)}")


def _known(
    path: str,
    listed: Sequence[Any] | pl.Series,
    ids: Ids,
    finding: str,
) -> list[bool]:
    """Return which ids are known, report how many are not, and raise if none is."""
    is_known = ids.find(listed) >= 0
    if not is_known.any():
        ids.index(listed)  # raises, with the closest ids
    _note_ignored(path, is_known, finding)
    mask: list[bool] = is_known.tolist()
    return mask


def _note_ignored(
    path: str,
    is_known: NDArray[np.bool_],
    finding: str,
) -> None:
    """Report how many rows of a file are ignored."""
    n_unknown = len(is_known) - int(is_known.sum())
    if n_unknown:
        note(f"{path}: {n_unknown:,} of {len(is_known):,} {finding}, ignored")


def note_unknown(
    listed: Sequence[Any],
    ids: Ids,
    answer: str,
) -> None:
    """Report which of the listed ids are unknown, and how they are treated."""
    pairs = zip(listed, ids.find(listed), strict=True)
    unknown = list(
        dict.fromkeys(str(listed_id) for listed_id, index in pairs if index < 0)
    )
    if unknown:
        note(f"unknown {ids.kind}s: {enumerated(unknown, _NAMED)}; {answer}")


def find_title(ratings: Ratings, text: str) -> Any:
    """Return the id of the item whose title is, ignoring case, or contains `text`.

    "the matrix" finds "Matrix, The (1999)". Titles that begin with the text are preferred.

    Raises
    ------
    CommandError
        If there are no titles, or not exactly one matches.
    """
    import polars as pl

    titles = ratings.titles
    if titles is None:
        raise CommandError("These data have no titles; use an id instead.")

    def plain(texts: pl.Series) -> pl.Series:
        without_year = texts.str.to_lowercase().str.replace(r"\s*\(\d{4}\)\s*$", "")
        return without_year.str.replace(r"^(.+), (the|a|an)$", "$2 $1")

    lower = titles.str.to_lowercase()
    simple = plain(titles)
    lower_text = text.lower()
    simple_text = plain(pl.Series([text]))[0]
    for matches in (
        # From the strictest comparison to the loosest: the first with a match counts.
        titles == text,
        lower == lower_text,
        simple == simple_text,
        lower.str.starts_with(lower_text) | simple.str.starts_with(simple_text),
        lower.str.contains(lower_text, literal=True)
        | simple.str.contains(simple_text, literal=True),
    ):
        indices = matches.fill_null(False).arg_true().to_list()
        if indices:
            return _only(text, ratings, indices)
    # A text with a typing error may be near a whole title, or a phrase of as many words.
    n_words = simple_text.count(" ") + 1
    titles_by_phrase: dict[str, str] = {}
    for name, title in zip(simple.fill_null(""), titles, strict=True):
        words = name.split()
        for start in range(len(words) - n_words + 1):
            phrase = " ".join(words[start : start + n_words]).strip(",:!?.")
            titles_by_phrase.setdefault(phrase, title)
        titles_by_phrase[name] = title
    phrases = close_matches(simple_text, titles_by_phrase, _NAMED)
    suggestions = dict.fromkeys(titles_by_phrase[phrase] for phrase in phrases)
    raise CommandError(f"No title is or contains {text!r}.{did_you_mean(suggestions)}")


def _only(
    text: str,
    ratings: Ratings,
    indices: list[int],
) -> Any:
    """Return the id of the only item, or raise with a list of several."""
    import numpy as np

    items = ratings.items.take(np.array(indices))
    if len(indices) == 1:
        return items[0]
    assert ratings.titles is not None  # of several items, some match by title
    pairs = zip(items, ratings.titles.gather(indices), strict=True)
    lines = [f"  {item}  {title}" for item, title in pairs]
    if len(lines) > _CANDIDATES:
        n_hidden = len(lines) - _CANDIDATES
        lines[_CANDIDATES:] = [f"  and {n_hidden:,} more"]
    head = f"{len(indices):,} titles match {text!r}; use one of their ids instead:"
    raise CommandError("\n".join([head, *lines]))


def described_history(
    like: Sequence[str],
    rate: Sequence[str],
    recommender: Recommender,
) -> dict[Any, float]:
    """Return the ratings of a new user: items by id or title, liked or rated.

    Raises
    ------
    CommandError, UsageError
        If an item is given twice, or a rating is invalid for the model.
    """
    from recsys.changes import plausible_range, usual_scale

    ratings = recommender.ratings
    history: dict[Any, float] = {}
    rated = [(text, _best_rating(recommender)) for text in like]
    lowest, highest = plausible_range(ratings)
    for text in rate:
        title, _, number = text.rpartition("=")
        try:
            rating = float(number)
        except ValueError:
            rating = float("nan")
        # Only NaN differs from itself.
        if not title.strip() or rating != rating:
            raise click.UsageError(
                f"--rate takes TITLE=X with a number X; got {text!r}."
            )
        if recommender.training["implicit"]:
            raise CommandError(
                "The model is fitted to implicit feedback; use --like, not --rate."
            )
        if not lowest <= rating <= highest:
            low, high = usual_scale(ratings)
            raise CommandError(
                f"--rate {text!r}: the ratings are between {low:g} and {high:g}."
            )
        rated.append((title.strip(), rating))
    for text, rating in rated:
        index = int(ratings.items.find([text])[0])
        if index < 0 and ratings.titles is None:
            ratings.items.index([text])  # raises, with the closest ids
        if index < 0:
            item = find_title(ratings, text)
        else:  # an id may also be the title of another item
            titled = (
                []
                if ratings.titles is None
                else (ratings.titles == text).arg_true().to_list()
            )
            item = _only(text, ratings, sorted({index, *titled}))
        if item in history:
            raise CommandError(
                f"Item {item} is liked or rated twice, once as {text!r}."
            )
        history[item] = rating
    return history


def _best_rating(recommender: Recommender) -> float:
    best = recommender.training["rating_max"]
    return 1.0 if best is None else float(best)


def load_history(
    path: str,
    reader: ReaderOptions,
    recommender: Recommender,
) -> pl.DataFrame:
    """Read users (by default one new user), known items and, if present, ratings."""
    import polars as pl

    from recsys.changes import plausible_range
    from recsys.data.read_options import ROLES
    from recsys.data.rows import RowRules
    from recsys.folding import NEW_USER
    from recsys.readers.id_lists import read_history

    items = recommender.ratings.items
    request = _request(reader, recommender.provenance.reading, ROLES)
    request = request.changed(implicit=reader.options.get("implicit"))
    request = replace(request, rules=RowRules.from_options(reader.options))
    frame = read_history(path, request, items)
    if "user" not in frame.columns:
        frame = frame.with_columns(pl.lit(NEW_USER).alias("user"))
    frame = frame.filter(
        pl.Series(_known(path, frame["item"], items, "rows are of unknown items"))
    )
    # A 0 below the scale stands for no rating, as in exported matrices.
    low, _ = plausible_range(recommender.ratings)
    if "rating" in frame.columns and low > 0:
        grades = frame["rating"].cast(pl.Float64, strict=False)
        n_zeros = int((grades == 0).sum())
        if n_zeros:
            frame = frame.filter((grades != 0).fill_null(True))
            note(
                f"{path}: {counted(n_zeros, 'row')} left out whose rating is 0 (not rated)"
            )
    # Events and weights of a pair add up, and of ratings the last one counts.
    are_summed = {"event", "value"} & {*frame.columns}
    repeated = len(frame) - frame.select("user", "item").n_unique()
    if repeated and not are_summed:
        note(f"{path}: {counted(repeated, 'duplicate')} (last kept)")
    has_kinds = "event" in frame.columns and recommender.ratings.rule.graded
    lacks_values = "rating" not in frame.columns and not has_kinds
    if lacks_values and recommender.model._needs_values:
        best = _best_rating(recommender)
        note(
            f"{path} has no ratings: its items are treated as liked, with a rating of {best:g}"
        )
        frame = frame.with_columns(pl.lit(best, pl.Float32).alias("rating"))
    return frame
