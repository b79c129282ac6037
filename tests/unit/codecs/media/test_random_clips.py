"""Clips at random places: the same for a sample wherever it is read, and only what they need is decoded."""

import itertools
import pickle
import random

import numpy as np
import pytest

import webdataset as wds
from support.video_files import make_file, make_video
from webdataset.core.errors import DecodingError, UsageError

av = pytest.importorskip("av")

from webdataset.codecs.media import video_decode  # noqa: E402
from webdataset.codecs.media.video_decode import Video  # noqa: E402

NAMES = ("b_frames", "open_gop", "vfr", "fragments")


@pytest.fixture(scope="module")
def shard(tmp_path_factory):
    """A shard of 8 samples of short videos."""
    path = tmp_path_factory.mktemp("videos") / "x.tar"
    with wds.TarWriter(str(path)) as sink:
        for number in range(8):
            sink.write({"__key__": f"{number:02d}", "mp4": make_file(NAMES[number % len(NAMES)]), "txt": str(number)})
    return path


def seconds_of(samples):
    """Return when the frames of all clips are shown, by key."""
    return {sample["__key__"]: [clip.seconds.tolist() for clip in sample["mp4"]] for sample in samples}


def test_clips_depend_on_seed_epoch_and_sample_alone(shard):
    """Shuffled, decoded before, resumed: the same clips; in another epoch or with another seed others."""
    clip = wds.random_clips("mp4", 4, stride=2, count=3)
    dataset = wds.WebDataset(str(shard), shardshuffle=False, seed=5)
    plain = seconds_of(dataset.map(clip, rng=True))
    assert all(len(clips) == 3 and all(len(each) == 4 for each in clips) for clips in plain.values())
    assert len({str(clips) for clips in plain.values()}) == 8
    assert seconds_of(dataset.shuffle(10).decode(wds.video).map(clip, rng=True)) == plain
    assert seconds_of(pickle.loads(pickle.dumps(dataset.map(clip, rng=True)))) == plain
    other = wds.WebDataset(str(shard), shardshuffle=False, seed=6).map(clip, rng=True)
    assert seconds_of(other) != plain
    twice = dataset.map(clip, rng=True).elastic()
    first, second = seconds_of(twice), seconds_of(twice)
    assert first == plain
    assert second != plain


def test_clips_continue_after_a_resume(shard):
    """A run that stops within an epoch, the second one too, continues with the clips of the unbroken run."""
    clips = wds.WebDataset(str(shard), shardshuffle=False, seed=5).map(wds.random_clips("mp4", 3), rng=True)
    dataset = clips.map(lambda sample: str(seconds_of([sample])))
    unbroken = wds.Loader(dataset.elastic(), 1, workers=0)
    with unbroken:
        epochs = [list(unbroken) for _ in range(2)]
    assert epochs[0] != epochs[1]
    for epoch, stop in ((0, 3), (1, 5)):
        with wds.Loader(dataset.elastic(), 1, workers=0) as loader:
            for _ in range(epoch):
                list(loader)
            for step, _ in enumerate(loader, 1):
                if step == stop:
                    break
            state = loader.state_dict()
        with wds.Loader(dataset.elastic(), 1, workers=0) as loader:
            loader.load_state_dict(state)
            assert list(loader) == epochs[epoch][stop:]


@pytest.mark.parametrize("name", NAMES)
def test_clips_are_frames_of_the_whole(name):
    """Each clip is frames of a whole decode at regular distances, with their times."""
    data = make_file(name)
    whole = list(Video(data).frames())
    sample = wds.random_clips("mp4", 5, stride=3, count=4)({"__key__": "a", "mp4": data}, random.Random(1))
    times = [seconds for seconds, _ in whole]
    for clip in sample["mp4"]:
        start = times.index(clip.seconds[0])
        assert clip.seconds.tolist() == times[start : start + 15 : 3]
        assert np.array_equal(clip.frames, np.stack([frame for _, frame in whole[start : start + 15 : 3]]))


def test_every_start_is_drawn():
    """The first and the last place at which a clip fits are drawn, and none beyond."""
    make, data = wds.random_clips("mp4", 37), make_file("b_frames")
    starts = {round(make({"mp4": data}, random.Random(seed))["mp4"][0].seconds[0] * 25) for seed in range(30)}
    assert starts == {0, 1, 2, 3}


def test_what_cannot_be_cut_is_an_error():
    """Too short, no such field, no generator, numbers below 1."""
    data = make_file("b_frames")
    with pytest.raises(DecodingError, match="40 frames, and a clip spans 41"):
        wds.random_clips("mp4", 41)({"mp4": data}, random.Random(1))
    (clip,) = wds.random_clips("mp4", 41, partial=True)({"mp4": data}, random.Random(1))["mp4"]
    assert len(clip.frames) == 40
    for sample, generator in (({"avi": data}, random.Random(1)), ({"mp4": data}, 7), ({"mp4": "x"}, random.Random(1))):
        with pytest.raises(UsageError, match="rng=True"):
            wds.random_clips("mp4", 3)(sample, generator)  # type: ignore[arg-type]
    for numbers in ((0, 1, 1), (1, 0, 1), (1, 1, 0)):
        with pytest.raises(UsageError, match="at least 1"):
            wds.random_clips("mp4", numbers[0], stride=numbers[1], count=numbers[2])
    assert "stride=2" in repr(wds.random_clips("mp4", 3, stride=2))


@pytest.mark.parametrize(
    "name", ["b_frames", "open_gop", "vfr", "fragments", "edit_in_gop", "sound", "mpegts", "matroska"]
)
def test_passing_over_groups_changes_nothing(name):
    """Clips with gaps between them, and clips at any frames, are those of decoding every frame."""
    data = make_video(name) if name in ("mpegts", "matroska") else make_file(name)
    whole = list(Video(data).frames())
    assert Video(data).count_frames() == len(whole)
    for frames, stride, step, partial in ((2, 1, 12, False), (3, 2, 17, True), (1, 1, 9, False), (4, 1, 39, True)):
        spans = [whole[start : start + frames * stride : stride] for start in range(0, len(whole), step)]
        spans = [span for span in spans if partial or len(span) == frames]
        clips = list(Video(data).clips(frames, stride=stride, step=step, partial=partial))
        assert [clip.seconds.tolist() for clip in clips] == [[seconds for seconds, _ in span] for span in spans]
        assert all(
            np.array_equal(clip.frames, np.stack([frame for _, frame in span]))
            for clip, span in zip(clips, spans, strict=True)
        )
    starts = [20, 0, 20, len(whole) - 1]
    clips = Video(data).clips_at(starts, 2, stride=3)
    assert [clip.seconds.tolist() for clip in clips] == [
        [seconds for seconds, _ in whole[start : start + 6 : 3]] for start in starts
    ]


def test_groups_that_no_clip_needs_are_not_decoded(monkeypatch):
    """Of five groups of eight frames, one clip in each second one costs less than half of the decoding."""
    counts = []
    find = video_decode.decode_numbers

    def count(container, stream, scan, numbers):
        counts.extend(segment.stop - segment.start for segment in scan.table.plan_segments(numbers))
        return find(container, stream, scan, numbers)

    monkeypatch.setattr(video_decode, "decode_numbers", count)
    assert len(list(Video(make_file("b_frames")).clips(2, step=16))) == 3
    assert 0 < sum(counts) <= 15


def test_frames_that_do_not_come_are_counted_as_they_come(monkeypatch):
    """Where the tables promise a frame that the decoder does not give, clips are those of decoding every frame."""
    data = make_file("b_frames")
    expected = list(Video(data).clips(2, step=16))

    def lose(container, stream, scan, numbers):
        yield from itertools.islice(find(container, stream, scan, numbers), 3)
        raise video_decode.LostFrameError

    find = video_decode.decode_numbers
    monkeypatch.setattr(video_decode, "decode_numbers", lose)
    clips = list(Video(data).clips(2, step=16))
    assert [clip.seconds.tolist() for clip in clips] == [clip.seconds.tolist() for clip in expected]
    assert all(np.array_equal(one.frames, other.frames) for one, other in zip(clips, expected, strict=True))


def test_starts_that_are_none_are_errors():
    """Starts before the first frame, and after the last."""
    video = Video(make_file("b_frames"))
    for starts, frames in (([-1], 2), ([40], 2), ([0], 0)):
        with pytest.raises(UsageError):
            video.clips_at(starts, frames)
    assert video.clips_at([], 2) == []
