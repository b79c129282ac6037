"""Checks and freezes ``storage_options``, and gives each backend its own part.

Everything that may be a secret becomes a :class:`~webdataset.storage.s3_profile.Secret`, which is neither shown nor
pickled. A name that no backend knows is an error at once; a name of another backend is an error when the url is opened.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from webdataset.core.errors import ConfigError
from webdataset.core.redaction import redact
from webdataset.storage import profile_files
from webdataset.storage.s3_profile import FIELDS, Profile, Secret, make_profile, suggest_name

S3_ALIASES = {"key": "access_key_id", "secret": "secret_access_key", "token": "session_token", "anon": "anonymous"}
"""fsspec's names for fields of a profile."""

OPTION_NAMES: dict[str, tuple[str, ...]] = {
    "s3": ("profile", *S3_ALIASES, *FIELDS),
    "http": ("headers", "token", "verify"),
    "gs": ("token", "credentials", "anonymous", "endpoint_url", "user_project"),
    "azure": (
        "account_name", "account_key", "sas_token", "connection_string", "credential", "anonymous", "endpoint_url",
    ),
    "hf": ("token", "endpoint_url"),
    "ais": ("token", "endpoint_url", "provider", "verify"),
    "ssh": ("username", "password", "key_filename", "passphrase", "port", "known_hosts"),
    "fsspec": ("fsspec",),
    "memory": (),
}  # fmt: skip
"""Store to the names of its options."""

SECRET_OPTIONS = frozenset(
    {
        "secret", "token", "account_key", "sas_token", "connection_string", "password", "passphrase",
        "secret_access_key", "session_token", "access_key_id", "key", "credential", "credentials",
    }
)  # fmt: skip
"""Names whose texts are secrets: ``env:NAME``, ``file:PATH``, or the secret itself, which stays out of pickles."""

GS_TOKENS = frozenset(("anon", "cloud", "google_default"))
"""Words that gcsfs takes as ``token``; as it does, ``gs:`` urls also take the path of a file of credentials."""

# of which a text is no value, or not every one
_NOT_TEXTS = frozenset(("headers", "fsspec", "port"))
_SWITCHES = frozenset(("anonymous", "anon"))

_SECRET_WORD = re.compile(
    r"secret|token|passw|passphrase|pwd|(?:^|_)pass$|credential|auth|sas|key$|signature|cookie|bearer|jwt|connection_string",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class StorageOptions:
    """Options, checked and frozen: name to value; texts that are secrets are hidden."""

    options: tuple[tuple[str, object], ...]

    def as_mapping(self) -> dict[str, Any]:
        """Return name to value."""
        return dict(self.options)


class OpaqueOption:
    """An object of another package that may know secrets: used where it is, never pickled, never shown."""

    def __init__(self, value: object) -> None:
        self.value = value

    def __repr__(self) -> str:
        return f"<{type(self.value).__name__}>"

    def __reduce__(self) -> tuple[object, ...]:
        """Refuse.

        Raises:
            ConfigError: always.
        """
        raise ConfigError(
            f"storage_options: a {type(self.value).__name__} may hold secrets, and is not put into a pickle: leave it "
            "out where the machine has credentials, give a path, 'env:NAME' or 'file:PATH', or start workers by fork"
        )


class PicklesNoObjects:
    """A base of dataclasses whose fields may hold objects of other packages: these may know secrets."""

    def __getstate__(self) -> dict[str, object]:
        """Pickle the fields.

        Raises:
            ConfigError: one is an object of another package.
        """
        for value in self.__dict__.values():
            if not isinstance(value, str | bool | Secret | None):
                OpaqueOption(value).__reduce__()
        return self.__dict__


def check_options(given: object) -> StorageOptions | None:
    """Return storage options, checked and frozen; names of :data:`OPTION_NAMES` only.

    Raises:
        ConfigError: an option that no store has.
    """
    if given is None or isinstance(given, StorageOptions):
        return given
    if not isinstance(given, Mapping):
        raise ConfigError(f"storage_options is a mapping of options to values, not {type(given).__name__}")
    known = sorted({name for names in OPTION_NAMES.values() for name in names})
    unknown = next((str(name) for name in given if name not in known), None)
    if unknown is not None:
        if unknown in ("client_kwargs", "config_kwargs"):
            raise ConfigError(f"storage_options has no {unknown!r}: write endpoint_url= and region= without it")
        raise ConfigError(f"storage_options has no {unknown!r}{suggest_name(unknown, known)}")
    for name, value in given.items():
        if type(value) is not bool if name in _SWITCHES else type(value) is not str or name in _NOT_TEXTS:
            from webdataset.storage.option_types import check_option_type  # noqa: PLC0415  most options are texts

            check_option_type(str(name), value)
    return StorageOptions(tuple((str(name), _hide_option(str(name), value)) for name, value in given.items()))


def options_for(store: str, given: object, url: str | None = None) -> dict[str, Any]:
    """Return the options of one store of :data:`OPTION_NAMES`; texts that are secrets are revealed by ``.reveal()``.

    Raises:
        ConfigError: an option of another store.
    """
    checked = check_options(given)
    if checked is None:
        return {}
    names = OPTION_NAMES[store]
    found = checked.as_mapping()
    other = next((name for name in found if name not in names), None)
    if other is not None:
        listed = ", ".join(names) or "none"
        raise ConfigError(
            f"storage_options: {other!r} does not apply here; options of this scheme are: {listed}",
            url=None if url is None else redact(url),
        )
    if store != "gs" and isinstance(found.get("token"), str):
        found["token"] = Secret(found["token"])
    for name in ("token", "credentials"):
        value = found.get(name)
        if value is not None and not isinstance(value, Secret):
            from webdataset.storage.option_types import check_token  # noqa: PLC0415  most tokens are texts

            check_token(store, value.value if isinstance(value, OpaqueOption) else value)
    return {name: value.value if isinstance(value, OpaqueOption) else value for name, value in found.items()}


def refuse_login(endpoint: str, name: str, url: str | None = None) -> None:
    """Refuse a user or password in the address of a service: addresses are shown.

    Raises:
        ConfigError: there is one.
    """
    if "@" in endpoint.partition("://")[2].partition("/")[0] or ("@" in endpoint and "://" not in endpoint):
        raise ConfigError(f"{name} must not hold a user or password: it is shown in messages", url=url)


def _hide_option(name: str, value: object) -> object:
    """Return a value, after a :class:`Secret` where it may be one."""
    if name == "headers" and isinstance(value, Mapping):
        return tuple((str(key), _wrap_secret(text)) for key, text in value.items())
    if name == "endpoint_url" and isinstance(value, str):
        refuse_login(value, "storage_options: endpoint_url")
    if name == "fsspec" and isinstance(value, Mapping):
        return _check_foreign_options(value, secret=False)
    # a file of Google's, as its content
    if name.startswith(("token", "credential")) and isinstance(value, Mapping):
        return Secret.literal(json.dumps(dict(value)))
    if name == "token" and isinstance(value, str) and (value in GS_TOKENS or _is_path(value)):
        return value
    if name == "credentials" and isinstance(value, str) and _is_path(value, ""):
        # it must get into workers
        return value
    return _wrap_secret(value) if name in SECRET_OPTIONS else value


def _is_path(text: str, ending: str = ".json") -> bool:
    return text.endswith(ending) and not text.lstrip().startswith(("env:", "file:", "{"))


def _check_foreign_options(given: Mapping[object, object], *, secret: bool) -> StorageOptions:
    """Return options whose names belong to others: what may be a secret is told by what it is called."""
    found: list[tuple[str, object]] = []
    for key, value in given.items():
        hidden = secret or _SECRET_WORD.search(str(key)) is not None
        if isinstance(value, Mapping):
            value = _check_foreign_options(value, secret=hidden or "headers" in str(key).lower())  # noqa: PLW2901  the same, hidden
        found.append((str(key), _wrap_secret(value) if hidden else value))
    return StorageOptions(tuple(found))


def _wrap_secret(value: object) -> object:
    """Return a value that may be a secret so that it is neither shown nor pickled."""
    if isinstance(value, str):
        return Secret(value)
    if isinstance(value, bytes | bytearray):
        return Secret.literal(bytes(value).decode("utf-8", "surrogateescape"))
    if value is None or isinstance(value, bool | Secret | OpaqueOption | StorageOptions):
        return value
    return Secret.literal(str(value)) if isinstance(value, int | float) else OpaqueOption(value)


_S3_ALL = frozenset(OPTION_NAMES["s3"])
_S3_ONLY = _S3_ALL.difference(*(names for store, names in OPTION_NAMES.items() if store != "s3"))


@dataclass(frozen=True)
class S3Options:
    """What a dataset says about S3, checked: the name of a profile, and fields that replace those of the profile."""

    profile: str | None
    fields: tuple[tuple[str, object], ...]

    def apply_to(self, base: Profile) -> Profile:
        """Return the profile ``base`` with these fields in the place of its own."""
        return profile_files.override_fields(base, dict(self.fields), "storage_options")


def check_storage_options(given: object) -> StorageOptions | None:
    """Return storage options, checked and frozen; S3's values, too, where the names are S3's.

    Raises:
        ConfigError: an unknown option, or one that makes no sense.
    """
    checked = check_options(given)
    if checked is not None and _S3_ONLY.intersection(checked.as_mapping()) and _S3_ALL.issuperset(checked.as_mapping()):
        parse_s3_options(checked)
    return checked


def parse_s3_options(given: object, url: str | None = None) -> S3Options | None:
    """Return what storage options say about S3."""
    if given is None:
        return None
    options = options_for("s3", given, url)
    fields = {S3_ALIASES.get(name, name): value for name, value in options.items() if name != "profile"}
    name = options.get("profile")
    if name is not None and not isinstance(name, str):
        raise ConfigError("storage_options: profile is the name of a profile")
    made = make_profile("", fields, origin="storage_options")
    return S3Options(name, tuple((field, getattr(made, field)) for field in fields))
