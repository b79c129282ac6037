"""Reading, grouping and splitting as the published versions 0.2.86 and 1.0.2 do them, but for the deviations listed.

One script (``PROBE``) runs in three interpreters over the same shards and prints what it saw as JSON. The environment
variables ``WDS_ORACLE_086`` and ``WDS_ORACLE_102`` name Python interpreters that have the published versions. Every
difference between ours and theirs stands in ``DEVIATIONS`` with its reason: one more, or one less, fails.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import webdataset as wds
from webdataset.testing import archives

pytestmark = pytest.mark.oracle

ORACLES = {"0.2.86": "WDS_ORACLE_086", "1.0.2": "WDS_ORACLE_102"}

PROBE = Path(__file__).with_name("reader_probe.py")

NAMES = [
    "a.jpg", "a.b.c", "a/b.c/d.tar.gz", "a.b/c.jpg", "./a.jpg", "a..jpg", "a.", ".hidden", "dir/.hidden.jpg", "a/b/.c",
    "noext", "dir.d/file", "x.y/", "", ".", "..", "...", "/", "/a.b", "//a.b", "a//b.c", "a/b", "a.b/", "A.JPG",
    "235342 Track 2.0 (Clean).mp3", "caf\u00e9.\u00c9XT", "a\nb.c", "a.b\nc", "..a", "../a.b", "a/../b.c", "a b.c d",
]  # fmt: skip

SHARDS = {
    "plain": [("a.txt", b"1"), ("a.cls", b"2"), ("b.txt", b"3"), ("b.cls", b"4")],
    "odd": [(name, b"%d" % index) for index, name in enumerate(NAMES) if name not in ("", ".", "..", "...", "/")],
    "meta": [
        ("__meta__/x.txt", b"0"), ("__k__", b"1"), ("__k__.txt", b"2"), ("dir/__meta__/x.txt", b"3"), ("a.txt", b"4"),
        ("__half.txt", b"5"), ("__a__b__.txt", b"6"), ("__x__/__y__/z.txt", b"7"), ("____.txt", b"8"), ("____", b"9"),
    ],
    "hidden": [(".hidden", b"0"), ("a.txt", b"1"), ("d/.h.txt", b"2"), ("noext", b"3"), ("a.cls", b"4")],
    "upper": [("a.TXT", b"0"), ("a.Cls", b"1"), ("A.txt", b"2"), ("B.SEG.Png", b"3")],
    "clash": [("a.TXT", b"0"), ("a.txt", b"1"), ("a.cls", b"2"), ("b.txt", b"3")],
    "twice": [("a.txt", b"0"), ("a.cls", b"1"), ("a.txt", b"2"), ("a.json", b"3"), ("b.txt", b"4"), ("c.txt", b"5")],
    "last-twice": [("a.txt", b"0"), ("b.txt", b"1"), ("b.txt", b"2")],
    "apart": [("a.txt", b"0"), ("b.txt", b"1"), ("a.cls", b"2")],
    "head": [("a.txt", b"0"), ("k.txt", b"1")],
    "tail": [("k.cls", b"2"), ("z.txt", b"3")],
    "tail-clash": [("k.txt", b"2"), ("z.txt", b"3")],
    "bad": [("a.txt", b"0"), ("a.__bad__", b"1"), ("b.txt", b"2"), ("c.__bad__", b""), ("c.txt", b"4")],
    "keys": [("a.__key__", b"0"), ("a.txt", b"1"), ("b.__url__", b"2"), ("b.txt", b"3")],
    "empty-fields": [("a.txt", b""), ("b.txt", b"")],
    "nothing": [],
    "long": [("n" * 150 + ".txt", b"0"), ("caf\u00e9.txt", b"1")],
}  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with one shard for each case."""
    place = tmp_path_factory.mktemp("shards")
    for name, members in SHARDS.items():
        (place / f"{name}.tar").write_bytes(archives.by_tarfile(members, format="pax"))
    plain = archives.by_tarfile(SHARDS["plain"])
    for kind in ("gz", "bz2", "xz"):
        (place / f"plain.tar.{kind}").write_bytes(archives.compressed(plain, kind))
    (place / "pieces.tar.gz").write_bytes(archives.compressed(plain, "gz", pieces=3))
    (place / "joined.tar").write_bytes(plain + archives.by_tarfile(SHARDS["tail"]))
    (place / "junk.tar").write_bytes(b"<html>not found</html>" * 100)
    (place / "zero-bytes.tar").write_bytes(b"")
    body = archives.by_hand(SHARDS["head"])
    (place / "cut.tar").write_bytes(body[:1800])
    (place / "cut-between.tar").write_bytes(body[:1024])
    (place / "flipped.tar").write_bytes(body[:1030] + b"!" + body[1031:])
    links = archives.member(b"d/", kind=b"5") + archives.member(b"l.txt", kind=b"2", linkname=b"a.txt")
    links += archives.member(b"h.txt", kind=b"1", linkname=b"a.txt") + archives.member(b"p.txt", kind=b"6")
    (place / "links.tar").write_bytes(links + archives.by_hand(SHARDS["plain"]))
    return place


def probe(interpreter, folder, **variables):
    """Run the probe in one interpreter.

    Returns:
        What it saw, by case.
    """
    given = json.dumps({"folder": str(folder), "names": NAMES})
    environment = {"PATH": os.environ["PATH"], "PYTHONWARNINGS": "ignore", "PYTHONIOENCODING": "utf-8", **variables}
    done = subprocess.run(
        [interpreter, PROBE], input=given.encode(), capture_output=True, env=environment, cwd=folder, timeout=200
    )
    assert done.returncode == 0, done.stderr.decode()[-3000:]
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def ours(folder):
    """What this library does."""
    return probe(sys.executable, folder, PYTHONPATH=str(Path(wds.__file__).parents[1]))


@pytest.fixture(scope="module", params=ORACLES)
def published(request, folder):
    """A published version and what it does."""
    interpreter = os.environ.get(ORACLES[request.param])
    if not interpreter:
        pytest.skip(f"{ORACLES[request.param]} names no interpreter with webdataset {request.param}")
    return request.param, probe(interpreter, folder)


def both_ways(*cases):
    """The same cases through the class and through the stages."""
    return {f"{way} {case}" for way in ("dataset", "pipeline") for case in cases}


GOING_ON = ("ignore_and_continue", "warn_and_continue")
STOPPING = ("ignore_and_stop", "warn_and_stop")
BOTH = frozenset(ORACLES)

# id in docs/deviations.md and reason: (versions from which ours differs, cases)
DEVIATIONS = {
    "joined: archives joined by cat or tar -A are read to the end; theirs lose all but the first": (
        BOTH,
        both_ways("joined"),
    ),
    "joined-gz: gz files of several streams are read to the end; theirs lose what comes behind the first seam": (
        BOTH,
        {"compressed pieces.tar.gz"},
    ),
    "bad-header: a header that fails its checksum is an error; theirs take it for the end of the shard": (
        BOTH,
        both_ways("flipped", "flipped+tail reraise_exception")
        | both_ways(*(f"flipped+tail {handler}" for handler in GOING_ON + STOPPING)),
    ),
    "interrupted-sample: a sample that an error interrupts is not given; theirs give it half, or with the next one": (
        BOTH,
        both_ways(*(f"cut+tail {handler}" for handler in GOING_ON + STOPPING)),
    ),
    "missing-end: a shard without its end mark is an error; theirs give the sample in progress": (
        BOTH,
        both_ways("cut-between")
        | both_ways(*(f"cut-between+tail {handler}" for handler in (*GOING_ON, *STOPPING, "reraise_exception"))),
    ),
    "split-samples: members of one sample that are not adjacent are an error; theirs give parts of samples": (
        BOTH,
        both_ways("apart", "hidden", "odd") | {"group keys"},
    ),
    "stop-at-duplicate: a handler that stops drops the sample in progress; theirs give what there is of it": (
        BOTH,
        both_ways(*(f"{shard}+tail {handler}" for handler in STOPPING for shard in ("twice", "last-twice", "clash"))),
    ),
    "members-without-url: members without a url, and empty items, are grouped; theirs raise KeyError": (
        BOTH,
        {"group list", "group empty item"},
    ),
    "renamed-to-meta: a member that rename_files makes metadata is metadata; theirs look at its name in the archive": (
        BOTH,
        {"rename to meta"},
    ),
    "border: samples never join over the border of two shards; those of 0.2.86 do": (
        {"0.2.86"},
        both_ways("head+tail", "head+tail-clash", "head+nothing+tail") | {"dataset split 0/1 0/1"},
    ),
    "end-of-shard: no empty item marks the end of a shard unless eof_value= asks for it": (
        {"1.0.2"},
        {"expander", "expander fname", "expander select"},
    ),
}


def agrees(mine, theirs):
    """Tell whether outcomes are equal; an error of ours must be caught by who catches theirs."""
    if mine == theirs:
        return True
    if not mine or not theirs or mine[:-1] != theirs[:-1]:
        return False
    errors = [last.get("raises") if isinstance(last, dict) else None for last in (mine[-1], theirs[-1])]
    return None not in errors and errors[1][0] in errors[0]


def test_ours_differs_exactly_where_it_says(ours, published):
    """Over two hundred cases: equal items in equal order and errors of the same class, but for the list."""
    version, theirs = published
    assert ours.keys() == theirs.keys()
    differing = {case for case in ours if not agrees(ours[case], theirs[case])}
    listed = set().union(*(cases for versions, cases in DEVIATIONS.values() if version in versions))
    shown = "\n".join(f"{case}: ours {ours.get(case)} theirs {theirs.get(case)}" for case in sorted(differing ^ listed))
    assert differing == listed, shown


def test_the_probe_saw_something(ours):
    """Most cases give samples: an empty comparison proves nothing."""
    assert len(ours) > 200
    assert sum(any(isinstance(item, dict) and "__key__" in item for item in items) for items in ours.values()) > 80


@pytest.mark.parametrize("handler", GOING_ON)
@pytest.mark.parametrize("way", ["dataset", "pipeline"])
def test_the_deviations_lose_nothing(ours, way, handler):
    """Where ours differs, it is whole samples that it gives, and all that come behind."""
    assert [item["__key__"] for item in ours[f"{way} cut+tail {handler}"]] == ["a", "k", "z"]
    assert ours[f"{way} cut+tail {handler}"][1]["__url__"] == "tail.tar"
    assert [item["__key__"] for item in ours[f"{way} joined"]] == ["a", "b", "k", "z"]


def test_every_deviation_is_explained(unexplained):
    """The page for users explains each."""
    assert unexplained(DEVIATIONS) == []
