"""Parameters of models on the command line, and the lists of them."""

from __future__ import annotations

import json
import re

import click
import polars as pl
import pytest

from recsys import Recommender
from recsys.cli.main import cli
from recsys.models.registry import MODELS, parameters


def test_every_model_is_listed_with_its_use(run):
    rows = json.loads(run("models", "--json").stdout)["models"]
    assert [row["model"] for row in rows] == list(MODELS)
    assert all(row["use"].endswith(".") for row in rows)


@pytest.mark.parametrize("name", MODELS)
def test_every_parameter_is_listed_with_default_and_range(run, name):
    document = json.loads(run("models", name, "--json").stdout)
    assert [row["name"] for row in document["parameters"]] == [
        p.name for p in parameters(name)
    ]
    table = run("models", name, "--format", "table").stdout
    assert all(p.name in table for p in parameters(name))


def test_ranges_and_choices_can_be_read(run):
    text = run("models", "als", "--format", "csv").stdout
    assert "factors,32,int > 0,4:128:log,Number of latent factors." in text
    assert "cosine|tfidf|bm25" in run("models", "implicit-knn").stdout


def test_an_unknown_model_names_the_nearest(run):
    assert "did you mean als?" in run("models", "asl", code=1).stderr


def test_parameters_reach_the_model(run, ratings):
    more = [
        "-p",
        "count_power=0.25",
        "-p",
        "linked=yes",
        "--factors",
        3,
        "--iterations",
        2,
    ]
    run("fit", ratings, "--out", "m", "--model", "als", *more)
    params = Recommender.load("m").model.get_params()
    found = [
        params[name] for name in ("count_power", "linked", "factors", "iterations")
    ]
    assert found == [0.25, True, 3, 2]
    run("fit", ratings, "--out", "b", "--model", "bias", "-p", "user-damping=0")
    assert Recommender.load("b").model.get_params()["user_damping"] == 0


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            "count_pwer=1",
            "There is no parameter 'count_pwer' of als. Did you mean count_power? The "
            "parameters are factors, ",
        ),
        (
            "user_damping=3",
            "-p user_damping does not apply to als; leave it out. It is for b",
        ),
        ("xyzzy=3", "no parameter 'xyzzy' of als. The parameters are factors, "),
        ("factors=0", "factors must be at least 1; got 0."),
        ("factors=2.5", "-p factors=2.5: '2.5' is not a valid integer."),
        ("linked=maybe", "-p linked=maybe: 'maybe' is not a valid boolean."),
        ("count_power=x", "-p count_power=x: 'x' is not a valid float."),
        ("bias.tol=1", "the models are als, not 'bias'."),
        ("random_state=1", "use --seed"),
        ("factors", "must be NAME=VALUE, such as linked=true; got 'factors'"),
    ],
)
def test_a_bad_parameter_says_what_would_be_right(run, ratings, given, message):
    said = run(
        "fit", ratings, "--out", "m", "--model", "als", "-p", given, code=2
    ).stderr
    assert message in said


def test_evaluate_gives_a_parameter_to_the_models_that_have_it(run, ratings):
    args = ["evaluate", ratings, "--model", "als", "--model", "popular", "--factors", 3]
    als, popular = json.loads(run(*args, "-p", "popular.damping=2", "--json").stdout)[
        "models"
    ]
    assert als["parameters"]["factors"] == 3
    assert popular["parameters"] == {"damping": 2.0, "habit": 0.0}
    said = run("evaluate", ratings, "--model", "popular", "-p", "tol=1", code=2).stderr
    assert "-p tol does not apply to popular; leave it out. It is for als, " in said


def test_a_parameter_of_one_model_beats_that_of_all(run, ratings):
    more = ["-p", "bias.tol=0.01", "-p", "tol=0.1", "--json"]
    args = ["evaluate", ratings, "--model", "als", "--model", "bias", *more]
    als, bias = json.loads(run(*args).stdout)["models"]
    assert (als["parameters"]["tol"], bias["parameters"]["tol"]) == (0.1, 0.01)


def test_auto_is_the_choice_of_the_data(run, implicit):
    run("fit", implicit, "--out", "m", "--model", "auto")
    assert Recommender.load("m").model.name == "spectral"


def test_fit_compares_models_and_keeps_what_it_found(run, tmp_path):
    run("data", "sample", "--out", tmp_path / "sample")
    frame = pl.read_csv(tmp_path / "sample" / "ratings.csv").filter(
        pl.col("userId") < 300
    )
    frame.write_csv(tmp_path / "few.csv")
    data = tmp_path / "few.csv"
    said = run("fit", data, "--out", "m", "--iterations", 5, "--factors", 4).stderr
    assert "comparing als, als linked, bayes: the ratings are between" in said
    assert "held-out ratings: als 0." in said
    assert "\nchose " in said
    shown = json.loads(run("info", "m", "--json").stdout)["training"]["choice"]
    assert shown.startswith("compared als, als linked, bayes: ")
    plan = json.loads(run("data", "inspect", data, "--json").stdout)[
        "fit would compare"
    ]
    assert plan["models"] == "als, als linked, bayes"
    quick = run("recommend", data, "--user", 1, "-n", 2).stderr
    assert "fitted als to" in quick


@pytest.mark.parametrize(
    ("model", "start", "found"),
    [
        ("als", "count", ["count_power="]),
        ("implicit-knn", "weighting=b", ["weighting=bm25"]),
        ("als", "linked=", ["linked=true", "linked=false"]),
    ],
)
def test_parameters_complete(model, start, found):
    parent = click.Context(cli, info_name="recsys", resilient_parsing=True)
    command = cli.get_command(parent, "fit")
    context = click.Context(
        command, parent=parent, info_name="fit", resilient_parsing=True
    )
    context.params["model"] = model
    option = next(each for each in command.params if each.name == "parameter")
    assert [item.value for item in option.shell_complete(context, start)] == found


@pytest.mark.parametrize("verb", ["fit", "recommend", "evaluate", "tune"])
def test_help_describes_at_most_25_options(run, verb):
    lines = run(verb, "--help").stdout.partition("\nOptions:")[2].splitlines()
    options = [line for line in lines if line.startswith("  -")]
    only_named = re.compile(r"  --[\w-]+(, --[\w-]+)*(,|, and \d+ more)?")
    assert len([line for line in options if not only_named.fullmatch(line)]) <= 25


def test_options_of_reading_are_described_once(run):
    shown = run("data", "inspect", "--help").stdout
    for verb in ("fit", "update", "split", "scree", "recommend", "evaluate", "tune"):
        help_text = run(verb, "--help").stdout
        described, _, named = help_text.partition(
            "More options for reading, as in `recsys data"
        )
        assert "--duplicates" in named or "--user-col" in named, verb
        assert "--duplicates" not in described, verb
    assert "--duplicates [last|first|mean|sum|error]" in shown
    assert "More options" not in shown


def test_help_of_every_verb_fits_two_screens(run):
    for name in cli.list_commands(click.Context(cli)):
        assert len(run(name, "--help").stdout.splitlines()) <= 80, name
