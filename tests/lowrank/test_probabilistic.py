"""Probabilistic PCA: the closed form, EM for missing entries, densities of what is known."""

import math
import warnings
from itertools import islice

import numpy as np
import pandas as pd
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from scipy import sparse
from scipy.stats import multivariate_normal
from sklearn import decomposition
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from lowrank import ConvergenceWarning, ProbabilisticPCA
from lowrank.probabilistic import FactorModel, IncompleteRows, em_steps


def drawn(rows=200, columns=6, rank=2, noise=0.5, seed=0):
    rng = np.random.default_rng(seed)
    hidden = rng.standard_normal((rows, rank)) * np.arange(rank + 1, 1, -1)
    mixing = np.linalg.qr(rng.standard_normal((columns, rank)))[0]
    return hidden @ mixing.T + noise * rng.standard_normal((rows, columns)) + 3


def holed(X, share=0.25, seed=0):
    """Return X with some entries missing: a known one is left in each column."""
    rng = np.random.default_rng(seed)
    missing = rng.random(X.shape) < share
    missing[rng.integers(len(X), size=X.shape[1]), np.arange(X.shape[1])] = False
    return np.where(missing, np.nan, X)


@pytest.mark.parametrize("share", [0, 0.25])
@pytest.mark.parametrize(
    ("dtype", "size"), [("f4", 1e20), ("f4", 1e-25), ("f8", 1e160), ("f8", 1e-200)]
)
def test_every_scale_is_fitted_in_the_same_way(dtype, size, share):
    X = holed(drawn(), share).astype(dtype)
    size = X.dtype.type(size)
    scaled, plain = (ProbabilisticPCA(2, random_state=0).fit(A) for A in (X * size, X))
    near = {"rtol": 1e-2, "atol": 1e-3} if dtype == "f4" else {"rtol": 1e-6}
    np.testing.assert_allclose(scaled.transform(X * size), plain.transform(X), **near)
    np.testing.assert_allclose(scaled.loadings_ / size, plain.loadings_, **near)
    np.testing.assert_allclose(scaled.impute(X * size) / size, plain.impute(X), **near)
    shift = np.count_nonzero(~np.isnan(X), axis=1) * np.log(float(size))
    densities = scaled.score_samples(X * size) + shift
    np.testing.assert_allclose(densities, plain.score_samples(X), **near)
    assert scaled.log_likelihood_ + shift.sum() == pytest.approx(
        plain.log_likelihood_, rel=1e-4
    )


def density(model, row):
    """The log-density of the known entries of a row, from the covariance."""
    known = ~np.isnan(row)
    if not known.any():
        return 0.0
    covariance = model.get_covariance()[np.ix_(known, known)]
    return multivariate_normal(model.mean_[known], covariance).logpdf(row[known])


def likelihood_of(X, mean, W, noise):
    covariance = W @ W.T + noise * np.eye(len(W))
    total = 0.0
    for row in X:
        known = ~np.isnan(row)
        if known.any():
            normal = multivariate_normal(mean[known], covariance[np.ix_(known, known)])
            total += normal.logpdf(row[known])
    return total


# complete data


@pytest.mark.parametrize("k", [0, 1, 2, 5])
def test_closed_form_against_the_eigenvalues(k):
    X = drawn()
    model = ProbabilisticPCA(k, random_state=0).fit(X)
    values, vectors = np.linalg.eigh(np.cov(X.T, ddof=0))
    values, vectors = values[::-1], vectors[:, ::-1]
    noise = values[k:].mean()
    np.testing.assert_allclose(model.noise_variance_, noise)
    np.testing.assert_allclose(model.explained_variance_, values[:k])
    W = vectors[:, :k] * np.sqrt(values[:k] - noise)
    np.testing.assert_allclose(model.loadings_ @ model.loadings_.T, W @ W.T, atol=1e-10)
    np.testing.assert_allclose(
        model.get_covariance(), W @ W.T + noise * np.eye(6), atol=1e-10
    )
    assert model.loadings_.shape == (6, k)
    assert model.n_iter_ == 1


def test_likelihood_is_that_of_the_peers():
    X = drawn(rows=500)
    model = ProbabilisticPCA(2).fit(X)
    # The peer's covariance has the divisor n - 1, which at n = 500 is another model by 0.2%.
    assert model.score(X) >= decomposition.PCA(2).fit(X).score(X)
    np.testing.assert_allclose(
        model.score(X), decomposition.PCA(2).fit(X).score(X), rtol=1e-5
    )
    # Factor analysis has a noise variance for each feature: it contains this model.
    analysis = decomposition.FactorAnalysis(2, tol=1e-10, max_iter=5000).fit(X)
    assert -0.02 < model.score(X) - analysis.score(X) < 0
    np.testing.assert_allclose(model.log_likelihood_, model.score_samples(X).sum())


def test_noise_counts_the_directions_without_variance():
    X = drawn(rows=10, columns=30)
    model = ProbabilisticPCA(2).fit(X)
    values = np.linalg.eigvalsh(np.cov(X.T, ddof=0))[::-1]
    np.testing.assert_allclose(model.noise_variance_, values[2:].sum() / 28)
    np.testing.assert_allclose(
        model.score_samples(X), [density(model, row) for row in X]
    )


@pytest.mark.parametrize(
    "make", [sparse.csr_array, sparse.coo_matrix, sparse.csc_array]
)
def test_sparse_equals_dense(make):
    X = drawn() * (np.random.default_rng(1).random((200, 6)) < 0.3)
    dense, thin = (
        ProbabilisticPCA(2, random_state=0),
        ProbabilisticPCA(2, random_state=0),
    )
    dense.fit(X)
    thin.fit(make(X))
    np.testing.assert_allclose(thin.loadings_, dense.loadings_, atol=1e-8)
    np.testing.assert_allclose(thin.transform(make(X)), dense.transform(X), atol=1e-8)
    np.testing.assert_allclose(
        thin.score_samples(make(X)), dense.score_samples(X), rtol=1e-8
    )
    np.testing.assert_allclose(thin.log_likelihood_, dense.log_likelihood_)


def test_em_of_complete_data_finds_the_closed_form():
    X = drawn()
    rows = IncompleteRows(X)
    rng = np.random.default_rng(0)
    start = FactorModel(rng.standard_normal(6), rng.standard_normal((6, 2)), 1.0)
    model, likelihood = next(islice(em_steps(rows, start), 200, None))
    closed = ProbabilisticPCA(2).fit(X)
    np.testing.assert_allclose(likelihood, closed.log_likelihood_)
    np.testing.assert_allclose(model.noise, closed.noise_variance_)
    np.testing.assert_allclose(rows.location + model.mean, closed.mean_)
    covariance = model.loadings @ model.loadings.T
    np.testing.assert_allclose(
        covariance, closed.loadings_ @ closed.loadings_.T, atol=1e-6
    )


# missing entries


@given(
    st.integers(2, 40),
    st.integers(2, 7),
    st.floats(0.0, 0.7),
    st.floats(0.05, 2.0),
    st.integers(0, 2**31),
    st.integers(0, 6),
)
@example(
    2, 7, 0.0, 1.75, 0, 2
)  # fitted exactly: the noise falls to the least that differs from 0
def test_the_likelihood_never_falls(rows, columns, share, noise, seed, k):
    k = min(k, rows, columns - 1)
    X = holed(drawn(rows, columns, min(2, columns), noise, seed), share, seed)
    known = IncompleteRows(X)
    rng = np.random.default_rng(seed)
    start = FactorModel(
        rng.standard_normal(columns), rng.standard_normal((columns, k)), 1.0
    )
    steps = em_steps(known, start)
    likelihoods = np.array([next(steps)[1] for _ in range(15)])
    assert (np.diff(likelihoods) >= -1e-6 * np.abs(likelihoods[1:]) - 1e-6).all()


def test_likelihood_of_a_step_is_that_of_its_model():
    X = holed(drawn(30), 0.4)
    rows = IncompleteRows(X)
    start = FactorModel(np.zeros(6), np.eye(6, 2), 0.7)
    steps = em_steps(rows, start)
    for _ in range(3):
        model, likelihood = next(steps)
        expected = likelihood_of(
            X, rows.location + model.mean, model.loadings, model.noise
        )
        np.testing.assert_allclose(likelihood, expected)


def test_em_stops_at_a_stationary_point():
    X = holed(drawn(60), 0.3)
    model = ProbabilisticPCA(2, tol=1e-14, max_iter=5000, random_state=0).fit(X)
    at = (model.mean_, model.loadings_, model.noise_variance_)
    best = likelihood_of(X, *at)
    np.testing.assert_allclose(model.log_likelihood_, best)
    rng = np.random.default_rng(0)
    for _ in range(8):
        step = [1e-4 * rng.standard_normal(np.shape(part)) for part in at]
        ahead = likelihood_of(
            X, *(part + move for part, move in zip(at, step, strict=True))
        )
        behind = likelihood_of(
            X, *(part - move for part, move in zip(at, step, strict=True))
        )
        assert (
            abs(ahead - behind) / 2e-4 < 1e-2
        )  # the derivative; each entry has about 1e2
        assert ahead < best + 1e-9


def test_missing_entries_are_filled_better_than_by_means():
    X = drawn(400, 12, 3, noise=0.2)
    Y = holed(X)
    hidden = np.isnan(Y)
    model = ProbabilisticPCA(3, random_state=0).fit(Y)
    filled = model.impute(Y)
    assert np.array_equal(filled[~hidden], X[~hidden])
    error = np.sqrt(np.mean((filled - X)[hidden] ** 2))
    means = np.sqrt(np.mean((np.nanmean(Y, axis=0) - X)[hidden] ** 2))
    assert error < 0.35 * means
    assert 0.03 < model.noise_variance_ < 0.05


def test_exactly_low_rank_data_are_completed():
    X = drawn(100, 20, 3, noise=0.0)
    model = ProbabilisticPCA(3, random_state=0).fit(holed(X))
    np.testing.assert_allclose(model.impute(holed(X)), X, atol=1e-5)
    assert model.noise_variance_ == 0
    assert model.log_likelihood_ == -math.inf
    assert np.array_equal(model.score_samples(holed(X)), np.full(100, -np.inf))


def test_likelihood_of_little_noise():
    X = holed(drawn(100, 20, 1, noise=1.2e-5))
    model = ProbabilisticPCA(1, random_state=0).fit(X)
    assert 0 < model.noise_variance_ < 1e-10 * model.explained_variance_[0]
    np.testing.assert_allclose(
        model.score_samples(X).sum(), model.log_likelihood_, rtol=1e-6
    )


def test_rows_without_entries_have_no_influence():
    X = holed(drawn(60), 0.2)
    empty = np.full((5, 6), np.nan)
    model = ProbabilisticPCA(2, random_state=0, tol=1e-13).fit(X)
    padded = ProbabilisticPCA(2, random_state=0, tol=1e-13).fit(np.vstack([empty, X]))
    np.testing.assert_allclose(
        padded.get_covariance(), model.get_covariance(), atol=1e-4
    )
    np.testing.assert_allclose(padded.log_likelihood_, model.log_likelihood_)
    alone = np.full((4, 3), np.nan)
    alone[1] = [1, 2, 3]
    assert np.array_equal(
        ProbabilisticPCA(1).fit(alone).impute(alone), np.tile(alone[1], (4, 1))
    )


def test_expectations_against_the_conditional_normal_distribution():
    X = holed(drawn(50), 0.4)
    X[7] = np.nan
    X[8] = drawn(1)[0]
    model = ProbabilisticPCA(2, random_state=0).fit(X)
    filled, hidden, scores = model.impute(X), model.transform(X), model.score_samples(X)
    covariance, W = model.get_covariance(), model.loadings_
    for row in range(len(X)):
        known = ~np.isnan(X[row])
        gain = np.linalg.pinv(covariance[np.ix_(known, known)])
        difference = gain @ (X[row] - model.mean_)[known]
        np.testing.assert_allclose(hidden[row], W[known].T @ difference, atol=1e-9)
        expected = model.mean_ + covariance[:, known] @ difference
        np.testing.assert_allclose(filled[row, ~known], expected[~known], atol=1e-9)
        np.testing.assert_allclose(scores[row], density(model, X[row]), atol=1e-9)
    assert scores[7] == 0
    np.testing.assert_allclose(filled[7], model.mean_)
    np.testing.assert_allclose(model.log_likelihood_, scores.sum())


def test_rows_alone_and_together_give_the_same():
    X = holed(drawn(40), 0.4)
    model = ProbabilisticPCA(2, random_state=0).fit(X)
    alone = np.vstack([model.transform(row[None]) for row in X])
    np.testing.assert_allclose(model.transform(X), alone, atol=1e-10)
    swapped = np.random.default_rng(0).permutation(40)
    np.testing.assert_allclose(
        model.impute(X[swapped]), model.impute(X)[swapped], atol=1e-10
    )


def test_blocks_of_rows_do_not_change_the_result(monkeypatch):
    X = holed(drawn(60), 0.3)
    whole = ProbabilisticPCA(2, random_state=0).fit(X)
    monkeypatch.setattr("lowrank.probabilistic._CHUNK", 70)  # 7 rows
    pieces = ProbabilisticPCA(2, random_state=0).fit(X)
    np.testing.assert_allclose(pieces.loadings_, whole.loadings_, rtol=1e-9)
    np.testing.assert_allclose(pieces.transform(X), whole.transform(X), atol=1e-9)


def test_recovers_the_model_that_data_were_drawn_from():
    truth = ProbabilisticPCA(2, random_state=3).fit(drawn())
    X = truth.sample(20_000)
    model = ProbabilisticPCA(2, random_state=0).fit(holed(X))
    np.testing.assert_allclose(model.mean_, truth.mean_, atol=0.1)
    np.testing.assert_allclose(model.get_covariance(), truth.get_covariance(), atol=0.3)
    np.testing.assert_allclose(model.noise_variance_, truth.noise_variance_, rtol=0.03)


def test_one_component_too_many_and_constant_data():
    X = holed(drawn(100, 8, 1, noise=0.3))
    model = ProbabilisticPCA(4, random_state=0, tol=1e-6).fit(X)
    np.testing.assert_allclose(
        model.components_ @ model.components_.T, np.eye(4), atol=1e-10
    )
    Y = np.full((5, 3), 2.0)
    Y[0, 0] = np.nan
    flat = ProbabilisticPCA(1).fit(Y)
    assert flat.impute(Y)[0, 0] == 2
    assert flat.noise_variance_ == 0


def test_precision_is_the_inverse_and_samples_have_the_covariance():
    model = ProbabilisticPCA(2, random_state=0).fit(holed(drawn()))
    product = model.get_precision() @ model.get_covariance()
    np.testing.assert_allclose(product, np.eye(6), atol=1e-9)
    covariance = np.cov(model.sample(50_000, random_state=1).T)
    np.testing.assert_allclose(covariance, model.get_covariance(), atol=0.2)


# the estimator


def test_float32_stays_with_missing_entries():
    X = holed(drawn()).astype(np.float32)
    model = ProbabilisticPCA(2, random_state=0).fit(X)
    wide = ProbabilisticPCA(2, random_state=0).fit(X.astype(np.float64))
    for result in (
        model.components_,
        model.loadings_,
        model.mean_,
        model.explained_variance_,
        model.transform(X),
        model.inverse_transform(model.transform(X)),
        model.score_samples(X),
    ):
        assert result.dtype == np.float32
    assert model.impute(X).dtype == np.float32
    np.testing.assert_allclose(model.get_covariance(), wide.get_covariance(), atol=1e-3)


@pytest.mark.parametrize("prepare", [holed, np.asarray])
def test_same_seed_same_bits_and_input_untouched(prepare):
    X = prepare(drawn())
    before = X.copy()
    first = ProbabilisticPCA(2, random_state=5).fit(X)
    second = clone(first).fit(X)
    assert np.array_equal(first.loadings_, second.loadings_)
    assert np.array_equal(first.impute(X), second.impute(X))
    assert np.array_equal(X, before, equal_nan=True)


def test_inverse_transform_and_pipeline():
    X = drawn()
    model = ProbabilisticPCA(2).fit(X)
    hidden = model.transform(X)
    np.testing.assert_allclose(
        model.inverse_transform(hidden), model.mean_ + hidden @ model.loadings_.T
    )
    pipeline = make_pipeline(StandardScaler(), ProbabilisticPCA(2))
    pipeline.set_output(transform="default")
    assert pipeline.fit_transform(holed(X)).shape == (200, 2)


@pytest.mark.parametrize("prepare", [holed, np.asarray])
def test_a_frame_is_fitted_without_a_warning(prepare):
    X = prepare(drawn())
    frame = pd.DataFrame(X, columns=list("abcdef"))
    model = ProbabilisticPCA(2, random_state=0).fit(frame)
    assert list(model.feature_names_in_) == list("abcdef")
    assert model.log_likelihood_ == pytest.approx(model.score_samples(frame).sum())


@pytest.mark.parametrize("prepare", [holed, np.asarray])
def test_held_out_likelihood_finds_the_number_of_components(prepare):
    search = GridSearchCV(
        ProbabilisticPCA(random_state=0), {"n_components": [0, 2, 3, 4]}, cv=2
    )
    search.fit(prepare(drawn(400, 8, 3, noise=0.5)))
    assert search.best_params_ == {"n_components": 3}


def test_warns_with_the_figure_when_em_has_not_converged():
    with pytest.warns(
        ConvergenceWarning, match=r"raised the log-likelihood .* max_iter=2 steps"
    ):
        model = ProbabilisticPCA(2, max_iter=2).fit(holed(drawn()))
    assert model.n_iter_ == 2
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ProbabilisticPCA(2).fit(holed(drawn()))


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        (
            {"n_components": 6},
            r"between 0 and 5 \(n_samples=200, below n_features=6\); got 6",
        ),
        ({"n_components": -1}, "n_components must be between 0 and 5"),
        ({"n_components": 1.0}, "n_components must be an integer; got 1.0"),
        ({"n_components": True}, "n_components must be an integer; got True"),
        ({"tol": 0}, "tol must be positive and finite; got 0"),
        ({"tol": "x"}, "tol must be a number; got 'x'"),
        ({"max_iter": 0}, "max_iter must be at least 1; got 0"),
        ({"max_iter": 2.5}, "max_iter must be an integer; got 2.5"),
    ],
)
def test_parameters_out_of_range(parameters, message):
    with pytest.raises((TypeError, ValueError), match=message):
        ProbabilisticPCA(**parameters).fit(drawn())


def test_data_that_cannot_be_fitted():
    X = drawn()
    X[:, 3] = np.nan
    with pytest.raises(
        ValueError, match="known entry in each column; got none in column 3"
    ):
        ProbabilisticPCA(2).fit(X)
    X = drawn()
    X[0, 0] = np.inf
    with pytest.raises(ValueError, match="infinity"):
        ProbabilisticPCA(2).fit(X)
    with pytest.raises(ValueError, match="NaN"):
        ProbabilisticPCA(2).fit(sparse.csr_array(holed(drawn())))
    with pytest.raises(TypeError, match=r"[Ss]parse"):
        ProbabilisticPCA(2).fit(drawn()).impute(sparse.csr_array(drawn()))
