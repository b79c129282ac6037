"""Answers and uploads of web servers that no server should give, and secrets that no header can hold."""

import http.server
import os
import pickle
import threading
import traceback

import pytest

from webdataset.core.errors import ConfigError, ShortRead, SourceError, UsageError
from webdataset.storage import http_object, retries
from webdataset.storage.backends import fsspec_store
from webdataset.storage.object_store import Checksums
from webdataset.storage.open_url import open_url
from webdataset.storage.s3_profile import Secret
from webdataset.storage.storage_options import StorageOptions, check_options, options_for, refuse_login

CANARY = "canary-f00d"


class Odd(http.server.BaseHTTPRequestHandler):
    """Answers as the path says."""

    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        """Say nothing."""

    def answer(self, status, *headers, body=b""):
        """Send status, headers and body."""
        self.send_response(status)
        for name, text in headers:
            self.send_header(name, text)
        self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(body)
        self.close_connection = True

    def do_GET(self):
        """Answer with a status, or with headers that contradict each other."""
        self.server.seen.append(self.headers)
        word = self.path.strip("/")
        if word == "twice":
            self.answer(200, ("Content-Length", "5"), ("Content-Length", "7"), body=b"12345")
        elif word == "letters":
            self.answer(200, ("Content-Length", "\u00b2"), body=b"12345")
        elif word == "fresh":
            now = self.date_time_string()
            self.answer(200, ("Content-Length", "9"), ("Last-Modified", now), body=b"12345")
        else:
            self.answer(int(word or 200), ("Content-Length", "0"))

    def do_PUT(self):
        """Take an upload, or lead it to another page."""
        self.server.put.append(self.rfile.read(int(self.headers["Content-Length"])))
        if self.path == "/login":
            self.answer(303, ("Location", "/200"), ("Content-Length", "0"))
        else:
            self.answer(201, ("Content-Length", "0"))


@pytest.fixture
def odd(monkeypatch):
    """Serve oddities; give the server, with ``url``."""
    monkeypatch.setattr(retries, "FIRST_SECONDS", 0.001)
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Odd)
    server.seen, server.put = [], []
    server.url = f"http://127.0.0.1:{server.server_port}/"
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.mark.parametrize("status", [201, 202, 204, 205])
def test_an_answer_without_an_object_is_no_empty_shard(odd, status):
    """Success without a body, or a promise of one, is an error."""
    with pytest.raises(SourceError, match=f"status {status} came, and no object"):
        open_url(f"{odd.url}{status}")


def test_two_lengths_are_an_error_of_ours(odd):
    """Headers that contradict each other raise no error of urllib3."""
    with pytest.raises(SourceError, match="unmatching"):
        open_url(f"{odd.url}twice")


def test_a_length_that_is_no_number(odd):
    """What only looks like digits is no length."""
    with open_url(f"{odd.url}letters") as stream:
        assert stream.length is None
    assert [http_object.parse_length(text) for text in ("7", "", "-1", "1" * 5000, "\u0663")] == [
        7,
        None,
        None,
        None,
        None,
    ]


def test_the_date_of_this_second_proves_nothing(odd):
    """An object that changed within the second of its answer is not taken up again by its date alone."""
    with open_url(f"{odd.url}fresh") as stream, pytest.raises(ShortRead, match="no length and ETag or date"):
        stream.readall()


def test_a_digest_that_is_none():
    """A checksum that is no hexadecimal number is not compared, and is no crash."""
    assert Checksums(digest=("md5", "not hex!")).expected_checksum()[0] is None
    assert Checksums(digest=("md5", "ff")).expected_checksum()[0] == 255


def test_an_upload_that_is_led_elsewhere_is_not_published(odd):
    """Status 303 after a PUT is followed by a GET, whose success says nothing about the upload."""
    with pytest.raises(SourceError, match="303"), open_url(f"{odd.url}login", "wb") as stream:
        stream.write(b"content")


@pytest.mark.parametrize("url", ["http", "gs://b/k", "hf://datasets/u/r/k", "ais://b/k"])
@pytest.mark.parametrize("mode", ["rb", "wb"])
@pytest.mark.parametrize("token", [f"{CANARY}\nx", f"{CANARY}\u20ac"])
def test_a_token_that_no_header_can_hold_is_not_quoted(odd, monkeypatch, url, mode, token):
    """A line break in a token is an error that does not show the token, nor do its causes."""
    monkeypatch.setenv("ODD_TOKEN", token)
    if url.startswith("gs"):
        pytest.importorskip("google.auth")
    if url.startswith("hf") and mode == "wb":
        pytest.skip("sent by its own package")
    options = {"token": "env:ODD_TOKEN", **({} if url == "http" else {"endpoint_url": odd.url})}
    with pytest.raises(ConfigError) as caught:  # noqa: SIM117  the whole of it
        with open_url(odd.url if url == "http" else url, mode, storage_options=options) as stream:
            stream.write(b"x") if mode == "wb" else stream.read(1)
    assert CANARY not in "".join(traceback.format_exception(caught.value))
    assert odd.seen == odd.put == []


def test_a_session_token_that_no_header_can_hold_is_not_quoted(odd, monkeypatch):
    """What botocore says about such a token is not passed on."""
    pytest.importorskip("botocore")
    monkeypatch.setenv("ODD_TOKEN", f"{CANARY}\nx")
    keys = {"access_key_id": "a", "secret_access_key": "b", "session_token": "env:ODD_TOKEN"}
    with pytest.raises(SourceError, match="hold a line break") as caught:
        open_url("s3://b/k", storage_options={"endpoint_url": odd.url, **keys})
    assert CANARY not in "".join(traceback.format_exception(caught.value))


def test_line_breaks_at_the_end_of_a_secret_are_left_out(monkeypatch):
    """Variables that a file was read into end with a line break, which belongs to no secret."""
    monkeypatch.setenv("ODD_TOKEN", f"{CANARY}\r\n")
    assert Secret("env:ODD_TOKEN").reveal() == CANARY


def test_a_proxy_may_want_a_password(odd, monkeypatch):
    """User and password of a proxy are sent to it; a proxy of another kind is an error that says so."""
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("http_proxy", odd.url.replace("//", f"//user:{CANARY}@"))
    with pytest.raises(SourceError):
        open_url("http://shards.invalid/404")
    assert odd.seen[0]["Proxy-Authorization"].startswith("Basic ")
    monkeypatch.setenv("http_proxy", f"socks5://user:{CANARY}@127.0.0.1:1")
    with pytest.raises(ConfigError, match="proxy of kind 'socks5'") as caught:
        open_url("http://shards.invalid/404")
    assert CANARY not in "".join(traceback.format_exception(caught.value))


class Credentials:
    """As another package makes them."""

    def get_token(self, *_scopes):
        """Return a token."""


@pytest.mark.parametrize(
    "options",
    [
        {"password": CANARY.encode()},
        {"token": CANARY.encode()},
        {"headers": {"X-Key": CANARY.encode()}},
        {"fsspec": {"apikey": CANARY}},
        {"fsspec": {"pwd": CANARY, "connection_string": CANARY}},
        {"fsspec": {"client_kwargs": {"headers": {"X": CANARY}}}},
        {"credential": Credentials()},
    ],
)
def test_secrets_of_any_kind_stay(options):
    """Bytes, nested options and objects of others are neither shown nor pickled."""
    checked = check_options(options)
    assert isinstance(checked, StorageOptions)
    assert CANARY not in repr(checked)
    with pytest.raises(ConfigError, match="pickle"):
        pickle.dumps(checked)


def test_objects_of_others_arrive_as_they_are():
    """What is held back from pickles is given to the store itself."""
    given = Credentials()
    assert options_for("azure", {"credential": given})["credential"] is given
    pytest.importorskip("fsspec")
    made = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            fsspec_store.import_fsspec().core, "url_to_fs", lambda url, **options: made.append(options) or (None, url)
        )
        options = {"fsspec": {"credential": given, "more": {"headers": {"X": "secret"}, "port": 1}}}
        fsspec_store.FsspecLocation("oci://bucket/key", options).filesystem()
    assert made == [{"credential": given, "more": {"headers": {"X": "secret"}, "port": 1}}]
    assert fsspec_store.service_id("oci://bucket/key", options) == "credential= more=headers=X= port=1"


def test_headers_are_a_mapping():
    """Anything else is told at once."""
    with pytest.raises(ConfigError, match="headers is a mapping"):
        open_url("http://shards.invalid/x", storage_options={"headers": "X: y"})


def test_addresses_of_services_hold_no_password(monkeypatch):
    """They are shown in messages and name copies in the cache."""
    for endpoint in (f"http://user:{CANARY}@host", f"user:{CANARY}@host:80"):
        with pytest.raises(ConfigError, match="must not hold") as caught:
            refuse_login(endpoint, "HERE")
        assert CANARY not in str(caught.value)
        monkeypatch.setenv("AIS_ENDPOINT", endpoint)
        monkeypatch.setenv("HF_ENDPOINT", endpoint)
        for url in ("ais://b/k", "hf://datasets/u/r/k"):
            with pytest.raises(ConfigError, match="must not hold"):
                open_url(url)
    refuse_login("http://host:1/a@b", "HERE")


def test_a_key_is_for_its_own_account():
    """An Azure url of another account than the options name is refused, whatever names it."""
    options = {"account_name": "mine", "sas_token": "sig=1"}
    with pytest.raises(ConfigError, match="another account"):
        open_url("abfs://c@theirs.dfs.core.windows.net/k", storage_options=options)


@pytest.mark.parametrize(
    "url",
    [
        f"http://user:{CANARY}@ho\u2100st/x",
        f"http://host:bad/x?sig={CANARY}",
        f"http://[::1/x?sig={CANARY}",
        f"http://a..b/x?sig={CANARY}",
        f"http://user:{CANARY}@//.[/",
        "gs://bucket/\ud800",
        "az://container/\ud800",
    ],
)
def test_urls_that_make_no_sense_show_no_secrets(url, monkeypatch):
    """Neither the error nor what caused it quotes what is secret in a url that cannot be opened."""
    monkeypatch.setattr(retries, "FIRST_SECONDS", 0.001)
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT", "acc")
    with pytest.raises((UsageError, SourceError)) as caught:
        open_url(url)
    error: BaseException | None = caught.value
    while error is not None:
        assert CANARY not in f"{error} {error.args}"
        error = error.__cause__ or error.__context__


def test_a_user_is_sent_as_utf8(odd):
    """Names and passwords go out as the bytes that the url holds, as curl sends them."""
    with pytest.raises(SourceError):
        open_url(odd.url.replace("//", "//\u00e9:%F0%9D%94%98@") + "404")
    assert odd.seen[0]["Authorization"] == "Basic w6k68J2UmA=="


@pytest.mark.parametrize("url", ["gs://b/..", "gs://b/.", "hf://datasets/u/r@../k"])
def test_names_that_lead_elsewhere(url):
    """A name of dots alone would ask for something else than an object."""
    with pytest.raises(UsageError, match="has the name"):
        open_url(url)


def test_a_copy_in_a_fork_leaves_an_upload_alone(odd):
    """A forked child that lets go of an upload, or writes to it, changes nothing of what its parent sends."""
    content = os.urandom((17 << 20) + 1)
    stream = open_url(f"{odd.url}200", "wb")
    stream.write(content)
    stream.write(b"in a buffer")
    child = os.fork()
    if not child:
        try:
            stream.write(b"of the child")
        except SourceError:
            stream.abort()
            os._exit(0)
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    stream.write(b", the rest")
    stream.close()
    assert odd.put == [content + b"in a buffer, the rest"]
