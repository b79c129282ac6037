"""What an S3 service, or the way to it, says when it fails, in the words of this library.

Flows in: an error of botocore. Flows out: an error of ours: ``Again`` where asking again may help, else one that says
what to do. Nothing of the request is kept: what the service sends back may quote the key's name and the signature, so
that the original error is not chained either.
"""

import urllib.parse
from collections.abc import Mapping
from typing import Any

from webdataset.ground.errors import NotFound, SourceError
from webdataset.sources.objects import Again, changed
from webdataset.sources.patience import wish_of
from webdataset.sources.profiles.profile import Profile

_ABSENT = frozenset(("NoSuchKey", "NoSuchBucket", "NoSuchVersion", "404", "NotFound"))
_CHANGED = frozenset(("PreconditionFailed", "412", "InvalidRange", "416"))
_EXPIRED = frozenset(("ExpiredToken", "ExpiredTokenException", "TokenRefreshRequired", "RequestExpired"))
_BUSY = frozenset((
    "SlowDown", "RequestTimeout", "RequestTimeoutException", "Throttling", "ThrottlingException", "TooManyRequests",
    "InternalError", "BandwidthLimitExceeded", "RequestLimitExceeded", "RequestThrottled", "ServiceUnavailable",
))  # fmt: skip
_REDIRECTS = frozenset((301, 302, 303, 307, 308))
_BUSY_STATUS = frozenset((408, 425, 429, 500, 502, 503, 504, 509))
_WAYS_OUT = {
    "AccessDenied": "these credentials may not do this; check the bucket's policy, or anonymous=true for public data",
    "InvalidAccessKeyId": "the service does not know this key: check which profile and endpoint are used",
    "SignatureDoesNotMatch": "the secret key is wrong, or something between here and the service changes requests",
    "AuthorizationHeaderMalformed": "the region is wrong: set region in the profile, or AWS_REGION",
    "RequestTimeTooSkewed": "the clock of this machine is wrong",
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
_AGAIN_LATER = ("CredentialRetrievalError", "MetadataRetrievalError")
_UNREACHED = ("HTTPClientError", "ConnectionError", "OSError")  # botocore's own: a refused connection is no OSError
_DOUBTED = frozenset((
    "InvalidAccessKeyId", "SignatureDoesNotMatch", "InvalidToken", "InvalidSecurity", "AccessDenied", "401", "403",
    "Forbidden", "Unauthorized",
))  # fmt: skip


def doubts_credentials(error: Exception) -> bool:
    """Tell whether a service refused who asked, or nobody could: there may be other keys by now, where they come from.

    Args:
        error: an error of botocore.
    """
    if not _LOCAL.keys().isdisjoint(kind.__name__ for kind in type(error).__mro__):
        return True
    response = getattr(error, "response", None)
    return isinstance(response, Mapping) and str(response.get("Error", {}).get("Code", "")) in _DOUBTED


def status_of(error: Exception) -> int:
    """Return the status of the answer that an error is about, 0 where there was none.

    Args:
        error: an error of botocore.
    """
    response = getattr(error, "response", None)
    facts = response.get("ResponseMetadata", {}) if isinstance(response, Mapping) else {}
    return int(facts.get("HTTPStatusCode", 0))


def translated(error: Exception, url: str, *, offset: int = 0, profile: Profile | None = None) -> Again | SourceError:
    """Return the error to raise in place of one of botocore's.

    Args:
        error: a ``ClientError``, ``BotoCoreError`` or the like.
        url: the object as the user calls it.
        offset: bytes of the object read before.
        profile: what the request was made with; named where that may be the reason.
    """
    by = f"; asked with {profile.described}" if profile is not None else ""
    response = getattr(error, "response", None)
    if isinstance(response, Mapping):
        return _answered(response, url, offset, by)
    kinds = {kind.__name__ for kind in type(error).__mro__}
    said = f"{type(error).__name__}: {error}"
    hint = next((text for name, text in _LOCAL.items() if name in kinds), None)
    if "header value" in said or "codec can't encode" in said:  # it would be quoted, and may be a secret
        hint = _UNSENDABLE
    if hint is not None:
        return SourceError(hint + by, url=url)
    if "CERTIFICATE_VERIFY_FAILED" in said:
        return SourceError(f"the server's certificate is not trusted; see verify in the profile: {said}", url=url)
    if kinds.intersection(_AGAIN_LATER):
        return Again(said, expired=True)
    if kinds.intersection(_UNREACHED):
        return Again(said)
    return SourceError(f"the request could not be made: {said}", url=url)


def _answered(response: Mapping[str, Any], url: str, offset: int, by: str) -> Again | SourceError:
    """Judge an answer of the service with an error status."""
    fault, facts = response.get("Error", {}), response.get("ResponseMetadata", {})
    code, status = str(fault.get("Code", "")), int(facts.get("HTTPStatusCode", 0))
    said = f"the service answered {status} {code}: {fault.get('Message', '')}".rstrip(": ")
    if code in _BUSY or (status in _BUSY_STATUS and code not in _EXPIRED):
        headers = facts.get("HTTPHeaders", {})
        return Again(said, wait_seconds=wish_of(headers.get("retry-after"), headers.get("date")))
    if code in _EXPIRED:
        return Again(f"{said}; the credentials have expired", expired=True)
    if code in _CHANGED or status in (412, 416):
        return changed(url, offset)
    hint = _WAYS_OUT.get(code) or _WAYS_OUT.get(str(status))
    headers = facts.get("HTTPHeaders", {})
    if status in _REDIRECTS:
        hint = _describe_redirect(headers, hint)
    kind = NotFound if code in _ABSENT or status == 404 else SourceError
    return kind(f"{said}; {hint}{by}" if hint else said, url=url)


def _describe_redirect(headers: Mapping[str, str], hint: str | None) -> str:
    """Say where a redirect leads; it is not followed, since the request is signed for one host by secret keys."""
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
