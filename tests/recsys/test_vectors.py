"""Vectors of items and users: inner products are scores, and cosines are similarities."""

from __future__ import annotations

import json

import numpy as np
import polars as pl
import pytest
from click.testing import CliRunner

from recsys import Recommender
from recsys.cli.main import cli
from recsys.data.ratings import Ratings
from recsys.errors import DataError, UnknownIdError

pytestmark = pytest.mark.usefixtures("one_fold")

N_USERS, N_ITEMS = 60, 40
PENALTIES = {"regularization": 0.01, "unobserved_weight": 0.1}
FACTOR_MODELS = {
    "als": {"factors": 4},
    "als with topics": {"factors": 4, "nonnegative": True},
    "bayes": {"factors": 4, "iterations": 5},
    "softimpute": {},
    "bias": {},
    "clusters": {},
    "popular": {},
    "ials": {"factors": 4, **PENALTIES},
    "spectral": {"factors": 4, "linear": False},
    "implicit-als": {"factors": 8},
    "implicit-bpr": {"factors": 8},
    "implicit-lmf": {"factors": 4},
    "blend": {"members": "implicit-als,popular", "weights": "2,1"},
}
OTHER_MODELS = {
    "ease": {},
    "sparse-ease": {},
    "implicit-knn": {},
    "spectral": {},
    "random": {},
    "blend": {"members": "implicit-als,ease", "weights": "2,1"},
}
EXPLICIT = ("als", "bayes", "softimpute", "bias", "clusters", "popular")
every_model = pytest.mark.parametrize("name", FACTOR_MODELS)


def frame(n_users: int = N_USERS, seed: int = 0) -> pl.DataFrame:
    """Grades of users at several times, more for the first items."""
    rng = np.random.default_rng(seed)
    chance = np.linspace(0.6, 0.1, N_ITEMS)
    users, items = np.nonzero(rng.random((n_users, N_ITEMS)) < chance)
    likes = np.where(users % 2 == items % 2, 4.0, 2.0)
    return pl.DataFrame(
        {
            "user": [f"u{user}" for user in users],
            "item": items,
            "rating": likes + rng.integers(0, 2, len(users)),
            "timestamp": 1_700_000_000 + 86_400 * rng.integers(0, 300, len(users)),
        }
    )


def tables() -> dict[str, pl.DataFrame]:
    """Items, the last of which nobody has rated, with titles and prices."""
    items = range(N_ITEMS + 3)
    return {
        "item_table": pl.DataFrame(
            {
                "item": items,
                "title": [f"film {item}" for item in items],
                "parity": [f"p{item % 2}" for item in items],
                "price": [item / 2 for item in items],
            }
        )
    }


def fitted(name: str, parameters: dict, *, features: bool = False) -> Recommender:
    model = name.split()[0]
    data = frame() if model in EXPLICIT else frame().select("user", "item")
    ratings = Ratings.from_frame(data, **tables())
    columns = ["parity"] if features else False
    return Recommender(model, **parameters).fit(ratings, features=columns)


def check_lists(recommender: Recommender) -> None:
    """Compare all products with scores, and lists by products with the model's."""
    items, users = recommender.item_vectors(), recommender.user_vectors()
    products = users["vector"].to_numpy() @ items["vector"].to_numpy().T
    n = len(items)
    lists = recommender.recommend(users["user"], n, exclude_seen=False)
    assert len(lists) == products.size
    row_of = {user: row for row, user in enumerate(users["user"])}
    column_of = {item: column for column, item in enumerate(items["item"])}
    rows = [row_of[user] for user in lists["user"]]
    columns = [column_of[item] for item in lists["item"]]
    of_lists = products[rows, columns].reshape(products.shape)
    scores = lists["score"].to_numpy().reshape(products.shape)
    tolerance = 1e-5 * np.abs(scores).max()
    np.testing.assert_allclose(of_lists, scores, rtol=0, atol=tolerance)
    # Products fall along each list, up to ties.
    assert np.diff(of_lists).max() < 1e-5 * np.abs(scores).max()


@every_model
def test_inner_products_are_the_scores_of_lists(name):
    recommender = fitted(name, FACTOR_MODELS[name])
    check_lists(recommender)
    dtype = recommender.item_vectors()["vector"].dtype
    assert isinstance(dtype, pl.Array)
    assert dtype.inner == pl.Float32
    assert recommender.user_vectors()["vector"].dtype == dtype


@every_model
def test_inner_products_are_scores_after_an_update(name):
    recommender = fitted(name, FACTOR_MODELS[name])
    new = frame(6, seed=1).with_columns(user=pl.col("user") + "-new")
    if name.split()[0] not in EXPLICIT:
        new = new.select("user", "item")
    check_lists(recommender.update(new))


@pytest.mark.parametrize("name", ["als", "bayes", "ials", "spectral"])
def test_new_items_with_features_have_vectors_and_others_have_none(name):
    recommender = fitted(name, FACTOR_MODELS[name], features=True)
    check_lists(recommender)
    assert len(recommender.item_vectors()) == N_ITEMS + 3
    assert len(fitted(name, FACTOR_MODELS[name]).item_vectors()) == N_ITEMS


@every_model
def test_the_vector_of_a_new_user_has_the_scores_of_the_new_user(name):
    recommender = fitted(name, FACTOR_MODELS[name])
    is_explicit = name.split()[0] in EXPLICIT
    history = {3: 5.0, 7: 2.0} if is_explicit else [3, 7]
    try:
        expected = recommender.recommend(history=history, n=N_ITEMS)
    except DataError:  # models that cannot fold in say so in both
        with pytest.raises(DataError, match="fold"):
            recommender.user_vectors(history=history)
        return
    (vector,) = recommender.user_vectors(history=history)["vector"].to_numpy()
    items = recommender.item_vectors()
    products = dict(
        zip(items["item"], items["vector"].to_numpy() @ vector, strict=True)
    )
    scores = expected["score"].to_numpy()
    of_items = [products[item] for item in expected["item"]]
    np.testing.assert_allclose(of_items, scores, atol=1e-5 * np.abs(scores).max())


@pytest.mark.parametrize("name", OTHER_MODELS)
def test_other_models_say_which_have_vectors(name):
    recommender = fitted(name, OTHER_MODELS[name])
    for vectors in (recommender.item_vectors, recommender.user_vectors):
        with pytest.raises(
            DataError, match=r"not products of factors.*als, bayes, bias"
        ):
            vectors()


@pytest.mark.parametrize("side", ["item", "user"])
@pytest.mark.parametrize("name", ["als", "ials", "implicit-als", "spectral"])
@pytest.mark.parametrize("features", [False, True])
def test_cosines_are_damped_similarities(name, side, features):
    recommender = fitted(name, FACTOR_MODELS[name], features=features)
    if side == "item":
        vectors, search = recommender.item_vectors, recommender.similar_items
    else:
        vectors, search = recommender.user_vectors, recommender.similar_users
    table = vectors(metric="cosine")
    queries, answers = table["query"].to_numpy(), table["vector"].to_numpy()
    np.testing.assert_allclose(np.linalg.norm(answers, axis=1), 1, atol=1e-6)
    np.testing.assert_allclose(np.linalg.norm(queries, axis=1), 1, atol=1e-6)
    cosines = queries @ answers.T
    row_of = {label: row for row, label in enumerate(table[side])}
    similar = search(table[side], n=5)
    expected = [
        cosines[row_of[query], row_of[answer]]
        for query, answer in similar.select(side, "similar").rows()
    ]
    np.testing.assert_allclose(similar["score"], expected, atol=1e-5)


def test_similarities_of_neighbours_have_no_vectors():
    recommender = fitted("implicit-knn", {})
    with pytest.raises(DataError, match="implicit-knn model are not cosines"):
        recommender.item_vectors(metric="cosine")


def test_columns_are_added_and_checked():
    recommender = fitted("als", {"factors": 4})
    table = recommender.item_vectors(columns=["price", "parity"])
    assert table.columns == ["item", "vector", "title", "price", "parity"]
    assert table.filter(item=7).select("title", "price").row(0) == ("film 7", 3.5)
    with pytest.raises(DataError, match="Did you mean price"):
        recommender.item_vectors(columns=["prize"])
    with pytest.raises(UnknownIdError):
        recommender.user_vectors(["nobody"])
    assert recommender.user_vectors(["u3", "u1"])["user"].to_list() == ["u3", "u1"]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    path = tmp_path_factory.mktemp("models") / "model"
    fitted("als", {"factors": 4}).save(path)
    return path


def run(*words: object) -> str:
    result = CliRunner().invoke(cli, [*map(str, words)])
    assert result.exit_code == 0, result.output
    return result.stdout


def test_the_command_writes_both_tables_with_a_manifest(model, tmp_path):
    items, users = tmp_path / "items.parquet", tmp_path / "users.parquet"
    run("vectors", model, "--output", items, "--users", users, "--columns", "price")
    recommender = Recommender.load(model)
    assert pl.read_parquet(items).equals(recommender.item_vectors(columns=["price"]))
    assert pl.read_parquet(users).equals(recommender.user_vectors())
    for path, kind in ((items, "item"), (users, "user")):
        manifest = json.loads(pl.read_parquet_metadata(path)["recsys"])
        assert manifest["kind"] == kind
        assert manifest["model"] == recommender.provenance.version
        assert manifest["fingerprint"] == recommender.provenance.fingerprint
        assert manifest["metric"] == "inner-product"
        assert manifest["dimension"] == 6


def test_the_command_writes_new_users(model, tmp_path):
    history = tmp_path / "history.csv"
    history.write_text("user,item,rating\na,3,5\na,7,2\nb,4,1\n")
    lines = run("vectors", model, "--history", history, "--format", "jsonl").split("\n")
    rows = [json.loads(line) for line in lines if line]
    assert [row["user"] for row in rows] == ["a", "b"]
    recommender = Recommender.load(model)
    expected = recommender.user_vectors(history={3: 5.0, 7: 2.0})["vector"][0]
    assert rows[0]["vector"] == pytest.approx(expected.to_list(), abs=1e-5)
    liked = run("vectors", model, "--like", "film 3", "--format", "json")
    assert json.loads(liked)["rows"][0]["user"] == "new"


def test_vectors_are_texts_where_a_format_has_no_arrays(model):
    header, first, *_ = run("vectors", model, "--format", "csv").splitlines()
    assert header == "item,vector,title"
    numbers = json.loads(first.split('"')[1])
    expected = Recommender.load(model).item_vectors()["vector"][0].to_list()
    assert numbers == pytest.approx(expected, rel=1e-5)


def test_sqlite_has_no_vectors(model, tmp_path):
    command = ["vectors", str(model), "--output", f"{tmp_path}/shop.db::items"]
    result = CliRunner().invoke(cli, command)
    assert result.exit_code == 1
    assert "cannot store column 'vector'" in result.output
