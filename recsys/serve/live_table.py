"""Table of the items of a served model, which is read again and again while the model stays."""

from __future__ import annotations

import logging
import stat
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, wait
from contextlib import suppress
from pathlib import Path

from recsys.addresses import shown
from recsys.catalogues import read_catalogue
from recsys.data.features import Features
from recsys.database import parse_address
from recsys.errors import DataError, RecsysError
from recsys.saving.model_file import INDEX_FORMAT, format_of
from recsys.serve.catalogue import Json
from recsys.serve.loading import load_responses
from recsys.serve.responses import Responses
from recsys.serve.settings import Settings
from recsys.serve.slots import without_folders

_PATIENCE = 30.0  # seconds for a reading
_LONGEST_PAUSE = 16  # largest number of refreshes between two attempts after failures

_log = logging.getLogger("recsys.serve")


class LiveTable:
    """Table of items from a file or a database, and the model that is served with it.

    The table that was read last is kept while another one cannot be read, or lacks what the
    model or a named condition needs. Only one thread at a time may call the methods.

    Attributes
    ----------
    rejected : str or None
        Reason for which the table is not read, without folders.
    read_time : float or None
        Time of the last successful reading, by a clock that nobody sets.
    """

    def __init__(
        self,
        source: str,
        seconds: float,
        conditions: Mapping[str, str],
        on_failure: Callable[[], None],
    ) -> None:
        self.source = source
        self.rejected: str | None = None
        self.read_time: float | None = None
        self._n_failures = 0  # since the last success
        self._served: Responses | None = None  # the model that the table was added to
        self._seconds = seconds
        self._conditions = conditions
        self._on_failure = on_failure
        self._base: Responses | None = None
        self._latest: Responses | None = None  # the last ones with a table
        self._table: Features | None = None
        self._signature: tuple[int, ...] | None = None  # of a file
        self._due = 0.0
        self._reading: Future[tuple[Features, str]] | None = None

    def load(self, path: Path) -> Responses:
        """Load a model, and return its responses with the newest table."""
        earlier_base = self._base
        base = load_responses(path)
        self._base = base
        self._due = 0.0
        self._signature = None
        try:
            renewed = self.refreshed()
            if renewed is None:
                renewed = self._with_last_table(base)
            renewed.check_conditions(self._latest)
        except Exception:
            self._base = earlier_base  # which is still served
            raise
        self._latest = renewed
        return renewed

    def read(self, base: Responses) -> Responses:
        """Read the table once, and return the responses of a model with it."""
        table, _ = self._read_in_time(base)
        return self._renewed(base, table)

    def refreshed(self) -> Responses | None:
        """Return the responses with the table as it is now; None if they are as before."""
        base = self._base
        now = time.monotonic()
        if base is None or now < self._due:
            return None
        self._due = now + self._seconds
        signature = _signature_of(self.source)
        # A file is read once in each of its states, a database each time.
        if signature is not None and signature == self._signature:
            if self.rejected is None:
                self.read_time = time.monotonic()
            return None
        self._signature = signature
        try:
            table, remark = self._read_in_time(base)
            if _signature_of(self.source) != signature:
                self._signature = None
                raise DataError(f"{self.source} has changed while it was read.")
            is_same = self._is_same(table)
            renewed = None if is_same else self._renewed(base, table)
            if renewed is not None:
                renewed.check_conditions(self._latest)
                self._latest = renewed
        # Whatever is wrong with a table, the one before is served.
        except Exception as error:
            self._reject(error, is_file=signature is not None)
            return None
        if self.rejected is not None or self._table is None:
            _log.info("%s", remark)
        self.rejected = None
        self.read_time = time.monotonic()
        self._n_failures = 0
        self._table = table
        self._served = base
        return renewed

    def described(self) -> Json:
        """Return the rows, the seconds since the last reading, and what is left out or wrong."""
        age = None
        if self.read_time is not None:
            age = round(time.monotonic() - self.read_time, 1)
        return {
            "rows": None if self._table is None else len(self._table),
            "age": age,
            "rejected": self.rejected,
            "remarks": [] if self._table is None else self._table.remarks,
        }

    def _read_in_time(self, base: Responses) -> tuple[Features, str]:
        """Return the table and a remark on it.

        A database that does not answer delays neither new models nor the end of the service.
        """
        if self._reading is not None and not self._reading.done():
            raise TimeoutError(f"{shown(self.source)} is still being read.")
        # A new model may have been fitted to a table with other columns.
        earlier = self._table if self._served is base else None
        reading = base.recommender.provenance.reading
        result: Future[tuple[Features, str]] = Future()

        def read() -> None:
            try:
                table = read_catalogue(self.source, base.ratings, reading, earlier)
                result.set_result(table)
            except Exception as error:
                result.set_exception(error)

        self._reading = result
        threading.Thread(target=read, daemon=True).start()
        wait([result], _PATIENCE)
        if not result.done():
            raise TimeoutError(
                f"{shown(self.source)} has not been read within {_PATIENCE:g} seconds."
            )
        return result.result()

    def _is_same(self, table: Features) -> bool:
        """Return whether a table is the one that the model is served with."""
        served = self._table
        return (
            served is not None
            and self._served is self._base
            and served.kinds == table.kinds
            and served.frame.equals(table.frame)
        )

    def _renewed(self, base: Responses, table: Features) -> Responses:
        """Return responses of a model with a table; caches are filled before its first request."""
        recommender = base.recommender.with_tables(item_table=table)
        responses = Responses(recommender, base.name, base.manifest, self._conditions)
        responses.warm()
        return responses

    def _with_last_table(self, base: Responses) -> Responses:
        """Return responses of a model with the last table that could be used."""
        if self._table is not None:
            return self._renewed(base, self._table)
        # Without any table, the one of the model is better than none.
        return Responses(base.recommender, base.name, base.manifest, self._conditions)

    def _reject(self, error: Exception, *, is_file: bool) -> None:
        """Keep the table, and wait longer after each failure to read a database."""
        reason = without_folders(str(error), self.source)
        if not isinstance(error, RecsysError | OSError):
            reason = f"The table cannot be read ({type(error).__name__})."
        if reason != self.rejected:
            table = (
                "The table of the model" if self._table is None else "The last table"
            )
            _log.error("%s %s is used until the new one can be.", error, table)
        self.rejected = reason
        self._on_failure()
        self._n_failures += 1
        if isinstance(error, OSError):  # which may be over with the same file
            self._signature = None
        if not is_file:
            pause = min(2**self._n_failures, _LONGEST_PAUSE) * self._seconds
            self._due = time.monotonic() + pause


def check_conditions(settings: Sequence[Settings]) -> None:
    """Check that each named condition can be used with one of the models at least.

    Raises
    ------
    DataError
        If one cannot.
    """
    usable: set[str] = set()
    reasons: dict[str, str] = {}
    for of_model in settings:
        unusable = unusable_conditions(of_model)
        usable |= of_model.conditions.keys() - unusable.keys()
        reasons = unusable | reasons
    for name, reason in reasons.items():
        if name not in usable:
            raise DataError(reason)


def unusable_conditions(settings: Settings) -> dict[str, str]:
    """Return the named conditions that the items of a service do not fit, and the reasons."""
    reasons: dict[str, str] = {}
    conditions = settings.conditions
    for path in (settings.model, settings.model_b):
        if not conditions or path is None or format_of(path) == INDEX_FORMAT:
            continue
        # The service logs what cannot be loaded or read now, and tries it again.
        with suppress(Exception):
            responses = load_responses(Path(path), conditions)
            if settings.item_table is not None:
                table = LiveTable(
                    settings.item_table, settings.refresh, conditions, lambda: None
                )
                responses = table.read(responses)
            reasons |= responses.unusable
    return reasons


def _signature_of(source: str) -> tuple[int, ...] | None:
    """Return what changes with the contents of a file of text or columns, None for others."""
    try:
        state = Path(source).stat()
        is_database = parse_address(source) is not None
    except (OSError, ValueError, RecsysError):
        return None
    # A database has more files than the one, and a folder has many.
    if is_database or not stat.S_ISREG(state.st_mode):
        return None
    return state.st_ino, state.st_size, state.st_mtime_ns
