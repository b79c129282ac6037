"""Google Cloud Storage: who asks, generations, checksums, uploads that break off; what no other store has."""

import gzip
import json
import logging
import os
import pickle
import subprocess
import sys
import traceback
import urllib.request
from concurrent.futures import ThreadPoolExecutor

import pytest

import webdataset as wds
from support import gcs_server
from support.proxy import Fault, FaultyProxy, planned
from support.readings import drained
from webdataset.core.errors import ConfigError, NotFound, ShardChanged, ShortRead, SourceError, UsageError
from webdataset.storage.backends import gcs as gs_objects
from webdataset.storage.backends import gcs_client as gs_credentials
from webdataset.storage.random_access import open_ranges
from webdataset.testing.sources import Answering, Listening

PART = 256 << 10
CANARY = "CANARY0123456789"


def test_another_name_of_the_scheme(gs):
    """``gcs:`` is ``gs:``."""
    gs.put("alias", b"the same")
    assert drained("gcs://shards/alias") == b"the same"


def test_a_token_is_sent(gs):
    """An access token, as text or by reference; a wrong one is an error that says so; so is none."""
    gs.put("guarded", b"guarded")
    endpoint = gs.gated(tokens={"good"})
    gs.environment.setenv("TEST_TOKEN", "good")
    for token in ("good", "env:TEST_TOKEN"):
        assert drained(gs.url("guarded"), storage_options={"token": token}) == b"guarded"
    with wds.gopen(gs.url("up"), "wb", storage_options={"token": "good"}, part_bytes=PART) as stream:
        stream.write(bytes(2 * PART))
    assert gs.get("up") == bytes(2 * PART)
    with pytest.raises(SourceError, match="401.*the access token is wrong or has expired"):
        wds.gopen(gs.url("guarded"), storage_options={"token": "bad"})
    for options in (None, {"anonymous": True}, {"token": "anon"}):
        with pytest.raises(SourceError, match="401.*asked without credentials"):
            wds.gopen(gs.url("guarded"), storage_options=options)
    assert endpoint


def test_a_token_that_is_rotated(gs, waits, monkeypatch, tmp_path):
    """A token that is refused in the middle is looked up once more; one that stays wrong is an error."""
    gs.put("guarded", os.urandom(400_000))
    tokens = {"first"}
    gs.gated(tokens=tokens)
    file = tmp_path / "token"
    file.write_text("first")
    options = {"token": f"file:{file}"}
    gate = gs.proxies[-1]

    def rotate():
        gate.tokens = {"second"}

    gs.running = gs.running._replace(endpoint=gate.url)
    gs.proxied(planned([Fault("swapped", 150_000)]), swap=rotate)
    gs.proxies[-2].tokens = gate.tokens = tokens
    gs.proxies[-1].upstream = gate.url.removeprefix("http://")
    forget = gs_credentials.forget_tokens

    def renewed(service, used):
        file.write_text("second")
        forget(service, used)

    monkeypatch.setattr(gs_credentials, "forget_tokens", renewed)
    assert len(drained(gs.url("guarded"), storage_options=options)) == 400_000
    gate.tokens = {"third"}
    with pytest.raises(SourceError, match="401"):
        wds.gopen(gs.url("guarded"), storage_options=options)


class Answers(Answering):
    """Gives one answer after the other."""

    protocol_version = "HTTP/1.0"

    def do_GET(self):
        """Give one."""
        status, headers, body = self.server.answers.pop(0)
        self.send(status, body, **headers)


@pytest.fixture
def answers(monkeypatch):
    """A list of answers of the service, which the test fills: what no emulator says."""
    with Listening(Answers, answers=[]) as server:
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", server.url)
        yield server.answers


def test_throttling_comes_as_a_refusal_too(answers, waits):
    """403 with a reason that means "later" is asked again; without one it is an error, at once."""
    throttled = json.dumps({"error": {"code": 403, "errors": [{"reason": "rateLimitExceeded"}], "message": "slow"}})
    refused = json.dumps({"error": {"code": 403, "message": "no permission"}})
    answers += [(403, {}, throttled.encode()), (200, {"X-Goog-Generation": "1"}, b"x"), (403, {}, refused.encode())]
    assert drained("gs://b/k") == b"x"
    assert len(waits) == 1
    with pytest.raises(SourceError, match="no permission"):
        wds.gopen("gs://b/k")
    assert len(waits) == 1


@pytest.mark.parametrize(("stored", "sent"), [("gzip", None), (None, "gzip"), ("identity", "gzip")])
def test_what_is_changed_on_the_way(answers, stored, sent):
    """Compressed or decompressed between the service and here: refused, as far as it can be seen."""
    headers = {"X-Goog-Generation": "1"}
    headers.update({"X-Goog-Stored-Content-Encoding": stored} if stored else {})
    headers.update({"Content-Encoding": sent} if sent else {})
    answers.append((200, headers, b"bytes"))
    if stored is None:
        assert drained("gs://b/k") == b"bytes"
    else:
        with pytest.raises(SourceError, match="changes it"):
            wds.gopen("gs://b/k")


def test_an_answer_about_another_generation(answers, waits):
    """A service that ignores which generation is asked for: ShardChanged."""
    answers += [
        (206, {"X-Goog-Generation": "1", "Content-Range": "bytes 0-3/8"}, b"1111"),
        (206, {"X-Goog-Generation": "2", "Content-Range": "bytes 4-7/8"}, b"2222"),
    ]
    with pytest.raises(ShardChanged):
        open_ranges("gs://b/k")


class TokenServer(Answering):
    """Gives a new access token for every question."""

    protocol_version = "HTTP/1.0"

    def do_POST(self):
        """Give one."""
        self.rfile.read(int(self.headers["Content-Length"]))
        given = self.server.given
        given.append(f"token-{len(given) + 1}")
        status = 200 if self.server.generous else 400
        content = {"access_token": given[-1], "expires_in": 3600, "token_type": "Bearer"}
        body = json.dumps(content if self.server.generous else {"error": "invalid_grant"}).encode()
        self.send(status, body, Content_Type="application/json")


@pytest.fixture
def account(tmp_path):
    """A service account whose tokens come from this machine: its file, and the list of tokens given so far."""
    pytest.importorskip("google.auth")
    rsa = pytest.importorskip("cryptography.hazmat.primitives.asymmetric.rsa")
    serialization = pytest.importorskip("cryptography.hazmat.primitives.serialization")
    key = rsa.generate_private_key(65537, 2048).private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    content = {
        "type": "service_account", "project_id": "test", "private_key_id": "1", "private_key": key.decode(),
        "client_email": "test@test.iam.gserviceaccount.com", "client_id": "1",
    }  # fmt: skip
    path = tmp_path / "account.json"
    gs_credentials._credentials.clear()
    with Listening(TokenServer, given=[], generous=True) as server:
        path.write_text(json.dumps({**content, "token_uri": f"{server.url}/token"}))
        yield path, server
    gs_credentials._credentials.clear()


@pytest.mark.parametrize(
    "how",
    [
        "environment",
        "credentials",
        "token",
        "mapping",
        "json",
        "reference",
        "object",
        "token-mapping",
        "token-reference",
    ],
)
def test_a_service_account(gs, account, how):
    """However it is named, google-auth fetches a token with it, once."""
    path, server = account
    gs.put("guarded", b"guarded")
    endpoint = gs.gated(tokens={"token-1"})
    options = {"endpoint_url": endpoint}
    if how == "environment":
        gs.environment.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(path))
    elif how in ("credentials", "token"):
        options[how] = str(path)
    elif how.endswith("mapping"):
        options["token" if "token" in how else "credentials"] = json.loads(path.read_text())
    elif how == "json":
        options["credentials"] = path.read_text()
    elif how.endswith("reference"):
        options["token" if "token" in how else "credentials"] = f"file:{path}"
    else:
        from google.oauth2 import service_account

        options["credentials"] = service_account.Credentials.from_service_account_file(
            str(path), scopes=[gs_credentials.SCOPE]
        )
    for _ in range(2):
        assert drained(gs.url("guarded"), storage_options=options) == b"guarded"
    assert server.given == ["token-1"]


def test_a_token_that_the_service_does_not_take_any_more(gs, account, waits):
    """The account fetches another."""
    path, server = account
    gs.put("guarded", b"guarded")
    options = {"endpoint_url": gs.gated(tokens={"token-1"}), "credentials": str(path)}
    assert drained(gs.url("guarded"), storage_options=options) == b"guarded"
    gs.proxies[-1].tokens = {"token-2"}
    assert drained(gs.url("guarded"), storage_options=options) == b"guarded"
    server.generous = False
    gs.proxies[-1].tokens = {"token-4"}
    with pytest.raises(SourceError, match="no access token.*check the credentials"):
        wds.gopen(gs.url("guarded"), storage_options=options)


def test_an_object_whose_token_the_service_does_not_take_any_more(gs, account, waits):
    """An object of the user's is told to fetch another token, once for many readers; one that cannot is refused."""
    from google.oauth2 import credentials, service_account

    path, server = account
    gs.put("guarded", b"guarded")
    given = service_account.Credentials.from_service_account_file(str(path), scopes=[gs_credentials.SCOPE])
    options = {"endpoint_url": gs.gated(tokens={"token-1"}), "credentials": given}
    assert drained(gs.url("guarded"), storage_options=options) == b"guarded"
    gs.proxies[-1].tokens = {"token-2"}
    with ThreadPoolExecutor(8) as threads:
        found = list(threads.map(lambda _: drained(gs.url("guarded"), storage_options=options), range(8)))
    assert found == [b"guarded"] * 8
    assert server.given == ["token-1", "token-2"]
    fixed = {**options, "credentials": credentials.Credentials("token-1")}
    with pytest.raises(SourceError, match="401"):
        wds.gopen(gs.url("guarded"), storage_options=fixed)


def test_no_credentials(gs, tmp_path):
    """The error says where credentials may come from."""
    pytest.importorskip("google.auth")
    gs.environment.delenv("STORAGE_EMULATOR_HOST")
    gs.environment.setenv("NO_GCE_CHECK", "true")
    gs.environment.setenv("CLOUDSDK_CONFIG", str(tmp_path))
    gs_credentials._credentials.clear()
    with pytest.raises(SourceError, match="application-default login"):
        wds.gopen("gs://shards/x")


def test_credentials_that_are_none(gs, tmp_path):
    """A file that is absent or holds something else, and two at once: said without a retry, and without the text."""
    pytest.importorskip("google.auth")
    (tmp_path / "other.json").write_text(json.dumps({"secret": CANARY}))
    for given in (str(tmp_path / "absent.json"), str(tmp_path / "other.json"), {"secret": CANARY}, "{" + CANARY):
        with pytest.raises((SourceError, UsageError)) as caught:
            wds.gopen("gs://shards/x", storage_options={"credentials": given})
        assert CANARY not in "".join(traceback.format_exception(caught.value))
    with pytest.raises(ConfigError, match="exclude each other"):
        wds.gopen("gs://shards/x", storage_options={"credentials": "a.json", "token": "x"})


def test_who_pays(gs):
    """``user_project`` goes with every request."""
    gs.put("payed/x", b"payed")
    proxy = gs.proxied(planned(()))
    options = {"user_project": "mine & yours"}
    assert drained(gs.url("payed/x"), storage_options=options) == b"payed"
    wds.expand_urls(gs.url("payed/*"))
    with wds.gopen(gs.url("payed/y"), "wb", storage_options=options) as stream:
        stream.write(b"y")
    asked = [request.path for request in proxy.passed]
    assert len([path for path in asked if "userProject=mine%20%26%20yours" in path]) == 2


def test_generations(gs, waits):
    """``#`` and a number read one generation; a stream keeps to the one that it began with, where it is kept."""
    gs.container = "kept"
    body = os.urandom(400_000)
    url = gs.put("x", body)
    first = gs.facts("x")["generation"]
    gs.put("x", b"second")
    assert drained(url) == b"second"
    assert drained(f"{url}#{first}") == body
    with pytest.raises(UsageError, match="can be written"):
        wds.gopen(f"{url}#{first}", "wb")
    with pytest.raises(NotFound):
        wds.gopen(f"{url}#1234567890123456")
    url = gs.put("y", body)
    gs.proxied(planned([Fault("swapped", 150_000)]), swap=lambda: gs.put("y", b"other"))
    assert drained(url) == body


def test_a_wrong_checksum_is_an_error(gs, monkeypatch):
    """All bytes came, and are not those that the service vouches for."""
    pytest.importorskip("google_crc32c")
    url = gs.put("checked", b"checked")
    right = gs_objects.parse_crc32
    monkeypatch.setattr(gs_objects, "parse_crc32", lambda text: (right(text) or 0) ^ 1)
    with pytest.raises(ShortRead, match="checksum"):
        drained(url)


def test_without_the_checksum_package(gs):
    """It is faster with it, and works without it."""
    url = gs.put("checked", b"checked")
    code = (
        f"import sys; sys.modules['google_crc32c'] = None; import webdataset as wds; print(wds.gopen('{url}').read())"
    )
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert shown.stdout.strip() == str(b"checked")


def test_objects_that_are_stored_compressed(gs):
    """They come as they are stored, or are refused: ranges of what a service decompresses fit nothing."""
    content = gzip.compress(b"text" * 10_000)
    path = f"{gs.running.endpoint}/upload/storage/v1/b/shards/o?uploadType=media&name=z&contentEncoding=gzip"
    urllib.request.urlopen(urllib.request.Request(path, content, method="POST")).close()
    assert drained(gs.url("z")) == content


@pytest.mark.parametrize("forgetful", [False, True])
def test_an_upload_that_breaks_off_goes_on(gs, waits, forgetful):
    """The service takes parts of chunks, and answers are lost: it is asked how much is there; nothing is sent twice."""
    body = os.urandom(9 * PART + 5)
    endpoint = gs.gated(hesitant=True, forgetful=forgetful)
    gate = gs.proxies[-1]
    faults = [
        None,
        None,
        Fault("busy"),
        None,
        Fault("busy"),
        *[Fault("reset", 0)] * 10,
    ]  # the last answer, and one more
    plan = planned(faults, methods=("PUT",))
    gs.gated = lambda: endpoint
    proxy = gs.proxied(plan)
    with wds.gopen(gs.url("hesitant"), "wb", part_bytes=4 * PART) as stream:
        stream.write(body)
    assert gs.get("hesitant") == body
    assert gate.questions >= 3
    assert proxy.passed[0].method == "POST"


def test_an_upload_that_is_forgotten(gs, waits):
    """A service that has lost an upload: an error, nothing published."""
    endpoint = gs.gated()
    gate = gs.proxies[-1]
    gs.gated = lambda: endpoint
    gs.proxied(planned([None, Fault("busy")], methods=("PUT",)))
    stream = wds.gopen(gs.url("lost"), "wb", part_bytes=PART)
    stream.write(bytes(PART + 1))
    stream._parts[0].result()

    class Forgotten(dict):
        def get(self, *_):
            return 404, "", b""

    gate.uploads = Forgotten()
    stream.write(b"x" * PART)
    with pytest.raises(SourceError, match="forgotten this upload"):
        stream.close()
    assert gs.get("lost") is None


def test_an_abort_cancels_the_upload(gs):
    """The service is told, so that it may forget the chunks."""
    proxy = gs.proxied(planned(()))
    stream = wds.gopen(gs.url("aborted"), "wb", part_bytes=PART)
    stream.write(bytes(2 * PART))
    stream.abort()
    assert proxy.passed[-1].method == "DELETE"
    assert gs.get("aborted") is None


def test_no_secret_is_shown(gs, waits, caplog):
    """No failure shows tokens or the address of an upload: not in texts, tracebacks with causes, logs or pickles."""
    caplog.set_level(logging.DEBUG)
    shown, uploads = [], []

    def fail(mode):
        options = {"part_bytes": PART} if mode == "wb" else {}
        with wds.gopen(gs.url("x"), mode, attempts=2, storage_options={"token": CANARY}, **options) as stream:
            stream.write(bytes(3 * PART)) if mode == "wb" else stream.read()

    for fault in (None, Fault("busy"), Fault("reset")):
        with gcs_server.Gate(gs.running.endpoint.removeprefix("http://"), tokens=None if fault else {"other"}) as gate:
            for mode in ("rb", "wb"):
                with FaultyProxy(
                    gate.url.removeprefix("http://"),
                    lambda _m, path: fault if "upload_id" in path or mode == "rb" else None,
                ) as way:
                    gs.use(way.url)
                    with pytest.raises(SourceError) as caught:
                        fail(mode)
                shown.append("".join(traceback.format_exception(caught.value)))
                shown.append(repr(pickle.dumps(caught.value)) + repr(caught.value.__dict__))
            uploads += [path.rpartition("upload_id=")[2] for path in gate.uploads]
    text = "".join(shown) + caplog.text
    assert uploads
    assert CANARY not in text
    assert not [upload for upload in uploads if upload in text]


def test_secrets_do_not_travel(gs):
    """A token that was given as text is in no pickle, and no repr shows it."""
    dataset = wds.WebDataset(gs.url("x.tar"), storage_options={"token": CANARY, "credentials": {"private_key": CANARY}})
    assert CANARY not in repr(dataset)
    with pytest.raises(ConfigError, match="env:NAME"):
        pickle.dumps(dataset)


def test_without_google_auth():
    """The error names the extra."""
    code = (
        "import sys; sys.modules['google.auth.exceptions'] = sys.modules['google.auth'] = None\n"
        "import webdataset as wds\n"
        "try: wds.gopen('gs://b/k')\n"
        "except ImportError as error: print(error)"
    )
    environment = {name: text for name, text in os.environ.items() if name != "STORAGE_EMULATOR_HOST"}
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment)
    assert "[gs]" in shown.stdout
