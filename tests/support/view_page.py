"""The page of a running viewer in a browser, and everything that it must not do."""

from typing import Any

from support.browsers import Browser, WatchedPage
from support.view_command import RunningViewer


class Watched(WatchedPage):
    """A page of a viewer.

    Args:
        browser: that opens it.
        viewer: whose page it is.
        options: of the context.
    """

    def __init__(self, browser: Browser, viewer: RunningViewer, **options: Any) -> None:
        super().__init__(browser, [f"http://127.0.0.1:{viewer.port}/"], **options)
        self.viewer = viewer

    def open(self, route: str = "/samples") -> Any:
        """Open a view with the token; return the page when its samples or its content are there."""
        self.page.goto("about:blank")
        self.page.goto(f"http://127.0.0.1:{self.viewer.port}/#token={self.viewer.token}&{route}")
        self.page.wait_for_selector(".view")
        return self.page
