"""EASE for large catalogues: the inverse by leading directions and, to first order, the rest."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from lowrank import kernels
from recsys.models.base import Floats, fitted, model
from recsys.models.ease import default_penalty
from recsys.models.histories import Histories
from recsys.models.item_item import weight_unit
from recsys.models.linear_filter import LinearFilter
from recsys.models.parameters import parameter, random_state_parameter, threads_parameter

if TYPE_CHECKING:
    from recsys.data.ratings import Ratings


@model
class SparseEASE(LinearFilter):
    r"""Score as EASE does, by item-item weights that are sparse rows and a product of factors.

    EASE inverts G + lambda I, where G = X'X. With eigenvalues :math:`\lambda_j` and vectors V_j
    of G, of which the k leading ones are computed,

    .. math:: P = (G + \lambda I)^{-1} \approx a I - b G + \sum_{j \le k} \left(
              \frac{1}{\lambda_j + \lambda} - a + b \lambda_j \right) V_j V_j',

    exact in these directions, and in all others the line a - b x that is relatively nearest to
    1 / (x + lambda) for x up to :math:`\lambda_k`: within 2% of it where that is half of lambda,
    within 6% where it is lambda. The item-item weights are ``B = I - P diag(P)^-1`` again, whose
    sparse part has the pattern of G.

    A rating stands for its share of the highest one, a count for its multiple of the mean. The
    weights of the linear part are kept as those of `spectral`: all of them while they take up to
    512 MB, else the largest `neighbors` of each item, and the directions make up for the rest.

    Attributes
    ----------
    unit : float
        The rating or count that weighs 1.
    penalty : float
        The regularization given, or that of `ease`.
    response : float32 ndarray of shape (k,)
        What the directions add to the linear part.

    References
    ----------
    Steck (2019), "Embarrassingly shallow autoencoders for sparse data", section 3. Spišák et al.
    (2023), "Scalable approximate non-symmetric autoencoder for collaborative filtering", for
    another sparse form.
    """

    name = "sparse-ease"
    summary = "Implicit feedback: the accuracy of ease for any number of items."

    regularization: float | None = parameter(
        None, "Ridge penalty of the weights, in users; by default it follows from the data."
    )
    factors: int | None = parameter(
        None,
        "Number of directions in which the inverse is exact; by default twice those of spectral.",
    )
    neighbors: int | None = parameter(
        None, "Item-item weights of the linear part kept of each item; by default 512 MB of them."
    )
    random_state: int = random_state_parameter()
    threads: int | None = threads_parameter()

    unit: float = fitted()
    penalty: float = fitted()
    response: Floats = fitted("k")
    linear = True
    _width = 2  # on Gowalla within 1% of the inverse; with half as many, 1.4% below

    def _begin(self, ratings: Ratings) -> None:
        self.unit = weight_unit(ratings)
        self.weighted = bool((ratings.values != self.unit).any())
        counts = np.bincount(ratings.indices, minlength=ratings.n_items)
        self.penalty = self.regularization or default_penalty(counts)

    def _counting(self, histories: Histories) -> Floats:
        found: Floats = histories.values / np.float32(self.unit)
        return found

    def _user_scale(self) -> Floats:
        return np.ones(self.n_users, np.float32)

    def _inputs(self, sums: NDArray[Any]) -> Floats:
        return np.ones(len(sums), np.float32)

    def _outputs(self, sums: NDArray[Any], squares: NDArray[Any], vectors: Floats) -> Floats:
        constant, slope = self._line
        diagonal = constant - slope * squares
        diagonal += np.square(vectors) @ self._correction(self._eigenvalues)
        return (1 / diagonal).astype(np.float32)

    def _set_weights(self, source: SparseEASE, of_users: Histories) -> None:
        super()._set_weights(source, of_users)
        if source is not self:
            return
        kept = self._eigenvalues
        if self._is_cut:  # Rayleigh quotients with the part of G that is kept
            vectors = self.item_factors / self.item_output[:, None]
            scaled = (vectors / self.item_output[:, None])[self.item_order]
            image = kernels.csr_matmat(self._weights, scaled, threads=self.threads)
            kept = np.einsum("ij,ij->j", vectors, image, dtype=np.float64) / self._slope
        self.response = -self._correction(kept).astype(np.float32)
        # An item says nothing of itself: B has a diagonal of zeros.
        own = np.square(self.item_factors) @ self.response / self.item_output
        rows = np.repeat(np.arange(self.n_items), np.diff(self.weight_indptr))
        places = np.flatnonzero(self.item_order[self.weight_places] == rows)
        self.weight_values[places] = -own[rows[places]]

    @property
    def _eigenvalues(self) -> NDArray[np.float64]:
        return self.singular_values.astype(np.float64) ** 2

    @property
    def _line(self) -> tuple[float, float]:
        """The constant a and slope b: of the line nearest to 1 / (x + penalty), relatively."""
        low, high = self.penalty, self.penalty + float(self._eigenvalues.min(initial=np.inf))
        slope = 8 / (low**2 + 6 * low * high + high**2)  # a Chebyshev polynomial
        return slope * high, slope

    @property
    def _slope(self) -> float:
        return self._line[1]

    @property
    def _response(self) -> Floats:
        return self.response

    def _correction(self, linear: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return what the directions add to P, given the eigenvalues of the linear part."""
        constant, slope = self._line
        found: NDArray[np.float64] = 1 / (self._eigenvalues + self.penalty) - constant
        return found + slope * linear
