"""Shards by number under torch's DataLoader: every way of starting workers, with samplers, nothing lost or twice."""

import io
import json

import pytest

import wids
from webdataset.core.errors import UnsafeContent
from webdataset.testing import archives

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch


@pytest.fixture
def dataset(tmp_path):
    """A dataset of four shards with seven samples each, by its index."""
    listed = []
    for shard in range(4):
        members = [
            (f"{shard}-{place}.{field}", b"%d" % (7 * shard + place)) for place in range(7) for field in ("cls", "bin")
        ]
        (tmp_path / f"{shard}.tar").write_bytes(archives.by_hand(members))
        listed.append({"url": f"{shard}.tar", "nsamples": 7})
    (tmp_path / "index.json").write_text(json.dumps({"wids_version": 1, "name": "set", "shardlist": listed}))
    return wids.ShardListDataset(str(tmp_path / "index.json"), lru_size=2).add_transform(lambda sample: sample[".cls"])


@pytest.mark.parametrize(("workers", "start"), [(0, None), (2, "fork"), (1, "spawn")])
def test_every_sample_once(dataset, workers, start):
    """A shard sampler under workers gives the sampler's order, in two passes, after use in this process."""
    sampler = wids.ShardListSampler(dataset, seed=3)
    wanted = wids.ShardListSampler(dataset, seed=3)
    assert dataset[20] == 20
    loader = torch.utils.data.DataLoader(
        dataset,
        batch_size=4,
        sampler=sampler,
        num_workers=workers,
        multiprocessing_context=start,
        persistent_workers=start == "spawn",
    )
    assert len(loader) == 7
    for _ in range(2):
        assert torch.cat(list(loader)).tolist() == list(wanted)


def test_it_is_a_torch_dataset(dataset):
    """It is one for isinstance, map-style, can be added to another, and pickles all the same."""
    assert isinstance(dataset, torch.utils.data.Dataset)
    assert not isinstance(dataset, torch.utils.data.IterableDataset)
    assert isinstance(dataset, wids.ShardListDataset)
    assert type(dataset) is wids.ShardListDataset
    both = dataset + torch.utils.data.Subset(dataset, [3, 1])
    assert [both[place] for place in (27, 28, 29)] == [27, 3, 1]


def test_ranks_share_the_samples(dataset):
    """Ranks with a distributed sampler read equally many samples, together all of them."""
    seen = []
    for rank in range(3):
        sampler = wids.DistributedChunkedSampler(dataset, num_replicas=3, rank=rank, chunksize=5)
        loader = torch.utils.data.DataLoader(dataset, batch_size=5, sampler=sampler)
        seen.append(torch.cat(list(loader)).tolist())
    assert [len(each) for each in seen] == [10, 10, 10]
    assert sorted({value for each in seen for value in each}) == list(range(28))


def test_torch_fields(tmp_path):
    """``.pt`` and ``.pth`` are decoded as tensors, without running code."""
    members = []
    for field in ("pt", "pth"):
        stream = io.BytesIO()
        torch.save({"t": torch.arange(3)}, stream)
        members.append((f"k.{field}", stream.getvalue()))
    stream = io.BytesIO()
    torch.save(Own(), stream)
    (tmp_path / "x.tar").write_bytes(archives.by_hand([*members, ("own.pt", stream.getvalue())]))
    dataset = wids.ShardListDataset([{"url": str(tmp_path / "x.tar"), "nsamples": 2}])
    assert [dataset[0][name]["t"].tolist() for name in (".pt", ".pth")] == [[0, 1, 2]] * 2
    with pytest.raises(UnsafeContent):
        dataset[1]


class Own:
    """A class that the default trust refuses."""
