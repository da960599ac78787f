"""Samples as PCA takes them, against the dense arrays that they stand for."""

import numpy as np
import pytest
from scipy import sparse

from lowrank.blocks import RowBlocks
from lowrank.samples import project, samples_of

CONVERTERS = {
    "dense": lambda X: samples_of(X),
    "sparse": lambda X: samples_of(sparse.csr_array(X)),
    "blocks": lambda X: samples_of(RowBlocks([X[:7], X[7:]])),
    "rows centred": lambda X: samples_of(sparse.csr_array(X), True),
}


@pytest.mark.parametrize("shape", [(40, 12), (12, 40)])
@pytest.mark.parametrize("kind", CONVERTERS)
def test_statistics_and_products(kind, shape):
    rng = np.random.default_rng(0)
    X = sparse.random_array(shape, density=0.3, rng=rng).toarray()
    scale, row = rng.uniform(0.5, 2, shape[1]), rng.standard_normal(shape[1])
    samples = CONVERTERS[kind](X).scaled(scale)
    dense = (X - X.mean(axis=1, keepdims=True) * (kind == "rows centred")) * scale
    V, Y = rng.standard_normal((3, shape[1])), rng.standard_normal((shape[0], 3))
    np.testing.assert_allclose(samples.toarray(), dense, atol=1e-12)
    np.testing.assert_allclose(samples.column_means(), dense.mean(axis=0), atol=1e-12)
    np.testing.assert_allclose(
        samples.column_squares(row), ((dense - row) ** 2).sum(axis=0)
    )
    if samples.is_sparse:  # rows of dense samples are projected instead
        np.testing.assert_allclose(
            samples.row_squares(row), ((dense - row) ** 2).sum(axis=1)
        )
    np.testing.assert_allclose(
        samples.centred(row).frobenius_norm(), np.linalg.norm(dense - row)
    )
    np.testing.assert_allclose(
        project(samples, row, V), (dense - row) @ V.T, atol=1e-12
    )
    np.testing.assert_allclose(samples.rmatmat(Y), dense.T @ Y, atol=1e-12)
