"""The loader with tensors: as samples, as batches, on a device."""

import gc
import json
import os
import pickle
import subprocess
import sys
import weakref
from typing import Any

import numpy as np
import pytest

import webdataset as wds
from webdataset.core.errors import NoSamples, UsageError
from webdataset.loading.torch_trainers import gather_states

torch = pytest.importorskip("torch")
StateLoader = pytest.importorskip("webdataset.loading.torch_loader").StateLoader
pytestmark = pytest.mark.torch

MODES = [(0, "threads"), (2, "threads"), (2, "processes")]


def loader(samples, batch_size=None, workers=0, mode="threads", **kw):
    """Return a loader; processes are forked."""
    start_method = "fork" if mode == "processes" else None
    return wds.Loader(samples, batch_size, workers=workers, mode=mode, start_method=start_method, **kw)


@pytest.mark.parametrize(("workers", "mode"), MODES)
def test_samples_with_tensors_become_batches_of_tensors(workers, mode):
    """Tensors are stacked, those that numpy cannot hold too, and keep their type."""
    kinds = (torch.float32, torch.int64, torch.bool, torch.bfloat16)
    samples = [{"n": n, **{str(kind): torch.full((3, 2), n % 2).to(kind) for kind in kinds}} for n in range(20)]
    with loader(samples, 4, workers, mode) as batches:
        for _ in range(2):
            for start, batch in zip(range(0, 20, 4), batches, strict=True):
                expected = wds.default_collation_fn(samples[start : start + 4])
                for field, column in expected.items():
                    assert type(batch[field]) is type(column)
                    assert batch[field].dtype == column.dtype
                    assert (batch[field] == column).all()


@pytest.mark.parametrize(("workers", "mode"), MODES)
def test_a_device_gives_tensors(workers, mode):
    """Arrays arrive as tensors on the device; numbers of no tensor's kind, and texts, as they are."""
    samples = [(np.full((3, 2), n, np.float32), n, f"text {n}", np.array(["a"])) for n in range(20)]
    with loader(samples, 4, workers, mode, device="cpu") as batches:
        for start, (pixels, numbers, texts, words) in zip(range(0, 20, 4), batches, strict=True):
            assert isinstance(pixels, torch.Tensor)
            assert pixels.dtype == torch.float32
            assert pixels[:, 0, 0].tolist() == list(range(start, start + 4))
            assert isinstance(numbers, torch.Tensor)
            assert numbers.tolist() == list(range(start, start + 4))
            assert texts == [f"text {n}" for n in range(start, start + 4)]
            assert isinstance(words, np.ndarray)


def test_tensors_are_the_batch_without_a_copy():
    """A tensor on the CPU is the memory that workers wrote to, and holds it while it lives."""
    samples = [(np.full((64, 64), n), n) for n in range(80)]
    with loader(samples, 4, 2, device="cpu", prefetch=2) as batches:
        kept = [pixels[1:3, 0] for pixels, _ in batches]
        assert [int(view[0, 0]) for view in kept] == list(range(1, 80, 4))
        size = 4 * 64 * 64 * 8
        assert batches.stats().memory_bytes >= len(kept) * size - 3 * size


def test_states_belong_to_what_was_moved(tmp_path):
    """With a device, too, a state is after the batch that was received."""
    path = str(tmp_path / "a.tar")
    with wds.TarWriter(path) as writer:
        for n in range(40):
            writer.write({"__key__": f"{n:03d}", "npy": np.full(3, n), "cls": n})
    dataset = wds.WebDataset(path, seed=1).decode().to_tuple("npy", "cls").elastic(streams=4)
    with loader(dataset, 8, 2, device="cpu") as batches:
        received = []
        for _, (_, numbers) in zip(range(2), batches, strict=False):
            received += numbers.tolist()
            state = json.loads(json.dumps(batches.state_dict()))
    with loader(dataset, 8) as others:
        others.load_state_dict(state)
        received += [int(n) for _, numbers in others for n in numbers]
    assert sorted(received) == list(range(40))


def test_lists_of_ragged_arrays_are_moved_one_by_one():
    """A ragged column is a list of tensors."""
    samples = [{"x": np.full(n + 1, n)} for n in range(4)]
    with loader(samples, 4, device="cpu") as batches:
        (batch,) = list(batches)
    assert [each.tolist() for each in batch["x"]] == [[0], [1, 1], [2, 2, 2], [3, 3, 3, 3]]
    assert all(isinstance(each, torch.Tensor) for each in batch["x"])


def test_a_device_that_is_not_there_is_refused():
    """The message names it."""
    if torch.cuda.is_available():
        pytest.skip("this machine has a GPU")
    with pytest.raises(UsageError, match="cuda"):
        loader([1], device="cuda")


def test_a_batch_on_a_gpu_is_what_it_is_here():
    """Batches copied ahead, through page-locked memory or not, hold what the workers wrote."""
    if not torch.cuda.is_available():
        pytest.skip("no GPU")
    samples = [(np.full((256, 256), n, np.float32), n) for n in range(200)]
    for pin_memory in (False, True):
        with loader(samples, 8, 2, device="cuda", pin_memory=pin_memory) as batches:
            for _ in range(2):
                for start, (pixels, numbers) in zip(range(0, 200, 8), batches, strict=True):
                    assert pixels.is_cuda
                    assert numbers.tolist() == list(range(start, start + 8))
                    assert (pixels == numbers[:, None, None]).all()


@pytest.mark.filterwarnings("error")
def test_a_device_takes_arrays_that_torch_cannot_share():
    """Flipped and read-only arrays of a ragged field are copied; numbers that torch does not have stay arrays."""
    fixed = np.arange(6.0)
    fixed.flags.writeable = False
    samples = [(np.arange(3.0)[::-1], np.zeros(2, np.longdouble)), (fixed, np.ones(2, np.longdouble))]
    with loader(samples, 2, device="cpu") as batches:
        ((ragged, long),) = batches
    assert [tensor.tolist() for tensor in ragged] == [[2, 1, 0], fixed.tolist()]
    assert isinstance(long, np.ndarray)


def test_an_error_does_not_overtake_batches_on_their_way_to_a_device(monkeypatch):
    """A batch whose copy was started is handed out before the error of the next one."""
    from webdataset.loading.torch_device import DevicePrefetcher

    mover = DevicePrefetcher("cpu", pin_memory=False)
    mover.ahead = 1
    monkeypatch.setattr(torch.cuda, "Stream", lambda device: None)

    def batches():
        yield np.zeros(1), 1
        yield np.ones(1), 2
        raise ArithmeticError("the third")

    got = []
    with pytest.raises(ArithmeticError, match="third"):
        got.extend(mark for _, mark in mover.move_batches(batches()))
    assert got == [1, 2]


@pytest.mark.parametrize(("workers", "mode"), MODES)
def test_tensors_without_dimensions_are_batched_to_the_end(workers, mode):
    """A smaller last batch of single numbers is a tensor, as all others."""
    samples = [(torch.tensor(n), torch.full((2,), n)) for n in range(22)]
    with loader(samples, 4, workers, mode) as batches:
        for first, (ones, twos) in zip(range(0, 22, 4), batches, strict=True):
            assert ones.tolist() == list(range(first, min(22, first + 4)))
            assert twos[:, 1].tolist() == ones.tolist()


@pytest.mark.parametrize(("workers", "mode"), MODES)
def test_sparse_tensors_are_delivered(workers, mode):
    """What has no size in bytes is weighed as something small."""
    samples = [(torch.eye(3).to_sparse() * n, n) for n in range(8)]
    with loader(samples, 4, workers, mode) as batches:
        (first, _), _ = batches
        assert first.to_dense()[2].tolist() == [[2, 0, 0], [0, 2, 0], [0, 0, 2]]


@pytest.mark.parametrize("workers", [0, 1, 2])
def test_a_torch_loader_of_an_empty_dataset_says_so(tmp_path, workers):
    """An elastic dataset without a sample is an error, also where no worker alone can know it."""
    with wds.TarWriter(tmp_path / "empty.tar"):
        pass
    dataset = wds.WebDataset(str(tmp_path / "empty.tar")).elastic(streams=4)
    with pytest.raises(NoSamples):
        list(wds.WebLoader(dataset, batch_size=None, num_workers=workers))
    allowed = wds.WebDataset(str(tmp_path / "empty.tar"), empty_check=False).elastic(streams=4)
    assert list(wds.WebLoader(allowed, batch_size=None, num_workers=workers)) == []


RANK_OF_TWO = """
import json, os, sys
import torch.distributed as distributed
from webdataset.core.errors import UsageError
from webdataset.loading.torch_trainers import gather_states
try:
    gather_states({})
except UsageError as error:
    told = str(error)
rank = int(os.environ["RANK"])
distributed.init_process_group("gloo", init_method=f"file://{sys.argv[1]}/meeting", rank=rank, world_size=2)
print(json.dumps([told, gather_states({"of": rank})]))
distributed.destroy_process_group()
"""


def test_states_of_all_ranks_are_gathered(tmp_path):
    """Two ranks each get the states of both, in order; without a process group they say that there is none."""
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", RANK_OF_TWO, str(tmp_path)],
            env={**os.environ, "RANK": str(rank), "WORLD_SIZE": "2", "GLOO_SOCKET_IFNAME": "lo"},
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    for each in ranks:
        told, states = json.loads(each.communicate()[0].splitlines()[-1])
        assert each.returncode == 0
        assert told == "this is one of 2 ranks, and torch.distributed is not initialized"
        assert states == [{"of": 0}, {"of": 1}]
    assert gather_states({"of": 0}) == [{"of": 0}]


def test_a_pickled_torch_loader_holds_nothing_of_its_workers(tmp_path):
    """Persistent workers stay with the loader that started them; the copy starts its own."""
    with wds.TarWriter(str(tmp_path / "a.tar")) as sink:
        for number in range(6):
            sink.write({"__key__": f"{number}", "txt": "x"})
    made = wds.WebDataset(str(tmp_path / "a.tar"), shardshuffle=False).map(dict).elastic(2)
    begun = StateLoader(made, batch_size=None, num_workers=1, persistent_workers=True)
    next(iter(begun))
    copied = pickle.loads(pickle.dumps(begun))
    unwanted = {name for name, value in vars(copied).items() if name not in vars(begun)}
    assert (copied._release, unwanted) == (None, set())


def test_a_batch_is_let_go_of_once_it_is_handed_out():
    """While the next one is made, memory of the one before can be used again."""
    from webdataset.loading.torch_device import DevicePrefetcher

    alive = []

    def made(number):
        array = np.full(100, number)
        alive.append(weakref.ref(array))
        return array

    given: Any = ((made(number), number) for number in range(3))
    moved: Any = DevicePrefetcher("cpu", pin_memory=False).move_batches(given)
    for number in range(3):
        batch, mark = next(moved)
        assert (batch[0].item(), mark) == (number, number)
        assert alive[number]() is not None
        del batch
        gc.collect()
        assert alive[number]() is None


@pytest.mark.parametrize("further", [False, True], ids=["loader", "loader and a stage"])
def test_a_rank_is_described_with_its_loader(numbered, further):
    """Number of workers and size of batches are the loader's, also where stages stand after it."""
    from webdataset.loading.torch_distributed import compute_rank_fingerprint

    dataset = wds.WebDataset(numbered[:4], shardshuffle=False, seed=7).map(len)
    loader = wds.WebLoader(dataset, batch_size=4, num_workers=2)
    found = compute_rank_fingerprint(loader.shuffle(3) if further else loader)
    assert (found["seed"], found["workers"], found["batch size"]) == (7, 2, "4")
    own = compute_rank_fingerprint(dataset)
    assert (own["workers"], own["batch size"]) == ("none", "None")
    shards = "order of shards before they are shared out"
    assert own[shards] == found[shards]


@pytest.mark.parametrize("device", [2.5, [1], {}])
def test_a_device_that_is_none(device):
    """The error says what a device is."""
    with pytest.raises(UsageError, match="write device='cpu'"):
        wds.Loader([1], 1, device=device)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (("train.tar",), r"not urls: write wds\.WebLoader\(wds\.WebDataset\(urls"),
        ((None,), "reads a dataset, not None"),
        ((iter([1, 2]),), r"wds\.FluidWrapper\(samples\)"),
        ((wds.WebDataset,), "not its class"),
        (([1], 1, False, None, None, 0, "x"), "collate_fn='x': a function of a list of samples"),
        (([1], "4"), "batch_size='4': a whole number"),
        ({"num_workers": "x"}, "num_workers='x': a whole number"),
        ({"num_workers": 1.5}, r"num_workers=1\.5"),
        ({"num_workers": 1, "prefetch_factor": "x"}, "prefetch_factor='x'"),
        ({"num_workers": 1, "worker_init_fn": "x"}, "worker_init_fn='x'"),
        ({"timeout": "x"}, "timeout='x': seconds"),
    ],
)
def test_wrong_arguments_of_torchs_loader(given, said):
    """They fail where they are given, not with the first batch or in a worker."""
    arguments, options = (given, {}) if isinstance(given, tuple) else (([1, 2],), given)
    with pytest.raises(UsageError, match=said):
        wds.WebLoader(*arguments, **options)


def test_what_torch_takes_is_passed_on():
    """What has samples by number, what it looks up itself, and what it says itself."""

    class Looked(torch.utils.data.Dataset):
        def __getitem__(self, index):
            return {"a": 1, "b": 2}[index]

    assert list(wds.WebLoader(Looked(), batch_size=None, sampler=["a", "b"])) == [1, 2]
    assert list(wds.WebLoader(wds.FluidWrapper([[1, 2]]), 2, timeout=0.0, collate_fn=None))
    with pytest.raises(TypeError, match="wrong"):
        wds.WebLoader([1], wrong=1)
