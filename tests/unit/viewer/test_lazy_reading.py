"""How much of a shard is read: a page costs a page, wherever it lies and however large the shard is."""

import array
import gzip
import io
import json
import random
import threading
import time
import tracemalloc

import pytest

import webdataset as wds
from support.range_server import RangeServer
from support.view_command import RunningViewer
from webdataset.core.errors import ShardChanged
from webdataset.index.entries import FieldEntry
from webdataset.samples.sample_reader import Reading
from webdataset.testing.archives import END, header, member
from webdataset.viewer.shard_bytes import BLOCK_BYTES, BlockCache, RemoteSource, StreamSource
from webdataset.viewer.shard_pages import ShardView

PHOTO_BYTES = 80_000
TEN_GIGABYTES = 10 * 10**9


def make_photo(seed):
    """Return a PNG of about 80 kB that any decoder takes."""
    image = pytest.importorskip("PIL.Image")
    noise = bytes((seed * 7919 + n * n * 31 + (n >> 3)) & 255 for n in range(160 * 160 * 3))
    content = io.BytesIO()
    image.frombytes("RGB", (160, 160), noise).save(content, "PNG", compress_level=0)
    return content.getvalue()


def write_sparse_shard(path, samples=60):
    """Write the first samples of a shard of ten gigabytes, and its last, with a hole of one member between them."""
    with path.open("wb") as file:
        for number in range(samples):
            key = b"%06d" % number
            file.write(member(key + b".png", make_photo(number)))
            file.write(member(key + b".json", json.dumps({"number": number}).encode()))
            file.write(member(key + b".txt", b"a caption"))
        place = file.tell() + 512
        hole = (TEN_GIGABYTES - place) // 512 * 512
        file.write(header(b"hole.bin", hole))
        file.seek(hole, 1)
        file.write(member(b"last.txt", b"the end") + END)


def test_the_first_page_of_ten_gigabytes(tmp_path):
    """50 samples of 80 kB of a remote shard of 10 GB, with their thumbnails, take 64 requests and 16 MiB at most."""
    write_sparse_shard(tmp_path / "big.tar")
    with RangeServer(tmp_path) as server, RunningViewer(f"{server.root}/big.tar") as viewer:
        page = viewer.ask("/api/samples", count=50).value
        assert [sample["key"] for sample in page["samples"]] == [f"{number:06d}" for number in range(50)]
        assert page["samples"][7]["fields"][0]["media"] == {"width": 160, "height": 160}
        assert page["samples"][7]["size_bytes"] > 70_000
        assert not page["end"]
        for sample in page["samples"]:
            thumbnail = viewer.ask("/api/thumbnail", ordinal=sample["ordinal"], field="png", size=200)
            assert thumbnail.status == 200, thumbnail
        assert len(server.requests) <= 64
        assert server.sent_bytes <= 16 << 20
        said = viewer.ask("/api/samples", count=1).value["read"]
        assert said["bytes"] == sum(each.size for each in server.requests if each.path == "/big.tar")


def test_the_outline_of_an_hour_of_remote_sound(tmp_path):
    """Of 635 MB of stereo, 16 MiB at most are read, and the answer says how much it shows."""
    frames = 44_100 * 3600
    sound = b"RIFF" + (36 + 4 * frames).to_bytes(4, "little") + b"WAVEfmt \x10\0\0\0\1\0\2\0"
    sound += (44_100).to_bytes(4, "little") + (176_400).to_bytes(4, "little") + b"\4\0\x10\0data"
    sound += (4 * frames).to_bytes(4, "little")
    with (tmp_path / "long.tar").open("wb") as file:
        file.write(header(b"long.wav", len(sound) + 4 * frames) + sound)
        file.seek(2 * frames, 1)
        file.write(b"\xff\x3f\0\xc0" * (176_400 // 4))
        file.seek(2 * frames - 176_400 + -(len(sound) + 4 * frames) % 512, 1)
        file.write(END)
    with RangeServer(tmp_path) as server, RunningViewer(f"{server.root}/long.tar") as viewer:
        assert viewer.ask("/api/samples", count=50).status == 200
        found = viewer.ask("/api/waveform", ordinal=0, field="wav", columns=480).value
        assert server.sent_bytes <= 16 << 20
    assert (found["sampled"], found["duration_seconds"], found["channels"]) == (True, 3600, 2)
    assert found["shown_seconds"] == pytest.approx(96 * 4096 / 44_100)
    loud = [column for column, (low, high) in enumerate(found["peaks"]) if high > 0.4 and low < -0.4]
    assert loud == [48]


def test_a_batch_of_indexed_remote_shards(tmp_path):
    """With indexes, a batch costs them and itself; the next one costs itself; one seen before costs nothing."""
    urls = [str(tmp_path / f"s-{number}.tar") for number in range(6)]
    for number, url in enumerate(urls):
        with wds.TarWriter(url) as sink:
            for sample in range(100):
                sink.write({"__key__": f"{number}-{sample:03}", "bin": bytes(40_000)})
    wds.write_indexes(urls, formats=("files",))
    whole = 6 * 100 * 40_000
    with (
        RangeServer(tmp_path) as server,
        RunningViewer(f"{server.root}/s-{{0..5}}.tar", "--seed", "1", "--batch-size", "16") as viewer,
    ):
        costs = []
        for step in (3, 4, 3):
            before = server.sent_bytes
            batch = viewer.ask("/api/batch", step=step, workers=2, worker=1)
            assert (batch.status, len(batch.value["samples"])) == (200, 16)
            costs.append(server.sent_bytes - before)
    assert costs[0] < whole / 10
    assert costs[1] < whole / 20
    assert costs[2] == 0


def test_large_payloads_are_stepped_over(tmp_path):
    """Headers on both sides of a member of ten gigabytes are found in a few requests."""
    write_sparse_shard(tmp_path / "big.tar", samples=2)
    with RangeServer(tmp_path) as server:
        shard = ShardView(0, f"{server.root}/big.tar", Reading(), BlockCache())
        page = shard.page(0, 100)
        assert [entry.key for entry in page.entries] == ["000000", "000001", "hole", "last"]
        assert page.end
        assert page.problem is None
        assert shard.read_field(page.entries[3].fields[0]) == b"the end"
        assert shard.read_field(page.entries[2].fields[0], 5 * 10**9, 5 * 10**9 + 10) == bytes(10)
        assert len(server.requests) <= 16
        assert server.sent_bytes <= 4 << 20


@pytest.fixture(scope="module")
def million(tmp_path_factory):
    """A shard of a million samples with an index beside it; most of the file is a hole."""
    folder = tmp_path_factory.mktemp("million")
    payload, size = b"x" * 40, 1024
    block = header(b"0000000.txt", len(payload))
    # as Megatron-Energon writes it: where each sample starts, and the end
    (folder / "m.tar.idx").write_bytes(array.array("Q", range(0, size * 1_000_001, size)).tobytes())
    with (folder / "m.tar").open("wb") as file:
        file.truncate(size * 1_000_000 + 1024)
        for number in (0, 1, 2, *range(500_000, 500_050), *range(999_990, 1_000_000)):
            name = b"%07d" % number
            total = sum(block) - sum(b"0000000") + sum(name) - sum(block[148:156]) + 8 * 32
            file.seek(number * size)
            file.write(name + block[7:148] + b"%06o\0 " % total + block[156:] + payload)
    return folder


def test_a_page_anywhere_in_a_million(million):
    """With an index any page of a million samples costs a few requests, and fields are proved by their headers."""
    with RangeServer(million) as server, RunningViewer(f"{server.root}/m.tar") as viewer:
        far = viewer.ask("/api/samples", start=999_999, count=3).value
        assert (far["total"], far["end"]) == (1_000_000, True)
        first = viewer.ask("/api/samples", count=3).value
        assert [sample["key"] for sample in first["samples"]] == ["0000000", "0000001", "0000002"]
        asked, sent = len(server.requests), server.sent_bytes
        middle = viewer.ask("/api/samples", start=500_000, count=50).value
        assert [sample["key"] for sample in middle["samples"]] == [f"{n:07d}" for n in range(500_000, 500_050)]
        assert len(server.requests) - asked <= 4
        assert server.sent_bytes - sent <= 1 << 20
        end = viewer.ask("/api/samples", start=999_990, count=50).value
        assert (len(end["samples"]), end["end"]) == (10, True)
        assert viewer.ask("/api/payload", ordinal=999_999, field="txt").body == b"x" * 40
        # what the index says of the hole is not proved
        wrong = viewer.ask("/api/payload", ordinal=300_000, field="txt")
        assert wrong.status == 422


class SlowRanges:
    """Ranges of an object that take a moment each, so that threads meet."""

    def __init__(self, content):
        self.url, self.length, self.latency_bytes, self.requests, self.received = "x", len(content), 0, 0, 0
        self.content = content

    def read_at(self, offset, size):
        """Return the bytes."""
        self.requests += 1
        time.sleep(0.0005)
        return self.content[offset : offset + size]


def test_a_request_that_continues_takes_a_block_more():
    """Bytes that are read one block after another cost half a request a block; jumps cost no byte more."""
    content = random.Random(0).randbytes(20 * BLOCK_BYTES + 5)
    ranges = SlowRanges(content)
    source = RemoteSource(ranges, BlockCache())  # type: ignore[arg-type]
    assert b"".join(source.read_at(at, 1000) for at in range(0, len(content), 1000)) == content
    assert ranges.requests == 11
    ranges = SlowRanges(content)
    source = RemoteSource(ranges, BlockCache())  # type: ignore[arg-type]
    assert [source.read_at(at * BLOCK_BYTES, 5) for at in (0, 2, 4)] == [
        content[at * BLOCK_BYTES :][:5] for at in (0, 2, 4)
    ]
    assert ranges.requests == 3


@pytest.mark.parametrize("seed", range(3))
def test_threads_that_read_the_same_blocks(seed):
    """Whoever reads a block, and whichever other threads are reading: the bytes are those of the object."""
    content = random.Random(seed).randbytes(12 * BLOCK_BYTES + 77)
    source = RemoteSource(SlowRanges(content), BlockCache(5 * BLOCK_BYTES))  # type: ignore[arg-type]
    wrong = []

    def read(number):
        rng = random.Random(f"{seed} {number}")
        for _ in range(150):
            at, size = rng.randrange(len(content)), rng.choice([1, 1000, BLOCK_BYTES, 3 * BLOCK_BYTES])
            try:
                found = source.read_at(at, size)
            except KeyError as error:
                found = repr(error).encode()
            if found != content[at : at + size]:
                wrong.append((at, size, found[:30]))

    threads = [threading.Thread(target=read, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_blocks_are_bounded_and_requests_joined(tmp_path):
    """The cache never holds more bytes than it may; blocks that stand together are one request; hits send none."""
    (tmp_path / "x.bin").write_bytes(bytes(40 * BLOCK_BYTES))
    cache = BlockCache(8 * BLOCK_BYTES)
    with RangeServer(tmp_path) as server:
        (tmp_path / "x.tar").write_bytes(member(b"a.bin", bytes(40 * BLOCK_BYTES)) + END)
        shard = ShardView(0, f"{server.root}/x.tar", Reading(), cache)
        field = shard.entry(0).fields[0]
        before = len(server.requests)
        shard.read_field(field, 10 * BLOCK_BYTES, 14 * BLOCK_BYTES)
        assert len(server.requests) == before + 1
        shard.read_field(field, 11 * BLOCK_BYTES, 13 * BLOCK_BYTES)
        assert len(server.requests) == before + 1
        assert len(shard.read_field(field)) == 40 * BLOCK_BYTES
        assert cache.size_bytes <= 8 * BLOCK_BYTES
        shard.close()
        assert cache.size_bytes == 0


def test_threads_that_miss_one_block_send_one_request(tmp_path):
    """Twenty threads that want the same bytes at once send one request, and all get them."""
    (tmp_path / "x.tar").write_bytes(member(b"a.bin", bytes(range(256)) * 4096) + END)
    with RangeServer(tmp_path) as server:
        shard = ShardView(0, f"{server.root}/x.tar", Reading(), BlockCache())
        field = shard.entry(0).fields[0]
        before = len(server.requests)
        server.held.add("/x.tar")
        found = []
        threads = [
            threading.Thread(target=lambda: found.append(shard.read_field(field, 500_000, 500_100))) for _ in range(20)
        ]
        for thread in threads:
            thread.start()
        assert server.waiting.wait(30)
        server.release()
        for thread in threads:
            thread.join()
        assert set(found) == {(bytes(range(256)) * 4096)[500_000:500_100]}
        assert len(found) == 20
        assert len(server.requests) == before + 1


def test_paging_through_a_shard_takes_bounded_memory(tmp_path):
    """Walking all of a remote shard of 100 MB with its payloads keeps no more than the cache and a page."""
    with (tmp_path / "x.tar").open("wb") as file:
        for number in range(400):
            file.write(member(b"%04d.bin" % number, b"%04d" % number * 65_536))
        file.write(END)
    with RangeServer(tmp_path) as server:
        shard = ShardView(0, f"{server.root}/x.tar", Reading(), BlockCache(4 << 20))
        tracemalloc.start()
        try:
            seen = 0
            for ordinal, entry in shard.samples():
                assert shard.payloads(entry)["bin"][:4] == b"%04d" % ordinal
                seen += 1
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
    assert seen == 400
    assert peak < 24 << 20


@pytest.mark.parametrize("spool", [1, 5_000_001, 1 << 30])
def test_a_stream_gives_any_bytes(tmp_path, spool):
    """Any range of a compressed shard is right, forwards and backwards, however little of it is kept."""
    plain = random.Random(3).randbytes(12_000_000)
    (tmp_path / "x.gz").write_bytes(gzip.compress(plain, 1))
    source = StreamSource(str(tmp_path / "x.gz"), Reading(), spool)
    chosen = random.Random(4)
    for _ in range(30):
        offset, size = chosen.randrange(12_100_000), chosen.randrange(1, 1_000_000)
        found = source.read_at(offset, size)
        wanted = plain[offset : offset + size]
        assert found == wanted[: len(found)]
        assert len(found) == len(wanted) or len(found) == 2 << 20
    assert source.read_at(12_000_000, 10) == b""
    assert source.length == 12_000_000
    source.close()


def test_a_replaced_shard_is_opened_anew(tmp_path):
    """A file that is written again while it is looked at is an error once, and then what it is now."""
    path = tmp_path / "x.tar"
    path.write_bytes(member(b"a.txt", b"before") + END)
    shard = ShardView(0, str(path), Reading(), BlockCache())
    assert shard.entry(0).key == "a"
    path.write_bytes(member(b"b.txt", b"after, and longer") + member(b"c.txt") + END)
    with pytest.raises(ShardChanged):
        shard.read_field(FieldEntry("txt", "a.txt", 512, 6))
    assert [entry.key for entry in shard.page(0, 9).entries] == ["b", "c"]


def test_an_index_that_contradicts_is_told_and_not_used(tmp_path):
    """A stale index beside a shard is a problem that is shown; the samples come from the headers."""
    path = tmp_path / "x.tar"
    with wds.TarWriter(str(path)) as sink:
        for number in range(4):
            sink.write({"__key__": f"{number}", "txt": "words"})
    wds.write_indexes(str(path), "dali")
    index = next(tmp_path.glob("*.idx"))
    index.write_text(index.read_text().replace(" 5 ", " 6 "))
    shard = ShardView(0, str(path), Reading(), BlockCache())
    shard.await_index()
    page = shard.page(0, 10)
    assert [entry.key for entry in page.entries] == ["0", "1", "2", "3"]
    assert not shard.indexed
    assert "does not describe" in page.problem.message


def test_a_store_that_does_not_answer_holds_up_its_own_requests_alone(tmp_path):
    """With more requests than threads to a store that is silent, shards of this machine are shown as ever."""
    with (tmp_path / "slow.tar").open("wb") as file:
        file.write(member(b"a.txt", b"slow") + END)
    local = tmp_path / "local.tar"
    local.write_bytes(member(b"b.txt", b"here") + END)
    with RangeServer(tmp_path) as server:
        server.held.add("/slow.tar")
        with RunningViewer(f"{server.root}/slow.tar", local) as viewer:
            answers = []
            threads = [
                threading.Thread(target=lambda: answers.append(viewer.ask("/api/samples", shard=0))) for _ in range(80)
            ]
            for thread in threads:
                thread.start()
            assert server.waiting.wait(30)
            for _ in range(10):
                assert viewer.ask("/api/samples", shard=1).value["samples"][0]["key"] == "b"
                assert viewer.ask("/api/payload", shard=1, ordinal=0, field="txt").body == b"here"
            assert not answers
            server.release()
            for thread in threads:
                thread.join()
            assert {answer.status for answer in answers} == {200}


def test_many_clients_page_at_once(tmp_path):
    """Twenty clients that page through one shard at once get each sample, once, in its order."""
    path = tmp_path / "x.tar"
    with wds.TarWriter(str(path)) as sink:
        for number in range(300):
            sink.write({"__key__": f"{number:03d}", "txt": f"{number}", "json": {"n": number}})
    with RunningViewer(path) as viewer:
        failures = []

        def page_through():
            keys, start = [], 0
            while True:
                page = viewer.ask("/api/samples", start=start, count=37).value
                keys += [sample["key"] for sample in page["samples"]]
                start += len(page["samples"])
                if page["end"]:
                    break
            if keys != [f"{number:03d}" for number in range(300)]:
                failures.append(keys)

        threads = [threading.Thread(target=page_through) for _ in range(20)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not failures
