"""What comes next, through every door: the order of a history counts as in the training data."""

from __future__ import annotations

import io

import numpy as np
import polars as pl
import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st
from serving import Application

from recsys import Recommender
from recsys.cli.main import cli
from recsys.data.ratings import Ratings
from recsys.features.selection import with_features
from recsys.serve import create_app

KINDS = {"view": 1.0, "buy": 3.0, "hover": 0.0}


def make_events(seed=0, n_users=30, n_items=9, *, ties=True, kinds=False):
    """Sessions in which items come again, some in the same second; rows in the order of time."""
    rng = np.random.default_rng(seed)
    n = n_users * 6
    steps = rng.integers(0 if ties else 1, 3, n)
    frame = pl.DataFrame(
        {
            "user": rng.integers(0, n_users, n),
            "item": rng.integers(0, n_items, n),
            "timestamp": 1_600_000_000 + np.cumsum(steps),
        }
    )
    if kinds:
        names = pl.Series(rng.choice([*KINDS], n))
        frame = frame.with_columns(event=names)
    return frame


def fitted(frame, name="next", **options):
    if "event" in frame.columns:
        options["event_weights"] = KINDS
    return Recommender(name).fit(Ratings.from_frame(frame, implicit=True, **options))


def scores_by_id(recommender):
    """Scores of all users by user and item."""
    ratings = recommender.ratings
    scores = recommender.model.scores(np.arange(ratings.n_users))
    users = ratings.users.values.to_list()
    items = ratings.items.values.to_list()
    return {
        (user, item): scores[row, column]
        for row, user in enumerate(users)
        for column, item in enumerate(items)
    }


def assert_same(one, other):
    one, other = scores_by_id(one), scores_by_id(other)
    assert one.keys() == other.keys()
    values = [one[pair] for pair in other]
    np.testing.assert_allclose(values, [*other.values()], rtol=1e-5, atol=1e-6)


@settings(max_examples=6)
@given(seed=st.integers(0, 10**6), kinds=st.booleans(), ties=st.booleans())
def test_the_events_of_a_user_folded_in_score_as_in_the_training_data(
    seed, kinds, ties
):
    frame = make_events(seed, kinds=kinds, ties=ties)
    recommender = fitted(frame)
    expected = scores_by_id(recommender)
    users = recommender.ratings.users.values.to_list()[:6]
    for user in users:
        own = frame.filter(pl.col("user") == user)
        histories = [own] if ties else [own, own.drop("timestamp")]
        for history in histories:
            folded = scores_by_id(recommender.fold_in(history))
            for (_, item), score in folded.items():
                assert score == pytest.approx(expected[user, item], rel=1e-4, abs=1e-5)


@settings(max_examples=4)
@given(seed=st.integers(0, 10**6), kinds=st.booleans())
def test_updates_and_forgotten_users_equal_a_fit_to_what_remains(seed, kinds):
    frame = make_events(seed, kinds=kinds)
    first, later = frame[:-30], frame[-30:]
    before = fitted(first)
    person = first["user"][0]
    updated = before.update(later)
    assert_same(updated, fitted(frame))
    forgotten = updated.update(forget=[person])
    assert_same(forgotten, fitted(frame.filter(pl.col("user") != person)))


@settings(max_examples=4)
@given(seed=st.integers(0, 10**6), kinds=st.booleans())
def test_explanations_add_up_to_the_score(seed, kinds):
    recommender = fitted(make_events(seed, kinds=kinds))
    user = recommender.ratings.users.values[0]
    top = recommender.recommend(users=[user], n=3, exclude_seen=False)
    for item, score in top.select("item", "score").iter_rows():
        parts = recommender.explain(user, item)["contribution"]
        assert parts.sum() == pytest.approx(score, rel=1e-4, abs=1e-5)


def test_kinds_without_weight_do_not_come_next():
    frame = make_events(kinds=True)
    without = frame.filter(pl.col("event") != "hover")
    one, other = fitted(frame), fitted(without)
    assert_same(one, other)


def test_purchases_count_more_than_views():
    rows = []
    for user in range(30):
        after = "bought" if user % 2 else "viewed"
        rows += [(user, "start", "view"), (user, after, "view")]
    frame = pl.DataFrame(rows, schema=["user", "item", "event"], orient="row")
    frame = frame.with_columns(
        timestamp=pl.int_range(pl.len()) + 1_600_000_000,
        event=pl.when(pl.col("item") == "bought")
        .then(pl.lit("buy"))
        .otherwise(pl.col("event")),
    )
    top = fitted(frame).recommend(history=["start"], n=1)
    assert top["item"].to_list() == ["bought"]


def test_the_last_of_repeated_items_in_a_list_counts():
    recommender = fitted(make_events())
    expected = recommender.recommend(history=[5, 1], n=4)
    assert recommender.recommend(history=[1, 5, 1], n=4).equals(expected)


def test_the_order_of_a_history_counts_in_a_blend():
    frame = make_events(n_users=60)
    ratings = Ratings.from_frame(frame, implicit=True)
    recommender = Recommender("blend", members="next,ease", weights="1,1").fit(ratings)
    assert recommender.model.uses_order
    one = recommender.recommend(history=[1, 5], n=4)
    other = recommender.recommend(history=[5, 1], n=4)
    assert one["score"].to_list() != other["score"].to_list()
    timed = pl.DataFrame({"item": [5, 1], "timestamp": [1.5e9 + 9, 1.5e9]})
    assert recommender.recommend(history=timed, n=4).equals(one)


@pytest.mark.parametrize("grades", [False, True], ids=["clicks", "grades"])
def test_a_posted_history_is_in_order_or_in_that_of_its_times(tmp_path, grades):
    frame = make_events(ties=False).unique(["user", "item"], maintain_order=True)
    if grades:
        frame = frame.with_columns(rating=pl.lit(3.0) + pl.int_range(pl.len()) % 3)
    ratings = Ratings.from_frame(frame, implicit=not grades)
    Recommender("next").fit(ratings).save(tmp_path / "m")
    recommender = Recommender.load(tmp_path / "m")

    def expected(items):
        history = items if not grades else dict.fromkeys(items, 5.0)
        return recommender.recommend(history=history, n=4)["item"].to_list()

    assert expected([1, 5]) != expected([5, 1])
    with Application(create_app(str(tmp_path / "m"))) as service:
        service.ready()

        def posted(history):
            body = {"history": history, "n": 4}
            answer = service.post("/v1/recommend", body)
            assert answer.status == 200, answer.json
            return [int(row["item"]) for row in answer.json["items"]]

        rows = [{"item": item} for item in (1, 5)]
        assert posted(rows) == expected([1, 5])
        assert posted(rows[::-1]) == expected([5, 1])
        assert posted([rows[0], rows[1], rows[0]]) == expected([5, 1])
        times = ["2024-01-02T00:00:00Z", "2024-01-01T00:00:00Z"]
        timed = [
            {**row, "timestamp": time} for row, time in zip(rows, times, strict=True)
        ]
        assert posted(timed) == expected([5, 1])


def test_likes_on_the_command_line_come_in_the_order_given(tmp_path):
    recommender = fitted(make_events())
    recommender.save(tmp_path / "m")
    (tmp_path / "history.csv").write_text("item\n5\n1\n")

    def listed(*options):
        args = ["recommend", str(tmp_path / "m"), *options, "-n", "4"]
        result = CliRunner().invoke(cli, [*args, "--format", "csv"])
        assert result.exit_code == 0, result.stderr
        return pl.read_csv(io.StringIO(result.stdout))["item"].to_list()

    for order in ([1, 5], [5, 1]):
        expected = recommender.recommend(history=order, n=4)["item"].to_list()
        likes = [text for item in order for text in ("--like", str(item))]
        assert listed(*likes) == expected
    assert listed("--history", str(tmp_path / "history.csv")) == expected


def test_saved_models_give_the_same_lists_and_reranking_and_filters_apply(tmp_path):
    recommender = fitted(make_events())
    recommender.save(tmp_path / "m")
    loaded = Recommender.load(tmp_path / "m")
    assert loaded.recommend(n=3).equals(recommender.recommend(n=3))
    top = loaded.recommend(history=[1, 5], n=5)["item"].to_list()
    filtered = loaded.recommend(history=[1, 5], n=5, block=top[:1])
    assert filtered["item"].to_list()[:4] == top[1:]
    varied = loaded.recommend(history=[1, 5], n=5, diversity=0.9)
    assert varied["item"].to_list() != top
    assert set(loaded.similar_items(5, n=3)["similar"]) < set(range(9))


GROUPS = 4


def items_of(group, number):
    return f"g{group}-{number}"


def grouped_events(n_users=200, seed=0):
    """After an item of a group comes one of the next group; item 9 of each group is new."""
    rng = np.random.default_rng(seed)
    rows = []
    for user in range(n_users):
        group = rng.integers(GROUPS)
        for step in range(5):
            item = items_of(group, rng.integers(9))
            rows.append((user, item, 1_600_000_000 + 10 * len(rows) + step))
            group = (group + 1) % GROUPS
    events = pl.DataFrame(rows, schema=["user", "item", "timestamp"], orient="row")
    names = [items_of(group, number) for group in range(GROUPS) for number in range(10)]
    table = pl.DataFrame({"item": names, "group": [name[:2] for name in names]})
    return events, table


@pytest.fixture(scope="module")
def featured():
    events, table = grouped_events()
    ratings = Ratings.from_frame(events, implicit=True, item_table=table)
    return Recommender("next").fit(with_features(ratings, unrated=True))


def assert_next_group(recommender):
    """A new item comes after the group before its own, and the next group after it."""
    new = [items_of(group, 9) for group in range(GROUPS)]
    for group in range(GROUPS):
        following = (group + 1) % GROUPS
        history = [items_of(group, 3)]
        top = recommender.recommend(history=history, n=1, items=new)
        assert top["item"].to_list() == [items_of(following, 9)]
        after = recommender.recommend(history=[items_of(group, 9)], n=3)
        assert {item[:2] for item in after["item"]} == {f"g{following}"}
        top = recommender.recommend(history=[items_of(group, 9)], n=1, items=new)
        assert top["item"].to_list() == [items_of(following, 9)]


def test_features_predict_what_comes_after_and_before_new_items(featured, tmp_path):
    assert featured.model.knows("item")
    assert_next_group(featured)
    featured.save(tmp_path / "m")
    assert_next_group(Recommender.load(tmp_path / "m"))


def test_a_table_of_today_brings_new_items_that_come_next():
    events, table = grouped_events(seed=1)
    yesterday = table.filter(~pl.col("item").str.ends_with("9"))
    ratings = Ratings.from_frame(events, implicit=True, item_table=yesterday)
    recommender = Recommender("next").fit(with_features(ratings))
    known = recommender.recommend(users=[3], n=5)
    wider = recommender.with_tables(item_table=table)
    assert_next_group(wider)
    old = wider.recommend(users=[3], n=5, items=yesterday["item"].to_list())
    assert old["item"].to_list() == known["item"].to_list()
    np.testing.assert_allclose(old["score"], known["score"], rtol=1e-4)


def test_explanations_with_new_items_add_up(featured):
    history = [items_of(0, 9), items_of(1, 2), items_of(2, 9), items_of(3, 4)]
    folded = featured.fold_in(history)
    top = folded.recommend(n=40, exclude_seen=False)
    for item, score in top.select("item", "score").iter_rows():
        parts = folded.explain("new", item)["contribution"]
        assert parts.sum() == pytest.approx(score, rel=1e-3, abs=1e-4)


def test_new_items_have_similar_ones(featured):
    similar = featured.similar_items(items_of(2, 9), n=5)["similar"].to_list()
    assert similar
