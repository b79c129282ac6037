"""Lists of objects: folders (``s3://bucket/train/``) and wildcards (``gs://bucket/train-*.tar``), in every store.

Flows in: a url that ends with ``/`` or holds wildcards. Flows out: the urls of the objects, sorted, as the user
writes them (profile and all). ``*``, ``?`` and ``[…]`` match within one folder, ``**`` over all of them, as for local
files; an object whose key is just the text is taken before wildcards are tried.
"""

import re
from typing import Any

from webdataset.ground.errors import NotFound, UsageError

from .open import opener_of
from .stores import loaded

_WILD = re.compile(r"[*\[]|\?(?!(?:versionId|arch(?:path|mime|regx|mode)|etl_(?:name|args|pipeline)|latest-ver)=)")
_PIECES = re.compile(
    r"(?P<any>\*\*/?)|(?P<some>\*)|(?P<one>\?)|\[(?P<not>[!^]?)(?P<set>[^]]+|\][^]]*)\]|(?P<text>.)", re.DOTALL
)
_UNLISTED = frozenset(("http",))  # the web has no lists; not imported to be asked


def lists(url: str) -> bool:
    """Tell whether a url's scheme can list objects.

    Args:
        url: a url or path, rewritten already.
    """
    if "://" not in url or url[:5].lower() in ("http:", "https"):
        return False
    store = getattr(opener_of(url), "store", None)
    return store is not None and store not in _UNLISTED


def is_pattern(url: str) -> bool:
    """Tell whether a url stands for a list of objects.

    Args:
        url: a url of a store that can list.
    """
    return url.endswith("/") or _WILD.search(url) is not None


def listed(url: str, storage_options: Any = None) -> list[str] | None:
    """Return the urls of the objects that a folder or a pattern stands for, or None for any other url.

    Args:
        url: ``s3://bucket/folder/`` gives every object under it; ``s3://bucket/train-*.tar`` those whose keys match.
            It is rewritten already.
        storage_options: what a dataset says about its storage.

    Returns:
        The urls, sorted by key; keys that end with ``/`` (markers of folders) are left out.

    Raises:
        NotFound: no object matches.
        SourceError: the service refuses, or does not answer.
        UsageError: the url makes no sense.
        MissingExtra: the package for this scheme is not installed.
    """
    if not lists(url) or not is_pattern(url):
        return None
    store = loaded(opener_of(url).store)  # type: ignore[union-attr]
    if not hasattr(store, "keys"):
        return None
    stem, key = store.split(url)
    wild = _WILD.search(key)
    if wild is None and key and not key.endswith("/"):  # what looks wild is the host: [::1]
        return None
    prefix = key[: wild.start()] if wild else key
    names = store.keys(stem, prefix, storage_options, **_bounds(store, key, prefix))
    found = [name for name in names if name.startswith(prefix) and not name.endswith("/")]
    if wild and key in found:
        return [url]
    if wild:
        pattern = _pattern(key, url)
        found = [name for name in found if pattern.fullmatch(name)]
    if not found:
        raise NotFound("no object matches" if wild else "no objects are in this folder", url=url)
    return [stem + name for name in sorted(found)]


def _bounds(store: Any, key: str, prefix: str) -> dict[str, int]:
    """Return how deep a store that walks through folders has to go: nothing further down can match."""
    if not getattr(store, "BY_FOLDER", False) or "**" in key or key == prefix:
        return {}
    return {"depth": key[len(prefix) :].count("/")}


def _pattern(key: str, url: str) -> re.Pattern[str]:
    try:
        return re.compile("".join(map(_translated, _PIECES.finditer(key))), re.DOTALL)
    except re.error as error:
        raise UsageError(f"the wildcards make no sense: {error.msg}", url=url) from error


def _translated(piece: re.Match[str]) -> str:
    if piece["any"]:
        return "(?:.*/)?" if piece["any"].endswith("/") else ".*"
    if piece["some"]:
        return "[^/]*"
    if piece["one"]:
        return "[^/]"
    if piece["set"]:
        return ("(?!/)[^" if piece["not"] else "(?!/)[") + re.sub(r"([][\\^&~|]|--)", r"\\\1", piece["set"]) + "]"
    return re.escape(piece["text"])
