"""The browsers of this machine, driven by playwright: Chromium by its own protocol, Firefox by WebDriver BiDi.

Both are those of the distribution (``scripts/servers.sh`` installs them): playwright downloads none.
"""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, Self

CHROMIUM: Final = Path("/usr/bin/chromium")
FIREFOX: Final = Path("/usr/bin/firefox-esr")
PATHS: Final = {"chromium": CHROMIUM, "firefox": FIREFOX}
WAITS: Final = 120_000
"""Milliseconds after which what is waited for will not come; a machine under load takes seconds for a click."""
_PRELOAD: Final = Path(__file__).parent / "firefox_bidi.cjs"
# played without a click, as Chromium does without a screen; a page never asks the network for anything of the browser's
_PREFERENCES: Final = {"media.autoplay.default": 0, "network.captive-portal-service.enabled": False}


class Browser:
    """A browser that is running.

    Args:
        play: playwright.
        name: ``chromium`` or ``firefox``.
    """

    def __init__(self, play: Any, name: str) -> None:
        self.name = name
        self._play = play
        self._running: dict[str, Any] = {}

    def new_context(self, *, color_scheme: str = "light", reduced_motion: str = "reduce", **options: Any) -> Any:
        """Return a new context, without cookies.

        Args:
            color_scheme: ``light`` or ``dark``.
            reduced_motion: ``reduce`` or ``no-preference``; of Chromium.
            **options: of playwright.
        """
        if self.name == "chromium":
            features = {"color_scheme": color_scheme, "reduced_motion": reduced_motion}
            return self._launch(self.name).new_context(**features, **options)
        return self._launch(color_scheme).new_context(**options)

    def _launch(self, kind: str) -> Any:
        if kind in self._running:
            return self._running[kind]
        if self.name == "chromium":
            browser = self._play.chromium.launch(executable_path=str(CHROMIUM), args=["--no-sandbox"], timeout=WAITS)
        else:
            preferences = {
                **_PREFERENCES,
                "ui.prefersReducedMotion": 1,
                "layout.css.prefers-color-scheme.content-override": int(kind == "light"),
            }
            browser = self._play.firefox.launch(
                executable_path=str(FIREFOX), channel="moz-firefox", firefox_user_prefs=preferences, timeout=WAITS
            )
        self._running[kind] = browser
        return browser

    def close(self) -> None:
        """End it."""
        for browser in self._running.values():
            browser.close()


@contextmanager
def run_playwright() -> Iterator[Any]:
    """Run playwright so that it drives both browsers."""
    from playwright.sync_api import sync_playwright

    before = os.environ.get("NODE_OPTIONS")
    os.environ["NODE_OPTIONS"] = f"--require {_PRELOAD}"
    try:
        with sync_playwright() as play:
            if before is None:
                del os.environ["NODE_OPTIONS"]
            yield play
    finally:
        if before is not None:
            os.environ["NODE_OPTIONS"] = before
        else:
            os.environ.pop("NODE_OPTIONS", None)


def wait_until(page: Any, expression: str) -> None:
    """Wait until an expression is true; a page's policy forbids that it evaluates one by itself."""
    for _ in range(WAITS // 50):
        if page.evaluate(expression):
            return
        page.wait_for_timeout(50)
    raise AssertionError(f"never true: {expression}")


class WatchedPage:
    """A page, and everything that it must not do.

    Args:
        browser: that opens it.
        allowed: what urls that it requests begin with.
        options: of the context.

    Attributes:
        page: of playwright.
        expected: parts of messages of the console that are no fault.
    """

    def __init__(self, browser: Browser, allowed: Sequence[str], **options: Any) -> None:
        self.context = browser.new_context(viewport={"width": 1300, "height": 800}, **options)
        self.context.set_default_timeout(WAITS)
        self.page = self.context.new_page()
        self.expected: tuple[str, ...] = ()
        self._allowed = (*allowed, "data:", "blob:", "about:blank")
        self._wrong: list[str] = []
        self._dialogs: list[str] = []
        self.page.on("dialog", self._close)
        self.page.on("pageerror", lambda error: self._wrong.append(f"exception: {error}"))
        self.page.on("console", self._note)
        self.page.on("request", self._check)

    def _close(self, dialog: Any) -> None:
        self._dialogs.append(dialog.message)
        dialog.dismiss()

    def _note(self, line: Any) -> None:
        if line.type in ("error", "warning"):
            self._wrong.append(f"{line.type}: {line.text} {line.location.get('url', '')}")

    def _check(self, request: Any) -> None:
        if not request.url.startswith(self._allowed):
            self._wrong.append(f"request of {request.url}")

    def check(self) -> None:
        """Fail if the page did anything that it must not do."""
        wrong = [line for line in self._wrong if not any(text in line for text in self.expected)]
        assert not self._dialogs, self._dialogs
        assert not wrong, wrong
        assert self.page.locator("#injected").count() == 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: Any, *_: object) -> None:
        try:
            if kind is None:
                self.check()
        finally:
            self.context.close()
