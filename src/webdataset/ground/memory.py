"""How much memory this process may take: what the machine, its container and its limits leave.

Flows in: what the operating system says. Flows out: bytes. Never guesses where it says nothing.
"""

import os
from collections.abc import Iterator
from pathlib import Path

_GROUPS = Path("/sys/fs/cgroup")


def room_bytes() -> int | None:
    """Return how many more bytes one object of this process may take; None where nobody knows.

    Three quarters of the machine's memory, or of its container's, are the most; a limit on the address space
    (``ulimit -v``) leaves what is not taken yet.
    """
    shared = [*_machine(), *_containers()]
    most = [total * 3 // 4 for total in shared] + list(_limits())
    return min(most, default=None)


def _machine() -> Iterator[int]:
    try:
        yield os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, OSError, ValueError):  # another system
        return


def _containers() -> Iterator[int]:
    """Yield the limits of the control groups that this process is seen to be in."""
    for name in ("memory.max", "memory/memory.limit_in_bytes"):
        try:
            text = (_GROUPS / name).read_text().strip()
        except OSError:
            continue
        if text.isdigit():
            yield int(text)


def _limits() -> Iterator[int]:
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
