"""A sparse matrix less a matrix of rank one, against the dense array that it stands for."""

import numpy as np
import pytest
from scipy import sparse

from lowrank.rank import bi_cross_validation, whole_spectrum
from lowrank.samples import SparseSamples


def centred(rows, columns, seed=0):
    """Return scaled sparse data less the means of their rows, and the same as a dense array."""
    rng = np.random.default_rng(seed)
    X = sparse.random_array((rows, columns), density=0.3, rng=rng).tocsr()
    weights = rng.uniform(0.5, 2, columns)
    csr = (X @ sparse.diags_array(weights)).tocsr()
    csr.sum_duplicates()
    offsets = X.sum(axis=1) / columns
    return SparseSamples(csr, offsets, weights), csr.toarray() - np.outer(offsets, weights)


@pytest.mark.parametrize("shape", [(40, 12), (12, 40)])
def test_products_and_parts(shape):
    A, dense = centred(*shape)
    X = np.random.default_rng(1).standard_normal((shape[1], 3))
    np.testing.assert_allclose(A @ X, dense @ X, atol=1e-12)
    np.testing.assert_allclose(A.T @ (dense @ X), dense.T @ dense @ X, atol=1e-12)
    np.testing.assert_allclose(A @ X[:, 0], dense @ X[:, 0], atol=1e-12)
    np.testing.assert_allclose(A.T @ dense[:, 0], dense.T @ dense[:, 0], atol=1e-12)
    rows, columns = np.array([5, 2, 7]), np.array([3, 0])
    part = dense[rows][:, columns]
    np.testing.assert_allclose(A[rows, columns] @ np.eye(2), part, atol=1e-12)
    np.testing.assert_allclose(A[rows] @ X, dense[rows] @ X, atol=1e-12)


@pytest.mark.parametrize("center", [False, True])
def test_other_entries_have_columns_of_the_same_length(center):
    A, dense = centred(40, 12)
    other = A.with_entries(A.csr[::-1].tocsr(), center)
    changed = other @ np.eye(12)
    length = np.std if center else np.linalg.norm
    np.testing.assert_allclose(length(changed, axis=0), length(dense, axis=0), rtol=1e-9)
    np.testing.assert_allclose((changed / other.weights).mean(axis=1), 0, atol=1e-12)


@pytest.mark.parametrize("shape", [(40, 12), (12, 40)])
@pytest.mark.parametrize("center", [False, True])
def test_spectrum_and_cross_validation_are_those_of_the_dense_array(shape, center):
    A, dense = centred(*shape)
    expected = whole_spectrum(dense, center)
    np.testing.assert_allclose(whole_spectrum(A, center), expected, atol=1e-6)
    ours, theirs = (
        bi_cross_validation(matrix, center=center, random_state=0) for matrix in (A, dense)
    )
    np.testing.assert_allclose(ours, theirs, rtol=1e-6)
