"""Shards as other programs end them: what was finished is read without a word, what was cut is an error.

Whoever finishes a tar file writes zeros after its last member: tarfile and GNU tar up to a record of 10240 bytes,
others two blocks, some one.
"""

import io
import os
import subprocess
import tarfile
import warnings

import pytest

import webdataset as wds
from webdataset.core.errors import Truncated
from webdataset.index import IndexedShard
from webdataset.testing import archives

pytestmark = pytest.mark.oracle

PUBLISHED = {"0.2.86": "WDS_ORACLE_086", "1.0.2": "WDS_ORACLE_102"}
WRITE = """
import sys, io, webdataset as wds
folder = sys.argv[1]
def samples():
    for number in range(12):
        yield {"__key__": "%03d" % number, "txt": "x" * (number * 333), "cls": str(number)}
for name, options in (("plain.tar", {}), ("named.tar.gz", {}), ("asked.tar.gz", {"compress": True})):
    with wds.TarWriter(folder + "/" + name, **options) as sink:
        for sample in samples():
            sink.write(sample)
sink = wds.TarWriter(folder + "/closed.tar")
for sample in samples():
    sink.write(sample)
sink.close()
stream = io.BytesIO()
with wds.TarWriter(stream) as sink:
    for sample in samples():
        sink.write(sample)
open(folder + "/stream.tar", "wb").write(stream.getvalue())
with wds.ShardWriter(folder + "/shard-%02d.tar", maxcount=5, verbose=0) as sink:
    for sample in samples():
        sink.write(sample)
with wds.ShardWriter(folder + "/packed-%02d.tar.gz", maxcount=5, verbose=0, compress=True) as sink:
    for sample in samples():
        sink.write(sample)
with wds.TarWriter(folder + "/empty.tar") as sink:
    pass
"""


def read(path, **rules):
    """Return the keys of a shard; a warning is an error."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        dataset = wds.WebDataset(str(path), shardshuffle=False, empty_check=False, **rules)
        return [sample["__key__"] for sample in dataset if {"txt", "cls"} <= sample.keys()]


@pytest.mark.parametrize("version", PUBLISHED)
def test_what_the_published_versions_finish_is_read(tmp_path, version):
    """Every way to write and close: plain, compressed by name or wish, into a stream, in shards, without a sample."""
    python = os.environ.get(PUBLISHED[version])
    if not python:
        pytest.skip(f"{PUBLISHED[version]} names no interpreter")
    subprocess.run([python, "-c", WRITE, str(tmp_path)], check=True, capture_output=True)
    found = {path.name: read(path) for path in tmp_path.iterdir()}
    every = [f"{number:03d}" for number in range(12)]
    series = {name: every[5 * place : 5 * place + 5] for place in range(3) for name in (
        f"shard-{place:02d}.tar", f"packed-{place:02d}.tar.gz"
    )}  # fmt: skip
    whole = dict.fromkeys(("plain.tar", "named.tar.gz", "asked.tar.gz", "closed.tar", "stream.tar"), every)
    assert found == {**whole, **series, "empty.tar": []}


@pytest.mark.parametrize("version", PUBLISHED)
def test_what_the_published_versions_leave_open_is_cut(tmp_path, version):
    """A writer that was killed leaves a part of its shard, and perhaps half of a sample."""
    python = os.environ.get(PUBLISHED[version])
    if not python:
        pytest.skip(f"{PUBLISHED[version]} names no interpreter")
    program = """
import os, sys, webdataset as wds
sink = wds.TarWriter(sys.argv[1])
for number in range(5):
    sink.write({"__key__": str(number), "txt": "x" * 100, "cls": "7"})
sink.stream.flush()
os._exit(0)
"""
    path = tmp_path / "x.tar"
    subprocess.run([python, "-c", program, str(path)], check=True, capture_output=True)
    with pytest.raises(Truncated, match="in progress, was not delivered"):
        read(path)


def ends(tmp_path):
    """Yield archives with every end that a program leaves."""
    members = [(f"{number}.{field}", b"x" * 700) for number in range(4) for field in ("txt", "cls")]
    for name in archives.TARFILE_FORMATS:
        yield f"tarfile-{name}", archives.by_tarfile(members, format=name)
    body = archives.by_hand(members, end=b"")
    yield "one block", body + bytes(512)
    yield "two blocks", body + bytes(1024)
    yield "a whole record of zeros", body + bytes(10240)
    yield "filled to a record", body + bytes(-len(body) % 10240 or 10240)
    yield "a blocking factor of 2048", body + bytes(-len(body) % (2048 * 512) or 2048 * 512)
    folder = tmp_path / "files"
    folder.mkdir()
    for name, content in members:
        (folder / name).write_bytes(content)
    names = [name for name, _ in members]
    for words in (("tar", "-b1", "-cf", "-"), ("tar", "-b20", "-cf", "-"), ("bsdtar", "-cf", "-")):
        if archives.has(words[0]):
            made = subprocess.run([*words, *names], cwd=folder, check=True, capture_output=True)
            yield " ".join(words), made.stdout
    if archives.has("tar"):
        first = subprocess.run(["tar", "-cf", "-", *names[:4]], cwd=folder, check=True, capture_output=True).stdout
        (tmp_path / "grown.tar").write_bytes(first)
        subprocess.run(["tar", "-rf", str(tmp_path / "grown.tar"), *names[4:]], cwd=folder, check=True)
        yield "appended to", (tmp_path / "grown.tar").read_bytes()


def test_every_end_that_a_program_writes(tmp_path):
    """One zero block or many, alone or up to a record, in one go or appended to: read without a word."""
    for name, content in ends(tmp_path):
        path = tmp_path / "x.tar"
        path.write_bytes(content)
        assert read(path) == list("0123"), name
        with IndexedShard(str(path), False) as shard:
            assert len(shard) == 4, name
        for kind in archives.COMPRESSIONS:
            path = tmp_path / f"x.{kind}"
            path.write_bytes(archives.compressed(content, kind))
            assert read(path) == list("0123"), (name, kind)


def test_what_is_not_finished(tmp_path):
    """An archive that was not closed, and ``head`` at a border: the last sample is withheld, by every reader."""
    stream = io.BytesIO()
    archive = tarfile.open(fileobj=stream, mode="w")
    for number in range(3):
        for field in ("txt", "cls"):
            header = tarfile.TarInfo(f"{number}.{field}")
            header.size = 10
            archive.addfile(header, io.BytesIO(b"0123456789"))
    content = stream.getvalue()
    for count in (len(content), len(content) - 1024):
        path = tmp_path / "x.tar"
        path.write_bytes(content[:count])
        for kind in (None, "gz"):
            if kind is not None:
                path = tmp_path / "x.tar.gz"
                path.write_bytes(archives.compressed(content[:count], kind))
            seen = []
            assert read(path, handler=lambda error, seen=seen: seen.append(error) or True) == ["0", "1"]
            assert [(type(error), error.key, error.offset) for error in seen] == [(Truncated, "2", count)]
