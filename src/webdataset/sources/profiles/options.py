"""What a dataset says about its storage: ``storage_options``.

Flows in: a mapping. Flows out: the same, checked and frozen, with everything that may be a secret behind a
:class:`Secret`; and for each store its own part. A name that no store knows is a
mistake, told at once; one of another store is told when the url is opened.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from webdataset.ground.errors import ConfigError
from webdataset.ground.redaction import redacted

from .profile import FIELDS, nearest
from .secret import Secret

S3_ALIASES = {"key": "access_key_id", "secret": "secret_access_key", "token": "session_token", "anon": "anonymous"}
"""fsspec's names for fields of a profile."""

NAMES: dict[str, tuple[str, ...]] = {
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

SECRETS = frozenset(
    {
        "secret", "token", "account_key", "sas_token", "connection_string", "password", "passphrase",
        "secret_access_key", "session_token", "access_key_id", "key", "credential", "credentials",
    }
)  # fmt: skip
"""Names whose texts are secrets: ``env:NAME``, ``file:PATH``, or the secret itself, which stays out of pickles."""

GS_TOKENS = frozenset(("anon", "cloud", "google_default"))
"""Words that gcsfs takes as ``token``; as it does, ``gs:`` urls also take the path of a file of credentials."""

_SECRET_WORD = re.compile(
    r"secret|token|passw|passphrase|pwd|(?:^|_)pass$|credential|auth|sas|key$|signature|cookie|bearer|jwt|connection_string",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class StorageOptions:
    """Options, checked and frozen.

    Args:
        options: name to value; texts that are secrets are hidden.
    """

    options: tuple[tuple[str, Any], ...]

    def as_mapping(self) -> dict[str, Any]:
        """Return name to value."""
        return dict(self.options)


class Held:
    """An object that may know secrets: used where it is, never pickled, never shown.

    Args:
        value: credentials, as some other package makes them.
    """

    def __init__(self, value: Any) -> None:
        self.value = value

    def __repr__(self) -> str:
        return f"<{type(self.value).__name__}>"

    def __reduce__(self) -> tuple[Any, ...]:
        """Refuse.

        Raises:
            ConfigError: always.
        """
        raise ConfigError(
            f"storage_options: a {type(self.value).__name__} may hold secrets, and is not put into a pickle: leave it "
            "out where the machine has credentials, give a path, 'env:NAME' or 'file:PATH', or start workers by fork"
        )


def storage_options(given: Any) -> StorageOptions | None:
    """Return storage options, checked.

    Args:
        given: a mapping of names in :data:`NAMES` to values, or None.

    Raises:
        ConfigError: an option that no store has.
    """
    if given is None or isinstance(given, StorageOptions):
        return given
    if not isinstance(given, Mapping):
        raise ConfigError(f"storage_options is a mapping of options to values, not {type(given).__name__}")
    known = sorted({name for names in NAMES.values() for name in names})
    unknown = next((str(name) for name in given if name not in known), None)
    if unknown is not None:
        raise ConfigError(f"storage_options has no {unknown!r}{nearest(unknown, known)}")
    return StorageOptions(tuple((str(name), _hidden(str(name), value)) for name, value in given.items()))


def options_for(store: str, given: Any, url: str | None = None) -> dict[str, Any]:
    """Return the options of one store; texts that are secrets are revealed by ``.reveal()``.

    Args:
        store: a name in :data:`NAMES`.
        given: storage options, checked or as the user gave them.
        url: what is being opened, for messages.

    Raises:
        ConfigError: an option of another store.
    """
    checked = storage_options(given)
    if checked is None:
        return {}
    names = NAMES[store]
    found = checked.as_mapping()
    other = next((name for name in found if name not in names), None)
    if other is not None:
        listed = ", ".join(names) or "none"
        raise ConfigError(
            f"storage_options: {other!r} does not apply here; options of this scheme are: {listed}",
            url=None if url is None else redacted(url),
        )
    if store != "gs" and isinstance(found.get("token"), str):
        found["token"] = Secret(found["token"])
    return {name: value.value if isinstance(value, Held) else value for name, value in found.items()}


def refuse_login(endpoint: str, name: str, url: str | None = None) -> None:
    """Refuse a user or password in the address of a service: addresses are shown.

    Args:
        endpoint: the address.
        name: what names it.
        url: what is being opened, for messages.

    Raises:
        ConfigError: there is one.
    """
    if "@" in endpoint.partition("://")[2].partition("/")[0] or ("@" in endpoint and "://" not in endpoint):
        raise ConfigError(f"{name} must not hold a user or password: it is shown in messages", url=url)


def _hidden(name: str, value: Any) -> Any:
    """Return a value, behind a :class:`Secret` where it may be one."""
    if name == "headers":
        if not isinstance(value, Mapping):
            raise ConfigError("storage_options: headers is a mapping of names to texts")
        return tuple((str(key), _secret(text)) for key, text in value.items())
    if name == "endpoint_url" and isinstance(value, str):
        refuse_login(value, "storage_options: endpoint_url")
    if name == "fsspec" and isinstance(value, Mapping):
        return _of_others(value, secret=False)
    if name.startswith(("token", "credential")) and isinstance(value, Mapping):  # a file of Google's, as its content
        return Secret.literal(json.dumps(dict(value)))
    if name == "token" and isinstance(value, str) and (value in GS_TOKENS or _is_path(value)):
        return value
    if name == "credentials" and isinstance(value, str) and _is_path(value, ""):
        return value  # it must get into workers
    return _secret(value) if name in SECRETS else value


def _is_path(text: str, ending: str = ".json") -> bool:
    return text.endswith(ending) and not text.lstrip().startswith(("env:", "file:", "{"))


def _of_others(given: Mapping[Any, Any], *, secret: bool) -> StorageOptions:
    """Return options whose names are somebody else's: what may be a secret is told by what it is called."""
    found: list[tuple[str, Any]] = []
    for key, value in given.items():
        hidden = secret or _SECRET_WORD.search(str(key)) is not None
        if isinstance(value, Mapping):
            value = _of_others(value, secret=hidden or "headers" in str(key).lower())  # noqa: PLW2901  the same, hidden
        found.append((str(key), _secret(value) if hidden else value))
    return StorageOptions(tuple(found))


def _secret(value: Any) -> Any:
    """Return a value that may be a secret so that it is neither shown nor pickled."""
    if isinstance(value, str):
        return Secret(value)
    if isinstance(value, bytes | bytearray):
        return Secret.literal(bytes(value).decode("utf-8", "surrogateescape"))
    if value is None or isinstance(value, bool | Secret | Held | StorageOptions):
        return value
    return Secret.literal(str(value)) if isinstance(value, int | float) else Held(value)
