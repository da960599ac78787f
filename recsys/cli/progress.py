"""Messages on standard error: notes, and a progress bar for long work."""

from __future__ import annotations

import shutil
import sys
import threading
from typing import TYPE_CHECKING, Any, Self

import click

from recsys.cli.group import State
from recsys.messages import redacted, wrapped

if TYPE_CHECKING:
    from recsys.models.base import Step

PATIENCE = 1.0
"""Seconds of silence before a bar appears."""


def note(message: str, *, verbatim: bool = False) -> None:
    """Print a line on standard error, unless `--quiet`; a terminal gets lines that fit.

    `verbatim` is for commands, which are copied.
    """
    if _state().quiet:
        return
    message = redacted(message)
    if not verbatim and sys.stderr is not None and sys.stderr.isatty():
        message = wrapped(message, shutil.get_terminal_size((80, 24)).columns)
    click.echo(message, err=True)


class Activity:
    """Progress bar (a context manager), shown on a terminal if the work lasts over a second."""

    def __init__(self, title: str) -> None:
        self.title = redacted(title)
        self._shown: dict[str, Any] = {"total": None, "note": ""}
        self._bar: Any = None
        self._lock = threading.Lock()
        self._is_over = False
        self._timer = threading.Timer(PATIENCE, self._show)
        self._timer.daemon = True

    def __enter__(self) -> Self:
        if sys.stderr is not None and sys.stderr.isatty() and not _state().quiet:
            self._timer.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self._timer.cancel()
        with self._lock:
            self._is_over = True
            if self._bar is not None:
                self._bar.stop()

    def step(self, step: Step) -> None:
        """Move the bar to `step`."""
        self._update(total=step.total, completed=step.step, note=describe(step))

    def count(self, rows: int, expected: int | None) -> None:
        """Move the bar to a number of rows, of those that are expected."""
        total = None if expected is None else max(rows, expected)
        share = "" if total is None else f"{rows / max(total, 1):.0%}, "
        self._update(total=total, completed=rows, note=f"{share}{rows:,} rows")

    def say(self, message: str) -> None:
        """Show the progress of work of unknown length."""
        self._update(note=message)

    def _update(self, **shown: Any) -> None:
        with self._lock:
            self._shown |= shown
            if self._bar is not None:
                self._bar.update(self._bar.task_ids[0], description=self.title, **self._shown)

    def _show(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

        with self._lock:
            if self._is_over:
                return
            self._bar = Progress(
                TextColumn("{task.description}", markup=False),
                BarColumn(bar_width=20),
                TextColumn("{task.fields[note]}", markup=False),
                TimeElapsedColumn(),
                console=Console(stderr=True),
                transient=True,
            )
            self._bar.add_task(self.title, **self._shown)
            self._bar.tasks[0].start_time -= PATIENCE
            self._bar.start()


def describe(step: Step) -> str:
    """Describe an iteration: "sweep 3/15, training RMSE 0.7312, held-out RMSE 0.8725"."""
    parts = [f"sweep {step.step}/{step.total}"]
    if step.objective is not None and step.train_rmse is None:
        parts.append(f"objective {step.objective:.6g}")
    if step.train_rmse is not None:
        parts.append(f"training RMSE {step.train_rmse:.4f}")
    if step.validation_rmse is not None:
        parts.append(f"held-out RMSE {step.validation_rmse:.4f}")
    return ", ".join(parts)


def _state() -> State:
    context = click.get_current_context(silent=True)
    return context.ensure_object(State) if context else State()
