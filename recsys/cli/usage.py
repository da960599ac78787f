"""Usage errors of click, said with what would be right."""

from __future__ import annotations

import click

from recsys.cli.output import FORMATS

__all__ = ["explained"]

_NOT_A_NUMBER = {
    "is not a valid integer range.": "is not a whole number.",
    "is not a valid float range.": "is not a number.",
}


def explained(error: click.UsageError, command: click.Command) -> click.UsageError:
    """Return `error`, met while `command` was parsed, with what would be right."""
    if isinstance(error, click.NoSuchOption):
        meant = _meant(error.option_name.lstrip("-"), _names(command))
        text = f"No such option {error.option_name!r}. Did you mean {meant!r}?"
        return click.UsageError(text, error.ctx) if meant else error
    if isinstance(error, click.MissingParameter):
        text = error.message or _what_is_missing(error.param)
        return click.MissingParameter(text, error.ctx, error.param, error.param_hint)
    if isinstance(error, click.BadParameter):
        text = error.message
        for theirs, ours in _NOT_A_NUMBER.items():
            text = text.replace(theirs, ours)
        return click.BadParameter(text, error.ctx, error.param, error.param_hint)
    if error.message.startswith("Got unexpected extra argument"):
        text = f"{error.message.rstrip('.')}. {_about_arguments(command)}"
        return click.UsageError(text, error.ctx)
    return error


def _meant(name: str, known: set[str]) -> str | None:
    """Return the option that is meant where spelling does not tell: -n by --n."""
    if f"-{name}" in known:
        return f"-{name}"
    return f"--format {name}" if name in FORMATS and "--format" in known else None


def _names(command: click.Command) -> set[str]:
    return {name for param in command.params for name in param.opts}


def _what_is_missing(param: click.Parameter | None) -> str:
    if not isinstance(param, click.Option) or not param.help or not param.metavar:
        return ""
    name = max(param.opts, key=len)
    return f"Add {name} {param.metavar}: {param.help[0].lower()}{param.help[1:]}"


def _about_arguments(command: click.Command) -> str:
    """Say which arguments there are, and how words that belong together are written."""
    places = [p.make_metavar(click.Context(command)) for p in command.params if _is_argument(p)]
    expected = " and ".join(places) if places else "no argument"
    options = [name for name in ("--user", "--item", "--title", "--out") if name in _names(command)]
    named = f"; other things are named by options, such as {options[0]}" if options else ""
    return f"Expected is {expected}{named}. Words that belong together need quotes."


def _is_argument(param: click.Parameter) -> bool:
    return isinstance(param, click.Argument)
