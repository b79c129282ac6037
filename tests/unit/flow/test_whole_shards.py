"""Stages that join neighbouring samples get them together, or are refused while the pipeline is built."""

import json
from itertools import islice

import pytest

import webdataset as wds
from webdataset.core.distributed import WorkerContext
from webdataset.core.errors import NoSamples, UsageError
from webdataset.loading.read_plan import plan_reading
from webdataset.stages.mix import Concat, EvenMix


@pytest.fixture
def url(tmp_path):
    """A shard of six documents, each with two pictures."""
    path = tmp_path / "0.tar"
    with wds.TarWriter(str(path)) as sink:
        for number in range(6):
            sink.write({"__key__": f"{number}", "json": json.dumps({"image": ["0", "1"]})})
            sink.write({"__key__": f"{number}-0", "jpg": b"0"})
            sink.write({"__key__": f"{number}-1", "jpg": b"1"})
    return str(path)


def read(url, **options):
    """Return a dataset of a shard."""
    return wds.WebDataset(url, shardshuffle=False, empty_check=False, **options)


@pytest.mark.parametrize(
    ("stage", "named"),
    [
        (wds.shuffle(10), "shuffle"),
        (wds.detshuffle(10), "shuffle"),
        (wds.shuffle(10, max_bytes=100), "shuffle"),
        (wds.block_shuffle(4), "block_shuffle"),
        (wds.compose(wds.map(dict), wds.shuffle(10)), "shuffle"),
    ],
)
def test_a_shuffle_before_is_refused(url, stage, named):
    """Whether the stage that joins is a method, an argument, inside a composition, or added to an elastic dataset."""
    shuffled = read(url).compose(stage)
    for build in (
        lambda: shuffled.sibling_fields(),
        lambda: shuffled.interleaved(),
        lambda: shuffled.compose(wds.compose(wds.sibling_fields())),
        lambda: shuffled.elastic().sibling_fields(),
        lambda: wds.DataPipeline(*shuffled.pipeline, wds.sibling_fields()),
        lambda: wds.DataPipeline(wds.DataPipeline(*shuffled.pipeline), wds.sibling_fields()),
        lambda: wds.DataPipeline(Concat([shuffled, read(url)]), wds.sibling_fields()),
    ):
        with pytest.raises(UsageError, match=rf"{named}.* put it after the stage that joins them"):
            build()


@pytest.mark.parametrize("kind", [wds.RandomMix, wds.RoundRobin, EvenMix])
def test_a_mix_before_is_refused(url, kind):
    """Its datasets alternate; a mix of one dataset does not."""
    with pytest.raises(UsageError, match="put it after the stage that joins them"):
        wds.DataPipeline(kind([read(url), read(url)]), wds.sibling_fields())
    assert len(list(wds.DataPipeline(kind([read(url)]), wds.sibling_fields()))) == 6
    inside = wds.DataPipeline(kind([read(url).sibling_fields(), read(url)]))
    assert len(list(inside)) > 6


def test_several_open_shards_are_refused(url):
    """Their samples alternate."""
    with pytest.raises(UsageError, match="2 shards open"):
        read([url, url], open_shards=2).sibling_fields()
    assert len(list(read([url], open_shards=1).sibling_fields())) == 6


def test_shares_of_samples_are_refused(url):
    """split_by_sample and equal epochs cut shards, whichever is called first."""
    with pytest.raises(UsageError, match="split_by_node"):
        read(url, nodesplitter=wds.split_by_sample).sibling_fields()
    counts = {url: 18}
    with pytest.raises(UsageError, match="cuts shards"):
        read(url).equal_epochs("drop", counts=counts).sibling_fields()
    with pytest.raises(UsageError, match="cuts shards"):
        read(url).sibling_fields().equal_epochs("pad", counts=counts, steps=3)
    with pytest.raises(UsageError, match="split_by_node"):
        read(url, nodesplitter=wds.split_by_node).sibling_fields().equal_epochs("resample", steps=3)


def test_what_leaves_documents_whole_is_allowed(url):
    """A shuffle of shards or of documents, one that holds nothing, datasets in turn, and documents of one sample."""
    assert len(list(wds.WebDataset([url], shardshuffle=5, seed=1).sibling_fields().shuffle(5))) == 6
    assert len(list(read(url).compose(wds.shuffle(1)).sibling_fields())) == 6
    concat = wds.DataPipeline(Concat([read(url), read(url)]), wds.sibling_fields())
    assert len(list(concat)) == 12
    for layout in ("inline", "fields", "pages"):
        read(url).shuffle(10).interleaved(layout)


def test_datasets_in_a_dataset_are_read_in_whole_shards(url):
    """One after the other, as a source, or each with its own stage that joins: streams share whole shards out."""
    whole = sorted(len(sample) for sample in read(url).sibling_fields())
    inner = wds.DataPipeline(*read(url).pipeline)
    for source in (Concat([read(url), inner]), wds.RoundRobin([read([url, url])])):
        pipeline = wds.DataPipeline(source, wds.sibling_fields()).elastic(4)
        assert sorted(len(sample) for sample in pipeline) == whole * 2
    for pipeline in (
        wds.DataPipeline(inner, wds.sibling_fields()).elastic(4),
        wds.DataPipeline(wds.RoundRobin([read(url).sibling_fields()])).elastic(4),
    ):
        assert sorted(len(sample) for sample in pipeline) == whole


def test_streams_of_samples_are_refused(url):
    """Samples that come from no shard are shared out one by one; urls that a user's stage reads are not."""
    samples = [{"__key__": "7", "json": b'{"image": ["0"]}'}, {"__key__": "7-0", "jpg": b""}]
    for source in (lambda: iter(samples), Concat([samples])):
        with pytest.raises(UsageError, match="leave elastic"):
            list(wds.DataPipeline(source, wds.sibling_fields()).elastic(2))

    def read_each(urls):
        for shard in urls:
            yield from read(shard["url"])

    pipeline = wds.DataPipeline(wds.SimpleShardList([url]), read_each, wds.sibling_fields()).elastic(2)
    assert len(list(pipeline)) == 6


def test_a_users_stage_may_need_whole_shards(url):
    """A generator function with the attribute is given whole shards; without it, each stream has a share of them."""

    def join_in_threes(samples):
        keys = []
        for sample in samples:
            keys.append(sample["__key__"])
            if len(keys) == 3:
                yield tuple(keys)
                keys = []

    def read_elastic():
        return sorted(read(url).compose(join_in_threes).elastic(4))

    whole = [(f"{number}", f"{number}-0", f"{number}-1") for number in range(6)]
    assert read_elastic() != whole
    join_in_threes.needs_whole_shards = True
    assert read_elastic() == whole
    with pytest.raises(UsageError, match="join_in_threes.* joins samples"):
        read(url).shuffle(9).compose(join_in_threes)


def test_a_specification_with_fewer_shards_than_workers_is_refused(url):
    """Its workers would share samples out; its streams share whole shards."""
    spec = {"version": 1, "mix": "concat", "sources": [{"name": "a", "shards": [url]}]}
    dataset = wds.WebDataset(spec, shardshuffle=False)
    joined = dataset.sibling_fields()
    whole = sorted(len(sample) for sample in joined)
    with pytest.raises(UsageError, match="elastic"), wds.Loader(joined, None, workers=3, mode="threads") as loader:
        list(loader)
    with wds.Loader(joined, None, workers=1, mode="threads") as loader:
        assert sorted(len(sample) for sample in loader) == whole
    assert sorted(len(sample) for sample in joined.elastic(5)) == whole


def test_a_plan_shows_whole_shards(url):
    """The plan of an elastic dataset tells what its streams read."""
    urls = [url, url, url]
    shares = [
        shard
        for rank in range(2)
        for shard in plan_reading(read(urls).sibling_fields().elastic(8), ranks=2).workers[rank].shards
    ]
    assert [(shard.stream, shard.share) for shard in sorted(shares, key=lambda shard: shard.stream)] == [
        (0, None), (1, None), (2, None),
    ]  # fmt: skip
    place = WorkerContext(1, 2, 0, 1)
    assert len(list(read(urls).sibling_fields().elastic(8).elastic_run(place))) == 6


LENGTHS = (5, 0, 1, 7)  # documents in each shard


@pytest.fixture
def unequal(tmp_path):
    """Four shards, one of them empty, of documents with a picture."""
    urls = [str(tmp_path / f"unequal-{number}.tar") for number in range(len(LENGTHS))]
    for number, (url, length) in enumerate(zip(urls, LENGTHS, strict=True)):
        with wds.TarWriter(url) as sink:
            for index in range(length):
                sink.write({"__key__": f"{number}{index}", "json": json.dumps({"image": ["0"]})})
                sink.write({"__key__": f"{number}{index}-0", "jpg": b"0"})
    return urls


BOUNDS = {
    "all": (lambda joined: joined, 13),
    "repeat": (lambda joined: joined.repeat(2), 26),
    "shuffle": (lambda joined: joined.shuffle(6), 13),
    "slice": (lambda joined: joined.slice(100), 13),
    "part": (lambda joined: joined.shuffle(6).slice(8), None),  # positions that no stream has stay empty
}


@pytest.mark.parametrize("bound", BOUNDS)
@pytest.mark.parametrize("streams", [2, 5, 12])
def test_fewer_shards_than_streams(unequal, streams, bound):
    """Streams without a shard give nothing: each document comes whole, on all ranks together, and after a resume."""
    limit, count = BOUNDS[bound]

    def make():
        return limit(read(unequal, seed=1).sibling_fields()).elastic(streams)

    def list_positions(rank, ranks, state=None, most=None):
        run = make().elastic_run(WorkerContext(rank, ranks, 0, 1), state)
        pairs = [(position, sorted(sample)) for position, sample in islice(run.positions(), most)]
        keys = [pair[0] for pair in pairs]
        state = json.loads(json.dumps(run.state_dict()))
        run.close()
        return pairs, keys, state

    whole, positions, _ = list_positions(0, 1)
    assert len(whole) == (count or len(whole))
    assert all("json" in fields and any("jpg" in name for name in fields) for _, fields in whole)
    if bound == "part":
        assert max(positions) < 8
    assert whole == sorted(pair for rank in range(2) for pair in list_positions(rank, 2)[0])
    for cut in (1, len(whole) // 2, len(whole) - 1):
        begun, _, state = list_positions(0, 1, most=cut)
        assert begun + list_positions(0, 1, state)[0] == whole


@pytest.mark.parametrize("streams", [1, 2])
def test_epochs_of_whole_shards(unequal, streams):
    """with_epoch(n) repeats the shards of each stream; all documents are whole."""
    urls = [unequal[0], unequal[3]]
    made = list(read(urls, seed=1).sibling_fields().with_epoch(30).elastic(streams))
    assert len(made) == 30
    assert all(any("jpg" in name for name in sample) for sample in made)


def test_an_epoch_for_streams_without_shards_says_so(unequal):
    """A stream that has no shard cannot give its part of with_epoch(n): the error names the reason and the way out."""
    made = read(unequal, seed=1).sibling_fields().with_epoch(30).elastic(5)
    with pytest.raises(NoSamples, match=r"stream \d of 5 .* whole shards.* elastic\(streams=n\)"):
        list(made)
