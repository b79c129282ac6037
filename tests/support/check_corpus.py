"""A corpus of wrong shards, made from a seed, with what is wrong in each: the ground truth for ``check_shards``.

Archives are put together block by block with ``webdataset.testing.archives``, never with the reader or the writers of
this library. ``variants(seed)`` gives every kind of damage once; other seeds give other samples, places and styles.
Fields and lists of shards are in ``check_corpus_fields``.
"""

import bz2
import gzip
import io
import lzma
import random
import zipfile
from collections.abc import Callable, Iterator
from typing import NamedTuple

from support import check_payloads
from webdataset.core.seeds import make_rng
from webdataset.testing import archives
from webdataset.testing.archives import BLOCK, END, member, pax_header, pax_member

Fields = dict[str, bytes]


class Truth(NamedTuple):
    """A finding that a check must make.

    Args:
        code: of the finding.
        offset: where, or None where that does not matter.
        key: the sample's key, or None likewise.
    """

    code: str
    offset: int | None = None
    key: str | None = None


class Variant(NamedTuple):
    """One wrong shard, or list of shards.

    Args:
        name: of the kind of damage, and the style of the archive.
        files: (file name, bytes); those that end in ``.tar`` or a compression are the shards.
        truths: findings that must be made.
        also: further codes that may be found, since they follow from the damage.
        whole: samples that a repaired copy must hold, key to fields; None where nothing is repaired.
        unread: whether some bytes cannot be read.
    """

    name: str
    files: list[tuple[str, bytes]]
    truths: list[Truth]
    also: frozenset[str] = frozenset()
    whole: dict[str, Fields] | None = None
    unread: bool = False


class Base:
    """An undamaged shard in parts: its members with their offsets.

    Args:
        rng: decides samples and style.
    """

    STYLES = ("ustar", "gnu", "v7", "pax-times", "prefixed")

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.style = rng.choice(self.STYLES)
        count = rng.randint(6, 11)
        extensions = rng.choice(
            (("jpg", "json", "txt"), ("png", "cls"), ("npy", "json", "cls"), ("bin", "txt", "msgpack"))
        )
        self.samples = {
            f"{'train/' if rng.random() < 0.3 else ''}{index:06d}": {
                extension: check_payloads.good(extension, rng) for extension in extensions
            }
            for index in range(count)
        }
        self.members = [
            (key, field, self.pack(f"{key}.{field}", payload))
            for key, fields in self.samples.items()
            for field, payload in fields.items()
        ]

    def pack(self, name: str, payload: bytes) -> bytes:
        """Return a member in the style of this shard."""
        raw = name.encode()
        if self.style == "gnu":
            return member(raw, payload, magic=archives.GNU)
        if self.style == "v7":
            return member(raw, payload, magic=archives.V7)
        if self.style == "pax-times":
            return pax_header([(b"mtime", b"1700000000.5")]) + member(raw, payload)
        if self.style == "prefixed" and b"/" in raw:
            return archives.prefixed(raw, payload)
        return member(raw, payload)

    def blocks(self) -> list[bytes]:
        """The members' bytes, in order."""
        return [packed for _, _, packed in self.members]

    def offset(self, index: int) -> int:
        """Where a member starts."""
        return sum(map(len, self.blocks()[:index]))

    def header_offset(self, index: int) -> int:
        """Where a member's own header starts, after its extended header."""
        return self.offset(index) + (2 * BLOCK if self.style == "pax-times" else 0)

    def archive(self, blocks: list[bytes] | None = None, end: bytes = END) -> bytes:
        """All members and the end mark."""
        return b"".join(self.blocks() if blocks is None else blocks) + end

    def without(self, *keys: str) -> dict[str, Fields]:
        """The samples but for some."""
        return {key: fields for key, fields in self.samples.items() if key not in keys}

    def inner(self) -> int:
        """The index of a member that is neither the first nor the last."""
        return self.rng.randrange(1, len(self.members) - 1)


Operator = Callable[[Base], Variant]
_OPERATORS: dict[str, Operator] = {}


def operator(make: Operator) -> Operator:
    """Register a kind of damage under its function's name."""
    _OPERATORS[make.__name__.strip("_")] = make
    return make


def one(
    base: Base,
    content: bytes,
    *truths: Truth,
    suffix: str = ".tar",
    also: str = "",
    whole: dict[str, Fields] | None = None,
    unread: bool = False,
) -> Variant:
    """Return a variant of one shard."""
    return Variant(base.style, [(f"a{suffix}", content)], list(truths), frozenset(also.split()), whole, unread)


def names() -> list[str]:
    """All kinds of damage."""
    return list(_OPERATORS)


def make(name: str, seed: int) -> Variant:
    """Make one variant.

    Args:
        name: of the kind of damage.
        seed: of everything else.
    """
    found = _OPERATORS[name](Base(make_rng("check corpus", name, seed)))
    return found._replace(name=f"{name} {found.name} {seed}")


def variants(seed: int) -> Iterator[Variant]:
    """Make every kind once."""
    return (make(name, seed) for name in names())


# ends


@operator
def _no_end_mark(base: Base) -> Variant:
    last = base.members[-1][0]
    end = len(base.archive(end=b""))
    return one(
        base,
        base.archive(end=b""),
        Truth("no-end-mark", end),
        Truth("interrupted-sample", key=last),
        whole=base.samples,
    )


@operator
def _short_end_mark(base: Base) -> Variant:
    return one(
        base, base.archive(end=bytes(BLOCK)), Truth("short-end-mark", len(base.archive(end=b""))), whole=base.samples
    )


@operator
def _cut_in_payload(base: Base) -> Variant:
    index = base.inner()
    start = base.header_offset(index) + BLOCK
    key, field, _ = base.members[index]
    stop = start + base.rng.randrange(len(base.samples[key][field]))
    before = list(base.samples)[: list(base.samples).index(key)]
    return one(
        base,
        base.archive()[:stop],
        Truth("cut", stop),
        also="interrupted-sample ragged-sample misleading-name",
        whole={k: base.samples[k] for k in before},
        unread=True,
    )


@operator
def _cut_in_header(base: Base) -> Variant:
    index = base.inner()
    stop = base.header_offset(index) + base.rng.randrange(1, BLOCK)
    before = list(base.samples)[: list(base.samples).index(base.members[index][0])]
    return one(
        base,
        base.archive()[:stop],
        Truth("cut", stop),
        also="interrupted-sample ragged-sample",
        whole={k: base.samples[k] for k in before},
        unread=True,
    )


@operator
def _cut_between(base: Base) -> Variant:
    index = base.inner()
    stop = base.offset(index)
    before = list(base.samples)[: list(base.samples).index(base.members[index][0])]
    return one(
        base,
        base.archive()[:stop],
        Truth("no-end-mark", stop),
        Truth("interrupted-sample", key=base.members[index - 1][0]),
        also="ragged-sample",
        whole={k: base.samples[k] for k in before},
    )


@operator
def _garbage_after_end(base: Base) -> Variant:
    noise = base.rng.randbytes(base.rng.choice((100, BLOCK, 5000)))
    return one(base, base.archive() + noise, Truth("trailing-garbage"), whole=base.samples)


@operator
def _joined(base: Base) -> Variant:
    other = base.pack("zz/1.txt", b"more")
    content = base.archive() + other + END
    return one(base, content, Truth("joined-archives", len(base.archive())), also="ragged-sample", whole=base.samples)


@operator
def _lone_zero_block(base: Base) -> Variant:
    index = base.inner()
    blocks = base.blocks()
    blocks.insert(index, bytes(BLOCK))
    return one(base, base.archive(blocks), Truth("lone-zero-block", base.offset(index)), whole=base.samples)


@operator
def _only_end_mark(base: Base) -> Variant:
    return one(base, END, Truth("empty-shard"))


@operator
def _nothing(base: Base) -> Variant:
    return one(base, b"", Truth("empty-file"))


# headers


def _struck(base: Base, index: int) -> str:
    """The codes that may follow where a member is lost, and the samples that are not touched."""
    return "interrupted-sample ragged-sample split-sample repeated-key"


def _neighbours(base: Base, index: int) -> set[str]:
    """Keys of the samples beside a member, its own included."""
    return {base.members[at][0] for at in range(max(0, index - 1), min(len(base.members), index + 2))}


@operator
def _flipped_header(base: Base) -> Variant:
    index = base.inner()
    at = base.header_offset(index) + base.rng.choice((3, 5, 105, 124, 130, 149, 156, 200))
    content = bytearray(base.archive())
    content[at] ^= 0x41
    whole = base.without(*_neighbours(base, index))
    return one(
        base,
        bytes(content),
        Truth("bad-header", base.header_offset(index)),
        also=_struck(base, index),
        whole=whole,
        unread=True,
    )


@operator
def _zeroed_header(base: Base) -> Variant:
    index = base.inner()
    start = base.offset(index)
    content = bytearray(base.archive())
    content[start : start + BLOCK] = bytes(BLOCK)
    whole = base.without(*_neighbours(base, index))
    return one(
        base,
        bytes(content),
        Truth("lone-zero-block", start),
        also=_struck(base, index) + " name-conflict",
        whole=whole,
        unread=base.style != "pax-times",
    )


@operator
def _noise_inserted(base: Base) -> Variant:
    index = base.inner()
    blocks = base.blocks()
    blocks.insert(index, base.rng.randbytes(base.rng.choice((BLOCK, 700, 3 * BLOCK))))
    whole = base.without(*_neighbours(base, index))
    codes = "wrong-file"
    return one(
        base,
        base.archive(blocks),
        Truth("bad-header", base.offset(index)),
        also=f"{codes} {_struck(base, index)}",
        whole=whole,
        unread=True,
    )


@operator
def _block_deleted(base: Base) -> Variant:
    wide = [at for at, (key, field, _) in enumerate(base.members[:-1]) if len(base.samples[key][field]) > BLOCK]
    if not wide:
        base.samples["w"] = {"bin": base.rng.randbytes(3000)}
        base.members.insert(1, ("w", "bin", base.pack("w.bin", base.samples["w"]["bin"])))
        wide = [1]
    index = base.rng.choice(wide)
    start = base.header_offset(index) + BLOCK
    content = base.archive()
    content = content[:start] + content[start + BLOCK :]
    whole = base.without(*_neighbours(base, index), *(key for key, _, _ in base.members[index + 2 : index + 3]))
    return one(
        base,
        content,
        Truth("bad-header"),
        also=f"bad-extension cut bad-image bad-array bad-json bad-text bad-structure {_struck(base, index)}",
        whole=whole,
        unread=True,
    )


@operator
def _no_tar(base: Base) -> Variant:
    return one(base, base.rng.randbytes(20_000), Truth("wrong-file"), Truth("bad-header", 0), unread=True)


@operator
def _zip(base: Base) -> Variant:
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as archive:
        archive.writestr("a.txt", "text")
    return one(base, made.getvalue(), Truth("wrong-file", 0), unread=True)


@operator
def _html(base: Base) -> Variant:
    return one(base, b"<!DOCTYPE html><html><body>Sign in</body></html>" * 40, Truth("wrong-file", 0), unread=True)


@operator
def _parquet(base: Base) -> Variant:
    return one(base, b"PAR1" + base.rng.randbytes(4000) + b"PAR1", Truth("wrong-file", 0), unread=True)


# compression


@operator
def _gzip_cut(base: Base) -> Variant:
    whole = gzip.compress(base.archive())
    return one(
        base,
        whole[: len(whole) * 2 // 3],
        Truth("bad-compression"),
        suffix=".tar.gz",
        also="interrupted-sample ragged-sample empty-shard",
        whole={},
        unread=True,
    )


@operator
def _gzip_bit(base: Base) -> Variant:
    whole = bytearray(gzip.compress(base.archive()))
    whole[len(whole) - 6] ^= 1
    return one(
        base,
        bytes(whole),
        Truth("bad-compression"),
        suffix=".tar.gz",
        also="interrupted-sample ragged-sample",
        whole={},
        unread=True,
    )


@operator
def _gzip_trailing(base: Base) -> Variant:
    return one(
        base,
        gzip.compress(base.archive()) + b"trailing bytes",
        Truth("trailing-garbage"),
        suffix=".tar.gz",
        whole=base.samples,
    )


@operator
def _xz_cut(base: Base) -> Variant:
    return one(
        base,
        lzma.compress(base.archive())[:-20],
        Truth("bad-compression"),
        suffix=".tar.xz",
        also="interrupted-sample ragged-sample",
        whole={},
        unread=True,
    )


@operator
def _compressed_under_tar(base: Base) -> Variant:
    return one(base, bz2.compress(base.archive()), Truth("misleading-name"), whole=base.samples)


@operator
def _tar_under_gz(base: Base) -> Variant:
    return one(base, base.archive(), Truth("misleading-name"), suffix=".tar.gz", whole=base.samples)


# the PAX family


def _with(base: Base, *parts: bytes, **what: bytes) -> tuple[bytes, int, str]:
    """The shard with further members in its middle, where they start, and the key of the sample after them."""
    first = next(at for at, row in enumerate(base.members) if at and row[0] != base.members[at - 1][0])
    blocks = base.blocks()
    return base.archive([*blocks[:first], *parts, *blocks[first:]]), base.offset(first), base.members[first][0]


_AFTER = "ragged-sample bad-text bad-header interrupted-sample no-extension bad-json split-sample repeated-key"


@operator
def _pax_size_over_header(base: Base) -> Variant:
    payload = base.rng.randbytes(700)
    content, at, _ = _with(base, archives.sized_by_pax(b"conflict.bin", payload, claimed=100))
    return one(base, content, Truth("size-conflict", at, "conflict"), also=_AFTER)


@operator
def _pax_size_under_header(base: Base) -> Variant:
    content, at, _ = _with(base, pax_header([(b"size", b"512")]) + member(b"conflict.bin", b"x" * 1500))
    return one(base, content, Truth("size-conflict", at, "conflict"), also=_AFTER, unread=True)


@operator
def _pax_size_zero_in_header(base: Base) -> Variant:
    content, at, _ = _with(base, archives.sized_by_pax(b"conflict.bin", b"y" * 900, claimed=0))
    return one(base, content, Truth("size-conflict", at, "conflict"), also=_AFTER)


@operator
def _pax_path_conflict(base: Base) -> Variant:
    content, at, _ = _with(base, pax_member(b"right.bin", b"12", stored_name=b"other.bin"))
    return one(base, content, Truth("name-conflict", at, "right"), also=_AFTER)


@operator
def _gnu_name_conflict(base: Base) -> Variant:
    parts = member(b"././@LongLink", b"right.bin\0", kind=b"L", magic=archives.GNU) + member(
        b"other.bin", b"1", magic=archives.GNU
    )
    content, at, _ = _with(base, parts)
    return one(base, content, Truth("name-conflict", at, "right"), also=_AFTER)


@operator
def _pax_and_gnu_names(base: Base) -> Variant:
    gnu = member(b"././@LongLink", b"gnu.bin\0", kind=b"L", magic=archives.GNU)
    pax = pax_header([(b"path", b"pax.bin")])
    first, second = (gnu, pax) if base.rng.random() < 0.5 else (pax, gnu)
    content, at, _ = _with(base, first + second + member(b"pax.bin", b"1"))
    return one(base, content, Truth("name-conflict", at, "pax"), also=_AFTER)


@operator
def _global_path(base: Base) -> Variant:
    content, at, _ = _with(base, pax_header([(b"path", b"all.bin")], everywhere=True))
    return one(base, content, Truth("global-override", at), also=_AFTER + " duplicate-field wrong-content")


@operator
def _global_size(base: Base) -> Variant:
    content, at, _ = _with(base, pax_header([(b"size", b"512")], everywhere=True))
    return one(
        base,
        content,
        Truth("global-override", at),
        also=_AFTER + " size-conflict bad-image bad-array bad-structure bad-number trailing-garbage lone-zero-block "
        "duplicate-field cut bad-extension",
        unread=True,
    )


@operator
def _global_link(base: Base) -> Variant:
    content, at, _ = _with(base, pax_header([(b"linkpath", b"else.bin")], everywhere=True))
    return one(base, content, Truth("global-override", at), also=_AFTER)


@operator
def _malformed_record(base: Base) -> Variant:
    body = base.rng.choice((b"99 path=a\n", b"x path=a\n", b"8 path=a\n", b"11 size=-1\n", b"13 size=1e99\n"))
    content, at, _ = _with(base, member(b"PaxHeaders/0", body, kind=b"x") + member(b"c.bin", b"1"))
    return one(base, content, Truth("bad-extension", at), also=_AFTER, whole={}, unread=True)


@operator
def _zeroed_records(base: Base) -> Variant:
    content, at, _ = _with(base, member(b"PaxHeaders/0", bytes(30), kind=b"x") + member(b"c.bin", b"1"))
    return one(base, content, Truth("bad-extension", at), also=_AFTER, unread=True)


@operator
def _empty_long_name(base: Base) -> Variant:
    content, at, _ = _with(
        base, member(b"././@LongLink", b"\0" * 20, kind=b"L", magic=archives.GNU) + member(b"c.bin", b"1")
    )
    return one(base, content, Truth("bad-extension", at), also=_AFTER, unread=True)


@operator
def _endless_chain(base: Base) -> Variant:
    content, at, _ = _with(base, pax_header([(b"path", b"c.bin")]) * 70 + member(b"c.bin", b"1"))
    return one(base, content, Truth("limit", at), also=_AFTER, unread=True)


@operator
def _sparse(base: Base) -> Variant:
    body = bytes(3000) + b"x" * 1000
    kind = base.rng.choice(("old", "0.0", "0.1", "1.0"))
    packed = (
        archives.old_gnu_sparse(b"s.bin", body, [(3000, 1000)])
        if kind == "old"
        else archives.pax_sparse(b"s.bin", body, [(3000, 1000)], version=kind)
    )
    content, at, _ = _with(base, packed)
    return one(
        base, content, Truth("sparse-member", at, "s"), also="ragged-sample", whole=base.samples | {"s": {"bin": body}}
    )
