"""Thumbnails, waveforms and arrays, made in the limited process."""

import importlib
import io
import json
import math
from typing import Any

import numpy as np
import pytest
from PIL import Image

from support.media_fields import (
    FIELDS,
    encode_image,
    encode_npy,
    encode_npz,
    encode_safetensors,
    encode_sound,
    encode_video,
    encode_wav,
)
from webdataset.inspection.media_header import read_media_header
from webdataset.viewer.previews import PreviewRefused, Previews
from webdataset.viewer.sound_pieces import read_pieces


@pytest.fixture(scope="module")
def previews():
    """One process for all tests."""
    with Previews(patience_seconds=300) as made:
        yield made


def show(previews, name, payload, size=32, **options):
    """Return a thumbnail as a picture, and its note."""
    found = previews.thumbnail(name, payload, size, **options)
    assert found.media_type == "image/webp"
    image = Image.open(io.BytesIO(found))
    assert max(image.size) <= size
    return image.convert("RGBA"), found.note


@pytest.mark.parametrize("name", [name for name in FIELDS if name not in ("wav", "flac", "mp3", "ogg")])
def test_every_kind_of_picture_has_a_thumbnail_and_nothing_else_has(previews, name):
    """Images, arrays and videos are shown at their proportions; texts, drawings and pickles are refused."""
    if name in ("json", "txt", "html", "svg", "cls", "pkl", "json.gz"):
        with pytest.raises(PreviewRefused):
            previews.thumbnail(name, FIELDS[name](), 32)
        return
    image, _ = show(previews, name, FIELDS[name]())
    proportion = {"npy": 30 / 20, "npz": 30 / 20, "safetensors": 1, "mp4": 64 / 48, "webm": 64 / 48}.get(name, 40 / 24)
    assert math.isclose(image.width / image.height, proportion, rel_tol=0.1)


def test_colours_and_transparency_are_kept(previews):
    """A red picture is red whatever its mode, and what is transparent stays so."""
    for kind, mode in (("PNG", "RGB"), ("PNG", "P"), ("JPEG", "CMYK"), ("TIFF", "CMYK"), ("PNG", "RGBA")):
        stream = io.BytesIO()
        Image.new("RGB", (90, 60), (250, 10, 10)).convert(mode).save(stream, kind)
        red, green, _, alpha = show(previews, "x", stream.getvalue())[0].getpixel((5, 5))
        assert red > 220
        assert green < 50
        assert alpha == 255
    stream = io.BytesIO()
    Image.new("RGBA", (90, 60), (250, 10, 10, 0)).save(stream, "PNG")
    assert show(previews, "png", stream.getvalue())[0].getpixel((5, 5))[3] == 0


@pytest.mark.parametrize("orientation", range(1, 9))
def test_exif_orientation_is_applied(previews, orientation):
    """A picture that lies on its side is shown upright: all eight turns equal those of Pillow."""
    from PIL import ImageOps

    exif = Image.Exif()
    exif[0x0112] = orientation
    stream = io.BytesIO()
    picture = Image.new("L", (48, 32))
    picture.paste(255, (0, 0, 16, 8))
    picture.save(stream, "JPEG", exif=exif, quality=95)
    shown, _ = show(previews, "jpg", stream.getvalue(), 48)
    expected = ImageOps.exif_transpose(Image.open(io.BytesIO(stream.getvalue())))
    assert shown.size == expected.size
    assert np.abs(np.asarray(shown.convert("L"), int) - np.asarray(expected, int)).mean() < 8


def test_only_the_first_frame_of_an_animation_is_shown_and_pages_by_number(previews):
    """An animation shows its first frame; a TIFF file any page."""
    frames = [Image.new("RGB", (20, 20), colour) for colour in ((255, 0, 0), (0, 255, 0), (0, 0, 255))]
    for kind in ("GIF", "WEBP", "TIFF"):
        stream = io.BytesIO()
        frames[0].save(stream, kind, save_all=True, append_images=frames[1:])
        assert show(previews, kind.lower(), stream.getvalue())[0].getpixel((9, 9))[0] > 200
    assert show(previews, "tiff", stream.getvalue(), page=2)[0].getpixel((9, 9))[2] > 200
    with pytest.raises(PreviewRefused, match="no page 3"):
        previews.thumbnail("tiff", stream.getvalue(), 32, page=3)


def test_a_truncated_image_is_shown_in_part_and_says_so(previews):
    """What there is of a cut file is shown with a note; a cut header is refused with the reason."""
    whole = encode_image("JPEG", size=(200, 200), quality=95)
    image, note = show(previews, "jpg", whole[: len(whole) // 2])
    assert image.size == (32, 32)
    assert "only a part decodes" in note
    for cut in (b"", whole[:2], whole[:100]):
        with pytest.raises(PreviewRefused):
            previews.thumbnail("jpg", cut, 32)


def test_deep_images_and_masks_are_made_visible(previews):
    """16 bits are stretched, small class numbers get colours."""
    stream = io.BytesIO()
    Image.fromarray(np.linspace(1000, 1100, 900).reshape(30, 30).astype(np.uint16)).save(stream, "PNG")
    image, note = show(previews, "depth.png", stream.getvalue())
    assert "1000 to 1100" in note
    assert image.getpixel((2, 0))[0] < 20
    assert image.getpixel((27, 29))[0] > 235
    stream = io.BytesIO()
    Image.fromarray(np.repeat(np.arange(4, dtype=np.uint8), 200).reshape(20, 40)).save(stream, "PNG")
    image, note = show(previews, "seg.png", stream.getvalue(), 40)
    assert "class numbers" in note
    assert len({image.getpixel((5, row)) for row in (2, 7, 12, 17)}) == 4
    assert "class numbers" in show(previews, "png", stream.getvalue())[1]
    stream = io.BytesIO()
    Image.fromarray(np.full((20, 40), 9, np.uint8)).save(stream, "JPEG")
    assert show(previews, "jpg", stream.getvalue())[1] is None


@pytest.mark.parametrize(
    ("values", "note", "corner"),
    [
        (np.full((20, 20), 0.5), None, 127),
        (np.full((3, 20, 20), 0.5, np.float32), None, 127),
        (np.full((20, 20, 3), 1, np.float16), None, 255),
        (np.full((2, 20, 20, 3), 200, np.uint8), None, 200),
        (np.ones((20, 20), bool), None, 255),
        (np.full((20, 20), -1.0), None, 0),
        (np.linspace(-5, 5, 400).reshape(20, 20), "shown from -5 to 5", 0),
        (np.full((20, 20), np.nan), "not finite", 0),
        (np.full((20, 20), 1e308), None, 0),
        (np.linspace(-1, 1, 400).reshape(20, 20) * 1.7e308, "shown from", 0),
        (np.full((20, 20), 2**63, np.uint64), None, 0),
        (np.full((20, 20), 3 + 4j), "absolute values", 0),
        (np.arange(400).reshape(20, 20) % 20, "class numbers", 0),
        (np.full((1, 20, 20), 255, np.uint8), None, 255),
    ],
)
def test_arrays_that_look_like_images_are_shown(previews, values, note, corner):
    """Planes, colours first or last, stacks; floats by their range; what was done to them is told."""
    image, said = show(previews, "npy", encode_npy(values))
    assert abs(image.getpixel((0, 0))[0] - corner) <= 3
    assert (note or "") in (said or "")
    assert (note is None) == (said is None)


@pytest.mark.parametrize(
    "values",
    [np.zeros(9), np.zeros((9, 2)), np.full((20, 20), "a"), np.zeros((0, 9)), np.zeros((0, 9, 9, 9)), np.zeros(()),
     np.zeros((9, 9, 0))],
)  # fmt: skip
def test_other_arrays_are_no_pictures(previews, values):
    """Vectors, points, texts and empty arrays are refused as pictures, and described as arrays all the same."""
    with pytest.raises(PreviewRefused):
        previews.thumbnail("npy", encode_npy(values), 32)
    (found,) = previews.array("npy", encode_npy(values))["arrays"]
    assert found["shape"] == list(values.shape)
    assert found["thumbnail"] is False


@pytest.mark.parametrize("seed", range(6))
def test_statistics_are_those_of_numpy(previews, seed):
    """Minimum, maximum, mean, deviation and histogram of more numbers than one piece, NaN and infinities left out."""
    generator = np.random.default_rng(seed)
    kind = ("f4", "f8", "f2", "i4", "u1", "?")[seed]
    values = (generator.normal(100, 30, (1_300, 1_001)) % 251).astype(kind)
    if values.dtype.kind == "f":
        values[3, 4:9] = np.nan
        values[5, 6:8] = np.inf
    (found,) = previews.array("npy", encode_npy(values))["arrays"]
    finite = values[np.isfinite(values)].astype(np.float64)
    assert found["nan"] == (5 if values.dtype.kind == "f" else 0)
    assert found["infinite"] == (2 if values.dtype.kind == "f" else 0)
    assert found["minimum"] == finite.min()
    assert found["maximum"] == finite.max()
    assert math.isclose(found["mean"], finite.mean(), rel_tol=1e-9)
    assert math.isclose(found["std"], finite.std(), rel_tol=1e-9)
    assert sum(found["histogram"]["counts"]) == finite.size
    edges = found["histogram"]["edges"]
    assert len(edges) == len(found["histogram"]["counts"]) + 1
    assert np.array_equal(found["histogram"]["counts"], np.histogram(finite, edges)[0])
    assert np.array_equal(np.array(found["preview"], np.float64), values[:8, :8], equal_nan=True)


def test_arrays_of_npz_and_safetensors_are_described_one_by_one(previews):
    """Each array by its name; types that numpy lacks and objects are told and do not hide the others."""
    objects = np.array([None], dtype=object)
    found = previews.array("npz", encode_npz(a=np.arange(4), b=objects, c=np.array([1, np.nan], np.float32)))["arrays"]
    assert [array["name"] for array in found] == ["a", "b", "c"]
    assert found[0]["maximum"] == 3
    assert "allow_pickle" in found[1]["problem"]
    assert found[2]["nan"] == 1
    header = {
        "half": {"dtype": "BF16", "shape": [2], "data_offsets": [0, 4]},
        "tiny": {"dtype": "F8_E4M3", "shape": [4], "data_offsets": [4, 8]},
        "out": {"dtype": "F32", "shape": [99], "data_offsets": [0, 396]},
        "lies": {"dtype": "F32", "shape": [3], "data_offsets": [0, 8]},
    }
    values = np.array([1.5, -2], np.float32).view(np.uint32) >> 16
    payload = encode_safetensors(header, values.astype("<u2").tobytes() + bytes(4))
    found = {array["name"]: array for array in previews.array("safetensors", payload)["arrays"]}
    assert (found["half"]["maximum"], found["half"]["minimum"]) == (1.5, -2)
    assert all("problem" in found[name] for name in ("tiny", "out", "lies"))
    with pytest.raises(PreviewRefused, match="allow_pickle"):
        previews.array("npy", encode_npy([None], pickled=True))
    with pytest.raises(PreviewRefused):
        previews.array("txt", b"no array")


@pytest.mark.parametrize("kind", ["wav", "flac", "ogg", "mp3", "m4a", "opus"])
def test_waveforms_follow_the_sound(previews, kind):
    """Silence, then noise of half the range: the peaks show where it begins, in every format."""
    generator = np.random.default_rng(1)
    samples = np.concatenate([np.zeros(16_000), generator.uniform(-0.5, 0.5, 16_000)]).astype(np.float32)[None]
    found = previews.waveform(kind, encode_sound(kind, samples, 16_000), 100)
    assert math.isclose(found["duration_seconds"], 2, rel_tol=0.1)
    assert found["rate"] in (16_000, 48_000)
    assert found["channels"] == 1
    peaks = np.array(found["peaks"])
    assert 90 <= len(peaks) <= 100
    assert np.abs(peaks[: len(peaks) // 3]).max() < 0.1
    # encoders add silence at the end
    assert np.abs(peaks[-len(peaks) // 3 : -6]).min() > 0.25
    assert np.abs(peaks).max() <= 1
    assert not found["truncated"]
    json.dumps(found, allow_nan=False)


def test_peaks_are_exact_and_channels_are_told_apart(previews):
    """Each column has the least and greatest sample of its frames, over all channels and for each."""
    samples = np.random.default_rng(0).integers(-32768, 32767, (10_007, 3)).astype(np.int16)
    found = previews.waveform("wav", encode_wav(samples), 64)
    edges = [number * 10_007 // 64 for number in range(65)]
    for column in range(64):
        part = samples[edges[column] : edges[column + 1]] / 32768
        assert np.allclose(found["peaks"][column], [part.min(), part.max()], atol=1e-4)
        for channel in range(3):
            expected = [part[:, channel].min(), part[:, channel].max()]
            assert np.allclose(found["by_channel"][channel][column], expected, atol=1e-4)


def test_long_sound_is_sampled(previews):
    """Of an hour of sound, a stretch of each column is read, and the answer says so."""
    samples = np.zeros((8000 * 3600 // 4, 1), np.int8)
    stream = io.BytesIO()
    soundfile: Any = importlib.import_module("soundfile")

    with soundfile.SoundFile(stream, "w", 8000, 8, format="WAV", subtype="PCM_U8") as file:
        block = np.zeros((1 << 16, 8), np.int16)
        for _ in range(0, len(samples), 1 << 16):
            file.write(block)
    assert len(stream.getvalue()) < 64 << 20
    found = previews.waveform("wav", stream.getvalue(), 1000)
    assert found["sampled"]
    assert len(found["peaks"]) == 1000
    assert found["duration_seconds"] > 890


def encode_adts(samples):
    """Return frames of AAC, each with its mark."""
    av: Any = importlib.import_module("av")
    stream = io.BytesIO()
    with av.open(stream, "w", format="adts") as container:
        track = container.add_stream("aac", rate=48_000, layout="mono", bit_rate=256_000)
        frame = av.AudioFrame.from_ndarray(samples, format="fltp", layout="mono")
        frame.sample_rate = 48_000
        container.mux([*track.encode(frame), *track.encode()])
    return stream.getvalue()


def make_long_sound(kind):
    """Return a sound whose second half is four times as loud as its first, of more bytes than all pieces have."""
    generator = np.random.default_rng(2)
    halves = [generator.uniform(-loud, loud, (1, 48_000 * 8)).astype(np.float32) for loud in (0.2, 0.8)]
    if kind in ("wav", "flac"):
        return encode_sound(kind, np.concatenate([np.tile(half, 4) for half in halves], axis=1), 48_000)
    # frames and pages stand alone: those of some seconds are repeated
    head, bodies = b"", []
    if kind in ("mp3", "aac"):
        bodies = [encode_adts(half) if kind == "aac" else encode_sound(kind, half, 48_000) for half in halves]
    else:
        head, bodies = split_pages(encode_sound(kind, np.concatenate(halves, axis=1), 48_000), 48_000 * 7)
    return head + b"".join(body * (3_600_000 // len(body) + 1) for body in bodies)


def split_pages(content, frames):
    """Return the pages of headers of an Ogg file, and those until and after a number of frames, without the last."""
    parts = {"headers": b"", "first": b"", "second": b""}
    while content:
        length = 27 + content[26] + sum(content[27 : 27 + content[26]])
        time = int.from_bytes(content[6:14], "little", signed=True)
        part = "headers" if time <= 0 and not parts["first"] else "first" if time <= frames else "second"
        # the last page ends the stream
        parts[part] += content[:length] if length < len(content) else b""
        content = content[length:]
    return parts["headers"], [parts["first"], parts["second"]]


@pytest.mark.parametrize("kind", ["wav", "flac", "mp3", "aac", "ogg", "opus"])
def test_pieces_of_a_long_sound_decode_by_themselves(previews, kind):
    """From any place in the file a piece decodes: the outline follows the sound, and few of its bytes are read."""
    content = make_long_sound(kind)
    read: list[int] = []

    def take(start, stop):
        read.append(stop - start)
        return content[start:stop]

    sound = read_pieces(len(content), take)
    assert sound is not None
    assert sum(read) <= 96 * (64 << 10) + (64 << 10)
    found = previews.outline(kind, sound, read_media_header(content[:65536], len(content), take))
    assert (found["sampled"], found["truncated"], found["rate"], found["channels"]) == (True, False, 48_000, 1)
    assert 1 < found["shown_seconds"]
    peaks = np.abs(np.array(found["peaks"])).max(axis=1)
    assert len(peaks) == 96
    assert peaks.min() > 0.15
    # a packet that ends where pages are repeated is noise
    assert np.median(peaks[:40]) < 0.5
    assert np.median(peaks[-40:]) > 0.7


def test_pieces_of_damaged_sound(previews):
    """Stretches that do not decode are gaps, and counted; a sound of which none does is refused."""
    content = bytearray(make_long_sound("flac"))
    middle = len(content) // 2
    content[middle:] = bytes(len(content) - middle)
    sound = read_pieces(len(content), lambda start, stop: bytes(content[start:stop]))
    assert sound is not None
    found = previews.outline("flac", sound, {})
    assert len(found["peaks"]) == 96
    assert found["note"] == "48 of 96 stretches do not decode"
    assert found["peaks"][70] == [0, 0]
    with pytest.raises(PreviewRefused, match="in the middle"):
        previews.outline("flac", sound._replace(pieces=[bytes(65536)] * 3), {})


_FORMAT = b"RIFF\0\0\0\0WAVEfmt "


@pytest.mark.parametrize(
    "start",
    [
        b"", b"OggS", b"OggS" * 9000, b"RIFF\0\0\0\0WAVE", b"RIFF\0\0\0\0WAVEdata", _FORMAT + b"\xff" * 4,
        _FORMAT + b"\x10\0\0\0" + bytes(16) + b"data\0\0\0\0", b"ID3" + b"\x7f" * 9, b"\0\xff",
    ],
)  # fmt: skip
def test_headers_that_tell_no_pieces(start):
    """Headers that are cut, empty or too long tell no pieces, and no reading ends outside the field."""
    for size in (len(start), 7 << 20):
        content = start + bytes(size - len(start))

        def read(begin, stop, content=content):
            assert 0 <= begin <= stop <= len(content)
            return content[begin:stop]

        assert read_pieces(size, read) is None


def test_a_long_coded_sound_is_not_decoded_whole(previews):
    """Of an hour of MP3 that fits into memory, pieces are decoded as well; the duration is that of all of it."""
    # without the count of frames that the encoder writes
    content = make_long_sound("mp3").replace(b"Xing", bytes(4)).replace(b"Info", bytes(4)) * 5
    found = previews.waveform("mp3", content, 480)
    assert found["sampled"]
    assert len(found["peaks"]) == 96
    assert found["shown_seconds"] < found["duration_seconds"] / 4


def test_videos_show_their_first_frame_and_tell_their_headers(previews):
    """The first of five grey frames; size, rate and codec; of a cut file what its beginning holds."""
    video = encode_video(size=(160, 120))
    image, _ = show(previews, "mp4", video)
    assert 20 < image.getpixel((9, 9))[0] < 60
    found = previews.media("mp4", video)
    assert (found["video"]["width"], found["video"]["height"], found["video"]["frame_rate"]) == (160, 120, 10)
    webm = encode_video("webm", frames=20)
    assert show(previews, "webm", webm[:-100], partial=True)[0].size == (32, 24)
    with pytest.raises(PreviewRefused):
        previews.thumbnail("mp4", b"\0\0\0\x18ftypmp42" + bytes(100), 32)
    with pytest.raises(PreviewRefused):
        previews.media("txt", b"text")


def test_media_ask_nothing_of_other_files_or_the_network(previews, tmp_path):
    """Playlists, session descriptions and concatenations that name files or servers are refused."""
    secret = tmp_path / "secret.wav"
    secret.write_bytes(FIELDS["wav"]())
    for text in (
        f"#EXTM3U\n#EXT-X-TARGETDURATION:9\n#EXTINF:9,\n{secret}\n#EXT-X-ENDLIST\n",
        f"ffconcat version 1.0\nfile {secret}\n",
        "v=0\no=- 0 0 IN IP4 127.0.0.1\ns=x\nc=IN IP4 127.0.0.1\nt=0 0\nm=audio 5004 RTP/AVP 96\n",
    ):
        for name in ("mp4", "mp3", "wav"):
            with pytest.raises(PreviewRefused):
                previews.waveform(name, text.encode(), 10)
            with pytest.raises(PreviewRefused):
                previews.thumbnail(name, text.encode(), 10)


def test_extensions_of_images_that_need_plugins(previews):
    """HEIF and JPEG XL are shown where their packages are installed."""
    for package, kind, name in (("pillow_heif", "HEIF", "heic"), ("pillow_jxl", "JXL", "jxl")):
        module = pytest.importorskip(package)
        if package == "pillow_heif":
            module.register_heif_opener()
        image, _ = show(previews, name, encode_image(kind))
        assert image.size == (32, 19)
