"""The contract of a stage, to be checked for any stage: ours, a plug-in's, a user's.

A stage that keeps it can be printed and pickled, gives the same with and without tracking, can be broken off at any
point, and can be saved after any output: the snapshot is JSON, and a run restored from it continues as the
uninterrupted one. Its outputs can wait in a shuffle's buffer and be made again from their addresses. A stage that
breaks it raises :class:`BrokenContract`. The runs are those of ``webdataset.flow``, never mocks.
"""

import copy
import json
import pickle
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import Any

from webdataset.core.json_types import join_snapshot
from webdataset.flow.run import Flow
from webdataset.stages.base import Run
from webdataset.stages.batch import listed
from webdataset.stages.shuffle import shuffle

SEED = 20


class BrokenContract(AssertionError):
    """A stage does not keep a promise that all stages make; the message says which."""


class Samples:
    """A source that gives fresh copies of its samples in every pass, and knows how many passes are open.

    Args:
        samples: the samples; stages may change the copies in place.

    Attributes:
        opened: number of passes begun.
        closed: number of passes ended or broken off.
    """

    def __init__(self, samples: Iterable[object]) -> None:
        self.samples = list(samples)
        self.opened = 0
        self.closed = 0

    def __iter__(self) -> Iterator[Any]:
        self.opened += 1
        try:
            yield from copy.deepcopy(self.samples)
        finally:
            self.closed += 1

    def __repr__(self) -> str:
        return f"Samples({len(self.samples)})"


def same(left: Any, right: Any) -> bool:
    """Tell whether two outputs are equal: dictionaries, tuples, lists, arrays, tensors, and anything with ``==``."""
    if type(left) is not type(right):
        return False
    if isinstance(left, dict):
        return list(left) == list(right) and all(same(left[name], right[name]) for name in left)
    if isinstance(left, list | tuple):
        return len(left) == len(right) and all(map(same, left, right))
    if hasattr(left, "shape") and hasattr(left, "tolist"):
        return bool(left.dtype == right.dtype and left.shape == right.shape and left.tolist() == right.tolist())
    return bool(left == right)


def check_stage(stage: object, samples: Sequence[object], *, resumable: bool = True, travels: bool = True) -> None:
    """Check that a stage keeps the contract.

    Args:
        stage: what follows a source in a pipeline.
        samples: what the source gives; a dozen or two are enough.
        resumable: check snapshots too. Only a stage that is not reproducible from its input and the run's seed may
            have to go without.
        travels: check pickling; a stage that holds a lambda cannot do without the pipeline's help.

    Raises:
        BrokenContract: it does not.
    """
    if not repr(stage) or " at 0x" in repr(stage).split("(")[0]:
        raise BrokenContract(f"repr does not name the stage: {stage!r}")
    whole = outputs([Samples(samples), stage], tracked=False)
    if travels:
        _check_travel(stage, samples, whole)
    check_close(lambda source: [source, stage], samples, len(whole))
    if not resumable:
        return
    check_resume(lambda: [Samples(samples), stage], whole)
    check_resume(lambda: [Samples(samples), stage, shuffle(5, initial=3, seed=SEED), listed(2)])


def outputs(stages: Sequence[object], *, tracked: bool = True) -> list[Any]:
    """Return all that a run of these stages gives.

    Args:
        stages: the first is the source.
        tracked: keep addresses.
    """
    with Flow(stages, Run(seed=SEED, tracked=tracked)) as flow:
        return copy.deepcopy(list(flow))


def check_resume(stages: Callable[[], Sequence[object]], whole: list[Any] | None = None) -> None:
    """Check snapshots after every output, the first of them before any.

    Args:
        stages: makes the stages anew; the first is the source.
        whole: what an untracked run gives; a tracked run must give the same.

    Raises:
        BrokenContract: a snapshot is not JSON, or a restored run does not continue as the uninterrupted one.
    """
    expected = outputs(stages())
    if whole is not None and not same(whole, expected):
        raise BrokenContract(f"tracking changes the outputs of {list(stages())[1:]}: {expected!r}, not {whole!r}")
    for given in range(len(expected) + 1):
        state = _snapshot(stages(), given)
        with Flow(stages(), Run(), state) as flow:
            again = _written(flow)
            if _essence(again) != _essence(state):
                raise BrokenContract(f"after {given} outputs: the snapshot of a run that was just restored differs")
            rest = list(flow)
        if not same(rest, expected[given:]):
            raise BrokenContract(f"restored after {given} outputs: {rest!r}, not {expected[given:]!r}")


def check_close(stages: Callable[[Any], Sequence[Any]], samples: Sequence[object], length: int) -> None:
    """Check that a run can be broken off anywhere, and that its source is closed then.

    Args:
        stages: makes the stages, given the source.
        samples: what the source gives.
        length: number of outputs of a whole run.

    Raises:
        BrokenContract: the source stays open.
    """
    for given in range(length + 1):
        source = Samples(samples)
        with Flow(stages(source), Run(seed=SEED)) as flow:
            list(islice(iter(flow), given))
        if source.opened != source.closed:
            raise BrokenContract(f"closed after {given} outputs, the source is still open")


def _check_travel(stage: object, samples: Sequence[object], whole: list[object]) -> None:
    travelled = pickle.loads(pickle.dumps(stage))  # noqa: S301  our own bytes
    if not same(outputs([Samples(samples), travelled], tracked=False), whole):
        raise BrokenContract(f"a pickled copy of {stage!r} gives something else")


def _snapshot(stages: Sequence[object], given: int) -> Any:
    with Flow(stages, Run(seed=SEED, tracked=True)) as flow:
        list(islice(iter(flow), given))
        return _written(flow)


def _essence(state: Any) -> Any:
    """Return a snapshot without the descriptions in it, which may hold memory addresses of the process."""
    if isinstance(state, dict):
        return {name: _essence(part) for name, part in state.items() if name != "stages"}
    return [_essence(part) for part in state] if isinstance(state, list) else state


def _written(flow: Flow) -> Any:
    state = flow.snapshot()
    try:
        reread = json.loads(json.dumps(state, allow_nan=False))
    except (TypeError, ValueError) as error:
        raise BrokenContract(f"a snapshot is not JSON: {state!r}") from error
    if reread != state:
        raise BrokenContract(f"a snapshot changes when it is written as JSON and read: {state!r}")
    for runner in flow.runners:
        known = runner.state
        if known is not None and join_snapshot(known.writer()()) != known.snapshot():
            raise BrokenContract(f"the two parts of a snapshot are not the snapshot: {known.split_snapshot()!r}")
    return reread
