"""What a ``hf:`` url names, in the form of the hub's own file system: ``hf://datasets/user/repo@revision/path``.

Flows in: a url. Flows out: kind, repository, revision and path. The revision is percent-decoded (``refs%2Fpr%2F1``), as
``huggingface_hub`` does; nothing in the path is.
"""

import re
import urllib.parse
from typing import NamedTuple

from webdataset.ground.errors import UsageError

MAIN = "main"
_REVISION = r"(?:@(?P<revision>refs/(?:convert|pr)/[^/]+|[^/]+))?"
_KIND = r"hf://(?:(?P<kind>datasets|spaces|models)/)?(?!(?:datasets|spaces|models)/)"
_URLS = (
    re.compile(rf"{_KIND}(?P<repo>[\w.-]+/[\w.-]+){_REVISION}(?:/(?P<path>.*))", re.IGNORECASE | re.DOTALL),
    re.compile(rf"{_KIND}(?P<repo>[\w.-]+){_REVISION}(?:/(?P<path>.*))", re.IGNORECASE | re.DOTALL),
)


class HubPlace(NamedTuple):
    """Where a file lies.

    Args:
        kind: ``datasets``, ``spaces`` or ``models``.
        repo: ``user/name``, or ``name`` alone for the oldest repositories.
        revision: branch, tag or commit.
        path: of the file in the repository; may be empty where the repository is meant.
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


def place_of(url: str) -> HubPlace:
    """Return what a url names.

    Args:
        url: the url.

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
    return HubPlace((match["kind"] or "models").lower(), match["repo"], revision, match["path"])


def split(url: str) -> tuple[str, str]:
    """Return a url up to its path, and the path; see :mod:`webdataset.sources.stores`."""
    path = place_of(url).path
    return (url[: len(url) - len(path)], path) if path else (url, "")
