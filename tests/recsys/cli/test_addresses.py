"""The command shows and saves no password of an address."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from addresses import FORMS, SECRET
from click.testing import CliRunner

from recsys.cli.main import cli

LINES = [
    ["fit", "{}", "--out", "new"],
    ["--debug", "fit", "{}", "--out", "new"],
    ["fit", "ratings.csv", "{}", "--out", "new"],
    ["fit", "ratings.csv", "--item-table", "{}", "--out", "new"],
    ["fit", "ratings.csv", "--out", "{}"],
    ["fit", "ratings.csv", "--factors", "{}", "--out", "new"],
    ["fit", "--item-table={}", "--query", "{}", "ratings.csv", "--out", "new"],
    ["recommend", "model", "--user", "1", "--output", "{}"],
    ["recommend", "model", "--user", "1", "--output={}"],
    ["recommend", "model", "--users", "{}"],
    ["recommend", "model", "--user", "1", "--items", "{}"],
    ["recommend", "model", "--user", "1", "--block", "{}"],
    ["recommend", "model", "--history", "{}"],
    ["recommend", "{}", "--user", "1"],
    ["predict", "model", "{}"],
    ["update", "model", "{}", "--out", "new"],
    ["evaluate", "model", "--test", "{}"],
    ["evaluate", "--train", "ratings.csv", "--test", "{}"],
    ["monitor", "model", "{}", "--report", "page.html"],
    ["split", "{}", "--out", "parts"],
    ["tune", "{}", "--model", "als", "--trials", "1"],
    ["data", "inspect", "{}"],
    ["lsi", "index", "{}", "--out", "new"],
    ["lsi", "query", "{}", "tea"],
    ["info", "{}"],
    ["models", "{}"],
    ["serve", "{}"],
    ["versions", "list", "{}"],
    ["info", "model", "{}"],
    ["{}"],
]

_WITH_ALL = (0, 1, 7)  # lines that are run with all forms, others with every eighth
_STEP = 8


@pytest.fixture
def folder(model: Path, ratings: Path) -> Path:
    """A directory with ratings and a model."""
    Path("model").symlink_to(model)
    Path("ratings.csv").symlink_to(ratings / "ratings.csv")
    return Path()


def contents(folder: Path) -> str:
    """Return the names and contents of all new files."""
    new = [path for path in folder.rglob("*") if not path.is_symlink()]
    texts = [path.read_bytes().decode("latin-1") for path in new if path.is_file()]
    return "\n".join([*map(str, new), *texts])


@pytest.mark.parametrize(
    "line", LINES, ids=lambda line: " ".join(line).replace("{}", "_")
)
@pytest.mark.parametrize(
    "environment", [{}, {"RECSYS_ITEM_TABLE": FORMS[5]}], ids=["", "set"]
)
def test_no_password_is_shown_or_saved(
    line: list[str], environment: dict[str, str], folder: Path
) -> None:
    forms = FORMS[:1] if environment else FORMS
    if LINES.index(line) not in _WITH_ALL:
        forms = forms[LINES.index(line) % _STEP :: _STEP]
    for form in forms:
        words = [word.replace("{}", form) for word in line]
        done = CliRunner().invoke(cli, words, env=environment)
        assert done.exit_code in (0, 1, 2), done.output
        assert "unexpected" not in done.stderr.replace("unexpected extra", ""), (
            done.stderr
        )
        assert SECRET not in done.output + done.stderr, (words, done.output)
    assert SECRET not in contents(folder)


@pytest.mark.parametrize(
    ("line", "is_told"),
    [
        (["fit", "postgresql://me:{}@127.0.0.1:1/d::t", "--out", "m"], True),
        (["impute", "m", "-o", "postgresql://me:{}@127.0.0.1:1/d::t"], True),
        (
            ["fit", "r.csv", "--item-table", "postgresql://me:{}@h:1/d::t", "-o", "m"],
            True,
        ),
        (
            ["impute", "m", "-o", "postgresql://me:{}@127.0.0.1:1/d::t", "--quiet"],
            False,
        ),
        (["impute", "m", "-o", "postgresql://me@127.0.0.1:1/d::t"], False),
        (
            ["serve", "--model", "a=m", "--item-table", "a=postgresql://me:{}@h/d::t"],
            True,
        ),
        (
            ["serve", "--model", "a=m", "--item-table", "a=postgresql://me@h/d::t"],
            False,
        ),
    ],
)
def test_a_password_on_the_command_line_is_told(
    line: list[str], is_told: bool, folder: Path
) -> None:
    words = [word.replace("{}", SECRET) for word in line]
    done = CliRunner().invoke(cli, words)
    assert ("is visible to other users" in done.stderr) == is_told, done.stderr


def test_settings_are_shown_without_passwords(run: Callable[..., object]) -> None:
    Path("recsys.toml").write_text(
        f"item-table = '{FORMS[0]}'\n[fit]\nquery = '{FORMS[5]}'\n"
    )
    environment = {"RECSYS_USER_TABLE": FORMS[0], "RECSYS_SHOP_KEY": SECRET}
    done = CliRunner().invoke(cli, ["info"], env=environment)
    assert "postgresql://127.0.0.1:1/shop::user (RECSYS_USER_TABLE)" in done.output
    assert "RECSYS_SHOP_KEY,hidden (sets no option)" in done.output
    assert SECRET not in done.output
