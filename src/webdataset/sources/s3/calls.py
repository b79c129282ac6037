"""Requests to S3 that may be sent twice: parts, lists, heads.

Flows in: a request's name and arguments. Flows out: its answer. Sent again with patience while that may help; fresh
credentials are looked for where the present ones have expired.
"""

from typing import Any

from webdataset.sources.profiles.profile import Profile
from webdataset.sources.rest import patiently

from . import clients as s3_clients
from .errors import doubts_credentials, translated


class Calls:
    """Requests with one profile.

    Args:
        profile: service and credentials.
        url: what the user calls it, for errors.
        attempts: failures in a row after which a request is given up.

    Raises:
        MissingExtra: botocore is not installed.
    """

    def __init__(self, profile: Profile, url: str, attempts: int | None = None) -> None:
        self._profile = profile
        self._url = url
        self._attempts = attempts
        self._failures = s3_clients.failures()

    def call(self, name: str, **arguments: Any) -> dict[str, Any]:
        """Send a request until it is answered.

        Args:
            name: a method of botocore's client.
            **arguments: its arguments.

        Raises:
            NotFound: nothing is there.
            SourceError: the service refuses, or does not answer.
        """
        return patiently(
            lambda: self._asked(name, arguments),
            self._url,
            lambda: s3_clients.forget(self._profile),
            self._attempts,
        )

    def _asked(self, name: str, arguments: dict[str, Any]) -> dict[str, Any]:
        client = s3_clients.client_for(self._profile, self._url)
        try:
            answer: dict[str, Any] = getattr(client, name)(**arguments)
        except self._failures as error:
            failure = translated(error, self._url, profile=self._profile)
            if doubts_credentials(error):
                s3_clients.forget(self._profile)  # the next request looks for credentials anew
        else:
            return answer
        raise failure
