"""Streams that a thread begins to read: the same bytes, the same error in the same place, and nothing left behind."""

import io
import os
import threading
import time
import types

import pytest

from webdataset.core.errors import SourceError
from webdataset.core.seeds import make_rng
from webdataset.storage import prefetch_worker
from webdataset.storage.open_url import resolve_url
from webdataset.storage.prefetch import PrefetchedStream, ShardPrefetcher
from webdataset.storage.prefetch_worker import PrefetchBudget, PrefetchTask, ReadRate
from webdataset.testing.sources import FaultyStream

BODY = make_rng("ahead", 0).randbytes(1_500_000)


@pytest.fixture
def budget():
    """A budget of its own; all that it granted is given back in the end."""
    fresh = PrefetchBudget()
    yield fresh
    assert (fresh.size_bytes, fresh.connections) == (0, 0)


def filled(budget, opener, limit=1 << 20):
    """Read a stream ahead up to a bound, and wait for that."""
    task = PrefetchTask(opener, limit, budget.take(limit))
    while task.running:
        time.sleep(0.001)
    return task


def taken(task):
    """The stream of a prefetch task whose turn has come."""
    return PrefetchedStream(task.take(), ReadRate(), task=task)


@pytest.mark.parametrize("limit", [1, 100_000, 393_216, 1_000_000, 5_000_000])
def test_equal_bytes_whatever_the_bound(budget, limit):
    """What was read ahead and what is read later join without a seam, in reads of any size."""
    task = filled(budget, lambda: io.BytesIO(BODY), limit)
    with taken(task) as stream:
        first = stream.read(1000)
        assert len(first) <= 1000
        assert first + stream.read(300_000) + stream.readall() == BODY
        assert stream.tell() == len(BODY)
        assert stream.read(10) == b""


def test_the_thread_stops_at_the_bound(budget):
    """No thread waits for a reader that may never come, and no more is read than was granted."""
    source = io.BytesIO(BODY)
    task = filled(budget, lambda: source, 500_000)
    assert source.tell() == 500_000
    assert not task.running
    task.close()
    assert source.closed


def test_reading_further_ahead(budget):
    """A bound may be raised, whether the thread still runs or not; at the end there is nothing more to read."""
    source = io.BytesIO(BODY)
    task = filled(budget, lambda: source, 100_000)
    task.extend(200_000)
    while task.running:
        time.sleep(0.001)
    assert source.tell() == 200_000
    assert taken(task).readall() == BODY
    small = filled(budget, lambda: io.BytesIO(b"x"), 100)
    small.extend(200)
    assert not small.running
    assert taken(small).readall() == b"x"


@pytest.mark.parametrize("limit", [100_000, 1_000_000])
def test_an_error_comes_where_it_belongs(budget, limit):
    """A stream that fails while it is read ahead raises after the bytes before, and does not end instead."""
    error = OSError("planned")
    task = filled(budget, lambda: FaultyStream(BODY, seed=1, most=100_000, fails_at=8, error=error), limit)
    given = FaultyStream(BODY, seed=1, most=100_000, fails_at=8)
    stream, before = taken(task), b""
    with pytest.raises(OSError, match="planned"):  # noqa: PT012  at whichever read
        while True:
            before += stream.read(393_216)
    with pytest.raises(OSError, match=r"told to|planned"):  # noqa: PT012  likewise
        while given.read(393_216):
            pass
    assert before == BODY[: len(before)]
    assert len(before) > 0
    if task.failure is not None:
        with pytest.raises(OSError, match="planned"):
            stream.read(1)
    stream.close()


def test_what_cannot_be_opened(budget):
    """A refusal is kept for whoever asks."""
    task = filled(budget, lambda: open("/nowhere/x", "rb"))  # noqa: SIM115, PTH123
    assert task.take() is None
    assert isinstance(task.refused, FileNotFoundError)
    task.release()


def test_attributes_are_the_streams_own():
    """Whoever asks for a length, a name or more is answered by the stream."""
    source_like = type("Named", (io.BytesIO,), {"length": 7, "identity": "x"})(BODY)
    stream = PrefetchedStream(source_like, ReadRate())
    assert (stream.length, stream.identity, stream.readable(), stream.seekable()) == (7, "x", True, False)
    with pytest.raises(AttributeError):
        _ = stream.nothing_of_the_kind
    stream.close()
    assert source_like.closed


class Clocked:
    """A stream with a clock: opening it takes a while, each piece after the first a fifth of a second."""

    def __init__(self, pieces, latency):
        self.left, self.length = pieces, pieces * prefetch_worker.PIECE_BYTES
        self.now, self.step, self.latency = 0.0, 0.0, latency

    def open(self):
        """Take a while."""
        self.now += self.latency
        return self

    def read(self, size, /):
        """Give a piece."""
        self.left -= 1
        self.now, self.step = self.now + self.step, 0.2
        return bytes(size)

    def close(self):
        """Do nothing."""


@pytest.mark.parametrize(("latency", "expected"), [(1.0, [(5, 0), (0, 0)]), (0.0, [(0, 0)])])
def test_the_next_request_is_sent_while_the_last_bytes_come(budget, monkeypatch, latency, expected):
    """A connection counts no more once the rest comes within the time of a request; one nearby counts to its end."""
    source, heard = Clocked(10, latency), []
    monkeypatch.setattr(prefetch_worker, "time", types.SimpleNamespace(monotonic=lambda: source.now))
    task = PrefetchTask(
        source.open,
        source.length,
        budget.take(source.length),
        lambda _: heard.append((source.left, budget.connections)),
    )
    while task.running:
        threading.Event().wait(0.001)
    task.close()
    assert heard == expected


def test_one_connection_at_a_time_is_lent(budget):
    """While one brings its last bytes, the others keep theirs; then the next may; one that gets more has it again."""
    first, second = budget.take(10), budget.take(10)
    assert first.lend_connection()
    assert not first.lend_connection()
    assert not second.lend_connection()
    assert budget.connections == 1
    assert first.grow(10)
    assert budget.connections == 2
    assert second.lend_connection()
    second.release()
    assert first.lend_connection()
    first.release()


def test_the_only_connection_is_not_lent(budget, monkeypatch):
    """``WDS_CONNECTIONS=1`` never means two."""
    monkeypatch.setenv("WDS_CONNECTIONS", "1")
    granted = budget.take(10, spare=1)
    assert not granted.lend_connection()
    granted.release()


class Silent:
    """A stream that gives nothing until it is interrupted."""

    def __init__(self):
        self.woken, self.closed = threading.Event(), False

    def read(self, _size=-1, /):
        """Wait."""
        self.woken.wait(60)
        raise OSError("interrupted")

    def interrupt(self):
        """Wake the reader."""
        self.woken.set()

    def close(self):
        """Note it."""
        self.closed = True


def test_a_waiting_thread_is_woken(budget):
    """Closing does not wait for a source that has gone silent."""
    silent = Silent()
    task = PrefetchTask(lambda: silent, 100, budget.take(100))
    while task.stream is None:
        time.sleep(0.001)
    task.close()
    assert silent.closed
    assert not task.running


def test_pieces_come_as_the_thread_reads_them(budget):
    """A reader whose turn has come waits for no more than the next piece."""
    gate = threading.Event()

    class Gated(io.BytesIO):
        def read(self, size=-1):
            if self.tell() >= prefetch_worker.PIECE_BYTES:
                gate.wait(60)
            return super().read(size)

    task = PrefetchTask(lambda: Gated(BODY), len(BODY), budget.take(len(BODY)))
    stream = taken(task)
    size = prefetch_worker.PIECE_BYTES
    assert stream.read(size) == BODY[:size]
    gate.set()
    assert stream.readall() == BODY[size:]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.parametrize("ended", [True, False])
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_after_a_fork(budget, ended):
    """A child goes on after the last byte that it knows of; a stream that cannot do that says so."""
    gate = threading.Event()

    class Rewinding(io.BytesIO):
        def read(self, size=-1):
            piece = super().read(size)
            if not ended and self.tell() > 700_000 and not gate.is_set():
                gate.wait(60)  # the bytes have left the stream, and no reader knows of them
            return piece

        def rewind(self, offset):
            gate.set()
            self.seek(offset)

    class Lost(Rewinding):
        rewind = None

    for kind in (Rewinding, Lost):
        gate.clear()
        task = PrefetchTask(lambda kind=kind: kind(BODY), 800_000, budget.take(800_000))  # type: ignore[misc]
        stream = taken_without_stopping(task)
        while (ended and task.running) or task.stream is None or task.stream.tell() < 700_000:
            time.sleep(0.001)
        time.sleep(0.01)
        first = stream.read(1000)
        child = os.fork()
        if child == 0:
            try:
                os._exit(0 if first + stream.readall() == BODY else 1)
            except SourceError:
                os._exit(2)
            except BaseException:  # noqa: BLE001  no test report is written twice
                os._exit(3)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == (0 if ended or kind is Rewinding else 2)
        gate.set()
        assert first + stream.readall() == BODY


def taken_without_stopping(task):
    """A stream over a prefetch task that goes on."""
    while task.stream is None:
        time.sleep(0.001)
    return PrefetchedStream(task.stream, ReadRate(), task=task)


def test_what_is_read_is_given_back_at_once(budget):
    """The budget counts what is held, not what was: taken pieces and plans that came to nothing make room."""
    task = filled(budget, lambda: io.BytesIO(BODY), 2 << 20)
    assert task.whole
    assert budget.size_bytes == len(BODY)  # of two megabytes
    stream = taken(task)
    first = stream.read(prefetch_worker.PIECE_BYTES)
    assert budget.size_bytes == len(BODY) - len(first)
    assert first + stream.readall() == BODY
    assert budget.size_bytes == 0


@pytest.mark.parametrize(("length", "read"), [(len(BODY), len(BODY)), (len(BODY) + 1, 300_000), (None, len(BODY))])
def test_large_streams_are_begun_and_others_read_whole(budget, monkeypatch, length, read):
    """Of a stream longer than the bound only a beginning is read: the rest has connections of its own later."""
    monkeypatch.setattr(prefetch_worker, "OF_LARGE_BYTES", 300_000)
    sized = type("Sized", (io.BytesIO,), {"length": length})
    task = filled(budget, lambda: sized(BODY), len(BODY))
    assert task.stream.tell() == read
    assert budget.size_bytes == read
    task.close()
    exact = PrefetchTask(lambda: sized(BODY), len(BODY), budget.take(len(BODY)), exact=True)
    assert taken_when_read(exact).readall() == BODY


def taken_when_read(task):
    """A stream over a prefetch task that has read to its bound."""
    while task.running:
        time.sleep(0.001)
    return taken(task)


def test_no_thread_to_read_further(budget, monkeypatch):
    """Where the system gives no further thread, what was read stays, and the reader reads on by itself."""
    task = filled(budget, lambda: io.BytesIO(BODY), 100_000)

    def start(_self):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", start)
    task.extend(200_000)
    assert budget.size_bytes == 100_000
    assert taken(task).readall() == BODY


def test_whoever_waits_hears_of_each_end(budget):
    """The thread tells when it has read to the bound, the first time and after it was extended."""
    ended_tasks = []
    task = PrefetchTask(lambda: io.BytesIO(BODY), 1000, budget.take(1000), lambda task: ended_tasks.append(task.whole))
    while task.running:
        time.sleep(0.001)
    task.extend(len(BODY) + 1)
    while task.running:
        time.sleep(0.001)
    assert ended_tasks == [False, True]
    task.close()


def test_many_silent_sources_are_left_in_the_time_of_one(budget, monkeypatch):
    """Closing waits for all threads together: eight servers that do not answer hold nobody eight times."""
    monkeypatch.setattr(prefetch_worker, "CLOSE_SECONDS", 0.05)
    gate, waits = threading.Event(), []
    tasks = [
        PrefetchTask(lambda: (gate.wait(60), io.BytesIO(BODY))[1], 100, budget.take(100, spare=4)) for _ in range(8)
    ]
    join = threading.Thread.join

    def noted(self, timeout=None):
        waits.append(timeout)
        join(self, timeout)

    monkeypatch.setattr(threading.Thread, "join", noted)
    prefetch_worker.close_tasks(tasks)
    assert len(waits) == 8
    assert max(waits) <= 0.05
    assert waits == sorted(waits, reverse=True)
    assert budget.size_bytes == 0
    gate.set()
    for task in tasks:
        join(task._thread)
        assert task.stream.closed


def test_a_finaliser_may_give_back_in_the_middle_of_counting(budget):
    """Garbage may be collected anywhere: what it gives back while its own thread counts does not wait for itself."""
    grant = budget.take(100)
    done = threading.Event()

    def counting():
        with budget.lock:
            grant.release()
        done.set()

    threading.Thread(target=counting, daemon=True).start()
    assert done.wait(30)


def test_a_budget_is_kept():
    """Bytes and connections are granted up to the settings, and given back once."""
    budget = PrefetchBudget()
    grants = [budget.take(1 << 20) for _ in range(6)]
    assert [grant is not None for grant in grants] == [True] * 4 + [False] * 2  # with the reader's own, five
    assert budget.take(1 << 20, spare=1) is not None
    grants[0].release_connection()
    grants[0].release_connection()
    assert budget.connections == 4
    assert not grants[0].grow(1 << 20)  # it would need its connection again
    grants[1].release_connection()
    assert grants[0].grow(1 << 20)
    assert not grants[0].grow(1 << 40)
    grants[0].release()
    grants[0].release()
    assert (budget.size_bytes, budget.connections) == (4 << 20, 3)
    assert budget.take(1 << 40) is None


def test_pace():
    """A reader starves that mostly waits, for a source that is slow."""
    pace = ReadRate()
    pace.note(0.0, 0.1, 1.0, 10_000_000)
    assert pace.telling
    assert pace.starving
    pace.note(1.0, 3.0, 3.1, 10_000_000)
    assert not pace.starving
    pace.begin()
    pace.note(0.0, 0.0, 1.0, 1_000_000_000)
    assert not pace.starving


def test_what_was_refused_ahead_is_opened_anew(budget, tmp_path):
    """Its share of the budget is free from then on, and a refusal that lasts is raised in its turn."""

    def refuse():
        raise SourceError("not now")

    (tmp_path / "x").write_bytes(b"body")
    ahead = ShardPrefetcher(iter(()), resolve_url, 1 << 20)
    task = filled(budget, refuse)
    stream = ahead.open(resolve_url(str(tmp_path / "x")), task, look=False)
    assert (budget.size_bytes, budget.connections) == (0, 0)
    assert stream.read() == b"body"
    stream.close()
    with pytest.raises(FileNotFoundError):
        ahead.open(resolve_url(str(tmp_path / "none")), filled(budget, refuse), look=False)
