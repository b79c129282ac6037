"""Checks shards: ``check_shards`` gives a report of a whole list, ``iterate_checks`` one report a shard as it is made.

A shard is read once, front to back, whatever its url. Nothing is changed, unpacked or run. What cannot be read is
told with its byte range.
"""

import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from webdataset.core.errors import UsageError, WebDatasetError
from webdataset.index.build import shard_urls
from webdataset.inspection.findings import CheckReport, Finding, ShardReport
from webdataset.inspection.key_checks import KnownKeys
from webdataset.inspection.reader_profiles import ProfileSet
from webdataset.inspection.recorded_digests import (
    DigestTally,
    RecordedDigests,
    find_recorded_digests,
    load_wids_digests,
)
from webdataset.inspection.shard_check import CheckRules, ShardCheck
from webdataset.storage.open_url import open_stream
from webdataset.storage.streams import stream_length

_USUAL: Final = 0.5
_MOST_NAMES: Final = 4096


def check_shards(
    urls: Any,
    *,
    decode: bool = True,
    digests: bool = True,
    index: str | os.PathLike[str] | None = None,
    profiles: Iterable[str] = (),
    most_findings: int = 100,
    most_keys: int = 1_000_000,
    storage_options: Any = None,
) -> CheckReport:
    """Check shards: structure, names, keys, fields, and what is recorded of them.

    Args:
        urls: as ``WebDataset`` takes them; ``-`` is the standard input.
        decode: decode fields of known extensions. Without it payloads are not looked at, and large ones of local files
            are stepped over.
        digests: look for index files beside the shards, and compare sizes and digests that they record.
        index: path or url of a wids index of these shards, whose sizes and digests are compared.
        profiles: other readers, for which is told what they refuse: ``hf``, ``dali``, ``energon``, ``ray``, ``grain``.
        most_findings: findings of one code that are listed for a shard; the others are counted.
        most_keys: keys of one shard that are kept to find repetitions (about 100 bytes each); of all shards together,
            ten times as many (12 bytes each).
        storage_options: what objects at stores are opened with.

    Returns:
        The report. ``report.ok`` tells whether there is neither an error nor a warning.

    Raises:
        UsageError: an argument that cannot mean anything.
        NotFound: wildcards that match nothing.
    """
    return CheckReport(
        tuple(
            iterate_checks(
                urls,
                decode=decode,
                digests=digests,
                index=index,
                profiles=profiles,
                most_findings=most_findings,
                most_keys=most_keys,
                storage_options=storage_options,
            )
        )
    )


def iterate_checks(
    urls: Any,
    *,
    decode: bool = True,
    digests: bool = True,
    index: str | os.PathLike[str] | None = None,
    profiles: Iterable[str] = (),
    most_findings: int = 100,
    most_keys: int = 1_000_000,
    storage_options: Any = None,
) -> Iterator[ShardReport]:
    """Check shards one after the other.

    Args:
        urls: see :func:`check_shards`, as for the other arguments.
        decode: decode fields.
        digests: compare recorded sizes and digests.
        index: a wids index.
        profiles: other readers.
        most_findings: findings of one code that are listed.
        most_keys: keys of one shard that are kept.
        storage_options: what objects at stores are opened with.

    Yields:
        A report for each shard, in the order of the list. A shard that is compared with the ones before it is told
        what it lacks; the last report has what only the whole list shows.

    Raises:
        UsageError: an argument that cannot mean anything.
        NotFound: wildcards that match nothing.
    """
    if most_findings < 1 or most_keys < 1:
        raise UsageError("most_findings and most_keys: at least 1")
    found = shard_urls(urls, storage_options)
    listed = {} if index is None else load_wids_digests(index, storage_options=storage_options)
    rules = CheckRules(decode, most_findings, most_keys)
    checker = ListCheck(rules, listed, profiles, digests=digests, alone=len(found) == 1)
    return (checker.check(url, storage_options) for url in found)


class ListCheck:
    """Checks shards one after the other, and compares them with each other.

    Args:
        rules: what is checked.
        listed: sizes and digests that an index records.
        profiles: names of other readers.
        digests: look for index files beside the shards.
        alone: there is one shard, whose keys are compared with no other's.

    Raises:
        UsageError: an unknown profile.
    """

    def __init__(
        self,
        rules: CheckRules,
        listed: Mapping[str, RecordedDigests],
        profiles: Iterable[str] = (),
        *,
        digests: bool = True,
        alone: bool = False,
    ) -> None:
        self._rules = rules
        self._listed = listed
        self._digests = digests
        self._profiles = ProfileSet(profiles)
        self._known = None if alone else KnownKeys(10 * rules.most_keys)
        self._urls: list[str] = []
        self._missing: set[str] = set()
        self._compressions: Counter[str | None] = Counter()
        self._fields: Counter[str] = Counter()
        self._filled = 0

    def check(self, url: Any, storage_options: Any = None) -> ShardReport:
        """Check the next shard.

        Args:
            url: a url, a path, ``-``, or an object with ``read``.
            storage_options: what objects at stores are opened with.
        """
        name = os.fsdecode(url) if isinstance(url, (str, bytes, os.PathLike)) else repr(url)
        self._urls.append(name)
        checked = ShardCheck(
            name, self._rules, self._known, self._urls, missing=self._missing, observer=self._observer()
        )
        recorded = find_recorded_digests(name, self._listed, storage_options=storage_options) if self._digests else []
        tally = DigestTally(recorded) if recorded else None
        try:
            stream = open_stream(url, storage_options=storage_options)
        except (OSError, WebDatasetError) as error:
            checked.fail(error)
            return checked.report()
        try:
            length = 0 if self._rules.decode or tally is not None else _seekable_length(stream)
            checked.run(stream, seek_within=length, taken=None if tally is None else tally.take)
        finally:
            stream.close()
        if tally is not None:
            tally.compare(checked.findings)
        self._compare(checked)
        self._profiles.end_shard(checked)
        return checked.report()

    def _observer(self) -> ProfileSet | None:
        return self._profiles if self._profiles.profiles else None

    def _compare(self, checked: ShardCheck) -> None:
        """Tell how a shard differs from those before it."""
        report = checked.report()
        if not report.samples:
            return
        compressions = self._compressions
        if compressions and report.compression not in compressions:
            usual = compressions.most_common(1)[0][0]
            checked.findings.add(
                "mixed-compression",
                f"it is compressed with {report.compression}, the shards before with {usual}"
                if report.compression and usual
                else f"it is {'not ' if not report.compression else ''}compressed, unlike the shards before",
            )
        compressions[report.compression] += 1
        if self._filled:
            usual_fields = [field for field, count in self._fields.items() if count > self._filled * _USUAL]
            lacks = [field for field in usual_fields if field not in report.fields]
            if lacks:
                checked.findings.add(
                    "ragged-shard", f"no sample has {', '.join(lacks)}, which most shards before have", field=lacks[0]
                )
        self._filled += 1
        self._fields.update(name for name in report.fields if len(self._fields) < _MOST_NAMES or name in self._fields)


def _seekable_length(stream: Any) -> int:
    """Return the length of a stream that can seek, or 0."""
    seekable = getattr(stream, "seekable", None)
    return (stream_length(stream) or 0) if seekable is not None and seekable() else 0


def list_findings(reports: Iterable[ShardReport]) -> Iterator[Finding]:
    """Yield the findings of some reports, shard by shard.

    Args:
        reports: of shards.
    """
    return (finding for report in reports for finding in report.findings)
