"""Bundles of options that several verbs share, each a decorator.

A bundle hands its verb one keyword argument instead of one per option: `@reader_options` gives
`reader` (`ReaderOptions`), `@fit_options` gives `fitting` (`FitOptions`), `@output_options` gives
`output` (`Output`).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, TypeVar

import click

from recsys.cli.group import EVERYWHERE, Command, Option, State
from recsys.cli.output import FORMATS, Output
from recsys.cli.parameters import PARAMETERS, Parameter

__all__ = [
    "MODEL_NAMES",
    "EngineOptions",
    "FitOptions",
    "ReaderOptions",
    "bundle",
    "command",
    "common_options",
    "engine_options",
    "fit_options",
    "n_option",
    "output_options",
    "parameter_options",
    "reader_options",
    "seed_option",
    "threads_option",
]

F = TypeVar("F", bound=Callable[..., Any])
Decorator = Callable[[F], F]

MODEL_NAMES = (
    "als",
    "bayes",
    "bias",
    "clusters",
    "ease",
    "implicit-als",
    "implicit-bpr",
    "implicit-knn",
    "implicit-lmf",
    "popular",
    "random",
    "softimpute",
    "spectral",
)
DUPLICATES = ("last", "first", "mean", "sum", "error")


@dataclass(frozen=True)
class ReaderOptions:
    """How a ratings file is to be read; None means that the reader finds out."""

    user_col: str | None = None
    item_col: str | None = None
    rating_col: str | None = None
    time_col: str | None = None
    sep: str | None = None
    encoding: str | None = None
    duplicates: str = "last"
    implicit: bool = False

    def keywords(self) -> dict[str, Any]:
        """Return the keywords of `recsys.readers.read_ratings`."""
        renamed = {"user_col": "user", "item_col": "item", "rating_col": "rating"}
        renamed["time_col"] = "timestamp"
        return {renamed.get(name, name): value for name, value in asdict(self).items()}


@dataclass(frozen=True)
class EngineOptions:
    """Where the work is done: on this machine, or on a Spark cluster."""

    engine: str = "local"
    master: str | None = None
    conf: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Refuse settings of Spark where it is not asked for."""
        if not self.on_spark and (self.master is not None or self.conf):
            raise click.UsageError("--master and --conf are for --engine spark; add it.")

    @property
    def on_spark(self) -> bool:
        """Whether Spark does the work."""
        return self.engine == "spark"


@dataclass(frozen=True)
class FitOptions:
    """Which model is fitted and how; `parameters` holds those that were set."""

    model: str | None
    seed: int
    threads: int | None
    parameters: dict[str, Any]


def option(*names: str, section: str = "Options", **settings: Any) -> Callable[[F], F]:
    """Give a `click.option` that is listed under `section` in the help."""
    return click.option(*names, cls=Option, section=section, **settings)


def command(name: str, *, examples: Sequence[str]) -> Callable[[Callable[..., Any]], Command]:
    """Make a verb with the options that all verbs have; `examples` are shown in its help."""

    def decorate(function: Callable[..., Any]) -> Command:
        verb = click.command(name=name, cls=Command, examples=examples)
        return verb(common_options(function))

    return decorate


def common_options(function: F) -> F:
    """Add `--quiet` and `--debug`, understood before and after the verb."""

    def remember(ctx: click.Context, param: click.Parameter, value: bool) -> None:
        if value and param.name:
            setattr(ctx.ensure_object(State), param.name, True)

    shared: dict[str, Any] = {"is_flag": True, "expose_value": False, "callback": remember}
    debug = option("--debug", section=EVERYWHERE, help="Show tracebacks.", **shared)
    quiet = option(
        "--quiet", "-q", section=EVERYWHERE, help="Print only data and errors.", **shared
    )
    return quiet(debug(function))


def reader_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options on how to read ratings; the verb is given `reader`."""
    section = "Reading"
    options = [
        option("--user-col", metavar="NAME", section=section, help="Column of the users."),
        option("--item-col", metavar="NAME", section=section, help="Column of the items."),
        option("--rating-col", metavar="NAME", section=section, help="Column of the ratings."),
        option("--time-col", metavar="NAME", section=section, help="Column of the times."),
        option("--sep", metavar="TEXT", section=section, help="What separates the columns."),
        option("--encoding", metavar="NAME", section=section, help="Text encoding."),
        option(
            "--duplicates",
            type=click.Choice(DUPLICATES),
            default="last",
            show_default=True,
            section=section,
            help="Which rating counts when a user rated an item more than once; by time if known.",
        ),
        option(
            "--implicit",
            is_flag=True,
            section=section,
            help="Ignore the rating column: a row says only that there was contact.",
        ),
    ]
    return bundle(function, options, ReaderOptions, "reader")


def engine_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options on the engine; the verb is given `engine`."""
    section = "Cluster"
    options = [
        option(
            "--engine",
            type=click.Choice(["local", "spark"]),
            default="local",
            show_default=True,
            section=section,
            help="Do the work on this machine, or on Apache Spark (the extra `spark`).",
        ),
        option(
            "--master",
            metavar="URL",
            section=section,
            help="Cluster: local[N], spark://HOST:PORT, yarn or k8s://URL; local[*] by default.",
        ),
        option(
            "--conf",
            metavar="K=V",
            multiple=True,
            section=section,
            help="Setting of Spark; repeatable.",
        ),
    ]
    return bundle(function, options, EngineOptions, "engine")


def fit_options(
    default: str | None, *, tuning: bool = True
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Add the options on the model to fit; the verb is given `fitting`.

    Without `default`, the model is chosen by the data; without `tuning`, only the model, the seed
    and the threads can be set.
    """
    section = "Model" if tuning else "Fitting a data file"
    chosen = "als for ratings, spectral for implicit data"
    options = [
        option(
            "--model",
            type=click.Choice(MODEL_NAMES),
            default=default,
            show_default=default or chosen,
            section=section,
            help="Model to fit.",
        ),
        seed_option(section),
        threads_option(section),
    ]

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def verb(*args: Any, model: Any, seed: int, threads: Any, **values: Any) -> Any:
            parameters = values.pop("parameters", {})
            values["fitting"] = FitOptions(model, seed, threads, parameters)
            return function(*args, **values)

        tuned = parameter_options(verb) if tuning else verb
        return _decorated(tuned, options)

    return decorate


def parameter_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add the parameters of all models; the verb is given `parameters`, a dict of those set."""

    @functools.wraps(function)
    def verb(*args: Any, **values: Any) -> Any:
        found = {each.name: values.pop(each.name) for each in PARAMETERS}
        values["parameters"] = {name: value for name, value in found.items() if value is not None}
        return function(*args, **values)

    return _decorated(verb, [_parameter_option(each) for each in PARAMETERS])


def _parameter_option(parameter: Parameter) -> Decorator[Any]:
    is_flag = parameter.type is click.BOOL
    return option(
        f"{parameter.option}/--no-{parameter.option[2:]}" if is_flag else parameter.option,
        parameter.name,
        metavar=parameter.metavar or None,
        type=parameter.type,
        default=None,
        section="Parameters of the models",
        help=parameter.full_help,
    )


def seed_option(section: str = "Options") -> Decorator[Any]:
    """Add `--seed`: the same seed gives the same result."""
    return option(
        "--seed",
        metavar="N",
        type=click.IntRange(min=0),
        default=0,
        show_default=True,
        section=section,
        help="Seed of everything random.",
    )


def threads_option(section: str = "Options") -> Decorator[Any]:
    """Add `--threads`."""
    return option(
        "--threads",
        metavar="N",
        type=click.IntRange(min=1),
        show_default="all cores",
        section=section,
        help="Number of threads.",
    )


def n_option(what: str) -> Decorator[Any]:
    """Add `-n`, the length of a list of `what`."""
    return option(
        "-n",
        "n",
        metavar="N",
        type=click.IntRange(min=1),
        default=10,
        show_default=True,
        help=f"Number of {what}.",
    )


def output_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add `--output`, `--format` and `--json`; the verb is given `output`."""
    section = "Output"
    options = [
        option(
            "--output",
            "-o",
            metavar="FILE",
            type=click.Path(),
            section=section,
            help="Write here instead of to standard output; the suffix tells the format.",
        ),
        option(
            "--format",
            type=click.Choice(FORMATS),
            show_default="table on a terminal, csv in a pipe or file",
            section=section,
            help="Format of the data.",
        ),
        option("--json", is_flag=True, section=section, help="The same as --format json."),
    ]

    @functools.wraps(function)
    def verb(*args: Any, output: str | None, format: str | None, json: bool, **rest: Any) -> Any:
        if json and format not in (None, "json"):
            raise click.UsageError(f"--json and --format {format} contradict each other.")
        target = None if output in (None, "-") else Path(str(output))
        destination = Output(path=target, format="json" if json else format)
        return function(*args, output=destination, **rest)

    return _decorated(verb, options)


def bundle(
    function: Callable[..., Any], options: list[Decorator[Any]], kind: Any, name: str
) -> Callable[..., Any]:
    """Decorate `function` with `options`, whose values it is given as one dataclass `kind`."""
    names = [field.name for field in fields(kind)]

    @functools.wraps(function)
    def verb(*args: Any, **values: Any) -> Any:
        values[name] = kind(**{each: values.pop(each, None) for each in names})
        return function(*args, **values)

    return _decorated(verb, options)


def _decorated(function: Callable[..., Any], options: list[Decorator[Any]]) -> Callable[..., Any]:
    for each in reversed(options):
        function = each(function)
    return function
