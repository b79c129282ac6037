"""Profiles and routes in TOML.

Flows in: a file. Flows out: what it defines, with each definition's ``file:line``. The text itself is let go before
anything can fail, and every value that may be a secret is hidden at once: no error and no traceback holds one.
"""

import functools
import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from webdataset.ground.errors import ConfigError

from .profile import FIELDS, SECRETS, Profile, Route, checked_name, checked_profile, checked_route, nearest
from .secret import Secret

Lines = Mapping[tuple[str, ...], int]

_OPEN = {*FIELDS, "match", "profile", "target"} - set(SECRETS)
_KEY = re.compile(r"""\s*((?:[\w-]+|"[^"\n]*"|'[^'\n]*')(?:\s*\.\s*(?:[\w-]+|"[^"\n]*"|'[^'\n]*'))*)\s*=""")


class Definitions(NamedTuple):
    """What one file defines."""

    profiles: Mapping[str, Profile]
    routes: tuple[Route, ...] = ()
    default: str | None = None
    """The profile of ``s3://`` urls that no route takes."""


def read_toml(path: Path, *, travels: bool = True) -> Definitions:
    """Return what a configuration file defines.

    Args:
        path: the file.
        travels: the processes of this user all read it.

    Raises:
        ConfigError: it cannot be read, or has a mistake, which is named by ``file:line``.
    """
    tree, lines = _parsed(path)
    if isinstance(tree, str):
        raise ConfigError(tree)
    return defined(tree, str(path), lines, travels=travels)


def defined(tree: Mapping[str, Any], origin: str, lines: Lines, *, travels: bool) -> Definitions:
    """Return what a parsed configuration defines.

    Args:
        tree: its tables; secrets hidden.
        origin: the file's name.
        lines: path of a key to its line.
        travels: see :func:`read_toml`.

    Raises:
        ConfigError: a mistake.
    """

    def at(*keys: str) -> str:
        line = next((lines[keys[:size]] for size in range(len(keys), 0, -1) if keys[:size] in lines), None)
        return f"{origin}:{line}" if line else origin

    for key in tree:
        if key != "s3":
            raise ConfigError(f"{at(key)}: there is no {key!r}{nearest(key, ('s3',))}")
    s3 = _table(tree.get("s3", {}), at("s3"), "s3")
    for key in s3:
        if key not in ("profiles", "route"):
            raise ConfigError(f"{at('s3', key)}: s3 has no {key!r}{nearest(key, ('profiles', 'route'))}")
    written = _table(s3.get("profiles", {}), at("s3", "profiles"), "s3.profiles")
    profiles = {name: _profile(name, written[name], at, travels=travels) for name in written}
    return Definitions(profiles, tuple(_routes(s3.get("route", []), at)))


def _profile(name: str, written: Any, at: Callable[..., str], *, travels: bool) -> Profile:
    place = at("s3", "profiles", name)
    checked_name(name, place)
    fields = _table(written, place, f"s3.profiles.{name}")
    return checked_profile(
        name, fields, origin=place, travels=travels, at=lambda field: at("s3", "profiles", name, field)
    )


def _routes(written: Any, at: Callable[..., str]) -> Iterable[Route]:
    if not isinstance(written, list):
        raise ConfigError(f"{at('s3', 'route')}: routes are written as [[s3.route]], with two brackets")
    seen: set[str] = set()
    for number, fields in enumerate(written):
        keys = ("s3", "route", str(number))
        place = at(*keys)
        named = functools.partial(at, *keys)
        route = checked_route(_table(fields, place, "s3.route"), origin=place, at=named)
        if route.match in seen:
            raise ConfigError(f"{place}: a second route for the same urls")
        seen.add(route.match)
        yield route


def _table(written: Any, place: str, name: str) -> Mapping[str, Any]:
    if not isinstance(written, dict):
        raise ConfigError(f"{place}: {name} has to be a table")
    return written


def _parsed(path: Path) -> tuple[Mapping[str, Any] | str, Lines]:
    """Return a file's tables and the lines of its keys, or what is wrong; the text stays in here."""
    import tomllib  # noqa: PLC0415  10 ms, where there is such a file

    try:
        text = path.read_bytes().decode()
        return hidden(tomllib.loads(text)), _lines(text)
    except OSError as error:
        return f"{path}: {error.strerror or 'cannot be read'}", {}
    except UnicodeDecodeError:
        return f"{path}: is not UTF-8 text", {}
    except tomllib.TOMLDecodeError as error:
        line = re.search(r"at line (\d+)", str(error))
        return f"{path}:{line[1] if line else 1}: is not TOML here: check quotes, brackets and keys given twice", {}
    except RecursionError:
        return f"{path}: is nested too deeply", {}


def hidden(tree: Any, key: str = "") -> Any:
    """Return tables with every text hidden that is not known to be harmless.

    Args:
        tree: a parsed file, or a part of it.
        key: the key that it stands under.
    """
    if isinstance(tree, dict):
        return {name: hidden(value, name) for name, value in tree.items()}
    if isinstance(tree, list):
        return [hidden(value, key) for value in tree]
    return Secret(tree) if isinstance(tree, str) and tree and key not in _OPEN else tree


def _lines(text: str) -> Lines:
    """Return the line of each table and of each key in it, as far as they are written one a line."""
    lines: dict[tuple[str, ...], int] = {}
    table: tuple[str, ...] = ()
    counts: dict[tuple[str, ...], int] = {}
    for number, line in enumerate(text.splitlines(), 1):
        header = line.lstrip().startswith("[") and _keys(line.partition("#")[0])
        if header:
            table = header
            if line.lstrip().startswith("[["):
                table = (*header, str(counts.get(header, 0)))
                counts[header] = counts.get(header, 0) + 1
            found = table
        else:
            match = _KEY.match(line)
            key = _keys(f"{match[1]}=0") if match else None
            if not key:
                continue
            found = (*table, *key)
        for size in range(1, len(found) + 1):
            lines.setdefault(found[:size], number)
    return lines


def _keys(line: str) -> tuple[str, ...] | None:
    """Return the keys that a header, or the left side of an assignment, names."""
    import tomllib  # noqa: PLC0415  10 ms, where there is such a file

    try:
        tree: Any = tomllib.loads(line)
    except tomllib.TOMLDecodeError:
        return None
    keys = []
    while isinstance(tree, (dict, list)) and tree:
        if isinstance(tree, dict):
            keys.append(next(iter(tree)))
            tree = tree[keys[-1]]
        else:
            tree = tree[0]
    return tuple(keys)


def written(profiles: Iterable[Profile], routes: Iterable[Route] = ()) -> str:
    """Return TOML that defines the same.

    Args:
        profiles: profiles with names.
        routes: routes.

    Raises:
        ConfigError: a profile holds a secret as text; references are written, secrets are not.
    """
    parts = []
    for profile in profiles:
        if profile.literal:
            raise ConfigError(f"S3 profile {profile.name!r} holds a secret as text, which is not written out")
        fields = [(field, getattr(profile, field)) for field in FIELDS]
        kept = [
            (field, value) for field, value in fields if value is not None and (value is not False or field == "verify")
        ]
        parts.append("\n".join([f'[s3.profiles."{checked_name(profile.name)}"]', *(_line(*pair) for pair in kept)]))
    for route in routes:
        fields = [(field, getattr(route, field)) for field in ("match", "profile", "target")]
        parts.append("\n".join(["[[s3.route]]", *(_line(*pair) for pair in fields if pair[1] is not None)]))
    return "\n\n".join(parts) + "\n" if parts else ""


def _line(field: str, value: Any) -> str:
    if isinstance(value, bool):
        return f"{field} = {str(value).lower()}"
    text = str(value.reference if isinstance(value, Secret) else value)
    quoted = "".join(_escaped(letter) for letter in text)
    return f'{field} = "{quoted}"'


def _escaped(letter: str) -> str:
    if letter in '"\\':
        return f"\\{letter}"
    return f"\\u{ord(letter):04x}" if ord(letter) < 32 or ord(letter) == 127 else letter
