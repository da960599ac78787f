"""Bayesian factorization: intervals, drifts of biases in time, and what users see of them."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
import polars as pl
import pytest

from lowrank import kernels
from recsys import Recommender
from recsys.data.ratings import Ratings
from recsys.errors import DataError
from recsys.evaluation.experiment import evaluate
from recsys.evaluation.splits import random_split
from recsys.models.base import predicted_ratings
from recsys.models.bayes import Bayes
from recsys.models.histories import Histories
from recsys.ranking.topn import top_n

CUTS = np.array([1.5, 2.8, 3.2, 3.6])  # far from even
HOUR = 3600
FAST = {"factors": 4, "linked": False}


@cache
def stars(n=120, m=60, seed=0, *, moods=False, density=0.35):
    """Return ratings from 1 to 5 of latent numbers; with moods, those of one hour go together."""
    rng = np.random.default_rng(seed)
    latent = 3 + 0.8 * rng.normal(size=(n, 2)) @ rng.normal(size=(2, m)) / 2**0.5
    latent += 0.4 * rng.normal(size=(n, 1)) + 0.4 * rng.normal(size=m)
    users, items = np.nonzero(rng.random((n, m)) < density)
    hours = rng.integers(0, 8, len(users))
    seconds = hours * 30 * HOUR + rng.integers(0, HOUR // 4, len(users))
    found = latent[users, items] + 0.5 * rng.normal(size=len(users))
    if moods:
        found += 0.8 * rng.normal(size=(n, 8))[users, hours]
    frame = {"user": users, "item": items, "rating": np.searchsorted(CUTS, found) + 1.0}
    return Ratings.from_frame(pl.DataFrame(frame | {"timestamp": seconds}))


@cache
def fitted(*, moods=True, time=True):
    ratings = stars(moods=moods)
    return Bayes(**FAST, time=time).fit(ratings), ratings


def rmse(model, test):
    return float(np.sqrt(np.mean((predicted_ratings(model, test) - test.values) ** 2)))


def parts(model, ratings, user, item):
    own = Histories.of(ratings).take(np.array([user]))
    found = model.contributions(own, [item])
    return found.base[0] + found.terms[0].sum()


def test_intervals_and_deviations_of_pairs():
    model, ratings = fitted()
    users, items = np.arange(60), np.arange(60)
    low, high = model.predict_interval(users, items)
    assert (low < high).all()
    for level in (-0.1, 0, 1, 1.5, float("nan")):
        with pytest.raises(
            DataError, match=f"level must be between 0 and 1; got {level}"
        ):
            model.predict_interval(users, items, level)
    assert (model.predict_std(users, items) > 0).all()
    test = ratings.take(np.arange(0, ratings.n_ratings, 7))
    assert rmse(model, test) < 1


def test_recommendations_have_the_scores_of_pairs_with_and_without_the_compiled_search():
    model, _ = fitted()
    before, found = kernels.backend().name, []
    for name in {"reference", before}:
        kernels.use("reference" if name == "reference" else kernels.supported()[-1])
        (top,) = top_n(model, np.arange(20), 5)
        found.append(top)
        np.testing.assert_allclose(
            top.scores, model.pair_scores(top.rows, top.items), rtol=1e-5
        )
    kernels.use(kernels.supported()[-1])
    for top in found:
        np.testing.assert_array_equal(top.items, found[0].items)


def test_contributions_add_up_to_the_prediction():
    model, ratings = fitted()
    for user, item in ((3, 5), (40, 17)):
        assert parts(model, ratings, user, item) == pytest.approx(
            model.predict([user], [item])[0], abs=1e-4
        )


def test_users_of_the_fit_are_folded_in_as_they_are():
    model, ratings = fitted()
    rows = np.array([7, 3])
    histories = Histories.of(ratings).take(rows)
    folded = model.with_users(histories)
    np.testing.assert_array_equal(folded.user_factors, model.user_factors[rows])
    items, times = np.array([4, 9]), ratings.timestamps[ratings.indptr[rows]]
    np.testing.assert_allclose(
        folded.predict([0, 1], items, times),
        model.predict(rows, items, times),
        rtol=1e-5,
    )
    untimed = model.with_users(replace(histories, times=None))
    np.testing.assert_allclose(
        untimed.predict([0, 1], items), model.predict(rows, items), atol=0.05
    )


def test_moods_are_found_and_help_predictions_for_a_time():
    train, test = random_split(stars(n=300, moods=True), 0.2, random_state=1)
    errors = {}
    for time in (True, False):
        model = Bayes(**FAST, time=time).fit(train)
        errors[time] = rmse(model, test)
        assert model.uses_times is time
    assert errors[True] < 0.95 * errors[False]
    model = Bayes(**FAST).fit(train)
    assert model.remarks[-1].startswith("time: biases drift, those of users for")


def test_predictions_without_time_equal_a_model_without_times():
    model, ratings = fitted()
    without, _ = fitted(time=False)
    pairs = ratings.user_index_of_nonzeros(), ratings.indices
    assert model.uses_times
    np.testing.assert_array_equal(model.predict(*pairs), without.predict(*pairs))
    np.testing.assert_array_equal(
        model.predict_std(*pairs), without.predict_std(*pairs)
    )


def test_a_mood_passes():
    model, ratings = fitted()
    biases = model.time_biases.users
    user = int(np.argmax(np.abs(biases.means[biases.starts])))
    last = ratings.timestamps.max()
    near, far, none = (
        model.predict([user], [0], times=time)[0]
        for time in (
            biases.times[biases.starts[user]],
            last + 10**7,
            None,
        )
    )
    assert abs(near - far) > 0.05
    assert far == pytest.approx(none, abs=1e-3)
    assert model.predict_std([user], [0], times=last + 10**7) > model.predict_std(
        [user], [0], times=biases.times[biases.starts[user]]
    )


def test_times_without_effect_leave_no_drift():
    model = Bayes(**FAST).fit(stars())
    assert not model.uses_times
    same = replace(stars(), seconds=np.zeros(stars().n_ratings, np.int32))
    assert not Bayes(**FAST).fit(same).uses_times


@pytest.mark.parametrize("moods", [True, False])
def test_intervals_hold_what_they_say(moods):
    """Nine of ten held-out ratings, whether by the ends or by standard deviations."""
    train, test = random_split(stars(n=300, moods=moods), 0.2, random_state=2)
    model = Bayes(**FAST).fit(train)
    given = test.user_index_of_nonzeros(), test.indices
    low, high = model.predict_interval(*given, times=test.timestamps)
    assert 0.86 < np.mean((low <= test.values) & (test.values <= high)) < 0.94
    off = np.abs(predicted_ratings(model, test) - test.values)
    assert (
        0.85
        < np.mean(off < 1.645 * model.predict_std(*given, times=test.timestamps))
        < 0.96
    )


def test_saved_models_predict_for_times(tmp_path):
    """And so do users, and items, whose histories have times."""
    frame = stars(moods=True).to_frame()
    recommender = Recommender("bayes", **FAST).fit(frame)
    for side, fold in (
        ("user", recommender.fold_in),
        ("item", recommender.fold_in_items),
    ):
        own = frame.filter(pl.col(side) == frame[side][0])
        expected = recommender.predict(own)["prediction"].to_numpy()
        folded = fold(own).predict(own)["prediction"].to_numpy()
        np.testing.assert_allclose(
            folded, expected, atol=1e-3 if side == "user" else 0.3
        )
        untimed = fold(own.drop("timestamp")).predict(own)["prediction"].to_numpy()
        assert side == "item" or np.abs(untimed - expected).max() > 0.05
    recommender.save(tmp_path / "model")
    again = Recommender.load(tmp_path / "model")
    pairs = frame.head(20).select("user", "item", "timestamp")
    expected = recommender.predict(pairs, std=True)
    assert again.predict(pairs, std=True).equals(expected)
    assert not again.predict(pairs.drop("timestamp"), std=True).equals(expected)
    assert "time: biases drift" in again.training["remarks"]
    explained = again.explain(frame["user"][0], frame["item"][3])
    predicted = again.predict(frame["user"][0], frame["item"][3])
    of_prediction = explained.filter(pl.col("part") != "popularity")[
        "contribution"
    ].sum()
    assert of_prediction == pytest.approx(predicted, abs=1e-3)


@pytest.mark.parametrize("moods", [True, False])
def test_new_users_and_items_are_folded_in_whether_or_not_biases_drift(moods):
    model, ratings = fitted(moods=moods)
    assert model.uses_times is moods
    recommender = Recommender(model)
    recommender._restored(ratings, {})
    items = ratings.items.values.to_list()
    assert recommender.recommend(history={items[3]: 5, items[8]: 1}, n=4).height == 4
    rated = Histories.of(ratings).take(np.arange(3))
    raters = Histories(*kernels.csr_arrays(ratings.matrix.T.tocsr())).take(np.arange(2))
    for new in (model.with_users(rated), model.with_users(replace(rated, times=None))):
        assert (new.n_users, new.n_items) == (3, model.n_items)
        assert new.uses_times is moods
        again = new.with_users(rated).predict([0, 1], [4, 4], 0)
        np.testing.assert_array_equal(
            again, model.with_users(rated).predict([0, 1], [4, 4], 0)
        )
        assert new.predict_std([2], [4]) == pytest.approx(
            model.predict_std([2], [4]), rel=0.02
        )
    new = model.with_items(raters)
    assert (new.n_users, new.n_items) == (model.n_users, 2)
    assert new.uses_times is moods


@pytest.mark.parametrize("moods", [True, False])
def test_updated_models_predict_for_times(moods, tmp_path):
    """Those who rated anew as if folded in, others about as before; the forgotten leave nothing."""
    whole = stars(moods=moods).to_frame()
    users = whole["user"].unique(maintain_order=True)
    late, gone = users[:3], users[5]
    is_late = pl.col("user").is_in(late.implode())
    old = Recommender("bayes", **FAST).fit(whole.filter(~is_late))
    found = old.update(whole.filter(is_late), forget=[gone], refit=False)
    found.save(tmp_path / "model")
    new = Recommender.load(tmp_path / "model")
    assert new.model.uses_times is old.model.uses_times is moods
    rows = new.ratings.users.find(late)
    times = new.ratings.timestamps[new.ratings.indptr[rows]]
    folded = new.model.with_users(Histories.of(new.ratings).take(rows))
    items = np.array([4, 9, 2])
    np.testing.assert_array_equal(
        new.model.predict(rows, items, times), folded.predict([0, 1, 2], items, times)
    )
    stayed = whole.filter(~is_late & (pl.col("user") != gone)).head(40)
    np.testing.assert_allclose(new.predict(stayed), old.predict(stayed), atol=0.2)
    if moods:
        knots = new.model.time_biases.users.knots
        before = old.model.time_biases.users.knots
        assert len(knots.times) == knots.counts.sum()
        place, there = (
            new.ratings.users.find(users[9:10]),
            old.ratings.users.find(users[9:10]),
        )
        at = stayed["timestamp"].to_numpy()[:1].astype(np.int64)
        assert knots.at(place, at)[0] == pytest.approx(
            before.at(there, at)[0], abs=0.05
        )
        assert knots.counts[rows].min() > 0
        assert gone not in new.ratings.users.values.to_list()


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("noise_variance", np.zeros(2), r"must have shape \(\)"),
        ("time_biases_users_starts", None, "must hold indices of knots"),
        ("time_biases_items_counts", None, "must hold indices of knots"),
    ],
)
def test_damaged_arrays_are_rejected(name, value, message):
    model, _ = fitted()
    arrays = model._arrays()
    arrays[name] = arrays[name] + 10**6 if value is None else value
    with pytest.raises(DataError, match=message):
        Bayes._from_arrays(model.get_params(), arrays)


def test_an_evaluation_says_who_knew_times():
    split = random_split(stars(moods=True), 0.2, random_state=0)
    models = {"bayes": Bayes(**FAST), "without": Bayes(**FAST, time=False)}
    found = evaluate(models, split, metrics=["rmse"], resamples=0)
    assert found.timed == ("bayes",)
    assert found.held_out.endswith(
        "; times of test ratings, and later ratings known to bayes"
    )
