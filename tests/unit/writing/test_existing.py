"""Shards of an earlier, longer series beside those of a new one."""

import os
import random
import re
import warnings
from typing import Any

import pytest

import webdataset as wds
from webdataset.core.errors import AlreadyExists, UsageError
from webdataset.writing.documents import DocumentWriter
from webdataset.writing.records import RecordShardWriter


def write(pattern, shards, writer=wds.ShardWriter, first=0, **kw):
    """Write a series of shards of two samples."""
    with writer(pattern, maxcount=2, verbose=0, start_shard=first, **kw) as sink:
        for number in range(2 * shards):
            sink.write({"__key__": f"{number:03d}", "txt": "x"})


def said(pattern, shards, *args, **kw):
    """Return what is warned of while a series is written."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        write(pattern, shards, *args, **kw)
    return [str(each.message) for each in caught]


def numbers(folder):
    """Name shards by a function, as some programs do."""
    return lambda number: f"{folder}/part-{number}-of-many.tar"


PATTERNS = {
    "percent": lambda folder: f"{folder}/a-%06d.tar",
    "braces": lambda folder: f"{folder}/7/{{rank}}-{{shard:04d}}.tar",
    "path": lambda folder: folder / "2024-%d.tar",
    "function": numbers,
}


@pytest.mark.parametrize("kind", PATTERNS)
@pytest.mark.parametrize("seed", range(4))
def test_a_longer_series_is_told(tmp_path, kind, seed):
    """Whatever the lengths: a warning names the older shards behind the new ones, first and last, and only then."""
    rng = random.Random(seed)
    pattern = PATTERNS[kind](tmp_path)
    (tmp_path / "7").mkdir()
    for other in ("a-x.tar", "a-00009.tar", "a-000099.tar.partial", "part--of-many.tar", "b-000050.tar"):
        (tmp_path / other).touch()
    there = 0
    for _ in range(6):
        count = rng.randrange(1, 6)
        messages = said(pattern, count, exist="warn" if kind == "function" else None)
        if count >= there:
            assert not messages
        else:
            (message,) = messages
            assert re.match(f"{there - count} shards? (is|are) ", message)
            name = wds.writer.ShardWriter(pattern, verbose=0)._name if kind != "function" else pattern
            assert os.path.basename(name(count)) in message
            assert os.path.basename(name(there - 1)) in message
            assert f"after the {count} of this run" in message
        there = max(there, count)


def test_a_gap_does_not_hide_them(tmp_path):
    """Shards behind a missing number are found, too."""
    write(f"{tmp_path}/a-%03d.tar", 6)
    (tmp_path / "a-002.tar").unlink()
    (message,) = said(f"{tmp_path}/a-%03d.tar", 2)
    assert message.startswith("3 shards are (")


def test_relative_names(tmp_path, monkeypatch):
    """A pattern without a folder is one of the present folder."""
    monkeypatch.chdir(tmp_path)
    write("a-%03d.tar", 3)
    (message,) = said("a-%03d.tar", 1)
    assert "a-001.tar, a-002.tar" in message


def test_writers_of_other_numbers(tmp_path):
    """Shards that others write meanwhile are no leftovers; nor are lower numbers, nor what was given up."""
    pattern = f"{tmp_path}/a-%03d.tar"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with wds.ShardWriter(pattern, maxcount=1, verbose=0) as sink:
            sink.write({"__key__": "0", "txt": "x"})
            sink.write({"__key__": "1", "txt": "x"})
            write(pattern, 3, first=100)
        write(pattern, 2, first=200)
        os.utime(tmp_path / "a-200.tar", (1, 1))
        with wds.ShardWriter(pattern, maxcount=1, verbose=0) as sink:
            sink.write({"__key__": "0", "txt": "x"})
            sink.abort()
        wds.ShardWriter(pattern, verbose=0).close()


def test_refusing(tmp_path):
    """``exist="error"`` refuses before anything is written, and names what is there."""
    pattern = f"{tmp_path}/new/a-%03d.tar"
    with pytest.raises(FileNotFoundError):
        write(pattern, 1, exist="error")
    (tmp_path / "new").mkdir()
    write(pattern, 4, exist="error")
    with pytest.raises(AlreadyExists, match=r"4 shards are \(.*a-000\.tar, …, .*a-003\.tar\) there already"):
        wds.ShardWriter(pattern, exist="error")
    with pytest.raises(FileExistsError, match=r"1 shard is \(.*a-003\.tar\) there already"):
        wds.ShardWriter(pattern, start_shard=3, exist="error")
    write(pattern, 1, first=4, exist="error")
    assert len(list((tmp_path / "new").iterdir())) == 5


def test_saying_nothing(tmp_path):
    """``exist="ignore"`` mixes knowingly; another word is a mistake."""
    write(f"{tmp_path}/a-%03d.tar", 4)
    assert not said(f"{tmp_path}/a-%03d.tar", 2, exist="ignore")
    with pytest.raises(UsageError, match="is not one of 'warn', 'error', 'ignore'"):
        wds.ShardWriter(f"{tmp_path}/a-%03d.tar", exist="replace")


def test_series_of_other_kinds(tmp_path):
    """Record shards, series with indexes and documents are told of as well."""
    write(f"{tmp_path}/a-%03d.cbors", 4, RecordShardWriter)
    (message,) = said(f"{tmp_path}/a-%03d.cbors", 1, RecordShardWriter)
    assert "a-001.cbors" in message
    with pytest.raises(AlreadyExists):
        RecordShardWriter(f"{tmp_path}/a-%03d.cbors", exist="error")
    write(f"{tmp_path}/b-%03d.tar", 3, index="wids")
    (message,) = said(f"{tmp_path}/b-%03d.tar", 1, index="wids")
    assert "2 shards are" in message
    with pytest.raises(AlreadyExists):
        DocumentWriter(f"{tmp_path}/b-%03d.tar", exist="error")


def test_object_stores(tmp_path):
    """A store is listed where that was asked for, and left alone otherwise; keys of other series do not count."""
    pattern = "memory://existing/run/a-%04d.tar"
    write(pattern, 4)
    write("memory://existing/run/ab-%04d.tar", 9)
    assert not said(pattern, 2)
    (message,) = said(pattern, 2, exist="warn")
    assert "2 shards are (memory://existing/run/a-0002.tar, memory://existing/run/a-0003.tar)" in message
    with pytest.raises(AlreadyExists, match="4 shards are"):
        wds.ShardWriter(pattern, exist="error")
    write(pattern, 1, first=4, exist="error")


def test_where_nothing_can_be_listed(tmp_path):
    """Refusing would be a promise that is not kept; a warning is left out."""
    ways: list[tuple[str, dict[str, Any]]] = [
        ("https://example.com/a-%03d.tar", {}),
        (f"pipe:cat > {tmp_path}/a-%03d.tar", {}),
        (f"{tmp_path}/a-%03d.tar", {"opener": lambda name: open(name, "wb")}),
    ]
    for pattern, options in ways:
        with pytest.raises(UsageError, match="where names can be listed"):
            wds.ShardWriter(pattern, exist="error", **options)
    write(f"{tmp_path}/a-%03d.tar", 3)
    assert not said(f"{tmp_path}/a-%03d.tar", 1, opener=lambda name: open(name, "wb"))
    assert not said(f"pipe:cat > {tmp_path}/a-%03d.tar", 1)
