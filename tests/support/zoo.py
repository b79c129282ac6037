"""A zoo of shards: one small archive for each way in which names, headers and endings differ in the wild.

Readers, indexes and other people's loaders are walked through it. Nothing here uses the reader or the writers of this
library.
"""

import io
import tarfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final, NamedTuple

from webdataset.testing import archives
from webdataset.testing.archives import Fields, by_tarfile

Samples = list[tuple[str, Fields]]


class Exhibit(NamedTuple):
    """One shard of the zoo.

    Args:
        name: of the kind, and of the file without ``.tar``.
        archive: the bytes.
        samples: key and fields of each sample, in order; None where a field stands twice, which readers must report.
        note: what is special, in a few words.
    """

    name: str
    archive: bytes
    samples: Samples | None
    note: str


_KEEPERS: Final[dict[str, Callable[[], tuple[bytes, Samples | None, str]]]] = {}


def _kept(keeper: Callable[[], tuple[bytes, Samples | None, str]]) -> Callable[[], tuple[bytes, Samples | None, str]]:
    _KEEPERS[keeper.__name__.strip("_")] = keeper
    return keeper


def names() -> list[str]:
    """Return the names of all kinds."""
    return list(_KEEPERS)


def exhibit(name: str) -> Exhibit:
    """Make one shard.

    Args:
        name: one of :func:`names`.

    Raises:
        KeyError: there is no such kind.
    """
    archive, samples, note = _KEEPERS[name]()
    return Exhibit(name, archive, samples, note)


def exhibits() -> list[Exhibit]:
    """Make all shards."""
    return [exhibit(name) for name in _KEEPERS]


def build(folder: Path | str, chosen: Iterable[str] | None = None) -> dict[str, Path]:
    """Write shards to a folder.

    Args:
        folder: an existing folder.
        chosen: kinds; all by default.

    Returns:
        Path by kind.
    """
    paths = {}
    for name in names() if chosen is None else chosen:
        path = paths[name] = Path(folder) / f"{name}.tar"
        path.write_bytes(exhibit(name).archive)
    return paths


def _three(keys: Iterable[str] = ("0001", "0002", "0003")) -> Samples:
    """Return one sample of two fields for each key."""
    return [(key, {"cls": b"%d" % place, "jpg": b"\xff\xd8 %d " % place * 40}) for place, key in enumerate(keys)]


def _members(samples: Samples) -> list[tuple[str, bytes]]:
    return [(f"{key}.{field}", payload) for key, fields in samples for field, payload in fields.items()]


def _as(samples: Samples, note: str, **options: object) -> tuple[bytes, Samples, str]:
    return by_tarfile(_members(samples), **options), samples, note  # type: ignore[arg-type]


@_kept
def _plain() -> tuple[bytes, Samples, str]:
    return _as(_three(), "ustar, short names")


@_kept
def _gnu_long() -> tuple[bytes, Samples, str]:
    keys = [f"{'p' * 90}/{'q' * 90}{index}" for index in range(3)]
    return _as(_three(keys), "names of more than 100 bytes in GNU records", format="gnu")


@_kept
def _pax_long() -> tuple[bytes, Samples, str]:
    keys = [f"{'p' * 90}/{'q' * 190}{index}" for index in range(3)]
    return _as(_three(keys), "names of more than 255 bytes in PAX records", format="pax")


@_kept
def _ustar_prefix() -> tuple[bytes, Samples, str]:
    keys = [f"{'p' * 90}/{'q' * 90}{index}" for index in range(3)]
    return _as(_three(keys), "names split into prefix and name", format="ustar")


@_kept
def _name_of_100() -> tuple[bytes, Samples, str]:
    return _as(_three([f"{'n' * 95}{index}" for index in range(3)]), "names that fill their header field to the brim")


@_kept
def _spaces() -> tuple[bytes, Samples, str]:
    return _as(_three(["my cat 1", "a b/c d", " lead"]), "spaces in names")


@_kept
def _blanks() -> tuple[bytes, Samples, str]:
    return _as(_three(["tab\there", "new\nline", "per%20cent"]), "tabs, line breaks and percent signs in names")


@_kept
def _unicode() -> tuple[bytes, Samples, str]:
    return _as(_three(["später", "例/猫", "e\u0301"]), "names beyond ASCII in PAX records", format="pax")


@_kept
def _unicode_in_ustar() -> tuple[bytes, Samples, str]:
    samples = _three(["später", "例/猫"])
    parts = [archives.member(name.encode(), payload) for name, payload in _members(samples)]
    return archives.archive(*parts), samples, "UTF-8 names in plain headers"


@_kept
def _not_utf8() -> tuple[bytes, Samples, str]:
    samples = _three([b"caf\xe9".decode("utf-8", "surrogateescape")])
    parts = [archives.member(name.encode("utf-8", "surrogateescape"), load) for name, load in _members(samples)]
    return archives.archive(*parts), samples, "names that are not UTF-8"


@_kept
def _dots() -> tuple[bytes, Samples, str]:
    samples: Samples = [
        ("v1.2/a", {"jpg": b"one", "seg.png": b"two"}),
        ("v1.2/b.c/d", {"tar.gz": b"three"}),
        ("./e", {"jpg": b"four"}),
        ("f", {".jpg": b"five"}),
    ]
    return _as(samples, "dots in folders and extensions, ./ before names")


@_kept
def _mixed_case() -> tuple[bytes, Samples, str]:
    members = [("Aa.JPG", b"1"), ("Aa.Cls", b"2"), ("aa.JPG", b"3")]
    samples: Samples = [("Aa", {"jpg": b"1", "cls": b"2"}), ("aa", {"jpg": b"3"})]
    return by_tarfile(members), samples, "capitals in extensions and keys"


@_kept
def _empty_extension() -> tuple[bytes, Samples, str]:
    samples: Samples = [("0001", {"": b"nothing behind the dot", "jpg": b"1"}), ("0002", {"jpg": b"2"})]
    return _as(samples, "a name that ends in a dot")


@_kept
def _space_in_extension() -> tuple[bytes, Samples, str]:
    samples: Samples = [("235342 Track 2", {"0 (clean).mp3": b"la"}), ("b", {"mp3": b"li"})]
    return _as(samples, "an extension with a space in it")


@_kept
def _dotfile() -> tuple[bytes, Samples, str]:
    members = [("a/.DS_Store", b"mac"), ("a/1.jpg", b"1"), (".hidden", b"skipped"), ("a/2.jpg", b"2")]
    samples: Samples = [("a/", {"ds_store": b"mac"}), ("a/1", {"jpg": b"1"}), ("a/2", {"jpg": b"2"})]
    return by_tarfile(members), samples, "hidden files: one in a folder, which readers deliver, and one at the top"


@_kept
def _meta() -> tuple[bytes, Samples, str]:
    members = [("__meta__/info.json", b"{}"), ("1.jpg", b"1"), ("__end__", b"x"), ("2.jpg", b"2"), ("__k__.txt", b"k")]
    samples: Samples = [("1", {"jpg": b"1"}), ("2", {"jpg": b"2"}), ("__k__", {"txt": b"k"})]
    return by_tarfile(members), samples, "metadata of the shard, which belongs to no sample"


@_kept
def _no_extension() -> tuple[bytes, Samples, str]:
    members = [("README", b"hello"), ("1.jpg", b"1"), ("d.d/LICENSE", b"free"), ("1.cls", b"0"), ("2.jpg", b"2")]
    return by_tarfile(members), [("1", {"jpg": b"1", "cls": b"0"}), ("2", {"jpg": b"2"})], "names without a dot"


@_kept
def _duplicate_member() -> tuple[bytes, Samples | None, str]:
    members = [("1.jpg", b"first"), ("1.cls", b"0"), ("1.jpg", b"second"), ("2.jpg", b"2")]
    return by_tarfile(members), None, "a field that stands twice in one sample"


@_kept
def _split_samples() -> tuple[bytes, Samples | None, str]:
    members = [("1.jpg", b"1"), ("2.jpg", b"2"), ("1.cls", b"0"), ("2.cls", b"9")]
    return by_tarfile(members), None, "keys whose members do not stand together"


@_kept
def _folders() -> tuple[bytes, Samples, str]:
    samples = _three(["train/cats/1", "train/cats/2", "train/dogs/1"])
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        for folder in ("train", "train/cats", "train/dogs"):
            entry = tarfile.TarInfo(folder)
            entry.type = tarfile.DIRTYPE
            archive.addfile(entry)
        for name, payload in _members(samples):
            entry = tarfile.TarInfo(name)
            entry.size = len(payload)
            archive.addfile(entry, io.BytesIO(payload))
    return buffer.getvalue(), samples, "members for folders"


@_kept
def _links() -> tuple[bytes, Samples, str]:
    parts = [
        archives.member(b"1.jpg", b"1"),
        archives.header(b"link", kind=b"2", linkname=b"1.jpg"),
        archives.header(b"hard", kind=b"1", linkname=b"1.jpg"),
        archives.member(b"1.cls", b"0"),
        archives.long_name(b"l" * 150, b"", linkname=b"m" * 150, kind=b"2"),
        archives.member(b"2.jpg", b"2"),
    ]
    samples: Samples = [("1", {"jpg": b"1", "cls": b"0"}), ("2", {"jpg": b"2"})]
    return archives.archive(*parts), samples, "links of no sample, which have no payload"


@_kept
def _no_end_mark() -> tuple[bytes, Samples, str]:
    parts = [archives.member(name.encode(), payload) for name, payload in _members(_three())]
    return archives.archive(*parts, end=b""), _three(), "cut behind the last member"


@_kept
def _pax_times() -> tuple[bytes, Samples, str]:
    return _as(_three(), "a PAX header for every member, for a fractional time", format="pax", mtime=1.5)


@_kept
def _pax_globally() -> tuple[bytes, Samples, str]:
    parts = [archives.pax_header([(b"comment", b"made by git archive")], everywhere=True)]
    parts += [archives.member(name.encode(), payload) for name, payload in _members(_three())]
    return archives.archive(*parts), _three(), "a global PAX header"


@_kept
def _large_numbers() -> tuple[bytes, Samples, str]:
    samples: Samples = [("1", {"jpg": b"1" * 600}), ("2", {"jpg": b"2" * 700})]
    parts = [archives.member(b"1.jpg", b"1" * 600, magic=archives.GNU, binary=True)]
    parts += [archives.sized_by_pax(b"2.jpg", b"2" * 700)]
    return archives.archive(*parts), samples, "sizes in base-256 and in PAX records"


@_kept
def _sparse() -> tuple[bytes, Samples, str]:
    content = b"x" * 512 + bytes(4096) + b"y" * 512
    pieces = [(0, 512), (4608, 512)]
    parts = [
        archives.member(b"1.jpg", b"1"),
        archives.old_gnu_sparse(b"2.bin", content, pieces),
        archives.pax_sparse(b"3.bin", content, pieces, version="1.0"),
    ]
    samples: Samples = [("1", {"jpg": b"1"}), ("2", {"bin": content}), ("3", {"bin": content})]
    return archives.archive(*parts), samples, "sparse members, whose bytes do not lie in the shard as they are"


@_kept
def _joined() -> tuple[bytes, Samples, str]:
    first, second = _three(["1", "2"]), _three(["3", "4"])
    return (
        by_tarfile(_members(first)) + by_tarfile(_members(second)),
        first + second,
        "two archives, one behind the other",
    )


@_kept
def _empty_payloads() -> tuple[bytes, Samples, str]:
    samples: Samples = [("1", {"txt": b"", "cls": b"1"}), ("2", {"txt": b""})]
    return _as(samples, "members without a byte")


@_kept
def _empty() -> tuple[bytes, Samples, str]:
    return by_tarfile([]), [], "no member at all"
