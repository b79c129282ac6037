"""Errors of S3 and of botocore, translated: what to retry, what is absent, and what to do about the rest.

Errors of botocore are never chained: what the service sends back may quote the name of the key and the signature.
"""

import urllib.parse
from collections.abc import Mapping
from typing import Any

from webdataset.core.errors import NotFound, SourceError
from webdataset.storage.http_client import CHANGED
from webdataset.storage.object_store import object_changed_error
from webdataset.storage.path_errors import suggest_object
from webdataset.storage.rate_limit import REFUSALS
from webdataset.storage.retries import BUSY, RetryableError, parse_retry_after
from webdataset.storage.s3_profile import Profile

_ABSENT = frozenset(("NoSuchKey", "NoSuchBucket", "NoSuchVersion", "404", "NotFound"))
_CHANGED = frozenset(("PreconditionFailed", "412", "InvalidRange", "416"))
_EXPIRED = frozenset(("ExpiredToken", "ExpiredTokenException", "TokenRefreshRequired", "RequestExpired"))
_BUSY = frozenset((
    "SlowDown", "RequestTimeout", "RequestTimeoutException", "Throttling", "ThrottlingException", "TooManyRequests",
    "InternalError", "BandwidthLimitExceeded", "RequestLimitExceeded", "RequestThrottled", "ServiceUnavailable",
))  # fmt: skip
TOO_MANY = frozenset((
    "SlowDown", "Throttling", "ThrottlingException", "TooManyRequests", "RequestLimitExceeded", "RequestThrottled",
))  # fmt: skip
_REDIRECTS = frozenset((301, 302, 303, 307, 308))
_WAYS_OUT = {
    "AccessDenied": "these credentials may not do this; check the bucket's policy, or anonymous=true for public data",
    "InvalidAccessKeyId": "the service does not know this key: check which profile and endpoint are used",
    "SignatureDoesNotMatch": "the secret key is wrong, or something between here and the service changes requests",
    "AuthorizationHeaderMalformed": "the region is wrong: set region in the profile, or AWS_REGION",
    "RequestTimeTooSkewed": "the clock of this machine is wrong: set it, by NTP for example",
    "NoSuchBucket": "check the bucket's name, the endpoint and the profile",
    "InvalidObjectState": "the object is in an archive (Glacier and the like): restore it before it is read",
    "PermanentRedirect": "the bucket is in another region: set region in the profile, or AWS_REGION, and its endpoint",
    "301": "the bucket is in another region: set region in the profile, or AWS_REGION, and its endpoint",
    "401": "check the credentials",
    "403": "check the credentials, or anonymous=true for public data",
}
# by the name of botocore's class: the first that is found among an error's classes
_LOCAL = {
    "NoCredentialsError": "no credentials were found: set AWS_PROFILE, or AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, "
    "name a profile of ours (s3+NAME://bucket/key), or use one with anonymous=true for public data",
    "PartialCredentialsError": "the credentials are incomplete: both the key id and the secret key are needed",
    "ProfileNotFound": "the AWS profile does not exist: check AWS_PROFILE and ~/.aws/config",
    "UnauthorizedSSOTokenError": "the SSO session has ended: run 'aws sso login'",
    "SSOTokenLoadError": "there is no SSO session: run 'aws sso login'",
    "TokenRetrievalError": "the SSO session has ended: run 'aws sso login'",
    "NoRegionError": "no region is known: set region in the profile, or AWS_REGION",
}
_UNSENDABLE = (
    "the credentials hold a line break, or a character that no header may have: check them where they come from"
)
_TRANSIENT_ERRORS = ("CredentialRetrievalError", "MetadataRetrievalError")
_CONNECTION_ERRORS = (
    "HTTPClientError",
    "ConnectionError",
    "OSError",
)  # botocore's own: a refused connection is no OSError
_DOUBTFUL_CREDENTIALS = frozenset((
    "InvalidAccessKeyId", "SignatureDoesNotMatch", "InvalidToken", "InvalidTokenId", "InvalidSecurity", "AccessDenied",
    "401", "403", "Forbidden", "Unauthorized",
))  # fmt: skip


def doubts_credentials(error: Exception) -> bool:
    """Tell whether a service refused the credentials, or there were none: by now there may be others."""
    if not _LOCAL.keys().isdisjoint(kind.__name__ for kind in type(error).__mro__):
        return True
    response = getattr(error, "response", None)
    return isinstance(response, Mapping) and str(response.get("Error", {}).get("Code", "")) in _DOUBTFUL_CREDENTIALS


def response_status(error: Exception) -> int:
    """Return the status of the answer that an error is about, 0 where there was none."""
    response = getattr(error, "response", None)
    facts = response.get("ResponseMetadata", {}) if isinstance(response, Mapping) else {}
    return int(facts.get("HTTPStatusCode", 0))


def translate_error(
    error: Exception, url: str, *, offset: int = 0, profile: Profile | None = None
) -> RetryableError | SourceError:
    """Return the error to raise in place of one of botocore's.

    Args:
        error: a ``ClientError``, ``BotoCoreError`` or the like.
        url: the url of the user.
        offset: bytes of the object read before.
        profile: of the request; named where that may be the reason.
    """
    by = f"; asked with {profile.description}" if profile is not None else ""
    response = getattr(error, "response", None)
    if isinstance(response, Mapping):
        return _translate_answer(response, url, offset, by)
    kinds = {kind.__name__ for kind in type(error).__mro__}
    reason = f"{type(error).__name__}: {error}"
    hint = next((text for name, text in _LOCAL.items() if name in kinds), None)
    # it would be quoted, and may be a secret
    if "header value" in reason or "codec can't encode" in reason:
        hint = _UNSENDABLE
    if hint is not None:
        return SourceError(hint + by, url=url)
    if "CERTIFICATE_VERIFY_FAILED" in reason:
        return SourceError(f"the server's certificate is not trusted; see verify in the profile: {reason}", url=url)
    if kinds.intersection(_TRANSIENT_ERRORS):
        return RetryableError(reason, expired=True)
    if kinds.intersection(_CONNECTION_ERRORS):
        return RetryableError(reason)
    return SourceError(f"the request could not be made: {reason}", url=url)


def _translate_answer(response: Mapping[str, Any], url: str, offset: int, by: str) -> RetryableError | SourceError:
    """Translate a response of the service with an error status."""
    fault, facts = response.get("Error", {}), response.get("ResponseMetadata", {})
    code, status = str(fault.get("Code", "")), int(facts.get("HTTPStatusCode", 0))
    reason = f"the service answered {status} {code}: {fault.get('Message', '')}".rstrip(": .")
    if code in _BUSY or (status in BUSY and code not in _EXPIRED):
        headers = facts.get("HTTPHeaders", {})
        wait_seconds = parse_retry_after(headers.get("retry-after"), headers.get("date"))
        return RetryableError(reason, wait_seconds=wait_seconds, refused=code in TOO_MANY or status in REFUSALS)
    if code in _EXPIRED:
        return RetryableError(f"{reason}; the credentials have expired", expired=True)
    if code in _CHANGED or status in CHANGED:
        return object_changed_error(url, offset)
    hint = _WAYS_OUT.get(code) or _WAYS_OUT.get(str(status))
    headers = facts.get("HTTPHeaders", {})
    if status in _REDIRECTS:
        hint = _describe_redirect(headers, hint)
    if code in _ABSENT or status == 404:
        return NotFound(f"{reason}; {hint}{by}" if hint else f"{reason}; {suggest_object(url)}", url=url)
    return SourceError(f"{reason}; {hint}{by}" if hint else reason, url=url)


def _describe_redirect(headers: Mapping[str, str], hint: str | None) -> str:
    """Describe a redirect, which is not followed: the request is signed for one host by secret keys."""
    region = headers.get("x-amz-bucket-region")
    if region:
        return f"{_WAYS_OUT['301']}: the service says {region!r}"
    try:
        parts = urllib.parse.urlsplit(headers.get("location", ""))
        host = f"{parts.scheme}://{parts.hostname}" if parts.hostname else ""
    except ValueError:
        host = ""
    place = f" to {host}" if host else ""
    return f"it redirects{place}, and redirects are not followed: check endpoint_url and region" + (
        f"; {hint}" if hint else ""
    )
