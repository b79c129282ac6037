"""Profiles on their way to another process.

Flows in: what Python has defined here. Flows out: the same in a worker that is spawned, or wherever a dataset is
unpickled. A secret that was given as text stays behind, and its profile's name is remembered as missing.
"""

import os
from typing import NamedTuple

from . import registry as profile_registry
from .profile import Profile, Route

_process = os.urandom(16).hex()  # forked children share it, and all that was defined before the fork


class Luggage(NamedTuple):
    """What Python defined in one process.

    Args:
        process: which one it was.
        profiles: those whose secrets are references.
        withheld: names of the others.
        routes: the routes.
    """

    process: str
    profiles: tuple[Profile, ...]
    withheld: tuple[str, ...]
    routes: tuple[Route, ...]


def packed() -> Luggage | None:
    """Return what Python has defined, or None where that is nothing."""
    profiles: dict[str, Profile] = {}
    routes: dict[str, Route] = {}
    for layer in reversed(profile_registry.in_python()[0]):
        profiles.update(layer.profiles)
        routes.update(layer.routes)
    if not profiles and not routes:
        return None
    travelling = tuple(profile for profile in profiles.values() if not profile.literal)
    withheld = tuple(name for name, profile in profiles.items() if profile.literal)
    return Luggage(_process, travelling, withheld, tuple(routes.values()))


def arrive(luggage: Luggage) -> None:
    """Take up what another process has defined; in the process that defined it, nothing happens.

    Args:
        luggage: what ``packed`` returned there.
    """
    if luggage.process != _process:
        profile_registry.adopt(luggage.profiles, luggage.routes, luggage.withheld)
