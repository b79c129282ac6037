"""What is defined at present: in Python, and in the configuration files.

Flows in: calls of ``wds.config``, files as they are now (one that is changed is read again). Flows out: definitions in
the order in which they are asked. Nothing here opens a connection.
"""

import contextlib
import functools
import logging
import os
import stat
import threading
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from webdataset.ground import settings
from webdataset.ground.errors import ConfigError

from .imports import read_petrel
from .profile import Profile, Route, checked_name, checked_profile, checked_route
from .toml import Definitions, read_toml

log = logging.getLogger("webdataset")

_Signature = tuple[int, int, int]


class Layer:
    """Definitions made in Python since a certain moment."""

    def __init__(self, *, file: Path | None = None, isolated: bool = False) -> None:
        self.profiles: dict[str, Profile] = {}
        self.routes: dict[str, Route] = {}
        self.file = file
        self.isolated = isolated


_layers = [Layer()]
_lock = threading.RLock()
_read: dict[Path, tuple[_Signature, Definitions]] = {}
_warned: set[Path] = set()
_withheld: set[str] = set()


def _renewed() -> None:
    global _lock  # noqa: PLW0603  a lock held by another thread at the fork stays locked for ever
    _lock = threading.RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renewed)


def register(name: str, fields: dict[str, Any]) -> Profile:
    """Define a profile for this process.

    Args:
        name: its name; a definition of the same name is replaced.
        fields: see :class:`Profile`.

    Raises:
        ConfigError: an unknown field, or one that makes no sense.
    """
    profile = checked_profile(checked_name(name), fields, origin="python")
    with _lock:
        _layers[-1].profiles[name] = profile
    return profile


def route(match: str, profile: str | None = None, *, target: str | None = None) -> Route:
    """Lead urls to a profile, in this process.

    Args:
        match: ``s3://bucket``, ``s3://bucket/prefix``, or ``scheme://`` for urls of a scheme of your own; a ``*`` at
            the end also takes names that go on. Of several routes the longest is taken, of the same length the latest.
        profile: name of the profile; None is what ``s3://`` urls use without one.
        target: ``s3://bucket/prefix`` that stands for ``match``.

    Returns:
        The route.

    Raises:
        ConfigError: a match or target that makes no sense.
    """
    made = checked_route({"match": match, "profile": profile, "target": target}, origin="python")
    with _lock:
        _layers[-1].routes[made.match] = made
    return made


def load(file: str | os.PathLike[str]) -> None:
    """Take up the profiles and routes of a further configuration file, in this process.

    Args:
        file: a TOML file.

    Raises:
        ConfigError: it cannot be read, or has a mistake, which is named by ``file:line``.
    """
    found = _definitions(Path(file), _as_given)
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
    layer = Layer(isolated=isolated)
    if file is not None:
        found = _definitions(Path(file), _as_given)
        layer.profiles.update(found.profiles)
        layer.routes.update({route.match: route for route in found.routes})
    with _lock:
        _layers.append(layer)
    try:
        yield
    finally:
        with _lock:
            _layers.remove(layer)


def in_python() -> tuple[list[Layer], bool]:
    """Return the layers of definitions made in Python, latest first, and whether others count too."""
    with _lock:
        layers = _layers[::-1]
    for number, layer in enumerate(layers):
        if layer.isolated:
            return layers[: number + 1], False
    return layers, True


def adopt(profiles: Iterable[Profile], routes: Iterable[Route], withheld: Iterable[str]) -> None:
    """Take up what Python defined in another process; definitions of this process come first.

    Args:
        profiles: profiles.
        routes: routes.
        withheld: names of profiles that could not come along.
    """
    with _lock:
        for profile in profiles:
            _layers[0].profiles.setdefault(profile.name, profile)
        for route in routes:
            _layers[0].routes.setdefault(route.match, route)
        _withheld.update(withheld)


def is_withheld(name: str) -> bool:
    """Tell whether another process knows a profile that could not come here.

    Args:
        name: its name.
    """
    return name in _withheld


def in_files() -> list[Definitions]:
    """Return the definitions of the configuration files, the user's before the system's.

    Raises:
        ConfigError: one cannot be read, or has a mistake; ``WDS_CONFIG`` names one that is absent.
    """
    named = settings.CONFIG.get()
    paths = _places(named or "", tuple(settings.config_folders()))
    found = [_definitions(path, read_toml) for path in paths if path.is_file()]
    if named is not None and not found and not _is_null(paths[0]):
        raise ConfigError(f"environment variable WDS_CONFIG names {paths[0]}, which is not there")
    return found


@functools.lru_cache(maxsize=8)
def _places(named: str, folders: tuple[str, ...]) -> tuple[Path, ...]:
    """Return where configuration files may be; this is asked for every url that is opened."""
    if named:
        return (Path(settings.home_expanded(named)),)
    return tuple(Path(settings.home_expanded(folder)) / "webdataset" / "config.toml" for folder in folders)


def in_petrel() -> Definitions:
    """Return the clusters of ``WDS_PETREL_CONF``, or ``~/petreloss.conf``.

    Raises:
        ConfigError: it cannot be read; ``WDS_PETREL_CONF`` names one that is absent.
    """
    named = settings.PETREL_CONF.get()
    path = Path(settings.home_expanded(named or "~/petreloss.conf"))
    if path.is_file():
        return _definitions(path, read_petrel)
    if named is not None and not _is_null(path):
        raise ConfigError(f"environment variable WDS_PETREL_CONF names {path}, which is not there")
    return Definitions({})


def _is_null(path: Path) -> bool:
    return str(path) == os.devnull


def _as_given(path: Path) -> Definitions:
    return read_toml(path, travels=False)


def _definitions(path: Path, reader: Callable[[Path], Definitions]) -> Definitions:
    """Read a file, or remember it where it is as it was."""
    if _is_null(path):
        return Definitions({})
    try:
        status = path.stat()
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror or 'cannot be read'}") from None
    signature = (status.st_mtime_ns, status.st_size, status.st_ino)
    known = _read.get(path) if reader is not _as_given else None
    if known is not None and known[0] == signature:
        return known[1]
    found = reader(path)
    _warn_of_readers(path, status.st_mode, found)
    if reader is not _as_given:
        _read[path] = (signature, found)
    return found


def _warn_of_readers(path: Path, mode: int, found: Definitions) -> None:
    """Say once that others can read a file with secrets in it."""
    exposed = mode & (stat.S_IRWXG | stat.S_IRWXO)
    if exposed and os.name == "posix" and path not in _warned and any(one.literal for one in found.profiles.values()):
        _warned.add(path)
        log.warning("%s holds secrets and can be read by others: chmod 600 %s", path, path)
