"""Grouping is the inverse of ungrouping, for any samples, however the bytes arrive and whoever groups."""

import contextlib
import io
import re

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import webdataset as wds
from webdataset import tariterators
from webdataset.core.errors import DuplicateField, WebDatasetError
from webdataset.testing import archives, strategies
from webdataset.testing.sources import FaultyStream


def streams(*shards):
    """Opened shards of members."""
    for index, members in enumerate(shards):
        yield {"url": f"s{index}.tar", "stream": io.BytesIO(archives.by_tarfile(members, format="pax"))}


def grouped(shards, **kw):
    """Samples of opened shards, through the functions that third parties compose."""
    return list(tariterators.group_by_keys(tariterators.tar_file_expander(shards), **kw))


def plain(samples):
    """Key and fields of samples."""
    return [
        (sample["__key__"], {name: value for name, value in sample.items() if not name.startswith("__")})
        for sample in samples
    ]


def split_by_rule(name):
    """Key and extension in the plainest words: the first dot of the last part decides.

    A part that begins with a dot has a key in a folder only, and only where the folder's own name has no dot.
    """
    folder, slash, last = name.rpartition("/")
    stem, dot, extension = last.partition(".")
    if not dot or (not stem and (not slash or "." in folder.rpartition("/")[2])):
        return None, None
    return folder + slash + stem, extension


@settings(deadline=None)
@given(strategies.samples())
def test_group_is_the_inverse_of_ungroup(samples):
    """Samples written out as members come back as they were, order of fields included."""
    found = plain(grouped(streams(archives.members_of(samples))))
    assert found == samples
    assert [list(fields) for _, fields in found] == [list(fields) for _, fields in samples]


@settings(deadline=None)
@given(strategies.samples(), st.integers(0, 1000), st.integers(1, 2000))
def test_the_sizes_of_reads_do_not_matter(samples, seed, most):
    """A stream of short reads gives the same samples as one piece."""
    data = archives.by_tarfile(archives.members_of(samples), format="pax")
    stream = FaultyStream(data, seed=seed, most=most)
    assert plain(grouped(iter([{"url": "x.tar", "stream": stream}]))) == samples


@settings(deadline=None)
@given(st.lists(strategies.samples(most=3), max_size=4))
def test_shards_never_join(shards):
    """Each shard's samples are its own, whatever keys stand at the border."""
    found = grouped(streams(*map(archives.members_of, shards)))
    assert plain(found) == [sample for samples in shards for sample in samples]
    urls = [f"s{index}.tar" for index, samples in enumerate(shards) for _ in samples]
    assert [sample["__url__"] for sample in found] == urls


@settings(max_examples=25, deadline=None)
@given(samples=strategies.samples(most=4))
def test_all_readers_agree(samples, tmp_path_factory):
    """The stages, the class, and the composed functions give the same samples."""
    path = tmp_path_factory.mktemp("shards") / "x.tar"
    path.write_bytes(archives.by_tarfile(archives.members_of(samples), format="pax"))
    url = str(path)
    pipeline = wds.DataPipeline(wds.SimpleShardList([url]), wds.tarfile_to_samples())
    dataset = wds.WebDataset([url], shardshuffle=False, empty_check=False)
    composed = tariterators.group_by_keys(tariterators.tar_file_expander(tariterators.url_opener(iter([{"url": url}]))))
    assert plain(pipeline) == plain(dataset) == plain(composed) == samples


@settings(deadline=None)
@given(strategies.member_names())
@example("./.")
@example("a.b/.c")
@example("a/.b/.c")
@example(".a/b/.c")
@example("a//.b")
@example("/.")
def test_base_plus_ext_follows_the_rule(name):
    """The first dot of the last component splits; a name without one, or hidden at the top, has no key."""
    assert tariterators.base_plus_ext(name) == split_by_rule(name)


@settings(deadline=None)
@given(st.lists(strategies.member_names(), max_size=12))
def test_any_names_group_by_the_rule(names):
    """Whatever the names: consecutive members of one key are one sample, and nothing else is lost."""
    model, clash = [], False
    for index, name in enumerate(names):
        key, extension = split_by_rule(name)
        if key is None or re.match(r"__[^/]*__($|/)", name):
            continue
        if not model or model[-1][0] != key:
            model.append((key, {}))
        extension = extension.lower()
        clash |= extension in model[-1][1] or (extension.startswith("__") and extension.endswith("__"))
        model[-1][1][extension] = b"%d" % index
    members = [{"fname": name, "data": b"%d" % index, "__url__": "u"} for index, name in enumerate(names)]
    with pytest.raises(WebDatasetError) if clash else contextlib.nullcontext():
        assert plain(tariterators.group_by_keys(iter(members))) == model


@settings(deadline=None)
@given(st.lists(st.sampled_from(["a.x", "a.y", "a.z", "b.x", "b.y"]), max_size=10))
def test_duplicate_policies(names):
    """first, last, new and error agree with a model over any order of a few names."""
    members = [(name, b"%d" % index) for index, name in enumerate(names)]
    wanted = {policy: model_of_duplicates(members, policy) for policy in ("first", "last", "new")}
    for policy, samples in wanted.items():
        assert read(members, duplicates=policy, split_samples="ignore") == samples
    if wanted["first"] == wanted["last"] == wanted["new"]:
        assert read(members, split_samples="ignore") == wanted["new"]
    else:
        with pytest.raises(DuplicateField):
            read(members, split_samples="ignore")


def model_of_duplicates(members, policy):
    """Group in the plainest words."""
    samples = []
    for name, payload in members:
        key, _, field = name.partition(".")
        same = bool(samples) and samples[-1][0] == key
        if not same or (policy == "new" and field in samples[-1][1]):
            samples.append((key, {}))
        if policy != "first" or field not in samples[-1][1]:
            samples[-1][1][field] = payload
    return samples


def read(members, **kw):
    """Samples of one shard through tarfile_samples, the fast way."""
    return plain(shard_samples(members, **kw))


def shard_samples(members, **kw):
    """The fast way over one shard, written to memory."""
    stage = wds.tarfile_to_samples(**kw)
    return stage(iter([{"url": io.BytesIO(archives.by_hand(members))}]))


@settings(deadline=None)
@given(strategies.samples(most=5), st.integers(0, 6))
def test_select_files_is_a_filter_on_members(samples, parity):
    """Leaving members out gives what a shard without them gives."""
    members = archives.members_of(samples)

    def chosen(name):
        return len(name) % 7 != parity

    kept = [member for member in members if chosen(member[0])]
    expander = tariterators.tar_file_expander(streams(members), select_files=chosen)
    assert plain(tariterators.group_by_keys(expander)) == plain(grouped(streams(kept)))


@settings(deadline=None)
@given(strategies.samples(most=5))
def test_rename_files_is_a_change_of_names(samples):
    """Renaming while reading gives what a shard with those names gives; select_files sees the new names."""
    members = archives.members_of(samples)
    asked = []

    def renamed(name):
        return "new/" + name

    def chosen(name):
        asked.append(name)
        return True

    expander = tariterators.tar_file_expander(streams(members), rename_files=renamed, select_files=chosen)
    found = plain(tariterators.group_by_keys(expander))
    assert found == [("new/" + key, fields) for key, fields in samples]
    assert asked == [renamed(name) for name, _ in members]
