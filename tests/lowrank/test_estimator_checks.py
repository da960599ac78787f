"""scikit-learn's own conformance checks."""

import pytest
from sklearn.utils.estimator_checks import parametrize_with_checks

from lowrank.pca import PCA
from lowrank.probabilistic import ProbabilisticPCA
from lowrank.whitening import Whitening

ESTIMATORS = [
    PCA(),
    PCA(2, standardize=True),
    PCA(1, center="exact", whiten=True, center_samples=True),
    PCA(0.9, center=False),
    ProbabilisticPCA(1),
    Whitening(),
    Whitening("zca"),
    Whitening("zca-cor", epsilon=0.0),
]


@parametrize_with_checks(ESTIMATORS)
@pytest.mark.filterwarnings("ignore::lowrank.pca.MeanAlignmentWarning")
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.SkipTestWarning")
def test_scikit_learn_conformance(estimator, check):
    check(estimator)
