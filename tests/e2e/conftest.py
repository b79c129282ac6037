"""Fixtures of tests that drive browsers."""

from collections.abc import Iterator

import pytest

from support.browsers import PATHS, Browser, run_playwright


@pytest.fixture(scope="module", params=["chromium", "firefox"])
def browser(request: pytest.FixtureRequest) -> Iterator[Browser]:
    """One Chromium, then one Firefox, for all tests of a module."""
    pytest.importorskip("playwright.sync_api")
    if not PATHS[request.param].exists():
        pytest.skip(f"{PATHS[request.param].name} is not installed")
    with run_playwright() as play:
        running = Browser(play, request.param)
        yield running
        running.close()
