"""The profiles and routes that are defined at present, the one that opens a url, and their pickling.

Definitions come from calls of ``wds.config`` and from the files as they are now (a changed file is read again), in
the order in which they are searched. Nothing here opens a connection.

``s3://bucket/key``, ``s3+NAME://bucket/key``, ``NAME:s3://bucket/key``, or a scheme that a route leads to S3, becomes
a :class:`~webdataset.storage.s3_profile.Profile` and the plain ``s3://bucket/key``. The first of these that applies
wins: storage options, the name in the url, the longest route, the environment, the default chain of AWS.

:class:`PickledProfiles` carries what Python has defined to a spawned worker, or wherever a dataset is unpickled. A
secret that was given as text is left out, and the name of its profile is remembered as missing.
"""

import contextlib
import functools
import logging
import os
import re
import stat
import threading
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from webdataset.core import settings
from webdataset.core.errors import ConfigError
from webdataset.storage import profile_files
from webdataset.storage.profile_files import ProfileDefinitions, read_petrel, read_toml
from webdataset.storage.s3_profile import (
    NAME,
    UNROUTED,
    Profile,
    Route,
    check_name,
    make_profile,
    make_route,
    suggest_name,
)
from webdataset.storage.storage_options import parse_s3_options

log = logging.getLogger("webdataset")

_FileSignature = tuple[int, int, int]


class ProfileLayer:
    """Definitions made in Python since a certain moment."""

    def __init__(self, *, file: Path | None = None, isolated: bool = False) -> None:
        self.profiles: dict[str, Profile] = {}
        self.routes: dict[str, Route] = {}
        self.file = file
        self.isolated = isolated


_layers = [ProfileLayer()]
_lock = threading.RLock()
_read_files: dict[Path, tuple[_FileSignature, ProfileDefinitions]] = {}
_warned_paths: set[Path] = set()
_withheld: set[str] = set()


def _renew_lock() -> None:
    global _lock  # noqa: PLW0603  a lock held by another thread at the fork stays locked forever
    _lock = threading.RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew_lock)


def register(name: str, fields: dict[str, object]) -> Profile:
    """Define a profile for this process; a definition of the same name is replaced.

    Raises:
        ConfigError: an unknown field, or one that makes no sense.
    """
    profile = make_profile(check_name(name), fields, origin="python")
    with _lock:
        _layers[-1].profiles[name] = profile
    return profile


def route(match: str, profile: str | None = None, *, target: str | None = None) -> Route:
    """Lead urls to a profile, in this process.

    Args:
        match: ``s3://bucket``, ``s3://bucket/prefix``, or ``scheme://`` for urls of a scheme of your own; a ``*`` at
            the end also takes names that continue. The longest route that matches wins, of the same length the latest.
        profile: name of the profile; None is what ``s3://`` urls use without one.
        target: ``s3://bucket/prefix`` that stands for ``match``.

    Raises:
        ConfigError: a match or target that makes no sense.
    """
    made = make_route({"match": match, "profile": profile, "target": target}, origin="python")
    with _lock:
        _layers[-1].routes[made.match] = made
    return made


def load(file: str | os.PathLike[str]) -> None:
    """Take up the profiles and routes of a further TOML file, in this process.

    Args:
        file: the file.

    Raises:
        ConfigError: it cannot be read, or has a mistake, which is named by ``file:line``.
    """
    found = _read_definitions(Path(file), _read_given_file)
    with _lock:
        _layers[-1].profiles.update(found.profiles)
        _layers[-1].routes.update({route.match: route for route in found.routes})


@contextlib.contextmanager
def temporary(file: str | os.PathLike[str] | None = None, *, isolated: bool = False) -> Iterator[None]:
    """Undo at the end of a block what it defines; made for tests.

    Args:
        file: a TOML file whose definitions count inside.
        isolated: only what is defined inside counts: nothing from before, no other file, no variable of ours.

    Raises:
        ConfigError: the file cannot be read, or has a mistake.
    """
    layer = ProfileLayer(isolated=isolated)
    if file is not None:
        found = _read_definitions(Path(file), _read_given_file)
        layer.profiles.update(found.profiles)
        layer.routes.update({route.match: route for route in found.routes})
    with _lock:
        _layers.append(layer)
    try:
        yield
    finally:
        with _lock:
            _layers.remove(layer)


def python_layers() -> tuple[list[ProfileLayer], bool]:
    """Return the layers of definitions made in Python, latest first, and whether others count too."""
    with _lock:
        layers = _layers[::-1]
    for number, layer in enumerate(layers):
        if layer.isolated:
            return layers[: number + 1], False
    return layers, True


def adopt_definitions(profiles: Iterable[Profile], routes: Iterable[Route], withheld: Iterable[str]) -> None:
    """Take up what Python defined in another process; definitions of this process come first.

    Args:
        profiles: profiles.
        routes: routes.
        withheld: names of profiles whose secrets were left out.
    """
    with _lock:
        for profile in profiles:
            _layers[0].profiles.setdefault(profile.name, profile)
        for route in routes:
            _layers[0].routes.setdefault(route.match, route)
        _withheld.update(withheld)


def is_withheld(name: str) -> bool:
    """Tell whether another process has a profile of this name that could not come here."""
    return name in _withheld


def file_definitions() -> list[ProfileDefinitions]:
    """Return the definitions of the configuration files, the user's before the system's.

    Raises:
        ConfigError: one cannot be read, or has a mistake; ``WDS_CONFIG`` names one that is absent.
    """
    named = settings.CONFIG.get()
    paths = _config_paths(named or "", tuple(settings.config_folders()))
    found = [_read_definitions(path, read_toml) for path in paths if path.is_file()]
    if named is not None and not found and not _is_null(paths[0]):
        raise ConfigError(f"environment variable WDS_CONFIG names {paths[0]}, which is not there")
    return found


@functools.lru_cache(maxsize=8)
def _config_paths(named: str, folders: tuple[str, ...]) -> tuple[Path, ...]:
    """Return where configuration files may be; this is asked for every url that is opened."""
    if named:
        return (Path(settings.expand_home(named)),)
    return tuple(Path(settings.expand_home(folder)) / "webdataset" / "config.toml" for folder in folders)


def petrel_definitions() -> ProfileDefinitions:
    """Return the clusters of ``WDS_PETREL_CONF``, or ``~/petreloss.conf``.

    Raises:
        ConfigError: it cannot be read; ``WDS_PETREL_CONF`` names one that is absent.
    """
    named = settings.PETREL_CONF.get()
    path = Path(settings.expand_home(named or "~/petreloss.conf"))
    if path.is_file():
        return _read_definitions(path, read_petrel)
    if named is not None and not _is_null(path):
        raise ConfigError(f"environment variable WDS_PETREL_CONF names {path}, which is not there")
    return ProfileDefinitions({})


def _is_null(path: Path) -> bool:
    return str(path) == os.devnull


def _read_given_file(path: Path) -> ProfileDefinitions:
    return read_toml(path, travels=False)


def _read_definitions(path: Path, reader: Callable[[Path], ProfileDefinitions]) -> ProfileDefinitions:
    """Read a file, or remember it where it is as it was."""
    if _is_null(path):
        return ProfileDefinitions({})
    try:
        status = path.stat()
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror or 'cannot be read'}") from None
    signature = (status.st_mtime_ns, status.st_size, status.st_ino)
    known = _read_files.get(path) if reader is not _read_given_file else None
    if known is not None and known[0] == signature:
        return known[1]
    found = reader(path)
    _warn_of_readers(path, status.st_mode, found)
    if reader is not _read_given_file:
        _read_files[path] = (signature, found)
    return found


def _warn_of_readers(path: Path, mode: int, found: ProfileDefinitions) -> None:
    """Say once that others can read a file with secrets in it."""
    exposed = mode & (stat.S_IRWXG | stat.S_IRWXO)
    if (
        exposed
        and os.name == "posix"
        and path not in _warned_paths
        and any(one.literal for one in found.profiles.values())
    ):
        _warned_paths.add(path)
        log.warning("%s holds secrets and can be read by others: chmod 600 %s", path, path)


_S3 = re.compile(rf"(?:(?P<before>{NAME}):)?s3(?:\+(?P<after>{NAME}))?://", re.IGNORECASE)
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9.-]*)://")


def profile(name: str, /, **fields: object) -> Profile:
    """Define an S3 profile for this process, or return the one that is defined.

    Args:
        name: its name: ``s3+NAME://bucket/key`` and ``NAME:s3://bucket/key`` use it.
        **fields: fields of :class:`Profile`; keys are given as ``env:NAME``, ``file:PATH`` or as text, which is never
            shown, and does not travel to other processes. Without fields, nothing is defined.

    Raises:
        ConfigError: an unknown field, one that makes no sense; no such profile.
    """
    return register(name, fields) if fields else find_profile(name)


def find_profile(name: str) -> Profile:
    """Return the profile of a name: of Python, of a file, of the environment, of petrel, of AWS.

    Raises:
        ConfigError: there is none.
    """
    layers, others = python_layers()
    for layer in layers:
        if name in layer.profiles:
            return layer.profiles[name]
    found = _find_outside(name) if others else None
    if found is None:
        if is_withheld(name):
            raise ConfigError(
                f"S3 profile {name!r} was defined in another process with a secret as text, which does not travel: "
                "give 'env:NAME' or 'file:PATH', or define it in the configuration file"
            )
        looked = "python, WDS_S3_* variables, the configuration file, petreloss.conf, ~/.aws" if others else "python"
        raise ConfigError(
            f"there is no S3 profile {name!r}{suggest_name(name, profiles())} (looked in {looked}); "
            "define it in one of these, or by webdataset.config.profile(...)"
        )
    return found


def _find_outside(name: str) -> Profile | None:
    """Return the profile of a name that files or the environment define; variables of ours replace its fields."""
    fields = profile_files.read_profile_variables(name)
    files = file_definitions()
    base = next((found.profiles[name] for found in files if name in found.profiles), None)
    base = base or profile_files.read_megfile_profile(name) or petrel_definitions().profiles.get(name)
    base = base or profile_files.read_aws_profiles().get(name)
    if base is None:
        return make_profile(name, fields, origin="environment") if fields else None
    return profile_files.override_fields(base, fields, "environment")


def profiles() -> dict[str, Profile]:
    """Return all profiles that Python and files define, by name; those of variables are known only when asked for.

    Raises:
        ConfigError: a file has a mistake.
    """
    layers, others = python_layers()
    found: dict[str, Profile] = {}
    if others:
        found.update(profile_files.read_aws_profiles())
        found.update(petrel_definitions().profiles)
        for file in reversed(file_definitions()):
            found.update(file.profiles)
    for layer in reversed(layers):
        found.update(layer.profiles)
    return found


def is_s3(url: str) -> bool:
    """Tell whether a url is served by S3: by its scheme, or because a route leads there.

    Raises:
        ConfigError: a configuration file with a mistake, asked for a scheme that is not S3's own.
    """
    match = _S3.match(url)
    if match is not None:
        return (match["before"] or "").lower() not in UNROUTED
    scheme = _SCHEME.match(url)
    return scheme is not None and scheme[1].lower() not in UNROUTED and _find_route(_plain_scheme(url)) is not None


def has_route(url: str) -> bool:
    """Tell whether a url that does not begin with ``s3://`` is served by S3 all the same; raises as :func:`is_s3`."""
    return url[:5].lower() != "s3://" and "://" in url and is_s3(url)


def profile_for(url: str, storage_options: object = None) -> tuple[Profile, str]:
    """Return the profile that a url of S3 is opened with, and the url as ``s3://bucket/key``.

    Raises:
        ConfigError: no such profile, a configuration file with a mistake, options that make no sense.
    """
    options = parse_s3_options(storage_options, url)
    name, plain = _split_profile(url)
    chosen = options.profile if options is not None and options.profile is not None else name
    base = find_profile(chosen) if chosen else _default_profile()
    return (base if options is None else options.apply_to(base)), plain


def service_id(url: str, storage_options: object = None) -> str:
    """Return which service an S3 url is of, for names of copies; empty for other urls and for AWS itself.

    Raises:
        ConfigError: as :func:`profile_for`.
    """
    if not is_s3(url):
        return ""
    chosen = profile_for(url, storage_options)[0]
    return chosen.identity if chosen.name or chosen.endpoint_url else ""


def _split_profile(url: str) -> tuple[str | None, str]:
    """Return the name of a url's profile, in it or on its route, and the plain url."""
    match = _S3.match(url)
    name = match and (match["before"] or match["after"])
    if match is not None and match["before"] and match["after"]:
        raise ConfigError("a url names one profile: NAME:s3://bucket/key, or s3+NAME://bucket/key", url=url)
    if match is not None and name:
        return name, "s3://" + url[match.end() :]
    plain = _plain_scheme(url)
    route = _find_route(plain)
    if route is not None:
        return route.profile, route.target_url(plain)
    if match is None:
        raise ConfigError("no route leads this url to S3: wds.config.route('scheme://', 'NAME') makes one", url=url)
    return None, plain


def _plain_scheme(url: str) -> str:
    scheme, mark, rest = url.partition("://")
    return scheme.lower() + mark + rest


def _find_route(url: str) -> Route | None:
    """Return the longest route for a url; of the same length the exact one, then the one defined latest."""
    layers, others = python_layers()
    routes = [route for layer in layers for route in layer.routes.values()]
    if others:
        routes += [route for file in file_definitions() for route in file.routes]
    taking = [route for route in routes if route.takes(url)]
    if taking:
        return max(taking, key=lambda route: (len(route.prefix), not route.match.endswith("*")))
    scheme = url.partition("://")[0]
    return profile_files.read_megfile_alias(scheme) if others and scheme != "s3" else None


def _default_profile() -> Profile:
    """Return the profile of plain urls: of the environment, else petrel's default cluster, else AWS's own."""
    if not python_layers()[1]:
        return Profile("", origin="default chain")
    chosen = settings.S3_PROFILE.get()
    if chosen is not None:
        return find_profile(chosen)
    around, defined = profile_files.environment_profile()
    petrel = None if defined else petrel_definitions()
    return petrel.profiles[petrel.default] if petrel is not None and petrel.default else around


# forked children share it, and all that was defined before the fork
_process_id = os.urandom(16).hex()


class PickledProfiles(NamedTuple):
    """What Python defined in one process.

    Args:
        process: the process.
        profiles: those whose secrets are references.
        withheld: names of the others.
        routes: the routes.
    """

    process: str
    profiles: tuple[Profile, ...]
    withheld: tuple[str, ...]
    routes: tuple[Route, ...]


def collect_profiles() -> PickledProfiles | None:
    """Return what Python has defined, or None where that is nothing."""
    profiles: dict[str, Profile] = {}
    routes: dict[str, Route] = {}
    for layer in reversed(python_layers()[0]):
        profiles.update(layer.profiles)
        routes.update(layer.routes)
    if not profiles and not routes:
        return None
    travelling = tuple(profile for profile in profiles.values() if not profile.literal)
    withheld = tuple(name for name, profile in profiles.items() if profile.literal)
    return PickledProfiles(_process_id, travelling, withheld, tuple(routes.values()))


def restore_profiles(pickled: PickledProfiles) -> None:
    """Take up what another process has defined; in the process that defined it, nothing happens."""
    if pickled.process != _process_id:
        adopt_definitions(pickled.profiles, pickled.routes, pickled.withheld)
