"""Headless Chromium from the system's packages, driven by Playwright, for tests of the page."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from playwright.sync_api import Browser

_NAMES = (
    "chromium",
    "chromium-browser",
    "google-chrome",
    "google-chrome-stable",
    "chrome",
)


def program() -> str | None:
    """Return the path of the browser; CHROMIUM names one elsewhere."""
    return next(
        filter(None, map(shutil.which, (os.environ.get("CHROMIUM", ""), *_NAMES))), None
    )


def why_no_chromium() -> str | None:
    """Return why no browser can be started, or None."""
    if find_spec("playwright") is None:
        return "Playwright is not installed (the extra test)"
    if program() is None:
        return "Chromium is not installed (apt-get install chromium)"
    return None


@contextmanager
def browser(*arguments: str) -> Iterator[Browser]:
    """Start a browser with some arguments, and end it."""
    from playwright.sync_api import sync_playwright

    # Chromium's own sandbox does not work for root and in containers; pages here are our own.
    settings = ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", *arguments]
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=program(), args=settings)
        try:
            yield started
        finally:
            started.close()
