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


class Place(NamedTuple):
    """Where an object lies.

    Args:
        profile: service and credentials.
        bucket: the bucket, or the ARN of an access point.
        key: the object's key, taken as it stands: nothing in it is decoded.
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
        UsageError: no bucket, or no such profile.
    """
    profile, plain = profile_for(url, storage_options)
    match = _PLACE.match(plain)
    if match is None:
        raise UsageError("an S3 url is s3://bucket/key", url=url)
    return Place(profile, match["bucket"], match["key"], match["version"])
