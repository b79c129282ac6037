"""Shards for the readers of other projects, and what is in them.

``make interop`` makes the environment and runs this folder in it; the ordinary suite passes it by. A project that
could not be installed is skipped with its name; one that is installed and misreads is a failure.
"""

import os
import tarfile
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from support import zoo
from webdataset import TarWriter
from webdataset.core.errors import WebDatasetError

if "WDS_INTEROP" not in os.environ:
    collect_ignore_glob = ["test_*.py"]

KEYS = {
    "short": ["0001", "0002", "0003"],
    "folders": ["train/cats/1", "train/cats/2", "train/dogs.d/1"],
    "long": [f"{'p' * 90}/{'q' * 90}{index}" for index in range(3)],
    "longest": [f"{'p' * 90}/{'q' * 190}{index}" for index in range(3)],
    "spaces": ["my cat 1", "a b/c d", "per%20cent"],
    "unicode": ["sp\u00e4ter", "\u4f8b/\u732b", "e\u0301"],
}
FORMATS: dict[str, dict[str, Any]] = {
    "default": {},
    "ustar": {"format": "ustar"},
    "gnu": {"format": "gnu"},
    "pax": {"format": "pax"},
    "pax-times": {"format": "pax", "mtime": 1.5},
}
MADE = [f"{kind} in {style}" for kind in KEYS for style in FORMATS if (kind, style) != ("longest", "ustar")]
ZOO = [f"zoo {name}" for name in zoo.names()]
READABLE = [*MADE, *(f"zoo {name}" for name in zoo.names() if zoo.exhibit(name).samples)]


class Shard(NamedTuple):
    """A shard and what a right reader gives: key and fields of each sample; None where a field stands twice."""

    path: Path
    samples: list[tuple[str, dict[str, bytes]]] | None

    def members(self):
        """Names and payloads of its files as the standard library reads them."""
        with tarfile.open(self.path) as archive:
            return [(entry.name, archive.extractfile(entry).read()) for entry in archive if entry.isfile()]


def _samples(keys):
    return [
        (key, {"bin": bytes(range(256)) * (index + 1), "cls": b"%d" % index, "seg.txt": key.encode()})
        for index, key in enumerate(keys)
    ]


def pytest_configure(config):
    """Enter this folder's marker."""
    config.addinivalue_line("markers", "interop: another project reads our shards, or we read its")


def pytest_collection_modifyitems(items):
    """Mark what lies in this folder."""
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker("interop")


def pytest_generate_tests(metafunc):
    """Give ``shard`` each shard that we write and each of the zoo; other names give some of them."""
    if "shard" in metafunc.fixturenames:
        metafunc.parametrize("shard", MADE + ZOO, indirect=True)
    for fixture, names in (("made", MADE), ("exhibit", ZOO), ("readable", READABLE)):
        if fixture in metafunc.fixturenames:
            metafunc.parametrize(fixture, names, indirect=True)


@pytest.fixture(scope="session")
def shards(tmp_path_factory):
    """All shards, each in a folder of its own, by name."""
    place = tmp_path_factory.mktemp("interop")
    found = {}
    for name in MADE:
        kind, _, style = name.partition(" in ")
        folder = place / name.replace(" ", "-")
        folder.mkdir()
        samples = _samples(KEYS[kind])
        with TarWriter(folder / "shard.tar", check_keys="ignore", **FORMATS[style]) as sink:
            for key, fields in samples:
                sink.write({"__key__": key, **fields})
        found[name] = Shard(folder / "shard.tar", samples)
    for exhibit in zoo.exhibits():
        folder = place / f"zoo-{exhibit.name}"
        folder.mkdir()
        (folder / "shard.tar").write_bytes(exhibit.archive)
        found[f"zoo {exhibit.name}"] = Shard(folder / "shard.tar", exhibit.samples)
    return found


@pytest.fixture
def shard(request, shards):
    """One shard."""
    return shards[request.param]


@pytest.fixture
def made(request, shards):
    """One shard that our writer wrote."""
    return shards[request.param]


@pytest.fixture
def exhibit(request, shards):
    """One shard of the zoo."""
    return shards[request.param]


@pytest.fixture
def readable(request, shards):
    """One shard that has samples, and no field of one twice."""
    return shards[request.param]


@pytest.fixture
def name(request):
    """The name of the shard of this test."""
    given = request.node.callspec.params
    return next(given[fixture] for fixture in ("shard", "made", "exhibit", "readable") if fixture in given)


@pytest.fixture
def refused():
    """A function that calls another and returns the reason for which this library refuses, or None."""

    def reason(function, *arguments):
        try:
            function(*arguments)
        except WebDatasetError as error:
            return str(error)
        return None

    return reason
