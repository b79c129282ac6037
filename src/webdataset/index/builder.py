"""One shard's bytes to its index, without reading anything.

Flows in: bytes of a tar stream and where they stand, or places of members. Flows out: a
:class:`~webdataset.index.entries.ShardIndex`. Members are grouped by the reader's own grouper, so that sample *i* of
the index is sample *i* of the stream. Never takes a member that is not whole.
"""

from typing import Any

from webdataset.ground.policies import located
from webdataset.samples.endings import judge_missing_end, tell_doubt
from webdataset.samples.reading import Reading
from webdataset.tar.walk import Place, TarWalk

from .entries import Entries, FieldEntry, SampleEntry, ShardIndex


class IndexBuilder:
    """One shard's bytes to its index, without reading anything.

    Args:
        url: the shard.
        reading: the rules of reading: which members, which names, what to do about duplicates.
    """

    def __init__(self, url: str, reading: Reading) -> None:
        self.url = url
        self.reading = reading
        self.walk = TarWalk(reading.admit(), reading.limits)
        self.entries = Entries()
        self._sparse: set[int] = set()
        self._held: list[Place] = []  # the last member: nobody knows yet whether it is whole
        self._grouper = reading.grouper()
        self._grouper.open({"__url__": url})

    def feed(self, chunk: bytes, offset: int) -> list[Place]:
        """Take some bytes of the tar stream.

        Args:
            chunk: the bytes; payloads may be left out.
            offset: where they start; at most ``walk.wants[0]``.

        Returns:
            The members found in them.

        Raises:
            TarError: the shard is damaged.
            DuplicateField: a field stands twice in a sample, and ``reading`` calls that an error.
        """
        places = self.walk.walk(chunk, offset)
        ready = self._held + places
        self._held = ready[-1:] if self.walk.error is None else []
        self.group(ready[: len(ready) - len(self._held)])
        if self.walk.error is not None:
            raise self._explained(self.walk.error)
        return places

    def group(self, places: list[Place]) -> None:
        """Take the next members.

        Args:
            places: where they lie, in order.

        Raises:
            DuplicateField: a field stands twice in a sample, and ``reading`` calls that an error.
        """
        grouper = self._grouper
        members: list[Any] = [(place.name, place, place.offset) for place in places]
        self._add(grouper.add(members))
        while grouper.fault is not None:
            fault = grouper.fault
            if not self.reading.handler(fault):
                raise fault
            self._add(grouper.add(members, grouper.taken))

    def _add(self, samples: list[dict[str, Any]]) -> None:
        for sample, offset in zip(samples, self._grouper.offsets, strict=True):
            fields = []
            for name, place in sample.items():
                if place.__class__ is Place:
                    fields.append(FieldEntry(name, place.name, place.payload, place.size))
                    if place.sparse:
                        self._sparse.add(len(self.entries))
            self.entries.append(SampleEntry(sample["__key__"], offset, tuple(fields)))

    def _explained(self, error: Exception) -> Exception:
        key = self._grouper.abandon()
        return located(error, url=self.url, key=key, stage="index_shard")

    def finish(
        self,
        length: int,
        *,
        stored: int | None,
        known: bool,
        compression: str | None = None,
        hashes: dict[str, str] | None = None,
    ) -> ShardIndex:
        """Take note that the shard has ended.

        Args:
            length: bytes of the tar stream.
            stored: bytes of the shard as it is stored, or None.
            known: whether the source knew its length and has given all of it.
            compression: how it is compressed, or None.
            hashes: digests of the shard as it is stored.

        Raises:
            Truncated: it ended too early, or without an end mark where one is needed.
        """
        ended = self.walk.end_at(length)
        if self.walk.error is not None:
            self.group([place for place in self._held if self.walk.whole(place, length)])
            raise self._explained(self.walk.error)
        chosen = self.reading.missing_end
        if self.walk.doubt is not None:
            tell_doubt(self.url, *self.walk.doubt, chosen=chosen)
        if not ended:
            judge_missing_end(self.url, length, chosen=chosen, known=known)
        return self.close(self.walk.end, stored=stored, compression=compression, hashes=hashes)

    def close(
        self, end: int, *, stored: int | None, compression: str | None = None, hashes: dict[str, str] | None = None
    ) -> ShardIndex:
        """Return the index of the members taken so far, however the shard ends.

        Args:
            end: where the end mark starts.
            stored: bytes of the shard as it is stored, or None.
            compression: how it is compressed, or None.
            hashes: digests of the shard as it is stored.
        """
        self.group(self._held)
        self._add(self._grouper.close())
        return ShardIndex(
            url=self.url,
            size_bytes=stored,
            end=end,
            entries=self.entries,
            compression=compression,
            sparse=frozenset(self._sparse),
            joins=tuple(self.walk.joins),
            hashes=dict(hashes or {}),
        )
