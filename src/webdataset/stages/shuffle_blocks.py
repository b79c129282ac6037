"""Shuffles samples block by block.

Theory. ``size`` consecutive samples are one block; each block is given in the order of a permutation of its own, a
function of the key and the block's number. No sample is held longer than its block, and nothing depends on what came
before: two blocks far apart can be shuffled by different machines. Compared with a buffer of the same size, the first
sample comes later, neighbours in storage come closer together, and the draws cost nothing while samples flow.
"""

from collections.abc import Iterator
from itertools import islice
from operator import index
from typing import Any, SupportsIndex

from webdataset.core.distributed import StreamNumber
from webdataset.core.errors import UsageError
from webdataset.core.json_types import Address, JsonValue, as_count, as_object, as_text
from webdataset.core.seeds import hash_seed, permutation
from webdataset.stages.address_codec import decode_addresses, encode_addresses
from webdataset.stages.argument_checks import read_count
from webdataset.stages.base import (
    Fetch,
    Item,
    PassThroughStage,
    Run,
    StageState,
    deliver_pairs,
    pair_addresses,
)


class BlockState(StageState):
    """What a block shuffle remembers: the addresses of the present block, as they came in, and how many are left."""

    def __init__(self, key: int) -> None:
        self.key = key
        self.blocks = 0  # begun so far
        self.waiting: list[Any] = []  # the next one last; in a tracked run, (address, item)
        self.stored: list[Address] = []  # addresses of the block, in a tracked run
        self._written: str | None = None  # the same, packed; written once for each block, if it is saved

    def begin(self, stored: list[Any]) -> list[int]:
        """Begin a block; return its permutation, the first to be given last.

        Args:
            stored: one entry for each of its samples; in a tracked run, the address.
        """
        self.stored, self._written = stored if self.origin is not None else [], None
        self.blocks += 1
        return permutation(len(stored), self.key, self.blocks - 1)

    def snapshot(self) -> JsonValue:
        """Return the number of blocks begun, the addresses of the present one, and how many of its samples are left."""
        if not self.waiting:
            return {"blocks": self.blocks, "left": 0, "stored": ""}
        if self._written is None:
            self._written = encode_addresses(self.stored, in_order=True)
        return {"blocks": self.blocks, "left": len(self.waiting), "stored": self._written}

    def restore(self, state: JsonValue, fetch: Fetch) -> None:
        """Fetch what was left of the block."""
        parts = as_object(state)
        self.blocks = as_count(parts["blocks"])
        stored = decode_addresses(as_text(parts["stored"]))
        if not stored:
            return
        self.blocks -= 1
        addresses = [stored[place] for place in self.begin(stored)[: as_count(parts["left"])]]
        self.waiting[:] = zip(addresses, fetch(addresses), strict=True)


class BlockShuffle(PassThroughStage):
    """A shuffle of blocks of consecutive samples; see :func:`block_shuffle`.

    Args:
        size: samples in a block.
        seed: with the epoch it decides the order; None leaves it to the run.

    Raises:
        UsageError: a size below 1.

    Flow: random order within blocks; holds ``size`` samples; resumes exactly.
    """

    state_name = "BlockShuffle"
    reorders = True

    def __init__(self, size: int, seed: int | None = None) -> None:
        if read_count(size, "size") != size or size < 1:
            raise UsageError(f"size={size!r}: a block holds a whole number of samples, at least one")
        self.size = int(size)
        self.seed = seed if isinstance(seed, int | None) else _read_seed(seed)

    def for_stream(self, stream: StreamNumber) -> "BlockShuffle":
        """Return the shuffle of one stream: the blocks of all streams together are as large as this one's."""
        return BlockShuffle(-(-self.size // stream.of), self.seed)

    def begin(self, run: Run) -> BlockState:
        """Return a state that stands before the first block."""
        chosen = (
            run.random("blocks").getrandbits(64)
            if self.seed is None
            else hash_seed("blocks", self.seed, run.epoch, *(run.stream or ()))
        )
        return BlockState(chosen)

    def flow(self, upstream: Iterator[Item], state: BlockState) -> Iterator[Item]:
        """Yield the samples in the order of their blocks' permutations."""
        origin = state.origin
        if origin is None:
            state.waiting[:] = [item for _, item in state.waiting]  # restored into a run that keeps no addresses
            return self._permute(upstream, state)
        return deliver_pairs(self._permute(pair_addresses(upstream, origin), state), state)

    def _permute(self, source: Iterator[Item], state: BlockState) -> Iterator[Item]:
        waiting = state.waiting
        pop = waiting.pop
        while True:
            while waiting:
                yield pop()
            block = list(islice(source, self.size))
            if not block:
                return
            stored: list[Any] = block if state.origin is None else _addresses_of(block)
            waiting.extend(block[place] for place in state.begin(stored))
            del block, stored

    def __repr__(self) -> str:
        return f"block_shuffle({self.size}{'' if self.seed is None else f', seed={self.seed}'})"


def _addresses_of(pairs: list[Any]) -> list[Address]:
    return [address for address, _ in pairs]


def _read_seed(seed: object) -> int:
    """Return a whole number that numpy or a program gave, as one of Python. Raises UsageError: it is none."""
    if isinstance(seed, SupportsIndex):
        return index(seed)
    if isinstance(seed, float) and seed.is_integer():
        return int(seed)
    raise UsageError(f"seed={seed!r:.60}: the seed of block_shuffle is a whole number, such as seed=0")


def block_shuffle(size: int, *, seed: int | None = None) -> BlockShuffle:
    """Shuffle blocks of consecutive samples, each in a random order of its own.

    Args:
        size: samples in a block, at least 1; the last block may be shorter.
        seed: with the epoch it decides the order; None leaves it to the run.

    Returns:
        A stage.

    Raises:
        UsageError: a size below 1.

    Flow: random order within blocks; holds ``size`` samples; resumes exactly.
    """
    return BlockShuffle(size, seed)
