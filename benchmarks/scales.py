"""Principal components of tables with columns of very different units, against LAPACK.

Random tables have indicators, ages, years, salaries, prices, ids and Unix times next to each other.
The singular values of PCA, and the standard deviations of whitened scores, are compared with those
of LAPACK in float64 of the same numbers, for a random number of components. The tolerance is 1e-3
in float32, and in float64 the larger of 1e-8 and 100 eps s[0] / s[i].

Usage: python benchmarks/scales.py [--tables N]
"""

from __future__ import annotations

import argparse
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from measuring import machine, table
from scipy import sparse

from lowrank import PCA, RowBlocks, kernels

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))
from mixed_tables import exact_values, mixed_table

CONTAINERS: dict[str, Callable[[np.ndarray], Any]] = {
    "dense": np.asarray,
    "CSR": sparse.csr_array,
    "row blocks": lambda X: RowBlocks.from_array(X, rows=200),
}
HEADERS = [
    *(
        "dtype",
        "container",
        "tables",
        "largest s[0]/s[i]",
        "error of values",
        "of tolerance",
    ),
    *("error of deviations", "values taken for rounding", "warnings"),
]
_ROUNDING = 4  # share of LAPACK's largest value, in epsilons, below which its values are rounding


class Worst:
    """The largest errors over tables, of one type and container."""

    def __init__(self) -> None:
        self.tables = self.dropped = self.warnings = 0
        self.ratio = self.error = self.share = self.deviation = 0.0

    def add(
        self, X: np.ndarray, container: Callable[[np.ndarray], Any], k: int
    ) -> None:
        """Fit one table, and compare."""
        s = exact_values(X)[:k]
        samples = container(X)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            pca = PCA(k, center="exact", whiten=True, random_state=0).fit(samples)
        self.warnings += len(caught)
        values = pca.singular_values_.astype(np.float64)
        eps = float(np.finfo(np.float64).eps)
        compared = s > _ROUNDING * eps * s[0]
        errors = np.abs(values[compared] / s[compared] - 1)
        ratios = s[0] / s[compared]
        tolerance = np.full(errors.size, 1e-3)
        if X.dtype == np.float64:
            tolerance = np.maximum(1e-8, 100 * eps * ratios)
        deviations = pca.transform(samples).std(axis=0, ddof=1, dtype=np.float64)
        is_kept = deviations > 0
        self.tables += 1
        self.dropped += int(np.count_nonzero(~is_kept))
        self.ratio = max(self.ratio, float(ratios.max()))
        self.error = max(self.error, float(errors.max()))
        self.share = max(self.share, float((errors / tolerance).max()))
        self.deviation = max(
            self.deviation, float(np.abs(deviations[is_kept] - 1).max(initial=0))
        )

    def row(self, dtype: str, container: str) -> list[str]:
        """Return the row of the printed table."""
        return [
            *(
                dtype,
                container,
                str(self.tables),
                f"{self.ratio:.0e}",
                f"{self.error:.1e}",
            ),
            *(
                f"{self.share:.1%}",
                f"{self.deviation:.1e}",
                str(self.dropped),
                str(self.warnings),
            ),
        ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tables", type=int, default=400)
    arguments = parser.parse_args()
    worst = {
        (dtype, name): Worst()
        for dtype in ("float32", "float64")
        for name in CONTAINERS
    }
    for seed in range(arguments.tables):
        X, _ = mixed_table(seed)
        k = int(np.random.default_rng(seed).integers(1, min(X.shape) + 1))
        for (dtype, name), errors in worst.items():
            errors.add(X.astype(dtype), CONTAINERS[name], k)
        if (seed + 1) % 50 == 0:
            print(f"{seed + 1} tables", file=sys.stderr, flush=True)
    rows = [errors.row(dtype, name) for (dtype, name), errors in worst.items()]
    print(f"\n{machine()}; kernels: {kernels.backend()}\n")
    print(table(HEADERS, rows))


if __name__ == "__main__":
    main()
