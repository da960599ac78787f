"""Checks that all doors of `lowrank` share: one clear error, or the right number."""

import numpy as np
import pytest
from scipy import sparse

import lowrank
from lowrank import ArgumentError, LowRankError

X = np.random.default_rng(0).random((12, 6))
INCOMPLETE = np.where(X > 0.2, X, np.nan)
SVD = lowrank.truncated_svd(X, 3)
DOORS = {
    "k": lambda value: lowrank.truncated_svd(X, value),
    "tol": lambda value: lowrank.truncated_svd(X, 2, tol=value),
    "singular_values": lambda value: lowrank.singular_values(X, value),
    "updated": lambda value: SVD.updated(X[:2], k=value),
    "cur": lambda value: lowrank.cur(X, value),
    "leverage": lambda value: lowrank.leverage_scores(X, value),
    "complete": lambda value: lowrank.complete(INCOMPLETE, value),
    "max_iter": lambda value: lowrank.complete(INCOMPLETE, 2, max_iter=value),
    "seed": lambda value: lowrank.complete(INCOMPLETE, 2, random_state=value),
    "robust": lambda value: lowrank.robust_pca(X, max_iter=value),
    "max_rank": lambda value: lowrank.soft_impute(INCOMPLETE, 1.0, max_rank=value),
    "held out": lambda value: lowrank.choose_regularization(
        INCOMPLETE, test_fraction=value
    ),
    "energy": lambda value: lowrank.choose_rank(X, "energy", fraction=value),
    "total": lambda value: lowrank.cumulative_energy([0.5], total=value),
    "noise": lambda value: lowrank.gavish_donoho(SVD.s, X.shape, noise=value),
    "blocks": lambda value: lowrank.RowBlocks.from_array(X, rows=value),
    "pca": lambda value: lowrank.PCA(value).fit(X),
    "ddof": lambda value: lowrank.PCA(2, ddof=value).fit(X),
    "whitening": lambda value: lowrank.Whitening(n_components=value).fit(X),
    "ppca": lambda value: lowrank.ProbabilisticPCA(value).fit(X),
    "nmf": lambda value: lowrank.NMF(value).fit(X),
    "nmf seed": lambda value: lowrank.NMF(2, random_state=value).fit(X),
    "sample": lambda value: lowrank.PCA(2).fit(X).sample(value),
}


@pytest.mark.parametrize("value", [True, np.True_, "2", [0.5, 0.5, "x"]])
@pytest.mark.parametrize("door", DOORS)
def test_only_numbers_are_numbers(door, value):
    with pytest.raises(LowRankError):
        DOORS[door](value)


@pytest.mark.parametrize("value", [True, np.True_, 1])
def test_flags_may_come_from_numpy(value):
    expected = lowrank.complete(INCOMPLETE, 2, nonnegative=True)
    completion = lowrank.complete(INCOMPLETE, 2, nonnegative=value)
    np.testing.assert_array_equal(completion.toarray(), expected.toarray())


REPEATED = {
    "svd": lambda S: lowrank.truncated_svd(S, 1).s,
    "pca": lambda S: lowrank.PCA(1, center=True).fit(S).singular_values_,
    "transform": lambda S: lowrank.PCA(1).fit(np.eye(2)).transform(S),
    "blocks": lambda S: lowrank.singular_values(lowrank.RowBlocks([S]), 1),
    "update": lambda S: lowrank.truncated_svd(np.eye(2), 1).updated(S).s,
    "nmf": lambda S: lowrank.NMF(1).fit_transform(S),
    "ppca": lambda S: lowrank.ProbabilisticPCA(1).fit(S).mean_,
    "columns": lambda S: lowrank.select_columns(S, 1).error,
    "product": lambda S: lowrank.LowRank(np.eye(3), np.eye(3)) @ S,
    "weights": lambda S: lowrank.complete(X[:3, :2], 1, weights=S).toarray(),
}


@pytest.mark.covering(1)
@pytest.mark.parametrize("dtype", ["int8", "uint16", "int32"])
@pytest.mark.parametrize("door", REPEATED)
def test_repeated_integers_do_not_overflow(door, dtype):
    top = np.iinfo(dtype).max
    coordinates = [0, 0, 0, 1, 2], [0, 0, 1, 1, 0]
    values = np.array([top, top, 1, top, 2])
    shape = (3, 2)
    repeated = sparse.coo_array((values.astype(dtype), coordinates), shape=shape)
    exact = sparse.coo_array((values.astype(float), coordinates), shape=shape)
    result = REPEATED[door](repeated)
    np.testing.assert_allclose(result, REPEATED[door](exact.tocsr()), rtol=1e-9)


@pytest.mark.parametrize("form", ["csr", "csc"])
@pytest.mark.parametrize("door", REPEATED)
def test_rejects_indices_out_of_the_shape(door, form):
    matrix = sparse.csr_array(np.arange(1.0, 7).reshape(3, 2)).asformat(form)
    matrix.indices[1] = 10**6
    with pytest.raises(ArgumentError, match="must be a valid sparse matrix"):
        REPEATED[door](matrix)


@pytest.mark.parametrize("form", ["csr", "coo"])
@pytest.mark.parametrize("door", REPEATED)
def test_rejects_sparse_matrices_too_wide_for_indices_of_32_bits(door, form):
    entries = [1.0], ([0], [2**31 - 1])
    wide = sparse.coo_array(entries, shape=(3, 2**31)).asformat(form)
    with pytest.raises(ArgumentError, match="must have at most 2,147,483,647 rows"):
        REPEATED[door](wide)


@pytest.mark.parametrize("door", REPEATED)
def test_arrays_of_a_sparse_matrix_may_be_views(door):
    matrix = sparse.csr_array(np.arange(1.0, 7).reshape(3, 2))
    view = matrix.copy()
    view.data = np.repeat(matrix.data, 2)[::2]
    np.testing.assert_array_equal(REPEATED[door](view), REPEATED[door](matrix))


def test_rejects_blocks_with_other_columns_when_read_again():
    widths = iter([2, 3])
    blocks = lowrank.RowBlocks(lambda: iter([sparse.eye_array(3, next(widths))]))
    with pytest.raises(ArgumentError, match="got 2 columns at first, now 3"):
        lowrank.truncated_svd(blocks, 1)


MASKED = np.ma.masked_array([[3.0, 2.0], [1.0, 1.0]], mask=[[0, 1], [0, 0]])


@pytest.mark.parametrize(
    "use",
    [
        lambda: lowrank.RowBlocks.from_array(MASKED),
        lambda: lowrank.cumulative_energy(MASKED[0]),
        lambda: lowrank.elbow(MASKED[0]),
        lambda: lowrank.LowRank(np.eye(2), np.eye(2)) + MASKED,
        lambda: lowrank.LowRank(np.eye(2), np.eye(2)) @ MASKED,
    ],
)
def test_rejects_masked_entries(use):
    with pytest.raises(ArgumentError, match="must have no masked entries; got 1"):
        use()


@pytest.mark.parametrize(
    "count",
    [
        lowrank.elbow,
        lowrank.cumulative_energy,
        lambda s: lowrank.gavish_donoho(s, (2, 2)),
    ],
)
def test_rejects_complex_spectra(count):
    with pytest.raises(TypeError, match="s must hold real numbers; got dtype complex"):
        count(np.array([2 + 1j, 1]))


@pytest.mark.parametrize("kind", ["U1", "S1", "M8[D]", "m8[s]", "f8,f8"])
@pytest.mark.parametrize(
    "estimator",
    [lowrank.PCA(1), lowrank.Whitening(), lowrank.NMF(1), lowrank.ProbabilisticPCA(1)],
)
def test_rejects_text_dates_and_records(estimator, kind):
    table = np.arange(6).reshape(3, 2).astype(kind)
    with pytest.raises(TypeError, match="X must hold real numbers; got dtype"):
        estimator.fit(table)


def test_integers_beyond_floats_are_not_finite():
    with pytest.raises(ArgumentError, match="tol must be finite and not negative"):
        lowrank.truncated_svd(np.eye(2), 1, tol=10**400)


HUGE = np.full((5, 4), 1.7e308)
HUGE[0, 0] *= -1


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    "compute",
    [
        lambda: lowrank.truncated_svd(HUGE, 2),
        lambda: lowrank.singular_values(np.full((4, 3), 3e38, np.float32)),
        lambda: lowrank.PCA(2).fit(HUGE),
        lambda: lowrank.PCA(1).fit(sparse.csr_array(HUGE)),
        lambda: lowrank.optimal_threshold(HUGE),
        lambda: lowrank.robust_pca(HUGE),
        lambda: lowrank.soft_impute(HUGE, 1e307),
        lambda: lowrank.RowBlocks([HUGE]),
        lambda: lowrank.cur(np.diag([1e-310, 1e-320]), 2),
    ],
)
def test_results_beyond_the_dtype_are_an_error(compute):
    with pytest.raises(ArgumentError, match="must be within the range of float"):
        compute()


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("rule", lowrank.rank.RULES)
def test_rules_for_the_rank_do_not_need_the_scale(rule):
    expected = lowrank.choose_rank(np.sign(HUGE), rule)
    assert lowrank.choose_rank(HUGE, rule) == expected


def test_standardised_columns_may_have_huge_means():
    standardised = lowrank.PCA(2, standardize=True)
    expected = standardised.fit(np.sign(HUGE)).singular_values_
    with np.errstate(over="raise"):
        actual = standardised.fit(HUGE).singular_values_
    np.testing.assert_allclose(actual, expected, rtol=1e-9)
