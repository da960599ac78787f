"""What `recsys evaluate` and `recsys compare` share: from options to an evaluation, and to JSON."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from recsys.cli.options import (
    MODEL_NAMES,
    ReaderOptions,
    bundle,
    option,
    parameter_options,
    reader_options,
    seed_option,
    threads_option,
)
from recsys.cli.parameters import applying, check_applicable
from recsys.cli.progress import Activity, note
from recsys.cli.reporting import check_report, lengths, write_report
from recsys.cli.splits import SplitOptions, load_splits, split_options
from recsys.wording import counted

if TYPE_CHECKING:
    from recsys.evaluation import Evaluation, Split
    from recsys.models.base import Model, Step

__all__ = ["Question", "document", "evaluation_options", "run", "write_per_user"]

_EXPLICIT = ("als", "bias", "popular")
_IMPLICIT = ("spectral", "popular", "random")


@dataclass(frozen=True)
class _Asked:
    """The options of `evaluation_options` itself."""

    train: str | None
    test: str | None
    model: tuple[str, ...]
    n: tuple[int, ...]
    new: str
    candidates: int | None
    per_user: str | None
    report: str | None


@dataclass(frozen=True)
class Question:
    """Everything that says what is to be evaluated, on what and how."""

    ratings: str | None
    asked: _Asked
    splitting: SplitOptions
    seed: int
    threads: int | None
    parameters: dict[str, Any]
    reader: ReaderOptions


def evaluation_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add RATINGS and the options on what to evaluate and how; the verb is given `question`."""

    @functools.wraps(function)
    def verb(*args: Any, **values: Any) -> Any:
        names = ("ratings", "asked", "splitting", "seed", "threads", "parameters", "reader")
        values["question"] = Question(**{name: values.pop(name) for name in names})
        return function(*args, **values)

    # The last one applied is the first one listed.
    tuned = parameter_options(reader_options(verb))
    shared = threads_option()(seed_option()(split_options(tuned)))
    whole = bundle(shared, _own_options(), _Asked, "asked")
    return click.argument("ratings", required=False, type=click.Path(allow_dash=True))(whole)


def _own_options() -> list[Callable[[Callable[..., Any]], Callable[..., Any]]]:
    return [
        option("--train", metavar="FILE", type=click.Path(), help="Ratings to learn from."),
        option("--test", metavar="FILE", type=click.Path(), help="Ratings to be tested on."),
        option(
            "--model",
            multiple=True,
            type=click.Choice(MODEL_NAMES),
            show_default="als, bias, popular; spectral, popular, random on implicit data",
            help="Model to evaluate; repeatable.",
        ),
        option(
            "-n",
            "n",
            metavar="N",
            multiple=True,
            type=click.IntRange(min=1),
            default=(10,),
            show_default="10",
            help="Number of items recommended to each user; repeatable.",
        ),
        option(
            "--new",
            type=click.Choice(["drop", "keep"]),
            default="drop",
            show_default=True,
            help="What becomes of test ratings of users and items without training ratings.",
        ),
        option(
            "--candidates",
            metavar="N",
            type=click.IntRange(min=1),
            help="Rank the held-out items among N random ones instead of all; such metrics are not "
            "those over all items, and are labelled.",
        ),
        option(
            "--per-user",
            metavar="FILE",
            type=click.Path(dir_okay=False),
            help="Write the values of each user to this file (.csv or .parquet).",
        ),
        option(
            "--report",
            metavar="FILE.html",
            type=click.Path(dir_okay=False),
            help="Write a page with tables and charts, which needs no other file.",
        ),
    ]


def run(question: Question, *, at_least: int = 1) -> tuple[dict[str, Model | str], Evaluation]:
    """Read, split, fit and measure; the models, and what was found.

    Parameters
    ----------
    question : Question
    at_least : int
        Number of models.
    """
    from recsys import evaluation
    from recsys.evaluation.reading import only

    asked, seed = question.asked, question.seed
    _check_per_user(asked.per_user)
    check_report(asked.report)
    if asked.model and len(set(asked.model)) < at_least:
        raise click.UsageError("Give at least two models to compare, each with --model.")
    pair = (asked.train, asked.test)
    splits = load_splits(question.ratings, pair, question.splitting, seed, question.reader)
    if not asked.model:
        splits = _as_chosen(splits)
    first = splits if isinstance(splits, evaluation.Split) else splits[0]
    names = asked.model or _default_models(first)
    models = _models(names, question.parameters, random_state=seed, threads=question.threads)
    with Activity("Evaluating") as activity:

        def each(label: str, step: Step) -> None:
            activity.title = f"Fitting {label}"
            activity.step(step)

        found = evaluation.evaluate(
            models,
            splits,
            asked.n if asked.report is None else lengths(asked.n),
            candidates=asked.candidates,
            new="keep" if asked.new == "keep" else "drop",
            seed=seed,
            on_step=each,
        )
    _say(found)
    if asked.per_user is not None:
        write_per_user(only(found, asked.n), Path(asked.per_user))
    if asked.report is not None:
        write_report(found, models, asked.report)
    return models, only(found, asked.n)


def write_per_user(found: Evaluation, path: Path) -> None:
    """Write the values of each user, without the columns that are empty for all models."""
    from recsys.cli.output import Output

    Output(path).write(without_empty(found.per_user))
    note(f"the values of each user are in {path}")


def without_empty(frame: Any) -> Any:
    """Leave out metrics that no model has."""
    return frame[[column.name for column in frame if column.null_count() < len(column)]]


def document(command: str, models: dict[str, Model | str], found: Evaluation) -> dict[str, Any]:
    """Return everything that was found, as JSON can hold it."""
    from recsys import __version__
    from recsys.evaluation import DEFINITIONS
    from recsys.evaluation.reading import INTERVALS, TESTS, ranking

    kinds = set(found.metrics["kind"])
    first = found.splits[0]
    return {
        "command": command,
        "version": __version__,
        "seed": found.settings.seed,
        "n": list(found.settings.ns),
        "ranking": ranking(found),
        "data": {"fingerprint": found.fingerprint, **found.counts},
        "split": {
            "method": first.method,
            "parameters": first.parameters,
            "description": found.held_out,
            "folds": len(found.splits),
            "new": found.settings.new,
        },
        "settings": asdict(found.settings),
        "intervals": INTERVALS,
        "tests": TESTS,
        "definitions": {kind: text for kind, text in DEFINITIONS.items() if kind in kinds},
        "models": [_result(row, models[row["model"]], found) for row in found.table.to_dicts()],
        "comparisons": found.comparisons.to_dicts(),
    }


def _result(row: dict[str, Any], model: Model | str, found: Evaluation) -> dict[str, Any]:
    """One model's part of the document."""
    mine = found.metrics.filter(found.metrics["model"] == row["model"])
    metrics = {}
    for each in mine.to_dicts():
        known = each["low"] is not None
        metrics[each["metric"]] = {
            "value": each["value"],
            "interval": [each["low"], each["high"]] if known else None,
            "users": each["users"],
        }
        if each["n"] is None:
            metrics[each["metric"]]["ratings"] = found.counts["test_ratings"]
    return {
        "model": row["model"],
        "parameters": {} if isinstance(model, str) else model.params(),
        "metrics": metrics,
        "fit_seconds": row["fit_seconds"],
        "recommend_seconds": row["recommend_seconds"],
        "peak_memory_bytes": row["peak_memory"],
    }


def _say(found: Evaluation) -> None:
    counts, folds = found.counts, len(found.splits)
    by_fold = f" ({folds} folds together)" if folds > 1 else ""
    note(f"held out: {found.held_out}")
    note(
        f"trained on {counts['train_ratings']:,} and tested on "
        f"{counted(counts['test_ratings'], 'rating')}; "
        f"recommended to {counted(counts['users_evaluated'], 'user')}{by_fold}"
    )
    if counts["new_ratings"]:
        done = "left out" if found.settings.new == "drop" else "kept"
        note(
            f"{counted(counts['new_ratings'], 'test rating')} of users or items without training "
            f"ratings {done} (new: {counted(counts['new_users'], 'user')} and "
            f"{counted(counts['new_items'], 'item')})"
        )
    if found.settings.candidates is not None:
        from recsys.evaluation.reading import ranking

        note(f"ranking is {ranking(found)}")


def _check_per_user(path: str | None) -> None:
    if path is None:
        return
    if Path(path).suffix.lower() not in (".csv", ".parquet"):
        raise click.UsageError(f"--per-user must end in .csv or .parquet; got {path}.")
    if not Path(path).parent.is_dir():
        raise click.UsageError(f"Cannot write {path}: there is no directory {Path(path).parent}.")


def _as_chosen(splits: Split | Sequence[Split]) -> Split | Sequence[Split]:
    """Take ratings for implicit feedback where `recsys fit` would, and say so."""
    from recsys.choosing import choose_model
    from recsys.counts import as_contacts
    from recsys.evaluation import Split

    every = [splits] if isinstance(splits, Split) else list(splits)
    train = every[0].train
    choice = choose_model(train)
    if choice.ratings.implicit == train.implicit:
        return splits
    note(f"{choice.reason}; name models with --model to take them for ratings")
    taken = [
        replace(
            split,
            train=as_contacts(split.train),
            test=as_contacts(split.test),
            history=None if split.history is None else as_contacts(split.history),
        )
        for split in every
    ]
    return taken[0] if isinstance(splits, Split) else taken


def _default_models(split: Split) -> tuple[str, ...]:
    if not split.train.implicit:
        return _EXPLICIT
    return _IMPLICIT if split.history is None else _IMPLICIT[:-1]  # random folds nobody in


def _models(
    names: tuple[str, ...], parameters: dict[str, Any], **everywhere: Any
) -> dict[str, Model | str]:
    """Make the models, each with those of the parameters that it has."""
    from recsys.models import make_model

    check_applicable(names, parameters)
    return {name: make_model(name, **applying(name, parameters, **everywhere)) for name in names}
