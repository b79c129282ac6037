"""Extended headers in every order, read as GNU tar, bsdtar and CPython read them.

The corpus: x, g, L and K headers in every order, what they override (path, size, linkpath), what the member's own
header claims, and regular, linked and sparse members behind them. Where the three programs agree, this library gives
the same members; where they do not, it gives what one of them gives, or it warns.
"""

import io
import itertools
import os
import random
import subprocess
import tarfile
import warnings

import pytest

from webdataset import tariterators
from webdataset.testing import archives

pytestmark = pytest.mark.oracle

PAYLOAD = b"seven hundred bytes ".ljust(700, b".")
SEGMENTS = [(512, 512), (4096, 700)]
CONTENT = bytes(512) + b"a" * 512 + bytes(4096 - 1024) + PAYLOAD
CASES = int(os.environ.get("EXTENDED_HEADER_CASES", "60"))


def extension(kind, overrides):
    """Return one extended header."""
    if kind in "xg":
        records = {
            "path": (b"path", b"path-of-%s.txt" % kind.encode()),
            "padded": (b"path", b"path-of-%s.txt\0\0\0" % kind.encode()),
            "size": (b"size", b"%d" % len(PAYLOAD)),
            "linkpath": (b"linkpath", b"first.txt"),
            "comment": (b"comment", b"nothing"),
        }
        return archives.pax_header([records[name] for name in overrides or ["comment"]], everywhere=kind == "g")
    body = b"name-of-L.txt\0" if kind == "L" else b"first.txt\0"
    return archives.header(b"././@LongLink", len(body), kind=kind.encode(), magic=archives.GNU) + archives.padded(body)


def main_member(what):
    """Return the member that the extended headers stand before."""
    if what == "linked":
        return archives.header(b"plain.txt", 0, kind=b"1", linkname=b"first.txt")
    if what == "old sparse":
        return archives.old_gnu_sparse(b"plain.txt", CONTENT, SEGMENTS)
    if what.startswith("sparse "):
        return archives.pax_sparse(b"plain.txt", CONTENT, SEGMENTS, version=what.removeprefix("sparse "))
    return archives.header(b"plain.txt", int(what)) + archives.padded(PAYLOAD)


def corpus():
    """Yield (name, archive) of every case."""
    for count in range(1, 5):
        for order in itertools.permutations("xgLK", count):
            choices: list[tuple[str, ...]] = [()]
            if {*order} & {"x", "g"}:
                choices += [("path",), ("padded",), ("size",), ("linkpath",), ("path", "size", "linkpath")]
            for overrides in choices:
                mains = ["700", "linked", "old sparse", "sparse 0.0", "sparse 0.1", "sparse 1.0"]
                if "size" in overrides:
                    mains = ["700", "0", "512"]
                elif "x" in order:
                    # a sparse member of a PAX archive has an x header of its own; nothing writes two in a row
                    mains = ["700", "linked", "old sparse"]
                for main in mains:
                    parts = [archives.member(b"first.txt", b"first"), *(extension(kind, overrides) for kind in order)]
                    data = archives.archive(*parts, main_member(main), archives.member(b"last.txt", b"last"))
                    yield f"{''.join(order)} {'+'.join(overrides)} {main}", data


def by_cpython(data):
    """Names and payloads of files by tarfile, or None where it refuses."""
    try:
        with tarfile.open(fileobj=io.BytesIO(data)) as archive:
            return {entry.name: archive.extractfile(entry).read() for entry in archive if entry.isreg()}
    except (tarfile.TarError, OSError):
        return None


def by_program(program, data, folder):
    """Names and payloads of files as a program extracts them, links left out, or None where it refuses."""
    folder.mkdir(parents=True)
    ended = subprocess.run([program, "-xf", "-"], cwd=folder, input=data, capture_output=True, check=False)
    if ended.returncode:
        return None
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


def by_this_library(data):
    """Names and payloads, or None where it refuses; and what it warned of."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            found = {item["fname"]: item["data"] for item in tariterators.tar_file_iterator(io.BytesIO(data))}
        except ValueError:
            found = None
    return found, [str(each.message) for each in caught]


def test_members_are_those_of_other_programs(tmp_path):
    """Same members where the others agree; an opinion that one of them shares, or a warning, where they do not."""
    for program in ("tar", "bsdtar"):
        if not archives.has(program):
            pytest.skip(f"{program} is not installed")
    cases = list(corpus())
    assert len(cases) > 900
    wrong = []
    agreed = 0
    for number, (name, data) in enumerate(random.Random(CASES).sample(cases, min(CASES, len(cases)))):
        others = [by_cpython(data)]
        others += [by_program(program, data, tmp_path / f"{number}" / program) for program in ("tar", "bsdtar")]
        found, warned = by_this_library(data)
        if name.endswith("linked"):
            # tarfile gives no payload for links, and extracted links are files
            others = others[1:]
        unanimous = all(other == others[0] for other in others) and others[0] is not None
        # bsdtar 3.8 refuses half of them
        agreed += others.count(found) > 1
        if found is None or (found not in others if not warned else unanimous and found != others[0]):
            wrong.append((name, found, others, warned))
    assert not wrong, wrong[:5]
    assert agreed > min(CASES, len(cases)) // 4
