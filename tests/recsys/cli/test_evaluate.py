"""split, evaluate and compare."""

import io
import json
import os
import re
import sqlite3
from pathlib import Path

import polars as pl
import pytest

from recsys.cli.split import SPLITS as METHODS

DATASETS = os.environ.get("RECSYS_DATASETS")


def table(result):
    return pl.read_csv(io.StringIO(result.stdout))


def document(result):
    return json.loads(result.stdout)


# evaluate


def test_evaluate_compares_three_models(run, ratings):
    result = run("evaluate", ratings)
    found = table(result)
    assert found["model"].to_list() == ["als", "bias", "popular"]
    assert {"rmse", "mae", "precision@10", "ndcg@10", "gini@10"} < set(found.columns)
    assert found["rmse"][0] < found["rmse"][1]
    assert "held out: the ratings since 2001-09-09 04:17:15 UTC" in result.stderr
    assert "trained on 432 and tested on 48 ratings" in result.stderr


@pytest.mark.parametrize("method", [(), ("--method", "users"), ("--method", "k-fold")])
def test_evaluate_takes_counts_for_contacts(run, plays, method):
    result = run("evaluate", plays, *method)
    found = table(result)
    assert found["model"].to_list()[:2] == ["spectral", "popular"]
    assert "rmse" not in found.columns
    assert (
        "the ratings look like counts or amounts, from 1 to 40: implicit feedback"
        in result.stderr
    )


def test_named_models_of_counts_get_interactions_unless_there_is_a_scale(run, plays):
    how = ("--model", "als,popular", "--method", "random")
    said = run("evaluate", plays, *how, code=1).stderr
    assert (
        "als model needs ratings with values, but these are counts of interactions"
        in said
    )
    result = run("evaluate", plays, *how, "--scale", "1,40")
    assert table(result)["rmse"][0] > 1
    assert "grades from 1 to 40 (scale)" in result.stderr


@pytest.mark.parametrize("models", [(), ("--model", "ease,spectral,popular")])
def test_counts_are_measured_as_interactions_with_any_models(run, plays, models):
    counts, ones = (
        table(run("evaluate", plays, *models, *flag)) for flag in ((), ("--implicit",))
    )
    assert counts.select(pl.exclude("^.*_seconds$")).equals(
        ones.select(pl.exclude("^.*_seconds$"))
    )


def test_the_kind_of_the_training_ratings_is_that_of_the_test_ratings(run):
    rows = [
        f"{u},{i},{(u * i) % 7 + (u + i) % 3 * 30 + 1}"
        for u in range(30)
        for i in range(9)
    ]
    Path("train.csv").write_text("\n".join(["user,item,plays", *rows[::2]]))
    Path("test.csv").write_text("user,item,plays\n1,0,5\n3,0,4\n5,2,5\n")
    found = table(run("evaluate", "--train", "train.csv", "--test", "test.csv"))
    assert "rmse" not in found.columns


@pytest.mark.parametrize("prefix", ["", "sqlite:///"])
def test_pairs_of_tables_are_read_as_pairs_of_files(run, ratings, prefix):
    run("split", ratings, "--out", "parts", "--format", "csv")
    connection = sqlite3.connect("shop.db")
    for part in ("train", "test"):
        frame = pl.read_csv(f"parts/{part}.csv")
        connection.execute(f"CREATE TABLE {part} (user, item, rating, timestamp)")
        rows = frame.select("user", "item", "rating", "timestamp").rows()
        connection.executemany(f"INSERT INTO {part} VALUES (?, ?, ?, ?)", rows)
    connection.commit()
    connection.close()
    train, test = (f"{prefix}shop.db::{part}" for part in ("train", "test"))
    model = ("--model", "bias")
    files = ("--train", "parts/train.csv", "--test", "parts/test.csv")
    expected = table(run("evaluate", *files, *model)).select("rmse", "ndcg@10")
    pair = table(run("evaluate", "--train", train, "--test", test, *model))
    assert pair.select(expected.columns).equals(expected)
    folds = ("--fold", train, test, "--fold", "parts/test.csv", train)
    assert table(run("evaluate", *folds, *model))["rmse"].is_finite().all()
    said = run("evaluate", train, "--test", test, *model, code=2).stderr
    assert f"{train} is not a saved model" in said


@pytest.mark.parametrize("option", [(), ("--weight-col", "plays")])
def test_a_split_of_counts_or_weights_is_read_back_as_such(run, plays, option):
    run("split", plays, *option, "--out", "parts")
    names = Path("parts/train.csv").read_text().splitlines()[0].split(",")
    assert names[2] == ("weight" if option else "count")
    kinds = ("--model", "ease,spectral")
    direct, again = (
        run("evaluate", plays, *option, *kinds),
        run("evaluate", "parts", *kinds),
    )
    plain = pl.exclude("^.*_seconds$")
    assert table(direct).select(plain).equals(table(again).select(plain))


def test_evaluate_several_lengths(run, ratings):
    found = table(run("evaluate", ratings, "--model", "bias", "-n", 5, "-n", 3))
    assert [name for name in found.columns if name.startswith("map")] == [
        "map@3",
        "map@5",
    ]


def test_repeatable_options_can_be_set(run, ratings, monkeypatch):
    monkeypatch.setenv("RECSYS_EVALUATE_N", "4 2")
    Path("recsys.toml").write_text('[evaluate]\nmodel = ["bias", "popular"]\n')
    found = table(run("evaluate", ratings))
    assert found["model"].to_list() == ["bias", "popular"]
    assert [name for name in found.columns if name.startswith("map")] == [
        "map@2",
        "map@4",
    ]


def test_evaluate_document(run, ratings):
    args = [
        "evaluate",
        ratings,
        "--json",
        "--model",
        "als",
        "--model",
        "bias",
        "--seed",
        3,
    ]
    found = document(run(*args, "-n", 5))
    assert (found["schema"], found["seed"], found["n"]) == (1, 3, [5])
    assert found["data"]["fingerprint"].startswith("sha256:")
    assert set(found["definitions"]) >= {"rmse", "ndcg", "diversity"}
    assert found["ranking"].startswith("all items")
    assert found["split"]["method"] == "time"
    assert found["split"]["folds"] == 1
    assert found["settings"]["confidence"] == 0.95
    als = found["models"][0]
    assert als["parameters"]["random_state"] == 3
    assert als["metrics"]["rmse"]["ratings"] == found["data"]["test_ratings"]
    for name in ("rmse", "ndcg@5", "coverage@5"):
        low, high = als["metrics"][name]["interval"]
        assert low <= als["metrics"][name]["value"] <= high
    assert als["metrics"]["ndcg@5"]["users"] == found["data"]["users_evaluated"]
    rmse = found["comparisons"][0]
    assert (rmse["metric"], rmse["model"], rmse["other"]) == ("rmse", "als", "bias")
    assert rmse["adjusted"] == rmse["p_value"] < 0.05


def test_evaluate_same_seed_same_numbers_other_seed_other_data(run, ratings):
    def found(*args):
        asked = ["--json", "--model", "bias", "--method", "random", *args]
        answer = document(run("evaluate", ratings, *asked))
        return answer["data"], answer["models"][0]["metrics"]

    assert found("--seed", 1) == found("--seed", 1)
    assert found("--seed", 1)[0]["fingerprint"] != found("--seed", 2)[0]["fingerprint"]
    assert found("--test-fraction", 0.5)[0]["test_ratings"] == 240


def test_fingerprint_is_of_the_data_and_not_of_the_file(run, ratings):
    pl.read_csv(ratings / "ratings.csv").reverse().write_parquet("other.parquet")

    def fingerprint(path):
        return document(run("evaluate", path, "--json", "--model", "popular"))["data"][
            "fingerprint"
        ]

    assert fingerprint("other.parquet") == fingerprint(ratings)


def test_evaluate_two_files(run, ratings):
    frame = pl.read_csv(ratings / "ratings.csv").sample(
        fraction=1, shuffle=True, seed=0
    )
    frame[:400].write_csv("learn.csv")
    unknown = pl.DataFrame(
        {"userId": [999], "movieId": [100], "rating": [4.0], "timestamp": [1]}
    )
    pl.concat([frame[400:], unknown]).write_csv("try.csv")
    result = run("evaluate", "--train", "learn.csv", "--test", "try.csv")
    assert len(table(result)) == 3
    assert "tested on 80 ratings" in result.stderr
    assert (
        "1 test rating of users or items without training ratings left out"
        in result.stderr
    )
    kept = run("evaluate", "--train", "learn.csv", "--test", "try.csv", "--new", "keep")
    assert "tested on 81 ratings" in kept.stderr
    assert "(new: 1 user and 0 items)" in kept.stderr


def test_evaluate_implicit_data_has_no_rating_metrics(run, implicit):
    result = run("evaluate", implicit)
    found = table(result)
    assert found["model"].to_list() == ["spectral", "popular", "random"]
    assert not {"rmse", "mae"} & set(found.columns)
    assert "held out: 10% of the interactions, at random (seed 0)" in result.stderr
    assert (
        "rmse"
        not in document(run("evaluate", implicit, "--json"))["models"][0]["metrics"]
    )


def test_evaluate_table_has_intervals_marks_and_a_legend(run, ratings):
    shown = run("evaluate", ratings, "--format", "table").stdout.splitlines()
    assert shown[0].split() == ["metric", "als", "bias", "popular"]
    rows = {line.split()[0]: line.split("]") for line in shown[2:-1]}
    assert [after.startswith("*") for after in rows["rmse"][1:]] == [False, True, True]
    assert "*" not in "".join(rows["novelty@10"] + rows["popularity_bias@10"])
    assert shown[-1].startswith(
        "[95% interval over users]  * worse than the best of its row"
    )
    assert max(map(len, shown)) <= 100


def test_a_narrow_table_says_where_its_intervals_are(run, ratings, monkeypatch):
    monkeypatch.setenv("COLUMNS", "60")
    shown = run("evaluate", ratings, "--format", "table").stdout
    needed = re.search(
        r"^\(intervals need (\d+) columns, or --json\)  \* worse", shown, re.M
    )[1]
    assert "[" not in shown
    monkeypatch.setenv("COLUMNS", needed)
    shown = run("evaluate", ratings, "--format", "table").stdout.splitlines()
    assert any(line.startswith("[95% interval over users]") for line in shown[-2:])
    assert max(map(len, shown[:-1])) == int(needed)


def test_evaluate_table_of_many_models_is_cut_to_the_terminal(
    run, ratings, monkeypatch
):
    monkeypatch.setenv("COLUMNS", "48")
    models = [
        arg
        for name in ("als", "bias", "popular", "random")
        for arg in ("--model", name)
    ]
    shown = run("evaluate", ratings, "--format", "table", *models).stdout
    assert max(map(len, shown.splitlines()[:-1])) <= 48
    assert shown.count("metric ") == 2
    assert "…" not in shown
    assert "-" in next(
        line for line in shown.split("metric ")[2].splitlines() if "rmse" in line
    )


def test_sampled_candidates_are_labelled(run, ratings):
    args = ["evaluate", ratings, "--model", "als", "--candidates", 5]
    result = run(*args, "--format", "table")
    assert "ndcg@10 (sampled)" in result.stdout
    assert "rmse (sampled)" not in result.stdout
    assert (
        "ranking is SAMPLED: each user's relevant items among 5 random others"
        in result.stderr
    )
    answer = document(run(*args, "--json"))
    assert answer["ranking"].startswith("SAMPLED")
    assert answer["settings"]["candidates"] == 5
    assert "(sampled)" not in run("evaluate", ratings, "--format", "table").stdout


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_values_of_users_are_written(run, ratings, suffix):
    answer = document(
        run("evaluate", ratings, "--json", "--per-user", f"users.{suffix}")
    )
    read = pl.read_csv if suffix == "csv" else pl.read_parquet
    users = read(f"users.{suffix}")
    assert users.columns[:4] == ["model", "user", "relevant", "ratings"]
    mean = users.filter(model="als")["ndcg@10"].mean()
    assert mean == pytest.approx(answer["models"][0]["metrics"]["ndcg@10"]["value"])


@pytest.mark.parametrize(
    ("args", "said"),
    [
        ([], "Give either RATINGS, or both --train FILE and --test FILE"),
        (["x", "--train", "a", "--test", "b"], "Give either RATINGS, or both"),
        (["--train", "a"], "Give either RATINGS, or both"),
        (
            ["--train", "a", "--test", "b", "--test-fraction", "0.2"],
            "--test-fraction applies to",
        ),
        (
            ["--train", "a", "--test", "b", "--method", "time"],
            "--method applies to RATINGS",
        ),
        (
            ["x", "--folds", "3", "--method", "time"],
            "--folds applies to --method k-fold",
        ),
        (["x", "--last", "3"], "--last applies to --method leave-last"),
        (["x", "--per-user", "users.json"], "--per-user must end in .csv or .parquet"),
    ],
)
def test_evaluate_bad_usage(run, ratings, args, said):
    args = [ratings if arg == "x" else arg for arg in args]
    assert said in run("evaluate", *args, code=2).stderr


def test_evaluate_needs_times_where_they_are_asked_for(run, implicit):
    said = run("evaluate", implicit, "--method", "time", code=1).stderr
    assert "time_split requires timestamps" in said


# split


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("form", ["csv", "parquet"])
@pytest.mark.covering(1)
def test_a_saved_split_gives_what_the_ratings_give(run, ratings, method, form):
    options = ["--json", "--model", "bias", "--seed", 2]
    direct = document(run("evaluate", ratings, "--method", method, *options))
    how = ["--method", method, "--seed", 2, "--format", form]
    result = run("split", ratings, *how, "--out", "parts")
    assert result.stdout == ""
    assert "held out: " in result.stderr
    saved = document(run("evaluate", "parts", *options))
    assert saved["models"][0]["metrics"] == direct["models"][0]["metrics"]
    assert (saved["data"], saved["split"]) == (direct["data"], direct["split"])


def test_held_out_users_are_counted(run, ratings):
    said = run(
        "split", ratings, "--method", "users", "--test-fraction", 0.25, "--out", "p"
    ).stderr
    parts = {
        name: pl.read_csv(f"p/{name}.csv") for name in ("train", "test", "history")
    }
    assert parts["test"]["user"].n_unique() == 10
    assert f"{len(parts['history'])} as history of the test users" in said
    assert sum(map(len, parts.values())) == 480


def test_held_out_ratings_of_new_users_are_counted(run):
    rows = [f"{1 + n % 3},{1 + n // 3},{1 + n % 5},{n}" for n in range(9)] + [
        "9,9,4,100"
    ]
    Path("x.csv").write_text("\n".join(["user,item,rating,time", *rows]) + "\n")
    said = run(
        "split", "x.csv", "--method", "time", "--test-fraction", 0.1, "--out", "p"
    ).stderr
    new = "1 for testing (1 of them of 1 user and 1 item without training ratings)"
    assert new in said


def test_a_fraction_needs_no_method(run, ratings):
    found = document(run("evaluate", ratings, "--test-fraction", 0.25, "--json"))
    assert found["split"]["method"] == "time"
    assert found["data"]["test_ratings"] == 120


def test_a_saved_split_as_two_files(run, ratings):
    run("split", ratings, "--out", "p")
    pair = run("evaluate", "--train", "p/train.csv", "--test", "p/test.csv", "--json")
    assert document(pair)["split"]["method"] == "time"
    assert document(pair)["data"] == document(run("evaluate", "p", "--json"))["data"]
    manifest = json.loads(Path("p/split.json").read_text())
    assert manifest["method"] == "time"
    assert manifest["counts"]["train_ratings"] == 432
    assert manifest["fingerprint"] == document(pair)["data"]["fingerprint"]


def test_split_replaces_only_when_told(run, ratings):
    run("split", ratings, "--out", "p", "--method", "random")
    before = Path("p/test.csv").read_bytes()
    said = run("split", ratings, "--out", "p", "--seed", 1, code=1).stderr
    assert "there is a saved split already" in said
    assert Path("p/test.csv").read_bytes() == before
    run("split", ratings, "--out", "p", "--method", "random", "--seed", 1, "--force")
    assert Path("p/test.csv").read_bytes() != before
    Path("mine").mkdir()
    said = run("split", ratings, "--out", "mine", "--force", code=1).stderr
    assert "exists and is not a saved split, so it is not replaced" in said


def test_a_leak_planted_in_a_saved_split_is_caught(run, ratings):
    run("split", ratings, "--out", "p")
    train, test = Path("p/train.csv"), Path("p/test.csv")
    clean = train.read_text()
    train.write_text(clean + test.read_text().splitlines()[1] + "\n")
    said = run("evaluate", "p", code=1).stderr
    assert "has 1 rating on the wrong side of the cut" in said
    train.write_text(clean + "1,129,5.0,1599999999\n")
    said = run("evaluate", "--train", train, "--test", test, code=1).stderr
    assert "has 1 rating on the wrong side of the cut" in said
    train.write_text(clean.replace(",5.0,", ",4.5,", 1))
    said = run("evaluate", "p", code=1).stderr
    assert "The files in p are not those that its split.json describes" in said


def test_a_folder_of_lightgcn_files_is_a_split(run):
    Path("gowalla").mkdir()
    Path("gowalla/train.txt").write_text("0 1 2 3\n1 2 3 4\n2 1\n")
    Path("gowalla/test.txt").write_text("0 4\n1 1\n2\n")
    result = run("evaluate", "gowalla", "-n", 1, "--model", "popular")
    assert (
        "trained on 7 and tested on 2 interactions; recommended to 2 users"
        in result.stderr
    )
    assert table(result)["recall@1"].to_list() == [1.0]
    said = run("evaluate", "gowalla", "--method", "random", code=2).stderr
    assert (
        "gowalla is split already, into train.txt and test.txt; leave out --method"
        in said
    )


def test_held_out_users_of_implicit_data_are_folded_into_what_can(run, implicit):
    assert table(run("evaluate", implicit, "--method", "users"))["model"].to_list() == [
        "spectral",
        "popular",
    ]
    args = ["evaluate", implicit, "--method", "users", "--model", "random"]
    assert "cannot fold in new users" in run(*args, code=1).stderr


# compare


def test_one_user_is_nothing_to_test(run):
    Path("train.csv").write_text(
        "user,item,rating\n1,1,3\n1,2,4\n2,1,5\n2,3,2\n3,3,4\n"
    )
    Path("test.csv").write_text("user,item,rating\n1,3,4\n")
    pair = [
        "--train",
        "train.csv",
        "--test",
        "test.csv",
        "--model",
        "bias",
        "--model",
        "popular",
    ]
    said = run("compare", *pair, code=2).stderr
    assert (
        "A test needs a metric that two models have, and at least two users with it."
        in said
    )


def test_compare_lists_differences(run, ratings):
    args = [
        "compare",
        ratings,
        "--model",
        "als",
        "--model",
        "bias",
        "--model",
        "popular",
    ]
    found = table(run(*args, "-n", 3, "-n", 6))
    assert found.columns[3:6] == ["model", "other", "difference"]
    assert found.filter(metric="ndcg@6").height == 3
    assert (found["adjusted"] >= found["p_value"]).all()
    assert (found["low"] <= found["high"]).all()
    answer = document(run(*args, "--json"))
    assert answer["command"] == "compare"
    assert answer["comparisons"][0]["metric"] == "rmse"
    shown = run(*args, "--format", "table").stdout.splitlines()
    assert shown[0].split()[1:4] == ["new", "-", "old"]
    assert shown[2].split()[:4] == ["rmse", "bias", "-", "als"]
    assert shown[2].split()[4].startswith("+")
    assert shown[2].split()[5] == "worse"
    assert shown[2].rstrip().endswith("*")
    assert max(map(len, shown)) <= 100


@pytest.mark.parametrize(
    ("columns", "kept"),
    [(100, ["interval", "p"]), (80, ["interval"]), (70, ["p"]), (48, [])],
)
def test_compare_leaves_out_what_does_not_fit(run, ratings, monkeypatch, columns, kept):
    monkeypatch.setenv("COLUMNS", str(columns))
    models = ["--model", "als", "--model", "bias"]
    result = run("compare", ratings, *models, "--format", "table")
    header, *lines = result.stdout.splitlines()
    assert [
        name for name in ("interval", "p") if re.search(rf"\b{name}( |$)", header)
    ] == kept
    assert ("need" in lines[-1]) == (len(kept) < 2)
    assert columns < 50 or "…" not in result.stdout


def test_compare_needs_two_models(run, ratings):
    said = run("compare", ratings, "--model", "als", code=2).stderr
    assert "Give at least two models to compare" in said


def test_says_that_test_ratings_are_of_another_scale(run, ratings):
    frame = pl.read_csv(ratings / "ratings.csv").sort("timestamp")
    frame[:400].write_csv("train.csv")
    percent = pl.col("rating") * 20
    frame[400:].write_csv("same.csv")
    frame[400:].with_columns(percent).write_csv("percent.csv")
    run("fit", "train.csv", "--model", "bias", "--out", "saved")
    remark = "the test ratings are of another scale: their median is"
    for arguments in (["--train", "train.csv", "--model", "bias"], ["saved"]):
        assert remark in run("evaluate", *arguments, "--test", "percent.csv").stderr
        assert remark not in run("evaluate", *arguments, "--test", "same.csv").stderr


def test_says_that_test_weights_are_in_another_unit(run, ratings):
    minutes = pl.read_csv(ratings / "ratings.csv").sort("timestamp")
    minutes[:400].write_csv("train.csv")
    minutes[400:].write_csv("same.csv")
    minutes[400:].with_columns(pl.col("rating") * 60).write_csv("seconds.csv")
    command = ["evaluate", "--model", "popular", "--weight-col", "rating"]
    for test, differs in (("seconds.csv", True), ("same.csv", False)):
        said = run(*command, "--train", "train.csv", "--test", test).stderr
        assert ("the new weights seem to be in another unit" in said) == differs


def test_warns_if_a_training_file_is_newer_than_the_test_file(run, ratings):
    frame = pl.read_csv(ratings / "ratings.csv").sort("timestamp")
    frame[:400].write_csv("train.csv")
    frame[400:].write_csv("test.csv")
    files = ["--train", "train.csv", "--test", "test.csv", "--model", "popular"]
    assert "newer than" not in run("evaluate", *files).stderr
    pl.concat([frame[:400], frame[-1:]]).write_csv("train.csv")
    frame[400:-1].write_csv("test.csv")
    for args in (files, [".", "--model", "popular"]):
        said = run("evaluate", *args).stderr
        assert (
            "1 training rating is newer than the oldest test rating, so this is not a split"
            in said
        )


@pytest.mark.skipif(DATASETS is None, reason="RECSYS_DATASETS is not set")
def test_popularity_on_gowalla_is_as_published(run):
    folder = Path(DATASETS) / "gowalla"
    files = ["--train", folder / "train.txt", "--test", folder / "test.txt"]
    found = table(run("evaluate", *files, "--model", "popular", "-n", 20))
    assert found["recall@20"][0] == pytest.approx(0.0416, abs=5e-5)
    assert found["ndcg@20"][0] == pytest.approx(0.0317, abs=5e-5)


def test_a_saved_model_is_measured_next_to_others(run, ratings):
    run("split", ratings, "--out", "p")
    run("fit", "p/train.csv", "--out", "m", "--model", "bias")
    options = ("--test", "p/test.csv", "--json")
    found = document(run("evaluate", "m", *options, "--model", "popular"))["models"]
    assert [each["model"] for each in found] == ["bias", "popular"]
    found = document(
        run("evaluate", "m", *options, "--model", "bias", "-p", "user_damping=1000")
    )
    saved, other = found["models"]
    assert (saved["model"], other["model"]) == ("m", "bias")
    assert saved["metrics"]["rmse"] != other["metrics"]["rmse"]


def test_a_default_split_that_leaves_few_users_names_one_that_measures_all(
    run, ratings
):
    rows = "".join(
        f"u{user},i{item},{item},{user}\n" for user in range(20) for item in range(1, 5)
    )
    Path("waves.csv").write_text(
        f"user,item,rating,timestamp\n{rows}u0,i9,3,20\nu1,i9,3,20\n"
    )
    words = ("evaluate", "waves.csv", "--model", "popular", "--new", "keep")
    said = run(*words).stderr
    assert (
        "users have ratings that new; --method per-user or --method leave-last measures"
        in said
    )
    assert "that new" not in run(*words, "--method", "time").stderr
    assert "that new" not in run("evaluate", ratings, "--model", "popular").stderr


def test_a_saved_model_is_measured_as_it_is(run, ratings, monkeypatch):
    run("split", ratings, "--out", "p")
    run("fit", "p/train.csv", "--out", "m", "--model", "als", "--iterations", 2)
    with monkeypatch.context() as without_fits:
        without_fits.setattr("recsys.models.als.ALS.fit", None)
        saved = document(run("evaluate", "m", "--test", "p/test.csv", "--json"))
    options = ["--model", "als", "--iterations", 2]
    fitted = document(run("evaluate", "p", *options, "--json"))
    assert saved["models"][0]["metrics"] == fitted["models"][0]["metrics"]
    assert saved["models"][0]["parameters"] == fitted["models"][0]["parameters"]
    said = run("evaluate", "m", "--test", "p/test.csv", "--factors", 2, code=2).stderr
    assert "A saved model is evaluated as it is; leave out parameters." in said
    said = run(
        "evaluate", "m", "--test", "p/test.csv", "--method", "time", code=2
    ).stderr
    assert "--method does not apply to a saved model." in said
    said = run("evaluate", "m", code=2).stderr
    assert (
        "m is a saved model; add --test FILE, with ratings that it was not fitted to."
        in said
    )
    said = run("evaluate", "m", "--test", "p/test.csv", "--new", "keep", code=2).stderr
    assert "--new keep does not apply to a saved model." in said
    said = run("evaluate", "m", "--test", "p/train.csv", code=1).stderr
    assert re.search(
        r"None of (\S+) test ratings can be used: als was fitted to \1, and lacks the user or",
        said,
    )


def test_saved_models_of_different_ratings_are_compared(run, ratings):
    run("split", ratings, "--out", "p")
    for name, options in {"old": ["--until", "2001-09-09T03:50:00"], "new": []}.items():
        run(
            "fit",
            "p/train.csv",
            "--out",
            name,
            "--model",
            "als",
            "--factors",
            4,
            *options,
        )
    result = run("compare", "old", "new", "--test", "p/test.csv", "--json")
    found = document(result)
    assert [each["model"] for each in found["models"]] == ["old", "new"]
    alone = document(run("evaluate", "new", "--test", "p/test.csv", "--json"))
    if found["data"]["test_ratings"] == alone["data"]["test_ratings"]:
        second, only = found["models"][1]["metrics"], alone["models"][0]["metrics"]
        assert second.keys() == only.keys()
        for (
            metric,
            figures,
        ) in second.items():  # the sums of two models may be rounded differently
            assert figures["value"] == only[metric]["value"]
            assert figures["interval"] == pytest.approx(
                only[metric]["interval"], rel=1e-12
            )
    said = run("compare", "old", "--test", "p/test.csv", code=2).stderr
    assert "name another saved model, or --model NAME" in said
    said = run("compare", "old", "p/train.csv", "--test", "p/test.csv", code=2).stderr
    assert "old is a saved model and p/train.csv is not" in said
    reread = document(
        run("compare", "old", "--model", "popular", "--test", "p/test.csv", "--json")
    )
    assert [each["model"] for each in reread["models"]] == ["als", "popular"]


def test_what_one_of_the_models_was_fitted_to_is_left_out_for_both(run, ratings):
    run("split", ratings, "--out", "p")
    run("fit", "p/train.csv", "--out", "before", "--model", "bias")
    pl.concat([pl.read_csv("p/train.csv"), pl.read_csv("p/test.csv")[:20]]).write_csv(
        "more.csv"
    )
    run("fit", "more.csv", "--out", "after", "--model", "bias")
    result = run("compare", "before", "after", "--test", "p/test.csv", "--json")
    assert "20 test ratings that a model was fitted to left out" in result.stderr
    assert document(result)["data"]["test_ratings"] == 28


# --fail-if


def test_a_gate_fails_a_worse_model_only(run, ratings):
    run("split", ratings, "--out", "p")
    run("fit", "p/train.csv", "--out", "good", "--model", "als", "--factors", 4)
    run("fit", "p/train.csv", "--out", "bad", "--model", "popular")
    gate = ("--test", "p/test.csv", "--fail-if", "rmse worse")
    failed = run("compare", "good", "bad", *gate, "--json", code=1)
    assert re.search(
        r'Failed by "rmse worse": rmse of bad differs .* by \+\d', failed.stderr
    )
    assert document(failed)["comparisons"]  # the results come first
    assert (
        'not "rmse worse": rmse of good differs'
        in run("compare", "bad", "good", *gate).stderr
    )
    run("compare", "good", "good", *gate, code=2)


def test_a_gate_with_a_bound(run, ratings):
    run("split", ratings, "--out", "p")
    run("fit", "p/train.csv", "--out", "m", "--model", "bias")
    said = run(
        "evaluate", "m", "--test", "p/test.csv", "--fail-if", "ndcg < 1.01", code=1
    ).stderr
    assert 'Failed by "ndcg@10 < 1.01": ndcg@10 of bias is 0.' in said
    run(
        "evaluate",
        "m",
        "--test",
        "p/test.csv",
        "--fail-if",
        "rmse > 99",
        "--fail-if",
        "map<0",
    )


@pytest.mark.parametrize(
    ("condition", "said"),
    [
        ("ndgc worse", "No value is named 'ndgc'; there are ndcg@10"),
        ("rmse", 'A condition must be "METRIC worse" or "METRIC < X"'),
        ("rmse < much", "A condition must be"),
        ("rmse < nan", "A condition must be"),
        (
            "rmse worse",
            '"worse" needs two models; `recsys compare BEFORE AFTER --test FILE`',
        ),
    ],
)
def test_a_gate_that_is_not_understood_is_wrong_usage(run, ratings, condition, said):
    assert said in run("evaluate", ratings, "--fail-if", condition, code=2).stderr


def test_saved_lists_have_the_lengths_of_the_measurement(run, ratings):
    run("evaluate", ratings, "--model", "popular", "-n", "5,20", "--save", "results")
    found = table(run("evaluate", "results", "-n", 20))
    assert [name for name in found.columns if "ndcg" in name] == ["ndcg@20"]
    said = run("evaluate", "results", "-n", "5,7", code=2).stderr
    assert "The saved lists have 5, 20 items; leave out -n 7." in said
