"""Changed saved folders and bytes from outside: an error, or something that works.

`make sanitize` tries thousands of changes with sanitizers, and `make fuzz` searches by coverage.
"""

from __future__ import annotations

import os
import random
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from fuzz.mutants import mutant
from fuzz.run import NAMES, changed, target

COUNT = int(os.environ.get("RECSYS_FUZZ_EXAMPLES", "30"))


@pytest.fixture(scope="module", autouse=True)
def closed_service() -> Iterator[None]:
    yield
    requests = sys.modules.pop("fuzz.targets.requests", None)
    if requests is not None:
        requests.close()


@pytest.mark.filterwarnings("ignore")  # of sums that overflow
def test_mutated_saved_folders(tmp_path: Path, fuzz_count) -> None:
    for number in range(COUNT):
        folder = tmp_path / str(number)
        folder.mkdir()
        outcome = mutant(number, folder)
        assert outcome != "rejected in lines", number
        fuzz_count[outcome] += 1


# What was found once, by number.
FOUND = (3030, 6072)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("number", FOUND)
def test_mutants_that_failed_once(number: int, tmp_path: Path) -> None:
    assert mutant(number, tmp_path) != "rejected in lines"


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", NAMES)
def test_bytes_from_outside(name: str, fuzz_count) -> None:
    module = target(name)
    rng = random.Random(name)
    for data in (*module.SEEDS, *getattr(module, "FOUND", ())):
        module.attempt(data)
    for _ in range(COUNT // 2):
        module.attempt(changed(module.SEEDS, rng))
        fuzz_count["tried"] += 1
