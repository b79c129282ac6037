"""PaddingCollator: batches of arrays of different lengths."""

import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import webdataset as wds
from webdataset.core.errors import SampleError, UsageError


@given(
    lengths=st.lists(st.integers(0, 20), min_size=1, max_size=9),
    multiple=st.integers(1, 8),
    edges=st.none() | st.just([3, 8, 20]),
    kind=st.sampled_from(["list", "array"]),
)
def test_a_batch_has_the_values_of_each_sample_and_padding_behind_them(lengths, multiple, edges, kind):
    """Nothing is cut, the mask says what is padding, and the length is the least that was asked for."""
    values = [list(range(1, length + 1)) for length in lengths]
    samples = [
        {"__key__": str(n), "ids": row if kind == "list" else np.array(row, np.int16), "n": n}
        for n, row in enumerate(values)
    ]
    collate = wds.PaddingCollator({"ids": -7}, edges) if edges else wds.PaddingCollator({"ids": -7}, None, multiple)
    batch = collate(samples)
    longest = max(lengths)
    wanted = min(edge for edge in edges if edge >= longest) if edges else -(-longest // multiple) * multiple
    assert list(batch) == ["__key__", "ids", "n", "attention_mask"]
    assert batch["ids"].shape == batch["attention_mask"].shape == (len(lengths), wanted)
    assert batch["ids"].dtype == (np.int16 if kind == "array" else np.int64)
    assert batch["attention_mask"].dtype == np.int64
    for row, mask, expected in zip(batch["ids"], batch["attention_mask"], values, strict=True):
        assert row.tolist() == expected + [-7] * (wanted - len(expected))
        assert mask.tolist() == [1] * len(expected) + [0] * (wanted - len(expected))
    assert batch["n"].tolist() == list(range(len(lengths)))


def test_several_fields_of_different_lengths_and_shapes():
    """Each has a padding, a length and a type of its own."""
    samples = [
        {"wav": np.ones((n, 2), np.float32), "ids": list(range(n // 3)), "flag": [True] * n, "text": "x"}
        for n in (3, 7)
    ]
    collate = wds.PaddingCollator({"wav": 0.5, "ids": -100, "flag": False}, {"wav": [4, 16]}, mask="wav_mask")
    batch = collate(samples)
    assert {name: value.shape for name, value in batch.items() if name != "text"} == {
        "wav": (2, 16, 2),
        "ids": (2, 2),
        "flag": (2, 7),
        "wav_mask": (2, 16),
    }
    assert batch["wav"].dtype == np.float32
    assert batch["wav"][0, 3:].tolist() == [[0.5, 0.5]] * 13
    assert batch["ids"].tolist() == [[0, -100], [0, 1]]
    assert batch["flag"].dtype == bool
    assert batch["text"] == ["x", "x"]


def test_an_empty_list_says_nothing_of_its_type_and_shape():
    """It becomes padding; NumPy would take it for a float, and make one of the token 2**53 + 1."""
    batch = wds.PaddingCollator({"ids": 0, "boxes": 0.0})(
        [{"ids": [], "boxes": []}, {"ids": [2**53 + 1], "boxes": np.ones((2, 4), np.float16)}]
    )
    assert batch["ids"].tolist() == [[0], [2**53 + 1]]
    assert batch["boxes"].shape == (2, 2, 4)
    assert batch["boxes"].dtype == np.float16


@pytest.mark.parametrize(("fill", "kind"), [(-100, np.int64), (0.0, np.float64), (False, bool)])
def test_a_batch_of_empty_lists_has_the_type_of_its_padding(fill, kind):
    """So a batch of tokens is one of whole numbers, whatever texts are in it."""
    batch = wds.PaddingCollator({"ids": fill}, [4])([{"ids": []}, {"ids": ()}])
    assert batch["ids"].dtype == kind
    assert batch["ids"].tolist() == [[fill] * 4] * 2
    assert batch["attention_mask"].tolist() == [[0] * 4] * 2


def test_lists_of_empty_lists():
    """They have a length, and values of no size, which others do not have."""
    batch = wds.PaddingCollator({"boxes": 0})([{"boxes": [[], []]}, {"boxes": []}])
    assert batch["boxes"].shape == (2, 2, 0)
    assert batch["attention_mask"].tolist() == [[1, 1], [0, 0]]
    with pytest.raises(SampleError, match=r"'boxes' is int64\[N, 1\], and in the samples before it float64\[N, 0\]"):
        wds.PaddingCollator({"boxes": 0})([{"boxes": [[], []]}, {"boxes": [[3]]}])


def test_numbers_in_another_byte_order_become_those_of_this_machine():
    """As in a batch that is stacked, and as torch needs them."""
    batch = wds.PaddingCollator({"ids": 0})([{"ids": np.array(row, ">i4")} for row in ([1, 2], [3])])
    assert batch["ids"].dtype == np.int32
    assert batch["ids"].dtype.isnative
    assert batch["ids"].tolist() == [[1, 2], [3, 0]]


@pytest.mark.parametrize("numbers", [[-1, 2**63], [[1, 2**63], [0, 0]]])
def test_whole_numbers_that_a_list_would_round(numbers):
    """NumPy makes floats of a list of these; floats of the same size are what they are."""
    with pytest.raises(SampleError, match="'ids' has whole numbers that neither int64 nor uint64 holds together"):
        wds.PaddingCollator({"ids": 0})([{"ids": numbers}])
    batch = wds.PaddingCollator({"ids": 0})([{"ids": [1.0, 2.0**70]}])
    assert batch["ids"].tolist() == [[1.0, 2.0**70]]


@pytest.mark.parametrize(
    "bad", [{"ids": [1, 2, 3]}, {"ids": np.ones(1, np.uint8)}, {"n": 1}, {"ids": "a"}, {"ids": 1}, {"ids": [[1]]}]
)
def test_an_error_says_which_sample_of_a_batch_it_is_about(bad):
    """And not the first one, as for a function that does not say."""
    samples = [{"__key__": "fine", "__url__": "a.tar", "ids": [1, 2]}, {"__key__": "bad", "__url__": "b.tar", **bad}]
    for made in (wds.batched(2, wds.PaddingCollator({"ids": -1}, [2])), wds.PaddingCollator({"ids": -1}, [2])):
        with pytest.raises(SampleError) as raised:
            list(made(samples))
        assert (raised.value.key, raised.value.url, raised.value.field) == ("bad", "b.tar", "ids")


def test_there_is_nothing_to_collate():
    """As the default collation says it."""
    with pytest.raises(UsageError, match="there is nothing to collate: the list of samples is empty"):
        wds.PaddingCollator({"ids": 0})([])


@pytest.mark.parametrize("edges", [np.array([4, 8], np.uint8), (4, 8), range(4, 9, 4), iter([4, 8])])
def test_edges_are_any_whole_numbers(edges):
    """Those that NumPy computes too; collators of the same ones are equal."""
    collate = wds.PaddingCollator({"ids": 0}, edges)
    assert collate == wds.PaddingCollator({"ids": 0}, [4, 8])
    assert pickle.loads(pickle.dumps(collate))([{"ids": [1] * 5}])["ids"].shape == (1, 8)
    by_field = wds.PaddingCollator({"ids": 0}, {"ids": np.array([4, 8])})  # type: ignore[dict-item]
    assert by_field == wds.PaddingCollator({"ids": 0}, {"ids": [4, 8]})


def test_integers_that_only_a_float_could_hold_together():
    """They are not rounded."""
    with pytest.raises(SampleError, match=r"'ids' is uint64\[N\], and in the samples before it int64\[N\]"):
        wds.PaddingCollator({"ids": 0})([{"ids": np.ones(2, np.int64)}, {"ids": np.ones(2, np.uint64)}])


def test_a_mask_of_the_samples_is_padded_as_a_field():
    """None is made beside it; one that would replace a field is refused."""
    samples = [{"ids": [1, 2], "attention_mask": [1, 1]}, {"ids": [1], "attention_mask": [1]}]
    batch = wds.PaddingCollator({"ids": 0, "attention_mask": 0})(samples)
    assert batch["attention_mask"].tolist() == [[1, 1], [1, 0]]
    with pytest.raises(SampleError, match="samples have a field 'attention_mask' already: pad it"):
        wds.PaddingCollator({"ids": 0})(samples)
    assert wds.PaddingCollator({"ids": 0}, mask=None)([{"ids": [1]}]) == {"ids": np.array([[1]])}


@pytest.mark.parametrize(
    ("samples", "words"),
    [
        ([{"ids": [1]}, {"n": 1}], "there is no field 'ids' for batching, but n"),
        ([{"ids": b"abc"}], "'ids' is bytes, and no array of numbers: decode it before batching"),
        ([{"ids": 5}], "'ids' is one number, and no array: leave it out of fills="),
        ([{"ids": ["a"]}], "'ids' holds <U1, and no numbers"),
        ([{"ids": np.ones((2, 3))}, {"ids": np.ones((2, 4))}], r"'ids' is float64\[N, 4\], and in the samples before"),
        ([{"ids": np.ones(2, np.int64)}, {"ids": np.ones(2, np.uint64)}], "'ids' is of uint64, which does not hold -1"),
        ([{"ids": np.ones(2, np.uint8)}], "'ids' is of uint8, which does not hold -1, its padding: .* in fills="),
        ([{"ids": [1] * 9}], "'ids' has length 9, and the last of edges= is 8: add an edge, or cut"),
        ([{"ids": [1]}, {"ids": [1], "n": 2}], "samples with different fields in one batch"),
        ([(1, 2)], "PaddingCollator pads the fields of dictionaries, and this is a tuple: leave out to_tuple"),
    ],
)
def test_samples_that_do_not_fit_together(samples, words):
    """The error says which field; nothing is rounded."""
    with pytest.raises(SampleError, match=words):
        wds.PaddingCollator({"ids": -1}, [4, 8])(samples)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"fills": {}}, "fills is a dictionary, what stands in the padding by field"),
        ({"fills": ["ids"]}, "fills is a dictionary"),
        ({"fills": {"ids": None}}, "the padding of 'ids' is None, and no number"),
        ({"multiple_of": 0}, "multiple_of is 0: it is an int, at least 1"),
        ({"multiple_of": 8, "edges": [8]}, "edges= says how long batches are: leave multiple_of= out"),
        ({"edges": []}, "edges are the greatest lengths of the buckets"),
        ({"edges": 8}, "edges are the greatest lengths of the buckets, above 0, and not 8"),
        ({"edges": {"ids": 8}}, "edges are the greatest lengths of the buckets, above 0, and not 8"),
        ({"edges": {"wav": [4], 3: [4]}}, "edges= has 3, wav, which fills does not have"),
        ({"edges": [4, 2]}, "edges rise from bucket to bucket"),
        ({"edges": [4, 8.5]}, "arrays are padded to a whole number of values"),
        ({"edges": {"wav": [4]}}, "edges= has wav, which fills does not have"),
    ],
)
def test_arguments_that_mean_nothing(arguments, words):
    """The error says which, and what there is."""
    with pytest.raises(UsageError, match=words):
        wds.PaddingCollator(**{"fills": {"ids": 0}, **arguments})


def test_a_collator_is_a_value():
    """It goes to workers, and is printed and compared by what it does."""
    collate = wds.PaddingCollator({"ids": 0}, [4, 8])
    assert pickle.loads(pickle.dumps(collate)) == collate != wds.PaddingCollator({"ids": 1}, [4, 8])
    assert "PaddingCollator(fills={'ids': 0}, edges=[4, 8]" in repr(wds.batched(4, collate))


def test_tensors_stay_tensors():
    """Those of the samples, and the mask beside them."""
    torch = pytest.importorskip("torch")
    batch = wds.PaddingCollator({"ids": 0})([{"ids": torch.arange(3)}, {"ids": torch.arange(5)}])
    assert batch["ids"].dtype == batch["attention_mask"].dtype == torch.int64
    assert batch["ids"].tolist() == [[0, 1, 2, 0, 0], [0, 1, 2, 3, 4]]
    assert batch["attention_mask"].sum(1).tolist() == [3, 5]
    with pytest.raises(SampleError, match="is no value that can be compared"):
        list(wds.bucket("ids", batch_size=2)([{"ids": torch.arange(3)}]))
    (other,) = wds.bucket("n", [4], batch_size=2, collation_fn=None)([{"n": torch.tensor(3)}])
    assert len(other) == 1


def test_batches_of_a_pipeline_and_of_torch_are_padded_alike(tmp_path):
    """The collator is a function of a list of samples, and so every loader takes it."""
    torch = pytest.importorskip("torch")
    with wds.TarWriter(str(tmp_path / "a.tar")) as sink:
        for number in range(10):
            sink.write({"__key__": str(number), "ids.json": list(range(number % 4 + 1))})
    collate = wds.PaddingCollator({"ids.json": 0})
    dataset = wds.WebDataset(str(tmp_path / "a.tar"), shardshuffle=False).decode()
    ours = list(dataset.batched(4, collation_fn=collate))
    theirs = list(torch.utils.data.DataLoader(dataset, batch_size=4, collate_fn=collate))
    assert [batch["ids.json"].tolist() for batch in ours] == [batch["ids.json"].tolist() for batch in theirs]
    assert ours[0]["ids.json"].shape == (4, 4)


@pytest.mark.torch
def test_bfloat16_is_padded():
    """The type that NumPy lacks stays; beside others it becomes the one that holds both, as in torch."""
    torch = pytest.importorskip("torch")
    pad = wds.PaddingCollator({"x": -1.5}, multiple_of=4)
    short, long = torch.tensor([1 / 3], dtype=torch.bfloat16), torch.ones(6, dtype=torch.bfloat16, requires_grad=True)
    batch = pad([{"x": short}, {"x": long}])
    assert batch["x"].dtype == torch.bfloat16
    assert batch["x"].tolist() == [[short.item()] + [-1.5] * 7, [1.0] * 6 + [-1.5] * 2]
    assert batch["attention_mask"].sum(1).tolist() == [1, 6]
    assert pad([{"x": short[:0]}, {"x": short[:0]}])["x"].dtype == torch.bfloat16
    assert pad([{"x": short}, {"x": []}])["x"].dtype == torch.bfloat16
    for other in (torch.float32, torch.float16):
        assert pad([{"x": short}, {"x": long.to(other)}])["x"].dtype == torch.float32
    assert pad([{"x": torch.ones(2, 3, dtype=torch.bfloat16)}])["x"].shape == (1, 4, 3)
    with pytest.raises(SampleError, match="does not hold 1e[+]39"):
        wds.PaddingCollator({"x": 1e39})([{"x": short}])
