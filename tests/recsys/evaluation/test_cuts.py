"""Several cuts in time: windows, values at each cut, and how fast models go stale."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

from recsys import (
    DataError,
    Evaluation,
    Ratings,
    Recommender,
    evaluate,
    html_report,
    time_cuts,
    time_split,
)
from recsys.cli.main import cli
from recsys.evaluation import Split, read_split, save_split
from recsys.evaluation.settings import Settings, SplitInfo
from recsys.evaluation.staleness import stale_values
from recsys.models.registry import make_model

DAY = 86_400
MONTH = 30 * DAY
N_MONTHS = 12


def events(*, drift: bool, seed: int = 0, n_users: int = 500) -> pl.DataFrame:
    """Return a growing year of events; with drift, the new items of a month are popular."""
    rng = np.random.default_rng(seed)
    cohorts = np.arange(20 * N_MONTHS) // 20
    weights = 1.5**cohorts
    parts = []
    for month in range(N_MONTHS):
        popularity = np.where(cohorts <= month, weights, 0.0) if drift else weights
        popularity = popularity + 0.02 * popularity.max()
        size = int(100 * 1.3**month)
        items = rng.choice(len(cohorts), size, p=popularity / popularity.sum())
        users = rng.integers(n_users, size=size)
        seconds = np.sort(rng.integers(MONTH, size=size)) + month * MONTH
        parts.append(pl.DataFrame({"user": users, "item": items, "time": seconds}))
    return pl.concat(parts).unique(["user", "item"], keep="first", maintain_order=True)


@settings(max_examples=20, deadline=None)
@given(
    seconds=st.lists(st.integers(0, 60), min_size=12, max_size=60),
    cuts=st.integers(2, 5),
    repeats=st.sampled_from(["drop", "keep"]),
)
def test_windows_are_disjoint_and_train_on_all_before(
    seconds: list[int], cuts: int, repeats: str
) -> None:
    rng = np.random.default_rng(len(seconds))
    n = len(seconds)
    frame = pl.DataFrame(
        {
            "user": rng.integers(4, size=n),
            "item": np.arange(n),
            "timestamp": seconds,
        }
    )
    try:
        splits = time_cuts(frame, cuts, repeats=repeats)
    except DataError:
        newest = sorted(seconds)[n - round(n / 2) :]
        starts = [newest[len(newest) * part // cuts] for part in range(cuts)]
        assert len({min(seconds), *starts}) <= cuts
        return
    moments = [split.parameters["cut"] for split in splits]
    assert moments == sorted({*moments})
    assert sum(split.test.n_ratings for split in splits) == sum(
        second >= moments[0] for second in seconds
    )
    for split, until in zip(splits, [*moments[1:], 10**9], strict=True):
        split.check()
        cut = split.parameters["cut"]
        assert split.train.n_ratings == sum(second < cut for second in seconds)
        window = sorted(second for second in seconds if cut <= second < until)
        assert sorted(split.test.timestamps.tolist()) == window


def test_windows_have_the_same_number_of_events() -> None:
    frame = pl.DataFrame(
        {"user": [i % 7 for i in range(100)], "item": range(100), "time": range(100)}
    )
    splits = time_cuts(frame, 5)
    assert [split.test.n_ratings for split in splits] == [10] * 5
    assert [split.parameters["cut"] for split in splits] == [50, 60, 70, 80, 90]
    quarter = time_cuts(frame, 5, 0.25)
    assert [split.test.n_ratings for split in quarter] == [5] * 5


@pytest.mark.parametrize(
    ("frame", "cuts", "message"),
    [
        ({"user": [1, 2, 3, 4], "item": [1, 1, 1, 1]}, 2, "requires timestamps"),
        ({"user": [1, 2], "item": [1, 1], "time": [1, 2]}, 2, "2 different times"),
        ({"user": [1] * 8, "item": range(8), "time": [1] * 4 + [2] * 4}, 2, "fewer"),
        ({"user": [1] * 4, "item": range(4), "time": range(4)}, 1, "cuts"),
    ],
)
def test_cuts_that_cannot_be_made_are_one_error(
    frame: dict, cuts: int, message: str
) -> None:
    with pytest.raises(DataError, match=message):
        time_cuts(pl.DataFrame(frame), cuts)


def test_values_at_each_cut_are_those_of_the_split_alone() -> None:
    splits = time_cuts(events(drift=True), 4)
    found = evaluate(["popular", "ease"], splits, [3, 5], resamples=100)
    for number, split in enumerate(splits, 1):
        until = split.parameters.get("until")
        whole = time_split(events(drift=True), cut=split.parameters["cut"])
        assert split.train.to_frame().equals(whole.train.to_frame())
        alone = evaluate(["popular", "ease"], split, [3, 5], resamples=0)
        values = found.cuts.filter(fold=number)
        assert values["cut"].unique().to_list() == [split.parameters["cut"]]
        assert values["until"].unique().to_list() == [until]
        users = alone.table["users"].to_list()
        assert values["users"].unique().to_list() == [*{*users}]
        expected = alone.metrics.select("model", "metric", "value")
        shown = values.select("model", "metric", "value")
        assert shown.sort("model", "metric").equals(expected.sort("model", "metric"))
    assert {*found.comparisons["metric"]} >= {"ndcg@3", "ndcg@5"}
    assert evaluate("popular", splits[0]).cuts["fold"].to_list() != []
    assert evaluate("popular", whole).cuts.is_empty()


def brute_force(
    recommender: Recommender, split: Split, known: set[int], n: int
) -> dict[int, float]:
    """Return the NDCG of each known user in a window, from the scores of a model."""
    seen = set()
    if split.repeats == "drop":
        seen = {*split.train.to_frame().select("user", "item").iter_rows()}
    relevant: dict[int, set[int]] = {}
    for user, item in split.test.to_frame().select("user", "item").iter_rows():
        relevant.setdefault(user, set()).add(item)
    items = recommender.ratings.items.values.to_list()
    values = {}
    for user in known & relevant.keys():
        index = recommender.ratings.users.find(pl.Series([user]))
        order = np.argsort(-recommender.model.scores(index)[0], kind="stable")
        unseen = [items[at] for at in order if (user, items[at]) not in seen]
        gains = [
            1 / np.log2(rank + 2)
            for rank, item in enumerate(unseen[:n])
            if item in relevant[user]
        ]
        most = min(n, len(relevant[user]))
        values[user] = sum(gains) / sum(1 / np.log2(np.arange(most) + 2))
    return values


@pytest.mark.covering(1)
@pytest.mark.parametrize("model", ["ease", "spectral"])
@pytest.mark.parametrize("repeats", ["drop", "keep"])
def test_loss_of_a_stale_model_equals_brute_force(model: str, repeats: str) -> None:
    splits = time_cuts(events(drift=True, n_users=1200), 3, repeats=repeats)
    found = evaluate(model, splits, 4, metrics=["ndcg"], resamples=200)
    train = splits[0].without_new().train
    recommender = Recommender(model).fit(train)
    known = {*train.users.values.to_list()}
    shown = found.staleness.to_dicts()
    assert [row["fold"] for row in shown] == [2, 3]
    for row, split in zip(shown, splits[1:], strict=True):
        used = split.without_new()
        values = brute_force(recommender, used, known, 4)
        alone = evaluate(model, split, 4, metrics=["ndcg"], resamples=0).per_user
        fresh = alone.filter(pl.col("user").is_in([*values]))["ndcg@4"].mean()
        stale = np.mean([*values.values()])
        assert row["users"] == len(values) < len(alone)
        assert row["refit"] == pytest.approx(fresh)
        assert row["stale"] == pytest.approx(stale, rel=1e-6)
        assert row["loss"] == pytest.approx(1 - row["stale"] / fresh)
        assert row["low"] < row["loss"] < row["high"]
        assert row["age"] == row["cut"] - splits[0].parameters["cut"]
    [period] = found.refit_periods.to_dicts()
    assert period["loss_per_window"] == pytest.approx(
        (shown[0]["loss"] + shown[1]["loss"]) / 3
    )


def test_a_refit_model_that_is_right_for_one_user_has_a_loss() -> None:
    values = pl.DataFrame(
        {"ndcg@4": [0.0, 0.0, 0.5, 0.0], "ndcg@4 refit": [0.0, 0.0, 1.0, 0.0]}
    )
    window = SplitInfo("time", {"cut": 1}, "", {})
    [row] = stale_values({"ease": [values]}, [window], Settings((4,))).to_dicts()
    assert row["loss"] == 0.5


@pytest.mark.parametrize("seed", range(3))
def test_drift_makes_a_model_stale_and_other_data_do_not(seed: int) -> None:
    periods = {}
    for drift in (True, False):
        splits = time_cuts(events(drift=drift, seed=seed), 6)
        found = evaluate("popular", splits, metrics=["ndcg"])
        [periods[drift]] = found.refit_periods.to_dicts()
    assert periods[True]["loss_per_window"] > 0.05
    assert periods[True]["refit_windows"] >= 1
    assert periods[True]["refit_seconds"] > 0
    assert abs(periods[False]["loss_per_window"]) < 0.03
    assert periods[False]["refit_windows"] is None
    assert periods[False]["refit_seconds"] is None


@pytest.mark.parametrize(
    "options",
    [{"metrics": ["recall"]}, {"candidates": 20}, {"positions": True}],
)
def test_staleness_is_measured_by_lists_of_all_items(options: dict) -> None:
    splits = time_cuts(events(drift=True), 2)
    found = evaluate("ease", splits, resamples=0, **options)
    assert found.staleness.is_empty()
    assert found.refit_periods.is_empty()
    assert found.cuts["fold"].n_unique() == 2


def test_a_blend_and_new_items_keep_the_model_of_the_first_cut() -> None:
    splits = time_cuts(events(drift=True), 3)
    models = {"blend": make_model("blend", members="spectral,ease"), "ease": "ease"}
    found = evaluate(models, splits, 5, new="keep", metrics=["ndcg"])
    assert found.staleness["model"].to_list() == ["blend", "blend", "ease", "ease"]
    stale = found.staleness
    assert (stale["stale"] != stale["refit"]).all()


def test_saved_windows_and_results_are_the_same(tmp_path: Path) -> None:
    splits = time_cuts(events(drift=True), 3)
    found = evaluate(["popular", "ease"], splits, 5, resamples=0)
    save_split(splits, tmp_path / "parts")
    again = evaluate(
        ["popular", "ease"], read_split(tmp_path / "parts"), 5, resamples=0
    )
    assert again.cuts.equals(found.cuts)
    assert "<h2>Over time</h2>" in html_report(found)
    found.save(tmp_path / "results")
    loaded = Evaluation.load(tmp_path / "results")
    assert loaded.cuts.equals(found.cuts)
    assert loaded.staleness.equals(found.staleness)
    assert len(found.staleness) == 4


def run(*arguments: str) -> str:
    result = CliRunner().invoke(cli, arguments, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


def test_the_command_has_the_values_at_each_cut(tmp_path: Path) -> None:
    frame = events(drift=True)
    file = tmp_path / "events.csv"
    frame.write_csv(file)
    arguments = (str(file), "--method", "time", "--cuts", "3", "-n", "5")
    command = ("evaluate", *arguments, "--model", "popular,ease", "--quiet")
    document = json.loads(run(*command, "--json"))
    found = evaluate(["popular", "ease"], time_cuts(Ratings.from_frame(frame), 3), 5)
    for model in document["models"]:
        assert len(model["cuts"]) == 3
        for fold, cut in enumerate(model["cuts"], 1):
            values = found.cuts.filter(model=model["model"], fold=fold)
            assert cut["metrics"] == pytest.approx(
                dict(values.select("metric", "value").iter_rows())
            )
            assert [cut["cut"]] == values["cut"].unique().to_list()
            assert [cut["users"]] == values["users"].unique().to_list()
    assert document["models"][0]["cuts"][0]["since"].startswith("1970-")
    staleness = document["models"][0]["staleness"]
    assert staleness["metric"] == "ndcg@5"
    assert len(staleness["windows"]) == 2
    assert staleness["loss_per_window"] == found.refit_periods["loss_per_window"][0]
    assert document["comparisons"][0]["p_value"] is not None
    shown = run(*command, "--format", "table")
    assert "ndcg@5 since" in shown
    assert "a refit gains after" in shown


def test_cuts_apply_to_a_split_by_time_only(tmp_path: Path) -> None:
    file = tmp_path / "events.csv"
    events(drift=False).write_csv(file)
    for options, message in (
        (("--cuts", "3"), "--cuts applies to --method time"),
        (("--method", "random", "--cuts", "3"), "--cuts applies to --method time"),
        (("--method", "time", "--cuts", "3", "--last", "1"), "--last does not apply"),
    ):
        result = CliRunner().invoke(cli, ["evaluate", str(file), *options])
        assert result.exit_code == 2
        assert message in result.stderr


def test_saved_results_have_the_remarks_of_their_command(tmp_path: Path) -> None:
    # Few of the users come again.
    early = [(user, (3 * user + item) % 40) for user in range(100) for item in range(3)]
    late = [(event % 10, event // 10) for event in range(300)]
    rows = [(*pair, second) for second, pair in enumerate(early + late)]
    frame = pl.DataFrame(rows, schema=["user", "item", "timestamp"], orient="row")
    file = tmp_path / "events.csv"
    frame.write_csv(file)
    saved = str(tmp_path / "saved")
    options = ["--method", "time", "--cuts", "3", "--model", "popular", "--save", saved]
    command = CliRunner().invoke(cli, ["evaluate", str(file), *options])
    assert command.exit_code == 0, command.stderr
    again = CliRunner().invoke(cli, ["evaluate", saved])
    assert {*again.stderr.splitlines()} < {*command.stderr.splitlines()}
    mixed = CliRunner().invoke(cli, ["compare", saved, str(file)])
    assert mixed.exit_code == 2
    assert f"{saved} has saved results and {file} has not" in mixed.stderr
