"""Archives that we write are read equal, and without a word of complaint, by everyone else.

Everyone: GNU tar, bsdtar, Python's tarfile, and the published versions 0.2.86 and 1.0.2 of this library (whose
interpreters the environment names).
"""

import io
import json
import os
import random
import re
import subprocess
import tarfile

import pytest

from webdataset import tariterators
from webdataset.tar.builder import member_header
from webdataset.testing import archives
from webdataset.writing.tar_writer import TarWriter

pytestmark = pytest.mark.oracle

FORMATS = [None, "pax", "gnu"]
COMPRESSIONS = [None, "gz", "bz2", "xz", "zst"]
PROGRAMS = ["tar", "bsdtar"]
PUBLISHED = {"0.2.86": "WDS_ORACLE_086", "1.0.2": "WDS_ORACLE_102"}
KEYS = [
    "plain",
    "dir/sub.d/key",
    "with space",
    "-dash",
    "star*[a]?",
    "a=b,c;d#e",
    "100%",
    "n" * 95,
    "n" * 96,
    "n" * 97,
    "p" * 100 + "/" + "n" * 90,
    "p" * 155 + "/" + "n" * 96,
    "p" * 156 + "/" + "n" * 96,
    "d/" * 140 + "deep",
    "m" * 300,
    "l" * 1200,
    "d/" * 600 + "deeper",
    "jürgen",
    "日本語/" * 40 + "鍵",
    "emoji 🎈",
    "é" * 600,
]
NOT_UTF8 = [os.fsdecode(b"latin\xe9\xff"), os.fsdecode(b"\xe9" * 200), os.fsdecode(b"\xff/\xfe" * 300)]
SIZES = [0, 1, 2, 510, 511, 512, 513, 1023, 1024, 1025, 10239, 10240, 10241, 131071, 131072, 131073, 1 << 20]


def needs(program):
    """Skip where a program is not installed."""
    if not archives.has(program):
        pytest.skip(f"{program} is not installed")


def payload(index, size):
    """Bytes that no other member has."""
    return (b"%d." % index + random.Random(index).randbytes(size))[:size]


def written(keys, sizes=(7,), **options):
    """Return an archive, and its members as they should be read."""
    stream = io.BytesIO()
    wanted = []
    with TarWriter(stream, encoder=False, **options) as writer:
        for index, key in enumerate(keys):
            fields = {f"f{number:02d}": payload(index * 100 + number, size) for number, size in enumerate(sizes)}
            writer.write({"__key__": key, **fields})
            wanted += [(f"{key}.{field}", content) for field, content in fields.items()]
    return stream.getvalue(), wanted


def told(program, data, *options):
    """Return what a program prints; it must not complain."""
    environment = {**os.environ, "LC_ALL": "C.UTF-8", "TZ": "UTC"}
    ended = subprocess.run([program, *options, "-f", "-"], input=data, capture_output=True, env=environment)
    assert (ended.returncode, ended.stderr) == (0, b"")
    return ended.stdout


def names_told(program, data):
    """Return the names that a program lists, as bytes."""
    if program == "tar":
        return told("tar", data, "-t", "--quoting-style=literal", "--show-stored-names").splitlines()
    listed = told("bsdtar", data, "-t").splitlines()
    return [re.sub(rb"\\([0-7]{3})", lambda match: bytes([int(match[1], 8)]), name) for name in listed]


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("program", PROGRAMS)
def test_names_by_programs(program, format):
    """GNU tar and bsdtar list every name, of any length and script, and give every payload."""
    needs(program)
    keys = KEYS if format == "pax" else [*KEYS, *NOT_UTF8]  # of binary PAX names GNU tar complains: see below
    data, wanted = written(keys, format=format)
    assert names_told(program, data) == [os.fsencode(name) for name, _ in wanted]
    assert told(program, data, "-x", "-O") == b"".join(content for _, content in wanted)


def test_binary_pax_names_by_programs():
    """With format="pax" names that are not UTF-8 are marked as binary, as POSIX has it."""
    needs("bsdtar")
    data, wanted = written(NOT_UTF8, format="pax")
    assert names_told("bsdtar", data) == [os.fsencode(name) for name, _ in wanted]


@pytest.mark.parametrize("format", FORMATS)
def test_names_by_tarfile(format):
    """Python's tarfile reads every name and payload."""
    data, wanted = written([*KEYS, *NOT_UTF8], format=format)
    assert archives.members_by_tarfile(data) == wanted


@pytest.mark.parametrize("compress", [False, "gz", "bz2", "xz", "zst"])
@pytest.mark.parametrize("format", FORMATS)
def test_names_by_our_reader(format, compress):
    """Our own reader, which checks more than the others do, reads every name and payload."""
    data, wanted = written([*KEYS, *NOT_UTF8], sizes=(0, 513), format=format, compress=compress)
    found = [(member["fname"], member["data"]) for member in tariterators.tar_file_iterator(io.BytesIO(data))]
    assert found == wanted


@pytest.mark.parametrize("program", [*PROGRAMS, "tarfile"])
def test_sizes(program):
    """Payloads of every size around the edges of blocks, records and buffers."""
    sizes = [*range(514), *SIZES]
    stream = io.BytesIO()
    wanted = [(f"{index:05d}.bin", payload(index, size)) for index, size in enumerate(sizes)]
    with TarWriter(stream, encoder=False) as writer:
        for name, content in wanted:
            writer.write({"__key__": name[:-4], "bin": content})
    data = stream.getvalue()
    if program == "tarfile":
        assert archives.members_by_tarfile(data) == wanted
        return
    needs(program)
    assert names_told(program, data) == [name.encode() for name, _ in wanted]
    assert told(program, data, "-x", "-O") == b"".join(content for _, content in wanted)


@pytest.mark.parametrize("compress", COMPRESSIONS)
@pytest.mark.parametrize("program", PROGRAMS)
def test_extraction_from_files(tmp_path, program, compress):
    """Extracted files have their contents, time and mode; nothing is said about implausible times or missing ends."""
    needs(program)
    path = tmp_path / f"a.tar{'.' + compress if compress else ''}"
    with TarWriter(path, encoder=False, mode=0o640) as writer:
        for index in range(50):
            writer.write({"__key__": f"d/{index}", "a": payload(index, index * 37), "b": b""})
    (tmp_path / "out").mkdir()
    ended = subprocess.run([program, "-xpf", path], cwd=tmp_path / "out", capture_output=True)
    assert (ended.returncode, ended.stderr) == (0, b"")
    for index in range(50):
        found = tmp_path / "out" / "d" / f"{index}.a"
        assert found.read_bytes() == payload(index, index * 37)
        assert found.stat().st_mtime == 315_532_800
        assert found.stat().st_mode & 0o777 == 0o640


def test_verification_by_gnu_tar(tmp_path):
    """GNU tar finds no difference between the archive and the files it was made from."""
    needs("tar")
    data, _ = written(["a", "b/c"], sizes=(0, 1, 512, 5000), mode=0o644)
    subprocess.run(["tar", "-xf", "-"], input=data, cwd=tmp_path, check=True)
    compared = subprocess.run(["tar", "-df", "-"], input=data, cwd=tmp_path, capture_output=True)
    assert all(line.endswith((b"Uid differs", b"Gid differs")) for line in compared.stdout.splitlines())


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("program", PROGRAMS)
def test_ten_gibibytes(tmp_path, program, format):
    """A member of 10 GiB, of which only the header is written (the rest is a hole), is listed with its size."""
    needs(program)
    size = 10 << 30
    path = tmp_path / "big.tar"
    header = member_header("big.bin", size, format=format) if format else member_header("big.bin", size)
    with open(path, "wb") as stream:
        stream.write(header)
        stream.seek(size, os.SEEK_CUR)
        stream.write(member_header("after.bin", 0))
        stream.write(bytes(1024))
    listed = subprocess.run([program, "-tvf", path], capture_output=True, text=True)
    assert (listed.returncode, listed.stderr) == (0, "")
    assert str(size) in listed.stdout.splitlines()[0]
    assert listed.stdout.splitlines()[1].endswith("after.bin")
    with tarfile.open(path) as opened:
        assert [(member.name, member.size) for member in opened] == [("big.bin", size), ("after.bin", 0)]


READER = """
import hashlib, json, sys, webdataset
dataset = webdataset.WebDataset(sys.argv[1], shardshuffle=False)
found = []
for sample in dataset:
    fields = {name: hashlib.sha256(content).hexdigest() for name, content in sample.items() if name[0] != "_"}
    found.append([sample["__key__"], fields])
print(json.dumps(found))
"""


def interpreter(version):
    """Return the Python of a published version, or skip."""
    python = os.environ.get(PUBLISHED[version])
    if not python:
        pytest.skip(f"{PUBLISHED[version]} does not name an interpreter with webdataset {version}")
    return python


def read_by(version, path):
    """Return (key, {field: hash}) of each sample as a published version reads it."""
    ended = subprocess.run([interpreter(version), "-c", READER, str(path)], capture_output=True, text=True, check=True)
    return [tuple(pair) for pair in json.loads(ended.stdout)]


def read_here(path):
    """Return the same by tarfile and the rule of keys."""
    import hashlib

    found = {}
    with tarfile.open(path) as opened:
        for member in opened:
            folder, _, last = member.name.rpartition("/")
            key, _, field = last.partition(".")
            content = opened.extractfile(member).read()
            found.setdefault(f"{folder}/{key}" if folder else key, {})[field] = hashlib.sha256(content).hexdigest()
    return list(found.items())


@pytest.mark.parametrize("compress", ["", ".gz", ".bz2", ".xz"])
@pytest.mark.parametrize("version", PUBLISHED)
def test_samples_by_published_versions(tmp_path, version, compress):
    """Published versions read the same samples from our shards, in every compression that they know."""
    path = tmp_path / f"a.tar{compress}"
    keys = [*KEYS, *NOT_UTF8]
    with TarWriter(path, encoder=False) as writer:
        for index, key in enumerate(keys):
            writer.write({"__key__": key, "bin": payload(index, index * 100), "seg.png": b"", "cls": b"%d" % index})
    found = read_by(version, path)
    assert [key for key, _ in found] == keys
    assert found == read_here(path)


WRITER = """
import sys, webdataset
with webdataset.TarWriter(sys.argv[1]) as writer:
    for index in range(1000):
        writer.write({"__key__": "%04d" % index, "cls": 1})
"""


@pytest.mark.parametrize("version", PUBLISHED)
def test_half_the_size_of_published_versions(tmp_path, version):
    """1000 tiny members take at most 52 % of what published versions write, and hold the same."""
    subprocess.run([interpreter(version), "-c", WRITER, str(tmp_path / "theirs.tar")], check=True, capture_output=True)
    with TarWriter(tmp_path / "ours.tar", encoder=False) as writer:
        for index in range(1000):
            writer.write({"__key__": f"{index:04d}", "cls": b"1"})
    ours, theirs = (tmp_path / "ours.tar").read_bytes(), (tmp_path / "theirs.tar").read_bytes()
    assert len(ours) <= 0.52 * len(theirs)
    assert archives.members_by_tarfile(ours) == archives.members_by_tarfile(theirs)
