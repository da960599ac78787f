"""Vector space of an index: weights of words, directions of a truncated SVD, and its update."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

import lowrank
from lowrank.kernels import csr_arrays, csr_matmat, one_blas_thread, pieces
from lowrank.kernels.arrays import Float64s, Floats, Int64s
from recsys.errors import DataError, is_integer

if TYPE_CHECKING:
    from lowrank.arguments import RandomStateLike


DEFAULT_RANK = 75
_SHARE = 3  # default minimum number of documents (or terms) for each dimension
# Squares below this share of the largest one are rounding errors of zero.
_NOTHING = 1e-10
_LARGE = 20_000  # number of documents from which on _TOL is used; it saves a third of the passes
_TOL = 1e-2  # tolerance of the SVD; with it the directions explain 2e-4 less
_MANY = 65_536  # number of entries from which on products use all cores
_BLOCK = 512  # number of rows added at once, to limit the size of the small matrix

WEIGHTINGS = ("tfidf", "log-entropy", "count")


@dataclass(frozen=True, eq=False)
class Space:
    """Directions of terms U_k', orthonormal rows, with their singular values."""

    components: Floats
    singular_values: Floats

    def project(self, rows: Any) -> Floats:
        """Return ``rows @ components.T`` for CSR rows, shape (n_rows, k).

        For training documents these are rows of V_k S_k; for others they are the fold-in.
        """
        components = self.components
        # For a query, use the directions of its few terms only.
        if 4 * rows.nnz < rows.shape[1]:
            used = np.unique(rows.indices)
            rows = rows[:, used]
            components = components[:, used]
        turned = np.ascontiguousarray(components.T)
        if rows.dtype == turned.dtype and rows.nnz > _MANY:
            return np.asarray(csr_matmat(csr_arrays(rows), turned))
        return np.ascontiguousarray(rows @ turned, dtype=components.dtype)


@dataclass(frozen=True)
class Added:
    """Result of adding documents.

    Attributes
    ----------
    n_documents : int
        Number of added documents.
    method : {"fold-in", "update"}
    outside : float
        Share of their squared weights outside the previous space, from 0 to 1. Folding in ignores
        this share; an update includes as much of it as the rank allows.
    orthogonality_loss : float
        ||V'V - I||_2, where V are all document vectors divided by the singular values. It is 0 for
        an SVD, and grows with folding in.
    unknown_words : int
        Number of occurrences of words that the index did not have. If the index has counts of
        texts, they are new terms, which are found by words, but without meaning until a new fit.
    n_replaced : int
        Number of documents that had the same ids and were removed.
    """

    n_documents: int
    method: str
    outside: float
    orthogonality_loss: float
    unknown_words: int
    n_replaced: int = 0


def default_rank(shape: tuple[int, int], most: int = DEFAULT_RANK) -> int:
    """Return the default number of dimensions: `most`, fewer for small collections.

    In collections of 1,400 to 7,000 documents, hybrid search is about equally good with 50 to 200
    dimensions; LSI alone is best with 100 to 300. Random subsets of Cranfield of 200 to 700
    documents are best searched with a fifth to a half as many dimensions as documents.
    """
    return max(1, min(most, max(2, min(shape) // _SHARE), *shape))


def decompose(
    weighted: Any,
    n_components: int | str | None,
    random_state: RandomStateLike,
) -> Space:
    """Compute the space of a weighted document-by-term matrix.

    `n_components` is the number of dimensions, a rule of `lowrank.choose_rank`, or None for
    `default_rank`. Directions whose singular value is zero within rounding are left out.

    Raises
    ------
    DataError
        If `n_components` is out of its range, or no document has a weight.
    """
    largest = min(weighted.shape)
    if n_components is None:
        k = default_rank(weighted.shape)
    elif isinstance(n_components, str):
        seed = 0 if random_state is None else random_state
        try:
            chosen = lowrank.choose_rank(
                weighted, n_components, center=False, random_state=seed
            )
            k = max(1, chosen)
        except ValueError as error:
            raise DataError(
                f"n_components must be a rank or a rule for it: {error}"
            ) from error
    elif is_integer(n_components) and 1 <= n_components <= largest:
        k = int(n_components)
    else:
        raise DataError(
            f"n_components must be an integer from 1 to {largest} (documents or terms, whichever "
            f"are fewer), None, or a rule of lowrank.choose_rank; got {n_components!r}."
        )
    n_documents = weighted.shape[0]
    tol = _TOL if n_documents > _LARGE else None
    svd = lowrank.truncated_svd(weighted, k, tol=tol, random_state=random_state)
    eps = np.finfo(svd.s.dtype).eps
    rounding = svd.s[0] * max(weighted.shape) * eps
    n_above = int(np.sum(svd.s > rounding))
    if not n_above:
        raise DataError(
            "There is nothing to decompose: all terms have weight zero everywhere."
        )
    return Space(svd.Vt[:n_above], svd.s[:n_above])


def orthogonality_loss(gram: Float64s, singular_values: NDArray[Any]) -> float:
    """Return ||V'V - I||_2 of V = X / singular_values, given X'X of the coordinates X."""
    scaled = gram / np.outer(singular_values, singular_values).astype(np.float64)
    error = scaled - np.eye(len(scaled))
    # The norm of a symmetric matrix is its largest eigenvalue.
    eigenvalues = np.linalg.eigvalsh(error)
    return float(np.abs(eigenvalues).max())


def energy(values: NDArray[Any]) -> float:
    """Return the sum of squares, accumulated in float64 without a copy."""
    flat = values.reshape(-1)
    parts = pieces(len(flat), 2**20)
    total = 0.0
    for part in parts:
        squares = np.square(flat[part], dtype=np.float64)
        total += float(squares.sum())
    return total


def outside_share(rows: Any, coordinates: NDArray[Any]) -> float:
    """Return the share of the squared entries of rows that is lost in their coordinates."""
    total = energy(rows.data)
    if total == 0:
        return 0.0
    share_inside = energy(coordinates) / total
    return min(1.0, max(0.0, 1 - share_inside))


def with_documents(
    space: Space,
    documents: Any,
    n_new: int,
) -> tuple[Space, NDArray[Any]]:
    """Add the last `n_new` rows to a space; return the space and the coordinates of all rows.

    The rank stays the same, or falls if a dimension has lost its weight. The result is the exact
    SVD if the old matrix had rank k. Otherwise it lacks the error of the rank-k approximation.

    References
    ----------
    Zha & Simon (1999), "On updating problems in latent semantic indexing", section 3.1.
    Brand (2006), "Fast low-rank modifications of the thin singular value decomposition", section 2.
    """
    with one_blas_thread():  # more threads do not speed up many small decompositions
        components = space.components.astype(np.float64)
        values = space.singular_values.astype(np.float64)
        n = documents.shape[0]
        for start in range(n - n_new, n, _BLOCK):
            block = documents[start : start + _BLOCK].astype(np.float64)
            components, values = _with_rows(components, values, block)
        return _rayleigh_ritz(components, documents, space.components.dtype)


def _with_rows(
    components: Float64s,
    s: Float64s,
    rows: Any,
) -> tuple[Float64s, Float64s]:
    """Return the k directions and values of the old matrix (of rank k) with further rows."""
    k = len(s)
    P = rows @ components.T
    # Eigenvectors W of R'R, scaled: Q = (D' - U P') W / root, and R = root W'.
    products = (rows @ rows.T).toarray()
    squares, W = np.linalg.eigh(products - P @ P.T)
    largest = squares.max(initial=0.0)
    largest = max(largest, s[0] ** 2)
    is_new = squares > largest * _NOTHING  # the others are inside the old space
    root = np.sqrt(squares[is_new])
    W = W[:, is_new]
    # The singular values of [diag(s) 0; P R'] are those of the matrix with the new rows.
    shape = (k + len(P), k + len(root))
    small = np.zeros(shape)
    small[:k, :k] = np.diag(s)
    small[k:, :k] = P
    small[k:, k:] = W * root
    eigenvalues, G = np.linalg.eigh(small.T @ small)
    leading = np.argsort(-eigenvalues, kind="stable")[:k]
    G = G[:, leading]
    of_rows = (W / root) @ G[k:]
    of_components = G[:k] - P.T @ of_rows
    directions = (components.T @ of_components + rows.T @ of_rows).T
    values = np.sqrt(np.maximum(eigenvalues[leading], 0.0))
    return np.ascontiguousarray(directions), values


def _rayleigh_ritz(
    components: Float64s,
    documents: Any,
    dtype: Any,
) -> tuple[Space, NDArray[Any]]:
    """Rotate the directions so that the coordinates of the documents are uncorrelated."""
    # The rows are orthonormal up to rounding, so one round of Cholesky QR is enough.
    triangle = np.linalg.cholesky(components @ components.T)
    components = np.linalg.inv(triangle) @ components
    coordinates = documents @ np.ascontiguousarray(components.T)
    eigenvalues, turn = np.linalg.eigh(coordinates.T @ coordinates)
    order = np.argsort(-eigenvalues, kind="stable")
    order = order[eigenvalues[order] > eigenvalues.max() * _NOTHING]
    turn = turn[:, order]
    directions = turn.T @ components
    # Signs are chosen so that the largest entry of each direction is positive.
    largest = np.abs(directions).argmax(axis=1)
    rows = np.arange(len(directions))
    signs = np.sign(directions[rows, largest])
    directions *= signs[:, None]
    turn = turn * signs
    values = np.sqrt(eigenvalues[order])
    space = Space(directions.astype(dtype), values.astype(dtype))
    return space, (coordinates @ turn).astype(dtype)


@dataclass(frozen=True, eq=False)
class Weighting:
    """Weighting of counts, with the global weights of terms; for `power` see `apply`.

    ==============  ================================  ==========================================
    name            weight of a count c               global weight of a term
    ==============  ================================  ==========================================
    ``tfidf``       1 + ln c (c itself below 1)       ln((1 + n) / df), df of n documents have it
    ``log-entropy`` ln(1 + c)                         1 + sum p ln p / ln n, p = c / sum of c
    ``count``       c                                 1
    ==============  ================================  ==========================================

    References
    ----------
    Dumais (1991), "Improving the retrieval of information from external sources".
    """

    name: str
    term_weights: Float64s
    power: float = 1.0

    @classmethod
    def learn(
        cls,
        name: str,
        counts: Any,
        power: float = 1.0,
    ) -> Self:
        """Learn the global weights from counts, a csr_array of shape (n_documents, n_terms).

        Raises
        ------
        DataError
            If a count is negative and the weighting takes logarithms.
        """
        if name != "count" and counts.nnz and counts.data.min() < 0:
            raise DataError(
                f"The weighting {name!r} needs counts, which are not negative; "
                f"got {counts.data.min():g}. Negative values in data need weighting='count'."
            )
        n_documents, n_terms = counts.shape
        weights: Float64s = np.ones(n_terms)
        if name == "tfidf":
            frequency = np.bincount(counts.indices, minlength=n_terms)
            # Terms of a given vocabulary may be in no document.
            weights = np.log((1 + n_documents) / np.maximum(frequency, 1))
        elif name == "log-entropy" and n_documents > 1:
            sums = counts.sum(axis=0, dtype=np.float64)
            shares = counts.data / sums[counts.indices]
            products = shares * np.log(shares)
            weights += np.bincount(
                counts.indices, products, minlength=n_terms
            ) / np.log(n_documents)
            # A term in all documents alike has no weight, but for rounding.
            weights[weights <= n_documents * np.finfo(np.float64).eps] = 0
        return cls(name, weights, power)

    def _local(self, counts: Floats) -> Floats:
        """Return the weights of counts in a document."""
        if self.name == "count":
            return counts
        if self.name == "log-entropy":
            return np.log1p(counts)
        # The tangent c continues 1 + ln c below 1.
        logarithms = np.log(np.maximum(counts, 1))
        return np.where(counts >= 1, 1 + logarithms, counts)

    def apply(self, counts: Any) -> Any:
        """Return the weighted matrix.

        Rows are divided by their length to the `power`, except with "count". With 1 rows have
        length 1 (except empty ones); with 1/2 long documents have more weight in a decomposition.
        """
        weights = self.term_weights.astype(counts.dtype)[counts.indices]
        local = self._local(counts.data)
        weights *= local.astype(counts.dtype, copy=False)
        csr = (weights, counts.indices, counts.indptr)
        weighted = sparse.csr_array(csr, shape=counts.shape, copy=False)
        if self.name == "count":
            return weighted
        squares: sparse.csr_array[np.float64]
        squares = weighted.power(2, dtype=np.float64)
        norms = np.sqrt(squares.sum(axis=1))
        inverse = np.zeros_like(norms)
        np.power(norms, -self.power, out=inverse, where=norms > 0)
        row_lengths = np.diff(weighted.indptr)
        # This array is a part of `weighted`.
        weights *= np.repeat(inverse.astype(counts.dtype), row_lengths)
        return weighted

    def of_query(self, terms: Int64s, counts: Floats) -> Floats:
        """Return the weights of the terms of a query, which are not scaled."""
        weights = self._local(counts) * self.term_weights[terms]
        return weights.astype(counts.dtype)


def canonical_csr(matrix: Any) -> Any:
    """Return a copy as CSR array with sorted indices, without duplicates and stored zeros."""
    from lowrank.operators import canonical  # not needed by queries

    csr = sparse.csr_array(matrix, copy=True)
    if not np.issubdtype(csr.dtype, np.floating):
        csr = csr.astype(np.float64)
    return canonical(csr)
