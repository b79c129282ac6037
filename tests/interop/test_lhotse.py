"""lhotse: its WebDataset and Shar modules run over this library, and we read what they write."""

import pytest

lhotse = pytest.importorskip("lhotse")
soundfile = pytest.importorskip("soundfile")

import numpy as np  # noqa: E402
from lhotse.dataset.webdataset import export_to_webdataset  # noqa: E402

import webdataset as wds  # noqa: E402


@pytest.fixture(scope="module")
def cuts(tmp_path_factory):
    """Five short recordings, with words."""
    place = tmp_path_factory.mktemp("sounds")
    found = []
    for index in range(5):
        path = place / f"a{index}.wav"
        soundfile.write(path, ((np.arange(1600) % (50 + index)) / 200).astype("float32"), 16000)
        recording = lhotse.Recording.from_file(path)
        words = lhotse.SupervisionSegment(
            id=f"s{index}", recording_id=recording.id, start=0, duration=0.1, text=f"words {index}"
        )
        cut = lhotse.MonoCut(
            id=f"c{index}", start=0, duration=recording.duration, channel=0, recording=recording, supervisions=[words]
        )
        found.append(cut)
    return lhotse.CutSet.from_cuts(found)


def heard(cuts):
    """Names, words and sound."""
    return [(cut.id, cut.supervisions[0].text, cut.load_audio().tobytes()) for cut in cuts]


def test_its_webdataset_module_runs_over_us(cuts, tmp_path):
    """What it writes through our writer, it reads through our reader, to the last bit."""
    written = export_to_webdataset(cuts, str(tmp_path / "s-%03d.tar"), shard_size=2, verbose=False, audio_format="flac")
    assert written == 3
    urls = sorted(map(str, tmp_path.glob("*.tar")))
    back = lhotse.CutSet.from_webdataset(urls)
    assert heard(back) == heard(cuts)


def test_we_read_its_shar_shards(cuts, tmp_path):
    """Sound and manifest of each cut stand in one sample."""
    cuts.to_shar(tmp_path, fields={"recording": "wav"}, shard_size=2)
    urls = sorted(tmp_path.glob("recording.*.tar"))
    samples = list(wds.WebDataset(urls, shardshuffle=False))
    assert [sample["__key__"] for sample in samples] == [cut.id for cut in cuts]
    assert all({"wav", "json"} <= set(sample) and sample["wav"][:4] == b"RIFF" for sample in samples)
