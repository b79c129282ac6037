"""Lists the objects of a folder (``s3://bucket/train/``) or wildcard (``gs://bucket/train-*.tar``), in every store.

The result is sorted urls, as the user writes them (profile and all). ``*``, ``?`` and ``[...]`` match within one
folder, ``**`` over all of them, as for local files; an object whose key is exactly the text is taken before wildcards
are tried.
"""

import re
from typing import TYPE_CHECKING, cast

from webdataset.core.errors import NotFound, UsageError
from webdataset.storage.open_url import find_backend, load_backend

if TYPE_CHECKING:
    from webdataset.storage.object_store import FolderBackend, ListableBackend

_WILD = re.compile(r"[*\[]|\?(?!(?:versionId|arch(?:path|mime|regx|mode)|etl_(?:name|args|pipeline)|latest-ver)=)")
_PIECES = re.compile(
    r"(?P<any>\*\*/?)|(?P<some>\*)|(?P<one>\?)|\[(?P<not>[!^]?)(?P<set>[^]]+|\][^]]*)\]|(?P<text>.)", re.DOTALL
)
# the web has no lists; not imported to be asked
_UNLISTED = frozenset(("http",))


def can_list(url: str) -> bool:
    """Tell whether the scheme of a rewritten url can list objects."""
    if "://" not in url or url[:5].lower() in ("http:", "https"):
        return False
    store = find_backend(url)
    return store is not None and store not in _UNLISTED


def is_pattern(url: str) -> bool:
    """Tell whether a url of a store stands for a list of objects."""
    return url.endswith("/") or _WILD.search(url) is not None


def list_urls(url: str, storage_options: object = None) -> list[str] | None:
    """Return the sorted urls of the objects that a folder or a pattern stands for; None for any other url.

    Keys that end with ``/`` (markers of folders) are left out.

    Args:
        url: rewritten; ``s3://bucket/folder/`` gives every object under it, ``s3://bucket/train-*.tar`` those whose
            keys match.
        storage_options: what a dataset says about its storage.

    Raises:
        NotFound: no object matches.
        SourceError: the service refuses, or does not answer.
        UsageError: the url makes no sense.
        MissingExtra: the package for this scheme is not installed.
    """
    if not can_list(url) or not is_pattern(url):
        return None
    backend = load_backend(find_backend(url) or "")
    if not hasattr(backend, "list_keys"):
        return None
    store = cast("ListableBackend", backend)
    stem, key = store.split(url)
    wild = _WILD.search(key)
    # what looks wild is the host: [::1]
    if wild is None and key and not key.endswith("/"):
        return None
    prefix = key[: wild.start()] if wild else key
    depth = _bound_depth(store, key, prefix)
    if depth is None:
        names = store.list_keys(stem, prefix, storage_options)
    else:
        names = cast("FolderBackend", store).list_keys(stem, prefix, storage_options, depth=depth)
    found = [name for name in names if name.startswith(prefix) and not name.endswith("/")]
    if wild and key in found:
        return [url]
    if wild:
        pattern = _compile_pattern(key, url)
        found = [name for name in found if pattern.fullmatch(name)]
    if not found:
        what = "no object matches this wildcard" if wild else "no objects are in this folder"
        raise NotFound(f"{what}: are the bucket, the spelling and the endpoint right?", url=url)
    return [stem + name for name in sorted(found)]


def _bound_depth(store: "ListableBackend", key: str, prefix: str) -> int | None:
    """Return how deep a store that walks through folders has to go, where nothing further down can match."""
    if not getattr(store, "BY_FOLDER", False) or "**" in key or key == prefix:
        return None
    return key[len(prefix) :].count("/")


def _compile_pattern(key: str, url: str) -> re.Pattern[str]:
    try:
        return re.compile("".join(map(_translate_piece, _PIECES.finditer(key))), re.DOTALL)
    except re.error as error:
        raise UsageError(f"the wildcards make no sense: {error.msg}", url=url) from error


def _translate_piece(piece: re.Match[str]) -> str:
    if piece["any"]:
        return "(?:.*/)?" if piece["any"].endswith("/") else ".*"
    if piece["some"]:
        return "[^/]*"
    if piece["one"]:
        return "[^/]"
    if piece["set"]:
        return ("(?!/)[^" if piece["not"] else "(?!/)[") + re.sub(r"([][\\^&~|]|--)", r"\\\1", piece["set"]) + "]"
    return re.escape(piece["text"])
