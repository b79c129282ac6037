"""Files of the cache that are damaged after they were fetched: noticed, and fetched again."""

import io
import json
import multiprocessing
import os
import time
import warnings
import zlib

import pytest

import webdataset as wds
from support.paced_server import PacedServer
from webdataset.caching import entry, metadata
from webdataset.caching.shard_cache import ShardCache
from webdataset.core.error_handlers import reraise_exception
from webdataset.core.errors import FormatError
from webdataset.core.seeds import make_rng
from webdataset.samples.shard_opener import open_shards
from webdataset.testing import archives

CONTENT = archives.by_tarfile([(f"{number}.bin", make_rng("damage", number).randbytes(50_000)) for number in range(8)])
PATH = "/x.tar"


@pytest.fixture
def server():
    """A server with one shard."""
    with PacedServer({PATH: CONTENT}) as running:
        yield running


@pytest.fixture(autouse=True)
def anew(monkeypatch):
    """Return a function after which this process is as one that has compared nothing yet."""

    def forget():
        entry._compared_copies.clear()
        metadata._checked_paths.clear()

    forget()
    return forget


def read(url, folder, **options):
    """Read a shard through the cache."""
    (shard,) = ShardCache(str(folder), **options).open_shards([{"url": url}], open_shards, reraise_exception)
    with shard["stream"] as stream:
        return stream.read()


def flipped(file, offset, *, date=True):
    """Flip a bit of a file; keep its date, as a failing disk does, or not."""
    status = file.stat()
    with file.open("r+b") as opened:
        opened.seek(offset)
        byte = opened.read(1)[0]
        opened.seek(offset)
        opened.write(bytes([byte ^ 0x10]))
    if date:
        os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))


@pytest.mark.parametrize("seed", range(30))
@pytest.mark.parametrize("date", [False, True])
def test_any_flipped_bit_is_noticed(server, tmp_path, anew, seed, date):
    """Wherever a bit flips, in headers, contents or padding: one warning that names the file, and the right bytes."""
    url = server.root + PATH
    assert read(url, tmp_path) == CONTENT
    (file,) = tmp_path.glob("*.tar")
    flipped(file, make_rng("bit", seed).randrange(len(CONTENT)), date=date)
    anew()
    with pytest.warns(UserWarning, match="is damaged") as recorded:
        assert read(url, tmp_path) == CONTENT
    assert str(file) in str(recorded[0].message)
    assert file.read_bytes() == CONTENT
    anew()
    assert read(url, tmp_path) == CONTENT  # without a word
    assert server.downloads() == 2


def test_a_date_that_changes_is_looked_into_within_a_process(server, tmp_path):
    """What was compared is compared again when its date has changed."""
    url = server.root + PATH
    read(url, tmp_path)
    assert read(url, tmp_path) == CONTENT
    (file,) = tmp_path.glob("*.tar")
    flipped(file, 70_000, date=False)
    os.utime(file, ns=(1, 1))
    with pytest.warns(UserWarning, match="is damaged"):
        assert read(url, tmp_path) == CONTENT


def test_a_touched_file_is_no_damage(server, tmp_path, anew):
    """Another date alone is nothing."""
    url = server.root + PATH
    read(url, tmp_path)
    (file,) = tmp_path.glob("*.tar")
    os.utime(file, ns=(1, 1))
    anew()
    assert read(url, tmp_path) == CONTENT
    assert server.downloads() == 1


def _read_in_child(url, folder, queue):
    with warnings.catch_warnings(record=True) as recorded:
        warnings.simplefilter("always")
        queue.put((read(url, folder) == CONTENT, [str(one.message) for one in recorded]))


def test_other_processes_notice_too(server, tmp_path):
    """A process that begins later compares by itself."""
    url = server.root + PATH
    read(url, tmp_path)
    (file,) = tmp_path.glob("*.tar")
    flipped(file, 1000)
    context = multiprocessing.get_context("spawn")
    queue = context.Queue()
    child = context.Process(target=_read_in_child, args=(url, str(tmp_path), queue))
    child.start()
    right, recorded = queue.get(timeout=60)
    child.join()
    assert right
    assert any("is damaged" in text for text in recorded)


def test_a_resumed_download_has_its_checksum(server, tmp_path, anew):
    """A shard that came in several goes is compared like others."""
    url = server.root + PATH
    (shard,) = ShardCache(str(tmp_path)).open_shards([{"url": url}], open_shards, reraise_exception)
    server.hold(PATH, 150_000)
    stream = shard["stream"]
    assert stream.read(60_000) == CONTENT[:60_000]
    stream.close()
    server.release()
    assert read(url, tmp_path) == CONTENT
    (record,) = tmp_path.glob(".wds/*.json")
    for _ in range(500):  # the last reader may be through before the file has its name
        if list(tmp_path.glob("*.tar")):
            break
        time.sleep(0.02)
    assert json.loads(record.read_text())["crc32"] == zlib.crc32(CONTENT)
    (file,) = tmp_path.glob("*.tar")
    flipped(file, 2_000)
    anew()
    with pytest.warns(UserWarning, match="is damaged"):
        assert read(url, tmp_path) == CONTENT


def leave_part(server, folder):
    """Begin to read the shard and leave, so that a part of 100,000 bytes or more stays; return it and its record."""
    url = server.root + PATH
    server.hold(PATH, 150_000)
    (shard,) = ShardCache(str(folder)).open_shards([{"url": url}], open_shards, reraise_exception)
    with shard["stream"] as stream:
        missing = 100_000
        while missing:
            missing -= len(stream.read(missing))
    server.release()
    for _ in range(500):
        if not list(folder.glob(".wds/*.lock")):
            break
        time.sleep(0.02)
    (part,), (record,) = folder.glob(".wds/*.part"), folder.glob(".wds/*.json")
    return part, record


@pytest.mark.parametrize("seed", range(20))
def test_a_damaged_part_is_not_continued(server, tmp_path, anew, seed):
    """Wherever a bit of a part flips: one warning that names it, the rest is fetched, and the copy is right."""
    part, _ = leave_part(server, tmp_path)
    at = make_rng("part", seed).randrange(part.stat().st_size)
    flipped(part, at, date=bool(seed % 2))
    with pytest.warns(UserWarning, match="is damaged after byte") as recorded:
        assert read(server.root + PATH, tmp_path) == CONTENT
    assert str(part) in str(recorded[0].message)
    assert server.asked[-1].start <= at
    anew()
    assert read(server.root + PATH, tmp_path) == CONTENT
    (file,), (record,) = tmp_path.glob("*.tar"), tmp_path.glob(".wds/*.json")
    assert file.read_bytes() == CONTENT
    assert json.loads(record.read_text())["crc32"] == zlib.crc32(CONTENT)


def test_only_what_follows_the_damage_is_fetched_again(server, tmp_path):
    """The pieces before the damaged one are kept."""
    part, record = leave_part(server, tmp_path)
    sizes = [int(line.split()[0]) for line in record.read_text().splitlines()[1:]]
    assert sizes[-1] == part.stat().st_size
    assert len(sizes) > 1
    flipped(part, sizes[-2] + 10)
    with pytest.warns(UserWarning, match=f"is damaged after byte {sizes[-2]}:"):
        assert read(server.root + PATH, tmp_path) == CONTENT
    assert server.asked[-1].start == sizes[-2]


@pytest.mark.parametrize("line", ["", "x y", "150001", "1 1", "-1 5", "999999999 "])
def test_checksums_that_are_cut_or_missing(server, tmp_path, line):
    """Bytes whose checksum was not written, as where a process was killed, are fetched again without a word."""
    part, record = leave_part(server, tmp_path)
    lines = record.read_text().splitlines(keepends=True)
    kept = int(lines[-2].split()[0])
    record.write_text("".join(lines[:-1]) + line)
    assert read(server.root + PATH, tmp_path) == CONTENT
    assert server.asked[-1].start == kept


def test_a_damaged_part_that_was_whole(server, tmp_path, anew):
    """A process that died before the renaming leaves the checksum of all bytes: it is compared, too."""
    read(server.root + PATH, tmp_path)
    (file,) = tmp_path.glob("*.tar")
    part = tmp_path / ".wds" / f"{file.name}.part"
    file.rename(part)
    flipped(part, 300_000)
    anew()
    with pytest.warns(UserWarning, match="is damaged after byte 0:"):
        assert read(server.root + PATH, tmp_path) == CONTENT
    assert file.read_bytes() == CONTENT


def test_a_record_of_an_older_version_is_believed(server, tmp_path, anew):
    """Without a checksum nothing is compared, and nothing fetched again."""
    url = server.root + PATH
    read(url, tmp_path)
    (record,) = tmp_path.glob(".wds/*.json")
    known = json.loads(record.read_text())
    del known["crc32"]
    record.write_text(json.dumps(known))
    anew()
    assert read(url, tmp_path) == CONTENT
    assert server.downloads() == 1


def test_the_error_names_the_file(server, tmp_path, anew, monkeypatch):
    """Where nothing is compared, an error of the archive or of a sample says which file was read."""
    url = server.root + PATH
    monkeypatch.setenv("WDS_CACHE_VERIFY", "0")
    read(url, tmp_path)
    (file,) = tmp_path.glob("*.tar")
    flipped(file, 10)
    anew()
    dataset = wds.WebDataset([url], shardshuffle=False, cache_dir=str(tmp_path))
    with pytest.raises(FormatError) as caught:
        list(dataset)
    assert caught.value.path == str(file)
    assert str(file) in str(caught.value)
    assert url in str(caught.value)


def test_a_file_of_the_user_is_left_alone(server, tmp_path):
    """What somebody puts under a chosen name, in place of a download, is theirs: read, and never removed."""
    url = server.root + PATH
    read(url, tmp_path, url_to_name=lambda _: "mine.tar")
    own = bytes(reversed(CONTENT))
    (tmp_path / "mine.tar").write_bytes(own)
    os.utime(tmp_path / "mine.tar", ns=(1, 1))
    assert read(url, tmp_path, url_to_name=lambda _: "mine.tar") == own
    assert io.BytesIO((tmp_path / "mine.tar").read_bytes()).read() == own
