"""S3 profiles, the routes that lead urls to them, and secrets that are never shown.

A :class:`Profile` or :class:`Route` is frozen, made from fields by name, from Python, a file or the environment.
Every mistake is a :class:`~webdataset.core.errors.ConfigError` that names the field and the place, and never any
value: a secret may have been written into the wrong field.

A :class:`Secret` is ``env:NAME``, ``file:PATH``, or the secret itself; :meth:`Secret.reveal` reads its value when it
is needed. A reference is pickled as it is; a secret itself never is. ``repr``, ``str``, ``format``, dataclasses and
tracebacks that print locals all show ``***``.
"""

import dataclasses
import re
import urllib.parse
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn, Self

from webdataset.core import settings
from webdataset.core.errors import ConfigError

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
        """Return a secret whose value is ``text``, even if that looks like a reference."""
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
        found = ((settings.read_variable(place) or "") if kind == "env" else _read_content(place)).rstrip("\r\n")
        if not found:
            thing = f"environment variable {place} is not set" if kind == "env" else f"file {place} is empty"
            raise ConfigError(f"a secret is to be found at {self.reference}, but {thing}")
        return found

    def __setattr__(self, name: str, value: object) -> NoReturn:
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

    def __deepcopy__(self, memory: object) -> Self:
        return self

    def __reduce__(self) -> tuple[object, ...]:
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


def _read_content(place: str) -> str:
    """Return a secret file's text without the newline at its end."""
    path = Path(settings.expand_home(place))
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


NAME = r"[A-Za-z0-9_][A-Za-z0-9_.-]*"
UNROUTED = frozenset(("cache", "file", "ftp", "ftps", "http", "https", "pipe"))
STYLES = ("auto", "path", "virtual")
SECRETS = ("access_key_id", "secret_access_key", "session_token")
CREDENTIAL_FIELDS = (*SECRETS, "aws_profile", "anonymous")
"""The fields that say who asks; they are taken over from one place together, never mixed."""


@dataclass(frozen=True)
class Profile:
    """How to speak to one S3 service, and as which user.

    Fields that are None are left to the default chain of AWS: environment, ``~/.aws``, SSO, roles.

    Args:
        name: the profile's name; empty for what ``s3://`` urls use without one.
        endpoint_url: ``http(s)://host[:port]`` of the service; None is AWS.
        region: the region that requests are signed for.
        access_key_id: the key's name; ``reveal()`` gives it.
        secret_access_key: the key; ``reveal()`` gives it.
        session_token: the token of temporary credentials; ``reveal()`` gives it.
        aws_profile: the profile of ``~/.aws`` that has the credentials.
        anonymous: do not sign.
        addressing_style: ``auto``, ``path`` or ``virtual``.
        request_payer: agree to pay for requests.
        verify: whether to verify TLS certificates, or a file of trusted ones; None is the default of AWS.
        origin: where it was defined, for messages.
        travels_by_name: it was defined in a file that the processes of this user all read.
    """

    name: str
    endpoint_url: str | None = None
    region: str | None = None
    access_key_id: Secret | None = None
    secret_access_key: Secret | None = None
    session_token: Secret | None = None
    aws_profile: str | None = None
    anonymous: bool = False
    addressing_style: str | None = None
    request_payer: bool = False
    verify: bool | str | None = None
    origin: str = dataclasses.field(default="python", compare=False)
    travels_by_name: bool = dataclasses.field(default=False, compare=False, repr=False)

    @property
    def identity(self) -> str:
        """Name and endpoint: what tells one service's ``s3://bucket/key`` from another's, without any secret."""
        return f"{self.name}@{self.endpoint_url or 'aws'}"

    @property
    def description(self) -> str:
        """The profile, where it was defined and its endpoint, for messages; no secret."""
        place = f" at {self.endpoint_url}" if self.endpoint_url else ""
        return f"{self._describe_service()}{place} ({self.origin})"

    @property
    def literal(self) -> bool:
        """Whether a secret was given as text, and not by reference."""
        return any(secret is not None and secret.reference is None for secret in self._secrets())

    def _secrets(self) -> tuple[Secret | None, ...]:
        return self.access_key_id, self.secret_access_key, self.session_token

    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, memory: object) -> Self:
        return self

    def __reduce__(self) -> tuple[object, ...]:
        """Pickle references as they are; a profile of a configuration file that holds secrets goes by its name.

        Raises:
            ConfigError: a profile from elsewhere holds a secret as text.
        """
        if not self.literal:
            return _rebuild_profile, ({field.name: getattr(self, field.name) for field in dataclasses.fields(self)},)
        if self.travels_by_name:
            return _find_profile, (self.name,)
        raise ConfigError(
            f"{self.description} holds a secret as text, which is not put into a pickle: write 'env:NAME' "
            "or 'file:PATH' in its place, or define it in the configuration file, which workers read themselves"
        )

    def _describe_service(self) -> str:
        return f"S3 profile {self.name!r}" if self.name else "the default S3 profile"


def _rebuild_profile(fields: dict[str, Any]) -> Profile:
    return Profile(**fields)


def _find_profile(name: str) -> Profile:
    from webdataset.storage.profile_registry import find_profile  # noqa: PLC0415  that module stands on this one

    return find_profile(name)


FIELDS = tuple(
    field.name for field in dataclasses.fields(Profile) if field.name not in ("name", "origin", "travels_by_name")
)


@dataclass(frozen=True)
class Route:
    """Urls that are opened with a profile.

    Args:
        match: ``scheme://``, ``s3://bucket``, ``s3://bucket/prefix``: these urls, and all below them. A ``*`` at the
            end also takes names that continue: ``s3://mmc4-*``.
        profile: name of the profile; None is what ``s3://`` urls use without one.
        target: ``s3://bucket/prefix`` that stands for ``match``; None puts ``s3`` in the place of the scheme.
        origin: where it was defined, for messages.
    """

    match: str
    profile: str | None = None
    target: str | None = None
    origin: str = dataclasses.field(default="python", compare=False)

    @property
    def prefix(self) -> str:
        """``match`` without its star."""
        return self.match.removesuffix("*")

    def takes(self, url: str) -> bool:
        """Tell whether a url, with its scheme in lower case, is led here."""
        prefix = self.prefix
        if not url.startswith(prefix):
            return False
        return len(url) == len(prefix) or self.match.endswith(("*", "/")) or url[len(prefix)] == "/"

    def target_url(self, url: str) -> str:
        """Return the ``s3://bucket/key`` that a url of this route stands for."""
        if self.target is None:
            return "s3" + url[url.index("://") :]
        rest = url[len(self.prefix) :]
        if rest and not self.match.endswith("*"):
            return f"{self.target.rstrip('/')}/{rest.lstrip('/')}"
        return self.target + rest


def check_name(name: object, place: str = "") -> str:
    """Return a profile's name: letters, digits, ``_``, ``.``, ``-``.

    Raises:
        ConfigError: another text.
    """
    if not isinstance(name, str) or re.fullmatch(NAME, name) is None:
        raise ConfigError(f"{place and place + ': '}the name of an S3 profile has letters, digits, '_', '.', '-' only")
    if name.lower() in UNROUTED or name.lower() == "s3":
        raise ConfigError(
            f"{place and place + ': '}an S3 profile cannot be named {name!r}: such urls mean something else"
        )
    return name


def make_profile(
    name: str,
    fields: Mapping[str, object],
    *,
    origin: str = "python",
    travels: bool = False,
    at: Callable[[str], str] | None = None,
) -> Profile:
    """Return a profile made of fields as the user wrote them.

    Args:
        name: its name, or an empty text.
        fields: field to text, truth value or :class:`Secret`.
        origin: where it was defined.
        travels: the processes of this user all read the file that defines it.
        at: field to place, for messages.

    Raises:
        ConfigError: an unknown field, a value that makes no sense, or fields that contradict each other.
    """
    place = at or (lambda _field: origin)
    found: dict[str, Any] = {}
    for field in fields:
        if field not in FIELDS:
            raise ConfigError(f"{place(field)}: an S3 profile has no {field!r}{suggest_name(field, FIELDS)}")
        wrong = _CHECKS[field](fields[field])
        if wrong:
            raise ConfigError(f"{place(field)}: {field} {wrong}")
        found[field] = _CONVERTERS.get(field, _keep_value)(fields[field])
    contradiction = _find_contradiction(found)
    if contradiction:
        raise ConfigError(f"{place(contradiction[0])}: {contradiction[1]}")
    return Profile(name, **found, origin=origin, travels_by_name=travels)


def _find_contradiction(found: Mapping[str, object]) -> tuple[str, str] | None:
    """Return a field and what is wrong with it beside the others."""
    keys = [field for field in SECRETS if found.get(field) is not None]
    if keys and len({"access_key_id", "secret_access_key"}.intersection(keys)) < 2:
        return keys[0], "access_key_id and secret_access_key are given together, or neither of them"
    ways = [way for way in (keys[:1], found.get("aws_profile"), found.get("anonymous")) if way]
    if len(ways) > 1:
        field = "anonymous" if found.get("anonymous") else "aws_profile"
        return field, "keys, aws_profile and anonymous exclude each other: give one of the three"
    return None


def make_route(fields: Mapping[str, Any], *, origin: str = "python", at: Callable[[str], str] | None = None) -> Route:
    """Return a route made of fields as the user wrote them; ``at`` places a field in messages.

    Raises:
        ConfigError: an unknown field, or a value that makes no sense.
    """
    place = at or (lambda _field: origin)
    for field, written in fields.items():
        if field not in ("match", "profile", "target"):
            raise ConfigError(
                f"{place(field)}: a route has no {field!r}{suggest_name(field, ('match', 'profile', 'target'))}"
            )
        if written is not None and not isinstance(written, str):
            raise ConfigError(f"{place(field)}: {field} has to be a text")
    match, profile, target = fields.get("match"), fields.get("profile"), fields.get("target")
    if match is None:
        raise ConfigError(f"{place('')}: a route needs match = 's3://bucket/prefix' (or 'scheme://')")
    written = _MATCH.fullmatch(match)
    if written is None:
        raise ConfigError(
            f"{place('match')}: match is 'scheme://', 's3://bucket/prefix', or one of them with '*' at its end"
        )
    scheme = written["scheme"].lower()
    if scheme in UNROUTED:
        raise ConfigError(f"{place('match')}: {scheme}: urls cannot be led to S3")
    if profile is None and target is None and scheme == "s3":
        raise ConfigError(f"{place('profile')}: a route needs a profile")
    if profile is not None:
        profile = check_name(profile, place("profile"))
    if target is not None and re.fullmatch(r"s3://[^/*?\s]+(?:/[^*\s]*)?", target) is None:
        raise ConfigError(f"{place('target')}: target is 's3://bucket' or 's3://bucket/prefix'")
    return Route(scheme + match[len(scheme) :], profile, target, origin)


_MATCH = re.compile(r"(?P<scheme>[A-Za-z][A-Za-z0-9.-]*)://[^*]*\*?")


def suggest_name(name: str, known: Iterable[str]) -> str:
    """Return a hint at the known name that was meant, or at all that there are."""
    import difflib  # noqa: PLC0415  only where something is wrong

    names = sorted(known)
    near = difflib.get_close_matches(name, names, 1)
    if near:
        return f"; did you mean {near[0]!r}?"
    return f"; known are {', '.join(names)}" if names else ""


def _check_endpoint(written: object) -> str | None:
    if not isinstance(written, str):
        return "has to be a text"
    try:
        parts = urllib.parse.urlsplit(written)
        parts.port  # noqa: B018  raises where it is no number
    except ValueError:
        return "is no url"
    if parts.scheme not in ("http", "https") or not parts.hostname:
        return "has to be http://host[:port] or https://host[:port]"
    if "@" in parts.netloc:
        return "must not hold a user or password: use access_key_id and secret_access_key"
    if parts.query or parts.fragment or re.search(r"\s", written):
        return "has a query, a fragment or a space in it"
    return None


def _check_word(written: object) -> str | None:
    sensible = isinstance(written, str) and written and not re.search(r"\s", written)
    return None if sensible else "has to be a text without spaces"


def _check_text(written: object) -> str | None:
    return None if isinstance(written, str) and written else "has to be a text that is not empty"


def _check_secret(written: object) -> str | None:
    return None if isinstance(written, Secret) else _check_text(written)


def _check_switch(written: object) -> str | None:
    return None if isinstance(written, bool) else "is true or false"


def _check_style(written: object) -> str | None:
    return None if written in STYLES else f"is one of {', '.join(STYLES)}"


def _check_verify(written: object) -> str | None:
    sensible = isinstance(written, bool) or (isinstance(written, str) and written)
    return None if sensible else "is true, false, or the path of a file of certificates"


def _keep_value(written: object) -> object:
    return written


def _hide_value(written: str | Secret) -> Secret:
    return written if isinstance(written, Secret) else Secret(written)


_CHECKS: dict[str, Callable[[object], str | None]] = {
    "endpoint_url": _check_endpoint,
    "region": _check_word,
    **dict.fromkeys(SECRETS, _check_secret),
    "aws_profile": _check_text,
    "anonymous": _check_switch,
    "addressing_style": _check_style,
    "request_payer": _check_switch,
    "verify": _check_verify,
}
_CONVERTERS: dict[str, Callable[[Any], object]] = {
    "endpoint_url": lambda written: written.rstrip("/"),
    **dict.fromkeys(SECRETS, _hide_value),
    "verify": lambda written: settings.expand_home(written) if isinstance(written, str) else written,
}
