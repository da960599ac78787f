"""The supervisor of workers: it starts one where one has ended, and ends them all.

It is a program of its own, which imports next to nothing: `recsys serve --workers` becomes this
program when it has started the workers. So the memory that they were forked from is theirs alone.

    python -I -S supervisor.py LISTENER NUMBER [PROCESS]...

LISTENER is the descriptor of the socket, NUMBER that of workers, and each PROCESS is one of them.
"""

from __future__ import annotations

import os
import sys
import time

TYPE_CHECKING = False  # as in `typing`, which would be most of this program
if TYPE_CHECKING:
    import signal
    from collections.abc import Iterable
    from types import FrameType
else:
    import _signal as signal  # without its enumerations

DRAIN = 30  # seconds for requests in flight
ENDING = {signal.SIGTERM, signal.SIGINT}
"""Signals that end the service; they are blocked until the supervisor handles them."""

_WORKER = "from recsys.serve.server import resume; resume()"
_BREATH = 0.2  # seconds before a worker that has ended is replaced


class Supervisor:
    """A number of workers that serve one socket, given by its descriptor.

    Some `workers` may be there already: processes, children of this one.
    """

    def __init__(self, listener: int, number: int, workers: Iterable[int] = ()) -> None:
        self._listener, self._number = listener, number
        self._workers = set(workers)
        self._stopping = False

    def run(self) -> None:
        """Replace workers until a signal comes, then let them end."""
        for each in ENDING:
            signal.signal(each, self._stop)
        signal.signal(signal.SIGALRM, self._kill)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, ENDING)
        while True:
            while not self._stopping and len(self._workers) < self._number:
                # A signal waits meanwhile, so that no worker misses it.
                signal.pthread_sigmask(signal.SIG_BLOCK, ENDING)
                words = [sys.executable, "-c", _WORKER, str(self._listener)]
                started = os.posix_spawn(sys.executable, words, os.environ, setsigmask=())
                self._workers.add(started)
                signal.pthread_sigmask(signal.SIG_UNBLOCK, ENDING)
            if not self._workers:
                break
            process, status = os.wait()
            self._workers.discard(process)
            if not self._stopping:
                code, now = os.waitstatus_to_exitcode(status), time.strftime("%F %T")
                print(f"{now} ERROR worker {process} ended with code {code}", file=sys.stderr)
                time.sleep(_BREATH)
        from shutil import rmtree  # not before: it would be most of this program

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
