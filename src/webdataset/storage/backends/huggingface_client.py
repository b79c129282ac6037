"""Hugging Face locations, requests to the hub and the servers that it redirects to, and error translation.

A url has the form of the hub's own file system: ``hf://datasets/user/repo@revision/path``. The revision is
percent-decoded (``refs%2Fpr%2F1``), as by ``huggingface_hub``; nothing in the path is.

The token goes to the address of the hub and never elsewhere: the urls that the hub redirects to carry signatures of
their own. They expire soon, so that every attempt begins at the hub.
"""

import re
import urllib.parse
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from webdataset.core import settings
from webdataset.core.errors import ConfigError, NotFound, SourceError, UsageError
from webdataset.core.redaction import redact
from webdataset.storage import http_client
from webdataset.storage.http_client import ABSENT, CHANGED, HttpResponse, Transport, translate_status
from webdataset.storage.http_object import read_json
from webdataset.storage.object_store import object_changed_error
from webdataset.storage.retries import BUSY, RetryableError, parse_retry_after, retry
from webdataset.storage.s3_profile import Secret
from webdataset.storage.storage_options import options_for, refuse_login

_ABSENT = {
    "RepoNotFound": "there is no such repository, or it is private: check the name, log in (hf auth login, HF_TOKEN)",
    "RevisionNotFound": "the repository has no such branch, tag or commit",
    "EntryNotFound": "the repository has no such file in this revision",
}
_RESET = re.compile(r"\bt=(\d{1,5})\b")


def translate_refusal(status: int, headers: Mapping[str, str], url: str, page: str) -> RetryableError | SourceError:
    """Return the error to raise for a refusal of the hub.

    Args:
        status: of the response.
        headers: of the response.
        url: the url of the user.
        page: where people look at the repository.
    """
    code, reason = headers.get("X-Error-Code", ""), headers.get("X-Error-Message", "")
    text = redact(f"the hub answered {status}" + (f" {code}" if code else "") + (f": {reason[:300]}" if reason else ""))
    if code == "GatedRepo" and status not in BUSY | CHANGED:
        return SourceError(
            f"{text}; the repository is gated: accept its terms at {page}, and give a token of that account "
            "(hf auth login, or HF_TOKEN)",
            url=url,
        )
    if status not in BUSY | CHANGED and (code in _ABSENT or status in ABSENT):
        return NotFound(f"{text}; {_ABSENT.get(code, 'check repository, revision and path')}", url=url)
    reset = _RESET.search(headers.get("RateLimit", "")) if status == 429 else None
    if reset and not headers.get("Retry-After"):
        headers = {"Retry-After": reset[1]}
    hint = {
        401: "the repository is private or does not exist, or the token is not valid: hf auth login, or HF_TOKEN",
        403: f"this token may not read it: see {page}, and the token's permissions",
    }.get(status, "")
    return translate_status(status, headers, text, url=url, hint=hint)


def translate_storage_refusal(status: int, headers: Mapping[str, str], url: str) -> RetryableError | SourceError:
    """Return the error to raise for a refusal of the server that has the bytes: its signed urls expire."""
    if status in CHANGED:
        return object_changed_error(url, 0)
    return RetryableError(
        f"the server that the hub names answered {status}",
        wait_seconds=parse_retry_after(headers.get("Retry-After"), headers.get("Date")),
        expired=status in (400, 401, 403),
    )


MAIN = "main"
_REVISION = r"(?:@(?P<revision>refs/(?:convert|pr)/[^/]+|[^/]+))?"
_KIND = r"hf://(?:(?P<kind>datasets|spaces|models)/)?(?!(?:datasets|spaces|models)/)"
_URLS = (
    re.compile(rf"{_KIND}(?P<repo>[\w.-]+/[\w.-]+){_REVISION}(?:/(?P<path>.*))", re.IGNORECASE | re.DOTALL),
    re.compile(rf"{_KIND}(?P<repo>[\w.-]+){_REVISION}(?:/(?P<path>.*))", re.IGNORECASE | re.DOTALL),
)


class HubLocation(NamedTuple):
    """Where a file lies.

    Args:
        kind: ``datasets``, ``spaces`` or ``models``.
        repo: ``user/name``, or ``name`` alone for the oldest repositories.
        revision: branch, tag or commit.
        path: of the file in the repository; empty for the repository itself.
    """

    kind: str
    repo: str
    revision: str
    path: str

    def resolve(self) -> str:
        """Return the path of the url that leads to the file's bytes."""
        prefix = "" if self.kind == "models" else f"{self.kind}/"
        revision = urllib.parse.quote(self.revision, safe="")
        return f"/{prefix}{self.repo}/resolve/{revision}/{urllib.parse.quote(self.path, safe='/')}"

    def tree(self, folder: str) -> str:
        """Return the path of the url that lists a folder.

        Args:
            folder: in the repository; empty for all of it.
        """
        revision = urllib.parse.quote(self.revision, safe="")
        return f"/api/{self.kind}/{self.repo}/tree/{revision}/{urllib.parse.quote(folder, safe='/')}".rstrip("/")

    def page(self) -> str:
        """Return the path of the page where people look at the repository."""
        return f"/{self.repo}" if self.kind == "models" else f"/{self.kind}/{self.repo}"


def parse_url(url: str) -> HubLocation:
    """Return what a url names.

    Raises:
        UsageError: it names no repository.
    """
    match = next(filter(None, (pattern.fullmatch(url) for pattern in _URLS)), None)
    if match is None or url.lower().startswith("hf://buckets/"):
        raise UsageError("a url of the hub is hf://datasets/user/repo[@revision]/path or hf://user/model/path", url=url)
    if {".", ".."}.intersection((*match["path"].split("/"), *match["repo"].split("/"))):
        raise UsageError("a path in a repository has no parts '.' and '..'", url=url)
    revision = urllib.parse.unquote(match["revision"] or MAIN)
    if revision in (".", ".."):
        raise UsageError("no revision has the name '.' or '..'", url=url)
    return HubLocation((match["kind"] or "models").lower(), match["repo"], revision, match["path"])


def split(url: str) -> tuple[str, str]:
    """Return a url up to its path, and the path."""
    path = parse_url(url).path
    return (url[: len(url) - len(path)], path) if path else (url, "")


HOPS = 8
REDIRECTED = frozenset((301, 302, 303, 307, 308))
_NEXT = re.compile(r"<([^>]*)>\s*;\s*rel=\"?next\"?")


class HubFile(NamedTuple):
    """A response, and what the hub's own headers said on the way to it.

    Args:
        response: its body is unread; the status is below 300.
        headers: of the hub's last response: of the file, where the bytes come from elsewhere.
        elsewhere: the signed url where the bytes come from; empty where it is the hub itself.
    """

    response: HttpResponse
    headers: Mapping[str, str]
    elsewhere: str


class HubClient:
    """Requests to the hub.

    Args:
        storage_options: ``token``, ``endpoint_url``; the environment fills in the others.
        url: the url of the user, for errors.

    Attributes:
        endpoint: url, without a slash at its end.

    Raises:
        ConfigError: options that make no sense.
    """

    def __init__(self, storage_options: object, url: str) -> None:
        self._options = options_for("hf", storage_options, url)
        self._url = url
        self.endpoint = str(self._options.get("endpoint_url") or settings.HF_ENDPOINT.get()).rstrip("/")
        refuse_login(self.endpoint, "HF_ENDPOINT", url)
        if not self.endpoint.startswith(("http://", "https://")):
            raise ConfigError(f"HF_ENDPOINT is {self.endpoint!r}: the hub's url is http(s)://host", url=url)

    def get(self, path: str, headers: Mapping[str, str], place: HubLocation) -> HubFile:
        """Request a file once, of the hub, and of the server that it redirects to.

        Args:
            path: of the url on the hub, or a whole url that the hub gave.
            headers: request headers.
            place: the file, for errors.

        Raises:
            RetryableError: a retry, which begins at the hub, may help.
            NotFound: nothing is there.
            ShardChanged: a range that the file does not have.
            SourceError: the hub refuses.
        """
        target = path if path.startswith(("http://", "https://")) else f"{self.endpoint}{path}"
        heard: Mapping[str, str] = {}
        for _ in range(HOPS):
            ours = self._is_hub(target)
            response = self._send_request(target, {**headers, **(self.authorization() if ours else {})})
            heard = response.headers if ours else heard
            if response.status not in REDIRECTED:
                break
            response.close()
            target = self._redirect_target(target, response.headers.get("Location", ""))
        else:
            raise SourceError(f"the hub redirected the request more than {HOPS} times", url=self._url)
        if response.status < 300:
            return HubFile(response, heard, "" if ours else target)
        response.close()
        if ours:
            raise translate_refusal(response.status, response.headers, self._url, self.endpoint + place.page())
        raise translate_storage_refusal(response.status, response.headers, self._url)

    def get_by_signed_url(self, signed_url: str, headers: Mapping[str, str]) -> HttpResponse | None:
        """Request more of a file by a signed url that the hub gave before; None where no bytes come.

        Args:
            signed_url: where an earlier response came from.
            headers: request headers.
        """
        try:
            response = self._send_request(signed_url, headers)
        except (RetryableError, SourceError):
            return None
        if response.status in (200, 206):
            return response
        response.close()
        return None

    def list_files(self, path: str, place: HubLocation) -> Iterator[str]:
        """Yield the paths of the files in a list of the hub.

        Args:
            path: of the url on the hub.
            place: the repository, for errors.

        Raises:
            NotFound: no such repository, revision or folder.
            SourceError: the hub refuses, or does not answer.
        """

        def page(target: str | None) -> tuple[Iterable[str], str | None]:
            entries, link = retry(lambda: self._fetch_page(target or path, place), self._url, lambda: None)
            found = _NEXT.search(link)
            following = None if found is None else urllib.parse.urljoin(self.endpoint + "/", found[1])
            if following is not None and not self._is_hub(following):
                raise SourceError("the hub's list continues at another address: not followed", url=self._url)
            return (str(entry["path"]) for entry in entries if entry.get("type") == "file"), following

        return http_client.list_pages(page, self._url)

    def _fetch_page(self, target: str, place: HubLocation) -> tuple[list[dict[str, object]], str]:
        """Return the entries of a page, and its header ``Link``."""
        file = self.get(target, {"Accept": "application/json"}, place)
        found = read_json(file.response)
        if not isinstance(found, list):
            raise RetryableError("the answer is not what was asked for: it is no list")
        return found, file.headers.get("Link", "")

    def _send_request(self, target: str, headers: Mapping[str, str]) -> HttpResponse:
        return http_client.send_once("GET", target, headers, self._url, transport=Transport(service=_host_name(target)))

    def _is_hub(self, target: str) -> bool:
        """Tell whether a url is at the hub's own address: scheme, host and port."""
        return _split_address(target) == _split_address(self.endpoint)

    def _redirect_target(self, target: str, location: str) -> str:
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
        return (found or _token_from_file()).strip()

    def service(self) -> str:
        """Return the address of the hub, unless it is the public one."""
        return "" if self.endpoint == settings.HF_ENDPOINT.default else f"hf {self.endpoint}"


def _token_from_file() -> str:
    home = settings.HF_HOME.get() or f"{settings.CACHE_HOME.get()}/huggingface"
    place = settings.HF_TOKEN_PATH.get() or f"{home}/token"
    try:
        with Path(settings.expand_environment(place)).open("rb") as file:
            return file.read(1 << 12).decode("ascii", "ignore").strip()
    except OSError:
        return ""


def _split_address(url: str) -> tuple[str, str | None, int | None] | None:
    """Return scheme, host and port; None for what is no url."""
    try:
        parts = urllib.parse.urlsplit(url)
        port = parts.port
    except ValueError:
        return None
    return parts.scheme, parts.hostname, port or {"http": 80, "https": 443}.get(parts.scheme)


def _host_name(url: str) -> str:
    return (_split_address(url) or ("", "?", 0))[1] or "?"


def service_id(url: str, storage_options: object = None) -> str:
    """Return the address of the hub, unless it is the public one."""
    return HubClient(storage_options, url).service()
