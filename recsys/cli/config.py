"""Settings of options from the environment and from `recsys.toml`.

What is given on the command line wins, then, from strong to weak::

    RECSYS_FIT_THREADS=2       the environment, one verb
    RECSYS_THREADS=2           the environment, every verb with that option
    [fit] threads = 2          recsys.toml in the current directory, one verb
    threads = 2                recsys.toml, every verb with that option

Keys are the long option names, with `-` or `_`. A nested verb is a nested table (`[data.inspect]`,
RECSYS_DATA_INSPECT_SEP).
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from recsys.cli.errors import CommandError

__all__ = ["FILE_NAME", "Setting", "everything", "resolve", "unknown_variables", "with_source"]

FILE_NAME = "recsys.toml"
PREFIX = "RECSYS"


@dataclass(frozen=True)
class Setting:
    """A value that was set outside the command line, and where."""

    value: Any
    source: str


def resolve(ctx: click.Context) -> dict[str, Setting]:
    """Find the settings of the command of `ctx`, by parameter name.

    Raises
    ------
    CommandError
        If `recsys.toml` cannot be read or holds a key that no command has.
    """
    path = ctx.command_path.split()[1:]
    return _settings(_options(ctx.command), path, _read_file(ctx.find_root()))


def everything(ctx: click.Context) -> Iterator[tuple[str, str, Setting]]:
    """Yield each setting there is, as verb, option name and setting."""
    root = ctx.find_root()
    table = _read_file(root)
    for path, command in _commands(root.command, root):
        for name, setting in _settings(_options(command), path, table).items():
            yield " ".join(path), name.replace("_", "-"), setting


def unknown_variables(ctx: click.Context) -> list[str]:
    """Names of RECSYS_ variables in the environment that set no option."""
    root = ctx.find_root()
    known = {
        variable
        for path, command in _commands(root.command, root)
        for name in _options(command)
        for variable in _variables(path, name)
    }
    return sorted(v for v in os.environ if v.startswith(f"{PREFIX}_") and v not in known)


def with_source(
    error: click.BadParameter, ctx: click.Context, settings: Mapping[str, Setting]
) -> click.BadParameter:
    """Return `error`, saying where the bad value was set when that was not on the command line."""
    name = error.param.name if error.param else None
    if name is None or name not in settings:
        return error
    if ctx.get_parameter_source(name) is not click.core.ParameterSource.DEFAULT_MAP:
        return error
    message = f"{error.message} It is set in {settings[name].source}."
    return click.BadParameter(message, error.ctx, error.param, error.param_hint)


def _options(command: click.Command) -> dict[str, click.Option]:
    """Return the options of a command that can be set, by name."""
    return {
        param.name: param
        for param in command.params
        if isinstance(param, click.Option) and param.name and not param.is_eager
    }


def _variables(path: list[str], name: str) -> tuple[str, str]:
    """Name the environment variables of an option: of one verb, and of all."""
    own = "_".join([PREFIX, *path, name])
    return own.upper(), f"{PREFIX}_{name}".upper()


def _settings(
    options: Mapping[str, click.Option], path: list[str], table: Mapping[str, Any]
) -> dict[str, Setting]:
    found = {}
    for name, option in options.items():
        setting = _from_environment(path, name) or _from_table(table, path, name)
        if setting is not None:
            found[name] = Setting(_as_list(setting.value, option), setting.source)
    return found


def _as_list(value: Any, option: click.Option) -> Any:
    """Wrap the single value of a repeatable option; its environment variable is split at blanks."""
    if not option.multiple or isinstance(value, list):
        return value
    return value.split() if isinstance(value, str) else [value]


def _from_environment(path: list[str], name: str) -> Setting | None:
    for variable in _variables(path, name):
        value = os.environ.get(variable)
        if value:
            return Setting(value, variable)
    return None


def _from_table(table: Mapping[str, Any], path: list[str], name: str) -> Setting | None:
    own: Any = table
    for part in path:
        own = own.get(part, {})
    for place in (own, table):
        if name in place and not isinstance(place[name], dict):
            return Setting(place[name], FILE_NAME)
    return None


def _read_file(root: click.Context) -> dict[str, Any]:
    """Read and check `recsys.toml` of the current directory; empty when there is none."""
    path = Path(FILE_NAME)
    if not path.is_file():
        return {}
    import tomllib

    try:
        table = _normalised(tomllib.loads(path.read_text(encoding="utf-8")))
    except RecursionError:
        raise CommandError(f"{FILE_NAME} has tables or lists too deep in each other.") from None
    except ValueError as error:  # no TOML, no text, or a number of thousands of digits
        raise CommandError(f"{FILE_NAME} is not valid TOML: {error}.") from error
    _check_table(table, root.command, root, where="")
    return table


def _normalised(table: dict[str, Any]) -> dict[str, Any]:
    return {
        key.replace("-", "_"): _normalised(value) if isinstance(value, dict) else value
        for key, value in table.items()
    }


def _check_table(
    table: Mapping[str, Any], command: click.Command, root: click.Context, where: str
) -> None:
    """Refuse keys that no command understands, naming the nearest that one does."""
    verbs = _subcommands(command, root)
    options = set(_options(command))
    if isinstance(command, click.Group):
        options |= {name for _, each in _commands(command, root) for name in _options(each)}
    for key, value in table.items():
        if isinstance(value, dict) and key in verbs:
            _check_table(value, verbs[key], root, where=f"{where}{key}.")
        elif isinstance(value, dict) or key not in options:
            raise CommandError(_unknown_key(f"{where}{key}", key, {*verbs, *options}))


def _unknown_key(full: str, key: str, known: set[str]) -> str:
    from difflib import get_close_matches

    close = get_close_matches(key, sorted(known), n=1)
    suggestion = f"; did you mean {close[0].replace('_', '-')!r}?" if close else "."
    return f"{FILE_NAME} sets {full.replace('_', '-')!r}, which no command has{suggestion}"


def _subcommands(command: click.Command, root: click.Context) -> dict[str, click.Command]:
    if not isinstance(command, click.Group):
        return {}
    found = {name: command.get_command(root, name) for name in command.list_commands(root)}
    return {name: sub for name, sub in found.items() if sub is not None}


def _commands(
    command: click.Command, root: click.Context, path: tuple[str, ...] = ()
) -> Iterator[tuple[list[str], click.Command]]:
    """Yield every command below `command` that does something itself, with its path."""
    if not isinstance(command, click.Group):
        yield list(path), command
    for name, sub in _subcommands(command, root).items():
        yield from _commands(sub, root, (*path, name))
