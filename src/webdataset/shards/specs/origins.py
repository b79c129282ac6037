"""Where a specification came from, and what it may therefore name.

Theory. A file that the user names on his own machine may name commands and paths, as his program may. What came over
the network may name network urls only: every text that could open something is resolved, expanded, rewritten as the
environment says, and each result is held against one list of schemes, when the specification is read and again on each
pass. What is not on the list is refused; nothing is repaired.

Flows in: urls as written. Flows out: urls as opened, or the reason why not.
"""

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from webdataset.ground import settings
from webdataset.ground.errors import UnsafeSpec, UsageError
from webdataset.shards.expand import braced, parts_of
from webdataset.sources.files import nameable, unnameable
from webdataset.sources.open import is_local
from webdataset.sources.rewrite import rewritten

NETWORK_SCHEMES = frozenset({
    "http", "https", "gs", "gcs", "s3", "az", "abfs", "abfss", "ais", "hf", "oss", "r2",
})  # fmt: skip
"""Stores whose answers are shards, or nothing: no logins to machines (ssh), no file systems of other packages."""
MAX_SHARDS = 10_000_000

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://[^/\s]")
_PLACE = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://[^/?#\s]+/")
_COLON = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:")
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")


@dataclass(frozen=True)
class Origin:
    """Where a specification came from.

    Args:
        name: its url or path, for messages.
        base: what stands before relative names: a folder or url with its last slash; empty for none.
        network: it came over the network.
    """

    name: str
    base: str
    network: bool

    def resolved(self, name: str) -> str:
        """Return a url or path that was written relative to this specification.

        Args:
            name: as it was written.

        Raises:
            UsageError: a relative name where nothing is known that it could be relative to, or one that nothing has.
        """
        if not nameable(name):
            raise unnameable(name)
        if name[:1] in ("/", "~", "\\") or name == "-" or (_COLON.match(name) and not _plain(name)):
            return name if self.network else settings.home_expanded(name)
        if self.network:
            if not self.base:
                raise UsageError(f"{name!r} is relative, and {self.name} has no place of its own: write a whole url")
            return self.base + name
        return os.path.normpath(self.base + name) if self.base else name

    def refusal(self, url: Any) -> str | None:
        """Return why a url may not be opened on behalf of this specification, or None.

        Args:
            url: as it would be opened, but for the environment's rewriting.
        """
        if not self.network:
            return None
        reason = _refusal(str(url))
        if reason is not None and not (self.beside(str(url)) and nameable(str(url)) and not _CONTROL.search(str(url))):
            return reason
        target = rewritten(str(url))
        reason = _refusal(target) if target != url else None
        return None if reason is None else f"rewritten by the environment to {target!r}, {reason}"

    def beside(self, url: str) -> bool:
        """Tell whether a url leads to the very server (or bucket) that the specification came from.

        Args:
            url: as it would be opened.
        """
        own, there = _PLACE.match(self.name), _PLACE.match(url)
        return own is not None and there is not None and own[0].lower() == there[0].lower()

    def foreign(self, url: str) -> bool:
        """Tell whether a url of the web leads to a server that only somebody else's specification has named.

        Args:
            url: as it would be opened.
        """
        return self.network and url[:5].lower() in ("http:", "https") and not self.beside(url)

    def check(self, url: Any) -> Any:
        """Return the url, if it may be opened on behalf of this specification.

        Raises:
            UnsafeSpec: it may not.
        """
        reason = self.refusal(url)
        if reason is not None:
            raise UnsafeSpec(f"{self.name} came over the network and names what it may not: {reason}", url=str(url))
        return url


def _plain(name: str) -> bool:
    """Tell whether a name with a colon is a local file's all the same, as ``a:b.tar`` may be."""
    return name[:5].lower() != "file:" and is_local(name)


def _refusal(url: str) -> str | None:
    match = _SCHEME.match(url)
    if match is None or match[1].lower() not in NETWORK_SCHEMES:
        allowed = ", ".join(f"{scheme}://" for scheme in sorted(NETWORK_SCHEMES))
        return f"a specification from the network names urls of {allowed} only, not {url!r}: save it as a local file, \
read it, and load that"
    if _CONTROL.search(url):
        return f"{url!r} holds control characters"
    return None


def origin_of(url: str | os.PathLike[str]) -> Origin:
    """Return the origin of the specification at a url or path.

    Args:
        url: as the user named it. It counts as the network's unless it is, as it stands and as the environment rewrites
            it, a local file.
    """
    name = os.fsdecode(url)
    if isinstance(url, os.PathLike):
        return Origin(name, _folder(name), network=False)
    target = rewritten(name)
    if is_local(name) and is_local(target):
        return Origin(name, _folder(name), network=False)
    bare = re.split(r"[?#]", name, maxsplit=1)[0]
    return Origin(name, "" if _SCHEME.match(name) is None else bare.rpartition("/")[0] + "/", network=True)


def _folder(path: str) -> str:
    from webdataset.sources.files import path_of  # noqa: PLC0415  file: urls are rare

    folder = str(Path(path_of(path) if path[:5].lower() == "file:" else path).parent)
    return "" if folder == "." else folder + "/"


def parts(expression: str) -> Iterator[str]:
    """Yield the expressions that ``a::b`` and braces around whole names stand for, ready to be resolved.

    Args:
        expression: as it was written.

    Raises:
        UsageError: braces that do not close, or that stand for more shards than can be meant.
    """
    for part in parts_of(expression):
        brace = part.find("{")
        head = part[:brace] if brace >= 0 else part
        risky = any(mark in part for mark in ":~") or "/" in part[brace : part.rfind("}")]
        if brace >= 0 and "/" not in head and risky:  # the braces may hold a scheme, or the beginning of a path
            yield from map(escaped, expanded(part))
        else:
            yield part


def escaped(url: str) -> str:
    """Return an expression that stands for just this url."""
    return re.sub(r"([{}\\])", r"\\\1", url) if re.search(r"[{}\\]", url) else url


def expanded(expression: str) -> list[str]:
    """Return the names that an expression with braces stands for.

    Args:
        expression: one name with ``{000..099}`` and ``{a,b}``.

    Raises:
        UsageError: braces that do not close, or that stand for more than ten million names.
    """
    return braced(expression, MAX_SHARDS)
