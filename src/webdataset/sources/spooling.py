"""Uploads that are sent at the end: for services that take an object in one piece or not at all.

Flows in: bytes. Flows out: an object, sent when the stream is closed. What is written is kept in memory, from 16 MiB
on in a temporary file; so that its length is known, a busy service can be asked again, and an aborted upload sends
nothing.
"""

import contextlib
import io
import os
import tempfile
import warnings
from typing import Any, Self

from webdataset.ground.errors import SourceError
from webdataset.ground.redaction import redacted

from .rest import patiently
from .uploading import interrupted, refuse_copy

MEMORY_BYTES = 16 << 20


class SpooledUpload(io.RawIOBase):
    """A stream to a new object.

    Args:
        url: the object.
        attempts: failures after which the upload is given up.
    """

    def __init__(self, url: str, attempts: int) -> None:
        super().__init__()
        self.name = url
        self._attempts = attempts
        self._owner, self._size = os.getpid(), 0
        self._broken: SourceError | None = None
        # unbuffered: a forked copy would write its share of a buffer into the file of both when it lets go of it
        self._kept = tempfile.SpooledTemporaryFile(MEMORY_BYTES, buffering=0, prefix="webdataset-")  # noqa: SIM115  until close

    def _sent(self) -> None:
        """Send what is kept, from its start.

        Raises:
            Again: sending again may help.
            SourceError: the service refuses.
        """
        raise NotImplementedError

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {redacted(self.name)} at {self._size}>"

    def writable(self) -> bool:
        """Tell that this can be written to."""
        return True

    def tell(self) -> int:
        """Return the number of bytes written so far."""
        return self._size

    def write(self, content: Any, /) -> int:
        """Take bytes.

        Raises:
            SourceError: no space is left for the temporary file, or this is a copy in a forked process.
        """
        if self.closed:
            raise ValueError("write to a closed stream")
        if self._broken is not None:
            raise self._broken
        view = memoryview(content).cast("B")
        refuse_copy(self._owner, self.name)
        left = view
        try:
            while left:  # the system may take a part of it
                left = left[self._kept.write(left) :]
        except OSError as error:
            self._broken = SourceError(
                f"an upload of this size is kept in a temporary file ({error.strerror}): point TMPDIR to a folder "
                "with more space",
                url=self.name,
            )
            raise self._broken from error
        except BaseException as error:  # an interrupt: some of it is lost, and whoever closes must not send
            self._broken = interrupted(error, self.name)
            raise
        self._size += len(view)
        return len(view)

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

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *failure: object) -> None:
        if failure[0] is not None:
            self.abort()
        else:
            self.close()

    def __del__(self) -> None:
        """Send nothing of a forgotten upload: it may be half of what was meant."""
        if "_kept" not in self.__dict__ or self.closed:
            return
        if self._owner == os.getpid():
            warnings.warn(
                f"unclosed {self!r}: nothing was sent; use 'with', or call close()",
                ResourceWarning,
                source=self,
                stacklevel=2,
            )
        with contextlib.suppress(Exception):  # a finaliser must not raise
            self.abort()
