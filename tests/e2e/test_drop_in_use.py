"""What public programs do with webdataset 0.2.86 and 1.0.2, written from the behaviour of these versions."""

import copy
import inspect
import io
import os
import pickle
import subprocess
import sys
import tarfile
import warnings
from collections import Counter
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import pytest

import webdataset as wds
from webdataset import cache, shardlists, tariterators
from webdataset.testing import archives

KEPT = [
    "data/[rgb,tok]/shard-000.tar", "none-*.tar", "none-?.tar", "file:/nowhere/*.tar", "[0..3].tar", "~/none*.tar",
    "s3://bucket/[rgb,tok]/shard-000.tar", "gs://bucket/[a, b]/x.tar",
]  # fmt: skip


@pytest.fixture
def shards(tmp_path):
    """Three shards of four samples each."""
    for shard in range(3):
        members = [(f"{shard}{n}.{ext}", b"%d" % n) for n in range(4) for ext in ("txt", "cls")]
        (tmp_path / f"s{shard}.tar").write_bytes(archives.by_tarfile(members))
    return [str(tmp_path / f"s{shard}.tar") for shard in range(3)]


@pytest.mark.parametrize("text", KEPT)
def test_a_name_that_matches_nothing_stays_as_it_is(text):
    """ml-4m names its modalities in brackets, and takes the names apart when they are opened."""
    assert shardlists.expand_urls(text) == [text]
    assert [shard["url"] for shard in wds.SimpleShardList(text)] == [text]
    assert {shard["url"] for shard in wds.ResampledShards(text, 5)} == {text}
    assert [shard["url"] for shard in wds.WebDataset(text, shardshuffle=False).pipeline[0]] == [text]


def test_braces_expand_around_brackets():
    """Brackets stay, braces expand."""
    assert shardlists.expand_urls("d/[rgb,tok]/{00..01}.tar") == ["d/[rgb,tok]/00.tar", "d/[rgb,tok]/01.tar"]


def test_brackets_with_commas_match_no_file(tmp_path, monkeypatch):
    """A set of names is no set of characters: a folder ``r`` is not meant by ``[rgb,tok]``."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "r").mkdir()
    (tmp_path / "r" / "0.tar").write_bytes(b"")
    assert shardlists.expand_urls("[rgb,tok]/0.tar") == ["[rgb,tok]/0.tar"]
    assert shardlists.expand_urls("[rt]/*.tar") == ["r/0.tar"]


def test_opening_a_name_that_matches_nothing_fails_as_usual():
    """The name is not found, under the name that was written."""
    with pytest.raises(FileNotFoundError, match=r"none-\*\.tar"):
        list(wds.WebDataset("none-*.tar", shardshuffle=False))


def test_an_opener_takes_names_in_brackets_apart(shards, monkeypatch):
    """A program's own opener sees the name as it was written."""
    seen = []

    def url_opener(data, handler=wds.reraise_exception, **_):
        for shard in data:
            seen.append(shard["url"])
            yield {"url": shards[0], "stream": open(shards[0], "rb")}

    monkeypatch.setattr(tariterators, "url_opener", url_opener)
    assert len(list(wds.DataPipeline(wds.SimpleShardList("x/[rgb,tok]/*.tar"), wds.tarfile_to_samples()))) == 4
    assert seen == ["x/[rgb,tok]/*.tar"]


def test_length_is_read_by_a_len_of_a_program():
    """It is -1 until a program sets it, and goes with the copies."""

    class Sized(wds.WebDataset):
        def __len__(self):
            return self.length

    dataset = Sized("x.tar", shardshuffle=False)
    assert dataset.length == -1
    dataset.length = 7
    assert len(dataset) == len(dataset.shuffle(3)) == 7


def test_nsamples_is_a_number():
    """open_lm asks whether ``nsamples > 0``."""
    pipeline = wds.DataPipeline([1, 2, 3])
    assert pipeline.nsamples == -1
    assert pipeline.repeat(2).nsamples == -1
    assert pipeline.repeat(2, 4).nsamples == 4
    assert pipeline.with_epoch(0).nsamples == 0
    assert pipeline.with_epoch(3, 9).nsamples == 9
    assert wds.WebDataset("x.tar", shardshuffle=False).nsamples == -1


def test_a_bound_of_nothing_is_none():
    """``nsamples`` of 0 or less is no bound, also where a program sets it."""
    pipeline = wds.DataPipeline([[1, 2, 3]]).repeat(2, nbatches=0)
    assert list(pipeline) == [1, 2, 3, 1, 2, 3]
    pipeline.nsamples = 4
    assert list(pipeline) == [1, 2, 3, 1]


CLIENT = """
import json, sys
import webdataset as wds
dataset = wds.WebDataset(wds.SimpleShardList(json.loads(sys.argv[1])), **eval(sys.argv[2]))
from torch.utils.data import DataLoader
if __name__ == "__main__":
    loader = DataLoader(dataset.map(lambda sample: sample["__key__"]), batch_size=None, num_workers=2)
    print(json.dumps([list(loader), list(loader)]))
"""


def under_two_workers(urls, **options):
    """Keys of two epochs in two workers of torch's DataLoader, and what was warned of."""
    import json

    pytest.importorskip("torch")
    done = subprocess.run(
        [sys.executable, "-c", CLIENT, json.dumps(urls), ", ".join(["dict()"][: not options]) or repr_of(options)],
        capture_output=True, text=True, check=False, timeout=200,
        env={**os.environ, "PYTHONWARNINGS": "default"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout), done.stderr


def repr_of(options):
    """Arguments as source text."""
    return "dict(" + ", ".join(f"{name}={value}" for name, value in options.items()) + ")"


@pytest.mark.torch
def test_every_worker_reads_a_list_object_whole(shards):
    """WhisperSpeech reads one shard in several workers; 0.2.86 shares no list object out. One warning says how to."""
    (first, second), warned = under_two_workers(shards[:1])
    assert Counter(first) == Counter(second) == dict.fromkeys(["00", "01", "02", "03"], 2)
    assert warned.count("workersplitter=wds.split_by_worker") == 1, warned


@pytest.mark.torch
def test_a_list_object_is_shared_out_where_it_is_asked_for(shards):
    """The splitter that the warning names is heeded, though it is the default of other sources."""
    (first, _), warned = under_two_workers(shards, workersplitter="wds.split_by_worker", empty_check="False")
    assert Counter(first) == dict.fromkeys([f"{shard}{n}" for shard in range(3) for n in range(4)], 1)
    assert "workersplitter=" not in warned


@pytest.mark.parametrize("workers", [1, 2, 3])
def test_our_loader_gives_each_sample_of_a_list_object_once(shards, workers):
    """Where this library assigns shards, it assigns those of a list object too."""
    dataset = wds.WebDataset(wds.SimpleShardList(shards), empty_check=False).map(lambda sample: sample["__key__"])
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        for source in (dataset, dataset.elastic(streams=6)):
            with wds.Loader(source, batch_size=None, workers=workers) as loader:
                assert Counter(loader) == dict.fromkeys([f"{shard}{n}" for shard in range(3) for n in range(4)], 1)


def test_list_objects_within_mixes_and_equal_epochs(shards):
    """Sources of a mix, and a dataset of equal epochs, are assigned as well."""

    def dataset(which):
        return wds.WebDataset(wds.SimpleShardList(which), empty_check=False).map(lambda sample: sample["__key__"])

    every = [f"{shard}{n}" for shard in range(3) for n in range(4)]
    mix = wds.DataPipeline(wds.RoundRobin([dataset(shards[:2]), dataset(shards[2:])], longest=True))
    with wds.Loader(mix, batch_size=None, workers=2) as loader:
        assert sorted(loader) == every
    for choice in ({"how": "drop", "counts": True}, {"how": "resample", "steps": 12}):
        equal = dataset(shards).equal_epochs(**choice)
        with wds.Loader(equal, batch_size=None, workers=2) as loader:
            assert sorted(loader) == every


def test_list_objects_by_rank_and_worker(shards, monkeypatch):
    """Ranks and workers read a list object whole, and texts and lists in parts, as in 0.2.86."""
    for name, number in (("WORLD_SIZE", 2), ("RANK", 1), ("NUM_WORKERS", 2), ("WORKER", 1)):
        monkeypatch.setenv(name, str(number))
    plain: dict[str, Any] = {"shardshuffle": False, "empty_check": False}
    whole = wds.WebDataset(wds.SimpleShardList(shards), **plain)
    assert len(list(whole)) == 12
    by_node = wds.WebDataset(wds.SimpleShardList(shards), nodesplitter=wds.split_by_node, **plain)
    assert [sample["__key__"] for sample in by_node] == ["10", "11", "12", "13"]
    with pytest.raises(ValueError, match="nodesplitter"):
        list(wds.WebDataset(shards, **plain))


def test_the_fifth_stage_is_decode(shards):
    """Datacomp slices ``dataset.pipeline`` behind decode."""
    dataset = wds.WebDataset(shards).decode("l").to_tuple("txt", "cls")
    assert len(dataset.pipeline) == 6
    assert [len(sample) for sample in wds.DataPipeline(*dataset.pipeline[:5])] == [4] * 12
    assert next(iter(wds.DataPipeline(*dataset.pipeline[:5])))["cls"] == 0


def test_the_reader_still_checks(tmp_path, shards):
    """A pass without samples is an error, with or without stages behind the reader, and once only."""
    (tmp_path / "empty.tar").write_bytes(archives.by_tarfile([]))
    dataset = wds.WebDataset(str(tmp_path / "empty.tar"), shardshuffle=False)
    for pipeline in (dataset, dataset.map(len), dataset.repeat(2), wds.DataPipeline(*dataset.pipeline)):
        with pytest.raises(ValueError, match="no samples"):
            list(pipeline)
    assert list(wds.WebDataset(str(tmp_path / "empty.tar"), empty_check=False)) == []


def test_urls_are_plain_texts(shards):
    """Groupers and stages see ``str`` in ``__url__``, nothing derived from it."""
    opened = tariterators.url_opener(iter([{"url": url} for url in [shards[0], shards[0], shards[1]]]))
    members = list(tariterators.tar_file_expander(opened))
    assert {type(member["__url__"]) for member in members} == {str}
    samples = list(tariterators.group_by_keys(iter(members)))
    assert {type(sample["__url__"]) for sample in samples} == {str}
    assert [sample["__key__"] for sample in samples] == ["00", "01", "02", "03"] * 2 + ["10", "11", "12", "13"]


def test_a_border_shows_though_urls_are_plain(tmp_path):
    """The last sample of a shard is not joined with the first of the same shard read again."""
    (tmp_path / "one.tar").write_bytes(archives.by_tarfile([("a.txt", b"0")]))
    url = str(tmp_path / "one.tar")
    members = tariterators.tar_file_expander(tariterators.url_opener(iter([{"url": url}] * 3)))
    assert [sample["txt"] for sample in tariterators.group_by_keys(members)] == [b"0"] * 3


@pytest.mark.parametrize("opener", [lambda _: cache.StreamingOpen(), lambda folder: cache.FileCache(folder)])
def test_openers_take_urls(shards, tmp_path, opener):
    """``StreamingOpen`` and ``FileCache`` are called with urls as well as with dicts."""
    (tmp_path / "cache").mkdir()
    stage = opener(str(tmp_path / "cache"))
    for given in (shards, [{"url": url} for url in shards], [shards[0], {"url": shards[1]}, shards[2]]):
        found = list(stage(given))
        for shard in found:
            shard["stream"].close()
        assert [shard["url"] for shard in found] == [shard["local_path"] for shard in found] == shards


def test_the_epoch_of_detshuffle_counts_and_can_be_set():
    """It is the number of the pass begun last; setting it chooses the next one; alone and in a pipeline."""
    alone = wds.detshuffle(3, 1, 0)
    orders = [list(alone.run(iter(range(8)))) for _ in range(4)]
    stage = wds.detshuffle(3, 1, 0)
    pipeline = wds.DataPipeline([list(range(8))], stage)
    assert stage.epoch == -1
    for epoch in range(3):
        assert list(pipeline) == orders[epoch]
        assert stage.epoch == epoch
    stage.epoch = 0
    assert list(pipeline) == orders[1]
    assert stage.epoch == 1
    assert list(pipeline) == orders[2]
    stage.epoch = -1
    assert list(pipeline) == orders[0]


@pytest.mark.parametrize("url", [123, None, b"x", ["a"]])
def test_cache_names_are_made_of_texts(url):
    """Anything else is an ``AssertionError``, as in 1.0.2."""
    with pytest.raises(AssertionError):
        cache.url_to_cache_name(url)


class OwnNames(wds.ShardWriter):
    """Names its shards itself and opens them itself, as writers of several public programs do."""

    def __init__(self, folder, **kw):
        self.folder = folder
        super().__init__("", **kw)

    def next_stream(self):
        self.finish()
        if self.fname is None:
            assert self.count == self.total == self.size == 0
        self.fname = os.path.join(self.folder, f"{self.shard:05d}.tar")
        self.shard += 1
        self.tarstream = wds.TarWriter(self.fname, **self.kw)
        self.count = self.size = 0


def test_a_shard_writer_that_names_its_shards_itself(tmp_path):
    """It has no pattern, and its ``fname`` is None until its own ``next_stream`` sets it."""
    with OwnNames(tmp_path, maxcount=2, verbose=0) as sink:
        for n in range(5):
            sink.write({"__key__": str(n), "txt": "a"})
    assert (sink.shard, sink.total) == (3, 5)
    read = wds.WebDataset(f"{tmp_path}/{{00000..00002}}.tar", shardshuffle=False)
    assert [sample["__key__"] for sample in read] == ["0", "1", "2", "3", "4"]


class Indexing(wds.ShardWriter):
    """Adds members to ``tarstream`` and notes where they lie, as a public writer of indexes does."""

    def __init__(self, pattern, **kw):
        super().__init__(pattern, **kw)
        self.folder, self.places = os.path.dirname(self.fname), {}

    def write(self, sample):
        if self.tarstream is None or self.count >= self.maxcount:
            self.next_stream()
        writer = self.tarstream
        encoded: Any = writer.encoder(sample)
        for field, payload in encoded.items():
            if field[0] != "_" or writer.keep_meta:
                member = tarfile.TarInfo(f"{sample['__key__']}.{field}")
                member.size, member.mode, member.uname = len(payload), writer.mode, writer.user
                writer.tarstream.addfile(member, io.BytesIO(payload))
                self.places[self.fname, member.name] = writer.tarstream.fileobj.tell() // 512 * 512 - 512, member.size
        self.count += 1
        self.total += 1


def test_a_shard_writer_that_writes_members_itself(tmp_path):
    """Members lie where it has noted; a short content is an error, and the shard can be continued."""
    with Indexing(f"{tmp_path}/%d.tar", maxcount=2, verbose=0) as sink:
        for n in range(3):
            sink.write({"__key__": str(n), "txt": f"text {n}", "cls": n})
        short = tarfile.TarInfo("x.txt")
        short.size = 2
        with pytest.raises(wds.WebDatasetError, match="has 1 of 2 bytes"):
            sink.tarstream.addfile(short, io.BytesIO(b"1"))
    assert sink.folder == str(tmp_path)
    for (name, member), (offset, size) in sink.places.items():
        with tarfile.open(name) as tar:
            assert (tar.getmember(member).offset_data, tar.getmember(member).size) == (offset, size)
    read = wds.WebDataset(f"{tmp_path}/{{0..1}}.tar", shardshuffle=False).decode()
    assert [sample["txt"] for sample in read] == ["text 0", "text 1", "text 2"]


def test_a_pattern_is_needed_where_our_method_names_the_shards():
    """Without a method of its own, a writer without a pattern is refused at once; ours cannot name a shard."""

    class Half(wds.ShardWriter):
        def next_stream(self):
            super().next_stream()

    with pytest.raises(wds.WebDatasetError, match="no single place"):
        wds.ShardWriter("")
    with pytest.raises(wds.WebDatasetError, match="this ShardWriter has no pattern"):
        Half("").write({"__key__": "a", "txt": "b"})


FORGETFUL = """
import sys
import webdataset as wds

def convert(source, target):
    sink = wds.TarWriter(target)
    for sample in wds.WebDataset(source, shardshuffle=False):
        sink.write({"__key__": sample["__key__"], "txt": sample["txt"]})

convert(sys.argv[1], sys.argv[2] + "/a.tar")
sink = wds.ShardWriter(sys.argv[2] + "/b-%d.tar", maxcount=3)
for sample in wds.WebDataset(sys.argv[2] + "/a.tar", shardshuffle=False):
    sink.write(sample)
"""


def test_a_program_that_never_closes_its_writers(shards, tmp_path):
    """Its shards are there, as with the published versions: in the program itself, and after it."""
    command = [sys.executable, "-c", FORGETFUL, shards[0], str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=200)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("was never closed: it was completed") == 2
    made = wds.WebDataset([f"{tmp_path}/b-{n}.tar" for n in range(2)], shardshuffle=False)
    assert [sample["__key__"] for sample in made] == ["00", "01", "02", "03"]


@pytest.fixture
def schemes():
    """The table of openers, as it was afterwards."""
    before = dict(wds.gopen_schemes)
    yield wds.gopen_schemes
    wds.gopen_schemes.clear()
    wds.gopen_schemes.update(before)


@pytest.mark.parametrize("scheme", ["s3", "gcs", "az", "abfs", "abfss", "memory", "ssh", "ftp"])
def test_openers_are_added_where_there_is_none(shards, schemes, scheme):
    """Programs ask whether a scheme is served; those that no published version has stay theirs."""
    opened = []

    def opener(url, mode="rb", bufsize=8192, **_):
        opened.append(url)
        return open(shards[0], mode)

    assert scheme not in schemes
    assert schemes.get(scheme) is None
    # served all the same
    assert callable(schemes[scheme])
    schemes.setdefault(scheme, opener)
    assert schemes.get(scheme) is schemes[scheme] is opener
    dataset = wds.WebDataset(f"{scheme}://bucket/x.tar", shardshuffle=False)
    assert [sample["__key__"] for sample in dataset] == ["00", "01", "02", "03"]
    assert opened == [f"{scheme}://bucket/x.tar"]


def test_a_default_opener_gets_what_no_published_version_serves(shards, schemes):
    """``__default__`` of a program's own is asked for ``s3:`` urls too."""
    schemes["__default__"] = lambda url, mode="rb", bufsize=8192, **_: open(shards[0], mode)
    assert len(list(wds.WebDataset("s3://bucket/x.tar", shardshuffle=False))) == 4


def test_unknown_schemes_are_told_what_is_served():
    """The schemes that are served besides are named as well."""
    with pytest.raises(ValueError, match="az, ftp, ftps, gcs, gs, .*, memory, pipe, s3"):
        wds.gopen("nothing://x")


@pytest.mark.torch
def test_trainers_that_ask_loaders_for_a_state(shards):
    """Lightning saves the state of each loader that has ``state_dict`` and ``load_state_dict``; a plain one has not."""
    pytest.importorskip("torch")

    @runtime_checkable
    class Stateful(Protocol):
        def state_dict(self): ...

        def load_state_dict(self, state): ...

    class Own(wds.WebLoader):
        def __init__(self, source):
            super().__init__(source, batch_size=None)

        def state_dict(self):
            return {"own": super().state_dict()}

    dataset = wds.WebDataset(shards, shardshuffle=False, seed=1)
    bare = wds.WebLoader(dataset, batch_size=None)
    for plain in (bare, wds.WebLoader(dataset.batched(2), batch_size=None).unbatched()):
        assert not isinstance(plain, Stateful)
        assert not hasattr(plain, "state_dict")
        with pytest.raises(AttributeError, match="make it elastic"):
            plain.state_dict()
    elastic = wds.WebLoader(dataset.elastic(streams=2), batch_size=None)
    for resumable in (elastic, elastic.batched(2), elastic.with_length(12), copy.deepcopy(elastic)):
        assert isinstance(resumable, Stateful)
        assert isinstance(resumable, wds.WebLoader)
        # as newer Pythons ask
        assert inspect.getattr_static(resumable, "state_dict", None) is not None
    own = Own(dataset.elastic(streams=2))
    assert own.state_dict()["own"] == elastic.state_dict()
    assert isinstance(pickle.loads(pickle.dumps(own)), Own)
    assert type(own).__name__ == "Own"


def test_a_replaced_tar_file_iterator_reads_the_shards(shards, monkeypatch):
    """It wraps the one that it replaces, has older arguments only, and turns stages and ``WebDataset``."""
    before, seen = tariterators.tar_file_iterator, []

    def without_classes(stream, skip_meta=r"__[^/]*__($|/)", handler=wds.reraise_exception):
        for member in before(stream, skip_meta=skip_meta, handler=handler):
            seen.append(member["fname"])
            if not member["fname"].endswith(".cls"):
                yield member

    monkeypatch.setattr(tariterators, "tar_file_iterator", without_classes)
    staged = wds.DataPipeline(wds.SimpleShardList(shards), wds.tarfile_to_samples())
    for dataset in (staged, wds.WebDataset(shards, shardshuffle=False)):
        assert [sorted(set(sample) - {"__url__"}) for sample in dataset] == [["__key__", "txt"]] * 12
    assert len(seen) == 48
    with pytest.raises(ValueError, match="was replaced"):
        list(wds.WebDataset(shards, shardshuffle=False).elastic())


def test_a_replaced_tar_file_iterator_and_damage(shards, tmp_path, monkeypatch):
    """The sample in progress is dropped and the next shard read, as without the replacement."""
    before = tariterators.tar_file_iterator
    monkeypatch.setattr(tariterators, "tar_file_iterator", lambda *args, **kw: before(*args, **kw))
    cut = tmp_path / "cut.tar"
    cut.write_bytes(Path(shards[0]).read_bytes()[: 512 * 7])
    errors = []
    urls = [str(cut), shards[1]]
    dataset = wds.WebDataset(urls, shardshuffle=False, handler=lambda error: errors.append(error) or True)
    assert [sample["__key__"] for sample in dataset] == ["00", "10", "11", "12", "13"]
    assert len(errors) == 1


def test_a_replaced_valid_sample_chooses_samples(shards, monkeypatch):
    """It is asked about each, in stages and in ``WebDataset``."""
    before = tariterators.valid_sample
    monkeypatch.setattr(tariterators, "valid_sample", lambda sample: before(sample) and sample["cls"] == b"1")
    staged = wds.DataPipeline(wds.SimpleShardList(shards), wds.tarfile_to_samples())
    for dataset in (staged, wds.WebDataset(shards, shardshuffle=False)):
        assert [sample["__key__"] for sample in dataset] == ["01", "11", "21"]


def test_a_replaced_tarfile_to_samples(shards, monkeypatch):
    """A program puts a stage of its own there, made of ours; ``WebDataset`` reads on, as in the published versions."""
    stage = wds.pipelinefilter(tariterators.tarfile_samples)
    monkeypatch.setattr(tariterators, "tarfile_to_samples", stage)
    staged = wds.DataPipeline(wds.SimpleShardList(shards), tariterators.tarfile_to_samples())
    assert len(list(staged)) == len(list(wds.WebDataset(shards, shardshuffle=False))) == 12
