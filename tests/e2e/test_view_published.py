"""The published page of ``wds view`` in real browsers: static files that read shards by byte ranges."""

import base64
import io
import json
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from support.browsers import Browser, WatchedPage, wait_until
from support.page_server import PageServer
from webdataset.samples.sample_reader import Reading
from webdataset.viewer.documents import NeighbourSample, describe_document
from webdataset.viewer.published_page import publish_page

np = pytest.importorskip("numpy")
Image = pytest.importorskip("PIL.Image")
pytestmark = pytest.mark.slow

HTML = b'<h1 id="injected">Owned</h1><script>alert(1)</script><img src=x onerror="alert(2)">'
SVG = b'<svg xmlns="http://www.w3.org/2000/svg" onload="alert(3)"><script>alert(4)</script></svg>'
STORY: dict[str, Any] = {
    "text_list": ["Before.", "Between.", "After."],
    "image_info": [
        {"image_name": "0.png", "matched_text_index": 1, "matched_sim": 0.3},
        {"image_name": "in.png", "matched_text_index": 2, "image_base64": ""},
    ],
}


def make_picture(size: tuple[int, int]) -> bytes:
    """Return a small picture."""
    stream = io.BytesIO()
    Image.new("RGB", size, (90, 120, 200)).save(stream, "PNG")
    return stream.getvalue()


def make_array() -> bytes:
    """Return an array as .npy."""
    stream = io.BytesIO()
    np.save(stream, np.arange(48 * 64, dtype=np.float32).reshape(48, 64))
    return stream.getvalue()


def make_tone() -> bytes:
    """Return half a second of sound as WAV."""
    import wave

    stream = io.BytesIO()
    with wave.open(stream, "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(8000)
        file.writeframes((9000 * np.sin(np.arange(4000) / 3)).astype("<i2").tobytes())
    return stream.getvalue()


def write_shard(path: Path, members: list[tuple[str, bytes]]) -> None:
    """Write members as they stand; long names go into pax headers."""
    with tarfile.open(path, "w", format=tarfile.PAX_FORMAT) as archive:
        for name, payload in members:
            entry = tarfile.TarInfo(name)
            entry.size = len(payload)
            archive.addfile(entry, io.BytesIO(payload))


def write_shards(folder: Path) -> list[str]:
    """Write a shard of plain samples, with a large field in its middle, and one of every kind of field."""
    plain: list[tuple[str, bytes]] = []
    for number in range(120):
        caption = f"caption {number} of {'cats' if number % 10 == 7 else 'dogs'}"
        plain += [(f"a/{number:03d}.png", make_picture((60 + number, 48))), (f"a/{number:03d}.txt", caption.encode())]
        if number == 60:
            plain.append((f"a/{number:03d}.bin", bytes(8 << 20)))
    write_shard(folder / "plain: 1.tar", plain)
    STORY["image_info"][1]["image_base64"] = base64.b64encode(make_picture((70, 9))).decode()
    kinds = [
        *((f"all.{name}", payload) for name, payload in {
            "txt": HTML, "html": HTML, "svg": SVG, "cls": b"3", "npy": make_array(), "wav": make_tone(),
            "json": json.dumps({"big": 2**60, "list": [1, {"x": None}], "__proto__": HTML.decode()}).encode(),
            "pkl": b"cos\nsystem\n(S'true'\ntR.", "deep.json": b"[" * 20_000 + b"]" * 20_000, "constructor": b"?",
        }.items()),
        ("story.json", json.dumps(STORY).encode()),
        ("story.0.png", make_picture((80, 60))),
        (f"{'k' * 900}.txt", b"a long key"),
    ]  # fmt: skip
    write_shard(folder / "kinds.tar", kinds)
    return [str(folder / "plain: 1.tar"), str(folder / "kinds.tar")]


class Site(NamedTuple):
    """A published page.

    Args:
        folder: with the shards, and the page in ``site``.
        server: of the folder.
    """

    folder: Path
    server: PageServer


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """Publish two shards."""
    folder = tmp_path_factory.mktemp("published")
    publish_page(write_shards(folder), str(folder / "site"), Reading(), check=True)
    with PageServer(folder) as server:
        yield Site(folder, server)


class Published(WatchedPage):
    """A published page.

    Args:
        browser: that opens it.
        server: of the page.
        others: origins that it may read.
    """

    def __init__(self, browser: Browser, server: PageServer, *others: str) -> None:
        super().__init__(browser, [f"{server.root}/", *others])
        self._root = server.root

    def open(self, route: str = "/samples") -> Any:
        """Open a view."""
        self.page.goto("about:blank")
        self.page.goto(f"{self._root}/site/#{route}")
        return self.page


def test_samples_by_ranges(browser: Browser, site: Site) -> None:
    """Cards, pictures, keys and the search are those of the viewer; a page reads what it shows and not the shard."""
    before = site.server.sent_bytes
    with Published(browser, site.server) as watched:
        page = watched.open()
        wait_until(page, "document.querySelector('.thumb.loaded img')?.naturalWidth === 60")
        first = page.locator(".card").first.inner_text()
        assert "caption 0 of dogs" in first
        assert "a/000" in first
        assert page.locator(".shard-name").all_inner_texts() == ["plain: 1.tar", "kinds.tar"]
        assert page.locator(".view-link:visible").all_inner_texts() == ["Samples", "Statistics", "Findings"]
        assert page.locator(".filter-input").count() == 0
        page.keyboard.press("End")
        page.wait_for_selector('.card[data-ordinal="119"]')
        assert site.server.sent_bytes - before < 4 << 20
        page.fill(".search-input", "of CATS")
        page.press(".search-input", "Enter")
        page.wait_for_selector('.status-count:text-is("12 samples")')


@pytest.mark.parametrize("browser", ["chromium"], indirect=True)
def test_statistics_and_findings(browser: Browser, site: Site) -> None:
    """They are those of publishing; bars and values filter nothing, and findings lead to their samples."""
    with Published(browser, site.server) as watched:
        page = watched.open("/statistics")
        page.wait_for_selector(".panel .histogram")
        assert page.locator(".viewbar .pill").inner_text() == "exact"
        assert page.locator(".figure-value").first.inner_text() == "123"
        assert page.locator(".usable, .panel a.link, .value-row:enabled, select").count() == 0
        page = watched.open("/findings?shard=1")
        page.wait_for_selector(".finding")
        page.locator('.finding:has-text("deep.json") a:text-is("Sample")').first.click()
        page.wait_for_selector('.detail .key:text-is("all")')
        page = watched.open("/findings?shard=0")
        page.wait_for_selector(".viewbar .pill")


def test_every_kind_of_field(browser: Browser, site: Site) -> None:
    """Each is shown in its way, and markup stays text; what holds code is never run."""
    with Published(browser, site.server) as watched:
        page = watched.open("/samples?shard=1&open=1.0")
        page.wait_for_selector(".field-array .facts")
        assert "48 × 64" in page.locator(".field-array .facts").inner_text()
        assert page.locator(".field-html pre").inner_text() == HTML.decode()
        assert page.locator(".field-svg pre").inner_text() == SVG.decode()
        assert page.locator(".field-text .text").first.inner_text() == HTML.decode()
        tree = page.locator('.field[data-field="json"] .tree').inner_text()
        assert str(2**60) in tree
        assert HTML.decode() in tree.replace('\\"', '"')
        assert "could run code" in page.locator(".field-pickle").inner_text()
        page.wait_for_selector(".wave-large .peaks")
        wait_until(page, "Math.abs(document.querySelector('audio').duration - 0.5) < 0.05")
        page.click('.tab:text-is("Members and bytes")')
        page.wait_for_selector(".hex-line")
        assert "all.npy" in page.locator(".detail tbody").inner_text()
        if browser.name == "firefox":
            # playwright is not told of downloads there
            return
        with page.expect_download() as saved:
            page.click('.tab:text-is("Fields")')
            page.click('.field[data-field="npy"] .field-head a')
        assert Path(saved.value.path()).read_bytes() == make_array()


def test_a_document(browser: Browser, site: Site) -> None:
    """It is shown in reading order, with pictures of the sample and of its JSON."""
    with Published(browser, site.server) as watched:
        page = watched.open("/samples?shard=1&open=1.1")
        wait_until(page, "document.querySelectorAll('.document .thumb.loaded').length === 2")
        order = page.eval_on_selector_all(
            ".document > *",
            "parts => parts.map(part => part.tagName === 'P' ? part.textContent : part.querySelector('img').naturalWidth)",  # noqa: E501
        )
        assert order == ["Before.", 80, "Between.", 70, "After."]


def test_a_server_without_ranges(browser: Browser, site: Site) -> None:
    """The page says which servers send ranges, and does not load a whole shard."""
    with PageServer(site.folder, ranges=False) as server, Published(browser, server) as watched:
        page = watched.open()
        page.wait_for_selector(".notice .error-text")
        assert "sends no byte ranges" in page.locator(".error-text").inner_text()
        assert "nginx" in page.locator(".error-text").inner_text()


@pytest.mark.parametrize("is_open", [True, False])
def test_shards_of_another_origin(browser: Browser, tmp_path: Path, *, is_open: bool) -> None:
    """Where that origin lets the page read, it shows samples; else it says which headers are missing."""
    (tmp_path / "shards").mkdir()
    shards = write_shards(tmp_path / "shards")
    with PageServer(tmp_path / "shards", open_to_all=is_open) as other, PageServer(tmp_path) as server:
        publish_page(shards, str(tmp_path / "site"), Reading(), shards_url=other.root)
        with Published(browser, server, f"{other.root}/") as watched:
            page = watched.open()
            if is_open:
                page.wait_for_selector(".thumb.loaded img")
            else:
                watched.expected = ("CORS", "ERR_FAILED", "Cross-Origin")
                page.wait_for_selector(".notice .error-text")
                assert "Access-Control-Allow-Origin" in page.locator(".error-text").inner_text()


def test_a_shard_that_was_replaced(browser: Browser, tmp_path: Path) -> None:
    """Samples of another shard under the same name are not shown as those of the first."""
    shards = write_shards(tmp_path)
    publish_page(shards, str(tmp_path / "site"), Reading())
    write_shard(Path(shards[0]), [(f"b/{number:03d}.txt", b"other" * 99) for number in range(9000)])
    with PageServer(tmp_path) as server, Published(browser, server) as watched:
        page = watched.open()
        page.wait_for_selector(".notice .error-text")
        assert "Publish the viewer again" in page.locator(".error-text").inner_text()


DOCUMENTS: list[tuple[str, list[str], object, list[NeighbourSample]]] = [
    ("d", ["json", "0.jpg", "1.jpg"], STORY, []),
    ("d", ["json", "jpg"], {"texts": ["a", None], "images": [None, "https://x.org/y.jpg"]}, []),
    ("d", ["json", "tiff"], {"texts": ["a", None, None], "images": [None, "p", {"image_name": "q"}]}, []),
    ("x/d", ["json"], {"texts": ["a", None], "images": [None, "d-7.png"]}, [NeighbourSample(4, "x/d-7", ("png",))]),
    ("d", ["json"], {"texts": ["a", None], "images": [None, "u.png"]}, [NeighbourSample(2, "d-u", ("txt", "png"))]),
    ("d", ["json", "b.png"], {"texts": ["t", "u"], "matched_text_indices": [1], "images": ["dir/b.jpg"]}, []),
    ("d", ["json"], {"text_list": ["t"], "matched_text_index": [0], "matched_sim": [0.5]}, []),
    ("d", ["json"], {"text_list": ["t"], "image_info": [{"matched_text_index": 0, "caption": "c", "member": "m"}]}, []),
    ("d", ["json", "00.png", "1.png"], STORY, []),
    ("d", ["json", "3.png"], STORY, []),
    ("d", ["json", "in.png", "in.jpg"], STORY, []),
    ("d", ["json"], {"text_list": ["t"], "image_info": [{"matched_text_index": 4}]}, []),
    ("d", ["json"], {"text_list": ["t"], "image_info": [7]}, []),
    ("d", ["json"], {"text_list": "t", "image_info": []}, []),
    ("d", ["json"], {"texts": ["a"], "images": ["b"]}, []),
    ("d", ["json"], {"texts": ["a"], "images": []}, []),
    ("d", ["json"], {"texts": ["a", None], "images": [None, 4]}, []),
    ("d", ["json"], {"anything": 1}, []),
    ("d", ["json"], [1], []),
]


def test_documents_are_those_of_the_library(browser: Browser, site: Site) -> None:
    """The page finds the images of documents where the library does, in the same order, and refuses the same."""
    with Published(browser, site.server) as watched:
        page = watched.open()
        page.wait_for_selector(".card:not(.blank)")
        assets = next(path.name for path in (site.folder / "site").iterdir() if path.name.startswith("assets-"))
        given = [
            [key, fields, record, [near._asdict() for near in neighbours]]
            for key, fields, record, neighbours in DOCUMENTS
        ]
        found = page.evaluate(
            "async ([url, given]) => { const {describeDocument} = await import(url); "
            "return given.map((one) => describeDocument(...one)); }",
            [f"{site.server.root}/site/{assets}/documents.js", given],
        )
    for mine, (key, fields, record, neighbours) in zip(found, DOCUMENTS, strict=True):
        theirs = describe_document(key, fields, record, neighbours)
        if theirs is not None and theirs[0]["kind"] == "problem":
            assert [part["kind"] for part in mine] == ["problem"], record
        else:
            assert mine == theirs, record
