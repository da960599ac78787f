"""Inputs of the command: ratings, models and titles."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from recsys.cli.errors import CommandError
from recsys.cli.options import FitOptions, ReaderOptions
from recsys.cli.parameters import applying, check_applicable
from recsys.cli.progress import Activity, note
from recsys.messages import close_matches

if TYPE_CHECKING:
    import polars as pl

    from recsys.data.ratings import Ratings
    from recsys.recommender import Recommender

__all__ = [
    "find_item",
    "find_title",
    "fit_recommender",
    "is_model",
    "load_model",
    "load_pairs",
    "load_ratings",
    "open_recommender",
    "plan_fit",
    "read_path",
    "require_model",
    "require_path",
]

STDIN = "-"
MODEL_MARK = "model.json"


def read_path(path: str, reader: ReaderOptions) -> Ratings:
    """Read ratings; how they were read is their `source`."""
    require_path(path)
    if is_model(path):
        raise CommandError(f"{path} is a saved model; this verb needs a file of ratings.")
    from recsys.readers import read_ratings

    with Activity(f"Reading {path}"):
        return read_ratings(path, **reader.keywords())


def load_ratings(path: str, reader: ReaderOptions) -> Ratings:
    """Read ratings and say in one line how they were understood."""
    ratings = read_path(path, reader)
    note(str(ratings.source))
    return ratings


def load_pairs(path: str, reader: ReaderOptions | None) -> pl.DataFrame:
    """Read the user and item columns of a file, its rows in their order."""
    import polars as pl

    from recsys.readers import read_raw
    from recsys.readers.layout import Request
    from recsys.readers.sources import open_data

    require_path(path)
    chosen = reader or ReaderOptions()
    request = Request(
        user=chosen.user_col,
        item=chosen.item_col,
        sep=chosen.sep,
        encoding=chosen.encoding,
        implicit=True,
    )
    with open_data(path, chosen.encoding) as data:
        columns = read_raw(data, request).columns
    return pl.DataFrame([columns[name].alias(name) for name in ("user", "item")])


def require_model(path: str) -> None:
    """Refuse a path that cannot be a saved model."""
    require_path(path)
    if Path(path).is_file():
        raise CommandError(
            f"{path} is a file; a saved model is a directory, as `recsys fit` writes it."
        )


def load_model(path: str) -> Recommender:
    """Load a saved model."""
    require_model(path)
    from recsys.recommender import Recommender

    return Recommender.load(path)


def open_recommender(path: str, reader: ReaderOptions, fitting: FitOptions) -> Recommender:
    """Load the saved model at `path`, or fit one to the ratings there."""
    require_path(path)
    if is_model(path):
        recommender = load_model(path)
        _check_same_model(path, recommender, fitting)
        return recommender
    ratings = load_ratings(path, reader)
    plan = plan_fit(fitting, ratings)
    if plan.chosen is not None and plan.ratings.implicit != ratings.implicit:
        note(plan.chosen)
    recommender = fit_recommender(plan.recommender, plan.ratings)
    note(f"fitted {_name(recommender)} to {path} for this once; `recsys fit` saves a model")
    return recommender


def _check_same_model(path: str, recommender: Recommender, fitting: FitOptions) -> None:
    """Refuse `--model NAME` beside a saved model of another name, which it cannot change."""
    context = click.get_current_context(silent=True)
    if fitting.model in (None, _name(recommender)) or context is None:
        return
    if context.get_parameter_source("model") is click.core.ParameterSource.COMMANDLINE:
        raise CommandError(
            f"{path} is a saved model, {_name(recommender)}; --model {fitting.model} is for a file "
            f"of ratings. Leave it out, or fit again: `recsys fit RATINGS --model {fitting.model}`."
        )


@dataclass(frozen=True)
class Plan:
    """A recommender that is not yet fitted, to what it is to be, and why, if that was chosen."""

    recommender: Recommender
    ratings: Ratings
    chosen: str | None


def plan_fit(fitting: FitOptions, ratings: Ratings) -> Plan:
    """Make the recommender that `fitting` describes; without a model's name, the data decide.

    Raises
    ------
    CommandError
        If an option was given that the model does not have.
    """
    from recsys.auto import choose_model
    from recsys.recommender import Recommender

    asked = fitting.parameters
    name, suggested, chosen = fitting.model, {}, None
    if name is None:
        choice = choose_model(ratings)
        name, ratings = choice.model, choice.ratings
        suggested = choice.params
        sizes = [
            f"{value} {key if value != 1 else key.removesuffix('s')}"
            for key, value in (suggested | asked).items()
            if key in suggested
        ]
        chosen = f"chose {', '.join([name, *sizes])}: {choice.reason}"
    check_applicable([name], asked)
    params = suggested | asked
    params = applying(name, params, random_state=fitting.seed, threads=fitting.threads)
    return Plan(Recommender(name, **params), ratings, chosen)


def fit_recommender(
    recommender: Recommender,
    ratings: Ratings,
    validation: Ratings | None = None,
    on_step: Any = None,
) -> Recommender:
    """Fit with a progress bar; `on_step` hears of each sweep as well."""
    with Activity(f"Fitting {_name(recommender)}") as activity:

        def each(step: Any) -> None:
            activity.step(step)
            if on_step is not None:
                on_step(step)

        return recommender.fit(ratings, on_step=each, validation=validation)


def is_model(path: str) -> bool:
    """Whether a saved model lies at `path`."""
    return (Path(path) / MODEL_MARK).is_file()


def _name(recommender: Recommender) -> str:
    return recommender.model.name


def require_path(path: str) -> None:
    """Refuse a path that leads nowhere, with the nearest name in the same directory."""
    if path == STDIN or Path(path).exists():
        return
    if Path(path).is_symlink():
        raise CommandError(f"{path} is a link that leads nowhere.")
    from difflib import get_close_matches

    from recsys.atomic import old_one_of

    old = old_one_of(Path(path))
    if old is not None:
        raise CommandError(
            f"There is no file or directory {path}: a process was killed while it replaced it; the "
            f"old one is {old}, rename it to use it."
        )
    place = Path(path).parent
    names = [each.name for each in place.iterdir()] if place.is_dir() else []
    close = get_close_matches(Path(path).name, names, n=1)
    suggestion = f" Did you mean {place / close[0]}?" if close else ""
    raise CommandError(f"There is no file or directory {path}.{suggestion}")


_CANDIDATES = 10


def find_title(ratings: Ratings, text: str) -> Any:
    """Return the id of the item with the title `text`: exactly, ignoring case, or a part of it.

    A title counts with and without the year at its end, and with its article in front or behind:
    "the matrix" is "Matrix, The (1999)". Of the parts, the beginning of a title goes before what is
    inside of one.

    Raises
    ------
    CommandError
        If there are no titles, or none or several that fit.
    """
    import polars as pl

    titles = ratings.titles
    if titles is None:
        raise CommandError("These data have no titles; use an id instead.")
    lower, plain = titles.str.to_lowercase(), _plain(titles)
    wanted, bare = text.lower(), _plain(pl.Series([text]))[0]
    for matches in (
        titles == text,
        lower == wanted,
        plain == bare,
        lower.str.starts_with(wanted) | plain.str.starts_with(bare),
        lower.str.contains(wanted, literal=True) | plain.str.contains(bare, literal=True),
    ):
        found = matches.fill_null(False).arg_true().to_numpy()
        if len(found) > 1:
            raise CommandError(_ambiguous(text, _named(ratings, found)))
        if len(found) == 1:
            return ratings.items.take(found)[0]
    raise CommandError(f"No title is or contains {text!r}.{_nearest(text, titles.drop_nulls())}")


def find_item(ratings: Ratings, text: str) -> Any:
    """Return the id of the item whose id is `text`, or whose title, as `find_title` has it.

    Raises
    ------
    CommandError
        If there is neither, several titles fit, or an id is the whole title of another item.
    """
    import numpy as np

    by_id = ratings.items.find([text])[0]
    if by_id < 0:
        if ratings.titles is None:
            ratings.items.index([text])
        return find_title(ratings, text)
    titled = [] if ratings.titles is None else (ratings.titles == text).arg_true().to_list()
    found = np.array(sorted({int(by_id), *titled}))
    if len(found) > 1:
        raise CommandError(_ambiguous(text, _named(ratings, found)))
    return ratings.items.take(found)[0]


def _plain(titles: pl.Series) -> pl.Series:
    """Return titles in lower case, without a year at the end, the article in front."""
    without_year = titles.str.to_lowercase().str.replace(r"\s*\(\d{4}\)\s*$", "")
    return without_year.str.replace(r"^(.+), (the|a|an)$", "$2 $1")


def _named(ratings: Ratings, found: Any) -> list[str]:
    titles = ratings.titles
    assert titles is not None
    pairs = zip(ratings.items.take(found), titles.gather(found), strict=True)
    return [f"  {item}  {title}" for item, title in pairs]


def _ambiguous(text: str, candidates: Sequence[str]) -> str:
    more = len(candidates) - _CANDIDATES
    tail = [f"  and {more:,} more"] if more > 0 else []
    lines = [*candidates[:_CANDIDATES], *tail]
    head = f"{len(candidates):,} titles fit {text!r}; use one of their ids instead:"
    return "\n".join([head, *lines])


def _nearest(text: str, titles: Any) -> str:
    by_lower = {title.lower(): title for title in titles}
    close = close_matches(text.lower(), by_lower, 3)
    return f" The nearest are {'; '.join(by_lower[each] for each in close)}." if close else ""
