"""What ``wds view --publish`` writes: names that hold digests, urls that browsers open, and no secrets."""

import io
import json
import re
import tarfile
from pathlib import Path
from typing import Any

import pytest

import webdataset as wds
from webdataset.core.errors import AlreadyExists, UsageError
from webdataset.samples.sample_reader import Reading
from webdataset.shards.wids_index import read_wids_json
from webdataset.viewer import published_page
from webdataset.viewer.published_page import PublishedPage, publish_page


def write_shard(path: Path, count: int = 3) -> str:
    """Write a shard of texts."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w") as archive:
        for number in range(count):
            entry = tarfile.TarInfo(f"{number:03d}.txt")
            entry.size = 4
            archive.addfile(entry, io.BytesIO(b"text"))
    return str(path)


def read_list(folder: Path) -> dict[str, Any]:
    """Return the list of shards that the page names."""
    text = (folder / "index.html").read_text()
    found = re.search(r'name="wds-shards" content="([^"]+)"', text)
    assert found is not None
    return dict(json.loads((folder / found[1]).read_text()))


def test_the_list_is_a_wids_index_and_each_shard_has_an_index_of_ours(tmp_path: Path) -> None:
    """Other programs read the list, and the library reads the indexes."""
    shards = [write_shard(tmp_path / "a" / f"x y-{number}.tar", number + 1) for number in range(2)]
    written = publish_page(shards, str(tmp_path / "a" / "site"), Reading())
    assert written == PublishedPage(str(tmp_path / "a" / "site" / "index.html"), 2, 3, {})
    listed = read_list(tmp_path / "a" / "site")
    entries: list[dict[str, Any]] = listed["shardlist"]
    assert [entry["url"] for entry in entries] == ["../x%20y-0.tar", "../x%20y-1.tar"]
    assert [shard.nsamples for shard in read_wids_json(listed).shards] == [1, 2]
    for shard, entry in zip(shards, entries, strict=True):
        with wds.IndexedShard(shard, tmp_path / "a" / "site" / str(entry["index"])) as opened:
            assert len(opened) == entry["nsamples"]
            assert opened[0]["txt"] == b"text"


def test_statistics_and_findings_are_those_of_the_viewer(tmp_path: Path) -> None:
    """Indexes count all samples; what a check finds leads to its sample; no path of this machine is told."""
    shards = [write_shard(tmp_path / f"x-{number}.tar", number + 2) for number in range(2)]
    with tarfile.open(shards[1], "a") as archive:
        entry = tarfile.TarInfo("100.json")
        entry.size = 1
        archive.addfile(entry, io.BytesIO(b"{"))
    site = tmp_path / "site"
    written = publish_page(shards, str(site), Reading(), check=True)
    listed = read_list(site)
    statistics = json.loads((site / listed["statistics"]).read_text())
    assert (statistics["exact"], statistics["total"], statistics["samples"]) == (True, 6, 6)
    assert {field["name"]: field["count"] for field in statistics["fields"]} == {"json": 1, "txt": 5}
    assert [row["samples"] for row in statistics["shards"]] == [2, 4]
    found = [json.loads((site / entry["findings"]).read_text()) for entry in listed["shardlist"]]
    assert found[0]["findings"] == []
    codes = {finding["code"]: finding["ordinal"] for finding in found[1]["findings"]}
    assert codes["bad-json"] == 3
    assert written.findings == len(found[1]["findings"]) > 0
    assert all(str(tmp_path) not in path.read_text("latin-1") for path in site.rglob("*") if path.is_file())


def test_numbers_that_json_has_no_words_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They become null, as in answers of the server: no browser reads a file with NaN."""

    def collect(*_: object, **__: object) -> dict[str, Any]:
        return {"problems": [], "durations": [float("nan"), -float("inf"), 1.5], "shards": ({"mean": float("inf")},)}

    monkeypatch.setattr(published_page, "collect_statistics", collect)
    site = tmp_path / "site"
    publish_page([write_shard(tmp_path / "x.tar")], str(site), Reading())
    text = (site / read_list(site)["statistics"]).read_text()
    assert json.loads(text) == {"problems": [], "durations": [None, None, 1.5], "shards": [{"mean": None}]}


def test_shards_are_not_checked_unless_that_is_asked_for(tmp_path: Path) -> None:
    """A check reads them whole."""
    written = publish_page([write_shard(tmp_path / "x.tar")], str(tmp_path / "site"), Reading())
    listed = read_list(tmp_path / "site")
    assert written.findings is None
    assert "findings" not in listed["shardlist"][0]
    assert not (tmp_path / "site" / "findings").exists()


def test_files_of_two_versions_never_meet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything but the page has a name that changes with its content, and what an open page uses stays."""
    shard = write_shard(tmp_path / "x.tar")
    site = tmp_path / "site"
    publish_page([shard], str(site), Reading())
    first = {path.relative_to(site): path.read_bytes() for path in site.rglob("*") if path.is_file()}
    other = tmp_path / "other"
    for folder in ("static", "published"):
        for path in (published_page._HERE / folder).iterdir():
            (other / folder).mkdir(parents=True, exist_ok=True)
            (other / folder / path.name).write_bytes(path.read_bytes() + (b"\n" if path.name == "app.js" else b""))
    monkeypatch.setattr(published_page, "_HERE", other)
    write_shard(tmp_path / "x.tar", 5)
    publish_page([shard], str(site), Reading())
    page = Path("index.html")
    for path, content in first.items():
        assert path == page or (site / path).read_bytes() == content, path
    names = [
        re.findall(r'"((?:assets|lists)[^"]*)"', text) for text in (first[page].decode(), (site / page).read_text())
    ]
    assert not set(names[0]) & set(names[1])
    assert all((site / name).is_file() for name in names[1])


def test_only_the_backend_stands_in_for_a_file_of_the_server_s_page() -> None:
    """No other module of the published page has the name of one of the page's."""
    static, published = (
        {path.name for path in (published_page._HERE / name).iterdir()} for name in ("static", "published")
    )
    assert {name for name in static & published if name.endswith(".js")} == {"api.js"}


def test_the_page_reads_nothing_but_its_shards(tmp_path: Path) -> None:
    """The policy names the origins of shards, allows no script but the page's own, and nothing stands inline."""
    shard = write_shard(tmp_path / "x.tar")
    publish_page([shard], str(tmp_path / "site"), Reading(), shards_url="https://data.example.org:8443/some/where")
    text = (tmp_path / "site" / "index.html").read_text()
    policy = re.search(r'Content-Security-Policy" content="([^"]+)"', text)
    assert policy is not None
    rules = dict(rule.strip().split(" ", 1) for rule in policy[1].split(";"))
    assert rules["default-src"] == "'none'"
    assert rules["script-src"] == rules["style-src"] == "'self'"
    assert rules["connect-src"] == "'self' https://data.example.org:8443"
    assert re.findall(r"<script[^>]*>([^<]+)<|<style|\son\w+=|\sstyle=", text) == []
    assert all(not url.startswith(("/", "http")) for url in re.findall(r'(?:src|href)="([^"#]+)', text))


@pytest.mark.parametrize(
    ("url", "shards_url"),
    [
        ("s3://bucket/x.tar", None),
        ("pipe:cat x.tar", None),
        ("-", None),
        ("https://me:password@example.org/x.tar", None),
        ("https://example.org/x.tar?X-Amz-Signature=1234567890abcdef", None),
        ("s3://bucket/x.tar", "https://me:password@example.org/"),
        ("s3://bucket/x.tar", "javascript:alert(1)//"),
        ("s3://bucket/x.tar", "https://example.org/'; script-src *"),
    ],
)
def test_urls_that_a_page_cannot_hold(tmp_path: Path, url: str, shards_url: str | None) -> None:
    """What browsers cannot open, and what holds a secret, is refused before anything is read or written."""
    with pytest.raises(UsageError) as caught:
        publish_page([url], str(tmp_path / "site"), Reading(), shards_url=shards_url)
    assert "password@" not in str(caught.value)
    assert "1234567890abcdef" not in str(caught.value)
    assert not (tmp_path / "site").exists()


def test_two_shards_of_one_name_at_one_address(tmp_path: Path) -> None:
    """They could not be told apart there."""
    shards = [write_shard(tmp_path / name / "x.tar") for name in "ab"]
    with pytest.raises(UsageError, match="one name"):
        publish_page(shards, str(tmp_path / "site"), Reading(), shards_url="https://example.org/")


def test_what_cannot_be_read_by_ranges_is_told(tmp_path: Path) -> None:
    """Compressed and damaged shards are left out with their reasons; where no other is there, nothing is written."""
    whole = write_shard(tmp_path / "x.tar")
    import gzip

    (tmp_path / "y.tar.gz").write_bytes(gzip.compress(Path(whole).read_bytes()))
    (tmp_path / "z.tar").write_bytes(Path(whole).read_bytes()[:700])
    others = [str(tmp_path / name) for name in ("y.tar.gz", "z.tar")]
    written = publish_page([whole, *others], str(tmp_path / "site"), Reading())
    assert written.shards == 1
    assert list(written.left_out) == others
    assert "compressed" in written.left_out[others[0]]
    with pytest.raises(UsageError, match="compressed"):
        publish_page(others, str(tmp_path / "none"), Reading())
    assert not (tmp_path / "none" / "index.html").exists()


def test_a_page_of_another_program_stays(tmp_path: Path) -> None:
    """It is not replaced; a page of ours is."""
    shard = write_shard(tmp_path / "x.tar")
    (tmp_path / "index.html").write_text("mine")
    with pytest.raises(AlreadyExists):
        publish_page([shard], str(tmp_path), Reading())
    assert (tmp_path / "index.html").read_text() == "mine"
    assert not (tmp_path / "indexes").exists()
