"""The verbs with --engine spark."""

import json

import polars as pl
import pytest

from recsys.errors import DataError


def data_of(ratings):
    """The ratings in two files: a tenth, and the rest."""
    frame = pl.read_csv(ratings / "ratings.csv")
    test = pl.int_range(pl.len()) % 10 == 0
    return frame.filter(~test), frame.filter(test)


@pytest.fixture(scope="session")
def parts(ratings, tmp_path_factory):
    folder = tmp_path_factory.mktemp("parts")
    for frame, name in zip(data_of(ratings), ("train", "test"), strict=True):
        frame.write_csv(folder / f"{name}.csv")
    return folder


@pytest.fixture(scope="session")
def fitted(spark, parts):
    from click.testing import CliRunner

    from recsys.cli.main import cli

    out = parts / "model"
    words = [
        "fit",
        parts / "train.csv",
        "--out",
        out,
        "--engine",
        "spark",
        "--factors",
        2,
    ]
    words += ["--iterations", 1, "--test-fraction", 0.1, "--seed", 7]
    result = CliRunner().invoke(cli, [str(word) for word in words])
    assert result.exit_code == 0, result.output
    return out, result


def test_fit_reports_the_held_out_error_and_the_result(fitted):
    out, result = fitted
    assert result.stdout == ""
    lines = result.stderr.splitlines()
    assert lines[0].startswith("held-out RMSE ")
    assert lines[-1].startswith("fitted als to 40 users x 30 items, ")
    assert lines[-1].endswith(f"saved in {out}")


def test_other_verbs_take_the_model_as_it_is(run, fitted):
    out, _ = fitted
    assert len(run("recommend", out, "--user", 7, "-n", 2).stdout.splitlines()) == 3
    assert len(run("similar", out, "--item", 105, "-n", 2).stdout.splitlines()) == 3
    assert run("explain", out, "--user", 7, "--item", 105).stdout.startswith("part,")
    facts = run("info", out, "--json").stdout
    assert json.loads(facts)["parameters"]["random_state"] == 7


def test_recommend_to_all_on_the_cluster(run, fitted, tmp_path):
    out, _ = fitted
    (tmp_path / "some.txt").write_text("102\n103\n104\n")
    (tmp_path / "never.txt").write_text("104\n")
    words = ("--items", "some.txt", "--block", "never.txt", "-n", 3)
    top = tmp_path / "top"
    run("recommend", out, "--all", "--engine", "spark", "--output", top, *words)
    here = run("recommend", out, "--all", *words, "--output", "here.parquet")
    assert here.exit_code == 0
    found, wanted = pl.read_parquet(f"{top}/*.parquet"), pl.read_parquet("here.parquet")
    assert found.sort("user", "rank").equals(wanted.sort("user", "rank"))
    assert set(found["item"]) <= {102, 103}


def test_evaluate_on_the_cluster(run, fitted, parts):
    out, _ = fitted
    words = (
        "evaluate",
        out,
        "--test",
        parts / "test.csv",
        "--engine",
        "spark",
        "-n",
        5,
    )
    document = json.loads(run(*words, "--json").stdout)
    metrics = document["models"][0]["metrics"]
    assert set(metrics) == {"rmse", "mae", "precision@5", "recall@5", "ndcg@5"}
    assert metrics["rmse"]["ratings"] == document["data"]["test_ratings"] == 48
    assert metrics["ndcg@5"]["interval"][0] < metrics["ndcg@5"]["value"]


def test_an_evaluation_is_a_table_as_well(run, monkeypatch):
    from recsys import spark

    metrics = {
        "rmse": spark.Metric(0.9, None, 48),
        "ndcg@5": spark.Metric(0.2, (0.1, 0.3), 30),
    }
    counts = {
        "test_ratings": 48,
        "users_evaluated": 30,
        "unknown_ratings": 0,
        "known_pairs": 0,
    }
    found = spark.SparkEvaluation(metrics, counts)
    asked = {}
    monkeypatch.setattr(
        spark, "evaluate", lambda *_, **options: asked.update(options) or found
    )
    words = ("--conf", "spark.executor.memory=8g", "--conf", "spark.x=a=b")
    lines = run(
        "evaluate", "m", "--test", "t", "--engine", "spark", *words
    ).stdout.splitlines()
    assert asked["conf"] == {"spark.executor.memory": "8g", "spark.x": "a=b"}
    assert lines[0] == "model,rmse,ndcg@5,users"
    assert lines[1].startswith("m,0.9")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ["fit", "x", "--out", "m", "--master", "yarn"],
            "--master and --conf require --engine sp",
        ),
        (
            ["recommend", "m", "--user", "1", "--engine", "spark"],
            "needs --all and --output FOLDER",
        ),
        (
            ["recommend", "m", "--all", "--engine", "spark", "--output", "all.csv"],
            "--engine spark writes a folder of Parquet, not csv.",
        ),
        (
            [
                "recommend",
                "m",
                "--all",
                "--engine",
                "spark",
                "--output",
                "all",
                "--format",
                "tsv",
            ],
            "--engine spark writes a folder of Parquet, not tsv.",
        ),
        (
            [
                "recommend",
                "m",
                "--all",
                "--engine",
                "spark",
                "--output",
                "all",
                "--json",
            ],
            "--engine spark writes a folder of Parquet, not json.",
        ),
        (
            ["evaluate", "x", "--engine", "spark"],
            "--engine spark needs MODEL --test FILE",
        ),
        (
            [
                "evaluate",
                "m",
                "--test",
                "t",
                "--engine",
                "spark",
                "--fail-if",
                "rmse > 1",
            ],
            "--engine spark takes MODEL --test FILE, and one -n.",
        ),
        (
            ["evaluate", "m", "--test", "t", "--engine", "spark", "--new", "keep"],
            "--engine spark takes MODEL --test FILE, and one -n.",
        ),
        (
            ["fit", "x", "--out", "m", "--engine", "spark", "--tag", "today"],
            "--tag does not apply to --engine spark.",
        ),
    ],
)
def test_options_that_exclude_each_other(run, words, message):
    assert message in " ".join(run(*words, code=2).stderr.split())


def test_options_of_reading_that_spark_does_not_have_are_an_error(run):
    fit, evaluate = ("fit", "x", "--out", "m"), ("evaluate", "m", "--test", "t")
    for verb, *option in (
        (fit, "--query", "select 1"),
        (fit, "--event-col", "kind"),
        (evaluate, "--since", "2024-01-01"),
    ):
        result = run(*verb, *option, "--engine", "spark", code=1)
        message = (
            f"{option[0]} does not apply to --engine spark; prepare the data before."
        )
        assert message in " ".join(result.stderr.split())
    for option in (
        ("--event-weight", "dislike=-1"),
        ("--impressions", "shown"),
        ("--half-life", "30d"),
    ):
        said = run(*fit, *option, "--engine", "spark", code=1).stderr
        message = f"{option[0]} does not apply to --engine spark; write the weight of"
        assert message in " ".join(said.split())


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--conf", "spark.x"], "--conf must be of the form K=V; got 'spark.x'"),
        (["--threads", "2"], "--threads does not apply to --engine spark"),
        (
            ["--features", "genres"],
            "--features does not apply to --engine spark; fit with",
        ),
        (["--item-table", "x.csv"], "--item-table does not apply to --engine spark"),
        (["--model", "bayes"], "On Spark the models are als and ials; got 'bayes'"),
        (["--master", "local[7]"], "is running, so local[7] cannot be used"),
    ],
)
def test_what_spark_cannot_do_is_one_sentence(run, spark, parts, words, message):
    fit = ("fit", parts / "train.csv", "--out", parts / "none", "--engine", "spark")
    result = run(*fit, *words, code=1)
    assert message in result.stderr
    assert not (parts / "none").exists()


def test_parameters_of_both_models_are_accepted_without_a_name(run, parts, monkeypatch):
    requested = {}

    def fit(ratings, out, **options):
        requested.update(options)
        raise DataError("nothing is fitted here")

    monkeypatch.setattr("recsys.spark.fit", fit)
    options = "--engine", "spark", "-p", "unobserved_weight=0.25"
    run("fit", parts / "train.csv", "--out", parts / "x", *options, code=1)
    assert requested["unobserved_weight"] == 0.25
    assert requested["model"] is None
