"""How many bytes a sample holds, for buffers with a bound in bytes.

Flows in: samples in any state of decoding. Flows out: numbers. Counts payloads, not Python's own overhead; never copies
or decodes anything.
"""

from dataclasses import fields, is_dataclass
from typing import Any

_FLAT = (int, float, bool, type(None))
_UNKNOWN = 64  # the same on every Python: orders depend on it


def size_bytes(value: Any) -> int:
    """Return the bytes that a sample or a value holds.

    Args:
        value: bytes, text (one byte a character), arrays and tensors (``nbytes``), Pillow images (pixels times bands),
            and dictionaries, lists and tuples of these; not ``__key__``, ``__url__`` and
            their like. Of dataclasses, their fields; anything else counts 64.
    """
    kind = value.__class__
    if kind is bytes or kind is str:
        return len(value)
    if kind is dict:
        total = 0
        for name, part in value.items():
            if part.__class__ is bytes:
                total += len(part)
            elif name.__class__ is not str or name[:2] != "__":  # where a shard lies must not decide an order
                total += size_bytes(part)
        return total
    if isinstance(value, _FLAT):
        return 8
    return _other(value)


def _other(value: Any) -> int:
    if isinstance(value, bytearray | memoryview):
        return memoryview(value).nbytes
    if isinstance(value, dict):
        return size_bytes(dict(value))
    if isinstance(value, list | tuple | set | frozenset):
        return sum(size_bytes(part) for part in value)
    counted = getattr(value, "nbytes", None)
    return counted if isinstance(counted, int) else _of_object(value)


def _of_object(value: Any) -> int:
    bands = getattr(value, "getbands", None)
    if bands is not None:
        width, height = value.size
        return int(width) * int(height) * len(bands())
    if is_dataclass(value) and not isinstance(value, type):
        return sum(size_bytes(getattr(value, field.name)) for field in fields(value))
    return _UNKNOWN
