"""One virtual stream: a run of the whole pipeline over its share, whoever owns it.

Flows in: stages, a run with ``stream``, and what the stream remembered. Flows out: items, and a memory from which an
equal stream continues. Nothing in it depends on rank or worker.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from webdataset.ground.errors import FlowError, StateMismatch
from webdataset.ground.topology import standing, within
from webdataset.stages.base import Address, Json, Run
from webdataset.stages.reading import ReadShards

from .looping import Bounds, Loop
from .running import VERSION, outline

END: Any = object()


class VirtualStream:
    """One stream, started when it is first asked.

    Args:
        stages: of the dataset.
        run: seed, epoch and stream.
        bounds: how long the dataset runs, all streams together.
        memory: what ``memory`` returned; None for the start.

    Attributes:
        barren: it ran from its start to its end here, and not one sample was read.

    Raises:
        StateMismatch: ``memory`` is none.
    """

    def __init__(self, stages: Sequence[Any], run: Run, bounds: Bounds, memory: Json = None) -> None:
        if run.stream is None:
            raise FlowError("a virtual stream needs its number")
        self.stream = run.stream
        self._stages = stages
        self._run = replace(run, tracked=True)
        self._bounds = bounds.shared(run.stream)
        self._memory = memory
        self._loop: Loop | None = None
        self._given, self.over = _counted(memory)  # before the loop begins, and when it is over
        self.failed: BaseException | None = None
        self.barren = False

    @property
    def count(self) -> int:
        """Number of items given."""
        return self._given if self._loop is None else self._loop.count

    def advance(self) -> Any:
        """Return the next item, or ``END``."""
        if self.over:
            return END
        before = standing.stream
        standing.stream = self.stream
        try:
            loop = self._loop or self._start()
            item = next(loop.flow.items, END) if loop.count < loop.bound else END
            if item is END:
                item = next(loop, END)  # of another pass
            else:  # what the loop does itself where it is asked: a call less
                loop.count += 1
                loop.given += 1
        except BaseException as error:  # whatever it is: there is no state behind it
            self.failed = error
            raise
        finally:
            standing.stream = before
        if item is END:
            self._end()
        return item

    def _start(self) -> Loop:
        self._loop = loop = Loop(self._stages, self._run, self._bounds, self._restored())
        self._memory = None
        return loop

    def _restored(self) -> Json:
        """Return the memory as the snapshot of a loop."""
        if self._memory is None:
            return None
        count, passed, given, ended, memories = self._memory
        run = self._run
        first, levels = outline(self._stages, run)
        names = [level.name for level in levels[first:]]
        inner = {"version": VERSION, "seed": run.seed, "common": run.common, "epoch": run.epoch + passed}
        flow = {**inner, "stages": names, "first": first, "ended": ended, "memories": memories}
        return {"count": count, "passed": passed, "given": given, "flow": flow}

    def _end(self) -> None:
        if self._loop is not None and not self.count:
            readers = [level for level in self._loop.flow.levels if isinstance(level.stage, ReadShards)]
            self.barren = all(level.memory is None or level.memory.address is None for level in readers)
        self.close()
        self.over = True
        self._given = self.count
        self._loop, self._memory = None, [self._given]

    def memory(self) -> Json:
        """Return what is to be remembered behind the item given last: None before the first one.

        Raises:
            FlowError: the stream has failed: there is no state behind a failure.
        """
        if self.failed is not None:
            raise FlowError(
                f"stream {self.stream.number} failed ({type(self.failed).__name__}), and there is no state behind a "
                "failure: use the one that was saved last"
            )
        if self._loop is None:
            return self._memory
        before, standing.stream = standing.stream, self.stream
        try:
            return self._loop.essence()
        finally:
            standing.stream = before

    def reading(self) -> str:
        """Return the url of the shard that is being read; nothing where that is not known."""
        return "" if self._loop is None else self._loop.present_url()

    def address(self) -> Address:
        """Return the address of the item given last, within this stream."""
        if self._loop is None:
            return None
        with within(self.stream):
            return self._loop.address()

    def fetch(self, addresses: list[Address]) -> list[Any]:
        """Make the items at some addresses once more.

        Args:
            addresses: within this stream.
        """
        with within(self.stream):
            return (self._loop or self._start()).fetch(addresses)

    def close(self) -> None:
        """Close everything that is open; the memory can still be read."""
        if self._loop is not None:
            with within(self.stream):
                self._loop.close()


def _counted(memory: Json) -> tuple[int, bool]:
    """Return how many items a memory says were given, and whether the stream was over."""
    if memory is None:
        return 0, False
    shaped = isinstance(memory, list) and len(memory) in (1, 5) and all(type(part) is int for part in memory[:3])
    if not shaped or memory[0] < 0 or (len(memory) == 5 and not isinstance(memory[4], list)):
        raise StateMismatch(f"this is not the memory of a stream: {str(memory)[:80]}")
    return memory[0], len(memory) == 1
