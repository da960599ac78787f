"""Top-N and evaluation on Spark: the same rows as on one machine."""

import math
import shutil
from statistics import mean, stdev

import numpy as np
import polars as pl
import pytest

from recsys.errors import DataError, ModelFileError, UnknownIdError
from recsys.evaluation import evaluate as measure
from recsys.evaluation import mae, rmse, shared_test, split_from_pair
from recsys.predictions import clip_to_range
from recsys.readers import read_ratings
from recsys.recommender import Recommender


def written(path):
    return pl.read_parquet(f"{path}/*.parquet").sort("user", "rank")


def test_it_recommends_as_one_machine_does(spark, case, tmp_path):
    from recsys.spark import recommend

    opened = Recommender.load(case.path)
    allow = opened.ratings.items.values.to_list()[::2]
    block = allow[:50]
    recommend(
        str(case.path),
        str(tmp_path / "top"),
        5,
        items=allow,
        block=[str(item) for item in block],
    )
    here = opened.recommend(n=5, items=allow, block=block).drop("title", strict=False)
    assert written(tmp_path / "top").equals(here.sort("user", "rank"))


@pytest.fixture
def coarse(case, monkeypatch):
    """The model with vectors of small whole numbers: many equal scores, here and on Spark."""
    from pyspark.sql import functions as sql

    from recsys.spark import topn
    from recsys.spark.results import SparkModel

    table, opened_by_workers = SparkModel.table, topn.ordinary_model

    def without_popularity(result, users, items):
        return opened_by_workers(result, users, items).set_params(popularity=0.0)

    monkeypatch.setattr(topn, "ordinary_model", without_popularity)

    def rounded(self, spark, side):
        whole = sql.transform("factors", lambda each: sql.signum(each).cast("float"))
        frame = table(self, spark, side).withColumn("factors", whole)
        return frame.withColumn("bias", sql.lit(0).cast("float"))

    monkeypatch.setattr(SparkModel, "table", rounded)
    opened = Recommender.load(case.path)
    opened.model.set_params(popularity=0.0)
    for side in ("user", "item"):
        for name, change in (("factors", np.sign), ("bias", np.zeros_like)):
            array = getattr(opened.model, f"{side}_{name}")
            setattr(opened.model, f"{side}_{name}", change(array))
    return opened


def test_equal_scores_are_in_the_order_of_one_machine(spark, case, coarse, tmp_path):
    from recsys.spark import evaluate, recommend

    recommend(str(case.path), str(tmp_path / "top"), 20)
    here = coarse.recommend(n=20).drop("title", strict=False)
    assert here.filter(user=here["user"][0])["score"].n_unique() < 5
    assert written(tmp_path / "top").equals(here.sort("user", "rank"))
    found = evaluate(str(case.path), str(case.test_file), 10)
    splits = shared_test({"als": coarse.ratings}, read_ratings(case.test_file)).splits
    names = [f"{kind}@10" for kind in ("precision", "recall", "ndcg")]
    expected = measure(
        [coarse], splits, metrics=["precision", "recall", "ndcg"], resamples=0
    )
    measured = [found.metrics[name].value for name in names]
    assert measured == pytest.approx(expected.table.select(names).row(0))


def test_seen_items_are_kept_where_asked_for_and_a_folder_is_replaced(
    spark, case, tmp_path
):
    from recsys.spark import recommend

    top = tmp_path / "top"
    shutil.copytree(case.path / "items", top)
    with pytest.raises(
        ModelFileError, match="was not written by the Spark engine, so it is not"
    ):
        recommend(str(case.path), str(top), 2, overwrite=True)
    shutil.rmtree(top)
    top.write_text("a file")
    with pytest.raises(
        ModelFileError, match="was not written by the Spark engine, so it is not"
    ):
        recommend(str(case.path), str(top), 2, overwrite=True)
    top.unlink()
    top.mkdir()
    (top / "notes.txt").write_text("mine")
    with pytest.raises(
        ModelFileError, match="was not written by the Spark engine, so it is not"
    ):
        recommend(str(case.path), str(top), 2, overwrite=True)
    (top / "notes.txt").unlink()
    nothing = pl.DataFrame({"user": [1], "item": [1], "rank": [1], "score": [1.0]})
    nothing.write_parquet(top / "part-0.parquet")
    with pytest.raises(ModelFileError, match="choose another path or overwrite it"):
        recommend(str(case.path), str(top), 2)
    recommend(str(case.path), str(top), 2, exclude_seen=False, overwrite=True)
    here = Recommender.load(case.path).recommend(n=2, exclude_seen=False)
    assert written(top).equals(here.drop("title", strict=False).sort("user", "rank"))
    assert [each for each in tmp_path.iterdir() if each != top] == []


def test_names_unknown_items_and_models(spark, case, tmp_path):
    from recsys.spark import recommend

    with pytest.raises(UnknownIdError, match="Unknown items 'zz1', 'zz2'"):
        recommend(
            str(case.path), str(tmp_path / "top"), items=["zz1", "zz2", "zz3", "zz4"]
        )
    with pytest.raises(DataError, match="n must be at least 1; got 0"):
        recommend(str(case.path), str(tmp_path / "top"), 0)
    with pytest.raises(
        ModelFileError, match="There is no model of the Spark engine in "
    ):
        recommend(str(tmp_path / "none"), str(tmp_path / "top"))
    assert list(tmp_path.iterdir()) == []


def test_it_measures_as_one_machine_does(spark, case):
    from recsys.spark import evaluate

    relevant_from = 4.0
    found = evaluate(
        str(case.path), str(case.test_file), 10, relevant_from=relevant_from
    )
    opened = Recommender.load(case.path)
    split = split_from_pair(opened.ratings, read_ratings(case.test_file))
    known = split.without_new().test
    pairs = known.user_index_of_nonzeros(), known.indices
    predicted = clip_to_range(opened.model.predict(*pairs), opened.training)
    values = ranking_by_hand(opened, known.to_frame(), relevant_from)
    wanted = {
        "rmse": rmse(predicted, known.values),
        "mae": mae(predicted, known.values),
    }
    wanted |= {f"{name}@10": mean(each) for name, each in values.items()}
    assert {
        name: metric.value for name, metric in found.metrics.items()
    } == pytest.approx(wanted)
    assert found.metrics["ndcg@10"].count == len(values["ndcg"])
    low, high = found.metrics["ndcg@10"].interval
    half = 1.96 * stdev(values["ndcg"]) / math.sqrt(len(values["ndcg"]))
    assert high - low == pytest.approx(2 * half)
    assert found.counts == {
        "test_ratings": known.n_ratings,
        "users_evaluated": len(values["ndcg"]),
        "unknown_ratings": split.test.n_ratings - known.n_ratings,
        "known_pairs": 0,
    }


def ranking_by_hand(opened, test, relevant_from):
    """Return the metrics at 10 of each user with relevant test items, out of plain loops."""
    relevant = (
        test
        if relevant_from is None
        else test.filter(pl.col("rating") >= relevant_from)
    )
    wanted = {user: set(items["item"]) for (user,), items in relevant.group_by("user")}
    values = {"precision": [], "recall": [], "ndcg": []}
    for (user,), top in opened.recommend(list(wanted), n=10).group_by("user"):
        hits = [item in wanted[user] for item in top.sort("rank")["item"]]
        gains = [1 / math.log2(rank + 2) for rank in range(10)]
        values["precision"].append(sum(hits) / 10)
        values["recall"].append(sum(hits) / len(wanted[user]))
        best = sum(gains[: len(wanted[user])])
        values["ndcg"].append(
            sum(g for g, hit in zip(gains, hits, strict=False) if hit) / best
        )
    return values


def test_rejects_training_ratings_as_test(spark, case, tmp_path):
    from recsys.spark import evaluate

    case.train.to_frame().head(50).write_csv(tmp_path / "known.csv")
    with pytest.raises(DataError, match=r"All 50 test ratings are also training"):
        evaluate(str(case.path), str(tmp_path / "known.csv"))


def test_leaves_out_test_pairs_that_the_training_part_has(spark, case, tmp_path):
    from recsys.spark import evaluate

    known = case.train.to_frame().head(50)
    both = pl.concat([case.test.to_frame(), known], how="diagonal_relaxed")
    both.write_csv(tmp_path / "both.csv")
    alone = evaluate(str(case.path), str(case.test_file))
    found = evaluate(str(case.path), str(tmp_path / "both.csv"))
    assert found.counts == alone.counts | {"known_pairs": 50}
    assert found.metrics["ndcg@10"].value == alone.metrics["ndcg@10"].value


def test_what_cannot_be_measured(spark, case, tmp_path):
    from recsys.spark import evaluate

    with pytest.raises(DataError, match="n must be at least 1; got 0"):
        evaluate(str(case.path), str(case.test_file), 0)
    few = tmp_path / "few.csv"
    case.test.to_frame().head(50).write_csv(few)
    with pytest.raises(
        DataError, match="No test rating is high enough to be relevant; lower rele"
    ):
        evaluate(str(case.path), str(few), relevant_from=99)
    strangers = tmp_path / "strangers.csv"
    strangers.write_text("user,item,rating\n-5,-6,3\n")
    with pytest.raises(
        DataError, match="No test rating has both a user and an item of the model"
    ):
        evaluate(str(case.path), str(strangers))
