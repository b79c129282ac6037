"""More of the corpus: names, types of members, samples, fields, and lists of shards."""

import bz2
import gzip
import hashlib
import json
import pickle
import random
import struct
import zlib
from collections.abc import Callable

from support import check_payloads, hostile_pickles
from support.check_corpus import Base, Truth, Variant, _with, one, operator
from webdataset.core.seeds import make_rng
from webdataset.testing import archives
from webdataset.testing.archives import member

# samples


@operator
def _interleaved(base: Base) -> Variant:
    keys = list(base.samples)
    first, second = base.rng.sample(keys, 2)
    if keys.index(first) > keys.index(second):
        first, second = second, first
    (last, payload), *others = [*base.samples[first].items()][::-1]
    moved = base.pack(f"{first}.{last}", payload)
    rows = [(key, packed) for key, field, packed in base.members if (key, field) != (first, last)]
    at = max(index for index, row in enumerate(rows) if row[0] == second) + 1
    blocks = [packed for _, packed in rows]
    blocks.insert(at, moved)
    offset = sum(map(len, blocks[:at]))
    whole = base.samples if others else None
    return one(base, base.archive(blocks), Truth("split-sample", offset, first), also="ragged-sample", whole=whole)


@operator
def _sorted_by_field(base: Base) -> Variant:
    order = sorted(range(len(base.members)), key=lambda at: base.members[at][1])
    blocks = [base.members[at][2] for at in order]
    truths = [Truth("split-sample", key=key) for key in base.samples]
    return one(base, base.archive(blocks), *truths, also="ragged-sample", whole=base.samples)


@operator
def _interleaved_pairs(base: Base) -> Variant:
    keys = list(base.samples)[:2]
    if base.rng.random() < 0.5:
        keys = list(base.samples)[-2:]
    rows = {key: [packed for owner, _, packed in base.members if owner == key] for key in keys}
    mixed = [packed for pair in zip(*rows.values(), strict=True) for packed in pair]
    others = [packed for owner, _, packed in base.members if owner not in keys]
    return one(
        base,
        base.archive([*others, *mixed]),
        Truth("split-sample", key=keys[0]),
        Truth("split-sample", key=keys[1]),
        also="ragged-sample",
        whole=base.samples,
    )


@operator
def _repeated_key(base: Base) -> Variant:
    key = next(iter(base.samples))
    again = b"".join(base.pack(f"{key}.{field}", payload) for field, payload in base.samples[key].items())
    return one(base, base.archive([*base.blocks(), again]), Truth("repeated-key", len(base.archive(end=b"")), key))


@operator
def _duplicate_field(base: Base) -> Variant:
    index = base.inner()
    key, field, _ = base.members[index]
    blocks = base.blocks()
    blocks.insert(index + 1, base.pack(f"{key}.{field}", b"{}"))
    return one(
        base,
        base.archive(blocks),
        Truth("duplicate-field", base.offset(index + 1), key),
        also="bad-image bad-array bad-number bad-structure wrong-content",
    )


@operator
def _duplicate_by_case(base: Base) -> Variant:
    key, field, _ = base.members[0]
    blocks = base.blocks()
    blocks.insert(1, base.pack(f"{key}.{field.upper()}", base.samples[key][field]))
    return one(
        base,
        base.archive(blocks),
        Truth("duplicate-field", base.offset(1), key),
        Truth("upper-case-extension", base.offset(1)),
    )


@operator
def _own_field(base: Base) -> Variant:
    key = base.members[0][0]
    blocks = base.blocks()
    blocks.insert(1, base.pack(f"{key}.__key__", b"other"))
    return one(base, base.archive(blocks), Truth("own-field", base.offset(1), key))


@operator
def _ragged(base: Base) -> Variant:
    key = base.rng.choice(list(base.samples)[1:])
    rows = [row for row in base.members if row[0] == key]
    gone = base.rng.choice(rows)
    blocks = [row[2] for row in base.members if row is not gone]
    return one(base, base.archive(blocks), Truth("ragged-sample", key=key))


# names


def _named(base: Base, name: bytes, code: str, *, pax: bool = False) -> Variant:
    packed = archives.pax_member(name, b"1") if pax else member(name, b"1")
    content, at, _ = _with(base, packed)
    return one(base, content, Truth(code, at), also="ragged-sample")


@operator
def _absolute_name(base: Base) -> Variant:
    return _named(base, base.rng.choice((b"/etc/passwd.bin", b"C:\\x.bin", b"c:/x/y.bin")), "absolute-name")._replace(
        also=frozenset({"ragged-sample", "odd-name"})
    )


@operator
def _parent_name(base: Base) -> Variant:
    return _named(base, base.rng.choice((b"../a.bin", b"a/../../b.bin", b"a/../b.bin")), "parent-name")


@operator
def _name_not_utf8(base: Base) -> Variant:
    return _named(base, base.rng.choice((b"caf\xe9.bin", b"\xff\xfe.bin")), "bad-name", pax=base.rng.random() < 0.5)


@operator
def _odd_name(base: Base) -> Variant:
    odd = base.rng.choice(
        (b"a\nb.bin", b"a\x1b[2Jb.bin", b"a\\b.bin", b" a.bin", b"a.bin ", "a\u202eb.bin".encode(), b"d /a.bin")
    )
    return _named(base, odd, "odd-name", pax=base.rng.random() < 0.5)


@operator
def _no_extension(base: Base) -> Variant:
    return _named(base, base.rng.choice((b"README", b"train/LICENSE", b".hidden")), "no-extension")


@operator
def _upper_case(base: Base) -> Variant:
    return _named(base, base.rng.choice((b"u.BIN", b"u.Tar.bin", b"u.seg.Bin")), "upper-case-extension")


@operator
def _empty_member(base: Base) -> Variant:
    content, at, _ = _with(base, member(b"e.bin"))
    return one(base, content, Truth("empty-member", at, "e"), also="ragged-sample")


# types


def _typed(base: Base, kind: bytes, code: str, link: bytes = b"", **also: str) -> Variant:
    content, at, _ = _with(base, archives.header(b"t.bin", 0, kind=kind, linkname=link))
    return one(base, content, Truth(code, at), also="ragged-sample")


@operator
def _hard_link(base: Base) -> Variant:
    key, field, _ = base.members[0]
    return _typed(base, b"1", "hard-link", f"{key}.{field}".encode())


@operator
def _symbolic_link(base: Base) -> Variant:
    return _typed(base, b"2", "symbolic-link", b"/etc/passwd")


@operator
def _device(base: Base) -> Variant:
    return _typed(base, base.rng.choice((b"3", b"4", b"6")), "special-member")


@operator
def _unknown_type(base: Base) -> Variant:
    content, at, _ = _with(base, member(b"t.bin", b"payload", kind=base.rng.choice((b"Z", b"D", b"V"))))
    return one(base, content, Truth("unknown-type", at), also="ragged-sample")


# fields


def _field(base: Base, extension: str, payload: bytes, code: str, also: str = "") -> Variant:
    content, at, _ = _with(base, base.pack(f"f.{extension}", payload))
    return one(base, content, Truth(code, at, "f"), also=f"ragged-sample {also}")


def _broken(extension: str, code: str, *, spoil: Callable[[bytes, random.Random], bytes] = check_payloads.cut) -> None:
    """Register a field that is cut, or changed in another way."""

    def make(base: Base) -> Variant:
        return _field(base, extension, spoil(check_payloads.good(extension, base.rng), base.rng), code)

    make.__name__ = f"{spoil.__name__}_{extension.replace('.', '_')}"
    operator(make)


for _extension, _code in (
    ("jpg", "bad-image"),
    ("png", "bad-image"),
    ("webp", "bad-image"),
    ("json", "bad-json"),
    ("npy", "bad-array"),
    ("npz", "bad-array"),
    ("safetensors", "bad-array"),
    ("msgpack", "bad-structure"),
    ("cbor", "bad-structure"),
    ("pkl", "bad-pickle"),
    ("flac", "bad-audio"),
    ("wav", "bad-audio"),
    ("mp4", "bad-video"),
    ("json.gz", "bad-compressed-field"),
):
    _broken(_extension, _code)


def _noise(payload: bytes, rng: random.Random) -> bytes:
    return rng.randbytes(len(payload) // 2 + 40)


for _extension, _code in (
    ("jpg", "bad-image"),
    ("png", "bad-image"),
    ("npy", "bad-array"),
    ("wav", "bad-audio"),
    ("mp4", "bad-video"),
):
    _broken(_extension, _code, spoil=_noise)


@operator
def _text_not_utf8(base: Base) -> Variant:
    return _field(base, "txt", b"caf\xe9 " * 3, "bad-text")


@operator
def _class_is_a_name(base: Base) -> Variant:
    return _field(base, "cls", b"cat", "bad-number")


@operator
def _json_of_words(base: Base) -> Variant:
    return _field(base, "json", base.rng.choice((b"{'a': 1}", b"{", b"nul", b'{"a": 1} x', b'["a"')), "bad-json")


@operator
def _json_lines(base: Base) -> Variant:
    return _field(base, "jsonl", b'{"a": 1}\n{"a": \n', "bad-json")


@operator
def _yaml(base: Base) -> Variant:
    return _field(base, "yaml", b"a: [1, 2\nb: }", "bad-structure")


@operator
def _page_for_a_picture(base: Base) -> Variant:
    return _field(base, "jpg", b"<!DOCTYPE html><html>not found</html>", "bad-image")


@operator
def _other_picture(base: Base) -> Variant:
    extension, other = base.rng.choice((("jpg", "png"), ("png", "jpg")))
    return _field(base, extension, check_payloads.good(other, base.rng), "wrong-content")


@operator
def _unsafe_pickle(base: Base) -> Variant:
    made = hostile_pickles.executing("/tmp/webdataset-check-was-here")  # noqa: S108  never created
    return _field(
        base,
        "pkl",
        made[base.rng.choice(["os.system by GLOBAL", "builtins.eval by STACK_GLOBAL", "getattr chain"])],
        "unsafe-pickle",
    )


@operator
def _pickle_of_objects(base: Base) -> Variant:
    return _field(base, "pyd", pickle.dumps(random.Random(1)), "unsafe-pickle")


@operator
def _bomb(base: Base) -> Variant:
    return _field(base, "bin.bz2", bz2.compress(bytes(1 << 20)) * 450, "bad-compressed-field")


@operator
def _huge_picture(base: Base) -> Variant:
    made = check_payloads.good("png", base.rng)
    head = b"IHDR" + struct.pack(">II", 100_000, 100_000) + made[24:29]
    return _field(base, "png", made[:12] + head + struct.pack(">I", zlib.crc32(head)) + made[33:], "too-large")


@operator
def _gz_that_is_none(base: Base) -> Variant:
    return _field(base, "json.gz", b'{"a": 1}', "bad-compressed-field")


# lists of shards


def _other(base: Base) -> Base:
    """Another shard, with the same fields and other keys."""
    made = Base(make_rng("other", base.rng.random().hex()))
    made.samples = {f"other/{key}": dict(fields) for key, fields in base.samples.items()}
    made.members = [
        (key, field, made.pack(f"{key}.{field}", payload))
        for key, fields in made.samples.items()
        for field, payload in fields.items()
    ]
    return made


@operator
def _key_in_two_shards(base: Base) -> Variant:
    other = _other(base)
    key = base.rng.choice(list(base.samples))
    again = b"".join(other.pack(f"{key}.{field}", payload) for field, payload in base.samples[key].items())
    at = len(other.archive(end=b""))
    files = [("a.tar", base.archive()), ("b.tar", other.archive([*other.blocks(), again]))]
    return Variant(base.style, files, [Truth("repeated-key-across", at, key)])


@operator
def _shard_without_field(base: Base) -> Variant:
    other = _other(base)
    gone = base.rng.choice(sorted(next(iter(base.samples.values()))))
    files = [("a.tar", base.archive()), ("b.tar", other.archive([row[2] for row in other.members if row[1] != gone]))]
    return Variant(base.style, files, [Truth("ragged-shard")])


@operator
def _mixed_compression(base: Base) -> Variant:
    files = [("a.tar", base.archive()), ("b.tar.gz", gzip.compress(_other(base).archive()))]
    return Variant(base.style, files, [Truth("mixed-compression")])


@operator
def _wrong_digest(base: Base) -> Variant:
    content = base.archive()
    recorded = {"filesize": len(content), "hash": hashlib.sha1(b"other").hexdigest(), "files": {}}
    return Variant(base.style, [("a.tar", content), ("a.json", json.dumps(recorded).encode())], [Truth("wrong-digest")])


@operator
def _wrong_size(base: Base) -> Variant:
    content = base.archive()
    recorded = {"filesize": len(content) + 512, "hash": hashlib.sha1(content).hexdigest(), "files": {}}
    return Variant(base.style, [("a.tar", content), ("a.json", json.dumps(recorded).encode())], [Truth("wrong-size")])
