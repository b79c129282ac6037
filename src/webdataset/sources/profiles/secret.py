"""Keys and tokens that show themselves to nobody.

Flows in: ``env:NAME``, ``file:PATH``, or the secret itself. Flows out: its value, to whom asks with :meth:`reveal`, at
the moment it is needed. A reference travels in pickles as it is; a secret itself never does. ``repr``, ``str``,
``format``, dataclasses, tracebacks that print locals: all say ``***``.
"""

from pathlib import Path
from typing import Any, NoReturn, Self

from webdataset.ground import settings
from webdataset.ground.errors import ConfigError

MASK = "***"
LARGEST_FILE_BYTES = 1 << 16


class Secret:
    """A secret, or where it is to be found.

    Args:
        text: ``env:NAME`` for an environment variable, ``file:PATH`` for a file's content (both without line breaks at
            their end), anything else for the secret itself.
    """

    __slots__ = ("_hidden", "reference")

    _hidden: str | None
    reference: str | None
    """``env:NAME`` or ``file:PATH``; None where the secret itself was given."""

    def __init__(self, text: str) -> None:
        referred = text.startswith(("env:", "file:"))
        object.__setattr__(self, "reference", text if referred else None)
        object.__setattr__(self, "_hidden", None if referred else text)

    @classmethod
    def literal(cls, text: str) -> Self:
        """Return a secret whose value is ``text``, even if that looks like a reference.

        Args:
            text: the secret itself.
        """
        secret = cls("")
        object.__setattr__(secret, "_hidden", text)
        return secret

    def reveal(self) -> str:
        """Return the value; variables and files are read now, so that a rotated key is taken up.

        Raises:
            ConfigError: the variable or file is absent or empty.
        """
        if self.reference is None:
            return str(object.__getattribute__(self, "_hidden"))
        kind, _, place = self.reference.partition(":")
        found = ((settings.looked_up(place) or "") if kind == "env" else _content(place)).rstrip("\r\n")
        if not found:
            thing = f"environment variable {place} is not set" if kind == "env" else f"file {place} is empty"
            raise ConfigError(f"a secret is to be found at {self.reference}, but {thing}")
        return found

    def __setattr__(self, name: str, value: Any) -> NoReturn:
        """Refuse: secrets do not change."""
        raise AttributeError("a Secret does not change: make another")

    def __repr__(self) -> str:
        return f"Secret({self.reference or MASK!r})"

    def __str__(self) -> str:
        return MASK

    def __format__(self, form: str) -> str:
        return format(MASK, form)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Secret):
            return NotImplemented
        return self.reference == other.reference and bool(self._hidden == other._hidden)

    def __hash__(self) -> int:
        return hash((self.reference, self._hidden))

    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, memory: Any) -> Self:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the reference.

        Raises:
            ConfigError: the secret itself was given; it does not travel.
        """
        if self.reference is None:
            raise ConfigError(
                "a secret that was given as text is not put into a pickle: give 'env:NAME' or 'file:PATH' instead, "
                "or name a profile of the configuration file"
            )
        return Secret, (self.reference,)


def _content(place: str) -> str:
    """Return a secret file's text without the newline at its end."""
    path = Path(settings.home_expanded(place))
    try:
        with path.open("rb") as file:
            content = file.read(LARGEST_FILE_BYTES + 1)
    except OSError as error:
        raise ConfigError(
            f"a secret is to be found at file:{place}, but {error.strerror or 'it cannot be read'}"
        ) from None
    readable = len(content) <= LARGEST_FILE_BYTES and _is_text(content)
    if not readable:
        content = b""
        raise ConfigError(f"a secret is to be found at file:{place}, but that is no short text file")
    return content.decode()


def _is_text(content: bytes) -> bool:
    try:
        content.decode()
    except UnicodeDecodeError:
        return False
    return True
