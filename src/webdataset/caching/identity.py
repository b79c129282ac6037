"""Which object a url names, whatever it is signed with today.

Flows in: urls as users write them. Flows out: text to be hashed and compared, never to be shown or kept: queries choose
objects (``?v=2``, ``?archpath=a/b``), and may hold what is secret. Of a query goes what the cache leaves out of a
file's name, and whatever is called as a key, token or date of expiry is called.
"""

import re

from .names import canonical

_CHANGING = re.compile(
    r"[?&](?:x-(?:amz|goog|oss|obs|cos|tos|bce)-[\w-]+|[\w.-]*access-?key-?(?:id)?|googleaccessid|key-pair-id"
    r"|(?:[\w.]+[-_])?(?:sig|signature|expires|expiry|expiration|secret|jwt|password|passwd|pwd|credentials?)"
    r"|[\w.-]*token|(?:[\w.]+[-_])?api[-_]?key|auth|authorization)=[^&#\s'\"]*",
    re.IGNORECASE,
)
_BEARER = re.compile(r"\bbearer[:=\s]+[^\s'\"]+", re.IGNORECASE)  # of a header in a command


def same_object(url: str) -> str:
    """Return a url without what changes while the object stays the same.

    Args:
        url: a url or ``pipe:`` command.
    """
    if "?" not in url and "@" not in url and not url.startswith("pipe:"):
        return url
    return _BEARER.sub("", _CHANGING.sub("", canonical(url)))
