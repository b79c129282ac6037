"""Writes the page of the viewer as static files that read shards by byte ranges: no server of ours is needed.

The folder holds ``index.html``, the scripts and styles, a list of shards (a wids index), an index of each shard, the
statistics of all, and what a check of each found.
The name of everything but ``index.html`` is, or holds, a digest of its content: whatever a browser or a proxy has kept,
files of two versions never meet. Files of earlier versions stay for pages that are open.

The page may read the shards and its own files, and nothing else: a policy in it names the origins.
"""

import hashlib
import html
import os
import re
from collections.abc import Callable, Iterable, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Final, NamedTuple
from urllib.parse import quote, unquote, urlsplit

from webdataset.core.errors import AlreadyExists, NoRandomAccess, NotRepresentable, SourceError, TarError, UsageError
from webdataset.core.redaction import redact
from webdataset.index.formats import binary
from webdataset.index.indexed_shard import IndexedShard
from webdataset.index.publish import publish_file
from webdataset.inspection.field_preview import list_kinds
from webdataset.samples.sample_reader import Reading
from webdataset.shards.wids_index import KIND, VERSION
from webdataset.storage.open_url import local_path
from webdataset.viewer.field_views import MEDIA_TYPES
from webdataset.viewer.findings import check_shard, describe_report, find_ordinals
from webdataset.viewer.plain_values import dump_json
from webdataset.viewer.search import Budget
from webdataset.viewer.session import DatasetView
from webdataset.viewer.shard_bytes import BlockCache
from webdataset.viewer.statistics import collect_statistics

_Entry = dict[str, str | int | None]
_HERE: Final = Path(__file__).parent
_DIGITS: Final = 16
# of samples whose contents are counted
_COUNTED_SAMPLES: Final = 1000
_COUNTED_SECONDS: Final = 20.0
_COUNTED_BYTES: Final = 1 << 30
_SELF: Final = "'self'"
_MARK: Final = '<meta name="generator" content="wds view --publish">'
# a server of ours answers these by itself
_OWN: Final = frozenset(("index.html", "api.js"))


class PublishedPage(NamedTuple):
    """What was written.

    Args:
        page: path of ``index.html``.
        shards: how many it shows.
        samples: in them.
        left_out: shards that cannot be read by ranges, each with the reason.
        findings: of the checks of all that it shows; None where they were not checked.
    """

    page: str
    shards: int
    samples: int
    left_out: dict[str, str]
    findings: int | None = None


def publish_page(
    shards: Sequence[str],
    folder: str,
    reading: Reading,
    *,
    shards_url: str | None = None,
    check: bool = False,
    step: Callable[[str], None] = lambda _: None,
) -> PublishedPage:
    """Write the page.

    Args:
        shards: paths or urls.
        folder: is made where it does not exist.
        reading: the rules of reading.
        shards_url: the address under which browsers find the shards, each by the last part of its name; None for
            local files, which stand where they are relative to the folder, and for urls that browsers open.
        check: read the shards whole, as ``wds check`` does, and show what is found.
        step: called with each shard before its headers are read, and again before it is checked.

    Raises:
        UsageError: a shard that browsers cannot reach, two of one name, or none that can be shown.
        AlreadyExists: the folder holds another page.
        SourceError: a shard cannot be read, or the page cannot be written.
    """
    addresses = _find_addresses(shards, folder, shards_url)
    page = os.path.join(folder, "index.html")  # noqa: PTH118  as the user wrote it
    _refuse_to_replace(page)
    entries: list[_Entry] = []
    samples = 0
    left_out: dict[str, str] = {}
    for shard, address in zip(shards, addresses, strict=True):
        step(shard)
        try:
            with IndexedShard(shard, reading=reading) as opened:
                index = opened.index
                content = binary.dumps(index)
        except (NoRandomAccess, NotRepresentable, TarError) as error:
            left_out[shard] = error.message
            continue
        name = _write_content(folder, "indexes", content, ".wdsindex")
        samples += len(index)
        entries.append({"url": address, "nsamples": len(index), "filesize": index.size_bytes, "index": name})
    if not entries:
        reasons = "; ".join(dict.fromkeys(left_out.values()))
        raise UsageError(f"none of these shards can be read by ranges, which a published page needs: {reasons}")
    shown = [shard for shard in shards if shard not in left_out]
    indexes = [os.path.join(folder, str(entry["index"])) for entry in entries]  # noqa: PTH118
    view = DatasetView("", shown, reading, BlockCache(), indexes)
    try:
        findings = _write_findings(view, folder, entries, step) if check else None
        statistics = _write_statistics(view, folder)
    finally:
        view.close()
    _write_page(page, folder, entries, statistics)
    return PublishedPage(page, len(entries), samples, left_out, findings)


def _write_statistics(view: DatasetView, folder: str) -> str:
    """Write the statistics of the shards; return the file's name."""
    budget = Budget(_COUNTED_SECONDS, _COUNTED_BYTES)
    found = collect_statistics(view, samples=_COUNTED_SAMPLES, budget=budget)
    # messages may hold paths of this machine
    found["problems"] = ["Some samples could not be read: wds check says why."] if found["problems"] else []
    return _write_content(folder, "statistics", dump_json(found), ".json")


def _write_findings(view: DatasetView, folder: str, entries: list[_Entry], step: Callable[[str], None]) -> int:
    """Check each shard, write what is found, and name the files in the entries; return how much was found."""
    total = 0
    for number, entry in enumerate(entries):
        shard = view.shard(number)
        step(shard.url)
        report = check_shard(shard, view.reading.storage_options)
        total += sum(report.counts.values())
        found = describe_report(report, find_ordinals(shard, report.findings))
        entry["findings"] = _write_content(folder, "findings", dump_json(found), ".json")
    return total


def _write_page(page: str, folder: str, entries: list[_Entry], statistics: str) -> None:
    """Write the list of shards, the scripts and styles, and last the page that names them."""
    first = unquote(str(entries[0]["url"]).rpartition("/")[2])
    document = {
        "__kind__": KIND,
        "wids_version": VERSION,
        "name": first if len(entries) == 1 else f"{first} and {len(entries) - 1} more",
        "version": version("webdataset"),
        "kinds": list_kinds(),
        "types": MEDIA_TYPES,
        "statistics": statistics,
        "shardlist": entries,
    }
    listed = _write_content(folder, "lists", dump_json(document), ".json")
    files = {path.name: path.read_bytes() for path in sorted((_HERE / "static").iterdir()) if path.name not in _OWN}
    files |= {path.name: path.read_bytes() for path in sorted((_HERE / "published").iterdir()) if path.suffix == ".js"}
    digest = hashlib.sha256(b"".join(b"%s %d\n" % (name.encode(), len(files[name])) + files[name] for name in files))
    assets = f"assets-{digest.hexdigest()[:_DIGITS]}"
    _make_folder(os.path.join(folder, assets))  # noqa: PTH118
    for name, content in files.items():
        publish_file(os.path.join(folder, assets, name), content)  # noqa: PTH118
    publish_file(page, _make_html(assets, listed, (str(entry["url"]) for entry in entries)).encode())


def _make_html(assets: str, listed: str, addresses: Iterable[str]) -> str:
    origins = dict.fromkeys(_find_origin(address) for address in addresses if "://" in address)
    policy = (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob:; media-src blob:; "
        f"connect-src {' '.join((_SELF, *origins))}; "
        "base-uri 'none'; form-action 'none'; require-trusted-types-for 'script'"
    )
    head = (
        f'<meta http-equiv="Content-Security-Policy" content="{html.escape(policy, quote=False)}">\n'
        f'{_MARK}\n<meta name="wds-shards" content="{listed}">\n'
    )
    text = (_HERE / "static" / "index.html").read_text("utf-8")
    text = text.replace('<meta name="viewport"', f'{head}<meta name="viewport"', 1).replace('"/static/', f'"{assets}/')
    told = "If this stays, the page was opened as a file: serve its folder over HTTP."
    return text.replace("Opening…", f"Opening… {told}", 1)


def _find_origin(address: str) -> str:
    parts = urlsplit(address)
    return f"{parts.scheme}://{parts.netloc}"


def _find_addresses(shards: Sequence[str], folder: str, shards_url: str | None) -> list[str]:
    """Return the urls by which the page opens shards: relative to it, or absolute."""
    if shards_url is None:
        return [_find_address(shard, folder) for shard in shards]
    if not re.fullmatch(r"https?://[^\s'\";,]+|[^:\s'\";,]+", shards_url):
        raise UsageError(f"--shards-url {redact(shards_url)}: an http(s) url, or a path relative to the page")
    _refuse_secrets(shards_url)
    names = [quote(shard.partition("?")[0].rstrip("/").rpartition("/")[2]) for shard in shards]
    if len(set(names)) < len(names):
        raise UsageError("two of the shards have one name, and --shards-url finds them by their names")
    return [f"{shards_url.rstrip('/')}/{name}" for name in names]


def _find_address(shard: str, folder: str) -> str:
    path = local_path(shard)
    if path is not None and shard != "-":
        relative = os.path.relpath(os.path.realpath(path), os.path.realpath(folder))
        return quote(os.fsencode(relative))
    if not re.match(r"https?://", shard, re.IGNORECASE):
        raise UsageError(
            f"browsers cannot open {redact(shard)}: pass --shards-url, the http(s) address where it is served"
        )
    _refuse_secrets(shard)
    return quote(shard, safe=":/?#[]@!$&()*+,;=%~")


def _refuse_secrets(url: str) -> None:
    if redact(url) != url:
        raise UsageError(
            f"{redact(url)} holds a password or a signature, which all who open the page would see: pass --shards-url "
            "with an address that needs none"
        )


def _refuse_to_replace(page: str) -> None:
    """Raise where a page of another program lies there."""
    try:
        with open(page, encoding="utf-8", errors="replace") as file:  # noqa: PTH123
            ours = _MARK in file.read(4096)
    except FileNotFoundError:
        return
    except OSError as error:
        raise SourceError(f"cannot be read: {error.strerror}", url=page) from error
    if not ours:
        raise AlreadyExists("this page is none of wds view: name another folder", url=page)


def _make_folder(folder: str) -> None:
    try:
        os.makedirs(folder, exist_ok=True)  # noqa: PTH103
    except OSError as error:
        raise SourceError(f"cannot make the folder: {error.strerror}", url=folder) from error


def _write_content(folder: str, kind: str, content: bytes, suffix: str) -> str:
    """Write a file under the digest of its content; return its path relative to the page."""
    name = f"{kind}/{hashlib.sha256(content).hexdigest()[:_DIGITS]}{suffix}"
    _make_folder(os.path.join(folder, kind))  # noqa: PTH118
    publish_file(os.path.join(folder, *name.split("/")), content)  # noqa: PTH118
    return name
