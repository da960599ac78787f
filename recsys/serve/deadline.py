"""Time limit of the work for an answer, which stops when nobody waits for it any more."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from contextvars import ContextVar, copy_context
from typing import Any, TypeVar

T = TypeVar("T")

_DEADLINE: ContextVar[float] = ContextVar("deadline", default=math.inf)


def call_until(
    deadline: float,
    function: Callable[..., T],
    *args: Any,
) -> T:
    """Call a function in which `check_time` raises after a time of `time.monotonic`."""
    context = copy_context()
    context.run(_DEADLINE.set, deadline)
    return context.run(function, *args)


def check_time() -> None:
    """Stop work whose answer has timed out; call it between two pieces of the work.

    Raises
    ------
    TimeoutError
    """
    if time.monotonic() > _DEADLINE.get():
        raise TimeoutError
