"""EASE: item-item weights in closed form, with a low-rank approximation for large catalogues."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from lowrank import kernels
from lowrank.kernels import backends
from recsys.errors import DataError
from recsys.models.base import Progress, check_indices
from recsys.models.histories import Histories
from recsys.models.item_item import (
    ItemItemModel,
    ProfileModel,
    Profiles,
    weight_unit,
    weighted_matrix,
)
from recsys.models.linear_filter import (
    LinearFilter,
    inverse_of,
    power,
    power_parameter,
)
from recsys.models.parameters import (
    fitted,
    model,
    parameter,
    random_state_parameter,
    threads_parameter,
)
from recsys.models.parts import Array, Doubles, Floats, Indices, Longs

if TYPE_CHECKING:
    from scipy.sparse import csr_array

    from recsys.data.ratings import Ratings

_PENALTY = 90.0
_POWER = 0.2
_TRIAL_FACTORS = 512  # enough for a comparison (Gowalla)
_BLOCK = 2**22  # entries of an item-item matrix processed at a time


@model
class EASE(ProfileModel, ItemItemModel):
    """Score an item by the sum of its weights with the items of the user.

    The weights B predict each item from all others by ridge regression,
    ``min ||X - X B||^2 + lambda ||B||^2`` with a zero diagonal of B. The entry x_ui is 1 for an
    interaction, a rating divided by the highest rating, or a count divided by the mean count, and
    0 without an interaction. With ``P = (X'X + lambda I)^-1``, the solution is
    ``B = I - P diag(P)^-1``. Rows and columns of X are first divided by their sums to the powers
    `user_power` and `item_power`, which reduces the influence of users with many items and of
    popular items. Histories are scaled by `item_power` in the same way.

    Features of items with users are additional rows of X; each group of features has the weight of
    one user who has all items. Features predict the weights of an item without users, and the
    scores of a user without a history.

    Attributes
    ----------
    penalty : float
        The `regularization` times the mean squares of the scale factors of rows and columns. Its
        default is ``90 m^(1/3)``, near the optimum on small and large validation data, where m is
        the number of users of an item, averaged over all interactions.
    item_weight : float32 ndarray of shape (n_items,)
        Scale factors of the columns.
    weights : float32 ndarray of shape (n_items, n_items)
        Contribution of the item of the row to the score of the item of the column.

    Notes
    -----
    One item-item matrix is held in memory, in single precision; the penalty makes it well enough
    conditioned for that. Rounding depends on the number of BLAS threads.

    References
    ----------
    Steck (2019), "Embarrassingly shallow autoencoders for sparse data", section 3. Park et al.
    (2025), "Why is normalization necessary for linear recommenders?", for the powers.
    """

    name = "ease"
    summary = "Implicit feedback on up to some 30,000 items; one parameter."

    regularization: float | None = parameter(
        None,
        "Ridge penalty of the weights, in users; by default it follows from the data.",
    )
    user_power: float = power_parameter("user", _POWER)
    item_power: float = power_parameter("item", _POWER)

    penalty: float = fitted()
    item_weight: Floats = fitted("n_items")
    weights: Floats = fitted("n_items", "n_items")

    @property
    def n_items(self) -> int:
        """Number of items."""
        n: int = self.weights.shape[1]
        return n

    def _fit(self, ratings: Ratings, progress: Progress) -> None:
        n = ratings.n_items
        needed, memory = 4 * n**2, backends.physical_memory()
        if memory is not None and needed > memory:
            raise DataError(
                f"The ease model needs {needed / 2**30:.1f} GiB for the matrix of {n:,} x {n:,} "
                f"items, and this machine has {memory / 2**30:.1f} GiB; use sparse-ease, "
                "which needs no such matrix."
            )
        self.unit = weight_unit(ratings)
        histories = Histories.of(ratings)
        self._take_histories(histories)
        self.penalty, of_features = _penalty(ratings, self)
        weights = histories.values / np.float32(self.unit)
        self.item_weight = power(
            np.bincount(histories.indices, weights, n), -self.item_power
        )
        P = self._gram()
        if ratings.item_features is not None:
            # A group of features counts as one more user, who has all items.
            scale = self.item_weight * np.float32(of_features)
            matrix = ratings.item_features.matrix
            features = matrix.multiply(scale[:, None]).tocsr()
            for rows in _row_blocks(n):
                P[rows] += (features[rows] @ features.T).toarray()
        invert(P)
        # B = I - P diag(P)^-1, for histories scaled by D.
        scale = -1 / np.diagonal(P)
        for rows in _row_blocks(n):
            P[rows] *= self.item_weight[rows, None] * scale
        np.fill_diagonal(P, 0)
        self.weights = P
        self._fit_profiles(ratings)

    def _scaled(self) -> csr_array[np.float32]:
        """Return the matrix X: interactions with scaled rows and columns."""
        histories = self._all_histories()
        X = weighted_matrix(histories, len(self.item_weight), 1)
        users = np.repeat(self._user_scale(), histories.counts)
        X.data *= users * self.item_weight[X.indices]
        return X

    def _gram(self) -> Floats:
        """Return X'X + lambda I."""
        X = self._scaled()
        by_item = X.T.tocsr()
        gram = np.empty((X.shape[1], X.shape[1]), np.float32)
        for rows in _row_blocks(len(gram)):
            (by_item[rows] @ X).toarray(out=gram[rows])
        gram[np.diag_indices_from(gram)] += np.float32(self.penalty)
        return gram

    def item_vectors(self) -> Floats:
        """Return the weights with the training items, shape (n_items, n_training_items)."""
        if self._source is self:
            return self.weights
        return np.ascontiguousarray(self.weights.T)

    def scores(self, users: ArrayLike) -> Floats:
        """Return scores of all items, shape (n_block, n_items); independent of the other users."""
        u = check_indices(users, self.n_users, "user")
        histories = self._all_histories().take(u)
        scores = kernels.csr_matmat(histories.csr, self.weights)
        # Users without a history have the scores that their features predict.
        axis = self._cold("user")
        if axis is not None and axis.columns is not None:
            from scipy.sparse import csr_array

            positions = kernels.csr_arrays(csr_array(axis.positions[u]))
            columns = np.ascontiguousarray(axis.columns.T)
            scores += kernels.csr_matmat(positions, columns)
        return scores

    def _compared(self, side: str) -> Floats | None:
        vectors = super()._compared(side)
        items = self._source._features_of("item")
        if vectors is None or side == "user" or items is None:
            return vectors
        is_rated = items.positions[:, -1] == 0
        # The weights with items without users are predictions; they are zero here.
        return vectors if is_rated.all() else vectors * is_rated

    def _renumber(
        self,
        changes: dict[str, Any],
        side: str,
        new_index: Indices,
    ) -> None:
        profiles: Profiles | None = changes.get("profiles")
        if profiles is None or profiles.items is None or side == "user":
            return
        # The vectors of items are their weights, which have got more columns.
        similarity = profiles.items.similarity
        assert similarity is not None
        wide = np.zeros((len(similarity.weights), len(new_index)), np.float32)
        wide[:, new_index[: self.n_items]] = similarity.weights
        items = replace(profiles.items, similarity=replace(similarity, weights=wide))
        changes["profiles"] = profiles.with_side("item", items)

    def _set_columns(self) -> None:
        """Set the weights of items without users, and the columns that score new users."""
        items = self._features_of("item")
        fitted_items = self._source._features_of("item")
        if items is not None and fitted_items is not None:
            is_new = items.positions[:, -1] > 0
            self.weights[:, is_new] = fitted_items.loadings @ items.positions[is_new].T
        super()._set_columns()

    def _cold_columns(self, loadings: Floats) -> float:
        return 0.0  # the weights have those of items without users

    def _counting(self, histories: Histories) -> Floats:
        return histories.values / np.float32(self.unit)

    def _filter(self, Z: Floats) -> Floats:
        filtered: Floats = self.weights @ Z
        return filtered

    def _scored(self, Q: Floats) -> Floats:
        scores: Floats = self.weights.T @ Q
        return scores

    def _entries(self, rows: Indices, columns: Indices) -> Floats:
        return self.weights[np.ix_(rows, columns)]

    def _set_items(self, histories: Histories) -> None:
        """Solve the ridge regression of each new item on the training items.

        That is (X'X + lambda I) B = X'C, where the columns of C are the scaled interactions of the
        new items.
        """
        from scipy.linalg import solve

        X = self._scaled()
        C = weighted_matrix(histories, self.n_users, self.unit)
        # Columns of C are scaled as those of X, by the totals of the new items.
        scale = power(C.sum(axis=1), -self.item_power)
        C.data *= self._user_scale()[C.indices]
        sides = (X.T @ C.T).toarray() * scale
        weights = solve(
            self._gram(),
            sides,
            assume_a="pos",
            overwrite_a=True,
        )
        self.weights = (weights * self.item_weight[:, None]).astype(np.float32)

    def _user_scale(self) -> Floats:
        """Return the scale factors of the rows of X, shape (n_users,)."""
        histories = self._all_histories()
        sums = np.bincount(
            histories.rows,
            histories.values,
            self.n_users,
        )
        return power(sums, -self.user_power)


@model
class SparseEASE(LinearFilter):
    r"""Approximate EASE by item-item weights that are sparse rows plus a product of factors.

    EASE inverts G + lambda I, where G = X'X and X is scaled as for `EASE`. Let :math:`\lambda_j`
    and V_j be the k leading eigenvalues and eigenvectors of G. Then

    .. math:: P = (G + \lambda I)^{-1} \approx a I - b G + \sum_{j \le k} \left(
              \frac{1}{\lambda_j + \lambda} - a + b \lambda_j \right) V_j V_j',

    which is exact in these directions. In all others, the line a - b x has the smallest maximum
    relative error as an approximation of 1 / (x + lambda) for x up to :math:`\lambda_k`: 2% if
    :math:`\lambda_k` is half of lambda, 6% if it equals lambda. The item-item weights are again
    ``B = I - P diag(P)^-1``, with a sparse part that has the sparsity pattern of G.

    Ratings and counts are used as in `EASE`. The weights of the linear part are stored as in
    `spectral`: by default, all of them or as many of the largest of each item as fit in 512 MB.
    The leading directions compensate for the omitted weights.

    Attributes
    ----------
    unit : float
        The rating or count of weight 1.
    penalty : float
        As in `EASE`.
    response : float32 ndarray of shape (k,)
        Coefficients of the directions, added to the linear part.

    References
    ----------
    Steck (2019), "Embarrassingly shallow autoencoders for sparse data", section 3. Spišák et al.
    (2023), "Scalable approximate non-symmetric autoencoder for collaborative filtering", for
    another sparse form.
    """

    name = "sparse-ease"
    summary = "Implicit feedback: the accuracy of ease for any number of items."

    regularization: float | None = parameter(
        None,
        "Ridge penalty of the weights, in users; by default it follows from the data.",
    )
    user_power: float = power_parameter("user", _POWER)
    item_power: float = power_parameter("item", _POWER)
    factors: int | None = parameter(
        None,
        "Number of directions in which the inverse is exact; by default those of spectral.",
    )
    neighbors: int | None = parameter(
        None,
        "Item-item weights of the linear part kept of each item; by default 512 MB of them.",
    )
    random_state: int = random_state_parameter()
    threads: int | None = threads_parameter()

    unit: float = fitted()
    penalty: float = fitted()
    response: Floats = fitted("k")
    linear = True

    def _trial_params(self, ratings: Ratings) -> dict[str, Any]:
        k = min(self._n_factors(ratings), _TRIAL_FACTORS)
        return {**self.get_params(), "factors": k}

    def _found_params(self) -> dict[str, Any]:
        """Return the number of directions: with more, the compared model may be better."""
        return {"factors": len(self.singular_values)}

    def _begin(self, ratings: Ratings) -> None:
        self.unit = weight_unit(ratings)
        self.weighted = ratings.weighted or not ratings.implicit
        self.penalty, _ = _penalty(ratings, self)

    def _counting(self, histories: Histories) -> Floats:
        weights: Floats = histories.values / np.float32(self.unit)
        return weights

    def _outputs(
        self,
        sums: Array,
        squares: Array,
        vectors: Floats,
    ) -> Floats:
        constant, slope = self._line
        diagonal = constant - slope * squares
        diagonal += np.square(vectors) @ self._correction(self._eigenvalues)
        return (1 / diagonal).astype(np.float32)

    def _set_weights(self, source: SparseEASE, of_users: Histories) -> None:
        super()._set_weights(source, of_users)
        if source is not self:
            return
        linear = self._eigenvalues
        if self._is_cut:  # Rayleigh quotients with the stored part of G
            vectors = self.item_factors / self.item_output[:, None]
            scaled = (vectors / self.item_output[:, None])[self.item_order]
            image = kernels.csr_matmat(
                self._weights,
                scaled,
                threads=self.threads,
            )
            image *= inverse_of(self.item_weight)[:, None]
            linear = np.einsum(
                "ij,ij->j",
                vectors,
                image,
                dtype=np.float64,
            )
            linear /= self._slope
        self.response = -self._correction(linear).astype(np.float32)
        # Make the diagonal of B zero.
        diagonal = np.square(self.item_factors) @ self.response
        diagonal = diagonal * self.item_weight / self.item_output
        rows = np.repeat(np.arange(self.n_items), np.diff(self.weight_indptr))
        on_diagonal = np.flatnonzero(self.item_order[self.weight_places] == rows)
        self.weight_values[on_diagonal] = -diagonal[rows[on_diagonal]]

    @property
    def _eigenvalues(self) -> Doubles:
        return self.singular_values.astype(np.float64) ** 2

    @property
    def _line(self) -> tuple[float, float]:
        """Coefficients a and b of the line a - b x that approximates 1 / (x + penalty)."""
        low = self.penalty
        high = low + float(self._eigenvalues.min(initial=np.inf))
        slope = 8 / (low**2 + 6 * low * high + high**2)  # from a Chebyshev polynomial
        return slope * high, slope

    @property
    def _slope(self) -> float:
        return self._line[1]

    @property
    def _response(self) -> Floats:
        return self.response

    def _correction(self, linear: Doubles) -> Doubles:
        """Return the coefficients of the directions in P, given eigenvalues of the linear part."""
        constant, slope = self._line
        exact: Doubles = 1 / (self._eigenvalues + self.penalty)
        return exact - constant + slope * linear


def _penalty(ratings: Ratings, model: EASE | SparseEASE) -> tuple[float, float]:
    """Return the penalty for scaled interactions, and the scale factor of a typical user."""
    items = ratings.counts("item")
    users = ratings.counts("user")
    user_square = _mean_square(users, model.user_power)
    item_square = _mean_square(items, model.item_power)
    # Scaled interactions are smaller, and so is a penalty of the same effect.
    penalty = model.regularization or default_penalty(items)
    return penalty * user_square * item_square, math.sqrt(user_square)


def _mean_square(counts: Longs, exponent: float) -> float:
    """Return the mean square of the scale factors over all interactions."""
    return float(np.average(power(counts, -2 * exponent), weights=counts))


def default_penalty(counts: NDArray[np.integer[Any]]) -> float:
    """Return the default penalty, given the number of users of each item.

    Examples
    --------
    >>> default_penalty(np.array([8, 8, 8]))
    180.0
    """
    n_users = counts.astype(np.float64)
    return float(_PENALTY * np.cbrt(n_users @ n_users / n_users.sum()))


def invert(P: Floats) -> None:
    """Replace a positive definite matrix by its inverse, without a copy."""
    from scipy.linalg import lapack

    # LAPACK uses column-major order, hence the transpose, and writes the upper triangle of P.
    _, failed = lapack.spotrf(
        P.T,
        lower=True,
        clean=False,
        overwrite_a=True,
    )
    if failed:
        raise DataError(
            "The Gram matrix of the items is singular in single precision; try a larger "
            "regularization."
        )
    lapack.spotri(P.T, lower=True, overwrite_c=True)
    for rows in _row_blocks(len(P)):
        corner = P[rows, rows]
        corner[:] = np.triu(corner) + np.triu(corner, 1).T
        P[rows.stop :, rows] = P[rows, rows.stop :].T


def _row_blocks(n: int) -> Iterator[slice]:
    """Yield slices of the rows of a matrix with n rows and columns."""
    return kernels.pieces(n, max(1, _BLOCK // max(1, n)))
