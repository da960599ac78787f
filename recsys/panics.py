"""What polars says in another way than Python does: panics, and errors of the system."""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from threading import Lock
from typing import IO

import polars as pl

from recsys.errors import DataError

__all__ = ["panics_as_errors", "reading_parquet", "reason_of_system"]


@contextmanager
def panics_as_errors() -> Iterator[None]:
    """Turn a panic of polars, which is no `Exception`, into a `polars.exceptions.ComputeError`.

    Examples
    --------
    >>> with panics_as_errors():
    ...     raise pl.exceptions.PanicException("out of range")
    Traceback (most recent call last):
    ...
    polars.exceptions.ComputeError: out of range
    """
    _STANDARD_ERROR.hold()
    panicked = False
    try:
        yield
    except pl.exceptions.PanicException as error:
        panicked = True
        raise pl.exceptions.ComputeError(_reason(str(error))) from None
    finally:
        _STANDARD_ERROR.release(panicked)


def _reason(panic: str) -> str:
    """Return what a panic is about, if it is one of another thread."""
    found = re.search(r'JoinError::Panic\(Id\(\d+\), "(.*)"', panic, re.DOTALL)
    return panic if found is None else found[1].replace("\\n", "\n")


class _StandardError:
    """Holds what the process writes to standard error, and drops it if polars panics.

    A panic writes there what is of use to the authors of polars alone. Whatever else comes in the
    meantime, of any thread, is written in the end.
    """

    def __init__(self) -> None:
        self._lock = Lock()
        self._holders = 0
        self._panicked = False
        self._held: IO[bytes] | None = None
        self._real = -1

    def hold(self) -> None:
        with self._lock:
            self._holders += 1
            if self._holders == 1:
                with suppress(OSError):  # there may be no standard error, and no room for a file
                    self._divert()

    def release(self, panicked: bool) -> None:
        with self._lock:
            self._panicked |= panicked
            self._holders -= 1
            if self._holders == 0 and self._held is not None:
                self._restore(self._held)

    def _divert(self) -> None:
        with ExitStack() as undo:
            real = os.dup(2)
            undo.callback(os.close, real)
            held = tempfile.TemporaryFile()  # noqa: SIM115
            undo.callback(held.close)
            os.dup2(held.fileno(), 2)
            undo.pop_all()
        self._real, self._held, self._panicked = real, held, False

    def _restore(self, held: IO[bytes]) -> None:
        os.dup2(self._real, 2)
        os.close(self._real)
        self._held = None
        with held:
            held.seek(0)
            if not self._panicked:
                with suppress(OSError):
                    os.write(2, held.read())


_STANDARD_ERROR = _StandardError()


@contextmanager
def reading_parquet(name: str) -> Iterator[None]:
    """Turn whatever is wrong with a Parquet file into one sentence.

    Raises
    ------
    DataError
        If polars or the system cannot read it.
    """
    try:
        with panics_as_errors():
            yield
    except (pl.exceptions.PolarsError, OSError) as error:
        reason = str(error).partition("\n")[0].rstrip(".")
        raise DataError(f"{name} is a damaged Parquet file: {reason}.") from None


def reason_of_system(error: BaseException) -> str | None:
    """Return what the operating system said, if that is why `error` was raised.

    Examples
    --------
    >>> reason_of_system(pl.exceptions.ComputeError("writing: full (os error 28)"))
    'No space left on device'
    """
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    found = re.search(r"\(os error (\d+)\)", str(error))
    if found is not None:
        return os.strerror(int(found[1]))
    # NumPy says only how much could be written.
    return f"not all could be written ({error})" if isinstance(error, OSError) else None
