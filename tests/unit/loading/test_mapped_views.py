"""Views of mapped shards through worker processes: they arrive as views of the same file, as bytes, or as an error."""

import errno
import gc
import mmap
import os
import pickle
import struct
from multiprocessing import Pipe
from pathlib import Path

import numpy as np
import pytest

import webdataset as wds
from webdataset.core.errors import ShardChanged
from webdataset.loading import mapped_views, message_pipe
from webdataset.loading.ipc import PartReceiver, PartSender
from webdataset.loading.mapped_views import ViewReceiver
from webdataset.loading.message_pipe import MessagePipe, SharedMemoryError
from webdataset.loading.worker import WindowPart
from webdataset.samples import mapped_shard
from webdataset.samples.mapped_shard import find_mapped_file, map_file
from webdataset.serving.batch_format import BatchEncoder

SIZE = 100_000


def write(path, count=40, size=SIZE, first=0):
    """Write a shard of large and small fields; return its name."""
    with wds.TarWriter(str(path), encoder=False) as sink:
        for number in range(first, first + count):
            jpg = bytes([number % 251]) * (size + number)
            sink.write({"__key__": f"{number:06d}", "jpg": jpg, "cls": b"%d" % number})
    return str(path)


def nest(sample):
    """A sample with its view inside of containers, and parts and other forms of it."""
    view = sample["jpg"]
    return {
        "__key__": sample["__key__"],
        "deep": {"list": [view, (view[10:20], sample["cls"])]},
        "part": view[1000:90_000],
        "words": view[:80_000].cast("I"),
        "step": view[::2],
        "own": memoryview(bytearray(b"z" * 20_000)),
    }


def keep(sample):
    """A sample as it is."""
    return sample


def load(urls, *, mapped=True, **options):
    """Return the samples of a loader with worker processes."""
    stages = options.pop("stages", lambda dataset: dataset)
    dataset = stages(wds.WebDataset(urls, shardshuffle=False, memory_map=mapped))
    with wds.Loader(dataset, None, **{"workers": 2, "mode": "processes", **options}) as loader:
        return list(loader)


def test_views_arrive_as_views_of_the_file(tmp_path):
    """Large fields are views of a map of the consumer's own, and read-only; small ones are equal, too."""
    urls = [write(tmp_path / f"{number}.tar", first=40 * number) for number in range(3)]
    found = sorted(load(urls), key=lambda sample: sample["__key__"])
    plain = sorted(load(urls, mapped=False), key=lambda sample: sample["__key__"])
    assert found == plain
    assert len(found) == 120
    assert {type(sample["jpg"].obj) for sample in found} == {mmap.mmap}
    assert {type(sample["cls"]) for sample in found} == {memoryview}
    assert all(sample[name].readonly for sample in found for name in ("jpg", "cls"))


@pytest.mark.parametrize("options", [{}, {"workers": 1}])
@pytest.mark.parametrize("size", [None, 7])
def test_batches_and_states(size, options, tmp_path):
    """Batches of lists of views, and a resumed epoch, are those of threads."""
    urls = [write(tmp_path / f"{number}.tar", first=40 * number) for number in range(3)]

    def run(mode, state=None, stop=None):
        dataset = wds.WebDataset(urls, seed=1, memory_map=True).to_tuple("__key__", "jpg").elastic(streams=3)
        with wds.Loader(dataset, size, mode=mode, **{"workers": 2, **options}) as loader:
            if state is not None:
                loader.load_state_dict(state)
            found = []
            for keys, views in loader:
                listed = [(keys, views)] if size is None else zip(keys, views, strict=True)
                found += [(key, bytes(view[:5]), len(view)) for key, view in listed]
                if stop is not None and len(found) >= stop:
                    return found, loader.state_dict()
            return found, None

    whole, _ = run("threads")
    assert run("processes")[0] == whole
    first, state = run("processes", stop=50)
    assert first + run("processes", state)[0] == whole


def test_views_inside_of_samples(tmp_path):
    """Views in containers, parts of views, and views of other forms and of other memory arrive as they were."""
    urls = [write(tmp_path / "a.tar")]
    found = sorted(
        load(urls, stages=lambda dataset: dataset.map(nest), workers=1), key=lambda sample: sample["__key__"]
    )
    for number, sample in enumerate(found):
        whole = bytes([number]) * (SIZE + number)
        view, (part, label) = sample["deep"]["list"]
        assert (view, part, label) == (whole, whole[10:20], b"%d" % number)
        assert (sample["part"], sample["step"].tobytes()) == (whole[1000:90_000], whole[::2])
        assert (sample["words"].format, sample["words"].tobytes()) == ("I", whole[:80_000])
        assert bytes(sample["own"]) == b"z" * 20_000
        assert {type(view.obj), type(sample["part"].obj)} == {mmap.mmap}


def test_nothing_is_kept(tmp_path):
    """Once the loader is closed and no view is left, neither maps nor descriptors are."""
    urls = [write(tmp_path / f"{number}.tar", count=10, first=10 * number) for number in range(40)]
    load(urls[:2])
    gc.collect()
    before = len(os.listdir("/proc/self/fd"))
    dataset = wds.WebDataset(urls, shardshuffle=False, memory_map=True)
    with wds.Loader(dataset, None, workers=2, mode="processes") as loader:
        most, count = 0, 0
        for sample in loader:
            count += sample["jpg"][0] == int(bytes(sample["cls"])) % 251
            del sample
            most = max(most, Path("/proc/self/maps").read_text().count(str(tmp_path)))
        assert count == 400
        # 24 for each worker, and what is on its way
        assert most <= 50
    del loader, dataset
    gc.collect()
    assert Path("/proc/self/maps").read_text().count(str(tmp_path)) == 0
    assert len(os.listdir("/proc/self/fd")) <= before


def test_removed_and_replaced_files(tmp_path):
    """Of a file whose name is gone, or another file's by now, the bytes travel: never those of the other."""
    path = write(tmp_path / "a.tar", count=10)
    for change in ("removed", "replaced"):
        write(path, count=10)

        def swap(sample, change=change):
            other = f"{path}.other"
            if change == "removed":
                Path(path).unlink(missing_ok=True)
            elif sample["__key__"] == "000000":
                os.replace(write(other, count=10, first=100), path)
            return sample

        found = load([path], stages=lambda dataset, swap=swap: dataset.map(swap), workers=1)
        assert [sample["jpg"] for sample in found] == [bytes([number]) * (SIZE + number) for number in range(10)]
        assert {type(sample["jpg"].obj) is mmap.mmap for sample in found} == {False}


class Pipes:
    """A sender and a receiver in one process."""

    def __init__(self):
        ends = Pipe()
        self.here, self.there = MessagePipe(ends[0]), MessagePipe(ends[1])
        self.sender, self.receiver = PartSender(self.there), PartReceiver(self.here, 1)

    def pass_on(self, *samples):
        """Send samples beside a part, and return what arrives."""
        part = WindowPart(0, 0, range(len(samples)), None, list(samples))
        self.sender.send(part)
        while (found := self.receiver.receive()) is None:
            pass
        return found.beside


def open_view(path):
    """Return a view of a file."""
    with open(path, "rb") as file:
        return map_file(file.fileno(), str(path))


def test_a_file_that_was_written_to_is_an_error(tmp_path):
    """It changes after the worker has sent its descriptor: the consumer says so, and gives no bytes."""
    path = write(tmp_path / "a.tar")
    view = open_view(path)
    pipes = Pipes()
    announce = pipes.there.send_descriptor

    def write_then_send(descriptor):
        with open(path, "r+b") as file:
            file.write(b"other")
        os.utime(path, ns=(5, 5))
        announce(descriptor)

    pipes.there.send_descriptor = write_then_send
    with pytest.raises(ShardChanged, match="overwritten"):
        pipes.pass_on([view[:50_000]])


def test_more_files_than_descriptors_may_be(tmp_path):
    """Beyond so many maps at a time, bytes are sent; maps that are gone make room."""
    pipes = Pipes()
    paths = [write(tmp_path / f"{number}.tar", count=2, first=number) for number in range(30)]
    views = [open_view(path) for path in paths]
    arrived = [pipes.pass_on([view[2048:90_000]])[0][0] for view in views]
    assert arrived == [view[2048:90_000] for view in views]
    assert [type(each.obj) is mmap.mmap for each in arrived] == [True] * 24 + [False] * 6
    del views[:10]
    more = open_view(write(tmp_path / "more.tar"))
    again = pipes.pass_on([more[2048:90_000]])[0][0]
    assert (again, type(again.obj)) == (more[2048:90_000], mmap.mmap)


def test_views_among_other_buffers(tmp_path):
    """Arrays, large bytes, views of a file and of memory in one sample, each in its place."""
    view, pipes = open_view(write(tmp_path / "a.tar")), Pipes()
    sample = [
        np.arange(9000),
        view[:10_000],
        b"b" * 40_000,
        memoryview(b"m" * 10_000),
        view[10_000:30_000],
        np.ones(3),
    ]
    for size in (6, 3, 2):
        (found,) = pipes.pass_on(sample[:size])
        for given, arrived in zip(sample, found, strict=False):
            assert type(arrived) is type(given)
            assert np.array_equal(arrived, given) if isinstance(given, np.ndarray) else arrived == given


def test_a_descriptor_that_comes_late(tmp_path):
    """The worker may be stopped between the announcement and the descriptor: the receiver waits on."""
    view, ends = open_view(write(tmp_path / "a.tar")), Pipe()
    here, there = MessagePipe(ends[0], 0.05), MessagePipe(ends[1])
    receiver = ViewReceiver(here)
    with open(tmp_path / "a.tar", "rb") as file:
        receiver.take("map", (0, find_mapped_file(view)))
        assert receiver.awaited is not None
        receiver.receive_file()
        assert receiver.awaited is not None
        there.send_descriptor(file.fileno())
    receiver.receive_file()
    assert receiver.awaited is None
    receiver.take_views(struct.pack("<IIIQQIIQQ", 1, 1, 0, 5, 9, 0, 0, 7, 2))
    buffers, payloads = receiver.insert_views([b"x", b"y"], iter([b"p"]))
    assert list(buffers) == [b"x", view[5:14], b"y"]
    assert list(payloads) == [view[7:9], b"p"]


def test_addresses_are_those_that_numpy_finds(tmp_path):
    """With the native core and without it, of a whole map and of parts, also of none of its bytes."""
    view = open_view(write(tmp_path / "a.tar"))
    start = mapped_views.find_address(view.obj)
    for part in (view, view[5:9], view[len(view) :]):
        assert mapped_views._find_address(part) == mapped_views.find_address(part)
        assert mapped_views._find_address(part) - start in {0, 5, len(view)}
    with pytest.raises(TypeError):
        mapped_views._find_address("text")  # type: ignore[arg-type]  # no buffer


def test_torch_workers_send_bytes(tmp_path):
    """The DataLoader of torch pickles views as views of their bytes, where its collation leaves samples alone."""
    torch = pytest.importorskip("torch")
    dataset = wds.WebDataset([write(tmp_path / "a.tar", count=6)], shardshuffle=False, memory_map=True)
    found = list(torch.utils.data.DataLoader(dataset, batch_size=None, num_workers=1, collate_fn=keep))
    assert [sample["jpg"] for sample in found] == [bytes([number]) * (SIZE + number) for number in range(6)]
    assert {type(sample["jpg"]) for sample in found} == {memoryview}


def test_views_are_served_as_bytes(tmp_path):
    """A batch of views can be sent to a trainer, where they are bytes."""
    view = open_view(write(tmp_path / "a.tar"))
    node = BatchEncoder().encode({"one": view[:10], "all": [view[:10], view[5:9000]]})
    assert node == BatchEncoder().encode({"one": bytes(view[:10]), "all": [bytes(view[:10]), bytes(view[5:9000])]})
    assert pickle.loads(pickle.dumps(view[:3])) == view[:3]


def test_a_failure_after_views_were_sent(tmp_path, monkeypatch):
    """Where there is no memory for the rest of a part, the error that is sent in its place arrives as it is."""
    view, pipes = open_view(write(tmp_path / "a.tar")), Pipes()
    sample = [np.arange(9000), view[:20_000], b"b" * 300_000, view[20_000:50_000]]

    def refuse(size):
        raise OSError(errno.ENOSPC, "no room")

    monkeypatch.setattr(message_pipe, "create_shared_file", refuse)
    with pytest.raises(SharedMemoryError) as caught:
        pipes.pass_on(sample)
    monkeypatch.undo()
    pipes.sender.send(WindowPart(0, 0, over=True, error=caught.value))
    while (part := pipes.receiver.receive()) is None:
        pass
    assert isinstance(part.error, SharedMemoryError)
    (found,) = pipes.pass_on(sample[1:])
    assert found == sample[1:]


def test_a_consumer_without_room_for_maps(tmp_path, monkeypatch):
    """It keeps views of so many shards that no more is mapped: it gets the bytes, and no descriptor stays."""
    pipes, paths = Pipes(), [write(tmp_path / f"{number}.tar", count=2, first=number) for number in range(4)]
    views = [open_view(path) for path in paths]
    before = len(os.listdir("/proc/self/fd"))
    monkeypatch.setattr(mapped_shard, "_MOST_MAPS", 0)
    for view in views:
        (sample,) = pipes.pass_on([view[2048:90_000], view[5:9000]])
        assert sample == [view[2048:90_000], view[5:9000]]
        assert not any(isinstance(each.obj, mmap.mmap) for each in sample)
    assert len(os.listdir("/proc/self/fd")) == before + 4
    os.truncate(paths[0], 50_000)
    with pytest.raises(ShardChanged):
        pipes.pass_on([views[0][2048:90_000]])
    del pipes, view
    gc.collect()
    assert len(os.listdir("/proc/self/fd")) < before
