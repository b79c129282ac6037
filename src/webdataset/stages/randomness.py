"""Random generators of stages and of samples: select, draw, save and restore them.

A stage's generator is selected as upstream does; its state is JSON small enough for a snapshot.

Theory of sample generators. An augmentation that draws from one stream of random numbers depends on every sample
before it, and so on the number of workers, on filters, and on where a run was resumed. Here each sample has a
generator of its own, seeded by a hash (BLAKE2b) of the run's seed and epoch, the name of the user's function, and the
sample's name: the file name of its shard, its key, and where shards are drawn with replacement the number of the
draw. It depends on nothing else, and there is no state.
"""

import base64
import copy
import functools
import random
import random as library
import struct
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from webdataset.core.error_handlers import (
    Handler,
    count_drop,
    make_handler_error,
    reraise_exception,
    should_continue,
)
from webdataset.core.errors import FlowError, StateMismatch, UsageError
from webdataset.core.json_types import Address, JsonValue, as_list, as_text
from webdataset.core.seeds import CounterRng, Seed, hash_seed, sample_digest
from webdataset.stages import argument_checks
from webdataset.stages.base import (
    Fetch,
    Outcome,
    PassThroughState,
    Run,
    Sample,
    Stage,
    StageState,
    describe_function,
    stage_title,
    with_blame,
)
from webdataset.stages.mix_sources import is_startable

if TYPE_CHECKING:
    import numpy as np


class RandomNumbers(Protocol):
    """A generator of the user's: ``random.Random``, the module ``random``, or anything that has this method."""

    def randint(self, a: int, b: int, /) -> int:
        """Return a number from ``a`` to ``b``, both included."""


Rng: TypeAlias = RandomNumbers | CounterRng
SampleFunction: TypeAlias = Callable[[Any, Any], object]
"""Makes a result of a sample and a generator of the sample's own."""

_WORDS = struct.Struct("<625I")


def select_rng(run: Run, rng: Rng | None, seed: Seed) -> Rng:
    """Return the generator of a stage: the one it was given, one of its seed, or one of its run's seed.

    Raises:
        UsageError: both are given.
    """
    if rng is not None and seed is not None:
        raise UsageError("give rng= or seed=, not both")
    if rng is not None:
        return rng
    if seed is None:
        return run_rng(run)
    if run.stream is not None:  # streams that all drew alike would not be independent
        return run_rng(run, "seed", str(seed))
    return library.Random(seed)  # noqa: S311  shuffling, not cryptography


def run_rng(run: Run, *names: int | str) -> CounterRng:
    """Return a stage's own generator under its run, whose state is one number."""
    return CounterRng(run.random(*names).getrandbits(64))


def make_bit_source(rng: RandomNumbers, bound: int) -> Callable[[int], int]:
    """Return ``draw(width)``: numbers of ``width`` bits from which those below ``bound`` are to be taken.

    ``random.Random.randint(0, bound - 1)`` draws just so, through four Python calls. Generators of other types are
    asked for ``randint``, and all of their numbers are below ``bound``.
    """
    if type(rng) is library.Random or rng is library:
        return rng.getrandbits
    return lambda _width: int(rng.randint(0, bound - 1))


def randbelow(rng: Rng, bound: int) -> int:
    """Return a number in [0, bound), with the draws that ``rng.randint(0, bound - 1)`` makes."""
    if isinstance(rng, CounterRng):
        return rng.below(bound)
    draw, width = make_bit_source(rng, bound), bound.bit_length()
    number = draw(width)
    while number >= bound:
        number = draw(width)
    return number


def rng_state(rng: Rng | None) -> JsonValue:
    """Return a generator's state as JSON: one number for ours, 3 KB for those of Python's ``random`` module.

    Raises:
        FlowError: a generator of another kind.
    """
    if isinstance(rng, CounterRng):
        return rng.position
    known: Callable[[], object] = getattr(rng, "getstate", lambda: None)
    state = known()
    if not isinstance(state, tuple) or len(state) != 3 or len(state[1]) != 625:
        raise FlowError(
            f"the state of a {type(rng).__name__} cannot be saved: give the stage seed= or a random.Random as rng="
        )
    return [state[0], base64.b85encode(_WORDS.pack(*state[1])).decode("ascii"), state[2]]


def restore_rng(rng: Rng | None, state: JsonValue) -> None:
    """Set a generator to a state that ``rng_state`` returned.

    Raises:
        StateMismatch: it is not such a state.
    """
    if isinstance(rng, CounterRng):
        if type(state) is not int or state < 0:
            raise StateMismatch("the snapshot holds no state of this random generator")
        rng.position = state
        return
    try:
        version, words, gauss = as_list(state)
        restore: Callable[[object], None] = getattr(rng, "setstate", _refuse_state)
        restore((version, _WORDS.unpack(base64.b85decode(as_text(words))), gauss))
    except (TypeError, ValueError, AttributeError, struct.error) as error:
        raise StateMismatch("the snapshot holds no state of this random generator") from error


def _refuse_state(_state: object) -> None:
    raise TypeError("a generator whose state cannot be set")


def user_generators(stage: object) -> list[Rng]:
    """Return the random generators that users gave a stage, or the stages of the datasets that it mixes.

    Args:
        stage: a stage or a dataset; what is not ours has none.
    """
    own = getattr(stage, "rng", None) if isinstance(stage, Stage) else None
    found = [] if own is None else [own]
    return found + [
        generator for _, parts in _nested_parts(stage) for part in parts for generator in user_generators(part)
    ]


def depends_on_past(source: object) -> bool:
    """Tell whether a pass over a source may depend on what was read of it before, in a way that only its state tells.

    Args:
        source: a dataset that draws from generators of users, or keeps samples for later passes.
    """
    if hasattr(source, "recall") or user_generators(source):
        return True
    return any(depends_on_past(part) for _, parts in _nested_parts(source) for part in parts)


def replace_generators(stage: Any, generators: Iterator[Any]) -> Any:
    """Return a stage that draws from other generators; the stage itself where it draws from none."""
    if not user_generators(stage):
        return stage
    replaced = copy.copy(stage)
    if isinstance(stage, Stage) and getattr(stage, "rng", None) is not None:
        replaced.rng = next(generators)
    for name, parts in _nested_parts(stage):
        setattr(replaced, name, [replace_generators(part, generators) for part in parts])
    return replaced


def _nested_parts(stage: Any) -> Iterator[tuple[str, list[Any]]]:
    """Yield the attributes of a mix or a dataset that hold further datasets and stages."""
    if isinstance(stage, Stage) and hasattr(stage, "datasets"):
        yield "datasets", stage.datasets
    if isinstance(getattr(stage, "pipeline", None), list) and is_startable(stage):
        yield "pipeline", stage.pipeline


def _make_python_rng(digest: bytes) -> random.Random:
    return random.Random(int.from_bytes(digest[:8], "little"))  # noqa: S311  augmentation, not cryptography


def _make_seed_number(digest: bytes) -> int:
    return int.from_bytes(digest[:8], "little") >> 1


def _make_numpy_rng(digest: bytes) -> "np.random.Generator":
    generator, bits, given = _numpy_parts()
    made: np.random.Generator = generator(bits(given(digest)))
    return made


@functools.cache
def _numpy_parts() -> tuple[Any, Any, Any]:
    """Return numpy's Generator and PCG64, and a seed sequence that is 256 bits as they are (no hashing once more)."""
    import numpy as np  # noqa: PLC0415  only numpy's generators need it
    from numpy.random.bit_generator import ISeedSequence  # noqa: PLC0415

    class Digest(ISeedSequence):
        """256 random bits."""

        def __init__(self, digest: bytes) -> None:
            self.words = np.frombuffer(digest, "<u8")

        def generate_state(self, n_words: int, dtype: Any = np.uint32) -> Any:  # noqa: ARG002  4 uint64 are asked for
            """Return the words."""
            return self.words[:n_words]

    return np.random.Generator, np.random.PCG64, Digest


KINDS: dict[str, Callable[[bytes], Any]] = {
    "python": _make_python_rng,
    "numpy": _make_numpy_rng,
    "seed": _make_seed_number,
}


def _find_rng_maker(kind: object) -> Callable[[bytes], Any]:
    chosen = KINDS.get("python" if kind is True else str(kind))
    if chosen is None:
        raise UsageError(f"rng={kind!r} is not one of {', '.join(map(repr, KINDS))}, or True for 'python'")
    return chosen


def _hash_sample(sample: Sample, *parts: int | str | None) -> bytes:
    try:
        return sample_digest(sample, *parts)
    except (KeyError, TypeError, AttributeError, IndexError) as error:
        raise UsageError(
            f"a generator for each sample needs samples that are dictionaries with '__key__', not "
            f"{type(sample).__name__}: draw before to_tuple, batched or whatever drops the key"
        ) from error


def rng(sample: Sample, *names: int | str, seed: int = 0, epoch: int = 0, kind: str = "python") -> Any:
    """Return a generator that belongs to one sample: the same wherever and whenever the sample is met.

    Args:
        sample: with ``__key__``; ``__url__`` and ``__draw__`` count where they are there.
        *names: further things that the generator depends on, such as the name of an augmentation.
        seed: the user's.
        epoch: the number of the epoch, where epochs are to differ.
        kind: ``"python"``: a ``random.Random``; ``"numpy"``: a ``numpy.random.Generator``; ``"seed"``: an int below
            ``2**63``, for ``torch.Generator().manual_seed`` and others.

    Raises:
        UsageError: a sample without a key; another kind.
    """
    return _find_rng_maker(kind)(_hash_sample(sample, "own", seed, epoch, *names))


def _function_name(function: object) -> str:
    """Return a function's name, the same in every process: of a partial that of its function, of an object its type."""
    inner = getattr(function, "func", function)
    return str(getattr(inner, "__qualname__", type(inner).__qualname__))


class SampleRngState(PassThroughState):
    """What the generators of a run have in common."""

    def __init__(self, *parts: int | str) -> None:
        self.parts = parts


_check_function = argument_checks.make_function_check(
    "map with rng= takes a function of a sample and a generator", "map(function, rng=True)"
)


class MapWithRng(Stage[SampleRngState]):
    """A function applied to each sample and a generator of the sample's own; see :func:`map_with_rng`.

    Args:
        f: ``f(sample, generator)``.
        kind: ``"python"``, ``"numpy"`` or ``"seed"``.
        handler: asked where ``f`` raises.
        salt: tells this stage's draws apart from those of another stage with a function of the same name.

    Raises:
        UsageError: another kind, or no function.

    Flow: in order; holds nothing; resumes exactly.
    """

    transparent = True
    drops = True
    name = "map"

    def __init__(self, f: SampleFunction, kind: object, handler: Handler, salt: int | str = 0) -> None:
        _find_rng_maker(kind)
        _check_function(f)
        if handler is not None and not callable(handler):
            raise make_handler_error(handler)
        self.f = f
        self.kind = "python" if kind is True else str(kind)
        self.handler = handler
        self.salt = salt

    @property
    def function(self) -> SampleFunction:
        """The user's function."""
        return self.f

    def begin(self, run: Run) -> SampleRngState:
        """Return what the generators of this run depend on."""
        return SampleRngState(run.seed, run.epoch, _function_name(self.f), self.salt)

    def flow(self, upstream: Iterator[Sample], state: SampleRngState) -> Iterator[object]:
        """Yield the results that are not None."""
        f, make, parts = self.f, _find_rng_maker(self.kind), state.parts
        name = ""  # in reports, once a sample was dropped
        outcome, gave = state.outcome or Outcome(), False
        for sample in upstream:
            digest = _hash_sample(sample, *parts)
            try:
                result = f(sample, make(digest))
            except Exception as exn:  # noqa: BLE001  user code: the handler decides
                if should_continue(self.handler, with_blame(exn, "map", sample, f), stage_title("map", f)):
                    continue
                return
            if result is None:
                name = name or stage_title("map", f)
                count_drop(name)
                if not gave:
                    outcome.dropped += 1
                continue
            if not gave:
                gave = outcome.gave = True
            if result is not sample and isinstance(result, dict):
                result["__key__"] = sample["__key__"]
            yield result
        outcome.ended = True

    def refetch(self, addresses: list[Address], fetch: Fetch, state: SampleRngState | None = None) -> list[object]:
        """Make the results at some addresses once more, with the generators that their samples had.

        Raises:
            FlowError: the function gave another number of results than it did.
        """
        if not isinstance(state, SampleRngState):
            raise FlowError(f"{self!r} makes samples again only in its own run")
        remade = list(self.flow(iter(fetch(addresses)), state))
        if len(remade) != len(addresses):
            raise FlowError(
                f"{self!r} made {len(remade)} of {len(addresses)} samples again: {describe_function(self.f)} is not "
                "pure"
            )
        return remade

    def __repr__(self) -> str:
        return f"map({_function_name(self.f)}, rng={self.kind!r})"


def map_with_rng(
    f: SampleFunction,
    rng: bool | str = True,  # noqa: FBT001, FBT002
    handler: Handler = reraise_exception,
    salt: int | str = 0,
) -> MapWithRng:
    """Apply a function to each sample and a generator of the sample's own: ``dataset.map(f, rng=True)`` as a stage.

    The generator depends on the run's seed and epoch, on the function's name and ``salt``, and on the sample's name
    (shard file, key); not on workers, processes, other samples and stages, or where the run was resumed.

    Args:
        f: ``f(sample, generator)``; its result passes, None drops the sample, a dictionary keeps the sample's key.
        rng: ``True`` or ``"python"``: a ``random.Random``; ``"numpy"``: a ``numpy.random.Generator``; ``"seed"``: an
            int below ``2**63``, for ``torch.Generator().manual_seed`` and others.
        handler: asked where ``f`` raises: true skips the sample, false ends the stage.
        salt: tells this stage's draws apart from those of another stage with a function of the same name (two lambdas);
            ``dataset.map(f, rng=True)`` numbers such stages by itself.

    Returns:
        A stage.

    Raises:
        UsageError: another kind; when it runs, samples without ``__key__``.

    Flow: in order; holds nothing; resumes exactly.
    """
    return MapWithRng(f, rng, handler, salt)


class DrawNumberState(StageState):
    """What the numbers of a run's draws depend on."""

    def __init__(self, *parts: int) -> None:
        self.parts = parts


class NumberDraws(Stage[DrawNumberState]):
    """Numbers the shards of a list that draws with replacement, so that a sample drawn twice has two generators.

    Every sample gets ``__draw__``: an int that is different for each draw of the epoch, in all workers and ranks.

    Flow: in order; holds nothing; stands before the reader, where everything is run again.
    """

    state_name = "NumberDraws"
    transparent = True

    def begin(self, run: Run) -> DrawNumberState:
        """Return the worker or stream that draws."""
        where = run.worker()
        return DrawNumberState(*(run.stream if run.stream is not None else (where.rank, where.worker)))

    def flow(self, upstream: Iterator[Sample], state: DrawNumberState) -> Iterator[Sample]:
        """Yield the shards with ``__draw__``."""
        for number, shard in enumerate(upstream):
            yield {**shard, "__draw__": hash_seed("draw", *state.parts, number) >> 11}

    def __repr__(self) -> str:
        return "number_draws()"
