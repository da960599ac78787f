"""Click classes that all verbs share: lazy loading, help sections, settings, exclusive options."""

from __future__ import annotations

import importlib
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import click
from click.core import ParameterSource
from click.shell_completion import CompletionItem

from recsys.cli.config import FILE_NAME, defaults_of, variables

__all__ = ["ELSEWHERE", "EVERYWHERE", "Command", "Group", "Option", "State", "Verb"]

EVERYWHERE = "Everywhere"
ELSEWHERE = {
    "train": "fit",
    "inspect": "data inspect",
    "sample": "data sample",
    "index": "lsi index",
    "query": "lsi query",
    "search": "lsi query",
    "terms": "lsi terms",
    "add": "lsi add",
}
"""Commands for names that users of other programs may try."""


@dataclass
class State:
    """Options that stand before or after every verb, and the words of the command line."""

    quiet: bool = False
    debug: bool = False
    words: tuple[str, ...] = ()


@dataclass(frozen=True)
class Verb:
    """Place of a command ("module:attribute"), and its one-line help."""

    target: str
    help: str

    def load(self) -> click.Command:
        """Import the command."""
        module, _, attribute = self.target.partition(":")
        command: click.Command = getattr(importlib.import_module(module), attribute)
        return command


class Option(click.Option):
    """Option with a section of the help, which can be set for one verb or for all.

    RECSYS_FIT_THREADS=2 and RECSYS_THREADS=2 set --threads, as do `threads = 2` in recsys.toml
    within [fit] and above all tables. With `details`, the help names the option only, and the
    command that explains it.
    """

    def __init__(
        self, *args: Any, section: str = "Options", details: str = "", **kwargs: Any
    ) -> None:
        super().__init__(*args, **kwargs)
        self.section = section
        self.details = details

    def resolve_envvar_value(self, ctx: click.Context) -> str | None:
        """Return the value that the environment has for this verb, or for all."""
        return next(filter(None, map(os.environ.get, variables(self, ctx))), None)

    def handle_parse_result(self, ctx: click.Context, opts: Any, args: list[str]) -> Any:
        """Parse the value; an error says where the value is set, if not on the command line."""
        try:
            return super().handle_parse_result(ctx, opts, args)
        except click.BadParameter as error:
            place = FILE_NAME
            source = ctx.get_parameter_source(str(self.name))
            if source is ParameterSource.ENVIRONMENT:
                place = next(name for name in variables(self, ctx) if os.environ.get(name))
            elif source is not ParameterSource.DEFAULT_MAP:
                raise
            message = f"{error.message} It is set in {place}."
            raise click.BadParameter(message, error.ctx, error.param, error.param_hint) from error


class _WithExamples(click.Command):
    """Help with options by section and examples at the end."""

    def __init__(self, *args: Any, examples: Sequence[str] = (), **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.examples = tuple(examples)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the options by section, those of every verb last."""
        sections: dict[str, list[tuple[str, str]]] = {}
        elsewhere: dict[str, list[str]] = {}
        for param in self.get_params(ctx):
            record = param.get_help_record(ctx)
            if record is None or not isinstance(param, click.Option):
                continue
            if details := getattr(param, "details", ""):
                elsewhere.setdefault(details, []).append(param.opts[0])
            else:
                sections.setdefault(getattr(param, "section", EVERYWHERE), []).append(record)
        sections[EVERYWHERE] = sections.pop(EVERYWHERE)
        for section, records in sections.items():
            with formatter.section(section if len(sections) > 1 else "Options"):
                formatter.write_dl(records)
        for details, names in elsewhere.items():
            with formatter.section(details):
                formatter.write_text(", ".join(names))
        if isinstance(self, click.Group):
            self.format_commands(ctx, formatter)

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the examples."""
        if self.examples:
            with formatter.section("Examples"):
                formatter.write("".join(f"  {example}\n" for example in self.examples))


class Command(_WithExamples):
    """Verb with settings from the environment and recsys.toml, and options that exclude others.

    `one_of` are groups of parameters of which one at most may be given. A setting from outside the
    command line gives way to another option of its group on the command line.
    """

    def __init__(
        self, *args: Any, one_of: Sequence[tuple[str, ...]] = (), required: str = "", **kwargs: Any
    ) -> None:
        super().__init__(*args, **kwargs)
        self.one_of = tuple(one_of)
        self.required = required

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the arguments on top of the settings; help needs none and shows none."""
        if not ctx.resilient_parsing and set(args).isdisjoint(ctx.help_option_names):
            ctx.default_map = defaults_of(ctx)
        try:
            rest = super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            meant = f"-{error.option_name.lstrip('-')}"
            if any(meant in param.opts for param in self.params):
                raise click.NoSuchOption(
                    error.option_name, possibilities=[meant], ctx=ctx
                ) from error
            raise
        except click.UsageError as error:
            if error.message.startswith("Got unexpected extra argument"):
                places = [p.make_metavar(ctx) for p in self.params if isinstance(p, click.Argument)]
                expected = " and ".join(places) or "no arguments"
                message = f"{error.message}; expected {expected}. Quote values that contain spaces."
                raise click.UsageError(message, ctx) from error
            raise
        if self.one_of and not ctx.resilient_parsing:
            self._choose_one(ctx)
        return rest

    def _choose_one(self, ctx: click.Context) -> None:
        """Keep the one group of options that is given, the command line before settings."""
        flags = {param.name: param for param in self.params}
        given = [
            [name for name in group if ctx.params[name] not in (None, (), False)]
            for group in self.one_of
        ]
        typed = [
            any(ctx.get_parameter_source(name) is ParameterSource.COMMANDLINE for name in names)
            for names in given
        ]
        for names, is_typed in zip(given, typed, strict=True):
            if any(typed) and not is_typed:
                for name in names:
                    ctx.params[name] = () if isinstance(ctx.params[name], tuple) else None
                names.clear()
        chosen = [names for names in given if names]
        listed = [
            " with ".join(
                max(flags[name].opts, key=len)
                if isinstance(flags[name], click.Option)
                else str(flags[name].human_readable_name)
                for name in group
            )
            for group in self.one_of
        ]
        choices = f"{', '.join(listed[:-1])} or {listed[-1]}"
        if len(chosen) > 1:
            raise click.UsageError(f"Give only one of {choices}.", ctx)
        if self.required and not chosen:
            raise click.UsageError(f"{self.required}: {choices}.", ctx)


class Group(_WithExamples, click.Group):
    """Group that imports a verb only when it is called, and suggests the nearest verb."""

    command_class = Command

    def __init__(self, *args: Any, verbs: dict[str, Verb] | None = None, **kwargs: Any) -> None:
        kwargs.setdefault("context_settings", {"help_option_names": ["-h", "--help"]})
        super().__init__(*args, **kwargs)
        self.verbs = verbs or {}

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names in the order of work, not of the alphabet."""
        return [*self.verbs, *self.commands]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import the verb `cmd_name`; None if there is no such verb."""
        verb = self.verbs.get(cmd_name)
        return verb.load() if verb else super().get_command(ctx, cmd_name)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the verb that `args` begin with, or suggest the nearest one."""
        name, known = args[0], self.list_commands(ctx)
        if name in known or name.startswith("-") or ctx.resilient_parsing:
            return super().resolve_command(ctx, args)
        meant = {**ELSEWHERE, "help": "--help"}.get(name, "")
        text = f"No such command {name!r}."
        if meant.split(" ")[0] in {*known, "--help"}:
            raise click.NoSuchCommand(name, f"{text} Did you mean {meant!r}?", ctx=ctx)
        error = click.NoSuchCommand(name, possibilities=known, ctx=ctx)
        if not error.possibilities:
            text = f"{text} The commands are {', '.join(known)}."
            raise click.NoSuchCommand(name, text, ctx=ctx)
        raise error

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the verbs with their one-line help, without importing them."""
        with formatter.section("Commands"):
            formatter.write_dl([(n, self._short_help(n)) for n in self.list_commands(ctx)])

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Complete verbs and the group's own options without importing a verb."""
        items = [
            CompletionItem(name, help=self._short_help(name))
            for name in self.list_commands(ctx)
            if name.startswith(incomplete)
        ]
        return items + click.Command.shell_complete(self, ctx, incomplete)

    def _short_help(self, name: str) -> str:
        verb = self.verbs.get(name)
        return verb.help if verb else self.commands[name].get_short_help_str(limit=100)
