"""AIStore locations, requests to gateways and targets, large uploads, and error translation.

A url is ``ais://bucket/name``, or a url of another store that goes through AIStore. Nothing in the name of an object
is decoded; a ``?`` begins a query only where all that follows it is ``known=text&known=text``.

A gateway answers 307 with the url of a target, which is followed as it stands: same method, same body, same headers,
the token among them, since targets of a guarded cluster may require it. So the token goes wherever the gateway says;
therefore only the user names gateways, no token goes from https to http, and hops are few. Every attempt begins at a
gateway, where there are several at the next one: targets come and go.

A gateway answers a PUT as soon as it has read the headers, and closes the connection on a client that continues to
send. So the headers go first, and the body only if no answer comes. urllib3 cannot do this, and the standard library
can. Uploads use no proxy: they go to the cluster directly.
"""

import contextlib
import hashlib
import http.client
import importlib
import json
import re
import urllib.parse
from collections.abc import Iterator, Mapping
from typing import IO, Any, NamedTuple

from webdataset.core import settings
from webdataset.core.errors import ConfigError, SourceError, UsageError
from webdataset.storage import http_client
from webdataset.storage.http_client import HttpResponse, Transport, refuse_unsendable, translate_status
from webdataset.storage.http_object import override_headers, read_json
from webdataset.storage.retries import RetryableError, retry
from webdataset.storage.s3_profile import Secret
from webdataset.storage.storage_options import options_for, refuse_login
from webdataset.storage.tls import context_for

_WAYS_OUT = {
    401: "set AIS_AUTHN_TOKEN or AIS_AUTHN_TOKEN_FILE to a token that is valid",
    403: "this token may not do it: ask for access, or set AIS_AUTHN_TOKEN to another one",
    404: "check bucket, name and provider",
}


def translate_refusal(
    status: int, headers: Mapping[str, str], error_body: bytes, url: str, *, reading: bool = False
) -> RetryableError | SourceError:
    """Return the error to raise for a refusal of the cluster.

    Args:
        status: of the response, from 300 on.
        headers: of the response.
        error_body: the beginning of its body.
        url: the url of the user.
        reading: the token was good before; a new one may have come meanwhile.
    """
    expired = status == 401 and reading
    hint = "the token has expired" if expired else _WAYS_OUT.get(status, "")
    reason = f"the cluster answered {status}{_error_message(error_body)}"
    return translate_status(status, headers, reason, url=url, hint=hint, expired=expired)


def _error_message(body: bytes) -> str:
    """Return what an error body says, on one line."""
    try:
        found = json.loads(body)
        message = str(found.get("message", "")) if isinstance(found, dict) else ""
    except ValueError:
        message = body.decode("utf-8", "replace")
    message = " ".join(message.split())[:300]
    return f": {message}" if message else ""


CLUSTER = Transport(service="the cluster", trust_hint="set AIS_CLIENT_CA")
HOPS = 5
REDIRECTED = frozenset((301, 302, 307, 308))


class AistoreClient:
    """Requests to a cluster.

    Args:
        storage_options: ``endpoint_url``, ``token``, ``verify``, ``provider``; the environment fills in the others.
        url: the url of the user, for errors.

    Attributes:
        gateways: urls, without a slash at their end; empty where none is known.
        provider: where the buckets of ``ais:`` urls come from, or None.

    Raises:
        ConfigError: options that make no sense.
    """

    def __init__(self, storage_options: object, url: str) -> None:
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
    ) -> HttpResponse:
        """Send one request to a gateway, and follow its redirects.

        Args:
            method: ``GET`` ….
            path: ``/v1/…``.
            query: names to texts.
            headers: request headers beside the usual ones.
            body: what to send along at every hop.
            reading: the token was good before; if it is refused now, a new one may come.

        Returns:
            A response, its body unread, with a status below 300.

        Raises:
            RetryableError: a retry, which begins at a gateway, may help.
            NotFound: nothing is there.
            SourceError: the cluster refuses.
            ConfigError: no gateway is known.
        """
        target = f"{self.gateway()}{path}?{urllib.parse.urlencode(query)}"
        try:
            response = self._follow(method, target, {**headers, **self.authorization()}, body)
            if response.status < 300:
                return response
            error_body = b"" if method == "HEAD" else _read_beginning(response)
            response.close()
            raise translate_refusal(response.status, response.headers, error_body, self._url, reading=reading)
        except RetryableError:
            self.next_gateway()
            raise

    def _follow(self, method: str, target: str, headers: Mapping[str, str], body: bytes | None) -> HttpResponse:
        """Send a request, and follow redirects to the first response that is none."""
        for _ in range(HOPS):
            response = self._send_request(method, target, headers, body)
            if response.status not in REDIRECTED:
                return response
            response.close()
            target = self.redirect_target(target, response.headers.get("Location", ""))
        raise too_many_hops_error(self._url)

    def call(self, method: str, path: str, query: Mapping[str, str], body: object = None) -> dict[str, Any]:
        """Send a request until it has a response, and return what its JSON says; arguments as for :meth:`ask`.

        Raises:
            NotFound: nothing is there.
            SourceError: the cluster refuses, or does not answer.
        """
        headers = {"Accept": "application/json", "Content-Type": "application/json"}

        def ask() -> dict[str, Any]:
            found = read_json(self.ask(method, path, query, headers, json.dumps(body).encode()))
            return found if isinstance(found, dict) else {}

        return retry(ask, self._url, lambda: None)

    def _send_request(self, method: str, target: str, headers: Mapping[str, str], body: bytes | None) -> HttpResponse:
        transport = CLUSTER._replace(tls=self.tls())
        return http_client.send_once(method, target, headers, self._url, body=body, transport=transport)

    def gateway(self) -> str:
        """Return the gateway to begin at.

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
        """Begin at another gateway from now on, where there are several."""
        self._turn += 1

    def redirect_target(self, target: str, location: str) -> str:
        """Return where a redirect leads.

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


def too_many_hops_error(url: str) -> SourceError:
    """Return the error to raise where redirects have no end."""
    return SourceError(f"the cluster redirected the request more than {HOPS} times", url=url)


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
    # no traceback shows it
    text = ""
    if not isinstance(token, str) or not token:
        raise ConfigError(f"the file {place}, which AIS_AUTHN_TOKEN_FILE names, is no JSON with a 'token'")
    return token


def _read_beginning(response: HttpResponse) -> bytes:
    try:
        return bytes(response.read(2000))
    except http_client.failures():
        return b""


def service_id(url: str, storage_options: object = None) -> str:
    """Return which cluster serves a url, without secrets."""
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
        name: the object's name; empty for the bucket itself.
        asked: the url's query: a member of an archive, a transformation.
        original: the url itself, where AIStore has to fetch it from the web.
    """

    provider: str
    namespace: str
    bucket: str
    name: str
    asked: tuple[tuple[str, str], ...] = ()
    original: str = ""

    def whole(self) -> bool:
        """Tell whether this is the object as it is stored, and not a member or a transformation of it."""
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
        """Return the query of a request about the bucket."""
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
    """Return the location of a web url: AIStore keeps the files of one folder in one bucket."""
    folder, _, name = url.partition("?")[0].partition("#")[0].rpartition("/")
    if not name:
        raise UsageError("names no object: a url of a folder cannot be read through AIStore", url=url)
    bucket = f"web-{hashlib.sha256(folder.encode('utf-8', 'surrogateescape')).hexdigest()[:16]}"
    return AistoreLocation("ht", "", bucket, urllib.parse.unquote(name), (), url)


def split(url: str) -> tuple[str, str]:
    """Return a url up to its object's name, and the name."""
    place = parse_url(url)
    if place.asked:
        raise UsageError("a list of objects has no query", url=url)
    return url[: len(url) - len(place.name)], place.name


UPLOAD_PIECE_BYTES = 1 << 20
ANSWER_SECONDS = 2.0
"""How long a gateway may take to answer before the body goes out."""

STORED_SECONDS = 600.0
"""How long the cluster may take to store a body: it may send it on to another store first."""


class UploadReply(NamedTuple):
    """A response.

    Args:
        status: its status code.
        headers: its headers, by name in any case.
        error_body: the beginning of its body.
    """

    status: int
    headers: Mapping[str, str]
    error_body: bytes


def put_file(
    url: str,
    headers: Mapping[str, str],
    file: IO[bytes],
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
        file: the body, from its beginning.
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
        return UploadReply(response.status, override_headers(dict(response.headers.items()), {}), response.read(2000))


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


def _send_body(connection: http.client.HTTPConnection, file: IO[bytes]) -> None:
    file.seek(0)
    try:
        while piece := file.read(UPLOAD_PIECE_BYTES):
            connection.send(piece)
    except (BrokenPipeError, ConnectionResetError):
        # an answer may have come before
        connection.sock.settimeout(1.0)
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
