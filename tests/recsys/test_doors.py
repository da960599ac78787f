"""The command and Python fit and measure one model under one name."""

from __future__ import annotations

import io
import json
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from click.testing import CliRunner

from recsys import Recommender, evaluate, read_ratings
from recsys.cli.main import cli
from recsys.data.ratings import Ratings
from recsys.evaluation.splits import default_split

pytestmark = pytest.mark.usefixtures("one_fold")


@pytest.fixture(scope="module")
def films(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("films")
    rng = np.random.default_rng(0)
    users, items = np.nonzero(rng.random((60, 40)) < 0.9)
    likes = (users + items) % 2
    ratings = pl.DataFrame(
        {
            "user": users,
            "item": items,
            "rating": 2 + 2 * likes + rng.integers(0, 2, len(users)),
        }
    )
    ratings.sample(fraction=1, shuffle=True, seed=0).write_csv(folder / "ratings.csv")
    genres = [["war", "love"][item % 2] for item in range(44)]
    pl.DataFrame({"item": range(44), "genre": genres}).write_csv(folder / "items.csv")
    return folder


def command(*args: object) -> str:
    result = CliRunner().invoke(cli, [str(arg) for arg in args])
    assert result.exit_code == 0, result.output
    return result.stdout


def same(one: Recommender, other: Recommender) -> bool:
    arrays, others = one.model._arrays(), other.model._arrays()
    return arrays.keys() == others.keys() and all(
        np.array_equal(arrays[name], others[name]) for name in arrays
    )


@pytest.mark.parametrize("flags", [{}, {"features": False}, {"features": ["genre"]}])
@pytest.mark.parametrize("model", ["als", "ials", "auto"])
def test_a_fit_is_the_same_to_the_bit(films, tmp_path, model, flags):
    implicit = model == "ials"
    options = ["--implicit"] if implicit else []
    if flags.get("features") is False:
        options.append("--no-features")
    elif flags:
        options += ["--features", "genre"]
    command("fit", films, "--model", model, *options, "--out", tmp_path / "model", "-q")
    fitted = Recommender.load(tmp_path / "model")
    ratings = read_ratings(films, implicit=implicit)
    here = Recommender(model).fit(ratings, **flags)
    assert fitted.model.name == here.model.name
    assert same(fitted, here)
    with_features = flags.get("features") is not False
    assert (here.ratings.item_features is not None) == with_features
    table = pl.read_csv(films / "items.csv")
    frame = pl.read_csv(films / "ratings.csv")
    of_frame = Ratings.from_frame(frame, implicit=implicit, item_table=table)
    assert same(fitted, Recommender(model).fit(of_frame, **flags))


def test_an_evaluation_has_the_same_figures(films):
    document = json.loads(command("evaluate", films, "--model", "als", "--json", "-q"))
    values = {name: m["value"] for name, m in document["models"][0]["metrics"].items()}
    found = evaluate("als", default_split(read_ratings(films)), resamples=0)
    row = found.table.row(0, named=True)
    assert {name: row[name] for name in values} == pytest.approx(values, abs=0)
    bare = command(
        "evaluate", films, "--model", "als", "--no-features", "--format", "csv", "-q"
    )
    without = evaluate(
        "als", default_split(read_ratings(films)), resamples=0, features=False
    )
    assert (
        pl.read_csv(io.StringIO(bare))["rmse"][0]
        == without.table["rmse"][0]
        != row["rmse"]
    )
