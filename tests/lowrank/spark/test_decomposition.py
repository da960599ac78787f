"""Truncated SVD and PCA on Spark, against the local engine."""

import sys

import numpy as np
import pytest
import scipy.sparse as sp

import lowrank
from lowrank.spark import PCA, truncated_svd

N, M = 120, 45
ROW = np.linspace(-1, 1, M)


def decaying(rows, columns, rng):
    """Singular values from 100 down to about 1e-2, and means that are not zero."""
    left, right = (
        np.linalg.qr(rng.standard_normal((n, 20)))[0] for n in (rows, columns)
    )
    return left * np.geomspace(100, 1e-2, 20) @ right.T + rng.standard_normal(columns)


def sparse_rows(matrix, rng):
    """Rows of (indices, values), the indices in no order."""
    for row in range(matrix.shape[0]):
        part = slice(matrix.indptr[row], matrix.indptr[row + 1])
        order = rng.permutation(part.stop - part.start)
        yield (
            row,
            matrix.indices[part][order].tolist(),
            matrix.data[part][order].tolist(),
        )


@pytest.fixture(scope="module")
def dense(spark):
    A = decaying(N, M, np.random.default_rng(0))
    rows = [
        (int(row), A[row].tolist()) for row in np.random.default_rng(1).permutation(N)
    ]
    frame = spark.createDataFrame(rows, "number int, x array<double>").repartition(2)
    return A, frame.cache()


@pytest.fixture(scope="module")
def sparse(spark):
    """Some rows are empty, and so are the last columns."""
    rng = np.random.default_rng(2)
    A = sp.random_array((N, M), density=0.1, rng=rng, format="csr")
    A = sp.csr_array(A @ sp.diags_array(np.geomspace(10, 0.1, M)))
    A.data[A.indices >= M - 2] = 0
    A.eliminate_zeros()
    rows = [(int(n), i, v) for n, i, v in sparse_rows(A, rng)]
    schema = "number int, at array<int>, x array<double>"
    return A, spark.createDataFrame(rows, schema).repartition(2).cache()


@pytest.mark.parametrize(
    ("kind", "center"),
    [
        ("dense", None),
        ("dense", True),
        ("dense", ROW),
        ("sparse", None),
        ("sparse", True),
        ("sparse", ROW),
    ],
    ids=lambda value: "row" if value is ROW else str(value),
)
def test_it_is_the_svd_of_the_local_engine(kind, center, request):
    A, frame = request.getfixturevalue(kind)
    columns = {"values": "x"}
    if kind == "sparse":
        columns |= {"indices": "at", "n_columns": M}
    k = 6
    found = truncated_svd(
        frame, k, **columns, order="number", center=center, random_state=0
    )
    local = lowrank.truncated_svd(A, k, center=center, tol=1e-12, random_state=0)
    assert found.method == "gram"
    assert found.shape == (N, M)
    np.testing.assert_allclose(found.s, local.s, rtol=1e-10)
    np.testing.assert_allclose(found.Vt, local.Vt, atol=1e-6)
    np.testing.assert_allclose(found.U, local.U, atol=1e-6)
    assert found.frobenius_norm == pytest.approx(local.frobenius_norm, rel=1e-12)
    assert found.error == pytest.approx(local.error, rel=1e-6)
    whole = A.toarray() if sp.issparse(A) else A
    left_over = whole - {"None": 0, "True": whole.mean(axis=0)}.get(str(center), center)
    left_over = left_over - found.U * found.s @ found.Vt
    assert found.spectral_error_bound >= np.linalg.norm(left_over, 2)
    right = np.linalg.norm(left_over.T @ found.U, axis=0)
    np.testing.assert_allclose(found.residuals[1], right, atol=1e-9)
    assert found.residuals.max() <= 1e-8 * found.s[0]


def test_a_matrix_with_too_many_columns_is_an_error(spark):
    frame = spark.createDataFrame(
        [([0, 4096], [1.0, 2.0])], "i array<int>, values array<double>"
    )
    with pytest.raises(
        ValueError, match="has 4,097 columns, and A'A on the driver may have up to"
    ):
        truncated_svd(frame, 1, indices="i")


def test_a_tolerance_that_is_not_reached_is_a_warning(spark):
    frame = spark.createDataFrame(
        [([1e10, 0.0],), ([1.0, 1e-3],)], "values array<double>"
    )
    with pytest.warns(
        lowrank.ConvergenceWarning, match="above tol=.* with method='gram'"
    ):
        truncated_svd(frame, 2, tol=1e-15)


def test_float32_is_returned_as_float32(spark):
    A = np.arange(12, dtype=np.float32).reshape(4, 3)
    frame = spark.createDataFrame([(row.tolist(),) for row in A], "values array<float>")
    found = truncated_svd(frame, 2, random_state=0)
    assert {each.dtype for each in found} == {np.dtype(np.float32)}
    np.testing.assert_allclose(found.s, np.linalg.svd(A)[1][:2], rtol=1e-5)


def test_zero_singular_values_have_orthonormal_vectors(spark, tmp_path):
    frame = spark.createDataFrame([([3.0, 0.0, 0.0],), ([0.0, 0.0, 0.0],), ([4.0, 0.0, 0.0],)], "values array<double>")  # fmt: skip  # noqa: E501
    found = truncated_svd(frame, 3, random_state=0)
    np.testing.assert_allclose(found.s, [5, 0, 0], atol=1e-12)
    np.testing.assert_allclose(found.U.T @ found.U, np.eye(3), atol=1e-12)
    assert found.error == 0
    nothing = truncated_svd(frame, 0)
    assert (nothing.U.shape, nothing.s.shape, nothing.Vt.shape) == (
        (3, 0),
        (0,),
        (0, 3),
    )
    assert nothing.error == pytest.approx(5)


def test_left_vectors_can_be_written_instead(dense, tmp_path):
    import polars as pl

    A, frame = dense
    ask = {"values": "x", "order": "number", "random_state": 0}
    here = truncated_svd(frame, 2, **ask)
    there = truncated_svd(frame, 2, **ask, left=str(tmp_path / "u"))
    assert there.left == str(tmp_path / "u")
    assert (there.U.shape, there.shape) == ((0, 2), A.shape)
    written = pl.read_parquet(f"{tmp_path}/u/*.parquet").sort("order")
    np.testing.assert_allclose(np.array(written["u"].to_list()), here.U, atol=1e-9)


@pytest.mark.parametrize("center", ["exact", False])
def test_pca_is_that_of_the_local_engine(dense, center):
    A, frame = dense
    found = PCA(4, center=center, whiten=True, random_state=0).fit(frame, values="x")
    local = lowrank.PCA(4, center=center, whiten=True, random_state=0).fit(A)
    for name in (
        "components_", "explained_variance_", "explained_variance_ratio_", "singular_values_",
        "mean_", "noise_variance_", "distortion_", "n_samples_", "n_features_in_",
    ):  # fmt: skip
        np.testing.assert_allclose(
            getattr(found, name),
            getattr(local, name),
            rtol=1e-7,
            atol=1e-7,
            err_msg=name,
        )
    np.testing.assert_allclose(
        found.transform(A[:5]), local.transform(A[:5]), atol=1e-6
    )
    np.testing.assert_allclose(
        found.inverse_transform(found.transform(A[:5])),
        local.inverse_transform(local.transform(A[:5])),
        atol=1e-6,
    )


def test_pca_with_another_centre_is_an_error(dense):
    with pytest.raises(ValueError, match="center must be 'exact' or False; got 'auto'"):
        PCA(2, center="auto").fit(dense[1], values="x")


@pytest.mark.parametrize(
    ("rows", "schema", "options", "error", "message"),
    [
        ([], "values array<double>", {}, ValueError, "must have at least one row"),
        ([(1.0,)], "values double", {}, TypeError, "must hold arrays of float or double; it is of"),
        ([([1.0],), ([1.0, 2.0],)], "values array<double>", {}, ValueError, "of one length; got 1"),
        ([([float("nan")],)], "values array<double>", {}, ValueError, "1 of 1 rows have an entry"),
        ([(None,)], "values array<double>", {}, ValueError, "1 of 1 rows have no values"),
        ([([1.0],)], "values array<double>", {"k": 2}, ValueError, "between 0 and 1 .*; got 2"),
        ([([1.0],)], "values array<double>", {"values": "x"}, ValueError, "has no column 'x'"),
        ([([1.0],)], "values array<double>", {"center": [1.0, 2.0]}, ValueError, "got .2,"),
        ([([1.0],)], "values array<double>", {"tol": -1.0}, ValueError, "tol must be finite"),
        ([([1.0],)], "values array<double>", {"k": "1"}, TypeError, "an integer; got '1'"),
        ([([1.0],)], "values array<double>", {"n_columns": 2}, ValueError, "must be 1, the length"),
        ([([0, 0], [1.0, 2.0])], "i array<int>, values array<double>", {"indices": "i"}, ValueError,
         "1 of 1 rows name a column twice"),
        ([([0], [1.0, 2.0])], "i array<int>, values array<double>", {"indices": "i"}, ValueError,
         "1 of 1 rows have another number of indices than of values"),
        ([([-1], [1.0])], "i array<int>, values array<double>", {"indices": "i"}, ValueError,
         "Indices must be 0 or more; got -1"),
        ([([7], [1.0])], "i array<int>, values array<double>", {"indices": "i", "n_columns": 5},
         ValueError, "Indices must be below n_columns, 5; got 7"),
    ],
)  # fmt: skip
def test_a_table_that_is_not_a_matrix_is_an_error(
    spark, rows, schema, options, error, message
):
    with pytest.raises(error, match=message):
        truncated_svd(spark.createDataFrame(rows, schema), **({"k": 1} | options))


def test_a_path_is_read_and_the_last_index_tells_the_width(sparse, tmp_path):
    A, frame = sparse
    path = str(tmp_path / "rows.parquet")
    frame.write.parquet(path)
    ask = {"values": "x", "indices": "at", "tol": 1e-6, "random_state": 0}
    found = truncated_svd(path, 3, **ask)
    assert found.shape == (N, M - 2)  # without the last columns, which are empty
    np.testing.assert_allclose(found.s, np.linalg.svd(A.toarray())[1][:3], rtol=1e-9)


def test_a_path_needs_a_session(needs_spark, monkeypatch):
    monkeypatch.setattr("pyspark.sql.SparkSession.getActiveSession", lambda: None)
    with pytest.raises(
        ValueError, match="There is no Spark session to read the rows with"
    ):
        truncated_svd("rows.parquet", 1)


def test_left_vectors_too_large_for_the_driver(dense, monkeypatch):
    from lowrank.spark import decomposition

    monkeypatch.setattr(decomposition, "_COLLECTED", 8 * N)
    with pytest.raises(ValueError, match="too much for the driver; use left='PATH'"):
        truncated_svd(dense[1], 2, values="x")


def test_pyspark_is_missing(monkeypatch):
    monkeypatch.setitem(sys.modules, "pyspark.sql", None)
    with pytest.raises(ImportError, match=r"pip install 'lowrank-recsys\[spark\]'"):
        truncated_svd("rows.parquet", 1)
