"""Trial loads of new models in processes of their own, so that no model ends a running service.

The service tries each replacement once: a load, with all checksums, and what is computed before the
first answer. That takes the time and the memory of one more load, and the start of a Python.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from recsys.errors import ModelFileError, RecsysError
from recsys.serve.settings import SHARED

_TIME_LIMIT = 1800.0  # seconds of a trial
_PAUSE = 1.0  # seconds between two calls of what is done meanwhile
_OUTCOME = "outcome: "  # in front of the reason why a model cannot be served, if any


class Trial:
    """Trial loads for one slot of the service, one at a time.

    While one takes long, `meanwhile` is called every second.
    """

    def __init__(self, meanwhile: Callable[[], None] = lambda: None) -> None:
        self._meanwhile = meanwhile
        self._process: subprocess.Popen[str] | None = None
        self._is_over = False

    def check(self, path: Path) -> bool:
        """Load a model or index in another process; return False if none can be started.

        Raises
        ------
        ModelFileError
            If it cannot be loaded, or the process has crashed.
        """
        if not sys.executable or self._is_over:
            return False
        # The counters of the workers are not of this process.
        variables = {name: os.environ[name] for name in os.environ.keys() - {SHARED}}
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-m", __name__, str(path)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                encoding="utf-8",
                errors="replace",
                env={**variables, "PYTHONIOENCODING": "utf-8:replace"},
            )
        except OSError:
            return False
        with self._process as process:
            try:
                output = self._output(process, path)
            finally:
                self._process = None
        # The kernels may crash on arrays that pass all checks.
        if process.returncode < 0:
            names = {int(number): number.name for number in signal.Signals}
            name = names.get(-process.returncode, "an unknown signal")
            raise ModelFileError(
                f"{path} cannot be served: a trial load ended its process ({name})."
            )
        if not output.startswith(_OUTCOME):  # another program is behind sys.executable
            return False
        reason = output.removeprefix(_OUTCOME)
        if reason:
            raise ModelFileError(reason)
        return True

    def _output(self, process: subprocess.Popen[str], path: Path) -> str:
        """Return the output of a process when it has ended."""
        deadline = time.monotonic() + _TIME_LIMIT
        while time.monotonic() < deadline:
            with suppress(subprocess.TimeoutExpired):
                return process.communicate(timeout=_PAUSE)[0]
            self._meanwhile()
        process.kill()
        raise ModelFileError(
            f"{path} cannot be served: a trial load took more than "
            f"{_TIME_LIMIT / 60:.0f} minutes."
        )

    def stop(self) -> None:
        """End a trial in progress, and start no other one."""
        self._is_over = True
        process = self._process
        if process is not None:
            process.kill()


def main(path: str) -> None:
    """Load a model or index as the service does, and print the outcome."""
    from recsys.serve.loading import load_served

    reason = ""
    try:
        load_served(Path(path))
    except (RecsysError, OSError, MemoryError) as error:
        reason = str(error)
    print(_OUTCOME + reason, end="")


if __name__ == "__main__":
    main(sys.argv[1])
