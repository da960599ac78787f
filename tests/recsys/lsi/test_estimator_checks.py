"""scikit-learn's own conformance checks."""

import pytest
from sklearn.utils.estimator_checks import parametrize_with_checks

from recsys.lsi import LSI

ESTIMATORS = [LSI(), LSI(2, "log-entropy"), LSI(1, "count"), LSI("elbow")]


@parametrize_with_checks(ESTIMATORS)
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.SkipTestWarning")
def test_scikit_learn_conformance(estimator, check):
    check(estimator)
