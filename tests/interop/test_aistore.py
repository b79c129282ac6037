"""The stand-in for AIStore against NVIDIA's own client: what that writes we read, and the reverse."""

import io
import json
import tarfile

import pytest

import webdataset as wds
from support.ais_server import ais_server
from webdataset.storage.listing import list_urls

aistore = pytest.importorskip("aistore.sdk")

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")
TOKEN = "the-token"


@pytest.fixture
def cluster(monkeypatch):
    """A cluster whose targets trust the gateway's signature: that client does not send its token to other ports."""
    with ais_server(token=TOKEN, strict=False, page=3) as running:
        monkeypatch.setenv("AIS_ENDPOINT", running.endpoints[0])
        monkeypatch.setenv("AIS_AUTHN_TOKEN", TOKEN)
        yield running


@pytest.fixture
def bucket(cluster):
    """A bucket, made by that client."""
    return aistore.Client(cluster.endpoints[0], token=TOKEN).bucket("theirs").create()


@pytest.fixture
def client(cluster):
    """That client."""
    return aistore.Client(cluster.endpoints[0], token=TOKEN)


def shard():
    """Return a tar of three samples."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for number in range(3):
            for field in ("txt", "cls"):
                member = tarfile.TarInfo(f"d/{number}.{field}")
                member.size = 1
                tar.addfile(member, io.BytesIO(b"%d" % number))
    return buffer.getvalue()


@pytest.mark.parametrize("name", ["plain", "folder/ü b#1%20.tar"])
def test_objects_both_ways(bucket, name):
    """Put and got by one, got and put by the other; ranges and heads agree."""
    bucket.object(name).get_writer().put_content(b"written by them")
    with wds.gopen(f"ais://theirs/{name}") as stream:
        assert stream.read() == b"written by them"
    with wds.gopen(f"ais://theirs/{name}", "wb") as stream:
        stream.write(b"written by us")
    assert bucket.object(name).get_reader().read_all() == b"written by us"
    assert bucket.object(name).get_reader(byte_range="bytes=2-4").read_all() == b"itt"
    assert bucket.object(name).head().size == 13


def test_lists_agree(bucket):
    """Over pages, under a prefix."""
    for number in range(8):
        bucket.object(f"a/{number}.tar").get_writer().put_content(b"x" * number)
    bucket.object("b").get_writer().put_content(b"x")
    theirs = [(entry.name, entry.size) for entry in bucket.list_all_objects(prefix="a/")]
    assert theirs == [(f"a/{number}.tar", number) for number in range(8)]
    assert list_urls("ais://theirs/a/*.tar") == [f"ais://theirs/{name}" for name, _ in theirs]


def test_members_agree(bucket):
    """One member of an archive, by both."""
    bucket.object("s.tar").get_writer().put_content(shard())
    config = aistore.ArchiveConfig(archpath="d/2.cls")
    theirs = bucket.object("s.tar").get_reader(archive_config=config).read_all()
    with wds.gopen("ais://theirs/s.tar?archpath=d/2.cls") as stream:
        assert stream.read() == theirs == b"2"


def test_namespaces_and_providers_agree(cluster, client):
    """Both name the same bucket."""
    namespace = aistore.Namespace(uuid="U1", name="team")
    client.bucket("theirs", namespace=namespace).object("x").get_writer().put_content(b"team")
    client.bucket("theirs", provider="s3").object("x").get_writer().put_content(b"aws")
    for url, options, content in (
        ("ais://@U1#team/theirs/x", None, b"team"),
        ("ais://theirs/x", {"provider": "aws"}, b"aws"),
    ):
        with wds.gopen(url, storage_options=options) as stream:
            assert stream.read() == content


def test_batches_agree(cluster, client, bucket):
    """The same entries in the same order, the missing among them; and both send the same request."""
    bucket.object("s.tar").get_writer().put_content(shard())
    bucket.object("x.txt").get_writer().put_content(b"whole")
    batch = client.batch(bucket=bucket)
    wanted = [("s.tar", "d/1.txt"), ("x.txt", None), ("s.tar", "d/0.txt"), ("s.tar", "d/9.txt")]
    for name, member in wanted:
        batch.add(bucket.object(name), archpath=member)
    theirs = [content for _, content in batch.get()]
    errors = []
    entries = [f"theirs/{name}" if member is None else (f"theirs/{name}", member) for name, member in wanted]
    ours = list(wds.AISBatch(entries, handler=lambda error: errors.append(error.key) or True))
    assert [sample["txt"] for sample in ours] == theirs[:3] == [b"1", b"whole", b"0"]
    assert errors == ["d/9"]
    sent = [request for request in cluster.requests if "/moss/" in request.path and request.node == "target"]
    assert len(sent) == 2
    assert sent[0].path == sent[1].path
    assert json.loads(sent[0].body) == json.loads(sent[1].body)
