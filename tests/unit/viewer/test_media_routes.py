"""Previews over HTTP, from the program ``wds view`` as its users start it."""

import io
import json
import tarfile
import urllib.error
import urllib.request

import numpy as np
import pytest
from PIL import Image

import webdataset as wds
from support.command import start_wds
from support.media_fields import FIELDS, document_json, encode_image, encode_npy, encode_sound, encode_video, huge_png
from support.view_command import RunningViewer
from webdataset.viewer.media_routes import ThumbnailCache
from webdataset.viewer.previews import Thumbnail

_LONG_WAV = 70 << 20


class Viewer:
    """A client of a viewer that runs.

    Args:
        url: as printed, with the token.
    """

    def __init__(self, url: str) -> None:
        self._base, _, token = url.partition("/#token=")
        self._headers = {"Authorization": f"Bearer {token}"}

    def get(self, path: str, **parameters: object) -> tuple[int, dict[str, str], bytes]:
        """Return status, headers and body of an answer."""
        query = "&".join(f"{name}={value}" for name, value in parameters.items())
        request = urllib.request.Request(f"{self._base}/api/{path}?{query}", headers=self._headers)
        try:
            with urllib.request.urlopen(request, timeout=120) as answer:
                return answer.status, {name.lower(): value for name, value in answer.headers.items()}, answer.read()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, {name.lower(): value for name, value in error.headers.items()}, error.read()

    def json(self, path: str, **parameters: object) -> dict:
        """Return an answer that succeeded."""
        status, _, body = self.get(path, **parameters)
        assert status == 200, body
        return json.loads(body)

    def error(self, path: str, **parameters: object) -> tuple[int, dict]:
        """Return status and error of an answer that failed."""
        status, _, body = self.get(path, **parameters)
        return status, json.loads(body)["error"]


def long_wav() -> bytes:
    """Return a WAV file of more bytes than previews are made of."""
    head = b"RIFF" + (_LONG_WAV + 36).to_bytes(4, "little") + b"WAVEfmt \x10\0\0\0\1\0\1\0"
    head += (8000).to_bytes(4, "little") + (16000).to_bytes(4, "little") + b"\2\0\x10\0data"
    return head + _LONG_WAV.to_bytes(4, "little") + bytes(_LONG_WAV)


def large_npy() -> bytes:
    """Return an npy file of more bytes than previews are made of."""
    return encode_npy(np.zeros((3000, 3000)))


@pytest.fixture(scope="module")
def viewer(tmp_path_factory):
    """``wds view`` over a shard of every kind of field."""
    place = tmp_path_factory.mktemp("view") / "x.tar"
    members = {f"0.{name}": make() for name, make in FIELDS.items()}
    members |= {f"1.{name}": content for name, content in {
        "wav": long_wav(), "npy": large_npy(), "png": huge_png(), "jpg": b"<html>no image</html>",
        "deep.png": encode_image("PNG", "I;16"), "json": b"[1, 2",
    }.items()}  # fmt: skip
    members |= {"d-x.jpg": encode_image("JPEG", size=(30, 20)), "d.json": document_json()}
    members |= {"v.mp4": encode_video(frames=9) + b"\0\0\0\x08free" + (9 << 20).to_bytes(4, "big") + b"mdat"
                + bytes((9 << 20) - 8)}  # fmt: skip
    with tarfile.open(place, "w") as archive:
        for name, content in members.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    process = start_wds("view", "--json", "--no-open", place, stdout=-1)
    try:
        yield Viewer(json.loads(process.stdout.readline())["url"])
    finally:
        process.terminate()
        for stream in (process.stdin, process.stdout, process.stderr):
            stream.close()
        assert process.wait(60) == 0


@pytest.mark.parametrize("name", ["jpg", "png", "gif", "webp", "tiff", "npy", "npz", "mp4", "webm"])
def test_thumbnails_are_pictures_that_may_be_kept(viewer, name):
    """A picture of at most the size that was asked for, private, and the same bytes when it is asked for again."""
    status, headers, body = viewer.get("thumbnail", shard=0, ordinal=0, field=name, size=20)
    assert status == 200
    assert headers["content-type"] == "image/webp"
    assert headers["cache-control"].startswith("private")
    assert headers["x-content-type-options"] == "nosniff"
    assert max(Image.open(io.BytesIO(body)).size) == 20
    assert viewer.get("thumbnail", shard=0, ordinal=0, field=name, size=20)[2] == body


def test_refusals_say_why(viewer):
    """Too many pixels, HTML, SVG, pickles, texts, and bad parameters: a status, a type and a reason each."""
    for ordinal, field, word in ((1, "png", "50000 x 50000"), (1, "jpg", "HTML"), (0, "svg", "never rendered"),
                                 (0, "pkl", "never loaded"), (0, "txt", "no image"), (0, "wav", "")):  # fmt: skip
        for _ in range(2):
            status, error = viewer.error("thumbnail", shard=0, ordinal=ordinal, field=field)
            assert (status, error["type"]) == (422, "PreviewRefused")
            assert word in error["message"]
    assert viewer.error("thumbnail", shard=0, ordinal=0, field="none")[0] in (404, 422)
    assert viewer.error("thumbnail", shard=0, ordinal=99, field="jpg")[0] == 404
    for wrong in ({"size": 0}, {"size": "x"}, {"page": -1}, {"inline": "1e9"}):
        assert viewer.error("thumbnail", shard=0, ordinal=0, field="jpg", **wrong)[0] == 400
    assert viewer.error("array", shard=0, ordinal=0, field="txt")[0] == 422
    assert viewer.error("waveform", shard=0, ordinal=0, field="txt")[0] == 422


def test_what_was_done_to_a_picture_is_told(viewer):
    """A 16-bit image is stretched, and a header says so."""
    _, headers, _ = viewer.get("thumbnail", shard=0, ordinal=1, field="deep.png")
    assert "shown from" in headers["x-preview-note"]


def test_waveforms_arrays_and_headers_of_media_are_sent(viewer):
    """What the page draws, within its limits."""
    found = viewer.json("waveform", shard=0, ordinal=0, field="wav", columns=7)
    assert len(found["peaks"]) == 7
    assert found["channels"] == 2
    assert len(viewer.json("waveform", shard=0, ordinal=0, field="wav", columns=9999)["peaks"]) == 1000
    (array,) = viewer.json("array", shard=0, ordinal=0, field="npy")["arrays"]
    assert (array["minimum"], array["maximum"], array["shape"]) == (0, 599, [20, 30])
    assert viewer.json("media", shard=0, ordinal=0, field="mp4")["video"]["width"] == 64


def test_of_large_fields_headers_tell_what_they_can(viewer):
    """A sound too large to be read whole is outlined by stretches; a large array is described by its header."""
    found = viewer.json("waveform", shard=0, ordinal=1, field="wav", columns=500)
    assert (found["sampled"], found["truncated"], len(found["peaks"])) == (True, False, 96)
    assert found["duration_seconds"] == 4587.52
    assert found["shown_seconds"] < 200
    found = viewer.json("array", shard=0, ordinal=1, field="npy")
    assert found["arrays"][0]["shape"] == [3000, 3000]
    assert "72000128 bytes" in found["note"]


def test_a_large_sound_of_which_no_piece_decodes_alone_is_refused_with_its_duration(tmp_path):
    """An MP4 file names the place of each frame in its header: it is not outlined by pieces."""
    sound = encode_sound("m4a", np.zeros((1, 16_000), np.float32), 16_000)
    free = (70 << 20).to_bytes(4, "big") + b"free" + bytes((70 << 20) - 8)
    with wds.TarWriter(str(tmp_path / "x.tar")) as sink:
        sink.write({"__key__": "a", "m4a": sound + free})
    with RunningViewer(tmp_path / "x.tar") as running:
        answer = running.ask("/api/waveform", shard=0, ordinal=0, field="m4a")
    assert answer.status == 422
    assert "it lasts 0:00:01; the field has" in answer.value["error"]["message"]


def test_documents_show_their_images_between_the_right_texts(viewer):
    """Parts in reading order; each image by the place that its part names, in another sample or in the JSON."""
    parts = viewer.json("sample", shard=0, ordinal=3)["document"]
    assert [part["kind"] for part in parts] == ["image", "text", "image", "text"]
    sizes = []
    for part in (parts[0], parts[2]):
        place = {"ordinal": part.get("ordinal", 3), "field": part["field"]}
        if "inline" in part:
            place["inline"] = part["inline"]
        status, _, body = viewer.get("thumbnail", shard=0, size=32, **place)
        assert status == 200
        sizes.append(Image.open(io.BytesIO(body)).size)
    assert sizes == [(32, 19), (30, 20)]
    assert parts[2]["caption"] == "a picture"
    assert viewer.error("thumbnail", shard=0, ordinal=3, field="json", inline=0)[0] == 422
    assert viewer.error("thumbnail", shard=0, ordinal=1, field="json", inline=0)[0] == 422


def test_of_a_large_video_only_the_beginning_is_read(viewer):
    """The first frame stands in the first megabytes; so does what tells the duration."""
    found = viewer.json("media", shard=0, ordinal=4, field="mp4")
    assert found["width"] == 64
    before = viewer.json("samples", shard=0, start=0, count=1)["read"]["bytes"]
    status, _, body = viewer.get("thumbnail", shard=0, ordinal=4, field="mp4", size=64)
    assert status == 200
    assert Image.open(io.BytesIO(body)).size == (64, 48)
    assert viewer.json("samples", shard=0, start=0, count=1)["read"]["bytes"] - before < 8 << 20


def test_the_cache_is_bounded_and_forgets_the_oldest():
    """Bytes are counted with replacements and refusals; what was used last stays."""
    cache = ThumbnailCache(10_000)
    generator = np.random.default_rng(0)
    for _ in range(500):
        key = int(generator.integers(0, 30))
        cache.put(key, Thumbnail(bytes(int(generator.integers(0, 2000)))) if key % 3 else "refused")
        assert cache.get(key) is not None
        assert cache.size_bytes <= 10_000
        kept = [cache.get(number) for number in range(30)]
        assert cache.size_bytes == sum(len(each) + 512 for each in kept if each is not None)
    cache.put("large", Thumbnail(bytes(20_000)))
    assert cache.get("large") is None
    assert cache.size_bytes == 0
