"""Ids of another type than those of the model are unknown users and items, in every method."""

from __future__ import annotations

import datetime
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any
from uuid import UUID

import numpy as np
import pandas as pd
import polars as pl
import pytest

from recsys import Ratings, Recommender
from recsys.errors import DataError, UnknownIdError

PAIRS = [(1, 10), (1, 20), (2, 10), (2, 30), (3, 20), (3, 30), (3, 10)]
ODD: list[Any] = [
    "visitor-17",
    "007",
    "1.5",
    "",
    " 1",
    "1e3",
    "9" * 30,
    2**70,
    "ü",
    "1 2",
]


def ratings(convert: Callable[[int], Any] = int) -> Ratings:
    users = [convert(user) for user, _ in PAIRS]
    items = [convert(item) for _, item in PAIRS]
    grades = [float(n % 5 + 1) for n in range(len(PAIRS))]
    return Ratings.from_frame(
        pl.DataFrame({"user": users, "item": items, "rating": grades})
    )


@pytest.fixture(params=["popular", "als"])
def numbered(request: pytest.FixtureRequest) -> Recommender:
    """A model whose ids are integers."""
    return Recommender(request.param).fit(ratings())


@pytest.mark.parametrize("odd", ODD)
def test_an_unknown_user_gets_popular_items(numbered: Recommender, odd: Any) -> None:
    expected = numbered.recommend([99], 2, cold_start="popular")
    found = numbered.recommend([odd], 2, cold_start="popular")
    assert found["user"].to_list() == [str(odd)] * 2
    assert found.drop("user").equals(expected.drop("user"))


@pytest.mark.parametrize("odd", ODD)
def test_one_such_user_in_a_batch_changes_only_its_own_list(
    numbered: Recommender, odd: Any
) -> None:
    alone = numbered.recommend([1, 99, 2], 2, cold_start="popular")
    found = numbered.recommend([1, odd, 99, "2"], 2, cold_start="popular")
    assert found["user"].unique(maintain_order=True).to_list() == [
        "1",
        str(odd),
        "99",
        "2",
    ]
    others = found.filter(pl.col("user") != str(odd)).cast({"user": pl.Int64})
    assert others.equals(alone)
    array = numbered.recommend(
        np.array([1, odd], dtype=object), 2, cold_start="popular"
    )
    assert array.equals(found.filter(pl.col("user").is_in(["1", str(odd)])))


def test_texts_that_are_not_the_form_of_an_integer_are_not_that_integer() -> None:
    model = Recommender("popular").fit(ratings())
    found = model.recommend(["01", "+1"], 3, cold_start="popular")
    assert found["user"].unique(maintain_order=True).to_list() == ["01", "+1"]
    assert len(found) == 6  # nothing is known to be seen


def test_integers_are_the_texts_that_they_are_printed_as() -> None:
    model = Recommender("als").fit(ratings(str))
    for user in (1, "1", np.int64(1), 1.0):
        assert model.recommend([user], 2, cold_start="popular")["user"].to_list() == [
            "1"
        ]
    assert model.predict(1, 30) == model.predict("1", "30")


@pytest.mark.parametrize("odd", ODD)
def test_unknown_ids_are_named_in_errors(numbered: Recommender, odd: Any) -> None:
    calls: list[Callable[[], object]] = [
        lambda: numbered.recommend([odd]),
        lambda: numbered.recommend(odd),
        lambda: numbered.recommend([1, odd]),
        lambda: numbered.recommend(1, items=[odd]),
        lambda: numbered.recommend(1, block=[odd]),
        lambda: numbered.predict(odd, 10),
        lambda: numbered.predict([(1, 10), (1, odd)]),
        lambda: numbered.predict(pd.DataFrame({"user": [1, odd], "item": [10, 10]})),
        lambda: numbered.explain(odd, 10),
        lambda: numbered.explain(1, odd),
        lambda: numbered.update(forget=[odd]),
    ]
    if numbered.model.name == "als":
        calls += [
            lambda: numbered.similar_items([odd]),
            lambda: numbered.similar_users([1, odd]),
        ]
        calls += [lambda: numbered.recommend(history={odd: 5, 10: 3})]
        calls += [lambda: list(numbered.impute([odd]))]
    for call in calls:
        with pytest.raises(UnknownIdError, match=r"^Unknown (user|item)"):
            call()


def test_the_number_in_a_text_is_named_if_it_is_an_id() -> None:
    model = Recommender("popular").fit(ratings())
    with pytest.raises(
        UnknownIdError, match=r"Unknown user 'visitor-2'; the nearest id is 2\.$"
    ):
        model.recommend(["visitor-2"])
    with pytest.raises(
        UnknownIdError, match=r"Unknown item 'x'; ids look like 10, 20, 30\.$"
    ):
        model.explain(1, "x")


@pytest.mark.parametrize("odd", ODD)
def test_predictions_of_mixed_pairs(odd: Any) -> None:
    model = Recommender("als", factors=2).fit(ratings())
    for cold in ("bias", "popular"):
        alone = model.predict([(1, 10), (2, 20)], cold_start=cold)[
            "prediction"
        ].to_list()
        of_stranger = model.predict([(99, 10), (1, 99)], cold_start=cold)[
            "prediction"
        ].to_list()
        pairs = [(1, 10), (odd, 10), (2, 20), (1, odd)]
        expected = [alone[0], of_stranger[0], alone[1], of_stranger[1]]
        assert model.predict(pairs, cold_start=cold)["prediction"].to_list() == expected
        users, items = ([pair[side] for pair in pairs] for side in (0, 1))
        frame = pd.DataFrame({"user": users, "item": items})
        found = model.predict(frame, cold_start=cold)
        assert found["prediction"].to_list() == expected
        assert found["user"].to_list() == [str(user) for user in users]


def test_blocked_pairs_of_any_type() -> None:
    model = Recommender("popular").fit(ratings())
    block = {"visitor-17": [10, "x"], 1: [30]}
    found = model.recommend(["visitor-17", 1], 5, block=block, cold_start="popular")
    assert 10 not in found.filter(user="visitor-17")["item"].to_list()
    assert 20 in found.filter(user="visitor-17")["item"].to_list()
    assert found.filter(user="1").is_empty()


def test_batches_of_users_have_one_type(monkeypatch: pytest.MonkeyPatch) -> None:
    from recsys.ranking import rerank

    monkeypatch.setattr(rerank, "_RESULTS", 2)
    model = Recommender("als", factors=2).fit(ratings())
    batches = list(
        model.recommend_batches([1, 2, "visitor-17", 3], 2, cold_start="popular")
    )
    assert {batch["user"].dtype for batch in batches} == {pl.String}


def test_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from click.testing import CliRunner

    from recsys.cli.main import cli

    monkeypatch.chdir(tmp_path)
    Recommender("als", factors=2).fit(ratings()).save("model")

    def run(*words: str, code: int = 0) -> Any:
        done = CliRunner().invoke(cli, words)
        assert done.exit_code == code, done.output
        return json.loads(done.stdout)["rows"] if code == 0 else done.stderr

    cold = ("--cold-start", "popular", "--json")
    alone = run("recommend", "model", "--user", "visitor-17", *cold)
    assert [row["user"] for row in alone] == ["visitor-17"] * 3
    both = run("recommend", "model", "--user", "visitor-17", "--user", "1", *cold)
    assert both[:3] == alone
    assert [row["item"] for row in both[3:]] == [
        row["item"] for row in run("recommend", "model", "--user", "1", "--json")
    ]
    assert run("recommend", "model", "--user", "1.0", "--json") == run(
        "recommend", "model", "--user", "1", "--json"
    )
    Path("users.txt").write_text("visitor-17\n1\n")
    assert run("recommend", "model", "--users", "users.txt", *cold) == both
    Path("pairs.csv").write_text("user,item\n1,10\nvisitor-17,10\n2,x\n")
    predicted = run("predict", "model", "pairs.csv", *cold)
    assert [row["user"] for row in predicted] == ["1", "visitor-17", "2"]
    whole = ("explain", "model", "--user", "1.0", "--item", "10.0", "--json")
    assert run(*whole) == run(
        "explain", "model", "--user", "1", "--item", "10", "--json"
    )
    message = run("similar", "model", "--item", "sku-20", code=1)
    assert "Unknown item 'sku-20'; the nearest id is 20." in message
    message = run("explain", "model", "--user", "visitor-2", "--item", "10", code=1)
    assert "Unknown user 'visitor-2'; the nearest id is 2." in message


@pytest.mark.parametrize("ids", [[1, 1, 2, 2, 3, 3], [*"112233"]])
def test_unknown_ids_of_other_types_are_unknown_users(ids):
    pairs = pl.DataFrame({"user": ids, "item": [*"abacbc"]})
    recommender = Recommender("popular").fit(pairs)
    uuid, date = UUID(int=5), datetime.date(2025, 1, 1)
    for unknown in ("visitor-17", "", 99, 2**70, np.str_("x"), uuid, date):
        for users in (unknown, [unknown], [unknown, ids[0]]):
            lists = recommender.recommend(users, 1, cold_start="popular")
            assert lists["item"][0] == "c"
            assert lists["user"].cast(pl.String)[0] == str(unknown)
        with pytest.raises(UnknownIdError):
            recommender.recommend(unknown)
        pair = [(unknown, "a")]
        assert len(recommender.predict(pair, cold_start="popular")) == 1
        with pytest.raises(UnknownIdError):
            recommender.predict(pair)
        for method in (recommender.explain, recommender.placement):
            with pytest.raises(UnknownIdError):
                method(unknown, "a")
    for column in (
        pl.Series([date]),
        pl.Series([uuid], dtype=pl.Object),
        np.array([date], "M8[D]"),
        pd.Series([uuid]),
    ):
        assert len(recommender.recommend(column, 1, cold_start="popular")) == 1
    # Bytes, missing ids and fractions are no ids at all.
    for wrong in (b"x", [None], 1.5, True):
        with pytest.raises(DataError):
            recommender.recommend(wrong, cold_start="popular")
