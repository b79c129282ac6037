"""Lends decoders memory inside the batch that their pixels will be a row of.

A loader that knows the next row of a batch installs a provider for its thread; an image decoder asks it for a
writable array of the right shape, and makes its own array where the provider returns None. The provider, not the
decoder, checks that a lent array ends up as the row it was lent for.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol, TypeVar

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

Number = TypeVar("Number", bound="np.generic")


class BufferProvider(Protocol):
    """Offers memory inside the batch that is being made."""

    def __call__(self, shape: tuple[int, ...], dtype: "np.dtype[np.generic]", /) -> "npt.NDArray[np.generic] | None":
        """Return a writable, C-contiguous array with any content; None where the row has no such column."""


class _ThreadProvider(threading.local):
    giver: BufferProvider | None = None


_local = _ThreadProvider()


def take_buffer(shape: tuple[int, ...], dtype: "np.dtype[Number]") -> "npt.NDArray[Number] | None":
    """Return a writable, C-contiguous array with any content for decoded values, or None."""
    giver = _local.giver
    return None if giver is None else giver(shape, dtype)  # type: ignore[return-value]  # of the dtype asked for


@contextmanager
def use_provider(giver: BufferProvider | None) -> Iterator[None]:
    """Let decoders in this thread ask ``giver`` for memory.

    Args:
        giver: offers memory; None offers none.
    """
    before, _local.giver = _local.giver, giver
    try:
        yield
    finally:
        _local.giver = before
