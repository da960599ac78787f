"""Models of ratings, whose lists also go by how often items are rated.

People choose what they expect to like, and many choose the same. So the best list is not that of
the highest predicted ratings, which begins with obscure items of a few enthusiasts: the odds that
an item is chosen at all count as well, and follow a power of its number of ratings.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

import numpy as np
from numpy.typing import NDArray

from lowrank import kernels
from recsys.models.base import Floats, FoldingModel, Indices, fitted, model
from recsys.models.histories import Explanation, Histories
from recsys.models.parameters import parameter

if TYPE_CHECKING:
    from recsys.data.ratings import Ratings

_COUNTED = 2**20  # ratings counted at a time: they are copied


def obscurity(log_counts: NDArray[np.floating[Any]], most: float, rating_std: float) -> Floats:
    """Return ``rating_std * (log(1 + most) - log_counts)``, at least 0, of each item."""
    behind = np.maximum(np.log1p(most) - log_counts.astype(np.float64), 0)
    return np.asarray(rating_std * behind, np.float32)


@model
class RatingModel(FoldingModel):
    """A model that predicts ratings, and ranks items by them and by their numbers of ratings.

    Attributes
    ----------
    item_obscurity : float32 ndarray of shape (n_items,)
        Standard deviation of the ratings times ``log(1 + most_ratings) - log(1 + count)``: times
        `popularity`, what a score in a list is below the predicted rating. Where features tell of
        an item without ratings, the logarithm that they predict stands for its own.
    """

    popularity: float = parameter(
        0.3,
        "Weight of an item's number of ratings in lists; 0 ranks by the predicted rating alone.",
        low=0.0,
        high=1.0,
    )
    rating_std: float = fitted()
    most_ratings: int = fitted()
    item_obscurity: Floats = fitted("n_items")
    typical_log_count: float = fitted(when="set")
    item_count_weights: Floats = fitted("n_item_features", when="set")

    def _prepare(self, ratings: Ratings) -> None:
        """Count the ratings of items, and fit what their features tell of that."""
        counts = np.zeros(ratings.n_items, np.int64)
        for start in range(0, ratings.nnz, _COUNTED):
            part = ratings.indices[start : start + _COUNTED]
            counts += np.bincount(part, minlength=ratings.n_items)
        self.rating_std = ratings.mean_and_std()[1] or 1.0
        self.most_ratings, rows = int(counts.max(initial=0)), None
        features = ratings.item_features if self.uses_features else None
        if features is not None and features.matrix.shape[1]:
            from lowrank.completion.cold import fit_cold_map  # few fits have features

            log_counts = np.log1p(counts).astype(np.float32)[:, None]
            rated, variance = np.minimum(counts, 1), np.mean(1 / (1 + counts[counts > 0]))
            found = fit_cold_map(log_counts, rated, features, np.full((1, 1), variance))
            self.typical_log_count = float(found.mean[0])
            self.item_count_weights = found.coefficients[:, 0].copy()
            rows = kernels.csr_arrays(features.matrix.astype(np.float32, copy=False))
        self.item_obscurity = self._obscurity(counts, rows)

    def _obscurity(
        self, counts: NDArray[np.int64], features: kernels.CsrArrays | None = None
    ) -> Floats:
        log_counts: NDArray[np.floating[Any]] = np.log1p(counts)
        if "item_count_weights" in vars(self):
            told = np.full(len(counts), self.typical_log_count)
            if features is not None:
                told += kernels.csr_matmat(features, self.item_count_weights[:, None])[:, 0]
            log_counts = np.where(counts > 0, log_counts, np.maximum(told, 0))
        return obscurity(log_counts, self.most_ratings, self.rating_std)

    def _folded(self, histories: Histories, side: str, *features: Any, **arrays: Any) -> Self:
        if side == "item":
            arrays["item_obscurity"] = self._obscurity(histories.counts, *features)
        return super()._folded(histories, side, *features, **arrays)

    @property
    def _list_bias(self) -> Floats:
        """The biases of items less what lists take off for few ratings; made once."""
        given = self.item_bias, self.item_obscurity, self.popularity
        made = vars(self).get("_made_list_bias")
        if made is None or any(a is not b for a, b in zip(made[:3], given, strict=True)):
            made = *given, given[0] - np.float32(self.popularity) * given[1]
            vars(self)["_made_list_bias"] = made
        bias: Floats = made[3]
        return bias

    def _explanation(
        self, base: Floats, terms: NDArray[Any], items: Indices, **features: Floats
    ) -> Explanation:
        """Return scores of items as sums, of which the predictions are given."""
        off = -np.float32(self.popularity) * self.item_obscurity[items] if self.popularity else None
        sums = base.astype(np.float32), terms.astype(np.float32)
        return Explanation(*sums, **features, popularity=off)
