"""Chance that belongs to the sample: generators that depend on seed, epoch and the sample's name, and on nothing else.

Theory. An augmentation that draws from one stream of random numbers depends on every sample before it, and so on the
number of workers, on filters, and on where a run was resumed. Here each sample has a generator of its own, seeded by a
hash (BLAKE2b) of the run's seed and epoch, the name of the user's function, and the sample's name: the file name of its
shard, its key, and where shards are drawn with replacement the number of the draw. There is no state.

Flows in: samples with ``__key__``. Flows out: what the user's function makes of a sample and its generator.
"""

import functools
import random
from collections.abc import Callable, Iterator
from typing import Any

from webdataset.ground.errors import FlowError, UsageError
from webdataset.ground.policies import Handler, reraise_exception
from webdataset.ground.seeds import fold, sample_digest
from webdataset.ground.skips import count_dropped, goes_on
from webdataset.ground.topology import place

from .base import Address, Fetch, Memory, Passage, Run, Stage
from .blame import blamed, named, titled


def _python(digest: bytes) -> random.Random:
    return random.Random(int.from_bytes(digest[:8], "little"))  # noqa: S311  augmentation, not cryptography


def _seed(digest: bytes) -> int:
    return int.from_bytes(digest[:8], "little") >> 1


def _numpy(digest: bytes) -> Any:
    generator, bits, given = _numpy_parts()
    return generator(bits(given(digest)))


@functools.cache
def _numpy_parts() -> tuple[Any, Any, Any]:
    """Return numpy's Generator and PCG64, and a seed sequence that is 256 bits as they are (no hashing once more)."""
    import numpy as np  # noqa: PLC0415  only who asks for numpy's generators pays for it
    from numpy.random.bit_generator import ISeedSequence  # noqa: PLC0415

    class Digest(ISeedSequence):
        """256 random bits."""

        def __init__(self, digest: bytes) -> None:
            self.words = np.frombuffer(digest, "<u8")

        def generate_state(self, n_words: int, dtype: Any = np.uint32) -> Any:  # noqa: ARG002  4 uint64 are asked for
            """Return the words."""
            return self.words[:n_words]

    return np.random.Generator, np.random.PCG64, Digest


KINDS: dict[str, Callable[[bytes], Any]] = {"python": _python, "numpy": _numpy, "seed": _seed}


def _maker(kind: Any) -> Callable[[bytes], Any]:
    chosen = KINDS.get("python" if kind is True else kind)
    if chosen is None:
        raise UsageError(f"rng={kind!r} is not one of {', '.join(map(repr, KINDS))}, or True for 'python'")
    return chosen


def _digest(sample: Any, *parts: int | str | None) -> bytes:
    try:
        return sample_digest(sample, *parts)
    except (KeyError, TypeError, AttributeError, IndexError) as error:
        raise UsageError(
            f"a generator for each sample needs samples that are dictionaries with '__key__', not "
            f"{type(sample).__name__}: draw before to_tuple, batched or whatever drops the key"
        ) from error


def rng(sample: Any, *names: int | str, seed: int = 0, epoch: int = 0, kind: str = "python") -> Any:
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
    return _maker(kind)(_digest(sample, "own", seed, epoch, *names))


def _name(function: Any) -> str:
    """Return a function's name, the same in every process: of a partial that of its function, of an object its type."""
    inner = getattr(function, "func", function)
    return str(getattr(inner, "__qualname__", type(inner).__qualname__))


class Seeded(Passage):
    """What the generators of a run have in common.

    Args:
        parts: seed, epoch, and what tells the stage apart.
    """

    def __init__(self, *parts: int | str) -> None:
        self.parts = parts


class MapWithRng(Stage):
    """A function applied to each sample and a generator of the sample's own; see :func:`map_with_rng`.

    Args:
        f: ``f(sample, generator)``.
        kind: ``"python"``, ``"numpy"`` or ``"seed"``.
        handler: asked where ``f`` raises.
        salt: tells this stage's draws apart from those of another stage with a function of the same name.

    Raises:
        UsageError: another kind.

    Flow: in order; holds nothing; resumes exactly.
    """

    transparent = True
    drops = True
    name = "map"

    def __init__(self, f: Callable[[Any, Any], Any], kind: Any, handler: Handler, salt: int | str = 0) -> None:
        _maker(kind)
        self.f = f
        self.kind = "python" if kind is True else kind
        self.handler = handler
        self.salt = salt

    @property
    def function(self) -> Any:
        """The user's function."""
        return self.f

    def begin(self, run: Run) -> Seeded:
        """Return what the generators of this run depend on."""
        return Seeded(run.seed, run.epoch, _name(self.f), self.salt)

    def flow(self, upstream: Iterator[Any], memory: Seeded) -> Iterator[Any]:
        """Yield the results that are not None."""
        f, make, parts = self.f, _maker(self.kind), memory.parts
        name = ""  # in reports, once a sample was dropped
        dropped, gave = 0, False
        for sample in upstream:
            digest = _digest(sample, *parts)
            try:
                result = f(sample, make(digest))
            except Exception as exn:  # noqa: BLE001  user code: the handler decides
                if goes_on(self.handler, blamed(exn, "map", sample, f), titled("map", f)):
                    continue
                return
            if result is None:
                name = name or titled("map", f)
                count_dropped(name)
                dropped += 1
                continue
            gave = True
            if result is not sample and isinstance(result, dict):
                result["__key__"] = sample["__key__"]
            yield result
        if memory.outcome is not None:
            memory.outcome.end(dropped, gave=gave)

    def refetch(self, addresses: list[Address], fetch: Fetch, memory: Any = None) -> list[Any]:
        """Make the results at some addresses once more, with the generators that their samples had.

        Raises:
            FlowError: the function gave another number of results than it did.
        """
        if not isinstance(memory, Seeded):
            raise FlowError(f"{self!r} makes samples again only in its own run")
        remade = list(self.flow(iter(fetch(addresses)), memory))
        if len(remade) != len(addresses):
            raise FlowError(
                f"{self!r} made {len(remade)} of {len(addresses)} samples again: {named(self.f)} is not pure"
            )
        return remade

    def __repr__(self) -> str:
        return f"map({_name(self.f)}, rng={self.kind!r})"


def map_with_rng(
    f: Callable[[Any, Any], Any],
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


class Numbering(Memory):
    """What the numbers of a run's draws depend on.

    Args:
        parts: rank and worker, or the virtual stream.
    """

    def __init__(self, *parts: int) -> None:
        self.parts = parts


class NumberDraws(Stage):
    """Numbers the shards of a list that draws with replacement, so that a sample drawn twice has two generators.

    Every sample gets ``__draw__``: an int that is different for each draw of the epoch, in all workers and ranks.

    Flow: in order; holds nothing; stands before the reader, where everything is run again.
    """

    transparent = True

    def begin(self, run: Run) -> Numbering:
        """Return who draws."""
        return Numbering(*(run.stream if run.stream is not None else (place().rank, place().worker)))

    def flow(self, upstream: Iterator[Any], memory: Numbering) -> Iterator[Any]:
        """Yield the shards with ``__draw__``."""
        for number, shard in enumerate(upstream):
            yield {**shard, "__draw__": fold("draw", *memory.parts, number) >> 11}

    def __repr__(self) -> str:
        return "number_draws()"
