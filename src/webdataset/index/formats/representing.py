"""What every index of payload offsets asks of a shard, and names as archives spell them."""

from webdataset.ground.errors import NotRepresentable
from webdataset.index.entries import FieldEntry, SampleEntry, ShardIndex


def refuse_unaddressable(index: ShardIndex, kind: str) -> None:
    """Raise where payloads do not lie in the shard as they are.

    Args:
        index: of the shard.
        kind: the index format, for the message.

    Raises:
        NotRepresentable: the shard is compressed, or has sparse members.
    """
    if index.compression is not None:
        raise NotRepresentable(
            f"{kind} needs offsets into the file, and this shard is compressed ({index.compression}): decompress it",
            url=index.url,
        )
    if index.sparse:
        ordinal = min(index.sparse)
        raise NotRepresentable(
            f"{kind} cannot describe sparse members, whose bytes do not lie in the shard as they are (sample {ordinal} "
            "has one): rewrite the shard",
            url=index.url, key=index.entries[ordinal].key,
        )  # fmt: skip


def spelled(entry: SampleEntry, field: FieldEntry) -> str:
    """Return a field's extension with the capitals that it has in the archive.

    Args:
        entry: the sample.
        field: one of its fields.
    """
    start = len(entry.key) + 1
    return field.member[start:] if field.member[: start - 1] == entry.key else field.name
