"""Processes that end with the block of the test that starts them, whatever fails in it."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def running(*words: Any, **settings: Any) -> Iterator[subprocess.Popen[Any]]:
    """Start a process; at the end it is killed, waited for, and its pipes are closed."""
    with subprocess.Popen([*map(str, words)], **settings) as process:
        try:
            yield process
        finally:
            process.kill()
