"""Numbers at the doors of `lowrank`: a bool is none, and other types are one clear error."""

import numpy as np
import pytest

import lowrank
from lowrank import LowRankError

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
