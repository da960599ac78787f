"""The kernel of Gaussian posteriors against its NumPy reference, on every instruction set."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
import scipy.sparse as sp

from lowrank import kernels
from lowrank.kernels import posteriors

COMPILED = kernels.supported()[1:]
TOLERANCE = {np.float32: 3e-4, np.float64: 1e-10}


@pytest.fixture(autouse=True)
def _restore_kernels():
    active = kernels.backend()
    yield
    kernels.use(active.instruction_set or "reference")


def positive_definite(d, rng, scale=1.0):
    root = rng.normal(size=(d, d)) * scale
    return root @ root.T / d + 0.5 * scale**2 * np.eye(d)


def make_problem(n, m, k, dtype, seed, density=0.3):
    rng = np.random.default_rng(seed)
    A = sp.random_array((n, m), density=density, rng=rng, format="csr", dtype=dtype)
    A.sort_indices()
    d = k + 1
    covariances = np.array(
        [positive_definite(d, rng, 0.3)[np.triu_indices(d)] for _ in range(m)]
    )
    pattern = sp.csr_array((np.ones_like(A.data), A.indices, A.indptr), shape=A.shape)
    return {
        "matrix": kernels.csr_arrays(A),
        "other": rng.normal(size=(m, d)).astype(dtype),
        "prior": positive_definite(d, rng).astype(dtype),
        "weight": rng.uniform(0.5, 2, n).astype(dtype),
        "prior_right": rng.normal(size=(n, d)).astype(dtype),
        "summed": (pattern @ covariances).astype(dtype),
    }


def solve(problem, name, *, covariance=True, threads=1):
    kernels.use(name)
    vectors = np.full_like(problem["prior_right"], np.nan)
    packed = problem["summed"].copy() if covariance else None
    result = posteriors.posterior_half_sweep(
        problem["matrix"],
        problem["other"],
        prior=problem["prior"],
        weight=problem["weight"],
        prior_right=problem["prior_right"],
        vectors=vectors,
        shift=0.3,
        noise_variance=0.7,
        covariance=packed,
        threads=threads,
    )
    return [vectors, *result, *([packed] if covariance else [])]


@cache
def posteriors_of(name, dtype, k):
    """Return posteriors with and without covariances."""
    problem = make_problem(37, 60, k, dtype, seed=k)
    return [solve(problem, name, covariance=covariance) for covariance in (True, False)]


@pytest.mark.covering
@pytest.mark.parametrize("name", COMPILED)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("k", [1, 2, 7, 15, 16, 32, 33, 70])
def test_posteriors_equal_reference(name, dtype, k):
    references = posteriors_of("reference", dtype, k)
    for got, expected in zip(posteriors_of(name, dtype, k), references, strict=True):
        for ours, theirs in zip(got, expected, strict=True):
            scale = max(1.0, np.abs(theirs).max())
            np.testing.assert_allclose(
                ours, theirs, atol=TOLERANCE[dtype] * scale, rtol=0
            )


@pytest.mark.parametrize("name", ["reference", *COMPILED])
def test_the_posterior_minimises_the_expected_squares(name):
    """The expectation over the columns is taken by the formula for a quadratic form."""
    k, d, rng = 3, 4, np.random.default_rng(0)
    problem = make_problem(9, 12, k, np.float64, seed=3, density=0.5)
    vectors, objective, *_ = solve(problem, name)
    indptr, indices, data = problem["matrix"]
    prior, weight = problem["prior"], problem["weight"]

    def value(row, w):
        seen = slice(indptr[row], indptr[row + 1])
        columns = problem["other"][indices[seen]]
        error = data[seen] - 0.3 - columns[:, :k] @ w[:k] - columns[:, k] - w[k]
        summed = np.zeros((d, d))
        summed[np.triu_indices(d)] = problem["summed"][row]
        summed = summed + np.triu(summed, 1).T
        v = np.append(w[:k], 1)  # the variance of m . a + c
        quadratic = weight[row] * (w @ prior @ w) - 2 * w @ problem["prior_right"][row]
        return error @ error + v @ summed @ v + quadratic

    for row in range(9):
        best = value(row, vectors[row])
        assert best == pytest.approx(objective[row], rel=1e-9)
        for _ in range(5):
            assert value(row, vectors[row] + rng.normal(size=d) * 1e-3) >= best


@pytest.mark.parametrize("name", ["reference", *COMPILED])
def test_rows_without_entries_have_their_prior(name):
    problem = make_problem(6, 8, 2, np.float64, seed=1, density=0.0)
    problem["summed"][:] = 0
    vectors, _, log_det, packed = solve(problem, name)
    for row in range(6):
        system = problem["weight"][row] * problem["prior"]
        inverse = np.linalg.inv(system)
        np.testing.assert_allclose(vectors[row], inverse @ problem["prior_right"][row])
        np.testing.assert_allclose(packed[row], 0.7 * inverse[np.triu_indices(3)])
        assert log_det[row] == pytest.approx(np.linalg.slogdet(system)[1])


@pytest.mark.parametrize("name", COMPILED)
def test_same_bits_on_any_number_of_threads(name):
    problem = make_problem(500, 80, 20, np.float32, seed=3)
    for options in ({}, {"covariance": False}):
        one = solve(problem, name, **options)
        for threads in (2, 3, 8):
            for a, b in zip(
                solve(problem, name, threads=threads, **options), one, strict=True
            ):
                np.testing.assert_array_equal(a, b)


@pytest.mark.skipif(not COMPILED, reason="no compiled kernels in this installation")
def test_shapes_are_checked_before_memory_is_touched():
    problem = make_problem(5, 8, 2, np.float64, seed=1)
    with pytest.raises(ValueError, match="one packed triangle per row"):
        solve(problem | {"summed": np.zeros((5, 5))}, COMPILED[-1])
    with pytest.raises(ValueError, match="prior must be square"):
        solve(problem | {"prior": np.eye(4)}, COMPILED[-1])


@pytest.mark.parametrize("name", COMPILED)
def test_without_inverses_covariances_stay_and_means_are_the_same(name):
    problem = make_problem(37, 60, 5, np.float64, seed=2)
    kernels.use(name)
    found = []
    for invert in (True, False):
        vectors, packed = (
            np.empty_like(problem["prior_right"]),
            problem["summed"].copy(),
        )
        parts = {key: problem[key] for key in ("prior", "weight", "prior_right")}
        posteriors.posterior_half_sweep(
            problem["matrix"],
            problem["other"],
            **parts,
            vectors=vectors,
            covariance=packed,
            invert=invert,
        )
        found.append((vectors, packed))
    np.testing.assert_array_equal(found[0][0], found[1][0])
    np.testing.assert_array_equal(found[1][1], problem["summed"])


@pytest.mark.parametrize("name", ["reference", *COMPILED])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("k", [1, 5, 16, 33])
def test_entries_of_products_equal_the_dense_product(name, dtype, k):
    rng = np.random.default_rng(k)
    A = sp.random_array((40, 30), density=0.2, rng=rng, format="csr", dtype=dtype)
    left, right = (rng.normal(size=(n, k + 1)).astype(dtype) for n in A.shape)
    kernels.use(name)
    found = kernels.csr_entries(kernels.csr_arrays(A), left, right)
    dense = left[:, :-1] @ right[:, :-1].T + left[:, -1:] + right[:, -1]
    rows = np.repeat(np.arange(40), np.diff(A.indptr))
    np.testing.assert_allclose(found, dense[rows, A.indices], atol=TOLERANCE[dtype])
    assert found.dtype == dtype
