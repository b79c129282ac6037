"""Opens a url, a path, ``-`` or an open object as a stream, by the backend of its scheme.

A text is a url only if it begins with a scheme that has an opener; everything else is a local path, so that names with
``#``, ``?``, ``;``, spaces and colons work. ``gopen_schemes`` is live: the next open honours an entry that is added or
replaced. :func:`resolve_url` decides what a url leads to; a shard is resolved once, when its turn comes, and the
:class:`ResolvedUrl` goes from the list of shards through prefetch and cache to its stream.

``WDS_REWRITE``, then ``GOPEN_REWRITE``, change a url before it is opened. Each holds
``regex=replacement;regex=replacement``; a regex must match at the start, and the first that changes the url wins. The
replacement may be a ``pipe:`` command, since the environment belongs to the user. Strict trust forbids commands, url
rewriting and, through ``gopen``, local files.

A backend is imported when its first url is opened. A forked worker has what its parent imported; the rest each worker
imports again, while its threads open shards. :func:`load_openers` therefore imports the backends of a list of urls in
the process that starts the workers. It opens nothing, and ignores what cannot be imported: opening such a url raises.
"""

import contextlib
import functools
import importlib
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import IO, TYPE_CHECKING, Any, Final, NoReturn, cast

from webdataset.core import settings, trust
from webdataset.core.errors import MissingExtra, UsageError, WebDatasetError
from webdataset.core.fork_safety import fork_lock
from webdataset.core.logs import log
from webdataset.core.optional_imports import install_command
from webdataset.core.redaction import redact
from webdataset.storage import local_files, streams
from webdataset.storage.streams import ForeignOpener, Opener, Stream, borrow_stream

if TYPE_CHECKING:
    from webdataset.storage.object_store import Backend, RemoteObject, Upload


def refuse_if_strict(action: str, *, level: str | None = None, url: str | None = None) -> None:
    """Raise, with ``action`` as the message's start, if trust is strict, by itself or by a dataset's ``level``.

    Raises:
        UsageError: trust is strict.
    """
    if trust.trust_level(level) == "strict":
        raise UsageError(
            f"{action}: trust is strict (trust='strict', WDS_SECURE, WDS_TRUST or utils.enforce_security)", url=url
        )


def rewrite_url(url: str, *, level: str | None = None) -> str:
    """Return the url to open in place of ``url``; ``level`` is a trust level that a dataset names.

    Raises:
        UsageError: a variable that cannot be read, or rewriting under strict trust.
    """
    for variable in (settings.WDS_REWRITE, settings.GOPEN_REWRITE):
        text = variable.get()
        if not text:
            continue
        refuse_if_strict(
            "rewrite_url: unsafe_gopen is False, cannot rewrite URLs using environment variables", level=level, url=url
        )
        url = _apply_rules(url, _parse_rules(variable.name, text))
    return url


def _apply_rules(url: str, rules: tuple[tuple[re.Pattern[str], str], ...]) -> str:
    for pattern, replacement in rules:
        match = pattern.match(url)
        if match is not None:
            changed = match.expand(replacement) + url[match.end() :]
            if changed != url:
                return changed
    return url


@functools.lru_cache(maxsize=8)
def _parse_rules(name: str, text: str) -> tuple[tuple[re.Pattern[str], str], ...]:
    rules = []
    for rule in filter(None, text.split(";")):
        regex, separator, replacement = rule.partition("=")
        try:
            pattern = re.compile(regex)
        except re.error as error:
            raise UsageError(f"environment variable {name}: {regex!r} is no regular expression: {error}") from error
        if not separator or not regex:
            raise UsageError(f"environment variable {name}: {rule!r} is not of the form regex=replacement")
        rules.append((pattern, replacement))
    return tuple(rules)


_SURROGATE = re.compile("[\ud800-\udfff]")


def make_opener(name: str, *, scheme: str = "") -> Opener:
    """Return the opener of a backend's module, for ``gopen_schemes``; ``scheme`` is what it is named after."""

    def opener(
        url: str,
        mode: str = "rb",
        bufsize: int = 8192,  # noqa: ARG001  an opener's signature
        *,
        storage_options: object = None,
        **options: Any,  # noqa: ANN401  of the stream or the backend
    ) -> "Stream | Upload":
        refuse_unnameable(url, name)
        store = load_backend(name)
        if mode == "rb":
            from webdataset.storage.resumable_stream import ResumableStream  # noqa: PLC0415  local files need none of it

            return ResumableStream(store.remote_object(url, storage_options), **options)
        return store.create_upload(url, storage_options, **options)

    opener.__name__ = opener.__qualname__ = f"gopen_{scheme or name}"
    opener.__doc__ = f"Open a url of the store {scheme or name!r}: ``rb`` or ``wb``."
    # for load_openers; a user's opener has no such attributes
    opener.store = opener.backend = name  # type: ignore[attr-defined]
    return opener


def refuse_unnameable(url: str, name: str) -> None:
    """Refuse a url that is no Unicode text: names of files may hold any bytes, names of objects may not.

    Raises:
        UsageError: half a surrogate pair, which stands for a byte of a file's name.
    """
    if name != "sftp" and _SURROGATE.search(url):
        raise UsageError(
            "no object can have this name: it is not Unicode text", url=url.encode("utf-8", "replace").decode()
        )


def load_backend(name: str) -> "Backend":
    """Return the module of a backend, imported."""
    # a module that a thread imports at a fork would stay locked in the child
    with fork_lock:
        return cast("Backend", importlib.import_module(f"{__package__}.backends.{name}"))


ENTRY_POINTS = "webdataset.storage"
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):(//)?")
_LATER = {
    "hdfs": "pipe:hdfs dfs -cat {url}",
    "htgs": "the https: url of each block that the server lists",
    "oss": "pipe:ossutil cat {url}",
    "r2": "pipe:rclone cat {url}",
}

_BY_CURL = frozenset(("http", "https", "sftp", "scp"))


def _make_lazy_opener(module: str, name: str) -> Opener:
    """Return an opener that imports its module when it is first called."""

    def opener(url: str, mode: str = "rb", bufsize: int = 8192, **options: object) -> object:
        # a module that a thread imports at a fork would stay locked in the child
        with fork_lock:
            home = importlib.import_module(f"{__package__}.backends.{module}")
        return getattr(home, name)(url, mode, bufsize, **options)

    opener.__name__ = opener.__qualname__ = name
    opener.__doc__ = f"Open a url by ``{module}.{name}``."
    opener.backend = module  # type: ignore[attr-defined]  # for load_openers
    return opener


def gopen_error(url: str, *_arguments: object, **_options: object) -> NoReturn:
    """Refuse a url whose scheme is not served (the ``__default__`` entry).

    Raises:
        UsageError: always; it names the schemes that are served.
    """
    scheme = url.partition(":")[0]
    served = {**gopen_schemes.added, **gopen_schemes}
    known = ", ".join(sorted(name for name, opener in served.items() if opener is not gopen_error))
    way_out = _LATER.get(scheme.lower())
    hint = f"; meanwhile write {redact(way_out.format(url=_quote_url(url)))}" if way_out else ""
    raise UsageError(
        f"no gopen handler defined for scheme {scheme!r}{hint}. Served are: file, {known}; more come from packages "
        f"with entry points in {ENTRY_POINTS!r}, from fsspec ({install_command('fsspec')}), from "
        f"gopen_schemes[{scheme!r}] = f(url, mode, bufsize, **kw), or by a pipe: url",
        url=url,
    )


def _quote_url(url: str) -> str:
    import shlex  # noqa: PLC0415  only for a scheme that is not served

    return shlex.quote(url)


gopen_htgs = gopen_error
gopen_pipe = _make_lazy_opener("pipe", "gopen_pipe")
gopen_http = _make_lazy_opener("http", "gopen_http")
gopen_http.store = "http"  # type: ignore[attr-defined]
gopen_s3 = make_opener("s3")
gopen_gs = make_opener("gcs", scheme="gs")
gopen_azure = make_opener("azure")
gopen_memory = make_opener("memory")
gopen_ssh = make_opener("sftp", scheme="ssh")
gopen_hf = make_opener("huggingface", scheme="hf")
gopen_ais = _make_lazy_opener("aistore", "gopen_ais")
gopen_ais.store = "aistore"  # type: ignore[attr-defined]
gopen_fsspec = make_opener("fsspec_store")
gopen_curl = _make_lazy_opener("pipe", "gopen_curl")
gopen_command = _make_lazy_opener("pipe", "gopen_command")
gopen_ais_program = _make_lazy_opener("pipe", "gopen_ais_program")


class SchemeTable(dict[str, Opener]):
    """Openers by scheme; those that no published version has are served (``table["s3"]``), and count as absent.

    So ``setdefault("s3", f)``, and a test whether there is an entry, put a program's own opener in.

    Args:
        entries: what programs see.
        added: what is served besides, unless there is an entry, or a ``__default__`` of the program's own.
    """

    def __init__(self, entries: Mapping[str, Opener], added: Mapping[str, Opener]) -> None:
        super().__init__(entries)
        self.added: Final = dict(added)

    def __missing__(self, scheme: str) -> Opener:
        return self.added[scheme]


gopen_schemes: SchemeTable = SchemeTable(
    {
        "__default__": gopen_error,
        "pipe": gopen_pipe,
        **dict.fromkeys(("http", "https"), gopen_http),
        "gs": gopen_gs,
        **dict.fromkeys(("sftp", "scp"), gopen_ssh),
        "ftps": gopen_curl,
        "ais": gopen_ais,
        "hf": gopen_hf,
        "htgs": gopen_htgs,
    },
    {
        "s3": gopen_s3,
        "gcs": gopen_gs,
        **dict.fromkeys(("az", "abfs", "abfss"), gopen_azure),
        "memory": gopen_memory,
        "ssh": gopen_ssh,
        "ftp": gopen_curl,
    },
)


def find_opener(url: str, schemes: Mapping[str, Opener] | None = None) -> Opener | None:
    """Return what opens a rewritten url, or None for a local path; ``schemes`` is ``gopen_schemes`` by default."""
    served = gopen_schemes if schemes is None else schemes
    match = _SCHEME.match(url)
    chosen = None if match is None else _environment_opener(match[1].lower(), served)
    if chosen is not None:
        return chosen
    added = served.added if isinstance(served, SchemeTable) else {}
    s3 = served.get("s3") or added.get("s3")
    if "://" in url and s3 is not None and _has_route(url):
        return s3
    if match is None:
        return None
    scheme = match[1]
    default = served.get("__default__", gopen_error)
    found = served.get(scheme) or served.get(scheme.lower())
    if found is None and scheme.lower() != "file":
        found = (added.get(scheme.lower()) if default is gopen_error else None) or _plugin_opener(scheme)
    if found is not None or scheme.lower() == "file":
        return found
    if default is gopen_error and match[2] and _is_fsspec_scheme(scheme):
        return gopen_fsspec
    return default if match[2] or (default is not gopen_error and not os.path.lexists(url)) else None


def _has_route(url: str) -> bool:
    """Tell whether a route leads a url to S3, by the profiles that there are."""
    from webdataset.storage import profile_registry  # noqa: PLC0415  local files need none of it

    return profile_registry.has_route(url)


def _environment_opener(scheme: str, served: Mapping[str, Opener]) -> Opener | None:
    """Return AIStore's or a program's opener where the environment asks for one; a user's own entry stays."""
    found = served.get(scheme)
    if found is not None and not getattr(found, "__module__", "").startswith(str(__package__)):
        return None
    through_ais = scheme in settings.USE_AIS_FOR.get()
    if settings.GOPEN_BACKEND.get() == "cli":
        if through_ais or scheme == "ais":
            return gopen_ais_program
        return gopen_command if scheme == "gs" else gopen_curl if scheme in _BY_CURL else None
    return served.get("ais") if through_ais else None


def find_backend(target: str) -> str | None:
    """Return the backend that opens a url that is rewritten already; None for a file, a command, a user's opener."""
    name: str | None = getattr(find_opener(target), "store", None)
    return name


def is_local(url: str) -> bool:
    """Tell whether a url or path, as it stands, names a local file."""
    return url != "-" and find_opener(url) is None


def _is_fsspec_scheme(scheme: str) -> bool:
    """Tell whether fsspec is to open a scheme that nothing else here serves."""
    return bool(cast("Any", load_backend("fsspec_store")).serves(scheme))


@functools.cache
def _plugin_opener(scheme: str) -> Opener | None:
    """Return the opener that an installed package declares for a scheme."""
    import importlib.metadata  # noqa: PLC0415  20 ms, for a scheme that is not ours

    for point in importlib.metadata.entry_points(group=ENTRY_POINTS):
        if point.name.lower() == scheme.lower():
            opener: Opener = point.load()
            return opener
    return None


@dataclass(frozen=True, slots=True, repr=False)
class ResolvedUrl:
    """A url after rewriting, and what opens it.

    Args:
        url: the url or path, as the user wrote it.
        target: the url or path to open, after rewriting.
        opener: opens it; None for a local file.
        level: a trust level that a dataset names.
        storage_options: what a dataset says about its storage.
        verbatim: the user gave a Path, which no rule rewrote: its name is never taken for a url.
    """

    url: str
    target: str
    opener: "Opener | None" = None
    level: str | None = None
    storage_options: object = None
    verbatim: bool = False

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {redact(self.target)}>"

    @property
    def backend(self) -> str | None:
        """The module in ``backends`` that reads it; None for a file, a command, a user's own opener."""
        return getattr(self.opener, "store", None)

    @property
    def local(self) -> bool:
        """True for a local file."""
        return self.opener is None

    @property
    def remote(self) -> bool:
        """True where an opener of this library reads it from another machine or from a command."""
        opener = self.opener
        if opener is None or opener is gopen_error or isinstance(opener, ForeignOpener) or self.backend == "memory":
            return False
        return getattr(opener, "__module__", "").startswith(__package__)

    @property
    def path(self) -> str | None:
        """The path of a local file; None for anything else.

        Raises:
            UsageError: a ``file:`` url that names another machine.
        """
        if self.opener is not None:
            return None
        is_url = not self.verbatim and self.target[:5].lower() == "file:"
        return streams.path_of(self.target) if is_url else self.target

    def open_stream(self) -> Stream:
        """Open it for the shard reader: local files come unbuffered, and are allowed under strict trust.

        Raises:
            UsageError: an unknown scheme, or something that trust forbids.
            NotFound: nothing is there.
            SourceError: it cannot be opened.
        """
        if self.opener is None and not settings.GOPEN_VERBOSE.get():
            return local_files.open_raw(self.path or self.target)
        return cast("Stream", self.open(raw=True))

    def open(self, mode: str = "rb", bufsize: int = 8192, *, raw: bool = False, **options: object) -> IO[bytes]:
        """Open it; arguments and errors as for :func:`open_url`."""
        opener, target = self.opener, self.target
        if isinstance(opener, ForeignOpener):
            return cast("IO[bytes]", opener(target, mode))
        path = self.path
        if settings.GOPEN_VERBOSE.get():
            log.warning("gopen %s %s", redact(path or target), mode)
        if opener is None:
            return _open_local(path or target, mode, raw=raw, level=self.level)
        if target[:5].lower() == "pipe:":
            refuse_if_strict("gopen_pipe: unsafe_gopen is False, cannot open pipe URLs", level=self.level, url=target)
        if self.storage_options is not None:
            options["storage_options"] = self.storage_options
        self.refuse_lost_options(options.get("storage_options"))
        opened = opener(target, mode, bufsize, **options)
        if opened is None:
            raise UsageError("what opens this url returned None: an opener returns a file object", url=target)
        return cast("IO[bytes]", opened)

    def refuse_lost_options(self, storage_options: object) -> None:
        """Raise where what opens this url would ignore storage options.

        Raises:
            UsageError: it would.
        """
        if storage_options is not None and not self.local and self.backend is None:
            raise UsageError(
                "storage_options are for stores (s3, gs, az, http …): what opens this url takes none", url=self.target
            )

    def remote_object(self) -> "RemoteObject | None":
        """Return its object, or None where it is no object of a store.

        Raises:
            UsageError: the url names no object.
            ConfigError: options that make no sense for this store.
            MissingExtra: the package for this scheme is not installed.
        """
        name = self.backend
        if name is None:
            return None
        store = load_backend(name)
        refuse_unnameable(self.target, name)
        found: RemoteObject = store.remote_object(self.target, self.storage_options)
        return found

    def service_id(self) -> str:
        """Return which service and account it is of, for the names of copies; empty where the url says it all.

        Raises:
            ConfigError: no such profile, or options that make no sense.
        """
        name = self.backend
        tell = None if name is None else getattr(load_backend(name), "service_id", None)
        return "" if tell is None else str(tell(self.target, self.storage_options))


def resolve_url(
    url: object,
    *,
    level: str | None = None,
    schemes: Mapping[str, Opener] | None = None,
    storage_options: object = None,
) -> ResolvedUrl:
    """Return what a url leads to: it is rewritten, and its opener is found; nothing is opened.

    Args:
        url: a url, a path, ``-``, or an object with ``read`` or ``write``, which stays open when its stream is closed.
        level: a trust level that a dataset names.
        schemes: scheme to opener; the live ``gopen_schemes`` by default.
        storage_options: what a dataset says about its storage.

    Raises:
        UsageError: not a url, an unreadable rewriting rule, or rewriting under strict trust.
        ConfigError: a configuration file with a mistake.
    """
    if not isinstance(url, str):
        if hasattr(url, "read") or hasattr(url, "write"):
            return ResolvedUrl(repr(url), "-", ForeignOpener(functools.partial(borrow_stream, url)), level)
        if not isinstance(url, os.PathLike):
            raise UsageError(f"a url is a str or a Path, not {type(url).__name__}")
    elif url == "-":
        return ResolvedUrl(url, url, ForeignOpener(functools.partial(borrow_stream, None)), level)
    given = os.fsdecode(url)
    target = rewrite_url(given, level=level)
    verbatim = target == given and not isinstance(url, str)
    opener = None if verbatim else find_opener(target, schemes)
    return ResolvedUrl(given, target, opener, level, storage_options, verbatim)


def local_path(url: object, *, level: str | None = None) -> str | None:
    """Return the local path that a url or path leads to after rewriting, for reading and writing alike.

    Args:
        url: a url or path; a ``Path`` that no rule rewrites is never taken for a url.
        level: a trust level that a dataset names.

    Returns:
        The path; None for what is not local, for ``-`` and for open objects.
    """
    if url == "-" or not isinstance(url, str | os.PathLike):
        return None
    given = os.fsdecode(url)
    target = rewrite_url(given, level=level)
    if target == given and not isinstance(url, str):
        return target
    if target == "-" or find_opener(target) is not None:
        return None
    return streams.path_of(target) if target[:5].lower() == "file:" else target


def open_url(
    url: object,
    mode: str = "rb",
    bufsize: int = 8192,
    *,
    schemes: Mapping[str, Opener] | None = None,
    raw: bool = False,
    level: str | None = None,
    **options: object,
) -> IO[bytes]:
    """Open a url, a path, ``-``, or pass on an object that is open.

    Args:
        url: what to open.
        mode: ``rb`` or ``wb``.
        bufsize: bytes; handed to the scheme's opener.
        schemes: scheme to opener; the live ``gopen_schemes`` by default.
        raw: as for :meth:`ResolvedUrl.open_stream`.
        level: a trust level that a dataset names.
        **options: handed to the scheme's opener; local files have none.

    Raises:
        UsageError: another mode, an unknown scheme, or something that trust forbids.
        NotFound: nothing is there.
        SourceError: it cannot be opened.
    """
    if mode not in ("rb", "wb"):
        raise UsageError(f"mode must be 'rb' or 'wb', not {mode!r}")
    return resolve_url(url, level=level, schemes=schemes).open(mode, bufsize, raw=raw, **options)


def _open_local(path: str, mode: str, *, raw: bool, level: str | None) -> IO[bytes]:
    if raw:
        return cast("IO[bytes]", local_files.open_raw(path))
    refuse_if_strict("gopen: unsafe_gopen is False, cannot open local files", level=level, url=path)
    return local_files.open_buffered(path, mode)


def open_stream(
    url: object,
    *,
    level: str | None = None,
    schemes: Mapping[str, Opener] | None = None,
    storage_options: object = None,
) -> Stream:
    """Open a url for the shard reader; arguments as for :func:`resolve_url`.

    Raises:
        UsageError: an unknown scheme, or something that trust forbids.
        NotFound: nothing is there.
        SourceError: it cannot be opened.
    """
    resolved = resolve_url(url, level=level, schemes=schemes, storage_options=storage_options)
    return resolved.open_stream()


# a list has few schemes, and they show early
_MOST_URLS = 100


def load_openers(urls: Iterable[object]) -> None:
    """Load what opens the urls of a list: one of each scheme, among the first hundred."""
    seen = set()
    for url in islice(urls, _MOST_URLS):
        if isinstance(url, str):
            before, colon, _ = url.partition(":")
            scheme = before if colon else ""
            if scheme not in seen:
                seen.add(scheme)
                opener = None
                # an opener may come from another package, whose import may fail
                with contextlib.suppress(WebDatasetError, ImportError):
                    opener = find_opener(rewrite_url(url))
                _load_opener(opener)


def _load_opener(opener: Opener | None) -> None:
    backend = getattr(opener, "backend", None)
    if backend is not None:
        with contextlib.suppress(MissingExtra):
            load_backend(backend)
        if hasattr(opener, "store"):
            with fork_lock:
                importlib.import_module("webdataset.storage.resumable_stream")
