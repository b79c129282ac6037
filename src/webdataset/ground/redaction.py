"""Urls as they may be shown: credentials and signatures are replaced before a url enters a message.

Flows in: a url as the user wrote it. Flows out: the same url with every secret replaced by ``***``.
"""

import re

_USERINFO = re.compile(r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]*://)[^/?#@\s]*@")
_SECRET_PARAMETER = re.compile(
    r"(?P<name>[?&;](?:X-Amz-[A-Za-z-]+|X-Goog-[A-Za-z-]+|sig|signature|se|sp|token|access_token|auth|key|api_?key"
    r"|AWSAccessKeyId|password|passwd|secret)=)[^&;#\s'\"]*",
    re.IGNORECASE,
)
_BEARER = re.compile(r"(?P<name>(?:authorization|bearer)[:=\s]+)(?:bearer\s+)?[^\s'\"]+", re.IGNORECASE)


def redacted(url: str) -> str:
    """Return ``url`` with user names, passwords, signatures and tokens replaced by ``***``.

    Args:
        url: any url or ``pipe:`` command.

    Returns:
        Text that may be logged or raised.
    """
    url = _USERINFO.sub(r"\g<scheme>***@", url)
    url = _SECRET_PARAMETER.sub(r"\g<name>***", url)
    return _BEARER.sub(r"\g<name>***", url)
