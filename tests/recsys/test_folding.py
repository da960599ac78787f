"""Folding in new users and items, and updating with new ratings."""

from dataclasses import replace

import numpy as np
import pandas as pd
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from recsys.changes import change_of
from recsys.data.ratings import Ratings
from recsys.errors import DataError, UnknownIdError
from recsys.features.selection import with_features
from recsys.models.base import Step
from recsys.recommender import Recommender

pytestmark = pytest.mark.usefixtures("one_fold")


def make_frame():
    rng = np.random.default_rng(2)
    users, items = np.divmod(np.arange(30 * 20), 20)
    kept = rng.random(600) < 0.4
    rating = 3 + np.where((users + items) % 2, 1, -1) + rng.integers(-2, 3, 600) / 2
    return pl.DataFrame({"user": users, "item": 100 + items, "rating": rating}).filter(
        kept
    )


TITLES = pl.DataFrame(
    {"item": range(100, 120), "title": [f"Film {i}" for i in range(20)]}
)


@pytest.fixture(scope="module")
def ratings():
    return Ratings.from_frame(make_frame(), item_table=TITLES)


@pytest.fixture(scope="module")
def als(ratings):
    return Recommender("als", factors=3).fit(ratings)


@pytest.fixture(scope="module")
def counts():
    return Recommender("popular").fit(Ratings.from_frame(make_frame().drop("rating")))


def of_user(user):
    return make_frame().filter(pl.col("user") == user)


# Users


def test_a_known_user_folded_in_gets_the_same_list(als):
    stranger = of_user(4).with_columns(user=pl.lit("someone"))
    expected = als.recommend(4).drop("user")
    found = als.recommend(history=stranger)
    assert found["user"].unique().to_list() == ["someone"]
    assert found.drop("user").equals(expected)


def test_a_mapping_is_one_user_without_a_name(als):
    mapping = dict(of_user(4).select("item", "rating").iter_rows())
    found = als.recommend(history=mapping, n=3)
    assert found["user"].to_list() == ["new"] * 3
    assert found["item"].to_list() == als.recommend(4, n=3)["item"].to_list()
    texts = {str(item): str(rating) for item, rating in mapping.items()}
    assert als.recommend(history=texts, n=3).equals(found)
    assert als.recommend(history=of_user(4).drop("user"), n=3).equals(found)


def test_a_history_has_numbers_in_the_forms_of_files(als):
    texts = pl.DataFrame(
        {"item": [101, 102, 103], "rating": ["4\u00bd", "3", "2\u00bd"]}
    )
    numbers = texts.with_columns(rating=pl.Series([4.5, 3.0, 2.5]))
    lists = [als.fold_in(history).recommend(n=5) for history in (texts, numbers)]
    assert lists[0].equals(lists[1])


def test_an_empty_history_gets_the_items_with_the_best_bias_of_lists(als):
    found = als.recommend(history={}, n=20)
    model = als.model
    scores = (
        model.global_mean + model.item_bias - model.popularity * model.item_obscurity
    )
    np.testing.assert_allclose(found["score"], np.sort(scores)[::-1], rtol=1e-6)


def test_several_new_users_and_some_of_them(als):
    histories = pl.concat([of_user(1), of_user(2), of_user(3)])
    everyone = als.recommend(history=histories, n=2)
    assert everyone["user"].to_list() == [1, 1, 2, 2, 3, 3]
    some = als.recommend([3, 1], history=histories, n=2)
    assert some["user"].to_list() == [3, 3, 1, 1]
    batches = list(als.recommend_batches(history=histories, n=2))
    assert pl.concat(batches).equals(everyone)
    with pytest.raises(UnknownIdError, match="Unknown user 7"):
        als.recommend(7, history=histories)


def test_everything_works_on_new_users(als):
    folded = als.fold_in(of_user(6).with_columns(user=pl.lit("x")))
    assert folded.ratings.shape == (1, 20)
    pairs = pl.DataFrame({"user": ["x", "x"], "item": [101, 102]})
    expected = als.predict(pl.DataFrame({"user": [6, 6], "item": [101, 102]}))
    assert folded.predict(pairs)["prediction"].equals(expected["prediction"])
    assert folded.explain("x", 101).equals(als.explain(6, 101))
    assert folded.similar_items(101, 3).equals(als.similar_items(101, 3))
    assert folded.recommend("y", cold_start="popular")["item"].to_list() == (
        als.recommend(99, cold_start="popular")["item"].to_list()
    )
    assert "title" in folded.recommend("x").columns


def test_seen_items_of_a_history_are_left_out_unless_wanted(als):
    history = {105: 5.0, 106: 4.0}
    assert set(als.recommend(history=history, n=20)["item"]).isdisjoint({105, 106})
    assert len(als.recommend(history=history, n=20, exclude_seen=False)) == 20


def test_the_last_rating_of_a_pair_counts(als):
    twice = pl.DataFrame(
        {"user": [1, 1, 1], "item": [105, 106, 105], "rating": [1.0, 4.0, 5.0]}
    )
    once = {106: 4.0, 105: 5.0}
    assert (
        als.recommend(history=twice)
        .drop("user")
        .equals(als.recommend(history=once).drop("user"))
    )


@pytest.mark.parametrize(
    ("history", "error", "message"),
    [
        (
            {999: 3.0},
            UnknownIdError,
            "Unknown item 999; the nearest ids are 119, 118, 117",
        ),
        ({101: float("nan")}, DataError, "Row 1: rating nan is not a finite number"),
        ({101: True}, DataError, "Item 101: rating 'True' is not a number"),
        (
            pl.DataFrame({"item": [101], "rating": [True]}),
            DataError,
            "Ratings must be numbers; got Boolean values",
        ),
        ({101: None}, DataError, "Item 101: the rating is missing"),
        (
            {101: 50},
            DataError,
            "Rating 50 is outside of the range of the model's ratings, 1 to 5",
        ),
        ({101: "good"}, DataError, "Item 101: rating 'good' is not a number"),
        (
            pl.DataFrame({"user": [1], "item": [101]}),
            DataError,
            "the history has no column 'rat",
        ),
        (
            pl.DataFrame({"user": [1], "rating": [1]}),
            DataError,
            "The frame has no column 'item'",
        ),
        (
            [101],
            DataError,
            "A history is a mapping of items to ratings, a list .* got list",
        ),
        (
            pd.Series([5.0], index=[101]),
            DataError,
            "A history is a mapping .* got list",
        ),
    ],
)
def test_bad_histories(als, history, error, message):
    with pytest.raises(error, match=message):
        als.recommend(history=history)


def test_contacts_need_no_ratings_and_ratings_become_contacts(counts):
    frame = of_user(3).drop("rating")
    folded = counts.fold_in(frame)
    assert folded.ratings.implicit
    assert folded.recommend().equals(counts.recommend(3))
    rated = counts.fold_in(frame.with_columns(rating=pl.lit(4)))
    np.testing.assert_array_equal(rated.ratings.values, 1)
    listed = counts.recommend(history=frame["item"].to_list())
    assert listed.drop("user").equals(counts.recommend(3).drop("user"))
    for items in (frame["item"], frame["item"].to_numpy(), pd.Index(frame["item"])):
        assert counts.recommend(history=items).equals(listed)
    with pytest.raises(DataError, match=r"A history is a mapping .* got str\."):
        counts.recommend(history="101")


def test_counts_stay_counts():
    sums = Ratings.from_frame(make_frame())
    summed = Recommender("popular").fit(
        Ratings.from_matrix(
            sums.matrix, users=sums.users.values, items=sums.items.values
        )
    )
    folded = summed.fold_in(of_user(3))
    np.testing.assert_array_equal(folded.ratings.values, of_user(3)["rating"])


def test_what_was_folded_in_is_not_saved(als, tmp_path):
    with pytest.raises(
        DataError, match=r"cannot be saved; update\(ratings\) adds them"
    ):
        als.fold_in({101: 3.0}).save(tmp_path / "m")
    assert not (tmp_path / "m").exists()


# Items


def test_known_items_as_new_ones_get_nearly_the_same(als):
    renamed = make_frame().with_columns(item=pl.col("item") + 1000)
    folded = als.fold_in_items(renamed)
    assert folded.ratings.items.values.to_list() == list(range(1100, 1120))
    pairs = als.recommend(n=20).select("user", "item")
    theirs = pairs.with_columns(item=pl.col("item") + 1000)
    difference = als.predict(pairs)["prediction"] - folded.predict(theirs)["prediction"]
    assert difference.abs().max() < 0.05


def test_new_items_are_recommended_with_their_titles(als):
    rows = pl.DataFrame(
        {"user": [1, 2, 3], "item": ["a", "a", "b"], "rating": [5.0, 5.0, 1.0]}
    )
    titles = pl.DataFrame({"item": ["a", "b"], "title": ["Alpha", "Beta"]})
    found = als.fold_in_items(rows, item_table=titles).recommend([2, 9])
    assert found.filter(pl.col("user") == 2)["title"].to_list() == ["Beta"]
    assert found.filter(pl.col("user") == 9)["title"].to_list() == ["Alpha", "Beta"]
    assert "title" not in als.fold_in_items(rows).recommend().columns


def test_similar_users_are_damped_by_what_they_rated_in_the_fit(als):
    rows = pl.DataFrame({"user": [1], "item": [7], "rating": [5.0]})
    assert als.fold_in_items(rows).similar_users(4, 5).equals(als.similar_users(4, 5))


def test_likeness_of_users_is_the_damped_cosine(als):
    vectors, counts = (
        als.model.user_vectors().astype(float),
        np.diff(als.ratings.indptr),
    )
    lengths = np.linalg.norm(vectors, axis=1)
    expected = vectors @ vectors[4] / lengths / lengths[4] * counts / (counts + 10)
    found = als.similar_users(4, 29)
    np.testing.assert_allclose(found["score"], expected[found["similar"]], atol=1e-6)
    assert found["rank"].to_list() == list(range(1, 30))
    assert 4 not in found["similar"]


def test_new_items_need_known_users(als):
    rows = pl.DataFrame({"user": [99], "item": [7], "rating": [5.0]})
    with pytest.raises(UnknownIdError, match="Unknown user 99"):
        als.fold_in_items(rows)


# Updates


NEW = pl.DataFrame(
    {"user": [4, 99, 99], "item": [101, 101, 500], "rating": [1.0, 2.0, 4.5]}
)


@pytest.mark.parametrize("name", ["bias", "popular"])
def test_an_update_is_a_fit_to_everything(ratings, name):
    updated = Recommender(name).fit(ratings).update(Ratings.from_frame(NEW), refit=True)
    kept = make_frame().join(NEW, on=["user", "item"], how="anti")
    whole = Recommender(name).fit(Ratings.from_frame(pl.concat([kept, NEW])))
    assert updated.ratings.to_frame().equals(whole.ratings.to_frame())
    assert updated.recommend().drop("title").equals(whole.recommend())


def test_a_refit_starts_from_nothing_that_the_model_knows(ratings):
    steps, steps_of_refit = [], []
    before = Recommender("als", factors=3).fit(ratings)
    scores = before.model.scores(np.arange(30)).copy()
    updated = before.update(
        Ratings.from_frame(NEW), refit=True, on_step=steps_of_refit.append
    )
    fresh = Recommender("als", factors=3).fit(updated.ratings, on_step=steps.append)
    assert all(isinstance(step, Step) for step in steps)
    assert steps_of_refit == steps
    users = np.arange(31)
    np.testing.assert_array_equal(
        updated.model.scores(users), fresh.model.scores(users)
    )
    np.testing.assert_array_equal(before.model.scores(np.arange(30)), scores)
    assert updated.model.get_params() == before.model.get_params()
    assert updated.training["ratings"] == updated.ratings.n_ratings


def test_an_update_keeps_users_items_and_titles(als):
    info = pl.DataFrame(
        {"item": [500, 101], "title": ["New", "Renamed"], "year": [2001, 2002]}
    )
    updated = als.update(Ratings.from_frame(NEW, item_table=info)).ratings
    titles = dict(zip(updated.items.values, updated.titles, strict=True))
    assert (titles[500], titles[101], titles[102]) == ("New", "Renamed", "Film 2")
    assert {*updated.item_table.kinds} == {"title", "year"}
    idle = Ratings.from_matrix(
        np.array([[1.0, np.nan], [5.0, np.nan], [np.nan, np.nan]])
    )
    wider = Recommender("popular").fit(idle).update(Ratings.from_frame(NEW)).ratings
    assert wider.users.values.to_list() == [0, 1, 2, 4, 99]
    assert wider.items.values.to_list() == [0, 1, 101, 500]


def test_ids_that_look_alike_are_the_same(als):
    texts = NEW.with_columns(pl.col("user", "item").cast(pl.String))
    found = als.update(Ratings.from_frame(texts)).ratings
    assert found.to_frame().equals(
        als.update(Ratings.from_frame(NEW)).ratings.to_frame()
    )
    names = NEW.with_columns(user=pl.Series(["ann", "bob", "007"]))
    with pytest.raises(
        DataError, match="has integer user ids; '007' cannot be among them"
    ):
        als.update(Ratings.from_frame(names))
    items = NEW.with_columns(item=pl.Series(["101", "cup", "500"]))
    with pytest.raises(DataError, match="integer item ids; 'cup' cannot be among them"):
        als.update(Ratings.from_frame(items))


def test_an_update_counts_visitors_whose_ids_the_model_cannot_have(als):
    users = pl.Series(["4", "7f3e-a1", "007"])
    updated = als.update(Ratings.from_frame(NEW.with_columns(user=users)))
    expected = als.update(Ratings.from_frame(NEW.head(1)))
    assert updated.ratings.to_frame().equals(expected.ratings.to_frame())
    # The items of visitors alone stay unknown.
    assert updated.ratings.items.values.equals(expected.ratings.items.values)
    assert (
        "2 events of 2 visitors left out, because the model has integer user ids and "
        "'007' cannot be among them (fit all sources together to have text ids)"
    ) in updated.training["changes"]


def test_the_last_rating_in_time_counts_in_whichever_order_they_arrive():
    old = pl.DataFrame(
        {"user": [1, 2], "item": [1, 1], "rating": [1.0, 5.0], "timestamp": [9, 9]}
    )
    new = old.head(1).with_columns(rating=pl.lit(5.0), timestamp=pl.lit(3))
    recommender = Recommender("popular").fit(Ratings.from_frame(old))
    updated = recommender.update(Ratings.from_frame(new)).ratings
    assert updated.to_frame().rows() == [(1, 1, 1.0, 9), (2, 1, 5.0, 9)]
    later = new.with_columns(timestamp=pl.lit(10))
    updated = recommender.update(Ratings.from_frame(later)).ratings
    assert updated.to_frame().rows() == [(1, 1, 5.0, 10), (2, 1, 5.0, 9)]
    with pytest.raises(DataError, match="The new events have no times"):
        recommender.update(Ratings.from_frame(new.drop("timestamp")))


def test_implicit_stays_implicit(counts):
    new = Ratings.from_frame(NEW.drop("rating"))
    updated = counts.update(new).ratings
    assert updated.implicit
    assert updated.n_ratings == len(
        make_frame().select("user", "item").vstack(NEW.select("user", "item")).unique()
    )
    with pytest.raises(
        DataError, match="must be implicit, as those of the model are; got explic"
    ):
        counts.update(Ratings.from_frame(NEW))


def test_counts_of_contacts_are_kept_in_an_update():
    twice = pl.DataFrame({"user": [1, 1, 2], "item": [5, 5, 5]})
    counted = Ratings.from_frame(twice, duplicates="sum")
    updated = (
        Recommender("popular")
        .fit(counted)
        .update(Ratings.from_frame(twice.tail(1)))
        .ratings
    )
    assert updated.implicit == counted.implicit
    assert updated.values.tolist() == [2.0, 2.0]  # they add up


def test_a_saved_model_can_be_updated(als, tmp_path):
    als.save(tmp_path / "m")
    loaded = Recommender.load(tmp_path / "m")
    updated = loaded.update(Ratings.from_frame(NEW))
    updated.save(tmp_path / "m", overwrite=True)
    again = Recommender.load(tmp_path / "m")
    assert again.recommend(99).equals(updated.recommend(99))
    assert loaded.recommend(4).equals(als.recommend(4))


triples = st.dictionaries(
    st.tuples(st.integers(0, 5), st.integers(0, 5)),
    st.sampled_from([1.0, 2.5, 4.0]),
    min_size=1,
)


@given(triples, triples)
def test_new_ratings_overrule_old_ones_whatever_they_are(old, new):
    def ratings(table):
        rows = [(user, item, value) for (user, item), value in table.items()]
        frame = pl.DataFrame(rows, schema=["user", "item", "rating"], orient="row")
        return Ratings.from_frame(frame)

    whole = change_of(ratings(old), ratings(new)).after
    found = {(user, item): value for user, item, value in whole.to_frame().iter_rows()}
    assert found == old | new
    assert whole.users.values.to_list() == sorted({user for user, _ in old | new})


def test_an_update_off_the_scale_names_the_rating(ratings):
    low, high = ratings.value_range()
    recommender = Recommender("bias").fit(replace(ratings, scale=(low, high)))
    new = pl.DataFrame({"user": [3, 4], "item": [101, 102], "rating": [2.0, high + 4]})
    with pytest.raises(
        DataError, match=rf"Row 2: rating {high + 4:g} is outside of the scale"
    ):
        recommender.update(new)
    message = rf"Rating {high + 4:g} of item 102 by user 4 is outside of the scale of the model"
    with pytest.raises(DataError, match=message):
        recommender.update(Ratings.from_frame(new))
    assert recommender.update(new.head(1)).ratings.n_users == ratings.n_users


def test_a_wider_range_of_grades_is_taken_by_a_refit_and_said(ratings):
    known = ratings.take(ratings.values > 1)
    recommender = Recommender("als", factors=2).fit(known)
    new = pl.DataFrame({"user": [3], "item": [101], "rating": [1.0]})
    updated = recommender.update(new)
    low, high = known.value_range()
    said = f"grades are from 1 to {high:g}, at the last fit from {low:g} to {high:g}"
    assert updated.training["update"] == f"fitted again: {said}"
    assert said in recommender.update(new, refit=True).training["changes"]
    assert updated.training["rating_min"] == 1
    with pytest.raises(
        DataError, match="The model must be fitted again: grades are from 1"
    ):
        recommender.update(new, refit=False)
    folded = recommender.fold_in({101: 1.0, 102: 0.5}).ratings
    assert folded.values.tolist() == [1.0, 0.5]


def test_equal_grades_are_likes_until_others_come(tmp_path):
    fives = {
        "user": [1, 1, 2, 2, 3],
        "item": ["a", "b", "a", "c", "b"],
        "rating": [5] * 5,
    }
    fitted = Recommender("auto").fit(pl.DataFrame(fives))
    fitted.save(tmp_path / "model")
    for recommender in (fitted, Recommender.load(tmp_path / "model")):
        assert recommender.ratings.implicit
        likes = recommender.update(
            pl.DataFrame({"user": [3], "item": ["a"], "rating": [5]})
        )
        assert likes.ratings.to_frame().rows()[-2:] == [(3, "a"), (3, "b")]
        others = pl.DataFrame({"user": [3, 4], "item": ["a", "c"], "rating": [1, 4]})
        for new in (others, Ratings.from_frame(others)):
            updated = recommender.update(new)
            assert (
                "grades are from 1 to 5, at the last fit all were 5"
                in (updated.training["update"])
            )
            assert updated.model.name == "als"
            assert {row[:3] for row in updated.ratings.to_frame().rows()} >= {
                *((3, "a", 1.0), (1, "a", 5.0), (4, "c", 4.0))
            }
            assert (
                updated.update(others.head(1))
                .training["update"]
                .startswith("folded in nothing")
            )


def test_a_model_of_counts_takes_later_counts_as_it_took_the_first(tmp_path):
    n = 300
    rng = np.random.default_rng(0)
    plays = pl.DataFrame(
        {
            "user": np.arange(n) % 30,
            "item": np.arange(n) // 30,
            "n": rng.geometric(0.5, n),
        }
    )
    fitted = Recommender("spectral").fit(Ratings.from_frame(plays, rating="n"))
    fitted.save(tmp_path / "model")
    plays.head(3).write_csv(tmp_path / "again.csv")
    for recommender in (fitted, Recommender.load(tmp_path / "model")):
        assert not recommender.ratings.weighted
        for new in (plays.head(3), Ratings.from_frame(plays.head(3), rating="n")):
            assert not recommender.update(new).ratings.weighted
        assert not recommender.update(tmp_path / "again.csv").ratings.weighted


def test_frames_of_an_update_are_read_as_the_first_one():
    events = pl.DataFrame(
        {
            "who": ["a", "b", "b"],
            "what": ["x", "x", "y"],
            "amount": [1, 2, 1],
            "kind": ["buy"] * 3,
        }
    )
    options = {"user": "who", "item": "what", "weight": "amount", "event": "kind"}
    ratings = Ratings.from_frame(events, **options, event_weights={"buy": 5})
    recommender = Recommender("popular").fit(ratings)
    updated = recommender.update(events.head(1))
    assert updated.ratings.to_frame().rows() == [
        ("a", "x", 10),
        ("b", "x", 10),
        ("b", "y", 5),
    ]


def test_the_only_folded_in_item_has_no_similar_ones(ratings):
    recommender = Recommender("spectral", factors=3).fit(ratings)
    one = pl.DataFrame({"user": [1, 2, 3], "item": 999})
    with pytest.raises(DataError, match="is the only one to compare; update"):
        recommender.fold_in_items(one).similar_items(999)
    two = pl.concat([one, pl.DataFrame({"user": [1, 2], "item": 998})])
    assert recommender.fold_in_items(two).similar_items(999)["similar"].to_list() == [
        998
    ]


# Features


@pytest.fixture(scope="module")
def featured():
    """Users of two tastes, which their table and the genres of the items name."""
    rng = np.random.default_rng(0)
    users, items = np.arange(60), np.arange(40)
    likes = (users[:, None] + items) % 2 == 0
    matrix = np.where(likes, 4.5, 1.5) + rng.normal(0, 0.2, likes.shape)
    matrix[rng.random(likes.shape) < 0.6] = np.nan
    films = pl.DataFrame({"item": [*items, 98, 99], "genre": ["war", "love"] * 21})
    people = pl.DataFrame({"user": [*users, 98, 99], "side": ["left", "right"] * 31})
    ratings = Ratings.from_matrix(matrix, item_table=films, user_table=people)
    return Recommender("als", factors=2).fit(with_features(ratings))


def test_features_of_new_users_count(featured):
    """The table of the ratings has them, or another one; without any rating they are all."""
    rows = pl.DataFrame({"user": [98, 99], "item": [0, 1], "rating": [3.0, 3.0]})
    scores = [{}, {}]
    for place, side in enumerate(("left", "right")):
        folded = featured.fold_in(rows.filter(pl.col("user") == 98 + place))
        assert folded.ratings.user_features.matrix.shape == (1, 2)
        found = folded.recommend(n=40)
        scores[place] = dict(zip(found["item"], found["score"], strict=True))
        table = pl.DataFrame({"user": ["new"], "side": [side]})
        same = featured.fold_in({place: 3.0}, user_table=table).recommend(n=40)
        assert dict(zip(same["item"], same["score"], strict=True)) == scores[place]
    assert scores[0][2] > scores[1][2]
    assert scores[0][3] < scores[1][3]
    assert featured.fold_in({0: 3.0}).ratings.user_features is None


def test_features_of_new_items_count(featured):
    rows = pl.DataFrame({"user": [0, 0], "item": ["a", "b"], "rating": [3.0, 3.0]})
    table = pl.DataFrame({"item": ["a", "b"], "genre": ["war", "love"]})
    found = featured.fold_in_items(rows, item_table=table).recommend(
        [2, 3], exclude_seen=False
    )
    assert found["item"].to_list() == ["a", "b", "b", "a"]
    known = featured.fold_in_items(rows.with_columns(item=pl.Series([98, 99])))
    assert known.recommend([2], exclude_seen=False)["item"].to_list() == [98, 99]


def test_an_update_learns_the_same_columns_again(featured):
    new = pl.DataFrame({"user": [0, 98, 98], "item": [98, 0, 200], "rating": [5.0] * 3})
    more = pl.DataFrame({"item": [200], "genre": ["art"]})
    updated = featured.update(
        Ratings.from_frame(new, item_table=more), refit=True
    ).ratings
    assert updated.item_features.matrix.shape == (42, 3)
    assert updated.item_features.names == (
        "genre = love",
        "genre = war",
        "genre = other",
    )
    assert updated.user_features.matrix.shape == (61, 2)


def test_histories_of_events_weigh_as_in_the_model(tmp_path):
    rng = np.random.default_rng(0)
    n = 400
    events = pl.DataFrame(
        {
            "user": rng.integers(0, 30, n),
            "item": rng.integers(0, 20, n),
            "qty": rng.integers(1, 4, n),
            "event": rng.choice(["view", "buy"], n),
            "time": 1_700_000_000 + rng.integers(0, 90, n) * 86_400,
        }
    )
    options = {
        "weight": "qty",
        "event_weights": {"view": 1, "buy": 5},
        "half_life": "30d",
    }
    ratings = Ratings.from_frame(events, **options)
    recommender = Recommender("ials", factors=4).fit(ratings)
    own = events.filter(pl.col("user") == 3)
    expected = ratings.to_frame().filter(pl.col("user") == 3)["rating"].to_numpy()
    for history in (own, own.drop("user")):
        folded = recommender.fold_in(history).ratings
        np.testing.assert_allclose(folded.values, expected, rtol=1e-5)
    kinds = own.select("item", "event")
    folded = recommender.fold_in(kinds).ratings
    weights = {"view": 1.0, "buy": 5.0}
    sums = (
        kinds.with_columns(w=pl.col("event").replace_strict(weights))
        .group_by("item")
        .agg(pl.col("w").sum())
    )
    assert folded.values.tolist() == sums.sort("item")["w"].to_list()
    with pytest.raises(DataError, match="There are events without a weight: like"):
        recommender.fold_in(kinds.with_columns(event=pl.lit("like")))
    assert recommender.fold_in(kinds.select("item")).ratings.values.max() == 1


def test_a_history_in_a_file_weighs_as_in_the_model(tmp_path):
    from click.testing import CliRunner

    from recsys.cli.main import cli

    rows = [
        f"{u},{i},{('view', 'buy')[i % 2]}"
        for u in range(20)
        for i in range(u % 3, 12, 2)
    ]
    (tmp_path / "events.csv").write_text("\n".join(["user,item,event", *rows]))
    model, history = tmp_path / "model", tmp_path / "history.csv"
    run = CliRunner().invoke
    fit = [
        "fit",
        tmp_path / "events.csv",
        "--event-weight",
        "view=1,buy=50",
        "--model",
        "ials",
    ]
    assert (
        run(cli, [*map(str, fit), "--factors", "2", "--out", str(model)]).exit_code == 0
    )
    scores = []
    for kind in ("view", "buy"):
        history.write_text(f"item,event\n1,{kind}\n2,view\n")
        args = ["recommend", model, "--history", history, "-n", "3", "--format", "csv"]
        scores.append(run(cli, [*map(str, args)]).stdout)
    assert scores[0] != scores[1]
    history.write_text("item,event\n1,like\n")
    result = run(cli, [*map(str, args)])
    assert result.exit_code == 1
    assert "There are events without a weight: like (1)" in result.stderr


@pytest.mark.covering(1)
@pytest.mark.parametrize("duplicates", [None, "last", "first", "mean"])
@pytest.mark.parametrize("name", ["ease", "ials", "sparse-ease", "spectral", "next"])
def test_weights_count_although_all_were_1_at_the_fit(name, duplicates):
    orders = make_frame().drop("rating")
    orders = orders.with_columns(quantity=1.0, timestamp=1_700_000_000 + pl.col("item"))
    ratings = Ratings.from_frame(orders, weight="quantity", duplicates=duplicates)
    fitted = Recommender(name).fit(ratings)
    bought = orders.head(2).with_columns(
        user=pl.lit(99), item=pl.Series([103, 110]), quantity=pl.Series([4.0, 1.0])
    )
    scores = {}
    for quantity in (4.0, 1.0):
        history = {103: quantity, 110: 1.0}
        listed = fitted.recommend(history=history, n=5)
        scores[quantity] = dict(listed.select("item", "score").iter_rows())
    assert scores[4.0] != pytest.approx(scores[1.0], rel=0.01)
    if name in ("ials", "next"):  # items of which move in an update
        return
    # A user who has bought the same is told the same.
    updated = fitted.update(bought, refit=False).recommend(99, n=5)
    expected = dict(updated.select("item", "score").iter_rows())
    assert scores[4.0] == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize("weight", [0, -3, -0.0])
def test_interactions_without_a_positive_weight_say_nothing(weight):
    events = make_frame().with_columns(pl.col("rating").round() + 1)
    weighted = Ratings.from_frame(events, weight="rating")
    recommender = Recommender("ials", factors=3, iterations=2).fit(weighted)
    popular = recommender.recommend(history={}, n=5)
    assert recommender.recommend(history={100: weight}, n=5).equals(popular)
    liked = recommender.recommend(history={101: 4}, n=20)
    assert recommender.recommend(history={100: weight, 101: 4}, n=20).equals(liked)


@pytest.mark.parametrize(("name", "value"), [("liked", True), ("plays", 3)])
def test_a_history_is_read_as_the_first_data_were(name, value):
    rng = np.random.default_rng(0)
    pairs = [(n, item) for n in range(30) for item in rng.permutation(12)[:6]]
    frame = pl.DataFrame(pairs, schema=["user", "item"], orient="row")
    values = rng.geometric(0.3, len(pairs))
    frame = frame.with_columns(pl.Series(name, values).cast(type(value)))
    recommender = Recommender("ease").fit(Ratings.from_frame(frame))
    expected = recommender.recommend(history=[1, 2], n=5)
    both = {"item": [1, 2, 3], name: [value, value, type(value)(0)]}
    assert recommender.recommend(history=pl.DataFrame(both), n=5).equals(expected)
    words = pl.DataFrame({"item": [1, 2, 3], "rating": ["true", "Yes", "no"]})
    assert recommender.recommend(history=words, n=5).equals(expected)
    assert recommender.recommend(history={1: value, 2: value, 3: 0}, n=5).equals(
        expected
    )
