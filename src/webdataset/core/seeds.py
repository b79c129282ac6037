"""Independent, reproducible random generators derived from names and numbers.

:func:`hash_seed` mixes any names and numbers into 64 bits with BLAKE2b, so that the result does not depend on
PYTHONHASHSEED, platform or Python version. :func:`random_seed` gives entropy for runs without a seed.
:class:`CounterRng` is a generator whose whole state is one number: how many draws it has given. :func:`sample_digest`
gives each sample random bits of its own.
"""

import functools
import operator
import os
import random
import struct
from collections.abc import Mapping
from typing import SupportsIndex, TypeAlias

from webdataset.core.errors import UsageError

try:
    from _blake2 import blake2b  # hashlib's own; hashlib itself loads OpenSSL, which takes longer than all of this
except ImportError:
    from hashlib import blake2b

Seed: TypeAlias = int | float | str | bytes | bytearray | None


def hash_seed(*parts: int | str | None) -> int:
    """Mix numbers and names into one 64-bit seed.

    Returns:
        An integer in [0, 2**64).
    """
    text = "\x1f".join(f"{type(part).__name__}:{part}" for part in parts)
    return int.from_bytes(blake2b(text.encode("utf-8", "surrogateescape"), digest_size=8).digest(), "little")


def make_rng(*parts: int | str | None) -> random.Random:
    """Return a generator seeded by ``fold(*parts)``."""
    return random.Random(hash_seed(*parts))  # noqa: S311  shuffling, not cryptography


def read_seed(seed: int | float | str | bytes | bytearray | SupportsIndex | None) -> Seed:
    """Return a seed that Python's generators take: a whole number of numpy, or a float, becomes an int.

    Raises:
        UsageError: it is none.
    """
    if isinstance(seed, float) and seed.is_integer():
        return int(seed)
    if isinstance(seed, int | float | str | bytes | bytearray | None):
        return seed
    if not isinstance(seed, SupportsIndex):
        raise UsageError(f"seed={seed!r:.60}: a seed is a whole number, such as seed=0")
    return operator.index(seed)


def read_epoch(epoch: object) -> int:
    """Return the number of an epoch that ``set_epoch`` was given.

    Raises:
        UsageError: no epoch has it.
    """
    if not isinstance(epoch, SupportsIndex) or operator.index(epoch) < 0:
        raise UsageError(f"set_epoch({epoch!r:.60}): an epoch is a whole number, numbered from 0")
    return operator.index(epoch)


def random_seed() -> int:
    """Return 63 bits from the operating system, for a run that was given no seed."""
    return int.from_bytes(os.urandom(8), "little") >> 1


class CounterRng:
    """A generator that can be set to any position at once: its state is one small number.

    The words come in blocks of 1 024; block ``b`` of key ``k`` is what ``random.Random(fold("draws", k, b))`` gives.
    Hot loops pop from ``words`` by themselves (``if not words: draws.refill()``), and take ``word * bound >> 32`` as a
    number below ``bound``, which is uniform to within ``bound / 2**32``.

    Attributes:
        words: what is left of the present block, ``uint32``, the next word last.
    """

    BLOCK = 1024
    _UNPACK = struct.Struct(f"<{BLOCK}I").unpack

    def __init__(self, key: int, position: int = 0) -> None:
        self.key = key
        self.words: list[int] = []
        self._blocks = 0
        self.position = position

    @property
    def position(self) -> int:
        """Number of draws given."""
        return self._blocks * self.BLOCK - len(self.words)

    @position.setter
    def position(self, position: int) -> None:
        self._blocks, given = divmod(position, self.BLOCK)
        self.words.clear()
        if given:
            self.refill()
            del self.words[-given:]

    def refill(self) -> None:
        """Put the next block into ``words``, which must be empty."""
        block = random.Random(hash_seed("draws", self.key, self._blocks))  # noqa: S311  shuffling, not cryptography
        self.words.extend(reversed(self._UNPACK(block.getrandbits(32 * self.BLOCK).to_bytes(4 * self.BLOCK, "little"))))
        self._blocks += 1

    def word(self) -> int:
        """Return the next 32 bits."""
        if not self.words:
            self.refill()
        return self.words.pop()

    def below(self, bound: int) -> int:
        """Return a number in [0, bound)."""
        return self.word() * bound >> 32

    def random(self) -> float:
        """Return a number in [0, 1), a multiple of ``2**-53``."""
        return ((self.word() >> 5) * 67108864 + (self.word() >> 6)) / 9007199254740992


def permutation(length: int, *parts: int | str | None) -> list[int]:
    """Return 0 … length-1 in an order that ``parts`` decide."""
    draw = make_rng("permutation", *parts).random
    keys = [draw() for _ in range(length)]
    return sorted(range(length), key=keys.__getitem__)


@functools.lru_cache(maxsize=64)
def _sample_hash(*parts: int | str | None) -> blake2b:
    return blake2b(hash_seed("sample", *parts).to_bytes(8, "little"), digest_size=32)


def sample_digest(sample: Mapping[str, object], *parts: int | str | None) -> bytes:
    """Return 256 bits that one sample has to itself: a function of the sample's name and of ``parts``.

    A sample's name is the file name of its shard (without folder and query: data may move), its key, and the number of
    the draw where shards are drawn more than once in an epoch (``__draw__``).

    Args:
        sample: with ``__key__``; ``__url__`` and ``__draw__`` count where they are there.
        *parts: seed, epoch, and what else the digest depends on.

    Raises:
        KeyError: a sample without ``__key__``.
    """
    shard = str(sample.get("__url__", "")).partition("?")[0].rstrip("/").rpartition("/")[2]
    digest = _sample_hash(*parts).copy()
    name = f"{shard}\x1f{sample['__key__']}\x1f{sample.get('__draw__', '')}"
    digest.update(name.encode("utf-8", "surrogateescape"))
    return bytes(digest.digest())
