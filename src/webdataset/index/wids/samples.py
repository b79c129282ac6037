"""The samples of one tar file, as the published ``wids`` has them.

Flows in: a tar file, compressed or not. Flows out: samples with dotted names, their fields as ``BytesIO`` objects.
"""

import hashlib
import io
from collections.abc import Callable
from typing import Any

from webdataset.ground.errors import StaleIndex, UsageError

from .copies import DefaultLocalname
from .lru import LRUCache
from .nearby import Nearby, OpenShard, copied
from .tars import plain_file


class IndexedTarSamples:
    """The samples of one tar file: ``{".jpg": BytesIO, "__key__": …}``.

    Args:
        tar_file: path of the file, or the open file.
        md5sum: what its digest has to be.
        expected_size: how many samples it has to have.
        source: accepted and not used.
        use_mmap: accepted and not used.
        index_file: accepted and not used.
        path: as ``tar_file``, in wids 0.2.111.
        stream: an open file.

    Raises:
        StaleIndex: it is not the file that was expected.
        NotFound: no such file.
        TarError: it is damaged.
        UsageError: no file.
    """

    def __init__(  # noqa: PLR0917  the positions of wids 0.2.86
        self,
        tar_file: Any = None,
        md5sum: str | None = None,
        expected_size: int | None = None,
        source: Any = None,  # noqa: ARG002  upstream's signature, here and below
        use_mmap: bool = True,  # noqa: ARG002, FBT001, FBT002
        index_file: Any = None,  # noqa: ARG002
        *,
        path: Any = None,
        stream: Any = None,
    ) -> None:
        given = next((each for each in (tar_file, path, stream) if each is not None), None)
        if given is None:
            raise UsageError("pass path= or stream=")
        self._shard: OpenShard | None = None
        self.path, self._spooled = plain_file(given)
        try:
            if md5sum is not None and compute_file_md5sum(self.path) != md5sum:
                raise StaleIndex(f"the file's md5sum is not {md5sum}", url=self.path)  # noqa: TRY301  closed below
            if expected_size is not None and len(self) != expected_size:
                raise StaleIndex(f"expected {expected_size} samples, got {len(self)}", url=self.path)  # noqa: TRY301
        except BaseException:  # whatever happens, nothing stays open
            self.close()
            raise

    def _opened(self) -> OpenShard:
        if self._shard is None:
            self._shard = Nearby().open(self.path)
        return self._shard

    def __len__(self) -> int:
        """Return the number of samples."""
        return len(self._opened())

    def __getitem__(self, idx: int) -> dict[str, Any]:
        """Return one sample.

        Raises:
            NoSuchSample: there is no such number.
        """
        read = self._opened()[idx]
        sample: dict[str, Any] = {"." + name: io.BytesIO(value) for name, value in read.items() if name[:2] != "__"}
        sample["__key__"] = read["__key__"]
        return sample

    def close(self) -> None:
        """Close the file."""
        if self._shard is not None:
            self._shard.close()
        if self._spooled is not None:
            self._spooled.close()


class LRUShards:
    """Shards copied nearby; the ones used least recently are closed.

    Args:
        lru_size: how many to keep open.
        keep: accepted: copies are always kept.
        localname: url to path of the copy.

    Attributes:
        accesses: how often a shard was asked for.
        misses: how often it was not open.
    """

    def __init__(
        self,
        lru_size: int,
        keep: bool = False,  # noqa: FBT001, FBT002  upstream's signature
        localname: Callable[[str], str] | None = None,
    ) -> None:
        self.keep = keep
        self.localname = localname or DefaultLocalname()
        self.lru = LRUCache(lru_size, self.release_handler)
        self.reset_stats()

    def reset_stats(self) -> None:
        """Begin to count again."""
        self.accesses = self.misses = 0

    def release_handler(self, key: str, value: IndexedTarSamples) -> None:  # noqa: ARG002  upstream's signature
        """Close a shard that is let go."""
        value.close()

    def get_shard(self, url: str) -> IndexedTarSamples:
        """Return a shard, open.

        Raises:
            SourceError: it cannot be read.
        """
        self.accesses += 1
        shard: IndexedTarSamples | None = self.lru[url]
        if shard is None:
            self.misses += 1
            shard = IndexedTarSamples(path=copied(url, self.localname(url)))
            self.lru[url] = shard
        return shard

    def clear(self) -> None:
        """Close all shards."""
        self.lru.clear()

    def __len__(self) -> int:
        """Return the number of shards that are open."""
        return len(self.lru)


def compute_file_md5sum(fname: Any, chunksize: int = 1_000_000) -> str:
    """Return the MD5 digest of a file, hexadecimal.

    Args:
        fname: path, or open binary file.
        chunksize: bytes to read at once.

    Raises:
        OSError: it cannot be read.
    """
    digest = hashlib.md5(usedforsecurity=False)
    if hasattr(fname, "read"):
        while piece := fname.read(chunksize):
            digest.update(piece)
    else:
        with open(fname, "rb") as file:  # noqa: PTH123  paths of any kind
            while piece := file.read(chunksize):
                digest.update(piece)
    return digest.hexdigest()


def compute_num_samples(fname: Any) -> int:
    """Return the number of samples of a tar file.

    Args:
        fname: path, or open file.

    Raises:
        TarError: it is damaged.
    """
    samples = IndexedTarSamples(fname)
    try:
        return len(samples)
    finally:
        samples.close()
