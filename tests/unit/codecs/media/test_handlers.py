"""Video and audio handlers."""

import io
import math
import struct
import subprocess
import sys
import wave

import pytest

import webdataset as wds
from webdataset.core.errors import DecodingError


def test_other_fields_are_not_theirs():
    """For other extensions both return None, without loading anything."""
    for handler in (wds.torch_video, wds.torch_audio):
        assert handler(".jpg", b"x") is None
        assert handler(".txt", b"x") is None
    decoded = wds.Decoder(wds.torch_video, wds.torch_audio)({"txt": b"a", "cls": b"1"})
    assert decoded == {"txt": "a", "cls": 1}


def test_without_pyav_the_error_names_the_extra(tmp_path):
    """Where PyAV is not installed, the error says what to install."""
    pytest.importorskip("torch")
    program = (
        "import sys; sys.modules['av'] = None; sys.modules['soundfile'] = None\n"
        "import webdataset as wds\n"
        "from webdataset.core.errors import MissingExtra\n"
        "for handler, field in ((wds.torch_video, 'mp4'), (wds.torch_audio, 'wav')):\n"
        "    try:\n"
        "        wds.Decoder(handler)({field: b'x'})\n"
        "    except MissingExtra as error:\n"
        "        assert 'media]' in str(error), error\n"
        "    else:\n"
        "        raise SystemExit('no error')\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, cwd=tmp_path)


def tone(rate=8000, channels=2, samples=4000):
    """Return a wav file and its samples."""
    values = [
        [int(20000 * math.sin(index / (10 + channel))) for channel in range(channels)] for index in range(samples)
    ]
    stream = io.BytesIO()
    with wave.open(stream, "wb") as file:
        file.setnchannels(channels)
        file.setsampwidth(2)
        file.setframerate(rate)
        file.writeframes(b"".join(struct.pack(f"<{channels}h", *frame) for frame in values))
    return stream.getvalue(), values


@pytest.mark.torch
def test_audio_is_channels_by_samples():
    """Sound comes as float32[channels, samples] in [-1, 1], with its rate."""
    torch = pytest.importorskip("torch")
    pytest.importorskip("av")
    data, values = tone()
    sound, rate = wds.Decoder(wds.torch_audio)({"wav": data})["wav"]
    assert rate == 8000
    assert sound.dtype == torch.float32
    assert torch.allclose(sound, torch.tensor(values).T / 32768)
    with pytest.raises(DecodingError):
        wds.Decoder(wds.torch_audio)({"wav": b"no sound"})


@pytest.mark.torch
def test_video_is_frames_sound_and_rates():
    """Frames come as uint8[T, H, W, 3] with sound and rates, as torchvision gave them."""
    torch = pytest.importorskip("torch")
    av = pytest.importorskip("av")
    import numpy as np

    stream = io.BytesIO()
    with av.open(stream, "w", format="avi") as container:
        video = container.add_stream("ffv1", rate=25)
        video.width, video.height, video.pix_fmt = 32, 24, "bgr0"
        for level in (0, 100, 200):
            frame = av.VideoFrame.from_ndarray(np.full((24, 32, 3), level, np.uint8), format="rgb24")
            container.mux(video.encode(frame))
        container.mux(video.encode())
    frames, sound, rates = wds.Decoder(wds.torch_video)({"avi": stream.getvalue()})["avi"]
    assert frames.shape == (3, 24, 32, 3)
    assert frames.dtype == torch.uint8
    assert frames[:, 0, 0, 0].tolist() == [0, 100, 200]
    assert sound.shape[1] == 0
    assert rates == {"video_fps": 25.0}
