"""A real web server: reading, resuming, uploading, redirects, TLS; every byte or a typed error, no secret shown."""

import functools
import gzip
import hashlib
import io
import logging
import os
import pickle
import re

import pytest

import webdataset as wds
from support.proxy import KINDS, Fault, planned, seeded
from support.web_server import PASSWORD, shared_web
from support.wires import CutWire
from webdataset.core.errors import NoRandomAccess, NotFound, ShardChanged, SourceError, UsageError
from webdataset.storage import http_client
from webdataset.storage.random_access import open_ranges
from webdataset.testing.sources import Answering, Listening

SIZE = 400_000
BODY = hashlib.shake_256(b"first").digest(SIZE)
OTHER = hashlib.shake_256(b"second").digest(SIZE)
CANARY = "CANARY-7f3a"


@pytest.fixture(scope="session")
def authority(tmp_path_factory):
    """A certificate authority of our own, as a file."""
    trustme = pytest.importorskip("trustme")
    made = trustme.CA()
    path = tmp_path_factory.mktemp("authority") / "ca.pem"
    made.cert_pem.write_to_path(str(path))
    return made, path


@pytest.fixture(scope="session")
def server(tmp_path_factory, authority):
    """A server for this process alone, since its certificate is signed by this process's authority."""
    certificate = authority[0].issue_cert("127.0.0.1", "localhost")
    pem = certificate.private_key_pem.bytes() + b"".join(blob.bytes() for blob in certificate.cert_chain_pems)
    try:
        with shared_web(tmp_path_factory.mktemp("nginx"), pem) as running:
            yield running
    except NotFound as error:
        pytest.skip(str(error))


@pytest.fixture
def web(server, monkeypatch):
    """The server with ``/x``, nothing of the environment's proxies and certificates, and no connection kept."""
    for name in ("http_proxy", "https_proxy", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    for name in ("SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE"):
        monkeypatch.delenv(name, raising=False)
    (server.files / "x").write_bytes(BODY)
    http_client._pools.clear()
    yield server
    http_client._pools.clear()


@pytest.fixture
def proxied(web, before):
    """Return a function that puts a faulty proxy before the server."""
    return functools.partial(before, web.plain)


def swap(web):
    """Replace the object by one of the same size, as publishing does: by a rename."""
    (web.files / "new").write_bytes(OTHER)
    os.utime(web.files / "new", (1, 1))
    (web.files / "new").rename(web.files / "x")


def drained(url, size=50_000, **options):
    """Read a url to its end in pieces."""
    with wds.gopen(url, **options) as stream:
        return b"".join(iter(lambda: stream.read(size), b""))


def test_an_object_is_read_whole_and_anywhere(web):
    """Front to back, and by ranges."""
    assert drained(f"{web.plain}/x") == BODY
    with open_ranges(f"{web.plain}/x") as ranges:
        assert ranges.length == SIZE
        assert ranges.read_at(300_000, 1000) == BODY[300_000:301_000]
    (web.files / "empty").write_bytes(b"")
    with open_ranges(f"{web.plain}/empty") as ranges:
        assert ranges.length == 0
    with pytest.raises(NotFound, match="404"):
        drained(f"{web.plain}/absent")


def test_a_replaced_object_is_noticed_by_ranges(web):
    """The server heeds If-Match."""
    with open_ranges(f"{web.plain}/x") as ranges:
        swap(web)
        with pytest.raises(ShardChanged):
            ranges.read_at(300_000, 10)


@pytest.mark.parametrize("kind", ["reset", "cut", "misplaced", "rangeless", "busy", "throttled"])
def test_one_fault_costs_no_byte(proxied, waits, kind):
    """Whatever goes wrong once, in the first answer and in the one after it, all bytes come, in order."""
    proxy = proxied(planned([Fault("cut", 150_000), Fault(kind, 100_000, 0), Fault(kind, 10)]))
    assert drained(f"{proxy.url}/x") == BODY
    assert proxy.passed[1].range == "bytes=150000-"
    assert waits[0] < 0.2


def test_a_stalled_connection_is_left(proxied, waits):
    """No byte for the read timeout: the rest comes over another connection."""
    proxy = proxied(planned([Fault("stall", 100_000)]))
    assert drained(f"{proxy.url}/x", read_seconds=0.3) == BODY


def test_retry_after_is_heard(proxied, waits):
    """The server says when to come back, whether or not bytes were had before."""
    proxy = proxied(planned([Fault("throttled", wait_seconds=7), Fault("cut", 100), Fault("busy", wait_seconds=9)]))
    assert drained(f"{proxy.url}/x") == BODY
    assert 7 <= waits[0] < 8.5
    assert any(9 <= wait < 10.5 for wait in waits)


@pytest.mark.parametrize("careless", [False, True])
def test_a_replaced_object_is_an_error(proxied, waits, web, careless):
    """ShardChanged, whether or not the server heeds If-Match."""
    proxy = proxied(planned([Fault("swapped", 150_000)]), swap=lambda: swap(web), careless=careless)
    with pytest.raises(ShardChanged):
        drained(f"{proxy.url}/x")


@pytest.mark.parametrize("block", range(4))
def test_seeded_faults_are_never_silent(proxied, waits, web, block):
    """A hundred seeds, all faults, servers that heed conditions and that do not: equal bytes or a typed error."""
    errors, proxy = 0, proxied(planned(()), swap=lambda: swap(web))
    for seed in range(25 * block, 25 * block + 25):
        (web.files / "x").write_bytes(BODY)
        kinds = tuple(kind for kind in KINDS if kind not in (("expired",) if seed % 4 == 0 else ("expired", "swapped")))
        proxy.plan, proxy.careless = seeded(seed, kinds, size=SIZE), seed % 8 == 0
        try:
            found = drained(f"{proxy.url}/x", read_seconds=0.15)
        except (ShardChanged, EOFError):
            errors += 1
        else:
            assert found in (BODY, OTHER), f"seed {seed}"
    assert errors <= 7


def test_uploads(web):
    """An object appears whole; an exception in the block leaves the old one; large ones go by way of a file."""
    with wds.gopen(f"{web.plain}/folder/up", "wb") as stream:
        stream.write(BODY[:1000])
        assert not (web.files / "folder").exists()
        stream.write(BODY[1000:])
    assert (web.files / "folder" / "up").read_bytes() == BODY
    with pytest.raises(ZeroDivisionError), wds.gopen(f"{web.plain}/folder/up", "wb") as stream:
        stream.write(bytes([1 // (stream.write(b"half") - 4)]))
    assert (web.files / "folder" / "up").read_bytes() == BODY
    large = BODY * 50
    with wds.gopen(f"{web.plain}/large", "wb") as stream:
        stream.write(large)
    assert (web.files / "large").read_bytes() == large
    with wds.gopen(f"{web.plain}/nothing", "wb"):
        pass
    assert (web.files / "nothing").read_bytes() == b""


def test_uploads_are_sent_again(proxied, waits, web):
    """A busy server is asked again, with all of the body."""
    proxy = proxied(planned([Fault("busy"), Fault("throttled", wait_seconds=3)], methods=("PUT",)))
    with wds.gopen(f"{proxy.url}/again", "wb") as stream:
        stream.write(BODY)
    assert (web.files / "again").read_bytes() == BODY
    assert len(waits) == 2


def test_uploads_follow_redirects(web):
    """All of the body goes to where the server sends it, also from a temporary file."""
    for name, content in (("small", BODY), ("large", BODY * 50)):
        with wds.gopen(f"{web.plain}/moved/{name}", "wb") as stream:
            stream.write(content)
        assert (web.files / name).read_bytes() == content


def test_refused_uploads_are_errors(web, waits):
    """No password, a wrong one, a folder in place of a name: SourceError, which says what to do."""
    with pytest.raises(SourceError, match="401.*credentials"), wds.gopen(f"{web.plain}/private/x", "wb") as stream:
        stream.write(b"x")
    login = web.plain.replace("//", f"//me:{CANARY}@")
    with pytest.raises(SourceError, match="40[13].*credentials") as caught:
        wds.gopen(f"{login}/private/x", "wb").close()
    assert CANARY not in str(caught.value)
    with pytest.raises(SourceError):
        wds.gopen(f"{web.plain}/folder/", "wb").close()
    with pytest.raises(SourceError, match="no answer"):
        wds.gopen("http://127.0.0.1:9/x", "wb").close()


def test_a_forgotten_upload_sends_nothing(web):
    """Dropped without close: a warning, and nothing on the server."""
    stream = wds.gopen(f"{web.plain}/forgotten", "wb")
    stream.write(BODY)
    with pytest.warns(ResourceWarning, match="nothing was published"):
        del stream
    assert not (web.files / "forgotten").exists()


def test_passwords_in_urls(web):
    """They open what is private, for reading and writing, and are not shown."""
    login = web.plain.replace("//", f"//me:{PASSWORD}@")
    assert drained(f"{login}/private/x") == BODY
    with wds.gopen(f"{login}/private/mine", "wb") as stream:
        stream.write(b"mine")
        assert PASSWORD not in repr(stream)
    assert (web.files / "mine").read_bytes() == b"mine"
    with pytest.raises(SourceError, match="401"):
        drained(f"{web.plain}/private/x")


def test_credentials_stay_with_the_first_host(web):
    """A redirect to another host takes neither password nor token along; what needs none is read."""
    login = web.plain.replace("//", f"//me:{PASSWORD}@")
    assert drained(f"{login}/moved/x") == BODY
    with pytest.raises(SourceError, match="401"):
        drained(f"{login}/moved-private/x")


@pytest.mark.parametrize("place", ["to-file", "to-ftp"])
def test_redirects_to_other_schemes_are_not_followed(web, waits, place):
    """Neither files nor other protocols."""
    with pytest.raises(SourceError, match="not followed") as caught:
        drained(f"{web.plain}/{place}/x")
    assert not isinstance(caught.value, UsageError)
    assert not waits


def test_compression_on_the_way(web):
    """Bytes come as they are stored, since no compression is asked for."""
    (web.files / "x.txt").write_bytes(b"a" * 10_000)
    assert drained(f"{web.plain}/packed/x.txt") == b"a" * 10_000


def test_what_is_stored_compressed(web):
    """``Content-Encoding: gzip`` though nobody asked for it: read as it is stored, so that a shard is a gz shard."""
    buffer = io.BytesIO()
    with wds.TarWriter(buffer) as sink:
        sink.write({"__key__": "a", "txt": "caption"})
    (web.files / "a.tar").write_bytes(gzip.compress(buffer.getvalue()))
    assert [sample["txt"] for sample in wds.WebDataset(f"{web.plain}/stored/a.tar")] == [b"caption"]
    with pytest.raises(NoRandomAccess, match="compresses"):
        open_ranges(f"{web.plain}/stored/a.tar")


def test_a_slow_reader_costs_nothing(web):
    """A server that gives 256 KiB a second, and a reader that closes early."""
    with wds.gopen(f"{web.plain}/slow/x") as stream:
        assert stream.read(1000) == BODY[:1000]


class Elsewhere(Answering):
    """Redirects every request to a place that only the newest ticket opens, and shows it what came along."""

    def do_GET(self):
        """Redirect to the other host, or serve there one part only for each ticket."""
        server = self.server
        server.seen.append((self.path, dict(self.headers)))
        if self.path == "/start":
            server.tickets += 1
            self.send(302, Location=f"http://localhost:{server.port}/{server.tickets}?sig={CANARY}")
            return
        if not self.path.startswith(f"/{server.tickets}?"):
            self.send(403)
            return
        first = int(self.headers.get("Range", "bytes=0-").removeprefix("bytes=").partition("-")[0])
        body = BODY[first:]
        self.send_response(206 if first else 200)
        self.send_header("ETag", '"one"')
        self.send_header("Content-Length", str(len(body)))
        if first:
            self.send_header("Content-Range", f"bytes {first}-{SIZE - 1}/{SIZE}")
        self.end_headers()
        self.wfile.write(body[:150_000])
        self.close_connection = True


@pytest.fixture
def elsewhere(web):
    """A server whose urls expire with each drop."""
    with Listening(Elsewhere, seen=[], tickets=0) as server:
        yield server


def test_expired_places_are_resolved_again(elsewhere, waits):
    """Each connection begins at the original url; headers of the user go to its host only."""
    url = f"http://127.0.0.1:{elsewhere.server_port}/start"
    options = {"headers": {"X-Key": CANARY}, "token": CANARY}
    assert drained(url, storage_options=options) == BODY
    assert elsewhere.tickets == 3
    first, other = elsewhere.seen[0][1], elsewhere.seen[1][1]
    assert (first["X-Key"], first["Authorization"]) == (CANARY, f"Bearer {CANARY}")
    assert CANARY not in other.values()
    assert "Authorization" not in other


def test_tokens_are_looked_up_for_each_request(elsewhere, waits, monkeypatch, tmp_path):
    """A token that was replaced in its file is taken up by the next connection."""
    (tmp_path / "token").write_text("old")
    url = f"http://127.0.0.1:{elsewhere.server_port}/start"
    with wds.gopen(url, storage_options={"token": f"file:{tmp_path}/token"}) as stream:
        (tmp_path / "token").write_text("new")
        assert stream.read() == BODY
    sent = [headers["Authorization"] for path, headers in elsewhere.seen if path == "/start"]
    assert sent == ["Bearer old", "Bearer new", "Bearer new"]


def test_certificates_are_checked(web, waits, authority, tmp_path):
    """An unknown authority is refused at once, with what to do; a known one is not."""
    with pytest.raises(SourceError, match=r"certificate is not trusted.*SSL_CERT_FILE"):
        drained(f"{web.secure}/x")
    assert not waits
    assert drained(f"{web.secure}/x", storage_options={"verify": str(authority[1])}) == BODY
    with wds.gopen(f"{web.secure}/up-tls", "wb", storage_options={"verify": str(authority[1])}) as stream:
        stream.write(BODY)
    assert (web.files / "up-tls").read_bytes() == BODY


def test_no_certificate_is_checked_where_that_is_wanted(web):
    """``verify=False`` reads, and urllib3 warns each time."""
    insecure = pytest.importorskip("urllib3").exceptions.InsecureRequestWarning
    with pytest.warns(insecure):
        assert drained(f"{web.secure}/x", storage_options={"verify": False}) == BODY


@pytest.mark.parametrize("name", ["SSL_CERT_FILE", "REQUESTS_CA_BUNDLE"])
def test_authorities_of_the_environment(web, authority, monkeypatch, name):
    """The variables that other programs know."""
    monkeypatch.setenv(name, str(authority[1]))
    assert drained(f"{web.secure}/x") == BODY


def test_a_certificate_of_another_host(tmp_path, authority, waits, monkeypatch):
    """The name in the certificate has to be that of the host."""
    certificate = authority[0].issue_cert("elsewhere.invalid")
    pem = certificate.private_key_pem.bytes() + b"".join(blob.bytes() for blob in certificate.cert_chain_pems)
    with shared_web(tmp_path / "nginx", pem) as other:
        with pytest.raises(SourceError, match="not trusted"):
            drained(f"{other.secure}/x", storage_options={"verify": str(authority[1])})
    assert not waits


@pytest.mark.parametrize("kind", ["reset", "end"])
def test_a_wire_cut_below_tls(web, authority, waits, kind):
    """Bytes that came before the cut are kept, the rest is asked for over another connection."""
    port = int(web.secure.rpartition(":")[2])
    with CutWire(port, [150_000, 100, 90_000], kind) as wire:
        url = f"https://127.0.0.1:{wire.port}/x"
        assert drained(url, storage_options={"verify": str(authority[1])}) == BODY
        assert wire.connections == 4


def test_secrets_stay_hidden(web, waits, caplog, capfd, monkeypatch, tmp_path):
    """Through every failure: not in messages, their chains, logs, pickles."""
    monkeypatch.setenv("GOPEN_VERBOSE", "1")
    caplog.set_level(logging.DEBUG)
    options = {"headers": {"X-Key": CANARY}, "token": CANARY}
    login = web.plain.replace("//", f"//me:{CANARY}@")
    shown = []
    for url, mode in [
        (f"{login}/private/x", "rb"), (f"{login}/absent", "rb"), (f"{login}/to-file/x", "rb"), (f"{login}/", "wb"),
        (f"http://me:{CANARY}@127.0.0.1:9/x?token={CANARY}", "rb"), (f"https://me:{CANARY}@{web.plain[7:]}/x", "rb"),
        (f"{web.secure}/x?sig={CANARY}", "rb"), (f"http://me:{CANARY}@[zz]/", "rb"),
    ]:  # fmt: skip
        with pytest.raises((SourceError, UsageError)) as caught:
            wds.gopen(url, mode, storage_options=options).close()
        shown += [str(caught.value), repr(caught.value)]
        link = caught.value
        while link is not None:
            shown.append(str(link))
            link = link.__cause__ or (None if link.__suppress_context__ else link.__context__)
    with wds.gopen(f"{web.plain}/x", storage_options=options) as stream:
        shown += [repr(stream), repr(vars(stream._source)), repr(vars(stream._source._session))]
    with pytest.raises(UsageError):
        pickle.dumps(stream._source)
    records = [re.sub(r'"(GET|PUT) [^"]*"', "", text) for text in caplog.text.splitlines() if "urllib3" not in text]
    assert CANARY not in "\n".join([*shown, *records, *capfd.readouterr()])


def test_curl_where_it_is_asked_for(web, monkeypatch):
    """``WDS_GOPEN_BACKEND=cli`` reads and uploads by curl, which takes no storage options."""
    monkeypatch.setenv("WDS_GOPEN_BACKEND", "cli")
    with wds.gopen(f"{web.plain}/x") as stream:
        assert type(stream).__name__ == "Pipe"
        assert stream.read() == BODY
    with wds.gopen(f"{web.plain}/by-curl", "wb") as stream:
        stream.write(b"curl")
    assert (web.files / "by-curl").read_bytes() == b"curl"
    with pytest.raises(UsageError, match="takes none"):
        wds.gopen(f"{web.plain}/x", storage_options={"token": "x"})


def test_a_fork_has_connections_of_its_own(web):
    """A stream that is open at a fork is read to its end by both, each over a connection of its own."""
    with wds.gopen(f"{web.plain}/x") as stream:
        begin = stream.read(100_000)
        child = os.fork()
        if child == 0:
            os._exit(0 if begin + stream.read() == BODY else 1)
        assert begin + stream.read() == BODY
        assert os.waitpid(child, 0)[1] == 0
