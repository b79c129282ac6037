"""Decides whether a shard is still the one that a state was saved of.

Theory. A state says where samples stand: in which shard, at which byte. If the shard has been replaced since, other
samples stand there. So for the shard that is being read a state also holds its size, its validator (ETag, generation
or time of the last change) and the sum of the key of the sample given last; for each sample in a buffer it holds six
bits from the sum of its key and the shard's size: one other sample in 64 would pass, but hardly all of a shard's. A
shard of another size, or another key at a saved address, is another shard: an error. Another validator alone is a
copy, or a file that was touched: the keys are compared, and one warning is given. The inode never counts. What is
replayed from the start of an epoch is compared by the sum of all keys.

A mismatch is a warning or StateMismatch; a replaced shard is never read on silently.
"""

import zlib
from typing import NamedTuple

from webdataset.core import settings
from webdataset.core.errors import StateMismatch
from webdataset.core.json_types import is_count
from webdataset.core.redaction import redact
from webdataset.core.seeds import hash_seed
from webdataset.core.tracebacks import warn_user

# the bits of a check
CHECK = 63
_WAYS_OUT = (
    "put the shard back, or begin the epoch again; WDS_CHANGED_SHARDS=warn continues after as many samples of it as "
    "were given"
)


class ShardIdentity(NamedTuple):
    """Which object a shard was read from.

    Args:
        size: bytes of the stored object, or None where it is unknown.
        validator: a number drawn from its ETag, generation or time of the last change; None where there is none.
    """

    size: int | None = None
    validator: int | None = None

    @classmethod
    def of(cls, size: int | None, validator: str | None) -> "ShardIdentity":
        """Return the identity of a stored object, from its size in bytes and its validator as the store writes it."""
        return cls(size, None if validator is None else hash_seed("validator", validator) >> 11)


def sum_key(sample: object) -> int:
    """Return the CRC-32 of a sample's key; 0 where it has none."""
    key = sample.get("__key__") if isinstance(sample, dict) else None
    return 0 if key is None else sum_text(str(key))


def sum_text(text: str) -> int:
    """Return the CRC-32 of a key."""
    return zlib.crc32(text.encode("utf-8", "surrogatepass"))


def sum_size(size: int | None) -> int:
    """Return the CRC-32 of a shard's size; 0 where it is not known."""
    return 0 if size is None else zlib.crc32(b"%d" % size)


def matches_sample(check: int, key_sum: int, size: int | None) -> bool:
    """Tell whether a saved check is that of a key sum in a shard of some size; an unknown size contradicts none."""
    return size is None or check in {(key_sum ^ sum_size(size)) & CHECK, key_sum & CHECK}


def is_lenient() -> bool:
    """Tell whether a run may continue in shards that were replaced."""
    return settings.CHANGED_SHARDS.get() == "warn"


def changed_shard_error(url: str, what: str, cause: BaseException | None = None) -> StateMismatch:
    """Return the error about a shard that is not the one that the state was saved of; ``what`` says how that shows."""
    error = StateMismatch(f"the shard was replaced since the state was saved: {what}; {_WAYS_OUT}", url=url)
    error.__cause__ = cause
    return error


def warn_changed_shard(url: str, error: Exception) -> None:
    """Warn that a run continues in a shard that was replaced."""
    warn_user(f"{redact(url)}: continuing by the number of samples, since WDS_CHANGED_SHARDS=warn: {error}")


def compare_identities(url: str, saved: ShardIdentity, now: ShardIdentity, warned: set[str]) -> None:
    """Compare which object a shard was read from with the one that is read now; a warning is given once.

    Raises:
        StateMismatch: the sizes differ.
    """
    if saved.size is not None and now.size is not None and saved.size != now.size:
        raise changed_shard_error(url, f"it had {saved.size} bytes, and has {now.size}")
    if saved.validator is None or now.validator is None or saved.validator == now.validator or "copy" in warned:
        return
    warned.add("copy")
    warn_user(
        f"{redact(url)}: the shard has another ETag, generation or time of change than when the state was saved, and "
        "the same size: a copy, or touched since. The keys at the saved places are compared (told once for all shards)",
    )


def _parse_identity(parts: object) -> ShardIdentity:
    """Return the identity that a trace holds.

    Raises:
        StateMismatch: it holds none.
    """
    known = list(parts) if isinstance(parts, list | tuple) and len(parts) == 2 else [-1]
    if not all(part is None or is_count(part) for part in known):
        raise StateMismatch(f"the snapshot does not tell what was read again: {str(parts)[:80]}")
    return ShardIdentity(*known)


def compare_traces(saved: object, now: object, url: str, warned: set[str]) -> None:
    """Compare what ``trace`` methods return for a replay with what they returned when the state was saved.

    Raises:
        StateMismatch: the replay has read other samples.
    """
    if saved == now:
        return
    pairs: list[tuple[object, object]] = []
    if isinstance(saved, dict) and isinstance(now, dict) and saved.keys() == now.keys():
        if "keys" in saved and all(saved[name] == now[name] for name in ("at", "keys", "shard")):
            compare_identities(url, _parse_identity(saved["object"]), _parse_identity(now["object"]), warned)
            return
        pairs = [(saved[name], now[name]) for name in saved]
    elif isinstance(saved, list) and isinstance(now, list) and len(saved) == len(now):
        pairs = list(zip(saved, now, strict=True))
    if not pairs:
        raise changed_shard_error(
            url, "what was read again from the start of the epoch, up to here, holds other samples"
        )
    for one, other in pairs:
        compare_traces(one, other, url, warned)
