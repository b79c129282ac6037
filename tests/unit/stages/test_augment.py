"""Image transforms: what they do to an image, and that they are reproducible."""

import pytest

from webdataset.core.errors import MissingField, UsageError
from webdataset.flow.run import Flow
from webdataset.stages import augment
from webdataset.stages.base import Run

Image = pytest.importorskip("PIL.Image")


def images(count=30, size=(40, 20)):
    """Return samples with one image each, a gradient, and a mask beside it."""
    picture = Image.linear_gradient("L").resize(size).convert("RGB")
    return [{"__key__": f"k{n}", "jpg": picture.copy(), "png": picture.convert("L"), "cls": n} for n in range(count)]


def run(stage, samples, seed=1, epoch=0):
    """Return what a stage makes of samples in one run."""
    with Flow([samples, stage], Run(seed=seed, epoch=epoch)) as flow:
        return list(flow)


def look(samples):
    """Return what can be compared of some samples."""
    return [(sample["__key__"], sample["jpg"].size, sample["jpg"].tobytes()) for sample in samples]


STAGES = [
    augment.scale(0.5, 2),
    augment.scaleprob(0.5),
    augment.rotprob(0.5),
    augment.gray(),
    augment.noise(0.1),
    augment.patches(8, 3),
]


@pytest.mark.parametrize("stage", STAGES, ids=repr)
def test_reproducible(stage):
    """Equal for equal seeds, and different for others, and for a sample that comes twice in an epoch."""
    whole = look(run(stage, images()))
    assert look(run(stage, images())) == whole
    if "gray" not in repr(stage):
        twice = [pixels for _, *pixels in look(run(stage, images(1) * 30))]
        assert any(pixels not in twice[: len(twice) // 30] for pixels in twice)
        assert look(run(stage, images(), seed=2)) != whole
        assert look(run(stage, images(), epoch=1)) != whole


@pytest.mark.parametrize("stage", STAGES, ids=repr)
def test_snapshots(stage):
    """A run that is restored, with a shuffle's buffer of changed images, goes on as it would have."""
    import json

    from webdataset import filters

    stages = [images(12), *getattr(stage, "steps", [stage]), filters.shuffle(5, initial=3)]
    with Flow(stages, Run(seed=3, tracked=True)) as flow:
        whole = look(list(flow))
    for given in (0, 4, 11):
        flow = Flow(stages, Run(seed=3, tracked=True))
        first = look([next(flow) for _ in range(given)])
        state = json.loads(json.dumps(flow.snapshot()))
        flow.close()
        with Flow(stages, Run(), state) as again:
            assert first + look(list(again)) == whole


def test_scale():
    """Sizes lie between the bounds, on both sides of 1; all images of a sample alike."""
    found = run(augment.scale(0.5, 2), images(200))
    widths = [sample["jpg"].size[0] for sample in found]
    assert min(widths) >= 20
    assert max(widths) <= 80
    assert 70 < sum(width > 40 for width in widths) < 130
    assert all(sample["jpg"].size == sample["png"].size for sample in found)
    assert {sample["jpg"].size for sample in run(augment.scale(1e-6, 1e-6), images(2))} == {(1, 1)}
    with pytest.raises(UsageError, match="pixels"):
        run(augment.scale(1e5, 1e5), images(1))


def test_scaleprob():
    """With probability 0 nothing changes, with 1 everything loses detail and keeps its size."""
    plain = look(images())
    assert look(run(augment.scaleprob(0), images())) == plain
    pixels = Image.effect_noise((40, 40), 200).convert("RGB")
    sample = {"__key__": "k", "jpg": pixels}
    changed = run(augment.scaleprob(1), [sample])[0]["jpg"]
    assert changed.size == (40, 40)

    def roughness(image):
        values = list(image.convert("L").tobytes())
        return sum(abs(a - b) for a, b in zip(values, values[1:], strict=False))

    assert roughness(changed) < roughness(pixels) / 2
    changed = sum(
        a != b for a, b in zip(look(run(augment.scaleprob(0.3), images(300))), look(images(300)), strict=True)
    )
    assert 60 < changed < 120


def test_rotprob():
    """With probability 0 nothing turns, with 1 everything, by 90, 180 or 270 degrees."""
    assert look(run(augment.rotprob(0), images())) == look(images())
    found = run(augment.rotprob(1), images(90))
    sizes = [sample["jpg"].size for sample in found]
    assert 40 < sizes.count((20, 40)) < 80
    assert all(after != before for after, before in zip(look(found), look(images(90)), strict=True))


def test_gray_and_noise():
    """Grey images; noise of the given deviation, and none of 0."""
    assert {sample["jpg"].mode for sample in run(augment.gray(), images())} == {"L"}
    assert look(run(augment.noise(0), images())) == look(images())
    grey = Image.new("L", (100, 100), 128)
    noisy = run(augment.noise(0.1), [{"__key__": "k", "jpg": grey}])[0]["jpg"]
    values = [value - 128 for value in noisy.tobytes()]
    deviation = (sum(value * value for value in values) / len(values)) ** 0.5
    assert 24 < deviation < 27
    palette = Image.new("P", (4, 4))
    assert run(augment.noise(0.1), [{"__key__": "k", "jpg": palette}])[0]["jpg"].mode == "RGB"


def test_patches():
    """Pieces of the size asked for, with keys of their own, alike in all images; black beyond the image."""
    found = run(augment.patches(8, 3), images(2))
    assert [sample["__key__"] for sample in found] == ["k0/0", "k0/1", "k0/2", "k1/0", "k1/1", "k1/2"]
    assert {sample["jpg"].size for sample in found} == {sample["png"].size for sample in found} == {(8, 8)}
    assert all(sample["jpg"].convert("L").tobytes() == sample["png"].tobytes() for sample in found)
    small = run(augment.patches(64, 1), images(1))[0]["jpg"]
    assert (small.size, small.getpixel((63, 63))) == ((64, 64), (0, 0, 0))


def test_arguments():
    """What makes no sense is refused when the stage is made."""
    for make in (
        lambda: augment.scale(2, 1),
        lambda: augment.scale(0, 1),
        lambda: augment.scaleprob(1.5),
        lambda: augment.rotprob(-1),
        lambda: augment.noise(-1),
        lambda: augment.patches(0, 1),
        lambda: augment.patches(100_000, 100_000),
    ):
        with pytest.raises(UsageError):
            make()


def test_without_an_image():
    """A sample that was not decoded is an error that says what to do."""
    with pytest.raises(MissingField, match="decode it with 'pil' before"):
        run(augment.gray(), [{"__key__": "k", "jpg": b"..."}])
