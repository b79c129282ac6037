"""Tests of what is released without Python's garbage collection."""

import gc
import warnings
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def no_collector() -> Iterator[None]:
    """Switch garbage collection off; what earlier tests left is gone, and a file that one left open fails no other."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
