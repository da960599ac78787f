"""What comes after a fit: a look at what was fitted, and the summary that is saved with it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from recsys.errors import DataError
from recsys.models.base import Floats, Model, Step

if TYPE_CHECKING:
    from collections.abc import Mapping

    from recsys.data.ratings import Ratings

__all__ = ["clip_to_range", "require_finite", "summarise"]


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


def require_finite(model: Model) -> None:
    """Refuse a fitted model with a NaN or an infinity, which would recommend nothing or nonsense.

    Raises
    ------
    DataError
        Naming what is not finite.
    """
    for name, array in model._arrays().items():
        if array.dtype.kind != "f":
            continue
        with np.errstate(invalid="ignore"):  # of infinities of either sign
            total = array.sum(dtype=np.float64)  # unlike isfinite, it needs no memory
        if not np.isfinite(total):
            raise DataError(
                f"The fit of {model.name} broke down, with numbers in {name} that are not finite; "
                "choose parameters nearer to their defaults."
            )


def clip_to_range(predicted: Floats, training: Mapping[str, Any]) -> Floats:
    """Clip predictions to the range of the training ratings; implicit feedback has none."""
    if training["implicit"]:
        return predicted
    return np.clip(predicted, training["rating_min"], training["rating_max"])
