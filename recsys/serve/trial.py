"""Trial loads of new models in processes of their own, so that no model ends a running service.

The service tries each replacement once: a load, with all checksums, and what is computed before the
first answer. That takes the time and the memory of one more load, and the start of a Python.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import msgspec
from msgspec import Struct

from recsys.errors import ModelFileError, RecsysError
from recsys.serve.settings import SHARED

_TIME_LIMIT = 1800.0  # seconds of a trial


class Outcome(Struct, frozen=True):
    """Outcome of a trial: the reason why the model cannot be served, or None."""

    error: str | None


class Trial:
    """Trial loads for one slot of the service, one at a time."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
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
        environment = {
            name: value for name, value in os.environ.items() if name != SHARED
        }
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-m", __name__, str(path)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env=environment,
            )
        except OSError:
            return False
        with self._process as process:
            try:
                output, _ = process.communicate(timeout=_TIME_LIMIT)
            except subprocess.TimeoutExpired:
                process.kill()
                raise ModelFileError(
                    f"{path} cannot be served: a trial load took more than "
                    f"{_TIME_LIMIT / 60:.0f} minutes."
                ) from None
            finally:
                self._process = None
        # The kernels may crash on arrays that pass all checks.
        if process.returncode < 0:
            raise ModelFileError(
                f"{path} cannot be served: a trial load ended its process "
                f"({_signal_name(-process.returncode)})."
            )
        try:
            outcome = msgspec.json.decode(output, type=Outcome)
        except msgspec.DecodeError:  # another program is behind sys.executable
            return False
        if outcome.error is not None:
            raise ModelFileError(outcome.error)
        return True

    def stop(self) -> None:
        """End a trial in progress, and start no other one."""
        self._is_over = True
        process = self._process
        if process is not None:
            process.kill()


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def main(path: str) -> None:
    """Load a model or index as the service does, and print the outcome as JSON."""
    from recsys.serve.loading import load_served

    error = None
    try:
        load_served(Path(path))
    except (RecsysError, OSError, MemoryError) as failure:
        error = str(failure)
    sys.stdout.buffer.write(msgspec.json.encode(Outcome(error)))


if __name__ == "__main__":
    main(sys.argv[1])
