"""WebDataset(open_shards=k): a sample of each open shard in turn."""

import json

import pytest

import webdataset as wds
from webdataset.core.distributed import StreamNumber
from webdataset.core.errors import StateMismatch, UsageError
from webdataset.stages.base import Run
from webdataset.stages.open_shards import OpenShards
from webdataset.testing.stages import check_resume

SIZES = (4, 7, 1, 3, 6)


@pytest.fixture(scope="module")
def urls(tmp_path_factory):
    """Five shards of unequal size."""
    folder = tmp_path_factory.mktemp("open")
    for number, size in enumerate(SIZES):
        with wds.TarWriter(str(folder / f"s-{number}.tar")) as sink:
            for index in range(size):
                sink.write({"__key__": f"{number}{index}", "txt": "x" * 100})
    return str(folder / "s-{0..4}.tar")


def key(sample):
    """Its key."""
    return sample["__key__"]


def dataset(urls, count, **options):
    """Keys, with so many shards open."""
    return wds.WebDataset(urls, shardshuffle=False, open_shards=count, **options).map(key)


def test_shards_take_turns(urls):
    """One sample of each; a shard that has ended makes room for the next one in its place."""
    expected = "00 10 20 01 11 30 02 12 31 03 13 32 40 14 41 15 42 16 43 44 45".split()
    assert list(dataset(urls, 3)) == expected


def test_one_open_shard_is_the_usual_order(urls):
    """And costs nothing: the stage is not there."""
    plain = wds.WebDataset(urls, shardshuffle=False)
    assert list(dataset(urls, 1)) == list(plain.map(key))
    assert not any(isinstance(stage, OpenShards) for stage in wds.WebDataset(urls, open_shards=1).pipeline)


@pytest.mark.parametrize("count", [2, 3, 5, 50])
def test_every_sample_comes_once(urls, count):
    """However many shards are open."""
    assert sorted(dataset(urls, count)) == sorted(dataset(urls, 1))


@pytest.mark.parametrize("count", [1, 2, 3, 50])
def test_it_resumes_exactly(urls, count):
    """Behind every output, alone and with its samples in a shuffle's buffer."""
    reader = lambda: OpenShards(wds.tarfile_to_samples(), count)
    first = lambda: [wds.SimpleShardList(urls), reader()]
    check_resume(lambda: [*first(), wds.map(key)])
    check_resume(lambda: [*first(), wds.shuffle(6, initial=3), wds.map(key), wds.listed(2)])


def test_no_more_shards_are_open_than_asked_for(urls):
    """Neither at the start nor when a shard ends; and a run that is broken off closes all of them."""
    opened = []

    def opener(urls, **_):
        for shard in urls:
            stream = open(shard["url"], "rb")
            opened.append(stream)
            yield {**shard, "stream": stream}

    stages = [wds.SimpleShardList(urls), OpenShards(wds.tarfile_to_samples(), 2)]
    stages[1].reader.open_shards = lambda shards: opener(shards)
    run = wds.DataPipeline(*stages).start()
    for given in range(1, 12):
        next(run)
        assert sum(not stream.closed for stream in opened) <= 2
        assert len(opened) <= 2 + given
    run.close()
    assert all(stream.closed for stream in opened)


def bad(folder, urls):
    """The shards, the second of them cut in its middle."""
    names = wds.expand_urls(urls)
    broken = folder / "broken.tar"
    with open(names[1], "rb") as stream:
        broken.write_bytes(stream.read()[:4000])
    return [names[0], str(broken), *names[2:]]


def test_a_handler_that_goes_on_leaves_one_shard(tmp_path, urls):
    """The other open shards are read to their ends."""
    errors = []
    found = list(dataset(bad(tmp_path, urls), 3, handler=lambda error: errors.append(error) or True))
    assert len(errors) == 1
    assert sorted(k for k in found if k[0] != "1") == sorted(k for k in dataset(urls, 1) if k[0] != "1")


def test_a_handler_that_stops_stops_all(tmp_path, urls):
    """As with one open shard, the pass ends."""
    errors = []
    found = list(dataset(bad(tmp_path, urls), 3, handler=lambda error: errors.append(error) and False))
    assert len(errors) == 1
    assert 0 < len(found) < sum(SIZES) - 7


def test_another_list_of_shards_is_refused(urls):
    """A state whose open shards are not there, or are others."""
    run = dataset(urls, 3).start()
    for _ in range(6):
        next(run)
    state = json.loads(json.dumps(run.snapshot()))
    names = wds.expand_urls(urls)
    with pytest.raises(StateMismatch, match="longer list"):
        list(dataset(names[:2], 3).start(state))
    with pytest.raises(StateMismatch, match="another list"):
        list(dataset([names[0], names[2], names[1], *names[3:]], 3).start(state))


def test_the_state_is_small(urls):
    """A few numbers for each open shard."""
    run = dataset(urls, 3).start()
    next(run)
    assert len(json.dumps(run.snapshot()["flow"]["memories"][0])) < 200


@pytest.mark.parametrize("count", [0, -1])
def test_fewer_than_one_is_refused(urls, count):
    """At least one shard is read at a time."""
    with pytest.raises(UsageError, match="open_shards"):
        wds.WebDataset(urls, open_shards=count)


def test_streams_share_the_open_shards():
    """Virtual streams take turns already: each keeps its part of them open."""
    stage = OpenShards(wds.tarfile_to_samples(), 48)
    assert stage.for_stream(StreamNumber(0, 24)).count == 2
    assert OpenShards(wds.tarfile_to_samples(), 16).for_stream(StreamNumber(0, 24)) == wds.tarfile_to_samples()


def test_elastic_datasets_read_everything_once(urls):
    """With several shards open in each stream, too."""
    whole = dataset(urls, 4).elastic(streams=2)
    assert sorted(whole) == sorted(dataset(urls, 1))


def test_records_can_be_read_side_by_side(tmp_path):
    """Any reader of shards will do."""
    pytest.importorskip("msgpack")
    for number in range(3):
        with wds.RecordWriter(str(tmp_path / f"r-{number}.msgpack")) as sink:
            for index in range(3):
                sink.write({"__key__": f"{number}{index}"})
    from webdataset.samples.records import RecordReading
    from webdataset.stages.record_readers import ReadRecords, msgpack_items

    reading = RecordReading(msgpack_items)
    names = [str(tmp_path / f"r-{number}.msgpack") for number in range(3)]
    stage = OpenShards(ReadRecords(reading), 3)
    found = [item["__key__"] for item in stage.flow(iter([{"url": name} for name in names]), stage.begin(Run()))]
    assert found == ["00", "10", "20", "01", "11", "21", "02", "12", "22"]


def test_no_handler_is_the_default(tmp_path):
    """handler=None raises what a reader fails with, in streams, in open shards of records; it has a repr."""
    path = tmp_path / "0.tar"
    with wds.TarWriter(str(path)) as sink:
        for number in range(4):
            sink.write({"__key__": f"{number}", "txt": "x" * 700})
    urls = [str(path), str(tmp_path / "none.tar")]
    records = wds.DataPipeline(wds.SimpleShardList([str(path)]), wds.msgpacks_to_samples(handler=None))
    for dataset, error in (
        (wds.WebDataset(urls, shardshuffle=False, handler=None), FileNotFoundError),
        (wds.WebDataset(urls, shardshuffle=False, handler=None).elastic(3), FileNotFoundError),
        (wds.WebDataset(urls, shardshuffle=False, handler=None, open_shards=2), FileNotFoundError),
        (records, ValueError),
        (records.elastic(2), ValueError),
    ):
        assert repr(dataset)
        assert dataset.explain()
        with pytest.raises(error):
            list(dataset)
