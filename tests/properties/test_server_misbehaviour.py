"""Whatever a web server does wrong: all bytes, each once and in order, or a typed error."""

import gzip
import io
import os

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

import webdataset as wds
from support.misbehaving_server import KINDS, Answer, MisbehavingServer, answers
from webdataset.core.errors import WebDatasetError
from webdataset.core.seeds import make_rng
from webdataset.storage import retries
from webdataset.storage.backends.http import HttpStream
from webdataset.storage.random_access import open_ranges

RUNS = settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)


def make_shard(seed):
    """Return a shard that is long enough to be read from its socket."""
    buffer, rng = io.BytesIO(), make_rng("misbehaviour", seed)
    with wds.TarWriter(buffer) as sink:
        for number in range(3):
            sink.write({"__key__": f"{number}", "bin": rng.randbytes(100_000)})
    return buffer.getvalue()


def read_members(content):
    """Return the fields of a shard in memory."""
    return [sample["bin"] for sample in wds.WebDataset([io.BytesIO(content)], shardshuffle=False)]


BODY, OTHER = make_shard(1), make_shard(2)
MEMBERS = [read_members(content) for content in (BODY, OTHER)]


@pytest.fixture
def server(monkeypatch):
    """The server; nothing waits between attempts."""
    monkeypatch.setattr(retries, "sleep", lambda _seconds: None)
    monkeypatch.setenv("WDS_REQUESTS_PER_SECOND", "0")
    monkeypatch.setenv("AWS_CONFIG_FILE", os.devnull)
    for name in ("http_proxy", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
    with MisbehavingServer(BODY, OTHER) as running:
        yield running


def open_stream(server, scheme):
    """Open the object by one of the schemes that are read over HTTP."""
    options: dict[str, object] = {"endpoint_url": server.url, "anonymous": True}
    if scheme == "s3":
        return wds.gopen("s3://bucket/a.tar", storage_options={**options, "region": "us-east-1"})
    if scheme == "gs":
        return wds.gopen("gs://bucket/a.tar", storage_options=options)
    if scheme == "az":
        return wds.gopen("az://container/a.tar", storage_options={**options, "account_name": "me"})
    return HttpStream(f"{server.url}/a.tar")


def allowed(faults):
    """Return the contents that a reader may give: the object's, and what a server calls the object at first.

    Nothing tells a client that the first version it saw was the other one, compressed, or of no stated length.
    """
    kinds = {fault.kind for fault in faults}
    return kinds.intersection(("changed", "changed_ignoring", "gzip"))


def is_right(content, faults, *, length, start=0):
    """Tell whether what a reader gave to its end is what the server said that the object is."""
    if length is None:
        # no length: its end is its end, which the tar reader judges
        return any(full[start:].startswith(content) for full in (BODY, OTHER)) or "gzip" in allowed(faults)
    if content == BODY[start:]:
        return True
    if content == OTHER[start:]:
        return bool(allowed(faults))
    return "gzip" in allowed(faults) and content[:2] == b"\x1f\x8b" and len(content) == length


@pytest.mark.parametrize("scheme", ["http", "s3", "gs", "az"])
@RUNS
@given(faults=answers(), size=st.sampled_from((999, 60_000, 400_000)))
@example(faults=[Answer("chunked_cut", 0.5)], size=60_000)
@example(faults=[Answer("cut"), Answer("gzip")], size=999)
@example(faults=[Answer("cut"), Answer("not_modified"), Answer("shifted"), Answer("whole")], size=999)
def test_streams(server, scheme, faults, size):
    """A stream that ends has given the object; one that does not raises a typed error."""
    server.misbehave(faults)
    pieces = []
    try:
        with open_stream(server, scheme) as stream:
            length = stream.length
            while piece := stream.read(size):
                pieces.append(piece)
    except WebDatasetError as caught:
        error = caught
    else:
        error = None
    content = b"".join(pieces)
    if error is None:
        assert is_right(content, faults, length=length)
    else:
        assert "a.tar" in str(error)
        # what was given before the error was right, too
        assert any(full.startswith(content) for full in (BODY, OTHER)) or "gzip" in allowed(faults)


@RUNS
@given(faults=answers(), places=st.lists(st.tuples(st.integers(0, len(BODY)), st.integers(1, 120_000)), max_size=4))
@example(faults=[Answer("good"), Answer("shifted"), Answer("other_total")], places=[(5, 10), (100_000, 9000)])
@example(faults=[Answer("good"), Answer("gzip")], places=[(100_000, 9000)])
@example(faults=[Answer("no_etag"), Answer("changed")], places=[(0, 513), (0, 65_537)])
def test_positioned_reads(server, faults, places):
    """All ranges are of one version, and each is the bytes that were asked for, or a typed error."""
    server.misbehave(faults)
    found = []
    try:
        with open_ranges(f"{server.url}/a.tar") as ranges:
            for offset, size in places:
                found.append((offset, size, ranges.read_at(offset, size)))
    except WebDatasetError as caught:
        error = caught
    else:
        error = None
    assert error is None or "a.tar" in str(error)
    versions = [BODY, *([OTHER] if allowed(faults) else [])]
    assert any(all(content == full[at : at + size] for at, size, content in found) for full in versions)


@settings(RUNS, max_examples=60)
@given(faults=answers(4))
def test_the_cache(server, faults, tmp_path_factory):
    """What comes through the cache is the object or a typed error; what is kept there is what was given."""
    server.misbehave(faults)
    folder = tmp_path_factory.mktemp("cache")
    dataset = wds.WebDataset(f"{server.url}/a.tar", shardshuffle=False, cache_dir=str(folder))
    try:
        found = [sample["bin"] for sample in dataset]
    except WebDatasetError:
        found = None
    assert found is None or found in MEMBERS
    for name in os.listdir(folder):
        content = (folder / name).read_bytes() if name.endswith(".tar") else BODY
        assert content in (BODY, OTHER) or gzip.decompress(content) in (BODY, OTHER)
        # a second reading, of a server that behaves, gives one version
    server.misbehave([])
    assert [sample["bin"] for sample in dataset] in MEMBERS


@pytest.mark.parametrize("kind", KINDS)
def test_one_misbehaviour_at_a_time(server, kind):
    """Each kind, first, in the middle of a body, and at every request: never other bytes, never without end."""
    for faults in ([Answer(kind)], [Answer("cut", 0.3), Answer(kind)], [Answer(kind)] * 30):
        server.misbehave(faults)
        try:
            with HttpStream(f"{server.url}/a.tar") as stream:
                assert is_right(stream.readall(), faults, length=stream.length)
        except WebDatasetError as caught:
            error = caught
        else:
            error = None
        assert error is None or "a.tar" in str(error)
        assert len(server.asked) < 60
