"""One shard's bytes to its index, without reading anything.

Flows in: bytes of a tar stream and where they stand, or places of members. Flows out: a
:class:`~webdataset.index.entries.ShardIndex`. Members are grouped by the reader's own grouper, so that sample *i* of
the index is sample *i* of the stream. Never takes a member that is not whole.
"""

from collections.abc import Callable, Sequence
from typing import Any

from webdataset.ground.policies import located
from webdataset.samples.endings import judge_missing_end, warn_unusual
from webdataset.samples.links import Links, ReadAt
from webdataset.samples.reading import Reading
from webdataset.samples.split_samples import finished_keys
from webdataset.tar.assembly import Stray
from webdataset.tar.walk import Place, TarWalk

from .entries import Entries, FieldEntry, SampleEntry, ShardIndex


class IndexBuilder:
    """One shard's bytes to its index, without reading anything.

    Args:
        url: the shard.
        reading: the rules of reading: which members, which names, what to do about duplicates.
        source: gives what reads the shard anywhere, for the targets of hard links; None: they cannot be read again.
    """

    def __init__(self, url: str, reading: Reading, source: Callable[[], ReadAt | None] = lambda: None) -> None:
        self.url = url
        self.reading = reading
        self.walk = TarWalk(reading.admit(), reading.limits)
        self.entries = Entries()
        self.quiet = False
        self._sparse: set[int] = set()
        self._held: list[Place] = []  # the last member: nobody knows yet whether it is whole
        self.links = Links(url, reading.limits, source, reading.rename_files, places=True)
        self._grouper = reading.grouper()
        self._grouper.open({"__url__": url})
        self.finished = finished_keys(url, reading, self._grouper)

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
            SplitSample: the members of a sample do not stand next to each other, and ``reading`` calls that an error.
        """
        places = self.walk.walk(chunk, offset)
        ready = self._held + places
        strays = [stray._replace(place=stray.place + len(self._held)) for stray in self.walk.strays]
        # a link behind the last member says that it is whole
        alone = self.walk.error is None and not (strays and strays[-1].place == len(ready))
        self._held = ready[-1:] if alone else []
        self.group(ready[: len(ready) - len(self._held)], strays)
        if self.walk.error is not None:
            raise self._explained(self.walk.error)
        return places

    def group(self, places: list[Place], strays: Sequence[Stray] = ()) -> None:
        """Take the next members.

        Args:
            places: where they lie, in order.
            strays: links and members of unknown types among them.

        Raises:
            DuplicateField: a field stands twice in a sample, and ``reading`` calls that an error.
        """
        members: list[Any] = [(place.name, place, place.offset) for place in places]
        for some in self.links.resolved(members, strays, self._grouper) if strays else (members,):
            self._group(some)

    def _group(self, members: list[Any]) -> None:
        grouper = self._grouper
        self._add(grouper.add(members))
        while grouper.fault is not None:
            fault = grouper.fault
            if not self.reading.handler(fault):
                raise fault
            self._add(grouper.add(members, grouper.taken))

    def _add(self, samples: list[dict[str, Any]]) -> None:
        parts = set()
        if self.finished is not None and samples:
            for index, part in self.finished.add(samples, self._grouper.offsets):
                if not self.reading.handler(part):
                    raise part
                parts.add(index)
        for index, (sample, offset) in enumerate(zip(samples, self._grouper.offsets, strict=True)):
            if index in parts:
                continue
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
        compression: str | None = None,
        hashes: dict[str, str] | None = None,
    ) -> ShardIndex:
        """Take note that the shard has ended.

        Args:
            length: bytes of the tar stream.
            stored: bytes of the shard as it is stored, or None.
            compression: how it is compressed, or None.
            hashes: digests of the shard as it is stored.

        Raises:
            Truncated: it ended too early, or without an end mark where one is needed.
        """
        ended = self.walk.end_at(length)
        if self.walk.error is not None:
            self.group([place for place in self._held if self.walk.whole(place, length)])
            raise self._explained(self.walk.error)
        if not self.quiet:
            self.links.tell()
        chosen = self.reading.missing_end
        warn_unusual(self.url, self.walk, chosen=chosen)
        if not ended:
            # what is wrong with the last member is told first, as the reader tells it
            self.group(self._held)
            self._held = []
            judge_missing_end(self.url, length, chosen=chosen)
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
        if self.finished is not None:
            self.finished.tell()
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
