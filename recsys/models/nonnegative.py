"""Factors that are not negative: each is a topic, to which users and items belong by weights."""

from __future__ import annotations

import numpy as np

from recsys.models.base import FactorModel, Model
from recsys.models.parts import Floats


def has_topics(model: Model) -> bool:
    """Return whether the factors of a model are not negative, so that each is a topic."""
    if not isinstance(model, FactorModel):
        return False
    return bool(getattr(model, "nonnegative", False))


def strongest_first(factors: Floats) -> Floats:
    """Return factors with their columns in descending order of length."""
    # The strongest topic is the first that a user reads.
    squares = np.square(factors, dtype=np.float64)
    order = np.argsort(
        -squares.sum(axis=0),
        kind="stable",
    )
    return np.ascontiguousarray(factors[:, order])
