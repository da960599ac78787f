"""Splits as folders: whole or not at all, and what was saved is what is read."""

import json
from dataclasses import replace
from datetime import date
from pathlib import Path

import numpy as np
import polars as pl
import pytest
import scipy.sparse as sp

from recsys.data.features import Features
from recsys.data.ratings import Ratings
from recsys.errors import DataError
from recsys.evaluation import (
    evaluate,
    fingerprint,
    held_out_users,
    k_fold,
    random_split,
    read_split,
    save_split,
    shared_test,
    split_from_pair,
    time_cuts,
    time_split,
)
from recsys.evaluation.split_files import read_pair
from recsys.models.registry import make_model
from recsys.readers import read_ratings
from recsys.recommender import Recommender
from recsys.saving.atomic import move_link
from recsys.saving.splits import split_files
from recsys.update import reading_of

pytestmark = pytest.mark.usefixtures("one_fold")


@pytest.fixture
def ratings():
    rng = np.random.default_rng(0)
    matrix = sp.random_array((30, 20), density=0.3, rng=rng, dtype=np.float32)
    return Ratings.from_matrix(matrix)


def same(one, other):
    return [part.to_frame().rows() for part in one.parts] == [
        part.to_frame().rows() for part in other.parts
    ]


@pytest.mark.parametrize("form", ["csv", "parquet"])
def test_saved_splits_are_read(ratings, tmp_path, form):
    split = random_split(ratings, random_state=3)
    save_split(split, tmp_path / "s", form=form)
    found = read_split(tmp_path / "s")
    assert same(split, found)
    assert (found.method, found.parameters) == (split.method, split.parameters)
    assert fingerprint(*found.parts) == fingerprint(*split.parts)


@pytest.mark.parametrize("value", [None, "half", float("nan"), 2**63, True, np.random])
def test_only_numbers_are_parameters_of_a_saved_split(ratings, tmp_path, value):
    split = replace(random_split(ratings), parameters={"share": value})
    with pytest.raises(DataError, match="its parameter share must be a number below 2"):
        save_split(split, tmp_path / "s")
    assert not [*tmp_path.iterdir()]


def test_histories_and_folds_are_saved_too(ratings, tmp_path):
    held = held_out_users(ratings, 0.3)
    save_split(held, tmp_path / "users")
    assert same(held, read_split(tmp_path / "users"))
    folds = k_fold(ratings, 3)
    save_split(folds, tmp_path / "folds")
    assert all(
        same(*pair) for pair in zip(folds, read_split(tmp_path / "folds"), strict=True)
    )


@pytest.mark.parametrize("form", ["csv", "parquet"])
def test_tables_of_items_and_users_are_saved_too(ratings, tmp_path, form):
    films = {
        "item": range(20),
        "title": ["Up (2009)"] * 20,
        "kinds": [["a", "b"], ["c"]] * 10,
    }
    people = {"user": range(40), "born": [date(1990, 1, 1)] * 40, "zip": ["00501"] * 40}
    tables = {
        "item_table": Features.of(pl.DataFrame(films | {"year": [2009] * 20}), "item")
    }
    tables["user_table"] = Features.of(pl.DataFrame(people), "user")
    split = random_split(replace(ratings, **tables))
    keep = ["born", "zip"]
    save_split(split, tmp_path / "s", form=form, keep_columns=keep)
    save_split([split, split], tmp_path / "folds", form=form, keep_columns=keep)
    for found in (read_split(tmp_path / "s"), read_split(tmp_path / "folds")[1]):
        for name, table in tables.items():
            again = getattr(found.train, name)
            assert again.frame.equals(table.frame)
            assert again.kinds == table.kinds
    save_split(random_split(ratings), tmp_path / "s", overwrite=True)
    assert not (tmp_path / "s" / "items.parquet").exists()


@pytest.fixture
def two(ratings, tmp_path):
    """Two saved splits, a and b, and a link to the first."""
    for name, seed in (("a", 1), ("b", 2)):
        save_split(random_split(ratings, random_state=seed), tmp_path / name)
    move_link(tmp_path / "latest", "a")
    return tmp_path


def read_and(change, number):
    """Return a reader of files that calls `change` once, before it reads file `number`."""
    count = [0]

    def read(*args, **options):
        count[0] += 1
        if count[0] == number:
            change()
        return read_ratings(*args, **options)

    return read


@pytest.mark.parametrize("number", [1, 2])
def test_a_split_is_read_whole_while_its_link_moves(two, number):
    read = read_and(lambda: move_link(two / "latest", "b"), number)
    assert same(read_split(two / "latest", read), read_split(two / "a"))
    move_link(two / "latest", "a")
    read = read_and(lambda: move_link(two / "latest", "b"), number)
    files = two / "latest" / "train.csv", two / "latest" / "test.csv"
    assert same(read_pair(*files, read), read_split(two / "a"))


@pytest.mark.parametrize("number", [1, 2])
def test_a_split_is_read_whole_while_it_is_replaced(ratings, two, number):
    newer = random_split(ratings, random_state=2)
    read = read_and(lambda: save_split(newer, two / "a", overwrite=True), number)
    assert same(read_split(two / "a", read), newer)


@pytest.mark.parametrize("name", ["train.csv", "split.json", "items.csv"])
def test_links_in_a_saved_split_are_not_followed(two, name):
    elsewhere = two / "elsewhere"
    elsewhere.write_bytes((two / "a" / "train.csv").read_bytes())
    if (two / "a" / name).exists():
        (two / "a" / name).rename(elsewhere)
    (two / "a" / name).symlink_to(elsewhere)
    with pytest.raises(DataError, match=f"is a saved split with a link, {name}"):
        read_split(two / "a")


def test_implicit_feedback_stays_so(ratings, tmp_path):
    pairs = Ratings.from_frame(ratings.to_frame().select("user", "item"))
    save_split(random_split(pairs), tmp_path / "s")
    assert read_split(tmp_path / "s").train.implicit


def test_a_failure_leaves_what_was_there(ratings, tmp_path, monkeypatch):
    save_split(random_split(ratings), tmp_path / "s")
    before = (tmp_path / "s" / "train.csv").read_bytes()

    def fail(*_args, **_options):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(pl.DataFrame, "write_parquet", fail)
    with pytest.raises(
        DataError, match=r"cannot be saved in .*: No space left on device"
    ):
        save_split(
            random_split(ratings, random_state=1),
            tmp_path / "s",
            form="parquet",
            overwrite=True,
        )
    with pytest.raises(DataError, match="No space left"):
        save_split(
            random_split(ratings, random_state=1), tmp_path / "new", form="parquet"
        )
    assert [path.name for path in tmp_path.iterdir()] == ["s"]
    assert (tmp_path / "s" / "train.csv").read_bytes() == before


def test_only_a_saved_split_is_replaced(ratings, tmp_path):
    split = random_split(ratings)
    save_split(split, tmp_path / "s")
    with pytest.raises(DataError, match="there is a saved split already"):
        save_split(split, tmp_path / "s")
    (tmp_path / "s" / "notes.txt").write_text("mine")
    with pytest.raises(
        DataError, match=r"holds other files next to the saved split \(notes.txt\)"
    ):
        save_split(split, tmp_path / "s", overwrite=True)
    (tmp_path / "file").write_text("mine")
    with pytest.raises(DataError, match="it exists and is not a saved split"):
        save_split(split, tmp_path / "file", overwrite=True)
    with pytest.raises(DataError, match="there is no directory"):
        save_split(split, tmp_path / "no" / "s")
    (tmp_path / "s" / "notes.txt").unlink()
    save_split(k_fold(ratings, 2), tmp_path / "s", overwrite=True)
    save_split(split, tmp_path / "s", overwrite=True)
    assert same(split, read_split(tmp_path / "s"))


def test_changed_files_are_noticed(ratings, tmp_path):
    save_split(random_split(ratings), tmp_path / "s")
    lines = (tmp_path / "s" / "test.csv").read_text().splitlines()
    (tmp_path / "s" / "test.csv").write_text("\n".join(lines[:-1]))
    with pytest.raises(
        DataError, match=r"are not those that its split\.json describes"
    ):
        read_split(tmp_path / "s")
    (tmp_path / "s" / "split.json").unlink()
    assert read_split(tmp_path / "s").method == "given"


def test_rejects_other_types_than_splits(tmp_path):
    with pytest.raises(
        DataError, match="is not a split, and has no pairs of training and test files"
    ):
        read_split(tmp_path)
    (tmp_path / "train.csv").write_text("user,item\n1,2\n")
    assert split_files(tmp_path) is None
    (tmp_path / "test.csv.gz").write_bytes(b"")
    assert split_files(tmp_path) == {
        "train": tmp_path / "train.csv",
        "test": tmp_path / "test.csv.gz",
    }
    assert split_files(Path("nowhere")) is None


def test_a_foreign_split_json_says_nothing(ratings, tmp_path):
    split = random_split(ratings)
    for name, part in zip(("train", "test"), split.parts, strict=True):
        part.to_frame().write_csv(tmp_path / f"{name}.csv")
    for text in ("[]", "{", json.dumps({"method": "time"})):
        (tmp_path / "split.json").write_text(text)
        assert read_split(tmp_path).method == "given"


@pytest.mark.parametrize(
    "change",
    [
        {"method": []},
        {"method": {}},
        {"parameters": None},
        {"parameters": "seed"},
        {"parameters": {"random_state": 0}},
        {"parameters": {"random_state": 0, "test_fraction": "half"}},
        {"parameters": {"random_state": 0, "test_fraction": float("nan")}},
        {"parameters": {"random_state": 10**400, "test_fraction": 0.1}},
        {"method": "time", "parameters": {"cut": 10**400}},
        {"method": "given", "parameters": {"cut": [1]}},
    ],
    ids=str,
)
def test_names_a_damaged_description(ratings, tmp_path, change):
    save_split(random_split(ratings), tmp_path / "s")
    file = tmp_path / "s" / "split.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | change))
    with pytest.raises(DataError, match=r"split\.json is damaged: "):
        read_split(tmp_path / "s")


@pytest.mark.parametrize("folds", [None, 3, {}, [], [1], ["../s"], ["/"], "fold-1"])
def test_folds_are_folders_of_the_split(ratings, tmp_path, folds):
    save_split(random_split(ratings), tmp_path / "s")
    (tmp_path / "k").mkdir()
    document = {"format": "recsys-split", "format_version": 4, "folds": folds}
    (tmp_path / "k" / "split.json").write_text(json.dumps(document))
    with pytest.raises(DataError, match=r"split\.json is damaged: |is not a split"):
        read_split(tmp_path / "k")


def test_a_description_cannot_have_other_files_replaced(ratings, tmp_path):
    save_split(random_split(ratings), tmp_path / "s")
    file = tmp_path / "s" / "split.json"
    (tmp_path / "s" / "thesis.txt").write_text("mine")
    for names in (["thesis.txt", "train.csv", "test.csv"], 3, [["train.csv"]]):
        file.write_text(json.dumps(json.loads(file.read_text()) | {"files": names}))
        with pytest.raises(DataError, match=r"split\.json is damaged"):
            save_split(random_split(ratings), tmp_path / "s", overwrite=True)
    file.write_text(
        json.dumps(json.loads(file.read_text()) | {"files": ["train.csv", "test.csv"]})
    )
    with pytest.raises(DataError, match="holds other files next to the saved split"):
        save_split(random_split(ratings), tmp_path / "s", overwrite=True)
    assert (tmp_path / "s" / "thesis.txt").read_text() == "mine"


def test_a_cut_before_the_year_1_is_read_again(tmp_path):
    """Where Python has no dates."""
    cut = -70_000_000_000
    rows = {
        "user": [1, 1, 2, 2],
        "item": [1, 2, 2, 1],
        "timestamp": [cut - 1, cut, cut - 1, cut],
    }
    split = time_split(Ratings.from_frame(pl.DataFrame(rows)), cut=cut)
    save_split(split, tmp_path / "s")
    again = read_split(tmp_path / "s")
    assert (again.parameters, again.description) == (
        split.parameters,
        split.description,
    )
    assert again.description == f"the interactions since {cut} s after 1970"


def log_of_events(unit="s", n=2_000):
    """Return events with quantities, kinds, grades and plays, in the order of time."""
    rng = np.random.default_rng(0)
    users = rng.integers(0, 40, n)
    items = np.where(
        rng.random(n) < 0.6, users % 4 * 8 + users % 3, rng.integers(0, 32, n)
    )
    times = 1_700_000_000 + np.sort(rng.integers(0, 200 * 86_400, n))
    if unit == "d":
        times = (times - 1_700_000_000) // 86_400
    quantities = rng.geometric(0.3, n) * np.where(rng.random(n) < 0.03, -1, 1)
    return pl.DataFrame(
        {
            "user": [f"{user:03d}" for user in users],
            "item": [f"i{item}" if item % 5 else str(item) for item in items],
            "time": times,
            "quantity": quantities,
            "event": rng.choice(["view", "cart", "buy"], n),
            "grade": np.minimum(100, np.ceil(3 * rng.pareto(0.8, n) + 1)),
            "plays": np.abs(quantities),
        }
    )


KINDS = {"event_weights": {"view": 1, "cart": 2, "buy": 5}}
LOGS = {
    "weights": ("quantity", {"weight": "quantity"}, "ease"),
    "kinds": ("event", KINDS, "ease"),
    "kinds and weights": ("event quantity", {**KINDS, "weight": "quantity"}, "ease"),
    "ages": ("", {"half_life": "30d"}, "ease"),
    "grades with a long tail": ("grade", {"scale": (1, 100)}, "bias"),
    "counts": ("plays", {}, "ease"),
    "times in days": ("quantity", {"weight": "quantity", "time_format": "d"}, "ease"),
    "times to come": (
        "quantity",
        {"weight": "quantity", "as_of": "2080-01-01"},
        "ease",
    ),
}


@pytest.mark.covering(1)
@pytest.mark.parametrize(("form", "candidates"), [("csv", None), ("parquet", 5)])
@pytest.mark.parametrize("kind", LOGS)
def test_a_split_and_its_files_and_a_model_of_them_have_one_answer(
    tmp_path, kind, form, candidates
):
    columns, options, model = LOGS[kind]
    frame = log_of_events(options.get("time_format", "s"))
    if "as_of" in options:
        frame = frame.with_columns(pl.col("time") + 50 * 365 * 86_400)
    frame.select("user", "item", "time", *columns.split()).write_csv(
        tmp_path / "log.csv"
    )
    split = time_split(read_ratings(tmp_path / "log.csv", **options))
    save_split(split, tmp_path / "parts", form=form)
    train, test = (tmp_path / "parts" / f"{name}.{form}" for name in ("train", "test"))
    fitted = Recommender(model).fit(str(train))
    held_out = read_ratings(test, defaults=reading_of(fitted.fitted))
    ways = [
        (model, split),
        (model, split_from_pair(train, test)),
        (model, read_pair(train, test)),
        ({model: fitted}, shared_test({model: fitted.ratings}, held_out).splits),
    ]
    answers = [
        evaluate(compared, splits, n=5, candidates=candidates, resamples=0)
        for compared, splits in ways
    ]
    tables = [
        answer.table.drop("fit_seconds", "recommend_seconds").row(0)
        for answer in answers
    ]
    assert answers[0].table["ndcg@5"][0] > 0
    assert tables == tables[:1] * 4


def test_a_column_of_weights_is_only_read_as_weights_in_a_split(tmp_path):
    frame = log_of_events().select("user", "item", "time", "quantity")
    split = time_split(Ratings.from_frame(frame, weight="quantity"))
    save_split(split, tmp_path / "parts")
    train = tmp_path / "parts" / "train.csv"
    for source in (
        train,
        f"{tmp_path}/parts/t*.csv",
        [train, f"{train.parent}/test.csv"],
    ):
        assert "weight = weight" in str(read_ratings(source).source)
    assert not read_ratings(train, implicit=True).weighted
    copied = tmp_path / "train.csv"
    copied.write_bytes(train.read_bytes())
    assert "rating = weight" in str(read_ratings(copied).source)
    (tmp_path / "split.json").write_text('{"format": "recsys-split", "files": 3}')
    with pytest.raises(DataError, match=r"split\.json is damaged"):
        read_ratings(copied)


def test_a_part_without_repeats_is_read_next_to_one_with_ages(tmp_path):
    frame = log_of_events(n=800).select("user", "item", "time")
    split = time_split(Ratings.from_frame(frame, half_life="30d"))
    assert split.test.events is None
    save_split(split, tmp_path / "parts")
    test = read_ratings(tmp_path / "parts" / "test.csv")
    pairs = split.test.to_frame()
    assert test.to_frame().select(pairs.columns).equals(pairs)
    assert np.array_equal(test.values, split.test.values)


@pytest.mark.parametrize("duplicates", ["last", "sum"])
def test_weights_that_are_all_1_stay_weights_in_a_split(tmp_path, duplicates):
    frame = log_of_events().select("user", "item", "time").with_columns(quantity=1.0)
    ratings = Ratings.from_frame(frame, weight="quantity", duplicates=duplicates)
    save_split(time_split(ratings), tmp_path / "parts")
    assert read_ratings(tmp_path / "parts" / "train.csv").weighted


@pytest.mark.parametrize(
    "options", [KINDS, {"weight": "quantity"}, {**KINDS, "weight": "quantity"}]
)
def test_a_model_of_a_log_reads_the_weights_of_a_part(tmp_path, options):
    frame = log_of_events().select("user", "item", "time", "quantity", "event")
    frame.write_csv(tmp_path / "log.csv")
    model = Recommender("ease").fit(read_ratings(tmp_path / "log.csv", **options))
    save_split(time_split(model.ratings), tmp_path / "parts")
    test = read_ratings(
        tmp_path / "parts" / "test.csv", defaults=reading_of(model.fitted)
    )
    assert "weight = weight" in str(test.source)
    assert test.weighted


def log_of_dislikes():
    """Return events with kinds, quantities and ids, some of them at the same time."""
    rng = np.random.default_rng(3)
    n = 1_200
    ids = [f"e{number}" if number % 7 else None for number in range(n)]
    return pl.DataFrame(
        {
            "user": rng.integers(0, 60, n),
            "item": rng.integers(0, 25, n),
            "time": 1_700_000_000 + rng.integers(0, 90, n) * 86_400,
            "event": rng.choice(["buy", "view", "dislike", "shown"], n),
            "quantity": rng.integers(1, 4, n),
            "id": ids,
        }
    )


DISLIKES = {"event_weights": {"buy": 3, "view": 1, "dislike": -2.5}}
WITH_DISLIKES = {
    "dislikes": {**DISLIKES, "impressions": "shown"},
    "ages": {**DISLIKES, "impressions": "shown", "half_life": "9d"},
    "ids": {**DISLIKES, "impressions": "shown", "event_id": "id"},
    "quantities": {**DISLIKES, "impressions": "shown", "weight": "quantity"},
    "impressions": {"impressions": "shown"},
    "the last event": {**DISLIKES, "impressions": "shown", "duplicates": "last"},
}
METHODS = {
    "time": lambda ratings: time_split(ratings, 0.2),
    "next": lambda ratings: time_split(ratings, 0.2, k=2, repeats="keep"),
    "random": lambda ratings: random_split(ratings, 0.2),
    "fold": lambda ratings: k_fold(ratings, 3)[1],
    "users": lambda ratings: held_out_users(ratings, 0.3),
    "cut": lambda ratings: time_cuts(ratings, 3)[0],
}


@pytest.mark.parametrize(
    ("kind", "method"),
    [(kind, "time") for kind in WITH_DISLIKES]
    + [("dislikes", method) for method in METHODS if method != "time"],
)
def test_files_of_a_split_have_its_dislikes(tmp_path, kind, method):
    frame = log_of_dislikes()
    split = METHODS[method](Ratings.from_frame(frame, **WITH_DISLIKES[kind]))
    form = "csv" if method in ("time", "users", "random") else "parquet"
    save_split(split, tmp_path / "parts", form=form)
    again = read_split(tmp_path / "parts")
    assert fingerprint(*again.parts) == fingerprint(*split.parts)
    assert split.seen.zeros is not None
    for before, after in zip(split.parts, again.parts, strict=True):
        assert (before.zeros is None) == (after.zeros is None)
        if before.zeros is not None:
            assert pairs_of_zeros(before) == pairs_of_zeros(after)
    penalties = {"regularization": 0.1, "unobserved_weight": 0.1}
    models = [make_model("ials", factors=4, iterations=2, **penalties), "popular"]
    if split.history is None:
        models.append("next")
    tables = [
        evaluate(models, parts, n=5, resamples=0).table.drop(
            "fit_seconds", "recommend_seconds"
        )
        for parts in (split, again)
    ]
    assert tables[0].equals(tables[1])
    if split.history is None:
        files = [tmp_path / "parts" / f"{name}.{form}" for name in ("train", "test")]
        pair = evaluate(models, read_pair(*files), n=5, resamples=0)
        assert tables[0].equals(pair.table.drop("fit_seconds", "recommend_seconds"))


def pairs_of_zeros(ratings):
    zeros = ratings.zeros
    users = np.repeat(np.arange(ratings.n_users), np.diff(zeros.indptr))
    user_ids = ratings.users.take(users)
    item_ids = ratings.items.take(zeros.indices)
    return [*zip(user_ids, item_ids, zeros.values.at().tolist(), strict=True)]


def test_an_update_of_a_model_of_a_part_takes_dislikes(tmp_path):
    frame = log_of_dislikes()
    ratings = Ratings.from_frame(frame, **WITH_DISLIKES["dislikes"])
    save_split(time_split(ratings, repeats="keep"), tmp_path / "parts")
    model = Recommender("ials", factors=4).fit(str(tmp_path / "parts" / "train.csv"))
    test = tmp_path / "parts" / "test.csv"
    later = read_ratings(test, defaults=reading_of(model.fitted))
    updated = model.update(later, refit=True)
    assert pairs_of_zeros(updated.ratings) == pairs_of_zeros(ratings)


def test_options_decide_how_the_events_of_a_part_are_read(tmp_path):
    ratings = Ratings.from_frame(log_of_dislikes(), **WITH_DISLIKES["dislikes"])
    save_split(time_split(ratings), tmp_path / "parts")
    train = tmp_path / "parts" / "train.csv"
    weights = {"buy": 1, "*": 0}
    assert read_ratings(train, event_weights=weights).zeros is None
    assert read_ratings(train).zeros is not None
