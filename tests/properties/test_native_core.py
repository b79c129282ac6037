"""The native core gives what Python gives: samples, fields, offsets, errors, warnings, and what handlers are asked.

Archives of several programs and formats, whole and damaged in many ways, are read in chunks of many sizes under many
rules, once in each way. ``NATIVE_FUZZ_CASES`` chooses how many random cases are played (default 1 500).
"""

import hashlib
import io
import os
import random
import subprocess
import sys
import tarfile
import types
import warnings
from pathlib import Path
from typing import Any

import pytest

import webdataset as wds
from webdataset.core.errors import WebDatasetError
from webdataset.index.build import IndexBuilder
from webdataset.samples import native_core
from webdataset.samples.sample_reader import Reading, read_samples
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


def write_members(rng):
    """Names and payloads: samples of a few fields, sometimes one twice, or of a key that came before."""
    members, extensions = [], rng.sample(EXTENSIONS[:6], 3)
    for number in range(rng.randint(0, 30)):
        key = rng.choice(KEYS) if rng.random() < 0.2 else f"{rng.choice(['', 'd/', 'dir/sub/'])}{number:05d}"
        for extension in rng.sample(extensions, rng.randint(1, 3)):
            name = rng.choice(EXTENSIONS) if rng.random() < 0.05 else extension
            size = rng.choice([0, 1, 5, 511, 512, 513, 1200]) if rng.random() < 0.97 else rng.choice([20_000, 140_000])
            members.append((f"{key}.{name}" if rng.random() < 0.97 else key or "x", rng.randbytes(size)))
    if members and rng.random() < 0.1:
        members.append(rng.choice(members))
    return members


def write_archive(rng):
    """An archive of one of several writers."""
    members = write_members(rng)
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


def play(content, seed, sizes, options, native, monkeypatch):
    """Everything that is seen of a reading."""
    monkeypatch.setenv("WDS_NATIVE", "1" if native else "0")
    seen: list[Any] = []

    def handler(error):
        seen.append(("asked", describe(error)))
        return options["continues"]

    rules = {name: value for name, value in options.items() if name not in ("continues", "start")}
    stream = Chunks(content, random.Random(seed), sizes)
    start = options["start"]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            for sample in read_samples(
                [{"url": "s.tar", "stream": stream, "__mark__": 7}],
                Reading(handler=handler, addresses=True, **rules),
                start=start,
            ):
                seen.append([(name, value) for name, value in sample.items()])
        except WebDatasetError as error:
            seen.append(("raised", describe(error)))
    return seen, [str(each.message) for each in caught]


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
        from webdataset.samples.address import Address

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


def play_index(content, seed, sizes, options, native, monkeypatch):
    """Everything that is seen of an index that is built from chunks."""
    monkeypatch.setenv("WDS_NATIVE", "1" if native else "0")
    seen: list[Any] = []

    def handler(error):
        seen.append(("asked", describe(error)))
        return options["continues"]

    rules = {name: value for name, value in options.items() if name not in ("continues", "start")}
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        builder = IndexBuilder("s.tar", Reading(handler=handler, **rules), lambda: read_anywhere(content))
        try:
            for offset, piece in draw_pieces(content, random.Random(seed), sizes, builder.walk):
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
def test_random_indexes(part, monkeypatch):
    """An index built with the core is the one that is built header by header: entries, end, errors and warnings."""
    for case in range(CASES // 5):
        seed = f"index.{part}.{case}"
        rng = random.Random(seed)
        content = write_archive(rng)
        for _ in range(rng.choice([0, 0, 1, 1, 2, 3])):
            content = damage(rng, content)
        options, sizes = draw_options(rng, content), rng.choice(SIZES)
        pure = play_index(content, seed, sizes, options, False, monkeypatch)
        taken = play_index(content, seed, sizes, options, True, monkeypatch)
        assert taken == pure, (seed, sizes, options)


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
    [("missing", "not compiled"), ("broken", "no: undefined symbol"), ("other", "another version (2, not 1)")],
)
def test_without_a_usable_core_python_reads(fault, said, monkeypatch):
    """A core that is not there, cannot be loaded or is of another version is left alone, and the reason is told."""

    class Other:
        PROTOCOL = 2

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
