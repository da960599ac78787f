"""Pictures of a model as numbers: the map of its items, and its singular values."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from recsys.errors import DataError
from recsys.models.abilities import HasItemVectors
from recsys.models.base import FactorModel
from recsys.predictions import unsupported

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from recsys.models.base import Indices, Model
    from recsys.recommender import Recommender

_ENDS = 3  # items that are named at each end of an axis


def most_rated(recommender: Recommender, n: int) -> tuple[Indices, NDArray[np.int64]]:
    """Return the n items with the most ratings, best first, and the ratings of all items.

    Returns
    -------
    items : int64 ndarray of shape (min(n, n_items),)
        Indices of items; equal ones in their order.
    counts : int64 ndarray of shape (n_items,)
    """
    ratings = recommender.ratings
    counts = np.bincount(ratings.indices, minlength=ratings.n_items)
    return np.argsort(-counts, kind="stable")[:n], counts


def item_map(recommender: Recommender, n: int = 500) -> dict[str, Any]:
    """Return places in the plane for the n items with the most ratings.

    They are the first two principal components of the item vectors, each of length 1: items are
    close if the model takes them for similar. The picture is the best one in two dimensions, and
    shows a share of the differences between items that is given with it.

    Returns
    -------
    dict
        "items", a list of "item", "title", "x", "y" (both from -1 to 1) and "count", the most rated
        first; "axes", for x and y the titles of items at the "low" and at the "high" end;
        "share", of the variance of the vectors that the two directions have.

    Raises
    ------
    DataError
        If the model has no vectors of items.
    """
    model = recommender.model
    if not isinstance(model, HasItemVectors):
        raise unsupported(model, HasItemVectors, "place its items on a map")
    chosen, counts = most_rated(recommender, n)
    vectors = model.item_vectors()[chosen].astype(np.float64)
    lengths = np.linalg.norm(vectors, axis=1)
    placed = lengths > 0  # a vector of zeros has no direction
    chosen = chosen[placed]
    points, share = _plane(vectors[placed] / lengths[placed, None])
    ids = recommender.ratings.items.take(chosen).to_list()
    known = recommender.ratings.titles
    titles = [None] * len(chosen) if known is None else known[chosen].to_list()
    items = [
        {"item": item, "title": title, "x": float(x), "y": float(y), "count": int(count)}
        for item, title, (x, y), count in zip(ids, titles, points, counts[chosen], strict=True)
    ]
    axes = []
    for column in points.T:
        order = np.argsort(column, kind="stable")
        names = [str(ids[at] if titles[at] is None else titles[at]) for at in order]
        axes.append({"low": names[:_ENDS], "high": names[::-1][:_ENDS]})
    return {"items": items, "axes": axes, "share": share}


def _plane(vectors: NDArray[np.float64]) -> tuple[NDArray[np.float64], float]:
    """Return the first two principal components, in -1 to 1, and their share of the variance."""
    U, s, _ = np.linalg.svd(vectors - vectors.mean(axis=0, keepdims=True), full_matrices=False)
    points = np.zeros((len(vectors), 2))
    points[:, : len(s)] = (U * s)[:, :2]
    largest = np.abs(points).max(axis=0, initial=0)
    points /= np.where(largest > 0, largest, 1)
    # The sign of a direction is free: the longer tail is on the positive side.
    points *= np.where((points**3).sum(axis=0) < 0, -1, 1)
    shares = s**2 / max(float(s @ s), np.finfo(float).tiny)
    return points, float(shares[:2].sum())


def spectrum(recommender: Recommender) -> dict[str, Any]:
    """Return the singular values of the low-rank part of a model, and its rank.

    For a model of factors they are those of the product of its user and item factors, for spectral
    those of the normalised interactions; of a blend, those of its first model that has any.

    Returns
    -------
    dict
        "values", a falling list, and "rank", the number of factors.

    Raises
    ------
    DataError
        If the model has no factors.
    """
    model = recommender.model
    values = _singular_values(model)
    if values is None:
        raise DataError(f"The {model.name} model has no factors, and so no singular values.")
    kept = np.sort(values.astype(np.float64))[::-1]
    return {"values": [float(value) for value in kept], "rank": len(kept)}


def _singular_values(model: Model) -> NDArray[np.floating[Any]] | None:
    parts = getattr(model, "parts", None)
    if parts is not None:
        found = (_singular_values(part) for part in parts)
        return next((each for each in found if each is not None), None)
    if isinstance(model, FactorModel):
        # With A = Q R and B = P S, the singular values of A B' are those of the small R S'.
        R, S = (
            np.asarray(np.linalg.qr(np.asarray(factors, np.float64), mode="r"))
            for factors in (model.user_vectors(), model.item_vectors())
        )
        return np.linalg.svdvals(R @ S.T)
    return getattr(model, "singular_values", None)
