"""Dislikes and impressions: targets of zero, against dense solutions, in all doors."""

import numpy as np
import polars as pl
import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

from recsys import Ratings, Recommender, evaluate, random_split
from recsys.changes import change_of
from recsys.cli.main import cli
from recsys.data.kinds import IMPRESSION
from recsys.errors import DataError
from recsys.models.sequences import sequences_of_events
from recsys.serve.events import checked_events

pytestmark = pytest.mark.usefixtures("one_fold")

WEIGHTS = {"buy": 2.0, "view": 1.0, "dislike": -1.5}


def events(seed, n_users=30, n_items=12, n=260):
    generator = np.random.default_rng(seed)
    kinds = generator.choice(
        ["buy", "view", "dislike", "shown"], n, p=[0.2, 0.4, 0.2, 0.2]
    )
    return pl.DataFrame(
        {
            "user": generator.integers(0, n_users, n),
            "item": generator.integers(0, n_items, n),
            "event": kinds,
            "timestamp": 1_700_000_000 + generator.permutation(n) * 1000,
        }
    )


def read(frame, **options):
    return Ratings.from_frame(
        frame, event_weights=WEIGHTS, impressions="shown", **options
    )


def totals_of(frame):
    """Return the weight of each pair, and the pairs that are zeros with confidences."""
    weights = {**WEIGHTS, "shown": 0.0}
    pairs = {}
    for row in frame.to_dicts():
        pairs.setdefault((row["user"], row["item"]), []).append(row["event"])
    positive = {}
    zeros = {}
    for pair, kinds in pairs.items():
        total = sum(weights[kind] for kind in kinds)
        if total > 0:
            positive[pair] = total
        elif "dislike" in kinds:
            zeros[pair] = max(-total, IMPRESSION)
        else:
            zeros[pair] = IMPRESSION
    return positive, zeros


def pairs_of(ratings, csr):
    users = np.repeat(np.arange(ratings.n_users), np.diff(csr.indptr))
    ids = zip(ratings.users.take(users), ratings.items.take(csr.indices), strict=True)
    return dict(zip(ids, csr.values.at().tolist(), strict=True))


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10**6))
def test_zeros_equal_brute_force(seed):
    frame = events(seed)
    ratings = read(frame)
    positive, zeros = totals_of(frame)
    found = pairs_of(ratings, ratings.zeros)
    assert found.keys() == zeros.keys()
    for pair, confidence in zeros.items():
        assert found[pair] == pytest.approx(confidence, rel=1e-6)
    users = ratings.users.take(ratings.user_index_of_nonzeros())
    items = ratings.items.take(ratings.indices)
    pairs = zip(users, items, strict=True)
    found = dict(zip(pairs, ratings.values, strict=True))
    assert found == pytest.approx(positive)


@settings(max_examples=10, deadline=None)
@given(st.integers(0, 10**6), st.booleans())
def test_ials_solves_the_weighted_ridge_regression(seed, nonnegative):
    frame = events(seed)
    ratings = read(frame)
    model = (
        Recommender(
            "ials",
            factors=6,
            regularization=0.05,
            unobserved_weight=0.1,
            iterations=4,
            nonnegative=nonnegative,
        )
        .fit(ratings)
        .model
    )
    positive, zeros = totals_of(frame)
    unit = np.mean([*positive.values()])
    items = model.item_factors.astype(np.float64)
    for user in range(ratings.n_users):
        name = ratings.users.values[user]
        system = 0.1 * items.T @ items
        right = np.zeros(6)
        total = 0.1 * ratings.n_items
        for (owner, item), weight in [*positive.items(), *zeros.items()]:
            if owner != name:
                continue
            row = items[ratings.items.index([item])[0]]
            system += weight / unit * np.outer(row, row)
            total += weight / unit
            if (owner, item) in positive:
                right += weight / unit * row
        system += 0.05 * total * np.eye(6)
        solved = model.user_factors[user].astype(np.float64)
        gradient = system @ solved - right
        if nonnegative:
            assert (solved >= 0).all()
            assert np.abs(gradient[solved > 1e-6]).max(initial=0) < 1e-3
            assert (gradient > -1e-3).all()
        else:
            assert np.abs(gradient).max() < 1e-3


def test_next_adds_dislikes_to_the_regression():
    frame = events(3, n=400)
    options = {"decay": 2.0, "neighbors": 0, "item_power": 0.0, "regularization": 2.0}
    ratings = read(frame)
    model = Recommender("next", **options).fit(ratings).model
    plain = (
        Recommender("next", **options)
        .fit(read(frame.filter(pl.col("event") != "dislike")))
        .model
    )
    sequences = sequences_of_events(ratings)
    n_items = ratings.n_items
    gamma = np.exp(-1 / 2.0)
    gram = np.zeros((n_items, n_items))
    products = np.zeros((n_items, n_items))
    latest = np.zeros((ratings.n_users, n_items))
    for user in range(ratings.n_users):
        source = np.zeros(n_items)
        for place in range(sequences.indptr[user], sequences.indptr[user + 1]):
            target = np.zeros(n_items)
            target[sequences.items[place]] = sequences.weights[place]
            gram += np.outer(source, source)
            products += np.outer(source, target)
            source = gamma * (source + target)
        latest[user] = source
    disliked = ratings.disliked
    users = np.repeat(np.arange(ratings.n_users), np.diff(disliked.indptr))
    confidence = disliked.values.at() / model.unit
    for user, item, c in zip(users, disliked.indices, confidence, strict=True):
        products[:, item] -= c * latest[user]
    expected = np.linalg.solve(gram + 2.0 * np.eye(n_items), products)
    weights = model._weights.toarray()[:n_items]
    error = np.abs(weights - expected).max()
    effect = np.abs(weights - plain._weights.toarray()[:n_items]).max()
    # Sums over distant places are cut off.
    assert error < 5e-3 < effect / 10


def test_bayes_takes_dislikes_as_grades_of_zero():
    frame = events(5, n=400)
    fitted = Recommender("bayes", factors=4).fit(read(frame))
    positive, zeros = totals_of(frame)
    disliked = {pair for pair, c in zeros.items() if c > IMPRESSION}
    grades = dict.fromkeys(positive, 1.0) | dict.fromkeys(disliked, 0.0)
    users = fitted.ratings.users.take(fitted.ratings.user_index_of_nonzeros())
    items = fitted.ratings.items.take(fitted.ratings.indices)
    pairs = zip(users, items, strict=True)
    found = dict(zip(pairs, fitted.ratings.values.tolist(), strict=True))
    assert found == grades
    rows = [(u, i, g) for (u, i), g in grades.items()]
    plain = pl.DataFrame(rows, schema=["user", "item", "rating"], orient="row")
    reference = Recommender("bayes", factors=4, time=False).fit(
        Ratings.from_frame(plain, scale=(0, 1))
    )
    timeless = Recommender("bayes", factors=4, time=False).fit(read(frame))
    user, item = rows[0][:2]
    one = timeless.predict(pl.DataFrame({"user": [user], "item": [item]}))
    other = reference.predict(pl.DataFrame({"user": [user], "item": [item]}))
    assert one["prediction"][0] == pytest.approx(other["prediction"][0], rel=1e-4)


def test_popular_divides_by_exposures():
    frame = events(7, n=500)
    model = Recommender("popular", damping=3.0).fit(read(frame)).model
    positive, zeros = totals_of(frame)
    mean = sum(positive.values()) / (len(positive) + len(zeros))
    for index, item in enumerate(read(frame).items.values):
        weight = sum(w for (_, i), w in positive.items() if i == item)
        shown = sum(1 for _, i in [*positive, *zeros] if i == item)
        expected = (weight + 3.0 * mean) / (shown + 3.0)
        assert model.item_counts[index] == pytest.approx(expected, rel=1e-5)


MODELS = [
    *("ials", "next", "bayes", "popular", "ease", "spectral", "als", "bias"),
    *("implicit-als", "random", "clusters", "softimpute", "sparse-ease"),
]


@pytest.fixture(scope="module")
def frame():
    return events(11, n=500)


@pytest.mark.parametrize("name", MODELS)
def test_no_model_recommends_a_disliked_item(name, frame, tmp_path):
    _, zeros = totals_of(frame)
    disliked = {pair for pair, c in zeros.items() if c > IMPRESSION}
    recommender = Recommender(name).fit(read(frame))
    recommender.save(tmp_path / "model")
    loaded = Recommender.load(tmp_path / "model")
    for fitted in (recommender, loaded):
        for options in ({}, {"exclude_seen": False}):
            lists = fitted.recommend(n=12, **options)
            pairs = set(lists.select("user", "item").iter_rows())
            assert pairs
            assert not pairs & disliked
    shown = {pair for pair, c in zeros.items() if c == np.float32(IMPRESSION)}
    if name not in ("random",):
        assert pairs & shown
    assert loaded.ratings.zeros.indices.tolist() == (
        recommender.ratings.zeros.indices.tolist()
    )


@pytest.mark.parametrize("name", ["ials", "next", "popular", "bayes", "als"])
def test_an_update_equals_a_fit_to_all_events(name, frame):
    first, second = frame.head(400), frame.tail(100)
    recommender = Recommender(name).fit(read(first))
    updated = recommender.update(read(second), refit=True)
    fitted = Recommender(name).fit(read(frame))
    one, other = updated.ratings, fitted.ratings
    assert one.zeros.indices.tolist() == other.zeros.indices.tolist()
    assert one.zeros.values.at().tolist() == other.zeros.values.at().tolist()
    for key, array in fitted.model._arrays().items():
        assert np.array_equal(updated.model._arrays()[key], array), key


def test_a_dislike_alone_changes_the_user(frame):
    recommender = Recommender("ials", factors=6).fit(read(frame))
    user = int(frame["user"][0])
    listed = recommender.recommend(user, n=3)["item"].to_list()
    dislike = pl.DataFrame(
        {
            "user": [user],
            "item": listed[:1],
            "event": ["dislike"],
            "timestamp": [1_750_000_000],
        }
    )
    updated = recommender.update(read(dislike), refit=False)
    assert listed[0] not in updated.recommend(user, n=12)["item"].to_list()
    at = recommender.ratings.users.index([user])[0]
    before, after = recommender.model.user_factors[at], updated.model.user_factors[at]
    assert not np.array_equal(before, after)
    # A user with the same history who is folded in later has the same vector.
    history = pl.concat([frame.filter(pl.col("user") == user), dislike])
    folded = updated.fold_in(history.with_columns(user=pl.lit("x")))
    assert np.array_equal(folded.model.user_factors[0], after)


def test_forgetting_removes_dislikes(frame):
    recommender = Recommender("ials", factors=6).fit(read(frame))
    user = int(frame.filter(pl.col("event") == "dislike")["user"][0])
    forgotten = recommender.update(forget=[user], refit=True)
    others = Recommender("ials", factors=6).fit(
        read(frame.filter(pl.col("user") != user))
    )
    assert np.array_equal(forgotten.model.item_factors, others.model.item_factors)
    assert forgotten.ratings.zeros.indices.tolist() == (
        others.ratings.zeros.indices.tolist()
    )


def test_forgetting_a_user_with_dislikes_changes_no_other_user(frame):
    user = int(frame.filter(pl.col("event") == "dislike")["user"][0])
    change = change_of(read(frame), forget=[user])
    assert change.users.tolist().count(-1) == 1
    assert change.changed_users.tolist() == []


def test_explanations_add_up_with_dislikes(frame):
    recommender = Recommender("ials", factors=6).fit(read(frame))
    disliker = int(frame.filter(pl.col("event") == "dislike")["user"][0])
    item = recommender.recommend(disliker, n=1)["item"][0]
    explanation = recommender.explain(disliker, item)
    score = recommender.recommend(disliker, n=1)["score"][0]
    total = explanation["contribution"].sum()
    assert total == pytest.approx(score, abs=1e-5)


@pytest.mark.parametrize("options", [{}, {"exclude_seen": False}, {"fill": "popular"}])
def test_new_users_do_not_get_what_they_dislike(frame, options):
    recommender = Recommender("ials", factors=6).fit(read(frame))
    item = int(recommender.recommend(int(frame["user"][0]), n=1)["item"][0])
    other = int(frame.filter(pl.col("item") != item)["item"][0])
    history = pl.DataFrame(
        {
            "user": ["x", "x"],
            "item": [other, item],
            "event": ["view", "dislike"],
            "timestamp": [1_700_000_000, 1_700_000_001],
        }
    )
    lists = recommender.recommend(n=12, history=history, **options)
    assert len(lists)
    assert item not in lists["item"].to_list()


def test_impressions_need_a_column_of_events():
    plain = pl.DataFrame({"user": [1, 2], "item": [1, 2]})
    with pytest.raises(DataError, match="need a column of events"):
        Ratings.from_frame(plain, impressions="shown")


def test_metrics_of_a_random_split_keep_dislikes_in_training(frame):
    split = random_split(read(frame), 0.2, random_state=1)
    assert len(split.train.zeros.indices) == len(read(frame).zeros.indices)
    found = evaluate(["ials", "als"], split, 3, metrics=["recall"], resamples=0)
    assert found.table["recall@3"].is_not_null().all()


def test_the_command_names_models_that_do_not_use_dislikes(frame, tmp_path):
    frame.write_csv(tmp_path / "events.csv")
    words = ["--event-weight", "buy=2,view=1,dislike=-1", "--impressions", "shown"]
    command = ["fit", str(tmp_path / "events.csv"), "--out", str(tmp_path / "m")]
    for name, message in (
        ("ease", "ease does not use dislikes and impressions"),
        ("als", "likes are grades of 1 and dislikes of 0 for als"),
        ("ials", "disliked pairs and"),
    ):
        result = CliRunner().invoke(cli, [*command, "--force", "--model", name, *words])
        assert result.exit_code == 0
        assert message in result.stderr
    update = ["update", command[3], command[1], "--out", command[3], "--force"]
    assert CliRunner().invoke(cli, update).exit_code == 0
    spark = [*command, "--force", "--engine", "spark", "--model", "ials", *words]
    result = CliRunner().invoke(cli, spark)
    assert "does not apply to --engine spark; write the weight of each" in result.stderr


def test_the_service_takes_dislikes(frame):
    recommender = Recommender("ials", factors=6).fit(read(frame))
    user = int(frame["user"][0])
    item = int(recommender.recommend(user, n=1)["item"][0])
    events = [
        {"user": user, "item": item, "event": kind, "value": None}
        for kind in ("dislike", "shown")
    ]
    checked = checked_events(events, recommender)
    assert [row["event"] for row in checked] == ["dislike", "shown"]


def test_a_dislike_may_be_the_newest_event(frame):
    user = int(frame["user"][0])
    dislike = frame.head(1).with_columns(
        event=pl.lit("dislike"), timestamp=pl.lit(1_701_000_000, pl.Int64)
    )
    aged = pl.concat([frame, dislike])
    ratings = read(aged, half_life="2d")
    recommender = Recommender("ials", factors=6).fit(ratings)
    history = aged.filter(pl.col("user") == user).with_columns(user=pl.lit("x"))
    folded = recommender.fold_in(history)
    at = ratings.users.index([user])[0]
    expected = recommender.model.user_factors[at]
    assert folded.model.user_factors[0] == pytest.approx(expected, rel=1e-4, abs=1e-7)
