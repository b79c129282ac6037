"""Detects the compression of a tar stream by its first bytes and decompresses its chunks, without reading anything.

Yields pieces of at most ``PIECE`` bytes, so that a bomb cannot fill the memory. Members of multi-member gz (and
concatenated bz2, xz, zst) follow each other; zero padding after the last and skippable zstd frames (RFC 8878)
anywhere are skipped. Other bytes after a gz or bz2 stream can be ignored, as gzip, GNU tar and bsdtar do; else they,
and a stream that stops early, are BadCompression. An engine is imported only when there is something for it to
decompress.
"""

from collections.abc import Callable, Iterator
from typing import Any, Protocol

from webdataset.core import errors
from webdataset.core.errors import describe_error
from webdataset.core.optional_imports import import_if_available, require

PIECE = 256 * 1024

_MAGIC = {b"\x1f\x8b\x08": "gz", b"BZh": "bz2", b"\xfd7zXZ\0": "xz", b"\x28\xb5\x2f\xfd": "zst"}
# after a byte from 0x50 to 0x5f: a zstd frame without content
_SKIPPABLE = b"\x2a\x4d\x18"
# bytes: the four above, and the frame's size
_SKIPPABLE_HEADER = 8
# whose own programs and libraries ignore what follows a whole stream
_IGNORES_TRAILING = ("gz", "bz2")


def _may_be_skippable(start: bytes) -> bool:
    """Tell whether the first bytes of a frame are, as far as they go, those of a skippable one."""
    return start[0] & 0xF0 == 0x50 and _SKIPPABLE.startswith(start[1:4])


def detect_compression(start: bytes) -> str | None:
    """Return the compression that a stream's first bytes show: ``gz``, ``bz2``, ``xz``, ``zst`` or None."""
    for magic, name in _MAGIC.items():
        if start.startswith(magic) and start[257:262] != b"ustar":
            return name
    if len(start) >= _SKIPPABLE_HEADER and _may_be_skippable(start) and start[257:262] != b"ustar":
        return "zst"
    return None


class _DecompressionEngine(Protocol):
    """What the standard library's and isal's decompressors have in common."""

    eof: bool
    unused_data: bytes

    def decompress(self, chunk: bytes, max_length: int) -> bytes:
        """Return at most ``max_length`` bytes; keep what is left of ``chunk``."""


class _ZlibEngine:
    """zlib's decompressor with the interface of the others."""

    def __init__(self) -> None:
        import zlib  # noqa: PLC0415  see above

        self._engine = zlib.decompressobj(31)

    @property
    def eof(self) -> bool:
        return self._engine.eof

    @property
    def unused_data(self) -> bytes:
        return self._engine.unused_data

    def decompress(self, chunk: bytes, max_length: int) -> bytes:
        tail = self._engine.unconsumed_tail
        return self._engine.decompress(tail + chunk if tail else chunk, max_length)


class _ZstandardEngine:
    """The zstandard package's decompressor with the interface of the others; fed small chunks, it bounds nothing."""

    def __init__(self, package: Any) -> None:
        self._engine = package.ZstdDecompressor().decompressobj()
        self._ready = b""

    @property
    def eof(self) -> bool:
        return bool(self._engine.eof) and not self._ready

    @property
    def unused_data(self) -> bytes:
        return bytes(self._engine.unused_data)

    def decompress(self, chunk: bytes, max_length: int) -> bytes:
        if chunk:
            self._ready += self._engine.decompress(chunk)
        piece, self._ready = self._ready[:max_length], self._ready[max_length:]
        return piece


def _gzip_engine() -> Callable[[], Any]:
    isal = import_if_available("isal.igzip_lib")
    return (lambda: isal.IgzipDecompressor(flag=isal.DECOMP_GZIP)) if isal is not None else _ZlibEngine


def _zstd_engine() -> Callable[[], Any]:
    standard = import_if_available("compression.zstd")
    if standard is not None:
        return standard.ZstdDecompressor  # type: ignore[no-any-return]
    package = require("zstandard", extra="fast", purpose="reading zst shards")
    return lambda: _ZstandardEngine(package)


def _bz2_engine() -> Callable[[], Any]:
    import bz2  # noqa: PLC0415  see above

    return bz2.BZ2Decompressor


def _xz_engine() -> Callable[[], Any]:
    import lzma  # noqa: PLC0415  see above

    return lzma.LZMADecompressor


_ENGINES: dict[str, Callable[[], Callable[[], Any]]] = {
    "gz": _gzip_engine,
    "bz2": _bz2_engine,
    "xz": _xz_engine,
    "zst": _zstd_engine,
}


def _engine_errors() -> tuple[type[Exception], ...]:
    """Return what the engines raise on bad bytes (isal and zstandard have classes of their own)."""
    import lzma  # noqa: PLC0415  see above
    import zlib  # noqa: PLC0415

    found: list[type[Exception]] = [zlib.error, lzma.LZMAError, OSError, EOFError, ValueError]
    for module, name in (
        ("isal.isal_zlib", "IsalError"),
        ("zstandard", "ZstdError"),
        ("compression.zstd", "ZstdError"),
    ):
        kind = getattr(import_if_available(module), name, None)
        if kind is not None:
            found.append(kind)
    return tuple(found)


class Decompressor:
    """One compressed stream.

    Args:
        kind: ``gz``, ``bz2``, ``xz`` or ``zst``.
        ignore_trailing: ignore bytes after a whole gz or bz2 stream that are no further member.

    Attributes:
        taken: compressed bytes fed so far.
        trailing: how many compressed bytes stand before those that are ignored, or None.

    Raises:
        MissingExtra: no package here reads this compression.
    """

    def __init__(self, kind: str, *, ignore_trailing: bool = False) -> None:
        self.kind = kind
        self.trailing: int | None = None
        self._ignores = ignore_trailing and kind in _IGNORES_TRAILING
        # bytes between members, too few to tell what follows
        self._undecided = b""
        # bytes of a skippable frame still to come
        self._skip = 0
        self._make = _ENGINES[kind]()
        self._failures = _engine_errors()
        self._engine: _DecompressionEngine | None = None
        self.taken = 0
        # a compressed member has ended
        self._whole = False
        self._magic = next(magic for magic, name in _MAGIC.items() if name == kind)
        # bytes of input that give about one piece of output
        self.appetite = 32 * 1024

    def feed(self, chunk: bytes) -> Iterator[bytes]:
        """Yield what a chunk decompresses to, in pieces.

        Raises:
            BadCompression: the bytes do not decompress.
        """
        self.taken += len(chunk)
        given = 0
        while chunk:
            if self._engine is None:
                chunk = self._start_member(chunk)
                if self._engine is None:
                    break
            piece = self._step(chunk)
            while piece:
                given += len(piece)
                yield piece
                piece = b"" if self._engine.eof else self._step(b"")
            if not self._engine.eof:
                break
            chunk = self._engine.unused_data
            self._engine = None
            self._whole = True
        if given > 2 * PIECE and self.appetite > 4096:
            self.appetite //= 2
        elif given < PIECE // 2 and self.appetite < PIECE:
            self.appetite *= 2

    def _start_member(self, chunk: bytes) -> bytes:
        """Start the engine where a member begins; return the chunk from there on. No engine: nothing follows yet."""
        if self.trailing is not None:
            return b""
        chunk, self._undecided = self._undecided + chunk, b""
        while True:
            step = min(self._skip, len(chunk))
            self._skip -= step
            chunk = chunk[step:].lstrip(b"\0") if not self._skip else b""
            if not chunk:
                return b""
            if self.kind == "zst" and _may_be_skippable(chunk):
                if len(chunk) < _SKIPPABLE_HEADER:
                    self._undecided = chunk
                    return b""
                self._skip = int.from_bytes(chunk[4:_SKIPPABLE_HEADER], "little")
                self._whole = True
                chunk = chunk[_SKIPPABLE_HEADER:]
                continue
            break
        if self._whole and len(chunk) < len(self._magic) and self._magic.startswith(chunk):
            self._undecided = chunk
            return b""
        if self._whole and not chunk.startswith(self._magic):
            self._judge_trailing(len(chunk))
            return b""
        self._engine = self._make()
        return chunk

    def _judge_trailing(self, size: int) -> None:
        """Ignore the last ``size`` bytes that were fed and all that come, or raise BadCompression."""
        if not self._ignores:
            raise errors.BadCompression(
                f"other bytes follow the {self.kind} stream, from compressed byte {self.taken - size} on"
            )
        self.trailing = self.taken - size

    def _step(self, chunk: bytes) -> bytes:
        engine = self._engine
        if engine is None:
            return b""
        try:
            return engine.decompress(chunk, PIECE)
        except self._failures as error:
            raise errors.BadCompression(
                f"the {self.kind} stream is damaged in the {self.taken} compressed bytes read so far: "
                f"{describe_error(error)}"
            ) from error

    def finish(self) -> None:
        """Note that the stream has ended.

        Raises:
            BadCompression: it ended inside a compressed member, or with other bytes.
        """
        if self.kind != "zst" and self._undecided:
            self._judge_trailing(len(self._undecided))
        elif self._engine is not None or self._undecided or self._skip:
            raise errors.BadCompression(f"the {self.kind} stream ends early, after {self.taken} compressed bytes")
