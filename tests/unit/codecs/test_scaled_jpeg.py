"""JPEGs decoded at a fraction of their size, because that is enough."""

import io

import numpy as np
import pytest

import webdataset as wds
from webdataset.codecs.images import decode, output_buffer
from webdataset.core.errors import UsageError

image = pytest.importorskip("PIL.Image")


def smooth(height=203, width=310, kind="JPEG", mode="RGB", **options):
    """Return a picture without noise."""
    small = np.random.default_rng(3).integers(0, 255, (6, 8, 3), dtype=np.uint8)
    stream = io.BytesIO()
    image.fromarray(small).resize((width, height), image.BICUBIC).convert(mode).save(stream, kind, **options)
    return stream.getvalue()


@pytest.mark.parametrize(
    ("least", "shape"),
    [
        (25, (26, 39, 3)),
        (26, (26, 39, 3)),
        (27, (51, 78, 3)),
        ((30, 79), (102, 155, 3)),
        (103, (203, 310, 3)),
        (9999, (203, 310, 3)),
    ],
)
def test_the_smallest_scale_that_is_large_enough(least, shape):
    """Both sides are at least as long as was asked for, at 1/8, 1/4, 1/2, or the full size."""
    decoded = wds.imagehandler("rgb8", least=least)("x.jpg", smooth())
    assert decoded.shape == shape
    assert decoded.dtype == np.uint8


@pytest.mark.parametrize("mode", ["RGB", "L", "CMYK"])
@pytest.mark.parametrize("subsampling", [0, 1, 2])
@pytest.mark.parametrize("progressive", [False, True])
def test_both_libraries_give_the_same_pixels(monkeypatch, mode, subsampling, progressive):
    """What is decoded does not depend on whether simplejpeg is installed."""
    pytest.importorskip("simplejpeg")
    data = smooth(mode=mode, subsampling=subsampling, progressive=progressive)
    for wanted in ("RGB", "L"):
        for least in ((20, 20), (50, 50), (90, 90)):
            fast = decode.decode_pixels(data, wanted, least=least)
            monkeypatch.setattr(decode, "_simplejpeg", lambda: None)
            assert np.array_equal(decode.decode_pixels(data, wanted, least=least), fast)
            monkeypatch.undo()


def test_scaled_pictures_look_like_reduced_ones():
    """A scaled picture is about what reducing the whole one gives."""
    data = smooth(256, 256)
    whole = decode.decode_pixels(data, "RGB").astype(float)
    scaled = decode.decode_pixels(data, "RGB", least=(64, 64)).astype(float)
    reduced = whole.reshape(64, 4, 64, 4, 3).mean((1, 3))
    assert scaled.shape == (64, 64, 3)
    assert np.abs(scaled - reduced).mean() < 2


def test_other_formats_and_no_wish_keep_the_full_size():
    """Only JPEGs are scaled, and only where it was asked for."""
    assert wds.imagehandler("rgb8", least=20)("x.png", smooth(kind="PNG")).shape == (203, 310, 3)
    assert wds.imagehandler("rgb8")("x.jpg", smooth()).shape == (203, 310, 3)
    assert wds.imagehandler("rgb", least=20)("x.jpg", smooth()).dtype == np.float32


def test_scaled_pictures_land_in_the_batch():
    """The row that is offered has the scaled size."""
    pytest.importorskip("simplejpeg")
    asked = []

    def giver(shape, dtype):
        asked.append((shape, dtype))
        return np.empty(shape, dtype)

    with output_buffer.use_provider(giver):
        decoded = decode.decode_pixels(smooth(), "RGB", least=(50, 50))
    assert asked == [((51, 78, 3), np.dtype(np.uint8))]
    assert np.array_equal(decoded, decode.decode_pixels(smooth(), "RGB", least=(50, 50)))


def test_wrong_sizes_are_refused():
    """A size below one, and one for Pillow images, mean nothing."""
    for spec, least in (("rgb8", 0), ("rgb8", (3, 0)), ("pil", 30)):
        with pytest.raises(UsageError, match="least"):
            wds.imagehandler(spec, least=least)


def test_a_pipeline_decodes_at_a_scale(tmp_path):
    """The handler is given to decode()."""
    with wds.TarWriter(str(tmp_path / "a.tar"), encoder=False) as writer:
        writer.write({"__key__": "a", "jpg": smooth()})
    dataset = wds.WebDataset(str(tmp_path / "a.tar")).decode(wds.imagehandler("rgb8", least=(90, 90)))
    assert next(iter(dataset))["jpg"].shape == (102, 155, 3)
