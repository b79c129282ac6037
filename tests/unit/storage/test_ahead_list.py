"""A list of shards that is looked at ahead: its order, its failures, its end, and forks."""

import os
import signal
import threading

import pytest

from webdataset.storage.open_url import resolve_url
from webdataset.storage.prefetch import Lookahead


class Opened:
    """What is begun for a shard here: a note of whether it was closed."""

    def __init__(self, shard):
        self.shard, self.closed = shard, False

    def close(self):
        """Note it."""
        self.closed = True


class Two(Lookahead):
    """A list of which two are begun ahead."""

    began = None

    def look(self):
        """Begin what comes next."""
        self._alone(self._look)

    def _look(self):
        waiting = self._waiting
        for number in range(2):
            if number == len(waiting):
                self._look_further()
            if number < len(waiting) and waiting[number].begun is None and waiting[number].remote:
                begun = Opened(waiting[number].shard)
                if self.began is not None:
                    self.began()
                self._note(waiting, number, begun)

    def close(self):
        """Close what was begun; return it."""
        left = self._left()
        for begun in left:
            begun.close()
        return left


def places(count=4):
    """Shards that lie on another machine."""
    return [{"url": f"http://localhost/{number}.tar"} for number in range(count)]


def rest(coming):
    """Return the shards that are still to come, and what was begun for each."""
    return [(place.shard, place.begun and place.begun.shard) for place in iter(coming.next, None)]


def test_each_comes_once_in_order():
    """With what was begun for it, if anything; at the end None, however often one asks."""
    shards = places()
    coming = Two(iter(shards), resolve_url)
    coming.look()
    coming.look()
    assert rest(coming) == list(zip(shards, [*shards[:2], None, None], strict=True))
    coming.look()
    assert coming.next() is None


def test_what_is_near_is_not_begun():
    """Local files, open objects, what is no shard, and urls whose rewriting cannot be read."""
    shards = ["nonsense", {}, {"url": "/x.tar"}, {"url": object()}]
    coming = Two(iter(shards), resolve_url)
    coming.look()
    assert rest(coming) == [(shard, None) for shard in shards]


def test_a_setting_that_cannot_be_read(monkeypatch):
    """It is said when the shard's turn comes, not by who looks ahead."""
    monkeypatch.setenv("WDS_REWRITE", "=")
    coming = Two(iter(places(1)), resolve_url)
    coming.look()
    assert rest(coming) == [(places(1)[0], None)]


@pytest.mark.parametrize("looks", [0, 1])
def test_a_failure_waits_for_its_turn(looks):
    """What the list raises comes behind what it gave; then there is nothing more."""

    def listed():
        yield places()[0]
        raise LookupError("no more names")

    coming = Two(listed(), resolve_url)
    for _ in range(looks):
        coming.look()
    assert coming.next().shard == places()[0]
    with pytest.raises(LookupError, match="no more names"):
        coming.next()
    coming.look()
    assert coming.next() is None


def test_a_list_that_looks_ahead_itself():
    """A list that reads shards while it is asked does not wait for itself, nor is it asked inside itself."""

    def listed():
        for place in places():
            coming.look()
            yield place

    coming = Two(listed(), resolve_url)
    assert [shard for shard, _ in rest(coming)] == places()


def test_a_closed_list_is_left_alone():
    """What was begun is closed; nobody asks it, or begins anything, for those who still read a stream of it."""
    shards = iter(places(9))
    coming = Two(shards, resolve_url)
    coming.look()
    left = coming.close()
    assert [begun.shard for begun in left] == places(2)
    assert all(begun.closed for begun in left)
    coming.look()
    assert coming.close() == []
    assert list(shards) == places(9)[2:]


def test_a_finaliser_in_between():
    """Where a list is closed while something of it is begun, that is closed too."""
    coming = Two(iter(places()), resolve_url)
    begun = []
    coming.began = lambda: begun.extend(coming.close())  # type: ignore[assignment]
    note, noted = coming._note, []
    coming._note = lambda waiting, number, one: (noted.append(one), note(waiting, number, one))  # type: ignore[assignment]
    coming.look()
    assert noted
    assert all(one.closed for one in noted)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_child_begins_anew():
    """Neither a lock that a thread held at the fork, nor what the parent has begun, is a child's."""
    coming = Two(iter(places()), resolve_url)
    coming.look()
    held, done = threading.Event(), threading.Event()

    def look():
        held.set()
        done.wait(60)

    thread = threading.Thread(target=coming._alone, args=(look,))
    thread.start()
    held.wait(60)
    child = os.fork()
    if child == 0:
        signal.alarm(30)  # rather than waiting for ever
        try:
            alone = rest(coming) == [(place, None) for place in places()]
            os._exit(0 if alone else 1)
        except BaseException:  # noqa: BLE001  no test report is written twice
            os._exit(3)
    done.set()
    thread.join()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert rest(coming) == list(zip(places(), [*places(2), None, None], strict=True))
