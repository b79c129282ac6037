"""Brings shards to where samples can be read from them at random, and names local copies.

Without a folder, shards are read in place: local files, web servers by ranges, everything else through a temporary file
that goes away with its owner; when the file is indexed, the end mark shows whether it is whole. With a folder, remote
shards are downloaded whole and kept; a copy appears under its name when it is whole.
"""

import base64
import contextlib
import functools
import hashlib
import logging
import os
import tempfile
import urllib.parse
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

from webdataset.caching.download import fill_download
from webdataset.caching.locks import TemporaryDownload, Unwritable
from webdataset.caching.names import pipe_cleaner
from webdataset.caching.shard_cache import ShardCache
from webdataset.core import settings
from webdataset.core.durable_files import sync_file
from webdataset.core.error_handlers import reraise_exception
from webdataset.core.errors import NoRandomAccess, SourceError, UsageError, WebDatasetError
from webdataset.core.redaction import redact
from webdataset.index.indexed_shard import IndexedShard
from webdataset.samples.sample_reader import Reading
from webdataset.samples.shard_opener import open_shards
from webdataset.samples.shard_reader import warn_trailing
from webdataset.storage.open_url import is_local, open_stream, resolve_url
from webdataset.storage.streams import Stream
from webdataset.tar.compression import Decompressor, detect_compression

_PIECE = 1 << 20


class SpooledShard:
    """A shard in a temporary file.

    Args:
        url: the shard, compressed or not.
        trust: a trust level that a dataset names.
        stream: the shard, open; it is closed. By default the url is opened.

    Attributes:
        path: the file.

    Raises:
        SourceError: the shard cannot be read, or the file not be written.
        BadCompression: it does not decompress.
    """

    def __init__(self, url: str, *, trust: str | None = None, stream: Stream | None = None) -> None:
        if stream is None:
            stream = open_stream(url, level=trust)
        try:
            descriptor, self.path = tempfile.mkstemp(prefix="wids-", suffix=".tar")
            self._finalizer = weakref.finalize(self, _remove_file, self.path, os.getpid())
            with open(descriptor, "wb") as file:  # noqa: PTH123  a descriptor
                _copy_stream(stream, file, url)
        except BaseException as error:  # whatever happens, the file is removed
            self.close()
            if isinstance(error, WebDatasetError):
                error.locate(url=url)
            raise
        finally:
            stream.close()

    def unname(self) -> None:
        """Remove the name of the file, which stays for those who have it open: nothing is left when they end, however.

        Does nothing where the system keeps files that are open.
        """
        if os.name == "posix":
            self.close()

    def close(self) -> None:
        """Remove the file."""
        finalizer = getattr(self, "_finalizer", None)
        if finalizer is not None:
            finalizer()


def _copy_stream(stream: Stream, file: BinaryIO, url: str) -> None:
    start = b""
    while len(start) < 512 and (piece := stream.read(_PIECE)):
        start += piece
    kind = detect_compression(start)
    decompressor = Decompressor(kind, ignore_trailing=True) if kind is not None else None
    piece = start
    while piece:
        for part in decompressor.feed(piece) if decompressor is not None else (piece,):
            try:
                file.write(part)
            except OSError as error:
                raise SourceError(
                    f"cannot write a temporary file: {error.strerror or error}. Pass cache_dir=, or set TMPDIR to a "
                    "folder with more room",
                    url=url,
                ) from error
        piece = stream.read(_PIECE)
    if decompressor is not None:
        decompressor.finish()
        warn_trailing(url, decompressor)


def _remove_file(path: str, owner: int) -> None:
    """Remove a file, in the process that made it: forked children read on."""
    if os.getpid() == owner:
        with contextlib.suppress(OSError):
            Path(path).unlink()


log = logging.getLogger("webdataset")


class OpenShard:
    """A shard that is open, and its temporary file, if there is one."""

    def __init__(self, shard: IndexedShard, spooled: SpooledShard | None = None) -> None:
        self.shard = shard
        self.spooled = spooled
        self.read = shard.read

    def __len__(self) -> int:
        """Return the number of samples."""
        return len(self.shard)

    def __getitem__(self, ordinal: int) -> dict[str, Any]:
        """Return one sample, its fields as bytes."""
        return self.shard.read(ordinal)

    def close(self) -> None:
        """Close the shard and remove the temporary file."""
        self.shard.close()
        if self.spooled is not None:
            self.spooled.close()


@dataclass(frozen=True)
class LocalShards:
    """Where shards are read from.

    Args:
        folder: keeps downloads; None reads shards where they are. It is made when it is first needed.
        size_bytes: bound on the downloads in it; not above 0: none.
        localname: url to the path of its copy; any shard, local ones too, is copied there and kept.
        trust: the trust level that a dataset names.
        reading: the rules of reading.
    """

    folder: str | None = None
    size_bytes: float = -1
    localname: Callable[[str], str] | None = None
    trust: str | None = None
    reading: Reading = Reading()  # noqa: RUF009  immutable

    def open(self, url: str) -> OpenShard:
        """Open a shard.

        Raises:
            NotFound: no such shard.
            SourceError: it cannot be read.
            TarError: it is damaged.
        """
        if self.localname is not None:
            return self._open_path(copy_shard(url, self.localname(url), trust=self.trust))
        if self.folder is not None and not is_local(url):
            return self._open_copy(url)
        return self._open_path(url)

    def _open_path(self, url: str, **rules: Any) -> OpenShard:
        reading = self._rules(**rules)
        shard = IndexedShard(url, False if is_local(url) else None, reading=reading)
        try:
            len(shard)
        except NoRandomAccess:
            shard.close()
        else:
            return OpenShard(shard)
        return self._open_spool(url, SpooledShard(url, trust=self.trust))

    def _open_spool(self, url: str, spooled: SpooledShard) -> OpenShard:
        try:
            shard = IndexedShard(spooled.path, False, reading=self._rules())
            shard.index  # noqa: B018  finds out whether all of it arrived
        except BaseException as error:  # whatever happens, the file is removed
            spooled.close()
            if hasattr(error, "url"):
                error.url = url
            raise
        spooled.unname()
        return OpenShard(shard, spooled)

    def _rules(self, **rules: Any) -> Reading:
        import dataclasses  # noqa: PLC0415

        return dataclasses.replace(self.reading, lcase=False, trust=self.trust, **rules)

    def _open_copy(self, url: str) -> OpenShard:
        """Open a remote shard from the folder, after downloading it where it is not there."""
        folder = str(self.folder)
        # a folder that cannot be made is reported by the cache
        with contextlib.suppress(OSError):
            Path(folder).mkdir(parents=True, exist_ok=True)
        cache = ShardCache(folder, self.size_bytes, verbose=settings.WIDS_VERBOSE.get(), complete=True)
        for near in cache.open_shards(
            [{"url": url}], lambda shards, handler: open_shards(shards, handler, level=self.trust), reraise_exception,
            resolve=functools.partial(resolve_url, level=self.trust),
        ):  # fmt: skip
            path = near.get("__local_path__")
            if path is None:
                return self._open_spool(url, SpooledShard(url, trust=self.trust, stream=near["stream"]))
            try:
                return self._open_path(path)
            finally:
                near["stream"].close()
        raise SourceError("the shard was not opened", url=url)


def copy_shard(url: str, path: str, *, trust: str | None = None) -> str:
    """Return the path of a local copy of a shard; a copy that is there already is not made again.

    Args:
        url: the shard.
        path: where the copy is to be; folders above it are made.
        trust: a trust level that a dataset names.

    Raises:
        UsageError: no path.
        NotFound: no such shard.
        SourceError: it cannot be read, or not be copied there.
        FormatError: what arrives is no shard.
        Truncated: it is not all of one.
    """
    if not isinstance(path, str | os.PathLike) or not os.fspath(path):
        raise UsageError(f"localname gives {path!r}, which is no path", url=url)
    final = Path(path).absolute()
    if final.is_file():
        return str(final)
    if settings.WIDS_VERBOSE.get():
        log.warning("wids: download %s to %s", redact(url), final)
    try:
        with TemporaryDownload(final) as download:
            if not fill_download(download, open_stream(url, level=trust), url):
                raise SourceError(
                    "the shard has no end mark and no known length: it may lack its end, so it is not kept", url=url
                )
            download.publish().close()
    except Unwritable as error:
        raise SourceError(f"cannot write {final}: {error}", url=url) from error
    return str(final)


def default_folder() -> str:
    """Return ``WIDS_CACHE``, or a folder of this user's among the temporary files."""
    chosen = settings.WIDS_CACHE.get()
    user = os.getuid() if hasattr(os, "getuid") else "user"
    return chosen or os.path.join(tempfile.gettempdir(), f"_wids_cache-{user}")  # noqa: PTH118


@dataclass
class DefaultLocalname:
    """Names copies by the whole url, percent-quoted, so that no two shards share one.

    Args:
        dldir: their folder; by default ``WIDS_CACHE``, or a folder of this user's among the temporary files.
    """

    dldir: str = field(default_factory=default_folder)

    def __call__(self, shard: str) -> str:
        """Return the path of the copy of a shard."""
        return os.path.join(self.dldir, urllib.parse.quote(shard, safe=""))  # noqa: PTH118


@dataclass
class CacheLocalname:
    """Names copies as the shards are named; two shards of one name in different folders share it.

    Args:
        cachedir: their folder.
    """

    cachedir: str

    def __call__(self, shard: str) -> str:
        """Return the path of the copy of a shard."""
        path = urllib.parse.urlparse(pipe_cleaner(shard)).path
        return os.path.join(self.cachedir, os.path.basename(path))  # noqa: PTH118, PTH119


def default_localname(dldir: str | None = None) -> Callable[[str], str]:
    """Return the naming of :class:`DefaultLocalname`, as wids 0.2.86 spells it.

    Args:
        dldir: the folder.
    """
    return DefaultLocalname() if dldir is None else DefaultLocalname(dldir)


def cache_localname(cachedir: str) -> Callable[[str], str]:
    """Return the naming of :class:`CacheLocalname`, as wids 0.2.86 spells it.

    Args:
        cachedir: the folder.
    """
    return CacheLocalname(cachedir)


def hash_localname(dldir: str | None = None) -> Callable[[str], str]:
    """Return a naming by hashes of urls.

    Args:
        dldir: the folder of the copies.
    """
    return _HashLocalname(default_folder() if dldir is None else dldir)


@dataclass
class _HashLocalname:
    dldir: str

    def __call__(self, shard: str) -> str:
        if shard.startswith("pipe:"):
            return os.path.join(self.dldir, f"pipe__{_hash_text(shard)[:32]}")  # noqa: PTH118
        path, mark, query = shard.partition("?")
        folder, _, name = path.rpartition("/")
        return os.path.join(self.dldir, f"data__{_hash_text(folder + mark + query)[:16]}__{name}")  # noqa: PTH118


def _hash_text(text: str) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(text.encode("utf-8", "surrogateescape")).digest()).decode("ascii")


def download_file(
    remote: str,
    local: str,
    handlers: Mapping[str, Callable[[str, str], object]] | None = None,
    verbose: bool = False,  # noqa: ARG001, FBT001, FBT002  upstream's signature
) -> str:
    """Copy a shard, unless the copy is there already.

    Args:
        remote: url or path.
        local: path of the copy.
        handlers: scheme (``"s3"``, ``"posixpath"``) to a function of (remote, local) that makes the copy.
        verbose: not used; ``WIDS_VERBOSE`` logs downloads.

    Returns:
        The path of the copy.

    Raises:
        UsageError: a handler that is no function.
        SourceError: it cannot be read or written.
        FormatError: it is no shard.
    """
    scheme = remote.partition(":")[0] if ":" in remote else "posixpath"
    handler = (handlers or {}).get(scheme)
    if handler is None:
        return copy_shard(remote, local)
    if not callable(handler):
        raise UsageError(f"handlers[{scheme!r}] is a function of (remote, local), not {handler!r}", url=remote)
    if not Path(local).exists():
        partial = f"{local}.{os.getpid()}.part"
        handler(remote, partial)
        sync_file(partial)
        Path(partial).replace(local)
    return local


def download_and_open(
    remote: str,
    local: str,
    mode: str = "rb",
    handlers: Mapping[str, Callable[[str, str], object]] | None = None,
    verbose: bool = False,  # noqa: FBT001, FBT002  upstream's signature
) -> BinaryIO:
    """Copy a shard, unless the copy is there already, and open the copy.

    Args:
        remote: url or path.
        local: path of the copy.
        mode: how to open it.
        handlers: as for :func:`download_file`.
        verbose: not used.

    Raises:
        SourceError: it cannot be read or written.
    """
    path = download_file(remote, local, handlers, verbose)
    return open(path, mode)  # type: ignore[return-value]  # noqa: PTH123  the caller closes


def pipe_download(remote: str, local: str) -> str:
    """Copy what a ``pipe:`` command writes.

    Args:
        remote: the command, with or without ``pipe:``.
        local: path of the copy.

    Raises:
        CommandFailed: it ended with an error status.
    """
    return copy_shard(remote if remote.startswith("pipe:") else "pipe:" + remote, local)


def copy_file(remote: str, local: str) -> str:
    """Copy a local shard.

    Args:
        remote: its path or ``file:`` url.
        local: path of the copy.

    Raises:
        NotFound: no such file.
    """
    return copy_shard(remote, local)


class SimpleDownloader:
    """Makes copies of shards one by one, as wids 0.2.86 spells it.

    Args:
        **kw: accepted and not used.
    """

    def __init__(self, **kw: object) -> None:
        self.options = kw

    def download(self, remote: str, local: str) -> str:
        """Copy a shard, unless the copy is there already; return its path."""
        return copy_shard(remote, local)

    def release(self, local: str) -> None:
        """Give a copy back: it is kept."""


class LRUCache:
    """A table of bounded size.

    Args:
        capacity: the most entries; at least one is kept.
        release_handler: called with key and value of each entry that is let go.
    """

    def __init__(self, capacity: int, release_handler: Callable[[Any, Any], object] | None = None) -> None:
        self.capacity = max(1, int(capacity))
        self.release_handler = release_handler
        self._entries: OrderedDict[Any, Any] = OrderedDict()

    def __getitem__(self, key: Any) -> Any:
        """Return the value of a key and count it as used; None where there is none."""
        if key not in self._entries:
            return None
        self._entries.move_to_end(key)
        return self._entries[key]

    def __setitem__(self, key: Any, value: Any) -> None:
        """Put a value in, and let go of the oldest where there are too many."""
        old = self._entries.pop(key, None)
        if old is not None and old is not value:
            self._release(key, old)
        self._entries[key] = value
        while len(self._entries) > self.capacity:
            self._release(*self._entries.popitem(last=False))

    def _release(self, key: object, value: object) -> None:
        if self.release_handler is not None:
            self.release_handler(key, value)

    def __len__(self) -> int:
        """Return the number of entries."""
        return len(self._entries)

    def __contains__(self, key: object) -> bool:
        """Tell whether a key has a value."""
        return key in self._entries

    def __iter__(self) -> Iterator[Any]:
        """Yield the keys, the least recently used first."""
        return iter(list(self._entries))

    def keys(self) -> list[Any]:
        """Return the keys, the least recently used first."""
        return list(self._entries.keys())

    def values(self) -> list[Any]:
        """Return the values, the least recently used first."""
        return list(self._entries.values())

    def items(self) -> list[tuple[Any, Any]]:
        """Return keys and values, the least recently used first."""
        return list(self._entries.items())

    def clear(self) -> None:
        """Let go of everything."""
        while self._entries:
            self._release(*self._entries.popitem(last=False))
