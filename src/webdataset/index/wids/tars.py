"""One shard at a time, as the published ``wids`` has it: by sample, and by member.

Flows in: a tar file, compressed or not. Flows out: samples with dotted names, or members. No index file is written, and
none is read: what the published versions write is a pickle.
"""

import io
import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, Self

from webdataset.ground.errors import NoSuchSample, NotRepresentable, UsageError
from webdataset.samples.endings import judge_missing_end
from webdataset.samples.names import base_plus_ext
from webdataset.sources.ranges import LocalRanges
from webdataset.sources.stream import Kept
from webdataset.tar.compression import compression_of
from webdataset.tar.walk import Place, TarWalk

from .spooling import Spooled

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
        file: Any,
        index_file: Any = None,
        verbose: bool = True,  # noqa: FBT001, FBT002  upstream's signature
        cleanup_callback: Callable[[str], Any] | None = None,
    ) -> None:
        self.index_file, self.verbose, self.cleanup_callback = index_file, verbose, cleanup_callback
        self.fname, self._spooled = plain_file(file)
        self._ranges = LocalRanges(self.fname)
        try:
            self._places = _walked(self._ranges)
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
        return self._read(self._places[index])

    def get_by_name(self, name: str) -> tuple[str, bytes]:
        """Return name and bytes of the last member of a name."""
        if name not in self._by_name:
            raise NoSuchSample("no member has this name", url=self.fname, field=name)
        return self._read(self._by_name[name])

    def get_at_offset(self, offset: int) -> tuple[str, bytes]:
        """Return name and bytes of the member whose first header starts at an offset."""
        if offset not in self._by_offset:
            raise NoSuchSample("no member starts here", url=self.fname, offset=offset)
        return self._read(self._by_offset[offset])

    def get_file(self, i: int) -> tuple[str, io.BytesIO]:
        """Return name and content, as an open file, of a member, by its number."""
        name, content = self.get_at_index(i)
        return name, io.BytesIO(content)

    def _read(self, place: Place) -> tuple[str, bytes]:
        if place.sparse:
            raise NotRepresentable("the member is sparse: read the shard as a stream", url=self.fname, field=place.name)
        return place.name, self._ranges.read_at(place.payload, place.size)

    def __getitem__(self, key: int | str) -> tuple[str, bytes]:
        """Return name and bytes of a member, by its number or name."""
        return self.get_by_name(key) if isinstance(key, str) else self.get_at_index(key)

    def __iter__(self) -> Iterator[tuple[str, bytes]]:
        """Yield name and bytes of all members, in order."""
        return map(self._read, self._places)

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


def plain_file(file: Any) -> tuple[str, Spooled | None]:
    """Return the path of an uncompressed tar file, and the temporary file that it is, if it is one.

    Args:
        file: a path, or an open file.

    Raises:
        NotFound: no such file.
        UsageError: neither.
    """
    if hasattr(file, "read"):
        name = getattr(file, "name", None)
        if isinstance(name, str) and Path(name).is_file():
            return plain_file(name)
        spooled = Spooled("a stream", stream=Kept(file))
        return spooled.path, spooled
    if not isinstance(file, str | os.PathLike):
        raise UsageError(f"a tar file is a path or an open file, not {type(file).__name__}")
    path = os.fsdecode(file)
    with LocalRanges(path) as ranges:
        compressed = compression_of(ranges.read_at(0, 512)) is not None
    if not compressed:
        return path, None
    spooled = Spooled(path)
    return spooled.path, spooled


def _walked(ranges: LocalRanges) -> list[Place]:
    """Return the places of all members."""
    walk, found = TarWalk(), list[Place]()
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
        judge_missing_end(ranges.url, ranges.length, chosen=None)
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


def find_index_file(file: Any) -> str:
    """Return the name under which published versions keep a pickled index of a tar file; nothing here reads it.

    Args:
        file: path of the tar file, or the open file.
    """
    return f"{getattr(file, 'name', file)}.index"
