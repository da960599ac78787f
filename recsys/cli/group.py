"""Click classes that all verbs share: lazy loading, help sections, settings, option groups."""

from __future__ import annotations

import os
import pkgutil
import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, cast

import click
from click.core import ParameterSource
from click.shell_completion import CompletionItem

from recsys.addresses import Location, has_password, located, shown
from recsys.cli.errors import CommandError
from recsys.cli.output import note
from recsys.messages import close_matches

EVERYWHERE = "Everywhere"
_MANY, _FEW = 16, 4  # of more than 16 options described elsewhere, only 4 are named

FILE_NAME = "recsys.toml"
PREFIX = "RECSYS"

_HIDDEN = "hidden"
_VISIBLE = (
    "a password on the command line is visible to other users of this machine; PGPASSWORD or "
    "~/.pgpass hide it"
)
_SECRETS = re.compile(
    "KEY|PASS|SECRET|TOKEN"
)  # in names of variables, such as of --api-key-env


class Verb(click.Command):
    """Command that is imported when called, from "module:attribute", with its short help."""

    def __init__(self, target: str, short_help: str) -> None:
        super().__init__(target, short_help=short_help)

    def load(self) -> click.Command:
        """Import the command."""
        command: click.Command = pkgutil.resolve_name(str(self.name))
        return command


class Place(click.ParamType[str]):
    """Path or address of data, or a query: kept as a text without user and password."""

    name = "place"

    def convert(
        self,
        value: Any,
        param: click.Parameter | None,
        ctx: click.Context | None,
    ) -> str:
        """Return the text to show, with all of it to open."""
        return located(str(value))


class Option(click.Option):
    """Option in a section of the help; with `details`, the help only names it under that title.

    With `commas`, a value may be a list separated by commas. `setting` is the name of the option in
    the environment and in recsys.toml, by default the name of the parameter. `recsys info` hides
    the value of a `secret` option.
    """

    def __init__(
        self,
        *names: Any,
        section: str = "Options",
        details: str = "",
        commas: bool = False,
        setting: str = "",
        secret: bool = False,
        **settings: Any,
    ) -> None:
        super().__init__(*names, **{"show_default": True, **settings})
        self.secret = secret
        self.section, self.details, self.commas = section, details, commas
        self.setting = setting or str(self.name)

    def type_cast_value(self, ctx: click.Context, value: Any) -> Any:
        """Convert the value, or each value of a comma-separated list."""
        if self.commas and value is not None:
            value = [part.strip() for entry in value for part in str(entry).split(",")]
        try:
            return super().type_cast_value(ctx, value)
        except click.BadParameter:
            if (text := _shown_value(value)) != value:
                # Raises, too, and quotes only what may be shown.
                super().type_cast_value(ctx, text)
            raise

    def resolve_envvar_value(self, ctx: click.Context) -> str | None:
        """Return the value in the environment for this verb, or for all verbs."""
        for name in variables(self, ctx):
            if value := os.environ.get(name):
                return value
        return None

    def value_from_envvar(self, ctx: click.Context) -> Any:
        """Return the value in the environment; a secret may contain spaces."""
        if self.secret:
            value = self.resolve_envvar_value(ctx)
            return None if value is None else [value]
        return super().value_from_envvar(ctx)

    def handle_parse_result(
        self,
        ctx: click.Context,
        opts: Any,
        args: list[str],
    ) -> Any:
        """Parse the value; an error names its source, if that is not the command line."""
        try:
            return super().handle_parse_result(ctx, opts, args)
        except click.BadParameter as error:
            source = ctx.get_parameter_source(str(self.name))
            origin = FILE_NAME if source is ParameterSource.DEFAULT_MAP else ""
            if source is ParameterSource.ENVIRONMENT:
                origin = next(filter(os.environ.get, variables(self, ctx)))
            if origin:
                message = f"{error.message} It is set in {origin}."
                raise click.BadParameter(message, ctx, self) from error
            raise


class _WithExamples(click.Command):
    """Command whose help has options by section, and examples at the end."""

    def __init__(
        self,
        *args: Any,
        examples: Sequence[str] = (),
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **kwargs)
        self.examples = tuple(examples)

    def format_options(
        self, ctx: click.Context, formatter: click.HelpFormatter
    ) -> None:
        """List the options by section, with options of every verb last."""
        sections: dict[str, list[tuple[str, str]]] = {}
        by_details: dict[str, list[str]] = {}
        for param in self.get_params(ctx):
            record = param.get_help_record(ctx)
            if record is None or not isinstance(param, click.Option):
                continue
            section = getattr(param, "section", EVERYWHERE)
            if details := getattr(param, "details", ""):
                by_details.setdefault(details, []).append(param.opts[0])
            else:
                sections.setdefault(section, []).append(record)
        sections[EVERYWHERE] = sections.pop(EVERYWHERE)
        for section, records in sections.items():
            with formatter.section(section if len(sections) > 1 else "Options"):
                formatter.write_dl(records)
        for details, names in by_details.items():
            if len(names) > _MANY:
                names = [*names[:_FEW], f"and {len(names) - _FEW} more"]
            with formatter.section(details):
                formatter.write_text(", ".join(names))
        if isinstance(self, click.Group):
            self.format_commands(ctx, formatter)

    def get_help_option_names(self, ctx: click.Context) -> list[str]:
        """Return the names of the help option, the same in every context."""
        return ["-h", "--help"]

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the examples."""
        if self.examples:
            with formatter.section("Examples"):
                formatter.write("".join(f"  {example}\n" for example in self.examples))


class Command(_WithExamples):
    """Verb with settings from recsys.toml, and mutually exclusive groups of parameters.

    `one_of` maps the name of each group in messages to the names of its parameters. `hints` maps
    unknown options, and "" for surplus arguments, to hints in error messages.
    """

    def __init__(
        self,
        *args: Any,
        one_of: Mapping[str, tuple[str, ...]] | None = None,
        required: str = "",
        hints: Mapping[str, str] | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **kwargs)
        self.one_of = one_of or {}
        self.required = required
        self.hints = hints or {}

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the arguments, with defaults from the settings unless help is requested.

        Raises
        ------
        UsageError
            For invalid arguments.
        """
        # An error in recsys.toml must not hide the help.
        is_help = not set(args).isdisjoint(self.get_help_option_names(ctx))
        if not ctx.resilient_parsing and not is_help:
            ctx.default_map = defaults_of(ctx)
        ctx.allow_extra_args = True  # an error of Click quotes them, also passwords
        try:
            surplus = super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            name = shown(error.option_name)
            if name in self.hints:
                message = f"No such option {name!r}. {self.hints[name]}"
                raise click.UsageError(message, ctx) from error
            near = error.possibilities
            raise click.NoSuchOption(name, possibilities=near, ctx=ctx) from error
        if surplus and not ctx.resilient_parsing:
            raise self._surplus(surplus, ctx)
        if self.one_of and not ctx.resilient_parsing:
            self._choose_one(ctx)
        return surplus

    def invoke(self, ctx: click.Context) -> Any:
        """Run the verb; warn of passwords on the command line, for data or an output."""
        # Only now is it known whether --quiet is given.
        for name, value in ctx.params.items():
            source = ctx.get_parameter_source(name)
            if source is ParameterSource.COMMANDLINE and _has_password(value):
                note(_VISIBLE)
        return super().invoke(ctx)

    def _surplus(self, words: Sequence[str], ctx: click.Context) -> click.UsageError:
        """Return the error for superfluous words."""
        arguments = [
            param.make_metavar(ctx)
            for param in self.params
            if isinstance(param, click.Argument)
        ]
        expected = " and ".join(arguments) or "no arguments"
        hint = self.hints.get("", "Quote values that contain spaces.")
        noun = "argument" if len(words) == 1 else "arguments"
        listed = " ".join(map(shown, words))
        sentence = f"Got unexpected extra {noun} ({listed}); expected {expected}."
        return click.UsageError(f"{sentence} {hint}", ctx)

    def _choose_one(self, ctx: click.Context) -> None:
        """Keep the given group of options; the command line overrides settings."""
        groups = self.one_of.values()
        unset: tuple[Any, ...] = (None, (), False)
        used = {name for name in chain(*groups) if ctx.params[name] not in unset}
        typed = {
            name
            for name in used
            if ctx.get_parameter_source(name) is ParameterSource.COMMANDLINE
        }
        chosen = [group for group in groups if not (typed or used).isdisjoint(group)]
        for name in used.difference(*chosen):
            is_tuple = isinstance(ctx.params[name], tuple)
            ctx.params[name] = () if is_tuple else None
        *first_choices, last = self.one_of
        choices = f"{', '.join(first_choices)} or {last}"
        if len(chosen) > 1:
            raise click.UsageError(f"Give only one of {choices}.", ctx)
        if self.required and not chosen:
            raise click.UsageError(f"{self.required}: {choices}.", ctx)


class Group(_WithExamples, click.Group):
    """Group that imports a verb only when it is called."""

    command_class = Command

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names in order of declaration, not of the alphabet."""
        return [*self.commands]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return a command, imported if necessary; None if the name is unknown."""
        command = self.commands.get(cmd_name)
        return command.load() if isinstance(command, Verb) else command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the verb that the first word names; an error quotes what may be shown of it."""
        first, *arguments = args
        return super().resolve_command(ctx, [shown(first), *arguments])

    def _short_helps(self) -> list[tuple[str, str]]:
        return [
            (name, command.get_short_help_str(100))
            for name, command in self.commands.items()
        ]

    def format_commands(
        self, ctx: click.Context, formatter: click.HelpFormatter
    ) -> None:
        """List the verbs with their one-line help, without importing them."""
        with formatter.section("Commands"):
            formatter.write_dl(self._short_helps())

    def shell_complete(
        self, ctx: click.Context, incomplete: str
    ) -> list[CompletionItem]:
        """Complete verbs and the group's own options without importing a verb."""
        items = [
            CompletionItem(name, help=text)
            for name, text in self._short_helps()
            if name.startswith(incomplete)
        ]
        return items + click.Command.shell_complete(self, ctx, incomplete)


def variables(option: click.Parameter, ctx: click.Context) -> list[str]:
    """Return the names of the environment variables of an option, in order of precedence."""
    name = _setting(option).upper()
    return [f"{prefix}_{name}" for prefix in (ctx.auto_envvar_prefix, PREFIX) if prefix]


def defaults_of(ctx: click.Context) -> dict[str, Any]:
    """Return the settings of `recsys.toml` for the verb of `ctx`, by parameter name."""
    return _of_verb(_read(ctx.find_root()), ctx)


def settings(ctx: click.Context) -> dict[str, str]:
    """Return all settings outside the command line, as "fit --threads": "2 (RECSYS_THREADS)"."""
    resolved: dict[str, str] = {}
    variable_names: set[str] = set()
    for verb, option, default in _options_of_verbs(ctx):
        names = variables(option, verb)
        variable_names.update(names)
        setting = next(filter(os.environ.get, names), None)
        origin = setting or FILE_NAME
        value = default if setting is None else os.environ[setting]
        if value is None:
            continue
        name = _setting(option).replace("_", "-")
        flag = f"{verb.command_path.partition(' ')[2]} --{name}"
        is_secret = getattr(option, "secret", False)
        text = _HIDDEN if is_secret else _shown_value(value)
        resolved[flag] = f"{text} ({origin})"
    for name in sorted(os.environ):
        if name.startswith(f"{PREFIX}_") and name not in variable_names:
            value = shown(os.environ[name])
            if _SECRETS.search(name):
                value = _HIDDEN
            resolved[name] = f"{value} (sets no option)"
    return resolved


def words_of_settings(ctx: click.Context) -> list[str]:
    """Return the options of a verb that its settings give, as words of the command line."""
    table = defaults_of(ctx)
    words: list[str] = []
    for option in _options(ctx.command):
        name = str(option.name)
        source = ctx.get_parameter_source(name)
        if source is ParameterSource.ENVIRONMENT:
            texts = filter(None, map(os.environ.get, variables(option, ctx)))
            text = next(texts)
            values = option.type.split_envvar_value(text) if option.multiple else [text]
        elif source is ParameterSource.DEFAULT_MAP:
            value = table[name]
            values = value if isinstance(value, list) else [value]
        else:
            continue
        # The command line has chosen another option of its group.
        is_unset = ctx.params.get(name, True) in (None, ())
        if is_unset or getattr(option, "secret", False):
            continue
        flag = max(option.opts, key=len)
        if option.is_flag:
            is_on = click.BOOL.convert(values[0], option, ctx)
            words += [flag] if is_on else []
        else:
            for value in values:
                words += [flag, str(_shown_value(value))]
    return words


def configured(ctx: click.Context, name: str) -> list[str]:
    """Return the values of a parameter that are set for any verb outside the command line."""
    values: list[str] = []
    for verb, option, default in _options_of_verbs(ctx):
        if option.name == name:
            values += filter(None, map(os.environ.get, variables(option, verb)))
            if default is not None:
                values.append(str(default))
    return values


def _options_of_verbs(
    ctx: click.Context,
) -> Iterator[tuple[click.Context, click.Option, Any]]:
    """Yield each option of each verb, with its value in `recsys.toml`, or None."""
    root = ctx.find_root()
    table = _read(root)
    for verb in _verbs(root):
        defaults = _of_verb(table, verb)
        for option in _options(verb.command):
            yield verb, option, defaults.get(str(option.name))


def _shown_value(value: Any) -> Any:
    """Return the value of an option as it may be shown."""
    if isinstance(value, list | tuple):
        return [_shown_value(part) for part in value]
    return shown(value) if isinstance(value, str) else value


def _has_password(value: Any) -> bool:
    """Return whether the value of an option has an address with a password."""
    if isinstance(value, tuple):
        return any(map(_has_password, value))
    return isinstance(value, Location) and has_password(value)


def _setting(option: click.Parameter) -> str:
    return str(getattr(option, "setting", option.name))


def _options(command: click.Command) -> list[click.Option]:
    options = [param for param in command.params if isinstance(param, click.Option)]
    return [option for option in options if not option.is_eager]


def _verbs(ctx: click.Context) -> Iterator[click.Context]:
    """Yield a context for every command below the command of `ctx`."""
    if not isinstance(ctx.command, click.Group):
        yield ctx
        return
    for name in ctx.command.list_commands(ctx):
        command = ctx.command.get_command(ctx, name)
        assert command is not None  # it is listed
        yield from _verbs(click.Context(command, parent=ctx, info_name=name))


def _of_verb(table: Mapping[str, Any], ctx: click.Context) -> dict[str, Any]:
    """Return the settings of a verb: from its table, of its group, and of all verbs."""
    values: dict[str, Any] = {}
    section: Any = table
    for name in [*ctx.command_path.split()[1:], ""]:
        if not isinstance(section, dict):  # an option may have the name of a verb
            break
        values |= {k: v for k, v in section.items() if not isinstance(v, dict)}
        section = section.get(name)
    defaults: dict[str, Any] = {}
    for option in _options(ctx.command):
        value = values.get(_setting(option))
        if value is None:
            continue
        # In TOML, a single value needs no list.
        if option.multiple and not isinstance(value, list):
            value = [value]
        defaults[str(option.name)] = value
    return defaults


def _read(root: click.Context) -> dict[str, Any]:
    """Read and check `recsys.toml` of the current directory; empty if there is none."""
    path = Path(FILE_NAME)
    if not path.is_file():
        return {}
    import tomllib

    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:  # also not text, or a number of thousands of digits
        raise CommandError(f"{FILE_NAME} is not valid TOML: {error}.") from error
    table: dict[str, Any] = _normalised(document)
    _check(table, root, "")
    return table


def _normalised(value: Any) -> Any:
    """Return a table with underscores in its keys."""
    if not isinstance(value, dict):
        return value
    table = {}
    for key, entry in value.items():
        table[key.replace("-", "_")] = _normalised(entry)
    return table


def _check(
    table: Mapping[str, Any],
    ctx: click.Context,
    where: str,
) -> None:
    """Raise for unknown keys, with a suggestion."""
    group = ctx.command
    names = group.list_commands(ctx) if isinstance(group, click.Group) else []
    options: set[str] = set()
    for verb in _verbs(ctx):
        options |= {_setting(option) for option in _options(verb.command)}
    for key, value in table.items():
        if isinstance(value, dict) and key in names:
            command = cast(click.Group, group).get_command(ctx, key)
            context = click.Context(cast(Any, command), parent=ctx, info_name=key)
            _check(value, context, f"{where}{key}.")
        elif isinstance(value, dict) or key not in options:
            close = close_matches(key, sorted({*names, *options}), 1)
            hint = f"; did you mean {close[0].replace('_', '-')!r}?" if close else "."
            full = f"{where}{key}".replace("_", "-")
            raise CommandError(f"{FILE_NAME} sets {full!r}, which no command has{hint}")
