"""Where a url that stands in a document points to.

Flows in: the place of a document (an index, a specification) and the urls written in it. Flows out: urls that can be
opened from anywhere. A document that came over the network may name urls only, never a command or a local file.
"""

import os
import posixpath
import re

from webdataset.ground import trust
from webdataset.ground.errors import UnsafeSpec, UsageError
from webdataset.ground.redaction import redacted
from webdataset.sources.files import path_of
from webdataset.sources.open import is_local, opener_of
from webdataset.sources.rewrite import rewritten

_MACHINE = "a machine that is logged in to, or a file system of another package"
_MACHINES = frozenset(("ssh", "memory", "fsspec_store"))

_ROOTED = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+://[^/?#]*")


def is_url(text: str) -> bool:
    """Tell whether a text begins with a scheme that somebody serves (or with ``file:``); else it is a path."""
    return text[:5].lower() == "file:" or opener_of(text) is not None


def from_network(place: str | None) -> bool:
    """Tell whether a document was read from a url or command.

    Args:
        place: the document's url or path; None for one that the caller made, or read from a stream of its own.
    """
    return place is not None and place != "-" and not (is_local(place) and is_local(rewritten(place)))


def folder_of(place: str | None) -> str | None:
    """Return the folder of a document, to which its relative urls are joined.

    Args:
        place: the document's url or path.

    Returns:
        A path or url without a slash at its end; ``""`` is the working directory; None where a document has no place
        (it came through a ``pipe:`` command).
    """
    if place is None or place == "-":
        return ""
    if place[:5].lower() == "file:":
        place = path_of(place)
    if not is_url(place):
        return os.path.dirname(place)  # noqa: PTH120  keeps a relative name as it is
    rooted = _ROOTED.match(place)
    if rooted is None:
        return None
    path = re.split("[?#]", place[rooted.end() :], maxsplit=1)[0]
    return rooted[0] + posixpath.dirname(path).rstrip("/")


def joined(folder: str | None, url: str) -> str:
    """Return a url written in a document as one that can be opened from anywhere.

    Args:
        folder: what :func:`folder_of` says, or a base that the user gives.
        url: a url, an absolute path, or a path relative to the folder. Dots are resolved in urls; local paths keep
            them, since ``..`` after a symbolic link is the system's to resolve.

    Raises:
        UsageError: a relative url, where the document has no place.
    """
    if is_url(url):
        return url
    if folder is None:
        raise UsageError(
            f"{redacted(url)!r} is relative, and a document that came through a command has no place: pass base=",
            url=url,
        )
    if folder[:5].lower() == "file:":
        folder = path_of(folder)
    rooted = _ROOTED.match(folder) if is_url(folder) else None
    if rooted is None:
        return os.path.join(folder, _undotted(url))  # noqa: PTH118  keeps names as they are
    path = re.split("[?#]", folder[rooted.end() :], maxsplit=1)[0]
    return rooted[0] + posixpath.normpath(posixpath.join("/", path, url))


def relative_to(folder: str, url: str) -> str:
    """Return how a document in a folder names a url: relative where it is in or below that folder.

    Args:
        folder: the document's folder, ``""`` for the working directory.
        url: what shall be named; paths are relative to the working directory.

    Returns:
        A text that :func:`joined` makes into the same file or url again.
    """
    if url[:5].lower() == "file:":
        url = path_of(url)
    if is_url(folder) or is_url(url):
        return url.removeprefix(folder + "/") if is_url(folder) and is_url(url) else url
    folder = folder or "."
    real, real_folder = os.path.abspath(url), os.path.abspath(folder)  # noqa: PTH100  symbolic links stay
    if real.startswith(real_folder.rstrip("/") + "/"):
        return os.path.relpath(real, real_folder)
    return url if os.path.isabs(url) else os.path.relpath(real, real_folder)  # noqa: PTH117


def without_double(folder: str | None, url: str, path: str) -> str:
    """Return the file meant by an index whose urls repeat the index's own folder.

    The published ``widsindex create d/x.tar -o d/index.json`` writes ``d/x.tar``, which its readers then look for as
    ``d/d/x.tar``.

    Args:
        folder: the index's folder.
        url: as it stands in the index.
        path: both joined.

    Returns:
        ``path``, or the path without the repetition where only that one exists.
    """
    if not folder or is_url(path) or os.path.isabs(url):  # noqa: PTH117
        return path
    repeated = os.path.dirname(_undotted(url))  # noqa: PTH120
    if not repeated or not f"/{folder}".endswith("/" + repeated) or os.path.lexists(path):
        return path
    other = os.path.join(folder, os.path.basename(url))  # noqa: PTH118, PTH119
    return other if os.path.lexists(other) else path


def refuse_local(url: str, document: str | None, *, level: str | None = None, network: bool = False) -> str:
    """Return a url that a document names, unless the document came over the network and the url may not.

    Args:
        url: what the document names, joined.
        document: the document's place.
        level: a trust level that a dataset names; ``full`` allows everything.
        network: the document came over the network, wherever its text was taken from.

    Raises:
        UnsafeSpec: a ``pipe:`` command, a local file, or what only this user's logins and packages reach, as it stands
            or as the environment rewrites it, in a document from the network, without full trust.
    """
    if not (network or from_network(document)) or trust.level(level) == "full":
        return url
    for name in (url, rewritten(url)):
        kind = _unsafe(name)
        if kind and not (kind is _MACHINE and _beside(name, document)):
            raise UnsafeSpec(
                f"{redacted(document or 'this document')} came over the network and names {kind}, {redacted(name)!r}: "
                "it may name urls only, of the web and of stores. Pass trust='full' if you trust whoever wrote it",
                url=url,
            )
    return url


def _unsafe(name: str) -> str | None:
    """Return what a url names that a document from the network may not, or None."""
    if name[:5].lower() == "pipe:":
        return "a command"
    if name == "-" or is_local(name):
        return "a local file"
    return _MACHINE if getattr(opener_of(name), "store", None) in _MACHINES else None


def _beside(url: str, document: str | None) -> bool:
    """Tell whether a url leads to the very machine that the document came from."""
    there, own = _ROOTED.match(url), _ROOTED.match(document or "")
    return there is not None and own is not None and there[0].lower() == own[0].lower()


def _undotted(url: str) -> str:
    while url.startswith("./"):
        url = url[2:].lstrip("/")
    return url
