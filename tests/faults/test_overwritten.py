"""Local shards that somebody writes to while they are read: old samples, or ``ShardChanged``; never a torn one.

Each payload says of which version of its shard it is, from its first byte to its last.
"""

import os
import threading

import pytest

import webdataset as wds
from webdataset.caching.shard_cache import ShardCache
from webdataset.core.errors import ShardChanged
from webdataset.core.seeds import make_rng
from webdataset.index import IndexedShard
from webdataset.samples.address import Address
from webdataset.samples.refetch import refetch
from webdataset.samples.sample_reader import Reading, read_samples
from webdataset.storage.open_url import open_stream
from webdataset.testing.archives import END, member

LONG_AGO = 1_600_000_000_000_000_000
SIZES = {"small": (1, 3000), "medium": (1, 100_000), "large": (200_000, 800_000)}


def made(version, sizes):
    """Return a shard whose samples have these sizes, and are all of one version."""
    parts = []
    for number, (first, second) in enumerate(sizes):
        parts += [member(b"%05d.a" % number, version * first), member(b"%05d.b" % number, version * second)]
    return b"".join([*parts, END])


def old_shard(path, rng, kind):
    """Write a shard that has lain there for years; return its sizes."""
    count = rng.randint(2, 300 if kind == "small" else 9)
    sizes = [(rng.randint(*SIZES[kind]), rng.randint(*SIZES[kind])) for _ in range(count)]
    path.write_bytes(made(b"o", sizes))
    os.utime(path, ns=(LONG_AGO, LONG_AGO))
    return sizes


def truncating(path, content, _rng):
    """Write it anew, as ``open(path, "wb")`` does."""
    path.write_bytes(content)


def over(path, content, _rng):
    """Write over it from its start; nothing is cut off."""
    with path.open("r+b") as file:
        file.write(content)


def partly(path, content, rng):
    """Write over a part of it."""
    start = rng.randrange(len(content))
    with path.open("r+b") as file:
        file.seek(start)
        file.write(content[start : start + rng.randint(1, len(content))])


def cutting(path, content, rng):
    """Cut it."""
    os.truncate(path, rng.randrange(len(content)))


def appending(path, content, _rng):
    """Append to it."""
    with path.open("ab") as file:
        file.write(content)


WRITERS = (truncating, over, partly, cutting, appending)


def whole(sample):
    """Tell whether all of a sample is of the old version."""
    return not any(set(sample[field]) - set(b"o") for field in ("a", "b"))


def streamed(path):
    """Yield samples front to back."""
    yield from wds.WebDataset(str(path), shardshuffle=False)


def selected(path):
    """Yield samples, and step over every second member by seeking."""
    for sample in wds.WebDataset(str(path), shardshuffle=False, select_files=lambda name: name.endswith(".a")):
        yield {**sample, "b": b"o"}


def by_number(path):
    """Yield samples by random access."""
    with IndexedShard(str(path)) as shard:
        yield from (shard[number] for number in range(len(shard)))


def by_number_again(path):
    """Yield samples by random access, each after opening the shard anew."""
    shard = IndexedShard(str(path))
    for number in range(len(shard)):
        yield shard[number]
        shard.close()


def by_address(path):
    """Yield samples as a restored buffer reads them."""
    with IndexedShard(str(path)) as shard:
        starts = [entry.offset for entry in shard.index.entries]
    addresses = [Address(0, number, start) for number, start in enumerate(starts)]
    yield from (sample for _, sample in refetch({"url": str(path), "stream": open_stream(path)}, Reading(), addresses))


def of_open_file(path):
    """Yield samples of a file that the caller has opened, buffered so that all of it is read at the end at least."""
    with path.open("rb", buffering=0) as file:
        # what the writers put in may repeat keys
        yield from read_samples([{"url": str(path), "stream": file}], Reading(split_samples="ignore"))


def placed(path):
    """Yield samples of a file that a user put into a cache."""
    cache = ShardCache(str(path.parent))
    yield from wds.WebDataset(f"memory://nowhere/{path.name}", shardshuffle=False, cache_dir=cache.folder)


WAYS = (streamed, selected, by_number, by_number_again, by_address, placed)


@pytest.mark.parametrize("kind", SIZES)
@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
def test_no_sample_is_torn(tmp_path, way, kind):
    """A shard is written to after some sample: every sample is old and whole, or the change is an error."""
    trials = 30 if kind == "small" else 12
    changed = 0
    for trial in range(trials):
        rng = make_rng("overwritten", way.__name__, kind, trial)
        path = tmp_path / f"{trial}.tar"
        sizes = old_shard(path, rng, kind)
        writer = rng.choice(WRITERS)
        when = rng.randrange(len(sizes) - 1)
        given = 0
        try:
            for sample in way(path):
                assert whole(sample), (trial, writer.__name__)
                if given == when:
                    writer(path, made(b"n", sizes), rng)
                given += 1
        except ShardChanged:
            changed += 1
        else:
            assert given == len(sizes)
        path.unlink()
    # a reader that has all of a small shard in its memory does not go back to the file
    assert (
        changed == trials
        if way in (by_number, by_number_again, by_address)
        else changed > (kind == "large") * trials // 2
    )


def test_no_sample_is_torn_by_a_thread(tmp_path):
    """The same with a writer that writes over a shard again and again, at moments of its own."""
    path = tmp_path / "x.tar"
    torn = changed = 0
    for trial in range(25):
        rng = make_rng("thread", trial)
        sizes = old_shard(path, rng, "medium")
        go = threading.Event()

        def write(content=made(b"n", sizes), go=go):
            go.wait()
            with path.open("r+b", buffering=0) as file:
                for start in range(0, len(content), 1 << 16):
                    file.write(content[start : start + (1 << 16)])

        thread = threading.Thread(target=write)
        thread.start()
        try:
            for sample in streamed(path):
                torn += not whole(sample)
                go.set()
        except ShardChanged:
            changed += 1
        finally:
            go.set()
            thread.join()
    assert torn == 0
    assert changed


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
def test_what_does_not_change_bytes_is_no_change(tmp_path, way):
    """Read by others, given a further name, other rights, moved, replaced by another file in one step, or removed."""
    rng = make_rng("unchanged", way.__name__)
    path = tmp_path / "x.tar"
    sizes = old_shard(path, rng, "medium")
    other = tmp_path / "other"
    other.write_bytes(made(b"n", sizes))

    def replace():
        os.replace(other, path)

    deeds = [
        lambda: os.utime(path, ns=(LONG_AGO + 10**9, LONG_AGO)),
        lambda: os.link(path, tmp_path / "hard"),
        lambda: path.chmod(0o600),
        *([] if way is by_number_again else [replace, path.unlink]),
    ]
    samples = way(path)
    found = [next(samples)]
    for number in range(1, len(sizes)):
        if deeds:
            deeds.pop(0)()
        found.append(next(samples))
        assert whole(found[number])
    assert next(samples, None) is None
    assert len(found) == len(sizes)


def test_a_file_that_the_caller_opened_is_judged_at_its_end(tmp_path):
    """Its samples have been given; the change is an error all the same."""
    path = tmp_path / "x.tar"
    sizes = old_shard(path, make_rng("opened", 0), "medium")
    for writer in (over, appending):
        samples = of_open_file(path)
        next(samples)
        writer(path, made(b"n", sizes), None)
        with pytest.raises(ShardChanged, match="x.tar"):
            list(samples)
        old_shard(path, make_rng("opened", 0), "medium")


def test_the_handler_is_asked(tmp_path):
    """A dataset that goes on delivers the next shard, and counts one failure."""
    one, two = tmp_path / "one.tar", tmp_path / "two.tar"
    sizes = old_shard(one, make_rng("handler", 0), "large")
    more = old_shard(two, make_rng("handler", 1), "small")
    errors = []
    dataset = wds.WebDataset(
        [str(one), str(two)], shardshuffle=False, handler=lambda error: errors.append(error) or True
    )
    keys = []
    for sample in dataset:
        if not keys:
            over(one, made(b"n", sizes), None)
        assert whole(sample)
        keys.append(sample["__url__"])
    assert [type(error) for error in errors] == [ShardChanged]
    assert str(errors[0].url) == str(one)
    assert keys.count(str(two)) == len(more)
    assert keys.count(str(one)) < len(sizes)


def test_times_of_whole_seconds(tmp_path):
    """A file system that forgets the fraction of a second has changed no file; a change of a second is one."""
    path = tmp_path / "x.tar"
    sizes = old_shard(path, make_rng("seconds", 0), "large")
    os.utime(path, ns=(LONG_AGO, LONG_AGO + 123))
    samples = streamed(path)
    next(samples)
    os.utime(path, ns=(LONG_AGO, LONG_AGO))
    assert len(list(samples)) == len(sizes) - 1
    samples = streamed(path)
    next(samples)
    os.utime(path, ns=(LONG_AGO, LONG_AGO - 10**9))
    with pytest.raises(ShardChanged, match="mtime"):
        list(samples)
