"""A small service like Google Cloud Storage on this machine that lists, counts requests, and refuses above a rate."""

import json
import threading
import time
import urllib.parse
from typing import Any, Self

from webdataset.testing.sources import Answering, Listening


class BucketServer:
    """The service.

    Args:
        keys: of the objects.
        rate: requests a second above which it answers 429; None for no bound.

    Attributes:
        root: its url.
        lists: requests for a list so far.
        served: other requests that were answered.
        refused: requests that were answered 429.
        free: cleared, answers to lists wait.
    """

    def __init__(self, keys: list[str] | None = None, rate: float | None = None) -> None:
        self.keys = keys or []
        self.rate = rate
        self.root = ""
        self.lists = self.served = self.refused = 0
        self.free = threading.Event()
        self.free.set()
        self._lock = threading.Lock()
        self._tokens, self._last = rate or 0.0, time.monotonic()

    def admit(self, *, listing: bool) -> bool:
        """Count a request, and tell whether it is answered."""
        with self._lock:
            self.lists += listing
            now = time.monotonic()
            if self.rate is not None:
                self._tokens = min(self.rate / 4, self._tokens + (now - self._last) * self.rate)
                self._last = now
                if self._tokens < 1:
                    self.refused += 1
                    return False
                self._tokens -= 1
            self.served += not listing
            return True

    def __enter__(self) -> Self:
        self._server = Listening(_Answers, self).start()
        self.root = self._server.url
        return self

    def __exit__(self, *failure: object) -> None:
        self.free.set()
        self._server.stop()


class _Answers(Answering):
    def do_GET(self) -> None:  # noqa: N802  a name of the base class
        """Answer with a list, a small object, or a refusal."""
        rules: Any = self.server.rules
        parts = urllib.parse.urlsplit(self.path)
        listing = parts.path.rstrip("/").endswith("/o")
        if not rules.admit(listing=listing):
            self.send(429, b"")
            return
        if not listing:
            self.send(200, b"x" * 100, ETag='"one"')
            return
        rules.free.wait()
        prefix = urllib.parse.parse_qs(parts.query).get("prefix", [""])[0]
        found = [{"name": key} for key in rules.keys if key.startswith(prefix)]
        self.send(200, json.dumps({"items": found}).encode())
