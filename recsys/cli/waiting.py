"""Waiting for other processes that change the same saved model or index."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from recsys.cli.output import note
from recsys.saving.atomic import exclusive


@contextmanager
def alone(target: str) -> Iterator[None]:
    """Wait until no other process changes what is saved at a path, and keep others waiting."""
    if not Path(target).exists():
        yield
        return
    with exclusive(
        Path(target), lambda: note(f"waiting for another update of {target} to end")
    ):
        yield
