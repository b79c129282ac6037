"""Http connections: one pool per process, proxies of the environment, one request at a time.

Flows in: a url and headers. Flows out: an unread response. urllib3 is imported when the first request is made. No
connection survives a fork: two processes on one socket would read each other's answers.
"""

import functools
import importlib
import os
import threading
import urllib.parse
from collections.abc import Mapping
from types import ModuleType
from typing import Any

from webdataset.ground.errors import UsageError

CONNECTIONS_PER_HOST = 16
REDIRECTS = 10

_pools: dict[tuple[int, str], Any] = {}
_lock = threading.Lock()


def _forget() -> None:
    global _lock  # noqa: PLW0603  a lock held by another thread at the fork stays locked for ever
    _lock = threading.Lock()
    _pools.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)


@functools.cache
def _urllib3() -> ModuleType:
    import urllib3  # noqa: PLC0415  40 ms that readers of local files need not pay

    return urllib3


@functools.cache
def failures() -> tuple[type[Exception], ...]:
    """Return the errors that reading a body raises when its connection fails."""
    return (_urllib3().exceptions.HTTPError, OSError, importlib.import_module("http.client").HTTPException)


@functools.cache
def unanswered() -> tuple[type[Exception], ...]:
    """Return the errors that a request raises when no answer comes and asking again may help."""
    known = _urllib3().exceptions
    return (known.MaxRetryError, known.ProtocolError, known.TimeoutError, known.NewConnectionError)


def get(url: str, headers: Mapping[str, str], timeouts: tuple[float, float]) -> Any:
    """Send one GET request; redirects to http and https are followed.

    Args:
        url: the url; ``user:password@`` becomes Basic authorization.
        headers: request headers.
        timeouts: seconds to connect, seconds without a byte.

    Returns:
        A ``urllib3.HTTPResponse`` whose body is still to be read.

    Raises:
        UsageError: the url makes no sense.
        Exception: one of :func:`unanswered`.
    """
    urllib3 = _urllib3()
    address, credentials = _split(url)
    try:
        return _pool(address).request(
            "GET",
            address,
            headers={"Accept-Encoding": "identity", "User-Agent": "webdataset", **credentials, **headers},
            timeout=urllib3.Timeout(connect=timeouts[0], read=timeouts[1]),
            retries=urllib3.Retry(
                total=REDIRECTS, connect=0, read=0, status=0, other=0, redirect=REDIRECTS, raise_on_redirect=True
            ),
            preload_content=False,
            decode_content=False,
        )
    except urllib3.exceptions.LocationValueError as error:
        raise UsageError(f"not a url that can be opened: {error}", url=url) from error


def _split(url: str) -> tuple[str, dict[str, str]]:
    try:
        parts = urllib.parse.urlsplit(url)
    except ValueError as error:  # brackets that do not hold an IPv6 address
        raise UsageError(f"not a url that can be opened: {error}", url=url) from error
    if "@" not in parts.netloc:
        return url, {}
    userinfo, _, host = parts.netloc.rpartition("@")
    login = urllib.parse.unquote(userinfo)
    credentials = _urllib3().make_headers(basic_auth=login if ":" in login else f"{login}:")
    return urllib.parse.urlunsplit(parts._replace(netloc=host)), credentials


def _pool(url: str) -> Any:
    proxy = _proxy(url)
    key = (os.getpid(), proxy)
    with _lock:
        pool = _pools.get(key)
        if pool is None:
            settings = {"maxsize": CONNECTIONS_PER_HOST, "block": False}
            urllib3 = _urllib3()
            pool = urllib3.ProxyManager(proxy, **settings) if proxy else urllib3.PoolManager(**settings)
            _pools[key] = pool
    return pool


def _proxy(url: str) -> str:
    import urllib.request  # noqa: PLC0415  20 ms, and urllib3 is loaded by now

    parts = urllib.parse.urlsplit(url)
    proxies = urllib.request.getproxies()
    proxy = proxies.get(parts.scheme.lower()) or proxies.get("all") or ""
    if not proxy or urllib.request.proxy_bypass(parts.hostname or ""):
        return ""
    return proxy if "://" in proxy else f"http://{proxy}"
