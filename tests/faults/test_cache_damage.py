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
        if json.loads(record.read_text())["whole"]:
            break
        time.sleep(0.02)
    assert json.loads(record.read_text())["crc32"] == zlib.crc32(CONTENT)
    (file,) = tmp_path.glob("*.tar")
    flipped(file, 2_000)
    anew()
    with pytest.warns(UserWarning, match="is damaged"):
        assert read(url, tmp_path) == CONTENT


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
