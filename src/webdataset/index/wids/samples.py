"""One tar file, compressed or not, as the published ``wids`` has it: by sample, and by member.

Samples have dotted names, and fields that are ``BytesIO`` objects. No index file is written, and none is read: what
the published versions write is a pickle.
"""

import hashlib
import io
import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, Self

from webdataset.core.errors import NoSuchSample, NotRepresentable, StaleIndex, UsageError
from webdataset.index.wids.local_copies import (
    DefaultLocalname,
    LocalShards,
    LRUCache,
    OpenShard,
    SpooledShard,
    copy_shard,
)
from webdataset.samples.grouping import base_plus_ext
from webdataset.samples.shard_reader import check_end_mark
from webdataset.storage.random_access import LocalRanges
from webdataset.storage.streams import BorrowedStream
from webdataset.tar.compression import detect_compression
from webdataset.tar.walker import MemberPosition, TarWalker

_PIECE = 1 << 18


class TarMembers:
    """The members of a tar file, by number and by name.

    Args:
        file: path of the file, or the open file.
        index_file: accepted and not used.
        verbose: accepted and not used.
        cleanup_callback: called with the path when it is closed.

    Raises:
        NotFound: no such file.
        TarError: it is damaged.
        UsageError: neither a path nor an open file.
    """

    def __init__(
        self,
        file: object,
        index_file: object = None,
        verbose: bool = True,  # noqa: FBT001, FBT002  upstream's signature
        cleanup_callback: Callable[[str], object] | None = None,
    ) -> None:
        self.index_file, self.verbose, self.cleanup_callback = index_file, verbose, cleanup_callback
        self.fname, self._spooled = open_plain_file(file)
        self._ranges = LocalRanges(self.fname)
        try:
            self._places = _walk_members(self._ranges)
        except BaseException:  # whatever happens, nothing stays open
            self._release()
            raise
        self._by_name = {place.name: place for place in self._places}
        self._by_offset = {place.offset: place for place in self._places}

    def names(self) -> list[str]:
        """Return the members' names, in order."""
        return [place.name for place in self._places]

    def get_at_index(self, index: int) -> tuple[str, bytes]:
        """Return name and bytes of a member, by its number."""
        return self._read_member(self._places[index])

    def get_by_name(self, name: str) -> tuple[str, bytes]:
        """Return name and bytes of the last member of a name."""
        if name not in self._by_name:
            raise NoSuchSample("no member has this name", url=self.fname, field=name)
        return self._read_member(self._by_name[name])

    def get_at_offset(self, offset: int) -> tuple[str, bytes]:
        """Return name and bytes of the member whose first header starts at an offset."""
        if offset not in self._by_offset:
            raise NoSuchSample("no member starts here", url=self.fname, offset=offset)
        return self._read_member(self._by_offset[offset])

    def get_file(self, i: int) -> tuple[str, io.BytesIO]:
        """Return name and content, as an open file, of a member, by its number."""
        name, content = self.get_at_index(i)
        return name, io.BytesIO(content)

    def _read_member(self, place: MemberPosition) -> tuple[str, bytes]:
        if place.sparse:
            raise NotRepresentable("the member is sparse: read the shard as a stream", url=self.fname, field=place.name)
        return place.name, self._ranges.read_at(place.payload, place.size)

    def __getitem__(self, key: int | str) -> tuple[str, bytes]:
        """Return name and bytes of a member, by its number or name."""
        return self.get_by_name(key) if isinstance(key, str) else self.get_at_index(key)

    def __iter__(self) -> Iterator[tuple[str, bytes]]:
        """Yield name and bytes of all members, in order."""
        return map(self._read_member, self._places)

    def __len__(self) -> int:
        """Return the number of members."""
        return len(self._places)

    def close(self, dispose: bool = False) -> None:  # noqa: FBT001, FBT002, ARG002  upstream's signature
        """Close the file.

        Args:
            dispose: accepted and not used.
        """
        self._release()
        if self.cleanup_callback is not None:
            self.cleanup_callback(self.fname)

    def _release(self) -> None:
        self._ranges.close()
        if self._spooled is not None:
            self._spooled.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *failure: object) -> None:
        self.close()


MMIndexedTar = TarFileReader = TarMembers


def open_plain_file(file: object) -> tuple[str, SpooledShard | None]:
    """Return the path of an uncompressed tar file, and the temporary file that it is, if it is one.

    Raises:
        NotFound: no such file.
        UsageError: neither.
    """
    if hasattr(file, "read"):
        name = getattr(file, "name", None)
        if isinstance(name, str) and Path(name).is_file():
            return open_plain_file(name)
        spooled = SpooledShard("a stream", stream=BorrowedStream(file))
        return spooled.path, spooled
    if not isinstance(file, str | os.PathLike):
        raise UsageError(f"a tar file is a path or an open file, not {type(file).__name__}")
    path = os.fsdecode(file)
    with LocalRanges(path) as ranges:
        compressed = detect_compression(ranges.read_at(0, 512)) is not None
    if not compressed:
        return path, None
    spooled = SpooledShard(path)
    return spooled.path, spooled


def _walk_members(ranges: LocalRanges) -> list[MemberPosition]:
    """Return the places of all members."""
    walk, found = TarWalker(), list[MemberPosition]()
    while True:
        offset, least = walk.wants
        chunk = ranges.read_at(offset, max(_PIECE, least))
        found += walk.walk(chunk, offset)
        if walk.error is not None:
            raise walk.error
        if len(chunk) < least or walk.wants[0] >= ranges.length:
            break
    ended = walk.end_at(ranges.length)
    if walk.error is not None:
        raise walk.error
    if not ended:
        check_end_mark(ranges.url, ranges.length, chosen=None)
    return found


def splitname(fname: str) -> tuple[str, str]:
    """Split a member's name at the first dot of its last component.

    Args:
        fname: the name.

    Returns:
        Key, and extension with the dot.

    Raises:
        UsageError: it has no extension.
    """
    key, extension = base_plus_ext(fname)
    if key is None or extension is None:
        raise UsageError("a member's name needs an extension", field=fname)
    return key, "." + extension


def group_by_key(names: Iterable[str]) -> list[list[int]]:
    """Return which names stand next to each other and have one key.

    Args:
        names: members' names, in order; those without an extension are left out.

    Returns:
        For each sample the numbers of its members.
    """
    groups: list[list[int]] = []
    last: str | None = None
    for number, name in enumerate(names):
        key, _ = base_plus_ext(name)
        if key is None:
            continue
        if key != last or not groups:
            groups.append([])
            last = key
        groups[-1].append(number)
    return groups


def find_index_file(file: object) -> str:
    """Return the name under which published versions keep a pickled index of a tar file; nothing here reads it.

    Args:
        file: path of the tar file, or the open file.
    """
    return f"{getattr(file, 'name', file)}.index"


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
        tar_file: object = None,
        md5sum: str | None = None,
        expected_size: int | None = None,
        source: object = None,  # noqa: ARG002  upstream's signature, here and below
        use_mmap: bool = True,  # noqa: ARG002, FBT001, FBT002
        index_file: object = None,  # noqa: ARG002
        *,
        path: object = None,
        stream: object = None,
    ) -> None:
        given = next((each for each in (tar_file, path, stream) if each is not None), None)
        if given is None:
            raise UsageError("pass path= or stream=")
        self._shard: OpenShard | None = None
        self.path, self._spooled = open_plain_file(given)
        try:
            if md5sum is not None and compute_file_md5sum(self.path) != md5sum:
                raise StaleIndex(f"the file's md5sum is not {md5sum}", url=self.path)  # noqa: TRY301  closed below
            if expected_size is not None and len(self) != expected_size:
                raise StaleIndex(f"expected {expected_size} samples, got {len(self)}", url=self.path)  # noqa: TRY301
        except BaseException:  # whatever happens, nothing stays open
            self.close()
            raise

    def _open_shard(self) -> OpenShard:
        if self._shard is None:
            self._shard = LocalShards().open(self.path)
        return self._shard

    def __len__(self) -> int:
        """Return the number of samples."""
        return len(self._open_shard())

    def __getitem__(self, idx: int) -> dict[str, Any]:
        """Return one sample.

        Raises:
            NoSuchSample: there is no such number.
        """
        read = self._open_shard()[idx]
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
            shard = IndexedTarSamples(path=copy_shard(url, self.localname(url)))
            self.lru[url] = shard
        return shard

    def clear(self) -> None:
        """Close all shards."""
        self.lru.clear()

    def __len__(self) -> int:
        """Return the number of shards that are open."""
        return len(self.lru)


def compute_file_md5sum(fname: str | os.PathLike[str], chunksize: int = 1_000_000) -> str:
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


def compute_num_samples(fname: object) -> int:
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
