"""EASE: linear item-item weights in closed form, for large catalogues by leading directions."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from lowrank import kernels
from lowrank.kernels import backends
from recsys.errors import DataError
from recsys.models.base import Floats, Indices, OnStep, check_indices
from recsys.models.histories import Histories
from recsys.models.item_item import ItemItemModel, weight_unit, weighted_matrix
from recsys.models.linear_filter import LinearFilter, inverse_of, power
from recsys.models.parameters import (
    fitted,
    model,
    parameter,
    random_state_parameter,
    threads_parameter,
)
from recsys.models.profiles import ProfileModel

if TYPE_CHECKING:
    from recsys.data.ratings import Ratings

_PENALTY = 90.0
_POWER = 0.2
_BLOCK = 2**22  # entries of a matrix of items that are worked on at a time
_TOL = 1e-6  # residual of a folded-in regression, relative to its right-hand side: that of float32
_STEPS = 2000


@model
class EASE(ProfileModel, ItemItemModel):
    """Score an item by the sum of its weights with the items of the user.

    The weights B predict every item from all others by ridge regression,
    ``min ||X - X B||^2 + lambda ||B||^2`` with zeros on the diagonal of B, where x_ui is 1 for an
    interaction and 0 otherwise; a rating stands for its share of the highest one, a count for its
    multiple of the mean. With ``P = (X'X + lambda I)^-1`` the solution is ``B = I - P diag(P)^-1``.
    Rows and columns of X are first divided by powers of their sums, `user_power` and `item_power`,
    so that users with many items and popular items decide less; those of a history by the latter.

    Features of items are further rows of X, for items with users: each block of them counts as
    much as one user of every item. The weights of an item without users are those that its features
    predict, and a user without a history has the scores that theirs do.

    Attributes
    ----------
    penalty : float
        The regularization given, or ``90 m^(1/3)``, where m is the number of users of an item,
        averaged over all interactions, times the mean squares of the factors of rows and columns:
        near the best on small and large validation data.
    item_weight : float32 ndarray of shape (n_items,)
        The factors of the columns.
    weights : float32 ndarray of shape (n_items, n_items)
        What having the item of the row adds to the score of the item of the column.

    Notes
    -----
    The matrix of items x items is held in memory once, in single precision: the penalty keeps it
    so well conditioned that the rounding does not show in the scores. The last bits depend on the
    number of BLAS threads.

    References
    ----------
    Steck (2019), "Embarrassingly shallow autoencoders for sparse data", section 3. Park et al.
    (2025), "Why is normalization necessary for linear recommenders?", for the powers.
    """

    name = "ease"
    summary = "Implicit feedback on up to some 30,000 items; one parameter."

    regularization: float | None = parameter(
        None, "Ridge penalty of the weights, in users; by default it follows from the data."
    )
    user_power: float = parameter(
        _POWER, "Exponent by which users with many items are weighted down.", low=0.0, high=1.0
    )
    item_power: float = parameter(
        _POWER, "Exponent by which items with many users are weighted down.", low=0.0, high=1.0
    )

    penalty: float = fitted()
    item_weight: Floats = fitted("n_items")
    weights: Floats = fitted("n_items", "n_items")

    @property
    def n_items(self) -> int:
        """Number of items."""
        n: int = self.weights.shape[1]
        return n

    def _fit(self, ratings: Ratings, on_step: OnStep, validation: Ratings | None) -> None:
        from scipy.linalg import lapack
        from scipy.sparse import diags_array

        n = ratings.n_items
        needed, memory = 4 * n**2, backends.physical_memory()
        if memory is not None and needed > memory:
            raise DataError(
                f"The ease model needs {needed / 2**30:.1f} GiB for the matrix of {n:,} x {n:,} "
                f"items, and this machine has {memory / 2**30:.1f} GiB; use sparse-ease, "
                "which needs no such matrix."
            )
        self.unit = weight_unit(ratings)
        self._take_histories(Histories.of(ratings))
        self.penalty, of_features = _penalty(ratings, self)
        X = weighted_matrix(Histories.of(ratings), n, self.unit)
        self.item_weight = power(np.bincount(X.indices, X.data, n), -self.item_power)
        users = np.repeat(self._user_scale(), np.diff(X.indptr))
        X.data *= users * self.item_weight[X.indices]
        by_item, P = X.T.tocsr(), np.empty((n, n), np.float32)
        for rows in _row_blocks(n):
            (by_item[rows] @ X).toarray(out=P[rows])  # P = X'X
        if ratings.item_features is not None:
            scaled = diags_array(self.item_weight * np.float32(of_features))
            features = (scaled @ ratings.item_features.matrix).tocsr()
            for rows in _row_blocks(n):
                P[rows] += (features[rows] @ features.T).toarray()
        P[np.diag_indices_from(P)] += np.float32(self.penalty)
        # LAPACK works on columns, so on the transpose, and writes one triangle: the upper one here.
        _, failed = lapack.spotrf(P.T, lower=True, clean=False, overwrite_a=True)
        if failed:
            raise DataError(
                "The Gram matrix of the items is singular in single precision; try a larger "
                "regularization."
            )
        lapack.spotri(P.T, lower=True, overwrite_c=True)
        for rows in _row_blocks(n):
            corner = P[rows, rows]
            corner[:] = np.triu(corner) + np.triu(corner, 1).T
            P[rows.stop :, rows] = P[rows, rows.stop :].T
        scale = -1 / np.diagonal(P)
        for rows in _row_blocks(n):
            P[rows] *= self.item_weight[rows, None] * scale
        np.fill_diagonal(P, 0)
        self.weights = P  # D (I - P diag(P)^-1)
        self._fit_profiles(ratings)

    def item_vectors(self) -> Floats:
        """Return the weights with the items of the fit, shape (n_items, n_items_of_the_fit)."""
        return self.weights if self._source is self else np.ascontiguousarray(self.weights.T)

    def predict(self, users: ArrayLike, items: ArrayLike) -> Floats:
        """Scores of pairs, shape (n_pairs,), the same bits as in `scores`: all items are scored."""
        u, i = self._checked_pairs(users, items)
        distinct, rows = np.unique(u, return_inverse=True)
        order = np.argsort(rows, kind="stable")
        found = np.empty(len(u), dtype=np.float32)
        for block in _row_blocks(len(distinct), self.n_items):
            first, last = np.searchsorted(rows[order], (block.start, block.stop))
            pairs = order[first:last]
            found[pairs] = self.scores(distinct[block])[rows[pairs] - block.start, i[pairs]]
        return found

    def scores(self, users: ArrayLike) -> Floats:
        """Scores of all items for each user, shape (n_block, n_items); the same bits in any."""
        u = check_indices(users, self.n_users, "user")
        found = kernels.csr_matmat(self._everyone().take(u).csr, self.weights)
        if self._new[1]:
            from scipy.sparse import csr_array

            positions = kernels.csr_arrays(csr_array(self.user_positions[u]))
            found += kernels.csr_matmat(positions, np.ascontiguousarray(self.user_columns.T))
        return found

    def _compared(self, side: str) -> Floats | None:
        vectors = super()._compared(side)
        if vectors is not None and side == "item" and "item_positions" in vars(self):
            rated = self._source.item_positions[:, -1] == 0
            vectors = vectors if rated.all() else vectors * rated  # weights with items of the fit
        return vectors

    def _renumber(self, arrays: dict[str, NDArray[Any]], side: str, place: Indices) -> None:
        if side == "item":
            wide = np.zeros((len(self.item_vector_map), len(place)), np.float32)
            wide[:, place[: self.n_items]] = self.item_vector_map
            arrays["item_vector_map"] = wide

    def _set_columns(self) -> None:
        """Set the weights of items without users, and what users without a history get."""
        if self.knows("item"):
            new = self.item_positions[:, -1] > 0
            self.weights[:, new] = self._source.item_profiles @ self.item_positions[new].T
        if self.knows("user"):
            self.user_columns = self._scored(self._source.user_histories)

    def _counting(self, histories: Histories) -> Floats:
        return histories.values / np.float32(self.unit)

    def _filter(self, Z: Floats) -> Floats:
        found: Floats = self.weights @ Z
        return found

    def _scored(self, Q: Floats) -> Floats:
        found: Floats = self.weights.T @ Q
        return found

    def _entries(self, rows: Indices, columns: Indices) -> Floats:
        return self.weights[np.ix_(rows, columns)]

    def _set_items(self, histories: Histories) -> None:
        """Solve the ridge regression of each new item on the items of the fit."""
        n_known = self.n_items
        weights = np.empty((n_known, histories.n_rows), np.float32)
        for block in _row_blocks(histories.n_rows, max(self.n_users, n_known)):
            rows = np.arange(block.start, block.stop)
            weights[:, block] = self._ridge(histories.take(rows), n_known)
        self.weights = weights

    def _ridge(self, items: Histories, n_known: int) -> Floats:
        """Solve (X'X + lambda I) B = X'C by conjugate gradients, so that no inverse is kept.

        C are the scaled weights of the new items' users; the preconditioner is the diagonal.
        """
        from scipy.sparse.linalg import LinearOperator, cg

        users = self._user_scale().astype(np.float64)
        values = self.history_weights * np.repeat(users, np.diff(self.history_indptr))
        X = self.history_indptr, self.history_items, values * self.item_weight[self.history_items]
        diagonal = np.bincount(X[1], X[2] ** 2, minlength=n_known) + self.penalty
        shape = n_known, items.n_rows
        n = n_known * items.n_rows

        def image(b: NDArray[np.float64]) -> NDArray[np.float64]:
            B = b.reshape(shape)
            product = kernels.csr_rmatmat(X, kernels.csr_matmat(X, B), n_known)
            return (product + self.penalty * B).ravel()

        C = np.zeros((self.n_users, items.n_rows))
        C[items.indices, items.rows] = items.values / np.float32(self.unit)
        C *= users[:, None] * power(C.sum(axis=0), -self.item_power)
        sides = kernels.csr_rmatmat(X, C, n_known)
        lengths = np.linalg.norm(sides, axis=0)
        lengths[lengths == 0] = 1  # all regressions are solved as one, so they are made alike
        found, is_left = cg(
            LinearOperator((n, n), image, dtype=np.float64),
            (sides / lengths).ravel(),
            rtol=_TOL,
            maxiter=_STEPS,
            M=LinearOperator((n, n), lambda b: (b.reshape(shape) / diagonal[:, None]).ravel()),
        )
        if is_left:
            raise DataError(
                f"The weights of the folded-in items did not converge in {_STEPS} steps; "
                "try a larger regularization."
            )
        solved: Floats = (found.reshape(shape) * lengths).astype(np.float32)
        solved *= self.item_weight[:, None]
        return solved

    def _user_scale(self) -> Floats:
        """Return the factors of the rows of X, shape (n_users,)."""
        everyone = self._everyone()
        return power(np.bincount(everyone.rows, everyone.values, self.n_users), -self.user_power)


@model
class SparseEASE(LinearFilter):
    r"""Score as EASE does, by item-item weights that are sparse rows and a product of factors.

    EASE inverts G + lambda I, where G = X'X and X is scaled as there. With eigenvalues
    :math:`\lambda_j` and vectors V_j of G, of which the k leading ones are computed,

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
        That of `ease`.
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
    user_power: float = parameter(
        _POWER, "Exponent by which users with many items are weighted down.", low=0.0, high=1.0
    )
    item_power: float = parameter(
        _POWER, "Exponent by which items with many users are weighted down.", low=0.0, high=1.0
    )
    factors: int | None = parameter(
        None,
        "Number of directions in which the inverse is exact; by default those of spectral.",
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

    def _begin(self, ratings: Ratings) -> None:
        self.unit = weight_unit(ratings)
        self.weighted = bool((ratings.values != self.unit).any())
        self.penalty, _ = _penalty(ratings, self)

    def _counting(self, histories: Histories) -> Floats:
        found: Floats = histories.values / np.float32(self.unit)
        return found

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
            image *= inverse_of(self.item_weight)[:, None]
            kept = np.einsum("ij,ij->j", vectors, image, dtype=np.float64) / self._slope
        self.response = -self._correction(kept).astype(np.float32)
        # An item says nothing of itself: B has a diagonal of zeros.
        own = np.square(self.item_factors) @ self.response * self.item_weight / self.item_output
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


def _penalty(ratings: Ratings, model: EASE | SparseEASE) -> tuple[float, float]:
    """Return the penalty in units of scaled interactions, and the scale of a typical user."""
    items = np.bincount(ratings.indices, minlength=ratings.n_items)
    squares = [
        float(np.average(power(counts, -2 * exponent), weights=counts))
        for counts, exponent in (
            (np.diff(ratings.indptr), model.user_power),
            (items, model.item_power),
        )
    ]
    given = model.regularization or default_penalty(items)
    return given * squares[0] * squares[1], math.sqrt(squares[0])


def default_penalty(counts: NDArray[np.integer[Any]]) -> float:
    """Return the penalty for items with so many users.

    Examples
    --------
    >>> default_penalty(np.array([8, 8, 8]))
    180.0
    """
    found = counts.astype(np.float64)
    return float(_PENALTY * np.cbrt(found @ found / found.sum()))


def _row_blocks(n: int, width: int | None = None) -> Iterator[slice]:
    """Return blocks of rows, whose entries are `width` each, by default n."""
    return kernels.pieces(n, max(1, _BLOCK // max(1, n if width is None else width)))
