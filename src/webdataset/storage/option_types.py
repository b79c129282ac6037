"""Checks the types of ``storage_options`` where they are given, so that none is ignored or fails later.

A text of another type would fail, or be ignored, where a worker opens the first url. The fields of S3 profiles have
checks of their own, in :mod:`webdataset.storage.s3_profile`.
"""

import os
from collections.abc import Mapping
from typing import Final, NamedTuple

from webdataset.core.errors import ConfigError
from webdataset.storage.s3_profile import Secret

_NAMES: Final = ("endpoint_url", "user_project", "account_name", "username", "provider")
_TEXT: Final = (str, bytes, bytearray, int, float, Secret)


class OptionType(NamedTuple):
    """What the value of an option may be.

    Args:
        kinds: classes of values; numbers do not include truth values.
        words: what is said of it.
        method: which method an object of another class has, or an empty text.
    """

    kinds: tuple[type, ...]
    words: str
    method: str = ""

    def fits(self, value: object) -> bool:
        """Tell whether a value is of this type."""
        if isinstance(value, bool):
            return bool in self.kinds
        return isinstance(value, self.kinds) or (bool(self.method) and hasattr(value, self.method))


OPTION_TYPES: Final = {
    "profile": OptionType((str,), "the name of a profile"),
    **dict.fromkeys(_NAMES, OptionType((str,), "a text")),
    **dict.fromkeys(("anonymous", "anon"), OptionType((bool,), "True or False")),
    **dict.fromkeys(
        ("account_key", "sas_token", "connection_string", "password", "passphrase"), OptionType(_TEXT, "a text")
    ),
    **dict.fromkeys(
        ("token", "credentials"),
        OptionType((*_TEXT, bool, Mapping), "a text, or for gs: the content of a file or an object", "before_request"),
    ),
    "credential": OptionType(_TEXT, "a text, or an object with get_token()", "get_token"),
    "verify": OptionType((bool, str), "True, False, or the path of a file of certificates"),
    "headers": OptionType((Mapping,), "a mapping of names to texts"),
    "fsspec": OptionType((Mapping,), "a mapping of the options of that file system"),
    "key_filename": OptionType((str, os.PathLike, list, tuple), "a path, or a list of them"),
    "known_hosts": OptionType((str, os.PathLike), "the path of a file, or False"),
    "port": OptionType((int, str), "a number from 1 to 65535"),
}
"""Name of an option to the type of its value; those of S3 profiles are not here, unless another store has them, too."""


def check_option_type(name: str, value: object) -> None:
    """Check the value of an option; None stands for one that was left out.

    Args:
        name: of the option.
        value: as it was given; it may be a secret.

    Raises:
        ConfigError: it is of another type.
    """
    kind = OPTION_TYPES.get(name)
    if value is None or kind is None or (name == "known_hosts" and value is False):
        return
    parts = list(value.values()) if name == "headers" and isinstance(value, Mapping) else []
    if not kind.fits(value):
        raise ConfigError(f"storage_options: {name} is {kind.words}, not {_describe_type(value)}")
    wrong = next((part for part in parts if isinstance(part, bool) or not isinstance(part, _TEXT)), None)
    if parts and (wrong is not None or None in parts):
        raise ConfigError(f"storage_options: the value of a header is a text, not {_describe_type(wrong)}")
    if name == "port" and not _is_port(value):
        raise ConfigError(f"storage_options: port is {kind.words}")


def check_token(store: str, value: object) -> None:
    """Check that a store takes a token of this type.

    Args:
        store: of ``OPTION_NAMES``.
        value: the token, a text as a :class:`Secret`.

    Raises:
        ConfigError: it does not.
    """
    if value is None or isinstance(value, Secret) or (store == "hf" and isinstance(value, bool)):
        return
    if store != "gs" or isinstance(value, bool):
        raise ConfigError(f"storage_options: token is a text here, not {_describe_type(value)}")


def _is_port(value: object) -> bool:
    text = str(value)
    return text.isascii() and text.isdigit() and len(text) <= 5 and 0 < int(text) < 1 << 16


def _describe_type(value: object) -> str:
    return "None" if value is None else type(value).__name__
