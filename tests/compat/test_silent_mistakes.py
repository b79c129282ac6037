"""Mistakes after which a program would go on with nothing, or with something else: a warning says so."""

import json
import warnings

import numpy as np
import pytest

import webdataset as wds


@pytest.fixture(scope="module")
def urls(tmp_path_factory):
    """Three shards of ten samples."""
    pattern = str(tmp_path_factory.mktemp("silent") / "s-%d.tar")
    with wds.ShardWriter(pattern, maxcount=10) as sink:
        for number in range(30):
            sink.write({"__key__": f"{number:03d}", "txt": "text", "npy": np.arange(3)})
    return pattern.replace("%d", "{0..2}")


def read(urls):
    """Return a dataset of tuples."""
    return wds.WebDataset(urls, shardshuffle=False).decode().to_tuple("txt", "npy")


def warnings_of(iterable):
    """Return what an iterable gives, and the texts of its warnings."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        found = list(iterable() if callable(iterable) else iterable)
    return found, [str(each.message) for each in caught if issubclass(each.category, UserWarning)]


@pytest.mark.parametrize("stage", ["batched", "listed"])
def test_batches_that_are_never_full(urls, stage):
    """All samples of a pass are left out: the warning says how many. One full batch is enough to say nothing."""
    for size, expected in ((31, 0), (30, 1), (20, 1)):
        found, told = warnings_of(getattr(read(urls), stage)(size, partial=False))
        assert len(found) == expected
        assert told == [] if expected else f"{stage}: all 30 samples of this pass were dropped" in told[0]
    assert warnings_of(getattr(read(urls), stage)(31))[1] == []


def test_batches_in_streams_that_are_never_full(urls):
    """An elastic dataset batches in each of its streams: the warning names their number."""
    found, told = warnings_of(read(urls).batched(4, partial=False).elastic(streams=24))
    assert found == []
    assert len(told) == 1
    assert "elastic(streams=n) takes fewer" in told[0]
    found, told = warnings_of(read(urls).batched(4, partial=False).elastic(streams=2))
    assert len(found) == 6
    assert told == []


def test_batches_of_workers_that_are_never_full(urls):
    """The workers of a loader are judged together."""
    dataset = read(urls).batched(16, partial=False)
    with wds.Loader(dataset, workers=3) as loader:
        found, told = warnings_of(loader)
    assert found == []
    assert [text for text in told if "all 30 samples of this pass were dropped" in text] == told != []
    with wds.Loader(read(urls).batched(10, partial=False), workers=3) as loader:
        assert (len(found := warnings_of(loader)[0]), warnings_of(loader)[1]) == (3, [])


def test_the_last_batch_of_a_loader_is_the_only_one(urls):
    """``drop_last`` would leave out the whole epoch."""
    for size, expected in ((31, 0), (30, 1)):
        with wds.Loader(read(urls), size, workers=2, drop_last=True) as loader:
            found, told = warnings_of(loader)
        assert len(found) == expected
        assert told == [] if expected else "drop_last=True left out all 30 samples of this epoch" in told[0]


def test_the_rest_of_an_epoch_without_a_full_batch(urls):
    """After a resume, batches came before it: there is nothing to warn of."""
    dataset = read(urls).elastic()
    with wds.Loader(dataset, 20, drop_last=True) as loader:
        next(iter(loader))
        state = loader.state_dict()
    with wds.Loader(dataset, 20, drop_last=True) as loader:
        loader.load_state_dict(state)
        # nothing is left of that epoch, so that the next one comes
        found, told = warnings_of(loader)
        assert (len(found), told) == (1, [])


@pytest.mark.torch
def test_batches_that_torch_batches_again(urls):
    """Where ``batch_size`` is forgotten, torch adds a dimension of 1; what is asked for is nothing to warn of."""
    pytest.importorskip("torch")
    for dataset in (read(urls).batched(5), read(urls).batched(5).elastic()):
        _, told = warnings_of(lambda dataset=dataset: [wds.WebLoader(dataset)])
        assert len(told) == 1
        assert told[0].startswith("the dataset makes batches (batched(5)), and torch's batch_size=1 puts each into a ")
        for size in (None, 1):
            assert warnings_of(lambda dataset=dataset, size=size: [wds.WebLoader(dataset, batch_size=size)])[1] == []
    assert warnings_of(lambda: [wds.WebLoader(read(urls))])[1] == []


def test_an_unknown_field_in_a_function_lists_the_fields(urls):
    """Of the user's own ``sample[name]``; a key that the sample has is not what was missing."""
    with pytest.raises(KeyError) as raised:
        list(wds.WebDataset(urls, shardshuffle=False).map(lambda sample: sample["jpg"]))
    assert "the sample has __key__, __url__, npy, txt" in raised.value.__notes__
    with pytest.raises(KeyError) as raised:
        list(wds.WebDataset(urls, shardshuffle=False).map(lambda sample: dict(a=sample)["txt"]))
    assert not [note for note in raised.value.__notes__ if note.startswith("the sample has")]


def test_members_in_folders_of_their_own(tmp_path):
    """Their samples have one field each, and the error says why."""
    with wds.TarWriter(str(tmp_path / "a.tar")) as sink:
        for number in range(3):
            sink.write({"__key__": f"images/{number}", "jpg": b"x"})
            sink.write({"__key__": f"labels/{number}", "txt": b"x"})
    with pytest.raises(wds.WebDatasetError, match=r"folders included: images/0\.jpg and images/0\.txt"):
        list(wds.WebDataset(str(tmp_path / "a.tar"), shardshuffle=False).to_tuple("jpg", "txt"))
    with wds.TarWriter(str(tmp_path / "b.tar")) as sink:
        sink.write({"__key__": "images/0", "jpg": b"x", "json": json.dumps({})})
    with pytest.raises(wds.WebDatasetError) as raised:
        list(wds.WebDataset(str(tmp_path / "b.tar"), shardshuffle=False).to_tuple("jpg", "txt"))
    assert "folders included" not in str(raised.value)


def test_names_with_dots_are_several_fields(tmp_path):
    """The error names the field that was meant, and shows the first twenty of many."""
    with wds.TarWriter(str(tmp_path / "a.tar")) as sink:
        sink.write({"__key__": "cat", **{f"{number:03d}.jpg": b"x" for number in range(40)}})
    with pytest.raises(wds.WebDatasetError) as raised:
        list(wds.WebDataset(str(tmp_path / "a.tar"), shardshuffle=False).to_tuple("jpg"))
    assert "017.jpg and 22 more; did you mean '000.jpg'? A field is all that follows the first dot" in str(raised.value)


@pytest.mark.parametrize(("field", "value", "warns"), [
    ("cls", "cat", True), ("a.index", "x7", True), ("cls", "12", False), ("cls", " -3\n", False), ("cls", 7, False),
    ("cls", b"cat", False), ("txt", "cat", False), ("class", "cat", False),
])  # fmt: skip
def test_a_text_in_a_field_of_numbers(field, value, warns, tmp_path):
    """It is written, as ever, and would fail where it is decoded; bytes are the user's own."""
    path = str(tmp_path / "a.tar")
    with wds.TarWriter(path) as sink:
        _, told = warnings_of(lambda: [sink.write({"__key__": key, field: value}) for key in "ab"])
    assert len(told) == (2 if warns else 0)
    assert len(set(told)) == (1 if warns else 0)
    if warns:
        assert f"the field {field!r} is decoded as a whole number" in told[0]
        with pytest.raises(wds.WebDatasetError):
            list(wds.WebDataset(path, shardshuffle=False).decode())


def test_a_generator_in_the_place_of_its_function():
    """The second pass is empty, also where the first was broken off; a function begins again."""

    def count():
        yield from range(6)

    ended = wds.DataPipeline(count())
    assert warnings_of(ended) == ([0, 1, 2, 3, 4, 5], [])
    found, told = warnings_of(ended)
    assert found == []
    assert len(told) == 1
    assert "count), so this pass gives nothing: pass the function that makes it" in told[0]
    part = wds.DataPipeline(count()).with_epoch(3)
    assert warnings_of(part) == ([0, 1, 2], [])
    assert "this pass gives nothing" in warnings_of(part)[1][0]
    made = wds.DataPipeline(count)
    assert [warnings_of(made), warnings_of(made)] == [([0, 1, 2, 3, 4, 5], [])] * 2
