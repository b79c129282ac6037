"""Multi-Storage Client: urls of its profiles are read, listed, written and resumed as any others (through fsspec)."""

import pytest
import yaml

import webdataset as wds

multistorageclient = pytest.importorskip("multistorageclient")
pytest.importorskip("fsspec")

COUNT = 40


@pytest.fixture
def root(tmp_path, monkeypatch):
    """A profile over a folder with three shards; its root as a url."""
    for number in range(3):
        with wds.TarWriter(str(tmp_path / f"s-{number}.tar")) as sink:
            for index in range(COUNT):
                sink.write({"__key__": f"{number}-{index:02d}", "bin": bytes([index]) * (index * 300), "cls": index})
    options = {"type": "file", "options": {"base_path": str(tmp_path)}}
    # a file of its own: no other test of this process may have read another one
    path = tmp_path / "msc.yaml"
    path.write_text(yaml.safe_dump({"profiles": {"shards-of-msc": {"storage_provider": options}}}))
    monkeypatch.setenv("MSC_CONFIG", str(path))
    return "msc://shards-of-msc"


def list_keys(urls):
    """The keys of all samples."""
    return [sample["__key__"] for sample in wds.WebDataset(urls, shardshuffle=False)]


def test_urls_of_a_profile(root, tmp_path):
    """Ranges, wildcards, writing, a state in the middle of a shard, and samples by number."""
    expected = list_keys(str(tmp_path / "s-{0..2}.tar"))
    assert list_keys(f"{root}/s-{{0..2}}.tar") == list_keys(f"{root}/s-*.tar") == expected
    with wds.TarWriter(f"{root}/made.tar") as sink:
        sink.write({"__key__": "made", "txt": "text"})
    assert list_keys(f"{root}/made.tar") == list_keys(str(tmp_path / "made.tar")) == ["made"]
    dataset = wds.WebDataset(f"{root}/s-{{0..2}}.tar", shardshuffle=False).shuffle(20).elastic(streams=2)
    run = iter(dataset)
    before = [next(run)["__key__"] for _ in range(50)]
    again = iter(dataset)
    again.load_state_dict(run.state_dict())
    after = [sample["__key__"] for sample in again]
    assert after == [sample["__key__"] for sample in run]
    assert sorted(before + after) == sorted(expected)
    with wds.IndexedDataset([f"{root}/s-1.tar"]) as indexed:
        assert len(indexed) == COUNT
        assert indexed[7]["__key__"] == "1-07"


def test_a_shard_that_is_not_there(root):
    """A missing object is named by its url."""
    with pytest.raises(wds.errors.NotFound, match="none"):
        list_keys(f"{root}/none.tar")
