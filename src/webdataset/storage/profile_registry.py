"""The profiles and routes that are defined at present, in Python and in configuration files, and their pickling.

Definitions come from calls of ``wds.config`` and from the files as they are now (a changed file is read again), in
the order in which they are searched. Nothing here opens a connection.

:class:`PickledProfiles` carries what Python has defined to a spawned worker, or wherever a dataset is unpickled. A
secret that was given as text is left out, and the name of its profile is remembered as missing.
"""

import contextlib
import functools
import logging
import os
import stat
import threading
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from webdataset.core import settings
from webdataset.core.errors import ConfigError
from webdataset.storage.profile_files import ProfileDefinitions, read_petrel, read_toml
from webdataset.storage.s3_profile import Profile, Route, check_name, make_profile, make_route

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
