"""Forgetting with a refit: the bits of a fit that has never seen the person."""

from functools import cache

import numpy as np
import polars as pl
import pytest

from recsys import MODELS, Ratings, Recommender, with_features

pytestmark = pytest.mark.usefixtures("one_fold")
PERSON = 5
DAY = 86400
N_RATINGS = 500
NAMES = ["auto", *MODELS]
OPTIONS = {
    "als": {"factors": 4, "iterations": 4},
    "bayes": {"factors": 3, "iterations": 4},
    "blend": {"members": "spectral,ease"},
    "ials": {"factors": 4},
    "implicit-als": {"factors": 4},
    "implicit-bpr": {"factors": 4},
    "implicit-lmf": {"factors": 4},
    "spectral": {"factors": 8},
    "softimpute": {"factors": 4},
}


def frame():
    """Ratings with times; the person decides extremes: a grade, the last time, an item."""
    n = N_RATINGS
    rng = np.random.default_rng(0)
    rows = {
        "user": rng.integers(0, 40, n),
        "item": 100 + rng.integers(0, 40, n),
    }
    table = pl.DataFrame({**rows, "rating": rng.choice([2.0, 3.0, 4.0], n)})
    table = table.with_columns(timestamp=np.arange(n) * DAY)
    own = pl.DataFrame(
        {
            "user": [PERSON] * 6,
            "item": [100, 101, 102, 103, 777, 778],
            "rating": [1.0, 5.0, 0.5, 1.0, 5.0, 1.0],
            "timestamp": [n * DAY] * 6,
        }
    )
    return pl.concat([table, own.cast(table.schema)])


def people():
    """A table of users; the person decides the vocabulary, the range and who is missing."""
    users = [*range(61), 900]
    ages = [20 + user % 40 for user in users]
    ages[PERSON] = 99
    jobs = [["nurse", "smith", "baker"][user % 3] for user in users]
    jobs[PERSON] = jobs[-1] = "spy"
    return pl.DataFrame({"user": users, "age": ages, "job": jobs})


def films():
    items = [*range(100, 140), 500, 777]
    genres = [["war", "love", "art"][item % 3] for item in items]
    return pl.DataFrame({"item": items, "genre": genres})


def without(table, *users):
    return table.filter(~pl.col("user").is_in(users))


def assert_same(found, expected):
    """Compare everything that a saved model has, but its identity and times."""
    assert type(found.model) is type(expected.model)
    assert found.model.get_params() == expected.model.get_params()
    arrays, others = found.model._arrays(), expected.model._arrays()
    assert arrays.keys() == others.keys()
    for name, array in arrays.items():
        np.testing.assert_array_equal(array, others[name], err_msg=name, strict=True)
    for name in ("indptr", "indices", "data", "levels", "seconds", "in_time_order"):
        array, other = (getattr(each.ratings, name) for each in (found, expected))
        assert (array is None) == (other is None), name
        if array is not None:
            np.testing.assert_array_equal(array, other, err_msg=name, strict=True)
    logs = [
        each.ratings.events and each.ratings.events.saved_arrays()
        for each in (found, expected)
    ]
    assert (logs[0] is None) == (logs[1] is None)
    for name in logs[0] or ():
        np.testing.assert_array_equal(
            logs[0][name], logs[1][name], err_msg=name, strict=True
        )
    for name in ("users", "items", "implicit", "rule"):
        assert getattr(found.ratings, name) == getattr(expected.ratings, name), name
    for side in ("user", "item"):
        tables = [getattr(each.ratings, f"{side}_table") for each in (found, expected)]
        assert (tables[0] is None) == (tables[1] is None)
        if tables[0] is not None:
            assert tables[0].frame.equals(tables[1].frame)
            assert tables[0].kinds == tables[1].kinds
        features = [
            getattr(each.ratings, f"{side}_features") for each in (found, expected)
        ]
        assert (features[0] is None) == (features[1] is None)
        if features[0] is not None:
            assert features[0].names == features[1].names
            matrices = [each.matrix.toarray() for each in features]
            np.testing.assert_array_equal(*matrices, strict=True)
    summaries = [dict(each.training) for each in (found, expected)]
    for summary in summaries:
        summary.pop("seconds")
        summary.pop("update", None)
        summary.pop("changes", None)
    assert summaries[0] == summaries[1]


def fitted(name, table):
    rated = (
        table.drop("rating") if not Recommender(name).model.predicts_ratings else table
    )
    return Recommender(name, **OPTIONS.get(name, {})).fit(Ratings.from_frame(rated))


@cache
def fitted_to_all(name):
    """Return a model of all people, which no test changes."""
    return fitted(name, frame())


@cache
def fitted_to_others(name):
    """Return a model that never saw the person, which no test changes."""
    return fitted(name, without(frame(), PERSON))


@pytest.mark.covering(1)
@pytest.mark.parametrize("is_saved", [False, True], ids=["in memory", "saved"])
@pytest.mark.parametrize("name", NAMES)
def test_a_refit_without_a_person_is_a_fit_that_never_saw_the_person(
    name, is_saved, tmp_path
):
    before = fitted_to_all(name)
    if is_saved:
        before.save(tmp_path / "m")
        before = Recommender.load(tmp_path / "m")
    after = before.update(forget=PERSON, refit=True)
    assert_same(after, fitted_to_others(name))
    assert after.training["update"].startswith("fitted again")
    assert after.training["changes"] == "0 new events, users forgotten"


@pytest.mark.parametrize("name", NAMES)
def test_a_refit_of_a_window_is_a_fit_of_the_window(name):
    after = fitted_to_all(name).update(window="200d", refit=True)
    since = (N_RATINGS - 200) * DAY
    assert_same(after, fitted(name, frame().filter(pl.col("timestamp") >= since)))


@pytest.mark.parametrize("name", NAMES)
def test_a_refit_with_new_ratings_is_a_fit_of_all(name):
    everything = without(frame(), PERSON)
    before = fitted(name, everything.head(400))
    new = everything.tail(-350)  # some of them again
    rated = new.drop("rating") if before.ratings.implicit else new
    after = before.update(rated, refit=True)
    assert_same(after, fitted(name, everything))


def values_of(case, n, person):
    """Values of others, and of a person whose values make counts of grades, or the reverse."""
    rng = np.random.default_rng(1)
    grades, counts = (
        rng.choice([1.0, 2.0, 3.0, 4.0, 5.0], n),
        np.ceil(rng.pareto(0.8, n)),
    )
    if case == "counts of grades":
        return np.where(person, np.ceil(10 + 40 * rng.pareto(0.6, n)), grades)
    if case == "grades of counts":
        return np.where(person, 900.0, counts)
    if case == "grades of likes":
        return np.where(person, 2.0 + grades % 3, 1.0)
    if case == "likes of grades":
        return np.where(person, 5.0, np.where(np.arange(n) % 8 == 0, 2.0, 5.0))
    return np.where(
        person, -2.0, np.where(rng.random(n) < 0.3, -1.0, grades)
    )  # "unrated"


@pytest.mark.covering(1)
@pytest.mark.parametrize(
    ("name", "form"),
    [("auto", "file"), ("auto", "matrix"), ("popular", "frame"), ("popular", "matrix")],
)
@pytest.mark.parametrize(
    "case",
    [
        "counts of grades",
        "grades of counts",
        "grades of likes",
        "likes of grades",
        "unrated",
    ],
)
def test_what_the_values_are_is_decided_without_the_person(case, name, form, tmp_path):
    # One row of ten may differ from likes, so three are grades among few rows alone.
    n, n_of_person = {
        "grades of counts": (1800, 1200),
        "likes of grades": (450, 425),
    }.get(case, (1800, 450))
    rng = np.random.default_rng(2)
    person = np.arange(n) < n_of_person
    rows = pl.DataFrame(
        {"user": rng.integers(0, 80, n), "item": rng.integers(0, 500, n)}
    )
    rows = rows.with_columns(
        user=pl.when(pl.Series(person))
        .then(pl.lit(PERSON))
        .otherwise(pl.col("user") + 10),
        item=pl.when(pl.Series(person)).then(pl.int_range(n)).otherwise(pl.col("item")),
        value=values_of(case, n, person),
    ).unique(["user", "item"], keep="first", maintain_order=True)

    def fit(some):
        if form == "matrix":
            table = some.pivot("item", index="user", values="value").sort("user")
            users, items = table["user"], [int(each) for each in table.columns[1:]]
            matrix = table.drop("user").cast(pl.Float64).fill_null(np.nan).to_numpy()
            ratings = Ratings.from_matrix(matrix, users=users, items=items)
        elif form == "file":
            some.write_csv(tmp_path / "ratings.csv")
            ratings = tmp_path / "ratings.csv"
        else:
            ratings = Ratings.from_frame(some)
        return Recommender(name).fit(ratings)

    before, expected = fit(rows), fit(without(rows, PERSON))
    if name == "auto" and case != "unrated":
        assert before.ratings.implicit != expected.ratings.implicit
    if name == "popular":
        assert_same(before.update(forget=PERSON, refit=True), expected)
    before.save(tmp_path / "m")
    loaded = Recommender.load(tmp_path / "m")
    assert_same(loaded.update(forget=PERSON, refit=True), expected)


@pytest.mark.covering(1)
@pytest.mark.parametrize("unrated", [False, True])
@pytest.mark.parametrize(
    "name", ["als", "bayes", "ials", "spectral", "ease", "blend", "auto"]
)
def test_the_encoding_of_features_never_saw_the_person(name, unrated):
    def fit(table, users):
        rated = table.drop("rating") if name not in ("als", "bayes", "auto") else table
        ratings = Ratings.from_frame(rated, item_table=films(), user_table=users)
        model = Recommender(name, **OPTIONS.get(name, {}))
        return model.fit(with_features(ratings, unrated=unrated))

    after = fit(frame(), people()).update(forget=[PERSON, 900], refit=True)
    expected = fit(without(frame(), PERSON), without(people(), PERSON, 900))
    assert_same(after, expected)
    assert "job = spy" not in after.ratings.user_features.names
