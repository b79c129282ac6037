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

_SECRET_WORD = re.compile(r"secret|token|passw|passphrase|credential|auth|sas|(?:^|_)key$", re.IGNORECASE)


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
    return found


def _hidden(name: str, value: Any) -> Any:
    """Return a value, behind a :class:`Secret` where it may be one."""
    if name == "headers" and isinstance(value, Mapping):
        return tuple((str(key), _secret(text)) for key, text in value.items())
    if name == "fsspec" and isinstance(value, Mapping):  # names of somebody else's: judged by what they are called
        return tuple(
            (str(key), _secret(part) if _SECRET_WORD.search(str(key)) else part) for key, part in value.items()
        )
    if name.startswith(("token", "credential")) and isinstance(value, Mapping):  # a file of Google's, as its content
        return Secret.literal(json.dumps(dict(value)))
    if name == "token" and isinstance(value, str) and (value in GS_TOKENS or _is_path(value)):
        return value
    if name == "credentials" and isinstance(value, str) and _is_path(value, ""):
        return value  # it must get into workers
    return _secret(value) if name in SECRETS else value


def _is_path(text: str, ending: str = ".json") -> bool:
    return text.endswith(ending) and not text.lstrip().startswith(("env:", "file:", "{"))


def _secret(value: Any) -> Any:
    return Secret(value) if isinstance(value, str) else value
