"""Batches as frames: a description in JSON, and the bytes of arrays, texts and byte strings; and parts of a lane.

Theory. The description is a tree of lists whose first part says what they are. Arrays name a dtype of a closed list,
a shape, and where their bytes are: a frame of their own from 64 KiB on, which is sent and received without a copy, or
a place in one common frame. Texts and byte strings are a list of lengths and one run of bytes. What is none of these
(an object of a class, a set, an array of objects) is refused where it is sent, with the name of its field.

Nothing is unpickled; every length is checked against the frame before memory is looked at.
"""

import math
from collections.abc import Sequence
from itertools import accumulate
from typing import Final

import numpy as np

from webdataset.core import errors
from webdataset.core.errors import EncodingError, FlowError, WebDatasetError
from webdataset.flow.elastic_state import is_stream_state
from webdataset.loading.batching import BatchMark
from webdataset.loading.columns import wrap_array
from webdataset.loading.shared_memory import Array, as_array
from webdataset.loading.worker import NEVER, RowCounts
from webdataset.serving.wire_format import (
    LARGEST_BATCH_BYTES,
    LARGEST_DESCRIPTION_BYTES,
    MOST_FRAMES,
    Frame,
    Header,
    WireError,
    encode_json,
    encode_message,
)
from webdataset.stages.base import Json

_DTYPES: Final = {
    name: np.dtype(name)
    for name in (
        *("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
        *("float16", "float32", "float64", "complex64", "complex128"),
    )
}
_OWN_FRAME_BYTES = 1 << 16
_ALIGNMENT = 64
_MOST_DIMENSIONS = 32
_DEEPEST = 24
_LONGEST_INTEGER = 1 << 256
# header, description and the common frame
_OTHER_FRAMES = 3

Node = list[Json]


class BatchEncoder:
    """Makes the frames of one batch.

    Attributes:
        frames: the common frame and those of large arrays; complete after ``finish``.
    """

    def __init__(self) -> None:
        self._common: list[Frame] = []
        self._length = 0
        self._large: list[Frame] = []

    def encode(self, value: object, field: str = "", depth: int = 0) -> Node:
        """Return the description of a value.

        Args:
            value: a batch, or a part of it.
            field: its name, for messages.
            depth: of the part.

        Raises:
            EncodingError: it cannot be described; the message names the field.
        """
        if depth > _DEEPEST:
            raise EncodingError("values are nested too deeply to be sent to a trainer", field=field)
        if value is None or type(value) in (bool, int, float, str, bytes, bytearray, memoryview):
            return self._encode_plain(value, field)
        if type(value) is dict:
            pairs = [
                [self._encode_key(key, field), self.encode(each, str(key), depth + 1)] for key, each in value.items()
            ]
            return ["d", pairs]
        if type(value) is tuple:
            return ["t", [self.encode(each, field or str(n), depth + 1) for n, each in enumerate(value)]]
        if type(value) is list:
            return self._encode_list(value, field, depth)
        return self._encode_array(value, field)

    def _encode_plain(self, value: Json, field: str) -> Node:
        if isinstance(value, bool) or value is None:
            return ["n", value]
        if isinstance(value, int):
            if abs(value) >= _LONGEST_INTEGER:
                raise EncodingError("a number of more than 256 bits cannot be sent to a trainer", field=field)
            return ["i", str(value)]
        if isinstance(value, float):
            # JSON has no word for infinity
            return ["f", value.hex()]
        if isinstance(value, str):
            return ["s", *self._place(value.encode("utf-8", "surrogatepass"))]
        return ["b", *self._place(bytes(value))]

    @staticmethod
    def _encode_key(key: object, field: str) -> Node:
        if type(key) is not str and type(key) is not int:
            raise EncodingError(f"the key {key!r} of a dictionary is neither text nor number", field=field)
        return ["i", str(key)] if isinstance(key, int) else ["k", key]

    def _encode_list(self, values: list[Json], field: str, depth: int) -> Node:
        for kind, name in ((str, "S"), (bytes, "B"), (memoryview, "B")):
            if values and all(type(value) is kind for value in values):
                encoded = [value.encode("utf-8", "surrogatepass") if kind is str else bytes(value) for value in values]
                return [name, [len(each) for each in encoded], *self._place(b"".join(encoded))]
        return ["l", [self.encode(value, field or str(n), depth + 1) for n, value in enumerate(values)]]

    def _encode_array(self, value: object, field: str) -> Node:
        scalar = isinstance(value, np.generic)
        array = np.asarray(value) if scalar else as_array(value)
        if array is None or array.dtype.name not in _DTYPES or array.ndim > _MOST_DIMENSIONS:
            kind = f"array of {value.dtype}" if isinstance(value, np.ndarray) else type(value).__name__
            raise EncodingError(
                f"{kind} cannot be sent to a trainer: numbers, arrays of them, texts, bytes, lists and "
                "dictionaries can. Decode the field to one of these in the pipeline, or leave it out",
                field=field,
            )
        if array.nbytes > LARGEST_BATCH_BYTES:
            raise _refuse_size(array.nbytes, field)
        array = np.ascontiguousarray(array).reshape(array.shape)
        if array.dtype.byteorder == ">":
            array = array.astype(array.dtype.newbyteorder("<"))
        form = "scalar" if scalar else "array" if type(value) is np.ndarray else "tensor"
        return ["a", form, array.dtype.name, list(array.shape), *self._place_array(array)]

    def _place_array(self, array: Array) -> tuple[int, int, int]:
        raw = array.reshape(-1).view(np.uint8).data if array.size else memoryview(b"")
        if len(raw) < _OWN_FRAME_BYTES or len(self._large) >= MOST_FRAMES - _OTHER_FRAMES:
            return self._place(raw)
        # the view keeps the memory of the array from being used again
        self._large.append(raw)
        return len(self._large), 0, len(raw)

    def _place(self, content: Frame) -> tuple[int, int, int]:
        """Return frame, offset and length of bytes in the common frame."""
        offset = self._length
        padding = -len(content) % _ALIGNMENT
        self._common += [content, bytes(padding)]
        self._length += len(content) + padding
        return 0, offset, len(content)

    def finish(self) -> list[Frame]:
        """Return the frames.

        Raises:
            EncodingError: they are larger than a trainer takes.
        """
        if self._length > LARGEST_BATCH_BYTES:
            raise _refuse_size(self._length, "")
        return [b"".join(self._common), *self._large]


def _refuse_size(size_bytes: int, field: str) -> EncodingError:
    limit = LARGEST_BATCH_BYTES >> 20
    return EncodingError(
        f"a batch of {size_bytes >> 20} MiB in one piece cannot be sent to a trainer, which takes {limit} MiB: use a "
        "smaller batch_size, or split the field",
        field=field or None,
    )


class BatchDecoder:
    """Makes a batch of a description and its frames.

    Args:
        frames: the common frame and those of large arrays; arrays are views of them.
    """

    def __init__(self, frames: Sequence[Frame]) -> None:
        self._frames = frames

    def decode(self, node: object, depth: int = 0) -> Json:
        """Return the value of a description.

        Raises:
            WireError: it makes no sense.
        """
        try:
            if type(node) is not list or depth > _DEEPEST:
                raise WireError("a batch whose description is malformed")
            return self._decode(node, depth)
        except (ValueError, TypeError, IndexError, KeyError, OverflowError) as error:
            if isinstance(error, WireError):
                raise
            raise WireError("a batch whose description is malformed") from error

    def _decode(self, node: Node, depth: int) -> Json:
        kind, *rest = node
        if kind == "a":
            return self._decode_array(*rest)
        if kind in ("s", "b"):
            content = bytes(self._find(*rest))
            return content.decode("utf-8", "surrogatepass") if kind == "s" else content
        if kind in ("S", "B"):
            return self._decode_texts(kind, *rest)
        (inner,) = rest
        if kind == "d":
            return {self._decode_key(key): self.decode(value, depth + 1) for key, value in inner}
        if kind in ("t", "l"):
            found = [self.decode(each, depth + 1) for each in inner]
            return tuple(found) if kind == "t" else found
        return self._decode_number(kind, inner)

    @staticmethod
    def _decode_number(kind: str, text: Json) -> Json:
        if kind == "n" and (text is None or type(text) is bool):
            return text
        if kind == "i" and type(text) is str and len(text) < 100:
            return int(text)
        if kind == "f" and type(text) is str and len(text) < 100:
            return float.fromhex(text)
        raise WireError("a batch whose description is malformed")

    @staticmethod
    def _decode_key(node: Node) -> str | int:
        kind, text = node
        if kind not in ("k", "i") or type(text) is not str or (kind == "i" and len(text) > 100):
            raise WireError("a batch with a malformed key")
        return int(text) if kind == "i" else text

    def _find(self, frame: int, offset: int, length: int) -> memoryview:
        if not all(type(each) is int for each in (frame, offset, length)) or min(frame, offset, length) < 0:
            raise WireError("a batch that names a place that cannot be")
        whole = memoryview(self._frames[frame])
        if offset + length > len(whole):
            raise WireError("a batch that names bytes beyond its frames")
        return whole[offset : offset + length]

    def _decode_texts(self, kind: str, lengths: list[int], *place: int) -> list[str] | list[bytes]:
        content = bytes(self._find(*place))
        if not all(type(each) is int and each >= 0 for each in lengths) or sum(lengths) != len(content):
            raise WireError("a batch whose texts have wrong lengths")
        ends = list(accumulate(lengths))
        parts = [content[stop - length : stop] for stop, length in zip(ends, lengths, strict=True)]
        return [part.decode("utf-8", "surrogatepass") for part in parts] if kind == "S" else parts

    def _decode_array(self, form: str, name: str, shape: list[int], *place: int) -> object:
        dtype = _DTYPES[name]
        if len(shape) > _MOST_DIMENSIONS or not all(type(each) is int and each >= 0 for each in shape):
            raise WireError("a batch with an array of a malformed shape")
        content = self._find(*place)
        if math.prod(shape) * dtype.itemsize != len(content):
            raise WireError("a batch with an array whose shape does not agree with its bytes")
        array: Array = np.frombuffer(content, dtype).reshape(shape)
        if not (array.flags.aligned and array.flags.writeable):
            array = array.copy()
        if form == "scalar" and not shape:
            return array[()]
        if form not in ("array", "tensor"):
            raise WireError("a batch whose description is malformed")
        return wrap_array(array, tensor=form == "tensor")


def encode_part(nonce: int, seq: int, batch: object, mark: BatchMark, start: int, *, over: bool) -> list[Frame]:
    """Return a batch with its mark as a message.

    Args:
        nonce: of the lane.
        seq: number of the message.
        batch: any; None at the end.
        mark: what the trainer has received with it.
        start: index at which the lane began; indices are sent from the start of the epoch.
        over: the epoch is.

    Raises:
        EncodingError: it holds something that cannot be described.
    """
    encoder = BatchEncoder()
    described = encoder.encode(batch)
    counted = [[each.row, each.skips, each.drops] for each in mark.counted]
    description = {"batch": described, "progress": mark.progress, "counted": counted}
    header = encode_message(
        "PART",
        nonce=nonce,
        seq=seq,
        samples=mark.samples,
        beyond=mark.beyond,
        until=min(NEVER, start + mark.until),
        over=over,
    )
    return [header, encode_json(description, LARGEST_DESCRIPTION_BYTES), *encoder.finish()]


def decode_part(header: Header, described: Json, frames: Sequence[Frame], start: int) -> tuple[object, BatchMark]:
    """Return the batch of a message, and its mark.

    Args:
        header: of the message.
        described: its description.
        frames: all frames.
        start: index at which the trainer's epoch began.

    Raises:
        WireError: they do not keep to the protocol.
    """
    if not isinstance(described, dict) or described.keys() != {"batch", "progress", "counted"}:
        raise WireError("a part with a malformed description")
    batch = BatchDecoder(frames[2:]).decode(described["batch"])
    until = header["until"]
    mark = BatchMark(
        progress=_check_progress(described["progress"]),
        beyond=header["beyond"],
        samples=header["samples"],
        until=NEVER if until >= NEVER else until - start,
        counted=_check_counts(described["counted"]),
    )
    return batch, mark


def _check_progress(progress: Json) -> list[tuple[int, int, Json]]:
    found = []
    if not isinstance(progress, list):
        raise WireError("a part with malformed progress")
    for each in progress:
        if not isinstance(each, list) or len(each) != 3 or type(each[0]) is not int or type(each[1]) is not int:
            raise WireError("a part with malformed progress")
        worker, turns, states = each
        if states is not None and not (
            isinstance(states, dict) and all(name.isdecimal() and is_stream_state(one) for name, one in states.items())
        ):
            raise WireError("a part with malformed states of streams")
        found.append((worker, turns, states))
    return found


def _check_counts(counted: Json) -> list[RowCounts]:
    found = []
    if not isinstance(counted, list):
        raise WireError("a part with malformed counts")
    for each in counted:
        if not isinstance(each, list) or len(each) != 3 or type(each[0]) is not int:
            raise WireError("a part with malformed counts")
        for counts in each[1:]:
            if not isinstance(counts, dict) or not all(type(count) is int for count in counts.values()):
                raise WireError("a part with malformed counts")
        found.append(RowCounts(*each))
    return found


def make_error(header: Header) -> WebDatasetError:
    """Return what ended a lane at its server as an error of the same class, where this library has it."""
    kind = getattr(errors, header["type"], None) if header["type"].isidentifier() else None
    if not (isinstance(kind, type) and issubclass(kind, WebDatasetError)):
        kind = FlowError
    error: WebDatasetError = kind.__new__(kind)
    # the classes have arguments of their own
    WebDatasetError.__init__(error, f"at the data server: {header['words']}")
    return error.locate(**{name: header[name] or None for name in ("url", "key", "field")})
