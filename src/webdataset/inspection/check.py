"""Checks shards: ``check_shards`` gives a report of a whole list, ``iterate_checks`` one report a shard as it is made.

A shard is read once, front to back, whatever its url. Nothing is changed, unpacked or run. What cannot be read is
told with its byte range.

Theory. Several processes can check shards, each one at a time: a :class:`ShardTask` needs nothing of the other shards.
What compares shards happens here, in the order of the list: processes send keys in batches as they read, and a
:class:`~webdataset.inspection.findings.ShardResult` at the end. With one job the same two halves run here.
"""

import contextlib
import os
import pickle
from collections import Counter, deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from webdataset.core.errors import FlowError, SourceError, UsageError, WebDatasetError, WorkerDied
from webdataset.index.build import shard_urls
from webdataset.inspection.findings import CheckReport, Finding, FindingList, ShardReport, ShardResult
from webdataset.inspection.key_checks import KeyBatch, KeyComparison, KnownKeys
from webdataset.inspection.reader_profiles import ProfileSet
from webdataset.inspection.recorded_digests import (
    DigestTally,
    RecordedDigests,
    find_recorded_digests,
    last_part,
    load_wids_digests,
)
from webdataset.inspection.shard_check import CheckRules, ShardCheck
from webdataset.storage.local_listing import is_device
from webdataset.storage.open_url import open_stream
from webdataset.storage.streams import stream_length

if TYPE_CHECKING:
    from webdataset.core.process_pool import ItemMessage

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
    jobs: int = 1,
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
        jobs: how many processes check shards; the report is the same. They are started by ``spawn``: a script calls
            this under ``if __name__ == "__main__":``, and schemes that it has registered are not known to them.

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
                jobs=jobs,
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
    jobs: int = 1,
) -> Generator[ShardReport, None, None]:
    """Check shards, and yield each one's report as soon as those before it are there.

    Args:
        urls: see :func:`check_shards`, as for the other arguments.
        decode: decode fields.
        digests: compare recorded sizes and digests.
        index: a wids index.
        profiles: other readers.
        most_findings: findings of one code that are listed.
        most_keys: keys of one shard that are kept.
        storage_options: what objects at stores are opened with.
        jobs: how many processes check shards.

    Yields:
        A report for each shard, in the order of the list. A shard that is compared with the ones before it is told
        what it lacks; the last report has what only the whole list shows.

    Raises:
        UsageError: an argument that cannot mean anything.
        NotFound: wildcards that match nothing.
    """
    if min(most_findings, most_keys, jobs) < 1:
        raise UsageError("most_findings, most_keys and jobs: at least 1")
    found = shard_urls(urls, storage_options)
    listed = {} if index is None else load_wids_digests(index, storage_options=storage_options)
    rules = CheckRules(decode, most_findings, most_keys)
    checker = ListCheck(rules, listed, profiles, digests=digests, storage_options=storage_options)
    return checker.check(found, jobs)


class ShardTask(NamedTuple):
    """One shard to check, alone; a process can be sent it.

    Args:
        url: a url, a path, ``-``, or an object with ``read``.
        name: of it.
        rules: what is checked.
        listed: sizes and digests that an index records of it, by the last part of its url; None: none are looked for.
    """

    url: Any
    name: str
    rules: CheckRules
    listed: dict[str, RecordedDigests] | None

    def check(
        self,
        profiles: ProfileSet,
        storage_options: object,
        compare: Callable[[KeyBatch], object] | None,
        watch: Callable[[int], None] | None = None,
    ) -> tuple[ShardResult, ProfileSet | None]:
        """Return what the check finds, and the profiles with what they took; None where it could not be opened.

        Args:
            profiles: as the shards before have left them.
            storage_options: what the shard is opened with.
            compare: takes batches of keys, where there are other shards.
            watch: called with the number of bytes of each piece, as it is stored; all pieces are read then.
        """
        checked = ShardCheck(self.name, self.rules, compare, observer=profiles if profiles.profiles else None)
        recorded = (
            []
            if self.listed is None
            else find_recorded_digests(self.name, self.listed, storage_options=storage_options)
        )
        tally = DigestTally(recorded) if recorded else None
        try:
            stream = open_stream(self.url, storage_options=storage_options)
        except (OSError, WebDatasetError) as error:
            checked.fail(error)
            return checked.result(), None
        with contextlib.closing(stream):
            whole = self.rules.decode or tally is not None or watch is not None

            def take(piece: bytes) -> None:
                if tally is not None:
                    tally.take(piece)
                if watch is not None:
                    watch(len(piece))

            noted = tally is not None or watch is not None
            checked.run(stream, seek_within=0 if whole else _seekable_length(stream), taken=take if noted else None)
        if tally is not None:
            tally.compare(checked.findings)
        return checked.result(), profiles


def prepare_worker(
    profiles: bytes, storage_options: object
) -> Callable[[ShardTask, Callable[[KeyBatch], object]], object]:
    """Return what a process of a check does with a shard.

    Args:
        profiles: pickled, as the first shard has left them.
        storage_options: what shards are opened with.
    """

    def work(task: ShardTask, send: Callable[[KeyBatch], object]) -> tuple[ShardResult, ProfileSet | None]:
        return task.check(pickle.loads(profiles), storage_options, send)  # noqa: S301  of the process that started this one

    return work


class ListCheck:
    """Checks shards, and compares them with each other in their order.

    Args:
        rules: what is checked.
        listed: sizes and digests that an index records.
        profiles: names of other readers.
        digests: look for index files beside the shards.
        storage_options: what shards are opened with.
        watch: called with the number of bytes of each piece that this process reads.

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
        storage_options: object = None,
        watch: Callable[[int], None] | None = None,
    ) -> None:
        self._rules = rules
        self._listed = listed
        self._digests = digests
        self._storage_options = storage_options
        self._watch = watch
        self._profiles = ProfileSet(profiles)
        self._known: KnownKeys | None = None
        self._urls: list[str] = []
        self._missing: set[str] = set()
        self._compressions: Counter[str | None] = Counter()
        self._fields: Counter[str] = Counter()
        self._filled = 0

    def check(self, urls: Sequence[object], jobs: int = 1) -> Generator[ShardReport, None, None]:
        """Yield a report for each shard, in their order.

        Args:
            urls: urls, paths, ``-``, or objects with ``read``.
            jobs: how many processes check; 1: this one.
        """
        self._known = KnownKeys(10 * self._rules.most_keys) if len(urls) > 1 else None
        tasks = deque(map(self._make_task, urls))
        movable = sum(_is_movable(task.url) for task in tasks)
        # the first shard decides what some readers expect of the others
        while tasks and (min(jobs, movable) < 2 or self._profiles.waits_for_first()):
            movable -= _is_movable(tasks[0].url)
            yield self._check_here(tasks.popleft())
        if tasks:
            yield from self._check_in_processes(tasks, min(jobs, movable))

    def _make_task(self, url: object) -> ShardTask:
        name = os.fsdecode(url) if isinstance(url, (str, bytes, os.PathLike)) else repr(url)
        last = last_part(name)
        listed = {last: self._listed[last]} if last in self._listed else {}
        return ShardTask(url, name, self._rules, listed if self._digests else None)

    def _check_here(self, task: ShardTask) -> ShardReport:
        """Check a shard in this process."""
        self._urls.append(task.name)
        comparison = self._begin_comparison(task)
        result, profiles = task.check(
            self._profiles, self._storage_options, None if comparison is None else comparison.take, self._watch
        )
        return self._finish(result, profiles, comparison)

    def _begin_comparison(self, task: ShardTask) -> KeyComparison | None:
        if self._known is None:
            return None
        return KeyComparison(FindingList(task.name, self._rules.most_findings), self._known, self._urls)

    def _check_in_processes(self, tasks: Iterable[ShardTask], jobs: int) -> Iterator[ShardReport]:
        """Check shards in processes, and those that cannot be sent here."""
        from webdataset.core.process_pool import ProcessPool  # noqa: PLC0415  only where there are several jobs

        listed = list(tasks)
        values = (pickle.dumps(self._profiles), self._storage_options)
        with ProcessPool(jobs, f"{__name__}:{prepare_worker.__name__}", values) as pool:
            messages = pool.run([task] for task in listed if _is_movable(task.url))
            for task in listed:
                yield self._take(task, messages) if _is_movable(task.url) else self._check_here(task)

    def _take(self, task: ShardTask, messages: "Iterator[ItemMessage]") -> ShardReport:
        """Take what a process sends of a shard."""
        self._urls.append(task.name)
        comparison = self._begin_comparison(task)
        for _, content, last in messages:
            if isinstance(content, WorkerDied):
                failed = ShardCheck(task.name, self._rules)
                failed.fail(SourceError(f"{content} while it checked the shard: check this one alone, with one job"))
                return failed.report()
            if last:
                result, profiles = content
                return self._finish(result, profiles, comparison)
            if comparison is not None:
                comparison.take(content)
        raise FlowError("the processes of a check ended early", url=task.name)

    def _finish(
        self, result: ShardResult, profiles: ProfileSet | None, comparison: KeyComparison | None
    ) -> ShardReport:
        """Compare a shard with those before it, and return its report."""
        if profiles is not None:
            if comparison is not None and self._known is not None:
                comparison.finish()
                result.findings.extend(comparison.findings)
                result.forgot |= self._known.full
            self._compare(result)
            profiles.end_shard(result)
        return result.finish(self._missing)

    def _compare(self, report: ShardResult) -> None:
        """Tell how a shard differs from those before it."""
        if not report.samples:
            return
        compressions = self._compressions
        if compressions and report.compression not in compressions:
            usual = compressions.most_common(1)[0][0]
            report.findings.add(
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
                report.findings.add(
                    "ragged-shard", f"no sample has {', '.join(lacks)}, which most shards before have", field=lacks[0]
                )
        self._filled += 1
        self._fields.update(name for name in report.fields if len(self._fields) < _MOST_NAMES or name in self._fields)


def _is_movable(url: object) -> bool:
    """Tell whether another process can open a shard as this one does."""
    if not isinstance(url, (str, bytes, os.PathLike)):
        return False
    name = os.fsdecode(url)
    if "://" in name or name.startswith("pipe:"):
        return True
    # what the shell puts in the place of <(...) is a descriptor of this process
    return not name.startswith(("/dev/", "/proc/")) and name != "-" and not is_device(name)


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
