from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from typing_extensions import Buffer

_Item = TypeVar("_Item")

PROTOCOL: int
SOURCE: str

def is_unchanged(file: int, length: int, changed_ns: int, /) -> bool: ...
def read_local_sample(file: tuple[object, ...], ordinal: int, /) -> dict[str, object] | None: ...
def draw(
    samples: Iterator[tuple[Any, int]],
    place: list[int],
    stop: int,
    end: object,
    counts: tuple[dict[str, int], dict[str, int]],
    indices: list[int],
    beside: list[Any],
    count: Callable[[int], None],
    watch: Callable[[int, Any], None] | None,
    page: object,
    /,
) -> bool: ...
def find_address(buffer: Buffer, /) -> int: ...
def gather(
    samples: list[object], keys: tuple[object, ...] | None, /
) -> list[tuple[list[object], type | None, int]] | None: ...
def pack_values(values: list[Any], /) -> bytes | None: ...
def unpack_values(packed: bytes, count: int, text: bool, rows: list[Any], start: int, step: int, /) -> None: ...

class Gate(Iterator[_Item]):
    def __init__(
        self, items: Iterator[_Item], step: Callable[[Iterator[_Item]], _Item], timing: bytearray, /
    ) -> None: ...
    def __next__(self) -> _Item: ...

class Outlet(Iterator[_Item]):
    def __init__(self, items: Iterator[_Item], step: Callable[[Iterator[_Item]], tuple[_Item, int]], /) -> None: ...
    def __next__(self) -> _Item: ...

class Taker:
    def __init__(self, stamp: dict[str, Any], fields: dict[str, str], common: dict[str, str], /) -> None: ...
    def take(
        self,
        buf: bytes,
        pos: int,
        base: int,
        sample: dict[str, Any] | None,
        key: str | None,
        start: int,
        samples: list[dict[str, Any]],
        offsets: list[int],
        file: int,
        length: int,
        most: int,
        mapped: memoryview | None,
        /,
    ) -> tuple[bytes, int, int, dict[str, Any] | None, str | None, int, bool]: ...

def sum_streams(
    stream_states: dict[str, object], sums: dict[str, tuple[object, int, object, int, int]], /
) -> tuple[int, int] | None: ...
def write_steps(entered: list[object], written: int, stop: int, start: int, /) -> str | None: ...
