"""Positioned reads of objects: some bytes, from anywhere in one object, over any store.

Flows in: an :class:`~webdataset.sources.objects.ObjectSource`, offsets and sizes. Flows out: those bytes. Each answer
must begin where it was asked to and be about the same object; what breaks off is asked for again from there. Safe
after a fork and from several threads: no position and no connection is kept between two reads.
"""

from typing import Any, Self

from webdataset.ground.errors import NoRandomAccess, ShardChanged, ShortRead, SourceError
from webdataset.ground.redaction import redacted

from .objects import Again, Answer, Identity, LosslessBody, ObjectSource, changed
from .patience import ATTEMPTS, Patience

LATENCY_BYTES = 256 * 1024


class ObjectRanges:
    """An object that is read anywhere.

    Args:
        source: the object.
        head: bytes to ask for at once, from the start; they are kept for the first reads.
        attempts: failures in a row after which a read is given up.

    Attributes:
        requests: requests sent so far.
        received: bytes of body received so far.
        latency_bytes: how many bytes could be read in the time that one more request takes, as the source says.

    Raises:
        NotFound: nothing is there.
        NoRandomAccess: the service ignores ranges.
        SourceError: it refuses, or does not answer.
    """

    def __init__(self, source: ObjectSource, *, head: int = 64 * 1024, attempts: int = ATTEMPTS) -> None:
        self.url = source.url
        self.latency_bytes: int = getattr(source, "latency_bytes", LATENCY_BYTES)
        self.requests = self.received = 0
        self._source = source
        self._attempts = attempts
        self._failures = source.failures()
        self._known: Identity | None = None
        self.length = -1
        self._head = b""
        self._head = self.read_at(0, head)

    @property
    def identity(self) -> Identity | None:
        """Who the object is."""
        return self._known

    def read_at(self, offset: int, size: int) -> bytes:
        """Return bytes from a place; fewer only at the end of the object.

        Args:
            offset: where, in bytes.
            size: how many.

        Raises:
            ShardChanged: the object is another one by now.
            ShortRead: the service gave less than it said, several times.
            SourceError: it refuses, or does not answer.
        """
        size = min(size, self.length - offset) if self.length >= 0 else size
        if size <= 0:
            return b""
        if offset + size <= len(self._head):
            return self._head[offset : offset + size]
        pieces: list[bytes] = []
        patience, got = Patience(self._attempts), 0
        while got < size:
            try:
                answer = self._asked(offset + got, size - got)
                if answer is None:
                    return b""
                size = min(size, self.length - offset)
                before, got = got, got + self._drained(answer, size - got, pieces)
                patience.progress(got)
                wish, said = None, f"{got - before} bytes came"
            except Again as error:
                wish, said = error, str(error)
            if got < size:
                self._wait(patience, wish, said, offset + got)
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def _wait(self, patience: Patience, wish: Again | None, said: str, offset: int) -> None:
        if patience.spent():
            kind = SourceError if self._known is None else ShortRead
            raise kind(
                f"{self._attempts} attempts to read a range gave nothing; the last time: {said}",
                url=self.url,
                offset=offset,
            )
        patience.pause(None if wish is None else wish.wait_seconds)
        if wish is not None and wish.expired:
            self._source.refresh()

    def _asked(self, offset: int, size: int) -> Answer | None:
        """Ask once; learn who the object is from the first answer. None where the first answer says: it is empty."""
        self.requests += 1
        try:
            answer = self._source.open_at(offset, self._known, size)
        except ShardChanged:
            if self._known is None and self._empty():
                return None
            raise
        if answer.start == offset and self._known is not None and _about_the_same(self._known, answer.identity):
            return answer
        if self._known is None and self._is_range(answer, offset, size) and answer.identity.length is not None:
            self._known, self.length = answer.identity, answer.identity.length
            return answer
        answer.body.close()
        if self._known is not None and self._known.contradicts(answer.identity):
            raise changed(self.url, offset)
        if self._known is None:
            raise NoRandomAccess("the service does not answer range requests: read it front to back", url=self.url)
        raise Again("the service answered with something else than the range that it was asked for")

    def _is_range(self, answer: Answer, offset: int, size: int) -> bool:
        """Tell whether the first answer shows that ranges are heeded; some sources judge that themselves."""
        if answer.start != offset or answer.size is None:
            return False
        return answer.size <= size or bool(getattr(self._source, "judges_ranges", False))

    def _empty(self) -> bool:
        """Tell whether the object has no bytes: services refuse any range of it."""
        answer = self._source.open_at(0, None)
        answer.body.close()
        if answer.identity.length == 0:
            self._known, self.length = answer.identity, 0
        return self.length == 0

    def _drained(self, answer: Answer, size: int, pieces: list[bytes]) -> int:
        """Read an answer's body; return how many bytes came."""
        got, body = 0, LosslessBody(answer.body, self._failures)
        try:
            while got < size and (piece := body.read(size - got)):
                pieces.append(piece)
                got += len(piece)
        except self._failures as error:
            if not got:
                raise Again(redacted(f"{type(error).__name__}: {error}")) from error
        finally:
            self.received += got
            if got < size or answer.size != got:  # a connection with a rest in it would be read as the next answer
                answer.body.close()
        return got

    def close(self) -> None:
        """Forget what was kept."""
        self._head = b""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *failure: object) -> None:
        self.close()

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_head": b""}


def _about_the_same(known: Identity, answered: Identity) -> bool:
    """Tell whether an answer is about the object known; where a server never says more, by its length alone."""
    return known.same(answered) if known.provable() else known.length == answered.length
