"""pack: rows of one length, made of sequences of different lengths."""

import gc
import itertools
import json
import weakref
import zlib
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import webdataset as wds
from support.elastic_resumes import check_three_resumes
from webdataset.core.distributed import StreamNumber, WorkerContext
from webdataset.core.error_handlers import count_skipped
from webdataset.core.errors import SampleError, StateMismatch, UsageError
from webdataset.core.redaction import redact
from webdataset.testing.stages import check_stage

LENGTHS = st.lists(st.integers(0, 30), max_size=40)


def sample(number, length):
    """Return a sample whose tokens say where they belong."""
    return {
        "__key__": f"{number:03d}",
        "__url__": "shard.tar",
        "input_ids": np.arange(length, dtype=np.int32) + 100 * number,
        "labels": list(range(length)),
    }


def samples_of(lengths):
    """Return samples of these lengths."""
    return [sample(number, length) for number, length in enumerate(lengths)]


def pieces_of(rows):
    """Return the pieces of padded or flat rows: lists of tokens, by row."""
    found = []
    for row in rows:
        tokens, segments = np.asarray(row["input_ids"]), np.asarray(row["segment_ids"])
        found.append([tokens[segments == number].tolist() for number in range(1, segments.max() + 1)])
    return found


def pack_by_list(lengths, max_tokens, window, max_samples):
    """Return (sample, first, stop) by row: what ``how="window"`` means, with lists alone."""
    arriving = [
        [(number, first, min(first + max_tokens, length)) for first in range(0, length, max_tokens)]
        for number, length in enumerate(lengths)
    ]
    waiting, rows = [], []
    while arriving or waiting:
        while arriving and len(waiting) < window:
            waiting += arriving.pop(0)
        if not waiting:
            continue
        row = [waiting.pop(0)]
        while len(row) < max_samples:
            room = max_tokens - sum(stop - first for _, first, stop in row)
            fitting = [piece for piece in waiting if piece[2] - piece[1] <= room]
            if not fitting:
                break
            chosen = max(fitting, key=lambda piece: piece[2] - piece[1])
            waiting.remove(chosen)
            row.append(chosen)
        rows.append(row)
    return rows


@given(lengths=LENGTHS, max_tokens=st.integers(1, 20), window=st.integers(1, 12), most=st.sampled_from([1, 2, 3, 99]))
def test_the_oldest_opens_a_row_and_the_longest_that_fit_fill_it(lengths, max_tokens, window, most):
    """As a model of lists does it, with parts of long samples, empty ones, and ties."""
    stage = wds.pack(max_tokens, window=window, max_samples=None if most == 99 else most)
    expected = pack_by_list(lengths, max_tokens, window, most)
    rows = list(stage(samples_of(lengths)))
    assert pieces_of(rows) == [
        [list(range(100 * n + first, 100 * n + stop)) for n, first, stop in row] for row in expected
    ]
    assert [row["__keys__"] for row in rows] == [[f"{n:03d}" for n, _, _ in row] for row in expected]


@given(lengths=LENGTHS, max_tokens=st.integers(1, 20), most=st.sampled_from([None, 1, 2, 3]))
def test_concat_cuts_all_tokens_in_a_row(lengths, max_tokens, most):
    """Each row is full, but for the last one, and where it may hold no more samples."""
    rows = list(wds.pack(max_tokens, "concat", output="flat", max_samples=most)(samples_of(lengths)))
    expected = [token for each in samples_of(lengths) for token in each["input_ids"].tolist()]
    assert [token for row in rows for token in row["input_ids"].tolist()] == expected
    for row in rows[:-1]:
        assert len(row["input_ids"]) == max_tokens or len(row["__keys__"]) == most
    assert all(len(row["input_ids"]) <= max_tokens and len(row["__keys__"]) <= (most or 99) for row in rows)


@given(
    lengths=LENGTHS,
    how=st.sampled_from(["window", "concat"]),
    output=st.sampled_from(["padded", "flat"]),
    window=st.integers(1, 9),
)
def test_what_a_row_says_of_its_pieces(lengths, how, output, window):
    """Positions, numbers of segments, bounds, and what stands in the padding go together; no token is lost."""
    max_tokens = 13
    choosing = {"window": window} if how == "window" else {}
    stage = wds.pack(max_tokens, how, output=output, also={"labels": -100}, pad_id=-1, **choosing)
    given_tokens = Counter()
    for row in stage(samples_of(lengths)):
        pieces = pieces_of([row])[0]
        used = sum(map(len, pieces))
        given_tokens.update(itertools.chain(*pieces))
        names = ["input_ids", "labels", "position_ids", "segment_ids"]
        assert {len(row[name]) for name in names} == {max_tokens if output == "padded" else used}
        assert row["input_ids"].dtype == row["segment_ids"].dtype == np.int32
        assert row["position_ids"].dtype == row["labels"].dtype == np.int64
        assert row["input_ids"][:used].tolist() == list(itertools.chain(*pieces))
        assert row["labels"][:used].tolist() == [token % 100 for token in itertools.chain(*pieces)]
        assert row["position_ids"][:used].tolist() == [place for piece in pieces for place in range(len(piece))]
        assert row["segment_ids"][:used].tolist() == [n for n, piece in enumerate(pieces, 1) for _ in piece]
        assert set(row["input_ids"][used:].tolist()) <= {-1}
        assert set(row["labels"][used:].tolist()) <= {-100}
        assert not row["position_ids"][used:].any()
        assert not row["segment_ids"][used:].any()
        assert (row["__key__"], row["__url__"]) == (row["__keys__"][0], "shard.tar")
        assert len(row["__keys__"]) == len(pieces)
        if output == "flat":
            assert row["cu_seqlens"].tolist() == [0, *itertools.accumulate(map(len, pieces))]
            assert row["cu_seqlens"].dtype == np.int32
            assert row["max_seqlen"] == max(map(len, pieces))
        else:
            assert "cu_seqlens" not in row
    assert given_tokens == Counter(token for each in samples_of(lengths) for token in each["input_ids"].tolist())


STAGES = {
    "window": lambda: wds.pack(12, window=4, also=["labels"]),
    "concat": lambda: wds.pack(12, "concat"),
    "concat, few": lambda: wds.pack(12, "concat", max_samples=2, output="flat"),
    "flat": lambda: wds.pack(12, window=5, output="flat"),
    "few": lambda: wds.pack(12, window=4, max_samples=2),
    "samples": lambda: wds.pack(12, window=4, output="samples", oversize="drop"),
    "truncated": lambda: wds.pack(12, window=4, oversize="truncate"),
    "handler": lambda: wds.pack(12, window=3, oversize="raise", handler=wds.ignore_and_continue),
    "ended": lambda: wds.pack(28, window=3, oversize="raise", handler=wds.ignore_and_stop),
}


@pytest.mark.parametrize("name", STAGES)
def test_the_contract_of_a_stage(name):
    """Resumed behind each row, also with a shuffle and lists of rows behind it."""
    lengths = [5, 12, 0, 13, 3, 7, 40, 1, 12, 25, 2, 9, 6, 24, 8, 4, 0]
    check_stage(STAGES[name](), [sample(number, length) for number, length in enumerate(lengths)])


# -- elastic datasets


def tokenized(each):
    """Return a sample with tokens: some without any, some longer than a row, some exactly as long."""
    number = int(each["__key__"])
    length = (0, 3, 16, 17, 50, 8)[number % 6] if number % 3 == 0 else zlib.crc32(each["__key__"].encode()) % 21
    return {**each, "input_ids": np.arange(length) + 1000 * number}


def shown(row):
    """Return a row as plain values."""
    if isinstance(row, list):
        return [each["__key__"] for each in row]
    return {
        name: value.tolist() if hasattr(value, "tolist") else value for name, value in row.items() if name != "__url__"
    }


@pytest.fixture(scope="module")
def urls(tmp_path_factory):
    """Shards of unequal lengths, of which one is empty of tokens."""
    path = tmp_path_factory.mktemp("packing")
    number = itertools.count()
    for shard, count in enumerate([60, 35, 80, 1, 50]):
        with wds.TarWriter(str(path / f"{shard}.tar")) as sink:
            for _ in range(count):
                sink.write({"__key__": f"{next(number):05d}", "cls": shard})
    return str(path / "{0..4}.tar")


DATASETS = {
    "window": lambda ds: ds.shuffle(40).map(tokenized).pack(16, window=24),
    "concat": lambda ds: ds.shuffle(40).map(tokenized).pack(16, "concat"),
    "shuffled rows": lambda ds: ds.map(tokenized).pack(16, window=24).shuffle(30),
    "shuffled rows of concat": lambda ds: ds.map(tokenized).pack(16, "concat", output="flat").shuffle(30),
    "samples": lambda ds: ds.map(tokenized).pack(16, window=24, output="samples", oversize="drop").shuffle(10),
    "batches of rows": lambda ds: ds.map(tokenized).pack(16, window=30).batched(3),
    "packed again": lambda ds: (
        ds.map(tokenized).pack(16, window=24, output="flat").pack(48, window=24, output="samples").shuffle(5)
    ),
}


def make(urls, name, streams=6):
    """Return an elastic dataset."""
    dataset = DATASETS[name](wds.WebDataset(urls, shardshuffle=5, seed=3).select(bool))
    return dataset.map(repr if name == "batches of rows" else shown).elastic(streams)


@pytest.mark.parametrize("epoch", [0, 1])
@pytest.mark.parametrize("name", DATASETS)
def test_rows_are_the_same_after_three_resumes_under_other_topologies(urls, name, epoch):
    """The states of all workers, stopped at random steps (within the last rows too), go through JSON."""
    check_three_resumes(lambda: make(urls, name), epoch, name, rounds=12)


def test_every_token_of_an_epoch_is_given_once(urls):
    """Under any number of streams."""
    expected = Counter()
    for each in wds.WebDataset(urls, shardshuffle=False).map(tokenized):
        expected.update(each["input_ids"].tolist())
    for streams in (1, 6, 24):
        found = Counter()
        for row in make(urls, "window", streams):
            found.update(token for token, segment in zip(row["input_ids"], row["segment_ids"], strict=True) if segment)
        assert found == expected


def test_states_hold_addresses_and_no_tokens(urls):
    """So they stay small, at every step."""
    dataset = make(urls, "window", 24)
    run = dataset.elastic_run(WorkerContext(0, 1, 0, 1))
    sizes = [len(json.dumps(run.state_dict())) for _ in run]
    assert max(sizes) < 16_384


def test_streams_share_the_window_and_keep_enough_to_choose_from():
    """At least 32 samples each, where the window is as long."""
    stage = wds.pack(8, window=1536)
    assert stage.for_stream(StreamNumber(0, 24)).window == 64
    assert stage.for_stream(StreamNumber(0, 120)).window == 32
    assert wds.pack(8, window=10).for_stream(StreamNumber(0, 24)).window == 10


def longer(each):
    """Return a sample as another tokenizer would make it."""
    each = tokenized(each)
    return {**each, "input_ids": np.append(each["input_ids"], 7)}


def shorter(each):
    """Return a sample with fewer tokens."""
    each = tokenized(each)
    return {**each, "input_ids": each["input_ids"][:-1]}


@pytest.mark.filterwarnings("ignore:since the state was saved")
@pytest.mark.parametrize("other", [longer, shorter])
def test_another_tokenizer_is_refused(urls, other):
    """Where the samples that wait have other lengths, rows would differ without a word."""

    def make(tokenize):
        return wds.WebDataset(urls, shardshuffle=False, seed=1).map(tokenize).pack(16, window=40).elastic(2)

    run = make(tokenized).elastic_run(WorkerContext(0, 1, 0, 1))
    next(run)
    state = run.state_dict()
    run.close()
    resumed = make(other).elastic_run(WorkerContext(0, 1, 0, 1), state)
    with pytest.raises(StateMismatch, match="have other lengths than when this state was saved"):
        list(resumed)
    resumed.close()


@pytest.mark.filterwarnings("ignore:since the state was saved")
def test_a_sample_that_cannot_be_packed_any_more(urls):
    """Its key is in the error; a handler is not asked, because rows would differ."""

    def make(tokenize):
        stages = wds.WebDataset(urls, shardshuffle=False, seed=1).map(tokenize)
        return stages.pack(16, window=40, handler=wds.ignore_and_continue).elastic(1)

    run = make(tokenized).elastic_run(WorkerContext(0, 1, 0, 1))
    next(run)
    state = run.state_dict()
    run.close()
    resumed = make(lambda each: {**each, "input_ids": "text"}).elastic_run(WorkerContext(0, 1, 0, 1), state)
    with pytest.raises(SampleError, match="decode it before pack") as raised:
        list(resumed)
    resumed.close()
    assert raised.value.key is not None
    assert raised.value.key.startswith("000")


def test_a_trace_knows_all_samples_of_a_row(urls):
    """What a batch of rows was made of, by key."""
    dataset = wds.WebDataset(urls, shardshuffle=False, seed=1).map(tokenized).pack(16, window=24).elastic(2)
    expected = [row["__keys__"] for row in dataset]
    assert [batch.keys for batch in wds.states.trace(dataset)] == expected
    whole = wds.WebDataset(urls, seed=1).map(tokenized).pack(16, output="samples", oversize="drop").elastic(2)
    expected = [[each["__key__"] for each in row] for row in whole]
    assert [batch.keys for batch in wds.states.trace(whole)] == expected


@pytest.mark.parametrize("fields", [{"input_ids": b"1"}, {"labels": np.zeros((1, 2))}])
def test_a_trace_says_which_sample_cannot_be_packed(urls, fields):
    """As the run itself does: one that is refused alone, or within its row."""

    def tokenize(each):
        return {**each, "input_ids": [1], "labels": [1], **(fields if each["__key__"] == "00070" else {})}

    dataset = wds.WebDataset(urls, shardshuffle=False, seed=1).map(tokenize).pack(16, also="labels").elastic(2)
    for run in (wds.states.trace(dataset), dataset.elastic_run(WorkerContext(0, 1, 0, 1))):
        with pytest.raises(SampleError) as raised:
            list(run)
        assert raised.value.key == "00070"
        run.close()


def test_a_loader_gives_rows_in_batches(urls):
    """Stacked arrays, with workers too."""
    dataset = wds.WebDataset(urls, shardshuffle=False, seed=1).map(tokenized).pack(16).elastic(4)
    with wds.Loader(dataset, 8, workers=2) as loader:
        batches = list(loader)
    assert batches[0]["input_ids"].shape == (8, 16)
    assert batches[0]["segment_ids"].dtype == np.int32
    assert batches[0]["__keys__"][0][0] == batches[0]["__key__"][0]


# -- samples that cannot be packed, and arguments that do not go together


@pytest.mark.parametrize(
    ("fields", "words", "field"),
    [
        ({}, "there is no field 'input_ids' for pack, but __key__, __url__, labels", "input_ids"),
        ({"input_ids": b"123"}, "'input_ids' is bytes, and no array of numbers: decode it before pack", "input_ids"),
        ({"input_ids": [1.5]}, r"has shape \(1,\) of float64", "input_ids"),
        ({"input_ids": [[1, 2]]}, r"has shape \(1, 2\) of int64", "input_ids"),
        ({"input_ids": [[1], [2, 3]]}, "'input_ids' is no array: ", "input_ids"),
        ({"input_ids": [{}]}, "'input_ids' holds object, and no numbers", "input_ids"),
        ({"input_ids": [1, 2, 3]}, r"'labels' has shape \(2,\), and there are 3 tokens", "labels"),
        ({"input_ids": [1, 2], "labels": 5}, r"'labels' has shape \(\), and there are 2 tokens", "labels"),
    ],
)
def test_fields_that_cannot_be_packed(fields, words, field):
    """The error says which sample and field; a handler goes on without it, and that is counted."""
    bad = {"__key__": "bad", "__url__": "some.tar", "labels": [1, 2], **fields}
    with pytest.raises(SampleError, match=words) as raised:
        list(wds.pack(8, also="labels")([sample(0, 3), bad]))
    assert (raised.value.key, raised.value.url, raised.value.field, raised.value.stage) == (
        "bad",
        "some.tar",
        field,
        "pack",
    )
    skips = Counter()
    with count_skipped(skips):
        rows = list(wds.pack(8, also="labels", handler=wds.ignore_and_continue)([sample(0, 3), bad, sample(1, 4)]))
    assert [row["__keys__"] for row in rows] == [["000", "001"]]
    assert skips == {"pack": 1}


def test_a_tuple_is_no_sample():
    """The names of its fields are gone."""
    with pytest.raises(SampleError, match="pack takes samples that are dictionaries, and this is a tuple"):
        list(wds.pack(8)([([1, 2],)]))


def test_fields_that_do_not_fit_together_in_a_row():
    """A handler is asked about each sample that does not fit those before it, and the others make the row."""
    shapes = [{**sample(n, 2), "labels": np.zeros((2, 3) if n in (2, 4) else 2)} for n in range(6)]
    words = r"'labels' is float64\[N, 3\], and in the samples before it float64\[N\]"
    with pytest.raises(SampleError, match=words) as raised:
        list(wds.pack(20, also="labels")(shapes))
    assert (raised.value.key, raised.value.field) == ("002", "labels")
    # NumPy joins these as float64, which rounds token 2**53 + 1
    types = [{**sample(n, 0), "input_ids": np.array([2**53 + 1], np.uint64 if n in (2, 4) else int)} for n in range(6)]
    for made in (shapes, types):
        skips = Counter()
        with count_skipped(skips):
            (row,) = wds.pack(20, also="labels" if made is shapes else (), handler=wds.ignore_and_continue)(made)
        assert row["__keys__"] == ["000", "001", "003", "005"]
        assert row["input_ids"].dtype.kind == "i"
        assert skips == {"pack": 2}
    (row, *rest) = wds.pack(4, also="labels", handler=wds.ignore_and_stop, window=2)(shapes)
    assert row["__keys__"] == ["000", "001"]
    assert [each["__keys__"] for each in rest] == [["002"]]


@pytest.mark.parametrize(
    ("dtype", "fill", "held"),
    [
        (np.uint16, -1, False),
        (np.uint8, 300, False),
        (np.int64, 2**70, False),
        (np.int32, 0.5, False),
        (np.int32, float("nan"), False),
        (bool, -100, False),
        (np.float16, 1e6, False),
        (np.uint16, 65535, True),
        (np.int8, -100, True),
        (np.int32, 7.0, True),
        (bool, 1, True),
        (np.float16, 0.1, True),
        (np.float32, float("nan"), True),
        (np.float32, float("-inf"), True),
    ],
)
def test_what_stands_in_the_padding_is_what_was_given(dtype, fill, held):
    """A type that does not hold it is refused, in a row without padding too; flat rows have none."""
    made = [{**sample(0, 8), "labels": np.zeros(8, dtype)}, {**sample(1, 3), "labels": np.zeros(3, dtype)}]
    stage = wds.pack(8, also={"labels": fill})
    assert len(list(wds.pack(8, also={"labels": fill}, output="flat")(made))) == 2
    if held:
        _, row = stage(made)
        assert row["labels"].dtype == dtype
        np.testing.assert_allclose(row["labels"][3:].astype(float), float(fill), rtol=1e-3)
        return
    with pytest.raises(
        SampleError, match=r"'labels' is of \w+, which does not hold .*: give another one in also="
    ) as raised:
        next(stage(made))
    assert raised.value.key == "000"


def test_vectors_and_flags_for_each_token():
    """Fields of other types and shapes are packed with the tokens."""
    made = [{**sample(n, 3), "vector": np.ones((3, 2), np.float16), "flag": [True, False, True]} for n in range(2)]
    (row,) = wds.pack(8, also={"vector": 0.5, "flag": False})(made)
    assert row["vector"].shape == (8, 2)
    assert row["vector"].dtype == np.float16
    assert row["vector"][6:].tolist() == [[0.5, 0.5]] * 2
    assert row["flag"].tolist() == [True, False, True, True, False, True, False, False]


def test_samples_that_are_left_out_are_counted():
    """Those without tokens, and with oversize='drop' those that are too long."""
    drops = Counter()
    with count_skipped(None, drops):
        rows = list(wds.pack(8, oversize="drop")(samples_of([3, 0, 9, 4, 20])))
    assert [row["__keys__"] for row in rows] == [["000", "003"]]
    assert drops == {"pack": 3}


def test_samples_longer_than_a_row():
    """Split into pieces, cut off, or an error that says what to do."""
    made = samples_of([20])
    assert list(map(len, itertools.chain(*pieces_of(wds.pack(8)(made))))) == [8, 8, 4]
    assert list(map(len, itertools.chain(*pieces_of(wds.pack(8, oversize="truncate")(made))))) == [8]
    with pytest.raises(SampleError, match=r"a sample of 20 tokens .* row of 8: raise max_tokens, or choose .*'split'"):
        list(wds.pack(8, oversize="raise")(made))
    with pytest.raises(SampleError, match="or choose oversize='drop'"):
        list(wds.pack(8, output="samples")(made))


def cost_of(each):
    """Return what a sample costs."""
    return len(each["labels"]) // 2


def test_whole_samples_by_a_cost():
    """Rows are lists of the very samples; the cost may be anything that is a whole number."""
    made = samples_of([10, 6, 4])
    rows = list(wds.pack(8, output="samples", cost=cost_of)(made))
    assert [[each["__key__"] for each in row] for row in rows] == [["000", "001"], ["002"]]
    assert rows[0][0] is made[0]
    assert len(list(wds.pack(8, output="samples", cost=lambda _: np.int64(4))(made))) == 2
    for cost in (2.5, -1, None, "3"):
        made[0]["cost"] = cost
        with pytest.raises(SampleError, match="a sample costs a whole number of tokens, at least 0, and not"):
            list(wds.pack(8, output="samples", cost=lambda each: each["cost"])(made))


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"max_tokens": 0}, "max_tokens is 0: it is an int, at least 1"),
        ({"max_tokens": 8.5}, "max_tokens is 8.5: it is"),
        ({"window": 0}, "window is 0"),
        ({"max_samples": -1}, "max_samples is -1"),
        ({"how": "best"}, "how='best': there are 'window', 'concat'"),
        ({"output": "dense"}, "output='dense': there are 'padded', 'flat', 'samples'"),
        ({"oversize": "keep"}, "oversize='keep': there are 'split'"),
        ({"tokens": "segment_ids"}, "pack makes segment_ids itself"),
        ({"also": ["position_ids"]}, "pack makes position_ids itself"),
        ({"also": "__keys__"}, "pack makes __keys__ itself"),
        ({"pad_id": None}, "the padding of 'input_ids' is None, and no number. Where a tokenizer has no pad token"),
        ({"also": {"labels": "0"}}, "the padding of 'labels' is '0', and no number"),
        ({"also": "input_ids"}, "also= names 'input_ids', which tokens= names already"),
        ({"how": "concat", "window": 9}, "how='concat' joins samples as they come: window= is for how='window'"),
        ({"cost": len}, "cost= measures whole samples: write output='samples'"),
        ({"output": "samples", "how": "concat"}, "output='samples' gives whole samples"),
        ({"output": "samples", "oversize": "split"}, "output='samples' gives whole samples"),
        ({"output": "samples", "also": "labels"}, "output='samples' gives whole samples"),
    ],
)
def test_arguments_that_mean_nothing(arguments, words):
    """They are refused when the stage is made."""
    with pytest.raises(UsageError, match=words):
        wds.pack(**{"max_tokens": 8, **arguments})


def test_explain_counts_what_waits():
    """The window of all streams together."""
    dataset = wds.WebDataset("x.tar", shardshuffle=False, empty_check=False)
    assert "In all, up to 1,544 samples wait." in dataset.pack(64).batched(8).elastic().explain()
    assert "In all, up to 8 samples wait." in dataset.pack(64, "concat").batched(8).elastic().explain()
    assert "In all, up to 3,840 samples wait." in dataset.pack(64).elastic(120).explain()
    assert "In all, up to 10 samples wait." in dataset.shuffle(10).elastic(120).explain()


def test_repr_names_what_decides_the_rows():
    """With what it was given; nothing of it is taken for a secret in a message."""
    assert repr(wds.pack(8)) == "pack(8, 'window', output='padded', window=1536, oversize='split')"
    assert redact(repr(wds.pack(8, max_samples=3))) == repr(wds.pack(8, max_samples=3))


def test_what_waits_holds_no_more_than_rows_need():
    """Arrays, and where they are from: other fields, and lists of tokens, would fill the memory."""

    class Large(list):
        """A list that can be referred to weakly."""

    made = [{**sample(n, 3), "input_ids": Large(range(3)), "image": Large()} for n in range(4)]
    seen = [weakref.ref(each[name]) for each in made for name in ("input_ids", "image")]
    made.reverse()
    rows = wds.pack(3, window=3)(made.pop() for _ in range(4))
    assert next(rows)["__keys__"] == ["000"]
    gc.collect()
    assert [ref() for ref in seen[:4]] == [None] * 4
    assert [row["__keys__"] for row in rows] == [["001"], ["002"], ["003"]]


def test_tensors_that_numpy_does_not_know():
    """The error says which field, and what to do."""
    torch = pytest.importorskip("torch")
    weights = torch.ones(3).to(torch.float8_e5m2)
    with pytest.raises(SampleError, match=r"'labels' is no array: .*Float8_e5m2; convert it in a map before pack"):
        list(wds.pack(8, also="labels")([{**sample(0, 3), "labels": weights}]))


@pytest.mark.parametrize("output", ["padded", "flat"])
@pytest.mark.parametrize("how", ["window", "concat"])
def test_tensors_of_bfloat16(how, output):
    """They stay what they are, also in pieces; beside float32 they are that, and in rows of arrays."""
    torch = pytest.importorskip("torch")

    def make(n, dtype):
        weights = (torch.arange(n * 2).reshape(n, 2) + 0.25).to(dtype)
        return {"__key__": f"{n}", "input_ids": torch.arange(n), "weights": weights}

    half = [make(n, torch.bfloat16) for n in (3, 5, 19)]
    rows = list(wds.pack(8, how, also={"weights": -1}, output=output)(half))
    assert {row["weights"].dtype for row in rows} == {torch.bfloat16}
    kept = torch.cat([row["weights"][row["segment_ids"] > 0] for row in rows])
    assert sorted(kept.float().tolist()) == sorted(torch.cat([each["weights"] for each in half]).float().tolist())
    assert all((row["weights"][row["segment_ids"] == 0] == -1).all() for row in rows)
    (row,) = wds.pack(8, how, also="weights", output=output)([make(3, torch.bfloat16), make(5, torch.float32)])
    assert row["weights"].dtype == torch.float32
    assert sorted(row["weights"][:, 0].tolist()) == [0.25, 0.25, 2.25, 2.25, 4.25, 4.25, 6.25, 8.25]
    (row,) = wds.pack(8, how, also="weights", output=output)([{**half[0], "input_ids": [1, 2, 3]}])
    assert row["weights"].dtype == np.float32
    assert row["weights"][:3].tolist() == half[0]["weights"].float().tolist()


def test_rows_of_bfloat16_that_are_made_again(tmp_path):
    """After a state, too, they are tensors of bfloat16."""
    torch = pytest.importorskip("torch")
    with wds.TarWriter(str(tmp_path / "a.tar")) as sink:
        for n in range(40):
            sink.write({"__key__": f"{n:03d}", "cls": n % 7 + 1})

    def tokenize(sample):
        weights = torch.full((sample["cls"],), int(sample["__key__"]) / 8).bfloat16()
        return {**sample, "input_ids": torch.arange(sample["cls"]), "weights": weights}

    dataset = wds.WebDataset(str(tmp_path / "a.tar"), shardshuffle=False, seed=1).decode().map(tokenize)
    dataset = dataset.pack(16, also="weights", window=9).shuffle(4).elastic(2)
    expected = [(row["weights"].dtype, row["weights"].tolist()) for row in dataset]
    assert {dtype for dtype, _ in expected} == {torch.bfloat16}
    dataset.set_epoch(0)
    run = iter(dataset)
    begun = [next(run) for _ in range(3)]
    state = run.state_dict()
    dataset.load_state_dict(state)
    found = [(row["weights"].dtype, row["weights"].tolist()) for row in [*begun, *dataset]]
    assert found == expected


def test_tensors_give_tensors():
    """Of the same types."""
    torch = pytest.importorskip("torch")
    made = [{"__key__": str(n), "input_ids": torch.arange(n + 2, dtype=torch.int32)} for n in range(3)]
    (row,) = wds.pack(12)(made)
    assert row["input_ids"].dtype == row["segment_ids"].dtype == torch.int32
    assert row["segment_ids"].tolist() == [1, 1, 2, 2, 2, 2, 3, 3, 3, 0, 0, 0]
    (flat,) = wds.pack(12, output="flat")(made)
    assert isinstance(flat["cu_seqlens"], torch.Tensor)
    assert flat["max_seqlen"] == 4
