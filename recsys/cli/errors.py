"""Errors of the command: one sentence and an exit code."""

from __future__ import annotations

import errno
import os
import re
import sys
import warnings
from collections.abc import Callable
from contextlib import suppress
from types import TracebackType
from typing import NoReturn

import click

from recsys.cli.group import State
from recsys.errors import RecsysError

__all__ = ["CommandError", "clean_up_when_terminated", "explained", "guarded"]

INTERRUPTED = 130
CLOSED_PIPE = 141
TERMINATED = 143

_LONGEST = 4000  # characters of a message


class CommandError(RecsysError):
    """A request that the command line can see to be impossible (exit code 1)."""


def guarded(command: Callable[[], object], state: State) -> int:
    """Run `command` and give its exit code; errors are printed, never raised."""
    with warnings.catch_warnings():
        warnings.showwarning = _warning_printer(state)
        try:
            code = _call(command)
            _flush_output()
        except BaseException as error:
            return _report(error, state)
    return code


def clean_up_when_terminated() -> None:
    """Let SIGTERM unwind the stack, so that half-written files are removed."""
    import signal

    def leave(_signal: int, _frame: object) -> NoReturn:
        raise SystemExit(TERMINATED)

    signal.signal(signal.SIGTERM, leave)


def _call(command: Callable[[], object]) -> int:
    """Call `command`; the exit code, if it leaves early on purpose."""
    try:
        command()
    except click.exceptions.Exit as leave:
        return leave.exit_code
    except SystemExit as leave:
        return leave.code if isinstance(leave.code, int) else 0
    return 0


def _report(error: BaseException, state: State) -> int:
    """Print what is to be said about `error`; the exit code."""
    if isinstance(error, OSError) and error.errno == errno.EPIPE:
        return CLOSED_PIPE
    if state.debug and not isinstance(error, click.ClickException):
        import traceback

        traceback.print_exception(error)
    if isinstance(error, KeyboardInterrupt | click.Abort):
        # A terminal has just echoed ^C on a line of its own.
        _say("\nInterrupted." if sys.stderr is not None and sys.stderr.isatty() else "Interrupted.")
        return INTERRUPTED
    if isinstance(error, click.ClickException):
        error.show()
        return error.exit_code
    _say(f"Error: {_plain(_without_middle(_sentence(error)))}")
    for hint in getattr(error, "__notes__", ()):
        _say(hint)
    return 1


def _sentence(error: BaseException) -> str:
    """Say in one line what went wrong."""
    if isinstance(error, RecsysError):
        return str(error)
    if isinstance(error, OSError) and error.strerror:
        name = error.filename2 or error.filename  # of two, the one that was to be written
        return f"{f'{name}: ' if name else ''}{error.strerror[0].lower()}{error.strerror[1:]}."
    if isinstance(error, UnicodeEncodeError):
        return f"{error.object[:40]!r} is not valid text: it cannot be written in {error.encoding}."
    if isinstance(error, ValueError) and str(error).startswith("embedded null"):
        return "a name with a NUL character in it is the name of nothing."
    if type(error).__name__ == "LinAlgError":  # of numpy, which is perhaps not imported
        return f"a matrix cannot be decomposed ({error}); the numbers are too large, or damaged."
    if isinstance(error, MemoryError):
        return f"not enough memory. {error}".strip()
    if isinstance(error, ValueError | TypeError | ImportError) and _raised_on_purpose(error):
        return str(error)
    text = " ".join(str(error).split())
    system = re.search(r"\(os error (\d+)\)", text)  # so polars says it
    if system is not None:
        return f"{os.strerror(int(system[1])).lower()}."
    return f"unexpected {type(error).__name__}: {text} (run with --debug for the traceback)"


def _without_middle(text: str) -> str:
    """Leave out of a message that quotes something endless what nobody could read."""
    half = _LONGEST // 2
    return text if len(text) <= _LONGEST else f"{text[:half]} ... {text[-half:]}"


def _plain(text: str) -> str:
    """Return a text, perhaps of several lines, with which a file name cannot move the cursor."""
    return "".join(
        char if char == "\n" or char.isprintable() else char.encode("unicode_escape").decode()
        for char in text
    )


def _raised_on_purpose(error: BaseException) -> bool:
    """Whether a `raise` statement of `recsys` or `lowrank` made `error`.

    The innermost frame of an exception from compiled code (NumPy's, say) is the Python function
    that called it, so the frame alone does not tell; the instruction at which it stopped does.
    """
    import opcode

    assert error.__traceback__ is not None  # it was caught
    frame = _innermost(error.__traceback__)
    package = frame.tb_frame.f_globals.get("__name__", "").partition(".")[0]
    instruction = frame.tb_frame.f_code.co_code[frame.tb_lasti]
    return package in {"recsys", "lowrank"} and instruction == opcode.opmap["RAISE_VARARGS"]


def _innermost(frame: TracebackType) -> TracebackType:
    while frame.tb_next is not None:
        frame = frame.tb_next
    return frame


def _warning_printer(state: State) -> Callable[..., None]:
    def show(message: Warning | str, *_where: object) -> None:
        if not state.quiet:
            _say(f"Warning: {message}")

    return show


def _say(line: str) -> None:
    with suppress(OSError):  # nobody may be reading
        click.echo(line, err=True)


def _flush_output() -> None:
    """Write what is buffered while errors can still be reported."""
    if sys.stdout is not None:
        sys.stdout.flush()


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
    from recsys.cli.output import FORMATS

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
