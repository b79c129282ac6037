"""What each worker process read last, readable when the process is gone.

Flows in: samples. Flows out: a few words. A page of shared memory; written once a sample, without a system call.
"""

import struct
from typing import Any

_BYTES = 1024
_HEAD = struct.Struct("qHH")  # index, bytes of the key, bytes of the url


class Board:
    """One worker's lines.

    Args:
        memory: uint8 array over the page.
        number: the worker's.
    """

    def __init__(self, memory: Any, number: int) -> None:
        self._memory = memoryview(memory)[number * _BYTES : (number + 1) * _BYTES]

    @staticmethod
    def size_bytes(workers: int) -> int:
        """Return the size of a page for so many workers."""
        return workers * _BYTES

    def write(self, index: int, sample: Any, reading: bytes) -> None:
        """Note a sample.

        Args:
            index: its index.
            sample: any; key and url are known where it is a dictionary that has them.
            reading: url of the shard, for other samples.
        """
        key, url = b"", reading
        if type(sample) is dict:
            key = str(sample.get("__key__", "")).encode("utf-8", "replace")[:200]
            url = str(sample.get("__url__", "")).encode("utf-8", "replace") or reading
        url = url[:800]
        memory = self._memory
        end = _HEAD.size + len(key) + len(url)
        memory[_HEAD.size : end] = key + url
        _HEAD.pack_into(memory, 0, index + 1, len(key), len(url))

    def read(self) -> tuple[int | None, str, str]:
        """Return index, key and url of the sample noted last; None and nothing before the first."""
        index, key, url = _HEAD.unpack_from(self._memory, 0)
        middle = _HEAD.size + key
        shown = bytes(self._memory[_HEAD.size : middle]).decode("utf-8", "replace")
        where = bytes(self._memory[middle : middle + url]).decode("utf-8", "replace")
        return (index - 1 if index else None), shown, where
