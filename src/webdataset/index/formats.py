"""The index formats by name, and what each of them needs.

Flows in: names. Flows out: formats. ``dali``, ``energon`` and ``files`` are one file a shard; ``wids`` is one file for
a list of shards; ``energon`` has a folder for the dataset besides.
"""

from collections.abc import Callable, Iterable
from typing import Any, Final, NamedTuple

from webdataset.ground.errors import UsageError

from . import dali, energon, files_json
from .entries import ShardIndex


class ShardFormat(NamedTuple):
    """An index of one file a shard.

    Args:
        index_name: the index's name, for a shard's.
        dumps: a shard index to the file's bytes.
        hashes: digests of the shard that the file holds.
        check_member: raises where a member's name cannot stand in it; None: any name can.
        unique_names: whether a name may stand once only.
    """

    index_name: Callable[[str], str]
    dumps: Callable[[ShardIndex], bytes]
    hashes: tuple[str, ...] = ()
    check_member: Callable[[str], None] | None = None
    unique_names: bool = False


SHARD_FORMATS: Final[dict[str, ShardFormat]] = {
    "dali": ShardFormat(dali.index_name, dali.dumps, check_member=dali.check_member),
    "energon": ShardFormat(energon.index_name, energon.dumps),
    "files": ShardFormat(
        files_json.index_name, files_json.dumps, ("sha1", "sha256"), files_json.check_member, unique_names=True
    ),
}
WIDS_HASHES: Final = ("md5",)
NAMES: Final = (*SHARD_FORMATS, "wids")


def formats_of(spec: Any) -> tuple[str, ...]:
    """Return the names of formats that a caller asks for, each once.

    Args:
        spec: a name, or several.

    Raises:
        UsageError: there is no such format.
    """
    asked = [spec] if isinstance(spec, str) else spec
    if not isinstance(asked, Iterable):
        raise UsageError(f"index={spec!r}: pass one or several of {', '.join(map(repr, NAMES))}")
    names = tuple(dict.fromkeys(asked))
    for name in names:
        if name not in NAMES:
            raise UsageError(f"there is no index format {name!r}: there are {', '.join(map(repr, NAMES))}")
    return names


def hashes_of(formats: Iterable[str]) -> tuple[str, ...]:
    """Return the digests of a shard that some formats hold.

    Args:
        formats: names.
    """
    wanted: dict[str, None] = {}
    for name in formats:
        wanted.update(dict.fromkeys(SHARD_FORMATS[name].hashes if name in SHARD_FORMATS else WIDS_HASHES))
    return tuple(wanted)
