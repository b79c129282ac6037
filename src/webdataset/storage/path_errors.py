"""Errors of paths: what the operating system or a store refused, and what the user can do about it.

A path that is not there is mostly a slip: another number of digits, a range that is too long, a folder that is
elsewhere. So the message says what stands beside it. It looks into the folder once, when the error is made.
"""

import errno
import os
import re
from itertools import islice

from webdataset.core import process_limits
from webdataset.core.errors import NotFound, SourceError, UsageError
from webdataset.core.redaction import redact

MOST_NAMES = 10_000
"""Names of a folder that are looked at for one error."""

_HINTS = {
    errno.EISDIR: "; name the files in it: {name}/*.tar",
    errno.EACCES: "; look at its owner and permissions: ls -ld {name}",
    errno.EPERM: "; look at its owner and permissions: ls -ld {name}",
    errno.ENOSPC: "; free some space, or write to another disk",
    errno.EDQUOT: "; free some of the quota, or write to another disk",
    errno.EMFILE: process_limits.FILES_HINT,
}
_DIGITS = re.compile(r"\d+")
_LONGEST_SHOWN = 100


def translate_os_error(error: OSError, path: str | os.PathLike[str], verb: str = "open", hint: str = "") -> SourceError:
    """Return the error to raise where the operating system refused a path; ``errno`` and ``filename`` are kept.

    Args:
        error: the system's.
        path: what it refused.
        verb: what was tried.
        hint: to stand after it; by default what is known to help against this error.
    """
    name = os.fspath(path)
    kind = NotFound if isinstance(error, FileNotFoundError) else SourceError
    hint = hint or _suggest(error, str(name), writes=verb not in ("open", "read", "list", "look at"))
    found = kind(f"cannot {verb}: {error.strerror or error}{hint}", url=str(name))
    found.errno, found.strerror, found.filename = error.errno, error.strerror, name
    return found


def unnameable_error(path: str | os.PathLike[str]) -> UsageError:
    """Return the error to raise for a path with a null byte, or with characters that no file name can hold."""
    name = os.fspath(path)
    shown = name if len(name) <= _LONGEST_SHOWN else name[:_LONGEST_SHOWN]
    return UsageError(f"no file can be called {shown!r}: look where this name came from", url=ascii(shown))


def suggest_object(url: str) -> str:
    """Return what to do where a store has no object of this name.

    Args:
        url: of the user.
    """
    if re.search(r"[*?\[]", url.partition("?versionId=")[0]):
        return "no object matches this wildcard"
    folder = redact(url).rpartition("/")[0]
    return f"wds.expand_urls('{folder}/') lists what is there, and the url of a folder ends with a slash"


def _suggest(error: OSError, name: str, *, writes: bool) -> str:
    """Return what to do about the error, to stand after it."""
    if not isinstance(error, FileNotFoundError):
        return _HINTS.get(error.errno or 0, "").format(name=name.rstrip("/"))
    braces = re.sub(r"\{(\d+)(?:-|:|\.|\.{3,})(\d+)\}", r"{\1..\2}", name)
    if braces != name:
        return f"; did you mean {braces!r}?"
    if "*" in name:
        return "; no file matches this wildcard"
    if name.startswith("@"):
        return "; only commands take @list: pass a list of urls, Path('list.txt').read_text().split()"
    return _describe_neighbours(name, writes=writes)


def _describe_neighbours(path: str, *, writes: bool) -> str:
    """Return what stands where a file is not, to stand after an error."""
    folder, name = os.path.split(path)
    relative = "" if os.path.isabs(path) else f" (the working directory is {_find_working_directory()!r})"  # noqa: PTH117
    try:
        with os.scandir(folder or ".") as entries:
            names = sorted((entry.name for entry in islice(entries, MOST_NAMES)), key=lambda each: (len(each), each))
    except FileNotFoundError:
        return f"; there is no folder {folder!r}{relative}{': make it first' if writes else ''}"
    except OSError:
        return ""
    if writes:
        return relative
    form = _DIGITS.sub("0", name)
    alike = [each for each in names if _DIGITS.sub("0", each) == form] if _DIGITS.search(name) else []
    if len(alike) > 1:
        return f"; the folder has {alike[0]!r} to {alike[-1]!r}"
    # loaded where a name is wrong
    from difflib import get_close_matches  # noqa: PLC0415

    near = alike or get_close_matches(name, names, 1, 0.8)
    return f"; did you mean {os.path.join(folder, near[0])!r}?" if near else relative  # noqa: PTH118


def _find_working_directory() -> str:
    try:
        return os.getcwd()  # noqa: PTH109
    except OSError:
        return "gone"
