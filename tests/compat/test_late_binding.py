"""What programs change in our modules, and whom it turns; what they set on our objects; what they derive from ours."""

import importlib
import io
import pickle
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import cloudpickle
import pytest

import webdataset as wds
from webdataset import autodecode, cache, filters, tariterators, utils, writer
from webdataset.testing import archives


@pytest.fixture
def shard(tmp_path):
    """One shard of three samples."""
    path = tmp_path / "a.tar"
    path.write_bytes(archives.by_hand([(f"{n}.txt", b"%d" % n) for n in range(3)]))
    return str(path)


def keys(dataset):
    """Keys, in order."""
    return [sample["__key__"] for sample in dataset]


def test_pytorch_weights_only_at_the_top(monkeypatch):
    """Assigned at package level it is the switch itself, which upstream's copy was not."""
    assert wds.pytorch_weights_only is True
    wds.pytorch_weights_only = False
    try:
        assert autodecode.pytorch_weights_only is False
        assert wds.pytorch_weights_only is False
    finally:
        autodecode.pytorch_weights_only = True
    assert wds.pytorch_weights_only is True
    monkeypatch.setattr(wds, "pytorch_weights_only", False)
    assert autodecode.pytorch_weights_only is False


@pytest.mark.parametrize(
    "module", ["webdataset", *sorted(f"webdataset.{name}" for name in vars(wds)["_MODULES"].values())]
)
def test_modules_travel_by_name(module):
    """A function by value takes along the modules that it mentions: ``lambda sample: wds.…`` under spawn."""
    imported = importlib.import_module(module)
    assert cloudpickle.loads(cloudpickle.dumps(imported)) is imported
    assert pickle.loads(pickle.dumps(wds.gopen)) is wds.gopen


def test_functions_that_mention_the_package_reach_spawned_workers(shard, tmp_path):
    """As they stand in a program's own file: a class, a lambda, and compatibility modules that they name."""
    pytest.importorskip("torch")
    program = tmp_path / "program.py"
    program.write_text(
        "import webdataset as wds\n"
        "class Mine(wds.PipelineStage):\n"
        "    def run(self, source):\n"
        "        for sample in source:\n"
        "            yield sample if wds.utils.identity(sample) and wds.autodecode.decoders else None\n"
        "if __name__ == '__main__':\n"
        f"    dataset = wds.WebDataset({shard!r}, shardshuffle=False)\n"
        "    dataset = dataset.compose(Mine()).map(lambda sample: wds.__name__ + str(wds.gopen is not None))\n"
        "    loader = wds.WebLoader(dataset, batch_size=None, num_workers=1, multiprocessing_context='spawn')\n"
        "    print(list(loader))\n"
    )
    done = subprocess.run([sys.executable, str(program)], capture_output=True, text=True, check=False)
    assert done.stdout.strip() == str(["webdatasetTrue"] * 3), done.stderr


def test_anything_else_can_be_set_on_the_package(monkeypatch):
    """The package is a module like any other: what is assigned is what is found."""
    monkeypatch.setattr(wds, "tarfile_to_samples", "mine")
    assert wds.tarfile_to_samples == "mine"
    assert tariterators.tarfile_to_samples != "mine"


@pytest.mark.parametrize(
    ("name", "call"),
    [
        ("map", lambda ds: ds.map(len)),
        ("shuffle", lambda ds: ds.shuffle(10)),
        ("select", lambda ds: ds.select(bool)),
        ("to_tuple", lambda ds: ds.to_tuple("txt")),
        ("rename", lambda ds: ds.rename(a="txt")),
        ("batched", lambda ds: ds.batched(2)),
        ("decode", lambda ds: ds.decode()),
        ("slice", lambda ds: ds.slice(2)),
        ("map_dict", lambda ds: ds.map_dict(txt=len)),
    ],
)
def test_a_replaced_stage_turns_the_methods(shard, name, call, monkeypatch):
    """The chainable method of the same name uses what stands in ``filters`` when it is called."""
    monkeypatch.setattr(filters, name, lambda *args, **kw: lambda source: iter(["mine"]))
    assert list(call(wds.WebDataset(shard, shardshuffle=False))) == ["mine"]


def test_a_replaced_gopen_scheme_turns_the_dataset(shard, monkeypatch):
    """As for the function: an entry for a scheme of one's own."""
    payload = Path(shard).read_bytes()
    monkeypatch.setitem(wds.gopen_schemes, "mine", lambda url, mode, bufsize, **kw: io.BytesIO(payload))
    assert keys(wds.WebDataset("mine://x/y.tar", shardshuffle=False)) == ["0", "1", "2"]


def test_gopen_reached_through_tariterators(shard, monkeypatch):
    """``tariterators.gopen.gopen = f`` turns the reader, as where that is the module's own import."""
    asked = []

    def opener(url, *args, **kw):
        asked.append(url)
        return open(url, "rb")

    monkeypatch.setattr(tariterators.gopen, "gopen", opener)
    assert keys(wds.WebDataset(shard, shardshuffle=False)) == ["0", "1", "2"]
    assert asked == [shard]


def test_a_replaced_worker_info_turns_the_splitters(monkeypatch):
    """Programs whose ranks are not torch's say so; the replacement may ask the function that it replaces."""
    plain = utils.pytorch_worker_info

    def mine(group=None):
        return (1, 3, *plain(group)[2:])

    monkeypatch.setattr(utils, "pytorch_worker_info", mine)
    assert list(wds.split_by_node(iter(range(9)))) == [1, 4, 7]
    assert utils.pytorch_worker_seed() == 1000
    with pytest.raises(ValueError, match="rank 1 of 3"):
        list(wds.single_node_only(iter([])))
    monkeypatch.undo()
    assert list(wds.split_by_node(iter(range(3)))) == [0, 1, 2]


def test_a_replaced_gopen_of_the_writer_opens_paths_too(tmp_path, monkeypatch):
    """Whatever a writer is given by name; file objects are left alone."""
    asked, kept = [], io.BytesIO()

    def mine(url, mode="rb", *args, **kw):
        asked.append((url, mode))
        return open(tmp_path / "mine.tar", mode)

    monkeypatch.setattr(writer, "gopen", mine)
    with wds.TarWriter(str(tmp_path / "a.tar")) as sink:
        sink.write({"__key__": "a", "txt": "x"})
    with wds.TarWriter(kept) as sink:
        sink.write({"__key__": "a", "txt": "x"})
    assert asked == [(str(tmp_path / "a.tar"), "wb")]
    assert (tmp_path / "mine.tar").read_bytes() == kept.getvalue()
    assert not (tmp_path / "a.tar").exists()
    with pytest.raises(ValueError, match="overwrite=False"):
        wds.TarWriter(str(tmp_path / "a.tar"), overwrite=False)


@pytest.mark.parametrize("name", ["FileCache", "StreamingOpen"])
def test_a_replaced_opener_of_the_cache_module_turns_the_dataset(shard, tmp_path, name, monkeypatch):
    """With a cache directory ``cache.FileCache`` opens the shards, without one ``cache.StreamingOpen``."""
    seen = []

    class Mine(getattr(cache, name)):  # type: ignore[misc]
        def __call__(self, urls):
            for opened in super().__call__(urls):
                seen.append(opened["url"])
                yield opened

    monkeypatch.setattr(cache, name, Mine)
    folder = {"cache_dir": tmp_path} if name == "FileCache" else {}
    assert keys(wds.WebDataset(f"pipe:cat {shard}", shardshuffle=False, **folder)) == ["0", "1", "2"]
    assert seen == [f"pipe:cat {shard}"]


def test_attributes_are_settable_and_travel(shard):
    """Programs hang counts and labels on datasets, and expect them behind copies and pickles."""
    dataset = wds.WebDataset(shard, shardshuffle=False)
    dataset.classes, dataset.templates = ["a"], {"x": 1}
    dataset.num_batches = dataset.num_samples = 7
    assert dataset.map(len).classes == ["a"]
    for library in (pickle, cloudpickle):
        copy = library.loads(library.dumps(dataset))
        assert (copy.classes, copy.templates, copy.num_samples) == (["a"], {"x": 1}, 7)


# -- classes of others


class Epochs(wds.ResampledShards):
    """A shard list of one's own."""

    def __iter__(self):
        yield from ({"url": url} for url in reversed(self.urls))


class Stage(wds.PipelineStage):
    """A stage of one's own."""

    def run(self, src):
        for sample in src:
            yield {**sample, "mine": True}


class Chain(wds.DataPipeline, wds.FluidInterface):
    """A pipeline of one's own with the chainable methods, as several projects write it."""

    def __init__(self, urls, extra):
        super().__init__()
        self.extra = extra
        self.append(wds.SimpleShardList(urls))
        self.append(wds.tarfile_to_samples())


class Dataset(wds.WebDataset):
    """A dataset of one's own, with further arguments and a method."""

    def __init__(self, urls, *, limit, **kw):
        super().__init__(urls, shardshuffle=False, **kw)
        self.limit = limit
        self.append(wds.slice(limit))

    def __len__(self):
        return self.limit


def test_classes_are_derived_from(shard):
    """Each does what it says, chains on as itself, and pickles."""
    assert keys(wds.DataPipeline(Epochs([shard]), wds.tarfile_to_samples(), Stage())) == ["0", "1", "2"]
    chain = Chain(shard, extra=5).shuffle(10).map(lambda sample: sample)
    assert isinstance(chain, Chain)
    assert chain.extra == 5
    assert sorted(keys(chain)) == ["0", "1", "2"]
    dataset = pickle.loads(pickle.dumps(Dataset(shard, limit=2).map(lambda sample: sample)))
    assert isinstance(dataset, Dataset)
    assert len(dataset) == 2
    assert keys(dataset) == ["0", "1"]


def test_a_dataset_of_torch_is_a_stage_and_a_source():
    """``webdataset.pytorch.IterableDataset`` is torch's, and a subclass of it may stand first."""
    data = pytest.importorskip("torch.utils.data")
    from webdataset.pytorch import IterableDataset

    assert IterableDataset is data.IterableDataset is wds.compat.IterableDataset

    class Numbers(IterableDataset):
        def __iter__(self):
            yield from range(3)

    assert list(wds.DataPipeline(Numbers(), wds.map(lambda n: n + 1))) == [1, 2, 3]


# -- being torch's

OBJECTS = {
    "WebDataset": lambda: wds.WebDataset("x.tar"),
    "with_length": lambda: wds.WebDataset("x.tar").with_length(3),
    "derived": lambda: Dataset("x.tar", limit=2),
    "DataPipeline": lambda: wds.DataPipeline([1]),
    "FluidWrapper": lambda: wds.FluidWrapper([1]),
    "SimpleShardList": lambda: wds.SimpleShardList("x.tar"),
    "ResampledShards": lambda: wds.ResampledShards("x.tar"),
    "RandomMix": lambda: wds.RandomMix([[1], [2]]),
    "RoundRobin": lambda: wds.RoundRobin([[1], [2]]),
    "MockDataset": lambda: wds.MockDataset("sample", 2),
    "with_epoch": lambda: wds.with_epoch([1], 2),
}


@pytest.mark.parametrize("name", OBJECTS)
def test_isinstance_of_torchs_datasets(name):
    """Of ``Dataset`` and of ``IterableDataset``, whichever is asked first; ``type`` stays what it is."""
    data = pytest.importorskip("torch.utils.data")
    made = OBJECTS[name]()
    assert isinstance(made, data.Dataset)
    assert isinstance(made, data.IterableDataset)
    assert isinstance(made, type(made))
    assert not isinstance(made, data.DataLoader)
    assert made.__class__ == type(made)  # noqa: E721  equal, though not identical
    assert {type(made): 1}[made.__class__] == 1
    assert issubclass(type(made), data.IterableDataset)


@pytest.mark.parametrize("protocol", range(2, pickle.HIGHEST_PROTOCOL + 1))
@pytest.mark.parametrize("name", OBJECTS)
def test_pickles_name_the_class_itself(name, protocol):
    """With torch loaded as without, and by cloudpickle."""
    pytest.importorskip("torch.utils.data")
    made = OBJECTS[name]()
    assert isinstance(made.__class__, type)
    for pickled in (pickle.dumps(made, protocol), cloudpickle.dumps(made, protocol)):
        assert type(pickle.loads(pickled)) is type(made)


def test_code_that_writes_self_class():
    """``self.__class__(…)`` and ``cls.__new__(cls)`` give objects of the class itself."""
    pytest.importorskip("torch.utils.data")
    made = wds.SimpleShardList("x.tar")
    again = made.__class__("y.tar")
    assert type(again) is wds.SimpleShardList
    assert again.urls == ["y.tar"]
    kind = made.__class__
    assert type(kind.__new__(kind)) is wds.SimpleShardList


def test_a_class_that_does_not_mix_is_torchs_still():
    """Where a metaclass stands in the way, the ABC is all there is."""
    data = pytest.importorskip("torch.utils.data")

    class Meta(type):
        pass

    class Odd(wds.DataPipeline, metaclass=Meta):
        pass

    assert isinstance(Odd([1]), data.IterableDataset)
    assert pickle.loads(pickle.dumps(Odd([1]))).pipeline == [1]


def test_two_datasets_added_are_a_chain(shard):
    """As torch's datasets do."""
    data = pytest.importorskip("torch.utils.data")
    dataset = wds.WebDataset(shard, shardshuffle=False)
    chained = dataset + dataset
    assert isinstance(chained, data.ChainDataset)
    assert keys(chained) == ["0", "1", "2"] * 2


def test_nothing_of_this_loads_torch():
    """Asking a dataset for its class does not import torch; adding two says what to import."""
    code = (
        "import sys, webdataset as wds; ds = wds.WebDataset('x.tar'); assert ds.__class__ is wds.WebDataset\n"
        "try: ds + ds\nexcept ValueError as error: assert 'torch.utils.data' in str(error)\n"
        "assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


# -- travel


def test_whole_pipelines_travel(shard):
    """Every stage of a training pipeline, lambdas and partials included, by pickle and cloudpickle."""
    import functools

    def own_stage(source, times):
        for sample in source:
            yield from [sample] * times

    pipeline = wds.DataPipeline(
        wds.ResampledShards(shard, 2, deterministic=True),
        wds.split_by_node,
        wds.split_by_worker,
        wds.tarfile_to_samples(handler=wds.warn_and_continue),
        functools.partial(own_stage, times=2),
        wds.shuffle(10, rng=random.Random(1)),
        wds.decode("rgb8", handler=wds.warn_and_continue),
        wds.rename(text="txt", key="__key__"),
        wds.map_dict(text=lambda text: text + "!"),
        wds.select(lambda sample: sample["text"] != "9!"),
        wds.to_tuple("text", "key"),
        wds.map_tuple(str.upper, None),
        wds.batched(4, partial=False),
    ).with_epoch(3)
    expected = list(pickle.loads(pickle.dumps(pipeline)))
    assert len(expected) == 3
    assert list(cloudpickle.loads(cloudpickle.dumps(pipeline))) == expected


def test_modules_that_say_what_to_use_are_found_by_importlib():
    """``importlib.import_module`` and attribute access agree for every compatibility module."""
    for name in ("gopen", "tariterators", "filters", "cache", "shardlists", "handlers", "writer", "mix", "utils"):
        assert importlib.import_module(f"webdataset.{name}") is getattr(wds, name)


def test_both_orders(shard):
    """Positional calls of 0.2.86 and 1.0.2 are told apart where their orders differ."""
    raising, warning = wds.reraise_exception, wds.warn_and_continue
    older = wds.WebDataset(shard, raising, False, True, 2, 0, None, None, False, None, None, str.upper)  # type: ignore[arg-type]
    newer = wds.WebDataset(
        shard, raising, None, False, True, 2, 0, None, None, False, None, wds.split_by_worker, None, str.upper
    )
    assert [sample["__key__"] for sample, _ in zip(older, range(4))] == ["0", "1", "2", "0"]
    assert str(older.pipeline) == str(newer.pipeline)
    assert older.repetitions == newer.repetitions
    with pytest.raises(TypeError, match="multiple values for argument 'resampled'"):
        wds.WebDataset(shard, raising, True, resampled=True)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="too many"):
        wds.WebDataset(shard, raising, *[False] * 12)  # type: ignore[arg-type]
    draws = [list(wds.ResampledShards("x{0..9}", 5, *rest)) for rest in ((None, True), (lambda: 0, True))]
    assert draws[0] == draws[1] == list(wds.ResampledShards("x{0..9}", 5, None, None, True))
    makers: list[Any] = [wds.shuffle, filters._shuffle]
    for maker in makers:
        source = () if maker is wds.shuffle else (iter(range(9)),)
        first, second = (maker(*source, 5, 2, random.Random(3), *rest) for rest in ((warning,), (None, warning)))
        source = iter(range(9))
        assert list(first(source) if maker is wds.shuffle else first) == list(
            second(iter(range(9))) if maker is wds.shuffle else filters._shuffle(iter(range(9)), 5, 2, random.Random(3))
        )
