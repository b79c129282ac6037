"""``wds doctor``: what this machine and this installation offer, and what is wrong with them."""

import difflib
import importlib.metadata
import os
import platform
import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import click

from webdataset.cli import console, exit_status
from webdataset.core import settings
from webdataset.core.errors import UsageError
from webdataset.core.optional_imports import install_command
from webdataset.core.process_limits import find_file_limits
from webdataset.core.redaction import redact
from webdataset.samples.native_core import describe_native

_PACKAGE = "webdataset"
_MASK = "***"
_SECRET = re.compile(r"TOKEN|SECRET|PASSWORD|CREDENTIAL|CONNECTION_STRING|(?:^|_)(?:KEY|SAS)(?:_|$)")
_PLACE = re.compile(r"_(?:FILE|PATH)$")
_REQUIREMENT = re.compile(r"[A-Za-z0-9][\w.-]*")
_EXTRA = re.compile(r"extra\s*==\s*['\"]([\w-]+)['\"]")
_LEAST_SHARED_BYTES = 1 << 30
_LEAST_FILES = 1024
_LEAST_FREE_BYTES = 10 << 30
_SHARED_MEMORY = "/dev/shm"  # noqa: S108  looked at, never written to

_TEXT: Final[console.JsonSchema] = {"type": ["string", "null"]}
_COUNT: Final[console.JsonSchema] = {"type": ["integer", "null"]}
_VERSIONS: Final[console.JsonSchema] = {"type": "object", "additionalProperties": _TEXT}
_PARTS: Final[console.JsonSchema] = {
    "version": {"type": "string"},
    "python": {"type": "string"},
    "platform": {"type": "string"},
    "packages": {**_VERSIONS, "description": "what this package needs; null where it is missing"},
    "extras": {
        "type": "object",
        "description": "each extra: its packages with their versions, null where one is missing",
        "additionalProperties": _VERSIONS,
    },
    "cpus": {**_COUNT, "description": "that this process may use"},
    "shared_memory_bytes": _COUNT,
    "shared_memory_free_bytes": _COUNT,
    "open_files": {**_COUNT, "description": "that this process may have; null: no bound, or not known"},
    "start_method": {"type": "string"},
    "native": {"type": "string"},
    "cache": _TEXT,
    "cache_free_bytes": _COUNT,
    "settings": {"type": "object", "additionalProperties": {"type": "string"}, "description": "secrets are ***"},
    "problems": {"type": "array", "items": {"type": "string"}},
    "hints": {"type": "array", "items": {"type": "string"}},
}
SCHEMAS: Final[console.JsonSchema] = {
    "doctor": {
        "description": "One object.",
        "type": "object",
        "required": list(_PARTS),
        "properties": _PARTS,
        "additionalProperties": False,
    },
}


@click.command("doctor")
@click.option("--json", "as_json", is_flag=True, help="One JSON object; see 'wds schema doctor'.")
def doctor_command(*, as_json: bool) -> int | None:
    """Say what is installed, what this machine offers, which settings are set, and what is wrong.

    Nothing is imported or opened, and no request is sent; values of keys and tokens are shown as ***. The exit status
    is 1 where something is wrong. Hints are no reason for that.

    Examples:
      wds doctor
      wds doctor --json | jq .problems
    """
    found = examine_machine()
    if as_json:
        console.write_json(found)
    else:
        _write_text(found)
    return exit_status.NONE_FOUND if found["problems"] else None


def examine_machine() -> dict[str, Any]:
    """Return what :data:`SCHEMAS` describes."""
    packages, extras = list_requirements()
    shared, shared_free = _measure_folder(_SHARED_MEMORY)
    cache = settings.CACHE.get()
    cache_free = None if cache is None else _measure_folder(cache)[1]
    found = {
        "version": _find_version(_PACKAGE) or "not installed",
        "python": f"{platform.python_implementation()} {platform.python_version()} ({sys.executable})",
        "platform": platform.platform(),
        "packages": packages,
        "extras": extras,
        "cpus": _count_cpus(),
        "shared_memory_bytes": shared,
        "shared_memory_free_bytes": shared_free,
        "open_files": find_file_limits()[0],
        "start_method": _find_start_method(),
        "native": describe_native(),
        "cache": cache,
        "cache_free_bytes": cache_free,
        "settings": list_settings(),
    }
    lacking = [name for name, version in packages.items() if version is None]
    problems = [f"package {name} is missing: {install_command()}" for name in lacking]
    return {**found, "problems": problems + list(_find_wrong_settings()), "hints": list(_find_hints(found))}


def list_requirements() -> tuple[dict[str, str | None], dict[str, dict[str, str | None]]]:
    """Return the packages that are needed, and those of each extra, with their versions; None where one is missing."""
    try:
        lines = importlib.metadata.requires(_PACKAGE) or []
    except importlib.metadata.PackageNotFoundError:
        lines = []
    packages: dict[str, str | None] = {}
    extras: dict[str, dict[str, str | None]] = {}
    for line in lines:
        requirement, _, marker = line.partition(";")
        name = _REQUIREMENT.match(requirement.strip())
        extra = _EXTRA.search(marker)
        if name is None or name[0].lower() == _PACKAGE:  # the latter: the extra that is all others
            continue
        place = packages if extra is None else extras.setdefault(extra[1], {})
        place[name[0]] = _find_version(name[0])
    return packages, extras


def _find_version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _count_cpus() -> int | None:
    allowed = getattr(os, "sched_getaffinity", None)
    return os.cpu_count() if allowed is None else len(allowed(0))


def _measure_folder(folder: str) -> tuple[int | None, int | None]:
    """Return size and free space of the file system of a folder, or of the nearest folder above that exists."""
    path = Path(folder).absolute()
    while not path.exists() and path != path.parent and folder != _SHARED_MEMORY:
        path = path.parent
    try:
        usage = shutil.disk_usage(path)
    except OSError:
        return None, None
    return usage.total, usage.free


def _find_start_method() -> str:
    import multiprocessing  # noqa: PLC0415  after --help

    return multiprocessing.get_start_method()


def list_settings() -> dict[str, str]:
    """Return the environment variables of this library that are set; secrets as ``***``."""
    names = [each.name for each in vars(settings).values() if isinstance(each, settings.EnvironmentVariable)]
    names += [name for name in settings.child_environment() if name.startswith("WDS_")]
    found = {}
    for name in sorted(set(names)):
        text = settings.read_variable(name)
        if text is not None:
            found[name] = mask_setting(name, text)
    return found


def mask_setting(name: str, text: str) -> str:
    """Return the text of a variable as it may be shown.

    Args:
        name: of the variable.
        text: of it.
    """
    if _SECRET.search(name) and not _PLACE.search(name) and not text.startswith(("env:", "file:")):
        return _MASK
    return redact(text)


def _find_wrong_settings() -> Iterator[str]:
    for each in vars(settings).values():
        if isinstance(each, settings.EnvironmentVariable):
            try:
                each.get()
            except UsageError as error:
                shown = "its text" if _SECRET.search(each.name) else redact(str(error))
                yield f"{each.name} cannot be read: {shown}"


def _find_hints(found: dict[str, Any]) -> Iterator[str]:
    for name, parts in found["extras"].items():
        missing = [each for each, version in parts.items() if version is None]
        if missing:
            yield f"extra {name} is not installed ({', '.join(missing)}): {install_command(name)}"
    shared = found["shared_memory_bytes"]
    if shared is not None and shared < _LEAST_SHARED_BYTES:
        yield (
            f"{_SHARED_MEMORY} has {console.format_size(shared)}: batches of worker processes go through it; start the "
            "container with --shm-size=8g, or use threads"
        )
    files = found["open_files"]
    if files is not None and files <= _LEAST_FILES:
        yield f"{files} open files are allowed: many workers and shards need more, 'ulimit -n 65536'"
    free = found["cache_free_bytes"]
    if free is not None and free < _LEAST_FREE_BYTES:
        yield f"the cache {found['cache']} has {console.format_size(free)} of free space"
    known = [each.name for each in vars(settings).values() if isinstance(each, settings.EnvironmentVariable)]
    for name in found["settings"]:
        # WDS_S3_NAME_REGION and the like are fields of profiles
        near = difflib.get_close_matches(name, known, 1, 0.85)
        if name not in known and near and not name.startswith("WDS_S3_"):
            yield f"{name} is set, and is no setting of this library; did you mean {near[0]}?"


def _write_text(found: dict[str, Any]) -> None:
    def size(number: int | None) -> str:
        return "not known" if number is None else console.format_size(number)

    shared = f"{size(found['shared_memory_bytes'])}, {size(found['shared_memory_free_bytes'])} free"
    cache = "none (WDS_CACHE is not set)"
    if found["cache"] is not None:
        cache = f"{found['cache']}, {size(found['cache_free_bytes'])} free"
    rows = [(name, str(found[name])) for name in ("version", "python", "platform", "cpus")]
    files = "no bound" if found["open_files"] is None else str(found["open_files"])
    rows += [("shared memory", shared), ("open files", files)]
    rows += [("start method", found["start_method"]), ("native core", found["native"]), ("cache", cache)]
    packages = [f"{name} {version}" for name, version in found["packages"].items() if version]
    rows += [("packages", ", ".join(packages))]
    complete = [name for name, parts in found["extras"].items() if None not in parts.values()]
    rows += [("extras", ", ".join(complete) or "none")]
    chosen = [f"{name}={text}" for name, text in found["settings"].items()]
    rows += [("settings" if not number else "", text) for number, text in enumerate(chosen)]
    console.write_table([name, console.escape_name(text)] for name, text in rows)
    for label in ("problems", "hints"):
        for text in found[label]:
            console.write_line(f"{label[:-1]}: {console.escape_name(text)}")
