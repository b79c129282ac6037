"""What all uploads have in common: nobody sees an object before it is complete.

Flows in: bytes. Flows out: calls of a store: ``_taken`` for each piece, ``close`` to publish, ``abort`` to forget. A
write that fails or is interrupted has lost a part: whoever closes after it gets an error, and publishes nothing. A copy
in a forked process can neither write nor publish, and leaves what is its parent's alone.
"""

import contextlib
import io
import os
import sys
import warnings
from typing import Any, Self

from webdataset.ground.errors import SourceError
from webdataset.ground.redaction import redacted


class Publication(io.RawIOBase):
    """A stream to a new object.

    Args:
        url: the object.
    """

    def __init__(self, url: str) -> None:
        super().__init__()
        self.name = url
        self._owner = os.getpid()
        self._size = 0
        self._broken: SourceError | None = None

    def _taken(self, view: memoryview) -> None:
        """Take bytes.

        Args:
            view: the bytes.
        """
        raise NotImplementedError

    def abort(self) -> None:
        """Publish nothing, and remove what was sent."""
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
            SourceError: this or an earlier write failed, or this is a copy in a forked process.
            UsageError: more than an object can hold.
        """
        if self.closed:
            raise ValueError("write to a closed stream")
        if self._broken is not None:
            raise self._broken
        if self._owner != os.getpid():
            raise SourceError("this upload belongs to the process that opened it: open it in this one", url=self.name)
        view = memoryview(content).cast("B")
        try:
            self._taken(view)
        except BaseException as error:  # an interrupt, too: some of it is lost
            if self._broken is None:
                said = f"a write was interrupted ({type(error).__name__}): nothing is published"
                self._broken = SourceError(said, url=self.name)
            raise
        self._size += len(view)
        return len(view)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *failure: object) -> None:
        if failure[0] is not None:
            self.abort()
        else:
            self.close()

    def __del__(self) -> None:
        """Abort a forgotten upload: it may be half of what was meant."""
        if "_broken" not in self.__dict__ or self.closed:
            return
        if self._owner == os.getpid() and self._broken is None and not sys.is_finalizing():
            warnings.warn(
                f"unclosed {self!r}: nothing was published; use 'with', or call close()",
                ResourceWarning,
                source=self,
                stacklevel=2,
            )
        with contextlib.suppress(Exception):  # a finaliser must not raise
            self.abort()
