"""LMDBCached: samples kept in a file after the first complete pass."""

import builtins
import json
import os
import pickle

import pytest

from webdataset.core.errors import FormatError, MissingExtra, SourceError, UnsafeContent, UsageError
from webdataset.stages.sample_cache import LMDBCached


class AsJson:
    """A pickler that executes nothing."""

    @staticmethod
    def dumps(value):
        """Text in UTF-8."""
        return json.dumps(value).encode()

    loads = staticmethod(json.loads)


def counted(passes, n=7):
    """A source that counts how often it is read; keys that are not in order, and not unique."""
    passes.append(1)
    for number in range(n):
        yield {"__key__": str(number * 7 % 5), "n": number}


@pytest.fixture
def lmdb():
    """The optional package."""
    return pytest.importorskip("lmdb")


def test_the_source_is_read_once_and_the_order_is_kept(lmdb, tmp_path):
    """Equal keys overwrite nothing; another process reads the same."""
    passes, expected = [], list(counted([]))
    stage = LMDBCached(tmp_path / "cache", map_size=1e7, chunksize=3)
    assert [list(stage.run(counted(passes))) for _ in range(3)] == [expected] * 3
    assert len(passes) == 1
    again = pickle.loads(pickle.dumps(stage))
    assert list(again(counted(passes))) == expected
    assert len(passes) == 1
    assert again.is_complete()


def test_a_broken_off_pass_is_written_anew(lmdb, tmp_path):
    """Half a pass is never taken for a whole one, and leaves nothing behind."""
    passes, stage = [], LMDBCached(tmp_path / "cache", map_size=1e7, chunksize=2)
    flow = stage(counted(passes, 9))
    assert [next(flow)["n"] for _ in range(5)] == [0, 1, 2, 3, 4]
    flow.close()
    assert not stage.is_complete()
    assert len(list(stage(counted(passes, 4)))) == 4
    assert len(list(stage(counted(passes)))) == 4
    assert len(passes) == 2


def test_passes_that_write_at_once_do_not_mix(lmdb, tmp_path):
    """Each pass has an order of its own; the file holds one of them whole, and no sample twice."""
    stage = LMDBCached(tmp_path / "cache", map_size=1e7, chunksize=2)
    forth, back = stage(range(8)), stage(range(7, -1, -1))
    seen = list(zip(forth, back, strict=True))
    assert seen == list(zip(range(8), range(7, -1, -1), strict=True))
    assert list(stage([])) in ([*range(8)], [*range(7, -1, -1)])
    assert [path.name for path in tmp_path.iterdir()] == ["cache"]


def test_a_file_is_read_by_several_at_once(lmdb, tmp_path):
    """An iterator that somebody still holds is not in the way of the next, nor of a forked child."""
    stage = LMDBCached(tmp_path / "cache", map_size=1e7)
    assert list(stage(range(5))) == [*range(5)]
    held = stage([])
    assert next(held) == 0
    assert list(zip(stage([]), stage([]), strict=True)) == [(n, n) for n in range(5)]
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(writer, bytes(list(stage([]))))
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as answer:
        assert list(answer.read()) == [*range(5)]
    os.waitpid(child, 0)
    assert [*held] == [1, 2, 3, 4]


def test_a_file_in_use_may_be_replaced(lmdb, tmp_path):
    """Who reads the old one reads it to its end."""
    path = tmp_path / "cache"
    assert list(LMDBCached(path, map_size=1e7)(range(5))) == [*range(5)]
    held = LMDBCached(path)([])
    assert next(held) == 0
    path.unlink()
    assert list(LMDBCached(path, map_size=1e7)("ab")) == ["a", "b"]
    assert [*held] == [1, 2, 3, 4]
    assert list(LMDBCached(path)([])) == ["a", "b"]


def test_what_is_no_lmdb_file_is_said(lmdb, tmp_path):
    """An empty file, as tempfile makes, is none yet; anything else is not overwritten."""
    path = tmp_path / "cache"
    path.write_bytes(b"x" * 9000)
    with pytest.raises(FormatError, match="delete it"):
        list(LMDBCached(path)([1]))
    assert path.read_bytes() == b"x" * 9000
    path.write_bytes(b"")
    assert list(LMDBCached(path, map_size=1e7)([1])) == [1]
    assert list(LMDBCached(path)([])) == [1]


def test_too_small_a_map_size_is_said(lmdb, tmp_path):
    """And leaves nothing behind."""
    with pytest.raises(UsageError, match="map_size=40960 bytes"):
        list(LMDBCached(tmp_path / "cache", map_size=40960)(bytes(10000) for _ in range(9)))
    assert not list(tmp_path.iterdir())


def test_upstreams_files_are_read(lmdb, tmp_path):
    """Records by key, and its mark."""
    with lmdb.open(str(tmp_path / "cache"), map_size=10**7, subdir=False) as store, store.begin(write=True) as writing:
        writing.put(b"a", pickle.dumps({"n": 1}))
        writing.put(b"b", pickle.dumps({"n": 2}))
        writing.put(b"_", b"")
    assert list(LMDBCached(tmp_path / "cache", map_size=1e7)([])) == [{"n": 1}, {"n": 2}]


def test_each_worker_has_its_own_file(lmdb, tmp_path, monkeypatch):
    """So that none replays what another has seen."""
    stage = LMDBCached(tmp_path / "cache", map_size=1e7)
    monkeypatch.setenv("NUM_WORKERS", "2")
    for worker in ("0", "1", "0", "1"):
        monkeypatch.setenv("WORKER", worker)
        assert list(stage([worker])) == [worker]
    assert sorted(path.name for path in tmp_path.glob("cache*") if "lock" not in path.name) == [
        "cache.0of1-0of2",
        "cache.0of1-1of2",
    ]


def test_strict_trust_refuses_pickles(lmdb, tmp_path, monkeypatch):
    """Another pickler is allowed."""
    monkeypatch.setenv("WDS_SECURE", "1")
    with pytest.raises(UnsafeContent, match="strict"):
        list(LMDBCached(tmp_path / "cache")([1]))
    assert list(LMDBCached(tmp_path / "cache", map_size=1e7, pickler=AsJson)([1, 2])) == [1, 2]


def test_without_lmdb_the_error_says_how_to_get_it(tmp_path, monkeypatch):
    """At the first use, not at import."""
    real = builtins.__import__

    def without(name, *rest, **kw):
        if name == "lmdb":
            raise ImportError(name)
        return real(name, *rest, **kw)

    monkeypatch.setattr("importlib.import_module", without)
    with pytest.raises(MissingExtra, match=r"\[lmdb\]"):
        list(LMDBCached(tmp_path / "cache")([1]))


def test_a_file_that_was_cut_is_said(lmdb, tmp_path):
    """As an interrupted copy leaves it: the system would end the process that looks for the rest."""
    path = tmp_path / "cache"
    samples = [bytes([number]) * 9000 for number in range(60)]
    assert list(LMDBCached(path, map_size=1e8, chunksize=7)(samples)) == samples
    assert list(LMDBCached(path)([])) == samples
    whole = path.read_bytes()
    for length in (len(whole) - 1, len(whole) - 20_000, len(whole) // 3):
        path.write_bytes(whole[:length])
        with pytest.raises(FormatError, match=f"has {length} of {len(whole)} bytes"):
            list(LMDBCached(path)([]))
    path.write_bytes(whole)
    assert list(LMDBCached(path)([])) == samples


def test_a_file_that_is_damaged_is_said(lmdb, tmp_path):
    """Pages that are others' are an error of this library, and no other samples."""
    path = tmp_path / "cache"
    samples = [b"%d" % number * 300 for number in range(200)]
    assert list(LMDBCached(path, map_size=1e8)(samples)) == samples
    whole = path.read_bytes()
    path.write_bytes(whole[:8192] + bytes(len(whole) - 8192))
    with pytest.raises(FormatError, match="delete it"):
        list(LMDBCached(path)([]))


def test_a_file_that_cannot_be_written_is_said(lmdb, tmp_path):
    """A disk without room, or here a bound on files: what to see to, and nothing stays."""
    resource = pytest.importorskip("resource")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, before[1]))
    try:
        with pytest.raises(SourceError, match="cannot be cached"):
            list(LMDBCached(tmp_path / "cache", chunksize=5)(bytes(10_000) for _ in range(90)))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert not list(tmp_path.iterdir())
