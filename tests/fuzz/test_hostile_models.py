"""Models, indexes and studies made to do harm: arrays that lie, and files that are something else.

Everything here has sizes and checksums that fit, as somebody would make it who means it.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import shutil
from contextlib import suppress
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.linalg import LinAlgError

import recsys.saving.model_file
from recsys import Ratings, Recommender
from recsys.errors import ModelFileError, RecsysError
from recsys.evaluation import tuning
from recsys.lsi import LSI

FRAME = pl.DataFrame(
    {
        "user": [user for user in range(15) for _ in range(8)],
        "item": [100 + (3 * user + 5 * n) % 17 for user in range(15) for n in range(8)],
        "rating": [1.0 + (user * n) % 5 for user in range(15) for n in range(8)],
    }
)
TEXTS = [
    "Salt melts ice.",
    "Ice floats on water.",
    "Cats chase mice.",
    "Mice eat salt.",
    "Water",
]
MODELS = (
    "als",
    "bias",
    "clusters",
    "ease",
    "popular",
    "random",
    "softimpute",
    "sparse-ease",
    "spectral",
)


@pytest.fixture(scope="module")
def wholes(tmp_path_factory):
    place = tmp_path_factory.mktemp("wholes")
    for name in MODELS:
        Recommender(name).fit(Ratings.from_frame(FRAME)).save(place / name)
    LSI(3).fit(TEXTS).save(place / "lsi")
    return place


def enter(saved, change):
    """Change model.json, and its checksum."""
    document = json.loads((saved / "model.json").read_bytes())
    change(document)
    document["checksum"] = recsys.saving.model_file.checksum(document)
    (saved / "model.json").write_text(json.dumps(document))


def enter_file(saved, name, **entry):
    content = (saved / name).read_bytes()
    known = {
        "sha256": hashlib.sha256(content).hexdigest(),
        "bytes": len(content),
    } | entry
    enter(saved, lambda document: document["files"][name].update(known))


def use(saved):
    """Load and use whatever is there, in every way."""
    if saved.name.startswith("lsi"):
        lsi = LSI.load(saved)
        lsi.query("salt ice")
        lsi.similar_terms("salt")
        lsi.add_documents(["Salt and mice"], method="fold-in")
        lsi.add_documents(["ice and cats", "new words"])
        return
    recommender = Recommender.load(saved)
    recommender.recommend([1, 2], n=5)
    recommender.predict(pl.DataFrame({"user": [1, 2], "item": [101, 102]}))
    for ask in (
        lambda: recommender.similar_items(101),
        lambda: recommender.similar_users(1),
        lambda: recommender.explain(1, 101),
        lambda: recommender.recommend(history={101: 3.0, 102: 1.0}),
        lambda: recommender.update(Ratings.from_frame(FRAME.head(5))),
        lambda: list(recommender.impute()),
    ):
        with suppress(RecsysError, LinAlgError):  # not every model can do everything
            ask()


def changed(array, kind, rng):
    """Return an array with other values, or of another type or shape."""
    array = np.array(array)
    if kind in ("one", "all"):
        values = (
            [0, 1, -1, 2**30, 2**31 - 1]
            if array.dtype.kind == "i"
            else [0, -1, 1e30, np.nan]
        )
        value = np.array(rng.choice(values)).astype(array.dtype)
        flat = array.reshape(-1)
        flat[
            rng.randrange(array.size) if kind == "one" and array.size else slice(None)
        ] = value
        return array
    others = {
        "shuffled": lambda: rng.sample(array.reshape(-1).tolist(), array.size),
        "swapped": lambda: array.astype(array.dtype.newbyteorder(">")),
        "float64": lambda: array.astype(np.float64),
        "float16": lambda: array.astype(np.float16),
        "int64": lambda: np.nan_to_num(array).astype(np.int64),
        "bool": lambda: array.astype(bool),
        "short": lambda: array.reshape(-1)[:-1] if array.ndim < 2 else array[:-1],
        "long": lambda: np.concatenate(
            [np.atleast_1d(array), np.atleast_1d(array)[:1]]
        ),
        "fortran": lambda: np.asfortranarray(array),
        "turned": lambda: array.T,
        "empty": lambda: array.reshape(-1)[:0],
        "scalar": lambda: array.reshape(-1)[:1].sum(),
        "deep": lambda: array[..., None],
    }
    other = others[kind]()
    if kind == "shuffled":
        return np.array(other, array.dtype).reshape(array.shape)
    return np.asarray(other)


KINDS = (
    *("one", "all", "shuffled", "swapped", "float64", "float16", "int64", "bool"),
    *("short", "long", "fortran", "turned", "empty", "scalar", "deep"),
)


@pytest.mark.filterwarnings("ignore")  # of sums that overflow
def test_arrays_that_lie(wholes, tmp_path, budget, fuzz_count):
    @budget(60)
    @given(
        st.sampled_from([*MODELS, "lsi"]), st.sampled_from(KINDS), st.integers(0, 2**32)
    )
    def check(model, kind, seed):
        rng, saved = random.Random(seed), tmp_path / model
        shutil.copytree(wholes / model, saved)
        name = rng.choice(
            sorted(str(each.relative_to(saved)) for each in saved.rglob("*.npy"))
        )
        array = changed(np.load(saved / name), kind, rng)
        np.save(saved / name, array)
        enter_file(saved, name, dtype=array.dtype.str, shape=list(array.shape))
        try:
            use(saved)
            fuzz_count["used"] += 1
        except RecsysError as error:
            assert "\n" not in str(error)  # noqa: PT017
            fuzz_count["rejected"] += 1
        except LinAlgError:  # the command says that the numbers are damaged
            fuzz_count["not computed"] += 1
        finally:
            shutil.rmtree(saved)

    check()


def rejected(saved, message):
    load = LSI.load if saved.name == "lsi" else Recommender.load
    with pytest.raises(ModelFileError, match=message) as caught:
        load(saved)
    assert "\n" not in str(caught.value)


@pytest.fixture(params=["als", "lsi"])
def saved(request, wholes, tmp_path):
    return shutil.copytree(wholes / request.param, tmp_path / request.param)


def header(text):
    """Return a file that begins as an array does, with a header of one's own."""
    body = text.encode().ljust(117) + b"\n"
    return b"\x93NUMPY\x01\x00" + len(body).to_bytes(2, "little") + body + bytes(64)


@pytest.mark.parametrize(
    ("text", "shape"),
    [
        ("{'descr': '<f4', 'fortran_order': False, 'shape': (10**18,)}", [10**18]),
        (
            "{'descr': '<f4', 'fortran_order': False, 'shape': (1000000000000000000,)}",
            [10**18],
        ),
        (
            "{'descr': '<f4', 'fortran_order': False, 'shape': (4294967296, 4294967296)}",
            [2**32] * 2,
        ),
        ("{'descr': '<f4', 'fortran_order': False, 'shape': (-1,)}", [1]),
        ("{'descr': '<f4', 'fortran_order': False, 'shape': (99999,)}", [99999]),
        ("{'descr': '|O', 'fortran_order': False, 'shape': (1,)}", [1]),
        ("{'descr': '<U9999', 'fortran_order': False, 'shape': (1,)}", [1]),
        ("{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (1,)}", [1]),
        ("{'descr': '<f4', 'fortran_order': 'x', 'shape': (1,)}", [1]),
        ("__import__('os').abort()", [1]),
        ("{" * 110, [1]),
    ],
)
def test_headers_that_lie(saved, text, shape):
    name = "arrays/item_factors.npy" if saved.name == "als" else "arrays/components.npy"
    (saved / name).write_bytes(header(text))
    enter_file(saved, name, dtype="<f4", shape=shape)
    rejected(saved, "is damaged: ")


@pytest.mark.parametrize(
    "name", ["../out.npy", "/etc/passwd", "arrays/../x.npy", "arrays/a/b.npy"]
)
def test_names_that_lead_out(saved, name):
    enter(
        saved,
        lambda document: document["files"].update(
            {name: {"sha256": "0" * 64, "bytes": 1}}
        ),
    )
    rejected(saved, r"is damaged: model.json: Expected `str` matching")


@pytest.mark.parametrize(
    "text",
    [
        b"[" * 100_000,
        b'{"a":' * 100_000,
        *(b'{"a":' * deep + b"1" + b"}" * deep for deep in (300, 900, 990, 2000)),
        b'{"format": "recsys-model", "format_version": ' + b"9" * 5000 + b"}",
        b'{"format": "recsys-model", "format_version": 1e400}',
        b'{"format": "recsys-model", "format_version": NaN}',
        b"\xff\xfe{}",
        b'"\\ud800"',
        b"null",
    ],
)
def test_model_json_that_is_strange(saved, text):
    (saved / "model.json").write_bytes(
        text.replace(b"-model", b"-lsi" * (saved.name == "lsi"))
    )
    rejected(saved, "is damaged|is not a saved")


@pytest.mark.parametrize(
    "value", [float("nan"), float("inf"), 10**400, "5", None, True]
)
def test_a_range_of_ratings_that_is_none(wholes, tmp_path, value):
    saved = shutil.copytree(wholes / "als", tmp_path / "als")
    enter(saved, lambda document: document["training"].update(rating_max=value))
    rejected(saved, "is damaged: .*rating_max|is damaged: model.json is not valid JSON")


def test_model_json_without_end(saved, monkeypatch):
    monkeypatch.setattr(recsys.saving.model_file, "LONGEST", 100)
    rejected(saved, "model.json has more than 100 bytes")


OTHERS = {
    "pipe": os.mkfifo,
    "zeros": lambda path: path.symlink_to("/dev/zero"),
    "loop": lambda path: path.symlink_to(path.name),
    "nowhere": lambda path: path.symlink_to("nowhere"),
    "folder": Path.mkdir,
}


@pytest.mark.parametrize("name", ["model.json", "a table", "arrays"])
@pytest.mark.parametrize("other", OTHERS)
def test_opens_only_regular_files(saved, name, other):
    table = "users/0.npy" if saved.name == "als" else "documents/0.npy"
    path = saved / (table if name == "a table" else name)
    shutil.rmtree(path) if path.is_dir() else path.unlink()
    OTHERS[other](path)
    rejected(saved, "is missing|has no model.json|cannot be read|is not a file")


def test_studies_that_were_changed(tmp_path, budget, fuzz_count):
    data, whole, place = (
        Ratings.from_frame(FRAME),
        tmp_path / "whole",
        tmp_path / "study",
    )
    tuning.tune("bias", data, trials=3, study=whole)
    text = whole.read_bytes()

    @budget(12)
    @given(st.integers(0, len(text) - 1), st.binary(min_size=1, max_size=3))
    def check(at, noise):
        place.write_bytes(text[:at] + noise + text[at + len(noise) :])
        try:
            tuning.tune("bias", data, trials=4, study=place)
            fuzz_count["went on"] += 1
        except RecsysError as error:
            assert "study" in str(error)  # noqa: PT017
            fuzz_count["rejected"] += 1

    check()


def test_a_study_of_pipes_is_not_opened(tmp_path):
    os.mkfifo(tmp_path / "study")
    with pytest.raises(RecsysError, match="study is not a file"):
        tuning.tune(
            "bias", Ratings.from_frame(FRAME), trials=1, study=tmp_path / "study"
        )
