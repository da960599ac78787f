"""Options that several verbs share, in bundles that pass one keyword argument to the verb."""

from __future__ import annotations

import functools
import inspect
import math
import os
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import Field, dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar, cast

import click
from click.core import ParameterSource
from click.shell_completion import CompletionItem

from recsys.addresses import Location
from recsys.cli.errors import State
from recsys.cli.group import EVERYWHERE, Command, Option, Place
from recsys.cli.output import FORMATS, SUFFIXES, Output
from recsys.data import read_options
from recsys.data.read_options import ReadOptions
from recsys.declarations import Declaration
from recsys.messages import did_you_mean
from recsys.models.registry import MODELS, similar_names
from recsys.ranking.lists import ListOptions

if TYPE_CHECKING:
    from recsys.models.base import Model

F = TypeVar("F", bound=Callable[..., Any])
_Value = TypeVar("_Value")
Verb = Callable[..., Any]
Decorator = Callable[[Verb], Verb]
Given = tuple[tuple[str, str, Any], ...]
"""Parameters on the command line: model (or "" for all), name and value of each."""


def own_class(address: str) -> type[Model]:
    """Return a class of models in a file, from now on a class that may be loaded, too."""
    from recsys.errors import DataError
    from recsys.models.registry import MODEL_CLASSES, class_in_file, name_for_loading

    try:
        defined = class_in_file(address)
    except DataError as error:
        raise click.BadParameter(str(error)) from error
    name_for_loading([defined])
    absolute = str(Path(address).absolute())
    classes = click.get_current_context().meta.setdefault(MODEL_CLASSES, {})
    _add(classes, defined.name, absolute)
    # The workers of a service load the model, too.
    named = os.environ.get(MODEL_CLASSES, "").splitlines()
    os.environ[MODEL_CLASSES] = "\n".join(dict.fromkeys([*named, absolute]))
    return defined


class _ModelType(click.Choice[str]):
    """Name of a model, optionally with a suffix; an error suggests similar names."""

    def __init__(self, choices: Sequence[str], suffix: str = "") -> None:
        super().__init__(choices)
        self._suffix = suffix

    def convert(
        self,
        value: Any,
        param: click.Parameter | None,
        ctx: click.Context | None,
    ) -> str:
        """Return the valid name, with the suffix if it was given."""
        name = str(value).removesuffix(self._suffix)
        suffix = str(value).removeprefix(name)
        if "::" in name:
            name = own_class(name).name
        else:
            name = super().convert(name, param, ctx)
        return name + suffix

    def get_invalid_choice_message(self, value: Any, ctx: click.Context | None) -> str:
        """Return the message for an unknown name."""
        hint = did_you_mean(similar_names(str(value)))
        return super().get_invalid_choice_message(value, ctx) + hint


class _Share(click.FloatRange):
    """Number from 0 to 1, or a percentage; 0 and 1 are not valid with `min_open`."""

    def convert(
        self,
        value: Any,
        param: click.Parameter | None,
        ctx: click.Context | None,
    ) -> float:
        """Return the share."""
        text = str(value).strip()
        number = text.removesuffix("%")
        try:
            share = float(number)
        except ValueError:
            share = math.nan
        if number != text:
            share /= 100
        is_end = share in (0, 1)
        if not 0 <= share <= 1 or (self.min_open and is_end):
            bounds = "between 0 and 1" if self.min_open else "from 0 to 1"
            self.fail(
                f"must be a number {bounds}, or a percentage such as 20%; got {value!r}.",
                param,
                ctx,
            )
        return share


class Lines(click.types.StringParamType):
    """Text, of which an environment variable has one per line: each may have spaces."""

    envvar_list_splitter = "\n"


class _OwnClass(Lines):
    """Class of models in a file."""

    def convert(
        self,
        value: Any,
        param: click.Parameter | None,
        ctx: click.Context | None,
    ) -> Any:
        """Return the class."""
        return own_class(value)


PLACE = Place()
_OF_PLACES = ("FILE", "FILE.html", "TABLE", "DIR", "PATH", "SQL", "URL")

ratings_argument = click.argument("ratings", nargs=-1, required=True, type=PLACE)
"""Decorator that adds the argument `ratings`: one or several sources."""

COMPARED_NAME = _ModelType(["auto", *MODELS], ":no-features")
COUNT = click.IntRange(min=1)
NAMED = ("factors", "regularization", "iterations")
"""Parameters of models that have their own options."""
MODEL_NAME = _ModelType(["auto", *MODELS])
SHARE = _Share(0, 1)
INNER_SHARE = _Share(0, 1, min_open=True, max_open=True)
"""Share of a part that is neither empty nor the whole."""


def option(*names: str, **settings: Any) -> Callable[[F], F]:
    """Return a `click.option` that takes a `section` of the help."""
    return click.option(*names, cls=Option, **settings)


def command(
    name: str,
    *,
    examples: Sequence[str],
    **settings: Any,
) -> Callable[[Verb], Command]:
    """Return a decorator for a verb, whose help ends with `examples`.

    It adds the options that the parameters of the verb declare, and the options of all verbs.
    """

    def decorate(function: Verb) -> Command:
        declared = inspect.signature(function).parameters.items()
        verb = common_options(function)
        # Click lists options in the reverse of the order in which they are added.
        for parameter, argument in reversed([*declared]):
            if isinstance(argument.default, Field):
                verb = _option_of(parameter, argument.default)(verb)
        return click.command(name=name, cls=Command, examples=examples, **settings)(
            verb
        )

    return decorate


def common_options(function: F) -> F:
    """Add `--quiet`, `--debug` and `--model-class`, which may precede or follow the verb."""

    def remember(
        ctx: click.Context,
        param: click.Parameter,
        value: bool,
    ) -> None:
        if value and param.name:
            setattr(ctx.ensure_object(State), param.name, True)

    shared: dict[str, Any] = {
        "is_flag": True,
        "expose_value": False,
        "callback": remember,
    }
    own_classes = option(
        "--model-class",
        type=_OwnClass(),
        multiple=True,
        expose_value=False,
        is_eager=True,
        section=EVERYWHERE,
        metavar="FILE.py::CLASS",
        help="Class of your own model, to load a saved one.",
    )
    add = functools.partial(option, section=EVERYWHERE, **shared)
    debug = add("--debug", help="Show tracebacks.")
    quiet = add("--quiet", "-q", help="Print only data and errors.")
    return quiet(debug(own_classes(function)))


def bundle(
    keyword: str,
    make: Callable[..., Any],
    *options: Decorator,
    names: Sequence[str] = (),
) -> Decorator:
    """Return a decorator that adds `options` and passes what `make` returns as `keyword`.

    `make` takes the values of `names`, by default of its parameters.
    """
    names = names or [*inspect.signature(make).parameters]

    def decorate(function: Verb) -> Verb:
        @functools.wraps(function)
        def verb(*args: Any, **values: Any) -> Any:
            record = make(**{name: values.pop(name) for name in names})
            return function(*args, **{keyword: record}, **values)

        added: Verb = verb
        # As decorators do, from the last one to the first, which the help lists first.
        for add in reversed(options):
            added = add(added)
        return added

    return decorate


def declared(
    metavar: str,
    text: str,
    *names: str,
    **settings: Any,
) -> Any:
    """Return an option as the default of a field of a bundle, or of a parameter of a verb.

    Without `names`, the option has the name of the field or parameter.
    """
    # The values that Click passes for an absent option; `given_in` compares with them.
    without = (
        () if settings.get("multiple") else False if settings.get("is_flag") else None
    )
    default = settings.get("default", without)
    if metavar in _OF_PLACES:
        settings.setdefault("type", PLACE)
    settings |= {"metavar": metavar or None, "help": text}
    return field(default=default, metadata={"names": names, "settings": settings})


def declared_in(
    bundled: type,
    section: str,
    details: str = "",
    named: Any = (),
) -> list[Decorator]:
    """Return the options that a bundle declares; the help lists `named` ones by name only."""
    return [
        _option_of(
            option.name,
            option,
            section=section,
            details=details * (option.name in named),
        )
        for option in fields(bundled)
        if option.metadata
    ]


def _option_of(
    name: str,
    declaration: Any,
    **shared: Any,
) -> Decorator:
    """Return the option that a field or parameter declares."""
    names = declaration.metadata["names"] or [f"--{name.replace('_', '-')}"]
    return option(*names, name, **shared | declaration.metadata["settings"])


def is_typed(parameter: str) -> bool:
    """Return whether an option is on the command line; settings may be for other inputs."""
    context = click.get_current_context(silent=True)
    if context is None:
        return True
    return context.get_parameter_source(parameter) is ParameterSource.COMMANDLINE


def given_in(bundled: Any, *, typed: bool = False) -> dict[str, Any]:
    """Return the options of a bundle that differ from their defaults, as on the command line.

    `typed` leaves out what comes from settings.
    """
    return {
        (option.metadata["names"] or [f"--{option.name.replace('_', '-')}"])[0]: value
        for option in fields(bundled)
        if option.metadata
        and (value := getattr(bundled, option.name)) != option.default
        and (not typed or is_typed(option.name))
    }


def _weights(value: Any) -> dict[str, float]:
    """Convert comma-separated KIND=WEIGHT pairs."""
    if isinstance(value, dict):
        return value
    weights: dict[str, float] = {}
    for pair in value.split(","):
        # From the right: the name of a kind may contain the sign, a weight cannot.
        kind, equals, number = pair.rpartition("=")
        try:
            weight = float(number)
        except ValueError:
            equals = ""
        kind = kind.strip()
        if not (equals and kind):
            raise click.BadParameter(
                f"must be KIND=WEIGHT,..., such as purchase=5,view=1; got {value!r}."
            )
        _add(weights, kind, weight)
    return weights


def _scale(value: Any) -> tuple[float, float]:
    """Convert two numbers with a comma between them."""
    from recsys.data.rows import check_scale
    from recsys.errors import DataError

    try:
        return check_scale(value.split(",") if isinstance(value, str) else value)
    except DataError:
        raise click.BadParameter(
            f"must be LOW,HIGH, such as 1,5, with LOW below HIGH; got {value!r}."
        ) from None


def _merged_weights(
    context: click.Context,
    parameter: click.Parameter,
    values: Any,
) -> dict[str, float] | None:
    """Return the weights of an option that is repeated, as one mapping."""
    weights: dict[str, float] = {}
    for pairs in values:
        for kind, weight in pairs.items():
            _add(weights, kind, weight)
    return weights or None


def _add(values: dict[str, _Value], name: str, value: _Value) -> None:
    """Set the value of a name, which may have only one.

    Raises
    ------
    click.BadParameter
    """
    earlier = values.setdefault(name, value)
    if earlier != value:
        raise click.BadParameter(
            f"{name!r} has two values, {earlier} and {value}; give one."
        )


_TYPES: dict[str, Any] = {
    "number": click.FLOAT,
    "share": SHARE,
    "count": COUNT,
    "ids": PLACE,  # a file of ids
    "place": PLACE,
    "scale": _scale,
}


def _click_option(
    name: str,
    declaration: Declaration,
    default: Any = None,
    **settings: Any,
) -> Decorator:
    """Return the option of the command that a declaration describes."""
    settings |= {"help": declaration.help, "default": default}
    if declaration.metavar:
        settings["metavar"] = declaration.metavar
    if declaration.shown_default:
        settings["show_default"] = declaration.shown_default
    if declaration.kind == "flag":
        settings |= {"is_flag": True, "default": False}
        if default is True:
            # `exclude_seen` has the option, and the setting, `include_seen`.
            settings["setting"] = declaration.flag
            settings["callback"] = lambda context, parameter, value: not value
    elif declaration.kind == "weights":
        settings |= {"type": _weights, "multiple": True, "callback": _merged_weights}
    elif declaration.kind == "choice":
        settings["type"] = click.Choice(declaration.choices)
    elif declaration.kind == "texts":
        settings |= {"multiple": True, "type": Lines()}
    elif declaration.kind == "share":
        settings["show_default"] = False
    if declaration.kind in _TYPES:
        settings["type"] = _TYPES[declaration.kind]
    return option(declaration.flag_of(name), name, **settings)


@dataclass(frozen=True)
class ReaderOptions:
    """Options for reading ratings that are set, and which features models use."""

    options: ReadOptions = field(default_factory=ReadOptions)
    features: str | None = declared(
        "NAMES", "Columns of these tables to use in models, comma-separated."
    )
    no_features: bool = declared(
        "", "Fit models without the columns of these tables.", is_flag=True
    )

    def __post_init__(self) -> None:
        if self.features is not None and self.no_features:
            raise click.UsageError(
                "--features and --no-features contradict each other."
            )

    @property
    def feature_names(self) -> list[str] | None:
        """Columns to use as features; None for all that can be."""
        if self.no_features:
            return []
        if self.features is None:
            return None
        return [*map(str.strip, self.features.split(","))]

    def with_column(self, role: str, name: str) -> ReaderOptions:
        """Return the options with another column of a role."""
        options = cast(ReadOptions, {**self.options, role: name})
        return replace(self, options=options)

    @property
    def flags(self) -> dict[str, Any]:
        """Options that are set, as on the command line."""
        declarations = read_options.declarations()
        flags = {
            declarations[name].flag_of(name): value
            for name, value in self.options.items()
        }
        return {**flags, **given_in(self)}


def _reader(**values: Any) -> ReaderOptions:
    """Return the options of a reading from the values of all options by parameter."""
    options = {
        name: values[declaration.flag or name]
        for name, declaration in read_options.declarations().items()
    }
    return ReaderOptions(
        cast(ReadOptions, read_options.set_options(options)),
        values["features"],
        values["no_features"],
    )


_COLUMNS = ("user", "item", "rating", "timestamp")


def reader_options(
    described: Literal["all", "columns", "none"] = "columns",
) -> Decorator:
    """Add the options for reading as `reader`; the help describes some and names the others."""
    elsewhere = "More options for reading, as in `recsys data inspect --help`"
    options = []
    parameters = []
    for name, declaration in read_options.declarations().items():
        is_described = described == "all" or (
            described == "columns" and name in _COLUMNS
        )
        parameter = declaration.flag or name
        parameters.append(parameter)
        options.append(
            _click_option(
                parameter,
                declaration,
                section="Reading",
                details="" if is_described else elsewhere,
            )
        )
    named = () if described == "all" else ("features", "no_features")
    options += declared_in(ReaderOptions, "Reading", elsewhere, named)
    parameters += ["features", "no_features"]
    return bundle("reader", _reader, *options, names=parameters)


@dataclass(frozen=True)
class EngineOptions:
    """Place of the computation: this machine or a Spark cluster."""

    engine: str = declared(
        "",
        "Place to compute: this machine, or Apache Spark (needs the extra `spark`).",
        default="local",
        type=click.Choice(["local", "spark"]),
    )
    master: str | None = declared(
        "URL", "Spark master: local[N], spark://HOST:PORT, yarn or k8s://URL."
    )
    conf: tuple[str, ...] = declared("K=V", "Spark setting; repeatable.", multiple=True)

    def __post_init__(self) -> None:
        # recsys.toml may name a master for the commands that do compute on Spark.
        if not self.on_spark and given_in(self, typed=True):
            raise click.UsageError("--master and --conf require --engine spark.")

    @property
    def on_spark(self) -> bool:
        """True if Spark computes."""
        return self.engine == "spark"


def engine_options(details: str = "") -> Decorator:
    """Add the options of the engine as `engine`; apply it outside `output_options`."""
    options = declared_in(
        EngineOptions, "Cluster", details, EngineOptions.__annotations__
    )
    return bundle("engine", EngineOptions, *options)


def list_options(*names: str, described: Collection[str] = ()) -> Decorator:
    """Return a decorator that adds the options of lists, or those named, as `options`.

    Those that the help of `similar` has `described` are listed by name only.
    """
    elsewhere = {True: "As in `recsys similar --help`", False: ""}
    added = [entry for entry in fields(ListOptions) if entry.name in names or not names]
    return bundle(
        "options",
        ListOptions,
        *[
            _click_option(
                entry.name,
                entry.metadata["declaration"],
                entry.default,
                details=elsewhere[entry.name in described],
            )
            for entry in added
        ],
        names=[entry.name for entry in added],
    )


class _ParameterType(click.ParamType[Any]):
    """NAME=VALUE or MODEL.NAME=VALUE, with shell completion of names and choices."""

    name = "parameter"

    def convert(
        self,
        value: Any,
        param: click.Parameter | None,
        ctx: click.Context | None,
    ) -> Any:
        if isinstance(value, tuple):
            return value
        name, equals, text = value.partition("=")
        model, _, name = name.strip().rpartition(".")
        if not (name and equals):
            self.fail(
                f"must be NAME=VALUE, such as linked=true; got {value!r}.", param, ctx
            )
        # Parameters may be written like options, as in user-damping=10.
        return model, name.replace("-", "_"), text.strip()

    def shell_complete(
        self,
        ctx: click.Context,
        param: click.Parameter,
        incomplete: str,
    ) -> list[CompletionItem]:
        from recsys.models.registry import parameters

        chosen = ctx.params.get("model") or ()
        models = (chosen,) if isinstance(chosen, str) else chosen
        completions = {}
        for model in [entry for entry in models if entry in MODELS] or MODELS:
            for entry in parameters(model):
                values = entry.choices or (
                    ("true", "false") if entry.type is bool else ("",)
                )
                # Values come after the name, or each name would be listed many times.
                is_named = incomplete.startswith(f"{entry.name}=")
                for text in values if is_named else ("",):
                    completions[f"{entry.name}={text}"] = entry.description
        return [
            CompletionItem(k, help=v)
            for k, v in completions.items()
            if k.startswith(incomplete)
        ]


@dataclass(frozen=True)
class FitOptions:
    """Model to fit, with its parameters; None chooses a model from the data."""

    model: str | None = declared(
        "NAME",
        "Model to fit; `recsys models` lists them.",
        default="auto",
        show_default="chosen from the data",
        type=MODEL_NAME,
    )
    purpose: Literal["next", "later"] | None = declared(
        "",
        "Use of the lists, by which auto compares models: the next item, or all later ones.",
        "--for",
        setting="for",
        type=click.Choice(["next", "later"]),
        show_default="later",
    )
    factors: int | None = declared("N", "Number of latent factors.", type=COUNT)
    regularization: float | None = declared(
        "X",
        "Penalty on the size of the parameters.",
        type=click.FloatRange(min=0, min_open=True),
    )
    iterations: int | None = declared("N", "Maximum number of iterations.", type=COUNT)
    parameter: Given = declared(
        "NAME=VALUE",
        "Another parameter (see `recsys models NAME`), for all models that have it, or for one "
        "as in als.linked=true; repeatable.",
        "-p",
        "--parameter",
        multiple=True,
        type=_ParameterType(),
    )
    seed: int = declared("N", "Random seed.", default=0, type=click.IntRange(min=0))
    threads: int | None = declared(
        "N", "Number of threads.", show_default="all cores", type=COUNT
    )

    def __post_init__(self) -> None:
        texts: dict[str, str] = {}
        for model, name, text in self.parameter:
            _add(texts, f"{model}.{name}" if model else name, text)
        if self.model == "auto":
            # The dataclass is frozen. The word is for people; all code tests for None.
            object.__setattr__(self, "model", None)

    @property
    def has_typed_parameters(self) -> bool:
        """True if parameters of models are on the command line."""
        return bool(self.given) and any(map(is_typed, (*NAMED, "parameter")))

    @property
    def given(self) -> Given:
        """Parameters of models that are set."""
        named = {name: getattr(self, name) for name in NAMED}
        shared = (
            ("", name, value) for name, value in named.items() if value is not None
        )
        return (*shared, *self.parameter)


fit_options = bundle("fitting", FitOptions, *declared_in(FitOptions, "Model"))
"""Decorator that adds the options of the model to fit, and of its parameters, as `fitting`."""


_named_only = declared_in(
    FitOptions,
    "Fitting a data file",
    "As in `recsys fit --help`",
    FitOptions.__annotations__,
)
fitting_options = bundle(
    "fitting",
    lambda model, seed, threads: FitOptions(model, seed=seed, threads=threads),
    _named_only[0],
    *_named_only[-2:],
)
"""Decorator that adds the options of a model to fit but not save, as `fitting`."""


def seed(section: str = "Options") -> Any:
    """Declare `--seed`."""
    least = click.IntRange(min=0)
    return declared("N", "Random seed.", default=0, type=least, section=section)


def groups(of: str, also: str) -> Any:
    """Declare an option for columns with groups `of` items or users."""
    text = f"Groups of {of}: a column, or {also}."
    return declared("COLUMN", text, multiple=True, commas=True)


def length(counted: str) -> Any:
    """Declare `-n`, the number of `counted`."""
    return declared("N", f"Number of {counted}.", "-n", default=10, type=COUNT)


def _destination(
    output: str | None,
    format: str | None,
    json: bool,
    if_exists: str,
    force: bool,
    columns: Sequence[str] = (),
    suffixes: Mapping[str, str] = SUFFIXES,
) -> Output:
    """Return the output; options and --output on the command line override other settings."""
    chosen = _chosen_columns(columns)
    typed = ["json"] if json and is_typed("json") else []
    if format and is_typed("format"):
        typed.append(format)
    if output is None or output == "-":
        address, path = None, None
    else:
        from recsys.database import parse_address

        address = parse_address(output)
        path = Path(output)
        if isinstance(output, Location) and address is None:
            raise click.UsageError(
                f"--output takes a file or a table of PostgreSQL, SQLite or DuckDB; {output} is "
                "neither."
            )
    if address is not None:
        if typed:
            raise click.UsageError(
                f"--format {typed[0]} applies to files; {address} is a database."
            )
        existing: Any = "replace" if force and if_exists == "fail" else if_exists
        return Output(address=address, if_exists=existing, columns=chosen)
    if is_typed("if_exists") or (force and path is None):
        raise click.UsageError(
            "--if-exists and --force require a table of a database as --output."
        )
    suffix = suffixes.get(path.suffix.lower()) if path else None
    claims = set(typed)
    if suffix and is_typed("output"):
        claims.add(suffix)
    if typed and len(claims) > 1 and claims != {"json", "jsonl"}:
        named = [f"--format {form}" for form in typed] + ([str(path)] if path else [])
        raise click.UsageError(
            f"{' and '.join(named)} contradict each other; leave out one."
        )
    resolved = next(iter(typed), None) or suffix or ("json" if json else format)
    return Output(path, resolved, columns=chosen)


def _chosen_columns(texts: Sequence[str]) -> dict[str, str]:
    """Return columns by their names in the output, from NAME or NAME=OTHER.

    Raises
    ------
    UsageError
        If a name is missing, or two columns get one name.
    """
    columns: dict[str, str] = {}
    # A variable of the environment may have spaces after its commas.
    for text in filter(None, texts):
        name, equals, other = (part.strip() for part in text.partition("="))
        target = other if equals else name
        if not name or not target or target in columns:
            raise click.UsageError(
                "--columns takes different names, such as user=customer_id,item=sku,score; "
                f"got {','.join(texts)!r}."
            )
        columns[target] = name
    return columns


def other_output(place: str, like: Output) -> Output:
    """Return an output at another place, with the format and the rule of an existing one.

    Raises
    ------
    UsageError, CommandError, DataError
        If it cannot be written.
    """
    from recsys.database import parse_address

    address = parse_address(place)
    if address is None:
        suffix = SUFFIXES.get(Path(place).suffix.lower())
        output = Output(Path(place), suffix or like.format)
    else:
        output = Output(address=address, if_exists=like.if_exists)
    output.check()
    return output


def output_options(
    function: Verb,
    *,
    of_lists: bool = False,
    forms: Sequence[str] = FORMATS,
) -> Verb:
    """Add `--output`, `--format` and `--json` as `output`, checked before the verb runs.

    An output of lists also has `--columns`.
    """

    @functools.wraps(function)
    def verb(
        *args: Any,
        output: Output,
        **rest: Any,
    ) -> Any:
        if output.address is not None and not output.address.table:
            # --table names the output table; input databases then need ::TABLE.
            address = replace(output.address, table=rest.get("table"))
            output = replace(output, address=address)
            rest |= {"table": None} if "table" in rest else {}
        # With Spark, the output may be a folder, even one on the cluster.
        if not getattr(rest.get("engine"), "on_spark", False):
            output.check()
        return function(*args, output=output, **rest)

    names = ["output", "format", "json", "if_exists", "force"]
    if of_lists:
        names.append("columns")
    make = _destination
    if "latex" in forms:
        make = functools.partial(_destination, suffixes=SUFFIXES | {".tex": "latex"})
    options = _output_flags(forms, of_lists=of_lists)
    return bundle("output", make, *options, names=names)(verb)


def _output_flags(forms: Sequence[str], *, of_lists: bool) -> list[Decorator]:
    """Return the options of an output in one of some formats."""
    add = functools.partial(option, section="Output")
    latex = "latex, " if "latex" in forms else ""
    options: list[Decorator] = [
        add(
            "--output",
            "-o",
            metavar="FILE|TABLE",
            type=PLACE,
            help="File to write, or table such as shop.db::NAME; an existing table needs "
            "--if-exists replace or append.",
        ),
        add(
            "--format",
            metavar="FORMAT",
            type=click.Choice(forms),
            help=f"Format: table, csv, tsv, {latex}json (or --json), jsonl or parquet; by default "
            "from the suffix.",
        ),
        add("--json", is_flag=True, hidden=True),
        add(
            "--if-exists",
            type=click.Choice(["fail", "replace", "append"]),
            default="fail",
            hidden=True,
        ),
        add("--force", is_flag=True, hidden=True),
    ]
    if of_lists:
        column_option = add(
            "--columns",
            metavar="NAME[=OTHER],...",
            multiple=True,
            commas=True,
            help="Columns to write, under other names if given, such as user=customer_id,"
            "item=sku,score; also model, version and date.",
        )
        options.insert(2, column_option)
    return options


list_output_options = functools.partial(output_options, of_lists=True)
paper_output_options = functools.partial(output_options, forms=(*FORMATS, "latex"))
"""Decorator that adds the options of an output that may also be a table in LaTeX."""
