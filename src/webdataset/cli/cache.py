"""``wds cache``: what a cache directory holds, whether it is whole, and how it is made smaller or filled."""

import os
import time
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

import click

from webdataset.cli import console, exit_status
from webdataset.cli.inputs import Inputs, input_options
from webdataset.core.errors import NotFound, UsageError

_PIECE_BYTES = 1 << 20
_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}
_DAY_SECONDS = 86400
_STATES = ("whole", "partial", "own", "changed", "damaged", "unchecked", "deleted", "busy", "kept", "failed")
SCHEMAS: Final[console.JsonSchema] = {
    "cache": {
        "description": "One line a file; of warm, one line a shard.",
        "type": "object",
        "required": ["name", "url", "state", "size_bytes", "used"],
        "properties": {
            "name": {"type": ["string", "null"], "description": "path within the directory"},
            "url": {"type": ["string", "null"], "description": "where it came from, without query and credentials"},
            "state": {
                "enum": [*_STATES],
                "description": "ls: whole, partial, own (a file of the user's). verify: whole, damaged, changed "
                "(written to since), unchecked (no checksum). prune: deleted, busy. warm: kept, failed.",
            },
            "size_bytes": {"type": "integer", "minimum": 0},
            "used": {"type": ["number", "null"], "description": "last use, in seconds since 1970"},
        },
        "additionalProperties": False,
    },
}


class CacheFile(NamedTuple):
    """A file of a cache directory.

    Args:
        file: as the cache lists it.
        record: what the cache knows of it, or None.
        state: ``whole``, ``partial`` or ``own``.
    """

    file: Any
    record: Any
    state: str

    @property
    def url(self) -> str | None:
        """Where it came from."""
        return None if self.record is None else self.record.url

    def report(self, state: str) -> dict[str, Any]:
        """Return a line of output.

        Args:
            state: what is said of it.
        """
        name = os.path.relpath(self.file.path, self.file.folder)
        return {
            "name": name, "url": self.url, "state": state, "size_bytes": self.file.size_bytes, "used": self.file.used,
        }  # fmt: skip


def list_cache(folder: str) -> list[CacheFile]:
    """Return the files of a cache directory, by name.

    Args:
        folder: the directory.

    Raises:
        NotFound: there is none.
    """
    from webdataset.caching.eviction import list_files  # noqa: PLC0415  after --help
    from webdataset.caching.metadata import read_metadata  # noqa: PLC0415
    from webdataset.caching.names import CONTROL  # noqa: PLC0415

    path = Path(folder).absolute()
    if not path.is_dir():
        raise NotFound("there is no such cache directory", url=folder)
    if not (path / CONTROL).is_dir():
        raise NotFound(f"this is no cache directory: there is no folder {CONTROL} in it", url=folder)
    found = []
    for file in sorted(list_files(str(path)), key=lambda each: each.path):
        record = read_metadata(file.place.record) if file.name else None
        partial = file.path.endswith(".part") and file.path != file.place.final
        found.append(CacheFile(file, record, "partial" if partial else "whole" if file.ours else "own"))
    return found


@click.group("cache")
def cache_command() -> None:
    """Look into a cache directory, check it, make it smaller, fill it.

    DIR is what cache_dir= or WDS_CACHE names. Files that users put there are never deleted.

    Examples:
      wds cache ls /data/cache
      wds cache verify --delete /data/cache
      wds cache prune /data/cache --size 500G
      wds cache warm /data/cache s3://bucket/train-{000..099}.tar
    """


def _json_option(command: Callable[..., Any]) -> Callable[..., Any]:
    return click.option("--json", "as_json", is_flag=True, help="One JSON object a line; see 'wds schema cache'.")(
        command
    )


def _write(line: dict[str, Any], *, as_json: bool) -> None:
    if as_json:
        console.write_json(line)
        return
    size = console.format_size(line["size_bytes"])
    shown = [line["state"], size, line["name"] or "", "" if line["url"] is None else line["url"]]
    console.write_line("{:<9}  {:>7}  {}  {}".format(*map(console.escape_name, shown)).rstrip())


@cache_command.command("ls")
@click.argument("folder", metavar="DIR")
@_json_option
def ls_command(folder: str, *, as_json: bool) -> None:
    """List the files: state, size, name and where each came from; at the end, the sum.

    Examples:
      wds cache ls /data/cache
      wds cache ls --json /data/cache | jq -r 'select(.state == "partial") | .url'
    """
    files = list_cache(folder)
    for each in files:
        _write(each.report(each.state), as_json=as_json)
    if not as_json:
        total = sum(each.file.size_bytes for each in files)
        console.write_line(f"{console.summarize_counts({'files': len(files)})}, {console.format_size(total)}")


@cache_command.command("verify")
@click.argument("folder", metavar="DIR")
@click.option("--delete", is_flag=True, help="Delete what is damaged or changed, so that it is downloaded again.")
@_json_option
def verify_command(folder: str, *, delete: bool, as_json: bool) -> int | None:
    """Compare each whole download with the checksum that was taken when it came.

    The exit status is 1 where one differs.

    Examples:
      wds cache verify /data/cache
      wds cache verify --delete --json /data/cache
    """
    from webdataset.caching.eviction import delete_file  # noqa: PLC0415  after --help

    wrong = False
    files = [each for each in list_cache(folder) if each.state == "whole"]
    with console.Progress("verifying", len(files)) as progress:
        for each in progress.track(files):
            state = verify_file(each)
            bad = state in ("damaged", "changed")
            wrong = wrong or bad
            _write(each.report(state), as_json=as_json)
            if bad and delete and not delete_file(each.file):
                console.say(f"{each.file.path} is in use, or is no download any more: not deleted")
    return exit_status.NONE_FOUND if wrong else None


def verify_file(each: CacheFile) -> str:
    """Return ``whole``, ``damaged``, ``changed`` or ``unchecked``.

    Args:
        each: a whole file.
    """
    if each.record is None or each.record.crc32 is None:
        return "unchecked"
    with open(each.file.path, "rb") as stream:  # noqa: PTH123  the path as the cache lists it
        about = each.record.is_about(os.fstat(stream.fileno()))
        checksum = 0
        while piece := stream.read(_PIECE_BYTES):
            checksum = zlib.crc32(piece, checksum)
    if checksum != each.record.crc32:
        return "damaged" if about else "changed"
    return "whole"


@cache_command.command("prune")
@click.argument("folder", metavar="DIR")
@click.option("--size", metavar="BYTES", help="Delete what was used longest ago until this fits: 500G, 20M, 1000.")
@click.option("--days", type=click.FloatRange(min=0), help="Delete what was not used for so many days.")
@click.option("--all", "everything", is_flag=True, help="Delete all downloads.")
@click.option("-n", "--dry-run", is_flag=True, help="Say what would be deleted, and delete nothing.")
@_json_option
def prune_command(
    folder: str, *, size: str | None, days: float | None, everything: bool, dry_run: bool, as_json: bool
) -> int | None:
    """Delete downloads: never files of the user's, nor what a process of this machine reads or writes.

    Examples:
      wds cache prune /data/cache --size 500G
      wds cache prune /data/cache --days 30 --dry-run
    """
    from webdataset.caching.eviction import delete_file  # noqa: PLC0415  after --help

    if sum((size is not None, days is not None, everything)) != 1:
        raise UsageError("say one of --size BYTES, --days N and --all")
    busy = False
    for each in choose_files(list_cache(folder), None if size is None else parse_size(size), days):
        gone = dry_run or delete_file(each.file)
        busy = busy or not gone
        _write(each.report("deleted" if gone else "busy"), as_json=as_json)
    return exit_status.PARTIAL if busy else None


def choose_files(files: list[CacheFile], size_bytes: int | None, days: float | None) -> Iterator[CacheFile]:
    """Yield the downloads to delete, the one used longest ago first.

    Args:
        files: of the directory.
        size_bytes: what all files together may take, or None.
        days: how long a file may be unused, or None. Without either, all downloads are chosen.
    """
    total = sum(each.file.size_bytes for each in files)
    oldest = None if days is None else time.time() - days * _DAY_SECONDS
    for each in sorted((each for each in files if each.file.ours), key=lambda each: each.file.used):
        if size_bytes is not None and total <= size_bytes:
            return
        if oldest is not None and each.file.used > oldest:
            return
        total -= each.file.size_bytes
        yield each


def parse_size(text: str) -> int:
    """Return a number of bytes.

    Args:
        text: ``500G``, ``20MB``, ``1000``.

    Raises:
        UsageError: it is none.
    """
    plain = text.strip().lower().removesuffix("b")
    unit = plain[-1:] if plain[-1:] in ("k", "m", "g", "t") else ""
    number = plain.removesuffix(unit)
    try:
        found = float(number)
    except ValueError:
        found = -1
    if not 0 <= found < float("inf"):
        raise UsageError(f"--size {text}: a size is written 500G, 20M or 1000")
    return int(found * _UNITS[unit])


@cache_command.command("warm")
@click.argument("folder", metavar="DIR")
@input_options
@_json_option
def warm_command(folder: str, inputs: Inputs, *, as_json: bool) -> int | None:
    """Download shards into a cache directory, whole and checked, as a training would; what is there already stays.

    Local files are not copied. The exit status is 4 where some could not be kept; the others are.

    Examples:
      wds cache warm /data/cache s3://bucket/train-{000..099}.tar
    """
    from webdataset.caching.shard_cache import ShardCache  # noqa: PLC0415  after --help
    from webdataset.core.errors import WebDatasetError  # noqa: PLC0415
    from webdataset.core.redaction import redact  # noqa: PLC0415

    cache = ShardCache(folder, complete=True)
    failed = False
    with console.Progress("warming", len(inputs)) as progress:
        for url in progress.track(inputs):
            try:
                path, problem = fetch_shard(cache, url, inputs.storage_options), "the directory did not keep it"
            except WebDatasetError as error:
                path, problem = None, str(error)
            if path is None:
                failed = True
                console.say(problem)
            size = 0 if path is None else os.path.getsize(path)  # noqa: PTH202  the path as the cache gives it
            name = None if path is None else os.path.relpath(path, cache.folder)
            state = "failed" if path is None else "kept"
            used = None if path is None else os.stat(path).st_atime  # noqa: PTH116
            line = {"name": name, "url": redact(url), "state": state, "size_bytes": size, "used": used}
            _write(line, as_json=as_json)
    return exit_status.PARTIAL if failed else None


def fetch_shard(cache: Any, url: str, storage_options: Any) -> str | None:
    """Return the path of a shard in the cache, once it is there; the file itself where it is local.

    Args:
        cache: a :class:`~webdataset.caching.shard_cache.ShardCache` that gives complete shards.
        url: of the shard.
        storage_options: what it is opened with.

    Raises:
        WebDatasetError: it cannot be had.
    """
    from webdataset.core.error_handlers import reraise_exception  # noqa: PLC0415  after --help
    from webdataset.samples.shard_opener import open_shards  # noqa: PLC0415
    from webdataset.storage.open_url import local_path  # noqa: PLC0415

    local = local_path(url)
    if local is not None:
        if not os.path.isfile(local):  # noqa: PTH113
            raise NotFound("cannot open: no such file", url=url)
        return local

    def source(shards: Any, handler: Any) -> Any:
        return open_shards(shards, handler, prefetch=0, storage_options=storage_options)

    for shard in cache.open_shards([{"url": url}], source, reraise_exception, storage_options=storage_options):
        shard["stream"].close()
        found: str | None = shard.get("__local_path__")
        return found
    return None
