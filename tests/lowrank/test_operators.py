"""The matrix as the solvers see it: every operator against the dense matrix it stands for."""

import numpy as np
import pytest
from scipy import sparse
from scipy.sparse.linalg import LinearOperator, aslinearoperator

from lowrank import (
    choose_rank,
    denoise,
    hard_threshold,
    kernels,
    leverage_scores,
    truncated_svd,
)
from lowrank.arguments import as_operator
from lowrank.operators import DenseOperator, ProductOperator, SparseOperator

ROWS, COLUMNS = 40, 300
MATRIX = sparse.random_array((ROWS, COLUMNS), density=0.2, rng=0).toarray()
ROW = np.linspace(-1.0, 2.0, COLUMNS)
CONTAINERS = {
    "dense": np.asarray,
    "fortran": np.asfortranarray,
    "csr": sparse.csr_array,
    "csc": sparse.csc_matrix,
    "operator": aslinearoperator,
}


def operators():
    """Pairs of an operator and the dense matrix that it stands for."""
    for name, container in CONTAINERS.items():
        for dtype in (np.float32, np.float64):
            plain = as_operator(container(MATRIX.astype(dtype)))
            marks = f"{name}-{np.dtype(dtype)}"
            yield pytest.param(plain, MATRIX, id=marks)
            yield pytest.param(plain.centred(ROW), MATRIX - ROW, id=f"{marks}-centred")
            yield pytest.param(plain.scaled(0.5), MATRIX * 0.5, id=f"{marks}-scaled")
            yield pytest.param(
                plain.centred(ROW).scaled(2.0), (MATRIX - ROW) * 2, id=f"{marks}-both"
            )


@pytest.mark.parametrize(("operator", "matrix"), list(operators()))
def test_stands_for_its_matrix(operator, matrix):
    rng = np.random.default_rng(0)
    X = rng.standard_normal((COLUMNS, 6)).astype(operator.dtype)
    Y = rng.standard_normal((ROWS, 6)).astype(operator.dtype)
    accuracy = {
        "atol": 200 * np.finfo(operator.dtype).eps * np.abs(matrix).sum(axis=1).max()
    }
    assert operator.shape == matrix.shape
    before = operator.passes
    products = operator.matmat(X), operator.rmatmat(Y), operator.toarray()
    assert operator.passes == before + 3
    assert {product.dtype for product in products} == {operator.dtype}
    np.testing.assert_allclose(products[0], matrix @ X, **accuracy)
    np.testing.assert_allclose(products[1], matrix.T @ Y, **accuracy)
    np.testing.assert_allclose(products[2], matrix, atol=1e-6)
    transposed = operator.transposed()
    assert transposed.shape == (COLUMNS, ROWS)
    np.testing.assert_allclose(transposed.matmat(Y), matrix.T @ Y, **accuracy)
    np.testing.assert_allclose(transposed.rmatmat(X), matrix @ X, **accuracy)
    np.testing.assert_allclose(operator.column_means(), matrix.mean(axis=0), atol=1e-6)


@pytest.mark.parametrize(("operator", "matrix"), list(operators()))
def test_frobenius_norm(operator, matrix):
    if operator.frobenius_norm() is None:
        assert operator.centred(ROW).frobenius_norm() is None
        return
    assert operator.frobenius_norm() == pytest.approx(np.linalg.norm(matrix), rel=1e-6)
    expected = pytest.approx(np.linalg.norm(matrix - ROW), rel=1e-6)
    assert operator.centred(ROW).frobenius_norm() == expected


def test_dense_means_dense():
    assert as_operator(MATRIX).stored_dense
    assert not as_operator(sparse.csr_array(MATRIX)).stored_dense
    assert not as_operator(aslinearoperator(MATRIX)).stored_dense


def test_kinds():
    assert isinstance(as_operator(MATRIX.tolist()), DenseOperator)
    assert isinstance(as_operator(sparse.lil_array(MATRIX)), SparseOperator)
    assert isinstance(as_operator(aslinearoperator(MATRIX)), ProductOperator)


def test_a_dense_array_is_not_copied():
    operator = as_operator(MATRIX)
    assert np.shares_memory(operator.toarray(), MATRIX)


def test_peak_is_the_largest_entry():
    matrix = np.array([[1.0, -7.0], [3.0, 0.0]])
    assert as_operator(matrix).peak == 7.0
    assert as_operator(sparse.csr_array(matrix)).peak == 7.0
    assert as_operator(sparse.csr_array((3, 4))).peak == 0.0


@pytest.mark.parametrize("container", [np.asarray, sparse.csr_array])
def test_distance_has_no_cancellation(container):
    rng = np.random.default_rng(0)
    matrix = 1e6 + rng.standard_normal((5000, 7)) * 1e-3
    operator = as_operator(container(matrix))
    expected = np.linalg.norm(matrix - matrix.mean(axis=0))
    norm = operator.centred(matrix.mean(axis=0)).frobenius_norm()
    assert norm == pytest.approx(expected, rel=1e-10)


@pytest.mark.parametrize("shape", [(700, 300), (300, 700)])
def test_identity_products_give_the_dense_matrix(shape):
    matrix = np.random.default_rng(0).standard_normal(shape)
    operator = as_operator(aslinearoperator(matrix))
    np.testing.assert_allclose(operator.toarray(), matrix, atol=1e-13)
    assert operator.passes == 1


@pytest.mark.parametrize("threads", [1, 2, 3, 8])
@pytest.mark.parametrize("shape", [(4, 0), (0, 4), (4, 3), (0, 0)])
def test_a_matrix_without_entries_is_transposed_on_any_number_of_threads(
    shape, threads
):
    arrays = kernels.csr_arrays(sparse.csr_array(shape))
    turned = kernels.transposed(arrays, shape[1], threads)
    assert (turned.indptr.tolist(), turned.indices.size) == ([0] * (shape[1] + 1), 0)


def test_rules_and_approximations_of_a_sparse_matrix_without_columns():
    A = sparse.csr_array((4, 0))
    token = kernels.default_threads.set(3)
    try:
        assert truncated_svd(A, 0, center=True).shape == (4, 0)
        assert denoise(A).shape == hard_threshold(A, 1.0).shape == (4, 0)
        assert leverage_scores(A, 0).size == choose_rank(A, "elbow") == 0
    finally:
        kernels.default_threads.reset(token)


def test_sides_of_numpy_integers_do_not_overflow():
    n = np.int32(50_000)
    S = sparse.random_array((int(n), int(n)), density=1e-6, rng=0, format="csr")
    operator = LinearOperator(
        (n, n),
        matvec=lambda x: S @ x,
        rmatvec=lambda x: S.T @ x,
        matmat=lambda X: S @ X,
        rmatmat=lambda X: S.T @ X,
        dtype=np.float64,
    )
    assert as_operator(operator).entries == 50_000**2
    result = truncated_svd(operator, 2, random_state=0)
    assert result.method == "lanczos"
    np.testing.assert_allclose(result.s, truncated_svd(S, 2, random_state=0).s)
