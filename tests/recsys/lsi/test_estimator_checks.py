"""scikit-learn's own conformance checks."""

import pytest
from sklearn.utils.estimator_checks import parametrize_with_checks

from recsys.lsi import LSI

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.SkipTestWarning")


@parametrize_with_checks([LSI(2, "log-entropy")])
def test_scikit_learn_conformance(estimator, check):
    check(estimator)


@pytest.mark.long
@parametrize_with_checks([LSI(), LSI(1, "count"), LSI("elbow")])
def test_scikit_learn_conformance_with_other_parameters(estimator, check):
    check(estimator)
