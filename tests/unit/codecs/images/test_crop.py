"""Crops that are decoded at the scale that they need: against Pillow, and over what is drawn."""

import collections
import io
import math
import pickle
import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import webdataset as wds
from webdataset.codecs.images import crop, decode
from webdataset.core.errors import FieldTooLarge, UsageError

image = pytest.importorskip("PIL.Image")


def make_image(height=203, width=310, kind="JPEG", mode="RGB", **options):
    """Return a picture without noise, encoded."""
    small = np.random.default_rng(3).integers(0, 255, (6, 8, 3), dtype=np.uint8)
    stream = io.BytesIO()
    image.fromarray(small).resize((width, height), image.BICUBIC).convert(mode).save(stream, kind, **options)
    return stream.getvalue()


def crop_with_pillow(data, box, size, resample="bilinear"):
    """Return what Pillow makes of the full image."""
    whole = image.open(io.BytesIO(data)).convert("RGB")
    return np.asarray(whole.crop(box).resize(size[::-1], image.Resampling[resample.upper()]))


@pytest.fixture(params=["pillow", "torch"])
def resizer(request):
    """Return what resizes."""
    if request.param == "torch":
        pytest.importorskip("torch")
    return request.param


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP"])
@pytest.mark.parametrize("resample", ["bilinear", "bicubic"])
@pytest.mark.parametrize("flip", [False, True])
def test_what_is_decoded_in_full_is_what_pillow_makes(resizer, kind, resample, flip):
    """Enlarged, kept and reduced by less than two, the values are Pillow's; torch's differ by 2 at most."""
    data = make_image(kind=kind)
    for box, size in [
        ((10, 20, 110, 90), (70, 100)),
        ((10, 20, 110, 90), (224, 224)),
        ((0, 0, 310, 203), (150, 200)),
        ((309, 202, 310, 203), (3, 5)),
        ((5, 0, 9, 203), (200, 7)),
    ]:
        expected = crop_with_pillow(data, box, size, resample)
        found = wds.decode_crop(data, box, size, flip=flip, resample=resample, resizer=resizer)
        assert found.shape == (*size, 3)
        assert found.dtype == np.uint8
        assert found.flags.c_contiguous
        assert found.flags.writeable
        difference = np.abs(found[:, :: -1 if flip else 1].astype(int) - expected)
        assert difference.max() <= (0 if resizer == "pillow" else 2)


@pytest.mark.parametrize(("side", "factor"), [(24, 8), (25, 8), (26, 4), (50, 4), (51, 2), (100, 2), (101, 1)])
def test_a_jpeg_is_decoded_as_large_as_the_part_needs(monkeypatch, side, factor):
    """At 1/8, 1/4, 1/2 or in full: the part is at least as large as what is wanted, or is all there is."""
    sizes = []

    def watch(*arguments, **options):
        pixels = decode_pixels(*arguments, **options)
        sizes.append(pixels.shape[:2])
        return pixels

    decode_pixels = decode.decode_pixels
    monkeypatch.setattr(decode, "decode_pixels", watch)
    data, box = make_image(400, 600), (100, 100, 300, 300)
    found = wds.decode_crop(data, box, side)
    assert sizes == [(-(-400 // factor), -(-600 // factor))]
    assert np.abs(found.astype(int) - crop_with_pillow(data, box, (side, side))).mean() < 2


@pytest.mark.parametrize("box", [(101.5, 33.25, 290.75, 188.5), (3, 5, 309, 201), (0, 0, 310, 203)])
@pytest.mark.parametrize("side", [12, 20, 40, 70])
def test_a_scaled_part_stays_in_its_place(resizer, box, side):
    """A picture that is a ramp shows the coordinates: edges are met to less than a pixel of what is decoded."""
    across = np.tile(np.linspace(0, 255, 310), (203, 1)).round().astype(np.uint8)
    down = np.tile(np.linspace(0, 255, 203)[:, None], (1, 310)).round().astype(np.uint8)
    stream = io.BytesIO()
    image.fromarray(np.stack([across, down, down], 2)).save(stream, "JPEG", quality=98, subsampling=0)
    found = wds.decode_crop(stream.getvalue(), box, side, resizer=resizer).astype(float)
    middles = (np.arange(side) + 0.5) / side
    expected = (box[0] + middles * (box[2] - box[0]) - 0.5) * 255 / 309
    assert np.abs(found[:, :, 0].mean(0) - expected)[1:-1].max() < (2.5 if resizer == "pillow" else 8)
    expected = (box[1] + middles * (box[3] - box[1]) - 0.5) * 255 / 202
    assert np.abs(found[:, :, 1].mean(1) - expected)[1:-1].max() < (2.5 if resizer == "pillow" else 8)


@pytest.mark.parametrize(
    ("kind", "mode", "options"),
    [
        ("JPEG", "L", {}),
        ("JPEG", "CMYK", {}),
        ("JPEG", "RGB", {"progressive": True}),
        ("JPEG", "RGB", {"subsampling": 0}),
        ("PNG", "RGBA", {}),
        ("PNG", "P", {}),
        ("PNG", "1", {}),
        ("PNG", "LA", {}),
        ("GIF", "P", {}),
        ("BMP", "RGB", {}),
        ("TIFF", "L", {}),
    ],
)
def test_every_format_gives_rgb(kind, mode, options):
    """Grey, palette, alpha and CMYK become three channels, as ``decode("rgb8")`` makes them."""
    data = make_image(kind=kind, mode=mode, **options)
    whole = wds.imagehandler("rgb8")(f"x.{kind.lower().replace('jpeg', 'jpg')}", data)
    expected = np.asarray(image.fromarray(whole).crop((30, 40, 130, 140)).resize((90, 80), image.BILINEAR))
    assert np.array_equal(wds.decode_crop(data, (30, 40, 130, 140), (80, 90)), expected)


def test_without_simplejpeg_the_values_are_the_same(monkeypatch):
    """Pillow decodes at the same scales."""
    pytest.importorskip("simplejpeg")
    data = make_image(411, 603)
    fast = [wds.decode_crop(data, (50.5, 20, 450, 400), side) for side in (20, 60, 120, 300)]
    monkeypatch.setattr(decode, "_simplejpeg", lambda: None)
    slow = [wds.decode_crop(data, (50.5, 20, 450, 400), side) for side in (20, 60, 120, 300)]
    assert all(np.array_equal(one, other) for one, other in zip(fast, slow, strict=True))


class Record(random.Random):
    """A generator; for numpy's, only ``random`` is used, too."""

    getrandbits = None


def test_drawn_parts_have_the_shares_and_shapes_that_were_asked_for():
    """Area, width to height and place are spread over all that is allowed, and over nothing else."""
    rng = Record(0)
    boxes = [crop._draw_box(rng, 300, 400, (0.25, 0.5), (3 / 4, 4 / 3)) for _ in range(4000)]
    areas = [(right - left) * (lower - upper) / 120_000 for left, upper, right, lower in boxes]
    shapes = [(right - left) / (lower - upper) for left, upper, right, lower in boxes]
    assert 0.245 < min(areas) < 0.255
    assert 0.495 < max(areas) < 0.505
    assert 0.74 < min(shapes) < 0.76
    assert 1.31 < max(shapes) < 1.35
    assert abs(np.mean(areas) - 0.375) < 0.005
    assert abs(np.mean(np.log(shapes))) < 0.01
    assert (
        abs(np.mean([left / (400 - (right - left)) for left, _, right, _ in boxes if right - left < 400]) - 0.5) < 0.02
    )
    assert all(0 <= left < right <= 400 and 0 <= upper < lower <= 300 for left, upper, right, lower in boxes)
    assert min(left for left, *_ in boxes) == min(upper for _, upper, *_ in boxes) == 0
    assert max(box[2] for box in boxes) == 400
    assert max(box[3] for box in boxes) == 300


def test_an_image_in_which_no_part_fits_gives_its_middle():
    """A banner has no part of half its area that is nearly square."""
    rng = random.Random(0)
    assert crop._draw_box(rng, 20, 2000, (0.5, 1), (3 / 4, 4 / 3)) == pytest.approx((986 + 2 / 3, 0, 1013 + 1 / 3, 20))
    assert crop._draw_box(rng, 2000, 20, (0.5, 1), (3 / 4, 4 / 3)) == pytest.approx((0, 986 + 2 / 3, 20, 1013 + 1 / 3))
    assert wds.random_resized_crop(make_image(20, 900), 16, rng, scale=(0.5, 1)).shape == (16, 16, 3)


def test_half_of_the_parts_are_mirrored():
    """With ``flip=0`` none is, with 1 all are."""
    data = make_image()
    for flip, low, high in ((0.5, 80, 120), (0, 0, 0), (1, 200, 200), (0.1, 5, 40)):
        rng, mirrored = random.Random(1), 0
        for _ in range(200):
            pixels = wds.random_resized_crop(data, 8, rng, scale=(1, 1), ratio=(310 / 203, 310 / 203), flip=flip)
            plain = wds.decode_crop(data, (0, 0, 310, 203), 8)
            assert np.array_equal(pixels, plain) or np.array_equal(pixels, plain[:, ::-1])
            mirrored += np.array_equal(pixels, plain[:, ::-1])
        assert low <= mirrored <= high


@pytest.mark.parametrize("shape", [(300, 400), (400, 300), (256, 256), (100, 900), (30, 40)])
@pytest.mark.parametrize("resize", [None, 256, 224, 300])
def test_the_middle_is_that_of_the_resized_image(shape, resize):
    """Its side stands to the image's shorter side as ``size`` to ``resize``, but never reaches out of the image."""
    left, upper, right, lower = crop._find_middle(shape[0], shape[1], (224, 224), resize)
    share = min(1.0, 224 / resize) if resize else 1.0
    assert right - left == pytest.approx(min(shape) * share)
    assert lower - upper == pytest.approx(min(shape) * share)
    assert left + right == pytest.approx(shape[1])
    assert upper + lower == pytest.approx(shape[0])
    assert wds.center_crop(make_image(*shape), 224, resize=resize).shape == (224, 224, 3)


def test_the_middle_of_another_shape():
    """The largest part of that shape, in the middle."""
    data = make_image(200, 300, "PNG")
    assert np.array_equal(wds.center_crop(data, (50, 150)), crop_with_pillow(data, (0, 50, 300, 150), (50, 150)))
    assert np.array_equal(wds.center_crop(data, (100, 50)), crop_with_pillow(data, (100, 0, 200, 200), (100, 50)))


@given(
    height=st.integers(1, 70),
    width=st.integers(1, 70),
    size=st.tuples(st.integers(1, 40), st.integers(1, 40)),
    seed=st.integers(0, 1 << 32),
    low=st.floats(0.01, 1),
    kind=st.sampled_from(["JPEG", "PNG"]),
)
@settings(max_examples=300, deadline=None)
def test_any_image_gives_any_size(height, width, size, seed, low, kind):
    """Images and parts of a few pixels, too, with both generators."""
    data = make_image(height, width, kind)
    for rng in (random.Random(seed), np.random.default_rng(seed)):
        assert wds.random_resized_crop(data, size, rng, scale=(low, 1)).shape == (*size, 3)
    assert wds.center_crop(data, size, resize=17).shape == (*size, 3)


@pytest.fixture
def shards(tmp_path):
    """Return the pattern of shards of pictures, of which every third has the size of the rows of a batch."""
    with wds.ShardWriter(str(tmp_path / "%02d.tar"), maxcount=10, verbose=0) as sink:
        for number in range(60):
            sides = (64, 64) if number % 3 == 0 else (100 + number, 150)
            sink.write({"__key__": f"{number:03d}", "jpg": make_image(*sides), "cls": number})
    return str(tmp_path / "{00..05}.tar")


def augment(sample, rng):
    """Return a crop and its class."""
    return wds.random_resized_crop(sample["jpg"], 64, rng, scale=(0.5, 1)), int(sample["cls"])


def collect(loader):
    """Return pixels by class."""
    found = collections.defaultdict(list)
    for images, classes in loader:
        for pixels, number in zip(images, classes, strict=True):
            found[int(number)].append(np.array(pixels).tobytes())
    return dict(found)


@pytest.mark.parametrize(("workers", "mode"), [(0, "threads"), (3, "threads"), (2, "processes")])
def test_crops_are_the_same_with_any_workers_and_after_a_resume(shards, workers, mode):
    """They follow from seed, epoch and sample; those that are decoded as large as a row of the batch, too."""
    dataset = wds.WebDataset(shards, seed=5, shardshuffle=True).shuffle(20).map(augment, rng=True).elastic(streams=6)
    expected = collect(([pixels], [number]) for pixels, number in pickle.loads(pickle.dumps(dataset)))
    assert sorted(expected) == list(range(60))
    with wds.Loader(dataset, batch_size=7, workers=workers, mode=mode) as loader:
        batches = iter(loader)
        first = collect([next(batches), next(batches)])
        state = loader.state_dict()
    with wds.Loader(dataset, batch_size=7, workers=1) as loader:
        loader.load_state_dict(state)
        rest = collect(loader)
    assert not set(first) & set(rest)
    assert {**first, **rest} == expected


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"size": 0}, "size=0 is no height"),
        ({"data": np.zeros((9, 9, 3), np.uint8)}, "not from a ndarray: write decode() without"),
        ({"size": (1, 2, 3)}, "is no height"),
        ({"size": "224"}, "is no height"),
        ({"size": 2.5}, "is no height"),
        ({"scale": (0, 1)}, "scale="),
        ({"scale": (0.5, 1.5)}, "at most 1"),
        ({"scale": (1, 0.5)}, "the smaller first"),
        ({"scale": (math.nan, 1)}, "scale="),
        ({"ratio": (0.5, math.inf)}, "ratio="),
        ({"ratio": (1, 2, 3)}, "ratio="),
        ({"flip": 2}, "no probability"),
        ({"rng": 5}, "map(f, rng=True)"),
        ({"rng": None}, "map(f, rng=True)"),
        ({"resample": "cubic"}, "'bicubic'"),
        ({"resizer": "cv2"}, "'torch'"),
        ({"resizer": "torch", "resample": "lanczos"}, "torch has 'bilinear', 'bicubic'"),
    ],
)
def test_wrong_arguments_are_named(change, says):
    """Each says what to write."""
    arguments = {"data": make_image(), "size": 8, "rng": random.Random(0)} | change
    with pytest.raises(UsageError) as caught:
        wds.random_resized_crop(arguments.pop("data"), arguments.pop("size"), arguments.pop("rng"), **arguments)
    assert says in str(caught.value)


@pytest.mark.parametrize("box", [(0, 0, 311, 10), (-1, 0, 10, 10), (10, 10, 10, 20), (20, 10, 10, 20), (0, 0, 9, 204)])
def test_a_box_that_is_no_part_is_refused(box):
    """It says how large the image is."""
    with pytest.raises(UsageError, match="310 wide and 203 high"):
        wds.decode_crop(make_image(), box, 8)
    with pytest.raises(UsageError, match="resize=0"):
        wds.center_crop(make_image(), 8, resize=0)


@pytest.mark.parametrize("data", [b"", b"no image", make_image()[:30], b"\xff\xd8" + bytes(100)])
def test_damaged_images_are_refused(data):
    """As the decoder refuses them."""
    with pytest.raises(OSError, match=r"image|Truncated"):
        wds.center_crop(data, 8)


def test_the_limit_of_pixels_holds(monkeypatch):
    """It is that of the full image, also where less is decoded."""
    monkeypatch.setenv("WDS_MAX_IMAGE_PIXELS", "60000")
    with pytest.raises(FieldTooLarge, match="310 x 203"):
        wds.center_crop(make_image(), 8)
