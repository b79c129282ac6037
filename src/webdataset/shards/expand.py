"""Expands what a user writes to a list of urls: ``::``, ``${NAME}``, braces, wildcards.

Only a single text is expanded; the members of a list or other iterable are taken unchanged. The pattern functions of
the published ``shardlists`` stand here too: matching with ``*``, ``?``, ``[...]`` and braces.
"""

import fnmatch
import glob
import os
import re
from collections.abc import Iterable, Sequence
from itertools import chain, islice
from typing import Any

from webdataset.core import settings
from webdataset.core.errors import NotFound, UsageError
from webdataset.core.logs import log
from webdataset.core.redaction import redact
from webdataset.core.tracebacks import warn_user
from webdataset.shards.lazy_urls import LAZY_FROM, BraceText, LazyUrls
from webdataset.shards.urls import SHARD_ENDINGS, literal_path
from webdataset.storage.open_url import is_local, rewrite_url
from webdataset.storage.streams import path_of

_IS_WINDOWS = os.name == "nt"
_NAME = re.compile(r"\$\{(\w+)\}")
_WILD = re.compile(r"[*?\[]")
# programs name several folders in this way, and take the name apart when they open it
_LISTS = re.compile(r"\[[^][/]*,[^][/]*\]")
_BRACES = re.compile(r"[{}\\]")
_BRACE_TOKENS = re.compile(r"\\.|\{(?P<first>-?\d+|[A-Za-z])\.\.(?P<last>-?\d+|[A-Za-z])(?:\.\.-?\d+)?\}|[{},]")
_IPV6 = re.compile(r"://(?:[^/\s@]*@)?\[[0-9A-Fa-f:.]+(?:%[\w.]+)?\](?=[:/])")
# some of the names may end with a slash
_PERHAPS_FOLDERS = re.compile(r"[,{/][,}]|/$")
_MOST_DIGITS = 18
# indexes, receipts, sizes, markers, what a hidden folder holds
_BESIDE = re.compile(r"/[._]|\.(?:json|jsonl|idx|index|sqlite|yaml|yml|txt|csv|tsv|md|crc|md5|sha256)$", re.IGNORECASE)
_MOST_NESTED = 100
_ROUNDS = 10
MOST_NAMES = 100_000_000
MAX_URLS = 1_000_000_000


def expand_urls(urls: object, *, storage_options: object = None) -> list[Any]:
    """Return the urls that an expression stands for.

    Args:
        urls: one text or path, or an iterable of texts, paths and open binary files, or one open binary file. A
            text is split at ``::``; ``${NAME}`` becomes the environment variable ``WDS_NAME``; ``{000..099}`` and
            ``{a,b}`` expand; ``*``, ``?`` and ``[…]`` match local files and S3 objects, in sorted order, unless a
            file of just that name exists; a file whose name looks like a url (``pipe:…``) is found as ``./pipe:…``; a
            name that matches nothing stays as it is, and so do brackets with commas (``[rgb,tok]``).
            ``s3://bucket/folder/`` stands for all shards under it, by the ends of their names (for all objects, where
            none ends so). Urls that the environment rewrites stand for what
            is there in place of them, by the names that lead to it.
            An iterable is taken as it stands, braces and all.
        storage_options: what S3 objects are listed with; see :func:`webdataset.config.profile_for`.

    Returns:
        The urls.

    Raises:
        UsageError: braces that do not close, a variable that is not set, a member that is no url.
        SourceError: objects cannot be listed, or a folder has none.
    """
    if isinstance(urls, str):
        return [url for part in split_urls(urls) for url in _expand_text(substitute_environment(part), storage_options)]
    if isinstance(urls, os.PathLike):
        return _expand_text(os.fsdecode(urls), storage_options)
    if hasattr(urls, "read"):
        return [urls]
    if isinstance(urls, bytes) or not isinstance(urls, Iterable):
        raise UsageError(f"urls are a str, a Path, or an iterable of them, not {type(urls).__name__}")
    return [url if type(url) is str else _verbatim(url) for url in urls]


def expand_to_sequence(urls: object, *, storage_options: object = None) -> Sequence[Any]:
    """Return what :func:`expand_urls` returns; where braces stand for very many urls, they are made when asked for.

    Args:
        urls: as there.
        storage_options: as there.

    Raises:
        UsageError: as there.
        SourceError: as there.
    """
    if not isinstance(urls, str | os.PathLike):
        return expand_urls(urls)
    parts: list[BraceText | list[str]] = []
    for part in split_urls(urls) if isinstance(urls, str) else [os.fsdecode(urls)]:
        text = substitute_environment(part) if isinstance(urls, str) else part
        if _IS_WINDOWS:
            text = _use_slashes(text)
        parts.append(_find_many(text) or _expand_text(text, storage_options))
    return LazyUrls(parts) if BraceText in map(type, parts) else list(chain.from_iterable(parts))


def _find_many(text: str) -> BraceText | None:
    """Return the very many urls of a text with braces; None where they are fewer, or the text says more than that."""
    if not _BRACES.search(text) or _WILD.search(text) or _PERHAPS_FOLDERS.search(text):
        return None
    if not LAZY_FROM <= _count_names(text, MOST_NAMES) <= MOST_NAMES or os.path.lexists(text):
        return None
    try:
        return BraceText(text)
    except ValueError:
        return None


def split_urls(text: str) -> list[str]:
    """Return the expressions that ``::`` separates; those of IPv6 addresses, as in ``http://[::1]/``, do not."""
    if "://[" not in text:
        return text.split("::")
    return [part.replace("\0", "::") for part in _IPV6.sub(_guard_colons, text).split("::")]


def _guard_colons(address: re.Match[str]) -> str:
    return address[0].replace("::", "\0")


def expand_source(source: object, max_urls: int = MAX_URLS, *, storage_options: object = None) -> list[Any]:
    """Return the urls of a source of shards.

    Args:
        source: as for :func:`expand_urls`, or an iterable of ``{"url": …}`` such as a shard list.
        max_urls: the most urls to take from an iterable; a warning says where there were more.
        storage_options: how the objects of a folder or wildcard are listed.

    Raises:
        UsageError: something that gives no urls.
    """
    if isinstance(source, str | os.PathLike | list | bytes) or not isinstance(source, Iterable):
        return expand_urls(source, storage_options=storage_options)
    shards = iter(source)
    urls = expand_urls(islice(shards, max(0, int(max_urls))))
    if len(urls) >= max_urls and next(shards, None) is not None:
        warn_user(f"only the first {max_urls} urls of {source!r} are used: pass a larger max_urls")
    return urls


def _verbatim(url: object) -> object:
    if isinstance(url, dict) and "url" in url:
        url = url["url"]
    if isinstance(url, os.PathLike):
        return os.fsdecode(url)
    if isinstance(url, str) or hasattr(url, "read"):
        return url
    raise UsageError(f"each url is a str or a Path, not {url!r}")


def substitute_environment(text: str) -> str:
    """Return a text with every ``${NAME}`` replaced by the environment variable ``WDS_NAME``.

    Raises:
        UsageError: a variable is not set.
    """
    for _ in range(_ROUNDS):
        text, count = _NAME.subn(lambda match: settings.substitution_text(match[1]), text)
        if not count:
            break
    return text


def _use_slashes(text: str) -> str:
    """Return a path of Windows with slashes, which separate folders there, too; urls and commands as they are."""
    return text.replace("\\", "/") if is_local(text) else text


def _expand_text(text: str, storage_options: object = None) -> list[str]:
    """Expand braces and wildcards, unless a file of just this name exists."""
    if _IS_WINDOWS:
        text = _use_slashes(text)
    if not _BRACES.search(text):
        return expand_name(text, storage_options)
    if os.path.lexists(text):
        return [text]
    return [match for url in expand_braces(text) for match in expand_name(url, storage_options)]


def expand_braces(text: str, most: int = MOST_NAMES) -> list[str]:
    """Return the texts that ``{1..3}`` and ``{a,b}`` in a text stand for.

    Args:
        text: any text; a backslash before a brace takes it literally, but not on Windows.
        most: the most texts that it may stand for.

    Raises:
        UsageError: a brace that does not close, or more names than can be meant.
    """
    if _IS_WINDOWS:
        text = _use_slashes(text)
    if not _BRACES.search(text):
        return [text]
    if _count_names(text, most) > most:
        raise UsageError(f"{text[:200]!r} stands for more than {most} names: split it")
    import braceexpand  # noqa: PLC0415  only where there are braces

    try:
        return list(braceexpand.braceexpand(text, escape=not _IS_WINDOWS))
    except ValueError as error:
        raise UsageError(f"braces do not close in {text!r}: write \\{{ for a brace that stands for itself") from error


def _count_names(text: str, most: int) -> int:
    """Return how many names a text stands for, or more than ``most``: then the count is broken off."""
    # where braces do not close, alternatives are multiplied: no reading of the text gives more
    around: list[tuple[int, int]] = []
    # of the alternatives before in this pair of braces, of this one, of all
    names, product, crude = 0, 1, 1
    for match in _BRACE_TOKENS.finditer(text):
        mark, width = match[0], 1
        if match["first"]:
            width = _range_length(match["first"], match["last"])
            product *= width
        elif mark == "{":
            around.append((names, product))
            names, product = 0, 1
        elif mark == "," and around:
            names, product, width = names + product, 1, 2
        elif mark == "}" and around:
            inner = names + product
            names, product = around.pop()
            product *= inner
        crude = min(crude * width, most + 1)
        if product > most:
            return product
        if len(around) > _MOST_NESTED:
            raise UsageError(f"braces are nested more than {_MOST_NESTED} deep in {text[:200]!r}")
    return crude if around else product


def _range_length(first: str, last: str) -> int:
    if first.isalpha():
        return abs(ord(first) - ord(last)) + 1
    if max(len(first), len(last)) > _MOST_DIGITS:
        return int(10**_MOST_DIGITS)
    return abs(int(first) - int(last)) + 1


def expand_name(url: str, storage_options: object = None) -> list[str]:
    """Return what a text with wildcards, or a folder of a store, stands for; any other text as it is.

    Args:
        url: nothing else in it is expanded.
        storage_options: what objects are listed with.

    Raises:
        SourceError: objects cannot be listed, or a folder has none.
        UsageError: the environment rewrites it to what cannot be named.
    """
    if not url.endswith("/") and not _WILD.search(_LISTS.sub("", url)):
        return [url]
    target = rewrite_url(url)
    found = _find_matches(target, storage_options)
    if found is None or found == [target]:
        return [url]
    return found if target == url else _restore_urls(url, target, found)


def _list_objects(target: str, storage_options: object) -> list[str] | None:
    """Return the objects that a url stands for; None where wildcards match none of them."""
    from webdataset.storage.listing import can_list, is_pattern, list_urls  # noqa: PLC0415  not for local files

    if not can_list(target) or not is_pattern(target):
        return None
    from webdataset.shards.shared_listing import share_listing  # noqa: PLC0415  not for local files

    try:
        found = share_listing(target, storage_options, lambda: list_urls(target, storage_options))
    except NotFound as error:
        if target.endswith("/"):
            raise
        # the program may open the name by itself; else opening it fails
        log.info("%s is taken as it stands: %s", redact(target), error)
        return None
    return _choose_shards(target, found) if found and target.endswith("/") else found


def _choose_shards(folder: str, urls: list[str]) -> list[str]:
    """Return the objects of a folder that end as shards do; all where none does. Says what else there is."""
    shards = [url for url in urls if url.lower().endswith(SHARD_ENDINGS)]
    if not shards or len(shards) == len(urls):
        return urls
    kept = set(shards)
    others = [url for url in urls if url not in kept]
    strange = [url for url in others if not _BESIDE.search(url, len(folder) - 1)]
    if strange:
        warn_user(
            f"{redact(folder)}: {len(strange)} of {len(urls)} objects do not end as shards do, and are not read, "
            f"{redact(strange[0])} first: to read all, write {redact(folder)}**"
        )
    log.info("%s: %d objects that stand beside the shards are not read", redact(folder), len(others))
    return shards


def _find_matches(target: str, storage_options: object) -> list[str] | None:
    """Return the objects or files that a rewritten url stands for; None where it stands for itself."""
    found = _list_objects(target, storage_options) if "://" in target else None
    if found is not None or not _WILD.search(target) or not is_local(target):
        return found
    pattern = path_of(target) if target[:5].lower() == "file:" else target
    if os.path.lexists(pattern):
        return None
    # only where there are wildcards
    from webdataset.storage.local_listing import find_files  # noqa: PLC0415

    # a bracket in brackets is one
    pattern = _LISTS.sub(lambda names: f"[[]{names[0][1:]}", pattern)
    # the names of files are data: none of them is a url or command
    return list(map(literal_path, find_files(pattern))) or None


def _restore_urls(url: str, target: str, found: list[str]) -> list[str]:
    """Return the urls that the environment rewrites to what was found: opening them rewrites them again."""
    written, led = (_WILD.split(text, maxsplit=1)[0] for text in (url, target))
    led = path_of(led) if led[:5].lower() == "file:" else led
    names = [written + name[len(led) :] for name in found if name.startswith(led)]
    if len(names) == len(found) and all(map(_leads_to, names, found)):
        return names
    if all(map(_leads_to, found, found)):
        return found
    raise UsageError(
        "the environment rewrites this url to one that stands for several, and none of them can be written so that "
        "it is rewritten to itself: write their names out, or simplify WDS_REWRITE or GOPEN_REWRITE",
        url=url,
    )


def _leads_to(name: str, place: str) -> bool:
    target = rewrite_url(name)
    return place in (target, path_of(target) if target[:5].lower() == "file:" else target)


def fnmatch_with_braces(filename: str, pattern: str) -> bool:
    """Tell whether a name matches a pattern.

    Args:
        filename: the name.
        pattern: with ``*``, ``?``, ``[…]``, and braces for alternatives.
    """
    return any(fnmatch.fnmatch(filename, each) for each in expand_braces(pattern))


def glob_with_braces(pattern: str) -> list[str]:
    """Return the files that match a pattern, each once, in sorted order; one that looks like a url gets ``./``.

    Args:
        pattern: with ``*``, ``?``, ``[…]``, and braces for alternatives.
    """
    found = {path for each in expand_braces(pattern) for path in glob.glob(each)}  # noqa: PTH207  absolute patterns
    return list(map(literal_path, sorted(found)))


def envlookup(m: re.Match[str]) -> str:
    """Return what ``${NAME}`` stands for: the environment variable ``WDS_NAME``.

    Args:
        m: a match whose first group is the name.

    Raises:
        UsageError: the variable is not set.
    """
    return settings.substitution_text(m[1])


def envsubst(s: str) -> str:
    """Return a text with every ``${NAME}`` replaced by the environment variable ``WDS_NAME``.

    Args:
        s: the text.

    Raises:
        UsageError: a variable is not set.
    """
    return substitute_environment(s)


def expand(s: str) -> str:
    """Return a text with ``~`` and ``$NAME`` expanded from the environment, as a shell would.

    Args:
        s: the text.
    """
    return settings.expand_environment(s)
