"""Seeds: one number in, independent reproducible generators out.

``fold`` mixes any names and numbers into 64 bits with BLAKE2b, so that the result does not depend on
PYTHONHASHSEED, platform or Python version. ``fresh`` gives entropy for runs that were given no seed.
"""

import hashlib
import os
import random


def fold(*parts: int | str | None) -> int:
    """Mix numbers and names into one 64-bit seed.

    Args:
        *parts: what the seed depends on; order matters.

    Returns:
        An integer in [0, 2**64).
    """
    text = "\x1f".join(f"{type(part).__name__}:{part}" for part in parts)
    return int.from_bytes(hashlib.blake2b(text.encode("utf-8", "surrogateescape"), digest_size=8).digest(), "little")


def generator(*parts: int | str | None) -> random.Random:
    """Return a generator seeded by ``fold(*parts)``."""
    return random.Random(fold(*parts))  # noqa: S311  shuffling, not cryptography


def fresh() -> int:
    """Return 63 bits from the operating system, for a run that was given no seed."""
    return int.from_bytes(os.urandom(8), "little") >> 1
