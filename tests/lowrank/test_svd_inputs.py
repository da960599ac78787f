"""What `truncated_svd` accepts and rejects: containers, dtypes, centring, arguments, messages."""

import tracemalloc
from itertools import pairwise

import numpy as np
import pandas as pd
import pytest
from scipy import sparse
from scipy.sparse.linalg import LinearOperator, aslinearoperator

from lowrank import NMF, PCA, ProbabilisticPCA, complete, truncated_svd
from lowrank.arguments import as_operator
from lowrank.kernels import at_most
from lowrank.solvers import choose_method

SPARSE_FORMATS = ["csr", "csc", "coo", "bsr", "dia", "dok", "lil"]
METHODS = ["auto", "dense", "gram", "lanczos", "randomized", "arpack"]


def ratings(rows=60, columns=45, seed=0, density=0.3):
    rng = np.random.default_rng(seed)
    matrix = rng.integers(1, 6, (rows, columns)) * (
        rng.random((rows, columns)) < density
    )
    return matrix.astype(np.float64)


def only_products(matrix):
    """A LinearOperator that knows single vectors only."""
    return LinearOperator(
        matrix.shape,
        matvec=lambda x: matrix @ x,
        rmatvec=lambda y: matrix.T @ y,
        dtype=matrix.dtype,
    )


def check_same(result, expected, rtol=1e-7):
    np.testing.assert_allclose(result.s, expected.s, rtol=rtol)
    np.testing.assert_allclose(result.U, expected.U, atol=rtol * 10)
    np.testing.assert_allclose(result.Vt, expected.Vt, atol=rtol * 10)


@pytest.mark.covering
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("array_type", ["array", "matrix"])
@pytest.mark.parametrize("form", SPARSE_FORMATS)
@pytest.mark.parametrize("center", [None, True])
def test_every_sparse_format(method, array_type, form, center):
    matrix = ratings()
    container = getattr(sparse, f"{form}_{array_type}")(matrix)
    result = truncated_svd(container, 4, method=method, center=center, random_state=0)
    check_same(result, truncated_svd(matrix, 4, method="dense", center=center))


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("wrap", [aslinearoperator, only_products])
@pytest.mark.parametrize("center", [None, True])
def test_linear_operators(method, wrap, center):
    matrix = ratings()
    result = truncated_svd(
        wrap(matrix), 4, method=method, center=center, random_state=0
    )
    check_same(result, truncated_svd(matrix, 4, method="dense", center=center))


@pytest.mark.covering
@pytest.mark.filterwarnings("ignore:the matrix subclass")
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(
    "view",
    [
        np.asfortranarray,
        lambda a: np.repeat(np.repeat(a, 2, axis=0), 3, axis=1)[::2, ::3],
        lambda a: a[::-1][::-1],
        lambda a: a.astype(">f8"),
        lambda a: a.tolist(),
        np.asmatrix,
        lambda a: np.ma.masked_array(a, mask=False),
    ],
    ids=[
        "fortran",
        "strided",
        "reversed",
        "big-endian",
        "list",
        "matrix",
        "nothing masked",
    ],
)
def test_every_dense_layout(method, view):
    matrix = ratings()
    result = truncated_svd(view(matrix), 4, method=method, random_state=0)
    check_same(result, truncated_svd(matrix, 4, method="dense"))


@pytest.mark.covering
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("container", [np.asarray, sparse.csr_array, sparse.coo_matrix])
@pytest.mark.parametrize(
    "dtype", [bool, np.int8, np.uint16, np.int64, np.float64, np.longdouble]
)
def test_integers_and_bools_are_worked_on_in_float64(method, container, dtype):
    matrix = ratings().astype(dtype)
    result = truncated_svd(container(matrix), 3, method=method, random_state=0)
    assert {array.dtype for array in result} == {np.dtype(np.float64)}
    check_same(result, truncated_svd(matrix.astype(np.float64), 3, method="dense"))


@pytest.mark.covering
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("container", [np.asarray, sparse.csr_array, aslinearoperator])
@pytest.mark.parametrize("center", [None, True, np.arange(45)])
def test_float32_stays_float32(method, container, center):
    matrix = ratings().astype(np.float32)
    result = truncated_svd(
        container(matrix), 3, method=method, center=center, random_state=0
    )
    assert {array.dtype for array in result} == {np.dtype(np.float32)}


def test_float16_is_worked_on_in_float32():
    result = truncated_svd(ratings().astype(np.float16), 3)
    assert {array.dtype for array in result} == {np.dtype(np.float32)}


def test_nullable_numbers_of_pandas_are_numbers():
    frame = pd.DataFrame(
        {"a": [1, 2, 4], "b": [True, False, True], "c": [0.5, 0.25, 2.0]}
    )
    nullable = frame.convert_dtypes()
    assert (
        truncated_svd(nullable, 2).s.tolist()
        == truncated_svd(frame.astype(float), 2).s.tolist()
    )
    nullable.loc[1, "a"] = pd.NA
    with pytest.raises(ValueError, match="got NaN at row 1, column 0"):
        truncated_svd(nullable, 1)
    filled = complete(nullable, k=1, regularization=1.0).fill(nullable)
    assert np.isfinite(filled).all()
    assert filled[0, 0] == 1


def test_duplicate_entries_of_a_sparse_matrix_are_summed():
    rows, columns, values = [0, 0, 1, 0], [0, 0, 1, 0], [1.0, 2.0, 5.0, 1.0]
    coo = sparse.coo_array((values, (rows, columns)), shape=(3, 2))
    csr = sparse.csr_array((values, ([0, 0, 1, 0], [0, 0, 1, 0])), shape=(3, 2))
    raw = sparse.csr_array(
        ([1.0, 2.0, 1.0, 5.0], [0, 0, 0, 1], [0, 3, 4, 4]), shape=(3, 2)
    )
    for matrix in (coo, csr, raw):
        result = truncated_svd(matrix, 2)
        np.testing.assert_allclose(result.s, [5.0, 4.0])
        assert result.frobenius_norm == pytest.approx(np.sqrt(41))
    assert raw.nnz == 4  # the caller's matrix is as it was


def turned_rows(csr):
    """Return a CSR matrix with each row backwards, which claims to be sorted."""
    order = np.concatenate(
        [np.arange(start, end)[::-1] for start, end in pairwise(csr.indptr)]
    )
    arrays = csr.data[order], csr.indices[order], csr.indptr.copy()
    turned = sparse.csr_matrix(arrays, shape=csr.shape)
    turned.has_sorted_indices = turned.has_canonical_format = True
    return turned


def halved_entries(csr):
    """Return a CSR matrix whose entries are stored as two halves, away from each other."""
    half = csr * csr.dtype.type(0.5)
    halves = sparse.hstack([half, half], format="csr")
    arrays = halves.data, halves.indices % csr.shape[1], halves.indptr
    halved = sparse.csr_matrix(arrays, shape=csr.shape)
    halved.has_sorted_indices = halved.has_canonical_format = True
    return halved


def long_indices(csr):
    """Return a CSR matrix with indices of int64 that cannot be written to."""
    long = turned_rows(csr)
    long.indices = long.indices.astype(np.int64)
    long.indptr = long.indptr.astype(np.int64)
    for array in (long.data, long.indices, long.indptr):
        array.flags.writeable = False
    return long


@pytest.mark.covering
@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(
    "layout", [turned_rows, halved_entries, long_indices, sparse.csc_array]
)
@pytest.mark.parametrize(
    "values",
    [
        lambda X: truncated_svd(X, 4, center=True, random_state=0).s,
        lambda X: PCA(4, center="exact").fit(X).singular_values_,
        lambda X: PCA(4, center="exact").fit(X, sample_weight=np.ones(900)).components_,
        lambda X: PCA(4, center_samples=True).fit_transform(X),
        lambda X: ProbabilisticPCA(4).fit(X).noise_variance_,
        lambda X: NMF(3, tol=1e-2).fit_transform(X),
    ],
)
def test_entries_in_any_order_are_the_same_matrix(values, layout, dtype, threads):
    csr = sparse.random_array((900, 70), density=0.2, rng=3, format="csr", dtype=dtype)
    expected = values(csr)
    with at_most(threads):
        np.testing.assert_array_equal(values(layout(csr)), expected)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("container", [np.array, np.asfortranarray, sparse.csr_array])
def test_the_input_is_not_written_to(method, container):
    matrix = container(ratings())
    before = matrix.copy()
    truncated_svd(matrix, 4, method=method, center=True, random_state=0)
    assert abs(matrix - before).sum() == 0


@pytest.mark.covering(1)
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(
    "container", [np.asarray, sparse.csr_array, sparse.csc_matrix, aslinearoperator]
)
def test_centring_equals_explicit_centring(method, container):
    matrix = ratings() + 3.0
    explicit = truncated_svd(matrix - matrix.mean(axis=0), 5, method="dense")
    result = truncated_svd(
        container(matrix), 5, method=method, center=True, random_state=0
    )
    check_same(result, explicit)
    if result.frobenius_norm is not None:
        assert result.frobenius_norm == pytest.approx(
            explicit.frobenius_norm, rel=1e-12
        )
        assert result.error == pytest.approx(explicit.error, rel=1e-10)
    given = truncated_svd(container(matrix), 5, method=method, center=matrix.mean(0))
    check_same(given, explicit)


def test_any_row_can_be_subtracted():
    matrix, row = ratings(), np.arange(45)
    expected = truncated_svd(matrix - row, 5)
    check_same(truncated_svd(sparse.csr_array(matrix), 5, center=row), expected)
    check_same(truncated_svd(matrix, 5, center=row.tolist()), expected)
    check_same(truncated_svd(matrix - row, 5, center=False), expected)


def test_centring_a_dense_array_far_from_zero_loses_nothing():
    matrix = np.random.default_rng(0).standard_normal((200, 30))
    far = truncated_svd((matrix + 4096.0).astype(np.float32), 5, center=True)
    expected = truncated_svd(
        (matrix + 4096.0).astype(np.float32).astype(float), 5, center=True
    )
    np.testing.assert_allclose(far.s, expected.s, rtol=1e-5)


def test_constant_columns_vanish_by_centring():
    matrix = sparse.csr_array(np.ones((50, 20)))
    result = truncated_svd(matrix, 3, center=True)
    np.testing.assert_allclose(result.s, 0.0, atol=1e-12)
    assert result.frobenius_norm == pytest.approx(0.0, abs=1e-12)


@pytest.mark.parametrize("center", [None, True])
def test_large_sparse_matrix_is_never_dense(center):
    rng = np.random.default_rng(0)
    place = rng.integers(0, 100_000, 50_000), rng.integers(0, 50_000, 50_000)
    matrix = sparse.coo_array(
        (rng.standard_normal(50_000), place), shape=(100_000, 50_000)
    )
    tracemalloc.start()
    result = truncated_svd(matrix, 4, center=center, tol=1e-2, random_state=0)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 200e6  # dense it has 40e9 bytes
    assert result.method == "lanczos"
    assert result.residuals.max() <= 1e-2 * result.s[0]


def test_a_linear_operator_is_made_dense_only_for_large_k():
    operator = aslinearoperator(ratings(400, 300))
    few = truncated_svd(operator, 5, random_state=0)
    assert (few.method, few.frobenius_norm, few.error) == ("lanczos", None, None)
    assert few.explained_energy is None
    many = truncated_svd(operator, 150, random_state=0)
    assert many.method == "dense"
    assert many.frobenius_norm == pytest.approx(
        np.linalg.norm(ratings(400, 300)), rel=1e-12
    )


@pytest.mark.parametrize(
    ("matrix", "k", "method"),
    [
        (np.ones((300, 300)), 5, "dense"),
        (np.ones((2000, 1500)), 5, "gram"),
        (np.ones((1500, 2000)), 5, "gram"),
        (np.zeros((2001, 5000)), 5, "lanczos"),
        (np.ones((2000, 1500)), 400, "dense"),
        (sparse.eye_array(40), 5, "dense"),
        (sparse.eye_array(1000), 5, "lanczos"),
        (sparse.eye_array(1000), 500, "dense"),
        (sparse.csr_array((200_000, 100_000)), 50, "lanczos"),
        (aslinearoperator(sparse.eye_array(1000)), 5, "lanczos"),
        (aslinearoperator(sparse.eye_array(1000)), 500, "dense"),
    ],
)
def test_rule_of_auto(matrix, k, method):
    assert choose_method(as_operator(matrix), k) == method


@pytest.mark.parametrize(
    ("k", "error", "message"),
    [
        (46, ValueError, r"k must be between 0 and 45 \(min\(A\.shape\)\); got 46\."),
        (-1, ValueError, r"k must be between 0 and 45 \(min\(A\.shape\)\); got -1\."),
        (2.0, TypeError, r"k must be an integer; got 2\.0\."),
        (True, TypeError, r"k must be an integer; got True\."),
        (np.True_, TypeError, r"k must be an integer; got np\.True_\."),
        ("3", TypeError, r"k must be an integer; got '3'\."),
        (None, TypeError, r"k must be an integer; got None\."),
    ],
)
def test_bad_k(k, error, message):
    with pytest.raises(error, match=message):
        truncated_svd(ratings(), k)


def test_numpy_integers_are_ranks():
    assert truncated_svd(ratings(), np.int32(3)).k == 3


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        (
            {"tol": -1e-3},
            ValueError,
            r"tol must be finite and not negative; got -0\.001\.",
        ),
        (
            {"tol": np.nan},
            ValueError,
            r"tol must be finite and not negative; got nan\.",
        ),
        (
            {"tol": np.inf},
            ValueError,
            r"tol must be finite and not negative; got inf\.",
        ),
        ({"tol": "small"}, TypeError, r"tol must be a number; got 'small'\."),
        ({"tol": True}, TypeError, r"tol must be a number; got True\."),
        (
            {"method": "magic"},
            ValueError,
            r"method must be one of 'auto', 'dense', 'gram', 'lanczos', .*; got 'magic'\.",
        ),
        ({"method": None}, ValueError, r"method must be one of 'auto'"),
        ({"method": ["auto"]}, ValueError, r"method must be one of 'auto'"),
        (
            {"center": np.zeros(60)},
            ValueError,
            r"center must have one entry for each column, shape \(45,\); got \(60,\)\.",
        ),
        ({"center": 1.0}, ValueError, r"center must have one entry for each column"),
        (
            {"center": "mean"},
            TypeError,
            r"center must be a bool or an array of real numbers",
        ),
        (
            {"center": np.where(np.arange(45) == 7, np.nan, 0)},
            ValueError,
            r"center must be finite; got nan at column 7\.",
        ),
        (
            {"random_state": -1},
            ValueError,
            r"random_state must be None, a non-negative integer",
        ),
        ({"random_state": 1.5}, TypeError, r"random_state must be .*; got 1\.5\."),
        ({"random_state": True}, TypeError, r"random_state must be .*; got True\."),
    ],
)
def test_bad_arguments(arguments, error, message):
    with pytest.raises(error, match=message):
        truncated_svd(ratings(), 3, **arguments)


def test_arpack_needs_a_smaller_k():
    with pytest.raises(
        ValueError, match=r"k must be below 45 .* with method='arpack'; got 45"
    ):
        truncated_svd(ratings(), 45, method="arpack")


@pytest.mark.parametrize(
    ("matrix", "message"),
    [
        (np.ones(5), r"A must be two-dimensional; got shape \(5,\): use A\.reshape"),
        (sparse.coo_array(np.ones(5)), r"A must be two-dimensional; got shape \(5,\)"),
        (np.ones((2, 2, 2)), r"A must be two-dimensional; got shape \(2, 2, 2\)\."),
        (3.0, r"A must be two-dimensional; got shape \(\)\."),
        (
            np.ma.masked_array(np.eye(2), np.eye(2)),
            r"no masked entries; got 2: fill them first",
        ),
    ],
)
def test_bad_shapes(matrix, message):
    with pytest.raises(ValueError, match=message):
        truncated_svd(matrix, 1)


@pytest.mark.parametrize(
    ("matrix", "message"),
    [
        (np.eye(3) * 1j, r"A must hold real numbers; got dtype complex128\."),
        (
            sparse.eye_array(3, dtype=np.complex64),
            r"A must hold real numbers; got dtype",
        ),
        (aslinearoperator(np.eye(3) * 1j), r"A must hold real numbers; got dtype"),
        (np.array([["a", "b"]]), r"A must hold real numbers; got dtype <U1\."),
        (np.eye(3, dtype=object), r"A must hold real numbers; got dtype object\."),
        ({"a": 1}, r"A must hold real numbers; got dtype object\."),
        (None, r"A must hold real numbers; got dtype object\."),
    ],
)
def test_bad_kinds(matrix, message):
    with pytest.raises(TypeError, match=message):
        truncated_svd(matrix, 1)


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(
    ("value", "name"), [(np.nan, "NaN"), (np.inf, "infinity"), (-np.inf, "infinity")]
)
def test_first_bad_entry_is_named_in_row_major_order(order, dtype, value, name):
    matrix = np.ones((6, 5), dtype, order=order)
    matrix[2, 4] = matrix[4, 1] = matrix[3, 0] = value
    message = rf"A must be finite; got {name} at row 2, column 4\."
    with pytest.raises(ValueError, match=message):
        truncated_svd(matrix, 2)
    for form in SPARSE_FORMATS:
        with pytest.raises(ValueError, match=message):
            truncated_svd(sparse.csr_array(matrix).asformat(form), 2)


def test_bad_entry_of_an_unsorted_sparse_matrix():
    unsorted = sparse.csr_array(
        ([1.0, np.nan, np.nan], [2, 1, 0], [0, 0, 3]), shape=(2, 3)
    )
    with pytest.raises(ValueError, match=r"got NaN at row 1, column 0\."):
        truncated_svd(unsorted, 1)


def test_a_linear_operator_that_gives_nan():
    bad = np.eye(50)
    bad[7, 3] = np.nan
    with pytest.raises(ValueError, match=r"A @ X has NaN or infinity in row 7\."):
        truncated_svd(aslinearoperator(bad), 2, method="randomized", random_state=0)


class FirstRows(LinearOperator):
    """The first 20 of 50 numbers, as a subclass without an adjoint."""

    def __init__(self) -> None:
        super().__init__(np.dtype(np.float64), (20, 50))

    def _matvec(self, x):
        return x[:20]


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(
    "operator",
    [
        # SciPy's errors differ between an operator made of functions and a subclass.
        LinearOperator((20, 50), matvec=lambda x: x[:20], dtype=np.float64),
        FirstRows(),
    ],
    ids=["function", "class"],
)
def test_a_linear_operator_without_transpose(method, operator):
    with pytest.raises(
        TypeError, match=r"A is a LinearOperator without rmatvec or rmatmat"
    ):
        truncated_svd(operator, 2, method=method)


def test_a_linear_operator_that_gives_complex_numbers():
    operator = LinearOperator(
        (50, 50), matvec=lambda x: x * 1j, rmatvec=lambda x: x, dtype=np.float64
    )
    with pytest.raises(TypeError, match=r"A must be real; .* A @ X is complex\."):
        truncated_svd(operator, 2, method="randomized")


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "int64"])
def test_sums_of_repeated_integers_do_not_overflow(dtype):
    top = np.iinfo(dtype).max // 2
    entries = (
        np.full(40, top, dtype),
        (np.repeat([0, 1], 20), np.tile([0, 1, 2, 3], 10)),
    )
    matrix = sparse.coo_array(entries, shape=(3, 5))
    exact = sparse.coo_array((entries[0].astype(float), entries[1]), shape=(3, 5))
    expected = np.linalg.svd(exact.toarray(), compute_uv=False)
    for form in (matrix, sparse.csr_array((matrix.data, *_unmerged(matrix)), (3, 5))):
        np.testing.assert_allclose(truncated_svd(form, 2).s, expected[:2], rtol=1e-12)


def _unmerged(coo):
    """Return the indices and row limits of CSR with repeated entries, which are by rows."""
    return coo.coords[1], np.searchsorted(coo.coords[0], np.arange(4))


@pytest.mark.parametrize("form", ["csr", "csc", "coo"])
@pytest.mark.parametrize("index", [99, 10**8, -1])
def test_rejects_sparse_indices_out_of_the_shape(form, index):
    matrix = sparse.csr_array(ratings()).asformat(form)
    if form == "coo":
        matrix.coords[1][0] = index
    else:
        matrix.indices[0] = index
    for compute in (truncated_svd, complete, lambda X, k: PCA(k).fit(X)):
        with pytest.raises(ValueError, match="must be a valid sparse matrix: ind"):
            compute(matrix, 2)
