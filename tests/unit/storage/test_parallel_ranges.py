"""One object over several connections: equal bytes in order, each range checked, one connection where that fails."""

import contextlib
import gc
import itertools
import os
import threading
import time
import zlib
from types import SimpleNamespace

import pytest

from webdataset.core.errors import ShardChanged, ShortRead, SourceError
from webdataset.core.seeds import make_rng
from webdataset.storage import parallel_ranges, prefetch_worker, resumable_stream, retries
from webdataset.storage.backends.http import HttpStream
from webdataset.storage.object_store import Checksums, ObjectResponse, ObjectVersion
from webdataset.storage.prefetch_worker import prefetch_budget
from webdataset.storage.resumable_stream import ResumableStream
from webdataset.storage.retries import RetryableError
from webdataset.testing.sources import Answering, Listening

PART = 64 * 1024
BODY = make_rng("parallel", 0).randbytes(40 * PART + 1234)
OTHER = bytes(reversed(BODY))


class Body:
    """A body that gives a little at a time, slowly, and may break off."""

    def __init__(self, store, content, *, breaks):
        self.store, self.content, self.breaks, self.shut = store, content, breaks, threading.Event()
        with store.lock:
            store.open += 1
            store.most = max(store.most, store.open)
        self.closed = False

    def read(self, size):
        """Give some bytes."""
        if self.shut.wait(self.store.pause) or self.store.released.is_set():
            raise ConnectionResetError("shut down")
        piece, self.content = self.content[: min(size, 20_000)], self.content[min(size, 20_000) :]
        if not piece and self.breaks:
            raise ConnectionResetError("planned")
        if not self.content and not self.breaks:
            self.close()  # as an answer over HTTP gives its connection back with the last byte
        return piece

    def shutdown(self):
        """Wake the thread that reads."""
        self.shut.set()

    def close(self):
        """Count it as closed."""
        if not self.closed:
            self.closed = True
            with self.store.lock:
                self.store.open -= 1


class Store:
    """One object; ``faulty`` is asked what goes wrong with each request (its number, offset and size)."""

    url = "mem://object"

    def __init__(self, body=BODY, faulty=lambda *_: None, *, checksum=None, etag='"1"', pause=0.001):
        self.body, self.faulty, self.etag, self.pause, self.checksum = body, faulty, etag, pause, checksum
        self.asked, self.open, self.most = [], 0, 0
        self.released, self.lock = threading.Event(), threading.Lock()

    def failures(self):
        """What a body raises."""
        return (ConnectionError,)

    def refresh(self):
        """Do nothing."""

    def open_at(self, offset, known, size=None):
        """Answer, or fail as planned."""
        with self.lock:
            self.asked.append((offset, size, known))
            number = len(self.asked) - 1
        fault = self.faulty(number, offset, size)
        if isinstance(fault, Exception):
            raise fault
        body, etag, start = self.body, self.etag, offset
        if fault == "other":
            body, etag = OTHER, '"2"'
        if fault == "whole":
            start, size = 0, None
        if fault == "shifted":
            start += 1
        content = body[start:] if size is None else body[start : start + size]
        if fault == "break":
            content = content[: len(content) // 3]
        identity = ObjectVersion(etag, None, None, len(body))
        crc = self.checksum if offset == 0 and size is None else None
        return ObjectResponse(
            Body(self, content, breaks=fault == "break"), start, identity, len(content), Checksums(crc)
        )


@pytest.fixture(autouse=True)
def hungry(monkeypatch):
    """Every reader is taken for a starving one at once; parts are small; nothing is left behind."""
    monkeypatch.setattr(parallel_ranges, "ALIGNMENT_BYTES", PART)
    monkeypatch.setattr(prefetch_worker, "WINDOW_SECONDS", 0.0)
    monkeypatch.setattr(prefetch_worker, "WINDOW_BYTES", 1)
    monkeypatch.setattr(prefetch_worker, "FAST_BYTES_PER_SECOND", float("inf"))
    monkeypatch.setattr(retries, "FIRST_SECONDS", 0.001)
    monkeypatch.setattr(parallel_ranges, "_refusal_times", {})
    monkeypatch.setattr(retries, "sleep", lambda _seconds: None)
    yield
    gc.collect()
    for _ in range(1500):
        if threads() == 0 and (prefetch_budget.size_bytes, prefetch_budget.connections) == (0, 0):
            break
        time.sleep(0.01)
    assert threads() == 0
    assert (prefetch_budget.size_bytes, prefetch_budget.connections) == (0, 0)


def threads():
    """How many threads read ahead."""
    return sum(thread.name == "webdataset-ahead" for thread in threading.enumerate())


def read(store, sizes=(5000, 70_000, 200_000)):
    """Read all of an object by reads of several sizes."""
    pieces = []
    with ResumableStream(store) as stream:
        while piece := stream.read(sizes[len(pieces) % len(sizes)]):
            pieces.append(piece)
        assert stream.tell() == len(BODY)
    return b"".join(pieces)


def ranges(store):
    """The ranges that were asked for as such."""
    return [(offset, size) for offset, size, _ in store.asked if size is not None]


def test_equal_bytes_over_several_connections():
    """A reader that waits gets aligned ranges, each naming the object, over at most five connections at once."""
    store = Store()
    assert read(store) == BODY
    asked = ranges(store)
    assert len(asked) > 5
    assert all(offset % PART == 0 for offset, _ in asked)
    assert all(known.etag == '"1"' for _, size, known in store.asked if size is not None)
    # the first connection may linger until its successor has come, and another one brings its last bytes
    assert 2 < store.most <= 7
    assert store.open == 0


def test_the_ranges_do_not_overlap():
    """Behind the first range, each byte is asked for once."""
    store = Store()
    read(store)
    asked = sorted(ranges(store))
    assert [offset for offset, _ in asked[1:]] == [offset + size for offset, size in asked[:-1]]
    assert sum(asked[-1]) == len(BODY)


@pytest.mark.parametrize(("name", "text"), [("WDS_CONNECTIONS", "1"), ("WDS_PREFETCH_BYTES", "0")])
def test_switched_off(monkeypatch, name, text):
    """Either setting leaves one connection."""
    monkeypatch.setenv(name, text)
    store = Store()
    assert read(store) == BODY
    assert len(store.asked) == 1


def test_no_range_takes_the_place_of_the_only_connection(monkeypatch):
    """Where others have all connections but one, that one reads on; it is joined by others as soon as there are any."""
    grants = [prefetch_budget.take(1) for _ in range(4)]
    store, pieces = Store(), []
    with ResumableStream(store) as stream:
        for _ in range(20):
            pieces.append(stream.read(20_000))
        assert len(store.asked) == 1
        for grant in grants:
            grant.release()
        for _ in range(20):
            pieces.append(stream.read(20_000))
        assert len(ranges(store)) > 1
        for _ in range(4):  # and taken away again in the middle
            grants.append(prefetch_budget.take(1))
        pieces.extend(iter(lambda: stream.read(20_000), b""))
    for grant in grants:
        if grant is not None:
            grant.release()
    assert b"".join(pieces) == BODY


def test_no_room_for_the_next_range_is_no_failure(monkeypatch):
    """With all ranges read and no room for more, the first connection goes on, and is joined again."""
    store, pieces, waited = Store(), [], []
    monkeypatch.setattr(retries, "sleep", waited.append)
    with ResumableStream(store) as stream:
        while len(ranges(store)) < 3:
            pieces.append(stream.read(20_000))
        with monkeypatch.context() as full:
            full.setattr(prefetch_budget, "more", lambda *_, **__: False)
            while [size for _, size, _ in store.asked].count(None) < 2 and pieces[-1]:
                pieces.append(stream.read(20_000))
        before = len(ranges(store))
        pieces.extend(iter(lambda: stream.read(20_000), b""))
        assert len(ranges(store)) > before
    assert b"".join(pieces) == BODY
    assert waited == []  # nothing had failed


def test_a_place_that_gives_no_ranges_is_asked_once():
    """The next objects of a server that ignores ranges are read over one connection from their beginning."""
    store = Store(faulty=lambda _number, _offset, size: "whole" if size is not None else None)
    assert read(store) == BODY
    assert ranges(store)
    again = Store(faulty=store.faulty)
    assert read(again) == BODY
    assert not ranges(again)
    elsewhere = Store()
    elsewhere.url = "mem://other/object"
    assert read(elsewhere) == BODY
    assert ranges(elsewhere)


def test_a_finaliser_may_stop_what_is_being_begun():
    """A stream that is collected while a thread begins its next range waits for nobody, and no range is left."""
    done = threading.Event()
    store = Store()
    stream = ResumableStream(store)
    while len(ranges(store)) < 3:
        stream.read(10_000)

    def collected():
        with stream._parallel._lock:
            stream.close()
        done.set()

    threading.Thread(target=collected, daemon=True).start()
    assert done.wait(30)


def test_a_fast_source_keeps_its_one_connection(monkeypatch):
    """Nobody opens further connections to a source that is as fast as a plain one nearby."""
    monkeypatch.setattr(prefetch_worker, "FAST_BYTES_PER_SECOND", 1.0)
    store = Store()
    assert read(store) == BODY
    assert len(store.asked) == 1


def test_a_busy_reader_keeps_its_one_connection(monkeypatch):
    """Nor for a reader that spends its time elsewhere."""
    ticks = itertools.count()  # a clock of our own: a busy machine would make any reader wait
    monkeypatch.setattr(resumable_stream, "time", SimpleNamespace(monotonic=lambda: float(next(ticks))))
    with ResumableStream(store := Store(pause=0)) as stream:
        while [next(ticks) for _ in range(5)] and stream.read(300_000):
            pass
    assert len(store.asked) == 1


def test_an_object_that_cannot_be_recognised_is_read_over_one_connection():
    """Without ETag, version or date no second answer can be believed."""
    store = Store(etag=None)
    assert read(store) == BODY
    assert len(store.asked) == 1


@pytest.mark.parametrize("fault", ["whole", RetryableError("busy"), SourceError("no more than one connection")])
def test_a_server_that_gives_no_ranges(fault):
    """One that ignores ranges, or refuses further connections, is read on over the first one, which stays open."""
    store = Store(faulty=lambda _number, _offset, size: fault if size is not None else None)
    assert read(store) == BODY
    assert [size for _, size, _ in store.asked if size is None] == [None]
    assert len(store.asked) > 1


def test_ranges_that_break_off_are_taken_up_again():
    """Each range is resumed where it broke off, however often that happens."""
    store = Store(faulty=lambda number, _offset, size: "break" if size is not None and number % 2 else None)
    assert read(store) == BODY
    assert any(offset % PART for offset, size in ranges(store))


def test_a_range_that_fails_for_good_is_read_by_the_first_connection():
    """What a range cannot give, one connection gives; nothing is lost."""
    bad = []

    def faulty(_number, offset, size):
        if size is not None and offset >= 20 * PART:
            bad.append(offset)
            return RetryableError("busy")
        return None

    store = Store(faulty=faulty)
    assert read(store) == BODY
    assert bad
    # on a slow machine the first connection may take a range over before
    assert [offset for offset, size, _ in store.asked if size is None][-1] == min(bad)


@pytest.mark.parametrize("fault", ["other", "shifted"])
def test_a_range_of_something_else_is_never_given(fault):
    """A range of another object, or from another place, is not believed; the object that is there raises."""
    store = Store(faulty=lambda number, _offset, _size: fault if number > 2 else None)
    with pytest.raises((ShardChanged, ShortRead) if fault == "shifted" else ShardChanged):
        read(store)


def test_checksums_cover_all_connections():
    """The checksum of the whole object is compared over what all connections gave."""
    assert read(Store(checksum=zlib.crc32(BODY))) == BODY
    with pytest.raises(ShortRead, match="checksum"):
        read(Store(checksum=zlib.crc32(OTHER)))


@pytest.mark.parametrize("milliseconds", [1, 5, 20])
def test_threads_that_begin_late(monkeypatch, milliseconds):
    """A thread that opens its range after the next ones were begun opens its own, and no other."""
    run = prefetch_worker.PrefetchTask._run

    def run_late(task, opener):
        time.sleep(milliseconds / 1000)
        run(task, opener)

    monkeypatch.setattr(prefetch_worker.PrefetchTask, "_run", run_late)
    store = Store()
    assert read(store) == BODY
    assert len(ranges(store)) > 3
    assert len(set(ranges(store))) == len(ranges(store))


def test_memory_is_bounded(monkeypatch):
    """What is read ahead stays within the budget of the process."""
    monkeypatch.setenv("WDS_PREFETCH_BYTES", str(3 * PART))
    held, more = [], prefetch_budget.more

    def noted(*arguments, **options):
        granted = more(*arguments, **options)
        held.append(prefetch_budget.size_bytes)
        return granted

    monkeypatch.setattr(prefetch_budget, "more", noted)
    assert read(Store()) == BODY
    assert 0 < max(held) <= 3 * PART


@pytest.mark.parametrize("how", ["close", "drop"])
def test_leaving_early_leaves_nothing(how):
    """A stream that is closed, or forgotten, in the middle ends its threads, even where the server has gone silent."""
    store = Store()
    stream = ResumableStream(store)
    while len(ranges(store)) < 3:
        stream.read(10_000)
    store.pause = 60
    if how == "close":
        stream.close()
        stream.close()
    del stream


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_forked_child_uses_none_of_its_parents_threads():
    """Child and parent both read on, each over connections of its own."""
    store = Store()
    with ResumableStream(store) as stream:
        before = b""
        while len(ranges(store)) < 6:
            before += stream.read(10_000)
        receiving, sending = os.pipe()
        child = os.fork()
        if child == 0:
            rest = stream.readall()
            os.write(sending, f"{before + rest == BODY} {len(store.asked)}".encode())
            os._exit(0)
        os.close(sending)
        with os.fdopen(receiving) as answer:
            assert answer.read().startswith("True")
        os.waitpid(child, 0)
        assert before + stream.readall() == BODY


def test_no_threads_to_be_had(monkeypatch):
    """Where the system gives no further thread, one connection reads on."""
    refused = []

    def start(_self):
        refused.append(1)
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", start)
    store = Store()
    assert read(store) == BODY
    assert refused
    assert len(store.asked) == 1


def read_with_faults(seed):
    """Return what a reading gives in which whatever a seed says goes wrong, or the error; and how much went wrong."""
    rng, lock = make_rng("faults", seed), threading.Lock()
    kinds = ("break", "whole", "shifted", RetryableError("busy"), "other")
    weights = (6, 1, 1, 3, 0.3)
    faults = SimpleNamespace(left=12)

    def faulty(_number, _offset, _size):
        with lock:
            if not faults.left or rng.random() < 0.5:
                return None
            faults.left -= 1
            return rng.choices(kinds, weights)[0]

    store = Store(pause=0.0002)
    with ResumableStream(store) as stream:
        store.faulty = faulty
        try:
            return stream.readall(), 12 - faults.left
        except (ShardChanged, ShortRead) as error:
            return error, 12 - faults.left


def test_seeded_faults():
    """Whatever goes wrong, the bytes are equal or the error is typed; most readings get over it."""
    outcomes = []
    for seed in range(25):
        parallel_ranges._refusal_times.clear()  # a store that gave a whole object is not asked for parts again
        outcomes.append(read_with_faults(seed))
    assert all(found == BODY for found, _ in outcomes if isinstance(found, bytes))
    whole = [wrong for found, wrong in outcomes if isinstance(found, bytes)]
    assert len(whole) > 12
    assert sum(whole) > 2 * len(whole)


class _OneConnection(Answering):
    """Sends the whole object slowly, and refuses every range as the server's rules say."""

    def do_GET(self):
        """Answer, and note whether a range was wanted."""
        wanted, rules = self.headers.get("Range"), self.server.rules
        rules.asked.append(wanted)
        refused = wanted is not None and rules.refuses(len(rules.asked) - rules.asked.count(None))
        if refused and rules.status != 200:
            self.send_response(rules.status)
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        start, _, last = ("0-" if wanted is None or refused else wanted.removeprefix("bytes=")).partition("-")
        content = BODY[int(start) : int(last) + 1 if last else None]
        self.send_response(200 if wanted is None or refused else 206)
        self.send_header("ETag", '"1"')
        self.send_header("Content-Length", str(len(content)))
        self.send_header("Content-Range", f"bytes {start}-{int(start) + len(content) - 1}/{len(BODY)}")
        self.end_headers()
        with contextlib.suppress(OSError):
            for at in range(0, len(content), 16_384):
                self.wfile.write(content[at : at + 16_384])
                time.sleep(0.002)


def read_slowly(url, rules, following):
    """Read an object until a range was refused, then a little at a time, and then to its end."""
    pieces = []
    with HttpStream(url) as stream:
        while sum(wanted is not None for wanted in rules.asked) < following and len(pieces) < 60:
            pieces.append(stream.read(16_384))
        for _ in range(20):
            time.sleep(0.01)
            pieces.append(stream.read(1000))
        pieces.append(stream.readall())
    return b"".join(pieces)


@pytest.mark.parametrize("status", [503, 429, 416, 200])
def test_a_refused_range_is_the_last_one(status):
    """A server that refuses a connection beside the first one is asked for no second range of this object."""
    rules = SimpleNamespace(asked=[], status=status, refuses=lambda _number: True)
    with Listening(_OneConnection, rules) as server:
        assert read_slowly(f"{server.url}/a.tar", rules, 1) == BODY
    assert rules.asked[0] is None
    # the first connection reads to the end: it is still open where the range would have begun
    assert [wanted for wanted in rules.asked if wanted] == rules.asked[1:]
    assert len(rules.asked) == 2


@pytest.mark.parametrize("status", [503, 200])
def test_no_range_is_asked_for_after_a_later_refusal(status):
    """Where the server gave ranges and then refuses one, what was asked for before is all; one connection reads on."""
    asked: list[str | None] = []
    rules = SimpleNamespace(
        asked=asked, status=status, refuses=lambda number: number > 6 and (asked[-1] or "")[-1:] != "-"
    )
    with Listening(_OneConnection, rules) as server:
        assert read_slowly(f"{server.url}/a.tar", rules, 7) == BODY
        bounded = [wanted for wanted in rules.asked if wanted and not wanted.endswith("-")]
        # requests that were sent before the first refusal had come: no more than connections
        assert 7 <= len(bounded) <= 6 + 5
        # the place is asked again for its next object
        before = len(rules.asked)
        rules.refuses = lambda _number: False
        assert read_slowly(f"{server.url}/b.tar", rules, len(bounded) + 1) == BODY
        assert any(rules.asked[before + 1 :])
