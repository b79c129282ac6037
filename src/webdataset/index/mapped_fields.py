"""Gives fields of samples by number as memoryviews of a map of the shard.

Headers are read and compared as for bytes, so that a view comes with the name and the size that stand in the shard, or
not at all; payloads are not read. What headers alone cannot prove (sparse members, links, extended headers) is read as
usual, as memoryviews of copied bytes.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from webdataset.samples.mapped_shard import map_file
from webdataset.storage.random_access import LocalRanges
from webdataset.tar.header import BLOCK

if TYPE_CHECKING:
    from webdataset.index.entries import FieldEntry


class MappedFields:
    """The payloads of one open local shard.

    Args:
        ranges: the shard.
    """

    def __init__(self, ranges: LocalRanges) -> None:
        self._ranges = ranges
        self._view = map_file(ranges.descriptor, ranges.url)

    def read_header(self, field: "FieldEntry") -> bytes:
        """Return the block before a payload; fewer bytes where there is none.

        Args:
            field: where the payload lies.

        Raises:
            ShardChanged: the file has been written to since it was opened.
            SourceError: the system refuses.
        """
        return self._ranges.read_at(field.offset - BLOCK, BLOCK) if field.offset >= BLOCK else b""

    def view_fields(self, fields: "Sequence[FieldEntry]") -> dict[int, memoryview] | None:
        """Return payloads by offset, shorter ones where the shard ends; None where the shard is not mapped."""
        view = self._view
        if view is None or len(view) != self._ranges.length:
            return None
        return {field.offset: view[field.offset : field.offset + field.size] for field in fields}
