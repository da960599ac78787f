"""Committed saved directories: this version reads them, and answers as their writer did."""

import json
import shutil

import pytest
from saved.write import EXPECTED, FOLDERS, SAVED, answers

from recsys.errors import RecsysError
from recsys.saving.arrays import FORMAT_VERSION

ANSWERS = json.loads(EXPECTED.read_text(encoding="utf-8"))
TOLERANCE = 1e-4  # of the largest score

every_folder = pytest.mark.parametrize("name", FOLDERS)
# The journal of a study is in the format of optuna.
every_versioned_folder = pytest.mark.parametrize(
    "name", sorted(FOLDERS.keys() - {"study"})
)


def check_list(actual, expected):
    """Compare lists of ids with scores; ids with nearly the same scores may change places."""
    scores = dict(expected)
    allowed = TOLERANCE * max(map(abs, scores.values()))
    assert {label for label, _ in actual} == scores.keys()
    for (label, score), (_, at_rank) in zip(actual, expected, strict=True):
        assert score == pytest.approx(scores[label], rel=0, abs=allowed)
        assert score == pytest.approx(at_rank, rel=0, abs=allowed)


def check_answers(actual, expected):
    """Compare answers: lists up to ties, and numbers up to rounding."""
    assert actual.keys() == expected.keys()
    for key, value in expected.items():
        if isinstance(value, list) and isinstance(value[0], list):
            check_list(actual[key], value)
        else:
            assert actual[key] == pytest.approx(value, rel=TOLERANCE), key


@every_folder
def test_reads_committed_files_and_answers_as_before(name, tmp_path):
    check_answers(answers(name, tmp_path), ANSWERS[name])


def test_each_model_and_each_folder_is_tested():
    folders = {path.name for path in SAVED.iterdir() if path.is_dir()}
    assert folders - {"__pycache__"} == set(FOLDERS) == set(ANSWERS)


def test_lists_differ_in_equal_scores_only():
    expected = [["a", 2.0], ["b", 1.00001], ["c", 1.0]]
    check_list([["a", 2.0], ["c", 1.00001], ["b", 1.0]], expected)
    with pytest.raises(AssertionError):
        check_list([["b", 2.0], ["a", 1.0], ["c", 1.0]], expected)
    with pytest.raises(AssertionError):
        check_list([["a", 2.001], ["b", 1.0], ["c", 1.0]], expected)


@every_versioned_folder
@pytest.mark.parametrize("change", [-1, 1])
def test_names_the_version_that_wrote_another_format(
    name, change, tmp_path, monkeypatch
):
    shutil.copytree(SAVED / name, tmp_path / name)
    (manifest,) = (tmp_path / name).glob("*.json")
    version = FORMAT_VERSION + change
    document = json.loads(manifest.read_text(encoding="utf-8"))
    document |= {"format_version": version, "package_version": "7.8.9"}
    manifest.write_text(json.dumps(document), encoding="utf-8")
    monkeypatch.setattr("saved.write.SAVED", tmp_path)
    with pytest.raises(
        RecsysError,
        match=rf"^The saved .*{name} was written by lowrank-recsys 7\.8\.9 with format "
        rf"version {version}, and this version of recsys reads {FORMAT_VERSION}; .*\.$",
    ):
        answers(name, tmp_path)
