"""Lists of models of ratings: by predictions less a discount for items that few have rated."""

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from recsys import Ratings, Recommender, tune, with_features
from recsys.known_users import lists_of_known_users
from recsys.models.histories import Histories
from recsys.models.registry import make_model

FITS = {
    "als": {"factors": 4, "iterations": 3},
    "als linked": {"factors": 4, "iterations": 3, "linked": True},
    "bayes": {"factors": 4, "iterations": 3},
    "softimpute": {"regularization": 3.0},
    "clusters": {"clusters": 3},
    "bias": {},
}
each_model = pytest.mark.parametrize("name", FITS)


def skewed(n_users=60, n_items=40, scale=1.0) -> Ratings:
    """Return ratings of items, of which the first are rated by nearly all and the last by few."""
    rng = np.random.default_rng(0)
    share = np.linspace(0.95, 0.03, n_items)
    users, items = np.nonzero(rng.random((n_users, n_items)) < share)
    values = scale * rng.integers(1, 6, len(users))
    return Ratings.from_frame(
        pl.DataFrame({"user": users, "item": items, "rating": values})
    )


def fitted(name, ratings=None, **params) -> Recommender:
    model = make_model(name.split()[0], **FITS[name], **params)
    return Recommender(model).fit(skewed() if ratings is None else ratings)


@each_model
def test_lists_go_by_the_rating_less_the_discount(name):
    recommender = fitted(name, popularity=0.5)
    model, ratings = recommender.model, recommender.ratings
    counts = np.bincount(ratings.indices, minlength=40)
    discount = 0.5 * ratings.values.std() * np.log((1 + counts.max()) / (1 + counts))
    np.testing.assert_allclose(
        0.5 * model.item_obscurity, discount, rtol=1e-5, atol=1e-6
    )
    users, items = np.divmod(np.arange(60 * 40), 40)
    predicted = model.predict(users, items).reshape(60, 40)
    scores = model.pair_scores(users, items).reshape(60, 40)
    assert (scores <= predicted).all()
    np.testing.assert_allclose(scores, predicted - discount, atol=1e-5)
    scores[ratings.matrix.toarray() > 0] = -np.inf
    frame = recommender.recommend(n=5)
    for user, own in frame.group_by("user", maintain_order=True):
        best = np.argsort(-scores[user[0]], kind="stable")[: len(own)]
        assert own["item"].to_list() == best.tolist()
        np.testing.assert_array_equal(own["score"], scores[user[0], best])


@each_model
def test_every_door_has_the_same_list(name, tmp_path):
    recommender = fitted(name)
    expected = recommender.recommend(n=4)
    recommender.save(tmp_path / "model")
    again = Recommender.load(tmp_path / "model")
    assert again.recommend(n=4).equals(expected)
    for user in (0, 31):
        own = expected.filter(pl.col("user") == user)
        for _ in range(40):  # with and without an order of the items
            assert again.recommend(user, n=4).equals(own)
        assert again.recommend(user, n=4, where_user="true").equals(own)
        short = lists_of_known_users(tmp_path / "model", [str(user)], 4)
        assert short.columns["item"] == own["item"].to_list()
        assert np.float32(short.columns["score"]).tolist() == own["score"].to_list()


@each_model
def test_without_weight_lists_go_by_the_prediction_also_after_the_fit(name):
    recommender, plain = fitted(name), fitted(name, popularity=0.0)
    before = [recommender.recommend(7, n=5) for _ in range(40)][-1]
    recommender.model.set_params(popularity=0)
    after = [recommender.recommend(7, n=5) for _ in range(2)]
    assert after[0].equals(plain.recommend(7, n=5))
    assert not after[0].equals(before)
    predicted = recommender.model.predict([7] * 5, after[0]["item"].to_numpy())
    np.testing.assert_array_equal(after[1]["score"], np.float32(predicted))
    assert "popularity" not in recommender.explain(7, 39)["part"].to_list()


@each_model
def test_explanations_have_the_discount_as_a_row(name):
    recommender = fitted(name)
    model, found = recommender.model, recommender.explain(7, 39)
    assert found["part"][1] == "popularity"
    off = model.pair_scores([7], [39]) - model.predict([7], [39])
    assert found["contribution"][1] == pytest.approx(off[0], abs=1e-4)
    assert found["contribution"].sum() == pytest.approx(
        model.pair_scores([7], [39])[0], abs=1e-4
    )


@pytest.mark.parametrize("name", ["als", "bias", "clusters"])
def test_the_scale_of_ratings_does_not_matter(name):
    ours, scaled = (fitted(name, skewed(scale=x)).recommend(n=5) for x in (1, 20))
    np.testing.assert_allclose(scaled["score"], 20 * ours["score"], rtol=1e-4)
    assert (scaled["item"] == ours["item"]).mean() > 0.99


@given(st.lists(st.integers(0, 400), min_size=1, max_size=12))
def test_a_discount_is_never_negative_and_falls_with_the_number_of_ratings(counts):
    model = MODEL.with_items(histories(counts))
    assert model.n_items == len(counts)
    assert (model.item_obscurity >= 0).all()
    order = np.argsort(counts)
    assert (np.diff(model.item_obscurity[order]) <= 0).all()


def histories(counts) -> Histories:
    """Return ratings of items, at most one by each user."""
    raters = [np.arange(min(count, 60)) for count in counts]
    indptr = np.cumsum([0, *map(len, raters)])
    indices = np.concatenate(raters).astype(np.int32)
    return Histories(indptr, indices, np.full(len(indices), 3, np.float32))


MODEL = fitted("bias").model


@pytest.mark.parametrize("name", ["als", "bayes"])
def test_new_items_compete_by_the_number_of_ratings_that_their_features_predict(name):
    genres = ["seen" if item < 20 else "rare" for item in range(40)]
    table = pl.DataFrame(
        {"item": [*range(40), 100, 101], "genre": [*genres, "seen", "rare"]}
    )
    frame = skewed().to_frame()
    ratings = [
        Ratings.from_frame(frame, item_table=each) for each in (table, table[:40])
    ]
    whole = fitted(name, with_features(ratings[0], unrated=True))
    later = fitted(name, with_features(ratings[1])).with_tables(item_table=table[40:])
    for each in (whole, later):
        obscurity = each.model.item_obscurity
        assert obscurity[40] + 0.3 < obscurity[41]
        assert abs(obscurity[40] - obscurity[:20].mean()) < 0.3
        assert 100 in each.recommend(n=10).filter("new")["item"]


def test_a_search_by_error_leaves_it_alone():
    options = {"trials": 1, "fixed": {"iterations": 2}}
    by_error, by_lists = (
        tune("als", skewed(), metric=m, **options) for m in ("rmse", "ndcg@5")
    )
    assert "popularity" not in by_error.trials[0].parameters
    assert "popularity" in by_lists.trials[0].parameters
