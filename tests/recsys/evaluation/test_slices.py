"""Groups of users and items, and their metrics against brute force."""

import json
from dataclasses import replace

import numpy as np
import polars as pl
import pytest
from click.testing import CliRunner

from recsys import (
    Ratings,
    Recommender,
    evaluate,
    html_report,
    random_split,
    sample_path,
)
from recsys.cli.main import cli
from recsys.errors import DataError
from recsys.evaluation import Evaluation, monitor, shared_test
from recsys.evaluation.gates import Gate, verdicts, with_groups
from recsys.evaluation.results import combined
from recsys.evaluation.slices import groupings

N_USERS, N_ITEMS = 60, 30


@pytest.fixture(scope="module")
def ratings():
    generator = np.random.default_rng(5)
    rows = [
        (user, int(item))
        for user in range(N_USERS)
        for item in generator.choice(N_ITEMS, 8, replace=False)
    ]
    items = pl.DataFrame(
        {
            "item": range(N_ITEMS),
            "genres": ["|".join(["a", "b"][: 1 + i % 2]) for i in range(N_ITEMS)],
            "price": [float(i) for i in range(N_ITEMS)],
        }
    )
    users = pl.DataFrame(
        {"user": range(N_USERS), "age": [20 + u % 40 for u in range(N_USERS)]}
    )
    frame = pl.DataFrame(rows, schema=["user", "item"], orient="row")
    return Ratings.from_frame(frame, item_table=items, user_table=users)


def test_groups_of_items_equal_brute_force(ratings):
    split = random_split(ratings, 0.3, random_state=1)
    found = evaluate(
        ["popular", "ease"],
        split,
        n=5,
        metrics=["recall", "ndcg"],
        by=["genres", "popularity"],
        features=False,
    )
    genres = dict(
        zip(
            ratings.item_table.frame["item"],
            ratings.item_table.frame["genres"],
            strict=True,
        )
    )
    from recsys import Recommender

    lists = {}
    recommender = Recommender("ease").fit(split.train, features=False)
    relevant = {}
    for user, item in split.test.to_frame().select("user", "item").iter_rows():
        relevant.setdefault(user, set()).add(item)
    for user in relevant:
        lists[user] = recommender.recommend(user, n=5)["item"].to_list()
    for genre in ("a", "b"):
        recalls = []
        exposures = []
        relevances = []
        for user, items in relevant.items():
            of_group = {item for item in items if genre in genres[item]}
            if of_group:
                recalls.append(len(of_group & {*lists[user]}) / len(of_group))
            in_group = [genre in genres[item] for item in lists[user]]
            exposures.append(sum(in_group) / len(in_group))
            relevances.append(len(of_group) / len(items))
        row = found.slices.filter(
            model="ease", by="genres", group=genre, metric="recall@5"
        ).row(0, named=True)
        assert row["users"] == len(recalls)
        assert row["value"] == pytest.approx(np.mean(recalls))
        assert row["exposure"] == pytest.approx(np.mean(exposures))
        assert row["relevance"] == pytest.approx(np.mean(relevances))
        assert row["low"] <= row["value"] <= row["high"]
    parts = found.slices.filter(metric="ndcg@5", by="popularity", model="ease")
    assert parts["exposure"].sum() == pytest.approx(1)
    assert parts["relevance"].sum() == pytest.approx(1)


def test_groups_of_users_equal_the_values_of_users(ratings):
    split = random_split(ratings, 0.3, random_state=1)
    found = evaluate("popular", split, n=5, metrics=["ndcg"], by_user=["age"])
    ages = dict(ratings.user_table.frame.select("user", "age").iter_rows())
    values = dict(found.per_user.select("user", "ndcg@5").drop_nulls().iter_rows())
    for row in found.slices.to_dicts():
        low, _, high = row["group"].partition(" to ")
        if low.startswith("under"):
            bounds = 0, float(low.split()[1])
        elif high:
            bounds = float(low), float(high)
        else:
            bounds = float(low.split()[0]), np.inf
        group = [v for user, v in values.items() if bounds[0] <= ages[user] < bounds[1]]
        others = [
            v for user, v in values.items() if not bounds[0] <= ages[user] < bounds[1]
        ]
        assert row["users"] == len(group)
        assert row["value"] == pytest.approx(np.mean(group))
        assert row["gap"] == pytest.approx(np.mean(group) - np.mean(others))


def test_finds_a_group_for_which_a_model_is_worse():
    generator = np.random.default_rng(2)
    rows = []
    for user in range(400):
        # The users of one country choose at random, the others among the first items.
        n_items = 200 if user % 4 == 0 else 12
        rows += [(user, int(i)) for i in generator.choice(n_items, 8, replace=False)]
    users = pl.DataFrame(
        {
            "user": range(400),
            "country": ["NO" if u % 4 == 0 else "DE" for u in range(400)],
        }
    )
    frame = pl.DataFrame(rows, schema=["user", "item"], orient="row")
    ratings = Ratings.from_frame(frame, user_table=users)
    found = evaluate("popular", random_split(ratings, 0.25), n=5, by_user=["country"])
    worst = found.largest_gaps.filter(metric="ndcg@5").row(0, named=True)
    assert worst["group"] in ("NO", "DE")
    worst = found.slices.filter(metric="ndcg@5", group="NO").row(0, named=True)
    assert worst["gap"] < -0.1
    assert worst["adjusted"] < 0.01


def test_popularity_has_thirds_of_the_ratings(ratings):
    (grouping,) = groupings(ratings, ["popularity"], [])
    counts = ratings.counts("item")
    shares = grouping.members @ counts / counts.sum()
    assert grouping.members.sum(axis=0).tolist() == [1] * N_ITEMS
    assert np.abs(shares - 1 / 3).max() < counts.max() / counts.sum()


def test_rejects_a_column_that_the_table_lacks(ratings):
    with pytest.raises(
        DataError, match=r"column 'genre' of items; .*Did you mean genres\?"
    ):
        groupings(ratings, ["genre"], [])
    with pytest.raises(DataError, match="no column 'price' of users"):
        groupings(ratings, [], ["price"])


def test_rejects_groups_of_items_and_of_users_with_the_same_names(ratings):
    users = ratings.user_table.frame.rename({"age": "price"})
    both = Ratings.from_frame(
        ratings.to_frame(), item_table=ratings.item_table.frame, user_table=users
    )
    with pytest.raises(DataError, match="by 'price' would have the same names"):
        groupings(both, ["price"], ["price"])


def test_groups_have_different_names_and_each_user_once():
    incomes = [1_000_001 + user / 100 for user in range(100)]
    # Of 30 towns, "other" is the most common.
    towns = ["other" if user % 3 else f"town {user}" for user in range(100)]
    users = pl.DataFrame({"user": range(100), "income": incomes, "town": towns})
    frame = pl.DataFrame({"user": range(100), "item": 1})
    table = Ratings.from_frame(frame, user_table=users)
    for grouping in groupings(table, [], ["income", "town"]):
        assert len({*grouping.names}) == len(grouping.names)
        assert grouping.members.sum(axis=0).tolist() == [1] * 100


def test_a_group_of_items_without_test_items_has_no_row(ratings):
    split = random_split(ratings, 0.3, random_state=1)
    tested = set(split.test.take(np.arange(3)).to_frame()["item"])
    table = pl.DataFrame(
        {
            "item": range(N_ITEMS),
            "kind": ["x" if i in tested else "y" for i in range(30)],
        }
    )
    rare = random_split(Ratings.from_frame(ratings.to_frame(), item_table=table), 0.3)
    few = replace(rare, test=rare.test.take(rare.test.indices == min(tested)))
    found = evaluate("popular", few, n=5, metrics=["ndcg"], by=["kind"], features=False)
    assert found.slices["group"].to_list() == ["x"]


def test_a_metric_without_a_value_for_a_group_is_left_out(ratings):
    def first_if_any(hits):
        return np.where(hits.any(axis=1), 1.0, np.nan)

    split = random_split(ratings, 0.3, random_state=1)
    options = {"n": 5, "by": ["genres"], "features": False}
    found = evaluate("popular", split, metrics=[first_if_any], **options)
    rows = found.slices.filter(by="genres")
    # Its values are all equal, so that no group differs from the other.
    assert rows["gap"].to_list() == [0, 0]
    assert rows["p_value"].to_list() == [1, 1]


def test_slices_are_saved(ratings, tmp_path):
    split = random_split(ratings, 0.3, random_state=1)
    found = evaluate("popular", split, n=5, metrics=["ndcg"], by=["price"])
    found.save(tmp_path / "results")
    assert Evaluation.load(tmp_path / "results").slices.equals(found.slices)


def test_command_lists_groups(tmp_path, ratings):
    ratings.to_frame().write_csv(tmp_path / "log.csv")
    ratings.user_table.frame.write_csv(tmp_path / "users.csv")
    words = ["evaluate", tmp_path / "log.csv", "--user-table", tmp_path / "users.csv"]
    options = ["--method", "random", "--model", "popular", "--by-user", "age,activity"]
    command = [*map(str, words), *options, "--by", "popularity", "--json"]
    output = CliRunner().invoke(cli, command).stdout
    (model,) = json.loads(output)["models"]
    by = [entry["by"] for entry in model["slices"]]
    assert set(by) == {"age", "activity", "popularity"}
    first = model["slices"][0]
    assert first["group"] == "head"
    assert set(first["metrics"]["ndcg@10"]) == {
        "value",
        "interval",
        "gap",
        "p_value",
        "adjusted",
    }


def gate(text, found):
    return Gate.parse(text, found.metrics["metric"].unique().to_list())


@pytest.fixture(scope="module")
def two(ratings):
    split = random_split(ratings, 0.3, random_state=1)
    groups = {"by": ["genres", "popularity"], "by_user": ["age", "activity"]}
    return evaluate(["popular", "random"], split, n=5, metrics=["ndcg"], **groups)


def test_gate_of_a_group_is_paired_over_its_users(two):
    age = two.slices.filter(by="age")["group"][0]
    conditions = [f"ndcg[age={age}] worse", "ndcg@5[ genres = b ] worse"]
    first, second = verdicts([gate(text, two) for text in conditions], two, ["random"])
    assert first.gate == f"ndcg@5[age={age}] worse"
    for verdict, by, group in ((first, "age", age), (second, "genres", "b")):
        rows = two.slices.filter(by=by, group=group)
        old, new = (rows.filter(model=m)["value"][0] for m in ("popular", "random"))
        assert f"by {new - old:+.4f} " in verdict.reason


def test_gates_of_several_groups_are_adjusted_together(two):
    alone = gate("ndcg[popularity=head] worse", two)
    others = [gate(f"ndcg[popularity={g}] worse", two) for g in ("middle", "tail")]
    (single,) = verdicts([alone], two, ["random"])
    several, *_ = verdicts([alone, *others], two, ["random"])
    p_single, p_several = (
        float(v.reason.rpartition("p = ")[2]) for v in (single, several)
    )
    assert p_several > p_single


def test_a_single_column_needs_no_list(two, ratings):
    split = random_split(ratings, 0.3, random_state=1)
    options = {"n": 5, "metrics": ["ndcg"], "resamples": 0}
    found = evaluate("popular", split, by="genres", by_user="age", **options)
    assert found.slices["by"].unique().sort().to_list() == ["age", "genres"]
    recommender = Recommender("popular").fit(split.train)
    values = monitor(recommender, split.test, by="genres", resamples=0).values
    assert "ndcg@10[genres=a]" in values
    assert two.to_latex("ndcg@5") == two.to_latex(["ndcg@5"])


def test_gate_of_an_unknown_column_lists_the_columns_of_both_tables(ratings, two):
    typo = gate("ndcg[aeg=young] < 0.1", two)
    with pytest.raises(DataError, match=r"'aeg' of users or items; .*genres.*mean age"):
        with_groups([typo], ratings, [], [])


@pytest.mark.parametrize("bound", ["worse", "< 0.1"])
def test_gate_of_an_unknown_group_lists_the_groups(two, bound):
    with pytest.raises(DataError, match=r"groups by genres are 'a', 'b'"):
        verdicts([gate(f"ndcg[genres=c] {bound}", two)], two, ["random"])
    with pytest.raises(DataError, match="there are groups by genres, popularity, age"):
        verdicts([gate(f"ndcg[genre=a] {bound}", two)], two, ["random"])


def test_saved_results_of_two_models_are_compared(ratings, two, tmp_path):
    split = random_split(ratings, 0.3, random_state=1)
    parts = {}
    for model in ("popular", "random"):
        groups = {"by": ["genres", "popularity"], "by_user": ["age", "activity"]}
        found = evaluate(model, split, n=5, metrics=["ndcg"], **groups)
        found.save(tmp_path / model)
        parts[model] = Evaluation.load(tmp_path / model)
    both = combined(parts)
    assert both.comparisons.equals(two.comparisons)
    condition = [gate("ndcg[popularity=tail] worse", two)]
    assert verdicts(condition, both, ["random"]) == verdicts(condition, two, ["random"])
    other = evaluate("ease", random_split(ratings, 0.3, random_state=2), n=5)
    with pytest.raises(DataError, match="different settings or test ratings"):
        combined({"a": two, "b": other})


def test_models_of_other_training_ratings_have_the_same_groups(ratings):
    split = random_split(ratings, 0.3, random_state=1)
    fewer = split.train.take(np.arange(split.train.n_ratings) % 2 == 0)
    models = {
        label: Recommender("popular").fit(train)
        for label, train in (("old", fewer), ("new", split.train))
    }

    trained = {label: model.ratings for label, model in models.items()}
    shared = shared_test(trained, split.test)
    found = evaluate(models, shared.splits, n=5, by_user=["activity"])
    users = {
        model: rows["user"].to_list()
        for (model, group), rows in found.per_group.group_by("model", "group")
        if group == found.slices["group"][0]
    }
    assert sorted(users["old"]) == sorted(users["new"])


def test_folds_share_the_ranges_of_the_first(ratings):
    folds = [random_split(ratings, 0.3, random_state=seed) for seed in range(3)]
    found = evaluate("popular", folds, n=5, by_user=["activity"])
    assert found.slices["group"].n_unique() <= 4


def test_report_draws_the_groups(two):
    page = html_report(two)
    for title in ("ndcg@5 by genres", "ndcg@5 by age", "Exposure by popularity"):
        assert f'aria-label="{title}"' in page


def test_monitor_lists_groups(ratings):
    split = random_split(ratings, 0.3, random_state=1)
    recommender = Recommender("popular").fit(split.train)
    reference = {"ndcg@10[genres=a]": 0.25}
    found = monitor(recommender, split.test, by=["genres"], reference=reference)
    row = found.table.filter(name="ndcg@10[genres=a]").row(0, named=True)
    assert row["reference"] == 0.25
    assert row["low"] <= row["value"] <= row["high"]
    with pytest.raises(DataError, match="no column 'shoe' of users"):
        monitor(recommender, split.test, by_user=["shoe"])


def test_monitor_names_groups_without_users(ratings):
    users = pl.DataFrame({"user": range(N_USERS), "age": [20] + [None] * (N_USERS - 1)})
    table = Ratings.from_frame(ratings.to_frame(), user_table=users)
    split = random_split(table, 0.3, random_state=1)
    recommender = Recommender("popular").fit(split.train)
    others = split.test.take(split.test.user_index_of_nonzeros() > 0)
    with pytest.raises(DataError, match="No test user is in any of the groups"):
        monitor(recommender, others, by_user=["age"])


def test_command_fails_for_a_worse_group(tmp_path, ratings):
    ratings.to_frame().write_csv(tmp_path / "log.csv")
    ratings.user_table.frame.write_csv(tmp_path / "users.csv")
    words = ["compare", tmp_path / "log.csv", "--user-table", tmp_path / "users.csv"]
    options = ["--method", "random", "--model", "popular,random", "-n", "5"]
    command = [*map(str, words), *options, "--save", str(tmp_path / "saved")]
    result = CliRunner().invoke(cli, [*command, "--fail-if", "ndcg[age=under 9] worse"])
    assert result.exit_code == 1
    assert "the groups by age are 'under 27'" in result.stderr
    again = ["compare", str(tmp_path / "saved"), "--fail-if", "ndcg[age=under 27] < 2"]
    result = CliRunner().invoke(cli, again)
    assert result.exit_code == 1
    assert "ndcg@5[age=under 27] of random is" in result.stderr


def test_groups_have_the_errors_of_their_ratings(ratings):
    rng = np.random.default_rng(3)
    frame = ratings.to_frame().with_columns(
        rating=pl.Series(rng.integers(1, 6, ratings.n_ratings).astype(float))
    )
    tables = {
        "item_table": ratings.item_table.frame,
        "user_table": ratings.user_table.frame,
    }
    split = random_split(Ratings.from_frame(frame, **tables), 0.3, random_state=1)
    groups = {"by": ["genres"], "by_user": ["age"], "features": False}
    found = evaluate(["bias", "popular"], split, n=5, **groups)
    predicted = Recommender("bias").fit(split.train, features=False)
    test = split.without_new().test.to_frame()
    values = predicted.predict(test.select("user", "item"))["prediction"]
    errors = test.with_columns(error=values - test["rating"])
    errors = errors.join(ratings.item_table.frame, on="item")
    errors = errors.join(ratings.user_table.frame, on="user")
    of_b = errors.filter(pl.col("genres").list.contains("b"))["error"].to_numpy()
    slices = found.slices.filter(model="bias")
    of_group = slices.filter(group="b", metric="rmse").row(0, named=True)
    assert of_group["value"] == pytest.approx(np.sqrt(np.mean(of_b**2)), rel=1e-5)
    assert of_group["low"] < of_group["value"] < of_group["high"]
    by_age = slices.filter(by="age", metric="mae")
    youngest = errors.filter(pl.col("age") < int(by_age["group"][0].split()[1]))
    others = errors.filter(pl.col("age") >= int(by_age["group"][0].split()[1]))
    expected = youngest["error"].abs().mean()
    assert by_age["value"][0] == pytest.approx(expected, rel=1e-5)
    assert by_age["gap"][0] == pytest.approx(expected - others["error"].abs().mean())
    condition = f"rmse[age={by_age['group'][0]}] < 0.1"
    (verdict,) = verdicts([gate(condition, found)], found, ["bias"])
    assert not verdict.failed


def test_command_lists_the_errors_of_groups():
    words = ["evaluate", str(sample_path()), "--model", "popular", "-n", "5"]
    options = ["--by-user", "activity", "--method", "random", "--json"]
    output = CliRunner().invoke(cli, [*words, *options]).stdout
    (model,) = json.loads(output)["models"]
    assert {"rmse", "mae", "ndcg@5"} <= model["slices"][0]["metrics"].keys()


def test_gate_of_the_error_of_a_group(ratings):
    rng = np.random.default_rng(3)
    frame = ratings.to_frame().with_columns(
        rating=pl.Series(rng.integers(1, 6, ratings.n_ratings).astype(float))
    )
    table = ratings.user_table.frame
    split = random_split(Ratings.from_frame(frame, user_table=table), 0.3)
    groups = {"by_user": ["age"], "features": False}
    found = evaluate(["bias", "als"], split, n=5, **groups)
    rows = found.slices.filter(by="age", group="under 27", metric="rmse")
    difference = rows["value"][1] - rows["value"][0]
    condition = [gate("rmse[age=under 27] worse", found)]
    (verdict,) = verdicts(condition, found, ["als"])
    assert f"by {difference:+.4f} " in verdict.reason


def test_errors_of_a_group_include_ratings_that_are_not_relevant(ratings):
    rng = np.random.default_rng(3)
    frame = ratings.to_frame().with_columns(
        rating=pl.Series(rng.integers(1, 6, ratings.n_ratings).astype(float))
    )
    tables = {
        "item_table": ratings.item_table.frame,
        "user_table": ratings.user_table.frame,
    }
    split = random_split(Ratings.from_frame(frame, **tables), 0.3, random_state=1)
    groups = {"by": ["genres"], "by_user": ["age"], "features": False}
    options = {"n": 5, "resamples": 20, **groups}
    alone = evaluate("bias", split, **options).slices
    found = evaluate("bias", split, relevant_from=5, **options).slices
    is_error = pl.col("metric").is_in(["rmse", "mae"])
    columns = ["by", "group", "metric", "users", "value", "gap"]
    of_errors = found.filter(is_error).select(columns)
    assert of_errors.equals(alone.filter(is_error).select(columns))
    relevant = split.without_new().test
    n_users = len(np.unique(relevant.user_index_of_nonzeros()[relevant.values >= 5]))
    by_age = found.filter(metric="ndcg@5", by="age")
    assert by_age["users"].sum() == n_users
