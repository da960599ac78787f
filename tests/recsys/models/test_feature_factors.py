"""Models of ratings with features of items and users."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest
import scipy.sparse as sp

from lowrank import kernels
from recsys.data.ratings import Ratings
from recsys.models.abilities import folded_in
from recsys.models.als import ALS
from recsys.models.bayes import Bayes
from recsys.models.histories import Histories

KINDS = {
    "als": lambda: ALS(factors=4, iterations=8),
    "als, linked": lambda: ALS(factors=4, iterations=8, linked=True),
    "bayes": lambda: Bayes(factors=4, iterations=8),
    "bayes, no links": lambda: Bayes(factors=4, iterations=8, linked=False),
}
COLD = 6  # of the items, and of the users, the first have no ratings


@dataclass(frozen=True)
class Blocks:
    """Features, in two groups."""

    matrix: sp.csr_array
    names: tuple[str, ...]
    groups: dict[str, slice]

    @classmethod
    def of(cls, dense):
        names = tuple(f"f{j}" for j in range(dense.shape[1]))
        groups = {"a": slice(0, 2), "b": slice(2, dense.shape[1])}
        return cls(sp.csr_array(dense.astype(np.float32)), names, groups)

    def rows(self, at):
        return replace(self, matrix=self.matrix[at])


@pytest.fixture(scope="module")
def ratings():
    rng = np.random.default_rng(0)
    F, G = rng.normal(size=(60, 4)) / 2, rng.normal(size=(120, 3)) / 2
    items = F @ rng.normal(size=(4, 2)) + 0.2 * rng.normal(size=(60, 2))
    users = G @ rng.normal(size=(3, 2)) + 0.6 * rng.normal(size=(120, 2))
    whole = (
        3
        + users @ items.T
        + (F @ rng.normal(size=4))
        + 0.3 * rng.normal(size=(120, 60))
    )
    whole[rng.random(whole.shape) > 0.3] = np.nan
    whole[:COLD] = np.nan
    whole[:, :COLD] = np.nan
    known = Ratings.from_matrix(whole)
    return replace(known, item_features=Blocks.of(F), user_features=Blocks.of(G))


@pytest.fixture(scope="module", params=KINDS)
def fitted(request, ratings):
    return KINDS[request.param]().fit(ratings)


def history(ratings, user):
    part = slice(ratings.indptr[user], ratings.indptr[user + 1])
    indptr = np.array([0, part.stop - part.start])
    return Histories(indptr, ratings.indices[part], ratings.values[part])


def test_scores_equal_pairs_for_new_users_and_items_too(fitted, ratings):
    assert fitted.n_users, fitted.n_items == ratings.shape
    users = np.array([0, 30])
    every = np.tile(np.arange(60), 2)
    scores = fitted.scores(users)
    of_pairs = fitted.pair_scores(np.repeat(users, 60), every).reshape(2, 60)
    np.testing.assert_allclose(scores, of_pairs, atol=1e-5)
    assert np.isfinite(scores).all()
    assert np.std(scores[1, :COLD]) > 0.05  # new items differ


def test_a_user_of_the_fit_who_is_folded_in_gets_the_same_scores(fitted, ratings):
    for user in (0, 40):  # without and with ratings
        features = ratings.user_features.rows([user])
        folded = folded_in(fitted, "user", history(ratings, user), features)
        np.testing.assert_array_equal(folded.scores([0]), fitted.scores([user]))


def test_items_that_are_folded_in_know_their_features(fitted, ratings):
    columns = kernels.csr_arrays(ratings.matrix[:, :10].T.tocsr())
    features = ratings.item_features.rows(np.arange(10))
    folded = folded_in(fitted, "item", Histories(*columns), features)
    users = np.arange(COLD, 20)
    cold = fitted.scores(users)[:, :COLD]
    np.testing.assert_allclose(folded.scores(users)[:, :COLD], cold, atol=1e-5)
    assert folded.n_items == 10


@pytest.mark.parametrize("user", [0, 40])
def test_contributions_of_ratings_and_features_add_up(fitted, ratings, user):
    items = np.array([2, 30, 59])
    own = replace(
        history(ratings, user),
        features=kernels.csr_arrays(ratings.user_features.matrix[[user]]),
    )
    found = fitted.contributions(own, items, ratings)
    total = found.base + found.popularity + found.terms.sum(axis=1)
    total += found.item_features.sum(axis=1) + found.user_features.sum(axis=1)
    np.testing.assert_allclose(total, fitted.scores([user])[0, items], atol=2e-4)
    assert np.abs(found.item_features[0]).max() > 0.02
    if user == 0:
        assert not found.terms.size
        assert np.abs(found.user_features[0]).max() > 0.01


def test_without_features_nothing_of_them_is_kept(ratings):
    plain = replace(ratings, item_features=None, user_features=None)
    model = ALS(factors=3, iterations=3)
    before = model.fit(plain).predict([9, 10], [9, 10])
    names = set(model._arrays())
    model.fit(ratings)
    expected = {
        "features_items_vectors",
        "features_users_vectors",
        "priors_items_weights",
    }
    assert expected < set(model._arrays())
    np.testing.assert_array_equal(model.fit(plain).predict([9, 10], [9, 10]), before)
    assert set(model._arrays()) == names
    assert "features_items_vectors" not in names


def test_features_help_where_there_are_few_ratings(ratings):
    rows = ratings.user_index_of_nonzeros()
    held = np.random.default_rng(1).random(ratings.n_ratings) < 0.5
    train, test = ratings.take(~held), ratings.take(held)
    at = rows[held], test.indices
    for kind in ("als", "bayes"):
        errors = []
        for item_features in (None, ratings.item_features):
            data = replace(train, item_features=item_features, user_features=None)
            predicted = KINDS[kind]().fit(data).predict(*at)
            errors.append(np.sqrt(np.mean((predicted - test.values) ** 2)))
        assert errors[1] < errors[0]


def test_the_less_is_known_the_wider_the_interval(ratings):
    model = KINDS["bayes"]().fit(ratings)
    warm = model.predict_std(np.arange(20, 60), np.arange(20, 60)).mean()
    new_items = model.predict_std(np.arange(20, 26), np.arange(6)).mean()
    new_users = model.predict_std(np.arange(6), np.arange(20, 26)).mean()
    both = model.predict_std(np.arange(6), np.arange(6)).mean()
    assert warm < min(new_items, new_users)
    assert warm < both


def test_arrays_make_the_same_model(fitted):
    again = type(fitted)._from_arrays(fitted.get_params(), fitted._arrays())
    np.testing.assert_array_equal(again.scores([0, 9]), fitted.scores([0, 9]))
    assert again.item_vectors().shape == (again.n_items, again.factors)
