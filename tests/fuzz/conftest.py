"""How many inputs are tried, and the count of those that were."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator

import pytest
from hypothesis import HealthCheck, settings


@pytest.fixture
def budget() -> Callable[[int], settings]:
    """Settings for so many inputs, or as many as RECSYS_FUZZ_EXAMPLES says.

    In the long profile, they are ten times as many.
    """

    def of(ordinary: int) -> settings:
        if os.environ.get("HYPOTHESIS_PROFILE") == "long":
            ordinary *= 10
        wanted = int(os.environ.get("RECSYS_FUZZ_EXAMPLES", ordinary))
        checks = [HealthCheck.too_slow, HealthCheck.function_scoped_fixture]
        return settings(
            max_examples=wanted,
            deadline=None,
            suppress_health_check=checks,
            database=None,
        )

    return of


@pytest.fixture
def fuzz_count(request: pytest.FixtureRequest) -> Iterator[Counter[str]]:
    """What came of the inputs; the totals are printed at the end (seen with `pytest -s`)."""
    count: Counter[str] = Counter()
    yield count
    print(f"\n{request.node.name}: {count.total():,} inputs, {dict(count)}")
