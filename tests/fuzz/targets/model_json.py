"""Bytes as the model.json of a model: a model that can be used, or an error."""

from __future__ import annotations

import json
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path

from numpy.linalg import LinAlgError
from saved.write import SAVED

import recsys.saving.model_file
from recsys import Recommender
from recsys.errors import RecsysError
from recsys.saving.versions import list_versions

NAMES = ("bias", "popular", "next", "als")
SEEDS = [(SAVED / name / "model.json").read_bytes() for name in NAMES]
FOLDER = Path(tempfile.mkdtemp(prefix="fuzz-"))
for _name in NAMES:
    shutil.copytree(SAVED / _name, FOLDER / _name)


def attempt(data: bytes) -> None:
    """Load each model with this document, whose checksum fits."""
    with suppress(ValueError, RecursionError, TypeError, AttributeError):
        document = json.loads(data)
        document["checksum"] = recsys.saving.model_file.checksum(document)
        data = json.dumps(document).encode()
    name = next((n for n in NAMES if f'"{n}"'.encode() in data), NAMES[0])
    (FOLDER / name / "model.json").write_bytes(data)
    with suppress(RecsysError):
        list_versions(FOLDER)
    try:
        recommender = Recommender.load(FOLDER / name)
        recommender.recommend(recommender.ratings.users.values[0], n=2)
    except (RecsysError, LinAlgError):
        pass
    finally:
        shutil.copy(SAVED / name / "model.json", FOLDER / name)
