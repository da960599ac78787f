"""A/B tests: which list a click counts for, and what two groups of users differ in."""

from __future__ import annotations

import json
import math

import numpy as np
import polars as pl
import pytest
from click.testing import CliRunner

from recsys.cli.main import cli
from recsys.errors import DataError
from recsys.evaluation.monitoring import online_test, read_lists
from recsys.evaluation.planning import plan_online_test
from recsys.evaluation.statistics import (
    Ratio,
    at_any_time,
    shuffled_groups,
    standard_error,
)


def line(time: str, user, variant: str, *items) -> str:
    rows = [
        {"item": item, "rank": rank, "score": 1.0} for rank, item in enumerate(items, 1)
    ]
    answer = {
        "time": f"2026-01-01T{time}Z",
        "variant": variant,
        "user": user,
        "items": rows,
    }
    return json.dumps(answer | {"model": f"{variant}@1", "policy": "personal"}) + "\n"


def clicks(*rows) -> dict[str, pl.Series]:
    names = ("user", "item", "timestamp")
    columns = zip(*rows, strict=True)
    return {
        name: pl.Series(name, values)
        for name, values in zip(names, columns, strict=False)
    }


@pytest.fixture
def log(tmp_path):
    def write(*lines: str):
        (tmp_path / "log.jsonl").write_text("".join(lines))
        return read_lists(tmp_path / "log.jsonl")

    return write


def test_a_click_counts_once_for_the_last_list_before_it(log):
    lists = log(
        line("10:00:00.500", 1, "a", "x", "y"),
        line("11:00:00.000", 1, "a", "y", "x"),
        line("12:00:00.000", 1, "a", "x"),
        line("10:00:00.000", 2, "b", "x"),
        "                 \n",  # of a user who was forgotten
    )
    at = "2026-01-01 {}".format
    found = online_test(
        lists,
        clicks(
            (1, "x", at("11:30:00")),
            (1, "x", at("11:40:00")),  # the same list
            (1, "y", at("09:00:00")),  # before any list
            (1, "z", at("11:30:00")),  # in no list
            (3, "x", at("11:30:00")),  # nobody's
        ),
    )
    values = dict(found.metrics.select("metric", "a").iter_rows())
    assert values["click rate"] == pytest.approx(1 / 3)
    assert values["clicks per list"] == pytest.approx(1 / 3)
    assert values["first click"] == pytest.approx(
        1 / 6
    )  # at rank 2 of one of three lists
    assert values["users who click"] == 1
    assert found.counts["clicks_on_lists"] == 1


def test_a_line_that_the_log_has_twice_counts_once(log):
    lines = [line("10:00:00.500", 1, "a", "x", "y"), line("10:00:00", 2, "b", "x")]
    assert log(*lines, *lines).equals(log(*lines))


def test_clicks_on_no_list_are_an_error(log):
    lists = log(line("10:00:00.500", 1, "a", "x"), line("10:00:00", 2, "b", "x"))
    for user, time in ((9, "2026-01-01T12:00:00Z"), (1, "2026-01-01T09:00:00Z")):
        with pytest.raises(DataError, match="None of 1 click is on an item of a list"):
            online_test(lists, clicks((user, "x", time)))


def test_leaves_out_users_of_both_models_and_unknown_users(log):
    lists = log(
        line("10:00:00", 1, "a", "x"),
        line("10:00:00", 2, "b", "x"),
        line("10:00:00", 3, "a", "x"),
        line("11:00:00", 3, "b", "x"),
        line("11:00:00", None, "a", "x"),
    )
    found = online_test(lists, clicks((1, "x"), (3, "x")))
    assert found.counts["a"] == {"lists": 1, "users": 1, "models": ["a@1"]}
    assert (found.counts["users_of_both"], found.counts["lists_of_strangers"]) == (1, 1)


def test_a_difference_is_found_and_chance_is_not():
    rng = np.random.default_rng(5)
    second = rng.random(3000) < 0.3
    same = Ratio((rng.random(3000) < 0.1).astype(float), np.ones(3000))
    better = Ratio(
        (rng.random(3000) < np.where(second, 0.16, 0.1)).astype(float), np.ones(3000)
    )
    p_same, p_better = shuffled_groups([same, better], second, shuffles=499)
    assert p_same > 0.05
    assert p_better < 0.01


def test_p_values_of_chance_are_uniform():
    rng = np.random.default_rng(1)
    ratios = [
        Ratio(
            rng.poisson(rng.gamma(1, 2, 200)).astype(float), 1.0 + rng.poisson(3, 200)
        )
        for _ in range(300)
    ]
    p_values = shuffled_groups(ratios, rng.random(200) < 0.5, shuffles=199)
    assert 0.02 < (p_values <= 0.05).mean() < 0.09
    assert 0.4 < p_values.mean() < 0.6


def test_the_command_prints_the_test(log, tmp_path):
    rng = np.random.default_rng(0)
    lines, rows = [], ["user,item,timestamp"]
    for user in range(300):
        variant = "b" if user % 2 else "a"
        lines.append(line("10:00:00", user, variant, "x", "y"))
        if rng.random() < (0.5 if user % 2 else 0.2):
            rows.append(f"{user},y,2026-01-01T10:05:00Z")
    log(*lines)
    (tmp_path / "clicks.csv").write_text("\n".join(rows))
    words = [
        "compare",
        "--online",
        str(tmp_path / "log.jsonl"),
        str(tmp_path / "clicks.csv"),
    ]
    shown = CliRunner().invoke(cli, [*words, "--format", "table"])
    assert shown.exit_code == 0
    assert "a: 150 lists to 150 users, of a@1" in shown.output
    found = CliRunner().invoke(cli, [*words, "--json", "-q"])
    document = json.loads(found.output)
    rate = document["comparisons"][0]
    assert rate["metric"] == "click rate"
    assert 0 < rate["low"] < rate["difference"] < rate["high"]
    assert rate["p_value"] < 0.001


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "has no recommendations"),
        ("{}\n", "line 1: this is not a line of a log"),
        (
            line("10:00:00", 1, "a", "x") + "oops\n",
            "line 2: this is not a line of a log",
        ),
        (line("10:00:00", 1, "a", "x").replace("2026-01", "soon"), "is not a time"),
    ],
)
def test_a_file_that_is_not_a_log_is_one_sentence(log, text, message):
    with pytest.raises(DataError, match=message):
        log(text)


def test_needs_two_models(log):
    with pytest.raises(DataError, match="no lists of two models"):
        online_test(log(line("10:00:00", 1, "a", "x")), clicks((1, "x")))


def online_days(rng, *, rate, lift, per_day, n_days):
    """Yield both groups of users at the end of each day, as ratios of users who click."""
    second = rng.random(per_day * n_days) < 0.5
    clicked = (rng.random(len(second)) < rate + lift * second).astype(float)
    for n in range(per_day, len(second) + 1, per_day):
        groups = (clicked[:n][second[:n] == group] for group in (False, True))
        yield [Ratio(values, np.ones(len(values))) for values in groups]


def test_rejects_a_list_with_an_item_twice(log):
    with pytest.raises(
        DataError, match=r"user '1' at 2026-01-01T10:00:00Z has an item"
    ):
        log(line("10:00:00", 1, "a", "x", "y", "x"))


def test_intervals_at_any_time_hold_on_all_days():
    rng = np.random.default_rng(0)
    n_missed = 0
    n_missed_by_one_look = 0
    for _ in range(100):
        missed = []
        for a, b in online_days(rng, rate=0.1, lift=0.02, per_day=100, n_days=40):
            low, high, _ = at_any_time(a, b, 0.95)
            error = np.hypot(standard_error(a), standard_error(b))
            one_look = abs(b.value - a.value - 0.02) > 1.96 * error
            missed.append((not low <= 0.02 <= high, one_look))
        of_always, of_one_look = np.any(missed, axis=0)
        n_missed += of_always
        n_missed_by_one_look += of_one_look
    assert n_missed <= 5
    assert n_missed_by_one_look > 15


def test_p_value_at_any_time_is_below_the_level_where_the_interval_excludes_0():
    rng = np.random.default_rng(1)
    p_values = []
    for a, b in online_days(rng, rate=0.1, lift=0.05, per_day=100, n_days=40):
        low, high, p_value = at_any_time(a, b, 0.95)
        assert (p_value < 0.05) == (low > 0 or high < 0)
        p_values.append(p_value)
    assert p_values[0] > 0.05 > p_values[-1]


def test_few_users_have_no_interval_at_any_time():
    few = Ratio(np.ones(10), np.ones(10))
    none = Ratio(np.zeros(50), np.ones(50))
    some = Ratio(np.arange(50) % 2.0, np.ones(50))
    for group in (few, none):
        assert at_any_time(some, group, 0.95) == (None, None, None)


def test_a_planned_test_has_its_power():
    plan = plan_online_test(0.2, 0.1)
    # Users of both models come at 50 a day.
    n_days = math.ceil(plan["users"] / 25)
    n_days_any_time = math.ceil(plan["users_any_time"] / 25)
    rng = np.random.default_rng(2)
    n_found_in_time = 0
    n_found_at_end = 0
    for _ in range(200):
        days = online_days(rng, rate=0.2, lift=0.1, per_day=50, n_days=n_days_any_time)
        looks = [
            (len(a.above) + len(b.above), a, b, at_any_time(a, b, 0.95)[2])
            for a, b in days
        ]
        n_found_in_time += any(p is not None and p < 0.05 for *_, p in looks)
        _, a, b, _ = looks[n_days - 1]
        error = np.hypot(standard_error(a), standard_error(b))
        n_found_at_end += b.value - a.value > 1.96 * error
    assert n_found_in_time / 200 > 0.75
    assert n_found_at_end / 200 == pytest.approx(0.8, abs=0.09)


def test_the_command_plans_a_test():
    words = ["compare", "--plan", "--rate", "0.1", "--difference", "50%", "--json"]
    result = CliRunner().invoke(cli, words)
    assert result.exit_code == 0, result.stderr
    [plan] = json.loads(result.stdout)["plans"]
    expected = plan_online_test(0.1, 0.05)
    assert plan == expected
    assert plan["users"] < plan["users_any_time"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--rate", "0.1"], "--plan needs --difference"),
        (["--difference", "1%"], "--plan needs --rate"),
        (["--rate", "0.1", "--difference", "nan"], "with and without the difference"),
        (
            ["--rate", "0.1", "--difference", "1%", "--online", "x"],
            "does not read a log",
        ),
        (["--rate", "0.1", "--difference", "1%", "log.csv"], "reads no ratings"),
        (["--rate", "1.5", "--difference", "1%"], "between 0 and 1"),
        (["--rate", "0.1", "--difference", "0.95"], "between 0 and 1"),
        (["--rate", "0.1", "--difference", "0"], "other than 0"),
        (["--rate", "0.1", "--difference", "1%", "--level", "0.6"], "1 - level"),
    ],
)
def test_plan_needs_a_rate_and_a_difference(words, message):
    result = CliRunner().invoke(cli, ["compare", "--plan", *words])
    assert result.exit_code != 0
    assert message in result.stderr
