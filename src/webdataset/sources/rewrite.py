"""Urls rewritten by the environment: ``WDS_REWRITE``, then ``GOPEN_REWRITE``.

Flows in: a url or path as the user wrote it. Flows out: what to open instead. Each variable holds
``regex=replacement;regex=replacement``; a regex must match at the start, and the first that changes the url wins. The
replacement may be a ``pipe:`` command: the environment belongs to the user.
"""

import functools
import re

from webdataset.ground import settings
from webdataset.ground.errors import UsageError

from .strict import refuse_if_strict


def rewritten(url: str, *, level: str | None = None) -> str:
    """Return the url to open in place of ``url``.

    Args:
        url: a url or a local path.
        level: a trust level that a dataset names; ``strict`` refuses to rewrite.

    Raises:
        UsageError: a variable that cannot be read, or rewriting under strict trust.
    """
    for variable in (settings.WDS_REWRITE, settings.GOPEN_REWRITE):
        text = variable.get()
        if not text:
            continue
        refuse_if_strict(
            "rewrite_url: unsafe_gopen is False, cannot rewrite URLs using environment variables", level=level, url=url
        )
        url = _first_change(url, _rules(variable.name, text))
    return url


def _first_change(url: str, rules: tuple[tuple[re.Pattern[str], str], ...]) -> str:
    for pattern, replacement in rules:
        match = pattern.match(url)
        if match is not None:
            changed = match.expand(replacement) + url[match.end() :]
            if changed != url:
                return changed
    return url


@functools.lru_cache(maxsize=8)
def _rules(name: str, text: str) -> tuple[tuple[re.Pattern[str], str], ...]:
    rules = []
    for rule in filter(None, text.split(";")):
        regex, separator, replacement = rule.partition("=")
        try:
            pattern = re.compile(regex)
        except re.error as error:
            raise UsageError(f"environment variable {name}: {regex!r} is no regular expression: {error}") from error
        if not separator or not regex:
            raise UsageError(f"environment variable {name}: {rule!r} is not of the form regex=replacement")
        rules.append((pattern, replacement))
    return tuple(rules)
