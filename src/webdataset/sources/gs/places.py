"""Where an object of Google Cloud Storage lies, and who asks for it.

Flows in: ``gs://bucket/key`` and storage options. Flows out: a :class:`Place`. Keys are taken as they stand: nothing in
them is decoded. ``#`` and sixteen digits at the end name one generation, as Google's own programs have it.
"""

import re
import urllib.parse
from dataclasses import dataclass
from typing import Any, NamedTuple

from webdataset.ground import settings
from webdataset.ground.errors import ConfigError, UsageError
from webdataset.sources.profiles.options import options_for
from webdataset.sources.profiles.secret import Secret

ENDPOINT = "https://storage.googleapis.com"
ANONYMOUS = "anon"

_PLACE = re.compile(
    r"(?:gs|gcs)://(?P<bucket>[^/]+)/(?P<key>.*?)(?:#(?P<generation>[0-9]{16}))?\Z", re.IGNORECASE | re.DOTALL
)
_FOUND = frozenset(("google_default", "cloud"))  # as gcsfs has them


@dataclass(frozen=True)
class Service:
    """A service and who asks it.

    Args:
        endpoint: its url, without a slash at the end.
        token: an access token.
        credentials: ``anon``; the path or the content of a file of credentials; an object of ``google.auth``; or
            None for what this machine has (application default credentials).
        user_project: the project that pays.
    """

    endpoint: str = ENDPOINT
    token: Secret | None = None
    credentials: Any = None
    user_project: str | None = None


class Place(NamedTuple):
    """Where an object lies.

    Args:
        service: the service, and who asks.
        bucket: the bucket.
        key: the object's name.
        generation: one generation of it, or None for the present one.
    """

    service: Service
    bucket: str
    key: str
    generation: str | None

    def address(self, kind: str = "", **query: str | None) -> str:
        """Return the address of this object.

        Args:
            kind: ``"upload/"`` for uploads: the address of the bucket's objects.
            **query: parameters; those that are None are left out.
        """
        quote = urllib.parse.quote
        query["userProject"] = self.service.user_project
        parameters = "&".join(f"{name}={quote(text, safe='')}" for name, text in query.items() if text is not None)
        name = "" if kind or not self.key else f"/{quote(self.key, safe='')}"
        objects = f"{kind}storage/v1/b/{quote(self.bucket, safe='')}/o{name}"
        return f"{self.service.endpoint}/{objects}" + (f"?{parameters}" if parameters else "")


def place_of(url: str, storage_options: Any = None) -> Place:
    """Return the object that a url names.

    Args:
        url: the url.
        storage_options: what a dataset says about its storage.

    Raises:
        UsageError: no bucket.
        ConfigError: options that make no sense.
    """
    match = _PLACE.match(url)
    if match is None:
        raise UsageError("a url of Google Cloud Storage is gs://bucket/key", url=url)
    if match["key"] in (".", ".."):
        raise UsageError("no object has the name '.' or '..'", url=url)
    return Place(service(storage_options, url), match["bucket"], match["key"], match["generation"])


def service(storage_options: Any, url: str) -> Service:
    """Return the service that storage options and environment name.

    Args:
        storage_options: ``token``, ``credentials``, ``anonymous``, ``endpoint_url``, ``user_project``.
        url: what is being opened, for messages.

    Raises:
        ConfigError: options that make no sense.
    """
    options = options_for("gs", storage_options, url)
    emulator = settings.STORAGE_EMULATOR_HOST.get()
    endpoint = str(options.get("endpoint_url") or emulator or ENDPOINT).rstrip("/")
    endpoint = endpoint if "://" in endpoint else f"http://{endpoint}"
    token, credentials = options.get("token"), options.get("credentials")
    if isinstance(token, str):  # a keyword or a path, as gcsfs takes them
        token, credentials = None, None if token in _FOUND else token
    elif token is not None and not isinstance(token, Secret):
        token, credentials = None, token
    asked = "token" in options or "credentials" in options
    if options.get("anonymous") or (not asked and emulator and "endpoint_url" not in options):
        token, credentials = None, ANONYMOUS
    if token is not None and options.get("credentials") is not None:
        raise ConfigError("storage_options: token and credentials exclude each other", url=url)
    return Service(endpoint, token, credentials, options.get("user_project"))


def service_of(url: str, storage_options: Any = None) -> str:
    """Return which service this is, where it is not Google's own; see :mod:`webdataset.sources.stores`."""
    endpoint = service(storage_options, url).endpoint
    return "" if endpoint == ENDPOINT else endpoint
