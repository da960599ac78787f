"""The README and the pages show what their commands print. (Their Python examples are doctests.)"""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import os
import re
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import click
import pytest

from recsys.cli.main import cli
from recsys.models.registry import MODELS

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
README = ROOT / "README.md"
PAGES = [README, *sorted(DOCS.rglob("*.md"))]
ON_A_CLUSTER = DOCS / "spark.md"  # its commands are only checked for verbs and options
RESULTS = ROOT / "benchmarks" / "RESULTS.md"
# Their examples take two to six seconds each, and run in the long profile alone. That their verbs
# and options exist is always checked, and what these do has tests of its own.
SLOW = ("explore", "models", "new-items", "topics", "vectors", "versions")
FIRST_FIT = "recsys fit recsys-sample --out model --quiet"
NUMBER = re.compile(r"-?\d+\.\d+(?:e[+-]?\d+)?")


def tool(name: str, folder: Path = DOCS) -> ModuleType:
    """Import a script of a folder that is no package."""
    spec = importlib.util.spec_from_file_location(
        f"{folder.name}_{name}", folder / f"{name}.py"
    )
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


console = tool("console")
reference = tool("reference")
each_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)


def text_of(page: Path) -> str:
    return page.read_text(encoding="utf-8")


def without_noise(command: str, text: str) -> str:
    """Drop bars and seconds (` in 0.3 s`), and what `recsys evaluate` says on time and memory."""
    text = re.sub(r"[█-▏]|(?<= in )[\d.]+(?= s\b)", "", text)
    text = re.sub(r"(?<=[a-z]@)[0-9a-f]{8}\b", "", text)  # checksums of models
    text = re.sub(
        r"\b20\d\d-\d\d-\d\d \d\d:\d\d\b(?!:)", "", text
    )  # when a model was made
    if command.startswith("recsys evaluate"):
        costs = ("fit, ", "recommend, ", "memory, ")
        return "\n".join(
            line for line in text.splitlines() if not line.startswith(costs)
        )
    return text


def assert_same(command: str, shown: str, printed: str) -> None:
    shown, printed = (without_noise(command, text) for text in (shown, printed))
    words = [
        re.sub("─+", "─", NUMBER.sub("#", text)).split() for text in (shown, printed)
    ]
    assert words[0] == words[1], command
    numbers = [[float(x) for x in NUMBER.findall(text)] for text in (shown, printed)]
    assert numbers[0] == pytest.approx(numbers[1], abs=5e-3), (
        command
    )  # kernels round differently


@pytest.fixture
def on_a_terminal(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in [name for name in os.environ if name.startswith("RECSYS_")]:
        monkeypatch.delenv(name)
    yield
    console.end_services()


@pytest.fixture(scope="module")
def first_model(tmp_path_factory):
    """Return the model that most pages fit first, in their own words, fitted once for all."""
    folder = tmp_path_factory.mktemp("first")
    with contextlib.chdir(folder):
        for command in ("recsys data sample", FIRST_FIT):
            console.printed(console.Example(command, ""))
    return folder / "model"


@functools.cache
def printed_from_sample(command: str) -> str:
    return console.printed(console.Example(command, ""))


def printed(example: Any) -> str:
    """Run an example; what several pages read from the sample data alone, once for all of them."""
    if re.match("recsys (evaluate|recommend) recsys-sample ", example.command):
        return printed_from_sample(example.command)
    return console.printed(example)


def assert_prints_what_it_shows(page: Path, first_model: Path) -> None:
    for example in console.examples(page):
        if example.command.removesuffix(" --force") == FIRST_FIT and not example.shown:
            shutil.copytree(first_model, "model", dirs_exist_ok=True)
        elif example.command.startswith("curl ") and " -d " not in example.command:
            assert_answers_in_time(example)
        else:
            assert_same(example.command, example.shown, printed(example))


def assert_answers_in_time(example: Any, seconds: float = 100) -> None:
    """Ask a service again until it has loaded what an example before has changed."""
    end = time.monotonic() + seconds
    while True:
        try:
            assert_same(example.command, example.shown, printed(example))
        except AssertionError:
            if time.monotonic() > end:
                raise
            time.sleep(0.5)
        else:
            return


on_servers = [page for page in console.pages() if console.needs_postgres(page)]
alone = [page for page in console.pages() if page not in on_servers]
slow = [page for page in alone if page.stem in SLOW]
quick = [page for page in alone if page not in slow]


@pytest.mark.parametrize("page", quick, ids=lambda page: page.stem)
def test_commands_print_what_the_page_shows(page, on_a_terminal, first_model):
    assert_prints_what_it_shows(page, first_model)


@pytest.mark.long
@pytest.mark.parametrize("page", slow, ids=lambda page: page.stem)
def test_slow_commands_print_what_the_page_shows(page, on_a_terminal, first_model):
    assert_prints_what_it_shows(page, first_model)


@pytest.mark.parametrize("page", on_servers, ids=lambda page: page.stem)
def test_jobs_on_postgresql_print_what_the_page_shows(
    page, on_a_terminal, monkeypatch, postgres_server, first_model
):
    for name, value in postgres_server.environment.items():
        monkeypatch.setenv(name, value)
    try:
        assert_prints_what_it_shows(page, first_model)
    finally:
        tables = "ratings, recommendations, events"
        clean = f"DROP TABLE IF EXISTS {tables}; DROP ROLE IF EXISTS recommender"
        command = ["psql", "-qX", "-c", clean, "postgresql://shop@localhost/shop"]
        subprocess.run(command, check=True, capture_output=True)


def test_a_difference_is_noticed():
    shown = "fitted als in 0.3 s, RMSE 0.6282\n"
    assert_same("recsys fit", shown, "fitted als in 41.5 s, RMSE 0.6283\n")
    with pytest.raises(AssertionError):
        assert_same("recsys fit", shown, "fitted als in 0.3 s, RMSE 0.6482\n")
    with pytest.raises(AssertionError):
        assert_same("recsys fit", shown, "fitted bias in 0.3 s, RMSE 0.6282\n")


@each_page
def test_every_command_line_is_run(page):
    """A line that starts with `recsys` stands in a console block, or in the reference."""
    assert len(re.findall(r"^\$ ", text_of(page), re.M)) == len(console.examples(page))
    if page not in (reference.PAGE, ON_A_CLUSTER):
        assert not re.findall(
            r"^\s*(?:\$\s*)?recsys [a-z]+ .*$", outside_console(page), re.M
        )


def outside_console(page: Path) -> str:
    return re.sub(r"```console\n.*?```", "", text_of(page), flags=re.DOTALL)


def commands_in_prose(page: Path) -> list[str]:
    if page == ON_A_CLUSTER:
        lines = text_of(page).replace("\\\n", " ").splitlines()
        return [line for line in lines if line.startswith("recsys ")]
    prose = re.sub(r"^```.*?^```", "", text_of(page), flags=re.DOTALL | re.M)
    return [" ".join(found.split()) for found in re.findall(r"`(recsys [^`]+)`", prose)]


def commands_in_examples(page: Path) -> list[str]:
    commands = [example.command for example in console.examples(page)]
    return [line for line in commands if line.startswith("recsys ")]


@each_page
def test_commands_have_verbs_and_options_that_exist(page):
    for line in commands_in_prose(page) + commands_in_examples(page):
        verb: click.Command = cli
        names = shlex.split(line)[1:]
        while isinstance(verb, click.Group) and names and not names[0].startswith("-"):
            found = verb.get_command(click.Context(verb), names.pop(0))
            assert found is not None, line
            verb = found
        known = {
            name
            for option in verb.params
            for name in [*option.opts, *option.secondary_opts]
        }
        asked = {name.split("=")[0] for name in names if re.match(r"-{1,2}[a-z]", name)}
        assert asked <= known | {"--help", "-h"}, line


def test_the_reference_of_the_command_is_its_help():
    assert text_of(reference.PAGE) == reference.reference(), (
        "Run: python docs/reference.py"
    )


def test_every_model_is_described():
    rows = re.findall(r"^\| (`.*?`) \|", text_of(DOCS / "howto" / "models.md"), re.M)
    described = [name for row in rows for name in re.findall(r"`([\w-]+)`", row)]
    assert sorted(described) == sorted(MODELS)


def generated_pages() -> set[str]:
    """Return the pages that docs/pages.py makes of other files."""
    notebooks = {
        f"notebooks/{path.stem}.md" for path in (ROOT / "notebooks").glob("*.ipynb")
    }
    return notebooks | {"reference/lowrank.md", "reference/recsys.md", "results.md"}


def test_every_page_is_in_the_navigation():
    listed = re.findall(r"[\w/-]+\.md$", text_of(ROOT / "mkdocs.yml"), re.M)
    written = {page.relative_to(DOCS).as_posix() for page in DOCS.rglob("*.md")}
    assert sorted(listed) == sorted(written | generated_pages())


@each_page
def test_links_lead_to_a_page_and_a_heading(page):
    for target, anchor in local_links(page):
        place = (page.parent / target).resolve() if target else page
        if os.path.relpath(place, DOCS) in generated_pages():
            continue
        assert place.exists(), target
        if anchor:
            headings = re.findall(r"^#+ (.*)$", text_of(place), re.M)
            slugs = {re.sub(r"\W+", "-", head.lower()).strip("-") for head in headings}
            assert anchor in slugs


def local_links(page: Path) -> Iterator[tuple[str, str]]:
    text = re.sub(r"^```.*?^```", "", text_of(page), flags=re.DOTALL | re.M)
    for link in re.findall(r"\]\(([^)\s]+)\)", text):
        if not re.match(r"https?:", link):
            target, _, anchor = link.partition("#")
            yield target, anchor


def test_broken_links_of_the_site_are_found(tmp_path):
    (tmp_path / "other.html").write_text('<h1 id="top">Other</h1>')
    (tmp_path / "index.html").write_text(
        '<a href="other.html#top">1</a> <a href="other.html#none">2</a> <img src="no.png">'
        '<a href="https://example.org/none">3</a> <a href="#here">4</a> <p id="here">'
    )
    links = tool("links")
    assert list(links.broken(tmp_path)) == [
        "index.html: other.html#none",
        "index.html: no.png",
    ]


def test_the_comparison_takes_its_figures_from_the_results():
    page = text_of(DOCS / "compared.md")
    taken = re.findall(
        r"^\[Results: (.*)\]\(\.\./benchmarks/RESULTS\.md\)$", page, re.M
    )
    assert len(taken) >= 3
    assert set(taken) <= set(re.findall(r"^## (.*)$", text_of(RESULTS), re.M))
    without_versions = re.sub(r"Python 3\.[\d.]+|\b\d+\.\d+\.\d+", "", page)
    typed = r"\d+(?:\.\d+)|\d+ ?%|\d+ times"
    assert not re.findall(typed, without_versions)


@pytest.mark.parametrize(
    "page", [README, ROOT / "CONTRIBUTING.md"], ids=lambda page: page.stem
)
def test_make_targets_exist(page):
    names = re.findall(r"^([a-z][a-z -]*):", text_of(ROOT / "Makefile"), re.M)
    targets = {target for name in names for target in name.split()}
    assert set(re.findall(r"^make ([\w-]+)", text_of(page), re.M)) <= targets


def test_the_reference_has_all_public_modules():
    public_api = tool("test_public_api", ROOT / "tests")
    script = text_of(DOCS / "api.py")
    assert all(f'"{module}"' in script for module in public_api.PACKAGES)


def test_the_changelog_begins_with_the_version():
    version = re.search(r'^version = "(.*)"$', text_of(ROOT / "pyproject.toml"), re.M)[
        1
    ]
    headings = re.findall(r"^## (.*)$", text_of(ROOT / "CHANGELOG.md"), re.M)
    released = [heading for heading in headings if heading != "Unreleased"]
    assert re.fullmatch(rf"{re.escape(version)} - \d{{4}}-\d\d-\d\d", released[0])


def test_readme_repeats_figures_of_the_results(monkeypatch):
    """Where this fails: `python benchmarks/readme.py`."""
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    script = tool("readme", ROOT / "benchmarks")
    readme, results = text_of(README), text_of(RESULTS)
    assert script.with_figures(readme, results) == readme
    changed = results.replace("| bayes                        | 0.8", "| bayes | 0.1")
    assert "`bayes` has an RMSE of 0.1" in script.with_figures(readme, changed)


def test_the_readme_is_short():
    assert len(text_of(README).splitlines()) < 150


def test_pictures_of_the_results_are_drawn_and_shown():
    """Where this fails: `python benchmarks/pictures.py`, and show the picture in RESULTS.md."""
    pictures = tool("pictures", ROOT / "benchmarks")
    for name, (heading, _) in pictures.PICTURES.items():
        if f"## {heading}\n" in text_of(RESULTS):
            assert (ROOT / "benchmarks" / name).stat().st_size < 100_000
            assert f"]({name})" in text_of(RESULTS)


def test_pictures_are_drawn_from_the_tables():
    from matplotlib import pyplot

    pictures = tool("pictures", ROOT / "benchmarks")
    rows = pictures.table(text_of(RESULTS), pictures.RATINGS)
    figure = pictures.draw_ratings(rows)
    named = {text.get_text() for text in figure.axes[0].texts}
    assert len(named) == len(rows)
    assert {"als", "bayes", "SVD++", "BiasedMF"} <= named
    figure = pictures.draw_svd(pictures.table(text_of(RESULTS), pictures.SVD))
    assert [axes.get_title() for axes in figure.axes] == ["float32", "float64"]
    head = (
        "| ratings | "
        + " | ".join(pictures.STAGES)
        + " | peak GB | peak bytes per rating |"
    )
    body = [
        "| 1,000 | 1 | 2 | 3 | 4 | 5 | 0.5 | 9 |",
        "| 2,000 | 1 | 2 | 3 | 4 | 5 | 0.6 | 9 |",
    ]
    text = "\n".join([f"## {pictures.SCALE}", "", head, "|---|", *body])
    times = pictures.draw_scale(pictures.table(text, pictures.SCALE)).axes[0]
    assert [list(line.get_ydata()) for line in times.get_lines()][-1] == [15, 15]
    assert list(times.get_lines()[0].get_xdata()) == [1000, 2000]
    with pytest.raises(LookupError, match="no table below '## The main job from 1"):
        pictures.table("## Start-up\n\n| a |\n|---|\n| 1 |", pictures.SCALE)
    pyplot.close("all")
