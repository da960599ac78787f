"""recsys evaluate and compare."""

from __future__ import annotations

import functools
import shlex
import shutil
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from recsys.cli.group import State
from recsys.cli.options import (
    MODEL_NAMES,
    EngineOptions,
    ReaderOptions,
    bundle,
    command,
    engine_options,
    option,
    output_options,
    parameter_options,
    reader_options,
    seed_option,
    threads_option,
)
from recsys.cli.output import Output, atomic_file
from recsys.cli.parameters import applying, check_applicable
from recsys.cli.progress import Activity, note
from recsys.cli.split import SplitOptions, load_splits, split_options
from recsys.messages import counted

if TYPE_CHECKING:
    import polars as pl

    from recsys.evaluation import Evaluation, Split
    from recsys.models.base import Model, Step

__all__ = [
    "Question",
    "check_report",
    "compare",
    "differences",
    "document",
    "evaluate",
    "evaluation_options",
    "legend",
    "legend_of_differences",
    "lengths",
    "run",
    "tables",
    "write_per_user",
    "write_report",
]

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
    from recsys.evaluation.results import only

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
            random_state=seed,
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
    from recsys.evaluation.results import INTERVALS, TESTS, ranking

    kinds = set(found.metrics["kind"])
    first = found.splits[0]
    return {
        "command": command,
        "version": __version__,
        "seed": found.settings.random_state,
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
        "definitions": {kind: m.definition for kind, m in found.measured.items() if kind in kinds},
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
        "parameters": {} if isinstance(model, str) else model.get_params(),
        "metrics": metrics,
        "fit_seconds": row["fit_seconds"],
        "recommend_seconds": row["recommend_seconds"],
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
        from recsys.evaluation.results import ranking

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
    from recsys.auto import as_implicit, choose_model
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
            train=as_implicit(split.train),
            test=as_implicit(split.test),
            history=None if split.history is None else as_implicit(split.history),
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
    from recsys.models.registry import make_model

    check_applicable(names, parameters)
    return {name: make_model(name, **applying(name, parameters, **everywhere)) for name in names}


_GAP = 3  # between columns
_DECIMALS = (4, 3)  # of intervals: the most that fit
_MARK = "*"


def tables(found: Evaluation) -> list[pl.DataFrame]:
    """Return the table, with intervals if they fit the terminal, or parts of it that fit."""
    import polars as pl

    width = _terminal()
    labels = found.table["model"].to_list()
    for decimals in _DECIMALS if found.settings.resamples else ():
        whole = _columns(found, decimals)
        if _width(whole, labels) <= width:
            return [pl.DataFrame({name: whole[name] for name in ["metric", *labels]})]
    plain = _columns(found, None)
    parts: list[list[str]] = [[]]
    for label in labels:
        if parts[-1] and _width(plain, [*parts[-1], label]) > width:
            parts.append([])
        parts[-1].append(label)
    return [pl.DataFrame({name: plain[name] for name in ["metric", *part]}) for part in parts]


def legend(found: Evaluation) -> str:
    """Explain the table in one line."""
    level = 1 - found.settings.confidence
    needed = _width(_columns(found, _DECIMALS[-1]), found.table["model"].to_list())
    said = f"[{found.settings.confidence:.0%} interval over users]"
    if needed > _terminal():
        said = f"(intervals need {needed} columns, or --json)"
    if found.comparisons.height:
        said += (
            f"  {_MARK} worse than the best of its row (paired sign-flip test, Holm, "
            f"p < {level:.2g})"
        )
    return said if found.settings.resamples else ""


def differences(found: Evaluation) -> pl.DataFrame:
    """Return the comparisons as people read them: all that fits the terminal."""
    import polars as pl

    whole = _differences(found)
    interval = next(name for name in whole if name.endswith("interval"))
    for left_out in ((), ("p",), (interval,), ("p", interval)):
        fitting = {name: cells for name, cells in whole.items() if name not in left_out}
        if _table_width(fitting) <= _terminal():
            break
    return pl.DataFrame(fitting)


def legend_of_differences(found: Evaluation) -> str:
    """Explain the table of differences in one line."""
    level = 1 - found.settings.confidence
    said = (
        f"p: paired sign-flip test over users; adjusted by Holm's method over the pairs; "
        f"{_MARK} below {level:.2g}"
    )
    needed = _table_width(_differences(found))
    return said if needed <= _terminal() else f"{said} (all columns need {needed}, or --json)"


def _differences(found: Evaluation) -> dict[str, list[str]]:
    """Return the texts of the table of differences by column."""
    from recsys.evaluation.results import named

    level = 1 - found.settings.confidence
    rows = found.comparisons.to_dicts()
    return {
        "metric": [named(row["metric"], found) for row in rows],
        "model - other": [f"{row['model']} - {row['other']}" for row in rows],
        "difference": [f"{row['difference']:+.4f}" for row in rows],
        f"{found.settings.confidence:.0%} interval": [
            f"[{row['low']:+.4f}, {row['high']:+.4f}]" for row in rows
        ],
        "p": [_p(row["p_value"]) for row in rows],
        "adjusted": [_p(row["adjusted"]) + f" {_MARK}" * (row["adjusted"] < level) for row in rows],
    }


def _columns(found: Evaluation, decimals: int | None) -> dict[str, list[str]]:
    """Return the texts of the table by column; `decimals` are those of the intervals, if any."""
    from recsys.evaluation.results import named, significantly_worse

    names = found.metrics.select("metric", "n").unique(maintain_order=True).rows()
    names.sort(key=lambda name: found.table.columns.index(name[0]))
    worse = significantly_worse(found)
    cells = {
        (row["model"], row["metric"]): _cell(row, decimals) for row in found.metrics.to_dicts()
    }
    columns = {"metric": [named(name, found) for name, _ in names]}
    columns["metric"] += ["fit, seconds", "recommend, seconds"]
    for row in found.table.to_dicts():
        label = row["model"]
        columns[label] = [
            cells.get((label, name), "-") + _MARK * ((label, name) in worse) for name, _ in names
        ]
        columns[label] += [
            f"{row['fit_seconds']:.4f}",
            f"{row['recommend_seconds']:.4f}",
        ]
    return columns


def _cell(row: dict[str, float], decimals: int | None) -> str:
    value, low, high = row["value"], row["low"], row["high"]
    fewer = int(abs(value) >= 10)
    text = f"{value:.{4 - fewer}f}"
    if decimals is None or low is None or high is None:
        return text
    return f"{text} [{low:.{decimals - fewer}f}, {high:.{decimals - fewer}f}]"


def _terminal() -> int:
    return shutil.get_terminal_size((80, 24)).columns


def _p(value: float) -> str:
    return f"{value:.4f}"


def _width(columns: dict[str, list[str]], labels: list[str]) -> int:
    return _table_width({name: columns[name] for name in ["metric", *labels]})


def _table_width(columns: dict[str, list[str]]) -> int:
    widest = (max(len(name), *map(len, cells)) for name, cells in columns.items())
    return sum(widest) + _GAP * (len(columns) - 1)


_LENGTHS = (1, 2, 5, 10, 20, 50, 100)


def check_report(path: str | None) -> None:
    """Refuse before the work what would be refused after it."""
    if path is None:
        return
    if Path(path).suffix.lower() not in (".html", ".htm"):
        raise click.UsageError(f"--report must end in .html; got {path}.")
    if not Path(path).parent.is_dir():
        raise click.UsageError(f"Cannot write {path}: there is no directory {Path(path).parent}.")


def lengths(asked: tuple[int, ...]) -> tuple[int, ...]:
    """Return the lengths asked for, and shorter ones for the curves of a report."""
    return tuple(sorted({*asked, *(n for n in _LENGTHS if n < max(asked))}))


def write_report(found: Evaluation, models: dict[str, Model | str], path: str) -> None:
    """Write the page beside its place, and rename it when it is complete."""
    from recsys.evaluation import html_report

    state = click.get_current_context().ensure_object(State)
    page = html_report(
        found,
        parameters={
            label: {} if isinstance(model, str) else model.get_params()
            for label, model in models.items()
        },
        command=shlex.join(["recsys", *state.words]),
        versions=_versions(),
    )
    with atomic_file(Path(path)) as stream:
        stream.write(page.encode(errors="backslashreplace"))  # a file name need not be text
    note(f"the report is in {path}")


def _versions() -> dict[str, str]:
    """Return the versions of everything that a figure may depend on."""
    import platform

    from lowrank.kernels import backend
    from recsys import __version__
    from recsys.cli.info import library_versions

    libraries = {name: text for name, text in library_versions().items() if name != "rich"}
    own = {"recsys": __version__, "kernels": str(backend()), "Python": platform.python_version()}
    return {**own, **libraries, "system": f"{platform.system()} {platform.machine()}"}


@command(
    "evaluate",
    examples=[
        "recsys evaluate ratings.csv",
        "recsys evaluate ratings.csv --model als --model popular -n 5 -n 20 --json",
        "recsys evaluate ratings.csv --model als --factors 64 --regularization 0.8",
        "recsys evaluate ratings.csv --method k-fold --per-user users.parquet",
        "recsys evaluate --train train.csv --test test.csv",
        "recsys evaluate s3a://lake/model --test s3a://lake/test --engine spark",
    ],
)
@evaluation_options
@output_options
@engine_options
def evaluate(question: Question, output: Output, engine: EngineOptions) -> None:
    """Compare models on held-out ratings.

    Takes RATINGS, of which a part is held out (the newest ones, where times are known); or a folder
    with a train and a test file; or both --train and --test. A parameter goes to each of the
    models that has it. RMSE and MAE are over the held-out ratings. Ranking metrics are over the
    users that have any: each is recommended N of all items not rated in the training part, and the
    held-out ones count as relevant. JSON holds the definitions, 95% intervals over users, tests of
    the differences between models, and a fingerprint of the data.

    With --engine spark, RATINGS is a model that `recsys fit --engine spark` wrote, and is measured
    on --test on the cluster.
    """
    if engine.on_spark:
        _evaluate_on_spark(question, engine, output)
        return
    models, found = run(question)
    form = output.resolved_format
    if form == "json":
        output.write_document(document("evaluate", models, found), found.table)
    elif form == "table":
        output.write(tables(found), remark=legend(found))
    else:
        output.write(without_empty(found.table))


def _evaluate_on_spark(question: Question, engine: EngineOptions, output: Output) -> None:
    from recsys.cli.spark import evaluate_on_spark

    asked = question.asked
    others = (asked.train, asked.model, asked.candidates, asked.per_user, asked.report)
    plain = not any(others) and not question.parameters and len(asked.n) == 1
    if question.ratings is None or asked.test is None or not plain:
        raise click.UsageError(
            "With --engine spark, say MODEL --test FILE; of the other choices there is one -n."
        )
    evaluate_on_spark(question.ratings, asked.test, asked.n[0], engine, question.reader, output)


@command(
    "compare",
    examples=[
        "recsys compare ratings.csv --model als --model popular",
        "recsys compare parts --model als --model bayes --model bias -n 5 -n 20 --json",
    ],
)
@evaluation_options
@output_options
def compare(question: Question, output: Output) -> None:
    """Test whether models differ on held-out ratings.

    Takes what `recsys evaluate` takes. One row per metric and pair of models: the difference (model
    minus other), its 95% interval by the bootstrap over users, the p value of a paired sign-flip
    test over users, and the same adjusted by Holm's method for the number of pairs of models.
    """
    models, found = run(question, at_least=2)
    if found.comparisons.is_empty():
        raise click.UsageError(
            "A test needs a metric that two models have, of two users or more; there is none."
        )
    form = output.resolved_format
    if form == "json":
        output.write_document(document("compare", models, found), found.comparisons)
    elif form == "table":
        output.write(differences(found), remark=legend_of_differences(found))
    else:
        output.write(found.comparisons)
