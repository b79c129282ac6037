"""Code that other projects carry: their own groupers over our functions, and functions of ours replaced by theirs."""

import pytest

import webdataset as wds
import webdataset.tariterators
from webdataset import tariterators
from webdataset.tariterators import base_plus_ext, group_by_keys, tar_file_expander, url_opener, valid_sample
from webdataset.testing import archives


@pytest.fixture
def urls(tmp_path):
    """Two shards whose border falls inside a run of one key, and a repeated extension."""
    (tmp_path / "0.tar").write_bytes(archives.by_hand([("a.jpg", b"1"), ("a.txt", b"2"), ("k.jpg", b"3")]))
    (tmp_path / "1.tar").write_bytes(
        archives.by_hand([("k.txt", b"4"), ("z.jpg", b"5"), ("z.jpg", b"6"), ("noext", b"7"), ("z.txt", b"8")])
    )
    return [str(tmp_path / "0.tar"), str(tmp_path / "1.tar")]


def lenient_grouping(members, keys=base_plus_ext, lcase=True, suffixes=None, handler=None):
    """Group as the CLIP trainings do: every item is asked for its name, and a repeated extension starts a sample."""
    present = None
    for filesample in members:
        name, payload = filesample["fname"], filesample["data"]
        key, ext = keys(name)
        if key is None:
            continue
        ext = ext.lower() if lcase else ext
        if present is None or key != present["__key__"] or ext in present:
            if valid_sample(present):
                yield present
            present = {"__key__": key, "__url__": filesample["__url__"]}
        if suffixes is None or ext in suffixes:
            present[ext] = payload
    if valid_sample(present):
        yield present


def fields(samples):
    """Key and fields."""
    return [
        (sample["__key__"], *((name, sample[name]) for name in sample if not name.startswith("__")))
        for sample in samples
    ]


def test_a_lenient_grouper_works_unchanged(urls):
    """No item is without fname and data, valid_sample takes None, and repeated extensions start a new sample."""
    streams = url_opener(wds.SimpleShardList(urls), handler=wds.reraise_exception)
    members = tar_file_expander(streams, handler=wds.reraise_exception)
    assert fields(lenient_grouping(members, handler=wds.reraise_exception)) == [
        ("a", ("jpg", b"1"), ("txt", b"2")),
        ("k", ("jpg", b"3"), ("txt", b"4")),  # as with 0.2.86: such a grouper looks at keys only
        ("z", ("jpg", b"5")),
        ("z", ("jpg", b"6"), ("txt", b"8")),
    ]


def test_a_lenient_grouper_as_a_stage(urls):
    """The way it stands in those trainings: a stage made of our opener and expander and their grouper."""

    def tarfile_to_samples_nothrow(source, handler=wds.warn_and_continue):
        return lenient_grouping(tar_file_expander(url_opener(source, handler=handler), handler=handler))

    pipeline = wds.DataPipeline(wds.SimpleShardList(urls), tarfile_to_samples_nothrow, wds.to_tuple("jpg"))
    assert list(pipeline) == [(b"1",), (b"3",), (b"5",), (b"6",)]


def test_our_grouper_keeps_shards_apart_behind_the_same_functions(urls):
    """The border shows to us, though no item marks it; also where one url comes twice in a row."""
    members = tar_file_expander(url_opener(wds.SimpleShardList([urls[0], urls[0], urls[1]])))
    found = fields(group_by_keys(members, handler=wds.ignore_and_continue))
    assert found == [
        ("a", ("jpg", b"1"), ("txt", b"2")),
        ("k", ("jpg", b"3")),
        ("a", ("jpg", b"1"), ("txt", b"2")),
        ("k", ("jpg", b"3")),
        ("k", ("txt", b"4")),
        ("z", ("jpg", b"5"), ("txt", b"8")),
    ]


def test_eof_value_is_given_where_it_is_asked_for(urls):
    """Callers written for 1.0 may ask for the marker; ours groups with it as without."""
    marked = list(tar_file_expander(url_opener(wds.SimpleShardList(urls[:1])), eof_value={}))
    assert [sorted(member) for member in marked] == [["__url__", "data", "fname"]] * 3 + [[]]
    bare = list(tar_file_expander(url_opener(wds.SimpleShardList(urls[:1]))))
    assert fields(group_by_keys(iter(marked))) == fields(group_by_keys(iter(bare)))


def test_members_look_as_they_did_in_0_2(urls):
    """Exactly three entries; the url is a str, equal to what was given."""
    for member in tar_file_expander(url_opener(iter([{"url": urls[0]}]))):
        assert sorted(member) == ["__url__", "data", "fname"]
        assert isinstance(member["__url__"], str)
        assert member["__url__"] == urls[0]
        assert type(member["data"]) is bytes


READERS = {
    "stages": lambda urls: wds.DataPipeline(wds.SimpleShardList(urls), wds.tarfile_to_samples(duplicates="new")),
    "class": lambda urls: wds.WebDataset(urls, shardshuffle=False, duplicates="new"),
}


@pytest.mark.parametrize("reader", READERS)
def test_replacing_the_opener_turns_every_reader(reader, urls, monkeypatch):
    """As two well-known projects do on import: the name is looked up when the pipeline runs."""
    asked = []

    def opener(source, handler=wds.reraise_exception, **kw):
        for shard in source:
            asked.append(shard["url"])
            yield {**shard, "stream": open(shard["url"], "rb")}

    dataset = READERS[reader](urls)
    expected = fields(dataset)
    assert not asked
    monkeypatch.setattr(webdataset.tariterators, "url_opener", opener)
    assert fields(dataset) == expected
    assert asked == urls


@pytest.mark.parametrize("reader", READERS)
def test_replacing_the_grouper_turns_every_reader(reader, urls, monkeypatch):
    """A grouper put into our module is the one that groups."""

    def grouper(members, keys=base_plus_ext, lcase=True, suffixes=None, handler=None, **kw):
        for member in members:
            if member:
                yield {"__key__": "mine", "name": member["fname"]}

    monkeypatch.setattr(webdataset.tariterators, "group_by_keys", grouper)
    names = [sample["name"] for sample in READERS[reader](urls)]
    assert names == ["a.jpg", "a.txt", "k.jpg", "k.txt", "z.jpg", "z.jpg", "noext", "z.txt"]


@pytest.mark.parametrize("reader", READERS)
def test_replacing_the_expander_turns_every_reader(reader, urls, monkeypatch):
    """And so is an expander."""

    def expander(shards, handler=None, **kw):
        for shard in shards:
            shard["stream"].close()
            yield {"fname": "only.txt", "data": b"!", "__url__": shard["url"]}

    monkeypatch.setattr(webdataset.tariterators, "tar_file_expander", expander)
    assert [sample["txt"] for sample in READERS[reader](urls[:1])] == [b"!"]


def test_names_that_others_import():
    """What open_clip, open_flamingo and diffusers scripts import from this module."""
    for name in ("base_plus_ext", "url_opener", "tar_file_expander", "valid_sample", "group_by_keys",
                 "tar_file_iterator", "tarfile_samples", "tarfile_to_samples"):  # fmt: skip
        assert callable(getattr(tariterators, name))
