"""Reads profiles and routes from TOML, petrel's file, megfile's variables, ``~/.aws`` and our own variables.

Each definition of TOML keeps its ``file:line``. The text is released before anything can fail, and every value that
may be a secret is hidden at once: no error and no traceback holds one. Keys of variables are kept as references to
them; files of other programs are only read.
"""

import functools
import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple, cast

from webdataset.core import settings
from webdataset.core.errors import ConfigError
from webdataset.storage.s3_profile import (
    CREDENTIAL_FIELDS,
    FIELDS,
    SECRETS,
    Profile,
    Route,
    Secret,
    check_name,
    make_profile,
    make_route,
    suggest_name,
)

LineNumbers = Mapping[tuple[str, ...], int]

_PUBLIC_FIELDS = {*FIELDS, "match", "profile", "target"} - set(SECRETS)
_KEY = re.compile(r"""\s*((?:[\w-]+|"[^"\n]*"|'[^'\n]*')(?:\s*\.\s*(?:[\w-]+|"[^"\n]*"|'[^'\n]*'))*)\s*=""")


class ProfileDefinitions(NamedTuple):
    """What one file defines."""

    profiles: Mapping[str, Profile]
    routes: tuple[Route, ...] = ()
    default: str | None = None
    """The profile of ``s3://`` urls that no route takes."""


def read_toml(path: Path, *, travels: bool = True) -> ProfileDefinitions:
    """Return what a configuration file defines; ``travels``: the processes of this user all read it.

    Raises:
        ConfigError: it cannot be read, or has a mistake, which is named by ``file:line``.
    """
    tree, lines = _parse_file(path)
    if isinstance(tree, str):
        raise ConfigError(tree)
    return parse_definitions(tree, str(path), lines, travels=travels)


def parse_definitions(
    tree: Mapping[str, object], origin: str, lines: LineNumbers, *, travels: bool
) -> ProfileDefinitions:
    """Return what the tables of a parsed configuration, with secrets hidden, define.

    Raises:
        ConfigError: a mistake.
    """

    def at(*keys: str) -> str:
        line = next((lines[keys[:size]] for size in range(len(keys), 0, -1) if keys[:size] in lines), None)
        return f"{origin}:{line}" if line else origin

    for key in tree:
        if key != "s3":
            raise ConfigError(f"{at(key)}: there is no {key!r}{suggest_name(key, ('s3',))}")
    s3 = _check_table(tree.get("s3", {}), at("s3"), "s3")
    for key in s3:
        if key not in ("profiles", "route"):
            raise ConfigError(f"{at('s3', key)}: s3 has no {key!r}{suggest_name(key, ('profiles', 'route'))}")
    written = _check_table(s3.get("profiles", {}), at("s3", "profiles"), "s3.profiles")
    profiles = {name: _parse_profile(name, written[name], at, travels=travels) for name in written}
    return ProfileDefinitions(profiles, tuple(_parse_routes(s3.get("route", []), at)))


def _parse_profile(name: str, written: object, at: Callable[..., str], *, travels: bool) -> Profile:
    place = at("s3", "profiles", name)
    check_name(name, place)
    fields = _check_table(written, place, f"s3.profiles.{name}")
    return make_profile(name, fields, origin=place, travels=travels, at=lambda field: at("s3", "profiles", name, field))


def _parse_routes(written: object, at: Callable[..., str]) -> Iterable[Route]:
    if not isinstance(written, list):
        raise ConfigError(f"{at('s3', 'route')}: routes are written as [[s3.route]], with two brackets")
    seen: set[str] = set()
    for number, fields in enumerate(written):
        keys = ("s3", "route", str(number))
        place = at(*keys)
        named = functools.partial(at, *keys)
        route = make_route(_check_table(fields, place, "s3.route"), origin=place, at=named)
        if route.match in seen:
            raise ConfigError(f"{place}: a second route for the same urls")
        seen.add(route.match)
        yield route


def _check_table(written: object, place: str, name: str) -> Mapping[str, object]:
    if not isinstance(written, dict):
        raise ConfigError(f"{place}: {name} has to be a table")
    return written


def _parse_file(path: Path) -> tuple[Mapping[str, object] | str, LineNumbers]:
    """Return a file's tables and the lines of its keys, or what is wrong; the text stays in here."""
    import tomllib  # noqa: PLC0415  10 ms, where there is such a file

    try:
        text = path.read_bytes().decode()
        return cast("dict[str, object]", hide_secrets(tomllib.loads(text))), _find_lines(text)
    except OSError as error:
        return f"{path}: {error.strerror or 'cannot be read'}", {}
    except UnicodeDecodeError:
        return f"{path}: is not UTF-8 text", {}
    except tomllib.TOMLDecodeError as error:
        line = re.search(r"at line (\d+)", str(error))
        return f"{path}:{line[1] if line else 1}: is not TOML here: check quotes, brackets and keys given twice", {}
    except RecursionError:
        return f"{path}: is nested too deeply", {}


def hide_secrets(tree: object, key: str = "") -> object:
    """Return tables with every text hidden that is not known to be harmless under its key."""
    if isinstance(tree, dict):
        return {name: hide_secrets(value, name) for name, value in tree.items()}
    if isinstance(tree, list):
        return [hide_secrets(value, key) for value in tree]
    return Secret(tree) if isinstance(tree, str) and tree and key not in _PUBLIC_FIELDS else tree


def _find_lines(text: str) -> LineNumbers:
    """Return the line of each table and of each key in it, as far as they are written one a line."""
    lines: dict[tuple[str, ...], int] = {}
    table: tuple[str, ...] = ()
    counts: dict[tuple[str, ...], int] = {}
    for number, line in enumerate(text.splitlines(), 1):
        header = line.lstrip().startswith("[") and _parse_keys(line.partition("#")[0])
        if header:
            table = header
            if line.lstrip().startswith("[["):
                table = (*header, str(counts.get(header, 0)))
                counts[header] = counts.get(header, 0) + 1
            found = table
        else:
            match = _KEY.match(line)
            key = _parse_keys(f"{match[1]}=0") if match else None
            if not key:
                continue
            found = (*table, *key)
        for size in range(1, len(found) + 1):
            lines.setdefault(found[:size], number)
    return lines


def _parse_keys(line: str) -> tuple[str, ...] | None:
    """Return the keys that a header, or the left side of an assignment, names."""
    import tomllib  # noqa: PLC0415  10 ms, where there is such a file

    try:
        tree: object = tomllib.loads(line)
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


def format_toml(profiles: Iterable[Profile], routes: Iterable[Route] = ()) -> str:
    """Return TOML that defines the same profiles and routes.

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
        parts.append(
            "\n".join([f'[s3.profiles."{check_name(profile.name)}"]', *(_format_line(*pair) for pair in kept)])
        )
    for route in routes:
        fields = [(field, getattr(route, field)) for field in ("match", "profile", "target")]
        parts.append("\n".join(["[[s3.route]]", *(_format_line(*pair) for pair in fields if pair[1] is not None)]))
    return "\n\n".join(parts) + "\n" if parts else ""


def _format_line(field: str, value: object) -> str:
    if isinstance(value, bool):
        return f"{field} = {str(value).lower()}"
    text = str(value.reference if isinstance(value, Secret) else value)
    quoted = "".join(_escape_letter(letter) for letter in text)
    return f'{field} = "{quoted}"'


def _escape_letter(letter: str) -> str:
    if letter in '"\\':
        return f"\\{letter}"
    return f"\\u{ord(letter):04x}" if ord(letter) < 32 or ord(letter) == 127 else letter


_OFF = ("0", "false", "no", "off")
_ON = ("1", "true", "yes", "on")

_MEGFILE = {
    "access_key_id": ("AWS_ACCESS_KEY_ID",),
    "secret_access_key": ("AWS_SECRET_ACCESS_KEY",),
    "session_token": ("AWS_SESSION_TOKEN",),
    "endpoint_url": ("OSS_ENDPOINT", "AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT"),
    "region": ("AWS_REGION", "AWS_DEFAULT_REGION"),
    "addressing_style": ("AWS_S3_ADDRESSING_STYLE",),
}
_KEYED = (
    "AWS_ACCESS_KEY_ID", "AWS_PROFILE", "AWS_WEB_IDENTITY_TOKEN_FILE", "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
    "AWS_CONTAINER_CREDENTIALS_FULL_URI",
)  # fmt: skip


class _IniFile(NamedTuple):
    """One file in the manner of ini: its sections, or what is wrong with it."""

    sections: Mapping[str, Mapping[str, object]]
    problem: str | None = None


def read_petrel(path: Path) -> ProfileDefinitions:
    """Return the clusters of a ``petreloss.conf`` as profiles.

    One section a cluster, with ``host_base``, ``access_key``, ``secret_key``; ``default_cluster`` under ``[DEFAULT]``.
    Other keys mean nothing here.

    Raises:
        ConfigError: it cannot be read.
    """
    ini = _read_ini(path)
    if ini.problem is not None:
        raise ConfigError(f"{ini.problem} (WDS_PETREL_CONF names another file, or /dev/null for none)")
    clusters = {name: _petrel_profile(name, ini.sections[name], path) for name in ini.sections if name != "DEFAULT"}
    default = str(ini.sections.get("DEFAULT", {}).get("default_cluster", "")) or None
    if default is not None and default not in clusters:
        raise ConfigError(f"{path}: default_cluster names a cluster that the file has no section for")
    return ProfileDefinitions(clusters, default=default)


def _petrel_profile(name: str, section: Mapping[str, Any], path: Path) -> Profile:
    fields: dict[str, object] = {"addressing_style": "path"}
    host = section.get("host_base") or section.get("endpoint_url")
    if host:
        fields["endpoint_url"] = host if "://" in host else f"http://{host}"
    for field, key in (("access_key_id", "access_key"), ("secret_access_key", "secret_key")):
        if section.get(key):
            fields[field] = section[key]
    origin = f"{path} [{name}]"
    return make_profile(name, fields, origin=origin, travels=True)


def _read_ini(path: Path) -> _IniFile:
    """Read a file; keys are hidden at once, and no error quotes a line of it."""
    import configparser  # noqa: PLC0415  5 ms, where there is such a file

    parser = configparser.ConfigParser(interpolation=None, strict=False)
    try:
        parser.read_string(path.read_bytes().decode())
    except OSError as error:
        return _IniFile({}, f"{path}: {error.strerror or 'cannot be read'}")
    except UnicodeDecodeError:
        return _IniFile({}, f"{path}: is not UTF-8 text")
    except configparser.Error as error:
        line = getattr(error, "lineno", None) or next((number for number, _ in getattr(error, "errors", ())), 1)
        return _IniFile({}, f"{path}:{line}: is neither [section] nor key = value")
    sections = {name: _hide_values(parser[name]) for name in parser.sections()}
    return _IniFile({**sections, "DEFAULT": _hide_values(parser.defaults())})


def _hide_values(section: Mapping[str, str]) -> Mapping[str, object]:
    shown = ("host_base", "endpoint_url", "default_cluster")
    unquoted = {key: value.strip().strip("'\"") for key, value in section.items() if value is not None}
    return {key: value if key in shown else Secret.literal(value) for key, value in unquoted.items()}


def read_profile_variables(name: str) -> Mapping[str, object]:
    """Return the fields that ``WDS_S3_<NAME>_<FIELD>`` give a profile; without a name, ``WDS_S3_<FIELD>``."""
    stem = f"WDS_S3_{_variable_name(name)}_" if name else "WDS_S3_"
    return _read_fields({field: (stem + field.upper(),) for field in FIELDS})


def override_fields(profile: Profile, fields: Mapping[str, object], origin: str) -> Profile:
    """Return a profile with some fields replaced, which come from ``origin``.

    Where a field says who asks (keys, ``aws_profile``, ``anonymous``), all that the profile has of these is dropped:
    keys of two places are never mixed.

    Raises:
        ConfigError: an unknown field, or one that makes no sense.
    """
    if not fields:
        return profile
    dropped = set(fields).union(CREDENTIAL_FIELDS if set(CREDENTIAL_FIELDS) & set(fields) else ())
    kept = {field: getattr(profile, field) for field in FIELDS if field not in dropped}
    fresh = make_profile(profile.name, fields, origin=origin)
    given = {field: getattr(fresh, field) for field in fields}
    travels = profile.travels_by_name and origin == "environment"
    return Profile(profile.name, **kept, **given, origin=f"{profile.origin} and {origin}", travels_by_name=travels)


def read_megfile_profile(name: str) -> Profile | None:
    """Return the profile that ``<NAME>__AWS_ACCESS_KEY_ID``, ``<NAME>__OSS_ENDPOINT`` … define, if any is set.

    Raises:
        ConfigError: a variable that makes no sense.
    """
    stem = f"{_variable_name(name)}__"
    fields = _read_fields({field: tuple(stem + key for key in keys) for field, keys in _MEGFILE.items()})
    return make_profile(name, fields, origin=f"environment, {stem}*") if fields else None


def read_megfile_alias(scheme: str) -> Route | None:
    """Return the route that ``MEGFILE_ALIASES__<SCHEME>=s3+NAME`` (or ``s3+NAME://bucket/prefix``) defines.

    Raises:
        ConfigError: the variable makes no sense.
    """
    variable = f"MEGFILE_ALIASES__{scheme.upper()}"
    alias = settings.read_variable(variable)
    match = None if alias is None else re.fullmatch(r"s3(?:\+(?P<name>[^:/]+))?(?:://(?P<rest>.*))?", alias)
    # an alias of another protocol is none of ours
    if match is None:
        return None
    fields = {"match": f"{scheme}://", "profile": match["name"], "target": match["rest"] and f"s3://{match['rest']}"}
    return make_route(fields, origin=f"environment, {variable}")


def environment_profile() -> tuple[Profile, bool]:
    """Return the profile of plain ``s3://`` urls, and whether the environment says anything about them.

    Endpoints come from ``WDS_S3_ENDPOINT_URL``, ``OSS_ENDPOINT`` or ``AWS_ENDPOINT_URL_S3``, ``AWS_ENDPOINT_URL``,
    ``AWS_ENDPOINT``; keys of AWS are left to its default chain, which reads them itself.

    Raises:
        ConfigError: a variable that makes no sense.
    """
    names = {field: keys for field, keys in _MEGFILE.items() if field not in SECRETS}
    fields = {**_read_fields(names), **read_profile_variables("")}
    if settings.read_variable("AWS_REQUEST_PAYER") == "requester":
        fields.setdefault("request_payer", True)
    is_defined = bool(fields) or any(settings.read_variable(variable) for variable in _KEYED)
    return make_profile("", fields, origin="environment"), is_defined


def _read_fields(names: Mapping[str, Iterable[str]]) -> dict[str, object]:
    """Return field to value for the first variable of each that is set; secrets as references."""
    found: dict[str, object] = {}
    for field, variables in names.items():
        for variable in variables:
            text = (
                Secret.literal(settings.read_variable(variable) or "")
                if field in SECRETS
                else settings.read_variable(variable)
            )
            if isinstance(text, Secret):
                if text.reveal():
                    found[field] = _make_reference(variable, text)
                    break
            elif text is not None:
                found[field] = _parse_field(field, text, variable)
                break
    return found


def _make_reference(variable: str, secret: Secret) -> Secret:
    """Return a reference: the variable's, or the one that it holds."""
    held = secret.reveal().startswith(("env:", "file:"))
    return Secret(secret.reveal()) if held else Secret(f"env:{variable}")


def _parse_field(field: str, text: str, variable: str) -> object:
    if field not in ("anonymous", "request_payer", "verify"):
        return text
    word = text.strip().lower()
    if word in _ON + _OFF:
        return word in _ON
    if field == "verify":
        return text
    raise ConfigError(f"environment variable {variable} is 1 or 0")


def _variable_name(name: str) -> str:
    return re.sub(r"[.-]", "_", name).upper()


def read_aws_profiles() -> Mapping[str, Profile]:
    """Return the profiles of ``~/.aws/config`` and ``~/.aws/credentials``, by name alone: botocore reads the keys."""
    found: dict[str, Profile] = {}
    places = (settings.AWS_CONFIG_FILE.get(), settings.AWS_SHARED_CREDENTIALS_FILE.get())
    for path in (Path(settings.expand_home(place)) for place in places):
        for name, endpoint in _read_aws_sections(path):
            if name not in found or endpoint:
                fields = {"aws_profile": name, **({"endpoint_url": endpoint} if endpoint else {})}
                found[name] = make_profile(name, fields, origin=str(path))
    return found


def _read_aws_sections(path: Path) -> Iterable[tuple[str, str | None]]:
    """Yield the names of a file's profiles, with the endpoint under ``s3 =``, which botocore does not look at."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError):
        # botocore says so itself where it needs the file
        return
    name, endpoint, inside = None, None, False
    for line in lines:
        header = re.match(r"\[\s*(?P<kind>[\w-]+\s+)?(?P<name>[^\]\s]+)\s*\]", line)
        if header:
            if name:
                yield name, endpoint
            kind = (header["kind"] or "profile").strip()
            name, endpoint, inside = (header["name"].strip("\"'") if kind == "profile" else None), None, False
        elif line[:1].isspace():
            setting = re.match(r"\s+endpoint_url\s*=\s*(https?://[^\s@?#]+)\s*$", line)
            endpoint = setting[1] if inside and setting else endpoint
        else:
            inside = re.match(r"s3\s*=\s*$", line) is not None
    if name:
        yield name, endpoint
