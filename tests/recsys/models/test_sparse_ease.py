"""Sparse EASE against the inverse that it approximates."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from recsys.data.ratings import Ratings
from recsys.models.ease import EASE, SparseEASE
from recsys.models.histories import Histories
from recsys.ranking.topn import CsrPairs, top_n
from recsys.recommender import Recommender


def interactions(seed=0, shape=(60, 25), density=0.3, *, weighted=False):
    """Return interactions that gather in blocks of users and items, with two items without any."""
    rng = np.random.default_rng(seed)
    taste = np.add.outer(np.arange(shape[0]), np.arange(shape[1])) % 3 == 0
    table = np.where(
        rng.random(shape) < np.where(taste, density, density / 5), 1.0, np.nan
    )
    table[:, -2:] = np.nan
    table[0, 0] = 1
    if weighted:
        table *= rng.choice([0.5, 1.0, 4.0], shape)
    return Ratings.from_matrix(table, implicit=True)


def weights_of(model):
    """Return the matrix B of a model, row by row."""
    n = model.n_items
    one = np.ones(n, np.float32) * np.float32(model.unit)
    single = Histories(np.arange(n + 1), np.arange(n, dtype=np.int32), one)
    return model.with_users(single).scores(np.arange(n))


@pytest.mark.parametrize("weighted", [False, True])
@given(seed=st.integers(0, 1000), penalty=st.floats(5, 200), n_items=st.integers(3, 30))
def test_with_all_directions_the_weights_equal_the_inverse(
    weighted, seed, penalty, n_items
):
    ratings = interactions(seed, (50, n_items), weighted=weighted)
    dense = EASE(regularization=penalty).fit(ratings)
    sparse = SparseEASE(regularization=penalty, factors=n_items).fit(ratings)
    np.testing.assert_allclose(weights_of(sparse), dense.weights, atol=1e-3)


def test_few_directions_are_enough_where_the_other_eigenvalues_are_below_the_penalty():
    ratings = interactions(shape=(200, 40))
    dense = EASE(regularization=50).fit(ratings)
    errors = []
    for factors in (1, 4, 15, 25):
        sparse = SparseEASE(regularization=50, factors=factors).fit(ratings)
        error = np.linalg.norm(weights_of(sparse) - dense.weights) / np.linalg.norm(
            dense.weights
        )
        ratio = sparse.singular_values[-1] ** 2 / sparse.penalty
        errors.append(error)
        assert error < 0.15 * ratio
    assert (np.diff(errors) < 0).all()


def test_an_item_says_nothing_of_itself():
    for model in (SparseEASE(factors=3), SparseEASE(factors=3, neighbors=4)):
        B = weights_of(model.fit(interactions()))
        np.testing.assert_allclose(np.diagonal(B), 0, atol=1e-5 * np.abs(B).max())


def test_directions_make_up_for_weights_that_are_not_kept():
    ratings = interactions(shape=(300, 60), density=0.4)
    dense = EASE(regularization=30).fit(ratings)
    few = SparseEASE(regularization=30, factors=40, neighbors=6).fit(ratings)
    assert np.diff(few.weight_indptr).max() == 6
    error = np.linalg.norm(weights_of(few) - dense.weights) / np.linalg.norm(
        dense.weights
    )
    few.response = -few._correction(few._eigenvalues).astype(np.float32)
    naive = np.linalg.norm(weights_of(few) - dense.weights) / np.linalg.norm(
        dense.weights
    )
    assert error < 0.5 * naive


@pytest.mark.parametrize("weighted", [False, True])
def test_the_search_gives_the_scores_and_predictions_to_the_bit(weighted):
    ratings = interactions(weighted=weighted)
    model = SparseEASE(factors=5).fit(ratings)
    users = np.arange(ratings.n_users)
    seen = CsrPairs(ratings.indptr, ratings.indices)
    (found,) = top_n(model, users, 4, exclude=seen)
    np.testing.assert_array_equal(
        model.predict(users[found.rows], found.items), found.scores
    )
    all_scores = model.scores(users)
    np.testing.assert_allclose(
        all_scores[found.rows, found.items], found.scores, atol=1e-5
    )
    all_scores[seen(users)] = -np.inf
    assert (
        np.sort(all_scores, axis=1)[:, -4:].min(axis=1) <= found.scores[3::4] + 1e-5
    ).all()


def test_users_and_items_of_the_fit_are_folded_in_as_they_were():
    ratings = interactions(weighted=True)
    model = SparseEASE(factors=6).fit(ratings)
    everyone = Histories.of(ratings)
    again = model.with_users(everyone)
    users = np.arange(ratings.n_users)
    np.testing.assert_array_equal(again.scores(users), model.scores(users))
    columns = ratings.matrix.T.tocsr()
    items = Histories(
        columns.indptr.astype(np.int64), columns.indices.astype(np.int32), columns.data
    )
    folded = model.with_items(items)
    own = columns.T.toarray() > 0  # a folded-in item is not known to be its own double
    difference = np.abs(folded.scores(users) - model.scores(users))
    assert difference[~own].max() < 0.02 * np.abs(model.scores(users)).max()


def test_explanations_add_up():
    ratings = interactions()
    recommender = Recommender("sparse-ease", factors=4).fit(ratings)
    (row,) = recommender.recommend(3, n=1).iter_rows(named=True)
    history = Histories.of(ratings).take(np.array([3]))
    explained = recommender.model.contributions(history, [row["item"]])
    total = explained.base.sum() + explained.terms.sum()
    assert total == pytest.approx(row["score"], rel=1e-4, abs=1e-6)


def test_a_saved_model_is_the_same(tmp_path):
    recommender = Recommender("sparse-ease").fit(interactions())
    recommender.save(tmp_path / "model")
    loaded = Recommender.load(tmp_path / "model")
    assert recommender.recommend(1).equals(loaded.recommend(1))
    assert loaded.model.penalty == recommender.model.penalty
