import tracemalloc

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from recsys.data.ratings import Ratings
from recsys.errors import DataError, ModelFileError
from recsys.evaluation import evaluate
from recsys.evaluation.splits import random_split
from recsys.models import ease
from recsys.models.ease import EASE
from recsys.models.histories import Histories
from recsys.models.item_item import weight_unit
from recsys.readers import read_ratings, sample_path
from recsys.recommender import Recommender
from recsys.saving.arrays import check_rows


def interactions(seed=0, shape=(40, 12), density=0.3, **kinds):
    rng = np.random.default_rng(seed)
    table = np.where(rng.random(shape) < density, 1.0, np.nan)
    table[0, 0] = 1
    return Ratings.from_matrix(table, **{"implicit": True, **kinds})


def scaled(X, user_power, item_power):
    users, items = (np.maximum(X.sum(axis=axis), 1.0) for axis in (1, 0))
    return X * users[:, None] ** -user_power * items**-item_power, items[
        :, None
    ] ** -item_power


def by_ridge_regressions(X, penalty):
    """Each item from all others, one regression at a time."""
    n = X.shape[1]
    B = np.zeros((n, n))
    for i in range(n):
        others = np.delete(np.arange(n), i)
        A = X[:, others]
        B[others, i] = np.linalg.solve(A.T @ A + penalty * np.eye(n - 1), A.T @ X[:, i])
    return B


@given(
    st.integers(0, 10_000), st.floats(0.5, 500), st.integers(1, 15), st.integers(1, 30)
)
def test_the_weights_equal_one_ridge_regression_per_item(
    seed, penalty, n_items, n_users
):
    ratings = interactions(seed, (n_users, n_items))
    X = ratings.matrix.toarray().astype(float)
    plain = EASE(regularization=penalty, user_power=0, item_power=0).fit(ratings)
    np.testing.assert_allclose(
        plain.weights, by_ridge_regressions(X, penalty), atol=1e-5
    )
    assert plain.penalty == penalty
    model = EASE(regularization=penalty, user_power=0.4, item_power=0.3).fit(ratings)
    N, of_items = scaled(X, 0.4, 0.3)
    expected = of_items * by_ridge_regressions(N, model.penalty)
    np.testing.assert_allclose(model.weights, expected, atol=1e-5)
    assert model.penalty <= penalty


def test_work_in_many_blocks_gives_the_same(monkeypatch):
    ratings = interactions(shape=(60, 23))
    whole = EASE().fit(ratings)
    monkeypatch.setattr(ease, "_BLOCK", 50)
    np.testing.assert_allclose(EASE().fit(ratings).weights, whole.weights, atol=1e-7)


def test_the_fit_needs_the_memory_of_one_gram_matrix(monkeypatch):
    monkeypatch.setattr(ease, "_BLOCK", 2**14)
    ratings = interactions(shape=(200, 1500), density=0.02)
    EASE().fit(interactions())  # imports
    tracemalloc.start()
    EASE().fit(ratings)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert 4 * 1500**2 < peak < 1.15 * 4 * 1500**2


def test_it_recommends_better_than_popularity_on_the_sample_data():
    ratings = read_ratings(sample_path())
    found = evaluate(
        ["ease", "implicit-als", "implicit-knn", "popular"], random_split(ratings)
    )
    *ours, popular = found.table["ndcg@10"]
    assert min(ours) > 2 * popular


def rows_of_items(X):
    rows, users = np.nonzero(X.T)
    indptr = np.searchsorted(rows, np.arange(X.shape[1] + 1))
    return Histories(
        indptr, users.astype(np.int32), X.T[rows, users].astype(np.float32)
    )


@pytest.mark.parametrize("block", [2**22, 100])
def test_an_unseen_item_gets_the_weights_of_a_fit_with_it(block, monkeypatch):
    monkeypatch.setattr("recsys.models.ease._BLOCK", block)
    X = interactions(shape=(60, 14)).matrix.toarray()
    parts = [
        Ratings.from_matrix(np.where(each, 1.0, np.nan), implicit=True)
        for each in (X, X[:, :13])
    ]
    whole, model = (
        EASE(regularization=3, user_power=0, item_power=0.4).fit(p) for p in parts
    )
    # in units of interactions, of which the whole has more
    model.penalty = whole.penalty
    folded = model.with_items(rows_of_items(X[:, [13, 13]]))
    expected = whole.scores(np.arange(60))[:, 13]
    np.testing.assert_allclose(folded.scores(np.arange(60))[:, 1], expected, atol=1e-4)
    np.testing.assert_allclose(
        folded.predict([3, 7], [0, 1]), expected[[3, 7]], atol=1e-4
    )
    np.testing.assert_allclose(
        folded.item_vectors()[0], whole.weights[:13, 13], atol=1e-4
    )
    assert (folded.n_users, folded.n_items) == (60, 2)
    again = folded.with_items(rows_of_items(X[:, [13]]))
    np.testing.assert_allclose(again.weights[:, 0], folded.weights[:, 0], atol=1e-6)


def test_items_folded_in_without_interactions_score_nothing_and_bring_no_users():
    model = EASE().fit(interactions())
    nobody = Histories(
        np.zeros(2, np.int64), np.zeros(0, np.int32), np.zeros(0, np.float32)
    )
    folded = model.with_items(nobody)
    assert (folded.scores(np.arange(40)) == 0).all()
    for ask in (folded.with_users, lambda one: folded.contributions(one, [0])):
        with pytest.raises(
            DataError, match="have no weights for one another; fold in new users"
        ):
            ask(nobody)
    with pytest.raises(
        IndexError, match="user indices must be between 0 and 39; got 40"
    ):
        model.with_items(
            Histories(np.array([0, 1]), np.array([40], np.int32), np.ones(1))
        )


def test_scores_are_sums_of_weights_over_the_history():
    ratings = interactions()
    model = EASE().fit(ratings)
    expected = ratings.matrix.toarray() @ model.weights
    np.testing.assert_allclose(
        model.scores(np.arange(40)), expected, rtol=1e-5, atol=1e-6
    )


def test_predicting_many_pairs_goes_by_blocks_of_users(monkeypatch):
    model = EASE().fit(interactions())
    users, items = np.divmod(np.random.default_rng(1).permutation(40 * 12), 12)
    whole = model.predict(users, items)
    np.testing.assert_array_equal(whole, model.scores(np.arange(40))[users, items])
    monkeypatch.setattr("recsys.models.ease._BLOCK", 30)
    np.testing.assert_array_equal(model.predict(users, items), whole)


def test_a_rating_weighs_its_share_of_the_highest_and_a_count_its_multiple_of_the_mean():
    stars = np.array([[5.0, 2.5], [np.nan, 5.0], [1.0, 4.0]])
    explicit = EASE(regularization=1).fit(Ratings.from_matrix(stars))
    np.testing.assert_allclose(explicit.history_weights, [1, 0.5, 1, 0.2, 0.8])
    assert explicit.unit == 5
    implicit = EASE(regularization=1).fit(Ratings.from_matrix(stars, implicit=True))
    np.testing.assert_allclose(implicit.history_weights.mean(), 1)
    assert implicit.unit == pytest.approx(3.5)
    assert weight_unit(Ratings.from_matrix([[-2.0, -1.0]])) == 1


def test_a_history_of_the_same_ratings_folds_in_as_such():
    ratings = Ratings.from_matrix(
        np.array([[5.0, 2, np.nan], [4, np.nan, 3], [np.nan, 1, 5]])
    )
    recommender = Recommender("ease", regularization=1).fit(ratings)
    folded = recommender.recommend(history={0: 4, 2: 3})
    assert folded["score"][0] == recommender.recommend(1)["score"][0]


def test_scores_are_not_clipped_to_the_range_of_the_ratings():
    ratings = Ratings.from_matrix(
        np.array([[5.0, 4, np.nan], [4, np.nan, 3], [5, 1, 5]])
    )
    recommender = Recommender("ease").fit(ratings)
    pair = pl.DataFrame({"user": [0], "item": [2]})
    predicted = recommender.predict(pair)["prediction"][0]
    assert predicted == recommender.model.scores([0])[0, 2] < 1


def test_the_default_penalty_grows_slowly_with_the_popularity_of_items():
    small, large = (
        EASE(user_power=0, item_power=0).fit(interactions(shape=(n, 12)))
        for n in (50, 400)
    )
    assert large.penalty == pytest.approx(2 * small.penalty, rel=0.05)


def test_a_catalogue_that_does_not_fit_is_rejected_before_anything_is_made(monkeypatch):
    monkeypatch.setattr(ease.backends, "physical_memory", lambda: 2**30)
    ratings = Ratings.from_matrix(np.ones((1, 20_000)), implicit=True)
    message = (
        r"needs 1.5 GiB for the matrix of 20,000 x 20,000 items, and this machine has 1.0 GiB; "
        "use sparse-ease, which needs no such matrix"
    )
    with pytest.raises(DataError, match=message):
        EASE().fit(ratings)


def test_a_singular_matrix_is_rejected():
    ratings = Ratings.from_matrix(np.full((3000, 2), 1.0), implicit=True)
    with pytest.raises(DataError, match="singular in single precision; try a larger"):
        EASE(regularization=1e-9, user_power=0, item_power=0).fit(ratings)


@pytest.mark.parametrize(
    ("indptr", "indices", "message"),
    [
        ([], [], "does not rise from 0"),
        ([1, 2], [0, 0], "does not rise from 0"),
        ([0, 1], [0, 0], "does not end at the number of entries"),
        ([0, 2, 1, 3], [0, 1, 2], "history does not rise from 0"),
        ([0, 2], [0, 3], "entries of history have columns that do not exist"),
        ([0, 2], [-1, 0], "columns that do not exist"),
    ],
)
def test_invalid_rows_are_rejected(indptr, indices, message):
    with pytest.raises(ValueError, match=message):
        check_rows(
            "history", np.array(indptr, np.int64), np.array(indices, np.int32), 3
        )


def test_a_saved_model_with_foreign_items_in_its_histories_is_rejected(tmp_path):
    recommender = Recommender("ease").fit(interactions())
    recommender.model.history_items = recommender.model.history_items + np.int32(7)
    recommender.save(tmp_path / "model")
    with pytest.raises(
        ModelFileError, match="entries of history have columns that do not"
    ):
        Recommender.load(tmp_path / "model")
