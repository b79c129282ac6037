"""Requests to an AIStore cluster: asked at a gateway, answered by whom the gateway names.

Flows in: a request. Flows out: the answer of the node that has the object. A gateway answers 307 with the url of a
target, which is followed as it stands: same method, same body, same headers, the token among them, since targets of a
guarded cluster may ask for it. So the token goes wherever the gateway says; therefore gateways are named by the user
alone, no token goes from https to http, and hops are few. Every attempt begins at a gateway, where there are several
at the next one: targets come and go.
"""

import json
import urllib.parse
from collections.abc import Mapping
from typing import Any

from webdataset.ground import settings
from webdataset.ground.errors import ConfigError, SourceError
from webdataset.ground.redaction import redacted
from webdataset.sources import connections, rest
from webdataset.sources.objects import Again
from webdataset.sources.profiles.options import options_for, refuse_login
from webdataset.sources.profiles.secret import Secret

from .errors import refusal

HOPS = 5
REDIRECTED = frozenset((301, 302, 307, 308))


class Cluster:
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
            said = b"" if method == "HEAD" else _beginning(response)
            response.close()
            raise refusal(response.status, response.headers, said, self._url, reading=reading)
        except Again:
            self.next_gateway()
            raise

    def _sent_on(self, method: str, target: str, headers: Mapping[str, str], body: bytes | None) -> Any:
        """Send a request to a gateway, and on to where it says; return the first answer that leads nowhere else."""
        for _ in range(HOPS):
            response = self._sent(method, target, headers, body)
            if response.status not in REDIRECTED:
                return response
            response.close()
            target = self.followed(target, response.headers.get("Location", ""))
        raise SourceError(f"the cluster redirected the request more than {HOPS} times", url=self._url)

    def call(self, method: str, path: str, query: Mapping[str, str], body: Any = None) -> Any:
        """Send a request until it is answered, and return what the answer's JSON says; arguments as for :meth:`ask`.

        Raises:
            NotFound: nothing is there.
            SourceError: the cluster refuses, or does not answer.
        """
        headers = {"Accept": "application/json", "Content-Type": "application/json"}

        def once() -> Any:
            return self._parsed(self.ask(method, path, query, headers, json.dumps(body).encode()))

        return rest.patiently(once, self._url, lambda: None)

    def _parsed(self, response: Any) -> Any:
        try:
            return json.loads(response.read() or b"null")
        except connections.failures() as error:
            failure = redacted(f"{type(error).__name__}: {error}")
        except ValueError:
            failure = "what came is no JSON"
        finally:
            response.close()
        raise Again(f"the answer broke off: {failure}")

    def _sent(self, method: str, target: str, headers: Mapping[str, str], body: Any) -> Any:
        try:
            return connections.send(
                method, target, headers, (rest.CONNECT_SECONDS, rest.READ_SECONDS), body, redirects=0, tls=self.tls()
            )
        except connections.unanswered() as error:
            said = redacted(str(getattr(error, "reason", None) or error))
        raise unanswered(said, self._url)  # here, since the error of urllib3 shows the url as it is

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

    def followed(self, target: str, location: str) -> str:
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
        found = token.reveal() if isinstance(token, Secret) else settings.AIS_AUTHN_TOKEN.get() or _of_file()
        return {"Authorization": f"Bearer {found}"} if found else {}

    def tls(self) -> connections.Tls:
        """Return whom to trust, and what certificate to show."""
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


def unanswered(said: str, url: str) -> Again | SourceError:
    """Return the error to raise where no answer came.

    Args:
        said: why.
        url: what was asked for.
    """
    if "CERTIFICATE_VERIFY_FAILED" in said:
        return SourceError(f"the cluster's certificate is not trusted; set AIS_CLIENT_CA: {said}", url=url)
    return Again(f"no answer from the cluster: {said}")


def _of_file() -> str:
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


def _beginning(response: Any) -> bytes:
    try:
        return bytes(response.read(2000))
    except connections.failures():
        return b""


def service_of(url: str, storage_options: Any = None) -> str:
    """Return which cluster serves a url, without secrets; see :mod:`webdataset.sources.stores`."""
    return Cluster(storage_options, url).service()
