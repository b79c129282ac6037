"""What cards, fields and lists of ``wds view`` show of samples that few datasets have, in a real browser."""

import io
import json
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.browsers import Browser, wait_until
from support.view_command import RunningViewer
from support.view_page import Watched

pytest.importorskip("starlette")
pytest.importorskip("uvicorn")
pytest.importorskip("playwright.sync_api")
np = pytest.importorskip("numpy")
Image = pytest.importorskip("PIL.Image")

pytestmark = [pytest.mark.slow, pytest.mark.parametrize("browser", ["chromium"], indirect=True)]

BUTTON = '.field[data-field="{}"] .zoom button:text-is("{}")'


def encode_picture(pixels: object) -> bytes:
    """Return pixels as PNG."""
    stream = io.BytesIO()
    Image.fromarray(pixels).save(stream, "PNG")
    return stream.getvalue()


def encode_array(values: object) -> bytes:
    """Return an array as .npy, objects among them."""
    stream = io.BytesIO()
    np.save(stream, values, allow_pickle=True)
    return stream.getvalue()


CLASSES = np.repeat(np.arange(3, dtype=np.uint8), 400).reshape(40, 30)
LANDSCAPE = np.arange(40 * 30 * 3, dtype=np.uint8).reshape(40, 30, 3)
SAMPLES = [
    ("label", {"cls": b"0042\n"}),
    ("code", {"py": b"def f():\n    return 1\n"}),
    ("letters", {"json": json.dumps({"caption": "\u4f60\u597d", "boxes": [[60, 50, 140, 50], []]}).encode()}),
    ("wide", {"png": encode_picture(np.full((4, 400, 3), 90, np.uint8)), "txt": b"a wide one"}),
    ("many", {**{f"f{number:03d}.txt": b"text" for number in range(400)}}),
    ("line\nand\u202eturned", {"txt": b"its key is odd"}),
    ("k" * 40 + "-0123456", {"txt": b"its key is long"}),
    ("mask", {"jpg": encode_picture(LANDSCAPE), "mask.png": encode_picture(CLASSES)}),
    ("objects", {"npy": encode_array(np.array([{"a": 1}], object))}),
    ("ids", {"json": json.dumps({"id": 2**60 + 1}).encode(), "cls": str(2**60 + 1).encode()}),
    ("numbers", {"npy": encode_array(np.zeros((3, 2), np.float32)), "wav": b"", "mp4": b""}),
]
ORDINAL = {key: number for number, (key, _) in enumerate(SAMPLES)}


def write_shard(path: Path, samples: list[tuple[str, dict[str, bytes]]]) -> Path:
    """Write samples whose keys no writer would take."""
    with tarfile.open(path, "w", format=tarfile.PAX_FORMAT) as archive:
        for key, fields in samples:
            for name, payload in fields.items():
                entry = tarfile.TarInfo(f"{key}.{name}")
                entry.size = len(payload)
                archive.addfile(entry, io.BytesIO(payload))
    return path


@pytest.fixture(scope="module")
def viewer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningViewer]:
    """Show odd samples, a shard that is cut, and one of a field that stands twice."""
    folder = tmp_path_factory.mktemp("cards")
    odd = write_shard(folder / "odd.tar", SAMPLES)
    cut = folder / "cut.tar"
    cut.write_bytes(write_shard(folder / "whole.tar", SAMPLES[:4]).read_bytes()[:2560])
    twice = folder / "twice.tar"
    with tarfile.open(twice, "w") as archive:
        for name in ("a.txt", "a.txt", "b.txt"):
            entry = tarfile.TarInfo(name)
            entry.size = 2
            archive.addfile(entry, io.BytesIO(b"it"))
    with RunningViewer(odd, cut, twice) as running:
        yield running


def test_cards_show_what_there_is(browser: Browser, viewer: RunningViewer) -> None:
    """Classes, lines, letters, whole pictures, counts of fields, and keys whose every character can be seen."""
    with Watched(browser, viewer) as watched:
        watched.page.set_viewport_size({"width": 1300, "height": 2400})
        page = watched.open()
        page.wait_for_selector(f'.card[data-ordinal="{len(SAMPLES) - 1}"]')

        def text(key: str, part: str) -> str:
            return str(page.locator(f'.card[data-ordinal="{ORDINAL[key]}"] {part}').inner_text())

        assert text("label", ".excerpt-figure bdi") == "0042"
        assert text("code", ".excerpt-code") == "def f():\n    return 1\n"
        assert "\u4f60\u597d" in text("letters", ".excerpt")
        assert text("many", ".chip-more") == "+395"
        wait_until(page, "document.querySelector('.card .thumb.whole img')?.alt === 'a wide one'")
        assert page.locator(".card .thumb.whole").count() == 1
        keys = [one.replace("\n", "") for one in page.locator(".card .key").all_inner_texts()]
        assert r"line\nand\u202eturned" in keys
        tail = page.locator(f'.card[data-ordinal="{ORDINAL["k" * 40 + "-0123456"]}"] .key-tail')
        assert tail.inner_text() == "-0123456"
        inside = "one => one.getBoundingClientRect().right <= one.closest('.card').getBoundingClientRect().right"
        assert tail.evaluate(inside)
        assert text("numbers", ".emblem-facts") == "video \u00b7 empty"
        assert text("objects", ".emblem-facts") == "1 object"
        # a shard that was not opened yet has its size
        assert page.locator(".shard-facts").nth(1).inner_text() == "2.6 kB"


def test_masks_are_coloured_and_stay_as_they_are_stored(browser: Browser, viewer: RunningViewer) -> None:
    """Class numbers get colours; the stored picture is a click away, and others have no such choice."""
    with Watched(browser, viewer) as watched:
        page = watched.open(f"/samples?open=0.{ORDINAL['mask']}")
        page.wait_for_selector(BUTTON.format("mask.png", "Enhanced") + '[aria-current="true"]')
        source = 'document.querySelector(\'.field[data-field="mask.png"] .stage img\')?.src ?? ""'
        wait_until(page, f"{source}.includes('thumbnail')")
        page.click(BUTTON.format("mask.png", "As stored"))
        wait_until(page, f"{source}.includes('payload')")
        wait_until(page, "document.querySelector('.field[data-field=\"jpg\"] .stage img')?.naturalWidth === 30")
        assert page.locator('.field[data-field="jpg"] .segmented').count() == 0


def test_fields_in_the_words_of_their_kind(browser: Browser, viewer: RunningViewer) -> None:
    """Names of types, lists in a line, objects that are not loaded, and no player for an empty field."""
    with Watched(browser, viewer) as watched:
        page = watched.open(f"/samples?open=0.{ORDINAL['numbers']}")
        page.wait_for_selector(".field-array .facts")
        assert "float32" in page.locator(".field-array .facts").inner_text()
        assert page.locator("audio, video").count() == 0
        page = watched.open(f"/samples?open=0.{ORDINAL['objects']}")
        page.wait_for_selector(".field-array .note")
        assert "could run code" in page.locator(".field-array .note").inner_text()
        page = watched.open(f"/samples?open=0.{ORDINAL['letters']}")
        page.wait_for_selector(".field-json .tree")
        assert "60, 50, 140, 50" in page.locator(".tree").inner_text()
        page = watched.open(f"/samples?open=0.{ORDINAL['label']}")
        page.wait_for_selector(".field-class .value")
        assert page.locator(".field-class .value").inner_text() == "0042"


@pytest.mark.parametrize("button", [".tree-copy[title^=Show]", ".field-class button"])
def test_integers_beyond_those_of_javascript_are_found(browser: Browser, viewer: RunningViewer, button: str) -> None:
    """A filter made from such a value finds its sample."""
    with Watched(browser, viewer) as watched:
        page = watched.open(f"/samples?open=0.{ORDINAL['ids']}")
        page.locator(button).first.click()
        page.wait_for_selector('.status-count:text-is("1 sample")')


def test_what_ends_a_shard_and_what_does_not(browser: Browser, viewer: RunningViewer) -> None:
    """Damage stops a shard; a field that stands twice does not, and the page does not say so."""
    with Watched(browser, viewer) as watched:
        page = watched.open("/samples?shard=1")
        page.wait_for_selector(".status-problem")
        assert page.locator(".status-problem").inner_text().startswith("Stops here: ")
        page = watched.open("/samples?shard=2")
        page.wait_for_selector(".status-problem")
        assert page.locator(".status-problem").inner_text().startswith("duplicate")
        assert page.locator(".status-count").inner_text() == "2 samples"


def test_the_table_says_how_many_fields_have_no_column(browser: Browser, viewer: RunningViewer) -> None:
    """Eight have one."""
    with Watched(browser, viewer) as watched:
        page = watched.open("/samples?layout=table")
        page.wait_for_selector(".statusbar .status-note")
        assert page.locator(".statusbar .status-note").inner_text().startswith("8 of ")


def test_errors_stand_before_warnings(browser: Browser, viewer: RunningViewer) -> None:
    """And the head counts both."""
    with Watched(browser, viewer) as watched:
        page = watched.open("/findings?shard=0")
        page.wait_for_selector(".finding")
        marks = page.eval_on_selector_all(".finding", "all => all.map(one => one.className.split('-').pop())")
        assert marks == sorted(marks)
        assert {"error", "warning"} <= set(marks)
        errors, warnings = marks.count("error"), marks.count("warning")
        assert page.locator(".viewbar .pill").inner_text() == f"{errors} errors, {warnings} warnings"


def test_values_of_some_samples_are_told_to_be_so(browser: Browser, viewer: RunningViewer, tmp_path: Path) -> None:
    """An index counts all samples; values are those of 1000, and more can be asked for."""
    import webdataset as wds

    shard = tmp_path / "long.tar"
    with wds.TarWriter(str(shard)) as sink:
        for number in range(1100):
            sink.write({"__key__": f"{number:05d}", "cls": number % 3})
    wds.write_indexes([str(shard)], "dali")
    with RunningViewer(shard) as running, Watched(browser, running) as watched:
        page = watched.open("/statistics")
        page.wait_for_selector(".panel .values-list")
        assert page.locator(".viewbar .pill").inner_text() == "exact"
        assert "values of 1000 samples spread over 1 shard" in page.locator(".viewbar").inner_text()
        assert page.locator(".figures").inner_text().split() == [
            "1,100",
            "samples",
            "1",
            "shard",
            "1",
            "field",
            "1",
            "B",
            "mean",
            "size",
        ]
        page.select_option(".viewbar select", "10000")
        wait_until(page, "!document.querySelector('.viewbar select') && document.querySelector('.panel .values-list')")
        assert page.locator(".viewbar").inner_text().split("\n")[-1] == "index of 1 shard"


def test_names_of_views_at_1024_pixels(browser: Browser, viewer: RunningViewer) -> None:
    """Each view has its name, and no placeholder is cut."""
    with Watched(browser, viewer) as watched:
        watched.page.set_viewport_size({"width": 1024, "height": 768})
        page = watched.open()
        page.wait_for_selector(".card:not(.blank)")
        names = "[...document.querySelectorAll('.view-link span')].filter(one => one.offsetHeight > 8).length"
        assert page.evaluate(names) >= 3
        assert page.evaluate("document.querySelector('.top').scrollWidth <= innerWidth")
