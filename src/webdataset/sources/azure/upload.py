"""Uploads to Azure Storage: one request, or blocks, a few at a time.

Flows in: bytes. Flows out: a blob; see :mod:`webdataset.sources.uploading`. Each block is sent again until the service
has it; the list of blocks makes the blob. Blocks that no list names are seen by nobody, and Azure removes them
after a week.
"""

import base64
import uuid
from typing import Any

from webdataset.ground.errors import UsageError
from webdataset.sources.uploading import Upload

from .calls import AzureCalls
from .places import place_of

PART_BYTES = 16 << 20
_XML = {"Content-Type": "application/xml"}
_KIND = {"Content-Type": "application/octet-stream"}


class AzureUpload(Upload):
    """A stream to a new blob.

    Args:
        url: the blob.
        storage_options: what a dataset says about its storage.
        part_bytes: size of a block; a blob has at most 50,000 of them, and up to five are in memory.
        attempts: failures in a row after which a request is given up.

    Raises:
        UsageError: the url names no blob.
        ConfigError: no account, or options that make no sense.
    """

    most_parts = 50_000

    def __init__(
        self, url: str, storage_options: Any = None, *, part_bytes: int = PART_BYTES, attempts: int | None = None
    ) -> None:
        self._place = place_of(url, storage_options)
        if not self._place.key or self._place.key.endswith("/"):
            raise UsageError("names no blob that can be written: az://container/blob", url=url)
        self._calls = AzureCalls(self._place, url, attempts)
        self._name = uuid.uuid4().hex  # blocks of two writers of one blob must not mix
        super().__init__(url, part_bytes)

    def _begin(self) -> None:
        """Nothing comes before the first block."""

    def _put(self, number: int, body: bytes) -> str:
        name = base64.b64encode(f"{self._name}-{number:06}".encode()).decode()
        self._calls.call("PUT", self._place.address(comp="block", blockid=name), _KIND, body=body)
        return name

    def _whole(self, body: bytes) -> None:
        self._calls.call("PUT", self._place.address(), {**_KIND, "x-ms-blob-type": "BlockBlob"}, body=body)

    def _join(self, tags: list[str]) -> None:
        names = "".join(f"<Latest>{name}</Latest>" for name in tags)
        content = f'<?xml version="1.0" encoding="utf-8"?><BlockList>{names}</BlockList>'.encode()
        headers = {**_XML, "x-ms-blob-content-type": _KIND["Content-Type"]}
        self._calls.call("PUT", self._place.address(comp="blocklist"), headers, body=content)

    def _remove(self) -> None:
        """Nothing can be removed, and nothing is to be: Azure forgets blocks that are in no list."""
