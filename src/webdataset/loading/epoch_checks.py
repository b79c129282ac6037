"""The end of a loader's epoch: what all workers together gave is compared with what was to be expected.

Flows in: what became of the samples in each worker, and how many came. Flows out: nothing, a warning, or an error. No
worker alone can tell: its share may rightly be empty (see :mod:`webdataset.flow.outcomes`).
"""

from dataclasses import dataclass
from typing import Any

from webdataset.flow.lengths import counts_once, tell
from webdataset.flow.outcomes import StageOutcome, judge, merged
from webdataset.flow.pipeline import DataPipeline

from .shares import Beginning, Origin


@dataclass
class End:
    """What is known at the end of an epoch.

    Args:
        origin: the dataset as the loader sees it.
        beginning: of the epoch.
        outcomes: what became of the samples, of all workers.
    """

    origin: Origin
    beginning: Beginning
    outcomes: list[StageOutcome]

    def judge(self, samples: int) -> None:
        """Raise or warn where the epoch gave nothing, or where one stage dropped all samples.

        Args:
            samples: that the epoch gave.

        Raises:
            NoSamples: what a run of one process raises.
        """
        found = merged(self.outcomes)
        if not _before(self.beginning):
            judge(found, whole=_whole(self.beginning))
        if not samples and all(each.gave or not each.dropped for each in found):
            self.origin.check(self.beginning)


def compare_length(dataset: Any, beginning: Beginning, samples: int) -> None:
    """Warn where a dataset declares another length than an epoch had, with what came before it was resumed.

    Args:
        dataset: that the loader reads.
        beginning: of the epoch.
        samples: that the epoch gave.
    """
    declared = getattr(dataset, "size", None) if isinstance(dataset, DataPipeline) else None
    if declared is not None and _whole(beginning) and not dataset.silent and counts_once(dataset):
        tell(dataset, declared, _before(beginning) + samples)


def _before(beginning: Beginning) -> int:
    """Return how many samples came before the epoch was resumed."""
    return 0 if beginning.state is None else int(beginning.state["received"])


def _whole(beginning: Beginning) -> bool:
    """Tell whether the workers of one loader read all of a pass."""
    return beginning.place.world_size * beginning.place.num_workers == 1
