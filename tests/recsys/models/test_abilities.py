"""Abilities of some models beyond scoring; each test runs for the models that have it."""

from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from recsys.data.ratings import Ratings
from recsys.errors import DataError
from recsys.models.abilities import (
    Explains,
    FoldsInItems,
    FoldsInUsers,
    HasItemSimilarity,
    HasItemVectors,
    HasUncertainty,
    HasUserVectors,
)
from recsys.models.histories import Histories
from recsys.models.registry import MODELS, make_model, model_class
from recsys.recommender import Recommender

pytestmark = pytest.mark.usefixtures("one_fold")
N_USERS, N_ITEMS = 40, 30


def those_with(ability):
    return pytest.mark.parametrize(
        "name",
        [name for name in sorted(MODELS) if issubclass(model_class(name), ability)],
    )


def make_ratings():
    """Two tastes and a quarter filled; the last user and the last item have no ratings."""
    rng = np.random.default_rng(1)
    likes = np.add.outer(np.arange(N_USERS), np.arange(N_ITEMS)) % 2
    table = np.where(likes, 4, 2) + rng.integers(-2, 3, likes.shape) / 2
    table[rng.random(table.shape) > 0.25] = np.nan
    table[-1] = table[:, -1] = np.nan
    return Ratings.from_matrix(table)


def suited(name, ratings):
    """The ratings, with times if the order of a history counts for the model."""
    if not model_class(name).uses_order:
        return ratings
    times = np.random.default_rng(2).permutation(ratings.n_ratings)
    return replace(ratings, seconds=times)


@pytest.fixture(scope="module")
def ratings():
    return make_ratings()


@pytest.fixture(scope="module")
def fitted(ratings):
    models = {name: make_model(name).fit(suited(name, ratings)) for name in MODELS}
    return models.__getitem__


@pytest.fixture(scope="module")
def recommender_of(ratings):
    """Return a recommender of a model, fitted once, which no test changes."""
    return cache(lambda name: Recommender(name).fit(suited(name, ratings)))


def item_rows(ratings):
    rows = ratings.matrix.T.tocsr()
    return Histories(
        rows.indptr.astype(np.int64), rows.indices.astype(np.int32), rows.data
    )


def history_of(ratings, user):
    part = slice(ratings.indptr[user], ratings.indptr[user + 1])
    indptr = np.array([0, part.stop - part.start])
    times = None if ratings.seconds is None else ratings.seconds[part]
    return Histories(indptr, ratings.indices[part], ratings.values[part], times)


def assert_same_scores(found, expected):
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)


@those_with(FoldsInUsers)
def test_training_users_folded_in_get_what_the_fit_gave_them(name, ratings, fitted):
    model = fitted(name)
    before = {key: value.copy() for key, value in model._arrays().items()}
    folded = model.with_users(Histories.of(suited(name, ratings)))
    users = np.arange(N_USERS)
    assert_same_scores(folded.scores(users), model.scores(users))
    for key, value in model._arrays().items():
        np.testing.assert_array_equal(value, before[key], err_msg=key)


@those_with(FoldsInUsers)
def test_users_folded_in_do_not_depend_on_one_another(name, ratings, fitted):
    model = fitted(name)
    everyone = model.with_users(Histories.of(suited(name, ratings)))
    for user in (0, 13, N_USERS - 1):
        alone = model.with_users(history_of(suited(name, ratings), user))
        assert (alone.n_users, alone.n_items) == (1, N_ITEMS)
        assert_same_scores(alone.scores([0]), everyone.scores([user]))


@those_with(FoldsInUsers)
def test_a_loaded_model_folds_in(name, ratings, recommender_of, tmp_path):
    recommender = recommender_of(name)
    recommender.save(tmp_path / "model")
    loaded = Recommender.load(tmp_path / "model")
    history = suited(name, ratings).to_frame().filter(pl.col("user") == 7)
    again = loaded.recommend(history=history, n=5)
    assert_same_scores(again["score"], recommender.recommend(7, n=5)["score"])
    if len(set(again["score"])) == 5:
        assert (
            again["item"].to_list() == recommender.recommend(7, n=5)["item"].to_list()
        )


@those_with(FoldsInUsers)
def test_folds_in_no_users(name, fitted):
    nothing = Histories(
        np.zeros(1, np.int64), np.zeros(0, np.int32), np.zeros(0, np.float32)
    )
    folded = fitted(name).with_users(nothing)
    assert folded.n_users == 0
    assert folded.scores([]).shape == (0, N_ITEMS)


@those_with(FoldsInItems)
def test_items_folded_in_can_be_scored(name, ratings, fitted):
    model = fitted(name)
    folded = model.with_items(item_rows(ratings))
    assert (folded.n_users, folded.n_items) == (N_USERS, N_ITEMS)
    scores = folded.scores(np.arange(N_USERS))
    assert np.isfinite(scores).all()
    pair = model.with_items(item_rows(ratings.take(ratings.indices < 2))).scores([3])
    assert_same_scores(pair[:, :2], scores[3:4, :2])


@those_with(FoldsInItems)
def test_new_items_are_recommended_next_to_the_old_ones(name, recommender_of):
    recommender = recommender_of(name)
    before = recommender.recommend(3, n=5)
    rows = {
        "user": [3, 5, 8, 8],
        "item": [97, 98, 97, 99],
        "rating": [4.0, 2.0, 3.0, 5.0],
    }
    new = recommender.fold_in_items(pl.DataFrame(rows))
    assert set(new.recommend(3, n=5)["item"]) == {98, 99}
    assert new.recommend(3, n=5)["score"].is_finite().all()
    assert recommender.recommend(3, n=5).equals(before)
    with pytest.raises(DataError, match="cannot be saved; update"):
        new.save("nowhere")
    if issubclass(model_class(name), Explains):
        with pytest.raises(
            DataError, match="Scores of folded-in items cannot be explained"
        ):
            new.explain(3, 98)


@those_with(Explains)
def test_contributions_add_up_to_the_score(name, ratings, fitted):
    model = fitted(name)
    items = np.arange(N_ITEMS)
    for user in (0, 21, N_USERS - 1):
        history = history_of(suited(name, ratings), user)
        found = model.contributions(history, items)
        assert found.base.shape == (N_ITEMS,)
        assert found.terms.shape == (N_ITEMS, len(history.indices))
        assert found.base.dtype == found.terms.dtype == np.float32
        popularity = 0 if found.popularity is None else found.popularity
        assert_same_scores(
            found.base + popularity + found.terms.sum(axis=1), model.scores([user])[0]
        )


@those_with(Explains)
def test_explanations_through_the_facade_add_up(name, recommender_of):
    recommender = recommender_of(name)
    for n in (None, 1, 3):
        frame = recommender.explain(8, 4, n=n)
        assert_same_scores(
            frame["contribution"].sum(), recommender.model.scores([8])[0, 4]
        )


@pytest.mark.parametrize("name", sorted(set(MODELS) - {"popular", "random"}))
@pytest.mark.parametrize("bad", [-1, N_USERS])
def test_histories_of_unknown_indices_are_rejected(name, bad, fitted):
    model = fitted(name)
    history = Histories(
        np.array([0, 1]), np.array([bad], np.int32), np.ones(1, np.float32)
    )
    for method, what in (
        ("with_users", "item"),
        ("with_items", "user"),
        ("contributions", "item"),
    ):
        if hasattr(model, method):
            more = ([0],) if method == "contributions" else ()
            with pytest.raises(
                (IndexError, DataError), match=f"{what} indices must be|indices of"
            ):
                getattr(model, method)(history, *more)


@those_with(Explains)
def test_contributions_of_an_unknown_item_are_rejected(name, ratings, fitted):
    with pytest.raises(
        IndexError, match="item indices must be between 0 and 29; got 30"
    ):
        fitted(name).contributions(history_of(ratings, 0), [30])


@pytest.mark.parametrize(
    ("ability", "method", "length"),
    [
        (HasItemVectors, "item_vectors", N_ITEMS),
        (HasUserVectors, "user_vectors", N_USERS),
    ],
)
def test_vectors_have_a_row_for_each(ability, method, length, fitted):
    for name in MODELS:
        if issubclass(model_class(name), ability):
            vectors = getattr(fitted(name), method)()
            assert vectors.shape[0] == length
            assert vectors.dtype == np.float32
            assert np.isfinite(vectors).all()


@those_with(HasUserVectors)
def test_users_of_one_taste_are_similar(name):
    likes = np.add.outer(np.arange(60), np.arange(40)) % 2
    table = np.where(likes, 4.5, 1.5) + np.linspace(-0.5, 0.5, 40)
    # What one likes one has more of: some models see nothing else.
    table[np.random.default_rng(3).random(table.shape) < np.where(likes, 0.4, 0.8)] = (
        np.nan
    )
    frame = (
        Recommender(name).fit(Ratings.from_matrix(table)).similar_users(range(60), n=3)
    )
    same = frame.select((pl.col("user") + pl.col("similar")) % 2 == 0).to_series()
    assert same.mean() > 0.9


@those_with(HasUncertainty)
def test_uncertainty_is_positive_and_finite(name, fitted):
    std = fitted(name).predict_std([0, 3, N_USERS - 1], [1, 2, 3])
    assert std.dtype == np.float32
    assert (np.isfinite(std) & (std > 0)).all()


@pytest.mark.parametrize(
    ("ability", "ask", "what"),
    [
        (FoldsInUsers, lambda r: r.recommend(history={1: 3}), "fold in new users"),
        (
            FoldsInItems,
            lambda r: r.fold_in_items(
                pl.DataFrame({"user": [1], "item": [99], "rating": [4]})
            ),
            "fold in new items",
        ),
        (Explains, lambda r: r.explain(1, 1), "explain its scores"),
        (
            HasItemVectors | HasItemSimilarity,
            lambda r: r.similar_items(1),
            "find similar items",
        ),
        (
            HasUncertainty,
            lambda r: r.predict(pl.DataFrame({"user": [1], "item": [1]}), std=True),
            "estimate its uncertainty",
        ),
    ],
)
def test_an_ability_that_a_model_lacks_is_rejected_with_the_models_that_have_it(
    ability, ask, what
):
    able = [name for name in sorted(MODELS) if issubclass(model_class(name), ability)]
    message = (
        f"The random model cannot {what}.*these models can: {', '.join(able) or 'none'}"
    )
    with pytest.raises(DataError, match=message):
        ask(Recommender("random").fit(make_ratings()))


def test_the_table_of_abilities_in_the_guide_is_true():
    guide = Path(__file__).parents[3] / "docs" / "howto" / "models.md"
    table = (
        guide.read_text(encoding="utf-8").split("## Abilities\n\n")[1].split("\n\n")[0]
    )
    rows = [
        [cell.strip() for cell in line.split("|")[1:-1]]
        for line in table.splitlines()[2:]
    ]
    similar = (HasItemVectors, HasItemSimilarity)
    abilities = [
        FoldsInUsers,
        FoldsInItems,
        similar,
        HasUserVectors,
        Explains,
        HasUncertainty,
    ]
    for name, *said in rows:
        able = [issubclass(model_class(name), ability) for ability in abilities]
        assert [cell == "yes" for cell in said] == able, name
    assert {name for name, *_ in rows} == set(MODELS)
