"""Datasets under torch's DataLoader: every way of starting workers, nothing lost, nothing twice, no torch unasked."""

import pickle
import subprocess
import sys
from collections import Counter
from typing import Any

import pytest

import webdataset as wds
from webdataset.core.errors import FlowError
from webdataset.testing import archives

STARTS = ["fork", "forkserver", "spawn"]


@pytest.fixture
def shards(tmp_path):
    """A maker of shards: urls, and the keys in them."""

    def make(count, each=7):
        urls, keys = [], []
        for shard in range(count):
            members = [
                (f"{shard}-{index}.{field}", f"{shard}{index}".encode())
                for index in range(each)
                for field in ("cls", "txt")
            ]
            path = tmp_path / f"{count}-{shard}.tar"
            path.write_bytes(archives.by_hand(members))
            urls.append(str(path))
            keys += [f"{shard}-{index}" for index in range(each)]
        return urls, keys

    return make


def run(script, *arguments):
    """Run a script in a fresh interpreter and return what it printed."""
    done = subprocess.run([sys.executable, "-W", "error", "-c", script, *arguments], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


HEAVY = "[name for name in ('torch', 'numpy', 'PIL') if name in sys.modules]"


@pytest.mark.parametrize(
    "script",
    [
        "import webdataset",
        "import webdataset; webdataset.WebDataset; webdataset.DataPipeline; webdataset.SimpleShardList",
        "import webdataset as wds; wds.WebDataset('x.tar', shardshuffle=False).shuffle(10).map(dict).to_tuple('a')",
        "import webdataset; webdataset.WebLoader; webdataset.TarWriter; webdataset.ShardWriter; webdataset.gopen",
        "from webdataset import filters, tariterators, shardlists, handlers, pipeline, compat, gopen, cache, mix",
    ],
)
def test_imports_are_light(script):
    """With or without them installed, importing and describing loads none of torch, numpy and Pillow."""
    assert run(f"import sys\n{script}\nprint({HEAVY})") == "[]"


def test_reading_is_light(shards):
    """Neither does reading and decoding text."""
    urls, _ = shards(1)
    script = (
        "import sys, webdataset as wds\n"
        "found = list(wds.WebDataset(sys.argv[1], shardshuffle=False).decode().to_tuple('cls', 'txt'))\n"
        "assert len(found) == 7\n"
        "print([name for name in ('torch', 'PIL') if name in sys.modules])"
    )
    assert run(script, urls[0]) == "[]"


@pytest.mark.torch
@pytest.mark.parametrize(
    "script",
    [
        "import torch, webdataset as wds; d = wds.WebDataset('x.tar', shardshuffle=False)",
        "import webdataset as wds; d = wds.WebDataset('x.tar', shardshuffle=False); import torch",
        "import webdataset as wds; wds.DataPipeline; import torch; d = wds.DataPipeline([1])",
        "import webdataset as wds; d = wds.DataPipeline([1]); import torch.utils.data",
        "from webdataset import WebDataset; import torch; d = WebDataset('x.tar', shardshuffle=False).map(len)",
    ],
)
def test_datasets_are_iterable_datasets_whichever_came_first(script):
    """Isinstance and issubclass hold in any order of imports; other objects gain nothing by it."""
    pytest.importorskip("torch")
    script += (
        "\nfrom torch.utils.data import IterableDataset, Dataset"
        "\nprint(isinstance(d, IterableDataset), issubclass(type(d), IterableDataset),"
        " isinstance([], IterableDataset), isinstance(object(), Dataset), issubclass(dict, IterableDataset))"
        "\nclass Own(IterableDataset):\n  def __iter__(self): return iter(())"
        "\nassert isinstance(Own(), IterableDataset) and not isinstance(d, Own)"
    )
    assert run(script) == "True True False False False"


@pytest.fixture(scope="module")
def torch():
    """Torch, where it is installed."""
    return pytest.importorskip("torch")


def in_order(batches):
    """Keys that a loader gave."""
    return [key for batch in batches for key in ([batch] if isinstance(batch, str) else batch)]


@pytest.mark.torch
@pytest.mark.filterwarnings("ignore:This DataLoader will create")
@pytest.mark.parametrize("count", [1, 2, 3, 5])
@pytest.mark.parametrize("workers", [0, 1, 2, 3])
def test_each_sample_once(torch, shards, count, workers):
    """For any number of workers up to that of shards, and for more of them where emptiness is allowed."""
    urls, keys = shards(count)
    allowed: dict[str, Any] = {} if workers <= count else {"empty_check": False}
    dataset = wds.WebDataset(urls, shardshuffle=count > 2, **allowed).map(lambda sample: sample["__key__"])
    loader = torch.utils.data.DataLoader(dataset, batch_size=None, num_workers=workers)
    for _ in range(2):
        assert Counter(loader) == Counter(keys)


@pytest.mark.torch
@pytest.mark.slow
@pytest.mark.parametrize("start", STARTS)
def test_every_way_of_starting_workers(torch, shards, start):
    """Lambdas, local functions and closures travel to workers that are forked, spawned or served."""
    urls, keys = shards(2)
    offset = 10

    def shifted(number):
        return int(number) + offset

    class Local:
        def __call__(self, sample):
            return {**sample, "by": "local class"}

    dataset = (
        wds.WebDataset(urls, shardshuffle=False, handler=lambda error: False)
        .select(lambda sample: True)
        .map(Local())
        .map_dict(cls=shifted)
        .to_tuple("__key__", "cls", "by")
        .map_tuple(None, lambda number: number * 2, str.upper)
        .batched(3)
    )
    loader = torch.utils.data.DataLoader(
        dataset, batch_size=None, num_workers=2, multiprocessing_context=start, persistent_workers=True
    )
    for _ in range(2):
        found = {}
        for names, numbers, texts in loader:
            assert set(texts) == {"LOCAL CLASS"}
            found.update(zip(names, [int(number) for number in numbers], strict=True))
        assert found == {key: (int(key.replace("-", "")) + 10) * 2 for key in keys}


@pytest.mark.torch
@pytest.mark.slow
@pytest.mark.parametrize("start", STARTS)
def test_pipelines_of_stages_under_every_start(torch, shards, start):
    """A DataPipeline with generator functions and partial stages, and the tar reader used uncalled."""
    urls, keys = shards(2)

    def doubled(source):
        for sample in source:
            yield sample
            yield sample

    pipeline = wds.DataPipeline(
        wds.SimpleShardList(urls),
        wds.split_by_worker,
        wds.tarfile_to_samples(),
        doubled,
        wds.map(lambda s: s["__key__"]),
    )
    loader = torch.utils.data.DataLoader(pipeline, batch_size=None, num_workers=2, multiprocessing_context=start)
    assert Counter(loader) == Counter(keys + keys)


@pytest.mark.torch
@pytest.mark.parametrize("workers", [0, 2])
def test_torch_batches_and_collates(torch, shards, workers):
    """Without batching of ours, torch's own batching works on dicts of decoded values."""
    urls, keys = shards(2)
    dataset = wds.WebDataset(urls, shardshuffle=False).decode().map(lambda s: {"key": s["__key__"], "cls": s["cls"]})
    loader = torch.utils.data.DataLoader(dataset, batch_size=4, num_workers=workers)
    batches = list(loader)
    assert Counter(in_order(batch["key"] for batch in batches)) == Counter(keys)
    assert all(batch["cls"].dtype == torch.int64 for batch in batches)


@pytest.mark.torch
@pytest.mark.parametrize("workers", [0, 2])
def test_web_loader_rebatches(torch, shards, workers):
    """The documented recipe: batches made in workers, taken apart, shuffled over workers, batched anew."""
    urls, keys = shards(4)
    dataset = wds.WebDataset(urls, shardshuffle=True).decode().to_tuple("__key__", "cls").batched(3)
    loader = wds.WebLoader(dataset, batch_size=None, num_workers=workers).unbatched().shuffle(100).batched(5)
    batches = list(loader)
    assert Counter(in_order(batch[0] for batch in batches)) == Counter(keys)
    assert {len(batch[0]) for batch in batches} <= {5, len(keys) % 5}
    assert in_order(batch[0] for batch in batches) != keys


@pytest.mark.torch
def test_web_loader_takes_torchs_arguments(torch, shards):
    """As trainings pass them, and attributes may be set on loaders and datasets."""
    urls, keys = shards(2)
    dataset = wds.WebDataset(urls, shardshuffle=False).to_tuple("__key__")
    dataset.classes = ["cat", "dog"]
    started = []
    loader = wds.WebLoader(
        dataset, batch_size=None, shuffle=False, num_workers=1, persistent_workers=True, prefetch_factor=3,
        pin_memory=False, worker_init_fn=started.append,
    )  # fmt: skip
    loader.num_batches, loader.num_samples = 4, 28
    assert Counter(key for (key,) in loader) == Counter(keys)
    assert (loader.num_batches, loader.num_samples, dataset.classes) == (4, 28, ["cat", "dog"])


@pytest.mark.torch
def test_with_epoch_and_length(torch, shards):
    """Epochs of a fixed size, and a length that progress bars and schedulers can ask for."""
    urls, _ = shards(2)
    dataset = wds.WebDataset(urls, shardshuffle=False).to_tuple("__key__").batched(2)
    loader = wds.WebLoader(dataset, batch_size=None, num_workers=2).with_epoch(5).with_length(5, silent=True)
    assert len(loader) == 5
    assert len(list(loader)) == len(list(loader)) == 5


@pytest.mark.torch
def test_errors_in_workers_keep_their_places(torch, shards, tmp_path):
    """A damaged shard in a worker: the error's text names url and offset on this side."""
    urls, _ = shards(1)
    path = tmp_path / "broken.tar"
    data = archives.by_hand([("a.txt", b"1"), ("b.txt", b"2")])
    path.write_bytes(data[:1030] + b"!" + data[1031:])
    dataset = wds.WebDataset([urls[0], str(path)], shardshuffle=False).to_tuple("__key__")
    with pytest.raises(ValueError, match=r"broken\.tar.*offset=1024") as caught:
        list(torch.utils.data.DataLoader(dataset, batch_size=None, num_workers=1))
    assert "1024" in str(caught.value)


@pytest.mark.torch
@pytest.mark.parametrize("elastic", [False, True])
def test_an_error_of_a_class_that_only_the_worker_knows(torch, shards, elastic):
    """It arrives as FlowError with its words; torch alone would drop it, and end the epoch early or never."""

    def broken(sample):
        class Own(Exception):
            pass

        if sample["__key__"] == "0-3":
            raise Own("this is planned")
        return sample

    dataset = wds.WebDataset(shards(1)[0], shardshuffle=False).map(broken)
    dataset = dataset.elastic() if elastic else dataset
    with pytest.raises(FlowError, match="Own: this is planned"):
        list(wds.WebLoader(dataset, batch_size=None, num_workers=1, timeout=60))


OWN_ERROR = """
import sys
import webdataset as wds

class Own(Exception):
    pass

def broken(sample):
    if sample["__key__"] == "0-3":
        raise Own("this is planned")
    return sample

if __name__ == "__main__":
    for elastic in (False, True):
        dataset = wds.WebDataset(sys.argv[2:], shardshuffle=False).map(broken)
        dataset = dataset.elastic() if elastic else dataset
        for loader in (
            wds.WebLoader(dataset, batch_size=None, num_workers=1, timeout=60, multiprocessing_context=sys.argv[1]),
            wds.Loader(dataset, workers=1, mode="processes", start_method=sys.argv[1]),
        ):
            try:
                list(loader)
            except Own as error:
                print("this is planned" in str(error))
"""


@pytest.mark.torch
@pytest.mark.parametrize("start", STARTS)
def test_a_script_catches_the_errors_that_it_defines(torch, shards, tmp_path, start):
    """A class of the program's script is the same class after it was raised in a worker."""
    script = tmp_path / "script.py"
    script.write_text(OWN_ERROR)
    command = [sys.executable, script, start, *shards(1)[0]]
    done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=300)
    assert done.stdout.split() == ["True"] * 4, done.stderr


@pytest.mark.torch
def test_fewer_shards_than_workers_is_told(torch, shards):
    """A worker without shards says so, with the numbers; empty_check=False accepts it."""
    urls, keys = shards(1)
    dataset = wds.WebDataset(urls, shardshuffle=False).to_tuple("__key__")
    with pytest.raises(ValueError, match="empty_check"):
        list(torch.utils.data.DataLoader(dataset, batch_size=None, num_workers=2))
    dataset = wds.WebDataset(urls, shardshuffle=False, empty_check=False).to_tuple("__key__")
    found = list(torch.utils.data.DataLoader(dataset, batch_size=None, num_workers=2))
    assert [key for (key,) in found] == keys


@pytest.mark.parametrize("protocol", [2, pickle.HIGHEST_PROTOCOL])
def test_pipelines_pickle_with_all_they_hold(shards, protocol):
    """By the standard pickle, lambdas included, before and after running, attributes kept."""
    urls, keys = shards(2)
    dataset = (
        wds.WebDataset(urls, shardshuffle=False)
        .map(lambda sample: sample["__key__"] + "!")
        .with_length(14, silent=True)
    )
    dataset.classes = ["cat"]
    for _ in range(2):
        copy = pickle.loads(pickle.dumps(dataset, protocol))
        assert list(copy) == list(dataset) == [key + "!" for key in keys]
        assert (len(copy), copy.classes) == (14, ["cat"])
