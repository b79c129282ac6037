"""Declared sizes against what there is: a header of 512 bytes may claim any number of bytes.

A member of up to 128 MiB is taken as it comes. Beyond that, before its bytes are taken: its size must not pass what the
process may take, nor, in a compressed shard, a hundred times the bytes of the shard. Where nobody knows the shard's
length, its bytes are weighed as they come. ``WDS_MAX_MEMBER_BYTES`` takes the place of both rules.

Flows in: a body that begins. Flows out: nothing, or LimitExceeded.
"""

from collections.abc import Callable

from webdataset.ground import errors, settings
from webdataset.ground.memory import room_bytes
from webdataset.tar.assembly import Body

FREE_BYTES = 128 << 20
MOST_GROWTH = 100  # times; gzip reaches 1032 on zeros, bz2 and zst far more, videos 1
_WAY_OUT = "leave it out with select_files, or set WDS_MAX_MEMBER_BYTES to what a member may take"


def weigh(body: Body, stored: Callable[[], int | None] = lambda: None) -> None:
    """Raise where a member's size is out of proportion.

    Args:
        body: the member, before its bytes are taken.
        stored: gives the bytes of the shard, where it is compressed, or None.

    Raises:
        LimitExceeded: its size passes ``WDS_MAX_MEMBER_BYTES``, or what there is.
    """
    size = body.size if body.layout is None else max(body.size, body.layout.size)
    if size <= FREE_BYTES:
        return
    most = settings.MAX_MEMBER_BYTES.get()
    if most is not None:
        if size > most:
            raise exceeded(body, size, f"more than the {most} of WDS_MAX_MEMBER_BYTES")
        return
    room = room_bytes()
    if room is not None and size > room:
        raise exceeded(body, size, f"and this process may take {room}: {_WAY_OUT}")
    length = stored()
    if length is not None and body.size > max(FREE_BYTES, MOST_GROWTH * length):
        raise exceeded(body, size, f"in a shard of {length} compressed bytes: {_WAY_OUT}")


def weigh_growth(body: Body | None, grown: int, taken: int) -> None:
    """Raise where a member grows out of proportion to the compressed bytes that were read so far.

    Args:
        body: the member in progress.
        grown: bytes of it that have come.
        taken: compressed bytes of the shard that were read.

    Raises:
        LimitExceeded: it has grown a hundredfold.
    """
    if body is None or body.name is None or grown <= max(FREE_BYTES, MOST_GROWTH * taken):
        return
    if settings.MAX_MEMBER_BYTES.get() is None:
        raise exceeded(body, body.size, f"and grows from {taken} compressed bytes to {grown} so far: {_WAY_OUT}")


def exceeded(body: Body, size: int, reason: str) -> Exception:
    """Return the error for a member that is too large.

    Args:
        body: the member.
        size: the bytes that it would take.
        reason: what the size is compared with.
    """
    return errors.LimitExceeded(
        f"member {body.name!r} declares {size} bytes, {reason}", field=body.name, offset=body.offset
    )
