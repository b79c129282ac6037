"""Urls and commands as they may be shown: credentials are replaced before a url enters a message.

Flows in: a url or command as the user wrote it, or a message that quotes one. Flows out: the same text with every
secret replaced by ``***``. Never changes what is opened, and never a path: ``/data/token=3/x.tar`` stays as it is.
"""

import re

_WORD = (
    r"(?:token|secret|passw|signature|credential|auth|cookie|(?:api|access|account|private)[-_]?key"
    r"|(?:key[-_]?(?:pair[-_]?)?|access)[-_]?id|\b(?:sig|pwd|pass|jwt)(?![\w.-]))"
)
_NAME = rf"(?P<name>(?=[\w.-]{{0,60}}?{_WORD})[\w.-]{{1,80}})"
_VALUE = r"(?:'[^'\n]*'|\"[^\"\n]*\"|[^&;#\s'\"]+)"
_START = r"(?<![\w./-])"  # within a path nothing is secret

_USERINFO = re.compile(
    r"://(?:[^/?#\s]*@"  # the common form: nothing that ends a host
    r"|[^/?#\s@:\[\]'\"]*:(?!\d{1,5}(?:[/?#\s'\",;)]|$))(?:(?!://)[^\n'\"])*@)"  # a password with slashes or spaces
)
# prose has colons, too ("unexpected token: x"): a header is quoted, or an argument of -H, or its name has a hyphen
_HEADER = re.compile(
    r"(?:(?P<quote>['\"])|(?<=-H)|(?<=-H )|(?<=--header )|(?<=--header=)"
    rf"|{_START}(?=[\w-]{{0,60}}?[_-]|authorization\b))"
    rf"{_NAME}(?P<is>:\s*|=\s*(?=bearer\b|basic\b))"
    r"(?:(?(quote)(?:(?!(?P=quote))[^\n])+|(?:[^'\"\\\n]|\\[^'\"])+))",
    re.IGNORECASE,
)
_BEARER = re.compile(r"(?P<name>\bbearer[:=\s]+)[^\s'\"]+", re.IGNORECASE)
_IN_QUERY = re.compile(
    r"(?P<name>[?&;#](?:key|se|sp|upload_id|x-(?:amz|goog)-[a-z-]{1,40})=)[^&;#\s'\"]+", re.IGNORECASE
)
_ASSIGNED = re.compile(rf"{_START}{_NAME}={_VALUE}", re.IGNORECASE)
_OPTION = re.compile(rf"(?<![\w./-])--{_NAME}(?P<space>\s+)(?!-|[^\s'\"]*://){_VALUE}", re.IGNORECASE)
_LOGIN = re.compile(
    rf"{_START}(?P<name>(?:-[A-Za-z]{{0,8}}[uU]|--(?:proxy-)?user)[\s=]*)"
    r"(?:'[^'\n]*:[^'\n]*'|\"[^\"\n]*:[^\"\n]*\"|(?![^\s'\"]*://)[^\s'\":]*:[^\s'\"]+)"
)


def redacted(url: str) -> str:
    """Return ``url`` with user names, passwords, signatures and tokens replaced by ``***``.

    Args:
        url: any url or ``pipe:`` command, or a message with some in it.

    Returns:
        Text that may be logged or raised.
    """
    url = _USERINFO.sub("://***@", url)
    url = _HEADER.sub(lambda match: f"{match['quote'] or ''}{match['name']}{match['is']}***", url)
    url = _BEARER.sub(r"\g<name>***", url)
    url = _IN_QUERY.sub(r"\g<name>***", url)
    url = _ASSIGNED.sub(r"\g<name>=***", url)
    url = _OPTION.sub(r"--\g<name>\g<space>***", url)
    return _LOGIN.sub(r"\g<name>***", url)
