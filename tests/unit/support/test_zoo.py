"""The zoo: its shards are what their exhibits say, by other people's reading."""

import pytest

import webdataset as wds
from support import zoo
from webdataset.core.errors import DuplicateField, SplitSample
from webdataset.testing import archives, damage


def test_kinds_are_written(tmp_path):
    """All kinds, or those asked for; files hold what exhibits hold."""
    paths = zoo.build(tmp_path)
    assert list(paths) == zoo.names()
    assert all(paths[name].read_bytes() == zoo.exhibit(name).archive for name in zoo.names())
    assert list(zoo.build(tmp_path, ["plain"])) == ["plain"]
    with pytest.raises(KeyError):
        zoo.exhibit("dragon")


@pytest.mark.parametrize("exhibit", zoo.exhibits(), ids=lambda exhibit: exhibit.name)
def test_fields_are_the_payloads_that_tarfile_reads(exhibit):
    """Every field of every sample is a member, in order; members that are no field are few and known."""
    members = archives.members_by_tarfile(exhibit.archive)
    assert exhibit.note
    if exhibit.samples is None:
        keys = [name.partition(".")[0] for name, _ in members]
        assert keys != sorted(keys) or len({name for name, _ in members}) < len(members)
        return
    fields = [(f"{key}.{field}".lower(), load) for key, samples in exhibit.samples for field, load in samples.items()]
    theirs = [(name.lower(), load) for name, load in members]
    skipped = [member for member in theirs if member not in fields]
    assert [member for member in theirs if member in fields] == fields
    assert bool(skipped) == (exhibit.name in ("dotfile", "meta", "no_extension"))


@pytest.mark.usefixtures("ends_unmarked")
@pytest.mark.parametrize("exhibit", zoo.exhibits(), ids=lambda exhibit: exhibit.name)
def test_the_stream_reader_delivers_the_samples(tmp_path, exhibit):
    """Keys, fields and payloads; an error where a field stands twice, or a sample in parts."""
    path = zoo.build(tmp_path, [exhibit.name])[exhibit.name]
    dataset = wds.WebDataset(str(path), empty_check=False)
    if exhibit.samples is None:
        with pytest.raises(DuplicateField if exhibit.name == "duplicate_member" else SplitSample):
            list(dataset)
        return
    found = [
        (sample["__key__"], {name: load for name, load in sample.items() if name[:2] != "__"}) for sample in dataset
    ]
    assert found == exhibit.samples


def test_only_one_is_without_an_end():
    """The others are whole archives."""
    flaws = {exhibit.name: damage.flaw(exhibit.archive) for exhibit in zoo.exhibits() if exhibit.name != "sparse"}
    assert {name for name, flaw in flaws.items() if flaw == "end"} == {"no_end_mark"}
