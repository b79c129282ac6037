"""File names and paths of a cached shard, derived from its url without credentials and signatures.

Two urls have one name only if they differ in nothing but credentials and signatures. Shards have plain names; all
files that only this library reads are in one hidden folder beside them (:class:`EntryPaths`).

:func:`object_key` tells which object a url names, however it is signed today. It leaves out of the query what the
cache leaves out of a file name, and every parameter named like a key, a token or an expiry date. Its text is hashed
and compared, never shown or stored: queries choose objects (``?v=2``, ``?archpath=a/b``) and may hold secrets.
"""

import functools
import hashlib
import os
import re
import urllib.parse
from collections.abc import Callable
from dataclasses import dataclass

from webdataset.core.errors import UsageError

CONTROL = ".wds"
# bytes; a name in a folder has room for 255, and ends are added
_LONGEST = 200


@dataclass(frozen=True)
class EntryPaths:
    """The paths of one shard in a cache directory.

    Args:
        folder: absolute path of the directory.
        name: relative path of the shard in it.
    """

    folder: str
    name: str

    @functools.cached_property
    def final(self) -> str:
        """The whole shard: it is there completely, or not at all."""
        return os.path.join(self.folder, self.name)  # noqa: PTH118  texts: this is asked for each shard opened

    @functools.cached_property
    def _control(self) -> str:
        return os.path.join(self.folder, CONTROL, control_name(self.name))  # noqa: PTH118

    @property
    def part(self) -> str:
        """The shard while it grows."""
        return self._control + ".part"

    @property
    def record(self) -> str:
        """What is known of the shard, whole or growing; see :class:`~webdataset.caching.metadata.EntryMetadata`."""
        return self._control + ".json"

    @property
    def lock(self) -> str:
        """The lock of the process that writes any of the other three."""
        return self._control + ".lock"


def control_name(name: str) -> str:
    """Return what a shard is called in the hidden folder; no two shards share it."""
    encoded = os.fsencode(name)
    if "/" not in name and len(encoded) <= _LONGEST:
        return name
    return f"{hashlib.sha256(encoded).hexdigest()[:32]}-{os.fsdecode(encoded.rpartition(b'/')[2][-100:])}"


def space_lock_path(folder: str) -> str:
    """Return the path of the lock under which space is given out."""
    return os.path.join(folder, CONTROL, "space.lock")  # noqa: PTH118


_REMOTE = re.compile(r"(https?|hdfs|gs|ais|s3):")
_ADDRESS = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:(?://[^/?#]*)?([^?#]*)")
_ENDINGS = re.compile(r"(?:\.\w{1,5}){0,2}$", re.ASCII)
# bytes; a name in a folder has room for 255
_LONGEST_STEM = 120
_OURS = re.compile(r"\.url-[0-9a-f]{16}(\.|$)")

_NAMED_BY_PATH = ("", "file", "http", "https", "ftp", "ftps", "gs", "s3", "ais")

_USERINFO = re.compile(r"(?<![\w+.-])(https?://)[^/?#\s]*@", re.IGNORECASE)
# what shows that a url is signed, and which parameters then change with each signature
_SIGNATURES = (
    (r"[?&]X-(?:Amz|Goog)-Signature=", r"[?&]X-(?:Amz|Goog)-[\w-]+="),
    (r"[?&]Signature=", r"[?&](?:Signature|Expires|AWSAccessKeyId|GoogleAccessId|Key-Pair-Id|Policy)="),
    (r"[?&]sv=.*[?&]sig=|[?&]sig=.*[?&]sv=", r"[?&](?:sig|s[epvrt]|spr|sip|sk[etsv]|skoid|sktid)="),
)
_SIGNED = tuple(
    (re.compile(evidence, re.IGNORECASE), re.compile(parameter + r"[^&#\s'\"]*", re.IGNORECASE))
    for evidence, parameter in _SIGNATURES
)


def pipe_cleaner(spec: str) -> str:
    """Return the url inside a ``pipe:`` command: its first word that begins with a remote scheme.

    Args:
        spec: a url or ``pipe:`` command.

    Returns:
        The url; the command without ``pipe:`` where no word is one; anything but a ``pipe:`` command unchanged.
    """
    if not spec.startswith("pipe:"):
        return spec
    command = spec.removeprefix("pipe:")
    return next((word for word in command.split() if _REMOTE.match(word)), command)


def url_to_cache_name(url: str, ndir: int = 0) -> str:
    """Return the name that webdataset 1.0 gives a url in its cache: two urls may share one.

    Args:
        url: a url.
        ndir: number of folders above the file that belong to the name.

    Returns:
        The end of the url's path; of a command, or a scheme that 1.0 does not know, the last 128 characters of the
        quoted url.

    Raises:
        AssertionError: something that is no text, as in webdataset 1.0.
    """
    if not isinstance(url, str):
        raise AssertionError(f"a url is a str, not {type(url).__name__}")  # noqa: TRY004  what 1.0 raises
    parts = urllib.parse.urlparse(url)
    if parts.scheme not in _NAMED_BY_PATH:
        return urllib.parse.quote(url, safe="")[-128:]
    return "/".join(parts.path.lstrip("/").split("/")[-1 - ndir :])


def canonical_url(url: str) -> str:
    """Return a url without what changes while the object stays the same: HTTP credentials and signatures.

    Args:
        url: a url or ``pipe:`` command. User names of other schemes stay: they choose a container or a home folder.
    """
    url = _USERINFO.sub(r"\1", url)
    for evidence, parameters in _SIGNED:
        if evidence.search(url):
            url = parameters.sub("", url)
    return url


def cache_name(url: str, target: str, service: str = "") -> str:
    """Return the name under which a download is kept: the file name of the url and a hash of all of it.

    Args:
        url: as the user wrote it.
        target: what is opened for it, after rewriting.
        service: which of several services with the same urls it is fetched from; empty where the url says it all.
    """
    base = _url_path(url).rpartition("/")[2] if _has_shard_name(url) else "pipe"
    base = re.sub(r"[^\w.+=@,-]", "_", base).lstrip(".") or "shard"
    endings = _ENDINGS.search(base)
    stem, ending = (base[: endings.start()], endings[0]) if endings else (base, "")
    stem = stem.encode("utf-8", "replace")[:_LONGEST_STEM].decode("utf-8", "ignore")
    whole = canonical_url(target) + (f"\n{service}" if service else "")
    digest = hashlib.sha256(whole.encode("utf-8", "surrogateescape")).hexdigest()
    return f"{stem}.url-{digest[:16]}{ending}"


def is_cache_name(name: str) -> bool:
    """Tell whether a file's name was made by :func:`cache_name`."""
    return _OURS.search(name) is not None


def user_file_names(url: str) -> list[str]:
    """Return the names under which a user may place a shard: as webdataset 0.2 would keep it, and its plain name.

    A url whose file is called as another's download is has none: it must not be answered with that.

    Args:
        url: as the user wrote it; a ``pipe:`` command without a url in it has no such name.
    """
    path = _url_path(url)
    plain = path.rpartition("/")[2]
    named = plain and not plain.startswith(".") and not is_cache_name(plain) and not _is_unsafe_path(path)
    return [_flatten_path(path), plain] if named and _has_shard_name(url) else []


def custom_names(url: str, url_to_name: Callable[[str], str]) -> list[str]:
    """Return where ``url_to_name`` puts a shard: the path itself, and the one in which 0.2 keeps downloads.

    Raises:
        UsageError: no name, or one outside the cache directory or in its hidden folder.
    """
    path = _url_path(url_to_name(url)).lstrip("/")
    parts = path.split("/")
    if parts[-1] in ("", ".") or _is_unsafe_path(path) or not path.isprintable():
        raise UsageError(f"url_to_name gives {path!r}, which is no name of a file in the cache directory", url=url)
    return [os.path.normpath(path), _flatten_path(path)]


def shard_name(url: str) -> str:
    """Return what a url says the shard is called: its path; of a command that names no url, all of it.

    Args:
        url: as the user wrote it. Host, query and scheme may change from one day or mirror to the next.
    """
    return _url_path(url).lstrip("/") if _has_shard_name(url) else url


def _is_unsafe_path(path: str) -> bool:
    """Tell whether a path leaves the directory, or leads into what only this library writes."""
    return any(part == ".." or part.lower() == CONTROL for part in path.split("/"))


def _has_shard_name(url: str) -> bool:
    """Tell whether a url says what the shard is called."""
    return not url.startswith("pipe:") or _REMOTE.match(pipe_cleaner(url)) is not None


def _url_path(url: str) -> str:
    clean = pipe_cleaner(url)
    found = _ADDRESS.match(clean)
    return found[1] if found else clean


def _flatten_path(path: str) -> str:
    """Return a path with its folders made one, as 0.2 does: ``a/b/x.tar`` is ``a_b/x.tar``."""
    folder, _, name = path.lstrip("/").rpartition("/")
    return os.path.normpath(f"{re.sub('[:/|;]', '_', folder)}/{name}".lstrip("/"))


_CHANGING = re.compile(
    r"[?&](?:x-(?:amz|goog|oss|obs|cos|tos|bce)-[\w-]+|[\w.-]*access-?key-?(?:id)?|googleaccessid|key-pair-id"
    r"|(?:[\w.]+[-_])?(?:sig|signature|expires|expiry|expiration|secret|jwt|password|passwd|pwd|credentials?)"
    r"|[\w.-]*token|(?:[\w.]+[-_])?api[-_]?key|auth|authorization)=[^&#\s'\"]*",
    re.IGNORECASE,
)
# of a header in a command
_BEARER = re.compile(r"\bbearer[:=\s]+[^\s'\"]+", re.IGNORECASE)


def object_key(url: str) -> str:
    """Return a url without what changes while the object stays the same."""
    if "?" not in url and "@" not in url and not url.startswith("pipe:"):
        return url
    # every pattern below has one of these in it
    if "@" not in url and "=" not in url and "bearer" not in url.lower():
        return url
    return _BEARER.sub("", _CHANGING.sub("", canonical_url(url)))


def object_query(url: str) -> str:
    """Return what the query of a url says about which object it is; empty where there is none, or a signature alone.

    Args:
        url: as the user wrote it, or a ``pipe:`` command with a url in it.
    """
    _, mark, query = pipe_cleaner(url).partition("?")
    return object_key(mark + query).lstrip("?&")
