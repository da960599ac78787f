"""Inputs of the verbs: ratings or a saved model, parameters, titles, lists of ids, histories."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from recsys.cli.errors import CommandError
from recsys.cli.options import FitOptions, ReaderOptions
from recsys.cli.progress import Activity, note
from recsys.messages import close_matches

if TYPE_CHECKING:
    import numpy as np
    import polars as pl

    from recsys.data.ids import Ids
    from recsys.data.ratings import Ratings
    from recsys.models.base import Step
    from recsys.models.parameters import Parameter
    from recsys.recommender import Recommender

__all__ = [
    "Plan",
    "check_destination",
    "described_history",
    "find_title",
    "fit_recommender",
    "is_model",
    "known_ids",
    "load_history",
    "load_model",
    "load_pairs",
    "load_ratings",
    "note_unknown",
    "open_recommender",
    "parameters_for",
    "plan_fit",
    "require_path",
]

_SHARED = {"random_state": "--seed", "threads": "--threads"}
_WORDS = {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False}


def require_path(path: str, kind: str = "") -> None:
    """Check that a path exists, and is a directory if it is to hold a `kind` of index or model.

    Raises
    ------
    CommandError
        The message has the nearest name in the same directory.
    """
    if kind and Path(path).is_file():
        verb = "recsys lsi index" if kind == "index" else "recsys fit"
        raise CommandError(
            f"{path} is a file; a saved {kind} is a directory, as `{verb}` writes it."
        )
    if path == "-" or Path(path).exists():
        return
    if Path(path).is_symlink():
        raise CommandError(f"{path} is a broken symbolic link.")
    from difflib import get_close_matches

    place = Path(path).parent
    names = [each.name for each in place.iterdir()] if place.is_dir() else []
    close = get_close_matches(Path(path).name, names, n=1)
    suggestion = f" Did you mean {place / close[0]}?" if close else ""
    raise CommandError(f"There is no file or directory {path}.{suggestion}")


def is_model(path: str) -> bool:
    """Return whether there is a saved model at `path`."""
    return (Path(path) / "model.json").is_file()


def check_destination(
    path: str, is_saved: Callable[[str], bool], kind: str = "model", *, force: bool
) -> None:
    """Check, before the work, that a model or index can be saved at `path`.

    Raises
    ------
    CommandError
        If anything else is there, or one that is not to be replaced, or there is no directory.
    """
    target = Path(path).resolve()
    if target.exists() and not is_saved(path):
        raise CommandError(f"{path} exists and is not a saved {kind}; choose another --out.")
    if target.exists() and not force:
        raise CommandError(
            f"{path} is a saved {kind} already; choose another --out, or add --force."
        )
    if not target.parent.is_dir():
        raise CommandError(f"Cannot write {path}: there is no directory {Path(path).parent}.")


def load_ratings(path: str, reader: ReaderOptions) -> Ratings:
    """Read ratings, and report in one line how they were read.

    Raises
    ------
    CommandError
        If there is nothing at `path`, or a saved model.
    """
    require_path(path)
    if is_model(path):
        raise CommandError(f"{path} is a saved model; this verb needs a file of ratings.")
    from recsys.readers import read_ratings

    with Activity(f"Reading {path}"):
        ratings = read_ratings(path, **reader.keywords())
    note(str(ratings.source))
    return ratings


def load_columns(path: str, reader: ReaderOptions, roles: Sequence[str]) -> pl.DataFrame:
    """Read some columns of a file of ratings or of pairs, its rows in their order."""
    import polars as pl

    from recsys.readers import read_raw
    from recsys.readers.layout import Request
    from recsys.readers.sources import open_data

    names = {role: getattr(reader, f"{role}_col") for role in roles}
    implicit = reader.implicit or "rating" not in roles
    request = Request(**names, sep=reader.sep, encoding=reader.encoding, implicit=implicit)
    with open_data(path, reader.encoding) as data:
        columns = read_raw(data, request).columns
    return pl.DataFrame([columns[name].alias(name) for name in roles if name in columns])


def load_pairs(path: str, reader: ReaderOptions) -> pl.DataFrame:
    """Read the user and item columns of a file."""
    require_path(path)
    return load_columns(path, reader, ("user", "item"))


def load_model(path: str) -> Recommender:
    """Load a saved model."""
    require_path(path, "model")
    from recsys.recommender import Recommender

    return Recommender.load(path)


def open_recommender(path: str, reader: ReaderOptions, fitting: FitOptions) -> Recommender:
    """Load the saved model at `path`, or fit one to the ratings there.

    Raises
    ------
    CommandError
        If --model names another model than the saved one.
    """
    require_path(path)
    if is_model(path):
        recommender = load_model(path)
        name = recommender.model.name
        source = click.get_current_context().get_parameter_source("model")
        if fitting.model not in (None, name) and source is ParameterSource.COMMANDLINE:
            raise CommandError(
                f"{path} is a saved {name} model, and --model {fitting.model} needs a file of "
                f"ratings; leave it out, or run `recsys fit RATINGS --model {fitting.model}`."
            )
        return recommender
    ratings = load_ratings(path, reader)
    plan = plan_fit(fitting, ratings)
    if plan.reason is not None and plan.ratings.implicit != ratings.implicit:
        note(plan.reason)
    recommender = fit_recommender(plan.recommender, plan.ratings)
    name = recommender.model.name
    note(f"fitted {name} to {path} (not saved; use `recsys fit` to keep the model)")
    return recommender


@dataclass(frozen=True)
class Plan:
    """Recommender to fit, its ratings, and the reason for the model if that was chosen."""

    recommender: Recommender
    ratings: Ratings
    reason: str | None


def plan_fit(fitting: FitOptions, ratings: Ratings) -> Plan:
    """Make the recommender that `fitting` describes; without a model, choose one from the data.

    Raises
    ------
    click.UsageError
        If the model does not have one of the parameters.
    """
    from recsys.auto import choose_model
    from recsys.recommender import Recommender

    name, suggested, reason = fitting.model, {}, None
    if name is None:
        choice = choose_model(ratings)
        name, ratings, suggested = choice.model, choice.ratings, choice.params
        reason = choice.reason
    params = suggested | parameters_for([name], fitting)[name]
    if reason is not None:
        sizes = [
            f"{params[key]} {key if params[key] != 1 else key.removesuffix('s')}"
            for key in suggested
        ]
        reason = f"chose {', '.join([name, *sizes])}: {reason}"
    return Plan(Recommender(name, **params), ratings, reason)


def parameters_for(
    models: Iterable[str], fitting: FitOptions, *, shared: bool = True
) -> dict[str, dict[str, Any]]:
    """Return the parameters of each model that were given on the command line.

    With `shared`, also seed and threads of the models that have them.

    Raises
    ------
    click.UsageError
        If no model has a parameter, or a value is not valid; the message names what is.
    """
    from recsys.models.registry import parameters

    declared = {model: {each.name: each for each in parameters(model)} for model in models}
    everywhere = {"random_state": fitting.seed, "threads": fitting.threads} if shared else {}
    found = {
        model: {name: value for name, value in everywhere.items() if name in known}
        for model, known in declared.items()
    }
    for prefix, name, value in sorted(fitting.given, key=lambda each: bool(each[0])):
        if prefix and prefix not in declared:
            listed = ", ".join(declared)
            raise click.UsageError(f"-p {prefix}.{name}: the models are {listed}, not {prefix!r}.")
        if name in _SHARED:
            raise click.UsageError(f"-p {name}: use {_SHARED[name]}.")
        owners = [model for model in ([prefix] if prefix else declared) if name in declared[model]]
        if not owners:
            raise click.UsageError(_unknown_parameter(name, [prefix] if prefix else [*declared]))
        for model in owners:
            found[model][name] = _converted(declared[model][name], value)
    return found


def _converted(parameter: Parameter, value: Any) -> Any:
    """Return the value of a parameter that is given as text, checked."""
    from recsys.errors import DataError

    text = str(value)
    if text.lower() in ("none", "auto") and parameter.default is None:
        return None
    try:
        if parameter.type is bool:
            value = _WORDS[text.lower()]
        elif parameter.type in (int, float):
            value = parameter.type(text)
        parameter.check(value)
    except (ValueError, KeyError, DataError) as error:
        nouns = {bool: "true or false", int: "a whole number", float: "a number"}
        reason = f"{parameter.name} must be {nouns.get(parameter.type)}; got {text!r}."
        shown = str(error) if isinstance(error, DataError) else reason
        raise click.UsageError(f"-p {parameter.name}={text}: {shown}") from error
    return value


def _unknown_parameter(name: str, models: list[str]) -> str:
    """Name the parameters that there are, and the nearest one."""
    from recsys.models.registry import parameters

    known = {m: [p.name for p in parameters(m) if p.name not in _SHARED] for m in models}
    near = close_matches(name, {each for names in known.values() for each in names}, 1)
    hint = f"; did you mean {near[0]}?" if near else "."
    if len(models) > 1:
        return f"None of the models {', '.join(models)} has a parameter {name!r}{hint}"
    listed = ", ".join(known[models[0]]) or "none"
    return (
        f"The {models[0]} model has no parameter {name!r}{hint} It has {listed}; "
        f"`recsys models {models[0]}` describes them."
    )


def fit_recommender(
    recommender: Recommender,
    ratings: Ratings,
    validation: Ratings | None = None,
    on_step: Callable[[Step], None] | None = None,
) -> Recommender:
    """Fit with a progress bar; `on_step` is called after each iteration."""
    with Activity(f"Fitting {recommender.model.name}") as activity:

        def each(step: Step) -> None:
            activity.step(step)
            if on_step is not None:
                on_step(step)

        return recommender.fit(ratings, on_step=each, validation=validation)


# Lists of ids, and titles.

_NAMED = 3
_CANDIDATES = 10


def known_ids(path: str, ids: Ids) -> Sequence[Any]:
    """Read a list of ids, and report how many of them the data do not have.

    Raises
    ------
    UnknownIdError
        If the data have none of them.
    """
    from recsys.readers.id_lists import read_ids

    listed = read_ids(path, ids.kind)
    places = ids.find(listed)
    if (places < 0).all():
        ids.index(listed)
    n_unknown = int((places < 0).sum())
    if n_unknown:
        note(f"{path}: {n_unknown:,} of {len(listed):,} {ids.kind}s are not in the data, ignored")
    return [each for each, place in zip(listed, places, strict=True) if place >= 0]


def note_unknown(listed: Sequence[Any], ids: Ids, answer: str) -> None:
    """Report which of the listed ids are unknown, and what they get."""
    places = ids.find(listed)
    unknown = [str(each) for each, place in zip(listed, places, strict=True) if place < 0]
    unknown = list(dict.fromkeys(unknown))
    more = f" and {len(unknown) - _NAMED:,} more" if len(unknown) > _NAMED else ""
    if unknown:
        note(f"unknown: {', '.join(unknown[:_NAMED])}{more}; {answer}")


def find_title(ratings: Ratings, text: str) -> Any:
    """Return the id of the item with the title `text`: exactly, ignoring case, or part of it.

    A title counts with and without the year at its end, and with its article first or last: "the
    matrix" finds "Matrix, The (1999)". The beginning of a title counts more than its middle.

    Raises
    ------
    CommandError
        If there are no titles, or none or several that match.
    """
    import polars as pl

    titles = ratings.titles
    if titles is None:
        raise CommandError("These data have no titles; use an id instead.")

    def plain(texts: pl.Series) -> pl.Series:
        without_year = texts.str.to_lowercase().str.replace(r"\s*\(\d{4}\)\s*$", "")
        return without_year.str.replace(r"^(.+), (the|a|an)$", "$2 $1")

    lower, bare = titles.str.to_lowercase(), plain(titles)
    wanted, wanted_bare = text.lower(), plain(pl.Series([text]))[0]
    for matches in (
        titles == text,
        lower == wanted,
        bare == wanted_bare,
        lower.str.starts_with(wanted) | bare.str.starts_with(wanted_bare),
        lower.str.contains(wanted, literal=True) | bare.str.contains(wanted_bare, literal=True),
    ):
        found = matches.fill_null(False).arg_true().to_numpy()
        if len(found) > 1:
            raise CommandError(_ambiguous(text, ratings, found))
        if len(found) == 1:
            return ratings.items.take(found)[0]
    by_lower = {title.lower(): title for title in titles.drop_nulls()}
    close = [by_lower[each] for each in close_matches(wanted, by_lower, 3)]
    hint = f" The nearest are {'; '.join(close)}." if close else ""
    raise CommandError(f"No title is or contains {text!r}.{hint}")


def _ambiguous(text: str, ratings: Ratings, found: np.ndarray[Any, Any]) -> str:
    assert ratings.titles is not None
    pairs = zip(ratings.items.take(found), ratings.titles.gather(found), strict=True)
    lines = [f"  {item}  {title}" for item, title in pairs]
    more = len(lines) - _CANDIDATES
    lines[_CANDIDATES:] = [f"  and {more:,} more"] if more > 0 else []
    head = f"{len(found):,} titles match {text!r}; use one of their ids instead:"
    return "\n".join([head, *lines])


# Ratings of new users: from the command line, or from a file.


def described_history(
    like: Sequence[str], rate: Sequence[str], recommender: Recommender
) -> dict[Any, float]:
    """Return the ratings of a new user: items by id or title, liked or rated.

    Raises
    ------
    CommandError
        If an item is not found or repeated, or a rating is out of range.
    """
    import numpy as np

    ratings, history = recommender.ratings, {}
    best = _best_rating(recommender)
    rated = [(text, best) for text in like] + [_parse(text, recommender) for text in rate]
    for text, rating in rated:
        by_id = ratings.items.find([text])[0]
        if by_id < 0 and ratings.titles is None:
            ratings.items.index([text])  # raises, with the closest ids
        if by_id < 0:
            item = find_title(ratings, text)
        else:
            titled = [] if ratings.titles is None else (ratings.titles == text).arg_true().to_list()
            found = np.array(sorted({int(by_id), *titled}))
            if len(found) > 1:  # the id of one item is the title of another
                raise CommandError(_ambiguous(text, ratings, found))
            item = ratings.items.take(found)[0]
        if item in history:
            raise CommandError(f"Item {item} is liked or rated twice, once as {text!r}.")
        history[item] = rating
    return history


def _best_rating(recommender: Recommender) -> float:
    best = recommender.training["rating_max"]
    return 1.0 if best is None else float(best)


def _parse(text: str, recommender: Recommender) -> tuple[str, float]:
    """Split "TITLE=X" and check X."""
    title, _, number = text.rpartition("=")
    try:
        rating = float(number)
    except ValueError:
        rating = float("nan")
    if not title.strip() or rating != rating:
        raise click.UsageError(f"--rate takes TITLE=X with a number X; got {text!r}.")
    training = recommender.training
    if training["implicit"]:
        raise CommandError("The model is fitted to implicit feedback; use --like, not --rate.")
    low, high = training["rating_min"], training["rating_max"]
    if not low <= rating <= high:
        raise CommandError(
            f"--rate {text!r} is out of range; the ratings are between {low:g} and {high:g}."
        )
    return title.strip(), rating


def load_history(path: str, reader: ReaderOptions, recommender: Recommender) -> pl.DataFrame:
    """Read the columns user, item and possibly rating; without users, all are of one new user.

    Rows of unknown items are left out, and counted on standard error; duplicates are counted.

    Raises
    ------
    CommandError
        If the file does not exist.
    UnknownIdError
        If the data have none of the items.
    """
    import polars as pl

    from recsys.data.ids import as_id_series
    from recsys.folding import NEW_USER
    from recsys.readers.id_lists import read_history
    from recsys.readers.layout import Request

    require_path(path)
    names = {role: getattr(reader, f"{role}_col") for role in ("user", "item", "rating")}
    request = Request(**names, sep=reader.sep, encoding=reader.encoding, implicit=reader.implicit)
    items = recommender.ratings.items
    frame = read_history(path, request, items)
    if "user" not in frame.columns:
        frame = frame.with_columns(pl.lit(NEW_USER).alias("user"))
    places = items.find(frame["item"])
    if (places < 0).all():
        items.index(frame["item"])  # raises, with the closest ids
    if (places < 0).any():
        n_unknown = int((places < 0).sum())
        note(f"{path}: {n_unknown:,} of {len(frame):,} rows are of unknown items, ignored")
        frame = frame.filter(pl.Series(places >= 0))
    as_id_series(frame["user"], "user")  # raises for ids of endless length
    repeated = len(frame) - frame.select("user", "item").n_unique()
    if repeated:
        note(f"{path}: {repeated:,} duplicate{'s' if repeated > 1 else ''} (last kept)")
    if "rating" not in frame.columns and recommender.model._needs_values:
        best = _best_rating(recommender)
        note(f"{path} has no ratings: its items count as liked, with a rating of {best:g}")
        frame = frame.with_columns(pl.lit(best, pl.Float32).alias("rating"))
    return frame
