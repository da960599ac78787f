"""Commands and groups with what all verbs share: lazy loading, suggestions, settings, `-h`."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import click

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
"""Where verbs are that are often looked for elsewhere."""


@dataclass
class State:
    """What every verb is told by the options that stand before or after it, and all that was said.

    Attributes
    ----------
    quiet, debug : bool
    words : tuple of str
        The command line after the name of the program.
    """

    quiet: bool = False
    debug: bool = False
    words: tuple[str, ...] = ()


@dataclass(frozen=True)
class Verb:
    """Where a command lives ("module:attribute"), and its one-line help."""

    target: str
    help: str

    def load(self) -> click.Command:
        """Import the command."""
        module, _, attribute = self.target.partition(":")
        command: click.Command = getattr(importlib.import_module(module), attribute)
        return command


class Option(click.Option):
    """An option that belongs to a section of the help."""

    def __init__(self, *args: Any, section: str = "Options", **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.section = section


class _WithExamples(click.Command):
    """Help with options by section and examples at the end."""

    def __init__(self, *args: Any, examples: Sequence[str] = (), **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.examples = tuple(examples)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the options by section."""
        sections: dict[str, list[tuple[str, str]]] = {}
        for param in self.get_params(ctx):
            record = param.get_help_record(ctx)
            if record is not None and isinstance(param, click.Option):
                section = getattr(param, "section", EVERYWHERE)
                sections.setdefault(section, []).append(record)
        everywhere = sections.pop(EVERYWHERE)
        for section, records in [*sections.items(), (EVERYWHERE, everywhere)]:
            with formatter.section(section if sections else "Options"):
                formatter.write_dl(records)
        if isinstance(self, click.Group):
            self.format_commands(ctx, formatter)

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the examples."""
        if self.examples:
            with formatter.section("Examples"):
                formatter.write("".join(f"  {example}\n" for example in self.examples))


class Command(_WithExamples):
    """A verb whose unset options are looked up in the environment and in `recsys.toml`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the arguments on top of the settings; errors say what would be right."""
        try:
            return self._parsed(ctx, args)
        except click.UsageError as error:
            from recsys.cli.errors import explained

            raise explained(error, self) from error

    def _parsed(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the arguments; help needs no settings and shows none."""
        wants_help = not set(args).isdisjoint(ctx.help_option_names)
        if ctx.resilient_parsing or wants_help:
            return super().parse_args(ctx, args)
        from recsys.cli import config

        settings = config.resolve(ctx)
        ctx.default_map = {name: setting.value for name, setting in settings.items()}
        try:
            return super().parse_args(ctx, args)
        except click.BadParameter as error:
            raise config.with_source(error, ctx, settings) from error


class Group(_WithExamples, click.Group):
    """A group that imports a verb only when it is called, and suggests the verb that was meant."""

    command_class = Command

    def __init__(self, *args: Any, verbs: dict[str, Verb] | None = None, **kwargs: Any) -> None:
        kwargs.setdefault("context_settings", {"help_option_names": ["-h", "--help"]})
        super().__init__(*args, **kwargs)
        self.verbs = verbs or {}

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Names in the order of work, not of the alphabet."""
        return [*self.verbs, *self.commands]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import the verb `cmd_name`; None when there is no such verb."""
        verb = self.verbs.get(cmd_name)
        return verb.load() if verb else super().get_command(ctx, cmd_name)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the verb that `args` begin with, or suggest the one that was meant."""
        name = args[0]
        known = self.list_commands(ctx)
        if name not in known and not name.startswith("-") and not ctx.resilient_parsing:
            ctx.fail(f"No such command {name!r}.{_suggestion(name, known)}")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the verbs with the help known beforehand."""
        rows = [(name, self._short_help(name)) for name in self.list_commands(ctx)]
        with formatter.section("Commands"):
            formatter.write_dl(rows)

    def shell_complete(
        self, ctx: click.Context, incomplete: str
    ) -> list[click.shell_completion.CompletionItem]:
        """Complete verbs and the group's own options without importing a verb."""
        from click.shell_completion import CompletionItem

        items = [
            CompletionItem(name, help=self._short_help(name))
            for name in self.list_commands(ctx)
            if name.startswith(incomplete)
        ]
        return items + click.Command.shell_complete(self, ctx, incomplete)

    def _short_help(self, name: str) -> str:
        verb = self.verbs.get(name)
        return verb.help if verb else self.commands[name].get_short_help_str(limit=100)


def _suggestion(name: str, known: list[str]) -> str:
    from difflib import get_close_matches

    if name == "help":
        return " Did you mean '--help'?"
    meant = ELSEWHERE.get(name)
    if meant is not None and meant.split()[0] in known:
        return f" Did you mean {meant!r}?"
    close = get_close_matches(name, known, n=1)
    return f" Did you mean {close[0]!r}?" if close else f" The commands are {', '.join(known)}."
