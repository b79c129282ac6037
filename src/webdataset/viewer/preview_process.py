"""The process that decodes what shards hold for the page, and dies in place of the server.

It is started by ``previews`` with an environment that holds no credentials, answers one request after the other over
its pipes, and takes its limits before it imports a decoder: address space, CPU time for each request, open files, no
files written. An audit hook refuses sockets, other processes and pickles. Whatever a decoder raises becomes an answer;
what it cannot survive ends this process alone.

A message is 4 bytes with the length of a JSON header, 8 bytes with the length of the body (both big endian), the
header, the body.
"""

import contextlib
import itertools
import json
import os
import struct
import sys
from collections.abc import Callable
from typing import Any, BinaryIO, Final

from webdataset.viewer.plain_values import JsonObject, explain_failure

LENGTHS: Final = struct.Struct(">IQ")
MOST_HEADER_BYTES: Final = 4 << 20
MEMORY_BYTES: Final = 2 << 30
CPU_SECONDS: Final = 20
_OPEN_FILES: Final = 64
_NICENESS: Final = 10
_REFUSED_EVENTS: Final = (
    "socket.", "subprocess.", "os.system", "os.exec", "os.posix_spawn", "os.spawn", "os.fork", "pickle.find_class",
    "os.remove", "os.rename", "os.mkdir", "os.rmdir", "os.chmod", "os.truncate", "shutil.",
    "urllib.", "http.", "ftplib.",
)  # fmt: skip
_WRITING: Final = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND


def write_message(stream: BinaryIO, header: JsonObject, body: bytes = b"") -> None:
    """Write one message.

    Args:
        stream: a pipe.
        header: anything that JSON holds.
        body: any bytes.
    """
    text = json.dumps(header).encode("utf-8")
    stream.write(LENGTHS.pack(len(text), len(body)) + text)
    stream.write(body)
    stream.flush()


def read_message(stream: BinaryIO, most_body_bytes: int) -> tuple[JsonObject, bytes] | None:
    """Read one message; None where the other side has ended.

    Args:
        stream: a pipe.
        most_body_bytes: what a body may have.

    Raises:
        ValueError: this is no message, or one that is too long.
    """
    lengths = stream.read(LENGTHS.size)
    if len(lengths) < LENGTHS.size:
        return None
    header_bytes, body_bytes = LENGTHS.unpack(lengths)
    if header_bytes > MOST_HEADER_BYTES or body_bytes > most_body_bytes:
        raise ValueError(f"a message of {header_bytes} and {body_bytes} bytes")
    text, body = stream.read(header_bytes), stream.read(body_bytes)
    if len(text) < header_bytes or len(body) < body_bytes:
        return None
    header = json.loads(text)
    if not isinstance(header, dict):
        raise ValueError("a message without a header")  # noqa: TRY004  as any other message that is none
    return header, body


def take_limits() -> None:
    """Bound what this process may use; limits that the system does not know are left out."""
    with contextlib.suppress(OSError, AttributeError):
        os.nice(_NICENESS)
    try:
        import resource  # noqa: PLC0415  not on every system
    except ImportError:
        return
    for name, most in (
        ("RLIMIT_AS", MEMORY_BYTES),
        ("RLIMIT_NOFILE", _OPEN_FILES),
        ("RLIMIT_FSIZE", 0),
        ("RLIMIT_CORE", 0),
    ):
        with contextlib.suppress(OSError, ValueError, AttributeError):
            resource.setrlimit(getattr(resource, name), (most, most))


def _extend_cpu_time() -> None:
    """Let the next request have its CPU time: the limit counts from the start of the process."""
    try:
        import resource  # noqa: PLC0415  not on every system
    except ImportError:
        return
    spent = resource.getrusage(resource.RUSAGE_SELF)
    with contextlib.suppress(OSError, ValueError):
        _, hard = resource.getrlimit(resource.RLIMIT_CPU)
        resource.setrlimit(resource.RLIMIT_CPU, (int(spent.ru_utime + spent.ru_stime) + CPU_SECONDS + 1, hard))


def refuse_effects() -> None:
    """Refuse sockets, other processes, pickles and written files from now on."""
    sys.dont_write_bytecode = True
    sys.addaudithook(_refuse_effect)


def _refuse_effect(event: str, arguments: tuple[Any, ...]) -> None:
    if event == "open":
        flags = arguments[2]
        if isinstance(flags, int) and flags & _WRITING and arguments[0] != os.devnull:
            raise PermissionError("previews write no files")
    elif event.startswith(_REFUSED_EVENTS):
        raise PermissionError(f"previews do not use {event}")


def answer(header: JsonObject, body: bytes) -> tuple[JsonObject, bytes]:
    """Answer one request; never raises.

    Args:
        header: ``do`` (thumbnail, waveform, pieces, array, media), ``name`` of the field, and arguments.
        body: the payload.

    Returns:
        Header and body of the answer: ``refused`` says why there is none.
    """
    try:
        return _JOBS[str(header.pop("do"))](body, **header)
    except MemoryError:
        return {"refused": "it needs more memory than previews may use"}, b""
    except RecursionError:
        return {"refused": "it is nested too deep"}, b""
    except Exception as error:  # noqa: BLE001  whatever decoders raise on hostile bytes is the answer
        return {"refused": explain_failure(error)}, b""


def _thumbnail(payload: bytes, *, name: str, **options: Any) -> tuple[JsonObject, bytes]:
    from webdataset.viewer.thumbnails import make_thumbnail  # noqa: PLC0415  decoders after the limits

    content, note, media_type = make_thumbnail(name, payload, **options)
    return {"media_type": media_type, "note": note}, content


def _waveform(payload: bytes, *, name: str, columns: int) -> tuple[JsonObject, bytes]:
    from webdataset.viewer.waveforms import make_waveform  # noqa: PLC0415  decoders after the limits

    return {"result": make_waveform(name, payload, columns)}, b""


def _pieces(
    payload: bytes,
    *,
    name: str,  # noqa: ARG001  every job is given one
    format: str,  # noqa: A002  as of the pieces
    head: int,
    sizes: list[int],
    header: dict[str, float],
) -> tuple[JsonObject, bytes]:
    from webdataset.viewer.sound_pieces import SoundPieces  # noqa: PLC0415  decoders after the limits
    from webdataset.viewer.waveforms import outline_pieces  # noqa: PLC0415

    edges = list(itertools.accumulate(sizes, initial=head))
    pieces = [payload[start:stop] for start, stop in itertools.pairwise(edges)]
    return {"result": outline_pieces(SoundPieces(format, payload[:head], pieces), header)}, b""


def _array(payload: bytes, *, name: str) -> tuple[JsonObject, bytes]:
    from webdataset.viewer.array_views import describe_arrays  # noqa: PLC0415  decoders after the limits

    return {"result": describe_arrays(name, payload)}, b""


def _media(payload: bytes, *, name: str) -> tuple[JsonObject, bytes]:
    from webdataset.viewer.waveforms import describe_media  # noqa: PLC0415  decoders after the limits

    return {"result": describe_media(name, payload)}, b""


_JOBS: Final[dict[str, Callable[..., tuple[JsonObject, bytes]]]] = {
    "thumbnail": _thumbnail,
    "waveform": _waveform,
    "pieces": _pieces,
    "array": _array,
    "media": _media,
}


def run(most_body_bytes: int) -> None:
    """Answer requests from standard input on standard output until that ends.

    Args:
        most_body_bytes: what a payload may have.
    """
    incoming, outgoing = os.dup(0), os.dup(1)
    # what a library prints must not reach the pipe
    nothing = os.open(os.devnull, os.O_RDWR)
    for standard in (0, 1, 2):
        os.dup2(nothing, standard)
    os.close(nothing)
    import signal  # noqa: PLC0415  Ctrl-C is the server's business

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    take_limits()
    with os.fdopen(incoming, "rb") as requests, os.fdopen(outgoing, "wb") as answers:
        refuse_effects()
        while (message := read_message(requests, most_body_bytes)) is not None:
            _extend_cpu_time()
            header, body = answer(*message)
            del message
            try:
                write_message(answers, header, body)
            except BrokenPipeError:
                return
