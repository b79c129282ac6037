"""The resuming reader over a store in memory that answers badly in every way: equal bytes, or a typed error."""

import io
import zlib

import pytest

from webdataset.core.errors import NotFound, ShardChanged, ShortRead, SourceError
from webdataset.core.seeds import make_rng
from webdataset.storage import resumable_stream, retries
from webdataset.storage.object_store import Checksums, LosslessBody, ObjectResponse, ObjectVersion, parse_crc32
from webdataset.storage.random_access import ObjectRanges
from webdataset.storage.resumable_stream import ResumableStream
from webdataset.storage.retries import RetryableError

BODY = bytes(range(256)) * 1200
OTHER = bytes(reversed(BODY))
FAULTS = ("drop", "end", "again", "early", "late", "whole", "nameless", "other", "longer", "short-range", "expired")


class Body:
    """A body that breaks off."""

    def __init__(self, content, error=None):
        self.content, self.error, self.closed = content, error, False

    def read(self, size):
        """Give some bytes; at the end, fail or say that it is the end."""
        piece, self.content = self.content[: min(size, 9_000)], self.content[min(size, 9_000) :]
        if not piece and self.error is not None:
            raise self.error
        return piece

    def close(self):
        """Note it."""
        self.closed = True


class Store:
    """One object; ``faults`` go wrong, one for each request."""

    url = "mem://object"

    def __init__(self, faults=(), *, body=BODY, etag='"1"', length=True, checksum=False, cut=70_000):
        self.faults, self.body, self.etag, self.length, self.cut = list(faults), body, etag, length, cut
        self.checksum, self.refreshed, self.asked, self.bodies = checksum, 0, [], []

    def failures(self):
        """What a body raises."""
        return (ConnectionError,)

    def refresh(self):
        """Note it."""
        self.refreshed += 1

    def open_at(self, offset, known, size=None):
        """Answer, or fail as planned."""
        self.asked.append((offset, known))
        fault = self.faults.pop(0) if self.faults else None
        if fault in ("again", "expired"):
            raise RetryableError("planned", wait_seconds=3, expired=fault == "expired")
        if isinstance(fault, Exception):
            raise fault
        start = {"early": max(0, offset - 1), "late": offset + 1, "whole": 0}.get(fault, offset)
        content = OTHER if fault == "other" else self.body + b"x" * (fault == "longer")
        etag = None if fault == "nameless" else '"2"' if fault == "other" else self.etag
        crc = zlib.crc32(content) if self.checksum and not offset else None
        identity = ObjectVersion(etag, None, None, len(content) if self.length else None)
        content = content[start:] if size is None else content[start : start + size]
        if fault in ("drop", "end", "short-range"):
            content = content[: self.cut]
        self.bodies.append(Body(content, ConnectionResetError("planned") if fault == "drop" else None))
        return ObjectResponse(self.bodies[-1], start, identity, len(content), Checksums(crc))


@pytest.fixture(autouse=True)
def waits(monkeypatch):
    """Nobody waits here; how long they would have is noted."""
    noted = []
    monkeypatch.setattr(retries, "sleep", noted.append)
    return noted


def drained(store, size=20_000, **options):
    """Read an object in pieces."""
    with ResumableStream(store, **options) as stream:
        return b"".join(iter(lambda: stream.read(size), b""))


@pytest.mark.parametrize("block", range(4))
def test_a_thousand_seeds(block):
    """Any faults in any order: the bytes of one object, or a typed error; never a mixture, never fewer."""
    whole = 0
    for seed in range(250 * block, 250 * block + 250):
        rng = make_rng("store", seed)
        kinds = FAULTS if seed % 3 == 0 else [fault for fault in FAULTS if fault not in ("other", "longer")]
        faults = rng.choices([None, *kinds], k=rng.randrange(1, 8))
        store = Store(faults, cut=rng.randrange(0, 200_000), checksum=seed % 2 == 0)
        try:
            found = drained(store, rng.randrange(1_000, 100_000))
        except (ShortRead, ShardChanged, SourceError):
            assert seed % 3 == 0 or "nameless" in faults[:1], f"seed {seed}: {faults}"
        else:
            assert found in (BODY, OTHER, BODY + b"x"), f"seed {seed}: {faults}"  # one object, whichever came first
            whole += found == BODY
        assert all(body.closed or not body.content for body in store.bodies), f"seed {seed}: a connection is left open"
    assert whole > 150


@pytest.mark.parametrize("block", range(2))
def test_ranges_under_seeds(block):
    """Positioned reads: the object's bytes, or a typed error."""
    for seed in range(100 * block, 100 * block + 100):
        rng = make_rng("ranges", seed)
        store = Store(cut=rng.randrange(0, 2_000))
        ranges = ObjectRanges(store, head=100)
        store.faults = rng.choices([None, *FAULTS], k=rng.randrange(1, 9))
        for _ in range(4):
            offset, size = rng.randrange(len(BODY) + 100), rng.randrange(5_000)
            try:
                assert ranges.read_at(offset, size) == BODY[offset : offset + size], f"seed {seed}"
            except (ShortRead, ShardChanged):
                assert {"other", "longer"} & {*store.faults} or len(store.asked) > 1


def test_the_rest_is_asked_for_where_it_stopped():
    """Offset and identity of the second request are those of the bytes before."""
    store = Store(["drop", "end"])
    assert drained(store) == BODY
    assert [offset for offset, _ in store.asked] == [0, 70_000, 140_000]
    assert store.asked[1][1] == ObjectVersion('"1"', None, None, len(BODY))


def test_a_whole_object_is_skipped_into():
    """A store that ignores offsets: what is known is read past, if it is the same object."""
    store = Store(["drop", "whole"])
    assert drained(store) == BODY
    assert len(store.asked) == 2
    with pytest.raises(ShardChanged):
        drained(Store(["drop", "other"]))


def test_the_first_retry_is_quick_and_later_ones_wait(waits):
    """Within 0.2 s, then doubling; a store's wish is heard, up to two minutes."""
    with pytest.raises(ShortRead, match="8 attempts"):
        drained(Store(["drop"] * 99, cut=0))
    assert waits[0] < 0.2
    assert len(waits) == 7
    assert waits[6] > 3
    waits.clear()
    assert drained(Store(["again"])) == BODY
    assert 3 <= waits[0] < 4
    assert retries.pause_seconds(0, 10_000) == retries.LONGEST_WISH_SECONDS
    assert retries.pause_seconds(50) == retries.LONGEST_SECONDS


def test_attempts_go_on_for_as_long_as_is_set(waits, monkeypatch, caplog):
    """``WDS_RETRY_SECONDS`` counts from the first failure without progress; one warning names the object."""
    clock = [1000.0]
    monkeypatch.setattr(resumable_stream.time, "monotonic", lambda: clock[0])
    monkeypatch.setattr(
        retries, "sleep", lambda seconds: (waits.append(seconds), clock.__setitem__(0, clock[0] + seconds))
    )
    with pytest.raises(ShortRead, match=r"8 attempts .* WDS_RETRY_SECONDS=600 keeps asking for ten minutes"):
        drained(Store(["drop"] * 99, cut=0))
    monkeypatch.setenv("WDS_RETRY_SECONDS", "200")
    waits.clear()
    began = clock[0]
    assert drained(Store(["drop", *["again"] * 12])) == BODY
    assert len(waits) == 13
    assert clock[0] - began < 200
    assert [record.getMessage() for record in caplog.records if "asked again" in record.getMessage()] == [
        "mem://object: no answer after 8 attempts; it is asked again for up to 200 seconds (WDS_RETRY_SECONDS)"
    ]
    began = clock[0]
    with pytest.raises(ShortRead, match=r"\d\d attempts to take it up again") as caught:
        drained(Store(["drop", *["again"] * 99]))
    assert "WDS_RETRY_SECONDS" not in str(caught.value)
    assert 200 <= clock[0] - began < 200 + retries.LONGEST_SECONDS
    with pytest.raises(ShortRead, match="2 attempts"):
        drained(Store(["drop"] * 99, cut=3_000), attempts=2)


def test_progress_is_what_counts():
    """Any number of drops with progress between them; few without."""
    assert drained(Store(["drop"] * 99, cut=4_000), attempts=2) == BODY
    with pytest.raises(ShortRead, match="2 attempts"):
        drained(Store(["drop"] * 99, cut=3_000), attempts=2)
    for cut, whole in ((4_000, True), (0, False)):
        store = Store(cut=cut)
        ranges = ObjectRanges(store, head=100, attempts=2)
        store.faults = ["drop"] * 99
        if whole:
            assert ranges.read_at(50, 200_000) == BODY[50:200_050]
        else:
            with pytest.raises(ShortRead, match="2 attempts"):
                ranges.read_at(50, 200_000)


class Lossy(io.RawIOBase):
    """A line that gives pieces of planned sizes, and then fails."""

    def __init__(self, content, sizes):
        self.content, self.sizes = content, list(sizes)

    def readable(self):
        """It can be read."""
        return True

    def readinto(self, space):
        """Give the next piece, or fail."""
        if not self.sizes:
            raise ConnectionResetError("planned")
        size = min(self.sizes.pop(0), len(space), len(self.content))
        space[:size], self.content = self.content[:size], self.content[size:]
        return size


@pytest.mark.parametrize("seed", range(200))
def test_no_byte_in_front_of_a_failure_is_lost(seed):
    """Whatever sizes come and are asked for: all that came is given, in order, before the failure is raised."""
    rng = make_rng("kept", seed)
    sizes = [rng.choice((1, 100, 16_384, 200_000, 2_000_000)) for _ in range(rng.randrange(1, 12))]
    content = rng.randbytes(sum(sizes))
    line = Lossy(content, sizes)
    body = LosslessBody(io.BufferedReader(line), (ConnectionError,))
    given = bytearray()

    def drain():
        while piece := body.read(rng.choice((1, 5_000, 393_216, 1 << 20))):
            given.extend(piece)

    with pytest.raises(ConnectionResetError):
        drain()
    assert given == content[: len(content) - len(line.content)]
    with pytest.raises(ConnectionResetError):
        body.read(10)


def test_a_slow_consumer_costs_nothing(monkeypatch):
    """Connections that drop while nobody reads are not counted as failures."""
    clock = [0.0]
    monkeypatch.setattr(resumable_stream.time, "monotonic", lambda: clock[0])
    store = Store(["drop"] * 999, cut=1_000)
    received = bytearray()
    with ResumableStream(store, attempts=2) as stream:
        while piece := stream.read(1_000):
            received += piece
            clock[0] += 3_600
    assert received == BODY


def test_expired_credentials_are_refreshed():
    """The source looks for new credentials, once for each answer that says so."""
    store = Store(["expired", "drop", "expired"])
    assert drained(store) == BODY
    assert store.refreshed == 2


def test_a_checksum_is_verified():
    """All bytes came, and are not what the store vouches for: ShortRead, before the last of them is given."""
    store = Store(["drop"], checksum=True)
    with ResumableStream(store) as stream:
        first = stream.read(1000)
        store.body = BODY[:-1] + b"!"
        with pytest.raises(ShortRead, match="checksum"):
            stream.readall()
        with pytest.raises(ShortRead, match="checksum"):
            stream.read(1)
    assert first == BODY[:1000]
    assert (parse_crc32("AAAAAQ=="), parse_crc32("AAAAAQ==-2"), parse_crc32(None), parse_crc32("AA==")) == (
        1,
        None,
        None,
        None,
    )


@pytest.mark.parametrize("options", [{"etag": None}, {"length": False}])
def test_what_cannot_be_proved_is_not_taken_up(options):
    """Without an identity there is no second request."""
    store = Store(["drop"], **options)
    with pytest.raises(ShortRead):
        drained(store)
    assert len(store.asked) == 1


def test_without_a_length_the_end_is_the_end():
    """Nothing is known of the length: the stream says so, and ends when the body does."""
    store = Store(length=False)
    with ResumableStream(store) as stream:
        assert stream.length is None
        assert stream.read() == BODY


def test_refusals_come_through():
    """Errors that asking again does not mend are raised at once, first and later."""
    for faults in ([NotFound("gone")], ["drop", NotFound("gone")]):
        store = Store(faults)
        with pytest.raises(NotFound, match="gone"):
            drained(store)
        assert len(store.asked) == len(faults)


def test_identities():
    """What proves that two answers are about the same bytes, and what proves the contrary."""
    known = ObjectVersion('"a"', "1", "monday", 5)
    assert known.same(known)
    assert known.same(ObjectVersion('"a"', "1", "tuesday", 5))
    assert not known.same(ObjectVersion('"a"', "2", "monday", 5))
    assert not known.same(ObjectVersion(None, "1", "monday", 5))
    assert not known.contradicts(ObjectVersion(None, "1", "tuesday", 5))
    assert known.contradicts(ObjectVersion('"b"', "1", "monday", 5))
    assert known.contradicts(ObjectVersion('"a"', "1", "monday", 6))
    assert ObjectVersion(None, "1", None, 5).same(ObjectVersion(None, "1", "x", 5))
    assert ObjectVersion(None, None, "monday", 5).same(ObjectVersion(None, None, "monday", 5))
    assert ObjectVersion(None, None, "monday", 5).contradicts(ObjectVersion(None, None, "friday", 5))
    assert not ObjectVersion(None, None, None, 5).same(ObjectVersion(None, None, None, 5))
