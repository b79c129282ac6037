"""Interleaved documents in shards that are cut, damaged or wrong: nothing is joined or lost unsaid."""

import random

import pytest

import webdataset as wds
from webdataset.core.errors import MissingImage, SampleError, Truncated, UsageError
from webdataset.samples.documents.document import Document
from webdataset.testing import archives, documents
from webdataset.testing.documents import Picture, Spec

SPECS = [
    Spec(f"{n:03d}", ["x", "y"], [Picture(f"im{k}.jpg", k % 2, f"{n}{k}".encode() * 300) for k in range(3)])
    for n in range(4)
]
EXPECTED = {spec.key: documents.expected(spec) for spec in SPECS}


def shard(path, *, by_name, cut=None):
    """Write a shard, cut off behind so many bytes."""
    members = [member for spec in SPECS for member in documents.siblings(spec)]
    archive = archives.by_hand(sorted(members) if by_name else members)
    path.write_bytes(archive[:cut])
    return str(path), len(archive)


@pytest.mark.parametrize("by_name", [False, True])
def test_a_cut_shard_gives_whole_documents_or_errors(tmp_path, by_name):
    """Cut after any block: each document is whole or an error, and what the cut left over is never given as whole."""
    path, size = shard(tmp_path / "a.tar", by_name=by_name)
    for cut in range(512, size - 1024, 512):
        shard(tmp_path / "a.tar", by_name=by_name, cut=cut)
        failures = []
        ds = wds.WebDataset(
            path, handler=lambda exn: failures.append(exn) or True, missing_end="error", empty_check=False
        )
        found = list(ds.interleaved(handler=lambda exn: failures.append(exn) or True))
        assert all(documents.shown(document) == EXPECTED[document["__key__"]] for document in found)
        assert len(found) == 4 or any(isinstance(failure, Truncated) for failure in failures)
        kinds = {type(failure) for failure in failures}
        assert kinds <= {Truncated, MissingImage, SampleError}


def test_a_cut_shard_does_not_feed_the_next_one(tmp_path):
    """The last document of a cut shard does not take the images of the next, though its names are there."""
    path, size = shard(tmp_path / "a.tar", by_name=False)
    other, _ = shard(tmp_path / "b.tar", by_name=False)
    shard(tmp_path / "a.tar", by_name=False, cut=512 * 5)
    failures = []
    ds = wds.WebDataset([path, other], handler=wds.ignore_and_continue)
    found = list(ds.interleaved(handler=lambda exn: failures.append(exn) or True))
    assert [document["__url__"] for document in found] == [other] * 4
    assert [(failure.key, failure.url) for failure in failures] == [("000", path)]


def mix_up(samples):
    """A shuffle of the user's own, of which the library knows nothing."""
    samples = list(samples)
    random.Random(3).shuffle(samples)
    yield from samples


def test_a_shuffle_before_the_stage_is_told(tmp_path):
    """Members that stand apart are errors that say where the shuffle belongs, never documents without images."""
    path, _ = shard(tmp_path / "a.tar", by_name=False)
    with pytest.raises(UsageError, match="put it after the stage that joins"):
        wds.WebDataset(path).shuffle(100).interleaved()
    ds = wds.WebDataset(path).compose(mix_up)
    with pytest.raises(SampleError, match="shuffle after interleaved"):
        list(ds.interleaved())
    failures = []
    found = list(ds.interleaved(handler=lambda exn: failures.append(exn) or True))
    assert all(documents.shown(document) == EXPECTED[document["__key__"]] for document in found)
    assert len(found) + sum(isinstance(failure, MissingImage) for failure in failures) == 4
    gathered = ds.interleaved(adjacent=False)
    assert {d["__key__"]: documents.shown(d) for d in gathered} == EXPECTED


def test_documents_far_apart_pass_the_lookahead_as_errors(tmp_path):
    """What waits is bounded: a document whose images come too late is an error, and so are they."""
    far = [documents.siblings(spec)[0] for spec in SPECS]
    far += [member for spec in SPECS for member in documents.siblings(spec)[1:]]
    (tmp_path / "a.tar").write_bytes(archives.by_hand(far))
    failures = []
    ds = wds.WebDataset(str(tmp_path / "a.tar"))
    found = list(ds.interleaved(adjacent=False, lookahead=3, handler=lambda exn: failures.append(exn) or True))
    assert len(failures) > 0
    assert all(documents.shown(d) == EXPECTED[d["__key__"]] for d in found)
    assert len(list(ds.interleaved(adjacent=False, lookahead=16))) == 4


def test_a_document_among_others_fails_alone(tmp_path):
    """An image that is no image is an error of its document only."""
    pytest.importorskip("PIL")
    path, _ = shard(tmp_path / "a.tar", by_name=True)
    failures = []
    ds = wds.WebDataset(path).interleaved().decode("rgb", handler=lambda exn: failures.append(exn) or True)
    assert list(ds) == []
    assert [failure.key for failure in failures] == list(EXPECTED)
    assert isinstance(next(iter(wds.WebDataset(path).interleaved())), Document)
