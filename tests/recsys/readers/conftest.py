"""Files of ratings in a temporary directory."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from recsys.readers import Loaded, read_ratings

Read = Callable[..., Loaded]


@pytest.fixture
def read(tmp_path: Path) -> Read:
    """Write content to a file and read it as ratings."""

    def write_and_read(
        content: str | bytes, name: str = "ratings.csv", **options: object
    ) -> Loaded:
        raw = content if isinstance(content, bytes) else content.encode()
        (tmp_path / name).write_bytes(raw)
        return read_ratings(tmp_path / name, **options)  # type: ignore[arg-type]

    return write_and_read
