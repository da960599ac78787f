"""recsys tune: chosen parameters, a fit line that works, and studies on disk."""

from __future__ import annotations

import io
import json
import re
import shlex
import shutil
import time

import polars as pl
import pytest
from forked_commands import started

from recsys import Recommender, random_split, read_ratings, save_split, split_from_pair

pytestmark = pytest.mark.usefixtures("one_fold")

QUICK = ["--sampler", "random", "--trials", 4, "--threads", 1]


def document(result):
    found = json.loads(result.stdout)
    for trial in found["trials"]:
        del trial["seconds"]
    return found


def test_the_document(run, ratings):
    found = document(run("tune", ratings, *QUICK, "--factors", 3, "--json"))
    assert found["command"] == "tune"
    assert (found["model"], found["metric"], found["sampler"]) == (
        "als",
        "rmse",
        "random",
    )
    assert found["fixed"] == {"factors": 3}
    assert set(found["ranges"]) == {"regularization", "count_power"}
    assert found["ranges"]["regularization"] == {"low": 0.1, "high": 10.0, "log": True}
    assert found["data"]["fingerprint"].startswith("sha256:")
    assert (
        found["data"]["train_ratings"] + found["data"]["validation_ratings"]
        <= 0.9 * 480
    )
    assert found["value"] <= found["default_value"] == found["trials"][0]["value"]
    by_mae = document(run("tune", ratings, *QUICK, "--model", "bias", "--json"))
    assert by_mae["value"] == by_mae["trials"][by_mae["trial"]]["value"]
    assert set(found["parameters"]) == {
        "factors",
        "regularization",
        "count_power",
        "iterations",
    }


def test_shows_a_table_and_a_summary(run, ratings):
    result = run("tune", ratings, *QUICK, "--model", "bias")
    table = pl.read_csv(io.StringIO(result.stdout))
    assert table["parameter"].to_list() == ["user_damping", "item_damping"]
    assert table["default"].to_list() == [5.0, 5.0]
    assert "trial 4/4: " in result.stderr
    fit, evaluate = result.stderr.splitlines()[-2:]
    assert fit.startswith(f"fit: recsys fit {ratings} --model bias -p user_damping=")
    assert evaluate.startswith(f"evaluate: recsys evaluate {ratings} --model bias ")
    assert "trial" not in run("tune", ratings, *QUICK, "--model", "bias", "-q").stderr


def test_the_fit_line_works_as_it_is(run, ratings):
    shutil.copy(ratings / "ratings.csv", "it's mine.txt")
    args = [
        "it's mine.txt",
        *QUICK,
        "--seed",
        3,
        "--factors",
        2,
        "-p",
        "linked=true",
        "--sep",
        ",",
    ]
    line = document(run("tune", *args, "--rating-col", "rating", "--json"))["commands"][
        "fit"
    ]
    program, *words = shlex.split(line)
    assert program == "recsys"
    assert "linked=true" in words
    run(*words)
    fitted = Recommender.load("als-tuned").model.get_params()
    found = document(run("tune", *args, "--rating-col", "rating", "--json"))
    assert fitted["random_state"] == 3
    assert {name: fitted[name] for name in found["parameters"]} == found["parameters"]
    assert found["commands"]["fit"].endswith("--out als-tuned-2")


def test_the_test_part_is_never_looked_at(run, ratings):
    """Other values in the test part change nothing; in the training part they do."""
    from recsys import read_ratings
    from recsys.evaluation import time_split

    split = time_split(read_ratings(ratings))

    def tuned(part):
        others = part.to_frame().select("user", "item").with_columns(other=pl.lit(3.0))
        frame = pl.read_csv(ratings / "ratings.csv")
        joined = frame.join(
            others, left_on=["userId", "movieId"], right_on=["user", "item"], how="left"
        )
        changed = joined.with_columns(
            pl.coalesce("other", "rating").alias("rating")
        ).drop("other")
        changed.write_csv("changed.csv")
        return document(run("tune", "changed.csv", *QUICK, "--json"))["trials"]

    plain = document(run("tune", ratings, *QUICK, "--json"))["trials"]
    assert tuned(split.test) == plain
    assert tuned(split.train) != plain


def test_the_lines_have_the_weights_of_events(run, ratings):
    frame = pl.read_csv(ratings / "ratings.csv")
    kinds = (
        pl.when(pl.int_range(pl.len()) % 2 == 0)
        .then(pl.lit("buy"))
        .otherwise(pl.lit("view"))
    )
    frame.select("userId", "movieId", kinds.alias("event")).write_csv("events.csv")
    args = [
        "events.csv",
        "--model",
        "ials",
        "--trials",
        1,
        "--event-weight",
        "buy=2.5,view=1",
    ]
    words = shlex.split(document(run("tune", *args, "--json"))["commands"]["fit"])
    assert words[words.index("--event-weight") + 1] == "buy=2.5,view=1.0"
    run(*words[1:])


def test_the_evaluate_line_tests_on_what_was_set_aside(run, ratings):
    args = [
        ratings,
        *QUICK,
        "--method",
        "random",
        "--test-fraction",
        0.2,
        "--seed",
        5,
        "--json",
    ]
    found = document(run("tune", *args))
    program, *words = shlex.split(found["commands"]["evaluate"])
    assert program == "recsys"
    evaluated = json.loads(run(*words, "--json").stdout)
    assert evaluated["split"]["parameters"] == {"test_fraction": 0.2, "random_state": 5}
    parameters = evaluated["models"][0]["parameters"]
    assert {name: parameters[name] for name in found["parameters"]} == found[
        "parameters"
    ]


def test_a_folder_with_a_split(run, ratings):
    run("split", ratings, "--out", "parts", "--method", "random")
    found = document(run("tune", "parts", *QUICK, "--json"))
    whole = document(run("tune", ratings, *QUICK, "--method", "random", "--json"))
    assert found["trials"] == whole["trials"]
    assert "recsys fit parts/train." in found["commands"]["fit"]
    said = run("tune", ratings, "--method", "k-fold", code=2).stderr
    assert "Folds have no training ratings in common; choose another --method." in said


@pytest.mark.parametrize(
    ("args", "kind"),
    [
        ([], "the ratings since 2001-"),
        (["--method", "time"], "the ratings since 2001-"),
        (["--method", "random"], "10% of the ratings, at random (seed 0)"),
        (
            ["--method", "per-user", "--validation-fraction", 0.3],
            "30% of each user's ratings",
        ),
        (["--method", "leave-last", "--last", 2], "each user's last 2 events"),
        (
            ["--method", "users"],
            "20% of the ratings of 10% of the users, who are folded in",
        ),
    ],
)
def test_trials_are_measured_on_a_part_of_the_kind_that_is_set_aside(
    run, ratings, args, kind
):
    """The same for ratings, for a split on disk, and for training ratings alone."""
    tuning = [*QUICK, "--model", "als", "--factors", 2, "--json"]
    found = document(run("tune", ratings, *args, *tuning))
    assert found["data"]["validation"].startswith(kind)
    alone = document(run("tune", "--train", ratings, *args, *tuning))
    assert alone["data"]["validation"].startswith(kind)
    assert alone["data"]["fingerprint"] != found["data"]["fingerprint"]
    fraction = args[2:] if "--validation-fraction" in args else []
    run("split", ratings, "--out", "parts", *args[: 2 if fraction else 4])
    stored = document(run("tune", "parts", *fraction, *tuning))
    assert stored["trials"] == found["trials"]
    assert stored["data"] == found["data"]


def test_describes_the_validation_part(run, ratings):
    said = run("tune", ratings, *QUICK, "--model", "bias").stderr
    reached = r"best of 4 trials: rmse 1\.\d{4}(, 1\.\d{4} with the defaults)?, on \d+ validation "
    assert re.search(
        reached + r"ratings \(the ratings since 2001-[-0-9]{5} [:0-9]{8} UTC\)\n", said
    )
    last = ["--method", "leave-last", "--validation-fraction", 0.1]
    said = run("tune", ratings, *QUICK, *last, code=2).stderr
    assert "--validation-fraction does not apply to leave-last." in said


def test_train_is_used_whole(run, ratings):
    found = document(run("tune", "--train", ratings, *QUICK, "--json"))
    assert found["data"]["train_ratings"] + found["data"]["validation_ratings"] == 480


def test_the_data_choose_the_model(run, ratings):
    result = run("tune", ratings, "--implicit", *QUICK, "--json")
    found = document(result)
    assert (found["model"], found["metric"]) == ("spectral", "ndcg@10")
    assert "chose spectral: there are no ratings, only interactions" in result.stderr
    assert "--implicit" in found["commands"]["fit"]
    assert "chose als: the ratings are between" in run("tune", ratings, *QUICK).stderr


def test_a_parameter_that_the_model_chooses_itself(run, ratings):
    args = [
        "--model",
        "softimpute",
        "--trials",
        12,
        "--range",
        "regularization=50:500:log",
    ]
    result = run("tune", ratings, *args, "--json")
    assert result.stderr.splitlines()[2].endswith("regularization auto")
    found = document(result)
    assert found["parameters"]["regularization"] is None
    assert all(
        50 <= trial["parameters"]["regularization"] <= 500
        for trial in found["trials"][1:]
    )
    assert "--regularization" not in found["commands"]["fit"]


def test_ranges(run, ratings):
    args = ["--range", "count-power=0.2:0.3", "--range", "factors=2:4:log", "--json"]
    found = document(run("tune", ratings, *QUICK, *args))
    assert found["ranges"]["count_power"] == {"low": 0.2, "high": 0.3, "log": False}
    assert all(
        2 <= trial["parameters"]["factors"] <= 4 for trial in found["trials"][1:]
    )
    assert found["trials"][0]["parameters"]["factors"] == 32


@pytest.mark.parametrize(
    "text", ["factors", "factors=3", "factors=a:b", "f=1:2:lin", "f=1:2:"]
)
def test_rejects_malformed_ranges(run, ratings, text):
    said = run("tune", ratings, "--range", text, code=2).stderr
    assert f"must be NAME=LOW:HIGH or NAME=LOW:HIGH:log; got '{text}'." in said


@pytest.mark.parametrize(
    ("args", "code", "message"),
    [
        ([], 2, "Choose the data: RATINGS or --train."),
        (
            ["--train", "x", "--test-fraction", 0.1],
            2,
            "--test-fraction applies to RATINGS",
        ),
        (
            ["--train", "x", "--metric", "ndgc@10"],
            1,
            "metric must be one of rmse, mae, precision",
        ),
        (
            ["--train", "x", "--method", "k-fold"],
            2,
            "Folds have no training ratings in common",
        ),
        (
            ["--train", "x", "--last", 2],
            2,
            "--last applies to --method leave-last or time.",
        ),
        (
            ["--train", "x", "--range", "factors=3:1"],
            2,
            "low must be below high, both finite; got 3 to",
        ),
        (
            ["--train", "x", "--model", "bias", "--factors", 3],
            2,
            "--factors does not apply to bias;",
        ),
        (
            ["--train", "x", "--factors", 3, "--range", "factors=1:4"],
            1,
            "no file or directory x",
        ),
    ],
)
def test_rejections(run, args, code, message):
    assert message in run("tune", *args, code=code).stderr


def test_a_folder_with_a_split_of_an_unknown_kind(run, ratings):
    """How it was made is not known, so the validation part is what it is by default."""
    parts = random_split(read_ratings(ratings), 0.2, random_state=1)
    save_split(split_from_pair(parts.train, parts.test), "parts")
    tuning = [*QUICK, "--model", "bias", "--json"]
    found = document(run("tune", "parts", *tuning))
    alone = document(run("tune", "--train", "parts/train.csv", *tuning))
    assert found["trials"] == alone["trials"]


def test_a_folder_with_folds(run, ratings):
    run("split", ratings, "--method", "k-fold", "--folds", 2, "--out", "folds")
    assert (
        "Folds have no training ratings in common"
        in run("tune", "folds", code=2).stderr
    )


def test_killed_and_started_again(run, ratings):
    """A study that was killed at some moment ends as one that was not."""
    args = [ratings, "--sampler", "random", "--trials", "12", "--threads", "1"]
    whole = document(run("tune", *args, "--json"))
    with started(["tune", *map(str, args), "--study", "s"]) as process:
        while "trial 3/" not in process.stderr.readline():
            assert process.poll() is None
        time.sleep(0.01)
        process.kill()
    result = run("tune", *args, "--study", "s", "--json")
    assert "trials of s\n" in result.stderr
    assert "trial 2/12" not in result.stderr
    assert document(result) == whole
    said = run(
        "tune", ratings, "--study", "s", "--implicit", "--model", "popular", code=1
    ).stderr
    assert "The study s differs in its training data" in said
    assert "choose another file" in said


def test_optuna_says_nothing(ratings):
    words = ["tune", str(ratings), "--model", "bias", "--trials", "14", "-q"]
    with started(words) as process:
        assert process.stderr.read() == ""
        assert process.wait(60) == 0


def test_sweeps_that_are_fewer_than_the_default_are_reported(run, ratings):
    result = run("tune", ratings, "--model", "als", "--trials", 2, "--json")
    kept = document(result)["parameters"]["iterations"]
    assert kept < 20
    assert f" after {kept} of 20 iterations" in result.stderr
    assert f" --iterations {kept} " in result.stderr
