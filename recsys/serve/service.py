"""Service behind the routes: models in slots, limits, worker threads."""

from __future__ import annotations

import asyncio
import logging
import math
import os
import re
import time
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeAlias, TypeVar

import msgspec
from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    generate_latest,
)
from prometheus_client.multiprocess import MultiProcessCollector

from lowrank import kernels
from recsys import schema
from recsys.errors import DataError, ModelFileError, RecsysError
from recsys.recommender import Recommender
from recsys.saved_arrays import MANIFEST, DamageError, resolved
from recsys.schema import INDEX_FORMAT, format_of
from recsys.serve.access import Access
from recsys.serve.answers import Answers
from recsys.serve.facts import Id, Json
from recsys.serve.journals import EventLog, RequestLog
from recsys.serve.problems import ProblemError
from recsys.serve.settings import (
    SHARED,  # read by prometheus_client when it is imported
    Settings,
)
from recsys.serve.trial import Trial

if TYPE_CHECKING:
    from recsys.lsi.index import Index

T = TypeVar("T")
Variant: TypeAlias = Literal["a", "b"]
Signature = tuple[str, int, int, int]
Contents = tuple[tuple[str, int, int, int, int], ...]

MEDIA_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_SECONDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0, 5.0)
_ROWS = 100_000  # maximum number of items in all lists of a request: some 20 MB
_ATTEMPTS = 10  # maximum number of loads of a model that is replaced again and again
_PATIENCE = 60.0  # seconds until a load that the system has failed is tried again
_THREADS = 2  # few suffice, since most of the work is compiled code
_FOLDERS = re.compile(
    r"(?<![^\s'\"(=])/(?:[^\s'\"/]+/)*(?=[^\s'\"/])"
)  # of an absolute path
_log = logging.getLogger("recsys.serve")


class Service:
    """Models, index and settings of one process; an index can be served without models."""

    def __init__(self, settings: Settings) -> None:
        self.settings, self.limits = settings, settings.limits
        self.access = Access(settings)
        is_index = format_of(settings.model) == INDEX_FORMAT
        if is_index and (settings.index or settings.model_b):
            others = (
                "leave out the other index and the other model, or name a model first"
            )
            raise DataError(
                f"{settings.model} is an index of documents, served alone; {others}."
            )
        if settings.index is not None and format_of(settings.index) not in (
            None,
            INDEX_FORMAT,
        ):
            raise DataError(
                f"{settings.index} is a model, not an index of `recsys lsi index`."
            )
        if settings.model_b is not None and format_of(settings.model_b) == INDEX_FORMAT:
            raise DataError(
                f"{settings.model_b} is an index of documents, not a model."
            )
        self.models: dict[Variant, Slot[Answers]] = {}
        if not is_index:
            self.models["a"] = Slot(settings.model, load_answers, Trial())
        if settings.model_b is not None:
            self.models["b"] = Slot(settings.model_b, load_answers, Trial())
        index = settings.model if is_index else settings.index
        self.index: Slot[IndexAnswers] | None = None
        if index is not None:
            self.index = Slot(index, load_search, Trial())
        self.slots: dict[str, Slot[Any]] = {
            f"model_{k}": slot for k, slot in self.models.items()
        }
        if self.index is not None:
            self.slots["index"] = self.index
        self.counters = Counters(self)
        self.events = None if settings.events is None else EventLog(settings.events)
        self.log = None
        if settings.log is not None:
            self.log = RequestLog(settings.log, self.counters.lost.inc)
        self._pool = ThreadPoolExecutor(_THREADS, "recsys-answer")
        self._loader = ThreadPoolExecutor(1, "recsys-load")
        self._pending = 0
        self._watch: asyncio.Task[None] | None = None

    @property
    def is_ready(self) -> bool:
        """Return whether everything is loaded."""
        return all(slot.current is not None for slot in self.slots.values())

    async def start(self) -> None:
        """Start loading, and watching for replacements."""
        if self.settings.load_first:
            await asyncio.get_running_loop().run_in_executor(self._loader, self.check)
        self._watch = asyncio.create_task(self._watching())

    async def stop(self) -> None:
        """Stop all work, and write the remaining lines of the logs."""
        for slot in self.slots.values():
            slot.stop()
        if self._watch is not None:
            self._watch.cancel()
            with suppress(asyncio.CancelledError):
                await self._watch
        for journal in (self.events, self.log):
            if journal is not None:
                await asyncio.to_thread(journal.close)
        self._loader.shutdown(wait=False, cancel_futures=True)
        self._pool.shutdown(wait=False, cancel_futures=True)

    async def _watching(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await loop.run_in_executor(self._loader, self.check)
            await asyncio.sleep(self.settings.check_seconds)

    def check(self) -> None:
        """Load new models and indexes."""
        for name, slot in self.slots.items():
            try:
                is_new = slot.check()
                if is_new:
                    self.counters.reloads.labels(name).inc()
                    _log.info(
                        "%s: serving %s from %s", name, slot.loaded().name, slot.path
                    )
                elif is_new is not None:
                    self.counters.rejected.labels(name).inc()
            except Exception:  # a defect must not stop the watch
                _log.exception("%s: %s cannot be loaded", name, slot.path)

    def answers(
        self, variant: Variant | None = None, user: Id | None = None
    ) -> Answers:
        """Return the answers of a model: of the variant, of the user's variant, or of model a.

        Raises
        ------
        ProblemError
            If there is no such model, or it is not loaded yet.
        """
        if not self.models:
            raise ProblemError(
                "not-available", "The service has an index of documents alone."
            )
        chosen = variant or self.variant(user) or "a"
        if chosen not in self.models:
            raise ProblemError(
                "invalid-request", "The service has one model, and no variant b."
            )
        return self.models[chosen].loaded()

    def variant(self, user: Id | None) -> Variant | None:
        """Return the variant of a user in an A/B test; None without a test or a user."""
        if "b" not in self.models or user is None:
            return None
        return variant_of(user, self.settings.share)

    def search(self) -> IndexAnswers:
        """Return the answers of the index.

        Raises
        ------
        ProblemError
            If there is none, or it is not loaded yet.
        """
        if self.index is None:
            raise ProblemError(
                "not-available", "The service has no index of documents (--index)."
            )
        return self.index.loaded()

    async def run(self, function: Callable[..., T], *args: Any) -> T:
        """Call a function in a thread, within the time limit of a request.

        Raises
        ------
        ProblemError
            If too many requests are waiting, or the time limit is exceeded.
        """
        if self._pending >= self.limits.waiting:
            raise ProblemError(
                "busy", f"{self._pending} requests wait for an answer; try again."
            )
        self._pending += 1

        def alone() -> T:
            with kernels.at_most(1):  # requests already run in parallel
                return function(*args)

        def finished(work: asyncio.Future[T]) -> None:
            self._pending -= 1
            if not work.cancelled():
                work.exception()  # retrieve it, so that asyncio does not log it after a timeout

        work = asyncio.get_running_loop().run_in_executor(self._pool, alone)
        work.add_done_callback(finished)
        try:
            return await asyncio.wait_for(asyncio.shield(work), self.limits.seconds)
        except TimeoutError:
            work.cancel()
            seconds = f"{self.limits.seconds:g} seconds"
            raise ProblemError(
                "timeout", f"The answer took more than {seconds}."
            ) from None

    def recorded(self, answers: list[Json], variant: Variant | None) -> list[Json]:
        """Log lists of recommendations, and return them with the variant of an A/B test."""
        for each in answers:
            if "b" in self.models:
                each["variant"] = variant or self.variant(each["user"]) or "a"
            if each["policy"] == "popular":
                self.counters.unknown_users.inc()
            if self.log is not None:
                self.log.add(msgspec.json.encode(each))
        return answers

    async def store(self, events: list[Json]) -> None:
        """Write events, and return when they are on disk.

        Raises
        ------
        ProblemError
            If there is no log of events, or it cannot be written.
        """
        if self.events is None:
            raise ProblemError(
                "not-available", "The service stores no events (--events FILE)."
            )
        await self.events.store(
            b"".join(msgspec.json.encode(each) + b"\n" for each in events)
        )
        self.counters.events.inc(len(events))

    def check_n(self, n: int) -> int:
        """Check the length of a list, and return it.

        Raises
        ------
        ProblemError
            If it is above the limit.
        """
        if not 1 <= n <= self.limits.items:
            expected = f"n must be between 1 and {self.limits.items:,}"
            raise ProblemError("invalid-request", f"{expected}; got {n}.")
        return n

    def check_batch(self, size: int, noun: str, n: int = 1) -> None:
        """Check the size of a batch, with n items for each element.

        Raises
        ------
        ProblemError
            If it is empty, or above the limit.
        """
        if not 1 <= size <= self.limits.batch:
            expected = f"A request must have 1 to {self.limits.batch:,} {noun}"
            raise ProblemError("invalid-request", f"{expected}; got {size:,}.")
        if size * n > _ROWS:
            expected = f"A request must be for at most {_ROWS:,} items in total"
            raise ProblemError(
                "invalid-request", f"{expected}; got {size:,} times {n:,}."
            )

    def readiness(self) -> Json:
        """Return whether requests are answered, and why newer models were rejected."""
        loaded = {name: slot.current for name, slot in self.slots.items()}
        return {
            "status": "ready" if self.is_ready else "loading",
            "models": {
                k: None if each is None else each.name for k, each in loaded.items()
            },
            "rejected": {
                k: slot.rejected for k, slot in self.slots.items() if slot.rejected
            },
        }


def variant_of(user: Id, share: float) -> Variant:
    """Return the variant of a user, always the same: b for a share of all users, else a.

    Examples
    --------
    >>> sum(variant_of(user, 0.1) == "b" for user in range(10_000))
    1029
    """
    digest = blake2b(str(user).encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return "b" if int.from_bytes(digest) < share * 2**64 else "a"


class Counters:
    """Counters of one process, or of all workers if they share a directory."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._registry = CollectorRegistry()
        own: dict[str, Any] = {"namespace": "recsys", "registry": self._registry}
        self._requests = Histogram(
            "request_seconds",
            "Time of requests, by route and status.",
            ("route", "status"),
            buckets=_SECONDS,
            **own,
        )
        self._children: dict[tuple[str, int], Any] = {}
        self.unknown_users = Counter(
            "unknown_users", "Requests for users without ratings.", **own
        )
        self.events = Counter("events_stored", "Events that are on the disk.", **own)
        self.lost = Counter(
            "log_lines_lost", "Recommendations that could not be logged.", **own
        )
        self.reloads = Counter("reloads", "Models that were loaded.", ("slot",), **own)
        self.rejected = Counter(
            "reload_failures", "Models that were rejected.", ("slot",), **own
        )
        self._age = Gauge(
            "model_age_seconds",
            "Since the fit.",
            ("slot",),
            multiprocess_mode="max",
            **own,
        )

    def observe(self, route: str, status: int, seconds: float) -> None:
        """Count a request; the route is empty if none matches."""
        child = self._children.get((route, status))
        if child is None:
            child = self._children[route, status] = self._requests.labels(
                route, str(status)
            )
        child.observe(seconds)

    def page(self) -> bytes:
        """Return the metrics in the text format of Prometheus."""
        for name, slot in self._service.slots.items():
            created = getattr(slot.current, "manifest", {}).get("created")
            if created is not None:
                age = time.time() - datetime.fromisoformat(created).timestamp()
                self._age.labels(name).set(age)
        if SHARED not in os.environ:
            return generate_latest(self._registry)
        everybody = CollectorRegistry()
        MultiProcessCollector(everybody)  # type: ignore[no-untyped-call]
        return generate_latest(everybody)


class Slot(Generic[T]):
    """Slot for a saved model, or index, that may be replaced at any time.

    `check` loads a directory that was renamed to the path, or that a moved link points to. Requests
    in progress keep the old model. If the new one cannot be loaded, it is rejected and the old one
    is kept, until anything in the directory changes. The path is resolved at every check; `load`
    takes the real path and returns the object to serve. After the first check, a model is loaded in
    another process before, with `trial`: if it crashes, the model is rejected as well.

    Attributes
    ----------
    current : object or None
        Served object; None before the first success.
    rejected : str or None
        Reason for which the model at the path is not served, without folders: anybody may read it.
    """

    def __init__(
        self, path: str, load: Callable[[Path], T], trial: Trial | None = None
    ) -> None:
        self.path = path
        self._load = load
        self._trial = trial
        self.current: T | None = None
        self.rejected: str | None = None
        self._is_running = False
        self._signature: Signature | None = None
        self._contents: Contents = ()
        self._try_again_at = math.inf

    def loaded(self) -> T:
        """Return the served object.

        Raises
        ------
        ProblemError
            If none is loaded yet.
        """
        if self.current is None:
            reason = self.rejected or f"{Path(self.path).name} is being loaded."
            raise ProblemError("not-ready", reason)
        return self.current

    def check(self) -> bool | None:
        """Load a new model from the path; return whether it is served, None if there is none.

        Only one thread at a time may call it.
        """
        while self._has_changed():
            signature, contents = _signature(self.path), _contents(self.path)
            try:
                loaded = self._loaded_from(Path(os.path.realpath(resolved(self.path))))
            except (RecsysError, OSError, MemoryError) as error:
                if (
                    signature is None
                    and self.current is not None
                    and self.rejected is None
                ):
                    time.sleep(
                        0.1
                    )  # the path may be missing for a moment between two renames
                if _signature(self.path) != signature:  # replaced meanwhile
                    continue
                self._reject(error, signature, contents)
                return False
            self._is_running = True
            self._signature, self.current, self.rejected = signature, loaded, None
            return True
        return None

    def stop(self) -> None:
        """End a load in another process."""
        if self._trial is not None:
            self._trial.stop()

    def _has_changed(self) -> bool:
        """Return whether to load what is at the path."""
        if not self._is_running or _signature(self.path) != self._signature:
            return True
        if self.rejected is None:
            return False
        return (
            _contents(self.path) != self._contents
            or time.monotonic() > self._try_again_at
        )

    def _loaded_from(self, path: Path) -> T:
        trial = (
            self._trial if self._is_running and (path / MANIFEST).is_file() else None
        )
        if trial is not None and not trial.check(path):
            _log.warning(
                "%s is loaded without a trial: no other process can be started.", path
            )
        return self._load(path)

    def _reject(
        self, error: Exception, signature: Signature | None, contents: Contents
    ) -> None:
        """Keep the served model, and remember what was at the path."""
        reason = without_folders(str(error), self.path)
        if reason != self.rejected or signature != self._signature:
            served = "is not served" if self.current is None else "is served as before"
            _log.error("%s %s %s until it is replaced.", error, self.path, served)
        # A full memory or a broken mount may be over, though no file has changed.
        is_of_system = isinstance(error.__cause__ or error, OSError | MemoryError)
        self._try_again_at = time.monotonic() + _PATIENCE if is_of_system else math.inf
        self._is_running = True
        self._signature, self._contents, self.rejected = signature, contents, reason


def without_folders(sentence: str, path: str) -> str:
    """Return a sentence with the names of files and folders, but not where they are.

    Examples
    --------
    >>> without_folders("There is no saved model in /srv/my shop/latest.", "/srv/my shop/latest")
    'There is no saved model in latest.'
    >>> without_folders("Permission denied: '/srv/model.json'", "models/latest")
    "Permission denied: 'model.json'"
    """
    real = os.path.realpath(resolved(path))
    for place in sorted(
        {path, str(Path(path).absolute()), real}, key=len, reverse=True
    ):
        sentence = sentence.replace(place, Path(place).name or place)
    return _FOLDERS.sub("", sentence)


def _signature(path: str) -> Signature | None:
    """Return a signature that changes when a saved directory is replaced, None if missing."""
    real = os.path.realpath(resolved(path))
    try:
        status = (Path(real) / MANIFEST).stat()
    except OSError:
        return None
    return real, status.st_ino, status.st_mtime_ns, status.st_size


def _contents(path: str) -> Contents:
    """Return a signature that changes with anything in a saved directory, its rights included."""
    entries: list[tuple[str, int, int, int, int]] = []
    folders = [os.path.realpath(resolved(path))]
    for folder in folders:
        try:
            with os.scandir(folder) as listed:
                for entry in listed:
                    status = entry.stat(follow_symlinks=False)
                    times = status.st_mtime_ns, status.st_ctime_ns
                    entries.append((entry.path, status.st_ino, status.st_size, *times))
                    if entry.is_dir(follow_symlinks=False):
                        folders.append(entry.path)
        except OSError:
            continue
    return tuple(sorted(entries))


def load_answers(path: Path) -> Answers:
    """Load and verify a saved model."""
    recommender, manifest = _of_one_directory(
        path, lambda: Recommender.load(path, verify=True)
    )
    answers = Answers(
        recommender, f"{recommender.model.name}@{_mark(manifest)}", manifest
    )
    answers.warm()
    return answers


def load_search(path: Path) -> IndexAnswers:
    """Load and verify a saved index."""
    from recsys.lsi.index import Index

    index, manifest = _of_one_directory(path, lambda: Index.load(path, verify=True))
    return IndexAnswers(index, f"lsi@{_mark(manifest)}")


def _of_one_directory(path: Path, load: Callable[[], T]) -> tuple[T, Json]:
    """Return what `load` loads, and the contents of model.json, which stay the same meanwhile."""
    for _ in range(_ATTEMPTS):
        before = _signature(str(path))
        loaded, manifest = load(), _manifest(path)
        if before == _signature(str(path)):
            return loaded, manifest
    raise ModelFileError(f"{path} cannot be served: it is replaced again and again.")


def _mark(manifest: Json) -> str:
    """Return the beginning of the checksum of model.json."""
    return str(manifest.get("checksum", ""))[:8]


def _manifest(path: Path) -> Json:
    """Return the contents of model.json."""
    try:
        return schema.read_document(path / MANIFEST)
    except (OSError, DamageError) as error:
        raise ModelFileError(f"{path} cannot be served: {error}.") from None


@dataclass(frozen=True, slots=True)
class IndexAnswers:
    """Answers of one saved index of documents; they contain its name."""

    index: Index
    name: str

    def search(self, query: str, n: int) -> Json:
        """Return the n documents that match a query best."""
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            frame = self.index.query(query, n)
        notes = [str(warning.message) for warning in caught]
        documents = frame.to_dicts()
        for row in documents:
            row["document"] = str(row["document"])
        return {
            "query": query,
            "documents": documents,
            "notes": notes,
            "model": self.name,
        }
