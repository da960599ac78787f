"""Items and users that nobody has seen before, known by their features."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest

from lowrank.completion import links
from recsys import Recommender
from recsys.data.ratings import Ratings
from recsys.errors import DataError, UnknownIdError
from recsys.features.selection import with_features
from recsys.lsi import UnknownTermWarning

pytestmark = pytest.mark.usefixtures("one_fold")

N_USERS, N_ITEMS, NEW = 80, 60, 5
ABOUT = {
    "War": ("soldiers fight in the trenches", "a general leads soldiers to the front"),
    "Space": ("robots cross the galaxy", "a pilot of robots is lost in the galaxy"),
    "Love": ("two lovers meet in Paris", "lovers write letters from Paris"),
}


@pytest.fixture(scope="module")
def tables():
    genres = [list(ABOUT)[i % 3] for i in range(N_ITEMS)]
    items = {
        "item": [f"i{i}" for i in range(N_ITEMS)],
        "title": [f"T{i}" for i in range(N_ITEMS)],
    }
    items |= {"genres": genres, "price": np.arange(N_ITEMS) % 7 + 0.5}
    items["about"] = [
        f"{ABOUT[g][i // 3 % 2]} in take {i}" for i, g in enumerate(genres)
    ]
    jobs = ["soldier", "astronaut", "poet"]
    users = {"user": [*range(N_USERS)], "job": [jobs[u % 3] for u in range(N_USERS)]}
    users["job"][0] = "actuary"  # the only one
    users["age"] = [20 + u % 40 for u in range(N_USERS)]
    return pl.DataFrame(items), pl.DataFrame(users)


@pytest.fixture(scope="module")
def ratings(tables):
    """Users like the genre of their job; the first items and the last user have no ratings."""
    rng = np.random.default_rng(0)
    users, items = np.divmod(np.arange(N_USERS * N_ITEMS), N_ITEMS)
    likes = users % 3 == items % 3
    seen = (items >= NEW) & (users < N_USERS - 1) & (rng.random(len(users)) < 0.4)
    quality = 0.3 * rng.normal(size=N_ITEMS)  # of which features tell nothing
    values = (
        3
        + np.where(likes, 1.2, -0.8)
        + quality[items]
        + 0.3 * rng.normal(size=len(users))
    )
    values = np.clip(values, 1, 5)
    matrix = np.full((N_USERS, N_ITEMS), np.nan)
    matrix[users[seen], items[seen]] = values[seen].round(1)
    known = Ratings.from_matrix(
        matrix, items=tables[0]["item"], item_table=tables[0], user_table=tables[1]
    )
    return with_features(known)


@pytest.fixture(scope="module", params=["als", "bayes"])
def recommender(request, ratings):
    return Recommender(request.param, factors=4, iterations=8).fit(ratings)


@pytest.fixture(scope="module")
def als(ratings):
    return Recommender("als", factors=4, iterations=8).fit(ratings)


def test_new_items_are_recommended_and_marked(recommender):
    for user, place in ((3, 0), (4, 1), (5, 2)):
        frame = recommender.recommend(user, n=N_ITEMS)
        assert frame.columns == ["user", "item", "rank", "score", "title", "new"]
        new = frame.filter("new").sort("score", descending=True)
        assert set(new["item"]) == {f"i{i}" for i in range(NEW)}
        assert {int(item[1:]) % 3 for item in new["item"][:1]} == {place}


def test_new_items_can_be_chosen_and_left_out(als):
    assert als.recommend([3, 4], where="new")["item"].str.slice(1).cast(int).max() < NEW
    old = als.recommend([3, 4], n=N_ITEMS, where="NOT new AND price < 5")
    assert not old[
        "new"
    ].any()  # but it is there: a table in a database keeps its columns
    assert old["item"].str.slice(1).cast(int).min() >= NEW
    assert als.recommend(3, items=["i0", "i7"])["new"].to_list() == [True, False]
    with pytest.raises(DataError, match=r"about \(text\), new \(boolean\), and text"):
        als.recommend(3, where="newest")


def test_a_table_may_have_its_own_column_new(ratings, tables):
    table = tables[0].with_columns(new=pl.lit("yes"))
    found = Recommender("als", factors=4).fit(ratings).with_tables(item_table=table)
    assert len(found.recommend(3, n=3, where="new = 'yes'")) == 3


def test_a_model_without_features_marks_nothing(ratings):
    bare = with_features(ratings, ["job"])
    found = Recommender("als", factors=4).fit(bare)
    assert "new" not in found.recommend(3).columns


@pytest.mark.parametrize("name", ["popular", "softimpute"])
def test_a_model_that_does_not_use_features_recommends_no_new_items(name, ratings):
    found = Recommender(name).fit(ratings).recommend([3, 4], n=N_ITEMS)
    assert found.columns == ["user", "item", "rank", "score", "title"]
    assert found["item"].str.slice(1).cast(int).min() >= NEW


@pytest.mark.parametrize("features", ["age=30, job=poet", {"age": 30, "job": "poet"}])
def test_a_user_without_ratings_is_described(recommender, features):
    frame = recommender.recommend(user_features=features, n=6)
    assert set(frame["user"]) == {"new"}
    assert {int(item[1:]) % 3 for item in frame["item"]} == {2}
    liked, other = (
        recommender.predict("new", item, user_features=features)
        for item in ("i8", "i9")
    )
    assert liked > other + 1
    pairs = pl.DataFrame({"user": ["new"] * 2, "item": ["i8", "i9"]})
    both = recommender.predict(pairs, user_features=features)["prediction"]
    assert both.to_list() == pytest.approx([liked, other])


def test_ratings_of_a_described_user_count_too(als):
    history = {f"i{i}": 5.0 for i in range(6, 21, 3)}  # of the genre of soldiers
    alone, both = (
        als.recommend(history=given, user_features="job=poet", items=["i30"])["score"][
            0
        ]
        for given in (None, history)
    )
    assert both > alone + 0.3
    frame = pl.DataFrame({"user": 900, "item": list(history), "rating": 5.0})
    found = als.fold_in(frame, user_features="job=poet").recommend(900, items=["i30"])
    assert found["score"][0] == pytest.approx(both, abs=1e-5)
    explained = als.fold_in(history, user_features="job=poet").explain("new", "i30")
    assert "user: job = poet" in explained["feature"].to_list()
    assert explained["contribution"].sum() == pytest.approx(both, abs=1e-4)


def test_a_user_of_the_table_without_ratings_gets_what_the_features_say(als):
    known = als.recommend(N_USERS - 1, n=5)
    described = als.recommend(
        user_features={"job": "astronaut", "age": 20 + 79 % 40}, n=5
    )
    assert known["item"].to_list() == described["item"].to_list()
    assert known["score"].to_list() == pytest.approx(
        described["score"].to_list(), abs=1e-4
    )


@pytest.mark.parametrize(
    ("features", "message"),
    [
        (
            "jobs=poet",
            r"no feature 'jobs' of users; there are job, age. Did you mean job\?",
        ),
        ("job=poett", r"job: 'poett' is unknown; did you mean poet\?"),
        (
            "job=xyz",
            "job: 'xyz' is unknown; known are actuary, astronaut, other, poet, soldier.",
        ),
        ("age=old", "age: 'old' is not a number"),
        ("old", "NAME=VALUE"),
    ],
)
def test_errors_name_features_close_to_unknown_ones(als, features, message):
    with pytest.raises(DataError, match=message):
        als.recommend(user_features=features)


def test_a_rare_value_of_the_table_counts_as_other(als):
    rare = als.recommend(user_features="job=actuary")
    assert rare.equals(als.recommend(user_features="job=other"))


def test_names_missing_columns_of_described_users(ratings):
    bare = Recommender("als", factors=4).fit(with_features(ratings, ["genres"]))
    with pytest.raises(
        DataError, match="als model was fitted without features of users; fit it"
    ):
        bare.recommend(user_features="age=30")
    with pytest.raises(
        DataError, match=r"softimpute model cannot use features of users; .* als"
    ):
        Recommender("softimpute").fit(ratings).recommend(user_features="age=30")
    with pytest.raises(DataError, match="need histories or user_features"):
        bare.fold_in()


@pytest.mark.parametrize("name", ["als", "bayes", "ials"])
def test_a_score_is_explained_alike_for_known_and_new_users(name, ratings):
    recommender = Recommender(name, factors=4, iterations=8).fit(ratings)
    own = ratings.to_frame().filter(user=3)
    features = dict(
        ratings.user_table.frame.filter(user=3).select("job", "age").row(0, named=True)
    )
    history = dict(zip(own["item"], own["rating"], strict=True))
    new = recommender.fold_in(history, user_features=features)
    for item in recommender.recommend(3, n=2)["item"]:
        known, folded = recommender.explain(3, item), new.explain("new", item)
        order = ["part", "item", "feature"]
        first, second = (each.sort(order)["contribution"] for each in (known, folded))
        np.testing.assert_allclose(second, first, atol=1e-4)
        undescribed = recommender.fold_in(history)
        total = undescribed.explain("new", item)["contribution"].sum()
        assert total == pytest.approx(
            undescribed.recommend(items=[item])["score"][0], abs=1e-4
        )


def test_new_items_have_similar_ones_and_are_found(recommender):
    frame = recommender.similar_items(["i0", "i30"], n=12)
    assert frame.columns == ["item", "similar", "rank", "score", "title", "new"]
    places = frame["similar"].str.slice(1).cast(int).to_numpy()
    assert (places % 3 == 0).all()
    found = frame.filter(pl.col("item") == "i30")
    new = recommender.similar_items("i30", n=25).filter("new")
    assert {"i0", "i3"} <= set(new["similar"])
    assert (new.filter(pl.col("similar").is_in(["i0", "i3"]))["score"] > 0.3).all()
    assert (found["score"] > 0.2).all()


def test_similar_items_of_a_text(als):
    frame = als.similar_items(text="robots", n=4)
    assert frame.columns == ["text", "similar", "rank", "score", "title", "new"]
    assert (frame["similar"].str.slice(1).cast(int) % 3 == 1).all()
    with pytest.warns(UnknownTermWarning, match="Not in the index: opera"):
        both = als.similar_items(text=["opera in Paris", "soldiers of the front"], n=3)
    assert (
        both["text"].to_list() == ["opera in Paris"] * 3 + ["soldiers of the front"] * 3
    )
    assert (both["similar"].str.slice(1).cast(int) % 3).to_list() == [2] * 3 + [0] * 3


def test_similar_texts_of_vectors(ratings):
    with_vectors = with_features(ratings, ["about"], texts="vectors")
    found = (
        Recommender("als", factors=4)
        .fit(with_vectors)
        .similar_items(text="galaxy", n=3)
    )
    assert (found["similar"].str.slice(1).cast(int) % 3 == 1).all()


def test_names_missing_columns_of_texts(als, ratings):
    with pytest.raises(DataError, match="No word of the query is in the index: opera"):
        als.similar_items(text="opera")
    bare = Recommender("als", factors=4).fit(with_features(ratings, ["genres"]))
    with pytest.raises(
        DataError, match="this model has none; fit a model that uses features, such"
    ):
        bare.similar_items(text="robots")
    for arguments in ({}, {"queries": "i1", "text": "robots"}):
        with pytest.raises(DataError, match="either items or a text"):
            als.similar_items(**arguments)


def test_a_cold_prediction_is_less_certain(ratings):
    bayes = Recommender("bayes", factors=4, iterations=8).fit(ratings)
    pairs = pl.DataFrame(
        {"user": [3] * N_ITEMS, "item": [f"i{i}" for i in range(N_ITEMS)]}
    )
    std = bayes.predict(pairs, std=True)["std"].to_numpy()
    assert std[:NEW].mean() > 1.02 * std[NEW:].mean()


def test_what_a_sample_of_the_users_tells_of_new_items(als, ratings, monkeypatch):
    monkeypatch.setattr(links, "_SAMPLED_ROWS", 55)
    sampled = Recommender("als", factors=4, iterations=8).fit(ratings)
    new = np.arange(NEW)
    found, other = (
        each.model.scores(np.arange(N_USERS))[:, new] for each in (als, sampled)
    )
    assert 0 < np.abs(found - other).max() < 0.04
    covariances = [each.model.features.items.covariance for each in (als, sampled)]
    np.testing.assert_allclose(*covariances, atol=0.05 * np.abs(covariances[0]).max())


def test_similar_users_without_ratings(als):
    found = als.similar_users(N_USERS - 1, n=10)["similar"].to_numpy()
    assert (found % 3 == (N_USERS - 1) % 3).mean() > 0.8


def test_unknown_items_stay_unknown(als):
    with pytest.raises(UnknownIdError, match="i999"):
        als.similar_items("i999")


@pytest.mark.parametrize("kind", ["als", "bayes"])
def test_a_table_of_today_brings_new_items_and_users(kind, ratings, tables, tmp_path):
    old = Recommender(kind, factors=4, iterations=8).fit(ratings)
    row = {"item": "a", "title": "New", "genres": "Space", "price": 2.5}
    row["about"] = "robots cross the galaxy in take 99"
    items = pl.concat([tables[0], pl.DataFrame([row])])
    users = pl.concat(
        [tables[1], pl.DataFrame([{"user": 900, "job": "poet", "age": 30}])]
    )
    today = old.with_tables(item_table=items, user_table=users)
    assert today.ratings.shape == (N_USERS + 1, N_ITEMS + 1)
    known = pl.DataFrame({"user": [3, 4, 5], "item": ["i0", "i31", "i59"]})
    assert today.predict(known).equals(old.predict(known))
    found = today.recommend(4, n=N_ITEMS + 1)
    assert found.filter("new")["item"].to_list().index("a") < 3
    poet = today.recommend(900, n=3).select("item", "score")
    described = today.recommend(user_features="job=poet, age=30", n=3).select(
        "item", "score"
    )
    assert poet["item"].to_list() == described["item"].to_list()
    explained = today.explain(4, "a")
    assert explained["contribution"].sum() == pytest.approx(
        today.recommend(4, items=["a"])["score"][0], abs=1e-4
    )
    today.save(tmp_path / "m")
    assert (
        Recommender.load(tmp_path / "m")
        .recommend(4, n=9)
        .equals(today.recommend(4, n=9))
    )


def test_a_model_without_features_keeps_its_items(ratings, tables):
    bare = Recommender("als", factors=4).fit(with_features(ratings, ["job"]))
    table = tables[0].with_columns(item="x" + pl.col("item"))
    assert bare.with_tables(item_table=table).ratings.n_items == N_ITEMS
