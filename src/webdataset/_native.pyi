from typing import Any

PROTOCOL: int
SOURCE: str

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
        most: int,
        /,
    ) -> tuple[bytes, int, int, dict[str, Any] | None, str | None, int, bool]: ...

def sum_streams(
    stream_states: dict[str, object], sums: dict[str, tuple[object, int, object, int, int]], /
) -> tuple[int, int] | None: ...
def write_steps(entered: list[object], written: int, stop: int, start: int, /) -> str | None: ...
