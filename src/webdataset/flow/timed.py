"""A dataset that is timed as it is iterated: every step, every stage.

Flows in: a pipeline. Flows out: its items, and at any moment what each stage has taken. Reads clocks at every step,
about half a microsecond for each stage and sample; a loader, which times a few samples only, costs next to nothing.
"""

import copy
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from webdataset.ground.skips import Skips, counting

from .in_streams import InStreams
from .stage_times import StageTime, gone_without, stage_times, table
from .timing import Meter

if TYPE_CHECKING:
    from .pipeline import DataPipeline

_END: Any = object()


class Timed:
    """Iterates over a pipeline's items and times its stages; each iteration is an epoch, and adds to the figures.

    Args:
        dataset: a pipeline; a copy of it runs, first behind the state that was loaded into it, if one was.

    Attributes:
        samples: items given (batches, where the pipeline makes batches).
        seconds: spent on them; what the caller does in between does not count.
    """

    def __init__(self, dataset: "DataPipeline") -> None:
        self.samples = 0
        self.seconds = 0.0
        self._meter = Meter(budget=1.0)
        self._skips, self._drops = Skips(), Skips()
        self._pending = dataset.pending if isinstance(dataset, InStreams) else None
        self._dataset = copy.copy(dataset)
        self._dataset.meter = self._meter

    def __iter__(self) -> Iterator[Any]:
        """Yield the dataset's items."""
        items = self._begun()
        try:
            while True:
                began = time.perf_counter()
                try:
                    with counting(self._skips, self._drops):
                        item = next(items, _END)
                finally:
                    self.seconds += time.perf_counter() - began
                if item is _END:
                    return
                self.samples += 1
                yield item
                del item
        finally:
            items.close()

    def _begun(self) -> Any:
        if isinstance(self._dataset, InStreams):
            pending, self._pending = self._pending, None
            run = self._dataset.elastic_run(state=pending)
            run.meter = self._meter
            return run
        return iter(self._dataset)

    @property
    def stages(self) -> list[StageTime]:
        """What each stage has taken."""
        return stage_times(self._meter.rows(), self._skips, self._drops)

    @property
    def skips(self) -> dict[str, int]:
        """Failures that handlers let pass, by stage."""
        return dict(self._skips)

    @property
    def skipped(self) -> int:
        """Failures that handlers let pass: samples, or the rest of a shard."""
        return sum(self._skips.values())

    @property
    def drops(self) -> dict[str, int]:
        """Samples that functions dropped by returning None, by stage."""
        return dict(self._drops)

    @property
    def dropped(self) -> int:
        """Samples that functions dropped by returning None."""
        return sum(self._drops.values())

    def report(self) -> str:
        """Return a table: what each stage took for each sample it gave, and its share."""
        speed = self.samples / self.seconds if self.seconds else 0.0
        gone = gone_without(self.skipped, self.dropped)
        return table(self.stages, f"{self.samples} items in {self.seconds:.3f} s: {speed:.0f}/s, {gone}")
