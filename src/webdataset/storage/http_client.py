"""HTTP requests: one connection pool per process, proxies of the environment, retries, header parsing, masked logs.

urllib3 is imported when the first request is made. No connection survives a fork: two processes on one socket would
read each other's answers. :class:`ServiceClient` sends requests of a storage service, once or with retries; a service
defines how requests are signed, and what a status means. A request without an answer raises
:class:`~webdataset.storage.object_store.RetryableError`.

Neither an address nor a header is ever quoted: there may be secrets in both. In the log records of urllib3, which
show the path of every request with its query, signatures and tokens are replaced by ``***``.
"""

import base64
import functools
import importlib
import logging
import re
import urllib.parse
from collections.abc import Callable, Container, Mapping
from types import ModuleType
from typing import Any, TypeVar

from webdataset.core import settings
from webdataset.core.errors import ConfigError, SourceError, UsageError
from webdataset.core.fork_safety import PerProcessCache, fork_lock
from webdataset.core.redaction import redact
from webdataset.storage.object_store import RetryableError
from webdataset.storage.resumable_stream import ATTEMPTS, RetryBudget

LOGGERS = ("urllib3.connectionpool", "urllib3.poolmanager", "urllib3.util.retry")


class _Urllib3Mask(logging.Filter):
    """Rewrites records."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Replace what is secret; every record is kept."""
        message = record.getMessage()
        shown = redact(message)
        if shown != message:
            record.msg, record.args = shown, ()
        return True


_mask = _Urllib3Mask()


def mask_urllib3_logs() -> None:
    """Mask urllib3's records in this process; called as often as one likes."""
    for name in LOGGERS:
        logging.getLogger(name).addFilter(_mask)


CONNECTIONS_PER_HOST = 16
REDIRECTS = 10

TlsOptions = tuple[tuple[str, str], ...]
"""Names and texts for urllib3: ``ca_certs``, ``cert_file``, ``key_file``, ``cert_reqs``; empty: as everybody does."""

_UNSENDABLE = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]|[^\x00-\xff]")

_pools: PerProcessCache[Any] = PerProcessCache()


@functools.cache
def _urllib3() -> ModuleType:
    # a module that another thread imports at a fork would stay locked in the child
    with fork_lock:
        import urllib3  # noqa: PLC0415  40 ms that readers of local files need not pay

    mask_urllib3_logs()
    return urllib3


@functools.cache
def failures() -> tuple[type[Exception], ...]:
    """Return the errors that reading a body raises when its connection fails."""
    return (_urllib3().exceptions.HTTPError, OSError, importlib.import_module("http.client").HTTPException)


@functools.cache
def no_answer_errors() -> tuple[type[Exception], ...]:
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
    tls: TlsOptions = (),
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
        tls: which certificates to trust and what to show, where that is not what everybody does.
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
    address, credentials = _split_login(url)
    refuse_unsendable(headers)
    try:
        return _find_pool(address, tls).request(
            method,
            address,
            body=body,
            headers={"Accept-Encoding": "identity", "User-Agent": "webdataset", **credentials, **headers},
            timeout=urllib3.Timeout(connect=timeouts[0], read=timeouts[1]),
            retries=_retry_policy(redirects, private),
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


def _retry_policy(redirects: int, private: frozenset[str]) -> Any:
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


def _split_login(url: str) -> tuple[str, dict[str, str]]:
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


def _find_pool(url: str, tls: TlsOptions) -> Any:
    proxy = _proxy_url(url)
    return _pools.get((proxy, tls, settings.SSL_CERT_FILE.get()), lambda: _make_pool(proxy, tls))


def _make_pool(proxy: str, tls: TlsOptions) -> Any:
    urllib3, given = _urllib3(), {"maxsize": CONNECTIONS_PER_HOST, "block": False}
    if not proxy:
        return _secure_pool(urllib3.PoolManager(**given), tls)
    try:
        address, login = _split_login(proxy)
    except UsageError:
        address, login = "", {}
    if not address:  # raised here: the proxy's url may hold a password
        raise ConfigError("the environment names a proxy (HTTP_PROXY, HTTPS_PROXY) whose url makes no sense")
    shown = {f"proxy-{name}": text for name, text in login.items()}
    try:
        if address[:6].lower() == "https:":
            given["proxy_ssl_context"] = _tls_context(tls)
        return _secure_pool(urllib3.ProxyManager(address, proxy_headers=shown, **given), tls)
    except urllib3.exceptions.LocationValueError:
        kind = address.partition("://")[0]
    raise ConfigError(f"the environment names a proxy of kind {kind!r}: http and https proxies are served")


def _secure_pool(manager: Any, tls: TlsOptions) -> Any:
    """Give the connections of a manager this process's context, made when the first of them needs it."""
    pools = manager.pool_classes_by_scheme

    def secure(*words: Any, **given: Any) -> Any:
        return pools["https"](*words, **{**given, "ssl_context": _tls_context(tls)})

    manager.pool_classes_by_scheme = {**pools, "https": secure}
    return manager


def _tls_context(tls: TlsOptions) -> Any:
    """Return this process's context; certificates that cannot be read fail as a connection does."""
    with fork_lock:
        from webdataset.storage.tls import context_for  # noqa: PLC0415  ssl: 10 ms that readers of local files need not pay

    urllib3 = _urllib3()
    try:
        return context_for(dict(tls), urllib3)
    except OSError as error:
        raise urllib3.exceptions.SSLError(error) from error


def _proxy_url(url: str) -> str:
    with fork_lock:
        import urllib.request  # noqa: PLC0415  20 ms, and urllib3 is loaded by now

    parts = urllib.parse.urlsplit(url)
    proxies = urllib.request.getproxies()
    proxy = proxies.get(parts.scheme.lower()) or proxies.get("all") or ""
    if not proxy or urllib.request.proxy_bypass(parts.hostname or ""):
        return ""
    return proxy if "://" in proxy else f"http://{proxy}"


CONNECT_SECONDS = 10.0
READ_SECONDS = 60.0
BUSY = frozenset((408, 425, 429, 500, 502, 503, 504, 509))
"""Statuses after which asking again may help."""
GOOD = frozenset((200, 201, 202, 204, 206))
WITH_BYTES = frozenset((200, 203, 206))
"""Statuses of answers whose body is the object, or a part of it."""
CHANGED = frozenset((412, 416))

T = TypeVar("T")
_LENGTH = re.compile(r"[0-9]{1,19}\Z")
_CONTENT_RANGE = re.compile(r"bytes ([0-9]{1,19})-[0-9]{1,19}/([0-9]{1,19})$")


def send_once(
    method: str,
    address: str,
    headers: Mapping[str, str],
    *,
    url: str,
    body: bytes | None = None,
    streamed: bool = False,
) -> Any:
    """Send one request; no redirect is followed.

    Args:
        method: ``GET``, ``PUT`` …
        address: where to; may hold secrets.
        headers: request headers.
        url: what the user calls it.
        body: what is sent along.
        streamed: leave the body of a good answer unread.

    Returns:
        A ``urllib3.HTTPResponse``; its ``data`` is there unless it is streamed.

    Raises:
        Again: no answer came.
        SourceError: the server's certificate is not trusted.
    """
    try:
        response = send(method, address, headers, (CONNECT_SECONDS, READ_SECONDS), body, redirects=0)
        if not streamed or response.status >= 300:
            response.data  # noqa: B018  read and kept
    except failures() as error:
        reason = _describe_error(error)
    else:
        return response
    if "CERTIFICATE_VERIFY_FAILED" in reason:  # raised here: urllib3's errors show the address
        raise SourceError(f"the server's certificate is not trusted: {reason}", url=url)
    raise RetryableError(f"no answer from the service: {reason}")


def _describe_error(error: BaseException) -> str:
    reason = getattr(error, "reason", None)
    if isinstance(reason, BaseException):
        error = reason
    return redact(f"{type(error).__name__}: {error}")


def retry(ask: Callable[[], T], url: str, refresh: Callable[[], object], attempts: int | None = None) -> T:
    """Ask until there is an answer.

    Args:
        ask: asks once.
        url: what the user calls it.
        refresh: looks for new credentials.
        attempts: failures after which it is given up.

    Raises:
        SourceError: the service refuses, or does not answer.
    """
    attempts = attempts or ATTEMPTS
    patience = RetryBudget(attempts)
    while True:
        try:
            return ask()
        except RetryableError as again:
            failure = again
        if patience.spent():
            raise SourceError(f"no answer after {attempts} attempts: {failure}", url=url)
        patience.pause(failure.wait_seconds)
        if failure.expired:
            refresh()


def next_page(token: str | None, before: str | None, url: str) -> str | None:
    """Return what asks for the next page of a list; None after the last.

    Args:
        token: what this page says.
        before: what asked for this page.
        url: what is listed.

    Raises:
        SourceError: the list would never end.
    """
    if token and token == before:
        raise SourceError("the service gives the same page of its list over and over", url=url)
    return token or None


def parse_body_range(response: Any) -> tuple[int, int | None, int | None]:
    """Return where in the object an answer's body begins (-1: it does not say), the object's length, the body's.

    Args:
        response: an answer with a good status.

    Raises:
        Again: it holds no object: nothing, or a promise.
    """
    if response.status not in WITH_BYTES:
        response.close()
        raise RetryableError(f"status {response.status} came, and no object")
    size = parse_length(response.headers.get("Content-Length", ""))
    return (
        (0, size, size)
        if response.status != 206
        else (*parse_content_range(response.headers.get("Content-Range", "")), size)
    )


def parse_content_range(text: str) -> tuple[int, int | None]:
    """Return where in the object a range begins, and the object's length; -1 and None where that is not said.

    Args:
        text: ``Content-Range``.
    """
    found = _CONTENT_RANGE.match(text)
    return (int(found[1]), int(found[2])) if found else (-1, None)


def parse_length(text: str) -> int | None:
    """Return the number that a header with a length holds; None where it holds none.

    Args:
        text: the header.
    """
    return int(text) if _LENGTH.match(text) else None


def range_header(offset: int, size: int | None) -> dict[str, str]:
    """Return the header that asks for some bytes; none for the whole object.

    Args:
        offset: the first byte.
        size: how many; None for all to the end.
    """
    if not offset and size is None:
        return {}
    return {"Range": f"bytes={offset}-" if size is None else f"bytes={offset}-{offset + size - 1}"}


class ServiceClient:
    """Requests about one object or container; a service says who asks, and what its refusals mean.

    Args:
        url: what the user calls it.
        attempts: failures in a row after which a request is given up.

    Attributes:
        url: what the user calls it.
        requests: requests sent so far.
    """

    def __init__(self, url: str, attempts: int | None = None) -> None:
        self.url = url
        self.requests = 0
        self._attempts = attempts
        self._doubted = False

    def refresh(self) -> None:
        """Look for credentials anew."""
        raise NotImplementedError

    def _sign(self, method: str, address: str, headers: dict[str, str], size: int) -> tuple[str, dict[str, str]]:
        """Return address and headers of a request that says who asks.

        Args:
            method: ``GET`` ….
            address: where to.
            headers: of the request.
            size: bytes of its body.
        """
        raise NotImplementedError

    def _translate_refusal(self, response: Any, offset: int) -> RetryableError | SourceError:
        """Return the error to raise for an answer that is none of the good ones.

        Args:
            response: the answer, read.
            offset: where in the object we are.
        """
        raise NotImplementedError

    def _may_refresh(self) -> bool:
        """Tell whether credentials that were refused may be looked up again: once between two good answers."""
        before, self._doubted = self._doubted, True
        return not before

    def ask(
        self,
        method: str,
        address: str,
        headers: dict[str, str] | None = None,
        *,
        body: bytes | None = None,
        streamed: bool = False,
        good: Container[int] = GOOD,
        offset: int = 0,
    ) -> Any:
        """Send a request once.

        Args:
            method: ``GET`` ….
            address: where to.
            headers: beside those that say who asks.
            body: what is sent along.
            streamed: leave the body of the answer unread.
            good: statuses that the caller understands.
            offset: where in the object we are, for messages.

        Raises:
            Again: asking again may help.
            NotFound: nothing is there.
            ShardChanged: it is another object by now.
            SourceError: the service refuses.
        """
        target, sent = self._sign(method, address, headers or {}, len(body or b""))
        self.requests += 1
        response = send_once(method, target, sent, url=self.url, body=body, streamed=streamed)
        if response.status in good:
            self._doubted = False
            return response
        response.close()
        raise self._translate_refusal(response, offset)

    def call(self, method: str, address: str, headers: dict[str, str] | None = None, **options: Any) -> Any:
        """Send a request until it is answered.

        Args:
            method: ``GET`` ….
            address: where to.
            headers: beside those that say who asks.
            **options: as for :meth:`ask`.

        Raises:
            NotFound: nothing is there.
            SourceError: the service refuses, or does not answer.
        """
        return retry(lambda: self.ask(method, address, headers, **options), self.url, self.refresh, self._attempts)
