"""Counts of requests, models and events, for Prometheus."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from datetime import datetime
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


class Counters:
    """Counters of one process, or of all workers if they share a directory."""

    def __init__(
        self, slots: Mapping[str, Slot[Any]], tables: Mapping[str, LiveTable]
    ) -> None:
        self._slots = slots
        self._tables = tables
        self._registry = CollectorRegistry()
        self._requests = Histogram(
            "recsys_request_seconds",
            "Time of requests, by route and status.",
            ("route", "status"),
            buckets=_SECONDS,
            registry=self._registry,
        )
        # Finding a child by its labels would take as long as counting.
        self._children: dict[tuple[str, int], Any] = {}
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
        self._age = self._gauge("model_age_seconds", "Since the fit.")
        if tables:
            self._table_age = self._gauge(
                "item_table_age_seconds", "Since the table of items was read."
            )
        self.table_failures = self._counter(
            "item_table_failures", "Tables of items that could not be read.", "slot"
        )

    def _counter(self, name: str, description: str, *labels: str) -> Counter:
        return Counter(f"recsys_{name}", description, labels, registry=self._registry)

    def _gauge(self, name: str, description: str) -> Gauge:
        return Gauge(
            f"recsys_{name}",
            description,
            ("slot",),
            multiprocess_mode="mostrecent",  # not of a worker that has ended
            registry=self._registry,
        )

    def observe(self, route: str, status: int, seconds: float) -> None:
        """Count a request; the route is empty if none matches."""
        child = self._children.get((route, status))
        if child is None:
            child = self._requests.labels(route, str(status))
            self._children[route, status] = child
        child.observe(seconds)

    def page(self) -> bytes:
        """Return the metrics in the text format of Prometheus."""
        for name, slot in self._slots.items():
            created = getattr(slot.current, "manifest", {}).get("created")
            if created is not None:
                age = time.time() - datetime.fromisoformat(created).timestamp()
                self._age.labels(name).set(age)
        for name, table in self._tables.items():
            if table.read_time is not None:
                age = time.time() - table.read_time
                self._table_age.labels(name).set(age)
        # Workers write their counters to files, which are summed here.
        if SHARED not in os.environ:
            return generate_latest(self._registry)
        all_workers = CollectorRegistry()
        MultiProcessCollector(all_workers)  # type: ignore[no-untyped-call]
        return generate_latest(all_workers)
