"""Single samples out of a shard, and streams taken to other offsets."""

import contextlib
import gzip
import io
import itertools
import random
import tarfile
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import webdataset as wds
from webdataset.core.errors import DuplicateField, FlowError, NoRandomAccess, Truncated, WebDatasetError
from webdataset.samples.address import Address
from webdataset.samples.refetch import refetch
from webdataset.samples.sample_reader import Reading
from webdataset.samples.seekable_source import RESTART_BYTES, SeekableSource
from webdataset.testing.sources import FaultyStream


def made(count=30):
    """Return the bytes of a shard with members of many sizes, long names among them."""
    stream = io.BytesIO()
    with wds.TarWriter(stream) as sink:
        for index in range(count):
            name = f"{index:03d}" if index % 7 else f"{'long/' * 30}{index:03d}"
            sink.write(
                {"__key__": name, "bin": bytes([index]) * (index * index * 97 % 200_000), "cls": index, "txt": ""}
            )
    return stream.getvalue()


SHARD = made()


def read(content, **rules):
    """Return all samples of a shard, with addresses."""
    reading = Reading(addresses=True, **rules)
    reader = reading.reader({"url": "x", "stream": io.BytesIO(content)})
    found = []
    for samples, offsets in reader.lists():
        found += zip(samples, offsets, strict=True)
    return [(Address(0, number, offset), sample) for number, (sample, offset) in enumerate(found)]


ALL = read(SHARD)


@settings(deadline=None, max_examples=40)
@given(st.sets(st.integers(0, 29), min_size=1), st.sampled_from(["seek", "pipe", "gz", "store"]))
def test_any_samples(numbers, kind):
    """Whatever samples of whatever source: those that the reader gives there, with all their fields."""
    wanted = [ALL[number] for number in sorted(numbers)]
    stream = {
        "seek": lambda: io.BytesIO(SHARD),
        "pipe": lambda: FaultyStream(SHARD, seed=1),
        "gz": lambda: io.BytesIO(gzip.compress(SHARD, 1)),
        "store": lambda: Store(SHARD, []),
    }[kind]()
    found = list(refetch({"url": "x", "stream": stream, "__tag__": 1}, Reading(), [address for address, _ in wanted]))
    assert found == [(address, {**sample, "__tag__": 1}) for address, sample in wanted]
    assert stream.closed


def test_rules_hold():
    """Members that are left out, renamed or repeated are so here as well."""
    rules: dict[str, Any] = {
        "select_files": lambda name: not name.endswith("cls"),
        "rename_files": lambda name: name + "x",
    }
    whole = read(SHARD, **rules)
    found = list(refetch({"url": "x", "stream": io.BytesIO(SHARD)}, Reading(addresses=True, **rules), [whole[3][0]]))
    assert found == [(whole[3][0], {**whole[3][1], "__address__": whole[3][0]})]


def test_reads_no_more_than_the_sample():
    """A sample by itself costs its own bytes, one header behind it, and the look at the first bytes."""

    class Counted(io.BytesIO):
        total = 0

        def read(self, size=-1):
            content = super().read(size)
            self.total += len(content)
            return content

    stream = Counted(SHARD)
    chosen = [ALL[number][0] for number in (2, 11, 12, 28)]
    list(refetch({"url": "x", "stream": stream}, Reading(), chosen))
    sizes = {address.offset: after.offset - address.offset for (address, _), (after, _) in itertools.pairwise(ALL)}
    assert stream.total <= 512 + sum(sizes[address.offset] + 512 for address in chosen)


@pytest.mark.parametrize("offset", [700, 10_240_000])
def test_no_sample_there(offset):
    """An address at which no sample begins is an error."""
    for stream in (io.BytesIO(SHARD), FaultyStream(SHARD)):
        with pytest.raises((FlowError, WebDatasetError)):
            list(refetch({"url": "x", "stream": stream}, Reading(), [Address(0, 1, offset)]))


@pytest.mark.parametrize("way", ["one by one", "read through", "behind the first"])
def test_samples_that_are_gone(way):
    """A shard that ends where a sample was, or has none there, has changed since."""
    with tarfile.open(fileobj=io.BytesIO(SHARD)) as tar:
        end = max(member.offset_data + (member.size + 511 & -512) for member in tar)
    stream = io.BytesIO(SHARD) if way == "one by one" else io.BytesIO(gzip.compress(SHARD, 1))
    wanted = [ALL[0][0]] * (way == "behind the first") + [Address(0, 30, end)]
    with pytest.raises(FlowError, match="no sample at .*: the shards have changed since the snapshot") as caught:
        list(refetch({"url": "x.tar", "stream": stream}, Reading(), wanted))
    assert caught.value.url == "x.tar"


def test_a_cut_sample():
    """A shard that ends in the sample is an error, not a shorter sample."""
    address = ALL[29][0]
    with pytest.raises(Truncated):
        list(refetch({"url": "x", "stream": io.BytesIO(SHARD[: address.offset + 700])}, Reading(), [address]))


class Store(FaultyStream):
    """A stream that can be had anew from an offset, as those of stores can."""

    def __init__(self, payload, log, start=0, *, knows=True):
        super().__init__(payload[start:])
        self.whole, self.log, self.knows = payload, log, knows
        log.append(start)

    def reopen_at(self, offset):
        """Return the stream from an offset on; None where the store does not tell objects apart."""
        return Store(self.whole, self.log, offset) if self.knows else None


def test_going():
    """By seeking, by asking anew over large gaps, by reading over small ones; back only where it can be."""
    content = bytes(range(256)) * 8000
    far = RESTART_BYTES + 1000
    for stream in (io.BytesIO(content), Store(content, asked := [])):
        going = SeekableSource(stream)
        for offset in (5, 900, far, far + 77, 3):
            going.to(offset)
            assert going.offset == offset
            assert going.read(9) == content[offset : offset + 9]
    assert asked == [0, far, 3]
    plain = SeekableSource(FaultyStream(content))
    plain.to(far)
    assert plain.read(3) == content[far : far + 3]
    with pytest.raises(NoRandomAccess):
        plain.to(1)
    with pytest.raises(Truncated):
        plain.to(len(content) + 1)
    unsure = SeekableSource(Store(content, asked := [], knows=False))
    unsure.to(far)
    assert unsure.read(2) == content[far : far + 2]
    assert asked == [0]
    with pytest.raises(NoRandomAccess):
        unsure.to(1)


@pytest.mark.parametrize("seed", range(40))
def test_bytes_that_come_again(seed):
    """Any walk over a store gives the bytes that stand there, whatever is kept; a released stream goes on there."""
    rng = random.Random(seed)
    content = rng.randbytes(3 * RESTART_BYTES)
    going = SeekableSource(Store(content, asked := [], knows=seed % 4 != 0), keep_bytes=rng.choice([0, 1, 512, 4000]))
    for _ in range(60):
        place = going.offset + rng.choice([0, -512, -1, 1, -3000, 700, rng.randrange(2 * RESTART_BYTES)])
        before = going.offset
        try:
            going.to(max(0, place))
        except NoRandomAccess:
            assert seed % 4 == 0
            assert (going.offset, place < before) == (before, True)
        except Truncated:
            assert place > len(content)
            break
        size = rng.choice([1, 512, 2000])
        offset, found = going.offset, going.read(size)
        assert found == content[offset : offset + len(found)]
        assert found or offset >= len(content)
    else:
        with contextlib.suppress(NoRandomAccess):
            offset, stream = going.offset, going.release()
            assert stream.read(700) == content[offset:][:700]
    assert asked[0] == 0


@pytest.mark.parametrize("first", [0, 20])
def test_neighbours_cost_one_request(first):
    """Samples that stand one after the other are read over one request, though each shows its end in the next."""
    wanted = [address for address, _ in ALL[first:]]
    assert wanted[-1].offset > RESTART_BYTES
    found = list(refetch({"url": "x", "stream": Store(SHARD, asked := [])}, Reading(), wanted))
    assert [address for address, _ in found] == wanted
    assert [sample["bin"] for _, sample in found] == [sample["bin"] for _, sample in ALL[first:]]
    assert asked == ([0, wanted[0].offset] if first else [0])


def test_members_that_were_stepped_over():
    """A sample with a field twice, whose second member the handler stepped over, is found again as it was given."""
    whole = io.BytesIO()
    with tarfile.open(fileobj=whole, mode="w") as sink:
        for name in ("a.txt", "a.txt", "a.cls", "b.txt", "b.cls", "b.cls", "b.cls", "b.jpg", "c.txt", "c.txt"):
            member = tarfile.TarInfo(name)
            member.size = 700
            sink.addfile(member, io.BytesIO(name.encode() * 140))
    handled = []
    given = read(whole.getvalue(), handler=lambda error: handled.append(error) or True)
    assert [sample["__key__"] for _, sample in given] == ["a", "b", "c"]
    assert len(handled) == 4
    shard = lambda: {"url": "x", "stream": io.BytesIO(whole.getvalue())}
    addresses = [address for address, _ in given]
    again = Reading(handler=wds.ignore_and_continue)
    assert list(refetch(shard(), again, addresses)) == given
    with pytest.raises(DuplicateField):
        list(refetch(shard(), Reading(), addresses))
    with pytest.raises(DuplicateField):
        list(refetch(shard(), Reading(handler=wds.ignore_and_stop), addresses))
