"""What the libFuzzer target does with an input: the first bytes choose how the rest, an archive, is read."""

import random
import sys
from pathlib import Path
from typing import Any

from support.archive_fuzz import FILE_CHUNKS, SIZES, Case, draw_cases, find_difference, list_places
from webdataset.samples.native_core import load_native

# bytes of an input that choose
HEAD = 4
# bytes of an archive to begin with
LONGEST = 12 << 10
POLICIES = ["error", "first", "last", "new"]
ENDS = ["ignore", "error", "warn"]


class Differs(Exception):
    """The native core and Python read an archive in different ways."""


def decode(data: bytes) -> Case:
    """Return the case that an input stands for.

    Args:
        data: four bytes that choose, and an archive.
    """
    policies, sizes, start, other = data[:HEAD].ljust(HEAD, b"\0")
    content = data[HEAD:]
    rules: dict[str, Any] = {
        "duplicates": POLICIES[policies & 3],
        "missing_end": ENDS[(policies >> 2) % 3],
        "split_samples": ENDS[(policies >> 4) % 3],
        "continues": bool(other & 1),
        "lcase": not other & 2,
        "observed": bool(other & 4),
        "start": None,
    }
    places = list_places(content, rules) if start & 0x80 else []
    if places:
        rules["start"], rules["rising"] = places[(start & 0x7F) % len(places)]
    chunks = FILE_CHUNKS[(other >> 3) % len(FILE_CHUNKS)] if other & 0x80 else None
    return Case(str(other), content, SIZES[sizes % len(SIZES)], rules, chunks)


def encode(case: Case, rng: random.Random) -> bytes:
    """Return an input with the archive of a case, and rules of its own.

    Args:
        case: has the archive.
        rng: chooses the rules.
    """
    return rng.randbytes(2) + b"\0" + rng.randbytes(1) + case.content


def check(data: bytes) -> None:
    """Read an archive in both ways.

    Args:
        data: an input.

    Raises:
        Differs: what is seen is not the same.
    """
    difference = find_difference(decode(data))
    if difference is not None:
        raise Differs(difference)


def write_corpus(folder: str, inputs: int = 800) -> None:
    """Write inputs to begin with.

    Args:
        folder: for them.
        inputs: how many.
    """
    rng = random.Random(0)
    for case in draw_cases("corpus", range(inputs // 8), 8):
        if len(case.content) <= LONGEST:
            Path(folder, case.seed).write_bytes(encode(case, rng))


if load_native()[0] is None:
    sys.exit("the native core was not compiled into this program")
