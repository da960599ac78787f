"""Value of another model's lists from a log, against brute force and a known value."""

import json

import numpy as np
import polars as pl
import pytest
from click.testing import CliRunner

from recsys import Ratings, Recommender
from recsys.cli.main import cli
from recsys.errors import DataError
from recsys.evaluation.monitoring import read_lists
from recsys.evaluation.offpolicy import off_policy_value

RANKS = 4


def simulated(seed, n_users=1500, n_items=12):
    """Return a log, its clicks, the lists of another policy, and their true value."""
    generator = np.random.default_rng(seed)
    shape = n_users, n_items
    attraction = generator.beta(2, 5, n_items)
    taste = np.clip(attraction * np.exp(0.5 * generator.normal(size=shape)), 0, 1)
    examination = 1 / np.arange(1, RANKS + 1)
    popular = np.argsort(-attraction)[:RANKS]
    shuffled = np.argsort(generator.random(shape), axis=1)[:, :RANKS]
    is_popular = generator.random((n_users, 1)) < 0.5
    shown = np.where(is_popular, popular, shuffled)
    probability = 0.5 / n_items + 0.5 * (shown == popular)
    target = np.argsort(-taste - 0.05 * generator.normal(size=shape), axis=1)
    target = target[:, :RANKS]
    rates = np.take_along_axis(taste, shown, 1) * examination
    clicked = (generator.random(shown.shape) < rates).ravel()
    truth = (np.take_along_axis(taste, target, 1) * examination).sum(axis=1).mean()
    users = np.repeat(np.arange(n_users), RANKS)
    texts = pl.Series(users.astype(str))
    items = pl.Series(shown.ravel().astype(str))
    ranks = np.tile(np.arange(1, RANKS + 1), n_users)
    lists = pl.DataFrame(
        {
            "list": users.astype(np.uint32),
            "user": texts,
            "time": 0,
            "item": items,
            "rank": ranks,
            "probability": probability.ravel(),
        }
    )
    clicks = {"user": texts.filter(clicked), "item": items.filter(clicked)}
    others = pl.DataFrame({"user": users, "item": target.ravel(), "rank": ranks})
    return lists, clicks, others, truth


def values_of(found):
    return dict(found.values.select("estimator", "value").iter_rows())


def test_inverse_propensities_equal_brute_force():
    lists, clicks, others, _ = simulated(1)
    found = off_policy_value(lists, clicks, others)
    clicked = set(zip(clicks["user"], clicks["item"], strict=True))
    listed = {(str(u), r): str(i) for u, i, r in others.iter_rows()}
    total = weights = squares = 0.0
    for row in lists.to_dicts():
        if listed[row["user"], row["rank"]] == row["item"]:
            weight = 1 / row["probability"]
            weights += weight
            squares += weight**2
            total += weight * ((row["user"], row["item"]) in clicked)
    values = values_of(found)
    n_lists = lists["list"].n_unique()
    assert values["logged"] == pytest.approx(len(clicked) / n_lists)
    assert values["ips"] == pytest.approx(total / n_lists)
    assert values["snips"] == pytest.approx(RANKS * total / weights)
    assert found.effective_sample_size == pytest.approx(weights**2 / squares)
    assert found.support == pytest.approx(weights / len(lists))


def test_a_known_value_is_recovered():
    errors = []
    covered = []
    for seed in range(12):
        lists, clicks, others, truth = simulated(seed)
        found = off_policy_value(lists, clicks, others)
        values = values_of(found)
        errors.append([values[name] - truth for name in values])
        bounds = found.values.select("low", "high").rows()
        covered.append([low <= truth <= high for low, high in bounds])
    means = np.mean(errors, axis=0)
    deviations = np.std(errors, axis=0)
    # The lists of the log would have been clicked less.
    assert means[0] < -0.3
    assert np.abs(means[1:]).max() < 0.1
    # Doubly robust: the smallest variance.
    assert deviations[3] == deviations[1:].min()
    assert np.mean(covered, axis=0)[1:].min() >= 0.8


def test_a_log_without_probabilities_supports_nothing():
    lists, clicks, others, _ = simulated(1)
    none = lists.with_columns(probability=pl.lit(None, pl.Float64))
    with pytest.raises(DataError, match="The log has no probabilities"):
        off_policy_value(none, clicks, others)
    part = pl.when(pl.col("list") < 1000).then("probability").alias("probability")
    found = off_policy_value(lists.with_columns(part), clicks, others)
    assert found.counts["lists"] == 1000
    assert found.counts["lists_without_probabilities"] == 500


@pytest.mark.parametrize("probability", [0.0, 1.5, -0.1])
def test_names_the_list_of_a_wrong_probability(probability):
    lists, clicks, others, _ = simulated(1)
    wrong = pl.when(pl.col("list") == 3).then(probability).otherwise("probability")
    with pytest.raises(DataError, match=r"List 4 of the log, item .* got"):
        off_policy_value(lists.with_columns(probability=wrong), clicks, others)


def test_a_small_support_is_an_error():
    lists, clicks, others, _ = simulated(1)
    few = lists.filter(pl.col("list") < 30)
    with pytest.raises(DataError, match=r"size of .* \(at least 50"):
        off_policy_value(few, clicks, others)
    unseen = others.with_columns(pl.col("item") + 1000)
    with pytest.raises(DataError, match="may have shown 0%"):
        off_policy_value(lists, clicks, unseen)
    stranger = others.with_columns(pl.col("user") + 10**6)
    with pytest.raises(DataError, match="no lists for the users"):
        off_policy_value(lists, clicks, stranger)


@pytest.fixture
def shop(tmp_path):
    """Write a log with the lists of a saved model to half of the users, and clicks."""
    generator = np.random.default_rng(0)
    rows = [(u, int(i)) for u in range(200) for i in generator.choice(20, 6, False)]
    frame = pl.DataFrame(rows, schema=["user", "item"], orient="row")
    recommender = Recommender("ease").fit(Ratings.from_frame(frame))
    recommender.save(tmp_path / "candidate")
    lines = []
    clicks = ["user,item,timestamp"]
    for user in range(200):
        items = recommender.recommend(user, 3)["item"].to_list()
        if user % 2:
            items = items[::-1]
        # Both orders have the same item in the middle.
        line = {"time": "2026-01-01T10:00:00Z", "user": user, "model": "ease@1"}
        line |= {"probabilities": [0.5, 1.0, 0.5]}
        lines.append(json.dumps(line | {"items": [{"item": item} for item in items]}))
        if generator.random() < 0.5:
            clicks.append(f"{user},{items[0]},2026-01-01T10:05:00Z")
    (tmp_path / "log.jsonl").write_text("\n".join(lines) + "\n")
    (tmp_path / "clicks.csv").write_text("\n".join(clicks))
    return tmp_path


def compare(*words):
    return CliRunner().invoke(cli, ["compare", "--online", *map(str, words)])


def test_the_command_estimates_the_value_of_a_saved_model(shop):
    names = shop / "log.jsonl", shop / "clicks.csv", shop / "candidate"
    result = compare(*names, "--json")
    document = json.loads(result.stdout)
    [model] = document["models"]
    values = {row["estimator"]: row["value"] for row in model["values"]}
    assert set(values) == set(document["definitions"])
    assert model["support"] == pytest.approx(1)
    assert 0.4 < values["dr"] < 0.6
    assert "effective sample size" in result.stderr
    table = compare(*names, "--format", "table", "-q").stdout
    assert "snips" in table


def test_the_command_counts_lists_of_unnamed_users(shop):
    lists = (shop / "log.jsonl").read_text()
    (shop / "some.jsonl").write_text(lists.replace('"user": 7,', '"user": null,'))
    result = compare(shop / "some.jsonl", shop / "clicks.csv", shop / "candidate")
    assert "1 list without a named user or probabilities left out" in result.stderr


def test_the_command_needs_probabilities(shop):
    lists = (shop / "log.jsonl").read_text()
    (shop / "old.jsonl").write_text(lists.replace("probabilities", "others"))
    result = compare(shop / "old.jsonl", shop / "clicks.csv", shop / "candidate")
    assert result.exit_code == 1
    assert "The log has no probabilities" in result.stderr
    short = lists.replace("[0.5, 1.0, 0.5]", "[0.5]")
    (shop / "short.jsonl").write_text(short)
    with pytest.raises(DataError, match="list 1: there must be a probability for each"):
        read_lists(shop / "short.jsonl")
