"""`als` and implicit ALS on Spark: the model of the local engine, openable on one machine."""

import json

import numpy as np
import polars as pl
import pytest

from recsys.data.columns import Request
from recsys.data.ratings import Ratings
from recsys.errors import DataError, ModelFileError
from recsys.models.histories import Histories
from recsys.models.registry import make_model
from recsys.recommender import Recommender


def rmse(model, train, test):
    """Of the pairs whose user and item are in the training part."""
    users, items = (
        of_train.find(of_test.values)
        for of_train, of_test in ((train.users, test.users), (train.items, test.items))
    )
    u, i = users[test.user_index_of_nonzeros()], items[test.indices]
    known = (u >= 0) & (i >= 0)
    predicted = np.clip(
        model.predict(u[known], i[known]), train.values.min(), train.values.max()
    )
    return float(np.sqrt(np.mean((predicted - test.values[known]) ** 2)))


def test_it_predicts_as_the_local_engine_does(case):
    opened = Recommender.load(case.path)
    local = make_model("als", **opened.model.get_params()).fit(case.train)
    ours = rmse(opened.model, case.train, case.test)
    # Spark fits the biases before the vectors, and needs more than four sweeps.
    assert ours < rmse(local, case.train, case.test) + 0.05
    bias = make_model("bias").fit(case.train)
    assert ours < rmse(bias, case.train, case.test) - 0.1


def test_its_ids_and_ratings_are_those_that_were_read(case):
    opened = Recommender.load(case.path).ratings
    assert opened.users == case.train.users
    assert opened.items == case.train.items
    for name in ("indptr", "indices", "values"):
        np.testing.assert_array_equal(getattr(opened, name), getattr(case.train, name))


def test_a_training_user_folded_in_gets_the_same_vector(case):
    opened = Recommender.load(case.path)
    folded = opened.model.with_users(Histories.of(opened.ratings))
    np.testing.assert_array_equal(folded.user_factors, opened.model.user_factors)
    np.testing.assert_array_equal(folded.user_bias, opened.model.user_bias)


def test_it_is_an_ordinary_model(case, tmp_path):
    opened = Recommender.load(case.path)
    user = opened.ratings.users.values[0]
    item = opened.recommend(user, n=1)["item"][0]
    score = opened.recommend(user, n=1)["score"][0]
    parts = opened.explain(user, item)["contribution"].sum()
    assert parts == pytest.approx(score, abs=1e-3)
    assert len(opened.similar_items(item, n=3)) == 3
    opened.save(tmp_path / "ordinary")
    again = Recommender.load(tmp_path / "ordinary")
    np.testing.assert_array_equal(again.model.item_factors, opened.model.item_factors)


def test_the_held_out_ratings_are_not_learnt_and_their_error_is_reported(toy, toy_fit):
    opened = Recommender.load(toy_fit.path)
    whole = Ratings.from_frame(toy)
    assert opened.ratings.users == whole.users
    assert opened.ratings.items == whole.items
    kept, everything = (set(r.to_frame().rows()) for r in (opened.ratings, whole))
    assert kept < everything
    assert 0.1 < 1 - len(kept) / len(everything) < 0.3
    held = pl.DataFrame(list(everything - kept), schema=toy.columns, orient="row")
    predicted = opened.model.predict(
        whole.users.index(held["user"]), whole.items.index(held["item"])
    )
    rmse = float(np.sqrt(np.mean((predicted - held["rating"].to_numpy()) ** 2)))
    assert opened.training["validation_rmse"] == pytest.approx(rmse, abs=1e-5)


@pytest.mark.parametrize(
    "penalties",
    [{"regularization": 0.01, "unobserved_weight": 0.1}, {}],
    ids=["penalties given", "penalties chosen"],
)
def test_implicit_feedback_is_fitted_by_ials_as_on_one_machine(
    spark, toy, tmp_path, penalties
):
    from recsys.spark import fit

    pairs = spark.createDataFrame(
        toy.drop("rating").to_dicts(), "user string, item smallint"
    )
    parameters = {"factors": 3, "iterations": 3, **penalties}
    result = fit(pairs, str(tmp_path / "model"), **parameters)
    assert (result.model, result.implicit) == ("ials", True)
    opened = Recommender.load(tmp_path / "model")
    assert (opened.ratings.values == 1).all()
    local = make_model("ials", **parameters).fit(opened.ratings)
    chosen = result.fitted["penalty"], result.fitted["pair_weight"]
    np.testing.assert_allclose(chosen, (local.penalty, local.pair_weight), rtol=1e-5)
    model, everyone = opened.model, Histories.of(opened.ratings)
    folded = model.with_users(everyone)
    np.testing.assert_allclose(folded.user_factors, model.user_factors, atol=1e-5)
    one = opened.recommend("ü07", n=1)
    parts = opened.explain("ü07", one["item"][0])["contribution"].sum()
    assert parts == pytest.approx(one["score"][0], abs=1e-4)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"model": "bayes"}, "On Spark the models are als and ials; got 'bayes'"),
        ({"factors": 0}, "factors must be at least 1; got 0"),
        ({"linked": True}, "The als model has no links on Spark"),
        ({"nonnegative": True}, "The als model has no non-negative factors on Spark"),
        ({"count_power": 0.5}, "count_power must be 1"),
        (
            {"nonsense": 1},
            "The als model has no parameter 'nonsense'; it has factors, ",
        ),
        ({"test_fraction": 1.5}, "test_fraction must be between 0 and 1; got 1.5"),
        (
            {"columns": Request({"implicit": True}), "model": "als"},
            "needs ratings with values, but",
        ),
        ({"duplicates": "any"}, "duplicates must be one of last, .*; got 'any'"),
    ],
)
def test_what_cannot_be_is_rejected_and_leaves_nothing(
    spark, tmp_path, options, message
):
    from recsys.spark import fit

    one = spark.createDataFrame([(1, 2, 3.0)], "user int, item int, rating double")
    with pytest.raises(DataError, match=message):
        fit(one, str(tmp_path / "model"), **options)
    assert list(tmp_path.iterdir()) == []


def test_all_ratings_held_out(spark, tmp_path):
    from recsys.spark import fit

    one = spark.createDataFrame([(1, 2, 3.0)], "user int, item int, rating double")
    with pytest.raises(
        DataError, match="No ratings remain to fit to: all are held out; lower"
    ):
        fit(one, str(tmp_path / "model"), test_fraction=0.999999)


def test_other_files_at_the_target_stay(spark, case, tmp_path):
    from recsys.spark import fit

    (tmp_path / "mine").mkdir()
    with pytest.raises(
        ModelFileError, match="mine exists and was not written by the Spark engine"
    ):
        fit(str(case.train_file), str(tmp_path / "mine"), overwrite=True)
    with pytest.raises(ModelFileError, match="is already a result of the Spark engine"):
        fit(str(case.train_file), str(case.path))
    with pytest.raises(ModelFileError, match="its parent folder does not exist"):
        fit(str(case.train_file), str(tmp_path / "no" / "model"))


# Opening, without Spark


@pytest.fixture
def copied(case, tmp_path):
    import shutil

    return shutil.copytree(case.path, tmp_path / "copy")


def test_a_missing_part_is_noticed(copied):
    part = next((copied / "items").glob("*.parquet"))
    part.unlink()
    with pytest.raises(
        ModelFileError, match=r"copy is damaged: items/part-.* is missing"
    ):
        Recommender.load(copied)


def test_links_in_a_result_are_not_followed(copied):
    part = next((copied / "users").glob("part-*"))
    elsewhere = copied.with_name("elsewhere")
    part.rename(elsewhere)
    part.symlink_to(elsewhere)
    with pytest.raises(
        ModelFileError, match=f"{part.name} is not a file; links are not followed"
    ):
        Recommender.load(copied)


def test_a_part_of_another_size_is_noticed(copied):
    part = next((copied / "users").glob("*.parquet"))
    part.write_bytes(part.read_bytes()[:-1])
    with pytest.raises(
        ModelFileError, match=r"is damaged: users/part-.* bytes instead of"
    ):
        Recommender.load(copied)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"format_version": 9, "package_version": "8.1"},
            "written by lowrank-recsys 8.1",
        ),
        ({"parameters": 3}, "model.json: Expected `object`, got `int`"),
        ({"model": "magic"}, "the Spark engine has no model 'magic'"),
        ({"files": {"../../x": 1}}, "the file '../../x' is outside it"),
        ({"files": {"x": "long"}}, "Expected `int`, got `str`"),
        ({"files": {}}, "is damaged: cannot concat empty list"),
        ({"training": {}}, "is damaged: "),
    ],
)
def test_a_damaged_manifest_is_an_error(copied, changes, message):
    document = json.loads((copied / "model.json").read_text())
    (copied / "model.json").write_text(json.dumps(document | changes))
    with pytest.raises(ModelFileError, match=message):
        Recommender.load(copied)


def test_items_that_are_not_numbered_from_zero(copied):
    manifest = copied / "model.json"
    document = json.loads(manifest.read_text())
    for part in (copied / "items").glob("*.parquet"):
        pl.read_parquet(part).with_columns(pl.col("index") + 1).write_parquet(part)
        document["files"][f"items/{part.name}"] = part.stat().st_size
    manifest.write_text(json.dumps(document))
    with pytest.raises(ModelFileError, match="the items are not numbered 0 to "):
        Recommender.load(copied)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "has no readable model.json"),
        ("{", "is damaged, or not a model of the Spark engine: model.json: "),
        ("[" * 100_000, "is damaged, or not a model of the Spark engine: model.json: "),
        (
            "[]",
            "not a model of the Spark engine: model.json: Expected `object`, got `array`",
        ),
    ],
)
def test_a_file_that_is_not_a_manifest_is_an_error(tmp_path, content, message):
    from recsys.spark.results import read_result

    if content is not None:
        (tmp_path / "model.json").write_text(content)
    with pytest.raises(ModelFileError, match=message):
        read_result(tmp_path)
