"""Google Cloud Storage and Azure Storage against services that speak like them: read, write, list, forks, pickles."""

import os
import pickle
import random
import subprocess
import sys

import pytest

import webdataset as wds
from support.after_forks import NUMBERED, closed_by_child, read_by_children, read_on_by_both
from support.readings import drained
from webdataset.core.errors import NotFound, UsageError
from webdataset.index.indexed_shard import IndexedShard
from webdataset.storage.listing import list_urls
from webdataset.storage.open_url import open_url, resolve_url
from webdataset.storage.random_access import open_ranges
from webdataset.testing import archives, documents
from webdataset.testing.archives import of_samples
from webdataset.testing.documents import Picture, Spec

PART = 256 << 10
PACKAGES = {"gs": "google", "az": "azure"}


@pytest.mark.parametrize("key", ["plain", "with space/ü#1?x=2&y%20z+.tar", "/leading", "a//b", "b~c'(d)*!;:@$,="])
@pytest.mark.parametrize("size", [0, 1, 3_000_000])
def test_keys_are_taken_as_they_stand(store, key, size):
    """What we write, others read, and the reverse, whatever the key looks like."""
    body = random.Random(size).randbytes(size)
    with wds.gopen(store.url(key), "wb") as stream:
        stream.write(body)
    assert store.get(key) == body
    assert drained(store.put(key, body[::-1])) == body[::-1]


@pytest.mark.parametrize("size", [3 * PART + 123, 3 * PART])
def test_large_objects_go_up_in_parts(store, size):
    """Nothing is there before the end; what is there then is what was written, in any pieces."""
    body = os.urandom(size)
    stream = wds.gopen(store.url(f"parts{size}"), "wb", part_bytes=PART)
    for start in range(0, size, 77_777):
        stream.write(memoryview(body)[start : start + 77_777])
    assert stream._parts
    assert store.get(f"parts{size}") is None
    stream.close()
    stream.close()
    assert stream.tell() == size
    assert store.get(f"parts{size}") == body
    assert drained(store.url(f"parts{size}")) == body
    store.delete(f"parts{size}")


@pytest.mark.parametrize("size", [10, 3 * PART])
def test_a_failed_writer_publishes_nothing(store, size):
    """An exception in the with block: the old object stays."""
    store.put("kept", b"old")

    def fail():
        with wds.gopen(store.url("kept"), "wb", part_bytes=PART) as stream:
            stream.write(b"x" * size)
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert store.get("kept") == b"old"


def test_a_forgotten_writer_publishes_nothing(store):
    """A writer that is not closed warns, and may be half of what was meant: nothing appears."""
    stream = wds.gopen(store.url("forgotten"), "wb", part_bytes=PART)
    stream.write(b"half" * PART)
    stream._threads.shutdown(wait=True)  # they hold the stream as long as they send
    with pytest.warns(ResourceWarning, match="nothing was published"):
        del stream
    with pytest.raises(NotFound):
        wds.gopen(store.url("forgotten"))


def test_folders_and_wildcards_are_listed(store):
    """``/`` at the end and wildcards stand for objects, sorted."""
    for key in ["l/a-1.tar", "l/a-2.tar", "l/b.tar", "l/deep/a-3.tar", "l/x*y", "l/ü &<1>.tar"]:
        store.put(key, b"")
    assert list_urls(store.url("l/a-*.tar")) == [store.url("l/a-1.tar"), store.url("l/a-2.tar")]
    assert wds.expand_urls(store.url("l/[!aü]*.tar")) == [store.url("l/b.tar")]
    names = ("a-1.tar", "a-2.tar", "deep/a-3.tar")
    assert wds.expand_urls(store.url("l/**/a-?.tar")) == [store.url(f"l/{name}") for name in names]
    assert wds.expand_urls(store.url("l/x*y")) == [store.url("l/x*y")]
    with pytest.warns(UserWarning, match="1 of 6 objects do not end as shards do"):
        found = [url.rpartition("/")[2] for url in wds.expand_urls(store.url("l/"))]
    assert found == ["a-1.tar", "a-2.tar", "b.tar", "a-3.tar", "ü &<1>.tar"]
    assert wds.expand_urls(store.url("l/nothing-*")) == [store.url("l/nothing-*")]
    with pytest.raises(NotFound, match="no objects are in this folder"):
        wds.expand_urls(store.url("nothing/"))


def test_pages_of_a_list(store, monkeypatch):
    """A list longer than a page is whole."""
    from webdataset.storage.backends import azure as of_azure
    from webdataset.storage.backends import gcs as of_gs

    for module in (of_azure, of_gs):
        monkeypatch.setattr(module, "PAGE", 3)
    urls = [store.put(f"pages/{number}", b"") for number in range(7)]
    assert list_urls(store.url("pages/")) == urls


def test_pairs_and_shards_written_back(store):
    """The promise of the first README: read pairs, write shards back, read them again, in folders and by wildcards."""
    with wds.ShardWriter(store.url("pairs/train-%06d.tar"), maxcount=40) as sink:
        for number in range(100):
            sink.write({"__key__": f"{number:06}", "txt": f"caption {number}", "bin": bytes([number]) * 500})
    dataset = wds.WebDataset(store.url("pairs/train-{000000..000002}.tar"), shardshuffle=False)
    pairs = list(dataset.decode().to_tuple("txt", "bin"))
    assert [text for text, _ in pairs] == [f"caption {number}" for number in range(100)]
    with wds.ShardWriter(store.url("pairs/copy-%06d.tar"), maxcount=1000) as sink:
        for sample in wds.WebDataset(store.url("pairs/train-*.tar"), shardshuffle=False):
            sink.write(sample)
    copied = list(wds.WebDataset(store.url("pairs/copy-000000.tar"), shardshuffle=False))
    assert [sample["txt"] for sample in copied] == [text.encode() for text, _ in pairs]
    assert copied[0]["__url__"] == store.url("pairs/copy-000000.tar")


def test_interleaved_documents(store):
    """Documents and their images are read."""
    spec = Spec("000000001", ["one", "two"], [Picture(f"{k}.jpg", k % 2, b"jpeg" * 40, 0.3) for k in range(2)])
    url = store.put("interleaved/docs.tar", archives.by_hand(list(documents.siblings(spec))))
    (found,) = wds.WebDataset(url, shardshuffle=False).interleaved()
    assert [part["type"] for part in found["parts"]].count("image") == 2


def test_a_sample_by_number(store):
    """Random access reads ranges of the object."""
    samples = [(f"{number:04}", {"bin": bytes([number]) * 20_000}) for number in range(30)]
    with IndexedShard(store.put("indexed.tar", of_samples(samples))) as indexed:
        assert len(indexed) == 30
        assert indexed[17]["bin"] == samples[17][1]["bin"]
        assert indexed.by_key("0003")["bin"] == samples[3][1]["bin"]
    with open_ranges(store.put("empty", b"")) as ranges:
        assert (ranges.length, ranges.read_at(0, 10)) == (0, b"")


def test_a_cached_dataset(store, tmp_path):
    """Copies are kept, under names that tell services apart."""
    url = store.put("cached.tar", of_samples([("a", {"txt": b"first"})]))
    for _ in range(2):
        dataset = wds.WebDataset(url, shardshuffle=False, cache_dir=str(tmp_path))
        assert [sample["txt"] for sample in dataset] == [b"first"]
    assert store.running.endpoint in resolve_url(url).service_id()


@pytest.mark.parametrize("rest", ["", "bucket", "bucket/", "/key", "bucket/folder/"])
def test_urls_that_name_no_object(store, rest):
    """They say what a url looks like."""
    shown = {"gs": "gs://bucket/key", "az": "az://container/blob"}[store.scheme]
    for mode in ("rb", "wb"):
        with pytest.raises(UsageError, match=shown):
            wds.gopen(f"{store.scheme}://{rest}", mode)


def test_nothing_there(store):
    """No object, no bucket: NotFound, with the url."""
    for url in (store.url("absent"), f"{store.scheme}://no-such-bucket/x"):
        with pytest.raises(NotFound, match="404") as caught:
            wds.gopen(url)
        assert caught.value.url == url


def test_parts_have_sizes(store):
    """Sizes that a service would refuse are refused here."""
    with pytest.raises(UsageError, match="part_bytes"):
        wds.gopen(store.url("x"), "wb", part_bytes=0)


def test_the_number_of_parts_is_bounded(store, monkeypatch):
    """More parts than an object may have: said at once; nothing is published."""
    from webdataset.storage.backends.azure import AzureUpload
    from webdataset.storage.backends.gcs import GcsUpload

    for kind in (AzureUpload, GcsUpload):
        monkeypatch.setattr(kind, "most_parts", 2)
    stream = wds.gopen(store.url("too-many"), "wb", part_bytes=PART)
    with pytest.raises(UsageError, match="larger part_bytes"):
        stream.write(bytes(4 * PART))
    with pytest.raises(OSError, match="larger part_bytes"):
        stream.close()
    assert store.get("too-many") is None


def test_storage_options_of_other_stores_are_refused(store):
    """They would be lost."""
    with pytest.raises(UsageError, match="does not apply"):
        wds.gopen(store.url("x"), storage_options={"port": 22})


def test_datasets_travel(store):
    """A dataset that was pickled reads the same; what it carries is no secret."""
    url = store.put("travels.tar", of_samples([("a", {"txt": b"first"})]))
    variables = {"gs": "STORAGE_EMULATOR_HOST", "az": "AZURE_STORAGE_CONNECTION_STRING"}
    given = {"gs": {"endpoint_url": os.environ.get("STORAGE_EMULATOR_HOST"), "anonymous": True},
             "az": {"connection_string": "env:TEST_CONNECTION"}}[store.scheme]  # fmt: skip
    store.environment.setenv("TEST_CONNECTION", os.environ.get("AZURE_STORAGE_CONNECTION_STRING", ""))
    store.environment.delenv(variables[store.scheme])
    dataset = wds.WebDataset(url, shardshuffle=False, storage_options=given)
    again = pickle.loads(pickle.dumps(dataset))
    assert [sample["txt"] for sample in again] == [sample["txt"] for sample in dataset] == [b"first"]


@pytest.mark.parametrize("method", ["fork", "forkserver", "spawn"])
def test_after_the_parent_has_read(store, method):
    """The parent reads first; then children read at once, each its own bytes, under every start method."""
    for name, content in NUMBERED.items():
        store.put(f"forks/{name}", content)
    assert drained(store.url("forks/0")) == NUMBERED["0"]
    count = 4 if method == "fork" else 2
    assert read_by_children(store.url("forks/"), method, os.environ, count=count) == [0] * count
    assert drained(store.url("forks/3")) == NUMBERED["3"]


def test_a_stream_that_is_open_across_a_fork(store):
    """Parent and child both read on, each all the rest, over connections of their own."""
    body = os.urandom(2_000_000)
    stream = open_url(store.put("across", body))
    assert stream.read(1000) == body[:1000][: stream.tell()]
    done = stream.tell()
    assert read_on_by_both(stream, body[done:])


def test_a_writer_that_is_open_across_a_fork(store):
    """The child's copy of an upload neither publishes nor aborts it."""
    stream = wds.gopen(store.url("forked"), "wb", part_bytes=PART)
    stream.write(bytes(2 * PART))
    assert closed_by_child(stream)
    assert store.get("forked") is None
    stream.close()
    assert store.get("forked") == bytes(2 * PART)
    store.delete("forked")


def test_packages_are_imported_late(store):
    """Neither ``import webdataset`` nor a dataset loads the package of a scheme; nor does what needs no credentials."""
    url = store.put("late", b"late")
    package = PACKAGES[store.scheme]
    code = (
        f"import sys, webdataset as wds; wds.WebDataset('{url}'); wds.gopen('{url}').read()\n"
        f"print([name for name in sys.modules if name.startswith('{package}.') and 'crc32c' not in name])"
    )
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert shown.stdout.strip() == "[]"
