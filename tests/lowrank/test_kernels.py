"""Each compiled kernel against its NumPy reference, on every instruction set of this machine."""

from __future__ import annotations

import importlib
import os
import platform
import subprocess
import sys
import threading
import types
from functools import cache

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_digests import FILE, digests
from scipy.optimize import nnls
from threadpoolctl import threadpool_info, threadpool_limits

from lowrank import kernels
from lowrank.kernels import backends
from lowrank.kernels.retrieval import largest, sum_rows

COMPILED = kernels.supported()[1:]
TOLERANCE = {np.float32: 2e-4, np.float64: 1e-11}


@pytest.fixture(autouse=True)
def _restore_kernels():
    active = kernels.backend()
    yield
    kernels.use(active.instruction_set or "reference")


def random_csr(n, m, density, dtype, rng):
    A = sp.random_array((n, m), density=density, rng=rng, format="csr", dtype=dtype)
    A.sort_indices()
    return A.indptr.astype(np.int64), A.indices.astype(np.int32), A.data


def half_sweep(
    problem, k, *, name, fit_bias=True, threads=1, weights=None, nonnegative=False
):
    matrix, other, other_bias, penalty = problem
    kernels.use(name)
    factors = np.full((len(matrix[0]) - 1, k), np.nan, other.dtype)
    bias = np.full(len(factors), np.nan, other.dtype)
    objective = kernels.als_half_sweep(
        matrix,
        other,
        other_bias=other_bias,
        shift=0.3,
        penalty=penalty,
        bias_penalty=penalty / 2 if fit_bias else None,
        factors=factors,
        bias=bias,
        weights=weights,
        nonnegative=nonnegative,
        threads=threads,
    )
    return factors, bias, objective


def als_problem(n, m, k, density, dtype, seed):
    rng = np.random.default_rng(seed)
    matrix = random_csr(n, m, density, dtype, rng)
    other = rng.normal(size=(m, k)).astype(dtype)
    other_bias = rng.normal(size=m).astype(dtype)
    return matrix, other, other_bias, rng.uniform(0.5, 3, size=n).astype(dtype)


@cache
def half_sweeps(name, dtype, k):
    """Return half-sweeps with and without biases."""
    problem = als_problem(37, 60, k, 0.3, dtype, seed=k)
    return [
        half_sweep(problem, k, name=name, fit_bias=fit_bias)
        for fit_bias in (True, False)
    ]


def assert_near(got, expected, dtype):
    for ours, theirs in zip(got, expected, strict=True):
        scale = max(1.0, np.abs(theirs).max())
        np.testing.assert_allclose(ours, theirs, atol=TOLERANCE[dtype] * scale, rtol=0)


@pytest.mark.covering
@pytest.mark.parametrize("name", COMPILED)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("k", [1, 2, 7, 16, 17, 32, 33, 64, 130])
def test_half_sweep_equals_reference(name, dtype, k):
    references = half_sweeps("reference", dtype, k)
    for got, expected in zip(half_sweeps(name, dtype, k), references, strict=True):
        assert_near(got, expected, dtype)


@cache
def implicit_half_sweep(name, dtype, k, form, threads=1):
    """Return factors, minima and, for a block of factors, errors of a half-sweep."""
    rng = np.random.default_rng(k)
    indptr, indices, weights = random_csr(37, 60, 0.3, dtype, rng)
    weights[::3] = 1  # the weight that the kernel does not multiply by
    other = rng.normal(size=(60, k)).astype(dtype)
    gram, penalty = other.T @ other / 10, rng.uniform(0.5, 3, size=37).astype(dtype)
    right = rng.normal(size=(37, k)).astype(dtype) if form == "pulled" else None
    if form == "diagonal":
        gram = np.diag(np.diag(gram))
    factors, residual = np.full((37, k), np.nan, dtype), None
    if form == "block":
        factors = rng.normal(size=(37, k)).astype(dtype)
        residual = rng.normal(size=len(weights)).astype(dtype)
    kernels.use(name)
    objective = kernels.implicit_half_sweep(
        (indptr, indices, weights),
        other,
        gram=gram,
        penalty=penalty,
        factors=factors,
        right=right,
        residual=residual,
        threads=threads,
    )
    results = [factors, objective]
    if residual is not None:
        results.append(residual)
    return results


@pytest.mark.covering
@pytest.mark.parametrize("name", COMPILED)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("form", ["diagonal", "full", "pulled", "block"])
@pytest.mark.parametrize("k", [1, 7, 16, 33, 64, 130])
def test_implicit_half_sweep_equals_reference(name, dtype, k, form):
    got = implicit_half_sweep(name, dtype, k, form)
    assert_near(got, implicit_half_sweep("reference", dtype, k, form), dtype)
    on_threads = implicit_half_sweep(name, dtype, k, form, threads=3)
    for one, other in zip(got, on_threads, strict=True):
        np.testing.assert_array_equal(one, other)


@cache
def weighted_half_sweeps(name, dtype, k, nonnegative, threads=1):
    """Return half-sweeps with and without biases, and with and without weights."""
    matrix, other, other_bias, penalty = als_problem(37, 60, k, 0.3, dtype, seed=k)
    if nonnegative:
        other = np.abs(other)
    weights = np.random.default_rng(k).exponential(size=len(matrix[2])).astype(dtype)
    weights[::5] = 0
    return [
        half_sweep(
            (matrix, other, other_bias, penalty),
            k,
            name=name,
            fit_bias=fit_bias,
            threads=threads,
            weights=weights_of_entries,
            nonnegative=nonnegative,
        )
        for fit_bias in (True, False)
        for weights_of_entries in (weights, None)
    ]


@pytest.mark.covering
@pytest.mark.parametrize("name", COMPILED)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("nonnegative", [False, True])
@pytest.mark.parametrize("k", [1, 2, 7, 16, 17, 33, 64])
def test_weighted_half_sweep_equals_reference(name, dtype, k, nonnegative):
    sweeps = [
        weighted_half_sweeps("reference", dtype, k, nonnegative),
        weighted_half_sweeps(name, dtype, k, nonnegative),
        weighted_half_sweeps(name, dtype, k, nonnegative, threads=3),
    ]
    for expected, got, on_threads in zip(*sweeps, strict=True):
        assert_near(got, expected, dtype)
        for one, other in zip(got, on_threads, strict=True):
            np.testing.assert_array_equal(one, other)
        if nonnegative:
            assert got[0].min() >= 0


@pytest.mark.parametrize("name", kernels.supported())
@given(seed=st.integers(0, 2**32 - 1), k=st.integers(1, 20), n=st.integers(1, 40))
@settings(max_examples=40, deadline=None)
def test_nonnegative_rows_equal_scipy(name, seed, k, n):
    rng = np.random.default_rng(seed)
    target = rng.exponential(size=n)
    other = rng.normal(size=(n, k))  # of both signs, so that many unknowns are at zero
    penalty = 10.0 ** rng.uniform(-6, 1)
    kernels.use(name)
    factors = np.zeros((1, k))
    objective = kernels.als_half_sweep(
        (np.array([0, n]), np.arange(n, dtype=np.int32), target),
        other,
        penalty=np.array([penalty]),
        factors=factors,
        nonnegative=True,
    )
    design = np.vstack([other, np.sqrt(penalty) * np.eye(k)])
    solution, distance = nnls(design, np.append(target, np.zeros(k)))
    np.testing.assert_allclose(
        factors[0], solution, atol=1e-5 * np.abs(solution).max(), rtol=0
    )
    assert objective[0] == pytest.approx(
        distance**2, rel=1e-8, abs=1e-12 * target @ target
    )


@pytest.mark.parametrize("name", COMPILED)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_nonnegative_rows_without_a_unique_solution_reach_the_minimum(name, dtype):
    """With more factors than entries, equal factors or factors of zero, and without a penalty."""
    rng = np.random.default_rng(0)
    other = rng.exponential(size=(12, 30)).astype(dtype)
    other[:, 7] = other[:, 3]
    other[:, 9] = 0
    matrix = random_csr(25, 12, 0.5, dtype, rng)
    kernels.use(name)
    factors = rng.exponential(size=(25, 30)).astype(dtype)
    objective = kernels.als_half_sweep(
        matrix, other, penalty=np.zeros(25), factors=factors, nonnegative=True
    )
    assert factors.min() >= 0
    for row in range(25):
        entries = slice(matrix[0][row], matrix[0][row + 1])
        design, target = other[matrix[1][entries]].astype(float), matrix[2][entries]
        least = nnls(design, target.astype(float))[1] ** 2
        size = max(float(target @ target), 1.0)
        assert np.sum((design @ factors[row] - target) ** 2) <= least + 1e-6 * size
        assert objective[row] == pytest.approx(least, abs=1e-6 * size)


@pytest.mark.covering
@pytest.mark.parametrize("name", COMPILED)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("k", [1, 7, 16, 33, 64])
def test_nonnegative_implicit_half_sweep_equals_reference(name, dtype, k):
    rng = np.random.default_rng(k)
    weights = random_csr(37, 60, 0.3, dtype, rng)
    other = np.abs(rng.normal(size=(60, k))).astype(dtype)
    results = []
    for kernel, threads in (("reference", 1), (name, 1), (name, 3)):
        kernels.use(kernel)
        factors = np.zeros((37, k), dtype)
        objective = kernels.implicit_half_sweep(
            weights,
            other,
            gram=other.T @ other / 10,
            penalty=np.full(37, 0.5),
            factors=factors,
            nonnegative=True,
            threads=threads,
        )
        results.append((factors, objective))
    for expected, got, on_threads in zip(*results, strict=True):
        scale = max(1.0, np.abs(expected).max())
        np.testing.assert_allclose(got, expected, atol=TOLERANCE[dtype] * scale, rtol=0)
        np.testing.assert_array_equal(got, on_threads)


@pytest.mark.parametrize("name", COMPILED)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@given(
    seed=st.integers(0, 2**32 - 1),
    n=st.integers(0, 300),
    k=st.integers(1, 33),
    passes=st.integers(0, 3),
)
@settings(max_examples=30, deadline=None)
def test_descent_equals_the_reference_and_lowers_the_objective(
    name, dtype, seed, n, k, passes
):
    rng = np.random.default_rng(seed)
    other = rng.exponential(size=(2 * k, k)).astype(dtype)
    other[:, 0] *= rng.integers(0, 2)  # a column of zeros has no minimum
    gram, products = other.T @ other, rng.normal(size=(n, k)).astype(dtype)
    start = rng.exponential(size=(n, k)).astype(dtype)
    results = []
    for kernel, threads in (("reference", 1), (name, 1), (name, 3)):
        kernels.use(kernel)
        factors = start.copy()
        kernels.nonnegative_descent(
            gram, products, factors, passes=passes, threads=threads
        )
        results.append(factors)
    np.testing.assert_allclose(
        *results[:2], atol=TOLERANCE[dtype] * 10, rtol=TOLERANCE[dtype]
    )
    np.testing.assert_array_equal(*results[1:])

    def objective(x):
        return np.einsum("ij,jk,ik->i", x, gram, x) - 2 * np.einsum(
            "ij,ij->i", x, products
        )

    assert factors.min(initial=0) >= 0
    before = objective(start.astype(float))
    assert (objective(factors.astype(float)) <= before + 1e-4 * np.abs(before)).all()


@pytest.mark.parametrize("name", COMPILED)
@pytest.mark.parametrize("nonnegative", [False, True])
def test_a_weighted_row_has_the_same_bits_alone_and_among_others(name, nonnegative):
    (indptr, indices, data), other, other_bias, penalty = als_problem(
        40, 60, 9, 0.4, np.float32, seed=3
    )
    weights = np.random.default_rng(4).exponential(size=len(data)).astype(np.float32)
    options = {"name": name, "nonnegative": nonnegative}
    problem = (indptr, indices, data), other, other_bias, penalty
    together = half_sweep(problem, 9, weights=weights, **options)
    for row in range(0, 40, 7):
        entries = slice(indptr[row], indptr[row + 1])
        matrix = (
            np.array([0, indptr[row + 1] - indptr[row]]),
            indices[entries],
            data[entries],
        )
        single = matrix, other, other_bias, penalty[row : row + 1]
        alone = half_sweep(single, 9, weights=weights[entries], **options)
        for one, many in zip(alone, together, strict=True):
            np.testing.assert_array_equal(one[0], many[row])


@pytest.mark.parametrize("name", ["reference", *COMPILED])
def test_half_sweep_is_the_minimum(name):
    """No nearby point has a smaller objective, and the objective returned is the one reached."""
    k, rng = 3, np.random.default_rng(1)
    problem = als_problem(20, 30, k, 0.4, np.float64, seed=5)
    (indptr, indices, data), other, other_bias, penalty = problem
    factors, bias, objective = half_sweep(problem, k, name=name)

    def value(row, a, b):
        seen = slice(indptr[row], indptr[row + 1])
        error = (
            data[seen] - 0.3 - other_bias[indices[seen]] - other[indices[seen]] @ a - b
        )
        return error @ error + penalty[row] * (a @ a) + penalty[row] / 2 * b**2

    for row in range(20):
        best = value(row, factors[row], bias[row])
        assert best == pytest.approx(objective[row], rel=1e-10, abs=1e-12)
        for _ in range(5):
            step = rng.normal(size=k + 1) * 1e-3
            assert value(row, factors[row] + step[:k], bias[row] + step[k]) >= best


@pytest.mark.parametrize("name", ["reference", *COMPILED])
def test_rows_without_entries_become_zero(name):
    indptr = np.array([0, 0, 2, 2], dtype=np.int64)
    problem = (
        (indptr, np.array([0, 3], np.int32), np.ones(2, np.float32)),
        np.ones((4, 5), np.float32),
        np.zeros(4, np.float32),
        np.ones(3, np.float32),
    )
    factors, bias, objective = half_sweep(problem, 5, name=name)
    assert not factors[[0, 2]].any()
    assert not bias[[0, 2]].any()
    assert not objective[[0, 2]].any()
    assert factors[1].all()


@pytest.mark.parametrize("name", COMPILED)
def test_same_bits_on_any_number_of_threads(name):
    problem = als_problem(500, 80, 20, 0.2, np.float32, seed=3)
    one = half_sweep(problem, 20, name=name, threads=1)
    for threads in (2, 3, 8):
        for a, b in zip(
            half_sweep(problem, 20, name=name, threads=threads), one, strict=True
        ):
            np.testing.assert_array_equal(a, b)


@pytest.mark.skipif(
    platform.machine() not in ("x86_64", "AMD64"),
    reason="instruction sets of another processor",
)
@pytest.mark.parametrize("name", COMPILED)
def test_same_bits_with_any_compiler(name):
    expected = [
        line for line in FILE.read_text().splitlines() if line.startswith(f"{name} ")
    ]
    assert digests(name) == expected


@settings(max_examples=60, deadline=None)
@given(
    n=st.integers(1, 40),
    m=st.integers(1, 40),
    width=st.integers(0, 70),
    density=st.floats(0, 1),
    threads=st.integers(1, 4),
    dtype=st.sampled_from([np.float32, np.float64]),
    name=st.sampled_from(kernels.supported()),
    seed=st.integers(0, 2**32 - 1),
)
def test_products_equal_dense(n, m, width, density, threads, dtype, name, seed):
    rng = np.random.default_rng(seed)
    A = random_csr(n, m, density, dtype, rng)
    dense = sp.csr_array((A[2], A[1], A[0]), shape=(n, m)).toarray()
    X = rng.normal(size=(m, width)).astype(dtype)
    Z = rng.normal(size=(n, width)).astype(dtype)
    kernels.use(name)
    Y = kernels.csr_matmat(A, X, threads=threads)
    W = kernels.csr_rmatmat(A, Z, m, threads=threads)
    assert Y.dtype == W.dtype == dtype
    tolerance = TOLERANCE[dtype] / 10
    np.testing.assert_allclose(Y, dense @ X, atol=tolerance)
    np.testing.assert_allclose(W, dense.T @ Z, atol=tolerance)
    # The order of the entries of a row does not count.
    rows = np.repeat(np.arange(n), np.diff(A[0]))
    order = np.lexsort((-A[1], rows))
    unsorted = kernels.CsrArrays(A[0], A[1][order], A[2][order])
    W_of_unsorted = kernels.csr_rmatmat(unsorted, Z, m, threads=threads)
    np.testing.assert_array_equal(W_of_unsorted, W)
    transposes = [
        kernels.transposed(matrix, m, threads=threads)
        for matrix in (kernels.CsrArrays(*A), unsorted)
    ]
    for array, expected in zip(*transposes, strict=True):
        np.testing.assert_array_equal(array, expected)
    A[2][:] = A[2][:1]
    constant = kernels.CsrArrays(*A).compact()
    assert len(constant.data) == min(len(A[2]), 1)
    Y = kernels.csr_matmat(A, X, threads=1)
    np.testing.assert_array_equal(kernels.csr_matmat(constant, X, threads=threads), Y)
    W = kernels.csr_matmat(kernels.transposed(kernels.CsrArrays(*A), m), Z, threads=1)
    transposed = kernels.transposed(constant, m, threads=threads)
    np.testing.assert_array_equal(kernels.csr_matmat(transposed, Z), W)


@settings(max_examples=60, deadline=None)
@given(
    n=st.integers(1, 3000),
    size=st.integers(0, 40),
    spare=st.integers(0, 5),
    width=st.integers(1, 40),
    dtype=st.sampled_from([np.float32, np.float64]),
    name=st.sampled_from(kernels.supported()),
    seed=st.integers(0, 2**32 - 1),
)
def test_projections_equal_matrix_products(n, size, spare, width, dtype, name, seed):
    rng = np.random.default_rng(seed)
    V = rng.normal(size=(n, size + spare)).astype(dtype)[:, :size]
    W = rng.normal(size=(n, width)).astype(dtype)
    kernels.use(name)
    H = kernels.coefficients(V, W, threads=2)
    tolerance = TOLERANCE[dtype] * np.sqrt(n)
    np.testing.assert_allclose(H, V.T @ W, atol=tolerance)
    np.testing.assert_array_equal(H, kernels.coefficients(V, W, threads=1))
    product = kernels.multiply(V, H, threads=2)
    np.testing.assert_allclose(
        product, V @ H, atol=tolerance * np.sqrt(n) * max(size, 1)
    )
    np.testing.assert_array_equal(product, kernels.multiply(V, H, threads=1))
    turned, few = np.pad(V, ((0, 0), (0, spare))), min(width, size)
    kernels.multiply(turned[:, :size], H[:, :few], out=turned[:, :few], threads=2)
    np.testing.assert_array_equal(turned[:, :few], kernels.multiply(V, H[:, :few]))
    np.testing.assert_array_equal(turned[:, few:size], V[:, few:])
    expected = W - V @ H
    wide = np.zeros((n, width + spare), dtype)
    kernels.place(W, wide[:, :width], threads=2)
    np.testing.assert_array_equal(wide, np.pad(W, ((0, 0), (0, spare))))
    turned = np.zeros((width, n), dtype)
    kernels.place(W, turned.T, threads=2)
    np.testing.assert_array_equal(turned, W.T)
    rest = W.copy()
    kernels.subtract(V, H, W, threads=3)
    np.testing.assert_allclose(W, expected, atol=tolerance * np.sqrt(n) * max(size, 1))
    inside, gram = kernels.project(V, rest, threads=2)
    np.testing.assert_array_equal(rest, W)
    np.testing.assert_array_equal(inside, H)
    np.testing.assert_array_equal(gram, kernels.project(V[:, :0], W, threads=1)[1])
    panels = [V[:, : size // 3].copy(), V[:, size // 3 :]]
    np.testing.assert_allclose(kernels.multiply(panels, H), product, atol=tolerance)
    V[:] /= max(np.linalg.norm(V), 1)
    before = rest.copy()
    panels = [V[:, : size // 2], V[:, size // 2 :].copy()]
    inside, _ = kernels.project(panels, rest, first=1, again=True)
    limit = tolerance * np.abs(before).max()
    np.testing.assert_allclose(rest + V @ inside, before, atol=limit)
    half = before - V[:, size // 2 :] @ (V[:, size // 2 :].T @ before)
    np.testing.assert_allclose(rest, half - V @ (V.T @ half), atol=limit)
    s = W[0].copy()
    squares = kernels.squared_distances(wide[:, :width], W, s, threads=2)
    exact = ((wide[:, :width].astype(float) - W.astype(float) * s) ** 2).sum(axis=0)
    np.testing.assert_allclose(squares, exact, rtol=1e-5, atol=tolerance)


@pytest.mark.skipif(not COMPILED, reason="no compiled kernels in this installation")
def test_shapes_are_checked_before_memory_is_touched():
    core = pytest.importorskip("lowrank.kernels._core")
    indptr, indices, data = np.array([0, 1]), np.array([0], np.int32), np.ones(1)
    with pytest.raises(ValueError, match="indptr must have one entry more than rows"):
        core.csr_matmat(indptr, indices, data, np.ones((1, 2)), np.ones((3, 2)), 1)
    with pytest.raises(ValueError, match="same number of columns"):
        core.csr_matmat(indptr, indices, data, np.ones((1, 2)), np.ones((1, 3)), 1)
    with pytest.raises(
        ValueError, match="must run from 0 to the number of stored entries"
    ):
        core.csr_matmat(indptr + 1, indices, data, np.ones((1, 2)), np.ones((1, 2)), 1)


def test_forced_choice_from_the_environment():
    code = "from lowrank import kernels; print(kernels.backend())"
    forced = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "LOWRANK_KERNELS": "reference"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert forced.stdout.strip() == "reference"


def test_without_a_compiler_the_reference_runs():
    code = (
        "import sys; sys.modules['lowrank.kernels._core'] = None; "
        "from lowrank import kernels; print(kernels.backend())"
    )
    environment = {
        name: value for name, value in os.environ.items() if name != "LOWRANK_KERNELS"
    }
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "reference\n"


def test_kernels_of_other_sources_are_one_clear_error():
    code = "import sys, types; sys.modules['lowrank.kernels._core'] = types.SimpleNamespace()"
    done = subprocess.run(
        [sys.executable, "-c", f"{code}; import lowrank.kernels"],
        capture_output=True,
        text=True,
    )
    assert "ImportError: The compiled kernels are older or newer" in done.stderr


@pytest.mark.skipif(not COMPILED, reason="no compiled kernels in this installation")
def test_kernels_with_other_arguments_are_one_clear_error():
    core = importlib.import_module("lowrank.kernels._core")
    backends.check_same(core)
    other = types.SimpleNamespace(**{**vars(core), "place": core.multiply})
    with pytest.raises(
        ImportError, match=r"\(place differs\); install the package again"
    ):
        backends.check_same(other)


def test_unknown_kernels_raise():
    with pytest.raises(
        ValueError, match=r"kernels must be one of reference.*; got 'avx9000'"
    ):
        kernels.use("avx9000")


def test_threads_below_one_raise():
    with pytest.raises(
        ValueError, match="threads must be at least 1, or None for all cores; got 0"
    ):
        kernels.resolve_threads(0)


# Each thread asks for the 8 MB of its stack, of which 100 MB hold only a few.
MORE_THREADS_THAN_FIT = """
import resource, sys
import numpy as np
from lowrank import kernels
from lowrank.kernels import backends

resource.setrlimit(resource.RLIMIT_STACK, (8 << 20, resource.getrlimit(resource.RLIMIT_STACK)[1]))
V = np.random.default_rng(0).standard_normal((50_000, 8))
alone = kernels.coefficients(V, V, threads=1)
used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + (100 << 20),) * 2)
sys.exit(not np.array_equal(kernels.coefficients(V, V, threads=1000), alone))
"""


@pytest.mark.skipif(not COMPILED, reason="no compiled kernels")
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_work_is_done_where_the_system_gives_no_more_threads():
    done = subprocess.run(
        [sys.executable, "-c", MORE_THREADS_THAN_FIT],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_a_limit_of_threads_holds_inside_its_block():
    with kernels.at_most(3):
        assert kernels.resolve_threads(None) == 3
        with kernels.at_most(None):
            assert kernels.resolve_threads(None) == 3
        assert kernels.resolve_threads(5) == 5
    assert kernels.resolve_threads(None) == kernels.usual_threads()
    assert kernels.resolve_threads(2**31) == kernels.resolve_threads(10**30) == 1024


def blas_threads():
    return [
        info["num_threads"] for info in threadpool_info() if info["user_api"] == "blas"
    ]


@pytest.fixture
def two_blas_threads():
    with threadpool_limits(2, user_api="blas"):
        yield


def test_blas_threads_are_restored(two_blas_threads):
    before = blas_threads()
    assert 2 in before
    with pytest.raises(RuntimeError), kernels.one_blas_thread():  # noqa: PT012
        assert set(blas_threads()) <= {1}
        raise RuntimeError
    assert blas_threads() == before


def test_zeros_start_on_a_cache_line():
    for shape in [(3, 5), (0, 4), (1000, 64)]:
        zeros = kernels.aligned_zeros(shape, np.float32)
        assert zeros.shape == shape
        assert zeros.ctypes.data % 64 == 0 or zeros.size == 0
        assert not zeros.any()


@pytest.mark.parametrize(
    ("given", "threads"),
    [("3", 3), ("4,2", 4), ("0", 2), ("", 2), ("many", 2), ("99999", 1024)],
)
def test_uses_the_threads_of_openmp_or_all_cores(given, threads, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", given)
    monkeypatch.setattr(kernels, "available_cores", lambda: 2)
    assert kernels.usual_threads() == threads


def test_cores_where_the_system_knows_no_affinity(monkeypatch):
    monkeypatch.delattr("os.sched_getaffinity", raising=False)
    monkeypatch.setattr("os.cpu_count", lambda: 3)
    assert kernels.available_cores() == 3
    monkeypatch.setattr("os.cpu_count", lambda: None)
    assert kernels.available_cores() == 1


def test_blas_threads_return_when_the_last_of_several_blocks_ends(two_blas_threads):
    before = blas_threads()
    inside, leave = threading.Barrier(3), threading.Barrier(2)

    def work(barriers):
        with kernels.one_blas_thread():
            for barrier in barriers:
                barrier.wait(100)

    first = threading.Thread(target=work, args=([inside],))
    second = threading.Thread(target=work, args=([inside, leave],))
    first.start(), second.start()
    inside.wait(100)
    first.join()
    assert set(blas_threads()) <= {1}  # the second one is still in its block
    leave.wait(100)
    second.join()
    assert blas_threads() == before


@pytest.mark.parametrize("name", kernels.supported())
@given(seed=st.integers(0, 2**32 - 1), n=st.integers(1, 60), k=st.integers(1, 40))
def test_sums_of_rows_follow_the_definition(name, seed, n, k):
    kernels.use(name)
    rng = np.random.default_rng(seed)
    indptr, indices, data = random_csr(k, n, 0.3, np.float32, rng)
    rows, factors = rng.integers(0, k, 5), rng.random(5, dtype=np.float32)
    found = sum_rows((indptr, indices, data), rows, factors, n)
    dense = sp.csr_array((data, indices, indptr), shape=(k, n)).toarray()
    np.testing.assert_allclose(found, factors @ dense[rows], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", kernels.supported())
@given(
    st.lists(st.sampled_from([-np.inf, np.nan, 0.0, 1.0, 2.0, 3.0]), max_size=200),
    st.integers(1, 220),
    st.sampled_from([1, 7, 60]),
)
def test_the_largest_scores_equal_a_stable_sort(name, values, n, copies):
    kernels.use(name)
    scores = np.tile(
        np.array(values, np.float32), copies
    )  # so many are looked at in blocks
    places = np.flatnonzero(scores > -np.inf)
    expected = places[np.argsort(-scores[places], kind="stable")][:n]
    assert largest(scores, n).tolist() == expected.tolist()


def test_rows_and_columns_outside_the_matrix_are_rejected():
    indptr, data = np.array([0, 1], np.int64), np.ones(1, np.float32)
    for column, row in ((9, 0), (0, 4)):
        matrix = indptr, np.array([column], np.int32), data
        with pytest.raises((ValueError, IndexError)):
            sum_rows(matrix, np.array([row]), data, 3)


def test_workspace_is_reused_but_never_shared():
    lend = kernels.workspace
    with lend(1000, np.float64) as first, lend(1000, np.float32) as second:
        assert not np.may_share_memory(first, second)
    with lend(500, np.float32) as third:
        assert np.may_share_memory(third, first)
        assert third.shape == (500,)
        assert third.dtype == np.float32


def test_large_workspace_does_not_stay():
    numbers = (1 << 27) // 8 + 1
    with kernels.workspace(numbers, np.float64) as large:
        pass
    with kernels.workspace(numbers, np.float64) as larger:
        assert not np.may_share_memory(large, larger)


@pytest.mark.parametrize("size", [1, 20, 200])
def test_positive_systems_are_solved_and_semidefinite_ones_by_least_squares(size):
    rng = np.random.default_rng(size)
    factors = rng.standard_normal((size, size + 5))
    system = factors @ factors.T
    right = rng.standard_normal((3, size))
    solution = kernels.solve_positive(system, right)
    np.testing.assert_allclose(solution @ system, right, atol=1e-8)
    singular = np.diag(np.append(np.ones(size - 1), 0.0))
    shortest = right * np.diag(singular)
    np.testing.assert_allclose(kernels.solve_positive(singular, right), shortest)
