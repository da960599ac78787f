"""Shares of models in a sum of scores, chosen on held-out items."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from recsys.models.parts import Floats

LEAST_SIZE = 1e-9  # of scores that are scaled to a mean maximum of 1
_CHANGES = (0.0, 0.25, 0.5, 2.0, 4.0)  # of a part's share, tried in turn
_ROUNDS = 2
_LENGTH = 20  # of the lists in which shares are judged


def best_shares(
    parts: Sequence[Floats],
    is_seen: NDArray[np.bool_],
    targets: NDArray[np.int32],
) -> list[float]:
    """Return the shares of parts that rank the targets best, changed one at a time.

    A target competes with the items that are not in the history, and with all items if it
    is in the history itself. Where some targets are, lists with seen items count half.
    """
    users = np.arange(len(targets))
    is_repeat = is_seen[users, targets]
    left_out = [is_seen & ~is_repeat[:, None]]
    if is_repeat.any():
        left_out.append(np.zeros_like(is_seen))

    def gain(shares: Sequence[float]) -> float:
        """Return the mean discounted gain of the targets in lists of 20."""
        scores = np.zeros_like(parts[0])
        for share, of_part in zip(shares, parts, strict=True):
            scores += np.float32(share) * of_part
        of_targets = scores[users, targets][:, None]
        is_better = scores > of_targets
        is_equal = scores == of_targets
        means = []
        for items in left_out:
            n_better = np.count_nonzero(is_better & ~items, axis=1)
            n_equal = np.count_nonzero(is_equal & ~items, axis=1) - 1
            ranks = n_better + n_equal / 2
            gains = 1 / np.log2(2 + ranks)
            gains[ranks >= _LENGTH] = 0
            means.append(gains.mean())
        return float(np.mean(means))

    # The parts have other scales: the regressions estimate chances, and EASE does not.
    sizes = [float(part.max(axis=1).mean()) for part in parts]
    best = [1 / max(size, LEAST_SIZE) for size in sizes]
    best_gain = gain(best)
    for _ in range(_ROUNDS):
        for at in range(len(parts)):
            present = best[at]
            for change in _CHANGES:
                tried = best.copy()
                tried[at] = present * change
                tried_gain = gain(tried) if any(tried) else 0.0
                if tried_gain > best_gain:
                    best = tried
                    best_gain = tried_gain
    return best
