"""``wds check``: what is wrong with shards, and repaired copies of them."""

import contextlib
import os
import stat
from collections import Counter
from typing import TYPE_CHECKING, Final

import click

from webdataset.cli import console, exit_status
from webdataset.cli.inputs import Inputs, input_options

if TYPE_CHECKING:
    from webdataset.inspection.findings import ShardReport
    from webdataset.inspection.repair import ShardRepair

_SEVERITIES: Final = ("error", "warning", "note")
_PROFILES: Final = ("hf", "dali", "energon", "ray", "grain")
# about what one processor checks while another process starts
_WORTH_BYTES: Final = 64 << 20
_COUNT: Final[console.JsonSchema] = {"type": "integer", "minimum": 0}
_TEXT: Final[console.JsonSchema] = {"type": ["string", "null"]}
_GAPS: Final[console.JsonSchema] = {
    "type": "array",
    "items": {"type": "array", "prefixItems": [_COUNT, {"type": ["integer", "null"]}], "minItems": 2, "maxItems": 2},
    "description": "ranges of the tar stream that could not be read, [start, stop); stop null: to the end",
}
_COUNTS: Final[console.JsonSchema] = {"type": "object", "additionalProperties": _COUNT}
_FINDING: Final[console.JsonSchema] = {
    "type": "object",
    "required": ["code", "severity", "url", "offset", "member", "key", "field", "message"],
    "properties": {
        "code": {"type": "string"},
        "severity": {"enum": list(_SEVERITIES)},
        "url": {"type": "string"},
        "offset": {"type": ["integer", "null"], "description": "in the tar stream, after decompression"},
        "member": _TEXT,
        "key": _TEXT,
        "field": _TEXT,
        "message": {"type": "string"},
    },
    "additionalProperties": False,
}
_REPAIR: Final[console.JsonSchema] = {
    "type": "object",
    "required": ["url", "output", "doubtful", "samples", "doubtful_keys", "merged_keys", "dropped", "counts"],
    "properties": {
        "url": {"type": "string"},
        "output": _TEXT,
        "doubtful": _TEXT,
        "samples": _COUNT,
        "doubtful_keys": {"type": "array", "items": {"type": "string"}},
        "merged_keys": {"type": "array", "items": {"type": "string"}},
        "dropped": {"type": "array", "items": {"type": "object"}},
        "counts": _COUNTS,
        "remaining": _COUNTS,
        "unread": _GAPS,
    },
    "additionalProperties": False,
}
SCHEMAS: Final[console.JsonSchema] = {
    "check": {
        "description": "One line a shard; with --fix, one line more for each shard.",
        "oneOf": [
            {
                "type": "object",
                "required": ["url", "samples", "members", "size_bytes", "unread", "counts", "findings"],
                "properties": {
                    "url": {"type": "string"},
                    "samples": _COUNT,
                    "members": _COUNT,
                    "size_bytes": _COUNT,
                    "compression": _TEXT,
                    "unread": _GAPS,
                    "fields": _COUNTS,
                    "counts": _COUNTS,
                    "findings": {"type": "array", "items": _FINDING},
                },
                "additionalProperties": False,
            },
            {
                "type": "object",
                "required": ["repair"],
                "properties": {"repair": _REPAIR},
                "additionalProperties": False,
            },
        ],
    }
}


@click.command("check")
@input_options
@click.option("--no-decode", is_flag=True, help="Look at headers, names and keys only; fields are not decoded.")
@click.option("--no-digests", is_flag=True, help="Do not look for index files that record sizes and digests.")
@click.option("--index", metavar="FILE", help="A wids index of these shards, whose sizes and digests are compared.")
@click.option(
    "--profile",
    "profiles",
    multiple=True,
    type=click.Choice(_PROFILES),
    help="Tell what this reader refuses or reads differently; may be repeated.",
)
@click.option(
    "--level",
    default="warning",
    show_default=True,
    type=click.Choice(_SEVERITIES),
    help="The least severity that is listed, and that makes the exit status 1.",
)
@click.option(
    "--most", default=100, show_default=True, type=click.IntRange(min=1), help="Findings of a kind and shard."
)
@click.option(
    "-j",
    "--jobs",
    type=click.IntRange(min=1),
    help="How many processes check shards; by default one a processor, and one where the shards are small.",
)
@click.option("--fix", metavar="FOLDER", help="Write repaired copies of the shards that need one, and repair.json.")
@click.option("--force", is_flag=True, help="With --fix: replace files that are there.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object a line; see 'wds schema check'.")
def check_command(
    inputs: Inputs,
    *,
    no_decode: bool,
    no_digests: bool,
    index: str | None,
    profiles: tuple[str, ...],
    level: str,
    most: int,
    jobs: int | None,
    fix: str | None,
    force: bool,
    as_json: bool,
) -> int:
    """Tell what is wrong with shards: damage, half samples, fields that do not decode, names that readers differ about.

    Every shard is read once, front to back; after damage the check continues at the next header, and says which bytes
    were not read. Pickles are never run. The exit status is 1 where there are findings.

    Examples:
      wds check train-{000..099}.tar
      wds check --no-decode --level error s3://bucket/train/
      wds check --profile hf --json shard.tar | jq .counts
      wds check -j 8 --json 'train-*.tar' | jq -c 'select(.counts != {}) | [.url, .counts]'
      wds check --fix repaired/ broken.tar
      gzip -dc shard.tar.gz | wds check -
    """
    from webdataset.inspection.check import iterate_checks  # noqa: PLC0415  after --help

    if fix is not None:
        _check_folder(inputs, fix, force=force)
    listed = _SEVERITIES[: _SEVERITIES.index(level) + 1]
    counts: Counter[str] = Counter()
    totals: Counter[str] = Counter()
    reports = iterate_checks(
        list(inputs),
        decode=not no_decode,
        digests=not no_digests,
        index=index,
        profiles=profiles,
        most_findings=most,
        storage_options=inputs.storage_options,
        jobs=jobs or _choose_jobs(inputs),
    )
    with contextlib.closing(reports), console.Progress("checking", total=len(inputs)) as progress:
        for report in progress.track(reports):
            counts.update(report.counts)
            totals.update(shards=1, samples=report.samples)
            if as_json:
                console.write_json(report.to_json())
            else:
                _write_report(report, listed)
    found = _count_severities(counts)
    if not as_json:
        console.write_line(f"{console.summarize_counts(totals)}: {console.summarize_counts(found)}")
    if fix is not None:
        _repair(inputs, fix, force=force, as_json=as_json)
    return exit_status.NONE_FOUND if any(found[f"{severity}s"] for severity in listed) else exit_status.DONE


def _choose_jobs(inputs: Inputs) -> int:
    """Return how many processes check shards: one a processor; one where it takes longer to start others."""
    if len(inputs) > 1 and _size_bytes(inputs) >= _WORTH_BYTES:
        from webdataset.core.process_pool import count_processors  # noqa: PLC0415  slow to import

        return count_processors()
    return 1


def _size_bytes(inputs: Inputs) -> float:
    """Return the size of local shards; one of another kind may be as large as any."""
    return sum(map(_find_size, inputs))


def _find_size(url: str) -> float:
    try:
        status = os.stat(url)  # noqa: PTH116  as it was written
    except (OSError, ValueError):
        return float("inf")
    return status.st_size if stat.S_ISREG(status.st_mode) else float("inf")


def _count_severities(counts: Counter[str]) -> dict[str, int]:
    from webdataset.inspection.finding_kinds import KINDS  # noqa: PLC0415  after --help

    found = dict.fromkeys(("errors", "warnings", "notes"), 0)
    for code, count in counts.items():
        found[f"{KINDS[code].severity}s"] += count
    return found


def _write_report(report: "ShardReport", listed: tuple[str, ...]) -> None:
    """Write the findings of a shard, one a line."""
    shown: Counter[str] = Counter()
    for finding in report.findings:
        shown[finding.code] += 1
        if finding.severity in listed:
            member = f" [{console.escape_name(finding.member)}]" if finding.member is not None else ""
            console.write_line(f"{finding}{member}")
    for code, count in report.counts.items():
        if count > shown[code] and _severity_of(code) in listed:
            console.write_line(f"{console.show_url(report.url)}: {count - shown[code]} more of {code}")
    for start, stop in report.unread:
        end = "the end" if stop is None else f"{stop}"
        console.write_line(f"{console.show_url(report.url)}: bytes {start} to {end} could not be read")


def _severity_of(code: str) -> str:
    from webdataset.inspection.finding_kinds import KINDS  # noqa: PLC0415  after --help

    return KINDS[code].severity


def _check_folder(inputs: Inputs, folder: str, *, force: bool) -> None:
    """Refuse what cannot be repaired, before anything is read."""
    from webdataset.core.errors import UsageError  # noqa: PLC0415  after --help
    from webdataset.inspection.repair import find_targets  # noqa: PLC0415

    if "-" in inputs.urls:
        raise UsageError("standard input can be read only once: write it to a file to repair it")
    find_targets(list(inputs), folder, force=force, storage_options=inputs.storage_options)


def _repair(inputs: Inputs, folder: str, *, force: bool, as_json: bool) -> None:
    """Write repaired copies, and say what they hold."""
    from webdataset.inspection.repair import repair_shards  # noqa: PLC0415  after --help

    for done in repair_shards(list(inputs), folder, force=force, storage_options=inputs.storage_options):
        if as_json:
            console.write_json({"repair": done.to_json()})
        elif done.output is not None:
            _write_repair(done)


def _write_repair(done: "ShardRepair") -> None:
    said = [console.summarize_counts({"samples": done.samples})]
    if done.merged_keys:
        said.append(f"{len(done.merged_keys)} put together of parts")
    if done.dropped:
        said.append(f"{console.summarize_counts({'members': len(done.dropped)})} left out")
    if done.doubtful is not None:
        said.append(f"{len(done.doubtful_keys)} beside damage in {console.escape_name(done.doubtful)}")
    console.write_line(
        f"{console.show_url(done.url)}: repaired copy {console.escape_name(done.output or '')}: {', '.join(said)}"
    )
