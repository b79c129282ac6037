"""Replaces credentials in urls, commands and messages by ``***`` before they are shown.

It never changes what is opened, and never a path: ``/data/token=3/x.tar`` stays as it is.
"""

import functools
import re
from typing import Any

_WORD = (
    r"(?:token|secret|passw|signature|credential|auth|cookie|(?:api|access|account|private)[-_]?key"
    r"|(?:key[-_]?(?:pair[-_]?)?|access)[-_]?id|\b(?:sig|pwd|pass|jwt)(?![\w.-]))"
)
_NAME = rf"(?P<name>(?=[\w.-]{{0,60}}?{_WORD})[\w.-]{{1,80}})"
_VALUE = r"(?:'[^'\n]*'|\"[^\"\n]*\"|[^&;#\s'\"]+)"
_OF_AZURE = re.compile(r"(?<!\w)(?:abfss?|az)\Z", re.IGNORECASE)
_START = r"(?<![\w./-])"  # within a path nothing is secret


def _remove_login(match: re.Match[str]) -> str:
    """Return what stands in the place of ``://user:password@``; Azure's urls name a container there, no user."""
    names_container = _OF_AZURE.search(match.string, max(0, match.start() - 6), match.start())
    nothing_secret = match[0] == "://@" or (names_container and ":" not in match[0][3:])
    return match[0] if nothing_secret else "://***@"


@functools.cache
def _replacements() -> tuple[tuple[re.Pattern[str], Any], ...]:
    """Return patterns and what takes the place of what they match; made at the first use, which takes milliseconds."""
    userinfo = re.compile(
        r"://(?:[^/?#\s]*@"  # the common form: nothing that ends a host
        r"|[^/?#\s@:\[\]'\"]*:(?!\d{1,5}(?:[/?#\s'\",;)]|$))(?:(?!://)[^\n'\"])*@)"  # a password with slashes or spaces
    )
    # prose has colons, too ("unexpected token: x"): a header is quoted, or an argument of -H, or its name has a hyphen
    header = re.compile(
        r"(?:(?P<quote>['\"])|(?<=-H)|(?<=-H )|(?<=--header )|(?<=--header=)"
        rf"|{_START}(?=[\w-]{{0,60}}?[_-]|authorization\b))"
        rf"{_NAME}(?P<is>:\s*|=\s*(?=bearer\b|basic\b))"
        r"(?:(?(quote)(?:(?!(?P=quote))[^\n])+|(?:[^'\"\\\n]|\\[^'\"])+))",
        re.IGNORECASE,
    )
    bearer = re.compile(r"(?P<name>\bbearer[:=\s]+)[^\s'\"]+", re.IGNORECASE)
    in_query = re.compile(
        r"(?P<name>[?&;#](?:key|se|sp|upload_id|x-(?:amz|goog)-[a-z-]{1,40})=)[^&;#\s'\"]+", re.IGNORECASE
    )
    # how many tokens a row of packed sequences has is no secret
    assigned = re.compile(rf"{_START}(?!max_tokens=\d+(?![^\s,;)])){_NAME}={_VALUE}", re.IGNORECASE)
    option = re.compile(rf"(?<![\w./-])--{_NAME}(?P<space>\s+)(?!-|[^\s'\"]*://){_VALUE}", re.IGNORECASE)
    login = re.compile(
        rf"{_START}(?P<name>(?:-[A-Za-z]{{0,8}}[uU]|--(?:proxy-)?user)[\s=]*)"
        r"(?:'[^'\n]*:[^'\n]*'|\"[^\"\n]*:[^\"\n]*\"|(?![^\s'\"]*://)[^\s'\":]*:[^\s'\"]+)"
    )
    return (
        (userinfo, _remove_login),
        (header, lambda match: f"{match['quote'] or ''}{match['name']}{match['is']}***"),
        (bearer, r"\g<name>***"),
        (in_query, r"\g<name>***"),
        (assigned, r"\g<name>=***"),
        (option, r"--\g<name>\g<space>***"),
        (login, r"\g<name>***"),
    )


def redact(url: str) -> str:
    """Return ``url`` with user names, passwords, signatures and tokens replaced by ``***``.

    Args:
        url: any url or ``pipe:`` command, or a message with some in it.

    Returns:
        Text that may be logged or raised.
    """
    for pattern, instead in _replacements():
        url = pattern.sub(instead, url)
    return url
