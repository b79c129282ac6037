"""Where the epoch of a state ends, and what comes behind it.

Theory. A state behind the last item of an epoch goes on with the next epoch. Some states tell so by themselves: all
streams are over, or have given what ``with_epoch(n)`` allows. Of the others it shows when nothing comes any more; then
the streams that other ranks and workers read are asked too, so that all of them come to the same answer. A state that
lacks a stream of its rank is that of one worker: it tells nothing about the epoch.

Flows in: states. Flows out: whether their epoch is over, the state at the start of another one, a warning.
"""

import warnings
from collections.abc import Callable, Container, Mapping
from typing import Any

from webdataset.ground.topology import Place
from webdataset.stages.base import Json

from .elastic_state import begun, checked, waiting, whole
from .elastic_stream import END, VirtualStream

__all__ = ["at_start", "begun", "covers", "ended", "over", "waiting", "warn_of_another"]


def covers(state: Mapping[str, Any], place: Place) -> bool:
    """Tell whether a state knows all streams of a rank.

    Args:
        state: of an elastic dataset.
        place: of the rank.
    """
    return all(str(number) in state["memories"] for number in range(place.rank, state["streams"], place.world_size))


def ended(state: Mapping[str, Any], place: Place) -> bool:
    """Tell whether a state says by itself that its epoch is over.

    Args:
        state: of an elastic dataset.
        place: of the rank that goes on.
    """
    return begun(state) and covers(state, place) and not waiting(state)


def over(
    state: Mapping[str, Any], place: Place, own: Container[int], stream: Callable[[int, Json], VirtualStream]
) -> bool:
    """Tell, of a worker that has nothing left of a state's epoch, whether that is over on all ranks that it knows.

    Args:
        state: of an elastic dataset.
        place: of the worker.
        own: numbers of its streams; the others are asked for one item.
        stream: returns one of them, from its number and memory.
    """
    left = waiting(state)
    if not begun(state) or not covers(state, place) or (left and not state["received"]):
        return False  # the last: nothing was given yet, so this epoch is empty, and comes before the next
    return not any(_gives(stream(number, memory)) for number, memory in left.items() if number not in own)


def _gives(stream: VirtualStream) -> bool:
    try:
        return stream.advance() is not END
    finally:
        stream.close()


def at_start(state: Mapping[str, Any], epoch: int, place: Place) -> dict[str, Any]:
    """Return the state of a rank at the start of an epoch: no stream has moved.

    Where there are several ranks it names the rank's own streams, so that merged states lack none in silence.

    Args:
        state: of the same dataset, with the seed.
        epoch: number of the epoch.
        place: of the rank.
    """
    own = range(place.rank, state["streams"], place.world_size) if place.world_size > 1 else ()
    header = {name: part for name, part in state.items() if name not in ("received", "memories", "check", "turn")}
    start = whole({**header, "epoch": epoch}, {str(number): None for number in own})
    return checked(start)


def warn_of_another(state: Mapping[str, Any], epoch: int, place: Place, *, stacklevel: int = 3) -> None:
    """Warn that ``set_epoch`` leaves a state that was loaded; not where the epoch of that state is over.

    Args:
        state: which was loaded, and not used.
        epoch: what was set.
        place: of the rank.
        stacklevel: of the warning; 3 is the caller of the caller.
    """
    saved = state["epoch"]
    if epoch == saved + 1 and ended(state, place):
        return
    warnings.warn(
        f"set_epoch({epoch}) begins epoch {epoch}, and leaves the state that was loaded: it stands behind "
        f"{state['received']} items of epoch {saved}. To go on behind it, write set_epoch({saved}), or load it again",
        stacklevel=stacklevel,
    )
