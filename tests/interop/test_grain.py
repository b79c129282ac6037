"""Grain: an ``IndexedDataset`` is its random-access source; positions and worker processes lose nothing."""

import json

import pytest

grain = pytest.importorskip("grain")

import webdataset as wds  # noqa: E402

COUNT = 23  # odd, and in no whole number of batches or shards


def number_of(sample):
    """The number and the payload of a sample."""
    return int(sample["__key__"]), bytes(sample["bin"])


def collate(samples):
    """Samples as they are."""
    return list(samples)


@pytest.fixture
def source(tmp_path):
    """A dataset of several shards."""
    with wds.ShardWriter(str(tmp_path / "x-%02d.tar"), maxcount=5, verbose=0) as sink:
        for number in range(COUNT):
            sink.write({"__key__": f"{number:04}", "bin": b"%d" % number * (number + 1)})
    with wds.IndexedDataset([str(path) for path in sorted(tmp_path.glob("*.tar"))]) as dataset:
        yield dataset


def pipeline(source):
    """Shuffle, map, batch."""
    return grain.MapDataset.source(source).shuffle(seed=7).map(number_of).batch(4, batch_fn=collate)


def wanted():
    """All samples, by number."""
    return [(number, b"%d" % number * (number + 1)) for number in range(COUNT)]


def flat(batches):
    """The samples of batches."""
    return [sample for batch in batches for sample in batch]


def test_it_reads_every_sample_once(source):
    """Shuffled, mapped and batched: each once, with its bytes, in another order, and the same again."""
    found = flat(pipeline(source))
    assert sorted(found) == wanted()
    assert found != wanted()
    assert flat(pipeline(source)) == found


def test_a_saved_position_is_resumed_exactly(source):
    """After each batch: what a new iterator gives from the state, which passes through JSON, is the rest."""
    whole = list(pipeline(source).to_iter_dataset())
    assert sorted(flat(whole)) == wanted()
    for taken in range(len(whole) + 1):
        first = iter(pipeline(source).to_iter_dataset())
        assert [next(first) for _ in range(taken)] == whole[:taken]
        state = json.loads(json.dumps(first.get_state()))
        second = iter(pipeline(source).to_iter_dataset())
        second.set_state(state)
        assert list(second) == whole[taken:]


def test_worker_processes_read_every_sample_once(source):
    """The dataset goes to two processes; the order is that of one."""
    alone = list(pipeline(source).to_iter_dataset())
    options = grain.MultiprocessingOptions(num_workers=2, per_worker_buffer_size=1)
    assert list(pipeline(source).to_iter_dataset().mp_prefetch(options)) == alone
    assert sorted(flat(alone)) == wanted()
