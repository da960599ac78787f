"""evaluate: models on the same split, against doing it slowly by hand."""

from dataclasses import replace

import numpy as np
import polars as pl
import pytest
import scipy.sparse as sp

import recsys.evaluation.measurement
import recsys.ranking.topn
from recsys.data.features import Features
from recsys.data.ids import Ids
from recsys.data.ratings import Ratings
from recsys.errors import DataError, NotFittedError
from recsys.evaluation import (
    METRICS,
    Metric,
    Split,
    WithoutFeatures,
    evaluate,
    held_out_cold_users,
    held_out_items,
    held_out_users,
    k_fold,
    random_split,
    sample_candidates,
    shared_test,
    split_from_pair,
    time_split,
)
from recsys.evaluation.statistics import holm, sign_flip
from recsys.evaluation.tasks import draw_items
from recsys.features.selection import with_features
from recsys.models.als import ALS
from recsys.models.baselines import Bias, Popular, Random
from recsys.ranking.topn import user_ties
from recsys.recommender import Recommender


@pytest.fixture
def split():
    rng = np.random.default_rng(3)
    matrix = sp.random_array(
        (40, 25),
        density=0.3,
        rng=rng,
        data_sampler=lambda size: rng.integers(1, 6, size),
    )
    return random_split(Ratings.from_matrix(matrix), 0.25, random_state=1)


@pytest.fixture
def implicit_split(split):
    pairs = split.train.to_frame().select("user", "item")
    held_out = split.test.to_frame().select("user", "item")
    return split_from_pair(Ratings.from_frame(pairs), Ratings.from_frame(held_out))


def slow_ranking(model, split, n, relevant_from=None):
    """Accuracy of each user, through frames of ids."""
    test = split.test.to_frame()
    if relevant_from is not None:
        test = test.filter(pl.col("rating") >= relevant_from)
    liked = {user: set(group["item"]) for (user,), group in test.group_by("user")}
    frame = Recommender(model).fit(split.train).recommend(sorted(liked), n)
    values = {}
    for user in sorted(liked):
        items = frame.filter(pl.col("user") == user)["item"].to_list()
        hits = [item in liked[user] for item in items]
        ranks = [rank for rank, hit in enumerate(hits, start=1) if hit]
        gain = sum(1 / np.log2(rank + 1) for rank in ranks)
        possible = min(n, len(liked[user]))
        ideal = sum(1 / np.log2(rank + 2) for rank in range(possible))
        values[user] = (
            sum(hits) / n,
            sum(hits) / len(liked[user]),
            float(any(hits)),
            sum(place / rank for place, rank in enumerate(ranks, start=1)) / possible,
            1 / ranks[0] if ranks else 0.0,
            gain / ideal,
        )
    return values


ACCURACY = ["precision", "recall", "hit_rate", "map", "mrr", "ndcg"]
BEYOND = ["coverage", "novelty", "diversity", "gini", "popularity_bias"]


def test_the_price_of_variety_is_measured(implicit_split):
    model = Recommender("ials", factors=4, random_state=0).fit(implicit_split.train)
    kinds = ["ndcg", "diversity"]
    plain, varied = (
        evaluate(
            [model], implicit_split, 5, diversity=x, metrics=kinds, resamples=0
        ).table
        for x in (0.0, 0.9)
    )
    assert varied["diversity@5"][0] > plain["diversity@5"][0]
    assert varied["ndcg@5"][0] != plain["ndcg@5"][0]
    with pytest.raises(DataError, match="popular model cannot diversify lists"):
        evaluate(["popular"], implicit_split, diversity=0.5)


def test_the_table_has_a_row_for_each_model(split):
    result = evaluate(["bias", "popular", Random(random_state=2)], split, n=[5, 2])
    ranked = [f"{kind}@{n}" for kind in ACCURACY + BEYOND for n in (2, 5)]
    assert result.table.columns == [
        *["model", "rmse", "mae", *ranked],
        *["fit_seconds", "recommend_seconds", "users"],
    ]
    assert result.table["model"].to_list() == ["bias", "popular", "random"]
    assert result.settings.ns == (2, 5)


def test_random_scores_are_not_predicted_ratings(split):
    table = evaluate(["random", "popular"], split).table
    assert table["rmse"].is_null().to_list() == [True, False]
    assert table["mae"].is_null().to_list() == [True, False]


@pytest.mark.parametrize("relevant_from", [None, 4])
def test_ranking_equals_the_slow_way(split, relevant_from):
    ns = [1, 4, 40]
    result = evaluate(["random"], split, n=ns, relevant_from=relevant_from)
    for n in ns:
        expected = slow_ranking("random", split, n, relevant_from)
        names = [f"{kind}@{n}" for kind in ACCURACY]
        known = result.per_user.drop_nulls(names)
        assert known["user"].to_list() == list(expected)
        np.testing.assert_allclose(
            known.select(names).to_numpy(), list(expected.values())
        )
        means = result.table.select(names).row(0)
        np.testing.assert_allclose(means, np.mean(list(expected.values()), axis=0))
    assert result.table["users"].to_list() == [len(expected)]


def test_users_without_relevant_items_have_errors_only(split):
    frame = evaluate(["popular"], split, relevant_from=4).per_user
    others = frame.filter(pl.col("relevant") == 0)
    assert 0 < len(others) < len(frame)
    assert others["ndcg@10"].is_null().all()
    assert frame["squared_error"].is_not_null().all()


def test_rating_errors_equal_the_recommender(split):
    row = evaluate(["bias"], split).table.row(0, named=True)
    test = split.test.to_frame()
    predicted = Recommender("bias").fit(split.train).predict(test)["prediction"]
    errors = (predicted - test["rating"]).to_numpy().astype(float)
    assert row["rmse"] == pytest.approx(np.sqrt(np.mean(errors**2)))
    assert row["mae"] == pytest.approx(np.mean(np.abs(errors)))


def test_predictions_are_clipped(split):
    tame, wild = evaluate({"tame": Bias(), "wild": Wild()}, split).table["rmse"]
    worst = np.abs(split.test.values[:, None] - [1, 5]).max(axis=1)
    assert tame < wild <= np.sqrt(np.mean(worst**2))


class Wild(Bias):
    def predict(self, users, items):
        return super().predict(users, items) + 1000


def test_new_ids_are_dropped_or_kept_and_counted():
    nan = np.nan
    whole = Ratings.from_matrix(np.array([[5, nan, 1], [4, 3, nan], [nan, nan, 2.0]]))
    held_out = np.array([False, True, True, False, True])
    split = Split(whole.take(~held_out), whole.take(held_out))
    new = {"new_users": 1, "new_items": 1, "new_ratings": 2, "known_pairs": 0}
    kept = evaluate(["popular"], split, n=1, new="keep")
    assert kept.counts == {
        "train_ratings": 2,
        "test_ratings": 3,
        "users_evaluated": 3,
        "users_without_test_items": 0,
        **new,
    }
    dropped = evaluate(["popular"], split, n=1)
    assert dropped.counts["test_ratings"] == dropped.counts["users_evaluated"] == 1
    assert dropped.per_user["user"].to_list() == [1]
    strangers = np.array([False, False, True, True, True])
    with pytest.raises(
        DataError, match="hold out fewer ratings, or at random if these"
    ):
        evaluate(["popular"], Split(whole.take(~strangers), whole.take(strangers)), n=1)
    liked = evaluate(["popular"], split, n=1, relevant_from=2, new="keep")
    assert liked.counts["users_without_test_items"] == 1
    assert liked.per_user.drop_nulls("ndcg@1")["user"].to_list() == [1, 2]


def test_repeated_pairs_can_be_kept_and_are_then_recommended():
    rows = {
        "user": [1, 1, 1, 2, 2],
        "item": [7, 7, 8, 8, 7],
        "timestamp": [1, 5, 2, 1, 6],
    }
    split = time_split(Ratings.from_frame(pl.DataFrame(rows)), cut=5, repeats="keep")
    assert split.test.n_ratings == 2
    kept = evaluate(["popular"], split, n=2, metrics=["recall"], resamples=0)
    assert kept.table["recall@2"].to_list() == [1.0]
    assert kept.splits[0].repeats == "keep"
    dropped = time_split(Ratings.from_frame(pl.DataFrame(rows)), cut=5)
    found = evaluate(["popular"], dropped, n=2, metrics=["recall"], resamples=0)
    assert (found.counts["test_ratings"], found.counts["known_pairs"]) == (1, 1)


def test_dropped_ids_do_not_affect_the_metrics(split):
    train, test = split.train.to_frame(), split.test.to_frame()
    strangers = pl.DataFrame({"user": [0, 99], "item": [99, 0], "rating": [1.0, 5.0]})
    wider = pl.concat([test, strangers.cast(test.schema)])
    pair = split_from_pair(Ratings.from_frame(train), Ratings.from_frame(wider))
    found = evaluate(["bias"], pair)
    assert (found.counts["new_users"], found.counts["new_items"]) == (1, 1)
    assert found.counts["new_ratings"] == 2
    plain = evaluate(["bias"], split_from_pair(Ratings.from_frame(train), split.test))
    assert found.per_user.equals(plain.per_user)
    assert found.fingerprint != plain.fingerprint


def test_implicit_feedback_is_ranked_only(implicit_split):
    row = evaluate(["popular"], implicit_split).table.row(0, named=True)
    assert row["rmse"] is row["mae"] is None
    assert (
        "rmse" not in evaluate(["popular"], implicit_split).metrics["metric"].to_list()
    )
    assert row["ndcg@10"] > 0


def test_a_model_that_needs_values_says_so(implicit_split):
    with pytest.raises(DataError, match="The bias model needs ratings with values"):
        evaluate(["bias"], implicit_split)


def test_blocks_change_nothing(split, monkeypatch):
    whole = evaluate(["bias"], split).per_user
    monkeypatch.setattr(recsys.ranking.topn, "_BLOCK_SCORES", 60)
    monkeypatch.setattr(recsys.evaluation.measurement, "_BLOCK", 70)
    assert evaluate(["bias"], split).per_user.equals(whole)


def test_labels_of_a_mapping(split):
    models = {"few": Popular(damping=1), "many": Popular(damping=50)}
    result = evaluate(models, split)
    assert result.table["model"].to_list() == ["few", "many"]
    assert evaluate(Popular(), split).table["model"].to_list() == ["popular"]
    assert result.per_user["model"].unique(maintain_order=True).to_list() == [
        "few",
        "many",
    ]
    with pytest.raises(
        DataError, match="Two models are named 'popular'; pass a mapping with a label"
    ):
        evaluate([Popular(), "popular"], split)


def test_steps_are_reported_with_their_model(split):
    steps = []
    evaluate(
        {"b": "bias", "p": "popular"},
        split,
        on_step=lambda label, step: steps.append((label, step.step)),
    )
    assert steps[:2] == [("b", 1), ("b", 2)]
    assert {label for label, _ in steps} == {"b"}


def test_bad_questions_raise(split):
    with pytest.raises(DataError, match="n must be at least 1; got 0"):
        evaluate(["popular"], split, n=0)
    with pytest.raises(DataError, match="n must be a whole number; got '5'"):
        evaluate(["popular"], split, n="5")
    with pytest.raises(DataError, match=r"n must be a whole number; got 2\.5"):
        evaluate(["popular"], split, n=[1, 2.5])
    with pytest.raises(DataError, match="n must be a number or several; got none"):
        evaluate(["popular"], split, n=[])
    assert evaluate(["popular"], split, n=np.int64(2)).settings.ns == (2,)
    with pytest.raises(
        DataError, match="No test rating is 6 or more, so no item is relevant"
    ):
        evaluate(["popular"], split, relevant_from=6)
    nothing = split.test.take(np.zeros(split.test.n_ratings, bool))
    with pytest.raises(
        DataError, match="There are no test ratings to evaluate models on"
    ):
        evaluate(["popular"], Split(split.train, nothing))
    with pytest.raises(
        DataError, match="There is no model 'populer'; did you mean popular"
    ):
        evaluate(["populer"], split)
    with pytest.raises(DataError, match="metric must be one of rmse, mae"):
        evaluate(["popular"], split, metrics=["auc"])
    with pytest.raises(DataError, match="new must be 'drop' or 'keep'; got 'ask'"):
        evaluate(["popular"], split, new="ask")
    with pytest.raises(DataError, match="confidence must be between 0 and 1; got 95"):
        evaluate(["popular"], split, confidence=95)
    with pytest.raises(DataError, match="resamples must be at least 0; got -1"):
        evaluate(["popular"], split, resamples=-1)
    with pytest.raises(DataError, match=r"resamples must be a whole number; got 2\.5"):
        evaluate(["popular"], split, resamples=2.5)
    with pytest.raises(DataError, match=r"candidates must be a whole number; got 2\.5"):
        evaluate(["popular"], split, candidates=2.5)
    with pytest.raises(DataError, match="models must hold at least one model"):
        evaluate([], split)
    with pytest.raises(DataError, match="split must hold at least one Split"):
        evaluate(["popular"], [])


def test_metrics_have_their_intervals(split):
    found = evaluate(["bias", "random"], split, n=[3, 9])
    assert found.metrics.height == 2 * 11 * 2 + 2
    row = found.metrics.filter(model="bias", metric="ndcg@3").row(0, named=True)
    values = found.per_user.filter(model="bias")["ndcg@3"].to_numpy()
    assert row["value"] == pytest.approx(values.mean())
    assert (row["kind"], row["n"], row["users"]) == ("ndcg", 3, len(values))
    spread = 1.96 * values.std() / np.sqrt(len(values))
    assert row["low"] == pytest.approx(values.mean() - spread, abs=spread / 3)
    assert row["high"] == pytest.approx(values.mean() + spread, abs=spread / 3)
    inside = pl.col("value").is_between("low", "high")
    assert found.metrics.select(inside.all()).item()
    again = evaluate(["bias", "random"], split, n=[3, 9])
    assert again.metrics.equals(found.metrics)
    assert not evaluate(["bias", "random"], split, n=3, random_state=1).metrics.equals(
        evaluate(["bias", "random"], split, n=3).metrics
    )


def test_errors_of_users_make_up_the_error(split):
    found = evaluate(["bias"], split)
    users = found.per_user
    mean = users["squared_error"].sum() / users["ratings"].sum()
    assert found.table["rmse"][0] == pytest.approx(np.sqrt(mean))
    assert (
        users["ratings"].sum() == found.residuals["count"].sum() == split.test.n_ratings
    )


def test_pairs_of_models_are_compared(split):
    found = evaluate(["bias", "popular", "random"], split, n=5)
    compared = found.comparisons
    of_other_splits = {"rmse_warm", "rmse_cold"}
    assert (
        set(compared["kind"])
        == {metric.name for metric in METRICS.values() if metric.is_usual}
        - {"coverage", "gini"}
        - of_other_splits
    )
    assert compared.filter(kind="ndcg").select("model", "other").rows() == [
        ("bias", "popular"),
        ("bias", "random"),
        ("popular", "random"),
    ]
    assert compared.filter(kind="rmse").height == 1
    row = compared.filter(metric="recall@5").row(0, named=True)
    bias, popular = (
        found.per_user.filter(model=model)["recall@5"].to_numpy()
        for model in ("bias", "popular")
    )
    # New minus old: the first model is the one to compare with.
    assert row["difference"] == pytest.approx((popular - bias).mean())
    assert row["low"] <= row["difference"] <= row["high"]
    for row in compared.to_dicts():
        gain = row["difference"] * METRICS[row["kind"]].direction
        is_significant = row["adjusted"] < 0.05 and gain != 0
        said = ("better" if gain > 0 else "worse") if is_significant else None
        assert row["verdict"] == said
    row = compared.filter(metric="recall@5").row(0, named=True)
    expected = sign_flip((bias - popular)[:, None])[0]
    assert row["p_value"] == pytest.approx(expected, abs=0.02)
    recall = compared.filter(metric="recall@5")
    np.testing.assert_array_equal(recall["adjusted"], holm(recall["p_value"]))


def test_the_same_model_twice_does_not_differ(split):
    found = evaluate({"one": "bias", "two": "bias"}, split)
    assert found.comparisons["p_value"].to_list() == [1.0] * found.comparisons.height
    assert found.comparisons["difference"].to_list() == [0.0] * found.comparisons.height


def test_without_resamples_there_are_values_alone(split):
    found = evaluate(
        ["bias", "popular"], split, resamples=0, metrics=["ndcg", "gini", "rmse"]
    )
    assert found.metrics["kind"].unique(maintain_order=True).to_list() == [
        "rmse",
        "ndcg",
        "gini",
    ]
    assert found.metrics["low"].is_null().all()
    assert found.comparisons.is_empty()


def test_one_user_has_no_interval():
    ratings = Ratings.from_matrix(np.array([[5.0, 3, 1], [4, np.nan, 2]]))
    held_out = np.array([True, False, False, False, False])
    found = evaluate(
        ["popular"], Split(ratings.take(~held_out), ratings.take(held_out))
    )
    assert found.metrics["low"].is_null().all()


def test_folds_are_averaged_by_user(split):
    ratings = split_from_pair(split.train, split.test)
    whole = Ratings.from_frame(
        pl.concat([ratings.train.to_frame(), ratings.test.to_frame()])
    )
    folds = list(k_fold(whole, 3, random_state=1))
    together = evaluate(["bias"], folds, n=5, metrics=["rmse", "ndcg", "coverage"])
    single = [
        evaluate(["bias"], f, n=5, metrics=["rmse", "ndcg", "coverage"]) for f in folds
    ]
    parts = pl.concat([each.per_user for each in single])
    known = whole.n_ratings - together.counts["new_ratings"]
    assert (
        together.per_user["ratings"].sum() == together.counts["test_ratings"] == known
    )
    for user in (0, 7, 39):
        mine = together.per_user.filter(user=user).row(0, named=True)
        theirs = parts.filter(user=user)
        assert mine["ndcg@5"] == pytest.approx(theirs["ndcg@5"].mean())
        assert mine["squared_error"] == pytest.approx(theirs["squared_error"].sum())
    mean = parts["squared_error"].sum() / known
    assert together.table["rmse"][0] == pytest.approx(np.sqrt(mean))
    coverage = [each.table["coverage@5"][0] for each in single]
    assert together.table["coverage@5"][0] == pytest.approx(np.mean(coverage))
    assert [info.parameters["fold"] for info in together.splits] == [1, 2, 3]
    row = together.metrics.filter(kind="coverage").row(0, named=True)
    assert row["low"] < row["value"] < row["high"]


def test_held_out_users_are_folded_in(split):
    held = held_out_users(split.train, 0.3, random_state=1)
    model = ALS(factors=3)
    found = evaluate([model], held, n=5)
    assert model.n_users == held.train.n_users
    folded = Recommender(model)
    folded.fit(held.train)
    history = held.history.to_frame()
    frame = folded.recommend(history=history, n=5)
    liked = held.test.to_frame()
    hits = frame.join(liked, on=["user", "item"]).group_by("user").len()
    assert found.per_user["precision@5"].sum() == pytest.approx(hits["len"].sum() / 5)
    predicted = folded.fold_in(history).predict(liked)["prediction"]
    rmse = np.sqrt(((predicted - liked["rating"]) ** 2).mean())
    assert found.table["rmse"][0] == pytest.approx(rmse, rel=1e-5)


def test_cold_items_are_ranked_among_themselves_and_their_errors_told_apart(split):
    held = held_out_items(split.train, 0.2, 0.2, random_state=1)
    found = evaluate(
        ["als", "bias"], held, n=3, metrics=["rmse", "rmse_warm", "rmse_cold", "recall"]
    )
    assert {"rmse", "rmse_warm", "rmse_cold"} < {*found.table.columns}
    model = ALS().fit(held.train)
    rows, new = held.test.user_index_of_nonzeros(), held.is_new
    predicted = np.clip(
        model.predict(rows, held.test.indices),
        held.train.values.min(),
        held.train.values.max(),
    )
    squares = (predicted - held.test.values) ** 2
    for part, mask in (("warm", ~new), ("cold", new)):
        expected = np.sqrt(squares[mask].mean())
        assert found.table[f"rmse_{part}"][0] == pytest.approx(expected, rel=1e-5)
    # With as many recommendations as held-out items, all of them are found.
    n = held.new_items
    found = evaluate(["als"], held, n=n, metrics=["recall"])
    assert found.table[f"recall@{n}"][0] == 1
    # So are coverage and the Gini index of these items alone, whatever else there is.
    found = evaluate(["als"], held, n=[1, n], metrics=["coverage", "gini"])
    assert found.table.select(f"coverage@{n}", f"gini@{n}").row(0) == (1, 0)
    assert 1 / n <= found.table["coverage@1"][0] <= 1
    # Sampled candidates are held-out items, too.
    found = evaluate(["als"], held, n=n, metrics=["coverage"], candidates=n)
    assert found.table[f"coverage@{n}"][0] == 1


def test_coverage_is_of_the_items_that_can_be_recommended():
    nan = np.nan
    whole = Ratings.from_matrix(np.array([[5, nan, 1], [4, 3, nan], [nan, nan, 2.0]]))
    held_out = np.array([False, True, True, False, True])
    split = Split(whole.take(~held_out), whole.take(held_out))
    for new, expected in (("drop", 1 / 2), ("keep", 2 / 3)):
        found = evaluate(
            ["popular"], split, n=1, new=new, metrics=["coverage"], resamples=0
        )
        assert found.table["coverage@1"][0] == expected


@pytest.mark.parametrize("models", [["bias", "random"], ["random", "bias"]])
@pytest.mark.parametrize("make", [held_out_items, held_out_cold_users])
def test_models_that_only_rank_are_compared_on_cold_splits(split, make, models):
    held = make(split.train, 0.2, 0.2, random_state=1)
    found = evaluate(models, held, n=3)
    errors = found.table.filter(model="random").select("rmse", "rmse_warm", "rmse_cold")
    assert errors.row(0) == (None, None, None)
    users = found.per_user
    assert users.filter(model="random")["warm_ratings"].is_null().all()
    alone = evaluate("bias", held, n=3).per_user
    assert users.filter(model="bias").select(alone.columns).equals(alone)
    assert {"ndcg@3"} <= {*found.comparisons["metric"]}


def test_chance_orders_cold_items_of_which_a_model_knows_nothing():
    rng = np.random.default_rng(0)
    users, items = np.nonzero(rng.random((400, 60)) < np.linspace(0.9, 0.02, 60))
    held = held_out_items(pl.DataFrame({"user": users, "item": items}), 0.3)
    found = evaluate(["popular"], held, n=1, metrics=["precision"])
    by_chance = found.per_user["user"].len() * held.new_items
    n_relevant = held.test.take(held.is_new).n_ratings
    assert found.table["precision@1"][0] == pytest.approx(
        n_relevant / by_chance, abs=0.05
    )


def test_models_that_cannot_fold_users_in_raise(split):
    with pytest.raises(
        DataError, match=r"The rigid model cannot fold in .*: als, .*bias"
    ):
        evaluate([Rigid()], held_out_users(split.train, 0.3))


class Rigid(Random):
    name = "rigid"
    with_users = None


@pytest.mark.parametrize("model", ["bias", "als"])
def test_sampled_candidates_are_ranked_among_themselves(split, model):
    found = evaluate([model], split, n=4, candidates=6, random_state=5)
    relevant = split.test
    drawn = sample_candidates(split, relevant, 6, random_state=5)
    seen = split.train.to_frame()
    full = Recommender(model).fit(split.train).recommend(n=25)
    for user in found.per_user["user"]:
        mine = drawn.indices[drawn.indptr[user] : drawn.indptr[user + 1]]
        liked = relevant.indices[relevant.indptr[user] : relevant.indptr[user + 1]]
        assert (
            len(set(mine.tolist()))
            == len(mine)
            == len(liked) + min(6, 25 - len(liked) - seen.filter(user=user).height)
        )
        assert not set(mine.tolist()) & set(seen.filter(user=user)["item"].to_list())
        ranked = [i for i in full.filter(user=user)["item"].to_list() if i in mine][:4]
        value = found.per_user.filter(user=user)["precision@4"][0]
        assert value == len(set(ranked) & set(liked.tolist())) / 4


def candidates_by_id(parts):
    """Return the candidates of each user with test ratings, as sets of texts."""
    test = parts[1]
    drawn = sample_candidates(Split(*parts), test, 3, random_state=2)
    items = test.items.values.cast(pl.String).gather(drawn.indices).to_list()
    ends = zip(test.users, drawn.indptr[:-1], drawn.indptr[1:], strict=True)
    return {str(user): {*items[start:end]} for user, start, end in ends if end > start}


def test_candidates_depend_on_ids_and_not_on_their_order(split):
    users, items = (
        ids.values.cast(pl.String) for ids in (split.train.users, split.train.items)
    )
    as_texts = [
        part.relabelled(users, items) for part in split
    ]  # "10" comes before "9"
    more_users = split.train.users.union([-7, 99])
    with_others = [part.renumbered(more_users, part.items) for part in split]
    expected = candidates_by_id([*split])
    assert len(expected) > 30
    assert candidates_by_id(as_texts) == expected
    assert candidates_by_id(with_others) == expected


def test_candidates_of_all_users_are_spread_over_the_items():
    n_items = 4_000
    users = Ids(pl.Series(range(300)), "user")
    items = Ids(pl.Series(range(n_items)), "item")
    draws = user_ties(items.hashes, users.hashes, 3)
    eligible = np.arange(1, n_items, 2)
    drawn = np.concatenate(
        [draw_items(draws, user, eligible, 50) for user in range(300)]
    )
    assert (drawn % 2 == 1).all()
    assert abs(drawn.mean() - n_items / 2) < 40
    assert len(np.unique(drawn)) > 0.99 * len(eligible)


@pytest.mark.parametrize("n", [0, -1])
def test_candidates_are_at_least_one(split, n):
    with pytest.raises(DataError, match=f"candidates must be at least 1; got {n}."):
        sample_candidates(split, split.test, n)


def test_other_splits_than_folds_are_described_by_the_first(split):
    other = random_split(split.train)
    found = evaluate(["popular"], [split, other], n=3, metrics=["ndcg"])
    assert (
        found.held_out == f"each of 2 splits in turn, the first one {split.description}"
    )


def test_folds_that_are_only_ranked_have_no_residuals(implicit_split):
    folds = list(k_fold(implicit_split.train, 2, random_state=0))
    found = evaluate(["popular", "random"], folds, n=3, metrics=["recall"])
    assert found.residuals.is_empty()
    assert found.residuals.columns == ["model", "low", "high", "count"]


def test_an_evaluation_says_what_it_is(split):
    shown = repr(evaluate("popular", split, n=2))
    assert shown.startswith("<Evaluation: popular; held out: ")
    assert len(shown) < 200


@pytest.mark.parametrize(
    "given",
    [None, [Ratings.from_matrix([[1.0, 2.0]])], [5], pl.DataFrame({"user": [1]})],
)
def test_rejects_other_types_than_splits(given):
    with pytest.raises(
        DataError, match=r"split must be a Split or several; got (None|Rat|int|DataF)"
    ):
        evaluate(["popular"], given)


def each_split(ratings):
    """Splits whose training parts lack some users and items."""
    return {
        "random": random_split(ratings, 0.5, 2),
        "fold": k_fold(ratings, 2)[1],
        "users": held_out_users(ratings, 0.5, 0.5, 1),
    }


@pytest.mark.parametrize("method", ["random", "fold", "users"])
@pytest.mark.parametrize("candidates", [None, 7])
def test_a_fitted_recommender_is_measured_as_a_model_fitted_to_the_same_split(
    method, candidates
):
    rng = np.random.default_rng(1)
    matrix = sp.random_array(
        (30, 25),
        density=0.1,
        rng=rng,
        data_sampler=lambda size: rng.integers(1, 6, size),
    )
    split = each_split(Ratings.from_matrix(matrix))[method]
    assert split.without_new().train.shape != split.train.shape
    fitted = Recommender("bias").fit(split.train)
    settings = {"n": [3, 50], "resamples": 0, "candidates": candidates}
    found = evaluate(fitted, split, **settings)
    expected = evaluate("bias", split, **settings)
    seconds = ["fit_seconds", "recommend_seconds"]
    if candidates is None:
        for name in found.table.drop("model", *seconds).columns:
            same = pytest.approx(expected.table[name][0], rel=1e-4)
            assert found.table[name][0] == same, name
    both = evaluate({"one": fitted, "other": "bias"}, split, **settings)
    assert (
        both.table["ndcg@3"][0] == both.table["ndcg@3"][1] == found.table["ndcg@3"][0]
    )
    known = Recommender("bias").fit(split.without_new().train)
    assert evaluate(known, split, **settings).per_user.equals(expected.per_user)


def test_a_recommender_is_measured_on_its_own_ratings_only(split):
    fitted = Recommender("bias").fit(split.train)
    later = split.test.to_frame()
    with pytest.raises(
        DataError, match=r"must be the ratings of the fitted recommender; shared_test"
    ):
        evaluate(fitted, random_split(split.train))
    shared = shared_test({"mine": fitted.ratings}, Ratings.from_frame(later)).splits
    found = evaluate({"mine": fitted}, shared, resamples=0).table
    assert found["rmse"][0] == evaluate(fitted, split, resamples=0).table["rmse"][0]


def test_a_recommender_must_be_fitted(split):
    with pytest.raises(NotFittedError, match="not fitted yet"):
        evaluate([Recommender("popular")], split)


@pytest.mark.parametrize("model", [Popular, 5])
def test_rejects_other_types_than_models(split, model):
    with pytest.raises(
        DataError, match=r"A model must be a name, or a model object .*; got"
    ):
        evaluate([model], split)


def test_custom_metrics_are_measured_like_built_in_ones(split):
    def first(hits):
        """Whether the first recommendation is relevant."""
        return hits[:, 0]

    def share(lists, n_relevant, cutoff=3):
        return np.where(n_relevant > 1, (lists < cutoff).mean(axis=1), np.nan)

    def by_name(hits, /, *, n_relevant):
        return hits.sum(axis=1) / n_relevant

    share_metric = Metric("share", share, "share of three items", direction=0)
    found = evaluate(
        ["popular", "bias"],
        split,
        n=[1, 3],
        metrics=[first, "precision", share_metric, by_name, "recall"],
    )
    assert found.table.columns[1:11] == [
        f"{name}@{n}"
        for name in ("precision", "recall", "first", "share", "by_name")
        for n in (1, 3)
    ]
    assert found.table["by_name@3"].to_list() == found.table["recall@3"].to_list()
    assert found.table["first@3"].to_list() == found.table["precision@1"].to_list()
    assert (
        found.measured["first"].definition
        == "Whether the first recommendation is relevant."
    )
    assert {"first@1", "share@3"} <= set(found.comparisons["metric"])
    known = found.per_user.filter(pl.col("relevant") == 1)
    assert known["share@3"].is_null().all()
    assert known.height


@pytest.mark.parametrize(
    ("metric", "message"),
    [
        ("nothing", "metric must be one of rmse, mae, rmse_warm, rmse_cold, precision"),
        (5, "A metric must be a name, a function or a Metric; got 5"),
        (
            lambda hits: hits[:, 0],
            "A custom metric must have a new name; got '<lambda>': d",
        ),
        (METRICS["recall"], "A custom metric must have a new name; got 'recall'"),
        (
            Metric("x", lambda lists, titles: lists, ""),
            "The parameters of the metric x must be",
        ),
        (
            Metric("x", lambda hits: hits, ""),
            "The metric x must return one number per user",
        ),
    ],
)
def test_metrics_that_cannot_be_measured(split, metric, message):
    with pytest.raises(DataError, match=message):
        evaluate(["popular"], split, n=3, metrics=[metric])


def test_an_evaluation_is_a_table_in_a_notebook(split):
    page = evaluate(
        {"a<b": "popular"}, split, n=2, metrics=["ndcg"], resamples=0
    )._repr_html_()
    assert "<table" in page
    assert "a<b" not in page


def test_a_model_without_features_is_compared_on_the_same_split(split):
    table = pl.DataFrame({"item": range(25), "kind": ["ab"[i % 2] for i in range(25)]})
    train = replace(split.train, item_table=Features.of(table, "item"))
    with_them = replace(split, train=with_features(train))
    names = ["als", "als:no-features"]
    found = evaluate(names, with_them).table
    alone = evaluate({"als": ALS()}, split).table
    assert found["model"].to_list() == names
    assert found["rmse"][1] == alone["rmse"][0] != found["rmse"][0]
    wrapped = evaluate([ALS(), WithoutFeatures(ALS())], with_them).table
    assert wrapped["rmse"].to_list() == found["rmse"].to_list()


def test_rejects_a_metric_of_infinity(split):
    def endless(hits):
        return np.full(len(hits), np.inf)

    with pytest.raises(DataError, match="endless must return finite values"):
        evaluate("popular", split, n=3, metrics=[endless])


@pytest.mark.parametrize(
    "returned",
    [
        lambda n: None,
        lambda n: 0.5,
        lambda n: ["high"] * n,
        lambda n: [None] * n,
        lambda n: np.zeros(n, complex),
        lambda n: np.full(n, np.datetime64("2026-01-01")),
        lambda n: np.zeros((n, 1)),
    ],
)
def test_a_metric_returns_one_number_per_user(split, returned):
    def mine(hits):
        return returned(len(hits))

    with pytest.raises(DataError, match="mine must return one number per user"):
        evaluate("popular", split, metrics=[mine], resamples=0)


def test_a_metric_cannot_change_the_arrays_of_others(split):
    def careless(hits):
        hits[:] = True
        return hits.mean(axis=1)

    with pytest.raises(ValueError, match="read-only"):
        evaluate("popular", split, n=[5, 10], metrics=[careless], resamples=0)


@pytest.mark.parametrize("direction", [5, None, "up", float("nan")])
def test_a_metric_has_a_direction(direction):
    with pytest.raises(DataError, match="must be 1 if higher values are better"):
        Metric("share", lambda hits: hits[:, 0], "share", direction)
