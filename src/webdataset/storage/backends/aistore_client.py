"""AIStore locations, requests to gateways and targets, large uploads, and error translation.

A url is ``ais://bucket/name``, or a url of another store that goes through AIStore. Nothing in the name of an object
is decoded; a ``?`` begins a query only where all that follows it is ``known=text&known=text``.

A gateway answers 307 with the url of a target, which is followed as it stands: same method, same body, same headers,
the token among them, since targets of a guarded cluster may require it. So the token goes wherever the gateway says;
therefore only the user names gateways, no token goes from https to http, and hops are few. Every attempt begins at a
gateway, where there are several at the next one: targets come and go.

A gateway answers a PUT as soon as it has read the headers, and closes the connection on a client that continues to
send. So the headers go first, and the body only if no answer comes. urllib3 cannot do this, and the standard library
can. Proxies of the environment are not used: uploads go to the cluster directly.

A refused request raises ``RetryableError`` where a retry may help, else an error that says what to do.
"""

import contextlib
import hashlib
import http.client
import importlib
import json
import re
import urllib.parse
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from webdataset.core import settings
from webdataset.core.errors import ConfigError, NotFound, SourceError, UsageError
from webdataset.core.redaction import redact
from webdataset.storage import http_client
from webdataset.storage.http_client import BUSY, refuse_unsendable
from webdataset.storage.object_store import RetryableError, object_changed_error
from webdataset.storage.profile_selection import options_for, refuse_login
from webdataset.storage.resumable_stream import parse_retry_after
from webdataset.storage.s3_profile import Secret
from webdataset.storage.tls import context_for

_ABSENT = frozenset((404, 410))
_CHANGED = frozenset((412, 416))
_WAYS_OUT = {
    401: "; set AIS_AUTHN_TOKEN or AIS_AUTHN_TOKEN_FILE to a token that is valid",
    403: "; this token may not do it: ask for access, or set AIS_AUTHN_TOKEN to another one",
    404: "; check bucket, name and provider",
}


def translate_refusal(
    status: int, headers: Mapping[str, str], error_body: bytes, url: str, *, reading: bool = False
) -> RetryableError | SourceError:
    """Return the error to raise for an answer.

    Args:
        status: of the answer, from 300 on.
        headers: of the answer.
        error_body: the beginning of its body.
        url: what was asked for, as the user calls it.
        reading: the token was good before; it may have been renewed meanwhile.
    """
    text = f"the cluster answered {status}{_error_message(error_body)}"
    if status in BUSY:
        return RetryableError(
            redact(text), wait_seconds=parse_retry_after(headers.get("Retry-After"), headers.get("Date"))
        )
    if status == 401 and reading:
        return RetryableError(redact(f"{text}; the token has expired"), expired=True)
    if status in _CHANGED:
        return object_changed_error(url, 0)
    kind = NotFound if status in _ABSENT else SourceError
    return kind(text + _WAYS_OUT.get(status, ""), url=url)


def _error_message(body: bytes) -> str:
    """Return what the body says, on one line."""
    try:
        found = json.loads(body)
        message = str(found.get("message", "")) if isinstance(found, dict) else ""
    except ValueError:
        message = body.decode("utf-8", "replace")
    message = " ".join(message.split())[:300]
    return f": {message}" if message else ""


HOPS = 5
REDIRECTED = frozenset((301, 302, 307, 308))


class AistoreClient:
    """A cluster, as one dataset or one process knows it.

    Args:
        storage_options: ``endpoint_url``, ``token``, ``verify``, ``provider``; the environment says the rest.
        url: what is to be opened, for errors.

    Attributes:
        gateways: urls, without a slash at their end; empty where nobody names one.
        provider: where the buckets of ``ais:`` urls come from, or None.

    Raises:
        ConfigError: options that make no sense.
    """

    def __init__(self, storage_options: Any, url: str) -> None:
        self._options = options_for("ais", storage_options, url)
        self._url = url
        self._turn = 0
        self.provider: str | None = self._options.get("provider")
        given = str(self._options.get("endpoint_url") or settings.AIS_ENDPOINT.get() or "")
        self.gateways = tuple(word.strip().rstrip("/") for word in given.split(",") if word.strip())
        for gateway in self.gateways:
            refuse_login(gateway, "AIS_ENDPOINT", url)
            if not gateway.startswith(("http://", "https://")):
                raise ConfigError(f"AIS_ENDPOINT holds {gateway!r}: a gateway's url is http(s)://host:port", url=url)

    def ask(
        self,
        method: str,
        path: str,
        query: Mapping[str, str],
        headers: Mapping[str, str],
        body: bytes | None = None,
        *,
        reading: bool = False,
    ) -> Any:
        """Send one request to a gateway and follow it to who answers.

        Args:
            method: ``GET`` ….
            path: ``/v1/…``.
            query: names to texts.
            headers: request headers beside the usual ones.
            body: bytes that are sent along at every hop.
            reading: this token was good before: where it is refused now, a new one may come.

        Returns:
            A response whose body is still to be read; its status is below 300.

        Raises:
            Again: asking again, at a gateway, may help.
            NotFound: nothing is there.
            SourceError: the cluster refuses.
            ConfigError: no gateway is known.
        """
        target = f"{self.gateway()}{path}?{urllib.parse.urlencode(query)}"
        try:
            response = self._sent_on(method, target, {**headers, **self.authorization()}, body)
            if response.status < 300:
                return response
            error_body = b"" if method == "HEAD" else _read_beginning(response)
            response.close()
            raise translate_refusal(response.status, response.headers, error_body, self._url, reading=reading)
        except RetryableError:
            self.next_gateway()
            raise

    def _sent_on(self, method: str, target: str, headers: Mapping[str, str], body: bytes | None) -> Any:
        """Send a request to a gateway, and on to where it says; return the first answer that leads nowhere else."""
        for _ in range(HOPS):
            response = self._send_request(method, target, headers, body)
            if response.status not in REDIRECTED:
                return response
            response.close()
            target = self.redirect_target(target, response.headers.get("Location", ""))
        raise SourceError(f"the cluster redirected the request more than {HOPS} times", url=self._url)

    def call(self, method: str, path: str, query: Mapping[str, str], body: Any = None) -> Any:
        """Send a request until it is answered, and return what the answer's JSON says; arguments as for :meth:`ask`.

        Raises:
            NotFound: nothing is there.
            SourceError: the cluster refuses, or does not answer.
        """
        headers = {"Accept": "application/json", "Content-Type": "application/json"}

        def once() -> Any:
            return self._parse(self.ask(method, path, query, headers, json.dumps(body).encode()))

        return http_client.retry(once, self._url, lambda: None)

    def _parse(self, response: Any) -> Any:
        try:
            return json.loads(response.read() or b"null")
        except http_client.failures() as error:
            failure = redact(f"{type(error).__name__}: {error}")
        except ValueError:
            failure = "what came is no JSON"
        finally:
            response.close()
        raise RetryableError(f"the answer broke off: {failure}")

    def _send_request(self, method: str, target: str, headers: Mapping[str, str], body: Any) -> Any:
        try:
            return http_client.send(
                method,
                target,
                headers,
                (http_client.CONNECT_SECONDS, http_client.READ_SECONDS),
                body,
                redirects=0,
                tls=self.tls(),
            )
        except http_client.no_answer_errors() as error:
            reason = redact(str(getattr(error, "reason", None) or error))
        raise no_answer_error(reason, self._url)  # here, since the error of urllib3 shows the url as it is

    def gateway(self) -> str:
        """Return the gateway to ask now.

        Raises:
            ConfigError: none is known.
        """
        if not self.gateways:
            raise ConfigError(
                "no gateway of AIStore is known: set AIS_ENDPOINT=http://host:port, or storage_options endpoint_url",
                url=self._url,
            )
        return self.gateways[self._turn % len(self.gateways)]

    def next_gateway(self) -> None:
        """Ask another gateway from now on, where there are several."""
        self._turn += 1

    def redirect_target(self, target: str, location: str) -> str:
        """Return where a redirect leads.

        Args:
            target: what was asked.
            location: what the answer says.

        Raises:
            SourceError: to no web url, or to one where a token must not be sent.
        """
        there = urllib.parse.urljoin(target, location)
        if not location or not there.lower().startswith(("http://", "https://")):
            raise SourceError("the gateway redirected to something that is no http url", url=self._url)
        if target.startswith("https:") and not there.lower().startswith("https:") and self.authorization():
            raise SourceError("the gateway redirected from https to http: the token is not sent there", url=self._url)
        return there

    def authorization(self) -> dict[str, str]:
        """Return the header with the token, looked up now; empty without one.

        Raises:
            ConfigError: a token is named and cannot be found.
        """
        token = self._options.get("token")
        found = token.reveal() if isinstance(token, Secret) else settings.AIS_AUTHN_TOKEN.get() or _token_from_file()
        return {"Authorization": f"Bearer {found}"} if found else {}

    def tls(self) -> http_client.TlsOptions:
        """Return which certificates to trust, and what certificate to show."""
        verify = self._options.get("verify")
        if verify is None:
            verify = False if settings.AIS_SKIP_VERIFY_CRT.get() else settings.AIS_CLIENT_CA.get()
        chosen = {
            "ca_certs": verify if isinstance(verify, str) else None,
            "cert_reqs": "CERT_NONE" if verify is False else None,
            "cert_file": settings.AIS_CRT.get(),
            "key_file": settings.AIS_CRT_KEY.get(),
        }
        return tuple((name, text) for name, text in chosen.items() if text is not None)

    def service(self) -> str:
        """Return which cluster this is, without secrets."""
        return " ".join(filter(None, ("ais", *sorted(self.gateways), self.provider)))


def no_answer_error(reason: str, url: str) -> RetryableError | SourceError:
    """Return the error to raise where no answer came.

    Args:
        reason: why.
        url: what was asked for.
    """
    if "CERTIFICATE_VERIFY_FAILED" in reason:
        return SourceError(f"the cluster's certificate is not trusted; set AIS_CLIENT_CA: {reason}", url=url)
    return RetryableError(f"no answer from the cluster: {reason}")


def _token_from_file() -> str:
    """Return the token in ``AIS_AUTHN_TOKEN_FILE``: JSON with ``token``, or nothing but the token."""
    place = settings.AIS_AUTHN_TOKEN_FILE.get()
    if place is None:
        return ""
    text = Secret(f"file:{place}").reveal()
    if not text.lstrip().startswith("{"):
        return text.strip()
    try:
        token = json.loads(text).get("token")
    except ValueError:
        token = None
    text = ""  # no traceback shows it
    if not isinstance(token, str) or not token:
        raise ConfigError(f"the file {place}, which AIS_AUTHN_TOKEN_FILE names, is no JSON with a 'token'")
    return token


def _read_beginning(response: Any) -> bytes:
    try:
        return bytes(response.read(2000))
    except http_client.failures():
        return b""


def service_id(url: str, storage_options: Any = None) -> str:
    """Return which cluster serves a url, without secrets; see :mod:`webdataset.storage.open_url`."""
    return AistoreClient(storage_options, url).service()


QUERY = "archpath|archmime|archregx|archmode|etl_name|etl_args|etl_pipeline|latest-ver"
"""Names that a query may have; their texts are percent-decoded."""

PROVIDERS = {
    "ais": "ais",
    "s3": "aws", "aws": "aws",
    "gs": "gcp", "gcs": "gcp", "gcp": "gcp",
    "az": "azure", "azure": "azure", "abfs": "azure",
    "oci": "oci", "oc": "oci",
    "http": "ht", "https": "ht",
}  # fmt: skip
"""Scheme, or what ``provider`` says, to AIStore's name of the provider."""

_URL = re.compile(
    r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]*)://(?P<namespace>(?:@[^/#]*)?#[^/]*/|@[^/#]*/)?(?P<bucket>[^/]+)"
    rf"/(?P<name>.*?)(?:\?(?P<query>(?:{QUERY})=[^&]*(?:&(?:{QUERY})=[^&]*)*))?\Z",
    re.DOTALL,
)
_MEMBER = re.compile(r"\.(?:tar|tgz|tar\.gz|tar\.lz4|zip)/", re.IGNORECASE)


class AistoreLocation(NamedTuple):
    """Where an object lies.

    Args:
        provider: ``ais``, ``aws``, ``gcp``, ``azure``, ``oci`` or ``ht``.
        namespace: ``@uuid#name``, ``#name``, or empty.
        bucket: the bucket.
        name: the object's name; may be empty where a bucket is meant.
        asked: what the url's query says: a member of an archive, a transformation.
        original: the url itself, where AIStore has to fetch it from the web.
    """

    provider: str
    namespace: str
    bucket: str
    name: str
    asked: tuple[tuple[str, str], ...] = ()
    original: str = ""

    def whole(self) -> bool:
        """Tell whether the object is meant as it is stored, and not a member or a transformation of it."""
        return not any(name != "latest-ver" for name, _ in self.asked)

    def is_transformed(self) -> bool:
        """Tell whether the cluster computes what it sends."""
        return any(name.startswith("etl") for name, _ in self.asked)

    def path(self) -> str:
        """Return the path of a request about the object."""
        return f"/v1/objects/{urllib.parse.quote(self.bucket, safe='')}/{urllib.parse.quote(self.name, safe='/')}"

    def query(self) -> dict[str, str]:
        """Return the query of a request about the object."""
        original = {"original_url": self.original} if self.original else {}
        return {**self.of_bucket(), **original, **dict(self.asked)}

    def batch(self) -> str:
        """Return the path of a request for a batch."""
        return f"/v1/ml/moss/{urllib.parse.quote(self.bucket, safe='')}"

    def bucket_path(self) -> str:
        """Return the path of a request about the bucket."""
        return f"/v1/buckets/{urllib.parse.quote(self.bucket, safe='')}"

    def of_bucket(self) -> dict[str, str]:
        """Return what a query says about the bucket."""
        return {"provider": self.provider, **({"namespace": self.namespace} if self.namespace else {})}

    def hint(self) -> str:
        """Return what to write instead, where the name looks like a member of an archive."""
        found = _MEMBER.search(self.name)
        return "" if found is None else "; a member of an archive is written ais://bucket/shard.tar?archpath=member"


def parse_url(url: str, provider: str | None = None) -> AistoreLocation:
    """Return what a url names.

    Args:
        url: the url.
        provider: where the bucket of an ``ais:`` url comes from; as AIStore names it, or as a scheme.

    Raises:
        UsageError: it names no bucket, or AIStore cannot be asked about it.
    """
    match = _URL.match(url)
    scheme = url.partition(":")[0].lower()
    if match is None or "@" in match["bucket"]:
        raise UsageError("an AIStore url is ais://bucket/object", url=url)
    if scheme in ("http", "https"):
        return _web_location(url)
    if scheme == "ais" and provider is not None:
        scheme = provider
    if scheme not in PROVIDERS:
        raise UsageError(f"AIStore has no provider for {scheme!r}: it has {', '.join(PROVIDERS)}", url=url)
    if re.search(r"\?versionId=[\w.~-]+\Z", match["name"]):
        raise UsageError("one version of an object is not read through AIStore: leave versionId out", url=url)
    if {".", ".."}.intersection((match["bucket"], *match["name"].split("/"))):
        raise UsageError("the name of an object has no parts '.' and '..'", url=url)
    asked = tuple(urllib.parse.parse_qsl((match["query"] or "").replace("+", "%2B"), keep_blank_values=True))
    return AistoreLocation(
        PROVIDERS[scheme], (match["namespace"] or "").rstrip("/"), match["bucket"], match["name"], asked
    )


def _web_location(url: str) -> AistoreLocation:
    """Return the place of a web url: AIStore keeps the files of one folder in one bucket."""
    folder, _, name = url.partition("?")[0].partition("#")[0].rpartition("/")
    if not name:
        raise UsageError("names no object: a url of a folder cannot be read through AIStore", url=url)
    bucket = f"web-{hashlib.sha256(folder.encode('utf-8', 'surrogateescape')).hexdigest()[:16]}"
    return AistoreLocation("ht", "", bucket, urllib.parse.unquote(name), (), url)


def split(url: str) -> tuple[str, str]:
    """Return a url up to its object's name, and the name; see :mod:`webdataset.storage.open_url`."""
    place = parse_url(url)
    if place.asked:
        raise UsageError("a list of objects has no query", url=url)
    return url[: len(url) - len(place.name)], place.name


UPLOAD_PIECE_BYTES = 1 << 20
ANSWER_SECONDS = 2.0
"""How long a gateway may take to answer before the body is sent after all."""

STORED_SECONDS = 600.0
"""How long the cluster may take to store what has been sent: it may send it on to another store first."""


class UploadReply(NamedTuple):
    """What came back.

    Args:
        status: of the answer.
        headers: of the answer, by name in any case.
        error_body: the beginning of its body.
    """

    status: int
    headers: Any
    error_body: bytes


def put_file(
    url: str,
    headers: Mapping[str, str],
    file: Any,
    size: int,
    tls: Mapping[str, str],
    *,
    seconds: float,
    asking: bool,
) -> UploadReply:
    """Send a file by PUT.

    Args:
        url: where to.
        headers: request headers.
        file: what to send, from its beginning.
        size: bytes of it.
        tls: which certificates to trust; names as for :func:`webdataset.storage.http_client.send`.
        seconds: bound on each wait.
        asking: give the server time to answer before the body is sent.

    Raises:
        OSError: the connection failed.
        http.client.HTTPException: what came is no answer.
        ConfigError: a header that cannot be.
    """
    refuse_unsendable(headers)
    parts = urllib.parse.urlsplit(url)
    with _connect(parts, tls, seconds) as connection:
        connection.putrequest("PUT", urllib.parse.urlunsplit(("", "", parts.path, parts.query, "")))
        for name, text in {**headers, "User-Agent": "webdataset", "Content-Length": str(size)}.items():
            connection.putheader(name, text)
        connection.endheaders()
        response = _read_early_answer(connection) if asking else None
        if response is None:
            connection.sock.settimeout(seconds)
            _send_body(connection, file)
            response = connection.getresponse()
        return UploadReply(response.status, response.headers, response.read(2000))


def _read_early_answer(connection: http.client.HTTPConnection) -> http.client.HTTPResponse | None:
    """Return the answer to the headers, or None where none comes: the server waits for the body."""
    response = http.client.HTTPResponse(connection.sock, method="PUT")
    connection.sock.settimeout(ANSWER_SECONDS)
    try:
        response.fp.peek(1)
    except TimeoutError:
        response.close()
        return None
    response.begin()
    return response


def _send_body(connection: http.client.HTTPConnection, file: Any) -> None:
    file.seek(0)
    try:
        while piece := file.read(UPLOAD_PIECE_BYTES):
            connection.send(piece)
    except (BrokenPipeError, ConnectionResetError):
        connection.sock.settimeout(1.0)  # an answer may have come before
    else:
        connection.sock.settimeout(STORED_SECONDS)


@contextlib.contextmanager
def _connect(
    parts: urllib.parse.SplitResult, tls: Mapping[str, str], seconds: float
) -> Iterator[http.client.HTTPConnection]:
    if parts.scheme == "https":
        context = context_for(tls, importlib.import_module("urllib3"))
        connection: http.client.HTTPConnection = http.client.HTTPSConnection(
            parts.netloc, timeout=seconds, context=context
        )
    else:
        connection = http.client.HTTPConnection(parts.netloc, timeout=seconds)
    try:
        connection.connect()
        yield connection
    finally:
        connection.close()
