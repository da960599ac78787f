"""Chances of items in lists: calibrated on held-out ratings, in all doors."""

import json
import time

import msgspec
import numpy as np
import polars as pl
import pytest
from click.testing import CliRunner

import recsys
from recsys import Recommender, calibrate, evaluate, html_report, random_split
from recsys.cli.main import cli
from recsys.errors import DataError
from recsys.ranking.chance import Chances
from recsys.ranking.topn import TopN

pytestmark = pytest.mark.usefixtures("one_fold")
N_ITEMS = 40
PLANTED = 0.8 / np.arange(1, N_ITEMS + 1)  # chance of each item, the same for all users


@pytest.fixture(scope="module")
def interactions():
    rng = np.random.default_rng(4)
    taken = rng.random((3000, N_ITEMS)) < PLANTED
    users, items = np.nonzero(taken)
    return pl.DataFrame({"user": users, "item": items})


@pytest.fixture(scope="module")
def calibrated(interactions):
    return calibrate(Recommender("popular").fit(interactions))


def top_of(scores):
    n_lists, n = scores.shape
    ranks = np.tile(np.arange(1, n + 1, dtype=np.int32), n_lists)
    rows = np.repeat(np.arange(n_lists), n)
    return TopN(rows, np.zeros(rows.shape, np.int32), ranks, scores.ravel())


@pytest.mark.parametrize("by", ["score", "rank"])
def test_recovers_planted_chances(by):
    rng = np.random.default_rng(0)
    scores = -np.sort(-rng.normal(size=(4000, 10)).astype(np.float32), axis=1)
    planted = 1 / (1 + np.exp(1 - scores))
    if by == "rank":
        planted = np.broadcast_to(0.6 / np.arange(1, 11), scores.shape)
    chances = Chances.fit(scores, rng.random(scores.shape) < planted)
    assert chances.by == by
    error = chances.of(top_of(scores)) - planted.ravel()
    assert np.abs(error).mean() < 0.01


def test_chances_never_fall_with_the_score():
    rng = np.random.default_rng(1)
    scores = -np.sort(-rng.random((300, 5)).astype(np.float32), axis=1)
    chances = Chances.fit(scores, rng.random(scores.shape) < scores / 2)
    assert (np.diff(chances.points) > 0).all()
    assert (np.diff(chances.values) >= 0).all()


def test_lucky_list_does_not_make_a_chance_of_one():
    scores = np.linspace(1, 0, 200, dtype=np.float32)[:, None]
    hits = np.zeros((200, 1), bool)
    hits[0] = True
    assert max(Chances.fit(scores, hits).values) < 0.05


def test_chances_equal_the_frequencies_of_held_out_items(calibrated, interactions):
    split = random_split(interactions, 0.1, random_state=0)
    held_out = split.test.matrix.toarray() > 0
    unseen = split.train.matrix.toarray() == 0
    users = held_out.any(axis=1)
    n_listed = unseen[users].sum(axis=0)
    frequencies = held_out[users].sum(axis=0) / n_listed
    counts = split.train.counts("item").astype(np.float32)
    chances = calibrated.chances.of(top_of(counts[None]))
    assert np.average(np.abs(chances - frequencies), weights=n_listed) < 0.01
    assert chances.max() == pytest.approx(frequencies.max(), rel=0.2)


def returning(seed, n_users=500, n_items=80, n_weeks=12):
    """Return what users take who come back in two of five weeks, by one popularity."""
    rng = np.random.default_rng(seed)
    popularity = rng.normal(size=n_items)
    taken = np.zeros((n_users, n_items), bool)
    rows = []
    for week in range(n_weeks):
        for user in np.flatnonzero(rng.random(n_users) < 0.4):
            scores = np.where(taken[user], -np.inf, popularity)
            items = np.argsort(-scores - rng.gumbel(size=n_items))[:2]
            taken[user, items] = True
            time = 1_600_000_000 + 604_800 * week + int(rng.integers(604_800))
            rows += [(user, item, time) for item in items]
    return pl.DataFrame(rows, schema=["user", "item", "timestamp"], orient="row")


def test_chances_hold_in_the_next_window():
    ratios = []
    for seed in range(4):
        events = returning(seed)
        weeks = (events["timestamp"] - 1_600_000_000) // 604_800
        train = events.filter(weeks < 10)
        later = events.filter(weeks == 10).select("user", "item")
        model = calibrate(Recommender("popular").fit(train))
        later = later.filter(pl.col("user").is_in(train["user"].unique().implode()))
        users = later["user"].unique().to_list()
        lists = model.recommend(users, n=10, chance=True)
        n_taken = len(lists.join(later, on=["user", "item"]))
        ratios.append(n_taken / lists["chance"].sum())
    assert np.mean(ratios) == pytest.approx(1, abs=0.15)


def test_chances_follow_the_scale_of_the_scores():
    rng = np.random.default_rng(0)
    scores = -np.sort(-rng.random((400, 10)).astype(np.float32), axis=1)
    chances = Chances.fit(scores, rng.random(scores.shape) < scores / 2)
    before = scores.ravel()
    scaled = chances.rescaled(before, 3 * before)
    expected = chances.of(top_of(scores))
    assert scaled.of(top_of(3 * scores)) == pytest.approx(expected, abs=1e-3)


def test_the_command_says_for_how_long_chances_are(tmp_path):
    returning(0).write_csv(tmp_path / "log.csv")
    fit = ["fit", str(tmp_path / "log.csv"), "--model", "popular", "--chance"]
    model = str(tmp_path / "model")
    result = CliRunner().invoke(cli, [*fit, "--out", model])
    assert result.exit_code == 0, result.output
    lists = CliRunner().invoke(cli, ["recommend", model, "--user", "1", "--chance"])
    for said in (result.stderr, lists.stderr):
        assert "for a user who comes back" in said
        assert " days), of " in said


def test_lists_have_chances_and_a_least_chance(calibrated):
    lists = calibrated.recommend([1, 2], n=8, chance=True)
    assert lists.columns == ["user", "item", "rank", "score", "chance"]
    assert lists["chance"].dtype == pl.Float32
    least = float(lists["chance"].sort()[8])
    chosen = calibrated.recommend([1, 2], n=8, at_least=least)
    assert chosen.equals(lists.filter(pl.col("chance") >= least))
    assert 0 < len(chosen) < len(lists)
    assert "chance" not in calibrated.recommend(1).columns


def test_unknown_users_have_no_chances(calibrated):
    lists = calibrated.recommend([1, -5], n=3, chance=True, cold_start="popular")
    assert lists.filter(user=-5)["chance"].null_count() == 3
    assert lists.filter(user=1)["chance"].null_count() == 0


def test_chances_are_saved_and_kept_by_updates(calibrated, interactions, tmp_path):
    calibrated.save(tmp_path / "model")
    loaded = Recommender.load(tmp_path / "model")
    expected = calibrated.recommend(1, chance=True)
    assert loaded.recommend(1, chance=True).equals(expected)
    updated = loaded.update(pl.DataFrame({"user": [1], "item": [39]}))
    assert updated.recommend(1, chance=True)["chance"].null_count() == 0


def test_new_users_have_chances(calibrated):
    lists = calibrated.recommend(history=[0, 5], n=3, chance=True)
    assert lists["chance"].null_count() == 0


def test_a_model_without_chances_says_how_to_get_them(interactions):
    recommender = Recommender("popular").fit(interactions)
    for options in ({"chance": True}, {"at_least": 0.1}):
        with pytest.raises(DataError, match=r"`recsys fit --chance`.*calibrate\("):
            recommender.recommend(1, **options)
    with pytest.raises(DataError, match="at_least must be a number from 0 to 1"):
        recommender.recommend(1, at_least=2)


@pytest.mark.parametrize("model", ["ease", "als", "blend", "next", "bias", "auto"])
def test_models_are_calibrated(model):
    ratings = recsys.read_ratings(recsys.sample_path())
    users = np.flatnonzero(ratings.counts("user") > 20)[:80]
    few = ratings.to_frame().filter(
        pl.col("user").is_in(ratings.users.take(users).implode())
    )
    recommender = calibrate(Recommender(model).fit(few))
    chances = recommender.recommend(n=100, chance=True)["chance"]
    assert chances.is_between(0, 1).all()
    assert chances.max() > chances.min()


def test_evaluations_have_the_reliability(interactions):
    split = random_split(interactions, 0.3, random_state=1)
    found = evaluate("popular", split, n=10, metrics=["ndcg"])
    bins = found.reliability
    assert bins["count"].sum() == 10 * found.counts["users_evaluated"]
    held = bins.filter(
        (pl.col("low") - 0.01 <= pl.col("chance"))
        & (pl.col("chance") <= pl.col("high") + 0.01)
    )
    assert len(held) >= 8
    assert 'aria-label="Share of the listed items that are taken"' in html_report(found)


def test_command_and_service_have_chances(interactions, tmp_path):
    interactions.write_csv(tmp_path / "log.csv")
    model = str(tmp_path / "model")
    words = ["fit", str(tmp_path / "log.csv"), "--model", "popular", "--chance"]
    fitted = CliRunner().invoke(cli, [*words, "--out", model])
    assert "chances by" in fitted.stderr, fitted.stderr
    words = ["recommend", model, "--user", "7", "--at-least", "0.02", "--json"]
    rows = json.loads(CliRunner().invoke(cli, words).stdout)["rows"]
    assert all(row["chance"] >= 0.02 for row in rows)
    words = ["recommend", model, "--user", "7", "--at-least", "1"]
    assert "or has a chance below 1" in CliRunner().invoke(cli, words).stderr

    testclient = pytest.importorskip("starlette.testclient")
    from recsys.serve import create_app

    with testclient.TestClient(create_app(model, index=None)) as client:
        while client.get("/health/ready").status_code != 200:
            time.sleep(0.05)
        answer = client.get("/v1/recommend/7", params={"at_least": 0.02}).json()
    assert [row["item"] for row in answer["items"]] == [
        str(row["item"]) for row in rows
    ]
    assert answer["items"][0]["chance"] == pytest.approx(rows[0]["chance"], rel=1e-4)


def test_ratings_are_calibrated_on_the_way(interactions, tmp_path):
    interactions.write_csv(tmp_path / "log.csv")
    words = [
        "recommend",
        str(tmp_path / "log.csv"),
        "--model",
        "popular",
        "--user",
        "7",
    ]
    result = CliRunner().invoke(cli, [*words, "--chance", "--json"])
    assert all(row["chance"] > 0 for row in json.loads(result.stdout)["rows"])


def test_a_single_list_has_no_reliability():
    few = pl.DataFrame({"user": [1, 1, 2, 2], "item": [1, 2, 1, 3]})
    found = evaluate("popular", random_split(few, 0.3), n=2, resamples=0)
    assert (
        found.reliability.is_empty() or found.reliability["chance"].is_not_nan().all()
    )


@pytest.mark.parametrize(
    "damage", [{"values": [2.0, 0.1]}, {"points": [3.0, 1.0]}, {"points": [1.0]}]
)
def test_rejects_damaged_chances(damage):
    entry = {"by": "score", "users": 1, "held_out": "", "points": [1.0, 2.0]}
    entry |= {"values": [0.1, 0.2]} | damage
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert(entry, Chances)


def test_rejects_a_calibration_of_something_else(interactions):
    recommender = Recommender("popular").fit(interactions)
    folds = recsys.k_fold(recommender.ratings, 2)
    for arguments in ((recommender, folds), (recommender, []), ("popular",)):
        with pytest.raises(
            DataError, match="a fitted Recommender, and perhaps a Split"
        ):
            calibrate(*arguments)
    with pytest.raises(DataError, match="n must be a whole number; got 'ten'"):
        calibrate(recommender, n="ten")
