"""Saved models: what is written comes back, and what was damaged is rejected in one sentence."""

import errno
import gc
import hashlib
import json
import os
import pickle
import re
import shutil
import signal
import stat
import subprocess
import sys
import threading
import time
from dataclasses import replace
from datetime import date, datetime
from functools import cache, partial
from itertools import pairwise

import numpy as np
import polars as pl
import pytest
from forked_commands import started
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import recsys.saving.model_file
from lowrank.kernels import backend
from recsys.data.axis import Axis
from recsys.data.features import Features
from recsys.data.ids import Ids
from recsys.data.ratings import Ratings
from recsys.errors import DataError, ModelFileError, RecsysError
from recsys.features.selection import with_features
from recsys.known_users import lists_of_known_users
from recsys.models.base import FactorModel
from recsys.models.baselines import Bias, Popular
from recsys.models.registry import MODELS
from recsys.recommender import Recommender
from recsys.saving.arrays import FORMAT_VERSION, MODEL_FORMAT, DamageError
from recsys.saving.atomic import exclusive, move_link
from recsys.saving.model_file import checksum, format_of, read_manifest
from recsys.saving.storage import save_model
from recsys.saving.tables import check_features
from recsys.saving.versions import list_versions

pytestmark = pytest.mark.usefixtures("one_fold")

N_ITEMS = 6
ARRAYS = [
    "arrays/item_factors.npy",
    "arrays/user_bias.npy",
    "arrays/global_mean.npy",
    "ratings/indices.npy",
]
TABLES = ["users/0_bytes.npy", "user_table/1.npy", "items/0.npy"]
TABLES += ["item_table/1_offsets.npy"]


class Tiny(FactorModel):
    """Three given factors, entered in MODELS for these tests."""

    name = "tiny"

    def fit(self, ratings, *, on_step=None, validation=None):
        rng = np.random.default_rng(7)
        self.global_mean = 3.25
        self.user_bias = rng.normal(size=ratings.n_users).astype(np.float32)
        self.item_bias = rng.normal(size=ratings.n_items).astype(np.float32)
        self.user_factors = rng.normal(size=(ratings.n_users, 3)).astype(np.float32)
        self.item_factors = rng.normal(size=(ratings.n_items, 3)).astype(np.float32)
        return self


@pytest.fixture(autouse=True)
def close_maps():
    """Close the maps of models that could not be loaded, which errors keep open for a while."""
    yield
    gc.collect(1)


@pytest.fixture(autouse=True)
def tiny_is_known(monkeypatch):
    sys.modules["tiny_model_of_the_tests"] = sys.modules[__name__]
    monkeypatch.setitem(MODELS, "tiny", "tiny_model_of_the_tests:Tiny")
    yield
    del sys.modules["tiny_model_of_the_tests"]


def make_ratings():
    frame = pl.DataFrame(
        {
            "user": ["ann", "ann", "bob", "cy", "Zoë"],
            "item": [10, 20, 30, 40, 50],
            "rating": [1.0, 5.0, 3.0, 2.5, 4.0],
            "timestamp": [5, 4, 3, 2, 1],
        }
    )
    items = pl.DataFrame(
        {
            "item": [50, 10],
            "title": ["Dune", "Naïve, the"],
            "year": [1984, None],
            "genres": [["a"], []],
        }
    )
    users = pl.DataFrame({"user": ["bob"], "age": [33]})
    return Ratings.from_frame(frame, item_table=items, user_table=users)


@cache
def fitted():
    return Recommender(Tiny()).fit(make_ratings())


@pytest.fixture
def recommender():
    """Return a model that no test changes."""
    return fitted()


@pytest.fixture(scope="module")
def original(tmp_path_factory):
    """Return the path of a saved model that no test changes."""
    return tmp_path_factory.mktemp("original") / "model"


@pytest.fixture
def saved(recommender, original, tmp_path):
    """Return the path of a copy, which a test may change."""
    if not original.exists():
        recommender.save(original, keep_columns=["age"])
    return shutil.copytree(original, tmp_path / "model")


def edit_manifest(path, change):
    """Change model.json, with a checksum that fits, as somebody who means it would."""
    file = path / "model.json"
    document = json.loads(file.read_text())
    change(document)
    document["checksum"] = checksum(document)
    file.write_text(json.dumps(document))


def replace_file(path, name, contents, **entry):
    """Put other contents in a file and make model.json agree."""
    (path / name).write_bytes(contents)
    sha256 = hashlib.sha256(contents).hexdigest()
    found = {"sha256": sha256, "bytes": len(contents)} | entry
    edit_manifest(path, lambda document: document["files"][name].update(found))


def replace_array(path, name, array, *, as_said=None):
    """Put another array in a file; model.json says it is `as_said`."""
    said = array if as_said is None else as_said
    np.save(path / name, array)
    contents = (path / name).read_bytes()
    replace_file(path, name, contents, dtype=said.dtype.str, shape=list(said.shape))


def snapshot(directory):
    return {
        str(file.relative_to(directory)): file.read_bytes()
        for file in sorted(directory.rglob("*"))
        if file.is_file()
    }


# What comes back


def test_everything_comes_back(recommender, saved):
    loaded = Recommender.load(saved)
    before, after = recommender.ratings, loaded.ratings
    assert after.users == before.users
    assert after.items == before.items
    for name in ("indptr", "indices", "values"):
        np.testing.assert_array_equal(getattr(after, name), getattr(before, name))
        np.testing.assert_array_equal(after.timestamps, before.timestamps)
    assert after.implicit is False
    assert after.titles.to_list() == ["Naïve, the", None, None, None, "Dune"]
    assert after.item_table.frame.row(0) == (50, "Dune", 1984, ["a"])
    assert after.item_table.kinds == {
        "title": "text",
        "year": "number",
        "genres": "list",
    }
    assert after.user_table.frame.rows() == [("bob", 33)]
    assert loaded.training == recommender.training
    for name, array in recommender.model._arrays().items():
        np.testing.assert_array_equal(loaded.model._arrays()[name], array)
    assert type(loaded.model.global_mean) is float
    assert loaded.recommend().equals(recommender.recommend())
    assert loaded.similar_items(10).equals(recommender.similar_items(10))


def test_arrays_are_mapped_not_read(saved):
    model = Recommender.load(saved).model
    base = model.item_factors
    while isinstance(base, np.ndarray) and not isinstance(base, np.memmap):
        base = base.base
    assert isinstance(base, np.memmap)
    assert not model.item_factors.flags.writeable


def test_a_loaded_model_can_be_saved_and_loaded_again(saved, tmp_path):
    Recommender.load(saved).save(tmp_path / "again")
    again, before = snapshot(tmp_path / "again"), snapshot(saved)
    manifests = [json.loads(each.pop("model.json")) for each in (again, before)]
    assert again == before
    assert manifests[0]["fingerprint"] == manifests[1]["fingerprint"]


def test_ids_without_metadata_and_implicit_feedback(tmp_path):
    pairs = pl.DataFrame({"user": [2, 1], "item": ["x", "y"]})
    Recommender("popular").fit(Ratings.from_frame(pairs)).save(tmp_path / "m")
    ratings = Recommender.load(tmp_path / "m").ratings
    assert ratings.implicit
    assert ratings.item_table is ratings.user_table is None
    assert ratings.users.values.to_list() == [1, 2]


@pytest.mark.parametrize("number", [np.float64, np.float32])
def test_numpy_numbers_are_taken_as_parameters(tmp_path, number):
    model = Popular(damping=number(2.5))
    Recommender(model).fit(make_ratings()).save(tmp_path / "m")
    assert Recommender.load(tmp_path / "m").model.damping == 2.5


def test_fractions_of_a_second_come_back_and_are_finite(tmp_path):
    times = pl.DataFrame(
        {"user": [1, 2], "item": [1, 1], "time": [1_700_000_000.25, 1.7e9]}
    )
    recommender = Recommender("popular").fit(Ratings.from_frame(times))
    recommender.save(tmp_path / "model")
    seconds = Recommender.load(tmp_path / "model").ratings.seconds
    assert seconds.tolist() == [1_700_000_000.25, 1_700_000_000]
    replace_array(tmp_path / "model", "ratings/seconds.npy", np.array([np.nan, 1.7e9]))
    with pytest.raises(
        ModelFileError, match="ratings/seconds has values that are not finite"
    ):
        Recommender.load(tmp_path / "model")


def test_the_manifest_lists_the_files(recommender, saved):
    manifest = read_manifest(saved)
    assert manifest.model == "tiny"
    assert manifest.parameters == {}
    assert manifest.training == recommender.training
    assert manifest.versions["numpy"] == np.__version__
    assert manifest.versions["polars"] == pl.__version__
    assert manifest.versions["kernels"] == str(backend())
    assert manifest.versions["python"] == ".".join(map(str, sys.version_info[:3]))
    assert set(manifest.files) == set(snapshot(saved)) - {"model.json"}
    factors = manifest.files["arrays/item_factors.npy"]
    assert (factors.dtype, factors.shape) == ("<f4", (5, 3))
    for name, entry in manifest.files.items():
        contents = (saved / name).read_bytes()
        assert entry.sha256 == hashlib.sha256(contents).hexdigest()
        assert entry.bytes == len(contents)


def test_paths_may_look_like_patterns(recommender, tmp_path):
    odd = tmp_path / "k=[1]*?"
    odd.mkdir()
    recommender.save(odd / "m")
    assert (
        Recommender.load(str(odd / "m")).ratings.item_table.frame.columns[0] == "item"
    )
    assert "k" not in Recommender.load(odd / "m").ratings.item_table.frame.columns


# Writing safely


def test_nothing_is_left_next_to_the_model(saved):
    assert [entry.name for entry in saved.parent.iterdir()] == ["model"]


def test_the_directory_has_the_usual_permissions(saved, tmp_path):
    (tmp_path / "plain").mkdir()
    assert stat.S_IMODE(saved.stat().st_mode) == stat.S_IMODE(
        (tmp_path / "plain").stat().st_mode
    )


def test_a_saved_model_is_replaced_on_request_only(recommender, saved):
    before = snapshot(saved)
    with pytest.raises(ModelFileError, match="there is a saved model already; choose"):
        recommender.save(saved)
    assert snapshot(saved) == before
    Recommender("popular").fit(make_ratings()).save(saved, overwrite=True)
    assert Recommender.load(saved).model.name == "popular"
    assert [entry.name for entry in saved.parent.iterdir()] == ["model"]


def test_a_model_can_replace_the_one_it_was_loaded_from(saved):
    loaded = Recommender.load(saved)
    expected = loaded.recommend()
    loaded.save(saved, overwrite=True)
    assert loaded.recommend().equals(expected)
    assert Recommender.load(saved).recommend().equals(expected)


def test_a_damaged_model_may_be_replaced(recommender, saved):
    (saved / "arrays" / "user_bias.npy").unlink()
    recommender.save(saved, overwrite=True)
    Recommender.load(saved)


@pytest.mark.parametrize(
    "make", ["file", "empty", "foreign", "other_json", "broken_json"]
)
def test_only_a_saved_model_is_ever_replaced(recommender, tmp_path, make):
    path = tmp_path / "precious"
    if make == "file":
        path.write_text("data")
    else:
        path.mkdir()
    if make == "foreign":
        (path / "thesis.tex").write_text("data")
    if make == "other_json":
        (path / "model.json").write_text('{"format": "another"}')
    if make == "broken_json":
        (path / "model.json").write_text("{")
    before = snapshot(tmp_path)
    with pytest.raises(
        ModelFileError, match="it exists and is not a saved model, so it is not"
    ):
        recommender.save(path, overwrite=True)
    assert snapshot(tmp_path) == before


def test_files_of_others_within_a_model_are_never_deleted(recommender, saved):
    (saved / "notes.txt").write_text("mine")
    with pytest.raises(
        ModelFileError, match=r"holds other files next to the saved model \(notes.txt\)"
    ):
        recommender.save(saved, overwrite=True)
    assert (saved / "notes.txt").read_text() == "mine"


def test_a_link_to_a_model_stays_a_link(recommender, saved, tmp_path):
    link = tmp_path / "link"
    link.symlink_to(saved)
    recommender.save(link, overwrite=True)
    assert link.is_symlink()
    Recommender.load(link)


def test_the_directory_above_must_exist(recommender, tmp_path):
    with pytest.raises(
        ModelFileError, match=r"cannot be saved in .*m: there is no directory .*no"
    ):
        recommender.save(tmp_path / "no" / "m")


FAILURES = [
    KeyboardInterrupt(),
    MemoryError(),
    OSError(errno.ENOSPC, "No space left on device"),
]


@pytest.mark.covering(1)
@pytest.mark.parametrize(
    "failure", FAILURES, ids=lambda failure: type(failure).__name__
)
@pytest.mark.parametrize(
    "place",
    ["storage.np.save", "model_file.to_json", "storage.put_in_place", "atomic.flush"],
)
@pytest.mark.parametrize("overwrite", [False, True])
def test_a_failure_leaves_things_as_they_were(
    recommender, tmp_path, monkeypatch, failure, place, overwrite
):
    path = tmp_path / "model"
    if overwrite:
        recommender.save(path)
    before = snapshot(tmp_path)

    def fail(*args, **kwargs):
        raise failure

    monkeypatch.setattr(f"recsys.saving.{place}", fail)
    expected = ModelFileError if isinstance(failure, OSError) else type(failure)
    with pytest.raises(expected):
        recommender.save(path, overwrite=overwrite)
    assert snapshot(tmp_path) == before
    assert list(tmp_path.iterdir()) == ([path] if overwrite else [])


def test_names_a_full_disk(recommender, tmp_path, monkeypatch):
    def fail(*args, **kwargs):
        raise FAILURES[2]

    monkeypatch.setattr("recsys.saving.storage.np.save", fail)
    with pytest.raises(
        ModelFileError, match=r"cannot be saved in .*m: No space left on device\.$"
    ):
        recommender.save(tmp_path / "m")


@pytest.mark.parametrize("failing_rename", [1, 2])
def test_a_failing_rename_brings_the_old_model_back(
    recommender, saved, monkeypatch, failing_rename
):
    """Where directories cannot be exchanged in one step."""
    before, rename, count = snapshot(saved.parent), os.rename, [0]
    monkeypatch.setattr("recsys.saving.atomic._exchange", lambda one, other: False)

    def flaky(self, target):
        count[0] += 1
        if count[0] == failing_rename:
            raise KeyboardInterrupt
        rename(self, target)
        return target

    monkeypatch.setattr("pathlib.Path.rename", flaky)
    with pytest.raises(KeyboardInterrupt):
        recommender.save(saved, overwrite=True)
    assert snapshot(saved.parent) == before


def killed(code):
    """Run code that saves the model, and is killed by `die()`."""
    start = (
        "import os, signal\nfrom pathlib import Path\n"
        "from recsys import Recommender\nfrom recsys.saving import atomic\n"
        "def die(*args): os.kill(os.getpid(), signal.SIGKILL)\n"
        "model = Recommender.load('old')\n"
    )
    with started(["-c", start + code]) as process:
        assert process.wait(60) == -signal.SIGKILL


KILLS = {
    "before": "atomic.put_in_place.__globals__['_exchange'] = die",
    "after": "atomic.put_in_place.__globals__['_remove'] = die",
    "put aside": "exchange = atomic.put_in_place.__globals__['_exchange'] = lambda *paths: False\n"
    "rename = Path.rename\n"
    "Path.rename = lambda path, to: rename(path, to) if to.suffix == '.old' else die()",
}


@pytest.mark.skipif(os.name == "nt", reason="no SIGKILL")
@pytest.mark.parametrize("moment", KILLS)
def test_a_killed_save_leaves_the_old_or_the_new_model(tmp_path, moment, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Recommender("popular").fit(make_ratings()).save(tmp_path / "old")
    shutil.copytree(tmp_path / "old", tmp_path / "model")
    killed(f"{KILLS[moment]}\nmodel.save('model', overwrite=True)")
    assert len(list(tmp_path.iterdir())) > 2
    assert {*list_versions(tmp_path)["version"]} <= {"old", "model"}  # no hidden ones
    assert not list(tmp_path.glob(".*.tmp"))
    model = Recommender.load(tmp_path / "model", verify=True)
    model.save(tmp_path / "model", overwrite=True)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model", "old"]


def test_remains_of_a_measurement_do_not_block_the_next_save(recommender, saved):
    (saved / ".metrics.json.01234567.tmp").write_text("{")
    recommender.save(saved, overwrite=True)
    assert not (saved / ".metrics.json.01234567.tmp").exists()


def test_a_list_of_versions_removes_the_remains_of_killed_processes(saved):
    of_save = saved.with_name(".other.01234567.tmp")
    of_save.mkdir()
    of_measurement = saved / ".metrics.json.01234567.tmp"
    of_measurement.touch()
    of_user = saved.with_name(".notes.tmp")
    of_user.touch()
    assert list_versions(saved.parent)["version"].to_list() == [saved.name]
    assert not of_save.exists()
    assert not of_measurement.exists()
    assert of_user.exists()


def test_of_two_saves_at_once_the_second_is_an_error(
    recommender, tmp_path, monkeypatch
):
    other, to_json = (
        Recommender(Popular()).fit(make_ratings()),
        recsys.saving.model_file.to_json,
    )

    def save_other_first(manifest):
        monkeypatch.setattr("recsys.saving.model_file.to_json", to_json)
        other.save(tmp_path / "model")
        return to_json(manifest)

    monkeypatch.setattr("recsys.saving.model_file.to_json", save_other_first)
    with pytest.raises(ModelFileError, match="another process has saved one there"):
        recommender.save(tmp_path / "model")
    assert Recommender.load(tmp_path / "model").model.name == "popular"
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_a_save_waits_for_an_update_in_progress(recommender, saved):
    order = []

    def save():
        recommender.save(saved, overwrite=True)
        order.append("saved")

    with exclusive(saved, lambda: None):
        thread = threading.Thread(target=save)
        thread.start()
        time.sleep(0.3)
        recommender.save(saved, overwrite=True)  # the update itself does not wait
        order.append("updated")
    thread.join()
    assert order == ["updated", "saved"]


def test_a_model_that_could_not_be_loaded_is_not_saved(tmp_path):
    class Mine(Popular):
        pass

    with pytest.raises(
        ModelFileError, match="A saved Mine could not be loaded again: its class"
    ):
        Recommender(Mine()).fit(make_ratings()).save(tmp_path / "m")
    assert list(tmp_path.iterdir()) == []


def test_a_parameter_that_json_cannot_hold_raises(tmp_path):
    recommender = Recommender("popular").fit(make_ratings())
    recommender.model.damping = object()
    with pytest.raises(
        DataError, match=r"model cannot be saved: <object .* is not a number or text"
    ):
        recommender.save(tmp_path / "m")
    assert list(tmp_path.iterdir()) == []


# Refusals


def rejected(path, message, **load):
    with pytest.raises(ModelFileError, match=message) as caught:
        Recommender.load(path, **load)
    text = str(caught.value)
    assert "\n" not in text
    assert text.endswith((".", "?"))


def test_a_missing_model(saved):
    rejected(
        saved.parent / "nothing",
        r"There is no saved model .*nothing; `recsys fit` makes one\.",
    )
    rejected(
        saved.parent / "modle",
        r"There is no saved model .*modle; did you mean .*model\?",
    )
    rejected(saved.parent / "not" / "there", "There is no saved model")


def test_whole_numbers_are_a_range_as_well(saved, recommender):
    def change(document):
        document["training"] |= {"rating_min": 1, "rating_max": 5}

    edit_manifest(saved, change)
    training = read_manifest(saved).training
    assert (training["rating_min"], training["rating_max"]) == (1, 5)
    loaded = Recommender.load(saved)
    user = loaded.ratings.users.values[0]
    pairs = pl.DataFrame({"user": [user], "item": [loaded.ratings.items.values[0]]})
    assert 1 <= loaded.predict(pairs)["prediction"][0] <= 5


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("evaluation.json", "it is a saved evaluation; see `recsys evaluate`"),
        ("split.json", "it is a saved split; fit its training part with `recsys fit`"),
    ],
)
def test_names_an_evaluation_or_a_split_in_place_of_a_model(tmp_path, name, reason):
    (tmp_path / name).write_text("{}")
    rejected(tmp_path, f"is not a saved model: {reason}")


def test_rejects_a_directory_without_model(saved, tmp_path):
    (tmp_path / "empty").mkdir()
    rejected(tmp_path / "empty", r"empty is not a saved model: it has no model\.json\.")
    rejected(
        saved / "model.json",
        "model.json is not a saved model: it is a file, and a saved model is",
    )
    (tmp_path / "empty" / "model.json").write_text('{"format": "keras"}')
    rejected(
        tmp_path / "empty", "empty is not a saved model: its model.json does not have"
    )
    assert format_of(tmp_path / "empty") == "keras"
    assert format_of(saved) == MODEL_FORMAT


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "\x00",
        '{"format": "recsys-model"',
        "[" * 100_000,
        b"\xff\xfe{}".decode("latin-1"),
    ],
)
def test_rejects_a_model_json_that_is_not_json(saved, text):
    (saved / "model.json").write_text(text, encoding="latin-1")
    rejected(saved, r"model is damaged: model.json is not valid JSON\.")


def test_rejects_a_model_json_that_is_not_an_object(saved):
    (saved / "model.json").write_text("[1]")
    rejected(saved, r"is damaged: model.json is not a JSON object\.")


def test_a_newer_format_says_which_version_reads_it(saved):
    newer = {
        "format_version": FORMAT_VERSION + 1,
        "package_version": "9.1.0",
        "files": "of another kind",
    }
    edit_manifest(saved, lambda document: document.update(newer))
    rejected(
        saved,
        r"was written by lowrank-recsys 9\.1\.0 with format version "
        rf"{FORMAT_VERSION + 1}, and this version of recsys reads "
        rf"{FORMAT_VERSION}; "
        r"install lowrank-recsys 9\.1\.0 or newer\.",
    )


def test_an_unknown_model(saved):
    edit_manifest(saved, lambda document: document.update(model="quantum"))
    rejected(
        saved,
        "is of the kind 'quantum', which this version of recsys does not know; it knows als,",
    )


@pytest.mark.parametrize(
    "key",
    [
        "format_version",
        "package_version",
        "model",
        "parameters",
        "training",
        "versions",
        "files",
    ],
)
@pytest.mark.parametrize("value", [None, 1.5, True, [], "missing"])
def test_entries_of_the_wrong_type(saved, key, value):
    def change(document):
        document[key] = value
        if value == "missing":
            del document[key]

    edit_manifest(saved, change)
    rejected(
        saved,
        r"is damaged: model.json: |is damaged: the checksum|format version|of the kind 'missing'",
    )


@pytest.mark.parametrize(
    ("key", "value"), [("implicit", 0), ("rating_min", None), ("rating_max", "5")]
)
def test_the_range_of_the_ratings_must_be_numbers(saved, key, value):
    edit_manifest(saved, lambda document: document["training"].update({key: value}))
    rejected(saved, f"is damaged: .*{key}")


@pytest.mark.parametrize(
    "name",
    [
        "../outside.npy",
        "/etc/passwd",
        "arrays/../../x.npy",
        "arrays/x/../y.npy",
        "arrays/x.pkl",
        "arrays\\x.npy",
        "arrays/.npy",
        "C:x.npy",
        "model.json",
        "arrays/x.npy\n",
        "arrays/é.npy",
    ],
)
def test_names_that_lead_elsewhere(saved, name):
    def change(document):
        document["files"][name] = document["files"]["arrays/user_bias.npy"]

    edit_manifest(saved, change)
    rejected(saved, "is damaged: model.json: Expected `str` matching")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"sha256": "abc"}, "Expected `str` matching regex"),
        ({"sha256": 5}, "Expected `str`, got `int`"),
        ({"bytes": -1}, "Expected `int` >= 0"),
        (
            {"bytes": 10**9},
            r"arrays/user_bias.npy has 144 bytes instead of 1,000,000,000",
        ),
        ({"shape": [-4]}, "Expected `int` >= 0"),
        ({"shape": [4.5]}, "Expected `int`, got `float`"),
        ({"shape": None}, "Expected `array`, got `null`"),
        (
            {"shape": [2, 2]},
            r"must be of type <f4 and shape \(2, 2\), not <f4 and \(4,\)",
        ),
        ({"dtype": "<f8"}, r"must be of type <f8 and shape \(4,\), not <f4 and \(4,\)"),
    ],
)
def test_entries_of_files_that_are_wrong(saved, change, message):
    edit_manifest(
        saved, lambda document: document["files"]["arrays/user_bias.npy"].update(change)
    )
    rejected(saved, message)


def test_a_change_of_model_json_by_hand(saved):
    file = saved / "model.json"
    file.write_text(file.read_text().replace('"rating_max": 5.0', '"rating_max": 6.0'))
    rejected(saved, r"is damaged: the checksum of model.json is wrong\.")


@pytest.mark.parametrize("name", ARRAYS + TABLES)
def test_files_that_are_missing_or_of_another_size(saved, name):
    contents = (saved / name).read_bytes()
    (saved / name).write_bytes(contents[:-1])
    rejected(saved, f"is damaged: {name} has .* bytes instead of {len(contents):,}")
    (saved / name).write_bytes(contents + b"x")
    rejected(saved, f"is damaged: {name} has .* bytes instead of {len(contents):,}")
    (saved / name).unlink()
    rejected(saved, f"is damaged: {name} is missing")
    (saved / name).mkdir()
    rejected(saved, f"is damaged: {name} is missing")


@pytest.mark.parametrize("name", ARRAYS + TABLES)
def test_files_that_model_json_does_not_list(saved, name):
    edit_manifest(saved, lambda document: document["files"].pop(name))
    short = name.removeprefix("arrays/").removesuffix(".npy")
    rejected(
        saved,
        f"is damaged: (model.json does not list {name}|.* needs an array '{short}'|.*values)",
    )


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_a_flipped_bit_anywhere_is_found(saved, data):
    files = sorted(file for file in saved.rglob("*") if file.is_file())
    file = data.draw(st.sampled_from(files))
    contents = file.read_bytes()
    place = data.draw(st.integers(0, len(contents) - 1))
    flipped = bytearray(contents)
    flipped[place] ^= 1 << data.draw(st.integers(0, 7))
    file.write_bytes(flipped)
    try:
        if file.name == "model.json" and _same_json(contents, flipped):
            Recommender.load(saved)
        else:
            rejected(saved, "damaged|is not a saved model|format version")
    finally:
        file.write_bytes(contents)


def _same_json(one, other):
    try:
        return json.loads(one) == json.loads(other)
    except ValueError:
        return False


def test_small_files_are_always_verified(saved):
    file = saved / "ratings" / "data.npy"
    contents = bytearray(file.read_bytes())
    contents[-1] ^= 1
    file.write_bytes(contents)
    rejected(saved, "the contents of ratings/data.npy have changed since it was saved")


def test_large_files_are_verified_on_request(saved, monkeypatch):
    monkeypatch.setattr("recsys.saving.arrays.VERIFIED", 150)
    file = saved / "arrays" / "item_factors.npy"  # 188 bytes
    contents = bytearray(file.read_bytes())
    contents[-1] ^= 1
    file.write_bytes(contents)
    Recommender.load(saved)
    rejected(
        saved, "the contents of arrays/item_factors.npy have changed since", verify=True
    )
    small = saved / "arrays" / "user_bias.npy"
    contents = bytearray(small.read_bytes())
    contents[-1] ^= 1
    small.write_bytes(contents)
    rejected(
        saved, "the contents of arrays/user_bias.npy have changed since it was saved"
    )


def replaced_at(monkeypatch, number, replace):
    """Call `replace` once, just before the array of this number is mapped."""
    mapped, count = recsys.saving.model_file.mapped, [0]

    def mapped_later(*args, **kwargs):
        count[0] += 1
        if count[0] == number:
            replace()
        return mapped(*args, **kwargs)

    monkeypatch.setattr("recsys.saving.model_file.mapped", mapped_later)


@pytest.fixture
def two(tmp_path):
    """Two models of the same shape, told by their mean."""
    for name, mean in (("a", 1.0), ("b", 2.0)):
        recommender = Recommender(Tiny()).fit(make_ratings())
        recommender.model.global_mean = mean
        recommender.model.item_bias = np.full(5, mean, np.float32)
        recommender.save(tmp_path / name)
    return tmp_path


def mean_of(model):
    assert (model.item_bias == model.global_mean).all()
    return model.global_mean


@pytest.mark.parametrize("number", [1, 3, 8])
def test_a_load_is_of_one_model_while_the_link_moves(two, monkeypatch, number):
    move_link(two / "latest", "a")
    replaced_at(monkeypatch, number, lambda: move_link(two / "latest", "b"))
    assert mean_of(Recommender.load(two / "latest").model) == 1.0
    assert mean_of(Recommender.load(two / "latest").model) == 2.0


@pytest.mark.parametrize("number", [1, 3, 8])
def test_a_load_is_of_one_model_while_the_directory_is_replaced(
    two, monkeypatch, number
):
    newer = Recommender.load(two / "b")
    replaced_at(monkeypatch, number, lambda: newer.save(two / "a", overwrite=True))
    assert mean_of(Recommender.load(two / "a").model) == 2.0  # the old files are gone


@pytest.mark.parametrize("number", [1, 3, 8])
def test_a_load_is_of_one_model_while_files_are_replaced(two, monkeypatch, number):
    replaced_at(
        monkeypatch,
        number,
        lambda: shutil.copytree(two / "b", two / "a", dirs_exist_ok=True),
    )
    assert mean_of(Recommender.load(two / "a").model) == 2.0


def test_a_model_that_never_stays_the_same_is_an_error(two, monkeypatch):
    def fail(*args, **kwargs):
        shutil.copytree(
            two / "b", two / "a", dirs_exist_ok=True, copy_function=shutil.copyfile
        )
        raise DamageError("one array is of another model")

    monkeypatch.setattr("recsys.saving.model_file.mapped", fail)
    monkeypatch.setattr("recsys.saving.model_file._PAUSE", 0)
    rejected(two / "a", "is damaged: one array is of another model")


@pytest.mark.parametrize("name", ["arrays", "arrays/item_bias.npy", "model.json"])
def test_links_in_a_model_are_not_followed(saved, tmp_path, name):
    elsewhere = tmp_path / "elsewhere"
    (saved / name).rename(elsewhere)
    (saved / name).symlink_to(elsewhere)
    rejected(saved, "links are not followed|arrays is not a directory")
    assert lists_of_known_users(saved, ["ann"], 2) is None


@pytest.mark.parametrize("value", [np.inf, -np.inf, np.nan])
def test_arrays_that_are_not_finite(saved, value):
    replace_array(saved, "arrays/item_bias.npy", np.full(5, value, np.float32))
    rejected(saved, "is damaged: item_bias has values that are not finite")
    recommender = Recommender(Tiny()).fit(make_ratings())
    recommender.model.item_bias[2] = value
    with pytest.raises(DataError, match="item_bias has values that are not finite"):
        recommender.save(saved, overwrite=True)


def test_objects_are_never_unpickled(saved, tmp_path):
    mark = tmp_path / "executed"

    class Bomb:
        def __reduce__(self):
            return (os.mkdir, (str(mark),))

    bomb = np.array([Bomb()] * 4, dtype=object)
    np.save(saved / "arrays" / "user_bias.npy", bomb, allow_pickle=True)
    contents = (saved / "arrays" / "user_bias.npy").read_bytes()
    replace_file(saved, "arrays/user_bias.npy", contents, shape=[4])
    rejected(saved, "is damaged: arrays/user_bias.npy is not an array of numbers")
    replace_file(saved, "arrays/user_bias.npy", pickle.dumps(Bomb()))
    rejected(saved, "is damaged: arrays/user_bias.npy is not an array of numbers")
    assert not mark.exists()


@pytest.mark.parametrize(
    "contents",
    [
        b"",
        b"\x93NUMPY",
        b"PK\x03\x04",
        b"\x93NUMPY\x01\x00v\x00{'descr': __import__('os')}",
    ],
)
def test_rejects_arrays_of_other_formats(saved, contents):
    replace_file(saved, "arrays/user_bias.npy", contents)
    rejected(saved, "is damaged: arrays/user_bias.npy is not an array of numbers")


def test_arrays_of_text_or_of_another_type(saved):
    replace_array(saved, "arrays/user_bias.npy", np.array(["a", "b", "c", "d"]))
    rejected(saved, "is damaged: model.json: Expected `str` matching")
    replace_array(
        saved, "arrays/user_bias.npy", np.zeros(4), as_said=np.zeros(4, np.float32)
    )
    rejected(saved, r"must be of type <f4 and shape \(4,\), not <f8 and \(4,\)")


@pytest.mark.parametrize(
    ("name", "array", "message"),
    [
        (
            "arrays/item_factors.npy",
            np.zeros((5, 2), np.float32),
            r"must have shape \(n_items, k\)",
        ),
        ("arrays/item_bias.npy", np.zeros(9, np.float32), "must have shape"),
        (
            "ratings/indptr.npy",
            np.array([0, 2, 1, 4, 5]),
            "ratings/indptr does not rise from 0",
        ),
        (
            "ratings/indptr.npy",
            np.array([1, 2, 3, 4, 5]),
            "ratings/indptr does not rise from 0",
        ),
        (
            "ratings/indptr.npy",
            np.zeros(0, np.int64),
            "ratings/indptr does not rise from 0",
        ),
        ("ratings/indptr.npy", np.array([0, 5]), "ratings/indptr has 2 row starts"),
        ("ratings/data.npy", np.zeros(5), "data must be uint8 or float32 of shape"),
        ("ratings/data.npy", np.zeros(5, np.float32), "levels must be given if"),
        ("ratings/levels.npy", np.ones(9), "levels must be a one-dimensional float32"),
        (
            "ratings/indices.npy",
            np.zeros(4, np.int32),
            "ratings/indptr does not end at",
        ),
    ],
)
def test_arrays_that_do_not_agree(saved, name, array, message):
    replace_array(saved, name, array)
    rejected(saved, f"is damaged: .*{message}")


@pytest.mark.parametrize(
    ("array", "message"),
    [
        (np.array([20, 10, 30, 40, 50]), "the item ids are not in order"),
        (np.array([10, 10, 30, 40, 50]), "the item ids are not in order"),
        (np.array([1.5, 2, 3, 4, 5]), "the items have no column of ids"),
        (np.array([True] * 5), "the items have no column of ids"),
        (np.arange(10).reshape(5, 2), "items/0 is not a column"),
        (np.array([10, 20]), r"the model is of shape \(4, 5\), not \(4, 2\)"),
    ],
)
def test_rejects_damaged_ids(saved, array, message):
    replace_array(saved, "items/0.npy", array)
    rejected(saved, f"is damaged: {message}")


@pytest.mark.parametrize(
    ("name", "array", "message"),
    [
        ("users/0_bytes", np.frombuffer(b"Zo\xff\xfeannbobcy", np.uint8), "utf-?8"),
        ("users/0_bytes", np.zeros(3, np.uint8), "users/0_offsets does not end at"),
        (
            "users/0_offsets",
            np.array([0, 3, 2, 6, 12]),
            "users/0_offsets does not rise from 0",
        ),
        (
            "users/0_offsets",
            np.array([0, 3, 6, 8, 10**12]),
            "does not end at the number",
        ),
        (
            "users/0_offsets",
            np.array([0, 3, 6, 8, 12], np.int32),
            "users/0 is not text",
        ),
        ("item_table/3_ends", np.array([9, 9]), "item_table/3_ends does not end at"),
    ],
)
def test_texts_that_would_lead_out_of_memory(saved, name, array, message):
    replace_array(saved, f"{name}.npy", array)
    rejected(saved, f"is damaged: .*{message}")


def test_metadata_of_every_type_come_back(tmp_path):
    moment = datetime(2001, 2, 3, 4, 5)
    columns = {
        "item": [1, 2, 3, 9],
        "title": ["Up", None, "", "Unrated"],
        "genres": [["a", "b"], None, [], ["c"]],
        "seen": [True, None, False, True],
        "length": pl.Series([1, None, 3, 7], dtype=pl.UInt8),
        "share": [0.5, None, float("nan"), 1.0],
        "day": [date(2001, 2, 3), None, date(1, 1, 1), date(2001, 2, 3)],
        "moment": [moment, None, None, moment],
        "odd name/..": ["x", "é", "\0", "é"],
    }
    info = pl.DataFrame(columns)
    pairs = pl.DataFrame({"user": ["a", "b", " c "], "item": [1, 2, 3]})
    Recommender("popular").fit(Ratings.from_frame(pairs, item_table=info)).save(
        tmp_path / "m"
    )
    loaded = Recommender.load(tmp_path / "m").ratings
    assert loaded.item_table.frame.rows() == [
        (1, "Up", ["a", "b"], True, 1, 0.5, date(2001, 2, 3), moment, "x"),
        (2, None, None, None, None, None, None, None, "é"),
        (3, None, [], False, 3, None, date(1, 1, 1), None, "\0"),
        (9, "Unrated", ["c"], True, 7, 1.0, date(2001, 2, 3), moment, "é"),
    ]
    assert [*loaded.item_table.kinds.values()] == [
        *("text", "list", "boolean", "number", "number", "date", "date", "category")
    ]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"kind": "list"}, r"column 'year' has Int64 values; they cannot be of 'list'"),
        ({"kind": None}, r"column 'year' has Int64 values; they cannot be of None"),
        ({"kind": "blob"}, r"model\.json: Invalid enum value 'blob'"),
        ({"name": "title"}, "column with name 'title' has more than one occurrence"),
    ],
)
def test_columns_of_tables_that_are_not_of_their_kind(saved, change, message):
    edit_manifest(
        saved, lambda document: document["columns"]["item_table"][2].update(change)
    )
    rejected(saved, f"is damaged: .*{message}")


@pytest.mark.parametrize(
    ("frame", "kinds", "message"),
    [
        ({"thing": [1]}, {}, "needs kinds of the columns"),
        ({"item": [1], "a": [1]}, {}, r"needs kinds of the columns \['a'\]"),
        ({"item": [1, None]}, {}, "needs distinct ids"),
        ({"item": [1.5]}, {}, "needs distinct ids"),
        ({"item": [1], "a": [[1]]}, {"a": "list"}, "they cannot be of 'list'"),
        ({"item": [1], "a": ["x"]}, {"a": "thing"}, "they cannot be of 'thing'"),
    ],
)
def test_tables_that_are_not_of_items(frame, kinds, message):
    with pytest.raises(DamageError, match=message):
        check_features(pl.DataFrame(frame), "item", kinds)


def test_ids_of_tables_that_are_there_twice(saved):
    replace_array(saved, "item_table/0.npy", np.array([50, 50]))
    rejected(saved, "is damaged: a table of items needs distinct ids")


def test_parameters_that_the_model_does_not_have(tmp_path):
    for model in (Bias(), Popular()):
        Recommender(model).fit(make_ratings()).save(tmp_path / model.name)
    edit_manifest(
        tmp_path / "bias", lambda document: document["parameters"].update(evil=1)
    )
    rejected(tmp_path / "bias", "is damaged: .*unexpected keyword argument 'evil'")
    edit_manifest(
        tmp_path / "popular", lambda document: document["parameters"].update(damping=-1)
    )
    rejected(tmp_path / "popular", "is damaged: damping must be at least 0; got -1")
    edit_manifest(
        tmp_path / "popular",
        lambda document: document["parameters"].update(damping="2"),
    )
    rejected(tmp_path / "popular", "is damaged: damping must be a number; got '2'")


@pytest.mark.parametrize(
    ("name", "array", "message"),
    [
        (
            "arrays/user_bias.npy",
            np.zeros(4),
            "'user_bias' must be of type float32; got <f8",
        ),
        (
            "arrays/user_bias.npy",
            np.zeros(4, ">f4"),
            "model.json: Expected `str` matching",
        ),
        (
            "arrays/global_mean.npy",
            np.array(True),
            "'global_mean' must be of type float; got |b1",
        ),
        (
            "ratings/indices.npy",
            np.array([0, 1, 2, 3, 5], "i4"),
            "ratings/indptr have columns that do not exist",
        ),
        (
            "ratings/indices.npy",
            np.array([0, 1, 2, 3, -1], "i4"),
            "ratings/indptr have columns that do not exist",
        ),
        (
            "ratings/levels.npy",
            np.full(9, np.nan, "f4"),
            "ratings/levels has values that are not finite",
        ),
        (
            "ratings/data.npy",
            np.full(5, 77, np.uint8),
            "ratings/data has codes beyond the",
        ),
        ("ratings/indptr.npy", np.array(5), "ratings/indptr does not rise from 0"),
    ],
)
def test_arrays_that_kernels_would_believe(saved, name, array, message):
    replace_array(saved, name, array)
    with pytest.raises(ModelFileError, match=f"is damaged: .*{re.escape(message)}"):
        Recommender.load(saved)


@pytest.mark.parametrize(
    ("model", "name"),
    [
        ("popular", "ratings/indices"),
        ("spectral", "arrays/weight_places"),
        ("sparse-ease", "arrays/weight_places"),
        ("next", "arrays/weight_items"),
        ("implicit-knn", "arrays/neighbor_items"),
    ],
)
@pytest.mark.parametrize("change", ["reversed", "repeated"])
def test_rejects_rows_that_are_not_in_the_order_of_columns(
    tmp_path, model, name, change
):
    """Searches in rows would miss entries: lists and predictions would differ."""
    pairs = [
        (user, item) for user in range(30) for item in range(20) if user * item % 4
    ]
    frame = pl.DataFrame(pairs, ["user", "item"], orient="row")
    frame = frame.with_columns(timestamp=pl.int_range(pl.len()) + 1_600_000_000)
    fitted = Recommender(model).fit(Ratings.from_frame(frame))
    fitted.save(tmp_path / "model")
    array = np.load(tmp_path / "model" / f"{name}.npy")
    indptr = np.load(tmp_path / "model" / f"{re.sub('[a-z]+$', 'indptr', name)}.npy")
    for start, end in pairwise(indptr):
        row = array[start:end]
        row[:] = row[::-1] if change == "reversed" else row.min(initial=0)
    replace_array(tmp_path / "model", f"{name}.npy", array)
    rejected(tmp_path / "model", "is damaged: .* not in the order of columns")


@pytest.mark.parametrize(
    ("name", "dtype"),
    [("indices", "i8"), ("indices", "f8"), ("indptr", "i4"), ("indptr", "f8")],
)
def test_rejects_other_types_of_ratings_by_every_door(saved, name, dtype):
    array = np.load(saved / f"ratings/{name}.npy").astype(dtype)
    replace_array(saved, f"ratings/{name}.npy", array)
    message = "is damaged: ratings/indptr must be int64, and its entries int32; got"
    rejected(saved, message)
    assert lists_of_known_users(saved, ["ann"], 2) is None


def test_an_array_in_the_order_of_columns_is_taken(recommender, saved):
    array = np.asfortranarray(recommender.model.item_factors)
    replace_array(saved, "arrays/item_factors.npy", array)
    loaded = Recommender.load(saved).model
    assert loaded.item_factors.flags.c_contiguous
    np.testing.assert_array_equal(loaded.item_factors, array)


def test_names_a_file_that_cannot_be_read(saved, monkeypatch):
    def fail(*args, **kwargs):
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr("recsys.saving.arrays.open_memmap", fail)
    rejected(saved, r"The saved model .*model cannot be read: Permission denied\.")


def test_all_rejections_are_errors_of_this_package():
    assert issubclass(ModelFileError, RecsysError)
    assert issubclass(ModelFileError, ValueError)


def test_loading_and_recommending_imports_no_scipy(tmp_path):
    Recommender("bias").fit(make_ratings()).save(tmp_path / "m")
    code = (
        "import sys; from recsys.recommender import Recommender; "
        f"Recommender.load({str(tmp_path / 'm')!r}).recommend('ann'); "
        "heavy = {'scipy', 'pandas', 'sklearn', 'implicit', 'rich', 'matplotlib', 'pyarrow'}; "
        "print(sorted(heavy & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"


def test_a_process_without_standard_error_answers(tmp_path):
    Recommender("bias").fit(make_ratings()).save(tmp_path / "m")
    code = (
        "from recsys import Recommender; "
        f"print(Recommender.load({str(tmp_path / 'm')!r}).recommend('ann', n=1).height)"
    )
    line = f'exec "{sys.executable}" -c "{code}" 2>&-'
    done = subprocess.run(
        ["sh", "-c", line], stdout=subprocess.PIPE, text=True, timeout=60
    )
    assert done.stdout == "1\n"


@pytest.mark.skipif(os.name == "nt", reason="Windows does not flush directories")
def test_a_failing_flush_of_the_directory_says_that_the_model_is_in_place(
    recommender, tmp_path, monkeypatch
):
    flush = os.fsync

    def failing(descriptor):
        if os.path.samestat(os.fstat(descriptor), tmp_path.stat()):
            raise OSError(errno.EIO, "Input/output error")
        flush(descriptor)

    monkeypatch.setattr(os, "fsync", failing)
    with pytest.raises(DataError, match="m is written, but a power failure may lose"):
        recommender.save(tmp_path / "m")
    assert Recommender.load(tmp_path / "m").model.name == recommender.model.name


# Features


@pytest.fixture(scope="module")
def featured():
    """Ratings with features of every form on both sides."""
    rng = np.random.default_rng(0)
    n = 30
    words = np.array(
        ["red", "green", "blue", "deep", "dark", "sea", "night", "day", "wind", "rain"]
    )
    films = pl.DataFrame(
        {
            "item": np.arange(n),
            "name": [f"Film {k}" for k in range(n)],
            "price": [None if k == 3 else float(k) for k in range(n)],
            "genres": [["War", "Art"][: 1 + k % 2] for k in range(n)],
            "since": [date(1990 + k, 1 + k % 12, 3) for k in range(n)],
            "plot": [" ".join(rng.choice(words, 6)) for _ in range(n)],
        }
    )
    people = pl.DataFrame({"user": [1, 2, 3, 9], "job": ["a", "b", "a", "b"]})
    rows = pl.DataFrame(
        {
            "user": rng.integers(1, 5, 80),
            "item": rng.integers(0, n, 80),
            "rating": rng.random(80),
        }
    )
    return Ratings.from_frame(rows, item_table=films, user_table=people)


@pytest.fixture(scope="module")
def fitted_to_features(featured):
    """Return a recommender of a model, fitted once, which no test changes."""
    options = {
        "blend": {"members": "spectral,ease", "weights": "1,1"},
        "ials": {"regularization": 0.01, "unobserved_weight": 0.1},
    }

    ratings = with_features(featured)

    @cache
    def fit(name):
        return Recommender(name, **options.get(name, {})).fit(ratings)

    return fit


@pytest.fixture(scope="module")
def wider_axis(featured):
    """Return a function that returns users or items with one more feature."""

    @cache
    def widened(side):
        axis = featured.axis(side)
        wider = axis.table.frame.with_columns(size=pl.col(side).cast(pl.Float64))
        others = featured.with_axes(replace(axis, table=Features.of(wider, side)))
        return with_features(others).axis(side)

    return widened


@pytest.mark.covering(1)
@pytest.mark.parametrize("side", ["user", "item"])
@pytest.mark.parametrize(
    "name", ["als", "bayes", "ials", "ease", "sparse-ease", "spectral", "blend"]
)
def test_rejects_features_of_another_number_than_the_model_has(
    featured, fitted_to_features, wider_axis, name, side, tmp_path
):
    fitted = fitted_to_features(name)
    axis = featured.axis(side)
    ratings = fitted.ratings.with_axes(wider_axis(side))
    without = fitted.ratings.with_axes(Axis(axis.ids, axis.table))
    for number, other in enumerate([ratings, without]):
        save_model(replace(fitted.fitted, ratings=other), tmp_path / str(number))
        message = rf"the model has \d+ features of {side}s instead of \d+"
        rejected(tmp_path / str(number), message)


@pytest.mark.parametrize("texts", ["terms", "vectors"])
def test_features_come_back(featured, texts, tmp_path):
    ratings = with_features(featured, texts=texts)
    fitted = Recommender("als", factors=2, iterations=3).fit(ratings)
    fitted.save(tmp_path / "m")
    loaded = Recommender.load(tmp_path / "m")
    for side in ("item", "user"):
        before, after = (
            getattr(each, f"{side}_features") for each in (ratings, loaded.ratings)
        )
        assert (before.matrix != after.matrix).nnz == 0
        assert after.matrix.dtype == np.float32
        assert (before.names, before.groups) == (after.names, after.groups)
        table, ids = getattr(ratings, f"{side}_table"), Ids([3, 9, 77], side)
        same = [each.encoder.transform(table, ids).matrix for each in (before, after)]
        np.testing.assert_array_equal(same[0].toarray(), same[1].toarray())
        assert same[0].nnz
    assert loaded.recommend().equals(fitted.recommend())
    again = tmp_path / "again"
    loaded.save(again)
    assert (
        Recommender.load(again).ratings.item_features.names
        == ratings.item_features.names
    )


@pytest.fixture(scope="module")
def original_with_blocks(featured, tmp_path_factory):
    path = tmp_path_factory.mktemp("blocks") / "model"
    Recommender("popular").fit(with_features(featured, texts="vectors")).save(path)
    return path


@pytest.fixture
def with_blocks(original_with_blocks, tmp_path):
    """Return the path of a copy, which a test may change."""
    return shutil.copytree(original_with_blocks, tmp_path / "model")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"scale": 0}, r"Expected `float` > 0"),
        ({"form": "code"}, "Invalid enum value 'code'"),
        ({"n_levels": 5}, "do not fit|do not increase"),
        ({"column": "price"}, "do not fit the table of their levels"),
    ],
)
def test_blocks_of_features_that_do_not_agree(with_blocks, change, message):
    edit_manifest(
        with_blocks, lambda document: document["features"]["item"][1].update(change)
    )
    rejected(with_blocks, f"is damaged: .*({message})")


@pytest.mark.parametrize(
    ("name", "array", "message"),
    [
        ("item_features/indices", lambda a: a + 1000, "have columns that do not exist"),
        (
            "item_features/indptr",
            lambda a: a[:-1],
            "does not end at|are not a matrix of",
        ),
        (
            "item_features/data",
            lambda a: a.astype(np.float64),
            "are not a matrix of 29 rows",
        ),
        (
            "item_features/data",
            lambda a: np.full_like(a, np.nan),
            "values that are not finite",
        ),
        ("item_features/components_3", lambda a: a[:, :-1], "do not fit its words"),
        (
            "item_features/components_3",
            lambda a: np.full_like(a, np.inf),
            "values that are not finite",
        ),
        (
            "item_levels/1",
            lambda a: np.full_like(a, np.nan),
            "The knots of 'price' do not increase",
        ),
        ("item_levels/1", lambda a: np.append(a[:-1], np.inf), "are not all finite"),
    ],
)
def test_arrays_of_features_that_do_not_agree(with_blocks, name, array, message):
    changed = array(np.load(with_blocks / f"{name}.npy"))
    replace_array(with_blocks, f"{name}.npy", changed)
    rejected(with_blocks, f"is damaged: .*({message})")


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("arrays/item_bias", lambda array: array[:-1]),
        ("arrays/user_bias", lambda array: array[:1]),
        ("arrays/user_factors", lambda array: array[:, :-1]),
        ("arrays/user_factors", lambda array: array.astype(np.float64)),
        ("ratings/indices", lambda array: array + np.int32(10**6)),
        ("ratings/indices", lambda array: array - np.int32(10**6)),
        ("ratings/indptr", lambda array: array - 5),
        ("ratings/indptr", lambda array: array + 10**12),
        ("items/0", lambda array: array.astype(np.float64)),
    ],
)
def test_arrays_that_do_not_agree_raise(tmp_path, name, change):
    saved = tmp_path / "model"
    Recommender("als", factors=2, iterations=2).fit(make_ratings()).save(saved)
    assert lists_of_known_users(saved, ["ann"], 3) is not None
    replace_array(saved, f"{name}.npy", change(np.load(saved / f"{name}.npy")))
    assert lists_of_known_users(saved, ["ann"], 3) is None
    with pytest.raises(ModelFileError):
        Recommender.load(saved)


def test_rejects_positions_of_users_that_differ_from_the_histories(featured, tmp_path):
    ratings = with_features(featured, texts="vectors")
    Recommender("spectral", factors=3).fit(ratings).save(tmp_path / "m")
    name = "profiles_users_positions.npy"
    positions = np.load(tmp_path / "m" / "arrays" / name)
    replace_array(tmp_path / "m", f"arrays/{name}", positions[:-1])
    rejected(
        tmp_path / "m",
        r"is damaged: The array 'profiles_users_positions' must have shape \(n_users, ",
    )


@pytest.fixture(scope="module")
def doors():
    """All functions that take a path of what is saved."""
    recommender = Recommender("popular").fit(make_ratings())
    split = recsys.random_split(recommender.ratings, 0.4)
    evaluation = recsys.evaluate("popular", split, resamples=0, new="keep")
    return (
        Recommender.load,
        recsys.Evaluation.load,
        recsys.read_split,
        recsys.LSI.load,
        recommender.save,
        evaluation.save,
        partial(recsys.save_split, split),
    )


@pytest.mark.parametrize("path", [5, None, ["model"], b"model"])
def test_rejects_a_path_that_is_not_a_path(doors, path):
    for door in doors:
        with pytest.raises(DataError, match="A path must be a text or a Path; got "):
            door(path)
