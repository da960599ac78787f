"""The group: help, suggestions, options everywhere, completion, and what help must not import."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from importlib.metadata import version

import click
import pytest

from recsys.cli.info import library_versions
from recsys.cli.main import VERBS, cli

HEAVY = {
    "numpy",
    "polars",
    "scipy",
    "pandas",
    "rich",
    "sklearn",
    "implicit",
    "matplotlib",
}


def every_command(command=cli, path=("recsys",)):
    yield path, command
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            yield from every_command(command.get_command(context, name), (*path, name))


COMMANDS = dict(every_command())
EXAMPLES = [
    (path, example)
    for path, command in COMMANDS.items()
    for example in command.examples
]


@pytest.mark.parametrize("name", VERBS)
def test_help_known_beforehand_is_the_verbs_own(name):
    verb = VERBS[name].load()
    assert verb.name == name
    assert verb.get_short_help_str(limit=200) == VERBS[name].short_help


@pytest.mark.parametrize("path", COMMANDS, ids=" ".join)
def test_every_command_has_help_with_examples(run, path):
    long = run(*path[1:], "--help").stdout
    assert run(*path[1:], "-h").stdout == long
    assert re.search(r"Examples:\n  .*recsys ", long)
    assert "--quiet" in long
    assert "--debug" in long


@pytest.mark.parametrize(("path", "example"), EXAMPLES, ids=[e for _, e in EXAMPLES])
def test_examples_parse(path, example):
    part = next(
        p for p in re.split(r"\||>(?=[^'\"]*$)|\$\(|\)", example) if "recsys " in p
    )
    words = shlex.split(part.replace('eval "', ""))
    assert words[0] == "recsys"
    command, parent, words = cli, None, words[1:]
    while isinstance(command, click.Group):
        parent = click.Context(command, parent=parent, info_name=command.name)
        command, words = command.get_command(parent, words[0]), words[1:]
    assert parent is not None
    command.make_context(command.name, words, parent=parent)


def test_libraries_that_are_missing_are_listed_as_such():
    found = library_versions(["click", "no-such-library"])
    assert found == {"click": version("click"), "no-such-library": "not installed"}


def test_misspelt_verb_is_suggested(run):
    result = run("recomend", code=2)
    assert result.stdout == ""
    assert (
        "Error: No such command 'recomend'. Did you mean 'recommend'?" in result.stderr
    )


def test_misspelt_nested_verb_is_suggested(run):
    assert "Did you mean 'inspect'?" in run("data", "inspekt", code=2).stderr


def test_misspelt_option_is_suggested(run):
    stderr = run("fit", "x.csv", "--out", "m", "--factor", "3", code=2).stderr
    assert re.search(r"(Did you mean|Possible options:) .*--factors", stderr)


@pytest.mark.parametrize("args", [(), ("data",)])
def test_no_verb_shows_the_help(run, args):
    assert "Commands:" in run(*args, code=2).stderr


@pytest.mark.parametrize(
    "args",
    [
        ["fit", "x.csv", "--out", "m", "--threads", "0"],
        ["fit", "x.csv", "--out", "m", "--threads", "-1"],
        ["fit", "x.csv", "--out", "m", "--factors", "0"],
        ["fit", "x.csv", "--out", "m", "--regularization", "0"],
        ["fit", "x.csv", "--out", "m", "--test-fraction", "1"],
        ["fit", "x.csv", "--out", "m", "--model", "svd"],
        ["fit", "x.csv"],
        ["recommend", "x", "--user", "1", "-n", "0"],
        ["recommend", "x"],
        ["recommend", "x", "--user", "1", "--all"],
        ["recommend", "x", "--user", "1", "--json", "--format", "csv"],
        ["recommend", "x", "--user", "1", "--output", "x.foo"],
        ["similar", "x"],
        ["scree", "x", "-k", "0"],
        ["completion", "tcsh"],
    ],
    ids=" ".join,
)
def test_bad_usage_is_exit_2(run, args):
    result = run(*args, code=2)
    assert result.stdout == ""
    assert "Error: " in result.stderr


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_script_is_of_the_shell_and_help_says_where_it_goes(run, shell):
    script = run("completion", shell).stdout
    assert f"recsys completion {shell} > ~/" in run("completion", "--help").stdout
    assert "_RECSYS_COMPLETE" in script
    assert script.startswith("#compdef recsys\n") == (shell == "zsh")


def test_bash_reads_the_script(run):
    script = run("completion", "bash").stdout
    done = subprocess.run(
        ["bash", "--norc", "-n"], input=script, capture_output=True, text=True
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_completion_of_verbs_and_options(spawn):
    def complete(words):
        env = {"_RECSYS_COMPLETE": "bash_complete", "COMP_WORDS": words}
        env["COMP_CWORD"] = str(len(words.split(" ")) - 1)
        return [line.split(",")[1] for line in spawn(env=env).stdout.splitlines()]

    assert complete("recsys re") == ["recommend"]
    assert complete("recsys data ") == ["inspect", "sample"]
    assert complete("recsys fit --fac") == ["--factors"]
    assert complete("recsys fit x.csv --model p") == ["popular"]


@pytest.mark.parametrize(
    "args",
    [
        ["--help"],
        ["--version"],
        ["fit", "--help"],
        ["data", "--help"],
        ["fit"],
        ["completion", "zsh"],
    ],
    ids=" ".join,
)
def test_light_commands_import_nothing_heavy(source_tree, args):
    assert imported(source_tree, args).isdisjoint(HEAVY)


def test_verbs_on_a_saved_model_import_only_numpy_and_polars(source_tree, model):
    runs = [
        ["recommend", "--like", "103", "--where", "year > 1990"],
        ["similar", "--user", "1"],
        ["explain", "--user", "1", "--item", "103"],
        ["impute"],
    ]
    lines = [[verb, str(model), *rest, "--quiet"] for verb, *rest in runs]
    code = (
        "from recsys.cli.main import cli\n"
        f"for line in {lines}:\n"
        "    try: cli.main(line)\n"
        "    except SystemExit as done: assert not done.code"
    )
    assert imported(source_tree, [code], program="-c") & HEAVY == {"numpy", "polars"}


def test_lists_of_known_users_import_only_numpy(source_tree, model):
    loaded = imported(source_tree, ["recommend", str(model), "--user", "1", "--quiet"])
    assert loaded & HEAVY == {"numpy"}


def test_completion_imports_nothing_heavy(source_tree):
    env = {
        "_RECSYS_COMPLETE": "bash_complete",
        "COMP_WORDS": "recsys fit --",
        "COMP_CWORD": "2",
    }
    assert imported(source_tree, [], env).isdisjoint(HEAVY)


def test_group_help_imports_no_verb(source_tree):
    loaded = imported(source_tree, ["--help"], whole_names=True)
    assert loaded.isdisjoint({f"recsys.cli.{name}" for name in VERBS})


def imported(source_tree, args, env=None, whole_names=False, program="-mrecsys"):
    """The modules that a run of the command, or of a program, imports."""
    done = subprocess.run(
        [sys.executable, "-X", "importtime", program, *args],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(source_tree), **(env or {})},
    )
    names = set(re.findall(r"\| +([\w.]+)$", done.stderr, flags=re.MULTILINE))
    assert "click" in names
    return names if whole_names else {name.partition(".")[0] for name in names}
