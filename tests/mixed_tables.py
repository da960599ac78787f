"""Random tables whose columns have very different units, for tests and benchmarks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.floating[Any]]
Column = Callable[[np.random.Generator, int], Floats]


def _indicator(rng: np.random.Generator, n: int) -> Floats:
    return (rng.random(n) < rng.uniform(0.05, 0.6)).astype(np.float64)


def _unix_time(rng: np.random.Generator, n: int) -> Floats:
    return 1.6e9 + rng.integers(0, int(rng.choice([86_400, 3 * 10**7])), n)


# Columns as people have them; scales from 1e-4 to 1e7.
COLUMNS: dict[str, Column] = {
    "indicator": _indicator,
    "normal": lambda rng, n: rng.normal(0, 10 ** rng.uniform(-4, 3), n),
    "age": lambda rng, n: rng.integers(18, 90, n).astype(np.float64),
    "year": lambda rng, n: 2000.0 + rng.integers(0, 25, n),
    "salary": lambda rng, n: rng.normal(5e4, 2e4, n),
    "price": lambda rng, n: rng.lognormal(rng.uniform(-4, 8), rng.uniform(0.2, 2), n),
    "id": lambda rng, n: rng.integers(1, 10**7, n).astype(np.float64),
    "unix time": _unix_time,
}


def mixed_table(seed: int) -> tuple[Floats, list[str]]:
    """Return a table with 5 to 80 columns, and the kind of each column.

    Half of the columns are indicators or normal; a column in ten is another one with noise.
    """
    rng = np.random.default_rng(seed)
    n, m = int(rng.integers(100, 1500)), int(rng.integers(5, 80))
    common, others = ["indicator", "normal"], list(COLUMNS)
    columns: list[Floats] = []
    kinds: list[str] = []
    for _ in range(m):
        if len(columns) > 2 and rng.random() < 0.1:
            original = columns[int(rng.integers(len(columns)))]
            deviation = original.std() or 1.0
            columns.append(1.2 * original + rng.normal(0, 0.1 * deviation, n))
            kinds.append("copy")
            continue
        kind = str(rng.choice(common if rng.random() < 0.5 else others))
        columns.append(COLUMNS[kind](rng, n))
        kinds.append(kind)
    return np.column_stack(columns), kinds


def exact_values(X: Floats) -> Floats:
    """Return the singular values of the centred table by LAPACK, in float64 of the same numbers."""
    wide = X.astype(np.float64)
    first = wide[0]
    centred = wide - first
    centred -= centred.mean(axis=0)
    values: Floats = np.linalg.svd(centred, compute_uv=False)
    return values
