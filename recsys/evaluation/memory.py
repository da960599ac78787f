"""How much memory a piece of work takes at its peak."""

from __future__ import annotations

import sys
from pathlib import Path
from types import TracebackType
from typing import Self

__all__ = ["PeakMemory"]

_PROCESS = Path("/proc/self")


class PeakMemory:
    """Measures by how much the process grows, as a context manager.

    `extra` is, on Linux, the peak of resident memory within the block minus what was resident
    before it. Memory that was freed earlier, but is still the process's, may serve the block
    unnoticed. Where the system does not let the peak be reset, `extra` is None.
    """

    def __init__(self) -> None:
        self.extra: int | None = None
        self._before: int | None = None

    def __enter__(self) -> Self:
        try:
            (_PROCESS / "clear_refs").write_text("5")
            self._before = _resident("VmRSS")
        except OSError:
            self._before = None
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._before is not None:
            self.extra = max(0, _resident("VmHWM") - self._before)


def _resident(which: str) -> int:
    """Return resident memory in bytes: "VmRSS" now, "VmHWM" at its peak."""
    for line in (_PROCESS / "status").read_text().splitlines():
        if line.startswith(f"{which}:"):
            return int(line.split()[1]) * 1024
    raise OSError(f"{sys.platform} does not tell {which}.")
