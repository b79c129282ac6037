"""How many samples there are in each shard."""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

import webdataset as wds
from webdataset.core.errors import BadIndex, NotFound, StaleIndex, UsageError
from webdataset.samples.sample_reader import Reading

SIZES = [3, 5, 2]


@pytest.fixture
def folder(tmp_path):
    """A folder with three shards."""
    for number, size in enumerate(SIZES):
        with wds.TarWriter(str(tmp_path / f"s-{number}.tar")) as sink:
            for index in range(size):
                sink.write({"__key__": f"{number}-{index}", "txt": "x", "jpg.cls": b"1"})
    return tmp_path


@pytest.fixture
def urls(folder):
    """Their names."""
    return [str(folder / f"s-{number}.tar") for number in range(3)]


def by_name(found):
    """Return counts by file name."""
    return {url.rpartition("/")[2]: number for url, number in found.items()}


RIGHT = {f"s-{number}.tar": size for number, size in enumerate(SIZES)}


def test_headers_are_read_where_that_is_asked_for(urls):
    """True counts the samples of the shards themselves, by the rules of reading."""
    assert by_name(wds.sample_counts(urls, True)) == RIGHT
    only_first = Reading(select_files=lambda name: name.startswith(("0-0", "1-")))
    assert list(wds.sample_counts(urls, True, only_first).values()) == [1, 5, 0]


def test_sizes_beside_the_shards(folder, urls, monkeypatch):
    """sizes.json in the folder is found, by whole and by relative names."""
    (folder / "sizes.json").write_text(json.dumps(RIGHT))
    assert by_name(wds.sample_counts(urls)) == RIGHT
    monkeypatch.chdir(folder)
    assert wds.sample_counts(["s-1.tar", "s-1.tar", "./s-2.tar"]) == {"s-1.tar": 5, "./s-2.tar": 2}


@pytest.mark.parametrize("kind", ["files", "dali", "energon"])
def test_indexes_beside_the_shards(urls, kind):
    """An index beside each shard is enough; a shard that was rewritten since is an error."""
    wds.write_indexes(urls, kind)
    assert by_name(wds.sample_counts(urls)) == RIGHT
    with wds.TarWriter(urls[1]) as sink:
        for index in range(40):
            sink.write({"__key__": f"9-{index}", "txt": "x" * 700})
    with pytest.raises(StaleIndex, match="s-1"):
        wds.sample_counts(urls)


def test_what_the_caller_says(folder, urls):
    """Counts by url, by file name, in a file, and as a wids index."""
    assert by_name(wds.sample_counts(urls, RIGHT)) == RIGHT
    assert wds.sample_counts(urls, dict.fromkeys(urls, 4)) == dict.fromkeys(urls, 4)
    (folder / "n.json").write_text(json.dumps(RIGHT))
    assert by_name(wds.sample_counts(urls, folder / "n.json")) == RIGHT
    shardlist = [{"url": url, "nsamples": 7} for url in urls]
    (folder / "wids.json").write_text(json.dumps({"__kind__": "wids-shard-index-v1", "shardlist": shardlist}))
    assert wds.sample_counts(urls, str(folder / "wids.json")) == dict.fromkeys(urls, 7)


def test_a_wids_index_is_a_dataset_with_counts(folder, urls):
    """A dataset that is read from a wids index knows its counts."""
    shardlist = [{"url": url, "nsamples": size} for url, size in zip(urls, SIZES, strict=True)]
    index = {"__kind__": "wids-shard-index-v1", "wids_version": 1, "shardlist": shardlist}
    (folder / "wids.json").write_text(json.dumps(index))
    assert len(list(wds.WebDataset(str(folder / "wids.json")).equal_epochs("drop"))) == sum(SIZES)


def test_what_is_not_known_is_asked_for(folder, urls):
    """The error names shards and ways out."""
    with pytest.raises(UsageError, match=r"3 of 3 shards \(s-0\.tar, s-1\.tar, s-2\.tar\).*sizes\.json.*counts=True"):
        wds.sample_counts(urls)
    (folder / "sizes.json").write_text(json.dumps({"s-0.tar": 3}))
    with pytest.raises(UsageError, match=r"2 of 3 shards \(s-1\.tar, s-2\.tar\)"):
        wds.sample_counts(urls)


def test_compressed_and_piped_shards(folder):
    """No index tells their samples; their headers do, where they are asked."""
    packed = folder / "s-0.tar.gz"
    packed.write_bytes(gzip.compress((folder / "s-0.tar").read_bytes()))
    with pytest.raises(UsageError, match="not known"):
        wds.sample_counts([str(packed)])
    assert wds.sample_counts([str(packed)], True) == {str(packed): 3}
    with pytest.raises(UsageError, match="not known"):
        wds.sample_counts([f"pipe:cat {folder}/s-0.tar"])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[1, 2]", "this is a list"),
        ('{"s-0.tar": -1}', "'s-0.tar' has '-1'"),
        ('{"s-0.tar": "3"}', "'3'"),
        ("{", "no JSON"),
    ],
)
def test_files_that_are_none(folder, urls, text, message):
    """A file of counts that says something else is an error, beside the shards too."""
    (folder / "sizes.json").write_text(text)
    with pytest.raises(BadIndex, match=message):
        wds.sample_counts(urls)


def test_files_that_are_not_there(folder, urls):
    """A file of counts or a shard that is missing is named."""
    with pytest.raises(NotFound, match="none.json"):
        wds.sample_counts(urls, folder / "none.json")
    with pytest.raises(NotFound, match="s-9"):
        wds.sample_counts([str(folder / "s-9.tar")], True)


def test_urls_are_taken_as_datasets_take_them(tmp_path):
    """Braces, wildcards, lists, paths and shard list objects, by all functions that count or index shards."""
    for number in range(3):
        with wds.TarWriter(str(tmp_path / f"part-{number}.tar")) as sink:
            for ordinal in range(number + 1):
                sink.write({"__key__": f"{number}-{ordinal}", "cls": ordinal})
    names = [str(tmp_path / f"part-{number}.tar") for number in range(3)]
    braces = str(tmp_path / "part-{0..2}.tar")
    forms: list[Any] = [
        braces,
        "::".join(names),
        str(tmp_path / "part-?.tar"),
        names,
        wds.SimpleShardList(braces),
        iter(names),
    ]
    for index, urls in enumerate([*forms, [Path(name) for name in names]]):
        again = names if index == 5 else urls
        assert list(wds.sample_counts(urls, True).values()) == [1, 2, 3]
        assert [len(found) for found in wds.index_shards(again)] == [1, 2, 3]
        assert len(wds.IndexedDataset(again)) == 6
        folder = tmp_path / f"folder{index}"
        folder.mkdir()
        assert len(wds.write_indexes(again, "dali", folder=folder)) == 3
    assert list(wds.sample_counts(Path(names[1]), True).values()) == [2]
    assert len(wds.IndexedDataset(Path(names[1]))) == 2
    with pytest.raises(UsageError):
        wds.sample_counts(3, True)
