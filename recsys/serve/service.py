"""Service behind the routes: models in slots, limits, worker threads."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from hashlib import blake2b
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, TypeAlias, TypeVar

import msgspec

from lowrank import kernels
from recsys.errors import DataError
from recsys.ranking.lists import ListOptions
from recsys.saving.model_file import INDEX_FORMAT, format_of
from recsys.serve.access import Access
from recsys.serve.catalogue import Id, Json
from recsys.serve.deadline import call_until
from recsys.serve.event_log import LineLog
from recsys.serve.live_table import LiveTable
from recsys.serve.loading import (
    IndexResponses,
    Pairs,
    load_pairs,
    load_responses,
    load_search,
)
from recsys.serve.metrics import Counters, Metrics
from recsys.serve.problems import ProblemError
from recsys.serve.responses import Responses
from recsys.serve.settings import Settings
from recsys.serve.slots import Slot
from recsys.serve.trial import Trial
from recsys.serve.visitors import RecentEvents

T = TypeVar("T")
Variant: TypeAlias = Literal["a", "b"]

_MAX_ROWS = 100_000  # items in all lists of a request: some 20 MB
_LOG_DELAY = 0.5  # seconds after which recommendations are written to the log
_THREADS = 2  # few suffice, since most of the work is compiled code
_log = logging.getLogger("recsys.serve")


class Service:
    """Models, index and settings of one process; an index can be served without models.

    Attributes
    ----------
    group : mapping of str to Service
        Services of several models by their names; this one then has no model.
    """

    def __init__(
        self,
        settings: Settings,
        metrics: Metrics | None = None,
        name: str = "",
        group: Mapping[str, Service] = MappingProxyType({}),
    ) -> None:
        self.settings = settings
        self.group = group
        self._prefix = f"{name}/" if name else ""  # of slots in the log
        self.limits = settings.limits
        self.access = Access(settings)
        has_model = not group and _check_formats(settings)
        self.models: dict[Variant, Slot[Responses]] = {}
        self.tables: dict[str, LiveTable] = {}
        if has_model:
            self.models["a"] = self._slot("a", settings.model)
        if settings.model_b is not None:
            self.models["b"] = self._slot("b", settings.model_b)
        self.index: Slot[IndexResponses] | None = None
        index = settings.index if has_model or group else settings.model
        if index is not None:
            self.index = Slot(index, load_search, Trial())
        self.pairs: Slot[Pairs] | None = None
        if (together := settings.together) is not None:
            self.pairs = Slot(together, lambda _: load_pairs(together))
        self.slots: dict[str, Slot[Any]] = {
            f"model_{variant}": slot for variant, slot in self.models.items()
        }
        if self.index is not None:
            self.slots["index"] = self.index
        if self.pairs is not None:
            self.slots["together"] = self.pairs
        self.counters = Counters(self.slots, self.tables, metrics, name)
        self.events: LineLog | None = None
        self.visitors: RecentEvents | None = None
        # Acknowledged events must survive a loss of power, lists need not.
        if settings.events is not None:
            self.events = LineLog(settings.events, durable=True)
            self.visitors = RecentEvents(settings.events)
        self.log: LineLog | None = None
        if settings.log is not None:
            self.log = LineLog(
                settings.log,
                durable=False,
                delay=_LOG_DELAY,
                on_loss=self.counters.lost.inc,
            )
        self._pool = ThreadPoolExecutor(_THREADS, "recsys-answer")
        # One thread, since only one may call `Slot.check`.
        self._loader = ThreadPoolExecutor(1, "recsys-load")
        self._n_pending = 0
        self._watch: asyncio.Task[None] | None = None

    def _slot(self, variant: Variant, path: str) -> Slot[Responses]:
        """Return the slot of a model, with a table of its own that is read again and again."""
        settings = self.settings
        if settings.item_table is None:

            def load(path: Path) -> Responses:
                responses = load_responses(path, settings.conditions)
                responses.check_conditions(slot.current)
                return responses

            slot = Slot(path, load, Trial())
            return slot
        name = f"model_{variant}"
        table = LiveTable(
            settings.item_table,
            settings.refresh,
            settings.conditions,
            lambda: self.counters.table_failed(name),
        )
        self.tables[name] = table
        return Slot(path, table.load, Trial(self._refresh_all))

    @property
    def is_ready(self) -> bool:
        """Return whether everything is loaded."""
        is_loaded = all(slot.current is not None for slot in self.slots.values())
        return is_loaded and all(part.is_ready for part in self.group.values())

    async def start(self) -> None:
        """Start loading, and watching for replacements."""
        for part in self.group.values():
            await part.start()
        if self.settings.load_first:
            await asyncio.get_running_loop().run_in_executor(self._loader, self.check)
        self._watch = asyncio.create_task(self._check_regularly())

    async def stop(self) -> None:
        """Stop all work, and write the remaining lines of the logs."""
        for part in self.group.values():
            await part.stop()
        # A trial load in progress would delay the end by minutes.
        for slot in self.slots.values():
            slot.stop()
        if self._watch is not None:
            self._watch.cancel()
            with suppress(asyncio.CancelledError):
                await self._watch
        for log in (self.events, self.log):
            if log is not None:
                await asyncio.to_thread(log.close)
        self._loader.shutdown(wait=False, cancel_futures=True)
        self._pool.shutdown(wait=False, cancel_futures=True)

    async def _check_regularly(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await loop.run_in_executor(self._loader, self.check)
            await asyncio.sleep(self.settings.check_seconds)

    def check(self) -> None:
        """Load new models and indexes, and read tables again."""
        for name, slot in self.slots.items():
            try:
                is_new = slot.check()
                # None means that nothing has changed at the path.
                if is_new:
                    self.counters.loaded(name, is_served=True)
                    _log.info(
                        "%s: serving %s from %s",
                        f"{self._prefix}{name}",
                        slot.loaded().name,
                        slot.path,
                    )
                    self._log_unusable(name, slot)
                elif is_new is not None:
                    self.counters.loaded(name, is_served=False)
                if name in self.tables:
                    self._refresh(name, slot)
            except Exception:  # a defect must not stop the watch
                _log.exception("%s: %s cannot be loaded", name, slot.path)

    def _log_unusable(self, name: str, slot: Slot[Any]) -> None:
        """Log the conditions that requests to a new model cannot use."""
        for reason in getattr(slot.current, "unusable", {}).values():
            _log.error("%s: %s", f"{self._prefix}{name}", reason)

    def _refresh_all(self) -> None:
        """Serve all models with their tables as they are now."""
        # A trial load of a large model takes longer than a refresh.
        for name in self.tables:
            self._refresh(name, self.slots[name])

    def _refresh(self, name: str, slot: Slot[Responses]) -> None:
        """Serve a model with its table as it is now, if that is due."""
        renewed = self.tables[name].refreshed()
        # Requests in progress keep the responses that they have begun with.
        if renewed is not None:
            slot.current = renewed

    def answers(
        self, variant: Variant | None = None, user: Id | None = None
    ) -> Responses:
        """Return the responses of a model: of the variant, or of the user's, or of model a.

        Raises
        ------
        ProblemError
            If there is no such model, or it is not loaded yet.
        """
        if self.group:
            sentence = "There are several models: ask below /v1/models/NAME/ (see GET /v1/models)."
            raise ProblemError("not-available", sentence)
        if not self.models:
            raise ProblemError(
                "not-available", "This service serves only a document index."
            )
        chosen = variant or self.variant(user) or "a"
        if chosen not in self.models:
            sentence = "The service has one model, and no variant b."
            raise ProblemError("invalid-request", sentence)
        return self.models[chosen].loaded()

    def variant(self, user: Id | None) -> Variant | None:
        """Return the variant of a user in an A/B test; None without a test or a user."""
        if "b" not in self.models or user is None:
            return None
        return variant_of(user, self.settings.share)

    def search(self) -> IndexResponses:
        """Return the responses of the index.

        Raises
        ------
        ProblemError
            If there is none, or it is not loaded yet.
        """
        if self.group:
            self.answers()  # raises
        if self.index is None:
            sentence = "The service has no index of documents (--index)."
            raise ProblemError("not-available", sentence)
        return self.index.loaded()

    def together(
        self,
        item: Id,
        n: int,
        options: ListOptions,
    ) -> Json:
        """Return the n items that are most surely bought together with an item.

        Raises
        ------
        ProblemError
            If there is no table of pairs, or it is not loaded yet.
        UnknownIdError
            If neither the table nor the model has the item.
        """
        if self.pairs is None:
            sentence = "The service has no table of pairs (--together TABLE)."
            raise ProblemError("not-available", sentence)
        pairs = self.pairs.loaded()
        answers = self.answers()
        catalogue = answers.catalogue
        answer: Json = {"item": str(item), "title": catalogue.title(item)}
        if str(item) not in pairs.places:
            catalogue.place(item)  # raises if it is unknown
        rows = pairs.rows_of(str(item), len(pairs.frame))
        if options.fill == "popular":
            listed = {str(item), *[row["item"] for row in rows]}
            popular = answers.popular_items(n + len(listed), options)
            rows = [{**row, "source": "model"} for row in rows]
            rows += [row for row in popular if row["item"] not in listed]
        rows = answers.selected(rows, options)[:n]
        for rank, row in enumerate(rows, start=1):
            row["rank"] = rank
            row["title"] = catalogue.title(row["item"]) or row.get("title")
        return {**answer, "items": rows, "model": pairs.name}

    async def run(self, function: Callable[..., T], *args: Any) -> T:
        """Call a function in a thread, within the time limit of a request.

        When the limit is exceeded, the function stops at its next `check_time`.

        Raises
        ------
        ProblemError
            If too many requests are waiting, or the time limit is exceeded.
        """
        # Better a quick rejection than an answer after its time limit.
        if self._n_pending >= self.limits.waiting:
            sentence = f"{self._n_pending} requests wait for an answer; try again."
            raise ProblemError("busy", sentence)
        self._n_pending += 1
        deadline = time.monotonic() + self.limits.seconds

        def call() -> T:
            with kernels.at_most(1):  # requests already run in parallel
                return call_until(deadline, function, *args)

        # Work counts until it ends, also when its answer has timed out.
        def on_end(work: asyncio.Future[T]) -> None:
            self._n_pending -= 1
            if not work.cancelled():
                # Otherwise asyncio logs the error of work that nobody waits for any more.
                work.exception()

        work = asyncio.get_running_loop().run_in_executor(self._pool, call)
        work.add_done_callback(on_end)
        try:
            return await asyncio.wait_for(asyncio.shield(work), self.limits.seconds)
        except TimeoutError:
            work.cancel()
            sentence = f"The answer took more than {self.limits.seconds:g} seconds."
            raise ProblemError("timeout", sentence) from None

    def recorded(self, answers: list[Json], variant: Variant | None) -> list[Json]:
        """Log lists of recommendations, and return them with the variant of an A/B test."""
        for answer in answers:
            # Clicks are compared by the variant in the log.
            if "b" in self.models:
                answer["variant"] = variant or self.variant(answer["user"]) or "a"
            if answer["policy"] == "popular":
                self.counters.unknown_users.inc()
            if self.log is not None:
                self.log.add_with_time(msgspec.json.encode(answer))
        return answers

    async def store(self, events: list[Json]) -> None:
        """Write events, and return when they are on disk.

        Raises
        ------
        ProblemError
            If there is no log of events, or it cannot be written.
        """
        if self.events is None:
            sentence = "The service stores no events (--events FILE)."
            raise ProblemError("not-available", sentence)
        await self.events.store(msgspec.json.Encoder().encode_lines(events))
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

    def check_batch(
        self,
        size: int,
        noun: str,
        n: int = 1,
    ) -> None:
        """Check the size of a batch, with n items for each element.

        Raises
        ------
        ProblemError
            If it is empty, or above the limit.
        """
        if not 1 <= size <= self.limits.batch:
            expected = f"A request must have 1 to {self.limits.batch:,} {noun}"
            raise ProblemError("invalid-request", f"{expected}; got {size:,}.")
        if size * n > _MAX_ROWS:
            expected = f"A request must be for at most {_MAX_ROWS:,} items in total"
            raise ProblemError(
                "invalid-request", f"{expected}; got {size:,} times {n:,}."
            )

    def readiness(self) -> Json:
        """Return whether requests are answered, and why newer models were rejected."""
        facts: Json = {
            "status": "ready" if self.is_ready else "loading",
            "models": {},
            "rejected": {},
        }
        for slot_name, slot in self.slots.items():
            current = slot.current
            facts["models"][slot_name] = None if current is None else current.name
            if slot.rejected:
                facts["rejected"][slot_name] = slot.rejected
            unusable = [*getattr(current, "unusable", ())]
            if unusable:  # the log has the reasons
                facts.setdefault("unusable_conditions", {})[slot_name] = unusable
        if self.tables:
            facts["tables"] = {
                name: table.described() for name, table in self.tables.items()
            }
        for name, part in self.group.items():
            for kind, of_slots in part.readiness().items():
                if kind != "status":
                    named = {f"{name}/{slot}": of_slots[slot] for slot in of_slots}
                    facts.setdefault(kind, {}).update(named)
        return facts


def _check_formats(settings: Settings) -> bool:
    """Check the formats of what is served; return whether the first is a model."""
    if format_of(settings.model) == INDEX_FORMAT:
        others = (
            settings.index,
            settings.model_b,
            settings.together,
            settings.item_table,
        )
        if any(others):
            raise DataError(
                f"{settings.model} is an index of documents, served alone; leave out the "
                "other index, the other model and the table, or name a model first."
            )
        return False
    if settings.index is not None and format_of(settings.index) not in (
        None,
        INDEX_FORMAT,
    ):
        raise DataError(
            f"{settings.index} is a model, not an index of `recsys lsi index`."
        )
    if settings.model_b is not None and format_of(settings.model_b) == INDEX_FORMAT:
        raise DataError(f"{settings.model_b} is an index of documents, not a model.")
    return True


def variant_of(user: Id, share: float) -> Variant:
    """Return the variant of a user, always the same: b for a share of all users, else a.

    Examples
    --------
    >>> sum(variant_of(user, 0.1) == "b" for user in range(10_000))
    1029
    """
    digest = blake2b(str(user).encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return "b" if int.from_bytes(digest) < share * 2**64 else "a"
