"""The native core gives what Python gives: samples, fields, offsets, errors, warnings, and what handlers are asked.

Archives of several programs and formats, whole and damaged in many ways, are read in chunks of many sizes under many
rules, once in each way; from files, too, whose bodies the core reads by itself. ``NATIVE_FUZZ_CASES`` chooses how many
random cases are played (default 1 500).
"""

import contextlib
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
import zlib
from pathlib import Path
from typing import Any

import pytest

import webdataset as wds
from webdataset.core.errors import ShardChanged, WebDatasetError
from webdataset.samples import grouping, native_core
from webdataset.samples.address import Address
from webdataset.samples.sample_reader import Position, Reading, read_samples
from webdataset.storage.streams import LocalFileStream
from webdataset.tar import scanner
from webdataset.tar.header import BLOCK, Limits

CASES = int(os.environ.get("NATIVE_FUZZ_CASES", "1500"))
needs_core = pytest.mark.skipif(native_core.load_native()[0] is None, reason="the native core was not compiled")
EXTENSIONS = ["jpg", "cls", "json", "seg.png", "JPG", "txt", "x" * 60, "é", "__bad__", "__key__", "__url__", ""]
KEYS = [
    "a",
    "b",
    "00",
    "dir/k",
    "d.e/k",
    "_x",
    "__meta__",
    "é",
    "k" * 90,
    "deep/" * 30 + "k",
    "deep/" * 50 + "k",
    ".hid",
    "",
]


class Chunks:
    """A stream that gives as many bytes as it likes."""

    def __init__(self, content, rng, sizes):
        self.file, self.rng, self.sizes = io.BytesIO(content), rng, sizes

    def read(self, count=-1):
        """Some bytes."""
        return self.file.read(count if self.sizes is None else self.rng.choice(self.sizes))

    def close(self):
        """Nothing is left open."""


def set_sum(block):
    """The header with its checksum put right."""
    block[148:156] = b" " * 8
    block[148:156] = b"%06o\0 " % sum(block)
    return block


SMALL = [0, 1, 5, 511, 512, 513, 1200]
# around what is worth a read of its own, and what is Python's
LARGE = [4000, 9000, 16_383, 16_384, 16_385, 17_000, 30_000, 66_000, 131_071, 131_072, 140_000]


def write_members(rng, large=0.03):
    """Names and payloads: samples of a few fields, sometimes one twice, or of a key that came before."""
    members, extensions = [], rng.sample(EXTENSIONS[:6], 3)
    for number in range(rng.randint(0, 30)):
        key = rng.choice(KEYS) if rng.random() < 0.2 else f"{rng.choice(['', 'd/', 'dir/sub/'])}{number:05d}"
        for extension in rng.sample(extensions, rng.randint(1, 3)):
            name = rng.choice(EXTENSIONS) if rng.random() < 0.05 else extension
            size = rng.choice(SMALL) if rng.random() >= large else rng.choice(LARGE)
            members.append((f"{key}.{name}" if rng.random() < 0.97 else key or "x", rng.randbytes(size)))
    if members and rng.random() < 0.1:
        members.append(rng.choice(members))
    return members


def write_archive(rng, large=0.03):
    """An archive of one of several writers."""
    members = write_members(rng, large)
    out = io.BytesIO()
    kind = rng.choice(["ustar", "gnu", "pax", "pax-mtime", "ours", "ours-pax"])
    if kind.startswith("ours"):
        with wds.TarWriter(
            out, format="pax" if kind == "ours-pax" else "ustar", mtime=1.5 if "pax" in kind else 0
        ) as sink:
            for number, (_, payload) in enumerate(members):
                sink.write({"__key__": f"{number:04d}", "bin": payload, "cls": number})
        return out.getvalue()
    form = {"ustar": tarfile.USTAR_FORMAT, "gnu": tarfile.GNU_FORMAT}.get(kind, tarfile.PAX_FORMAT)
    with tarfile.open(fileobj=out, mode="w", format=form) as file:
        for name, payload in members:
            member = tarfile.TarInfo(name)
            member.size = len(payload)
            if kind == "pax-mtime":
                member.mtime = rng.random() * 1e9
            if rng.random() < 0.02:
                member.type, member.linkname = (
                    rng.choice([tarfile.DIRTYPE, tarfile.SYMTYPE, tarfile.LNKTYPE, b"Z"]),
                    "00.jpg",
                )
                if member.type != b"Z":
                    member.size, payload = 0, b""
            if kind == "pax" and rng.random() < 0.2:
                member.pax_headers = rng.choice([{"comment": "x"}, {"comment": "a=path=b"}, {"a": "1", "b": "2"}])
            try:
                file.addfile(member, io.BytesIO(payload))
            except ValueError:  # a name that the format cannot hold
                continue
    return out.getvalue()


def list_headers(content):
    """Offsets at which a header may stand."""
    return [at for at in range(0, len(content) - BLOCK + 1, BLOCK) if content[at + 257 : at + 262] == b"ustar"] or [0]


def damage(rng, content):
    """The archive after one of many kinds of damage."""
    content = bytearray(content)
    headers = list_headers(content)
    at = rng.choice(headers)
    kind = rng.randrange(12)
    if kind == 0:
        del content[rng.randint(0, len(content)) :]
    elif kind == 1:
        del content[max(0, min(len(content), at + rng.choice([-513, -512, -1, 0, 1, 155, 511, 512, 513]))) :]
    elif kind == 2 and content:
        content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
    elif kind == 3 and len(content) >= at + BLOCK:
        content[at + rng.randrange(BLOCK)] = rng.randrange(256)
    elif kind in (4, 5, 6) and len(content) >= at + BLOCK:
        block = bytearray(content[at : at + BLOCK])
        place, stop = rng.choice([(0, 100), (100, 148), (156, 157), (257, 265), (345, 500)])
        if kind == 4:
            block[124:136] = rng.choice([
                b"00000000017\0", b"        17 \0", b"17 \0 3     ", b"+0000000017\0", b"0_000000017\0",
                b"77777777777\0", b"777777777777", b"           \0", b"\x80" + bytes(10) + b"\x07", b"\xff" * 12,
                b"00000000008\0", b"1\t\0" + bytes(9),
            ])  # fmt: skip
        else:
            block[place : place + 1] = rng.choice([b"\0", b"0", b"7", b"x", b"/", b"_", b".", b"5", b"\xff"])
            block[stop - 1 : stop] = rng.choice([b"\0", b"a", b"/"]) if kind == 6 else block[stop - 1 : stop]
        content[at : at + BLOCK] = set_sum(block)
        if rng.random() < 0.3:
            text = b"%06o" % int(bytes(content[at + 148 : at + 154]), 8)
            content[at + 148 : at + 156] = rng.choice(
                [text + b" \0", b"+" + text[1:] + b"\0 ", text[1:] + b" \0 ", b" " + text[1:] + b"\0 "]
            )
    elif kind == 7:
        content[at:at] = bytes(BLOCK) * rng.randint(1, 3)
    elif kind == 8:
        content[at : at + BLOCK] = bytes(len(content[at : at + BLOCK]))
    elif kind == 9:
        content[at:at] = content[at : at + BLOCK]
    elif kind == 10:
        content += write_archive(rng)
    else:
        del content[at : at + BLOCK]
    return bytes(content)


class Seen:
    """A watch that keeps what it was shown."""

    def __init__(self):
        self.crc, self.at, self.ended = 0, None, None

    def feed(self, piece, offset):
        """Note some bytes."""
        assert self.at in (None, offset)
        self.crc, self.at = zlib.crc32(piece, self.crc), offset + len(piece)

    def finish(self, length, compression):
        """Note the end."""
        self.ended = length, compression


def play(content, seed, sizes, options, native, monkeypatch, path=None):
    """Everything that is seen of a reading, of a stream in chunks of these sizes, or of a file."""
    monkeypatch.setenv("WDS_NATIVE", "1" if native else "0")
    seen: list[Any] = []

    def handler(error):
        seen.append(("asked", describe(error)))
        return options["continues"]

    rules = {name: value for name, value in options.items() if name not in ("continues", "start", "rising", "observed")}
    stream = Chunks(content, random.Random(seed), sizes) if path is None else LocalFileStream(path)
    start, watch, rising = options["start"], Seen(), options.get("rising", True)
    if options.get("observed"):
        rules["observer"] = lambda _url, _rules: watch
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            for sample in read_samples(
                [{"url": "s.tar", "stream": stream, "__mark__": 7, "rising": rising}],
                Reading(handler=handler, addresses=True, **rules),
                start=start,
            ):
                seen.append([(name, value) for name, value in sample.items()])
        except WebDatasetError as error:
            seen.append(("raised", describe(error)))
    if path is not None:
        assert stream.closed
    return seen, [str(each.message) for each in caught], (watch.crc, watch.at, watch.ended)


def describe(error):
    """What an error says."""
    return type(error).__name__, str(error), *(getattr(error, name, None) for name in ("url", "key", "field", "offset"))


def draw_options(rng, content):
    """Rules of reading."""
    options = {
        "duplicates": rng.choice(["error", "error", "first", "last", "new"]),
        "missing_end": rng.choice(["error", "warn", "ignore"]),
        "split_samples": rng.choice(["error", "warn", "ignore"]),
        "continues": rng.random() < 0.7,
        "lcase": rng.random() < 0.8,
        "start": None,
    }
    if rng.random() < 0.1:
        options["suffixes"] = {"jpg", "cls"}
    if rng.random() < 0.1:
        options["limits"] = Limits(
            chain=rng.choice([0, 1, 2]), record_bytes=rng.choice([100, 600]), name_bytes=rng.choice([50, 300])
        )
    if rng.random() < 0.2:
        options["start"] = Address(0, rng.randint(0, 5), rng.choice(list_headers(content)))
    return options


SIZES = [None, None, [1, 7, 100], [511, 512, 513], [700], [5000, 33_000], [1 << 20]]


@needs_core
@pytest.mark.parametrize("part", range(5))
def test_random_archives(part, monkeypatch):
    """Whole and damaged archives, whatever the chunks and rules."""
    for case in range(CASES // 5):
        seed = f"{part}.{case}"
        rng = random.Random(seed)
        content = write_archive(rng)
        for _ in range(rng.choice([0, 1, 1, 1, 2, 3])):
            content = damage(rng, content)
        options, sizes = draw_options(rng, content), rng.choice(SIZES)
        pure = play(content, seed, sizes, options, False, monkeypatch)
        taken = play(content, seed, sizes, options, True, monkeypatch)
        assert taken == pure, (seed, sizes, options)


@needs_core
@pytest.mark.parametrize("part", range(5))
def test_random_files(part, monkeypatch, tmp_path):
    """The same of files with larger bodies, plain and compressed: those that a chunk cuts off are read by the core."""
    path = tmp_path / "s.tar"
    for case in range(CASES // 5):
        seed = f"file {part}.{case}"
        rng = random.Random(seed)
        content = write_archive(rng, rng.choice([0.03, 0.3, 0.3, 1]))
        for _ in range(rng.choice([0, 1, 1, 1, 2, 3])):
            content = damage(rng, content)
        options, first = draw_options(rng, content), rng.choice([512, 1024, 32 * 1024])
        options["observed"], options["start"] = rng.random() < 0.1, None
        monkeypatch.setattr(scanner, "FIRST_CHUNK", first)
        monkeypatch.setattr(scanner, "CHUNK", rng.choice([first, 40 * 1024, 384 * 1024]))
        path.write_bytes(gzip.compress(content, 0) if rng.random() < 0.05 else content)
        if rng.random() < 0.3:
            options["start"], options["rising"] = rng.choice(list_places(path, options, monkeypatch) or [(None, True)])
        pure = play(content, seed, None, options, False, monkeypatch, path)
        taken = play(content, seed, None, options, True, monkeypatch, path)
        assert taken == pure, (seed, options)


def list_places(path, options, monkeypatch):
    """The places at which a run may be resumed, as a state has them: addresses, and whether keys rose up to there."""
    monkeypatch.setenv("WDS_NATIVE", "0")
    position, places = Position(tracked=True), []
    reading = Reading(**{name: options[name] for name in options if name not in ("continues", "start", "observed")})
    with warnings.catch_warnings(), contextlib.suppress(WebDatasetError):
        warnings.simplefilter("ignore")
        for _ in read_samples([{"url": "s.tar", "stream": LocalFileStream(path)}], reading, position):
            places.append((position.address()[:3], position.rising))
    return [(Address(*place), rising) for place, rising in places]


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
@pytest.mark.parametrize("small", [300, 12_000])
def test_large_bodies_of_files_are_read_by_the_core(small, monkeypatch, tmp_path):
    """Python reads next to nothing of a file of pictures: a core that left it all to Python would pass the fuzz."""
    monkeypatch.setenv("WDS_NATIVE", "1")
    path = tmp_path / "s.tar"
    path.write_bytes(write_pictures(100, small=small))
    by_python, read = [], LocalFileStream.read
    monkeypatch.setattr(
        LocalFileStream, "read", lambda self, size=-1: (by_python.append(found := read(self, size)), found)[1]
    )
    given = list(read_samples([{"url": "s.tar", "stream": LocalFileStream(path)}], Reading()))
    assert [(each["jpg"][:1], len(each["jpg"])) for each in given] == [(bytes([n]), 60_000 + n) for n in range(100)]
    assert sum(map(len, by_python)) < path.stat().st_size / 15


@needs_core
@pytest.mark.parametrize("step", [997])
def test_every_cut_of_a_file(step, monkeypatch, tmp_path):
    """A file of pictures that was cut anywhere: never half a sample, and the same words."""
    whole, path = write_pictures(3, size=20_000), tmp_path / "s.tar"
    headers = list_headers(whole)
    stops = {*range(0, len(whole), step), *(at + shift for at in headers for shift in (-1, 0, 1, 511, 512, 513))}
    options = {"continues": False, "start": None}
    for stop in sorted(stop for stop in stops if stop >= 0):
        path.write_bytes(whole[:stop])
        pure = play(whole, stop, None, options, False, monkeypatch, path)
        assert play(whole, stop, None, options, True, monkeypatch, path) == pure, stop


@needs_core
@pytest.mark.parametrize("change", ["cut", "grown", "overwritten"])
def test_file_that_changes_while_it_is_read(change, monkeypatch, tmp_path):
    """What is read after a file was changed is not given: the shard ends with ``ShardChanged``."""
    monkeypatch.setenv("WDS_NATIVE", "1")
    path, whole = tmp_path / "s.tar", write_pictures(60)
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
        (bytes([number]) * (60_000 + number), b"t") for number in range(len(given))
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
            buf, pos, base, sample, key, start, taken, [], reading, 50_000
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


@needs_core
def test_every_cut(monkeypatch):
    """An archive cut at any byte: never half a sample, and the same words."""
    out = io.BytesIO()
    with wds.TarWriter(out) as sink:
        for number in range(4):
            sink.write({"__key__": f"{number}", "txt": "x" * 20, "cls": number})
    whole = out.getvalue()
    options = {"continues": False, "start": None}
    for stop in range(0, 9 * BLOCK, 3):
        pure = play(whole[:stop], stop, None, options, False, monkeypatch)
        assert play(whole[:stop], stop, None, options, True, monkeypatch) == pure, stop


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
def test_it_was_compiled_from_this_source():
    """A core of an older source would be tested in its place: ``make`` installs again where the source has changed."""
    source = Path(__file__).parents[2] / "native" / "take_samples.c"
    assert native_core.load_native()[0].SOURCE == hashlib.sha256(source.read_bytes()).hexdigest()[:16]


@pytest.mark.parametrize(("native", "said"), [("1", None), ("0", "no: WDS_NATIVE=0")])
def test_it_says_whether_it_is_used(native, said, monkeypatch):
    """``webdataset.__native__`` and ``wds doctor`` tell."""
    monkeypatch.setenv("WDS_NATIVE", native)
    assert wds.__native__ == (said or native_core.load_native()[1])


@pytest.mark.parametrize(
    ("fault", "said"),
    [("missing", "not compiled"), ("broken", "no: undefined symbol"), ("other", "another version (0, not 2)")],
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
    monkeypatch.setattr(grouping, "_COMMON", {True: {}, False: {}})
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
    check = LocalFileStream.check_unchanged

    def grow(self):
        check(self)
        with path.open("ab") as file:
            file.write(bytes(512))

    monkeypatch.setattr(LocalFileStream, "check_unchanged", grow)
    given = []
    with pytest.raises(ShardChanged):
        given.extend(read_samples([{"url": "s.tar", "stream": LocalFileStream(path)}], Reading()))
