"""A canary in the place of every secret of every scheme: it goes to the service, and can be seen nowhere else."""

import gc
import io
import logging
import pickle
import sys
import traceback
import urllib.parse

import pytest

import webdataset as wds
from support import azure_server, readings
from support.proxy import Fault, planned
from support.scheme_servers import NAMES
from support.schemes import Target
from webdataset.core.errors import WebDatasetError
from webdataset.storage.random_access import open_ranges

CANARY = "cAnArY0123456789"
KEY = "canary.tar"
PATHS = {
    "refused": [Fault("denied")] * 99,
    "busy": [Fault("busy")] * 99,
    "throttled": [Fault("throttled", 0, 0)] * 99,
    "expired": [Fault("expired")] * 99,
    "reset at once": [Fault("reset", 0)] * 99,
    "reset in the middle": [Fault("reset", 5000), *[Fault("reset", 0)] * 99],
    "misplaced": [Fault("cut", 5000), *[Fault("misplaced", 100)] * 99],
    "refused in the middle": [Fault("cut", 5000), *[Fault("denied")] * 99],
    "stalled": [Fault("stall", 5000)] * 99,
    "swapped": [Fault("swapped", 5000), *[Fault("cut", 100)] * 99],
}
_started, _watching = [], []


def _heard(event, words):
    if _watching and event in ("subprocess.Popen", "os.exec", "os.posix_spawn", "os.spawn", "os.system"):
        _started.append(repr(words))


sys.addaudithook(_heard)


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    """Nobody waits long."""
    readings.impatient(monkeypatch.setattr, 0.1, share=0.001)
    monkeypatch.setenv("GOPEN_VERBOSE", "1")


@pytest.fixture
def seen(caplog, capfd):
    """Collects everything that can be seen; at the end, the canary must be nowhere in it."""
    shown = []
    caplog.set_level(logging.DEBUG)
    for name in (
        "urllib3",
        "botocore",
        "azure",
        "google",
        "asyncssh",
        "paramiko",
        "huggingface_hub",
        "fsspec",
        "asyncio",
    ):
        caplog.set_level(logging.DEBUG, logger=name)
    _watching.append(1)
    yield shown
    _watching.clear()
    gc.collect()  # what is said about tasks and sockets that were left alone
    texts = {"shown": "\n".join(shown), "log": caplog.text, "children": "\n".join(_started)}
    texts["stdout"], texts["stderr"] = capfd.readouterr()
    found = [
        f"{where}: …{text[max(0, text.index(CANARY) - 200) :][:300]}" for where, text in texts.items() if CANARY in text
    ]
    if found:
        pytest.fail("\n".join(found))
    assert texts["shown"]
    _started.clear()


def secret_ways(name, target):
    """Return ways to ask for a target with a canary as the secret: url and options."""
    url, options = target.url, dict(target.options or {})
    scheme, _, rest = url.partition("://")
    if name in ("http", "https"):
        return [
            Target(f"{scheme}://me:{CANARY}@{rest}", options or None),
            Target(f"{url}?token={CANARY}&X-Amz-Signature={CANARY}", options or None),
            Target(url, {**options, "token": CANARY, "headers": {"X-Secret": CANARY, "Cookie": CANARY}}),
        ]
    if name == "s3":
        return [Target(url, {**options, "key": CANARY, "secret": CANARY, "session_token": CANARY})]
    if name == "gs":
        return [Target(url, {"endpoint_url": options["endpoint_url"], "token": CANARY})]
    if name == "az":
        plain = {key: value for key, value in options.items() if key != "sas_token"}
        key = urllib.parse.quote(CANARY, safe="")
        string = f"BlobEndpoint={options['endpoint_url']};AccountName={azure_server.ACCOUNT};AccountKey={CANARY}"
        return [
            Target(url, {**plain, "sas_token": f"sv=2021-08-06&sp=r&sig={key}&se=2099-01-01"}),
            Target(url, {**plain, "account_key": CANARY}),
            Target(url, {"connection_string": string}),
        ]
    if name in ("hf", "ais"):
        return [Target(url, {**options, "token": CANARY})]
    if name == "ssh":
        host = url.replace("127.0.0.1", f"me:{CANARY}@127.0.0.1", 1)
        return [
            Target(host, {"port": options["port"], "known_hosts": False, "key_filename": []}),
            Target(url, {**options, "key_filename": [], "username": "me", "password": CANARY, "passphrase": CANARY}),
        ]
    if name == "fsspec":
        return [
            Target(url, {"fsspec": {**options["fsspec"], "key_filename": None, "username": "me", "password": CANARY}})
        ]
    return [Target(url, options or None)]


def told(error, *, in_url):
    """Return everything that an error shows: itself, its chain, its traceback, its attributes, its pickle.

    The attribute ``url`` is what the user wrote; where that holds a secret, attributes and pickles are left out.
    """
    frames = traceback.TracebackException.from_exception(error)
    link, parts = error, ["".join(frames.format())]
    while link is not None:
        parts += [str(link), repr(link), repr(getattr(link, "args", "")), "" if in_url else repr(vars(link))]
        link = link.__cause__ or link.__context__  # hidden ones, too: reporters of errors show them
    if in_url:
        return "\n".join(parts)
    try:
        parts.append(repr(pickle.dumps(error)))
    except (TypeError, pickle.PicklingError) as refused:
        parts.append(repr(refused))
    return "\n".join(parts)


def in_pickles(*things):
    """Return what pickles hold of things, or how they refuse."""
    shown = []
    for thing in things:
        try:
            shown.append(repr(pickle.dumps(thing)))
        except (WebDatasetError, TypeError, AttributeError, io.UnsupportedOperation) as error:
            shown.append(repr(error))
    return shown


def attempts(target, folder):
    """Give functions that read a target in every way; what a user wrote into a url stays in it for pickles and keys."""
    url, options = target
    pickled = (lambda *_: []) if CANARY in url else in_pickles
    folder.mkdir(exist_ok=True)

    def streamed():
        with wds.gopen(url, storage_options=options) as stream:
            shown = [repr(stream), repr(vars(stream).get("_source")), *pickled(stream)]
            return "\n".join(shown) + repr(stream.read()[:0])

    def ranged():
        with open_ranges(url, storage_options=options) as ranges:
            return repr(ranges) + repr(ranges.read_at(100_000, 9)[:0])

    def sampled(**more):
        dataset = wds.WebDataset([url] * 2, shardshuffle=False, storage_options=options, **more)
        text = repr(dataset) + "\n".join(pickled(dataset, *dataset.pipeline)) + repr(dataset.pipeline)
        return text + "\n".join(str(sample["__url__"]) for sample in dataset if CANARY not in url)

    def written():
        with wds.gopen(url.replace(KEY, f"up-{KEY}"), "wb", storage_options=options) as stream:
            stream.write(b"x" * 1000)
        return "written"

    def listed():
        found = repr(wds.expand_urls(url.rpartition("/")[0] + "/*.tar", storage_options=options))
        return "" if CANARY in url else found

    return [
        streamed, ranged, sampled, lambda: sampled(cache_dir=str(folder), verbose=True), written,
        listed,
    ]  # fmt: skip


def tried(target, folder):
    """Read a target in every way; return what is seen of it."""
    shown = []
    for read in attempts(target, folder):
        try:
            shown.append(read())
        except WebDatasetError as error:
            shown.append(told(error, in_url=CANARY in target.url))
    for place in sorted(folder.rglob("*")):
        content = place.read_bytes() if place.is_file() and not place.name.endswith((".tar", ".part")) else b""
        shown.append(f"{place.relative_to(folder)} {content!r}")
    return shown


@pytest.mark.parametrize("name", [name for name in NAMES if name not in ("ssh", "fsspec", "memory")])
@pytest.mark.parametrize("path", PATHS)
def test_behind_a_proxy_that_fails(scheme_of, seen, tmp_path, name, path):
    """Each way in which a service refuses or breaks off, for each secret, in each way of reading and writing."""
    scheme = scheme_of(name)
    scheme.put(KEY, readings.shard(1, samples=4, size_bytes=30_000))
    swap = lambda: scheme.put(KEY, readings.shard(2, samples=4, size_bytes=30_000))
    with scheme.broken(planned(()), KEY, swap=swap) as (proxy, target):
        for number, way in enumerate(secret_ways(name, target)):
            if name in ("hf", "ais"):
                scheme.server.token = CANARY
            proxy.plan = planned(PATHS[path], methods=("GET", "PUT", "POST", "HEAD"))
            try:
                seen += tried(way, tmp_path / str(number))
            finally:
                if name in ("hf", "ais"):
                    scheme.server.token = next(iter(scheme.environment.values()))


@pytest.mark.parametrize("name", [name for name in NAMES if name != "memory"])
@pytest.mark.parametrize("path", ["wrong", "nobody listens", "cut wire"])
def test_without_a_proxy(scheme_of, seen, tmp_path, name, path):
    """The secret is wrong, nobody listens, the wire is cut in every phase."""
    scheme = scheme_of(name)
    scheme.put(KEY, readings.shard(1, samples=4, size_bytes=30_000))
    if path == "wrong":
        targets = secret_ways(name, scheme.target(KEY))
    elif path == "nobody listens":
        address = "https://127.0.0.1:9" if name == "https" else "http://127.0.0.1:9"
        scheme.announce(address)
        targets = secret_ways(name, scheme.target(KEY, address))
    if path != "cut wire":
        for number, target in enumerate(targets):
            seen += tried(target, tmp_path / str(number))
        scheme.announce(None)
        return
    for number, allowed in enumerate((0, 700, 5000)):
        with scheme.torn([allowed] * 40, KEY, kind="reset") as (_, target):
            for way in secret_ways(name, target):
                seen += tried(way, tmp_path / str(number))


def test_good_secrets_are_not_shown_either(scheme_of, seen, tmp_path):
    """Where all goes well: samples, representations, the cache's names and records."""
    scheme = scheme_of("http")
    scheme.put(KEY, readings.shard(1, samples=4, size_bytes=30_000))
    for number, target in enumerate(secret_ways("http", scheme.target(KEY))):
        seen += tried(target, tmp_path / str(number))
        assert list((tmp_path / str(number)).rglob("*.tar*"))


def test_the_canary_would_be_noticed(scheme_of, tmp_path):
    """It is sent: the service sees it; and what is looked at does show what is not hidden."""
    scheme, heard = scheme_of("http"), []
    scheme.put(KEY, readings.shard(1, samples=4, size_bytes=30_000))

    def plan(_method, path):
        heard.append(path)

    with scheme.broken(plan, KEY) as (_, target):
        shown = tried(Target(f"{target.url}?token={CANARY}&plain=visible-word"), tmp_path / "x")
    assert any(CANARY in path for path in heard)
    assert "visible-word" in "\n".join(shown)


@pytest.mark.parametrize("scheme", ["s3", "S3", "hf", "ais", "ssh", "sftp", "http", "https"])
@pytest.mark.parametrize("name", ["x.tar", "x-*.tar"])
def test_credentials_in_a_url_are_in_no_traceback(scheme, name, monkeypatch):
    """Whatever refuses such a url: this library, or one that it calls; a listing, or an object."""
    readings.impatient(monkeypatch.setattr, 0.1, share=0.001)
    url = f"{scheme}://user:hunter2@127.0.0.1:9/{name}"
    with pytest.raises((wds.WebDatasetError, ValueError)) as failure:
        next(iter(wds.WebDataset(url, shardshuffle=False)))
    assert "hunter2" not in "".join(traceback.format_exception(failure.value))
