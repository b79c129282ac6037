"""The kinds of findings of a check, and the report that holds them.

``KINDS`` is the one table: code, severity, what a finding means and what to do about it. ``docs/checking.md`` shows
the same table. Severities: an *error* loses samples or fields, or makes a reader fail; a *warning* is read differently
by different programs, or looks like a mistake; a *note* is worth knowing.

A report is bounded: of each code a shard lists so many findings, and counts the others.
"""

import dataclasses
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any, Final, Literal, NamedTuple

from webdataset.core.redaction import redact

Severity = Literal["error", "warning", "note"]
SEVERITIES: Final[tuple[Severity, ...]] = ("error", "warning", "note")


class FindingKind(NamedTuple):
    """One kind of finding.

    Args:
        code: its name, which programs compare with.
        severity: ``error``, ``warning`` or ``note``.
        meaning: what is wrong, in one sentence.
        remedy: what to do about it.
    """

    code: str
    severity: Severity
    meaning: str
    remedy: str


_TABLE: Final = (
    ("unreadable", "error", "The shard cannot be opened, or reading it fails.", "Read the message; check url and access."),
    ("wrong-file", "error", "The file is no tar archive: a zip, an HTML page, a Parquet file, or something else.", "Fetch the file again, or pack it into a tar archive."),
    ("empty-file", "error", "The file has no bytes.", "Write or copy the shard again."),
    ("empty-shard", "warning", "The shard holds no samples.", "Remove it from the list of shards."),
    ("bad-compression", "error", "The compressed stream is damaged or ends early.", "Copy the shard again from its source."),
    ("mixed-compression", "warning", "Some shards of the list are compressed and others are not, or in another way.", "Write all shards in one way."),
    ("misleading-name", "warning", "The name of the shard says another compression than its bytes.", "Rename the shard."),
    ("bad-header", "error", "A header fails its checksum or makes no sense; reading goes on at the next header.", "Copy the shard again, or use the repaired copy."),
    ("bad-extension", "error", "An extended header (PAX records, a long name, a sparse map) makes no sense.", "Write the shard again."),
    ("limit", "error", "A header chain, a name or an extended header is larger than the reader allows.", "Write the shard again."),
    ("cut", "error", "The archive ends inside a member, a header or its padding.", "Copy the shard again, or use the repaired copy."),
    ("no-end-mark", "error", "The archive ends between two members, without its end mark: it may have been cut there.", "Write it again, or use the repaired copy."),
    ("short-end-mark", "note", "The end mark is one block of zeros in place of two.", "Nothing, or use the repaired copy."),
    ("lone-zero-block", "error", "Blocks of zeros stand inside the archive where no usual writer leaves them; most readers end there.", "Use the repaired copy; compare with the source."),
    ("joined-archives", "warning", "Another archive follows the end mark; GNU tar, Python's tarfile and readers built on them end at the first.", "Use the repaired copy."),
    ("trailing-garbage", "warning", "Bytes after the end mark or the compressed stream belong to no archive.", "Use the repaired copy."),
    ("interrupted-sample", "error", "Damage stands next to the sample: some of its fields may be missing.", "Write the sample again."),
    ("split-sample", "error", "A key comes again in the shard, with other fields: its samples are parts of one.", "Sort the members by name, or use the repaired copy."),
    ("repeated-key", "warning", "A key comes again in the shard with the same fields.", "Give each sample a key of its own."),
    ("repeated-key-across", "warning", "A key stands in several shards of the list.", "Give each sample a key of its own, or remove the copies."),
    ("keys-forgotten", "note", "More keys than fit into the memory bound: repetitions among the further ones are not found.", "Check fewer shards at a time, or raise most_keys."),
    ("duplicate-field", "error", "A field stands twice in one sample.", "Use the repaired copy, which keeps the first, or write the shard again."),
    ("ragged-sample", "warning", "Samples lack a field that most samples have.", "Write these samples again, or leave them out with select."),
    ("ragged-shard", "warning", "A shard lacks a field that most shards have.", "Write the shard again."),
    ("own-field", "error", "A member is called like metadata of the sample itself (__key__, __url__).", "Rename the member."),
    ("no-extension", "warning", "A member's name has no extension: it belongs to no sample and is left out.", "Rename the member."),
    ("upper-case-extension", "warning", "An extension has capitals; this library lower-cases it, other readers do not.", "Rename the member."),
    ("bad-name", "warning", "A name is not UTF-8.", "Rename the member."),
    ("odd-name", "warning", "A name holds control characters, a backslash, or blanks at an end.", "Rename the member."),
    ("absolute-name", "warning", "A name starts with a slash or a drive letter: unpacking may write outside the folder.", "Rename the member."),
    ("parent-name", "warning", "A name leads out of its folder (..).", "Rename the member."),
    ("empty-member", "note", "A member has no bytes.", "Nothing, if that is its content."),
    ("hard-link", "warning", "A member is a hard link; readers of streams often leave it out.", "Use the repaired copy, or pack with --hard-dereference."),
    ("symbolic-link", "error", "A member is a symbolic link: it has no bytes, and readers leave it out.", "Pack with --dereference."),
    ("special-member", "warning", "A member is a device or a FIFO: readers leave it out.", "Leave it out of the shard."),
    ("unknown-type", "error", "A member has a type that readers do not know: they leave it out.", "Write the shard again."),
    ("sparse-member", "warning", "A member is sparse: its bytes do not lie in the shard as they are, and many readers fail.", "Use the repaired copy, or pack without --sparse."),
    ("size-conflict", "error", "The extended header and the header state different sizes: programs read different members.", "Do not trust the shard; write it again."),
    ("name-conflict", "error", "The extended headers and the header state different names: programs read different members.", "Do not trust the shard; write it again."),
    ("global-override", "error", "A global PAX header gives all members after it a name, a size or a link; programs differ.", "Do not trust the shard; write it again."),
    ("bad-text", "error", "A text field is not UTF-8.", "Encode it again."),
    ("bad-number", "warning", "A field of numbers (cls, index, id) is no number: decode() fails.", "Write a number, or use another extension."),
    ("bad-json", "error", "A JSON field does not parse.", "Write the sample again."),
    ("bad-structure", "error", "A YAML, msgpack or CBOR field does not parse.", "Write the sample again."),
    ("bad-array", "error", "An npy, npz, tenbin or safetensors field does not parse.", "Write the sample again."),
    ("bad-pickle", "error", "A pickle or .pth field does not load.", "Write the sample again."),
    ("unsafe-pickle", "error", "A pickle asks for a class or function that is not on the allow-list. It was not run.", "Do not load it elsewhere; use JSON, npy or safetensors."),
    ("bad-image", "error", "An image does not decode.", "Write the sample again."),
    ("bad-audio", "error", "A sound does not decode.", "Write the sample again."),
    ("bad-video", "error", "A video does not decode.", "Write the sample again."),
    ("bad-compressed-field", "error", "A compressed field does not decompress.", "Write the sample again."),
    ("wrong-content", "warning", "The bytes of a field are of another kind than its extension says.", "Rename the member."),
    ("too-large", "warning", "A field would take more memory than the limit, and was not decoded.", "Raise the limit that the message names."),
    ("not-checked", "note", "Fields of this extension were not decoded: a package is missing.", "Install the extra that the message names."),
    ("wrong-digest", "error", "The shard's digest is not the one that its index file records.", "Copy the shard again, or write the index again."),
    ("wrong-size", "error", "The shard's size is not the one that its index file records.", "Copy the shard again, or write the index again."),
    ("refused-hf", "error", "Hugging Face datasets refuses the shard.", "Read the message."),
    ("differs-hf", "warning", "Hugging Face datasets reads other samples or fields.", "Read the message."),
    ("refused-dali", "error", "DALI's webdataset reader refuses the shard.", "Read the message."),
    ("differs-dali", "warning", "DALI's webdataset reader reads other samples or fields.", "Read the message."),
    ("refused-energon", "error", "Energon refuses the shard.", "Read the message."),
    ("differs-energon", "warning", "Energon reads other samples or fields.", "Read the message."),
    ("refused-ray", "error", "Ray Data refuses the shard.", "Read the message."),
    ("differs-ray", "warning", "Ray Data reads other samples or fields.", "Read the message."),
    ("refused-grain", "error", "Grain, over wds.IndexedDataset, refuses the shard.", "Read the message."),
    ("differs-grain", "warning", "Grain, over wds.IndexedDataset, reads other samples or fields.", "Read the message."),
)  # fmt: skip

KINDS: Final[dict[str, FindingKind]] = {row[0]: FindingKind(*row) for row in _TABLE}


@dataclasses.dataclass(frozen=True)
class Finding:
    """One thing that is wrong.

    Args:
        code: a key of ``KINDS``.
        message: what is wrong here, in one sentence.
        url: the shard.
        offset: where, in bytes of the tar stream (after decompression), or None.
        member: the member's full name, or None.
        key: the sample's key, or None.
        field: the field, or None.
    """

    code: str
    message: str
    url: str
    offset: int | None = None
    member: str | None = None
    key: str | None = None
    field: str | None = None

    @property
    def severity(self) -> Severity:
        """``error``, ``warning`` or ``note``."""
        return KINDS[self.code].severity

    def to_json(self) -> dict[str, Any]:
        """Return it as a mapping for JSON; bytes of names that are not UTF-8 are lone surrogates."""
        return {
            "code": self.code,
            "severity": self.severity,
            "url": redact(self.url),
            "offset": self.offset,
            "member": self.member,
            "key": self.key,
            "field": self.field,
            "message": redact(self.message),
        }

    def __str__(self) -> str:
        """Return one line: place, severity, code, message."""
        place = printable(redact(self.url)) + ("" if self.offset is None else f":{self.offset}")
        return f"{place}: {self.severity}: {self.code}: {printable(redact(self.message))}"


def printable(text: str | None) -> Any:
    r"""Return a text that can be printed and written as UTF-8: other bytes and control characters as ``\\x..``."""
    if text is None or (text.isprintable() and text.isascii()):
        return text
    shown = text.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
    return "".join(each if each.isprintable() else each.encode("unicode_escape").decode("ascii") for each in shown)


class FindingList:
    """The findings of one shard: of each code so many, the others counted.

    Args:
        url: the shard.
        most: findings of one code that are kept.

    Attributes:
        kept: the findings, in the order in which they were made.
        counts: how many there are of each code.
    """

    def __init__(self, url: str, most: int) -> None:
        self.url = url
        self.kept: list[Finding] = []
        self.counts: Counter[str] = Counter()
        self._most = most

    def add(self, code: str, message: str, **places: Any) -> None:
        """Add one.

        Args:
            code: a key of ``KINDS``.
            message: what is wrong here.
            **places: ``offset``, ``member``, ``key``, ``field``.
        """
        self.counts[code] += 1
        if self.counts[code] <= self._most:
            self.kept.append(Finding(code, message, self.url, **places))


@dataclasses.dataclass(frozen=True)
class ShardReport:
    """What a check found in one shard.

    Args:
        url: the shard.
        findings: the findings listed.
        counts: how many findings there are of each code, listed or not.
        samples: number of samples.
        members: number of members with bytes.
        size_bytes: bytes of the tar stream that were seen, after decompression.
        compression: ``gz``, ``bz2``, ``xz``, ``zst`` or None.
        unread: ranges of the tar stream, (start, stop), in which nothing could be read; stop None: to the end.
        fields: number of samples that have each field.
    """

    url: str
    findings: tuple[Finding, ...]
    counts: dict[str, int]
    samples: int
    members: int
    size_bytes: int
    compression: str | None
    unread: tuple[tuple[int, int | None], ...]
    fields: dict[str, int]

    @property
    def ok(self) -> bool:
        """Whether there is neither an error nor a warning."""
        return not any(KINDS[code].severity != "note" for code in self.counts)

    def to_json(self) -> dict[str, Any]:
        """Return it as a mapping for JSON."""
        return {
            "url": redact(self.url),
            "samples": self.samples,
            "members": self.members,
            "size_bytes": self.size_bytes,
            "compression": self.compression,
            "unread": [list(gap) for gap in self.unread],
            "fields": {name: count for name, count in sorted(self.fields.items())},
            "counts": dict(sorted(self.counts.items())),
            "findings": [finding.to_json() for finding in self.findings],
        }


@dataclasses.dataclass(frozen=True)
class CheckReport:
    """What a check found in a list of shards.

    Args:
        shards: one report a shard, in the order of the list.
    """

    shards: tuple[ShardReport, ...]

    @property
    def findings(self) -> Iterator[Finding]:
        """All findings that are listed, shard by shard."""
        return (finding for shard in self.shards for finding in shard.findings)

    @property
    def counts(self) -> dict[str, int]:
        """How many findings there are of each code."""
        return count_codes(self.shards)

    @property
    def ok(self) -> bool:
        """Whether there is neither an error nor a warning."""
        return all(shard.ok for shard in self.shards)

    def to_json(self) -> dict[str, Any]:
        """Return it as a mapping for JSON."""
        return {
            "samples": sum(shard.samples for shard in self.shards),
            "counts": self.counts,
            "ok": self.ok,
            "shards": [shard.to_json() for shard in self.shards],
        }


def count_codes(shards: Iterable[ShardReport]) -> dict[str, int]:
    """Return how many findings of each code some shards have.

    Args:
        shards: their reports.
    """
    counts: Counter[str] = Counter()
    for shard in shards:
        counts.update(shard.counts)
    return dict(sorted(counts.items()))
