"""Settings of options in `recsys.toml`, and a list of all settings.

A value on the command line counts first, then, from strong to weak::

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
from pathlib import Path
from typing import Any

import click

from recsys.cli.errors import CommandError
from recsys.messages import close_matches

FILE_NAME = "recsys.toml"
PREFIX = "RECSYS"


def variables(option: click.Parameter, ctx: click.Context) -> list[str]:
    """Return the names of the environment variables of an option, the strongest first."""
    name = str(option.name).upper()
    return [f"{prefix}_{name}" for prefix in (ctx.auto_envvar_prefix, PREFIX) if prefix]


def defaults_of(ctx: click.Context) -> dict[str, Any]:
    """Return the settings of `recsys.toml` for the verb of `ctx`, by parameter name."""
    return _of_verb(_read(ctx.find_root()), ctx)


def settings(ctx: click.Context) -> dict[str, str]:
    """Return every setting outside the command line as "fit --threads": "2 (RECSYS_THREADS)"."""
    root = ctx.find_root()
    table, found, known = _read(root), {}, set()
    for each in _verbs(root):
        defaults = _of_verb(table, each)
        for option in _options(each.command):
            name, names = str(option.name), variables(option, each)
            known.update(names)
            shown = f"{each.command_path.partition(' ')[2]} --{name.replace('_', '-')}"
            if setting := next(filter(os.environ.get, names), None):
                found[shown] = f"{os.environ[setting]} ({setting})"
            elif name in defaults:
                found[shown] = f"{defaults[name]} ({FILE_NAME})"
    others = sorted(v for v in os.environ if v.startswith(f"{PREFIX}_") and v not in known)
    return found | {name: f"{os.environ[name]} (sets no option)" for name in others}


def _options(command: click.Command) -> list[click.Option]:
    options = (each for each in command.params if isinstance(each, click.Option))
    return [each for each in options if not each.is_eager]


def _verbs(ctx: click.Context) -> Iterator[click.Context]:
    """Yield a context for every command below that of `ctx`."""
    if not isinstance(ctx.command, click.Group):
        yield ctx
        return
    for name in ctx.command.list_commands(ctx):
        command = ctx.command.get_command(ctx, name)
        assert command is not None  # it is listed
        yield from _verbs(click.Context(command, parent=ctx, info_name=name))


def _of_verb(table: Mapping[str, Any], ctx: click.Context) -> dict[str, Any]:
    own: Any = table
    for name in ctx.command_path.split()[1:]:
        own = own.get(name, {})
    values = {k: v for k, v in {**table, **own}.items() if not isinstance(v, dict)}
    return {
        str(each.name): [value] if each.multiple and not isinstance(value, list) else value
        for each in _options(ctx.command)
        if (value := values.get(str(each.name))) is not None
    }


def _read(root: click.Context) -> dict[str, Any]:
    """Read and check `recsys.toml` of the current directory; empty if there is none."""
    path = Path(FILE_NAME)
    if not path.is_file():
        return {}
    import tomllib

    try:
        table: dict[str, Any] = _normalised(tomllib.loads(path.read_text(encoding="utf-8")))
    except ValueError as error:  # not TOML, not text, or a number of thousands of digits
        raise CommandError(f"{FILE_NAME} is not valid TOML: {error}.") from error
    _check(table, root, "")
    return table


def _normalised(value: Any) -> Any:
    """Return a table with underscores in its keys."""
    if not isinstance(value, dict):
        return value
    return {key.replace("-", "_"): _normalised(each) for key, each in value.items()}


def _check(table: Mapping[str, Any], ctx: click.Context, where: str) -> None:
    """Raise for keys that no command has, with the nearest one that exists."""
    group = ctx.command if isinstance(ctx.command, click.Group) else None
    names = group.list_commands(ctx) if group else []
    options = {str(each.name) for verb in _verbs(ctx) for each in _options(verb.command)}
    for key, value in table.items():
        if isinstance(value, dict) and key in names and group is not None:
            command = group.get_command(ctx, key)
            assert command is not None
            _check(value, click.Context(command, parent=ctx, info_name=key), f"{where}{key}.")
        elif isinstance(value, dict) or key not in options:
            near = close_matches(key, sorted({*names, *options}), 1)
            hint = f"; did you mean {near[0].replace('_', '-')!r}?" if near else "."
            full = f"{where}{key}".replace("_", "-")
            raise CommandError(f"{FILE_NAME} sets {full!r}, which no command has{hint}")
