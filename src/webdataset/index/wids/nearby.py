"""Shards brought to where samples can be read from them at random.

Flows in: urls. Flows out: open shards. Without a folder, shards are read where they are: local files in place, web
servers by ranges, everything else through a temporary file. With a folder, remote shards are downloaded whole and kept.
"""

import contextlib
import logging
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from webdataset.caching.content import filled
from webdataset.caching.files import Download, Unwritable
from webdataset.caching.shards import ShardCache
from webdataset.ground import settings
from webdataset.ground.errors import NoRandomAccess, SourceError, UsageError
from webdataset.ground.policies import reraise_exception
from webdataset.ground.redaction import redacted
from webdataset.index.random_access import IndexedShard
from webdataset.samples.opening import open_shards
from webdataset.samples.reading import Reading
from webdataset.sources.open import is_local, open_stream

from .spooling import Spooled

log = logging.getLogger("webdataset")


class OpenShard:
    """A shard that is open, and the temporary file behind it, if there is one.

    Args:
        shard: the shard.
        spooled: the file.
    """

    def __init__(self, shard: IndexedShard, spooled: Spooled | None = None) -> None:
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
class Nearby:
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

        Args:
            url: the shard.

        Raises:
            NotFound: no such shard.
            SourceError: it cannot be read.
            TarError: it is damaged.
        """
        if self.localname is not None:
            return self._opened(copied(url, self.localname(url), trust=self.trust))
        if self.folder is not None and not is_local(url):
            return self._cached(url)
        return self._opened(url)

    def _opened(self, url: str, **rules: Any) -> OpenShard:
        reading = self._rules(**rules)
        shard = IndexedShard(url, False if is_local(url) else None, reading=reading)
        try:
            len(shard)
        except NoRandomAccess:
            shard.close()
        else:
            return OpenShard(shard)
        return self._spooled(url, Spooled(url, trust=self.trust))

    def _spooled(self, url: str, spooled: Spooled) -> OpenShard:
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

    def _cached(self, url: str) -> OpenShard:
        """Open a remote shard from the folder, after downloading it where it is not there."""
        folder = str(self.folder)
        with contextlib.suppress(OSError):  # a folder that cannot be made is reported by the cache
            Path(folder).mkdir(parents=True, exist_ok=True)
        cache = ShardCache(folder, self.size_bytes, verbose=settings.WIDS_VERBOSE.get(), complete=True)
        for near in cache.opened(
            [{"url": url}], lambda shards, handler: open_shards(shards, handler, level=self.trust), reraise_exception,
            level=self.trust,
        ):  # fmt: skip
            path = near.get("__local_path__")
            if path is None:
                return self._spooled(url, Spooled(url, trust=self.trust, stream=near["stream"]))
            try:
                return self._opened(path)
            finally:
                near["stream"].close()
        raise SourceError("the shard was not opened", url=url)


def copied(url: str, path: str, *, trust: str | None = None) -> str:
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
        log.warning("wids: download %s to %s", redacted(url), final)
    try:
        with Download(final) as download:
            if not filled(download, open_stream(url, level=trust), url):
                raise SourceError(
                    "nobody vouches that all of the shard arrived, so it is not kept: it has no end mark", url=url
                )
            download.publish().close()
    except Unwritable as error:
        raise SourceError(f"cannot write {final}: {error}", url=url) from error
    return str(final)
