"""The keys of the samples before the place where a shard is taken up again.

Theory. Whoever reads a shard from its middle on has not seen the keys before, and would take the second part of a split
sample for a new one, where an unbroken run does not. Their headers name them: a local file is walked from header to
header, once that is needed, and of a stream that has to be read up to that place the headers are seen in passing. Of an
object at a store neither is the case, since its start is not asked for: there, only what comes is compared.

Flows in: a source, or the bytes that are passed. Flows out: keys, as a :class:`FinishedKeys`.
"""

from typing import Any

from webdataset.tar.assembly import Member
from webdataset.tar.walk import TarWalk

from .split_samples import FinishedKeys

_LARGE = 1 << 18
_FAR = 1 << 14  # between two headers: what lies between them is not read


class PassedHeaders:
    """The headers before an offset.

    Args:
        url: the shard.
        reading: how it is read.
        stop: offset of the header to stop before.
    """

    def __init__(self, url: str, reading: Any, stop: int) -> None:
        self._walk = TarWalk(reading.admit(), reading.limits)
        self._grouper = reading.grouper()
        self._grouper.open({"__url__": url})
        self._finished = FinishedKeys(url, self._grouper, refuse=False)
        self._stop = stop

    def feed(self, piece: bytes, offset: int) -> None:
        """Take some bytes of the tar stream.

        Args:
            piece: the bytes; those behind the stop are left out.
            offset: where they start; at most where the next header does.
        """
        places = self._walk.walk(piece[: self._stop - offset], offset)
        members: list[Member] = [(place.name, b"", place.offset) for place in places]
        samples = self._grouper.add(members)
        while True:
            if samples:
                self._finished.add(samples, self._grouper.offsets)
            if self._grouper.fault is None:
                return
            samples = self._grouper.add(members, self._grouper.taken)

    def keys(self) -> FinishedKeys:
        """Return the keys: all samples before the stop are complete."""
        samples = self._grouper.close()
        if samples:
            self._finished.add(samples, self._grouper.offsets)
        return self._finished

    def walked(self, stream: Any) -> FinishedKeys:
        """Return the keys, found by going from header to header; the stream stands where it stood.

        Args:
            stream: a source that can seek, of a shard that is not compressed.
        """
        place = stream.tell()
        size = _LARGE
        try:
            while self._walk.error is None:
                offset, least = self._walk.wants
                if offset >= self._stop:
                    break
                stream.seek(offset)
                piece = stream.read(min(max(size, least), self._stop - offset))
                if not piece:
                    break
                self.feed(piece, offset)
                size = least if self._walk.wants[0] - offset > _FAR + size else min(2 * size, _LARGE)
        finally:
            stream.seek(place)
        return self.keys()
