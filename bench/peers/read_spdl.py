"""SPDL: its tar parser over each shard's file; it does not make samples of members, so that three lines here do."""

from reader import Again, Reader
from spdl.io import iter_tarfile


def members(shards):
    """Yield (name, bytes)."""
    for shard in shards:
        with open(shard, "rb") as source:
            yield from iter_tarfile(source)


def samples_of(shards):
    """Yield the samples of neighbouring members with the same key."""
    last: str | None = None
    fields: dict[str, bytes] = {}
    for name, content in members(shards):
        key, _, field = name.partition(".")
        if key != last:
            if last is not None:
                yield last, fields
            last, fields = key, {}
        fields[field] = content
    if last is not None:
        yield last, fields


def plain(shards, _folder):
    """Return the samples in order."""
    return Again(lambda: samples_of(shards))


def keyed(sample):
    """Yield the sample."""
    yield sample


READERS = {"plain": Reader(plain, None, keyed)}
