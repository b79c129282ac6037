"""Random, reproducible changes of images: the transforms that dataset specifications name.

Theory. What a sample draws depends on the run's seed and epoch, the transform, the sample's key, and how many samples
this worker has changed before: a sample that comes twice in an epoch is changed in two ways. That number is part of
the address, so that a sample in a shuffle's buffer can be made again after a restore.

Samples hold PIL images (decode with ``"pil"``). All images of one sample are changed alike.
"""

import random
from collections.abc import Callable, Iterator
from typing import Any

from webdataset.core.errors import FlowError, MissingField, UsageError
from webdataset.core.json_types import Address, JsonValue, as_count, as_pair
from webdataset.core.optional_imports import require
from webdataset.core.seeds import hash_seed
from webdataset.stages.base import Composed, Fetch, Run, Sample, Stage, StageState
from webdataset.stages.batch import unlisted

Image = Any
Change = Callable[[Image], Image]
MAX_PIXELS = 1 << 28


class ImageState(StageState):
    """What an image transform remembers: the seed of this run, and how many samples it has changed.

    Args:
        seed: what the draws of each sample follow from, with its key and ordinal.
    """

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.count = 0

    @property
    def address(self) -> Address:
        """Ordinal of the sample changed last, and its address upstream."""
        return [self.count - 1, self.origin() if self.origin is not None else None]

    def snapshot(self) -> JsonValue:
        """Return the number of samples changed."""
        return self.count

    def restore(self, state: JsonValue, fetch: Fetch) -> None:  # noqa: ARG002
        """Continue counting."""
        self.count = as_count(state)


class ImageStage(Stage[ImageState]):
    """One transform of images.

    Args:
        name: of the transform.
        draw: from a generator, the sample's first image and the arguments to the change of each image.
        *arguments: numbers, as the transform was given them.

    Flow: in order; holds nothing; resumes exactly.
    """

    state_name = "ImageStage"

    def __init__(self, name: str, draw: Callable[..., Any], *arguments: Any) -> None:
        self.name = name
        self.draw = draw
        self.arguments = arguments

    def begin(self, run: Run) -> ImageState:
        """Return the seed of this run."""
        return ImageState(hash_seed(self.name, run.entropy()))

    def flow(self, upstream: Iterator[Sample], state: ImageState) -> Iterator[object]:
        """Yield changed samples.

        Raises:
            MissingField: a sample without a PIL image.
        """
        for sample in upstream:
            state.count += 1
            yield self.make_sample(sample, state.count - 1, state.seed)

    def make_sample(self, sample: Sample, ordinal: int, seed: int) -> Any:
        """Return a sample with its images changed by what seed, key and ordinal draw."""
        names = _images(sample, self.name)
        generator = random.Random(hash_seed(seed, str(sample.get("__key__")), ordinal))  # noqa: S311  not cryptography
        return self.transform_sample(sample, names, self.draw(generator, sample[names[0]], *self.arguments))

    def transform_sample(self, sample: Sample, names: list[str], change: Change) -> Any:
        """Return a sample with its images changed."""
        return {**sample, **{name: change(sample[name]) for name in names}}

    def refetch(self, addresses: list[Address], fetch: Fetch, state: ImageState | None = None) -> list[object]:
        """Make samples once more, with the draws of their run.

        Raises:
            FlowError: without the state of the run, its draws are not known.
        """
        if state is None:
            raise FlowError(f"{self!r} makes samples again only in its own run")
        places = [as_pair(address) for address in addresses]
        numbered = zip(fetch([inner for _, inner in places]), places, strict=True)
        return [self.make_sample(sample, as_count(ordinal), state.seed) for sample, (ordinal, _) in numbered]

    def __repr__(self) -> str:
        return f"{self.name}({', '.join(map(repr, self.arguments))})"


def _images(sample: Sample, name: str) -> list[str]:
    module = require("PIL.Image", extra="images", purpose=f"the transform {name!r}")
    found = [field for field, value in sample.items() if isinstance(value, module.Image)]
    if not found:
        raise MissingField(
            f"{name}: the sample holds no PIL image, but {', '.join(map(str, sample))}: decode it with 'pil' before",
            key=sample.get("__key__"),
            url=str(sample.get("__url__")),
            stage=name,
        )
    return found


def _draw_filter(generator: random.Random) -> Any:
    kinds = require("PIL.Image", extra="images", purpose="resizing images").Resampling
    return generator.choice([kinds.BOX, kinds.BILINEAR, kinds.HAMMING, kinds.BICUBIC, kinds.LANCZOS])


def _resize(image: Image, factor: float, resampling: Any) -> Image:
    width, height = (max(1, round(side * factor)) for side in image.size)
    if width * height > MAX_PIXELS:
        raise UsageError(f"scale: {factor:g} makes an image of {width}x{height} pixels; at most {MAX_PIXELS} are made")
    return image.resize((width, height), resampling)


def _draw_scale(generator: random.Random, image: Image, low: float, high: float) -> Change:  # noqa: ARG001
    factor, resampling = low * (high / low) ** generator.random(), _draw_filter(generator)
    return lambda image: _resize(image, factor, resampling)


def scale(low: float, high: float) -> ImageStage:
    """Resize images by a factor whose logarithm is uniform, with a filter chosen at random.

    Args:
        low: the least factor, above 0.
        high: the greatest.

    Returns:
        A stage.

    Raises:
        UsageError: bounds that are none.
    """
    if not 0 < low <= high:
        raise UsageError(f"scale: [{low}, {high}] is no range of factors above 0, the smaller first")
    return ImageStage("scale", _draw_scale, low, high)


def _draw_degradation(generator: random.Random, image: Image, probability: float) -> Change:  # noqa: ARG001
    if generator.random() >= probability:
        return _keep_image
    factor, down, up = generator.uniform(2, 5), _draw_filter(generator), _draw_filter(generator)
    return lambda image: _resize(image, 1 / factor, down).resize(image.size, up)


def scaleprob(probability: float) -> ImageStage:
    """Take an image's resolution away with some probability: made smaller by a factor of 2 to 5, and large again.

    Returns:
        A stage.

    Raises:
        UsageError: no probability.
    """
    return ImageStage("scaleprob", _draw_degradation, _check_probability("scaleprob", probability))


def _draw_turn(generator: random.Random, image: Image, probability: float) -> Change:  # noqa: ARG001
    if generator.random() >= probability:
        return _keep_image
    turns = require("PIL.Image", extra="images", purpose="turning images").Transpose
    turn = generator.choice([turns.ROTATE_90, turns.ROTATE_180, turns.ROTATE_270])
    return lambda image: image.transpose(turn)


def rotprob(probability: float) -> ImageStage:
    """Turn an image by 90, 180 or 270 degrees with some probability.

    Returns:
        A stage.

    Raises:
        UsageError: no probability.
    """
    return ImageStage("rotprob", _draw_turn, _check_probability("rotprob", probability))


def _draw_gray(generator: random.Random, image: Image) -> Change:  # noqa: ARG001
    return lambda image: image.convert("L")


def gray() -> ImageStage:
    """Make images grey (PIL mode L).

    Returns:
        A stage.
    """
    return ImageStage("gray", _draw_gray)


def _draw_noise(generator: random.Random, image: Image, sigma: float) -> Change:  # noqa: ARG001
    seed = generator.getrandbits(63)
    return lambda image: _add_noise(image, sigma, seed)


def _add_noise(image: Image, sigma: float, seed: int) -> Image:
    numpy = require("numpy", extra="images", purpose="the transform 'noise'")
    module = require("PIL.Image", extra="images", purpose="the transform 'noise'")
    values = numpy.asarray(image if image.mode in ("L", "RGB") else image.convert("RGB"), dtype=numpy.float32)
    values = values + numpy.random.default_rng(seed).normal(0, 255 * sigma, values.shape)
    return module.fromarray(values.round().clip(0, 255).astype(numpy.uint8))


def noise(sigma: float) -> ImageStage:
    """Add normal noise to each pixel.

    Returns:
        A stage.

    Raises:
        UsageError: a negative number.
    """
    if not sigma >= 0:
        raise UsageError(f"noise: a standard deviation is not negative: {sigma!r}")
    return ImageStage("noise", _draw_noise, sigma)


def _draw_corners(generator: random.Random, image: Image, size: int, count: int) -> Any:
    margins = [max(0, side - size) for side in image.size]
    return [(generator.randint(0, margins[0]), generator.randint(0, margins[1])) for _ in range(count)]


class Patches(ImageStage):
    """Lists of samples, each with a piece of the image in place of the image."""

    state_name = "Patches"

    def transform_sample(self, sample: Sample, names: list[str], change: Any) -> Any:
        """Return one sample for each corner in ``change``."""
        size = self.arguments[0]
        return [
            {
                **sample,
                "__key__": f"{sample.get('__key__')}/{number}",
                **{name: sample[name].crop((x, y, x + size, y + size)) for name in names},
            }
            for number, (x, y) in enumerate(change)
        ]


def patches(size: int = 256, count: int = 10) -> Composed:
    """Cut pieces out of images at random places; each is a sample of its own, its key that of the image and a number.

    Args:
        size: width and height in pixels; what lies outside of a smaller image is black.
        count: pieces of each image.

    Returns:
        A stage.

    Raises:
        UsageError: a size or count below 1.
    """
    if size < 1 or count < 1 or size * size * count > MAX_PIXELS:
        raise UsageError(f"patches: {count!r} of {size!r} pixels: from 1 on, and at most {MAX_PIXELS} pixels in all")
    return Composed(Patches("patches", _draw_corners, size, count), unlisted())


def _check_probability(name: str, probability: float) -> float:
    if not 0 <= probability <= 1:
        raise UsageError(f"{name}: {probability!r} is no probability")
    return probability


def _keep_image(image: Image) -> Image:
    return image
