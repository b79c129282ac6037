"""Selecting samples and fields, joining datasets, and writing series of shards."""

import io
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from webdataset.core.errors import DuplicateField, MissingField, SampleError, UsageError
from webdataset.reshaping.join import join_samples
from webdataset.reshaping.raw_writer import RawShardSeries, RawShardWriter, name_numbered, write_evenly
from webdataset.reshaping.selection import Selection
from webdataset.samples.raw_samples import read_samples
from webdataset.testing import archives


def samples(*members):
    """Samples of an archive with these members."""
    return list(read_samples(io.BytesIO(archives.by_hand(list(members)))))


def outline(found):
    """Key and payloads of samples."""
    return [(sample.key, sample.payloads()) for sample in found]


SAMPLES = samples(("a.txt", b"1"), ("a.seg.png", b"2"), ("a.jpg", b"3"), ("b.txt", b"4"))


def test_fields_kept_dropped_and_renamed():
    """Patterns say which fields stay; renamed ones keep their place; a sample without fields goes."""
    assert outline(Selection(keep=("*.png", "jpg")).apply(SAMPLES)) == [("a", {"seg.png": b"2", "jpg": b"3"})]
    assert outline(Selection(drop=("txt",)).apply(SAMPLES)) == [("a", {"seg.png": b"2", "jpg": b"3"})]
    (first, _) = Selection(rename={"caption.txt": "txt"}).apply(SAMPLES)
    assert first.members[0].name == "a.caption.txt"
    assert first.fields == ("caption.txt", "seg.png", "jpg")
    assert [each.key for each in read_samples(io.BytesIO(_archive([first])))] == ["a"]


def test_names_that_collide_or_lack():
    """Two fields of one name are an error; a missing one is where that is asked for."""
    with pytest.raises(DuplicateField, match="get the name 'txt'"):
        list(Selection(rename={"txt": "jpg"}).apply(SAMPLES))
    with pytest.raises(MissingField, match="no field 'jpg'"):
        list(Selection(rename={"image.jpg": "jpg"}, require_fields=True).apply(SAMPLES))


def test_keys_and_conditions():
    """Keys that were met are told; what stayed and went is counted."""
    selection = Selection(keys=frozenset(("b", "z")), where=lambda sample: "txt" in sample.fields)
    assert [each.key for each in selection.apply(SAMPLES)] == ["b"]
    assert (selection.taken, selection.left_out, selection.found_keys) == (1, 1, {"b"})


def _archive(found):
    out = io.BytesIO()
    writer = RawShardWriter(out)
    for each in found:
        writer.write(each)
    writer.close()
    return out.getvalue()


IMAGES = samples(("c.jpg", b"c"), ("a.jpg", b"a"), ("b.jpg", b"b"))
TEXTS = samples(("a.txt", b"A"), ("b.txt", b"B"), ("c.txt", b"C"))


@pytest.mark.parametrize("memory", [1, 1 << 30])
def test_join_keeps_the_order_of_the_first(memory):
    """Whatever the order of the others, and whether they fit into memory."""
    found = outline(join_samples([IMAGES, TEXTS], memory_bytes=memory))
    assert found == [(key, {"jpg": key.encode(), "txt": key.upper().encode()}) for key in "cab"]


def test_join_where_keys_lack():
    """A missing key is an error, or the sample is left out, or what there is is kept."""
    with pytest.raises(MissingField, match="dataset 2 of the join") as caught:
        list(join_samples([IMAGES, TEXTS[:2]]))
    assert caught.value.key == "c"
    assert [each.key for each in join_samples([IMAGES, TEXTS[:2]], missing="skip")] == ["a", "b"]
    assert [each.key for each in join_samples([IMAGES[:2], TEXTS], missing="keep")] == ["c", "a", "b"]


def test_join_where_fields_collide():
    """The same field twice is an error, or the first or last wins."""
    with pytest.raises(DuplicateField, match="--conflict first, or last"):
        list(join_samples([IMAGES, IMAGES]))
    other = samples(("a.jpg", b"9"))
    assert outline(join_samples([IMAGES[1:2], other], conflict="first")) == [("a", {"jpg": b"a"})]
    assert outline(join_samples([IMAGES[1:2], other], conflict="last")) == [("a", {"jpg": b"9"})]


def test_join_refuses_keys_that_come_twice():
    """Keys are unique within a dataset."""
    with pytest.raises(SampleError, match="twice"):
        list(join_samples([[*IMAGES, IMAGES[0]], TEXTS]))
    with pytest.raises(UsageError, match="two datasets"):
        join_samples([IMAGES])


@given(st.lists(st.integers(0, 3000), max_size=30), st.integers(1, 5), st.integers(4000, 20_000))
def test_series_keeps_its_bounds(tmp_path_factory, sizes, count, most):
    """No shard has more samples or bytes than allowed, unless one sample alone is larger; nothing is lost."""
    folder = tmp_path_factory.mktemp("series")
    members = [(f"k{number:03}.txt", b"x" * size) for number, size in enumerate(sizes)]
    with RawShardSeries(f"{folder}/s-%04d.tar", max_samples=count, max_bytes=most) as series:
        for each in samples(*members):
            series.write(each)
    found = []
    for name, written in series.shards:
        read = [each.key for each in read_samples(name)]
        size = Path(name).stat().st_size
        assert len(read) == written <= count
        assert size <= most or written == 1
        found += read
    assert found == [name.partition(".")[0] for name, _ in members]


@given(st.integers(0, 40), st.integers(1, 12))
def test_even_shards(tmp_path_factory, total, shards):
    """Counts differ by at most one, the order stays, and there are as many shards as asked for."""
    folder = tmp_path_factory.mktemp("even")
    given_samples = samples(*((f"k{number:03}.txt", b"") for number in range(total)))
    with RawShardSeries(f"{folder}/s-%04d.tar") as series:
        write_evenly(given_samples, total, shards, series)
    counts = [count for _, count in series.shards]
    assert len(counts) == shards
    assert max(counts) - min(counts) <= 1
    assert [each.key for name, _ in series.shards for each in read_samples(name)] == [
        each.key for each in given_samples
    ]


@pytest.mark.parametrize("counted", [2, 4])
def test_even_shards_of_another_count_are_refused(tmp_path, counted):
    """Shards that changed after they were counted lose nothing silently."""
    with pytest.raises(UsageError, match="have changed"), RawShardSeries(f"{tmp_path}/s-%04d.tar") as series:
        write_evenly(IMAGES, counted, 1, series)
    assert not list(tmp_path.iterdir())


def test_patterns_are_checked(tmp_path):
    """Bounds need a pattern, and a pattern one number."""
    with pytest.raises(UsageError, match="need a pattern"):
        RawShardSeries("out.tar", max_samples=3)
    with pytest.raises(UsageError, match="several numbers"):
        RawShardSeries("%d-%d.tar")


@pytest.mark.parametrize("width", ["21", "021", "99999999999", "9" * 5000])
def test_the_width_of_a_number_is_bounded(width):
    """A width that would take all memory is a wrong pattern; 20 digits hold every number."""
    with pytest.raises(UsageError, match="more than 20 digits: write fewer"):
        RawShardSeries(f"s-%{width}d.tar")
    assert name_numbered("s-%020d.tar", 7) == f"s-{7:020}.tar"
