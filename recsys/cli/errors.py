"""Errors of the command: one message and an exit code."""

from __future__ import annotations

import errno
import sys
import warnings
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import NoReturn

import click

from lowrank.errors import LowRankError
from recsys.errors import RecsysError
from recsys.messages import is_out_of_memory, system_reason

INTERRUPTED = 130
CLOSED_PIPE = 141
TERMINATED = 143

# Exit codes of received signals: libraries may swallow or replace their exceptions.
_stops: list[int] = []


@dataclass
class State:
    """Options that may precede or follow the verb, and the words of the command line."""

    quiet: bool = False
    debug: bool = False
    words: tuple[str, ...] = ()


class CommandError(RecsysError):
    """Request that cannot be met (exit code 1)."""


def require(
    condition: object,
    sentence: str,
    error: type[Exception] = click.UsageError,
) -> None:
    """Check a condition; `sentence` is the error message.

    Raises
    ------
    UsageError
        If the condition does not hold; `error` selects another class.
    """
    if not condition:
        raise error(sentence)


def guarded(command: Callable[[], object], state: State) -> int:
    """Run `command` and return its exit code; errors are printed, never raised."""
    with warnings.catch_warnings():
        warnings.showwarning = lambda message, *_where: (
            None if state.quiet else _print(f"Warning: {message}")
        )
        try:
            command()
            if sys.stdout is not None:
                sys.stdout.flush()  # while errors can still be reported
        except BaseException as error:
            code = _report(error, state)
            try:
                if sys.stdout is not None:
                    sys.stdout.flush()
            except (
                OSError
            ):  # otherwise, the interpreter flushes again at exit, and fails
                sys.stdout = None
            return code
    return 0


def unwind_when_stopped() -> None:
    """Let SIGTERM, SIGHUP and SIGINT unwind the stack, so that half-written files are removed."""
    import signal

    def leave(_signal: int, _frame: object) -> NoReturn:
        _stops.append(TERMINATED)
        raise SystemExit(TERMINATED)

    def interrupt(_signal: int, _frame: object) -> NoReturn:
        _stops.append(INTERRUPTED)
        raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, leave)
    # Windows has no SIGHUP, and nohup ignores it.
    if hasattr(signal, "SIGHUP") and signal.getsignal(signal.SIGHUP) is signal.SIG_DFL:
        signal.signal(signal.SIGHUP, leave)
    if (
        signal.getsignal(signal.SIGINT) is signal.default_int_handler
    ):  # not ignored, as by nohup
        signal.signal(signal.SIGINT, interrupt)


def _report(error: BaseException, state: State) -> int:
    """Print the message of `error` and return the exit code."""
    if isinstance(error, click.exceptions.Exit):
        return error.exit_code
    if isinstance(error, SystemExit):
        return error.code if isinstance(error.code, int) else 0
    if isinstance(error, OSError) and error.errno == errno.EPIPE:
        return CLOSED_PIPE
    if state.debug and not isinstance(error, click.ClickException):
        import traceback

        _print("".join(traceback.format_exception(error)).rstrip())
    if TERMINATED in _stops:
        return TERMINATED
    if _stops or isinstance(error, KeyboardInterrupt | click.Abort):
        # The terminal has echoed ^C, so begin a new line.
        start = "\n" if sys.stderr is not None and sys.stderr.isatty() else ""
        _print(f"{start}Interrupted.")
        return INTERRUPTED
    if isinstance(error, click.ClickException):
        error.show()
        return error.exit_code
    # Escape control characters of file names, which could move the cursor.
    text = _sentence(error)
    printable = (c if c == "\n" or c.isprintable() else ascii(c)[1:-1] for c in text)
    _print(f"Error: {''.join(printable)}")
    for hint in getattr(error, "__notes__", ()):
        _print(hint)
    return 1


def _sentence(error: BaseException) -> str:
    """Return the message of an error in one line."""
    if isinstance(error, RecsysError | LowRankError | ImportError):
        return str(error)
    if reason := system_reason(error):
        files = [getattr(error, name, None) for name in ("filename2", "filename")]
        name = files[0] or files[1]  # of two files, name the one to write
        return f"{f'{name}: ' if name else ''}{reason[0].lower()}{reason[1:]}."
    if isinstance(error, ValueError) and str(error).startswith("embedded null"):
        return "file names cannot contain NUL characters."
    if isinstance(error, MemoryError) and str(error):
        return f"not enough memory. {error}."
    if is_out_of_memory(error):
        return "not enough memory."
    text = " ".join(str(error).split())
    return f"unexpected {type(error).__name__}: {text} (run with --debug for the traceback)"


def _print(line: str) -> None:
    with suppress(OSError):  # standard error may be closed
        click.echo(line, err=True)
