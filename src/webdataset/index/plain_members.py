"""Finds where small members lie by the native core: runs of plain members are taken, and their positions computed.

Theory. Plain members stand one after another: a header of one block, the payload, padding. So the sizes of a run and
the position of its first header give all positions, and the run proves itself: each sample must begin where the core
says, and the run must end where the core stopped. Where anything else stands between two members (a folder, a metadata
member, an extended header), that fails, and the walker reads the same bytes header by header.

A payload is copied here, which is cheaper than a header read in Python while payloads are small; others are passed.
"""

from itertools import accumulate, islice
from typing import NamedTuple

from webdataset.samples.grouping import Grouper, Sample
from webdataset.samples.native_core import NativeTaker, open_taker
from webdataset.tar.header import BLOCK, NO_EXTENSION, Limits
from webdataset.tar.member_assembly import Admit, MemberBody
from webdataset.tar.walker import MemberPosition, TarWalker

# bytes of a member on average, with header and padding, above which headers alone are read
_SMALL = 4096
_MOST_MISSES = 3


class PlainRun(NamedTuple):
    """The samples that a run of members completes.

    Args:
        samples: each with payloads as values.
        starts: where each begins.
        shapes: the names in each.
        offsets: where the payloads start, of all samples one after another.
        sizes: bytes of these payloads.
        continued: what was in progress before the run, with positions as values, and where it begins; or None.
        largest: bytes of the largest member of the run.
    """

    samples: list[Sample]
    starts: list[int]
    shapes: list[tuple[str, ...]]
    offsets: list[int]
    sizes: list[int]
    continued: tuple[Sample, int] | None
    largest: int


class NativeWalker(TarWalker):
    """A walker that takes runs of small plain members by the native core, where it is there.

    Args:
        admit: as for :class:`~webdataset.tar.walker.TarWalker`.
        limits: likewise.
        grouper: has the sample in progress; a shard is open.
    """

    def __init__(self, admit: Admit | None, limits: Limits, grouper: Grouper) -> None:
        super().__init__(admit, limits)
        self._grouper = grouper
        self._taker: NativeTaker | None = open_taker(self, grouper)
        self._misses = 0

    def may_take(self, chunk: bytes, offset: int) -> bool:
        """Tell whether :meth:`take_run` may find something: bytes come after all members that were given.

        Args:
            chunk: bytes of the archive.
            offset: where they start.
        """
        # what is left of a header, an extended header or a zero block decides about the next member
        clean = not self._rest and self._body is None and self._first is None and not self._zeros
        alike = self._globals == NO_EXTENSION and self.error is None
        return self._taker is not None and clean and alike and offset <= self.position < offset + len(chunk) - BLOCK

    def take_run(self, chunk: bytes, offset: int) -> PlainRun | None:
        """Take whole plain members from :attr:`position` on; None where there are none.

        Args:
            chunk: bytes of the archive.
            offset: where they start.
        """
        taker, grouper = self._taker, self._grouper
        if taker is None:
            return None
        before = held, key, start = grouper.progress
        # the core adds to it
        grouper.progress = None if held is None else dict(held), key, start
        begin = self.position
        _, position, _ = taker.take(chunk, begin - offset, offset, 0)
        stop = offset + position
        samples, starts = taker.collect()
        run = self._locate(samples, starts, begin, stop, held) if stop > begin else None
        if run is None:
            grouper.progress = before
            self._misses += 1
            if stop > begin or self._misses > _MOST_MISSES:
                self._taker = None
            return None
        self.position = self.end = stop
        return run

    def _locate(
        self, samples: list[Sample], starts: list[int], begin: int, stop: int, held: Sample | None
    ) -> PlainRun | None:
        """Return where the members of a run lie; None where other things stand between them.

        Args:
            samples: those that are complete.
            starts: where each begins.
            begin: where the first header of the run begins.
            stop: where the run ends.
            held: the sample that was in progress before the run.
        """
        sample, key, start = self._grouper.progress
        known = self._grouper.template[1]
        # capitals of an extension are lost
        if sample is None or key is None or any(ext != field for ext, field in known.items()):
            return None
        skip = len(self._grouper.stamped)
        cursor, largest = begin, 0
        continued = None
        if held is not None:
            first = samples[0] if samples else sample
            cursor, largest = _place_fields(first, len(held), cursor)
            if samples:
                continued = samples.pop(0), starts.pop(0)
        sizes = [len(payload) for each in samples for payload in islice(each.values(), skip, None)]
        ends = list(accumulate((size + 2 * BLOCK - 1 & -BLOCK for size in sizes), initial=cursor))
        shapes = list(map(tuple, samples))
        rows = accumulate((len(shape) - skip for shape in shapes[:-1]), initial=0)
        if samples and [ends[row] for row in rows] != starts:
            return None
        cursor = ends[-1]
        if held is None or samples or continued is not None:
            if start != cursor:
                return None
            cursor, last = _place_fields(sample, skip, cursor)
            largest = max(largest, last)
        if cursor != stop:
            return None
        place = next(reversed(sample.values()))
        self._last, self._last_stop = MemberBody(0x30, place.name, place.size, place.offset), place.payload + place.size
        count = len(sizes) + len(sample) + (0 if continued is None else len(continued[0]))
        if stop - begin > _SMALL * count:
            self._taker = None
        largest = max(largest, max(sizes, default=0))
        return PlainRun(samples, starts, shapes, [end + BLOCK for end in ends[:-1]], sizes, continued, largest)


def _place_fields(sample: Sample, first: int, cursor: int) -> tuple[int, int]:
    """Put positions in the place of the payloads of a sample; return where they end, and the size of the largest.

    Args:
        sample: the sample.
        first: the first value that is a payload.
        cursor: where its header begins.
    """
    key, largest = sample["__key__"], 0
    for name, payload in list(islice(sample.items(), first, None)):
        size = len(payload)
        sample[name] = MemberPosition(f"{key}.{name}", cursor, cursor + BLOCK, size)
        cursor += size + 2 * BLOCK - 1 & -BLOCK
        largest = max(largest, size)
    return cursor, largest
