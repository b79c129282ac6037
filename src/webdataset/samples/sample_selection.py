"""Leaves out the samples of a shard for which ``where=`` does not hold, without moving those that stay.

Theory. A selection acts on the lists of samples that a reader makes, after a stream has taken its share of them. So the
share of a stream is cut by the numbers of all samples, and a sample that stays keeps its number and offset. What is
read, and where a run can be resumed, is the same whether all samples of the shard were read or only some of them.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Protocol, TypeAlias

from webdataset.core.error_handlers import should_continue
from webdataset.core.errors import SampleError
from webdataset.samples.reading_rules import ReadingRules
from webdataset.samples.shard_reader import StopReading

if TYPE_CHECKING:
    from webdataset.samples.grouping import Sample
    from webdataset.samples.sample_reader import Position


SelectableLists: TypeAlias = "Iterator[tuple[list[Sample | None], list[int]]]"
"""Lists of samples, None for each that is left out, and where each starts."""


class SampleFilter(Protocol):
    """Tells which samples are wanted; see :class:`webdataset.inspection.expression.Expression`."""

    @property
    def normal(self) -> str:
        """The same text for all filters that mean the same."""
        ...

    def holds(self, payloads: dict[str, bytes], *, key: str = "", shard: str = "") -> bool:
        """Tell whether a sample is wanted."""
        ...


def select_samples(
    lists: SelectableLists, where: SampleFilter, reading: ReadingRules, position: "Position"
) -> SelectableLists:
    """Yield the samples for which a filter holds: lists of neighbours, whose first one's number the position is told.

    Args:
        lists: samples and where they start; None stands for a sample that is known to be left out.
        where: the filter.
        reading: its handler is asked about samples for which the filter fails; true leaves the sample out.
        position: of the reader.

    Raises:
        SampleError: the filter fails, and the handler does not step over it.
        StopReading: the handler chose to end the stage.
    """
    passed = 0
    for samples, offsets in lists:
        verdicts = [sample is not None and _judge(where, sample) for sample in samples]
        place, count = 0, len(samples)
        while place < count:
            verdict = verdicts[place]
            if verdict is True:
                stop = next((n for n in range(place, count) if verdicts[n] is not True), count)
                position.ordinal += passed
                position.kept_any = True
                passed = 0
                yield samples[place:stop], offsets[place:stop]
                place = stop
                continue
            if verdict is not False and not should_continue(reading.handler, verdict, "where"):
                raise StopReading
            position.left_out += 1
            passed += 1
            place += 1
        del samples


def list_payloads(sample: "Sample") -> dict[str, bytes]:
    """Return the fields of a sample as it was read: what stands in the shard, and not its key, its url and the like.

    Args:
        sample: as a reader makes it.
    """
    # a field may be called __x; what a shard's dict gives its samples is text
    return {
        name: value
        for name, value in sample.items()
        if not name.startswith("__") or isinstance(value, bytes | memoryview)
    }


def _judge(where: SampleFilter, sample: "Sample") -> bool | SampleError:
    """Tell whether a filter holds; return the error where that cannot be told."""
    try:
        return where.holds(list_payloads(sample), key=sample["__key__"], shard=sample["__url__"])
    except SampleError as error:
        return error
