"""A small text of everyday things, and an index of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from recsys.lsi import LSI


@pytest.fixture(scope="session")
def everyday() -> list[str]:
    """Paragraphs on a hospital, a kitchen, notebooks and Batman."""
    return (
        (Path(__file__).parent / "everyday.txt")
        .read_text(encoding="utf-8")
        .splitlines()
    )


@pytest.fixture
def index(everyday: list[str]) -> LSI:
    return LSI(5, method="lsi", stop_words="english").fit(everyday)
