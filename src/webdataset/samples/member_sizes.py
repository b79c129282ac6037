"""Bounds the size of one member by the shard's length and by the memory that machine, container and process leave.

A header of 512 bytes may declare any size. A member of up to 128 MiB is accepted. A larger one is checked before its
bytes are read: its size must not exceed what the process may take, nor, in a compressed shard, a hundred times the
bytes of the shard. Where the shard's length is unknown, the bytes are counted as they arrive.
``WDS_MAX_MEMBER_BYTES`` replaces both rules. A member that fails raises LimitExceeded.

Where the operating system states no memory limit, there is no bound: nothing is guessed.
"""

import os
from collections.abc import Callable, Iterator
from pathlib import Path

from webdataset.core import errors, settings
from webdataset.tar.member_assembly import MemberBody

_GROUPS = Path("/sys/fs/cgroup")


def available_memory_bytes() -> int | None:
    """Return how many more bytes one object of this process may take; None where it is unknown.

    At most three quarters of the machine's memory, or of its container's; a limit on the address space (``ulimit -v``)
    leaves what is not taken yet.
    """
    shared = [*_machine_memory(), *_container_limits()]
    most = [total * 3 // 4 for total in shared] + list(_process_limits())
    return min(most, default=None)


def _machine_memory() -> Iterator[int]:
    try:
        yield os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    # another system
    except (AttributeError, OSError, ValueError):
        return


def _container_limits() -> Iterator[int]:
    """Yield the limits of the control groups that this process is seen to be in."""
    for name in ("memory.max", "memory/memory.limit_in_bytes"):
        try:
            text = (_GROUPS / name).read_text().strip()
        except OSError:
            continue
        if text.isdigit():
            yield int(text)


def _process_limits() -> Iterator[int]:
    """Yield what the limits on address space and data leave."""
    try:
        import resource  # noqa: PLC0415  not on every system
    except ImportError:
        return
    try:
        pages = Path("/proc/self/statm").read_text().split()
        taken = [int(pages[place]) * resource.getpagesize() for place in (0, 5)]
    except (OSError, ValueError, IndexError):
        taken = [0, 0]
    for limit, held in zip((resource.RLIMIT_AS, resource.RLIMIT_DATA), taken, strict=True):
        soft, _ = resource.getrlimit(limit)
        if soft != resource.RLIM_INFINITY:
            yield max(0, soft - held)


FREE_BYTES = 128 << 20
# times; gzip reaches 1032 on zeros, bz2 and zst far more, videos 1
MOST_GROWTH = 100
_WAY_OUT = "leave it out with select_files, or set WDS_MAX_MEMBER_BYTES to what a member may take"


def check_member_size(body: MemberBody, stored: Callable[[], int | None] = lambda: None) -> None:
    """Raise where a member's size is out of proportion; ``stored`` gives the bytes of a compressed shard.

    Raises:
        LimitExceeded: its size passes ``WDS_MAX_MEMBER_BYTES``, or what there is.
    """
    size = body.size if body.layout is None else max(body.size, body.layout.size)
    if size <= FREE_BYTES:
        return
    most = settings.MAX_MEMBER_BYTES.get()
    if most is not None:
        if size > most:
            raise member_size_error(body, size, f"more than the {most} of WDS_MAX_MEMBER_BYTES")
        return
    available = available_memory_bytes()
    if available is not None and size > available:
        raise member_size_error(body, size, f"and this process may take {available}: {_WAY_OUT}")
    length = stored()
    if length is not None and body.size > max(FREE_BYTES, MOST_GROWTH * length):
        raise member_size_error(body, size, f"in a shard of {length} compressed bytes: {_WAY_OUT}")


def check_member_growth(body: MemberBody | None, grown: int, taken: int) -> None:
    """Raise where a member in progress has grown out of proportion to the compressed bytes that were read so far.

    Raises:
        LimitExceeded: it has grown a hundredfold.
    """
    if body is None or body.name is None or grown <= max(FREE_BYTES, MOST_GROWTH * taken):
        return
    if settings.MAX_MEMBER_BYTES.get() is None:
        raise member_size_error(
            body, body.size, f"and grows from {taken} compressed bytes to {grown} so far: {_WAY_OUT}"
        )


def member_size_error(body: MemberBody, size: int, reason: str) -> Exception:
    """Return the error for a member that would take ``size`` bytes, too many by what ``reason`` says."""
    return errors.LimitExceeded(
        f"member {body.name!r} declares {size} bytes, {reason}", field=body.name, offset=body.offset
    )
