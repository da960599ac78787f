"""Settings: the command line over the environment over recsys.toml over defaults."""

from __future__ import annotations

import json
import shutil
from contextlib import chdir
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from recsys.cli import group
from recsys.cli.main import cli


@pytest.fixture
def settings(monkeypatch, run):
    """The parameters that `recsys fit x --out m ...` is called with."""

    def parse(*args: str) -> dict[str, object]:
        root = click.Context(cli, info_name="recsys", auto_envvar_prefix="RECSYS")
        command = cli.get_command(root, "fit")
        return command.make_context(
            "fit", ["x", "--out", "m", *args], parent=root
        ).params

    return parse


@pytest.fixture(scope="module")
def inputs(ratings, tmp_path_factory):
    """A folder with a split, models `m` and `a` of its training part, and results."""
    folder = tmp_path_factory.mktemp("inputs")
    commands = (
        f"split {ratings} --method random --out r",
        "fit r/train.csv --model bias --out m",
        "fit r/train.csv --model als --out a",
        "evaluate r --model bias,popular --save results",
    )
    with chdir(folder):
        for line in commands:
            result = CliRunner().invoke(cli, [*line.split(), "--quiet"])
            assert result.exit_code == 0, result.output
    return folder


def write(text: str) -> None:
    Path("recsys.toml").write_text(text)


def test_precedence_from_weak_to_strong(settings, monkeypatch):
    assert settings()["seed"] == 0
    write("seed = 1")
    assert settings()["seed"] == 1
    write("seed = 1\n[fit]\nseed = 2")
    assert settings()["seed"] == 2
    monkeypatch.setenv("RECSYS_SEED", "3")
    assert settings()["seed"] == 3
    monkeypatch.setenv("RECSYS_FIT_SEED", "4")
    assert settings()["seed"] == 4
    assert settings("--seed", "5")["seed"] == 5


def test_flags_choices_and_dashes(settings, monkeypatch):
    write('user-col = "reader"\nitem_col = "book"\n[fit]\nforce = true\nmodel = "bias"')
    params = settings()
    assert (params["user_col"], params["item_col"]) == ("reader", "book")
    assert (params["force"], params["model"]) == (True, "bias")
    monkeypatch.setenv("RECSYS_FORCE", "0")
    assert settings()["force"] is False


def test_empty_variable_sets_nothing(settings, monkeypatch):
    monkeypatch.setenv("RECSYS_SEED", "")
    assert settings()["seed"] == 0


def test_repeatable_option(monkeypatch):
    root = click.Context(cli, info_name="recsys", auto_envvar_prefix="RECSYS")
    command = cli.get_command(root, "recommend")

    def users():
        return command.make_context("recommend", ["m"], parent=root).params["user"]

    write("[recommend]\nuser = 7")
    assert users() == ("7",)
    write("[recommend]\nuser = [7, 8]")
    assert users() == ("7", "8")
    monkeypatch.setenv("RECSYS_RECOMMEND_USER", "9 10")
    assert users() == ("9", "10")


def test_settings_are_named_as_the_options():
    root = click.Context(cli, info_name="recsys", auto_envvar_prefix="RECSYS")
    others = set()
    for verb in group._verbs(root):
        for option in group._options(verb.command):
            spelt = {
                f"RECSYS_{o.lstrip('-').replace('-', '_').upper()}" for o in option.opts
            }
            if spelt.isdisjoint(group.variables(option, verb)):
                others.add((verb.info_name, option.opts[0]))
    # RECSYS_FORMAT is the format of printed data, and RECSYS_MODEL a model to fit.
    assert others == {("split", "--format"), ("serve", "--model")}


def test_a_repeatable_option_of_another_parameter_name(settings, monkeypatch):
    write('event-weight = ["purchase=5", "view=1"]')
    assert settings()["event_weight"] == {"purchase": 5.0, "view": 1.0}
    monkeypatch.setenv("RECSYS_EVENT_WEIGHT", "purchase=4 view=2,cart=3")
    assert settings()["event_weight"] == {"purchase": 4.0, "view": 2.0, "cart": 3.0}


def test_nested_verb(run, monkeypatch):
    write('[data.inspect]\nsep = ";"')
    monkeypatch.setenv("RECSYS_DATA_SAMPLE_OUT", "here")
    facts = json.loads(run("info", "--json").stdout)["settings"]
    assert facts["data inspect --sep"] == "; (recsys.toml)"
    assert facts["data sample --out"] == "here (RECSYS_DATA_SAMPLE_OUT)"


def test_a_group_sets_options_of_its_verbs(run):
    write('[data]\nsep = ";"\n[data.inspect]\nformat = "json"')
    facts = json.loads(run("info", "--json").stdout)["settings"]
    assert facts["data inspect --sep"] == "; (recsys.toml)"
    assert facts["data inspect --format"] == "json (recsys.toml)"


def test_an_option_may_be_called_like_a_verb(run, model):
    write('explain = "5"\n[lsi]\nquery = "select 1"')
    assert run("explain", model, "--user", 1, "--item", 100).stdout.startswith("part,")
    assert "There is no" in run("lsi", "query", "nowhere", "text", code=1).stderr


def test_quiet_and_debug_can_be_set(run, monkeypatch):
    write("[fit]\ndebug = true")
    assert "Traceback" in run("fit", "nowhere.csv", "--out", "m", code=1).stderr


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "[fit]\nfactor = 3",
            "sets 'fit.factor', which no command has; did you mean 'factors'?",
        ),
        ("[fti]\nfactors = 3", "sets 'fti', which no command has; did you mean 'fit'?"),
        ("thread = 3", "sets 'thread', which no command has; did you mean 'threads'?"),
        ("[data.inspekt]\nsep = 3", "sets 'data.inspekt', which no command has"),
        ("[fit]\nout-put = 3", "sets 'fit.out-put', which no command has"),
        ("fit = 3", "sets 'fit', which no command has"),
        ("seed = ", "recsys.toml is not valid TOML"),
        ("seed = " + "9" * 5000, "recsys.toml is not valid TOML"),
    ],
)
def test_bad_file_is_one_sentence(run, text, message):
    write(text)
    result = run("recommend", "x", "--user", "1", code=1)
    assert message in result.stderr
    assert result.stderr.count("\n") == 1


def test_help_works_in_spite_of_a_bad_file(run):
    write("seed = ")
    run("fit", "--help")
    run("--help")


def test_bad_value_names_its_source(run, monkeypatch):
    write('[fit]\nseed = "many"')
    stderr = run("fit", "x", "--out", "m", code=2).stderr
    assert "Invalid value for '--seed': 'many' is not a valid integer range" in stderr
    assert "It is set in recsys.toml." in stderr
    monkeypatch.setenv("RECSYS_SEED", "-3")
    assert "It is set in RECSYS_SEED." in run("fit", "x", "--out", "m", code=2).stderr


def test_bad_value_on_the_command_line_names_no_other_source(run):
    write("seed = 3")
    assert (
        "is set in" not in run("fit", "x", "--out", "m", "--seed", "x", code=2).stderr
    )


def test_info_shows_settings_and_their_origin(run, monkeypatch):
    write("threads = 2")
    monkeypatch.setenv("RECSYS_FIT_THREADS", "1")
    monkeypatch.setenv("RECSYS_THREDS", "1")
    found = json.loads(run("info", "--json").stdout)["settings"]
    assert found["file"] == str(Path("recsys.toml").resolve())
    assert found["fit --threads"] == "1 (RECSYS_FIT_THREADS)"
    assert found["evaluate --threads"] == "2 (recsys.toml)"
    assert found["RECSYS_THREDS"] == "1 (sets no option)"


def test_no_settings_no_lines(run):
    assert json.loads(run("info", "--json").stdout)["settings"] == {"file": None}


def test_the_file_is_of_the_current_directory():
    assert group.FILE_NAME == "recsys.toml"


def test_a_flag_or_a_suffix_beats_settings(run, monkeypatch, model):
    import polars as pl

    monkeypatch.setenv("RECSYS_FORMAT", "table")
    assert json.loads(run("info", "--json").stdout)["schema"] == 1
    run("recommend", model, "--all", "-o", "all.parquet")
    assert len(pl.read_parquet("all.parquet")) > 0
    assert json.loads(run("info", "--json").stdout)["settings"][
        "info --format"
    ].startswith("table")
    monkeypatch.delenv("RECSYS_FORMAT")
    write('format = "table"')
    assert json.loads(run("info", "--json").stdout)["schema"] == 1
    run("recommend", model, "--all", "-o", "all.csv")
    assert pl.read_csv("all.csv").columns[:2] == ["user", "item"]


def test_a_setting_gives_way_to_another_choice_on_the_command_line(
    run, monkeypatch, model
):
    monkeypatch.setenv("RECSYS_ALL", "1")
    assert run("recommend", model, "--user", 1, "-n", 2).stdout.count("\n") == 3


def test_two_statements_on_the_command_line_contradict_each_other(run, model):
    said = run(
        "recommend", model, "--all", "--format", "csv", "-o", "x.parquet", code=2
    ).stderr
    assert "--format csv and x.parquet contradict each other" in said


@pytest.mark.parametrize(
    ("setting", "value", "line"),
    [
        ("RECSYS_THREADS", "2", "evaluate results"),
        ("RECSYS_BY", "popularity", "compare results"),
        ("RECSYS_FACTORS", "3", "evaluate m --test r/test.csv --repeats keep"),
        ("RECSYS_METHOD", "random", "evaluate m --test r/test.csv --repeats keep"),
        ("RECSYS_METHOD", "random", "evaluate r --model bias"),
        ("RECSYS_CUTS", "3", "evaluate --train r/train.csv --test r/test.csv -n 3"),
        (
            "RECSYS_TEST_FRACTION",
            "0.3",
            "split r/train.csv --method leave-last --out s",
        ),
        ("RECSYS_CUTS", "3", "split r/train.csv --method random --out s"),
        ("RECSYS_TRAFFIC", "200", "compare r --model bias,popular"),
        ("RECSYS_RELEVANT_FROM", "3", "compare --plan --rate 0.1 --difference 5%"),
        ("RECSYS_BUDGET", "60s", "fit r/train.csv --model bias --out n"),
        ("RECSYS_FOR", "next", "fit r/train.csv --model bias --out n"),
        ("RECSYS_DIVERSITY", "0.3", "similar a --user 1 -n 2"),
    ],
)
def test_a_setting_for_other_inputs_is_not_an_error(
    run, inputs, monkeypatch, setting, value, line
):
    shutil.copytree(inputs, Path.cwd(), dirs_exist_ok=True)
    monkeypatch.setenv(setting, value)
    run(*line.split())
    monkeypatch.delenv(setting)
    # On the command line, it contradicts the input.
    flag = f"--{setting.removeprefix('RECSYS_').lower().replace('_', '-')}"
    words = line.replace("--out ", "--out other-").split()
    said = run(*words, flag, value, code=2).stderr
    assert flag in said or "parameters" in said or "--user" in said
