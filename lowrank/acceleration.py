"""Anderson's acceleration of fixed-point iterations."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from lowrank.kernels.arrays import epsilon

if TYPE_CHECKING:
    from lowrank.operators import FloatArray

_HISTORY = 10  # number of earlier points that are combined
_HISTORY_NUMBERS = 1 << 26  # at most so many numbers: half a gigabyte in float64
_FARTHEST = 10.0  # largest norm of a combined point, in norms of the last image


class Acceleration:
    """Anderson's acceleration of ``point -> image``, which starts again if it fails.

    The next point combines the last images so that their changes would cancel, if the
    map were linear. If a combined point has a worse value than earlier ones, the
    iteration goes on from the image of the best point.

    References
    ----------
    Walker & Ni (2011), "Anderson acceleration for fixed-point iterations".
    """

    best_image: FloatArray

    def __init__(
        self,
        size: int,
        growth: float,
    ) -> None:
        """Take the size of a point, and the growth of values above which a point fails."""
        self._length = min(_HISTORY, _HISTORY_NUMBERS // max(1, 2 * size))
        self._growth = growth
        self._failures = 0
        self.restart()

    def restart(self) -> None:
        """Forget the earlier points."""
        self._images: list[FloatArray] = []
        self._changes: list[FloatArray] = []
        self._best_value = math.inf
        # Steps before the next combination: more, the more often one has failed.
        self._plain_steps = self._failures

    def accepts(
        self,
        point: FloatArray,
        image: FloatArray,
        value: float,
    ) -> bool:
        """Record a point, its image and value; return False if the value is worse than before."""
        if not value <= self._growth * self._best_value:
            self._failures += 1
            self.restart()
            return False
        if value <= self._best_value:
            self._best_value = value
            self.best_image = image
        self._images.append(image)
        self._changes.append(image - point)
        if len(self._images) > self._length + 1:
            del self._images[0], self._changes[0]
        return True

    def next_point(self) -> FloatArray:
        """Return the point after the last one that was recorded."""
        image = self._images[-1]
        change = self._changes[-1]
        self._plain_steps -= 1
        if len(self._images) < 2 or self._plain_steps > 0:
            return image
        differences = np.stack(
            [(earlier - change).ravel() for earlier in self._changes[:-1]]
        )
        gram = (differences @ differences.T).astype(np.float64)
        eps = epsilon(image.dtype)
        trace = float(np.trace(gram))
        length = float(np.linalg.norm(image))
        if trace <= len(gram) * (eps * length) ** 2:  # mere rounding
            return image
        gram[np.diag_indices_from(gram)] += math.sqrt(eps) / 100 * trace
        weights = np.linalg.solve(gram, differences @ change.ravel())
        combined = image.copy()
        for weight, earlier in zip(weights, self._images[:-1], strict=True):
            combined -= image.dtype.type(weight) * (earlier - image)
        if not np.linalg.norm(combined) <= _FARTHEST * length:
            return image
        return combined
