"""Audio fields: what decodes, through which library, and what is refused."""

import io
import subprocess
import sys

import numpy as np
import pytest

import webdataset as wds
from webdataset.codecs import default_handlers, encode_based_on_extension1
from webdataset.codecs.media import audio_codec
from webdataset.core.errors import DecodingError, EncodingError, FieldTooLarge, MissingExtra

pytest.importorskip("av")
soundfile = pytest.importorskip("soundfile")

TIMES = np.arange(8000)
SOUND = np.stack([np.sin(TIMES / 20) * 0.5, np.cos(TIMES / 33) * 0.3]).astype(np.float32)
SUBTYPES = {
    "WAV": ("PCM_U8", "PCM_16", "PCM_24", "PCM_32", "FLOAT", "DOUBLE", "ULAW"),
    "FLAC": ("PCM_S8", "PCM_16", "PCM_24"),
    "AIFF": ("PCM_16", "PCM_24"),
}
CASES = [(kind, subtype) for kind, subtypes in SUBTYPES.items() for subtype in subtypes]


def stored(kind, subtype, samples=SOUND, rate=8000):
    """Return an audio file that soundfile writes."""
    stream = io.BytesIO()
    soundfile.write(stream, samples.T, rate, format=kind, subtype=subtype)
    return stream.getvalue()


def encode(value, field):
    """Encode one field with the default table."""
    return encode_based_on_extension1(value, field, default_handlers)


def without(monkeypatch, *modules):
    """Make the codecs believe that packages are not installed."""
    present = audio_codec.import_if_available
    monkeypatch.setattr(audio_codec, "import_if_available", lambda name: None if name in modules else present(name))


@pytest.mark.parametrize(("kind", "subtype"), CASES)
def test_both_libraries_agree_to_the_bit(kind, subtype, monkeypatch):
    """What is stored without loss decodes the same with soundfile and with PyAV."""
    data = stored(kind, subtype)
    fast, rate = wds.audio(".wav", data)
    without(monkeypatch, "soundfile")
    plain, plain_rate = wds.audio(".wav", data)
    assert rate == plain_rate == 8000
    assert fast.dtype == plain.dtype == np.float32
    assert fast.shape == (2, 8000)
    assert fast.flags.c_contiguous
    assert fast.flags.writeable
    assert np.array_equal(fast, plain)


@pytest.mark.parametrize(("kind", "subtype"), [("OGG", "VORBIS"), ("MP3", "MPEG_LAYER_III")])
def test_lossy_formats_agree_closely(kind, subtype, monkeypatch):
    """Vorbis and MP3 differ by a millionth or so between the libraries; PyAV is not exact at Vorbis' end."""
    data = stored(kind, subtype, np.concatenate([SOUND] * 4, axis=1), 16000)
    one, rate = wds.audio(".ogg", data)
    without(monkeypatch, "soundfile" if kind == "OGG" else "av")
    other, other_rate = wds.audio(".ogg", data)
    assert rate == other_rate == 16000
    assert one.shape == (2, 32000)
    assert abs(other.shape[1] - 32000) < 1024
    length = min(32000, other.shape[1])
    assert np.abs(one[:, :length] - other[:, :length]).max() < 1e-5


@pytest.mark.torch
def test_torch_audio_is_the_same_as_tensors():
    """(float32[channels, frames], rate), as torchaudio gave."""
    torch = pytest.importorskip("torch")
    data = stored("FLAC", "PCM_16")
    samples, rate = wds.Decoder(wds.torch_audio)({"flac": data})["flac"]
    assert isinstance(samples, torch.Tensor)
    assert rate == 8000
    assert np.array_equal(samples.numpy(), wds.audio(".flac", data)[0])


@pytest.mark.parametrize("extension", ["flac", "mp3", "sox", "wav", "m4a", "ogg", "wma", "opus", "aac", "a.b.WAV"])
def test_the_extensions_are_upstreams_and_more(extension):
    """Each is decoded when asked for, and only then."""
    data = stored("WAV", "PCM_16")
    assert wds.Decoder(wds.audio)({extension: data})[extension][0].shape == (2, 8000)
    assert wds.Decoder([])({extension: data})[extension] == data


@pytest.mark.parametrize("field", ["wav", "flac"])
@pytest.mark.parametrize("library", ["soundfile", "av"])
@pytest.mark.parametrize("kind", ["int16", "int32", "uint8", "float32", "float64"])
def test_lossless_formats_keep_samples(field, library, kind, monkeypatch):
    """WAV keeps every kind of sample, FLAC all but the last 8 of 32 bits, whichever library writes."""
    if kind == "uint8":
        samples = np.arange(512, dtype=np.uint8).reshape(2, 256)
        expected = (samples.astype(np.float32) - 128) / 128
    elif kind.startswith("int"):
        lowest = np.iinfo(kind).min
        samples = (np.linspace(-1, 0.99, 512).reshape(2, 256) * -float(lowest)).astype(kind)
        samples &= -256 if kind == "int32" else -1
        expected = (samples / -float(lowest)).astype(np.float32)
    else:
        samples = np.linspace(-1, 1, 512).reshape(2, 256).astype(kind)
        expected = samples.astype(np.float32)
    if library == "av":
        without(monkeypatch, "soundfile")
    data = encode((samples, 16000), field)
    decoded, rate = wds.audio("." + field, data)
    assert rate == 16000
    assert decoded.shape == expected.shape
    assert np.abs(decoded - expected).max() <= (2**-23 if field == "flac" else 0)
    assert data == encode((samples, 16000), field)


def test_samples_that_a_format_would_change_are_refused():
    """Nothing is clipped, cut or resampled silently."""
    for samples, field in ((SOUND * 3, "flac"), (SOUND * 3, "mp3"), (SOUND * np.nan, "ogg")):
        with pytest.raises(EncodingError, match=r"\[-1, 1\]"):
            encode((samples, 8000), field)
    assert np.array_equal(wds.audio(".wav", encode((SOUND * 3, 8000), "wav"))[0], SOUND * 3)
    with pytest.raises(EncodingError, match="24 bits"):
        encode((np.array([1, 2, 3], np.int32), 8000), "flac")
    with pytest.raises(EncodingError, match="Opus has the rates"):
        encode((SOUND, 44100), "opus")
    with pytest.raises(EncodingError, match="cannot be written as mp3"):
        encode((SOUND, 1234), "mp3")


@pytest.mark.parametrize(
    "value",
    [SOUND, (SOUND,), (SOUND, 0), (SOUND, 8000.5), (SOUND[None], 8000), (SOUND.astype("c8"), 8000)]
    + [(np.zeros((9, 5), "f4"), 8000), {"samples": SOUND}, None],
    ids=range(9),
)
def test_what_is_no_sound_is_an_error(value):
    """Anything but a pair of samples and a rate says what is wanted."""
    with pytest.raises(EncodingError, match=r"sound|rate"):
        encode(value, "wav")


def test_mono_may_be_flat():
    """Samples [frames] are one channel."""
    assert wds.audio(".wav", encode((SOUND[0], 8000), "wav"))[0].shape == (1, 8000)
    assert np.array_equal(wds.audio(".wav", encode((SOUND[0], 8000), "wav"))[0][0], SOUND[0])


def test_files_cut_short_are_errors():
    """Half of a WAV, AIFF, FLAC or Ogg file is not half of the sound but an error."""
    for kind, subtype in (("WAV", "PCM_16"), ("FLAC", "PCM_16")):
        data = stored(kind, subtype)
        with pytest.raises(DecodingError) as failure:
            wds.Decoder(wds.audio)({"__key__": "k", "wav": data[: len(data) // 2]})
        assert (failure.value.key, failure.value.field) == ("k", "wav")


@pytest.mark.parametrize("data", [b"", b"no sound", b"RIFF1234WAVE", b"fLaC" + bytes(50), bytes(1000)])
def test_what_is_no_audio_is_an_error(data):
    """Junk is a DecodingError that names the field."""
    with pytest.raises(DecodingError) as failure:
        wds.Decoder(wds.audio)({"mp3": data})
    assert failure.value.field == "mp3"


@pytest.mark.limited
def test_audio_bombs_are_refused(monkeypatch):
    """Sound beyond WDS_MAX_MEDIA_BYTES is refused, by its header or as soon as it passes."""
    silence = stored("FLAC", "PCM_16", np.zeros((1, 2_000_000), "f4"))
    assert len(silence) < 100_000
    monkeypatch.setenv("WDS_MAX_MEDIA_BYTES", "1_000_000")
    for missing in ((), ("soundfile",)):
        without(monkeypatch, *missing)
        with pytest.raises(FieldTooLarge, match="WDS_MAX_MEDIA_BYTES"):
            wds.audio(".flac", silence)


def test_missing_packages_are_named(monkeypatch, tmp_path):
    """Without either library the error names both extras; with soundfile alone, what PyAV would add."""
    program = (
        "import sys; sys.modules['av'] = None; sys.modules['soundfile'] = None\n"
        "import webdataset as wds\n"
        "from webdataset.core.errors import MissingExtra\n"
        "try:\n"
        "    wds.Decoder(wds.audio)({'wav': b'x'})\n"
        "except MissingExtra as error:\n"
        "    assert '[audio,media]' in str(error), error\n"
        "else:\n"
        "    raise SystemExit('no error')\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, cwd=tmp_path)
    without(monkeypatch, "av")
    assert wds.audio(".wav", stored("WAV", "PCM_16"))[1] == 8000
    with pytest.raises(DecodingError, match=r"\[media\]"):
        wds.audio(".m4a", b"junk")
    without(monkeypatch, "soundfile")
    monkeypatch.setitem(sys.modules, "soundfile", None)
    with pytest.raises(MissingExtra, match=r"\[audio\]"):
        encode((SOUND, 8000), "ogg")
