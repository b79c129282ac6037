"""Leaving early, failing and going on for long leave nothing behind: no child, no descriptor, no memory."""

import gc
import os
import threading
import time
from collections import Counter
from pathlib import Path

import pytest

import webdataset as wds
from webdataset import tariterators
from webdataset.testing import archives, damage
from webdataset.testing.sources import FaultyStream, served

BREAKS = 1000
SAMPLES = archives.samples(60, largest=8000)
MEMBERS = archives.members_of(SAMPLES)

pytestmark = pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="counts descriptors under /proc")


def descriptors():
    """What the open descriptors of this process are, without the one that lists them."""
    found = []
    for name in os.listdir("/proc/self/fd"):
        try:
            found.append(os.readlink(f"/proc/self/fd/{name}"))
        except FileNotFoundError:
            continue
    return sorted(found)


def new_descriptors(before):
    """What is open now and was not before; pools may have closed idle connections, and opened as many others."""
    # a budget of requests is kept for each service, at most 64 of them (tests/unit/storage/test_rate_limit.py)
    kept = [[name for name in names if "/webdataset/rate-" not in name] for names in (descriptors(), before)]
    count = [Counter(name.partition(":[")[0] for name in names) for names in kept]
    return sorted((count[0] - count[1]).elements())


def children():
    """Process ids of all children, those that ended and were not reaped included."""
    found = []
    for task in Path("/proc/self/task").iterdir():
        found += (task / "children").read_text().split()
    return found


def resident_bytes():
    """Memory of this process in RAM."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def settled(look, wanted):
    """Look until it is as wanted, for servers and kernels that close a little later; return the last look."""
    for _ in range(500):
        found = look()
        if found == wanted:
            break
        time.sleep(0.01)
    return found


@pytest.fixture
def shard(tmp_path):
    """A shard larger than a pipe's buffer, so that a command that writes it is still running at an early break."""
    path = tmp_path / "x.tar"
    path.write_bytes(archives.by_hand(MEMBERS))
    assert path.stat().st_size > 200_000
    return path


@pytest.fixture
def clean():
    """Check that a test leaves as many children, threads and descriptors as it found."""
    gc.collect()
    before = descriptors(), children(), threading.active_count()
    yield
    gc.collect()
    assert settled(children, before[1]) == before[1]
    assert settled(lambda: new_descriptors(before[0]), []) == []
    # threads of earlier tests may have ended meanwhile
    assert settled(lambda: max(threading.active_count(), before[2]), before[2]) == before[2]


def leave_early(url, times, **kw):
    """Take one sample of a new iterator, again and again."""
    dataset = wds.WebDataset([url, url], shardshuffle=False, **kw)
    for _ in range(times):
        for sample in dataset:
            assert sample["__key__"] == SAMPLES[0][0]
            break


def test_breaks_on_local_files(shard, clean):
    """1 000 early breaks on a file."""
    leave_early(str(shard), BREAKS)


def test_breaks_on_pipes(shard, clean, capfd):
    """1 000 early breaks on a command: no child is left, running or dead, and nothing is printed."""
    leave_early(f"pipe:cat '{shard}'", BREAKS)
    assert capfd.readouterr() == ("", "")


def test_breaks_on_commands_that_never_end(shard, clean):
    """A command that would wait for ever is ended with its iterator."""
    leave_early(f"pipe:cat '{shard}'; sleep 1000", 10)


def test_breaks_on_http(shard, clean):
    """1 000 early breaks on a server."""
    with served({"/x.tar": shard.read_bytes()}) as root:
        leave_early(f"{root}/x.tar", BREAKS)


def test_breaks_on_compressed_shards(shard, clean):
    """Decompressors hold no descriptors."""
    packed = shard.with_suffix(".gz")
    packed.write_bytes(archives.compressed(shard.read_bytes(), "gz"))
    leave_early(str(packed), 100)


def test_no_descriptor_is_open_after_a_break(shard, clean):
    """At once, not when the collector comes by: the shard is closed with the iterator."""
    gc.disable()
    try:
        before, others = descriptors(), children()
        for url in (str(shard), f"pipe:cat '{shard}'"):
            iterator = iter(wds.WebDataset([url], shardshuffle=False).shuffle(5, initial=1).map(dict))
            next(iterator)
            assert descriptors() != before
            iterator.close()
            assert descriptors() == before
            assert children() == others
    finally:
        gc.enable()


def test_one_shard_is_open_at_a_time(shard, clean):
    """A shard is closed before the next one is opened, and after the last."""
    before = len(descriptors())
    counts = set()
    dataset = wds.WebDataset([str(shard)] * 5, shardshuffle=False)
    for _ in dataset:
        counts.add(len(descriptors()) - before)
    assert counts <= {0, 1}
    assert len(descriptors()) == before


def test_consumers_that_raise(shard, clean):
    """An exception in the loop's body or in a mapped function closes the shard all the same."""
    dataset = wds.WebDataset([f"pipe:cat '{shard}'"], shardshuffle=False)

    def fail(sample):
        raise KeyError(sample["__key__"])

    for _ in range(50):
        with pytest.raises(KeyError):
            list(dataset.map(fail))
        with pytest.raises(ZeroDivisionError):
            _divided(dataset)


def _divided(samples):
    for sample in samples:
        len(sample) / 0


def test_damaged_shards(shard, clean):
    """Errors, raised or stepped over, leave no shard open."""
    whole = shard.read_bytes()
    urls = []
    for seed in range(40):
        path = shard.with_name(f"{seed}.tar")
        path.write_bytes(damage.flip_header_bit(whole, seed).data)
        urls.append(str(path))
    list(wds.WebDataset(urls, shardshuffle=False, handler=wds.ignore_and_continue))
    list(wds.WebDataset([f"pipe:cat '{url}'" for url in urls], shardshuffle=False, handler=wds.ignore_and_continue))
    for url in urls:
        for stop in (wds.ignore_and_stop, wds.reraise_exception):
            try:
                list(wds.WebDataset(url, shardshuffle=False, handler=stop))
            except ValueError as error:
                assert error.url == url  # noqa: PT017  some flips are harmless


def test_failing_commands(clean):
    """A command that fails at once, or is not there, leaves no child."""
    urls = ["pipe:exit 3", "pipe:no-such-command-here 2>/dev/null", "pipe:cat /nonexistent/x.tar 2>/dev/null"]
    for _ in range(20):
        assert not list(wds.WebDataset(urls, shardshuffle=False, handler=wds.ignore_and_continue, empty_check=False))


def test_composed_functions_close_too(shard, clean):
    """The functions that third parties compose close what they opened when they are left."""
    for _ in range(50):
        members = tariterators.tar_file_expander(tariterators.url_opener(iter([{"url": str(shard)}])))
        next(members)
        members.close()
        samples = tariterators.group_by_keys(
            tariterators.tar_file_expander(tariterators.url_opener(iter([{"url": f"pipe:cat '{shard}'"}])))
        )
        next(samples)
        del members, samples


def test_streams_are_closed_once_read(shard):
    """Also those that a user's opener gave."""
    streams = [FaultyStream(shard.read_bytes(), seed=seed) for seed in range(3)]
    shards = [{"url": f"{index}.tar", "stream": stream} for index, stream in enumerate(streams)]
    members = tariterators.tar_file_expander(iter(shards))
    seen = len(list(members))
    assert seen == 3 * len(MEMBERS)
    assert all(stream.closed for stream in streams)


EPOCHS = 50
FLAT_BYTES = 6 << 20


@pytest.mark.slow
@pytest.mark.parametrize("source", ["file", "pipe", "http"])
def test_memory_is_flat_over_epochs(source, shard, clean):
    """50 epochs of four shards need no more memory than the first ten did, to within a few megabytes."""
    with served({"/x.tar": shard.read_bytes()}) as root:
        url = {"file": str(shard), "pipe": f"pipe:cat '{shard}'", "http": f"{root}/x.tar"}[source]
        dataset = wds.WebDataset([url] * 4, shardshuffle=4).shuffle(50).map(dict).batched(8, collation_fn=None)
        after = []
        for _ in range(EPOCHS):
            assert sum(len(batch) for batch in dataset) == 4 * len(SAMPLES)
            gc.collect()
            after.append(resident_bytes())
    assert after[-1] - max(after[:10]) < FLAT_BYTES, [size >> 20 for size in after]


@pytest.mark.parametrize("way", ["plain", "elastic", "open shards", "elastic, open shards"])
def test_an_error_leaves_no_shard_open(way, tmp_path):
    """All files are closed when the error is raised, although its frames still hold their readers."""
    urls = [str(tmp_path / f"{number}.tar") for number in range(3)]
    for url in urls:
        with wds.TarWriter(url) as sink:
            for number in range(300):
                sink.write({"__key__": f"{number}", "bin": bytes(7000)})

    def fail(sample):
        if sample["__key__"] == "3":
            raise ZeroDivisionError
        return sample

    dataset = wds.WebDataset(urls, shardshuffle=False, open_shards=2 if "open shards" in way else 1).map(fail)
    if "elastic" in way:
        dataset = dataset.elastic(3)
    gc.collect()
    gc.disable()
    try:
        before = len(os.listdir("/proc/self/fd"))
        with pytest.raises(ZeroDivisionError):
            list(dataset)
        assert len(os.listdir("/proc/self/fd")) == before
    finally:
        gc.enable()
