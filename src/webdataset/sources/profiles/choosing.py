"""Which credentials a url is opened with.

Flows in: ``s3://bucket/key``, ``s3+NAME://bucket/key``, ``NAME:s3://bucket/key``, or a scheme that a route leads to S3.
Flows out: a :class:`Profile` and the plain ``s3://bucket/key``. The first that says something wins: storage options,
the name in the url, the longest route, the environment, the default chain of AWS.
"""

import re
from dataclasses import dataclass
from typing import Any

from webdataset.ground import settings
from webdataset.ground.errors import ConfigError

from . import imports as profile_imports
from . import options as option_tables
from . import registry as profile_registry
from .options import S3_ALIASES, StorageOptions
from .profile import NAME, UNROUTED, Profile, Route, checked_profile, nearest
from .secret import Secret

__all__ = [
    "Profile",
    "Route",
    "Secret",
    "StorageOptions",
    "is_routed",
    "is_s3",
    "named",
    "profile",
    "profile_for",
    "profiles",
    "service_of",
]

_S3 = re.compile(rf"(?:(?P<before>{NAME}):)?s3(?:\+(?P<after>{NAME}))?://", re.IGNORECASE)
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9.-]*)://")
_S3_ALL = frozenset(option_tables.NAMES["s3"])
_S3_ONLY = _S3_ALL.difference(*(names for store, names in option_tables.NAMES.items() if store != "s3"))


@dataclass(frozen=True)
class Chosen:
    """What a dataset says about S3, checked.

    Args:
        profile: name of the profile; None leaves it to the url.
        fields: fields that replace those of the profile.
    """

    profile: str | None
    fields: tuple[tuple[str, Any], ...]

    def applied(self, base: Profile) -> Profile:
        """Return a profile with these fields in the place of its own.

        Args:
            base: the profile.
        """
        return profile_imports.overridden(base, dict(self.fields), "storage_options")


def storage_options(given: Any) -> StorageOptions | None:
    """Return storage options, checked; S3's values, too, where the names are S3's.

    Args:
        given: a mapping of option names to values; None.

    Raises:
        ConfigError: an unknown option, or one that makes no sense.
    """
    checked = option_tables.storage_options(given)
    if checked is not None and _S3_ONLY.intersection(checked.as_mapping()) and _S3_ALL.issuperset(checked.as_mapping()):
        _chosen(checked)
    return checked


def _chosen(given: Any, url: str | None = None) -> Chosen | None:
    """Return what storage options say about S3."""
    if given is None:
        return None
    options = option_tables.options_for("s3", given, url)
    fields = {S3_ALIASES.get(name, name): value for name, value in options.items() if name != "profile"}
    name = options.get("profile")
    if name is not None and not isinstance(name, str):
        raise ConfigError("storage_options: profile is the name of a profile")
    made = checked_profile("", fields, origin="storage_options")
    return Chosen(name, tuple((field, getattr(made, field)) for field in fields))


def profile(name: str, /, **fields: Any) -> Profile:
    """Define an S3 profile for this process, or return the one that is defined.

    Args:
        name: its name: ``s3+NAME://bucket/key`` and ``NAME:s3://bucket/key`` use it.
        **fields: fields of :class:`Profile`; keys are given as ``env:NAME``, ``file:PATH`` or as text, which is never
            shown, and does not travel to other processes. Without fields, nothing is defined.

    Returns:
        The profile.

    Raises:
        ConfigError: an unknown field, one that makes no sense; no such profile.
    """
    return profile_registry.register(name, fields) if fields else named(name)


def named(name: str) -> Profile:
    """Return the profile of a name: of Python, of a file, of the environment, of petrel, of AWS.

    Args:
        name: the profile's name.

    Raises:
        ConfigError: there is none.
    """
    layers, others = profile_registry.in_python()
    for layer in layers:
        if name in layer.profiles:
            return layer.profiles[name]
    found = _outside(name) if others else None
    if found is None:
        if profile_registry.is_withheld(name):
            raise ConfigError(
                f"S3 profile {name!r} was defined in another process with a secret as text, which does not travel: "
                "give 'env:NAME' or 'file:PATH', or define it in the configuration file"
            )
        looked = "python, WDS_S3_* variables, the configuration file, petreloss.conf, ~/.aws" if others else "python"
        raise ConfigError(f"there is no S3 profile {name!r}{nearest(name, profiles())} (looked in {looked})")
    return found


def _outside(name: str) -> Profile | None:
    """Return the profile of a name that files or the environment define; variables of ours replace its fields."""
    fields = profile_imports.from_variables(name)
    files = profile_registry.in_files()
    base = next((found.profiles[name] for found in files if name in found.profiles), None)
    base = base or profile_imports.megfile_profile(name) or profile_registry.in_petrel().profiles.get(name)
    base = base or profile_imports.aws_profiles().get(name)
    if base is None:
        return checked_profile(name, fields, origin="environment") if fields else None
    return profile_imports.overridden(base, fields, "environment")


def profiles() -> dict[str, Profile]:
    """Return all profiles that Python and files define, by name; those of variables are known only when asked for.

    Raises:
        ConfigError: a file has a mistake.
    """
    layers, others = profile_registry.in_python()
    found: dict[str, Profile] = {}
    if others:
        found.update(profile_imports.aws_profiles())
        found.update(profile_registry.in_petrel().profiles)
        for file in reversed(profile_registry.in_files()):
            found.update(file.profiles)
    for layer in reversed(layers):
        found.update(layer.profiles)
    return found


def is_s3(url: str) -> bool:
    """Tell whether a url is served by S3: by its scheme, or because a route leads there.

    Args:
        url: a url or path.

    Raises:
        ConfigError: a configuration file with a mistake, asked for a scheme that is not S3's own.
    """
    match = _S3.match(url)
    if match is not None:
        return (match["before"] or "").lower() not in UNROUTED
    scheme = _SCHEME.match(url)
    return scheme is not None and scheme[1].lower() not in UNROUTED and _route(_plain_scheme(url)) is not None


def is_routed(url: str) -> bool:
    """Tell whether a url that does not begin with ``s3://`` is served by S3 all the same.

    Args:
        url: a url or path.

    Raises:
        ConfigError: a configuration file with a mistake.
    """
    return url[:5].lower() != "s3://" and "://" in url and is_s3(url)


def profile_for(url: str, storage_options: Any = None) -> tuple[Profile, str]:
    """Return the profile that a url is opened with, and the url as ``s3://bucket/key``.

    Args:
        url: a url for which :func:`is_s3` is true.
        storage_options: options of the dataset, as a mapping, or checked.

    Raises:
        ConfigError: no such profile, a configuration file with a mistake, options that make no sense.
    """
    options = _chosen(storage_options, url)
    name, plain = _read(url)
    chosen = options.profile if options is not None and options.profile is not None else name
    base = named(chosen) if chosen else _surroundings()
    return (base if options is None else options.applied(base)), plain


def service_of(url: str, storage_options: Any = None) -> str:
    """Return which service an S3 url is of, for names of copies; empty for other urls and for AWS itself.

    Args:
        url: a url, after rewriting.
        storage_options: options of the dataset, as a mapping, or checked.

    Raises:
        ConfigError: as :func:`profile_for`.
    """
    if not is_s3(url):
        return ""
    chosen = profile_for(url, storage_options)[0]
    return chosen.identity if chosen.name or chosen.endpoint_url else ""


def _read(url: str) -> tuple[str | None, str]:
    """Return the name of a url's profile, in it or on its route, and the plain url."""
    match = _S3.match(url)
    name = match and (match["before"] or match["after"])
    if match is not None and match["before"] and match["after"]:
        raise ConfigError("a url names one profile: NAME:s3://bucket/key, or s3+NAME://bucket/key", url=url)
    if match is not None and name:
        return name, "s3://" + url[match.end() :]
    plain = _plain_scheme(url)
    route = _route(plain)
    if route is not None:
        return route.profile, route.led(plain)
    if match is None:
        raise ConfigError("no route leads this url to S3: wds.config.route('scheme://', 'NAME') makes one", url=url)
    return None, plain


def _plain_scheme(url: str) -> str:
    scheme, mark, rest = url.partition("://")
    return scheme.lower() + mark + rest


def _route(url: str) -> Route | None:
    """Return the longest route for a url; of the same length the exact one, then the one defined latest."""
    layers, others = profile_registry.in_python()
    routes = [route for layer in layers for route in layer.routes.values()]
    if others:
        routes += [route for file in profile_registry.in_files() for route in file.routes]
    taking = [route for route in routes if route.takes(url)]
    if taking:
        return max(taking, key=lambda route: (len(route.prefix), not route.match.endswith("*")))
    scheme = url.partition("://")[0]
    return profile_imports.megfile_alias(scheme) if others and scheme != "s3" else None


def _surroundings() -> Profile:
    """Return the profile of plain urls: of the environment, else petrel's default cluster, else AWS's own."""
    if not profile_registry.in_python()[1]:
        return Profile("", origin="default chain")
    chosen = settings.S3_PROFILE.get()
    if chosen is not None:
        return named(chosen)
    around, said = profile_imports.surroundings()
    petrel = None if said else profile_registry.in_petrel()
    return petrel.profiles[petrel.default] if petrel is not None and petrel.default else around
