"""What an AIStore cluster says when it refuses, in the words of this library.

Flows in: status, headers, and the beginning of an answer's body. Flows out: ``Again`` where asking again may help, else
an error that says what to do.
"""

import json
from collections.abc import Mapping

from webdataset.ground.errors import NotFound, SourceError
from webdataset.ground.redaction import redacted
from webdataset.sources.objects import Again, changed
from webdataset.sources.patience import wish_of
from webdataset.sources.rest import BUSY

_ABSENT = frozenset((404, 410))
_CHANGED = frozenset((412, 416))
_WAYS_OUT = {
    401: "; set AIS_AUTHN_TOKEN or AIS_AUTHN_TOKEN_FILE to a token that is valid",
    403: "; this token may not do it: ask for access, or set AIS_AUTHN_TOKEN to another one",
    404: "; check bucket, name and provider",
}


def refusal(
    status: int, headers: Mapping[str, str], said: bytes, url: str, *, reading: bool = False
) -> Again | SourceError:
    """Return the error to raise for an answer.

    Args:
        status: of the answer, from 300 on.
        headers: of the answer.
        said: the beginning of its body.
        url: what was asked for, as the user calls it.
        reading: the token was good before; it may have been renewed meanwhile.
    """
    text = f"the cluster answered {status}{_message(said)}"
    if status in BUSY:
        return Again(redacted(text), wait_seconds=wish_of(headers.get("Retry-After"), headers.get("Date")))
    if status == 401 and reading:
        return Again(redacted(f"{text}; the token has expired"), expired=True)
    if status in _CHANGED:
        return changed(url, 0)
    kind = NotFound if status in _ABSENT else SourceError
    return kind(text + _WAYS_OUT.get(status, ""), url=url)


def _message(said: bytes) -> str:
    """Return what the body says, on one line."""
    try:
        found = json.loads(said)
        message = str(found.get("message", "")) if isinstance(found, dict) else ""
    except ValueError:
        message = said.decode("utf-8", "replace")
    message = " ".join(message.split())[:300]
    return f": {message}" if message else ""
