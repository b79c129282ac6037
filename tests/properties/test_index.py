"""Whatever the archive: the index is the stream's, random access gives its bytes, and formats give the index back."""

import contextlib
import warnings

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import webdataset as wds
from webdataset.index import dali, energon, files_json
from webdataset.index.building import index_shard
from webdataset.testing import archives, strategies

QUICK = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
MEMBERS = st.lists(st.tuples(strategies.member_names(), st.binary(max_size=1200)), max_size=8)
FORMATS = st.sampled_from(["gnu", "pax"])
POLICIES = st.sampled_from(["first", "last", "new"])


def streamed(path, **options):
    """What the stream reader gives, or the class of its error."""
    try:
        return list(wds.WebDataset(str(path), addresses=True, empty_check=False, **options))
    except wds.WebDatasetError as error:
        return type(error)


@QUICK
@given(members=MEMBERS, form=FORMATS, duplicates=POLICIES)
def test_an_index_is_what_the_stream_delivers(tmp_path, members, form, duplicates):
    """Ordinals, keys, offsets and fields; and the bytes by random access, in any order and by key."""
    path = tmp_path / "x.tar"
    path.write_bytes(archives.by_tarfile(members, format=form))
    samples = streamed(path, duplicates=duplicates)
    if isinstance(samples, type):  # a member that may not be called so
        with contextlib.suppress(samples):
            index_shard(path, duplicates=duplicates)
            raise AssertionError("the index is given where the stream fails")
        return
    index = index_shard(path, duplicates=duplicates)
    assert [entry.offset for entry in index.entries] == [sample.pop("__address__").offset for sample in samples]
    with wds.IndexedShard(path, False, duplicates=duplicates) as shard:
        assert [shard[number] for number in reversed(range(len(shard)))] == samples[::-1]
        assert all(shard.by_key(sample["__key__"]) in samples for sample in samples)


@QUICK
@given(samples=strategies.samples(), form=FORMATS)
def test_formats_give_the_index_back(tmp_path, samples, form):
    """An index file that can be written opens the shard to the same samples, without the headers being walked."""
    path = tmp_path / "x.tar"
    path.write_bytes(archives.by_tarfile(archives.members_of(samples), format=form))
    index = index_shard(path)
    expected = [{"__key__": key, "__url__": str(path), **fields} for key, fields in samples]
    for module in (dali, energon, files_json):
        try:
            content = module.dumps(index)
        except wds.WebDatasetError:
            assert not samples
            continue
        (tmp_path / "some.index").write_bytes(content)
        with wds.IndexedShard(path, tmp_path / "some.index") as shard:
            assert list(shard) == expected


@QUICK
@given(samples=strategies.samples(), form=st.sampled_from([None, "gnu", "pax"]), data=st.data())
def test_writing_and_reading_give_one_index(tmp_path, samples, form, data):
    """The index made while writing, while reading, from headers and from the stream are one."""
    path = tmp_path / "x.tar"
    found = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # keys with dots and the like
        with wds.TarWriter(str(path), encoder=False, index="energon", format=form) as writer:
            for key, fields in samples:
                writer.write({"__key__": key, **fields})
    observer = wds.IndexWhileReading(then=found.append)
    list(wds.WebDataset(str(path), observer=observer, empty_check=False))
    index = index_shard(path)
    assert writer.shard_index == index
    assert found == [index]
    assert index_shard(path, hashes=["md5"]).entries == index.entries


@QUICK
@given(samples=strategies.samples(), damage=st.data())
def test_damage_never_gives_wrong_bytes(tmp_path, samples, damage):
    """Behind an index made before, damage outside of payloads gives the old sample or an error."""
    path = tmp_path / "x.tar"
    whole = archives.by_tarfile(archives.members_of(samples), format="pax")
    path.write_bytes(whole)
    index = index_shard(path)
    expected = [{"__key__": key, "__url__": str(path), **fields} for key, fields in samples]
    broken = bytearray(whole)
    payloads = [(f.offset, f.offset + f.size) for entry in index.entries for f in entry.fields]
    place = damage.draw(st.integers(0, len(whole) - 1).filter(lambda at: not any(a <= at < b for a, b in payloads)))
    broken[place] ^= damage.draw(st.integers(1, 255))
    path.write_bytes(broken)
    with wds.IndexedShard(path, index) as shard:
        for number, sample in enumerate(expected):
            with contextlib.suppress(wds.WebDatasetError):
                assert shard[number] == sample
