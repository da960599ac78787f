"""Values of each fold, saved results, and tables for papers."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

import recsys
from recsys import DataError, Evaluation, Ratings, evaluate, html_report
from recsys.cli.main import cli
from recsys.evaluation import Metric, fold_pairs, k_fold, read_split
from recsys.models.registry import make_model

FRAMES = ("table", "metrics", "comparisons", "per_user", "residuals", "folds")


def some_ratings(seed: int = 0, n_users: int = 40, n_items: int = 15) -> pl.DataFrame:
    rng = np.random.default_rng(seed)
    pairs = rng.permutation(n_users * n_items)[: n_users * n_items // 2]
    users, items = np.divmod(pairs, n_items)
    grades = 1.0 + (users + 2 * items + rng.integers(2, size=len(pairs))) % 5
    return pl.DataFrame({"user": users, "item": items, "rating": grades})


def pairs_of_files(folder: Path, n: int = 3) -> pl.DataFrame:
    """Folds as those of ml-100k: u1.base and u1.test, without header."""
    frame = some_ratings()
    fold = pl.Series(np.random.default_rng(1).integers(n, size=len(frame)))
    folder.mkdir()
    for number in range(n):
        for name, part in (("base", fold != number), ("test", fold == number)):
            frame.filter(part).write_csv(
                folder / f"u{number + 1}.{name}", separator="\t", include_header=False
            )
    return frame


@settings(max_examples=5, deadline=None)
@given(seed=st.integers(0, 1000), n_folds=st.integers(2, 5))
def test_values_of_folds_are_those_of_each_split_alone(seed: int, n_folds: int) -> None:
    splits = [*k_fold(Ratings.from_frame(some_ratings(seed)), n_folds, seed)]
    models = ["popular", "bias"]
    found = evaluate(models, splits, [2, 5], resamples=0)
    alone = [evaluate(models, split, [2, 5], resamples=0) for split in splits]
    for fold, one in enumerate(alone, 1):
        values = found.folds.filter(fold=fold).select("model", "metric", "value")
        expected = one.metrics.select("model", "metric", "value")
        assert values.sort("model", "metric").equals(expected.sort("model", "metric"))
    for row in found.to_frame().to_dicts():
        figures = [
            one.metrics.filter(model=row["model"], metric=row["metric"])["value"][0]
            for one in alone
        ]
        assert row["fold_mean"] == pytest.approx(np.mean(figures))
        assert row["fold_deviation"] == pytest.approx(np.std(figures, ddof=1))
        half = stats.t.ppf(0.975, n_folds - 1) * np.std(figures, ddof=1) / n_folds**0.5
        ends = (np.mean(figures) - half, np.mean(figures) + half)
        assert (row["fold_low"], row["fold_high"]) == pytest.approx(ends)


def test_one_split_is_one_fold_without_a_deviation() -> None:
    found = evaluate("bias", recsys.random_split(some_ratings()), 3)
    assert found.folds["value"].to_list() == found.metrics["value"].to_list()
    assert "fold_mean" not in found.to_frame().columns
    assert r"\pm" not in found.to_latex()


def first_hit(hits: np.ndarray) -> np.ndarray:
    """Whether the first item is relevant, & more."""
    return hits[:, 0].astype(float)


def test_saved_results_are_loaded_as_they_were(tmp_path: Path) -> None:
    splits = k_fold(Ratings.from_frame(some_ratings()), 3)
    metrics = [
        "rmse",
        "ndcg",
        "coverage",
        Metric("first_hit", first_hit, "first & more"),
    ]
    found = evaluate(["bias", "popular", "random"], splits, [2, 4], metrics=metrics)
    found.save(tmp_path / "results")
    again = Evaluation.load(tmp_path / "results")
    for name in FRAMES:
        assert getattr(again, name).equals(getattr(found, name)), name
    for name in ("settings", "splits", "counts", "steps", "parameters", "fingerprint"):
        assert getattr(again, name) == getattr(found, name), name
    assert again.to_latex() == found.to_latex()
    assert again.measured["first_hit"].definition == "first & more"
    assert "<!doctype html>" in html_report(again)
    with pytest.raises(DataError, match="there is a saved evaluation already"):
        found.save(tmp_path / "results")
    found.save(tmp_path / "results", overwrite=True)


def damage_manifest(folder: Path) -> None:
    file = folder / "evaluation.json"
    file.write_text(file.read_text().replace('"confidence": 0.95', '"confidence": 7'))


def damage_frame(folder: Path) -> None:
    (folder / "metrics.parquet").write_bytes(b"PAR1")


def other_frame(folder: Path) -> None:
    pl.DataFrame({"a": [1]}).write_parquet(folder / "folds.parquet")


def no_frame(folder: Path) -> None:
    (folder / "per_user.parquet").unlink()


def link(folder: Path) -> None:
    (folder / "per_user.parquet").unlink()
    (folder / "per_user.parquet").symlink_to("/dev/null")


@pytest.mark.parametrize(
    "damage", [damage_manifest, damage_frame, other_frame, no_frame, link]
)
def test_damaged_results_are_one_clear_error(tmp_path: Path, damage) -> None:
    found = evaluate("bias", recsys.random_split(some_ratings()), 3)
    found.save(tmp_path / "results")
    damage(tmp_path / "results")
    with pytest.raises(DataError, match=r"is damaged|with a link|confidence must be"):
        Evaluation.load(tmp_path / "results")
    with pytest.raises(DataError, match="is not a saved evaluation"):
        Evaluation.load(tmp_path)


def test_table_marks_the_best_and_significantly_worse_values() -> None:
    splits = k_fold(Ratings.from_frame(some_ratings(n_users=200)), 3)
    models = {"a_b & c": "popular", "bias": "bias"}
    found = evaluate(models, splits, 3)
    table = found.to_latex(["rmse", "gini@3"])
    assert table.count(r"\toprule") == table.count(r"\bottomrule") == 1
    rows = {
        line.partition(" & $")[0]: line for line in table.splitlines() if "$0" in line
    }
    rows |= {
        line.partition(" & $")[0]: line
        for line in table.splitlines()
        if "mathbf" in line
    }
    assert set(rows) == {r"a\_b \& c", "bias"}
    means = dict(
        found.to_frame().filter(metric="rmse").select("model", "fold_mean").iter_rows()
    )
    best = min(means, key=means.__getitem__)
    worse = max(means, key=means.__getitem__)
    bold = rf"\mathbf{{{means[best]:.4f}}} \pm "
    p_value = found.comparisons.filter(metric="rmse")["adjusted"][0]
    stars = "*" * sum(p_value < level for level in (0.05, 0.01, 0.001))
    escaped = {"bias": "bias", "a_b & c": r"a\_b \& c"}
    assert bold in rows[escaped[best]]
    assert f"{means[worse]:.4f}^{{{stars}}}" in rows[escaped[worse]]
    # A metric without a direction has no best value.
    assert table.count("mathbf") == 1
    with pytest.raises(DataError, match="There is no metric 'map@9'"):
        found.to_latex(["map@9"])


def test_pairs_of_a_folder_are_found_in_the_order_of_their_numbers(
    tmp_path: Path,
) -> None:
    for name in ("u10", "u2", "ua"):
        for part in ("base", "test"):
            (tmp_path / f"{name}.{part}").write_text("1\t1\t5\n")
    (tmp_path / "u.data").write_text("1\t1\t5\n")
    assert [train.name for train, _ in fold_pairs(tmp_path)] == ["u2.base", "u10.base"]
    other = tmp_path / "other"
    for number in (1, 2):
        (other / f"fold-{number}").mkdir(parents=True)
        for part in ("train", "test"):
            (other / f"fold-{number}" / f"{part}.csv").write_text("user,item\n1,1\n")
    assert [test.parent.name for _, test in fold_pairs(other)] == ["fold-1", "fold-2"]
    (tmp_path / "none").mkdir()
    with pytest.raises(DataError, match="has no pairs of training and test files"):
        read_split(tmp_path / "none")


def run(*arguments: str, code: int = 0) -> str:
    result = CliRunner().invoke(cli, [*arguments])
    assert result.exit_code == code, result.output
    return result.stdout if code == 0 else result.output


def test_the_command_evaluates_folds_of_files(tmp_path: Path) -> None:
    folder = tmp_path / "ml"
    pairs_of_files(folder)
    models = ("--model", "bias,popular", "-n", "3")
    whole = run("evaluate", "--folds", str(folder), *models, "--json")
    document = json.loads(whole)
    assert document["split"]["folds"] == 3
    model = document["models"][0]
    values = [fold["metrics"]["rmse"] for fold in model["folds"]]
    assert model["metrics"]["rmse"]["folds"]["mean"] == pytest.approx(np.mean(values))
    flags = []
    for number in (1, 2, 3):
        flags += ["--fold", *(str(folder / f"u{number}.{e}") for e in ("base", "test"))]
    results = tmp_path / "results"
    named = run("evaluate", *flags, *models, "--save", str(results), "--json")
    metrics = [each["metrics"] for each in document["models"]]
    assert [each["metrics"] for each in json.loads(named)["models"]] == metrics
    found = evaluate(["bias", "popular"], read_split(folder), 3)
    again = run("evaluate", str(results), "--format", "latex")
    assert again == found.to_latex()
    said = run("recommend", str(results), "--user", "1", code=1)
    assert "saved evaluation, which `recsys evaluate` shows; a file of ratings" in said
    file = tmp_path / "table.tex"
    contradiction = ["--output", str(file), "--format", "json"]
    said = run("evaluate", str(results), *contradiction, code=2)
    assert f"--format json and {file} contradict each other" in said
    assert not file.exists()
    run("evaluate", str(results), "--output", str(file))
    assert file.read_text() == again
    report = tmp_path / "report.html"
    shown = run("evaluate", str(results), "--report", str(report), "--format", "table")
    assert "fold 3" in shown
    assert "deviation" in shown
    assert report.exists()
    assert "leave out --model" in run(
        "evaluate", str(results), "--model", "als", code=2
    )
    both = run("evaluate", "x.csv", "--folds", str(folder), code=2)
    assert "x.csv does not apply to folds of files" in both
    wrong = run("split", "x.csv", "--folds", str(folder), "--out", "z", code=2)
    assert "k-fold takes a number" in wrong
    assert "latex" in run("recommend", "x", "--format", "latex", code=2)


def test_models_with_the_best_value_are_all_bold():
    models = {label: make_model("popular") for label in ("one", "other")}
    folds = k_fold(some_ratings(), 2)
    found = evaluate(models, folds, n=3, metrics=["ndcg"], resamples=0)
    assert found.to_latex(["ndcg@3"]).count("mathbf") == 2


def test_a_fold_given_twice_is_an_error():
    split = recsys.random_split(Ratings.from_frame(some_ratings()))
    with pytest.raises(DataError, match="Folds 1 and 2 have the same ratings"):
        evaluate("popular", [split, split], metrics=["ndcg"], resamples=0)
