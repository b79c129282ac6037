"""Workers of a DataLoader that share a cache directory."""

import os

import pytest

import webdataset as wds
from support.paced_server import PacedServer
from webdataset.testing import archives

pytestmark = pytest.mark.torch


@pytest.mark.parametrize("start", ["fork", "spawn"])
def test_workers_share_downloads(memory_folder, start):
    """Two workers read the same four shards, after their parent has begun the first: each is downloaded once."""
    loading = pytest.importorskip("torch.utils.data")
    near = memory_folder / "near"
    near.mkdir()
    pages = {
        f"/{number}/x.tar": archives.by_tarfile([(f"{number}-{index}.bin", os.urandom(30_000)) for index in range(8)])
        for number in range(4)
    }
    with PacedServer(pages, bytes_per_second=2_000_000) as server:
        urls = [server.root + path for path in pages]
        dataset = wds.WebDataset(urls, shardshuffle=False, cache_dir=near, workersplitter=None)
        begun = iter(dataset)
        first = next(begun)
        loader = loading.DataLoader(dataset, batch_size=None, num_workers=2, multiprocessing_context=start)
        samples = list(loader)
        assert len([first, *begun]) == 32
        assert server.downloads() == len(pages)
    keys = [sample["__key__"] for sample in samples]
    assert sorted(keys) == sorted(2 * [f"{number}-{index}" for number in range(4) for index in range(8)])
    assert len({(sample["__key__"], sample["bin"]) for sample in samples}) == 32
    assert sorted(path.read_bytes() for path in near.glob("*.tar")) == sorted(pages.values())
