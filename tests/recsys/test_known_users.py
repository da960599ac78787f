"""Lists of known users: the rows of a `Recommender` in the same words, or none at all."""

import json

import numpy as np
import polars as pl
import pytest

from recsys import Ratings, Recommender, with_features
from recsys.known_users import lists_of_known_users

pytestmark = pytest.mark.usefixtures("one_fold")

TITLES = [
    "plain",
    'with "quotes", and commas',
    "",
    None,
    "of two\nlines",
    "日本\t語 \u2028",
]


def ratings_of(users, items, *, implicit=False, titles=TITLES, genres=False) -> Ratings:
    rng = np.random.default_rng(3)
    pairs = np.unique(rng.integers(0, [30, 12], size=(150, 2)), axis=0)
    columns = {
        "user": [users(u) for u, _ in pairs],
        "item": [items(i) for _, i in pairs],
    }
    columns |= (
        {} if implicit else {"rating": rng.integers(1, 6, len(pairs)).astype(float)}
    )
    table = None
    if titles is not None:  # in an order of its own, without some items
        order = [*range(11, 1, -1), 40]
        found = [titles[at % len(titles)] for at in order]
        table = pl.DataFrame({"item": [items(at) for at in order], "title": found})
        if genres:
            table = table.with_columns(
                genre=pl.Series(["war", "love"] * 6)[: len(order)]
            )
    return Ratings.from_frame(pl.DataFrame(columns), item_table=table)


def number(index: int) -> int:
    return index * 7 - 20


def text(index: int) -> str:
    return f"é,{index}" if index % 2 else f"{index}"


@pytest.mark.parametrize(
    ("name", "users", "items", "titles"),
    [
        ("als", number, text, TITLES),
        ("als", text, number, None),
        ("ials", text, number, TITLES),
        ("softimpute", number, text, TITLES),
        ("bayes", text, number, TITLES),
        ("spectral", text, number, TITLES),
        ("popular", text, number, TITLES),
        ("sparse-ease", number, number, None),
        ("blend", number, text, TITLES),
        ("random", number, text, TITLES),
        ("ease", text, number, TITLES),
    ],
)
def test_lists_equal_the_ones_of_a_recommender(tmp_path, name, users, items, titles):
    implicit = name in ("blend", "ease", "ials", "sparse-ease", "spectral")
    data = ratings_of(users, items, implicit=implicit, titles=titles)
    Recommender(name).fit(data).save(tmp_path / "model")
    check_lists(tmp_path / "model", users)


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("als", {}),
        ("ials", {}),
        ("blend", {"members": "ials,spectral", "weights": "1,1"}),
        ("bayes", {"factors": 3}),
    ],
)
def test_items_without_ratings_are_marked(tmp_path, name, parameters):
    data = with_features(
        ratings_of(number, text, implicit=name in ("blend", "ials"), genres=True),
        unrated=True,
    )
    Recommender(name, **parameters).fit(data).save(tmp_path / "model")
    assert "new" in check_lists(tmp_path / "model", number).columns


def test_items_that_a_model_cannot_place_are_left_out(tmp_path):
    data = with_features(ratings_of(number, text, genres=True), unrated=True)
    Recommender("clusters").fit(data).save(tmp_path / "model")
    assert "new" not in check_lists(tmp_path / "model", number).columns


def check_lists(model, users) -> pl.DataFrame:
    chosen = [users(4), users(1), users(4)]  # each gets one list
    expected = Recommender.load(model).recommend(chosen[:2], 7)
    found = lists_of_known_users(model, [str(each) for each in chosen], 7)
    assert found is not None
    assert found.write_csv(separator="\t") == expected.write_csv(separator="\t")
    assert found.write_csv(include_header=False) == expected.write_csv(
        include_header=False
    )
    assert found.write_ndjson() == expected.write_ndjson()
    return expected


@pytest.mark.parametrize(("users", "items"), [(number, text), (text, number)])
def test_equal_scores_are_in_the_order_of_a_recommender(tmp_path, users, items):
    """Vectors of small whole numbers, with many equal scores."""
    recommender = Recommender("als", factors=2, popularity=0).fit(
        ratings_of(users, items)
    )
    arrays = recommender.model
    rng = np.random.default_rng(0)
    arrays.item_bias[:] = 0
    arrays.item_factors[:] = rng.integers(-1, 2, arrays.item_factors.shape)
    arrays.user_factors[:] = rng.integers(-1, 2, arrays.user_factors.shape)
    recommender.save(tmp_path / "model")
    expected = check_lists(tmp_path / "model", users)
    assert expected.filter(pl.col("user") == users(4))["score"].n_unique() < 5


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    path = tmp_path_factory.mktemp("lists") / "model"
    Recommender("als", factors=2).fit(ratings_of(number, text)).save(path)
    return path


def test_several_users_may_stand_between_commas(saved):
    assert lists_of_known_users(saved, ["1, 8"], 2) == lists_of_known_users(
        saved, ["1", "8"], 2
    )


@pytest.mark.parametrize("user", ["999", "01", "1,999", "", "ann", "1.0", "9" * 40])
def test_unknown_users_are_left_to_a_recommender(saved, user):
    assert lists_of_known_users(saved, [user], 2) is None


def test_missing_models_are_left_to_a_recommender(tmp_path):
    assert lists_of_known_users(tmp_path / "none", ["1"], 2) is None


@pytest.mark.parametrize(
    "file",
    [
        "arrays/item_factors",
        "ratings/indices",
        "users/0",
        "items/0_bytes",
        "item_table/1_bytes",
    ],
)
def test_damaged_models_are_left_to_a_recommender(tmp_path, file):
    Recommender("als", factors=2).fit(ratings_of(number, text)).save(tmp_path / "model")
    path = tmp_path / "model" / f"{file}.npy"
    content = path.read_bytes()
    path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    assert lists_of_known_users(tmp_path / "model", ["1"], 2) is None
    path.unlink()
    assert lists_of_known_users(tmp_path / "model", ["1"], 2) is None


def test_incomplete_documents_are_left_to_a_recommender(saved, tmp_path):
    document = json.loads((saved / "model.json").read_text())
    for changed in (
        {},
        [],
        {**document, "files": []},
        {**document, "columns": {"users": 3}},
    ):
        (tmp_path / "model.json").write_text(json.dumps(changed))
        assert lists_of_known_users(tmp_path, ["1"], 2) is None
