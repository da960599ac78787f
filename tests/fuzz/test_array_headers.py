"""Headers of arrays that lie about type, shape, order, version or size of the data.

NumPy maps a header with a type of zero bytes by dividing by zero, which ends the process.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from itertools import product

import numpy as np
import polars as pl
import pytest

import recsys.saving.model_file
from recsys import Ratings, Recommender
from recsys.errors import ModelFileError
from recsys.lsi import LSI

TYPES = (
    *(
        "'<f4'",
        "'>f4'",
        "'<f8'",
        "'<i4'",
        "'|S0'",
        "'|V0'",
        "'<U0'",
        "'|O'",
        "'|b4'",
        "'<f1'",
    ),
    *("[('a', '<f4')]", "('<f4', (0,))"),
)
N_ITEMS = 6
SHAPES = (
    *("(6,)", "()", "(0,)", "(-1,)", "(6, 1)", "(6,) * 9", "(1000000000000000000, 0)"),
    *("(4294967296, 4294967296)", "(18446744073709551616,)", "(True,)"),
)
ORDERS = ("False", "True", "1")
VERSIONS = ((1, 0), (2, 0), (3, 0), (0, 0))
SIZES = (N_ITEMS * 4, 0, 7, 4096)
FORMS = ("als", "lsi")


def array_file(dtype, shape, order, version, size):
    header = f"{{'descr': {dtype}, 'fortran_order': {order}, 'shape': {shape}, }}"
    length = 2 if version[0] < 2 else 4
    text = header.encode().ljust(127 - 8 - length) + b"\n"
    data = np.arange(N_ITEMS, dtype="<f4").tobytes().ljust(size, b"\x3f")[:size]
    return (
        b"\x93NUMPY"
        + bytes(version)
        + len(text).to_bytes(length, "little")
        + text
        + data
    )


def entered(document, name, content, **fields):
    """Return model.json with another file, whose size and checksum agree."""
    sha256 = hashlib.sha256(content).hexdigest()
    entry = document["files"][name] | {"sha256": sha256, "bytes": len(content)} | fields
    changed = document | {"files": document["files"] | {name: entry}}
    return json.dumps(
        changed | {"checksum": recsys.saving.model_file.checksum(changed)}
    )


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    parent = tmp_path_factory.mktemp("models")
    pairs = {
        "user": [0, 1, 2, 3, 0, 1],
        "item": range(N_ITEMS),
        "rating": [1.0, 2, 3, 4, 5, 4],
    }
    Recommender("als", factors=2).fit(Ratings.from_frame(pl.DataFrame(pairs))).save(
        parent / "als"
    )
    LSI(2).fit(["salt and ice", "ice and water", "cats and mice"]).save(parent / "lsi")
    return parent


def headers():
    """Return types, shapes, orders and versions, in which any two meet.

    With RECSYS_FUZZ_EXAMPLES, all four meet: 2,160 headers for each form of model.
    """
    if "RECSYS_FUZZ_EXAMPLES" in os.environ:
        return list(product(TYPES, SHAPES, ORDERS, VERSIONS))
    ends = list(product(ORDERS, VERSIONS))
    right = [(TYPES[0], SHAPES[0], *end) for end in ends]
    return right + [
        # 5 and 12 have no common divisor, so that a type and a shape each meet all ends.
        (dtype, shape, *ends[(number + 5 * place) % len(ends)])
        for number, dtype in enumerate(TYPES)
        for place, shape in enumerate(SHAPES)
    ]


@pytest.mark.parametrize("form", FORMS)
def test_headers_are_compared_before_arrays_are_mapped(
    saved, tmp_path, form, fuzz_count
):
    name = {"als": "arrays/item_bias.npy", "lsi": "arrays/singular_values.npy"}[form]
    load = {"als": Recommender.load, "lsi": LSI.load}[form]
    model = shutil.copytree(saved / form, tmp_path / form)
    document = json.loads((model / "model.json").read_bytes())
    for dtype, shape, order, version in headers():
        sizes = SIZES if dtype in ("'<f4'", "'|S0'") else SIZES[:1]
        for size in sizes:
            content = array_file(dtype, shape, order, version, size)
            (model / name).write_bytes(content)
            (model / "model.json").write_text(entered(document, name, content))
            is_right = (dtype, shape, size) == ("'<f4'", "(6,)", SIZES[0])
            is_right &= form == "als" and order != "1" and version != (0, 0)
            if is_right:
                assert load(model).model.item_bias.tolist() == [*range(N_ITEMS)]
                fuzz_count["loaded"] += 1
            else:
                with pytest.raises(ModelFileError, match="is damaged"):
                    load(model)
                fuzz_count["rejected"] += 1
    assert sum(fuzz_count.values()) >= 200
    assert fuzz_count["loaded"] >= (6 if form == "als" else 0)


@pytest.mark.parametrize(
    ("dtype", "declared"),
    [
        ("'|S0'", "|S0"),
        ("'<f1'", "<f1"),
        ("'|b4'", "|b4"),
        ("'>f4'", ">f4"),
        ("'<f8'", "<f8"),
    ],
)
@pytest.mark.parametrize("shape", [[6], [0], [2**62, 4], [-1], [6, 0, 2**70]])
def test_model_json_that_lies_like_the_header(saved, tmp_path, dtype, declared, shape):
    model = shutil.copytree(saved / "als", tmp_path / "als")
    document = json.loads((model / "model.json").read_bytes())
    text = f"({', '.join(map(str, shape))}{',' * (len(shape) == 1)})"
    content = array_file(dtype, text, "False", (1, 0), 24)
    (model / "arrays" / "item_bias.npy").write_bytes(content)
    changed = entered(
        document, "arrays/item_bias.npy", content, dtype=declared, shape=shape
    )
    (model / "model.json").write_text(changed)
    with pytest.raises(ModelFileError, match="is damaged"):
        Recommender.load(model)
