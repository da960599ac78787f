"""The parameters of the models as options of the command."""

from __future__ import annotations

import json

import click
import pytest

from recsys import Recommender
from recsys.cli import options
from recsys.cli.parameters import ELSEWHERE, PARAMETERS, Parameter
from recsys.models.registry import MODELS, model_class

DEFAULTS = [
    (model, parameter.name, default)
    for parameter in PARAMETERS
    for model, default in parameter.defaults.items()
]


@pytest.mark.parametrize("model", MODELS)
def test_every_parameter_of_a_model_is_an_option_with_its_default(model):
    own = {k: v for k, v in model_class(model)().get_params().items() if k not in ELSEWHERE}
    assert {name: default for owner, name, default in DEFAULTS if owner == model} == own


def test_the_table_has_each_parameter_once_and_no_other_models():
    names = [parameter.name for parameter in PARAMETERS]
    assert len(names) == len(set(names))
    assert {model for model, _, _ in DEFAULTS} <= set(MODELS)
    assert all(parameter.help.endswith(".") for parameter in PARAMETERS)


def test_defaults_stand_in_the_help(run):
    text = " ".join(run("fit", "--help").stdout.split())
    text = text.replace("implicit- ", "implicit-")  # lines break after hyphens
    for parameter in PARAMETERS:
        assert parameter.option in text
        for model, default in parameter.defaults.items():
            if not isinstance(default, bool | None):
                assert f"{model}: {default}" in text


def test_parameters_reach_the_model(run, ratings):
    run("fit", ratings, "--out", "m", "--model", "als", "--count-power", "0.25", "--tol", "0.01")
    params = Recommender.load("m").model.get_params()
    assert (params["count_power"], params["tol"]) == (0.25, 0.01)
    run("fit", ratings, "--out", "b", "--model", "bias", "--user-damping", "0")
    assert Recommender.load("b").model.get_params()["user_damping"] == 0


def test_a_parameter_of_another_model_is_refused_with_its_owners(run, ratings):
    args = ["fit", ratings, "--out", "m", "--model", "als", "--user-damping", 3]
    said = run(*args, code=1).stderr
    assert "--user-damping does not apply to --model als; leave it out. It is for bias, " in said


def test_the_model_refuses_values_of_its_own_accord(run, ratings):
    said = run("fit", ratings, "--out", "m", "--tol", "-1", code=2).stderr
    assert "--tol" in said


def test_evaluate_gives_a_parameter_to_the_models_that_have_it(run, ratings):
    args = ["evaluate", ratings, "--model", "als", "--model", "popular", "--factors", 3, "--json"]
    als, popular = json.loads(run(*args).stdout)["models"]
    assert als["parameters"]["factors"] == 3
    assert popular["parameters"] == {"damping": 10.0}
    said = run("evaluate", ratings, "--model", "popular", "--tol", 1, code=1).stderr
    assert "--tol does not apply to --model popular" in said


def test_a_boolean_parameter_is_a_pair_of_flags_and_a_choice_shows_itself(monkeypatch):
    linked = Parameter("linked", click.BOOL, "", "Link the priors.", {"als": False})
    how = Parameter("how", click.Choice(["fast", "slow"]), "", "How.", {"als": "fast"})
    monkeypatch.setattr(options, "PARAMETERS", (linked, how))

    @click.command()
    @options.parameter_options
    def verb(parameters):
        click.echo(parameters)

    def said(*args):
        from click.testing import CliRunner

        return CliRunner().invoke(verb, args).output.strip()

    text = said("--help")
    assert "--linked / --no-linked  Link the priors; als: off by default." in text
    assert "--how [fast|slow]" in text
    assert said("--linked") == "{'linked': True}"
    assert said("--no-linked") == "{'linked': False}"
    assert said() == "{}"
