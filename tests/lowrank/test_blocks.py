"""Matrices that are read block by block give what the same matrices give in memory."""

import pickle
import tracemalloc

import numpy as np
import pandas as pd
import polars as pl
import pytest
from scipy import sparse

from lowrank import (
    PCA,
    ArgumentError,
    ArgumentTypeError,
    ProbabilisticPCA,
    RowBlocks,
    Whitening,
    complete,
    robust_pca,
    truncated_svd,
)
from lowrank.arguments import as_operator
from lowrank.blocks import by_blocks
from lowrank.errors import LowRankError

METHODS = ["auto", "dense", "gram", "lanczos", "randomized", "arpack"]


def data(shape=(300, 40), dtype=np.float64):
    rng = np.random.default_rng(0)
    directions = rng.standard_normal((shape[1], shape[1])) * 0.8 ** np.arange(shape[1])
    return (rng.standard_normal(shape) @ directions + 5).astype(dtype)


def sparse_data():
    return sparse.random_array((300, 40), density=0.2, rng=0, format="csr")


def zeros_and_ones():
    return (sparse_data() > 0.5).astype(np.int8)


def blocks_of(X, rows=70):
    return RowBlocks(
        lambda: (X[start : start + rows] for start in range(0, X.shape[0], rows))
    )


def check_same(result, expected, atol=1e-7):
    np.testing.assert_allclose(result.s, expected.s, rtol=1e-7)
    np.testing.assert_allclose(result.U, expected.U, atol=atol)
    np.testing.assert_allclose(result.Vt, expected.Vt, atol=atol)
    np.testing.assert_allclose(
        result.frobenius_norm, expected.frobenius_norm, rtol=1e-12
    )


@pytest.mark.covering
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("center", [None, True])
@pytest.mark.parametrize(
    "X",
    [data(), data((40, 300)), sparse_data(), zeros_and_ones()],
    ids=["tall", "wide", "csr", "0/1"],
)
def test_the_svd_is_that_of_the_matrix(X, method, center):
    expected = truncated_svd(X, 4, method="dense", center=center)
    check_same(
        truncated_svd(blocks_of(X), 4, method=method, center=center, random_state=0),
        expected,
    )


def test_the_entries_may_be_very_large_or_small():
    X = data()
    for scale in (1e-200, 1e200):
        result = truncated_svd(blocks_of(X * scale), 4, center=True, random_state=0)
        np.testing.assert_allclose(result.s / scale, truncated_svd(X, 4, center=True).s)


def test_passes_are_readings():
    X, readings = data((500, 60)), []

    def start():
        readings.append(1)
        return iter(np.array_split(X, 7))

    blocks = RowBlocks(start)
    assert len(readings) == 1
    for method in ("gram", "lanczos", "randomized"):
        readings.clear()
        result = truncated_svd(blocks, 3, method=method, center=True, random_state=0)
        assert len(readings) == result.passes, method
        if method == "gram":
            assert (
                result.passes == 4
            )  # the Gram matrix, A V, and the two of the certificate


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_dtypes(dtype):
    X = data(dtype=dtype)
    assert truncated_svd(blocks_of(X), 3).U.dtype == dtype
    assert (
        truncated_svd(RowBlocks([np.ones((3, 2), int), np.eye(2)]), 1).U.dtype
        == np.float64
    )


@pytest.mark.parametrize(
    "settings", [{}, {"standardize": True}, {"center": False}, {"whiten": True}]
)
@pytest.mark.parametrize("X", [data(), sparse_data()], ids=["dense", "sparse"])
def test_pca(X, settings):
    expected = PCA(3, random_state=0, **settings).fit(X)
    blocks = blocks_of(X)
    pca = PCA(3, random_state=0, **settings).fit(blocks)
    for name in (
        "components_",
        "explained_variance_",
        "mean_",
        "explained_variance_ratio_",
    ):
        np.testing.assert_allclose(
            getattr(pca, name), getattr(expected, name), atol=1e-7
        )
    np.testing.assert_allclose(pca.noise_variance_, expected.noise_variance_)
    np.testing.assert_allclose(pca.transform(blocks), expected.transform(X), atol=1e-6)
    np.testing.assert_allclose(
        pca.score_samples(blocks), expected.score_samples(X), rtol=1e-6
    )
    with pytest.raises(ArgumentError, match="40 features"):
        pca.transform(blocks_of(X[:, :5]))


def test_pca_by_a_fraction_of_the_variance():
    X = data()
    assert PCA(0.9).fit(blocks_of(X)).n_components_ == PCA(0.9).fit(X).n_components_


@pytest.mark.parametrize("method", ["pca", "zca", "zca-cor"])
def test_whitening(method):
    X = data()
    X[:, 7] = X[:, 3]  # a direction without variance is dropped
    whitening, expected = (Whitening(method).fit(it) for it in (blocks_of(X), X))
    assert whitening.n_components_ == expected.n_components_ == 39
    np.testing.assert_allclose(whitening.transform(X), expected.transform(X), atol=1e-6)
    whitened = whitening.transform(blocks_of(X))
    np.testing.assert_allclose(whitened, whitening.transform(X), atol=1e-12)


def test_rejects_blocks_without_arrays():
    dense, stored = blocks_of(data()), blocks_of(sparse_data())
    with pytest.raises(
        ArgumentTypeError, match="must be dense; got RowBlocks of sparse blocks"
    ):
        Whitening().fit(stored)
    with pytest.raises(
        ArgumentTypeError, match="must be dense; got RowBlocks of sparse blocks"
    ):
        Whitening().fit(data()).transform(stored)
    for function in (ProbabilisticPCA().fit, complete, robust_pca, np.asarray):
        with pytest.raises(
            ArgumentTypeError, match=r"RowBlocks cannot .* array here; toarray\(\)"
        ):
            function(dense)


def test_an_array_on_disk_is_never_in_memory(tmp_path):
    X = data((10_000, 200))
    np.save(tmp_path / "X.npy", X)
    mapped = np.load(tmp_path / "X.npy", mmap_mode="r")
    blocks = RowBlocks.from_array(mapped, rows=500)
    tracemalloc.start()
    result = truncated_svd(blocks, 3, center=True, random_state=0)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < X.nbytes / 2
    check_same(result, truncated_svd(X, 3, center=True))


def test_large_memory_maps_are_read_in_blocks(tmp_path, monkeypatch):
    np.save(tmp_path / "X.npy", data())
    mapped = np.load(tmp_path / "X.npy", mmap_mode="r")
    assert by_blocks(mapped) is mapped
    monkeypatch.setattr("lowrank.blocks._IN_MEMORY", 1000)
    assert isinstance(as_operator(mapped), RowBlocks)
    check_same(truncated_svd(mapped, 3), truncated_svd(data(), 3))
    np.testing.assert_allclose(PCA(2).fit(mapped).mean_, data().mean(axis=0))


def test_csr_and_parquet_files(tmp_path):
    X = sparse_data()
    for name in ("indptr", "indices", "data"):
        np.save(tmp_path / f"{name}.npy", getattr(X, name))
    from_csr = RowBlocks.from_csr(tmp_path)
    assert from_csr.is_sparse
    assert from_csr.shape == X.shape
    check_same(truncated_svd(from_csr, 3), truncated_svd(X, 3))
    assert RowBlocks.from_csr(tmp_path, 50).shape == (300, 50)
    with pytest.raises(
        ArgumentError, match=r"n_columns must be at least 40, as .*; got 5\."
    ):
        RowBlocks.from_csr(tmp_path, n_columns=5)
    frame = pl.from_numpy(data())
    frame[:200].write_parquet(tmp_path / "a.parquet")
    frame[200:].write_parquet(tmp_path / "b.parquet")
    from_parquet = RowBlocks.from_parquet(tmp_path / "*.parquet", rows=90)
    check_same(truncated_svd(from_parquet, 3), truncated_svd(data(), 3))
    pl.DataFrame({"x": [1.0], "city": ["Rome"]}).write_parquet(tmp_path / "b.parquet")
    with pytest.raises(
        ArgumentTypeError, match=r"b\.parquet: column 'city' must have numbers; got"
    ):
        RowBlocks.from_parquet(tmp_path / "b.parquet")


@pytest.mark.parametrize("count", [0, -1, 2.5, True])
def test_wrong_numbers_of_rows_and_columns(tmp_path, count):
    for name in ("indptr", "indices", "data"):
        np.save(tmp_path / f"{name}.npy", getattr(sparse_data(), name))
    wrong = "at least 1; got" if type(count) is int else "an integer or None; got"
    with pytest.raises(
        (ArgumentError, ArgumentTypeError), match=f"rows must be {wrong} {count}"
    ):
        RowBlocks.from_array(data(), count)
    with pytest.raises(
        (ArgumentError, ArgumentTypeError), match=f"n_columns must be {wrong}"
    ):
        RowBlocks.from_csr(tmp_path, count)


@pytest.mark.parametrize(
    ("blocks", "error", "message"),
    [
        ((x for x in [np.eye(2)]), ArgumentTypeError, "read again; got generator"),
        (3, ArgumentTypeError, "got int"),
        ([], ArgumentError, "at least one"),
        (
            [np.eye(2), np.eye(3)],
            ArgumentError,
            "2 in the first, and 3 in the one .* row 2",
        ),
        ([np.eye(2), sparse.eye_array(2)], ArgumentTypeError, "got both"),
        ([np.eye(2), np.array([[1, np.nan]])], ArgumentError, "NaN at row 2, column 1"),
        (
            [sparse.csr_array([[0, np.inf]])],
            ArgumentError,
            "infinity at row 0, column 1",
        ),
        ([np.array([["a"]])], ArgumentTypeError, "real numbers"),
        ([np.ones(3)], ArgumentError, "two-dimensional"),
    ],
)
def test_wrong_blocks(blocks, error, message):
    with pytest.raises(error, match=message):
        RowBlocks(blocks)


def test_blocks_that_change_are_noticed():
    sizes = iter([5, 4])
    blocks = RowBlocks(lambda: iter([np.ones((next(sizes), 3))]))
    with pytest.raises(ArgumentError, match="5 rows at first, now 4"):
        truncated_svd(blocks, 1, method="lanczos")
    with pytest.raises(ArgumentError, match="subtract the means in the blocks"):
        PCA(1, center_samples=True).fit(blocks_of(data()))


def saved_map(folder, X, mode):
    np.save(folder / "X.npy", X)
    return np.load(folder / "X.npy", mmap_mode=mode)


@pytest.mark.parametrize("is_large", [False, True])
def test_changes_of_a_private_memory_map_count(tmp_path, monkeypatch, is_large):
    monkeypatch.setattr("lowrank.blocks._IN_MEMORY", 0 if is_large else 1 << 30)
    X = data()
    mapped = saved_map(tmp_path, X, "c")
    mapped[:, 0] = 0.0
    expected = truncated_svd(np.array(mapped), 3, random_state=0)
    for A in (mapped, RowBlocks.from_array(mapped, rows=70)):
        check_same(truncated_svd(A, 3, random_state=0), expected)
    pca = PCA(2).fit(RowBlocks.from_array(mapped, rows=70))
    assert pca.mean_[0] == 0
    assert (np.array(mapped)[:, 0] == 0).all()
    np.testing.assert_array_equal(np.load(tmp_path / "X.npy"), X)


@pytest.mark.parametrize("mode", ["r", "r+", "c"])
@pytest.mark.parametrize("is_large", [False, True])
def test_a_map_is_read_whose_file_was_replaced_or_removed(
    tmp_path, monkeypatch, mode, is_large
):
    monkeypatch.setattr("lowrank.blocks._IN_MEMORY", 0 if is_large else 1 << 30)
    X = data()
    mapped = saved_map(tmp_path, X, mode)
    if mode == "r+":
        mapped[0, 0] = X[0, 0] = 100.0
    np.save(tmp_path / "new.npy", np.ones_like(X))
    (tmp_path / "new.npy").replace(tmp_path / "X.npy")
    expected = truncated_svd(X, 3, random_state=0)
    for A in (mapped, RowBlocks.from_array(mapped, rows=70)):
        check_same(truncated_svd(A, 3, random_state=0), expected)
    (tmp_path / "X.npy").unlink()
    check_same(truncated_svd(RowBlocks.from_array(mapped), 3, random_state=0), expected)


def test_a_view_of_a_map_is_read(tmp_path):
    X = data()
    mapped = saved_map(tmp_path, X, "r")
    for view, expected in (
        (mapped[10:], X[10:]),
        (mapped[:, ::2], X[:, ::2]),
        (mapped.T, X.T),
    ):
        check_same(
            truncated_svd(RowBlocks.from_array(view, 9), 3), truncated_svd(expected, 3)
        )


def test_blocks_can_be_pickled(tmp_path):
    X = data()
    pl.DataFrame(X).write_parquet(tmp_path / "X.parquet")
    csr = sparse_data()
    for name in ("indptr", "indices", "data"):
        np.save(tmp_path / f"{name}.npy", getattr(csr, name))
    whole = (
        RowBlocks.from_array(X, 70),
        RowBlocks([X[:100], X[100:]]),
        RowBlocks.from_parquet(tmp_path / "X.parquet"),
        RowBlocks.from_csr(tmp_path),
    )
    for blocks in whole:
        again = pickle.loads(pickle.dumps(blocks))
        np.testing.assert_array_equal(
            truncated_svd(again, 2).s, truncated_svd(blocks, 2).s
        )


def test_nullable_frames_are_blocks():
    X = data()
    frame = pd.DataFrame(X).astype("Float64")
    blocks = RowBlocks([frame.iloc[:90], frame.iloc[90:]])
    check_same(truncated_svd(blocks, 3), truncated_svd(X, 3))
    frame.iloc[100, 3] = pd.NA
    with pytest.raises(ArgumentError, match="NaN at row 100, column 3"):
        RowBlocks([frame.iloc[:90], frame.iloc[90:]])


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("indptr", lambda x: x + 3, r"indptr.npy must begin with 0 and end with 96"),
        ("indptr", lambda x: x[:-1], r"indptr.npy must begin with 0 and end with 96"),
        ("indptr", lambda x: x[:0], r"number of entries; got \(\)"),
        ("indptr", lambda x: x[None], r"indptr.npy must be one-dimensional; got shape"),
        (
            "indices",
            lambda x: x + 0.5,
            "indices.npy must hold integers; got dtype float",
        ),
        ("indices", lambda x: x[:-3], "indices.npy must have 96 numbers, .* got 93"),
        ("data", lambda x: x[:, None], "data.npy must be one-dimensional; got shape"),
    ],
)
def test_rejects_damaged_files_of_a_sparse_matrix(name, change, message, tmp_path):
    matrix = sparse.random_array((30, 8), density=0.4, rng=0).tocsr()
    for array in ("indptr", "indices", "data"):
        np.save(tmp_path / f"{array}.npy", getattr(matrix, array))
    np.save(tmp_path / f"{name}.npy", change(getattr(matrix, name)))
    with pytest.raises(LowRankError, match=message):
        RowBlocks.from_csr(tmp_path)


def test_files_of_a_sparse_matrix_may_have_unsigned_indices(tmp_path):
    matrix = sparse.random_array((30, 8), density=0.4, rng=0).tocsr()
    np.save(tmp_path / "data.npy", matrix.data)
    for name in ("indptr", "indices"):
        np.save(tmp_path / f"{name}.npy", getattr(matrix, name).astype(np.uint64))
    blocks = RowBlocks.from_csr(tmp_path)
    np.testing.assert_array_equal(blocks.toarray(), matrix.toarray())


def test_a_function_may_return_a_list_of_blocks():
    blocks = RowBlocks(lambda: [np.ones((2, 3)), np.zeros((1, 3))])
    np.testing.assert_allclose(truncated_svd(blocks, 1).s, 6**0.5)
