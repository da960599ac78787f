"""Messages on standard error: notes, and a progress bar for long work."""

from __future__ import annotations

import sys
import threading
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import click

from recsys.cli.group import State

if TYPE_CHECKING:
    from recsys.models.base import Step

__all__ = ["Activity", "describe", "note"]

PATIENCE = 1.0
"""Seconds of silence before a bar appears."""


def note(message: str) -> None:
    """Print one line on standard error, unless `--quiet`."""
    if not _state().quiet:
        click.echo(message, err=True)


class Activity:
    """Progress bar, shown on a terminal if the work lasts over a second.

    A context manager; `fit` calls its `step` after each iteration. rich is imported only when the
    bar appears.
    """

    def __init__(self, title: str) -> None:
        self.title = title
        self._last: Step | None = None
        self._remark = ""
        self._bar: Any = None
        self._task: Any = None
        self._lock = threading.Lock()
        self._is_over = False
        self._timer: threading.Timer | None = None

    def __enter__(self) -> Self:
        if sys.stderr is not None and sys.stderr.isatty() and not _state().quiet:
            self._timer = threading.Timer(PATIENCE, self._show)
            self._timer.daemon = True
            self._timer.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._timer is not None:
            self._timer.cancel()
        with self._lock:
            self._is_over = True
            if self._bar is not None:
                self._bar.stop()

    def step(self, step: Step) -> None:
        """Move the bar to `step`."""
        with self._lock:
            self._last = step
            self._update()

    def say(self, message: str) -> None:
        """Show the progress of work of unknown length."""
        with self._lock:
            self._remark = message
            self._update()

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
            self._task = self._bar.add_task(self.title, total=None, note="")
            self._bar.tasks[0].start_time -= PATIENCE
            self._bar.start()
            self._update()

    def _update(self) -> None:
        if self._bar is None:
            return
        if self._last is None:
            self._bar.update(self._task, note=self._remark)
            return
        self._bar.update(
            self._task,
            description=self.title,
            total=self._last.total,
            completed=self._last.step,
            note=describe(self._last),
        )


def describe(step: Step) -> str:
    """Describe an iteration: "sweep 3/15, training RMSE 0.7312, held-out RMSE 0.8725"."""
    parts = [f"sweep {step.step}/{step.total}"]
    if step.train_rmse is not None:
        parts.append(f"training RMSE {step.train_rmse:.4f}")
    if step.validation_rmse is not None:
        parts.append(f"held-out RMSE {step.validation_rmse:.4f}")
    return ", ".join(parts)


def _state() -> State:
    context = click.get_current_context(silent=True)
    return context.ensure_object(State) if context else State()
