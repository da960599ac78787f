"""Saved models with damaged files: rejected in one sentence, even if the checksums fit."""

from __future__ import annotations

import hashlib
import json
import shutil

import polars as pl
from hypothesis import given
from hypothesis import strategies as st

import recsys.saving.model_file
from recsys import Ratings, Recommender
from recsys.errors import ModelFileError, UnknownIdError


def _make_fit(model, name):
    """Enter size and checksum of a file in model.json, as somebody who means it would."""
    content = (model / name).read_bytes()
    document = json.loads((model / "model.json").read_bytes())
    sha256 = hashlib.sha256(content).hexdigest()
    document["files"][name].update(sha256=sha256, bytes=len(content))
    document["checksum"] = recsys.saving.model_file.checksum(document)
    (model / "model.json").write_text(json.dumps(document))


def test_damaged_models(tmp_path, budget, fuzz_count):
    frame = pl.DataFrame(
        {"user": [1, 1, 2, 3], "item": [5, 6, 6, 7], "rating": [1.0, 2, 3, 4]}
    )
    whole, model = tmp_path / "whole", tmp_path / "model"
    Recommender("als", factors=2).fit(Ratings.from_frame(frame)).save(whole)
    names = sorted(str(p.relative_to(whole)) for p in whole.rglob("*") if p.is_file())

    @budget(80)
    @given(
        st.sampled_from(names), st.integers(0, 4000), st.integers(1, 255), st.booleans()
    )
    def check(name, place, bits, cut):
        shutil.copytree(whole, model)
        try:
            content = bytearray((model / name).read_bytes())
            place %= len(content)
            content[place] ^= bits
            (model / name).write_bytes(content[:place] if cut else content)
            if name != "model.json":
                _make_fit(model, name)
            Recommender.load(model).recommend(1, n=2)
            fuzz_count["loaded"] += 1
        except (ModelFileError, UnknownIdError):  # an id may have become another
            fuzz_count["rejected"] += 1
        finally:
            shutil.rmtree(model)

    check()
