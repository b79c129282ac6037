"""Members to samples."""

import sys

import pytest

from webdataset.core.errors import DuplicateField, UsageError
from webdataset.samples.grouping import Grouper, last_dot, valid_sample


def grouped(names, **kw):
    """Group members with these names; return the samples as {key: fields}, and the grouper."""
    grouper = Grouper(**kw)
    grouper.open({"__url__": "u"})
    members = [(name, f"{n}".encode(), n * 1024) for n, name in enumerate(names)]
    samples = grouper.add(members)
    while grouper.fault is not None:
        samples += grouper.add(members, grouper.taken)
    return samples + grouper.close(), grouper


def fields(samples):
    """Return key and fields of samples."""
    return [(s["__key__"], {k: v for k, v in s.items() if not k.startswith("__")}) for s in samples]


def test_consecutive_members_of_one_key():
    """A sample is a run of members with one key; the same key later is another sample."""
    samples, _ = grouped(["a.x", "a.y", "b.x", "a.x"])
    assert fields(samples) == [("a", {"x": b"0", "y": b"1"}), ("b", {"x": b"2"}), ("a", {"x": b"3"})]
    assert {s["__url__"] for s in samples} == {"u"}


def test_fields_are_interned():
    """A field is one string in all shards: threads of a free-threaded Python share it without counting references."""
    wanted = sys.intern("Interned.Field".lower())
    for name in ("a.Interned.FIELD", "a.interned.field"):
        samples, _ = grouped([name])
        assert list(samples[0])[-1] is wanted


def test_keys_that_begin_alike():
    """A key that begins another is not taken for it."""
    samples, _ = grouped(["a.x", "a.b/c.x", "ab.x", "a.x.y", "dir/a.x", "dir/.x", "dir/.y"])
    assert [key for key, _ in fields(samples)] == ["a", "a.b/c", "ab", "a", "dir/a", "dir/"]
    assert fields(samples)[-1] == ("dir/", {"x": b"5", "y": b"6"})


def test_extensions_are_lower_cased():
    """Extensions are folded, keys are not; ``lcase=False`` leaves them."""
    assert fields(grouped(["A.JPG", "A.Cls"])[0]) == [("A", {"jpg": b"0", "cls": b"1"})]
    assert fields(grouped(["A.JPG"], lcase=False)[0]) == [("A", {"JPG": b"0"})]


def test_names_that_belong_to_no_sample():
    """Metadata and names without an extension end no sample and start none."""
    assert fields(grouped(["a.x", "__meta__/q.x", "noext", "a.y"])[0]) == [("a", {"x": b"0", "y": b"3"})]


def test_suffixes():
    """Only the chosen extensions are kept."""
    assert fields(grouped(["a.x", "a.y", "b.y"], suffixes={"x"})[0]) == [("a", {"x": b"0"}), ("b", {})]


def test_bad_samples_are_dropped():
    """A true ``__bad__`` drops the sample."""
    assert [key for key, _ in fields(grouped(["a.x", "a.__bad__", "b.x"])[0])] == ["b"]


def test_duplicates():
    """The policies for the same extension twice."""
    names = ["a.x", "a.y", "a.X", "a.z", "b.x"]
    assert fields(grouped(names, duplicates="first")[0])[0] == ("a", {"x": b"0", "y": b"1", "z": b"3"})
    assert fields(grouped(names, duplicates="last")[0])[0] == ("a", {"x": b"2", "y": b"1", "z": b"3"})
    assert fields(grouped(names, duplicates="new")[0])[:2] == [
        ("a", {"x": b"0", "y": b"1"}),
        ("a", {"x": b"2", "z": b"3"}),
    ]
    assert fields(grouped(names)[0])[0] == ("a", {"x": b"0", "y": b"1", "z": b"3"})
    with pytest.raises(UsageError, match="duplicates"):
        Grouper(duplicates="second")


def test_duplicate_names_its_place():
    """The fault says key, field and offset, and where to go on."""
    grouper = Grouper()
    grouper.open({"__url__": "u.tar"})
    assert grouper.add([("a.x", b"", 0), ("b.x", b"", 7), ("b.x", b"", 9), ("b.y", b"", 11)]) == [
        {"__key__": "a", "__url__": "u.tar", "x": b""}
    ]
    fault = grouper.fault
    assert isinstance(fault, DuplicateField)
    assert (fault.key, fault.field, fault.offset, fault.url) == ("b", "x", 9, "u.tar")
    assert grouper.taken == 3


def test_members_named_like_metadata():
    """They are refused whatever the policy, with a message of their own."""
    for name in ("a.__url__", "a.__key__"):
        grouper = Grouper(duplicates="first")
        grouper.open({"__url__": "u"})
        grouper.add([(name, b"", 0)])
        assert "may not be called" in str(grouper.fault)
        assert "select_files" in str(grouper.fault)


def test_offsets():
    """Each sample's start is known."""
    grouper = Grouper()
    grouper.open({})
    grouper.add([("a.x", b"", 0), ("a.y", b"", 512), ("b.x", b"", 1024), ("c.x", b"", 2048)])
    assert grouper.offsets == [0, 1024]
    grouper.close()
    assert grouper.offsets == [2048]


def test_announced_member_completes_a_sample():
    """A sample is given before a large member of the next one is read, and only then."""
    grouper = Grouper()
    grouper.open({})
    done = grouper.add([("a.x", b"1", 0)])
    grouper.announce("a.y", done)
    grouper.announce("__meta__/z.y", done)
    assert done == []
    grouper.announce("b.x", done)
    assert [s["__key__"] for s in done] == ["a"]
    assert fields(grouper.add([("b.x", b"2", 5)]) + grouper.close()) == [("b", {"x": b"2"})]


def test_abandoned_samples_are_named():
    """What an error interrupts is not given."""
    grouper = Grouper()
    grouper.open({})
    grouper.add([("a.x", b"", 0), ("b.x", b"", 0)])
    assert grouper.abandon() == "b"
    assert grouper.close() == []


def test_other_keys():
    """Any function may split names."""
    samples, _ = grouped(["v1.0.x", "v1.0.y", "v1.1.x"], keys=last_dot)
    assert fields(samples) == [("v1.0", {"x": b"0", "y": b"1"}), ("v1.1", {"x": b"2"})]


def test_valid_sample():
    """A sample is a dict with something in it that is not marked bad."""
    assert valid_sample({"x": 1})
    assert not valid_sample({})
    assert not valid_sample({"x": 1, "__bad__": True})
    assert not valid_sample(None)


def test_a_name_alone_is_split_as_a_member_is():
    """What is filtered out has neither key nor field, and nothing is remembered."""
    _, grouper = grouped([], suffixes={"txt", "png"})
    assert grouper.split("d/a.txt") == ("d/a", "txt")
    assert grouper.split("d/a.PNG") == ("d/a", "png")
    assert [grouper.split(name) for name in ("d/a.jpg", "a", "__meta__")] == [None] * 3
    assert Grouper(lcase=False).split("a.PNG") == ("a", "PNG")


def test_fields_with_slashes_of_other_rules():
    """Such a field is one like others, with a rule that gives it."""
    samples, grouper = grouped(["a:x/y", "a:z", "b:x/y", "b:z"], keys=lambda name: tuple(name.split(":")))
    assert fields(samples) == [("a", {"x/y": b"0", "z": b"1"}), ("b", {"x/y": b"2", "z": b"3"})]
    assert grouper.every_field() == (frozenset(("x/y", "z")), 4)
