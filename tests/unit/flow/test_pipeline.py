"""The pipeline class: stages of every kind, bounds, copies, lengths, travel."""

import copy
import pickle

import pytest

import webdataset as wds
from webdataset.core.errors import UsageError


def test_kinds_of_stages():
    """None is left out, lists are spliced, any callable is a stage, and so is anything with ``run``."""

    class Adding(wds.PipelineStage):
        """A user's stage."""

        def __init__(self, n):
            self.n = n

        def run(self, source):
            """Add n."""
            return (x + self.n for x in source)

    class Iterator:
        """An iterator object."""

        def __init__(self, source):
            self.source = source

        def __iter__(self):
            return self

        def __next__(self):
            return next(self.source) * 2

    pipeline = wds.DataPipeline(lambda: iter(range(3)), None, [Adding(1), Adding(10)], Iterator)
    assert list(pipeline) == [22, 24, 26]
    assert len(pipeline.pipeline) == 4
    assert isinstance(pipeline.stage(1), Adding)


def test_a_list_of_values_is_wrapped_once_more():
    """A list among the arguments stands for stages; a list in it is a source."""
    assert list(wds.DataPipeline([[1, 2, 3]])) == [1, 2, 3]


def test_what_is_no_stage():
    """An object that is neither iterable nor callable is named."""
    with pytest.raises(UsageError, match="not a pipeline stage"):
        list(wds.DataPipeline([[1]], 7))
    with pytest.raises(UsageError, match="no stages"):
        list(wds.DataPipeline())


def test_compose_copies():
    """``compose`` leaves the pipeline as it was; ``append`` changes it."""
    one = wds.DataPipeline([[1, 2]])
    one.name = "kept"
    two = one.compose(lambda source: (x * 2 for x in source), None)
    assert (list(one), list(two), two.name) == ([1, 2], [2, 4], "kept")
    one.append(lambda source: (-x for x in source))
    assert (list(one), list(two)) == ([-1, -2], [2, 4])


@pytest.mark.parametrize(
    ("bounds", "expected"),
    [
        ({"nepochs": 2}, 10),
        ({"nepochs": 2, "nbatches": 7}, 7),
        ({"nbatches": 12}, 12),
        ({"nepochs": 3, "nbatches": 0}, 15),  # no bound, as in the published versions
        ({"nepochs": 0, "nbatches": 12}, 12),  # no end, as in with_epoch(0)
    ],
)
def test_repeat(bounds, expected):
    """Passes and a bound on items over all of them."""
    assert len(list(wds.DataPipeline([[1, 2, 3, 4, 5]]).repeat(**bounds))) == expected


def test_repeat_of_nothing_ends():
    """An empty source does not loop for ever."""
    assert list(wds.DataPipeline([[]]).repeat()) == []


def test_with_epoch():
    """Exactly so many items, starting over as often as needed; each iteration starts from the beginning."""
    pipeline = wds.DataPipeline([[0, 1, 2, 3, 4]])
    short = pipeline.with_epoch(3)
    assert [list(short), list(short)] == [[0, 1, 2], [0, 1, 2]]
    long = pipeline.with_epoch(nbatches=7)
    assert list(long) == [0, 1, 2, 3, 4, 0, 1]
    assert list(short) == [0, 1, 2]
    assert list(pipeline) == list(long), "the pipeline itself has the newest bound, as upstream's"


def test_with_length():
    """A length where one was asked for, none elsewhere; it survives copies and pickling."""
    pipeline = wds.DataPipeline([[1, 2]])
    assert not hasattr(pipeline, "__len__")
    sized = pipeline.with_length(7, silent=True)
    assert (len(sized), list(sized)) == (7, [1, 2])
    assert len(sized.compose(lambda source: source)) == 7
    assert len(pickle.loads(pickle.dumps(sized))) == 7
    assert len(copy.copy(sized).with_length(9)) == 9
    assert isinstance(sized, wds.DataPipeline)
    assert type(sized).__name__ == "DataPipeline"


def test_close_twice():
    """Closing closes the stages, once, and may be repeated."""

    class Source:
        """A source that counts its closings."""

        closed = 0

        def __iter__(self):
            return iter([1])

        def close(self):
            """Count."""
            self.closed += 1

    source = Source()
    with wds.DataPipeline(source) as pipeline:
        assert list(pipeline) == [1]
    pipeline.close()
    assert source.closed == 1


def test_iterators():
    """``iterator1`` is one pass, ``iterator`` all of them."""
    pipeline = wds.DataPipeline([[1, 2]]).repeat(2)
    assert (list(pipeline.iterator1()), list(pipeline.iterator())) == ([1, 2], [1, 2, 1, 2])


def test_travel_with_lambdas():
    """Lambdas and local functions survive pickling; so do attributes and subclasses."""
    factor = 3

    def scale(source):
        for x in source:
            yield x * factor

    class Mine(wds.DataPipeline):
        """A user's class."""

    pipeline = Mine([[1, 2]], scale, lambda source: (x + 1 for x in source))
    pipeline.classes = ["a"]
    twin = pickle.loads(pickle.dumps(pipeline))
    assert list(twin) == [4, 7]
    assert (twin.classes, type(twin).__name__) == (["a"], "Mine")


def test_epochs_differ(urls):
    """Seeded: epochs differ from each other and agree between runs; unseeded: runs differ too."""

    def orders(seed):
        dataset = wds.WebDataset(urls, shardshuffle=10, seed=seed).shuffle(20)
        return [tuple(s["__key__"] for s in dataset) for _ in range(3)]

    assert orders(1) == orders(1)
    assert len(set(orders(1))) == 3
    assert len({*orders(None), *orders(None)}) == 6


def test_who_has_a_state(urls):
    """A dataset that is not elastic has none, also for libraries that ask; the error says how it gets one."""
    dataset = wds.WebDataset(urls)
    assert not hasattr(dataset, "state_dict")
    assert not hasattr(dataset, "load_state_dict")
    with pytest.raises(AttributeError, match=r"'load_state_dict': make it elastic, dataset.elastic\(\)"):
        dataset.load_state_dict({})


def test_other_attributes_fail_as_ever(urls):
    """In Python's words, with the name for its suggestions; and what a property of a subclass said is not hidden."""

    class Failing(wds.WebDataset):
        """With a property that fails."""

        @property
        def broken(self):
            """Fail."""
            raise AttributeError("the reason")

    with pytest.raises(AttributeError, match=r"'Failing' object has no attribute 'other'$") as caught:
        Failing(urls).other  # noqa: B018
    assert caught.value.name == "other"
    with pytest.raises(AttributeError, match="the reason"):
        Failing(urls).broken  # noqa: B018


def test_set_epoch(urls):
    """The number of the epoch decides the order."""
    dataset = wds.WebDataset(urls, shardshuffle=10, seed=5)
    first = [[s["__key__"] for s in dataset] for _ in range(3)]
    dataset.set_epoch(1)
    assert [s["__key__"] for s in dataset] == first[1]


def test_wds_seed(urls, monkeypatch):
    """``WDS_SEED`` seeds what was given no seed."""
    monkeypatch.setenv("WDS_SEED", "11")
    assert [s["__key__"] for s in wds.WebDataset(urls, shardshuffle=9)] == [
        s["__key__"] for s in wds.WebDataset(urls, shardshuffle=9, seed=11)
    ]


def test_shuffle_before_split_loses_nothing(urls, monkeypatch):
    """Workers that shuffle shards before splitting them agree on the order."""
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("NUM_WORKERS", "2")
    keys = []
    for rank in "01":
        for worker in "01":
            monkeypatch.setenv("RANK", rank)
            monkeypatch.setenv("WORKER", worker)
            pipeline = wds.DataPipeline(
                wds.SimpleShardList(urls),
                wds.shuffle(100),
                wds.split_by_node,
                wds.split_by_worker,
                wds.tarfile_to_samples(),
                wds.shuffle(10),
            )
            keys += [s["__key__"] for s in pipeline]
    assert len(keys) == len(set(keys)) == 46


class Labelled(wds.WebDataset):
    """Has a way of its own to give items, as classes over the original package do."""

    def iterator(self):
        """Name the samples of all passes."""
        return (f"all {sample['__key__']}" for sample in super().iterator())


class LabelledPass(wds.WebDataset):
    """The same for one pass."""

    def iterator1(self):
        """Name the samples of a pass."""
        for sample in super().iterator1():
            yield f"one {sample['__key__']}"


@pytest.mark.parametrize(("made", "word"), [(Labelled, "all"), (LabelledPass, "one")])
def test_a_class_with_an_iterator_of_its_own(urls, made, word):
    """Its items are what the class gives: alone, bounded, repeated, in a mix and in a loader's workers."""
    plain = [f"{word} {sample['__key__']}" for sample in wds.WebDataset(urls, shardshuffle=False)]

    def ordered():
        return made(urls, shardshuffle=False)

    assert list(ordered()) == plain
    assert list(ordered().repeat(2)) == plain * 2
    assert list(ordered().with_epoch(60)) == (plain * 2)[:60]
    assert list(wds.RandomMix([ordered()])) == plain
    assert sorted(item for batch in wds.Loader(ordered(), 8, workers=2) for item in batch) == sorted(plain)
    shuffled = made(urls, shardshuffle=100, seed=5)
    epochs = [list(shuffled) for _ in range(3)]
    expected = wds.WebDataset(urls, shardshuffle=100, seed=5)
    assert epochs == [[f"{word} {sample['__key__']}" for sample in expected] for _ in range(3)]
    assert shuffled.epoch == 3


@pytest.mark.parametrize("made", [Labelled, LabelledPass])
def test_an_iterator_of_its_own_has_no_state(urls, made):
    """Where a state is asked for, that is an error, never items without the class's work."""
    dataset = made(urls, shardshuffle=False)
    for start in (
        dataset.start,
        lambda: list(dataset.elastic(2)),
        lambda: next(wds.DataPipeline(wds.RandomMix([dataset])).start()),
    ):
        with pytest.raises(UsageError, match=f"{made.__name__}.iterator has no state"):
            start()
