"""Record shards: whole samples one behind the other, without tar.

Flows in: an opened shard that is a sequence of CBOR items. Flows out: the items. A shard that ends inside an item is an
error, never an end.
"""

import io
from collections.abc import Iterable, Iterator
from typing import Any

from webdataset.ground.errors import FormatError, Truncated, said
from webdataset.ground.extras import require
from webdataset.ground.policies import Handler, located, reraise_exception


class _Ahead(io.RawIOBase):
    """A stream that can tell whether it has ended before an item is read from it."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream
        self._rest = b""
        self.taken = 0

    def readable(self) -> bool:
        """Return True."""
        return True

    def read(self, size: int = -1) -> bytes:
        """Return exactly ``size`` bytes, fewer only at the end."""
        while len(self._rest) < size:
            piece = self._stream.read(max(size - len(self._rest), 1 << 16))
            if not piece:
                break
            self._rest += piece
        taken, self._rest = self._rest[:size], self._rest[size:]
        self.taken += len(taken)
        return taken

    def ended(self) -> bool:
        """Tell whether nothing is left."""
        if not self._rest:
            self._rest = self._stream.read(1 << 16)
        return not self._rest


def cbor_items(stream: Any) -> Iterator[Any]:
    """Yield the items of a CBOR sequence (RFC 8742).

    Args:
        stream: object with ``read(n)``.

    Raises:
        MissingExtra: cbor2 is not installed.
        Truncated: the stream ends inside an item.
        FormatError: bytes that are no CBOR.
    """
    cbor2 = require("cbor2", extra="records", purpose="reading CBOR records")
    ahead = _Ahead(stream)
    while not ahead.ended():
        start = ahead.taken
        try:
            yield cbor2.load(ahead)
        except cbor2.CBORDecodeEOF as error:
            raise Truncated(f"the shard ends inside the CBOR item at byte {start}", offset=start) from error
        except (cbor2.CBORDecodeError, ValueError) as error:
            raise FormatError(f"no CBOR item at byte {start}: {said(error)}", offset=start) from error


def read_cbors(shards: Iterable[dict[str, Any]], handler: Handler = reraise_exception) -> Iterator[Any]:
    """Read opened shards of CBOR items one after the other.

    Args:
        shards: dicts with ``url`` and ``stream``.
        handler: asked where a shard fails; true goes on with the next one.

    Yields:
        The items.

    Raises:
        FormatError: what the handler does not step over.
    """
    for shard in shards:
        try:
            yield from cbor_items(shard["stream"])
        except Exception as error:  # noqa: BLE001  the handler decides
            if not handler(located(error, url=str(shard["url"]), stage="cbors_to_samples")):
                return
        finally:
            shard["stream"].close()
