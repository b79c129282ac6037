"""Random generators in memories: chosen as upstream does, drawn from fast, written down as JSON and read back.

Flows in: seeds and generators. Flows out: draws, and states small enough for a snapshot.
"""

import base64
import copy
import random as library
import struct
from collections.abc import Callable, Iterator
from typing import Any

from webdataset.ground.errors import FlowError, StateMismatch, UsageError
from webdataset.ground.seeds import Draws

from .base import Json, Run, Stage
from .branches import startable

_WORDS = struct.Struct("<625I")


def chosen(run: Run, rng: Any, seed: Any) -> Any:
    """Return the generator of a stage: the one it was given, one of its seed, or one of its run's seed.

    Args:
        run: seed, epoch and place of the run.
        rng: a generator, or None.
        seed: a seed, or None.

    Raises:
        UsageError: both are given.
    """
    if rng is not None and seed is not None:
        raise UsageError("give rng= or seed=, not both")
    if rng is not None:
        return rng
    if seed is None:
        return own(run)
    if run.stream is not None:  # streams that all drew alike would not be independent
        return own(run, "seed", str(seed))
    return library.Random(seed)  # noqa: S311  shuffling, not cryptography


def own(run: Run, *names: int | str) -> Draws:
    """Return a stage's own generator under its run, whose state is one number.

    Args:
        run: seed, epoch and place of the run.
        *names: further things that the generator depends on.
    """
    return Draws(run.random(*names).getrandbits(64))


def bits(rng: Any, bound: int) -> Callable[[int], int]:
    """Return ``draw(width)``: numbers of ``width`` bits from which those below ``bound`` are to be taken.

    ``random.Random.randint(0, bound - 1)`` draws just so, through four Python calls. Generators of other types are
    asked for ``randint``, and all of their numbers are below ``bound``.

    Args:
        rng: the generator.
        bound: the exclusive upper limit, at least 1.
    """
    if type(rng) is library.Random or rng is library:
        return rng.getrandbits
    return lambda _width: int(rng.randint(0, bound - 1))


def below(rng: Any, bound: int) -> int:
    """Return a number in [0, bound), with the draws that ``rng.randint(0, bound - 1)`` makes."""
    if isinstance(rng, Draws):
        return rng.below(bound)
    draw, width = bits(rng, bound), bound.bit_length()
    number = draw(width)
    while number >= bound:
        number = draw(width)
    return number


def written(rng: Any) -> Json:
    """Return a generator's state as JSON: one number for ours, 3 KB for those of Python's ``random`` module.

    Raises:
        FlowError: a generator of another kind.
    """
    if isinstance(rng, Draws):
        return rng.position
    state = rng.getstate() if hasattr(rng, "getstate") else None
    if not isinstance(state, tuple) or len(state) != 3 or len(state[1]) != 625:
        raise FlowError(
            f"the state of a {type(rng).__name__} cannot be saved: give the stage seed= or a random.Random as rng="
        )
    return [state[0], base64.b85encode(_WORDS.pack(*state[1])).decode("ascii"), state[2]]


def reread(rng: Any, state: Json) -> None:
    """Set a generator to a state that ``written`` returned.

    Raises:
        StateMismatch: it is not such a state.
    """
    if isinstance(rng, Draws):
        if type(state) is not int or state < 0:
            raise StateMismatch("the snapshot holds no state of this random generator")
        rng.position = state
        return
    try:
        version, words, gauss = state
        rng.setstate((version, _WORDS.unpack(base64.b85decode(words)), gauss))
    except (TypeError, ValueError, AttributeError, struct.error) as error:
        raise StateMismatch("the snapshot holds no state of this random generator") from error


def user_generators(stage: Any) -> list[Any]:
    """Return the random generators that users gave a stage, or the stages of the datasets that it mixes.

    Args:
        stage: a stage or a dataset; what is not ours has none.
    """
    own = getattr(stage, "rng", None) if isinstance(stage, Stage) else None
    found = [] if own is None else [own]
    return found + [generator for _, parts in _nested(stage) for part in parts for generator in user_generators(part)]


def replace_generators(stage: Any, generators: Iterator[Any]) -> Any:
    """Return a stage that draws from other generators; the stage itself where it draws from none.

    Args:
        stage: as for ``user_generators``.
        generators: as many as it returns, in its order.
    """
    if not user_generators(stage):
        return stage
    replaced = copy.copy(stage)
    if isinstance(stage, Stage) and getattr(stage, "rng", None) is not None:
        replaced.rng = next(generators)
    for name, parts in _nested(stage):
        setattr(replaced, name, [replace_generators(part, generators) for part in parts])
    return replaced


def _nested(stage: Any) -> Iterator[tuple[str, list[Any]]]:
    """Yield the attributes of a mix or a dataset that hold further datasets and stages."""
    if isinstance(stage, Stage) and hasattr(stage, "datasets"):
        yield "datasets", stage.datasets
    if isinstance(getattr(stage, "pipeline", None), list) and startable(stage):
        yield "pipeline", stage.pipeline
