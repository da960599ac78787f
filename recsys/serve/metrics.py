"""Counts of requests, models and events, for Prometheus."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from datetime import datetime
from types import MappingProxyType
from typing import Any

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    generate_latest,
)
from prometheus_client.multiprocess import MultiProcessCollector

from recsys.serve.live_table import LiveTable
from recsys.serve.settings import SHARED
from recsys.serve.slots import Slot

MEDIA_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_SECONDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0, 5.0)


class Metrics:
    """Metrics of one process, or of all workers if they share a directory.

    Attributes
    ----------
    has_names : bool
        Whether several models are served: then each value has the label "model".
    views : list of Counters
        Values of each model.
    """

    def __init__(self, *, has_names: bool = False) -> None:
        self.has_names = has_names
        self.views: list[Counters] = []
        self._registry = CollectorRegistry()
        self._names = ("model",) if has_names else ()
        self.requests = Histogram(
            "recsys_request_seconds",
            "Time of requests, by route and status.",
            ("route", "status", *self._names),
            buckets=_SECONDS,
            registry=self._registry,
        )
        self.unknown_users = self._counter(
            "unknown_users", "Requests for users without ratings."
        )
        self.events = self._counter("events_stored", "Events that are on the disk.")
        self.lost = self._counter(
            "log_lines_lost", "Recommendations that could not be logged."
        )
        self.reloads = self._counter("reloads", "Models that were loaded.", "slot")
        self.rejected = self._counter(
            "reload_failures", "Models that were rejected.", "slot"
        )
        self.table_failures = self._counter(
            "item_table_failures", "Tables of items that could not be read.", "slot"
        )
        self.age = self._gauge("model_age_seconds", "Since the fit.")
        self.table_age = self._gauge(
            "item_table_age_seconds", "Since the table of items was read."
        )

    def _counter(
        self,
        name: str,
        description: str,
        *labels: str,
    ) -> Counter:
        names = (*labels, *self._names)
        return Counter(f"recsys_{name}", description, names, registry=self._registry)

    def _gauge(self, name: str, description: str) -> Gauge:
        return Gauge(
            f"recsys_{name}",
            description,
            ("slot", *self._names),
            multiprocess_mode="mostrecent",  # not of a worker that has ended
            registry=self._registry,
        )

    def page(self) -> bytes:
        """Return the metrics in the text format of Prometheus."""
        for view in self.views:
            view.set_ages()
        # Workers write their counters to files, which are summed here.
        if SHARED not in os.environ:
            return generate_latest(self._registry)
        all_workers = CollectorRegistry()
        MultiProcessCollector(all_workers)  # type: ignore[no-untyped-call]
        return generate_latest(all_workers)


class Counters:
    """Metrics of one service, with the name of its model if there are several."""

    def __init__(
        self,
        slots: Mapping[str, Slot[Any]],
        tables: Mapping[str, LiveTable] = MappingProxyType({}),
        metrics: Metrics | None = None,
        name: str = "",
    ) -> None:
        metrics = metrics or Metrics()
        self._slots = slots
        self._tables = tables
        self._requests = metrics.requests
        self._table_failures = metrics.table_failures
        self._age = metrics.age
        self._table_age = metrics.table_age
        self.reloads = metrics.reloads
        self.rejected = metrics.rejected
        self.page = metrics.page
        self._name = (name,) if metrics.has_names else ()
        metrics.views.append(self)
        # Finding a child by its labels would take as long as counting.
        self._children: dict[tuple[str, int], Any] = {}
        self.unknown_users = self._own(metrics.unknown_users)
        self.events = self._own(metrics.events)
        self.lost = self._own(metrics.lost)

    def _own(self, counter: Counter) -> Counter:
        return counter.labels(*self._name) if self._name else counter

    def observe(
        self,
        route: str,
        status: int,
        seconds: float,
    ) -> None:
        """Count a request; the route is empty if none matches."""
        child = self._children.get((route, status))
        if child is None:
            child = self._requests.labels(route, str(status), *self._name)
            self._children[route, status] = child
        child.observe(seconds)

    def loaded(self, slot: str, *, is_served: bool) -> None:
        """Count a new model, which is served or rejected."""
        counter = self.reloads if is_served else self.rejected
        counter.labels(slot, *self._name).inc()

    def table_failed(self, slot: str) -> None:
        """Count a table that could not be read."""
        self._table_failures.labels(slot, *self._name).inc()

    def set_ages(self) -> None:
        """Set the ages of models and tables."""
        now = time.time()
        for name, slot in self._slots.items():
            created = getattr(slot.current, "manifest", {}).get("created")
            if created is not None:
                age = now - datetime.fromisoformat(created).timestamp()
                self._age.labels(name, *self._name).set(age)
        for name, table in self._tables.items():
            if table.read_time is not None:
                age = time.monotonic() - table.read_time
                self._table_age.labels(name, *self._name).set(age)
