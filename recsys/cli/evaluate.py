"""`recsys evaluate` and `recsys compare`: models on held-out ratings."""

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
    EngineOptions,
    FitOptions,
    Given,
    ModelName,
    ReaderOptions,
    command,
    engine_options,
    option,
    output_options,
    parameter_options,
    reader_options,
    seed_option,
    threads_option,
)
from recsys.cli.output import Output, atomic_file, check_file
from recsys.cli.progress import Activity, note
from recsys.cli.split import SplitOptions, load_splits, split_options
from recsys.messages import counted

if TYPE_CHECKING:
    import polars as pl

    from recsys.evaluation import Evaluation, Split
    from recsys.models.base import Model, Step

__all__ = ["Request", "compare", "evaluate", "evaluation_options", "run"]

_EXPLICIT = ("als", "bias", "popular")
_IMPLICIT = ("spectral", "popular", "random")
_CURVE = (1, 2, 5, 10, 20, 50, 100)  # lengths of the recommendations in a report
_MARK = "*"


@dataclass(frozen=True)
class Request:
    """Options of an evaluation."""

    ratings: str | None
    train: str | None
    test: str | None
    model: tuple[str, ...]
    n: tuple[int, ...]
    new: Any
    candidates: int | None
    per_user: str | None
    report: str | None
    splitting: SplitOptions
    fitting: FitOptions
    reader: ReaderOptions


def evaluation_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add RATINGS and the options of an evaluation; the verb is given `request`."""

    @click.argument("ratings", required=False)
    @option("--train", metavar="FILE", help="Training ratings.")
    @option("--test", metavar="FILE", help="Test ratings.")
    @option(
        "--model",
        multiple=True,
        type=ModelName(),
        show_default="als, bias, popular; spectral, popular, random for implicit data",
        help="Model to evaluate; repeatable.",
    )
    @option(
        "-n",
        "n",
        metavar="N",
        multiple=True,
        type=click.IntRange(min=1),
        default=(10,),
        show_default="10",
        help="Number of recommendations per user; repeatable.",
    )
    @option(
        "--new",
        type=click.Choice(["drop", "keep"]),
        default="drop",
        show_default=True,
        help="How to treat test ratings of users or items not seen in training.",
    )
    @option(
        "--candidates",
        metavar="N",
        type=click.IntRange(min=1),
        help="Rank held-out items among N random ones; such metrics are marked as sampled.",
    )
    @option("--per-user", metavar="FILE", help="File for the metrics of each user: .csv, .parquet.")
    @option("--report", metavar="FILE.html", help="HTML page with tables and charts.")
    @split_options
    @parameter_options
    @seed_option("Model")
    @threads_option("Model")
    @reader_options("As in `recsys fit --help`")
    @functools.wraps(function)
    def verb(*args: Any, seed: int, threads: int | None, given: Given, **values: Any) -> Any:
        own = {name: values.pop(name) for name in Request.__dataclass_fields__ if name in values}
        request = Request(fitting=FitOptions(None, seed, threads, given), **own)
        return function(*args, request=request, **values)

    return verb


def run(request: Request, *, at_least: int = 1) -> tuple[dict[str, Model], Evaluation]:
    """Read, split, fit and measure; return the models and the evaluation.

    Raises
    ------
    click.UsageError
        If the options contradict each other, or there are fewer than `at_least` models.
    """
    from recsys import evaluation
    from recsys.cli.inputs import is_model, load_model, load_ratings, parameters_for
    from recsys.evaluation.results import only
    from recsys.models.registry import make_model

    check_file(request.per_user, "--per-user", (".csv", ".parquet"))
    check_file(request.report, "--report", (".html",))
    if request.model and len(set(request.model)) < at_least:
        raise click.UsageError("Give at least two models to compare, each with --model.")
    fitting, pair = request.fitting, (request.train, request.test)
    if request.ratings and request.test and not request.train and is_model(request.ratings):
        if request.model or fitting.given:
            raise click.UsageError("A saved model is evaluated as it is; leave out --model and -p.")
        saved = load_model(request.ratings)
        reader = replace(request.reader, implicit=saved.ratings.implicit)
        splits: Any = evaluation.split_from_pair(saved.ratings, load_ratings(request.test, reader))
        models: dict[str, Any] = {saved.model.name: saved}
    else:
        splits = load_splits(request.ratings, pair, request.splitting, fitting.seed, request.reader)
        names, splits = _chosen_models(request.model, splits)
        parameters = parameters_for(names, fitting)
        models = {name: make_model(name, **values) for name, values in parameters.items()}
    ns = request.n
    if request.report is not None:  # its curves show shorter lists as well
        ns = tuple(sorted({*ns, *(n for n in _CURVE if n < max(ns))}))
    with Activity("Evaluating") as activity:

        def each(label: str, step: Step) -> None:
            activity.title = f"Fitting {label}"
            activity.step(step)

        found = evaluation.evaluate(
            models,
            splits,
            ns,
            candidates=request.candidates,
            new=request.new,
            random_state=fitting.seed,
            on_step=each,
        )
    models = {name: getattr(each, "model", each) for name, each in models.items()}
    _report_counts(found)
    if request.per_user is not None:
        Output(Path(request.per_user)).write(_without_empty(only(found, request.n).per_user))
        note(f"the values of each user are in {request.per_user}")
    if request.report is not None:
        _write_report(found, models, request.report)
    return models, only(found, request.n)


def _chosen_models(
    names: Sequence[str], splits: Split | Sequence[Split]
) -> tuple[list[str], Split | Sequence[Split]]:
    """Return the models to evaluate; without names, the ratings as `recsys fit` would use them."""
    from recsys.auto import as_implicit, choose_model
    from recsys.evaluation import Split

    first = splits if isinstance(splits, Split) else splits[0]
    if names and "auto" not in names:
        return [*dict.fromkeys(names)], splits
    choice = choose_model(first.train)
    if choice.ratings.implicit != first.train.implicit:
        note(f"{choice.reason}; use --model to treat them as ratings")
        taken = [
            replace(
                split,
                train=as_implicit(split.train),
                test=as_implicit(split.test),
                history=None if split.history is None else as_implicit(split.history),
            )
            for split in ([splits] if isinstance(splits, Split) else splits)
        ]
        first = taken[0]
        splits = first if isinstance(splits, Split) else taken
    if names:
        named = (choice.model if name == "auto" else name for name in names)
        return [*dict.fromkeys(named)], splits
    if not first.train.implicit:
        return [*_EXPLICIT], splits
    # The model random does not fold in the users of a history.
    return [*(_IMPLICIT if first.history is None else _IMPLICIT[:-1])], splits


def _report_counts(found: Evaluation) -> None:
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


def _without_empty(frame: pl.DataFrame) -> pl.DataFrame:
    """Return a frame without the metrics that no model has."""
    return frame[[column.name for column in frame if column.null_count() < len(column)]]


def _write_report(found: Evaluation, models: dict[str, Model], path: str) -> None:
    """Write the HTML report, with the command line and the versions of everything used."""
    import platform

    from lowrank.kernels import backend
    from recsys import __version__
    from recsys.cli.info import library_versions
    from recsys.evaluation import html_report

    versions = {
        "recsys": __version__,
        "kernels": str(backend()),
        "Python": platform.python_version(),
        **library_versions(),
        "system": f"{platform.system()} {platform.machine()}",
    }
    words = click.get_current_context().ensure_object(State).words
    page = html_report(
        found,
        parameters={label: model.get_params() for label, model in models.items()},
        command=shlex.join(["recsys", *words]),
        versions=versions,
    )
    with atomic_file(Path(path)) as stream:
        stream.write(page.encode(errors="backslashreplace"))  # a file name need not be text
    note(f"the report is in {path}")


def _document(command: str, models: dict[str, Model], found: Evaluation) -> dict[str, Any]:
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


def _result(row: dict[str, Any], model: Model, found: Evaluation) -> dict[str, Any]:
    """Return the results of one model."""
    metrics = {}
    for each in found.metrics.filter(found.metrics["model"] == row["model"]).to_dicts():
        metrics[each["metric"]] = {
            "value": each["value"],
            "interval": None if each["low"] is None else [each["low"], each["high"]],
            "users": each["users"],
        }
        if each["n"] is None:
            metrics[each["metric"]]["ratings"] = found.counts["test_ratings"]
    return {
        "model": row["model"],
        "parameters": model.get_params(),
        "metrics": metrics,
        "fit_seconds": row["fit_seconds"],
        "recommend_seconds": row["recommend_seconds"],
    }


def _tables(found: Evaluation) -> tuple[list[pl.DataFrame], str]:
    """Return tables of a column per model that fit the terminal, with intervals if they do."""
    import polars as pl

    from recsys.evaluation.results import named, significantly_worse

    names = found.metrics.select("metric", "n").unique(maintain_order=True).rows()
    names.sort(key=lambda name: found.table.columns.index(name[0]))
    worse = significantly_worse(found)
    rows = {(row["model"], row["metric"]): row for row in found.metrics.to_dicts()}

    def columns(decimals: int) -> dict[str, list[str]]:
        cells = {"metric": [named(name, found) for name, _ in names]}
        cells["metric"] += ["fit, seconds", "recommend, seconds"]
        for row in found.table.to_dicts():
            label = row["model"]
            cells[label] = [
                _cell(rows.get((label, name)), decimals) + _MARK * ((label, name) in worse)
                for name, _ in names
            ]
            cells[label] += [f"{row[kind]:.4f}" for kind in ("fit_seconds", "recommend_seconds")]
        return cells

    terminal = shutil.get_terminal_size((80, 24)).columns
    fitting = [found.settings.resamples and _width(columns(d)) <= terminal for d in (4, 3)]
    decimals = 4 if fitting[0] else 3 if fitting[1] else 0
    legend = f"[{found.settings.confidence:.0%} interval over users]"
    if not decimals:
        legend = f"(intervals need {_width(columns(3))} columns, or --json)"
    if found.comparisons.height:
        level = 1 - found.settings.confidence
        legend += (
            f"  {_MARK} worse than the best of its row (paired sign-flip test, Holm, "
            f"p < {level:.2g})"
        )
    cells = columns(decimals)
    parts: list[dict[str, list[str]]] = [{"metric": cells.pop("metric")}]
    for label, texts in cells.items():
        if len(parts[-1]) > 1 and _width({**parts[-1], label: texts}) > terminal:
            parts.append({"metric": parts[0]["metric"]})
        parts[-1][label] = texts
    return [pl.DataFrame(part) for part in parts], legend if found.settings.resamples else ""


def _cell(row: dict[str, Any] | None, decimals: int) -> str:
    """Return the text of a value, with its interval to so many decimals, if any."""
    if row is None:
        return "-"
    fewer = int(abs(row["value"]) >= 10)
    text = f"{row['value']:.{4 - fewer}f}"
    if not decimals or row["low"] is None:
        return text
    digits = decimals - fewer
    return f"{text} [{row['low']:.{digits}f}, {row['high']:.{digits}f}]"


def _width(columns: dict[str, list[str]]) -> int:
    """Return the width of a table of these columns, with three characters between them."""
    widest = (max(len(name), *map(len, cells)) for name, cells in columns.items())
    return sum(widest) + 3 * (len(columns) - 1)


def _differences(found: Evaluation) -> tuple[pl.DataFrame, str]:
    """Return the table of pairs of models, with all columns that fit the terminal; a legend."""
    import polars as pl

    from recsys.evaluation.results import named

    level = 1 - found.settings.confidence
    rows = found.comparisons.to_dicts()
    interval = f"{found.settings.confidence:.0%} interval"
    cells = {
        "metric": [named(row["metric"], found) for row in rows],
        "model - other": [f"{row['model']} - {row['other']}" for row in rows],
        "difference": [f"{row['difference']:+.4f}" for row in rows],
        interval: [f"[{row['low']:+.4f}, {row['high']:+.4f}]" for row in rows],
        "p": [f"{row['p_value']:.4f}" for row in rows],
        "adjusted": [
            f"{row['adjusted']:.4f}" + f" {_MARK}" * (row["adjusted"] < level) for row in rows
        ],
    }
    legend = (
        f"p: paired sign-flip test over users; adjusted by Holm's method over the pairs; "
        f"{_MARK} below {level:.2g}"
    )
    terminal, needed = shutil.get_terminal_size((80, 24)).columns, _width(cells)
    if needed > terminal:
        legend += f" (all columns need {needed}, or --json)"
    for left_out in ((), ("p",), (interval,), ("p", interval)):
        kept = {name: texts for name, texts in cells.items() if name not in left_out}
        if _width(kept) <= terminal:
            break
    return pl.DataFrame(kept), legend


@command(
    "evaluate",
    examples=[
        "recsys evaluate ratings.csv",
        "recsys evaluate ratings.csv --model als --model popular -n 5 -n 20 --json",
        "recsys evaluate ratings.csv --model als --model bayes --factors 64 -p als.linked=true",
        "recsys evaluate ratings.csv --method k-fold --per-user users.parquet",
        "recsys evaluate --train train.csv --test test.csv",
        "recsys evaluate model --test test.csv",
        "recsys evaluate s3a://lake/model --test s3a://lake/test --engine spark",
    ],
)
@evaluation_options
@engine_options("As in `recsys fit --help`")
@output_options
def evaluate(request: Request, output: Output, engine: EngineOptions) -> None:
    """Evaluate models on held-out ratings.

    Takes RATINGS, of which some are held out (the newest, if timestamps are known); or a directory
    of `recsys split`; or both --train and --test; or a saved MODEL, which is measured as it
    is, and --test. RMSE and MAE are over the held-out ratings.
    Ranking metrics are over the users that have any: each gets N recommendations out of all items
    not rated in training, and held-out items are relevant. JSON has the definitions, 95% intervals
    over users, tests of the differences between models, and a fingerprint of the data.

    With --engine spark, RATINGS is a model of `recsys fit --engine spark`, which is measured on
    --test on the cluster.
    """
    if engine.on_spark:
        from recsys.cli.spark import evaluate_on_spark

        others = (request.train, request.model, request.candidates, request.per_user)
        if any(others) or request.report or request.fitting.given or len(request.n) > 1:
            raise click.UsageError("--engine spark takes MODEL --test FILE, and one -n.")
        if request.ratings is None or request.test is None:
            raise click.UsageError("--engine spark needs MODEL --test FILE.")
        evaluate_on_spark(
            request.ratings, request.test, request.n[0], engine, request.reader, output
        )
        return
    models, found = run(request)
    tables, legend = _tables(found)
    document = _document("evaluate", models, found)
    output.write_document(document, _without_empty(found.table), tables, legend)


@command(
    "compare",
    examples=[
        "recsys compare ratings.csv --model als --model popular",
        "recsys compare parts --model als --model bayes --model bias -n 5 -n 20 --json",
    ],
)
@evaluation_options
@output_options
def compare(request: Request, output: Output) -> None:
    """Test whether models differ on held-out ratings.

    Takes what `recsys evaluate` takes. One row per metric and pair of models: the difference (model
    minus other), its 95% interval by the bootstrap over users, the p value of a paired sign-flip
    test over users, and the same adjusted by Holm's method for the number of pairs of models.
    """
    models, found = run(request, at_least=2)
    if found.comparisons.is_empty():
        raise click.UsageError("A test needs a metric that two models have, of two users or more.")
    table, legend = _differences(found)
    document = _document("compare", models, found)
    output.write_document(document, found.comparisons, table, legend)
