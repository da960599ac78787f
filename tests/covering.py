"""Parameters of a test in which all of its values meet, fewer than their full product.

A test with the marker `covering` runs on a subset of its parameters in which each
two values of different parameters meet; with `covering(1)`, each value is met once.
HYPOTHESIS_PROFILE=long runs all of them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from itertools import combinations

import pytest


def covering_rows(rows: Sequence[Mapping[str, int]], strength: int) -> list[int]:
    """Return the positions of rows in which all meet that meet in any row.

    What meets is as many values as `strength` says, or all of a row that has fewer.
    """
    meetings = [
        set(combinations(sorted(row.items()), min(strength, len(row)))) for row in rows
    ]
    missing = set().union(*meetings)
    chosen = []
    while missing:
        n_new = [len(meeting & missing) for meeting in meetings]
        best = n_new.index(max(n_new))
        chosen.append(best)
        missing -= meetings[best]
    return sorted(chosen)


def identities(test: pytest.Function) -> dict[str, int]:
    """Return what tells the values of parameters apart, which need not be hashable."""
    if not hasattr(test, "callspec"):  # it has no parameters
        return {}
    return {name: id(value) for name, value in test.callspec.params.items()}


def left_out(items: Sequence[pytest.Item]) -> set[pytest.Item]:
    """Return the tests with the marker `covering` that the long profile alone runs."""
    groups: dict[tuple[str, int], list[pytest.Function]] = defaultdict(list)
    for item in items:
        marker = item.get_closest_marker("covering")
        if marker is not None and isinstance(item, pytest.Function):
            name = item.nodeid.partition("[")[0]
            groups[name, *(marker.args or (2,))].append(item)
    dropped: set[pytest.Item] = set()
    for (_, strength), group in groups.items():
        rows = [identities(item) for item in group]
        chosen = set(covering_rows(rows, strength))
        dropped |= {item for i, item in enumerate(group) if i not in chosen}
    return dropped
