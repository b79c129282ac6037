"""What the hub says when it refuses, in the words of this library.

Flows in: status and headers. Flows out: ``Again`` where asking again may help, else an error that says what to do.
"""

import re
from collections.abc import Mapping

from webdataset.ground.errors import NotFound, SourceError
from webdataset.ground.redaction import redacted
from webdataset.sources.objects import Again, changed
from webdataset.sources.patience import wish_of
from webdataset.sources.rest import BUSY

_ABSENT = {
    "RepoNotFound": "there is no such repository, or it is private: check the name, log in (hf auth login, HF_TOKEN)",
    "RevisionNotFound": "the repository has no such branch, tag or commit",
    "EntryNotFound": "the repository has no such file in this revision",
}
_RESET = re.compile(r"\bt=(\d{1,5})\b")


def refusal(status: int, headers: Mapping[str, str], url: str, page: str) -> Again | SourceError:
    """Return the error to raise for an answer of the hub.

    Args:
        status: of the answer.
        headers: of the answer.
        url: what was asked for, as the user calls it.
        page: where people look at the repository.
    """
    code, said = headers.get("X-Error-Code", ""), headers.get("X-Error-Message", "")
    text = redacted(f"the hub answered {status}" + (f" {code}" if code else "") + (f": {said[:300]}" if said else ""))
    if status in BUSY:
        reset = _RESET.search(headers.get("RateLimit", "")) if status == 429 else None
        wish = headers.get("Retry-After") or (reset[1] if reset else None)
        return Again(text, wait_seconds=wish_of(wish, headers.get("Date")))
    if status in (412, 416):
        return changed(url, 0)
    if code == "GatedRepo":
        return SourceError(
            f"{text}; the repository is gated: accept its terms at {page}, and give a token of that account "
            "(hf auth login, or HF_TOKEN)",
            url=url,
        )
    if code in _ABSENT or status in (404, 410):
        return NotFound(f"{text}; {_ABSENT.get(code, 'check repository, revision and path')}", url=url)
    hint = {
        401: "; the repository is private or does not exist, or the token is not valid: hf auth login, or HF_TOKEN",
        403: f"; this token may not read it: see {page}, and the token's permissions",
    }.get(status, "")
    return SourceError(text + hint, url=url)


def refused_elsewhere(status: int, headers: Mapping[str, str], url: str) -> Again | SourceError:
    """Return the error to raise for an answer of the server that has the bytes: its signed urls expire.

    Args:
        status: of the answer.
        headers: of the answer.
        url: what was asked for, as the user calls it.
    """
    if status in (412, 416):
        return changed(url, 0)
    return Again(
        f"the server that the hub names answered {status}",
        wait_seconds=wish_of(headers.get("Retry-After"), headers.get("Date")),
        expired=status in (400, 401, 403),
    )
