"""From a url to a stream: which source serves it.

Flows in: a url, a path, ``-``, or an object that is open already. Flows out: a stream. A text is a url only if it
begins with a scheme that somebody serves; everything else is a local path, so that names with ``#``, ``?``, ``;``,
spaces and colons work. ``gopen_schemes`` is live: an entry that is added or replaced is honoured by the next open.
"""

import functools
import importlib
import os
import re
import sys
from collections.abc import Callable, Mapping
from typing import Any

from webdataset.ground import settings
from webdataset.ground.errors import UsageError
from webdataset.ground.locks import forks_wait
from webdataset.ground.logs import log
from webdataset.ground.redaction import redacted

from . import files, stores
from .rewrite import rewritten
from .stream import Kept, Stream
from .strict import refuse_if_strict

Opener = Callable[..., Any]

ENTRY_POINTS = "webdataset.sources"
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):(//)?")
_LATER = {
    "hdfs": "pipe:hdfs dfs -cat {url}",
    "htgs": "the https: url of each block that the server lists",
    "oss": "pipe:ossutil cat {url}",
    "r2": "pipe:rclone cat {url}",
}

_BY_CURL = frozenset(("http", "https", "sftp", "scp"))


def _lazy(module: str, name: str) -> Opener:
    """Return an opener that imports its module when it is first called."""

    def opener(url: str, mode: str = "rb", bufsize: int = 8192, **options: Any) -> Any:
        with forks_wait:  # a module that a thread imports at a fork would stay locked in the child
            home = importlib.import_module(f"{__package__}.{module}")
        return getattr(home, name)(url, mode, bufsize, **options)

    opener.__name__ = opener.__qualname__ = name
    opener.__doc__ = f"Open a url by ``{module}.{name}``."
    opener.room = module  # type: ignore[attr-defined]  # see preparing
    return opener


def gopen_error(url: str, *_arguments: Any, **_options: Any) -> Any:
    """Refuse a url whose scheme nobody serves (the ``__default__`` entry).

    Raises:
        UsageError: always; it names the schemes that are served.
    """
    scheme = url.partition(":")[0]
    known = ", ".join(sorted(name for name, opener in gopen_schemes.items() if opener is not gopen_error))
    way_out = _LATER.get(scheme.lower())
    hint = f"; meanwhile write {redacted(way_out.format(url=_quoted(url)))}" if way_out else ""
    raise UsageError(
        f"no gopen handler defined for scheme {scheme!r}{hint}. Served are: file, {known}; more come from packages "
        f"with entry points in {ENTRY_POINTS!r}, from fsspec (pip install 'webdataset[fsspec]'), from "
        f"gopen_schemes[{scheme!r}] = f(url, mode, bufsize, **kw), or by a pipe: url",
        url=url,
    )


def _quoted(url: str) -> str:
    import shlex  # noqa: PLC0415  only for a scheme that nobody serves

    return shlex.quote(url)


gopen_htgs = gopen_error
gopen_pipe = _lazy("pipe", "gopen_pipe")
gopen_http = _lazy("http", "gopen_http")
gopen_http.store = "http"  # type: ignore[attr-defined]
gopen_s3 = stores.opener_for("s3")
gopen_gs = stores.opener_for("gs")
gopen_azure = stores.opener_for("azure")
gopen_memory = stores.opener_for("memory")
gopen_ssh = stores.opener_for("ssh")
gopen_hf = stores.opener_for("hf")
gopen_ais = _lazy("ais", "gopen_ais")
gopen_ais.store = "ais"  # type: ignore[attr-defined]
gopen_fsspec = stores.opener_for("fsspec_store")
gopen_curl = _lazy("commands", "gopen_curl")
gopen_command = _lazy("commands", "gopen_command")
gopen_ais_program = _lazy("commands", "gopen_ais_program")

gopen_schemes: dict[str, Opener] = {
    "__default__": gopen_error,
    "pipe": gopen_pipe,
    **dict.fromkeys(("http", "https"), gopen_http),
    "s3": gopen_s3,
    **dict.fromkeys(("gs", "gcs"), gopen_gs),
    **dict.fromkeys(("az", "abfs", "abfss"), gopen_azure),
    "memory": gopen_memory,
    **dict.fromkeys(("ssh", "sftp", "scp"), gopen_ssh),
    **dict.fromkeys(("ftp", "ftps"), gopen_curl),
    "ais": gopen_ais,
    "hf": gopen_hf,
    "htgs": gopen_htgs,
}


def opener_of(url: str, schemes: Mapping[str, Opener] | None = None) -> Opener | None:
    """Return what opens a url, or None for a local path.

    Args:
        url: a url or path, rewritten already.
        schemes: scheme to opener; the live ``gopen_schemes`` by default.
    """
    served = gopen_schemes if schemes is None else schemes
    match = _SCHEME.match(url)
    chosen = None if match is None else _by_environment(match[1].lower(), served)
    if chosen is not None:
        return chosen
    if "://" in url and "s3" in served and _is_routed(url):
        return served["s3"]
    if match is None:
        return None
    scheme = match[1]
    found = served.get(scheme) or served.get(scheme.lower()) or (None if scheme.lower() == "file" else _plugin(scheme))
    if found is not None or scheme.lower() == "file":
        return found
    default = served.get("__default__", gopen_error)
    if default is gopen_error and match[2] and _by_fsspec(scheme):
        return gopen_fsspec
    return default if match[2] or (default is not gopen_error and not os.path.lexists(url)) else None


def _is_routed(url: str) -> bool:
    """Tell whether a route leads a url to S3, by the profiles that there are."""
    from . import profiles  # noqa: PLC0415  local files need none of it

    return profiles.is_routed(url)


def _by_environment(scheme: str, served: Mapping[str, Opener]) -> Opener | None:
    """Return what the environment has a scheme opened by: AIStore, or a program; None where it says nothing.

    An opener that is not of this library was put there by the user, and stays.
    """
    found = served.get(scheme)
    if found is not None and not getattr(found, "__module__", "").startswith(str(__package__)):
        return None
    through_ais = scheme in settings.USE_AIS_FOR.get()
    if settings.GOPEN_BACKEND.get() == "cli":
        if through_ais or scheme == "ais":
            return gopen_ais_program
        return gopen_command if scheme == "gs" else gopen_curl if scheme in _BY_CURL else None
    return served.get("ais") if through_ais else None


def is_local(url: str) -> bool:
    """Tell whether a url or path names a local file.

    Args:
        url: a url or path, as the user wrote it.
    """
    return url != "-" and opener_of(url) is None


def opens_afar(url: Any, *, level: str | None = None) -> bool:
    """Tell whether a url leads to another machine or to a command, by an opener of this library.

    Args:
        url: what a shard's ``url`` is.
        level: a trust level that a dataset names.

    Raises:
        UsageError: the rewriting rules cannot be read.
    """
    if not isinstance(url, str) or url == "-":
        return False
    target = rewritten(url, level=level)
    opener = opener_of(target)
    if opener is None or opener is gopen_error or target[:7].lower() == "memory:":
        return False
    return getattr(opener, "__module__", "").startswith(__package__)


def _by_fsspec(scheme: str) -> bool:
    """Tell whether fsspec is to open what nobody else here serves."""
    return bool(stores.loaded("fsspec_store").serves(scheme))


@functools.cache
def _plugin(scheme: str) -> Opener | None:
    """Return the opener that an installed package declares for a scheme."""
    import importlib.metadata  # noqa: PLC0415  20 ms, for a scheme that is not ours

    for point in importlib.metadata.entry_points(group=ENTRY_POINTS):
        if point.name.lower() == scheme.lower():
            opener: Opener = point.load()
            return opener
    return None


def open_url(
    url: Any,
    mode: str = "rb",
    bufsize: int = 8192,
    *,
    schemes: Mapping[str, Opener] | None = None,
    raw: bool = False,
    level: str | None = None,
    **options: Any,
) -> Any:
    """Open a url, a path, ``-``, or pass on an object that is open.

    Args:
        url: what to open.
        mode: ``rb`` or ``wb``.
        bufsize: bytes; handed to the scheme's opener.
        schemes: scheme to opener; the live ``gopen_schemes`` by default.
        raw: for the shard reader: local files come unbuffered, and are allowed under strict trust.
        level: a trust level that a dataset names.
        **options: handed to the scheme's opener; local files have none.

    Raises:
        UsageError: another mode, an unknown scheme, or something that trust forbids.
        NotFound: nothing is there.
        SourceError: it cannot be opened.
    """
    if mode not in ("rb", "wb"):
        raise UsageError(f"mode must be 'rb' or 'wb', not {mode!r}")
    reading = mode == "rb"
    if hasattr(url, "read" if reading else "write"):
        return Kept(url)
    if url == "-" and isinstance(url, str):
        return Kept(sys.stdin.buffer if reading else sys.stdout.buffer)
    target, opener = _resolved(url, schemes, level)
    if settings.GOPEN_VERBOSE.get():
        log.warning("gopen %s %s", redacted(target), mode)
    if opener is None:
        return _local(target, mode, raw=raw, level=level)
    if target[:5].lower() == "pipe:":
        refuse_if_strict("gopen_pipe: unsafe_gopen is False, cannot open pipe URLs", level=level, url=target)
    refuse_options(target, opener, options.get("storage_options"))
    return opener(target, mode, bufsize, **options)


def refuse_options(target: str, opener: Opener, storage_options: Any) -> None:
    """Raise where storage options would be lost.

    Args:
        target: a url that is not local, rewritten already.
        opener: what opens it.
        storage_options: what a dataset says about its storage.

    Raises:
        UsageError: there are some, and nobody would read them.
    """
    if storage_options is not None and not hasattr(opener, "store"):
        raise UsageError(
            "storage_options are for stores (s3, gs, az, http …): what opens this url takes none", url=target
        )


def _resolved(url: Any, schemes: Mapping[str, Opener] | None, level: str | None) -> tuple[str, Opener | None]:
    """Return what to open after rewriting, and by whom; a Path that is not rewritten stays a path."""
    if not isinstance(url, str | os.PathLike):
        raise UsageError(f"a url is a str or a Path, not {type(url).__name__}")
    given = os.fsdecode(url)
    target = rewritten(given, level=level)
    if target == given and not isinstance(url, str):
        return target, None
    opener = opener_of(target, schemes)
    if opener is None and target[:5].lower() == "file:":
        target = files.path_of(target)
    return target, opener


def _local(path: str, mode: str, *, raw: bool, level: str | None) -> Any:
    if raw:
        return files.open_raw(path)
    refuse_if_strict("gopen: unsafe_gopen is False, cannot open local files", level=level, url=path)
    return files.open_buffered(path, mode)


def open_stream(
    url: Any,
    *,
    level: str | None = None,
    schemes: Mapping[str, Opener] | None = None,
    storage_options: Any = None,
) -> Stream:
    """Open a url for the shard reader.

    Args:
        url: a url, a path, ``-``, or an object with ``read`` (which stays open when the stream is closed).
        level: a trust level that a dataset names.
        schemes: scheme to opener; the live ``gopen_schemes`` by default.
        storage_options: what urls of stores are opened with; see :mod:`webdataset.sources.profiles.options`.

    Returns:
        A stream to be read in large pieces; see :func:`webdataset.sources.stream.length_known`.

    Raises:
        UsageError: an unknown scheme, or something that trust forbids.
        NotFound: nothing is there.
        SourceError: it cannot be opened.
    """
    options = {} if storage_options is None else {"storage_options": storage_options}
    stream: Stream = open_url(url, "rb", schemes=schemes, raw=True, level=level, **options)
    return stream
