"""Bundles of options that several verbs share.

A bundle hands its verb one keyword argument instead of one per option: `@reader_options` gives
`reader` (`ReaderOptions`), `@fit_options` gives `fitting` (`FitOptions`), `@output_options` gives
`output` (`Output`).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import click
from click.core import ParameterSource
from click.shell_completion import CompletionItem

from recsys.cli.group import EVERYWHERE, Command, Option, State
from recsys.cli.output import FORMATS, SUFFIXES, Output
from recsys.models.registry import MODELS

__all__ = [
    "SHARE",
    "EngineOptions",
    "FitOptions",
    "Given",
    "ModelName",
    "ReaderOptions",
    "command",
    "common_options",
    "engine_options",
    "fit_options",
    "fitting_options",
    "n_option",
    "option",
    "output_options",
    "parameter_options",
    "reader_options",
    "seed_option",
    "threads_option",
]

F = TypeVar("F", bound=Callable[..., Any])
Verb = Callable[..., Any]
Decorator = Callable[[Verb], Verb]
Given = tuple[tuple[str, str, Any], ...]
"""Model (or "" for all), name and value of each parameter on the command line."""

SHARE = click.FloatRange(0, 1, min_open=True, max_open=True)


def option(*names: str, **settings: Any) -> Callable[[F], F]:
    """Return a `click.option` that takes a `section` of the help."""
    return click.option(*names, cls=Option, **settings)


def command(name: str, *, examples: Sequence[str], **settings: Any) -> Callable[[Verb], Command]:
    """Return a decorator for a verb with the options of all verbs; its help ends in `examples`."""

    def decorate(function: Verb) -> Command:
        verb = click.command(name=name, cls=Command, examples=examples, **settings)
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


@dataclass(frozen=True)
class ReaderOptions:
    """How to read a ratings file; None leaves it to the reader."""

    user_col: str | None = None
    item_col: str | None = None
    rating_col: str | None = None
    timestamp_col: str | None = None
    sep: str | None = None
    encoding: str | None = None
    duplicates: str = "last"
    implicit: bool = False

    def keywords(self) -> dict[str, Any]:
        """Return the keywords of `recsys.readers.read_ratings`."""
        return {name.removesuffix("_col"): value for name, value in vars(self).items()}


def reader_options(details: str = "") -> Decorator:
    """Add the options for reading ratings; the verb is given `reader`.

    With `details`, the help only lists their names under that title.
    """
    shared: dict[str, Any] = {"section": "Reading", "details": details}

    def decorate(function: Verb) -> Verb:
        @option("--user-col", metavar="NAME", help="Column of the users.", **shared)
        @option("--item-col", metavar="NAME", help="Column of the items.", **shared)
        @option("--rating-col", metavar="NAME", help="Column of the ratings.", **shared)
        @option("--timestamp-col", metavar="NAME", help="Column of the timestamps.", **shared)
        @option("--sep", metavar="TEXT", help="Separator of the columns.", **shared)
        @option("--encoding", metavar="NAME", help="Text encoding.", **shared)
        @option(
            "--duplicates",
            type=click.Choice(("last", "first", "mean", "sum", "error")),
            default="last",
            show_default=True,
            help="Rating kept of repeated user-item pairs; by timestamp, if known.",
            **shared,
        )
        @option(
            "--implicit",
            is_flag=True,
            help="Ignore the rating column and treat every row as implicit feedback.",
            **shared,
        )
        @functools.wraps(function)
        def verb(*args: Any, **values: Any) -> Any:
            names = ReaderOptions.__dataclass_fields__
            values["reader"] = ReaderOptions(**{name: values.pop(name) for name in names})
            return function(*args, **values)

        return verb

    return decorate


@dataclass(frozen=True)
class EngineOptions:
    """Where to compute: on this machine, or on a Spark cluster."""

    engine: str = "local"
    master: str | None = None
    conf: tuple[str, ...] = ()

    @property
    def on_spark(self) -> bool:
        """Whether Spark does the work."""
        return self.engine == "spark"


def engine_options(details: str = "") -> Decorator:
    """Add the options of the engine, above `output_options`; the verb is given `engine`."""
    section = "Cluster"

    def decorate(function: Verb) -> Verb:
        @option(
            "--engine",
            type=click.Choice(["local", "spark"]),
            default="local",
            show_default=True,
            section=section,
            help="Where to compute: here, or on Apache Spark (extra `spark`).",
        )
        @option(
            "--master",
            metavar="URL",
            section=section,
            details=details,
            help="Spark master: local[N], spark://HOST:PORT, yarn or k8s://URL.",
        )
        @option(
            "--conf",
            metavar="K=V",
            multiple=True,
            section=section,
            details=details,
            help="Spark setting; repeatable.",
        )
        @functools.wraps(function)
        def verb(*args: Any, engine: str, master: str | None, conf: Any, **values: Any) -> Any:
            ctx = click.get_current_context()
            sources = [ctx.get_parameter_source(name) for name in ("master", "conf")]
            if engine != "spark" and ParameterSource.COMMANDLINE in sources:
                raise click.UsageError("--master and --conf require --engine spark.")
            return function(*args, engine=EngineOptions(engine, master, conf), **values)

        return verb

    return decorate


@dataclass(frozen=True)
class FitOptions:
    """Model to fit (None: chosen from the data), and its parameters on the command line."""

    model: str | None
    seed: int
    threads: int | None
    given: Given = ()


class ModelName(click.Choice[str]):
    """Name of a model, or `auto`: listed by `recsys models`, not in every help."""

    def __init__(self) -> None:
        super().__init__(["auto", *MODELS])

    def get_metavar(self, param: click.Parameter, ctx: click.Context) -> str:
        """Return a short placeholder."""
        return "NAME"


class _ParameterType(click.ParamType[Any]):
    """NAME=VALUE or MODEL.NAME=VALUE, with completion of names and choices."""

    name = "parameter"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if isinstance(value, tuple):
            return value
        name, equals, text = value.partition("=")
        model, _, name = name.strip().rpartition(".")
        if not (name and equals):
            self.fail(f"takes NAME=VALUE, such as linked=true; got {value!r}.", param, ctx)
        return model, name.replace("-", "_"), text.strip()

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        from recsys.models.registry import parameters

        chosen = ctx.params.get("model") or ()
        models = (chosen,) if isinstance(chosen, str) else chosen
        found = {}
        for model in [each for each in models if each in MODELS] or MODELS:
            for each in parameters(model):
                values = each.choices or (("true", "false") if each.type is bool else ("",))
                is_named = incomplete.startswith(f"{each.name}=")
                for text in values if is_named else ("",):
                    found[f"{each.name}={text}"] = each.description
        return [CompletionItem(k, help=v) for k, v in found.items() if k.startswith(incomplete)]


def parameter_options(function: Verb) -> Verb:
    """Add the parameters of models; the verb is given `given`."""
    section = "Model"

    @option(
        "--factors",
        metavar="K",
        type=click.IntRange(min=1),
        section=section,
        help="Number of latent factors.",
    )
    @option(
        "--regularization",
        metavar="X",
        type=click.FloatRange(min=0, min_open=True),
        section=section,
        help="Penalty on the size of the parameters.",
    )
    @option(
        "--iterations",
        metavar="N",
        type=click.IntRange(min=1),
        section=section,
        help="Maximum number of iterations.",
    )
    @option(
        "-p",
        "--parameter",
        metavar="NAME=VALUE",
        multiple=True,
        type=_ParameterType(),
        section=section,
        help="Other parameter (see `recsys models NAME`), for all models that have it or one: "
        "als.linked=true; repeatable.",
    )
    @functools.wraps(function)
    def verb(
        *args: Any,
        factors: Any,
        regularization: Any,
        iterations: Any,
        parameter: Given,
        **rest: Any,
    ) -> Any:
        named = {"factors": factors, "regularization": regularization, "iterations": iterations}
        given = tuple(("", name, value) for name, value in named.items() if value is not None)
        return function(*args, given=given + parameter, **rest)

    return verb


def fit_options(function: Verb) -> Verb:
    """Add the options of the model to fit; the verb is given `fitting`."""

    @_model_option("Model")
    @parameter_options
    @seed_option("Model")
    @threads_option("Model")
    @functools.wraps(function)
    def verb(*args: Any, model: str, given: Given, seed: int, threads: Any, **rest: Any) -> Any:
        name = None if model == "auto" else model
        return function(*args, fitting=FitOptions(name, seed, threads, given), **rest)

    return verb


def fitting_options(function: Verb) -> Verb:
    """Add the options of a model that is fitted to a data file and not saved; gives `fitting`."""
    section = "Fitting a data file"

    @_model_option(section)
    @seed_option(section)
    @threads_option(section)
    @functools.wraps(function)
    def verb(*args: Any, model: str, seed: int, threads: int | None, **rest: Any) -> Any:
        name = None if model == "auto" else model
        return function(*args, fitting=FitOptions(name, seed, threads), **rest)

    return verb


def _model_option(section: str) -> Callable[[F], F]:
    return option(
        "--model",
        type=ModelName(),
        default="auto",
        show_default="chosen from the data",
        section=section,
        help="Model to fit; `recsys models` lists them.",
    )


def seed_option(section: str = "Options") -> Callable[[F], F]:
    """Add `--seed`."""
    return option(
        "--seed",
        metavar="N",
        type=click.IntRange(min=0),
        default=0,
        show_default=True,
        section=section,
        help="Random seed.",
    )


def threads_option(section: str = "Options") -> Callable[[F], F]:
    """Add `--threads`."""
    return option(
        "--threads",
        metavar="N",
        type=click.IntRange(min=1),
        show_default="all cores",
        section=section,
        help="Number of threads.",
    )


def n_option(counted: str) -> Callable[[F], F]:
    """Add `-n`, the length of a list of `counted`."""
    return option(
        "-n",
        "n",
        metavar="N",
        type=click.IntRange(min=1),
        default=10,
        show_default=True,
        help=f"Number of {counted}.",
    )


def output_options(function: Verb) -> Verb:
    """Add `--output`, `--format` and `--json`; the verb is given `output`.

    A flag, or the suffix of `--output`, counts before a format that is set elsewhere.
    """
    section = "Output"

    @option(
        "--output",
        "-o",
        metavar="FILE",
        section=section,
        help="Output file instead of standard output; its suffix sets the format.",
    )
    @option(
        "--format",
        metavar="FORMAT",
        type=click.Choice(FORMATS),
        show_default="table on a terminal",
        section=section,
        help="table, csv, tsv, json, jsonl or parquet.",
    )
    @option("--json", is_flag=True, section=section, help="Short for --format json.")
    @functools.wraps(function)
    def verb(*args: Any, output: str | None, format: str | None, json: bool, **rest: Any) -> Any:
        source = click.get_current_context().get_parameter_source
        typed = ["json"] if json and source("json") is ParameterSource.COMMANDLINE else []
        if format and source("format") is ParameterSource.COMMANDLINE:
            typed.append(format)
        path = None if output in (None, "-") else Path(str(output))
        suffix = SUFFIXES.get(path.suffix.lower()) if path else None
        claims = set(typed)
        if suffix and source("output") is ParameterSource.COMMANDLINE:
            claims.add(suffix)
        if typed and len(claims) > 1 and claims != {"json", "jsonl"}:
            named = " and ".join(
                [f"--format {each}" for each in typed] + ([str(path)] if path else [])
            )
            raise click.UsageError(f"{named} contradict each other; leave out one.")
        settings = "json" if json else format
        destination = Output(path, next(iter(typed), None) or suffix or settings)
        if not getattr(rest.get("engine"), "on_spark", False):
            destination.check()
        return function(*args, output=destination, **rest)

    return verb
