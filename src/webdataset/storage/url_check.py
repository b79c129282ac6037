"""Checks how a url is opened: which service, account and proxy, and whether it answers; no secret is shown.

What says who asks is looked up as the backends do, by name and place alone: the value of a key or token is read by the
backend when it opens the url, and never put into a report. Text of users and services passes through
:func:`~webdataset.core.redaction.redact`.
"""

import urllib.parse
import urllib.request
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from webdataset.core import settings
from webdataset.core.errors import NoRandomAccess, WebDatasetError
from webdataset.core.redaction import redact
from webdataset.storage.open_url import find_opener, local_path, open_stream, rewrite_url
from webdataset.storage.profile_registry import is_s3, profile_for
from webdataset.storage.random_access import open_ranges
from webdataset.storage.s3_profile import CREDENTIAL_FIELDS, Profile, Secret

_PIECE_BYTES = 512
_NAMES = {"gs": "gs", "gcs": "gs", "az": "azure", "abfs": "azure", "abfss": "azure", "hf": "hf", "ais": "ais"}
_VARIABLES = {
    "gs": ("GOOGLE_APPLICATION_CREDENTIALS",),
    "azure": (
        settings.AZURE_STORAGE_CONNECTION_STRING.name,
        settings.AZURE_STORAGE_KEY.name,
        settings.AZURE_STORAGE_ACCOUNT_KEY.name,
        settings.AZURE_STORAGE_SAS_TOKEN.name,
    ),
    "hf": (settings.HF_TOKEN.name, settings.HUGGING_FACE_HUB_TOKEN.name),
    "ais": (settings.AIS_AUTHN_TOKEN.name, settings.AIS_AUTHN_TOKEN_FILE.name),
}
_OTHERWISE = {
    "gs": "what this machine has (application default credentials)",
    "azure": "what this machine has (azure-identity)",
    "hf": "the file that 'hf auth login' writes, if there is one; else anonymous",
    "ais": "anonymous",
    "http": "anonymous",
}
_ENDPOINTS: dict[str, settings.EnvironmentVariable[Any]] = {
    "gs": settings.STORAGE_EMULATOR_HOST,
    "hf": settings.HF_ENDPOINT,
    "ais": settings.AIS_ENDPOINT,
}


@dataclass(frozen=True)
class UrlCheck:
    """How a url is opened; no value of a secret is in it.

    Args:
        url: as it was given.
        target: what is opened for it, after rewriting and routes.
        service: ``local``, ``s3``, ``gs``, ``azure``, ``hf``, ``ais``, ``http``, or the scheme.
        profile: name of the S3 profile; empty for the default one; None for other services.
        origin: where that profile was defined.
        endpoint: of the service, where it is not its usual one.
        region: of an S3 profile, where it says one.
        credentials: what says who asks, and where it stands.
        proxy: over which the service is asked, or None.
        opens: whether it opened; None where it was not tried.
        size_bytes: of the object, where it is told.
        error: what was wrong.
        error_type: its class.
    """

    url: str
    target: str
    service: str
    profile: str | None = None
    origin: str | None = None
    endpoint: str | None = None
    region: str | None = None
    credentials: tuple[str, ...] = ()
    proxy: str | None = None
    opens: bool | None = None
    size_bytes: int | None = None
    error: str | None = None
    error_type: str | None = None

    def to_json(self) -> dict[str, Any]:
        """Return it as a JSON value."""
        return {**asdict(self), "credentials": list(self.credentials)}


def check_url(url: str, storage_options: object = None, *, opening: bool = True) -> UrlCheck:
    """Return how a url is opened, and whether that works.

    Args:
        url: of a shard.
        storage_options: of the dataset.
        opening: try it: one small request. A ``pipe:`` command is never run.
    """
    found: dict[str, Any] = {"url": redact(url), "target": redact(url), "service": "unknown"}
    try:
        found |= _describe(url, storage_options)
    except WebDatasetError as error:
        return UrlCheck(**found, opens=False, **_report(error))
    if not opening or found["service"] == "pipe":
        return UrlCheck(**found)
    try:
        size = _open(url, storage_options)
    except (WebDatasetError, OSError) as error:
        return UrlCheck(**found, opens=False, **_report(error))
    return UrlCheck(**found, opens=True, size_bytes=size)


def _report(error: BaseException) -> dict[str, Any]:
    return {"error": redact(str(error)) or type(error).__name__, "error_type": type(error).__name__}


def _open(url: str, storage_options: object) -> int | None:
    """Read the first bytes; return the size, where it is told."""
    try:
        ranges = open_ranges(url, storage_options=storage_options)
    except NoRandomAccess:
        stream: Any = open_stream(url, storage_options=storage_options)
        try:
            stream.read(_PIECE_BYTES)
        finally:
            stream.close()
        return None
    try:
        ranges.read_at(0, min(_PIECE_BYTES, ranges.length))
        return ranges.length
    finally:
        ranges.close()


def _describe(url: str, storage_options: object) -> dict[str, Any]:
    if local_path(url) is not None:
        return {"target": redact(rewrite_url(url)), "service": "local"}
    target = rewrite_url(url)
    if is_s3(target):
        profile, plain = profile_for(target, storage_options)
        return _describe_s3(profile, plain)
    scheme = target.partition(":")[0].lower()
    service = _NAMES.get(scheme, "http" if scheme in ("http", "https") else scheme)
    if find_opener(target) is None:
        return {"target": redact(target), "service": service}
    endpoint = _ENDPOINTS.get(service)
    address = target if service == "http" else None if endpoint is None else endpoint.get()
    if service == "azure":
        address = _find_azure_endpoint(target, storage_options)
    shown = redact(address) if address and service != "http" else None
    credentials = tuple(_list_credentials(service, target, storage_options))
    return {
        "target": redact(target),
        "service": service,
        "endpoint": shown,
        "credentials": credentials,
        "proxy": find_proxy(address or "https://example.com") if service in {*_OTHERWISE} else None,
    }


def _find_azure_endpoint(target: str, storage_options: object) -> str | None:
    from webdataset.storage.backends import azure_client  # noqa: PLC0415  for Azure alone

    return azure_client.parse_url(target, storage_options).service.endpoint


def _describe_s3(profile: Profile, plain: str) -> dict[str, Any]:
    address = profile.endpoint_url or "https://s3.amazonaws.com"
    return {
        "target": redact(plain),
        "service": "s3",
        "profile": profile.name,
        "origin": profile.origin,
        "endpoint": None if profile.endpoint_url is None else redact(profile.endpoint_url),
        "region": profile.region,
        "credentials": tuple(_list_s3_credentials(profile)),
        "proxy": find_proxy(address),
    }


def _list_s3_credentials(profile: Profile) -> Iterator[str]:
    if profile.anonymous:
        yield "anonymous"
        return
    named = [(name, getattr(profile, name)) for name in CREDENTIAL_FIELDS]
    secrets = [(name, value) for name, value in named if isinstance(value, Secret)]
    for name, secret in secrets:
        yield f"{name}: {describe_secret(secret, profile.origin)}"
    if profile.aws_profile is not None:
        yield f"profile {profile.aws_profile!r} of ~/.aws"
    elif not secrets:
        yield f"what this machine has: {_find_aws_method()}"


def describe_secret(secret: Secret, origin: str) -> str:
    """Return where a secret stands, and whether something is there.

    Args:
        secret: of a profile.
        origin: where the profile was defined.
    """
    if secret.reference is None:
        return f"*** (text in {origin})"
    kind, _, place = secret.reference.partition(":")
    there = bool(settings.read_variable(place)) if kind == "env" else Path(settings.expand_home(place)).is_file()
    return f"*** ({secret.reference}{'' if there else ', which is not there'})"


def _find_aws_method() -> str:
    """Return the name of the place where botocore finds credentials, without a request to the network."""
    if settings.read_variable("AWS_ACCESS_KEY_ID"):
        return "*** (env:AWS_ACCESS_KEY_ID)"
    if settings.read_variable("AWS_PROFILE"):
        return f"profile {settings.read_variable('AWS_PROFILE')!r} of ~/.aws (env:AWS_PROFILE)"
    for variable in (settings.AWS_SHARED_CREDENTIALS_FILE, settings.AWS_CONFIG_FILE):
        path = Path(settings.expand_home(variable.get()))
        if path.is_file():
            return f"*** ({variable.get()}), else a role of this machine"
    return "a role of this machine, or nothing"


def _list_credentials(service: str, target: str, storage_options: object) -> Iterator[str]:
    given = sorted(storage_options) if isinstance(storage_options, dict) else []
    if given:
        yield f"storage_options: {', '.join(given)}"
    parts = urllib.parse.urlsplit(target)
    if service == "http" and parts.username is not None:
        yield "*** (user and password in the url)"
        return
    found = [name for name in _VARIABLES.get(service, ()) if settings.read_variable(name)]
    for name in found:
        yield f"*** (env:{name})"
    if not found and service in _OTHERWISE:
        yield _OTHERWISE[service]


def find_proxy(address: str) -> str | None:
    """Return the proxy that the environment names for an address, without its login.

    Args:
        address: url of a service.
    """
    parts = urllib.parse.urlsplit(address)
    proxies = urllib.request.getproxies()
    proxy = proxies.get(parts.scheme.lower()) or proxies.get("all")
    if not proxy or urllib.request.proxy_bypass(parts.hostname or ""):
        return None
    return redact(proxy if "://" in proxy else f"http://{proxy}")
