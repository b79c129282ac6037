"""Judges a pass in which one stage dropped every sample: an error where that cannot be meant, else a warning.

Theory. A stage alone cannot judge: a virtual stream, a worker or a rank sees a share of a pass, and a share may
rightly hold nothing that a filter keeps. So each run of a stage that may drop samples reports at its end what became
of them (:class:`~webdataset.stages.base.Outcome`), and the process that knows the most judges all of them together:
the run of a plain pipeline, of all streams of an elastic one, a loader for all of its workers. What began after a
saved state is not judged, since what came before is not known; nor is what was given up before its end.

A pass without end (``resampled=True``) never comes to be judged, and would read the same shards forever. So the shards
that it draws are counted until something is kept of them: where they came often enough to be sure, it fails.

Costs nothing for each sample.
"""

import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from webdataset.core.errors import AllDropped, NoSamples
from webdataset.core.optional_imports import is_instance_by_name
from webdataset.core.tracebacks import warn_user
from webdataset.shards.lists import SimpleShardList, resampled_shards
from webdataset.stages.base import Outcome, describe_function, stage_title
from webdataset.stages.checks import CheckSamples
from webdataset.stages.read_shards import ReaderState, ReadShards

if TYPE_CHECKING:
    from webdataset.flow.stage_runner import StageRunner

MIN_JUDGED_SAMPLES = 1000  # samples of a share that a map must have dropped, all of them, for an error
MIN_DROPPED_SAMPLES = 100_000  # that a function must have dropped, all of them, before a pass without end fails
MIN_DRAWN_SHARDS = 1000  # in which no sample was, likewise
MIN_ROUNDS = 100  # times that each shard was drawn on average, likewise: drawn at random, none was left out


class StageOutcome(NamedTuple):
    """What became of the samples of one stage, in all runs that are judged together.

    Args:
        place: of the stage among those that may drop samples, in the order in which they ended first.
        name: of the stage, ``map``, ``select``, ``where``, ``batched`` or ``listed``.
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
                found[0] += 0 if outcome.gave else outcome.dropped
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
        if each.name in ("batched", "listed"):
            warn_user(
                f"{each.name}: all {each.dropped} samples of {among} were dropped, since partial=False leaves out what "
                "does not fill a batch: make batches smaller, or pass partial=True. An elastic dataset makes batches "
                "within each of its streams: elastic(streams=n) takes fewer",
            )
            continue
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


class DrawWatch:
    """Counts the shards that a pass draws, until something is kept of them.

    Args:
        place: of the stage whose shards are counted: the last before they are read.
        runners: of all stages of the pass.
        is_waiting: tells whether the pass has given nothing yet.
    """

    def __init__(self, place: int, runners: Sequence["StageRunner"], is_waiting: Callable[[], bool]) -> None:
        self.place = place
        # not the runners, which have this in what they draw from: a pass that is left is gone at once, with its files
        self._readers = [_refer(runner.state) for runner in runners if isinstance(runner.stage, ReadShards)][:1]
        self._dropping = [
            (runner.stage, _refer(runner.state), runner.outcome) for runner in runners if runner.outcome is not None
        ]
        self._is_waiting = is_waiting
        self._urls: set[int] = set()
        self._drawn = 0
        self._read = not self._readers  # a sample; what other readers read is not known
        self._warned = False

    @classmethod
    def of(cls, runners: Sequence["StageRunner"], is_waiting: Callable[[], bool]) -> "DrawWatch | None":
        """Return the watch of a pass; None where its shards come to an end, as those of a plain list do."""
        last, repeats = None, False
        for place, runner in enumerate(runners):
            if isinstance(runner.stage, ReadShards):
                break
            stage = getattr(runner, "foreign", runner.stage)
            called = getattr(stage, "f", stage)
            # what is not ours may give shards over and over
            own = called is not resampled_shards and str(getattr(called, "__module__", "")).startswith("webdataset.")
            ends = own if last is not None else type(stage) in (SimpleShardList, list, tuple)
            last, repeats = place, repeats or not ends
        else:
            last = 0 if len(runners) > 1 else None
        if last is None or not repeats:
            return None
        source = getattr(runners[0], "foreign", None)
        # it waits for shards to come, under whatever names
        renewed = is_instance_by_name(source, "webdataset.shards.directory", "DirectoryShardList")
        return None if renewed else cls(last, runners, is_waiting)

    def follow(self, before: Callable[[Iterator[object]], Iterator[object]] | None) -> Callable[..., Iterator[object]]:
        """Return the gate of the stage whose shards are counted, after another gate or none."""
        return self.watch if before is None else lambda shards: self.watch(before(shards))

    def watch(self, shards: Iterator[object]) -> Iterator[object]:
        """Yield the shards.

        Raises:
            NoSamples: they came again and again, and one stage kept nothing of them.
        """
        try:
            for shard in shards:
                url = shard.get("url") if isinstance(shard, dict) else None
                self._urls.add(hash(url))
                self._drawn += 1
                yield shard
                # it may be a sample, which lives no longer than it is wanted
                del shard
                # what is no shard does not come again
                if not (self._judge_samples() if url is None else self._judge()):
                    break
            yield from shards
        finally:
            # they may be samples of other datasets, whose files are open
            close = getattr(shards, "close", None)
            if close is not None:
                close()

    def _judge(self) -> bool:
        """Raise or warn where nothing was kept of what was drawn so far; tell whether to watch any further."""
        self._read = self._read or any(_has_read(refer()) for refer in self._readers)
        found = self._find_outcomes()
        silent = [each for each in found if not each.gave and each.dropped]
        rounds = self._drawn / len(self._urls)
        if silent:
            self._judge_stage(silent[0], rounds)
        elif not self._read and rounds >= MIN_ROUNDS and self._drawn >= MIN_DRAWN_SHARDS:
            raise NoSamples(
                f"no samples found in {self._describe_draws()}: the shards are empty, were stepped over by the "
                "handler, or hold no selected member with an extension"
            )
        elif self._read and rounds >= MIN_ROUNDS and self._drawn >= MIN_DRAWN_SHARDS and self._is_waiting():
            warn_user(
                f"nothing has come out of this pipeline after {self._describe_draws()}: a stage drops all samples, or "
                "waits for more than there will be"
            )
            return False
        return bool(silent) or not self._read or self._is_waiting() or any(not each.gave for each in found)

    def _judge_samples(self) -> bool:
        """Warn where nothing was kept of many samples, as of a mix; tell whether to watch any further."""
        if self._drawn % MIN_JUDGED_SAMPLES:
            return bool(self._dropping)
        found = self._find_outcomes()
        silent = [each for each in found if not each.gave and each.dropped]
        if silent and silent[0].dropped >= MIN_DROPPED_SAMPLES:
            warn_user(
                f"{silent[0].name}: {silent[0].function} kept none of the {silent[0].dropped} samples so far; reading "
                "continues"
            )
            return False
        return any(not each.gave for each in found)

    def _find_outcomes(self) -> list[StageOutcome]:
        """Return what became of the samples of all stages that may drop some, as far as they have come."""
        return [_find_outcome(place, stage, refer(), seen) for place, (stage, refer, seen) in enumerate(self._dropping)]

    def _judge_stage(self, stage: StageOutcome, rounds: float) -> None:
        """Raise where a stage that dropped all of its samples will drop those to come; warn before that."""
        named, dropped = f"{stage.name}: {stage.function}", stage.dropped
        sure = stage.name == "where" or dropped >= MIN_DROPPED_SAMPLES
        if rounds >= MIN_ROUNDS and sure:
            kind = AllDropped if stage.name == "map" else NoSamples
            raise kind(
                f"{named} kept none of the {dropped} samples of {self._describe_draws()}, and would have no end: "
                "let it keep some, or let the pass end (no resampled=True)",
                stage=stage.titled,
            )
        if rounds >= 2 and dropped >= MIN_JUDGED_SAMPLES and not self._warned:
            self._warned = True
            warn_user(
                f"{named} kept none of the {dropped} samples so far, of {self._describe_draws()}; reading continues"
            )

    def _describe_draws(self) -> str:
        shards = "1 shard" if len(self._urls) == 1 else f"{len(self._urls)} shards"
        return f"{self._drawn} draws from {shards}"


def _refer(state: object) -> Callable[[], object]:
    """Return what gives a state as long as it lives."""
    return weakref.ref(state) if state is not None else lambda: None


def _has_read(state: object) -> bool:
    """Tell whether a reader has given a sample of the shard that it read last."""
    if isinstance(state, ReaderState):
        return bool(state.position.offsets or state.position.ordinal)
    return getattr(state, "last", None) is not None


def _find_outcome(place: int, stage: Any, state: object, outcome: Outcome | None) -> StageOutcome:  # noqa: ANN401  any stage that drops
    """Return what became of the samples of a stage that may drop some, as far as it has come."""
    outcome = outcome or Outcome()
    gave, dropped = outcome.gave, outcome.dropped
    if isinstance(stage, ReadShards):
        slots = [slot.state.position for slot in getattr(state, "slots", None) or ()]
        parts = [getattr(state, "position", state), *slots]
        gave, dropped = any(part.kept_any for part in parts), sum(part.left_out for part in parts)
    titled = stage_title(stage.name, stage.function)
    return StageOutcome(place, stage.name, describe_function(stage.function), titled, dropped, gave)


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
