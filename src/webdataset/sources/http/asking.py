"""Requests to a web server, with what its user says about it: headers, tokens, whom to trust.

Flows in: a url and storage options. Flows out: answers, or errors in the words of this library. What may be a secret
goes to the first host only: a redirect to another one takes no header of the user along. The url is asked for anew by
each request, so that redirects to signed places, which expire, are resolved again; secrets are looked up anew, too.
"""

import os
import re
from collections.abc import Mapping
from typing import Any

from webdataset.ground import settings
from webdataset.ground.errors import ConfigError, NotFound, SourceError
from webdataset.ground.redaction import redacted
from webdataset.sources import connections
from webdataset.sources.objects import Again
from webdataset.sources.patience import wish_of
from webdataset.sources.profiles.options import options_for
from webdataset.sources.profiles.secret import Secret
from webdataset.sources.rest import BUSY

_ABSENT = frozenset((404, 410))
_SIGNED = re.compile(r"[?&](?:x-(?:amz|goog)-signature|signature|sig)=", re.IGNORECASE)
_WILD = re.compile(r"\A[^?#]*[*]")
_WAYS_OUT = {
    401: "check the credentials",
    403: "check the credentials",
    407: "a proxy wants credentials: check the user and password in HTTP_PROXY or HTTPS_PROXY, or except the host by "
    "NO_PROXY",
}
_EXPIRED = "the url is signed: its signature may have expired, or is of another object; sign it anew"
_WAYS_OUT_OF_PUT = {
    405: "this server does not take uploads by PUT",
    409: "a folder is missing on the server",
    411: "this server wants a length",
    413: "it is larger than this server takes",
    507: "no space is left there",
}


class Asking:
    """Requests about one url.

    Args:
        url: the url; ``user:password@`` in it becomes Basic authorization.
        storage_options: options of this store.
        headers: further request headers.

    Raises:
        ConfigError: options that make no sense.
    """

    def __init__(self, url: str, storage_options: Any = None, headers: Mapping[str, str] | None = None) -> None:
        self.url = url
        found = options_for("http", storage_options, url)
        given = [*found.get("headers", ()), *((headers or {}).items())]
        self._headers = {name: _hidden(value) for name, value in given}
        self._token: Secret | None = found.get("token")
        self._tls = _tls(found.get("verify"), url)

    def ask(
        self,
        method: str,
        wanted: Mapping[str, str],
        timeouts: tuple[float, float],
        body: Any = None,
    ) -> Any:
        """Send one request.

        Args:
            method: ``GET`` or ``PUT``.
            wanted: request headers beside those of the user.
            timeouts: seconds to connect, seconds without a byte.
            body: what is sent along.

        Returns:
            An answer, its body unread, whatever its status.

        Raises:
            Again: no answer came.
            SourceError: the certificate is not trusted, or redirects lead nowhere.
            UsageError: the url makes no sense.
        """
        private = {name: value.reveal() for name, value in self._headers.items()}
        if self._token is not None:
            private["Authorization"] = f"Bearer {self._token.reveal()}"
        response, said = None, ""
        try:
            response = connections.send(
                method, self.url, {**private, **wanted}, timeouts, body, tls=self._tls, private=frozenset(private)
            )
        except connections.unanswered() as error:
            said = redacted(str(getattr(error, "reason", None) or error))
        if response is not None:
            return response
        # raised here, since the errors of urllib3 show the url as it is
        if "Tunnel connection failed: 40" in said:  # 407, 403: nothing that waiting would change
            raise SourceError(f"a proxy refuses ({said}): {_WAYS_OUT[407]}", url=self.url)
        if "redirects" in said:
            raise SourceError(said, url=self.url)
        if "CERTIFICATE_VERIFY_FAILED" in said or "doesn't match" in said:
            raise SourceError(
                f"the server's certificate is not trusted ({said}): name the certificates of whoever signed it by "
                "verify in storage_options, or by SSL_CERT_FILE or REQUESTS_CA_BUNDLE",
                url=self.url,
            )
        raise Again(f"no answer from the server: {said}")

    def refused(self, response: Any, *, reading: bool = False, upload: bool = False) -> Again | SourceError:
        """Return the error to raise for an answer that is no success; its connection is given back.

        Args:
            response: the answer.
            reading: bytes of the object were had before, so that the credentials were good then.
            upload: something was to be written.
        """
        response.close()
        status = f"the server answered {response.status} {response.reason or ''}".rstrip()
        if response.status in BUSY:
            return Again(
                status, wait_seconds=wish_of(response.headers.get("Retry-After"), response.headers.get("Date"))
            )
        if response.status in _ABSENT:
            wild = "; web servers give no lists, and wildcards are taken as they stand: write {000..099}"
            return NotFound(status + (wild if _WILD.search(self.url) else ""), url=self.url)
        hints = {**_WAYS_OUT, **(_WAYS_OUT_OF_PUT if upload else {})}
        hint = _EXPIRED if response.status in (401, 403) and _SIGNED.search(self.url) else hints.get(response.status)
        status = f"{status}; {hint}" if hint else status
        if reading and response.status in (401, 403):  # a token, or the place redirected to, has expired
            return Again(status, expired=True)
        return SourceError(status, url=self.url)


def _hidden(value: Any) -> Secret:
    return value if isinstance(value, Secret) else Secret.literal(str(value))


def _tls(verify: Any, url: str) -> connections.Tls:
    """Return whom to trust; certificates that ``SSL_CERT_FILE`` names are known to OpenSSL itself."""
    if verify is False:
        return (("cert_reqs", "CERT_NONE"),)
    place = settings.REQUESTS_CA_BUNDLE.get() if verify in (None, True) else verify
    if place is None:
        return ()
    if not isinstance(place, str):
        raise ConfigError("verify is the path of a file of certificates, or False", url=url)
    if url[:6].lower() != "https:":
        return ()
    path = settings.home_expanded(place)
    if os.path.isdir(path):  # noqa: PTH112  as other programs take it
        return (("ca_cert_dir", path),)
    if not os.path.exists(path):  # noqa: PTH110  urllib3 would say it at each attempt, and not which file
        source = "verify in storage_options" if isinstance(verify, str) else "REQUESTS_CA_BUNDLE"
        raise ConfigError(f"{source} names certificates that are not there: {path}", url=url)
    return (("ca_certs", path),)


def service_of(url: str, storage_options: Any = None) -> str:
    """Return which account a url is opened with, without secrets; see :mod:`webdataset.sources.stores`."""
    found = options_for("http", storage_options, url)
    given = [*found.get("headers", ()), *([("token", found["token"])] if "token" in found else ())]
    return " ".join(sorted(f"{name}={value.reference or ''}" for name, value in given))
