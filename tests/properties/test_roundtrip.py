"""What is written is what is read: by us, and by GNU tar, bsdtar and tarfile."""

import io
import os
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

import webdataset as wds
from webdataset import tariterators
from webdataset.testing import archives, strategies

MANY = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])


def written(samples, **kw):
    """Samples as an archive of ours."""
    buffer = io.BytesIO()
    with wds.TarWriter(buffer, encoder=False, **kw) as sink:
        for key, fields in samples:
            sink.write({"__key__": key, **fields})
    return buffer.getvalue()


def read(data):
    """Key and fields of the samples in an archive."""
    members = tariterators.tar_file_expander(iter([{"url": "x.tar", "stream": io.BytesIO(data)}]))
    return [
        (sample["__key__"], {name: value for name, value in sample.items() if not name.startswith("__")})
        for sample in tariterators.group_by_keys(members)
    ]


def ordered(samples):
    """The members that a writer makes: fields of one sample in the order of their names."""
    return [(f"{key}.{name}", fields[name]) for key, fields in samples for name in sorted(fields)]


@MANY
@given(strategies.samples())
def test_read_is_the_inverse_of_write(samples):
    """Any keys in any script, any payloads: keys, fields and bytes come back."""
    assert read(written(samples)) == samples


@MANY
@given(strategies.samples(), st.integers(0, 10**10))
def test_tarfile_reads_what_we_write(samples, mtime):
    """Python's tarfile sees the members, in order."""
    assert archives.members_by_tarfile(written(samples, mtime=mtime)) == ordered(samples)


@pytest.mark.oracle
@pytest.mark.parametrize("program", ["tar", "bsdtar"])
@settings(MANY, max_examples=25)
@given(samples=strategies.samples(most=4))
def test_programs_read_what_we_write(program, samples):
    """GNU tar and bsdtar extract the same files."""
    if not archives.has(program):
        pytest.skip(f"{program} is not installed")
    members = ordered(samples)
    paths = [name for name, _ in members]
    assume(all(len(os.fsencode(part)) < 250 for path in paths for part in path.split("/")))
    assume(program != "bsdtar" or "\\" not in "".join(paths))  # it takes them for separators, as on Windows
    folders = {str(parent) for path in paths for parent in Path(path).parents}
    assume(not folders & set(paths))  # a file system cannot hold a folder and a file of one name
    with tempfile.TemporaryDirectory() as folder:
        found = archives.members_by_program(written(samples), Path(folder), program=program)
    assert found == {os.fsencode(name): payload for name, payload in members}


@MANY
@given(strategies.samples())
def test_writing_again_gives_the_same_bytes(samples):
    """Byte-identical: nothing of the time, the user or the hash seed gets into a shard."""
    assert written(samples) == written(samples)


@pytest.mark.parametrize("compress", ["gz", "bz2", "xz", "zst"])
def test_compressed_shards_read_back(compress, tmp_path):
    """Written under a name with the ending, read back by magic bytes."""
    if compress == "zst":
        pytest.importorskip("zstandard")
    samples = archives.samples(20)
    path = tmp_path / f"x.tar.{compress}"
    with wds.TarWriter(str(path), encoder=False) as sink:
        for key, fields in samples:
            sink.write({"__key__": key, **fields})
    moved = path.rename(tmp_path / "any name")
    found = list(wds.WebDataset(str(moved), shardshuffle=False))
    assert [sample["__key__"] for sample in found] == [key for key, _ in samples]
    assert read_plain(found) == samples


def read_plain(found):
    """Key and fields of samples."""
    return [
        (sample["__key__"], {name: value for name, value in sample.items() if not name.startswith("__")})
        for sample in found
    ]


@pytest.mark.parametrize("length", [95, 96, 99, 100, 101, 150, 156, 200, 256, 257, 1000])
@pytest.mark.parametrize("letter", ["k", "\u00e9", "\U0001f600"])
def test_names_of_every_length_that_matters(length, letter):
    """Around the limits of a header's name and prefix, in letters of one, two and four bytes."""
    for key in (letter * length, "/".join([letter * (length // 4)] * 4)):
        samples = [(key, {"txt": b"1", "cls": b"2"})]
        data = written(samples)
        assert read(data) == samples
        assert archives.members_by_tarfile(data) == ordered(samples)


@pytest.mark.parametrize("size", [0, 1, 511, 512, 513, 1023, 1024, 1025, 65535, 65536, 262143, 262144, 262145, 3 << 20])
def test_payloads_of_every_size_that_matters(size):
    """Around block, chunk and buffer sizes, first, last and in the middle."""
    payload = bytes(range(256)) * (size // 256) + bytes(size % 256)
    for fields in ({"a": payload, "b": b"x"}, {"a": b"x", "b": payload}, {"a": b"x", "b": payload, "c": b"y"}):
        samples = [("k0", fields), ("k1", fields)]
        assert read(written(samples)) == samples


def test_shard_writer_loses_nothing(tmp_path):
    """Many shards by count and by size: every sample once, in order."""
    samples = archives.samples(57)
    ways: dict[str, dict[str, Any]] = {"count": {"maxcount": 10}, "size": {"maxsize": 20_000}}
    for name, limits in ways.items():
        pattern = str(tmp_path / f"{name}-%03d.tar")
        with wds.ShardWriter(pattern, encoder=False, verbose=0, **limits) as sink:
            for key, fields in samples:
                sink.write({"__key__": key, **fields})
        urls = sorted(str(path) for path in tmp_path.glob(f"{name}-*.tar"))
        assert len(urls) > 1
        assert read_plain(wds.WebDataset(urls, shardshuffle=False)) == samples


def test_values_read_back_decoded(tmp_path):
    """Texts, numbers and structures: encoded on writing, decoded on reading."""
    sample = {"__key__": "a", "txt": "caf\u00e9", "cls": 7, "json": {"x": [1, 2.5, None, "\u65e5"]}, "bin": b"\0\xff"}
    path = str(tmp_path / "x.tar")
    with wds.TarWriter(path) as sink:
        sink.write(sample)
    (found,) = wds.WebDataset(path, shardshuffle=False).decode()
    assert {name: found[name] for name in sample} == sample
