"""Supervisor of workers, which replaces workers that end, and stops all of them.

It is a separate program with few imports. `recsys serve --workers` starts the workers and then
executes this program in its place, so that only the workers keep the memory of the parent process.

    python -I -S supervisor.py LISTENER NUMBER [PROCESS]...

LISTENER is the descriptor of the socket, NUMBER the number of workers, and each PROCESS the id of a
worker that is already running.
"""

from __future__ import annotations

import os
import sys
import time

TYPE_CHECKING = False  # importing `typing` would dominate the memory of this program
if TYPE_CHECKING:
    import signal
    from collections.abc import Iterable
    from types import FrameType
else:
    import _signal as signal  # without its enumerations

DRAIN = 30  # seconds for requests in progress
ENDING = {signal.SIGTERM, signal.SIGINT}
"""Signals that end the service; they are blocked until the supervisor handles them."""

_WORKER = "from recsys.serve.server import resume; resume()"
_BREATH = 0.2  # seconds before an ended worker is replaced


class Supervisor:
    """Supervisor of a number of workers that serve one socket, given by its descriptor.

    `workers` are the ids of child processes that are already running.
    """

    def __init__(self, listener: int, number: int, workers: Iterable[int] = ()) -> None:
        self._listener, self._number = listener, number
        self._workers = set(workers)
        self._stopping = False

    def run(self) -> None:
        """Replace workers until a signal arrives, then wait for them to end."""
        for each in ENDING:
            signal.signal(each, self._stop)
        signal.signal(signal.SIGALRM, self._kill)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, ENDING)
        while True:
            while not self._stopping and len(self._workers) < self._number:
                # Block signals until the worker is registered, so that it receives them.
                signal.pthread_sigmask(signal.SIG_BLOCK, ENDING)
                words = [sys.executable, "-c", _WORKER, str(self._listener)]
                started = os.posix_spawn(
                    sys.executable, words, os.environ, setsigmask=()
                )
                self._workers.add(started)
                signal.pthread_sigmask(signal.SIG_UNBLOCK, ENDING)
            if not self._workers:
                break
            process, status = os.wait()
            self._workers.discard(process)
            if not self._stopping:
                code, now = os.waitstatus_to_exitcode(status), time.strftime("%F %T")
                print(
                    f"{now} ERROR worker {process} ended with code {code}",
                    file=sys.stderr,
                )
                time.sleep(_BREATH)
        from shutil import rmtree  # late, because it would dominate the memory

        rmtree(os.environ["PROMETHEUS_MULTIPROC_DIR"], ignore_errors=True)

    def _stop(self, _number: int, _frame: FrameType | None) -> None:
        self._stopping = True
        signal.alarm(DRAIN)
        for each in self._workers:
            os.kill(each, signal.SIGTERM)

    def _kill(self, _number: int, _frame: FrameType | None) -> None:
        for each in self._workers:
            os.kill(each, signal.SIGKILL)


if __name__ == "__main__":
    Supervisor(int(sys.argv[1]), int(sys.argv[2]), map(int, sys.argv[3:])).run()
