"""The page of ``wds view`` in a real browser: what it shows, and that nothing in a shard can reach out of its text."""

import array
import io
import json
import os
import re
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support.browsers import WAITS, Browser, wait_until
from support.command import SRC
from support.view_command import RunningViewer
from support.view_page import Watched
from webdataset.testing.archives import END, header, member

pytest.importorskip("starlette")
pytest.importorskip("uvicorn")
pytest.importorskip("playwright.sync_api")
np = pytest.importorskip("numpy")
Image = pytest.importorskip("PIL.Image")

pytestmark = pytest.mark.slow
# of tests whose subject is what the server says and what the page makes of it, which no browser changes
CHROMIUM_ALONE = pytest.mark.parametrize("browser", ["chromium"], indirect=True)
HTML = b'<h1 id="injected">Owned</h1><script>alert(1)</script><img src=x onerror="alert(2)">'
SVG = b'<svg xmlns="http://www.w3.org/2000/svg" onload="alert(3)"><script>alert(4)</script><image href="http://192.0.2.1/x.png"/></svg>'
HOSTILE_KEYS = [
    "<img src=x onerror=alert(5)>",
    "javascript:alert(6)",
    "\u202egnp\u202c-\u05d0\u05d1",
    "k" * 4000,
    "a&b=c#d?e%2e",
    "</script><script>alert(7)</script>",
]
CUT_PLACEHOLDERS = """
    [...document.querySelectorAll('.searchbox .input')].filter(one => {
        const pen = document.createElement('canvas').getContext('2d')
        pen.font = getComputedStyle(one, '::placeholder').font
        return pen.measureText(one.placeholder).width > one.clientWidth
    }).map(one => one.placeholder)
"""


def make_picture(red: int, size: tuple[int, int] = (64, 48), kind: str = "PNG") -> bytes:
    """Return a small picture."""
    stream = io.BytesIO()
    Image.new("RGB", size, (red, 120, 200)).save(stream, kind)
    return stream.getvalue()


def make_sound(seconds: float = 2.0) -> bytes:
    """Return a tone as WAV."""
    soundfile = pytest.importorskip("soundfile")
    stream = io.BytesIO()
    tone = 0.5 * np.sin(2 * np.pi * 440 * np.arange(int(8000 * seconds)) / 8000)
    soundfile.write(stream, tone.astype(np.float32), 8000, format="WAV")
    return stream.getvalue()


def make_film(frames: int = 50) -> bytes:
    """Return a film of two seconds as WebM."""
    av = pytest.importorskip("av")
    stream = io.BytesIO()
    with av.open(stream, "w", format="webm") as container:
        track = container.add_stream("libvpx", rate=25)
        track.width, track.height, track.pix_fmt = 64, 48, "yuv420p"
        for number in range(frames):
            pixels = np.full((48, 64, 3), number * 5, np.uint8)
            container.mux(track.encode(av.VideoFrame.from_ndarray(pixels, format="rgb24")))
        container.mux(track.encode())
    return stream.getvalue()


def make_array() -> bytes:
    """Return an array as .npy."""
    stream = io.BytesIO()
    np.save(stream, np.arange(48 * 64, dtype=np.float32).reshape(48, 64) / 3072)
    return stream.getvalue()


def write_shard(path: Path, members: list[tuple[str, bytes]]) -> None:
    """Write members as they stand; long names go into pax headers."""
    import tarfile

    with tarfile.open(path, "w", format=tarfile.PAX_FORMAT) as archive:
        for name, payload in members:
            entry = tarfile.TarInfo(name)
            entry.size = len(payload)
            archive.addfile(entry, io.BytesIO(payload))


STORY = {
    "text_list": ["Before the first.", "Between the two.", "After the second."],
    "image_info": [
        {"image_name": "0.png", "matched_text_index": 1, "matched_sim": 0.3},
        {"image_name": "1.png", "matched_text_index": 2, "matched_sim": 0.3},
    ],
}


@pytest.fixture(scope="module")
def viewer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningViewer]:
    """Show four shards: plain samples, every kind of field, hostile names and contents, a damaged one."""
    folder = tmp_path_factory.mktemp("view")
    plain: list[tuple[str, bytes]] = []
    for number in range(120):
        key = f"plain-{number:03d}"
        meta = {"width": 64, "score": number / 10, "deep": {"list": [1, {"last": number}]}}
        plain += [
            (f"{key}.png", make_picture(number * 2, (64 + number % 3 * 32, 48))),
            (f"{key}.txt", f"caption {number} of {'cats' if number % 10 == 7 else 'dogs'}".encode()),
            (f"{key}.cls", str(number % 4).encode()),
            (f"{key}.json", json.dumps(meta).encode()),
        ]
    write_shard(folder / "plain.tar", plain)
    kinds = {
        "png": make_picture(9),
        "txt": b"every kind",
        "cls": b"3",
        "json": json.dumps({"a b": [1, {"c": None}], "n": 5}).encode(),
        "wav": make_sound(),
        "webm": make_film(),
        "npy": make_array(),
        "svg": SVG,
        "html": HTML,
        "pkl": b"cos\nsystem\n(S'true'\ntR.",
        "bin": bytes(range(256)),
    }
    story = [
        ("story.json", json.dumps(STORY).encode()),
        ("story.0.png", make_picture(1, (80, 60))),
        ("story.1.png", make_picture(2, (90, 60))),
    ]
    write_shard(folder / "kinds.tar", [*((f"all.{name}", payload) for name, payload in kinds.items()), *story])
    hostile = [
        (f"{key}.{kind}", payload)
        for key in HOSTILE_KEYS
        for kind, payload in (
            ("txt", HTML),
            ("json", json.dumps({HTML.decode(): HTML.decode(), "__proto__": {"x": 1}}).encode()),
            ("svg", SVG),
            ("html", HTML),
        )
    ]
    write_shard(folder / "hostile.tar", hostile)
    (folder / "damaged.tar").write_bytes(member(b"good.txt", b"a") + member(b"bad.png", b"no picture") + END[:512])
    with RunningViewer(
        *(folder / f"{name}.tar" for name in ("plain", "kinds", "hostile", "damaged")), "--tags", folder / "tags.txt"
    ) as running:
        yield running


def test_the_grid_shows_pictures_captions_and_facts(browser: Browser, viewer: RunningViewer) -> None:
    """Cards have pictures with a size, captions, classes and keys; the token leaves the address bar."""
    with Watched(browser, viewer) as watched:
        page = watched.open()
        page.wait_for_selector(".thumb.loaded img")
        assert page.eval_on_selector(".thumb.loaded img", "image => image.naturalWidth") > 0
        first = page.locator(".card").first
        assert "caption 0 of dogs" in first.inner_text()
        assert "plain-000" in first.inner_text()
        assert viewer.token not in page.url
        assert page.locator(".shard").count() == 4


def test_keys_move_and_page(browser: Browser, viewer: RunningViewer) -> None:
    """j, k, arrows, Enter, Esc, brackets, / and ? do what the help says."""
    with Watched(browser, viewer) as watched:
        page = watched.open()
        page.wait_for_selector(".thumb.loaded")
        page.keyboard.press("j")
        page.keyboard.press("j")
        assert page.locator(".card.selected").get_attribute("data-ordinal") == "1"
        page.keyboard.press("k")
        assert page.locator(".card.selected").get_attribute("data-ordinal") == "0"
        page.keyboard.press("ArrowDown")
        columns = int(page.locator(".card.selected").get_attribute("data-ordinal"))
        assert columns >= 2
        page.keyboard.press("Enter")
        page.wait_for_selector(f'.detail .key:text-is("plain-{columns:03d}")')
        page.keyboard.press("j")
        page.wait_for_selector(f'.detail .key:text-is("plain-{columns + 1:03d}")')
        page.keyboard.press("Escape")
        page.wait_for_selector(".detail", state="hidden")
        page.keyboard.press("End")
        page.wait_for_selector('.card[data-ordinal="119"]')
        page.keyboard.press("Home")
        page.wait_for_selector('.card[data-ordinal="0"]')
        page.keyboard.press("PageDown")
        page.keyboard.press("?")
        page.wait_for_selector("dialog[open]")
        page.keyboard.press("Escape")
        page.keyboard.press("/")
        assert page.evaluate("document.activeElement.className").endswith("search-input")
        page.keyboard.press("Escape")
        page.keyboard.press("]")
        wait_until(page, "location.hash.includes('shard=1')")


@CHROMIUM_ALONE
def test_search_and_filters_find(browser: Browser, viewer: RunningViewer) -> None:
    """A text and an expression find their samples, stand in the url, and are removed by their chips."""
    with Watched(browser, viewer) as watched:
        page = watched.open()
        page.fill(".search-input", "of CATS")
        page.press(".search-input", "Enter")
        page.wait_for_selector('.status-count:text-is("12 samples")')
        page.fill(".filter-input", "json.score > 6")
        page.press(".filter-input", "Enter")
        page.wait_for_selector('.status-count:text-is("6 samples")')
        assert page.locator(".filter-chip").count() == 2
        assert [card.get_attribute("data-ordinal") for card in page.locator(".card:not(.blank)").all()] == [
            "67",
            "77",
            "87",
            "97",
            "107",
            "117",
        ]
        page.keyboard.press("Escape")
        page.locator(".filter-chip a").first.click()
        page.wait_for_selector('.status-count:text-is("59 samples")')


@CHROMIUM_ALONE
def test_a_wrong_expression_says_where(browser: Browser, viewer: RunningViewer) -> None:
    """An expression that is none shows its error with a mark below its column, and no samples."""
    with Watched(browser, viewer) as watched:
        watched.expected = ("400",)
        page = watched.open()
        page.fill(".filter-input", "json.score >< 6")
        page.press(".filter-input", "Enter")
        page.wait_for_selector(".filter-error .caret")
        lines = page.locator(".caret").inner_text().split("\n")
        assert lines[0] == "json.score >< 6"
        assert re.fullmatch(r" +\^", lines[1])


def test_hostile_names_and_contents_stay_text(browser: Browser, viewer: RunningViewer) -> None:
    """Keys, texts, JSON, HTML and SVG that hold markup are shown as they are written, and do nothing."""
    with Watched(browser, viewer) as watched:
        watched.expected = ("422", "415")
        page = watched.open("/samples?shard=2")
        page.wait_for_selector(".card:not(.blank)")
        for ordinal in range(len(HOSTILE_KEYS)):
            page = watched.open(f"/samples?shard=2&open=2.{ordinal}")
            page.wait_for_selector(".detail .field-svg")
            assert "alert(4)" in page.locator(".field-svg pre").inner_text()
            assert page.locator(".field-html pre").inner_text() == HTML.decode()
            assert page.locator(".field-text .text").inner_text() == HTML.decode()
            assert HTML.decode() in page.locator(".field-json .tree").inner_text().replace('\\"', '"')
            page.goto(f"{page.url}&tab=raw")
            page.wait_for_selector(".hex-line")
        page.click(".table-head, .segment[title=Table]")
        page.wait_for_selector(".table-row")


def test_every_kind_of_field_in_detail(browser: Browser, viewer: RunningViewer) -> None:
    """Pictures, sounds, films, arrays, JSON and pickles are shown, each in its way."""
    with Watched(browser, viewer) as watched:
        watched.expected = ("422", "415")
        page = watched.open("/samples?shard=1&open=1.0")
        wait_until(page, "document.querySelector('.field-image .stage img')?.naturalWidth === 64")
        page.wait_for_selector(".field-array .facts")
        assert "48 × 64" in page.locator(".field-array .facts").inner_text()
        assert page.locator(".field-array .histogram .bar").count() > 3
        assert "could run code" in page.locator(".field-pickle").inner_text()
        page.click('.field-json .tree-copy[aria-label="Copy the path"] >> nth=0')
        assert "null" in page.locator(".field-json .tree").inner_text()
        wait_until(page, "document.querySelector('audio').duration > 1.9")
        page.wait_for_selector(".wave-large .peaks")
        box = page.locator(".wave-large").bounding_box()
        page.locator(".wave-large").click(position={"x": box["width"] * 0.75, "y": 20})
        wait_until(page, "Math.abs(document.querySelector('audio').currentTime - 1.5) < 0.2")
        wait_until(page, "document.querySelector('video').videoWidth === 64")
        page.evaluate("document.querySelector('video').currentTime = 1")
        wait_until(
            page,
            "(video => !video.seeking && video.currentTime >= 1 && video.readyState >= 2)(document.querySelector('video'))",  # noqa: E501
        )
        page.click('.tab:text-is("Members and bytes")')
        page.wait_for_selector(".hex-line")
        assert page.locator(".detail tbody tr").count() == 11
        page.click('.detail td button:has-text("all.bin")')
        wait_until(page, "document.querySelector('.hex mark')?.textContent.startsWith('00 01 02 03')")


@CHROMIUM_ALONE
def test_a_document_has_its_pictures_between_its_sentences(browser: Browser, viewer: RunningViewer) -> None:
    """An interleaved document is shown in reading order."""
    with Watched(browser, viewer) as watched:
        page = watched.open("/samples?shard=1&open=1.1")
        wait_until(page, "document.querySelectorAll('.document .thumb.loaded').length === 2")
        order = page.eval_on_selector_all(
            ".document > *",
            "parts => parts.map(part => part.tagName === 'P' ? part.textContent : part.querySelector('img').naturalWidth)",  # noqa: E501
        )
        assert order == ["Before the first.", 80, "Between the two.", 90, "After the second."]


@CHROMIUM_ALONE
def test_images_of_documents_wherever_they_are(browser: Browser, odd: RunningViewer) -> None:
    """Images in the JSON and in another sample are shown; what contradicts itself is told, and is no missing image."""
    with Watched(browser, odd) as watched:
        page = watched.open("/samples?open=0.0")
        wait_until(page, "document.querySelectorAll('.document .thumb.loaded').length === 2")
        widths = "[...document.querySelectorAll('.document img')].map(image => image.naturalWidth)"
        assert page.evaluate(widths) == [70, 90]
        assert page.locator(".document .missing").count() == 0
        page = watched.open("/samples?open=0.2")
        page.wait_for_selector(".document .note")
        assert "matched_text_index is 9" in page.locator(".document .note").inner_text()
        assert page.locator(".document .missing").count() == 0


@CHROMIUM_ALONE
def test_what_is_odd_about_a_field_is_said(browser: Browser, odd: RunningViewer) -> None:
    """JSON that is none or too deep, text under the name of a picture, and a field without bytes."""
    with Watched(browser, odd) as watched:
        page = watched.open("/samples?open=0.3")
        page.wait_for_selector(".field-note")
        notes = {
            name: page.locator(f'.field[data-field="{name}"] .field-note').inner_text()
            for name in ("bad.json", "deep.json", "png", "jpg")
        }
        assert "no JSON" in notes["bad.json"]
        assert notes["deep.json"] == "it is nested too deeply"
        assert "its content is text" in notes["png"]
        assert notes["jpg"] == "it has no bytes"
        assert page.locator('.field[data-field="jpg"] .zoom').count() == 0


@CHROMIUM_ALONE
def test_a_sample_of_thousands_of_fields(browser: Browser, odd: RunningViewer) -> None:
    """A page of cards reads few of them, the sample shows some at a time, and says how many others there are."""
    with Watched(browser, odd) as watched:
        page = watched.open("/samples?open=0.4")
        page.wait_for_selector(".detail .field")
        assert page.locator(".detail .field").count() == 60
        page.click('.detail button:has-text("Show 60 of 940 more fields")')
        wait_until(page, "document.querySelectorAll('.detail .field').length === 120")
        assert "2,000 more fields" in page.locator(".detail").inner_text()
        listed = page.evaluate("fetch('/api/samples?shard=0&start=4&count=1').then(answer => answer.json())")
        assert len(listed["samples"][0]["fields"]) == 64
        assert listed["samples"][0]["more_fields"] == 2936


def test_a_table_has_the_fields_of_most_samples(browser: Browser, odd: RunningViewer) -> None:
    """Its first columns are those that most of the first samples have, each wide enough to be read."""
    with Watched(browser, odd) as watched:
        page = watched.open("/samples?layout=table")
        page.wait_for_selector(".table-row:not(.blank)")
        heads = page.locator(".table-head .cell").all_inner_texts()
        assert heads[2] == "json"
        widths = "[...document.querySelectorAll('.table-head .cell')].slice(2).map(one => one.clientWidth)"
        assert min(page.evaluate(widths)) >= 100


CONTRASTS = """
    (() => {
        const pen = document.createElement('canvas').getContext('2d', {willReadFrequently: true})
        const paint = colors => {
            pen.clearRect(0, 0, 1, 1)
            for (const one of colors) { pen.fillStyle = one; pen.fillRect(0, 0, 1, 1) }
            return [...pen.getImageData(0, 0, 1, 1).data].slice(0, 3)
        }
        const linear = one => one <= 0.04045 ? one / 12.92 : ((one + 0.055) / 1.055) ** 2.4
        const light = rgb => rgb.map(one => linear(one / 255))
            .reduce((sum, one, index) => sum + one * [0.2126, 0.7152, 0.0722][index], 0)
        const found = []
        const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT)
        for (let node = walker.nextNode(); node; node = walker.nextNode()) {
            const own = node.parentElement
            const style = getComputedStyle(own)
            const box = own.getBoundingClientRect()
            if (!node.textContent.trim() || !box.width || style.visibility !== 'visible') continue
            if (own.closest('.hidden-text, .skip, noscript, .badge, [disabled], .tree-copy, .excerpt')) continue
            const grounds = []
            for (let one = own; one; one = one.parentElement) grounds.unshift(getComputedStyle(one).backgroundColor)
            const ground = paint(['#fff', ...grounds])
            const ink = paint(['#fff', ...grounds, style.color])
            const [low, high] = [light(ground), light(ink)].sort((a, b) => a - b)
            const size = parseFloat(style.fontSize)
            const large = size >= 24 || (size >= 18.6 && Number(style.fontWeight) >= 700)
            const ratio = (high + 0.05) / (low + 0.05)
            const text = node.textContent.trim().slice(0, 30)
            if (ratio < (large ? 3 : 4.5)) found.push(`${ratio.toFixed(2)} ${own.className} ${text}`)
        }
        return [...new Set(found)]
    })()
"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_texts_stand_out(browser: Browser, odd: RunningViewer, scheme: str) -> None:
    """Each text has the contrast that WCAG 2 asks of AA: 4.5 to its ground, 3 where it is large."""
    with Watched(browser, odd, color_scheme=scheme) as watched:
        watched.expected = ("422", "415", "409")
        for route, ready in (
            ("/samples?open=0.3", ".field-note"),
            ("/samples?open=0.0&tab=raw", ".hex-line"),
            ("/samples?layout=table", ".table-row:not(.blank)"),
            ("/statistics", ".panel"),
            ("/findings", ".finding"),
            ("/batch", ".batch-form"),
        ):
            page = watched.open(route)
            page.wait_for_selector(ready)
            assert page.evaluate(CONTRASTS) == [], route


def test_deep_links_back_and_forward(browser: Browser, viewer: RunningViewer) -> None:
    """A url without the token opens the same view in the same browser, and the history goes through views."""
    with Watched(browser, viewer) as watched:
        page = watched.open()
        page.wait_for_selector(".thumb.loaded")
        page.click('.card[data-ordinal="2"]')
        page.wait_for_selector('.detail .key:text-is("plain-002")')
        link = page.url
        page.click('.view-link[title="Statistics"]')
        page.wait_for_selector(".histogram")
        page.go_back()
        page.wait_for_selector('.detail .key:text-is("plain-002")')
        page.go_forward()
        page.wait_for_selector(".panels")
        other = watched.context.new_page()
        other.goto(link)
        other.wait_for_selector('.detail .key:text-is("plain-002")')


def test_without_the_token(browser: Browser, viewer: RunningViewer) -> None:
    """A page without its token shows no data and says what to do; the token may be pasted."""
    with Watched(browser, viewer) as watched:
        watched.expected = ("401", "403")
        page = watched.page
        page.goto(f"http://127.0.0.1:{viewer.port}/")
        page.wait_for_selector(".start .input")
        assert "plain" not in page.content()
        page.fill(".start .input", f"http://127.0.0.1:{viewer.port}/#token={viewer.token}")
        page.press(".start .input", "Enter")
        page.wait_for_selector(".card")


def test_bars_are_filters(browser: Browser, viewer: RunningViewer) -> None:
    """A bar of a histogram and a label lead to their samples."""
    with Watched(browser, viewer) as watched:
        page = watched.open("/statistics")
        page.click('.values-list .value-row[title*="cls"] >> nth=0')
        page.wait_for_selector(".filter-chip")
        page.wait_for_selector(".card:not(.blank)")
        assert page.locator(".filter-chip bdi").inner_text().startswith("field('cls') ==")
        page.go_back()
        page.wait_for_selector(".mark.usable")
        page.locator(".mark.usable").first.focus()
        page.keyboard.press("Enter")
        page.wait_for_selector(".filter-chip")


@CHROMIUM_ALONE
def test_findings_lead_to_their_bytes(browser: Browser, viewer: RunningViewer) -> None:
    """A finding of a damaged shard shows its bytes, and a whole one says that nothing is wrong."""
    with Watched(browser, viewer) as watched:
        page = watched.open("/findings?shard=3")
        page.wait_for_selector(".finding")
        page.locator('.finding button:has-text("Byte")').first.click()
        page.wait_for_selector(".finding .hex-line")
        page.locator('.finding a:has-text("Sample")').first.click()
        page.wait_for_selector(".detail .key")
        page = watched.open("/findings?shard=0")
        page.wait_for_selector(".pill-good")


@CHROMIUM_ALONE
def test_tags_go_into_the_file(browser: Browser, viewer: RunningViewer) -> None:
    """Number keys and words tag the open sample; its card shows it."""
    with Watched(browser, viewer) as watched:
        page = watched.open("/samples?open=0.5")
        page.wait_for_selector(".tag-button")
        page.keyboard.press("1")
        page.wait_for_selector('.tag-button[aria-pressed="true"]:has-text("keep")')
        page.wait_for_selector('.card[data-ordinal="5"] .tag-mark:has-text("keep")')
        page.keyboard.press("t")
        wait_until(page, "document.activeElement === document.querySelector('.tag-input')")
        page.keyboard.type("<b>odd</b>")
        wait_until(page, "document.querySelector('.tag-input').value === '<b>odd</b>'")
        page.keyboard.press("Enter")
        page.wait_for_selector('.tag-button[aria-pressed="true"]:has-text("<b>odd</b>")')
        page.keyboard.press("1")
        page.wait_for_selector('.tag-button[aria-pressed="false"]:has-text("keep")')


def test_a_phone_scrolls_the_table_sideways(browser: Browser, viewer: RunningViewer) -> None:
    """At 390 pixels the last column of the table comes into sight, below its head; numbers are those of the shard."""
    with Watched(browser, viewer) as watched:
        watched.page.set_viewport_size({"width": 390, "height": 780})
        page = watched.open("/samples?layout=table")
        page.wait_for_selector(".table-row:not(.blank)")
        assert page.locator(".table-row .cell-number").first.inner_text() == "0"
        page.evaluate("document.querySelector('.gallery-table').scrollLeft = 5000")
        wait_until(page, "document.querySelector('.table-head').style.transform !== ''")
        sides = "one => (({left, right}) => [left, right])(one.getBoundingClientRect())"
        cells = "Array.from(document.querySelectorAll('{0} .cell'))"
        head, row = (page.evaluate(f"{cells.format(one)}.map({sides})") for one in (".table-head", ".table-row"))
        assert [left for left, _ in head] == pytest.approx([left for left, _ in row[: len(head)]], abs=1)
        assert 0 < head[-1][0] < head[-1][1] <= 390


def test_samples_and_shards_are_links(browser: Browser, viewer: RunningViewer) -> None:
    """Cards, rows and shards have the role of links, and cards say where they stand."""
    with Watched(browser, viewer) as watched:
        page = watched.open()
        page.wait_for_selector(".card:not(.blank)")
        # a shard without an index is counted once its end was read, here for another page
        page.evaluate("fetch('/api/samples?side=a&shard=0&start=100&count=100').then(answer => answer.json())")
        page.get_by_role("link", name="Sample plain-002, 3 of 120").wait_for()
        assert page.get_by_role("link", name="kinds.tar").count() == 1
        page = watched.open("/samples?open=0.3")
        page.get_by_role("heading", name="plain-003").wait_for()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_phone_and_both_themes(browser: Browser, viewer: RunningViewer, scheme: str) -> None:
    """At 390 pixels nothing is wider than the screen in any view, light and dark."""
    with Watched(browser, viewer, color_scheme=scheme) as watched:
        watched.expected = ("422", "415", "409")
        watched.page.set_viewport_size({"width": 390, "height": 780})
        for route in (
            "/samples",
            "/samples?shard=1&open=1.0",
            "/samples?shard=2&open=2.3",
            "/samples?layout=table",
            "/samples?open=0.0&tab=raw",
            "/statistics",
            "/findings?shard=3",
            "/batch",
            "/samples?shard=2",
        ):
            page = watched.open(route)
            page.wait_for_load_state("networkidle")
            assert page.evaluate("document.documentElement.scrollWidth") <= 390, route
            wide = page.evaluate(
                "[...document.querySelectorAll('.detail-body > *, .panel, .notice, .finding, .card')].filter(one => one.getBoundingClientRect().right > 391).map(one => one.className)"  # noqa: E501
            )
            assert wide == [], route
            tall = "[...document.querySelectorAll('.viewbar-title')].filter(one => one.offsetHeight > 50)"
            assert page.evaluate(f"{tall}.map(one => one.innerText)") == [], route
            assert page.evaluate(CUT_PLACEHOLDERS) == [], route
            names = "[...document.querySelectorAll('.view-link span')].filter(one => one.offsetHeight > 8).length"
            assert page.evaluate(names) >= 3, route
        light = page.evaluate("getComputedStyle(document.body).backgroundColor.match(/\\d+/g).map(Number)[0]")
        assert (light > 200) == (scheme == "light")
        page.click(".theme-button")
        page.click(".theme-button")
        assert page.evaluate("getComputedStyle(document.body).backgroundColor.match(/\\d+/g).map(Number)[0]") < 60


def test_an_hour_of_sound(browser: Browser, tmp_path: Path) -> None:
    """Its outline says which part of it is shown, and its card in the grid reads none of it."""
    frames = 44_100 * 3600
    head = b"RIFF" + (36 + 4 * frames).to_bytes(4, "little") + b"WAVEfmt \x10\0\0\0\1\0\2\0"
    head += (44_100).to_bytes(4, "little") + (176_400).to_bytes(4, "little") + b"\4\0\x10\0data"
    head += (4 * frames).to_bytes(4, "little")
    with (tmp_path / "long.tar").open("wb") as file:
        file.write(header(b"long.wav", len(head) + 4 * frames) + head)
        file.seek(4 * frames + -(len(head) + 4 * frames) % 512, 1)
        file.write(member(b"short.wav", make_sound(2.0)) + END)
    with RunningViewer(tmp_path / "long.tar") as running, Watched(browser, running) as watched:
        page = watched.open("/samples?shard=0")
        page.wait_for_selector(".card .peaks")
        assert page.locator(".card .peaks").count() == 1
        assert "1:00:00" in page.locator(".card").first.inner_text()
        page = watched.open("/samples?shard=0&open=0.0")
        page.wait_for_selector(".wave-large .peaks")
        assert "the outline shows 96 stretches, 8.9 s in all" in page.locator(".audio .quiet").inner_text()
        page = watched.open("/samples?shard=0&open=0.1")
        page.wait_for_selector(".wave-large .peaks")
        assert "outline" not in page.locator(".audio .quiet").inner_text()


def test_a_server_that_has_ended(browser: Browser, tmp_path: Path) -> None:
    """The page says that its server has ended."""
    write_shard(tmp_path / "a.tar", [(f"{number:04d}.txt", b"text") for number in range(300)])
    with RunningViewer(tmp_path / "a.tar") as viewer, Watched(browser, viewer) as watched:
        watched.expected = ("ERR_CONNECTION_REFUSED", "ERR_CONNECTION_RESET", "ERR_EMPTY_RESPONSE")
        page = watched.open()
        page.wait_for_selector(".card:not(.blank)")
        viewer.process.terminate()
        viewer.process.wait()
        page.click(".card >> nth=1")
        page.wait_for_selector(".banner:not([hidden])")


def test_a_million_samples(browser: Browser, tmp_path: Path) -> None:
    """The scroll bar reaches the last of a million samples, and its middle, with few elements on the page."""
    payload, size = b"x" * 40, 1024
    block = header(b"0000000.txt", len(payload))
    (tmp_path / "m.tar.idx").write_bytes(array.array("Q", range(0, size * 1_000_001, size)).tobytes())
    with (tmp_path / "m.tar").open("wb") as file:
        file.truncate(size * 1_000_000 + 1024)
        for number in (*range(200), *range(499_000, 501_000), *range(999_800, 1_000_000)):
            name = b"%07d" % number
            total = sum(block) - sum(b"0000000") + sum(name) - sum(block[148:156]) + 8 * 32
            file.seek(number * size)
            file.write(name + block[7:148] + b"%06o\0 " % total + block[156:] + payload)
    with RunningViewer(tmp_path / "m.tar") as viewer, Watched(browser, viewer) as watched:
        page = watched.open()
        page.wait_for_selector('.card[data-ordinal="0"]')
        wait_until(page, "document.querySelector('.gallery .rows').clientHeight > 1e6")
        page.evaluate("(one => one.scrollTop = one.scrollHeight)(document.querySelector('.gallery'))")
        page.wait_for_selector('.card[data-ordinal="999999"]')
        assert "0999999" in page.locator('.card[data-ordinal="999999"]').inner_text()
        # a page that comes late moves the rows: the middle is sought until it is there
        wait_until(
            page,
            "(one => one.scrollTop = (one.scrollHeight - one.clientHeight) / 2)(document.querySelector('.gallery')) && "
            "(one => one && Math.abs(one.dataset.ordinal - 500000) < 200)"
            "(document.querySelector('.card[data-ordinal]'))",
        )
        before = int(page.locator(".card[data-ordinal]").first.get_attribute("data-ordinal"))
        page.mouse.move(600, 400)
        page.mouse.wheel(0, 300)
        # the next row has to come into sight, and no more than a few
        wait_until(page, f"document.querySelector('.card[data-ordinal]').dataset.ordinal != {before}")
        after = int(page.locator(".card[data-ordinal]").first.get_attribute("data-ordinal"))
        assert 0 <= after - before < 40
        assert page.locator("*").count() < 2500
        page.keyboard.press("End")
        page.wait_for_selector('.card[data-ordinal="999999"]')
        page.keyboard.press("Home")
        page.wait_for_selector('.card[data-ordinal="0"]')


RUN = """
import webdataset as wds

URLS = [{urls}]


def load():
    dataset = wds.WebDataset(URLS, shardshuffle=100, seed=3).shuffle(15).to_tuple("__key__", "txt")
    return wds.Loader(dataset, 6, workers=2)


def change(sample):
    if sample["cls"] == b"3":
        return None
    if sample["cls"] == b"2":
        raise ValueError("two is refused")
    return {{**sample, "txt": sample["txt"].upper(), "<b>new</b>": "<i>added</i>"}}
"""


@pytest.fixture(scope="module")
def odd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningViewer]:
    """Show documents whose images are elsewhere, odd fields, and a sample of 3,000 fields."""
    import base64

    inline = base64.b64encode(make_picture(5, (70, 40))).decode()
    story = {"texts": ["One.", None, None], "images": [None, {"image_name": "a.png", "image_base64": inline}, "b.png"]}
    wrong = {"text_list": ["One."], "image_info": [{"matched_text_index": 9}]}
    path = tmp_path_factory.mktemp("odd") / "odd.tar"
    odd_fields = {"bad.json": b"{1", "deep.json": b"[" * 9000 + b"]" * 9000, "png": b"no picture", "jpg": b""}
    members = [
        ("doc.json", json.dumps(story).encode()),
        ("doc-b.png", make_picture(6, (90, 40))),
        ("wrong.json", json.dumps(wrong).encode()),
        *((f"odd.{name}", payload) for name, payload in odd_fields.items()),
        *((f"many.f{number:04d}.txt", b"x") for number in range(3000)),
    ]
    write_shard(path, members)
    with RunningViewer(path) as running:
        yield running


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[RunningViewer, Any]]:
    """Show four shards of a run, beside four others of which one field differs and one sample is missing."""
    folder = tmp_path_factory.mktemp("run")
    for side in ("left", "right"):
        (folder / side).mkdir()
        for shard in range(4):
            members = []
            for number in range(10 + shard):
                key, other = f"{shard}-{number:02d}", side == "right" and shard == 1
                if other and number == 4:
                    continue
                text = "another text" if other and number == 6 else f"text {number}"
                members += [(f"{key}.txt", text.encode()), (f"{key}.cls", str(number % 4).encode())]
            write_shard(folder / side / f"s-{shard}.tar", members)
    shards = ", ".join(repr(str(folder / "left" / f"s-{shard}.tar")) for shard in range(4))
    (folder / "mine_of_view.py").write_text(RUN.format(urls=shards))
    names = {side: f"{folder}/{side}/s-{{0..3}}.tar" for side in ("left", "right")}
    options = ("--compare", names["right"], "--dataset", "mine_of_view:load", "--pipeline", "mine_of_view:change")
    import runpy

    load = runpy.run_path(str(folder / "mine_of_view.py"))["load"]
    with RunningViewer(names["left"], *options, PYTHONPATH=f"{folder}{os.pathsep}{SRC}") as running:
        yield running, load


def fill_number(page: Any, name: str, text: str) -> None:
    """Type into an input of numbers as a user does; playwright's own ``fill`` adds to what is there in Firefox."""
    page.focus(f'.batch-form input[name="{name}"]')
    page.keyboard.press("Control+a")
    page.keyboard.press("Delete")
    page.keyboard.type(text)


@CHROMIUM_ALONE
@pytest.mark.parametrize("step", [0, 5])
def test_a_batch_is_the_loader_s(browser: Browser, run: tuple[RunningViewer, Any], step: int) -> None:
    """The cards of a batch are the samples that the loader then gives, in their order; reading is asked for first."""
    viewer, load = run
    keys = list(load())[step][0]
    with Watched(browser, viewer) as watched:
        # that a batch needs shards to be read is an answer with status 409, which Chromium logs
        watched.expected = ("status of 409",)
        page = watched.open("/batch")
        fill_number(page, "step", str(step))
        fill_number(page, "workers", "2")
        fill_number(page, "worker", "")
        fill_number(page, "batch_size", "6")
        fill_number(page, "seed", "")
        page.click("text=Show the batch")
        page.click("text=Read them")
        page.wait_for_selector(".card:not(.blank)")
        wait_until(page, f"document.querySelectorAll('.card:not(.blank)').length === {len(keys)}")
        shown = page.locator(".card:not(.blank)").all_inner_texts()
        assert [key for key, text in zip(keys, shown, strict=True) if key not in text] == []
        link = page.url
        page.goto("about:blank")
        page.goto(link)
        page.wait_for_selector("text=Read them")
        # what is left out is not an empty box: it says what is assumed
        empty = "[...document.querySelectorAll('.batch-form input')].filter(one => !one.value && !one.placeholder)"
        assert page.evaluate(f"{empty}.map(one => one.name)") == []
        assert page.locator('.batch-form input[name="worker"]').get_attribute("placeholder") == "any"


@CHROMIUM_ALONE
def test_two_datasets_side_by_side(browser: Browser, run: tuple[RunningViewer, Any]) -> None:
    """A sample that is missing on one side and a field that differs are marked; equal ones are not."""
    viewer, _ = run
    with Watched(browser, viewer) as watched:
        page = watched.open("/compare?shard=1")
        page.wait_for_selector(".pair-different >> nth=1")
        marked = page.locator(".pair-different")
        assert marked.count() == 2
        assert "1-04" in marked.nth(0).inner_text()
        assert "Not in B" in marked.nth(0).inner_text()
        assert "another text" in marked.nth(1).inner_text()
        assert marked.nth(1).locator(".chip-differs").all_inner_texts() == ["txt"]
        assert page.locator(".pair:not(.pair-head)").count() == 11
        page.click("text=Different")
        wait_until(page, "document.querySelectorAll('.pair:not(.pair-head)').length === 2")


@CHROMIUM_ALONE
@pytest.mark.parametrize(
    ("ordinal", "texts"), [(0, ["TEXT 0", "<i>added</i>"]), (3, ["Dropped"]), (2, ["ValueError", "two is refused"])]
)
def test_before_and_after(browser: Browser, run: tuple[RunningViewer, Any], ordinal: int, texts: list[str]) -> None:
    """A function's result stands beside the sample, as text; a dropped sample and an error are told."""
    viewer, _ = run
    with Watched(browser, viewer) as watched:
        page = watched.open(f"/samples?open=0.{ordinal}&tab=pipeline")
        page.wait_for_selector(f".before-after >> text={texts[-1]}")
        shown = page.locator(".before-after").inner_text()
        assert f"text {ordinal}" in shown
        assert all(text in shown for text in texts)


class Held:
    """Requests of a page that wait on their way, so that the order of answers is the test's.

    Args:
        page: whose requests.
        part: of the urls that are held.
        method: only these.
    """

    def __init__(self, page: Any, part: str, method: str = "GET") -> None:
        self.page, self.method = page, method
        self.routes: list[Any] = []
        self.holding = True
        page.route(lambda url: part in url, self._take)
        # a page that is opened after this asks for nothing before
        if page.url != "about:blank":
            self._await_routes()

    def _await_routes(self) -> None:
        """Wait until routes are heeded: what a page asks for just after the first one was set may go past it."""
        self.page.route(lambda url: "?probe=" in url, lambda route: route.fulfill(status=204))
        probe = "fetch(`/static/icon.svg?probe=${performance.now()}`).then(answer => answer.status)"
        for _ in range(WAITS // 50):
            if self.page.evaluate(probe) == 204:
                return
            self.page.wait_for_timeout(50)
        raise AssertionError("the page's requests are not held")

    def _take(self, route: Any) -> None:
        if self.holding and route.request.method == self.method:
            self.routes.append(route)
        else:
            route.continue_()

    def await_count(self, count: int) -> None:
        """Wait until so many requests are held."""
        for _ in range(WAITS // 50):
            if len(self.routes) >= count:
                return
            self.page.wait_for_timeout(50)
        raise AssertionError(f"{len(self.routes)} requests are held, not {count}")

    def release(self) -> None:
        """Let those that are held go on, and all later ones pass."""
        self.holding = False
        held, self.routes = self.routes, []
        for route in held:
            route.continue_()


@CHROMIUM_ALONE
def test_a_late_answer_leaves_what_is_typed(browser: Browser, viewer: RunningViewer) -> None:
    """While a tag is written, the text, the caret and the focus of the input of tags stay where they are."""
    with Watched(browser, viewer) as watched:
        page = watched.open("/samples?open=0.20")
        page.wait_for_selector('.detail .key:text-is("plain-020")')
        # the key has a meaning once the tags are known
        page.wait_for_selector(".tag-button")
        held = Held(page, "/api/tags", "POST")
        page.keyboard.press("1")
        held.await_count(1)
        page.keyboard.press("t")
        page.keyboard.type("draft")
        page.keyboard.press("ArrowLeft")
        held.release()
        page.wait_for_selector('.tag-button[aria-pressed="true"]:has-text("keep")')
        assert page.evaluate(
            "(one => [one === document.activeElement, one.value, one.selectionStart])(document.querySelector('.tag-input'))"  # noqa: E501
        ) == [True, "draft", 4]
        page.keyboard.type("X")
        page.keyboard.press("Enter")
        page.wait_for_selector('.tag-button[aria-pressed="true"]:has-text("drafXt")')


@CHROMIUM_ALONE
def test_tags_of_a_sample_that_is_not_here_yet(browser: Browser, viewer: RunningViewer) -> None:
    """Keys typed while a sample opens are about that sample: none is a shortcut, none tags the one before it."""
    with Watched(browser, viewer) as watched:
        page = watched.open("/samples")
        page.wait_for_selector('.card[data-ordinal="2"]:not(.blank)')
        held = Held(page, "/api/sample?")
        for _ in range(3):
            page.keyboard.press("j")
        page.keyboard.press("t")
        page.keyboard.type("w2rd")
        assert page.input_value(".tag-input") == "w2rd"
        assert "full=1" not in page.url
        page.keyboard.press("Enter")
        held.await_count(1)
        held.release()
        page.wait_for_selector('.detail .key:text-is("plain-002")')
        page.wait_for_selector('.tag-button[aria-pressed="true"]:has-text("w2rd")')
        held = Held(page, "/api/sample?")
        for key in "j2j1":
            page.keyboard.press(key)
        held.await_count(1)
        held.release()
        page.wait_for_selector('.detail .key:text-is("plain-004")')
        page.wait_for_selector('.tag-button[aria-pressed="true"]:has-text("keep")')
        tags = page.evaluate("fetch('/api/tags').then(answer => answer.json())")["tags"]
        assert {key: tags[key] for key in ("plain-002", "plain-003", "plain-004")} == {
            "plain-002": ["w2rd"],
            "plain-003": ["drop"],
            "plain-004": ["keep"],
        }


@CHROMIUM_ALONE
def test_a_tag_that_cannot_be_written_is_given_back(browser: Browser, viewer: RunningViewer) -> None:
    """The word stands in its input again, with the reason beside it."""
    with Watched(browser, viewer) as watched:
        watched.expected = ("500",)
        page = watched.open("/samples?open=0.40")
        page.wait_for_selector('.detail .key:text-is("plain-040")')
        answer = json.dumps({"error": {"type": "OSError", "message": "the disk is full"}})
        page.route(
            lambda url: "/api/tags" in url,
            lambda route: route.fulfill(status=500, body=answer, content_type="application/json"),
        )
        page.keyboard.press("t")
        page.keyboard.type("word")
        page.keyboard.press("Enter")
        page.wait_for_selector('.tag-bar .error-text:text-is("the disk is full")')
        assert page.input_value(".tag-input") == "word"


@CHROMIUM_ALONE
@pytest.mark.parametrize("layout", ["grid", "table"])
def test_cards_that_come_after_a_tag_show_it(browser: Browser, viewer: RunningViewer, layout: str) -> None:
    """The server described their samples before the tag was written, and its answer comes after it."""
    with Watched(browser, viewer) as watched:
        waiting: list[Any] = []
        tagged = threading.Event()

        def hold(route: Any) -> None:
            if tagged.is_set():
                route.continue_()
            else:
                waiting.append((route, route.fetch()))

        watched.page.route(lambda url: "/api/samples?" in url, hold)
        number, name = (45, "keep") if layout == "grid" else (46, "drop")
        page = watched.open(f"/samples?layout={layout}&open=0.{number}")
        page.wait_for_selector(f'.detail .key:text-is("plain-0{number}")')
        page.wait_for_selector(".card.blank, .table-row.blank")
        wait_until(page, "document.querySelector('.tag-button') !== null")
        assert any("&start=0&" in route.request.url for route, _ in waiting)
        page.keyboard.press("1" if layout == "grid" else "2")
        page.wait_for_selector(f'.tag-button[aria-pressed="true"]:has-text("{name}")')
        tagged.set()
        for route, answer in waiting:
            route.fulfill(response=answer)
        page.wait_for_selector(f'.gallery [data-ordinal="{number}"] .tag-mark:has-text("{name}")')


@CHROMIUM_ALONE
def test_a_tag_toggled_twice_is_as_before(browser: Browser, viewer: RunningViewer) -> None:
    """Changes are sent one after the other, each from what the one before it left."""
    with Watched(browser, viewer) as watched:
        page = watched.open("/samples?open=0.50")
        page.wait_for_selector('.detail .key:text-is("plain-050")')
        held = Held(page, "/api/tags", "POST")
        page.keyboard.press("1")
        page.keyboard.press("1")
        page.keyboard.press("2")
        held.await_count(1)
        held.release()
        page.wait_for_selector('.tag-button[aria-pressed="true"]:has-text("drop")')
        assert page.locator('.tag-button[aria-pressed="true"]').all_inner_texts() == ["drop"]


@CHROMIUM_ALONE
def test_shards_are_found_while_their_names_are_on_their_way(browser: Browser, viewer: RunningViewer) -> None:
    """A search in the list of shards waits for names that were asked for already."""
    with Watched(browser, viewer) as watched:
        held = Held(watched.page, "/api/shards")
        page = watched.open()
        held.await_count(1)
        page.fill(".sidebar-search input", "h")
        page.fill(".sidebar-search input", "host")
        page.fill(".sidebar-search input", "hostile")
        held.release()
        page.wait_for_selector('.sidebar-facts:has-text("1 match")')
        assert page.locator(".shard").count() == 1
        assert "hostile" in page.locator(".shard").inner_text()
