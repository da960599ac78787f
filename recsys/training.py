"""The summary of a fit, which is kept and saved with the model."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from recsys.models.base import Floats, Step

if TYPE_CHECKING:
    from collections.abc import Mapping

    from recsys.ratings import Ratings

__all__ = ["clip_to_range", "summarise"]


def summarise(ratings: Ratings, seconds: float, last: Step | None) -> dict[str, Any]:
    """Return what to remember of a fit, as JSON can hold it.

    Parameters
    ----------
    ratings : Ratings
        What the model was fitted to.
    seconds : float
        How long it took.
    last : Step or None
        The last sweep of an iterative model.
    """
    explicit = not ratings.implicit
    return {
        "users": ratings.n_users,
        "items": ratings.n_items,
        "ratings": ratings.n_ratings,
        "implicit": ratings.implicit,
        "rating_min": float(ratings.values.min()) if explicit else None,
        "rating_max": float(ratings.values.max()) if explicit else None,
        "seconds": round(seconds, 3),
        "sweeps": last.step if last else None,
        "train_rmse": last.train_rmse if last else None,
        "validation_rmse": last.validation_rmse if last else None,
    }


def clip_to_range(predicted: Floats, training: Mapping[str, Any]) -> Floats:
    """Clip predictions to the range of the training ratings; implicit feedback has none."""
    if training["implicit"]:
        return predicted
    return np.clip(predicted, training["rating_min"], training["rating_max"])
