"""Models, indexes and studies made to do harm: arrays that lie, and files that are something else.

Everything here has sizes and checksums that fit, as somebody would make it who means it.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import polars as pl
import pytest
from fuzz.mutants import enter, enter_file
from hypothesis import given
from hypothesis import strategies as st

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
MODELS = ("als", "bias")


@pytest.fixture(scope="module")
def wholes(tmp_path_factory):
    place = tmp_path_factory.mktemp("wholes")
    for name in MODELS:
        Recommender(name).fit(Ratings.from_frame(FRAME)).save(place / name)
    LSI(3).fit(TEXTS).save(place / "lsi")
    return place


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
