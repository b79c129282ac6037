"""Take the pictures of ``wds view`` for the documentation, with a real browser, of shards that are made here.

``viewer_pictures.py [FOLDER]`` writes shards of drawn landscapes, two bundled photographs cut in many ways, charts,
sounds, short films and documents into FOLDER (default: build/pictures), opens them with ``wds view`` in headless
Chromium, and writes ``docs/pictures/viewer-*.png``. Nothing is downloaded.
"""

import io
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageDraw, ImageFilter

import webdataset as wds

ROOT = Path(__file__).resolve().parent.parent
PICTURES = ROOT / "docs" / "pictures"
CHROMIUM = "/usr/bin/chromium"
LABELS = ["landscape", "architecture", "flower", "chart"]
SKIES = {
    "dawn": [(252, 211, 180), (244, 160, 140), (126, 92, 132), (64, 56, 96)],
    "noon": [(190, 221, 240), (226, 238, 240), (108, 152, 140), (46, 84, 80)],
    "dusk": [(60, 52, 98), (226, 122, 96), (96, 52, 84), (34, 26, 52)],
    "night": [(14, 20, 44), (44, 62, 104), (30, 42, 72), (10, 14, 28)],
    "fog": [(222, 226, 228), (236, 238, 236), (160, 172, 176), (92, 106, 114)],
}
CUTS = {
    "china.jpg": [
        ((0, 0, 640, 427), "A pavilion with curved roofs behind trees"),
        ((60, 90, 380, 330), "The eaves of the pavilion, gold and green"),
        ((180, 60, 460, 270), "The upper roof against a grey sky"),
        ((0, 200, 320, 427), "Trees and railings in front of the pavilion"),
        ((330, 130, 640, 400), "The right wing of the building"),
        ((120, 150, 420, 427), "Columns and painted beams"),
    ],
    "flower.jpg": [
        ((0, 0, 640, 427), "A dahlia among dark leaves"),
        ((180, 40, 520, 300), "The heart of the flower, close up"),
        ((260, 90, 460, 290), "Petals around the stamens"),
        ((0, 120, 320, 400), "Leaves beside the flower, out of focus"),
    ],
}


def blend(low: tuple[int, ...], high: tuple[int, ...], share: Any) -> Any:
    """Mix two colours; ``share`` (any shape) goes from 0 to 1."""
    return np.asarray(low) + (np.asarray(high) - np.asarray(low)) * np.asarray(share)[..., None]


def draw_landscape(
    rng: np.random.Generator, sky: str, width: int, height: int, sun: float | None = None
) -> Image.Image:
    """Draw mountains in layers under a sky; ``sun`` is its place from left to right, by chance if None."""
    top, low, near, dark = SKIES[sky]
    pixels = np.repeat(blend(top, low, np.linspace(0, 1, height) ** 0.8)[:, None], width, axis=1)
    x, y = np.arange(width), np.arange(height)[:, None]
    place = rng.uniform(0.2, 0.8) if sun is None else sun
    distance = np.hypot(x - place * width, y - rng.uniform(0.22, 0.42) * height) / height
    pixels += (np.exp(-((distance / 0.2) ** 2)) * 46)[..., None] + (distance < rng.uniform(0.035, 0.07))[..., None] * 60
    layers = int(rng.integers(3, 6))
    for layer in range(layers):
        share = (layer + 1) / layers
        base = height * (0.45 + 0.42 * share)
        ridge = np.full(width, base)
        for octave in range(1, 7):
            wave = rng.uniform(0.4, 1.0) * 2**octave
            ridge += height * 0.13 / 1.75**octave * np.sin(x / width * wave * np.pi + rng.uniform(0, 6.3))
        colour = blend(low, near, share) if share < 0.7 else blend(near, dark, (share - 0.7) / 0.3)
        pixels = np.where((y > ridge)[..., None], colour, pixels)
    pixels += rng.normal(0, 2.2, (height, width, 1))
    return Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).filter(ImageFilter.GaussianBlur(0.5))


def draw_chart(rng: np.random.Generator, kind: str, width: int, height: int) -> Image.Image:
    """Draw a small chart: lines, bars or points."""
    picture = Image.new("RGB", (width * 2, height * 2), (250, 249, 246))
    pen = ImageDraw.Draw(picture)
    left, top, right, bottom = 80, 60, width * 2 - 50, height * 2 - 70
    inks = [(58, 86, 160), (214, 118, 74), (86, 142, 112), (150, 130, 170)]
    for share in np.linspace(0, 1, 5):
        level = bottom - share * (bottom - top)
        pen.line([(left, level), (right, level)], fill=(226, 224, 218), width=2)
    if kind == "bars":
        values = rng.uniform(0.15, 1, 9)
        step = (right - left) / len(values)
        for number, value in enumerate(values):
            box = [
                left + step * (number + 0.18),
                bottom - value * (bottom - top),
                left + step * (number + 0.82),
                bottom,
            ]
            pen.rectangle(box, fill=inks[number % 2])
    elif kind == "points":
        for ink in inks[:3]:
            middle = rng.uniform(0.2, 0.8, 2)
            for horizontal, vertical in (middle + rng.normal(0, 0.09, (40, 2))).clip(0.02, 0.98):
                across, down = left + horizontal * (right - left), bottom - vertical * (bottom - top)
                pen.ellipse([across - 8, down - 8, across + 8, down + 8], fill=ink, outline=(250, 249, 246))
    else:
        for ink in inks[:3]:
            values = np.cumsum(rng.normal(0.02, 0.08, 60))
            values = (values - values.min()) / (np.ptp(values) or 1) * rng.uniform(0.5, 0.9) + 0.05
            places = [
                (left + (right - left) * number / 59, bottom - value * (bottom - top))
                for number, value in enumerate(values)
            ]
            pen.line(places, fill=ink, width=6, joint="curve")
    pen.line([(left, bottom), (right, bottom)], fill=(90, 90, 96), width=4)
    return picture.resize((width, height), Image.Resampling.LANCZOS)


def cut_photograph(rng: np.random.Generator, name: str) -> tuple[Image.Image, str]:
    """Cut a part out of a bundled photograph, in a light of its own, with its caption."""
    from sklearn.datasets import load_sample_image

    box, caption = CUTS[name][int(rng.integers(len(CUTS[name])))]
    photograph = Image.fromarray(load_sample_image(name)).crop(box)
    tint = np.asarray([rng.uniform(0.88, 1.1), rng.uniform(0.93, 1.04), rng.uniform(0.86, 1.1)])
    pixels = np.asarray(photograph, dtype=np.float32) * tint * rng.uniform(0.88, 1.12)
    made = Image.fromarray(pixels.clip(0, 255).astype(np.uint8))
    return (made.transpose(Image.Transpose.FLIP_LEFT_RIGHT) if rng.random() < 0.4 else made), caption


def encode(picture: Image.Image, kind: str = "JPEG") -> bytes:
    """Return the picture as a file's bytes."""
    stream = io.BytesIO()
    picture.save(stream, kind, **({"quality": 88} if kind == "JPEG" else {}))
    return stream.getvalue()


def make_picture(rng: np.random.Generator) -> tuple[Image.Image, str, str]:
    """Return a picture, its caption and its label."""
    choice = rng.random()
    if choice < 0.3:
        name = "china.jpg" if rng.random() < 0.55 else "flower.jpg"
        picture, caption = cut_photograph(rng, name)
        return picture, caption, "architecture" if name == "china.jpg" else "flower"
    sizes = [(640, 480), (640, 427), (512, 512), (480, 640), (800, 450), (720, 480)]
    width, height = sizes[int(rng.integers(len(sizes)))]
    if choice < 0.85:
        sky = list(SKIES)[int(rng.integers(len(SKIES)))]
        where = ["Ridges", "Mountains in layers", "A valley", "Distant hills", "Bare slopes"][int(rng.integers(5))]
        light = {
            "dawn": "at dawn",
            "noon": "at noon under a clear sky",
            "dusk": "at dusk",
            "night": "by moonlight",
            "fog": "in fog",
        }
        return draw_landscape(rng, sky, width, height), f"{where} {light[sky]}", "landscape"
    kind = ["lines", "bars", "points"][int(rng.integers(3))]
    says = {
        "lines": "Three series over sixty days",
        "bars": "Nine groups as bars",
        "points": "Three clusters of points",
    }
    return draw_chart(rng, kind, 560, 400), says[kind], "chart"


def make_sound(rng: np.random.Generator, seconds: float, rate: int = 16_000) -> bytes:
    """Return a few chirps with echoes as FLAC."""
    import soundfile  # type: ignore[import-untyped]

    time = np.arange(int(seconds * rate)) / rate
    sound = rng.normal(0, 0.004, len(time))
    for start in np.arange(0.1, seconds - 0.3, rng.uniform(0.25, 0.6)):
        local = time - start - rng.uniform(0, 0.1)
        body = np.where(local > 0, np.exp(-np.clip(local, 0, None) * rng.uniform(5, 14)), 0)
        sound += (
            rng.uniform(0.2, 0.8)
            * body
            * np.sin(2 * np.pi * (rng.uniform(400, 1500) * local + rng.uniform(-900, 1800) * local**2))
        )
    stream = io.BytesIO()
    soundfile.write(stream, (sound / np.abs(sound).max() * 0.9).astype(np.float32), rate, format="FLAC")
    return stream.getvalue()


def make_film(seed: int, sky: str, frames: int = 48) -> bytes:
    """Return a film of a sun that passes over mountains, as MP4."""
    import av

    stream = io.BytesIO()
    with av.open(stream, "w", format="mp4") as container:
        track = container.add_stream("libx264", rate=24)
        track.width, track.height, track.pix_fmt = 480, 270, "yuv420p"
        for number in range(frames):
            picture = draw_landscape(np.random.default_rng(seed), sky, 480, 270, sun=0.15 + 0.7 * number / frames)
            container.mux(track.encode(av.VideoFrame.from_image(picture)))  # type: ignore[no-untyped-call]
        container.mux(track.encode())
    return stream.getvalue()


def write_shards(folder: Path) -> None:
    """Write the shards."""
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(11)
    for shard in range(6):
        with wds.TarWriter(str(folder / f"scenes-{shard:03d}.tar")) as sink:
            for number in range(160 if shard == 0 else 60):
                picture, caption, label = make_picture(rng)
                meta = {
                    "width": picture.width,
                    "height": picture.height,
                    "label": label,
                    "source": "drawn" if label in ("landscape", "chart") else "scikit-learn",
                    "aesthetic": round(float(rng.beta(6, 3)) * 10, 2),
                    "license": ["CC0", "CC-BY-4.0"][int(rng.random() < 0.4)],
                    "tags": [label, caption.split()[-1]],
                    "crop": {"scale": round(float(rng.uniform(0.4, 1)), 3), "flipped": bool(rng.random() < 0.4)},
                }
                sink.write(
                    {
                        "__key__": f"scene/{shard:03d}-{number:05d}",
                        "jpg": encode(picture),
                        "txt": caption,
                        "cls": str(LABELS.index(label)).encode(),
                        "json": json.dumps(meta).encode(),
                    }
                )
    write_others(folder, rng)


def write_others(folder: Path, rng: np.random.Generator) -> None:
    """Write the shards of documents, sounds and films."""
    with wds.TarWriter(str(folder / "stories-000.tar")) as sink:
        for number, (title, texts, skies) in enumerate(STORIES * 4):
            images = [
                draw_landscape(np.random.default_rng(300 + number * 7 + place), sky, 640, 360)
                for place, sky in enumerate(skies)
            ]
            record = {
                "url": f"https://example.org/stories/{number}",
                "title": title,
                "text_list": texts,
                "image_info": [
                    {"image_name": f"{place}.jpg", "matched_text_index": place + 1, "matched_sim": 0.3}
                    for place in range(len(images))
                ],
            }
            sink.write(
                {
                    "__key__": f"story-{number:04d}",
                    "json": json.dumps(record).encode(),
                    **{f"{place}.jpg": encode(image) for place, image in enumerate(images)},
                }
            )
    with wds.TarWriter(str(folder / "sounds-000.tar")) as sink:
        for number in range(40):
            sink.write(
                {
                    "__key__": f"bird-{number:04d}",
                    "flac": make_sound(rng, float(rng.uniform(1.2, 6))),
                    "txt": BIRDS[number % len(BIRDS)],
                    "cls": str(number % len(BIRDS)).encode(),
                }
            )
    with wds.TarWriter(str(folder / "clips-000.tar")) as sink:
        for number in range(8):
            sky = list(SKIES)[number % 5]
            sink.write(
                {
                    "__key__": f"clip-{number:03d}",
                    "mp4": make_film(number, sky),
                    "txt": f"The sun passes over mountains, {sky}",
                    "depth.npy": np.asarray(draw_landscape(rng, sky, 96, 64).convert("L"), dtype=np.float32) / 255,
                }
            )


STORIES = [
    (
        "A walk over the ridge",
        [
            "We left before sunrise, while the valley was still dark and the first light touched the far peaks.",
            "By the time the path left the trees, the whole eastern side glowed. We stopped to drink and to look back at the village.",  # noqa: E501
            "The afternoon was clear. From the saddle one sees four ranges, each a little paler than the one before it.",  # noqa: E501
            "We came down in the dusk and found the hut by the lamp in its window.",
        ],
        ["dawn", "noon", "dusk"],
    ),
    (
        "Weather in the high country",
        [
            "Fog fills the basins at night and leaves them late in the morning.",
            "On such days the ridges look like islands, and the sound of the river carries far.",
            "When the wind turns, the sky clears within the hour.",
        ],
        ["fog", "noon"],
    ),
    (
        "Drawing mountains with sine waves",
        [
            "A ridge is a sum of waves: a slow one for the mountain, faster ones for its crags.",
            "Farther layers are paler, since air scatters light. This alone makes a picture deep.",
            "At night the same shapes need only another palette.",
        ],
        ["noon", "night"],
    ),
]
BIRDS = [
    "Blackbird, two calls at dusk",
    "Nightingale, a long phrase",
    "Wren, fast and high",
    "Great tit, two notes",
    "Robin, a falling line",
]


def find_frequent_colours(picture: Image.Image, count: int) -> list[tuple[int, int, int]]:
    """Return the colours that most pixels have."""
    counted: Any = picture.getcolors(picture.width * picture.height)
    return [colour for _, colour in sorted(counted, reverse=True)[:count]]


def reduce_colours(picture: Image.Image) -> Image.Image:
    """Return the picture in 256 colours: those of the page itself as they are, those of photographs mixed of dots.

    The page's colours are taken from its head, for photographs fill most of the rest.
    """
    head = picture.crop((0, 0, picture.width, 270 if picture.height > picture.width else 100))
    exact = list(dict.fromkeys(find_frequent_colours(head, 56) + find_frequent_colours(picture, 24)))
    others = 256 - len(exact)
    mixed: Any = picture.quantize(others, Image.Quantize.MEDIANCUT).getpalette()
    palette = Image.new("P", (1, 1))
    palette.putpalette([*(part for colour in exact for part in colour), *mixed[: 3 * others]])
    numbers = np.array(picture.quantize(palette=palette, dither=Image.Dither.FLOYDSTEINBERG))
    pixels = np.asarray(picture)
    for number, colour in enumerate(exact):
        numbers[(pixels == colour).all(axis=-1)] = number
    reduced = Image.fromarray(numbers, "P")
    reduced.putpalette(palette.getpalette() or [])
    return reduced


def take_pictures(url: str) -> None:
    """Open the page and write the pictures."""
    from playwright.sync_api import sync_playwright

    PICTURES.mkdir(parents=True, exist_ok=True)
    address, token = url.split("#")
    with sync_playwright() as play:
        browser = play.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        for name, (width, height), scheme, hash_, ready in VIEWS:
            context = browser.new_context(
                viewport={"width": width, "height": height},
                color_scheme=scheme,
                device_scale_factor=2 if width < 500 else 1,
            )
            page = context.new_page()
            page.goto(f"{address}#{token}&{hash_}")
            page.wait_for_selector(ready)
            page.wait_for_load_state("networkidle")
            page.wait_for_timeout(800)
            raw = page.screenshot()
            context.close()
            picture = reduce_colours(Image.open(io.BytesIO(raw)).convert("RGB"))
            picture.save(PICTURES / f"viewer-{name}.png", optimize=True)
        browser.close()


VIEWS: list[tuple[str, tuple[int, int], Any, str, str]] = [
    ("grid", (1440, 860), "light", "/samples", ".thumb.loaded"),
    ("document", (1440, 860), "light", "/samples?shard=6&open=6.0", ".document .thumb.loaded"),
    ("statistics", (1440, 860), "light", "/statistics", ".histogram"),
    ("sounds", (1440, 860), "dark", "/samples?shard=7&open=7.3", ".wave-large .peaks"),
    ("dark", (1440, 860), "dark", "/samples?open=2.7&shard=2", ".detail .stage img"),
    ("phone", (390, 780), "light", "/samples", ".thumb.loaded"),
]


def main() -> None:
    """Write the shards, start the viewer, take the pictures, end it."""
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "build" / "pictures"
    if not (folder / "clips-000.tar").exists():
        write_shards(folder)
    shards = ["scenes-{000..005}.tar", "stories-000.tar", "sounds-000.tar", "clips-000.tar"]
    command = [sys.executable, "-m", "webdataset", "view", "--no-open", "--tags", "tags.txt", *shards]
    with subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, text=True) as server:
        try:
            line = server.stdout.readline() if server.stdout else ""
            take_pictures(line[line.index("http://") :].split()[0])
        finally:
            server.terminate()


if __name__ == "__main__":
    main()
