"""From a path on the command line to ratings, to a recommender, or to a list of ids."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from recsys.cli.errors import CommandError
from recsys.cli.options import FitOptions, ReaderOptions
from recsys.cli.parameters import applying, check_applicable
from recsys.cli.progress import Activity, note

if TYPE_CHECKING:
    import polars as pl

    from recsys.ratings import Ratings
    from recsys.readers import Loaded
    from recsys.recommender import Recommender

__all__ = [
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


def read_path(path: str, reader: ReaderOptions) -> Loaded:
    """Read ratings, with what the reader decided."""
    require_path(path)
    if is_model(path):
        raise CommandError(f"{path} is a saved model; this verb needs a file of ratings.")
    from recsys.readers import read_ratings

    with Activity(f"Reading {path}"):
        return read_ratings(path, **asdict(reader))


def load_ratings(path: str, reader: ReaderOptions) -> Ratings:
    """Read ratings and say in one line how they were understood."""
    loaded = read_path(path, reader)
    note(loaded.decision)
    return loaded.ratings


def load_pairs(path: str, reader: ReaderOptions | None) -> pl.DataFrame:
    """Read the user and item columns of a file, its rows in their order."""
    import polars as pl

    from recsys.readers import read_raw
    from recsys.readers.columns import Request
    from recsys.readers.sources import open_data

    require_path(path)
    chosen = reader or ReaderOptions()
    request = Request(
        user_col=chosen.user_col,
        item_col=chosen.item_col,
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
    from recsys.choosing import choose_model
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

    from recsys.leftovers import old_one_of

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
