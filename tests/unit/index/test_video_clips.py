"""Clips of videos in shards by ranges: the frames of the whole field, local and remote, and few bytes."""

import dataclasses
import pickle
import threading

import numpy as np
import pytest

import webdataset as wds
from support.video_files import box, draw_frames, make_file
from webdataset.core.errors import DecodingError, NoSuchSample, ShardChanged, StaleIndex, UsageError
from webdataset.index.indexed_shard import IndexedShard
from webdataset.testing.archives import by_hand
from webdataset.testing.sources import RangeServer

pytest.importorskip("av")

from webdataset.codecs.media.video_decode import Video  # noqa: E402
from webdataset.codecs.media.video_encode import encode_video  # noqa: E402

NAMES = ("b_frames", "open_gop", "moov_first", "sidx")


def write_shards(folder, count=2):
    """Write shards of four videos each, and return their files."""
    files = []
    for shard in range(count):
        members = [
            (f"{shard}{number}.{field}", content)
            for number, name in enumerate(NAMES)
            for field, content in (("json", b"{}"), ("cam.mp4", make_file(name)), ("txt", b"x" * 1000))
        ]
        files.append(folder / f"x-{shard:03d}.tar")
        files[-1].write_bytes(by_hand(members))
    return files


def same(clip, name, start, stop, stride=1):
    """Tell whether a clip is that of the whole file."""
    whole = Video(make_file(name)).clip(start, stop, stride=stride)
    return np.array_equal(clip.frames, whole.frames) and np.array_equal(clip.seconds, whole.seconds)


def test_clips_by_number_and_by_key(tmp_path):
    """By number, from the end, and by key, over several shards of which one is open at a time."""
    write_shards(tmp_path)
    with wds.IndexedDataset(str(tmp_path / "x-{000..001}.tar"), open_shards=1) as dataset:
        for number in (0, 5, -1, 2, 7):
            clip = dataset.clip(number, "cam.mp4", 0.5, 0.9, stride=2)
            assert same(clip, NAMES[number % 4], 0.5, 0.9, 2)
        assert same(dataset.clip("11", "cam.mp4", 0.2), "open_gop", 0.2, None)
        assert dataset.clip("11", "cam.mp4", 0.2, 0.4, size=(10, 20)).frames.shape[1:] == (10, 20, 3)
        assert dataset[1]["txt"] == b"x" * 1000
    shard = IndexedShard(str(tmp_path / "x-000.tar"))
    shard.clip(0, "cam.mp4", 0.5, 0.6)
    assert same(pickle.loads(pickle.dumps(shard)).clip(-4, "cam.mp4", 0.5, 0.6), "b_frames", 0.5, 0.6)
    shard.close()
    assert same(shard.clip(1, "cam.mp4", 0.5, 0.6), "open_gop", 0.5, 0.6)


def test_what_is_not_there_is_named(tmp_path):
    """A key, a number, a field, a time that is not there; a field that is no video."""
    write_shards(tmp_path)
    dataset = wds.IndexedDataset(str(tmp_path / "x-{000..001}.tar"))
    for sample in ("zz", 8, -9):
        with pytest.raises(NoSuchSample):
            dataset.clip(sample, "cam.mp4")
    with pytest.raises(NoSuchSample):
        dataset.shards[0].clip(4, "cam.mp4")
    with pytest.raises(UsageError, match="has no field 'mp4'; it has json, cam.mp4, txt"):
        dataset.clip(0, "mp4")
    with pytest.raises(UsageError, match="no frames in this time") as failure:
        dataset.clip(0, "cam.mp4", 9.0)
    assert (failure.value.key, failure.value.field) == ("00", "cam.mp4")
    with pytest.raises(DecodingError) as undecoded:
        dataset.clip(0, "txt")
    assert (undecoded.value.key, undecoded.value.field) == ("00", "txt")
    assert undecoded.value.url.endswith("x-000.tar")


@pytest.fixture(scope="module")
def large():
    """A video of 120 frames, of which each takes some kilobytes."""
    noise = np.random.default_rng(0).integers(0, 64, (120, 96, 128, 3), np.uint8)
    return encode_video((np.repeat(draw_frames(24, 96, 128), 5, axis=0) ^ noise, 25), "mp4")


def test_remote_clips_read_little(tmp_path, large):
    """Of a remote shard the tables are read once, and then the bytes of the needed frames: at most 1.3 times those."""
    path = tmp_path / "x.tar"
    path.write_bytes(by_hand([("a.mp4", large), ("b.txt", b"x" * 3000)]))
    wds.write_indexes(str(path), ["binary"])
    pages = {f"/{file.name}": file.read_bytes() for file in tmp_path.iterdir()}
    with RangeServer(pages) as server:
        dataset = wds.IndexedDataset(f"{server.root}/x.tar")
        assert dataset.clip("a", "mp4", 1.0, 1.2).frames.shape == (5, 96, 128, 3)
        samples = dataset.shards[0]._videos.find(0, "mp4")._tables.track.samples  # noqa: SLF001
        seconds = samples.times / 12_800 - samples.times.min() / 12_800
        requests = []
        for start in (0.1, 2.0, 3.1, 4.5):
            server.asked.clear()
            before = server.sent
            clip = dataset.clip(0, "mp4", start, start + 0.2)
            assert same_as_whole(clip, large, start, start + 0.2)
            first = np.flatnonzero(samples.is_key & (seconds <= start + 1e-6)).max()
            later = np.flatnonzero(samples.is_key & (seconds >= start + 0.2))
            needed = samples.sizes[first : later.min() if len(later) else None].sum()
            assert server.sent - before <= 1.3 * needed < len(large)
            requests.append(len(server.asked))
        # the beginning is among the first bytes that were read
        assert requests == [0, 1, 1, 1]


def same_as_whole(clip, data, start, stop):
    """Tell whether a clip is that of a whole file."""
    whole = Video(data).clip(start, stop)
    return np.array_equal(clip.frames, whole.frames) and np.array_equal(clip.seconds, whole.seconds)


def test_members_that_lie_elsewhere_are_read_whole(tmp_path):
    """Names in extended headers, renamed members and hard links: the same frames."""
    data = make_file("b_frames")
    long = tmp_path / "long.tar"
    with wds.TarWriter(str(long), encoder=False) as sink:
        sink.write({"__key__": "long/" * 60 + "name", "mp4": data})
    assert same(IndexedShard(str(long)).clip(0, "mp4", 0.5, 0.6), "b_frames", 0.5, 0.6)
    plain = tmp_path / "plain.tar"
    plain.write_bytes(by_hand([("a.mp4", data)]))
    renamed = IndexedShard(str(plain), rename_files=lambda name: f"x/{name}")
    assert same(renamed.clip(0, "mp4", 0.5, 0.6), "b_frames", 0.5, 0.6)


def test_an_index_of_another_shard_is_refused(tmp_path, large):
    """Bytes come with a header that proves them, or not at all; a shard that changes is noticed at the next clip."""
    (path, _) = write_shards(tmp_path)
    index = IndexedShard(str(path), False).index
    moved = [
        entry._replace(fields=tuple(field._replace(offset=field.offset + 512) for field in entry.fields))
        for entry in index.entries
    ]
    with pytest.raises(StaleIndex):
        IndexedShard(str(path), dataclasses.replace(index, entries=moved)).clip(0, "cam.mp4")
    path.write_bytes(by_hand([("a.mp4", large)]))
    shard = IndexedShard(str(path))
    shard.clip(0, "mp4", 0.5, 0.6)
    with open(path, "ab") as stream:
        stream.write(bytes(10_240))
    with pytest.raises(ShardChanged):
        shard.clip(0, "mp4", 3.2, 3.3)


def test_an_index_that_names_another_member_gives_no_other(tmp_path):
    """Where the header before a video has another name, the member of the right name is looked for, or an error."""
    one, other = make_file("b_frames"), make_file("all_keys")
    size = max(len(one), len(other)) + 8
    members = [
        (name, data + box(b"free", bytes(size - len(data)))) for name, data in (("a.mp4", one), ("b.mp4", other))
    ]
    path = tmp_path / "x.tar"
    path.write_bytes(by_hand(members))
    index = IndexedShard(str(path), False).index
    both = sum(entry.fields[0].offset for entry in index.entries)
    swapped = [
        entry._replace(fields=(entry.fields[0]._replace(offset=both - entry.fields[0].offset),))
        for entry in index.entries
    ]
    shard = IndexedShard(str(path), dataclasses.replace(index, entries=swapped))
    assert same(shard.clip(0, "mp4", 0.5, 0.9), "b_frames", 0.5, 0.9)
    with pytest.raises(StaleIndex):
        shard.clip(1, "mp4", 0.5, 0.9)


def test_threads_and_many_videos(tmp_path):
    """Several threads take clips of more videos than are remembered; each is right."""
    path = tmp_path / "x.tar"
    names = [NAMES[number % 4] for number in range(20)]
    path.write_bytes(by_hand([(f"{number:02d}.mp4", make_file(name)) for number, name in enumerate(names)]))
    shard, wrong = IndexedShard(str(path)), []

    def take(shift):
        for number in range(20):
            place = (number * 7 + shift) % 20
            if not same(shard.clip(place, "mp4", 0.5, 0.7), names[place], 0.5, 0.7):
                wrong.append(place)

    threads = [threading.Thread(target=take, args=(shift,)) for shift in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert len(shard._videos._videos) == 16  # noqa: SLF001
