"""Factor models with features, and prior means of factors that are linear in the features."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from lowrank import kernels
from lowrank.completion.implicit import PriorMean
from lowrank.kernels import CsrArrays
from recsys.models.base import FactorModel, Floats, FoldingModel, Indices
from recsys.models.histories import Histories
from recsys.models.parameters import fitted, model

if TYPE_CHECKING:
    from lowrank.completion.design import GroupedFeatures


def csr_rows(features: GroupedFeatures | None) -> CsrArrays | None:
    """Return features as CSR arrays for the kernels, or None if there are none."""
    if features is None or not features.matrix.shape[1]:
        return None
    return kernels.csr_arrays(features.matrix.astype(np.float32, copy=False))


def row_of(rows: CsrArrays, at: int) -> CsrArrays:
    """Return a row of a matrix as CSR arrays."""
    part = slice(rows.indptr[at], rows.indptr[at + 1])
    n = part.stop - part.start
    return CsrArrays(np.array([0, n]), rows.indices[part], rows.data[part])


class Known(NamedTuple):
    """Features and ratings for an explanation, in addition to the history of the user.

    Attributes
    ----------
    user : CsrArrays or None
        Features of the user, a single row.
    items : CsrArrays or None
        Features of the items.
    raters : Histories or None
        Ratings of the items by users.
    """

    user: CsrArrays | None = None
    items: CsrArrays | None = None
    raters: Histories | None = None


@model
class FeaturedModel(FoldingModel, FactorModel):
    """A factor model that folds in users and items with their features."""

    uses_features = True

    def with_users(
        self, histories: Histories, features: GroupedFeatures | None = None
    ) -> Self:
        """Return the model with these users; a training user keeps the same vector."""
        folded = self._folded(histories, "user", csr_rows(features))
        vars(folded)["_source_model"] = self._source
        return folded

    def with_items(
        self, histories: Histories, features: GroupedFeatures | None = None
    ) -> Self:
        """Return the model with these items, and the same users."""
        return self._folded(histories, "item", csr_rows(features))

    def widened(self, side: str, order: Indices, features: GroupedFeatures) -> Self:
        """Return the model with additional items (or users) without ratings, sorted by `order`."""
        n_new = features.matrix.shape[0]
        n_known = len(order) - n_new
        rows = np.where(order < n_known, order, -1)
        result = self._from_arrays(self.get_params(), self._rearranged(**{side: rows}))
        none = Histories(
            np.zeros(n_new + 1, np.int64), np.zeros(0, np.int32), np.zeros(0, "f4")
        )
        fold = self.with_items if side == "item" else self.with_users
        result._put(fold(none, features), side, np.argsort(order)[n_known:])
        return result


@model
class PriorModel(FeaturedModel):
    """A model whose factors are shrunk towards linear functions of features, if any.

    A user or item without ratings has exactly the predicted factors.
    """

    item_prior_mean: Floats = fitted("k", group="item priors")
    item_prior_weights: Floats = fitted("n_item_features", "k", group="item priors")
    item_centre: Floats = fitted("k", group="item priors")
    item_known: Floats = fitted("n_items", group="item priors")
    item_variance: float = fitted(group="item priors")
    item_told: Floats = fitted("n_items", group="item priors")

    user_prior_mean: Floats = fitted("k", group="user priors")
    user_prior_weights: Floats = fitted("n_user_features", "k", group="user priors")
    user_centre: Floats = fitted("k", group="user priors")
    user_known: Floats = fitted("n_users", group="user priors")
    user_variance: float = fitted(group="user priors")
    user_told: Floats = fitted("n_users", group="user priors")

    def knows(self, side: str) -> bool:
        """Return whether the model uses features of `side`, "item" or "user"."""
        return f"{side}_prior_mean" in vars(self)

    def comparable(self, side: str) -> tuple[Floats, Floats]:
        """Return centred factors of `side`, and the reliability of their features."""
        factors: Floats = getattr(self, f"{side}_factors")
        return factors - getattr(self, f"{side}_centre"), getattr(self, f"{side}_told")

    def known(self, side: str) -> NDArray[np.bool_]:
        """Return which rows of `side` have ratings; all rows if there are no features."""
        if not self.knows(side):
            return np.ones(getattr(self, f"n_{side}s"), np.bool_)
        known: NDArray[np.bool_] = getattr(self, f"{side}_known") > 0
        return known

    def _prior_of(self, side: str) -> PriorMean:
        mean, weights = (
            getattr(self, f"{side}_prior_{name}") for name in ("mean", "weights")
        )
        return PriorMean(mean, weights)

    def _set_prior(
        self, side: str, prior: PriorMean, features: CsrArrays | None, factors: Floats
    ) -> None:
        """Set the fitted arrays of the prior of `side`; zero factors mean no ratings."""
        known = factors.any(axis=1)
        off = factors[known] - prior.of(features, len(factors))[known]
        square = np.einsum("ij,ij->", off, off, dtype=np.float64)
        setattr(self, f"{side}_prior_mean", prior.mean)
        setattr(self, f"{side}_prior_weights", prior.coefficients)
        setattr(
            self,
            f"{side}_centre",
            factors[known].mean(axis=0, dtype=np.float64).astype("f4"),
        )
        setattr(self, f"{side}_variance", float(square) / max(1, len(off)))

    def _completed(
        self, side: str, factors: Floats, counts: NDArray[np.int64], points: Floats
    ) -> dict[str, Floats]:
        """Return the arrays of `side`, with prior means for rows without ratings."""
        known = counts > 0
        off = points - getattr(self, f"{side}_centre")
        square = np.einsum("ij,ij->i", off, off)
        variance = np.float32(getattr(self, f"{side}_variance") + 1e-12)
        reliability = np.sqrt(square / (square + variance))
        return {
            f"{side}_factors": np.where(known[:, None], factors, points),
            f"{side}_known": known.astype(np.float32),
            f"{side}_told": reliability.astype(np.float32),
        }
