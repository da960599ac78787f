"""Recommender: ids in, frames out."""

import os

import numpy as np
import pandas as pd
import polars as pl
import pytest
from polars.testing import assert_frame_equal
from sklearn.base import clone
from sklearn.metrics import mean_absolute_error
from sklearn.model_selection import GridSearchCV, cross_val_score

import recsys.ranking.topn
from recsys.data.ratings import Ratings
from recsys.errors import DataError, NotFittedError, RecsysError, UnknownIdError
from recsys.models.als import ALS
from recsys.models.base import FactorModel, Step
from recsys.models.baselines import Popular
from recsys.readers import read_ratings, sample_path
from recsys.recommender import Recommender

FRAME = pl.DataFrame(
    {
        "user": [10, 10, 20, 20, 30],
        "item": ["a", "b", "a", "c", "a"],
        "rating": [5.0, 1.0, 4.0, 2.0, 3.0],
    }
)
TITLES = pl.DataFrame(
    {"item": ["d", "c", "b", "a"], "title": ["Dune", "Cats", None, "Alien"]}
)


class Fixed(FactorModel):
    """Two factors, given and not learnt: items point east, north, north-east and nowhere."""

    name = "fixed"

    def fit(self, ratings, *, on_step=None, validation=None):
        self.global_mean = 3.0
        self.user_bias = np.linspace(-1, 1, ratings.n_users, dtype=np.float32)
        self.item_bias = np.zeros(ratings.n_items, np.float32)
        self.user_factors = np.float32([[1, 0], [0, 1], [9, 9]])
        self.item_factors = np.float32([[1, 0], [0, 2], [1, 1], [0, 0]])[
            : ratings.n_items
        ]
        if on_step is not None:
            on_step(Step(1, 2, 9.0, 0.9))
            on_step(Step(2, 2, 8.0, 0.8, 0.85))
        return self


@pytest.fixture
def ratings():
    matrix = FRAME.pivot("item", index="user", values="rating").sort("user")
    table = np.column_stack([matrix.drop("user").to_numpy(), [np.nan] * 3])
    return Ratings.from_matrix(
        table.astype(float),
        users=[10, 20, 30],
        items=["a", "b", "c", "d"],
        item_table=TITLES,
    )


@pytest.fixture
def recommender(ratings):
    return Recommender(Fixed()).fit(ratings)


@pytest.fixture
def popular(ratings):
    return Recommender("popular").fit(ratings)


def test_recommends_unseen_items_best_first_with_titles(recommender):
    frame = recommender.recommend([10, 20])
    assert frame.schema == {
        "user": pl.Int64,
        "item": pl.String,
        "rank": pl.Int32,
        "score": pl.Float32,
        "title": pl.String,
    }
    assert frame.rows() == [
        (10, "c", 1, 3.0, "Cats"),
        (20, "b", 1, 5.0, None),
    ]  # nobody has rated d


def test_has_no_title_column_without_titles():
    frame = Recommender("popular").fit(Ratings.from_frame(FRAME)).recommend(30)
    assert frame.columns == ["user", "item", "rank", "score"]
    assert frame["rank"].to_list() == [1, 2]
    assert set(frame["item"]) == {"b", "c"}


def test_seen_items_are_kept_on_request(recommender):
    frame = recommender.recommend(10, exclude_seen=False)
    assert frame["score"].to_list() == [3, 3, 2]
    assert set(frame["item"][:2]) == {"a", "c"}


def test_all_users_are_the_default(recommender):
    assert recommender.recommend(n=1)["user"].to_list() == [10, 20, 30]


@pytest.mark.parametrize(
    "users",
    [
        20,
        np.int64(20),
        "20",
        [20],
        (20,),
        {20},
        np.array([20]),
        pl.Series([20]),
        pd.Series([20]),
        ["20"],
    ],
)
def test_one_id_or_several_in_any_container(recommender, users):
    frame = recommender.recommend(users, 1)
    assert frame.rows() == [(20, "b", 1, 5.0, None)]


def test_users_come_in_the_order_asked_and_as_often(recommender):
    frame = recommender.recommend([30, 10, 30], 1)
    assert frame["user"].to_list() == [30, 10, 30]


def test_integers_find_textual_twins():
    twins = FRAME.with_columns(pl.col("user").cast(pl.String))
    frame = Recommender("popular").fit(Ratings.from_frame(twins)).recommend(10, 1)
    assert frame.rows() == [("10", "c", 1, 1.0)]


def test_allow_and_block_together(recommender):
    assert recommender.recommend(30, items=["c", "a"])["item"].to_list() == ["c"]
    assert recommender.recommend(30, block=["c"])["item"].to_list() == ["b"]
    assert recommender.recommend(30, block="c")["item"].to_list() == ["b"]
    both = recommender.recommend(30, items=["c", "b"], block=["c"], exclude_seen=False)
    assert both["item"].to_list() == ["b"]


@pytest.mark.parametrize(
    "arguments", [{"users": []}, {"items": []}, {"users": 10, "items": ["a"]}]
)
def test_nothing_to_recommend_is_an_empty_frame_with_the_schema(recommender, arguments):
    frame = recommender.recommend(**arguments)
    assert frame.is_empty()
    assert frame.schema == recommender.recommend(10).schema


def test_more_items_than_there_are(recommender):
    frame = recommender.recommend(n=10**9)
    assert len(frame) == 3 * 3 - 5
    assert frame["score"].is_finite().all()


@pytest.mark.parametrize("n", [0, -3])
def test_n_below_one_raises(recommender, n):
    with pytest.raises(ValueError, match=f"n must be at least 1; got {n}"):
        recommender.recommend(10, n)
    with pytest.raises(DataError, match=f"n must be at least 1; got {n}"):
        recommender.similar_items("a", n)


def test_unknown_ids_are_rejected_with_the_nearest(recommender):
    with pytest.raises(
        UnknownIdError, match="Unknown user 31; the nearest ids are 30, 20, 10"
    ):
        recommender.recommend([10, 31])
    with pytest.raises(UnknownIdError, match="Unknown user -1"):
        recommender.recommend(-1)
    with pytest.raises(UnknownIdError, match="Unknown item 'z'"):
        recommender.recommend(10, items=["a", "z"])
    with pytest.raises(UnknownIdError, match="Unknown item 'A'; the nearest id is 'a'"):
        recommender.recommend(10, block=["A"])
    with pytest.raises(UnknownIdError, match="Unknown item 'z'"):
        recommender.similar_items("z")


def test_batches_are_checked_before_the_first_is_asked_for(recommender):
    with pytest.raises(UnknownIdError, match="Unknown user 99"):
        recommender.recommend_batches([99])
    with pytest.raises(DataError, match="n must be at least 1"):
        recommender.recommend_batches(n=0)


def test_batches_are_the_frame_in_pieces(recommender, monkeypatch):
    whole = recommender.recommend()
    monkeypatch.setattr(recsys.ranking.topn, "_BLOCK_RESULTS", 3)
    pieces = list(recommender.recommend_batches())
    assert [piece["user"].unique().to_list() for piece in pieces] == [[10], [20], [30]]
    assert pl.concat(pieces).equals(whole)


def test_unknown_users_get_the_most_rated_items_on_request(recommender):
    frame = recommender.recommend([99, 20, "77"], 2, cold_start="popular")
    second = frame["item"][1]  # b and c have one rating each
    assert second in ("b", "c")
    assert frame.drop("title").rows() == [
        (99, "a", 1, 3.0),
        (99, second, 2, 1.0),
        (20, "b", 1, 5.0),
        (77, "a", 1, 3.0),
        (77, second, 2, 1.0),
    ]
    assert frame.schema == recommender.recommend(10).schema
    known = recommender.recommend([20], 2, cold_start="popular")
    assert known.equals(recommender.recommend([20], 2))


def test_unknown_users_respect_allow_and_block(recommender):
    frame = recommender.recommend(
        99, cold_start="popular", items=["a", "c", "d"], block=["a"]
    )
    assert frame["item"].to_list() == ["c"]


def test_unknown_users_of_a_model_with_exact_scores(popular):
    frame = popular.recommend([99, 10], 1, cold_start="popular")
    assert frame["item"].to_list() == ["a", "c"]


def test_a_text_is_an_unknown_user_among_integers(recommender):
    found = recommender.recommend("ann", cold_start="popular")
    assert found["user"].unique().to_list() == ["ann"]


def test_unknown_string_users_keep_their_ids():
    texts = FRAME.with_columns(user=pl.format("u{}", "user"))
    fitted = Recommender("popular").fit(Ratings.from_frame(texts))
    frame = fitted.recommend(["new", "u10", 5], 1, cold_start="popular")
    assert frame["user"].to_list() == ["new", "u10", "5"]


def test_one_user_gets_the_same_alone_before_and_after_items_are_ordered(monkeypatch):
    monkeypatch.setattr("recsys.ranking.topn._PAYS_AFTER", 20)
    monkeypatch.setattr("recsys.ranking.topn._ORDERED", 1)
    fitted = Recommender("als", factors=4).fit(read_ratings(sample_path()))
    users = fitted.ratings.users.values[:40]
    together = fitted.recommend(users, 7)
    alone = pl.concat([fitted.recommend(user, 7) for user in users])
    assert_frame_equal(alone, together)
    assert fitted._known_users._searches == len(users)
    assert fitted._known_users.order is not None


def test_other_cold_starts_raise(recommender):
    with pytest.raises(
        DataError, match="cold_start must be one of error, popular; got 'bias'"
    ):
        recommender.recommend(10, cold_start="bias")
    with pytest.raises(
        DataError, match="cold_start must be one of error, bias, popular; got 'no'"
    ):
        recommender.predict(FRAME, cold_start="no")


def test_similar_items_by_damped_cosine_without_the_item_itself(recommender):
    frame = recommender.similar_items(["a", "c"])
    assert frame.schema == {
        "item": pl.String,
        "similar": pl.String,
        "rank": pl.Int32,
        "score": pl.Float32,
        "title": pl.String,
    }
    once, thrice = (pytest.approx(2**-0.5 * n / (n + 10)) for n in (1, 3))
    assert frame.rows() == [
        ("a", "c", 1, once, "Cats"),
        ("a", "b", 2, 0.0, None),
        ("c", "a", 1, thrice, "Alien"),
        ("c", "b", 2, once, None),
    ]
    assert recommender.similar_items("a", 1).rows() == [("a", "c", 1, once, "Cats")]


def test_an_item_without_direction_is_like_nothing(recommender):
    frame = recommender.similar_items("d")
    assert frame.is_empty()
    assert frame.columns == ["item", "similar", "rank", "score", "title"]


def test_similar_items_need_vectors(popular):
    with pytest.raises(
        DataError,
        match="The popular model cannot find similar items; these models can: als, bayes",
    ):
        popular.similar_items("a")


def test_predictions_keep_ids_order_and_are_clipped(recommender):
    pairs = pl.DataFrame(
        {"item": ["a", "d", "b"], "user": ["30", "10", "20"], "rating": [1, 2, 3]}
    )
    frame = recommender.predict(pairs)
    assert frame.schema == {
        "user": pl.String,
        "item": pl.String,
        "prediction": pl.Float32,
    }
    assert frame.rows() == [("30", "a", 5.0), ("10", "d", 2.0), ("20", "b", 5.0)]
    assert recommender.model.predict([2], [0])[0] == 13


def test_predict_takes_pandas(recommender):
    pairs = pd.DataFrame({"user": [10], "item": ["c"]})
    assert recommender.predict(pairs).rows() == [(10, "c", 3.0)]


def test_frames_have_columns_by_usual_names_behind_every_door(recommender):
    usual = pd.DataFrame(
        {"userId": [10, 10], "movieId": ["c", "a"], "stars": [3.0, 2.0]}
    )
    named = usual.set_axis(["user", "item", "rating"], axis=1)
    assert recommender.predict(usual).equals(recommender.predict(named))
    bias = Recommender("bias").fit(usual)
    found, expected = (bias.fold_in(each).predict(usual) for each in (usual, named))
    assert found.equals(expected)
    with pytest.raises(
        DataError, match=r"fitted to Ratings; got DataFrame. Ratings.from_frame"
    ):
        ALS(factors=1).fit(usual)


def test_predict_takes_no_rows(recommender):
    pairs = pl.DataFrame(schema={"user": pl.Int64, "item": pl.String})
    assert recommender.predict(pairs).schema["prediction"] == pl.Float32


@pytest.mark.parametrize(
    ("pairs", "error", "message"),
    [
        ({"user": [10]}, DataError, "no column 'item'; its columns are user"),
        (
            {"user": [10, None], "item": ["a", "b"]},
            DataError,
            "Row 2: the user id is missing",
        ),
        ({"user": [10, 12], "item": ["a", "b"]}, UnknownIdError, "Unknown user 12"),
        ({"user": [10], "item": ["z"]}, UnknownIdError, "Unknown item 'z'"),
    ],
)
def test_bad_pairs_raise(recommender, pairs, error, message):
    with pytest.raises(error, match=message):
        recommender.predict(pl.DataFrame(pairs))


COLD = pl.DataFrame({"user": [10, 99, 20, 99], "item": ["c", "a", "zz", "zz"]})


def test_cold_pairs_use_the_known_side(recommender):
    recommender.model.item_bias[0] = 0.5
    frame = recommender.predict(COLD, cold_start="bias")
    assert frame.rows() == [
        (10, "c", 3.0),
        (99, "a", 3.5),
        (20, "zz", 3.0),
        (99, "zz", 3.0),
    ]


def test_cold_pairs_by_the_mean_of_the_item(recommender, ratings):
    frame = recommender.predict(COLD, cold_start="popular")
    item_mean = Popular().fit(ratings).predict([0], [0])[0]
    assert frame["prediction"].to_list() == [
        3.0,
        item_mean,
        3.0,
        3.0,
    ]  # 3: the mean of all ratings


def test_cold_pairs_need_biases(popular):
    with pytest.raises(
        DataError, match="The popular model has no biases; use cold_start='popular'"
    ):
        popular.predict(COLD, cold_start="bias")


def test_implicit_predictions_are_not_clipped():
    implicit = Recommender("popular").fit(Ratings.from_frame(FRAME.drop("rating")))
    pairs = pl.DataFrame({"user": [10, 10], "item": ["a", "new"]})
    assert implicit.predict(pairs, cold_start="popular")["prediction"].to_list() == [
        3.0,
        0.0,
    ]


def test_training_is_summarised(recommender):
    seconds = recommender.training.pop("seconds")
    assert seconds >= 0
    assert recommender.training == {
        "users": 3,
        "items": 4,
        "ratings": 5,
        "implicit": False,
        "rating_min": 1.0,
        "rating_max": 5.0,
        "sweeps": 2,
        "train_rmse": 0.8,
        "validation_rmse": 0.85,
    }
    implicit = Recommender("popular").fit(Ratings.from_frame(FRAME.drop("rating")))
    assert implicit.training["rating_min"] is None
    assert implicit.training["sweeps"] is None


def test_steps_are_passed_on(ratings):
    steps = []
    Recommender(Fixed()).fit(ratings, on_step=steps.append)
    assert [step.step for step in steps] == [1, 2]


def test_fitting_again_forgets_what_was_derived(ratings):
    recommender = Recommender("popular").fit(ratings)
    recommender.recommend(99, cold_start="popular")
    recommender.fit(Ratings.from_frame(FRAME.filter(pl.col("item") != "a")))
    frame = recommender.recommend(99, 3, cold_start="popular")
    assert set(frame["item"]) == {"b", "c"}
    assert frame["score"].to_list() == [1, 1]
    assert "title" not in frame.columns


def test_before_fit_every_question_says_so():
    for ask in (
        lambda r: r.recommend(1),
        lambda r: r.similar_items(1),
        lambda r: r.predict(FRAME),
        lambda r: r.save("nowhere"),
    ):
        with pytest.raises(
            NotFittedError, match=r"The recommender is not fitted yet; call fit"
        ):
            ask(Recommender("popular"))


def test_fit_rejects_no_ratings_and_foreign_validation(ratings):
    with pytest.raises(DataError, match="There are no ratings to fit a model to"):
        Recommender("popular").fit(ratings.take(np.zeros(5, bool)))
    with pytest.raises(
        DataError, match=r"validation must have the users and items of the ratings"
    ):
        Recommender("bias").fit(ratings, validation=Ratings.from_frame(FRAME))


def test_fit_takes_ratings_a_frame_or_a_path(tmp_path):
    FRAME.write_csv(tmp_path / "ratings.csv")
    expected = Recommender("popular").fit(Ratings.from_frame(FRAME)).recommend()
    for given in (FRAME, FRAME.to_pandas(), tmp_path / "ratings.csv"):
        assert Recommender("popular").fit(given).recommend().equals(expected)
    for given in ([[1, 2, 3]], None):
        with pytest.raises(DataError, match="Expected"):
            Recommender("popular").fit(given)


def test_scikit_learn_clones_a_recommender(ratings):
    named = Recommender("als", factors=3).fit(ratings)
    copy = clone(named)
    assert copy.get_params() == named.get_params()
    assert copy.model.factors == 3
    with pytest.raises(NotFittedError):
        copy.recommend()
    assert copy.set_params(factors=5).model.factors == 5
    assert copy.set_params(model="popular").get_params() == {
        "model": "popular",
        "damping": 10.0,
        "habit": 0.0,
    }
    given = Recommender(Popular(damping=2.0))
    assert clone(given).model.damping == 2.0
    assert given.set_params(model__damping=4.0).model.damping == 4.0


def test_parameters_of_a_model_that_is_not_registered_are_set_as_well():
    class Own(Popular):
        name = "own"

    changed = Recommender(Own()).set_params(model__damping=4.0).model
    assert (type(changed), changed.damping) == (Own, 4.0)
    with pytest.raises(DataError, match="The own model has no parameter 'size'"):
        Recommender(Own()).set_params(model__size=1)


def test_scikit_learn_searches_and_validates_a_recommender(ratings):
    def negative_error(recommender, held_out):
        predicted = recommender.predict(held_out, cold_start="bias")["prediction"]
        return -mean_absolute_error(held_out["rating"], predicted)

    frame, grid = ratings.to_frame(), {"factors": [1, 3]}
    search = GridSearchCV(
        Recommender("als", iterations=2), grid, scoring=negative_error, cv=2
    )
    assert search.fit(frame).best_params_ in [{"factors": 1}, {"factors": 3}]
    assert len(search.best_estimator_.recommend(frame["user"][0], n=1)) == 1
    scores = cross_val_score(
        Recommender("bias"),
        frame.to_pandas(),
        scoring=negative_error,
        cv=2,
        error_score="raise",
    )
    assert (scores < 0).all()


def test_html_has_parameters_and_counts(ratings):
    page = Recommender("als", factors=3).fit(ratings)._repr_html_()
    assert "<th>factors</th><td>3</td>" in page
    assert "&lt;Recommender: als, 3 users" in page


def test_a_forked_process_gets_an_error_instead_of_waiting(ratings):
    recommender = Recommender("popular").fit(ratings)
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            recommender.recommend()
        except RecsysError as error:
            os.write(writer, str(error).encode())
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    assert b"was forked" in os.read(reader, 500)


def test_parameters_go_with_a_name_only():
    assert Recommender("popular", damping=3).model.damping == 3
    with pytest.raises(
        DataError, match="A model object has its parameters already; got damping"
    ):
        Recommender(Popular(), damping=3)
    with pytest.raises(
        DataError, match="The popular model has no parameter 'factors'; it has damping"
    ):
        Recommender("popular", factors=3)


def test_repr_says_model_and_data():
    recommender = Recommender("popular")
    assert repr(recommender) == "<Recommender: popular, not fitted>"
    recommender.fit(Ratings.from_frame(FRAME))
    assert (
        repr(recommender)
        == "<Recommender: popular, 3 users x 3 items, 5 ratings, 56% filled>"
    )


@pytest.mark.parametrize("n", ["5", 5.0, True, None])
def test_n_is_a_whole_number(n):
    recommender = Recommender("popular").fit(Ratings.from_frame(FRAME))
    with pytest.raises(DataError, match=f"n must be a whole number; got {n!r}"):
        recommender.recommend(10, n=n)
    assert recommender.recommend(10, n=np.int64(1), exclude_seen=False).height == 1


class Duck:
    """The public methods of a model, without the others."""

    name = "duck"

    def fit(self, ratings, **_):
        return self


@pytest.mark.parametrize("model", [Popular, None, 7, Duck()])
def test_a_model_is_a_name_or_an_object(model):
    with pytest.raises(
        DataError, match="model must be a name or a Model with its parameters; got"
    ):
        Recommender(model)


def test_validation_is_ratings():
    ratings = Ratings.from_frame(FRAME)
    with pytest.raises(DataError, match=r"validation must be Ratings; got DataFrame\."):
        Recommender("popular").fit(ratings, validation=FRAME)


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"factors": "a"}, "factors must be a whole number; got 'a'"),
        ({"factors": 8.0}, r"factors must be a whole number; got 8\.0"),
        ({"regularization": "1"}, "regularization must be a number; got '1'"),
        ({"linked": "no"}, "linked must be True or False; got 'no'"),
        ({"factors": True}, "factors must be a whole number; got True"),
    ],
)
def test_parameters_are_of_the_right_type(params, message):
    with pytest.raises(DataError, match=message):
        Recommender("als", **params)
    assert (
        Recommender(
            "als", factors=np.int64(2), regularization=1, threads=None
        ).model.factors
        == 2
    )


@pytest.mark.filterwarnings("ignore:.*encountered:RuntimeWarning")
@pytest.mark.parametrize(
    ("name", "params", "message"),
    [
        (
            "als",
            {"count_power": 100.0},
            "regularization 1.3 and count_power 100; choose values",
        ),
        (
            "bayes",
            {"count_power": 100.0},
            "temperature 1.3 and count_power 100; choose values",
        ),
        ("ease", {"regularization": 1e300}, "diverged: (penalty|weights) has values"),
        (
            "spectral",
            {"popularity": 1000.0},
            "item_output has values that are not finite",
        ),
    ],
)
def test_a_fit_that_breaks_down_raises(name, params, message):
    rng = np.random.default_rng(0)
    table = rng.integers(1, 6, (50, 40)).astype(float)
    table[rng.random(table.shape) > 0.15] = np.nan
    ratings = Ratings.from_matrix(table)
    for validation in (None, ratings):
        with pytest.raises(DataError, match=message):
            Recommender(name, **params).fit(ratings, validation=validation)


@pytest.mark.parametrize(
    ("name", "call"),
    [
        ("exclude_seen", lambda r, word: r.recommend(10, exclude_seen=word)),
        ("chance", lambda r, word: r.recommend(10, chance=word)),
        ("next", lambda r, word: r.similar_items("a", next=word)),
        ("std", lambda r, word: r.predict([(10, "a")], std=word)),
        ("missing_only", lambda r, word: r.impute(missing_only=word)),
        ("refit", lambda r, word: r.update(FRAME, refit=word)),
        ("features", lambda r, word: r.fit(r.ratings, features=word)),
        ("overwrite", lambda r, word: r.save("model", overwrite=word)),
        ("implicit", lambda r, word: Ratings.from_frame(FRAME, implicit=word)),
        (
            "implicit",
            lambda r, word: Ratings.from_matrix(np.ones((2, 2)), implicit=word),
        ),
    ],
)
def test_a_word_is_neither_true_nor_false(ratings, tmp_path, monkeypatch, name, call):
    # "no" is true in Python.
    monkeypatch.chdir(tmp_path)
    fitted = Recommender("als", factors=2).fit(ratings)
    for word in ("no", "False"):
        with pytest.raises(DataError, match=f"{name} must be True or False; got"):
            call(fitted, word)


def test_flags_may_be_of_numpy(recommender):
    assert len(recommender.recommend(10, exclude_seen=np.False_)) == 3
