"""The read path of every backend that speaks HTTP: one function, one contract, against a server that misbehaves."""

import hashlib
import pickle
import subprocess
import sys
from types import SimpleNamespace

import pytest

from webdataset.core.errors import ConfigError, NoRandomAccess, NotFound, ShardChanged, SourceError
from webdataset.storage import retries
from webdataset.storage.backends import aistore, azure, gcs, http, huggingface, s3
from webdataset.storage.http_object import HttpRemoteObject, condition_header, override_headers, strong_etag
from webdataset.storage.object_store import ObjectVersion
from webdataset.storage.open_url import resolve_url
from webdataset.storage.random_access import ObjectRanges
from webdataset.storage.resumable_stream import ResumableStream
from webdataset.storage.retries import RetryableError
from webdataset.testing.sources import Answering, Listening

BODY = hashlib.shake_256(b"contract").digest(200_000)
CLASSES = [
    http.HttpObject,
    gcs.GcsObject,
    azure.AzureObject,
    aistore.AistoreObject,
    huggingface.HubObject,
    s3.S3Object,
]
TARGETS = {
    "http": (http, "{}/key", {}),
    "gcs": (gcs, "gs://bucket/key", {"anonymous": True, "endpoint_url": "{}"}),
    "azure": (azure, "az://container/key", {"anonymous": True, "endpoint_url": "{}/me", "account_name": "me"}),
    "aistore": (aistore, "ais://bucket/key", {"endpoint_url": "{}"}),
    "huggingface": (huggingface, "hf://datasets/me/data/key", {"endpoint_url": "{}", "token": False}),
    "s3": (s3, "s3://bucket/key", {"endpoint_url": "{}", "anonymous": True, "region": "us-east-1"}),
}


class Store(Answering):
    """Speaks for every service at once; ``faults`` go wrong, one for each request of an object."""

    def do_GET(self):
        """Answer with a range, or as the next fault says."""
        rules = self.server.rules
        rules["asked"].append(dict(self.headers))
        fault = rules["faults"].pop(0) if rules["faults"] and self.command == "GET" else None
        if isinstance(fault, int):
            self.send(fault, b"", **({"Retry_After": "7"} if fault in (429, 503) else {}))
            return
        version = "2" if fault == "changed" else "1"
        headers = {
            "ETag": f'"{version}"',
            "Last_Modified": f"Wed, 0{version} Jan 2025 00:00:00 GMT",
            "X_Goog_Generation": version,
            "Ais_Version": version,
            "Ais_Checksum_Type": "test",
            "Ais_Checksum_Value": f"f{version}",
            "X_Repo_Commit": f"commit{version}",
            "X_Amz_Version_Id": version,
        }
        span = self.wanted(len(BODY))
        if span is None or fault == "whole":
            self.send(200, BODY, **headers)
            return
        headers["Content_Range"] = f"bytes {span.start}-{span.stop - 1}/{len(BODY)}"
        if fault == "shifted":
            headers["Content_Range"] = f"bytes {span.start + 1}-{span.stop}/{len(BODY)}"
        elif fault == "unsaid":
            headers["Content_Range"] = "bytes */*"
        content = BODY[span.start : span.stop]
        if fault == "short":
            self.close_connection = True
            self.send(206, content[:1000], **headers, Content_Length=str(len(content)), Connection="close")
        else:
            self.send(206, content, **headers)

    do_HEAD = do_GET


@pytest.fixture(params=TARGETS)
def store(request, monkeypatch, tmp_path):
    """A server, and the object of one backend on it; nothing waits, and no settings of this machine count."""
    monkeypatch.setattr(retries, "FIRST_SECONDS", 0.001)
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    if request.param == "s3":
        pytest.importorskip("botocore")
    backend, url, options = TARGETS[request.param]
    with Listening(Store, {"asked": [], "faults": []}) as server:
        given = {name: value.format(server.url) if isinstance(value, str) else value for name, value in options.items()}
        server.source = backend.remote_object(url.format(server.url), given or None)
        server.name = request.param
        yield server


def first(store):
    """Return the version of the object, from one good response."""
    answer = store.source.open_at(0, None, 10)
    assert answer.body.read(10) == BODY[:10]
    answer.body.close()
    return answer.identity


def test_the_read_path_is_one():
    """No backend has an ``open_at`` of its own: each sends requests and reads versions."""
    assert {kind.open_at for kind in CLASSES} == {HttpRemoteObject.open_at}
    assert len({kind.request for kind in CLASSES}) == len({kind.version for kind in CLASSES}) == len(CLASSES)


def test_a_range_is_given(store):
    """Where it begins, how long it is, how long the object is, which version it is of."""
    known = first(store)
    assert known.provable()
    assert known.length == len(BODY)
    answer = store.source.open_at(100, known, 50)
    assert (answer.start, answer.size, answer.identity) == (100, 50, known)
    assert answer.body.read(50) == BODY[100:150]
    assert store.rules["asked"][-1]["Range"] == "bytes=100-149"
    rest = store.source.open_at(len(BODY) - 5, known)
    assert (rest.start, rest.body.read(100)) == (len(BODY) - 5, BODY[-5:])


def test_a_server_that_ignores_ranges(store):
    """The whole object never passes for a range; where the reader must have ranges, it says that there are none."""
    known = first(store)
    store.rules["faults"] = ["whole"]
    if store.source.judges_ranges:
        with pytest.raises(RetryableError, match="status 200"):
            store.source.open_at(100, known, 50)
    else:
        answer = store.source.open_at(100, known, 50)
        assert (answer.start, answer.size) == (0, len(BODY))
        answer.body.close()
    store.rules["faults"] = ["whole"]
    with pytest.raises(NoRandomAccess):
        ObjectRanges(store.source, head=10)


def test_a_resumed_stream_skips_what_it_knows(store):
    """A server that sends the whole object again is read on from where the stream was."""
    known = first(store)
    store.rules["faults"] = ["whole"]
    with ResumableStream(store.source, start=1000, known=known) as stream:
        assert b"".join(iter(lambda: stream.read(1 << 16), b"")) == BODY[1000:]


@pytest.mark.parametrize("fault", [412, "changed"])
def test_a_replaced_object(store, fault):
    """By its status, or by the version that a service names that ignores the condition: no byte of it is given."""
    with ObjectRanges(store.source, head=10) as ranges:
        store.rules["faults"] = [fault]
        with pytest.raises(ShardChanged):
            ranges.read_at(100, 50)


@pytest.mark.parametrize("fault", ["shifted", "unsaid"])
def test_a_wrong_content_range(store, fault):
    """A range that begins elsewhere, or does not say where, is requested again; its bytes are never given."""
    with ObjectRanges(store.source, head=10) as ranges:
        store.rules["faults"] = [fault]
        assert ranges.read_at(100, 50) == BODY[100:150]
        store.rules["faults"] = [fault] * 20
        with pytest.raises(SourceError):
            ranges.read_at(100, 50)


def test_a_short_body(store):
    """What is missing is requested again, with the condition that it is the same object."""
    with ObjectRanges(store.source, head=10) as ranges:
        store.rules["faults"] = ["short"]
        assert ranges.read_at(100, 5000) == BODY[100:5100]
    assert store.rules["asked"][-1]["Range"] == "bytes=1100-5099"


@pytest.mark.parametrize("status", [408, 429, 500, 502, 503, 504])
def test_statuses_that_a_retry_may_change(store, status):
    """They are retried, not before the server wishes."""
    store.rules["faults"] = [status]
    with pytest.raises(RetryableError, match=str(status)) as caught:
        store.source.open_at(0, None, 10)
    assert caught.value.wait_seconds == (7 if status in (429, 503) else None)


@pytest.mark.parametrize(("status", "kind"), [(404, NotFound), (400, SourceError), (403, SourceError)])
def test_statuses_that_no_retry_changes(store, status, kind):
    """They are errors at once, with the url."""
    store.rules["faults"] = [status] * 2
    with pytest.raises(kind) as caught:
        store.source.open_at(0, None, 10)
    assert caught.value.url == store.source.url


def test_a_promise_is_no_object(store):
    """A good status without bytes is retried, and its body closed."""
    store.rules["faults"] = [204]
    with pytest.raises(RetryableError, match="status 204 came"):
        store.source.open_at(0, None)


def test_a_contradiction_closes_the_body(monkeypatch):
    """A response whose version makes no sense gives its connection back."""

    class Contradictory(HttpRemoteObject):
        def request(self, offset, size, known):
            return 200, {"Content-Length": "3"}, body

        def version(self, headers, length):
            raise RetryableError("promised more")

    class Body:
        closed = False

        def close(self):
            self.closed = True

    body = Body()
    with pytest.raises(RetryableError):
        Contradictory("x://y").open_at(0, None)
    assert body.closed


def test_conditions_and_headers():
    """A strong ETag, else a date, makes a condition; headers are found by names in any case."""
    date = "Wed, 01 Jan 2025 00:00:00 GMT"
    assert condition_header(None) == condition_header(ObjectVersion(modified=date)) == {}
    assert condition_header(ObjectVersion('"1"', None, date, 7)) == {"If-Match": '"1"'}
    assert condition_header(ObjectVersion(None, None, date, 7)) == {"If-Unmodified-Since": date}
    headers = override_headers({"etag": '"1"', "X-A": "1", "x-b": "2"}, {"x-a": None, "X-B": "3"})
    assert (headers.get("ETag"), headers.get("X-A"), headers.get("x-b")) == ('"1"', None, "3")
    assert [strong_etag({"ETag": text}) for text in ('"1"', 'W/"1"', "")] == ['"1"', None, None]


READ_ELSEWHERE = """
import pickle, sys
ranges = pickle.load(sys.stdin.buffer)
sys.stdout.buffer.write(ranges.read_at(150_000, 7_000))
"""


def test_positioned_reads_travel_to_another_process(store):
    """What reads an object of any service anywhere is pickled; another process goes on with the same version."""
    with ObjectRanges(store.source) as ranges:
        pickled = pickle.dumps(ranges)
    command = [sys.executable, "-c", READ_ELSEWHERE]
    assert subprocess.run(command, input=pickled, capture_output=True, check=True).stdout == BODY[150_000:157_000]
    store.rules["faults"] = ["changed"]
    with pytest.raises(ShardChanged):
        pickle.loads(pickled).read_at(150_000, 7_000)


@pytest.mark.parametrize(
    ("url", "options", "field"),
    [("gs://bucket/key", {}, "credentials"), ("az://container/key", {"account_name": "me"}, "credential")],
)
def test_credential_objects_are_neither_pickled_nor_shown(url, options, field):
    """An object of google.auth or azure.identity may hold a key: the pickle refuses, and says what to do."""
    held = SimpleNamespace(token="canary", get_token=None, before_request=None)
    found = resolve_url(url, storage_options={**options, field: held}).remote_object()
    with pytest.raises(ConfigError, match="not put into a pickle"):
        pickle.dumps(found)
    assert "canary" not in repr(found.place)


@pytest.mark.parametrize(
    ("url", "options"),
    [
        ("gs://bucket/key", {"token": "canary"}),
        ("gs://bucket/key", {"credentials": {"type": "service_account", "private_key": "canary"}}),
        ("az://container/key", {"account_name": "me", "account_key": "canary"}),
        ("az://container/key", {"connection_string": "AccountName=me;SharedAccessSignature=sig=canary"}),
    ],
)
def test_secrets_as_text_do_not_travel(url, options):
    """A secret that was given as text is in no pickle; a reference is what goes."""
    found = resolve_url(url, storage_options=options).remote_object()
    with pytest.raises(ConfigError, match="env:NAME"):
        pickle.dumps(found)
    assert "canary" not in repr(found.place)
