"""Counters of requests, models and events, as Prometheus reads them."""

from __future__ import annotations

import os
import time
from datetime import datetime
from typing import TYPE_CHECKING, Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.multiprocess import MultiProcessCollector

from recsys.serve.settings import SHARED  # which counts when prometheus_client is imported

if TYPE_CHECKING:
    from recsys.serve.service import Service

MEDIA_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_SECONDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0, 5.0)


class Counters:
    """Counters of one process, or of all workers where they share a directory.

    Parameters
    ----------
    service : Service
    """

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
        self.unknown_users = Counter("unknown_users", "Requests for users without ratings.", **own)
        self.events = Counter("events_stored", "Events that are on the disk.", **own)
        self.lost = Counter("log_lines_lost", "Recommendations that could not be logged.", **own)
        self.reloads = Counter("reloads", "Models that were loaded.", ("slot",), **own)
        self.rejected = Counter("reload_failures", "Models that were rejected.", ("slot",), **own)
        self._age = Gauge(
            "model_age_seconds", "Since the fit.", ("slot",), multiprocess_mode="max", **own
        )

    def observe(self, route: str, status: int, seconds: float) -> None:
        """Count a request; one that no route takes has an empty route."""
        child = self._children.get((route, status))
        if child is None:
            child = self._children[route, status] = self._requests.labels(route, str(status))
        child.observe(seconds)

    def page(self) -> bytes:
        """Return the page that Prometheus reads."""
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
