"""Profiles that are written elsewhere: petrel's file, variables as megfile names them, profiles of AWS, our variables.

Flows in: ``petreloss.conf``, the environment, the names in ``~/.aws``. Flows out: profiles. Keys of variables are kept
as references to them; the files of others are only read.
"""

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from webdataset.ground import settings
from webdataset.ground.errors import ConfigError

from .profile import FIELDS, SECRETS, WHO, Profile, Route, checked_profile, checked_route
from .secret import Secret
from .toml import Definitions

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


class _Ini(NamedTuple):
    """One file in the manner of ini: its sections, or what is wrong with it."""

    sections: Mapping[str, Mapping[str, Any]]
    problem: str | None = None


def read_petrel(path: Path) -> Definitions:
    """Return the clusters of a ``petreloss.conf`` as profiles.

    Args:
        path: the file: one section a cluster, with ``host_base``, ``access_key``, ``secret_key``; ``default_cluster``
            under ``[DEFAULT]``. Other keys mean nothing here.

    Raises:
        ConfigError: it cannot be read.
    """
    ini = _ini(path)
    if ini.problem is not None:
        raise ConfigError(f"{ini.problem} (WDS_PETREL_CONF names another file, or /dev/null for none)")
    clusters = {name: _cluster(name, ini.sections[name], path) for name in ini.sections if name != "DEFAULT"}
    default = str(ini.sections.get("DEFAULT", {}).get("default_cluster", "")) or None
    if default is not None and default not in clusters:
        raise ConfigError(f"{path}: default_cluster names a cluster that the file has no section for")
    return Definitions(clusters, default=default)


def _cluster(name: str, section: Mapping[str, Any], path: Path) -> Profile:
    fields: dict[str, Any] = {"addressing_style": "path"}
    host = section.get("host_base") or section.get("endpoint_url")
    if host:
        fields["endpoint_url"] = host if "://" in host else f"http://{host}"
    for field, key in (("access_key_id", "access_key"), ("secret_access_key", "secret_key")):
        if section.get(key):
            fields[field] = section[key]
    origin = f"{path} [{name}]"
    return checked_profile(name, fields, origin=origin, travels=True)


def _ini(path: Path) -> _Ini:
    """Read a file; keys are hidden at once, and no error quotes a line of it."""
    import configparser  # noqa: PLC0415  5 ms, where there is such a file

    parser = configparser.ConfigParser(interpolation=None, strict=False)
    try:
        parser.read_string(path.read_bytes().decode())
    except OSError as error:
        return _Ini({}, f"{path}: {error.strerror or 'cannot be read'}")
    except UnicodeDecodeError:
        return _Ini({}, f"{path}: is not UTF-8 text")
    except configparser.Error as error:
        line = getattr(error, "lineno", None) or next((number for number, _ in getattr(error, "errors", ())), 1)
        return _Ini({}, f"{path}:{line}: is neither [section] nor key = value")
    sections = {name: _hidden(parser[name]) for name in parser.sections()}
    return _Ini({**sections, "DEFAULT": _hidden(parser.defaults())})


def _hidden(section: Mapping[str, str]) -> Mapping[str, Any]:
    shown = ("host_base", "endpoint_url", "default_cluster")
    unquoted = {key: value.strip().strip("'\"") for key, value in section.items() if value is not None}
    return {key: value if key in shown else Secret.literal(value) for key, value in unquoted.items()}


def from_variables(name: str) -> Mapping[str, Any]:
    """Return the fields that ``WDS_S3_<NAME>_<FIELD>`` give a profile.

    Args:
        name: the profile's name; an empty one asks for ``WDS_S3_<FIELD>``.
    """
    stem = f"WDS_S3_{_shouted(name)}_" if name else "WDS_S3_"
    return _fields({field: (stem + field.upper(),) for field in FIELDS})


def overridden(profile: Profile, fields: Mapping[str, Any], origin: str) -> Profile:
    """Return a profile with some fields replaced.

    Args:
        profile: the profile.
        fields: field to value. Where one of them says who asks (keys, ``aws_profile``, ``anonymous``), all that the
            profile has of these is dropped: keys of two places are never mixed.
        origin: where the fields come from.

    Raises:
        ConfigError: an unknown field, or one that makes no sense.
    """
    if not fields:
        return profile
    dropped = set(fields).union(WHO if set(WHO) & set(fields) else ())
    kept = {field: getattr(profile, field) for field in FIELDS if field not in dropped}
    fresh = checked_profile(profile.name, fields, origin=origin)
    given = {field: getattr(fresh, field) for field in fields}
    travels = profile.travels_by_name and origin == "environment"
    return Profile(profile.name, **kept, **given, origin=f"{profile.origin} and {origin}", travels_by_name=travels)


def megfile_profile(name: str) -> Profile | None:
    """Return the profile that ``<NAME>__AWS_ACCESS_KEY_ID``, ``<NAME>__OSS_ENDPOINT`` … define, if any is set.

    Args:
        name: the profile's name.

    Raises:
        ConfigError: a variable that makes no sense.
    """
    stem = f"{_shouted(name)}__"
    fields = _fields({field: tuple(stem + key for key in keys) for field, keys in _MEGFILE.items()})
    return checked_profile(name, fields, origin=f"environment, {stem}*") if fields else None


def megfile_alias(scheme: str) -> Route | None:
    """Return the route that ``MEGFILE_ALIASES__<SCHEME>=s3+NAME`` (or ``s3+NAME://bucket/prefix``) defines.

    Args:
        scheme: the scheme of a url.

    Raises:
        ConfigError: the variable makes no sense.
    """
    variable = f"MEGFILE_ALIASES__{scheme.upper()}"
    alias = settings.looked_up(variable)
    match = None if alias is None else re.fullmatch(r"s3(?:\+(?P<name>[^:/]+))?(?:://(?P<rest>.*))?", alias)
    if match is None:  # an alias of another protocol is none of ours
        return None
    fields = {"match": f"{scheme}://", "profile": match["name"], "target": match["rest"] and f"s3://{match['rest']}"}
    return checked_route(fields, origin=f"environment, {variable}")


def surroundings() -> tuple[Profile, bool]:
    """Return the profile of plain ``s3://`` urls, and whether the environment says anything about them.

    Endpoints come from ``WDS_S3_ENDPOINT_URL``, ``OSS_ENDPOINT`` or ``AWS_ENDPOINT_URL_S3``, ``AWS_ENDPOINT_URL``,
    ``AWS_ENDPOINT``; keys of AWS are left to its default chain, which reads them itself.

    Raises:
        ConfigError: a variable that makes no sense.
    """
    names = {field: keys for field, keys in _MEGFILE.items() if field not in SECRETS}
    fields = {**_fields(names), **from_variables("")}
    if settings.looked_up("AWS_REQUEST_PAYER") == "requester":
        fields.setdefault("request_payer", True)
    said = bool(fields) or any(settings.looked_up(variable) for variable in _KEYED)
    return checked_profile("", fields, origin="environment"), said


def _fields(names: Mapping[str, Iterable[str]]) -> dict[str, Any]:
    """Return field to value for the first variable of each that is set; secrets as references."""
    found: dict[str, Any] = {}
    for field, variables in names.items():
        for variable in variables:
            text = (
                Secret.literal(settings.looked_up(variable) or "") if field in SECRETS else settings.looked_up(variable)
            )
            if isinstance(text, Secret):
                if text.reveal():
                    found[field] = _referred(variable, text)
                    break
            elif text is not None:
                found[field] = _read(field, text, variable)
                break
    return found


def _referred(variable: str, secret: Secret) -> Secret:
    """Return a reference: the variable's, or the one that it holds."""
    held = secret.reveal().startswith(("env:", "file:"))
    return Secret(secret.reveal()) if held else Secret(f"env:{variable}")


def _read(field: str, text: str, variable: str) -> Any:
    if field not in ("anonymous", "request_payer", "verify"):
        return text
    word = text.strip().lower()
    if word in _ON + _OFF:
        return word in _ON
    if field == "verify":
        return text
    raise ConfigError(f"environment variable {variable} is 1 or 0")


def _shouted(name: str) -> str:
    return re.sub(r"[.-]", "_", name).upper()


def aws_profiles() -> Mapping[str, Profile]:
    """Return the profiles of ``~/.aws/config`` and ``~/.aws/credentials``, by name alone: botocore reads the keys."""
    found: dict[str, Profile] = {}
    places = (settings.AWS_CONFIG_FILE.get(), settings.AWS_SHARED_CREDENTIALS_FILE.get())
    for path in (Path(settings.home_expanded(place)) for place in places):
        for name, endpoint in _aws_sections(path):
            if name not in found or endpoint:
                fields = {"aws_profile": name, **({"endpoint_url": endpoint} if endpoint else {})}
                found[name] = checked_profile(name, fields, origin=str(path))
    return found


def _aws_sections(path: Path) -> Iterable[tuple[str, str | None]]:
    """Yield the names of a file's profiles, with the endpoint under ``s3 =``, which botocore does not look at."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError):
        return  # botocore says so itself where it needs the file
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
