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

from recsys import DataError, Evaluation, Ratings, evaluate, time_cuts, time_split
from recsys.cli.main import cli
from recsys.evaluation import read_split, save_split

DAY = 86_400
MONTH = 30 * DAY
N_MONTHS = 12


def events(
    *, drift: bool, seed: int = 0, n_users: int = 300, n_items: int = 300
) -> pl.DataFrame:
    """Return a year of events; with drift, other items are popular each month."""
    rng = np.random.default_rng(seed)
    popularity = 1 / np.arange(1, n_items + 1)
    popularity /= popularity.sum()
    parts = []
    for month in range(N_MONTHS):
        ranks = rng.choice(n_items, 3 * n_users, p=popularity)
        items = (ranks + 25 * month * drift) % n_items
        users = rng.integers(n_users, size=len(items))
        seconds = np.sort(rng.integers(MONTH, size=len(items))) + month * MONTH
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


def test_saved_windows_and_results_are_the_same(tmp_path: Path) -> None:
    splits = time_cuts(events(drift=True), 3)
    found = evaluate(["popular", "ease"], splits, 5, resamples=0)
    save_split(splits, tmp_path / "parts")
    again = evaluate(
        ["popular", "ease"], read_split(tmp_path / "parts"), 5, resamples=0
    )
    assert again.cuts.equals(found.cuts)
    found.save(tmp_path / "results")
    loaded = Evaluation.load(tmp_path / "results")
    assert loaded.cuts.equals(found.cuts)


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
    assert document["comparisons"][0]["p_value"] is not None
    shown = run(*command, "--format", "table")
    assert "ndcg@5 since" in shown


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
