"""Compatibility import path of url openers, late-bound; the code lives in :mod:`webdataset.storage.open_url`.

Late-bound: replacing ``gopen`` in this module, or an entry of ``gopen_schemes``, changes how every stage, writer and
function of this library opens urls.

The module can be called: ``wds.gopen("x.tar")`` opens a url, ``wds.gopen.gopen_schemes`` is the live table of schemes.
"""

import importlib
import sys
from typing import Any

from webdataset.core.lazy_modules import LazyModule
from webdataset.storage.local_files import open_buffered
from webdataset.storage.open_url import (
    ResolvedUrl,
    gopen_ais,
    gopen_command,
    gopen_curl,
    gopen_error,
    gopen_hf,
    gopen_htgs,
    gopen_http,
    gopen_pipe,
    gopen_schemes,
    open_url,
    resolve_url,
    rewrite_url,
)
from webdataset.storage.streams import ForeignOpener, Stream, length_known, path_of

__all__ = [
    "Pipe",  # noqa: F822  served by __getattr__
    "gopen",
    "gopen_ais",
    "gopen_command",
    "gopen_curl",
    "gopen_error",
    "gopen_file",
    "gopen_gsutil",
    "gopen_hf",
    "gopen_htgs",
    "gopen_http",
    "gopen_pipe",
    "gopen_replaced",
    "gopen_schemes",
    "info",
    "length_known",
    "open_stream",
    "reader",
    "rewrite_url",
    "set_options",  # noqa: F822  served by __getattr__
]

gopen_gsutil = gopen_command
info: dict[str, Any] = {}
"""Free for callers; nothing is kept in it here."""


def gopen(url: Any, mode: str = "rb", bufsize: int = 8192, **kw: Any) -> Any:
    """Open a url, a local path, or ``-`` (stdin, stdout) as a binary stream.

    Args:
        url: a text with a served scheme (see ``gopen_schemes``), else a local path; Path objects are paths.
        mode: ``rb`` or ``wb``.
        bufsize: bytes; handed to the scheme's opener. Local files use ``GOPEN_BUFFER``.
        **kw: handed to the scheme's opener.

    Returns:
        A file object to be closed by the caller (closing leaves stdin and stdout open).

    Raises:
        UsageError: another mode, an unknown scheme, or something that the trust level forbids.
        NotFound: nothing is there.
        SourceError: it cannot be opened.
    """
    return open_url(url, mode, bufsize, schemes=gopen_schemes, **kw)


_gopen = gopen


def resolve_shard(url: Any, *, trust: str | None = None, storage_options: Any = None) -> ResolvedUrl:
    """Return what the url of a shard leads to; a replaced ``gopen`` opens it.

    Args:
        url: as for :func:`gopen`, or an object with ``read``.
        trust: a trust level that a dataset names.
        storage_options: what a dataset says about its storage.

    Raises:
        UsageError: not a url, or something that the trust level forbids.
    """
    if not gopen_replaced():
        return resolve_url(url, level=trust, schemes=gopen_schemes, storage_options=storage_options)

    options = {} if storage_options is None else {"storage_options": storage_options}
    return ResolvedUrl(str(url), str(url), ForeignOpener(lambda _mode: gopen(url, **options)), trust)


def open_stream(url: Any, *, trust: str | None = None, storage_options: Any = None) -> Stream:
    """Open a url for reading a shard: local files come unbuffered; a replaced ``gopen`` is called.

    Args:
        url: as for :func:`gopen`, or an object with ``read``.
        trust: a trust level that a dataset names.
        storage_options: what a dataset says about S3 urls; see :func:`webdataset.config.profile_for`.

    Raises:
        UsageError: an unknown scheme, or something that the trust level forbids.
        NotFound: nothing is there.
        SourceError: it cannot be opened.
    """
    stream: Stream = resolve_shard(url, trust=trust, storage_options=storage_options).open_stream()
    return stream


def gopen_replaced() -> bool:
    """Tell whether a program has put another function in the place of :func:`gopen`."""
    return gopen is not _gopen


def gopen_file(url: str, mode: str = "rb", bufsize: int = 8192) -> Any:  # noqa: ARG001  an opener's signature
    """Open a local path or ``file:`` url.

    Args:
        url: the path or url.
        mode: ``rb`` or ``wb``.
        bufsize: not used; ``GOPEN_BUFFER`` decides.

    Raises:
        NotFound: no such file.
        SourceError: it cannot be opened.
    """
    return open_buffered(path_of(url) if url[:5].lower() == "file:" else url, mode)


def reader(url: Any, **kw: Any) -> Any:
    """Open a url for reading; arguments as for :func:`gopen`."""
    return gopen(url, "rb", **kw)


def __getattr__(name: str) -> Any:
    """Import the backend of pipes, which loads ``subprocess``, when one of its names is asked for."""
    if name in ("Pipe", "set_options"):
        return getattr(importlib.import_module(".storage.backends.pipe", __package__), name)
    if name == "utils":
        return importlib.import_module("webdataset.utils")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


class _CallableModule(LazyModule):
    """This module, which can be called."""

    def __call__(self, url: Any, mode: str = "rb", bufsize: int = 8192, **kw: Any) -> Any:
        """Open a url: the module's present ``gopen``."""
        return self.gopen(url, mode, bufsize, **kw)


sys.modules[__name__].__class__ = _CallableModule
