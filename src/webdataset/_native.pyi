from typing import Any

PROTOCOL: int
SOURCE: str

def is_unchanged(file: int, length: int, changed_ns: int, /) -> bool: ...

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
        /,
    ) -> tuple[bytes, int, int, dict[str, Any] | None, str | None, int, bool]: ...
