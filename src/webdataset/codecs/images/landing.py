"""Where a decoder may put its pixels: straight into the batch that they will be a row of.

A loader that knows the next row of a batch installs a giver for its thread; an image decoder asks it for memory of the
right shape. Flows in: shapes. Flows out: writable arrays, or None: then the decoder makes its own. Whether an array
that was given ended up where it belongs is the giver's business.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

Giver = Callable[[tuple[int, ...], Any], Any]


class _Here(threading.local):
    giver: Giver | None = None


_here = _Here()


def take(shape: tuple[int, ...], dtype: Any) -> Any:
    """Return memory for decoded values, or None.

    Args:
        shape: of the array.
        dtype: its numpy dtype.

    Returns:
        A writable, C-contiguous array of this shape and dtype with any content.
    """
    giver = _here.giver
    return None if giver is None else giver(shape, dtype)


@contextmanager
def given_by(giver: Giver | None) -> Iterator[None]:
    """Let decoders in this thread ask ``giver`` for memory.

    Args:
        giver: from shape and dtype to an array or None; None for nobody.
    """
    before, _here.giver = _here.giver, giver
    try:
        yield
    finally:
        _here.giver = before
