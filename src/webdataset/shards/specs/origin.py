"""The origin of a specification, and what the specification may therefore name.

Theory. A file that the user names on the local machine may name commands and paths, as the user's program may. What
came over the network may name network urls only: every text that could open something is resolved, expanded,
rewritten as the environment says, and each result is compared with one list of schemes, when the specification is
read and again on each pass. What is not on the list is refused; nothing is repaired.

Reading the bytes of specifications, and of the small files beside them, is bounded, and decides nothing about
permission.
"""

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from webdataset.core import settings
from webdataset.core.errors import UnsafeSpec, UsageError
from webdataset.shards.expand import expand_braces, split_urls
from webdataset.shards.specs.syntax import spec_error
from webdataset.storage.open_url import is_local, open_stream, rewrite_url
from webdataset.storage.path_errors import unnameable_error
from webdataset.storage.streams import Stream, is_nameable

NETWORK_SCHEMES = frozenset({
    "http", "https", "gs", "gcs", "s3", "az", "abfs", "abfss", "ais", "hf", "oss", "r2",
})  # fmt: skip
"""Stores whose answers are shards, or nothing: no logins to machines (ssh), no file systems of other packages."""
MAX_SHARDS = 10_000_000

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://[^/\s]")
_SERVER = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://[^/?#\s]+/")
_COLON = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:")
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")


@dataclass(frozen=True)
class SpecOrigin:
    """Where a specification came from.

    Args:
        name: its url or path, for messages.
        base: what stands before relative names: a folder or url with its last slash; empty for none.
        network: it came over the network.
    """

    name: str
    base: str
    network: bool

    def resolve(self, name: str) -> str:
        """Return a url or path that was written relative to this specification.

        Raises:
            UsageError: a relative name where nothing is known that it could be relative to, or one that nothing has.
        """
        if not is_nameable(name):
            raise unnameable_error(name)
        if name[:1] in ("/", "~", "\\") or name == "-" or (_COLON.match(name) and not _is_plain_file(name)):
            return name if self.network else settings.expand_home(name)
        if self.network:
            if not self.base:
                raise UsageError(f"{name!r} is relative, and {self.name} has no place of its own: write a whole url")
            return self.base + name
        return os.path.normpath(self.base + name) if self.base else name

    def refusal(self, url: str) -> str | None:
        """Return why a url may not be opened on behalf of this specification, or None.

        Args:
            url: as it would be opened, but for the environment's rewriting.
        """
        if not self.network:
            return None
        reason = _network_refusal(str(url))
        if reason is not None and not (
            self.beside(str(url)) and is_nameable(str(url)) and not _CONTROL.search(str(url))
        ):
            return reason
        target = rewrite_url(str(url))
        reason = _network_refusal(target) if target != url else None
        return None if reason is None else f"rewritten by the environment to {target!r}, {reason}"

    def beside(self, url: str) -> bool:
        """Tell whether a url leads to the very server (or bucket) that the specification came from."""
        own, there = _SERVER.match(self.name), _SERVER.match(url)
        return own is not None and there is not None and own[0].lower() == there[0].lower()

    def foreign(self, url: str) -> bool:
        """Tell whether a url of the web leads to a server that only a foreign specification has named."""
        return self.network and url[:5].lower() in ("http:", "https") and not self.beside(url)

    def check(self, url: str) -> str:
        """Return the url, if it may be opened on behalf of this specification. Raises UnsafeSpec: it may not."""
        reason = self.refusal(url)
        if reason is not None:
            raise UnsafeSpec(f"{self.name} came over the network and names what it may not: {reason}", url=str(url))
        return url


def _is_plain_file(name: str) -> bool:
    """Tell whether a name with a colon is a local file's all the same, as ``a:b.tar`` may be."""
    return name[:5].lower() != "file:" and is_local(name)


def _network_refusal(url: str) -> str | None:
    match = _SCHEME.match(url)
    if match is None or match[1].lower() not in NETWORK_SCHEMES:
        allowed = ", ".join(f"{scheme}://" for scheme in sorted(NETWORK_SCHEMES))
        return f"a specification from the network names urls of {allowed} only, not {url!r}: save it as a local file, \
read it, and load that"
    if _CONTROL.search(url):
        return f"{url!r} holds control characters"
    return None


def find_origin(url: str | os.PathLike[str]) -> SpecOrigin:
    """Return the origin of the specification at a url or path.

    Args:
        url: as the user named it. It counts as the network's unless it is, as it stands and as the environment rewrites
            it, a local file.
    """
    name = os.fsdecode(url)
    if isinstance(url, os.PathLike):
        return SpecOrigin(name, _parent_folder(name), network=False)
    target = rewrite_url(name)
    if is_local(name) and is_local(target):
        return SpecOrigin(name, _parent_folder(name), network=False)
    bare = re.split(r"[?#]", name, maxsplit=1)[0]
    return SpecOrigin(name, "" if _SCHEME.match(name) is None else bare.rpartition("/")[0] + "/", network=True)


def _parent_folder(path: str) -> str:
    from webdataset.storage.streams import path_of  # noqa: PLC0415  file: urls are rare

    folder = str(Path(path_of(path) if path[:5].lower() == "file:" else path).parent)
    return "" if folder == "." else folder + "/"


def split_expression(expression: str) -> Iterator[str]:
    """Yield the expressions that ``a::b`` and braces around whole names stand for, ready to be resolved.

    Raises:
        UsageError: braces that do not close, or that stand for more shards than can be meant.
    """
    for part in split_urls(expression):
        brace = part.find("{")
        head = part[:brace] if brace >= 0 else part
        risky = any(mark in part for mark in ":~") or "/" in part[brace : part.rfind("}")]
        # the braces may hold a scheme, or the beginning of a path
        if brace >= 0 and "/" not in head and risky:
            yield from map(escape_braces, expand_names(part))
        else:
            yield part


def escape_braces(url: str) -> str:
    """Return an expression that stands for just this url."""
    return re.sub(r"([{}\\])", r"\\\1", url) if re.search(r"[{}\\]", url) else url


def expand_names(expression: str) -> list[str]:
    """Return the names that an expression with braces stands for.

    Raises:
        UsageError: braces that do not close, or that stand for more than ten million names.
    """
    return expand_braces(expression, MAX_SHARDS)


MAX_BYTES = 64 << 20


def read_spec_bytes(url: str | os.PathLike[str]) -> bytes:
    """Return the bytes of a file.

    Raises:
        NotFound: no such file.
        SourceError: it cannot be read.
        SpecError: more than 64 MiB.
    """
    stream: Stream = open_stream(url)
    pieces, size = [], 0
    try:
        while piece := stream.read(1 << 20):
            pieces.append(piece)
            size += len(piece)
            if size > MAX_BYTES:
                name = os.fsdecode(url)
                raise spec_error([f"{name}:1:1: a specification of more than {MAX_BYTES >> 20} MiB is not read"])
    finally:
        stream.close()
    return b"".join(pieces)
