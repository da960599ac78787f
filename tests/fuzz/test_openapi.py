"""Requests that schemathesis makes of the OpenAPI document: answers as the document says.

`make service` installs it, and makes more requests.
"""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path
from typing import Any

import psutil
import pytest
from hypothesis import HealthCheck, given, settings
from saved.write import SAVED
from serving import Command

schemathesis = pytest.importorskip("schemathesis")
checks = pytest.importorskip("schemathesis.specs.openapi.checks")

COUNT = int(os.environ.get("RECSYS_FUZZ_EXAMPLES", "20"))
MOST_MEMORY = 100  # MB


@pytest.mark.filterwarnings("ignore")
def test_answers_are_as_the_document_says(
    tmp_path: Path, fuzz_count: Counter[str]
) -> None:
    options = ["--index", SAVED / "index", "--events", tmp_path / "events"]
    options += ["--log", tmp_path / "log", "--model-b", SAVED / "next"]
    limit = settings(
        max_examples=COUNT,
        deadline=None,
        suppress_health_check=[*HealthCheck],
        database=None,
        derandomize=True,
    )
    with Command(SAVED / "als", *options) as service:
        process = psutil.Process(service.process.pid)
        address = f"http://127.0.0.1:{service.port}/openapi.json"
        document = schemathesis.openapi.from_url(address)
        operations = [result.ok() for result in document.get_all_operations()]
        # A schema cannot say which ids, conditions and sizes together a model has.
        excluded = [checks.positive_data_acceptance]
        before = 0
        for operation in operations:

            @limit
            @given(case=operation.as_strategy())
            def answered(case: Any) -> None:
                response = case.call_and_validate(excluded_checks=excluded)
                fuzz_count[str(response.status_code)] += 1

            answered()
            before = before or process.memory_info().rss
        growth = (process.memory_info().rss - before) / 2**20
    print(f"\n{len(operations)} operations; the service grew by {growth:.0f} MB")
    assert operations
    assert growth < MOST_MEMORY
