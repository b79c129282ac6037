"""What a module of this folder says about a way of reading: how to open, what an item is, how many samples it holds."""

import tarfile
from collections import namedtuple
from typing import Any

# open(shards, folder) gives something that can be iterated again and again; count(item) is None where an item is one
# sample; samples(item) yields (key, {field: bytes})
Reader = namedtuple("Reader", "open count samples")  # noqa: PYI024  runs in other projects' environments


class Again:
    """Something that can be iterated again and again.

    Args:
        begin: gives an iterator, each time anew.
    """

    def __init__(self, begin):
        self.begin = begin

    def __iter__(self):
        """Begin anew."""
        return iter(self.begin())


def grouped(shards):
    """Yield {"key": ..., field: bytes} of the samples of tar shards, read with the standard library."""
    for shard in shards:
        with tarfile.open(shard) as archive:
            sample: dict[str, Any] = {}
            for member in archive:
                key, _, field = member.name.partition(".")
                if sample and sample["key"] != key:
                    yield sample
                    sample = {}
                sample["key"] = key
                content = archive.extractfile(member)
                sample[field] = content.read() if content else b""
            if sample:
                yield sample


def keyed(sample):
    """Yield a sample that is a dictionary with its key in it."""
    yield sample["key"], {name: value for name, value in sample.items() if name != "key"}
