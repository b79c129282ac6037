"""Decoding for random access: the specs of ``.decode(...)``, as one function of the sample.

Flows in: a spec. Flows out: a function. The codecs are loaded when the first sample is decoded.
"""

from collections.abc import Callable, Sequence
from typing import Any

from webdataset.ground.errors import UsageError
from webdataset.samples.grouping import Sample

Decode = bool | str | Sequence[Any] | Callable[[Sample], Sample] | None


def decoder_of(decode: Decode, trust: str | None) -> Callable[[Sample], Sample]:
    """Return the function that decodes samples.

    Args:
        decode: True for the basic decoders, a spec such as ``"rgb"``, a list of specs and functions, or a function of
            the sample.
        trust: trust level; None is the process's.

    Raises:
        UsageError: none of these.
    """
    if callable(decode):
        return decode
    if decode is True:
        handlers: list[Any] = []
    elif isinstance(decode, str):
        handlers = [decode]
    elif isinstance(decode, Sequence):
        handlers = list(decode)
    else:
        raise UsageError(f"decode={decode!r}: pass True, a spec such as 'rgb', a list of them, a function or None")
    from webdataset.codecs.decoder import Decoder  # noqa: PLC0415  codecs are loaded when they are used

    return Decoder(handlers, trust=trust).decode
