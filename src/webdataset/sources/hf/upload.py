"""Uploads to the hub: one commit a file, made when the stream is closed, by ``huggingface_hub``.

Flows in: bytes. Flows out: a commit that adds or replaces the file. How large files reach the hub (LFS, Xet) is that
package's affair, and it sends again what fails. Many files are better sent by its own ``upload_large_folder``.
"""

import shutil
import tempfile
from typing import Any

from webdataset.ground.errors import SourceError, UsageError
from webdataset.ground.extras import require
from webdataset.ground.redaction import redacted
from webdataset.sources.spooling import SpooledUpload

from .hub import Hub
from .places import place_of

_KINDS = {"datasets": "dataset", "spaces": "space", "models": "model"}
_PIECE = 1 << 20


class HfUpload(SpooledUpload):
    """A stream to a file of a repository that exists.

    Args:
        url: the file; its revision is a branch.
        storage_options: ``token``, ``endpoint_url``.
        message: of the commit.

    Raises:
        UsageError: the url names no file.
        MissingExtra: huggingface_hub is not installed.
    """

    def __init__(self, url: str, storage_options: Any = None, *, message: str | None = None) -> None:
        self._hub = Hub(storage_options, url)
        self._place = place_of(url)
        if not self._place.path or self._place.path.endswith("/"):
            raise UsageError("names no file that can be written: hf://datasets/user/repo/path", url=url)
        self._package = require("huggingface_hub", extra="hf", purpose="writing hf:// urls")
        self._message = message
        super().__init__(url, attempts=1)

    def _sent(self) -> None:
        """Make the commit; the package sends again what fails."""
        # without a token of ours the package must not look for one of its own: ours was looked for in the same places
        api = self._package.HfApi(endpoint=self._hub.endpoint, token=self._hub.token() or False)
        with tempfile.TemporaryFile() as whole:  # the package tells files by their class
            self._kept.seek(0)
            shutil.copyfileobj(self._kept, whole, _PIECE)
            whole.seek(0)
            try:
                api.upload_file(
                    path_or_fileobj=whole,
                    path_in_repo=self._place.path,
                    repo_id=self._place.repo,
                    repo_type=_KINDS[self._place.kind],
                    revision=self._place.revision,
                    commit_message=self._message,
                )
            except Exception as error:  # noqa: BLE001  the package has no base class for what its parts raise
                said = redacted(f"{type(error).__name__}: {error}")
            else:
                return
        raise SourceError(f"the hub did not take the file: {said}", url=self.name)
