"""Streams to samples: positions, errors, resuming, closing."""

import io
import resource
import sys
import tracemalloc
import warnings
from itertools import islice
from typing import Any

import pytest

from webdataset.core.error_handlers import ignore_and_continue, ignore_and_stop
from webdataset.core.errors import BadHeader, DuplicateField, Truncated, UsageError
from webdataset.samples.members import OpenedUrls, expanded_members, group_members, shard_members
from webdataset.samples.sample_reader import Position, Reading, configure_allocator, read_samples
from webdataset.tar.scanner import CHUNK
from webdataset.testing.archives import COMPRESSIONS, archive, compressed, member


def shard(keys, fields=("x", "y"), end=bytes(1024), size=10):
    """Return an archive of samples."""
    members = [member(f"{key}.{field}".encode(), f"{key}{field}".encode() * size) for key in keys for field in fields]
    return archive(*members, end=end)


class Stream(io.BytesIO):
    """A stream that knows its length and remembers being closed."""

    length = 0

    def __init__(self, data, *, seeks=True):
        super().__init__(data)
        self.seeks = seeks
        self.taken = 0

    def seekable(self):
        """Tell whether it seeks."""
        return self.seeks

    def read(self, size=-1):
        """Count what is read."""
        data = super().read(size)
        self.taken += len(data)
        return data


def opened(*datas, **kw):
    """Return opened shards."""
    return [{"url": f"s{n}.tar", "stream": Stream(data, **kw)} for n, data in enumerate(datas)]


def keys(samples):
    """Return the keys of samples."""
    return [sample["__key__"] for sample in samples]


def test_samples_of_several_shards():
    """Shards are read one after the other; every sample knows its url."""
    shards = opened(shard("abc"), shard("de"))
    samples = list(read_samples(shards, Reading()))
    assert [(s["__key__"], s["__url__"]) for s in samples] == [
        ("a", "s0.tar"), ("b", "s0.tar"), ("c", "s0.tar"), ("d", "s1.tar"), ("e", "s1.tar"),
    ]  # fmt: skip
    assert all(s["stream"].closed for s in shards)


def test_a_reader_that_waits_holds_no_chunk():
    """Between two lists of samples a reader holds the rest of a member, and neither the chunk nor what it gave."""
    [source] = opened(shard([f"k{number:03d}" for number in range(400)], size=1000))
    reader = Reading().reader(source)
    lists, given = reader.lists(), 0
    tracemalloc.start()
    try:
        for samples, _ in islice(lists, 6):
            given += len(samples)
            samples.clear()
            del samples
        held, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    reader.close()
    assert 0 < given < 400
    assert most > CHUNK > 4 * held


@pytest.mark.parametrize(("said", "most"), [({}, CHUNK), ({"chunk_bytes": 1 << 20}, 1 << 20)])
def test_chunks_are_as_large_as_the_stream_says(said, most):
    """A stream for which a read costs much says so; chunks grow up to there."""
    content = archive(*[member(b"%05d.bin" % number, bytes(2000)) for number in range(3000)])
    asked = []

    class Noted(io.BytesIO):
        def read(self, size=-1):
            asked.append(size)
            return super().read(size)

    stream = type("Stream", (Noted,), said)(content)
    assert len(list(read_samples([{"url": "s.tar", "stream": stream}], Reading()))) == 3000
    assert most - 512 <= max(asked) <= most
    assert asked[0] < 1 << 16


def test_one_key_in_two_shards_stays_two_samples():
    """Samples never continue into the next shard, even where one url is read twice in a row."""
    same = [
        {"url": "s.tar", "stream": Stream(shard("a", ("x",)))},
        {"url": "s.tar", "stream": Stream(shard("a", ("y",)))},
    ]
    samples = list(read_samples(same, Reading()))
    assert [sorted(s) for s in samples] == [["__key__", "__url__", "x"], ["__key__", "__url__", "y"]]


@pytest.mark.parametrize("wrap", ["", *COMPRESSIONS])
@pytest.mark.parametrize("seeks", [True, False])
def test_resuming_at_an_address(wrap, seeks):
    """Reading may start at any sample's address; plain seekable streams are not read up to there."""
    raw = shard([f"k{n:02d}" for n in range(30)], size=100)
    data = compressed(raw, wrap) if wrap else raw
    position = Position()
    places = [(s["__key__"], position.address()) for s in read_samples(opened(data, seeks=seeks), Reading(), position)]
    assert [place for _, place in places] == [(0, n, place.offset, 0) for n, (_, place) in enumerate(places)]
    for n in range(0, 30, 7):
        shards = opened(data, seeks=seeks)
        position = Position()
        rest = [(s["__key__"], position.address()) for s in read_samples(shards, Reading(), position, places[n][1])]  # type: ignore[arg-type]
        assert rest == places[n:]
        if not wrap and seeks:
            assert shards[0]["stream"].taken <= len(raw) - places[n][1].offset + 512


def test_addresses_on_request():
    """``addresses=True`` puts each sample's address into it."""
    samples = list(read_samples(opened(shard("ab"), shard("cd")), Reading(addresses=True)))
    assert [s["__address__"][:2] for s in samples] == [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert samples[1]["__address__"].offset == 2048


def damaged(data, at):
    """Flip a bit of a header."""
    return data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]


def test_damage_stops_with_places():
    """The error names url, offset and the sample it interrupted, which is not given."""
    samples = []
    with pytest.raises(BadHeader) as caught:
        samples.extend(read_samples(opened(damaged(shard("abc"), 3 * 1024)), Reading()))
    assert keys(samples) == ["a"]
    assert (caught.value.url, caught.value.offset, caught.value.key) == ("s0.tar", 3072, "b")
    assert "'b', in progress, was not delivered" in str(caught.value)


def test_handlers():
    """True goes on with the next shard, false ends; half samples are never given."""
    seen = []

    def handler(error):
        seen.append(error)
        return True

    position = Position()
    bad = damaged(shard("abc"), 3 * 1024)
    assert keys(read_samples(opened(bad, shard("de")), Reading(handler=handler), position)) == ["a", "d", "e"]
    assert [type(error) for error in seen] == [BadHeader]
    assert position.failures == 1
    assert keys(read_samples(opened(bad, shard("de")), Reading(handler=ignore_and_stop))) == ["a"]


def test_duplicates_and_handlers():
    """A duplicate goes to the handler: continuing keeps the first value and the rest of the sample."""
    data = archive(member(b"a.x", b"1"), member(b"a.x", b"2"), member(b"a.y", b"3"), member(b"b.x", b"4"))
    with pytest.raises(DuplicateField):
        list(read_samples(opened(data), Reading()))
    samples = list(read_samples(opened(data), Reading(handler=ignore_and_continue)))
    assert [(s["__key__"], s["x"]) for s in samples] == [("a", b"1"), ("b", b"4")]
    assert samples[0]["y"] == b"3"
    assert keys(read_samples(opened(data), Reading(handler=ignore_and_stop))) == []


class Unknown:
    """A stream of unknown length."""

    def __init__(self, data):
        self.read = io.BytesIO(data).read


def test_missing_end_mark(monkeypatch):
    """An error, whether the length is known or not; the choice is the caller's."""
    data = shard("ab", end=b"")
    with pytest.warns(UserWarning, match="without its end-of-archive mark"):
        assert keys(read_samples(opened(data), Reading(missing_end="warn"))) == ["a", "b"]
    with pytest.raises(Truncated, match="missing_end"):
        list(read_samples([{"url": "u", "stream": Unknown(data)}], Reading()))
    with pytest.raises(Truncated):
        list(read_samples(opened(data), Reading()))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert keys(read_samples([{"url": "u", "stream": Unknown(data)}], Reading(missing_end="ignore"))) == ["a", "b"]
        monkeypatch.setenv("WDS_MISSING_END", "ignore")
        assert keys(read_samples(opened(data), Reading())) == ["a", "b"]
    with pytest.raises(UsageError):
        Reading(missing_end="maybe")


def test_missing_end_of_compressed_shards():
    """A complete gz stream of an archive that is not: an error, too."""
    data = compressed(shard("ab", end=b""), "gz")
    with pytest.raises(Truncated):
        list(read_samples([{"url": "u", "stream": Unknown(data)}], Reading()))


def test_select_and_rename():
    """Renaming comes before selecting; both see whole names."""
    reading = Reading(
        rename_files=lambda name: name.replace("y", "z"),
        select_files=lambda name: not name.startswith("b") and "y" not in name,
    )
    samples = list(read_samples(opened(shard("abc")), reading))
    assert [sorted(s) for s in samples] == [["__key__", "__url__", "x", "z"]] * 2


def test_large_members_left_out_are_not_read():
    """A source that seeks does not read what nobody wants."""
    data = archive(member(b"a.big", bytes(8 << 20)), member(b"a.txt", b"x"))
    reading = Reading(select_files=lambda name: name.endswith("txt"))
    shards = opened(data)
    assert len(list(read_samples(shards, reading))) == 1
    assert shards[0]["stream"].taken < 1 << 20
    assert len(list(read_samples(opened(data, seeks=False), reading))) == 1


def test_leaving_closes_the_stream():
    """A consumer that stops early leaves nothing open."""
    shards = opened(shard("abc"))
    samples = read_samples(shards, Reading())
    next(samples)
    samples.close()
    assert shards[0]["stream"].closed


def test_meta_entries_of_a_shard_are_carried():
    """``__…__`` entries of the shard reach every sample."""
    shards = [{"url": "u", "stream": Stream(shard("ab")), "__local_path__": "/x"}]
    assert [s["__local_path__"] for s in read_samples(shards, Reading())] == ["/x", "/x"]


def test_members_as_dicts():
    """The form for other people's groupers: a url object of its own for each shard, no end markers."""
    items = list(expanded_members([*opened(shard("a")), *opened(shard("a"))], Reading()))
    assert [sorted(item) for item in items] == [["__url__", "data", "fname"]] * 4
    assert items[0]["__url__"] == items[2]["__url__"] == "s0.tar"
    assert items[0]["__url__"] is items[1]["__url__"] is not items[2]["__url__"]
    assert [s["__key__"] for s in group_members(items)] == ["a", "a"]
    assert list(expanded_members(opened(shard("a")), Reading(), {}))[-1] == {}


def test_broken_shards_show_in_the_url():
    """Our grouper drops the half sample of a shard whose expander failed and went on."""
    bad = damaged(shard("abc"), 3 * 1024)
    items = expanded_members(opened(bad, shard("d")), Reading(handler=ignore_and_continue))
    assert keys(group_members(items)) == ["a", "d"]


def test_urls_are_plain_and_their_own():
    """Each opened shard's url is a plain text and an object of its own, so that the border shows."""
    shards = [one | {"url": "same.tar"} for one in opened(shard("a"), shard("a"))]
    urls = [item["__url__"] for item in expanded_members(shards, Reading())]
    assert {type(url) for url in urls} == {str}
    assert len(set(urls)) == 1
    assert len(set(map(id, urls))) == 2


def test_members_gathered_beyond_what_is_known():
    """Only the shards opened last are known; borders show by their urls all the same."""
    known = OpenedUrls()
    known.MOST = 2
    opened = [known.add("url") for _ in range(3)]
    assert [known.find(each.text) is each for each in opened] == [False, True, True]
    assert known.find("url") is None


def test_group_members_asks_its_handler():
    """Items without a name go to the handler."""
    items: list[dict[str, Any]] = [
        {"fname": "a.x", "data": b""},
        {"wrong": 1},
        {"fname": "a.y", "data": b""},
        {},
        {"fname": "a.x", "data": b""},
    ]
    with pytest.raises(KeyError):
        list(group_members(items))
    assert keys(group_members(items, handler=ignore_and_continue)) == ["a", "a"]
    assert keys(group_members(items, handler=ignore_and_stop)) == []


def test_shard_members_keep_metadata_on_request():
    """``skip_meta=None`` keeps names that are metadata."""
    data = archive(member(b"__meta__/a.x", b"1"), member(b"b.x", b"2"))
    assert [m["fname"] for m in shard_members(opened(data)[0], Reading())] == ["b.x"]
    assert [m["fname"] for m in shard_members(opened(data)[0], Reading(), None)] == ["__meta__/a.x", "b.x"]


@pytest.mark.skipif(sys.platform != "linux", reason="pages are counted as Linux does")
def test_the_allocator_is_told_without_touching_memory():
    """A worker's first sample does not wait until 16 MB are written: that would be 4096 pages."""
    configure_allocator.__wrapped__()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    configure_allocator.__wrapped__()
    assert resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before < 500
