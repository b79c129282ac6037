"""What users do on Windows and macOS, one function each, in a folder with four shards.

``system_cases.py NAME SYSTEM``, in processes that see that system; a case that fails raises. The folder ``D:`` stands
for a drive.
"""

import importlib
import json
import multiprocessing
import os
import pkgutil
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest

import webdataset
import webdataset as wds
import wids

URLS = "x-{0000..0003}.tar"
COUNT = 200
# line ends and the mark of the end of a text: what a file that is no binary one would change
TEXT = "a\r\nb\n\x1a" * 20


def write(pattern="x-%04d.tar"):
    """Write the shards."""
    with wds.ShardWriter(pattern, maxcount=50, verbose=0) as sink:
        for number in range(COUNT):
            image = np.full((16, 16, 3), number, np.uint8)
            sink.write(
                {"__key__": f"{number:04}", "txt": TEXT, "cls": number, "npy": np.ones(9) * number, "png": image}
            )


def read(urls=URLS, **how):
    """Return the samples, decoded."""
    return list(wds.WebDataset(urls, shardshuffle=False, **how).decode("rgb8"))


def case_read():
    """Shards are read, plain, mapped and compressed."""
    for how in ({}, {"memory_map": True}):
        samples = read(**how)
        assert [sample["cls"] for sample in samples] == list(range(COUNT))
        assert {sample["txt"] for sample in samples} == {TEXT}
    with wds.TarWriter("one.tar.gz") as sink:
        sink.write({"__key__": "a", "txt": TEXT})
    assert read("one.tar.gz")[0]["txt"] == TEXT


def case_write():
    """Shards are the same bytes as elsewhere, also in place of others."""
    before = Path("x-0001.tar").read_bytes()
    for _ in range(2):
        write("new-%04d.tar")
        assert Path("new-0001.tar").read_bytes() == before
    assert not list(Path().glob(".*.partial"))


def case_paths():
    """Drives, backslashes, ``file:`` urls with any slashes, braces and wildcards."""
    Path("D:/data").mkdir(parents=True)
    write("D:/data/y-%06d.tar")
    assert len(read("D:\\data\\y-000001.tar")) == 50
    for start in ("D:/data/", "file:D:/data/", "file:/D:/data/", "file://D:/data/", "file:///D:/data/"):
        assert len(read(start + "y-000001.tar")) == 50, start
        assert len(read(start + "y-{000000..000003}.tar")) == COUNT, start
    for several in ("D:\\data\\{y,y}-{000000..000001}.tar", "D:\\data\\{y-000000,y-000001}.tar"):
        assert wds.expand_urls(several)[-1] == "D:/data/y-000001.tar"
    assert len(read("D:\\data\\y-*.tar")) == COUNT
    assert len(read(["D:/data/y-000001.tar", "D:/data/y-000002.tar"])) == 100
    # backslashes of a command are its own
    assert wds.expand_urls("pipe:type D:\\data\\y.tar") == ["pipe:type D:\\data\\y.tar"]


def case_resume():
    """An elastic dataset goes on from its state."""

    def training():
        return wds.WebDataset(URLS, shardshuffle=10, seed=1).shuffle(30).elastic(streams=4)

    run = iter(training())
    before = [next(run)["__key__"] for _ in range(70)]
    state = json.loads(json.dumps(run.state_dict()))
    dataset = training()
    dataset.load_state_dict(state)
    after = [sample["__key__"] for sample in dataset]
    assert after == [sample["__key__"] for sample in run]
    assert len({*before, *after}) == COUNT


def case_loader():
    """``Loader`` without workers, with threads, and with processes, which Windows refuses with what to do."""
    dataset = wds.WebDataset(URLS, shardshuffle=False).decode("rgb8")
    for workers, mode in ((0, "threads"), (2, "threads"), *([] if WINDOWS else [(2, "processes")])):
        batches = list(wds.Loader(dataset, 32, workers=workers, mode=mode))
        assert sorted(number for batch in batches for number in batch["cls"].tolist()) == list(range(COUNT))
        assert batches[0]["png"].shape == (32, 16, 16, 3)
    if WINDOWS:
        with pytest.raises(wds.errors.UsageError, match="mode='threads'"):
            list(wds.Loader(dataset, 32, workers=2, mode="processes"))


def case_torch_loader():
    """``WebLoader`` with workers, which are spawned; and from a state at the end of an epoch, with new workers each."""

    def training():
        dataset = wds.WebDataset(URLS, shardshuffle=10, seed=1).to_tuple("__key__").elastic(streams=4)
        return wds.WebLoader(dataset, batch_size=None, num_workers=2)

    loader = training()
    epochs = [[key for (key,) in loader] for _ in range(4)]
    assert [len(set(epoch)) for epoch in epochs] == [COUNT] * 4
    loader = training()
    keys = iter(loader)
    assert [next(keys)[0] for _ in range(COUNT)] == epochs[0]
    state = loader.state_dict()
    resumed = training()
    resumed.load_state_dict(state)
    assert [[key for (key,) in resumed] for _ in range(3)] == epochs[1:]


def case_index():
    """Samples by number, the number of samples, and an index that the writer makes."""
    samples = wds.IndexedDataset(wds.expand_urls(URLS))
    assert samples[77]["__key__"] == "0077"
    assert len(samples) == COUNT
    assert sum(wds.sample_counts(wds.expand_urls(URLS), True).values()) == COUNT
    with wds.ShardWriter("i-%04d.tar", maxcount=50, verbose=0, index="binary") as sink:
        for number in range(100):
            sink.write({"__key__": f"{number:04}", "txt": TEXT})
    assert wds.IndexedDataset(["i-0000.tar", "i-0001.tar"])[60]["txt"] == TEXT.encode()


def case_cache():
    """On Windows a cache directory is not used, and that is said once: shards are streamed, none is lost."""
    from webdataset.testing.sources import RangeServer

    with RangeServer({"/x.tar": Path("x-0000.tar").read_bytes()}) as server:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            for _ in range(2):
                assert len(read(f"{server.root}/x.tar", cache_dir="cache")) == 50
        said = [str(each.message) for each in caught if "cannot be used" in str(each.message)]
        assert len(said) == WINDOWS, said
        assert all("Windows" in each for each in said)
        assert len(wds.IndexedDataset([f"{server.root}/x.tar"])) == 50
    assert len(list(Path("cache").glob("*.tar"))) == (not WINDOWS)


def case_shared_loader():
    """It is refused with what to do."""
    with pytest.raises(wds.errors.UsageError, match="Linux"):
        list(wds.SharedLoader(wds.WebDataset(URLS), "name", batch_size=8))


def case_pipe():
    """Commands are read and written."""
    assert len(read("pipe:cat x-0000.tar")) == 50
    with wds.TarWriter("pipe:cat > piped.tar") as sink:
        sink.write({"__key__": "a", "txt": TEXT})
    assert read("piped.tar")[0]["txt"] == TEXT


def drop_odd(sample):
    """Return a sample of an even number."""
    return None if int(sample["cls"]) % 2 else sample


def case_map_shards():
    """Shards are mapped in this process and in others, and not again."""
    for engine in ("serial", "processes"):
        report = wds.map_shards(drop_odd, URLS, f"{engine}/", engine=engine, jobs=2)
        assert report.counts["out"] == COUNT // 2
        assert len(wds.map_shards(drop_odd, URLS, f"{engine}/", engine=engine, jobs=2).skipped) == 4
    assert Path("serial/x-0001.tar").read_bytes() == Path("processes/x-0001.tar").read_bytes()


def case_columns_and_queues():
    """Samples are selected by columns files, and a folder is a queue of shards."""
    for shard in wds.expand_urls(URLS):
        wds.write_columns(shard, ["cls"])
    assert len(list(wds.WebDataset(URLS, shardshuffle=False, where="cls < 20"))) == 20
    Path("queue").mkdir()
    for shard in wds.expand_urls(URLS):
        os.replace(shard, f"queue/{shard}")
    taken = wds.DataPipeline(wds.DirectoryShardList("queue/", mode="unlink", poll=None), wds.tarfile_to_samples())
    assert len(list(taken)) == COUNT
    assert not list(Path("queue").glob("*.tar"))


def case_view():
    """The viewer shows a shard, with the previews that another process makes."""
    from support.view_server import serve_view
    from support.view_sides import make_view
    from webdataset.viewer import previews
    from webdataset.viewer.session import Session

    if WINDOWS:
        os.environ["SYSTEMROOT"] = "C:/Windows"
        assert previews._make_environment()["SYSTEMROOT"] == "C:/Windows"
    with serve_view(Session({"a": make_view("a", ["x-0000.tar"])})) as client:
        assert len(client.get("/api/samples", shard=0, start=0, count=20)["samples"]) == 20
    sample = next(iter(wds.WebDataset(URLS, shardshuffle=False)))
    with previews.Previews() as shown:
        assert shown.thumbnail("png", sample["png"], 8)
        assert shown.array("npy", sample["npy"])["arrays"]


def case_imports():
    """Every module can be imported, but for missing extras."""
    for package in (webdataset, wids):
        for found in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            if not found.name.endswith("__main__"):
                try:
                    importlib.import_module(found.name)
                except wds.errors.MissingExtra:
                    pass
                except ModuleNotFoundError as error:
                    if error.name == "fcntl" or (error.name or "").startswith(("webdataset", "wids")):
                        raise


def case_commands():
    """The command ``wds``."""
    from webdataset.cli.main import main

    for line in (
        "ls x-0000.tar", "info x-0000.tar", "head -n 1 x-0000.tar", "check -j 2 x-0000.tar x-0001.tar", "doctor",
        "grep cls==3 x-0000.tar", "cat -o all.tar x-0000.tar x-0001.tar", "split -s 20 -o part-%03d.tar x-0000.tar",
        "sort -o sorted.tar x-0000.tar", "reshard --shards 3 --shuffle -o new-%04d.tar x-0000.tar x-0001.tar",
        "select -o few.tar --keep txt x-0000.tar", "recompress -t gz -o {name}.gz x-0000.tar",
        "index create -o x.json x-0000.tar",
    ):  # fmt: skip
        try:
            status = main(line.split())
        except SystemExit as ended:
            status = ended.code
        assert status in (None, 0), f"{line}: {status}"


WINDOWS = sys.argv[-1] == "win32"

if __name__ == "__main__":
    multiprocessing.set_start_method("spawn")
    if sys.argv[1] == "write":
        write()
    else:
        globals()["case_" + sys.argv[1]]()
        left = [name for name in os.listdir() if name.endswith(".partial")]
        assert not left, left
