"""explain(): a pipeline in words."""

import functools
import inspect

import pytest

import webdataset as wds
from webdataset.flow.explain import format_function, format_urls, format_value, keeps_state
from webdataset.stages.base import Stage


def augment(sample, generator):
    """A user's function."""
    return sample


def doubled(source):
    """A user's stage: each sample twice."""
    for sample in source:
        yield sample
        yield sample


def line_of(called):
    """Where a function is written."""
    return f"{called.__name__} ({__file__}:{inspect.getsourcelines(called)[1]})"


def dataset(**options):
    """A seeded dataset; its shards do not exist."""
    return wds.WebDataset("/data/s-{0..4}.tar", shardshuffle=5, seed=3, nodesplitter=wds.split_by_node, **options)


TOLD = """\
WebDataset: seed 3; next epoch 0; one pass
  0 SimpleShardList: 5 shards: /data/s-0.tar … /data/s-4.tar
  1 split_by_node
      shares out: what stands before it draws alike in all ranks and workers
  2 split_by_worker
      shares out: what stands before it draws alike in all ranks and workers
  3 shuffle(bufsize=5, initial=5)
      random order within the buffer; holds 5 items; resumes exactly.
      order: from the seed and epoch of the run
  4 tarfile_samples(handler=reraise_exception), 4 shards open at once
      a sample of each open shard in turn; holds one chunk (of 512 or 768 KB) of each; resumes at a byte offset in each.
  5 check_samples()
      in order; remembers one bit; resumes exactly.
  6 shuffle(bufsize=1000, initial=100, max_bytes=5000000)
      random order within the buffer; holds 1,000 samples and 5,000,000 bytes, and one sample more; resumes exactly.
      order: from the seed and epoch of the run
  7 map(f=AUGMENT, kind='python', handler=reraise_exception, salt=0)
      in order; holds nothing; resumes exactly.
  8 to_tuple('jpg;png', 'cls')
      in order; holds nothing; resumes exactly.
  9 batched(batchsize=32, collation_fn=default_collation_fn, partial=True)
      in order; holds one batch while it is made; resumes exactly.
In all, up to 1,032 samples wait.
Stages 0 to 3 stand before the reader: a restored run draws the shards again, reading nothing.
Resumed exactly, at byte offsets."""


def whole():
    """A pipeline with most things in it."""
    flow = dataset(open_shards=4).shuffle(1000, max_bytes=5_000_000).map(augment, rng=True)
    return flow.to_tuple("jpg;png", "cls").batched(32)


def test_the_whole_text():
    """Stages in order with arguments, memory, seeds, user's functions; nothing is opened (there are no shards)."""
    assert whole().explain() == TOLD.replace("AUGMENT", line_of(augment))


def test_it_is_the_same_again():
    """Equal pipelines, equal text; and explaining does not start an epoch."""
    flow = whole()
    assert flow.explain() == flow.explain() == whole().explain() == wds.explain(flow)
    assert flow.epoch == 0


def test_bounds_are_told():
    """Epochs, lengths, seeds that are drawn anew."""
    flow = wds.WebDataset("a.tar").with_epoch(100).with_length(7)
    flow.set_epoch(4)
    first = flow.explain().splitlines()[0]
    assert (
        first
        == "WebDataset: seed drawn anew for every run; next epoch 4; endless passes; 100 items an iteration; length 7"
    )
    assert "24 virtual streams" in wds.WebDataset("a.tar").elastic(streams=24).explain()
    assert "2 passes" in wds.WebDataset("a.tar").repeat(2).explain()


def test_the_seed_of_the_environment_counts(monkeypatch):
    """WDS_SEED is a seed, too."""
    monkeypatch.setenv("WDS_SEED", "17")
    assert "seed 17;" in wds.WebDataset("a.tar").explain()


def test_functions_of_the_stream_are_pointed_at():
    """They are replayed, and the text says which one, and what to do."""
    text = dataset().compose(doubled).block_shuffle(50).explain()
    assert f"  6 {line_of(doubled)}\n      unknown to this library: resumed by running the epoch again" in text
    assert "reads the epoch again up to stage 6" in text
    assert "map or select" in text


def test_kinds_of_order():
    """Where the order of a shuffle comes from."""
    import random

    told = lambda stage: wds.explain(wds.DataPipeline([[1]], stage))
    assert "order: from seed= alone, the same in every epoch" in told(wds.shuffle(5, seed=1))
    assert "order: from a generator of the caller's" in told(wds.shuffle(5, rng=random.Random(0)))
    assert "order: from seed= and the epoch" in told(wds.detshuffle(5, seed=1))
    assert "order: from seed= and the epoch" in told(wds.block_shuffle(5, seed=1))
    assert "order: from the seed and epoch of the run" in told(wds.block_shuffle(5))


def test_mixes_show_their_sources():
    """Each with its weight, indented."""
    text = wds.explain(wds.DataPipeline(wds.RandomMix([dataset(), [1, 2]], [3, 1]), wds.shuffle(7)))
    lines = text.splitlines()
    assert lines[1] == "  0 RandomMix of 2 sources"
    assert any(line.strip() == "source 0, weight 3:" for line in lines)
    assert any(line.strip() == "list of 2" for line in lines)
    assert "          0 SimpleShardList: 5 shards" in text
    assert lines[-2:] == ["In all, up to 7 samples wait.", "Resumed exactly, at byte offsets."]


@pytest.mark.torch
def test_loaders_show_what_they_load():
    """Workers, and the dataset's own stages."""
    pytest.importorskip("torch")
    text = wds.WebLoader(whole(), batch_size=None, num_workers=2).shuffle(30).explain()
    assert text.splitlines()[0] == "WebLoader: seed 3; next epoch 0; one pass"
    assert "  0 DataLoader over" in text
    assert "          0 SimpleShardList: 5 shards" in text
    assert "num_workers=2" in text
    assert "each of 2 processes has such a pipeline, and its bounds, to itself" in text
    assert "up to 4 items wait; torch knows no bound in bytes" in text


@pytest.mark.torch
@pytest.mark.parametrize(
    ("count", "streams", "told"),
    [
        (3, 24, "3 of 3 shards are shared by sample, and each is opened by P / gcd(3, P) of P processes"),
        (30, 24, "P / gcd(6, P) of P processes (1 of 2, 2 of 4, 4 of 8; by one with streams=15)"),
        (48, 24, None),
        (25, 5, None),
    ],
)
def test_elastic_datasets_say_how_often_left_over_shards_are_read(count, streams, told):
    """Where the number of shards is no multiple of the streams, and not where each draws its shards by itself."""
    urls = [f"{number}.tar" for number in range(count)]
    shown = wds.WebDataset(urls, seed=1).elastic(streams).explain()
    assert (told in shown) if told else "shared by sample" not in shown
    drawn = wds.WebDataset(urls, seed=1, resampled=True).elastic(streams).explain()
    assert "shared by sample" not in drawn


def test_loaders_over_elastic_datasets_show_what_they_load():
    """The dataset with its bounds and the user's functions, and then the loader; no worker is started."""
    pytest.importorskip("torch")
    dataset = wds.WebDataset(["a.tar", "b.tar"], seed=1).shuffle(70).map(described_here).elastic(6)
    loader = wds.WebLoader(dataset, batch_size=4, num_workers=2, prefetch_factor=5)
    lines = [line.strip() for line in loader.explain().splitlines()]
    assert lines[1] == "0 DataLoader over"
    assert "ElasticDataset: seed 1; next epoch 0; one pass; 6 virtual streams" in lines[2]
    assert "In all, up to 70 samples wait." in lines
    assert any(line.startswith(f"6 map(described_here ({__file__}:") for line in lines)
    assert lines[-3].startswith("batch_size=4, num_workers=2, prefetch_factor=5")
    assert lines[-2:] == [
        "2 processes divide this rank's streams, and the bounds above, between them",
        "up to 10 batches wait; torch knows no bound in bytes",
    ]
    assert loader.pipeline[0]._iterator is None


def described_here(sample):
    """Stand in an explanation, with this file and line."""
    return sample


def test_our_loader_shows_what_it_loads():
    """The dataset, then workers and the bound in bytes."""
    dataset = wds.WebDataset(["a.tar"], seed=1).shuffle(70).map(described_here)
    with wds.Loader(dataset.elastic(6), 8, workers=2, prefetch=5, prefetch_bytes=3 << 29) as loader:
        lines = [line.strip() for line in loader.explain().splitlines()]
    assert lines[0] == "Loader over"
    assert "6 virtual streams" in lines[1]
    assert "In all, up to 70 samples wait." in lines
    assert any(f"map(described_here ({__file__}:" in line for line in lines)
    assert lines[-3:] == [
        "batch_size=8, workers=2, mode='threads'",
        "2 threads divide this rank's streams, and the bounds above, between them",
        "workers are at most 5 batches ahead, and 1.5 GiB (one is always allowed)",
    ]
    assert wds.explain(loader) == loader.explain()


@pytest.mark.parametrize(
    ("options", "shown"),
    [
        ({"workers": 2, "mode": "processes"}, "each of 2 processes has such a pipeline, and its bounds, to itself"),
        ({"workers": 2, "prefetch_bytes": 500}, "workers are at most 3 batches ahead (16 small ones), and 500 bytes"),
        (
            {"workers": 2, "batch_size": None},
            "workers are at most 3 items of each worker ahead (16 small ones), and 1 GiB",
        ),
        ({}, "no workers: the dataset is read in the consumer's thread"),
        ({}, "nothing waits but the batch that is made"),
    ],
)
def test_ways_to_load_are_shown(options, shown):
    """What holds for each worker, and what waits."""
    assert shown in wds.Loader(wds.WebDataset(["a.tar"]), **{"batch_size": 4, **options}).explain()


def test_no_secrets():
    """Not of urls, storage options, partials, dictionaries or objects."""

    class Vault:
        def __repr__(self):
            return "hunter2"

        def __call__(self, sample):
            return sample

    flow = (
        wds.WebDataset("https://u:hunter2@host/s-{0..1}.tar?token=hunter2", shardshuffle=False)
        .map(functools.partial(augment, generator="hunter2"))
        .map(Vault())
        .select(lambda sample, key="hunter2": True)  # type: ignore[misc]
        .compose(wds.rename(a="https://u:hunter2@host/b"))
        .compose(wds.filters.FilterFunction(doubled, {"token": "hunter2"}, Vault(), b"hunter2"))
    )
    text = flow.explain()
    assert "hunter2" not in text
    assert "https://***@host/s-0.tar?token=***" in text
    assert f"partial of {line_of(augment)}" in text
    assert "Vault" in text


def test_storage_options_are_not_told():
    """Only that there are some."""
    flow = wds.WebDataset(
        "s3://bucket/a.tar", shardshuffle=False, storage_options={"key": "hunter2", "secret": "hunter2"}
    )
    assert "hunter2" not in flow.explain()
    assert "storage_options=…" in flow.explain()


def test_anything_can_be_explained():
    """A list, a function as a source, a pipeline in a pipeline, an empty one, a stage of the user's."""
    assert wds.explain([1, 2]) == "list of 2"
    assert f"source {line_of(whole)}" in wds.explain(wds.DataPipeline(whole))
    assert "SimpleShardList" in wds.explain(wds.DataPipeline(dataset(), wds.decode()))
    assert wds.DataPipeline().explain().startswith("DataPipeline: seed drawn anew")

    class Own(Stage):
        """A stage.

        Flow: in order; holds ``count`` things; resumes by replay.
        """

        def __init__(self):
            self.count = 1234

        def flow(self, upstream, state):
            return upstream

    assert "in order; holds 1,234 things" in wds.explain(wds.DataPipeline([[1]], Own()))
    assert not keeps_state(Own())


def test_all_stages_of_the_package_say_how_they_flow():
    """Whatever maker: order, memory, resumption."""
    makers = [
        wds.map(len), wds.map_dict(a=len), wds.map_tuple(len), wds.select(len), wds.rsample(0.5), wds.slice(3),
        wds.shuffle(5), wds.detshuffle(5), wds.block_shuffle(5), wds.batched(5), wds.unbatched(), wds.listed(5),
        wds.pack(5), wds.unlisted(), wds.decode(), wds.to_tuple("a"), wds.rename(a="b"), wds.info(), wds.Cached(),
        wds.interleaved(), wds.sibling_fields(), wds.map_with_rng(augment), wds.tarfile_to_samples(),
    ]  # fmt: skip
    for stage in makers:
        text = wds.explain(wds.DataPipeline([[1]], stage))
        assert "resumes" in text, text


def test_values_are_shown_briefly():
    """Long text and lists are cut, sets are sorted, functions of this package have no place."""
    assert format_value("x" * 100) == "'" + "x" * 59 + "…'"
    assert format_value(list(range(9))) == "[0, 1, 2, 3, … 9 in all]"
    assert format_value({"b", "a"}) == "('a', 'b')"
    assert format_value(b"abc") == "3 bytes"
    assert format_value({"a": 1}) == "{a}"
    assert format_value({str(n): n for n in range(9)}) == "{0, 1, 2, 3, 4, 5, 6, 7…}"
    assert format_value(object()) == "object"
    assert format_function(len) == "len"
    assert format_function(wds.warn_and_continue) == "warn_and_continue"
    assert format_urls(["a.tar"]) == "1 shard: a.tar"
    assert format_urls([]) == "0 shards"


def test_methods_and_callable_objects():
    """Bound methods show their function, objects their class."""

    class Twice:
        def again(self, sample):
            return sample

        def __call__(self, sample):
            return sample

    assert format_function(Twice().again).startswith("Twice.again") or "again" in format_function(Twice().again)
    assert f"{__file__}:" in format_function(Twice().again)
    assert f"{__file__}:" in format_function(Twice())


def test_repr_is_one_line():
    """Source and stages in order; credentials are hidden, defaults left out, long arguments cut."""
    dataset = (
        wds.WebDataset("http://user:hunter2@host/a-{000..123}.tar", shardshuffle=9, seed=3).shuffle(5).decode("rgb")
    )
    text = repr(dataset.map(augment).select(lambda sample: True).to_tuple("jpg", "cls").batched(5))
    assert text.startswith("WebDataset(SimpleShardList: 124 shards: http://***@host/a-000.tar … ")
    assert "hunter2" not in text
    assert "\n" not in text
    names = [
        "shuffle(bufsize=9",
        "tarfile_samples",
        "shuffle(bufsize=5",
        "decode('rgb')",
        "map(augment",
        "select(<lambda>",
    ]
    places = [text.index(f"| {name}") for name in [*names, "to_tuple('jpg', 'cls')", "batched(batchsize=5)"]]
    assert places == sorted(places)
    assert repr(dataset.elastic(4)).startswith("ElasticDataset(SimpleShardList")
    assert repr(wds.DataPipeline()) == "DataPipeline()"
    assert repr(wds.DataPipeline(range(3), doubled)).startswith("DataPipeline(range of 3 | doubled (")
    assert len(repr(dataset.select(functools.partial(augment, "x" * 1000)))) < 700
    assert (
        repr(wds.RandomMix([dataset, [1]]).shuffle(3))
        == "FluidWrapper(RandomMix of 2 sources | shuffle(bufsize=3, initial=100))"
    )
