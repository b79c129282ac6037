"""Connections to S3 services: one client per process and profile, made by botocore.

Flows in: a profile. Flows out: a botocore client: credentials by the whole chain of AWS (environment, ``~/.aws``, SSO,
roles, containers, instances), endpoints, signatures. botocore's client is used rather than its signatures alone,
since it knows regions, redirects, access points, and what ``~/.aws/config`` may say; bodies are read from the
connection below it. It never tries again by itself: that is the reader's part, as for every scheme.

No client survives a fork: two processes that share a connection would read each other's answers.
"""

import contextlib
import functools
import importlib
import os
import threading
import urllib.parse
from types import ModuleType
from typing import Any

from webdataset.ground import settings
from webdataset.ground.errors import SourceError, WebDatasetError
from webdataset.ground.extras import require
from webdataset.sources.forks import PerProcess
from webdataset.sources.profiles.profile import Profile
from webdataset.sources.tls import plain_context

from . import logs as s3_logs
from .errors import translated

CONNECT_SECONDS = 10.0
READ_SECONDS = 60.0
CONNECTIONS = 16

_clients: PerProcess[Any] = PerProcess()
_asking = threading.local()


def botocore(part: str) -> ModuleType:
    """Import a part of botocore.

    Args:
        part: ``session``, ``config`` ….

    Raises:
        MissingExtra: it is not installed.
    """
    return require(f"botocore.{part}".rstrip("."), extra="s3", purpose="reading and writing s3:// urls")


def failures() -> tuple[type[Exception], ...]:
    """Return the errors that a request raises.

    Raises:
        MissingExtra: botocore is not installed.
    """
    known = botocore("exceptions")
    return (known.ClientError, known.BotoCoreError, known.HTTPClientError, OSError)


def client_for(profile: Profile, url: str) -> Any:
    """Return this process's client for a profile.

    Args:
        profile: endpoint and credentials; what it leaves open is found by botocore.
        url: what is to be opened, for errors.

    Raises:
        MissingExtra: botocore is not installed.
        SourceError: a profile of ``~/.aws`` that does not exist, an endpoint that is no url.
    """
    return _clients.get(profile, lambda: _made(profile, url))


def forget(profile: Profile) -> None:
    """Let go of a profile's client, so that the next one looks for credentials anew.

    Args:
        profile: the profile.
    """
    _clients.forget(profile)


def _made(profile: Profile, url: str) -> Any:
    """Make a client; of services other than AWS, buckets stand in the path unless somebody decided otherwise."""
    known: tuple[type[Exception], ...] = (*failures(), ValueError)  # the latter: an endpoint that is no url
    s3_logs.mask()
    try:
        session = botocore("session").Session(profile=profile.aws_profile)
        session.user_agent_name = "webdataset"
        session.register_component("data_loader", _descriptions())
        if profile.access_key_id is not None and profile.secret_access_key is not None:
            token = None if profile.session_token is None else profile.session_token.reveal()
            session.set_credentials(profile.access_key_id.reveal(), profile.secret_access_key.reveal(), token)
        style = profile.addressing_style or _configured_style(session)
        client = _client(session, profile, style)
        if style is None and not _of_aws(client.meta.endpoint_url):
            client = _client(session, profile, "path")
    except WebDatasetError:
        raise
    except known as error:
        failure = translated(error, url, profile=profile)
    else:
        return client
    raise failure if isinstance(failure, SourceError) else SourceError(str(failure), url=url)


@functools.cache
def _descriptions() -> Any:
    """Return botocore's descriptions of services: 0.1 s to read, the same for all sessions, inherited over forks."""
    return botocore("session").Session().get_component("data_loader")


def _client(session: Any, profile: Profile, style: str | None) -> Any:
    config = botocore("config").Config(
        connect_timeout=CONNECT_SECONDS,
        read_timeout=READ_SECONDS,
        max_pool_connections=CONNECTIONS,
        retries={"total_max_attempts": 1, "mode": "standard"},
        tcp_keepalive=True,
        request_checksum_calculation="when_required",  # other services refuse checksums that they do not know
        response_checksum_validation="when_required",  # the reader verifies, over all connections of one object
        **({"s3": {"addressing_style": style}} if style else {}),
        **({"signature_version": botocore("").UNSIGNED} if profile.anonymous else {}),
    )
    client = session.create_client(
        "s3",
        region_name=profile.region,
        endpoint_url=profile.endpoint_url,
        verify=_ca_bundle(session) if profile.verify is None else profile.verify,
        config=config,
    )
    _secure(client)
    client.meta.events.register("before-call.s3.HeadBucket", _refuse_nested)
    client.meta.events.register("after-call.s3.HeadBucket", _allow_again)
    client.meta.events.register("after-call-error.s3.HeadBucket", _allow_again)
    return client


def _secure(client: Any) -> None:
    """Give a client's connections a context whose handshakes forks wait for; botocore has no argument for it."""
    manager = getattr(getattr(client._endpoint, "http_session", None), "_manager", None)  # noqa: SLF001
    given = getattr(manager, "connection_pool_kw", {})
    if "ssl_context" in given:
        context = plain_context(importlib.import_module("urllib3"))
        context.check_hostname = False  # as botocore's: urllib3 compares the name by itself then
        given["ssl_context"] = context


def _ca_bundle(session: Any) -> str | None:
    """Return the certificates that the environment names, as for other https urls; None for botocore's own."""
    if session.get_config_variable("ca_bundle"):  # AWS_CA_BUNDLE, or in ~/.aws/config
        return None
    for named in (settings.REQUESTS_CA_BUNDLE.get(), settings.SSL_CERT_FILE.get()):
        path = settings.home_expanded(named) if named else ""
        if path and os.path.isfile(path):  # noqa: PTH113  OpenSSL passes over what is not there, too
            return path
    return None


def _refuse_nested(**_: Any) -> None:
    """Let botocore ask for a bucket's region once: where that answer is a redirect, too, it would ask without end."""
    if getattr(_asking, "region", False):
        refusal: Exception = botocore("exceptions").ClientError(
            {"Error": {"Code": "301"}, "ResponseMetadata": {"HTTPStatusCode": 301, "HTTPHeaders": {}}}, "HeadBucket"
        )
        raise refusal
    _asking.region = True


def _allow_again(**_: Any) -> None:
    _asking.region = False


def _configured_style(session: Any) -> str | None:
    """Return the addressing style that ``~/.aws/config`` names."""
    with contextlib.suppress(*failures()):
        section = session.get_scoped_config().get("s3")
        return section.get("addressing_style") if isinstance(section, dict) else None
    return None


def _of_aws(endpoint: str) -> bool:
    host = urllib.parse.urlsplit(endpoint).hostname or ""
    return host.endswith((".amazonaws.com", ".amazonaws.com.cn", ".api.aws"))
