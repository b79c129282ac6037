"""The index formats by name, and what each of them needs.

``binary``, ``dali``, ``energon`` and ``files`` are one file a shard; ``wids`` is one file for a list of shards;
``energon`` has a folder for the dataset besides. Never lets an index replace a file that is none.
"""

from collections.abc import Callable, Iterable
from typing import Final, NamedTuple

from webdataset.core.errors import AlreadyExists, BadIndex, SourceError, UsageError
from webdataset.index.entries import ShardIndex
from webdataset.index.formats import binary, dali, energon, files_json
from webdataset.samples.grouping import base_plus_ext
from webdataset.samples.sample_reader import Reading
from webdataset.storage.local_listing import is_there


class ShardFormat(NamedTuple):
    """An index of one file a shard.

    Args:
        index_name: the index's name, for a shard's.
        dumps: a shard index to the file's bytes.
        loads: the file's bytes to what they say; raises BadIndex.
        hashes: digests of the shard that the file holds.
        check_member: raises where a member's name cannot stand in it; None: any name can.
        unique_names: whether a name may stand once only.
    """

    index_name: Callable[[str], str]
    dumps: Callable[[ShardIndex], bytes]
    loads: Callable[[bytes], object]
    hashes: tuple[str, ...] = ()
    check_member: Callable[[str], None] | None = None
    unique_names: bool = False


SHARD_FORMATS: Final[dict[str, ShardFormat]] = {
    "dali": ShardFormat(dali.index_name, dali.dumps, dali.loads, check_member=dali.check_member),
    "energon": ShardFormat(energon.index_name, energon.dumps, energon.loads),
    "files": ShardFormat(
        files_json.index_name,
        files_json.dumps,
        files_json.loads,
        ("sha1", "sha256"),
        files_json.check_member,
        unique_names=True,
    ),
    "binary": ShardFormat(binary.index_name, binary.dumps, binary.loads),
}
WIDS_HASHES: Final = ("md5",)
NAMES: Final = (*SHARD_FORMATS, "wids")


def parse_formats(spec: object) -> tuple[str, ...]:
    """Return the names of formats that a caller asks for, each once.

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


def check_rules(names: Iterable[str], reading: Reading) -> None:
    """Raise where index files would describe samples that others do not find in the shard.

    Raises:
        UsageError: renamed members; or an energon index, whose samples reach to the next one, of a part of the members.
    """
    ours = tuple(name for name in names if name in SHARD_FORMATS)
    if ours and reading.rename_files is not None:
        raise UsageError("index files have the names that stand in the shard: leave out rename_files")
    chosen = reading.select_files, reading.suffixes
    if "energon" in ours and (chosen != (None, None) or reading.keys is not base_plus_ext):
        raise UsageError("an energon index is about all members, by Energon's keys: leave out select_files, suffixes "
                         "and keys, or this format")  # fmt: skip
    if "binary" in ours and not is_usual(reading):
        raise UsageError("a binary index is about all samples as they are read by default: leave out select_files, "
                         "suffixes, keys, lcase, duplicates and split_samples, or this format")  # fmt: skip


def is_usual(reading: Reading) -> bool:
    """Tell whether rules of reading find the samples that the rules by default find."""
    chosen = reading.select_files, reading.rename_files, reading.suffixes, reading.duplicates, reading.split_samples
    return chosen == (None, None, None, "error", "error") and reading.keys is base_plus_ext and reading.lcase


def select_hashes(formats: Iterable[str]) -> tuple[str, ...]:
    """Return the digests of a shard that some formats hold."""
    wanted: dict[str, None] = {}
    for name in formats:
        wanted.update(dict.fromkeys(SHARD_FORMATS[name].hashes if name in SHARD_FORMATS else WIDS_HASHES))
    return tuple(wanted)


def is_index(known: ShardFormat, path: str) -> bool | None:
    """Tell whether a file is an index of some format; None where there is no file.

    Raises:
        SourceError: it cannot be read.
    """
    if not is_there(path):
        return None
    try:
        with open(path, "rb") as stream:  # noqa: PTH123  bytes of names stay
            known.loads(stream.read())
    except BadIndex:
        return False
    except OSError as error:
        raise SourceError(f"cannot read: {error.strerror}", url=path) from error
    return True


def refuse_to_replace(known: ShardFormat, path: str) -> None:
    """Raise where a file that is no index has the name that an index is to get.

    Raises:
        AlreadyExists: such a file is there.
        SourceError: it cannot be read.
    """
    if is_index(known, path) is False:
        raise AlreadyExists(
            "a file that is no index has the name that the index would get: rename it, leave out this format, or "
            "write the indexes of shards that are there to another folder",
            url=path,
        )
