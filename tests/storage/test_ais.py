"""AIStore against a cluster that redirects as AIStore does: read, write, list, members, other stores behind it."""

import io
import logging
import os
import pickle
import random
import shutil
import subprocess
import tarfile
import traceback

import pytest

import webdataset as wds
from support import ais_server as doubles
from support.after_forks import NUMBERED, closed_by_child, read_by_children
from support.ais_server import ais_server
from support.readings import drained
from webdataset.core.errors import ConfigError, NoRandomAccess, NotFound, ShortRead, SourceError, UsageError
from webdataset.storage import retries
from webdataset.storage.backends import aistore_client as clusters
from webdataset.storage.listing import list_urls
from webdataset.storage.open_url import find_opener, resolve_url
from webdataset.storage.random_access import open_ranges
from webdataset.testing.archives import of_samples

TOKEN = "cAnArY-0123456789"


@pytest.fixture
def cluster(monkeypatch):
    """A cluster that asks for a token, at every hop, and the environment of somebody who uses it."""
    for name in [name for name in os.environ if name.startswith("AIS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setattr(retries, "sleep", lambda _seconds: None)
    with ais_server(token=TOKEN, page=3) as running:
        monkeypatch.setenv("AIS_ENDPOINT", running.endpoints[0])
        monkeypatch.setenv("AIS_AUTHN_TOKEN", TOKEN)
        yield running


def written(url, body, **options):
    """Write a url."""
    with wds.gopen(url, "wb", **options) as stream:
        stream.write(body)


@pytest.mark.parametrize("name", ["plain", "with space/ü#1?x=2&y%20z+.tar", "/leading", "a//b", "a?archpath"])
@pytest.mark.parametrize("size", [0, 1, 3_000_000])
def test_names_are_taken_as_they_stand(cluster, name, size):
    """What is written is there, and is read again, whatever the name looks like."""
    body = random.Random(size).randbytes(size)
    written(f"ais://bucket/{name}", body)
    assert cluster.found("bucket", name).content == body
    assert drained(f"ais://bucket/{name}") == body


def test_redirects_are_followed_as_they_stand(cluster):
    """The target sees the gateway's whole url, the range and the token; a gateway gets no body of an upload."""
    cluster.put("bucket", "x", bytes(300_000))
    with open_ranges("ais://bucket/x") as ranges:
        assert len(ranges.read_at(200_000, 1000)) == 1000
    written("ais://bucket/new", bytes(3_000_000))
    seen = [request for request in cluster.requests if request.method != "HEAD"]
    assert [request.node for request in seen] == ["gateway", "target"] * (len(seen) // 2)
    for gateway, target in zip(seen[::2], seen[1::2], strict=True):
        assert target.path.startswith(gateway.path)
        assert target.headers["Authorization"] == f"Bearer {TOKEN}"
        assert (gateway.method, gateway.headers["Range"]) == (target.method, target.headers["Range"])
    assert (seen[-2].method, len(seen[-2].body), len(seen[-1].body)) == ("PUT", 0, 3_000_000)


def test_other_clusters_by_storage_options(cluster, monkeypatch):
    """Endpoint, token and provider of a dataset come before the environment's; a token may be a reference."""
    cluster.put("bucket", "x.txt", b"of gcp", provider="gcp")
    monkeypatch.setenv("AIS_ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setenv("MY_TOKEN", TOKEN)
    monkeypatch.delenv("AIS_AUTHN_TOKEN")
    given = {"endpoint_url": cluster.endpoints[0], "token": "env:MY_TOKEN", "provider": "gs"}
    assert drained("ais://bucket/x.txt", storage_options=given) == b"of gcp"
    assert list_urls("ais://bucket/*.txt", given) == ["ais://bucket/x.txt"]
    with pytest.raises(ConfigError, match="does not apply"):
        drained("ais://bucket/x.txt", storage_options={"profile": "x"})


@pytest.mark.parametrize("content", ['{"token": "%s"}', "%s\n"])
def test_token_of_a_file(cluster, monkeypatch, tmp_path, content):
    """AIS_AUTHN_TOKEN_FILE: JSON as AIStore writes it, or the token alone."""
    cluster.put("bucket", "x", b"x")
    (tmp_path / "token").write_text(content % TOKEN)
    monkeypatch.delenv("AIS_AUTHN_TOKEN")
    monkeypatch.setenv("AIS_AUTHN_TOKEN_FILE", str(tmp_path / "token"))
    assert drained("ais://bucket/x") == b"x"
    (tmp_path / "token").write_text('{"other": "%s"}' % TOKEN)
    with pytest.raises(ConfigError, match="no JSON with a 'token'") as caught:
        drained("ais://bucket/x")
    assert TOKEN not in str(caught.value)


def test_who_may_not(cluster, monkeypatch):
    """Without a valid token: an error that names the variables."""
    for token in ("wrong", None):
        monkeypatch.setenv("AIS_AUTHN_TOKEN", token) if token else monkeypatch.delenv("AIS_AUTHN_TOKEN")
        with pytest.raises(SourceError, match="401: no valid token; set AIS_AUTHN_TOKEN"):
            drained("ais://bucket/x")
        with pytest.raises(SourceError, match="401"):
            written("ais://bucket/x", b"x")
        with pytest.raises(SourceError, match="401"):
            list_urls("ais://bucket/*")
    assert cluster.found("bucket", "x") is None


def test_nothing_there(cluster):
    """NotFound, with the url; and what to write where a member of an archive was meant."""
    cluster.put("bucket", "a.tar", b"")
    for url in ("ais://bucket/none", "ais://nobucket/x"):
        with pytest.raises(NotFound, match="404") as caught:
            drained(url)
        assert caught.value.url == url
    with pytest.raises(NotFound, match=r"\?archpath=member"):
        drained("ais://bucket/a.tar/b.jpg")


@pytest.mark.parametrize(
    "url", ["ais://", "ais://bucket", "ais://bucket/", "ais:///x", "ais://bucket/folder/", "ais://b/../c"]
)
def test_urls_that_name_no_object(cluster, url):
    """They say what a url looks like, and nothing is asked."""
    for mode in ("rb", "wb"):
        with pytest.raises(UsageError, match="ais://bucket/object|'..'"):
            wds.gopen(url, mode)
    assert cluster.requests == []


def test_lists(cluster):
    """Folders and wildcards, over pages; what is no url of the bucket stays out."""
    names = [f"train/{number:02}.tar" for number in range(8)] + ["train/x/deep.tar", "trainer.tar", "other"]
    for name in names:
        cluster.put("bucket", name, b"x")
    assert list_urls("ais://bucket/train/*.tar") == [f"ais://bucket/{name}" for name in names[:8]]
    assert list_urls("ais://bucket/train/") == [f"ais://bucket/{name}" for name in names[:9]]
    assert list_urls("ais://bucket/train/0[1-3].tar") == [f"ais://bucket/train/0{number}.tar" for number in (1, 2, 3)]
    assert len(list_urls("ais://bucket/**")) == len(names)
    assert list_urls("ais://bucket/train/01.tar?archpath=x") is None
    with pytest.raises(NotFound, match="no object matches"):
        list_urls("ais://bucket/val/*.tar")
    with pytest.raises(NotFound, match="does not exist"):
        list_urls("ais://nobucket/*.tar")
    cluster.put("bucket", "x.tar", b"x", namespace="@u1#team")
    assert list_urls("ais://@u1#team/bucket/*.tar") == ["ais://@u1#team/bucket/x.tar"]
    assert drained("ais://@u1#team/bucket/x.tar") == b"x"


def test_members_of_archives(cluster):
    """``?archpath=`` reads one member; ``archmode=wdskey`` one sample, as a tar; positioned reads are refused."""
    body = of_samples(
        [(f"d/{number}", {"txt": b"%d" % number, "cls": b"c"}) for number in range(4)] + [("a&b c", {"x+y": b"?"})]
    )
    cluster.put("bucket", "a.tar", body)
    assert drained("ais://bucket/a.tar?archpath=d/2.txt") == b"2"
    assert drained("ais://bucket/a.tar?archpath=a%26b%20c.x+y") == b"?"
    sample = drained("ais://bucket/a.tar?archregx=d/3&archmode=wdskey")
    assert tarfile.open(fileobj=io.BytesIO(sample)).getnames() == ["d/3.txt", "d/3.cls"]
    samples = list(wds.WebDataset("ais://bucket/a.tar?archregx=d/3&archmode=wdskey", shardshuffle=False))
    assert [(sample["__key__"], sample["txt"]) for sample in samples] == [("d/3", b"3")]
    with pytest.raises(NotFound, match="archive"):
        drained("ais://bucket/a.tar?archpath=none")
    with pytest.raises(UsageError, match="can be written"):
        wds.gopen("ais://bucket/a.tar?archpath=new", "wb")
    cluster.put("bucket", "b.tar", of_samples([("x", {"bin": bytes(100_000)})]))
    with pytest.raises(NoRandomAccess):
        open_ranges("ais://bucket/b.tar?archpath=x.bin").read_at(70_000, 10)


def test_transformations(cluster):
    """``?etl_name=`` is passed on; what the cluster computes has no length and no checksum."""
    cluster.put("bucket", "x", b"text" * 100_000)
    assert drained("ais://bucket/x?etl_name=upper&etl_args=%7B%22a%22%3A1%7D") == b"TEXT" * 100_000
    assert "etl_args=%7B%22a%22%3A1%7D" in cluster.requests[-1].path


@pytest.mark.parametrize(
    ("url", "provider"),
    [
        ("s3://bucket/x.tar", "aws"),
        ("gs://bucket/x.tar", "gcp"),
        ("az://bucket/x.tar", "azure"),
        ("oci://bucket/x.tar", "oci"),
    ],
)
def test_use_ais_for(cluster, monkeypatch, url, provider):
    """Urls of the schemes that USE_AIS_FOR names are read, listed and written through AIStore, from now on."""
    cluster.put("bucket", "x.tar", b"behind", provider=provider)
    monkeypatch.setenv("USE_AIS_FOR", "s3:gs:az:oci")
    assert drained(url) == b"behind"
    assert list_urls(url.replace("x", "*")) == [url]
    written(url.replace("x.tar", "y"), b"new")
    assert cluster.found("bucket", "y", provider=provider).content == b"new"
    with open_ranges(url) as ranges:
        assert ranges.read_at(1, 3) == b"ehi"
    assert resolve_url(url).service_id() == f"ais {cluster.endpoints[0]}"
    with pytest.raises(ConfigError, match="does not apply"):
        drained(url, storage_options={"profile": "mine"})
    monkeypatch.setenv("USE_AIS_FOR", "http")
    assert getattr(find_opener(url), "store", None) != "ais"


def test_use_ais_for_the_web(cluster, monkeypatch):
    """AIStore is told the url; each folder is a bucket; wildcards and uploads have no meaning there."""
    monkeypatch.setenv("USE_AIS_FOR", "http:https")
    with pytest.raises(NotFound):
        drained("https://host/folder/a.tar?x=1*")
    asked = cluster.requests[-1].path
    assert "provider=ht" in asked
    assert "original_url=https%3A%2F%2Fhost%2Ffolder%2Fa.tar%3Fx%3D1%2A" in asked
    assert list_urls("https://host/folder/a*.tar") is None
    with pytest.raises(UsageError, match="written"):
        wds.gopen("http://host/a.tar", "wb")


def test_openers_of_users_stay(cluster, monkeypatch):
    """What a program has registered for a scheme is used, whatever USE_AIS_FOR says."""
    monkeypatch.setenv("USE_AIS_FOR", "gs")
    monkeypatch.setitem(wds.gopen_schemes, "gs", lambda url, *_, **__: io.BytesIO(b"mine"))
    assert drained("gs://bucket/x") == b"mine"


def test_versions_are_not_read_through_ais(cluster, monkeypatch):
    """Rather than another version than the one that was named, an error."""
    monkeypatch.setenv("USE_AIS_FOR", "s3")
    with pytest.raises(UsageError, match="versionId"):
        drained("s3://bucket/x?versionId=abc")


@pytest.mark.parametrize("endpoint", ["127.0.0.1:8080", "ftp://x"])
def test_endpoints_that_are_no_urls(monkeypatch, endpoint):
    """They are told at once."""
    monkeypatch.setenv("AIS_ENDPOINT", endpoint)
    with pytest.raises(ConfigError, match="http"):
        drained("ais://b/x")


def test_without_an_endpoint(monkeypatch):
    """Nothing but the program ais could serve the url: what is missing is said, in each way of asking."""
    monkeypatch.delenv("AIS_ENDPOINT", raising=False)
    monkeypatch.setenv("PATH", "")
    with pytest.raises(NotFound, match="'ais'.*AIS_ENDPOINT"):
        drained("ais://b/x")
    for ask in (list_urls, open_ranges):
        with pytest.raises(ConfigError, match="AIS_ENDPOINT"):
            ask("ais://b/x*")


def test_several_gateways(monkeypatch):
    """Each attempt begins at a gateway, after a failure at the next one: reads, lists and uploads go on."""
    monkeypatch.setattr(retries, "sleep", lambda _seconds: None)
    with ais_server(gateways=3) as cluster:
        cluster.put("bucket", "x", b"x")
        monkeypatch.setenv("AIS_ENDPOINT", " , ".join(cluster.endpoints))
        cluster.stop_gateway(0)
        cluster.stop_gateway(1)
        assert drained("ais://bucket/x") == b"x"
        assert list_urls("ais://bucket/*") == ["ais://bucket/x"]
        written("ais://bucket/new", b"new")
        assert drained("ais://bucket/new") == b"new"


def test_a_failed_writer_publishes_nothing(cluster):
    """An exception in the with block, and a writer that is forgotten: the old object stays."""
    cluster.put("bucket", "kept", b"old")

    def fail():
        with wds.gopen("ais://bucket/kept", "wb") as stream:
            stream.write(b"x" * 20_000_000)
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    with pytest.warns(ResourceWarning, match="nothing was"):
        wds.gopen("ais://bucket/kept", "wb").write(b"x")
    assert drained("ais://bucket/kept") == b"old"


def test_large_uploads_wait_in_a_file(cluster):
    """More than fits in memory comes whole, in any pieces."""
    body = random.Random(1).randbytes(20_000_001)
    with wds.gopen("ais://bucket/large", "wb") as stream:
        for start in range(0, len(body), 777_777):
            stream.write(memoryview(body)[start : start + 777_777])
        assert stream.tell() == len(body)
        assert cluster.found("bucket", "large") is None
    assert cluster.found("bucket", "large").content == body


def test_wrong_bytes_are_told(cluster, monkeypatch):
    """The checksum that the cluster names is compared, over all connections."""
    cluster.put("bucket", "x", bytes(1000))
    kind, _ = doubles.checksum(b"")
    monkeypatch.setattr(doubles, "checksum", lambda _content: (kind, "00" * 8))
    with pytest.raises(ShortRead, match="checksum"):
        drained("ais://bucket/x")


def test_checksums_that_nobody_here_knows(cluster, monkeypatch):
    """They are not compared; who the object is, they tell all the same."""
    cluster.put("bucket", "x", b"x")
    monkeypatch.setattr(doubles, "checksum", lambda _content: ("blake9", "zz"))
    assert drained("ais://bucket/x") == b"x"


@pytest.mark.parametrize("ranged", [False, True])
def test_a_sample_by_number(cluster, ranged):
    """Random access reads ranges, also of clusters that send the checksum of a range with it."""
    cluster.range_checksums = ranged
    samples = [(f"{number:04}", {"bin": bytes([number]) * 20_000}) for number in range(30)]
    cluster.put("bucket", "a.tar", of_samples(samples))
    with wds.IndexedShard("ais://bucket/a.tar") as indexed:
        assert len(indexed) == 30
        assert indexed[17]["bin"] == samples[17][1]["bin"]
        assert indexed.by_key("0003")["bin"] == samples[3][1]["bin"]
    cluster.put("bucket", "empty", b"")
    with open_ranges("ais://bucket/empty") as ranges:
        assert (ranges.length, ranges.read_at(0, 10)) == (0, b"")


def test_shards_written_and_read_again(cluster, tmp_path):
    """ShardWriter, patterns, and the cache, which tells clusters apart."""
    with wds.ShardWriter("ais://bucket/train-%06d.tar", maxcount=40) as sink:
        for number in range(100):
            sink.write({"__key__": f"{number:06}", "txt": f"caption {number}"})
    dataset = wds.WebDataset("ais://bucket/train-*.tar", shardshuffle=False, cache_dir=str(tmp_path)).decode()
    for _ in range(2):
        assert [sample["txt"] for sample in dataset] == [f"caption {number}" for number in range(100)]
    assert resolve_url("ais://b/x").service_id() == f"ais {cluster.endpoints[0]}"
    assert resolve_url("ais://b/x", storage_options={"endpoint_url": "http://other"}).service_id() == "ais http://other"
    assert (
        TOKEN
        not in resolve_url("ais://b/x", storage_options={"endpoint_url": "http://other", "token": TOKEN}).service_id()
    )


def test_no_secret_is_shown(cluster, caplog):
    """No failure shows the token: not in texts, tracebacks, logs, representations or pickles."""
    caplog.set_level(logging.DEBUG)
    cluster.token = "another"
    shown = []
    options = {"token": TOKEN}
    for cause in (lambda: None, cluster.stop):
        cause()
        for mode in ("rb", "wb"):
            with pytest.raises(SourceError) as caught:
                with wds.gopen("ais://bucket/x", mode, attempts=2, storage_options=options) as stream:
                    stream.write(b"x")
            shown.append("".join(traceback.format_exception(caught.value)))
            shown.append(repr(pickle.dumps(caught.value)) + repr(caught.value.__dict__))
    found = clusters.AistoreClient(options, "ais://b/x")
    shown.append(repr(vars(found)))
    with pytest.raises(ConfigError, match="pickle"):
        pickle.dumps(found)
    assert TOKEN not in "".join(shown) + caplog.text


@pytest.mark.parametrize("location", ["file:///etc/hostname", "ftp://127.0.0.1/x", ""])
def test_redirects_that_are_not_followed(cluster, location):
    """Only web urls are; hops are bounded; a token does not go from https to http."""
    found = clusters.AistoreClient(None, "ais://b/x")
    with pytest.raises(SourceError, match="no http url"):
        found.redirect_target("http://gateway/x", location)
    with pytest.raises(SourceError, match="https to http"):
        found.redirect_target("https://gateway/x", "http://target/x")
    cluster.announced = cluster.endpoints[0]
    for mode in ("rb", "wb"):
        with pytest.raises(SourceError, match="more than 5 times"):
            with wds.gopen("ais://b/x", mode) as stream:
                stream.write(b"x")


@pytest.fixture(scope="module")
def certificate(tmp_path_factory):
    """A certificate for 127.0.0.1, and its key, in one file."""
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not installed")
    folder = tmp_path_factory.mktemp("certificate")
    words = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=127.0.0.1"]
    words += ["-addext", "subjectAltName=IP:127.0.0.1", "-keyout", f"{folder}/key", "-out", f"{folder}/ca"]
    subprocess.run(words, check=True, capture_output=True)
    (folder / "both").write_bytes((folder / "key").read_bytes() + (folder / "ca").read_bytes())
    return folder


def test_over_tls(certificate, monkeypatch, recwarn):
    """AIS_CLIENT_CA is trusted, others are not; AIS_SKIP_VERIFY_CRT trusts everybody; reads and uploads alike."""
    monkeypatch.setattr(retries, "sleep", lambda _seconds: None)
    with ais_server(certificate=f"{certificate}/both") as cluster:
        cluster.put("bucket", "x", b"x")
        monkeypatch.setenv("AIS_ENDPOINT", cluster.endpoints[0])
        with pytest.raises(SourceError, match="set AIS_CLIENT_CA"):
            drained("ais://bucket/x")
        with pytest.raises(SourceError, match="set AIS_CLIENT_CA"):
            written("ais://bucket/y", b"y")
        monkeypatch.setenv("AIS_CLIENT_CA", f"{certificate}/ca")
        assert drained("ais://bucket/x") == b"x"
        written("ais://bucket/y", b"y" * 3_000_000)
        assert drained("ais://bucket/y", storage_options={"verify": f"{certificate}/ca"}) == b"y" * 3_000_000
        monkeypatch.setenv("AIS_CLIENT_CA", "")
        monkeypatch.setenv("AIS_SKIP_VERIFY_CRT", "1")
        written("ais://bucket/z", b"z")
        with pytest.warns(Warning, match="Unverified HTTPS"):
            assert drained("ais://bucket/z") == b"z"


@pytest.mark.parametrize("method", ["fork", "forkserver", "spawn"])
def test_after_the_parent_has_read(cluster, method):
    """The parent reads first; then children read at once, each its own bytes, under every start method."""
    for name, content in NUMBERED.items():
        cluster.put("bucket", name, content)
    assert drained("ais://bucket/0") == NUMBERED["0"]
    assert read_by_children("ais://bucket/", method, os.environ) == [0, 0]
    assert drained("ais://bucket/3") == NUMBERED["3"]


def test_a_writer_that_is_open_across_a_fork(cluster):
    """The child's copy of an upload neither publishes nor aborts it."""
    stream = wds.gopen("ais://bucket/forked", "wb")
    stream.write(b"of the parent")
    assert closed_by_child(stream)
    assert cluster.found("bucket", "forked") is None
    stream.close()
    assert cluster.found("bucket", "forked").content == b"of the parent"


def test_the_page_runs(cluster, ran_page):
    """The blocks of the page, one after the other."""
    assert ran_page("aistore.md") == 2
