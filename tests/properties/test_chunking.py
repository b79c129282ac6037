"""Whatever an archive holds and however its bytes come, the scanner, the walk, the reader and the index say one thing.

Archives are put together at random from every kind of header that we know of, joined, odd ones among them, then
damaged or not. Each is fed whole, byte by byte around every border of blocks, and in random chunks.
"""

import gzip
import io
import random
import warnings

import pytest

from webdataset.core.error_handlers import reraise_exception
from webdataset.index.build import IndexBuilder
from webdataset.samples.sample_reader import Reading, read_samples
from webdataset.tar.header import Limits
from webdataset.tar.scanner import TarScanner
from webdataset.tar.walker import TarWalker
from webdataset.testing import archives, damage

TRIALS = 600
NAMES = [
    b"a.txt", b"a.cls", b"b.txt", b"b.x.png", b"folder/c.txt", b"none", b"__meta__/d.txt", b"d.txt\0rest",
    b"e" * 99 + b"t", b"f.txt\0" + b"g" * 94, b"\xff\xfe.txt", b".hidden", b"h.txt/", b"", b"b.__key__",
]  # fmt: skip
SPELLINGS = [
    lambda total: b"%06o\0 " % total,
    lambda total: b"%07o\0" % total,
    lambda total: b"%8o" % total,
    lambda total: b"+%06o\0" % total,
    lambda total: b"0o%05o\0" % total,
    lambda total: b"%03o_%03o\0" % (total >> 9, total & 0o777),
    lambda total: b"\t%06o\0" % total,
    lambda total: b"%06o\0 " % (total + 1),
    lambda total: b"        ",
    lambda total: b"\0" * 8,
    lambda total: b"\xff" * 8,
    lambda total: b"none of\0",
]  # fmt: skip
SIZES = [b"%011o\0", b"%012o", b"%11o ", b"+%010o\0", b"0o%09o\0", b"-%010o\0", b"%010o8\0", b"%09o_1\0", b" %010o\0"]


def payload(rng):
    """Return some bytes: often few, sometimes a block or two, and now and then more than is read at once."""
    size = rng.choice([0, 0, 1, 5, 511, 512, 513, 1024, rng.randrange(3000), rng.randrange(3000)])
    return rng.randbytes(rng.choice([140_000, 300_000]) if rng.random() < 0.02 else size)


def spelled(rng, block):
    """Return a header with its checksum, or its size, written in another way."""
    block = bytearray(block)
    if rng.random() < 0.5:
        block[124:136] = (rng.choice(SIZES) % 0)[:12].ljust(12, b"\0")
        return archives.with_checksum(bytes(block))
    block[148:156] = b" " * 8
    block[148:156] = rng.choice(SPELLINGS)(sum(block))[:8].ljust(8, b"\0")
    return bytes(block)


def regular(rng, name):
    """Return a member as usual programs write it."""
    kind = rng.choice([b"0"] * 12 + [b"\0", b"7"])
    magic = rng.choice([archives.USTAR] * 6 + [archives.GNU, archives.V7])
    return archives.member(name, payload(rng), kind=kind, magic=magic)


def records(rng):
    """Return an extended header: of times alone, or of names and sizes, well formed or not."""
    times = [(b"mtime", b"%d.5" % rng.randrange(10))]
    pairs = rng.choice([
        times, times, times, times, [(b"path", b"p.txt")], [(b"path", b"p.cls")], [*times, (b"atime", b"1.5")],
        [(b"comment", b"x" * 600)], [(b"linkpath", b"a.txt")], [(b"comment", b"size=3")], [(b"hdrcharset", b"BINARY")],
        [(b"path", b"")],
    ])  # fmt: skip
    if rng.random() < 0.05:
        pairs = rng.choice([[(b"size", b"x")], [(b"size", b"5")], [(b"GNU.sparse.major", b"1")]])
    if rng.random() < 0.05:
        body = rng.choice(
            [b"9 mtime 1\n", b"10 mtime=1\n", b"9 mtime=1\n\0\0", b"9 mtime=1 ", b"\0" * 9, b" 9 time=1\n"]
        )
        return archives.member(b"PaxHeaders/0", body, kind=b"x")
    return archives.pax_header(pairs, everywhere=rng.random() < 0.07)


def sparse(rng, name):
    """Return a sparse member in one of four forms, sometimes with a map that is wrong."""
    content = rng.randbytes(rng.choice([0, 600, 20_000, 20_000, 300_000]))
    places = sorted(rng.sample(range(0, len(content), 25), rng.choice([0, 1, 3, 30]))) if len(content) > 1000 else []
    pieces = [(place, rng.choice([1, 24])) for place in places]
    if len(content) > 100_000:
        pieces = [(512, 290_000)]
    version = rng.choice(["old", "0.0", "0.1", "1.0"])
    if version == "old":
        made = archives.old_gnu_sparse(name[:99], bytes(content), pieces)
    else:
        made = archives.pax_sparse(name[:99], bytes(content), pieces, version=version)
    return (
        made.replace(b"0\n", b"1\n", 1).replace(b"\x0000000000001\0", b"\x0000000000002\0")
        if rng.random() < 0.2
        else made
    )


def part(rng, oddness):
    """Return one thing that may stand in an archive; the less odd, the more likely a plain member."""
    name = rng.choice(NAMES)
    kind = rng.random() * oddness + 0.44 * (1 - oddness)
    if kind < 0.45:
        return regular(rng, name)
    if kind < 0.6:
        return records(rng)
    if kind < 0.66:
        return records(rng) + regular(rng, name)
    if kind < 0.7:
        return archives.long_name(name + b"l" * 120, payload(rng), linkname=rng.choice([b"", b"k" * 120]))
    if kind < 0.74:
        return archives.prefixed(rng.choice([b"folder/", b"a/b/"]) + (name.strip(b"/\0") or b"x"), payload(rng))
    if kind < 0.79:
        return sparse(rng, name)
    if kind < 0.85:
        return archives.header(
            name, rng.choice([0, 5]), kind=rng.choice([b"1", b"2", b"3", b"5", b"6"]), linkname=b"a.txt"
        )
    if kind < 0.87:
        return archives.member(name, payload(rng), kind=rng.choice([b"D", b"Z", b"Z", b"M"]))
    if kind < 0.91:
        return bytes(512 * rng.choice([1, 2, 2, 2, 3, 18, 20]))
    if kind < 0.95:
        return spelled(rng, archives.header(name, 0)) + regular(rng, name)
    return archives.with_checksum(archives.header(b"\xe4.txt", 3), signed=True) + archives.padded(b"abc")


def archive(seed):
    """Return an archive of the zoo that a seed names."""
    rng = random.Random(seed)
    made = b""
    for _ in range(rng.choice([1, 1, 2, 3])):
        oddness = rng.choice([0.3, 0.6, 0.9, 1.0])
        parts = [part(rng, oddness) for _ in range(rng.randrange(1, 14))]
        if rng.random() < 0.4:
            # one writer: a header of times before every member
            parts = [archives.pax_header([(b"mtime", b"1.5")]) + regular(rng, rng.choice(NAMES)) for _ in parts]
        made += archives.archive(*parts, end=bytes(512 * rng.choice([0, 1, 2, 2, 2, 3, 20])))
    if rng.random() < 0.3:
        with_damage = rng.choice(["zero_block", "insert_zeros", "insert_noise", "delete_block", "cut", "flip"])
        if with_damage == "cut":
            made = made[: rng.randrange(len(made) + 1)]
        elif with_damage == "flip":
            made = damage.flip_any_bit(made, seed).data
        elif made.strip(b"\0"):
            made = getattr(damage, with_damage)(made, seed).data
    return made


def cuttings(rng, length):
    """Yield lists of places to cut at: none, every byte near the borders of blocks, and random ones."""
    near = {border + step for border in range(0, min(length, 60_000), 512) for step in (-2, -1, 0, 1, 2)}
    yield []
    yield sorted(place for place in near if 0 < place < length)
    yield list(range(512, length, 512))
    for count in (1, 2, 9):
        yield sorted(rng.randrange(length + 1) for _ in range(count))


def pieces(data, places):
    """Return the data, cut."""
    borders = [0, *places, len(data)]
    return [data[start:stop] for start, stop in zip(borders, borders[1:], strict=False)]


def rules(rng):
    """Return a rule that names members, or fails at some, and limits."""
    admit = rng.choice([None, None, None, lambda name: name.upper(), lambda name: None if name[:1] == "a" else name, 0])
    if admit == 0:

        def admit(name):
            return name if name[:1] != "b" else {}[name]

    limits = rng.choice([Limits()] * 6 + [Limits(chain=1), Limits(record_bytes=300), Limits(name_bytes=5, chain=0)])
    return admit, limits


def told(error):
    """Return all that an error says."""
    return type(error), str(error), getattr(error, "offset", None), getattr(error, "field", None)


def scanned(data, places, rules):
    """Return all that the scanner says of an archive."""
    scanner, members, payloadless = TarScanner(*rules), [], []
    for piece in pieces(data, places):
        given = scanner.feed(piece)
        payloadless += [entry._replace(place=entry.place + len(members)) for entry in scanner.payloadless]
        members += given
    ended = scanner.finish()
    return (
        members,
        told(scanner.error),
        getattr(scanner, "struck", None),
        scanner.pending_name,
        ended,
        scanner.doubt,
        scanner.global_override,
        scanner.offset,
        payloadless,
    )


def walked(rng, data, places, rules):
    """Return all that the walk says of an archive: fed as it comes, or only what it asks for and a little more."""
    walk, found, payloadless, offset = TarWalker(*rules), [], [], 0

    def take(chunk, offset):
        given = walk.walk(chunk, offset)
        payloadless.extend(entry._replace(place=entry.place + len(found)) for entry in walk.payloadless)
        found.extend(given)

    if places is None:
        while walk.error is None:
            offset, least = walk.wants
            chunk = data[offset : offset + least + rng.choice([0, 0, 1, 511, 512, 5000])]
            take(chunk, offset)
            if len(chunk) < least:
                break
    else:
        for piece in pieces(data, places):
            take(piece, offset)
            offset += len(piece)
    ended = walk.end_at(len(data))
    whole = [place for place in found if walk.whole(place, len(data))]
    return (
        found,
        told(walk.error),
        getattr(walk, "struck", None),
        ended,
        walk.doubt,
        walk.global_override,
        walk.joins,
        walk.end,
        whole,
        payloadless,
    )


@pytest.mark.parametrize("hundred", range(TRIALS // 100))
def test_scanner_and_walk_know_no_chunks(hundred):
    """Members, errors, offsets, doubts, seams and the end are those of the archive fed whole; both have one verdict."""
    for seed in range(hundred * 100, hundred * 100 + 100):
        data = archive(seed)
        rng = random.Random(-seed - 1)
        chosen = rules(rng)
        whole, places = scanned(data, [], chosen), walked(rng, data, [], chosen)
        for cuts in cuttings(rng, len(data)):
            assert scanned(data, cuts, chosen) == whole, (seed, cuts[:20])
            assert walked(rng, data, cuts, chosen) == places, (seed, cuts[:20])
        assert walked(rng, data, None, chosen) == places, seed
        members, error, struck, _, ended, doubt, override, _, payloadless = whole
        if "sparse member" in error[1]:  # a map that is wrong shows in the payload alone
            assert [place.offset for place in places[0]][: len(members)] == [offset for _, _, offset in members], seed
            continue
        assert (error, struck, ended, doubt, override, payloadless) == (*places[1:6], places[9]), seed
        assert [(name, offset, len(content)) for name, content, offset in members] == [
            (place.name, place.offset, place.size) for place in places[8]
        ], seed


class Trickle(io.BytesIO):
    """A stream that gives as many bytes at a time as it likes."""

    def __init__(self, data, rng):
        super().__init__(data)
        self.rng = rng
        self.length = len(data)

    def seekable(self):
        """Read front to back."""
        return False

    def read(self, size=-1):
        """Give some."""
        return super().read(self.rng.randrange(1, size + 1) if self.rng else size)


def read(data, rng):
    """Return all that reading a shard gives: samples, where they stand, errors and warnings."""
    samples, errors = [], []

    def note(error):
        errors.append(told(error) + (getattr(error, "key", None), getattr(error, "__notes__", None)))
        return True

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        shard = {"url": "x.tar", "stream": Trickle(data, rng)}
        for sample in read_samples([shard], Reading(handler=note, addresses=True)):
            samples.append(sample)
    return samples, errors, [str(warning.message) for warning in caught]


@pytest.mark.parametrize("hundred", range(TRIALS // 100))
def test_readers_know_no_chunks(hundred):
    """Samples, their addresses, errors with the sample they interrupt, and warnings: whatever comes at a time."""
    for seed in range(hundred * 100, hundred * 100 + 100):
        data = archive(seed)
        whole = read(data, None)
        for turn in range(3):
            assert read(data, random.Random(turn)) == whole, seed
        packed = gzip.compress(data, 1)
        assert read(packed, random.Random(seed)) == read(packed, None), seed
        if not whole[1]:
            assert read(packed, None)[0] == whole[0], seed


def indexed(data, places):
    """Return the index of an archive that comes in pieces, or what is wrong with it."""
    builder, offset = IndexBuilder("x.tar", Reading(handler=reraise_exception, missing_end="ignore")), 0
    try:
        for piece in pieces(data, places):
            builder.feed(piece, offset)
            offset += len(piece)
        return builder.finish(len(data), stored=len(data))
    except Exception as error:  # whatever it is
        return told(error)


def test_indexes_know_no_chunks():
    """The index of an archive, its seams included, or the error, are those of the archive fed whole."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for seed in range(TRIALS // 2):
            data = archive(seed)
            whole = indexed(data, [])
            for cuts in cuttings(random.Random(seed), len(data)):
                assert indexed(data, cuts) == whole, (seed, cuts[:20])
