"""S3 against a real service: read, write, list; who may, and who may not; forks; secrets."""

import json
import logging
import os
import pickle
import random
import subprocess
import sys
import traceback
from concurrent.futures import ThreadPoolExecutor

import pytest

import webdataset as wds
from support import s3_server
from support.after_forks import NUMBERED, closed_by_child, read_by_children, read_on_by_both
from support.readings import drained
from webdataset.core.errors import NotFound, SourceError, UsageError
from webdataset.index.indexed_shard import IndexedShard
from webdataset.storage.backends import s3_client as s3_clients
from webdataset.storage.backends.s3_client import parse_url
from webdataset.storage.listing import list_urls
from webdataset.storage.open_url import open_url
from webdataset.storage.random_access import open_ranges
from webdataset.testing import archives, documents
from webdataset.testing.archives import of_samples
from webdataset.testing.documents import Picture, Spec

pytestmark = pytest.mark.usefixtures("environment")

PART = 5 << 20
SPECS = [
    Spec(f"{number:09d}", ["one", "two"], [Picture(f"{k}.jpg", k % 2, b"jpeg" * 40, 0.3) for k in range(number + 1)])
    for number in range(2)
]


def put(client, key, body, bucket="shards"):
    """Put an object there, not by us."""
    client.put_object(Bucket=bucket, Key=key, Body=body)
    return f"s3://{bucket}/{key}"


@pytest.mark.parametrize("key", ["plain", "with space/ü#1?x=2&y%20z+.tar", "/leading", "a//b"])
@pytest.mark.parametrize("size", [0, 1, 3_000_000])
def test_keys_are_taken_as_they_stand(client, key, size):
    """What we write, others read, and the reverse, whatever the key looks like."""
    body = random.Random(size).randbytes(size)
    with wds.gopen(f"s3://other/{key}", "wb") as stream:
        stream.write(body)
    assert client.get_object(Bucket="other", Key=key)["Body"].read() == body
    assert drained(f"s3://other/{key}") == body


def test_large_objects_go_up_in_parts(client):
    """Multipart: nothing is there before the end; what is there then is what was written, in any pieces."""
    body = os.urandom(3 * PART + 123)
    stream = wds.gopen("s3://other/parts", "wb", part_bytes=PART)
    for start in range(0, len(body), 777_777):
        stream.write(memoryview(body)[start : start + 777_777])
    with pytest.raises(client.exceptions.ClientError):
        client.head_object(Bucket="other", Key="parts")
    stream.close()
    stream.close()
    assert client.head_object(Bucket="other", Key="parts")["ETag"].endswith('-4"')
    assert drained("s3://other/parts") == body
    client.delete_object(Bucket="other", Key="parts")


@pytest.mark.parametrize("size", [10, 2 * PART])
def test_a_failed_writer_publishes_nothing(client, size):
    """An exception in the with block: the old object stays, and no parts are left behind."""
    put(client, "kept", b"old", bucket="other")

    def fail():
        with wds.gopen("s3://other/kept", "wb", part_bytes=PART) as stream:
            stream.write(b"x" * size)
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert drained("s3://other/kept") == b"old"
    assert not client.list_multipart_uploads(Bucket="other").get("Uploads")


def test_a_forgotten_writer_publishes_nothing(client):
    """A writer that is not closed warns, and may be half of what was meant: nothing appears."""
    with pytest.warns(ResourceWarning, match="nothing was published"):
        wds.gopen("s3://other/forgotten", "wb").write(b"half")
    with pytest.raises(NotFound):
        wds.gopen("s3://other/forgotten")


def test_versions(client):
    """``?versionId=`` reads one version; a stream keeps to the version that it began with."""
    client.put_bucket_versioning(Bucket="other", VersioningConfiguration={"Status": "Enabled"})
    try:
        first = client.put_object(Bucket="other", Key="versioned", Body=b"first")["VersionId"]
        client.put_object(Bucket="other", Key="versioned", Body=b"second")
        assert drained("s3://other/versioned") == b"second"
        assert drained(f"s3://other/versioned?versionId={first}") == b"first"
        with pytest.raises(UsageError, match="can be written"):
            wds.gopen(f"s3://other/versioned?versionId={first}", "wb")
    finally:
        client.put_bucket_versioning(Bucket="other", VersioningConfiguration={"Status": "Suspended"})


def test_folders_and_wildcards_are_listed(client):
    """``/`` at the end and wildcards stand for objects, sorted; more than one page of them."""
    for key in ["l/a-1.tar", "l/a-2.tar", "l/b.tar", "l/deep/a-3.tar", "l/x*y", "l/marker/"]:
        put(client, key, b"")
    assert list_urls("s3://shards/l/a-*.tar") == ["s3://shards/l/a-1.tar", "s3://shards/l/a-2.tar"]
    assert wds.expand_urls("s3://shards/l/[!a]*.tar") == ["s3://shards/l/b.tar"]
    assert wds.expand_urls("s3://shards/l/**/a-?.tar") == [
        f"s3://shards/l/{name}" for name in ("a-1.tar", "a-2.tar", "deep/a-3.tar")
    ]
    assert wds.expand_urls("s3://shards/l/x*y") == ["s3://shards/l/x*y"]
    with pytest.warns(
        UserWarning, match=r"1 of 5 objects do not end as shards do, .*x\*y first: .* write s3://shards/l/\*\*"
    ):
        found = wds.expand_urls("s3://shards/l/")
    assert [url.rpartition("/")[2] for url in found] == ["a-1.tar", "a-2.tar", "b.tar", "a-3.tar"]
    assert wds.expand_urls("s3://shards/l/**") == [*found, "s3://shards/l/x*y"]
    assert wds.expand_urls("s3://shards/l/a-1.tar?versionId=x") == ["s3://shards/l/a-1.tar?versionId=x"]
    assert wds.expand_urls("s3://shards/l/nothing-*") == ["s3://shards/l/nothing-*"]
    with pytest.raises(NotFound, match="no objects are in this folder"):
        wds.expand_urls("s3://shards/nothing/")


def test_datasets_of_folders_and_wildcards(client, environment):
    """A folder and a pattern are the shards of a dataset; its storage options count for the list, too."""
    for name in "ab":
        put(client, f"folder/{name}.tar", of_samples([(name, {"txt": name.encode()})]))
    for url in ("s3://shards/folder/", "s3://shards/folder/*.tar", "s3://shards/folder/::s3://shards/folder/a.tar"):
        assert {sample["__key__"] for sample in wds.WebDataset(url, shardshuffle=False)} == {"a", "b"}
    environment.setenv("AWS_SECRET_ACCESS_KEY", "wrong")
    s3_clients._clients.clear()
    environment.setenv("WDS_TEST_READER_SECRET", s3_server.READER[1])
    reader = {"access_key_id": s3_server.READER[0], "secret_access_key": "env:WDS_TEST_READER_SECRET"}
    dataset = wds.WebDataset("s3://shards/folder/*.tar", shardshuffle=False, storage_options=reader)
    assert [sample["txt"] for sample in dataset] == [b"a", b"b"]


def test_pages_of_a_list(client):
    """A list longer than a page is whole."""
    for number in range(7):
        put(client, f"pages/{number}", b"")
    made = s3_clients.client_for(parse_url("s3://shards/x").profile, "")
    ask = made.list_objects_v2
    made.list_objects_v2 = lambda **arguments: ask(MaxKeys=3, **arguments)
    assert list_urls("s3://shards/pages/") == [f"s3://shards/pages/{number}" for number in range(7)]


def test_pairs_and_shards_written_back():
    """The promise of the first README: read pairs from S3, write shards back, read them again."""
    pattern = "s3://shards/pairs/train-%06d.tar"
    with wds.ShardWriter(pattern, maxcount=40) as sink:
        for number in range(100):
            sink.write({"__key__": f"{number:06}", "txt": f"caption {number}", "bin": bytes([number]) * 500})
    dataset = wds.WebDataset("s3://shards/pairs/train-{000000..000002}.tar", shardshuffle=False)
    pairs = list(dataset.decode().to_tuple("txt", "bin"))
    assert [text for text, _ in pairs] == [f"caption {number}" for number in range(100)]
    with wds.ShardWriter("s3://shards/pairs/copy-%06d.tar", maxcount=1000) as sink:
        for sample in wds.WebDataset("s3://shards/pairs/train-*.tar", shardshuffle=False):
            sink.write(sample)
    copied = list(wds.WebDataset("s3://shards/pairs/copy-000000.tar", shardshuffle=False))
    assert [sample["txt"] for sample in copied] == [text.encode() for text, _ in pairs]
    assert copied[0]["__url__"] == "s3://shards/pairs/copy-000000.tar"


def test_a_sample_by_number(client):
    """Random access reads ranges of the object."""
    samples = [(f"{number:04}", {"bin": bytes([number]) * 20_000}) for number in range(30)]
    url = put(client, "indexed.tar", of_samples(samples))
    with IndexedShard(url) as indexed:
        assert len(indexed) == 30
        assert indexed[17]["bin"] == samples[17][1]["bin"]
        assert indexed.by_key("0003")["bin"] == samples[3][1]["bin"]
    with open_ranges(put(client, "empty", b"")) as ranges:
        assert (ranges.length, ranges.read_at(0, 10)) == (0, b"")


@pytest.mark.parametrize("url", ["s3://", "s3://bucket", "s3://bucket/", "s3:///key", "s3://bucket/folder/"])
def test_urls_that_name_no_object(url):
    """They say what a url looks like."""
    with pytest.raises(UsageError, match="s3://bucket/key"):
        wds.gopen(url)


def test_nothing_there():
    """No object, no bucket: NotFound, with the url."""
    for url in ("s3://shards/absent", "s3://no-such-bucket/x"):
        with pytest.raises(NotFound, match="404") as caught:
            wds.gopen(url)
        assert caught.value.url == url


def test_who_may_and_who_may_not(client, environment):
    """Signatures are checked for real: readers read, strangers do not, everybody reads what is open."""
    put(client, "guarded", b"guarded")
    put(client, "public", b"public", bucket="open")
    environment.setenv("AWS_ACCESS_KEY_ID", s3_server.READER[0])
    environment.setenv("AWS_SECRET_ACCESS_KEY", s3_server.READER[1])
    s3_clients._clients.clear()
    assert drained("s3://shards/guarded") == b"guarded"
    with pytest.raises(SourceError, match="may not do this"):
        wds.gopen("s3://other/x")
    with pytest.raises(SourceError, match="403"):
        with wds.gopen("s3://shards/new", "wb") as stream:
            stream.write(b"x")
    environment.setenv("AWS_SECRET_ACCESS_KEY", "CANARY-wrong")
    s3_clients._clients.clear()
    with pytest.raises(SourceError, match="secret key is wrong"):
        wds.gopen("s3://shards/guarded")
    assert drained("s3://open/public", storage_options={"anonymous": True}) == b"public"
    with pytest.raises(SourceError, match="403"):
        wds.gopen("s3://shards/guarded", storage_options={"anonymous": True})


def test_no_credentials(environment):
    """The error says where credentials may come from."""
    environment.delenv("AWS_ACCESS_KEY_ID")
    environment.delenv("AWS_SECRET_ACCESS_KEY")
    s3_clients._clients.clear()
    with pytest.raises(SourceError, match="AWS_PROFILE"):
        wds.gopen("s3://shards/x")


def test_profiles_of_aws(client, service, environment, tmp_path):
    """``~/.aws``: endpoint and keys of a profile, named by the environment or by ours."""
    put(client, "guarded", b"guarded")
    (tmp_path / "aws-config").write_text(f"[profile mine]\nendpoint_url = {service.endpoint}\nregion = eu-west-1\n")
    (tmp_path / "aws-credentials").write_text(
        "[mine]\naws_access_key_id = {}\naws_secret_access_key = {}\n".format(*s3_server.READER)
    )
    for name in ("AWS_ENDPOINT_URL_S3", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        environment.delenv(name)
    environment.setenv("AWS_PROFILE", "mine")
    s3_clients._clients.clear()
    assert drained("s3://shards/guarded") == b"guarded"
    environment.delenv("AWS_PROFILE")
    s3_clients._clients.clear()
    assert drained("s3://shards/guarded", storage_options={"aws_profile": "mine"}) == b"guarded"
    with pytest.raises(SourceError, match="profile does not exist"):
        wds.gopen("s3://shards/guarded", storage_options={"aws_profile": "nobody"})


def test_services_that_are_not_aws_get_buckets_in_the_path(environment, tmp_path):
    """Path style for other endpoints unless somebody decided otherwise; AWS itself as AWS has it."""

    def style(**options):
        s3_clients._clients.clear()
        profile = parse_url("s3://b/k", options).profile
        return (s3_clients.client_for(profile, "").meta.config.s3 or {}).get("addressing_style")

    assert style() == "path"
    assert style(addressing_style="virtual") == "virtual"
    assert style(endpoint_url="https://s3.eu-west-1.amazonaws.com") is None
    (tmp_path / "aws-config").write_text("[default]\ns3 =\n  addressing_style = virtual\n")
    assert style() == "virtual"


def test_an_endpoint_that_is_no_url():
    """It is said, without a retry."""
    with pytest.raises(ValueError, match="(?i)endpoint"):
        wds.gopen("s3://b/k", storage_options={"endpoint_url": "nonsense"})


def test_interleaved_documents(client):
    """Documents and their images are read from S3, and written back by ShardWriter."""
    members = [member for spec in SPECS for member in documents.siblings(spec)]
    url = put(client, "interleaved/docs-000000.tar", archives.by_hand(members))
    found = list(wds.WebDataset(url, shardshuffle=False).interleaved())
    assert [[part["type"] for part in document["parts"]].count("image") for document in found] == [1, 2]
    with wds.ShardWriter("s3://shards/interleaved/copy-%06d.tar") as sink:
        for sample in wds.WebDataset(url, shardshuffle=False):
            sink.write(sample)
    again = list(wds.WebDataset("s3://shards/interleaved/copy-*.tar", shardshuffle=False).interleaved())
    assert [document["parts"] for document in again] == [document["parts"] for document in found]


def test_expired_credentials_are_looked_up_again(client, service, environment, proxied, monkeypatch):
    """After ExpiredToken the credentials are read anew: here from a file that was rewritten meanwhile."""
    from support.proxy import Fault, planned

    put(client, "guarded", b"guarded")
    secret = os.environ["AWS_SECRET_ACCESS_KEY"]
    environment.setenv("AWS_SECRET_ACCESS_KEY", "old")
    forget = s3_clients.forget_client

    def rotated(profile, used):
        environment.setenv("AWS_SECRET_ACCESS_KEY", secret)
        forget(profile, used)

    monkeypatch.setattr(s3_clients, "forget_client", rotated)
    proxied(planned([Fault("expired")]))
    assert drained("s3://shards/guarded") == b"guarded"


def test_keys_that_are_replaced_during_an_upload(client, service, environment, waits):
    """Parts that are refused with the old keys are sent with the new ones: the object is whole."""
    body = os.urandom(PART)
    with wds.gopen("s3://shards/rotated", "wb", part_bytes=PART) as stream:
        stream.write(body * 2 + b"x")
        with environment.context() as old:
            old.setenv("AWS_ACCESS_KEY_ID", "REPLACED")
            s3_clients._clients.clear()
            s3_clients.client_for(parse_url("s3://shards/rotated").profile, "")
        stream.write(body * 2)
    assert drained("s3://shards/rotated") == body * 2 + b"x" + body * 2


def test_many_threads_look_for_keys_once(client, service, environment, tmp_path, waits):
    """Sixteen requests are refused together: the program that gives the keys runs once more, not once for each."""
    url = put(client, "guarded", b"guarded")
    keys = {"AccessKeyId": os.environ["AWS_ACCESS_KEY_ID"], "SecretAccessKey": os.environ["AWS_SECRET_ACCESS_KEY"]}
    given, runs, program = tmp_path / "given", tmp_path / "runs", tmp_path / "program"
    program.write_text(f"#!/bin/sh\necho run >> {runs}\ncat {given}\n")
    program.chmod(0o700)
    (tmp_path / "config").write_text(f"[profile rotated]\ncredential_process = {program}\n")
    environment.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    environment.setenv("AWS_PROFILE", "rotated")
    environment.delenv("AWS_ACCESS_KEY_ID")
    environment.delenv("AWS_SECRET_ACCESS_KEY")
    place = parse_url(url)
    requests = [s3_clients.S3Client(place.profile, url) for _ in range(16)]

    def head(request):
        return request.call("head_object", **place.request_arguments())["ContentLength"]

    s3_clients._clients.clear()
    given.write_text(json.dumps({"Version": 1, **keys}))
    assert [head(request) for request in requests] == [7] * 16
    s3_clients._clients.clear()
    given.write_text(json.dumps({"Version": 1, **keys, "AccessKeyId": "REPLACED"}))
    s3_clients.client_for(place.profile, url)
    given.write_text(json.dumps({"Version": 1, **keys}))
    assert len(runs.read_text().split()) == 2
    with ThreadPoolExecutor(16) as threads:
        assert list(threads.map(head, requests)) == [7] * 16
    assert len(runs.read_text().split()) == 3


def test_no_secret_is_shown(environment, proxied, caplog):
    """No failure shows keys: not in texts, tracebacks with causes, logs or pickles."""
    from support.proxy import Fault, planned

    canary = "CANARY0123456789"
    environment.setenv("AWS_ACCESS_KEY_ID", f"AKID{canary}")
    environment.setenv("AWS_SECRET_ACCESS_KEY", f"sk-{canary}")
    environment.setenv("AWS_SESSION_TOKEN", f"token-{canary}")
    caplog.set_level(logging.INFO)
    shown = []
    for plan in ([], [Fault("expired")] * 3, [Fault("busy")] * 3, [Fault("reset")] * 3):
        proxied(planned(plan))
        for mode in ("rb", "wb"):
            with pytest.raises(SourceError) as caught:
                with wds.gopen("s3://shards/x", mode, attempts=2) as stream:
                    stream.write(b"x")
            shown.append("".join(traceback.format_exception(caught.value)))
            shown.append(repr(pickle.dumps(caught.value)))
            shown.append(repr(caught.value.__dict__))
    assert canary not in "".join(shown) + caplog.text


def test_without_botocore():
    """The error names the extra."""
    code = (
        "import sys; sys.modules['botocore'] = None\n"
        "import webdataset as wds\n"
        "try: wds.gopen('s3://b/k')\n"
        "except ImportError as error: print(error)"
    )
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "[s3]" in shown.stdout


def test_botocore_is_imported_late():
    """Neither ``import webdataset`` nor an open file loads botocore."""
    code = "import sys, webdataset as wds; wds.WebDataset('s3://b/k'); print('botocore' in sys.modules)"
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert shown.stdout.strip() == "False"


@pytest.mark.parametrize("method", ["fork", "forkserver", "spawn"])
def test_after_the_parent_has_read(client, method):
    """The parent reads first; then children read at once, each its own bytes, under every start method."""
    for name, content in NUMBERED.items():
        put(client, f"forks/{name}", content)
    assert drained("s3://shards/forks/0") == NUMBERED["0"]
    count = 4 if method == "fork" else 2
    assert read_by_children("s3://shards/forks/", method, os.environ, count=count) == [0] * count
    assert drained("s3://shards/forks/3") == NUMBERED["3"]


def test_a_stream_that_is_open_across_a_fork(client):
    """Parent and child both read on, each all the rest, over connections of their own."""
    body = os.urandom(2_000_000)
    url = put(client, "across", body)
    stream = open_url(url)
    assert stream.read(1000) == body[:1000][: stream.tell()]
    done = stream.tell()
    assert read_on_by_both(stream, body[done:])


def test_a_writer_that_is_open_across_a_fork(client):
    """The child's copy of an upload neither publishes nor aborts it."""
    stream = wds.gopen("s3://other/forked", "wb")
    stream.write(b"of the parent")
    assert closed_by_child(stream)
    with pytest.raises(client.exceptions.ClientError):
        client.head_object(Bucket="other", Key="forked")
    stream.close()
    assert drained("s3://other/forked") == b"of the parent"
    client.delete_object(Bucket="other", Key="forked")
