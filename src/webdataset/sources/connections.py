"""Http connections: one pool per process, proxies of the environment, one request at a time.

Flows in: a url and headers. Flows out: an unread response. urllib3 is imported when the first request is made. No
connection survives a fork: two processes on one socket would read each other's answers.
"""

import base64
import functools
import importlib
import re
import urllib.parse
from collections.abc import Mapping
from types import ModuleType
from typing import Any

from webdataset.ground import settings
from webdataset.ground.errors import ConfigError, SourceError, UsageError
from webdataset.ground.locks import forks_wait

from . import logs
from .forks import PerProcess

CONNECTIONS_PER_HOST = 16
REDIRECTS = 10

Tls = tuple[tuple[str, str], ...]
"""Names and texts for urllib3: ``ca_certs``, ``cert_file``, ``key_file``, ``cert_reqs``; empty: as everybody does."""

_UNSENDABLE = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]|[^\x00-\xff]")

_pools: PerProcess[Any] = PerProcess()


@functools.cache
def _urllib3() -> ModuleType:
    # a module that another thread imports at a fork would stay locked in the child
    with forks_wait:
        import urllib3  # noqa: PLC0415  40 ms that readers of local files need not pay

    logs.mask()
    return urllib3


@functools.cache
def failures() -> tuple[type[Exception], ...]:
    """Return the errors that reading a body raises when its connection fails."""
    return (_urllib3().exceptions.HTTPError, OSError, importlib.import_module("http.client").HTTPException)


@functools.cache
def unanswered() -> tuple[type[Exception], ...]:
    """Return the errors that a request raises when no answer comes, or none that makes sense: asking again may help."""
    return (_urllib3().exceptions.HTTPError,)


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
    return send("GET", url, headers, timeouts)


def send(
    method: str,
    url: str,
    headers: Mapping[str, str],
    timeouts: tuple[float, float],
    body: Any = None,
    *,
    redirects: int = REDIRECTS,
    tls: Tls = (),
    private: frozenset[str] = frozenset(),
) -> Any:
    """Send one request.

    Args:
        method: ``GET``, ``PUT`` …
        url: the url; ``user:password@`` becomes Basic authorization.
        headers: request headers.
        timeouts: seconds to connect, seconds without a byte.
        body: what is sent along: bytes, or something with ``read`` and ``seek``.
        redirects: how many are followed; with 0 they are answers like others.
        tls: whom to trust and what to show, where that is not what everybody does.
        private: names of headers that another host, to which a redirect leads, must not see.

    Returns:
        A ``urllib3.HTTPResponse`` whose body is still to be read.

    Raises:
        UsageError: the url makes no sense.
        ConfigError: a header, or a proxy, that cannot be.
        SourceError: a redirect to something else than http and https.
        Exception: one of :func:`unanswered`.
    """
    urllib3 = _urllib3()
    address, credentials = _split(url)
    refuse_unsendable(headers)
    try:
        return _pool(address, tls).request(
            method,
            address,
            body=body,
            headers={"Accept-Encoding": "identity", "User-Agent": "webdataset", **credentials, **headers},
            timeout=urllib3.Timeout(connect=timeouts[0], read=timeouts[1]),
            retries=_retries(redirects, private),
            redirect=redirects > 0,
            preload_content=False,
            decode_content=False,
        )
    except urllib3.exceptions.LocationValueError as error:
        unreadable = isinstance(error, urllib3.exceptions.LocationParseError)
    if not _is_web(address):  # raised here: the errors of others quote addresses, with what is secret in them
        raise UsageError("not a url that can be opened: scheme, host or port make no sense", url=url)
    if unreadable:
        raise SourceError("this host, or the one that the server redirects to, is no name of a host", url=url)
    raise SourceError("the server redirects to a url that is not followed: only http and https are", url=url)


def refuse_unsendable(headers: Mapping[str, str]) -> None:
    """Refuse what no header can hold, before others do: they would quote it, and it may be a secret.

    Args:
        headers: request headers.

    Raises:
        ConfigError: a line break, a control character, or one that is not of Latin-1.
    """
    for name, text in headers.items():
        if _UNSENDABLE.search(text) or _UNSENDABLE.search(name):
            raise ConfigError(
                f"what is to be sent as header {name!r} holds a line break, or a character that no header may have: "
                "check the token (or the value) where it comes from"
            )


def _retries(redirects: int, private: frozenset[str]) -> Any:
    """Return what urllib3 is to do by itself: follow redirects; the reader waits, and knows when to give up."""
    retry = _urllib3().Retry
    return retry(
        total=REDIRECTS,
        connect=0,
        read=0,
        status=0,
        other=0,
        redirect=redirects,
        raise_on_redirect=True,
        respect_retry_after_header=False,
        remove_headers_on_redirect=retry.DEFAULT_REMOVE_HEADERS_ON_REDIRECT | private,
    )


def _is_web(address: str) -> bool:
    try:
        parts = _urllib3().util.parse_url(address)
    except ValueError:
        return False
    return parts.scheme in ("http", "https") and bool(parts.host)


def _split(url: str) -> tuple[str, dict[str, str]]:
    """Return a url without user and password, and the header that says them."""
    try:
        parts = urllib.parse.urlsplit(url)
        if "@" not in parts.netloc:
            return url, {}
        userinfo, _, host = parts.netloc.rpartition("@")
        address = urllib.parse.urlunsplit(parts._replace(netloc=host))
        urllib.parse.urlsplit(address)
    except ValueError:  # brackets that do not hold an IPv6 address, other characters that no host has
        address = ""
    if not address:  # raised here: the error quotes the url
        raise UsageError("not a url that can be opened: its host is none", url=url)
    login = urllib.parse.unquote_to_bytes(userinfo.encode("utf-8", "surrogatepass"))
    login = login if b":" in login else login + b":"
    return address, {"authorization": f"Basic {base64.b64encode(login).decode()}"}


def _pool(url: str, tls: Tls) -> Any:
    proxy = _proxy(url)
    return _pools.get((proxy, tls, settings.SSL_CERT_FILE.get()), lambda: _made(proxy, tls))


def _made(proxy: str, tls: Tls) -> Any:
    urllib3, given = _urllib3(), {"maxsize": CONNECTIONS_PER_HOST, "block": False}
    if not proxy:
        return _secured(urllib3.PoolManager(**given), tls)
    try:
        address, login = _split(proxy)
    except UsageError:
        address, login = "", {}
    if not address:  # raised here: the proxy's url may hold a password
        raise ConfigError("the environment names a proxy (HTTP_PROXY, HTTPS_PROXY) whose url makes no sense")
    shown = {f"proxy-{name}": text for name, text in login.items()}
    try:
        if address[:6].lower() == "https:":
            given["proxy_ssl_context"] = _context(tls)
        return _secured(urllib3.ProxyManager(address, proxy_headers=shown, **given), tls)
    except urllib3.exceptions.LocationValueError:
        kind = address.partition("://")[0]
    raise ConfigError(f"the environment names a proxy of kind {kind!r}: http and https proxies are served")


def _secured(manager: Any, tls: Tls) -> Any:
    """Give the connections of a manager this process's context, made when the first of them needs it."""
    pools = manager.pool_classes_by_scheme

    def secure(*words: Any, **given: Any) -> Any:
        return pools["https"](*words, **{**given, "ssl_context": _context(tls)})

    manager.pool_classes_by_scheme = {**pools, "https": secure}
    return manager


def _context(tls: Tls) -> Any:
    """Return this process's context; certificates that cannot be read fail as a connection does."""
    with forks_wait:
        from .tls import context_for  # noqa: PLC0415  ssl: 10 ms that readers of local files need not pay

    urllib3 = _urllib3()
    try:
        return context_for(dict(tls), urllib3)
    except OSError as error:
        raise urllib3.exceptions.SSLError(error) from error


def _proxy(url: str) -> str:
    with forks_wait:
        import urllib.request  # noqa: PLC0415  20 ms, and urllib3 is loaded by now

    parts = urllib.parse.urlsplit(url)
    proxies = urllib.request.getproxies()
    proxy = proxies.get(parts.scheme.lower()) or proxies.get("all") or ""
    if not proxy or urllib.request.proxy_bypass(parts.hostname or ""):
        return ""
    return proxy if "://" in proxy else f"http://{proxy}"
