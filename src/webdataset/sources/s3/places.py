"""Where an object lies: ``s3://bucket/key``, and whose credentials open it.

Flows in: urls. Flows out: places. Nothing is asked of a service.
"""

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from webdataset.ground.errors import UsageError
from webdataset.sources.profiles.choosing import profile_for
from webdataset.sources.profiles.profile import Profile

_PLACE = re.compile(
    r"s3://(?P<bucket>arn:[^/]+:accesspoint/[^/]+|[^/]+)/(?P<key>.*?)(?:\?versionId=(?P<version>[\w.~-]+))?\Z",
    re.IGNORECASE | re.DOTALL,
)


_WRITTEN = re.compile(r"%((?:25)*)3[fF](?=versionId=)", re.IGNORECASE)
_MEANT = re.compile(r"\?(?=versionId=)|%(?=(?:25)*3[fF]versionId=)", re.IGNORECASE)


def key_of(written: str) -> str:
    """Return the key that a url names: as it stands, but ``%3FversionId=`` is ``?versionId=``.

    Args:
        written: what stands in the url.
    """
    return _WRITTEN.sub(lambda found: f"%{found[1][2:]}3F" if found[1] else "?", written)


def written_key(key: str) -> str:
    """Return what names a key in a url; the opposite of :func:`key_of`.

    Args:
        key: the key.
    """
    return _MEANT.sub(lambda found: "%3F" if found[0] == "?" else "%25", key)


class Place(NamedTuple):
    """Where an object lies.

    Args:
        profile: service and credentials.
        bucket: the bucket, or the ARN of an access point.
        key: the object's key; see :func:`key_of`.
        version: one version of it, or None for the latest.
    """

    profile: Profile
    bucket: str
    key: str
    version: str | None

    def named(self) -> dict[str, str]:
        """Return the arguments of a request about this object."""
        payer = {"RequestPayer": "requester"} if self.profile.request_payer else {}
        return {"Bucket": self.bucket, "Key": self.key, **payer}


def place_of(url: str, storage_options: Mapping[str, Any] | None = None) -> Place:
    """Return the object that a url names.

    Args:
        url: the url.
        storage_options: fields of the profile that a dataset gives.

    Raises:
        UsageError: no bucket, credentials in its place, or no such profile.
    """
    profile, plain = profile_for(url, storage_options)
    match = _PLACE.match(plain)
    if match is None:
        raise UsageError("an S3 url is s3://bucket/key", url=url)
    if "@" in match["bucket"]:
        # botocore would repeat it in its message
        raise UsageError(
            "an S3 url holds no credentials: put them into a profile, the environment, or storage_options", url=url
        )
    return Place(profile, match["bucket"], key_of(match["key"]), match["version"])
