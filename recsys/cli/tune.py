"""recsys tune: a search for better parameters."""

from __future__ import annotations

import functools
import itertools
import shlex
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from recsys.cli.options import (
    FitOptions,
    ReaderOptions,
    command,
    fit_options,
    option,
    output_options,
    reader_options,
)
from recsys.cli.output import Output
from recsys.cli.parameters import PARAMETERS, check_applicable
from recsys.cli.progress import Activity, note
from recsys.cli.split import (
    SplitOptions,
    check_split_options,
    load_splits,
    make_splits,
    split_options,
)
from recsys.errors import DataError
from recsys.messages import counted

if TYPE_CHECKING:
    from collections.abc import Sequence

    import polars as pl

    from recsys.data.ratings import Ratings
    from recsys.evaluation import Split
    from recsys.evaluation.tuning import Trial, Tuning
    from recsys.models.base import Range, Step

__all__ = ["commands_with", "tune"]


@command(
    "tune",
    examples=[
        "recsys tune ratings.csv --model als",
        "recsys tune ratings.csv --model als --trials 100 --timeout 600 --study als-study",
        "recsys tune ratings.csv --model als --factors 64 --range regularization=0.5:5:log",
        "recsys tune --train train.csv --model bias --sampler grid",
    ],
)
@click.argument("ratings", required=False, type=click.Path(allow_dash=True))
@option("--train", metavar="FILE", type=click.Path(), help="Ratings to tune on, all of them.")
@option(
    "--validation-fraction",
    metavar="FRACTION",
    type=click.FloatRange(0, 1, min_open=True, max_open=True),
    show_default="0.1",
    help="Share of the training ratings (users: of the users) on which trials are measured.",
)
@option(
    "--metric",
    metavar="METRIC",
    show_default="rmse for ratings, ndcg@10 for implicit data",
    help="rmse, mae, or ndcg, recall, precision, hit_rate, map or mrr with @N.",
)
@option(
    "--trials",
    metavar="N",
    type=click.IntRange(min=1),
    default=30,
    show_default=True,
    help="Number of trials; the first has the defaults.",
)
@option(
    "--timeout",
    metavar="SECONDS",
    type=click.FloatRange(min=0),
    help="Stop after this time, at the earliest after the first trial.",
)
@option(
    "--sampler",
    type=click.Choice(("tpe", "random", "grid")),
    default="tpe",
    show_default=True,
    help="How the next trial is chosen: from the trials so far, at random, or from a grid.",
)
@option(
    "--range",
    "ranges",
    metavar="NAME=LOW:HIGH[:log]",
    multiple=True,
    help="Range of a parameter in place of the model's own; repeatable.",
)
@option(
    "--study",
    metavar="DIR",
    type=click.Path(),
    help="Keep the trials here: the same command goes on where an interrupted one ended.",
)
@fit_options(default=None)
@split_options
@output_options
@reader_options
def tune(
    ratings: str | None,
    train: str | None,
    validation_fraction: float | None,
    metric: str | None,
    trials: int,
    timeout: float | None,
    sampler: Any,
    ranges: tuple[str, ...],
    study: str | None,
    fitting: FitOptions,
    splitting: SplitOptions,
    output: Output,
    reader: ReaderOptions,
) -> None:
    """Find good parameters of a model.

    Takes RATINGS, of which a test part is set aside and never looked at, the one on which `recsys
    evaluate` tests with the same options; or --train. Of the training ratings, a part of the same
    kind (the newest ones, say) is held out, and each trial fits the model to the rest with other
    parameters. A parameter that is given, such as --factors 64, is not tuned. Prints the chosen
    parameters, and the commands that fit a model with them and measure it on the test part.
    """
    from recsys.auto import choose_model
    from recsys.evaluation import tuning
    from recsys.evaluation.tuning import check_metric_name

    wanted = dict(map(_range, ranges))
    if metric is not None:
        check_metric_name(metric)
    if fitting.model is not None:
        check_applicable([fitting.model], fitting.parameters)
    data, inner = _training_part(ratings, train, splitting, fitting.seed, reader)
    inner = _with_fraction(inner, validation_fraction)
    model = fitting.model
    if model is None:
        choice = choose_model(data)
        note(f"chose {choice.model}: {choice.reason}")
        model, data = choice.model, choice.ratings
        reader = replace(reader, implicit=data.implicit)
        check_applicable([model], fitting.parameters)
    log = _Log(trials, study)
    with Activity(f"Tuning {model}") as activity:

        def each(number: int, step: Step) -> None:
            activity.title = f"Trial {number + 1}/{trials}"
            activity.step(step)

        found = tuning.tune(
            model,
            data,
            metric=metric,
            trials=trials,
            timeout=timeout,
            sampler=sampler,
            ranges=wanted,
            fixed=fitting.parameters,
            validation=functools.partial(_held_out, inner=inner, seed=fitting.seed),
            study=study,
            random_state=fitting.seed,
            threads=fitting.threads,
            on_trial=log,
            on_step=each,
        )
    commands = commands_with(found, ratings, train, fitting, splitting, reader)
    output.write_document(_document(found, sampler, fitting, commands), _frame(found))
    note(_summary(found))
    for purpose, line in commands.items():
        note(f"{purpose}: {line}")


def _range(text: str) -> tuple[str, Range]:
    """Read NAME=LOW:HIGH[:log]; integers stay integers."""
    from recsys.models.base import Range

    name, _, ends = text.partition("=")
    low, _, rest = ends.partition(":")
    high, colon, scale = rest.partition(":")
    try:
        if scale not in ("", "log") or (colon and not scale):
            raise ValueError
        found = Range(_number(low), _number(high), log=scale == "log")
    except DataError as error:
        raise click.BadParameter(f"{text!r}: {error}", param_hint="--range") from None
    except ValueError:
        raise click.BadParameter(
            f"takes NAME=LOW:HIGH or NAME=LOW:HIGH:log; got {text!r}.", param_hint="--range"
        ) from None
    return name.strip().replace("-", "_"), found


def _number(text: str) -> int | float:
    try:
        return int(text)
    except ValueError:
        return float(text)


def _training_part(
    path: str | None, train: str | None, splitting: SplitOptions, seed: int, reader: ReaderOptions
) -> tuple[Ratings, SplitOptions]:
    """Read what models may learn from; and how a part of it is to be held out in turn."""
    from recsys.cli.inputs import load_ratings

    if (path is None) == (train is None):
        raise click.UsageError("Give either RATINGS or --train FILE.")
    if path is None:
        for flag in {"--test-fraction", "--folds"}.intersection(splitting.asked):
            raise click.UsageError(f"{flag} applies to RATINGS, not to --train.")
        check_split_options(splitting)
        _refuse_folds(splitting)
        return load_ratings(str(train), reader), splitting
    _refuse_folds(splitting)
    splits = load_splits(path, (None, None), splitting, seed, reader)
    split = _single(splits)
    note(f"set aside: {split.description}, {counted(split.test.n_ratings, 'rating')}")
    return split.train, _same_kind(split)


_FOLDS = "Folds have no training part in common; choose another --method."


def _refuse_folds(splitting: SplitOptions) -> None:
    if splitting.method == "k-fold":
        raise click.UsageError(_FOLDS)


def _single(parts: Split | Sequence[Split]) -> Split:
    from recsys.evaluation import Split

    if not isinstance(parts, Split):
        raise click.UsageError(_FOLDS)
    return parts


def _same_kind(split: Split) -> SplitOptions:
    """Return the options that hold out a part of the training ratings as `split` did of all."""
    if split.method == "given":  # nobody knows how
        return SplitOptions()
    if split.method == "leave-last":
        return SplitOptions("leave-last", last=split.parameters["k"])
    return SplitOptions("random" if split.method == "k-fold" else split.method)


def _with_fraction(inner: SplitOptions, fraction: float | None) -> SplitOptions:
    if fraction is None:
        return inner
    if inner.method == "leave-last":
        raise click.UsageError(
            "--validation-fraction does not apply where each user's last ratings are held out."
        )
    return replace(inner, test_fraction=fraction)


def _held_out(data: Ratings, inner: SplitOptions, seed: int) -> Split:
    """Hold out the validation part of the training ratings."""
    return _single(make_splits(data, inner, seed))


@dataclass
class _Log:
    """One line on standard error for each trial that ends."""

    trials: int
    study: str | None
    started: bool = False

    def __call__(self, trial: Trial, best: Trial) -> None:
        if not self.started and trial.number:
            note(f"going on after {counted(trial.number, 'trial')} of {self.study}")
        self.started = True
        result = "given up" if trial.value is None else f"{trial.value:.4f}"
        values = ", ".join(f"{name} {_text(value)}" for name, value in trial.parameters.items())
        number = f"trial {trial.number + 1}/{self.trials}"
        note(f"{number}: {result} (best {best.value:.4f}) in {trial.seconds:.1f} s with {values}")


def _frame(found: Tuning) -> pl.DataFrame:
    """One row per parameter; values as text, since they are of several types."""
    import polars as pl

    rows = [
        {
            "parameter": name,
            "default": _text(found.defaults[name]),
            "chosen": _text(value),
            "low": _text(found.ranges[name].low) if name in found.ranges else None,
            "high": _text(found.ranges[name].high) if name in found.ranges else None,
        }
        for name, value in found.parameters.items()
    ]
    columns = ("parameter", "default", "chosen", "low", "high")
    return pl.DataFrame(rows, schema=dict.fromkeys(columns, pl.String))


def _text(value: Any) -> str:
    words = {None: "-", True: "on", False: "off"}
    return words[value] if value is None or isinstance(value, bool) else str(value)


def _summary(found: Tuning) -> str:
    first, best = found.trials[0], found.best
    pruned = sum(trial.state == "pruned" for trial in found.trials)
    trials = counted(len(found.trials), "trial") + (f", {pruned} given up early" if pruned else "")
    others = "" if best.number == first.number else f", {first.value:.4f} with the defaults"
    held_out = f"{counted(found.validation_ratings, 'validation rating')} ({found.held_out})"
    chosen = "the defaults are the best" if best.number == first.number else "the best"
    reached = f"{found.metric} {best.value:.4f}" + (" from scratch" if found.warm else "")
    return f"{chosen} of {trials}: {reached}{others}, on {held_out}"


def _document(
    found: Tuning, sampler: str, fitting: FitOptions, commands: dict[str, str]
) -> dict[str, Any]:
    from recsys import __version__

    return {
        "command": "tune",
        "version": __version__,
        "seed": fitting.seed,
        "data": {
            "fingerprint": found.fingerprint,
            "train_ratings": found.train_ratings,
            "validation_ratings": found.validation_ratings,
            "validation": found.held_out,
        },
        "model": found.model,
        "metric": found.metric,
        "sampler": sampler,
        "warm_start": found.warm,
        "ranges": {name: asdict(each) for name, each in found.ranges.items()},
        "fixed": found.fixed,
        "default_value": found.trials[0].value,
        "value": found.best.value,
        "trial": found.best.number,
        "parameters": found.parameters,
        "commands": commands,
        "trials": [asdict(trial) for trial in found.trials],
    }


def commands_with(
    found: Tuning,
    ratings: str | None,
    train: str | None,
    fitting: FitOptions,
    splitting: SplitOptions,
    reader: ReaderOptions,
) -> dict[str, str]:
    """Return the commands that use what was found, as a shell takes them."""
    model = ["--model", found.model]
    for parameter in PARAMETERS:
        if found.parameters.get(parameter.name) is not None:
            model += _words(parameter.option, found.parameters[parameter.name])
    seed, reading = ["--seed", str(fitting.seed)], _options(reader)
    data = str(train) if ratings is None else _training_file(ratings)
    target = ["--out", _free_name(f"{found.model}-tuned")]
    own_seed = seed if "random_state" in found.defaults else []
    lines = {"fit": ["recsys", "fit", data, *model, *own_seed, *reading, *target]}
    if ratings is not None:
        words = ["recsys", "evaluate", ratings, *model, *seed, *_options(splitting), *reading]
        lines["evaluate"] = words
    return {name: shlex.join(words) for name, words in lines.items()}


def _training_file(path: str) -> str:
    """Return `path`, or the training file of a folder with a split."""
    from recsys.evaluation.storing import split_files

    files = None if path == "-" else split_files(path)
    return path if files is None else str(files["train"])


def _options(bundle: ReaderOptions | SplitOptions) -> list[str]:
    """Return the options of a bundle that are not the defaults."""
    words = []
    for each in fields(bundle):
        value = getattr(bundle, each.name)
        if value != each.default:
            words += _words(f"--{each.name.replace('_', '-')}", value)
    return words


def _words(option: str, value: Any) -> list[str]:
    if isinstance(value, bool):
        return [option if value else f"--no-{option[2:]}"]
    return [option, str(value)]


def _free_name(stem: str) -> str:
    """Return the first of stem, stem-2, stem-3, ... that is not there yet."""
    names = itertools.chain([stem], (f"{stem}-{i}" for i in itertools.count(2)))
    return next(name for name in names if not Path(name).exists())
