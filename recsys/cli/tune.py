"""`recsys tune`: a search for parameters of a model."""

from __future__ import annotations

import itertools
import shlex
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import click

from recsys import evaluation  # which imports nothing yet
from recsys.cli import inputs
from recsys.cli import options as cli
from recsys.cli.errors import require
from recsys.cli.info import word
from recsys.cli.output import Activity, Output, check_file, note
from recsys.cli.split import SplitOptions, load_splits, make_splits, split_options
from recsys.errors import DataError
from recsys.messages import counted, worded
from recsys.models.registry import address_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import polars as pl

    from recsys.data.ratings import Ratings
    from recsys.evaluation import Split
    from recsys.evaluation.tuning import Trial, Tuning
    from recsys.models.parameters import Range


@dataclass(frozen=True)
class _Search:
    """Options of the search, as in `recsys.evaluation.tune`."""

    metric: str | None = cli.declared(
        "METRIC",
        "Metric to optimize: rmse, mae, or a ranking metric such as ndcg@10.",
        show_default="rmse for ratings, ndcg@10 for implicit data",
    )
    trials: int = cli.declared(
        "N",
        "Number of trials; the first one uses the defaults.",
        default=30,
        type=cli.COUNT,
    )
    timeout: float | None = cli.declared(
        "SECONDS",
        "Time limit; the first trial always finishes.",
        type=click.FloatRange(min=0),
    )
    sampler: Literal["tpe", "random", "grid"] = cli.declared(
        "",
        "Sampler of parameters: guided by earlier trials (tpe), random, or grid.",
        type=click.Choice(("tpe", "random", "grid")),
        default="tpe",
    )
    relevant_from: float | None = cli.declared(
        "RATING",
        "Lowest relevant test rating; all by default.",
        type=float,
    )
    study: str | None = cli.declared(
        "PATH", "File of the trials, with which an interrupted search can be continued."
    )


@cli.command(
    "tune",
    examples=[
        "recsys tune ratings.csv --model als",
        "recsys tune ratings.csv --model als --trials 100 --timeout 600 --study als-study",
        "recsys tune ratings.csv --model als --factors 64 --range regularization=0.5:5:log",
    ],
    one_of={"RATINGS": ("ratings",), "--train": ("train",)},
    required="Choose the data",
)
@click.argument("ratings", nargs=-1, type=cli.PLACE)
@cli.bundle("search", _Search, *cli.declared_in(_Search, "Options"))
@cli.fit_options
@split_options("As in `recsys split --help`")
@cli.output_options
@cli.reader_options("none")
def tune(
    ratings: tuple[str, ...],
    fitting: cli.FitOptions,
    search: _Search,
    splitting: SplitOptions,
    output: Output,
    reader: cli.ReaderOptions,
    train: str | None = cli.declared("FILE", "Training ratings, without test ratings."),
    validation_fraction: float | None = cli.declared(
        "FRACTION",
        "Share of the training ratings (of users, with --method users) to validate trials on.",
        type=cli.INNER_SHARE,
        show_default="0.1",
    ),
    ranges: tuple[str, ...] = cli.declared(
        "NAME=LOW:HIGH[:log]",
        "Range of a parameter, instead of the default; repeatable.",
        "--range",
        setting="range",
        multiple=True,
    ),
) -> None:
    """Search for better parameters of a model.

    The input is RATINGS or --train. From RATINGS, the test ratings that `recsys evaluate` holds out
    with the same options are set aside and never used. Validation ratings are held out of the
    training ratings in the same way. Each trial fits the model to the rest with different
    parameters. A given parameter, such as --factors 64, is not tuned. The output is the best
    parameters, with the commands that fit a model with them and evaluate it on the test ratings.
    """
    from recsys.evaluation import tuning
    from recsys.models.registry import make_model

    search_ranges = dict(map(_range, ranges))
    check_file(search.study, "--study")
    if search.metric is not None:
        tuning.check_metric_name(search.metric)
    if fitting.model is not None:
        inputs.check_purpose(fitting)
        inputs.parameters_for([fitting.model], fitting)  # raises before a long reading
    data, inner = _training_data(ratings, train, splitting, fitting.seed, reader)
    if validation_fraction is not None:
        sentence = "--validation-fraction does not apply to leave-last."
        require(inner.method != "leave-last", sentence)
        inner = replace(inner, test_fraction=validation_fraction)
    if fitting.model is None:
        model, fixed_values, data = _chosen(data, fitting, reader)
        if data.implicit and not {"rating", "weight"} & reader.options.keys():
            # The printed commands must read the data as the trials had them.
            reader = replace(reader, options={**reader.options, "implicit": True})
    else:
        model, fixed_values = fitting.model, {}
    data = inputs.featured(data, reader, [make_model(model)])
    with Activity(f"Tuning {model}") as activity:
        tuned = tuning.tune(
            model,
            data,
            ranges=search_ranges,
            fixed=fixed_values
            | inputs.parameters_for([model], fitting, shared=False)[model],
            validation=lambda held: _single(make_splits(held, inner, fitting.seed)),
            random_state=fitting.seed,
            threads=fitting.threads,
            features=False,  # those of the options for reading, or none
            on_trial=_log_of(search),
            on_step=lambda n, step: activity.step(
                step, f"Trial {n + 1}/{search.trials}"
            ),
            **vars(search),
        )
    commands = _commands(tuned, (ratings, train), fitting, splitting, reader)
    if search.relevant_from is not None and "evaluate" in commands:
        commands["evaluate"] += f" --relevant-from {search.relevant_from:g}"
    output.write_document(
        _document(tuned, search.sampler, fitting, commands), _frame(tuned)
    )
    note(worded(_summary(tuned), implicit=data.implicit))
    for purpose, line in commands.items():
        note(f"{purpose}: {line}", verbatim=True)


def _chosen(
    data: Ratings,
    fitting: cli.FitOptions,
    reader: cli.ReaderOptions,
) -> tuple[str, dict[str, Any], Ratings]:
    """Choose a model; return its name, its parameters, and the ratings in its form."""
    from recsys.auto import Auto, choose_model

    purpose = fitting.purpose or "later"
    choice = choose_model(data, purpose)
    names = dict.fromkeys(option.model for option in choice.candidates)
    auto = Auto(purpose=purpose, random_state=fitting.seed, threads=fitting.threads)
    auto.among(
        choice.given(inputs.parameters_for(names, fitting, shared=False)), blends=False
    )
    candidate = auto.compare(inputs.featured(choice.ratings, reader, [auto]))
    for line in auto.findings[1:-1]:
        note(line)
    note(f"chose {candidate}: {choice.reason}")
    return candidate.model, candidate.params if choice.is_open else {}, choice.ratings


def _log_of(search: _Search) -> Callable[[Trial, Trial], None]:
    """Return a function that reports each trial, and at first those already in the study."""
    counter = itertools.count()

    def log(trial: Trial, best: Trial) -> None:
        if next(counter) == 0 and trial.number:
            note(f"continuing after {counted(trial.number, 'trial')} of {search.study}")
        result = "pruned" if trial.value is None else f"{trial.value:.4f}"
        values = ", ".join(
            f"{name} {word(value)}" for name, value in trial.parameters.items()
        )
        number = f"trial {trial.number + 1}/{search.trials}"
        note(
            f"{number}: {result} (best {best.value:.4f}) in {trial.seconds:.1f} s with {values}"
        )

    return log


def _range(text: str) -> tuple[str, Range]:
    """Parse NAME=LOW:HIGH[:log]; integers stay integers."""
    from recsys.models.parameters import Range

    name, _, ends = text.partition("=")
    low, high, *scale = [*ends.split(":"), ""][: max(2, ends.count(":") + 1)]
    try:
        if scale not in ([], ["log"]):
            raise ValueError
        # "inf" and "nan" have an n: they are floats, which `Range` then rejects.
        numbers = [float(x) if set(x) & set(".eEnN") else int(x) for x in (low, high)]
        search_range = Range(numbers[0], numbers[1], log=bool(scale))
    except DataError as error:
        raise click.BadParameter(f"{text!r}: {error}", param_hint="--range") from None
    except ValueError:
        raise click.BadParameter(
            f"must be NAME=LOW:HIGH or NAME=LOW:HIGH:log; got {text!r}.",
            param_hint="--range",
        ) from None
    return name.strip().replace("-", "_"), search_range


def _training_data(
    sources: tuple[str, ...],
    train: str | None,
    splitting: SplitOptions,
    seed: int,
    reader: cli.ReaderOptions,
) -> tuple[Ratings, SplitOptions]:
    """Return the training ratings, and the options for holding out validation ratings."""
    if splitting.method == "k-fold":
        raise click.UsageError(_FOLDS)
    if not sources:
        for flag in {"--test-fraction", "--folds"}.intersection(splitting.given):
            raise click.UsageError(f"{flag} applies to RATINGS, not to --train.")
        splitting.check()
        return inputs.load_ratings(train or "", reader), splitting
    split = _single(load_splits(sources, (None, None), splitting, seed, reader))
    n_ratings = counted(split.test.n_ratings, "rating")
    held_out = worded(n_ratings, implicit=split.test.implicit)
    note(f"set aside: {split.description}, {held_out}")
    if split.method == "given":  # by an unknown method
        return split.train, SplitOptions()
    if "k" in split.parameters:
        inner = SplitOptions(
            split.method, last=split.parameters["k"], repeats=split.repeats
        )
        return split.train, inner
    # A fold was drawn at random, so its validation ratings are, too.
    method = "random" if split.method == "k-fold" else split.method
    return split.train, SplitOptions(method, repeats=split.repeats)


_FOLDS = "Folds have no training ratings in common; choose another --method."


def _single(parts: Split | Sequence[Split]) -> Split:
    if not isinstance(parts, evaluation.Split):
        raise click.UsageError(_FOLDS)
    return parts


def _frame(found: Tuning) -> pl.DataFrame:
    """Return one row per parameter, with values of all types as text."""
    import polars as pl

    rows = []
    for name, value in found.parameters.items():
        tuned = found.ranges.get(name)
        ends = [word(tuned.low), word(tuned.high)] if tuned else [None, None]
        rows.append([name, word(found.defaults[name]), word(value), *ends])
    columns = ("parameter", "default", "chosen", "low", "high")
    return pl.DataFrame(rows, schema=dict.fromkeys(columns, pl.String), orient="row")


def _summary(found: Tuning) -> str:
    best = found.best
    pruned = sum(trial.state == "pruned" for trial in found.trials)
    trials = counted(len(found.trials), "trial")
    if pruned:
        trials += f", {pruned} pruned"
    validation = counted(found.validation_ratings, "validation rating")
    score = f"{found.metric} {best.value:.4f}"
    fitted = {**found.defaults, **found.fixed, **best.parameters}.get("iterations")
    if best.iterations not in (None, fitted):  # the printed commands have it, too
        score += f" after {best.iterations} of {fitted} iterations"
    if best.number == 0:
        line = f"the defaults are the best of {trials}: {score}"
    else:
        default = found.trials[0].value
        line = f"the best of {trials}: {score}, {default:.4f} with the defaults"
    return f"{line}, on {validation} ({found.held_out})"


def _document(
    found: Tuning,
    sampler: str,
    fitting: cli.FitOptions,
    commands: dict[str, str],
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
        "ranges": {
            name: asdict(search_range) for name, search_range in found.ranges.items()
        },
        "fixed": found.fixed,
        "default_value": found.trials[0].value,
        "value": found.best.value,
        "trial": found.best.number,
        "parameters": found.parameters,
        "commands": commands,
        "trials": [asdict(trial) for trial in found.trials],
    }


def _commands(
    found: Tuning,
    data: tuple[tuple[str, ...], str | None],
    fitting: cli.FitOptions,
    splitting: SplitOptions,
    reader: cli.ReaderOptions,
) -> dict[str, str]:
    """Return shell commands that fit a model with the best parameters and evaluate it."""
    from recsys.saving.splits import split_files

    model = ["--model", address_of(found.model)]
    for name, value in found.parameters.items():
        if value is None:
            continue
        if name in cli.NAMED:
            model += [f"--{name}", str(value)]
        else:
            model += ["-p", f"{name}={word(value)}"]
    ratings, train = data
    files = split_files(ratings[0]) if len(ratings) == 1 and ratings[0] != "-" else None
    if files:
        source = [str(files["train"])]
    elif train:
        source = [train]
    else:
        source = [*ratings]
    seed = ["--seed", str(fitting.seed)]
    reading = _words(reader.flags)
    stem = target = f"{found.model}-tuned"
    for number in itertools.count(2):
        if not Path(target).exists():
            break
        target = f"{stem}-{number}"
    fit = ["recsys", "fit", *source, *model]
    if "random_state" in found.defaults:
        fit += seed
    commands = {"fit": shlex.join([*fit, *reading, "--out", target])}
    if ratings:
        splits = _words(cli.given_in(splitting))
        evaluate = ["recsys", "evaluate", *ratings, *model, *seed, *splits, *reading]
        commands["evaluate"] = shlex.join(evaluate)
    return commands


def _words(flags: Mapping[str, Any]) -> list[str]:
    """Return options as words of the command line."""
    words = []
    for flag, value in flags.items():
        if isinstance(value, dict):  # weights of events
            value = ",".join(f"{kind}={weight}" for kind, weight in value.items())
        elif isinstance(value, tuple):  # the scale
            value = ",".join(f"{end:g}" for end in value)
        words += [flag] if value is True else [flag, str(value)]
    return words
