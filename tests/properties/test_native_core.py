"""The native core gives what Python gives: samples, fields, offsets, errors, warnings, and what handlers are asked.

Archives of several programs and formats, whole and damaged in many ways, are read in chunks of many sizes under many
rules, once in each way; from files, too, whose bodies the core reads by itself. ``NATIVE_FUZZ_CASES`` chooses how many
random cases are played (default 1 500).
"""

import gc
import gzip
import hashlib
import io
import os
import random
import subprocess
import sys
import tarfile
import threading
import types
import warnings
from pathlib import Path
from typing import Any

import pytest

import webdataset as wds
from support.archive_fuzz import (
    SIZES,
    Case,
    damage,
    describe,
    draw_case,
    draw_rules,
    list_headers,
    list_places,
    play,
    select_rules,
    write_archive,
)
from webdataset.core.errors import ShardChanged, WebDatasetError
from webdataset.index.build import IndexBuilder
from webdataset.samples import grouping, native_core, shard_reader
from webdataset.samples.sample_reader import Reading, read_samples
from webdataset.storage.local_files import LocalFileStream
from webdataset.tar import scanner
from webdataset.tar.header import BLOCK

CASES = int(os.environ.get("NATIVE_FUZZ_CASES", "1500"))
needs_core = pytest.mark.skipif(native_core.load_native()[0] is None, reason="the native core was not compiled")


@pytest.fixture(autouse=True)
def restore_setting(monkeypatch):
    """Playing a case leaves ``WDS_NATIVE`` set."""
    monkeypatch.setenv("WDS_NATIVE", "1")


@needs_core
@pytest.mark.parametrize("part", range(5))
def test_random_archives(part):
    """Whole and damaged archives, whatever the chunks and rules."""
    for number in range(CASES // 5):
        case = draw_case(f"{part}.{number}")
        assert play(case, native=True) == play(case, native=False), (case.seed, case.sizes, case.rules)


@needs_core
@pytest.mark.parametrize("part", range(5))
def test_random_files(part):
    """The same of files with larger bodies, plain and compressed: those that a chunk cuts off are read by the core."""
    for number in range(CASES // 5):
        seed = f"file {part}.{number}"
        rng = random.Random(seed)
        content = write_archive(rng, large=rng.choice([0.03, 0.3, 0.3, 1]))
        for _ in range(rng.choice([0, 1, 1, 1, 2, 3])):
            content = damage(rng, content)
        rules, first = {**draw_rules(rng, content), "start": None}, rng.choice([512, 1024, 32 * 1024])
        chunks = first, rng.choice([first, 40 * 1024, 384 * 1024])
        if rng.random() < 0.3:
            rules["start"], rules["rising"] = rng.choice(list_places(content, rules) or [(None, True)])
        content = gzip.compress(content, 0) if rng.random() < 0.05 else content
        case = Case(seed, content, None, rules, chunks)
        assert play(case, native=True) == play(case, native=False), (seed, rules)


ENDS = [bytes(512 * blocks) for blocks in (0, 1, 2, 3, 18, 20, 38, 40, 41)] + [bytes(700), bytes(1024) + b"x" * 512]


def draw_small_shard(rng):
    """An archive of small members, most of them plain with rising keys, and with an end of any kind."""
    blocks = []
    keys = sorted(f"{rng.randrange(100):02d}" for _ in range(rng.randrange(6)))
    if rng.random() < 0.2:
        rng.shuffle(keys)
    for key in keys:
        for extension in rng.sample(["jpg", "cls", "JPG", "txt", "seg.png"], rng.choice([1, 2, 3])):
            member = tarfile.TarInfo(f"{key}.{extension}")
            member.size = rng.choice([0, 1, 512, 700])
            padding = bytes(-member.size % BLOCK)
            blocks += [member.tobuf(tarfile.USTAR_FORMAT), rng.randbytes(member.size), padding]
    content = b"".join(blocks) + (bytes(1024) if rng.random() < 0.5 else rng.choice(ENDS))
    return damage(rng, content) if rng.random() < 0.3 and blocks else content


@needs_core
@pytest.mark.parametrize("part", range(3))
def test_small_files(part, monkeypatch):
    """Small local shards, which are taken whole where nothing in them has to be judged."""
    taken = []

    def note_taken(*args):
        taken.append(_take_small_shard(*args))
        return taken[-1]

    monkeypatch.setattr(shard_reader, "take_small_shard", note_taken)
    for number in range(CASES // 3):
        seed = f"small {part}.{number}"
        rng = random.Random(seed)
        content = draw_small_shard(rng)
        rules = (
            {**draw_rules(rng, content), "start": None} if rng.random() < 0.5 else {"start": None, "continues": False}
        )
        case = Case(seed, content, None, rules, (32 * 1024, 384 * 1024))
        assert play(case, native=True) == play(case, native=False), (seed, rules)
    assert len(taken) > CASES // 6
    assert CASES // 30 < sum(1 for each in taken if each is not None) < len(taken)


_take_small_shard = native_core.take_small_shard


def write_pictures(count, size=60_000, small=300):
    """An archive of samples with one large body and two small ones."""
    out = io.BytesIO()
    with wds.TarWriter(out) as sink:
        for number in range(count):
            sink.write(
                {
                    "__key__": f"{number:04d}",
                    "jpg": bytes([number % 256]) * (size + number),
                    "json": b"j" * small,
                    "txt": b"t",
                }
            )
    return out.getvalue()


@needs_core
@pytest.mark.parametrize(("size", "small"), [(60_000, 300), (60_000, 12_000), (400_000, 300)])
def test_large_bodies_of_files_are_read_by_the_core(size, small, monkeypatch, tmp_path):
    """Python reads next to nothing of a file of pictures: a core that left it all to Python would pass the fuzz."""
    monkeypatch.setenv("WDS_NATIVE", "1")
    path = tmp_path / "s.tar"
    path.write_bytes(write_pictures(100, size, small))
    by_python, read = [], LocalFileStream.read
    monkeypatch.setattr(
        LocalFileStream, "read", lambda self, size=-1: (by_python.append(found := read(self, size)), found)[1]
    )
    given = list(read_samples([{"url": "s.tar", "stream": LocalFileStream(path)}], Reading()))
    assert [(each["jpg"][:1], len(each["jpg"])) for each in given] == [(bytes([n]), size + n) for n in range(100)]
    assert sum(map(len, by_python)) < path.stat().st_size / 15


@needs_core
@pytest.mark.parametrize("size", [10, 2_000, 9_000])
def test_small_bodies_of_files_are_read_by_the_core(size, monkeypatch, tmp_path):
    """Nor does Python read more than the first chunk of a file of small members, and the end."""
    monkeypatch.setenv("WDS_NATIVE", "1")
    path = tmp_path / "s.tar"
    count = 6_000_000 // (size + 3_000)
    path.write_bytes(write_pictures(count, size))
    by_python, read = [], LocalFileStream.read
    monkeypatch.setattr(
        LocalFileStream, "read", lambda self, size=-1: (by_python.append(found := read(self, size)), found)[1]
    )
    given = list(read_samples([{"url": "s.tar", "stream": LocalFileStream(path)}], Reading()))
    assert [(each["jpg"][:1], len(each["jpg"])) for each in given] == [
        (bytes([n % 256]), size + n) for n in range(count)
    ]
    assert sum(map(len, by_python)) <= scanner.FIRST_CHUNK


@needs_core
@pytest.mark.parametrize("native", ["0", "1"])
def test_samples_before_a_large_body_are_given_before_it_is_read(native, monkeypatch, tmp_path):
    """So that two of them do not lie in memory at once, and a complete sample does not wait for the next one."""
    monkeypatch.setenv("WDS_NATIVE", native)
    path = tmp_path / "s.tar"
    path.write_bytes(write_pictures(20, size=600_000))
    with LocalFileStream(path) as stream:
        place = 0
        for number, sample in enumerate(read_samples([{"url": "s.tar", "stream": stream}], Reading())):
            place += len(sample["jpg"]) + 2500
            if number < 19:
                assert stream.tell() < place + 2 * scanner.CHUNK + 7000
    assert number == 19


@needs_core
@pytest.mark.parametrize(("count", "size", "step"), [(3, 20_000, 997), (3, 200_000, 9_973), (40, 700, 4_999)])
def test_every_cut_of_a_file(count, size, step):
    """A file of pictures that was cut anywhere: never half a sample, and the same words."""
    whole = write_pictures(count, size)
    headers = list_headers(whole)
    stops = {*range(0, len(whole), step), *(at + shift for at in headers for shift in (-1, 0, 1, 511, 512, 513))}
    for stop in sorted(stop for stop in stops if stop >= 0):
        chunks = scanner.FIRST_CHUNK, scanner.CHUNK
        case = Case(str(stop), whole[:stop], None, {"continues": False, "start": None}, chunks)
        assert play(case, native=True) == play(case, native=False), stop


@needs_core
@pytest.mark.parametrize("size", [60_000, 300_000])
@pytest.mark.parametrize("change", ["cut", "grown", "overwritten"])
def test_file_that_changes_while_it_is_read(change, size, monkeypatch, tmp_path):
    """What is read after a file was changed is not given: the shard ends with ``ShardChanged``."""
    monkeypatch.setenv("WDS_NATIVE", "1")
    path, whole = tmp_path / "s.tar", write_pictures(60, size)
    path.write_bytes(whole)
    os.utime(path, ns=(10**18, 10**18))
    samples, given = read_samples([{"url": "s.tar", "stream": LocalFileStream(path)}], Reading()), []
    given += [next(samples) for _ in range(20)]
    if change == "cut":
        os.truncate(path, len(whole) // 2)
    elif change == "grown":
        with path.open("ab") as file:
            file.write(b"x")
    else:
        with path.open("r+b") as file:
            file.write(whole.replace(b"t", b"u"))
    with pytest.raises(ShardChanged):
        given.extend(samples)
    # those of the chunk that was read before are good
    assert 20 <= len(given) < 30
    assert [(each["jpg"], each["txt"]) for each in given] == [
        (bytes([number]) * (size + number), b"t") for number in range(len(given))
    ]


@needs_core
@pytest.mark.parametrize("change", ["cut", "grown", "overwritten"])
def test_file_of_small_members_that_changes_while_it_is_read(change, monkeypatch, tmp_path):
    """The same where the core reads chunk after chunk: none of a chunk that was read after the change is given."""
    monkeypatch.setenv("WDS_NATIVE", "1")
    path, whole = tmp_path / "s.tar", write_pictures(2_000, 1_000)
    path.write_bytes(whole)
    os.utime(path, ns=(10**18, 10**18))
    samples, given = read_samples([{"url": "s.tar", "stream": LocalFileStream(path)}], Reading()), []
    given += [next(samples) for _ in range(200)]
    if change == "cut":
        os.truncate(path, len(whole) // 2)
    elif change == "grown":
        with path.open("ab") as file:
            file.write(b"x")
    else:
        with path.open("r+b") as file:
            file.write(whole.replace(b"t", b"u"))
    with pytest.raises(ShardChanged):
        given.extend(samples)
    assert 200 <= len(given) < 600
    assert [(each["jpg"], each["txt"]) for each in given] == [
        (bytes([number % 256]) * (1_000 + number), b"t") for number in range(len(given))
    ]


@needs_core
@pytest.mark.parametrize("pieces", [1000, 4096, 65_536])
def test_file_that_gives_less_than_is_asked(pieces):
    """Reads that stop short are repeated until a body is whole."""
    content, taken = write_pictures(10, size=20_000), []
    grouper = Reading().grouper()
    grouper.open({})
    for extension in ("jpg", "json", "txt"):
        grouper.add([(f"x.{extension}", b"", 0)])
    grouper.open({})
    core = native_core.load_native()[0].Taker(*grouper.template)
    reading, writing = os.pipe()

    def write():
        for at in range(0, len(content), pieces):
            os.write(writing, content[at : at + pieces])
        os.close(writing)

    writer = threading.Thread(target=write)
    writer.start()
    buf, pos, base, sample, key, start, more = os.read(reading, 512), 0, 0, None, None, 0, True
    while more:
        buf, pos, base, sample, key, start, more = core.take(
            buf, pos, base, sample, key, start, taken, [], reading, len(content), 50_000, None
        )
        assert buf == content[base : base + len(buf)]
    # a pipe may end a chunk anywhere: what is left is Python's
    writer_left = len(content) - base - len(buf)
    while writer_left and (piece := os.read(reading, 65_536)):
        writer_left -= len(piece)
    writer.join()
    os.close(reading)
    assert len(taken) > 5 or pieces == 1000
    for number, each in enumerate([*taken, sample]):
        assert (each["__key__"], each["jpg"]) == (f"{number:04d}", bytes([number]) * (20_000 + number))


def play_index(case, *, native):
    """Everything that is seen of an index that is built from chunks."""
    os.environ["WDS_NATIVE"] = "1" if native else "0"
    seen: list[Any] = []
    content = case.content

    def handler(error):
        seen.append(("asked", describe(error)))
        return case.rules["continues"]

    rules = select_rules(case.rules)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        builder = IndexBuilder("s.tar", Reading(handler=handler, **rules), lambda: read_anywhere(content))
        try:
            for offset, piece in draw_pieces(content, random.Random(case.seed), case.sizes, builder.walk):
                builder.feed(piece, offset)
            index = builder.finish(len(content), stored=len(content))
            seen.append((index.end, index.sparse, index.joins, list(index.entries), list(builder.entries.keys())))
        except WebDatasetError as error:
            # one that is met earlier comes before the warnings at the end
            return seen, [describe(error)]
    return seen, [str(each.message) for each in caught]


def read_anywhere(content):
    """What hard links are looked up with."""
    return lambda offset, size: content[offset : offset + size]


def draw_pieces(content, rng, sizes, walk):
    """Where pieces start, and the pieces: all bytes, or those that are wanted and some more."""
    place = 0
    jumps = rng.random() < 0.5
    while place < len(content):
        size = rng.choice(sizes or [64 * 1024])
        if jumps:
            place, least = walk.wants
            size = max(size, least)
        yield place, content[place : place + size]
        place += size


@needs_core
@pytest.mark.parametrize("part", range(5))
def test_random_indexes(part):
    """An index built with the core is the one that is built header by header: entries, end, errors and warnings."""
    for number in range(CASES // 5):
        seed = f"index.{part}.{number}"
        rng = random.Random(seed)
        content = write_archive(rng)
        for _ in range(rng.choice([0, 0, 1, 1, 2, 3])):
            content = damage(rng, content)
        case = Case(seed, content, rng.choice(SIZES), draw_rules(rng, content))
        assert play_index(case, native=True) == play_index(case, native=False), (seed, case.sizes, case.rules)


@needs_core
@pytest.mark.parametrize("fields", [1, 3])
def test_most_samples_of_an_index_are_taken_by_the_core(fields, monkeypatch):
    """Of small plain members nearly all are located without reading their headers in Python; of large ones none."""
    monkeypatch.setenv("WDS_NATIVE", "1")
    seen = []
    add = IndexBuilder._add
    monkeypatch.setattr(
        IndexBuilder, "_add", lambda self, samples, starts: (seen.extend(samples), add(self, samples, starts))
    )
    for size, most in ((20, 300), (9000, 400)):
        seen.clear()
        out = io.BytesIO()
        with wds.TarWriter(out) as sink:
            for number in range(2000 if size == 20 else 300):
                sink.write({"__key__": f"{number:05d}", **{f"f{field}": "x" * size for field in range(fields)}})
        content = out.getvalue()
        builder = IndexBuilder("s.tar", Reading())
        for offset in range(0, len(content), 1 << 16):
            builder.feed(content[offset : offset + (1 << 16)], offset)
        assert len(builder.finish(len(content), stored=len(content))) == (2000 if size == 20 else 300)
        assert len(seen) < most if size == 20 else len(seen) > 250


@needs_core
def test_every_cut():
    """An archive cut at any byte: never half a sample, and the same words."""
    out = io.BytesIO()
    with wds.TarWriter(out) as sink:
        for number in range(4):
            sink.write({"__key__": f"{number}", "txt": "x" * 20, "cls": number})
    whole = out.getvalue()
    for stop in range(0, 9 * BLOCK, 3):
        case = Case(str(stop), whole[:stop], None, {"continues": False, "start": None})
        assert play(case, native=True) == play(case, native=False), stop


@needs_core
@pytest.mark.parametrize("form", ["ours", "pax-mtime", "long-folders"])
def test_most_bytes_are_taken_by_the_core(form, monkeypatch):
    """Of plain shards nearly all samples are made in C: a core that hands all back would pass the other tests."""
    monkeypatch.setenv("WDS_NATIVE", "1")
    out = io.BytesIO()
    if form == "ours":
        with wds.TarWriter(out) as sink:
            for number in range(3000):
                sink.write({"__key__": f"{number:06d}", "jpg": b"x" * 700, "cls": number})
    else:
        with tarfile.open(
            fileobj=out, mode="w", format=tarfile.PAX_FORMAT if form == "pax-mtime" else tarfile.USTAR_FORMAT
        ) as file:
            for number in range(3000):
                for extension in ("jpg", "cls"):
                    member = tarfile.TarInfo(
                        f"{'folder/' * 20 if form == 'long-folders' else ''}{number:06d}.{extension}"
                    )
                    member.size, member.mtime = 700, 1.5 if form == "pax-mtime" else 1
                    file.addfile(member, io.BytesIO(b"x" * 700))
    by_python = []
    monkeypatch.setattr(
        native_core.NativeTaker,
        "add",
        lambda self, samples, offsets: (by_python.extend(samples), _add(self, samples, offsets)),
    )
    given = list(read_samples([{"url": "s.tar", "stream": io.BytesIO(out.getvalue())}], Reading()))
    assert len(given) == 3000
    assert len(by_python) < 150


_add = native_core.NativeTaker.add


@needs_core
def test_memory_of_abandoned_readers():
    """Readers that are left in the middle leave nothing behind."""
    code = """
import gc, io, resource, sys
import webdataset as wds
from webdataset.samples.sample_reader import Reading, read_samples
out = io.BytesIO()
with wds.TarWriter(out) as sink:
    for number in range(300):
        sink.write({"__key__": f"{number}", "bin": b"x" * 20_000, "cls": 1})
def leave():
    samples = read_samples([{"url": "s.tar", "stream": io.BytesIO(out.getvalue())}], Reading())
    next(samples), next(samples)
for _ in range(30):
    leave()
gc.collect()
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
for _ in range(300):
    leave()
gc.collect()
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert int(done.stdout) < 20_000, done.stdout  # KiB: one reader holds up to 400


@needs_core
def test_nothing_is_left_of_shards_that_were_read():
    """The names of fields that a reader keeps are released with it, each of them; found by fuzz/coverage.py."""
    out = io.BytesIO()
    with wds.TarWriter(out) as sink:
        for number in range(3):
            sink.write({"__key__": f"{number}", **{f"field{each}": b"x" for each in range(5)}})

    def read(times):
        for _ in range(times):
            assert len(list(read_samples([{"url": "s.tar", "stream": io.BytesIO(out.getvalue())}], Reading()))) == 3
        gc.collect()

    read(10)
    before = sys.getallocatedblocks()
    read(300)
    assert sys.getallocatedblocks() < before + 150


@pytest.mark.parametrize("native", ["0", "1"])
@pytest.mark.parametrize("changed_ns", [10**18 + 7, 0, -1, -(10**9) - 1])
def test_whether_a_file_is_unchanged(native, changed_ns, monkeypatch, tmp_path):
    """Size and time to the nanosecond, before 1970 too."""
    monkeypatch.setenv("WDS_NATIVE", native)
    is_unchanged = native_core.choose_file_check()
    assert (is_unchanged is native_core.is_file_unchanged) == (wds.__native__ != "yes")
    path = tmp_path / "x"
    path.write_bytes(b"12345")
    os.utime(path, ns=(0, changed_ns))
    with path.open("rb") as file:
        status = os.fstat(file.fileno())
        assert is_unchanged(file.fileno(), 5, status.st_mtime_ns)
        assert not is_unchanged(file.fileno(), 6, status.st_mtime_ns)
        for other in (-(10**9), -1, 1, 10**9):
            assert not is_unchanged(file.fileno(), 5, status.st_mtime_ns + other)
        os.utime(path, ns=(0, changed_ns + 10**9))
        assert not is_unchanged(file.fileno(), 5, status.st_mtime_ns)


@needs_core
def test_it_was_compiled_from_this_source():
    """A core of an older source would be tested in its place: ``make`` installs again where the source has changed."""
    folder = Path(__file__).parents[2] / "native"
    sources = {path.name: path.read_bytes() for path in sorted(folder.glob("*.[ch]"))}
    assert native_core.load_native()[0].SOURCE == hashlib.sha256(repr(sources).encode()).hexdigest()[:16]


@pytest.mark.parametrize(("native", "said"), [("1", None), ("0", "no: WDS_NATIVE=0")])
def test_it_says_whether_it_is_used(native, said, monkeypatch):
    """``webdataset.__native__`` and ``wds doctor`` tell."""
    monkeypatch.setenv("WDS_NATIVE", native)
    assert wds.__native__ == (said or native_core.load_native()[1])


def test_a_free_threaded_python_leaves_the_module_of_others_alone(monkeypatch):
    """Its import system finds ``_native.abi3.so``, too, and objects there are laid out in another way."""
    monkeypatch.setattr(sys, "abiflags", "t")
    monkeypatch.setattr(native_core, "find_spec", lambda name: types.SimpleNamespace(origin="/x/_native.abi3.so"))
    monkeypatch.setattr(native_core, "importlib", None)
    native_core.load_native.cache_clear()
    try:
        assert native_core.load_native()[0] is None
        assert "free-threaded" in native_core.describe_native()
    finally:
        native_core.load_native.cache_clear()


@needs_core
def test_a_second_call_while_one_is_at_work_is_refused(monkeypatch):
    """A reader belongs to one thread; one that is used in two is an error, and the first call is not disturbed."""
    refused, cores, kept = [], [], native_core.NativeTaker

    class Field(str):
        """A name whose hash is asked for in the middle of a call."""

        __slots__ = ()

        def __hash__(self):
            for core in cores:
                with pytest.raises(RuntimeError, match="two threads"):
                    core.take()
                refused.append(core)
            return hash("txt")

    def make(core, grouper):
        field = Field("txt")
        hash(field)
        grouper.template[1]["txt"] = field
        cores.append(core)
        return kept(core, grouper)

    monkeypatch.setattr(native_core, "NativeTaker", make)
    out = io.BytesIO()
    with wds.TarWriter(out) as sink:
        for number in range(3):
            sink.write({"__key__": f"{number}", "txt": "x"})
    given = list(read_samples([{"url": "s.tar", "stream": io.BytesIO(out.getvalue())}], Reading()))
    assert [each["__key__"] for each in given] == ["0", "1", "2"]
    assert len(refused) >= 3


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ("missing", "not compiled"),
        ("broken", "no: undefined symbol"),
        ("other", f"another version (0, not {native_core.PROTOCOL})"),
    ],
)
def test_without_a_usable_core_python_reads(fault, said, monkeypatch):
    """A core that is not there, cannot be loaded or is of another version is left alone, and the reason is told."""

    class Other:
        PROTOCOL = 0

    def load(name):
        if fault == "other":
            return Other
        raise ModuleNotFoundError(name) if fault == "missing" else ImportError("undefined symbol")

    monkeypatch.setenv("WDS_NATIVE", "1")
    monkeypatch.setattr(native_core, "importlib", types.SimpleNamespace(import_module=load))
    native_core.load_native.cache_clear()
    try:
        assert said in native_core.describe_native()
        out = io.BytesIO()
        with wds.TarWriter(out) as sink:
            sink.write({"__key__": "a", "txt": "x"})
        (sample,) = read_samples([{"url": "s.tar", "stream": io.BytesIO(out.getvalue())}], Reading())
        assert sample["txt"] == b"x"
    finally:
        native_core.load_native.cache_clear()


@needs_core
def test_extensions_of_earlier_shards_are_known(monkeypatch):
    """What one shard taught is taken in C from the next one's first member on; other rules have their own names."""
    monkeypatch.setenv("WDS_NATIVE", "1")
    monkeypatch.setattr(grouping, "COMMON_FIELDS", {True: {}, False: {}})
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.USTAR_FORMAT) as file:
        for number in range(3):
            member = tarfile.TarInfo(f"{number}.JPG")
            member.size = 1
            file.addfile(member, io.BytesIO(b"x"))
    grouped = []

    def group(self, members, first=0):
        grouped.extend(members)
        return _group(self, members, first)

    monkeypatch.setattr(grouping.Grouper, "add", group)

    def read(**rules):
        grouped.clear()
        shard = {"url": "s.tar", "stream": io.BytesIO(out.getvalue())}
        samples = list(read_samples([shard], Reading(**rules)))
        fields = [name for each in samples for name in each if not name.startswith("__")]
        return fields, "in C" if not grouped else "in Python"

    assert read() == (["jpg"] * 3, "in Python")
    assert read() == (["jpg"] * 3, "in C")
    # one rule does not name fields for another
    assert read(lcase=False) == (["JPG"] * 3, "in Python")
    assert read(lcase=False) == (["JPG"] * 3, "in C")
    assert read(suffixes={"txt"}) == ([], "in Python")
    assert read() == (["jpg"] * 3, "in C")


_group = grouping.Grouper.add


@pytest.mark.parametrize("native", ["0", "1"])
def test_the_end_of_a_file_is_compared_and_not_read(native, monkeypatch, tmp_path):
    """A file whose bytes have all come is not read once more; one that grew since is seen to have changed."""
    monkeypatch.setenv("WDS_NATIVE", native)
    path = tmp_path / "s.tar"
    path.write_bytes(write_pictures(2, size=100))
    os.utime(path, ns=(10**18, 10**18))
    by_python, read = [], LocalFileStream.read

    def note_read(self, size=-1):
        by_python.append(found := read(self, size))
        return found

    monkeypatch.setattr(LocalFileStream, "read", note_read)
    assert len(list(read_samples([{"url": "s.tar", "stream": LocalFileStream(path)}], Reading()))) == 2
    assert list(map(len, by_python)) == [path.stat().st_size]
    check = LocalFileStream.check_identity

    def grow(self):
        check(self)
        with path.open("ab") as file:
            file.write(bytes(512))

    monkeypatch.setattr(LocalFileStream, "check_identity", grow)
    given = []
    # a small shard under the usual rules is compared after its only read
    rules = Reading(suffixes={"jpg", "cls"})
    with pytest.raises(ShardChanged):
        given.extend(read_samples([{"url": "s.tar", "stream": LocalFileStream(path)}], rules))


@pytest.mark.parametrize("native", ["0", "1"])
def test_a_small_file_that_changed_since_it_was_opened(native, monkeypatch, tmp_path):
    """It gives nothing, and the error says which shard."""
    monkeypatch.setenv("WDS_NATIVE", native)
    path = tmp_path / "s.tar"
    path.write_bytes(write_pictures(2, size=100))
    assert len(list(read_samples([{"url": str(path), "stream": LocalFileStream(path)}], Reading()))) == 2
    stream = LocalFileStream(path)
    with path.open("ab") as file:
        file.write(bytes(512))
    given = []
    with pytest.raises(ShardChanged) as caught:
        given.extend(read_samples([{"url": str(path), "stream": stream}], Reading()))
    assert not given
    assert caught.value.url == str(path)
    assert stream.closed
