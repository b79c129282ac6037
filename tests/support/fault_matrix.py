"""What must come of each fault, for each scheme: all bytes, or which error.

The tests go through :data:`MATRIX` cell by cell, and the documentation shows it. A fault that a scheme cannot meet is
written down with the reason, never left out.
"""

from typing import NamedTuple

from support.scheme_servers import NAMES

EQUAL = "equal"
CHANGED = "ShardChanged"
REFUSED = "SourceError"

WEB = ("http", "https", "s3", "gs", "az", "hf", "ais")
"""Schemes that are spoken over http."""


class Absent(NamedTuple):
    """A fault that a scheme cannot meet.

    Args:
        reason: why.
    """

    reason: str


Cell = str | Absent

_NO_WIRE = Absent("nothing is between memory and its reader")
_SFTP = Absent("SFTP has no such answer: each read names its offset, and gives those bytes or an error")
_NO_TOKEN = Absent("one logs in once for each connection, by a key")
_OWN_CIPHER = Absent("no TLS; the row above cuts below the encryption of ssh")
_NO_REDIRECT = Absent("its answers lead nowhere else, and none that did would be followed")
_LOCAL: dict[str, Cell] = {"ssh": _SFTP, "fsspec": _SFTP, "memory": _NO_WIRE}
_TORN: dict[str, Cell] = {**dict.fromkeys(NAMES, EQUAL), "memory": _NO_WIRE}
_ANSWERED: dict[str, Cell] = {**dict.fromkeys(WEB, EQUAL), **_LOCAL}

MATRIX: dict[str, dict[str, Cell]] = {
    "reset": _TORN,
    "short end": _TORN,
    "stall": _TORN,
    "5xx burst": _ANSWERED,
    "429 with Retry-After": _ANSWERED,
    "ignored Range": _ANSWERED,
    "wrong Content-Range": _ANSWERED,
    "object swapped, conditions heeded": {
        **dict.fromkeys(NAMES, CHANGED),
        "hf": EQUAL,  # the commit of the first answer is read to its end
        "memory": EQUAL,  # the reader holds the old object
    },
    "object swapped, conditions ignored": {
        **dict.fromkeys(("http", "https", "s3", "gs", "az"), CHANGED),
        "hf": Absent("the url names the commit: there is no condition to ignore"),
        "ais": Absent("sends no conditions: the row above is this one"),
        "ssh": Absent("SFTP has no conditions: the row above is this one"),
        "fsspec": Absent("fsspec has no conditions: the row above is this one"),
        "memory": _NO_WIRE,
    },
    "token expired, another one is there": {
        **dict.fromkeys(WEB, EQUAL), "ssh": _NO_TOKEN, "fsspec": _NO_TOKEN, "memory": _NO_WIRE,
    },
    "token expired, for good": {
        **dict.fromkeys(WEB, REFUSED), "ssh": _NO_TOKEN, "fsspec": _NO_TOKEN, "memory": _NO_WIRE,
    },
    "wire cut": _TORN,
    "TLS aborted": {
        **dict.fromkeys(WEB, EQUAL),
        "http": Absent("no TLS"),
        "ssh": _OWN_CIPHER,
        "fsspec": _OWN_CIPHER,
        "memory": _NO_WIRE,
    },
    "target of the redirect gone": {
        **dict.fromkeys(("http", "hf", "ais"), EQUAL),
        "https": Absent("as for http: the same code, and tests of TLS redirects need no second server"),
        **dict.fromkeys(("s3", "gs", "az", "ssh", "fsspec"), _NO_REDIRECT),
        "memory": _NO_WIRE,
    },
}  # fmt: skip
"""Fault to scheme to what must come of it."""


def cells() -> list[tuple[str, str, str]]:
    """Return fault, scheme and outcome, for all that can happen."""
    return [
        (fault, scheme, outcome)
        for fault, row in MATRIX.items()
        for scheme, outcome in row.items()
        if isinstance(outcome, str)
    ]


def as_table() -> str:
    """Return the matrix in Markdown, and below it why some cells are empty."""
    lines = ["| fault | " + " | ".join(NAMES) + " |", "|---" * (len(NAMES) + 1) + "|"]
    reasons: dict[str, int] = {}
    for fault, row in MATRIX.items():
        shown = []
        for name in NAMES:
            outcome = row[name]
            if isinstance(outcome, Absent):
                shown.append(f"- {reasons.setdefault(outcome.reason, len(reasons) + 1)}")
            else:
                shown.append("=" if outcome == EQUAL else outcome)
        lines.append(f"| {fault} | " + " | ".join(shown) + " |")
    notes = [f"{number}. {reason}." for reason, number in reasons.items()]
    return "\n".join([*lines, "", *notes])
