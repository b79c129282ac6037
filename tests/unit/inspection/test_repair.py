"""Repaired copies: nothing readable is lost, nothing half is among the whole, the shard stays as it is."""

import io
import json
import tarfile

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import webdataset as wds
from support import check_corpus, check_corpus_fields
from webdataset.core.error_handlers import ignore_and_continue
from webdataset.core.errors import AlreadyExists, UsageError
from webdataset.inspection.check import check_shards
from webdataset.inspection.repair import REPAIRED, repair_shards
from webdataset.testing import archives, damage

assert check_corpus_fields


def samples_of(path):
    """Key to fields, as the library reads them."""
    if path is None:
        return {}
    return {
        sample["__key__"]: {name: value for name, value in sample.items() if not name.startswith("__")}
        for sample in wds.WebDataset(str(path), shardshuffle=False, empty_check=False)
    }


def repaired(content, folder, name="a.tar"):
    """The report, the samples of the copy, and those beside damage."""
    (folder / "in").mkdir(exist_ok=True)
    path = folder / "in" / name
    path.write_bytes(content)
    (done,) = repair_shards(str(path), folder / "out", force=True)
    assert path.read_bytes() == content
    return done, samples_of(done.output), samples_of(done.doubtful)


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize(
    "name", [name for name in check_corpus.names() if check_corpus.make(name, 0).whole is not None]
)
def test_corpus(name, seed, tmp_path):
    """Every untouched sample is in the copy or beside it; the copy has no such finding any more."""
    variant = check_corpus.make(name, seed)
    done, whole, doubtful = repaired(variant.files[0][1], tmp_path, variant.files[0][0])
    if done.output is None:
        assert not REPAIRED.intersection(done.counts) or not variant.whole
        return
    assert variant.whole is None or (variant.whole.items() <= (whole | doubtful).items())
    assert not REPAIRED.intersection(done.remaining)
    assert not REPAIRED.intersection(check_shards(done.output, decode=False).counts)


ARCHIVES = {
    seed: (archives.samples(12, seed=seed), archives.of_samples(archives.samples(12, seed=seed))) for seed in range(6)
}


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(sorted(ARCHIVES)), st.sampled_from(sorted(damage.OPERATORS)), st.integers(0, 10**6))
def test_nothing_readable_is_lost(tmp_path_factory, seed, operator, place):
    """What the reader gives of a damaged shard, and every sample whose bytes are as they were, is in a copy."""
    folder = tmp_path_factory.mktemp("repair")
    made, archive = ARCHIVES[seed]
    damaged, description = damage.OPERATORS[operator](archive, place)
    done, whole, doubtful = repaired(damaged, folder)
    (folder / "b.tar").write_bytes(damaged)
    reader = wds.WebDataset(
        str(folder / "b.tar"), shardshuffle=False, empty_check=False, handler=ignore_and_continue, missing_end="ignore"
    )
    given_by_reader = {
        sample["__key__"]: {name: value for name, value in sample.items() if not name.startswith("__")}
        for sample in reader
    }
    if done.output is None:
        assert not REPAIRED.intersection(done.counts) or not given_by_reader, description
        return
    assert given_by_reader.items() <= (whole | doubtful).items(), description
    swallowed = _swallowed(archive, operator, place)
    for key, fields in made:
        if key != swallowed and _members(archive, key) in damaged:
            assert (whole | doubtful).get(key) == fields, description


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from(sorted(ARCHIVES)),
    st.sampled_from(["flip_header_bit", "cut", "insert_noise", "insert_zeros"]),
    st.integers(0, 10**6),
)
def test_nothing_half_is_among_the_whole(tmp_path_factory, seed, operator, place):
    """A sample of the copy that was in the shard has all its fields."""
    folder = tmp_path_factory.mktemp("repair")
    made, archive = ARCHIVES[seed]
    damaged, description = damage.OPERATORS[operator](archive, place)
    done, whole, _ = repaired(damaged, folder)
    original = dict(made)
    if done.output is not None:
        for key, fields in whole.items():
            assert key not in original or set(original[key]) == set(fields), description
    assert done.url.endswith("a.tar")


def _swallowed(archive, operator, place):
    """The sample whose first header a member before it takes for its own bytes, since one of them is missing."""
    if operator != "delete_block":
        return None
    start = damage._block(archive, place)
    with tarfile.open(fileobj=io.BytesIO(archive)) as opened:
        names = [entry.name for entry in opened if entry.offset > start]
    return names[0].partition(".")[0] if names else None


def _members(archive, key):
    """The bytes of a sample's members in an archive."""
    with tarfile.open(fileobj=io.BytesIO(archive)) as opened:
        rows = [entry for entry in opened if entry.name.startswith(f"{key}.")]
    stop = rows[-1].offset_data + (rows[-1].size + 511 & -512)
    return archive[rows[0].offset : stop]


def test_halves_become_whole(tmp_path):
    """Parts of samples are put together, in the order of the first; the report names them."""
    content = archives.by_hand([("0.a", b"1"), ("1.a", b"2"), ("0.b", b"3"), ("1.b", b"4")])
    done, whole, doubtful = repaired(content, tmp_path)
    assert whole == {"0": {"a": b"1", "b": b"3"}, "1": {"a": b"2", "b": b"4"}}
    assert (doubtful, done.merged_keys) == ({}, ("0", "1"))


def test_compressed_and_links(tmp_path):
    """A compressed shard is repaired to a plain one; hard links get bytes, symbolic ones are named as left out."""
    link = archives.header(b"1.txt", 0, kind=b"1", linkname=b"0.txt")
    symbolic = archives.header(b"2.txt", 0, kind=b"2", linkname=b"0.txt")
    content = archives.archive(archives.member(b"0.txt", b"text"), link, symbolic)
    done, whole, _ = repaired(archives.compressed(content, "gz"), tmp_path, "a.tar.gz")
    assert done.output.endswith("out/a.tar")
    assert whole == {"0": {"txt": b"text"}, "1": {"txt": b"text"}}
    assert [name for name, _, _ in done.dropped] == ["2.txt"]
    assert [path.name for path in sorted((tmp_path / "out").iterdir())] == ["a.tar", "repair.json"]
    assert json.loads((tmp_path / "out" / "repair.json").read_text())["shards"][0]["dropped"][0]["member"] == "2.txt"


def test_a_whole_shard_is_not_copied(tmp_path):
    """There is nothing to do about it."""
    done, _, _ = repaired(archives.by_hand([("0.a", b"1")]), tmp_path)
    assert (done.output, done.samples) == (None, 1)


def test_never_in_place(tmp_path):
    """The folder of the shards is refused, as are two copies of one name and files that are there."""
    for folder in ("x", "y"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "a.tar").write_bytes(archives.by_hand([("0.a", b"1")], end=b""))
    with pytest.raises(UsageError, match="folder of the shards"):
        repair_shards(str(tmp_path / "x" / "a.tar"), tmp_path / "x")
    with pytest.raises(UsageError, match="two shards"):
        repair_shards([str(tmp_path / "x" / "a.tar"), str(tmp_path / "y" / "a.tar")], tmp_path / "out")
    repair_shards(str(tmp_path / "x" / "a.tar"), tmp_path / "out")
    with pytest.raises(AlreadyExists):
        repair_shards(str(tmp_path / "x" / "a.tar"), tmp_path / "out")
