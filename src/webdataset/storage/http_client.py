"""HTTP requests: connection pools, proxies, retries, error translation, header parsing, masked logs.

urllib3 is imported by the first request. No connection survives a fork: two processes on one socket would read each
other's answers. No message quotes an address or a header, which may hold secrets; in urllib3's log records signatures
and tokens become ``***``.

A response whose connection ended within the headers is an error (:class:`CompleteResponse`). ``http.client`` takes the
end of a connection for the end of the headers. What is left then says nothing of the length of the body, which is
empty: it would pass for an empty object, and a header that was cut for another version.
"""

import base64
import contextlib
import functools
import http.client
import logging
import re
import urllib.parse
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import ModuleType
from typing import IO, TYPE_CHECKING, Any, NamedTuple, Protocol, cast

from webdataset.core import settings
from webdataset.core.errors import ConfigError, NotFound, SourceError, UsageError
from webdataset.core.fork_safety import PerProcessCache, fork_lock
from webdataset.core.redaction import redact
from webdataset.storage.object_store import ObjectBody, object_changed_error
from webdataset.storage.rate_limit import REFUSALS, note_refusal, take_turn
from webdataset.storage.retries import BUSY, RetryableError, parse_retry_after

if TYPE_CHECKING:
    import ssl
    from collections.abc import MutableMapping

    from urllib3 import HTTPConnectionPool, PoolManager, Retry

LOGGERS = ("urllib3.connectionpool", "urllib3.poolmanager", "urllib3.util.retry")


class LogMask(logging.Filter):
    """Replaces secrets in log records; keeps every record.

    Args:
        mask: from a message to what may be shown of it.
        highest_level: records above it stay as they are.
    """

    def __init__(self, mask: Callable[[str], str], highest_level: int = logging.CRITICAL) -> None:
        super().__init__()
        self._mask = mask
        self._highest_level = highest_level

    def filter(self, record: logging.LogRecord) -> bool:
        """Replace secrets."""
        message = record.getMessage() if record.levelno <= self._highest_level else ""
        shown = self._mask(message)
        if shown != message:
            record.msg, record.args = shown, ()
        return True


_mask = LogMask(redact)


def mask_urllib3_logs() -> None:
    """Mask urllib3's log records in this process; further calls change nothing."""
    for name in LOGGERS:
        logging.getLogger(name).addFilter(_mask)


CONNECTIONS_PER_HOST = 32
REDIRECTS = 10

TlsOptions = tuple[tuple[str, str], ...]
"""Names and texts for urllib3: ``ca_certs``, ``cert_file``, ``key_file``, ``cert_reqs``; empty for the defaults."""


class Transport(NamedTuple):
    """How a request travels.

    Args:
        timeouts: seconds to connect, seconds without a byte; None for the defaults.
        redirects: how many to follow; with 0 they are responses like others.
        tls: certificates to trust and to show.
        private: names of headers that a redirect to another host leaves out.
        service: what the server is called in errors.
        trust_hint: what to do where its certificate is not trusted.
    """

    timeouts: tuple[float, float] | None = None
    redirects: int = 0
    tls: TlsOptions = ()
    private: frozenset[str] = frozenset()
    service: str = "the service"
    trust_hint: str = "name the certificates of its issuer by SSL_CERT_FILE"


DIRECT = Transport()

_UNSENDABLE = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]|[^\x00-\xff]")

_pools: PerProcessCache["PoolManager"] = PerProcessCache()


class HttpResponse(ObjectBody, Protocol):
    """A response of urllib3, its body unread."""

    @property
    def status(self) -> int:
        """The status code."""

    @property
    def reason(self) -> str | None:
        """The text after the status code."""

    @property
    def headers(self) -> Mapping[str, str]:
        """The headers; names in any case."""

    @property
    def data(self) -> bytes:
        """The whole body, read at the first use."""


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
    return (_urllib3().exceptions.HTTPError, OSError, http.client.HTTPException)


@functools.cache
def no_answer_errors() -> tuple[type[Exception], ...]:
    """Return the errors that a request raises when no valid answer comes: a retry may help."""
    return (_urllib3().exceptions.HTTPError,)


def send(
    method: str,
    url: str,
    headers: Mapping[str, str],
    body: bytes | IO[bytes] | None = None,
    transport: Transport = DIRECT,
) -> HttpResponse:
    """Send one request.

    Args:
        method: ``GET``, ``PUT`` …
        url: the url; ``user:password@`` becomes Basic authorization.
        headers: request headers.
        body: what to send along.
        transport: how it travels.

    Raises:
        UsageError: the url makes no sense.
        ConfigError: an invalid header or proxy.
        SourceError: a redirect to something else than http and https.
        Exception: one of :func:`no_answer_errors`.
    """
    urllib3 = _urllib3()
    address, credentials = _split_login(url)
    refuse_unsendable(headers)
    connect, read = transport.timeouts or (CONNECT_SECONDS, READ_SECONDS)
    turn = take_turn(address)
    try:
        response: HttpResponse = _find_pool(address, transport.tls).request(
            method,
            address,
            body=body,
            headers={"Accept-Encoding": "identity", "User-Agent": "webdataset", **credentials, **headers},
            timeout=urllib3.Timeout(connect=connect, read=read),
            retries=_follow_redirects_only(transport),
            redirect=transport.redirects > 0,
            preload_content=False,
            decode_content=False,
        )
    except urllib3.exceptions.LocationValueError as error:
        unreadable = isinstance(error, urllib3.exceptions.LocationParseError)
    else:
        if response.status in REFUSALS:
            note_refusal(turn, parse_retry_after(response.headers.get("Retry-After"), response.headers.get("Date")))
        return response
    # raised outside the handler: urllib3's errors quote addresses, with the secrets in them
    if not _is_web(address):
        raise UsageError("not a url that can be opened: scheme, host or port make no sense", url=url)
    if unreadable:
        raise SourceError("this host, or the one that the server redirects to, is no name of a host", url=url)
    raise SourceError("the server redirects to a url that is not followed: only http and https are", url=url)


def refuse_unsendable(headers: Mapping[str, str]) -> None:
    """Refuse what no header can hold, before other code does so and quotes it: it may be a secret.

    Raises:
        ConfigError: a line break, a control character, or one outside Latin-1.
    """
    for name, text in headers.items():
        if _UNSENDABLE.search(text) or _UNSENDABLE.search(name):
            raise ConfigError(
                f"what is to be sent as header {name!r} holds a line break, or a character that no header may have: "
                "check the token (or the value) where it comes from"
            )


def _follow_redirects_only(transport: Transport) -> "Retry":
    """Let urllib3 follow redirects only: the reader retries, and knows when to give up."""
    retry: type[Retry] = _urllib3().Retry
    return retry(
        total=REDIRECTS,
        connect=0,
        read=0,
        status=0,
        other=0,
        redirect=transport.redirects,
        raise_on_redirect=True,
        respect_retry_after_header=False,
        remove_headers_on_redirect=retry.DEFAULT_REMOVE_HEADERS_ON_REDIRECT | transport.private,
    )


def _is_web(address: str) -> bool:
    try:
        parts = _urllib3().util.parse_url(address)
    except ValueError:
        return False
    return parts.scheme in ("http", "https") and bool(parts.host)


def _split_login(url: str) -> tuple[str, dict[str, str]]:
    """Return a url without user and password, and the header that carries them."""
    try:
        parts = urllib.parse.urlsplit(url)
        if "@" not in parts.netloc:
            return url, {}
        userinfo, _, host = parts.netloc.rpartition("@")
        address = urllib.parse.urlunsplit(parts._replace(netloc=host))
        urllib.parse.urlsplit(address)
    except ValueError:  # brackets without an IPv6 address, or characters that no host has
        address = ""
    # raised outside the handler: the error quotes the url
    if not address:
        raise UsageError("not a url that can be opened: its host is none", url=url)
    login = urllib.parse.unquote_to_bytes(userinfo.encode("utf-8", "surrogatepass"))
    login = login if b":" in login else login + b":"
    return address, {"authorization": f"Basic {base64.b64encode(login).decode()}"}


def _find_pool(url: str, tls: TlsOptions) -> "PoolManager":
    proxy = _proxy_url(url)
    return _pools.get((proxy, tls, settings.SSL_CERT_FILE.get()), lambda: _make_pool(proxy, tls))


def _make_pool(proxy: str, tls: TlsOptions) -> "PoolManager":
    urllib3 = _urllib3()
    given: dict[str, object] = {"maxsize": CONNECTIONS_PER_HOST, "block": False}
    if not proxy:
        return _secure_pool(urllib3.PoolManager(**given), tls)
    try:
        address, login = _split_login(proxy)
    except UsageError:
        address, login = "", {}
    # raised outside the handler: the proxy's url may hold a password
    if not address:
        raise ConfigError("the environment names a proxy (HTTP_PROXY, HTTPS_PROXY) whose url makes no sense")
    shown = {f"proxy-{name}": text for name, text in login.items()}
    try:
        if address[:6].lower() == "https:":
            given["proxy_ssl_context"] = _tls_context(tls)
        return _secure_pool(urllib3.ProxyManager(address, proxy_headers=shown, **given), tls)
    except urllib3.exceptions.LocationValueError:
        kind = address.partition("://")[0]
    raise ConfigError(f"the environment names a proxy of kind {kind!r}: http and https proxies are served")


_BLANK = (b"\r\n", b"\n")


class _HeaderLines:
    """The stream of a response while its headers are read; remembers the last line.

    Args:
        stream: of ``http.client``.
    """

    def __init__(self, stream: IO[bytes]) -> None:
        self.last = b""
        self._stream = stream
        self.close = stream.close

    def readline(self, limit: int = -1) -> bytes:
        """Return the next line."""
        self.last = self._stream.readline(limit)
        return self.last


class CompleteResponse(http.client.HTTPResponse):
    """A response of ``http.client`` that fails where its headers do not end."""

    def begin(self) -> None:
        """Read status and headers.

        Raises:
            http.client.RemoteDisconnected: the connection ended before the blank line.
        """
        state = vars(self)
        # they were read already
        if state["headers"] is not None:
            return
        stream = state["fp"]
        state["fp"] = lines = _HeaderLines(stream)
        try:
            super().begin()
        finally:
            # what fails may have closed it
            if state["fp"] is lines:
                state["fp"] = stream
        if lines.last not in _BLANK:
            raise http.client.RemoteDisconnected("the connection ended within the headers")


def require_complete_headers(pools: "MutableMapping[str, type[HTTPConnectionPool]]") -> None:
    """Let the connections of a pool manager of urllib3 give complete responses only.

    Args:
        pools: scheme to the class of its pools; gets derived classes.
    """
    for scheme, pool in pools.items():
        connection = type(pool.ConnectionCls.__name__, (pool.ConnectionCls,), {"response_class": CompleteResponse})
        derived = type(pool.__name__, (pool,), {"ConnectionCls": connection})
        pools[scheme] = cast("type[HTTPConnectionPool]", derived)


def _secure_pool(manager: "PoolManager", tls: TlsOptions) -> "PoolManager":
    """Give a manager's connections complete responses, and this process's context, made when the first needs it."""
    pools: Any = dict(manager.pool_classes_by_scheme)
    require_complete_headers(pools)

    def secure(*words: object, **given: object) -> object:
        return pools["https"](*words, **{**given, "ssl_context": _tls_context(tls)})

    secured: Any = {**pools, "https": secure}
    manager.pool_classes_by_scheme = secured
    return manager


def _tls_context(tls: TlsOptions) -> "ssl.SSLContext":
    """Return this process's context; unreadable certificates fail as a connection does."""
    with fork_lock:
        from webdataset.storage.tls import context_for  # noqa: PLC0415  ssl: 10 ms that readers of local files need not pay

    urllib3 = _urllib3()
    try:
        context: ssl.SSLContext = context_for(dict(tls), urllib3)
    except OSError as error:
        raise urllib3.exceptions.SSLError(error) from error
    return context


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
ABSENT = frozenset((404, 410))
CHANGED = frozenset((412, 416))
PROXY_HINT = (
    "a proxy wants credentials: check the user and password in HTTP_PROXY or HTTPS_PROXY, or except the host by "
    "NO_PROXY"
)


def send_once(
    method: str,
    address: str,
    headers: Mapping[str, str],
    url: str,
    *,
    body: bytes | IO[bytes] | None = None,
    transport: Transport = DIRECT,
) -> HttpResponse:
    """Send one request, and translate the errors of a request without a response.

    Args:
        method: ``GET``, ``PUT`` …
        address: where to; may hold secrets.
        headers: request headers.
        url: the url of the user, for errors.
        body: what to send along.
        transport: how it travels.

    Returns:
        The response, whatever its status.

    Raises:
        RetryableError: no response came.
        SourceError: the certificate is not trusted, a proxy refuses, or redirects have no end.
    """
    try:
        return send(method, address, headers, body, transport)
    except no_answer_errors() as error:
        reason = describe_error(error)
    # raised outside the handler: urllib3's errors show the address
    raise no_answer_error(reason, url, transport)


def no_answer_error(reason: str, url: str, transport: Transport = DIRECT) -> RetryableError | SourceError:
    """Return the error to raise for a request without a response."""
    # 407, 403 of a proxy: a retry changes nothing
    if "Tunnel connection failed: 40" in reason:
        return SourceError(f"a proxy refuses ({reason}): {PROXY_HINT}", url=url)
    if "redirects" in reason:
        return SourceError(reason, url=url)
    if "CERTIFICATE_VERIFY_FAILED" in reason or "doesn't match" in reason:
        return SourceError(
            f"{transport.service}'s certificate is not trusted ({reason}): {transport.trust_hint}", url=url
        )
    return RetryableError(f"no answer from {transport.service}: {reason}")


def was_redirected_by(response: HttpResponse, status: int) -> bool:
    """Tell whether a redirect with some status led to a response."""
    followed: Any = response
    return any(step.status == status for step in followed.retries.history)


def release_connection(response: HttpResponse) -> None:
    """Give a connection back to its pool, whatever is left of the body."""
    released: Any = response
    with contextlib.suppress(Exception):  # the response was good: what follows it does not matter
        released.drain_conn()
    released.release_conn()


def describe_error(error: BaseException) -> str:
    """Return what an error of a connection says, secrets removed.

    Args:
        error: the error; urllib3 keeps the first cause as ``reason``.
    """
    reason = getattr(error, "reason", None)
    if isinstance(reason, BaseException):
        error = reason
    return redact(f"{type(error).__name__}: {error}")


def translate_status(
    status: int,
    headers: Mapping[str, str],
    reason: str,
    *,
    url: str,
    hint: str = "",
    offset: int = 0,
    busy: bool = False,
    expired: bool = False,
) -> RetryableError | SourceError:
    """Return the error to raise for a response with an error status.

    Args:
        status: of the response.
        headers: of the response.
        reason: what the service says.
        url: the url of the user.
        hint: what to do, where a retry is no use.
        offset: where in the object the request began.
        busy: a retry may help, whatever the status.
        expired: new credentials may help.
    """
    if busy or status in BUSY:
        wait_seconds = parse_retry_after(headers.get("Retry-After"), headers.get("Date"))
        return RetryableError(redact(reason), wait_seconds=wait_seconds, refused=busy or status in REFUSALS)
    if status in CHANGED:
        return object_changed_error(url, offset)
    reason = f"{reason}; {hint}" if hint else reason
    if expired:
        return RetryableError(redact(reason), expired=True)
    return (NotFound if status in ABSENT else SourceError)(reason, url=url)


def list_pages(page: Callable[[str | None], tuple[Iterable[str], str | None]], url: str) -> Iterator[str]:
    """Yield the names of a list that comes in pages.

    Args:
        page: from the token of a page (None for the first) to its names, and the token of the next page, if any.
        url: what is listed.

    Raises:
        SourceError: the list would never end.
    """
    token = None
    while True:
        names, following = page(token)
        yield from names
        token = next_page(following, token, url)
        if token is None:
            return


def next_page(token: str | None, before: str | None, url: str) -> str | None:
    """Return the token of the next page of a list; None after the last.

    Args:
        token: what this page says.
        before: the token of this page.
        url: what is listed.

    Raises:
        SourceError: the list would never end.
    """
    if token and token == before:
        raise SourceError("the service gives the same page of its list over and over", url=url)
    return token or None
