"""Random archives, whole and damaged, and everything that is seen when one is read with and without the native core.

The differential fuzz of ``fuzz/`` and the property tests play the same cases: a case is one archive, the sizes of the
chunks that it is read in, and the rules of reading. A case follows from its seed alone.
"""

import gzip
import hashlib
import io
import os
import random
import tarfile
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any
from unittest import mock

import webdataset as wds
from webdataset.core.errors import WebDatasetError
from webdataset.samples import grouping
from webdataset.samples.address import Address
from webdataset.samples.sample_reader import Position, Reading, read_samples
from webdataset.storage.local_files import LocalFileStream
from webdataset.tar import scanner
from webdataset.tar.header import BLOCK, Limits

EXTENSIONS = ["jpg", "cls", "json", "seg.png", "JPG", "txt", "x" * 60, "é", "__bad__", "__key__", "__url__", ""]
KEYS = [
    "a", "b", "00", "dir/k", "d.e/k", "_x", "__meta__", "é", "k" * 90, "deep/" * 30 + "k", "deep/" * 50 + "k", ".hid",
    "",
]  # fmt: skip
SMALL = [0, 1, 5, 511, 512, 513, 1200]
# around what is read by itself
LARGE = [4000, 16_383, 16_384, 16_385, 20_000, 66_000, 131_071, 131_072, 140_000, 500_000]
# first and later chunks of a file
FILE_CHUNKS = [(512, 512), (1024, 40 * 1024), (32 * 1024, 384 * 1024)]
# sizes of the pieces that a stream gives; None: as many bytes as it is asked for
SIZES: list[list[int] | None] = [None, None, [1, 7, 100], [511, 512, 513], [700], [5000, 33_000], [1 << 20]]
# rules of a case that are no options of Reading
NOT_READING = ("continues", "start", "rising", "observed")
WRITERS = ["ustar", "gnu", "pax", "pax-mtime", "ours", "ours-pax"]
ODD_SIZES = [
    b"00000000017\0", b"        17 \0", b"17 \0 3     ", b"+0000000017\0", b"0_000000017\0", b"77777777777\0",
    b"777777777777", b"           \0", b"\x80" + bytes(10) + b"\x07", b"\xff" * 12, b"00000000008\0",
    b"1\t\0" + bytes(9),
]  # fmt: skip


@dataclass(frozen=True)
class Case:
    """One archive and how it is read.

    Args:
        seed: from which the case and the pieces of its stream follow.
        content: the archive.
        sizes: of the pieces that its stream gives.
        rules: of reading, and ``continues`` (what the handler answers), ``start`` (an address), ``rising`` (whether
            keys rose up to there) and ``observed``.
        chunks: the archive is a local file, which is read in chunks of these sizes: the first one, and the others.
    """

    seed: str
    content: bytes
    sizes: list[int] | None
    rules: dict[str, Any]
    chunks: tuple[int, int] | None = None


class Chunks:
    """A stream that gives as many bytes as it likes.

    Args:
        content: the archive.
        rng: chooses the size of each piece.
        sizes: to choose from, or None.
    """

    def __init__(self, content: bytes, rng: random.Random, sizes: list[int] | None) -> None:
        self.file, self.rng, self.sizes = io.BytesIO(content), rng, sizes

    def read(self, count: int = -1) -> bytes:
        """Return some bytes."""
        return self.file.read(count if self.sizes is None else self.rng.choice(self.sizes))

    def close(self) -> None:
        """Nothing is left open."""


class Observer:
    """Notes the bytes that a reader says it has read, and where they stood."""

    def __init__(self, url: str, rules: object) -> None:
        self.seen: list[Any] = []
        self.digest = hashlib.blake2b(digest_size=8)
        self.stop = 0

    def feed(self, piece: bytes, offset: int) -> None:
        """Take the next bytes; bytes between two pieces were stepped over."""
        if offset != self.stop:
            self.seen.append((self.stop, offset))
        self.digest.update(piece)
        self.stop = offset + len(piece)

    def finish(self, length: int | None, compression: str | None) -> None:
        """Note that the end was reached."""
        self.seen.append(("finished", length, compression))

    def report(self) -> tuple[Any, ...]:
        """Return what was seen."""
        return (*self.seen, self.stop, self.digest.hexdigest())


def set_sum(block: bytearray) -> bytearray:
    """Return a header with its checksum put right."""
    block[148:156] = b" " * 8
    block[148:156] = b"%06o\0 " % sum(block)
    return block


def write_members(rng: random.Random, most: int = 30, large: float = 0.03) -> list[tuple[str, bytes]]:
    """Return names and payloads: samples of a few fields, sometimes one twice, or of a key that came before.

    Args:
        rng: chooses.
        most: samples.
        large: share of members that are larger than a chunk, or than what is copied.
    """
    members, extensions = [], rng.sample(EXTENSIONS[:6], 3)
    for number in range(rng.randint(0, most)):
        key = rng.choice(KEYS) if rng.random() < 0.2 else f"{rng.choice(['', 'd/', 'dir/sub/'])}{number:05d}"
        for extension in rng.sample(extensions, rng.randint(1, 3)):
            name = rng.choice(EXTENSIONS) if rng.random() < 0.05 else extension
            size = rng.choice(LARGE if rng.random() < large else SMALL)
            members.append((f"{key}.{name}" if rng.random() < 0.97 else key or "x", rng.randbytes(size)))
    if members and rng.random() < 0.1:
        members.append(rng.choice(members))
    return members


def write_archive(rng: random.Random, most: int = 30, large: float = 0.03) -> bytes:
    """Return an archive of one of several writers.

    Args:
        rng: chooses.
        most: samples.
        large: share of large members.
    """
    members = write_members(rng, most, large)
    out = io.BytesIO()
    kind = rng.choice(WRITERS)
    if kind.startswith("ours"):
        with wds.TarWriter(
            out, format="pax" if kind == "ours-pax" else "ustar", mtime=1.5 if "pax" in kind else 0
        ) as sink:
            for number, (_, payload) in enumerate(members):
                sink.write({"__key__": f"{number:04d}", "bin": payload, "cls": number})
        return out.getvalue()
    form = {"ustar": tarfile.USTAR_FORMAT, "gnu": tarfile.GNU_FORMAT}.get(kind, tarfile.PAX_FORMAT)
    with tarfile.open(fileobj=out, mode="w", format=form) as file:
        for name, content in members:
            payload, member = content, tarfile.TarInfo(name)
            member.size = len(payload)
            if kind == "pax-mtime":
                member.mtime = rng.random() * 1e9
            if rng.random() < 0.02:
                member.type = rng.choice([tarfile.DIRTYPE, tarfile.SYMTYPE, tarfile.LNKTYPE, b"Z"])
                member.linkname = "00.jpg"
                if member.type != b"Z":
                    member.size, payload = 0, b""
            if kind == "pax" and rng.random() < 0.2:
                member.pax_headers = rng.choice([{"comment": "x"}, {"comment": "a=path=b"}, {"a": "1", "b": "2"}])
            try:
                file.addfile(member, io.BytesIO(payload))
            except ValueError:  # a name that the format cannot hold
                continue
    return out.getvalue()


def list_headers(content: bytes | bytearray) -> list[int]:
    """Return offsets at which a header may stand."""
    return [at for at in range(0, len(content) - BLOCK + 1, BLOCK) if content[at + 257 : at + 262] == b"ustar"] or [0]


def damage(rng: random.Random, archive: bytes) -> bytes:
    """Return the archive after one of many kinds of damage.

    Args:
        rng: chooses.
        archive: is not changed.
    """
    content = bytearray(archive)
    at = rng.choice(list_headers(content))
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
        forge_header(rng, content, at, kind)
    elif kind == 7:
        content[at:at] = bytes(BLOCK) * rng.randint(1, 3)
    elif kind == 8:
        content[at : at + BLOCK] = bytes(len(content[at : at + BLOCK]))
    elif kind == 9:
        content[at:at] = content[at : at + BLOCK]
    elif kind == 10:
        content += write_archive(rng, 3)
    else:
        del content[at : at + BLOCK]
    return bytes(content)


def forge_header(rng: random.Random, content: bytearray, at: int, kind: int) -> None:
    """Change fields of the header at an offset, with a checksum that is right, or right in another form."""
    block = bytearray(content[at : at + BLOCK])
    place, stop = rng.choice([(0, 100), (100, 148), (156, 157), (257, 265), (345, 500)])
    if kind == 4:
        block[124:136] = rng.choice(ODD_SIZES)
    else:
        block[place : place + 1] = rng.choice([b"\0", b"0", b"7", b"x", b"/", b"_", b".", b"5", b"\xff"])
        block[stop - 1 : stop] = rng.choice([b"\0", b"a", b"/"]) if kind == 6 else block[stop - 1 : stop]
    content[at : at + BLOCK] = set_sum(block)
    if rng.random() < 0.3:
        text = b"%06o" % int(bytes(content[at + 148 : at + 154]), 8)
        content[at + 148 : at + 156] = rng.choice(
            [text + b" \0", b"+" + text[1:] + b"\0 ", text[1:] + b" \0 ", b" " + text[1:] + b"\0 "]
        )


def draw_rules(rng: random.Random, content: bytes) -> dict[str, Any]:
    """Return rules of reading for an archive."""
    rules: dict[str, Any] = {
        "duplicates": rng.choice(["error", "error", "first", "last", "new"]),
        "missing_end": rng.choice(["error", "warn", "ignore"]),
        "split_samples": rng.choice(["error", "warn", "ignore"]),
        "continues": rng.random() < 0.7,
        "lcase": rng.random() < 0.8,
        "start": None,
    }
    if rng.random() < 0.1:
        rules["suffixes"] = {"jpg", "cls"}
    if rng.random() < 0.1:
        rules["limits"] = Limits(
            chain=rng.choice([0, 1, 2]), record_bytes=rng.choice([100, 600]), name_bytes=rng.choice([50, 300])
        )
    if rng.random() < 0.2:
        rules["start"], rules["rising"] = rng.choice(list_places(content, rules) or [(None, True)])
    elif rng.random() < 0.1:
        rules["observed"] = True
    return rules


def list_places(content: bytes, rules: dict[str, Any]) -> list[tuple[Address, bool]]:
    """Return where a run may be resumed, as a state says it: addresses of samples, and whether keys rose up to them.

    From other places, such as the middle of a sample, the verdict on parts of samples depends on the chunks.

    Args:
        content: the archive.
        rules: of reading.
    """
    position, places = Position(tracked=True), []
    reading = Reading(**select_rules(rules))
    with warnings.catch_warnings(), suppress(WebDatasetError), mock.patch.dict(os.environ, WDS_NATIVE="0"):
        warnings.simplefilter("ignore")
        for _ in read_samples([{"url": "s.tar", "stream": io.BytesIO(content)}], reading, position):
            places.append((Address(*position.address()[:3]), position.rising))
    return places


def select_rules(rules: dict[str, Any]) -> dict[str, Any]:
    """Return those of a case's rules that are arguments of :class:`Reading`."""
    return {name: rule for name, rule in rules.items() if name not in NOT_READING}


def draw_case(seed: str, whole: bytes | None = None) -> Case:
    """Return a case.

    Args:
        seed: from which it follows, together with the archive.
        whole: the archive to damage; None writes one.
    """
    rng = random.Random(seed)
    content = write_archive(rng) if whole is None else whole
    for _ in range(rng.choice([0, 1, 1, 1, 2, 3])):
        content = damage(rng, content)
    rules, sizes = draw_rules(rng, content), rng.choice(SIZES)
    if rules["start"] is None and rng.random() < 0.05:
        content = gzip.compress(content, 1, mtime=0)
        content = content if rng.random() < 0.5 else content[: rng.randint(0, len(content))]
    return Case(seed, content, sizes, rules, rng.choice(FILE_CHUNKS) if rng.random() < 0.2 else None)


def draw_cases(seed: str, archives: range, damaged: int = 40) -> Iterator[Case]:
    """Yield cases over small archives, each of which is damaged again and again: most of the time goes into reading.

    Args:
        seed: of all cases.
        archives: numbers of the archives.
        damaged: cases for each.
    """
    for number in archives:
        rng = random.Random(f"{seed}.{number}")
        whole = write_archive(rng, rng.choice([2, 4, 8]), 0.002)
        for each in range(damaged):
            yield draw_case(f"{seed}.{number}.{each}", whole)


def describe(error: BaseException) -> tuple[Any, ...]:
    """Return what an error says."""
    return type(error).__name__, str(error), *(getattr(error, name, None) for name in ("url", "key", "field", "offset"))


@cache
def make_folder(process: int) -> "tempfile.TemporaryDirectory[str]":  # noqa: ARG001  a fork has one of its own
    """Return a folder for the files of a process."""
    return tempfile.TemporaryDirectory()


@contextmanager
def open_case(case: Case) -> Iterator[Any]:
    """Give the stream of a case; it is closed by what reads it.

    Args:
        case: one with ``chunks`` is written to a file.
    """
    if case.chunks is None:
        yield Chunks(case.content, random.Random(case.seed), case.sizes)
        return
    path = Path(make_folder(os.getpid()).name, "s.tar")
    path.write_bytes(case.content)
    before = scanner.FIRST_CHUNK, scanner.CHUNK
    scanner.FIRST_CHUNK, scanner.CHUNK = case.chunks
    try:
        yield LocalFileStream(str(path))
    finally:
        scanner.FIRST_CHUNK, scanner.CHUNK = before


def teach_extensions(seed: str) -> None:
    """Let readers know the extensions of earlier shards, or none: a case does not depend on those played before."""
    known = random.Random(f"known {seed}").random() < 0.5
    for lcase, common in grouping.COMMON_FIELDS.items():  # what a process remembers
        common.clear()
        common.update({name: name.lower() if lcase else name for name in EXTENSIONS if known and name.isalpha()})


def play(case: Case, *, native: bool) -> tuple[list[Any], list[str]]:
    """Read an archive in one of the two ways; return all that is seen, and the warnings.

    ``WDS_NATIVE`` is left set.

    Args:
        case: the archive and the rules.
        native: with the core.
    """
    os.environ["WDS_NATIVE"] = "1" if native else "0"
    teach_extensions(case.seed)
    seen: list[Any] = []
    watches: list[Observer] = []

    def handle(error: BaseException) -> bool:
        seen.append(("asked", describe(error)))
        return bool(case.rules["continues"])

    def observe(url: str, rules: object) -> Observer:
        watches.append(Observer(url, rules))
        return watches[-1]

    rules = select_rules(case.rules)
    if case.rules.get("observed"):
        rules["observer"] = observe
    reading = Reading(handler=handle, addresses=True, **rules)
    with warnings.catch_warnings(record=True) as caught, open_case(case) as stream:
        shards = [{"url": "s.tar", "stream": stream, "__mark__": 7, "rising": case.rules.get("rising", True)}]
        warnings.simplefilter("always")
        try:
            for sample in read_samples(shards, reading, start=case.rules["start"]):
                seen.append([(name, value) for name, value in sample.items()])
        except WebDatasetError as error:
            seen.append(("raised", describe(error)))
    seen += [watch.report() for watch in watches]
    return seen, [str(each.message) for each in caught]


def find_difference(case: Case) -> str | None:
    """Return where the two ways differ, in words, or None.

    Args:
        case: is played once in each way.
    """
    python, native = play(case, native=False), play(case, native=True)
    if python == native:
        return None
    for one, other in ((python[0], native[0]), (python[1], native[1])):
        for number in range(max(len(one), len(other))):
            pair = one[number : number + 1], other[number : number + 1]
            if pair[0] != pair[1]:
                return f"Python {str(pair[0])[:300]}\nnative {str(pair[1])[:300]}"
    return "the same entries in another order"
