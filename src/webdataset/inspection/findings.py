"""Findings of a check, and the reports that hold them.

A report is bounded: of each code a shard lists so many findings, and counts the others.
"""

import dataclasses
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

from webdataset.core.redaction import redact
from webdataset.inspection.finding_kinds import KINDS, Severity


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

    def extend(self, other: "FindingList") -> None:
        """Add those of another list, whose codes this one has none of.

        Args:
            other: of the same shard, and as many of each code.
        """
        self.counts.update(other.counts)
        self.kept += other.kept


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
            "fields": dict(sorted(self.fields.items())),
            "counts": dict(sorted(self.counts.items())),
            "findings": [finding.to_json() for finding in self.findings],
        }


@dataclasses.dataclass
class ShardResult:
    """What the check of a shard found before it is compared with other shards; a process can send it to another.

    Args:
        url: the shard.
        findings: so far.
        compression: see :class:`ShardReport`, as for the other fields.
        samples: number of samples.
        members: number of members with bytes.
        size_bytes: bytes of the tar stream that were seen.
        unread: ranges in which nothing could be read.
        fields: number of samples that have each field.
        not_checked: extension whose package is missing, to message and places of the finding.
        most_keys: how many keys of a shard are kept.
        forgot: some keys were not.
    """

    url: str
    findings: FindingList
    compression: str | None = None
    samples: int = 0
    members: int = 0
    size_bytes: int = 0
    unread: tuple[tuple[int, int | None], ...] = ()
    fields: dict[str, int] = dataclasses.field(default_factory=dict)
    not_checked: dict[str, dict[str, Any]] = dataclasses.field(default_factory=dict)
    most_keys: int = 0
    forgot: bool = False

    def finish(self, missing: set[str]) -> ShardReport:
        """Return the report, with the findings that depend on the shards before.

        Args:
            missing: extensions whose package is missing, told of already; takes those of this shard.
        """
        for extension, finding in self.not_checked.items():
            if extension not in missing:
                missing.add(extension)
                self.findings.add("not-checked", **finding)
        if self.forgot:
            self.findings.add(
                "keys-forgotten", f"more than {self.most_keys} keys: repetitions among the further ones are not found"
            )
        return ShardReport(
            url=self.url,
            findings=tuple(sorted(self.findings.kept, key=_place_of)),
            counts=dict(sorted(self.findings.counts.items())),
            samples=self.samples,
            members=self.members,
            size_bytes=self.size_bytes,
            compression=self.compression,
            unread=self.unread,
            fields=self.fields,
        )


def _place_of(finding: Finding) -> tuple[bool, int, str]:
    """Return what findings are sorted by: those without a place come last."""
    return finding.offset is None, finding.offset or 0, finding.code


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
