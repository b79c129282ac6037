"""When what waits is decided: the gatherer, sample by sample."""

import pytest

from webdataset.core.errors import SampleError
from webdataset.samples.documents.siblings import SiblingCollector, SiblingRequest


def describe(sample):
    """A document lists what it wants under "json"; "*" wants all."""
    if "json" not in sample:
        return None
    if sample["json"] == "bad":
        raise SampleError("bad")
    return (
        SiblingRequest([], all=True, whole=True)
        if sample["json"] == "*"
        else SiblingRequest([(name,) for name in sample["json"]])
    )


class Played:
    """A gatherer, played sample by sample."""

    def __init__(self, **options):
        self.gatherer = SiblingCollector(describe, lambda sample: "cls" not in sample, **options)
        self.fed = 0

    def feed(self, key, *names, url="u", **fields):
        """Feed a sample; return the keys of the groups that it decided."""
        self.gatherer.feed(self.fed, {"__key__": key, "__url__": url, **fields, **dict.fromkeys(names, b"")})
        self.fed += 1
        return self.decided()

    def decided(self):
        """The keys of the groups that are decided."""
        ready = self.gatherer.ready
        groups = [" ".join(item.sample["__key__"] for item in group.items) for group in ready]
        ready.clear()
        return groups

    def finish(self):
        """End the shard."""
        self.gatherer.finish()
        return self.decided()

    @property
    def waiting(self):
        """The keys of what waits."""
        return [item.sample["__key__"] for item in self.gatherer.pending_samples()]


def test_a_document_is_decided_by_its_last_image():
    """Not one sample later; images may come first or last."""
    played = Played()
    assert played.feed("7-b", "jpg") == []
    assert played.feed("7", json=["a", "b", "c"]) == []
    assert played.feed("7-a", "jpg") == []
    assert played.feed("7-c", "jpg") == ["7 7-b 7-a 7-c"]
    assert played.waiting == []


def test_a_document_that_wants_nothing_waits_for_nothing():
    """It is decided at once."""
    assert Played().feed("7", json=[]) == ["7"]


def test_a_sample_outside_decides_what_waits():
    """A key that does not begin with the document's ends it, incomplete as it is; so do samples of no document."""
    played = Played()
    played.feed("7", json=["a"])
    played.feed("7-x", "jpg")
    assert played.waiting == ["7", "7-x"]
    assert played.feed("8", json=[]) == ["7", "7-x", "8"]


def test_a_key_that_only_begins_alike_is_outside():
    """70 is no sibling of 7."""
    played = Played()
    played.feed("7", json=["0"])
    assert played.feed("70", "jpg") == ["7", "70"]


def test_documents_may_lie_within_each_other():
    """Sorted by name, the members of a-b stand among those of a."""
    played = Played()
    assert played.feed("a-0", "jpg") == []
    assert played.feed("a-b-0", "jpg") == []
    assert played.feed("a-b", json=["0"]) == ["a-b a-b-0"]
    assert played.feed("a", json=["0"]) == ["a a-0"]


def test_an_image_goes_to_the_document_that_names_it():
    """Of two open documents, the one that wants it."""
    played = Played(adjacent=False)
    played.feed("a", json=["b-0"])
    played.feed("a-b", json=["1"])
    assert played.feed("a-b-1", "jpg") == ["a-b a-b-1"]
    assert played.feed("a-b-0", "jpg") == ["a a-b-0"]


def test_unnamed_images_and_other_samples_stay_by_themselves():
    """a.json and a-b.jpg are not merged unless the JSON says so; samples that cannot be siblings never wait."""
    played = Played()
    assert played.feed("a", json=["c"]) == []
    assert played.feed("a-b", "jpg") == []
    assert played.feed("a-c", "cls") == ["a-c"]
    assert played.finish() == ["a", "a-b"]
    assert played.feed("plain", "jpg") == ["plain"]


def test_shards_are_never_joined():
    """The end of a shard decides everything, in the order in which it came."""
    played = Played(adjacent=False)
    played.feed("7-b", "jpg")
    played.feed("7", json=["a", "b"])
    assert played.feed("7-a", "jpg", url="other") == ["7 7-b"]
    assert played.finish() == ["7-a"]


def test_the_same_shard_again_starts_afresh():
    """The same url twice in turn: a document that comes again ends its first copy, an image its own."""
    played = Played(adjacent=False)
    played.feed("7-a", "jpg")
    assert played.feed("7-a", "jpg") == ["7-a"]
    assert played.feed("7", json=["a", "b"]) == []
    assert played.feed("7", json=["a", "b"]) == ["7 7-a"]


def test_lookahead_bounds_what_waits():
    """The oldest is decided where more would wait."""
    played = Played(adjacent=False, lookahead=2)
    played.feed("7", json=["a"])
    played.feed("8-x", "jpg")
    assert played.feed("8-y", "jpg") == ["7"]
    assert played.waiting == ["8-x", "8-y"]
    assert played.feed("9", json=["a"]) == ["8-x"]


def test_a_document_that_takes_all_waits_for_the_sample_behind_it():
    """Whatever begins with its key is its own, before and behind; of two documents, the longer key's."""
    played = Played()
    played.feed("7-a", "jpg")
    assert played.feed("7", json="*") == []
    assert played.feed("7-c-1", "jpg", "txt") == []
    assert played.feed("8", json="*") == ["7 7-a 7-c-1"]
    played.feed("8-x", json="*")
    played.feed("8-x-1", "jpg")
    assert played.finish() == ["8", "8-x 8-x-1"]


def test_errors_are_kept_with_their_group():
    """JSON that cannot be described, and two images of one name, are errors of the document."""
    played = Played()
    played.gatherer.feed(0, {"__key__": "7", "json": "bad"})
    assert str(played.gatherer.ready.popleft().error).startswith("bad")
    played.gatherer.feed(1, {"__key__": "8", "json": ["a"]})
    played.gatherer.feed(2, {"__key__": "8-a", "jpg": b"1", "png": b"2"})
    assert "one of two of this name" in str(played.gatherer.ready.popleft().error)
    played.gatherer.feed(3, {"__key__": "9", "json": ["a.b"]})
    played.gatherer.feed(4, {"__key__": "9-a", "b.jpg": b"1", "c.jpg": b"2"})
    assert "9-a.c.jpg is not named" in str(played.gatherer.ready.popleft().error)


@pytest.mark.parametrize("sample", [3, {}, {"__key__": 3}, None])
def test_what_is_no_sample_passes_by(sample):
    """It is a group by itself."""
    gatherer = SiblingCollector(describe, lambda sample: True)
    gatherer.feed(None, sample)
    assert gatherer.ready.popleft().items[0].sample is sample


def test_folders_and_other_separators():
    """Keys may have folders with the separator in them; the separator may be a slash."""
    played = Played()
    played.feed("a-b/7-x", "jpg")
    assert played.feed("a-b/7", json=["x"]) == ["a-b/7 a-b/7-x"]
    played = Played(separator="/")
    played.feed("a/7", json=["x", "y"])
    played.feed("a/7/x", "jpg")
    assert played.feed("a/7/y", "jpg") == ["a/7 a/7/x a/7/y"]


def test_a_document_within_another_takes_nothing_from_it_when_it_ends():
    """Two documents may name one member: the longer key's goes first, and the other keeps its claim."""
    played = Played()
    played.feed("a", json=["1-2"])
    played.feed("a-1", json=["2"])
    assert played.feed("a-2", "jpg") == ["a-1"]
    assert played.feed("a-1-2", "jpg") == ["a a-1-2"]
    assert played.finish() == ["a-2"]


def test_a_key_may_begin_with_the_separator():
    """The first character of a key is never the separator before an image's name."""
    played = Played()
    assert played.feed("d/-7-x", "jpg") == []
    assert played.feed("d/-7", json=["x"]) == ["d/-7 d/-7-x"]
    assert played.feed("-x", "jpg") == ["-x"]


def test_what_the_lookahead_decides_is_marked():
    """Errors can say then that a greater lookahead would have helped."""
    played = Played(adjacent=False, lookahead=1)
    played.gatherer.feed(0, {"__key__": "7", "json": ["a"]})
    played.gatherer.feed(1, {"__key__": "7-x", "jpg": b""})
    assert [group.early for group in played.gatherer.ready] == [True]
    played.gatherer.finish()
    assert [group.early for group in played.gatherer.ready] == [True, False]
