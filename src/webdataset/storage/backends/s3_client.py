"""S3 locations, botocore clients, requests with retries, and masked logs.

One botocore client per process and profile: credentials by the whole chain of AWS (environment, ``~/.aws``, SSO,
roles, containers, instances), endpoints, signatures. The client of botocore is used rather than its signatures alone,
since it knows regions, redirects, access points, and what ``~/.aws/config`` may say; bodies are read from the
connection below it. It never retries by itself: the reader does, as for every scheme. No client survives a fork: two
processes that share a connection would read each other's answers.

In botocore's DEBUG log records, which hold requests with their headers and responses of token services, every secret
becomes ``***``. Parsing a url sends no request. Errors: :mod:`webdataset.storage.backends.s3_errors`.
"""

import contextlib
import functools
import importlib
import logging
import os
import re
import threading
import time
import urllib.parse
from collections.abc import Mapping
from types import ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from webdataset.core import settings
from webdataset.core.errors import SourceError, UsageError, WebDatasetError
from webdataset.core.fork_safety import PerProcessCache
from webdataset.core.optional_imports import require
from webdataset.storage.backends.s3_errors import TOO_MANY, doubts_credentials, translate_error
from webdataset.storage.http_client import LogMask, require_complete_headers
from webdataset.storage.profile_registry import profile_for
from webdataset.storage.rate_limit import REFUSALS, note_refusal, take_turn
from webdataset.storage.retries import RetryableError, parse_retry_after, retry
from webdataset.storage.s3_profile import Profile
from webdataset.storage.tls import plain_context

if TYPE_CHECKING:
    from botocore.awsrequest import AWSPreparedRequest
    from botocore.client import BaseClient
    from botocore.session import Session

LOGGERS = ("auth", "awsrequest", "credentials", "endpoint", "hooks", "httpsession", "parsers", "signers", "tokens")

_HEADER = re.compile(
    r"(?P<name>(?:x-amz-security-token|authorization)['\"]?\s*:\s*)(?:b?'[^']*'|b?\"[^\"]*\"|[^\n]*)", re.IGNORECASE
)
_BODY = re.compile(
    r"(?P<name><(?:SecretAccessKey|SessionToken|AccessKeyId|AWSAccessKeyId|Token(?:-\d+)?|SignatureProvided|StringToSign(?:Bytes)?|"
    r"CanonicalRequest(?:Bytes)?)>|"
    r"['\"](?:secretAccessKey|sessionToken|accessKeyId|accessToken|refreshToken|Token(?:-\d+)?)['\"]\s*:\s*['\"])[^<'\"]*",
    re.IGNORECASE,
)


def _mask_secrets(message: str) -> str:
    return _BODY.sub(r"\g<name>***", _HEADER.sub(r"\g<name>***", message))


_mask = LogMask(_mask_secrets, logging.DEBUG)


def mask_botocore_logs() -> None:
    """Mask botocore's log records in this process; further calls change nothing."""
    for name in LOGGERS:
        logging.getLogger(f"botocore.{name}").addFilter(_mask)


CONNECT_SECONDS = 10.0
READ_SECONDS = 60.0
CONNECTIONS = 16


_clients: PerProcessCache["BaseClient"] = PerProcessCache()
_request_state = threading.local()


def import_botocore(part: str) -> ModuleType:
    """Import a part of botocore.

    Raises:
        MissingExtra: it is not installed.
    """
    return require(f"botocore.{part}".rstrip("."), extra="s3", purpose="reading and writing s3:// urls")


def failures() -> tuple[type[Exception], ...]:
    """Return the errors that a request raises.

    Raises:
        MissingExtra: botocore is not installed.
    """
    known = import_botocore("exceptions")
    return (known.ClientError, known.BotoCoreError, known.HTTPClientError, OSError)


def client_for(profile: Profile, url: str) -> "BaseClient":
    """Return this process's client for a profile.

    Args:
        profile: endpoint and credentials; botocore finds what it leaves open.
        url: the url of the user, for errors.

    Raises:
        MissingExtra: botocore is not installed.
        SourceError: a profile of ``~/.aws`` that does not exist, an endpoint that is no url.
    """
    return _clients.get(profile, lambda: _make_client(profile, url))


def forget_client(profile: Profile, used: float) -> None:
    """Discard a profile's client, got at the moment ``used``, so that the next one looks for credentials anew."""
    _clients.forget(profile, used)


def judge_refusal(profile: Profile, error: Exception, failure: Exception, used: float) -> bool:
    """Look for credentials anew where they have expired or are doubted; tell whether they are doubted.

    Args:
        profile: of the request.
        error: of botocore.
        failure: what stands for it.
        used: when the request's client was got, on the monotonic clock.
    """
    doubted = doubts_credentials(error)
    if doubted or (isinstance(failure, RetryableError) and failure.expired):
        forget_client(profile, used)
    return doubted


def _make_client(profile: Profile, url: str) -> "BaseClient":
    """Make a client; of services other than AWS, buckets stand in the path unless a setting says otherwise."""
    # ValueError: an endpoint that is no url
    known: tuple[type[Exception], ...] = (*failures(), ValueError)
    mask_botocore_logs()
    try:
        session: Session = import_botocore("session").Session(profile=profile.aws_profile)
        session.user_agent_name = "webdataset"
        session.register_component("data_loader", _service_descriptions())
        if profile.access_key_id is not None and profile.secret_access_key is not None:
            token = None if profile.session_token is None else profile.session_token.reveal()
            session.set_credentials(profile.access_key_id.reveal(), profile.secret_access_key.reveal(), token)
        style = profile.addressing_style or _configured_style(session)
        client = _create_client(session, profile, style)
        if style is None and not _is_aws(client.meta.endpoint_url):
            client = _create_client(session, profile, "path")
    except WebDatasetError:
        raise
    except known as error:
        failure = translate_error(error, url, profile=profile)
    else:
        return client
    raise failure if isinstance(failure, SourceError) else SourceError(str(failure), url=url)


@functools.cache
def _service_descriptions() -> object:
    """Return botocore's descriptions of services: 0.1 s to read, the same for all sessions, inherited over forks."""
    return import_botocore("session").Session().get_component("data_loader")


def _create_client(session: "Session", profile: Profile, style: str | None) -> "BaseClient":
    config = import_botocore("config").Config(
        connect_timeout=CONNECT_SECONDS,
        read_timeout=READ_SECONDS,
        max_pool_connections=CONNECTIONS,
        retries={"total_max_attempts": 1, "mode": "standard"},
        tcp_keepalive=True,
        # other services refuse checksums that they do not know
        request_checksum_calculation="when_required",
        # the reader verifies, over all connections of one object
        response_checksum_validation="when_required",
        **({"s3": {"addressing_style": style}} if style else {}),
        **({"signature_version": import_botocore("").UNSIGNED} if profile.anonymous else {}),
    )
    client = session.create_client(
        "s3",
        region_name=profile.region,
        endpoint_url=profile.endpoint_url,
        verify=_ca_bundle(session) if profile.verify is None else profile.verify,
        config=config,
    )
    _secure(client)
    client.meta.events.register("before-send.s3", _take_turn)
    client.meta.events.register("response-received.s3", _note_refusal)
    client.meta.events.register("before-call.s3.HeadBucket", _refuse_nested_redirect)
    client.meta.events.register("after-call.s3.HeadBucket", _allow_redirect)
    client.meta.events.register("after-call-error.s3.HeadBucket", _allow_redirect)
    return client


def _secure(client: "BaseClient") -> None:
    """Give a client's connections a context whose handshakes forks wait for, and responses with complete headers.

    botocore has no argument for either.
    """
    endpoint = getattr(client, "_endpoint", None)
    session = getattr(endpoint, "http_session", None)
    # its managers share them
    require_complete_headers(getattr(session, "_pool_classes_by_scheme", {}))
    manager = getattr(session, "_manager", None)
    given = getattr(manager, "connection_pool_kw", {})
    if "ssl_context" in given:
        context = plain_context(importlib.import_module("urllib3"))
        # as botocore's: urllib3 compares the name by itself then
        context.check_hostname = False
        given["ssl_context"] = context


def _ca_bundle(session: "Session") -> str | None:
    """Return the certificates that the environment names, as for other https urls; None for botocore's own."""
    # AWS_CA_BUNDLE, or in ~/.aws/config
    if session.get_config_variable("ca_bundle"):
        return None
    for named in (settings.REQUESTS_CA_BUNDLE.get(), settings.SSL_CERT_FILE.get()):
        path = settings.expand_home(named) if named else ""
        if path and os.path.isfile(path):  # noqa: PTH113  OpenSSL passes over what is not there, too
            return path
    return None


def _take_turn(request: "AWSPreparedRequest", **_: object) -> None:
    """Wait for the turn of a request that botocore is about to send."""
    _request_state.turn = take_turn(request.url)


def _note_refusal(
    response_dict: Mapping[str, object] | None, parsed_response: Mapping[str, Mapping[str, str]] | None, **_: object
) -> None:
    """Slow all processes down where the service says that there are too many requests."""
    turn, _request_state.turn = getattr(_request_state, "turn", None), None
    if response_dict is None or turn is None:
        return
    code = (parsed_response or {}).get("Error", {}).get("Code")
    if response_dict["status_code"] in REFUSALS or code in TOO_MANY:
        headers = cast("Mapping[str, str]", response_dict["headers"])
        note_refusal(turn, parse_retry_after(headers.get("retry-after"), headers.get("date")))


def _refuse_nested_redirect(**_: object) -> None:
    """Let botocore request a bucket's region once: where that response is a redirect, too, it would never end."""
    if getattr(_request_state, "region", False):
        refusal: Exception = import_botocore("exceptions").ClientError(
            {"Error": {"Code": "301"}, "ResponseMetadata": {"HTTPStatusCode": 301, "HTTPHeaders": {}}}, "HeadBucket"
        )
        raise refusal
    _request_state.region = True


def _allow_redirect(**_: object) -> None:
    _request_state.region = False


def _configured_style(session: "Session") -> str | None:
    """Return the addressing style that ``~/.aws/config`` names."""
    with contextlib.suppress(*failures()):
        section = session.get_scoped_config().get("s3")
        style = section.get("addressing_style") if isinstance(section, dict) else None
        return style if isinstance(style, str) else None
    return None


def _is_aws(endpoint: str) -> bool:
    host = urllib.parse.urlsplit(endpoint).hostname or ""
    return host.endswith((".amazonaws.com", ".amazonaws.com.cn", ".api.aws"))


class S3Client:
    """Requests with one profile.

    Raises:
        MissingExtra: botocore is not installed.
    """

    def __init__(self, profile: Profile, url: str, attempts: int | None = None) -> None:
        self._profile = profile
        self._url = url
        self._attempts = attempts
        self._failures = failures()
        self._accepted = False

    def call(self, name: str, **arguments: object) -> dict[str, Any]:
        """Send a request until it has a response.

        Args:
            name: a method of botocore's client.
            **arguments: its arguments.

        Raises:
            NotFound: nothing is there.
            SourceError: the service refuses, or does not answer.
        """
        # credentials that were good until now may have been renewed
        again = self._accepted

        def ask() -> dict[str, Any]:
            nonlocal again
            try:
                return self._request(name, arguments, again=again)
            except RetryableError as failure:
                again = again and not failure.expired
                raise

        return retry(ask, self._url, lambda: None, self._attempts)

    def _request(self, name: str, arguments: dict[str, object], *, again: bool) -> dict[str, Any]:
        """Send a request once; with ``again``, refused credentials are a ``RetryableError``."""
        client, used = client_for(self._profile, self._url), time.monotonic()
        try:
            answer: dict[str, Any] = getattr(client, name)(**arguments)
        except self._failures as error:
            failure = translate_error(error, self._url, profile=self._profile)
            if judge_refusal(self._profile, error, failure, used) and again:
                failure = RetryableError(str(failure), expired=True)
        else:
            self._accepted = True
            return answer
        raise failure


_URL = re.compile(
    r"s3://(?P<bucket>arn:[^/]+:accesspoint/[^/]+|[^/]+)/(?P<key>.*?)(?:\?versionId=(?P<version>[\w.~-]+))?\Z",
    re.IGNORECASE | re.DOTALL,
)


_WRITTEN = re.compile(r"%((?:25)*)3[fF](?=versionId=)", re.IGNORECASE)
_MEANT = re.compile(r"\?(?=versionId=)|%(?=(?:25)*3[fF]versionId=)", re.IGNORECASE)


def parse_key(written: str) -> str:
    """Return the key that a url names: as it stands, but ``%3FversionId=`` is ``?versionId=``."""
    return _WRITTEN.sub(lambda found: f"%{found[1][2:]}3F" if found[1] else "?", written)


def escape_key(key: str) -> str:
    """Return how a url writes a key; the opposite of :func:`parse_key`."""
    return _MEANT.sub(lambda found: "%3F" if found[0] == "?" else "%25", key)


class S3Location(NamedTuple):
    """Where an object lies.

    Args:
        profile: service and credentials.
        bucket: the bucket, or the ARN of an access point.
        key: the object's key; see :func:`parse_key`.
        version: one version of it, or None for the latest.
    """

    profile: Profile
    bucket: str
    key: str
    version: str | None

    def request_arguments(self) -> dict[str, str]:
        """Return the arguments of a request about this object."""
        payer = {"RequestPayer": "requester"} if self.profile.request_payer else {}
        return {"Bucket": self.bucket, "Key": self.key, **payer}


def parse_url(url: str, storage_options: object = None) -> S3Location:
    """Return the object that a url names.

    Raises:
        UsageError: no bucket, credentials in its place, or no such profile.
    """
    profile, plain = profile_for(url, storage_options)
    match = _URL.match(plain)
    if match is None:
        raise UsageError("an S3 url is s3://bucket/key", url=url)
    if "@" in match["bucket"]:
        # botocore would repeat it in its message
        raise UsageError(
            "an S3 url holds no credentials: put them into a profile, the environment, or storage_options", url=url
        )
    return S3Location(profile, match["bucket"], parse_key(match["key"]), match["version"])
