"""The findings of ``wds check``, shard by shard, each with the number of its sample.

A check reads a whole shard and decodes its fields. It runs in a process of its own, one at a time: what a hostile field
does to a decoder cannot reach the server, the page stays quick, and the check is ended with the server. The shard's url
goes to that process through a pipe, and stands on no command line.
"""

import multiprocessing
import threading
from array import array
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from webdataset.core.errors import WebDatasetError, describe_error
from webdataset.core.redaction import redact
from webdataset.inspection.check import ListCheck
from webdataset.inspection.findings import Finding, ShardReport, count_codes, printable
from webdataset.inspection.shard_check import CheckRules
from webdataset.tar.header import BLOCK
from webdataset.viewer.plain_values import JsonObject

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

    from webdataset.viewer.session import DatasetView
    from webdataset.viewer.shard_pages import ShardView

MOST_LISTED: Final = 100
"""Findings of one code that are listed for a shard."""

_MOST_KEYS: Final = 1_000_000
_MOST_KEPT: Final = 256
_PROGRESS_BYTES: Final = 4 << 20
_JOIN_SECONDS: Final = 5


def run_check(pipe: "Connection") -> None:
    """Check the shard that a pipe names, and send progress and the report through it.

    Args:
        pipe: gives url and storage options; takes ``("bytes", n)``, then ``("report", r)`` or ``("failed", text)``.
    """
    url, storage_options = pipe.recv()
    seen = told = 0

    def watch(count: int) -> None:
        nonlocal seen, told
        seen += count
        if seen - told >= _PROGRESS_BYTES:
            told = seen
            pipe.send(("bytes", seen))

    try:
        pipe.send(("report", _check_url(url, storage_options, watch)))
    except (OSError, WebDatasetError, MemoryError) as error:
        pipe.send(("failed", describe_error(error)))


@dataclass
class _Check:
    """A check that waits, runs or has ended."""

    state: str = "running"
    seen_bytes: int = 0
    size_bytes: int | None = None
    message: str | None = None
    report: ShardReport | None = None
    ordinals: Sequence[int | None] = ()


class Findings:
    """The checks of a server.

    Args:
        sides: whose shards are checked, by name.
    """

    def __init__(self, sides: dict[str, "DatasetView"]) -> None:
        self._sides = sides
        self._checks: OrderedDict[tuple[str, int], _Check] = OrderedDict()
        self._lock = threading.Lock()
        self._turn = threading.Lock()
        self._process: Any = None
        self._closed = False

    def describe(self, side: str, number: int) -> dict[str, Any]:
        """Return how far the check of a shard is, and what it found; the first time, start it.

        Args:
            side: of the shard.
            number: of the shard.

        Raises:
            NoSuchSample: there is no such shard.
        """
        shard = self._sides[side].shard(number)
        with self._lock:
            check = self._checks.get((side, number))
            if check is None and not self._closed:
                check = self._checks[side, number] = _Check()
                thread = threading.Thread(target=self._run, args=(shard, side, check), daemon=True, name="wds-check")
                thread.start()
                self._forget_old()
        return _describe_check(check or _Check("failed", message="the viewer ends"))

    def describe_all(self, side: str) -> dict[str, Any]:
        """Return a summary of each shard of a side that was checked.

        Args:
            side: its name.
        """
        with self._lock:
            checks = {number: check for (name, number), check in self._checks.items() if name == side}
        reports = [check.report for check in checks.values() if check.report is not None]
        shards = [
            {"shard": number, "state": check.state, "counts": {} if check.report is None else check.report.counts}
            for number, check in sorted(checks.items())
        ]
        return {"shards": shards, "counts": count_codes(reports)}

    def close(self) -> None:
        """End the check that runs."""
        self._closed = True
        process = self._process
        if process is not None:
            process.kill()
            process.join(_JOIN_SECONDS)

    def _forget_old(self) -> None:
        for place in [place for place, check in self._checks.items() if check.state != "running"]:
            if len(self._checks) <= _MOST_KEPT:
                return
            del self._checks[place]

    def _run(self, shard: "ShardView", side: str, check: _Check) -> None:
        try:
            if shard.url == "-":
                check.message = "standard input was read already: check the shard with 'wds check'"
            else:
                shard.open()
                check.size_bytes = shard.size_bytes
                with self._turn:
                    self._follow(shard, self._sides[side].reading.storage_options, check)
            if check.report is not None:
                check.ordinals = find_ordinals(shard, check.report.findings)
        except Exception as error:  # noqa: BLE001  a check that fails in any way must say so to who waits for it
            check.message = describe_error(error)
        check.state = "failed" if check.report is None else "done"

    def _follow(self, shard: "ShardView", storage_options: object, check: _Check) -> None:
        context = multiprocessing.get_context("spawn")
        ours, theirs = context.Pipe()
        process = context.Process(target=run_check, args=(theirs,), daemon=True, name="wds-check")
        if self._closed:
            check.message = "the viewer ends"
            return
        process.start()
        self._process = process
        theirs.close()
        try:
            ours.send((shard.url, storage_options))
            while check.report is None and check.message is None:
                kind, content = ours.recv()
                if kind == "bytes":
                    check.seen_bytes = content
                elif kind == "report":
                    check.report = content
                else:
                    check.message = content
        except (EOFError, OSError):
            process.join(_JOIN_SECONDS)
            check.message = f"the process of the check ended with status {process.exitcode}"
        finally:
            self._process = None
            ours.close()
            process.join(_JOIN_SECONDS)
            if process.is_alive():
                process.kill()


def _describe_check(check: _Check) -> JsonObject:
    done = check.report is not None and check.state == "done"
    return {
        **describe_report(check.report, check.ordinals if done else None),
        "state": check.state,
        "progress": {"bytes": check.seen_bytes, "of": check.size_bytes} if check.state == "running" else None,
        "message": None if check.message is None else redact(check.message),
    }


def describe_report(report: ShardReport | None, ordinals: Sequence[int | None] | None) -> JsonObject:
    """Return what a check found, as the page takes it.

    Args:
        report: of the check; None where there is none.
        ordinals: numbers of the samples that its findings are about; None leaves the findings out.
    """
    found = () if report is None or ordinals is None else zip(report.findings, ordinals, strict=True)
    return {
        "state": "done",
        "progress": None,
        "message": None,
        "findings": [_describe_finding(finding, ordinal) for finding, ordinal in found],
        "counts": {} if report is None else report.counts,
        "samples": None if report is None else report.samples,
        "unread": [] if report is None else [list(gap) for gap in report.unread],
    }


def check_shard(shard: "ShardView", storage_options: object, watch: Callable[[int], None] | None = None) -> ShardReport:
    """Check a shard, decoding its fields in this process.

    Args:
        shard: that is read whole.
        storage_options: that its url is opened with.
        watch: called with the bytes of each read.

    Raises:
        SourceError: the shard cannot be read.
    """
    return _check_url(shard.url, storage_options, watch)


def _check_url(url: str, storage_options: object, watch: Callable[[int], None] | None) -> ShardReport:
    rules = CheckRules(True, MOST_LISTED, _MOST_KEYS)
    return next(iter(ListCheck(rules, {}, storage_options=storage_options, watch=watch).check([url])))


def _describe_finding(finding: Finding, ordinal: int | None) -> dict[str, Any]:
    found = finding.to_json()
    del found["url"]
    return {**found, "message": printable(found["message"]), "ordinal": ordinal}


def find_ordinals(shard: "ShardView", findings: Sequence[Finding]) -> list[int | None]:
    """Return for each finding the number of the sample that it is about; None where it is about none.

    Args:
        shard: that was checked.
        findings: of its check.
    """
    last = max((finding.offset for finding in findings if finding.offset is not None), default=None)
    if last is None:
        return [None] * len(findings)
    starts, ends, keys = array("Q"), array("Q"), []
    wanted = {finding.key for finding in findings if finding.key is not None}
    for _, entry in shard.samples():
        if entry.offset > last:
            break
        starts.append(entry.offset)
        # the padding of its last member is its own; the block after that is not
        ends.append(
            max((-(-(field.offset + field.size) // BLOCK) * BLOCK for field in entry.fields), default=entry.offset)
        )
        keys.append(entry.key if entry.key in wanted else None)
    found: list[int | None] = []
    for finding in findings:
        place = -1 if finding.offset is None else bisect_right(starts, finding.offset) - 1
        fits = place >= 0 and finding.offset is not None and finding.offset < ends[place]
        found.append(place if fits and finding.key in (None, keys[place]) else None)
    return found
