"""Files of ratings in a temporary directory."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from recsys.data.ratings import Ratings
from recsys.readers import read_ratings

Read = Callable[..., Ratings]


@pytest.fixture
def read(tmp_path: Path) -> Read:
    """Write content to a file and read it as ratings."""

    def write_and_read(
        content: str | bytes, name: str = "ratings.csv", **options: object
    ) -> Ratings:
        raw = content if isinstance(content, bytes) else content.encode()
        (tmp_path / name).write_bytes(raw)
        return read_ratings(tmp_path / name, **options)  # type: ignore[arg-type]

    return write_and_read
