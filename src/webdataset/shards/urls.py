"""Resolves urls that stand in a document (an index, a specification) to urls that can be opened from anywhere.

A document that came over the network may name urls only, never a command or a local file.
"""

import os
import posixpath
import re

from webdataset.core import trust
from webdataset.core.errors import UnsafeSpec, UsageError
from webdataset.core.redaction import redact
from webdataset.storage.open_url import find_opener, is_local, rewrite_url
from webdataset.storage.streams import path_of

_MACHINE = "a machine that is logged in to, or a file system of another package"
_MACHINES = frozenset(("sftp", "memory", "fsspec_store"))

SHARD_ENDINGS = (".tar", ".tgz", ".tbz", ".tbz2", ".txz", ".tzst", ".tar.gz", ".tar.bz2", ".tar.xz", ".tar.zst")
"""What names of shards in a folder end with, in lower case."""

_ROOTED = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+://[^/?#]*")


def is_url(text: str) -> bool:
    """Tell whether a text begins with a scheme that has an opener (or with ``file:``); else it is a path."""
    return text[:5].lower() == "file:" or find_opener(text) is not None


def literal_path(path: str) -> str:
    """Return the path of a file that was found, as a text that nothing takes for more than a path.

    Args:
        path: the author of the file chose its name: it may look like a url, a command (``pipe:``), the standard input
            or a list, and gets ``./`` in front then.
    """
    return f"./{path}" if path[:1] in ("-", "@") or is_url(path) else path


def find_literal(argument: str) -> str | None:
    """Return the path of the local file whose name is just this text, where it looks like a url or several.

    Args:
        argument: as typed; the shell's wildcards may have made it of the names of files.
    """
    return literal_path(argument) if ":" in argument and os.path.lexists(argument) else None


def is_from_network(place: str | None) -> bool:
    """Tell whether a document was read from a url or command.

    Args:
        place: the document's url or path; None for one that the caller made, or read from a stream of its own.
    """
    return place is not None and place != "-" and not (is_local(place) and is_local(rewrite_url(place)))


def parent_folder(place: str | None) -> str | None:
    """Return the folder of a document, to which its relative urls are joined.

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


def join_url(folder: str | None, url: str) -> str:
    """Return a url written in a document as one that can be opened from anywhere.

    Args:
        folder: what :func:`parent_folder` says, or a base that the user gives.
        url: a url, an absolute path, or a path relative to the folder. Dots are resolved in urls; local paths keep
            them, since ``..`` after a symbolic link is the system's to resolve.

    Raises:
        UsageError: a relative url, where the document has no place.
    """
    if is_url(url):
        return url
    if folder is None:
        raise UsageError(
            f"{redact(url)!r} is relative, and a document that came through a command has no place: pass base=",
            url=url,
        )
    if folder[:5].lower() == "file:":
        folder = path_of(folder)
    rooted = _ROOTED.match(folder) if is_url(folder) else None
    if rooted is None:
        path = _strip_dots(url)
        # what the dots kept from being a url stays a path
        bare = not folder and (path == "-" or is_url(path))
        return url if bare else os.path.join(folder, path)  # noqa: PTH118  keeps names as they are
    path = re.split("[?#]", folder[rooted.end() :], maxsplit=1)[0]
    return rooted[0] + posixpath.normpath(posixpath.join("/", path, url))


def relative_url(folder: str, url: str) -> str:
    """Return how a document in a folder names a url: relative where it is in or below that folder.

    Args:
        folder: the document's folder, ``""`` for the working directory.
        url: what shall be named; paths are relative to the working directory.

    Returns:
        A text that :func:`join_url` makes into the same file or url again.
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


def drop_repeated_folder(folder: str | None, url: str, path: str) -> str:
    """Return the file meant by a ``url`` of an index that repeats the index's own ``folder``; ``path`` joins the two.

    The published ``widsindex create d/x.tar -o d/index.json`` writes ``d/x.tar``, which its readers then look for as
    ``d/d/x.tar``.

    Returns:
        ``path``, or the path without the repetition where only that one exists.
    """
    if not folder or is_url(path) or os.path.isabs(url):  # noqa: PTH117
        return path
    repeated = os.path.dirname(_strip_dots(url))  # noqa: PTH120
    if not repeated or not f"/{folder}".endswith("/" + repeated) or os.path.lexists(path):
        return path
    other = os.path.join(folder, os.path.basename(url))  # noqa: PTH118, PTH119
    return other if os.path.lexists(other) else path


def check_document_url(url: str, document: str | None, *, level: str | None = None, network: bool = False) -> str:
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
    if not (network or is_from_network(document)) or trust.trust_level(level) == "full":
        return url
    for name in (url, rewrite_url(url)):
        kind = _unsafe_part(name)
        if kind and not (kind is _MACHINE and _is_same_server(name, document)):
            raise UnsafeSpec(
                f"{redact(document or 'this document')} came over the network and names {kind}, {redact(name)!r}: "
                "it may name urls only, of the web and of stores. Pass trust='full', or set WDS_TRUST=full, if you "
                "trust its author",
                url=url,
            )
    return url


def _unsafe_part(name: str) -> str | None:
    """Return what a url names that a document from the network may not, or None."""
    if name[:5].lower() == "pipe:":
        return "a command"
    if name == "-" or is_local(name):
        return "a local file"
    return _MACHINE if getattr(find_opener(name), "store", None) in _MACHINES else None


def _is_same_server(url: str, document: str | None) -> bool:
    """Tell whether a url leads to the very machine that the document came from."""
    there, own = _ROOTED.match(url), _ROOTED.match(document or "")
    return there is not None and own is not None and there[0].lower() == own[0].lower()


def _strip_dots(url: str) -> str:
    while url.startswith("./"):
        url = url[2:].lstrip("/")
    return url
