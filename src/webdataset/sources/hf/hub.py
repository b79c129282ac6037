"""Requests to the Hugging Face hub, and on to the servers that have the bytes.

Flows in: a path on the hub. Flows out: the answer, and what the hub said about the file before it sent us on. The token
goes to the hub's own address and to nobody else: urls that it redirects to carry signatures of their own, and are asked
without it. They expire soon, so that every attempt begins at the hub.
"""

import json
import re
import urllib.parse
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from webdataset.ground import settings
from webdataset.ground.errors import ConfigError, SourceError
from webdataset.ground.redaction import redacted
from webdataset.sources import connections, rest
from webdataset.sources.objects import Again
from webdataset.sources.profiles.options import options_for, refuse_login
from webdataset.sources.profiles.secret import Secret

from .errors import refusal, refused_elsewhere
from .places import HubPlace

HOPS = 8
REDIRECTED = frozenset((301, 302, 303, 307, 308))
_NEXT = re.compile(r"<([^>]*)>\s*;\s*rel=\"?next\"?")


class Told(NamedTuple):
    """An answer, and what the hub's own headers said on the way to it.

    Args:
        response: its body is still to be read; the status is below 300.
        headers: of the hub's last answer: of the file, where the bytes come from elsewhere.
        elsewhere: the signed url where the bytes come from; empty where it is the hub itself.
    """

    response: Any
    headers: Mapping[str, str]
    elsewhere: str


class Hub:
    """The hub, as one dataset or one process knows it.

    Args:
        storage_options: ``token``, ``endpoint_url``; what they leave out says the environment.
        url: what is to be opened, for errors.

    Attributes:
        endpoint: url, without a slash at its end.

    Raises:
        ConfigError: options that make no sense.
    """

    def __init__(self, storage_options: Any, url: str) -> None:
        self._options = options_for("hf", storage_options, url)
        self._url = url
        self.endpoint = str(self._options.get("endpoint_url") or settings.HF_ENDPOINT.get()).rstrip("/")
        refuse_login(self.endpoint, "HF_ENDPOINT", url)
        if not self.endpoint.startswith(("http://", "https://")):
            raise ConfigError(f"HF_ENDPOINT is {self.endpoint!r}: the hub's url is http(s)://host", url=url)

    def get(self, path: str, headers: Mapping[str, str], place: HubPlace) -> Told:
        """Ask the hub once, and whom it names.

        Args:
            path: of the url on the hub, or a whole url that the hub gave.
            headers: request headers.
            place: what is asked for, for errors.

        Raises:
            Again: asking again, at the hub, may help.
            NotFound: nothing is there.
            ShardChanged: a range that the file does not have.
            SourceError: the hub refuses.
        """
        target = path if path.startswith(("http://", "https://")) else f"{self.endpoint}{path}"
        heard: Mapping[str, str] = {}
        for _ in range(HOPS):
            ours = self._is_hub(target)
            response = self._sent(target, {**headers, **(self.authorization() if ours else {})})
            heard = response.headers if ours else heard
            if response.status not in REDIRECTED:
                break
            response.close()
            target = self._followed(target, response.headers.get("Location", ""))
        else:
            raise SourceError(f"the hub redirected the request more than {HOPS} times", url=self._url)
        if response.status < 300:
            return Told(response, heard, "" if ours else target)
        response.close()
        if ours:
            raise refusal(response.status, response.headers, self._url, self.endpoint + place.page())
        raise refused_elsewhere(response.status, response.headers, self._url)

    def get_again(self, told: Told, headers: Mapping[str, str]) -> Told | None:
        """Ask the server that the hub named before, by the same signed url; None where it does not answer with bytes.

        Args:
            told: an earlier answer whose bytes came from elsewhere.
            headers: request headers.
        """
        try:
            response = self._sent(told.elsewhere, headers)
        except (Again, SourceError):
            return None
        if response.status in (200, 206):
            return told._replace(response=response)
        response.close()
        return None

    def pages(self, path: str, place: HubPlace) -> Any:
        """Give what a list of the hub holds, page by page.

        Args:
            path: of the url on the hub.
            place: what is asked for, for errors.

        Yields:
            Values of JSON.

        Raises:
            NotFound: no such repository, revision or folder.
            SourceError: the hub refuses, or does not answer.
        """
        following: str | None = path
        while following is not None:
            page, link = self._page(following, place)
            yield from page
            found = _NEXT.search(link)
            there = None if found is None else urllib.parse.urljoin(self.endpoint + "/", found[1])
            following = rest.next_page(there, following, self._url)
            if following is not None and not self._is_hub(following):
                raise SourceError("the hub's list goes on at another address: not followed", url=self._url)

    def _page(self, target: str, place: HubPlace) -> tuple[list[Any], str]:
        def once() -> tuple[list[Any], str]:
            told = self.get(target, {"Accept": "application/json"}, place)
            return self._parsed(told.response), told.headers.get("Link", "")

        return rest.patiently(once, self._url, lambda: None)

    def _parsed(self, response: Any) -> list[Any]:
        known: tuple[type[Exception], ...] = (*connections.failures(), ValueError)
        try:
            found = json.loads(response.read())
        except known as error:
            failure = redacted(f"{type(error).__name__}: {error}")
        else:
            if isinstance(found, list):
                return found
            failure = "it is no list"
        finally:
            response.close()
        raise Again(f"the answer is not what was asked for: {failure}")

    def _sent(self, target: str, headers: Mapping[str, str]) -> Any:
        try:
            return connections.send("GET", target, headers, (rest.CONNECT_SECONDS, rest.READ_SECONDS), redirects=0)
        except connections.unanswered() as error:
            said = redacted(str(getattr(error, "reason", None) or error))
        if "CERTIFICATE_VERIFY_FAILED" in said:
            raise SourceError(f"the server's certificate is not trusted: {said}", url=self._url)
        raise Again(f"no answer from {_host(target)}: {said}")  # here: the error of urllib3 shows the signed url

    def _is_hub(self, target: str) -> bool:
        """Tell whether a url is at the hub's own address: scheme, host and port."""
        return _address(target) == _address(self.endpoint)

    def _followed(self, target: str, location: str) -> str:
        there = urllib.parse.urljoin(target, location)
        secure = there.lower().startswith("https://")
        if not location or not (secure or (there.lower().startswith("http://") and target.startswith("http://"))):
            raise SourceError("redirected to something that is no http url, or from https to http", url=self._url)
        return there

    def authorization(self) -> dict[str, str]:
        """Return the header with the token, looked up now; empty without one."""
        token = self.token()
        return {"Authorization": f"Bearer {token}"} if token else {}

    def token(self) -> str:
        """Return the token: of the options, the environment, or the file that ``hf auth login`` writes; or empty.

        Raises:
            ConfigError: a token is named and cannot be found.
        """
        given = self._options.get("token")
        if isinstance(given, Secret):
            return given.reveal()
        if given is False:
            return ""
        found = settings.HF_TOKEN.get() or settings.HUGGING_FACE_HUB_TOKEN.get()
        return (found or _of_file()).strip()

    def service(self) -> str:
        """Return which hub this is where it is not the one of everybody."""
        return "" if self.endpoint == settings.HF_ENDPOINT.default else f"hf {self.endpoint}"


def _of_file() -> str:
    home = settings.HF_HOME.get() or f"{settings.CACHE_HOME.get()}/huggingface"
    place = settings.HF_TOKEN_PATH.get() or f"{home}/token"
    try:
        with Path(settings.environment_expanded(place)).open("rb") as file:
            return file.read(1 << 12).decode("ascii", "ignore").strip()
    except OSError:
        return ""


def _address(url: str) -> tuple[str, str | None, int | None] | None:
    """Return scheme, host and port, or None for what is no url."""
    try:
        parts = urllib.parse.urlsplit(url)
        port = parts.port
    except ValueError:
        return None
    return parts.scheme, parts.hostname, port or {"http": 80, "https": 443}.get(parts.scheme)


def _host(url: str) -> str:
    return (_address(url) or ("", "?", 0))[1] or "?"


def service_of(url: str, storage_options: Any = None) -> str:
    """Return which hub serves a url, where it is not the one of everybody; see :mod:`webdataset.sources.stores`."""
    return Hub(storage_options, url).service()
