"""recsys evaluate --report."""

from __future__ import annotations

import html
import json
import os
import re
import shlex
import shutil
from pathlib import Path

import pytest


def test_a_report_of_an_evaluation(run, ratings):
    args = [ratings, "--model", "popular", "--model", "bias", "-n", 5, "--seed", 3]
    plain = run("evaluate", *args)
    result = run("evaluate", *args, "--report", "r.html")
    page = Path("r.html").read_text(encoding="utf-8")
    assert result.stderr.endswith("the report is in r.html\n")
    assert (
        f"<pre>recsys evaluate {ratings} --model popular --model bias -n 5 --seed 3"
        in page
    )
    assert "&#34;user_damping&#34;: 5.0" in page
    assert "<th>numpy</th>" in page
    assert ".scroll tr > th:first-child { position: sticky;" in page
    assert "<td>1, 2, 5</td>" in page, "shorter lists for the curves"
    assert result.stdout.splitlines()[0] == plain.stdout.splitlines()[0]
    document = json.loads(run("evaluate", *args, "--json", "--report", "r.html").stdout)
    expected = json.loads(run("evaluate", *args, "--json").stdout)
    assert document["n"] == [5]
    assert [m["metrics"] for m in document["models"]] == [
        m["metrics"] for m in expected["models"]
    ]
    assert document["comparisons"] == expected["comparisons"]


def test_a_report_of_a_comparison(run, ratings):
    run(
        "compare",
        ratings,
        "--model",
        "popular",
        "--model",
        "bias",
        "--report",
        "c.html",
    )
    assert "<pre>recsys compare " in Path("c.html").read_text(encoding="utf-8")


def test_a_hostile_file_name(run, ratings):
    name = "<script>alert('&')<script>.csv"
    shutil.copy(ratings / "ratings.csv", name)
    run("evaluate", name, "--model", "popular", "--report", "r.html")
    page = Path("r.html").read_text(encoding="utf-8")
    assert "<script" not in page
    assert "&lt;script&gt;alert(" in page


def test_rejects_a_file_name_that_is_not_text(run, ratings):
    name = os.fsdecode(b"r\xe9.html")
    run("evaluate", ratings, "--model", "popular", "--report", name, "-q")
    assert "r\\udce9.html" in Path(name).read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("target", "code", "message"),
    [
        ("r.pdf", 2, "--report must end in .html; got r.pdf."),
        (
            "nowhere/r.html",
            1,
            "Cannot write nowhere/r.html: there is no directory nowhere.",
        ),
        (".", 1, ". is a directory; --report needs the name of a file."),
    ],
)
def test_targets_that_cannot_be(run, ratings, target, code, message):
    assert message in run("evaluate", ratings, "--report", target, code=code).stderr


def test_the_old_report_stays_if_anything_fails(run, ratings, monkeypatch):
    Path("r.html").write_text("old")
    run(
        "evaluate",
        ratings,
        "--report",
        "r.html",
        "--model",
        "als",
        "--implicit",
        code=1,
    )
    assert Path("r.html").read_text() == "old"

    class Page(str):
        def encode(self, *args, **settings):
            raise OSError(28, "No space left on device")

    monkeypatch.setattr(
        "recsys.evaluation.html_report", lambda *args, **settings: Page("<html")
    )
    run("evaluate", ratings, "--report", "r.html", "--model", "popular", code=1)
    assert Path("r.html").read_text() == "old"
    assert [path.name for path in Path().iterdir()] == ["r.html"]


def test_the_report_repeats_settings_wherever_they_come_from(run, ratings, monkeypatch):
    Path("recsys.toml").write_text(
        'seed = 4\n[evaluate]\nn = [3, 6]\nmodel = ["random"]\nno-features = true\n'
    )
    monkeypatch.setenv("RECSYS_EVALUATE_METHOD", "random")
    monkeypatch.setenv("RECSYS_SEED", "5")
    monkeypatch.setenv("RECSYS_API_KEY", "s3cret")
    arguments = ("evaluate", ratings, "--model", "popular", "--json")
    printed = json.loads(run(*arguments, "--report", "one.html").stdout)
    page = Path("one.html").read_text()
    command = re.search("<pre>(.*?)</pre>", page, re.S)
    assert command is not None
    words = shlex.split(html.unescape(command[1]))
    # The command line chooses the model, and the environment the seed.
    assert sorted(words[8:]) == sorted(
        ["--method", "random", "--seed", "5", "-n", "3", "-n", "6", "--no-features"]
    )
    monkeypatch.delenv("RECSYS_EVALUATE_METHOD")
    monkeypatch.delenv("RECSYS_SEED")
    Path("recsys.toml").unlink()
    repeated = json.loads(run(*words[1:]).stdout)
    for key in ("data", "settings", "split", "seed", "n"):
        assert repeated.get(key) == printed.get(key)
