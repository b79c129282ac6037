"""The verbs of ``wids-index`` that write: create and update.

An index file is complete, or not there at all.
"""

import argparse
import json
import posixpath
import re
import sys
from collections.abc import Callable, Iterable
from itertools import takewhile
from pathlib import Path
from typing import Any

from webdataset.core.errors import FormatError, UsageError
from webdataset.core.redaction import redact
from webdataset.index.build import index_shards
from webdataset.shards import urls as places
from webdataset.shards.expand import expand_urls
from webdataset.shards.wids_index import VERSION, WidsShard, check_version, load_document, make_document
from webdataset.storage.same_file import InputFiles
from webdataset.writing.outputs import open_output


def create(chosen: argparse.Namespace) -> int:
    """Index shards and write the index.

    Args:
        chosen: the command line.

    Returns:
        The exit status: 3 where shards were left out.

    Raises:
        UsageError: a command line that makes no sense.
        SourceError: a shard cannot be read, or the index not be written.
        FormatError: a shard is damaged.
    """
    if chosen.jobs < 1:
        raise UsageError(f"-j {chosen.jobs}: at least one shard is read at a time")
    urls = _list_shards(chosen.files)
    if not urls:
        raise UsageError("no shards: no names were given on stdin")
    if chosen.output.lower().endswith(places.SHARD_ENDINGS):
        # -o *.tar, written out by the shell
        raise UsageError("an index would replace a shard: name a .json file with -o", url=chosen.output)
    InputFiles(urls).refuse(chosen.output)
    description = _read_description(chosen.info)
    named = _make_namer(chosen)
    failures: list[Exception] = []

    def left_out(error: Exception) -> bool:
        if not chosen.skip_bad:
            return False
        failures.append(error)
        print(f"wids-index: left out: {error}", file=sys.stderr)
        return True

    hashes = () if chosen.no_md5 else ("md5",)
    shards = [
        WidsShard(named(index.url), len(index), index.size_bytes, index.hashes.get("md5"))
        for index in index_shards(urls, threads=chosen.jobs, handler=_make_handler(left_out), hashes=hashes)
    ]
    _check_distinct(shards)
    _warn_of_secrets(shards)
    name = chosen.name if chosen.name is not None else _common_name(urls)
    document = make_document(shards, name=name, base=chosen.base, info=description, keep=chosen.keep or None)
    write_index(chosen.output, document)
    _report(chosen, {"output": chosen.output, "name": name, "shards": len(shards), "failed": len(failures)}, document)
    return 3 if failures else 0


def update(chosen: argparse.Namespace) -> int:
    """Change an index in place; the old one stays as ``.bak``.

    Args:
        chosen: the command line.

    Returns:
        The exit status.

    Raises:
        UsageError: nothing to change, or ``-B`` without a base.
        NotFound: no such index.
        FormatError: it is no index.
    """
    wanted = (chosen.name, chosen.keep, chosen.info, chosen.dir, chosen.base)
    if all(each is None for each in wanted) and not (chosen.nodir or chosen.rebase):
        raise UsageError("nothing to change: pass one of -n -k -K -i -D -d -b -B")
    if not Path(chosen.filename).is_file():
        raise UsageError("only a local index can be changed, and there is no such file", url=chosen.filename)
    _, document = load_document(chosen.filename)
    check_version(document, chosen.filename, VERSION)
    if chosen.name is not None:
        document["name"] = chosen.name
    if chosen.keep is not None:
        document["keep"] = chosen.keep
    if chosen.info is not None:
        document["info"] = _read_description(chosen.info) if Path(chosen.info).is_file() else chosen.info
    if chosen.base is not None:
        document["base"] = chosen.base
    change = _make_url_change(chosen, document)
    if change is not None:
        _change_urls(document, change, chosen.filename)
    if chosen.rebase:
        document.pop("base", None)
    old = Path(chosen.filename).read_bytes()
    _write_file(chosen.filename + ".bak", old)
    write_index(chosen.filename, document)
    _report(chosen, {"output": chosen.filename, "backup": chosen.filename + ".bak"}, document)
    return 0


def write_index(path: str, document: Any) -> None:
    """Write an index, whole or not at all.

    Args:
        path: the file; ``-`` is stdout.
        document: what to write.

    Raises:
        SourceError: the file cannot be written.
    """
    text = json.dumps(document, indent=2) + "\n"
    if path == "-":
        sys.stdout.write(text)
        return
    _write_file(path, text.encode("utf-8"))


def _write_file(path: str, content: bytes) -> None:
    output = open_output(path)
    try:
        output.write([content], len(content))
        output.commit()
    except BaseException:  # whatever happens, no half of a file stays
        output.abort()
        raise


def _make_handler(left_out: Callable[[Exception], bool]) -> Callable[[Exception], bool]:
    def handler(error: Exception) -> bool:
        if left_out(error):
            return True
        raise error

    return handler


def _list_shards(files: Iterable[str]) -> list[str]:
    """Return the shards that the command line names, each once, in order."""
    urls: dict[str, None] = {}
    for name in files:
        if name == "-":
            lines = [line.strip() for line in sys.stdin]
            urls.update(dict.fromkeys(url for line in lines if line for url in expand_urls(line)))
        else:
            urls.update(dict.fromkeys(expand_urls(name)))
    return list(urls)


def _read_description(info: str | None) -> str | None:
    return None if info is None else Path(info).read_text(encoding="utf-8")


def _make_namer(chosen: argparse.Namespace) -> Callable[[str], str]:
    """Return how shards are named in the index, so that reading it finds them again."""
    if chosen.as_given:
        return str
    if chosen.base is not None:
        base = chosen.base.rstrip("/") + "/"
        return lambda url: url.removeprefix(base) if not url.startswith("/") or base[0] == "/" else Path(url).name
    if chosen.output == "-":
        return str
    folder = str(places.parent_folder(chosen.output))
    return lambda url: places.relative_url(folder, url)


def _check_distinct(shards: list[WidsShard]) -> None:
    seen: set[str] = set()
    for shard in shards:
        if shard.url in seen:
            raise UsageError(
                "two shards would have this name in the index: give each once (with -b, absolute paths are known by "
                "their file names: let these differ, or pass --as-given)",
                url=shard.url,
            )
        seen.add(shard.url)


def _warn_of_secrets(shards: list[WidsShard]) -> None:
    secret = [shard.url for shard in shards if redact(shard.url) != shard.url]
    if secret:
        print(f"wids-index: {len(secret)} urls in the index hold passwords or tokens, {redact(secret[0])} first: "
              "keep the index to yourself, or name the shards without them and pass -b", file=sys.stderr)  # fmt: skip


def _common_name(urls: list[str]) -> str | None:
    """Return a dataset name out of what the names of the shards begin with."""
    urls = [re.split("[?#]", url)[0] if places.is_url(url) else url for url in urls]  # a token is no name
    # letters, not folders: s-0.tar and s-1.tar have "s-" in common
    alike = takewhile(lambda letters: len(set(letters)) == 1, zip(*urls, strict=False))
    common = "".join(letters[0] for letters in alike)
    if common == urls[0]:
        common = re.sub(r"\.(tar|tgz)(\.\w+)?$", "", common)
    words = [word for word in re.split(r"\W+", re.sub(r"^\w+://[^/]*", "", common)) if word and not word.isdigit()]
    return "-".join(words[-3:]) or None


def _make_url_change(chosen: argparse.Namespace, document: dict[str, Any]) -> Callable[[str], str] | None:
    """Return how urls change."""
    if chosen.nodir:
        return posixpath.basename
    if chosen.dir is not None:
        return lambda url: posixpath.join(chosen.dir, posixpath.basename(url))
    if chosen.rebase:
        base = document.get("base")
        if not isinstance(base, str):
            raise UsageError("-B joins urls to a base: pass -b BASE, for the index has none", url=chosen.filename)
        return lambda url: places.join_url(base, url)
    return None


def _change_urls(document: dict[str, Any], change: Callable[[str], str], place: str) -> None:
    for part in [document, *document.get("datasets", ())]:
        for number, shard in enumerate(part.get("shardlist", ())):
            if not isinstance(shard, dict) or not isinstance(shard.get("url"), str):
                raise FormatError("a shard without a url", url=place, field=f"shardlist[{number}]")
            shard["url"] = change(shard["url"])


def _report(chosen: argparse.Namespace, found: dict[str, Any], document: dict[str, Any]) -> None:
    entries = document.get("shardlist", [])
    found = {
        **found,
        "shards": len(entries),
        "samples": sum(entry.get("nsamples", 0) for entry in entries),
        "bytes": sum(entry.get("filesize") or 0 for entry in entries),
    }
    out = sys.stderr if found["output"] == "-" else sys.stdout
    if chosen.json:
        print(json.dumps(found), file=out)
    else:
        print(
            f"{found['output']}: {found['shards']} shards, {found['samples']} samples, {found['bytes']} bytes", file=out
        )
