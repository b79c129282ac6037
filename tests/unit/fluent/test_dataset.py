"""``WebDataset``: what it makes of its arguments."""

import pickle
from pathlib import Path
from typing import Any

import pytest

import webdataset as wds
from webdataset.core.errors import NoSamples, NotFound, UsageError


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Three shards of five samples."""
    folder = tmp_path_factory.mktemp("shards")
    for number in range(3):
        with wds.TarWriter(str(folder / f"s-{number}.tar")) as sink:
            for index in range(5):
                sink.write({"__key__": f"{number}{index}", "txt": f"{index}", "pyd": {"n": index}})
    return folder


def keys(dataset):
    """Return the keys that a dataset gives."""
    return [sample["__key__"] for sample in dataset]


ALL = [f"{number}{index}" for number in range(3) for index in range(5)]


def test_kinds_of_urls(folder):
    """Braces, ``::``, lists, paths, iterables, globs and shard lists."""
    one = [f"{folder}/s-{n}.tar" for n in range(3)]
    for urls in (
        f"{folder}/s-{{0..2}}.tar",
        "::".join(one),
        one,
        tuple(one),
        iter(one),
        (url for url in one),
        [Path(url) for url in one],
        f"{folder}/s-*.tar",
        wds.SimpleShardList(one),
    ):
        assert keys(wds.WebDataset(urls, shardshuffle=False)) == ALL, urls
    assert keys(wds.WebDataset(folder / "s-1.tar")) == ALL[5:10]
    assert keys(wds.WebDataset(f"file:{folder}/s-1.tar")) == ALL[5:10]
    assert keys(wds.WebDataset(f"pipe:cat {folder}/s-1.tar")) == ALL[5:10]


def test_odd_names(tmp_path):
    """Names of local files may hold anything."""
    for name in ("a#b.tar", "a?b.tar", "a;b c.tar", "a:b.tar", "ä.tar", "100%.tar"):
        with wds.TarWriter(tmp_path / name) as sink:
            sink.write({"__key__": "k", "txt": "x"})
        assert keys(wds.WebDataset(str(tmp_path / name))) == ["k"]
        assert keys(wds.WebDataset([str(tmp_path / name)])) == ["k"]


def test_open_files(folder):
    """Open file objects are read, and left open."""
    with (folder / "s-0.tar").open("rb") as stream:
        assert keys(wds.WebDataset([stream], shardshuffle=False)) == ALL[:5]
        assert not stream.closed


def test_nothing_there(folder):
    """A missing shard is a NotFound that names it, unless the handler goes on."""
    with pytest.raises(NotFound, match=r"missing\.tar"):
        keys(wds.WebDataset(f"{folder}/missing.tar"))
    with pytest.raises(FileNotFoundError):
        keys(wds.WebDataset(f"{folder}/missing.tar"))
    urls = [f"{folder}/missing.tar", f"{folder}/s-0.tar"]
    assert keys(wds.WebDataset(urls, shardshuffle=False, handler=wds.ignore_and_continue)) == ALL[:5]


def test_shardshuffle(folder):
    """Shards are shuffled when asked, samples within them are not."""
    urls = f"{folder}/s-{{0..2}}.tar"
    found = {tuple(key[0] for key in keys(wds.WebDataset(urls, shardshuffle=True, seed=n)))[::5] for n in range(20)}
    assert len(found) == 6
    assert keys(wds.WebDataset(urls, shardshuffle=0)) == ALL
    assert keys(wds.WebDataset(urls)) == ALL


def test_detshuffle(folder):
    """``detshuffle`` gives an order of its own to each epoch, the same in every program."""
    urls = f"{folder}/s-{{0..2}}.tar"
    orders = [
        [tuple(keys(dataset)) for _ in range(4)]
        for dataset in (wds.WebDataset(urls, shardshuffle=9, detshuffle=True),) * 1
    ]
    again = wds.WebDataset(urls, shardshuffle=9, detshuffle=True)
    assert [tuple(keys(again)) for _ in range(4)] == orders[0]
    assert len(set(orders[0])) > 1


def test_resampled(folder, monkeypatch):
    """Resampled shards never end, and need no node splitter."""
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    dataset = wds.WebDataset(f"{folder}/s-{{0..2}}.tar", resampled=True).slice(100)
    assert len(keys(dataset)) == 100
    assert len(keys(wds.WebDataset(f"{folder}/s-{{0..2}}.tar", mode="resampled").with_epoch(33))) == 33


def test_splitting(folder, monkeypatch):
    """Ranks and workers share the shards out; forgetting the node splitter says what to write."""
    urls = f"{folder}/s-{{0..2}}.tar"
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ValueError, match="nodesplitter=wds.split_by_node"):
        keys(wds.WebDataset(urls))
    assert keys(wds.WebDataset(urls, nodesplitter=wds.split_by_node)) == ALL[:5] + ALL[10:]
    assert keys(wds.WebDataset(urls, nodesplitter=None)) == ALL
    assert keys(wds.WebDataset(urls, nodesplitter=lambda src: src)) == ALL
    monkeypatch.setenv("WORKER", "1")
    monkeypatch.setenv("NUM_WORKERS", "2")
    assert keys(wds.WebDataset(urls, nodesplitter=wds.split_by_node)) == ALL[10:]
    assert keys(wds.WebDataset(urls, nodesplitter=None, workersplitter=None)) == ALL


def test_claimed_shards_are_not_split(tmp_path, monkeypatch):
    """What a worker claims in a directory it reads itself: nothing is deleted unread."""
    for number in range(4):
        with wds.TarWriter(str(tmp_path / f"{number}.tar")) as sink:
            sink.write({"__key__": str(number), "txt": ""})
    monkeypatch.setenv("WORKER", "1")
    monkeypatch.setenv("NUM_WORKERS", "2")
    claims = wds.shardlists.DirectoryShardList(f"{tmp_path}/", mode="unlink", poll=None)
    assert sorted(keys(wds.WebDataset(claims))) == ["0", "1", "2", "3"]
    assert not list(tmp_path.iterdir())


def test_objects_of_the_users_split_themselves(folder, monkeypatch):
    """Default splitters leave a source that the program made alone, lists of ours too; those that it chose apply."""

    class Own(wds.PipelineStage):
        def run(self):
            yield from ({"url": f"{folder}/s-{number}.tar"} for number in range(3))

    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("WORKER", "1")
    monkeypatch.setenv("NUM_WORKERS", "2")
    assert keys(wds.WebDataset(Own())) == ALL
    assert keys(wds.WebDataset(Own(), nodesplitter=wds.split_by_node)) == ALL[:5] + ALL[10:]
    ours = wds.SimpleShardList(f"{folder}/s-{{0..2}}.tar")
    assert keys(wds.WebDataset(ours, nodesplitter=wds.split_by_node)) == ALL[:5] + ALL[10:]
    both: dict[str, Any] = {"nodesplitter": wds.split_by_node, "workersplitter": wds.split_by_worker}
    assert keys(wds.WebDataset(ours, **both)) == ALL[10:]


def test_empty_check(folder, monkeypatch):
    """A worker without shards says how many there are of everything; the check can be left out."""
    monkeypatch.setenv("WORKER", "1")
    monkeypatch.setenv("NUM_WORKERS", "2")
    with pytest.raises(NoSamples, match=r"worker 1 of 2.*empty_check=False"):
        keys(wds.WebDataset(f"{folder}/s-0.tar"))
    assert keys(wds.WebDataset(f"{folder}/s-0.tar", empty_check=False)) == []


def test_filtering_everything_out_is_no_error(folder):
    """A predicate may mean it: a warning; nothing is said where empty passes are allowed."""
    with pytest.warns(UserWarning, match="kept none of the 5 samples of this pass"):
        assert keys(wds.WebDataset(f"{folder}/s-0.tar").select(lambda _: False)) == []
    assert keys(wds.WebDataset(f"{folder}/s-0.tar", empty_check=False).select(lambda _: False)) == []


def test_repeat(folder):
    """``repeat=`` starts over, for ever or so many times."""
    assert len(keys(wds.WebDataset(f"{folder}/s-0.tar", repeat=3))) == 15
    assert len(keys(wds.WebDataset(f"{folder}/s-0.tar", repeat=True).slice(3).with_epoch(20))) == 20


def test_files_selected_and_renamed(folder):
    """Members are chosen and renamed while reading."""
    dataset = wds.WebDataset(
        f"{folder}/s-0.tar", select_files=lambda n: n.endswith(".t"), rename_files=lambda n: n.replace(".txt", ".t")
    )
    assert [sorted(sample) for sample in dataset][0] == ["__key__", "__url__", "t"]


def test_trust_reaches_decode(folder):
    """``trust=`` on the dataset holds for its decode."""
    with pytest.raises(ValueError, match="strict"):
        list(wds.WebDataset(f"{folder}/s-0.tar", trust="strict").decode())
    assert next(iter(wds.WebDataset(f"{folder}/s-0.tar").decode()))["pyd"] == {"n": 0}
    with pytest.raises(UsageError, match="trust"):
        wds.WebDataset(f"{folder}/s-0.tar", trust="blind")


def test_arguments_that_mean_nothing(folder):
    """Sources that cannot be read, and options that do not exist."""
    with pytest.raises(UsageError):
        wds.WebDataset(3)
    with pytest.raises(TypeError, match="'colour'$"):
        wds.WebDataset(f"{folder}/s-0.tar", colour="red")  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="did you mean 'shardshuffle'"):
        wds.WebDataset(f"{folder}/s-0.tar", shardshuffel=3)  # type: ignore[call-arg]


def test_chain(folder):
    """Every chainable method gives a new dataset."""
    dataset = wds.WebDataset(f"{folder}/s-{{0..2}}.tar", shardshuffle=False)
    chained = (
        dataset.decode()
        .map(lambda s: {**s, "n": int(s["txt"])})
        .select(lambda s: s["n"] != 3)
        .map_dict(n=lambda n: n * 10)
        .rename(number="n", key="__key__")
        .to_tuple("key", "number")
        .map_tuple(None, lambda n: n + 1)
        .slice(6)
        .listed(4)
        .unlisted()
        .batched(4)
        .unbatched()
        .batched(3, collation_fn=None)
    )
    assert list(chained) == [[("00", 1), ("01", 11), ("02", 21)], [("04", 41), ("10", 1), ("11", 11)]]
    assert keys(dataset) == ALL
    assert list(dataset.extract_keys("txt").slice(2)) == [(b"0",), (b"1",)]
    assert [sorted(s) for s in dataset.rename_keys(a="txt").slice(1)] == [["a"]]
    assert list(dataset.xdecode(txt=lambda stream: int(stream.read())).to_tuple("txt").slice(2)) == [(0,), (1,)]
    assert len(list(dataset.rsample(1.0))) == 15
    assert dataset.shuffle(0) is dataset


def test_mcached(folder):
    """The second pass comes from memory."""
    dataset = wds.WebDataset(f"{folder}/s-0.tar").mcached()
    assert keys(dataset) == ALL[:5] == keys(dataset)


def test_log_keys(folder, tmp_path):
    """Keys are appended to a file."""
    log = tmp_path / "keys"
    keys(wds.WebDataset(f"{folder}/s-0.tar").log_keys(str(log)))
    assert [line.split("\t")[-1] for line in log.read_text().splitlines()] == ALL[:5]


def test_travel(folder):
    """A dataset with lambdas pickles, and the copy reads the same."""
    dataset = wds.WebDataset(f"{folder}/s-{{0..2}}.tar", shardshuffle=3, seed=1, select_files=lambda n: "txt" in n)
    dataset = dataset.map(lambda s: s["__key__"]).shuffle(4)
    assert list(pickle.loads(pickle.dumps(dataset))) == list(dataset)


def test_wrapper():
    """Anything that can be iterated gets the chainable methods."""
    assert list(wds.FluidWrapper([1, 2, 3]).map(lambda x: x + 1)) == [2, 3, 4]
    assert list(wds.FluidWrapper(wds.MockDataset({"a": 1}, 3)).to_tuple("a")) == [(1,)] * 3


def test_replaced_opener_turns_the_dataset(folder, monkeypatch):
    """Assigning ``tariterators.url_opener`` is honoured, as public code expects."""
    from webdataset import tariterators

    def opener(shards, handler=None):
        for shard in shards:
            yield {"url": "replaced", "stream": (folder / "s-2.tar").open("rb")}

    monkeypatch.setattr(tariterators, "url_opener", opener)
    assert {s["__url__"] for s in wds.WebDataset(f"{folder}/s-0.tar")} == {"replaced"}
    assert keys(wds.WebDataset(f"{folder}/s-0.tar")) == ALL[10:]


def test_replaced_grouper_turns_the_dataset(folder, monkeypatch):
    """So are replaced expanders and groupers."""
    from webdataset import tariterators

    def grouper(members, handler=None):
        for member in members:
            yield {"__key__": member["fname"]}

    monkeypatch.setattr(tariterators, "group_by_keys", grouper)
    assert keys(wds.WebDataset(f"{folder}/s-0.tar"))[:2] == ["00.pyd", "00.txt"]
