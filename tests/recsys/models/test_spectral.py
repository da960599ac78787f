"""The spectral model against its formula, written out with dense matrices."""

import re
from dataclasses import replace

import numpy as np
import pytest
from scipy.sparse import csr_array

from recsys.data.ratings import Ratings
from recsys.errors import DataError
from recsys.models.histories import Histories
from recsys.models.linear_filter import default_factors
from recsys.models.registry import make_model
from recsys.ranking.topn import CsrPairs, top_n
from recsys.recommender import Recommender

N_USERS, N_ITEMS, K = 50, 36, 7


def interactions(seed=0, *, weighted=False):
    """Return ratings of which one user and one item have none, and the matrix of weights."""
    rng = np.random.default_rng(seed)
    taste = np.add.outer(np.arange(N_USERS), np.arange(N_ITEMS)) % 3 == 0
    R = (rng.random(taste.shape) < np.where(taste, 0.45, 0.1)).astype(float)
    R[-1] = R[:, -1] = 0
    if weighted:
        R *= rng.choice([0.25, 1.0, 3.0, 8.0], R.shape)
    return Ratings.from_matrix(np.where(R, R, np.nan), implicit=True), R


def positive(sums):
    return np.where(sums > 0, sums, 1)


def by_the_formula(R, r, *, linear=True, p=0.3, q=0.35, y=0.25, t=0.8):
    """Return h of the full eigendecomposition applied to the interactions r, (n, n_items)."""
    of_users, of_items = positive(R.sum(1)), positive(R.sum(0))
    normalised = of_users[:, None] ** -p * R * of_items**-q
    values, vectors = np.linalg.eigh(normalised.T @ normalised)
    share = values / values[-1]
    kept = np.arange(len(share)) >= len(share) - K
    h = np.where(kept, np.median(share[kept]) - t * share**2, 0) + share * (
        kept | linear
    )
    output = np.where(R.sum(0) > 0, of_items**y, 0)
    return (r * of_items**-q) @ (vectors * h) @ vectors.T * output


@pytest.fixture(scope="module", params=[False, True], ids=["ones", "weights"])
def data(request):
    return interactions(weighted=request.param)


@pytest.fixture
def strangers(data):
    """Interactions of other users, with weights if `data` have them."""
    return interactions(seed=1, weighted=bool((data[0].values != 1).any()))


def fitted(ratings, **params):
    return make_model("spectral", factors=K, **params).fit(ratings)


@pytest.mark.parametrize("linear", [True, False])
def test_scores_equal_the_formula(data, linear):
    ratings, R = data
    model = fitted(ratings, linear=linear)
    expected = by_the_formula(R, R, linear=linear)
    found = model.scores(np.arange(N_USERS))
    np.testing.assert_allclose(found, expected, atol=2e-2 * np.abs(expected).max())
    pairs = np.divmod(np.arange(N_USERS * N_ITEMS), N_ITEMS)
    within = model._score_error(np.arange(N_USERS))[:, None]
    assert (np.abs(found - model.predict(*pairs).reshape(found.shape)) <= within).all()


@pytest.mark.parametrize(
    ("params", "formula"),
    [
        ({"user_power": 0.5, "item_power": 0.2}, {"p": 0.5, "q": 0.2}),
        ({"popularity": 0.0, "sharpening": 0.0}, {"y": 0.0, "t": 0.0}),
    ],
)
def test_each_parameter_does_what_it_says(data, params, formula):
    ratings, R = data
    expected = by_the_formula(R, R, **formula)
    found = fitted(ratings, **params).scores(np.arange(N_USERS))
    np.testing.assert_allclose(found, expected, atol=2e-2 * np.abs(expected).max())


def test_scores_of_unknown_users_equal_the_formula(data, strangers):
    ratings, R = data
    theirs, r = strangers
    expected = by_the_formula(R, r)
    found = fitted(ratings).with_users(Histories.of(theirs)).scores(np.arange(N_USERS))
    np.testing.assert_allclose(found, expected, atol=2e-2 * np.abs(expected).max())


def item_rows(R):
    rows, columns = np.nonzero(R.T)
    indptr = np.searchsorted(rows, np.arange(R.shape[1] + 1))
    return Histories(
        indptr, columns.astype(np.int32), R.T[rows, columns].astype(np.float32)
    )


@pytest.mark.parametrize("linear", [True, False])
def test_training_items_folded_in_get_their_own_vectors_and_scores(
    data, linear, monkeypatch
):
    monkeypatch.setattr(
        "recsys.models.linear_filter._BLOCK", 60
    )  # weights, of a row or so
    ratings, R = data
    model = fitted(ratings, linear=linear)
    folded = model.with_items(item_rows(R))
    np.testing.assert_allclose(folded.item_factors, model.item_factors, atol=1e-4)
    users = np.arange(N_USERS)
    scores = model.scores(users)
    np.testing.assert_allclose(folded.scores(users), scores, atol=1e-4 * scores.max())
    pairs = np.divmod(np.arange(N_USERS * N_ITEMS), N_ITEMS)
    found = folded.predict(*pairs).reshape(scores.shape)
    assert (
        np.abs(found - folded.scores(users)) <= folded._score_error(users)[:, None]
    ).all()
    again = folded.with_items(item_rows(R[:, :5]))
    np.testing.assert_array_equal(again.item_factors, folded.item_factors[:5])


def new_column_by_the_formula(R, new, k=K, p=0.3, q=0.35, y=0.25, t=0.8):
    """Score one new item for all users: its column in the space of the old ones."""
    of_users, of_items = positive(R.sum(1)), positive(R.sum(0))
    normalised = of_users[:, None] ** -p * R * of_items**-q
    U, s, Vt = np.linalg.svd(normalised, full_matrices=False)
    share = (s / s[0]) ** 2
    column = of_users**-p * new * new.sum() ** -q
    lifted = np.median(share[:k]) - t * share[:k] ** 2
    users = R * of_items**-q
    low_pass = users @ (Vt[:k].T * lifted) @ (column @ U[:, :k] / s[:k])
    linear = users @ normalised.T @ column / s[0] ** 2
    return (low_pass + linear) * new.sum() ** y


def test_unseen_items_get_the_scores_of_the_formula(data):
    ratings, R = data
    new = (np.random.default_rng(5).random(N_USERS) < 0.2).astype(float) * R.max()
    expected = new_column_by_the_formula(R, new)
    found = (
        fitted(ratings).with_items(item_rows(new[:, None])).scores(np.arange(N_USERS))
    )
    np.testing.assert_allclose(
        found[:, 0], expected, atol=3e-2 * np.abs(expected).max()
    )


def test_items_can_be_folded_in_after_users(data, strangers):
    ratings, _ = data
    theirs, r = strangers
    model = fitted(ratings)
    both = model.with_users(Histories.of(theirs)).with_items(item_rows(r))
    users = np.arange(N_USERS)
    np.testing.assert_allclose(
        both.scores(users[3:9]), both.scores(users)[3:9], rtol=1e-4
    )
    with pytest.raises(
        DataError, match="no weights for one another; fold in new users first"
    ):
        both.with_users(Histories.of(theirs))
    with pytest.raises(
        IndexError, match="user indices must be between 0 and 49; got 50"
    ):
        model.with_items(
            Histories(np.array([0, 1]), np.array([50], np.int32), np.ones(1))
        )


@pytest.mark.parametrize("linear", [True, False])
def test_top_n_is_that_of_predict(data, linear):
    ratings, R = data
    model = fitted(ratings, linear=linear)
    pairs = np.divmod(np.arange(N_USERS * N_ITEMS), N_ITEMS)
    scores = model.predict(*pairs).reshape(N_USERS, N_ITEMS)
    scores[R > 0] = -np.inf
    exclude = CsrPairs(ratings.indptr, ratings.indices)
    (top,) = top_n(model, np.arange(N_USERS), 5, exclude=exclude)
    expected = np.argsort(-scores, axis=1, kind="stable")[:, :5]
    np.testing.assert_array_equal(top.items.reshape(N_USERS, 5), expected)


def test_ratings_are_interactions_whatever_their_values():
    ratings, _ = interactions()
    values = np.random.default_rng(2).random(ratings.n_ratings).astype(np.float32) * 5
    explicit = replace(ratings.with_values(values), implicit=False)
    users = np.arange(N_USERS)
    np.testing.assert_array_equal(
        fitted(explicit).scores(users), fitted(ratings).scores(users)
    )


def test_only_the_proportions_of_weights_count():
    ratings, _ = interactions(weighted=True)
    model, larger = fitted(ratings), fitted(ratings.with_values(ratings.values * 4))
    best, same = (
        np.argsort(-each.scores(np.arange(N_USERS - 1))) for each in (model, larger)
    )
    assert (best[:, :5] == same[:, :5]).mean() > 0.99
    ones, _ = interactions()
    equal = ones.with_values(2)
    expected = fitted(ones).scores(np.arange(N_USERS))
    found = fitted(equal).scores(np.arange(N_USERS))
    np.testing.assert_allclose(
        found / found.max(), expected / expected.max(), atol=2e-2
    )


def test_weights_are_explained_and_come_back_from_disk(tmp_path):
    ratings, _ = interactions(weighted=True)
    recommender = Recommender("spectral", factors=K).fit(ratings)
    recommender.save(tmp_path / "model")
    loaded = Recommender.load(tmp_path / "model")
    assert loaded.recommend().equals(recommender.recommend())
    terms = loaded.explain(3, 30)
    score = loaded.predict(3, 30)
    assert terms["contribution"].sum() == pytest.approx(score, rel=1e-4)
    history = {item: float(ratings.matrix[3, item]) for item in terms["item"][1:]}
    assert loaded.recommend(history=history)["item"].equals(loaded.recommend(3)["item"])


def test_users_alone_get_the_bits_of_users_together(data):
    model = fitted(data[0])
    users = np.array([3, 3, 17, 4, 48])
    pairs = np.tile(users, 3), np.repeat([0, 9, 35], len(users))
    before = model.predict(*pairs)
    alone = [model.predict([u], [i])[0] for u, i in zip(*pairs, strict=True)]
    np.testing.assert_array_equal(alone, before)
    (together,) = top_n(model, np.arange(N_USERS), 5)
    (one,) = top_n(model, np.array([17]), 5)
    np.testing.assert_array_equal(one.scores, together.scores[together.rows == 17])


@pytest.mark.parametrize("neighbors", [1, 5, 20])
def test_neighbors_are_the_largest_weights_of_each_item(data, neighbors):
    ratings, _ = data
    whole, model = fitted(ratings), fitted(ratings, neighbors=neighbors)
    weights, kept = (
        csr_array((m.weight_values, m.weight_places, m.weight_indptr)).toarray()
        for m in (whole, model)
    )
    for row, best in zip(weights, kept, strict=True):
        assert sorted(best[best > 0]) == sorted(row[row > 0])[-neighbors:]


def test_as_many_weights_are_kept_as_fit_into_memory(data, monkeypatch):
    monkeypatch.setattr("recsys.models.linear_filter._MOST_WEIGHTS", 300)
    model = fitted(data[0])
    assert 250 <= len(model.weight_values) <= 300
    assert re.fullmatch(
        r"weights: the \d+ largest of each item \(0 MB\)", *model.remarks
    )
    assert not fitted(data[0], neighbors=3).remarks


def test_small_data_get_few_factors_and_none_more_than_there_are():
    assert default_factors(3, 2, 5) == 1
    assert default_factors(10**5, 10**5, 10**8) == 1024
    assert default_factors(10**6, 10**5, 10**8) == 200
    tiny = Ratings.from_matrix(np.array([[1.0, np.nan], [1.0, 1.0]]), implicit=True)
    assert make_model("spectral", factors=50).fit(tiny).item_factors.shape == (2, 2)


@pytest.mark.parametrize(
    ("name", "spoil", "message"),
    [
        (
            "history_items",
            lambda a: a + 40,
            "entries of history have columns that do not",
        ),
        (
            "weight_places",
            lambda a: a + 40,
            "entries of weights have columns that do not",
        ),
        ("weight_indptr", lambda a: a[::-1], "weights does not rise from 0"),
        ("item_order", lambda a: a // 2, "order of the items must name each item once"),
    ],
)
def test_rejects_arrays_with_indices_out_of_range(data, name, spoil, message):
    model = fitted(data[0])
    arrays = model._arrays() | {name: spoil(model._arrays()[name])}
    with pytest.raises(ValueError, match=message):
        type(model)._from_arrays(model.get_params(), arrays)
