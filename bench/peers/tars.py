"""The records of tar shards, read with the standard library, for the libraries that convert them first."""

import tarfile


def records(shards):
    """Yield (key, payload)."""
    for shard in shards:
        with tarfile.open(shard) as archive:
            for member in archive:
                if content := archive.extractfile(member):
                    yield member.name.partition(".")[0], content.read()
