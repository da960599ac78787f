"""Features in models of implicit feedback: new items and users, explained, folded in, saved."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import polars as pl
import pytest

from recsys import Recommender
from recsys.data.ratings import Ratings
from recsys.errors import DataError
from recsys.features.selection import with_features
from recsys.models.abilities import folded_in
from recsys.models.blend import Blend
from recsys.models.histories import Histories
from recsys.models.registry import make_model

pytestmark = pytest.mark.usefixtures("one_fold")

N_USERS, N_ITEMS, NEW = 90, 70, 5
GENRES, JOBS = ("War", "Space", "Love"), ("soldier", "astronaut", "poet")
MODELS = {
    "ials": {"factors": 8, "regularization": 0.05, "unobserved_weight": 0.1},
    "spectral": {},
    "spectral, low pass": {"linear": False},
    "ease": {},
    "sparse-ease": {},
    "blend": {"members": "spectral,ials,ease", "weights": "0.4,0.2,0.4"},
}


@pytest.fixture(scope="module")
def ratings():
    """Likes of the genre of a user's job; the first items and the last user have none."""
    rng = np.random.default_rng(0)
    liked = np.arange(N_USERS)[:, None] % 3 == np.arange(N_ITEMS) % 3
    matrix = (rng.random(liked.shape) < np.where(liked, 0.5, 0.05)).astype(float)
    matrix[:, :NEW], matrix[-1] = 0, 0
    matrix[matrix == 0] = np.nan
    items = {
        "item": [*range(N_ITEMS)],
        "genre": [GENRES[i % 3] for i in range(N_ITEMS)],
    }
    items["price"] = [i % 7 + 0.5 for i in range(N_ITEMS)]
    users = {"user": [*range(N_USERS)], "job": [JOBS[u % 3] for u in range(N_USERS)]}
    likes = Ratings.from_matrix(
        matrix,
        items=range(N_ITEMS),
        item_table=pl.DataFrame(items),
        user_table=pl.DataFrame(users),
    )
    return with_features(replace(likes, implicit=True))


def unfitted(title):
    return make_model(title.split(",")[0], **MODELS[title])


@pytest.fixture(scope="module", params=list(MODELS))
def recommender(request, ratings):
    return Recommender(unfitted(request.param)).fit(ratings)


def bare(ratings):
    return replace(ratings, item_features=None, user_features=None)


def test_new_items_are_recommended_to_whom_their_features_suit(recommender):
    for user in (3, 4, 5):
        found = recommender.recommend(user, n=N_ITEMS)
        new = found.filter("new")["item"].to_list()
        assert set(new) == set(range(NEW))
        suited = [item for item in new if item % 3 == user % 3]
        assert set(new[: len(suited)]) == set(suited)


def test_arrays_of_features_are_there_together(recommender):
    model = recommender.model
    for part in model.parts if isinstance(model, Blend) else [model]:
        arrays = part._arrays()
        optional = [
            name for name in arrays if name.startswith(("profiles_", "features_"))
        ]
        assert len(optional) > 10
        for name in optional:
            others = {other: array for other, array in arrays.items() if other != name}
            with pytest.raises(
                DataError, match=f"needs an array '{name}', which is missing"
            ):
                type(part)._from_arrays(part.get_params(), others)


def test_new_items_do_not_rank_above_popular_ones(recommender):
    top = recommender.recommend(n=5, exclude_seen=False)
    assert top.filter("new").height < 0.2 * top.height


def test_explanations_add_up_and_name_features(recommender):
    for user, item in ((4, 1), (4, 30), (N_USERS - 1, 2), (N_USERS - 1, 41)):
        explained = recommender.explain(user, item)
        score = recommender.recommend(user, items=[item], exclude_seen=False)["score"][
            0
        ]
        assert explained["contribution"].sum() == pytest.approx(score, abs=2e-5)
        named = "user: job" if user == N_USERS - 1 else "genre"
        if item < NEW or user == N_USERS - 1:
            assert any(
                each.startswith(named) for each in explained["feature"].drop_nulls()
            )


def test_users_without_a_history_get_what_suits_their_features(recommender):
    found = recommender.recommend(user_features="job=astronaut", n=8)
    assert (found["item"].to_numpy() % 3 == 1).all()
    known = recommender.recommend(N_USERS - 1, n=8)  # a poet, without likes
    assert (known["item"].to_numpy() % 3 == (N_USERS - 1) % 3).all()
    poet = recommender.recommend(user_features={"job": "poet"}, n=8)
    assert poet["item"].to_list() == known["item"].to_list()
    assert poet["score"].to_list() == pytest.approx(known["score"].to_list(), abs=1e-5)


def test_pairs_and_lists_have_the_same_scores(recommender):
    top = recommender.recommend([4, N_USERS - 1], n=N_ITEMS)
    again = recommender.predict(top.select("user", "item"))["prediction"]
    np.testing.assert_array_equal(top["score"], again)
    users = np.array([4, N_USERS - 1])
    scores = recommender.model.scores(users)
    each, item = np.repeat(users, N_ITEMS), np.tile(np.arange(N_ITEMS), 2)
    np.testing.assert_allclose(
        scores.ravel(), recommender.model.predict(each, item), rtol=1e-4, atol=1e-5
    )


def test_folding_in_a_known_user_changes_nothing(recommender, ratings):
    history = {int(item): 1 for item in ratings.matrix[[4]].indices}
    known = recommender.recommend(4, n=9).select("item", "score", "new")
    again = recommender.recommend(history=history, user_features="job=astronaut", n=9)
    assert again.select("item", "score", "new").equals(known)


def test_items_folded_in_with_features_alone_score_as_new_ones(recommender, ratings):
    model, features = recommender.model, ratings.item_features
    none = [np.zeros(NEW + 1, np.int64), np.zeros(0, np.int32), np.zeros(0, np.float32)]
    rows = replace(features, matrix=features.matrix[:NEW])
    folded = folded_in(model, "item", Histories(*none), rows)
    users = np.array([4, N_USERS - 1])
    np.testing.assert_allclose(
        folded.scores(users), model.scores(users)[:, :NEW], atol=1e-5
    )


def test_new_items_have_similar_ones_and_are_found(recommender):
    found = recommender.similar_items([1, 31], n=30)
    assert (
        found.filter(pl.col("item") == 1)["similar"][:15].to_numpy() % 3 == 1
    ).mean() > 0.9
    new = found.filter(item=31, new=True)
    assert new["similar"].to_list()[:2] in ([1, 4], [4, 1])
    assert (new["score"][:2] > 0.2).all()


def test_a_table_of_today_brings_new_items_and_users(recommender, ratings, tmp_path):
    items = ratings.item_table.frame.extend(
        pl.DataFrame({"item": [-1], "genre": ["Love"], "price": [3.5]})
    )
    users = ratings.user_table.frame.extend(
        pl.DataFrame({"user": [900], "job": ["soldier"]})
    )
    today = recommender.with_tables(item_table=items, user_table=users)
    assert today.ratings.shape == (N_USERS + 1, N_ITEMS + 1)
    pairs = pl.DataFrame({"user": [3, 4, 5], "item": [0, 31, 59]})
    assert today.predict(pairs)["prediction"].to_list() == pytest.approx(
        recommender.predict(pairs)["prediction"].to_list(), abs=1e-6
    )
    new = today.recommend(5, n=N_ITEMS).filter("new")["item"].to_list()
    assert set(new[:2]) == {-1, 2}
    assert (today.similar_items(-1, n=8)["similar"].to_numpy() % 3 == 2).mean() > 0.8
    assert (today.recommend(900, n=5)["item"].to_numpy() % 3 == 0).all()
    assert today.explain(5, -1)["contribution"].sum() == pytest.approx(
        today.recommend(5, items=[-1])["score"][0], abs=1e-5
    )
    today.save(tmp_path / "m")
    loaded = Recommender.load(tmp_path / "m")
    assert loaded.recommend([5, 900], n=9).equals(today.recommend([5, 900], n=9))


def test_an_update_makes_new_items_known(recommender):
    likes = pl.DataFrame({"user": [4, 7, 10, 13], "item": [1] * 4})
    updated = recommender.update(likes)
    top = updated.recommend(16, n=N_ITEMS)
    assert not top.filter(item=1)["new"][0]
    assert top.filter("new")["item"].is_in(range(NEW)).all()


@pytest.mark.parametrize("title", ["spectral", "spectral, low pass"])
def test_what_has_users_is_scored_as_without_features(title, ratings):
    with_them, without = (
        unfitted(title).fit(each) for each in (ratings, bare(ratings))
    )
    users = np.arange(N_USERS - 1)
    np.testing.assert_allclose(
        with_them.scores(users)[:, NEW:], without.scores(users)[:, NEW:], atol=2e-6
    )


@pytest.mark.parametrize("title", list(MODELS))
def test_features_that_say_nothing_change_little(title, ratings):
    """The same for all items, so that new ones get the mean of the others."""
    one = with_features(bare(ratings), ["price"])
    model = unfitted(title).fit(replace(one, user_features=None))
    scores = model.scores(np.arange(N_USERS - 1))
    assert np.isfinite(scores).all()
    new, known = scores[:, :NEW], scores[:, NEW:]
    assert (new.mean(axis=1) <= known.max(axis=1)).all()


def test_a_blend_knows_features_if_all_its_models_do(ratings):
    blend = Blend.of(
        [unfitted("spectral").fit(ratings), make_model("popular").fit(ratings)],
        members="spectral,popular",
    )
    assert not blend.knows("item")
    assert blend.uses_features
