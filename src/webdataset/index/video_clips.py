"""Clips of videos in an indexed shard, of which only the needed ranges are read.

The header before a video is read with its first bytes and proves the index's entry, as for whole fields. Members that
do not lie in the shard as they are (sparse ones, links, long names) are read whole. What is known of the videos used
last is kept, so that a second clip of a video costs one request.
"""

from collections import OrderedDict
from typing import TYPE_CHECKING

from webdataset.codecs.media.ranged_video import RangedVideo
from webdataset.core.errors import UsageError
from webdataset.core.fork_safety import ForkSafeLock
from webdataset.index.entries import FieldEntry, ShardIndex
from webdataset.index.sample_fetch import UnprovenHeader, check_header
from webdataset.storage.random_access import RandomAccess
from webdataset.tar.header import BLOCK

if TYPE_CHECKING:
    from collections.abc import Callable

# tables of an hour of video take 6 MB
_MOST_VIDEOS = 16
# the first bytes of a member: the tables of a few minutes
_MOST_PROBE_BYTES = 64 << 10


class VideoMembers:
    """The videos of a shard.

    Args:
        index: of the shard.
        ranges: the shard.
        read_field: reads a whole field of a sample by the sample's number and the field's name.
        plain: whether members have the names that they have in the shard.
    """

    def __init__(
        self, index: ShardIndex, ranges: RandomAccess, read_field: "Callable[[int, str], bytes]", *, plain: bool
    ) -> None:
        self._index, self._ranges, self._read_field, self._plain = index, ranges, read_field, plain
        self._videos: OrderedDict[tuple[int, str], RangedVideo] = OrderedDict()
        self._lock = ForkSafeLock()

    def find(self, ordinal: int, name: str) -> RangedVideo:
        """Return one video.

        Args:
            ordinal: the sample's number, from 0.
            name: of the field.

        Raises:
            UsageError: the sample has no such field.
            StaleIndex: the shard is not the one that was indexed.
            SourceError: it cannot be read.
        """
        with self._lock:
            video = self._videos.get((ordinal, name))
            if video is not None:
                self._videos.move_to_end((ordinal, name))
                return video
        video = self._open(ordinal, name)
        if video is None:
            content = self._read_field(ordinal, name)
            return RangedVideo(lambda at, size: content[at : at + size], len(content))
        with self._lock:
            self._videos[ordinal, name] = video
            if len(self._videos) > _MOST_VIDEOS:
                self._videos.popitem(last=False)
        return video

    def _open(self, ordinal: int, name: str) -> RangedVideo | None:
        """Return a video that lies in the shard as it is; None: it does not."""
        entry = self._index.entries[ordinal]
        field = next((field for field in entry.fields if field.name == name), None)
        if field is None:
            raise UsageError(
                f"sample {entry.key!r} has no field {name!r}; it has {', '.join(field.name for field in entry.fields)}"
            )
        if ordinal in self._index.sparse or not self._plain or field.offset < BLOCK:
            return None
        probe = min(self._ranges.latency_bytes, _MOST_PROBE_BYTES)
        content = self._ranges.read_at(field.offset - BLOCK, BLOCK + min(probe, field.size))
        try:
            check_header(content[:BLOCK], field)
        except UnprovenHeader:
            return None
        return RangedVideo(_read_within(self._ranges, field), field.size, probe_bytes=probe, head=content[BLOCK:])


def _read_within(ranges: RandomAccess, field: FieldEntry) -> "Callable[[int, int], bytes]":
    return lambda at, size: ranges.read_at(field.offset + at, min(size, field.size - at))
