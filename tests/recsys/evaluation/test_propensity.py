"""Metrics corrected for exposure, against brute force and a simulation with known exposure."""

import json

import numpy as np
import polars as pl
import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

from recsys import Ratings, Recommender, evaluate, k_fold, random_split, split_from_pair
from recsys.cli.main import cli
from recsys.errors import DataError
from recsys.evaluation import Evaluation
from recsys.evaluation.tasks import RankingTask

METRICS = ["precision", "recall", "ndcg"]


def made_ratings(seed, n_users=60, n_items=30, column=None):
    generator = np.random.default_rng(seed)
    weights = 1 / np.arange(1, n_items + 1)
    rows = [
        (user, int(item))
        for user in range(n_users)
        for item in generator.choice(
            n_items, generator.integers(4, 12), replace=False, p=weights / weights.sum()
        )
    ]
    frame = pl.DataFrame(rows, schema=["user", "item"], orient="row")
    if column is None:
        column = generator.uniform(0.1, 1, n_items)
    table = pl.DataFrame({"item": range(n_items), "p": column})
    return Ratings.from_frame(frame, item_table=table)


def by_brute_force(split, propensity, n=5):
    recommender = Recommender("ease").fit(split.train, features=False)
    task = RankingTask.of(split, n)
    lists = dict(zip(task.users, task.recommend(recommender.model), strict=True))
    users = split.test.users
    relevant = {}
    for user, item in split.test.to_frame().select("user", "item").iter_rows():
        relevant.setdefault(user, []).append(item)
    sums = dict.fromkeys(METRICS, 0.0)
    total = 0.0
    weights = []
    for user, items in relevant.items():
        indices = lists[int(users.index([user])[0])]
        listed = split.train.items.take(indices[indices >= 0]).to_list()
        ideal = sum(1 / np.log2(r + 2) for r in range(min(n, len(items))))
        weights += [1 / propensity(user, item) for item in items]
        total += np.mean([1 / propensity(user, item) for item in items])
        for item in items:
            if item in listed:
                weight = 1 / propensity(user, item)
                sums["precision"] += weight / n
                sums["recall"] += weight / len(items)
                sums["ndcg"] += weight / np.log2(listed.index(item) + 2) / ideal
    size = sum(weights) ** 2 / sum(w**2 for w in weights)
    values = {f"{name}_ips@{n}": value / total for name, value in sums.items()}
    return values | {"effective_sample_size": size}


def measured(split, propensity, **options):
    found = evaluate(
        "ease",
        split,
        n=5,
        metrics=METRICS,
        propensity=propensity,
        features=False,
        **options,
    )
    return dict(found.metrics.select("metric", "value").iter_rows()), found


@settings(max_examples=10, deadline=None)
@given(st.integers(0, 10**6), st.floats(0.0, 0.8))
def test_corrected_metrics_equal_brute_force(seed, power):
    ratings = made_ratings(seed)
    split = random_split(ratings, 0.4, random_state=seed)
    counts = split.train.counts("item")
    of_item = dict(zip(ratings.items.values, counts, strict=True))

    def by_popularity(user, item):
        return (max(of_item[item], 1) / counts.max()) ** power

    column = ratings.item_table.frame["p"]
    known = (split.train.counts("item") > 0)[split.test.indices].all()
    options = {"new": "keep", "resamples": 20}
    if known and (split.train.counts("user") > 0).all():
        for propensity, of_pair in (
            (f"popularity:{power}", by_popularity),
            ("p", lambda user, item: column[item]),
        ):
            values, _ = measured(split, propensity, **options)
            expected = by_brute_force(split, of_pair)
            assert expected.pop("effective_sample_size") == pytest.approx(
                values["effective_sample_size"], rel=1e-5
            )
            for name, value in expected.items():
                if values["effective_sample_size"] >= 50:
                    assert values[name] == pytest.approx(value, rel=1e-5)


@pytest.mark.parametrize("share", [1.0, 0.3])
def test_equal_propensities_change_nothing(share):
    ratings = made_ratings(1, column=[share] * 30)
    split = random_split(ratings, 0.4, random_state=1)
    values, found = measured(split, "p")
    for name in METRICS:
        assert values[f"{name}_ips@5"] == pytest.approx(values[f"{name}@5"], rel=1e-6)
    n_relevant = found.per_user["relevant"].sum()
    assert values["effective_sample_size"] == pytest.approx(n_relevant)
    row = found.metrics.filter(metric="ndcg_ips@5").row(0, named=True)
    ordinary = found.metrics.filter(metric="ndcg@5").row(0, named=True)
    assert row["low"] == pytest.approx(ordinary["low"])


def test_equal_propensities_change_nothing_over_folds():
    ratings = made_ratings(1, column=[0.5] * 30)
    values, _ = measured(k_fold(ratings, 3), "p")
    for name in METRICS:
        assert values[f"{name}_ips@5"] == pytest.approx(values[f"{name}@5"], rel=1e-6)


def test_a_known_exposure_is_corrected():
    generator = np.random.default_rng(7)
    n_users, n_items = 1500, 60
    shown = np.arange(1, n_items + 1) ** -0.6
    tastes = generator.normal(size=(n_users, 3)) @ generator.normal(size=(3, n_items))
    likes = generator.random(tastes.shape) < 1 / (1 + np.exp(1.3 - tastes))
    train = likes & (generator.random(likes.shape) < shown)
    others = likes & ~train
    seen = others & (generator.random(likes.shape) < shown)
    # As if all items had been shown equally often.
    unbiased = others & (generator.random(likes.shape) < seen.sum() / others.sum())

    def frame(mask):
        users, items = np.nonzero(mask)
        return pl.DataFrame({"user": users, "item": items})

    table = pl.DataFrame({"item": range(n_items), "p": shown})
    part = Ratings.from_frame(frame(train), item_table=table)
    biased, _ = measured(split_from_pair(part, Ratings.from_frame(frame(seen))), "p")
    truth, _ = measured(
        split_from_pair(part, Ratings.from_frame(frame(unbiased))), None
    )
    for name in METRICS:
        bias = biased[f"{name}@5"] - truth[f"{name}@5"]
        # Popular items are in the lists because they were shown.
        assert bias > 0.3 * truth[f"{name}@5"]
        assert abs(biased[f"{name}_ips@5"] - truth[f"{name}@5"]) < bias / 4


def test_pairs_have_propensities_of_their_own():
    ratings = made_ratings(3)
    split = random_split(ratings, 0.4, random_state=3)
    pairs = ratings.to_frame().select("user", "item")
    generator = np.random.default_rng(1)
    pairs = pairs.with_columns(propensity=generator.uniform(0.2, 1, len(pairs)))
    of_pair = {(u, i): p for u, i, p in pairs.iter_rows()}

    def as_ratings(frame):
        return Ratings.from_frame(frame, rating="propensity", scale=(0, 1))

    values, _ = measured(split, as_ratings(pairs))
    expected = by_brute_force(split, lambda user, item: of_pair[user, item])
    assert values["effective_sample_size"] == pytest.approx(
        expected["effective_sample_size"], rel=1e-5
    )
    with pytest.raises(DataError, match=r"propensity of user .* got none"):
        measured(split, as_ratings(pairs.head(20)))
    with pytest.raises(DataError, match=r"propensity of user .* and item .* got 0\.0"):
        measured(split, as_ratings(pairs.with_columns(propensity=pl.lit(0.0))))
    with pytest.raises(DataError, match="must be a text or Ratings; got DataFrame"):
        measured(split, pairs)


def test_pairs_of_ids_as_texts_are_the_same():
    ratings = made_ratings(3)
    split = random_split(ratings, 0.4, random_state=3)
    pairs = ratings.to_frame().select(
        pl.col("user", "item").cast(pl.String), propensity=pl.lit(0.5)
    )
    propensities = Ratings.from_frame(pairs, rating="propensity", scale=(0, 1))
    values, _ = measured(split, propensities)
    for name in ("precision", "recall", "ndcg"):
        assert values[f"{name}_ips@5"] == pytest.approx(values[f"{name}@5"])


@pytest.mark.parametrize(
    ("column", "message"),
    [
        ([1.0, 1.5] + [0.5] * 28, r"user .* and item 1 must be .* got 1\.5"),
        ([0.5] * 3 + [0.0] + [0.5] * 26, r"item 3 must be .* got 0\.0"),
        ([0.5] * 3 + [None] + [0.5] * 26, r"item 3 must be .* got none"),
        (["a"] * 30, r"must be a column of numbers"),
    ],
)
def test_names_the_item_of_a_wrong_propensity(column, message):
    ratings = made_ratings(2, column=column)
    split = random_split(ratings, 0.4, random_state=2)
    with pytest.raises(DataError, match=message):
        measured(split, "p")


@pytest.mark.parametrize("propensity", ["q", "popularity:x", "popularity:-1"])
def test_rejects_other_propensities(propensity):
    split = random_split(made_ratings(2), 0.4, random_state=2)
    with pytest.raises(DataError, match="propensity must be"):
        measured(split, propensity)


def test_says_nothing_of_a_small_effective_sample():
    ratings = made_ratings(4, column=[1.0] * 29 + [1e-6])
    rare = ratings.items.index([29])[0]
    assert ratings.counts("item")[rare] > 0
    split = random_split(ratings, 0.9, random_state=4)
    values, found = measured(split, "p", new="keep")
    assert values["effective_sample_size"] < 50
    assert "ndcg_ips@5" not in values
    assert found.table["ndcg_ips@5"][0] is None
    assert "below 50" in found.remark


@pytest.fixture
def data(tmp_path):
    ratings = made_ratings(5)
    frame = ratings.to_frame().select("user", "item")
    item = frame["item"].cast(pl.Float64)
    frame.with_columns(shown=1 / (1 + item / 10)).write_csv(tmp_path / "r.csv")
    ratings.item_table.frame.write_csv(tmp_path / "items.csv")
    return tmp_path


def run(*arguments):
    return CliRunner().invoke(cli, ["evaluate", *map(str, arguments)])


def test_the_command_takes_columns_of_items_and_of_test_rows(data):
    options = ["--model", "popular", "--method", "per-user", "--json", "-n", 5]
    options += ["--test-fraction", 0.4]
    for column in ("p", "shown", "popularity:0.5"):
        result = run(
            data / "r.csv",
            *options,
            "--item-table",
            data / "items.csv",
            "--propensity",
            column,
        )
        metrics = json.loads(result.stdout)["models"][0]["metrics"]
        assert metrics["ndcg_ips@5"]["value"] != metrics["ndcg@5"]["value"]
        assert metrics["effective_sample_size"]["value"] > 50
    result = run(data / "r.csv", *options, "--propensity", "item")
    assert result.exit_code == 1
    assert "line 2" in result.stderr or "item" in result.stderr


def test_the_command_says_why_a_value_is_missing(data):
    text = (data / "r.csv").read_text().splitlines()
    (data / "few.csv").write_text("\n".join(text[:90]))
    options = ["--model", "popular", "--propensity", "popularity:1", "-n", 5]
    saved = data / "saved"
    result = run(data / "few.csv", *options, "--json", "--save", saved)
    document = json.loads(result.stdout)
    missing = document["models"][0]["metrics"]["ndcg_ips@5"]
    assert missing["value"] is None
    assert "below 50" in missing["reason"]
    assert missing["reason"] in result.stderr
    loaded = Evaluation.load(saved)
    assert loaded.remark == missing["reason"]


def test_corrected_metrics_may_fail_an_evaluation_and_are_in_the_report(data):
    options = ["--model", "popular,random", "--method", "per-user", "-n", 5]
    report = data / "report.html"
    gate = ["--fail-if", "ndcg_ips@5 < 0.99", "--report", report]
    result = run(data / "r.csv", *options, "--propensity", "popularity:0.3", *gate)
    assert result.exit_code == 1
    assert "ndcg_ips@5 of popular is" in result.stderr
    assert "ndcg_ips" in report.read_text()
