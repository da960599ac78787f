"""What `truncated_svd` returns: the result object, edge shapes, signs, seeds, warnings."""

import dataclasses
import warnings

import numpy as np
import pytest
import scipy.linalg
import scipy.sparse.linalg
from hypothesis import given
from hypothesis import strategies as st
from scipy import sparse

import lowrank
from lowrank import SVD, ConvergenceWarning, truncated_svd
from lowrank.solvers import lanczos, randomized

METHODS = ["auto", "dense", "gram", "lanczos", "randomized", "arpack"]
CONTAINERS = [np.asarray, sparse.csr_array, scipy.sparse.linalg.aslinearoperator]


def gaussian(rows=60, columns=40, seed=0):
    return np.random.default_rng(seed).standard_normal((rows, columns))


def check_orthonormal(result):
    np.testing.assert_allclose(result.U.T @ result.U, np.eye(result.k), atol=1e-12)
    np.testing.assert_allclose(result.Vt @ result.Vt.T, np.eye(result.k), atol=1e-12)


def test_result_is_frozen_and_unpacks_as_three():
    result = truncated_svd(gaussian(), 3)
    U, s, Vt = result
    assert U is result.U
    assert s is result.s
    assert Vt is result.Vt
    assert (result.k, result.shape, result.method) == (3, (60, 40), "dense")
    with pytest.raises(dataclasses.FrozenInstanceError):
        result.s = s


def test_repr_is_one_short_line():
    text = repr(truncated_svd(gaussian(), 3))
    assert text.startswith(
        "SVD(k=3, shape=(60, 40), dtype=float64, method='dense', passes=3, "
    )
    assert "\n" not in text


def test_a_notebook_shows_a_table():
    page = truncated_svd(gaussian(), 3)._repr_html_()
    assert "<td>60 x 40</td>" in page
    assert "dense, 3 passes" in page
    assert "none" in truncated_svd(gaussian(), 0)._repr_html_()
    assert (
        "unknown"
        in truncated_svd(CONTAINERS[2](gaussian()), 1, method="lanczos")._repr_html_()
    )


def test_public_names():
    assert set(lowrank.__all__) >= {
        "SVD",
        "ConvergenceWarning",
        "truncated_svd",
        "elbow",
    }
    assert issubclass(ConvergenceWarning, UserWarning)


@pytest.mark.covering
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("container", CONTAINERS)
@pytest.mark.parametrize(
    "shape", [(0, 5), (5, 0), (0, 0), (5, 4), (1, 1), (3000, 2000)]
)
@pytest.mark.parametrize("center", [None, True])
def test_rank_zero_and_empty_matrices(method, container, shape, center):
    matrix = sparse.csr_array(shape)
    if shape != (3000, 2000):
        matrix = container(matrix.toarray())
    result = truncated_svd(matrix, 0, method=method, center=center)
    assert [a.shape for a in result] == [(shape[0], 0), (0,), (0, shape[1])]
    assert result.residuals.shape == (2, 0)
    assert result.error in (0.0, None)
    assert repr(result)


def test_rank_zero_leaves_everything():
    result = truncated_svd(sparse.csr_array(gaussian()), 0)
    assert result.error == pytest.approx(np.linalg.norm(gaussian()), rel=1e-12)
    assert result.explained_energy == 0.0


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("container", CONTAINERS)
def test_zero_matrix(method, container):
    result = truncated_svd(
        container(np.zeros((30, 20))), 4, method=method, random_state=0
    )
    np.testing.assert_array_equal(result.s, 0.0)
    np.testing.assert_array_equal(result.residuals, 0.0)
    check_orthonormal(result)
    if result.frobenius_norm is not None:
        assert (result.error, result.explained_energy) == (0.0, 1.0)


@pytest.mark.covering
@pytest.mark.parametrize("method", ["auto", "dense", "gram", "lanczos", "randomized"])
@pytest.mark.parametrize("container", CONTAINERS)
@pytest.mark.parametrize("shape", [(1, 1), (1, 7), (7, 1), (5, 5), (5, 9), (9, 5)])
def test_full_rank_is_exact(method, container, shape):
    matrix = gaussian(*shape)
    U, s, Vt = result = truncated_svd(
        container(matrix), min(shape), method=method, random_state=0
    )
    np.testing.assert_allclose((U * s) @ Vt, matrix, atol=1e-12)
    assert result.error in (0.0, None)
    assert result.explained_energy in (1.0, None)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("container", CONTAINERS)
@pytest.mark.parametrize("shape", [(80, 50), (50, 80)])
def test_more_triplets_than_the_rank(method, container, shape):
    matrix = gaussian(shape[0], 3) @ gaussian(3, shape[1], seed=1)
    result = truncated_svd(container(matrix), 10, method=method, random_state=0)
    expected = np.linalg.svd(matrix, compute_uv=False)[:10]
    np.testing.assert_allclose(result.s, expected, atol=1e-8 * expected[0])
    check_orthonormal(result)
    assert result.residuals.max() <= 1e-8 * expected[0]


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("container", CONTAINERS)
def test_empty_rows_and_columns(method, container):
    matrix = gaussian(90, 60)
    matrix[10:70] = 0
    matrix[:, [0, 1, 30, 59]] = 0
    result = truncated_svd(container(matrix), 6, method=method, random_state=0)
    np.testing.assert_allclose(
        result.s, np.linalg.svd(matrix, compute_uv=False)[:6], rtol=1e-9
    )
    np.testing.assert_allclose(result.U[10:70], 0, atol=1e-7)
    np.testing.assert_allclose(result.Vt[:, [0, 1, 30, 59]], 0, atol=1e-7)


@pytest.mark.covering
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("container", CONTAINERS)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_signs_do_not_depend_on_solver_or_container(method, container, dtype):
    matrix = (gaussian(80, 50) * 0.8 ** np.arange(50)).astype(dtype)
    result = truncated_svd(container(matrix), 5, method=method, random_state=3)
    expected = truncated_svd(matrix, 5, method="dense")
    np.testing.assert_allclose(
        result.Vt, expected.Vt, atol=1e-2 if dtype == np.float32 else 1e-6
    )
    np.testing.assert_allclose(
        result.U, expected.U, atol=1e-2 if dtype == np.float32 else 1e-6
    )


def test_signs_survive_ties_in_magnitude():
    vector = np.array([-1.0, 1.0, 1.0, -1.0]) / 2
    for noise in (-1e-9, 0.0, 1e-9):
        shaken = vector + noise * np.array([0.0, 1.0, -1.0, 1.0])
        for flip in (1, -1):
            _, _, Vt = truncated_svd(flip * np.outer([1.0, 2.0], shaken), 1)
            np.testing.assert_allclose(Vt[0], -vector, atol=1e-7)


@pytest.mark.covering(1)
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("seed", [0, 7])
def test_same_seed_same_bits(method, seed):
    matrix = sparse.random_array((300, 200), density=0.05, rng=1)
    first = truncated_svd(matrix, 5, method=method, random_state=seed)
    for form in ("csr", "csc", "coo"):
        again = truncated_svd(
            matrix.asformat(form), 5, method=method, random_state=seed
        )
        for one, other in zip(first, again, strict=True):
            np.testing.assert_array_equal(one, other)


def test_random_state_kinds():
    matrix = sparse.random_array((300, 200), density=0.05, rng=1)
    make = [
        lambda: 5,
        lambda: np.random.default_rng(5),
        lambda: np.random.RandomState(5),
    ]
    for state in make:
        first = truncated_svd(matrix, 5, random_state=state())
        again = truncated_svd(matrix, 5, random_state=state())
        np.testing.assert_array_equal(first.U, again.U)
    fresh = [truncated_svd(matrix, 5, random_state=None).U for _ in range(2)]
    assert (fresh[0] != fresh[1]).any()


@pytest.mark.parametrize("center", [None, True])
@pytest.mark.parametrize("size", [1.0, 1e-200])
def test_passes_are_counted(center, size):
    calls = []
    matrix = gaussian(200, 150) * size

    def product(name, array):
        def call(block):
            calls.append(name)
            return array @ block

        return call

    operator = scipy.sparse.linalg.LinearOperator(
        matrix.shape,
        matvec=product("A", matrix),
        rmatvec=product("A'", matrix.T),
        matmat=product("A", matrix),
        rmatmat=product("A'", matrix.T),
        dtype=np.float64,
    )
    result = truncated_svd(
        operator, 3, method="randomized", center=center, random_state=0
    )
    assert result.passes == len(calls)


def test_a_dense_copy_is_one_pass():
    matrix = gaussian(200, 150)
    assert truncated_svd(matrix, 3, method="dense").passes == 3
    assert truncated_svd(sparse.csr_array(matrix), 3, method="dense").passes == 3


def test_a_looser_tolerance_needs_fewer_passes():
    matrix = sparse.random_array((600, 500), density=0.01, rng=1)
    loose = truncated_svd(matrix, 5, tol=1e-2, random_state=0)
    tight = truncated_svd(matrix, 5, tol=1e-10, random_state=0)
    assert loose.passes < tight.passes
    assert loose.residuals.max() <= 1e-2 * loose.s[0]
    assert tight.residuals.max() <= 1e-10 * tight.s[0]


@pytest.mark.parametrize("method", ["dense", "gram", "lanczos", "randomized", "arpack"])
def test_unreachable_tolerance_warns_with_the_figure(method):
    figure = r"largest residual is \d\.\de-1\d relative to s\[[012]\]"
    message = rf"{figure}, above tol=1\.0e-18, .*{method}"
    with pytest.warns(ConvergenceWarning, match=message):
        result = truncated_svd(gaussian(), 3, method=method, tol=1e-18, random_state=0)
    np.testing.assert_allclose(
        result.s, np.linalg.svd(gaussian(), compute_uv=False)[:3]
    )


def test_spent_budget_warns_and_returns_the_best(monkeypatch):
    monkeypatch.setattr(lanczos, "_MAX_STEPS", 1)
    monkeypatch.setattr(randomized, "_MAX_PASSES", 2)
    matrix = sparse.random_array((500, 400), density=0.01, rng=1)
    with pytest.warns(
        ConvergenceWarning, match=r"above tol=1\.0e-08, after \d+ passes"
    ) as caught:
        result = truncated_svd(matrix, 5, random_state=0)
    assert caught[0].filename == __file__
    check_orthonormal(result)
    exact = truncated_svd(matrix, 5, method="dense").s
    assert (np.abs(result.s - exact) <= result.residuals.max(axis=0)).all()


@pytest.mark.parametrize("found", [0, 2])
def test_arpack_without_convergence_keeps_what_it_found_and_warns(monkeypatch, found):
    _, exact, right = np.linalg.svd(gaussian())

    def fail(operator, k, **options):
        vectors = right[:found][::-1].T  # ARPACK's order is ascending
        raise scipy.sparse.linalg.ArpackNoConvergence(
            "none", exact[:found] ** 2, vectors
        )

    monkeypatch.setattr("lowrank.solvers.lapack.eigsh", fail)
    with pytest.warns(ConvergenceWarning, match=r"method='arpack'; use a larger tol"):
        result = truncated_svd(gaussian(), 4, method="arpack", random_state=0)
    np.testing.assert_allclose(result.s[:found], exact[:found])
    check_orthonormal(result)


def test_arpack_errors_warn(monkeypatch):
    def fail(operator, k, **options):
        raise scipy.sparse.linalg.ArpackError(-9999)

    monkeypatch.setattr("lowrank.solvers.lapack.eigsh", fail)
    with pytest.warns(ConvergenceWarning, match=r"largest residual is"):
        truncated_svd(gaussian(), 4, method="arpack", random_state=0)


def test_second_lapack_driver_takes_over(monkeypatch):
    svd = scipy.linalg.svd

    def no_gesdd(matrix, lapack_driver="gesdd", **options):
        if lapack_driver == "gesdd":
            raise scipy.linalg.LinAlgError("SVD did not converge")
        return svd(matrix, lapack_driver=lapack_driver, **options)

    monkeypatch.setattr(scipy.linalg, "svd", no_gesdd)
    result = truncated_svd(gaussian(), 4, method="dense")
    np.testing.assert_allclose(
        result.s, np.linalg.svd(gaussian(), compute_uv=False)[:4]
    )


def test_no_warning_where_the_tolerance_is_met():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        truncated_svd(gaussian(), 3, tol=1e-12, method="randomized", random_state=0)


def test_error_is_never_the_root_of_a_negative_number():
    result = SVD(
        np.eye(3)[:, :1],
        np.array([2.0]),
        np.eye(3)[:1],
        np.zeros((2, 1)),
        2 - 1e-15,
        0.0,
        2,
        0.0,
        "",
    )
    assert result.error == 0.0
    assert result.explained_energy == 1.0


def test_digits_that_the_gram_operator_loses_are_found_all_the_same():
    """Singular values over five decades in float64, to a tolerance that squaring cannot reach."""
    rng = np.random.default_rng(0)
    matrix = sparse.csr_array(
        (
            10.0 ** -np.linspace(0, 40, 900),
            (rng.permutation(1000)[:900], rng.permutation(900)),
        ),
        shape=(1000, 900),
    )
    with pytest.warns(ConvergenceWarning, match="method='lanczos'"):
        truncated_svd(matrix, 120, method="lanczos", tol=1e-13, random_state=0)
    result = truncated_svd(matrix, 120, tol=1e-13, random_state=0)
    assert result.method == "randomized"
    assert result.residuals.max() <= 1e-13 * result.s[0]


class TestUpdated:
    """Further rows join a decomposition, with bounds on what that costs."""

    @pytest.mark.parametrize(
        "shapes", [((60, 20), (15, 20)), ((10, 40), (7, 40)), ((5, 8), (30, 8))]
    )
    def test_it_is_exact_for_what_the_first_has_kept(self, shapes):
        rng = np.random.default_rng(0)
        A, rows = (rng.standard_normal(shape) for shape in shapes)
        for k in (min(A.shape), 4):
            svd = truncated_svd(A, k, method="dense")
            kept = np.vstack([0.5 * (svd.U * svd.s) @ svd.Vt, rows])
            updated = svd.updated(rows, forgetting=0.5)
            np.testing.assert_allclose(updated.s, np.linalg.svd(kept)[1][:k])
            best = truncated_svd(kept, k, method="dense")
            approximation = (updated.U * updated.s) @ updated.Vt
            np.testing.assert_allclose(
                approximation, (best.U * best.s) @ best.Vt, atol=1e-10
            )

    @given(seed=st.integers(0, 10**6), k=st.integers(1, 6), k_new=st.integers(0, 6))
    def test_its_certificate_holds(self, seed, k, k_new):
        rng = np.random.default_rng(seed)
        A = rng.standard_normal((30, 25)) * 0.7 ** np.arange(25)
        rows = rng.standard_normal((5, 25))
        updated = truncated_svd(A, k, random_state=0).updated(rows, k=k_new)
        whole = np.vstack([A, rows])
        right = np.linalg.norm(whole @ updated.Vt.T - updated.U * updated.s, axis=0)
        left = np.linalg.norm(whole.T @ updated.U - updated.Vt.T * updated.s, axis=0)
        assert (right <= updated.residuals[0] + 1e-9).all()
        assert (left <= updated.residuals[1] + 1e-9).all()
        rest = whole - (updated.U * updated.s) @ updated.Vt
        assert np.linalg.norm(rest, 2) <= updated.spectral_error_bound + 1e-9
        np.testing.assert_allclose(updated.frobenius_norm, np.linalg.norm(whole))

    @pytest.mark.parametrize(
        ("size", "dtype"), [(1e-200, "f8"), (1e200, "f8"), (1e-25, "f4"), (1e30, "f4")]
    )
    def test_every_scale_is_updated_in_the_same_way(self, size, dtype):
        A, rows = gaussian(50, 10).astype(dtype), gaussian(5, 10, seed=1).astype(dtype)
        plain = truncated_svd(A, 3, random_state=0).updated(rows)
        size = A.dtype.type(size)
        scaled = truncated_svd(A * size, 3, random_state=0).updated(rows * size)
        near = {"rtol": 1e-5 if dtype == "f4" else 1e-12}
        np.testing.assert_allclose(scaled.s / size, plain.s, **near)
        assert scaled.frobenius_norm / size == pytest.approx(plain.frobenius_norm)
        assert scaled.error / size == pytest.approx(plain.error, rel=1e-5)
        assert scaled.explained_energy == pytest.approx(
            plain.explained_energy, rel=1e-5
        )
        bounds = scaled.spectral_error_bound / size, plain.spectral_error_bound
        assert bounds[0] == pytest.approx(bounds[1], rel=1e-3)
        assert scaled.residuals.max() / size == pytest.approx(
            plain.residuals.max(), rel=1e-3
        )

    def test_sparse_rows_and_dtype(self):
        A = sparse.random_array(
            (40, 30), density=0.3, rng=0, dtype=np.float32, format="csr"
        )
        updated = truncated_svd(A[:30], 5, random_state=0).updated(A[30:])
        assert updated.U.dtype == updated.s.dtype == updated.Vt.dtype == np.float32
        assert updated.method == "update"

    def test_wrong_arguments(self):
        svd = truncated_svd(np.eye(6), 2)
        with pytest.raises(ValueError, match="6 columns; got 5"):
            svd.updated(np.ones((2, 5)))
        with pytest.raises(ValueError, match="between 0 and 3"):
            svd.updated(np.ones((1, 6)), k=4)
        with pytest.raises(ValueError, match="forgetting"):
            svd.updated(np.ones((1, 6)), forgetting=0)
        with pytest.raises(TypeError, match="forgetting must be a number; got 'x'"):
            svd.updated(np.ones((1, 6)), forgetting="x")
        with pytest.raises(
            ValueError, match=r"within the range of float32, .* got 1e\+300"
        ):
            truncated_svd(np.eye(6, dtype="f4"), 2).updated(np.full((1, 6), 1e300))
