"""Writes repaired copies of damaged shards, and a report of what was changed; never in place.

What can be read is written anew as a plain archive of regular files: each sample's members together, one end mark at
the end, no sparse members, no links, nothing between. Names and bytes stay as they are; owners and times are not kept.

Samples beside damage go to a second archive, ``NAME.tar.doubtful``: some of their fields may be missing, which nothing
in the shard shows. So the repaired copy holds whole samples, and no sample that can be read is lost.

The shard is read twice, once to find its members and once to copy them; one that is compressed, or not a local file,
is kept in the output folder in the meantime. Memory: about 300 bytes a member, and one piece of 1 MiB.
"""

import contextlib
import dataclasses
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO, Final

from webdataset.core.durable_files import make_durable_folder
from webdataset.core.errors import AlreadyExists, SourceError, UsageError, WebDatasetError
from webdataset.core.redaction import redact
from webdataset.index.build import shard_urls
from webdataset.index.publish import publish_file
from webdataset.inspection.findings import ShardReport
from webdataset.inspection.header_walk import MemberObserver
from webdataset.inspection.shard_check import CheckRules, ShardCheck
from webdataset.samples.grouping import base_plus_ext, is_meta
from webdataset.samples.links import LinkTargets
from webdataset.storage.open_url import local_path, open_stream
from webdataset.storage.same_file import InputFiles
from webdataset.tar.builder import END_MARK, PADDING, MemberStyle, make_header_maker
from webdataset.tar.header import Limits
from webdataset.tar.walker import MemberPosition

_STRUCTURE: Final = """
    no-end-mark short-end-mark cut bad-header bad-extension limit lone-zero-block joined-archives trailing-garbage
    bad-compression interrupted-sample split-sample duplicate-field hard-link symbolic-link special-member
    unknown-type sparse-member size-conflict name-conflict global-override
"""
REPAIRED: Final = frozenset(_STRUCTURE.split())
"""Codes of findings that a repaired copy does not have."""

_DAMAGE: Final = frozenset(
    ["no-end-mark", "cut", "bad-header", "bad-extension", "limit", "lone-zero-block", "bad-compression", "unreadable"]
)
_PIECE_BYTES: Final = 1 << 20
_MOST: Final = 1 << 20
_ENDINGS: Final = (".gz", ".bz2", ".xz", ".zst")
_SHORT_ENDINGS: Final = (".tgz", ".tbz", ".tbz2", ".txz", ".tzst")
# no ending of a shard: who reads the folder does not get samples that may lack fields
_DOUBTFUL: Final = ".doubtful"


@dataclasses.dataclass(frozen=True)
class ShardRepair:
    """What was done about one shard.

    Args:
        url: the shard.
        output: path of the repaired copy; None: it needed none, or nothing could be read.
        doubtful: path of the archive of samples beside damage, or None.
        samples: samples in the copy.
        doubtful_keys: keys of the samples beside damage.
        merged_keys: keys of samples whose parts were put together.
        dropped: members that were left out, as (name, offset, why).
        counts: what a check found in the shard: codes of findings, and how often.
        remaining: what a check finds in the copy.
        unread: ranges of the tar stream that could not be read.
    """

    url: str
    output: str | None
    doubtful: str | None
    samples: int
    doubtful_keys: tuple[str, ...]
    merged_keys: tuple[str, ...]
    dropped: tuple[tuple[str, int, str], ...]
    counts: dict[str, int]
    remaining: dict[str, int]
    unread: tuple[tuple[int, int | None], ...]

    def to_json(self) -> dict[str, Any]:
        """Return it as a mapping for JSON."""
        named = dataclasses.asdict(self)
        named["url"] = redact(self.url)
        named["dropped"] = [{"member": name, "offset": offset, "why": why} for name, offset, why in self.dropped]
        return named


@dataclasses.dataclass
class _Part:
    """Members of one key."""

    key: str | None
    places: dict[str, MemberPosition]
    offsets: list[int]
    doubtful: bool = False


class _MemberRecord(MemberObserver):
    """Remembers all members, and the bytes where they cannot be read again."""

    def __init__(self, spool: Callable[[], BinaryIO] | None) -> None:
        self.members: list[tuple[str, MemberPosition, int]] = []
        self.targets: dict[int, str] = {}
        self._make_spool = spool
        self.spool: BinaryIO | None = None

    def take_piece(self, piece: bytes) -> None:
        """Keep the bytes of a shard that cannot be read again."""
        if self._make_spool is not None:
            if self.spool is None:
                self.spool = self._make_spool()
            self.spool.write(piece)

    def take_links(self, targets: dict[int, str]) -> None:
        """Remember what links lead to."""
        self.targets.update(targets)

    def take_members(self, members: list[tuple[str, MemberPosition, int]]) -> None:
        """Remember members."""
        self.members += members


def repair_shards(
    urls: Any, folder: str | os.PathLike[str], *, force: bool = False, storage_options: Any = None
) -> list[ShardRepair]:
    """Write a repaired copy of each shard that needs one, and ``repair.json``, to a folder.

    Args:
        urls: as ``WebDataset`` takes them.
        folder: made where it does not exist. A copy is called like its shard, without compression.
        force: replace files that are there.
        storage_options: what objects at stores are opened with.

    Returns:
        What was done, shard by shard. Shards in which a check finds nothing that a copy can repair are not copied.

    Raises:
        UsageError: two shards have one name, or the folder is that of the shards.
        AlreadyExists: a copy is there already.
        SourceError: the folder cannot be written to.
    """
    found = find_targets(urls, folder, force=force, storage_options=storage_options)
    target = Path(folder)
    try:
        make_durable_folder(str(target))
    except OSError as error:
        raise SourceError(f"cannot make the folder: {error.strerror}", url=str(target)) from error
    done = [_repair_one(url, target, name, storage_options=storage_options) for url, name in found]
    content = json.dumps({"shards": [each.to_json() for each in done]}, indent=2).encode()
    publish_file(str(target / "repair.json"), content + b"\n")
    return done


def find_targets(
    urls: Any, folder: str | os.PathLike[str], *, force: bool = False, storage_options: Any = None
) -> list[tuple[Any, str]]:
    """Return the shards and the names of their copies, before anything is read.

    Args:
        urls: see :func:`repair_shards`, as for the other arguments.
        folder: of the copies.
        force: replace files that are there.
        storage_options: what objects at stores are opened with.

    Raises:
        UsageError: two shards have one name, or the folder is that of the shards.
        AlreadyExists: a copy is there already.
    """
    found = [
        os.fsdecode(url) if isinstance(url, (str, bytes, os.PathLike)) else url
        for url in shard_urls(urls, storage_options)
    ]
    names = [_name_copy(str(url)) for url in found]
    _check_names(found, names, Path(folder), force=force)
    return list(zip(found, names, strict=True))


def _name_copy(url: str) -> str:
    name = url.partition("?")[0].rstrip("/").rpartition("/")[2] if url != "-" else "stdin.tar"
    for ending in _ENDINGS:
        name = name.removesuffix(ending)
    for ending in _SHORT_ENDINGS:
        if name.endswith(ending):
            name = name.removesuffix(ending)
    return name if name.endswith(".tar") else f"{name or 'shard'}.tar"


def _check_names(urls: list[Any], names: list[str], folder: Path, *, force: bool) -> None:
    twice = next((name for at, name in enumerate(names) if name in names[:at]), None)
    if twice is not None:
        raise UsageError(f"two shards would have the copy {twice}: repair them into folders of their own")
    inputs = InputFiles(url for url in urls if isinstance(url, str))
    for url, name in zip(urls, names, strict=True):
        path = local_path(url) if isinstance(url, str) else None
        if path is not None and os.path.realpath(os.path.dirname(path) or ".") == os.path.realpath(folder):  # noqa: PTH120  bytes of names stay
            raise UsageError(f"{folder} is the folder of the shards: a copy never takes the place of a shard")
        for place in (folder / name, folder / f"{name}{_DOUBTFUL}"):
            if place.exists() and not force:
                raise AlreadyExists("a file is there already: pass force=True or choose another folder", url=str(place))
            inputs.refuse(str(place))


def _repair_one(url: Any, folder: Path, name: str, *, storage_options: Any) -> ShardRepair:
    """Repair one shard."""
    path = local_path(url) if isinstance(url, str) else None
    spool_path = folder / f".{name[:100]}.{os.getpid()}-{os.urandom(4).hex()}.partial"
    plain = path is not None and _is_plain(path)
    record = _MemberRecord(None if plain else lambda: spool_path.open("x+b"))
    check = ShardCheck(str(url), CheckRules(decode=False, most_findings=_MOST), observer=record)
    try:
        try:
            stream = open_stream(url, storage_options=storage_options)
        except (OSError, WebDatasetError) as error:
            check.fail(error)
        else:
            with contextlib.closing(stream):
                check.run(stream)
        report = check.report()
        if not REPAIRED.intersection(report.counts) or not record.members:
            return _report_nothing(report)
        if record.spool is not None:
            record.spool.flush()
        with open(path if plain and path is not None else spool_path, "rb") as source:  # noqa: PTH123  bytes of names stay
            return _Repair(report, record, source).write(folder, name)
    finally:
        if record.spool is not None:
            record.spool.close()
            spool_path.unlink(missing_ok=True)


def _is_plain(path: str) -> bool:
    """Tell whether a path is a regular file that is not compressed."""
    from webdataset.tar.compression import detect_compression  # noqa: PLC0415  beside its one use

    try:
        if not Path(path).is_file():
            return False
        with open(path, "rb") as stream:  # noqa: PTH123  bytes of names stay
            return detect_compression(stream.read(512)) is None
    except OSError:
        return False


def _report_nothing(report: ShardReport) -> ShardRepair:
    return ShardRepair(report.url, None, None, report.samples, (), (), (), report.counts, report.counts, report.unread)


class _Repair:
    """Copies the samples of one shard.

    Args:
        report: of the check.
        record: its members.
        source: the bytes of the tar stream.
    """

    def __init__(self, report: ShardReport, record: _MemberRecord, source: BinaryIO) -> None:
        self._report = report
        self._record = record
        self._source = source
        self._targets = LinkTargets(self._read_at, Limits())
        self._dropped: list[tuple[str, int, str]] = []
        self._merged: list[str] = []
        self._links: dict[int, MemberPosition] = {}

    def _read_at(self, offset: int, size: int) -> bytes:
        self._source.seek(offset)
        return self._source.read(size)

    def write(self, folder: Path, name: str) -> ShardRepair:
        """Write the copy, and the archive of doubtful samples where there are any."""
        self._drop_unreadable()
        parts = self._join(list(self._split()))
        whole = [part for part in parts if not part.doubtful]
        doubtful = [part for part in parts if part.doubtful]
        output = self._write_parts(folder / name, whole)
        beside = None
        if doubtful:
            beside = self._write_parts(folder / f"{name}{_DOUBTFUL}", doubtful)
        return ShardRepair(
            url=self._report.url,
            output=output,
            doubtful=beside,
            samples=sum(part.key is not None for part in whole),
            doubtful_keys=tuple(part.key for part in doubtful if part.key is not None),
            merged_keys=tuple(dict.fromkeys(self._merged)),
            dropped=tuple(self._dropped),
            counts=self._report.counts,
            remaining=_check_copy(output),
            unread=self._report.unread,
        )

    def _drop_unreadable(self) -> None:
        """Tell of members that have no bytes, which are not among those recorded."""
        for finding in self._report.findings:
            if finding.code in ("symbolic-link", "special-member", "unknown-type"):
                self._dropped.append((finding.member or "", finding.offset or 0, finding.message))

    def _split(self) -> Iterator[_Part]:
        """Yield runs of members with one key, in order."""
        part: _Part | None = None
        latest: dict[str, MemberPosition] = {}
        for name, place, offset in self._record.members:
            if offset in self._record.targets and place.payload == offset:
                target = latest.get(self._record.targets[offset])
                if target is None:
                    self._dropped.append(
                        (name, offset, f"a hard link to {self._record.targets[offset]!r}, which is not before it")
                    )
                    continue
                self._links[offset] = target
            elif place.payload + place.size > self._report.size_bytes and not place.sparse:
                self._dropped.append((name, offset, "cut: its bytes are not whole"))
                continue
            latest[name] = self._links.get(offset, place)
            key, field = (None, None) if is_meta(name) else base_plus_ext(name)
            if key is None or field is None:
                yield _Part(None, {name: place}, [offset])
                continue
            if part is not None and part.key != key:
                yield part
                part = None
            if part is None:
                part = _Part(key, {}, [])
            part.offsets.append(offset)
            if any(each.lower() == name.lower() for each in part.places):
                self._dropped.append((name, offset, "a field of this name stands before it in the sample"))
            else:
                part.places[name] = place
        if part is not None:
            yield part

    def _join(self, runs: list[_Part]) -> list[_Part]:
        """Put parts of samples together, and mark those beside damage."""
        self._mark(runs)
        parts: list[_Part] = []
        known: dict[str, list[_Part]] = {}
        for run in runs:
            others = known.setdefault(run.key, []) if run.key is not None else []
            partner = next((each for each in others if _lower(each).isdisjoint(_lower(run))), None)
            if partner is None:
                others.append(run)
                parts.append(run)
                continue
            partner.places |= run.places
            partner.offsets += run.offsets
            partner.doubtful |= run.doubtful
            if run.key is not None:
                self._merged.append(run.key)
        return parts

    def _mark(self, runs: list[_Part]) -> None:
        samples = [run for run in runs if run.key is not None]
        for finding in self._report.findings:
            if finding.code not in _DAMAGE:
                continue
            offset = self._report.size_bytes if finding.offset is None else finding.offset
            before = [run for run in samples if run.offsets[0] < offset]
            after = [run for run in samples if run.offsets[-1] >= offset]
            for run in (*before[-1:], *after[:1]):
                run.doubtful = True

    def _write_parts(self, path: Path, parts: list[_Part]) -> str:
        """Write an archive that appears under its name when it is complete."""
        header = make_header_maker(MemberStyle())
        partial = path.with_name(f".{path.name[:100]}.{os.getpid()}-{os.urandom(4).hex()}.partial")
        try:
            with partial.open("xb") as output:
                for part in parts:
                    for name, place in part.places.items():
                        self._copy(header, name, self._links.get(place.offset, place), output)
                output.write(END_MARK)
                output.flush()
                os.fsync(output.fileno())
            # the report comes last, and brings the names in the folder to the disk
            partial.replace(path)
        except OSError as error:
            raise SourceError(f"cannot write: {error.strerror}", url=str(path)) from error
        finally:
            partial.unlink(missing_ok=True)
        return str(path)

    def _copy(self, header: Callable[[str, int], bytes], name: str, place: MemberPosition, output: BinaryIO) -> None:
        """Copy one member."""
        if place.sparse:
            payload = self._targets.payload(place)
            if payload is None:
                self._dropped.append((name, place.offset, "a sparse member whose map cannot be read"))
                return
            output.write(header(name, len(payload)) + payload + PADDING[len(payload) & 511])
            return
        output.write(header(name, place.size))
        self._source.seek(place.payload)
        left = place.size
        while left:
            piece = self._source.read(min(left, _PIECE_BYTES))
            if not piece:
                raise SourceError("the shard has become shorter while it was copied", url=self._report.url)
            output.write(piece)
            left -= len(piece)
        output.write(PADDING[place.size & 511])


def _lower(part: _Part) -> set[str]:
    return {name.lower() for name in part.places}


def _check_copy(path: str) -> dict[str, int]:
    """Return what a check finds in a copy, fields aside."""
    check = ShardCheck(path, CheckRules(decode=False))
    with contextlib.closing(open_stream(path)) as stream:
        check.run(stream)
    return check.report().counts
