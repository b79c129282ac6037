"""Uploads that are sent at the end: for services that take an object in one piece or not at all.

Flows in: bytes. Flows out: an object, sent when the stream is closed. What is written is kept in memory, from 16 MiB
on in a temporary file; so that its length is known, a busy service can be asked again, and an aborted upload sends
nothing.
"""

import os
import tempfile

from webdataset.ground.errors import SourceError

from .publishing import Publication
from .rest import patiently

MEMORY_BYTES = 16 << 20


class SpooledUpload(Publication):
    """A stream to a new object.

    Args:
        url: the object.
        attempts: failures after which the upload is given up.
    """

    def __init__(self, url: str, attempts: int) -> None:
        super().__init__(url)
        self._attempts = attempts
        # unbuffered: a forked copy would write its share of a buffer into the file of both when it lets go of it
        self._kept = tempfile.SpooledTemporaryFile(MEMORY_BYTES, buffering=0, prefix="webdataset-")  # noqa: SIM115  until close

    def _sent(self) -> None:
        """Send what is kept, from its start.

        Raises:
            Again: sending again may help.
            SourceError: the service refuses.
        """
        raise NotImplementedError

    def _taken(self, view: memoryview) -> None:
        """Keep bytes.

        Raises:
            SourceError: no space is left for the temporary file.
        """
        try:
            while view:  # the system may take a part of it
                view = view[self._kept.write(view) :]
        except OSError as error:
            self._broken = SourceError(
                f"an upload of this size is kept in a temporary file ({error.strerror}): point TMPDIR to a folder "
                "with more space",
                url=self.name,
            )
            raise self._broken from error

    def close(self) -> None:
        """Send it.

        Raises:
            SourceError: the service refuses, or does not answer.
        """
        if self.closed:
            return
        if self._owner != os.getpid():  # a copy in a forked process: the upload belongs to its parent
            self.abort()
            return
        try:
            if self._broken is not None:
                raise self._broken
            patiently(self._sent, self.name, lambda: None, self._attempts)
        finally:
            self.abort()

    def abort(self) -> None:
        """Send nothing, and forget what was written."""
        if not self.closed:
            self._kept.close()
            super().close()
