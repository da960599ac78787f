"""Rules for choosing the rank: planted ranks, formulas, independent implementations."""

from __future__ import annotations

import inspect
import math

import numpy as np
import pytest
from scipy import sparse
from scipy.integrate import quad
from scipy.sparse.linalg import aslinearoperator

import lowrank
from lowrank import PCA, arguments, denoise, optimal_threshold
from lowrank.blocks import RowBlocks
from lowrank.rank import (
    RULES,
    bi_cross_validation,
    choose_rank,
    gavish_donoho,
    marchenko_pastur_median,
    parallel_analysis,
)


def planted(rank=3, shape=(120, 40), noise=1.0, seed=0):
    rng = np.random.default_rng(seed)
    signal = rng.standard_normal((shape[0], rank)) @ rng.standard_normal(
        (rank, shape[1])
    )
    return 10 * signal + noise * rng.standard_normal(shape)


@pytest.mark.covering(1)
@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("convert", [np.float32, sparse.csr_array])
@pytest.mark.parametrize("center", [None, True])
@pytest.mark.parametrize("shape", [(150, 60), (60, 150)])
def test_every_rule_finds_a_planted_rank(rule, convert, center, shape):
    assert (
        choose_rank(convert(planted(shape=shape)), rule, center=center, random_state=0)
        == 3
    )


@pytest.mark.covering(1)
@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("convert", [np.asarray, sparse.csr_array])
@pytest.mark.parametrize(
    ("size", "dtype"), [(1e-290, np.float64), (1e200, np.float64), (1e30, np.float32)]
)
def test_every_rule_works_at_extreme_scales(rule, convert, size, dtype):
    plain, scaled = (convert((planted() * unit).astype(dtype)) for unit in (1.0, size))
    for center in (None, True):
        assert choose_rank(scaled, rule, center=center, random_state=0) == choose_rank(
            plain, rule, center=center, random_state=0
        )


@pytest.mark.parametrize("rule", ["gavish-donoho", "parallel", "cv"])
def test_noise_alone_has_no_rank(rule):
    assert choose_rank(planted(rank=0), rule, random_state=0) == 0


def test_dense_and_sparse_input_give_the_same_rank():
    rng = np.random.default_rng(3)
    X = sparse.random_array((90, 60), density=0.2, rng=rng)
    for rule in ("elbow", "energy", "gavish-donoho", "cv"):
        assert choose_rank(X, rule, center=True, random_state=0) == choose_rank(
            X.toarray(), rule, center=True, random_state=0
        )


@pytest.mark.parametrize(
    ("beta", "omega"), [(1.0, 2.8582), (0.5, 2.1711), (0.1, 1.6089)]
)
def test_threshold_for_unknown_noise(beta, omega):
    """Table IV of Gavish & Donoho (2014)."""
    n = 1000
    s = np.linspace(2, 1, round(n * beta))
    threshold = omega * np.median(s)
    factor = omega * np.sqrt(marchenko_pastur_median(beta))
    known = {1.0: 4 / np.sqrt(3), 0.5: 1.9786, 0.1: 1.5816}[beta]
    assert factor == pytest.approx(known, rel=1e-3)
    s[0] = threshold * 1.002
    assert gavish_donoho(s, (n, s.size)) == 1
    s[0] = threshold * 0.998
    assert gavish_donoho(s, (n, s.size)) == 0


def test_threshold_for_known_noise():
    assert (
        gavish_donoho([47.0, 46.0, 1.0], (400, 400), noise=1.0) == 1
    )  # 4 / sqrt(3) * 20 = 46.2
    with pytest.raises(
        ValueError, match=r"s must have all 400 singular values, .* got 3"
    ):
        gavish_donoho([47.0, 46.0, 1.0], (400, 400))


def test_exactly_low_rank_without_noise():
    A = np.outer(np.arange(1.0, 31), np.ones(20)) + np.outer(
        np.ones(30), np.arange(20.0)
    )
    assert choose_rank(A, "gavish-donoho", center=False) == 2
    assert choose_rank(A, "gavish-donoho") == 1


@pytest.mark.parametrize("center", [None, True])
@pytest.mark.parametrize("convert", [np.asarray, sparse.csr_array])
def test_bi_cross_validation_is_its_formula(convert, center):
    A = planted(shape=(20, 14))
    rng = np.random.default_rng(5)
    rows, columns = (np.array_split(rng.permutation(size), 3) for size in A.shape)
    B = A - A.mean(axis=0) * bool(center)
    expected = np.zeros(6)
    for r in rows:
        for c in columns:
            rest_r, rest_c = np.setdiff1d(range(20), r), np.setdiff1d(range(14), c)
            U, s, Vt = np.linalg.svd(B[np.ix_(rest_r, rest_c)])
            for k in range(6):
                inverse = Vt[:k].T / s[:k] @ U[:, :k].T
                error = (
                    B[np.ix_(r, c)]
                    - B[np.ix_(r, rest_c)] @ inverse @ B[np.ix_(rest_r, c)]
                )
                expected[k] += np.sum(error**2) / A.size
    found = bi_cross_validation(convert(A), 5, center=center, random_state=5)
    np.testing.assert_allclose(found, expected, rtol=1e-8)


@pytest.mark.parametrize(
    ("size", "squared"), [(2.0**504, None), (2.0**600, np.inf), (1e-200, 0)]
)
def test_bi_cross_validation_at_every_scale(size, squared):
    A = planted(shape=(20, 14))
    scaled, plain = (bi_cross_validation(B, 5, random_state=5) for B in (A * size, A))
    if squared is None:
        np.testing.assert_allclose(scaled / size / size, plain, rtol=1e-9)
    else:
        assert (scaled == squared).all()
    assert choose_rank(A * size, "cv", random_state=5) == choose_rank(
        A, "cv", random_state=5
    )


@pytest.mark.parametrize(
    ("rank", "shape"), [(2, (100, 30)), (3, (120, 40)), (5, (60, 30)), (5, (500, 20))]
)
def test_cross_validation_does_not_choose_ranks_of_noise(rank, shape):
    tables = [planted(rank, shape, noise=10.0, seed=seed) for seed in range(18)]
    ranks = [choose_rank(table, "cv", random_state=0) for table in tables]
    assert ranks == [rank] * 18


def test_large_sparse_matrices_are_not_made_dense():
    A = sparse.random_array((7_000, 5_500), density=1e-4, rng=1)
    assert 0 <= choose_rank(A, "elbow") <= 50
    assert bi_cross_validation(A, 3).shape == (4,)
    with pytest.raises(ValueError, match="must be at most 5000; use 'elbow'"):
        choose_rank(A, "gavish-donoho")


def test_a_linear_operator_has_only_an_elbow():
    A = planted()
    assert choose_rank(aslinearoperator(A), "elbow") == choose_rank(A, "elbow")
    for rule in ("energy", "parallel", "cv"):
        with pytest.raises(
            TypeError, match="got a LinearOperator: choose the rule 'elbow'"
        ):
            choose_rank(aslinearoperator(A), rule)


def test_rules_of_blocks_of_rows():
    A = planted() + 3
    blocks = RowBlocks([A[:50], A[50:]])
    for rule in set(RULES) - {"parallel", "cv"}:
        for center in (None, True):
            assert choose_rank(blocks, rule, center=center) == choose_rank(
                A, rule, center=center
            )
    assert denoise(blocks).rank == denoise(A).rank
    assert optimal_threshold(blocks) == pytest.approx(optimal_threshold(A))
    wide, stored = RowBlocks([A.T]), RowBlocks([sparse.csr_array(A)])
    for given, rule in (
        (blocks, "parallel"),
        (blocks, "cv"),
        (wide, "energy"),
        (stored, "energy"),
    ):
        with pytest.raises(
            TypeError, match=r"got RowBlocks .*: choose the rule 'elbow'"
        ):
            choose_rank(given, rule)


def test_same_seed_same_choice():
    A = planted(noise=5.0)
    assert parallel_analysis(A, random_state=7) == parallel_analysis(A, random_state=7)
    one, two = (bi_cross_validation(A, 5, random_state=7) for _ in range(2))
    np.testing.assert_array_equal(one, two)


def test_bad_arguments():
    with pytest.raises(
        ValueError, match=r"rule must be one of 'elbow', .*; got 'best'"
    ):
        choose_rank(planted(), "best")
    with pytest.raises(
        ValueError, match=r"at least 3 rows and columns .* got shape \(2, 9\)"
    ):
        bi_cross_validation(np.ones((2, 9)))
    with pytest.raises(ValueError, match=r"max_rank must be at least 0; got -1\."):
        bi_cross_validation(planted(), -1)
    with pytest.raises(TypeError, match=r"max_rank must be an integer; got 2\.5\."):
        bi_cross_validation(planted(), 2.5)


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("rule", ["elbow", "gavish-donoho", "cv"])
@pytest.mark.parametrize("as_sparse", [False, True])
def test_exact_rank_without_noise(rule, seed, as_sparse):
    rng = np.random.default_rng(seed)
    left = sparse.random_array((400, 5), density=0.3, rng=rng)
    S = (left @ sparse.random_array((5, 100), density=0.3, rng=rng)).tocsr()
    assert choose_rank(S if as_sparse else S.toarray(), rule, random_state=0) == 5


@pytest.mark.parametrize("beta", [1e-3, 0.05, 0.3, 0.7, 1.0])
def test_marchenko_pastur_median_halves_the_mass(beta):
    low, high = (1 - math.sqrt(beta)) ** 2, (1 + math.sqrt(beta)) ** 2

    def density(x):
        return math.sqrt(max((high - x) * (x - low), 0)) / (2 * math.pi * beta * x)

    below = quad(density, low, marchenko_pastur_median(beta), limit=200)[0]
    assert below == pytest.approx(0.5, abs=1e-6)


def test_duplicate_entries_are_summed():
    S = sparse.csr_array((np.ones(6), [0, 0, 0, 0, 1, 2], [0, 4, 5, 6]), shape=(3, 3))
    for rule in RULES:
        assert choose_rank(S, rule, random_state=0) == choose_rank(
            S.toarray(), rule, random_state=0
        )
    assert S.nnz == 6


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("convert", [np.array, sparse.csr_array])
def test_nan_is_an_error(rule, convert):
    X = np.eye(4)
    X[1, 2] = np.nan
    with pytest.raises(
        ValueError, match=r"A must be finite; got NaN at row 1, column 2\."
    ):
        choose_rank(convert(X), rule)


@pytest.mark.parametrize("rule", [rule for rule in RULES if rule != "cv"])
@pytest.mark.parametrize("convert", [np.array, sparse.csr_array])
def test_no_rows(rule, convert):
    assert choose_rank(convert(np.zeros((0, 4))), rule, center=True) == 0


@pytest.mark.parametrize("rule", RULES)
def test_a_rule_checks_the_matrix_once(rule, monkeypatch):
    checks = []
    kind = arguments._working_dtype
    monkeypatch.setattr(
        arguments, "_working_dtype", lambda *of: checks.append(of) or kind(*of)
    )
    choose_rank(planted(), rule, center=True, random_state=0)
    assert len(checks) == 1


def test_choose_rank_and_pca_centre_in_the_same_way():
    X = np.random.default_rng(0).standard_normal((100, 20)) + 3
    for rule in ("elbow", "energy", "parallel"):
        assert choose_rank(X, rule) == PCA(rule).fit(X).n_components_


def test_one_default_of_random_state():
    public = (getattr(lowrank, name) for name in lowrank.__all__)
    callables = [
        it for it in public if not (isinstance(it, type) and issubclass(it, Exception))
    ]
    parameters = [
        inspect.signature(it).parameters.get("random_state") for it in callables
    ]
    defaults = [parameter.default for parameter in parameters if parameter is not None]
    assert defaults == [0] * len(defaults)
    assert len(defaults) > 15
