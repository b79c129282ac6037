"""One walk over a list of shards for all streams of a worker: what is drawn, kept and let go."""

import gc
import itertools
import weakref

import pytest

import webdataset as wds
from webdataset.core.distributed import StreamNumber, WorkerContext
from webdataset.shards.shard_walk import HISTORY, SHARD_BYTES, ShardWalks, WalkName
from webdataset.shards.split import StreamShare


class Listing:
    """A list of shards that counts how often it is opened, closed, and how many shards were drawn."""

    def __init__(self, count):
        self.count = count
        self.opened = self.closed = self.drawn = 0

    def open(self):
        """Begin to draw."""
        self.opened += 1
        return self.draw(), self.close

    def draw(self):
        """Yield shards."""
        for number in range(self.count):
            self.drawn += 1
            yield {"url": str(number)}

    def close(self):
        """Count the end."""
        self.closed += 1


def walks_of(count, passed=0, most=1 << 16):
    """Return the walks of a worker that has all of some streams."""
    return ShardWalks(dict.fromkeys(range(count), (0, passed)), most * SHARD_BYTES)


def name(epoch=0, stages=("list",)):
    """Name a list."""
    return WalkName(stages, 1, 1, epoch)


def take(walks, listing, number, among, passed=0, epoch=0):
    """Return the iterator over the shards of a stream."""
    stream = StreamNumber(number, among)

    def alone():
        return StreamShare(stream)(listing.draw())

    walk = walks.join(name(epoch), stream, listing.open)
    return alone() if walk is None else walk.shards(stream, passed, alone)


@pytest.mark.parametrize("count", [0, 1, 3, 4, 5, 8, 11])
@pytest.mark.parametrize("turns", [True, False])
def test_streams_get_their_shares_and_shards_are_drawn_once(count, turns):
    """Each stream gets what its share alone gives, in turns or one after the other; the list is drawn once."""
    listing, walks = Listing(count), walks_of(4)
    parts = [take(walks, listing, number, 4) for number in range(4)]
    found = list(zip(*itertools.zip_longest(*parts), strict=True)) if turns else list(map(list, parts))
    found = [[shard for shard in part if shard is not None] for part in found] or [[]] * 4
    assert found == [list(StreamShare(StreamNumber(number, 4))(Listing(count).draw())) for number in range(4)]
    assert (listing.opened, listing.closed > 0, listing.drawn) == (1, True, count)


def test_what_waits_is_bounded_and_a_stream_far_behind_goes_alone():
    """No more than the limit is kept while one stream does not come; it gets its shards all the same."""
    listing, walks = Listing(1000), walks_of(4, most=40)
    for number in range(3):
        part = take(walks, listing, number, 4)
        assert len(list(itertools.islice(part, 240))) == 240
        walk = walks.join(name(), StreamNumber(3, 4), listing.open)
        assert len(walk) <= 40
    before = listing.drawn
    assert [shard["url"] for shard in take(walks, listing, 3, 4)] == [str(number) for number in range(3, 1000, 4)]
    assert listing.drawn == before + 1000
    assert listing.opened == 1


def test_nothing_waits_for_streams_that_have_ended():
    """Rounds that all other streams have taken are let go, but for those kept for restored buffers."""
    listing, walks = Listing(60_000), walks_of(4)
    walks.leave(2)
    parts = [take(walks, listing, number, 4) for number in (0, 1, 3)]
    for _ in zip(*parts, strict=True):
        walk = walks.join(name(), StreamNumber(0, 4), listing.open)
        assert walk is None or len(walk) <= HISTORY + 8


def test_shards_before_all_states_are_passed_and_looked_up():
    """After a resume the shards before it are not kept, but for the last ones, which are found again."""
    listing, walks = Listing(40_000), walks_of(4, passed=9_000)
    stream = StreamNumber(1, 4)
    walk = walks.join(name(), stream, listing.open)

    def alone():
        raise AssertionError("it is kept")

    looked_up = walk.look_up(stream, 8_990, alone)
    assert next(itertools.islice(looked_up, 8_990, None))["url"] == str(8_990 * 4 + 1)
    part = walk.shards(stream, 9_000, alone)
    assert next(itertools.islice(part, 9_000, None))["url"] == "36001"
    assert len(walk) <= HISTORY + 8
    assert listing.drawn == 36_004


def test_a_list_that_is_shorter_than_the_state_says():
    """A stream that is to pass more shards than there are gets none."""
    listing, walks = Listing(100), walks_of(4, passed=9_000)
    assert list(itertools.islice(take(walks, listing, 1, 4, passed=9_000), 9_000, None)) == []


def test_lists_of_other_stages_seeds_and_epochs_are_other_walks():
    """A walk is shared only where stages, seed and epoch are the same; those of long ago are closed."""
    walks, first = walks_of(2), Listing(9)
    one = object()
    stream = StreamNumber(0, 2)
    walk = walks.join(name(stages=(one,)), stream, first.open)
    assert walks.join(name(stages=(one,)), StreamNumber(1, 2), Listing(9).open) is walk
    assert walks.join(name(stages=(object(),)), stream, Listing(9).open) is not walk
    assert walks.join(WalkName((one,), 2, 1, 0), stream, Listing(9).open) is not walk
    assert walks.join(WalkName((one,), 1, 2, 0), stream, Listing(9).open) is not walk
    part = walk.shards(stream, 0, lambda: StreamShare(stream)(Listing(9).draw()))
    taken = [next(part)["url"]]
    walks.join(name(epoch=2, stages=(one,)), stream, Listing(9).open)
    assert first.closed
    assert taken + [shard["url"] for shard in part] == ["0", "2", "4", "6", "8"]


@pytest.mark.parametrize("streams", [1, 4])
def test_one_stream_or_no_room_is_no_walk(streams):
    """A worker with one stream, or with a limit of no bytes, has no walks."""
    walks = walks_of(streams, most=0 if streams > 1 else 100)
    assert walks.join(name(), StreamNumber(0, 4), Listing(4).open) is None


class CountedList(wds.SimpleShardList):
    """A list that counts its passes."""

    passes = 0

    def draw_shards(self, run):
        """Count a pass."""
        type(self).passes += 1
        return super().draw_shards(run)


@pytest.fixture
def counted(tmp_path, monkeypatch):
    """A dataset over forty shards, and the class that counts the passes over its list."""
    for number in range(40):
        with wds.TarWriter(str(tmp_path / f"{number:02d}.tar")) as sink:
            for index in range(3):
                sink.write({"__key__": f"{number}-{index}", "cls": index})
    monkeypatch.setattr(CountedList, "passes", 0)
    source = CountedList([str(tmp_path / f"{number:02d}.tar") for number in range(40)])
    return wds.DataPipeline(source, wds.shuffle(10), wds.tarfile_to_samples(), wds.shuffle(20)), CountedList


def test_a_worker_goes_through_the_list_once_an_epoch_and_once_a_resume(counted):
    """Eight streams, each with a buffer to be filled again: one pass from the start, and one after a resume."""
    dataset, kind = counted
    dataset.seed = 3
    run = iter(dataset.elastic(8))
    list(itertools.islice(run, 50))
    assert kind.passes == 1
    state = run.state_dict()
    rest = [sample["__key__"] for sample in run]
    assert kind.passes == 1
    kind.passes = 0
    again = dataset.elastic(8).elastic_run(WorkerContext(0, 1, 0, 1), state)
    assert [sample["__key__"] for sample in again] == rest
    assert kind.passes == 1


def test_a_run_that_is_dropped_closes_its_walk(counted):
    """Nothing of a walk is left once its run is dropped, with the collector off."""
    dataset, _ = counted
    gc.disable()
    try:
        run = iter(dataset.elastic(8))
        next(run)
        walk = weakref.ref(run._started.walks._walks[0])
        assert walk() is not None
        del run
        assert walk() is None
    finally:
        gc.enable()
