"""Spectral filters of the normalised interaction matrix."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from recsys.models.base import Floats, model
from recsys.models.histories import Histories
from recsys.models.linear_filter import LinearFilter, power
from recsys.models.parameters import parameter, random_state_parameter, threads_parameter

if TYPE_CHECKING:
    from recsys.data.ratings import Ratings


@model
class Spectral(LinearFilter):
    r"""Rank items by a filter of the user's history; any rating is an interaction.

    With R the matrix of interactions, of ones or of weights, D_u and D_i its row and column sums,
    and :math:`\tilde R = D_u^{-p} R D_i^{-q}`, the scores of a user with history r are

    .. math:: r D_i^{-q} \, h(\tilde R'\tilde R) \, D_i^{y}, \qquad
              h(\lambda) = \lambda + (c - t \lambda^2) [\lambda \ge \lambda_k],

    where eigenvalues :math:`\lambda` are in units of the largest: a linear filter (the items of
    users with a similar history), a low pass that lifts the k leading directions by the median c of
    their eigenvalues, and a sharpening that lowers the very first ones, those of popular items. The
    rest takes a truncated SVD, and a rough one is as good. The parameters are p = `user_power`, q =
    `item_power`, y = `popularity` and t = `sharpening`; without `linear`, h is 0 below
    :math:`\lambda_k`, and scores are products of factors, which are fast to rank.

    The linear filter is kept as item-item weights: all of them while they take up to 512 MB, else
    the largest `neighbors` of each item, as many as that.

    References
    ----------
    Shen et al. (2021), "How powerful is graph convolution for recommendation?", section 4, for the
    filter and its two parts. Choi et al. (2023), "Blurring-sharpening process models for
    collaborative filtering", for sharpening. Cremonesi, Koren and Turrin (2010), "Performance of
    recommender algorithms on top-N recommendation tasks", for PureSVD.
    """

    name = "spectral"
    summary = "Implicit feedback: the most accurate top-N lists, at any size."

    factors: int | None = parameter(
        None,
        "Number of singular vectors; by default a sixteenth of the users or items, at most 1,024, "
        "and fewer for very many users and items.",
    )
    user_power: float = parameter(
        0.3, "Exponent by which users with many items are weighted down.", low=0.0, high=1.0
    )
    item_power: float = parameter(
        0.35, "Exponent by which items with many users are weighted down.", low=0.0, high=1.0
    )
    popularity: float = parameter(
        0.25, "Exponent by which items with many users are recommended more.", low=0.0, high=1.0
    )
    sharpening: float = parameter(
        0.8, "Strength of the correction for popular items.", low=0.0, high=2.0
    )
    linear: bool = parameter(
        True, "Add the exact linear filter; without it ranking is faster and less accurate."
    )

    neighbors: int | None = parameter(
        None, "Item-item weights of the linear filter kept of each item; by default 512 MB of them."
    )
    random_state: int = random_state_parameter()
    threads: int | None = threads_parameter()

    def _begin(self, ratings: Ratings) -> None:
        self.weighted = ratings.implicit and ratings.weighted

    def _counting(self, histories: Histories) -> Floats:
        return histories.values if self.weighted else np.ones_like(histories.values)

    def _user_scale(self) -> Floats:
        return power(self._user_sums(), -self.user_power)

    def _inputs(self, sums: NDArray[Any]) -> Floats:
        return power(sums, -self.item_power)

    def _outputs(self, sums: NDArray[Any], squares: NDArray[Any], vectors: Floats) -> Floats:
        return power(sums, self.popularity)

    @property
    def _slope(self) -> float:
        return float(self.singular_values[0]) ** -2 if self.singular_values[0] else 0.0

    @property
    def _response(self) -> Floats:
        """Low pass and sharpening of each direction, shape (k,)."""
        share = (self.singular_values / self.singular_values[0]) ** 2
        response: Floats = np.median(share) - np.float32(self.sharpening) * share**2
        return response if self.linear else response + share
