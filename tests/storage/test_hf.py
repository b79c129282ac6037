"""The Hugging Face hub: read through signed urls that expire, list, write; who may; and where the token goes."""

import hashlib
import logging
import os
import pickle
import time
import traceback

import pytest

import webdataset as wds
from support.after_forks import NUMBERED, read_by_children
from support.hf_server import TOKEN, hf_server
from support.proxy import KINDS, Fault, planned, seeded
from webdataset.core.errors import ConfigError, NotFound, ShardChanged, ShortRead, SourceError, UsageError
from webdataset.storage import http_client
from webdataset.storage.backends.huggingface import remote_object
from webdataset.storage.backends.huggingface_client import HubClient
from webdataset.storage.listing import list_urls
from webdataset.storage.open_url import resolve_url
from webdataset.storage.random_access import open_ranges
from webdataset.testing.archives import of_samples

SIZE = 400_000
BODY = hashlib.shake_256(b"first").digest(SIZE)
OTHER = hashlib.shake_256(b"second").digest(SIZE)
URL = "hf://datasets/me/data/train/000.tar"
FAULTS = tuple(kind for kind in KINDS if kind != "swapped")


@pytest.fixture
def hub(monkeypatch, tmp_path, waits):
    """A hub, and the environment of somebody who is not logged in."""
    for name in [name for name in os.environ if name.startswith(("HF_", "HUGGING_FACE_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HF_HOME", str(tmp_path / "home"))
    with hf_server(page=3) as running:
        running.put("me/data", {"train/000.tar": BODY, "README.md": b"small"})
        running.put("me/secret", {"a.tar": BODY}, access="private")
        running.put("me/gated", {"a.tar": BODY}, access="gated")
        monkeypatch.setenv("HF_ENDPOINT", running.endpoint)
        yield running


@pytest.fixture
def proxied(hub, before):
    """Return a function that puts a faulty proxy before the server with the bytes."""

    def start(plan, **options):
        proxy = before(hub.cdn, plan, **options)
        hub.announced = proxy.url
        return proxy

    return start


def drained(url=URL, size=50_000, **options):
    """Read a url to its end in pieces."""
    with wds.gopen(url, **options) as stream:
        return b"".join(iter(lambda: stream.read(size), b""))


def test_small_and_large_files(hub):
    """What the hub sends itself, and what it sends us elsewhere for."""
    assert drained("hf://datasets/me/data/README.md") == b"small"
    assert [request.where for request in hub.requests] == ["hub"]
    assert drained() == BODY
    assert [request.where for request in hub.requests] == ["hub", "hub", "cdn"]


@pytest.mark.parametrize("path", ["with space/ü#1?x=2&y%20z+.tar", "a[1]*.tar"])
@pytest.mark.parametrize("size", [0, 10, 5000])
def test_paths_are_taken_as_they_stand(hub, path, size):
    """Whatever they look like."""
    hub.put("me/data", {path: b"x" * size})
    assert drained(f"hf://datasets/me/data/{path}") == b"x" * size


@pytest.mark.parametrize(("kind", "url"), [("models", "hf://me/thing/w.bin"), ("spaces", "hf://spaces/me/thing/w.bin")])
def test_other_kinds(hub, kind, url):
    """Models have no prefix, spaces have theirs."""
    hub.put("me/thing", {"w.bin": BODY}, kind=kind)
    assert drained(url) == BODY
    assert list_urls(url.replace("w.bin", "*")) == [url]


def test_revisions(hub):
    """A commit stays what it is; a revision may be quoted."""
    old = hub.put("me/data", {"x": b"old"})
    hub.put("me/data", {"x": b"new"})
    assert drained(f"hf://datasets/me/data@{old}/x") == b"old"
    assert drained("hf://datasets/me/data/x") == drained("hf://datasets/me/data@m%61in/x") == b"new"
    with pytest.raises(NotFound, match="no such branch"):
        drained("hf://datasets/me/data@v9/x")


def test_renamed_repositories(hub):
    """A redirect within the hub is followed, with the token."""
    hub.renamed["me/old"] = "me/secret"
    assert drained("hf://datasets/me/old/a.tar", storage_options={"token": TOKEN}) == BODY


def test_lists(hub):
    """Folders and wildcards, over pages; folders themselves are no files."""
    hub.put("me/data", {f"train/{number:03}.tar": b"x" for number in range(8)} | {"train/deep/x.tar": b"x"})
    stem = "hf://datasets/me/data/train/"
    assert list_urls(f"{stem}*.tar") == [f"{stem}{number:03}.tar" for number in range(8)]
    assert list_urls(f"{stem}00[1-3].tar") == [f"{stem}{number:03}.tar" for number in (1, 2, 3)]
    assert len(list_urls(stem)) == 9
    assert len(list_urls("hf://datasets/me/data/**")) == 10
    assert sum("/tree/" in request.path for request in hub.requests) > 8
    for url in ("hf://datasets/me/data/none/*.tar", "hf://datasets/me/none/*.tar", "hf://datasets/me/data@v9/*"):
        with pytest.raises(NotFound):
            list_urls(url)


def test_shards(hub, tmp_path):
    """WebDataset over a pattern, random access, the cache, which tells hubs apart."""
    files = {
        f"s/{name}.tar": of_samples([(f"{name}{number}", {"txt": b"%d" % number * 900}) for number in range(3)])
        for name in "ab"
    }
    hub.put("me/data", files)
    dataset = wds.WebDataset("hf://datasets/me/data/s/*.tar", shardshuffle=False, cache_dir=str(tmp_path))
    for _ in range(2):
        assert [sample["__key__"] for sample in dataset] == ["a0", "a1", "a2", "b0", "b1", "b2"]
    with wds.IndexedShard("hf://datasets/me/data/s/b.tar") as indexed:
        assert indexed[2]["txt"] == b"2" * 900
    assert resolve_url(URL).service_id() == f"hf {hub.endpoint}"
    assert resolve_url(URL, storage_options={"endpoint_url": "https://huggingface.co/"}).service_id() == ""


@pytest.mark.parametrize(
    "url",
    [
        "hf://",
        "hf://x",
        "hf://datasets/me/data/",
        "hf://datasets/me/data/f/",
        "hf://datasets/a/b/../c",
        "hf://buckets/a/b/c",
    ],
)
def test_urls_that_name_no_file(hub, url):
    """They say what a url looks like, and nothing is asked."""
    for mode in ("rb", "wb"):
        with pytest.raises(UsageError, match="hf://datasets/|'..'"):
            wds.gopen(url, mode)
    assert hub.requests == []


def test_who_may_not(hub, monkeypatch):
    """Each refusal says what to do."""
    for url, kind, message in (
        ("hf://datasets/me/none/x", NotFound, "no such repository, or it is private.*HF_TOKEN"),
        ("hf://datasets/me/secret/a.tar", NotFound, "no such repository, or it is private.*HF_TOKEN"),
        ("hf://datasets/me/gated/a.tar", SourceError, "accept its terms at http.*/datasets/me/gated"),
        ("hf://datasets/me/data/none", NotFound, "no such file"),
    ):
        with pytest.raises(kind, match=message) as caught:
            drained(url)
        assert caught.value.url == url
    with pytest.raises(SourceError, match="401: Invalid credentials.*token is not valid"):
        drained(storage_options={"token": "wrong"})


def test_where_the_token_comes_from(hub, monkeypatch, tmp_path):
    """Options, then HF_TOKEN, its old name, the file of the login; token=False sends none."""
    url = "hf://datasets/me/gated/a.tar"
    monkeypatch.setenv("MY_TOKEN", TOKEN)
    assert drained(url, storage_options={"token": "env:MY_TOKEN"}) == BODY
    (tmp_path / "home").mkdir()
    for put in (
        lambda: (tmp_path / "home" / "token").write_text(f"{TOKEN}\n"),
        lambda: monkeypatch.setenv("HUGGING_FACE_HUB_TOKEN", TOKEN) or (tmp_path / "home" / "token").write_text("no"),
        lambda: monkeypatch.setenv("HF_TOKEN", TOKEN) or monkeypatch.setenv("HUGGING_FACE_HUB_TOKEN", "no"),
    ):
        put()
        assert drained(url) == BODY
    with pytest.raises(SourceError, match="gated"):
        drained(url, storage_options={"token": False})
    monkeypatch.delenv("HF_TOKEN")
    monkeypatch.delenv("HUGGING_FACE_HUB_TOKEN")
    (tmp_path / "elsewhere").write_text(TOKEN)
    monkeypatch.setenv("HF_TOKEN_PATH", str(tmp_path / "elsewhere"))
    assert drained(url) == BODY
    monkeypatch.delenv("HF_TOKEN_PATH")
    monkeypatch.delenv("HF_HOME")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "cache" / "huggingface").mkdir(parents=True)
    (tmp_path / "cache" / "huggingface" / "token").write_text(TOKEN)
    assert drained(url) == BODY


def test_the_token_stays_at_the_hub(hub, proxied):
    """No other address sees it: not the server with the bytes, not one that a list goes on at."""
    proxied(planned([Fault("cut", 100_000), Fault("reset", 10)]))
    assert drained("hf://datasets/me/secret/a.tar", storage_options={"token": TOKEN}) == BODY
    sent = {(request.where, request.headers.get("Authorization")) for request in hub.requests}
    assert sent == {("hub", f"Bearer {TOKEN}"), ("cdn", None)}
    found = HubClient({"token": TOKEN}, URL)
    assert found._is_hub(f"{hub.endpoint}/x")
    assert not any(
        found._is_hub(url)
        for url in (hub.cdn, hub.endpoint.replace("http", "https"), hub.endpoint + "0", "http://127.0.0.1", "x")
    )
    hub.endpoint = hub.cdn
    hub.put("me/data", {f"{number}": b"x" for number in range(9)})
    with pytest.raises(SourceError, match="another address"):
        list_urls("hf://datasets/me/data/*", {"token": TOKEN})
    with pytest.raises(SourceError, match="https to http"):
        found._redirect_target("https://hub/x", "http://cdn/x")


def test_no_secret_is_shown(hub, proxied, caplog):
    """No failure shows the token, or a signature: not in texts, tracebacks, logs, representations or pickles."""
    canary = "cAnArY-0123456789"
    hub.token = canary
    caplog.set_level(logging.DEBUG, logger="webdataset")
    options, shown = {"token": canary}, []
    for plan in ([Fault("busy")] * 9, [Fault("expired")] * 9, [Fault("reset")] * 9):
        proxied(planned(plan))
        with pytest.raises(SourceError) as caught:
            drained(storage_options=options)
        shown.append("".join(traceback.format_exception(caught.value)))
        shown.append(repr(pickle.dumps(caught.value)) + repr(caught.value.__dict__))
    hub.stop()
    with pytest.raises(SourceError) as caught:
        drained(storage_options=options, attempts=2)
    shown.append("".join(traceback.format_exception(caught.value)))
    source = remote_object(URL, options)
    shown.append(repr(vars(source.hub)))
    with pytest.raises(ConfigError, match="pickle"):
        pickle.dumps(source)
    assert canary not in "".join(shown) + caplog.text
    assert "Signature=s0" not in "".join(shown) + caplog.text


@pytest.mark.parametrize("kind", ["reset", "cut", "misplaced", "rangeless", "busy", "throttled", "expired"])
def test_one_fault_costs_no_byte(hub, proxied, waits, kind):
    """All bytes come, in order, and each attempt begins at the hub."""
    proxy = proxied(planned([Fault("cut", 150_000), Fault(kind, 100_000, 0), Fault(kind, 10)]))
    assert drained() == BODY
    assert proxy.passed[1].range == "bytes=150000-"
    assert waits[0] < 0.2
    assert sum(request.where == "hub" for request in hub.requests) == len(proxy.passed)


def test_a_stalled_connection_is_left(proxied, monkeypatch):
    """No byte for the read timeout: the rest comes over another connection."""
    monkeypatch.setattr(http_client, "READ_SECONDS", 0.3)
    proxied(planned([Fault("stall", 100_000), Fault("stall", 0)]))
    assert drained() == BODY


def test_signed_urls_expire(hub, proxied):
    """A read that takes longer than they live goes on with a new one."""
    proxied(planned([Fault("swapped", 150_000), Fault("swapped", 100_000)]), swap=hub.expire)
    assert drained() == BODY
    with open_ranges(URL) as ranges:
        hub.expire()
        assert ranges.read_at(399_000, 5000) == BODY[399_000:]


def test_ranges_share_a_signed_url(hub, monkeypatch):
    """One question to the hub for many ranges; another after a minute, or where the url is refused."""
    with open_ranges(URL) as ranges:
        for offset in range(100_000, 110_000, 1000):
            assert ranges.read_at(offset, 1000) == BODY[offset : offset + 1000]
        assert sum(request.where == "hub" for request in hub.requests) == 1
        hub.expire()
        assert ranges.read_at(0, 100_000) == BODY[:100_000]
        assert sum(request.where == "hub" for request in hub.requests) == 2
        later = time.monotonic() + 61
        monkeypatch.setattr("webdataset.storage.backends.huggingface.time.monotonic", lambda: later)
        assert ranges.read_at(300_000, 10) == BODY[300_000:300_010]
        assert sum(request.where == "hub" for request in hub.requests) == 3
        assert b"Signature" not in pickle.dumps(ranges)


def test_a_branch_that_moves_meanwhile(hub, proxied):
    """The commit of the first answer is read to its end; the next reader gets the new one."""
    proxied(planned([Fault("swapped", 150_000)]), swap=lambda: hub.put("me/data", {"train/000.tar": OTHER}))
    assert drained() == BODY
    assert drained() == OTHER
    with open_ranges(URL) as ranges:
        hub.put("me/data", {"train/000.tar": BODY})
        assert ranges.read_at(200_000, 1000) == OTHER[200_000:201_000]


def test_bytes_of_another_length(hub, proxied):
    """What comes is not what the hub promises: an error, and no byte of it."""
    repository = hub.repositories["datasets", "me/data"]

    def swap():
        repository.commits[-1]["train/000.tar"] = OTHER + b"more"

    proxied(planned([Fault("swapped", 150_000)]), swap=swap)
    with pytest.raises((ShardChanged, ShortRead)):
        drained()


def test_a_busy_hub(hub, waits):
    """429 with Retry-After is heard; attempts are bounded."""
    hub.busy = 3
    assert drained() == BODY
    assert all(1 <= wait < 1.3 for wait in waits)
    hub.busy = 3
    assert list_urls("hf://datasets/me/data/*.md") == ["hf://datasets/me/data/README.md"]
    hub.busy = 99
    with pytest.raises(SourceError, match="after 8 attempts: the hub answered 429"):
        drained()


@pytest.mark.parametrize("block", range(4))
def test_seeded_faults_are_never_silent(proxied, monkeypatch, block):
    """Hundred seeds, all faults: equal bytes or a typed error."""
    monkeypatch.setattr(http_client, "READ_SECONDS", 0.15)
    errors, proxy = 0, proxied(planned(()))
    for seed in range(25 * block, 25 * block + 25):
        proxy.plan = seeded(seed, FAULTS, size=SIZE)
        try:
            assert drained() == BODY, f"seed {seed}"
        except ShortRead:
            errors += 1
    assert errors <= 3


def test_files_are_written(hub):
    """One commit a file, when it is complete; an exception makes none."""
    pytest.importorskip("huggingface_hub")
    options = {"token": TOKEN}
    with wds.gopen("hf://datasets/me/data/new/x.tar", "wb", storage_options=options, message="a new one") as stream:
        stream.write(BODY[:100_000])
        stream.write(BODY[100_000:])
        assert len(hub.repositories["datasets", "me/data"].commits) == 2
    assert drained("hf://datasets/me/data/new/x.tar") == BODY

    def fail():
        with wds.gopen("hf://datasets/me/data/new/y.tar", "wb", storage_options=options) as stream:
            stream.write(BODY)
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert len(hub.repositories["datasets", "me/data"].commits) == 3
    with wds.ShardWriter("hf://datasets/me/data/s-%06d.tar", maxcount=2) as sink:
        for number in range(4):
            sink.write({"__key__": str(number), "txt": str(number)})
    dataset = wds.WebDataset("hf://datasets/me/data/s-*.tar", shardshuffle=False)
    assert [sample["txt"] for sample in dataset] == [b"0", b"1", b"2", b"3"]


def test_refused_uploads_are_told(hub):
    """Without the token's value."""
    pytest.importorskip("huggingface_hub")
    with pytest.raises(SourceError, match="did not take the file") as caught:
        with wds.gopen("hf://datasets/me/none/x", "wb", storage_options={"token": TOKEN}) as stream:
            stream.write(b"x")
    assert TOKEN not in "".join(traceback.format_exception(caught.value))


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_after_the_parent_has_read(hub, method):
    """The parent reads first; then children read at once, each its own bytes."""
    hub.put("me/data", NUMBERED)
    assert drained("hf://datasets/me/data/0") == NUMBERED["0"]
    assert read_by_children("hf://datasets/me/data/", method, os.environ) == [0, 0]
    assert drained("hf://datasets/me/data/3") == NUMBERED["3"]


def test_the_page_runs(hub, ran_page):
    """The blocks of the page, one after the other."""
    pytest.importorskip("huggingface_hub", "1.4")  # earlier ones fail at endpoints of others
    for number in range(2):
        samples = [(f"{sample}", {"txt": b"caption %d" % sample}) for sample in range(100 * number, 100 * number + 100)]
        hub.put("me/data", {f"train/{number:06}.tar": of_samples(samples)})
    hub.repositories["datasets", "me/data"].commits[-1].pop("train/000.tar")
    assert ran_page("hf.md") == 2
