"""Rules that choose k from the matrix."""

import math

import numpy as np
import pytest
from scipy import sparse
from scipy.integrate import quad
from sklearn.decomposition._pca import _infer_dimension

from lowrank.rank import (
    RULES,
    bi_cross_validation,
    choose_rank,
    marchenko_pastur_median,
    minka,
    noise_threshold,
    profile_likelihood,
)


def planted(rank=4, shape=(200, 80)):
    rng = np.random.default_rng(0)
    signal = 2 * rng.standard_normal((shape[0], rank)) @ rng.standard_normal((rank, shape[1]))
    return signal + rng.standard_normal(shape)


@pytest.mark.parametrize("center", [None, True])
@pytest.mark.parametrize("convert", [np.array, sparse.csr_array, sparse.coo_matrix])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("rule", RULES)
def test_planted_rank(rule, dtype, convert, center):
    X = (planted() + (5 if center else 0)).astype(dtype)
    assert choose_rank(convert(X), rule, center=center, random_state=0) == 4


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("rule", ["elbow", "gavish-donoho", "cv"])
@pytest.mark.parametrize("as_sparse", [False, True])
def test_exact_rank_without_noise(rule, seed, as_sparse):
    rng = np.random.default_rng(seed)
    left = sparse.random_array((400, 5), density=0.3, rng=rng)
    S = (left @ sparse.random_array((5, 100), density=0.3, rng=rng)).tocsr()
    assert choose_rank(S if as_sparse else S.toarray(), rule, random_state=0) == 5


@pytest.mark.parametrize("beta", [1e-3, 0.05, 0.3, 0.7, 1.0])
def testmarchenko_pastur_median_halves_the_mass(beta):
    low, high = (1 - math.sqrt(beta)) ** 2, (1 + math.sqrt(beta)) ** 2

    def density(x):
        return math.sqrt(max((high - x) * (x - low), 0)) / (2 * math.pi * beta * x)

    below = quad(density, low, marchenko_pastur_median(beta), limit=200)[0]
    assert below == pytest.approx(0.5, abs=1e-6)


@pytest.mark.parametrize("seed", range(20))
def test_minka_agrees_with_scikit_learn(seed):
    rng = np.random.default_rng(seed)
    X = planted(int(rng.integers(0, 8)), (60, 12)) + rng.standard_normal((60, 12))
    eigenvalues = np.linalg.svd(X - X.mean(axis=0), compute_uv=False) ** 2 / 59
    assert minka(eigenvalues, 60) == _infer_dimension(eigenvalues, 60)


@pytest.mark.parametrize(("eigenvalues", "rank"), [([], 0), ([2.0], 0), ([0.0, 0.0, 0.0], 1)])
def test_minka_of_what_has_no_evidence(eigenvalues, rank):
    assert minka(eigenvalues, 60) == rank


def test_bi_cross_validation_by_its_definition():
    Z = np.random.default_rng(0).standard_normal((30, 21))
    rng = np.random.default_rng(3)
    rows, columns = (np.array_split(rng.permutation(size), 3) for size in Z.shape)
    expected = np.zeros(6)
    for i in rows:
        for j in columns:
            i2, j2 = np.setdiff1d(np.arange(30), i), np.setdiff1d(np.arange(21), j)
            U, s, Vt = np.linalg.svd(Z[np.ix_(i2, j2)], full_matrices=False)
            for k in range(6):
                inverse = Vt[:k].T / s[:k] @ U[:, :k].T
                guess = Z[np.ix_(i, j2)] @ inverse @ Z[np.ix_(i2, j)]
                expected[k] += np.sum((Z[np.ix_(i, j)] - guess) ** 2)
    errors = bi_cross_validation(Z, 5, random_state=3)
    np.testing.assert_allclose(errors, expected / Z.size, rtol=1e-10)


def test_profile_likelihood_maximises_the_likelihood():
    s = np.sort(np.random.default_rng(0).random(12))[::-1]

    def likelihood(q):
        first, second = s[:q], s[q:]
        pooled = np.sum((first - first.mean()) ** 2) + np.sum((second - second.mean()) ** 2)
        variance = pooled / (s.size - 2)
        return -s.size / 2 * math.log(2 * math.pi * variance) - pooled / (2 * variance)

    assert profile_likelihood(s) == max(range(1, 12), key=likelihood)
    assert [profile_likelihood(x) for x in ([], [2.0], [3.0, 3.0])] == [0, 1, 2]


def test_noise_threshold():
    assert noise_threshold([5.0, 3.0, 3.0, 1.0], 3.0) == 1
    with pytest.raises(ValueError, match=r"level must not be negative; got -1\.0\."):
        noise_threshold([1.0], -1.0)


def test_duplicate_entries_are_summed():
    S = sparse.csr_array((np.ones(6), [0, 0, 0, 0, 1, 2], [0, 4, 5, 6]), shape=(3, 3))
    for rule in RULES:
        assert choose_rank(S, rule, random_state=0) == choose_rank(
            S.toarray(), rule, random_state=0
        )
    assert S.nnz == 6


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("convert", [np.array, sparse.csr_array])
def test_nan_is_refused(rule, convert):
    X = np.eye(4)
    X[1, 2] = np.nan
    with pytest.raises(ValueError, match=r"A must be finite; got NaN at row 1, column 2\."):
        choose_rank(convert(X), rule)


@pytest.mark.parametrize("rule", [rule for rule in RULES if rule not in ("cv", "mle")])
@pytest.mark.parametrize("convert", [np.array, sparse.csr_array])
def test_no_rows(rule, convert):
    assert choose_rank(convert(np.zeros((0, 4))), rule, center=True) == 0


def test_unknown_rule():
    with pytest.raises(ValueError, match=r"rule must be one of 'elbow', .*; got 'x'\."):
        choose_rank(np.eye(3), "x")
