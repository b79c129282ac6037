"""Samples kept in memory after the first complete pass.

Flows in: samples. Flows out: the same samples, in the same order, without asking upstream again.
"""

from collections.abc import Iterable, Iterator
from typing import Any

from webdataset.ground.errors import FlowError
from webdataset.ground.iteration import PipelineStage

from .base import Stage


class Cached(Stage, PipelineStage):
    """Keep all samples of the first complete pass in memory, and give them again in every later one.

    Stages behind it may put other fields into a sample: what is kept stays as it came (fields themselves are not
    copied, so arrays should not be changed in place). A pass that is broken off keeps nothing. A pickled copy starts
    empty, so each worker process keeps its own.

    Flow: in order; holds all samples; resumes by replay.
    """

    def __init__(self) -> None:
        self.cached: list[Any] | None = None
        self.mark: str | None = None  # set while samples come from memory; part of snapshots

    def flow(self, upstream: Iterator[Any], memory: Any) -> Iterator[Any]:  # noqa: ARG002
        """Yield samples from memory where there are any, else from upstream."""
        if self.cached is not None:
            self.mark = "kept"
            for sample in self.cached:
                yield _own(sample)
            return
        kept = []
        for sample in upstream:
            kept.append(_own(sample))
            yield sample
        self.cached = kept

    def recall(self, mark: str) -> None:
        """Take up a snapshot that was taken while samples came from memory.

        Args:
            mark: what ``mark`` was.

        Raises:
            FlowError: the memory is empty: the order in which it was filled cannot be brought back.
        """
        if mark == "kept" and self.cached is None:
            raise FlowError(
                "the snapshot was taken while mcached() gave samples from memory, in the order of an earlier pass; "
                "that memory is gone: take snapshots in the first pass"
            )

    def run(self, source: Iterable[Any]) -> Iterator[Any]:
        """Run this stage alone over ``source``."""
        return self(source)

    def __getstate__(self) -> dict[str, Any]:
        """Pickle without the samples."""
        return {"cached": None, "mark": None}

    def __repr__(self) -> str:
        return "Cached()" if self.cached is None else f"Cached({len(self.cached)} samples)"


def _own(sample: Any) -> Any:
    """Return a sample that may be given other fields without changing this one."""
    return sample.copy() if type(sample) in (dict, list) else sample
