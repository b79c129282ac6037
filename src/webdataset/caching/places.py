"""Where the files of one cached shard are.

Flows in: the cache directory and a name in it. Flows out: paths. Shards have plain names; everything that only this
library reads is in one hidden folder beside them.
"""

import functools
import hashlib
import os
from dataclasses import dataclass

CONTROL = ".wds"
_LONGEST = 200  # bytes; a name in a folder has room for 255, and ends are added


@dataclass(frozen=True)
class Place:
    """The paths of one shard in a cache directory.

    Args:
        folder: absolute path of the directory.
        name: relative path of the shard in it.
    """

    folder: str
    name: str

    @functools.cached_property
    def final(self) -> str:
        """The whole shard: it is there completely, or not at all."""
        return os.path.join(self.folder, self.name)  # noqa: PTH118  texts: this is asked for each shard opened

    @functools.cached_property
    def _control(self) -> str:
        return os.path.join(self.folder, CONTROL, control_name(self.name))  # noqa: PTH118

    @property
    def part(self) -> str:
        """The shard while it grows."""
        return self._control + ".part"

    @property
    def record(self) -> str:
        """What is known of the shard, whole or growing; see :class:`~webdataset.caching.sidecar.Record`."""
        return self._control + ".json"

    @property
    def lock(self) -> str:
        """Held by whoever writes any of the other three."""
        return self._control + ".lock"


def control_name(name: str) -> str:
    """Return what a shard is called in the hidden folder; no two shards share it.

    Args:
        name: the shard's relative path.
    """
    encoded = os.fsencode(name)
    if "/" not in name and len(encoded) <= _LONGEST:
        return name
    return f"{hashlib.sha256(encoded).hexdigest()[:32]}-{os.fsdecode(encoded.rpartition(b'/')[2][-100:])}"


def space_lock(folder: str) -> str:
    """Return the path of the lock under which space is given out.

    Args:
        folder: the cache directory.
    """
    return os.path.join(folder, CONTROL, "space.lock")  # noqa: PTH118
