"""bucket: batches of samples of like length, or of one class."""

import enum
import itertools
import json
import math
import re
import zlib
from bisect import bisect_left
from collections import Counter
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import webdataset as wds
from support.elastic_resumes import check_three_resumes
from webdataset.core.distributed import StreamNumber, WorkerContext
from webdataset.core.error_handlers import count_skipped
from webdataset.core.errors import SampleError, StateMismatch, UsageError
from webdataset.stages.base import Run
from webdataset.testing.stages import check_stage

EDGES = [4, 9, 20]
LENGTHS = [5, 12, 0, 13, 3, 7, 20, 1, 12, 15, 2, 9, 6, 14, 8, 4, 0, 3, 19, 11]


def samples_of(lengths):
    """Return samples of these lengths."""
    return [
        {"__key__": f"{number:03d}", "__url__": "shard.tar", "ids": list(range(length)), "n": length}
        for number, length in enumerate(lengths)
    ]


def numbers_of(batches):
    """Return the numbers of the samples in batches that are lists."""
    return [[int(sample["__key__"]) for sample in batch] for batch in batches]


def bucket_by_list(lengths, sizes, window):
    """Return the numbers of the samples by batch: what bucketing means, with one list of all that wait."""
    waiting, batches = [], []

    def give(bucket):
        batches.append([number for number, each in waiting if each == bucket])
        waiting[:] = [pair for pair in waiting if pair[1] != bucket]

    for number, length in enumerate(lengths):
        bucket = bisect_left(EDGES, length)
        waiting.append((number, bucket))
        counts = Counter(each for _, each in waiting)
        if counts[bucket] == sizes[bucket]:
            give(bucket)
        elif window is not None and len(waiting) >= max(window, *(sizes[each] for each in counts)):
            # of equally full ones the one with the oldest sample, which a Counter has first
            give(max(counts, key=lambda each: counts[each] / sizes[each]))
    while waiting:
        give(waiting[0][1])
    return batches


@given(
    lengths=st.lists(st.integers(0, 20), max_size=60),
    sizes=st.lists(st.integers(1, 7), min_size=3, max_size=3),
    window=st.none() | st.integers(1, 15),
    partial=st.booleans(),
)
def test_a_bucket_is_given_when_it_is_full(lengths, sizes, window, partial):
    """As a model of one list does it: full ones, the fullest where too many wait, and the rest at the end."""
    stage = wds.bucket("n", EDGES, batch_size=sizes, window=window, partial=partial, collation_fn=None)
    drops = Counter()
    with count_skipped(None, drops):
        found = numbers_of(stage(samples_of(lengths)))
    expected = bucket_by_list(lengths, sizes, window)
    assert found == (expected if partial else expected[: len(found)])
    if partial:
        assert sorted(itertools.chain(*found)) == list(range(len(lengths)))
        assert not drops
    else:
        dropped = list(itertools.chain(*expected[len(found) :]))
        assert drops["bucket"] == len(dropped) == len(lengths) - sum(map(len, found))
        # what is dropped is less than a batch of each bucket
        counts = Counter(bisect_left(EDGES, lengths[number]) for number in dropped)
        assert all(counts[bucket] < sizes[bucket] for bucket in counts)


@given(
    lengths=st.lists(st.integers(0, 30), max_size=60),
    edges=st.sets(st.integers(1, 30), min_size=1, max_size=5).map(lambda found: sorted({*found, 30})),
    total=st.integers(30, 200),
)
def test_a_batch_holds_as_many_samples_as_its_edge_allows(lengths, edges, total):
    """Samples times edge are at most ``max_total``, and one more would be too many in all full batches."""
    batches = list(wds.bucket("ids", edges, max_total=total, collation_fn=None)(samples_of(lengths)))
    short = Counter()
    for batch in batches:
        (edge,) = {edges[bisect_left(edges, sample["n"])] for sample in batch}
        assert len(batch) * edge <= total
        short[edge] += (len(batch) + 1) * edge <= total
    assert all(count <= 1 for count in short.values())
    assert sorted(sample["__key__"] for batch in batches for sample in batch) == [
        f"{n:03d}" for n in range(len(lengths))
    ]


def parity(sample):
    """Return a class."""
    return ("odd", "even")[sample["n"] % 2 == 0], sample["n"] > 9


def size_of_class(name):
    """Return the samples in a batch of a class."""
    return 2 if name[1] else 3


STAGES = {
    "edges": lambda: wds.bucket("n", EDGES, batch_size=3, collation_fn=None),
    "padded": lambda: wds.bucket("ids", EDGES, max_total=40, collation_fn=wds.PaddingCollator({"ids": -1}, EDGES)),
    "sizes": lambda: wds.bucket("n", EDGES, batch_size=[4, 2, 1], collation_fn=None),
    "window": lambda: wds.bucket("n", EDGES, batch_size=4, window=6, collation_fn=None),
    "classes": lambda: wds.bucket(parity, batch_size=size_of_class, collation_fn=None),
    "whole": lambda: wds.bucket(parity, batch_size=3, collation_fn=None, partial=False),
    "handler": lambda: wds.bucket("n", [4, 9], batch_size=3, handler=wds.ignore_and_continue, collation_fn=None),
    "ended": lambda: wds.bucket("n", [4, 13], batch_size=3, handler=wds.ignore_and_stop, collation_fn=None),
}


@pytest.mark.parametrize("name", STAGES)
def test_the_contract_of_a_stage(name):
    """Resumed behind each batch, the last ones included, also with a shuffle and lists of batches behind it."""
    check_stage(STAGES[name](), samples_of(LENGTHS))


# -- elastic datasets


def measured(each):
    """Return a sample with tokens."""
    return {**each, "ids": [int(each["__key__"])] * (zlib.crc32(each["__key__"].encode()) % 20 + 1)}


def long_words(each):
    """Return whether it has many tokens, and its class."""
    return len(each["ids"]) > 6, int(each["cls"]) % 2


def keys_of(batch):
    """Return a batch as plain values."""
    return [each["__key__"] for each in batch] if isinstance(batch, list) else batch["__key__"]


@pytest.fixture(scope="module")
def urls(tmp_path_factory):
    """Shards of unequal lengths."""
    path = tmp_path_factory.mktemp("bucketing")
    number = itertools.count()
    for shard, count in enumerate([90, 35, 120, 1, 80]):
        with wds.TarWriter(str(path / f"{shard}.tar")) as sink:
            for _ in range(count):
                sink.write({"__key__": f"{next(number):05d}", "cls": shard})
    return str(path / "{0..4}.tar")


DATASETS = {
    "lengths": lambda ds: ds.shuffle(40).map(measured).bucket("ids", EDGES, batch_size=[5, 4, 2], collation_fn=None),
    "padded": lambda ds: ds.map(measured).bucket(
        "ids", EDGES, max_total=50, collation_fn=wds.PaddingCollator({"ids": -1})
    ),
    "classes": lambda ds: ds.shuffle(30).map(measured).bucket(long_words, batch_size=4, collation_fn=None),
    "window": lambda ds: ds.map(measured).bucket("ids", EDGES, batch_size=6, window=36, collation_fn=None),
    "shuffled batches": lambda ds: (
        ds.map(measured).bucket("ids", EDGES, batch_size=3, collation_fn=None, partial=False).shuffle(30)
    ),
    "batches of batches": lambda ds: (
        ds.map(measured).bucket("ids", EDGES, batch_size=2, collation_fn=None).shuffle(9).batched(2, collation_fn=None)
    ),
    "taken apart": lambda ds: (
        ds.map(measured).bucket("ids", EDGES, batch_size=4, collation_fn=None).unlisted().shuffle(12)
    ),
}


def make(urls, name, streams=6):
    """Return an elastic dataset."""
    dataset = DATASETS[name](wds.WebDataset(urls, shardshuffle=5, seed=3).decode())
    shown = {"batches of batches": repr, "taken apart": lambda each: each["__key__"]}.get(name, keys_of)
    return dataset.map(shown).elastic(streams)


@pytest.mark.parametrize("epoch", [0, 1])
@pytest.mark.parametrize("name", DATASETS)
def test_batches_are_the_same_after_three_resumes_under_other_topologies(urls, name, epoch):
    """The states of all workers, stopped at random steps (within the last batches too), go through JSON."""
    check_three_resumes(lambda: make(urls, name), epoch, name)


def test_every_sample_of_an_epoch_is_given_once(urls):
    """Under any number of streams."""
    for streams in (1, 6, 24):
        found = Counter(itertools.chain(*make(urls, "lengths", streams)))
        assert found == Counter(f"{number:05d}" for number in range(326))


def test_streams_share_the_window():
    """Each has its part; a part that is smaller than a batch does not make batches smaller."""
    stage = wds.bucket("n", EDGES, batch_size=4, window=100)
    assert stage.for_stream(StreamNumber(0, 24)).window == 5
    small = wds.bucket("n", [20], batch_size=10, window=24, collation_fn=None).for_stream(StreamNumber(0, 24))
    assert small.window == 1
    assert list(map(len, small(samples_of(LENGTHS)))) == [10, 10]
    assert wds.bucket("n", EDGES, batch_size=4).for_stream(StreamNumber(0, 24)).window is None


def test_states_hold_addresses_and_no_samples(urls):
    """So they stay small, at every step."""
    run = make(urls, "lengths", 24).elastic_run(WorkerContext(0, 1, 0, 1))
    assert max(len(json.dumps(run.state_dict())) for _ in run) < 16_384


def longer(each):
    """Return a sample as another tokenizer would make it."""
    each = measured(each)
    return {**each, "ids": [1] * 25}


@pytest.mark.filterwarnings("ignore:since the state was saved")
@pytest.mark.parametrize(
    "change",
    [
        {"tokenize": lambda each: {**measured(each), "ids": measured(each)["ids"][::-1][:8]}},
        {"tokenize": lambda each: {**measured(each), "ids": [1] * (int(each["__key__"]) % 13)}},
        {"size": lambda name: 1},
    ],
)
def test_samples_that_belong_to_other_buckets_are_refused(urls, change):
    """Another tokenizer or batch size would give other batches without a word."""

    def make(tokenize=measured, size=lambda name: 5):
        dataset = wds.WebDataset(urls, shardshuffle=False, seed=1).map(tokenize)
        return dataset.bucket("ids", EDGES, batch_size=size, collation_fn=None).elastic(2)

    run = make().elastic_run(WorkerContext(0, 1, 0, 1))
    for _ in range(7):
        next(run)
    state = run.state_dict()
    run.close()
    resumed = make(**change).elastic_run(WorkerContext(0, 1, 0, 1), state)
    with pytest.raises(StateMismatch, match="belong to other ones than when this state was saved"):
        list(resumed)
    resumed.close()


@pytest.mark.filterwarnings("ignore:since the state was saved")
def test_a_sample_that_has_no_bucket_any_more(urls):
    """Its key is in the error; a handler is not asked, because batches would differ."""

    def make(tokenize):
        dataset = wds.WebDataset(urls, shardshuffle=False, seed=1).map(tokenize)
        return dataset.bucket(
            "ids", EDGES, batch_size=50, window=30, collation_fn=None, handler=wds.ignore_and_continue
        ).elastic(1)

    run = make(measured).elastic_run(WorkerContext(0, 1, 0, 1))
    next(run)
    state = run.state_dict()
    run.close()
    resumed = make(longer).elastic_run(WorkerContext(0, 1, 0, 1), state)
    with pytest.raises(SampleError, match="a sample has length .* and the last of edges= is 20") as raised:
        list(resumed)
    resumed.close()
    assert raised.value.key is not None
    assert raised.value.key.startswith("000")


@pytest.mark.parametrize(
    "state", [{"buckets": [[size, 1]], "ended": False, "waiting": ""} for size in (0, 2, -1, 10**30)]
)
def test_a_state_that_is_no_state_of_ours_is_refused(state):
    """It names buckets without samples."""
    stage = wds.bucket("n", EDGES, batch_size=4)
    with pytest.raises(StateMismatch, match="belong to other ones"):
        stage.begin(None).restore(state, lambda addresses: addresses)


def test_a_trace_knows_all_samples_of_a_batch(urls):
    """What a batch was made of, by key."""
    dataset = wds.WebDataset(urls, shardshuffle=False, seed=1).map(measured)
    for made in (
        dataset.bucket("ids", EDGES, max_total=50, collation_fn=wds.PaddingCollator({"ids": 0})).elastic(2),
        dataset.bucket(lambda each: len(each["ids"]) % 3, batch_size=4, collation_fn=None).elastic(2),
    ):
        assert [batch.keys for batch in wds.states.trace(made)] == [keys_of(batch) for batch in made]


def test_a_trace_says_which_sample_has_no_bucket(urls):
    """As the run itself does."""
    dataset = (
        wds.WebDataset(urls, shardshuffle=False, seed=1).map(measured).bucket("ids", [15], batch_size=4).elastic(2)
    )
    keys = []
    for run in (wds.states.trace(dataset), dataset.elastic_run(WorkerContext(0, 1, 0, 1))):
        with pytest.raises(SampleError, match="the last of edges= is 15") as raised:
            list(run)
        keys.append(raised.value.key)
        run.close()
    assert keys[0] == keys[1] is not None


@pytest.mark.parametrize("mode", ["threads", "processes"])
def test_a_loader_gives_batches(urls, mode):
    """With workers as without, and its state continues with another number of them."""
    dataset = wds.WebDataset(urls, shardshuffle=False, seed=1).map(measured)
    dataset = dataset.bucket("ids", EDGES, max_total=60, collation_fn=wds.PaddingCollator({"ids": 0}, EDGES)).elastic(4)
    with wds.Loader(dataset, None) as loader:
        whole = list(loader)
    assert {batch["ids"].shape for batch in whole} >= {(15, 4), (6, 9), (3, 20)}
    with wds.Loader(dataset, None, workers=2, mode=mode) as loader:
        batches = iter(loader)
        begun = [next(batches) for _ in range(9)]
        state = loader.state_dict()
    with wds.Loader(dataset, None, workers=1, mode=mode) as loader:
        loader.load_state_dict(state)
        found = [*begun, *loader]
    assert [batch["__key__"] for batch in found] == [batch["__key__"] for batch in whole]
    assert all(np.array_equal(batch["ids"], other["ids"]) for batch, other in zip(found, whole, strict=True))


# -- samples that belong nowhere, and arguments that do not go together


@pytest.mark.parametrize(
    ("by", "edges", "value", "words"),
    [
        ("n", [4], 5, "a sample has length 5, and the last of edges= is 4: add an edge, leave such samples out"),
        ("n", [4], float("nan"), "the length NaN, which belongs to no bucket"),
        ("n", [4], {1: 2}.items, "edges= divide numbers or lengths, and this is a builtin_function_or_method"),
        ("n", [4], None, "edges= divide numbers or lengths, and this is a NoneType"),
        ("length", [4], 1, "there is no field 'length' to bucket by, but __key__, __url__, ids, n"),
        ("n", None, [1], r"\[1\] is no value that can be compared: give a number, a text or a tuple of these"),
        ("n", None, np.arange(2), "is no value that can be compared"),
        ("n", None, object(), "is no value that can be compared"),
        ("n", None, float("nan"), "nan is no value that can be compared"),
        ("n", None, ("a", float("nan")), "nan is no value that can be compared"),
    ],
)
def test_samples_without_a_bucket(by, edges, value, words):
    """The error says which sample; a handler goes on without it, and that is counted."""
    bad = {**samples_of([3])[0], "__key__": "bad", "n": value}
    stage: dict[str, Any] = {"batch_size": 2, "collation_fn": None}
    with pytest.raises(SampleError, match=words) as raised:
        list(wds.bucket(by, edges, **stage)([bad]))
    assert (raised.value.key, raised.value.url, raised.value.stage) == ("bad", "shard.tar", "bucket")
    skips = Counter()
    made = [*samples_of([3, 3]), bad, *samples_of([3])]
    with count_skipped(skips):
        batches = list(wds.bucket(by, edges, **stage, handler=wds.ignore_and_continue)(made))
    assert sum(map(len, batches)) == (0 if by == "length" else 3)
    assert skips == {"bucket": 4 if by == "length" else 1}


def test_a_function_that_fails_is_named():
    """With the sample that it was given."""

    def by(sample):
        return 1 / sample["n"]

    with pytest.raises(ZeroDivisionError) as raised:
        list(wds.bucket(by, [4], batch_size=2, collation_fn=None)(samples_of([1, 0])))
    assert "key='001'" in str(raised.value.__notes__)
    assert "by (" in str(raised.value.__notes__)


def test_tuples_have_no_fields():
    """A function may take them."""
    with pytest.raises(SampleError, match="by='n' names a field of dictionaries, and this is a tuple"):
        list(wds.bucket("n", [4], batch_size=2)([(1, 2)]))
    (batch,) = wds.bucket(lambda pair: pair[0], [4], batch_size=2)([(1, "a"), (2, "b")])
    assert batch[0].tolist() == [1, 2]
    assert batch[1] == ["a", "b"]


class Side(enum.Enum):
    """A class."""

    LEFT = 1
    RIGHT = 2


@pytest.mark.parametrize(
    "values",
    [
        [None, "a", None, "a"],
        [True, False, True, False],
        [(512, 512), (640, 384), (512, 512), (640, 384)],
        [Side.LEFT, Side.RIGHT, Side.LEFT, Side.RIGHT],
        [np.int64(3), 4, 3, np.int32(4)],
        [b"a", "a", b"a", "a"],
    ],
)
def test_classes(values):
    """Equal ones make a batch, whatever they are, None included."""
    made = [{**sample, "n": value} for sample, value in zip(samples_of([1] * 4), values, strict=True)]
    assert numbers_of(wds.bucket("n", batch_size=2, collation_fn=None)(made)) == [[0, 2], [1, 3]]


@pytest.mark.parametrize("value", [3, 3.0, np.float32(3), np.array(3), "abc", [1, 2, 3], np.zeros((3, 9))])
def test_lengths(value):
    """A number counts as it is, anything else by its length."""
    made = [{**samples_of([1])[0], "n": value}]
    (batch,) = wds.bucket("n", [2, 3, 4], batch_size=[1, 9, 1], collation_fn=None)(made * 2)
    assert len(batch) == 2


@pytest.mark.parametrize("kind", [np.uint8, np.int16, np.float16, np.float32, np.int64])
def test_edges_and_sizes_that_numpy_computes(kind):
    """They mean what plain numbers mean: 8192 samples times edge do not fit into uint8, nor do states hold these."""
    edges, plain = np.array([100, 200], kind), wds.bucket("n", [100, 200], max_total=8192)
    stage = wds.bucket("n", edges, max_total=np.int64(8192))  # type: ignore[arg-type]
    assert repr(stage).replace(".0", "") == repr(plain)
    assert [stage.batch_size_of(edge) for edge in stage.edges or ()] == [81, 40]
    made: list[Any] = [np.array([2, 1]), [np.int32(2), np.int32(1)]]
    for sizes in made:
        assert wds.bucket("n", [1, 2], batch_size=sizes) == wds.bucket("n", [1, 2], batch_size=[2, 1])
    size: Any = np.uint8(3)
    assert repr(wds.bucket("n", edges, batch_size=size)).endswith("batch_size=3)")


class Size(NamedTuple):
    """A class with names."""

    width: int
    height: int


def test_classes_reach_the_function_as_they_are():
    """A tuple with names has them; equal plain tuples are the same class, and the same in a state."""

    def by(sample):
        return Size(sample["n"], 2) if sample["n"] < 3 else (1, 2)

    stage = wds.bucket(by, batch_size=lambda size: size.width + 1, collation_fn=None)
    assert numbers_of(stage(samples_of([1, 2, 3, 2, 2]))) == [[0, 2], [1, 3, 4]]
    states = []
    for made in (lambda sample: Size(1, 2), lambda sample: (1, 2)):
        state = wds.bucket(made, batch_size=3).begin(Run())
        state.add([0, 0, 0, 0], samples_of([1])[0])
        states.append(state.snapshot())
    assert states[0] == states[1]


def test_lengths_have_all_their_digits_in_messages():
    """1 600 001 is not 1.6e+06, which the last edge is too."""
    for length, edge in ((1_600_001, 1_600_000), (2.5, 2.25), (math.inf, 2**60)):
        with pytest.raises(SampleError, match=re.escape(f"length {length}, and the last of edges= is {edge}")):
            list(wds.bucket("n", [edge], batch_size=2)([{**samples_of([1])[0], "n": length}]))


def test_the_last_bucket_may_be_without_an_end():
    """With sizes in place of a bound of the whole."""
    (batch, rest) = wds.bucket("n", [4, math.inf], batch_size=[3, 2], collation_fn=None)(samples_of([1, 99, 2, 5000]))
    assert [sample["n"] for sample in batch] == [99, 5000]
    assert [sample["n"] for sample in rest] == [1, 2]


@pytest.mark.parametrize("size", [0, -1, 2.5, None, "8"])
def test_a_function_that_gives_no_size(size):
    """It is an error of the first sample of the bucket."""
    with pytest.raises(SampleError, match=r"batch_size\(4\) is .*: a batch holds at least one sample"):
        list(wds.bucket("n", [4], batch_size=lambda _: size)(samples_of([1])))


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({}, "give one of batch_size=, samples in a batch, and max_total="),
        ({"batch_size": 2, "max_total": 9}, "give one of batch_size="),
        ({"batch_size": 0}, "batch_size is 0: a batch holds at least one sample, a whole number"),
        ({"batch_size": 2.5}, r"batch_size is 2\.5"),
        ({"batch_size": [2, 0, 1]}, "batch_size is 0"),
        ({"batch_size": [2, 2]}, "batch_size= has 2 sizes, and edges= 3 buckets"),
        ({"batch_size": [2, 2], "edges": None}, "batch_size= has 2 sizes, and edges= 0 buckets"),
        ({"max_total": 19}, "max_total is 19, and the last of edges= is 20: a batch holds at least one sample"),
        ({"max_total": 99, "edges": [4, math.inf]}, "max_total is 99, and the last of edges= is inf"),
        ({"max_total": "99"}, "max_total is '99'"),
        ({"max_total": math.nan}, "max_total is nan"),
        ({"max_total": math.inf}, "max_total is inf, and the last of edges= is 20: .* a finite number no less than"),
        ({"batch_size": {4: 2, 9: 2, 20: 2}}, "batch_size is {4: 2, 9: 2, 20: 2}"),
        ({"batch_size": np.ones((3, 1), int)}, r"batch_size is \[1\]"),
        ({"batch_size": 2, "edges": 5}, "edges are the greatest lengths of the buckets, above 0, and not 5"),
        ({"max_total": 99, "edges": None}, "max_total= bounds samples times edge: give edges="),
        ({"batch_size": 2, "edges": []}, r"edges are the greatest lengths of the buckets, above 0, and not \[\]"),
        ({"batch_size": 2, "edges": [0, 3]}, "above 0"),
        ({"batch_size": 2, "edges": [math.nan]}, "above 0"),
        ({"batch_size": 2, "edges": ["a"]}, "above 0"),
        ({"batch_size": 2, "edges": [3, 3]}, "edges rise from bucket to bucket"),
        ({"batch_size": 2, "window": 0}, "window is 0: it is an int, at least 1"),
        ({"batch_size": 2, "by": 5}, "by= is the name of a field or a function of a sample, and not 5"),
    ],
)
def test_arguments_that_mean_nothing(arguments, words):
    """The error says which, and what there is."""
    with pytest.raises(UsageError, match=words):
        wds.bucket(**{"by": "n", "edges": EDGES, **arguments})


def test_a_pipeline_shows_its_buckets():
    """As code that means the same."""
    assert repr(wds.bucket("n", (4, 9), batch_size=(2, 1), window=5)) == (
        "bucket(by='n', edges=(4, 9), batch_size=(2, 1), window=5)"
    )
    shown = repr(wds.bucket(parity, batch_size=size_of_class, collation_fn=None, partial=False))
    assert shown == "bucket(by=parity, batch_size=size_of_class, collation_fn=None, partial=False)"


def test_explain_says_how_many_samples_wait(urls):
    """Where it is known: one less than a batch of each bucket, or the window, in each stream."""

    def explained(streams=None, **options):
        dataset = wds.WebDataset(urls, seed=1).bucket("ids", EDGES, **options)
        return (dataset if streams is None else dataset.elastic(streams)).explain()

    assert "In all, up to 21 samples wait." in explained(max_total=60)  # 14 + 5 + 2
    assert "In all, up to 84 samples wait." in explained(4, max_total=60)
    assert "In all, up to 15 samples wait." in explained(max_total=60, window=2)
    assert "In all, up to 60 samples wait." in explained(4, max_total=60, window=2)
    assert "In all, up to 21 samples wait." in explained(max_total=60, window=100)
    assert "samples wait." not in explained(batch_size=lambda edge: 5)
    assert "In all, up to 7 samples wait." in explained(batch_size=lambda edge: 5, window=7)


@pytest.mark.parametrize("other", [{"edges": [4, 10, 20]}, {"batch_size": [9, 5, 3]}, {"window": 30}, {"by": "n"}])
def test_a_state_of_other_buckets_is_refused(urls, other):
    """By its arguments, also where nothing waits."""

    def make(by="ids", edges=EDGES, batch_size=(9, 5, 2), window=None):
        dataset = wds.WebDataset(urls, shardshuffle=False, seed=1).map(measured)
        return dataset.bucket(by, edges, batch_size=batch_size, window=window).elastic(2)

    state = make().state_dict()
    with pytest.raises(StateMismatch, match="Bucketed"):
        make(**other).load_state_dict(state)


@settings(deadline=None)
@given(
    classes=st.lists(st.integers(0, 12), max_size=300),
    window=st.integers(1, 60),
    sizes=st.sampled_from([lambda name: 4, lambda name: 1 + name % 5, lambda name: 3 + 20 * (name == 5)]),
)
def test_a_full_window_gives_the_fullest_bucket(classes, window, sizes):
    """Of equally full ones that which began first, as a search through all of them would find."""
    waiting: dict[int, list[int]] = {}
    expected: list[list[int]] = []
    for name in classes:
        waiting.setdefault(name, []).append(name)
        count = sum(len(each) for each in waiting.values())
        if len(waiting[name]) >= sizes(name):
            expected.append(waiting.pop(name))
        elif count >= max(window, *map(sizes, waiting)):
            expected.append(waiting.pop(max(waiting, key=lambda each: len(waiting[each]) / sizes(each))))
    expected.extend(waiting.values())
    stage = wds.bucket(lambda sample: sample, batch_size=sizes, window=window, collation_fn=None)
    assert list(stage(classes)) == expected


class CountedName:
    """A class of samples that counts how often it is looked up."""

    asked = 0

    def __init__(self, number):
        self.number = number

    def __hash__(self):
        CountedName.asked += 1
        return self.number

    def __eq__(self, other):
        return self.number == other.number


def test_a_full_window_is_not_searched_for_each_sample():
    """With thousands of classes, what a sample costs does not grow with them."""
    CountedName.asked = 0
    names = [CountedName(number * 7919 % 2000) for number in range(10_000)]
    batches = list(wds.bucket(lambda name: name, batch_size=16, window=2000, collation_fn=None)(names))
    assert sum(len(batch) for batch in batches) == len(names)
    assert CountedName.asked < 30 * len(names)
