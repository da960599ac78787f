"""The leading singular directions of a sparse matrix, from a few steps of subspace iteration."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import example, given
from hypothesis import strategies as st

from lowrank import kernels
from lowrank.subspace import leading_directions


def sparse(
    n: int, m: int, *, rank: int | None = None, density: float = 0.2
) -> sp.csr_array:
    """Return a random sparse matrix; of low rank, its rows are multiples of a few."""
    generator = np.random.default_rng(n * m)
    A = sp.random_array((rank or n, m), density=density, rng=generator, format="csr")
    if rank is not None:
        places = np.arange(n), np.arange(n) % rank
        A = sp.csr_array((1 + generator.random(n), places), shape=(n, rank)) @ A
    A.sort_indices()
    return A


def directions(
    A: sp.csr_array, k: int, **options: int
) -> tuple[np.ndarray, np.ndarray]:
    return leading_directions(kernels.csr_arrays(A), A.shape[1], k, **options)


@pytest.mark.parametrize("shape", [(60, 200), (200, 60), (100, 100)])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_many_steps_find_the_singular_values_and_right_vectors(shape, dtype):
    A = sparse(*shape).astype(dtype)
    vectors, values = directions(A, 5, steps=60, extra=20)
    _, s, Vt = np.linalg.svd(A.toarray())
    tolerance = 1e-4 if dtype == np.float32 else 1e-9
    np.testing.assert_allclose(values, s[:5], rtol=tolerance)
    np.testing.assert_allclose(
        np.abs(np.sum(vectors.T * Vt[:5], axis=1)), 1, rtol=tolerance
    )
    assert vectors.dtype == values.dtype == dtype


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@example(12, 12, 5, 4)  # in float32, where rounding is easily taken for a direction
@example(20, 8, 8, 1)
@given(st.integers(1, 30), st.integers(1, 30), st.integers(1, 8), st.integers(1, 4))
def test_vectors_are_orthonormal_and_values_fall_and_are_never_too_large(
    dtype, n, m, k, steps
):
    A = sparse(n, m, density=0.5).astype(dtype)
    tolerance = 2 * np.sqrt(np.finfo(dtype).eps)  # half the digits, of Gram matrices
    vectors, values = directions(A, k, steps=steps)
    found = values > 0
    gram = vectors[:, found].T @ vectors[:, found]
    np.testing.assert_allclose(gram, np.eye(found.sum()), atol=tolerance)
    assert not vectors[:, ~found].any()
    s = np.linalg.svd(A.toarray(), compute_uv=False)
    exact = np.pad(s, (0, k))[:k]
    assert (np.diff(values) <= 0).all()
    assert (values <= exact + tolerance * exact[0]).all()


@pytest.mark.parametrize("shape", [(40, 90), (90, 40)])
def test_directions_beyond_the_rank_are_zeros(shape):
    A = sparse(*shape, rank=4)
    vectors, values = directions(A, 9)
    s = np.linalg.svd(A.toarray(), compute_uv=False)
    np.testing.assert_allclose(values[:4], s[:4], rtol=1e-6)
    assert not values[4:].any()
    assert not vectors[:, 4:].any()


def test_a_steep_spectrum_keeps_its_small_directions():
    A = sparse(80, 120)
    A.data *= np.repeat(10.0 ** -np.linspace(0, 3, 80), np.diff(A.indptr))
    _, values = directions(A.astype(np.float32), 40, extra=20)
    exact = np.linalg.svd(A.toarray(), compute_uv=False)[:40]
    assert (values > 0.5 * exact).all()


def test_a_matrix_of_zeros_has_no_directions():
    vectors, values = directions(sp.csr_array((5, 7), dtype=np.float32), 3)
    assert vectors.shape == (7, 3)
    assert not vectors.any()
    assert not values.any()


def test_the_same_seed_gives_the_same_bits_and_another_seed_does_not():
    A = sparse(50, 70)
    first, again, other = (directions(A, 6, random_state=seed)[0] for seed in (1, 1, 2))
    np.testing.assert_array_equal(first, again)
    assert (first != other).any()


@pytest.mark.parametrize("shape", [(300, 120), (120, 300)])
def test_a_step_from_directions_of_similar_rows_is_as_good_as_many(shape):
    A = sparse(*shape, rank=20) + 0.1 * sparse(*shape)
    similar = A.copy()
    similar.data[::10] = 0
    k = 12
    start, _ = directions(similar, k, steps=20)
    _, started = directions(A, k, steps=1, start=start)
    _, random = directions(A, k, steps=1)
    exact = np.linalg.svd(A.toarray(), compute_uv=False)[:k]
    error = np.abs(started / exact - 1).max()
    assert error < 0.01
    assert error < np.abs(random / exact - 1).max() / 3


def test_entries_that_nearly_equal_their_shifts():
    generator = np.random.default_rng(0)
    A = sp.random_array((30, 40), density=0.4, rng=generator, format="csr")
    A.sort_indices()
    indptr, indices, _ = kernels.csr_arrays(A)
    levels = np.float32([1e7 - 1, 1e7, 1e7 + 1])
    codes = generator.integers(0, 3, A.nnz).astype(np.uint8)
    shifts = np.full(30, 1e7, np.float32), np.zeros(40, np.float32)
    coded = kernels.CodedMatrix(
        indptr, indices, codes, kernels.padded(levels), 40, *shifts
    )
    A.data = levels[codes] - shifts[0][0]
    _, values = leading_directions(coded, 40, 3, steps=60, extra=20)
    s = np.linalg.svd(A.toarray(), compute_uv=False)
    np.testing.assert_allclose(values, s[:3], rtol=1e-4)
