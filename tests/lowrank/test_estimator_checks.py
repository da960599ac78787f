"""Conformance of the estimators: scikit-learn's own checks, and the promises that they share."""

import pickle

import numpy as np
import pytest
from scipy import sparse
from sklearn.base import clone
from sklearn.linear_model import LinearRegression
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

from lowrank import NMF, PCA, ProbabilisticPCA, Whitening

pytestmark = [
    pytest.mark.filterwarnings("ignore::lowrank.pca.MeanAlignmentWarning"),
    pytest.mark.filterwarnings("ignore::sklearn.exceptions.SkipTestWarning"),
]
CHECKED = [
    PCA(1, center="exact", whiten=True, center_samples=True),
    ProbabilisticPCA(1),
    Whitening("zca"),
    NMF(1),  # the search for the number is slow
]
OTHER_PARAMETERS = [
    PCA(),
    PCA(2, standardize=True),
    PCA(0.9, center=False),
    ProbabilisticPCA(),
    Whitening(),
    Whitening("zca-cor", epsilon=0.0),
    NMF(2, unstored="missing", regularization=0.1),
]
FORMATS = {
    "dense": np.ascontiguousarray,
    "fortran": np.asfortranarray,
    **{
        name: getattr(sparse, f"{name}_array")
        for name in ("csr", "csc", "coo", "lil", "dok", "bsr")
    },
    "spmatrix": sparse.csr_matrix,
}
CASES = [
    pytest.param(estimator, form, id=f"{type(estimator).__name__}-{form}")
    for estimator in (
        PCA(2, random_state=0),
        PCA(2, center="exact", standardize=True, center_samples=True, random_state=0),
        ProbabilisticPCA(2, random_state=0),
        Whitening(n_components=2),
        Whitening("zca"),
    )
    for form in FORMATS
    if form in ("dense", "fortran") or not isinstance(estimator, Whitening)
]
each_case = pytest.mark.parametrize(("estimator", "form"), CASES)
each_estimator = pytest.mark.parametrize(
    "estimator",
    [PCA(2), ProbabilisticPCA(2), Whitening(n_components=2), Whitening("zca")],
)


def data(dtype=np.float64, seed=0):
    rng = np.random.default_rng(seed)
    return (rng.poisson(2, (40, 6)) * np.linspace(1, 3, 6)).astype(dtype)


def entries(X):
    return X.toarray() if sparse.issparse(X) else X.copy()


@parametrize_with_checks(CHECKED)
def test_scikit_learn_conformance(estimator, check):
    check(estimator)


@pytest.mark.long
@parametrize_with_checks(OTHER_PARAMETERS)
def test_scikit_learn_conformance_with_other_parameters(estimator, check):
    check(estimator)


@pytest.mark.covering(1)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@each_case
def test_dtype_stays_input_is_untouched_and_results_repeat(estimator, form, dtype):
    X = FORMATS[form](data(dtype))
    before = entries(X)
    first, second = clone(estimator), clone(estimator)
    scores = first.fit_transform(X)
    assert scores.dtype == first.components_.dtype == first.mean_.dtype == dtype
    assert first.inverse_transform(scores).dtype == dtype
    assert np.array_equal(entries(X), before)
    assert np.array_equal(scores, first.transform(X))
    assert np.array_equal(scores, second.fit(X).transform(X))
    assert np.array_equal(scores, pickle.loads(pickle.dumps(first)).transform(X))


@each_case
def test_container_has_no_influence_beyond_rounding(estimator, form):
    X = data()
    convert = FORMATS[
        "dense" if form == "fortran" else "csr" if form != "dense" else "dense"
    ]
    expected = clone(estimator).fit(convert(X)).transform(convert(X))
    found = clone(estimator).fit(FORMATS[form](X)).transform(FORMATS[form](X))
    np.testing.assert_allclose(
        found, expected, atol=0 if sparse.issparse(convert(X)) else 1e-9
    )


@each_case
def test_a_value_that_is_not_finite_raises(estimator, form):
    X = data()
    X[3, 2] = np.inf
    with pytest.raises(ValueError, match="infinity"):
        clone(estimator).fit(FORMATS[form](X))


@each_estimator
def test_inverse_transform_checks_the_number_of_columns(estimator):
    fitted = clone(estimator).fit(data())
    width = fitted.transform(data()).shape[1]
    with pytest.raises(ValueError, match=rf"X must have {width} columns \(.*\); got 9"):
        fitted.inverse_transform(np.zeros((4, 9)))


@each_estimator
def test_outputs_have_names(estimator):
    frame = clone(estimator).set_output(transform="pandas").fit_transform(data())
    prefix = (
        "x"
        if estimator.get_params().get("method") == "zca"
        else type(estimator).__name__
    )
    assert list(frame.columns)[:2] == [f"{prefix.lower()}0", f"{prefix.lower()}1"]


@each_estimator
def test_search_in_a_pipeline(estimator):
    X = data()
    name = type(estimator).__name__.lower()
    pipeline = make_pipeline(StandardScaler(), clone(estimator), LinearRegression())
    search = GridSearchCV(pipeline, {f"{name}__n_components": [1, 2]}).fit(X, X[:, 0])
    assert search.best_estimator_[1].n_components_ == 2


@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize("convert", [np.asarray, sparse.csr_array])
@each_estimator
def test_the_first_entry_that_is_not_finite_is_named(estimator, convert, value):
    kind = "NaN" if np.isnan(value) else "infinity"
    is_dense = convert is np.asarray
    if isinstance(estimator, Whitening) and not is_dense:
        pytest.skip("takes dense data")
    if isinstance(estimator, ProbabilisticPCA) and is_dense and kind == "NaN":
        pytest.skip("takes NaN for missing entries")
    X = data()
    fitted = clone(estimator).fit(convert(X))
    X[7, 2] = X[9, 1] = value
    for call in (clone(estimator).fit, fitted.transform):
        with pytest.raises(
            ValueError, match=f"X must be finite; got {kind} at row 7, column 2"
        ):
            call(convert(X))


def test_the_default_number_of_latent_coordinates_fits_the_data():
    assert [
        ProbabilisticPCA().fit(data()[:, :m]).n_components_ for m in (1, 2, 3, 6)
    ] == [
        0,
        1,
        2,
        2,
    ]
