"""Evaluation by position: the next event of each test history, and splits of whole sessions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import recsys
from recsys import DataError, Recommender, evaluate, sessions_split
from recsys.cli.main import cli
from recsys.evaluation import read_split, save_split, split_from_pair
from recsys.evaluation.positions import Positions
from recsys.models.base import Model
from recsys.models.habits import habits
from recsys.models.histories import Histories
from recsys.models.registry import make_model

pytestmark = pytest.mark.usefixtures("one_fold")

N = 4
# The search for penalties is not what is tested here.
PENALTIES = {"ials": {"regularization": 0.01, "unobserved_weight": 0.1}}


def sessions(seed: int = 0, n: int = 40, n_items: int = 9) -> pl.DataFrame:
    """Sessions that walk over the items, with steps back and repetitions."""
    rng = np.random.default_rng(seed)
    rows = []
    for session in range(n):
        item = int(rng.integers(n_items))
        start = 1_500_000_000 + 100 * session + int(rng.integers(300))
        for step in range(int(rng.integers(1, 7))):
            rows.append((f"s{session}", f"i{item}", start + 7 * step))
            item = (item + int(rng.choice([0, 1, 1, 1, 2, 8]))) % n_items
    return pl.DataFrame(rows, schema=["user", "item", "timestamp"], orient="row")


def unfitted(model: str) -> dict[str, Model]:
    """Return what `evaluate` fits, under its name."""
    return {model: make_model(model, **PENALTIES.get(model, {}))}


def ends(frame: pl.DataFrame) -> pl.DataFrame:
    """The end of each session."""
    return frame.group_by("user").agg(pl.col("timestamp").max().alias("end"))


def brute_force(
    model: str, train: pl.DataFrame, test: pl.DataFrame, repeats: str, **options: Any
) -> dict[str, tuple[float, float, int]]:
    """Sums of hit rate and reciprocal rank, and positions, of each user: one list at a time."""
    ratings = recsys.Ratings.from_frame(train, **options)
    recommender = Recommender(model, **PENALTIES.get(model, {})).fit(ratings)
    trained = {*train["item"]}
    sums: dict[str, tuple[float, float, int]] = {}
    for user in test["user"].unique(maintain_order=True):
        before = train.filter(user=user).sort("timestamp", maintain_order=True)
        after = test.filter(user=user).sort("timestamp", maintain_order=True)
        events = pl.concat([before, after])
        hits = gains = 0.0
        n_positions = 0
        for place in range(max(1, len(before)), len(events)):
            target = events["item"][place]
            history = events[:place].filter(pl.col("item").is_in(trained))
            if repeats == "drop" and target in events["item"][:place]:
                continue
            n_positions += 1
            if not len(history):
                continue  # not in these data, as all items are trained
            top = recommender.recommend(
                n=N,
                history=history.with_columns(user=pl.lit("new")),
                exclude_seen=repeats == "drop",
            )
            ranks = top.filter(item=target)["rank"].to_list()
            hits += len(ranks)
            gains += sum(1 / rank for rank in ranks)
        if n_positions:
            sums[user] = hits, gains, n_positions
    return sums


@settings(max_examples=8, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    model=st.sampled_from(["next", "ease", "ials", "spectral", "implicit-knn"]),
    repeats=st.sampled_from(["drop", "keep"]),
    by_time=st.booleans(),
)
def test_positions_are_lists_of_recommend_one_by_one(
    seed: int, model: str, repeats: str, by_time: bool
) -> None:
    # Two items of a history have equal scores, whose order depends on the user.
    assume(model != "implicit-knn" or repeats == "drop")
    frame = sessions(seed, n=24)
    if by_time:
        # Users of the training part come again.
        split = recsys.time_split(frame, 0.3, repeats="keep")
        cut = pl.col("timestamp") < split.parameters["cut"]
    else:
        split = sessions_split(frame, 0.3)
        first = ends(frame).filter(pl.col("end") < split.parameters["cut"])["user"]
        cut = pl.col("user").is_in(first.implode())
    expected = brute_force(model, frame.filter(cut), frame.filter(~cut), repeats)

    found = evaluate(unfitted(model), split, N, positions=True, repeats=repeats)

    n_positions = sum(n for *_, n in expected.values())
    assert found.counts["positions"] == n_positions
    hits, gains, _ = np.array([*expected.values()]).sum(axis=0)
    row = found.table.to_dicts()[0]
    assert row[f"hit_rate@{N}"] == pytest.approx(hits / n_positions)
    assert row[f"mrr@{N}"] == pytest.approx(gains / n_positions)
    by_user = found.per_user.select("user", "relevant", f"hit_rate@{N}").rows()
    assert {user: (n, mean * n) for user, n, mean in by_user} == {
        user: (n, pytest.approx(of_user)) for user, (of_user, _, n) in expected.items()
    }


def test_sessions_are_held_out_whole_by_the_time_of_their_end() -> None:
    frame = sessions()
    split = sessions_split(frame, 0.25)
    by_end = ends(frame).sort("end")
    tested = by_end.filter(pl.col("end") >= split.parameters["cut"])["user"]
    assert 10 <= len(tested) <= 12
    events = split.test.to_frame(events=True)
    assert {*events["user"]} == {*tested}
    assert len(events) == len(frame.filter(pl.col("user").is_in(tested.implode())))
    split.check()


@pytest.mark.parametrize("fraction", [0.0, 1.0, 0.001])
def test_rejects_a_fraction_that_leaves_a_part_without_sessions(
    fraction: float,
) -> None:
    with pytest.raises(DataError, match="leave both parts non-empty"):
        sessions_split(sessions(), fraction)


@pytest.mark.parametrize("form", ["csv", "parquet"])
def test_a_saved_split_of_sessions_is_evaluated_alike(
    tmp_path: Path, form: str
) -> None:
    split = sessions_split(sessions(), 0.3, repeats="keep")
    save_split(split, tmp_path / "parts", form=form)
    again = read_split(tmp_path / "parts")
    assert (again.method, again.repeats) == ("sessions", "keep")
    one = evaluate(["next", "popular"], split, N)
    other = evaluate(["next", "popular"], again, N)
    assert one.settings.positions
    values = [name for name in one.metrics.columns if name != "model"]
    assert one.metrics.select(values).equals(other.metrics.select(values))


def test_events_with_kinds_survive_a_saved_split(tmp_path: Path) -> None:
    frame = sessions().with_columns(
        event=pl.Series(
            np.random.default_rng(1).choice(["view", "buy"], len(sessions()))
        )
    )
    ratings = recsys.Ratings.from_frame(
        frame, event="event", event_weights={"view": 1, "buy": 3}
    )
    split = sessions_split(ratings, 0.3)
    save_split(split, tmp_path / "parts")
    again = read_split(tmp_path / "parts")
    for part, other in zip(split.parts, again.parts, strict=True):
        assert part.to_frame(events=True).equals(other.to_frame(events=True))


def test_items_without_training_count_as_misses_and_repeat() -> None:
    train = pl.DataFrame(
        {"user": [1, 1, 2, 2], "item": ["a", "b", "a", "b"], "timestamp": [1, 2, 3, 4]}
    )
    test = pl.DataFrame(
        {"user": [9] * 4, "item": ["a", "new", "new", "b"], "timestamp": [5, 6, 7, 8]}
    )
    split = split_from_pair(train, test)
    keep = evaluate("popular", split, 2, positions=True, repeats="keep")
    assert (keep.counts["positions"], keep.counts["new_targets"]) == (3, 2)
    assert keep.table["hit_rate@2"][0] == pytest.approx(1 / 3)
    drop = evaluate("popular", split, 2, positions=True, repeats="drop")
    assert (drop.counts["positions"], drop.counts["new_targets"]) == (2, 1)
    assert drop.table["hit_rate@2"][0] == pytest.approx(1 / 2)


def test_the_interval_is_over_sessions() -> None:
    """Positions of a session are alike, so that the interval must not take each as a draw."""
    split = sessions_split(sessions(3, n=60), 0.5)
    found = evaluate("popular", split, N, resamples=400, repeats="keep")
    values = found.per_user[f"hit_rate@{N}"].to_numpy()
    counts = found.per_user["relevant"].to_numpy()
    rng = np.random.default_rng(0)
    drawn = rng.integers(0, len(values), (4000, len(values)))
    means = (values * counts)[drawn].sum(axis=1) / counts[drawn].sum(axis=1)
    row = found.metrics.filter(metric=f"hit_rate@{N}").to_dicts()[0]
    low, high = np.percentile(means, [2.5, 97.5])
    assert (row["low"], row["high"]) == pytest.approx((low, high), abs=0.03)


def test_histories_are_folded_in_a_few_at_a_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    split = sessions_split(sessions(), 0.3)
    models = unfitted("next") | unfitted("ials")
    whole = evaluate(models, split, N).metrics
    monkeypatch.setattr("recsys.evaluation.positions._BLOCK", 5)
    assert evaluate(models, split, N).metrics.equals(whole)


def test_a_fitted_recommender_is_evaluated_as_it_is() -> None:
    split = sessions_split(sessions(), 0.3)
    fitted = Recommender("ease").fit(split.train)
    assert evaluate(fitted, split, N).metrics["value"].to_list() == pytest.approx(
        evaluate("ease", split, N).metrics["value"].to_list()
    )


@pytest.mark.parametrize("model", ["ials", "next", "als"])
@pytest.mark.parametrize("repeats", ["drop", "keep"])
def test_kinds_and_ages_of_events_and_grades_count_as_in_recommend(
    model: str, repeats: str
) -> None:
    frame = sessions(1, n=30)
    rng = np.random.default_rng(1)
    options: dict[str, Any] = {}
    if model == "als":
        frame = frame.with_columns(
            rating=pl.Series(rng.integers(1, 6, len(frame)) * 1.0)
        )
    else:
        frame = frame.with_columns(
            event=pl.Series(rng.choice(["view", "buy"], len(frame)))
        )
        weights = {"view": 1, "buy": 3}
        options = {"event": "event", "event_weights": weights, "half_life": "0.02d"}
    split = sessions_split(recsys.Ratings.from_frame(frame, **options), 0.3)
    first = ends(frame).filter(pl.col("end") < split.parameters["cut"])["user"]
    is_early = pl.col("user").is_in(first.implode())
    parts = frame.filter(is_early), frame.filter(~is_early)
    hits, gains, n = np.sum(
        [*brute_force(model, *parts, repeats, **options).values()], 0
    )
    found = evaluate(unfitted(model), split, N, positions=True, repeats=repeats)
    row = found.table.to_dicts()[0]
    assert row[f"hit_rate@{N}"] == pytest.approx(hits / n)
    assert row[f"mrr@{N}"] == pytest.approx(gains / n)


@pytest.mark.parametrize("model", ["random", "implicit-bpr"])
def test_names_the_models_that_fold_in(model: str) -> None:
    with pytest.raises(
        DataError, match=f"The {model} model cannot fold in .*ease.*next"
    ):
        evaluate(model, sessions_split(sessions(), 0.3), N)


def test_rejects_what_does_not_apply_to_positions() -> None:
    split = sessions_split(sessions(), 0.3)
    with pytest.raises(DataError, match="coverage does not apply to positions"):
        evaluate("popular", split, N, metrics=["coverage"])
    with pytest.raises(DataError, match="leave out candidates"):
        evaluate("popular", split, N, candidates=3)
    by_time = recsys.time_split(sessions())
    with pytest.raises(DataError, match="repeats needs positions=True"):
        evaluate("popular", by_time, N, repeats="keep")
    untimed = recsys.random_split(sessions().drop("timestamp"))
    with pytest.raises(DataError, match="no timestamps"):
        evaluate("popular", untimed, N, positions=True)


def test_own_metrics_see_each_position() -> None:
    def first(hits: np.ndarray) -> np.ndarray:
        return hits[:, 0].astype(float)

    split = sessions_split(sessions(), 0.3)
    found = evaluate("next", split, [1, N], metrics=["hit_rate", first])
    assert found.table["first@1"][0] == found.table["hit_rate@1"][0]


def run(*arguments: str) -> str:
    from click.testing import CliRunner

    result = CliRunner().invoke(cli, [*arguments], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


def test_the_command_predicts_positions_of_files_and_of_saved_splits(
    tmp_path: Path,
) -> None:
    frame = sessions()
    clicks = tmp_path / "clicks.csv"
    frame.write_csv(clicks)
    chosen = ("--model", "next,popular", "-n", "4", "--json")
    direct = ("--method", "sessions", "--test-fraction", "0.3", "--repeats", "keep")
    document = run("evaluate", str(clicks), *direct, "--positions", *chosen)
    assert '"positions": true' in document
    parts = tmp_path / "parts"
    run("split", str(clicks), *direct, "--out", str(parts))
    pair = (f"--train={parts / 'train.csv'}", f"--test={parts / 'test.csv'}")
    for source in ((str(parts),), (*pair, "--positions", "--repeats", "keep")):
        other = run("evaluate", *source, *chosen)
        assert metrics(other) == metrics(document)
    dropped = run("evaluate", str(parts), "--repeats", "drop", *chosen)
    assert metrics(dropped) != metrics(document)


def metrics(document: str) -> list[object]:
    import json

    return [model["metrics"] for model in json.loads(document)["models"]]


def test_parameters_are_tuned_on_the_positions_of_sessions(tmp_path: Path) -> None:
    found = recsys.tune(
        "ease",
        sessions(n=80),
        metric="hit_rate@4",
        trials=2,
        validation=lambda ratings: sessions_split(ratings, 0.3, repeats="keep"),
    )
    split = sessions_split(sessions(n=80), 0.3, repeats="keep")
    measured = evaluate("ease", split, 4).table["hit_rate@4"][0]
    assert found.trials[0].value == pytest.approx(measured)
    rated = sessions().with_columns(rating=pl.Series(np.arange(len(sessions())) % 5))
    search = {"metric": "rmse", "trials": 1, "validation": sessions_split}
    with pytest.raises(DataError, match="rmse does not apply to sessions"):
        recsys.tune("als", rated, **search)
    clicks = tmp_path / "clicks.csv"
    sessions(n=200).write_csv(clicks)
    arguments = ("--model", "next", "--method", "sessions", "--trials", "1", "--json")
    assert '"state": "complete"' in run(
        "tune", str(clicks), "--metric", "hit_rate@4", *arguments
    )


def test_a_saved_model_is_measured_at_positions_of_other_sessions(
    tmp_path: Path,
) -> None:
    split = sessions_split(sessions(n_items=30), 0.3, repeats="keep")
    train, test = (part.to_frame(events=True) for part in split.parts)
    # An item without training ratings, which the model lacks.
    test = test.with_columns(
        item=pl.when(pl.col("item") == test["item"][1])
        .then(pl.lit("new"))
        .otherwise("item")
    )
    Recommender("next").fit(recsys.Ratings.from_frame(train)).save(tmp_path / "model")
    for name, part in (("train.csv", train), ("test.csv", test)):
        part.write_csv(tmp_path / name)
    test_file = f"--test={tmp_path / 'test.csv'}"
    options = ("--positions", "--repeats", "keep", "-n", "4", "--json")
    saved = run("evaluate", str(tmp_path / "model"), test_file, *options)
    pair = (f"--train={tmp_path / 'train.csv'}", test_file, "--model", "next")
    assert metrics(run("evaluate", *pair, *options)) == metrics(saved)
    both = run(
        "evaluate", str(tmp_path / "model"), test_file, "--model=popular", *options
    )
    assert metrics(both)[0] == metrics(saved)[0]


@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 1000), k=st.integers(1, 3), keep=st.booleans())
def test_a_split_by_time_tests_the_next_items_of_each_user(
    seed: int, k: int, keep: bool
) -> None:
    rng = np.random.default_rng(seed)
    rows = [(int(rng.integers(6)), int(rng.integers(8)), time) for time in range(60)]
    frame = pl.DataFrame(rows, schema=["user", "item", "timestamp"], orient="row")
    repeats = "keep" if keep else "drop"
    split = recsys.time_split(frame, 0.5, k=k, repeats=repeats)
    expected = set()
    for user in range(6):
        before = [item for u, item, time in rows if u == user and time < 30]
        seen, n = set() if keep else {*before}, 0
        for u, item, time in rows:
            if u != user or time < 30 or n == k or (not keep and item in seen):
                continue
            n += 1
            seen.add(item)
            expected.add((user, item))
    assert {row[:2] for row in split.test.to_frame().rows()} == expected
    assert split.train.log.seconds.max() == 29
    assert split.description.startswith("each user's next ")


def test_the_command_tests_the_next_items(tmp_path: Path) -> None:
    clicks, parts = tmp_path / "clicks.csv", tmp_path / "parts"
    sessions(n=60).write_csv(clicks)
    by_time = ("--method", "time", "--last", "1", "--test-fraction", "0.4")
    chosen = ("--model", "popular", "-n", "4", "--json")
    direct = run("evaluate", str(clicks), *by_time, *chosen)
    assert "each user's next event whose item is new to the user, since" in direct
    run("split", str(clicks), *by_time, "--out", str(parts))
    assert metrics(run("evaluate", str(parts), *chosen)) == metrics(direct)


def test_items_of_one_time_stay_one_basket_in_the_history_of_a_position() -> None:
    rows = [("u", item, 1e9 + week) for week in (0, 1) for item in ("a", "b", "c")]
    rows += [("u", "d", 1e9 + 1), ("u", "a", 1e9 + 2)]
    columns = ["user", "item", "timestamp"]
    frame = pl.DataFrame(rows, schema=columns, orient="row")
    train, test = frame[:-1], frame[-1:]
    ratings = [recsys.Ratings.from_frame(part, implicit=True) for part in (train, test)]
    split = split_from_pair(*ratings, repeats="keep")
    n_items = len(split.train.items)
    positions = Positions.of(split, np.arange(n_items), n_items, "keep")
    (history,) = (positions.histories(block) for block in positions.blocks())
    expected = habits(Histories.of(ratings[0]), weighted=False)
    shares = habits(history, weighted=False)
    np.testing.assert_allclose(sorted(shares), sorted(expected), rtol=1e-6)
