"""Judges a pass in which one stage dropped every sample: an error where that cannot be meant, else a warning.

Theory. A stage alone cannot judge: a virtual stream, a worker or a rank sees a share of a pass, and a share may
rightly hold nothing that a filter keeps. So each run of a stage that may drop samples reports at its end what became
of them (:class:`~webdataset.stages.base.Outcome`), and the process that knows the most judges all of them together:
the run of a plain pipeline, of all streams of an elastic one, a loader for all of its workers. What began after a
saved state is not judged, since what came before is not known; nor is what was given up before its end.

Costs nothing for each sample.
"""

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from webdataset.core.errors import AllDropped, NoSamples
from webdataset.core.tracebacks import warn_user
from webdataset.stages.base import describe_function, stage_title
from webdataset.stages.checks import CheckSamples
from webdataset.stages.read_shards import ReadShards

MIN_JUDGED_SAMPLES = 1000  # samples of a share that a map must have dropped, all of them, for an error


class StageOutcome(NamedTuple):
    """What became of the samples of one stage, in all runs that are judged together.

    Args:
        place: of the stage among those that may drop samples, in the order in which they ended first.
        name: of the stage, ``map``, ``select`` or ``where``.
        function: the user's, by name and place.
        titled: both, as in reports.
        dropped: samples that it was given and did not pass on; told only where it passed on none.
        gave: it passed on some, or it is not known that it did not.
    """

    place: int
    name: str
    function: str
    titled: str
    dropped: int
    gave: bool


class Outcomes:
    """What became of the samples of all stages that may drop some, in runs that are judged together."""

    def __init__(self) -> None:
        self._stages: dict[int, tuple[Any, list[Any]]] = {}  # by identity: the stage, samples dropped, whether it gave

    def take(self, runners: Iterable[Any], *, resumed: bool) -> None:
        """Take note of a run that has ended or was given up."""
        for runner in runners:
            outcome = runner.outcome
            if outcome is not None:
                _, found = self._stages.setdefault(id(runner.stage), (runner.stage, [0, False]))
                found[0] += outcome.dropped
                found[1] = found[1] or resumed or outcome.gave or not outcome.ended

    def summarize(self) -> list[StageOutcome]:
        """Return what became of each stage's samples, to be judged together with those of other workers."""
        return [
            StageOutcome(
                place, stage.name, describe_function(stage.function), stage_title(stage.name, stage.function), *found
            )
            for place, (stage, found) in enumerate(self._stages.values())
        ]


def merge_outcomes(outcomes: Iterable[StageOutcome]) -> list[StageOutcome]:
    """Return the outcomes of several workers as those of one: by name, function and place.

    Args:
        outcomes: of all workers; one whose samples were all dropped earlier has none of the later stages.
    """
    found: dict[tuple[str, str], StageOutcome] = {}
    for each in outcomes:
        before = found.get(each[1:3], each._replace(dropped=0, gave=False))
        found[each[1:3]] = before._replace(dropped=before.dropped + each.dropped, gave=before.gave or each.gave)
    return list(found.values())


def judge_outcomes(outcomes: Iterable[StageOutcome], *, whole: bool) -> None:
    """Raise or warn where a stage dropped every sample of a pass.

    Args:
        outcomes: what became of the samples.
        whole: of a whole pass; else of a share (a worker's, a rank's).

    Raises:
        AllDropped: a map returned None for all of them: in a whole pass, or in a share of 1000 samples or more.
        NoSamples: a reader that selects samples found none in a whole pass.
    """
    for each in outcomes:
        if each.name == "where" and whole and not each.gave and not each.dropped:
            raise NoSamples(f"no samples found in this pass, before {each.function} selects any: the shards are empty")
        if each.gave or not each.dropped:
            continue
        among = "this pass" if whole else "this worker's share of the pass"
        if each.name in ("select", "where"):
            if whole or each.dropped >= MIN_JUDGED_SAMPLES:
                warn_user(
                    f"{each.name}: {each.function} kept none of the {each.dropped} samples of {among}; pass "
                    "empty_check=False to say nothing about it",
                )
            continue
        message = (
            f"{each.name}: {each.function} returned None for every one of the {each.dropped} samples of {among}: does "
            "it lack a return? To filter, use select(predicate); empty_check=False allows a pass without samples"
        )
        if whole or each.dropped >= MIN_JUDGED_SAMPLES:
            raise AllDropped(message, stage=each.titled)
        warn_user(message)


def has_empty_check(stages: Sequence[object]) -> bool:
    """Tell whether a pipeline, or one that it reads, is to raise where a pass gives nothing (``empty_check``)."""
    parts = [part for stage in stages for part in (stage, *(stage.after if isinstance(stage, ReadShards) else ()))]
    return any(isinstance(part, CheckSamples) for part in parts) or any(map(_has_checked_source, stages[:1]))


def _has_checked_source(source: object) -> bool:
    """Tell the same of a pipeline's source: a pipeline, a loader over one, a mix."""
    for name in ("pipeline", "datasets"):
        inner = getattr(source, name, None)
        if isinstance(inner, list):
            return has_empty_check(inner) if name == "pipeline" else any(map(_has_checked_source, inner))
    dataset = getattr(source, "dataset", None)
    return dataset is not None and _has_checked_source(dataset)
