"""File name patterns with braces, and the small functions of the published ``shardlists``.

Flows in: texts with ``*``, ``?``, ``[…]`` and braces. Flows out: whether a name matches, or the files that do.
"""

import fnmatch
import glob
import re

from webdataset.ground import settings

from .expand import braced, substituted


def fnmatch_with_braces(filename: str, pattern: str) -> bool:
    """Tell whether a name matches a pattern.

    Args:
        filename: the name.
        pattern: with ``*``, ``?``, ``[…]``, and braces for alternatives.
    """
    return any(fnmatch.fnmatch(filename, each) for each in braced(pattern))


def glob_with_braces(pattern: str) -> list[str]:
    """Return the files that match a pattern, each once, in sorted order.

    Args:
        pattern: with ``*``, ``?``, ``[…]``, and braces for alternatives.
    """
    return sorted({path for each in braced(pattern) for path in glob.glob(each)})  # noqa: PTH207  absolute patterns


def envlookup(m: re.Match[str]) -> str:
    """Return what ``${NAME}`` stands for: the environment variable ``WDS_NAME``.

    Args:
        m: a match whose first group is the name.

    Raises:
        UsageError: the variable is not set.
    """
    return settings.substitution(m[1])


def envsubst(s: str) -> str:
    """Return a text with every ``${NAME}`` replaced by the environment variable ``WDS_NAME``.

    Args:
        s: the text.

    Raises:
        UsageError: a variable is not set.
    """
    return substituted(s)


def expand(s: str) -> str:
    """Return a text with ``~`` and ``$NAME`` expanded from the environment, as a shell would.

    Args:
        s: the text.
    """
    return settings.environment_expanded(s)
