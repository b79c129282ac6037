"""Corners of the shard cache: failed refreshes, damaged bytes, reused inodes, hostile names and files."""

import io
import json
import os
import sys
import threading
import time
import types
import warnings
import zlib
from pathlib import Path

import pytest

import webdataset as wds
from support.paced_server import PacedServer
from webdataset.caching import eviction, locks, metadata, names, shard_cache
from webdataset.caching.metadata import read_metadata
from webdataset.caching.names import EntryPaths
from webdataset.caching.shard_cache import ShardCache
from webdataset.core.error_handlers import reraise_exception
from webdataset.core.errors import ShardChanged, ShortRead, UsageError
from webdataset.samples.shard_opener import open_shards
from webdataset.storage.object_store import Checksums, ObjectResponse, ObjectVersion
from webdataset.storage.open_url import make_opener
from webdataset.testing import archives


def shard(letter="a", count=8):
    """Return a shard of samples of 60 kB."""
    return archives.by_tarfile([(f"{letter}{index}.bin", os.urandom(60_000)) for index in range(count)])


@pytest.fixture
def server():
    """A server with one shard."""
    with PacedServer({"/x.tar": shard()}) as running:
        yield running


def opened(url, near, source=open_shards, **options):
    """Open a shard through the cache; return its stream."""
    (one,) = ShardCache(str(near), **options).open_shards([{"url": url}], source, reraise_exception)
    return one["stream"]


def read(url, near, **options):
    """Read a shard through the cache."""
    with opened(url, near, **options) as stream:
        return stream.read()


def until(condition):
    """Wait until something is the case."""
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def anew():
    """Let this process ask its stores again, as a later one would."""
    metadata._checked_paths.clear()
    metadata._silent_hosts.clear()


def test_a_refresh_that_fails_is_not_the_last(server, near):
    """A copy that is known to be of another version is never read again, though its replacement did not come."""
    url = f"{server.root}/x.tar"
    read(url, near)
    server.pages["/x.tar"] = shard("b")
    server.hold("/x.tar", 100_000)
    anew()
    opened(url, near).close()  # asks, begins the new version, and goes
    until(lambda: not list(near.glob(".wds/*.lock")))
    server.release()
    for _ in range(2):
        anew()
        assert read(url, near) == server.pages["/x.tar"]
    assert len(list(near.glob("*.tar"))) == 1


class Vouching:
    """An object of a store that names a checksum."""

    def __init__(self, url, body):
        self.url, self.body, self.asked = url, body, []
        self.held = threading.Event()
        self.held.set()

    def open_at(self, offset, known, size=None):
        """Answer."""
        self.asked.append(offset)
        end = len(self.body) if size is None else offset + size
        body = io.BytesIO(self.body[offset:end])
        read = body.read

        def patient(size=-1):
            self.held.wait()
            return read(size)

        body = types.SimpleNamespace(read=patient, close=body.close)
        identity = ObjectVersion(etag='"1"', length=len(self.body))
        return ObjectResponse(body, offset, identity, checksums=Checksums(zlib.crc32(self.body)))

    def refresh(self):
        """There is nothing to refresh."""

    def failures(self):
        """Nothing fails."""
        return (ConnectionError,)


@pytest.fixture
def vouching(monkeypatch):
    """A store of one object with a checksum."""
    source = Vouching("vouching://bucket/x.tar", shard())
    monkeypatch.setitem(
        sys.modules,
        "webdataset.storage.backends.vouching",
        types.SimpleNamespace(__name__="vouching", remote_object=lambda url, options: source),
    )
    monkeypatch.setitem(wds.gopen.gopen_schemes, "vouching", make_opener("vouching"))
    return source


def left_part(vouching, near, size, *, damaged=False, **changes):
    """Leave a part of so many bytes, as a killed process would; return its path. ``damaged``: some came wrong."""
    read(vouching.url, near)
    (final,) = near.glob("*.tar")
    (record,) = near.glob(".wds/*.json")
    with final.open("rb+") as file:
        file.truncate(size)
        if damaged:
            file.seek(1000)
            file.write(b"damage")
    known = {"part_bytes": size, "part_crc32": zlib.crc32(final.read_bytes())}
    record.write_text(json.dumps({**json.loads(record.read_text()), "whole": False, **known, **changes}))
    part = near / ".wds" / f"{final.name}.part"
    os.rename(final, part)
    vouching.asked.clear()
    return part


@pytest.mark.parametrize("damaged", [True, False])
def test_who_reads_along_is_told_of_damage(vouching, near, damaged):
    """A reader that has all bytes of a part which is then refused for its checksum gets an error, not an end."""
    left_part(vouching, near, len(vouching.body) - 1000, damaged=damaged, resumed=True)
    vouching.held.clear()
    leading_one = opened(vouching.url, near)
    along = opened(vouching.url, near)
    vouching.held.set()
    if damaged:
        with pytest.raises(ShortRead, match="checksum"):
            leading_one.read()
        with pytest.raises(ShortRead, match="checksum"):
            along.read()
    else:
        assert leading_one.read() == along.read() == vouching.body
    leading_one.close()
    along.close()


def test_a_file_that_goes_after_its_last_byte(vouching, near):
    """Somebody deletes the finished shard before its reader has noticed the end: the bytes are compared, and right."""
    part = left_part(vouching, near, len(vouching.body) - 1000)
    vouching.held.clear()
    first, along = opened(vouching.url, near), opened(vouching.url, near)
    vouching.held.set()
    assert first.read() == vouching.body
    first.close()
    (final,) = near.glob("*.tar")
    os.unlink(final)
    assert not part.exists()
    assert along.read() == vouching.body
    along.close()


def test_who_takes_over_knows_what_happened_meanwhile(vouching, near):
    """A part that others went on with in between is compared with the checksum by whoever finishes it."""
    part = left_part(vouching, near, 100_000)
    place = EntryPaths(str(near), part.name.removesuffix(".part"))
    lock = locks.try_lock(place.lock)
    along = opened(vouching.url, near)  # reads along with whoever has the lock
    assert along.read(10) == vouching.body[:10]
    with part.open("ab") as file:  # another goes on, to the end, with damaged bytes, and dies
        file.write(b"x" * 50_000 + vouching.body[150_000:])
    record = near / ".wds" / f"{place.name}.json"
    pieces = [part.read_bytes()[:end] for end in (150_000, len(vouching.body))]
    lines = [f"{len(piece)} {zlib.crc32(piece)}" for piece in pieces]
    record.write_text("\n".join([json.dumps({**json.loads(record.read_text()), "resumed": True}), *lines, ""]))
    lock.release()
    with pytest.raises(ShortRead, match="checksum"):
        along.read()
    along.close()
    assert list(near.glob("*.tar")) == []


def test_a_part_of_another_is_not_published(server, near):
    """Where locks do not hold (a mount with local locks only), nobody gives his name to another's part."""
    url = f"{server.root}/x.tar"
    server.hold("/x.tar", 100_000)
    stream = opened(url, near)
    (part,) = near.glob(".wds/*.part")
    part.unlink()
    part.write_bytes(b"of another host, half done")
    server.release()
    with pytest.warns(UserWarning, match="another"):
        assert stream.read() == server.pages["/x.tar"]
    stream.close()
    assert list(near.glob("*.tar")) == []


@pytest.mark.parametrize("whole", [True, False])
def test_no_record_of_before_beside_a_new_part(server, near, whole, monkeypatch):
    """While a part has no record yet, there is none of a file that may have had its inode; nobody reads along by it."""
    url = f"{server.root}/x.tar"
    read(url, near)
    (final,) = near.glob("*.tar")
    (record,) = near.glob(".wds/*.json")
    record.write_text(json.dumps({**json.loads(record.read_text()), "whole": whole}))
    final.unlink()
    seen, reserve = [], eviction.Quota.reserve

    def watched(self, place, fresh, wanted_bytes):
        seen.append((os.path.exists(place.part), os.path.exists(place.record)))
        return reserve(self, place, fresh, wanted_bytes)

    monkeypatch.setattr(eviction.Quota, "reserve", watched)
    assert read(url, near) == server.pages["/x.tar"]
    assert seen == [(True, False)]


def test_a_record_of_a_whole_file_is_not_about_a_part(server, near):
    """An inode that comes again does not make the record of a deleted shard one of the part that has it now."""
    read(f"{server.root}/x.tar", near)
    (final,) = near.glob("*.tar")
    record = read_metadata(EntryPaths(str(near), final.name).record)
    assert record.grows(final.stat())  # killed before the renaming
    with final.open("ab") as file:
        file.write(b"x")
    assert not record.grows(final.stat())


def test_a_fifo_hangs_nobody(server, near):
    """A pipe in the place of a shard is no shard, and is not waited for."""
    os.mkfifo(near / "x.tar")
    assert read(f"{server.root}/x.tar", near) == server.pages["/x.tar"]


def test_a_copy_that_lost_its_end(server, near):
    """A download that is not as long as its record says is fetched again, whoever damaged it."""
    url = f"{server.root}/x.tar"
    read(url, near)
    (final,) = near.glob("*.tar")
    os.truncate(final, 1000)
    assert read(url, near) == server.pages["/x.tar"]
    os.truncate(final, 0)
    assert read(url, near, revalidate="never") == server.pages["/x.tar"]
    assert final.read_bytes() == server.pages["/x.tar"]


def test_names_that_reach_into_the_cache(server, near):
    """A url does not name another shard's download, nor anything in the hidden folder; nor does ``url_to_name``."""
    server.pages["/secret/x.tar"] = shard("s")
    read(f"{server.root}/secret/x.tar", near)
    (final,) = near.glob("*.tar")
    for path in (f"/{final.name}", f"/.wds/{final.name}"):
        server.pages[path] = shard("o")
        (near / ".wds" / final.name).write_bytes(final.read_bytes())
        assert read(f"{server.root}{path}", near) == server.pages[path]
        (near / ".wds" / final.name).unlink()
    for name in (".wds/x.tar", "a/.wds/x.tar", ".WDS/x.tar", "x/.wds"):
        with pytest.raises(UsageError, match="no name"):
            names.custom_names("http://h/x.tar", lambda _, name=name: name)  # type: ignore[misc]


def test_a_lock_on_a_stale_handle(tmp_path, monkeypatch):
    """On NFS a lock file that its holder has just deleted is stale: it is tried again, on the new one."""
    failing = [116, 116]
    flock = locks.fcntl.flock

    def stale(descriptor, how):
        if how & locks.fcntl.LOCK_EX and failing:
            raise OSError(failing.pop(), "Stale file handle")
        return flock(descriptor, how)

    monkeypatch.setattr(locks, "fcntl", types.SimpleNamespace(**{**vars(locks.fcntl), "flock": stale}))
    lock = locks.try_lock(str(tmp_path / "x.lock"))
    assert lock is not None
    assert failing == []
    lock.release()


def test_a_lock_that_is_dropped_is_free(tmp_path):
    """An interrupt in an unlucky place loses a lock, but does not keep it."""
    path = str(tmp_path / "x.lock")
    lock = locks.try_lock(path)
    assert locks.try_lock(path) is None
    del lock
    second = locks.try_lock(path)
    assert second is not None
    second.release()


def test_warnings_come_once(server, near):
    """One chosen name for many shards, and one placed file for many urls, are each said once."""
    for number in range(4):
        server.pages[f"/{number}/y.tar"] = server.pages[f"/{number}/z.tar"] = shard(count=1)
    (near / "y.tar").write_bytes(shard("placed", 1))
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        for _ in range(2):
            for number in range(4):
                read(f"{server.root}/{number}/y.tar", near)
                read(f"{server.root}/{number}/z.tar", near, url_to_name=lambda _: "one.tar")
    assert len(found) == 2, [str(one.message) for one in found]


def test_a_directory_that_failed_is_tried_again(server, near):
    """A disk that was full for a minute is used again some minutes later: a run goes on for weeks. One warning."""
    url = f"{server.root}/x.tar"
    in_the_way = near / ".wds"
    in_the_way.write_bytes(b"")
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        read(url, near)
        shard_cache._failed_folders[str(near)] -= 600
        read(url, near)
        in_the_way.unlink()
        read(url, near)
        assert not list(near.glob("*.tar"))
        shard_cache._failed_folders[str(near)] -= 600
        assert read(url, near) == server.pages["/x.tar"]
    (warning,) = warned
    assert "tried again every ten minutes" in str(warning.message)
    assert len(list(near.glob("*.tar"))) == 1


def test_an_endless_bound(near):
    """``float("inf")`` is a bound that nothing exceeds."""
    with PacedServer({"/x.tar": shard()}, lengths=False) as server:
        assert read(f"{server.root}/x.tar", near, size_bytes=float("inf")) == server.pages["/x.tar"]
    assert len(list(near.glob("*.tar"))) == 1


@pytest.mark.parametrize(
    "damage",
    ['{"name": 1}', "[]", '"x"', "{", "null", {"length": "many"}, {"inode": "x"}, {"etag": 3}, {"whole": "yes"}],
)
def test_damaged_records(server, near, damage):
    """A record that does not hold what it should is none, and harms nobody."""
    url = f"{server.root}/x.tar"
    read(url, near)
    (record,) = near.glob(".wds/*.json")
    whole = json.loads(record.read_text())
    record.write_text(damage if isinstance(damage, str) else json.dumps({**whole, **damage}))
    assert read_metadata(str(record)) is None
    anew()
    assert read(url, near) == server.pages["/x.tar"]


def test_use_is_noted_on_the_file_itself(server, near, monkeypatch):
    """A shard that is replaced at the moment when its use is noted keeps its own date."""
    url = f"{server.root}/x.tar"
    read(url, near)
    (final,) = near.glob("*.tar")
    replacement = final.with_suffix(".new")
    replacement.write_bytes(b"newer")
    os.utime(replacement, (1e9, 1e9))
    utime = os.utime

    def late(path, *arguments, **options):
        os.replace(replacement, final)
        return utime(path, *arguments, **options)

    monkeypatch.setattr(os, "utime", late)
    opened(url, near).close()
    assert final.stat().st_mtime == 1e9


@pytest.mark.parametrize("lengths", [True, False])
def test_shards_that_are_no_archives(near, lengths):
    """Shards of msgpack items are kept where their length is told, and read in any case."""
    msgpack = pytest.importorskip("msgpack")
    body = b"".join(msgpack.packb({"__key__": str(number), "x": number}) for number in range(1000))
    stage = wds.msgpacks_to_samples(cache=ShardCache(str(near)))
    with PacedServer({"/x.mp": body}, lengths=lengths) as server:
        for _ in range(2):
            assert [sample["x"] for sample in stage([{"url": f"{server.root}/x.mp"}])] == list(range(1000))
        assert server.downloads() == (1 if lengths else 2)
    assert [path.read_bytes() for path in near.glob("*url-*")] == ([body] if lengths else [])


def test_shards_that_are_no_archives_at_two_services():
    """The options with which a stage of items opens its shards tell one service's from another's."""
    pytest.importorskip("msgpack")
    served = []

    def opened(shards, *_, storage_options=None, prefetch=None, **others):
        served.append((storage_options.as_mapping(), prefetch, others["archives"]))
        return iter(())

    cache = types.SimpleNamespace(open_shards=opened)
    stage = wds.msgpacks_to_samples(cache=cache, storage_options={"profile": "there"}, prefetch=7)
    assert list(stage([{"url": "s3://b/x.mp"}])) == []
    assert served == [({"profile": "there"}, 7, False)]


def test_standard_input_is_not_kept(near):
    """Not even by a cache that keeps local files, too: it can be read once."""
    shards = [{"url": "-"}]
    cache = ShardCache(str(near), always=True)
    given = [{"url": "-", "stream": io.BytesIO(b"content")}]
    assert list(cache.open_shards(shards, lambda shards, handler: iter(given), reraise_exception)) == given
    assert list(near.iterdir()) == []


@pytest.fixture
def followed(vouching, near):
    """A reader of a part that another process writes, whose lock is held here: reader, its paths, the lock."""
    part = left_part(vouching, near, 100_000)
    place = EntryPaths(str(near), part.name.removesuffix(".part"))
    lock = locks.try_lock(place.lock)
    along = opened(vouching.url, near)
    assert along.read(100_000) == vouching.body[:100_000]
    yield along, place, lock
    lock.release()
    along.close()


def test_who_follows_waits_for_the_writer(followed, vouching, monkeypatch):
    """However long the other process takes for the next bytes: nothing to read yet is no end."""
    along, place, _ = followed
    naps = []

    def nap(_seconds):
        naps.append(len(naps))
        if len(naps) == 3:
            with open(place.part, "ab") as file:
                file.write(vouching.body[100_000:])
            os.rename(place.part, place.final)

    monkeypatch.setattr("webdataset.caching.reader.time.sleep", nap)
    rest = along.read()
    monkeypatch.undo()
    assert rest == vouching.body[100_000:]
    assert len(naps) >= 3


def test_a_part_of_another_shard_is_not_read(followed):
    """Nor is one whose record says nothing that fits; what fits is read."""
    along, place, _ = followed
    near = along._entry._open_partial()
    near.close()
    record = Path(place.record)
    good = json.loads(record.read_text())
    for change in ({"shard": "0" * 32}, {"inode": good["inode"] + 1}):
        record.write_text(json.dumps({**good, **change}))
        assert along._entry._open_partial() is None


@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="nobody says which descriptors are open")
def test_a_takeover_that_fails_leaves_nothing_open(followed, monkeypatch):
    """Neither a descriptor nor the lock, whether the object is another one or Ctrl-C came."""
    along, place, lock = followed
    monkeypatch.setattr(metadata, "open_rest", lambda *_: None)
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(ShardChanged):
        along._entry.take_over(lock, along._record)
    assert len(os.listdir("/proc/self/fd")) == before

    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(along._entry, "take_over", interrupted)
    with pytest.raises(KeyboardInterrupt):
        along._take_over(lock)
    again = locks.try_lock(place.lock)
    assert again is not None
    monkeypatch.setattr(along._entry, "open_whole", interrupted)
    with pytest.raises(KeyboardInterrupt):
        along._entry._download(again)
    again = locks.try_lock(place.lock)
    assert again is not None
    again.release()


def test_a_part_that_cannot_be_opened_for_reading(server, near, monkeypatch):
    """No descriptor is left, say: the shard comes from its source, and no half of it stays."""
    before, refused = os.open, []

    def without(path, flags, *more, **options):
        if str(path).endswith(".part") and not flags & (os.O_WRONLY | os.O_RDWR) and server.asked:
            refused.append(path)
            raise OSError(24, "Too many open files")
        return before(path, flags, *more, **options)

    monkeypatch.setattr(os, "open", without)
    with pytest.warns(UserWarning, match="Too many open files"):
        assert read(f"{server.root}/x.tar", near) == server.pages["/x.tar"]
    assert refused
    assert not list(near.glob("*.tar"))
    assert not list(near.glob(".wds/*.part"))


def test_what_a_validator_refuses_is_not_kept(server, near):
    """Not as a part either, though its download could be continued."""
    for _ in range(2):
        with pytest.raises(ValueError, match="refuses"):
            read(f"{server.root}/x.tar", near, validator=lambda path: False)
        assert not list(near.glob("*.tar"))
        assert not list(near.glob(".wds/*.part"))
    assert read(f"{server.root}/x.tar", near, validator=lambda path: True) == server.pages["/x.tar"]
